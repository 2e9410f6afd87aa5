//! The shortest hold (`with_min_hold`) in each combination with the other features of a lock.

use crate::hand_off::next_owner;
use crate::harness::bare::digest;
use crate::harness::faults::{BRISK, EventLog, NEVER, build, owners, patient, watched};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, exists, in_time};
use crate::harness::{join, owner, sleeping};
use leasehold::kind::LockKind;
use leasehold::{CancelToken, Client, Guard, Lock, MultiLock, Result};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A minimum whose end a test waits for.
const SHORT: Duration = Duration::from_millis(400);

/// A minimum that outlives every test, and is shorter than a lease of `NEVER`.
const MINUTE: Duration = Duration::from_secs(60);

/// Asserts that the lock `a` is taken by nobody for at most `minimum`, and that all are refused.
#[track_caller]
fn assert_taken_by_nobody<K: LockKind>(server: &Server, lock: &Lock<K>, minimum: Duration) {
    let mut fields: Vec<String> = server.ask(&["HKEYS", "a"]);
    fields.retain(|field| field != "mode");
    assert!(matches!(&fields[..], [nobody] if nobody.ends_with(":min_hold")), "{fields:?}");
    assert!(lock.try_lock().expect("an answer").is_none(), "its own thread is refused");
    assert!(lock.try_lock_owned().expect("an answer").is_none());
    assert!(lock.is_locked().expect("an answer") && !lock.is_held());
    let left = lock.remaining().expect("an answer").expect("it is taken");
    assert!(left <= minimum && left > minimum / 2, "{left:?} of {minimum:?}");
}

/// Runs `case` for each kind of lock that has minimum holds.
fn for_each_kind(case: impl Fn(&Server, [&dyn Kind; 2])) {
    let server = Server::start();
    let [mine, theirs] = [(); 2].map(|()| build(patient(server.url())));
    let both = |make: fn(&Client) -> Box<dyn Kind>| {
        let locks = [make(&mine), make(&theirs)];
        case(&server, locks.each_ref().map(|lock| &**lock));
    };
    both(|client| Box::new(client.lock("a")));
    both(|client| Box::new(client.fenced_lock("a")));
    both(|client| Box::new(client.fair_lock("a")));
    both(|client| Box::new(client.queue_lock("a")));
    both(|client| Box::new(client.spin_lock("a")));
    both(|client| Box::new(client.rw_lock("a").write_lock()));
}

/// A lock of any kind that has minimum holds.
trait Kind: Sync {
    /// Takes the lock and releases it, with this minimum.
    fn pass(&self, minimum: Duration);
    fn assert_taken_by_nobody(&self, server: &Server, minimum: Duration);
    fn is_refused(&self) -> bool;
    fn free(&self);
}

impl<K: LockKind> Kind for Lock<K> {
    fn pass(&self, minimum: Duration) {
        let guard = self.clone().with_min_hold(minimum).lock().expect("it becomes free");
        guard.unlock().expect("it is held");
    }

    fn assert_taken_by_nobody(&self, server: &Server, minimum: Duration) {
        assert_taken_by_nobody(server, self, minimum);
    }

    fn is_refused(&self) -> bool {
        self.try_lock().expect("an answer").is_none()
    }

    fn free(&self) {
        assert!(self.force_unlock().expect("an answer"));
    }
}

#[test]
fn a_lock_released_before_its_minimum_stays_taken_by_nobody() {
    for_each_kind(|server, [mine, theirs]| {
        mine.pass(MINUTE);
        mine.assert_taken_by_nobody(server, MINUTE);
        assert!(theirs.is_refused());
        theirs.free();
        assert!(!exists(server, "a"));
    });
}

#[test]
fn callers_in_this_and_in_other_processes_get_the_lock_at_the_end_of_the_minimum() {
    for_each_kind(|_, [mine, theirs]| {
        let start = Instant::now();
        mine.pass(SHORT);
        // Polls and leases are too long to wake the callers.
        thread::scope(|scope| {
            let ours = scope.spawn(|| mine.pass(Duration::ZERO));
            let others = scope.spawn(|| theirs.pass(Duration::ZERO));
            in_time("a caller of this process", ours);
            in_time("a caller of another process", others);
        });
        assert!(start.elapsed() >= SHORT, "the lock was free before the minimum");
    });
}

#[test]
fn callers_that_wait_at_the_release_learn_the_end_of_the_minimum() -> Result<()> {
    let server = Server::start();
    let [mine, theirs] = [(); 2].map(|()| build(patient(server.url())));
    for waiting in [mine.lock("a"), theirs.lock("a")] {
        let start = Instant::now();
        let guard = mine.lock("a").with_min_hold(SHORT).lock()?;
        let waiter = sleeping("waiter", move || waiting.lock().and_then(Guard::unlock));
        guard.unlock()?;
        join(waiter)?;
        assert!(start.elapsed() >= SHORT);
    }
    Ok(())
}

#[test]
fn the_end_of_every_form_of_hold_keeps_the_minimum() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, NEVER);
    let free = client.lock("a");
    let lock = free.clone().with_min_hold(MINUTE);
    let forms: [&dyn Fn() -> Result<()>; 5] = [
        &|| lock.lock().map(drop),
        &|| lock.lock_owned()?.unlock(),
        &|| lock.lock_owned().map(drop),
        &|| {
            lock.lock()?.detach();
            lock.unlock()
        },
        &|| {
            lock.lock_owned()?.detach();
            free.unlock()
        },
    ];
    for form in forms {
        form()?;
        let released = events.released();
        assert!(released.error.is_none() && released.held < MINUTE, "{released:?}");
        assert_taken_by_nobody(&server, &free, MINUTE);
        assert!(free.force_unlock()?);
    }
    Ok(())
}

#[test]
fn a_release_after_the_minimum_frees_the_lock() -> Result<()> {
    let server = Server::start();
    let client = build(patient(server.url()));
    for minimum in [Duration::ZERO, Duration::from_millis(5)] {
        let start = Instant::now();
        let guard = client.lock("a").with_min_hold(minimum).lock()?;
        eventually("the minimum is over", || start.elapsed() > 2 * minimum + SHORT / 10);
        guard.unlock()?;
        assert!(!exists(&server, "a"), "{minimum:?}");
    }
    Ok(())
}

#[test]
fn the_minimum_of_the_hold_counts_for_nested_guards() -> Result<()> {
    let server = Server::start();
    let client = build(patient(server.url()));
    let lock = client.lock("a");
    let (outer, inner) = (lock.lock()?, lock.clone().with_min_hold(MINUTE).lock()?);
    inner.unlock()?;
    outer.unlock()?;
    assert!(!exists(&server, "a"), "the nested handle has no effect");
    let (outer, inner) = (lock.clone().with_min_hold(MINUTE).lock()?, lock.lock()?);
    outer.unlock()?;
    assert!(lock.is_held());
    inner.unlock()?;
    assert_taken_by_nobody(&server, &lock, MINUTE);
    Ok(())
}

/// Returns a client that hands off without bounds.
fn handing_off(server: &Server) -> Client {
    build(patient(server.url()).local_handoff(1000, NEVER))
}

#[test]
fn a_hold_is_not_handed_off_before_its_minimum() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = handing_off(&server);
    let start = Instant::now();
    let guard = client.lock("a").with_min_hold(SHORT).lock()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, client.lock("a"), "next");
    guard.unlock()?;
    assert_ne!(join(next)?, first);
    assert!(start.elapsed() >= SHORT);
    Ok(())
}

#[test]
fn a_hold_is_handed_off_after_its_minimum_and_its_receiver_has_its_own() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = handing_off(&server);
    let start = Instant::now();
    let guard = client.lock("a").with_min_hold(SHORT).lock()?;
    let first = owner(&server, "a");
    let next = next_owner(&server, client.lock("a").with_min_hold(MINUTE), "next");
    eventually("the minimum is over", || start.elapsed() > 2 * SHORT);
    guard.unlock()?;
    assert_eq!(join(next)?, first, "handed off");
    assert_taken_by_nobody(&server, &client.lock("a"), MINUTE);
    Ok(())
}

/// A hand-off and a cancellation at the same time: the call fails and never had the lock.
#[test]
fn a_hand_off_to_a_call_that_fails_has_no_minimum() -> Result<()> {
    let server = Arc::new(Server::start());
    let client = handing_off(&server);
    let lock = client.lock("a");
    loop {
        let (guard, token) = (lock.lock()?, CancelToken::new());
        let next = lock.clone().with_min_hold(MINUTE).with_cancel(&token);
        let next = sleeping("next", move || next.lock().map(drop));
        drop(guard);
        token.cancel();
        if join(next).is_err_and(|error| error.is_cancelled()) {
            break;
        }
        assert!(lock.force_unlock()?, "the call was faster than the cancellation");
    }
    eventually("the lock is free", || !exists(&server, "a"));
    Ok(())
}

#[test]
fn a_fixed_lease_that_ends_before_the_minimum_is_a_loss_without_a_minimum() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, NEVER);
    let lock = client.lock("a").with_min_hold(MINUTE);
    let guard = lock.clone().with_lease(SHORT).lock()?;
    assert!(guard.wait_lost(NEVER));
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(events.lost().reason, leasehold::LostReason::Expired);
    eventually("the lease ends on the server", || !exists(&server, "a"));
    // A release within a fixed lease keeps the minimum, which outlasts the lease.
    lock.clone().with_lease(MINUTE / 4).lock()?.unlock()?;
    assert_taken_by_nobody(&server, &client.lock("a"), MINUTE);
    Ok(())
}

#[test]
fn an_extension_has_no_effect_on_the_minimum() -> Result<()> {
    let server = Server::start();
    let client = build(patient(server.url()));
    let guard = client.lock("a").with_min_hold(MINUTE).lock()?;
    guard.extend(10 * NEVER)?;
    guard.unlock()?;
    assert_taken_by_nobody(&server, &client.lock("a"), MINUTE);
    Ok(())
}

#[test]
fn an_overdue_hold_that_is_released_in_time_keeps_its_minimum() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, NEVER);
    let lock = client.lock("a").with_min_hold(MINUTE).with_max_hold(SHORT);
    let guard = lock.lock()?;
    events.overdue();
    guard.unlock()?;
    assert_taken_by_nobody(&server, &client.lock("a"), MINUTE);
    client.lock("a").force_unlock()?;
    let (client, events) = watched(&server, BRISK);
    let guard = client.lock("a").with_min_hold(MINUTE).with_max_hold(SHORT).lock()?;
    assert_eq!(events.lost().reason, leasehold::LostReason::HeldTooLong);
    drop(guard);
    eventually("the lease ends on the server", || !exists(&server, "a"));
    Ok(())
}

#[test]
fn kinds_without_minimum_holds_refuse_them() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let reading = client.rw_lock("a").read_lock();
    let named = client.lock("a").with_holder("job");
    let error = reading.clone().with_min_hold(SHORT).lock().expect_err("readers share");
    assert!(error.is_configuration() && error.to_string().contains("read lock"), "{error}");
    let named_first = client.lock("a").with_min_hold(SHORT).with_holder("job");
    for named in [named.clone().with_min_hold(SHORT), named_first] {
        assert!(named.try_lock().is_err_and(|error| error.is_configuration()));
    }
    let members = [client.lock("b"), client.lock("a").with_min_hold(SHORT)];
    let error = MultiLock::new(members).lock().expect_err("several locks");
    assert!(error.is_configuration() && error.lock_name() == Some("a"), "{error}");
    assert!(server.keys().is_empty());
    reading.with_min_hold(Duration::ZERO).lock()?.unlock()?;
    named.with_min_hold(Duration::ZERO).lock()?.unlock()?;
    client.lock("a").with_min_hold(Duration::MAX).lock()?.unlock()?;
    assert!(client.lock("a").remaining()? > Some(Duration::from_secs(99 * 365 * 24 * 3600)));
    Ok(())
}

#[test]
fn the_minimum_of_a_write_hold_ends_with_it_if_its_thread_also_reads() -> Result<()> {
    let server = Server::start();
    let [mine, theirs] = [(); 2].map(|()| build(patient(server.url())));
    let both = mine.rw_lock("a");
    let writing = both.write_lock().with_min_hold(MINUTE).lock()?;
    let reading = both.read()?;
    writing.unlock()?;
    let other = theirs.rw_lock("a").try_read()?.expect("readers share");
    reading.unlock()?;
    other.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn a_repeated_release_keeps_the_minimum() -> Result<()> {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (builder, events) = EventLog::from(patient(proxy.url()));
    let client = build(builder);
    let [direct, lock] = [build(patient(server.url())).lock("a"), client.lock("a")];
    let release = digest("early_release");
    for waits in [true, false] {
        // The server knows the script from here on.
        lock.clone().with_min_hold(MINUTE).lock()?.unlock()?;
        assert!(direct.force_unlock()?);
        let guard = lock.clone().with_min_hold(MINUTE).lock_owned()?;
        events.released();
        let before = proxy.stats().replies.swallowed;
        proxy.on_request(release.as_bytes(), Direction::Replies, Flow::Swallow);
        let releasing = thread::spawn(move || {
            if waits {
                return guard.unlock();
            }
            drop(guard);
            Ok(())
        });
        proxy.wait_until("a dropped reply", |stats| stats.replies.swallowed > before);
        proxy.kill_all();
        join(releasing)?;
        let released = events.released();
        assert!(released.error.is_none() && released.heard_by.is_none(), "{released:?}");
        assert_taken_by_nobody(&server, &direct, MINUTE);
        assert_eq!(owners(&server, "a").len(), 1);
        assert!(direct.force_unlock()?);
    }
    Ok(())
}
