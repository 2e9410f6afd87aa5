//! The worker processes, as seen by the parent.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Result;
use super::record::{Member, Record};
use super::report::{self, Report};
use super::worker::START;

/// How long the parent waits for any one thing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// All workers. Kills those that still run when dropped.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    received: Receiver<Received>,
    totals: Totals,
    record: Record,
}

/// The reports of all workers, summed up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) waits: usize,
    pub(crate) longest_wait: Duration,
    pub(crate) lost: usize,
}

struct Worker {
    name: char,
    child: Child,
    permissions: ChildStdin,
    killed: bool,
    ended: bool,
}

/// A line from a worker. Without a report: the end of the worker.
#[derive(Debug)]
struct Received {
    worker: usize,
    at: Instant,
    report: Option<Report>,
}

/// A thread took a job, did it, or lost it.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) worker: usize,
    /// The name of the thread, such as `A1`.
    pub(crate) thread: String,
    pub(crate) at: Instant,
}

impl Workers {
    /// Starts this program again as workers A, B, C, ... with `arguments`. Blocks until all are
    /// ready.
    pub(crate) fn start(size: u8, url: &str, arguments: &[&str]) -> Result<Workers> {
        let (sender, received) = mpsc::channel();
        let (workers, totals, record) = (Vec::new(), Totals::default(), Record::default());
        let mut all = Workers { workers, received, totals, record };
        for (number, name) in (b'A'..b'A' + size).enumerate() {
            let mut child = Command::new(env::current_exe()?)
                .args(arguments)
                .env("REDIS_URL", url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (Some(permissions), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
                unreachable!("both are piped")
            };
            let (name, killed, ended) = (char::from(name), false, false);
            all.workers.push(Worker { name, child, permissions, killed, ended });
            let sender = sender.clone();
            thread::spawn(move || listen(number, lines, &sender));
        }
        for _ in 0..size {
            all.wait_for("a worker to start", |_, report| report.eq(&Report::Ready).then_some(()))?;
        }
        Ok(all)
    }

    /// Blocks until a worker, other than `other_than`, takes a slow job.
    pub(crate) fn taker(&mut self, job: usize, other_than: Option<usize>) -> Result<Observation> {
        let (taken, thread) = self.wait_for("a worker to take a slow job", |worker, report| {
            let &Report::Took { thread, job: taken } = report else { return None };
            (taken == job && other_than != Some(worker)).then_some(thread)
        })?;
        Ok(self.observation(&taken, thread))
    }

    /// Lets the workers finish a slow job. Blocks until it is done.
    pub(crate) fn let_finish(&mut self, job: usize) -> Result<Observation> {
        self.permit(job);
        let (done, thread) = self.wait_for("a slow job to be done", |_, report| {
            let &Report::Did { thread, job: done } = report else { return None };
            (done == job).then_some(thread)
        })?;
        Ok(self.observation(&done, thread))
    }

    /// Blocks until a thread that took a job notices the loss of its lock. Also returns why.
    pub(crate) fn loss(
        &mut self,
        job: usize,
        taken: &Observation,
    ) -> Result<(Observation, String)> {
        let (noticed, (thread, why)) =
            self.wait_for("a loss to be noticed", |worker, report| {
                let Report::Noticed { thread, job: lost, why } = report else { return None };
                (*lost == job && worker == taken.worker).then(|| (*thread, why.clone()))
            })?;
        Ok((self.observation(&noticed, thread), why))
    }

    fn observation(&self, received: &Received, thread: usize) -> Observation {
        let thread = self.workers[received.worker].member().thread(thread);
        Observation { worker: received.worker, thread, at: received.at }
    }

    /// Blocks until a worker sends a report that `find` accepts. Skips other reports.
    fn wait_for<T>(
        &mut self,
        what: &str,
        find: impl Fn(usize, &Report) -> Option<T>,
    ) -> Result<(Received, T)> {
        let end = Instant::now() + TIMEOUT;
        while self.is_any_left() {
            let received = self.receive(what, end)?;
            let found = received.report.as_ref().and_then(|report| find(received.worker, report));
            if let Some(found) = found {
                return Ok((received, found));
            }
        }
        Err(format!("all workers have ended while the parent waited for {what}").into())
    }

    /// Receives the next line of any worker and counts it. Returns an error if a worker failed.
    fn receive(&mut self, what: &str, end: Instant) -> Result<Received> {
        let left = end.saturating_duration_since(Instant::now());
        let received = self.received.recv_timeout(left);
        let received = received.map_err(|_| format!("waited {TIMEOUT:?} for {what}"))?;
        match received.report {
            Some(Report::Waited(time)) => {
                self.totals.waits += 1;
                self.totals.longest_wait = self.totals.longest_wait.max(time);
            }
            Some(Report::Lost) => self.totals.lost += 1,
            Some(Report::Lock { thread, step, at }) => {
                let member = self.workers[received.worker].member();
                self.record.step(member, &member.thread(thread), step, at);
            }
            None => self.workers[received.worker].end()?,
            Some(_) => {}
        }
        Ok(received)
    }

    fn is_any_left(&self) -> bool {
        self.workers.iter().any(|worker| !worker.ended)
    }

    /// Lets the workers begin.
    pub(crate) fn begin(&mut self) {
        self.permit(START);
    }

    /// Permits all workers to finish a slow job.
    fn permit(&mut self, job: usize) {
        for worker in &mut self.workers {
            // The write to a killed worker fails, which is fine.
            let _ = writeln!(worker.permissions, "{job}");
        }
    }

    /// Kills a worker, which can do nothing more.
    pub(crate) fn kill(&mut self, worker: usize) -> Result<()> {
        self.workers[worker].killed = true;
        self.workers[worker].child.kill()?;
        self.mark(worker, "is killed");
        self.record.end_waits(self.workers[worker].member(), report::now());
        Ok(())
    }

    /// Stops a worker, as Ctrl-Z, a debugger or a suspended machine would.
    pub(crate) fn stop(&mut self, worker: usize) -> Result<()> {
        self.workers[worker].signal(Signal::STOP)?;
        self.mark(worker, "is stopped");
        Ok(())
    }

    /// Lets a stopped worker continue.
    pub(crate) fn resume(&mut self, worker: usize) -> Result<()> {
        self.mark(worker, "continues");
        self.workers[worker].signal(Signal::CONT)
    }

    /// Records a text about a worker.
    fn mark(&mut self, worker: usize, text: &str) {
        let member = self.workers[worker].member();
        self.record.mark(member, &format!("{} {text}", member.name), report::now());
    }

    /// Records that the lease of a holder ends after `left`.
    pub(crate) fn record_expiry(&mut self, holder: &Observation, left: Duration) {
        let member = self.workers[holder.worker].member();
        self.record.expiry(member, &holder.thread, report::now() + left);
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Blocks until all workers have ended. Returns the totals of their reports.
    pub(crate) fn finish(&mut self) -> Result<Totals> {
        let end = Instant::now() + TIMEOUT;
        while self.is_any_left() {
            self.receive("the workers to end", end)?;
        }
        Ok(self.totals)
    }

    /// Returns the name and the process id of a worker.
    pub(crate) fn member(&self, worker: usize) -> (char, u32) {
        let Member { name, process } = self.workers[worker].member();
        (name, process)
    }

    /// Returns the name of a thread of the process with this id, such as `A1`.
    pub(crate) fn thread_name(&self, id: u32, thread: usize) -> String {
        let worker = self.workers.iter().find(|worker| worker.child.id() == id);
        let name = worker.map_or('?', |worker| worker.name);
        format!("{name}{thread}")
    }
}

impl Worker {
    fn member(&self) -> Member {
        Member { name: self.name, process: self.child.id() }
    }

    /// Reaps a worker that has closed its output. Returns an error if it failed.
    fn end(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        let killed = self.killed && status.signal() == Some(Signal::KILL.as_raw());
        if !(status.success() || killed) {
            return Err(format!("worker {} failed: {status}", self.name).into());
        }
        self.ended = true;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Worker {
    /// Kills the process, which still runs if the parent returns an error.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the reports of a worker until it ends.
fn listen(worker: usize, lines: ChildStdout, sender: &Sender<Received>) {
    let report = BufReader::new(lines).lines().map_while(|line| line.ok());
    let report = report.filter_map(|line| Report::read(&line)).map(Some);
    for report in report.chain([None]) {
        let _ = sender.send(Received { worker, at: Instant::now(), report });
    }
}
