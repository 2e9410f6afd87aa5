//! Holders with a name: whoever presents it enters, and the count is in Redis.

use crate::harness::faults::{EventLog, NEVER, build, hasty, owners, patient};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, exists, in_time};
use leasehold::{Client, Lock};
use std::thread;
use std::time::Duration;

fn acquire_digest(server: &Server) -> String {
    server.ask(&["SCRIPT", "LOAD", include_str!("../../lua/named_acquire.lua")])
}

fn release_digest(server: &Server) -> String {
    server.ask(&["SCRIPT", "LOAD", include_str!("../../lua/named_release.lua")])
}

fn lock(client: &Client) -> Lock {
    client.lock("a").with_holder("tx-42")
}

fn count(server: &Server) -> u32 {
    owners(server, "a").get("tx-42").copied().unwrap_or(0)
}

#[test]
fn whoever_presents_the_name_enters_and_each_release_takes_one_off() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let first = lock(&mine).lock().expect("it is free");
    let second = lock(&mine).lock().expect("the same thread");
    let third = lock(&theirs).lock_owned().expect("another process");
    let fourth = thread::scope(|scope| {
        in_time("a thread", scope.spawn(|| lock(&mine).lock_owned())).expect("another thread")
    });
    assert_eq!(count(&server), 4);
    assert_eq!(format!("{first:?}").matches("tx-42").count(), 1);
    assert!(theirs.lock("a").try_lock().expect("an answer").is_none(), "no name, no entry");
    let other = theirs.lock("a").with_holder("tx-43");
    assert!(other.try_lock().expect("an answer").is_none());
    let _: Vec<()> = vec![drop(first)];
    second.unlock().expect("it was held");
    third.unlock().expect("it was held");
    eventually("one is left", || count(&server) == 1);
    assert!(fourth.is_held());
    fourth.unlock().expect("it was held");
    assert!(!server.ask::<bool>(&["EXISTS", "a"]));
}

/// A job goes on in another process, which ends what the first began.
#[test]
fn unlock_takes_one_off_whoever_counted_it() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    lock(&mine).with_lease(NEVER).lock_owned().expect("it is free").detach();
    lock(&mine).with_lease(NEVER).lock_owned().expect("its own").detach();
    mine.close();
    assert_eq!(count(&server), 2);
    lock(&theirs).unlock().expect("it presents the name");
    assert_eq!(count(&server), 1);
    lock(&theirs).unlock().expect("it presents the name");
    assert!(lock(&theirs).unlock().is_err_and(|error| error.is_not_held()));
    drop(theirs.lock("a").try_lock().expect("an answer").expect("it is free"));
}

/// Names on one lock do not end each other's detached holds.
#[test]
fn what_one_name_detached_another_does_not_end() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let detached = lock(&client).lock().expect("it is free");
    assert_eq!((lock(&client).hold_count(), client.lock("a").hold_count()), (1, 0));
    detached.detach();
    let other = client.lock("a").with_holder("tx-43");
    assert!(other.unlock().is_err_and(|error| error.is_not_held()));
    assert_eq!((count(&server), other.hold_count()), (1, 0));
    lock(&client).unlock().expect("it was detached");
}

/// The lease of one hold runs out while another under the name is renewed: it counts no more.
#[test]
fn a_hold_whose_lease_is_over_is_taken_off_the_count() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let outer = lock(&client).lock().expect("free");
    let inner = lock(&client).with_lease(Duration::from_millis(100)).lock().expect("its own");
    assert!(inner.wait_lost(NEVER));
    eventually("it is taken off", || count(&server) == 1);
    assert!(inner.unlock().is_err_and(|error| error.is_lost()));
    assert!(outer.is_held() && count(&server) == 1);
    outer.unlock().expect("it was held");
    assert!(!server.ask::<bool>(&["EXISTS", "a"]));
}

#[test]
fn a_thread_under_two_names_would_wait_for_itself() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let guard = lock(&client).lock().expect("free");
    let error = client.lock("a").with_holder("tx-43").lock().map(drop).expect_err("it waits");
    assert!(error.is_deadlock(), "{error}");
    drop(guard);
}

/// The answer is cut off on its way, so the request is sent again: it counts once.
#[test]
fn a_request_that_is_sent_again_counts_once() {
    let server = Server::start();
    let (acquire, release) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let cut = Flow::CutAfter(0);
    let guards: Vec<_> = (1..=3)
        .map(|number| {
            proxy.on_request(acquire.as_bytes(), Direction::Replies, cut);
            let guard = lock(&client).lock_owned().expect("it is asked again");
            assert_eq!(count(&server), number);
            guard
        })
        .collect();
    assert!(proxy.stats().cuts >= 3, "{:?}", proxy.stats());
    for (left, guard) in (0..3).rev().zip(guards) {
        proxy.on_request(release.as_bytes(), Direction::Replies, cut);
        guard.unlock().expect("the first copy released it");
        assert_eq!(count(&server), left);
    }
    assert!(proxy.stats().cuts >= 6, "{:?}", proxy.stats());
    proxy.on_request(acquire.as_bytes(), Direction::Replies, cut);
    let guard = lock(&client).lock().expect("it is asked again");
    proxy.on_request(release.as_bytes(), Direction::Replies, cut);
    drop(guard);
    eventually("it is released, once", || !server.ask::<bool>(&["EXISTS", "a"]));
}

/// Nobody knows what became of the question: whatever it took is given back, and no more.
#[test]
fn a_request_without_an_answer_is_undone_and_nothing_else() {
    let server = Server::start();
    let (acquire, _) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let brief = Duration::from_millis(300);
    let client = build(patient(proxy.url()).response_timeout(brief));
    let straight = build(patient(server.url()));
    let kept = lock(&straight).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Swallow);
    let error = lock(&client).try_lock().map(drop).expect_err("no answer");
    assert!(error.is_timeout(), "{error}");
    proxy.heal();
    eventually("what it took is given back", || count(&server) == 1);
    // A question that never arrived is undone as well: that takes nothing off.
    proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Swallow);
    let error = lock(&client).try_lock().map(drop).expect_err("no answer");
    assert!(error.is_timeout(), "{error}");
    let before = server.calls("evalsha");
    proxy.heal();
    eventually("it is undone", || server.calls("evalsha") > before);
    assert!(kept.is_held() && count(&server) == 1);
    kept.unlock().expect("it was held");
}

#[test]
fn a_named_hold_waits_and_is_renewed_as_any_other() {
    let server = Server::start();
    let brief = Duration::from_millis(600);
    let (mine, theirs) =
        (build(patient(server.url()).watchdog_timeout(brief)), build(patient(server.url())));
    let guard = lock(&mine).lock().expect("it is free");
    assert!(!guard.wait_lost(3 * brief), "it is renewed");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.lock("a").lock().map(drop));
        eventually("it waits", || server.numsub("redisson_lock__channel:{a}") == 1);
        guard.unlock().expect("it was held");
        in_time("the waiter", waiter).expect("a plain lock of that name");
    });
}

// ---------------------------------------------------------------------------------
// The lease of one hold ends, and another process takes the lock under the same name.

/// Longer than a request takes, and short enough to wait for its end.
const SHORT: Duration = Duration::from_millis(300);

/// Takes the lock with a lease that expires at the server before `end` reaches the server.
/// Another process then holds the lock under the same name, and keeps it.
fn outlived_by_the_next_holder(end: impl FnOnce(leasehold::Guard)) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) = (build(patient(proxy.url())), build(patient(server.url())));
    let lapsed = lock(&mine).with_lease(SHORT).lock().expect("it is free");
    proxy.hold_requests();
    end(lapsed);
    eventually("the lease expires", || !exists(&server, "a"));
    let next = lock(&theirs).lock().expect("it is free");
    let before = server.calls("evalsha");
    proxy.pass();
    eventually("the late request runs", || server.calls("evalsha") > before);
    assert_eq!(count(&server), 1);
    assert!(mine.lock("a").try_lock().expect("an answer").is_none(), "it is held");
    next.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

#[test]
fn a_loss_that_the_watchdog_notices_ends_no_hold_of_another_process() {
    outlived_by_the_next_holder(|guard| assert!(guard.wait_lost(NEVER)));
}

#[test]
fn a_guard_dropped_after_its_lease_ends_no_hold_of_another_process() {
    outlived_by_the_next_holder(|guard| {
        assert!(guard.wait_lost(NEVER));
        drop(guard);
    });
}

#[test]
fn a_release_that_arrives_late_ends_no_hold_of_another_process() {
    outlived_by_the_next_holder(drop);
}

/// The connection that carries the release breaks: the release is sent again over a new one.
#[test]
fn a_release_that_is_repeated_late_ends_no_hold_of_another_process() {
    let server = Server::start();
    let (_, release) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) = (build(patient(proxy.url())), build(patient(server.url())));
    let guard = lock(&mine).with_lease(10 * SHORT).lock().expect("it is free");
    proxy.on_request(release.as_bytes(), Direction::Replies, Flow::CutAfter(0));
    let connected = || proxy.stats().accepted;
    let before = connected();
    proxy.refuse();
    drop(guard);
    eventually("the first copy runs", || !exists(&server, "a"));
    let next = lock(&theirs).lock().expect("it is free");
    let calls = server.calls("evalsha");
    proxy.heal();
    eventually("a new connection is made", || connected() > before);
    eventually("the second copy runs", || server.calls("evalsha") > calls);
    assert_eq!(count(&server), 1);
    next.unlock().expect("it was held");
}

/// The server loses its data, and another process takes the lock under the same name: the
/// first hold is lost with its next renewal.
#[test]
fn a_renewal_of_a_hold_that_the_server_lost_finds_no_other_hold_of_that_name() {
    let server = Server::start();
    let brief = Duration::from_millis(600);
    let mine = build(patient(server.url()).watchdog_timeout(brief));
    let theirs = build(patient(server.url()));
    let lost = lock(&mine).lock().expect("it is free");
    server.ask::<()>(&["FLUSHALL"]);
    let next = lock(&theirs).lock().expect("it is free");
    assert!(lost.wait_lost(NEVER), "the server lost it");
    assert!(lost.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(count(&server), 1);
    next.unlock().expect("it was held");
}

/// Whoever presents the name may end what another counted: that hold is lost, and its end takes
/// nothing off what the next one counted.
#[test]
fn what_another_process_ended_is_lost_and_ends_nothing_more() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let detached = lock(&mine).with_lease(SHORT).lock_owned().expect("it is free");
    let kept = lock(&theirs).lock_owned().expect("it presents the name");
    lock(&theirs).unlock().expect("it presents the name");
    assert_eq!(count(&server), 1);
    assert!(detached.wait_lost(NEVER));
    drop(detached);
    drop(mine);
    assert!(kept.is_held() && count(&server) == 1);
    kept.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

// ---------------------------------------------------------------------------------
// Names.

/// A holder's name is only a name, also one that is a word of the protocol.
#[test]
fn a_holder_of_any_name_excludes_readers_writers_and_other_holders() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    for name in ["nobody", "mode", "read", "write", "leasehold", "0", "1", "redisson:1:write"] {
        let rw_lock = theirs.rw_lock("a");
        let held = mine.lock("a").with_holder(name).lock().expect("it is free");
        assert!(rw_lock.try_read().expect("an answer").is_none(), "{name}");
        assert!(rw_lock.try_write().expect("an answer").is_none(), "{name}");
        assert!(theirs.lock("a").try_lock().expect("an answer").is_none(), "{name}");
        assert!(lock(&theirs).try_lock().expect("an answer").is_none(), "{name}");
        held.unlock().expect("it was held");
        let presented = mine.lock("a").with_holder(name);
        let reading = rw_lock.read_owned().expect("it is free");
        assert!(presented.try_lock().expect("an answer").is_none(), "{name}");
        reading.unlock().expect("it was held");
        let writing = rw_lock.write_owned().expect("it is free");
        assert!(presented.try_lock().expect("an answer").is_none(), "{name}");
        assert!(presented.unlock().is_err_and(|error| error.is_not_held()), "{name}");
        writing.unlock().expect("it was held");
    }
}

/// The hold behind such a field ends all that stands under it.
#[test]
fn the_owner_field_of_another_hold_cannot_be_presented() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let held = mine.lock("a").lock().expect("it is free");
    let [owner] = &owners(&server, "a").into_keys().collect::<Vec<_>>()[..] else {
        panic!("one owner");
    };
    for name in [owner.as_str(), &format!("{owner}:write"), &format!("{}:1", theirs.id()), ""] {
        let presented = theirs.lock("a").with_holder(name);
        assert!(presented.try_lock().is_err_and(|error| error.is_invalid_name()), "{name}");
        assert!(presented.unlock().is_err_and(|error| error.is_invalid_name()), "{name}");
    }
    assert!(theirs.lock("a").with_holder(theirs.id().to_string()).try_lock().is_ok());
    held.unlock().expect("it was held");
}

// ---------------------------------------------------------------------------------
// A release that cannot be sent while its own lease lasts.

/// A way in which a hold ends.
type End = (&'static str, fn(leasehold::Guard));

/// The ways in which a hold ends while the server cannot be reached.
fn ends_of_a_hold() -> [End; 3] {
    [
        ("dropped", drop),
        ("unlocked", |guard| {
            let error = guard.unlock().expect_err("the server cannot be reached");
            assert!(error.is_connection(), "{error}");
        }),
        ("expired", |guard| assert!(guard.wait_lost(NEVER))),
    ]
}

/// Another hold under the name keeps the lock: the share of this one has to be taken off
/// however late that is.
#[test]
fn a_release_is_sent_until_it_is_answered_if_others_keep_the_lock() {
    for (how, end) in ends_of_a_hold() {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let (settings, heard) = EventLog::from(patient(proxy.url()));
        let (mine, theirs) = (build(settings), build(patient(server.url())));
        let kept = lock(&theirs).lock().expect("it is free");
        let ended = lock(&mine).with_lease(SHORT).lock().expect("it presents the name");
        proxy.refuse();
        proxy.kill_all();
        end(ended);
        if how != "expired" {
            assert!(heard.released().error.is_some(), "its lease is over: {how}");
        }
        outlast(&theirs, 4 * SHORT);
        assert_eq!(count(&server), 2, "{how}");
        proxy.heal();
        eventually("it is taken off", || count(&server) == 1);
        assert!(kept.is_held());
        kept.unlock().expect("it was held");
        assert!(!exists(&server, "a"));
    }
}

/// Returns when a lease of that span is over.
fn outlast(client: &Client, span: Duration) {
    let other = client.lock("b").with_lease(span).lock().expect("it is free");
    assert!(other.wait_lost(NEVER));
}

/// The client leaves without the lock, and without an answer.
#[test]
fn a_request_without_an_answer_is_undone_however_late_if_others_keep_the_lock() {
    let server = Server::start();
    let (acquire, _) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) =
        (build(patient(proxy.url()).response_timeout(SHORT)), build(patient(server.url())));
    let kept = lock(&theirs).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Swallow);
    let asking = lock(&mine).with_lease(SHORT);
    let error = asking.try_lock().map(drop).expect_err("no answer");
    assert!(error.is_timeout(), "{error}");
    proxy.refuse();
    proxy.kill_all();
    outlast(&theirs, 4 * SHORT);
    proxy.heal();
    eventually("what it took is given back", || count(&server) == 1);
    kept.unlock().expect("it was held");
}

/// A closed client does not wait for what is only worth sending.
#[test]
fn a_client_closes_while_a_release_is_sent_that_others_make_necessary() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()));
    let (mine, theirs) = (build(settings), build(patient(server.url())));
    let kept = lock(&theirs).lock().expect("it is free");
    let ended = lock(&mine).with_lease(SHORT).lock().expect("it presents the name");
    proxy.refuse();
    proxy.kill_all();
    drop(ended);
    assert!(heard.released().error.is_some(), "its lease is over");
    let closing = thread::spawn(move || drop(mine));
    eventually("it closes", || closing.is_finished());
    let tries = proxy.stats().refused;
    outlast(&theirs, 4 * SHORT);
    assert_eq!(proxy.stats().refused, tries);
    kept.unlock().expect("it was held");
}

// ---------------------------------------------------------------------------------
// An acquire that runs late.

/// What a client needs for named holders, without the right to end its old connections.
const MEEK: &str = "user meek on >secret resetchannels ~* &redisson_lock__channel:* \
    &leasehold:wake:* -@all +evalsha +script|load +hset +hdel +hexists +hlen +del \
    +pttl +pexpire +publish +subscribe +unsubscribe +select +hget +hincrby";

/// The client has given the request up and undone it. If the server runs the request after
/// that, it counts until the next repetition of the clean-up, and then no more.
#[test]
fn an_acquire_that_runs_after_its_clean_up_does_not_stay_counted() {
    let server = Server::with(|config| config.line(MEEK));
    let (acquire, _) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let url = format!("redis://meek:secret@{}/", proxy.addr());
    let mine = build(hasty(url).poll_interval(Duration::from_millis(100)));
    let theirs = build(patient(server.url()));
    let kept = lock(&theirs).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Hold);
    let error = lock(&mine).try_lock().map(drop).expect_err("it is held back");
    assert!(error.is_timeout(), "{error}");
    eventually("the clean-up, more than once", || server.calls("hdel") >= 2);
    let counted = server.calls("hincrby");
    proxy.release_held();
    eventually("the acquire runs", || server.calls("hincrby") > counted);
    eventually("it is taken off", || count(&server) == 1);
    assert!(kept.is_held());
    kept.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

/// The server ends the connection on which the request is held back.
#[test]
fn an_acquire_cannot_run_after_its_clean_up() {
    let server = Server::start();
    let (acquire, _) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) = (build(hasty(proxy.url())), build(patient(server.url())));
    let kept = lock(&theirs).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Hold);
    let error = lock(&mine).try_lock().map(drop).expect_err("it is held back");
    assert!(error.is_timeout(), "{error}");
    eventually("the clean-up", || server.calls("hdel") == 1);
    proxy.wait_until("the end of the connection that is held", |stats| {
        stats.requests.held == 0 && stats.requests.dropped > 0
    });
    assert_eq!(server.calls("hincrby"), 1);
    kept.unlock().expect("it was held");
}
