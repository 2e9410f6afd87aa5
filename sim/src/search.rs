//! Runs many seeds, and reports those that break a promise.
//!
//! A killed process leaks what was on its stacks, and a fault may crash the program. So seeds run
//! in batches, each in a process of its own.

use crate::number;
use crate::plans;
use crate::run::run;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

/// The seeds of one process in a search.
const BATCH: u64 = 5;

/// Of so many seeds of a file, one runs twice.
const TWICE: usize = 8;

/// The time after which a run without an end counts as endless: a task that loops without a sleep
/// gives the processor to nobody.
const ENDLESS: Duration = Duration::from_secs(300);

/// The sums of many runs, also of their hashes.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    runs: u64,
    faults: u64,
    nanos: u64,
    hash: u64,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.runs += other.runs;
        self.faults += other.faults;
        self.nanos += other.nanos;
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

/// Returns a seed that no earlier search began with.
pub fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Runs seeds in this process. Prints a line for each, and the reports of those that fail.
pub fn batch(from: u64, count: u64, is_traced: bool) -> bool {
    let mut is_good = true;
    for seed in from..from + count {
        println!("begin {seed}");
        let done = run(&plans::of(seed), is_traced);
        if !done.is_good() {
            is_good = false;
            println!("seed {seed} failed\n{done}");
        }
        let outcome = &done.outcome;
        let nanos = outcome.span.as_nanos();
        println!("sums {} {nanos} {}", outcome.counts.faults, outcome.hash);
    }
    is_good
}

/// Does the same work on each core, until it returns `false`.
fn on_all_cores(work: impl Fn() -> bool + Sync) {
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| while work() {});
        }
    });
}

/// Runs seeds on all cores for a while. Returns whether all promises were kept.
pub fn search(seconds: u64, from: u64) -> bool {
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let next = AtomicU64::new(from);
    let (sums, is_good) = (Mutex::new(Sums::default()), AtomicBool::new(true));
    on_all_cores(|| {
        let (good, batch) = run_batch(next.fetch_add(BATCH, Relaxed), BATCH, false);
        is_good.fetch_and(good, Relaxed);
        sums.lock().expect("no panic").add(batch);
        Instant::now() < end
    });
    let Sums { runs, faults, nanos, .. } = *sums.lock().expect("no panic");
    let (virtual_time, real) = (nanos as f64 / 1e9, start.elapsed().as_secs_f64());
    println!(
        "{runs} runs from seed {from}: {virtual_time:.0} virtual seconds and {faults} faults \
         in {real:.0} s",
    );
    is_good.into_inner()
}

/// Runs the seeds of a file on all cores: one per line, and a comment. Some run twice, the second
/// time with a trace and in another process, whose addresses are other ones. Both runs must be the
/// same.
pub fn run_file(file: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    let seeds: Vec<u64> = lines.filter(|line| !line.is_empty()).map(number).collect();
    let (next, is_good) = (AtomicUsize::new(0), AtomicBool::new(true));
    on_all_cores(|| {
        let at = next.fetch_add(1, Relaxed);
        let Some(seed) = seeds.get(at) else { return false };
        let (good, first) = run_batch(*seed, 1, false);
        is_good.fetch_and(good, Relaxed);
        if at % TWICE == 0 && run_batch(*seed, 1, true).1.hash != first.hash {
            println!("seed {seed}: the second run was not the same");
            is_good.store(false, Relaxed);
        }
        true
    });
    println!("{} seeds, {} of them twice", seeds.len(), seeds.len().div_ceil(TWICE));
    is_good.into_inner()
}

/// Runs a batch in a process of its own. Kills it if a run does not end. Returns whether all
/// promises were kept.
fn run_batch(from: u64, count: u64, is_traced: bool) -> (bool, Sums) {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args(["batch", &from.to_string(), &count.to_string(), &is_traced.to_string()]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (sender, receiver) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let (mut last, mut sums) = (from, Sums::default());
    let is_endless = loop {
        let line = match receiver.recv_timeout(ENDLESS) {
            Ok(line) => line,
            Err(error) => break error == mpsc::RecvTimeoutError::Timeout,
        };
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["begin", seed] => last = number(seed),
            ["sums", faults, nanos, hash] => {
                let [faults, nanos, hash] = [faults, nanos, hash].map(number);
                sums.add(Sums { runs: 1, faults, nanos, hash });
            }
            _ => println!("{line}"),
        }
    };
    if is_endless {
        child.kill().expect("our own child");
    }
    let status = child.wait().expect("our own child");
    reading.join().expect("no panic");
    if !status.success() {
        println!("a batch ended with {status}; its last seed was {last}");
    }
    (status.success(), sums)
}
