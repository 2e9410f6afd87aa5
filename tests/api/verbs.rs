//! Every verb and query of the plain lock.
//!
//! The lock is free, or is held by another client or by another thread of the same client.

use crate::harness::faults::channel_of;
use crate::harness::{Server, eventually, exists, join, pttl};
use leasehold::{Client, Guard, Lock, OwnedGuard, Result};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(60);

/// The guard that a verb returns.
enum AnyGuard {
    Thread(Guard),
    Owned(OwnedGuard),
}

impl AnyGuard {
    fn unlock(self) -> Result<()> {
        match self {
            AnyGuard::Thread(guard) => guard.unlock(),
            AnyGuard::Owned(guard) => guard.unlock(),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            AnyGuard::Thread(guard) => guard.is_held(),
            AnyGuard::Owned(guard) => guard.is_held(),
        }
    }
}

/// A verb. Only the `BOUNDED` verbs use the limit of the wait.
type Verb = fn(&Lock, Duration) -> Result<Option<AnyGuard>>;

/// The verbs that wait up to a limit.
const BOUNDED: [(&str, Verb); 4] = [
    ("try_lock_for", |lock, wait| Ok(lock.try_lock_for(wait)?.map(AnyGuard::Thread))),
    ("try_lock_until", |lock, wait| {
        Ok(lock.try_lock_until(Instant::now() + wait)?.map(AnyGuard::Thread))
    }),
    ("try_lock_for_owned", |lock, wait| Ok(lock.try_lock_for_owned(wait)?.map(AnyGuard::Owned))),
    ("try_lock_until_owned", |lock, wait| {
        Ok(lock.try_lock_until_owned(Instant::now() + wait)?.map(AnyGuard::Owned))
    }),
];

/// The verbs that do not wait.
const AT_ONCE: [(&str, Verb); 2] = [
    ("try_lock", |lock, _| Ok(lock.try_lock()?.map(AnyGuard::Thread))),
    ("try_lock_owned", |lock, _| Ok(lock.try_lock_owned()?.map(AnyGuard::Owned))),
];

/// The verbs that wait without a limit.
const UNBOUNDED: [(&str, Verb); 2] = [
    ("lock", |lock, _| lock.lock().map(AnyGuard::Thread).map(Some)),
    ("lock_owned", |lock, _| lock.lock_owned().map(AnyGuard::Owned).map(Some)),
];

fn all_verbs() -> impl Iterator<Item = (&'static str, Verb)> {
    AT_ONCE.into_iter().chain(BOUNDED).chain(UNBOUNDED)
}

/// Blocks until a waiter is subscribed and sends no requests.
fn wait_until_quiet(server: &Server, name: &str) {
    server.await_quiet_waiter(&channel_of(name));
}

#[test]
fn every_verb_takes_a_free_lock_and_unlock_frees_it() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for (name, verb) in all_verbs() {
        let guard = verb(&client.lock(name), LONG)?.expect(name);
        assert!(exists(&server, name) && guard.is_held(), "{name}");
        guard.unlock()?;
        assert!(!exists(&server, name), "{name}");
    }
    Ok(())
}

#[test]
fn a_dropped_guard_frees_the_lock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for (name, verb) in all_verbs() {
        drop(verb(&client.lock(name), LONG)?.expect(name));
        eventually("the lock is free", || !exists(&server, name));
    }
    Ok(())
}

#[test]
fn try_verbs_return_none_for_the_lock_of_another_client_and_leave_it_unchanged() -> Result<()> {
    let server = Server::start();
    let (holder, client) = (Client::open(server.url())?, Client::open(server.url())?);
    let _guard = holder.lock("a").with_lease(LONG).lock()?;
    let before: Vec<String> = server.ask(&["HGETALL", "a"]);
    for (name, verb) in AT_ONCE.into_iter().chain(BOUNDED) {
        assert!(verb(&client.lock("a"), SHORT)?.is_none(), "{name}");
        assert_eq!(server.ask::<Vec<String>>(&["HGETALL", "a"]), before, "{name}");
    }
    Ok(())
}

#[test]
fn try_verbs_return_none_for_the_lock_of_another_thread() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let _guard = client.lock("a").lock()?;
    let lock = client.lock("a");
    let elsewhere = move || {
        for (name, verb) in AT_ONCE.into_iter().chain(BOUNDED) {
            assert!(verb(&lock, SHORT)?.is_none(), "{name}");
        }
        Ok(())
    };
    join(thread::spawn(elsewhere))
}

#[test]
fn verbs_that_wait_get_the_lock_when_another_client_releases_it() -> Result<()> {
    let server = Server::start();
    let holder = Client::open(server.url())?;
    let client = Client::builder().single(server.url()).poll_interval(LONG).build()?;
    for (name, verb) in BOUNDED.into_iter().chain(UNBOUNDED) {
        let guard = holder.lock(name).with_lease(LONG).lock()?;
        let lock = client.lock(name);
        let waiter = thread::spawn(move || verb(&lock, LONG)?.expect(name).unlock());
        wait_until_quiet(&server, name);
        guard.unlock()?;
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn verbs_that_wait_get_the_lock_when_another_thread_releases_it() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).poll_interval(LONG).build()?;
    for (name, verb) in BOUNDED.into_iter().chain(UNBOUNDED) {
        let guard = client.lock(name).lock()?;
        let lock = client.lock(name);
        let (starts, started) = mpsc::channel();
        let waiter = thread::spawn(move || {
            starts.send(()).expect("the test listens");
            verb(&lock, LONG)?.expect(name).unlock()
        });
        started.recv().expect("the thread starts");
        guard.unlock()?;
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn a_wait_lasts_as_long_as_its_limit() -> Result<()> {
    let server = Server::start();
    let (holder, client) = (Client::open(server.url())?, Client::open(server.url())?);
    let _guard = holder.lock("a").lock()?;
    for (name, verb) in BOUNDED {
        let start = Instant::now();
        assert!(verb(&client.lock("a"), SHORT)?.is_none(), "{name}");
        assert!(start.elapsed() >= SHORT, "{name} returned after {:?}", start.elapsed());
    }
    Ok(())
}

#[test]
fn an_uncontended_lock_takes_one_command_and_its_release_another() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).announce(false).build()?;
    client.lock("warm").lock()?.unlock()?; // the server knows the scripts from here on
    server.reset_stats();
    for (name, verb) in all_verbs() {
        verb(&client.lock(name), LONG)?.expect(name).unlock()?;
    }
    assert_eq!(server.calls("evalsha"), 2 * all_verbs().count() as u64);
    assert_eq!(server.calls("hset"), all_verbs().count() as u64);
    Ok(())
}

#[test]
fn an_attempt_on_the_lock_of_another_thread_is_refused_without_a_round_trip() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).announce(false).build()?;
    let _guard = client.lock("a").lock()?;
    server.reset_stats();
    let lock = client.lock("a");
    let tried = thread::spawn(move || Ok((lock.try_lock()?.is_none(), lock.try_lock_owned()?)));
    let (refused, owned) = join(tried)?;
    assert!(refused && owned.is_none());
    assert_eq!(server.calls("evalsha"), 0);
    Ok(())
}

#[test]
fn a_lease_has_the_requested_length() -> Result<()> {
    let server = Server::start();
    let watchdog = Duration::from_secs(20);
    let client = Client::builder().single(server.url()).watchdog_timeout(watchdog).build()?;
    for (lock, lease) in [
        (client.lock("fixed").with_lease(LONG), LONG),
        (client.lock("longest").with_lease(Duration::from_secs(3600)), LONG * 60),
        (client.lock("watched"), watchdog),
    ] {
        let (before, guard) = (Instant::now(), lock.lock()?);
        let (left, at_most) = (pttl(&server, lock.name()), lease.as_millis() as i64);
        let passed = before.elapsed().as_millis() as i64 + 1;
        assert!((at_most - passed..=at_most).contains(&left), "{left} ms of {lease:?}");
        let remaining = guard.remaining();
        assert!(remaining < lease, "never more than the server grants");
        assert!(remaining + before.elapsed() > lease * 9 / 10, "{remaining:?} of {lease:?}");
        guard.unlock()?;
    }
    Ok(())
}

#[test]
fn a_fixed_lease_is_not_renewed_and_a_late_drop_releases_no_other_hold() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).watchdog_timeout(SHORT).build()?;
    let (start, lease) = (Instant::now(), 2 * SHORT);
    let guard = client.lock("a").with_lease(lease).lock()?;
    assert!(guard.wait_lost(LONG), "the lease is renewed");
    assert!(start.elapsed() >= lease * 9 / 10, "lost after {:?}", start.elapsed());

    let next = Client::open(server.url())?;
    let held = next.lock("a").try_lock_for(LONG)?.expect("the lease is over");
    drop(guard);
    client.lock("b").lock()?.unlock()?; // a request of the drop would have arrived
    drop(client);
    assert!(exists(&server, "a") && held.is_held());
    held.unlock()
}

#[test]
fn is_locked_and_remaining_return_the_answer_of_the_server() -> Result<()> {
    let server = Server::start();
    let (holder, client) = (Client::open(server.url())?, Client::open(server.url())?);
    let lock = client.lock("a");
    assert!(!lock.is_locked()?);
    assert_eq!(lock.remaining()?, None);

    let guard = holder.lock("a").with_lease(LONG).lock()?;
    assert!(lock.is_locked()?);
    let left = lock.remaining()?.expect("the lock is held");
    assert!(left <= LONG && left > guard.remaining(), "{left:?}");
    guard.unlock()?;
    assert!(!lock.is_locked()?);

    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert_eq!(lock.remaining()?, Some(Duration::MAX), "no time to live");
    Ok(())
}

#[test]
fn is_held_and_hold_count_answer_per_thread_and_without_a_command() -> Result<()> {
    let server = Server::start();
    let (client, other) = (
        Client::builder().single(server.url()).announce(false).build()?,
        Client::builder().single(server.url()).announce(false).build()?,
    );
    let lock = client.lock("a");
    assert!(!lock.is_held());
    let guard = lock.lock()?;
    server.reset_stats();
    assert!(lock.is_held() && client.clone().lock("a").is_held());
    assert_eq!(lock.hold_count(), 1);
    assert_eq!(client.lock("b").hold_count(), 0);
    assert_eq!(other.lock("a").hold_count(), 0);
    let elsewhere = lock.clone();
    let elsewhere = thread::spawn(move || (elsewhere.is_held(), elsewhere.hold_count()));
    assert_eq!(join(elsewhere), (false, 0));
    assert_eq!(server.calls("exists") + server.calls("pttl") + server.calls("evalsha"), 0);
    guard.unlock()?;
    assert!(!lock.is_held());

    let owned = lock.lock_owned()?;
    assert_eq!(lock.hold_count(), 0, "an owned guard belongs to no thread");
    owned.unlock()
}

#[test]
fn an_owned_guard_can_be_used_and_dropped_by_another_thread() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for unlock in [true, false] {
        let guard = client.lock("a").lock_owned()?;
        let elsewhere = thread::spawn(move || {
            guard.check()?;
            guard.extend(LONG)?;
            if unlock {
                guard.unlock()?
            } else {
                drop(guard)
            }
            Result::Ok(())
        });
        join(elsewhere)?;
        eventually("the lock is free", || !exists(&server, "a"));
    }
    Ok(())
}

#[test]
fn a_guard_outlives_its_lock_and_its_client() -> Result<()> {
    let server = Server::start();
    let guard = Client::open(server.url())?.lock("a").lock()?;
    assert!(guard.is_held() && exists(&server, "a"));
    guard.extend(LONG)?;
    guard.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn unlock_reports_the_loss_of_a_deleted_lock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let guard = client.lock("a").lock()?;
    server.ask::<()>(&["DEL", "a"]);
    assert!(guard.is_held(), "the client has not asked the server yet");
    let error = guard.unlock().expect_err("the lock was deleted");
    assert!(error.is_lost(), "{error:?}");
    Ok(())
}

#[test]
fn force_unlock_frees_the_lock_of_another_client_and_returns_whether_it_was_held() -> Result<()> {
    let server = Server::start();
    let holder = Client::open(server.url())?;
    let client = Client::builder().single(server.url()).poll_interval(LONG).build()?;
    assert!(!client.lock("a").force_unlock()?);

    let guard = holder.lock("a").with_lease(LONG).lock()?;
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    wait_until_quiet(&server, "a");
    assert!(client.lock("a").force_unlock()?);
    join(waiter)?; // woken by the message alone
    assert!(!exists(&server, "a"));
    assert!(guard.unlock().expect_err("the lock was freed by force").is_lost());
    assert!(!client.lock("a").force_unlock()?);
    Ok(())
}

#[test]
fn force_unlock_is_seen_at_once_by_a_holder_of_the_same_client() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let guard = client.lock("a").lock()?;
    let owned = client.lock("b").lock_owned()?;
    assert!(client.lock("a").force_unlock()? && client.lock("b").force_unlock()?);
    assert!(!guard.is_held() && !owned.is_held());
    assert_eq!(client.lock("a").hold_count(), 0);
    assert!(guard.unlock().expect_err("the lock was freed by force").is_lost());
    Ok(())
}

#[test]
fn a_prefix_is_part_of_the_key_and_not_of_the_name() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).name_prefix("app:").build()?;
    let lock = client.lock("a");
    assert_eq!(lock.name(), "a");
    let guard = lock.lock()?;
    assert_eq!(server.keys(), ["app:a"]);
    let plain = Client::open(server.url())?;
    assert!(plain.lock("app:a").try_lock()?.is_none() && plain.lock("a").try_lock()?.is_some());
    guard.unlock()
}
