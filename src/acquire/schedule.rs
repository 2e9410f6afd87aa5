//! When the front of a line asks the server next.
//!
//! It asks once at once. Refused, it asks again at the end of the holder's lease, or after
//! [`UNAIDED`] poll intervals, whichever is first; before that when it has heard something
//! ([`Heard`]), when a thread of this process has let go of the lock, or when the watchdog's
//! poll found it free (`local.rs`). After a question
//! without an answer it pauses, longer each time. Pure: it is told what time it is.

use std::time::Duration;

use crate::config::BackOff;
use crate::error::{Error, LostReason, Result};
use crate::listener::channels::{
    Channel, ListenerSession, MessageCount, SubscriptionState, Waiting,
};
use crate::util::clock::{Moment, doubled, jittered};

/// How long a caller that lost a race ignores messages, at first and at most.
const FIRST_QUIET: Duration = Duration::from_micros(200);
const LONGEST_QUIET: Duration = Duration::from_millis(2);

/// A caller that has lost races for so long is quiet no more, while those who came later
/// are: so it wins sooner.
const LONG_LOSS: Duration = Duration::from_millis(20);

/// After so many poll intervals it asks although the watchdog, which polls for all that
/// were refused (`watchdog.rs`), has not had it do so.
const UNAIDED: u32 = 60;

/// The first pause after a question got no answer; the longest is the poll interval.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The least time between two questions because a lease was said to be over.
const LEAST_LEFT: Duration = Duration::from_millis(1);

/// How often one call is answered by servers that have been left: each move costs a question.
pub(crate) const MAX_OUTDATED_ANSWERS: u32 = 16;

/// How often one call is granted a lease that is over by the time it knows.
const TOO_LATE: u32 = 3;

/// How soon a caller asks again that has heard nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Late: the watchdog polls for it.
    Polled,
    /// At the poll interval.
    Unaided,
    /// After a while that grows with every refusal.
    BackOff(BackOff),
}

/// What one call knows from its questions so far.
#[derive(Debug)]
pub(crate) struct RetrySchedule {
    poll_interval: Duration,
    pace: Pace,
    refusals: u32,
    /// Differs from call to call.
    seed: u64,
    asked: bool,
    /// The server has refused it, so it waits through outages.
    refused: bool,
    /// A thread of this process held the lock at the last look, or may have since.
    held_here: bool,
    /// When it asks at the latest.
    next: Moment,
    failures: u32,
    /// Why the last question got no answer, or none of use.
    error: Option<Error>,
    /// How often it was granted a lease that was over by then.
    too_late: u32,
    /// How often its answer came from a server that had been left.
    outdated: u32,
    heard_so_far: Heard,
}

/// What one call has heard from the lock's channel.
#[derive(Debug, Default)]
struct Heard {
    /// The news up to the last question, if there was a channel to look at.
    since: Option<MessageCount>,
    /// Messages were heard before the last question.
    heard: bool,
    /// The last question was asked because of a message.
    woken: bool,
    /// There may have been news that was not counted for it.
    missed: bool,
    /// The listener's connection that the last question told of the channel.
    told: Option<ListenerSession>,
    /// Until when it ignores news, and then asks.
    quiet_until: Option<Moment>,
    lost_races: u32,
    /// When it lost the first.
    losing_since: Option<Moment>,
}

impl RetrySchedule {
    pub(crate) fn new(
        now: Moment,
        poll_interval: Duration,
        seed: u64,
        pace: Pace,
    ) -> RetrySchedule {
        RetrySchedule {
            poll_interval,
            pace,
            refusals: 0,
            seed,
            asked: false,
            refused: false,
            held_here: false,
            next: now + poll_interval,
            failures: 0,
            error: None,
            too_late: 0,
            outdated: 0,
            heard_so_far: Heard::default(),
        }
    }

    /// Whether there was one.
    pub(crate) fn asked(&self) -> bool {
        self.asked
    }

    /// It is not the front: whoever is asks, and may be granted the lock and let go of it
    /// before this one looks again.
    pub(crate) fn stand_behind(&mut self) {
        self.held_here = true;
        self.next = Moment::END;
    }

    /// Whether to ask now, though a thread of this process holds the lock.
    pub(crate) fn is_due_beside_a_holder(&mut self, now: Moment) -> bool {
        self.held_here = true;
        let due = self.next <= now;
        if !due {
            self.next = self.next.min(now + self.bound());
        }
        due
    }

    /// A poll found the lock free, so it asks now. If a thread of this process holds it, it
    /// will ask again when that lets go.
    pub(crate) fn found_free(&mut self, held_here: bool) {
        self.held_here = held_here;
    }

    /// Whether to ask now, with nobody of this process in the way.
    pub(crate) fn is_due(&mut self, now: Moment, messages: Option<MessageCount>) -> bool {
        let let_go = std::mem::take(&mut self.held_here);
        if let_go {
            self.refusals = 0;
        }
        !self.asked || let_go || self.next <= now || self.heard_so_far.is_due(now, messages)
    }

    /// When the next is due, news or not.
    pub(crate) fn next_poll(&self) -> Moment {
        self.next
    }

    /// When the next is due if nothing is heard.
    pub(crate) fn next(&self) -> Moment {
        self.heard_so_far.quiet_until.unwrap_or(self.next)
    }

    /// From now on it listens.
    pub(crate) fn listens(
        &mut self,
        listening: &Waiting,
        channel: &Channel,
        session: Option<ListenerSession>,
    ) {
        self.heard_so_far.listens(listening, channel, session);
    }

    /// Takes in what is known before a question is sent.
    pub(crate) fn before(
        &mut self,
        messages: Option<MessageCount>,
        subscription: SubscriptionState,
        told: Option<ListenerSession>,
    ) {
        self.asked = true;
        self.heard_so_far.before(messages, subscription, told);
    }

    /// Another holds the lock, for so long if nobody prolongs it.
    pub(crate) fn refused(&mut self, now: Moment, left: Option<Duration>) {
        self.refused = true;
        self.error = None;
        self.failures = 0;
        let poll = match self.pace {
            Pace::BackOff(back_off) if !self.held_here => {
                back_off.pause(self.refusals, self.seed ^ now.nanos())
            }
            _ => jittered(self.bound(), self.seed ^ now.nanos()),
        };
        self.refusals = self.refusals.saturating_add(1);
        self.next = now + left.map_or(poll, |left| left.max(LEAST_LEFT).min(poll));
        self.heard_so_far.refused(now, self.seed);
    }

    /// No answer, or none that says anything of the lock: an error for the first
    /// question, a pause for others.
    pub(crate) fn failed(&mut self, now: Moment, error: Error) -> Result<()> {
        if !self.refused || !error.is_transient() {
            return Err(error);
        }
        let pause = doubled(FIRST_PAUSE, self.failures.min(8), self.poll_interval);
        self.next = now + jittered(pause, self.seed ^ now.nanos());
        self.failures += 1;
        self.error = Some(error);
        Ok(())
    }

    /// How long it waits for others to tell it something. Nobody polls for a caller that
    /// has not been refused.
    fn bound(&self) -> Duration {
        match self.pace {
            Pace::Polled if self.refused => self.poll_interval * UNAIDED,
            Pace::Polled | Pace::Unaided | Pace::BackOff(_) => self.poll_interval,
        }
    }

    /// Why the last question got no answer, or none of use, if so.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// The lease was over before the server's answer was read. Asking once more has it
    /// set anew, but not for ever: it may be shorter than any round trip.
    pub(crate) fn granted_too_late(&mut self, now: Moment) -> Result<()> {
        let error = Error::lost(LostReason::Expired, "the grant arrived too late");
        self.too_late += 1;
        if self.too_late == TOO_LATE {
            return Err(error);
        }
        self.next = now;
        self.error = Some(error);
        Ok(())
    }

    /// The servers have been others than before since it asked, so the answer says nothing. It
    /// asks again, but not for ever.
    pub(crate) fn outdated(&mut self) -> Result<()> {
        self.outdated += 1;
        if self.outdated < MAX_OUTDATED_ANSWERS { Ok(()) } else { Err(Error::outdated()) }
    }

    /// What would come by and by has come: time stands still in models.
    #[cfg(all(test, leasehold_model))]
    pub(crate) fn be_due(&mut self, poll: bool) {
        self.next = if poll { Moment::START } else { Moment::END };
        self.heard_so_far.quiet_until = self.heard_so_far.quiet_until.and(Some(Moment::START));
    }
}

impl Heard {
    fn is_due(&self, now: Moment, messages: Option<MessageCount>) -> bool {
        match self.quiet_until {
            Some(end) => end <= now,
            None => self.missed || self.is_news(messages),
        }
    }

    fn is_news(&self, messages: Option<MessageCount>) -> bool {
        messages.is_some() && self.since.is_some() && messages != self.since
    }

    /// It has missed something, and asks again, if the channel was heard already and it
    /// could not look there before its question; or if the listener was not told of the
    /// channel, but can be told now. (One that cannot be told yet will look for itself
    /// who waits.)
    fn listens(
        &mut self,
        listening: &Waiting,
        channel: &Channel,
        session: Option<ListenerSession>,
    ) {
        let first_look = self.since.is_none();
        self.since.get_or_insert(listening.messages());
        self.missed = match channel.subscription() {
            SubscriptionState::Everything => first_look,
            SubscriptionState::Asked => false,
            SubscriptionState::Nothing => session.is_some() && session != self.told,
        };
    }

    fn before(
        &mut self,
        messages: Option<MessageCount>,
        subscription: SubscriptionState,
        told: Option<ListenerSession>,
    ) {
        // Only a caller that heard messages before can have been woken by one.
        self.woken = self.heard && self.quiet_until.is_none() && self.is_news(messages);
        self.heard = subscription == SubscriptionState::Everything;
        self.since = messages;
        self.told = told;
        self.missed = false;
        self.quiet_until = None;
    }

    /// Woken and refused: others were faster, and would be again if all came back at the
    /// next message. Who has lost for long comes back at each.
    fn refused(&mut self, now: Moment, seed: u64) {
        if self.woken && now < *self.losing_since.get_or_insert(now) + LONG_LOSS {
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
    use crate::listener::channels::Waiters;
    use crate::util::sync::Parker;
    use std::sync::Arc;

    const POLL: Duration = Duration::from_secs(1);
    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    fn schedule() -> RetrySchedule {
        RetrySchedule::new(START, POLL, 7, Pace::Polled)
    }

    fn asked(mut schedule: RetrySchedule) -> RetrySchedule {
        assert!(schedule.is_due(START, None), "the first is asked at once");
        schedule.before(None, SubscriptionState::Nothing, None);
        schedule
    }

    fn no_answer() -> Error {
        Error::new(ErrorKind::Connection, "no answer")
    }

    #[test]
    fn the_next_is_due_when_the_lease_is_over_or_at_the_poll_interval() {
        for (left, least, most) in [
            (Some(Duration::from_millis(100)), 100, 100),
            (Some(Duration::ZERO), 1, 1),
            (Some(POLL * 3), 3000, 3000),
            (Some(POLL * 300), 30_000, 60_000),
            (None, 30_000, 60_000),
        ] {
            let mut schedule = asked(schedule());
            schedule.refused(START, left);
            let millis = START.until(schedule.next()).as_millis();
            assert!((least..=most).contains(&millis), "{left:?}: {millis} ms");
            assert!(!schedule.is_due(START, None));
            assert!(schedule.is_due(schedule.next(), None));
        }
    }

    #[test]
    fn the_first_failure_is_an_error_and_later_ones_are_pauses_that_grow() {
        assert!(asked(schedule()).failed(START, no_answer()).is_err());
        let mut refused = asked(schedule());
        refused.refused(START, None);
        assert!(refused.failed(START, Error::lost(LostReason::Gone, "for good")).is_err());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            refused.failed(START, no_answer()).expect("it waits through an outage");
            pauses.push(START.until(refused.next()));
        }
        assert!(pauses[0] <= FIRST_PAUSE && pauses[8] >= POLL / 2);
        assert!(pauses.iter().all(|pause| *pause <= POLL));
        assert!(refused.take_error().is_some() && refused.take_error().is_none());
    }

    #[test]
    fn a_holder_of_this_process_is_asked_behind_at_the_poll_interval() {
        let mut schedule = schedule();
        assert!(!schedule.is_due_beside_a_holder(START));
        assert!(schedule.is_due_beside_a_holder(START + POLL));
        assert!(schedule.is_due(START, None), "the first");
        schedule.before(None, SubscriptionState::Nothing, None);
        schedule.refused(START, None);
        assert!(!schedule.is_due(START, None), "it has asked after that holder let go");
        assert!(!schedule.is_due_beside_a_holder(START));
        assert!(schedule.is_due(START, None), "the next holder has let go");
        assert!(!schedule.is_due(START, None), "once");
        assert!(!schedule.is_due_beside_a_holder(START + POLL), "the watchdog polls");
        assert!(schedule.is_due_beside_a_holder(START + UNAIDED * POLL));
    }

    #[test]
    fn who_has_stood_behind_asks_once_at_the_front() {
        let mut schedule = asked(schedule());
        schedule.refused(START, None);
        schedule.stand_behind();
        assert!(schedule.is_due(START, None), "who stood before it may have let go");
        assert!(!schedule.is_due(START, None), "once");
    }

    #[test]
    fn news_are_asked_about_and_lost_races_end_in_quiet() {
        let (waiters, parker) = (Waiters::default(), Arc::<Parker>::default());
        let channel = waiters.channel("c");
        let listening = channel.wait(&parker);
        channel.set_hearing(SubscriptionState::Everything);
        let mut schedule = schedule();
        let mut quiets = Vec::new();
        for _ in 0..8 {
            schedule.before(Some(channel.messages()), channel.subscription(), None);
            schedule.refused(START, None);
            quiets.push(START.until(schedule.next()));
            channel.message();
            let messages = Some(listening.messages());
            assert!(schedule.is_due(schedule.next(), messages));
        }
        assert!(quiets[0] >= POLL / 2, "the first refusal costs nothing");
        assert!(quiets[1] <= FIRST_QUIET && quiets[7] <= LONGEST_QUIET);
        assert!(quiets[7] >= LONGEST_QUIET / 2);
    }

    #[test]
    fn who_begins_to_listen_asks_again_if_it_may_have_missed_something() {
        let (waiters, parker) = (Waiters::default(), Arc::<Parker>::default());
        let channel = waiters.channel("c");
        let listening = channel.wait(&parker);
        let listens = |subscription, session| {
            channel.set_hearing(subscription);
            let mut schedule = asked(schedule());
            schedule.refused(START, None);
            schedule.listens(&listening, &channel, session);
            schedule.is_due(START, Some(listening.messages()))
        };
        assert!(listens(SubscriptionState::Everything, None), "a message may have come before");
        assert!(!listens(SubscriptionState::Asked, None), "the confirmation will be news");
        assert!(!listens(SubscriptionState::Nothing, None), "the listener will look who waits");
        waiters.set_listening(true);
        assert!(listens(SubscriptionState::Nothing, waiters.session()), "it has to be told");
    }

    #[test]
    fn who_polls_for_itself_asks_at_the_poll_interval_and_who_backs_off_less_and_less_often() {
        let next = |schedule: &mut RetrySchedule| {
            schedule.before(None, SubscriptionState::Nothing, None);
            schedule.refused(START, None);
            START.until(schedule.next())
        };
        let mut unaided = RetrySchedule::new(START, POLL, 7, Pace::Unaided);
        assert!((POLL / 2..=POLL).contains(&next(&mut unaided)));
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
    fn a_lease_that_is_always_over_is_not_asked_for_without_end() {
        let mut schedule = asked(schedule());
        for _ in 1..TOO_LATE {
            schedule.granted_too_late(START).expect("it is asked for again");
            assert!(schedule.is_due(START, None));
        }
        assert!(schedule.granted_too_late(START).is_err_and(|error| error.is_lost()));
        assert!(schedule.take_error().is_some_and(|error| error.is_lost()), "for who gives up");
    }
}
