//! Histories: what several processes do with locks while servers, clients and the ways
//! between them fail, written down and checked.
//!
//! | file | what it gives |
//! | --- | --- |
//! | `record.rs` | what a worker writes down, line by line |
//! | `checks.rs`, `checks/` | what must be true of a history, with tests of its own |
//! | `ledger.rs` | what the locks protect: a store on a server to which nothing happens |
//! | `plan.rs` | what one run is: where, for how long, with which faults and settings |
//! | `worker.rs` | a process that locks, uses the store and says what happened |
//! | `crew.rs` | these processes, from the side of the run |
//! | `site.rs` | the servers of a run, and what can be done to them |
//! | `fault.rs` | the kinds of faults |
//! | `nemesis.rs` | who injects them, from a seed |
//! | `controls.rs` | runs in which something is wrong, and has to be found |
//! | `run.rs` | one run from its start to its report |
//!
//! All moments are nanoseconds of the clock that counts since boot, which all processes of
//! a machine share, so what two of them say can be put in order.

#![allow(
    unreachable_pub,
    reason = "a module of one test binary, with the visibility of its parts written down"
)]

pub mod checks;
pub mod controls;
pub mod crew;
pub mod fault;
pub mod ledger;
pub mod nemesis;
pub mod plan;
pub mod record;
pub mod run;
pub mod site;
pub mod worker;

use rustix::time::{ClockId, clock_gettime};

/// A moment: nanoseconds since this machine was started.
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
