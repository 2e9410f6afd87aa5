//! Locks of all kinds, semaphores and work that is done once, behind traits: [`Take`], [`Settings`]
//! and [`Hold`].

use std::any::Any;
use std::time::Duration;

use leasehold::kind::{LockKind, Queued};
use leasehold::{Begin, Lock, Once, OnceRun, OwnedGuard, Permit, Result, Semaphore};

/// A lock or a permit that is held, or work that this caller runs.
pub(super) struct Held {
    hold: Box<dyn Hold>,
    token: Option<u64>,
    slot: Option<u32>,
    commits: bool,
}

impl Held {
    fn of_guard<K: LockKind>(guard: OwnedGuard<K>) -> Held {
        // Only guards of queue locks have a token that `run` passes on.
        let queued = (&guard as &dyn Any).downcast_ref::<OwnedGuard<Queued>>();
        let token = queued.map(|guard| guard.token());
        Held { token, slot: None, commits: false, hold: Box::new(guard) }
    }

    fn of_permit(permit: Permit) -> Held {
        Held { token: None, slot: permit.slot(), commits: false, hold: Box::new(permit) }
    }

    pub(super) fn of_work(run: OnceRun) -> Held {
        Held { token: Some(run.token()), slot: None, commits: true, hold: Box::new(run) }
    }

    /// Returns the token of a queue lock, or of work that is done once.
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

    /// Returns whether the end of the command may [commit](Held::commit) a result.
    pub(super) fn commits(&self) -> bool {
        self.commits
    }

    /// Commits the result of work, which ends the hold; releases any other hold.
    pub(super) fn commit(self, result: &[u8]) -> Result<()> {
        self.hold.commit(result)
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
    fn commit(self: Box<Self>, _result: &[u8]) -> Result<()> {
        self.release()
    }
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

impl Hold for OnceRun {
    fn check(&self) -> Result<()> {
        self.check()
    }

    fn on_lost(&self, report: Box<dyn FnOnce() + Send>) {
        self.on_lost(report);
    }

    fn release(self: Box<Self>) -> Result<()> {
        self.give_up()
    }

    fn commit(self: Box<Self>, result: &[u8]) -> Result<()> {
        (*self).commit(result).map(drop)
    }
}

/// What a caller can wait for.
pub(super) trait Take {
    /// What the caller gets.
    type Taken;
    /// Takes it, and waits without a limit.
    fn take(&self) -> Result<Self::Taken>;
    /// Takes it if nobody else has it.
    fn take_now(&self) -> Result<Option<Self::Taken>>;
    /// Takes it, and waits for at most this time.
    fn take_within(&self, wait: Duration) -> Result<Option<Self::Taken>>;
}

/// The settings that locks and semaphores share.
pub(super) trait Settings: Sized {
    /// Sets the length of the lease, which is renewed.
    fn renew(self, lease: Duration) -> Self;
    /// Keeps the lock taken for this time, also after an earlier release.
    fn keep(self, min_hold: Duration) -> Self;
}

impl<K: LockKind> Take for Lock<K> {
    type Taken = Held;

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

impl<K: LockKind> Settings for Lock<K> {
    fn renew(self, lease: Duration) -> Self {
        self.with_renewed_lease(lease)
    }

    fn keep(self, min_hold: Duration) -> Self {
        self.with_min_hold(min_hold)
    }
}

impl Take for Semaphore {
    type Taken = Held;

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

impl Settings for Semaphore {
    fn renew(self, lease: Duration) -> Self {
        self.with_renewed_lease(lease)
    }

    fn keep(self, min_hold: Duration) -> Self {
        self.with_min_hold(min_hold)
    }
}

impl Take for Once {
    type Taken = Begin;

    fn take(&self) -> Result<Begin> {
        self.begin()
    }

    fn take_now(&self) -> Result<Option<Begin>> {
        self.try_begin()
    }

    fn take_within(&self, wait: Duration) -> Result<Option<Begin>> {
        self.try_begin_for(wait)
    }
}
