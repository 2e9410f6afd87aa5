//! The turn of a caller, and the facts that decide it.

use std::mem;
use std::time::Duration;

use crate::error::Error;
use crate::kind::rules::ListensTo;
use crate::local::Local;
use crate::local::fairness::YieldsTo;
use crate::local::queue::Ticket;
use crate::transport::call::ConnectionId;
use crate::util::clock::Moment;

/// The span in which early polls for one lock go out together.
const EARLY_GRAIN: Duration = Duration::from_millis(5);

/// What a caller without news may do, as far as this process knows.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Wait: another caller is the head of the queue.
    Behind,
    /// Do not ask before this moment: the process yields to others.
    Yield(Moment),
    /// Ask the server when the retry schedule says so: the caller is the head of the queue, or in
    /// no queue.
    Ask {
        /// Whether a thread of this process holds the lock, in front of the queue.
        held_here: bool,
        /// The connection of a release without a reply. The acquire command has to follow that
        /// release on the same connection, to see its effect.
        connection: Option<ConnectionId>,
    },
}

impl Local {
    /// Returns the turn of the caller with this ticket, or of a caller in no queue.
    pub(crate) fn turn(&self, ticket: Option<Ticket>, now: Moment, yields: YieldsTo) -> Turn {
        let mut state = self.state.lock();
        if ticket.is_some_and(|ticket| !state.queue.is_head(ticket)) {
            return Turn::Behind;
        }
        let lost = state.end_expired(now);
        let held_here = ticket.is_some() && state.is_held(now);
        let yield_until =
            if held_here { None } else { state.fairness.yield_until(now, &self.bounds, yields) };
        let turn = match yield_until {
            Some(end) => Turn::Yield(end),
            None => Turn::Ask { held_here, connection: state.unanswered_release() },
        };
        drop(state);
        self.report_lost(lost);
        turn
    }

    /// Returns the moment until which such a caller must not ask, if it has to yield.
    pub(crate) fn yield_until(&self, yields: YieldsTo, now: Moment) -> Option<Moment> {
        self.state.lock().fairness.yield_until(now, &self.bounds, yields)
    }

    /// Notes a refusal of an acquire that was sent at `sent`: another process holds the lock,
    /// unless this one does.
    pub(crate) fn refused(&self, sent: Moment, now: Moment) {
        let mut state = self.state.lock();
        if !state.is_held(now) {
            state.fairness.refused(sent);
        }
        let last_error = state.last_error.take();
        drop(state);
        drop(last_error);
    }

    /// Notes that a caller relies on the polls of the watchdog. Returns whether it has to start
    /// them.
    pub(crate) fn starts_polls(&self) -> bool {
        !mem::replace(&mut self.state.lock().polled, true)
    }

    /// Returns whether the watchdog has to poll again, because callers wait.
    ///
    /// Wakes the head of the queue if a hand-off has left that to this poll.
    pub(crate) fn keep_polling(&self) -> bool {
        let mut state = self.state.lock();
        if mem::take(&mut state.poll_wakes_head) {
            state.wake_head();
        }
        state.polled = !state.queue.is_empty()
            || !state.waiters.is_empty()
            || self.known_permits().is_some_and(|callers| callers.await_permits())
            || self.known_channel(ListensTo::Latch).is_some_and(|it| it.has_waiting_callers());
        state.polled
    }

    /// Returns whether callers wait for the end of holds.
    pub(crate) fn awaits_holders(&self) -> bool {
        let state = self.state.lock();
        let awaits_lock = !state.queue.is_empty() || !state.waiters.is_empty();
        drop(state);
        awaits_lock || self.awaits_permits()
    }

    /// Returns whether callers wait for permits with a lease.
    pub(crate) fn awaits_permits(&self) -> bool {
        self.known_permits().is_some_and(|callers| callers.await_permits_with(true))
    }

    /// Returns whether a refused caller has to look for holders whose process is gone: at most once
    /// in this span.
    pub(crate) fn takes_look(&self, now: Moment, span: Duration) -> bool {
        let last = &mut self.state.lock().last_look;
        let is_due = *last == Moment::START || last.until(now) >= span;
        if is_due {
            *last = now;
        }
        is_due
    }

    /// Returns whether the latch is in another round than at the last call.
    ///
    /// 0 is a round without a number, which may be any.
    pub(crate) fn is_new_round(&self, round: u64) -> bool {
        let known = &mut self.state.lock().latch_round;
        let is_new = round != 0 && *known != round;
        if is_new {
            *known = round;
        }
        is_new
    }

    /// Returns whether an early poll has to be planned for `at`, and notes that one is.
    ///
    /// `false` if one is planned already, for an earlier moment or only a little later. A plan
    /// before `now` does not count: a panic may have lost its timer.
    pub(crate) fn plans_early_poll(&self, at: Moment, now: Moment) -> bool {
        let next = &mut self.state.lock().next_early_poll;
        let is_planned = next.is_some_and(|next| now <= next && next <= at + EARLY_GRAIN);
        if !is_planned {
            *next = Some(at);
        }
        !is_planned
    }

    /// Takes a planned early poll that is due at `now`. Returns whether there was one.
    ///
    /// A timer may be older than the plan: an earlier poll has been planned and sent since.
    pub(crate) fn takes_early_poll(&self, now: Moment) -> bool {
        let next = &mut self.state.lock().next_early_poll;
        next.take_if(|next| *next <= now).is_some()
    }

    /// Forgets the planned early poll, because a poll begins.
    pub(crate) fn begins_poll(&self) {
        self.state.lock().next_early_poll = None;
    }

    /// Has the head of the queue ask: a poll found the lock free, or got no reply.
    pub(crate) fn may_be_free(&self) {
        if let Some((_, head)) = self.state.lock().queue.head() {
            head.mailbox.ask();
        }
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
