//! The world of the shared program: simulated threads and channels, and true time.
//!
//! `tests/history/system.rs` has the same names for real workers.

pub use crate::store::Store;
pub use simulated::{channel, process_id, thread};
use std::time::Duration;

/// A moment, in nanoseconds.
pub type Nanos = u64;

/// The moment at which a run begins: a run without a past would be a special case of checks.
const START: Nanos = 3_600_000_000_000;

/// Returns the present, on a clock that is true for all processes.
pub fn now() -> Nanos {
    START + simulated::world::now()
}

/// Returns the present on the clock of the standard library, as the library sees it.
pub fn instant() -> std::time::Instant {
    simulated::clock::instant()
}

/// The interval at which the run looks whether something has come about.
pub const INTERVAL: Duration = Duration::from_millis(10);

/// The longest pause between two looks at a condition.
const LONGEST_INTERVAL: Duration = Duration::from_millis(300);

/// Blocks until a condition holds. Returns `false` if it does not within `span`.
///
/// The pauses between the looks grow: many conditions of a run never hold.
pub fn holds_within(span: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = now() + span.as_nanos() as Nanos;
    let mut pause = INTERVAL;
    loop {
        if holds() {
            return true;
        }
        if end <= now() {
            return false;
        }
        thread::sleep(pause);
        pause = LONGEST_INTERVAL.min(pause * 2);
    }
}
