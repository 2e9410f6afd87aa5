//! What a thread of this process has of one lock: a hold, and how often it counts.

use std::sync::Arc;

use crate::command::owner::{Holder, Owner};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::events::Kind;
use crate::kind::rules::{Beside, Rules};
use crate::local::hold::{Lease, Look};
use crate::util::clock::Moment;

/// What a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) rules: &'static dyn Rules,
    /// A hold that is no thread's.
    pub(crate) owned: bool,
    /// Whether it would wait; if not, it asks only if nobody is before it.
    pub(crate) waits: bool,
    /// Whether neither a deadline nor a token ends its wait.
    pub(crate) endless: bool,
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
    /// Its thread is in the way, and it would not wait.
    Busy,
}

impl Entry {
    /// What the holds of a thread mean for what it wants.
    pub(crate) fn of<'a>(
        mut own: impl Iterator<Item = &'a Held>,
        wish: &Wish,
        owner: &[u8],
        now: Moment,
    ) -> Result<Entry> {
        own.try_fold(Entry::Anew, |entry, held| match (entry, held.beside(wish, owner, now)?) {
            (entry, Entry::Anew) | (entry @ Entry::Busy, _) => Ok(entry),
            (_, other) => Ok(other),
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
            return Err(lost(&self.lease));
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
            false if !valid => Err(lost(&self.lease)),
            false if !wish.waits => Ok(Entry::Busy),
            false => Err(deadlock(other.kind)),
        }
    }

    /// Whether a caller cannot have what it wants as long as this hold, which is not its
    /// thread's, is valid.
    pub(crate) fn is_in_the_way(&self, wish: &Wish, owner: &[u8], now: Moment) -> bool {
        let other = Beside {
            kind: self.lease.rules().kind(),
            owner: self.lease.owner(),
            same_thread: false,
        };
        !self.lease.remaining(now).is_zero() && !wish.rules.shares_with(owner, &other)
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
fn lost(lease: &Lease) -> Error {
    lost_before(lease.lost_reason())
}

/// The same, where several leases count as one.
pub(crate) fn lost_before(reason: LostReason) -> Error {
    Error::lost(reason, "this thread has lost the lock and still has a guard, or a leak, of it")
}

pub(crate) fn deadlock_with_owned() -> Error {
    let message =
        "this thread took an owned guard of the lock, and would wait for its end for ever";
    Error::new(ErrorKind::Deadlock, message)
}

fn deadlock(kind: Kind) -> Error {
    let message = format!("this thread has a {kind} of that name, and would wait for itself");
    Error::new(ErrorKind::Deadlock, message)
}
