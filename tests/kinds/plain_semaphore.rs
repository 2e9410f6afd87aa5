//! The plain semaphore: permits without holders.

use crate::harness::faults::{build, nothing_is_left, other, patient};
use crate::harness::synchronizers::WaitLog;
use crate::harness::{Server, eventually, in_time};
use leasehold::kind::Kind;
use leasehold::{CancelToken, Client, PlainSemaphore};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval that passes soon.
const SOON: Duration = Duration::from_millis(100);

const CHANNEL: &str = "redisson_sc:{a}";

/// A client whose waits end only by messages.
fn client(server: &Server) -> Client {
    build(patient(server.url()))
}

/// Returns a semaphore with that many free permits.
fn with_permits(client: &Client, permits: u32) -> PlainSemaphore {
    let semaphore = client.plain_semaphore("a");
    assert!(semaphore.try_set_permits(permits).expect("the server answers"));
    semaphore
}

fn available(semaphore: &PlainSemaphore) -> i64 {
    semaphore.available().expect("the server answers")
}

#[test]
fn the_verbs_change_the_number_of_free_permits() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let stock = with_permits(&client, 10);
    assert!(!direct.plain_semaphore("a").try_set_permits(99).expect("the server answers"));
    stock.acquire(2).expect("they are free");
    assert!(stock.try_acquire(3).expect("they are free"));
    assert!(!stock.try_acquire(6).expect("the server answers"), "5 are free");
    assert_eq!(available(&stock), 5);
    stock.release(2).expect("the server answers");
    stock.add_permits(4).expect("the server answers");
    assert_eq!(available(&direct.plain_semaphore("a")), 11);
    assert!(stock.try_acquire_for(1, Duration::ZERO).expect("it is free"));
    assert!(stock.try_acquire_until(1, Instant::now()).expect("it is free"));
    assert_eq!(direct.plain_semaphore("a").drain().expect("the server answers"), 9);
    assert_eq!(stock.drain().expect("the server answers"), 0);
    assert_eq!((available(&stock), stock.name()), (0, "a"));
    eventually("the records are deleted", || server.keys() == ["a"]);
    server.ask::<u32>(&["DEL", "a"]);
    assert_eq!(available(&stock), 0);
    assert!(!stock.try_acquire(1).expect("the server answers"), "there is no key");
    assert_eq!(stock.drain().expect("the server answers"), 0);
    drop((client, direct, stock));
    nothing_is_left(&server);
}

#[test]
fn the_number_may_be_negative() {
    let server = Server::start();
    let client = client(&server);
    let stock = with_permits(&client, 3);
    stock.add_permits(-5).expect("the server answers");
    assert_eq!(available(&stock), -2);
    assert!(!stock.try_acquire(1).expect("the server answers"));
    stock.add_permits(2).expect("the server answers");
    assert!(!stock.try_acquire(1).expect("the server answers"), "none is free");
    stock.add_permits(-4).expect("the server answers");
    assert_eq!(stock.drain().expect("the server answers"), -4);
    assert_eq!(available(&stock), 0);
}

#[test]
fn numbers_beyond_32_bits_are_exact() {
    let server = Server::start();
    let client = client(&server);
    let stock = with_permits(&client, u32::MAX);
    stock.add_permits(1 << 40).expect("the server answers");
    stock.acquire(1000).expect("they are free");
    assert_eq!(available(&stock), i64::from(u32::MAX) + (1 << 40) - 1000);
    assert_eq!(stock.drain().expect("an answer"), i64::from(u32::MAX) + (1 << 40) - 1000);
    stock.add_permits(i64::MAX).expect("it fits");
    let error = stock.add_permits(1).expect_err("it leaves the range of 64 bits");
    assert!(error.is_server() && !error.is_retryable(), "{error}");
    assert_eq!(available(&stock), i64::MAX);
}

#[test]
fn a_time_to_live_of_the_key_stays() {
    let server = Server::start();
    let client = client(&server);
    let stock = with_permits(&client, 3);
    server.ask::<()>(&["PEXPIRE", "a", "600000"]);
    stock.acquire(2).expect("they are free");
    stock.release(1).expect("the server answers");
    stock.drain().expect("the server answers");
    let ttl: i64 = server.ask(&["PTTL", "a"]);
    assert!(ttl > 0, "{ttl}");
}

#[test]
fn every_way_to_add_permits_wakes_a_waiter() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let other = direct.plain_semaphore("a");
    type Give = fn(&PlainSemaphore);
    let gives: [Give; 3] = [
        |it| it.release(2).expect("the server answers"),
        |it| it.add_permits(2).expect("the server answers"),
        |it| assert!(it.try_set_permits(2).expect("the server answers")),
    ];
    for give in gives {
        server.ask::<u32>(&["DEL", "a"]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.plain_semaphore("a").acquire(2));
            eventually("the waiter listens", || server.numsub(CHANNEL) == 1);
            assert_eq!(other.waiting().expect("the server answers").processes(), 1);
            give(&other);
            in_time("the waiter returns", waiter).expect("they are free");
        });
        assert_eq!(available(&other), 0);
    }
}

/// The message is lost: only a poll can end the wait.
#[test]
fn a_wait_ends_by_a_poll_without_a_message() {
    let server = Server::start();
    let client = build(patient(server.url()).poll_interval(SOON));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.plain_semaphore("a").acquire(2));
        eventually("the waiter listens", || server.numsub(CHANNEL) == 1);
        server.ask::<()>(&["SET", "a", "2"]);
        in_time("the waiter returns", waiter).expect("they are free");
    });
    assert_eq!(available(&client.plain_semaphore("a")), 0);
}

#[test]
fn a_waiter_for_many_leaves_the_permits_to_a_waiter_for_one() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let (many, one) = (client.plain_semaphore("a"), client.plain_semaphore("a"));
    thread::scope(|scope| {
        let many = scope.spawn(move || many.acquire(5));
        eventually("the first waiter listens", || server.numsub(CHANNEL) == 1);
        let one = scope.spawn(move || one.acquire(1));
        eventually("both wait", || client.stats().waiting_now() == 2);
        direct.plain_semaphore("a").release(1).expect("the server answers");
        in_time("the second waiter returns", one).expect("it is free");
        assert!(!many.is_finished());
        direct.plain_semaphore("a").release(5).expect("the server answers");
        in_time("the first waiter returns", many).expect("they are free");
    });
    assert_eq!(available(&direct.plain_semaphore("a")), 0);
}

/// All permits that are given are taken, once each.
#[test]
fn many_waiters_of_two_clients_take_what_is_given() {
    const EACH: u32 = 12;
    let server = Server::start();
    let (one, two, direct) = (client(&server), client(&server), other(&server));
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..EACH)
            .flat_map(|n| [&one, &two].map(|client| (client, n % 3 + 1)))
            .map(|(client, n)| scope.spawn(move || client.plain_semaphore("a").acquire(n)))
            .collect();
        let waiting = || one.stats().waiting_now() + two.stats().waiting_now();
        eventually("all wait", || waiting() == u64::from(2 * EACH));
        for _ in 0..EACH {
            direct.plain_semaphore("a").release(4).expect("the server answers");
        }
        for waiter in waiters {
            in_time("a waiter returns", waiter).expect("they are free");
        }
    });
    assert_eq!(available(&direct.plain_semaphore("a")), 0);
    server.ask::<u32>(&["DEL", "a"]);
    drop((one, two, direct));
    nothing_is_left(&server);
}

#[test]
fn a_token_and_the_close_end_waits() {
    let server = Server::start();
    let (stop, client) = (CancelToken::new(), client(&server));
    let stock = client.plain_semaphore("a").with_cancel(&stop);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stock.acquire(1));
        eventually("the waiter listens", || server.numsub(CHANNEL) == 1);
        stop.cancel();
        let error = in_time("the waiter returns", waiter).expect_err("the wait was cancelled");
        assert!(error.is_cancelled() && error.lock_name() == Some("a"), "{error}");
        assert!(stock.try_acquire(1).is_err_and(|error| error.is_cancelled()));
        stock.release(1).expect("a token ends only calls that take");
        stock.drain().expect("a token ends only waits");
        let waiter = scope.spawn(|| client.plain_semaphore("a").acquire(1));
        eventually("the call waits", || client.stats().waiting_now() == 1);
        client.close();
        let error = in_time("the waiter returns", waiter).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
    });
    let stock = client.plain_semaphore("a");
    for outcome in [stock.release(1), stock.try_acquire(1).map(drop), stock.drain().map(drop)] {
        assert!(outcome.is_err_and(|error| error.is_closed()));
    }
}

#[test]
fn waits_are_reported_and_counted() {
    let server = Server::start();
    let (client, waits) = (client(&server), Arc::new(WaitLog::default()));
    let stock = client.plain_semaphore("a").with_events(waits.clone());
    assert!(!stock.try_acquire_for(1, 3 * SOON).expect("the server answers"));
    let event = waits.only();
    assert_eq!((&*event.name, event.kind, event.hold), ("a", Kind::PlainSemaphore, None));
    assert!(!event.acquired && event.waited >= SOON, "{event:?}");
    assert!(!stock.try_acquire(1).expect("the server answers"));
    let stats = client.stats();
    assert_eq!((stats.timed_out(), stats.refused(), stats.contended()), (1, 1, 1));
    assert_eq!((stats.acquired(), stats.held_now(), stats.waiting_now()), (0, 0, 0));
}
