//! Invalid and unusual arguments, and keys that hold another type.

use crate::harness::faults::{build, channel_of, patient};
use crate::harness::{Peer, Server, eventually, eventually_some, join, pttl};
use leasehold::kind::LockKind;
use leasehold::{
    Client, Error, Events, Guard, Lock, Lost, MultiLock, OwnedGuard, RedLock, RenewalFailed,
    Renewed, Result,
};
use std::collections::VecDeque;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const MILLI: Duration = Duration::from_millis(1);

/// Returns the outcome of every verb.
fn outcomes<K: LockKind>(lock: &Lock<K>) -> [Result<()>; 8] {
    let later = Instant::now() + MINUTE;
    [
        lock.lock().map(drop),
        lock.try_lock().map(drop::<Option<Guard<K>>>),
        lock.try_lock_for(MINUTE).map(drop),
        lock.try_lock_until(later).map(drop),
        lock.lock_owned().map(drop),
        lock.try_lock_owned().map(drop::<Option<OwnedGuard<K>>>),
        lock.try_lock_for_owned(MINUTE).map(drop),
        lock.try_lock_until_owned(later).map(drop),
    ]
}

fn all_fail(outcomes: &[Result<()>], is_expected: fn(&Error) -> bool) {
    assert!(outcomes.iter().all(|one| one.as_ref().is_err_and(is_expected)), "{outcomes:?}");
}

#[test]
fn an_invalid_name_is_an_error_of_every_verb_and_query() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    server.reset_stats();
    for name in ["", "{", "}", "a}b", "a{b", "{}", "a{}b", "a{}{b}", "}a{"] {
        let lock = client.lock(name);
        assert_eq!(lock.name(), name);
        assert!(!lock.is_held() && lock.hold_count() == 0);
        all_fail(&outcomes(&lock), Error::is_invalid_name);
        all_fail(
            &[
                lock.unlock(),
                lock.is_locked().map(drop),
                lock.remaining().map(drop),
                lock.force_unlock().map(drop),
            ],
            Error::is_invalid_name,
        );
    }
    assert_eq!(server.calls("evalsha"), 0);
    Ok(())
}

#[test]
fn the_prefix_and_the_name_are_checked_together() -> Result<()> {
    let server = Server::start();
    let prefixed = |prefix| Client::builder().single(server.url()).name_prefix(prefix).build();
    let (valid, invalid) = (prefixed("{tag}:")?, prefixed("{")?);
    valid.lock("a").lock()?.unlock()?;
    all_fail(&outcomes(&valid.lock("")), Error::is_invalid_name);
    all_fail(&outcomes(&invalid.lock("a")), Error::is_invalid_name);
    invalid.lock("a}").lock()?.unlock()
}

#[test]
fn names_may_be_long_and_contain_any_text() -> Result<()> {
    let server = Server::start();
    let (client, other) = (Client::open(server.url())?, Client::open(server.url())?);
    let long = "long ".repeat(300_000);
    for name in ["a\0b", "\r\n*1\r\n$8\r\nFLUSHALL\r\n", "{ä}ß€🔒", " ", "{{a}}", &long] {
        let guard = client.lock(name).lock()?;
        assert_eq!(server.keys(), [name]);
        assert!(other.lock(name).try_lock()?.is_none());
        let lock = other.lock(name);
        let waiter = thread::spawn(move || lock.lock()?.unlock());
        eventually("the waiter subscribes", || {
            server.channels().iter().any(|channel| channel.contains(name))
        });
        guard.unlock()?;
        join(waiter)?;
        assert!(server.keys().is_empty());
    }
    Ok(())
}

/// Only the message tells the waiter of its grant: the next heartbeat is a minute away.
#[test]
fn a_grant_finds_its_waiter_whatever_the_name() -> Result<()> {
    let server = Server::start();
    let plain = patient(server.url());
    let clients = [build(plain.clone()), build(plain.name_prefix("an app: ä "))];
    let long = "long ".repeat(300_000);
    let names =
        ["a b", " ", "  1 2 ", "granted 1 2 3 x", "{tag} b", "{ä}ß€🔒", "\r\n", "a\0b", &long];
    for (number, name) in names.into_iter().enumerate() {
        for client in &clients {
            let lock = client.queue_lock(name);
            let guard = lock.lock_owned()?;
            let next = lock.clone();
            server.reset_stats();
            let waiter = thread::spawn(move || next.lock_owned());
            eventually("the caller is in the queue", || {
                lock.waiting().is_ok_and(|waiting| waiting.queue().len() == 1)
            });
            guard.unlock()?;
            let granted = join(waiter)?;
            assert!(granted.is_held(), "name {number}");
            assert_eq!(server.calls("zadd"), 1, "one acquire for name {number}");
            granted.unlock()?;
        }
    }
    Ok(())
}

#[test]
fn a_weight_out_of_bounds_is_a_configuration_error_of_every_verb() -> Result<()> {
    let server = Server::start();
    let client = build(patient(server.url()));
    server.reset_stats();
    for weight in [0, 11, u32::MAX] {
        let lock = client.queue_lock("a").with_weight(weight);
        all_fail(&outcomes(&lock), Error::is_configuration);
        // A later weight does not hide the error.
        all_fail(&outcomes(&lock.with_weight(1)), Error::is_configuration);
    }
    assert_eq!(server.calls("evalsha"), 0);
    for weight in [1, 10] {
        client.queue_lock("a").with_weight(weight).lock()?.unlock()?;
    }
    Ok(())
}

#[test]
fn the_weight_step_is_shown_and_has_bounds() -> Result<()> {
    let builder = || Client::builder().single("redis://127.0.0.1:1/");
    let shown = format!("{:?}", builder().weight_step(7 * MILLI));
    assert!(shown.contains("weight_step: 7ms"), "{shown}");
    for step in [Duration::ZERO, Duration::from_nanos(1), 365 * 24 * 60 * MINUTE] {
        drop(builder().weight_step(step).build_lazily()?);
    }
    let refused = builder().weight_step(366 * 24 * 60 * MINUTE).build_lazily();
    let error = refused.expect_err("more than a year");
    assert!(error.is_configuration() && error.to_string().contains("weight step"), "{error}");
    Ok(())
}

/// The place is a number of microseconds since 1970.
#[test]
fn the_longest_weight_step_keeps_the_order() -> Result<()> {
    let server = Server::start();
    let longest = 365 * 24 * 60 * MINUTE;
    let client = build(patient(server.url()).weight_step(longest));
    let lock = client.queue_lock("a");
    let mut guard = lock.lock_owned()?;
    let mut waiters = VecDeque::new();
    for weight in [1, 5, 10] {
        let next = lock.clone().with_weight(weight);
        waiters.push_front(thread::spawn(move || next.lock_owned()));
        let count = waiters.len();
        eventually("the caller is in the queue", || {
            lock.waiting().is_ok_and(|waiting| waiting.queue().len() == count)
        });
    }
    for waiter in waiters {
        guard.unlock()?;
        guard = join(waiter)?;
    }
    guard.unlock()
}

#[test]
fn a_lease_below_10_ms_is_a_configuration_error_of_every_verb() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).announce(false).build()?;
    server.reset_stats();
    for lease in [Duration::ZERO, Duration::from_nanos(1), 9 * MILLI, Duration::from_micros(9999)] {
        all_fail(&outcomes(&client.lock("a").with_lease(lease)), Error::is_configuration);
    }
    assert_eq!(server.calls("evalsha"), 0);

    let guard = client.lock("a").lock()?;
    let nested = client.lock("a").with_lease(9 * MILLI).lock();
    assert!(nested.map(drop).is_err_and(|e| e.is_configuration()), "also for a re-entry");
    assert!(guard.extend(Duration::ZERO).is_err_and(|e| e.is_configuration()));
    assert!(guard.extend(9 * MILLI).is_err_and(|e| e.is_configuration()));
    assert!(guard.is_held() && client.lock("a").hold_count() == 1);
    guard.unlock()
}

#[test]
fn a_bad_label_is_a_configuration_error_of_every_verb() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    server.reset_stats();
    for label in ["", "a\nb", "\u{7f}", &"x".repeat(257)] {
        let lock = client.lock("a").with_label(label);
        all_fail(&outcomes(&lock), Error::is_configuration);
        let error = lock.lock().expect_err("a bad label");
        assert_eq!(error.lock_name(), Some("a"));
        all_fail(&outcomes(&lock.clone().with_label("good")), Error::is_configuration);
        let both = MultiLock::new([client.lock("b"), lock]);
        assert!(both.lock().is_err_and(|error| error.is_configuration()));
        assert!(client.rw_lock("a").with_label(label).read().is_err());
        let red = RedLock::new([client.clone()], "a").with_label(label);
        assert!(red.lock().is_err_and(|error| error.is_configuration()));
    }
    assert_eq!(server.calls("evalsha") + server.calls("eval"), 0);
    assert!(client.lock("").with_label("").lock().is_err_and(|error| error.is_invalid_name()));
    let lock = client.lock("a").with_label("x".repeat(256));
    lock.lock()?.unlock()?;
    let lock = client.lock("a").with_label("orders");
    assert!(format!("{lock:?}").contains("label: Some(\"orders\")"), "{lock:?}");
    Ok(())
}

#[test]
fn the_shortest_lease_works_and_expires() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a").with_lease(10 * MILLI);
    // On a slow machine the lease may end before the reply is read.
    let guard = eventually_some("a reply arrives in time", || match lock.lock() {
        Ok(guard) => Some(guard),
        Err(error) => {
            assert!(error.is_lost(), "{error:?}");
            None
        }
    });
    assert!(guard.remaining() < 10 * MILLI);
    assert!(guard.wait_lost(MINUTE));
    drop(guard);
    eventually("the lock is free", || server.keys().is_empty());
    Ok(())
}

#[test]
fn the_longest_lease_is_a_hundred_years() -> Result<()> {
    const YEARS: i64 = 100 * 365 * 24 * 3600 * 1000;
    let server = Server::start();
    let client = Client::open(server.url())?;
    let guard = client.lock("a").with_lease(Duration::MAX).lock()?;
    assert!((YEARS - 60_000..=YEARS).contains(&pttl(&server, "a")));
    assert!(guard.remaining() > MINUTE * 60 * 24 * 365 * 90);
    assert!(guard.is_held() && !guard.wait_lost(MILLI));
    guard.extend(Duration::MAX)?;
    let nested = client.lock("a").with_lease(Duration::MAX).lock()?;
    drop(nested);
    guard.unlock()?;

    let watched = client.lock("b").lock()?;
    watched.extend(Duration::MAX)?;
    assert!((YEARS - 60_000..=YEARS).contains(&pttl(&server, "b")));
    watched.unlock()?;
    assert!(server.keys().is_empty());
    Ok(())
}

#[test]
fn the_longest_waits_last_until_the_release() -> Result<()> {
    let server = Server::start();
    let (holder, client) = (Client::open(server.url())?, Client::open(server.url())?);
    let far = Instant::now() + MINUTE * 60 * 24 * 365 * 50;
    let waits: [fn(&Lock, Instant) -> Result<()>; 4] = [
        |lock, _| lock.try_lock_for(Duration::MAX)?.expect("the wait has no end").unlock(),
        |lock, _| lock.try_lock_for_owned(Duration::MAX)?.expect("the wait has no end").unlock(),
        |lock, far| lock.try_lock_until(far)?.expect("the wait has no end").unlock(),
        |lock, far| lock.try_lock_until_owned(far)?.expect("the wait has no end").unlock(),
    ];
    for (number, wait) in waits.into_iter().enumerate() {
        let name = number.to_string();
        let guard = holder.lock(&name).lock()?;
        let lock = client.lock(&name);
        let waiter = thread::spawn(move || wait(&lock, far));
        eventually("the waiter subscribes", || server.numsub(&channel_of(&name)) == 1);
        assert!(!waiter.is_finished());
        guard.unlock()?;
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn a_wait_of_zero_sends_one_request() -> Result<()> {
    let server = Server::start();
    // A client that announces itself calls a script for that.
    let quiet = || Client::builder().single(server.url()).announce(false).build();
    let (holder, client) = (quiet()?, quiet()?);
    let past = Instant::now();
    let tries: [fn(&Lock, Instant) -> Result<bool>; 4] = [
        |lock, _| Ok(lock.try_lock_for(Duration::ZERO)?.is_some()),
        |lock, _| Ok(lock.try_lock_for_owned(Duration::ZERO)?.is_some()),
        |lock, past| Ok(lock.try_lock_until(past)?.is_some()),
        |lock, past| Ok(lock.try_lock_until_owned(past)?.is_some()),
    ];
    for (number, attempt) in tries.into_iter().enumerate() {
        let lock = client.lock(number.to_string());
        assert!(attempt(&lock, past)?, "the lock is free");
        eventually("the lock is free again", || server.keys().is_empty());
        let guard = holder.lock(lock.name()).lock()?;
        let before = server.calls("evalsha");
        assert!(!attempt(&lock, past)?, "the lock is held");
        assert_eq!(server.calls("evalsha"), before + 1);
        guard.unlock()?;
    }
    Ok(())
}

#[test]
fn a_key_of_another_type_is_a_server_error_and_stays_unchanged() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    server.ask::<()>(&["SET", "string", "text", "PX", "600000"]);
    server.ask::<()>(&["RPUSH", "list", "text"]);
    server.ask::<()>(&["SADD", "set", "text"]);
    for (name, kind) in [("string", "string"), ("list", "list"), ("set", "set")] {
        let lock = client.lock(name);
        let is_wrong_type = |e: &Error| e.is_server() && e.to_string().contains("WRONGTYPE");
        all_fail(&outcomes(&lock), is_wrong_type);
        all_fail(&[lock.force_unlock().map(drop)], is_wrong_type);
        assert_eq!(server.ask::<String>(&["TYPE", name]), kind);
        assert!(lock.is_locked()? && lock.remaining()?.is_some());
        assert!(!lock.is_held());
    }
    let left = pttl(&server, "string");
    assert!(left > 0 && left <= 600_000);
    server.ask::<()>(&["DEL", "string"]);
    client.lock("string").try_lock()?.expect("the queue is empty").unlock()
}

#[test]
fn a_wait_ends_when_the_key_gets_another_type() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).poll_interval(100 * MILLI).build()?;
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    let wait = || {
        let lock = client.lock("a");
        thread::spawn(move || lock.lock().map(drop))
    };
    let waiters = [wait(), wait()];
    eventually("the waiter subscribes", || server.numsub("redisson_lock__channel:{a}") == 1);
    server.ask::<()>(&["SET", "a", "text"]);
    for waiter in waiters {
        let ended = join(waiter);
        assert!(ended.as_ref().is_err_and(Error::is_server), "{ended:?}");
    }
    assert_eq!(server.ask::<String>(&["GET", "a"]), "text");
    Ok(())
}

#[test]
fn a_holder_of_an_overwritten_key_gets_an_error_and_leaves_the_key_unchanged() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let (guard, dropped) = (client.lock("a").lock()?, client.lock("b").lock()?);
    for name in ["a", "b"] {
        server.ask::<()>(&["SET", name, "text"]);
    }
    let extended = guard.extend(MINUTE);
    assert!(extended.as_ref().is_err_and(|e| e.is_server() || e.is_lost()), "{extended:?}");
    let ended = guard.unlock();
    assert!(ended.as_ref().is_err_and(|e| e.is_server() || e.is_lost()), "{ended:?}");
    drop(dropped);
    drop(client); // waits for the release
    for name in ["a", "b"] {
        assert_eq!(server.ask::<String>(&["GET", name]), "text");
    }
    Ok(())
}

/// Sends the names of lost locks and of locks whose renewal the server refuses.
///
/// Sends `None` for each renewal.
struct Losses(Sender<Option<String>>);

impl Events for Losses {
    fn lost(&self, event: &Lost) {
        // The receiver is gone when the test is over.
        let _ = self.0.send(Some(event.name.to_string()));
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        if event.error.is_server() {
            let _ = self.0.send(Some(format!("failed: {}", event.name)));
        }
    }
    fn renewed(&self, _: &Renewed) {
        let _ = self.0.send(None);
    }
}

#[test]
fn an_overwritten_key_does_not_prevent_the_renewal_of_other_locks() -> Result<()> {
    const LEASE: Duration = Duration::from_secs(5);
    let server = Server::start();
    let (sender, losses) = mpsc::channel();
    let builder = Client::builder().single(server.url()).watchdog_timeout(LEASE);
    let client = builder.events(Losses(sender)).build()?;
    let name = |number: u32| format!("lock {number}");
    let guards = (0..30).map(|number| client.lock(name(number)).lock());
    let guards = guards.collect::<Result<Vec<_>>>()?;
    server.ask::<()>(&["SET", &name(7), "text"]);
    // After a reconnect all leases are renewed at once.
    server.client_kill_type("normal");
    client.lock("another").lock()?.unlock()?;

    // Each lock that is not renewed is lost after this time.
    let (start, mut lost, mut later_renewals) = (Instant::now(), Vec::new(), 0);
    while later_renewals < 2 || start.elapsed() < LEASE {
        match losses.recv_timeout(MINUTE).expect("renewals continue") {
            Some(name) => lost.push(name),
            None => later_renewals += usize::from(!lost.is_empty()),
        }
        assert!(start.elapsed() < MINUTE, "the overwritten lock is not lost");
    }
    assert_eq!(lost, [name(7)]);
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    assert_eq!(held, guards.len() - 1);
    assert_eq!(server.ask::<String>(&["GET", &name(7)]), "text");
    Ok(())
}

#[test]
fn a_pool_size_out_of_bounds_is_refused() {
    for size in [0, 1025, usize::MAX] {
        let built = Client::builder().single("redis://127.0.0.1:1/").pool_size(size).build();
        assert!(built.is_err_and(|error| error.is_configuration()), "{size}");
    }
}

#[test]
fn the_user_of_a_url_is_used_without_a_password() -> Result<()> {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "worker", "on", "nopass", "~*", "&*", "+@all"]);
    let client = Client::open(format!("redis://worker@{}/", server.addr()))?;
    client.lock("a").lock()?.unlock()?;
    let is_worker = |peer: &Peer| peer.fields.get("user").is_some_and(|user| user == "worker");
    assert!(server.clients().iter().any(is_worker), "no connection has the user of the URL");
    Ok(())
}
