//! Deadlines: however late a reply arrives, no guard outlives its lease on the server.

use crate::harness::faults::*;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, join, sleeping};
use leasehold::{Client, Guard};
use std::thread;
use std::time::Duration;

/// A lease whose end a test waits for.
const SHORT: Duration = Duration::from_secs(1);

/// A server, a client behind a proxy, and a client without a proxy.
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

    /// Holds back the reply to the next request with this digest.
    fn hold_reply(&self, digest: &str) {
        self.proxy.on_request(digest.as_bytes(), Direction::Replies, Flow::Hold);
    }
}

#[test]
fn a_caller_with_its_reply_does_not_wait_for_replies_to_others() {
    let slow = Slow::new();
    let client = build(patient(slow.proxy.url()).pool_size(1).response_timeout(NEVER));
    slow.proxy.on_request(b"leads", Direction::Requests, Flow::Hold);
    let (first, second) = (client.lock("leads"), client.lock("behind"));
    let leader = thread::spawn(move || first.lock_owned());
    something_is_held(&slow.proxy);
    let behind = sleeping("behind", move || second.lock_owned());
    slow.proxy.on_request(b"behind", Direction::Replies, Flow::Swallow);
    slow.proxy.release_held();
    let guard = join(leader).expect("the leader has its reply");
    slow.proxy.wait_until("a dropped reply", |stats| stats.replies.swallowed > 0);
    assert!(!behind.is_finished() && guard.is_held());
    slow.proxy.kill_all();
    for guard in [guard, join(behind).expect("the repeated request is answered")] {
        guard.unlock().expect("the lock is held");
    }
}

/// Late grants in a row after which a caller gives up.
const LATE_GRANTS: usize = 3;

#[test]
fn a_caller_asks_again_after_a_grant_that_arrives_after_its_lease() {
    let slow = Slow::new();
    let lock = slow.client.lock("late").with_lease(SHORT);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let guard = lock.lock().expect("the second grant arrives in time");
            assert_held(&slow.server, "late", &guard, SHORT);
            guard.unlock().expect("the lock is held");
        });
        something_is_held(&slow.proxy);
        eventually("the lease is over", || !exists(&slow.server, "late"));
        slow.proxy.release_held();
        caller.join().expect("no panic");
    });
    assert_others_can_take(&slow.other, "late");
}

#[test]
fn grants_that_all_arrive_after_their_lease_are_a_loss() {
    let slow = Slow::new();
    let lock = slow.client.lock("late").with_lease(SHORT);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| lock.lock().map(drop));
        for nth in 1..=LATE_GRANTS {
            slow.proxy.wait_until("a request", |stats| stats.triggered == nth);
            something_is_held(&slow.proxy);
            eventually("the lease is over", || !exists(&slow.server, "late"));
            slow.hold_reply(&slow.digests.acquire);
            slow.proxy.release_held();
        }
        let error = caller.join().expect("no panic").expect_err("the grant arrives too late");
        assert!(error.is_lost(), "{error}");
    });
    eventually("the possible hold is released", || slow.server.calls("hdel") == 1);
    assert_others_can_take(&slow.other, "late");
}

#[test]
fn a_hold_whose_grant_arrives_after_its_lease_is_released() {
    // PERSIST stands for a server whose clock stops: the lease ends locally first.
    let slow = Slow::new();
    let lock = slow.client.lock("late").with_lease(SHORT);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| lock.try_lock().map(drop));
        something_is_held(&slow.proxy);
        assert!(slow.server.ask::<bool>(&["PERSIST", "late"]), "the lock is still held");
        let clock = slow.other.lock("clock").with_lease(SHORT * 2);
        clock.lock().expect("the other client has no proxy").detach();
        eventually("more than a lease to pass", || !exists(&slow.server, "clock"));
        slow.proxy.release_held();
        let error = caller.join().expect("no panic").expect_err("the grant arrives too late");
        assert!(error.is_lost(), "{error}");
    });
    eventually("the lock is free", || !exists(&slow.server, "late"));
    assert_others_can_take(&slow.other, "late");
}

#[test]
fn a_lease_counts_from_the_moment_before_the_request() {
    const LEASE: Duration = Duration::from_secs(10);
    let slow = Slow::new();
    let lock = slow.client.lock("slow").with_lease(LEASE);
    slow.hold_reply(&slow.digests.acquire);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let guard = lock.lock().expect("the reply arrives in time");
            assert_held(&slow.server, "slow", &guard, LEASE);
            guard.unlock().expect("the lock is held");
        });
        something_is_held(&slow.proxy);
        // Far more than the margin of a deadline.
        let tenth_is_over = || left(&slow.server, "slow") < LEASE * 9 / 10;
        eventually("a tenth of the lease is over", tenth_is_over);
        slow.proxy.release_held();
        caller.join().expect("no panic");
    });
}

#[test]
fn an_extension_counts_from_the_moment_before_the_request() {
    const LEASE: Duration = Duration::from_secs(10);
    let slow = Slow::new();
    let guard = slow.client.lock("slow").with_lease(LEASE / 2).lock().expect("the server answers");
    slow.hold_reply(&slow.digests.renew);
    thread::scope(|scope| {
        scope.spawn(|| {
            something_is_held(&slow.proxy);
            let tenth_is_over = || left(&slow.server, "slow") < LEASE * 9 / 10;
            eventually("a tenth of the lease is over", tenth_is_over);
            slow.proxy.release_held();
        });
        guard.extend(LEASE).expect("the reply arrives in time");
    });
    assert_held(&slow.server, "slow", &guard, LEASE);
    guard.unlock().expect("the lock is held");
}

#[test]
fn an_extension_answered_after_the_lease_does_not_revive_the_hold() {
    let slow = Slow::new();
    let guard = slow.client.lock("slow").with_lease(SHORT).lock().expect("the server answers");
    slow.hold_reply(&slow.digests.renew);
    thread::scope(|scope| {
        scope.spawn(|| {
            something_is_held(&slow.proxy);
            eventually("the old lease is over", || !guard.is_held());
            slow.proxy.release_held();
        });
        let error = guard.extend(NEVER).expect_err("the reply arrives too late");
        assert!(error.is_lost(), "{error}");
    });
    assert!(!guard.is_held() && guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the hold on the server is released", || !exists(&slow.server, "slow"));
}

#[test]
fn a_hold_whose_extension_has_no_reply_ends_with_its_known_lease() {
    let slow = Slow::new();
    let client = build(hasty(slow.proxy.url()));
    // The ways to end a guard. Only `unlock` can report the loss.
    let unlocks = |guard: Guard| guard.unlock().is_err_and(|error| error.is_lost());
    let drops = |guard: Guard| {
        drop(guard);
        true
    };
    let detaches = |guard: Guard| {
        guard.detach();
        true
    };
    let forgets = |guard: Guard| {
        std::mem::forget(guard);
        true
    };
    let ends: [fn(Guard) -> bool; 4] = [unlocks, drops, detaches, forgets];
    for end in ends {
        let guard = client.lock("slow").with_lease(SHORT).lock().expect("the server answers");
        slow.proxy.on_request(slow.digests.renew.as_bytes(), Direction::Replies, Flow::Swallow);
        let error = guard.extend(NEVER).expect_err("the proxy drops the reply");
        assert!(error.is_timeout(), "{error}");
        assert!(left(&slow.server, "slow") > SHORT, "the server has extended the lease");
        eventually("the known lease ends", || !guard.is_held());
        assert!(end(guard));
        eventually("the hold on the server is released", || !exists(&slow.server, "slow"));
    }
}

#[test]
fn no_guard_outlives_a_lease_that_is_renewed() {
    const LEASE: Duration = Duration::from_secs(3);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
    let client = build(settings);
    // Each reply takes longer than the margin, and arrives before a renewal gives up.
    proxy.delay(Direction::Replies, LEASE / 25);
    let guard = client.lock("renewed").lock().expect("the reply arrives");
    let mut renewals = 0;
    while renewals < 2 + stress() {
        assert!(guard.is_held(), "a renewed lease has ended: {guard:?}");
        assert_no_later_than_the_server(&server, "renewed", &guard);
        renewals += heard.renewals_already();
    }
    assert_held(&server, "renewed", &guard, LEASE);
    guard.unlock().expect("the lock is held");
}

#[test]
fn a_renewal_answered_after_the_lease_renews_nothing() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
    let (client, digests) = (build(settings), Digests::of(&server));
    let guard = client.lock("renewed").lock().expect("the server answers");
    proxy.on_request(digests.renew.as_bytes(), Direction::Replies, Flow::Hold);
    proxy.wait_until("a renewal", |stats| stats.replies.held > 0);
    // From here on no reply arrives. Requests may pass.
    proxy.hold_replies();
    assert!(guard.wait_lost(LEASE * 2), "no renewal is answered");
    proxy.release_held();
    assert_eq!(&*heard.lost().name, "renewed");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the lock is free", || !exists(&server, "renewed"));
}
