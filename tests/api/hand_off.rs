//! Local hand-off: a hold passes from thread to thread of one process without a
//! command, within its bounds.

use crate::harness::process::{self, Role};
use crate::harness::{ChildProcess, Server, eventually, join, owner, sleeping};
use leasehold::{Builder, CancelToken, Client, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// A watchdog time-out of which some pass in a test, and of which no stall of a slow
/// machine takes two thirds.
const BRISK: Duration = Duration::from_millis(1500);

/// A client that polls so rarely that nothing can be explained by it.
fn settings(server: &Server) -> Builder {
    Client::builder().single(server.url()).poll_interval(MINUTE)
}

fn client(server: &Server, max_handoffs: u32, max_time: Duration) -> Client {
    let builder = settings(server).local_handoff(max_handoffs, max_time);
    builder.build().expect("the server answers")
}

/// The owner fields that a lock has while one thread after the other holds it: this
/// one, then `waiters` that stood in line; and the calls of scripts after the first.
fn relay(server: &Arc<Server>, client: &Client, waiters: usize) -> Result<(Vec<String>, u64)> {
    static RELAYS: AtomicUsize = AtomicUsize::new(0);
    let relay = RELAYS.fetch_add(1, Ordering::Relaxed);
    client.lock("a").lock()?.unlock()?; // the scripts are known from here on
    let guard = client.lock("a").lock()?;
    let owners = Arc::new(Mutex::new(vec![owner(server, "a")]));
    let threads: Vec<_> = (0..waiters)
        .map(|number| {
            let (server, lock) = (Arc::clone(server), client.lock("a"));
            let owners = Arc::clone(&owners);
            sleeping(&format!("relay-{relay}-{number}"), move || {
                let guard = lock.lock()?;
                assert!(lock.hold_count() == 1 && lock.try_lock()?.is_some(), "it re-enters");
                owners.lock().expect("nobody panics").push(owner(&server, "a"));
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
    let owners = owners.lock().expect("nobody panics").clone();
    Ok((owners, server.calls("evalsha")))
}

/// How long the runs of equal neighbours are.
fn runs(owners: &[String]) -> Vec<usize> {
    owners.chunk_by(|a, b| a == b).map(<[String]>::len).collect()
}

#[test]
fn no_hold_is_passed_if_it_is_turned_off() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 0, MINUTE);
    let (owners, asked) = relay(&server, &client, 4)?;
    assert_eq!(runs(&owners), [1; 5]);
    assert_eq!(asked, 9, "five releases and four more acquisitions, at the least");
    Ok(())
}

#[test]
fn a_hold_is_passed_along_the_line_without_a_command() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    let (owners, asked) = relay(&server, &client, 10)?;
    assert_eq!(runs(&owners), [11]);
    assert_eq!(asked, 1, "the release at the end");
    Ok(())
}

#[test]
fn a_hold_is_passed_as_often_as_allowed_and_then_released() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 3, MINUTE);
    let (owners, asked) = relay(&server, &client, 9)?;
    assert_eq!(runs(&owners), [4, 4, 2]);
    assert_eq!(asked, 5, "three releases and two more acquisitions");
    Ok(())
}

#[test]
fn a_hold_is_passed_for_as_long_as_allowed_and_then_released() -> Result<()> {
    let server = Arc::new(Server::start());
    let max_time = Duration::from_millis(50);
    let client = client(&server, 1000, max_time);
    let start = Instant::now();
    let guard = client.lock("a").lock()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, &client, "past-max-time");
    eventually("the time is over", || start.elapsed() > 2 * max_time);
    guard.unlock()?;
    assert_ne!(join(next)?, first);
    Ok(())
}

/// A thread in line for the lock `a`, and in the end the owner field that it had.
fn next_owner(server: &Arc<Server>, client: &Client, thread: &str) -> JoinHandle<Result<String>> {
    let (server, lock) = (Arc::clone(server), client.lock("a"));
    sleeping(thread, move || {
        let guard = lock.lock()?;
        let owner = owner(&server, "a");
        guard.unlock().map(|()| owner)
    })
}

#[test]
fn a_hold_with_less_than_half_of_its_lease_left_is_released_instead() -> Result<()> {
    let server = Arc::new(Server::start());
    let builder = settings(&server).watchdog_timeout(2 * BRISK);
    let client = builder.local_handoff(1000, MINUTE).build()?;
    let guard = client.lock("a").lock()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, &client, "too-little-left");
    server.stop(); // nobody renews
    eventually("less than half is left", || guard.remaining() < BRISK);
    assert!(guard.is_held());
    drop(guard);
    server.resume();
    assert_ne!(join(next)?, first);
    Ok(())
}

#[test]
fn fixed_leases_are_neither_passed_nor_passed_to() -> Result<()> {
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
fn a_hold_passes_between_guards_of_threads_and_owned_ones() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    let owned = client.lock("a").lock_owned()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, &client, "thread-of-owned");
    owned.unlock()?;
    assert_eq!(join(next)?, first);

    let guard = client.lock("a").lock()?;
    let first = owner(&server, "a");
    let lock = client.lock("a");
    let next = sleeping("owned-of-thread", move || lock.lock_owned());
    drop(guard);
    let owned = join(next)?; // its thread has ended
    assert_eq!(owner(&server, "a"), first);
    assert!(owned.is_held() && !client.lock("a").is_held());
    owned.unlock()?;
    assert!(server.keys().is_empty());
    Ok(())
}

#[test]
fn a_nested_guard_passes_nothing_before_the_last_one_ends() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = client(&server, 1000, MINUTE);
    let lock = client.lock("a");
    let (outer, inner) = (lock.lock()?, lock.lock()?);
    lock.lock()?.detach();
    let first = owner(&server, "a");
    let next = next_owner(&server, &client, "behind-nested");
    drop(outer);
    lock.unlock()?;
    assert!(!next.is_finished() && inner.is_held() && lock.hold_count() == 1);
    inner.unlock()?;
    assert_eq!(join(next)?, first);
    Ok(())
}

#[test]
fn a_passed_hold_is_renewed_for_its_new_thread_and_after_the_end_of_the_old_one() -> Result<()> {
    let server = Server::start();
    let builder = settings(&server).watchdog_timeout(BRISK);
    let client = builder.local_handoff(1000, MINUTE).build()?;
    let lock = client.lock("a");
    let (holds, held) = mpsc::channel();
    let (frees, freed) = mpsc::channel::<()>();
    let old = thread::spawn(move || {
        let guard = lock.lock()?;
        holds.send(()).expect("the test listens");
        freed.recv().expect("the test says when");
        guard.unlock()
    });
    held.recv().expect("the old thread holds");
    let first = owner(&server, "a");
    let lock = client.lock("a");
    let (takes, taken) = mpsc::channel();
    let new = sleeping("heir", move || {
        let guard = lock.lock()?;
        takes.send(()).expect("the test listens");
        Result::Ok(guard.wait_lost(3 * BRISK))
    });
    frees.send(()).expect("the old thread listens");
    join(old)?;
    taken.recv().expect("the new thread holds");
    assert_eq!(owner(&server, "a"), first);
    assert!(!join(new)?, "it was renewed all the time");
    eventually("it is released", || server.keys().is_empty());
    Ok(())
}

#[test]
fn deadlines_and_cancellations_in_the_moment_of_passing_leave_no_hold_behind() -> Result<()> {
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
                match lock.try_lock_for(wait) {
                    Ok(Some(guard)) if turn % 2 == 0 => guard.unlock()?,
                    Ok(guard) => drop(guard),
                    Err(error) => assert!(error.is_cancelled(), "{error:?}"),
                }
                canceller.map(JoinHandle::join).transpose().expect("no panic");
            }
            Result::Ok(())
        })
    };
    let threads: Vec<_> = (0..8).map(run).collect();
    threads.into_iter().try_for_each(join)?;
    eventually("the lock is free", || server.keys().is_empty());
    client.lock("a").try_lock()?.expect("nobody stands in line").unlock()
}

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "get in" => get_in(&role),
        Some(role) => panic!("nobody plays {role:?}"),
    }
}

/// Waits for the lock `a`, and says how often others counted before it got in.
fn get_in(role: &Role) {
    let builder = Client::builder().single(role.arg(0)).poll_interval(MINUTE);
    let client = builder.build().expect("the server answers");
    let mut server = redis::Client::open(role.arg(0)).expect("a good URL");
    let mut count =
        || redis::cmd("GET").arg("count").query::<usize>(&mut server).expect("they count");
    let before = count();
    let guard = client.lock("a").lock().expect("it is released");
    let meanwhile = count() - before;
    guard.unlock().expect("it was held");
    role.say(&meanwhile.to_string());
}

/// Ends what goes on until then, also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads of this process pass a lock on and on, counting, while another process waits
/// for it; how often they did before it got in.
fn count_before_another_process(max_handoffs: u32, max_time: Duration) -> usize {
    let server = Server::start();
    let here = client(&server, max_handoffs, max_time);
    let stop = AtomicBool::new(false);
    let go_on = || {
        let (lock, mut server) = (here.lock("a"), server.connection());
        while !stop.load(Ordering::Relaxed) {
            let guard = lock.lock().expect("the server answers");
            let _: usize = redis::cmd("INCR").arg("count").query(&mut server).expect("a number");
            drop(guard);
        }
    };
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(go_on)));
        let _stops = Stops(&stop);
        let count = || server.ask::<Option<usize>>(&["GET", "count"]).unwrap_or(0);
        eventually("they are at it", || count() > 100);
        let mut child = ChildProcess::start("hand_off::child_entry", "get in", &[&server.url()]);
        let meanwhile = child.next_line().parse().expect("a number");
        child.wait();
        meanwhile
    })
}

#[test]
fn another_process_gets_in_within_the_bound_of_count_while_threads_of_this_one_go_on() {
    let before = count_before_another_process(50, MINUTE);
    println!("they counted {before} times before it got in");
    // A run is 51 holds; the message of a release may come late on a busy machine.
    assert!(before <= 10 * 51, "{before} holds came before");
}

#[test]
fn another_process_gets_in_within_the_bound_of_time_while_threads_of_this_one_go_on() {
    let before = count_before_another_process(u32::MAX, Duration::from_millis(5));
    println!("they counted {before} times before it got in");
}

#[test]
fn another_process_gets_in_before_a_long_line_of_this_one_is_through() -> Result<()> {
    const LINE: usize = 40;
    let server = Arc::new(Server::start());
    let (here, there) = (client(&server, 3, MINUTE), settings(&server).build()?);
    let guard = here.lock("a").lock()?;
    let before = Arc::new(AtomicUsize::new(0));
    let line: Vec<_> = (0..LINE)
        .map(|number| {
            let (lock, before) = (here.lock("a"), Arc::clone(&before));
            sleeping(&format!("long-line-{number}"), move || {
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
    eventually("it waits", || server.numsub("redisson_lock__channel:{a}") == 1);
    guard.unlock()?;
    let before = join(other)?;
    line.into_iter().try_for_each(join)?;
    println!("{before} of {LINE} threads came before the other process");
    assert!(before < LINE / 2, "too many of them");
    Ok(())
}
