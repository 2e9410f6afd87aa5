//! The plan of each seed.

use crate::plan::{Layout, Plan, Work};
use std::ops::Range;
use std::time::Duration;

/// How long faults are injected in a run.
const SPAN: Duration = Duration::from_secs(20);

/// The number of plans before settings vary.
const PLANS: u64 = 24;

/// Returns the plan of a seed. Fifteen of 24 seeds have fail-overs or a cluster.
///
/// In a third of the seeds the renewed leases are short, in another third faults outlast the leases.
pub fn of(seed: u64) -> Plan {
    let plan = base(seed);
    match seed / PLANS % 3 {
        0 => plan,
        1 => Plan { work: Work { leases: SHORT, ..plan.work }, ..plan },
        _ => Plan { lasting: LASTING, work: Work { leases: MIDDLE, ..plan.work }, ..plan },
    }
}

/// Leases that a few lost messages end, and leases that end during a fault of [`LASTING`].
const SHORT: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(1500)];
const MIDDLE: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(4)];

/// The length of faults that outlast leases, in milliseconds.
const LASTING: Range<u64> = 300..8000;

fn base(seed: u64) -> Plan {
    match seed % PLANS {
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
