//! The clock of histories.

use rustix::time::{ClockId, clock_gettime};

/// A moment: nanoseconds since boot.
pub type Nanos = u64;

/// Reads the clock.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).expect("after boot") * 1_000_000_000
        + u64::try_from(time.tv_nsec).expect("nanoseconds are positive")
}

/// Whole milliseconds as nanoseconds.
pub const fn millis(count: u64) -> Nanos {
    count * 1_000_000
}
