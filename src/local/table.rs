//! What a thread of this process has of one lock: a hold, and how often it counts.

use std::sync::Arc;

use crate::command::owner::{Holder, Owner};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::events::Kind;
use crate::kind::rules::{KindRules, OtherHold};
use crate::local::hold::{Hold, HoldStatus};
use crate::util::clock::Moment;

/// What a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRequest {
    pub(crate) rules: &'static dyn KindRules,
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
pub(crate) struct HoldEntry {
    pub(crate) lease: Arc<Hold>,
    pub(crate) holder: Holder,
    pub(crate) guards: usize,
    pub(crate) detached: usize,
}

/// How a caller comes to a hold.
#[derive(Debug)]
pub(crate) enum EntryOutcome {
    /// It has it already.
    Reentered(Arc<Hold>),
    /// It asks for one beside this hold of its thread.
    Beside(Owner),
    /// It asks for one of its own.
    New,
    /// Its thread is in the way, and it would not wait.
    Busy,
}

impl EntryOutcome {
    /// What the holds of a thread mean for what it wants.
    pub(crate) fn of<'a>(
        mut own: impl Iterator<Item = &'a HoldEntry>,
        request: &EntryRequest,
        owner: &[u8],
        now: Moment,
    ) -> Result<EntryOutcome> {
        own.try_fold(EntryOutcome::New, |entry, held| {
            match (entry, held.beside(request, owner, now)?) {
                (entry, EntryOutcome::New) | (entry @ EntryOutcome::Busy, _) => Ok(entry),
                (_, other) => Ok(other),
            }
        })
    }
}

/// What ends of that which counts a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldShare {
    Guard,
    Detached,
    /// All that a thread left behind when it ended.
    Everything,
}

impl HoldEntry {
    pub(crate) fn new(lease: Arc<Hold>, holder: Holder) -> HoldEntry {
        HoldEntry { lease, holder, guards: 1, detached: 0 }
    }

    /// Counts one guard more of this hold, which is of the kind that is wanted.
    pub(crate) fn again(&mut self, now: Moment) -> Result<EntryOutcome> {
        if self.lease.status(now) != HoldStatus::Held {
            return Err(lost(&self.lease));
        }
        self.guards += 1;
        Ok(EntryOutcome::Reentered(Arc::clone(&self.lease)))
    }

    /// What the thread's own hold means for a caller that wants another beside it.
    fn beside(&self, request: &EntryRequest, owner: &[u8], now: Moment) -> Result<EntryOutcome> {
        let valid = self.lease.status(now) == HoldStatus::Held;
        let other = OtherHold {
            kind: self.lease.rules().kind(),
            owner: self.lease.owner(),
            same_thread: !request.owned,
        };
        match request.rules.shares_with(owner, &other) {
            true if valid && other.same_thread && other.kind != request.rules.kind() => {
                Ok(EntryOutcome::Beside(self.lease.owner().clone()))
            }
            true => Ok(EntryOutcome::New),
            false if request.owned && !(valid && request.waits) => Ok(EntryOutcome::New),
            false if !valid => Err(lost(&self.lease)),
            false if !request.waits => Ok(EntryOutcome::Busy),
            false => Err(deadlock(other.kind)),
        }
    }

    /// Whether a caller cannot have what it wants as long as this hold, which is not its
    /// thread's, is valid.
    pub(crate) fn is_in_the_way(&self, request: &EntryRequest, owner: &[u8], now: Moment) -> bool {
        let other = OtherHold {
            kind: self.lease.rules().kind(),
            owner: self.lease.owner(),
            same_thread: false,
        };
        !self.lease.remaining(now).is_zero() && !request.rules.shares_with(owner, &other)
    }

    /// Whether it has what is to be ended: of two that end the same detach one is late,
    /// and the hold may have gone on to another thread meanwhile.
    pub(crate) fn has(&self, counted: HoldShare) -> bool {
        match counted {
            HoldShare::Guard => self.guards > 0,
            HoldShare::Detached => self.detached > 0,
            HoldShare::Everything => self.holder.has_ended(),
        }
    }

    pub(crate) fn discount(&mut self, counted: HoldShare) {
        match counted {
            HoldShare::Guard => self.guards = self.guards.saturating_sub(1),
            HoldShare::Detached => self.detached = self.detached.saturating_sub(1),
            HoldShare::Everything => (self.guards, self.detached) = (0, 0),
        }
    }

    /// Whether it was detached by a thread that may think it has it still.
    pub(crate) fn is_counted_on(&self) -> bool {
        !self.holder.is_owned() && self.lease.is_renewed()
    }

    /// Whether it was left behind for anybody to end.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.holder.has_ended() || self.holder.is_owned() && self.detached > 0
    }
}

/// What a thread is told that has lost a hold and counts on it still.
fn lost(lease: &Hold) -> Error {
    lost_before(lease.lost_reason())
}

/// The same, where several leases count as one.
pub(crate) fn lost_before(reason: LostReason) -> Error {
    Error::lost(reason, "this thread has lost the lock and still has a guard, or a detach, of it")
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
