//! `Client::stats`: each number by a scenario, exact under many threads.

use crate::harness::faults::BRISK;
use crate::harness::{Server, eventually, join, sleeping};
use leasehold::kind::LockKind;
use leasehold::{
    Acquired, CancelToken, Client, Events, Lock, LostReason, MultiLock, QueueLock, RedLock, Result,
    Stats,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn client(server: &Server) -> Client {
    Client::builder().single(server.url()).watchdog_timeout(MINUTE).build().expect("it answers")
}

/// Checks the equations of the documentation.
#[track_caller]
fn assert_adds_up(stats: &Stats) {
    let lost = stats.lost(LostReason::Expired) + stats.lost(LostReason::Gone);
    assert_eq!(lost, stats.lost_in_total());
    assert_eq!(
        stats.acquired() + stats.released_after_expiry(),
        stats.released() + lost + stats.held_now(),
        "{stats:#?}"
    );
    assert_eq!(stats.contended(), stats.wait_time().count() + stats.waiting_now(), "{stats:#?}");
    assert_eq!(stats.released(), stats.hold_time().count(), "{stats:#?}");
}

/// Returns the statistics of a client without holds and calls.
#[track_caller]
fn at_rest(client: &Client) -> Stats {
    let stats = client.stats();
    assert_adds_up(&stats);
    assert_eq!((stats.held_now(), stats.waiting_now()), (0, 0), "{stats:#?}");
    stats
}

/// Returns the numbers of holds: acquired, passed locally, released, lost.
fn holds(stats: &Stats) -> [u64; 4] {
    [stats.acquired(), stats.passed_locally(), stats.released(), stats.lost_in_total()]
}

/// Returns the outcomes of calls: refused, timed out, cancelled; and how many calls waited.
fn calls(stats: &Stats) -> [u64; 4] {
    [stats.refused(), stats.timed_out(), stats.cancelled(), stats.contended()]
}

#[test]
fn holds_count_and_nested_guards_do_not() -> Result<()> {
    let server = Server::start();
    let (client, idle) = (client(&server), client(&server));
    let lock = client.lock("a");
    let began = Instant::now();
    let guard = lock.lock()?;
    let granted = Instant::now();
    let (nested, tried) = (lock.lock()?, lock.try_lock()?);
    assert_eq!((client.stats().held_now(), holds(&client.stats())), (1, [1, 0, 0, 0]));
    drop((nested, tried));
    assert_eq!((client.stats().held_now(), holds(&client.stats())), (1, [1, 0, 0, 0]));
    thread::sleep(SHORT);
    let held = granted.elapsed();
    guard.unlock()?;
    let all = began.elapsed();
    let stats = at_rest(&client);
    assert_eq!((holds(&stats), calls(&stats)), ([1, 0, 1, 0], [0; 4]));
    let hold_time = stats.hold_time();
    assert!(held <= hold_time.sum() && hold_time.sum() <= all, "{hold_time:?}");
    assert!(hold_time.quantile(0.5).is_some_and(|p50| p50 >= hold_time.sum()));
    let round_trip = stats.round_trip();
    assert!(round_trip.count() == 1 && round_trip.sum() <= all, "{round_trip:?}");
    drop(lock.lock_owned()?);
    let stats = at_rest(&client);
    assert_eq!((holds(&stats), stats.round_trip().count()), ([2, 0, 2, 0], 2));
    assert_eq!((holds(&at_rest(&idle)), calls(&at_rest(&idle))), ([0; 4], [0; 4]));
    Ok(())
}

#[test]
fn calls_without_the_lock_count_by_their_end() -> Result<()> {
    let server = Server::start();
    let (client, other) = (client(&server), client(&server));
    let guard = other.lock("a").lock_owned()?;
    let lock = client.lock("a");
    assert!(lock.try_lock()?.is_none());
    assert!(other.lock("a").try_lock_owned()?.is_none(), "refused without a round trip");
    assert_eq!(calls(&client.stats()), [1, 0, 0, 0]);
    assert_eq!(calls(&other.stats()), [1, 0, 0, 0]);
    assert!(lock.try_lock_for(SHORT)?.is_none());
    let stats = at_rest(&client);
    assert_eq!(calls(&stats), [1, 1, 0, 1]);
    assert!(stats.wait_time().sum() >= SHORT, "{stats:?}");
    let token = CancelToken::new();
    let cancelled = lock.clone().with_cancel(&token);
    let waiter = thread::spawn(move || cancelled.lock().map(drop));
    eventually("the call waits", || client.stats().waiting_now() == 1);
    assert_eq!(calls(&client.stats()), [1, 1, 0, 2]);
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    assert!(lock.clone().with_cancel(&token).try_lock().is_err());
    assert_eq!(calls(&at_rest(&client)), [1, 1, 2, 2]);
    let closed = lock.clone();
    let waiter = thread::spawn(move || closed.lock().map(drop));
    eventually("the call waits", || client.stats().waiting_now() == 1);
    client.close();
    assert!(join(waiter).is_err_and(|error| error.is_closed()));
    assert!(lock.lock().is_err());
    let stats = at_rest(&client);
    assert_eq!((calls(&stats), holds(&stats)), ([1, 1, 2, 3], [0; 4]));
    drop(guard);
    assert_eq!(holds(&at_rest(&other)), [1, 0, 1, 0]);
    Ok(())
}

#[test]
fn a_hand_off_is_not_an_acquisition() -> Result<()> {
    let server = Server::start();
    let builder = Client::builder().single(server.url()).local_handoff(512, MINUTE);
    let client = builder.build()?;
    let lock = client.lock("a");
    let guard = lock.lock()?;
    let waiter = sleeping("next", {
        let lock = lock.clone();
        move || lock.lock().and_then(|guard| guard.unlock())
    });
    guard.unlock()?;
    join(waiter)?;
    let stats = at_rest(&client);
    assert_eq!((holds(&stats), calls(&stats)), ([1, 1, 1, 0], [0, 0, 0, 1]));
    Ok(())
}

#[test]
fn losses_count_by_their_reason() -> Result<()> {
    let server = Server::start();
    let (client, other) = (client(&server), client(&server));
    let lost = |stats: &Stats| [LostReason::Expired, LostReason::Gone].map(|by| stats.lost(by));
    let after = |stats: &Stats| (stats.released(), stats.released_after_expiry());

    let guard = client.lock("a").with_lease(SHORT).lock()?;
    eventually("the lease expires", || client.stats().held_now() == 0);
    assert_eq!((lost(&client.stats()), after(&client.stats())), ([1, 0], (0, 0)));
    drop(guard);
    let stats = at_rest(&client);
    assert_eq!((lost(&stats), after(&stats)), ([1, 0], (1, 1)));

    // The release finds the loss.
    let guard = client.lock("a").lock()?;
    assert!(other.lock("a").force_unlock()?);
    assert_eq!(client.stats().held_now(), 1);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    let stats = at_rest(&client);
    assert_eq!((lost(&stats), after(&stats)), ([1, 1], (2, 2)));

    let guard = client.lock("a").lock()?;
    assert!(client.lock("a").force_unlock()?);
    assert_eq!((lost(&client.stats()), client.stats().held_now()), ([1, 2], 0));
    assert!(guard.unlock().is_err());
    let stats = at_rest(&client);
    assert_eq!((lost(&stats), after(&stats)), ([1, 2], (3, 3)));
    assert_eq!(holds(&at_rest(&other)), [0; 4]);
    Ok(())
}

#[test]
fn a_detached_hold_counts_as_held_until_unlock_or_the_end_of_its_lease() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    lock.lock()?.detach();
    assert_eq!(client.stats().held_now(), 1);
    lock.unlock()?;
    assert_eq!(holds(&at_rest(&client)), [1, 0, 1, 0]);
    client.lock("b").with_lease(SHORT).lock_owned()?.detach();
    assert_eq!(client.stats().held_now(), 1);
    eventually("the lease ends", || client.stats().held_now() == 0);
    let stats = at_rest(&client);
    assert_eq!((holds(&stats), stats.released_after_expiry()), ([2, 0, 1, 1], 0));
    Ok(())
}

#[test]
fn a_closed_client_still_counts_releases_and_losses() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let guard = client.lock("a").lock()?;
    client.lock("b").with_lease(10 * SHORT).lock()?.detach();
    client.close();
    assert_eq!(client.stats().held_now(), 2);
    guard.unlock()?;
    eventually("the lease ends", || client.stats().held_now() == 0);
    assert_eq!(holds(&at_rest(&client)), [2, 0, 1, 1]);
    Ok(())
}

#[test]
fn renewals_their_failures_and_their_lag_are_counted() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).watchdog_timeout(BRISK).build()?;
    let locks = ["a", "b"].map(|name| client.lock(name));
    let [a, b] = [locks[0].lock()?, locks[1].lock()?];
    eventually("both leases are renewed", || client.stats().renewals() >= 4);
    let stats = client.stats();
    assert!(stats.renewal_lag().quantile(0.0).is_some_and(|lag| lag < BRISK), "{stats:?}");
    assert_eq!(stats.renewal_failures(), 0);
    let fixed = client.lock("c").with_lease(MINUTE).lock()?;
    server.stop();
    eventually("a renewal fails", || client.stats().renewal_failures() > 0);
    server.resume();
    drop((a, b));
    fixed.unlock()?;
    eventually("nothing is held", || client.stats().held_now() == 0);
    let stats = at_rest(&client);
    assert_eq!(stats.renewal_lag().count(), stats.renewals());
    Ok(())
}

#[test]
fn replaced_connections_are_counted() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    lock.lock()?.unlock()?;
    assert_eq!(client.stats().reconnects(), 0);
    assert!(server.client_kill_type("normal") > 0);
    eventually("the client reconnects", || {
        let taken = lock.try_lock();
        taken.is_ok() && client.stats().reconnects() > 0
    });
    assert!(holds(&at_rest(&client))[0] >= 1);
    Ok(())
}

fn one_pair<K: LockKind>(client: &Client, lock: &Lock<K>) -> Result<()> {
    let before = holds(&at_rest(client));
    lock.lock()?.unlock()?;
    let after = holds(&at_rest(client));
    assert_eq!(after, [before[0] + 1, 0, before[2] + 1, 0], "{lock:?}");
    Ok(())
}

#[test]
fn the_holds_of_every_kind_are_counted() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let rw = client.rw_lock("a");
    one_pair(&client, &client.lock("a"))?;
    one_pair(&client, &client.lock("a").with_holder("tx"))?;
    one_pair(&client, &client.fair_lock("a"))?;
    one_pair(&client, &client.fenced_lock("a"))?;
    one_pair(&client, &client.queue_lock("a"))?;
    one_pair(&client, &client.spin_lock("a"))?;
    one_pair(&client, &rw.read_lock())?;
    one_pair(&client, &rw.write_lock())?;
    let readers = [rw.read_lock().lock_owned()?, rw.read_lock().lock_owned()?];
    assert_eq!(client.stats().held_now(), 2);
    assert!(rw.write_lock().try_lock_owned()?.is_none());
    drop(readers);
    assert_eq!(calls(&at_rest(&client)), [1, 0, 0, 0]);
    let writer = rw.write_lock().lock()?;
    let reader = rw.read_lock().lock()?;
    assert_eq!(client.stats().held_now(), 2, "the writer reads by a hold of its own");
    drop((reader, writer));
    let fair = client.fair_lock("f");
    let guard = fair.lock_owned()?;
    assert!(fair.try_lock_for(SHORT)?.is_none());
    assert_eq!(calls(&client.stats()), [1, 1, 0, 1]);
    guard.unlock()?;
    assert_eq!(at_rest(&client).lost_in_total(), 0);
    Ok(())
}

#[test]
fn the_waits_for_a_queue_lock_are_counted() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let lock = client.queue_lock("a");
    let guard = lock.lock_owned()?;
    assert!(lock.try_lock_for(SHORT)?.is_none());
    assert_eq!(calls(&client.stats()), [0, 1, 0, 1]);
    let waiters = [lock.clone(), lock.clone()];
    let wait = |lock: QueueLock| thread::spawn(move || lock.lock()?.unlock());
    let waiters = waiters.map(wait);
    eventually("both wait", || client.stats().waiting_now() == 2);
    guard.unlock()?;
    waiters.into_iter().try_for_each(join)?;
    let stats = at_rest(&client);
    assert_eq!((stats.waiting_now(), stats.held_now(), stats.lost_in_total()), (0, 0, 0));
    assert_eq!((holds(&stats)[0], holds(&stats)[2]), (3, 3));
    Ok(())
}

#[test]
fn a_multi_lock_counts_its_members_as_holds_and_its_calls_once_for_each_client() -> Result<()> {
    let server = Server::start();
    let [one, two, other] = [0; 3].map(|_| client(&server));
    let lock = MultiLock::new([one.lock("a"), one.lock("b"), two.lock("c")]);
    let guard = lock.lock()?;
    drop(lock.lock()?);
    assert_eq!([&one, &two].map(|client| client.stats().held_now()), [2, 1]);
    guard.unlock()?;
    assert_eq!([&one, &two].map(|client| at_rest(client).acquired()), [2, 1]);
    assert_eq!(at_rest(&one).round_trip().count(), 1, "one command for both members");
    let taken = other.lock("c").lock_owned()?;
    assert!(lock.try_lock()?.is_none());
    assert!(lock.try_lock_for(SHORT)?.is_none());
    for client in [&one, &two] {
        assert_eq!(calls(&at_rest(client)), [1, 1, 0, 1]);
    }
    let token = CancelToken::new();
    let cancelled = lock.with_cancel(&token);
    let waiter = thread::spawn(move || cancelled.lock().map(drop));
    let waits = |client: &Client| client.stats().waiting_now() == 1;
    eventually("the call waits", || waits(&one) && waits(&two));
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    for client in [&one, &two] {
        let stats = at_rest(client);
        assert_eq!(calls(&stats), [1, 1, 1, 2]);
        assert!(stats.wait_time().sum() >= SHORT, "{stats:?}");
    }
    drop(taken);
    assert_eq!(calls(&at_rest(&other)), [0; 4]);
    Ok(())
}

#[test]
fn a_red_lock_counts_its_holds_and_calls_with_each_client() -> Result<()> {
    let servers = [0; 3].map(|_| Server::start());
    let clients = servers.each_ref().map(client);
    let each = |number: fn(&Stats) -> u64| clients.each_ref().map(|of| number(&of.stats()));
    let lock = RedLock::new(clients.clone(), "a");
    let (guard, nested) = (lock.lock()?, lock.lock()?);
    // A late grant of the third server is adopted.
    eventually("all servers grant", || each(Stats::held_now) == [1; 3]);
    drop((nested, guard));
    eventually("nothing is held", || each(Stats::held_now) == [0; 3]);
    for client in &clients {
        assert_eq!(holds(&at_rest(client)), [1, 0, 1, 0]);
    }
    let guard = lock.lock_owned()?;
    eventually("all servers grant", || each(Stats::held_now) == [1; 3]);
    assert!(lock.try_lock_owned()?.is_none());
    let waiter = thread::spawn(move || lock.lock().and_then(|guard| guard.unlock()));
    eventually("the call waits", || each(Stats::waiting_now) == [1; 3]);
    guard.unlock()?;
    join(waiter)?;
    // The waiter may still get a late grant, which is then released.
    let is_done = |stats: Stats| stats.held_now() == 0 && stats.acquired() == stats.released();
    eventually("all is released", || clients.iter().all(|client| is_done(client.stats())));
    for client in &clients {
        let stats = client.stats();
        assert_eq!((calls(&stats), stats.lost_in_total()), ([1, 0, 0, 1], 0));
    }
    Ok(())
}

/// Blocks the events thread until the test ends.
struct Blocked(Mutex<Receiver<()>>);

impl Events for Blocked {
    fn acquired(&self, _: &Acquired) {
        // The test drops the sender.
        let _ = self.0.lock().expect("no thread panics").recv();
    }
}

/// The outcomes that the threads of a test have seen.
#[derive(Default)]
struct Seen {
    taken: AtomicU64,
    refused: AtomicU64,
    timed_out: AtomicU64,
    /// Calls whose time ended before the server answered.
    failed: AtomicU64,
}

impl Seen {
    /// Makes one call, and releases the lock if the call took it.
    fn call(&self, lock: &Lock, number: usize) -> Result<()> {
        let (outcome, missed) = match number % 3 {
            0 => (lock.lock().map(Some), &self.timed_out),
            1 => (lock.try_lock(), &self.refused),
            _ => (lock.try_lock_for(Duration::from_millis(1)), &self.timed_out),
        };
        let count = match &outcome {
            Ok(Some(_)) => &self.taken,
            Ok(None) => missed,
            Err(error) if error.is_timeout() => &self.failed,
            Err(error) => return Err(error.clone()),
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn counts(&self) -> [u64; 4] {
        let counts = [&self.taken, &self.refused, &self.timed_out, &self.failed];
        counts.map(|count| count.load(Ordering::Relaxed))
    }
}

#[test]
fn counters_are_exact_under_64_threads_and_with_a_full_queue_of_events() -> Result<()> {
    const THREADS: usize = 64;
    /// A third of the calls take a lock in any case: more events than the queue has places.
    const CALLS: usize = 210;
    const NAMES: usize = 24;
    let server = Server::start();
    let (end, blocked) = mpsc::channel();
    let builder = Client::builder().single(server.url()).events(Blocked(Mutex::new(blocked)));
    let (client, seen) = (builder.build()?, Arc::new(Seen::default()));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (client, seen) = (client.clone(), Arc::clone(&seen));
            thread::spawn(move || {
                (0..CALLS).try_for_each(|call| {
                    let name = format!("{}", (7 * thread + call) % NAMES);
                    seen.call(&client.lock(name), call)
                })
            })
        })
        .collect();
    threads.into_iter().try_for_each(join)?;
    let stats = at_rest(&client);
    let [taken, refused, timed_out, failed] = seen.counts();
    assert_eq!(taken + refused + timed_out + failed, (THREADS * CALLS) as u64);
    assert_eq!((stats.refused(), stats.timed_out()), (refused, timed_out));
    // A call that gives up takes a hold that is handed to it meanwhile; a failed call does not.
    let grants = stats.acquired() + stats.passed_locally();
    assert!(taken <= grants && grants <= taken + failed, "{taken}, {failed}: {stats:#?}");
    assert_eq!((stats.acquired(), stats.lost_in_total()), (stats.released(), 0));
    drop(end);
    Ok(())
}

#[test]
fn pairs_of_64_threads_are_counted_exactly() -> Result<()> {
    const THREADS: u64 = 64;
    const PAIRS: u64 = 50;
    let server = Server::start();
    let (client, other) = (client(&server), client(&server));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let lock = client.lock(format!("{number}"));
            thread::spawn(move || (0..PAIRS).try_for_each(|_| lock.lock().map(drop)))
        })
        .collect();
    other.lock("a").lock()?.unlock()?;
    threads.into_iter().try_for_each(join)?;
    let stats = at_rest(&client);
    assert_eq!((holds(&stats), calls(&stats)), ([THREADS * PAIRS, 0, THREADS * PAIRS, 0], [0; 4]));
    assert_eq!(stats.round_trip().count(), THREADS * PAIRS);
    assert_eq!(holds(&at_rest(&other)), [1, 0, 1, 0]);
    Ok(())
}
