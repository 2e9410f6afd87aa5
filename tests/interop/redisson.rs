//! Locks shared with Redisson on one server.
//!
//! Leases and poll intervals are far longer than most of these tests, so that waiters are woken by
//! the messages of the other side. Without a JDK or Maven each test prints that it is skipped; with
//! `LEASEHOLD_INTEROP` set that is a failure.

use crate::harness::faults::{NEVER, build, owners, patient};
use crate::harness::process::{self, ChildProcess};
use crate::harness::{Server, eventually, exists, in_time, pttl};
use crate::java::Java;
use crate::shared::with_java;
use leasehold::kind::{Fair, Fenced, LockKind, Plain, Spin, Write};
use leasehold::{Client, Guard, Lock, LockInfo, MultiGuard, MultiLock, RedLock, Result, RwLock};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// A server, a client of leasehold and a client of Redisson.
struct Both {
    server: Server,
    rust: Client,
    java: Java,
}

fn both() -> Option<Both> {
    both_with(NEVER, Java::start)
}

/// `start` starts the client of Redisson.
fn both_with(watchdog: Duration, start: fn(&[&Server], Duration) -> Option<Java>) -> Option<Both> {
    let server = Server::start();
    let java = start(&[&server], watchdog)?;
    let rust = build(patient(server.url()).watchdog_timeout(watchdog));
    Some(Both { server, rust, java })
}

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    let client = Client::builder().single(role.arg(0)).watchdog_timeout(BRIEF).build();
    let client = client.expect("the server is there");
    let hold = |locked: bool| {
        assert!(locked, "the lock is free");
        role.say("locked");
        thread::park();
    };
    match role.name() {
        "plain" => hold(client.lock("a").lock().map(Guard::detach).is_ok()),
        "fenced" => hold(client.fenced_lock("a").lock().map(Guard::detach).is_ok()),
        "fair" => hold(client.fair_lock("a").lock().map(Guard::detach).is_ok()),
        "spin" => hold(client.spin_lock("a").lock().map(Guard::detach).is_ok()),
        "write" => hold(client.rw_lock("a").write().map(Guard::detach).is_ok()),
        other => panic!("unknown role {other}"),
    }
}

impl Both {
    /// Returns the number of script calls so far.
    fn calls(&self) -> u64 {
        self.server.calls("evalsha")
    }

    /// Returns the number of callers in the queue of the fair lock `a`.
    fn queue_length(&self) -> usize {
        self.server.ask(&["LLEN", "redisson_lock_queue:{a}"])
    }

    /// Blocks until a caller of leasehold waits for the lock `a` of this kind.
    fn await_rust(&self, kind: &str, calls_before: u64) {
        eventually("a caller waits", || match kind {
            "spin" => self.calls() > calls_before + 3,
            "fair" => self.queue_length() > 0,
            "write" => self.server.numsub("redisson_rwlock:{a}") > 0,
            _ => self.server.numsub("redisson_lock__channel:{a}") > 0,
        });
        if kind == "fair" {
            let own_channel = |it: &String| it.starts_with("redisson_lock__channel:{a}:");
            eventually("the caller subscribes", || self.server.channels().iter().any(own_channel));
        }
    }

    /// Blocks until this Java thread waits for the lock `a` of this kind.
    fn await_java(&self, thread: &str, kind: &str, calls_before: u64) {
        eventually("Java waits", || match kind {
            "spin" => self.calls() > calls_before + 3,
            _ => self.java.is_parked(thread),
        });
    }
}

/// Asserts that holders of this kind exclude, and with messages wake, the other side.
fn exclude_and_wake<P: LockKind>(kind: &str, make: fn(&Client) -> Lock<P>) {
    let both = with_java!(both());
    let (java, lock) = (&both.java, make(&both.rust));
    let order = |verb: &str| format!("{verb} {kind} a");

    // Java holds, Rust waits and is woken by the release.
    java.does("t", &order("lock"));
    assert!(lock.try_lock().expect("an answer").is_none());
    assert!(lock.is_locked().expect("an answer") && !lock.is_held());
    thread::scope(|scope| {
        let calls = both.calls();
        let waiter = scope.spawn(|| lock.lock().and_then(Guard::unlock));
        both.await_rust(kind, calls);
        java.does("t", &order("unlock"));
        in_time("the Rust waiter gets the lock", waiter).expect("a lock");
    });

    // Rust holds, Java waits and is woken by the release: by drop, and by unlock.
    for explicit in [false, true] {
        let guard = lock.lock().expect("free");
        assert_eq!(java.does("t", &order("try")), "false");
        assert_eq!(java.does("t", &order("locked")), "true");
        let calls = both.calls();
        let waiting = java.order("t", &order("lock"));
        both.await_java("t", kind, calls);
        if explicit {
            guard.unlock().expect("held")
        } else {
            drop(guard)
        }
        assert_eq!(waiting.answer(), Ok("locked".to_owned()));
        java.does("t", &order("unlock"));
    }

    // Each side re-enters; the other side is excluded until the last release.
    java.does("t", &order("lock"));
    java.does("t", &order("lock"));
    java.does("t", &order("unlock"));
    assert!(lock.try_lock().expect("an answer").is_none());
    java.does("t", &order("unlock"));
    let (guard, nested) = (lock.lock().expect("free"), lock.lock().expect("again"));
    drop(guard);
    assert_eq!(java.does("t", &order("try")), "false");
    nested.unlock().expect("held");
    assert_eq!(java.does("t", &order("try")), "true");

    // Each side frees the lock of the other by force.
    assert!(lock.force_unlock().expect("an answer"));
    let error = java.order("t", &order("unlock")).answer();
    if kind != "fair" {
        assert!(
            error.is_err_and(|it| it.starts_with("IllegalMonitorState")),
            "Java's lock is lost"
        );
    }
    let guard = lock.lock().expect("free");
    assert_eq!(java.does("u", &order("force")), "true");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("nothing is left", || {
        let keys = both.server.keys().into_iter();
        keys.filter(|key| !key.starts_with("redisson_lock_token")).count() == 0
    });
}

#[test]
fn plain_locks_exclude_and_wake_each_other() {
    exclude_and_wake::<Plain>("plain", |client| client.lock("a"));
}

#[test]
fn fenced_locks_exclude_and_wake_each_other() {
    exclude_and_wake::<Fenced>("fenced", |client| client.fenced_lock("a"));
}

#[test]
fn fair_locks_exclude_and_wake_each_other() {
    exclude_and_wake::<Fair>("fair", |client| client.fair_lock("a"));
}

#[test]
fn spin_locks_exclude_each_other() {
    exclude_and_wake::<Spin>("spin", |client| client.spin_lock("a"));
}

#[test]
fn write_locks_exclude_and_wake_each_other() {
    exclude_and_wake::<Write>("write", |client| client.rw_lock("a").write_lock());
}

/// Asserts that Java is refused until the minimum of a released hold, and gets the lock after it.
fn keep_a_minimum<P: LockKind>(both: &Both, kind: &str, make: fn(&Client) -> Lock<P>) {
    let lock = make(&both.rust);
    let minimum = Duration::from_secs(2);
    let start = Instant::now();
    lock.clone().with_min_hold(minimum).lock().and_then(Guard::unlock).expect("free");
    let refused = both.java.does("t", &format!("try {kind} a"));
    let is_locked = both.java.does("t", &format!("locked {kind} a"));
    // A slow machine may ask after the minimum.
    if start.elapsed() < minimum {
        assert_eq!((&*refused, &*is_locked), ("false", "true"), "{kind}");
    }
    if refused == "false" {
        both.java.does("t", &format!("lock {kind} a"));
        assert!(start.elapsed() >= minimum, "{kind}: the lock was free before the minimum");
    }
    assert!(lock.try_lock().expect("an answer").is_none());
    both.java.does("t", &format!("unlock {kind} a"));
    // The waiting caller learns the end of the minimum by the message of the release.
    let guard = lock.clone().with_min_hold(minimum).lock().expect("free");
    let (start, calls) = (Instant::now(), both.calls());
    let waiting = both.java.order("t", &format!("lock {kind} a"));
    both.await_java("t", kind, calls);
    guard.unlock().expect("held");
    assert_eq!(waiting.answer(), Ok("locked".to_owned()));
    assert!(start.elapsed() < NEVER / 2, "{kind}: not only after the lease");
    both.java.does("t", &format!("unlock {kind} a"));
}

#[test]
fn java_is_refused_until_the_minimum_of_a_released_hold() {
    let both = with_java!(both());
    keep_a_minimum::<Plain>(&both, "plain", |client| client.lock("a"));
    keep_a_minimum::<Fenced>(&both, "fenced", |client| client.fenced_lock("a"));
    keep_a_minimum::<Fair>(&both, "fair", |client| client.fair_lock("a"));
    keep_a_minimum::<Spin>(&both, "spin", |client| client.spin_lock("a"));
    keep_a_minimum::<Write>(&both, "write", |client| client.rw_lock("a").write_lock());
}

#[test]
fn java_neither_reads_nor_writes_before_the_minimum_of_a_write_hold() {
    let both = with_java!(both());
    let lock = both.rust.rw_lock("a").write_lock();
    lock.clone().with_min_hold(NEVER).lock().and_then(Guard::unlock).expect("free");
    for kind in ["read", "write"] {
        assert_eq!(both.java.does("t", &format!("try {kind} a")), "false", "{kind}");
    }
    assert_eq!(both.java.does("t", "force write a"), "true");
    assert_eq!(both.java.does("t", "try read a"), "true");
}

// ---------------------------------------------------------------------------------
// Leases.

/// A lease that a busy machine renews in time.
const BRIEF: Duration = Duration::from_secs(3);

/// Blocks until the leases of these keys have been renewed twice.
fn await_renewals(server: &Server, keys: &[&str]) {
    for key in keys {
        let (mut last, mut renewals) = (pttl(server, key), 0);
        eventually("two renewals", || {
            let now = pttl(server, key);
            renewals += usize::from(now > last);
            last = now;
            renewals == 2
        });
    }
}

/// Asserts that each side renews, and that the lock of a dead process becomes free.
fn renew_and_die<P: LockKind>(kind: &str, make: fn(&Client, &str) -> Lock<P>) {
    let both = with_java!(both_with(BRIEF, Java::start_alone));
    let mut child = ChildProcess::start("redisson::child_entry", kind, &[&both.server.url()]);
    child.expect_line("locked");
    both.java.does("u", &format!("lock {kind} b"));
    await_renewals(&both.server, &["a", "b"]);
    assert_eq!(both.java.does("t", &format!("try {kind} a")), "false");
    assert!(make(&both.rust, "b").try_lock().expect("an answer").is_none(), "Java renews too");

    let calls = both.calls();
    let waiting = both.java.order("t", &format!("lock {kind} a"));
    both.await_java("t", kind, calls);
    child.kill();
    assert_eq!(waiting.answer(), Ok("locked".to_owned()), "Rust's lease is over");
    let lock = make(&both.rust, "a");
    thread::scope(|scope| {
        let calls = both.calls();
        let waiter = scope.spawn(|| lock.lock().and_then(Guard::unlock));
        both.await_rust(kind, calls);
        both.java.kill();
        in_time("the Rust waiter gets the lock", waiter).expect("Java's lease is over");
    });
}

#[test]
fn plain_locks_are_renewed_and_end_with_their_process() {
    renew_and_die::<Plain>("plain", |client, name| client.lock(name));
}

#[test]
fn fenced_locks_are_renewed_and_end_with_their_process() {
    renew_and_die::<Fenced>("fenced", |client, name| client.fenced_lock(name));
}

#[test]
fn fair_locks_are_renewed_and_end_with_their_process() {
    renew_and_die::<Fair>("fair", |client, name| client.fair_lock(name));
}

#[test]
fn spin_locks_are_renewed_and_end_with_their_process() {
    renew_and_die::<Spin>("spin", |client, name| client.spin_lock(name));
}

#[test]
fn write_locks_are_renewed_and_end_with_their_process() {
    renew_and_die::<Write>("write", |client, name| client.rw_lock(name).write_lock());
}

/// Each side renews its readers; the readers of a dead process do not exclude writers.
#[test]
fn readers_are_renewed_and_end_with_their_process() {
    let both = with_java!(both_with(BRIEF, Java::start_alone));
    let lock = both.rust.rw_lock("a");
    both.java.does("t", "lock read a");
    let reading = lock.read_owned().expect("readers share");
    let keys = both.server.keys();
    let readers: Vec<_> =
        keys.iter().map(String::as_str).filter(|it| it.contains("rwlock_timeout")).collect();
    assert_eq!(readers.len(), 2, "{keys:?}");
    await_renewals(&both.server, &readers);
    assert_eq!(both.java.does("w", "try write a"), "false");
    reading.unlock().expect("held");
    assert!(lock.try_write().expect("an answer").is_none(), "Java renews too");
    both.java.kill();
    lock.write().expect("Java's lease is over").unlock().expect("held");
}

#[test]
fn fixed_leases_end_on_both_sides() {
    let both = with_java!(both());
    both.java.does("t", "lease plain a 400");
    let lock = both.rust.lock("a");
    let guard = lock.lock().expect("Java's lease is over");
    assert!(both.java.order("t", "unlock plain a").answer().is_err(), "Java's lock is lost");
    guard.unlock().expect("held");
    let brief = both.rust.lock("a").with_lease(Duration::from_millis(400));
    let guard = brief.lock().expect("free");
    both.java.does("t", "lock plain a");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    both.java.does("t", "unlock plain a");
}

// ---------------------------------------------------------------------------------
// Special behaviour of single kinds.

#[test]
fn a_fair_queue_of_both_is_served_in_order() {
    let both = with_java!(both());
    let (lock, order) = (both.rust.fair_lock("a"), Mutex::new(Vec::new()));
    let guard = lock.lock().expect("free");
    thread::scope(|scope| {
        for number in 0..6 {
            let (both, order, lock) = (&both, &order, both.rust.fair_lock("a"));
            let label = format!("t{number}");
            scope.spawn(move || {
                let note = || order.lock().expect("no panic").push(number);
                if number % 2 == 0 {
                    both.java.does(&label, "lock fair a");
                    note();
                    both.java.does(&label, "unlock fair a");
                } else {
                    let guard = lock.lock().expect("a lock");
                    note();
                    guard.unlock().expect("held");
                }
            });
            eventually("the thread is in the queue", || both.queue_length() == number + 1);
        }
        guard.unlock().expect("held");
    });
    assert_eq!(order.into_inner().expect("no panic"), Vec::from_iter(0..6));
    eventually("nothing is left", || both.server.keys().is_empty());
}

#[test]
fn a_waiter_that_leaves_a_mixed_fair_queue_delays_no_other() {
    let both = with_java!(both());
    let lock = both.rust.fair_lock("a");
    both.java.does("holder", "lock fair a");
    thread::scope(|scope| {
        let leaving = scope.spawn(|| lock.try_lock_for_owned(Duration::from_millis(600)));
        eventually("Rust is in the queue", || both.queue_length() == 1);
        let waiting = both.java.order("t", "lock fair a");
        eventually("Java is in the queue behind Rust", || both.queue_length() == 2);
        assert!(in_time("Rust gives up", leaving).expect("an answer").is_none());
        eventually("Rust leaves the queue", || both.queue_length() == 1);
        both.java.does("holder", "unlock fair a");
        assert_eq!(waiting.answer(), Ok("locked".to_owned()));
        both.java.does("t", "unlock fair a");
    });
    eventually("nothing is left", || both.server.keys().is_empty());
}

#[test]
fn tokens_grow_across_both_sides() {
    let both = with_java!(both());
    let lock = both.rust.fenced_lock("a");
    let mut tokens: Vec<u64> = Vec::new();
    for _ in 0..3 {
        tokens.push(both.java.does("t", "token fenced a").parse().expect("a token"));
        both.java.does("t", "unlock fenced a");
        let guard = lock.lock().expect("free");
        tokens.push(guard.token());
        guard.unlock().expect("held");
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn readers_of_both_share_and_writers_wait_for_all() {
    let both = with_java!(both());
    let (java, lock) = (&both.java, both.rust.rw_lock("a"));
    java.does("r", "lock read a");
    let reading = lock.read().expect("readers share");
    assert!(lock.try_write_owned().expect("an answer").is_none());
    assert_eq!(java.does("w", "try write a"), "false");
    java.does("r", "unlock read a");
    let waiting = java.order("w", "lock write a");
    both.await_java("w", "write", 0);
    assert!(waiting.is_open(), "Rust reads");
    reading.unlock().expect("held");
    assert_eq!(waiting.answer(), Ok("locked".to_owned()));

    // Java holds the write lock while Rust waits to read; then both read.
    thread::scope(|scope| {
        let reader = scope.spawn(|| lock.read_owned());
        eventually("Rust waits", || both.server.numsub("redisson_rwlock:{a}") == 1);
        java.does("w", "unlock write a");
        let reading = in_time("the Rust reader gets the lock", reader).expect("readers share");
        java.does("r", "lock read a");
        reading.unlock().expect("held");
    });
    assert!(lock.try_write().expect("an answer").is_none(), "Java reads");
    java.does("r", "unlock read a");
    lock.write().expect("no readers").unlock().expect("held");
    assert!(!exists(&both.server, "a"));
}

/// A writer also takes the read lock and then releases the write lock. Readers of the other side
/// get in at once, writers only after the last reader.
#[test]
fn a_writer_that_keeps_its_read_lock_admits_readers_of_the_other_side() {
    let both = with_java!(both());
    let (java, lock) = (&both.java, both.rust.rw_lock("a"));
    let (writing, reading) =
        (lock.write().expect("free"), lock.read().expect("the writer may read"));
    let waiting = java.order("r", "lock read a");
    both.await_java("r", "read", 0);
    writing.unlock().expect("held");
    assert_eq!(waiting.answer(), Ok("locked".to_owned()), "Java gets the message");
    assert_eq!(java.does("w", "try write a"), "false");
    java.does("r", "unlock read a");
    reading.unlock().expect("held");

    java.does("t", "lock write a");
    java.does("t", "lock read a");
    assert!(lock.try_read().expect("an answer").is_none());
    java.does("t", "unlock write a");
    let reading = lock.try_read().expect("an answer").expect("Java only reads");
    java.does("t", "unlock read a");
    assert!(reading.is_held());
    reading.unlock().expect("held");
    eventually("nothing is left", || both.server.keys().is_empty());
}

/// A reader's release sets the lock's time to live, from the time-out keys of all readers of both
/// sides.
#[test]
fn the_remaining_reader_determines_the_lease() {
    let both = with_java!(both());
    let (java, lock) = (&both.java, both.rust.rw_lock("a"));
    let left = || pttl(&both.server, "a");
    let long = lock.read_lock().with_lease(NEVER).lock().expect("free");
    java.does("r", "lease read a 20000");
    java.does("r", "unlock read a");
    assert!(left() > 60_000, "the Rust reader stays: {}", left());
    java.does("r", "lease read a 20000");
    long.unlock().expect("held");
    assert!((1..=20_000).contains(&left()), "the Java reader stays: {}", left());
    java.does("r", "unlock read a");
    eventually("nothing is left", || both.server.keys().is_empty());
}

#[test]
fn a_rust_client_can_present_the_owner_of_a_java_thread() {
    let both = with_java!(both());
    both.java.does("t", "lock plain a");
    let owner = both.java.does("t", "owner plain a");
    let lock = both.rust.lock("a").with_holder(&owner);
    assert!(both.rust.lock("a").try_lock().expect("an answer").is_none());
    let guard = lock.try_lock().expect("an answer").expect("the same holder");
    assert_eq!(owners(&both.server, "a").get(&owner), Some(&2));
    assert_eq!(both.java.does("t", "count plain a"), "2");
    both.java.does("t", "unlock plain a");
    assert!(guard.is_held());
    guard.unlock().expect("held");
    assert!(!exists(&both.server, "a"));
    both.java.does("t", "lock plain a");
    lock.unlock().expect("the owner is the same");
    assert!(both.java.order("t", "unlock plain a").answer().is_err());
}

// ---------------------------------------------------------------------------------
// Several locks, or several servers.

#[test]
fn multi_locks_exclude_each_other() {
    let both = with_java!(both());
    let lock = MultiLock::new(["a", "b"].map(|name| both.rust.lock(name)));
    both.java.does("t", "lock multi a,b");
    assert!(lock.try_lock().expect("an answer").is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        both.await_rust("plain", 0);
        both.java.does("t", "unlock multi a,b");
        in_time("the Rust waiter gets both locks", waiter).expect("both locks");
    });
    let guard = lock.lock().expect("free");
    assert_eq!(both.java.does("t", "try multi b,a"), "false");
    assert_eq!(both.java.does("t", "try plain b"), "false");
    let waiting = both.java.order("t", "lock multi b,a");
    assert!(waiting.is_open());
    guard.unlock().expect("held");
    assert_eq!(waiting.answer(), Ok("locked".to_owned()));
    assert!(lock.try_lock().expect("an answer").is_none());
    both.java.does("t", "unlock multi b,a");
    eventually("nothing is left", || both.server.keys().is_empty());
}

#[test]
fn red_locks_exclude_each_other() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let all: Vec<_> = servers.iter().collect();
    let java = with_java!(Java::start(&all, NEVER));
    let clients = servers.each_ref().map(|server| build(patient(server.url())));
    let lock = RedLock::new(clients, "a");
    java.does("t", "lock red a");
    assert!(lock.try_lock().expect("an answer").is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        eventually("Rust waits", || {
            all.iter().all(|server| server.numsub("redisson_lock__channel:{a}") > 0)
        });
        java.does("t", "unlock red a");
        in_time("the Rust waiter gets a majority", waiter).expect("a majority");
    });
    let guard = lock.lock().expect("free");
    eventually("all servers have granted the lock", || {
        all.iter().all(|server| exists(server, "a"))
    });
    assert_eq!(java.does("t", "try red a"), "false");
    let waiting = java.order("t", "lock red a");
    guard.unlock().expect("held");
    assert_eq!(waiting.answer(), Ok("locked".to_owned()));
    java.does("t", "unlock red a");
    eventually("nothing is left", || all.iter().all(|server| server.keys().is_empty()));
}

// ---------------------------------------------------------------------------------
// Both sides together.

const THREADS: usize = 4;
const EACH: usize = 500;

/// Four threads of each side increment one counter, by separate commands for read and write.
fn no_increment_is_lost<P: LockKind>(kind: &str, make: fn(&Client) -> Lock<P>) {
    let both = with_java!(both_with(Duration::from_secs(30), Java::start));
    let lock = make(&both.rust);
    let add = || -> Result<()> {
        let mut connection = both.server.connection();
        for _ in 0..EACH {
            let guard = lock.lock()?;
            let get = redis::cmd("GET").arg("counter").query::<Option<usize>>(&mut connection);
            let next = get.expect("our own connection").unwrap_or(0) + 1;
            let set = redis::cmd("SET").arg("counter").arg(next).query::<()>(&mut connection);
            set.expect("our own connection");
            guard.unlock()?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let order = format!("add {kind} a {EACH}");
        let java = (0..THREADS).map(|number| both.java.order(&format!("t{number}"), &order));
        let java: Vec<_> = java.collect();
        let rust: Vec<_> = (0..THREADS).map(|_| scope.spawn(add)).collect();
        for thread in rust {
            thread.join().expect("no panic").expect("every lock is granted");
        }
        for thread in java {
            let fields = || both.server.ask::<Vec<String>>(&["HGETALL", "a"]);
            assert_eq!(thread.answer(), Ok("added".to_owned()), "{:?}", fields());
        }
    });
    assert_eq!(both.server.ask::<usize>(&["GET", "counter"]), 2 * THREADS * EACH);
}

#[test]
fn no_increment_is_lost_with_plain_locks() {
    no_increment_is_lost::<Plain>("plain", |client| client.lock("a"));
}

#[test]
fn no_increment_is_lost_with_fenced_locks() {
    no_increment_is_lost::<Fenced>("fenced", |client| client.fenced_lock("a"));
}

#[test]
fn no_increment_is_lost_with_fair_locks() {
    no_increment_is_lost::<Fair>("fair", |client| client.fair_lock("a"));
}

#[test]
fn no_increment_is_lost_with_spin_locks() {
    no_increment_is_lost::<Spin>("spin", |client| client.spin_lock("a"));
}

#[test]
fn no_increment_is_lost_with_write_locks() {
    no_increment_is_lost::<Write>("write", |client| client.rw_lock("a").write_lock());
}

/// The waits of our readers and writers beside readers and writers of Redisson, all without pauses.
#[test]
#[ignore = "a measurement: cargo test --release --test interop mix_of -- --ignored --nocapture"]
fn waits_in_a_mix_of_readers_and_writers_of_both_sides() {
    const SPAN: Duration = Duration::from_secs(10);
    println!(
        "| Redisson: readers, writers | our reads/s | our longest read, write (ms) | writes/s |"
    );
    for (java_readers, java_writers) in [(0, 0), (0, 1), (1, 1), (4, 1)] {
        // Each with its own virtual machine, which ends with the loop.
        let both = with_java!(both_with(Duration::from_secs(30), Java::start));
        let end = Instant::now() + SPAN;
        let order = |kind: &str, number: usize| {
            both.java.order(&format!("{kind}{number}"), &format!("add {kind} a 1000000"))
        };
        let readers: Vec<_> = (0..java_readers).map(|number| order("read", number)).collect();
        let writers: Vec<_> = (0..java_writers).map(|number| order("write", number)).collect();
        let waits = |takes: &dyn Fn()| {
            let (mut count, mut longest) = (0_u32, Duration::ZERO);
            while Instant::now() < end {
                let begun = Instant::now();
                takes();
                (count, longest) = (count + 1, longest.max(begun.elapsed()));
            }
            (count, longest)
        };
        let lock = || build(Client::builder().single(both.server.url())).rw_lock("a");
        let [reads, writes] = thread::scope(|scope| {
            let spawn = |count, takes: fn(&RwLock)| {
                let threads = (0..count).map(|_| {
                    let lock = lock();
                    scope.spawn(move || waits(&|| takes(&lock)))
                });
                threads.collect::<Vec<_>>()
            };
            let readers = spawn(4, |lock| drop(lock.read().expect("granted")));
            let writers = spawn(1, |lock| drop(lock.write().expect("granted")));
            [readers, writers].map(|threads| {
                let all = threads.into_iter().map(|thread| thread.join().expect("no panic"));
                all.fold((0, Duration::ZERO), |sum, it| (sum.0 + it.0, sum.1.max(it.1)))
            })
        });
        let per_second = |count: u32| f64::from(count) / SPAN.as_secs_f64();
        println!(
            "| {java_readers}, {java_writers} | {:.0} | {}, {} | {:.0} |",
            per_second(reads.0),
            reads.1.as_millis(),
            writes.1.as_millis(),
            per_second(writes.0)
        );
        drop((readers, writers));
    }
}

// ---------------------------------------------------------------------------------
// Holder information.

/// A client that never locked anything sees the threads of Redisson that hold and wait.
#[test]
fn holders_and_waiters_of_redisson_are_shown() {
    let both = with_java!(both());
    let id_of = |thread: &str| both.java.does(thread, "owner plain a");
    let (holder, other) = (id_of("t"), id_of("u"));
    let thread_of = |owner: &str| owner.rsplit(':').next().map(str::to_owned);
    let kinds = ["plain", "fair", "fenced", "spin"];
    for kind in kinds {
        both.java.does("t", &format!("lock {kind} {kind}"));
        both.java.does("t", &format!("lock {kind} {kind}"));
        let found = both.rust.lock(kind).holder().expect("an answer").expect("held");
        assert_eq!((found.owner(), found.count()), (holder.as_str(), 2), "{kind}");
        assert_eq!(found.thread().map(str::to_owned), thread_of(&holder));
        let id = found.client_id().expect("a client").to_string();
        assert!(holder.starts_with(&id));
        assert!(found.remaining().is_some_and(|left| left > NEVER / 2 && left <= NEVER));
        assert_eq!((found.since(), found.host(), found.pid()), (None, None, None));
    }

    // Readers have leases of their own; a writer that reads is shown on both sides.
    both.java.does("t", "lock read shared");
    both.java.does("u", "lease read shared 60000");
    let sides = |name: &str| {
        let lock = both.rust.rw_lock(name);
        let (read, write) = (lock.read_lock().holders(), lock.write_lock().holders());
        (read.expect("an answer"), write.expect("an answer"))
    };
    let (mut readers, writers) = sides("shared");
    readers.sort_by_key(|reader| reader.remaining());
    let owners: Vec<_> = readers.iter().map(|reader| reader.owner()).collect();
    assert_eq!((owners, writers.len()), (vec![other.as_str(), holder.as_str()], 0));
    assert!(readers[0].remaining() <= Some(Duration::from_secs(60)));
    assert!(readers[1].remaining() > Some(Duration::from_secs(60)));
    both.java.does("t", "lock write exclusive");
    both.java.does("t", "lock read exclusive");
    let (readers, writers) = sides("exclusive");
    assert_eq!((readers[0].owner(), readers.len(), writers.len()), (holder.as_str(), 1, 1));
    assert_eq!(writers[0].thread().map(str::to_owned), thread_of(&holder));

    // A waiter in the queue, and a waiting process.
    let waits =
        [both.java.order("u", "wait fair fair 60000"), both.java.order("v", "lock plain plain")];
    let fair = both.rust.fair_lock("fair");
    eventually("Java is in the queue", || {
        let waiting = fair.waiting().expect("an answer");
        waiting.queue().iter().map(|it| it.owner()).eq([other.as_str()]) && waiting.processes() == 1
    });
    let plain = both.rust.lock("plain");
    eventually("Java subscribes", || plain.waiting().expect("an answer").processes() == 1);

    let locks: Vec<LockInfo> =
        both.rust.locks("*").expect("a pattern").map(|lock| lock.expect("an answer")).collect();
    let mut found: Vec<_> = locks.iter().map(|lock| (lock.name(), lock.kind())).collect();
    found.sort();
    let expected = [
        ("exclusive", "write lock"),
        ("fair", "fair lock"),
        ("fenced", "fenced lock"),
        ("plain", "lock"),
        ("shared", "read lock"),
        ("spin", "lock"),
    ];
    assert_eq!(found, expected);
    let waiting = |lock: &LockInfo| (lock.name().to_owned(), lock.waiting().processes());
    let awaited: Vec<_> = locks.iter().map(waiting).filter(|(_, count)| *count > 0).collect();
    assert_eq!(awaited.len(), 2, "{awaited:?}");
    for kind in ["fair", "plain"] {
        both.java.does("t", &format!("unlock {kind} {kind}"));
        both.java.does("t", &format!("unlock {kind} {kind}"));
    }
    for waits in waits {
        assert!(waits.answer().is_ok());
    }
}
