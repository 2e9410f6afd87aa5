//! The state of one red lock in this process: its queue and its table of holds.

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crate::command::owner::{Holder, ThreadId};
use crate::error::{Error, ErrorKind, Result};
use crate::local::queue::{Ticket, WaitQueue};
use crate::local::table;
use crate::lock::red_lock::quorum::QuorumHold;
use crate::util::sync::{Mutex, Parker};

/// The state of one red lock in this process.
#[derive(Debug, Default)]
pub(super) struct RedLocal(Mutex<RedLocalState>);

#[derive(Debug, Default)]
struct RedLocalState {
    queue: WaitQueue<Arc<Parker>>,
    holds: Vec<RedHoldEntry>,
    /// Why the last question of this process got too few answers.
    last_error: Option<Error>,
}

#[derive(Debug)]
struct RedHoldEntry {
    hold: Arc<QuorumHold>,
    holder: Holder,
    guards: usize,
    detached: usize,
}

/// The request of a caller that enters.
#[derive(Clone, Copy)]
pub(super) struct RedEntryRequest {
    /// The guard belongs to no thread.
    pub(super) owned: bool,
    pub(super) waits: bool,
    /// Neither a deadline nor a token ends the wait.
    pub(super) endless: bool,
}

/// The way of a caller to a hold.
pub(super) enum RedEntryOutcome {
    /// The thread holds the lock already, now with one guard more.
    Reentered(Arc<QuorumHold>),
    Queued(Ticket),
    /// The caller would have to wait, and does not.
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

/// A panic leaves the state consistent: loggers and callbacks run without a mutex held
/// (`tests/panics.rs`).
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
        let (left_behind, holds) =
            state.holds.drain(..).partition::<Vec<_>, _>(RedHoldEntry::is_left_behind);
        state.holds = holds;
        let entry = state.enter(request, parker);
        drop(state);
        // Without the mutex: the drop releases the rest of the holds.
        drop(left_behind);
        entry
    }

    /// Returns the next step of the caller with that ticket.
    pub(super) fn turn(&self, ticket: Ticket) -> RedTurn {
        let state = self.0.lock();
        match state.holds.iter().find(|entry| entry.hold.check().is_ok()) {
            _ if !state.queue.is_head(ticket) => RedTurn::Behind,
            Some(entry) => RedTurn::HeldHere(Arc::clone(&entry.hold)),
            None => RedTurn::Ask,
        }
    }

    /// Removes the caller from the queue and wakes the head.
    pub(super) fn leave(&self, ticket: Ticket) {
        let mut state = self.0.lock();
        state.queue.leave(ticket);
        state.wake_head();
    }

    /// Sets why the last question got too few answers, for the callers behind the head.
    pub(super) fn set_last_error(&self, error: Option<Error>) {
        let before = std::mem::replace(&mut self.0.lock().last_error, error);
        drop(before);
    }

    /// Returns why the last question of this process got too few answers.
    pub(super) fn last_error(&self) -> Option<Error> {
        self.0.lock().last_error.clone()
    }

    /// Adds a hold with one guard.
    pub(super) fn granted(&self, hold: &Arc<QuorumHold>, holder: Holder) {
        let entry = RedHoldEntry { hold: Arc::clone(hold), holder, guards: 1, detached: 0 };
        self.0.lock().holds.push(entry);
    }

    /// Ends one guard of a hold. Returns whether it was the last.
    ///
    /// After the last guard the caller releases the hold and [removes](RedLocal::remove) it.
    pub(super) fn end(&self, hold: &Arc<QuorumHold>) -> bool {
        let mut state = self.0.lock();
        let Some(entry) = state.entry(hold) else { return true };
        entry.guards = entry.guards.saturating_sub(1);
        entry.guards + entry.detached == 0
    }

    /// Removes a released or lost hold and wakes the head of the queue.
    pub(super) fn remove(&self, hold: &Arc<QuorumHold>) {
        let mut state = self.0.lock();
        state.holds.retain(|entry| !Arc::ptr_eq(&entry.hold, hold));
        state.wake_head();
    }

    /// Turns one guard into a detached share.
    pub(super) fn detach(&self, hold: &Arc<QuorumHold>) {
        if let Some(entry) = self.0.lock().entry(hold) {
            entry.guards = entry.guards.saturating_sub(1);
            entry.detached += 1;
        }
    }

    /// Gives a detached share a guard again and returns its hold: a hold of this thread, a
    /// detached owned hold, or a hold of a thread that has ended.
    pub(super) fn take_detached(&self) -> Option<Arc<QuorumHold>> {
        let (thread, mut state) = (ThreadId::current(), self.0.lock());
        let own = |entry: &RedHoldEntry| entry.detached > 0 && entry.holder.is_thread(thread);
        let nobodys = |entry: &RedHoldEntry| {
            entry.holder.has_ended() || entry.holder.is_owned() && entry.detached > 0
        };
        let valid = |entry: &RedHoldEntry| nobodys(entry) && entry.hold.check().is_ok();
        let at = state.holds.iter().position(own);
        let at = at.or_else(|| state.holds.iter().position(valid));
        let at = at.or_else(|| state.holds.iter().position(nobodys))?;
        let entry = &mut state.holds[at];
        match entry.holder.has_ended() {
            // All shares that the thread left behind end together.
            true => (entry.guards, entry.detached) = (1, 0),
            false => (entry.guards, entry.detached) = (entry.guards + 1, entry.detached - 1),
        }
        Some(Arc::clone(&entry.hold))
    }

    /// Returns how many guards and detached shares this thread has of a valid hold.
    pub(super) fn count(&self) -> usize {
        let (thread, state) = (ThreadId::current(), self.0.lock());
        let own = state.holds.iter().find(|entry| entry.holder.is_thread(thread));
        let valid = own.filter(|entry| entry.hold.check().is_ok());
        valid.map_or(0, |entry| entry.guards + entry.detached)
    }
}

impl RedLocalState {
    fn enter(&mut self, request: RedEntryRequest, parker: &Arc<Parker>) -> Result<RedEntryOutcome> {
        let (thread, RedEntryRequest { owned, waits, endless }) = (ThreadId::current(), request);
        if let Some(own) = self.holds.iter_mut().find(|entry| entry.holder.is_thread(thread)) {
            let valid = own.hold.check().is_ok();
            match (owned, valid) {
                (false, true) => {
                    own.guards += 1;
                    return Ok(RedEntryOutcome::Reentered(Arc::clone(&own.hold)));
                }
                (false, false) => return Err(table::lost_before(own.hold.lost_reason())),
                (true, true) if waits => return Err(deadlock()),
                (true, _) => {}
            }
        }
        if endless && !owned && self.holds.iter().any(|entry| entry.blocks(thread)) {
            return Err(table::deadlock_with_owned());
        }
        let free = self.queue.is_empty() && !self.is_held();
        match free || waits {
            true => Ok(RedEntryOutcome::Queued(self.queue.enter(Arc::clone(parker)))),
            false => Ok(RedEntryOutcome::Busy),
        }
    }

    fn entry(&mut self, hold: &Arc<QuorumHold>) -> Option<&mut RedHoldEntry> {
        self.holds.iter_mut().find(|entry| Arc::ptr_eq(&entry.hold, hold))
    }

    fn is_held(&self) -> bool {
        self.holds.iter().any(|entry| entry.hold.check().is_ok())
    }

    fn wake_head(&self) {
        if let Some((_, head)) = self.queue.head() {
            head.unpark();
        }
    }
}

impl RedHoldEntry {
    /// Returns whether this is an owned guard that the thread took.
    fn blocks(&self, thread: ThreadId) -> bool {
        self.guards > 0 && self.holder.was_taken_by(thread) && self.hold.check().is_ok()
    }

    /// Returns whether the hold was lost and no thread is left that must learn of it.
    fn is_left_behind(&self) -> bool {
        (self.guards == 0 || self.holder.has_ended()) && self.hold.check().is_err()
    }
}

pub(super) fn deadlock() -> Error {
    Error::new(ErrorKind::Deadlock, "this thread holds the lock, and would wait for itself")
}
