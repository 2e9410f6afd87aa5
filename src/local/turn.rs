//! The next step of a caller in the queue, and the facts that decide it.

use std::mem;
use std::sync::Arc;

use crate::command::call::ConnectionId;
use crate::error::{Error, LostReason};
use crate::local::Local;
use crate::local::hold::Hold;
use crate::local::queue::Ticket;
use crate::util::clock::Moment;

/// The next step of a caller in the queue.
///
/// A connection in it is the one on which a release has no answer yet. The acquire has to follow
/// the release there, to see its effect.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Wait until the parker is unparked.
    Behind,
    /// Wait for the hold of another thread of this process; ask at the poll interval.
    HeldHere,
    /// Ask the server.
    AskWhenDue(Option<ConnectionId>),
    /// Ask the server, because a poll found the lock free. The flag says whether a thread of this
    /// process has a valid hold all the same.
    AskAtOnce { connection: Option<ConnectionId>, held_here: bool },
    /// Ask the server, but not before this moment: the process yields to others.
    Yield(Moment, Option<ConnectionId>),
    /// Done: the hold was handed off to the caller.
    HandedOff(Arc<Hold>),
}

impl Local {
    /// Returns the next step of a caller that is in no queue.
    pub(crate) fn turn_unqueued(&self, now: Moment) -> Turn {
        let mut state = self.state.lock();
        let lost = state.end_expired(now);
        let turn = Turn::AskWhenDue(state.unanswered_release());
        drop(state);
        self.report_lost(lost, LostReason::Expired);
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
        self.report_lost(lost, LostReason::Expired);
        turn
    }

    /// Notes a refusal: another process holds the lock, unless this one does. Returns whether the
    /// caller has to start the watchdog's polls, which `waits` requires.
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

    /// Returns whether the watchdog has to poll again: while the queue has callers.
    pub(crate) fn keep_polling(&self) -> bool {
        let mut state = self.state.lock();
        state.polled = !state.queue.is_empty();
        state.polled
    }

    /// Has the head of the queue ask: a poll found the lock free, or got no answer.
    pub(crate) fn set_may_be_free(&self) {
        let mut state = self.state.lock();
        state.may_be_free = true;
        state.wake_head();
    }

    /// Notes the error of the last acquire of this process, or `None` if it was answered. Callers
    /// behind the head of the queue know no more than this.
    pub(crate) fn set_last_error(&self, error: Option<Error>) {
        let before = mem::replace(&mut self.state.lock().last_error, error);
        drop(before);
    }

    /// Returns the error of the last acquire, if it leaves open whether the lock is free.
    pub(crate) fn last_error(&self, now: Moment) -> Option<Error> {
        let state = self.state.lock();
        if state.is_held(now) { None } else { state.last_error.clone() }
    }
}
