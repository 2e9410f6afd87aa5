//! Searches for seeds that break a promise.
//!
//! A killed process leaks what was on its stacks, and a fault may crash the program. So seeds run in
//! batches, each in a process of its own.

use crate::number;
use crate::plans;
use crate::run::run;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

/// The seeds of one process.
const BATCH: u64 = 20;

/// The time after which a run without an end counts as endless: a task that loops without a sleep
/// gives the processor to nobody.
const ENDLESS: Duration = Duration::from_secs(300);

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
        println!("begin {seed}");
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

/// Starts this program again.
fn start(words: &[&str]) -> Child {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::piped()).spawn().expect("the program starts")
}

/// Runs a batch in a process of its own. Kills it if a run does not end.
fn run_batch(from: u64, sums: &Mutex<Sums>) -> bool {
    let mut child = start(&["batch", &from.to_string(), &BATCH.to_string()]);
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (sender, receiver) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        lines.map_while(Result::ok).all(|line| sender.send(line).is_ok())
    });
    let mut last = from;
    let is_endless = loop {
        let line = match receiver.recv_timeout(ENDLESS) {
            Ok(line) => line,
            Err(error) => break error == mpsc::RecvTimeoutError::Timeout,
        };
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["begin", seed] => last = number(seed),
            ["sums", faults, nanos] => {
                let mut sums = sums.lock().expect("no panic");
                sums.runs += 1;
                sums.faults += number(faults);
                sums.nanos += number(nanos);
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
    status.success()
}

/// Prints the hash of a run with a trace.
pub fn print_hash(seed: u64) -> bool {
    println!("{:016x}", run(&plans::of(seed), true).outcome.hash);
    true
}

/// Runs the seeds of a file: one per line, and a comment. Each runs twice at the same time, once in
/// another process, whose addresses are other ones, and with a trace. Both runs must be the same.
pub fn run_file(file: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    let seeds: Vec<u64> =
        lines.filter(|line| !line.is_empty()).map(|line| line.parse().expect("a seed")).collect();
    let mut is_good = true;
    for seed in &seeds {
        let elsewhere = start(&["hash", &seed.to_string()]);
        let first = run(&plans::of(*seed), false);
        if !first.is_good() {
            println!("seed {seed} failed\n{first}");
            is_good = false;
        }
        let second = elsewhere.wait_with_output().expect("our own child");
        let hash = format!("{:016x}\n", first.outcome.hash);
        if hash != String::from_utf8_lossy(&second.stdout) {
            println!("seed {seed}: the second run was not the same");
            is_good = false;
        }
    }
    println!("{} seeds, each twice", seeds.len());
    is_good
}
