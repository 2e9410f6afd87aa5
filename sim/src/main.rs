//! The simulation of the whole library: one seed is one run.
//!
//! The workers, their plans, their records and the checks are those of the histories
//! (`tests/history`), which run them as real processes beside real servers.

#![allow(dead_code, unreachable_pub, reason = "the files of the histories are shared")]

#[path = "../../tests/history/checks/mod.rs"]
mod checks;
#[path = "../../tests/history/controls.rs"]
mod controls;
#[path = "../../tests/history/fault.rs"]
mod fault;
#[path = "../../tests/history/kind.rs"]
mod kind;
#[path = "../../tests/history/left.rs"]
mod left;
mod nemesis;
#[path = "../../tests/history/plan.rs"]
mod plan;
#[path = "../../tests/history/program/mod.rs"]
mod program;
#[path = "../../tests/history/record.rs"]
mod record;
#[path = "../../tests/history/report.rs"]
mod report;
mod run;
mod server;
#[path = "../../tests/harness/slots.rs"]
mod slots;
mod store;
#[path = "../../tests/harness/subject.rs"]
mod subject;
mod system;
mod workers;

use plan::{Layout, Plan};
use std::time::{Duration, Instant};

/// How long faults are injected in a run.
const SPAN: Duration = Duration::from_secs(20);

/// Returns the plan of a seed.
fn plan_of(seed: u64) -> Plan {
    match seed % 7 {
        0 => Plan::everything(Layout::One, seed, SPAN),
        1 => Plan::waits(Layout::One, seed, SPAN),
        2 => Plan::messages(seed, SPAN),
        3 => Plan::latches(Layout::One, seed, SPAN),
        4 => Plan::elections(Layout::One, seed, SPAN),
        5 => Plan::order(Layout::One, seed, SPAN),
        _ => Plan::everything(Layout::Five, seed, SPAN),
    }
}

struct Tracer;
impl log::Log for Tracer {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool { true }
    fn log(&self, record: &log::Record<'_>) {
        simulated::world::note(|| format!("{} log {} {}", simulated::world::current_process(), record.level(), record.args()));
    }
    fn flush(&self) {}
}

fn main() {
    log::set_logger(&Tracer).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.to_string();
        default(info);
        run::PANICS.with_borrow_mut(|panics| panics.push(text));
    }));
    let seed = std::env::args().nth(1).map_or(1, |t| t.parse().unwrap());
    let count: u64 = std::env::args().nth(2).map_or(1, |t| t.parse().unwrap());
    let start = Instant::now();
    let mut all = Duration::ZERO;
    let mut faults = 0;
    for seed in seed..seed + count {
        let plan = plan_of(seed);
        let (outcome, report) = run::run(&plan, count == 1);
        if count == 1 { for (at, text) in &outcome.trace { println!("{:>12.6} {text}", *at as f64 / 1e9); } }
        all += outcome.span;
        faults += outcome.counts.faults;
        let bad = outcome.stuck.is_some() || report.as_ref().is_none_or(|r| !r.violations.is_empty());
        if bad || count < 15 {
            println!("{seed}: {:x} {:?} {:?} {:?}", outcome.hash, outcome.span, outcome.counts, outcome.stuck);
            if let Some(report) = report { println!("{report}"); }
        }
    }
    println!("{all:?} and {faults} faults in {:?}", start.elapsed());
}
