//! leasehold at work: several processes share one list of jobs, and none is done twice.
//!
//! `script/demo`, or `cargo run --release --example demo`. Starts a Redis of its own, or
//! uses `REDIS_URL` and cleans up there. Ends with 1 if a job was done twice or never,
//! or if something did not happen that was to be shown. `RUST_LOG=debug` lets the
//! library say what it does.
//!
//! This file is the parent: what happens when. `demo/worker.rs` is what a user of the
//! library would write; the parent starts this program anew for each worker.

mod support;

#[path = "demo/crew.rs"]
mod crew;
#[path = "demo/jobs.rs"]
mod jobs;
#[path = "demo/said.rs"]
mod said;
#[path = "demo/story.rs"]
mod story;
#[path = "demo/worker.rs"]
mod worker;

use std::env;
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Lock};

use crew::{Crew, PATIENCE, Tally, Turn};
use jobs::{Count, Done, Jobs};
use story::{Story, bar, seconds};
use support::Server;
use worker::{LOCK, WATCHDOG_TIMEOUT};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How many worker processes there are.
const WORKERS: u8 = 3;

/// How many jobs are done without the lock.
const UNLOCKED: usize = 20;

/// The slow jobs, one for each scene, among [`JOBS`] quick ones.
const KEPT: usize = 61;
const KILLED: usize = 82;
const STOPPED: usize = 103;
const JOBS: usize = 143;

/// How many jobs of the record are shown in a line.
const PER_LINE: usize = 20;

/// What a worker is started with.
const WORKER: &str = "worker";

/// How often the time to live is shown, and for how long at least.
const LOOK: Duration = Duration::from_millis(250);
const LOOKS_FOR: Duration = WATCHDOG_TIMEOUT.saturating_mul(2);

/// How many renewals are to be seen.
const RENEWALS: usize = 3;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Demo::run(),
        [WORKER, keys, locked] => worker::run(keys.to_owned(), locked == "true"),
        _ => Err("the demo takes no arguments".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\ndemo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the scenes share.
struct Demo {
    story: Story,
    server: Server,
    /// What stands before the name of every key of this run.
    keys: String,
    /// The workers' lock. The parent only looks at it.
    lock: Lock,
}

impl Demo {
    fn run() -> Result<()> {
        let story = Story::begin();
        let server = Server::start()?;
        let client = Client::open(server.url())?;
        let keys = format!("leasehold-demo:{}:", client.id());
        let lock = client.lock(format!("{keys}{LOCK}"));
        let demo = Demo { story, server, keys, lock };
        demo.introduce();
        demo.run_without_lock()?;
        demo.run_with_lock()
    }

    fn introduce(&self) {
        self.story.heading("leasehold: one lock, three processes, and no job is done twice");
        self.story.text(
            "A, B and C are processes of two threads each (A1, A2, B1, ...). They share one
            list of jobs in Redis. For the next job, a thread reads how many are done, works
            on the one after them, records that it has done it, and writes the new number.
            Nothing in Redis keeps two threads from doing the same job at the same time:
            only the lock around these four steps does.",
        );
        self.story.text(match env::var_os("REDIS_URL") {
            Some(_) => "Redis is the one that REDIS_URL names; its keys go at the end.",
            None => "Redis is one of the demo's own, and goes with it.",
        });
    }

    /// What the lock is good for.
    fn run_without_lock(&self) -> Result<()> {
        self.story.heading("1. Without the lock");
        let keys = format!("{}unlocked:", self.keys);
        let mut list = List::write(&self.server, &keys, &["quick"; UNLOCKED])?;
        let mut crew = self.start(&keys, false)?;
        crew.begin();
        crew.finish()?;
        let Count { done, twice, .. } = Count::of(&list.0.log()?, UNLOCKED);
        let times = format!("done {done} times, {twice} of them more than once");
        self.tell(format!("{UNLOCKED} jobs were {times}"));
        ensure(twice > 0, "without the lock no job was done twice")
    }

    fn run_with_lock(&self) -> Result<()> {
        let is_slow = |job| [KEPT, KILLED, STOPPED].contains(&job);
        let kinds = (1..=JOBS).map(|job| if is_slow(job) { "slow" } else { "quick" });
        let mut list = List::write(&self.server, &self.keys, &kinds.collect::<Vec<_>>())?;

        self.story.heading("2. With the lock: from thread to thread, from process to process");
        let mut crew = self.start(&self.keys, true)?;
        crew.begin();
        let holder = crew.taker(KEPT, None)?;
        self.show_record(&crew, &mut list, 1..KEPT)?;

        self.story.heading("3. A job takes longer than the lease: the watchdog renews the lock");
        self.keep(&mut crew, &holder)?;
        let holder = crew.taker(KILLED, None)?;
        self.show_record(&crew, &mut list, KEPT + 1..KILLED)?;

        self.story.heading("4. The holder is killed: another takes over when its lease is over");
        self.kill(&mut crew, &holder)?;
        let holder = crew.taker(STOPPED, None)?;
        self.show_record(&crew, &mut list, KILLED + 1..STOPPED)?;

        self.story.heading("5. The holder is stopped, and goes on when another has taken over");
        self.stop(&mut crew, &holder)?;
        let tally = crew.finish()?;
        self.show_record(&crew, &mut list, STOPPED + 1..JOBS + 1)?;
        self.conclude(&Count::of(&list.0.log()?, JOBS), &tally)
    }

    /// The holder works for longer than its lease, and keeps the lock.
    fn keep(&self, crew: &mut Crew, holder: &Turn) -> Result<()> {
        self.tell_of(holder, format!("takes job {KEPT}, a long one, and holds the lock meanwhile"));
        let (mut renewals, mut last) = (0, Duration::MAX);
        while holder.at.elapsed() < LOOKS_FOR || renewals < RENEWALS {
            ensure(holder.at.elapsed() < PATIENCE, "the watchdog did not renew the lock")?;
            let left = self.lock.remaining()?.ok_or("the lock was free while its holder lived")?;
            let renewed = left > last;
            self.show_left(left, if renewed { "renewed" } else { "" });
            (renewals, last) = (renewals + usize::from(renewed), left);
            thread::sleep(LOOK);
        }
        let did = crew.let_finish(KEPT)?;
        let (held, lease) = (seconds(did.at - holder.at), seconds(WATCHDOG_TIMEOUT));
        self.tell_of(&did, format!("has done job {KEPT}: held {held}, with a lease of {lease}"));
        ensure(did.who == holder.who, "the lock did not stay with its holder")
    }

    /// The holder dies, and another does its job.
    fn kill(&self, crew: &mut Crew, holder: &Turn) -> Result<()> {
        self.tell_of(holder, format!("takes job {KILLED}"));
        crew.kill(holder.worker)?;
        let killed = Instant::now();
        let (name, id) = crew.member(holder.worker);
        self.tell(format!("kill -KILL {id}: {name} is gone, and did not release the lock"));
        self.take_over(crew, KILLED, holder, killed)
    }

    /// The holder sleeps through the end of its lease. Another does its job, and it
    /// notices that before it does it again.
    fn stop(&self, crew: &mut Crew, holder: &Turn) -> Result<()> {
        self.tell_of(holder, format!("takes job {STOPPED}"));
        crew.stop(holder.worker)?;
        let stopped = Instant::now();
        let (name, id) = crew.member(holder.worker);
        self.tell(format!("kill -STOP {id}: {name} stands still, in the middle of the job"));
        self.take_over(crew, STOPPED, holder, stopped)?;

        crew.go_on(holder.worker)?;
        self.tell(format!("kill -CONT {id}: {name} goes on, and knows nothing of that"));
        let (noticed, why) = crew.loss(STOPPED, holder)?;
        let what = format!("asks guard.check(): \"{why}\", and leaves job {STOPPED} alone");
        self.tell_of(&noticed, what);
        Ok(())
    }

    /// Another process than the holder's gets the lock, and does the job.
    fn take_over(&self, crew: &mut Crew, job: usize, from: &Turn, since: Instant) -> Result<()> {
        self.show_left(self.lock.remaining()?.unwrap_or_default(), "nobody renews it");
        let next = crew.taker(job, Some(from.worker))?;
        let after = seconds(next.at.saturating_duration_since(since));
        self.tell_of(&next, format!("takes job {job}, {after} later"));
        let did = crew.let_finish(job)?;
        self.tell_of(&did, format!("has done job {job}"));
        ensure(did.who == next.who, "the job was not done by whoever took over")
    }

    fn start(&self, keys: &str, locked: bool) -> Result<Crew> {
        let locked = if locked { "true" } else { "false" };
        let crew = Crew::start(WORKERS, self.server.url(), &[WORKER, keys, locked])?;
        let ids = (0..usize::from(WORKERS)).map(|worker| crew.member(worker));
        let ids: Vec<_> = ids.map(|(name, id)| format!("{name} is process {id}")).collect();
        self.tell(ids.join(", "));
        Ok(crew)
    }

    /// Who did these jobs, in the order of the record.
    fn show_record(&self, crew: &Crew, list: &mut List, jobs: Range<usize>) -> Result<()> {
        let log = list.0.log()?;
        let log: Vec<&Done> = log.iter().filter(|done| jobs.contains(&done.job)).collect();
        for part in log.chunks(PER_LINE) {
            let who = part.iter().map(|done| crew.who(done.process, done.thread));
            let who = who.collect::<Vec<_>>().join(" ");
            let (first, last) = (part[0].job, part[part.len() - 1].job);
            self.story.tell("record", format!("jobs {first:>3} to {last:>3}  {who}"));
        }
        Ok(())
    }

    fn show_left(&self, left: Duration, remark: &str) {
        let bar = bar(left, WATCHDOG_TIMEOUT);
        let line = format!("time to live {} |{bar}| {remark}", seconds(left));
        self.story.tell("Redis", line.trim_end());
    }

    fn conclude(&self, count: &Count, tally: &Tally) -> Result<()> {
        let story = &self.story;
        story.heading("Result");
        story.row("jobs", JOBS, None);
        story.row("hand-overs from process to process", count.between_processes, None);
        story.row("hand-overs from thread to thread of a process", count.between_threads, None);
        story.row("waits for the lock", tally.waits, None);
        story.row("longest wait", seconds(tally.longest_wait), None);
        story.row("locks lost, and noticed before harm was done", tally.lost, Some(tally.lost > 0));
        story.row("jobs done twice", count.twice, Some(count.twice == 0));
        story.row("jobs never done", count.never, Some(count.never == 0));
        ensure(count.twice == 0, "a job was done twice")?;
        ensure(count.never == 0, "a job was never done")?;
        ensure(count.done == JOBS, "the record holds more than the jobs")?;
        ensure(count.between_processes > 0, "the lock never went from process to process")?;
        ensure(count.between_threads > 0, "the lock never went from thread to thread")?;
        ensure(tally.lost > 0, "no lock was lost")?;
        ensure(!self.lock.is_locked()?, "the lock is still held")?;
        story.heading("Every job was done once, though one worker was killed and one stopped.");
        println!();
        Ok(())
    }

    fn tell(&self, what: String) {
        self.story.tell("parent", what);
    }

    fn tell_of(&self, turn: &Turn, what: String) {
        self.story.tell_at(turn.at, &turn.who, what);
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
            eprintln!("the keys of this run are still there: {error}");
        }
    }
}

fn ensure(holds: bool, else_say: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(else_say.into()) }
}
