//! Calls return at their deadline, their cancellation or the close of the client.
//!
//! The server is stopped, sends its replies byte by byte, or reads no requests. All other
//! time-outs are longer than a test, so a call returns only because of its own limit. `overruns`
//! prints by how much calls exceed their deadline. LEASEHOLD_CALLS sets the number of calls:
//! `script/test --release --test api overruns -- --ignored --nocapture`.

use crate::harness::faults::*;
use crate::harness::wait::BOUND;
use crate::harness::{
    Direction, Flow, Proxy, Server, Trickle, eventually, exists, in_time, join, sleeping,
};
use leasehold::{Builder, CancelToken, Client, Error, MultiLock, RedLock};
use std::thread;
use std::time::{Duration, Instant};

/// A short deadline.
const SOON: Duration = Duration::from_millis(100);

/// Returns a name so long that a few requests fill the buffers of a socket.
fn long_name() -> String {
    "n".repeat(4 << 20)
}

/// Returns the settings of a client with time-outs longer than any wait of a test.
fn endless(url: impl Into<String>) -> Builder {
    patient(url).response_timeout(NEVER).connect_timeout(NEVER).pool_timeout(NEVER)
}

/// Runs `call` on another thread. Panics if `call` does not return in time.
#[track_caller]
fn soon<T>(call: impl FnOnce() -> Result<T, Error> + Send) -> Result<(), Error> {
    thread::scope(|scope| in_time("the call returns", scope.spawn(|| call().map(drop))))
}

/// A stopped server and its client.
struct Silent {
    client: Client,
    server: Server,
}

impl Silent {
    fn new() -> Silent {
        Silent::with(|client| drop(client.lock("warm").lock().expect("the server answers")))
    }

    /// Runs `act` with the client before the server is stopped.
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
fn a_deadline_ends_a_call_to_a_stopped_server() {
    let silent = Silent::new();
    for _ in 0..3 {
        let error =
            soon(|| silent.client.lock("a").try_lock_for(SOON)).expect_err("the server is stopped");
        assert!(error.is_timeout(), "{error}");
    }
    silent.server.resume();
    eventually("the possible hold is released", || !exists(&silent.server, "a"));
    drop(silent.client.lock("a").lock().expect("the server answers again"));
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
            let error = in_time("the call returns", call).expect_err("the server is stopped");
            assert!(error.is_timeout(), "{error}");
        }
    });
    server.resume();
    drop(client.lock("a").lock().expect("the server answers again"));
}

#[test]
fn a_deadline_ends_a_call_whose_reply_arrives_byte_by_byte() {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(endless(trickle.url()));
    drop(client.lock("a").lock().expect("the server answers"));
    trickle.trickle();
    for _ in 0..3 {
        let call = || client.lock("a").try_lock_for(SOON);
        let error = soon(call).expect_err("the reply has no end");
        assert!(error.is_timeout(), "{error}");
    }
    // The drop of the client waits for releases, which need a server that answers.
    drop(trickle);
}

#[test]
fn a_reply_that_arrives_byte_by_byte_is_a_timeout_after_the_response_timeout() {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(hasty(trickle.url()));
    drop(client.lock("a").lock().expect("the server answers"));
    trickle.trickle();
    let error = client.lock("a").is_locked().expect_err("the reply has no end");
    assert!(error.is_timeout(), "{error}");
}

#[test]
fn a_deadline_ends_a_call_whose_request_does_not_fit_into_the_socket() {
    let silent = Silent::new();
    let lock = silent.client.lock(long_name());
    for _ in 0..3 {
        let error = soon(|| lock.try_lock_for(SOON)).expect_err("the server is stopped");
        assert!(error.is_timeout(), "{error}");
    }
}

#[test]
fn a_drop_of_a_guard_does_not_wait_for_the_socket() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(1));
    let name = long_name();
    let guard = client.lock(name.clone()).lock().expect("the server answers");
    server.stop();
    drop(guard);
    server.resume();
    eventually("the release arrives", || !exists(&server, &name));
}

#[test]
fn a_cancellation_ends_a_call_to_a_stopped_server() {
    let silent = Silent::new();
    let token = CancelToken::new();
    let lock = silent.client.lock("a").with_cancel(&token);
    thread::scope(|scope| {
        let leads = scope.spawn(|| lock.lock().map(drop));
        let tries = scope.spawn(|| lock.try_lock_for(NEVER).map(drop));
        let asks = scope.spawn(|| silent.client.lock("b").with_cancel(&token).try_lock().map(drop));
        token.cancel();
        for call in [leads, tries, asks] {
            let error = in_time("the call returns", call).expect_err("the call is cancelled");
            assert!(error.is_cancelled(), "{error}");
        }
    });
}

#[test]
fn closing_the_client_ends_calls_to_a_stopped_server() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(2));
    let guard = client.lock("held").lock_owned().expect("the server answers");
    server.stop();
    let (a, b) = (client.lock("a"), client.lock("b"));
    let calls = [
        sleeping("locks", move || a.lock().map(drop)),
        sleeping("asks", move || b.is_locked().map(drop)),
        sleeping("unlocks", move || guard.unlock()),
    ];
    let closing = thread::spawn(move || client.close());
    for call in calls {
        let error = join(call).expect_err("the server is stopped");
        assert!(error.is_closed(), "{error}");
    }
    server.resume();
    eventually("the release arrives", || !exists(&server, "held"));
    join(closing);
}

#[test]
fn the_response_timeout_bounds_calls_without_a_deadline() {
    let server = Server::start();
    let client = build(hasty(server.url()).connect_timeout(BOUND));
    let guard = client.lock("held").lock().expect("the server answers");
    server.stop();
    let times_out = |what: &str, outcome: Result<(), Error>| {
        let error = outcome.expect_err(what);
        assert!(error.is_timeout(), "{what}: {error}");
    };
    let lock = client.lock("a");
    times_out("lock", lock.lock().map(drop));
    times_out("try_lock", lock.try_lock().map(drop));
    times_out("is_locked", lock.is_locked().map(drop));
    times_out("remaining", lock.remaining().map(drop));
    times_out("force_unlock", lock.force_unlock().map(drop));
    times_out("extend", guard.extend(NEVER * 2));
    times_out("unlock", guard.unlock());
    server.resume();
    eventually("the release arrives", || !exists(&server, "held"));
}

#[test]
fn a_grant_that_arrives_after_the_deadline_of_its_caller_is_released() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(endless(proxy.url()));
    let digests = Digests::of(&server);
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let call = || client.lock("a").try_lock_for(SOON);
    let error = soon(call).expect_err("the proxy holds the reply");
    assert!(error.is_timeout(), "{error}");
    assert!(server.calls("pexpire") > 0, "the server has granted the lock");
    eventually("the hold is released", || !exists(&server, "a"));
    proxy.release_held();
    let guard = client.lock("a").lock().expect("the server answers again");
    assert_held(&server, "a", &guard, NEVER);
}

#[test]
fn a_deadline_ends_calls_of_a_multi_lock_and_a_red_lock() {
    let silent = [Silent::new(), Silent::new(), Silent::new()];
    let lock = |name: &str| silent[0].client.lock(name);
    let multi = MultiLock::new([lock("a"), lock("b")]);
    let error = soon(|| multi.try_lock_for(SOON)).expect_err("the server is stopped");
    assert!(error.is_timeout(), "{error}");
    let red = RedLock::new(silent.iter().map(|one| one.client.clone()), "red");
    let error = soon(|| red.try_lock_for(SOON)).expect_err("the server is stopped");
    assert!(error.is_timeout(), "{error}");
    let token = CancelToken::new();
    thread::scope(|scope| {
        let red = red.clone().with_cancel(&token);
        let call = scope.spawn(move || red.lock().map(drop));
        token.cancel();
        let error = in_time("the call returns", call).expect_err("the call is cancelled");
        assert!(error.is_cancelled(), "{error}");
    });
}

#[test]
fn a_cancellation_ends_a_leader_while_replies_to_others_arrive() {
    const CALLERS: usize = 120;
    /// Fewer bytes than a reply has.
    const BYTES: usize = 4;
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(endless(trickle.url()));
    drop(client.fair_lock("warm").lock().expect("the server answers"));
    trickle.slow_down();
    let token = CancelToken::new();
    thread::scope(|scope| {
        let call = |number| {
            let lock = client.fair_lock(format!("a{number}")).with_cancel(&token);
            scope.spawn(move || lock.lock().map(drop))
        };
        let calls: Vec<_> = (0..CALLERS).map(call).collect();
        // The first leader reads only its own reply, the next leader reads those of all others.
        eventually("replies arrive", || trickle.slow_replies() > CALLERS);
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
fn a_deadline_ends_a_write_that_the_server_reads_slowly() {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let client = build(endless(trickle.url()));
    drop(client.lock("warm").lock().expect("the server answers"));
    trickle.slow_down();
    let lock = client.lock(long_name());
    let error = soon(|| lock.try_lock_for(SOON)).expect_err("the request is not written in time");
    assert!(error.is_timeout(), "{error}");
    drop(trickle);
}

#[test]
fn closing_the_client_ends_the_unlock_of_several_locks() {
    let server = Server::start();
    let client = build(endless(server.url()).pool_size(2));
    let locks = MultiLock::new([client.lock("a"), client.lock("b"), client.lock("c")]);
    let guard = locks.lock_owned().expect("the server answers");
    server.stop();
    let call = sleeping("unlocks", move || guard.unlock());
    let closing = thread::spawn(move || client.close());
    let error = join(call).expect_err("the server is stopped");
    assert!(error.is_closed(), "{error}");
    server.resume();
    eventually("the releases arrive", || ["a", "b", "c"].iter().all(|name| !exists(&server, name)));
    join(closing);
}

#[test]
fn closing_the_client_waits_for_the_releases_of_ended_calls() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(endless(proxy.url()));
    let digests = Digests::of(&server);
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let lock = client.lock("a");
    let call = sleeping("locks", move || lock.lock().map(drop));
    eventually("the server grants the lock", || exists(&server, "a"));
    // The reply to the release arrives behind the reply that the proxy holds.
    let releasing = thread::spawn(move || {
        eventually("the hold is released", || !exists(&server, "a"));
        proxy.release_held();
        (server, proxy)
    });
    client.close();
    let (server, _proxy) = join(releasing);
    assert!(!exists(&server, "a"));
    assert!(join(call).expect_err("the client is closed").is_closed());
}

#[test]
fn a_reply_without_a_waiting_caller_delays_no_request() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(endless(proxy.url()).pool_size(1));
    let digests = Digests::of(&server);
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    for name in ["a", "b", "c"] {
        let token = CancelToken::new();
        let lock = client.lock(name).with_cancel(&token);
        let call = sleeping("locks", move || lock.lock().map(drop));
        eventually("the server grants the lock", || exists(&server, name));
        token.cancel();
        assert!(join(call).expect_err("the call is cancelled").is_cancelled());
        eventually("the hold is released", || !exists(&server, name));
    }
    proxy.release_held();
}

#[test]
fn re_entry_of_a_red_lock_obeys_the_deadline_and_the_token() {
    let silent = [Silent::new(), Silent::new(), Silent::new()];
    silent.iter().for_each(|one| one.server.resume());
    let red = RedLock::new(silent.iter().map(|one| one.client.clone()), "red");
    let guard = red.clone().with_lease(NEVER).lock().expect("the server answers");
    silent.iter().for_each(|one| one.server.stop());
    let longer = red.with_lease(NEVER * 2);
    let start = Instant::now();
    let error = longer.try_lock_for(SOON).expect_err("the server is stopped");
    assert!(error.is_timeout() && start.elapsed() < BOUND, "{error}");
    let token = CancelToken::new();
    token.cancel();
    let error = longer.with_cancel(&token).lock().expect_err("the call is cancelled");
    assert!(error.is_cancelled(), "{error}");
    silent.iter().for_each(|one| one.server.resume());
    drop(guard);
}

/// The limit of every measured call: its own deadline or the response time-out.
const DEADLINE: Duration = Duration::from_millis(20);

/// Prints by how much the longest call of each verb to a silent server exceeds its deadline.
fn print_overruns(what: &str, calls: usize) {
    let server = Server::start();
    let trickle = Trickle::start(server.addr());
    let url = if what == "trickling server" { trickle.url() } else { server.url() };
    let endless = build(endless(url.clone()).pool_size(2));
    drop(endless.lock("warm").lock().expect("the server answers"));
    let settings = patient(url).response_timeout(DEADLINE).connect_timeout(DEADLINE);
    let client = build(settings.pool_size(2).watchdog_timeout(NEVER * 30));
    let name = if what == "full socket" { long_name() } else { "a".to_owned() };
    let take = |number| client.lock(format!("held:{number}")).lock_owned();
    let guard = take(calls).expect("the server answers");
    let mut guards: Vec<_> =
        (0..calls).map(|number| take(number).expect("the server answers")).collect();
    if what == "trickling server" {
        trickle.trickle();
    } else {
        server.stop();
    }

    let print = |verb: &str, call: &mut dyn FnMut() -> Result<(), Error>| {
        let mut longest = Duration::ZERO;
        for _ in 0..calls {
            let start = Instant::now();
            call().expect_err("the server is silent");
            longest = longest.max(start.elapsed().saturating_sub(DEADLINE));
        }
        println!("{what}, {verb}: {longest:?} at most in {calls} calls");
    };
    let (timed, lock) = (endless.lock(&name), client.lock(&name));
    print("try_lock_for", &mut || timed.try_lock_for(DEADLINE).map(drop));
    print("try_lock", &mut || lock.try_lock().map(drop));
    print("lock, cancelled", &mut || {
        let token = CancelToken::new();
        let lock = endless.lock(&name).with_cancel(&token);
        thread::scope(|scope| {
            let call = scope.spawn(move || lock.lock().map(drop));
            thread::sleep(DEADLINE);
            token.cancel();
            call.join().expect("no panic")
        })
    });
    print("is_locked", &mut || lock.is_locked().map(drop));
    print("remaining", &mut || lock.remaining().map(drop));
    print("force_unlock", &mut || lock.force_unlock().map(drop));
    print("extend", &mut || guard.extend(NEVER * 60));
    let multi = MultiLock::new([timed, endless.lock("b")]);
    print("MultiLock::try_lock_for", &mut || multi.try_lock_for(DEADLINE).map(drop));
    let red = RedLock::new([endless.clone()], &name);
    print("RedLock::try_lock_for", &mut || red.try_lock_for(DEADLINE).map(drop));
    print("unlock", &mut || guards.pop().expect("one guard for each call").unlock());
    server.resume();
    drop(trickle);
}

#[test]
#[ignore = "prints figures and checks none; takes minutes"]
fn overruns() {
    let calls =
        std::env::var("LEASEHOLD_CALLS").map_or(50, |calls| calls.parse().expect("a number"));
    thread::scope(|scope| {
        for what in ["stopped server", "trickling server", "full socket"] {
            scope.spawn(move || print_overruns(what, calls));
        }
    });
}
