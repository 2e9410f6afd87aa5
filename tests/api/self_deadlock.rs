//! Calls blocked by a hold of their own thread: refused, or a deadlock if they wait.

use crate::harness::{Server, eventually, exists, join, sleeping};
use leasehold::kind::LockKind;
use leasehold::{CancelToken, Client, Lock, MultiLock, RedLock, Result};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(50);
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

/// Checks the calls of a thread that has an owned guard of the same lock.
fn check_beside_an_owned_guard<G>(
    lock: impl Fn() -> Result<G>,
    cancelled: impl Fn() -> Result<G>,
    try_for: impl Fn(Duration) -> Result<Option<G>>,
) {
    assert!(lock().is_err_and(|error| error.is_deadlock()));
    assert!(try_for(SOON).is_ok_and(|guard| guard.is_none()), "the deadline ends the wait");
    assert!(cancelled().is_err_and(|error| error.is_cancelled()), "the token ends the wait");
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

#[test]
fn a_wait_without_a_limit_beside_an_owned_guard_of_its_thread_is_a_deadlock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let owned = lock.lock_owned()?;
    let again = || lock.clone().with_cancel(&cancelled_soon()).lock();
    check_beside_an_owned_guard(|| lock.lock(), again, |span| lock.try_lock_for(span));
    assert!(client.fair_lock("a").lock().is_err_and(|error| error.is_deadlock()));
    // Another thread waits and gets the lock.
    let (theirs, afterwards) = (lock.clone(), lock.clone());
    let waiter = sleeping("another", move || theirs.lock().and_then(|guard| guard.unlock()));
    owned.unlock()?;
    join(waiter)?;

    let rw = client.rw_lock("b");
    let owned = rw.write_owned()?;
    assert!(rw.write().is_err_and(|error| error.is_deadlock()));
    assert!(rw.read().is_err_and(|error| error.is_deadlock()));
    owned.unlock()?;
    let owned = rw.read_owned()?;
    rw.read()?.unlock()?;
    assert!(rw.write().is_err_and(|error| error.is_deadlock()));
    owned.unlock()?;

    let both = MultiLock::new([client.lock("c"), client.lock("d")]);
    let owned = both.lock_owned()?;
    let again = || both.clone().with_cancel(&cancelled_soon()).lock();
    check_beside_an_owned_guard(|| both.lock(), again, |span| both.try_lock_for(span));
    owned.unlock()?;
    afterwards.lock()?.unlock()
}

#[test]
fn a_wait_for_a_red_lock_beside_an_owned_guard_of_its_thread_is_a_deadlock() -> Result<()> {
    let server = Server::start();
    let lock = RedLock::new([Client::open(server.url())?], "a");
    let owned = lock.lock_owned()?;
    let again = || lock.clone().with_cancel(&cancelled_soon()).lock();
    check_beside_an_owned_guard(|| lock.lock(), again, |span| lock.try_lock_for(span));
    let theirs = lock.clone();
    let waiter = sleeping("another", move || theirs.lock().and_then(|guard| guard.unlock()));
    owned.unlock()?;
    join(waiter)
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
