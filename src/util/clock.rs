//! Moments, deadlines and milliseconds.
//!
//! Every moment is read from the clock that counts since boot and goes on while
//! the machine is suspended (`CLOCK_BOOTTIME`), because a lease goes on too. The
//! state machines never read it: they are told what time it is.

use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

use crate::util::platform;

/// A point in time, in nanoseconds since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The moment that no clock has reached yet: for "not before anything".
    pub(crate) const START: Moment = Moment(0);
    /// The moment that no clock will reach: 580 years after boot.
    pub(crate) const END: Moment = Moment(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// The time from `self` to `later`, zero if that is behind.
    pub(crate) fn until(self, later: Moment) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    /// The next moment that is a multiple of `grain`, so that what is due at about the
    /// same time becomes due together.
    pub(crate) fn rounded_up(self, grain: Duration) -> Moment {
        let grain = nanos(grain).max(1);
        Moment(self.0.div_ceil(grain).saturating_mul(grain))
    }

    /// The moment `span` before this one, or the start.
    pub(crate) fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(span)))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(span)))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the clock. No system call on Linux: the kernel maps it into the process.
pub(crate) fn now() -> Moment {
    let time = rustix::time::clock_gettime(platform::CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// A time of day, as events have it.
pub(crate) type WallTime = SystemTime;

/// The beginning of 1970.
pub(crate) const EPOCH: WallTime = SystemTime::UNIX_EPOCH;

/// The time of day as this machine knows it, which may jump.
pub(crate) fn wall_time() -> WallTime {
    SystemTime::now()
}

/// The time since 1970 as this machine knows it, which may jump: to compare clocks.
pub(crate) fn wall_clock() -> Duration {
    wall_time().duration_since(EPOCH).unwrap_or_default()
}

/// Until when a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One question, no waiting.
    None,
    /// Waits until that moment.
    Until(Moment),
    /// Waits for ever.
    Forever,
}

impl Patience {
    /// A wait of `span` from `now`; one that no clock can count is for ever.
    pub(crate) fn span(now: Moment, span: Duration) -> Patience {
        match now + span {
            Moment::END => Patience::Forever,
            end => Patience::Until(end),
        }
    }

    /// A wait until `instant`, which lies on the standard library's clock.
    pub(crate) fn instant(now: Moment, instant: Instant) -> Patience {
        Patience::span(now, instant.saturating_duration_since(Instant::now()))
    }

    /// The moment at which the wait ends, if it does.
    pub(crate) fn end(self) -> Moment {
        match self {
            Patience::None => Moment::START,
            Patience::Until(end) => end,
            Patience::Forever => Moment::END,
        }
    }

    /// The deadline of the caller, if it named one.
    pub(crate) fn deadline(self) -> Moment {
        match self {
            Patience::Until(end) => end,
            Patience::None | Patience::Forever => Moment::END,
        }
    }

    pub(crate) fn is_over(self, now: Moment) -> bool {
        self.end() <= now
    }
}

/// Whole milliseconds, rounded down: what Redis counts leases in.
pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Twice as long as `first` for each of so many `times`, but never longer than `longest`.
pub(crate) fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(longest)
}

/// A span between half of `span` and all of it, so that those who wait for the
/// same thing do not all come back at once. `seed` is any number that differs
/// between callers and between calls.
pub(crate) fn jittered(span: Duration, seed: u64) -> Duration {
    let half = nanos(span) / 2;
    Duration::from_nanos(half + scramble(seed) % (half + 1))
}

/// Spreads consecutive numbers over all of `u64` (the finaliser of SplitMix64).
fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward() {
        let first = now();
        assert!(first > Moment::START);
        assert!(now() >= first);
    }

    #[test]
    fn a_span_that_overflows_means_for_ever() {
        assert_eq!(Patience::span(now(), Duration::MAX), Patience::Forever);
        let short = Patience::span(Moment::from_nanos(5), Duration::from_nanos(7));
        assert_eq!(short, Patience::Until(Moment::from_nanos(12)));
    }

    #[test]
    fn an_instant_that_has_passed_is_over_at_once() {
        let at = now();
        assert!(Patience::instant(at, Instant::now()).is_over(at));
        assert!(!Patience::Forever.is_over(Moment::from_nanos(u64::MAX - 1)));
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_varies() {
        let span = Duration::from_millis(100);
        let all: Vec<_> = (0..200).map(|seed| jittered(span, seed)).collect();
        assert!(all.iter().all(|d| *d >= span / 2 && *d <= span));
        assert!(all.iter().collect::<std::collections::HashSet<_>>().len() > 190);
        assert_eq!(jittered(Duration::ZERO, 7), Duration::ZERO);
    }

    #[test]
    fn moments_are_rounded_up_to_a_grain() {
        let (grain, rounded) = (Duration::from_nanos(10), |n| Moment::from_nanos(n));
        assert_eq!(rounded(11).rounded_up(grain), rounded(20));
        assert_eq!(rounded(20).rounded_up(grain), rounded(20));
        assert_eq!(rounded(7).rounded_up(Duration::ZERO), rounded(7));
        assert_eq!(Moment::END.rounded_up(grain), Moment::END);
    }

    #[test]
    fn milliseconds_are_rounded_down() {
        assert_eq!(millis(Duration::from_micros(10_900)), 10);
        assert_eq!(millis(Duration::MAX), i64::MAX);
    }
}
