//! Deadlines: however late an answer comes, no guard outlives what the server keeps
//! for it.

use crate::harness::faults::*;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, join, sleeping};
use leasehold::{Client, Guard};
use std::thread;
use std::time::Duration;

/// A lease that a test waits to see the end of.
const SHORT: Duration = Duration::from_secs(1);

struct Slow {
    server: Server,
    digests: Digests,
    proxy: Proxy,
    client: Client,
    other: Client,
}

impl Slow {
    fn new() -> Slow {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let client = build(patient(proxy.url()));
        let (digests, other) = (Digests::of(&server), other(&server));
        Slow { server, digests, proxy, client, other }
    }

    /// Keeps the reply to the next such request back.
    fn hold_reply(&self, digest: &str) {
        self.proxy.on_request(digest.as_bytes(), Direction::Replies, Flow::Hold);
    }
}

#[test]
fn who_has_its_answer_does_not_wait_for_those_of_others() {
    let slow = Slow::new();
    let client = build(patient(slow.proxy.url()).pool_size(1).response_timeout(NEVER));
    slow.proxy.on_request(b"leads", Direction::Requests, Flow::Hold);
    let (first, second) = (client.lock("leads"), client.lock("behind"));
    let leader = thread::spawn(move || first.lock_owned());
    something_is_held(&slow.proxy);
    let behind = sleeping("behind", move || second.lock_owned());
    slow.proxy.on_request(b"behind", Direction::Replies, Flow::Swallow);
    slow.proxy.release_held();
    let guard = join(leader).expect("it has its answer");
    slow.proxy.wait_until("the other's is dropped", |stats| stats.replies.swallowed > 0);
    assert!(!behind.is_finished() && guard.is_held());
    slow.proxy.kill_all();
    for guard in [guard, join(behind).expect("it comes")] {
        guard.unlock().expect("it is held");
    }
}

/// How many answers in a row a caller lets come too late.
const TOO_LATE: usize = 3;

#[test]
fn a_yes_that_comes_after_the_lease_is_asked_for_again() {
    let slow = Slow::new();
    let lock = slow.client.lock("late").with_lease(SHORT);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let guard = lock.lock().expect("the second answer comes in time");
            assert_held(&slow.server, "late", &guard, SHORT);
            guard.unlock().expect("it is held");
        });
        something_is_held(&slow.proxy);
        eventually("the lease is over", || !exists(&slow.server, "late"));
        slow.proxy.release_held();
        caller.join().expect("no panic");
    });
    assert_others_can_take(&slow.other, "late");
}

#[test]
fn a_yes_that_always_comes_after_the_lease_is_no_yes() {
    let slow = Slow::new();
    let lock = slow.client.lock("late").with_lease(SHORT);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| lock.lock().map(drop));
        for nth in 1..=TOO_LATE {
            slow.proxy.wait_until("the question", |stats| stats.triggered == nth);
            something_is_held(&slow.proxy);
            eventually("the lease is over", || !exists(&slow.server, "late"));
            slow.hold_reply(&slow.digests.acquire);
            slow.proxy.release_held();
        }
        let error = caller.join().expect("no panic").expect_err("it came too late");
        assert!(error.is_lost(), "{error}");
    });
    eventually("what may be there is released", || slow.server.calls("hdel") == 1);
    assert_others_can_take(&slow.other, "late");
}

#[test]
fn a_yes_that_comes_too_late_frees_what_is_there() {
    // A server whose clock stands still for a while: the lease is over here first.
    let slow = Slow::new();
    let lock = slow.client.lock("late").with_lease(SHORT);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| lock.try_lock().map(drop));
        something_is_held(&slow.proxy);
        assert!(slow.server.ask::<bool>(&["PERSIST", "late"]), "it is still held");
        let clock = slow.other.lock("clock").with_lease(SHORT * 2);
        clock.lock().expect("its way is straight").detach();
        eventually("more than a lease to pass", || !exists(&slow.server, "clock"));
        slow.proxy.release_held();
        let error = caller.join().expect("no panic").expect_err("it came too late");
        assert!(error.is_lost(), "{error}");
    });
    eventually("it is freed", || !exists(&slow.server, "late"));
    assert_others_can_take(&slow.other, "late");
}

#[test]
fn a_lease_counts_from_the_moment_before_the_question() {
    const LEASE: Duration = Duration::from_secs(10);
    let slow = Slow::new();
    let lock = slow.client.lock("slow").with_lease(LEASE);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let guard = lock.lock().expect("it comes in time");
            assert_held(&slow.server, "slow", &guard, LEASE);
            guard.unlock().expect("it is held");
        });
        something_is_held(&slow.proxy);
        // Far more than the margin that a deadline allows for.
        let much = || left(&slow.server, "slow") < LEASE * 9 / 10;
        eventually("a tenth of the lease to pass", much);
        slow.proxy.release_held();
        caller.join().expect("it is held");
    });
}

#[test]
fn an_extension_counts_from_the_moment_before_the_question() {
    const LEASE: Duration = Duration::from_secs(10);
    let slow = Slow::new();
    let guard = slow.client.lock("slow").with_lease(LEASE / 2).lock().expect("all is well");
    slow.hold_reply(&slow.digests.renew);
    thread::scope(|scope| {
        scope.spawn(|| {
            something_is_held(&slow.proxy);
            let much = || left(&slow.server, "slow") < LEASE * 9 / 10;
            eventually("a tenth of the lease to pass", much);
            slow.proxy.release_held();
        });
        guard.extend(LEASE).expect("it comes in time");
    });
    assert_held(&slow.server, "slow", &guard, LEASE);
    guard.unlock().expect("it is held");
}

#[test]
fn an_extension_that_is_answered_after_the_lease_gives_nothing_back() {
    let slow = Slow::new();
    let guard = slow.client.lock("slow").with_lease(SHORT).lock().expect("all is well");
    slow.hold_reply(&slow.digests.renew);
    thread::scope(|scope| {
        scope.spawn(|| {
            something_is_held(&slow.proxy);
            eventually("the old lease is over", || !guard.is_held());
            slow.proxy.release_held();
        });
        let error = guard.extend(NEVER).expect_err("it comes too late");
        assert!(error.is_lost(), "{error}");
    });
    assert!(!guard.is_held() && guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("what the server still keeps is freed", || !exists(&slow.server, "slow"));
}

#[test]
fn an_extension_without_an_answer_keeps_no_dead_hold() {
    let slow = Slow::new();
    let brief = build(hasty(slow.proxy.url()));
    // How a guard ends, and whether that says that it was lost.
    let unlocks = |guard: Guard| guard.unlock().is_err_and(|error| error.is_lost());
    let drops = |guard: Guard| {
        drop(guard);
        true
    };
    let detaches = |guard: Guard| {
        guard.detach();
        true
    };
    let lives_on = |guard: Guard| {
        std::mem::forget(guard);
        true
    };
    let ends: [fn(Guard) -> bool; 4] = [unlocks, drops, detaches, lives_on];
    for end in ends {
        let guard = brief.lock("slow").with_lease(SHORT).lock().expect("all is well");
        slow.proxy.on_request(slow.digests.renew.as_bytes(), Direction::Replies, Flow::Swallow);
        let error = guard.extend(NEVER).expect_err("nobody answers");
        assert!(error.is_timeout(), "{error}");
        assert!(left(&slow.server, "slow") > SHORT, "it was done all the same");
        eventually("the lease that is known of ends", || !guard.is_held());
        assert!(end(guard));
        eventually("what the server still keeps is freed", || !exists(&slow.server, "slow"));
    }
}

#[test]
fn no_guard_outlives_its_lease_while_it_is_renewed() {
    const LEASE: Duration = Duration::from_secs(3);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
    let client = build(settings);
    // Each answer takes longer than the margin, and less than a renewal waits.
    proxy.delay(Direction::Replies, LEASE / 25);
    let guard = client.lock("renewed").lock().expect("it is slow, but works");
    let mut renewals = 0;
    while renewals < 2 + stress() {
        assert!(guard.is_held(), "it is renewed: {guard:?}");
        assert_no_later_than_the_server(&server, "renewed", &guard);
        renewals += heard.renewals_already();
    }
    assert_held(&server, "renewed", &guard, LEASE);
    guard.unlock().expect("it is held");
}

#[test]
fn an_answer_to_a_renewal_that_comes_after_the_lease_renews_nothing() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
    let (client, digests) = (build(settings), Digests::of(&server));
    let guard = client.lock("renewed").lock().expect("all is well");
    proxy.on_request(digests.renew.as_bytes(), Direction::Replies, Flow::Hold);
    proxy.wait_until("a renewal", |stats| stats.replies.held > 0);
    // From here on it can hear nothing; what it asks may go through.
    proxy.hold_replies();
    assert!(guard.wait_lost(LEASE * 2), "nothing renews it");
    proxy.release_held();
    assert_eq!(&*heard.lost().name, "renewed");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the server forgets it", || !exists(&server, "renewed"));
}
