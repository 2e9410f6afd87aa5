//! Local hand-off: a hold passes from thread to thread of one process without a command.

use crate::harness::faults::BRISK;
use crate::harness::{
    ChildProcess, Server, StopsOnDrop, eventually, join, or_too_late, owner, process, sleeping,
};
use leasehold::{Builder, CancelToken, Client, Lock, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the settings of a client that sends only the commands of its calls: it does not announce
/// itself, and its polls come too late to affect a test.
fn settings(server: &Server) -> Builder {
    Client::builder().single(server.url()).announce(false).poll_interval(MINUTE)
}

fn client(server: &Server, max_handoffs: u32, max_time: Duration) -> Client {
    let builder = settings(server).local_handoff(max_handoffs, max_time);
    builder.build().expect("the server answers")
}

/// Has this thread and then `waiters` queued threads hold the lock `a` in turn.
///
/// Returns the owner field of each holder, and the number of script calls from the first release.
fn relay(server: &Arc<Server>, client: &Client, waiters: usize) -> Result<(Vec<String>, u64)> {
    static RELAYS: AtomicUsize = AtomicUsize::new(0);
    let relay = RELAYS.fetch_add(1, Ordering::Relaxed);
    client.lock("a").lock()?.unlock()?; // the server knows the scripts from here on
    let guard = client.lock("a").lock()?;
    let owners = Arc::new(Mutex::new(vec![owner(server, "a")]));
    let threads: Vec<_> = (0..waiters)
        .map(|number| {
            let (server, lock) = (Arc::clone(server), client.lock("a"));
            let owners = Arc::clone(&owners);
            sleeping(&format!("relay-{relay}-{number}"), move || {
                let guard = lock.lock()?;
                assert!(
                    lock.hold_count() == 1 && lock.try_lock()?.is_some(),
                    "the thread re-enters"
                );
                owners.lock().expect("no thread panics").push(owner(&server, "a"));
                guard.unlock()?;
                assert_eq!(lock.hold_count(), 0);
                Result::Ok(())
            })
        })
        .collect();
    server.reset_stats();
    guard.unlock()?;
    threads.into_iter().try_for_each(join)?;
    assert!(server.keys().is_empty());
    let owners = owners.lock().expect("no thread panics").clone();
    Ok((owners, server.calls("evalsha")))
}

/// Returns the lengths of the runs of equal neighbours.
fn runs(owners: &[String]) -> Vec<usize> {
    owners.chunk_by(|a, b| a == b).map(<[String]>::len).collect()
}

/// A hand-off leaves the next caller asleep. A poll wakes it, so that it asks, and listens, although
/// the present holder keeps the lock.
#[test]
fn a_caller_behind_a_hold_that_was_handed_off_asks_the_server() -> Result<()> {
    let server = Server::start();
    let builder = settings(&server).poll_interval(Duration::from_millis(500));
    let client = builder.local_handoff(100, MINUTE).build()?;
    let guard = client.lock("a").lock()?;
    let (takes, taken) = mpsc::channel();
    let waiters = [(); 2].map(|()| {
        let (lock, takes) = (client.lock("a"), takes.clone());
        thread::spawn(move || {
            let guard = lock.lock()?;
            let (ends, end) = mpsc::channel::<()>();
            takes.send(ends).expect("the test receives");
            let _ = end.recv();
            guard.unlock()
        })
    });
    eventually("both wait", || client.stats().waiting_now() == 2);
    guard.unlock()?;
    let holds = taken.recv_timeout(MINUTE).expect("one of them has the lock");
    assert_eq!(client.stats().passed_locally(), 1);
    eventually("the other one listens", || server.numsub("redisson_lock__channel:{a}") == 1);
    drop(holds);
    drop(taken.recv_timeout(MINUTE).expect("the other one has the lock"));
    waiters.into_iter().try_for_each(join)
}

#[test]
fn no_hold_is_handed_off_if_hand_off_is_turned_off() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 0, MINUTE);
    let (owners, calls) = relay(&server, &client, 4)?;
    assert_eq!(runs(&owners), [1; 5]);
    assert_eq!(calls, 9, "five releases and four more acquisitions");
    Ok(())
}

#[test]
fn a_hold_passes_through_the_queue_without_a_command() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    let (owners, calls) = relay(&server, &client, 10)?;
    assert_eq!(runs(&owners), [11]);
    assert_eq!(calls, 1, "the release at the end");
    Ok(())
}

#[test]
fn a_hold_is_released_after_the_maximum_number_of_hand_offs() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 3, MINUTE);
    let (owners, calls) = relay(&server, &client, 9)?;
    assert_eq!(runs(&owners), [4, 4, 2]);
    assert_eq!(calls, 5, "three releases and two more acquisitions");
    Ok(())
}

#[test]
fn a_hold_is_released_after_the_maximum_time_of_hand_offs() -> Result<()> {
    let server = Arc::new(Server::start());
    let max_time = Duration::from_millis(50);
    let client = client(&server, 1000, max_time);
    let start = Instant::now();
    let guard = client.lock("a").lock()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, client.lock("a"), "past-max-time");
    eventually("the maximum time is over", || start.elapsed() > 2 * max_time);
    guard.unlock()?;
    assert_ne!(join(next)?, first);
    Ok(())
}

/// Starts a thread that takes and releases the lock `a`, and returns its owner field.
pub(crate) fn next_owner(
    server: &Arc<Server>,
    lock: Lock,
    thread: &str,
) -> JoinHandle<Result<String>> {
    let server = Arc::clone(server);
    sleeping(thread, move || {
        let guard = lock.lock()?;
        let owner = owner(&server, "a");
        guard.unlock().map(|()| owner)
    })
}

#[test]
fn a_hold_with_less_than_half_of_its_lease_is_not_handed_off() -> Result<()> {
    let server = Arc::new(Server::start());
    let builder = settings(&server).watchdog_timeout(2 * BRISK);
    let client = builder.local_handoff(1000, MINUTE).build()?;
    let guard = client.lock("a").lock()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, client.lock("a"), "too-little-left");
    server.stop(); // renewals fail
    eventually("less than half is left", || guard.remaining() < BRISK);
    assert!(guard.is_held());
    drop(guard);
    server.resume();
    assert_ne!(join(next)?, first);
    Ok(())
}

#[test]
fn a_caller_with_a_fixed_lease_neither_gives_nor_takes_a_hand_off() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    for (number, leases) in [(0, [Some(MINUTE), None]), (1, [None, Some(2 * MINUTE)])] {
        let [ours, theirs] = leases.map(|lease| match lease {
            Some(lease) => client.lock("a").with_lease(lease),
            None => client.lock("a"),
        });
        let guard = ours.lock()?;
        let first = owner(&server, "a");
        let ask = Arc::clone(&server);
        let next = sleeping(&format!("fixed-{number}"), move || {
            let guard = theirs.lock()?;
            let second = owner(&ask, "a");
            let left: u64 = ask.ask(&["PTTL", "a"]);
            guard.unlock().map(|()| (second, left))
        });
        guard.unlock()?;
        let (second, left) = join(next)?;
        assert_ne!(second, first);
        let wanted = leases[1].unwrap_or(MINUTE / 2);
        assert!(left > wanted.as_millis() as u64 / 2, "{left} ms of {wanted:?}");
    }
    Ok(())
}

#[test]
fn a_hold_passes_between_guards_and_owned_guards() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    let owned = client.lock("a").lock_owned()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, client.lock("a"), "thread-of-owned");
    owned.unlock()?;
    assert_eq!(join(next)?, first);

    let guard = client.lock("a").lock()?;
    let first = owner(&server, "a");
    let lock = client.lock("a");
    let next = sleeping("owned-of-thread", move || lock.lock_owned());
    drop(guard);
    let owned = join(next)?; // the thread of the guard has ended
    assert_eq!(owner(&server, "a"), first);
    assert!(owned.is_held() && !client.lock("a").is_held());
    owned.unlock()?;
    assert!(server.keys().is_empty());
    Ok(())
}

#[test]
fn a_hold_is_handed_off_when_its_last_guard_ends() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    let lock = client.lock("a");
    let (outer, inner) = (lock.lock()?, lock.lock()?);
    lock.lock()?.detach();
    let first = owner(&server, "a");
    let next = next_owner(&server, client.lock("a"), "behind-nested");
    drop(outer);
    lock.unlock()?;
    assert!(!next.is_finished() && inner.is_held() && lock.hold_count() == 1);
    inner.unlock()?;
    assert_eq!(join(next)?, first);
    Ok(())
}

#[test]
fn a_handed_off_hold_is_renewed_after_the_end_of_its_former_thread() -> Result<()> {
    let server = Server::start();
    let builder = settings(&server).watchdog_timeout(BRISK);
    let client = builder.local_handoff(1000, MINUTE).build()?;
    let lock = client.lock("a");
    let (holds, held) = mpsc::channel();
    let (frees, freed) = mpsc::channel::<()>();
    let old = thread::spawn(move || {
        let guard = lock.lock()?;
        holds.send(()).expect("the test listens");
        freed.recv().expect("the test sends a signal");
        guard.unlock()
    });
    held.recv().expect("the old thread holds");
    let first = owner(&server, "a");
    let lock = client.lock("a");
    let (takes, taken) = mpsc::channel();
    let new = sleeping("new-holder", move || {
        let guard = lock.lock()?;
        takes.send(()).expect("the test listens");
        Result::Ok(guard.wait_lost(3 * BRISK))
    });
    frees.send(()).expect("the old thread listens");
    join(old)?;
    taken.recv().expect("the new thread holds");
    assert_eq!(owner(&server, "a"), first);
    assert!(!join(new)?, "the lease was not renewed");
    eventually("the lock is free", || server.keys().is_empty());
    Ok(())
}

#[test]
fn deadlines_and_cancellations_during_a_hand_off_leave_no_hold() -> Result<()> {
    let server = Server::start();
    let client = client(&server, 1000, MINUTE);
    let run = |seed: u64| {
        let client = client.clone();
        thread::spawn(move || {
            for turn in 0..150 {
                let wait = Duration::from_micros((seed * 977 + turn * 461) % 1500);
                let token = CancelToken::new();
                let lock = client.lock("a").with_cancel(&token);
                let canceller = (turn % 5 == 0).then(|| thread::spawn(move || token.cancel()));
                match or_too_late(lock.try_lock_for(wait)) {
                    Ok(Some(guard)) if turn % 2 == 0 => guard.unlock()?,
                    Ok(guard) => drop(guard),
                    Err(error) => assert!(error.is_cancelled(), "{error:?}"),
                }
                if let Some(canceller) = canceller {
                    canceller.join().expect("no panic");
                }
            }
            Result::Ok(())
        })
    };
    let threads: Vec<_> = (0..8).map(run).collect();
    threads.into_iter().try_for_each(join)?;
    eventually("the lock is free", || server.keys().is_empty());
    client.lock("a").try_lock()?.expect("the queue is empty").unlock()
}

/// Waits for the lock `a` and reports how often others counted during the wait.
#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    assert_eq!(role.name(), "wait for the lock");
    let builder = Client::builder().single(role.arg(0)).poll_interval(MINUTE);
    let client = builder.build().expect("the server answers");
    let mut server = redis::Client::open(role.arg(0)).expect("a good URL");
    let mut count = || redis::cmd("GET").arg("count").query::<usize>(&mut server).expect("a count");
    let before = count();
    let guard = client.lock("a").lock().expect("the lock is free");
    let meanwhile = count() - before;
    guard.unlock().expect("the lock is held");
    role.say(&meanwhile.to_string());
}

/// Counts the holds of this process while another process waits for the lock.
fn count_before_another_process(max_handoffs: u32, max_time: Duration) -> usize {
    let server = Server::start();
    let here = client(&server, max_handoffs, max_time);
    let stop = AtomicBool::new(false);
    let take_turns = || {
        let (lock, mut server) = (here.lock("a"), server.connection());
        while !stop.load(Ordering::Relaxed) {
            let guard = lock.lock().expect("the server answers");
            let _: usize = redis::cmd("INCR").arg("count").query(&mut server).expect("a number");
            drop(guard);
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(take_turns);
        }
        let _stops = StopsOnDrop(&stop);
        let count = || server.ask::<Option<usize>>(&["GET", "count"]).unwrap_or(0);
        eventually("the threads take turns", || count() > 100);
        let mut child =
            ChildProcess::start("hand_off::child_entry", "wait for the lock", &[&server.url()]);
        let meanwhile = child.next_line().parse().expect("a number");
        child.wait();
        meanwhile
    })
}

#[test]
fn another_process_gets_the_lock_despite_hand_offs_limited_by_count() {
    let before = count_before_another_process(50, MINUTE);
    println!("{before} holds before the other process");
    // A run is 51 holds. On a busy machine the message of a release may arrive late.
    assert!(before <= 10 * 51, "{before} holds before the other process");
}

#[test]
fn another_process_gets_the_lock_despite_hand_offs_limited_by_time() {
    let before = count_before_another_process(u32::MAX, Duration::from_millis(5));
    println!("{before} holds before the other process");
}

#[test]
fn another_client_gets_the_lock_before_the_end_of_a_long_queue() -> Result<()> {
    const QUEUE: usize = 120;
    let server = Arc::new(Server::start());
    let (here, there) = (client(&server, 3, MINUTE), settings(&server).build()?);
    let guard = here.lock("a").lock()?;
    let before = Arc::new(AtomicUsize::new(0));
    let queue: Vec<_> = (0..QUEUE)
        .map(|number| {
            let (lock, before) = (here.lock("a"), Arc::clone(&before));
            sleeping(&format!("in-queue-{number}"), move || {
                let guard = lock.lock()?;
                before.fetch_add(1, Ordering::Relaxed);
                guard.unlock()
            })
        })
        .collect();
    let lock = there.lock("a");
    let count = Arc::clone(&before);
    let other = thread::spawn(move || {
        let guard = lock.lock()?;
        let before = count.load(Ordering::Relaxed);
        guard.unlock().map(|()| before)
    });
    eventually("the other client subscribes", || server.numsub("redisson_lock__channel:{a}") == 1);
    guard.unlock()?;
    let before = join(other)?;
    queue.into_iter().try_for_each(join)?;
    println!("{before} of {QUEUE} threads came before the other client");
    // The process yields once per four holds. On a busy machine the other client misses some
    // yields.
    assert!(before < QUEUE, "all threads came before the other client");
    Ok(())
}
