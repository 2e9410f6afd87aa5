//! The read-write lock: readers share it, a writer excludes others, and a writer may also read.

use crate::harness::bare::script;
use crate::harness::faults::{BRISK, EventLog, NEVER, build, patient};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time, join, sleeping};
use leasehold::{Guard, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const CHANNEL: &str = "redisson_rwlock:{a}";

/// Returns the same lock from each of two clients.
fn two_locks(server: &Server) -> [RwLock; 2] {
    [build(patient(server.url())), build(patient(server.url()))].map(|it| it.rw_lock("a"))
}

fn fields(server: &Server) -> BTreeMap<String, String> {
    server.ask(&["HGETALL", "a"])
}

fn timeout_keys(server: &Server) -> usize {
    server.keys().iter().filter(|key| key.contains("rwlock_timeout:1")).count()
}

#[test]
fn readers_share_the_lock_and_each_has_its_own_hold() {
    let server = Server::start();
    let [mine, theirs] = two_locks(&server);
    let (first, second) = (mine.read().expect("free"), theirs.read().expect("shared"));
    let again = mine.read().expect("a second read of the thread");
    let on_thread = thread::scope(|scope| {
        let read = scope.spawn(|| mine.read_owned().expect("another thread shares"));
        in_time("a reader returns", read)
    });
    assert_eq!(fields(&server).len(), 1 + 3, "{:?}", fields(&server));
    assert_eq!(timeout_keys(&server), 3);
    assert!(theirs.try_write_owned().expect("a reply").is_none());
    assert!(mine.try_write().expect("no wait").is_none(), "the thread reads");
    let error = mine.write().map(drop).expect_err("the thread would wait for itself");
    assert!(error.is_deadlock() && error.to_string().contains("read lock"), "{error}");

    first.unlock().expect("it was held");
    again.unlock().expect("it was held");
    on_thread.unlock().expect("it was held");
    assert!(mine.try_write().expect("a reply").is_none(), "the other client reads");
    second.unlock().expect("it was held");
    drop(mine.try_write().expect("a reply").expect("no reader is left"));
    eventually("nothing is left", || server.keys().is_empty());
}

#[test]
fn a_writer_waits_for_the_last_reader_and_readers_for_the_writer() {
    const READERS: usize = 6;
    let server = Server::start();
    let [mine, theirs] = two_locks(&server);
    let readers: Vec<_> = (0..2).map(|_| mine.read_owned().expect("shared")).collect();
    let reading = AtomicUsize::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| theirs.write_owned());
        eventually("the caller waits", || server.numsub(CHANNEL) == 1);
        for reader in readers {
            assert!(!writer.is_finished());
            reader.unlock().expect("it was held");
        }
        let writing = in_time("the writer returns", writer).expect("no reader is left");
        let waiting: Vec<_> = (0..READERS)
            .map(|number| {
                let lock = if number % 2 == 0 { &mine } else { &theirs };
                scope.spawn(|| {
                    let guard = lock.read().expect("the lock is granted in the end");
                    reading.fetch_add(1, Ordering::SeqCst);
                    eventually("all read at the same time", || {
                        reading.load(Ordering::SeqCst) == READERS
                    });
                    guard.unlock().expect("it was held");
                })
            })
            .collect();
        eventually("both processes wait", || server.numsub(CHANNEL) == 2);
        assert!(!mine.read_lock().is_locked().expect("a reply"));
        assert!(mine.write_lock().is_locked().expect("a reply"));
        writing.unlock().expect("it was held");
        waiting.into_iter().for_each(|reader| in_time("a reader returns", reader));
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// Redisson does not wake waiting readers when a writer continues as a reader.
#[test]
fn a_writer_may_continue_as_a_reader_which_wakes_other_readers() {
    let server = Server::start();
    let [mine, theirs] = two_locks(&server);
    let writing = mine.write().expect("it is free");
    let reading = mine.read().expect("under its own write hold");
    let numbers: Vec<_> = fields(&server).into_keys().filter(|field| field != "mode").collect();
    assert_eq!(numbers.len(), 2, "each hold has a number of its own: {numbers:?}");
    thread::scope(|scope| {
        let other = scope.spawn(|| theirs.read_owned());
        eventually("the caller waits", || server.numsub(CHANNEL) == 1);
        writing.unlock().expect("it was held");
        let other = in_time("the other reader returns", other).expect("readers share");
        assert!(reading.is_held() && other.is_held());
        other.unlock().expect("it was held");
    });
    let error = mine.write().map(drop).expect_err("the thread only reads");
    assert!(error.is_deadlock(), "{error}");
    assert!(theirs.try_write().expect("a reply").is_none());
    reading.unlock().expect("it was held");
    drop(theirs.write().expect("no reader is left"));
    eventually("nothing is left", || server.keys().is_empty());
}

/// In Redisson a read release shortens the lease of the same owner's write hold.
#[test]
fn a_read_release_does_not_change_the_write_hold() {
    let server = Server::start();
    let client = build(patient(server.url()).watchdog_timeout(BRISK));
    let lock = client.rw_lock("a");
    let writing = lock.write_lock().with_lease(NEVER).lock().expect("it is free");
    let reading = lock
        .read_lock()
        .with_lease(Duration::from_secs(5))
        .lock()
        .expect("under its own write hold");
    reading.unlock().expect("it was held");
    assert!(server.ask::<i64>(&["PTTL", "a"]) > 60_000);
    assert!(writing.remaining() > NEVER / 2);
    writing.unlock().expect("it was held");

    // Nor does the read release end the renewal of a write hold.
    let writing = lock.write().expect("it is free");
    drop(lock.read().expect("under its own write hold"));
    assert!(!writing.wait_lost(3 * BRISK), "the write hold is renewed");
    writing.unlock().expect("it was held");
}

#[test]
fn read_holds_are_renewed_with_their_time_out_keys() {
    let server = Server::start();
    let client = build(patient(server.url()).watchdog_timeout(BRISK));
    let lock = client.rw_lock("a");
    let (mine, other) = (lock.read().expect("free"), lock.read_owned().expect("shared"));
    assert!(!mine.wait_lost(3 * BRISK) && other.is_held());
    assert_eq!(timeout_keys(&server), 2);
    mine.unlock().expect("it was held");
    assert!(!other.wait_lost(2 * BRISK), "the other hold is renewed");
    other.unlock().expect("it was held");
    eventually("nothing is left", || server.keys().is_empty());
}

/// A hand-off would leave the read hold behind, with the old thread.
#[test]
fn a_write_hold_is_not_handed_off_while_its_thread_reads() {
    let server = Server::start();
    let client = build(patient(server.url()).local_handoff(100, NEVER));
    let lock = client.rw_lock("a");
    let writing = lock.write().expect("it is free");
    let reading = lock.read().expect("under its own write hold");
    let next = sleeping("next writer", move || lock.write().and_then(Guard::unlock));
    writing.unlock().expect("it was held");
    let mode: String = server.ask(&["HGET", "a", "mode"]);
    assert!(mode == "read" && !next.is_finished() && reading.is_held());
    reading.unlock().expect("it was held");
    join(next).expect("no reader is left");
    eventually("nothing is left", || server.keys().is_empty());
}

/// The read hold of the same thread keeps the lock's hash. Other readers may enter at once.
#[test]
fn an_expired_write_hold_ends_although_its_thread_reads() {
    let server = Server::start();
    let [mine, theirs] = two_locks(&server);
    let writing = mine.write_lock().with_lease(Duration::from_millis(300)).lock().expect("free");
    let reading = mine.read().expect("under its own write hold");
    assert!(writing.wait_lost(NEVER));
    let other = theirs.read().expect("the write hold is over");
    assert!(writing.unlock().is_err_and(|error| error.is_lost()));
    other.unlock().expect("it was held");
    reading.unlock().expect("it was held");
    drop(theirs.write().expect("no reader is left"));
    eventually("nothing is left", || server.keys().is_empty());
}

/// A read without a reply, under the thread's own write hold, is undone.
#[test]
fn the_clean_up_of_a_read_does_not_end_the_next_read() {
    let server = Server::start();
    let digest: String = server.ask(&["SCRIPT", "LOAD", &script("read_acquire").source()]);
    let proxy = Proxy::start(server.addr());
    let brief = Duration::from_millis(300);
    let client = build(patient(proxy.url()).pool_size(2).response_timeout(brief));
    let lock = client.rw_lock("a");
    let writing = lock.write().expect("free");
    proxy.on_request(digest.as_bytes(), Direction::Replies, Flow::Swallow);
    assert!(lock.try_read().is_err_and(|error| error.is_timeout()));
    proxy.heal();
    let reading = lock.read().expect("under its own write hold");
    eventually("the first read is undone", || fields(&server).len() == 3);
    writing.unlock().expect("it was held");
    reading.unlock().expect("it is still held");
}

#[test]
fn a_thread_that_would_wait_for_itself_gets_an_error() {
    let server = Server::start();
    let [lock, _] = two_locks(&server);
    let writing = lock.write().expect("it is free");
    for outcome in [lock.read_owned().map(drop), lock.write_owned().map(drop)] {
        let error = outcome.expect_err("the thread would wait for itself");
        assert!(error.is_deadlock(), "{error}");
    }
    drop(writing);
    let reading = lock.read().expect("it is free");
    lock.read_owned().expect("readers share").unlock().expect("it was held");
    assert!(lock.write_owned().is_err_and(|error| error.is_deadlock()));
    drop(reading);
    eventually("nothing is left", || server.keys().is_empty());

    // A lost hold is reported as a loss, not as a deadlock.
    let brief = lock.read_lock().with_lease(Duration::from_millis(200)).lock().expect("free");
    assert!(brief.wait_lost(NEVER));
    assert!(lock.write().is_err_and(|error| error.is_lost()));
}

/// The field of the reader stays in Redis until the end of its lease.
#[test]
fn a_dead_reader_excludes_writers_until_the_end_of_its_lease() {
    let server = Server::start();
    let [mine, theirs] = two_locks(&server);
    mine.read_lock().with_lease(Duration::from_millis(300)).lock_owned().expect("free").detach();
    let writing = theirs.write().expect("the lease is over");
    writing.unlock().expect("it was held");
}

#[test]
fn each_side_is_a_lock_with_all_verbs() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let lock = client.rw_lock("a").with_lease(NEVER / 2);
    assert_eq!((lock.name(), lock.read_lock().name()), ("a", "a"));
    let read = lock.read_lock();
    let guard = read.lock().expect("it is free");
    assert!(read.is_held() && !lock.write_lock().is_held());
    assert_eq!((read.hold_count(), lock.write_lock().hold_count()), (1, 0));
    assert!(!lock.write_lock().force_unlock().expect("a reply"), "no writer holds it");
    assert!(read.force_unlock().expect("a reply"));
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    let other = build(patient(server.url()));
    drop(other.rw_lock("a").try_write().expect("a reply").expect("it is free"));
}

/// The thread's read hold keeps the lock in write mode beyond the lease of its write hold.
///
/// So the release of the write hold is repeated even after that lease.
#[test]
fn a_write_release_is_repeated_until_a_reply_if_its_thread_reads() {
    const SHORT: Duration = Duration::from_millis(300);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()));
    let (mine, theirs) = (build(settings).rw_lock("a"), build(patient(server.url())).rw_lock("a"));
    let writing = mine.write_lock().with_lease(SHORT).lock().expect("it is free");
    let reading = mine.read_lock().with_lease(NEVER).lock().expect("under its own write hold");
    proxy.refuse();
    proxy.kill_all();
    drop(writing);
    assert!(heard.released().error.is_some(), "the lease is over");
    assert_eq!(fields(&server)["mode"], "write");
    proxy.heal();
    eventually("the lock is in read mode", || fields(&server)["mode"] == "read");
    assert_eq!(fields(&server).len(), 2, "{:?}", fields(&server));
    theirs.try_read().expect("a reply").expect("readers share").unlock().expect("it was held");
    assert!(reading.is_held());
}

/// The lease of a reader ends while its thread keeps the write hold.
#[test]
fn an_expired_read_hold_is_removed_from_a_lock_that_is_still_held() {
    const SHORT: Duration = Duration::from_millis(300);
    let server = Server::start();
    let [mine, theirs] = two_locks(&server);
    let writing = mine.write().expect("it is free");
    let reading = mine.read_lock().with_lease(SHORT).lock().expect("under its own write hold");
    assert!(theirs.read_lock().is_locked().expect("a reply"));
    assert!(reading.wait_lost(NEVER));
    eventually("no reader is left", || !theirs.read_lock().is_locked().expect("a reply"));
    assert_eq!(fields(&server).len(), 2, "{:?}", fields(&server));
    writing.unlock().expect("it was held");
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}
