//! Commands that run late: after their sender has given them up, has gone on over
//! another connection, and perhaps has taken or released the lock there.
//!
//! Two servers are tried: one that lets a client kill its old connections, so that
//! nothing can run late; and one that does not, where what ran late is released
//! again within a poll interval.

use crate::harness::faults::*;
use crate::harness::proxy::Stats;
use crate::harness::{Direction, Flow, Proxy, Server, eventually};
use leasehold::{Builder, Client, Guard, Released, Result};
use std::thread;
use std::time::Duration;

/// How soon a client that may not kill releases again.
const OFTEN: Duration = Duration::from_millis(100);

/// The user of docs/permissions.md, without the two optional permissions of its line.
const MEEK: &str = "user meek on >secret resetchannels ~* &redisson_lock__channel:* \
    &leasehold:wake:* -@all +evalsha +script|load +hset +hdel +hexists +hlen +del \
    +pttl +pexpire +publish +subscribe +unsubscribe +select";

/// A server, a way to it that can hold things back, and a client there that gives
/// up after a brief wait; and a client beside it.
struct Stage {
    server: Server,
    digests: Digests,
    proxy: Proxy,
    client: Client,
    heard: EventLog,
    other: Client,
}

impl Stage {
    /// The client may kill its old connections.
    fn strict() -> Stage {
        Stage::of(Server::start(), Proxy::url, |settings| settings)
    }

    /// It may not, nor see whether they are there.
    fn meek() -> Stage {
        Stage::meek_and("")
    }

    /// The same, with one more permission.
    fn meek_and(permission: &str) -> Stage {
        Stage::of(Stage::meek_server(permission), Stage::meek_url, |settings| settings)
    }

    fn meek_server(permission: &str) -> Server {
        Server::with(|config| config.line(format!("{MEEK} {permission}")))
    }

    fn meek_url(proxy: &Proxy) -> String {
        format!("redis://meek:secret@{}/", proxy.addr())
    }

    /// The same, with a client of whose locks the watchdog has short leases.
    fn meek_and_brief() -> Stage {
        let settings = |builder: Builder| builder.watchdog_timeout(BRIEF);
        Stage::of(Stage::meek_server(""), Stage::meek_url, settings)
    }

    fn of(
        server: Server,
        url: impl Fn(&Proxy) -> String,
        more: impl Fn(Builder) -> Builder,
    ) -> Stage {
        let proxy = Proxy::start(server.addr());
        let settings = more(hasty(url(&proxy)).poll_interval(OFTEN));
        let (settings, heard) = EventLog::from(settings);
        let (digests, other) = (Digests::of(&server), other(&server));
        Stage { client: build(settings), server, digests, proxy, heard, other }
    }

    fn hold_next(&self, digest: &str) {
        self.proxy.on_request(digest.as_bytes(), Direction::Requests, Flow::Hold);
    }

    /// Delivers what was held; returns when its connection has ended, so that the
    /// server has run all of it that it will ever run.
    fn deliver_late(&self) {
        let held = self.proxy.stats();
        assert!(held.requests.held > 0, "nothing is late");
        self.proxy.release_held();
        self.proxy.wait_until("the end of the late connection", |s| s.open < held.open);
    }

    /// The server has closed the connection on which something is held. (It did so before
    /// the clean-up ran; the proxy may hear of that a little later.)
    fn has_dropped_what_was_held(&self) {
        let dropped = |s: &Stats| s.requests.held == 0 && s.requests.dropped > 0;
        self.proxy.wait_until("the end of the connection that is held", dropped);
    }

    fn releases(&self) -> u64 {
        self.server.calls("hdel")
    }

    fn takings(&self) -> u64 {
        self.server.calls("hset")
    }

    fn end(self) {
        drop((self.client, self.other));
        nothing_is_left(&self.server);
    }
}

#[test]
fn an_acquire_cannot_run_after_its_clean_up() {
    let stage = Stage::strict();
    stage.hold_next(&stage.digests.acquire);
    let error = stage.client.lock("late").try_lock().expect_err("it is held back");
    assert!(error.is_timeout(), "{error}");
    eventually("the clean-up", || stage.releases() == 1);
    stage.has_dropped_what_was_held();
    assert_eq!(stage.proxy.stats().closed_by_server, 1);
    assert!(!exists(&stage.server, "late"));
    assert_others_can_take(&stage.other, "late");
    stage.end();
}

#[test]
fn none_of_many_acquires_can_run_after_their_clean_up() {
    const CALLERS: usize = 8;
    // A connection each: what waits in line for one is taken back, and needs no clean-up.
    let stage = Stage::of(Server::start(), Proxy::url, |it| it.pool_size(CALLERS));
    let name = |caller| format!("late {caller}");
    (0..CALLERS).for_each(|caller| stage.hold_next(&name(caller)));
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let stage = &stage;
            scope.spawn(move || {
                let outcome = stage.client.lock(name(caller)).try_lock();
                assert!(outcome.is_err_and(|error| error.is_timeout()));
            });
        }
    });
    eventually("the clean-ups", || stage.releases() == CALLERS as u64);
    stage.has_dropped_what_was_held();
    assert_eq!(stage.takings(), 0);
    (0..CALLERS).for_each(|caller| assert_others_can_take(&stage.other, &name(caller)));
    stage.end();
}

#[test]
fn an_acquire_that_runs_after_its_clean_up_is_released_again() {
    for permission in ["", "+client|list", "+client|kill"] {
        let stage = Stage::meek_and(permission);
        stage.hold_next(&stage.digests.acquire);
        let error = stage.client.lock("late").try_lock().expect_err("it is held back");
        assert!(error.is_timeout(), "{error}");
        eventually("the clean-up, more than once", || stage.releases() >= 2);
        assert_eq!(stage.takings(), 0, "{permission}");
        runs_late_and_is_released_again(&stage);
    }
}

#[test]
fn a_question_that_runs_after_its_caller_gave_up_waiting_is_released_again() {
    let stage = Stage::meek();
    let holder = stage.other.lock("late").lock().expect("all is well");
    thread::scope(|scope| {
        let lock = stage.client.lock("late");
        let waiter = scope.spawn(move || lock.try_lock_for(BRIEF * 5).map(|got| got.is_some()));
        let subscribed = || stage.server.numsub(&channel_of("late")) == 1;
        eventually("the waiter has been refused", subscribed);
        stage.hold_next(&stage.digests.acquire);
        stage.server.ask::<()>(&["PUBLISH", &channel_of("late"), "0"]);
        something_is_held(&stage.proxy);
        // It is refused once more, over another connection.
        let got = waiter.join().expect("no panic").expect("all else is well");
        assert!(!got, "two hold the lock");
    });
    holder.unlock().expect("all is well");
    runs_late_and_is_released_again(&stage);
}

#[test]
fn what_may_have_run_late_is_released_again_for_one_lease_and_no_longer() {
    let stage = Stage::meek_and_brief();
    let lease = OFTEN * 20;
    stage.hold_next(&stage.digests.acquire);
    let outcome = stage.client.lock("late").with_lease(lease).try_lock();
    assert!(outcome.is_err_and(|error| error.is_timeout()));
    eventually("the clean-up, again and again", || stage.releases() >= 4);
    // Nobody waits for them: they end by themselves, and the connections with them.
    stage.proxy.pass();
    stage.end();
}

/// A caller that was refused asks again; that question is held back until its sender
/// has given it up, asked over another connection, got the lock and released it.
fn released_before_the_first_copy_runs(stage: &Stage, lease: Option<Duration>) {
    let holder = stage.other.lock("late").lock().expect("all is well");
    let lock = stage.client.lock("late");
    let lock = lease.map_or(lock.clone(), |lease| lock.with_lease(lease));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = lock.lock().expect("it was refused before");
            assert_held(&stage.server, "late", &guard, NEVER);
            guard.unlock().expect("it is held");
        });
        let subscribed = || stage.server.numsub(&channel_of("late")) == 1;
        eventually("the waiter has been refused", subscribed);
        stage.hold_next(&stage.digests.acquire);
        stage.server.ask::<()>(&["PUBLISH", &channel_of("late"), "0"]);
        something_is_held(&stage.proxy);
        holder.unlock().expect("all is well");
        waiter.join().expect("it gets the lock");
    });
}

#[test]
fn a_first_copy_cannot_run_after_the_second_was_granted_and_released() {
    let stage = Stage::strict();
    released_before_the_first_copy_runs(&stage, None);
    stage.has_dropped_what_was_held();
    let stats = stage.proxy.stats();
    assert_eq!((stats.triggered, stats.closed_by_server), (1, 1), "{stats:#?}");
    assert_others_can_take(&stage.other, "late");
    stage.end();
}

#[test]
fn a_first_copy_that_runs_after_the_second_was_released_is_released_again() {
    let stage = Stage::meek();
    released_before_the_first_copy_runs(&stage, None);
    runs_late_and_is_released_again(&stage);
}

#[test]
fn a_lease_longer_than_the_watchdogs_is_guarded_against_a_late_copy_as_long() {
    let stage = Stage::meek_and_brief();
    released_before_the_first_copy_runs(&stage, Some(NEVER));
    let releases = stage.releases();
    let often = || stage.releases() > releases + 3 * (BRIEF.div_duration_f64(OFTEN) as u64);
    eventually("the release, for longer than the watchdog's lease", often);
    runs_late_and_is_released_again(&stage);
}

fn runs_late_and_is_released_again(stage: &Stage) {
    let takings = stage.takings();
    stage.deliver_late();
    assert_eq!(stage.takings(), takings + 1, "it did run");
    eventually("what it took is freed", || !exists(&stage.server, "late"));
    assert_others_can_take(&stage.other, "late");
}

/// A lock is released, the answer is lost, another takes the lock, and then the
/// release is sent again.
fn resent_after_another_took_it(lease: Option<Duration>) -> Result<()> {
    let server = Server::start();
    let (digests, other) = (Digests::of(&server), other(&server));
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let lock = client.lock("resent");
    let lock = lease.map_or(lock.clone(), |lease| lock.with_lease(lease));
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
    let stage = Stage::strict();
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
    let stage = Stage::strict();
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
