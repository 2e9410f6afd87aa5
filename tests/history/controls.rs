//! Negative controls: runs in which something is known to be wrong, and has to be found. A
//! harness that does not find it finds nothing.

use super::checks::Promise;
use super::nemesis::Fault;
use super::plan::{LONG, Layout, Plan, Work};
use super::run::run;
use super::worker::Kind;
use std::time::Duration;

/// How often a run is tried with another seed: what is wrong shows itself by chance.
const RUNS: u64 = 5;

/// For how long faults are injected in each.
const SPAN: Duration = Duration::from_secs(12);

/// A fault in our own code (`tests/seeded`), which promise it breaks, and where that shows.
pub struct Control {
    pub fault: &'static str,
    promise: Promise,
    plan: fn(u64) -> Plan,
}

/// All of them, in the order of the files in `tests/seeded`.
pub const CONTROLS: [Control; 8] = [
    Control {
        fault: "no-second-try",
        promise: Promise::Wait,
        plan: |seed| Plan { faults: &[Fault::Quiet], ..Plan::messages(seed, SPAN) },
    },
    Control {
        fault: "release-of-others",
        promise: Promise::Exclusion,
        plan: |seed| {
            let work = |work| Work { locks: 1, ..work };
            plain(seed, &[Fault::LateRequests], work)
        },
    },
    Control {
        fault: "deadline-from-reply",
        promise: Promise::Exclusion,
        plan: |seed| {
            let work = |work| Work { kept_to_the_end: 100, ..work };
            plain(seed, &[Fault::DelayReplies], work)
        },
    },
    Control {
        fault: "resent-keeps-lease",
        promise: Promise::Exclusion,
        plan: |seed| {
            let work = |work| Work { kept_to_the_end: 100, fixed: 2000..4000, locks: 4, ..work };
            plain(seed, &[Fault::LateReplies], work)
        },
    },
    Control {
        fault: "no-polls",
        promise: Promise::Wait,
        plan: |seed| {
            let work = |work| Work { leases: [LONG; 2], locks: 6, ..work };
            plain(seed, &[Fault::CutOffSubscribers], work)
        },
    },
    Control {
        fault: "loss-unnoticed",
        promise: Promise::Report,
        plan: |seed| {
            let long = Duration::from_secs(9);
            let work = |work| Work { leases: [long; 2], longest: long / 2, locks: 4, ..work };
            plain(seed, &[Fault::EmptyServer], work)
        },
    },
    Control {
        fault: "token-passed-on",
        promise: Promise::Tokens,
        plan: |seed| {
            let all = Plan::everything(Layout::One, seed, SPAN);
            let work = Work { kinds: vec![Kind::Fenced], locks: 1, threads: 4, ..all.work };
            Plan { faults: &[Fault::Quiet], work, ..all }
        },
    },
    Control {
        fault: "deaf-after-reconnect",
        promise: Promise::Wait,
        plan: |seed| Plan { faults: &[Fault::KillSubscribers], ..Plan::messages(seed, SPAN) },
    },
];

/// Plain locks on one server, with some of the faults.
fn plain(seed: u64, faults: &'static [Fault], change: impl Fn(Work) -> Work) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = change(Work { kinds: vec![Kind::Plain], kept_to_the_end: 0, ..all.work });
    Plan { faults, work, ..all }
}

impl Control {
    /// Runs it until the fault is found. Fails if it never is.
    #[track_caller]
    pub fn assert_found(&self, seed: u64) {
        for seed in seed..seed + RUNS {
            let mut plan = (self.plan)(seed);
            plan.work.seeded = Some(self.fault);
            let report = run(&plan);
            println!("with {}: {report}", self.fault);
            if report.violations.iter().any(|violation| violation.promise == self.promise) {
                return;
            }
        }
        panic!("{} was not found: {:?} seems to be kept", self.fault, self.promise);
    }
}

/// The same store without a look at tokens, used by holders that stand still at times.
pub fn unfenced(seed: u64) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = Work {
        kinds: vec![Kind::Fenced],
        locks: 4,
        longest: Duration::from_millis(300),
        leases: [Duration::from_millis(800); 2],
        fenced: false,
        ..all.work
    };
    Plan { faults: &[Fault::StopWorker], work, ..all }
}

/// Runs that plan until an update is lost. Fails if none ever is.
#[track_caller]
pub fn assert_unfenced_loses_updates(seed: u64) {
    let lost = (seed..seed + RUNS).any(|seed| {
        let report = run(&unfenced(seed));
        println!("unfenced: {report}");
        report.lost_updates().0 > 0
    });
    assert!(lost, "an unfenced store loses nothing: the faults are too few or too short");
}
