//! The clocks of the current process.

use crate::world;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// The time of day at which each run begins, in microseconds since 1970.
pub const START: i64 = 1_700_000_000_000_000;

/// Returns the nanoseconds since the machine of the current process was started.
///
/// Each call takes a microsecond, so that a loop that waits for a moment ends.
pub fn since_boot() -> u64 {
    world::read_clock()
}

/// Returns the time of day on the clock of the current process.
pub fn wall_time() -> SystemTime {
    let micros = u64::try_from(world::read_wall_clock()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Returns an instant for deadlines: as far behind other instants as the process's clock says.
pub fn instant() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now) + Duration::from_nanos(since_boot())
}

/// Blocks the current task for `span` on the clock of its process.
pub fn sleep(span: Duration) {
    let end = since_boot().saturating_add(nanos(span));
    while world::peek_clock() < end {
        world::park(Some(end));
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
