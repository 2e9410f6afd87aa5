//! Requests and replies that get lost: cut, or on a half-open connection.
//!
//! The outcome that a call returns has to be true, and nothing may be left on the server.

use crate::harness::bare::script;
use crate::harness::faults::*;
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time, join};
use leasehold::{Builder, Client, Error, OwnedGuard};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The number of proxies that cut at the same time, each at other bytes.
const PROXIES: usize = 4;

/// A client behind a proxy, and a client with a direct connection.
struct Setup<'a> {
    server: &'a Server,
    digests: &'a Digests,
    /// Dropped before the proxy, through which it sends what is left to do.
    client: Client,
    proxy: Proxy,
    events: EventLog,
    direct: &'a Client,
}

/// A cut: the connection closes after this many bytes of a request or reply.
#[derive(Clone, Copy, Debug)]
struct Cut {
    direction: Direction,
    after: usize,
    then: Then,
}

/// Whether the proxy accepts new connections after the cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    NewConnections,
    NoConnections,
}

impl<'a> Setup<'a> {
    fn new(server: &'a Server, digests: &'a Digests, direct: &'a Client) -> Setup<'a> {
        let proxy = Proxy::start(server.addr());
        let (settings, events) = EventLog::from(patient(proxy.url()));
        Setup { server, digests, client: build(settings), proxy, events, direct }
    }

    /// Has the proxy cut the next request that contains `pattern`, or the reply to that request.
    ///
    /// Returns with an open, idle connection for that request.
    fn prepare(&self, cut: Cut, pattern: &str) {
        self.client.lock("quiet").is_locked().expect("nothing is cut so far");
        self.proxy.on_request(pattern.as_bytes(), cut.direction, Flow::CutAfter(cut.after));
        if cut.then == Then::NoConnections {
            self.proxy.refuse();
        }
    }

    fn cuts(&self) -> usize {
        self.proxy.stats().cuts
    }

    /// Asserts that a call that succeeded can have received a complete reply. Returns whether the
    /// cut hit the call.
    ///
    /// Without new connections, a call whose request is cut cannot succeed. The cut then hit a
    /// later command of the client, such as a repeated undo.
    #[track_caller]
    fn check_success(&self, cut: Cut, was_cut: bool) -> bool {
        let reconnects = cut.then == Then::NewConnections;
        let hit = was_cut && (reconnects || cut.direction == Direction::Replies);
        assert!(!hit || reconnects || cut.after > 0, "{cut:?}");
        hit
    }

    /// Asserts that a call that failed cannot have received a complete reply.
    #[track_caller]
    fn assert_may_fail(&self, cut: Cut, was_cut: bool, error: &Error) {
        assert!(was_cut && cut.then == Then::NoConnections, "{cut:?}: {error}");
        assert!(error.is_connection(), "{cut:?}: {error}");
    }
}

/// Calls `run` with a cut at each byte of a request, and of its reply.
///
/// `run` returns whether the cut happened. A cut behind the last byte does not happen.
fn at_every_byte(run: impl Fn(&Setup<'_>, Cut) -> bool + Sync) {
    let server = Server::start();
    let digests = Digests::of(&server);
    let direct = other(&server);
    thread::scope(|scope| {
        for first in 0..PROXIES {
            let (server, digests, direct, run) = (&server, &digests, &direct, &run);
            scope.spawn(move || {
                for direction in [Direction::Requests, Direction::Replies] {
                    for then in [Then::NewConnections, Then::NoConnections] {
                        // Each cut has a new client: pauses grow over the outages of one client.
                        let cut_happens = |after: &usize| {
                            let setup = Setup::new(server, digests, direct);
                            let was_cut = run(&setup, Cut { direction, after: *after, then });
                            setup.client.close();
                            was_cut
                        };
                        let bytes = (first..).step_by(PROXIES).take_while(cut_happens);
                        let least =
                            if direction == Direction::Requests { 100 / PROXIES } else { 1 };
                        assert!(bytes.count() >= least, "{direction:?} were not cut");
                    }
                }
            });
        }
    });
    drop(direct);
    nothing_is_left(&server);
}

/// The simulation cuts other calls in the same way (`sim/src/cuts.rs`).
#[test]
fn the_outcome_of_an_acquire_cut_at_any_byte_is_true() {
    at_every_byte(|setup, cut| {
        let name = format!("acquire {:?} {:?} {:03}", cut.direction, cut.then, cut.after);
        let before = setup.cuts();
        setup.prepare(cut, &setup.digests.acquire);
        let outcome = setup.client.lock(&name).try_lock();
        setup.proxy.heal();
        let mut was_cut = setup.cuts() > before;
        match outcome {
            Ok(guard) => {
                let guard = guard.expect("no other caller wants the lock");
                was_cut = setup.check_success(cut, was_cut);
                assert_held(setup.server, &name, &guard, NEVER);
                assert_others_cannot_take(setup.direct, &name);
                guard.unlock().expect("it is held");
            }
            Err(error) => {
                setup.assert_may_fail(cut, was_cut, &error);
                eventually("the acquire is undone", || !exists(setup.server, &name));
            }
        }
        assert_others_can_take(setup.direct, &name);
        was_cut
    });
}

#[test]
fn one_broken_connection_is_no_error() {
    // The client also loads the script, because the server does not know it.
    for pattern in ["EVALSHA", "LOAD"] {
        for direction in [Direction::Requests, Direction::Replies] {
            let server = Server::start();
            let proxy = Proxy::start(server.addr());
            let client = build(patient(proxy.url()));
            proxy.on_request(pattern.as_bytes(), direction, Flow::CutAfter(0));
            let guard = client.lock("a").lock().expect("the next connection works");
            assert_eq!(proxy.stats().cuts, 1, "{pattern}");
            guard.unlock().expect("it is held");
        }
    }
}

/// A second copy could end a hold that another caller got in between.
#[test]
fn a_force_unlock_without_a_reply_is_not_repeated() {
    let server = Server::start();
    let digests = Digests::of(&server);
    let direct = other(&server);
    let setup = Setup::new(&server, &digests, &direct);
    let force = script("plain_force_unlock").source();
    let force = server.ask::<String>(&["SCRIPT", "LOAD", &force]);
    for (direction, done) in [(Direction::Requests, false), (Direction::Replies, true)] {
        let guard = setup.direct.lock("forced").lock().expect("the direct connection works");
        setup.prepare(Cut { direction, after: 0, then: Then::NewConnections }, &force);
        let error = setup.client.lock("forced").force_unlock().expect_err("no reply arrives");
        assert!(error.is_connection(), "{error}");
        assert_eq!(setup.client.lock("forced").is_locked().expect("connected again"), !done);
        assert_eq!(guard.unlock().is_ok(), !done);
    }
    assert_eq!(setup.cuts(), 2);
    assert!(!setup.client.lock("forced").force_unlock().expect("nothing is cut"));
}

/// A client behind a proxy with a short response time-out, and a client with a direct connection.
struct HastySetup {
    server: Server,
    digests: Digests,
    proxy: Proxy,
    client: Client,
    events: EventLog,
    direct: Client,
}

impl HastySetup {
    fn new() -> HastySetup {
        HastySetup::with(|settings| settings)
    }

    fn with(more: impl FnOnce(Builder) -> Builder) -> HastySetup {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let (settings, events) = EventLog::from(more(hasty(proxy.url())));
        let (digests, direct) = (Digests::of(&server), other(&server));
        HastySetup { client: build(settings), server, digests, proxy, events, direct }
    }

    /// Swallows one direction of the connection that carries the next request for this script.
    fn half_open(&self, digest: &str, direction: Direction) {
        self.proxy.on_request(digest.as_bytes(), direction, Flow::Swallow);
    }

    /// Drops both clients and asserts that nothing is left.
    fn end(self) {
        drop((self.client, self.direct));
        nothing_is_left(&self.server);
        self.proxy.wait_until("all connections close", |stats| stats.open == 0);
    }
}

const BOTH: [Direction; 2] = [Direction::Requests, Direction::Replies];

#[test]
fn an_acquire_on_a_half_open_connection_fails_in_time_and_leaves_nothing() {
    let setup = HastySetup::new();
    for direction in BOTH {
        setup.half_open(&setup.digests.acquire, direction);
        let started = Instant::now();
        let error = setup.client.lock("half").try_lock().expect_err("no reply arrives");
        assert!(error.is_timeout(), "{error}");
        assert!(started.elapsed() >= BRIEF, "shorter than the response time-out");
        assert!(started.elapsed() < BRIEF * 20, "it took {:?}", started.elapsed());
        eventually("the acquire is undone", || !exists(&setup.server, "half"));
        assert_others_can_take(&setup.direct, "half");
        // The next caller gets a connection that works.
        setup.client.lock("half").lock().expect("a new connection").unlock().expect("held");
    }
    assert_eq!(setup.proxy.stats().triggered, 2);
    setup.end();
}

/// A caller leaves its request at its deadline, before the connection is given up for it.
#[test]
fn a_request_behind_a_late_one_is_sent_again() {
    let setup = HastySetup::with(|settings| settings.pool_size(1));
    for direction in BOTH {
        setup.half_open(&setup.digests.acquire, direction);
        let error =
            setup.client.lock("left").try_lock_for(BRIEF / 6).expect_err("no reply arrives");
        assert!(error.is_timeout(), "{error}");
        let guard = setup.client.lock("next").try_lock().expect("its own reply is not late");
        guard.expect("nobody holds it").unlock().expect("it is held");
        eventually("the acquire is undone", || !exists(&setup.server, "left"));
    }
    assert_eq!(setup.proxy.stats().triggered, 2);
    setup.end();
}

#[test]
fn an_acquire_is_undone_when_replies_arrive_again() {
    let setup = HastySetup::new();
    // On a stalled machine the time-out may end before the request is written.
    eventually("a request reaches the server", || {
        setup.proxy.pass();
        if setup.client.lock("quiet").is_locked().is_err() {
            return false;
        }
        setup.proxy.swallow_replies();
        let error = setup.client.lock("undone").try_lock().expect_err("no reply arrives");
        assert!(error.is_timeout() || error.is_connection(), "{error}");
        exists(&setup.server, "undone")
    });
    assert_others_cannot_take(&setup.direct, "undone");
    let accepted = setup.proxy.stats().accepted;
    setup.proxy.wait_until("more connections", |stats| stats.accepted > accepted + 2);
    assert!(exists(&setup.server, "undone"), "no handshake can have ended");
    setup.proxy.pass();
    eventually("the acquire is undone", || !exists(&setup.server, "undone"));
    assert_others_can_take(&setup.direct, "undone");
    setup.end();
}

#[test]
fn an_unlock_on_a_half_open_connection_fails_in_time_and_is_repeated() {
    let setup = HastySetup::new();
    for direction in BOTH {
        let guard = setup.client.lock("half").lock().expect("all is well");
        setup.half_open(&setup.digests.release, direction);
        let error = guard.unlock().expect_err("no reply arrives");
        assert!(error.is_timeout(), "{error}");
        assert!(setup.events.released().error.is_none(), "{direction:?}");
        assert!(!exists(&setup.server, "half"), "{direction:?}");
        assert_others_can_take(&setup.direct, "half");
    }
    setup.end();
}

#[test]
fn the_release_of_a_dropped_guard_on_a_half_open_connection_is_repeated() {
    let setup = HastySetup::new();
    for direction in BOTH {
        let guard = setup.client.lock("half").lock().expect("all is well");
        setup.half_open(&setup.digests.release, direction);
        drop(guard);
        assert!(setup.events.released().error.is_none(), "{direction:?}");
        assert!(!exists(&setup.server, "half"), "{direction:?}");
    }
    setup.end();
}

#[test]
fn a_drop_does_not_wait_for_its_release() {
    let server = Server::start();
    let digests = Digests::of(&server);
    let direct = other(&server);
    let setup = Setup::new(&server, &digests, &direct);
    let guard = setup.client.lock("a").lock().expect("all is well");
    setup.proxy.on_request(digests.release.as_bytes(), Direction::Requests, Flow::Hold);
    drop(guard);
    something_is_held(&setup.proxy);
    assert!(exists(&server, "a") && setup.events.released_already().is_none());
    setup.proxy.release_held();
    assert!(setup.events.released().error.is_none());
    assert!(!exists(&server, "a"));
}

/// The name of the lock exceeds the socket's buffer, so the reaper sends the release.
#[test]
fn a_drop_does_not_wait_for_a_server_that_does_not_read() {
    let server = Server::start();
    let forever = Duration::from_secs(3600);
    let builder = Client::builder().single(server.url()).response_timeout(forever);
    let client = builder.build().expect("the server answers");
    let (held, is_held) = mpsc::channel();
    let (drops, is_to_drop) = mpsc::channel::<()>();
    let name = "long".repeat(4 << 20);
    let holder = thread::spawn(move || {
        let guard = client.lock(name).lock().expect("all is well");
        held.send(()).expect("the test waits");
        is_to_drop.recv().expect("the test goes on");
        drop(guard);
        client
    });
    is_held.recv().expect("the lock is held");
    server.stop();
    drops.send(()).expect("the holder waits");
    let client = join(holder);
    server.resume();
    drop(client); // Blocks until the background requests are done.
    assert!(server.keys().is_empty());
}

#[test]
fn closing_or_dropping_a_client_waits_for_background_requests() {
    let server = Server::start();
    let digests = Digests::of(&server);
    for end in [|client: Client| client.close(), |client: Client| drop(client)] {
        let proxy = Proxy::start(server.addr());
        let client = build(patient(proxy.url()));
        let guard = client.lock("dropped").lock().expect("all is well");
        proxy.on_request(digests.release.as_bytes(), Direction::Requests, Flow::Hold);
        drop(guard);
        something_is_held(&proxy);
        thread::scope(|scope| {
            let ending = scope.spawn(|| {
                end(client);
                assert!(!exists(&server, "dropped"), "it ended before the release");
            });
            assert!(!holds_within(BRIEF, || ending.is_finished()), "it ended before the release");
            proxy.release_held();
        });
    }
    nothing_is_left(&server);
}

#[test]
fn an_acquire_in_flight_at_the_close_of_its_client_leaves_nothing() {
    for direction in BOTH {
        let setup = HastySetup::new();
        setup.half_open(&setup.digests.acquire, direction);
        thread::scope(|scope| {
            let caller = scope.spawn(|| setup.client.lock("a").lock().map(drop));
            setup.proxy.wait_until("the request", |stats| stats.triggered == 1);
            let started = Instant::now();
            setup.client.close();
            assert!(started.elapsed() < BRIEF * 20, "it took {:?}", started.elapsed());
            let error = caller.join().expect("no panic").expect_err("no reply arrives");
            assert!(error.is_timeout() || error.is_closed(), "{error}");
        });
        eventually("the acquire is undone", || !exists(&setup.server, "a"));
        assert_others_can_take(&setup.direct, "a");
        setup.end();
    }
}

#[test]
fn a_release_without_a_reply_does_not_delay_another() {
    let server = Server::start();
    let (proxy, digests) = (Proxy::start(server.addr()), Digests::of(&server));
    let client = build(patient(proxy.url()).pool_size(2).response_timeout(NEVER));
    let [first, second] = lock_on_two_connections(&client, &proxy);
    proxy.on_request(digests.release.as_bytes(), Direction::Replies, Flow::Hold);
    drop(first);
    something_is_held(&proxy);
    drop(second);
    let released = holds_within(BOUND / 3, || !exists(&server, "second"));
    proxy.release_held();
    assert!(released, "the release waited for a reply on the other connection");
}

/// Locks "first" and "second" at the same time: the second caller finds one connection busy.
fn lock_on_two_connections(client: &Client, proxy: &Proxy) -> [OwnedGuard; 2] {
    let lock = |name| client.lock(name).lock_owned().expect("all is well");
    let before = proxy.stats().accepted;
    proxy.hold_replies();
    thread::scope(|scope| {
        let first = scope.spawn(|| lock("first"));
        something_is_held(proxy);
        let second = scope.spawn(|| lock("second"));
        proxy.wait_until("one more connection", |stats| stats.accepted > before);
        proxy.pass();
        [in_time("the first is held", first), in_time("the second is held", second)]
    })
}
