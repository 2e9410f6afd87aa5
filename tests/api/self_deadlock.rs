//! Threads that are in their own way: refused if they would not wait, told of a deadlock if they
//! would.

use crate::harness::{Server, eventually, exists, join, sleeping};
use leasehold::kind::LockKind;
use leasehold::{CancelToken, Client, Lock, MultiLock, RedLock, Result};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(50);
const MINUTE: Duration = Duration::from_secs(60);

/// A lock of any kind, and whether the attempts on it ended: `None` for one that was not got.
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

/// The lock of one name as one of every kind and under two holders.
fn kinds(client: &Client) -> [Box<dyn AnyKind>; 8] {
    let rw = client.rw_lock("a");
    [
        Box::new(client.lock("a")),
        Box::new(client.fair_lock("a")),
        Box::new(client.fenced_lock("a")),
        Box::new(client.spin_lock("a")),
        Box::new(client.lock("a").with_holder("tx-1")),
        Box::new(client.lock("a").with_holder("tx-2")),
        Box::new(rw.read_lock()),
        Box::new(rw.write_lock()),
    ]
}

#[test]
fn a_thread_that_has_the_lock_as_another_kind_is_refused_and_told_of_a_deadlock_if_it_waits()
-> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let kinds = kinds(&client);
    let (read, write) = (kinds.len() - 2, kinds.len() - 1);
    for (mine, held) in kinds.iter().enumerate() {
        let guard = held.take()?;
        for (other, wanted) in kinds.iter().enumerate() {
            // It enters again, or reads what it writes.
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
        eventually("it is released", || !exists(&server, "a"));
    }
    Ok(())
}

#[test]
fn several_locks_are_refused_beside_one_of_another_kind_and_never_waited_for() -> Result<()> {
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
fn a_majority_is_refused_beside_holds_of_another_kind_and_never_waited_for() -> Result<()> {
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

/// What a thread finds that has taken an owned guard, and wants the lock again.
fn beside_an_owned_guard<G>(
    lock: impl Fn() -> Result<G>,
    cancelled: impl Fn() -> Result<G>,
    try_for: impl Fn(Duration) -> Result<Option<G>>,
) {
    assert!(lock().is_err_and(|error| error.is_deadlock()));
    assert!(try_for(SOON).is_ok_and(|guard| guard.is_none()), "its deadline ends it");
    assert!(cancelled().is_err_and(|error| error.is_cancelled()), "its token ends it");
}

/// Cancels the token from another thread, by and by.
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
fn a_bare_lock_beside_an_owned_guard_of_its_thread_is_a_deadlock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let owned = lock.lock_owned()?;
    let again = || lock.clone().with_cancel(&cancelled_soon()).lock();
    beside_an_owned_guard(|| lock.lock(), again, |span| lock.try_lock_for(span));
    assert!(client.fair_lock("a").lock().is_err_and(|error| error.is_deadlock()));
    // Another thread waits, and gets it.
    let (theirs, waits) = (lock.clone(), lock.clone());
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
    beside_an_owned_guard(|| both.lock(), again, |span| both.try_lock_for(span));
    owned.unlock()?;
    waits.lock()?.unlock()
}

#[test]
fn a_bare_lock_of_a_majority_beside_an_owned_guard_of_its_thread_is_a_deadlock() -> Result<()> {
    let server = Server::start();
    let lock = RedLock::new([Client::open(server.url())?], "a");
    let owned = lock.lock_owned()?;
    let again = || lock.clone().with_cancel(&cancelled_soon()).lock();
    beside_an_owned_guard(|| lock.lock(), again, |span| lock.try_lock_for(span));
    let theirs = lock.clone();
    let waiter = sleeping("another", move || theirs.lock().and_then(|guard| guard.unlock()));
    owned.unlock()?;
    join(waiter)
}

/// The guard may be with anybody by then, who can unlock it.
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
