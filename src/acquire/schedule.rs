//! When a call in the wait loop sends its next acquire command.
//!
//! The first attempt is due at once. After a refusal the next attempt is due at the first of:
//! * the end of the holder's lease;
//! * the poll interval, or [`POLLS_BEFORE_OWN_ATTEMPT`] poll intervals if the watchdog polls for the call;
//! * a message on the lock's channel ([`Notifications`]);
//! * the end of a hold of another thread of this process;
//! * a poll of the watchdog that finds the lock free (`local/`).
//!
//! After an attempt without a reply the call pauses, longer each time. Pure: time is an argument.

use std::time::Duration;

use crate::config::BackOff;
use crate::error::{Error, LostReason, Result};
use crate::listener::channels::{
    Channel, ListenerSession, MessageCount, Registration, SubscriptionState,
};
use crate::util::clock::{Moment, doubled, jittered};

/// The first and the longest time in which a call that lost a race ignores messages.
const FIRST_QUIET: Duration = Duration::from_micros(200);
const LONGEST_QUIET: Duration = Duration::from_millis(2);

/// Time of losing races after which a call reacts to every message.
///
/// Later callers ignore some messages meanwhile, so the call that has waited longest wins sooner.
const LONG_LOSS: Duration = Duration::from_millis(20);

/// Poll intervals after which a call tries again although the watchdog polls for it.
const POLLS_BEFORE_OWN_ATTEMPT: u32 = 60;

/// The first pause after an attempt without a reply; the longest is the poll interval.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The least time between two attempts because the holder's lease was said to end.
const LEAST_LEFT: Duration = Duration::from_millis(1);

/// Replies from former servers that end a call with an error; each costs one attempt.
pub(crate) const MAX_OUTDATED_ANSWERS: u32 = 16;

/// Late grants, read after their deadline, that end a call with an error.
const MAX_LATE_GRANTS: u32 = 3;

/// How soon a refused call tries again without a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// After [`POLLS_BEFORE_OWN_ATTEMPT`] poll intervals: the watchdog polls for the call.
    Polled,
    /// After the poll interval.
    SelfPolling,
    /// After a pause that grows with each refusal.
    BackOff(BackOff),
}

/// The schedule of one call, made from the outcomes of its attempts.
#[derive(Debug)]
pub(super) struct RetrySchedule {
    poll_interval: Duration,
    pace: Pace,
    /// A number for the jitter that differs from call to call.
    seed: u64,
    has_attempted: bool,
    /// Whether the server has refused the call, which from then on waits through outages.
    was_refused: bool,
    /// Refusals in a row, for the back-off.
    refusals: u32,
    /// Whether a thread of this process held the lock at the last look, or later.
    held_here: bool,
    /// The latest moment of the next attempt.
    next: Moment,
    failures: Failures,
    notifications: Notifications,
}

/// The attempts of one call that brought neither a hold nor a refusal.
#[derive(Debug, Default)]
struct Failures {
    /// Attempts in a row without a reply.
    unanswered: u32,
    /// Grants after whose deadline the reply was read.
    late_grants: u32,
    /// Replies from servers that a topology change had replaced.
    outdated: u32,
    /// The error of the last attempt, if it failed.
    error: Option<Error>,
}

/// The state of the lock's channel when a command is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelView {
    /// The message count, if the call knows the channel.
    pub(super) message_count: Option<MessageCount>,
    pub(super) subscription: SubscriptionState,
    /// The listener's connection over which the command requests the subscription.
    pub(super) requested_in: Option<ListenerSession>,
}

/// The messages of the lock's channel, as one call reacts to them.
#[derive(Debug, Default)]
struct Notifications {
    /// The message count at the last attempt, if the call knew the channel.
    seen: Option<MessageCount>,
    /// Whether the channel was subscribed at the last attempt.
    subscribed: bool,
    /// Whether a message caused the last attempt.
    woken: bool,
    /// Whether a message may have come that the count does not show to this call.
    missed: bool,
    /// The listener's connection over which the last attempt requested the subscription.
    requested_in: Option<ListenerSession>,
    /// The end of the time without messages; the next attempt is due then.
    quiet_until: Option<Moment>,
    lost_races: u32,
    first_loss: Option<Moment>,
}

impl RetrySchedule {
    pub(super) fn new(
        now: Moment,
        poll_interval: Duration,
        seed: u64,
        pace: Pace,
    ) -> RetrySchedule {
        RetrySchedule {
            poll_interval,
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

    /// Returns whether the call has made an attempt.
    pub(super) fn has_attempted(&self) -> bool {
        self.has_attempted
    }

    /// Notes that the call is not the head of the queue. No attempt is due.
    ///
    /// The head may take the lock and release it before this call looks again.
    pub(super) fn wait_behind(&mut self) {
        self.held_here = true;
        self.next = Moment::END;
    }

    /// Returns whether an attempt is due although a thread of this process holds the lock.
    pub(super) fn is_due_while_held_here(&mut self, now: Moment) -> bool {
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
    pub(super) fn found_free(&mut self, held_here: bool) {
        self.held_here = held_here;
    }

    /// Returns whether an attempt is due while no thread of this process holds the lock.
    pub(super) fn is_due(&mut self, now: Moment, message_count: Option<MessageCount>) -> bool {
        let ended_here = std::mem::take(&mut self.held_here);
        if ended_here {
            self.refusals = 0;
        }
        !self.has_attempted
            || ended_here
            || self.next <= now
            || self.notifications.is_due(now, message_count)
    }

    /// Returns the moment of the next attempt, without regard to messages.
    pub(super) fn next_poll(&self) -> Moment {
        self.next
    }

    /// Returns the moment of the next attempt if no message comes.
    pub(super) fn next_attempt(&self) -> Moment {
        self.notifications.quiet_until.unwrap_or(self.next)
    }

    /// Notes that the call is registered at the channel from now on.
    pub(super) fn registered(
        &mut self,
        registration: &Registration,
        channel: &Channel,
        session: Option<ListenerSession>,
    ) {
        self.notifications.registered(registration, channel, session);
    }

    /// Notes the state of the channel before the acquire command is sent.
    pub(super) fn before_attempt(&mut self, view: ChannelView) {
        self.has_attempted = true;
        self.notifications.before_attempt(view);
    }

    /// Plans the next attempt after a refusal; `left` is the rest of the holder's lease.
    pub(super) fn refused(&mut self, now: Moment, left: Option<Duration>) {
        self.was_refused = true;
        self.failures.error = None;
        self.failures.unanswered = 0;
        let seed = self.seed ^ now.nanos();
        let poll = match self.pace {
            Pace::BackOff(back_off) if !self.held_here => back_off.pause(self.refusals, seed),
            _ => jittered(self.longest_wait(), seed),
        };
        self.refusals = self.refusals.saturating_add(1);
        self.next = now + left.map_or(poll, |left| left.max(LEAST_LEFT).min(poll));
        self.notifications.refused(now, self.seed);
    }

    /// Plans the next attempt after one without a usable reply.
    ///
    /// Returns the error if the call was never refused, or if the error is final.
    pub(super) fn unanswered(&mut self, now: Moment, error: Error) -> Result<()> {
        if !self.was_refused || !error.is_transient() {
            return Err(error);
        }
        let pause = doubled(FIRST_PAUSE, self.failures.unanswered.min(8), self.poll_interval);
        self.next = now + jittered(pause, self.seed ^ now.nanos());
        self.failures.unanswered += 1;
        self.failures.error = Some(error);
        Ok(())
    }

    /// Returns the longest wait without a message. The watchdog polls for refused calls only.
    fn longest_wait(&self) -> Duration {
        match self.pace {
            Pace::Polled if self.was_refused => self.poll_interval * POLLS_BEFORE_OWN_ATTEMPT,
            Pace::Polled | Pace::SelfPolling | Pace::BackOff(_) => self.poll_interval,
        }
    }

    /// Takes the error of the last attempt, if it failed.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.failures.error.take()
    }

    /// Makes an attempt due after a grant whose deadline has passed.
    ///
    /// The next command sets the lease anew. Returns an error after [`MAX_LATE_GRANTS`]: the lease
    /// may be shorter than any round trip.
    pub(super) fn granted_too_late(&mut self, now: Moment) -> Result<()> {
        let error = Error::lost(LostReason::Expired, "the grant arrived too late");
        self.failures.late_grants += 1;
        if self.failures.late_grants == MAX_LATE_GRANTS {
            return Err(error);
        }
        self.next = now;
        self.failures.error = Some(error);
        Ok(())
    }

    /// Counts a reply from a former server; an error after [`MAX_OUTDATED_ANSWERS`].
    pub(super) fn outdated(&mut self) -> Result<()> {
        self.failures.outdated += 1;
        match self.failures.outdated < MAX_OUTDATED_ANSWERS {
            true => Ok(()),
            false => Err(Error::outdated()),
        }
    }

    /// Ends all pauses, and makes an attempt due if `poll`. The clock stands still in models.
    #[cfg(all(test, leasehold_model))]
    pub(super) fn end_pauses(&mut self, poll: bool) {
        self.next = if poll { Moment::START } else { Moment::END };
        let notifications = &mut self.notifications;
        notifications.quiet_until = notifications.quiet_until.and(Some(Moment::START));
    }
}

impl Notifications {
    fn is_due(&self, now: Moment, message_count: Option<MessageCount>) -> bool {
        match self.quiet_until {
            Some(end) => end <= now,
            None => self.missed || self.has_grown(message_count),
        }
    }

    /// Returns whether messages have come since the last attempt.
    fn has_grown(&self, message_count: Option<MessageCount>) -> bool {
        message_count.is_some() && self.seen.is_some() && message_count != self.seen
    }

    /// Decides at the registration whether a message may have been missed.
    ///
    /// Two cases: the channel was subscribed already, and the call could not read the message count
    /// before its command; or the listener accepts requests now, and the last command did not
    /// request the subscription. A listener that accepts no requests yet looks for waiters when it
    /// connects.
    fn registered(
        &mut self,
        registration: &Registration,
        channel: &Channel,
        session: Option<ListenerSession>,
    ) {
        let first_look = self.seen.is_none();
        self.seen.get_or_insert(registration.message_count());
        self.missed = match channel.subscription() {
            SubscriptionState::Subscribed => first_look,
            SubscriptionState::Requested => false,
            SubscriptionState::Unsubscribed => session.is_some() && session != self.requested_in,
        };
    }

    fn before_attempt(&mut self, view: ChannelView) {
        // A call without a subscription at its last attempt cannot be woken by a message.
        self.woken =
            self.subscribed && self.quiet_until.is_none() && self.has_grown(view.message_count);
        self.subscribed = view.subscription == SubscriptionState::Subscribed;
        self.seen = view.message_count;
        self.requested_in = view.requested_in;
        self.missed = false;
        self.quiet_until = None;
    }

    /// Makes a call quiet that a message woke and the server refused.
    ///
    /// Other processes were faster, and would be again if all calls came back at the next message.
    fn refused(&mut self, now: Moment, seed: u64) {
        if self.woken && now < *self.first_loss.get_or_insert(now) + LONG_LOSS {
            let quiet = doubled(FIRST_QUIET, self.lost_races, LONGEST_QUIET);
            self.quiet_until = Some(now + jittered(quiet, seed ^ now.nanos()));
            self.lost_races += 1;
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::listener::channels::Channels;
    use crate::util::sync::Parker;
    use std::sync::Arc;

    const POLL: Duration = Duration::from_secs(1);
    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    fn schedule() -> RetrySchedule {
        RetrySchedule::new(START, POLL, 7, Pace::Polled)
    }

    fn view_without_channel() -> ChannelView {
        let subscription = SubscriptionState::Unsubscribed;
        ChannelView { message_count: None, subscription, requested_in: None }
    }

    fn attempted(mut schedule: RetrySchedule) -> RetrySchedule {
        assert!(schedule.is_due(START, None), "the first attempt is due at once");
        schedule.before_attempt(view_without_channel());
        schedule
    }

    fn no_reply() -> Error {
        Error::new(ErrorKind::Connection, "no answer")
    }

    #[test]
    fn the_next_attempt_is_due_at_the_end_of_the_lease_or_at_the_poll_interval() {
        for (left, least, most) in [
            (Some(Duration::from_millis(100)), 100, 100),
            (Some(Duration::ZERO), 1, 1),
            (Some(POLL * 3), 3000, 3000),
            (Some(POLL * 300), 30_000, 60_000),
            (None, 30_000, 60_000),
        ] {
            let mut schedule = attempted(schedule());
            schedule.refused(START, left);
            let millis = START.until(schedule.next_attempt()).as_millis();
            assert!((least..=most).contains(&millis), "{left:?}: {millis} ms");
            assert!(!schedule.is_due(START, None));
            assert!(schedule.is_due(schedule.next_attempt(), None));
        }
    }

    #[test]
    fn the_first_failure_is_an_error_and_later_failures_are_growing_pauses() {
        assert!(attempted(schedule()).unanswered(START, no_reply()).is_err());
        let mut refused = attempted(schedule());
        refused.refused(START, None);
        assert!(refused.unanswered(START, Error::lost(LostReason::Gone, "for good")).is_err());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            refused.unanswered(START, no_reply()).expect("the call waits through an outage");
            pauses.push(START.until(refused.next_attempt()));
        }
        assert!(pauses[0] <= FIRST_PAUSE && pauses[8] >= POLL / 2);
        assert!(pauses.iter().all(|pause| *pause <= POLL));
        assert!(refused.take_error().is_some() && refused.take_error().is_none());
    }

    #[test]
    fn a_lock_held_in_this_process_is_polled_at_the_poll_interval() {
        let mut schedule = schedule();
        assert!(!schedule.is_due_while_held_here(START));
        assert!(schedule.is_due_while_held_here(START + POLL));
        assert!(schedule.is_due(START, None), "the first attempt");
        schedule.before_attempt(view_without_channel());
        schedule.refused(START, None);
        assert!(!schedule.is_due(START, None), "the attempt after that hold was made");
        assert!(!schedule.is_due_while_held_here(START));
        assert!(schedule.is_due(START, None), "the next hold has ended");
        assert!(!schedule.is_due(START, None), "once");
        assert!(!schedule.is_due_while_held_here(START + POLL), "the watchdog polls");
        assert!(schedule.is_due_while_held_here(START + POLLS_BEFORE_OWN_ATTEMPT * POLL));
    }

    #[test]
    fn a_call_that_becomes_the_head_of_the_queue_makes_one_attempt() {
        let mut schedule = attempted(schedule());
        schedule.refused(START, None);
        schedule.wait_behind();
        assert!(schedule.is_due(START, None), "the former head may have released the lock");
        assert!(!schedule.is_due(START, None), "once");
    }

    #[test]
    fn messages_make_attempts_due_and_lost_races_make_the_call_quiet() {
        let (channels, parker) = (Channels::default(), Arc::<Parker>::default());
        let channel = channels.channel("c");
        let registration = channel.register(&parker);
        channel.set_subscription(SubscriptionState::Subscribed);
        let mut schedule = schedule();
        let mut quiets = Vec::new();
        for _ in 0..8 {
            schedule.before_attempt(ChannelView {
                message_count: Some(channel.message_count()),
                subscription: channel.subscription(),
                requested_in: None,
            });
            schedule.refused(START, None);
            quiets.push(START.until(schedule.next_attempt()));
            channel.notify();
            let message_count = Some(registration.message_count());
            assert!(schedule.is_due(schedule.next_attempt(), message_count));
        }
        assert!(quiets[0] >= POLL / 2, "the first refusal costs nothing");
        assert!(quiets[1] <= FIRST_QUIET && quiets[7] <= LONGEST_QUIET);
        assert!(quiets[7] >= LONGEST_QUIET / 2);
    }

    #[test]
    fn a_registration_makes_an_attempt_due_if_a_message_may_have_been_missed() {
        let (channels, parker) = (Channels::default(), Arc::<Parker>::default());
        let channel = channels.channel("c");
        let registration = channel.register(&parker);
        let registers = |subscription, session| {
            channel.set_subscription(subscription);
            let mut schedule = attempted(schedule());
            schedule.refused(START, None);
            schedule.registered(&registration, &channel, session);
            schedule.is_due(START, Some(registration.message_count()))
        };
        assert!(registers(SubscriptionState::Subscribed, None), "a message may have come before");
        assert!(!registers(SubscriptionState::Requested, None), "the confirmation will count");
        assert!(
            !registers(SubscriptionState::Unsubscribed, None),
            "the listener looks for waiters"
        );
        channels.set_listening(true);
        assert!(
            registers(SubscriptionState::Unsubscribed, channels.session()),
            "an attempt has to request the subscription"
        );
    }

    #[test]
    fn unaided_calls_poll_at_the_poll_interval_and_spin_locks_back_off() {
        let next = |schedule: &mut RetrySchedule| {
            schedule.before_attempt(view_without_channel());
            schedule.refused(START, None);
            START.until(schedule.next_attempt())
        };
        let mut self_polling = RetrySchedule::new(START, POLL, 7, Pace::SelfPolling);
        assert!((POLL / 2..=POLL).contains(&next(&mut self_polling)));
        let back_off = BackOff::Exponential {
            first: Duration::from_millis(1),
            longest: Duration::from_millis(128),
        };
        let mut spinning = RetrySchedule::new(START, POLL, 7, Pace::BackOff(back_off));
        let pauses: Vec<_> = (0..12).map(|_| next(&mut spinning)).collect();
        assert!(pauses[0] <= Duration::from_millis(1), "{pauses:?}");
        assert!(pauses[11] <= Duration::from_millis(128), "{pauses:?}");
        assert!(pauses[11] >= Duration::from_millis(64), "{pauses:?}");
    }

    #[test]
    fn a_call_whose_grants_always_arrive_too_late_ends_with_an_error() {
        let mut schedule = attempted(schedule());
        for _ in 1..MAX_LATE_GRANTS {
            schedule.granted_too_late(START).expect("another attempt");
            assert!(schedule.is_due(START, None));
        }
        assert!(schedule.granted_too_late(START).is_err_and(|error| error.is_lost()));
        let error = schedule.take_error();
        assert!(error.is_some_and(|error| error.is_lost()), "for a call that gives up");
    }
}
