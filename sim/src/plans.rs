//! The plan of each seed.

use crate::plan::{Layout, Plan};
use std::time::Duration;

/// How long faults are injected in a run.
const SPAN: Duration = Duration::from_secs(20);

/// Returns the plan of a seed. Half of the seeds have fail-overs or a cluster.
pub fn of(seed: u64) -> Plan {
    match seed % 24 {
        0 | 1 => Plan::everything(Layout::One, seed, SPAN),
        2 => Plan::waits(Layout::One, seed, SPAN),
        3 => Plan::messages(seed, SPAN),
        4 => Plan::latches(Layout::One, seed, SPAN),
        5 => Plan::elections(Layout::One, seed, SPAN),
        6 => Plan::order(Layout::One, seed, SPAN),
        7 | 8 => Plan::everything(Layout::Five, seed, SPAN),
        9..=13 => Plan::everything(Layout::Sentinel, seed, SPAN),
        14 | 15 => Plan::elections(Layout::Sentinel, seed, SPAN),
        16..=19 => Plan::everything(Layout::Cluster, seed, SPAN),
        20 => Plan::waits(Layout::Cluster, seed, SPAN),
        21 => Plan::latches(Layout::Cluster, seed, SPAN),
        22 => Plan::order(Layout::Cluster, seed, SPAN),
        _ => Plan::elections(Layout::Cluster, seed, SPAN),
    }
}
