//! Fairness between processes: when a process *yields* a lock to others.
//!
//! A process that takes a lock again right after its release wins every race against a process that
//! first has to be woken by a message. So after a long *run* of successive holds the callers of the
//! process pause for 0.5 to 20 ms before they ask, if other processes received the message of the
//! last release. A call that does not wait ends without the lock instead of a pause.
//!
//! A caller that the server has refused does not yield: it waits for the lock as others do.
//!
//! Pure: events and times are arguments.

use std::time::Duration;

use crate::local::hold::HandoffBounds;
use crate::util::clock::{Moment, Patience};

/// Bounds of the time for which a process yields. In this time another process at about the same
/// distance from the server receives the message and asks. A run counts as long when it has lasted
/// as long as a yield. So at most half of the time is lost if no other process asks.
const LEAST_YIELD: Duration = Duration::from_micros(500);
const LONGEST_YIELD: Duration = Duration::from_millis(20);

/// The yield for a kind without messages, whose callers poll.
const SILENT_YIELD: Duration = Duration::from_millis(2);

/// The length of a long run of a kind without messages, in yields: a tenth of the time is left to
/// processes that may be waiting.
const SILENT_RUN: u32 = 10;

/// What the last release told about other processes that wait for the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rivals {
    /// Its message reached no other process.
    #[default]
    Absent,
    /// Its message reached another process.
    Listening,
    /// The kind has no messages: waiting processes poll.
    Polling,
}

/// The processes to which a caller yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum YieldsTo {
    Nobody,
    /// Processes that are known to listen. For calls that do not wait: without such a process they
    /// must not fail to take a free lock.
    #[default]
    Listeners,
    /// Also processes that may be waiting.
    Anybody,
}

/// The present run of one lock in this process, and its yield.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    run: Option<Run>,
    rivals: Rivals,
    /// The end of the last yield, and the callers that it concerns.
    yielding_until: Moment,
    yielding: YieldsTo,
}

/// Successive holds of this process, with no hold of another process in between.
#[derive(Debug)]
struct Run {
    since: Moment,
    holds: u32,
    /// The shortest round trip of an acquire in this run.
    round_trip: Duration,
    /// Moment of the last release.
    ended: Moment,
    /// Moment of the last grant or release.
    last_event: Moment,
}

impl YieldsTo {
    /// Returns the readiness of a caller with this patience.
    ///
    /// A call that may end before a yield does counts as one that does not wait.
    pub(crate) fn of(patience: Patience, now: Moment) -> YieldsTo {
        if patience.end() < now + LONGEST_YIELD { YieldsTo::Listeners } else { YieldsTo::Anybody }
    }
}

impl Rivals {
    /// Returns the least readiness of a caller that yields to these rivals.
    fn need(self) -> Option<YieldsTo> {
        match self {
            Rivals::Absent => None,
            Rivals::Listening => Some(YieldsTo::Listeners),
            Rivals::Polling => Some(YieldsTo::Anybody),
        }
    }
}

impl Fairness {
    /// Counts a hold that the server granted after this round trip.
    pub(crate) fn granted(&mut self, now: Moment, round_trip: Duration) {
        let new = Run { since: now, holds: 0, round_trip, ended: now, last_event: now };
        let run = self.run.get_or_insert(new);
        run.holds = run.holds.saturating_add(1);
        run.round_trip = run.round_trip.min(round_trip);
        run.last_event = now;
    }

    /// Counts a hand-off between two threads.
    pub(crate) fn handed_off(&mut self) {
        if let Some(run) = &mut self.run {
            run.holds = run.holds.saturating_add(1);
        }
    }

    /// Notes a release.
    pub(crate) fn released(&mut self, now: Moment) {
        if let Some(run) = &mut self.run {
            (run.ended, run.last_event) = (now, now);
        }
    }

    /// Notes the release of a hold that another process has asked for: it comes first.
    pub(crate) fn released_to_asker(&mut self, now: Moment) {
        self.released(now);
        if let Some(run) = self.run.take() {
            self.yielding_until = now + run.yield_time(Rivals::Listening);
            self.yielding = YieldsTo::Listeners;
        }
    }

    /// Notes what the reply to a release tells about other processes.
    pub(crate) fn release_answered(&mut self, rivals: Rivals) {
        self.rivals = rivals;
    }

    /// Ends the run: an acquire that was sent at `sent` was refused, so another process holds the
    /// lock.
    ///
    /// If this process got or released a hold since, that hold may be the reason of the refusal.
    pub(crate) fn refused(&mut self, sent: Moment) {
        self.run.take_if(|run| run.last_event <= sent);
    }

    /// Returns the moment until which such a caller must not ask, if it has to yield.
    pub(crate) fn yield_until(
        &mut self,
        now: Moment,
        bounds: &HandoffBounds,
        caller: YieldsTo,
    ) -> Option<Moment> {
        let rivals = self.rivals;
        if let Some(needed) = rivals.need()
            && needed <= caller
            && let Some(run) = self.run.take_if(|run| {
                // A caller that does not wait takes a free lock once more after a single hold,
                // however long that was.
                (run.holds > 1 || caller == YieldsTo::Anybody) && run.is_long(now, bounds, rivals)
            })
        {
            self.yielding_until = run.ended + run.yield_time(rivals);
            self.yielding = needed;
            self.rivals = Rivals::Absent;
        }
        (self.yielding <= caller && now < self.yielding_until).then_some(self.yielding_until)
    }
}

impl Run {
    fn is_long(&self, now: Moment, bounds: &HandoffBounds, rivals: Rivals) -> bool {
        let yield_time = self.yield_time(rivals);
        if rivals == Rivals::Polling {
            return self.since + SILENT_RUN * yield_time <= now;
        }
        let used_up = bounds.max_handoffs > 0 && self.holds > bounds.max_handoffs;
        used_up || self.since + yield_time <= now
    }

    fn yield_time(&self, rivals: Rivals) -> Duration {
        match rivals {
            Rivals::Polling => SILENT_YIELD,
            _ => (2 * self.round_trip).clamp(LEAST_YIELD, LONGEST_YIELD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const ROUND_TRIP: Duration = Duration::from_micros(100);

    fn at(micros: u64) -> Moment {
        Moment::START + SECOND + Duration::from_micros(micros)
    }

    fn bounds(max_handoffs: u32) -> HandoffBounds {
        HandoffBounds { max_handoffs, max_time: MILLI, min_remaining: Duration::ZERO }
    }

    /// Returns the state of a process whose releases other processes receive.
    fn heard() -> Fairness {
        Fairness { rivals: Rivals::Listening, ..Fairness::default() }
    }

    impl Fairness {
        /// Takes and releases the lock at `now`. Returns the end of the yield that was due.
        fn take(&mut self, now: Moment, round_trip: Duration) -> Option<Moment> {
            self.take_within(&bounds(0), now, round_trip)
        }

        fn take_within(
            &mut self,
            bounds: &HandoffBounds,
            now: Moment,
            round_trip: Duration,
        ) -> Option<Moment> {
            let end = self.yield_until(now, bounds, YieldsTo::Anybody);
            self.granted(now, round_trip);
            self.released(now);
            end
        }
    }

    #[test]
    fn a_process_yields_after_a_long_run_if_others_listen() {
        let mut fairness = heard();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None, "the run begins");
        assert_eq!(fairness.take(at(400), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(500), ROUND_TRIP), Some(at(900)), "500 us after the release");
        fairness.release_answered(Rivals::Listening);
        assert_eq!(fairness.take(at(1000), ROUND_TRIP), None, "a new run");
        assert_eq!(fairness.take(at(1400), ROUND_TRIP), None);
        fairness.release_answered(Rivals::Absent);
        assert_eq!(fairness.take(at(9000), ROUND_TRIP), None, "no other process listens");
    }

    #[test]
    fn without_messages_a_tenth_of_the_time_is_left_to_others() {
        let mut fairness = Fairness::default();
        fairness.release_answered(Rivals::Polling);
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(19_000), ROUND_TRIP), None);
        assert_eq!(
            fairness.yield_until(at(20_000), &bounds(0), YieldsTo::Anybody),
            Some(at(21_000))
        );
        let listeners = fairness.yield_until(at(20_001), &bounds(0), YieldsTo::Listeners);
        assert_eq!(listeners, None, "a call that does not wait takes a free lock");
    }

    #[test]
    fn a_call_that_does_not_wait_yields_to_listeners_and_a_refused_call_to_nobody() {
        let mut fairness = heard();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(400), ROUND_TRIP), None);
        assert_eq!(fairness.yield_until(at(500), &bounds(0), YieldsTo::Nobody), None);
        let end = Some(at(900));
        assert_eq!(fairness.yield_until(at(500), &bounds(0), YieldsTo::Listeners), end);
        assert_eq!(fairness.yield_until(at(501), &bounds(0), YieldsTo::Anybody), end);
        assert_eq!(fairness.yield_until(at(501), &bounds(0), YieldsTo::Nobody), None);
    }

    #[test]
    fn a_call_that_does_not_wait_takes_a_free_lock_after_a_single_long_hold() {
        let mut fairness = heard();
        fairness.granted(at(0), ROUND_TRIP);
        fairness.released(at(5000));
        assert_eq!(fairness.yield_until(at(5001), &bounds(0), YieldsTo::Listeners), None);
        fairness.granted(at(5001), ROUND_TRIP);
        fairness.released(at(5100));
        let end = Some(at(5600));
        assert_eq!(fairness.yield_until(at(5101), &bounds(0), YieldsTo::Listeners), end);
    }

    #[test]
    fn a_process_yields_to_one_that_has_asked_whatever_its_run() {
        let mut fairness = Fairness::default();
        fairness.granted(at(0), ROUND_TRIP);
        fairness.released_to_asker(at(100));
        fairness.release_answered(Rivals::Absent);
        let yields = |fairness: &mut Fairness, now, caller| {
            fairness.yield_until(at(now), &bounds(0), caller)
        };
        for caller in [YieldsTo::Listeners, YieldsTo::Anybody] {
            assert_eq!(yields(&mut fairness, 101, caller), Some(at(600)));
        }
        assert_eq!(yields(&mut fairness, 101, YieldsTo::Nobody), None);
        assert_eq!(yields(&mut fairness, 600, YieldsTo::Anybody), None);
    }

    /// The acquires of two callers without a queue overtake each other.
    #[test]
    fn a_refusal_by_a_hold_of_this_process_ends_no_run() {
        let mut fairness = heard();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(400), ROUND_TRIP), None);
        fairness.refused(at(399));
        assert_eq!(fairness.take(at(500), ROUND_TRIP), Some(at(900)));
    }

    #[test]
    fn a_process_that_paused_by_itself_does_not_yield() {
        let mut fairness = heard();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(2000), ROUND_TRIP), None, "others had their chance");
    }

    #[test]
    fn a_yield_lasts_two_of_the_shortest_round_trips_within_bounds() {
        for (round_trip, most) in [(3 * MILLI, 6 * MILLI), (SECOND, LONGEST_YIELD)] {
            let mut fairness = heard();
            fairness.take(at(0), 5 * SECOND);
            fairness.take(at(30_000), round_trip);
            fairness.release_answered(Rivals::Listening);
            fairness.granted(at(70_000), 5 * SECOND);
            fairness.granted(at(100_000), round_trip);
            fairness.released(at(100_000));
            assert_eq!(
                fairness.yield_until(at(100_001), &bounds(0), YieldsTo::Anybody),
                Some(at(100_000) + most)
            );
        }
    }

    #[test]
    fn another_holder_ends_a_run_and_handoffs_belong_to_it() {
        let (mut fairness, bounds) = (heard(), bounds(1));
        assert_eq!(fairness.take_within(&bounds, at(0), ROUND_TRIP), None);
        fairness.refused(at(0));
        assert_eq!(fairness.take_within(&bounds, at(100), ROUND_TRIP), None);
        fairness.handed_off();
        fairness.released(at(200));
        assert_eq!(
            fairness.yield_until(at(300), &bounds, YieldsTo::Anybody),
            Some(at(700)),
            "one hand-off is allowed"
        );
    }
}
