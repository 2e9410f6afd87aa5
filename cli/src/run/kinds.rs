//! Locks of all kinds and semaphores, behind two traits: [`Take`] and [`Hold`].

use std::any::Any;
use std::time::Duration;

use leasehold::kind::{LockKind, Queued};
use leasehold::{Lock, OwnedGuard, Permit, Result, Semaphore};

/// A lock or a permit that is held.
pub(super) struct Held {
    hold: Box<dyn Hold>,
    token: Option<u64>,
    slot: Option<u32>,
}

impl Held {
    fn of_guard<K: LockKind>(guard: OwnedGuard<K>) -> Held {
        // Only guards of queue locks have a token that `run` passes on.
        let queued = (&guard as &dyn Any).downcast_ref::<OwnedGuard<Queued>>();
        let token = queued.map(|guard| guard.token());
        Held { token, slot: None, hold: Box::new(guard) }
    }

    fn of_permit(permit: Permit) -> Held {
        Held { token: None, slot: permit.slot(), hold: Box::new(permit) }
    }

    /// Returns the token of a queue lock.
    pub(super) fn token(&self) -> Option<u64> {
        self.token
    }

    /// Returns the slot of a permit.
    pub(super) fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// Returns an error if the hold is lost.
    pub(super) fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// Calls `report` once if the hold is lost.
    pub(super) fn on_lost(&self, report: impl FnOnce() + Send + 'static) {
        self.hold.on_lost(Box::new(report));
    }

    /// Releases the lock and waits for the server to confirm.
    pub(super) fn release(self) -> Result<()> {
        self.hold.release()
    }
}

/// The guards of all kinds.
trait Hold {
    fn check(&self) -> Result<()>;
    fn on_lost(&self, report: Box<dyn FnOnce() + Send>);
    fn release(self: Box<Self>) -> Result<()>;
}

impl<K: LockKind> Hold for OwnedGuard<K> {
    fn check(&self) -> Result<()> {
        self.check()
    }

    fn on_lost(&self, report: Box<dyn FnOnce() + Send>) {
        self.on_lost(report);
    }

    fn release(self: Box<Self>) -> Result<()> {
        self.unlock()
    }
}

impl Hold for Permit {
    fn check(&self) -> Result<()> {
        self.check()
    }

    fn on_lost(&self, report: Box<dyn FnOnce() + Send>) {
        self.on_lost(report);
    }

    fn release(self: Box<Self>) -> Result<()> {
        (*self).release()
    }
}

/// A lock or a semaphore that can be taken.
pub(super) trait Take: Sized {
    /// Sets the length of the lease, which is renewed.
    fn renew(self, lease: Duration) -> Self;
    /// Keeps the lock taken for this time, also after an earlier release.
    fn keep(self, min_hold: Duration) -> Self;
    /// Takes the lock, and waits without a limit.
    fn take(&self) -> Result<Held>;
    /// Takes the lock if it is free.
    fn take_now(&self) -> Result<Option<Held>>;
    /// Takes the lock, and waits for at most this time.
    fn take_within(&self, wait: Duration) -> Result<Option<Held>>;
}

impl<K: LockKind> Take for Lock<K> {
    fn renew(self, lease: Duration) -> Self {
        self.with_renewed_lease(lease)
    }

    fn keep(self, min_hold: Duration) -> Self {
        self.with_min_hold(min_hold)
    }

    fn take(&self) -> Result<Held> {
        self.lock_owned().map(Held::of_guard)
    }

    fn take_now(&self) -> Result<Option<Held>> {
        Ok(self.try_lock_owned()?.map(Held::of_guard))
    }

    fn take_within(&self, wait: Duration) -> Result<Option<Held>> {
        Ok(self.try_lock_for_owned(wait)?.map(Held::of_guard))
    }
}

impl Take for Semaphore {
    fn renew(self, lease: Duration) -> Self {
        self.with_renewed_lease(lease)
    }

    fn keep(self, min_hold: Duration) -> Self {
        self.with_min_hold(min_hold)
    }

    fn take(&self) -> Result<Held> {
        self.acquire().map(Held::of_permit)
    }

    fn take_now(&self) -> Result<Option<Held>> {
        Ok(self.try_acquire()?.map(Held::of_permit))
    }

    fn take_within(&self, wait: Duration) -> Result<Option<Held>> {
        Ok(self.try_acquire_for(wait)?.map(Held::of_permit))
    }
}
