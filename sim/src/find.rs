//! Looks for a seeded fault: a proof that the simulation finds what it should find.

use crate::controls::{CONTROLS, Control, unfenced};
use crate::plan::{Plan, Work};
use crate::run::run;
use std::time::{Duration, Instant};

/// The most runs of one search.
const MOST: u64 = 200;

/// The distance between the first seeds of two searches.
const APART: u64 = 1_000_000;

/// Prints the names of the seeded faults that the simulation finds.
pub fn list() -> bool {
    for control in &CONTROLS {
        println!("{}", control.fault);
    }
    true
}

fn control(fault: &str) -> &'static Control {
    let found = CONTROLS.iter().find(|control| control.fault == fault);
    found.unwrap_or_else(|| panic!("the simulation looks for no seeded fault {fault}"))
}

/// Returns the plan that shows a seeded fault.
pub fn plan(fault: &str, seed: u64) -> Plan {
    control(fault).plan(seed)
}

/// Counts the runs until a seeded fault breaks the promise of its control, in several searches.
/// Prints their median.
///
/// The caller names the fault in `LEASEHOLD_SEEDED` too. Returns whether all searches found it.
pub fn find(fault: &str, searches: u64) -> bool {
    let control = control(fault);
    let mut found: Vec<(u64, Duration, Duration)> = Vec::new();
    for search in 0..searches {
        let (first, start, mut spent) = (search * APART, Instant::now(), Duration::ZERO);
        for count in 1..=MOST {
            let done = run(&control.plan(first + count), false);
            spent += done.outcome.span;
            if done.breaks(control.promise) {
                found.push((count, spent, start.elapsed()));
                break;
            }
        }
    }
    found.sort();
    let median = found.get(found.len() / 2);
    let text = median.map_or("not found".to_owned(), |(runs, spent, real)| {
        let [spent, real] = [spent, real].map(Duration::as_secs_f64);
        format!("{runs} runs, {spent:.0} virtual s, {real:.2} s")
    });
    println!("{fault}: found by {} of {searches} searches, median {text}", found.len());
    found.len() as u64 == searches
}

/// Runs the plans of all controls without the seeded faults, with several seeds each: nothing may
/// be found. A store that ignores fencing tokens must lose updates, and another must not.
pub fn run_without_faults(runs: u64) -> bool {
    let mut is_good = true;
    for seed in 0..runs {
        for control in &CONTROLS {
            let done = run(&control.plan(seed), false);
            if !done.is_good() {
                println!("the plan of {}, without it, seed {seed}: {done}", control.fault);
                is_good = false;
            }
        }
    }
    let lost = |fenced: bool| {
        let mut lost = 0;
        for seed in 0..runs {
            let plan = unfenced(seed);
            let plan = Plan { work: Work { fenced, ..plan.work }, ..plan };
            if let Some(report) = run(&plan, false).report {
                lost += report.lost_updates().0;
            }
        }
        lost
    };
    let (unfenced, fenced) = (lost(false), lost(true));
    println!(
        "{} controls, {runs} runs each; {unfenced} updates lost without tokens, {fenced} with",
        CONTROLS.len()
    );
    is_good && unfenced > 0 && fenced == 0
}
