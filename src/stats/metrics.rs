//! The exported metrics of one kind of lock and one label, with their names and descriptions.

#![cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "the exporter uses the rest"))]

use crate::error::LostReason;

/// An exported counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterMetric {
    Acquired,
    PassedLocally,
    Lingered,
    Freed,
    FoundDone,
    Released,
    ReleasedAfterExpiry,
    LostExpired,
    LostGone,
    LostHeldTooLong,
    Refused,
    TimedOut,
    Cancelled,
    Contended,
    Renewals,
    RenewalFailures,
}

impl CounterMetric {
    /// Returns the counter of losses for this reason.
    pub(super) fn lost(reason: LostReason) -> CounterMetric {
        match reason {
            LostReason::Expired => CounterMetric::LostExpired,
            LostReason::Gone => CounterMetric::LostGone,
            LostReason::HeldTooLong => CounterMetric::LostHeldTooLong,
        }
    }
}

/// An exported gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GaugeMetric {
    Held,
    Waiting,
}

/// An exported histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistogramMetric {
    Wait,
    Hold,
    RenewalLag,
    RoundTrip,
}

/// Name, reason of a loss, and description of each counter.
pub(super) const COUNTERS: [(CounterMetric, &str, Option<&str>, &str); 16] = [
    (
        CounterMetric::Acquired,
        "leasehold_lock_acquired_total",
        None,
        "Holds that servers granted, without re-entries and hand-offs",
    ),
    (
        CounterMetric::PassedLocally,
        "leasehold_lock_passed_locally_total",
        None,
        "Hand-offs to a thread of the same process, without a round trip",
    ),
    (
        CounterMetric::Lingered,
        "leasehold_lock_lingered_total",
        None,
        "Holds that lingered and were taken over, without a round trip",
    ),
    (
        CounterMetric::Freed,
        "leasehold_lock_freed_total",
        None,
        "Holds of processes that are gone, which this client has released",
    ),
    (
        CounterMetric::FoundDone,
        "leasehold_lock_found_done_total",
        None,
        "Calls that found their work done, and got its result",
    ),
    (
        CounterMetric::Released,
        "leasehold_lock_released_total",
        None,
        "Holds whose last guard has ended",
    ),
    (
        CounterMetric::ReleasedAfterExpiry,
        "leasehold_lock_released_after_expiry_total",
        None,
        "Released holds that were lost before",
    ),
    (CounterMetric::LostExpired, LOST, Some("expired"), LOST_MEANS),
    (CounterMetric::LostGone, LOST, Some("gone"), LOST_MEANS),
    (CounterMetric::LostHeldTooLong, LOST, Some("held_too_long"), LOST_MEANS),
    (
        CounterMetric::Refused,
        "leasehold_lock_refused_total",
        None,
        "Calls that do not wait, and found the lock held",
    ),
    (
        CounterMetric::TimedOut,
        "leasehold_lock_timed_out_total",
        None,
        "Calls whose deadline passed before they got the lock",
    ),
    (
        CounterMetric::Cancelled,
        "leasehold_lock_cancelled_total",
        None,
        "Calls that a CancelToken ended",
    ),
    (
        CounterMetric::Contended,
        "leasehold_lock_contended_total",
        None,
        "Calls that had to wait for other holders or callers",
    ),
    (
        CounterMetric::Renewals,
        "leasehold_lock_renewals_total",
        None,
        "Renewals of leases by the watchdog",
    ),
    (
        CounterMetric::RenewalFailures,
        "leasehold_lock_renewal_failures_total",
        None,
        "Failed renewals of valid holds",
    ),
];

const LOST: &str = "leasehold_lock_lost_total";
const LOST_MEANS: &str = "Lost holds, by the way in which the loss was noticed";

/// Name and description of each gauge.
pub(super) const GAUGES: [(GaugeMetric, &str, &str); 2] = [
    (GaugeMetric::Held, "leasehold_locks_held", "Holds that are valid now"),
    (GaugeMetric::Waiting, "leasehold_locks_waiting", "Calls that wait now"),
];

/// Name and description of each histogram.
pub(super) const HISTOGRAMS: [(HistogramMetric, &str, &str); 4] = [
    (
        HistogramMetric::Wait,
        "leasehold_lock_wait_seconds",
        "Time from the beginning to the end of each call that waited",
    ),
    (
        HistogramMetric::Hold,
        "leasehold_lock_hold_seconds",
        "Time from the grant to the end of the last guard of each hold",
    ),
    (
        HistogramMetric::RenewalLag,
        "leasehold_lock_renewal_lag_seconds",
        "Time from the planned to the actual write of each renewal",
    ),
    (
        HistogramMetric::RoundTrip,
        "leasehold_lock_round_trip_seconds",
        "Time from the write of each acquire command to its reply",
    ),
];

/// Name and description of the counter of a whole client.
pub(super) const RECONNECTS: (&str, &str) =
    ("leasehold_reconnects_total", "Broken connections that were replaced");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_at_its_place_in_its_table() {
        let counters = COUNTERS.iter().map(|(metric, ..)| *metric as usize);
        assert!(counters.eq(0..COUNTERS.len()));
        assert!(GAUGES.iter().map(|(metric, ..)| *metric as usize).eq(0..GAUGES.len()));
        let histograms = HISTOGRAMS.iter().map(|(metric, ..)| *metric as usize);
        assert!(histograms.eq(0..HISTOGRAMS.len()));
    }
}
