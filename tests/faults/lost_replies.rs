//! Answers that do not come: the way to the server is cut at every byte, or lets
//! nothing back. What the caller is told has to be true, and nothing is left over.

use crate::harness::faults::*;
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time, join};
use leasehold::{Client, Error, OwnedGuard, Released};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How many ways to one server are cut at a time: every one at other bytes.
const WAYS: usize = 4;

/// One way to a server, with a client on it, and one beside it.
struct Way<'a> {
    server: &'a Server,
    digests: &'a Digests,
    proxy: Proxy,
    client: Client,
    heard: EventLog,
    other: &'a Client,
}

/// Where a way is cut, and whether it can be used again before the caller is told.
#[derive(Clone, Copy, Debug)]
struct Cut {
    direction: Direction,
    after: usize,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    NewConnections,
    NoConnections,
}

impl<'a> Way<'a> {
    fn new(server: &'a Server, digests: &'a Digests, other: &'a Client) -> Way<'a> {
        let proxy = Proxy::start(server.addr());
        let (settings, heard) = EventLog::from(patient(proxy.url()));
        Way { server, digests, client: build(settings), proxy, heard, other }
    }

    /// Cuts the way of the next request that has `pattern` in it, or of its reply.
    /// The connection that it will come on stands and has nothing to say.
    fn prepare(&self, cut: Cut, pattern: &str) {
        self.client.lock("quiet").is_locked().expect("the way is not cut yet");
        self.proxy.on_request(pattern.as_bytes(), cut.direction, Flow::CutAfter(cut.after));
        if cut.then == Then::NoConnections {
            self.proxy.refuse();
        }
    }

    fn cuts(&self) -> usize {
        self.proxy.stats().cuts
    }

    /// Checks that a caller who was told that all is well was told so by an answer.
    #[track_caller]
    fn could_be_told(&self, cut: Cut, was_cut: bool) {
        let whole_reply = cut.direction == Direction::Replies && cut.after > 0;
        assert!(!was_cut || cut.then == Then::NewConnections || whole_reply, "{cut:?}");
    }

    #[track_caller]
    fn could_not_be_told(&self, cut: Cut, was_cut: bool, error: &Error) {
        assert!(was_cut && cut.then == Then::NoConnections, "{cut:?}: {error}");
        assert!(error.is_connection(), "{cut:?}: {error}");
    }
}

/// Has `run` cut one request, and one reply, at each of its bytes: it is given one
/// cut after the other until one lies behind the last byte, and does not happen.
fn at_every_byte(run: impl Fn(&Way<'_>, Cut) -> bool + Sync) {
    let server = Server::start();
    let digests = Digests::of(&server);
    let beside = other(&server);
    thread::scope(|scope| {
        for first in 0..WAYS {
            let way = Way::new(&server, &digests, &beside);
            let run = &run;
            scope.spawn(move || {
                for direction in [Direction::Requests, Direction::Replies] {
                    for then in [Then::NewConnections, Then::NoConnections] {
                        let cut = |after| Cut { direction, after, then };
                        let bytes = (first..).step_by(WAYS).take_while(|n| run(&way, cut(*n)));
                        let least = if direction == Direction::Requests { 100 / WAYS } else { 1 };
                        assert!(bytes.count() >= least, "{direction:?} were not cut");
                    }
                }
                way.client.close();
            });
        }
    });
    drop(beside);
    nothing_is_left(&server);
}

fn name_of(what: &str, cut: Cut) -> String {
    format!("{what} {:?} {:?} {:03}", cut.direction, cut.then, cut.after)
}

#[test]
fn an_acquire_that_is_cut_at_any_byte_is_what_its_caller_is_told() {
    at_every_byte(|way, cut| {
        let (name, before) = (name_of("acquire", cut), way.cuts());
        way.prepare(cut, &way.digests.acquire);
        let outcome = way.client.lock(&name).try_lock();
        way.proxy.heal();
        let was_cut = way.cuts() > before;
        match outcome {
            Ok(guard) => {
                let guard = guard.expect("nobody else wants it");
                way.could_be_told(cut, was_cut);
                assert_held(way.server, &name, &guard, NEVER);
                assert_others_cannot_take(way.other, &name);
                guard.unlock().expect("it is held");
            }
            Err(error) => {
                way.could_not_be_told(cut, was_cut, &error);
                eventually("what it may have taken is freed", || !exists(way.server, &name));
            }
        }
        assert_others_can_take(way.other, &name);
        was_cut
    });
}

#[test]
fn an_unlock_that_is_cut_at_any_byte_is_what_its_caller_is_told() {
    at_every_byte(|way, cut| {
        let (name, before) = (name_of("unlock", cut), way.cuts());
        let guard = way.client.lock(&name).lock().expect("the way is not cut yet");
        way.prepare(cut, &way.digests.release);
        let outcome = guard.unlock();
        let was_cut = way.cuts() > before;
        match &outcome {
            Ok(()) => way.could_be_told(cut, was_cut),
            Err(error) => way.could_not_be_told(cut, was_cut, error),
        }
        check_release(way, &name, outcome.is_ok(), None);
        was_cut
    });
}

#[test]
fn a_dropped_guards_release_that_is_cut_at_any_byte_is_sent_again() {
    at_every_byte(|way, cut| {
        let (name, before) = (name_of("drop", cut), way.cuts());
        let guard = way.client.lock(&name).lock().expect("the way is not cut yet");
        way.prepare(cut, &way.digests.release);
        drop(guard);
        let mut released = None;
        eventually("the release is cut, or passes", || {
            released = way.heard.released_already();
            released.is_some() || way.cuts() > before
        });
        check_release(way, &name, released.is_some(), released);
        way.cuts() > before
    });
}

/// Checks what becomes of a release whose fate is open, unless it is `done`: if it
/// has happened, the lock belongs to whoever takes it; if not, it will happen.
fn check_release(way: &Way<'_>, name: &str, done: bool, released: Option<Released>) {
    let takers = way.other.lock(name).try_lock().expect("its way is straight");
    assert!(takers.is_some() || !done, "{name} was released, and is not free");
    way.proxy.heal();
    let released = released.unwrap_or_else(|| way.heard.released());
    assert_eq!(&*released.name, name);
    assert!(released.error.is_none(), "{released:?}");
    match takers {
        Some(guard) => {
            assert_held(way.server, name, &guard, NEVER);
            guard.unlock().expect("a repeated release takes nothing from another");
        }
        None => assert_others_can_take(way.other, name),
    }
    assert!(!exists(way.server, name), "{name}");
}

#[test]
fn a_waiter_whose_question_is_cut_at_any_byte_waits_on_and_gets_in() {
    at_every_byte(|way, cut| {
        let name = name_of("wait", cut);
        let (before, triggered) = (way.cuts(), way.proxy.stats().triggered);
        // A question that was under way already may get the lock before any is cut.
        while way.proxy.stats().triggered == triggered {
            cut_a_waiters_question(way, cut, &name);
            eventually("the waiter's release is sent", || !exists(way.server, &name));
        }
        way.cuts() > before
    });
}

fn cut_a_waiters_question(way: &Way<'_>, cut: Cut, name: &str) {
    let holder = way.other.lock(name).lock().expect("its way is straight");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = way.client.lock(name).lock().expect("it was refused before");
            assert_held(way.server, name, &guard, NEVER);
        });
        let subscribed = || way.server.numsub(&channel_of(name)) == 1;
        eventually("the waiter has been refused", subscribed);
        let before = way.cuts();
        way.prepare(cut, &way.digests.acquire);
        holder.unlock().expect("its way is straight");
        let at_work = || way.cuts() > before || waiter.is_finished();
        eventually("the next question is cut, or passes", at_work);
        way.proxy.heal();
    });
}

#[test]
fn one_connection_that_breaks_is_no_error_whatever_was_under_way() {
    // Also if that takes a round more: a server that has been restarted knows no script.
    for pattern in ["EVALSHA", "LOAD"] {
        for direction in [Direction::Requests, Direction::Replies] {
            let server = Server::start();
            let proxy = Proxy::start(server.addr());
            let client = build(patient(proxy.url()));
            proxy.on_request(pattern.as_bytes(), direction, Flow::CutAfter(0));
            let guard = client.lock("a").lock().expect("the next connection is good");
            assert_eq!(proxy.stats().cuts, 1, "{pattern}");
            guard.unlock().expect("it is held");
        }
    }
}

/// The second copy might free what somebody else got in between.
#[test]
fn a_forced_release_whose_answer_is_cut_is_not_sent_twice() {
    let server = Server::start();
    let digests = Digests::of(&server);
    let beside = other(&server);
    let way = Way::new(&server, &digests, &beside);
    let force =
        server.ask::<String>(&["SCRIPT", "LOAD", include_str!("../../lua/plain_force_unlock.lua")]);
    for (direction, done) in [(Direction::Requests, false), (Direction::Replies, true)] {
        let guard = way.other.lock("forced").lock().expect("its way is straight");
        way.prepare(Cut { direction, after: 0, then: Then::NewConnections }, &force);
        let error = way.client.lock("forced").force_unlock().expect_err("nobody knows");
        assert!(error.is_connection(), "{error}");
        assert_eq!(way.client.lock("forced").is_locked().expect("connected again"), !done);
        assert_eq!(guard.unlock().is_ok(), !done);
    }
    assert_eq!(way.cuts(), 2);
    assert!(!way.client.lock("forced").force_unlock().expect("nothing is in its way"));
}

/// A server, a way to it with one client that waits briefly for answers, and one
/// that has a way of its own.
struct Brief {
    server: Server,
    digests: Digests,
    proxy: Proxy,
    client: Client,
    heard: EventLog,
    other: Client,
}

impl Brief {
    fn new() -> Brief {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let (settings, heard) = EventLog::from(hasty(proxy.url()));
        let (digests, other) = (Digests::of(&server), other(&server));
        Brief { client: build(settings), server, digests, proxy, heard, other }
    }

    /// Lets nothing more pass on the connection that the next such request takes.
    fn half_open(&self, digest: &str, direction: Direction) {
        self.proxy.on_request(digest.as_bytes(), direction, Flow::Swallow);
    }

    /// Ends it all; nothing may be left.
    fn end(self) {
        drop((self.client, self.other));
        nothing_is_left(&self.server);
        self.proxy.wait_until("all connections close", |stats| stats.open == 0);
    }
}

const BOTH: [Direction; 2] = [Direction::Requests, Direction::Replies];

#[test]
fn an_acquire_on_a_half_open_connection_fails_in_time_and_leaves_nothing() {
    let brief = Brief::new();
    for direction in BOTH {
        brief.half_open(&brief.digests.acquire, direction);
        let started = Instant::now();
        let error = brief.client.lock("half").try_lock().expect_err("no answer can come");
        assert!(error.is_timeout(), "{error}");
        assert!(started.elapsed() >= BRIEF, "it did not wait for the answer");
        assert!(started.elapsed() < BRIEF * 20, "it took {:?}", started.elapsed());
        eventually("what it took is freed", || !exists(&brief.server, "half"));
        assert_others_can_take(&brief.other, "half");
        // The next caller has a connection that works.
        brief.client.lock("half").lock().expect("a new connection").unlock().expect("held");
    }
    assert_eq!(brief.proxy.stats().triggered, 2);
    brief.end();
}

#[test]
fn an_acquire_is_cleaned_up_as_soon_as_the_way_is_open_again() {
    let brief = Brief::new();
    brief.client.lock("quiet").is_locked().expect("all is well");
    brief.proxy.swallow_replies();
    let error = brief.client.lock("blind").try_lock().expect_err("no answer can come");
    assert!(error.is_timeout(), "{error}");
    assert!(exists(&brief.server, "blind"), "the request went through");
    assert_others_cannot_take(&brief.other, "blind");
    let tries = brief.proxy.stats().accepted;
    brief.proxy.wait_until("some tries", |stats| stats.accepted > tries + 2);
    assert!(exists(&brief.server, "blind"), "no handshake can have ended");
    brief.proxy.pass();
    eventually("what it took is freed", || !exists(&brief.server, "blind"));
    assert_others_can_take(&brief.other, "blind");
    brief.end();
}

#[test]
fn an_unlock_on_a_half_open_connection_fails_in_time_and_is_sent_again() {
    let brief = Brief::new();
    for direction in BOTH {
        let guard = brief.client.lock("half").lock().expect("all is well");
        brief.half_open(&brief.digests.release, direction);
        let error = guard.unlock().expect_err("no answer can come");
        assert!(error.is_timeout(), "{error}");
        assert!(brief.heard.released().error.is_none(), "{direction:?}");
        assert!(!exists(&brief.server, "half"), "{direction:?}");
        assert_others_can_take(&brief.other, "half");
    }
    brief.end();
}

#[test]
fn a_dropped_guards_release_on_a_half_open_connection_is_sent_again() {
    let brief = Brief::new();
    for direction in BOTH {
        let guard = brief.client.lock("half").lock().expect("all is well");
        brief.half_open(&brief.digests.release, direction);
        drop(guard);
        assert!(brief.heard.released().error.is_none(), "{direction:?}");
        assert!(!exists(&brief.server, "half"), "{direction:?}");
    }
    brief.end();
}

#[test]
fn a_drop_does_not_wait_for_the_way_to_open() {
    let server = Server::start();
    let digests = Digests::of(&server);
    let beside = other(&server);
    let way = Way::new(&server, &digests, &beside);
    let guard = way.client.lock("a").lock().expect("all is well");
    way.proxy.on_request(digests.release.as_bytes(), Direction::Requests, Flow::Hold);
    drop(guard);
    something_is_held(&way.proxy);
    assert!(exists(&server, "a") && way.heard.released_already().is_none());
    way.proxy.release_held();
    assert!(way.heard.released().error.is_none());
    assert!(!exists(&server, "a"));
}

/// A name that fits into no socket's buffer: the release is left to the reaper.
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
    is_held.recv().expect("it gets the lock");
    server.stop();
    drops.send(()).expect("it waits");
    let client = join(holder);
    server.resume();
    drop(client); // waits for what is owed
    assert!(server.keys().is_empty());
}

#[test]
fn closing_or_dropping_a_client_waits_for_what_is_owed() {
    let server = Server::start();
    let digests = Digests::of(&server);
    for end in [|client: Client| client.close(), |client: Client| drop(client)] {
        let proxy = Proxy::start(server.addr());
        let client = build(patient(proxy.url()));
        let guard = client.lock("owed").lock().expect("all is well");
        proxy.on_request(digests.release.as_bytes(), Direction::Requests, Flow::Hold);
        drop(guard);
        something_is_held(&proxy);
        thread::scope(|scope| {
            let ending = scope.spawn(|| {
                end(client);
                assert!(!exists(&server, "owed"), "it did not wait");
            });
            assert!(!holds_within(BRIEF, || ending.is_finished()), "it did not wait");
            proxy.release_held();
        });
    }
    nothing_is_left(&server);
}

#[test]
fn a_question_under_way_when_its_client_closes_leaves_nothing() {
    for direction in BOTH {
        let brief = Brief::new();
        brief.half_open(&brief.digests.acquire, direction);
        thread::scope(|scope| {
            let caller = scope.spawn(|| brief.client.lock("a").lock().map(drop));
            brief.proxy.wait_until("the question", |stats| stats.triggered == 1);
            let started = Instant::now();
            brief.client.close();
            assert!(started.elapsed() < BRIEF * 20, "it took {:?}", started.elapsed());
            let error = caller.join().expect("no panic").expect_err("no answer can come");
            assert!(error.is_timeout() || error.is_closed(), "{error}");
        });
        eventually("what it took is freed", || !exists(&brief.server, "a"));
        assert_others_can_take(&brief.other, "a");
        brief.end();
    }
}

#[test]
fn a_release_without_an_answer_does_not_hold_up_another() {
    let server = Server::start();
    let (proxy, digests) = (Proxy::start(server.addr()), Digests::of(&server));
    let client = build(patient(proxy.url()).pool_size(2).response_timeout(NEVER));
    let [first, second] = take_on_two_connections(&client, &proxy);
    proxy.on_request(digests.release.as_bytes(), Direction::Replies, Flow::Hold);
    drop(first);
    something_is_held(&proxy);
    drop(second);
    let released = holds_within(BOUND / 3, || !exists(&server, "second"));
    proxy.release_held();
    assert!(released, "it waited for a connection that was not its own");
}

/// Two callers at a time, the second of whom finds the only connection busy.
fn take_on_two_connections(client: &Client, proxy: &Proxy) -> [OwnedGuard; 2] {
    let take = |name| client.lock(name).lock_owned().expect("all is well");
    let before = proxy.stats().accepted;
    proxy.hold_replies();
    thread::scope(|scope| {
        let first = scope.spawn(|| take("first"));
        something_is_held(proxy);
        let second = scope.spawn(|| take("second"));
        proxy.wait_until("one more connection", |stats| stats.accepted > before);
        proxy.pass();
        [in_time("it has the first", first), in_time("it has the second", second)]
    })
}
