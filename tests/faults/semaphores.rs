//! Faults of semaphores with leased permits: cut renewals, late copies, cancellations and closes in
//! flight, outages. Permits are taken and given back once.

use crate::harness::bare::{Listener, script};
use crate::harness::faults::*;
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time};
use leasehold::{CancelToken, Client, Permit, Semaphore};
use std::thread;
use std::time::{Duration, Instant};

const CAPACITY: u32 = 5;

/// The poll interval of callers that ask again soon.
const OFTEN: Duration = Duration::from_millis(100);

const CHANNEL: &str = "redisson_sc:{a}";

fn semaphore(client: &Client, name: &str) -> Semaphore {
    client.semaphore(name).with_permits(CAPACITY)
}

fn take(client: &Client, name: &str, permits: u32) -> Permit {
    let taken = semaphore(client, name).try_acquire_many(permits).expect("nothing is cut");
    taken.unwrap_or_else(|| panic!("{permits} permits of {name} are free"))
}

/// Returns the free permits and the ids of those in use.
fn state(server: &Server, name: &str) -> (Option<i64>, Vec<Vec<u8>>) {
    let expiries = format!("{{{name}}}:timeout");
    (server.ask(&["GET", name]), server.ask(&["ZRANGE", &expiries, "0", "-1"]))
}

/// Returns whether no permit is in use. The capacity may not be set yet.
fn all_are_free(server: &Server, name: &str) -> bool {
    let (free, used) = state(server, name);
    used.is_empty() && free.is_none_or(|free| free == i64::from(CAPACITY))
}

/// Asserts that so many permits are in use, and the others free.
#[track_caller]
fn assert_in_use(server: &Server, name: &str, permits: u32) {
    let (free, used) = state(server, name);
    assert_eq!((free, used.len() as u32), (Some((CAPACITY - permits).into()), permits), "{name}");
}

fn load(server: &Server, name: &str) -> String {
    server.ask(&["SCRIPT", "LOAD", &script(name).source()])
}

/// The bytes of a renewal, or of its reply, that pass before a cut.
const CUT_RENEWALS: [(Direction, [usize; 4]); 2] =
    [(Direction::Requests, [0, 1, 40, 120]), (Direction::Replies, [0, 1, 2, 3])];

#[test]
fn a_renewal_that_is_cut_keeps_the_permit() {
    let server = Server::start();
    let renew = load(&server, "semaphore_renew");
    thread::scope(|scope| {
        for (direction, cuts) in CUT_RENEWALS {
            for after in cuts {
                for is_refused in [false, true] {
                    let (server, renew) = (&server, &renew);
                    scope.spawn(move || cut_a_renewal(server, renew, direction, after, is_refused));
                }
            }
        }
    });
    // The capacities outlive the permits.
    for key in server.keys() {
        server.ask::<u32>(&["DEL", &key]);
    }
    nothing_is_left(&server);
}

/// Cuts the connection at the next renewal, and refuses new ones until the renewal has failed.
fn cut_a_renewal(
    server: &Server,
    renew: &str,
    direction: Direction,
    after: usize,
    is_refused: bool,
) {
    const LEASE: Duration = Duration::from_secs(6);
    let name = format!("renewal {direction:?} {after} {is_refused}");
    let proxy = Proxy::start(server.addr());
    let (settings, events) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
    let client = build(settings);
    let permit = take(&client, &name, 2);
    // The first renewal connects the watchdog.
    events.renewed(1);
    let before = end_on_server(server, &name);
    proxy.on_request(renew.as_bytes(), direction, Flow::CutAfter(after));
    if is_refused {
        proxy.refuse();
        events.renewal_failed();
        assert!(permit.is_held(), "{name}: its lease is not over");
        proxy.heal();
    }
    events.renewed(1);
    assert_eq!(proxy.stats().cuts, 1, "{name}");
    assert_in_use(server, &name, 2);
    assert!(permit.is_held() && end_on_server(server, &name) > before, "{name}");
    permit.release().expect("they are held");
    assert_in_use(server, &name, 0);
}

/// Returns the first expiry of the permits in use, in ms since 1970.
fn end_on_server(server: &Server, name: &str) -> f64 {
    let expiries = format!("{{{name}}}:timeout");
    let first: (Vec<u8>, f64) = server.ask(&["ZRANGE", &expiries, "0", "0", "WITHSCORES"]);
    first.1
}

/// A client behind a proxy, and another client that has the permits.
struct Stage {
    server: Server,
    proxy: Proxy,
    client: Client,
    direct: Client,
    acquire: String,
}

impl Stage {
    fn new() -> Stage {
        let server = Server::start();
        let acquire = load(&server, "semaphore_acquire");
        let proxy = Proxy::start(server.addr());
        let client = build(hasty(proxy.url()).poll_interval(OFTEN));
        let direct = other(&server);
        take(&direct, "a", 1).release().expect("it is held");
        Stage { server, proxy, client, direct, acquire }
    }

    fn hold_next_acquire(&self) {
        self.proxy.on_request(self.acquire.as_bytes(), Direction::Requests, Flow::Hold);
    }

    /// Delivers the held acquire, and waits until the server has run it and its undo.
    fn deliver_late(&self) {
        assert!(self.proxy.stats().requests.held > 0, "no command is late");
        let grants = || self.server.calls("zadd");
        let before = grants();
        self.proxy.release_held();
        eventually("the late acquire runs", || grants() == before + 1);
        eventually("the late permits come back", || all_are_free(&self.server, "a"));
    }

    fn end(self) {
        assert!(all_are_free(&self.server, "a"));
        self.server.ask::<u32>(&["DEL", "a"]);
        drop((self.client, self.direct));
        nothing_is_left(&self.server);
    }
}

#[test]
fn a_late_acquire_is_undone_again() {
    let stage = Stage::new();
    stage.hold_next_acquire();
    let error = semaphore(&stage.client, "a").try_acquire_many(4).expect_err("it is held back");
    assert!(error.is_timeout(), "{error}");
    stage.deliver_late();
    take(&stage.direct, "a", CAPACITY).release().expect("they are held");
    stage.end();
}

#[test]
fn an_acquire_that_is_cancelled_in_flight_is_undone() {
    let stage = Stage::new();
    let stop = CancelToken::new();
    let jobs = semaphore(&stage.client, "a").with_cancel(&stop);
    thread::scope(|scope| {
        stage.hold_next_acquire();
        let caller = scope.spawn(move || jobs.acquire_many(4).map(drop));
        something_is_held(&stage.proxy);
        stop.cancel();
        let error = in_time("the call returns", caller).expect_err("it was cancelled");
        assert!(error.is_cancelled(), "{error}");
    });
    stage.deliver_late();
    stage.end();
}

#[test]
fn an_acquire_in_flight_at_the_close_is_undone() {
    let stage = Stage::new();
    thread::scope(|scope| {
        stage.hold_next_acquire();
        let caller = scope.spawn(|| semaphore(&stage.client, "a").acquire_many(4).map(drop));
        something_is_held(&stage.proxy);
        let close = scope.spawn(|| stage.client.close());
        let error = in_time("the call returns", caller).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
        stage.deliver_late();
        in_time("the close returns", close);
    });
    stage.end();
}

/// The question that the message caused is lost, so that not even its undo sends a message. Others
/// do not sleep beside free permits.
#[test]
fn a_waiter_whose_question_is_lost_keeps_no_other_waiter_asleep() {
    let server = Server::start();
    let acquire = load(&server, "semaphore_acquire");
    let proxy = Proxy::start(server.addr());
    // Waits end only by messages.
    let (client, direct) = (build(hasty(proxy.url())), other(&server));
    let all = take(&direct, "a", CAPACITY);
    let (stop, give_up) = (CancelToken::new(), CancelToken::new());
    thread::scope(|scope| {
        let first = semaphore(&client, "a").with_cancel(&stop);
        let first = scope.spawn(move || first.acquire_many(CAPACITY).map(drop));
        eventually("the first waits", || client.stats().waiting_now() == 1);
        let second = semaphore(&client, "a").with_cancel(&give_up);
        let second = scope.spawn(move || second.acquire_many(2));
        eventually("both wait", || client.stats().waiting_now() == 2);
        eventually("the client listens", || server.numsub(CHANNEL) == 1);
        proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Swallow);
        all.release().expect("they are held");
        eventually("the question of the first is lost", || proxy.stats().requests.swallowed > 0);
        assert!(!second.is_finished(), "the message was for the first");
        stop.cancel();
        in_time("the first returns", first).expect_err("it was cancelled");
        proxy.heal();
        let is_woken = holds_within(BOUND, || second.is_finished());
        // With the seeded fault it would sleep until its poll.
        give_up.cancel();
        assert!(is_woken, "the second sleeps beside free permits");
        let second = second.join().expect("no panic").expect("they are free");
        second.release().expect("they are held");
    });
    eventually("nothing is kept", || all_are_free(&server, "a"));
}

/// Ends the leases of all permits, as those of dead processes end. No script has run since.
fn expire_all(server: &Server) {
    let expire = "for _, id in ipairs(redis.call('zrange', KEYS[1], 0, -1)) do \
                  redis.call('zadd', KEYS[1], 1, id) end";
    server.ask::<()>(&["EVAL", expire, "1", "{a}:timeout"]);
}

/// Returns the messages of the scripts to all waiters so far, those of Java included.
fn messages(server: &Server, listener: &mut Listener) -> Vec<String> {
    server.ask::<u32>(&["PUBLISH", CHANNEL, "the end"]);
    let next = || Some(listener.next_message().1).filter(|payload| payload != "the end");
    std::iter::from_fn(next).collect()
}

#[test]
fn an_acquire_announces_the_permits_that_it_reclaims_and_leaves() {
    let server = Server::start();
    let direct = other(&server);
    let dead = take(&direct, "a", CAPACITY);
    let mut listener = Listener::on(&server, CHANNEL);
    expire_all(&server);
    let permit = take(&direct, "a", 2);
    assert_eq!(messages(&server, &mut listener), ["3"]);
    assert!(dead.release().expect_err("its lease is over").is_lost());
    permit.release().expect("they are held");
}

#[test]
fn a_poll_announces_the_permits_that_it_reclaims() {
    let server = Server::start();
    let (client, direct) = (build(patient(server.url()).poll_interval(OFTEN)), other(&server));
    let dead = take(&direct, "a", CAPACITY);
    let mut listener = Listener::on(&server, CHANNEL);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore(&client, "a").acquire_many(CAPACITY));
        // The second question follows the confirmation of the subscription. The next one follows a
        // poll that finds permits.
        eventually("two questions are answered", || client.stats().round_trip().count() == 2);
        expire_all(&server);
        let permit = in_time("the waiter returns", waiter).expect("they are free");
        assert_eq!(messages(&server, &mut listener), ["5"]);
        permit.release().expect("they are held");
    });
    assert!(dead.release().expect_err("its lease is over").is_lost());
}

/// Waiters and permits survive a server that is silent for a while.
#[test]
fn waiters_and_permits_survive_an_outage() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let builder = hasty(proxy.url()).poll_interval(OFTEN);
    let (client, direct) = (build(builder), other(&server));
    let (mine, theirs) = (take(&client, "a", 2), take(&direct, "a", 3));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore(&client, "a").acquire_many(3));
        eventually("the call waits", || client.stats().waiting_now() == 1);
        let start = Instant::now();
        proxy.refuse();
        eventually("several questions fail", || start.elapsed() > 2 * BRIEF);
        assert!(!waiter.is_finished() && mine.is_held());
        theirs.release().expect("they are held");
        proxy.heal();
        let permit = in_time("the waiter returns", waiter).expect("they are free");
        assert!(permit.is_held() && mine.is_held());
        assert_in_use(&server, "a", 5);
    });
}

/// The server restarts without data: waiters set the capacity again, holders learn of their loss.
#[test]
fn a_server_without_its_data_gets_its_capacity_from_a_waiter() {
    let server = Server::start();
    let client = build(patient(server.url()).poll_interval(OFTEN));
    let lost = take(&client, "a", CAPACITY);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore(&client, "a").acquire_many(3));
        eventually("the call waits", || client.stats().waiting_now() == 1);
        server.kill();
        server.restart();
        let permit = in_time("the waiter returns", waiter).expect("they are free");
        assert_eq!(permit.count(), 3);
        assert!(lost.wait_lost(BOUND), "the verification notices");
        assert!(permit.is_held());
        assert_in_use(&server, "a", 3);
    });
}
