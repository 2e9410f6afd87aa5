//! The watchdog: it keeps leases alive, never shortens one, and asks for many at
//! once; and how a lost lease is noticed.

use crate::harness::faults::{BRISK, Event, watched};
use crate::harness::{Server, eventually, exists, pttl};
use leasehold::{LostReason, Result};
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// One that ends soon when the server stands still.
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_watched_lock_outlives_its_lease_many_times() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let start = Instant::now();
    let (guard, owned) = (client.lock("a").lock()?, client.lock("b").lock_owned()?);
    let field: Vec<String> = server.ask(&["HGETALL", "a"]);
    while start.elapsed() < 2 * BRISK {
        heard.renewed(1);
        assert!((1..=BRISK.as_millis() as i64).contains(&pttl(&server, "a")));
    }
    assert!(guard.is_held() && owned.is_held() && exists(&server, "b"));
    assert!(guard.remaining() > Duration::ZERO && guard.remaining() < BRISK);
    assert_eq!(server.ask::<Vec<String>>(&["HGETALL", "a"]), field, "it is the same hold");
    guard.unlock()?;
    owned.unlock()
}

#[test]
fn a_released_lock_is_renewed_no_more() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let locks: Vec<_> = (0..5).map(|number| client.lock(number.to_string())).collect();
    for lock in &locks {
        lock.lock()?.unlock()?;
        drop(lock.lock()?);
        drop(lock.lock_owned()?);
    }
    let _kept = client.lock("kept").lock()?;
    assert_eq!(heard.renewed(3), [1, 1, 1], "only the lock that is held");
    Ok(())
}

#[test]
fn an_extended_lease_is_never_shortened_by_renewals() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    guard.extend(MINUTE)?;
    assert!(guard.remaining() > MINUTE / 2 && pttl(&server, "a") > 30_000);
    let _other = client.lock("b").lock()?;
    heard.renewed(4);
    assert!(guard.remaining() > MINUTE / 2 && pttl(&server, "a") > 30_000);

    // After a reconnect all leases are renewed at once.
    eventually("both are renewed together", || {
        server.client_kill_type("normal");
        let reconnects = client.lock("c").lock().and_then(|guard| guard.unlock());
        reconnects.is_ok() && heard.renewed(1)[0] >= 2
    });
    assert!(pttl(&server, "a") > 30_000 && guard.remaining() > MINUTE / 2);
    guard.extend(Duration::from_secs(2))?;
    assert!(pttl(&server, "a") > 30_000 && guard.remaining() > MINUTE / 2);
    guard.unlock()
}

#[test]
fn a_lease_that_was_extended_by_little_is_renewed_in_time() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    guard.extend(2 * BRISK)?;
    let start = Instant::now();
    while start.elapsed() < 5 * BRISK / 2 {
        heard.renewed(1);
    }
    assert!(guard.is_held());
    guard.unlock()
}

#[test]
fn a_fixed_lease_is_extended_once_and_not_renewed() -> Result<()> {
    let server = Server::start();
    let (client, _heard) = watched(&server, SHORT);
    let guard = client.lock("a").with_lease(10 * SHORT).lock()?;
    guard.extend(SHORT)?;
    assert!(guard.remaining() > SHORT, "it is never shortened");
    let guard_of_another = client.lock("b").with_lease(MINUTE).lock()?;
    let start = Instant::now();
    let (brief, longer) = (client.lock("c").with_lease(5 * SHORT).lock()?, 8 * SHORT);
    brief.extend(longer)?;
    assert!(brief.wait_lost(MINUTE));
    assert!(start.elapsed() >= longer * 9 / 10, "lost after {:?}", start.elapsed());
    assert!(brief.extend(MINUTE).is_err_and(|e| e.is_lost()), "lost is final");
    guard_of_another.unlock()
}

#[test]
fn a_fixed_lease_that_was_taken_away_is_lost_within_a_renewal_period() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let guard = client.lock("a").with_lease(10 * MINUTE).lock()?;
    let before = pttl(&server, "a");
    eventually("the server is asked again and again", || server.calls("hexists") > 3);
    assert!(guard.is_held() && pttl(&server, "a") < before, "the lease is not extended");
    server.ask::<()>(&["DEL", "a"]);
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert_eq!(heard.lost().reason, LostReason::Gone);
    assert!(guard.check().is_err_and(|e| e.is_lost()));
    assert_eq!(pttl(&server, "a"), -1, "the lease of another is not touched");
    Ok(())
}

#[test]
fn an_extended_lease_that_was_taken_away_is_lost_within_a_renewal_period() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    guard.extend(10 * MINUTE)?;
    // The first was planned before the extension.
    heard.renewed(2);
    server.ask::<()>(&["DEL", "a"]);
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert_eq!(heard.lost().reason, LostReason::Gone);
    assert!(!guard.is_held());
    Ok(())
}

#[test]
fn a_fixed_lease_that_cannot_be_looked_at_is_kept_and_looked_at_later() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let guard = client.lock("a").with_lease(10 * MINUTE).lock()?;
    server.stop();
    thread::sleep(2 * BRISK);
    server.resume();
    assert!(guard.is_held() && guard.remaining() > 5 * MINUTE);
    let before = server.calls("hexists");
    eventually("it is looked at again", || server.calls("hexists") > before + 1);
    assert!(guard.is_held());
    server.ask::<()>(&["DEL", "a"]);
    assert_eq!(heard.lost().reason, LostReason::Gone);
    Ok(())
}

#[test]
fn extending_what_was_taken_away_says_so_and_takes_nothing_back() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, MINUTE);
    let guard = client.lock("a").lock()?;
    server.ask::<()>(&["DEL", "a"]);
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert!(guard.extend(MINUTE).is_err_and(|e| e.is_lost()));
    assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
    assert_eq!(heard.lost().reason, LostReason::Gone);
    assert_eq!(pttl(&server, "a"), -1, "the lease of another is not touched");
    Ok(())
}

#[test]
fn many_leases_are_renewed_by_few_commands() -> Result<()> {
    const LOCKS: usize = 200;
    let server = Server::start();
    let (client, heard) = watched(&server, 2 * BRISK);
    let name = |number| format!("lock {number}");
    let guards = (0..LOCKS).map(|number| client.lock(name(number)).lock());
    let guards = guards.collect::<Result<Vec<_>>>()?;
    // Brings all renewals together: after a reconnect they are due at once.
    server.client_kill_type("normal");
    client.lock("another").lock()?.unlock()?;
    let all = |told| match told {
        Event::Renewed(renewed) if renewed.holds.len() == 128 => Some(()),
        _ => None,
    };
    heard.until("a whole batch", all);

    let before = server.calls("evalsha");
    let mut leases = 0;
    while leases < 3 * LOCKS {
        leases += heard.renewed(1)[0];
    }
    let asked = server.calls("evalsha") - before;
    assert!(asked <= leases as u64 / 4, "{asked} commands for {leases} renewals");
    assert!(guards.iter().all(|guard| guard.is_held()));
    Ok(())
}

#[test]
fn a_lease_that_runs_out_unheard_is_lost_by_the_clock_alone_and_told_once() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, BRISK);
    let guard = client.lock("a").lock()?;
    assert!(!guard.wait_lost(Duration::from_millis(1)));
    thread::scope(|scope| {
        let waits = scope.spawn(|| guard.wait_lost(MINUTE));
        server.stop();
        assert!(waits.join().expect("no panic"));
    });
    let start = Instant::now();
    assert!(guard.check().is_err_and(|e| e.is_lost()));
    assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
    assert!(guard.wait_lost(MINUTE) && start.elapsed() < MINUTE / 2, "it asks nobody");
    assert_eq!(heard.lost().reason, LostReason::Expired);

    server.resume();
    assert!(!guard.is_held(), "lost is final, even if the server still has it");
    drop(guard);
    client.lock("b").with_lease(MINUTE).lock()?.unlock()?;
    let more = heard.until_released("b");
    assert!(!more.iter().any(|told| matches!(told, Event::Lost(_))), "{more:?}");
    Ok(())
}

#[test]
fn a_lock_that_was_deleted_is_lost_at_its_next_renewal_and_its_guard_harms_nobody() -> Result<()> {
    let server = Server::start();
    let (client, heard) = watched(&server, 2 * BRISK);
    let (guard, owned) = (client.lock("a").lock()?, client.lock("b").lock_owned()?);
    for name in ["a", "b"] {
        server.ask::<()>(&["DEL", name]);
        server.ask::<()>(&["HSET", name, "java:1", "1"]);
    }
    let told = [heard.lost(), heard.lost()];
    let mut names: Vec<_> = told.iter().map(|lost| &*lost.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    assert!(told.iter().all(|lost| lost.reason == LostReason::Gone), "{told:?}");
    assert!(guard.check().is_err_and(|e| e.is_lost()) && !owned.is_held());
    drop((guard, owned));
    drop(client); // waits for what is owed
    for name in ["a", "b"] {
        assert!(exists(&server, name) && pttl(&server, name) == -1);
    }
    Ok(())
}

#[test]
fn renewals_that_fail_for_a_while_lose_nothing() -> Result<()> {
    let server = Server::start();
    let watchdog = 3 * BRISK;
    let (client, heard) = watched(&server, watchdog);
    let guard = client.lock("a").lock()?;
    server.stop();
    let failed = heard.renewal_failed();
    server.resume();
    assert_eq!(&*failed.name, "a");
    assert!(failed.remaining > Duration::ZERO && failed.remaining < watchdog);
    assert!(failed.error.is_timeout(), "{:?}", failed.error);
    heard.renewed(1);
    assert!(guard.is_held() && exists(&server, "a"));
    guard.unlock()?;
    let rest = heard.until_released("a");
    assert!(!rest.iter().any(|told| matches!(told, Event::Lost(_))), "{rest:?}");
    Ok(())
}

#[test]
fn waiting_for_a_loss_ends_at_its_time_out_and_at_a_force_unlock() -> Result<()> {
    let server = Server::start();
    let (client, _heard) = watched(&server, MINUTE);
    let guard = client.lock("a").lock()?;
    let (start, short) = (Instant::now(), Duration::from_millis(50));
    assert!(!guard.wait_lost(short) && start.elapsed() >= short);
    thread::scope(|scope| {
        let waits = scope.spawn(|| guard.wait_lost(Duration::MAX));
        assert!(client.lock("a").force_unlock().expect("the server answers"));
        assert!(waits.join().expect("no panic"));
    });
    Ok(())
}

#[test]
fn a_lock_is_free_within_its_lease_when_nobody_renews_it() -> Result<()> {
    let server = Server::start();
    let (client, _heard) = watched(&server, SHORT);
    let guard = client.lock("a").lock()?;
    client.close(); // as a process that dies would
    eventually("the lock is free", || !exists(&server, "a"));
    assert!(!guard.is_held(), "a guard is not behind the server");
    Ok(())
}
