//! The simulation of the whole library: one seed is one run.
//!
//! The workers, their plans, their records and the checks are those of the histories
//! (`tests/history`), which run them as real processes beside real servers. Here they run beside
//! simulated servers, in virtual time.
//!
//! | command | what it does |
//! | --- | --- |
//! | `trace SEED` | shows one run: what was sent, what the workers saw, what was broken |
//! | `trace FAULT SEED` | does so with the plan for a seeded fault |
//! | `events SEED [LOCK]` | prints what `leasehold timeline` draws of a run, or of one lock |
//! | `search SECONDS [FROM]` | runs seeds on all cores for a while, prints those that fail |
//! | `seeds FILE` | runs the seeds that a file names, one per line, some of them twice |
//! | `batch FROM COUNT TRACED` | runs some seeds in this process, for these two |
//! | `faults` | prints the names of the seeded faults |
//! | `find FAULT SEARCHES` | counts the runs until a seeded fault is found (`script/seeded`) |
//! | `cuts` | cuts each request and each reply of some calls after each byte |
//! | `controls RUNS` | runs the plans for seeded faults without these |

#![allow(dead_code, unreachable_pub, reason = "the files of the histories are shared")]

#[path = "../../tests/history/checks/mod.rs"]
mod checks;
mod controls;
mod cuts;
mod deployment;
#[path = "../../tests/history/fault.rs"]
mod fault;
mod find;
mod frees;
#[path = "../../tests/history/kind.rs"]
mod kind;
mod leases;
mod ledger;
#[path = "../../tests/history/left.rs"]
mod left;
mod nemesis;
mod peers;
mod picture;
#[path = "../../tests/history/plan.rs"]
mod plan;
mod plans;
#[path = "../../tests/history/program/mod.rs"]
mod program;
#[path = "../../tests/history/record.rs"]
mod record;
#[path = "../../tests/history/report.rs"]
mod report;
mod run;
#[path = "../../tests/history/schedule.rs"]
mod schedule;
mod search;
mod server;
#[path = "../../tests/harness/slots.rs"]
mod slots;
mod store;
#[path = "../../tests/harness/subject.rs"]
mod subject;
mod system;
mod watch;
mod workers;

use plan::Plan;
use run::run;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: simulated::memory::Counting = simulated::memory::Counting;

fn main() -> ExitCode {
    watch::install();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_good = match words[..] {
        ["trace", seed] => trace(&plans::of(number(seed))),
        ["trace", fault, seed] => trace(&find::plan(fault, number(seed))),
        ["events", seed] => events(number(seed), None),
        ["events", seed, lock] => events(number(seed), Some(lock)),
        ["search", seconds] => search::search(number(seconds), search::new_seed()),
        ["search", seconds, from] => search::search(number(seconds), number(from)),
        ["batch", from, count, traced] => {
            search::batch(number(from), number(count), traced == "true")
        }
        ["seeds", file] => search::run_file(file),
        ["faults"] => find::list(),
        ["cuts"] => cuts::run_all(),
        ["controls", runs] => find::run_without_faults(number(runs)),
        ["find", fault, searches] => find::find(fault, number(searches)),
        _ => {
            eprintln!("usage: script/sim SEED, or see the head of sim/src/main.rs");
            return ExitCode::from(2);
        }
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

/// Prints the events of one run. Returns whether all promises were kept.
fn events(seed: u64, lock: Option<&str>) -> bool {
    let done = run(&plans::of(seed), false);
    if let Some(history) = &done.history {
        picture::print(history, lock);
    }
    eprintln!("{done}");
    done.is_good()
}

/// Shows one run. Returns whether all promises were kept.
fn trace(plan: &Plan) -> bool {
    let done = run(plan, true);
    for (at, text) in &done.outcome.trace {
        println!("{:>12.6} {text}", *at as f64 / 1e9);
    }
    println!("{done}");
    done.is_good()
}
