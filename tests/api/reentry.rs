//! Re-entry is counted in memory, per thread, without a command. A nested lock may change the
//! lease of the hold.

use crate::harness::faults::{BRISK, watched};
use crate::harness::{Server, eventually, exists, join, pttl};
use leasehold::{Client, Guard, Lock, Result};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Returns the commands since the last reset of the statistics, without those of the harness.
fn commands(server: &Server) -> Vec<String> {
    // Redis before 7 counts no subcommands.
    const HARNESS: [&str; 6] =
        ["client|setname", "client", "config|resetstat", "config", "info", "hello"];
    let mut stats = server.commandstats();
    stats.retain(|command, _| !HARNESS.contains(&command.as_str()));
    stats.into_keys().collect()
}

#[test]
fn every_verb_re_enters_without_any_command() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).announce(false).build()?;
    let lock = client.lock("a");
    let _outer = lock.lock()?;
    server.reset_stats();
    let guards = [
        lock.lock()?,
        lock.try_lock()?.expect("the thread holds the lock"),
        lock.try_lock_for(SECOND)?.expect("the thread holds the lock"),
        lock.try_lock_until(Instant::now() + SECOND)?.expect("the thread holds the lock"),
        lock.try_lock_for(Duration::ZERO)?.expect("the thread holds the lock"),
        client.clone().lock("a").lock()?,
        client.lock("a").with_lease(SECOND).lock()?,
    ];
    assert_eq!(lock.hold_count(), 8);
    let [first, rest @ ..] = guards;
    first.unlock()?;
    drop(rest);
    assert_eq!(lock.hold_count(), 1);
    assert_eq!(commands(&server), [""; 0]);
    Ok(())
}

#[test]
fn all_guards_of_a_thread_share_one_hold_with_count_one() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let guards = (lock.lock()?, lock.lock()?, lock.lock()?);
    let hash: Vec<(String, String)> = server.ask(&["HGETALL", "a"]);
    assert!(matches!(&hash[..], [(_, count)] if count == "1"), "{hash:?}");
    drop(guards);
    eventually("the lock is free", || !exists(&server, "a"));
    Ok(())
}

#[test]
fn nested_guards_end_in_any_order_and_the_last_one_releases() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut guards = [Some(lock.lock()?), Some(lock.lock()?), Some(lock.lock()?)];
        let mut end =
            |which: usize| guards[which].take().expect("a guard that has not ended").unlock();
        end(order[0])?;
        end(order[1])?;
        assert!(exists(&server, "a") && lock.hold_count() == 1, "{order:?}");
        end(order[2])?;
        assert!(!exists(&server, "a") && lock.hold_count() == 0, "{order:?}");
    }
    Ok(())
}

#[test]
fn neither_another_thread_nor_another_client_re_enters() -> Result<()> {
    let server = Server::start();
    let (client, other) = (Client::open(server.url())?, Client::open(server.url())?);
    let guard = client.lock("a").lock()?;
    assert!(other.lock("a").try_lock()?.is_none());
    let lock = client.lock("a");
    let elsewhere = thread::spawn(move || Result::Ok(lock.try_lock()?.is_none()));
    assert!(join(elsewhere)?);
    assert!(client.lock("b").try_lock()?.is_some(), "the other lock is free");
    guard.unlock()
}

#[test]
fn an_owned_guard_has_its_own_hold() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let owned = lock.lock_owned()?;
    assert!(lock.try_lock()?.is_none() && lock.try_lock_owned()?.is_none());
    assert!(lock.try_lock_for(Duration::from_millis(300))?.is_none());
    owned.unlock()
}

#[test]
fn an_owned_verb_that_would_wait_for_its_own_thread_reports_a_deadlock() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = Client::builder().single(server.url()).announce(false).build()?;
    let lock = client.lock("a");
    let asked = Arc::clone(&server);
    let thread = thread::spawn(move || {
        let guard = lock.lock()?;
        asked.reset_stats();
        assert!(lock.lock_owned().is_err_and(|e| e.is_deadlock()));
        assert!(lock.try_lock_for_owned(MINUTE).is_err_and(|e| e.is_deadlock()));
        let until = lock.try_lock_until_owned(Instant::now() + MINUTE);
        assert!(until.is_err_and(|e| e.is_deadlock()));
        assert!(lock.try_lock_owned()?.is_none(), "`try_lock_owned` does not wait");
        assert_eq!(commands(&asked), [""; 0]);
        guard.unlock()?;
        lock.lock_owned()?.unlock()
    });
    join(thread)
}

#[test]
fn a_longer_nested_fixed_lease_extends_a_fixed_hold() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).announce(false).build()?;
    let outer = client.lock("a").with_lease(10 * SECOND).lock()?;
    let inner = client.lock("a").with_lease(MINUTE).lock()?;
    assert!(pttl(&server, "a") > 30_000);
    assert!(outer.remaining() > 30 * SECOND && inner.remaining() > 30 * SECOND);
    inner.unlock()?;
    assert!(pttl(&server, "a") > 30_000, "the lease stays extended");

    server.reset_stats();
    let shorter = client.lock("a").with_lease(10 * SECOND).lock()?;
    assert!(shorter.remaining() > 30 * SECOND, "the lease is never shortened");
    assert_eq!(commands(&server), [""; 0]);
    drop(shorter);
    outer.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn a_nested_watched_lock_makes_the_watchdog_renew_a_fixed_hold_until_its_end() -> Result<()> {
    let server = Server::start();
    let (client, renewals) = watched(&server, BRISK);
    let outer = client.lock("a").with_lease(BRISK).lock()?;
    let inner = client.lock("a").lock()?;
    renewals.renewed(3);
    inner.unlock()?;
    renewals.renewed(3); // also after the end of the nested guard
    assert!(outer.is_held() && pttl(&server, "a") > 0);
    outer.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn a_nested_watched_lock_keeps_the_longer_lease_of_a_fixed_hold() -> Result<()> {
    let server = Server::start();
    let (client, renewals) = watched(&server, BRISK);
    let outer = client.lock("a").with_lease(MINUTE).lock()?;
    let _inner = client.lock("a").lock()?;
    let _other = client.lock("b").lock()?;
    renewals.renewed(4); // of the other lock, while time passes
    assert!(pttl(&server, "a") > 30_000 && outer.remaining() > 30 * SECOND);
    Ok(())
}

#[test]
fn a_nested_fixed_lease_does_not_change_a_renewed_hold() -> Result<()> {
    let server = Server::start();
    let (client, renewals) = watched(&server, BRISK);
    let outer = client.lock("a").lock()?;
    for lease in [MINUTE, Duration::from_millis(10)] {
        let inner = client.lock("a").with_lease(lease).lock()?;
        assert!(pttl(&server, "a") <= BRISK.as_millis() as i64);
        renewals.renewed(3);
        inner.unlock()?;
    }
    assert!(outer.is_held(), "the lease is still renewed");
    outer.unlock()
}

/// Returns a guard of a lost hold of this thread.
fn lost_guard(server: &Server, lock: &Lock) -> Guard {
    let guard =
        lock.clone().with_lease(Duration::from_millis(200)).lock().expect("the lock is free");
    assert!(guard.wait_lost(MINUTE));
    eventually("the lock is free", || !exists(server, lock.name()));
    guard
}

#[test]
fn re_entry_of_a_lost_hold_is_an_error_until_its_guards_end() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let guard = lost_guard(&server, &lock);
    assert!(lock.lock().is_err_and(|e| e.is_lost()));
    assert!(lock.try_lock().is_err_and(|e| e.is_lost()));
    assert!(lock.try_lock_for(SECOND).is_err_and(|e| e.is_lost()));
    assert!(lock.try_lock_until(Instant::now() + SECOND).is_err_and(|e| e.is_lost()));
    assert!(!exists(&server, "a") && lock.hold_count() == 0);
    drop(guard);
    lock.lock()?.unlock()
}

#[test]
fn a_thread_with_a_guard_of_a_lost_hold_can_take_an_owned_guard() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let guard = lost_guard(&server, &lock);
    let owned = lock.lock_owned()?;
    assert!(owned.is_held() && !guard.is_held());
    drop(guard);
    assert!(owned.is_held() && exists(&server, "a"));
    owned.unlock()
}

#[test]
fn all_nested_guards_of_a_lost_hold_report_the_loss() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a").with_lease(Duration::from_millis(300));
    let (outer, inner) = (lock.lock()?, lock.lock()?);
    assert!(inner.wait_lost(MINUTE));
    assert!(outer.check().is_err_and(|e| e.is_lost()));
    assert!(inner.unlock().is_err_and(|e| e.is_lost()));
    assert!(outer.unlock().is_err_and(|e| e.is_lost()));
    Ok(())
}
