//! [`Series`]: the counters of one client for one kind of lock and one label.
//!
//! Every count goes through a series, once to the statistics of the client and once to the export.
//! A [`CallRecord`] counts the outcome and the wait of one call of an acquiring verb.

use std::cell::Cell;
use std::time::Duration;

use crate::error::{LostReason, Result};
use crate::stats::StatsRecorder;
use crate::stats::export::{Exported, Label};
use crate::stats::metrics::{CounterMetric, GaugeMetric, HistogramMetric};
use crate::util::clock::{self, Moment, Patience};

/// The short name of a kind of lock, and the label of a handle.
pub(crate) type SeriesKey = (&'static str, Option<Label>);

/// The counters of one client for one kind of lock and one label.
#[derive(Debug)]
pub(crate) struct Series<'a> {
    pub(super) recorder: &'a StatsRecorder,
    exported: Exported<'a>,
}

impl StatsRecorder {
    /// Returns the counters for this kind and label. Calls `key` only if metrics are exported.
    pub(crate) fn series(&self, key: impl FnOnce() -> SeriesKey) -> Series<'_> {
        Series { recorder: self, exported: Exported::new(&self.exporter, key) }
    }
}

/// Holds.
impl Series<'_> {
    /// Counts a hold that a server granted.
    pub(crate) fn acquired(&self) {
        self.recorder.acquired();
        self.exported.count(CounterMetric::Acquired);
        self.exported.raise(GaugeMetric::Held);
    }

    /// Counts a hand-off from a holder with the series `from` to a holder with this series.
    pub(crate) fn passed_locally(&self, from: &Series<'_>) {
        self.recorder.passed_locally();
        self.exported.count(CounterMetric::PassedLocally);
        self.move_from(from);
    }

    /// Counts a take-over of a hold that lingered, after a holder with the series `from`.
    pub(crate) fn taken_over(&self, from: &Series<'_>) {
        self.recorder.taken_over();
        self.exported.count(CounterMetric::Lingered);
        self.move_from(from);
    }

    /// Counts a hold of a process that is gone, which this client has released.
    pub(crate) fn freed(&self) {
        self.recorder.freed();
        self.exported.count(CounterMetric::Freed);
    }

    /// Counts a call that found its work done.
    pub(crate) fn found_done(&self) {
        self.recorder.found_done();
        self.exported.count(CounterMetric::FoundDone);
    }

    /// Counts a hold of this series in the gauge, instead of one of the series `from`.
    fn move_from(&self, from: &Series<'_>) {
        if !self.exported.is_same(&from.exported) {
            self.exported.raise(GaugeMetric::Held);
            from.exported.lower(GaugeMetric::Held);
        }
    }

    /// Counts the end of the last guard of a hold.
    pub(crate) fn released(&self, held: Duration, was_valid: bool) {
        self.recorder.released(held, was_valid);
        self.exported.count(CounterMetric::Released);
        self.exported.record(HistogramMetric::Hold, held);
        if was_valid {
            self.exported.lower(GaugeMetric::Held)
        } else {
            self.exported.count(CounterMetric::ReleasedAfterExpiry)
        }
    }

    /// Counts a loss that the reply to a release revealed. The loss itself is counted too.
    pub(crate) fn release_found_no_hold(&self) {
        self.recorder.released_after_expiry.add(1);
        self.exported.count(CounterMetric::ReleasedAfterExpiry);
        // The release has lowered the gauge, and the loss does it again.
        self.exported.raise(GaugeMetric::Held);
    }

    /// Counts a lost hold.
    pub(crate) fn lost(&self, reason: LostReason) {
        self.recorder.lost(reason);
        self.exported.count(CounterMetric::lost(reason));
        self.exported.lower(GaugeMetric::Held);
    }

    /// Ends the count of a hold whose client is gone: no thread will notice its end.
    pub(crate) fn abandoned(&self) {
        self.exported.lower(GaugeMetric::Held);
    }

    /// Counts a renewed lease, and how late its renewal was sent.
    pub(crate) fn renewed(&self, lag: Duration) {
        self.recorder.renewed(lag);
        self.exported.count(CounterMetric::Renewals);
        self.exported.record(HistogramMetric::RenewalLag, lag);
    }

    /// Counts a failed renewal of one lease.
    pub(crate) fn renewal_failed(&self) {
        self.recorder.renewal_failed();
        self.exported.count(CounterMetric::RenewalFailures);
    }
}

/// Calls.
impl Series<'_> {
    /// Counts an acquire command with a reply, and the time from its write to the reply.
    pub(crate) fn answered(&self, round_trip: Duration) {
        self.recorder.answered(round_trip);
        self.exported.record(HistogramMetric::RoundTrip, round_trip);
    }

    /// Counts a call that begins to wait.
    pub(super) fn waits(&self) {
        self.recorder.contended.add(1);
        self.exported.count(CounterMetric::Contended);
        self.exported.raise(GaugeMetric::Waiting);
    }

    /// Counts the end of a call that has waited.
    pub(super) fn waited(&self, wait: Duration) {
        self.recorder.wait_time.record(wait);
        self.exported.record(HistogramMetric::Wait, wait);
        self.exported.lower(GaugeMetric::Waiting);
    }
}

/// Counts one call of an acquiring verb, once for each client of its locks.
///
/// The drop ends the wait of the call.
#[derive(Debug)]
pub(crate) struct CallRecord<'a> {
    clients: &'a [Series<'a>],
    /// The beginning of a call that waits.
    waits_since: Cell<Option<Moment>>,
}

impl<'a> CallRecord<'a> {
    pub(crate) fn new(clients: &'a [Series<'a>]) -> CallRecord<'a> {
        CallRecord { clients, waits_since: Cell::new(None) }
    }

    /// Counts the call, which began at `started`, as a call that waits. Counts only once.
    pub(crate) fn waits(&self, started: Moment) {
        if self.waits_since.get().is_none() {
            self.waits_since.set(Some(started));
            self.clients.iter().for_each(Series::waits);
        }
    }

    /// Returns the time since the beginning of a call that waits; `None` for other calls.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.waits_since.get().map(|started| started.until(clock::now()))
    }

    /// Counts the outcome of the call, and returns it.
    pub(crate) fn end<T>(
        &self,
        patience: Patience,
        outcome: Result<Option<T>>,
    ) -> Result<Option<T>> {
        for Series { recorder, exported } in self.clients {
            let (counter, metric) = match &outcome {
                Ok(None) if patience == Patience::None => {
                    (&recorder.refused, CounterMetric::Refused)
                }
                Ok(None) => (&recorder.timed_out, CounterMetric::TimedOut),
                Err(error) if error.is_cancelled() => {
                    (&recorder.cancelled, CounterMetric::Cancelled)
                }
                Ok(Some(_)) | Err(_) => continue,
            };
            counter.add(1);
            exported.count(metric);
        }
        outcome
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        if let Some(waited) = self.waited() {
            self.clients.iter().for_each(|client| client.waited(waited));
        }
    }
}
