//! [`Histogram`], and the atomics from which it is read.
//!
//! Bucket 0 counts the value 0. Bucket `n` counts the values from 2^(n-1) to 2^n - 1 nanoseconds.
//! A value costs two atomic additions: one for its bucket, one for the sum.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stats::Counter;
use crate::util::clock;

/// One bucket for each bit length of a 64-bit number.
const BUCKETS: usize = u64::BITS as usize + 1;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A distribution of durations, as [`Stats`](crate::Stats) reports it.
///
/// The value counts durations in buckets, each twice as wide as the bucket before it. So a
/// [`quantile`](Histogram::quantile) is exact up to a factor of two; [`count`](Histogram::count)
/// and [`sum`](Histogram::sum) are exact.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a query changes nothing: use its answer"]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: Duration,
}

impl Histogram {
    /// Returns the number of durations.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all durations, to the nanosecond.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns a duration that the fraction `q` of all durations does not exceed.
    ///
    /// `quantile(0.99)` is the 99th percentile, `quantile(1.0)` a bound of the longest duration.
    /// The result is the upper end of a bucket: at least the exact quantile, and less than twice
    /// of it. Returns `None` without any durations, and if `q` is not a number from 0 to 1.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        if !(0.0..=1.0).contains(&q) {
            return None;
        }
        let rank = rank(q, self.count());
        let mut smaller = 0;
        let bucket = self.buckets.iter().position(|count| {
            smaller += count;
            rank <= smaller && smaller > 0
        });
        bucket.map(|bucket| Duration::from_nanos(upper_end(bucket)))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Histogram");
        fields.field("count", &self.count()).field("sum", &self.sum);
        for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
            if let Some(quantile) = self.quantile(q) {
                fields.field(name, &quantile);
            }
        }
        fields.finish()
    }
}

/// Returns the position of the quantile in the sorted durations, from 1 to `count`.
///
/// May be off by a few positions with more than 2^53 durations.
fn rank(q: f64, count: u64) -> u64 {
    ((q * count as f64).ceil() as u64).clamp(1, count.max(1))
}

/// Returns the largest number of nanoseconds in the bucket.
fn upper_end(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        bucket => u64::MAX >> (BUCKETS - 1 - bucket),
    }
}

/// Returns the bucket of a number of nanoseconds.
fn bucket(nanos: u64) -> usize {
    (u64::BITS - nanos.leading_zeros()) as usize
}

/// The counters of a [`Histogram`], for any number of threads.
#[derive(Debug)]
pub(super) struct HistogramCells {
    buckets: [Counter; BUCKETS],
    /// The sum in nanoseconds, modulo 2^64.
    sum: AtomicU64,
    /// How often `sum` has passed 2^64, which a thousand holds at a time do in seven months.
    overflows: Counter,
}

impl Default for HistogramCells {
    fn default() -> HistogramCells {
        HistogramCells {
            buckets: array::from_fn(|_| Counter::default()),
            sum: AtomicU64::new(0),
            overflows: Counter::default(),
        }
    }
}

impl HistogramCells {
    /// Counts a duration.
    pub(super) fn record(&self, duration: Duration) {
        let nanos = clock::nanos(duration);
        self.buckets[bucket(nanos)].add(1);
        let before = self.sum.fetch_add(nanos, Ordering::Relaxed);
        if before.checked_add(nanos).is_none() {
            self.overflows.add(1);
        }
    }

    /// Returns the durations so far.
    pub(super) fn snapshot(&self) -> Histogram {
        let low = u128::from(self.sum.load(Ordering::Relaxed));
        let nanos = (u128::from(self.overflows.get()) << u64::BITS) + low;
        let seconds = u64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(u64::MAX);
        let rest = u32::try_from(nanos % NANOS_PER_SECOND).unwrap_or(0);
        Histogram {
            buckets: array::from_fn(|bucket| self.buckets[bucket].get()),
            sum: Duration::new(seconds, rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(values: &[u64]) -> Histogram {
        let cells = HistogramCells::default();
        values.iter().for_each(|nanos| cells.record(Duration::from_nanos(*nanos)));
        cells.snapshot()
    }

    /// Returns values of all magnitudes.
    fn value() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0_u32..64).prop_map(|(bits, shift)| bits >> shift)
    }

    proptest! {
        #[test]
        fn a_histogram_agrees_with_a_sorted_list(
            mut values in prop::collection::vec(value(), 1..200),
            q in 0.0..=1.0_f64,
        ) {
            let histogram = histogram(&values);
            values.sort_unstable();
            prop_assert_eq!(histogram.count(), values.len() as u64);
            let sum: u128 = values.iter().copied().map(u128::from).sum();
            prop_assert_eq!(histogram.sum().as_nanos(), sum);
            let index = (q * values.len() as f64).ceil() as usize;
            let exact = values[index.max(1) - 1];
            let quantile = histogram.quantile(q).expect("the histogram is not empty").as_nanos();
            let exact = u128::from(exact);
            prop_assert!(exact <= quantile && quantile <= (2 * exact).saturating_sub(1).max(exact));
        }
    }

    #[test]
    fn quantiles_are_the_upper_ends_of_buckets() {
        let values = histogram(&[0, 1, 5, 7, 1000]);
        let quantiles = [0.0, 0.2, 0.4, 0.6, 0.8, 0.81, 1.0];
        let nanos = quantiles.map(|q| values.quantile(q).expect("a value").as_nanos());
        assert_eq!(nanos, [0, 0, 1, 7, 7, 1023, 1023]);
        assert_eq!(histogram(&[u64::MAX]).quantile(0.5), Some(Duration::from_nanos(u64::MAX)));
    }

    #[test]
    fn there_is_no_quantile_without_values_or_outside_0_to_1() {
        assert_eq!(histogram(&[]).quantile(0.5), None);
        let values = histogram(&[1]);
        for q in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(values.quantile(q), None);
        }
    }

    #[test]
    fn the_debug_form_has_count_sum_and_quantiles() {
        let text = format!("{:?}", histogram(&[1, 7]));
        assert_eq!(text, "Histogram { count: 2, sum: 8ns, p50: 1ns, p99: 7ns }");
        assert_eq!(format!("{:?}", histogram(&[])), "Histogram { count: 0, sum: 0ns }");
    }

    #[test]
    fn durations_of_many_threads_are_counted_exactly() {
        let cells = HistogramCells::default();
        std::thread::scope(|scope| {
            for thread in 1..=8_u64 {
                let cells = &cells;
                scope.spawn(move || {
                    (0..1000).for_each(|_| cells.record(Duration::from_nanos(thread)));
                });
            }
        });
        let histogram = cells.snapshot();
        assert_eq!((histogram.count(), histogram.sum()), (8000, Duration::from_micros(36)));
    }
}
