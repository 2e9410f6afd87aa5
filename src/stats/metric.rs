//! The exported metrics of one kind of lock and one label.

use crate::error::LostReason;

/// An exported counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterMetric {
    Acquired,
    PassedLocally,
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
