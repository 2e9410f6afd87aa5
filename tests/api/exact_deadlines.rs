//! Calls return at their deadline, their cancellation or the close of the client, whatever
//! the server does: it stands still, its replies trickle in, or it reads nothing any more.
//!
//! All other time-outs are far away here. So a call that returns at all returns because of
//! its own limit. How exactly it keeps it is measured by `overruns`; LEASEHOLD_CALLS raises
//! the number of calls:
//! `cargo test --release --test exact_deadlines -- --ignored --nocapture`.

use crate::harness::faults::*;
use crate::harness::wait::BOUND;
use crate::harness::{
    Direction, Flow, Proxy, Server, Trickle, eventually, exists, in_time, join, sleeping,
};
use leasehold::{Builder, CancelToken, Client, Error, MultiLock, OwnedGuard, RedLock};
use std::thread;
use std::time::{Duration, Instant};

/// A deadline that is soon over.
const SOON: Duration = Duration::from_millis(100);

/// A name so long that a few requests fill the buffers of a socket.
fn long_name() -> String {
    "n".repeat(4 << 20)
}

/// The settings of a client whose own time-outs are longer than a test waits for anything.
fn endless(url: impl Into<String>) -> Builder {
    patient(url).response_timeout(NEVER).connect_timeout(NEVER).pool_timeout(NEVER)
}

/// Calls on a thread of its own, and returns what the call gives if it ends before its
/// time-outs do.
#[track_caller]
fn soon<T>(call: impl FnOnce() -> Result<T, Error> + Send) -> Result<(), Error> {
    thread::scope(|scope| in_time("the call returns", scope.spawn(|| call().map(drop))))
}

/// A server that answers nothing any more, and a client that waits for it.
struct Silent {
    client: Client,
    server: Server,
}

impl Silent {
    fn new() -> Silent {
        Silent::with(|client| drop(client.lock("warm").lock().expect("all is well")))
    }

    /// The client has done something before the server stops.
    fn with(act: impl FnOnce(&Client)) -> Silent {
        let server = Server::start();
        let client = build(endless(server.url()).pool_size(2));
        act(&client);
        server.stop();
        Silent { client, server }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.server.resume();
    }
}

#[test]
fn a_deadline_ends_a_call_although_the_server_stands_still() {
    let silent = Silent::new();
    for _ in 0..3 {
        let error =
            soon(|| silent.client.lock("a").try_lock_for(SOON)).expect_err("nobody answers");
        assert!(error.is_timeout(), "{error}");
    }
    silent.server.resume();
    eventually("what it may have taken is released", || !exists(&silent.server, "a"));
    drop(silent.client.lock("a").lock().expect("all is well again"));
}

#[test]
fn a_deadline_ends_a_call_that_needs_a_new_connection() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(4));
    server.stop();
    thread::scope(|scope| {
        let call = |name: &'static str| {
            let lock = client.lock(name);
            scope.spawn(move || lock.try_lock_for(SOON).map(drop))
        };
        for call in ["a", "b", "c", "d", "e"].map(call) {
            let error = in_time("the call returns", call).expect_err("nobody answers");
            assert!(error.is_timeout(), "{error}");
        }
    });
    server.resume();
    drop(client.lock("a").lock().expect("all is well again"));
}

#[test]
fn a_deadline_ends_a_call_although_its_reply_trickles_in() {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(endless(trickle.url()));
    drop(client.lock("a").lock().expect("all is well"));
    trickle.trickle();
    for _ in 0..3 {
        let call = || client.lock("a").try_lock_for(SOON);
        let error = soon(call).expect_err("its reply has no end");
        assert!(error.is_timeout(), "{error}");
    }
    // The client waits for its clean-ups.
    drop(trickle);
}

#[test]
fn a_reply_that_trickles_in_is_late_after_the_response_timeout() {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(hasty(trickle.url()));
    drop(client.lock("a").lock().expect("all is well"));
    trickle.trickle();
    let error = client.lock("a").is_locked().expect_err("its reply has no end");
    assert!(error.is_timeout(), "{error}");
}

#[test]
fn a_deadline_ends_a_call_whose_request_does_not_fit_into_the_socket() {
    let silent = Silent::new();
    let lock = silent.client.lock(long_name());
    for _ in 0..3 {
        let error = soon(|| lock.try_lock_for(SOON)).expect_err("nobody answers");
        assert!(error.is_timeout(), "{error}");
    }
}

#[test]
fn a_dropped_guard_waits_for_no_socket() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(1));
    let name = long_name();
    let guard = client.lock(name.clone()).lock().expect("all is well");
    server.stop();
    drop(guard);
    server.resume();
    eventually("the release comes through", || !exists(&server, &name));
}

#[test]
fn a_cancellation_ends_a_call_although_the_server_stands_still() {
    let silent = Silent::new();
    let token = CancelToken::new();
    let lock = silent.client.lock("a").with_cancel(&token);
    thread::scope(|scope| {
        let leads = scope.spawn(|| lock.lock().map(drop));
        let tries = scope.spawn(|| lock.try_lock_for(NEVER).map(drop));
        let asks = scope.spawn(|| silent.client.lock("b").with_cancel(&token).try_lock().map(drop));
        token.cancel();
        for call in [leads, tries, asks] {
            let error = in_time("the call returns", call).expect_err("it was cancelled");
            assert!(error.is_cancelled(), "{error}");
        }
    });
}

#[test]
fn closing_the_client_ends_calls_although_the_server_stands_still() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(2));
    let guard = client.lock("held").lock_owned().expect("all is well");
    server.stop();
    let (a, b) = (client.lock("a"), client.lock("b"));
    let calls = [
        sleeping("locks", move || a.lock().map(drop)),
        sleeping("asks", move || b.is_locked().map(drop)),
        sleeping("unlocks", move || guard.unlock()),
    ];
    let closing = thread::spawn(move || client.close());
    for call in calls {
        let error = join(call).expect_err("nobody answers");
        assert!(error.is_closed(), "{error}");
    }
    server.resume();
    eventually("the release comes through", || !exists(&server, "held"));
    join(closing);
}

#[test]
fn the_response_timeout_bounds_calls_without_a_deadline() {
    let server = Server::start();
    let client = build(hasty(server.url()).connect_timeout(BOUND));
    let guard = client.lock("held").lock().expect("all is well");
    server.stop();
    let late = |what: &str, outcome: Result<(), Error>| {
        let error = outcome.expect_err(what);
        assert!(error.is_timeout(), "{what}: {error}");
    };
    let lock = client.lock("a");
    late("lock", lock.lock().map(drop));
    late("try_lock", lock.try_lock().map(drop));
    late("is_locked", lock.is_locked().map(drop));
    late("remaining", lock.remaining().map(drop));
    late("force_unlock", lock.force_unlock().map(drop));
    late("extend", guard.extend(NEVER * 2));
    late("unlock", guard.unlock());
    server.resume();
    eventually("what was owed comes through", || !exists(&server, "held"));
}

#[test]
fn an_answer_that_comes_after_the_caller_has_left_takes_no_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(endless(proxy.url()));
    let digests = Digests::of(&server);
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let call = || client.lock("a").try_lock_for(SOON);
    let error = soon(call).expect_err("its reply is kept back");
    assert!(error.is_timeout(), "{error}");
    assert!(server.calls("pexpire") > 0, "the server has granted it");
    eventually("it is given back", || !exists(&server, "a"));
    proxy.release_held();
    let guard = client.lock("a").lock().expect("all is well again");
    assert_held(&server, "a", &guard, NEVER);
}

#[test]
fn a_deadline_ends_a_multi_lock_and_a_red_lock() {
    let silent = [Silent::new(), Silent::new(), Silent::new()];
    let lock = |name: &str| silent[0].client.lock(name);
    let multi = MultiLock::new([lock("a"), lock("b")]);
    let error = soon(|| multi.try_lock_for(SOON)).expect_err("nobody answers");
    assert!(error.is_timeout(), "{error}");
    let red = RedLock::new(silent.iter().map(|one| one.client.clone()), "red");
    let error = soon(|| red.try_lock_for(SOON)).expect_err("nobody answers");
    assert!(error.is_timeout(), "{error}");
    let token = CancelToken::new();
    thread::scope(|scope| {
        let red = red.clone().with_cancel(&token);
        let call = scope.spawn(move || red.lock().map(drop));
        token.cancel();
        let error = in_time("the call returns", call).expect_err("it was cancelled");
        assert!(error.is_cancelled(), "{error}");
    });
}

#[test]
fn a_cancellation_ends_a_leader_although_replies_of_others_keep_coming() {
    const CALLERS: usize = 120;
    /// Fewer than a reply has.
    const BYTES: usize = 4;
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(endless(trickle.url()));
    drop(client.fair_lock("warm").lock().expect("all is well"));
    trickle.slow_down();
    let token = CancelToken::new();
    thread::scope(|scope| {
        let call = |number| {
            let lock = client.fair_lock(format!("a{number}")).with_cancel(&token);
            scope.spawn(move || lock.lock().map(drop))
        };
        let calls: Vec<_> = (0..CALLERS).map(call).collect();
        // The first leader reads its own reply alone, the next those of all others.
        eventually("replies come", || trickle.slow_replies() > CALLERS);
        token.cancel();
        for call in calls {
            let outcome = in_time("the call returns", call);
            assert!(outcome.is_ok() || outcome.is_err_and(|error| error.is_cancelled()));
        }
        assert!(trickle.slow_replies() < CALLERS * BYTES, "the leader has read all replies");
    });
    drop(trickle);
}

#[test]
fn a_deadline_ends_a_write_that_the_server_takes_slowly() {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(endless(trickle.url()));
    drop(client.lock("warm").lock().expect("all is well"));
    trickle.slow_down();
    let lock = client.lock(long_name());
    let error = soon(|| lock.try_lock_for(SOON)).expect_err("it is not written in time");
    assert!(error.is_timeout(), "{error}");
    drop(trickle);
}

#[test]
fn closing_the_client_ends_the_unlock_of_several_locks() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(2));
    let locks = MultiLock::new([client.lock("a"), client.lock("b"), client.lock("c")]);
    let guard = locks.lock_owned().expect("all is well");
    server.stop();
    let call = sleeping("unlocks", move || guard.unlock());
    let closing = thread::spawn(move || client.close());
    let error = join(call).expect_err("nobody answers");
    assert!(error.is_closed(), "{error}");
    server.resume();
    eventually("the releases come through", || {
        ["a", "b", "c"].iter().all(|it| !exists(&server, it))
    });
    join(closing);
}

#[test]
fn closing_the_client_waits_for_what_the_ended_calls_undo() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(endless(proxy.url()));
    let digests = Digests::of(&server);
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let lock = client.lock("a");
    let call = sleeping("locks", move || lock.lock().map(drop));
    eventually("the server grants it", || exists(&server, "a"));
    // The clean-up gets its answer only behind the one that is kept back.
    let releasing = thread::spawn(move || {
        eventually("it is given back", || !exists(&server, "a"));
        proxy.release_held();
        (server, proxy)
    });
    client.close();
    let (server, _proxy) = join(releasing);
    assert!(!exists(&server, "a"));
    assert!(join(call).expect_err("the client is closed").is_closed());
}

#[test]
fn a_reply_that_nobody_waits_for_holds_up_no_request() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(endless(proxy.url()).pool_size(1));
    let digests = Digests::of(&server);
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    for name in ["a", "b", "c"] {
        let token = CancelToken::new();
        let lock = client.lock(name).with_cancel(&token);
        let call = sleeping("locks", move || lock.lock().map(drop));
        eventually("the server grants it", || exists(&server, name));
        token.cancel();
        assert!(join(call).expect_err("it was cancelled").is_cancelled());
        eventually("it is given back", || !exists(&server, name));
    }
    proxy.release_held();
}

#[test]
fn a_nested_red_lock_keeps_the_deadline_and_the_token() {
    let silent = [Silent::new(), Silent::new(), Silent::new()];
    silent.iter().for_each(|one| one.server.resume());
    let red = RedLock::new(silent.iter().map(|one| one.client.clone()), "red");
    let guard = red.clone().with_lease(NEVER).lock().expect("all is well");
    silent.iter().for_each(|one| one.server.stop());
    let longer = red.with_lease(NEVER * 2);
    let start = Instant::now();
    let error = longer.try_lock_for(SOON).expect_err("nobody answers");
    assert!(error.is_timeout() && start.elapsed() < BOUND, "{error}");
    let token = CancelToken::new();
    token.cancel();
    let error = longer.with_cancel(&token).lock().expect_err("it was cancelled");
    assert!(error.is_cancelled(), "{error}");
    silent.iter().for_each(|one| one.server.resume());
    drop(guard);
}

/// The deadline of every call that is measured: its own, or the response time-out.
const DEADLINE: Duration = Duration::from_millis(20);

/// A server that answers no more, and all that the measured calls need.
struct Measured {
    what: &'static str,
    server: Server,
    trickle: Trickle,
    /// Its response time-out is the deadline.
    client: Client,
    /// Its time-outs are far away.
    endless: Client,
    name: String,
    guards: Vec<OwnedGuard>,
}

impl Measured {
    /// Takes as many locks as calls will release; then the server answers no more.
    fn new(what: &'static str, calls: usize) -> Measured {
        let server = Server::start();
        let trickle = Trickle::start(server.addr());
        let url = if what == "trickling server" { trickle.url() } else { server.url() };
        let endless = build(endless(url.clone()).pool_size(2));
        drop(endless.lock("warm").lock().expect("all is well"));
        let settings = patient(url).response_timeout(DEADLINE).connect_timeout(DEADLINE);
        let client = build(settings.pool_size(2).watchdog_timeout(NEVER * 30));
        let name = if what == "full socket" { long_name() } else { "a".to_owned() };
        let guard = |number| client.lock(format!("held:{number}")).lock_owned();
        let guards = (0..=calls).map(|number| guard(number).expect("all is well")).collect();
        match what {
            "trickling server" => trickle.trickle(),
            _ => server.stop(),
        }
        Measured { what, server, trickle, client, endless, name, guards }
    }

    /// Prints the longest of so many calls, beyond the deadline.
    fn print(&self, verb: &str, calls: usize, mut call: impl FnMut() -> Result<(), Error>) {
        let overrun = |_| {
            let start = Instant::now();
            call().expect_err("nobody answers");
            start.elapsed().saturating_sub(DEADLINE)
        };
        let longest = (0..calls).map(overrun).max().unwrap_or_default();
        println!("{}, {verb}: {longest:?} at most in {calls} calls", self.what);
    }

    fn cancelled_lock(&self) -> Result<(), Error> {
        let token = CancelToken::new();
        thread::scope(|scope| {
            let lock = self.endless.lock(&self.name).with_cancel(&token);
            let call = scope.spawn(move || lock.lock().map(drop));
            thread::sleep(DEADLINE);
            token.cancel();
            call.join().expect("no panic")
        })
    }

    fn print_all(mut self, calls: usize) {
        let guard = self.guards.pop().expect("one more than calls");
        let (timed, lock) = (self.endless.lock(&self.name), self.client.lock(&self.name));
        self.print("try_lock_for", calls, || timed.try_lock_for(DEADLINE).map(drop));
        self.print("try_lock", calls, || lock.try_lock().map(drop));
        self.print("lock, cancelled", calls, || self.cancelled_lock());
        self.print("is_locked", calls, || lock.is_locked().map(drop));
        self.print("remaining", calls, || lock.remaining().map(drop));
        self.print("force_unlock", calls, || lock.force_unlock().map(drop));
        self.print("extend", calls, || guard.extend(NEVER * 60));
        let multi = MultiLock::new([timed, self.endless.lock("b")]);
        self.print("MultiLock::try_lock_for", calls, || multi.try_lock_for(DEADLINE).map(drop));
        let red = RedLock::new([self.endless.clone()], &self.name);
        self.print("RedLock::try_lock_for", calls, || red.try_lock_for(DEADLINE).map(drop));
        let mut guards = std::mem::take(&mut self.guards);
        self.print("unlock", calls, || guards.pop().expect("one for each call").unlock());
        self.server.resume();
        drop(self.trickle);
    }
}

#[test]
#[ignore = "prints figures, which no test judges; takes minutes"]
fn overruns() {
    let calls =
        std::env::var("LEASEHOLD_CALLS").map_or(50, |calls| calls.parse().expect("a number"));
    thread::scope(|scope| {
        for what in ["stopped server", "trickling server", "full socket"] {
            scope.spawn(move || Measured::new(what, calls).print_all(calls));
        }
    });
}
