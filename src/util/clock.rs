//! Moments, deadlines and milliseconds.
//!
//! Moments come from the clock that counts since boot and goes on while the machine is suspended
//! (`CLOCK_BOOTTIME`), because leases expire during suspension too. State machines never read the
//! clock: the time is an argument.
//!
//! A sandbox may refuse that clock. Then moments come from the monotonic clock, which stands still
//! during suspension: a guard may report held for as long as the machine was suspended after the
//! end of its lease.

use std::ops::Add;
use std::time::{Duration, Instant, SystemTime};

use crate::util::system::{OnceLock, clock, per_process};

/// A point in time, in nanoseconds since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The moment before all others.
    pub(crate) const START: Moment = Moment(0);
    /// A moment that no clock reaches: 580 years after boot.
    pub(crate) const END: Moment = Moment(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `self` to `later`, or zero if `later` is earlier.
    pub(crate) fn until(self, later: Moment) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    /// Returns the next moment that is a multiple of `grain`.
    ///
    /// Timers that end at about the same moment then fire together.
    pub(crate) fn rounded_up(self, grain: Duration) -> Moment {
        let grain = nanos(grain).max(1);
        Moment(self.0.div_ceil(grain).saturating_mul(grain))
    }

    /// Returns the moment `span` before this one, or [`Moment::START`].
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

/// Returns whole nanoseconds, at most the largest number.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the current moment. No system call on Linux: the kernel maps the clock into the process.
pub(crate) fn now() -> Moment {
    now_of(|| clock::boot_time().map(Moment), || Moment(clock::monotonic_time()), &SUSPENDED)
}

/// Returns whether moments count the time for which the machine is suspended.
pub(crate) fn counts_suspension() -> bool {
    clock::boot_time().is_some()
}

per_process! {
    /// The time for which the machine had been suspended at the first reading of the clock.
    static SUSPENDED: OnceLock<Duration> = OnceLock::new();
}

/// Returns the boot time, or the monotonic time since the system refuses the former.
///
/// A sandbox may begin in the middle of the program. No moment becomes earlier by that, unless the
/// machine was suspended after the first reading.
fn now_of(
    boot_time: impl Fn() -> Option<Moment>,
    monotonic_time: impl Fn() -> Moment,
    suspended: &OnceLock<Duration>,
) -> Moment {
    let at_first = || boot_time().map_or(Duration::ZERO, |time| monotonic_time().until(time));
    let suspended = *suspended.get_or_init(at_first);
    boot_time().unwrap_or_else(|| monotonic_time() + suspended)
}

/// A time of day, for events.
pub(crate) type WallTime = SystemTime;

/// The start of 1970, UTC.
pub(crate) const EPOCH: WallTime = SystemTime::UNIX_EPOCH;

/// Returns the time of day. This clock may jump.
pub(crate) fn wall_time() -> WallTime {
    clock::wall_time()
}

/// Returns the time of day as a span since 1970, for comparing clocks of machines.
pub(crate) fn unix_time() -> Duration {
    wall_time().duration_since(EPOCH).unwrap_or_default()
}

/// How long a caller waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt without waiting.
    None,
    /// Until that moment.
    Until(Moment),
    /// Without end.
    Forever,
}

impl Patience {
    /// A wait of `span` from `now`; a span beyond the clock is without end.
    pub(crate) fn span(now: Moment, span: Duration) -> Patience {
        match now + span {
            Moment::END => Patience::Forever,
            end => Patience::Until(end),
        }
    }

    /// A wait until `instant`, which belongs to the clock of the standard library.
    pub(crate) fn instant(now: Moment, instant: Instant) -> Patience {
        Patience::span(now, instant.saturating_duration_since(clock::instant()))
    }

    /// Returns the moment at which the wait ends, or [`Moment::END`].
    pub(crate) fn end(self) -> Moment {
        match self {
            Patience::None => Moment::START,
            Patience::Until(end) => end,
            Patience::Forever => Moment::END,
        }
    }

    /// Returns the deadline that the caller gave, or [`Moment::END`].
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

/// Returns whole milliseconds, rounded down: the unit of leases in Redis.
pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Doubles `first` that many `times`, up to `longest`.
pub(crate) fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(longest)
}

/// Returns a span between half of `span` and all of it.
///
/// Callers that pause for the same reason then do not return all at once. `seed` is any number that
/// differs between callers and between calls.
pub(crate) fn jittered(span: Duration, seed: u64) -> Duration {
    let half = nanos(span) / 2;
    Duration::from_nanos(half + scramble(seed) % (half + 1))
}

/// Spreads consecutive numbers over all of `u64`: the finaliser of SplitMix64.
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
    fn the_clock_moves_forward() {
        let first = now();
        assert!(first > Moment::START);
        assert!(now() >= first);
    }

    #[test]
    fn a_refused_clock_is_replaced_without_a_step_back() {
        use std::cell::Cell;
        let (boot, monotonic) = (Cell::new(None), Cell::new(Moment::from_nanos(50)));
        let now =
            |suspended: &OnceLock<Duration>| now_of(|| boot.get(), || monotonic.get(), suspended);
        // Refused from the start.
        let suspended = OnceLock::new();
        assert_eq!(now(&suspended), Moment::from_nanos(50));
        // Refused later.
        let suspended = OnceLock::new();
        boot.set(Some(Moment::from_nanos(1050)));
        assert_eq!(now(&suspended), Moment::from_nanos(1050));
        boot.set(None);
        monotonic.set(Moment::from_nanos(60));
        assert_eq!(now(&suspended), Moment::from_nanos(1060));
    }

    #[test]
    fn a_span_that_overflows_never_ends() {
        assert_eq!(Patience::span(now(), Duration::MAX), Patience::Forever);
        let short = Patience::span(Moment::from_nanos(5), Duration::from_nanos(7));
        assert_eq!(short, Patience::Until(Moment::from_nanos(12)));
    }

    #[test]
    fn a_wait_until_a_past_instant_is_over_at_once() {
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
