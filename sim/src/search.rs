//! Searches for seeds that break a promise.
//!
//! A killed process leaks what was on its stacks, and a fault may crash the program. So seeds run in
//! batches, each in a process of its own.

use crate::plans;
use crate::run::run;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The seeds of one process.
const BATCH: u64 = 20;

/// The sums of many runs.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    runs: u64,
    faults: u64,
    nanos: u64,
}

/// Returns a seed that no earlier search began with.
pub fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Runs seeds in this process. Prints a line for each, and the reports of those that fail.
pub fn batch(from: u64, count: u64) -> bool {
    let mut is_good = true;
    for seed in from..from + count {
        let done = run(&plans::of(seed), false);
        if !done.is_good() {
            is_good = false;
            println!("seed {seed} failed\n{done}");
        }
        println!("sums {} {}", done.outcome.counts.faults, done.outcome.span.as_nanos());
    }
    is_good
}

/// Runs seeds on all cores for a while. Returns whether all promises were kept.
pub fn search(seconds: u64, from: u64) -> bool {
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let next = AtomicU64::new(from);
    let (sums, is_good) = (Mutex::new(Sums::default()), Mutex::new(true));
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while Instant::now() < end {
                    let from = next.fetch_add(BATCH, Ordering::Relaxed);
                    let good = run_batch(from, &sums);
                    *is_good.lock().expect("no panic") &= good;
                }
            });
        }
    });
    let Sums { runs, faults, nanos } = *sums.lock().expect("no panic");
    let (virtual_time, real) = (nanos as f64 / 1e9, start.elapsed().as_secs_f64());
    println!(
        "{runs} runs from seed {from}: {virtual_time:.0} virtual seconds and {faults} faults \
         in {real:.0} s",
    );
    is_good.into_inner().expect("no panic")
}

/// Runs a batch in a process of its own.
fn run_batch(from: u64, sums: &Mutex<Sums>) -> bool {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args(["batch", &from.to_string(), &BATCH.to_string()]).stderr(Stdio::inherit());
    let output = command.output().expect("the program starts");
    let mut sums = sums.lock().expect("no panic");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["sums", faults, nanos] => {
                sums.runs += 1;
                sums.faults += faults.parse::<u64>().unwrap_or(0);
                sums.nanos += nanos.parse::<u64>().unwrap_or(0);
            }
            _ => println!("{line}"),
        }
    }
    if !output.status.success() {
        println!("the batch of {BATCH} seeds from {from} ended with {}", output.status);
    }
    output.status.success()
}

/// Runs the seeds of a file: one per line, and a comment. Each runs twice and must be the same.
pub fn run_file(file: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    let seeds: Vec<u64> =
        lines.filter(|line| !line.is_empty()).map(|line| line.parse().expect("a seed")).collect();
    let mut is_good = true;
    for seed in &seeds {
        let [first, second] = [0, 1].map(|_| run(&plans::of(*seed), false));
        if !first.is_good() {
            println!("seed {seed} failed\n{first}");
            is_good = false;
        }
        if first.outcome.hash != second.outcome.hash {
            println!("seed {seed}: the second run was not the same");
            is_good = false;
        }
    }
    println!("{} seeds, each twice", seeds.len());
    is_good
}
