//! The holds of one lock in this process, with the holder and the guards of each.

use std::slice;
use std::sync::Arc;

use crate::command::owner::{Holder, Owner, ThreadId};
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

/// The holds of one lock in this process.
///
/// `H` is the hold: a [`Hold`], or the hold of a red lock on a majority of its servers.
#[derive(Debug)]
pub(crate) struct HoldTable<H = Hold>(Vec<HoldEntry<H>>);

/// A hold, its holder, and the number of its guards and of its detached shares.
#[derive(Debug)]
pub(crate) struct HoldEntry<H = Hold> {
    pub(crate) hold: Arc<H>,
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

/// The part of a hold that a caller ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldShare {
    Guard,
    Detached,
    /// All shares of a thread that has ended.
    Everything,
}

impl<H> Default for HoldTable<H> {
    fn default() -> HoldTable<H> {
        HoldTable(Vec::new())
    }
}

impl<H> HoldTable<H> {
    /// Adds a hold with one guard.
    pub(crate) fn insert(&mut self, hold: Arc<H>, holder: Holder) {
        self.0.push(HoldEntry { hold, holder, guards: 1, detached: 0 });
    }

    pub(crate) fn remove(&mut self, hold: &Arc<H>) {
        self.0.retain(|entry| !Arc::ptr_eq(&entry.hold, hold));
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&HoldEntry<H>) -> bool) {
        self.0.retain(is_kept);
    }

    pub(crate) fn iter(&self) -> slice::Iter<'_, HoldEntry<H>> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> slice::IterMut<'_, HoldEntry<H>> {
        self.0.iter_mut()
    }

    pub(crate) fn entry_mut(&mut self, hold: &Arc<H>) -> Option<&mut HoldEntry<H>> {
        self.0.iter_mut().find(|entry| Arc::ptr_eq(&entry.hold, hold))
    }

    /// Returns the entries whose holder is that thread.
    pub(crate) fn of_thread(&self, thread: ThreadId) -> impl Iterator<Item = &HoldEntry<H>> {
        self.0.iter().filter(move |entry| entry.holder.is_thread(thread))
    }

    /// Turns one guard into a detached share.
    pub(crate) fn detach(&mut self, hold: &Arc<H>) {
        if let Some(entry) = self.entry_mut(hold) {
            entry.end(HoldShare::Guard);
            entry.detached += 1;
        }
    }

    /// Returns the detached hold that this thread may end: a hold that it detached; otherwise a
    /// detached owned hold, or a hold of a thread that has ended. Of these it prefers a valid one.
    pub(crate) fn detached(
        &self,
        thread: ThreadId,
        is_eligible: impl Fn(&H) -> bool,
        is_valid: impl Fn(&H) -> bool,
    ) -> Option<(Arc<H>, HoldShare)> {
        let eligible = || self.0.iter().filter(|entry| is_eligible(&entry.hold));
        let own = |entry: &&HoldEntry<H>| entry.detached > 0 && entry.holder.is_thread(thread);
        let unattended = || eligible().filter(|entry| entry.is_unattended());
        let found = eligible().find(own);
        let found = found.or_else(|| unattended().find(|entry| is_valid(&entry.hold)));
        let entry = found.or_else(|| unattended().next())?;
        let ended = entry.holder.has_ended();
        let share = if ended { HoldShare::Everything } else { HoldShare::Detached };
        Some((Arc::clone(&entry.hold), share))
    }
}

impl<H> HoldEntry<H> {
    /// Returns the number of shares: guards and detached shares.
    pub(crate) fn count(&self) -> usize {
        self.guards + self.detached
    }

    /// Returns whether the entry has such a share.
    ///
    /// False for the later of two callers that end the same detached share. The hold may then
    /// belong to another thread already.
    pub(crate) fn has(&self, share: HoldShare) -> bool {
        match share {
            HoldShare::Guard => self.guards > 0,
            HoldShare::Detached => self.detached > 0,
            HoldShare::Everything => self.holder.has_ended(),
        }
    }

    pub(crate) fn end(&mut self, share: HoldShare) {
        match share {
            HoldShare::Guard => self.guards = self.guards.saturating_sub(1),
            HoldShare::Detached => self.detached = self.detached.saturating_sub(1),
            HoldShare::Everything => (self.guards, self.detached) = (0, 0),
        }
    }

    /// Returns whether this is the hold of an owned guard that the thread took.
    pub(crate) fn is_owned_guard_of(&self, thread: ThreadId) -> bool {
        self.guards > 0 && self.holder.was_taken_by(thread)
    }

    /// Returns whether any thread may end this hold.
    fn is_unattended(&self) -> bool {
        self.holder.has_ended() || self.holder.is_owned() && self.detached > 0
    }
}

impl HoldEntry {
    /// Counts one guard more of this hold, which is of the kind that is wanted.
    pub(crate) fn again(&mut self, now: Moment) -> Result<EntryOutcome> {
        if self.hold.status(now) != HoldStatus::Held {
            return Err(lost(&self.hold));
        }
        self.guards += 1;
        Ok(EntryOutcome::Reentered(Arc::clone(&self.hold)))
    }

    /// What the thread's own hold means for a caller that wants another beside it.
    fn beside(&self, request: &EntryRequest, owner: &[u8], now: Moment) -> Result<EntryOutcome> {
        let valid = self.hold.status(now) == HoldStatus::Held;
        let other = OtherHold {
            kind: self.hold.rules().kind(),
            owner: self.hold.owner(),
            same_thread: !request.owned,
        };
        match request.rules.shares_with(owner, &other) {
            true if valid && other.same_thread && other.kind != request.rules.kind() => {
                Ok(EntryOutcome::Beside(self.hold.owner().clone()))
            }
            true => Ok(EntryOutcome::New),
            false if request.owned && !(valid && request.waits) => Ok(EntryOutcome::New),
            false if !valid => Err(lost(&self.hold)),
            false if !request.waits => Ok(EntryOutcome::Busy),
            false => Err(deadlock(other.kind)),
        }
    }

    /// Whether a caller cannot have what it wants as long as this hold, which is not its
    /// thread's, is valid.
    pub(crate) fn is_in_the_way(&self, request: &EntryRequest, owner: &[u8], now: Moment) -> bool {
        let other = OtherHold {
            kind: self.hold.rules().kind(),
            owner: self.hold.owner(),
            same_thread: false,
        };
        !self.hold.remaining(now).is_zero() && !request.rules.shares_with(owner, &other)
    }

    /// Whether it was detached by a thread that may think it has it still.
    pub(crate) fn is_counted_on(&self) -> bool {
        !self.holder.is_owned() && self.hold.is_renewed()
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
