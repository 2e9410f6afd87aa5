//! Negative controls: runs in which something is known to be wrong, and has to be found. A
//! harness that does not find it finds nothing.

use super::checks::Promise;
use super::fault::Fault;
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
pub const CONTROLS: [Control; 10] = [
    Control { fault: "no-second-try", promise: Promise::Wait, plan: no_second_try },
    Control { fault: "release-of-others", promise: Promise::Exclusion, plan: release_of_others },
    Control {
        fault: "deadline-from-reply",
        promise: Promise::Exclusion,
        plan: deadline_from_reply,
    },
    Control { fault: "resent-keeps-lease", promise: Promise::Exclusion, plan: resent_keeps_lease },
    Control { fault: "no-polls", promise: Promise::Wait, plan: no_polls },
    Control { fault: "loss-unnoticed", promise: Promise::Report, plan: loss_unnoticed },
    Control { fault: "token-passed-on", promise: Promise::Tokens, plan: token_passed_on },
    Control { fault: "deaf-after-reconnect", promise: Promise::Wait, plan: deaf_after_reconnect },
    Control { fault: "no-renewals", promise: Promise::Kept, plan: no_renewals },
    Control { fault: "release-sent-once", promise: Promise::Leftovers, plan: release_sent_once },
];

/// A release between a refusal and its subscription is heard by nobody.
fn no_second_try(seed: u64) -> Plan {
    Plan { faults: vec![Fault::Quiet], ..Plan::messages(seed, SPAN) }
}

/// A release arrives when its hold is over and another has the lock.
fn release_of_others(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::LateRequests], |work| Work { locks: 1, ..work });
    Plan { lasting: 1500..2500, ..plan }
}

/// Holders whose answers were late hold their locks for longer than the server.
fn deadline_from_reply(seed: u64) -> Plan {
    plain(seed, vec![Fault::DelayReplies], |work| Work { kept_to_the_end: 100, ..work })
}

/// So do those whose first answer was cut off, and who have asked again.
fn resent_keeps_lease(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::CutReplies], |work| Work {
        locks: 6,
        kept_to_the_end: 100,
        fixed: 300..800,
        ..work
    });
    Plan { quiet: 100..300, lasting: 100..200, ..plan }
}

/// Messages between processes are lost for longer than the poll interval and the time-out.
fn no_polls(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::CutOffSubscribers], |work| Work {
        workers: 8,
        threads: 1,
        locks: 3,
        used_for: Duration::from_millis(30),
        longest: [Duration::from_millis(15); 2],
        leases: [LONG; 2],
        ..work
    });
    Plan { quiet: 200..500, lasting: 5000..6000, ..plan }
}

/// A server forgets holds that would last for long.
fn loss_unnoticed(seed: u64) -> Plan {
    let (lease, held) = (Duration::from_secs(15), Duration::from_secs(14));
    let plan = plain(seed, vec![Fault::EmptyServer], |work| Work {
        leases: [lease; 2],
        longest: [held; 2],
        locks: 8,
        ..work
    });
    // Once, and then none that would make the news late.
    Plan { span: Duration::from_secs(1), lasting: 300..500, ..plan }
}

/// Threads of one process have a lock one after the other.
fn token_passed_on(seed: u64) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = Work { kinds: vec![Kind::Fenced], locks: 1, threads: 4, ..all.work };
    Plan { faults: vec![Fault::Quiet], work, ..all }
}

/// Listeners lose their connections while others wait.
fn deaf_after_reconnect(seed: u64) -> Plan {
    Plan { faults: vec![Fault::KillSubscribers], ..Plan::messages(seed, SPAN) }
}

/// Holds last for longer than their leases.
fn no_renewals(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::Quiet], |work| Work {
        longest: [Duration::from_secs(3); 2],
        locks: 8,
        ..work
    });
    Plan { span: Duration::from_secs(6), ..plan }
}

/// Releases do not get through at first, and no lease ends in time.
fn release_sent_once(seed: u64) -> Plan {
    let faults = vec![Fault::HalfOpen, Fault::CutRequests];
    plain(seed, faults, |work| Work { leases: [LONG; 2], locks: 8, ..work })
}

/// Plain locks on one server, with some of the faults.
fn plain(seed: u64, faults: Vec<Fault>, change: impl Fn(Work) -> Work) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = change(Work {
        kinds: vec![Kind::Plain],
        kept_to_the_end: 0,
        leases: [Duration::from_millis(1500); 2],
        longest: [Duration::from_millis(30), Duration::from_secs(1)],
        ..all.work
    });
    Plan { name: "plain locks", faults, work, ..all }
}

impl Control {
    /// The run in which it shows, without the fault: there must be nothing to find.
    pub fn sound(&self, seed: u64) -> Plan {
        (self.plan)(seed)
    }

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
fn unfenced(seed: u64) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = Work {
        kinds: vec![Kind::Fenced],
        locks: 4,
        longest: [Duration::from_millis(300); 2],
        leases: [Duration::from_millis(800); 2],
        fenced: false,
        ..all.work
    };
    let name = "unfenced";
    Plan {
        name,
        faults: vec![Fault::StopWorker],
        quiet: 500..1500,
        lasting: 1000..2500,
        work,
        ..all
    }
}

/// Runs that plan until an update is lost, and beside it the same with a look at tokens. Fails if
/// none ever is, or one in the latter.
#[track_caller]
pub fn assert_only_tokens_help(seed: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut fenced = unfenced(seed);
            fenced.work.fenced = true;
            run(&fenced).assert_well();
        });
        let lost = (seed..seed + RUNS).any(|seed| {
            let report = run(&unfenced(seed));
            println!("unfenced: {report}");
            report.lost_updates().0 > 0
        });
        assert!(lost, "an unfenced store loses nothing: the faults are too few or too short");
    });
}
