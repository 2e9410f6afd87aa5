//! Statistics of one client: [`Stats`], and the atomics from which it is read.
//!
//! This file has the [`StatsRecorder`], which the parts of a client share, and its snapshot.
//! `histogram.rs` has the durations. All counts of locks and calls go through a [`Series`]
//! (`series.rs`), which also exports them (`export.rs`, with the feature `metrics`); `metrics.rs`
//! lists the metrics. Imports `error` and `util`.
//!
//! All atomics are relaxed, and no code locks anything. An acquire and a release together cost five
//! additions: one for `acquired`, two each for `hold_time` and `round_trip`. `released`,
//! `renewals`, `held_now` and `waiting_now` follow from other counters, so these numbers always
//! agree.

mod export;
mod histogram;
mod metrics;
mod series;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::LostReason;
use export::Exporter;
use histogram::HistogramCells;

pub(crate) use export::Label;
pub use histogram::Histogram;
pub(crate) use series::{CallRecord, Series, SeriesKey};

/// The counters of one client since its start, at one moment. See
/// [`Client::stats`](crate::Client::stats).
///
/// A *hold* is one grant of a server, up to its end. It may pass from thread to thread of this
/// process. Re-entries are no holds of their own. A [`Permit`](crate::Permit) is one hold, whatever
/// its number of permits. Each member of a
/// [`MultiLock`](crate::MultiLock) and each grant of a server to a [`RedLock`](crate::RedLock) is
/// a hold of its client, a minority of grants included.
///
/// A *call* is one call of a verb that acquires or that waits for a latch. A call of a `MultiLock`
/// or `RedLock` counts once for each client of its members.
///
/// While no call and no release runs, these equations hold:
///
/// ```text
/// acquired() + released_after_expiry() = released() + lost_in_total() + held_now()
/// contended() = wait_time().count() + waiting_now()
/// released() = hold_time().count()
/// renewals() = renewal_lag().count()
/// ```
///
/// While calls run, a snapshot may contain a part of their effects. Nothing is ever missed: the
/// counters do not depend on [`Events`](crate::Events), whose queue may drop events.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let stats = client.stats();
/// println!("{} of {} holds were lost", stats.lost_in_total(), stats.acquired());
/// if let Some(wait) = stats.wait_time().quantile(0.99) {
///     println!("99 % of the waits took at most {wait:?}");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a query changes nothing: use its answer"]
pub struct Stats {
    acquired: u64,
    passed_locally: u64,
    lingered: u64,
    freed: u64,
    found_done: u64,
    released_after_expiry: u64,
    lost_expired: u64,
    lost_gone: u64,
    lost_held_too_long: u64,
    refused: u64,
    timed_out: u64,
    cancelled: u64,
    contended: u64,
    renewal_failures: u64,
    reconnects: u64,
    wait_time: Histogram,
    hold_time: Histogram,
    renewal_lag: Histogram,
    round_trip: Histogram,
}

/// Holds.
impl Stats {
    /// Returns the number of holds that servers granted to this client.
    ///
    /// A re-entry does not count. A hand-off counts in [`passed_locally`](Stats::passed_locally), a
    /// take-over of a hold that lingered in [`lingered`](Stats::lingered).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn acquired(&self) -> u64 {
        self.acquired
    }

    /// Returns how often a hold passed to another thread of this process without a round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn passed_locally(&self) -> u64 {
        self.passed_locally
    }

    /// Returns how often a caller took over a hold that lingered, without a round trip.
    ///
    /// See [`Lock::with_linger`](crate::Lock::with_linger).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lingered(&self) -> u64 {
        self.lingered
    }

    /// Returns the number of holds of other clients that this client has released, because their
    /// process is gone or its instance has started again.
    ///
    /// See [`Builder::release_on_death`](crate::Builder::release_on_death).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns how often a caller found its work done, and got its result in place of a hold.
    ///
    /// See [`Once`](crate::Once).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn found_done(&self) -> u64 {
        self.found_done
    }

    /// Returns the number of holds whose last guard has ended.
    ///
    /// Counts at the end of the guard, by a drop, `unlock` or the `unlock` of a detached hold, and
    /// not at the answer of the server; a hold that lingered counts at its release. Counts lost holds
    /// too, if they had a guard; a detached hold whose lease runs out never counts.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn released(&self) -> u64 {
        self.hold_time.count()
    }

    /// Returns how many of the [`released`](Stats::released) holds were lost before their release.
    ///
    /// Includes holds whose loss only the answer to the release revealed. A number that grows means
    /// that the work under a lock sometimes outlasts its lease.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn released_after_expiry(&self) -> u64 {
        self.released_after_expiry
    }

    /// Returns the number of holds that were lost for this reason.
    ///
    /// Each lost hold counts once, when this process notices the loss, for the reason that the
    /// event [`Lost`](crate::Lost) reports. The end of a fixed lease before its release is a loss
    /// too, also if its guard was detached.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lost(&self, reason: LostReason) -> u64 {
        match reason {
            LostReason::Expired => self.lost_expired,
            LostReason::Gone => self.lost_gone,
            LostReason::HeldTooLong => self.lost_held_too_long,
        }
    }

    /// Returns the number of lost holds, the sum of [`lost`](Stats::lost) over all reasons.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lost_in_total(&self) -> u64 {
        self.lost_expired + self.lost_gone + self.lost_held_too_long
    }

    /// Returns the number of holds that are valid now, detached holds included.
    ///
    /// A hold counts until the end of its last guard, or until this process notices its loss; a hold
    /// that lingers counts until its release.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn held_now(&self) -> u64 {
        let ended = self.released() + self.lost_in_total();
        (self.acquired + self.released_after_expiry).saturating_sub(ended)
    }
}

/// Calls.
impl Stats {
    /// Returns the number of calls that did not wait and did not acquire.
    ///
    /// Counts the calls of `try_lock`, `try_lock_owned`, `try_acquire` and `try_acquire_many` that
    /// returned `None` or `false`.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the number of calls with a deadline that returned `None` or `false`.
    ///
    /// A call that ended with an error does not count, for instance because the server did not
    /// answer by the deadline.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn timed_out(&self) -> u64 {
        self.timed_out
    }

    /// Returns the number of calls that a [`CancelToken`](crate::CancelToken) ended.
    ///
    /// Calls that the [close](crate::Client::close) of the client ended do not count.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// Returns the number of calls that had to wait for other holders or callers.
    ///
    /// A call counts once, at the beginning of its wait, whatever its outcome.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn contended(&self) -> u64 {
        self.contended
    }

    /// Returns the number of calls that wait now for other holders or callers.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn waiting_now(&self) -> u64 {
        self.contended.saturating_sub(self.wait_time.count())
    }
}

/// Renewals and connections.
impl Stats {
    /// Returns how often the watchdog renewed the lease of a hold.
    ///
    /// A batch of several holds counts once for each hold. Extensions by
    /// [`extend`](crate::Guard::extend) do not count.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn renewals(&self) -> u64 {
        self.renewal_lag.count()
    }

    /// Returns how often a renewal of a valid hold failed.
    ///
    /// Counts no answer, a refusal by the server and too few replicas, once for each hold and
    /// attempt. A renewal that finds the hold gone counts in [`lost`](Stats::lost) instead.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn renewal_failures(&self) -> u64 {
        self.renewal_failures
    }

    /// Returns how often a broken connection was replaced. Connections of the
    /// [listener](crate#terms) do not count.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }
}

/// Durations.
impl Stats {
    /// Returns the time from the beginning to the end of each call that waited.
    ///
    /// Calls that did not have to wait do not count; their time is the
    /// [`round_trip`](Stats::round_trip). Calls that gave up count.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn wait_time(&self) -> &Histogram {
        &self.wait_time
    }

    /// Returns the time from the grant to the end of the last guard of each released hold.
    ///
    /// The time of a hold includes all threads that had it one after the other. The time of a lost
    /// hold goes on to the end of its last guard.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_time(&self) -> &Histogram {
        &self.hold_time
    }

    /// Returns how late each renewal of a lease was sent.
    ///
    /// The time from the moment for which the watchdog planned the renewal, about 0.3 of the
    /// [watchdog time-out](crate::Builder::watchdog_timeout) after the grant or the last renewal,
    /// to the write of the renewal that succeeded. Failed attempts before it add to this time.
    /// Renewals that the watchdog sent early, because the servers changed, count as zero.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn renewal_lag(&self) -> &Histogram {
        &self.renewal_lag
    }

    /// Returns the time from the write of each acquire command to the reading of its reply.
    ///
    /// Counts each command with a reply, granted or refused, and each look at a latch by a waiting
    /// call. A call that waits may send several commands. One command for several members of a
    /// [`MultiLock`](crate::MultiLock) counts once.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn round_trip(&self) -> &Histogram {
        &self.round_trip
    }
}

/// Shows every number once, derived ones included.
impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `..`, so that a new number has to be added here.
        let Stats {
            acquired,
            passed_locally,
            lingered,
            freed,
            found_done,
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
            .field("lingered", lingered)
            .field("freed", freed)
            .field("found_done", found_done)
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

/// An event counter.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts what happens in one client.
#[derive(Debug, Default)]
pub(crate) struct StatsRecorder {
    acquired: Counter,
    passed_locally: Counter,
    lingered: Counter,
    freed: Counter,
    found_done: Counter,
    released_after_expiry: Counter,
    lost_expired: Counter,
    lost_gone: Counter,
    lost_held_too_long: Counter,
    refused: Counter,
    timed_out: Counter,
    cancelled: Counter,
    contended: Counter,
    renewal_failures: Counter,
    reconnects: Counter,
    wait_time: HistogramCells,
    hold_time: HistogramCells,
    renewal_lag: HistogramCells,
    round_trip: HistogramCells,
    exporter: Exporter,
}

/// A panic of the program's metrics recorder is caught, and leaves the counters consistent.
impl UnwindSafe for StatsRecorder {}
impl RefUnwindSafe for StatsRecorder {}

impl StatsRecorder {
    /// Returns the label of this text for the handles of the client.
    pub(crate) fn label(&self, text: &str) -> Label {
        self.exporter.label(text)
    }

    /// Counts a hold that a server granted.
    fn acquired(&self) {
        self.acquired.add(1);
    }

    /// Returns whether the client has had a first hold or a first wait.
    pub(crate) fn has_begun(&self) -> bool {
        self.acquired.get() > 0 || self.contended.get() > 0
    }

    /// Counts a hand-off.
    fn passed_locally(&self) {
        self.passed_locally.add(1);
    }

    /// Counts a take-over of a hold that lingered.
    fn taken_over(&self) {
        self.lingered.add(1);
    }

    /// Counts a hold of a process that is gone.
    fn freed(&self) {
        self.freed.add(1);
    }

    /// Counts a call that found its work done.
    fn found_done(&self) {
        self.found_done.add(1);
    }

    /// Counts the end of the last guard of a hold.
    fn released(&self, held: Duration, was_valid: bool) {
        self.hold_time.record(held);
        if !was_valid {
            self.released_after_expiry.add(1);
        }
    }

    /// Counts a lost hold.
    fn lost(&self, reason: LostReason) {
        match reason {
            LostReason::Expired => self.lost_expired.add(1),
            LostReason::Gone => self.lost_gone.add(1),
            LostReason::HeldTooLong => self.lost_held_too_long.add(1),
        }
    }

    /// Counts a renewed lease, and how late its renewal was sent.
    fn renewed(&self, lag: Duration) {
        self.renewal_lag.record(lag);
    }

    /// Counts a failed renewal of one lease.
    fn renewal_failed(&self) {
        self.renewal_failures.add(1);
    }

    /// Counts a connection that replaced a broken one.
    pub(crate) fn reconnected(&self) {
        self.reconnects.add(1);
        self.exporter.reconnected();
    }

    /// Counts an acquire command with a reply, and the time from its write to the reply.
    fn answered(&self, round_trip: Duration) {
        self.round_trip.record(round_trip);
    }

    /// Returns the numbers so far.
    ///
    /// Reads the ends of holds and of waits before their beginnings, so that a gauge does not miss
    /// what began meanwhile.
    pub(crate) fn snapshot(&self) -> Stats {
        let (hold_time, wait_time) = (self.hold_time.snapshot(), self.wait_time.snapshot());
        Stats {
            lost_expired: self.lost_expired.get(),
            lost_gone: self.lost_gone.get(),
            lost_held_too_long: self.lost_held_too_long.get(),
            released_after_expiry: self.released_after_expiry.get(),
            acquired: self.acquired.get(),
            passed_locally: self.passed_locally.get(),
            lingered: self.lingered.get(),
            freed: self.freed.get(),
            found_done: self.found_done.get(),
            refused: self.refused.get(),
            timed_out: self.timed_out.get(),
            cancelled: self.cancelled.get(),
            contended: self.contended.get(),
            renewal_failures: self.renewal_failures.get(),
            reconnects: self.reconnects.get(),
            wait_time,
            hold_time,
            renewal_lag: self.renewal_lag.snapshot(),
            round_trip: self.round_trip.snapshot(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::LostReason;

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
        times(16, || recorder.taken_over());
        times(17, || recorder.freed());
        times(18, || recorder.found_done());
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
            "lingered: 16",
            "freed: 17",
            "found_done: 18",
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
