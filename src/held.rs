//! What a thread of this process has of one lock: a hold, and how often it counts.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::hold::Holder;
use crate::lease::{Lease, Look};
use crate::protocol::Rules;
use crate::time::Moment;

/// What a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) rules: &'static dyn Rules,
    /// A hold that is no thread's.
    pub(crate) owned: bool,
    /// Whether it would wait; if not, it asks only if nobody is before it.
    pub(crate) waits: bool,
    /// Whether it wants a lease that is renewed: only such holds are passed.
    pub(crate) renewed: bool,
}

/// A hold, and how many guards it has.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: Arc<Lease>,
    pub(crate) holder: Holder,
    pub(crate) guards: usize,
    pub(crate) leaked: usize,
}

/// What ends of that which counts a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Guard,
    Leak,
    /// All that a thread left behind when it ended.
    Everything,
}

impl Held {
    pub(crate) fn new(lease: Arc<Lease>, holder: Holder) -> Held {
        Held { lease, holder, guards: 1, leaked: 0 }
    }

    /// `None` if the caller may stand in line beside its own hold.
    pub(crate) fn re_enter(&mut self, wish: &Wish, now: Moment) -> Result<Option<Arc<Lease>>> {
        let valid = self.lease.look(now) == Look::Held;
        if wish.owned && !(valid && wish.waits) {
            return Ok(None);
        }
        if wish.owned {
            return Err(deadlock("this thread holds the lock, and would wait for itself"));
        }
        if self.lease.rules().kind() != wish.rules.kind() {
            return Err(deadlock("this thread holds the lock as one of another kind"));
        }
        if !valid {
            return Err(Error::lost("this thread held the lock and has lost it"));
        }
        self.guards += 1;
        Ok(Some(Arc::clone(&self.lease)))
    }

    /// Whether it has what is to be ended: of two that end the same leak one is late,
    /// and the hold may have gone on to another thread meanwhile.
    pub(crate) fn has(&self, counted: Counted) -> bool {
        match counted {
            Counted::Guard => self.guards > 0,
            Counted::Leak => self.leaked > 0,
            Counted::Everything => self.holder.has_ended(),
        }
    }

    pub(crate) fn discount(&mut self, counted: Counted) {
        match counted {
            Counted::Guard => self.guards = self.guards.saturating_sub(1),
            Counted::Leak => self.leaked = self.leaked.saturating_sub(1),
            Counted::Everything => (self.guards, self.leaked) = (0, 0),
        }
    }

    /// Whether it was leaked by a thread that may think it has it still.
    pub(crate) fn is_counted_on(&self) -> bool {
        !self.holder.is_owned() && self.lease.is_renewed()
    }

    /// Whether it was left behind for anybody to end.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.holder.has_ended() || self.holder.is_owned() && self.leaked > 0
    }
}

fn deadlock(message: &'static str) -> Error {
    Error::new(ErrorKind::Deadlock, message)
}
