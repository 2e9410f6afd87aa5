//! The plan of each seed.

use crate::plan::{Layout, Plan};
use std::time::Duration;

/// How long faults are injected in a run.
const SPAN: Duration = Duration::from_secs(20);

/// Returns the plan of a seed.
pub fn of(seed: u64) -> Plan {
    match seed % 8 {
        0 | 7 => Plan::everything(Layout::One, seed, SPAN),
        1 => Plan::waits(Layout::One, seed, SPAN),
        2 => Plan::messages(seed, SPAN),
        3 => Plan::latches(Layout::One, seed, SPAN),
        4 => Plan::elections(Layout::One, seed, SPAN),
        5 => Plan::order(Layout::One, seed, SPAN),
        _ => Plan::everything(Layout::Five, seed, SPAN),
    }
}
