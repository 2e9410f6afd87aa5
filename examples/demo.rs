//! A demonstration: several processes share one list of jobs, and no job is done twice.
//!
//! Run `script/demo`, which also draws a picture of the run, or
//! `cargo run --release --example demo`. `--record FILE` writes the events for the picture. Uses
//! the server of `REDIS_URL` and removes its keys at the end, or runs with a server of its own.
//! Exits with 1 if a job was done twice or never, or if a scene did not show its result.
//! `RUST_LOG=debug` shows the log of the library.
//!
//! This file is the parent process, which directs the scenes. `demo/worker.rs` is a worker, as a
//! user of the library would write it. The parent starts this program again for each worker.

mod support;

#[path = "demo/jobs.rs"]
mod jobs;
#[path = "demo/output.rs"]
mod output;
#[path = "demo/record.rs"]
mod record;
#[path = "demo/report.rs"]
mod report;
#[path = "demo/worker.rs"]
mod worker;
#[path = "demo/workers.rs"]
mod workers;

use std::env;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Lock};

use jobs::{Count, Done, Jobs};
use output::{Output, bar, seconds};
use support::Server;
use worker::{LOCK, WATCHDOG_TIMEOUT};
use workers::{Observation, TIMEOUT, Totals, Workers};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The number of worker processes.
const WORKERS: u8 = 3;

/// The number of jobs in the scene without the lock.
const UNLOCKED: usize = 20;

/// The numbers of the slow jobs, one for each scene. All other jobs up to [`JOBS`] are quick.
const KEPT: usize = 61;
const KILLED: usize = 82;
const STOPPED: usize = 103;
const JOBS: usize = 143;

/// The number of jobs per line of the record.
const PER_LINE: usize = 20;

/// The first argument of a worker.
const WORKER: &str = "worker";

/// The option with the file for the events.
const RECORD: &str = "--record";

/// The interval and the shortest time for which the time to live is shown.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
const WATCH_TIME: Duration = WATCHDOG_TIMEOUT.saturating_mul(2);

/// The number of renewals to show.
const RENEWALS: usize = 3;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Demo::run(None),
        [RECORD, file] => Demo::run(Some(Path::new(file))),
        [WORKER, keys, locked] => worker::run(keys.to_owned(), locked == "true"),
        _ => Err("the demo takes no arguments, or --record FILE".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ndemo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The state that the scenes share.
struct Demo {
    output: Output,
    server: Server,
    /// The prefix of every key of this run.
    keys: String,
    /// The lock of the workers. The parent only queries it.
    lock: Lock,
}

impl Demo {
    fn run(record: Option<&Path>) -> Result<()> {
        let output = Output::begin();
        let server = Server::start()?;
        let client = Client::open(server.url())?;
        let keys = format!("leasehold-demo:{}:", client.id());
        let lock = client.lock(format!("{keys}{LOCK}"));
        let demo = Demo { output, server, keys, lock };
        demo.introduce();
        demo.run_without_lock()?;
        demo.run_with_lock(record)
    }

    fn introduce(&self) {
        self.output.heading("leasehold: one lock, three processes, no job done twice");
        self.output.text(
            "A, B and C are processes of two threads each (A1, A2, B1, ...). They share one
            list of jobs in Redis. To do a job, a thread reads how many jobs are done, works
            on the next one, records it, and writes the new number. Nothing in Redis keeps
            two threads from doing the same job at the same time: only the lock around these
            four steps does.",
        );
        self.output.text(match env::var_os("REDIS_URL") {
            Some(_) => {
                "The Redis server is that of REDIS_URL. The demo removes its keys at the end."
            }
            None => "The server is a part of the demo: leasehold-testserver, in this process.",
        });
    }

    /// Shows what goes wrong without the lock.
    fn run_without_lock(&self) -> Result<()> {
        self.output.heading("1. Without the lock");
        let keys = format!("{}unlocked:", self.keys);
        let mut list = List::write(&self.server, &keys, &["quick"; UNLOCKED])?;
        let mut workers = self.start(&keys, false)?;
        workers.begin();
        workers.finish()?;
        let Count { done, twice, .. } = Count::of(&list.0.log()?, UNLOCKED);
        self.tell(format!("{UNLOCKED} jobs: {done} times done, {twice} jobs more than once"));
        ensure(twice > 0, "without the lock no job was done twice")
    }

    fn run_with_lock(&self, record: Option<&Path>) -> Result<()> {
        let is_slow = |job| [KEPT, KILLED, STOPPED].contains(&job);
        let kinds = (1..=JOBS).map(|job| if is_slow(job) { "slow" } else { "quick" });
        let mut list = List::write(&self.server, &self.keys, &kinds.collect::<Vec<_>>())?;

        self.output.heading(
            "2. With the lock: it moves from thread to thread and from process to process",
        );
        let mut workers = self.start(&self.keys, true)?;
        workers.begin();
        let holder = workers.taker(KEPT, None)?;
        self.show_record(&workers, &mut list, 1..KEPT)?;

        self.output.heading("3. A job takes longer than the lease: the watchdog renews the lock");
        self.keep(&mut workers, &holder)?;
        let holder = workers.taker(KILLED, None)?;
        self.show_record(&workers, &mut list, KEPT + 1..KILLED)?;

        self.output.heading(
            "4. The holder is killed: another process takes over when the lease has expired",
        );
        self.kill(&mut workers, &holder)?;
        let holder = workers.taker(STOPPED, None)?;
        self.show_record(&workers, &mut list, KILLED + 1..STOPPED)?;

        self.output.heading(
            "5. The holder is stopped, and continues after another process has taken over",
        );
        self.stop(&mut workers, &holder)?;
        let totals = workers.finish()?;
        record.map_or(Ok(()), |file| workers.record().write(file))?;
        self.show_record(&workers, &mut list, STOPPED + 1..JOBS + 1)?;
        self.conclude(&Count::of(&list.0.log()?, JOBS), &totals)
    }

    /// The holder works for longer than its lease and keeps the lock.
    fn keep(&self, workers: &mut Workers, holder: &Observation) -> Result<()> {
        self.tell_of(holder, format!("takes job {KEPT}, which takes longer than the lease"));
        let (mut renewals, mut last) = (0, Duration::MAX);
        while holder.at.elapsed() < WATCH_TIME || renewals < RENEWALS {
            ensure(holder.at.elapsed() < TIMEOUT, "the watchdog did not renew the lock")?;
            let left = self.lock.remaining()?.ok_or("the lock was free while its holder worked")?;
            let renewed = left > last;
            self.show_left(left, if renewed { "renewed" } else { "" });
            (renewals, last) = (renewals + usize::from(renewed), left);
            thread::sleep(WATCH_INTERVAL);
        }
        let did = workers.let_finish(KEPT)?;
        let (held, lease) = (seconds(did.at - holder.at), seconds(WATCHDOG_TIMEOUT));
        self.tell_of(&did, format!("has done job {KEPT}: held {held}, with a lease of {lease}"));
        ensure(did.thread == holder.thread, "the lock did not stay with its holder")
    }

    /// The holder dies, and another process does its job.
    fn kill(&self, workers: &mut Workers, holder: &Observation) -> Result<()> {
        self.tell_of(holder, format!("takes job {KILLED}"));
        workers.kill(holder.worker)?;
        let killed = Instant::now();
        let (name, id) = workers.member(holder.worker);
        self.tell(format!("kill -KILL {id}: {name} is dead and did not release the lock"));
        self.take_over(workers, KILLED, holder, killed)
    }

    /// The holder is stopped until its lease has expired. Another process does the job, and the
    /// holder notices the loss before it records the job again.
    fn stop(&self, workers: &mut Workers, holder: &Observation) -> Result<()> {
        self.tell_of(holder, format!("takes job {STOPPED}"));
        workers.stop(holder.worker)?;
        let stopped = Instant::now();
        let (name, id) = workers.member(holder.worker);
        self.tell(format!("kill -STOP {id}: {name} is stopped in the middle of the job"));
        self.take_over(workers, STOPPED, holder, stopped)?;

        workers.resume(holder.worker)?;
        self.tell(format!("kill -CONT {id}: {name} continues and does not know that"));
        let (noticed, why) = workers.loss(STOPPED, holder)?;
        let what = format!("calls guard.check(): \"{why}\", and does not record job {STOPPED}");
        self.tell_of(&noticed, what);
        Ok(())
    }

    /// A process other than the holder's gets the lock and does the job.
    fn take_over(
        &self,
        workers: &mut Workers,
        job: usize,
        from: &Observation,
        since: Instant,
    ) -> Result<()> {
        let left = self.lock.remaining()?.unwrap_or_default();
        workers.record_expiry(from, left);
        self.show_left(left, "not renewed");
        let next = workers.taker(job, Some(from.worker))?;
        let after = seconds(next.at.saturating_duration_since(since));
        self.tell_of(&next, format!("takes job {job}, {after} later"));
        let did = workers.let_finish(job)?;
        self.tell_of(&did, format!("has done job {job}"));
        ensure(did.thread == next.thread, "another thread than the new holder did the job")
    }

    fn start(&self, keys: &str, locked: bool) -> Result<Workers> {
        let locked = if locked { "true" } else { "false" };
        let workers = Workers::start(WORKERS, self.server.url(), &[WORKER, keys, locked])?;
        let ids = (0..usize::from(WORKERS)).map(|worker| workers.member(worker));
        let ids: Vec<_> = ids.map(|(name, id)| format!("{name} is process {id}")).collect();
        self.tell(ids.join(", "));
        Ok(workers)
    }

    /// Shows which threads did these jobs, in the order of the record.
    fn show_record(&self, workers: &Workers, list: &mut List, jobs: Range<usize>) -> Result<()> {
        let log = list.0.log()?;
        let log: Vec<&Done> = log.iter().filter(|done| jobs.contains(&done.job)).collect();
        for part in log.chunks(PER_LINE) {
            let threads = part.iter().map(|done| workers.thread_name(done.process, done.thread));
            let threads = threads.collect::<Vec<_>>().join(" ");
            let (first, last) = (part[0].job, part[part.len() - 1].job);
            self.output.tell("record", format!("jobs {first:>3} to {last:>3}  {threads}"));
        }
        Ok(())
    }

    fn show_left(&self, left: Duration, remark: &str) {
        let bar = bar(left, WATCHDOG_TIMEOUT);
        let line = format!("time to live {} |{bar}| {remark}", seconds(left));
        self.output.tell("Redis", line.trim_end());
    }

    fn conclude(&self, count: &Count, totals: &Totals) -> Result<()> {
        let output = &self.output;
        output.heading("Result");
        output.row("jobs", JOBS, None);
        output.row("moves from process to process", count.between_processes, None);
        output.row("moves from thread to thread in a process", count.between_threads, None);
        output.row("waits for the lock", totals.waits, None);
        output.row("longest wait", seconds(totals.longest_wait), None);
        output.row("lost locks, noticed before the record", totals.lost, Some(totals.lost > 0));
        output.row("jobs done twice", count.twice, Some(count.twice == 0));
        output.row("jobs never done", count.never, Some(count.never == 0));
        ensure(count.twice == 0, "a job was done twice")?;
        ensure(count.never == 0, "a job was never done")?;
        ensure(count.done == JOBS, "the record holds more than the jobs")?;
        ensure(count.between_processes > 0, "the lock never moved from process to process")?;
        ensure(count.between_threads > 0, "the lock never moved from thread to thread")?;
        ensure(totals.lost > 0, "no lock was lost")?;
        ensure(!self.lock.is_locked()?, "the lock is still held")?;
        output.heading(
            "Every job was done once, although one worker was killed and one was stopped.",
        );
        println!();
        Ok(())
    }

    fn tell(&self, what: String) {
        self.output.tell("parent", what);
    }

    fn tell_of(&self, seen: &Observation, what: String) {
        self.output.tell_at(seen.at, &seen.thread, what);
    }
}

/// A list of jobs that is removed when dropped.
struct List(Jobs);

impl List {
    fn write(server: &Server, keys: &str, kinds: &[&str]) -> Result<List> {
        let mut list = List(Jobs::open(server.url(), keys)?);
        list.0.write(kinds)?;
        Ok(list)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Err(error) = self.0.delete() {
            eprintln!("the keys of this run could not be removed: {error}");
        }
    }
}

fn ensure(condition: bool, failure: &str) -> Result<()> {
    if condition { Ok(()) } else { Err(failure.into()) }
}
