//! Guards of all kinds, and what only some of them can do.

use crate::subject::{Subject, SubjectGuard};
use leasehold::{Leadership, OnceRun, Permit, Result};
use std::time::Duration;

/// A closure that a loss calls.
pub(super) type OnLost = Box<dyn FnOnce() + Send>;

/// A guard of any kind.
pub(super) trait Held {
    fn is_held(&self) -> bool;
    fn unlock(self: Box<Self>) -> Result<()>;
    /// Writes the result of work and ends the hold, if this is work.
    fn commit(self: Box<Self>, _value: u64) -> Result<()> {
        self.unlock()
    }
    /// Lets the lock release the hold, if it can.
    fn unlock_by_lock(self: Box<Self>) -> Result<()> {
        self.unlock()
    }
    /// Takes the lock again, if it can. Panics if that fails beside a valid hold, unless the client
    /// may be closed meanwhile, and is.
    fn re_enter(&self, _may_be_closed: bool) {}
    /// Sets the remaining lease, if it can. Returns whether it has done so.
    fn extend(&self, _: Duration) -> bool {
        false
    }
    /// Has a loss call this closure. Returns `false` if the kind has no losses.
    fn on_lost(&self, call: OnLost) -> bool;
}

/// A guard with the lock that it came from.
pub(super) struct Locked<S, G> {
    pub lock: S,
    pub guard: G,
    /// Whether the thread of the guard re-enters, with a renewed lease. A fixed lease would change.
    pub is_re_entrant: bool,
}

impl<S: Subject, G: SubjectGuard> Held for Locked<S, G> {
    fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    fn unlock(self: Box<Self>) -> Result<()> {
        self.guard.unlock()
    }

    fn unlock_by_lock(self: Box<Self>) -> Result<()> {
        self.guard.detach();
        self.lock.unlock()
    }

    fn re_enter(&self, may_be_closed: bool) {
        if !self.is_re_entrant {
            return;
        }
        match self.lock.try_lock() {
            Ok(Some(again)) => {
                assert!(self.lock.hold_count() >= 2, "a re-entry is not counted");
                drop(again);
            }
            Ok(None) => panic!("a lock refuses its holder"),
            Err(error) if may_be_closed && error.is_closed() => {}
            Err(error) => assert!(!self.is_held(), "a re-entry beside a valid hold: {error}"),
        }
    }

    fn extend(&self, lease: Duration) -> bool {
        self.guard.extend(lease).is_ok()
    }

    fn on_lost(&self, call: OnLost) -> bool {
        self.guard.on_lost(call);
        true
    }
}

impl Held for Permit {
    fn is_held(&self) -> bool {
        Permit::is_held(self)
    }

    fn unlock(self: Box<Self>) -> Result<()> {
        self.release()
    }

    fn on_lost(&self, call: OnLost) -> bool {
        Permit::on_lost(self, call);
        true
    }
}

impl Held for Leadership {
    fn is_held(&self) -> bool {
        Leadership::is_held(self)
    }

    fn unlock(self: Box<Self>) -> Result<()> {
        self.resign()
    }

    fn on_lost(&self, call: OnLost) -> bool {
        Leadership::on_lost(self, call);
        true
    }
}

impl Held for OnceRun {
    fn is_held(&self) -> bool {
        OnceRun::is_held(self)
    }

    fn unlock(self: Box<Self>) -> Result<()> {
        self.give_up()
    }

    fn commit(self: Box<Self>, value: u64) -> Result<()> {
        OnceRun::commit(*self, value.to_string()).map(drop)
    }

    fn on_lost(&self, call: OnLost) -> bool {
        OnceRun::on_lost(self, call);
        true
    }
}
