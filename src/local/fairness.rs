//! Fairness between processes: when a process *yields* a lock to others.
//!
//! A process that takes a lock again right after its release wins every race against a process that
//! first has to be woken by a message. So after a long *run* of successive holds the head of the
//! queue pauses for 0.5 to 20 ms before it asks, if other processes received the message of the
//! last release.
//!
//! Pure: events and times are arguments.

use std::time::Duration;

use crate::local::hold::HandoffBounds;
use crate::util::clock::Moment;

/// Bounds of the time for which a process yields. In this time another process at about the same
/// distance from the server receives the message and asks. A run counts as long when it has lasted
/// as long as a yield. So at most half of the time is lost if no other process asks.
const LEAST_YIELD: Duration = Duration::from_micros(500);
const LONGEST_YIELD: Duration = Duration::from_millis(20);

/// The yield and the run for a kind without messages, whose callers poll. It is unknown whether
/// another process wants the lock, so a tenth of the time is left to others.
const SILENT_YIELD: Duration = Duration::from_millis(2);
const SILENT_RUN: Duration = Duration::from_millis(20);

/// The present run of one lock in this process, and its yield.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    run: Option<Run>,
    /// Whether other processes received the message of the last release that got a reply.
    others_listen: bool,
    /// Whether the kind has no messages, so that nothing tells whether other processes wait.
    has_no_messages: bool,
    /// The head of the queue does not ask before this moment.
    yielding_until: Moment,
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
}

impl Fairness {
    /// Counts a hold that the server granted after this round trip.
    pub(crate) fn granted(&mut self, now: Moment, round_trip: Duration) {
        let new = Run { since: now, holds: 0, round_trip, ended: now };
        let run = self.run.get_or_insert(new);
        run.holds = run.holds.saturating_add(1);
        run.round_trip = run.round_trip.min(round_trip);
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
            run.ended = now;
        }
    }

    /// Notes whether subscribers of other processes received the message of a release.
    pub(crate) fn heard(&mut self, by_others: bool) {
        self.others_listen = by_others;
    }

    /// Notes a release of a kind without messages.
    pub(crate) fn released_silently(&mut self) {
        (self.others_listen, self.has_no_messages) = (true, true);
    }

    /// Ends the run: another process holds the lock.
    pub(crate) fn end_run(&mut self) {
        self.run = None;
    }

    /// Returns the moment until which the head of the queue must not ask, if it has to yield.
    pub(crate) fn yield_until(&mut self, now: Moment, bounds: &HandoffBounds) -> Option<Moment> {
        if self.others_listen
            && let Some(run) =
                self.run.take_if(|run| run.is_long(now, bounds, self.has_no_messages))
        {
            let silent = self.has_no_messages.then_some(SILENT_YIELD);
            self.yielding_until = run.ended + silent.unwrap_or_else(|| run.yield_time());
            self.others_listen = false;
        }
        (now < self.yielding_until).then_some(self.yielding_until)
    }
}

impl Run {
    fn is_long(&self, now: Moment, bounds: &HandoffBounds, silent: bool) -> bool {
        if silent {
            return self.since + SILENT_RUN <= now;
        }
        let used_up = bounds.max_handoffs > 0 && self.holds > bounds.max_handoffs;
        used_up || self.since + self.yield_time() <= now
    }

    fn yield_time(&self) -> Duration {
        (2 * self.round_trip).clamp(LEAST_YIELD, LONGEST_YIELD)
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
        Fairness { others_listen: true, ..Fairness::default() }
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
            let end = self.yield_until(now, bounds);
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
        fairness.heard(true);
        assert_eq!(fairness.take(at(1000), ROUND_TRIP), None, "a new run");
        assert_eq!(fairness.take(at(1400), ROUND_TRIP), None);
        fairness.heard(false);
        assert_eq!(fairness.take(at(9000), ROUND_TRIP), None, "no other process listens");
    }

    #[test]
    fn without_messages_a_tenth_of_the_time_is_left_to_others() {
        let mut fairness = Fairness::default();
        fairness.released_silently();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(19_000), ROUND_TRIP), None);
        assert_eq!(fairness.yield_until(at(20_000), &bounds(0)), Some(at(21_000)));
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
            fairness.heard(true);
            fairness.granted(at(70_000), 5 * SECOND);
            fairness.granted(at(100_000), round_trip);
            fairness.released(at(100_000));
            assert_eq!(fairness.yield_until(at(100_001), &bounds(0)), Some(at(100_000) + most));
        }
    }

    #[test]
    fn another_holder_ends_a_run_and_handoffs_belong_to_it() {
        let (mut fairness, bounds) = (heard(), bounds(1));
        assert_eq!(fairness.take_within(&bounds, at(0), ROUND_TRIP), None);
        fairness.end_run();
        assert_eq!(fairness.take_within(&bounds, at(100), ROUND_TRIP), None);
        fairness.handed_off();
        fairness.released(at(200));
        assert_eq!(
            fairness.yield_until(at(300), &bounds),
            Some(at(700)),
            "one hand-off is allowed"
        );
    }
}
