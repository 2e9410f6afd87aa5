//! Commands that run late: after a response time-out, when their sender has given up the
//! connection, and perhaps has taken or released the lock over the next connection.

use crate::harness::faults::*;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time};
use leasehold::{Builder, CancelToken, Client, Guard, Lock, Released, Result};
use std::thread;
use std::time::{Duration, Instant};

/// The poll interval of the client, which is the longest pause before a clean-up is repeated.
const OFTEN: Duration = Duration::from_millis(100);

/// Returns a lock with this lease, or with the watchdog's.
fn lock_with(client: &Client, name: &str, lease: Option<Duration>) -> Lock {
    let lock = client.lock(name);
    match lease {
        Some(lease) => lock.with_lease(lease),
        None => lock,
    }
}

/// A server, a proxy that can hold commands back, and a client with a short response time-out
/// behind it; and a client with a direct connection.
struct Stage {
    server: Server,
    digests: Digests,
    proxy: Proxy,
    client: Client,
    heard: EventLog,
    other: Client,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(|settings| settings.poll_interval(OFTEN))
    }

    /// A stage whose client has short watchdog leases.
    fn brief() -> Stage {
        Stage::with(|settings| settings.poll_interval(OFTEN).watchdog_timeout(BRIEF))
    }

    fn with(more: impl Fn(Builder) -> Builder) -> Stage {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let (settings, heard) = EventLog::from(more(hasty(proxy.url())));
        let (digests, other) = (Digests::of(&server), other(&server));
        Stage { client: build(settings), server, digests, proxy, heard, other }
    }

    fn hold_next(&self, digest: &str) {
        self.proxy.on_request(digest.as_bytes(), Direction::Requests, Flow::Hold);
    }

    /// Delivers the held commands. Returns when their connections have ended, so that the server
    /// has run all of them.
    fn deliver_late(&self) {
        let held = self.proxy.stats();
        assert!(held.requests.held > 0, "no command is late");
        self.proxy.release_held();
        self.proxy.wait_until("the end of the late connection", |s| s.open < held.open);
    }

    fn releases(&self) -> u64 {
        self.server.calls("hdel")
    }

    fn grants(&self) -> u64 {
        self.server.calls("hset")
    }

    /// Has an acquire held back until its caller gives up.
    fn time_out(&self, name: &str, lease: Option<Duration>) {
        self.hold_next(name);
        let lock = lock_with(&self.client, name, lease);
        let error = lock.try_lock().expect_err("the acquire is held back");
        assert!(error.is_timeout(), "{error}");
    }

    fn end(self) {
        drop((self.client, self.other));
        nothing_is_left(&self.server);
    }
}

/// Delivers a late acquire, which takes the lock, and waits until the lock is free again.
fn the_late_grant_is_released(stage: &Stage) {
    let grants = stage.grants();
    stage.deliver_late();
    assert_eq!(stage.grants(), grants + 1, "the late acquire ran");
    eventually("the late grant is released", || !exists(&stage.server, "late"));
    assert_others_can_take(&stage.other, "late");
}

#[test]
fn a_late_acquire_is_released_again() {
    let stage = Stage::new();
    stage.time_out("late", None);
    eventually("the repeated clean-up", || stage.releases() >= 2);
    assert_eq!(stage.grants(), 0);
    the_late_grant_is_released(&stage);
}

/// With a poll interval of minutes only the first, short pauses can lead to so many copies.
#[test]
fn a_clean_up_is_repeated_soon() {
    let stage = Stage::with(|settings| settings.poll_interval(NEVER));
    stage.time_out("late", None);
    eventually("four copies of the clean-up", || stage.releases() >= 4);
    the_late_grant_is_released(&stage);
}

#[test]
fn many_late_acquires_are_released_again() {
    const CALLERS: usize = 8;
    // A request that waits in the queue of a connection is taken back, so each caller has its own.
    let stage = Stage::with(|it| it.poll_interval(OFTEN).pool_size(CALLERS));
    let name = |caller| format!("late {caller}");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let stage = &stage;
            scope.spawn(move || stage.time_out(&name(caller), None));
        }
    });
    eventually("the clean-ups", || stage.releases() >= CALLERS as u64);
    assert_eq!(stage.grants(), 0);
    stage.proxy.release_held();
    eventually("the late acquires run", || stage.grants() == CALLERS as u64);
    for caller in 0..CALLERS {
        eventually("a late grant is released", || !exists(&stage.server, &name(caller)));
        assert_others_can_take(&stage.other, &name(caller));
    }
}

/// A waiting caller asks again, and its question is late. The caller gives up at its deadline.
#[test]
fn a_late_question_of_a_caller_that_gave_up_is_released_again() {
    let stage = Stage::new();
    let holder = stage.other.lock("late").lock().expect("the lock is free");
    thread::scope(|scope| {
        let lock = stage.client.lock("late");
        let waiter = scope.spawn(move || lock.try_lock_for(BRIEF * 5).map(|got| got.is_some()));
        hold_the_next_question(&stage);
        // The caller is refused once more, over another connection.
        let got = waiter.join().expect("no panic").expect("the server answers again");
        assert!(!got, "two callers hold the lock");
    });
    holder.unlock().expect("the lock is held");
    the_late_grant_is_released(&stage);
}

/// Wakes the waiting caller of `stage.client`, and holds its question back.
fn hold_the_next_question(stage: &Stage) {
    let subscribed = || stage.server.numsub(&channel_of("late")) == 1;
    eventually("the caller is refused and listens", subscribed);
    stage.hold_next(&stage.digests.acquire);
    stage.server.ask::<()>(&["PUBLISH", &channel_of("late"), "0"]);
    something_is_held(&stage.proxy);
}

#[test]
fn a_clean_up_is_repeated_for_one_lease() {
    let stage = Stage::brief();
    stage.time_out("late", Some(OFTEN * 20));
    eventually("the clean-up is repeated", || stage.releases() >= 4);
    // No caller waits for the repetitions: they end by themselves, and the connections with them.
    stage.proxy.pass();
    stage.end();
}

/// A waiting caller asks again, and its question is late. Over another connection the caller is
/// granted the lock, and `end` ends the hold.
fn ended_before_the_first_copy_runs(
    stage: &Stage,
    lease: Option<Duration>,
    end: impl FnOnce(Guard) + Send,
) {
    let holder = stage.other.lock("late").lock().expect("the lock is free");
    let lock = lock_with(&stage.client, "late", lease);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = lock.lock().expect("the lock is free at last");
            assert_held(&stage.server, "late", &guard, NEVER);
            end(guard);
        });
        hold_the_next_question(stage);
        holder.unlock().expect("the lock is held");
        waiter.join().expect("the caller gets the lock");
    });
}

#[test]
fn a_first_copy_that_runs_after_the_second_was_released_is_released_again() {
    let stage = Stage::new();
    ended_before_the_first_copy_runs(&stage, None, release);
    the_late_grant_is_released(&stage);
}

#[test]
fn a_first_copy_that_runs_after_the_loss_of_the_second_is_released_again() {
    let stage = Stage::new();
    ended_before_the_first_copy_runs(&stage, None, |guard| {
        assert!(stage.other.lock("late").force_unlock().expect("the lock is held"));
        assert!(guard.extend(NEVER * 2).is_err_and(|error| error.is_lost()));
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    });
    the_late_grant_is_released(&stage);
}

/// Only the clean-up of the late acquire is repeated. The fair waiter leaves its place once.
#[test]
fn a_call_without_a_late_command_leaves_once() {
    let stage = Stage::new();
    let holder = stage.other.fair_lock("fair").lock().expect("the lock is free");
    stage.time_out("late", None);
    let left = stage.server.calls("lrem");
    let token = CancelToken::new();
    let waiter = stage.client.fair_lock("fair").with_cancel(&token);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock().map(drop));
        eventually("the waiter has its place", || stage.server.calls("rpush") > 0);
        token.cancel();
        let waited = in_time("the waiter", waits);
        assert!(waited.is_err_and(|error| error.is_cancelled()));
    });
    eventually("the waiter leaves its place", || stage.server.calls("lrem") > left);
    // The script by which a waiter leaves looks for its place first.
    let (looks, releases) = (stage.server.calls("lpos"), stage.releases());
    eventually("the other clean-up is repeated", || stage.releases() >= releases + 3);
    assert_eq!(stage.server.calls("lpos"), looks, "the waiter leaves its place again");
    holder.unlock().expect("the lock is held");
}

#[test]
fn a_release_is_repeated_for_the_lease_of_its_own_lock() {
    let stage = Stage::brief();
    ended_before_the_first_copy_runs(&stage, Some(NEVER), release);
    let releases = stage.releases();
    let often = || stage.releases() > releases + 3 * (BRIEF.div_duration_f64(OFTEN) as u64);
    eventually("repetitions for longer than the watchdog's lease", often);
    the_late_grant_is_released(&stage);
}

fn release(guard: Guard) {
    guard.unlock().expect("the lock is held");
}

/// Measures how long a late acquire keeps a lock from other callers, for the table in
/// docs/bench/notes.md.
#[test]
#[ignore = "a measurement of a minute: script/test --test faults late_acquires_hold -- --ignored --nocapture"]
fn late_acquires_hold_a_lock_no_longer_than_they_were_late() {
    for lateness in [0, 50, 200, 1_000, 5_000].map(Duration::from_millis) {
        let mut held: Vec<Duration> = (0..5).map(|_| held_by_a_late_acquire(lateness)).collect();
        held.sort_unstable();
        println!("late by {lateness:?} after the time-out: held for {held:.1?}");
    }
}

fn held_by_a_late_acquire(lateness: Duration) -> Duration {
    let stage = Stage::with(|settings| settings);
    stage.time_out("late", None);
    eventually("the clean-up", || stage.releases() > 0);
    thread::sleep(lateness);
    stage.proxy.release_held();
    eventually("the late acquire runs", || stage.grants() > 0);
    let granted = Instant::now();
    let guard = stage.other.lock("late").lock().expect("the late grant is released");
    let held = granted.elapsed();
    drop(guard);
    held
}

/// Releases a lock. The reply is lost, and another client takes the lock before the release is sent
/// again.
fn resent_after_another_took_it(lease: Option<Duration>) -> Result<()> {
    let server = Server::start();
    let (digests, other) = (Digests::of(&server), other(&server));
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let lock = lock_with(&client, "resent", lease);
    proxy.on_request(digests.release.as_bytes(), Direction::Replies, Flow::CutAfter(0));
    proxy.on_request(b"HELLO", Direction::Requests, Flow::Hold);
    thread::scope(|scope| {
        let released = scope.spawn(|| lock.lock().expect("all is well").unlock());
        something_is_held(&proxy);
        if let Some(lease) = lease {
            let other_lease = other.lock("resent").with_lease(lease);
            other_lease.lock().expect("it is free").detach();
            eventually("a whole lease to pass", || !exists(&server, "resent"));
        }
        let guard = other.lock("resent").lock().expect("it is free");
        proxy.release_held();
        let outcome = released.join().expect("no panic");
        assert_eq!(server.calls("hdel"), 2, "it was sent again");
        assert_held(&server, "resent", &guard, NEVER);
        guard.unlock().expect("nobody took it away");
        outcome
    })
}

#[test]
fn a_release_that_was_sent_again_in_time_has_succeeded_whoever_came_between() {
    resent_after_another_took_it(None).expect("the first copy released it");
}

#[test]
fn a_release_that_was_sent_again_after_its_lease_is_a_loss() {
    let outcome = resent_after_another_took_it(Some(Duration::from_secs(1)));
    assert!(outcome.is_err_and(|error| error.is_lost()));
}

/// A release is held back until the lease is over and another has the lock.
fn released_late(release: impl FnOnce(Guard) -> Result<()> + Send) -> (Result<()>, Released) {
    let server = Server::start();
    let (digests, other) = (Digests::of(&server), other(&server));
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()));
    let lock = build(settings).lock("late").with_lease(Duration::from_secs(1));
    proxy.on_request(digests.release.as_bytes(), Direction::Requests, Flow::Hold);
    thread::scope(|scope| {
        let released = scope.spawn(|| release(lock.lock().expect("all is well")));
        something_is_held(&proxy);
        let guard = other.lock("late").lock().expect("it is free when the lease is over");
        proxy.release_held();
        let outcome = (released.join().expect("no panic"), heard.released());
        assert_eq!(server.calls("hdel"), 1, "it did run");
        assert_held(&server, "late", &guard, NEVER);
        guard.unlock().expect("nobody took it away");
        outcome
    })
}

#[test]
fn an_unlock_that_runs_after_the_lock_was_lost_says_so_and_touches_nothing() {
    let (outcome, told) = released_late(Guard::unlock);
    assert!(outcome.is_err_and(|error| error.is_lost()));
    assert!(told.error.is_some_and(|error| error.is_lost()));
}

#[test]
fn a_dropped_guards_release_that_runs_after_the_lock_was_lost_touches_nothing() {
    let (_, told) = released_late(|guard| {
        drop(guard);
        Ok(())
    });
    assert!(told.error.is_some_and(|error| error.is_lost()));
}

#[test]
fn a_release_that_runs_a_second_time_touches_nothing() {
    let stage = Stage::new();
    let guard = stage.client.lock("late").lock().expect("all is well");
    stage.hold_next(&stage.digests.release);
    drop(guard);
    assert!(stage.heard.released().error.is_none(), "it was sent again");
    let others = stage.other.lock("late").lock().expect("it is free");
    stage.deliver_late();
    assert_eq!(stage.releases(), 2, "it did run");
    assert_held(&stage.server, "late", &others, NEVER);
    others.unlock().expect("nobody took it away");
    stage.end();
}

#[test]
fn a_renewal_that_runs_after_the_release_touches_nothing() {
    let stage = Stage::new();
    let guard = stage.client.lock("late").lock().expect("all is well");
    stage.hold_next(&stage.digests.renew);
    let error = guard.extend(NEVER * 10).expect_err("it is held back");
    assert!(error.is_timeout() && guard.is_held(), "{error}");
    guard.unlock().expect("it is held");
    let others = stage.other.lock("late").lock().expect("it is free");
    let looks = stage.server.calls("hexists");
    stage.deliver_late();
    assert!(stage.server.calls("hexists") > looks, "it did run");
    assert_held(&stage.server, "late", &others, NEVER);
    others.unlock().expect("nobody took it away");
    stage.end();
}
