//! The acquisition of locks and permits of all kinds, as a request asks for it.

use super::{CHECK_INTERVAL, elections};
use crate::kind::{CAPACITY, Kind};
use crate::record::Request;
use crate::subject::{Subject, SubjectGuard};
use crate::system::channel::{self, RecvTimeoutError};
use crate::system::thread;
use leasehold::kind::{Fenced, LockKind, Queued};
use leasehold::{CancelToken, Client, Guard, Lock, PlainSemaphore, RedLock, Semaphore};
use std::time::Duration;

/// A guard of any kind.
pub(super) trait Held {
    fn is_held(&self) -> bool;
    fn unlock(self: Box<Self>) -> leasehold::Result<()>;
}

impl<G: SubjectGuard> Held for G {
    fn is_held(&self) -> bool {
        SubjectGuard::is_held(self)
    }

    fn unlock(self: Box<Self>) -> leasehold::Result<()> {
        SubjectGuard::unlock(*self)
    }
}

/// A guard, and its fencing token, or 0.
pub(super) type Acquired = (Box<dyn Held>, u64);

impl Request {
    /// Returns the longest wait, and whether a cancellation ends it; `None` for no wait.
    pub(super) fn waits(&self) -> Option<(Duration, bool)> {
        let max_wait = Duration::from_millis(self.max_wait);
        (self.max_wait > 0).then_some((max_wait, self.cancelled))
    }
}

/// Acquires the lock of a request.
pub(super) fn acquire(
    clients: &[Client],
    kind: Kind,
    request: &Request,
) -> leasehold::Result<Option<Acquired>> {
    let (client, name) = (&clients[0], &*request.lock);
    match kind {
        Kind::Plain => acquire_limited(client.lock(name), request, |_| 0),
        Kind::Fenced => acquire_limited(client.fenced_lock(name), request, Guard::<Fenced>::token),
        Kind::Fair => acquire_limited(client.fair_lock(name), request, |_| 0),
        Kind::Rw if request.shared => {
            acquire_limited(client.rw_lock(name).read_lock(), request, |_| 0)
        }
        Kind::Rw => acquire_limited(client.rw_lock(name).write_lock(), request, |_| 0),
        Kind::Spin => acquire_limited(client.spin_lock(name), request, |_| 0),
        Kind::Queued => {
            let lock = client.queue_lock(name).with_weight(request.weight);
            acquire_limited(lock, request, Guard::<Queued>::token)
        }
        Kind::Election => elections::campaign(client, request),
        Kind::Red => {
            let lock = RedLock::new(clients.to_vec(), name);
            let max_hold = request.max_hold.map(Duration::from_millis);
            let lock = max_hold.into_iter().fold(lock, RedLock::with_max_hold);
            acquire_from(lock, request, |_| 0)
        }
        Kind::Semaphore => lease_permits(client, request),
        Kind::Count => take_permits(client, request),
        Kind::Latch => unreachable!("nobody holds a latch"),
    }
}

/// Takes permits with a lease.
fn lease_permits(client: &Client, request: &Request) -> leasehold::Result<Option<Acquired>> {
    let semaphore = client.semaphore(&*request.lock).with_permits(CAPACITY);
    let [max_hold, min_hold, lease] =
        [request.max_hold, request.min_hold, request.lease].map(|it| it.map(Duration::from_millis));
    let semaphore = max_hold.into_iter().fold(semaphore, Semaphore::with_max_hold);
    let semaphore = min_hold.into_iter().fold(semaphore, Semaphore::with_min_hold);
    let semaphore = lease.into_iter().fold(semaphore, Semaphore::with_lease);
    let permits = request.permits;
    let permit = match request.waits() {
        None => semaphore.try_acquire_many(permits)?,
        Some((max_wait, true)) => {
            until_cancelled(max_wait, |token| semaphore.with_cancel(token).acquire_many(permits))?
        }
        Some((max_wait, false)) => semaphore.try_acquire_many_for(permits, max_wait)?,
    };
    Ok(permit.map(|permit| (Box::new(permit) as _, 0)))
}

/// Takes permits of a plain semaphore. The first caller that is refused sets them to the capacity.
fn take_permits(client: &Client, request: &Request) -> leasehold::Result<Option<Acquired>> {
    let (semaphore, permits) = (client.plain_semaphore(&*request.lock), request.permits);
    let is_taken = semaphore.try_acquire(permits)? || {
        semaphore.try_set_permits(CAPACITY)?;
        take_plain(&semaphore, request)?
    };
    Ok(is_taken.then(|| (Box::new(Taken { semaphore, permits }) as _, 0)))
}

fn take_plain(semaphore: &PlainSemaphore, request: &Request) -> leasehold::Result<bool> {
    let permits = request.permits;
    match request.waits() {
        None => semaphore.try_acquire(permits),
        Some((max_wait, true)) => {
            let waiting = semaphore.clone();
            let acquire = |token: &CancelToken| waiting.with_cancel(token).acquire(permits);
            Ok(until_cancelled(max_wait, acquire)?.is_some())
        }
        Some((max_wait, false)) => semaphore.try_acquire_for(permits, max_wait),
    }
}

/// Permits of a plain semaphore, given back by the end of this value.
struct Taken {
    semaphore: PlainSemaphore,
    permits: u32,
}

impl Held for Taken {
    fn is_held(&self) -> bool {
        true
    }

    fn unlock(mut self: Box<Self>) -> leasehold::Result<()> {
        self.give_back()
    }
}

impl Taken {
    /// Gives the permits back, as a program does that repeats retryable errors.
    ///
    /// The client completes a release that may have arrived. That error is not retryable.
    fn give_back(&mut self) -> leasehold::Result<()> {
        let permits = std::mem::take(&mut self.permits);
        until_not_retryable(|| self.semaphore.release(permits))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.permits > 0 {
            let _ = self.give_back();
        }
    }
}

/// Repeats a call as long as its error is retryable: the call has had no effect.
pub(super) fn until_not_retryable<T>(
    call: impl Fn() -> leasehold::Result<T>,
) -> leasehold::Result<T> {
    loop {
        match call() {
            Err(error) if error.is_retryable() => thread::sleep(CHECK_INTERVAL),
            outcome => return outcome,
        }
    }
}

/// Acquires a lock with the limits of the request.
fn acquire_limited<K: LockKind>(
    lock: Lock<K>,
    request: &Request,
    token: impl Fn(&Guard<K>) -> u64,
) -> leasehold::Result<Option<Acquired>>
where
    Guard<K>: 'static,
{
    let [max_hold, min_hold] =
        [request.max_hold, request.min_hold].map(|it| it.map(Duration::from_millis));
    let lock = max_hold.into_iter().fold(lock, Lock::with_max_hold);
    acquire_from(min_hold.into_iter().fold(lock, Lock::with_min_hold), request, token)
}

fn acquire_from<S: Subject>(
    lock: S,
    request: &Request,
    token: impl Fn(&S::Guard) -> u64,
) -> leasehold::Result<Option<Acquired>>
where
    S::Guard: 'static,
{
    let lock = match request.lease {
        Some(lease) => lock.with_lease(Duration::from_millis(lease)),
        None => lock,
    };
    let guard = match request.waits() {
        None => lock.try_lock()?,
        Some((max_wait, true)) => {
            until_cancelled(max_wait, |token| lock.with_cancel(token).lock())?
        }
        Some((max_wait, false)) => lock.try_lock_for(max_wait)?,
    };
    Ok(guard.map(|guard| (token(&guard), guard)).map(|(t, guard)| (Box::new(guard) as _, t)))
}

/// Calls with a token that another thread cancels later. Returns `None` after a cancellation.
pub(super) fn until_cancelled<T>(
    max_wait: Duration,
    call: impl FnOnce(&CancelToken) -> leasehold::Result<T>,
) -> leasehold::Result<Option<T>> {
    let (token, (returned, has_returned)) = (CancelToken::new(), channel::bounded::<()>(0));
    thread::scope(|scope| {
        let canceller = token.clone();
        scope.spawn(move || {
            let waits = has_returned.recv_timeout(max_wait) == Err(RecvTimeoutError::Timeout);
            waits.then(|| canceller.cancel())
        });
        let acquired = call(&token);
        drop(returned);
        match acquired {
            Err(error) if error.is_cancelled() => Ok(None),
            acquired => acquired.map(Some),
        }
    })
}
