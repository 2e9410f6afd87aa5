//! The `Debug` form of [`Stats`]: every number once, derived ones included.

use std::fmt;

use super::Stats;

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `..`, so that a new number has to be added here.
        let Stats {
            acquired,
            passed_locally,
            released_after_expiry,
            lost_expired,
            lost_gone,
            lost_held_too_long,
            refused,
            timed_out,
            cancelled,
            contended,
            renewal_failures,
            reconnects,
            wait_time,
            hold_time,
            renewal_lag,
            round_trip,
        } = self;
        f.debug_struct("Stats")
            .field("acquired", acquired)
            .field("passed_locally", passed_locally)
            .field("released", &self.released())
            .field("released_after_expiry", released_after_expiry)
            .field("lost_expired", lost_expired)
            .field("lost_gone", lost_gone)
            .field("lost_held_too_long", lost_held_too_long)
            .field("lost_in_total", &self.lost_in_total())
            .field("held_now", &self.held_now())
            .field("refused", refused)
            .field("timed_out", timed_out)
            .field("cancelled", cancelled)
            .field("contended", contended)
            .field("waiting_now", &self.waiting_now())
            .field("renewals", &self.renewals())
            .field("renewal_failures", renewal_failures)
            .field("reconnects", reconnects)
            .field("wait_time", wait_time)
            .field("hold_time", hold_time)
            .field("renewal_lag", renewal_lag)
            .field("round_trip", round_trip)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::error::LostReason;
    use crate::stats::StatsRecorder;

    /// Repeats a step.
    fn times(number: usize, step: impl Fn()) {
        (0..number).for_each(|_| step());
    }

    /// Each number has a value of its own, so that a value under the wrong name shows.
    #[test]
    fn the_debug_form_has_every_number_once() {
        let recorder = StatsRecorder::default();
        times(100, || recorder.acquired());
        times(2, || recorder.passed_locally());
        times(3, || recorder.released(Duration::ZERO, false));
        times(20, || recorder.released(Duration::ZERO, true));
        times(4, || recorder.lost(LostReason::Expired));
        times(5, || recorder.lost(LostReason::Gone));
        times(10, || recorder.lost(LostReason::HeldTooLong));
        recorder.refused.add(6);
        recorder.timed_out.add(7);
        recorder.cancelled.add(8);
        recorder.contended.add(30);
        times(13, || recorder.wait_time.record(Duration::ZERO));
        times(11, || recorder.renewed(Duration::ZERO));
        times(12, || recorder.renewal_failed());
        times(14, || recorder.reconnected());
        times(15, || recorder.answered(Duration::ZERO));
        let shown = format!("{:?}", recorder.snapshot());
        let numbers = [
            "acquired: 100",
            "passed_locally: 2",
            "released: 23",
            "released_after_expiry: 3",
            "lost_expired: 4",
            "lost_gone: 5",
            "lost_held_too_long: 10",
            "lost_in_total: 19",
            "held_now: 61",
            "refused: 6",
            "timed_out: 7",
            "cancelled: 8",
            "contended: 30",
            "waiting_now: 17",
            "renewals: 11",
            "renewal_failures: 12",
            "reconnects: 14",
            "wait_time: Histogram { count: 13",
            "hold_time: Histogram { count: 23",
            "renewal_lag: Histogram { count: 11",
            "round_trip: Histogram { count: 15",
        ];
        for number in numbers {
            assert_eq!(shown.matches(&format!(" {number},")).count(), 1, "{number} in {shown}");
        }
    }
}
