//! The read-write lock: readers share, writers exclude, and a writer may go on reading.

use crate::harness::faults::{EventLog, NEVER, build, patient};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time, join, sleeping};
use leasehold::{Client, Guard, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const CHANNEL: &str = "redisson_rwlock:{a}";

fn two(server: &Server) -> [RwLock; 2] {
    [build(patient(server.url())), build(patient(server.url()))].map(|it| it.rw_lock("a"))
}

fn fields(server: &Server) -> BTreeMap<String, String> {
    server.ask(&["HGETALL", "a"])
}

fn keys_of_readers(server: &Server) -> usize {
    server.keys().iter().filter(|key| key.contains("rwlock_timeout:1")).count()
}

#[test]
fn readers_share_and_each_has_a_hold_of_its_own() {
    let server = Server::start();
    let [mine, theirs] = two(&server);
    let (first, second) = (mine.read().expect("free"), theirs.read().expect("shared"));
    let again = mine.read().expect("it has it");
    let elsewhere = thread::scope(|scope| {
        let read = scope.spawn(|| mine.read_owned().expect("another thread shares"));
        in_time("a reader", read)
    });
    assert_eq!(fields(&server).len(), 1 + 3, "{:?}", fields(&server));
    assert_eq!(keys_of_readers(&server), 3);
    assert!(theirs.try_write_owned().expect("an answer").is_none());
    assert!(mine.try_write().expect("no wait").is_none(), "it reads itself");
    let error = mine.write().map(drop).expect_err("it would wait for itself");
    assert!(error.is_deadlock() && error.to_string().contains("read lock"), "{error}");

    first.unlock().expect("it was held");
    again.unlock().expect("it was held");
    elsewhere.unlock().expect("it was held");
    assert!(mine.try_write().expect("an answer").is_none(), "the other one reads");
    second.unlock().expect("it was held");
    drop(mine.try_write().expect("an answer").expect("nobody reads"));
    eventually("nothing is left", || server.keys().is_empty());
}

#[test]
fn a_writer_waits_for_the_last_reader_and_readers_for_the_writer() {
    const READERS: usize = 6;
    let server = Server::start();
    let [mine, theirs] = two(&server);
    let readers: Vec<_> = (0..2).map(|_| mine.read_owned().expect("shared")).collect();
    let reading = AtomicUsize::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| theirs.write_owned());
        eventually("it waits", || server.numsub(CHANNEL) == 1);
        for reader in readers {
            assert!(!writer.is_finished());
            reader.unlock().expect("it was held");
        }
        let writing = in_time("the writer", writer).expect("nobody reads");
        let waiting: Vec<_> = (0..READERS)
            .map(|number| {
                let lock = if number % 2 == 0 { &mine } else { &theirs };
                scope.spawn(|| {
                    let guard = lock.read().expect("it comes round");
                    reading.fetch_add(1, Ordering::SeqCst);
                    eventually("all read at once", || reading.load(Ordering::SeqCst) == READERS);
                    guard.unlock().expect("it was held");
                })
            })
            .collect();
        eventually("both processes wait", || server.numsub(CHANNEL) == 2);
        assert!(!mine.read_lock().is_locked().expect("an answer"));
        assert!(mine.write_lock().is_locked().expect("an answer"));
        writing.unlock().expect("it was held");
        waiting.into_iter().for_each(|reader| in_time("a reader", reader));
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// With Redisson, those who wait to read are not told when a writer goes on reading.
#[test]
fn a_writer_may_read_and_goes_on_reading_and_others_are_told() {
    let server = Server::start();
    let [mine, theirs] = two(&server);
    let writing = mine.write().expect("it is free");
    let reading = mine.read().expect("under its own write hold");
    let numbers: Vec<_> = fields(&server).into_keys().filter(|field| field != "mode").collect();
    assert_eq!(numbers.len(), 2, "each hold has a number of its own: {numbers:?}");
    thread::scope(|scope| {
        let other = scope.spawn(|| theirs.read_owned());
        eventually("it waits", || server.numsub(CHANNEL) == 1);
        writing.unlock().expect("it was held");
        let other = in_time("the other reader", other).expect("they share");
        assert!(reading.is_held() && other.is_held());
        other.unlock().expect("it was held");
    });
    let error = mine.write().map(drop).expect_err("it only reads now");
    assert!(error.is_deadlock(), "{error}");
    assert!(theirs.try_write().expect("an answer").is_none());
    reading.unlock().expect("it was held");
    drop(theirs.try_write().expect("an answer").expect("nobody reads"));
    eventually("nothing is left", || server.keys().is_empty());
}

/// With Redisson, a read release shortens the lease of the same owner's write hold.
#[test]
fn a_read_release_changes_nothing_for_the_writer() {
    let server = Server::start();
    let brief = Duration::from_millis(600);
    let client = build(patient(server.url()).watchdog_timeout(brief));
    let lock = client.rw_lock("a");
    let writing = lock.write_lock().with_lease(NEVER).lock().expect("it is free");
    let reading = lock.read_lock().with_lease(Duration::from_secs(5)).lock().expect("its own");
    reading.unlock().expect("it was held");
    assert!(server.ask::<i64>(&["PTTL", "a"]) > 60_000);
    assert!(writing.remaining() > NEVER / 2);
    writing.unlock().expect("it was held");

    // Nor does it end the renewal of a write hold.
    let writing = lock.write().expect("it is free");
    drop(lock.read().expect("its own"));
    assert!(!writing.wait_lost(3 * brief), "it is renewed on and on");
    writing.unlock().expect("it was held");
}

#[test]
fn read_holds_are_renewed_with_their_time_out_keys() {
    let server = Server::start();
    let brief = Duration::from_millis(600);
    let client = build(patient(server.url()).watchdog_timeout(brief));
    let lock = client.rw_lock("a");
    let (mine, other) = (lock.read().expect("free"), lock.read_owned().expect("shared"));
    assert!(!mine.wait_lost(3 * brief) && other.is_held());
    assert_eq!(keys_of_readers(&server), 2);
    mine.unlock().expect("it was held");
    assert!(!other.wait_lost(2 * brief), "the one that is left is renewed");
    other.unlock().expect("it was held");
    eventually("nothing is left", || server.keys().is_empty());
}

/// The write hold of a thread that reads too does not go to another thread of its process:
/// its reading would stay behind.
#[test]
fn a_write_hold_is_not_passed_on_while_its_thread_reads() {
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
    join(next).expect("nobody reads");
    eventually("nothing is left", || server.keys().is_empty());
}

/// The lease of a write hold runs out under its thread's reading, which keeps the hash there:
/// others may read then, and it is free when the reading ends.
#[test]
fn a_write_lease_that_is_over_does_not_stay_under_its_reader() {
    let server = Server::start();
    let [mine, theirs] = two(&server);
    let writing = mine.write_lock().with_lease(Duration::from_millis(300)).lock().expect("free");
    let reading = mine.read().expect("under its own write hold");
    assert!(writing.wait_lost(NEVER));
    let other = theirs.read().expect("the writer is gone");
    assert!(writing.unlock().is_err_and(|error| error.is_lost()));
    other.unlock().expect("it was held");
    reading.unlock().expect("it was held");
    drop(theirs.try_write().expect("an answer").expect("nobody reads"));
    eventually("nothing is left", || server.keys().is_empty());
}

/// A read that got no answer under the own write hold is undone, and the next one is not.
#[test]
fn the_undoing_of_a_read_does_not_touch_the_next() {
    let server = Server::start();
    let digest: String =
        server.ask(&["SCRIPT", "LOAD", include_str!("../../lua/read_acquire.lua")]);
    let proxy = Proxy::start(server.addr());
    let brief = Duration::from_millis(300);
    let client = build(patient(proxy.url()).pool_size(2).response_timeout(brief));
    let lock = client.rw_lock("a");
    let writing = lock.write().expect("free");
    proxy.on_request(digest.as_bytes(), Direction::Replies, Flow::Swallow);
    assert!(lock.try_read().is_err_and(|error| error.is_timeout()));
    proxy.heal();
    let reading = lock.read().expect("under its own write hold");
    eventually("the first is undone", || fields(&server).len() == 3);
    writing.unlock().expect("it was held");
    reading.unlock().expect("it is still held");
}

#[test]
fn what_would_wait_for_itself_is_an_error() {
    let server = Server::start();
    let [lock, _] = two(&server);
    let writing = lock.write().expect("it is free");
    for outcome in [lock.read_owned().map(drop), lock.write_owned().map(drop)] {
        let error = outcome.expect_err("it would wait for itself");
        assert!(error.is_deadlock(), "{error}");
    }
    drop(writing);
    let reading = lock.read().expect("it is free");
    lock.read_owned().expect("readers share").unlock().expect("it was held");
    assert!(lock.write_owned().is_err_and(|error| error.is_deadlock()));
    drop(reading);
    eventually("nothing is left", || server.keys().is_empty());

    // What was lost is said to be lost.
    let brief = lock.read_lock().with_lease(Duration::from_millis(50)).lock().expect("free");
    assert!(brief.wait_lost(NEVER));
    assert!(lock.write().is_err_and(|error| error.is_lost()));
}

/// A reader that dies leaves its field; it keeps nobody out for longer than its lease.
#[test]
fn a_dead_reader_keeps_writers_out_for_its_lease() {
    let server = Server::start();
    let [mine, theirs] = two(&server);
    mine.read_lock().with_lease(Duration::from_millis(300)).lock_owned().expect("free").detach();
    let writing = theirs.write().expect("the lease is over");
    writing.unlock().expect("it was held");
}

#[test]
fn sides_are_locks_of_their_own_with_everything_that_locks_can() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let lock = client.rw_lock("a").with_lease(NEVER / 2);
    assert_eq!((lock.name(), lock.read_lock().name()), ("a", "a"));
    let read = lock.read_lock();
    let guard = read.lock().expect("it is free");
    assert!(read.is_held() && !lock.write_lock().is_held());
    assert_eq!((read.hold_count(), lock.write_lock().hold_count()), (1, 0));
    assert!(!lock.write_lock().force_unlock().expect("an answer"), "nobody writes");
    assert!(read.force_unlock().expect("an answer"));
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    let other: Client = build(patient(server.url()));
    drop(other.rw_lock("a").try_write().expect("an answer").expect("it is free"));
}

/// What the owner of a write hold reads keeps the lock, in write mode, beyond the lease of the
/// write hold. The release of the write hold has to be sent however late that is.
#[test]
fn a_write_release_is_sent_until_it_is_answered_if_its_owner_reads() {
    const SHORT: Duration = Duration::from_millis(300);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, heard) = EventLog::from(patient(proxy.url()));
    let (mine, theirs) = (build(settings).rw_lock("a"), build(patient(server.url())).rw_lock("a"));
    let writing = mine.write_lock().with_lease(SHORT).lock().expect("it is free");
    let reading = mine.read_lock().with_lease(NEVER).lock().expect("its own");
    proxy.refuse();
    proxy.kill_all();
    drop(writing);
    assert!(heard.released().error.is_some(), "its lease is over");
    assert_eq!(fields(&server)["mode"], "write");
    proxy.heal();
    eventually("it only reads", || fields(&server)["mode"] == "read");
    assert_eq!(fields(&server).len(), 2, "{:?}", fields(&server));
    theirs.try_read().expect("an answer").expect("readers share").unlock().expect("it was held");
    assert!(reading.is_held());
}

/// The lease of a reader ends while its writer keeps the lock: nobody reads any more.
#[test]
fn a_reader_whose_lease_is_over_is_taken_out_of_a_lock_that_lives_on() {
    const SHORT: Duration = Duration::from_millis(300);
    let server = Server::start();
    let [mine, theirs] = two(&server);
    let writing = mine.write().expect("it is free");
    let reading = mine.read_lock().with_lease(SHORT).lock().expect("its own");
    assert!(theirs.read_lock().is_locked().expect("an answer"));
    assert!(reading.wait_lost(NEVER));
    eventually("nobody reads", || !theirs.read_lock().is_locked().expect("an answer"));
    assert_eq!(fields(&server).len(), 2, "{:?}", fields(&server));
    writing.unlock().expect("it was held");
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}
