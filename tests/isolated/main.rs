//! Tests that count or change what a whole process has, or read its log.

use leasehold_harness as harness;

mod allocations;
mod fork;
mod idle;
mod leftovers;
mod limits;
mod log_keys;
mod loggers;
#[cfg(feature = "metrics")]
mod metrics;
mod panics;
mod permissions;
mod refusals;
mod suspend;
