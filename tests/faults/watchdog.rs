//! The watchdog: it renews leases in batches, never shortens a lease, and notices lost leases.

use crate::harness::faults::{BRISK, Event, watched};
use crate::harness::{Server, eventually, exists, pttl};
use leasehold::{LostReason, Result};
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// A watchdog time-out that is short enough to wait for.
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_watched_lock_outlives_its_lease() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let start = Instant::now();
    let (guard, owned) = (client.lock("a").lock()?, client.lock("b").lock_owned()?);
    let field: Vec<String> = server.ask(&["HGETALL", "a"]);
    while start.elapsed() < 2 * BRISK {
        events.renewed(1);
        assert!((1..=BRISK.as_millis() as i64).contains(&pttl(&server, "a")));
    }
    assert!(guard.is_held() && owned.is_held() && exists(&server, "b"));
    assert!(guard.remaining() > Duration::ZERO && guard.remaining() < BRISK);
    assert_eq!(server.ask::<Vec<String>>(&["HGETALL", "a"]), field, "the hold is the same");
    guard.unlock()?;
    owned.unlock()
}

#[test]
fn a_released_lock_is_not_renewed() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let locks: Vec<_> = (0..5).map(|number| client.lock(number.to_string())).collect();
    for lock in &locks {
        lock.lock()?.unlock()?;
        drop(lock.lock()?);
        drop(lock.lock_owned()?);
    }
    let _kept = client.lock("kept").lock()?;
    assert_eq!(events.renewed(3), [1, 1, 1], "only the lock that is held");
    Ok(())
}

#[test]
fn an_extended_lease_is_never_shortened_by_renewals() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    guard.extend(MINUTE)?;
    assert!(guard.remaining() > MINUTE / 2 && pttl(&server, "a") > 30_000);
    let _other = client.lock("b").lock()?;
    events.renewed(4);
    assert!(guard.remaining() > MINUTE / 2 && pttl(&server, "a") > 30_000);

    // After a reconnect all leases are renewed at once.
    eventually("both are renewed in one batch", || {
        server.client_kill_type("normal");
        let reconnects = client.lock("c").lock().and_then(|guard| guard.unlock());
        reconnects.is_ok() && events.renewed(1)[0] >= 2
    });
    assert!(pttl(&server, "a") > 30_000 && guard.remaining() > MINUTE / 2);
    guard.extend(Duration::from_secs(2))?;
    assert!(pttl(&server, "a") > 30_000 && guard.remaining() > MINUTE / 2);
    guard.unlock()
}

#[test]
fn a_slightly_extended_lease_is_renewed_in_time() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    guard.extend(2 * BRISK)?;
    let start = Instant::now();
    while start.elapsed() < 5 * BRISK / 2 {
        events.renewed(1);
    }
    assert!(guard.is_held());
    guard.unlock()
}

#[test]
fn a_fixed_lease_is_extended_once_and_not_renewed() -> Result<()> {
    let server = Server::start();
    let (client, _events) = watched(&server, SHORT);
    let guard = client.lock("a").with_lease(10 * SHORT).lock()?;
    guard.extend(SHORT)?;
    assert!(guard.remaining() > SHORT, "an extension never shortens a lease");
    let unaffected = client.lock("b").with_lease(MINUTE).lock()?;
    let start = Instant::now();
    let (brief, longer) = (client.lock("c").with_lease(5 * SHORT).lock()?, 8 * SHORT);
    brief.extend(longer)?;
    assert!(brief.wait_lost(MINUTE));
    assert!(start.elapsed() >= longer * 9 / 10, "lost after {:?}", start.elapsed());
    assert!(brief.extend(MINUTE).is_err_and(|e| e.is_lost()), "a loss is final");
    unaffected.unlock()
}

#[test]
fn the_deletion_of_a_fixed_lease_is_noticed_within_a_renewal_period() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").with_lease(10 * MINUTE).lock()?;
    let before = pttl(&server, "a");
    eventually("the watchdog checks the hold several times", || server.calls("hexists") > 3);
    assert!(guard.is_held() && pttl(&server, "a") < before, "the lease is not extended");
    server.ask::<()>(&["DEL", "a"]);
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert_eq!(events.lost().reason, LostReason::Gone);
    assert!(guard.check().is_err_and(|e| e.is_lost()));
    assert_eq!(pttl(&server, "a"), -1, "the next hold does not change");
    Ok(())
}

#[test]
fn the_deletion_of_an_extended_lease_is_noticed_within_a_renewal_period() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    guard.extend(10 * MINUTE)?;
    // The first renewal was scheduled before the extension.
    events.renewed(2);
    server.ask::<()>(&["DEL", "a"]);
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert_eq!(events.lost().reason, LostReason::Gone);
    assert!(!guard.is_held());
    Ok(())
}

#[test]
fn a_fixed_lease_that_cannot_be_checked_is_kept_and_checked_later() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").with_lease(10 * MINUTE).lock()?;
    server.stop();
    thread::sleep(2 * BRISK);
    server.resume();
    assert!(guard.is_held() && guard.remaining() > 5 * MINUTE);
    let before = server.calls("hexists");
    eventually("the watchdog checks the hold again", || server.calls("hexists") > before + 1);
    assert!(guard.is_held());
    server.ask::<()>(&["DEL", "a"]);
    assert_eq!(events.lost().reason, LostReason::Gone);
    Ok(())
}

#[test]
fn an_extension_of_a_deleted_hold_is_an_error_and_does_not_restore_it() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, MINUTE);
    let guard = client.lock("a").lock()?;
    server.ask::<()>(&["DEL", "a"]);
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert!(guard.extend(MINUTE).is_err_and(|e| e.is_lost()));
    assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
    assert_eq!(events.lost().reason, LostReason::Gone);
    assert_eq!(pttl(&server, "a"), -1, "the next hold does not change");
    Ok(())
}

#[test]
fn many_leases_are_renewed_by_few_commands() -> Result<()> {
    const LOCKS: usize = 200;
    let server = Server::start();
    let (client, events) = watched(&server, 2 * BRISK);
    let name = |number| format!("lock {number}");
    let guards = (0..LOCKS).map(|number| client.lock(name(number)).lock());
    let guards = guards.collect::<Result<Vec<_>>>()?;
    // After a reconnect all renewals are due at once.
    server.client_kill_type("normal");
    client.lock("another").lock()?.unlock()?;
    let whole_batch = |event| match event {
        Event::Renewed(renewed) if renewed.holds.len() == 128 => Some(()),
        _ => None,
    };
    events.until("a whole batch", whole_batch);

    let before = server.calls("evalsha");
    let mut leases = 0;
    while leases < 3 * LOCKS {
        leases += events.renewed(1)[0];
    }
    let commands = server.calls("evalsha") - before;
    assert!(commands <= leases as u64 / 4, "{commands} commands for {leases} renewals");
    assert!(guards.iter().all(|guard| guard.is_held()));
    Ok(())
}

#[test]
fn a_lease_that_ends_in_an_outage_is_lost_by_the_clock_and_reported_once() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    assert!(!guard.wait_lost(Duration::from_millis(1)));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| guard.wait_lost(MINUTE));
        server.stop();
        assert!(waiter.join().expect("no panic"));
    });
    let start = Instant::now();
    assert!(guard.check().is_err_and(|e| e.is_lost()));
    assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
    assert!(guard.wait_lost(MINUTE) && start.elapsed() < MINUTE / 2, "a lost guard does not wait");
    assert_eq!(events.lost().reason, LostReason::Expired);

    server.resume();
    assert!(!guard.is_held(), "a loss is final, even if the server keeps the hold");
    drop(guard);
    client.lock("b").with_lease(MINUTE).lock()?.unlock()?;
    let more = events.until_released("b");
    assert!(!more.iter().any(|event| matches!(event, Event::Lost(_))), "{more:?}");
    Ok(())
}

#[test]
fn a_deleted_lock_is_lost_at_its_next_renewal_and_its_guard_ends_no_other_hold() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, 2 * BRISK);
    let (guard, owned) = (client.lock("a").lock()?, client.lock("b").lock_owned()?);
    for name in ["a", "b"] {
        server.ask::<()>(&["DEL", name]);
        server.ask::<()>(&["HSET", name, "java:1", "1"]);
    }
    let lost = [events.lost(), events.lost()];
    let mut names: Vec<_> = lost.iter().map(|lost| &*lost.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    assert!(lost.iter().all(|lost| lost.reason == LostReason::Gone), "{lost:?}");
    assert!(guard.check().is_err_and(|e| e.is_lost()) && !owned.is_held());
    drop((guard, owned));
    drop(client); // Blocks until the background requests are done.
    for name in ["a", "b"] {
        assert!(exists(&server, name) && pttl(&server, name) == -1);
    }
    Ok(())
}

#[test]
fn renewals_that_fail_for_a_while_lose_no_hold() -> Result<()> {
    let server = Server::start();
    let watchdog = 3 * BRISK;
    let (client, events) = watched(&server, watchdog);
    let guard = client.lock("a").lock()?;
    server.stop();
    let failed = events.renewal_failed();
    server.resume();
    assert_eq!(&*failed.name, "a");
    assert!(failed.remaining > Duration::ZERO && failed.remaining < watchdog);
    assert!(failed.error.is_timeout(), "{:?}", failed.error);
    events.renewed(1);
    assert!(guard.is_held() && exists(&server, "a"));
    guard.unlock()?;
    let rest = events.until_released("a");
    assert!(!rest.iter().any(|event| matches!(event, Event::Lost(_))), "{rest:?}");
    Ok(())
}

#[test]
fn wait_lost_returns_at_its_timeout_and_at_a_force_unlock() -> Result<()> {
    let server = Server::start();
    let (client, _events) = watched(&server, MINUTE);
    let guard = client.lock("a").lock()?;
    let (start, short) = (Instant::now(), Duration::from_millis(50));
    assert!(!guard.wait_lost(short) && start.elapsed() >= short);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| guard.wait_lost(Duration::MAX));
        assert!(client.lock("a").force_unlock().expect("the server answers"));
        assert!(waiter.join().expect("no panic"));
    });
    Ok(())
}

#[test]
fn a_lock_that_is_not_renewed_is_free_at_the_end_of_its_lease() -> Result<()> {
    let server = Server::start();
    let (client, _events) = watched(&server, SHORT);
    let guard = client.lock("a").lock()?;
    client.close(); // Ends the renewals, as the death of the process does.
    eventually("the lock is free", || !exists(&server, "a"));
    assert!(!guard.is_held(), "the guard ends no later than the server's lease");
    Ok(())
}
