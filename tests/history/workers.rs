//! The worker processes of a run, as seen by the parent.

use super::checks::Worker;
use super::deployment::Deployment;
use super::plan::Plan;
use super::program::Arguments;
use super::record::Record;
use super::worker::{CLEAN, DIRTY, IDLE, STOP, WORKER};
use crate::harness::ChildProcess;
use crate::system::{Nanos, now};
use std::collections::BTreeMap;

/// The test that runs a worker in its process.
const ENTRY: &str = "child_entry";

/// The running worker processes, and the records of those that ended.
///
/// A process that replaces a killed one has the same position and a new index.
pub struct Workers<'a> {
    plan: &'a Plan,
    deployment: &'a Deployment,
    store_url: String,
    processes: Vec<Process>,
    started: usize,
    ended: BTreeMap<usize, (Worker, Vec<Record>)>,
    /// Threads and descriptors that the library left in workers, and failures of workers.
    pub leftovers: Vec<String>,
}

/// A running worker process.
struct Process {
    child: ChildProcess,
    /// The number of processes that were started before.
    index: usize,
    lease: Nanos,
    stopped: bool,
    killed: Option<Nanos>,
    /// The lines that were read so far.
    lines: Vec<String>,
}

impl<'a> Workers<'a> {
    /// Starts all workers. Blocks until they begin to work.
    pub fn start(plan: &'a Plan, deployment: &'a Deployment, store_url: String) -> Workers<'a> {
        let mut workers = Workers {
            plan,
            deployment,
            store_url,
            processes: Vec::new(),
            started: 0,
            ended: BTreeMap::new(),
            leftovers: Vec::new(),
        };
        for position in 0..plan.work.workers {
            let process = workers.start_process(position);
            workers.processes.push(process);
        }
        workers.processes.iter_mut().for_each(|process| process.child.expect_line("ready"));
        workers
    }

    /// Returns the number of workers.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Returns the name of a worker in the gates.
    pub fn member(&self, position: usize) -> String {
        format!("worker {position}")
    }

    /// Returns the index of the process in a position.
    pub fn index(&self, position: usize) -> usize {
        self.processes[position].index
    }

    /// Kills a worker.
    pub fn kill(&mut self, position: usize) {
        let process = &mut self.processes[position];
        process.child.kill();
        process.killed = Some(now());
    }

    /// Stops a worker (`SIGSTOP`).
    pub fn stop(&mut self, position: usize) {
        self.processes[position].child.stop();
        self.processes[position].stopped = true;
    }

    /// Lets stopped workers continue, and replaces killed ones.
    pub fn heal(&mut self) {
        for position in 0..self.processes.len() {
            if std::mem::take(&mut self.processes[position].stopped) {
                self.processes[position].child.resume();
            }
            if self.processes[position].killed.is_some() {
                let replacement = self.start_process(position);
                let mut killed = std::mem::replace(&mut self.processes[position], replacement);
                let lines = killed.child.said_to_the_end();
                self.keep_records(&killed, &lines);
                self.processes[position].child.expect_line("ready");
            }
        }
    }

    /// Tells all workers to make no more attempts. Blocks until they are idle.
    pub fn stop_work(&mut self) {
        self.processes.iter_mut().for_each(|process| process.child.send_line(STOP));
        for process in &mut self.processes {
            while process.lines.last().is_none_or(|line| line != IDLE) {
                process.lines.push(process.child.next_line());
            }
        }
    }

    /// Ends all idle workers. Returns the records of all workers, in the order of their start.
    pub fn finish(&mut self) -> impl Iterator<Item = (Worker, Vec<Record>)> {
        let mut processes = std::mem::take(&mut self.processes);
        processes.iter_mut().for_each(|process| process.child.close_input());
        for process in &mut processes {
            let status = process.child.wait();
            let mut lines = std::mem::take(&mut process.lines);
            lines.append(&mut process.child.said_to_the_end());
            self.keep_records(process, &lines);
            let last = lines.last().map_or("", |line| line);
            if !status.success() || last != CLEAN {
                let what = last.strip_prefix(DIRTY).unwrap_or("a worker failed");
                self.leftovers.push(format!("worker {}: {what} ({status})", process.index));
            }
        }
        std::mem::take(&mut self.ended).into_values()
    }

    fn start_process(&mut self, position: usize) -> Process {
        let (plan, index) = (self.plan, self.started);
        self.started += 1;
        let mut arguments = Arguments::new(&plan.work, index, plan.seed, self.store_url.clone());
        self.deployment.add_addresses(&mut arguments);
        let words = arguments.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let child = ChildProcess::start(ENTRY, WORKER, &words);
        self.deployment.members.join(&self.member(position), child.pid());
        let lease = u64::try_from(arguments.lease().as_nanos()).expect("a short lease");
        Process { child, index, lease, stopped: false, killed: None, lines: Vec::new() }
    }

    fn keep_records(&mut self, process: &Process, lines: &[String]) {
        let records = lines.iter().filter_map(|line| Record::parse(line)).collect();
        let mortal_at = self.plan.work.mortal.then_some(0);
        let (lease, killed, stalls) = (process.lease, process.killed, Vec::new());
        let worker = Worker { lease, killed, mortal_at, linger: 0, stalls };
        self.ended.insert(process.index, (worker, records));
    }
}
