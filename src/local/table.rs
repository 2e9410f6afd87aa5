//! The holds of one lock in this process, with the holder and the guards of each.
//!
//! The entries of the calling thread decide the outcome of its request: the thread re-enters a
//! hold, asks the server for a new one, or fails because it would wait for itself.

use std::slice;
use std::sync::Arc;

use crate::command::owner::{Holder, Owner, ThreadId};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::events::Kind;
use crate::kind::rules::{KindRules, OtherHold};
use crate::local::hold::{Hold, HoldStatus};
use crate::util::clock::Moment;

/// The request of a caller for a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryRequest {
    pub(crate) rules: &'static dyn KindRules,
    /// Whether the guard belongs to no thread.
    pub(crate) owned: bool,
    /// Whether the caller waits. If not, it asks the server only if the queue is empty.
    pub(crate) waits: bool,
    /// Whether the watchdog is to renew the lease. Only renewed holds are handed off.
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

/// The way in which a caller gets a hold.
#[derive(Debug)]
pub(crate) enum EntryOutcome {
    /// The thread has the hold already; one more guard was counted.
    Reentered(Arc<Hold>),
    /// A new hold, under the write hold of the same thread with this owner.
    Beside(Owner),
    /// A new hold.
    New,
    /// No hold: the caller does not wait, and its own thread has the lock.
    Busy,
}

impl EntryOutcome {
    /// Returns the outcome for a request, given the holds of the calling thread.
    ///
    /// Fails with `is_lost` or `is_deadlock` if one of these holds prevents the request.
    pub(crate) fn of<'a>(
        mut own: impl Iterator<Item = &'a HoldEntry>,
        request: &EntryRequest,
        owner: &[u8],
        now: Moment,
    ) -> Result<EntryOutcome> {
        own.try_fold(EntryOutcome::New, |outcome, entry| {
            match (outcome, entry.outcome_for(request, owner, now)?) {
                (outcome, EntryOutcome::New) | (outcome @ EntryOutcome::Busy, _) => Ok(outcome),
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

    /// Removes a hold that has no shares left, and returns its entry.
    pub(crate) fn take(&mut self, hold: &Arc<H>) -> Option<HoldEntry<H>> {
        let at = self.0.iter().position(|entry| Arc::ptr_eq(&entry.hold, hold))?;
        Some(self.0.swap_remove(at))
    }

    /// Removes a hold with all its shares.
    pub(crate) fn remove(&mut self, hold: &Arc<H>) {
        self.0.retain(|entry| !Arc::ptr_eq(&entry.hold, hold));
    }

    /// Removes all entries for which `is_kept` returns false.
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
        // Any thread may end these.
        let is_unattended = |entry: &&HoldEntry<H>| {
            entry.holder.has_ended() || entry.holder.is_owned() && entry.detached > 0
        };
        let unattended = || eligible().filter(is_unattended);
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

    /// Returns whether the entry has this share.
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

    /// Ends a share.
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
}

impl HoldEntry {
    /// Counts one more guard for a re-entry. Fails with `is_lost` if the hold is over.
    pub(crate) fn re_enter(&mut self, now: Moment) -> Result<EntryOutcome> {
        if self.hold.status(now) != HoldStatus::Held {
            return Err(lost_with_guard(self.hold.lost_reason()));
        }
        self.guards += 1;
        Ok(EntryOutcome::Reentered(Arc::clone(&self.hold)))
    }

    /// Returns the outcome of a request by the thread of this hold.
    fn outcome_for(
        &self,
        request: &EntryRequest,
        owner: &[u8],
        now: Moment,
    ) -> Result<EntryOutcome> {
        let valid = self.hold.status(now) == HoldStatus::Held;
        let other = OtherHold {
            kind: self.hold.rules().kind(),
            owner: self.hold.owner(),
            same_thread: !request.owned,
        };
        if request.rules.shares_with(owner, &other) {
            let beside = valid && other.same_thread && other.kind != request.rules.kind();
            Ok(if beside { EntryOutcome::Beside(other.owner.clone()) } else { EntryOutcome::New })
        } else if request.owned && !(valid && request.waits) {
            Ok(EntryOutcome::New)
        } else if !valid {
            Err(lost_with_guard(self.hold.lost_reason()))
        } else if !request.waits {
            Ok(EntryOutcome::Busy)
        } else {
            Err(deadlock(other.kind))
        }
    }

    /// Returns whether this hold of another thread is valid and excludes the request.
    pub(crate) fn excludes(&self, request: &EntryRequest, owner: &[u8], now: Moment) -> bool {
        let other = OtherHold {
            kind: self.hold.rules().kind(),
            owner: self.hold.owner(),
            same_thread: false,
        };
        !self.hold.remaining(now).is_zero() && !request.rules.shares_with(owner, &other)
    }

    /// Returns whether a thread may still rely on the renewal of its detached share.
    pub(crate) fn is_relied_on(&self) -> bool {
        !self.holder.is_owned() && self.hold.has_renewed_lease()
    }
}

/// Returns the error for the thread of a lost hold, which still has a guard or a detached share.
///
/// Red locks use it too.
pub(crate) fn lost_with_guard(reason: LostReason) -> Error {
    Error::lost(reason, "this thread lost the lock, and still has a guard or a detached hold of it")
}

/// Returns the error for a wait of a thread for its own hold.
fn deadlock(kind: Kind) -> Error {
    let message = format!("this thread holds a {kind} of the same name, and would wait for itself");
    Error::new(ErrorKind::Deadlock, message)
}
