//! The state of one red lock in this process: its queue and its table of holds.

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crate::command::owner::{Holder, ThreadId};
use crate::error::{Error, ErrorKind, Result};
use crate::local::queue::{Ticket, WaitQueue};
use crate::local::table::{self, HoldEntry, HoldShare, HoldTable};
use crate::lock::red_lock::quorum::QuorumHold;
use crate::util::sync::{Mutex, Parker};

/// The state of one red lock in this process.
#[derive(Debug, Default)]
pub(super) struct RedLocal(Mutex<RedLocalState>);

#[derive(Debug, Default)]
struct RedLocalState {
    queue: WaitQueue<Arc<Parker>>,
    holds: HoldTable<QuorumHold>,
    /// Why too few servers answered the last question of this process.
    last_error: Option<Error>,
}

/// The request of a caller for a hold.
#[derive(Clone, Copy)]
pub(super) struct RedEntryRequest {
    /// The guard belongs to no thread.
    pub(super) owned: bool,
    pub(super) waits: bool,
}

/// The way in which a caller gets a hold.
pub(super) enum RedEntryOutcome {
    /// The thread holds the lock already, now with one guard more.
    Reentered(Arc<QuorumHold>),
    Queued(Ticket),
    /// The caller gets no hold: it does not wait, and another caller has the lock or comes first.
    Busy,
}

/// The next step of a caller in the queue.
pub(super) enum RedTurn {
    /// Sleep until the parker is woken.
    Behind,
    /// Wait for the end of a hold of this process.
    HeldHere(Arc<QuorumHold>),
    /// Ask the servers.
    Ask,
}

/// A panic leaves the state consistent: callbacks run without a mutex held
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for RedLocal {}

impl RedLocal {
    /// Re-enters the lock, or joins the queue.
    ///
    /// # Errors
    /// `is_lost` if the thread has a guard of a lost hold; `is_deadlock` if it would wait for
    /// itself.
    pub(super) fn enter(
        &self,
        request: RedEntryRequest,
        parker: &Arc<Parker>,
    ) -> Result<RedEntryOutcome> {
        let mut state = self.0.lock();
        let unattended = state.remove_unattended();
        let entry = state.enter(request, parker);
        drop(state);
        // Without the mutex: the drop releases the rest of the holds.
        drop(unattended);
        entry
    }

    /// Returns whether an owned guard that the calling thread took has a valid hold.
    pub(super) fn has_own_guard(&self) -> bool {
        let (thread, state) = (ThreadId::current(), self.0.lock());
        let mut own = state.holds.iter().filter(|entry| entry.is_owned_guard_of(thread));
        own.any(|entry| entry.hold.is_valid())
    }

    /// Returns the next step of the caller with that ticket.
    pub(super) fn turn(&self, ticket: Ticket) -> RedTurn {
        let state = self.0.lock();
        match state.valid_hold() {
            _ if !state.queue.is_head(ticket) => RedTurn::Behind,
            Some(hold) => RedTurn::HeldHere(Arc::clone(hold)),
            None => RedTurn::Ask,
        }
    }

    /// Removes the caller from the queue and wakes the head.
    pub(super) fn leave(&self, ticket: Ticket) {
        let mut state = self.0.lock();
        state.queue.leave(ticket);
        state.wake_head();
    }

    /// Sets why too few servers answered the last question, for the callers behind the head.
    pub(super) fn set_last_error(&self, error: Option<Error>) {
        let before = std::mem::replace(&mut self.0.lock().last_error, error);
        drop(before);
    }

    /// Returns why too few servers answered the last question of this process.
    pub(super) fn last_error(&self) -> Option<Error> {
        self.0.lock().last_error.clone()
    }

    /// Adds a hold with one guard.
    pub(super) fn granted(&self, hold: &Arc<QuorumHold>, holder: Holder) {
        self.0.lock().holds.insert(Arc::clone(hold), holder);
    }

    /// Ends one guard of a hold. Returns whether it was the last.
    ///
    /// After the last guard the caller releases the hold and [removes](RedLocal::remove) it.
    pub(super) fn end(&self, hold: &Arc<QuorumHold>) -> bool {
        let mut state = self.0.lock();
        let Some(entry) = state.holds.entry_mut(hold) else { return true };
        entry.end(HoldShare::Guard);
        entry.count() == 0
    }

    /// Removes a released or lost hold and wakes the head of the queue.
    pub(super) fn remove(&self, hold: &Arc<QuorumHold>) {
        let mut state = self.0.lock();
        state.holds.remove(hold);
        state.wake_head();
    }

    /// Turns one guard into a detached share.
    pub(super) fn detach(&self, hold: &Arc<QuorumHold>) {
        self.0.lock().holds.detach(hold);
    }

    /// Gives a detached share a guard again and returns its hold: a hold of this thread, a
    /// detached owned hold, or a hold of a thread that has ended.
    pub(super) fn take_detached(&self) -> Option<Arc<QuorumHold>> {
        let (thread, mut state) = (ThreadId::current(), self.0.lock());
        let (hold, share) = state.holds.detached(thread, |_| true, QuorumHold::is_valid)?;
        let entry = state.holds.entry_mut(&hold)?;
        entry.end(share);
        entry.guards += 1;
        Some(hold)
    }

    /// Returns how many guards and detached shares this thread has of a valid hold.
    pub(super) fn count(&self) -> usize {
        let (thread, state) = (ThreadId::current(), self.0.lock());
        let valid = state.holds.of_thread(thread).filter(|entry| entry.hold.is_valid());
        valid.map(HoldEntry::count).sum()
    }
}

impl RedLocalState {
    fn enter(&mut self, request: RedEntryRequest, parker: &Arc<Parker>) -> Result<RedEntryOutcome> {
        let (thread, RedEntryRequest { owned, waits }) = (ThreadId::current(), request);
        if let Some(own) = self.holds.iter_mut().find(|entry| entry.holder.is_thread(thread)) {
            let valid = own.hold.is_valid();
            match (owned, valid) {
                (false, true) => {
                    own.guards += 1;
                    return Ok(RedEntryOutcome::Reentered(Arc::clone(&own.hold)));
                }
                (false, false) => return Err(table::lost_with_guard(own.hold.lost_reason())),
                (true, true) if waits => return Err(deadlock()),
                (true, _) => {}
            }
        }
        let free = self.queue.is_empty() && self.valid_hold().is_none();
        if free || waits {
            Ok(RedEntryOutcome::Queued(self.queue.enter(Arc::clone(parker))))
        } else {
            Ok(RedEntryOutcome::Busy)
        }
    }

    /// Removes and returns the lost holds whose loss no thread has to learn of.
    fn remove_unattended(&mut self) -> Vec<Arc<QuorumHold>> {
        let mut removed = Vec::new();
        self.holds.retain(|entry| {
            let attended = entry.guards > 0 && !entry.holder.has_ended();
            let kept = attended || entry.hold.is_valid();
            if !kept {
                removed.push(Arc::clone(&entry.hold));
            }
            kept
        });
        removed
    }

    /// Returns the valid hold of this process.
    fn valid_hold(&self) -> Option<&Arc<QuorumHold>> {
        self.holds.iter().map(|entry| &entry.hold).find(|hold| hold.is_valid())
    }

    fn wake_head(&self) {
        if let Some((_, head)) = self.queue.head() {
            head.unpark();
        }
    }
}

pub(super) fn deadlock() -> Error {
    Error::new(ErrorKind::Deadlock, "this thread holds the lock, and would wait for itself")
}
