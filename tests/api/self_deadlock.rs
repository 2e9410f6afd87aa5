//! Calls blocked by a hold of their own thread: refused, or a deadlock if they wait. Calls blocked
//! by an owned guard that their thread took: they wait for its end.

use crate::events::{logged, start_log};
use crate::harness::{Server, eventually, exists, join};
use leasehold::kind::LockKind;
use leasehold::{CancelToken, Client, Error, Lock, MultiLock, RedLock, Result, RwLock};
use std::thread::{self, Scope};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A lock of any kind. Its attempts return `None` if they are refused.
trait AnyKind {
    fn take(&self) -> Result<Box<dyn std::any::Any>>;
    fn tried(&self) -> Result<Option<()>>;
    fn tried_owned(&self) -> Result<Option<()>>;
    fn tried_for(&self, span: Duration) -> Result<Option<()>>;
}

impl<P: LockKind> AnyKind for Lock<P> {
    fn take(&self) -> Result<Box<dyn std::any::Any>> {
        self.lock().map(|guard| Box::new(guard) as Box<dyn std::any::Any>)
    }
    fn tried(&self) -> Result<Option<()>> {
        Ok(self.try_lock()?.map(drop))
    }
    fn tried_owned(&self) -> Result<Option<()>> {
        Ok(self.try_lock_owned()?.map(drop))
    }
    fn tried_for(&self, span: Duration) -> Result<Option<()>> {
        Ok(self.try_lock_for(span)?.map(drop))
    }
}

/// Returns locks of one name: one of each kind, and two of named holders.
fn kinds(client: &Client) -> [Box<dyn AnyKind>; 9] {
    let rw = client.rw_lock("a");
    [
        Box::new(client.lock("a")),
        Box::new(client.fair_lock("a")),
        Box::new(client.fenced_lock("a")),
        Box::new(client.queue_lock("a")),
        Box::new(client.spin_lock("a")),
        Box::new(client.lock("a").with_holder("tx-1")),
        Box::new(client.lock("a").with_holder("tx-2")),
        Box::new(rw.read_lock()),
        Box::new(rw.write_lock()),
    ]
}

#[test]
fn a_lock_that_the_thread_holds_as_another_kind_is_refused_or_a_deadlock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let kinds = kinds(&client);
    let (read, write) = (kinds.len() - 2, kinds.len() - 1);
    for (mine, held) in kinds.iter().enumerate() {
        let guard = held.take()?;
        for (other, wanted) in kinds.iter().enumerate() {
            // A re-entry, or a read lock within the own write lock.
            if other == mine || (mine, other) == (write, read) {
                continue;
            }
            let what = format!("{other} beside {mine}");
            assert_eq!(wanted.tried(), Ok(None), "{what}");
            assert_eq!(wanted.tried_owned(), Ok(None), "{what}");
            let waited = wanted.tried_for(MINUTE).expect_err(&what);
            assert!(waited.is_deadlock(), "{what}: {waited:?}");
            let waited = wanted.take().map(drop).expect_err(&what);
            assert!(waited.is_deadlock(), "{what}: {waited:?}");
        }
        drop(guard);
        eventually("the lock is free", || !exists(&server, "a"));
    }
    Ok(())
}

#[test]
fn a_multi_lock_of_a_lock_held_as_another_kind_is_refused_or_a_deadlock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let several = MultiLock::new([client.lock("a"), client.lock("b")]);
    let guard = client.fair_lock("b").lock()?;
    assert!(several.try_lock()?.is_none());
    assert!(several.lock().is_err_and(|error| error.is_deadlock()));
    assert!(several.try_lock_for(MINUTE).is_err_and(|error| error.is_deadlock()));
    guard.unlock()?;
    several.lock()?.unlock()
}

#[test]
fn a_red_lock_whose_majority_is_held_as_another_kind_is_refused_or_a_deadlock() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let clients: Result<Vec<_>> = servers.iter().map(|it| Client::open(it.url())).collect();
    let clients = clients?;
    let lock = RedLock::new(clients.clone(), "a");
    let first = clients[0].fair_lock("a").lock()?;
    lock.lock()?.unlock()?;
    let second = clients[1].fenced_lock("a").lock()?;
    assert!(lock.try_lock()?.is_none());
    assert!(lock.lock().is_err_and(|error| error.is_deadlock()));
    assert!(lock.try_lock_for(MINUTE).is_err_and(|error| error.is_deadlock()));
    drop((first, second));
    lock.lock()?.unlock()
}

/// Starts a thread that takes an owned guard and then waits for the lock `name`.
///
/// Another thread ends the guard once the log warns of the wait.
fn start_wait<'s, L: Send + 's, G: Send + 's, W: 's>(
    scope: &'s Scope<'s, '_>,
    name: &'s str,
    locks: L,
    owned: fn(&L) -> Result<G>,
    waited: fn(&L) -> Result<W>,
) {
    let warnings = move || logged(&["WARN", &format!("{name:?}"), "that its own thread took"]);
    scope.spawn(move || {
        let guard = owned(&locks).expect(name);
        thread::scope(|scope| {
            scope.spawn(move || {
                eventually("the log warns of the wait", || warnings() > 0);
                drop(guard);
            });
            waited(&locks).map(drop).expect(name);
        });
        assert_eq!(warnings(), 1, "{name}");
    });
}

#[test]
fn a_call_waits_for_an_owned_guard_that_its_thread_took_and_sent_away() -> Result<()> {
    start_log();
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = |name: &str| client.lock(name);
    let rw = |name: &str| client.rw_lock(name);
    let named = |holder: &str| lock("own named").with_holder(holder);
    let both = MultiLock::new([lock("own multi"), lock("own multi, second")]);
    let red = RedLock::new([client.clone()], "own red");
    let red_limit = RedLock::new([client.clone()], "own red limit");
    thread::scope(|scope| {
        start_wait(scope, "own plain", lock("own plain"), Lock::lock_owned, Lock::lock);
        start_wait(scope, "own fair", client.fair_lock("own fair"), Lock::lock_owned, Lock::lock);
        start_wait(
            scope,
            "own queue",
            client.queue_lock("own queue"),
            Lock::lock_owned,
            Lock::lock,
        );
        start_wait(scope, "own spin", client.spin_lock("own spin"), Lock::lock_owned, Lock::lock);
        let kinds = (lock("own kind"), client.fenced_lock("own kind"));
        start_wait(scope, "own kind", kinds, |(it, _)| it.lock_owned(), |(_, it)| it.lock());
        let jobs = (named("tx-1"), named("tx-2"));
        start_wait(scope, "own named", jobs, |(it, _)| it.lock_owned(), |(_, it)| it.lock());
        start_wait(scope, "own write", rw("own write"), RwLock::write_owned, RwLock::write);
        start_wait(scope, "own read", rw("own read"), RwLock::write_owned, RwLock::read);
        start_wait(scope, "own upgrade", rw("own upgrade"), RwLock::read_owned, RwLock::write);
        start_wait(scope, "own multi", both, MultiLock::lock_owned, MultiLock::lock);
        start_wait(scope, "own red", red, RedLock::lock_owned, RedLock::lock);
        start_wait(scope, "own limit", lock("own limit"), Lock::lock_owned, |lock| {
            lock.try_lock_for(MINUTE).map(Option::unwrap)
        });
        start_wait(scope, "own red limit", red_limit, RedLock::lock_owned, |lock| {
            lock.try_lock_for(MINUTE).map(Option::unwrap)
        });
    });
    for (name, end) in [
        ("own plain", "waits for ever if"),
        ("own multi", "waits for ever if"),
        ("own red", "waits for ever if"),
        ("own limit", "waits until its deadline if"),
        ("own red limit", "waits until its deadline if"),
    ] {
        assert_eq!(logged(&[&format!("{name:?}"), end]), 1, "{name}");
    }
    Ok(())
}

#[test]
fn the_log_warns_of_no_other_wait_beside_an_owned_guard() -> Result<()> {
    start_log();
    let server = Server::start();
    let client = Client::open(server.url())?;
    let (lock, rw) = (client.lock("others"), client.rw_lock("readers"));
    let (owned, reader) = (lock.lock_owned()?, rw.read_owned()?);
    rw.read()?.unlock()?;
    // A thread that only passes owned guards on does not wait for itself.
    assert!(lock.try_lock_for_owned(2 * SECOND)?.is_none());
    let theirs = lock.clone();
    let waiter = thread::spawn(move || theirs.try_lock_for(2 * SECOND).map(|it| it.is_none()));
    assert!(join(waiter)?, "the lock was held");
    assert_eq!(logged(&["others", "that its own thread took"]), 0);
    owned.unlock()?;
    reader.unlock()
}

#[test]
fn a_deadline_and_a_token_end_a_wait_beside_an_owned_guard_of_the_thread() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let both = MultiLock::new([lock.clone(), client.lock("b")]);
    let red = RedLock::new([client], "c");
    let (owned, majority) = (lock.lock_owned()?, red.lock_owned()?);
    assert!(lock.try_lock_for(SOON)?.is_none() && both.try_lock_for(SOON)?.is_none());
    assert!(red.try_lock_for(SOON)?.is_none());
    let is_cancelled = |error: Error| error.is_cancelled();
    assert!(lock.with_cancel(&cancelled_soon()).lock().is_err_and(is_cancelled));
    assert!(both.with_cancel(&cancelled_soon()).lock().is_err_and(is_cancelled));
    assert!(red.with_cancel(&cancelled_soon()).lock().is_err_and(is_cancelled));
    owned.unlock()?;
    majority.unlock()
}

/// Returns a token that another thread cancels after a short time.
fn cancelled_soon() -> CancelToken {
    let token = CancelToken::new();
    let cancels = token.clone();
    thread::spawn(move || {
        thread::sleep(SOON);
        cancels.cancel();
    });
    token
}

/// Any thread may unlock the lock during the wait.
#[test]
fn a_detached_owned_guard_is_no_deadlock() -> Result<()> {
    let server = Server::start();
    let lock = Client::open(server.url())?.lock("a");
    lock.lock_owned()?.detach();
    let other = lock.clone();
    let unlocks = thread::spawn(move || {
        thread::sleep(SOON);
        other.unlock()
    });
    lock.lock()?.unlock()?;
    join(unlocks)
}
