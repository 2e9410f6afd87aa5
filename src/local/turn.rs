//! The next step of a caller in the queue, and the facts that decide it.

use std::mem;
use std::sync::Arc;

use crate::command::call::ConnectionId;
use crate::command::owner::HoldId;
use crate::error::Error;
use crate::local::Local;
use crate::local::hold::Hold;
use crate::local::queue::Ticket;
use crate::local::waiters::{WaiterGrant, WaiterNews};
use crate::util::clock::Moment;

/// The next step of a caller in the queue.
///
/// The connection in a turn has a release without a reply. The acquire command has to follow that
/// release on the same connection, to see its effect.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Wait: another caller is the head of the queue.
    Behind,
    /// Wait for the end of a hold of this process; meanwhile ask only at the poll interval.
    HeldHere,
    /// Ask the server when the retry schedule says so: no thread of this process holds the lock,
    /// or the caller is in no queue.
    AskWhenDue(Option<ConnectionId>),
    /// Ask the server at once, because a poll found the lock free or got no reply. `held_here`
    /// is set if a thread of this process has a valid hold all the same.
    AskAtOnce { connection: Option<ConnectionId>, held_here: bool },
    /// The same as `AskWhenDue`, but not before this moment: the process yields to others.
    Yield(Moment, Option<ConnectionId>),
    /// Done: the hold was handed off to the caller.
    HandedOff(Arc<Hold>),
    /// A server has granted the lock to the caller by message.
    Granted(WaiterGrant),
}

impl Local {
    /// Returns the next step of a caller that is in no queue of this process.
    pub(crate) fn turn_unqueued(&self, hold: HoldId, now: Moment) -> Turn {
        let mut state = self.state.lock();
        let lost = state.end_expired(now);
        let connection = state.unanswered_release();
        let turn = match state.waiters.take_news(hold.number()) {
            WaiterNews::Granted(grant) => Turn::Granted(grant),
            WaiterNews::MustAsk => Turn::AskAtOnce { connection, held_here: false },
            WaiterNews::None => Turn::AskWhenDue(connection),
        };
        drop(state);
        self.report_lost(lost);
        turn
    }

    /// Returns the next step of the caller with this ticket.
    pub(crate) fn turn(&self, ticket: Ticket, now: Moment) -> Turn {
        let mut state = self.state.lock();
        if let Some(hold) = state.take_handed_off(ticket) {
            return Turn::HandedOff(hold);
        }
        if !state.queue.is_head(ticket) {
            return Turn::Behind;
        }
        let lost = state.end_expired(now);
        let held_here = state.is_held(now);
        let turn = match mem::take(&mut state.may_be_free) {
            true => Turn::AskAtOnce { connection: state.unanswered_release(), held_here },
            false if held_here => Turn::HeldHere,
            false => state.turn_if_free(now, &self.bounds),
        };
        drop(state);
        self.report_lost(lost);
        turn
    }

    /// Notes a refusal: another process holds the lock, unless this one does.
    ///
    /// Returns whether the caller has to start the polls of the watchdog: `needs_polls` is set, and
    /// no polls run yet.
    pub(crate) fn refused(&self, now: Moment, needs_polls: bool) -> bool {
        let mut state = self.state.lock();
        if !state.is_held(now) {
            state.fairness.end_run();
        }
        let last_error = state.last_error.take();
        let starts = needs_polls && !state.polled;
        state.polled |= needs_polls;
        drop(state);
        drop(last_error);
        starts
    }

    /// Returns whether the watchdog has to poll again, because callers wait.
    pub(crate) fn keep_polling(&self) -> bool {
        let mut state = self.state.lock();
        state.polled = !state.queue.is_empty() || !state.waiters.is_empty();
        state.polled
    }

    /// Has the head of the queue ask: a poll found the lock free, or got no reply.
    pub(crate) fn set_may_be_free(&self) {
        let mut state = self.state.lock();
        state.may_be_free = true;
        state.wake_head();
    }

    /// Stores the error of the last acquire of this process; `None` if there was a reply.
    ///
    /// A caller behind the head of the queue that gives up returns this error.
    pub(crate) fn set_last_error(&self, error: Option<Error>) {
        let before = mem::replace(&mut self.state.lock().last_error, error);
        drop(before);
    }

    /// Returns the last error, if it leaves open whether the lock is free.
    pub(crate) fn last_error(&self, now: Moment) -> Option<Error> {
        let state = self.state.lock();
        if state.is_held(now) { None } else { state.last_error.clone() }
    }
}
