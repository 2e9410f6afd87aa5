//! How long a process goes on taking one lock, and when it *yields* to others.
//!
//! Who takes a lock again right after its release would win every race against a process
//! that has to be woken by a message. So after a *run* of holds that followed one another
//! the front does not ask for a while, if the last release was heard by others. Pure: it is
//! told what happened and when.

use std::time::Duration;

use crate::local::hold::HandoffBounds;
use crate::util::clock::Moment;

/// How long a process yields at least and at most: others are woken by a message, and
/// ask. It is meant for others at about the same distance from the server. A run as long as
/// that is a long one: so no more than half of the time is lost if nobody comes.
const LEAST_YIELD: Duration = Duration::from_micros(500);
const LONGEST_YIELD: Duration = Duration::from_millis(20);

/// The same where nobody knows whether anybody else wants the lock, and those who do look only
/// now and then: a tenth of the time is for them.
const UNHEARD_YIELD: Duration = Duration::from_millis(2);
const UNHEARD_RUN: Duration = Duration::from_millis(20);

/// The runs of one lock in this process.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    run: Option<Run>,
    /// The last release that was answered was heard by others too.
    others_listen: bool,
    /// Nobody can say who else wants the lock: those who spin do not listen.
    unheard: bool,
    /// The front does not ask before that.
    yields_until: Moment,
}

/// Holds of this process that followed one another.
#[derive(Debug)]
struct Run {
    since: Moment,
    holds: u32,
    /// How long the server took at least to grant one of them.
    round_trip: Duration,
    /// When the last one was released.
    ended: Moment,
}

impl Fairness {
    /// The server granted one more hold, after so long.
    pub(crate) fn granted(&mut self, now: Moment, round_trip: Duration) {
        let new = Run { since: now, holds: 0, round_trip, ended: now };
        let run = self.run.get_or_insert(new);
        run.holds = run.holds.saturating_add(1);
        run.round_trip = run.round_trip.min(round_trip);
    }

    /// A hold went from thread to thread.
    pub(crate) fn handed_off(&mut self) {
        if let Some(run) = &mut self.run {
            run.holds = run.holds.saturating_add(1);
        }
    }

    pub(crate) fn released(&mut self, now: Moment) {
        if let Some(run) = &mut self.run {
            run.ended = now;
        }
    }

    /// A release was heard, by others too or by nobody else.
    pub(crate) fn heard(&mut self, by_others: bool) {
        self.others_listen = by_others;
    }

    /// A release of a kind that nobody hears.
    pub(crate) fn unheard(&mut self) {
        (self.others_listen, self.unheard) = (true, true);
    }

    /// Another process holds the lock.
    pub(crate) fn end(&mut self) {
        self.run = None;
    }

    /// Until when the front is not to ask, if it has to yield.
    pub(crate) fn yields(&mut self, now: Moment, bounds: &HandoffBounds) -> Option<Moment> {
        if self.others_listen
            && let Some(run) = self.run.take_if(|run| run.is_long(now, bounds, self.unheard))
        {
            let unheard = self.unheard.then_some(UNHEARD_YIELD);
            self.yields_until = run.ended + unheard.unwrap_or_else(|| run.yields_for());
            self.others_listen = false;
        }
        (now < self.yields_until).then_some(self.yields_until)
    }
}

impl Run {
    fn is_long(&self, now: Moment, bounds: &HandoffBounds, unheard: bool) -> bool {
        if unheard {
            return self.since + UNHEARD_RUN <= now;
        }
        let passed_on = bounds.max_handoffs > 0 && self.holds > bounds.max_handoffs;
        passed_on || self.since + self.yields_for() <= now
    }

    fn yields_for(&self) -> Duration {
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

    /// Runs whose releases others hear.
    fn heard() -> Fairness {
        Fairness { others_listen: true, ..Fairness::default() }
    }

    impl Fairness {
        /// The lock is taken at that moment and released at once. Until when the process
        /// should have yielded instead.
        fn take(&mut self, now: Moment, round_trip: Duration) -> Option<Moment> {
            self.take_within(&bounds(0), now, round_trip)
        }

        fn take_within(
            &mut self,
            bounds: &HandoffBounds,
            now: Moment,
            round_trip: Duration,
        ) -> Option<Moment> {
            let yields = self.yields(now, bounds);
            self.granted(now, round_trip);
            self.released(now);
            yields
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
        assert_eq!(fairness.take(at(9000), ROUND_TRIP), None, "nobody else listens");
    }

    #[test]
    fn where_nobody_listens_a_tenth_of_the_time_is_for_others() {
        let mut fairness = Fairness::default();
        fairness.unheard();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(19_000), ROUND_TRIP), None);
        assert_eq!(fairness.yields(at(20_000), &bounds(0)), Some(at(21_000)));
    }

    #[test]
    fn who_has_left_the_lock_alone_need_not_yield() {
        let mut fairness = heard();
        assert_eq!(fairness.take(at(0), ROUND_TRIP), None);
        assert_eq!(fairness.take(at(2000), ROUND_TRIP), None, "others had their chance");
    }

    #[test]
    fn it_yields_for_two_of_the_shortest_round_trips_within_bounds() {
        for (round_trip, most) in [(3 * MILLI, 6 * MILLI), (SECOND, LONGEST_YIELD)] {
            let mut fairness = heard();
            fairness.take(at(0), 5 * SECOND);
            fairness.take(at(30_000), round_trip);
            fairness.heard(true);
            fairness.granted(at(70_000), 5 * SECOND);
            fairness.granted(at(100_000), round_trip);
            fairness.released(at(100_000));
            assert_eq!(fairness.yields(at(100_001), &bounds(0)), Some(at(100_000) + most));
        }
    }

    #[test]
    fn another_holder_ends_a_run_and_passes_belong_to_it() {
        let (mut fairness, bounds) = (heard(), bounds(1));
        assert_eq!(fairness.take_within(&bounds, at(0), ROUND_TRIP), None);
        fairness.end();
        assert_eq!(fairness.take_within(&bounds, at(100), ROUND_TRIP), None);
        fairness.handed_off();
        fairness.released(at(200));
        assert_eq!(fairness.yields(at(300), &bounds), Some(at(700)), "one pass is allowed");
    }
}
