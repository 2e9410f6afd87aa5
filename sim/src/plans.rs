//! The plan of each seed.

use crate::fault::Fault;
use crate::kind::Kind;
use crate::plan::{Layout, Plan, Work};
use std::ops::Range;
use std::time::Duration;

/// How long faults are injected in a run.
const SPAN: Duration = Duration::from_secs(20);

/// The number of plans before settings vary.
const PLANS: u64 = 24;

/// How long faults are injected in a run of a calm service.
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the plan of a seed. More than half of the seeds have fail-overs or a cluster. One of 24
/// is an hour of a calm service.
///
/// In a third of the others the renewed leases are short, in another third faults outlast the
/// leases. Half of the seeds with all faults have work of their own.
pub fn of(seed: u64) -> Plan {
    let plan = match seed % PLANS {
        0 => Plan::everything(Layout::One, seed, SPAN),
        1 => {
            let layouts = [Layout::One, Layout::Five, Layout::Sentinel, Layout::Cluster];
            Plan::calm(layouts[(seed / PLANS % 4) as usize], seed, HOUR)
        }
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
    };
    if plan.name == "calm" {
        return plan;
    }
    let plan = match seed / PLANS % 3 {
        0 => plan,
        1 => Plan { work: Work { leases: SHORT, ..plan.work }, ..plan },
        _ => Plan { lasting: LASTING, work: Work { leases: MIDDLE, ..plan.work }, ..plan },
    };
    let has_own_work = plan.name == "everything" && seed / PLANS / 3 % 2 == 1;
    if has_own_work { with_own_work(plan) } else { plan }
}

/// Changes the work of a plan as its seed says: rare combinations show what the usual ones hide.
fn with_own_work(plan: Plan) -> Plan {
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let millis = Duration::from_millis;
    let mut kinds = plan.work.kinds.clone();
    rng.shuffle(&mut kinds);
    // Few kinds, so that more callers meet at each lock.
    kinds.truncate(rng.usize(1..=kinds.len()));
    let has_replicas = matches!(plan.layout, Layout::Sentinel | Layout::Cluster);
    let work = Work {
        workers: rng.usize(2..=5),
        threads: rng.usize(1..=4),
        locks: rng.u64(1..=4),
        used_for: millis(*rng.choice(&[20, 300, 2000, 60_000]).expect("four")),
        longest: [
            millis(*rng.choice(&[2, 30, 300]).expect("three")),
            millis(*rng.choice(&[500, 4000]).expect("two")),
        ],
        kept_to_the_end: rng.u8(0..30),
        limited: rng.u8(0..40),
        large: rng.u8(0..100),
        poll_interval: millis(*rng.choice(&[200, 1000, 3000]).expect("three")),
        response_timeout: millis(*rng.choice(&[400, 1000]).expect("two")),
        min_replicas: if has_replicas { rng.u32(0..=1) } else { 0 },
        asked: rng.u8(0..20),
        extended: rng.u8(0..60),
        resized: *rng.choice(&[0, 2, 10]).expect("three"),
        kinds,
        ..plan.work
    };
    let overlapping = *rng.choice(&[0, 50]).expect("two");
    let (told, renewed) = (rng.bool(), *rng.choice(&[100, 100, 50, 150]).expect("four"));
    let lingering = *rng.choice(&[0, 0, 5, 45]).expect("four");
    let mortal = rng.bool();
    // None of these keys, some, or no others.
    let kinds = match rng.u8(0..4) {
        2 if plan.layout != Layout::Five => [work.kinds, vec![Kind::Once]].concat(),
        3 if plan.layout != Layout::Five => vec![Kind::Once],
        _ => work.kinds,
    };
    let mut faults = Fault::of(plan.layout, &kinds);
    faults.push(Fault::LackReplicas);
    let work = Work { told, renewed, lingering, mortal, kinds, ..work };
    if work.told && has_replicas {
        faults.extend([Fault::FullServer, Fault::MoveClock]);
    }
    Plan { faults, overlapping, work, ..plan }
}

/// Leases that a few lost messages end, and leases that end during a fault of [`LASTING`].
const SHORT: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(1500)];
const MIDDLE: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(4)];

/// The length of faults that outlast leases, in milliseconds.
const LASTING: Range<u64> = 300..8000;
