//! Who of this process holds one red lock, and who waits for it: its re-entry and its gate.

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crate::command::owner::{Holder, ThreadId};
use crate::error::{Error, ErrorKind, Result};
use crate::local::queue::{Ticket, WaitQueue};
use crate::local::table;
use crate::lock::quorum::Quorum;
use crate::util::sync::{Mutex, Parker};

/// Who of this process holds one of these locks, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct RedQueue(Mutex<RedQueueState>);

#[derive(Debug, Default)]
struct RedQueueState {
    queue: WaitQueue<Arc<Parker>>,
    holds: Vec<RedHoldEntry>,
    /// Why the last question of this process got no answer.
    trouble: Option<Error>,
}

#[derive(Debug)]
struct RedHoldEntry {
    quorum_hold: Arc<Quorum>,
    holder: Holder,
    guards: usize,
    detached: usize,
}

/// What a caller wants.
#[derive(Clone, Copy)]
pub(super) struct RedRequest {
    /// A hold that is no thread's.
    pub(super) owned: bool,
    pub(super) waits: bool,
    /// Neither a deadline nor a token ends its wait.
    pub(super) endless: bool,
}

/// How a caller comes to a hold.
pub(super) enum RedEntry {
    Again(Arc<Quorum>),
    InLine(Ticket),
    /// It would have to wait, and does not.
    Busy,
}

/// What a caller in line has to do.
pub(super) enum RedTurn {
    /// Wait until the mailbox rings.
    Behind,
    /// Wait for the end of a hold of this process.
    HeldHere(Arc<Quorum>),
    Ask,
}

/// A panic leaves it in order: loggers and callbacks run with no lock held (`tests/panics.rs`).
impl RefUnwindSafe for RedQueue {}

impl RedQueue {
    pub(super) fn enter(&self, request: RedRequest, parker: &Arc<Parker>) -> Result<RedEntry> {
        let mut state = self.0.lock();
        let (left_behind, holds) =
            state.holds.drain(..).partition::<Vec<_>, _>(RedHoldEntry::is_left_behind);
        state.holds = holds;
        let entry = state.enter(request, parker);
        drop(state);
        // With no lock held: what is left of it is released.
        drop(left_behind);
        entry
    }

    /// What the caller with that ticket has to do.
    pub(super) fn turn(&self, ticket: Ticket) -> RedTurn {
        let state = self.0.lock();
        match state.holds.iter().find(|held| held.quorum_hold.check().is_ok()) {
            _ if !state.queue.is_head(ticket) => RedTurn::Behind,
            Some(held) => RedTurn::HeldHere(Arc::clone(&held.quorum_hold)),
            None => RedTurn::Ask,
        }
    }

    pub(super) fn leave(&self, ticket: Ticket) {
        let mut state = self.0.lock();
        state.queue.leave(ticket);
        state.wake_head();
    }

    /// Why the last question got no answer, if it did not: what those behind it know.
    pub(super) fn set_last_error(&self, trouble: Option<Error>) {
        let before = std::mem::replace(&mut self.0.lock().trouble, trouble);
        drop(before);
    }

    pub(super) fn trouble(&self) -> Option<Error> {
        self.0.lock().trouble.clone()
    }

    pub(super) fn granted(&self, quorum_hold: &Arc<Quorum>, holder: Holder) {
        let held =
            RedHoldEntry { quorum_hold: Arc::clone(quorum_hold), holder, guards: 1, detached: 0 };
        self.0.lock().holds.push(held);
    }

    /// Ends one guard of a hold; whether it was the last. Then the hold has to be released and
    /// [removed](RedQueue::remove).
    pub(super) fn end(&self, quorum_hold: &Arc<Quorum>) -> bool {
        let mut state = self.0.lock();
        let Some(held) = state.held(quorum_hold) else { return true };
        held.guards = held.guards.saturating_sub(1);
        held.guards + held.detached == 0
    }

    /// The hold is released, or lost: the next may ask.
    pub(super) fn remove(&self, quorum_hold: &Arc<Quorum>) {
        let mut state = self.0.lock();
        state.holds.retain(|held| !Arc::ptr_eq(&held.quorum_hold, quorum_hold));
        state.wake_head();
    }

    pub(super) fn detach(&self, quorum_hold: &Arc<Quorum>) {
        if let Some(held) = self.0.lock().held(quorum_hold) {
            held.guards = held.guards.saturating_sub(1);
            held.detached += 1;
        }
    }

    /// The detached hold that this thread may end: its own, or nobody's. It has a guard again.
    pub(super) fn take_detached(&self) -> Option<Arc<Quorum>> {
        let (thread, mut state) = (ThreadId::current(), self.0.lock());
        let own = |held: &RedHoldEntry| held.detached > 0 && held.holder.is_thread(thread);
        let nobodys = |held: &RedHoldEntry| {
            held.holder.has_ended() || held.holder.is_owned() && held.detached > 0
        };
        let valid = |held: &RedHoldEntry| nobodys(held) && held.quorum_hold.check().is_ok();
        let at = state.holds.iter().position(own);
        let at = at.or_else(|| state.holds.iter().position(valid));
        let at = at.or_else(|| state.holds.iter().position(nobodys))?;
        let held = &mut state.holds[at];
        match held.holder.has_ended() {
            // All that a thread left behind is ended at once.
            true => (held.guards, held.detached) = (1, 0),
            false => (held.guards, held.detached) = (held.guards + 1, held.detached - 1),
        }
        Some(Arc::clone(&held.quorum_hold))
    }

    pub(super) fn count(&self) -> usize {
        let (thread, state) = (ThreadId::current(), self.0.lock());
        let own = state.holds.iter().find(|held| held.holder.is_thread(thread));
        let valid = own.filter(|held| held.quorum_hold.check().is_ok());
        valid.map_or(0, |held| held.guards + held.detached)
    }
}

impl RedQueueState {
    fn enter(&mut self, request: RedRequest, parker: &Arc<Parker>) -> Result<RedEntry> {
        let (thread, RedRequest { owned, waits, endless }) = (ThreadId::current(), request);
        if let Some(own) = self.holds.iter_mut().find(|held| held.holder.is_thread(thread)) {
            let valid = own.quorum_hold.check().is_ok();
            match (owned, valid) {
                (false, true) => {
                    own.guards += 1;
                    return Ok(RedEntry::Again(Arc::clone(&own.quorum_hold)));
                }
                (false, false) => return Err(table::lost_before(own.quorum_hold.lost_reason())),
                (true, true) if waits => return Err(deadlock()),
                (true, _) => {}
            }
        }
        if endless && !owned && self.holds.iter().any(|held| held.bars(thread)) {
            return Err(table::deadlock_with_owned());
        }
        let free = self.queue.is_empty() && !self.is_held();
        match free || waits {
            true => Ok(RedEntry::InLine(self.queue.enter(Arc::clone(parker)))),
            false => Ok(RedEntry::Busy),
        }
    }

    fn held(&mut self, quorum_hold: &Arc<Quorum>) -> Option<&mut RedHoldEntry> {
        self.holds.iter_mut().find(|held| Arc::ptr_eq(&held.quorum_hold, quorum_hold))
    }

    fn is_held(&self) -> bool {
        self.holds.iter().any(|held| held.quorum_hold.check().is_ok())
    }

    fn wake_head(&self) {
        if let Some((_, head)) = self.queue.head() {
            head.unpark();
        }
    }
}

impl RedHoldEntry {
    /// Whether it is an owned guard's that this thread took.
    fn bars(&self, thread: ThreadId) -> bool {
        self.guards > 0 && self.holder.was_taken_by(thread) && self.quorum_hold.check().is_ok()
    }

    /// It was lost, and there is nobody to be told.
    fn is_left_behind(&self) -> bool {
        (self.guards == 0 || self.holder.has_ended()) && self.quorum_hold.check().is_err()
    }
}

pub(super) fn deadlock() -> Error {
    Error::new(ErrorKind::Deadlock, "this thread holds the lock, and would wait for itself")
}
