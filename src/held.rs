//! What a thread of this process has of one lock: a hold, and how often it counts.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Holder, Owner};
use crate::lease::{Lease, Look};
use crate::protocol::{Beside, Rules};
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

/// How a caller comes to a hold.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It has it already.
    Again(Arc<Lease>),
    /// It asks for one beside this hold of its thread.
    Beside(Owner),
    /// It asks for one of its own.
    Anew,
}

impl Entry {
    /// What the holds of a thread mean for what it wants.
    pub(crate) fn of<'a>(
        mut own: impl Iterator<Item = &'a Held>,
        wish: &Wish,
        owner: &[u8],
        now: Moment,
    ) -> Result<Entry> {
        own.try_fold(Entry::Anew, |entry, held| match held.beside(wish, owner, now)? {
            Entry::Anew => Ok(entry),
            other => Ok(other),
        })
    }
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

    /// Counts one guard more of this hold, which is of the kind that is wanted.
    pub(crate) fn again(&mut self, now: Moment) -> Result<Entry> {
        if self.lease.look(now) != Look::Held {
            return Err(lost());
        }
        self.guards += 1;
        Ok(Entry::Again(Arc::clone(&self.lease)))
    }

    /// What the thread's own hold means for a caller that wants another beside it.
    fn beside(&self, wish: &Wish, owner: &[u8], now: Moment) -> Result<Entry> {
        let valid = self.lease.look(now) == Look::Held;
        let other = Beside {
            kind: self.lease.rules().kind(),
            owner: self.lease.owner(),
            same_thread: !wish.owned,
        };
        match wish.rules.shares_with(owner, &other) {
            true if valid && other.same_thread && other.kind != wish.rules.kind() => {
                Ok(Entry::Beside(self.lease.owner().clone()))
            }
            true => Ok(Entry::Anew),
            false if wish.owned && !(valid && wish.waits) => Ok(Entry::Anew),
            false if !valid => Err(lost()),
            false => Err(deadlock(other.kind)),
        }
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

/// What a thread is told that has lost a hold and counts on it still.
pub(crate) fn lost() -> Error {
    Error::lost("this thread held the lock and has lost it")
}

fn deadlock(kind: &str) -> Error {
    let message = format!("this thread has a {kind} of that name, and would wait for itself");
    Error::new(ErrorKind::Deadlock, message)
}
