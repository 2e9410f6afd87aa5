//! When a call in the wait loop sends its next acquire command.
//!
//! The first attempt is due at once. After a refusal the next attempt is due at the first of:
//! * the end of the holder's lease;
//! * the poll interval, or [`POLLS_BEFORE_OWN_ATTEMPT`] poll intervals if the watchdog polls for
//!   the call;
//! * a message on the lock's channel ([`notifications`]);
//! * the end of a hold of another thread of this process;
//! * a poll of the watchdog that finds the lock free (`local/`).
//!
//! A call for a queue lock makes no attempt on its own account. An attempt is due if its client may
//! have lost a grant or a place (`local/waiters.rs`).
//!
//! After an attempt without a reply the call waits for the end of the server's pause
//! (`transport/topology/health.rs`). Pure: time is an argument.

use std::time::Duration;

use crate::config::BackOff;
use crate::error::{Error, LostReason, Result};
use crate::kind::rules::Pace;
use crate::transport::listener::channels::{Channel, ListenerSession, MessageCount, Registration};
use crate::transport::pool::router::MAX_OUTDATED_REPLIES;
use crate::util::clock::{Moment, jittered};
use crate::wait::Step;
use notifications::Notifications;

pub(crate) use notifications::ChannelView;

mod notifications;
#[cfg(all(test, not(leasehold_model)))]
mod tests;

/// The number of poll intervals after which a call tries again although the watchdog polls for it.
const POLLS_BEFORE_OWN_ATTEMPT: u32 = 60;

/// The shortest wait for the end of the holder's lease.
const LEAST_LEFT: Duration = Duration::from_millis(1);

/// The number of grants read after their deadline at which a call ends with an error.
const MAX_LATE_GRANTS: u32 = 3;

/// The schedule of one call, made from the outcomes of its attempts.
#[derive(Debug)]
pub(crate) struct RetrySchedule {
    poll_interval: Duration,
    back_off: BackOff,
    pace: Pace,
    /// A number for the jitter that differs from call to call.
    seed: u64,
    has_attempted: bool,
    /// Whether the server has refused the call. A refused call waits through outages.
    was_refused: bool,
    /// Refusals in a row, for the back-off.
    refusals: u32,
    /// Whether a thread of this process may have held the lock since the last [`Self::is_due`].
    held_here: bool,
    /// The moment of the next attempt, unless something else makes it due earlier.
    next: Moment,
    failures: Failures,
    notifications: Notifications,
}

/// The attempts of one call that brought neither a hold nor a refusal.
#[derive(Debug, Default)]
struct Failures {
    /// Grants whose reply was read after their deadline.
    late_grants: u32,
    /// Replies from servers that a topology change had replaced.
    outdated: u32,
    /// The error of the last attempt, if it failed.
    error: Option<Error>,
}

impl RetrySchedule {
    pub(crate) fn new(
        now: Moment,
        poll_interval: Duration,
        back_off: BackOff,
        seed: u64,
        pace: Pace,
    ) -> RetrySchedule {
        RetrySchedule {
            poll_interval,
            back_off,
            pace,
            seed,
            has_attempted: false,
            was_refused: false,
            refusals: 0,
            held_here: false,
            next: now + poll_interval,
            failures: Failures::default(),
            notifications: Notifications::default(),
        }
    }

    /// Returns the step of a call whose attempt is due.
    pub(crate) fn ask<Yes>(&self) -> Step<Yes> {
        if self.has_attempted { Step::Ask } else { Step::AskAtLeastOnce }
    }

    /// Returns whether the server has refused the call, which then waits through outages.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Notes that the call is not the head of the queue. No attempt is due.
    ///
    /// The head may take and release the lock before the next look, so the schedule acts as if a
    /// thread of this process held the lock.
    pub(crate) fn wait_behind(&mut self) {
        self.held_here = true;
        self.next = Moment::END;
    }

    /// Returns whether an attempt is due although a thread of this process holds the lock.
    ///
    /// If none is due, the next attempt is due after the longest wait at the latest.
    pub(crate) fn is_due_while_held_here(&mut self, now: Moment) -> bool {
        self.held_here = true;
        let due = self.next <= now;
        if !due {
            self.next = self.next.min(now + self.longest_wait());
        }
        due
    }

    /// Notes that a poll found the lock free, which makes an attempt due at once.
    ///
    /// If a thread of this process holds the lock, another attempt is due when that hold ends.
    pub(crate) fn found_free(&mut self, held_here: bool) {
        self.held_here = held_here;
    }

    /// Returns whether an attempt is due while no thread of this process holds the lock.
    ///
    /// The end of a hold of this process makes an attempt due in one call only.
    pub(crate) fn is_due(&mut self, now: Moment, message_count: Option<MessageCount>) -> bool {
        let ended_here = std::mem::take(&mut self.held_here);
        if ended_here {
            self.refusals = 0;
        }
        !self.has_attempted
            || ended_here
            || self.next <= now
            || self.notifications.is_due(now, message_count)
    }

    /// Returns the moment of the next attempt without regard to messages.
    pub(crate) fn next_poll(&self) -> Moment {
        self.next
    }

    /// Returns the moment of the next attempt if no message comes.
    pub(crate) fn next_attempt(&self) -> Moment {
        self.notifications.quiet_until().unwrap_or(self.next)
    }

    /// Notes that the call is registered at the channel from now on.
    pub(crate) fn registered(
        &mut self,
        registration: &Registration,
        channel: &Channel,
        session: Option<ListenerSession>,
    ) {
        self.notifications.registered(registration, channel, session);
    }

    /// Notes the state of the channel before the acquire command is sent.
    pub(crate) fn before_attempt(&mut self, view: ChannelView) {
        self.has_attempted = true;
        self.notifications.before_attempt(view);
    }

    /// Plans the next attempt after a refusal; `left` is the rest of the holder's lease.
    pub(crate) fn refused(&mut self, now: Moment, left: Option<Duration>) {
        self.was_refused = true;
        self.failures.error = None;
        let seed = self.seed ^ now.nanos();
        let poll = match self.pace {
            Pace::BackOff if !self.held_here => self.back_off.pause(self.refusals, seed),
            Pace::Granted => Duration::MAX,
            _ => jittered(self.longest_wait(), seed),
        };
        self.refusals = self.refusals.saturating_add(1);
        self.next = now + left.map_or(poll, |left| left.max(LEAST_LEFT).min(poll));
        self.notifications.refused(now, self.seed);
    }

    /// Plans the next attempt after one without a usable reply, for the end of the server's pause.
    ///
    /// Returns the error if the call was never refused, or if the error is no outage. `pause_end`
    /// notes the error for the server's pause, so it is called only for an attempt that is
    /// repeated.
    pub(crate) fn unanswered(
        &mut self,
        error: Error,
        pause_end: impl FnOnce(&Error) -> Moment,
    ) -> Result<()> {
        if !self.was_refused || !error.is_outage() {
            return Err(error);
        }
        self.next = pause_end(&error);
        self.failures.error = Some(error);
        Ok(())
    }

    /// Returns the longest wait without a message.
    ///
    /// A call that was never refused asks after one poll interval: an answer has it wait through
    /// outages, and register at the channel.
    fn longest_wait(&self) -> Duration {
        if self.pace == Pace::WatchdogPolls && self.was_refused {
            self.poll_interval * POLLS_BEFORE_OWN_ATTEMPT
        } else {
            self.poll_interval
        }
    }

    /// Takes the error of the last attempt, if it failed.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.failures.error.take()
    }

    /// Makes an attempt due after a grant whose deadline has passed.
    ///
    /// The next command sets the lease anew. Returns an error at [`MAX_LATE_GRANTS`], because the
    /// lease may be shorter than any round trip.
    pub(crate) fn granted_too_late(&mut self, now: Moment) -> Result<()> {
        let error = Error::lost(LostReason::Expired, "the grant arrived too late");
        self.failures.late_grants += 1;
        if self.failures.late_grants == MAX_LATE_GRANTS {
            return Err(error);
        }
        self.next = now;
        self.failures.error = Some(error);
        Ok(())
    }

    /// Counts a reply from a former server. Returns an error at [`MAX_OUTDATED_REPLIES`].
    pub(crate) fn outdated(&mut self) -> Result<()> {
        self.failures.outdated += 1;
        if self.failures.outdated < MAX_OUTDATED_REPLIES { Ok(()) } else { Err(Error::outdated()) }
    }

    /// Ends all pauses, and makes an attempt due if `poll`. The clock stands still in models.
    #[cfg(all(test, leasehold_model))]
    pub(crate) fn end_pauses(&mut self, poll: bool) {
        self.next = if poll { Moment::START } else { Moment::END };
        self.notifications.end_pause();
    }
}
