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
//!
//! The shared files name each other, `system`, and the harness's `slots` and `subject` as modules
//! of the root, and depend on no crate but leasehold, fastrand and crc. `system.rs` has all that
//! differs between the two worlds: the clock, threads, channels, waits, the number of a process,
//! and the store. A run of the simulation has to be the same with the same seed. So a shared file
//! uses no other clock, thread, lock or channel, no file, socket or process, and no map without an
//! order.
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

use leasehold_harness as harness;

mod checks;
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

use harness::{process, slots, subject};
use kind::Kind;
use plan::{Layout, Plan};
use report::{Counts, Report};
use run::run;
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

/// Injects the faults of servers and processes. The simulation has all faults and plans, and the
/// seeded faults; `script/soak` has all faults and plans.
fn assert_kept(layout: Layout) {
    let mut plan = Plan::everything(layout, seed(), span());
    plan.faults.retain(|fault| fault.is_of_processes());
    plan.work.lingering = if layout == Layout::Five { 0 } else { 20 };
    plan.work.mortal = true;
    if layout != Layout::Five {
        plan.work.kinds.extend([Kind::Once; 2]);
    }
    run(&plan).assert_kept_and_busy();
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
        let both =
            |it: &Layout| [Plan::everything(*it, seed, span()), Plan::waits(*it, seed, span())];
        let mut plans: Vec<_> = layouts.iter().flat_map(both).collect();
        plans.push(Plan::messages(seed, span()));
        plans.extend([Layout::One, Layout::Cluster].map(|it| Plan::latches(it, seed, span())));
        plans.extend([Layout::One, Layout::Cluster].map(|it| Plan::order(it, seed, span())));
        let elected = [Layout::One, Layout::Sentinel, Layout::Cluster];
        plans.extend(elected.map(|it| Plan::elections(it, seed, span())));
        plans.retain(|plan| name.as_ref().is_none_or(|name| plan.name == name));
        for (plan, report) in plans.iter().zip(runs(&plans)) {
            if let Some(report) = &report {
                println!("{report}");
                counts += report.counts;
            }
            if report.is_none_or(|report| !report.violations.is_empty()) {
                failed.push((plan.name, plan.layout, plan.seed));
            }
        }
        seed += 1;
    }
    println!("in all: {counts}");
    assert!(failed.is_empty(), "violations or panics in these plans: {failed:?}");
}

/// Runs several plans at once. Returns the report of each, or `None` if its run panicked.
fn runs(plans: &[Plan]) -> Vec<Option<Report>> {
    std::thread::scope(|scope| {
        let started: Vec<_> = plans.iter().map(|plan| scope.spawn(move || run(plan))).collect();
        started.into_iter().map(|thread| thread.join().ok()).collect()
    })
}
