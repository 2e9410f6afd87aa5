//! The acquisition of locks and permits of all kinds, as a request asks for it.

use super::held::{Held, Locked, OnLost};
use super::{REPEATED, elections, once};
use crate::kind::{CAPACITY, Kind};
use crate::record::{Request, Seen};
use crate::subject::Subject;
use crate::system::channel::{self, RecvTimeoutError};
use crate::system::{instant, thread};
use leasehold::kind::{Fenced, LockKind, Queued};
use leasehold::{
    AnyLock, CancelToken, Client, Error, Guard, Lock, MultiLock, OwnedGuard, PlainSemaphore,
    RedLock, Result, Semaphore,
};
use std::time::{Duration, Instant};

/// A guard, or what a call gets in its place.
pub(super) enum AnyGuard {
    OfThread(Box<dyn Held>),
    /// A guard that any thread may use.
    Sendable(Box<dyn Held + Send>),
    /// The result of work that is done.
    Done(Seen),
}

/// A guard, and its fencing token, or 0.
pub(super) type Acquired = (AnyGuard, u64);

/// The choices of a caller that no check needs to know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    /// Whether the call asks for an owned guard.
    pub is_owned: bool,
    /// Whether the call waits until a moment, in place of a time.
    pub is_until: bool,
    /// Whether the clients belong to this call, and are closed where others cancel their wait.
    pub closes: bool,
}

/// A call for a lock.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub clients: &'a [Client],
    pub request: &'a Request,
    pub manner: Manner,
}

impl Call<'_> {
    /// Makes the call by the verb that suits its wait. Returns `None` if it has waited in vain.
    pub(super) fn make<T>(
        &self,
        at_once: impl FnOnce() -> Result<Option<T>>,
        within: impl FnOnce(Duration) -> Result<Option<T>>,
        until: impl FnOnce(Instant) -> Result<Option<T>>,
        waiting: impl FnOnce(&CancelToken) -> Result<T>,
    ) -> Result<Option<T>> {
        let max_wait = Duration::from_millis(self.request.max_wait);
        match self.manner {
            _ if self.request.max_wait == 0 => at_once(),
            Manner { closes: true, .. } => {
                let close = || self.clients.iter().for_each(Client::close);
                until_ended(max_wait, close, || waiting(&CancelToken::new()), Error::is_closed)
            }
            _ if self.request.cancelled => until_cancelled(max_wait, waiting),
            Manner { is_until: true, .. } => until(instant() + max_wait),
            _ => within(max_wait),
        }
    }
}

/// Acquires the lock of a request.
pub(super) fn acquire(kind: Kind, call: Call<'_>) -> Result<Option<Acquired>> {
    let (client, name) = (&call.clients[0], &*call.request.lock);
    match kind {
        Kind::Plain => acquire_limited(client.lock(name), call, |_| 0, |_| 0),
        Kind::Fenced => {
            let lock = client.fenced_lock(name);
            acquire_limited(lock, call, Guard::<Fenced>::token, OwnedGuard::<Fenced>::token)
        }
        Kind::Fair => acquire_limited(client.fair_lock(name), call, |_| 0, |_| 0),
        Kind::Rw if call.request.shared => {
            acquire_limited(client.rw_lock(name).read_lock(), call, |_| 0, |_| 0)
        }
        Kind::Rw => acquire_limited(client.rw_lock(name).write_lock(), call, |_| 0, |_| 0),
        Kind::Spin => acquire_limited(client.spin_lock(name), call, |_| 0, |_| 0),
        Kind::Queued => {
            let lock = client.queue_lock(name).with_weight(call.request.weight);
            acquire_limited(lock, call, Guard::<Queued>::token, OwnedGuard::<Queued>::token)
        }
        Kind::Election => elections::campaign(call),
        Kind::Red => {
            let lock = RedLock::new(call.clients.to_vec(), name);
            let lock = with_span(lock, call.request.max_hold, RedLock::with_max_hold);
            let lock = with_span(lock, call.request.renewed, RedLock::with_renewed_lease);
            acquire_from(lock, call, |_| 0, |_| 0)
        }
        Kind::Semaphore => lease_permits(call),
        Kind::Count => take_permits(call),
        Kind::Once => once::begin(call),
        Kind::Latch => unreachable!("nobody holds a latch"),
    }
}

/// Acquires all these locks together.
pub(super) fn acquire_all(members: &[(Kind, String)], call: Call<'_>) -> Result<Option<Acquired>> {
    let client = &call.clients[0];
    fn renewed<K: LockKind>(lock: Lock<K>, call: Call<'_>) -> Lock<K> {
        with_span(lock, call.request.renewed, Lock::with_renewed_lease)
    }
    let member = |(kind, name): &(Kind, String)| match kind {
        Kind::Rw => AnyLock::from(renewed(client.rw_lock(name).write_lock(), call)),
        Kind::Spin => renewed(client.spin_lock(name), call).into(),
        _ => renewed(client.lock(name), call).into(),
    };
    acquire_from(MultiLock::new(members.iter().map(member)), call, |_| 0, |_| 0)
}

/// Gives a handle one of the spans of a request, in milliseconds, if the request has it.
pub(super) fn with_span<T>(handle: T, millis: Option<u64>, set: fn(T, Duration) -> T) -> T {
    match millis {
        Some(millis) => set(handle, Duration::from_millis(millis)),
        None => handle,
    }
}

/// Takes permits with a lease.
fn lease_permits(call: Call<'_>) -> Result<Option<Acquired>> {
    let request = call.request;
    let semaphore = call.clients[0].semaphore(&*request.lock).with_permits(CAPACITY).with_slots();
    let semaphore = with_span(semaphore, request.max_hold, Semaphore::with_max_hold);
    let semaphore = with_span(semaphore, request.min_hold, Semaphore::with_min_hold);
    let semaphore = with_span(semaphore, request.renewed, Semaphore::with_renewed_lease);
    let semaphore = with_span(semaphore, request.lease, Semaphore::with_lease);
    let permits = request.permits;
    let permit = call.make(
        || semaphore.try_acquire_many(permits),
        |span| semaphore.try_acquire_many_for(permits, span),
        |deadline| semaphore.try_acquire_many_until(permits, deadline),
        |cancel| semaphore.clone().with_cancel(cancel).acquire_many(permits),
    )?;
    Ok(permit.map(|permit| {
        // In the place of a token, a bit for each slot.
        let slots = permit.slots().iter().fold(0, |bits, slot| bits | 1 << slot);
        (AnyGuard::Sendable(Box::new(permit)), slots)
    }))
}

/// Takes permits of a plain semaphore. The first caller that is refused sets them to the capacity.
fn take_permits(call: Call<'_>) -> Result<Option<Acquired>> {
    let permits = call.request.permits;
    let semaphore = call.clients[0].plain_semaphore(&*call.request.lock);
    if !semaphore.try_acquire(permits)? {
        semaphore.try_set_permits(CAPACITY)?;
        let taken = call.make(
            || semaphore.try_acquire(permits).map(some_if),
            |span| semaphore.try_acquire_for(permits, span).map(some_if),
            |deadline| semaphore.try_acquire_until(permits, deadline).map(some_if),
            |cancel| semaphore.clone().with_cancel(cancel).acquire(permits),
        )?;
        if taken.is_none() {
            return Ok(None);
        }
    }
    Ok(Some((AnyGuard::Sendable(Box::new(Taken { semaphore, permits })), 0)))
}

fn some_if(is_taken: bool) -> Option<()> {
    is_taken.then_some(())
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

    fn unlock(mut self: Box<Self>) -> Result<()> {
        self.give_back()
    }

    fn on_lost(&self, _: OnLost) -> bool {
        false
    }
}

impl Taken {
    /// Gives the permits back, as a program does that repeats retryable errors.
    ///
    /// The client completes a release that may have arrived. That error is not retryable.
    fn give_back(&mut self) -> Result<()> {
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
pub(super) fn until_not_retryable<T>(call: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(error) if error.is_retryable() => thread::sleep(REPEATED),
            outcome => return outcome,
        }
    }
}

/// Returns the token of a guard.
type TokenOf<G> = fn(&G) -> u64;

/// Acquires a lock with the limits of the request.
fn acquire_limited<K: LockKind>(
    lock: Lock<K>,
    call: Call<'_>,
    token: TokenOf<Guard<K>>,
    owned_token: TokenOf<OwnedGuard<K>>,
) -> Result<Option<Acquired>>
where
    Guard<K>: 'static,
{
    let lock = with_span(lock, call.request.max_hold, Lock::with_max_hold);
    let lock = with_span(lock, call.request.renewed, Lock::with_renewed_lease);
    let linger = call.request.linger.filter(|_| call.request.may_linger());
    let lock = with_span(lock, linger, Lock::with_linger);
    let lock = with_span(lock, call.request.min_hold, Lock::with_min_hold);
    acquire_from(lock, call, token, owned_token)
}

fn acquire_from<S: Subject>(
    lock: S,
    call: Call<'_>,
    token: TokenOf<S::Guard>,
    owned_token: TokenOf<S::Owned>,
) -> Result<Option<Acquired>>
where
    S::Guard: 'static,
{
    let lock = with_span(lock, call.request.lease, S::with_lease);
    if call.manner.is_owned {
        let guard = call.make(
            || lock.try_lock_owned(),
            |span| lock.try_lock_for_owned(span),
            |deadline| lock.try_lock_until_owned(deadline),
            |cancel| lock.clone().with_cancel(cancel).lock_owned(),
        )?;
        return Ok(guard.map(|guard| {
            let token = owned_token(&guard);
            let held = Locked { lock, guard, is_re_entrant: false };
            (AnyGuard::Sendable(Box::new(held)), token)
        }));
    }
    let guard = call.make(
        || lock.try_lock(),
        |span| lock.try_lock_for(span),
        |deadline| lock.try_lock_until(deadline),
        |cancel| lock.clone().with_cancel(cancel).lock(),
    )?;
    Ok(guard.map(|guard| {
        let token = token(&guard);
        let held = Locked { lock, guard, is_re_entrant: call.request.lease.is_none() };
        (AnyGuard::OfThread(Box::new(held)), token)
    }))
}

/// Calls with a token that another thread cancels later. Returns `None` after a cancellation.
pub(super) fn until_cancelled<T>(
    max_wait: Duration,
    call: impl FnOnce(&CancelToken) -> Result<T>,
) -> Result<Option<T>> {
    let token = CancelToken::new();
    let canceller = token.clone();
    until_ended(max_wait, || canceller.cancel(), || call(&token), Error::is_cancelled)
}

/// Calls while another thread ends the call later. Returns `None` if that was the reason of the
/// end.
fn until_ended<T>(
    max_wait: Duration,
    end: impl FnOnce() + Send,
    call: impl FnOnce() -> Result<T>,
    is_ended: impl FnOnce(&Error) -> bool,
) -> Result<Option<T>> {
    let (returned, has_returned) = channel::bounded::<()>(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            if has_returned.recv_timeout(max_wait) == Err(RecvTimeoutError::Timeout) {
                end();
            }
        });
        let acquired = call();
        drop(returned);
        match acquired {
            Err(error) if is_ended(&error) => Ok(None),
            acquired => acquired.map(Some),
        }
    })
}
