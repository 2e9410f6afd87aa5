//! A run from its start to its report.

use crate::checks::{Bounds, History, Promise};
use crate::deployment::Deployment;
use crate::frees;
use crate::leases;
use crate::left;
use crate::nemesis::Nemesis;
use crate::plan::Plan;
use crate::program::{Arguments, acquire_all_once};
use crate::record::millis;
use crate::report::Report;
use crate::store;
use crate::system::{Nanos, now};
use crate::watch;
use crate::workers::{DRIFT, Workers};
use simulated::net;
use simulated::world::{self, Outcome, Settings};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The delay that slow packets and the steps of clocks may add.
const SLACK: Nanos = millis(50);

/// A task gives way at one of this many steps on a mutex or a channel.
pub const PREEMPTED: u64 = 16;

/// The most attempts of a process to connect to a server within one second, without those of calls.
const MOST_ATTEMPTS: usize = 120;

/// The virtual time after which a run has failed, beyond the time of its faults.
pub const LONGEST: Duration = Duration::from_secs(600);

/// A run that has ended.
pub struct Run {
    pub outcome: Outcome,
    /// `None` if the run got stuck, as is the history.
    pub report: Option<Report>,
    pub history: Option<History>,
}

impl Run {
    /// Whether the run came to its end, and all promises were kept.
    pub fn is_good(&self) -> bool {
        let is_kept = |report: &Report| report.violations.is_empty();
        self.outcome.stuck.is_none() && self.report.as_ref().is_some_and(is_kept)
    }

    /// Whether the run broke this promise.
    pub fn breaks(&self, promise: Promise) -> bool {
        let violations = self.report.iter().flat_map(|report| &report.violations);
        violations.map(|violation| violation.promise).any(|it| it == promise)
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { hash, span, counts, stuck, .. } = &self.outcome;
        writeln!(f, "{hash:016x} after {span:.1?}: {counts:?}")?;
        if let Some(stuck) = stuck {
            writeln!(f, "{stuck}")?;
        }
        if let Some(report) = &self.report {
            write!(f, "{report}")?;
        }
        Ok(())
    }
}

/// Runs a plan and checks its history.
pub fn run(plan: &Plan, is_traced: bool) -> Run {
    let judged = Rc::new(RefCell::new(None));
    let place = Rc::clone(&judged);
    let longest = LONGEST + 2 * plan.span;
    let settings = Settings { seed: plan.seed, preempted: PREEMPTED, is_traced, longest };
    let plan = plan.clone();
    watch::take_panics();
    store::take_accounts();
    let mut outcome = world::run(settings, move || *place.borrow_mut() = Some(judge(&plan)));
    if let Some(stuck) = &mut outcome.stuck {
        // A worker that panicked keeps the run waiting.
        for panic in watch::take_panics() {
            stuck.push_str(&format!("\n{panic}"));
        }
    }
    let (report, history) = judged.borrow_mut().take().unzip();
    Run { outcome, report, history }
}

/// Runs a plan inside of a simulated world.
fn judge(plan: &Plan) -> (Report, History) {
    let deployment = Deployment::start(plan);
    let address = |arguments: &mut Arguments| deployment.add_addresses(arguments);
    leases::watch(&deployment, plan.layout);
    frees::watch(&deployment, plan.layout);
    let mut workers = Workers::start(plan, &address);
    let mut nemesis = Nemesis::new(plan, &deployment);
    let end = now() + plan.span.as_nanos() as Nanos;
    while now() < end || !nemesis.schedule.has_injected_all() {
        nemesis.inject(&mut workers);
    }
    nemesis.schedule.rest();
    workers.stop_work();
    let mut left = left::by_idle_workers(plan, || deployment.serving());
    let counts = left::counts(|| deployment.serving());
    let bounds = Bounds { drift: DRIFT, ..Bounds::of(plan, SLACK) };
    let mut history = History {
        disturbances: nemesis.schedule.disturbances,
        bounds,
        counts,
        free: frees::all(),
        ..History::default()
    };
    for (worker, records) in workers.finish() {
        history.add(worker, records);
    }
    left.append(&mut workers.leftovers);
    if left.is_empty() {
        let arguments = Arguments::beside_workers(plan, address);
        let may_be_capacity = |lock: &str, free| history.may_have_capacity(lock, free);
        left = left::by_ended_workers(&deployment.serving(), may_be_capacity, |abandoned| {
            let acquire = move || acquire_all_once(&arguments, abandoned);
            let acquiring = world::spawn_in(world::start_process(0), "main", acquire);
            acquiring.join().unwrap_or_else(|_| vec!["the last worker panicked".to_owned()])
        });
    }
    let mut report = Report::of(plan, &history, store::take_accounts(), &left);
    report.violations.extend(leases::violations(&history));
    report.violations.append(&mut workers.violations);
    let busiest = net::busiest_connecting();
    if busiest.unexplained > MOST_ATTEMPTS {
        let text = format!("too many attempts to connect: {busiest:?}");
        report.violations.push(Promise::Pauses.violation(text));
    }
    let panics = watch::take_panics();
    report.violations.extend(panics.iter().map(|text| Promise::Answer.violation(text)));
    (report, history)
}
