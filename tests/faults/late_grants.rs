//! Grants of a queue lock whose message comes late.

use crate::harness::faults::*;
use crate::harness::queued::queue_length;
use crate::harness::{Connections, Direction, Flow, Proxy, Server, eventually};
use leasehold::Client;
use std::process::Command;
use std::thread;

/// The lock of these tests, and its key.
const LOCK: &str = "q";

/// The seeded faults (`tests/seeded`) that only a test finds, and the test.
const SEEDED: [(&str, &str); 4] = [
    ("late-message-counts", "late_grants::a_message_of_a_grant_that_has_ended_does_not_count"),
    ("wake-up-kept", "semaphores::a_waiter_whose_question_is_lost_keeps_no_other_waiter_asleep"),
    (
        "acquire-reclaims-silently",
        "semaphores::an_acquire_announces_the_permits_that_it_reclaims_and_leaves",
    ),
    ("poll-reclaims-silently", "semaphores::a_poll_announces_the_permits_that_it_reclaims"),
];

/// Blocks until this many callers wait, and the replies to this many acquires are read in all.
fn await_waiters(server: &Server, client: &Client, count: usize, answers: u64) {
    eventually("the callers wait", || {
        queue_length(server, LOCK) == count && client.stats().round_trip().count() >= answers
    });
}

/// Waits once, so that the client's listener is connected. Until its polls, which are rare, the
/// client then sends no heartbeat, and hears of a grant only by the message.
fn connect_listener(server: &Server, client: &Client, other: &Client) {
    let first = other.queue_lock("warm").lock().expect("a free lock");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(client.queue_lock("warm").lock().expect("a grant")));
        let is_awaited = || server.channels().iter().any(|it| it.starts_with("leasehold:wake:"));
        eventually("the waiter listens", || queue_length(server, "warm") == 1 && is_awaited());
        drop(first);
        waiter.join().expect("no panic");
    });
}

#[test]
fn a_message_of_a_grant_that_has_ended_does_not_count() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()).pool_size(3));
    let outside = other(&server);
    connect_listener(&server, &client, &outside);
    let other = outside.queue_lock(LOCK);
    let first = other.lock().expect("a free lock");
    let answers = client.stats().round_trip().count();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.queue_lock(LOCK).lock().map(|guard| guard.token()));
        await_waiters(&server, &client, 1, answers + 1);
        proxy.set_for(Connections::Subscribers, Direction::Replies, Flow::Hold);
        first.unlock().expect("the release grants the lock to the waiter");
        something_is_held(&proxy);
        assert!(other.force_unlock().expect("the waiter has the lock"));
        let second = other.lock().expect("a free lock");
        let token = second.token();

        // The reply to this caller says that its client has lost places, so the waiter asks again.
        let beside = scope.spawn(|| client.queue_lock(LOCK).lock().map(|guard| guard.token()));
        await_waiters(&server, &client, 2, answers + 3);
        proxy.release_held();
        second.check().expect("the message changes nothing on the server");
        second.unlock().expect("the lock is held");
        let granted = [waiter, beside].map(|it| it.join().expect("no panic").expect("a grant"));
        assert!(granted.iter().all(|later| token < *later), "{granted:?} after {token}");
    });
}

/// The number of runs in which a test has to find a seeded fault once. The fault shows nothing in
/// a run in which the waiter has not noted its last reply when the late message comes.
const RUNS: usize = 5;

/// Looks for the seeded fault that `LEASEHOLD_SEEDED_FAULT` names, or for all.
#[test]
#[ignore = "needs a build with seeded faults: script/seeded makes it and runs this test"]
fn seeded_faults_are_found_by_their_tests() {
    let one = std::env::var("LEASEHOLD_SEEDED_FAULT").ok();
    let wanted = SEEDED.iter().filter(|(fault, _)| one.as_ref().is_none_or(|f| f == fault));
    thread::scope(|scope| {
        for (fault, test) in wanted {
            scope.spawn(move || {
                assert!(passes(test, ""), "{test} fails without {fault}");
                assert!((0..RUNS).any(|_| !passes(test, fault)), "{test} does not find {fault}");
            });
        }
    });
}

/// Runs a test in another process, with a seeded fault. Returns whether the test passes.
fn passes(test: &str, fault: &str) -> bool {
    let this = std::env::current_exe().expect("this binary");
    let run = Command::new(this).args([test, "--exact"]).env("LEASEHOLD_SEEDED", fault).output();
    let run = run.expect("the binary runs");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("running 1 test"), "there is no test {test}: {text}");
    run.status.success()
}
