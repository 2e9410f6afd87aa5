//! The longest hold (`with_max_hold`) in each combination with the other features of a lock.

use crate::harness::faults::{BRISK, Event, EventLog, NEVER, assert_no_later_than_the_server};
use crate::harness::faults::{build, watched};
use crate::harness::{Server, eventually, exists, join, owner, sleeping};
use leasehold::kind::Kind;
use leasehold::{
    Client, Error, Events, Guard, Lock, LostReason, MultiLock, Overdue, RedLock, Result,
};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// A limit that passes long before a lease of `BRISK` ends.
const LIMIT: Duration = Duration::from_millis(100);

/// Asserts that the hold of the lock `name` becomes overdue and is lost without another renewal.
#[track_caller]
fn becomes_overdue_and_is_lost(events: &EventLog, name: &str) -> Overdue {
    let overdue = events.overdue();
    assert_eq!(&*overdue.name, name);
    assert!(overdue.held >= LIMIT, "{overdue:?}");
    let (lost, between) = events.until_lost();
    assert_eq!((&*lost.name, lost.hold), (name, overdue.hold));
    assert_eq!(lost.reason, LostReason::HeldTooLong);
    let unexpected = |event: &Event| match event {
        Event::Renewed(renewed) => renewed.holds.contains(&overdue.hold),
        event => matches!(event, Event::Overdue(_)),
    };
    assert!(!between.iter().any(unexpected), "{between:?}");
    overdue
}

/// Returns whether the error reports a loss by the limit.
fn is_held_too_long(error: &Error) -> bool {
    error.is_lost() && error.lost_reason() == Some(LostReason::HeldTooLong)
}

#[test]
fn a_hold_beyond_its_limit_is_reported_once_and_lost_with_its_lease() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let lock = client.lock("a").with_max_hold(2 * BRISK);
    let guard = lock.lock()?;
    events.renewed(1);
    while guard.is_held() && exists(&server, "a") {
        let left = guard.remaining();
        if left > BRISK / 4 {
            assert_no_later_than_the_server(&server, "a", &guard);
        }
    }
    assert!(guard.wait_lost(NEVER));
    let overdue = becomes_overdue_and_is_lost(&events, "a");
    assert!(overdue.held >= 2 * BRISK && overdue.kind == Kind::Plain && overdue.hold > 0);
    let error = guard.check().expect_err("it is lost");
    assert!(is_held_too_long(&error) && error.to_string().contains("beyond its limit"), "{error}");
    let stats = client.stats();
    assert_eq!((stats.lost(LostReason::HeldTooLong), stats.lost_in_total()), (1, 1));
    assert_eq!(stats.held_now(), 0);
    assert!(lock.lock().is_err_and(|error| is_held_too_long(&error)), "it still has a guard");
    assert!(guard.unlock().is_err_and(|error| is_held_too_long(&error)));
    lock.lock()?.unlock()
}

#[test]
fn a_hold_that_ends_before_its_limit_is_not_overdue() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").with_max_hold(NEVER).lock()?;
    events.renewed(2);
    guard.unlock()?;
    let before = events.until_released("a");
    assert!(!before.iter().any(|event| matches!(event, Event::Overdue(_))), "{before:?}");
    assert_eq!(client.stats().lost_in_total(), 0);
    Ok(())
}

#[test]
fn the_verbs_refuse_a_limit_below_ten_milliseconds() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let short = Duration::from_micros(9_999);
    let is_refused = |error: Error| error.is_configuration() && error.lock_name() == Some("a");
    let lock = client.lock("a").with_max_hold(short);
    assert!(lock.lock().is_err_and(is_refused) && lock.try_lock().is_err_and(is_refused));
    assert!(lock.try_lock_for(NEVER).is_err_and(is_refused));
    assert!(lock.lock_owned().is_err_and(is_refused));
    let both = client.rw_lock("a").with_max_hold(short);
    assert!(both.read().is_err_and(is_refused) && both.write().is_err_and(is_refused));
    let red = RedLock::new([client.clone()], "a").with_max_hold(short);
    assert!(red.lock().is_err_and(is_refused));
    assert!(MultiLock::new([lock]).lock().is_err_and(|error| error.is_configuration()));
    for long in [Duration::from_millis(10), Duration::MAX] {
        client.lock("a").with_max_hold(long).lock()?.unlock()?;
    }
    Ok(())
}

#[test]
fn each_kind_of_guard_has_the_limit() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let owned = client.fair_lock("owned").with_max_hold(LIMIT).lock_owned()?;
    becomes_overdue_and_is_lost(&events, "owned");
    assert!(owned.check().is_err_and(|error| is_held_too_long(&error)));
    let queued = client.queue_lock("queued").with_max_hold(LIMIT).lock()?;
    assert_eq!(becomes_overdue_and_is_lost(&events, "queued").kind, Kind::Queued);
    assert!(queued.unlock().is_err_and(|error| is_held_too_long(&error)));
    let both = client.rw_lock("both").with_max_hold(LIMIT);
    let writing = both.write()?;
    assert_eq!(becomes_overdue_and_is_lost(&events, "both").kind, Kind::Write);
    drop(writing);
    let reading = both.read()?;
    assert_eq!(becomes_overdue_and_is_lost(&events, "both").kind, Kind::Read);
    drop(reading);
    let named = client.lock("named").with_max_hold(LIMIT).with_holder("job").lock()?;
    becomes_overdue_and_is_lost(&events, "named");
    assert!(named.unlock().is_err_and(|error| is_held_too_long(&error)));
    Ok(())
}

/// The limit counts from the message, which is when the hold begins.
#[test]
fn a_granted_waiter_of_a_queue_lock_has_the_limit() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let holder = client.queue_lock("a").lock_owned()?;
    let lock = client.queue_lock("a").with_max_hold(LIMIT);
    let waiter = sleeping("waiter", move || lock.lock_owned());
    holder.unlock()?;
    let granted = join(waiter)?;
    assert_eq!(becomes_overdue_and_is_lost(&events, "a").kind, Kind::Queued);
    assert!(granted.check().is_err_and(|error| is_held_too_long(&error)));
    Ok(())
}

#[test]
fn the_limit_of_the_hold_counts_for_nested_guards() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let unlimited = client.lock("a");
    let outer = unlimited.clone().with_max_hold(LIMIT).lock()?;
    let inner = unlimited.lock()?;
    becomes_overdue_and_is_lost(&events, "a");
    assert!(inner.check().is_err_and(|error| is_held_too_long(&error)));
    assert!(inner.unlock().is_err() && outer.unlock().is_err());
    Ok(())
}

#[test]
fn the_limit_of_a_nested_handle_has_no_effect() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let lock = client.lock("a");
    let outer = lock.lock()?;
    let inner = lock.clone().with_max_hold(Duration::from_millis(10)).lock()?;
    events.renewed(1);
    inner.unlock()?;
    outer.unlock()?;
    assert!(events.until_released("a").is_empty(), "neither overdue nor lost");
    Ok(())
}

#[test]
fn a_nested_call_makes_a_fixed_lease_a_renewed_one_under_the_same_limit() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let lock = client.lock("a");
    let outer = lock.clone().with_lease(2 * BRISK).with_max_hold(2 * BRISK + BRISK / 3).lock()?;
    let inner = lock.lock()?;
    events.renewed(1);
    becomes_overdue_and_is_lost(&events, "a");
    drop((inner, outer));
    let outer = lock.clone().with_lease(BRISK).with_max_hold(LIMIT).lock()?;
    events.overdue();
    let inner = lock.lock()?;
    let (lost, between) = events.until_lost();
    assert_eq!(lost.reason, LostReason::HeldTooLong);
    assert!(between.is_empty(), "an overdue hold is not renewed: {between:?}");
    drop((inner, outer));
    Ok(())
}

#[test]
fn a_fixed_lease_longer_than_the_limit_is_reported_and_stays() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let lock = client.lock("a");
    let guard = lock.clone().with_max_hold(LIMIT).with_lease(BRISK).lock()?;
    becomes_overdue_and_is_lost(&events, "a");
    drop(guard);
    let guard = lock.with_max_hold(BRISK).with_lease(LIMIT).lock()?;
    assert!(guard.wait_lost(NEVER));
    let (lost, before) = events.until_lost();
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(!before.iter().any(|event| matches!(event, Event::Overdue(_))), "{before:?}");
    Ok(())
}

#[test]
fn an_explicit_extension_works_before_and_after_the_limit() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").with_max_hold(LIMIT).lock()?;
    guard.extend(2 * BRISK)?;
    events.overdue();
    assert!(guard.remaining() > BRISK);
    guard.extend(NEVER)?;
    assert!(guard.remaining() > 2 * BRISK);
    let before = server.calls("evalsha");
    eventually("the watchdog verifies the hold", || server.calls("evalsha") > before);
    guard.unlock()?;
    assert!(events.until_released("a").is_empty(), "neither renewed nor lost nor overdue again");
    Ok(())
}

#[test]
fn a_detached_hold_has_the_limit_and_its_thread_learns_of_the_loss() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let lock = client.lock("a").with_max_hold(LIMIT);
    lock.lock()?.detach();
    becomes_overdue_and_is_lost(&events, "a");
    assert!(lock.lock().is_err_and(|error| is_held_too_long(&error)));
    assert!(lock.unlock().is_err_and(|error| is_held_too_long(&error)));
    lock.lock()?.unlock()
}

/// Starts a thread that waits for the lock, passes its guard to `hold`, and returns its owner
/// field.
fn waiting(
    server: &Arc<Server>,
    lock: Lock,
    hold: impl FnOnce(Guard) + Send + 'static,
) -> thread::JoinHandle<String> {
    let server = Arc::clone(server);
    sleeping("limited", move || {
        let guard = lock.lock().expect("the lock is handed off or free");
        let owner = owner(&server, "a");
        hold(guard);
        owner
    })
}

/// Returns a client that hands off without bounds, and its events.
fn handing_off(server: &Server, watchdog: Duration) -> (Client, EventLog) {
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    let (builder, events) = EventLog::from(builder.local_handoff(1000, NEVER));
    (build(builder), events)
}

#[test]
fn the_receiver_of_a_hand_off_has_the_limit_of_its_own_handle() -> Result<()> {
    let server = Arc::new(Server::start());
    let (client, events) = handing_off(&server, BRISK);
    let lock = client.lock("a");
    let guard = lock.clone().with_max_hold(NEVER).lock()?;
    let first = owner(&server, "a");
    let (lost, is_lost) = mpsc::channel();
    let next = waiting(&server, lock.clone().with_max_hold(LIMIT), move |guard| {
        lost.send(guard.wait_lost(NEVER)).expect("the test waits");
    });
    events.renewed(1);
    let before = SystemTime::now();
    guard.unlock()?;
    let overdue = becomes_overdue_and_is_lost(&events, "a");
    let since = overdue.at.duration_since(before).expect("the clock does not step");
    assert!(overdue.held <= since, "counted from the hand-off: {overdue:?}");
    assert!(is_lost.recv().expect("the thread waits for the loss"));
    assert_eq!(join(next), first, "the hold was handed off");
    Ok(())
}

#[test]
fn the_limit_of_a_receiver_is_noticed_long_before_the_next_renewal() -> Result<()> {
    let server = Arc::new(Server::start());
    let (client, events) = handing_off(&server, NEVER);
    let lock = client.lock("a");
    let guard = lock.lock()?;
    let (end, ends) = mpsc::channel();
    let next = waiting(&server, lock.with_max_hold(LIMIT), move |guard| {
        ends.recv().expect("the test sends");
        guard.unlock().expect("it is held");
    });
    guard.unlock()?;
    events.overdue();
    end.send(()).expect("the thread waits");
    join(next);
    Ok(())
}

#[test]
fn the_limit_of_the_former_holder_ends_with_a_hand_off() -> Result<()> {
    let server = Arc::new(Server::start());
    let (client, events) = handing_off(&server, BRISK);
    let lock = client.lock("a");
    let guard = lock.clone().with_max_hold(BRISK).lock()?;
    let first = owner(&server, "a");
    let (free, is_free) = mpsc::channel();
    let next = waiting(&server, lock.clone(), move |guard| {
        is_free.recv().expect("the test sends");
        guard.unlock().expect("it is held");
    });
    guard.unlock()?;
    let start = Instant::now();
    eventually("the former limit is over", || start.elapsed() > BRISK);
    events.renewed(1);
    free.send(()).expect("the thread waits");
    assert_eq!(join(next), first);
    let before = events.until_released("a");
    assert!(before.iter().all(|event| matches!(event, Event::Renewed(_))), "{before:?}");
    Ok(())
}

#[test]
fn an_overdue_hold_is_not_handed_off() -> Result<()> {
    let server = Arc::new(Server::start());
    let (client, events) = handing_off(&server, BRISK);
    let lock = client.lock("a");
    let guard = lock.clone().with_max_hold(LIMIT).with_lease(NEVER).lock()?;
    let nested = lock.lock()?; // renewed from here on
    let first = owner(&server, "a");
    let next = waiting(&server, lock.clone(), drop);
    events.overdue();
    drop(nested);
    guard.unlock()?;
    assert_ne!(join(next), first);
    Ok(())
}

#[test]
fn an_overdue_hold_is_not_renewed_after_a_reconnection() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").with_max_hold(LIMIT).lock()?;
    events.overdue();
    assert!(server.client_kill_type("normal") > 0);
    client.ping()?; // reconnects
    let (lost, between) = events.until_lost();
    assert_eq!(lost.reason, LostReason::HeldTooLong);
    assert!(between.is_empty(), "{between:?}");
    drop(guard);
    Ok(())
}

#[test]
fn a_multi_lock_is_lost_with_its_first_overdue_member() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let limited = client.lock("a").with_max_hold(LIMIT);
    let guard = MultiLock::new([limited, client.lock("b")]).lock()?;
    becomes_overdue_and_is_lost(&events, "a");
    let error = guard.check().expect_err("a member is lost");
    assert!(is_held_too_long(&error) && error.lock_name() == Some("a"), "{error}");
    assert!(client.lock("b").is_held(), "the other member is still renewed");
    Ok(())
}

#[test]
fn a_red_lock_is_lost_after_its_limit() -> Result<()> {
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients = servers.each_ref().map(|server| watched(server, BRISK));
    let lock = RedLock::new(clients.each_ref().map(|(client, _)| client.clone()), "a");
    let guard = lock.with_max_hold(LIMIT).lock()?;
    assert!(guard.wait_lost(NEVER));
    assert!(guard.check().is_err_and(|error| is_held_too_long(&error)));
    Ok(())
}

#[test]
fn a_receiver_of_events_without_the_method_ignores_overdue_holds() {
    struct Ignores;
    impl Events for Ignores {}
    Arc::new(Ignores).overdue(&Overdue::new("a"));
}
