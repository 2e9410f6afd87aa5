//! What the real world gives to the files that are shared with the simulation.
//!
//! The simulation has a file of its own with these names: there, threads, channels and time are
//! simulated. No other shared file names what differs between the two.

/// Channels between the threads of a process.
///
/// Shared files use `bounded`, `unbounded`, `Sender`, `Receiver`, their methods `send`, `recv`,
/// `recv_timeout` and `try_recv`, and `RecvTimeoutError`.
pub use crossbeam_channel as channel;

/// The threads of a process. Shared files use `sleep`, and `scope` with `spawn` and `join`.
pub use std::thread;

/// Blocks until a condition holds, at most for a time. Returns whether it does.
pub use crate::harness::wait::holds_within;

/// The store that the locks protect. Shared files use `open`, `read` and `write`.
pub use crate::store::Store;

use rustix::time::{ClockId, clock_gettime};

/// A moment: nanoseconds since boot.
pub type Nanos = u64;

/// Reads the clock.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).expect("after boot") * 1_000_000_000
        + u64::try_from(time.tv_nsec).expect("nanoseconds are positive")
}

/// Returns the present on the clock of the standard library.
pub fn instant() -> std::time::Instant {
    std::time::Instant::now()
}

/// Returns the number of this process, which no other process of the run has.
pub fn process_id() -> u32 {
    std::process::id()
}
