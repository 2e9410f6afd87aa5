//! Histories: worker processes use locks under faults and record their observations.
//!
//! The checks compare each history with the promises of the library.
//!
//! These files are shared with the simulation of the client, which includes them by their paths:
//!
//! | file | content |
//! | --- | --- |
//! | `kind.rs` | the kinds of locks |
//! | `record.rs` | the records of a worker, one line each |
//! | `fault.rs` | the faults |
//! | `plan.rs` | the plan of a run: servers, faults, work and settings |
//! | `program/` | the program of a worker, which acquires locks and uses the store |
//! | `checks/` | the checks of a history, with tests |
//! | `schedule.rs` | the order of the faults, their lengths and records, from a seed |
//! | `left.rs` | what workers leave on the servers |
//! | `report.rs` | the report of a run |
//! | `controls.rs` | plans with a known bug, which the checks must find |
//!
//! They name each other, `system`, and the harness's `slots` and `subject` as modules of the root,
//! and depend on no crate but leasehold, fastrand and crc. `system.rs` has all that differs between
//! the two worlds: the clock, threads, channels, waits, the number of a process, and the store. A run
//! of the simulation has to be the same with the same seed. So a shared file uses no other clock,
//! thread, lock or channel, no file, socket or process, and no map without an order.
//!
//! These files run the histories with real servers and processes:
//!
//! | file | content |
//! | --- | --- |
//! | `system.rs` | what the real world gives to the shared files |
//! | `store.rs` | the store that the locks protect, on a server without faults |
//! | `worker.rs` | a worker process, which runs the program |
//! | `workers.rs` | the worker processes, as seen by the parent |
//! | `deployment.rs` | the servers of a run |
//! | `nemesis.rs` | the injection of faults |
//! | `run.rs` | a run from its start to its report |
//! | `stalls.rs` | the stalls of the machine |
//!
//! All moments are nanoseconds since boot. The processes of a machine share this clock, so the
//! records of all workers are in one order.

#![allow(unreachable_pub, reason = "items state where they are used")]

#[path = "../harness/mod.rs"]
mod harness;

mod checks;
mod controls;
mod deployment;
mod fault;
mod kind;
mod left;
mod nemesis;
mod plan;
mod program;
mod record;
mod report;
mod run;
mod schedule;
mod stalls;
mod store;
mod system;
mod worker;
mod workers;

use controls::{CONTROLS, Control, unfenced};
use harness::{process, slots, subject};
use plan::{Layout, Plan};
use report::{Counts, Report};
use run::run;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use worker::{WORKER, run_worker};

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == WORKER => run_worker(&role),
        Some(role) => panic!("unknown role: {role:?}"),
    }
}

/// Returns the seed of all runs: `LEASEHOLD_SEED`, or a fixed one.
fn seed() -> u64 {
    number("LEASEHOLD_SEED", 20_261_122)
}

/// Returns the shortest time in which a run injects faults: `LEASEHOLD_FAULTS` seconds.
///
/// A run goes on until each fault was injected once.
fn span() -> Duration {
    Duration::from_secs(number("LEASEHOLD_FAULTS", 20))
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable);
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
fn promises_are_kept_with_one_server() {
    assert_kept(Layout::One);
}

#[test]
fn promises_are_kept_with_sentinels() {
    assert_kept(Layout::Sentinel);
}

#[test]
fn promises_are_kept_in_a_cluster() {
    assert_kept(Layout::Cluster);
}

#[test]
fn promises_are_kept_with_five_servers() {
    assert_kept(Layout::Five);
}

#[test]
fn a_queue_lock_keeps_its_order() {
    for (plan, report) in runs(&[Plan::order(Layout::One, seed(), span())]) {
        report.unwrap_or_else(|| panic!("{plan:?} panicked")).assert_kept_and_busy();
    }
}

#[test]
fn a_latch_opens_at_its_last_count_down() {
    for (plan, report) in runs(&[Plan::latches(Layout::One, seed(), span())]) {
        report.unwrap_or_else(|| panic!("{plan:?} panicked")).assert_kept_with_rounds();
    }
}

fn assert_kept(layout: Layout) {
    for (plan, report) in runs(&plans(layout, seed())) {
        report.unwrap_or_else(|| panic!("{plan:?} panicked")).assert_kept_and_busy();
    }
}

/// Returns the two plans of a layout: all faults, and only faults that excuse no delay.
fn plans(layout: Layout, seed: u64) -> [Plan; 2] {
    [Plan::everything(layout, seed, span()), Plan::waits(layout, seed, span())]
}

/// Returns the control for the seeded fault that `LEASEHOLD_SEEDED_FAULT` names, or all controls.
fn chosen() -> impl Iterator<Item = &'static Control> + Send {
    let one = std::env::var("LEASEHOLD_SEEDED_FAULT").ok();
    CONTROLS.iter().filter(move |control| one.as_ref().is_none_or(|fault| fault == control.fault))
}

/// The number of seeds to try for a known bug, because it shows only by chance.
const RUNS: u64 = 5;

/// The number of plans for seeded faults that run at once. More would stall the machine.
const AT_ONCE: usize = 6;

/// Runs the plans of `seeded_faults_are_found` without the seeded faults.
#[test]
fn promises_are_kept_in_the_plans_of_seeded_faults() {
    let plans: Vec<_> = chosen().map(|control| control.plan(seed())).collect();
    for (plan, report) in plans.chunks(AT_ONCE).flat_map(runs) {
        report.unwrap_or_else(|| panic!("{plan:?} panicked")).assert_kept();
    }
}

/// Runs the unfenced plan until the store loses an update, and at the same time a fenced plan once.
#[test]
fn an_unfenced_store_loses_updates_and_a_fenced_store_does_not() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut fenced = unfenced(seed());
            fenced.work.fenced = true;
            run(&fenced).assert_kept_and_busy();
        });
        let lost = (seed()..seed() + RUNS).any(|seed| {
            let report = run(&unfenced(seed));
            println!("unfenced: {report}");
            report.lost_updates().0 > 0
        });
        assert!(lost, "the unfenced store lost nothing: the faults are too few or too short");
    });
}

/// Looks for the seeded fault that `LEASEHOLD_SEEDED_FAULT` names, or for all.
#[test]
#[ignore = "needs a build with seeded faults: script/seeded makes it and runs this test"]
fn seeded_faults_are_found() {
    let chosen = Mutex::new(chosen());
    let next = || chosen.lock().expect("no panic").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(control) = next() {
                    assert_found(control, seed());
                }
            });
        }
    });
}

/// Runs the plan of a seeded fault with several seeds. Fails if no run finds the fault.
#[track_caller]
fn assert_found(control: &Control, seed: u64) {
    let Control { fault, promise, .. } = control;
    for seed in seed..seed + RUNS {
        let report = run(&control.seeded(seed));
        println!("with {fault}: {report}");
        if report.violations.iter().any(|violation| violation.promise == *promise) {
            return;
        }
    }
    panic!("{fault} was not found: no run broke {promise:?}");
}

/// Runs the plans of all layouts at once, with one seed after the other. `LEASEHOLD_PLAN` names
/// the only plan to run.
#[test]
#[ignore = "takes LEASEHOLD_SOAK minutes: script/soak runs this test"]
fn soak() {
    let end = Instant::now() + Duration::from_secs(60 * number("LEASEHOLD_SOAK", 10));
    let (mut counts, mut failed) = (Counts::default(), Vec::new());
    let (mut seed, name) = (seed(), std::env::var("LEASEHOLD_PLAN").ok());
    while Instant::now() < end {
        let layouts = [Layout::One, Layout::Sentinel, Layout::Cluster, Layout::Five];
        let mut plans: Vec<_> = layouts.iter().flat_map(|layout| plans(*layout, seed)).collect();
        plans.push(Plan::messages(seed, span()));
        plans.extend([Layout::One, Layout::Cluster].map(|it| Plan::latches(it, seed, span())));
        plans.extend([Layout::One, Layout::Cluster].map(|it| Plan::order(it, seed, span())));
        let elected = [Layout::One, Layout::Sentinel, Layout::Cluster];
        plans.extend(elected.map(|it| Plan::elections(it, seed, span())));
        plans.retain(|plan| name.as_ref().is_none_or(|name| plan.name == name));
        for (plan, outcome) in runs(&plans) {
            match outcome {
                Some(report) => {
                    println!("{report}");
                    counts += report.counts;
                    failed.extend((!report.violations.is_empty()).then_some(plan));
                }
                None => failed.push(plan),
            }
        }
        seed += 1;
    }
    println!("in all: {counts}");
    let failed: Vec<_> = failed.iter().map(|p| (p.name, p.layout, p.seed)).collect();
    assert!(failed.is_empty(), "violations or panics in these plans: {failed:?}");
}

/// Runs several plans at once. Returns the report of each, or `None` if its run panicked.
fn runs(plans: &[Plan]) -> Vec<(Plan, Option<Report>)> {
    std::thread::scope(|scope| {
        let start = |plan| (plan, scope.spawn(move || run(plan)));
        let started: Vec<_> = plans.iter().map(start).collect();
        started.into_iter().map(|(plan, thread)| (plan.clone(), thread.join().ok())).collect()
    })
}
