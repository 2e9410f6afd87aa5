//! Limits of the system that a process reaches.
//!
//! Each test runs in its own process, whose limits it lowers.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, Client, RedLock, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::process::alone;
use crate::harness::replicated::MASTER;
use crate::harness::wait::{other_threads_sleep, threads_named};
use crate::harness::{Replicated, Server, eventually, exists};

/// Longer than a call with a short limit takes on any machine, and far shorter than `RESPONSE`.
const SOON: Duration = Duration::from_secs(5);
const RESPONSE: Duration = Duration::from_secs(50);
const SHORT: Duration = Duration::from_millis(200);

/// Sets the soft limit of a resource for this process.
fn limit(resource: Resource, to: Option<u64>) {
    let limits = Rlimit { current: to, ..getrlimit(resource) };
    setrlimit(resource, limits).expect("a soft limit may be set");
}

/// Leaves no room for a further thread in this process until it is dropped.
///
/// A limit of the memory stops root too, unlike a limit of the threads.
struct NoRoom {
    before: Option<u64>,
    /// Each thread waits until its flag is set.
    threads: Vec<(Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

impl NoRoom {
    /// Leaves memory for a thread's work, and none for another stack.
    ///
    /// Blocks until the watchdogs of `clients` clients run, and sleep: the start of a thread needs
    /// memory too, also after it has its name.
    fn start(clients: usize) -> NoRoom {
        const LEFT: u64 = 7 << 18;
        eventually("the watchdogs run", || threads_named("leasehold-watchdog") == clients);
        eventually("all other threads sleep", other_threads_sleep);
        let status = std::fs::read_to_string("/proc/self/status").expect("the status");
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        let size = size.and_then(|size| size.split_whitespace().next()?.parse::<u64>().ok());
        let before = getrlimit(Resource::As).current;
        limit(Resource::As, Some(size.expect("a size in kB") * 1024 + LEFT));
        // The system uses the stacks of ended threads again.
        let waits = || {
            let leave = Arc::<AtomicBool>::default();
            let left = Arc::clone(&leave);
            let thread = thread::Builder::new().spawn(move || {
                while !left.load(Ordering::SeqCst) {
                    thread::park();
                }
            });
            thread.map(|thread| (leave, thread))
        };
        let threads = std::iter::from_fn(|| waits().ok()).collect();
        NoRoom { before, threads }
    }

    /// Makes room for one thread.
    fn admit_one(&mut self) {
        let (leave, thread) = self.threads.pop().expect("a thread");
        leave.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        thread.join().expect("it waits");
    }
}

impl Drop for NoRoom {
    fn drop(&mut self) {
        limit(Resource::As, self.before);
        for (leave, thread) in &self.threads {
            leave.store(true, Ordering::SeqCst);
            thread.thread().unpark();
        }
        // A panic of the test drops this value too, so no failure of a thread is told.
        for (_, thread) in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns settings with which an end in time is told from the end of a response time-out.
fn settings(server: &Server) -> Builder {
    let builder = Client::builder().single(server.url()).response_timeout(RESPONSE).announce(false);
    builder.connect_timeout(RESPONSE).pool_timeout(RESPONSE).pool_size(1)
}

/// Returns the result of a call that has to end soon.
#[track_caller]
fn soon<T>(call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    assert!(start.elapsed() < SOON, "the call took {:?}", start.elapsed());
    result
}

#[test]
fn a_drop_and_a_call_with_a_limit_do_not_wait_without_room_for_a_thread() -> Result<()> {
    if !alone("limits::a_drop_and_a_call_with_a_limit_do_not_wait_without_room_for_a_thread") {
        return Ok(());
    }
    let server = Server::start();
    let client = settings(&server).build()?;
    let guard = client.lock("a").lock_owned()?;
    assert_eq!(threads_named("leasehold-reaper"), 0, "no request was sent in the background");
    server.stop();
    let no_room = NoRoom::start(1);
    soon(|| drop(guard));
    assert!(soon(|| client.lock("b").try_lock_for(SHORT)).is_err_and(|error| error.is_timeout()));
    server.resume();
    // The answers are read by a caller.
    soon(|| client.lock("c").lock_owned())?.unlock()?;
    drop(no_room);
    eventually("the releases are sent", || server.keys().is_empty());
    client.close();
    Ok(())
}

#[test]
fn a_broken_connection_is_made_without_room_for_a_thread() -> Result<()> {
    if !alone("limits::a_broken_connection_is_made_without_room_for_a_thread") {
        return Ok(());
    }
    let server = Server::start();
    let client = settings(&server).build()?;
    drop(client.lock("a").lock_owned()?);
    eventually("the release is sent", || server.keys().is_empty());
    let kept = client.lock("kept").lock_owned()?;
    let without_reaper = settings(&server).build()?;
    let no_room = NoRoom::start(2);
    server.client_kill_type("normal");
    // The reaper connects.
    soon(|| client.lock("b").lock_owned())?.unlock()?;
    assert!(kept.is_held() && exists(&server, "kept"));
    // Without a reaper the call ends with its limit.
    let lock = without_reaper.lock("c");
    assert!(soon(|| lock.try_lock_for(SHORT)).is_err_and(|error| error.is_timeout()));
    drop(no_room);
    lock.lock()?.unlock()?;
    kept.unlock()
}

#[test]
fn a_lock_on_several_servers_keeps_its_limit_without_room_for_a_thread() -> Result<()> {
    if !alone("limits::a_lock_on_several_servers_keeps_its_limit_without_room_for_a_thread") {
        return Ok(());
    }
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| settings(server).build());
    let clients = clients.into_iter().collect::<Result<Vec<_>>>()?;
    let lock = RedLock::new(clients, "a");
    servers[0].stop();
    let no_room = NoRoom::start(3);
    let outcome = soon(|| lock.try_lock_for(SHORT));
    assert!(outcome.as_ref().is_err_and(|error| error.is_timeout()), "{outcome:?}");
    drop(no_room);
    let guard = lock.lock()?;
    let no_room = NoRoom::start(3);
    soon(|| drop(guard));
    drop(no_room);
    servers[0].resume();
    eventually("the locks are free", || servers.iter().all(|server| server.keys().is_empty()));
    Ok(())
}

#[test]
fn an_error_names_the_limit_of_open_files() -> Result<()> {
    if !alone("limits::an_error_names_the_limit_of_open_files") {
        return Ok(());
    }
    let server = Server::start();
    let client = Client::builder().single(server.url()).build_lazily()?;
    limit(Resource::Nofile, Some(0));
    let error = client.lock("a").try_lock().expect_err("no socket can be opened");
    assert!(error.is_connection(), "{error:?}");
    let text = error.with_causes().to_string();
    assert_eq!(text.matches("Too many open files").count(), 1, "{text}");
    Ok(())
}

#[test]
fn a_build_without_room_for_its_second_thread_leaves_nothing_behind() -> Result<()> {
    if !alone("limits::a_build_without_room_for_its_second_thread_leaves_nothing_behind") {
        return Ok(());
    }
    let servers = Replicated::start(0, 1);
    let builder = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    // The memory that a first client needs stays with the process.
    builder().build()?.close();
    let is_left = || {
        let peers = servers.servers()[0].clients();
        peers.iter().any(|peer| peer.name.starts_with("leasehold"))
    };
    eventually("nothing is left", || !is_left());
    let mut no_room = NoRoom::start(0);
    no_room.admit_one();
    let error = builder().build().expect_err("the watchdog has taken the room");
    assert!(error.is_configuration(), "{error:?}");
    let cause = error.source().expect("the refusal of the system");
    assert!(cause.downcast_ref::<std::io::Error>().is_some(), "{error:?}");
    eventually("the watchdog has ended", || threads_named("leasehold-watchdog") == 0);
    eventually("the connection is closed", || !is_left());
    // The next client has both threads.
    drop(no_room);
    builder().build()?.lock("a").lock()?.unlock()
}
