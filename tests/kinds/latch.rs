//! The latch: rounds, waits, and guards that count down.

use crate::harness::faults::{build, nothing_is_left, other, patient};
use crate::harness::synchronizers::WaitLog;
use crate::harness::{Server, eventually, in_time};
use leasehold::kind::Kind;
use leasehold::{CancelToken, Client, CountDownLatch};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval that passes soon.
const SOON: Duration = Duration::from_millis(100);

/// The channel of the latch `a`.
const CHANNEL: &str = "redisson_countdownlatch__channel__{a}";

/// The key of the number of its round.
const ROUND: &str = "leasehold_round:{a}";

/// A client whose waits end only by messages.
fn client(server: &Server) -> Client {
    build(patient(server.url()))
}

/// A client that polls soon.
fn polling(server: &Server) -> Client {
    build(patient(server.url()).poll_interval(SOON))
}

/// Blocks until the client of a waiting caller listens.
fn waits(server: &Server) {
    eventually("a caller listens", || server.numsub(CHANNEL) == 1);
}

#[test]
fn the_last_count_opens_the_latch_for_all_waiters() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let latch = one.latch("a");
    assert!(latch.try_set_count(3).expect("the server answers"));
    assert!(!two.latch("a").try_set_count(5).expect("the server answers"), "it has a count");
    thread::scope(|scope| {
        let wait = |client: &Client| client.latch("a").wait();
        let waiters = [&one, &one, &two].map(|client| scope.spawn(move || wait(client)));
        eventually("both clients listen", || server.numsub(CHANNEL) == 2);
        for left in [2, 1] {
            two.latch("a").count_down().expect("the server answers");
            assert_eq!(latch.count().expect("the server answers"), left);
            assert!(!latch.wait_for(Duration::ZERO).expect("the server answers"));
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "the count is 1");
        latch.count_down().expect("the server answers");
        for waiter in waiters {
            in_time("a waiter returns", waiter).expect("the latch is open");
        }
    });
    assert_eq!(latch.count().expect("the server answers"), 0);
    drop((one, two, latch));
    nothing_is_left(&server);
}

#[test]
fn an_open_latch_needs_one_round_trip_and_no_subscription() {
    let server = Server::start();
    let (client, before) = (client(&server), server.calls("evalsha"));
    client.latch("a").wait().expect("a latch without a count is open");
    assert!(client.latch("a").wait_for(Duration::ZERO).expect("it is open"));
    assert!(client.latch("a").wait_until(Instant::now()).expect("it is open"));
    assert_eq!(server.calls("evalsha") - before, 4, "one of them before the script was loaded");
    assert_eq!(server.channels(), Vec::<String>::new());
}

#[test]
fn a_count_down_of_an_open_latch_does_nothing() {
    let server = Server::start();
    let client = client(&server);
    client.latch("a").count_down().expect("the server answers");
    assert_eq!(client.latch("a").count().expect("the server answers"), 0);
    assert!(client.latch("a").try_set_count(1).expect("the server answers"));
    drop(client);
    server.ask::<u32>(&["DEL", "a", ROUND]);
    nothing_is_left(&server);
}

/// The message is lost: only a poll can end the wait.
#[test]
fn a_wait_ends_by_a_poll_without_a_message() {
    let server = Server::start();
    let client = polling(&server);
    let latch = client.latch("a");
    for opened in [&["DEL", "a"][..], &["SET", "a", "0"], &["SET", "a", "-3"]] {
        assert!(latch.try_set_count(1).expect("it is open"));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| latch.wait());
            waits(&server);
            server.ask::<()>(&["EVAL", &format!("redis.call('{}')", opened.join("','")), "0"]);
            in_time("the waiter returns", waiter).expect("the latch is open");
        });
        assert_eq!(latch.count().expect("the server answers"), 0, "{opened:?}");
    }
    assert!(latch.try_set_count(2).expect("a negative count is open"));
}

/// One command reads the counts for all callers of a process, which sleep meanwhile.
#[test]
fn the_watchdog_polls_for_all_waiters() {
    const EACH: u64 = 5;
    let server = Server::start();
    let client = polling(&server);
    let (latch, stock) = (client.latch("a"), client.plain_semaphore("b"));
    assert!(latch.try_set_count(1).expect("it is open"));
    stock.release(1).expect("the server answers");
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..EACH)
            .flat_map(|_| [scope.spawn(|| latch.wait()), scope.spawn(|| stock.acquire(2))])
            .collect();
        let listens = |channel: &str| server.numsub(channel) == 1;
        eventually("all wait", || client.stats().waiting_now() == 2 * EACH);
        eventually("they listen", || listens(CHANNEL) && listens("redisson_sc:{b}"));
        // The questions after the subscriptions may be under way.
        let quiet = || {
            let (questions, polls) = (server.calls("evalsha"), server.calls("mget"));
            eventually("three polls", || server.calls("mget") >= polls + 3);
            server.calls("evalsha") == questions
        };
        eventually("the waiters send no questions", quiet);
        server.ask::<()>(&["MSET", "a", "0", "b", &(2 * EACH).to_string()]);
        for waiter in waiters {
            in_time("a waiter returns", waiter).expect("the count is there");
        }
    });
    assert_eq!(stock.available().expect("the server answers"), 0);
}

/// The next round begins before a waiter of the first one looks.
#[test]
fn a_waiter_returns_although_the_next_round_has_begun() {
    let server = Server::start();
    let client = polling(&server);
    let latch = client.latch("a");
    // Redisson sets a count without a number of the round.
    let redisson_sets = || server.ask::<()>(&["SET", "a", "1"]);
    let this_library_sets = || assert!(latch.try_set_count(1).expect("it is open"));
    let first_rounds: [&dyn Fn(); 2] = [&redisson_sets, &this_library_sets];
    for (number, begin) in (1..).zip(first_rounds) {
        begin();
        thread::scope(|scope| {
            let waiters = [(); 2].map(|()| scope.spawn(|| latch.wait()));
            eventually("both wait", || client.stats().waiting_now() == 2);
            // In one step and without a message, so that no look falls between.
            let round = format!("redis.call('set', '{ROUND}', {number})");
            server.ask::<()>(&["EVAL", &format!("redis.call('set', 'a', 7) {round}"), "0"]);
            for waiter in waiters {
                in_time("a waiter returns", waiter).expect("its round has ended");
            }
        });
        assert_eq!(latch.count().expect("the server answers"), 7);
        assert!(!latch.wait_for(3 * SOON).expect("the server answers"), "the next round goes on");
        assert!(latch.delete().expect("the server answers"));
    }
}

/// After a day without a count the server forgets the number of the round.
#[test]
fn a_waiter_stays_when_the_number_of_its_round_expires() {
    let server = Server::start();
    let client = polling(&server);
    let latch = client.latch("a");
    assert!(latch.try_set_count(1).expect("it is open"));
    let ttl: i64 = server.ask(&["PTTL", ROUND]);
    assert!(ttl > 23 * 3600 * 1000, "{ttl} ms");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| latch.wait());
        waits(&server);
        assert_eq!(server.ask::<u32>(&["DEL", ROUND]), 1);
        let before = server.calls("mget");
        eventually("the latch is polled", || server.calls("mget") > before + 2);
        assert!(!waiter.is_finished(), "the count is 1");
        latch.count_down().expect("the server answers");
        in_time("the waiter returns", waiter).expect("the latch is open");
    });
}

#[test]
fn the_deletion_opens_the_latch() {
    let server = Server::start();
    let (client, other) = (client(&server), other(&server));
    let latch = client.latch("a");
    assert!(latch.try_set_count(9).expect("it is open"));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| latch.wait());
        waits(&server);
        assert_eq!(latch.waiting().expect("the server answers").processes(), 1);
        assert!(other.latch("a").delete().expect("the server answers"));
        in_time("the waiter returns", waiter).expect("the latch is open");
    });
    assert!(!latch.delete().expect("the server answers"), "there is no count");
    drop((client, other, latch));
    nothing_is_left(&server);
}

#[test]
fn a_guard_counts_down_when_it_is_dropped() {
    let server = Server::start();
    let client = client(&server);
    let latch = client.latch("a");
    assert!(latch.try_set_count(3).expect("it is open"));
    let [first, by_panic, after_close] = [(); 3].map(|()| latch.count_down_on_drop());
    assert_eq!(latch.count().expect("the server answers"), 3);
    drop(first);
    eventually("the guard counts", || latch.count().expect("the server answers") == 2);
    let panics = move || {
        let _done = by_panic;
        panic!("this is expected");
    };
    assert!(thread::spawn(panics).join().is_err());
    eventually("the guard counts", || latch.count().expect("the server answers") == 1);
    client.close();
    drop(after_close);
    let other = other(&server);
    eventually("the guard counts", || other.latch("a").count().expect("an answer") == 0);
    drop((client, latch, other));
    nothing_is_left(&server);
}

#[test]
fn a_token_and_the_close_end_waits() {
    let server = Server::start();
    let (stop, client) = (CancelToken::new(), client(&server));
    let latch = client.latch("a");
    assert!(latch.try_set_count(1).expect("it is open"));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| latch.clone().with_cancel(&stop).wait());
        waits(&server);
        stop.cancel();
        let error = in_time("the waiter returns", waiter).expect_err("the wait was cancelled");
        assert!(error.is_cancelled() && error.lock_name() == Some("a"), "{error}");
        let cancelled = latch.clone().with_cancel(&stop);
        assert!(cancelled.wait_for(Duration::ZERO).is_err_and(|error| error.is_cancelled()));
        cancelled.count().expect("a token ends only waits");
        let waiter = scope.spawn(|| latch.wait());
        eventually("the call waits", || client.stats().waiting_now() == 1);
        client.close();
        let error = in_time("the waiter returns", waiter).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
    });
    for outcome in [latch.count_down(), latch.try_set_count(1).map(drop), latch.wait()] {
        assert!(outcome.is_err_and(|error| error.is_closed()));
    }
}

#[test]
fn waits_are_reported_and_counted() {
    let server = Server::start();
    let (client, waits) = (client(&server), Arc::new(WaitLog::default()));
    let latch: CountDownLatch = client.latch("a").with_events(waits.clone()).with_label("loads");
    assert!(latch.try_set_count(1).expect("it is open"));
    assert!(!latch.wait_for(3 * SOON).expect("the server answers"));
    let event = waits.only();
    assert_eq!((&*event.name, event.kind, event.hold), ("a", Kind::Latch, None));
    assert!(!event.acquired && event.waited >= SOON, "{event:?}");
    let stats = client.stats();
    assert_eq!((stats.timed_out(), stats.contended(), stats.waiting_now()), (1, 1, 0));
    latch.count_down().expect("the server answers");
    latch.wait().expect("it is open");
    assert_eq!(client.stats().contended(), 1, "the last call did not wait");
}
