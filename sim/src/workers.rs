//! The worker processes of a run.

use crate::checks::{Promise, Violation, Worker};
use crate::frees;
use crate::kind::Kind;
use crate::leases;
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::program::{self, Arguments};
use crate::record::{Event, Record};
use crate::system::{INTERVAL, Nanos, holds_within, now, thread};
use simulated::world::{self, ProcessId};
use simulated::{memory, net};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The clocks of workers are off by up to this many millionths, in either direction.
pub const DRIFT: u64 = 10_000;

/// The most steps of the time of day of a worker, when they happen after its start, and their size.
const STEPS: u64 = 4;
const STEPPED: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_secs(3600);

/// The time in which an ended worker leaves no task and no connection, without and with observers
/// of elections: a client learns within 30 s that their receivers have been dropped.
const ENDED: Duration = Duration::from_secs(20);
const ENDED_OBSERVERS: Duration = Duration::from_secs(45);

/// The most tasks of a process for each of its clients, and the most when it is idle. Each of its
/// four threads may make a call with clients of its own: 34 reapers of five clients were seen.
const MOST_TASKS: usize = 80;
const IDLE_TASKS: usize = 20;

/// The most memory of an idle process for each of its clients, in bytes. With listeners and twelve
/// connections to a cluster 805,000 were seen, which stayed the same.
const IDLE_BYTES: usize = 1_000_000;

/// The time in which idle workers give back what they do not need.
const RESTED: Duration = Duration::from_secs(60);

/// What the run and a worker tell each other.
#[derive(Debug, Default)]
struct Signals {
    is_ready: AtomicBool,
    stops: AtomicBool,
    is_idle: AtomicBool,
    ends: AtomicBool,
    records: Mutex<Vec<Record>>,
    /// What was wrong in the events and the statistics.
    miscounted: Mutex<Vec<String>>,
}

/// A worker process.
struct Process {
    id: ProcessId,
    index: usize,
    clients: usize,
    lease: Nanos,
    is_stopped: bool,
    killed: Option<Nanos>,
    signals: Arc<Signals>,
}

/// The running workers, and the records of those that have ended.
pub struct Workers<'a> {
    plan: &'a Plan,
    /// Adds the addresses of the servers.
    address: &'a dyn Fn(&mut Arguments),
    processes: Vec<Process>,
    started: usize,
    ended: BTreeMap<usize, (Worker, Vec<Record>)>,
    pub leftovers: Vec<String>,
    /// Grown tasks and memory of processes, and their wrong events and statistics.
    pub violations: Vec<Violation>,
}

impl<'a> Workers<'a> {
    /// Starts all workers. Blocks until they begin to work.
    pub fn start(plan: &'a Plan, address: &'a dyn Fn(&mut Arguments)) -> Workers<'a> {
        let mut workers = Workers {
            plan,
            address,
            processes: Vec::new(),
            started: 0,
            ended: BTreeMap::new(),
            leftovers: Vec::new(),
            violations: Vec::new(),
        };
        for _ in 0..plan.work.workers {
            let process = workers.start_process();
            workers.processes.push(process);
        }
        workers.await_all(|signals| &signals.is_ready);
        workers
    }

    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Returns the process in a position.
    pub fn process(&self, position: usize) -> ProcessId {
        self.processes[position].id
    }

    /// Returns the index of the worker in a position, another one for each process.
    pub fn index(&self, position: usize) -> usize {
        self.processes[position].index
    }

    fn await_all(&self, signal: impl Fn(&Signals) -> &AtomicBool) {
        for process in &self.processes {
            while !signal(&process.signals).load(Ordering::SeqCst) {
                thread::sleep(INTERVAL);
            }
        }
    }

    fn start_process(&mut self) -> Process {
        let index = self.started;
        self.started += 1;
        let mut arguments = Arguments::new(&self.plan.work, index, self.plan.seed, String::new());
        (self.address)(&mut arguments);
        let (clients, lease) = (arguments.client_count(), arguments.lease().as_nanos() as Nanos);
        let drift = (world::random() % (2 * DRIFT + 1)) as i64 - DRIFT as i64;
        let id = world::start_process(drift);
        step_time_of_day(id);
        let signals = Arc::<Signals>::default();
        let seen = Arc::clone(&signals);
        drop(world::spawn_in(id, "main", move || run(index, &arguments, &seen)));
        Process { id, index, clients, lease, is_stopped: false, killed: None, signals }
    }

    /// Kills a worker.
    pub fn kill(&mut self, position: usize) {
        world::kill(self.processes[position].id);
        self.processes[position].killed = Some(now());
        frees::note_killed(self.processes[position].index);
    }

    /// Pauses a worker.
    pub fn stop(&mut self, position: usize) {
        world::pause(self.processes[position].id);
        self.processes[position].is_stopped = true;
    }

    /// Lets paused workers go on, and replaces killed ones.
    pub fn heal(&mut self) {
        for position in 0..self.processes.len() {
            if std::mem::take(&mut self.processes[position].is_stopped) {
                world::resume(self.processes[position].id);
            }
            if self.processes[position].killed.is_some() {
                let replacement = self.start_process();
                let killed = std::mem::replace(&mut self.processes[position], replacement);
                self.keep_records(killed);
            }
        }
        self.await_all(|signals| &signals.is_ready);
    }

    /// Lets all workers make no more attempts. Blocks until they are idle.
    pub fn stop_work(&mut self) {
        for process in &self.processes {
            process.signals.stops.store(true, Ordering::SeqCst);
        }
        self.await_all(|signals| &signals.is_idle);
    }

    /// Ends all idle workers. Returns the records of all workers, in the order of their start.
    pub fn finish(&mut self) -> impl Iterator<Item = (Worker, Vec<Record>)> {
        thread::sleep(RESTED);
        let has_observers = self.plan.work.kinds.contains(&Kind::Election);
        let ended = if has_observers { ENDED_OBSERVERS } else { ENDED };
        for process in std::mem::take(&mut self.processes) {
            let growth = process.growth().map(|text| Promise::Growth.violation(text));
            self.violations.extend(growth);
            process.signals.ends.store(true, Ordering::SeqCst);
            let mut left = Vec::new();
            holds_within(ended, || {
                left = world::live_tasks(process.id);
                let connections = net::open_connections(process.id);
                if connections > 0 {
                    left.push(format!("{connections} connections"));
                }
                left.is_empty()
            });
            if !left.is_empty() {
                self.leftovers.push(format!("worker {}: {left:?}", process.index));
            }
            let miscounted =
                std::mem::take(&mut *process.signals.miscounted.lock().expect("no panic"));
            let told = miscounted.iter().map(|it| format!("worker {}: {it}", process.index));
            self.violations.extend(told.map(|text| Promise::Told.violation(text)));
            self.keep_records(process);
        }
        std::mem::take(&mut self.ended).into_values()
    }

    fn keep_records(&mut self, process: Process) {
        let records = std::mem::take(&mut *process.signals.records.lock().expect("no panic"));
        let Process { lease, killed, index, .. } = process;
        let most = world::most_tasks(process.id);
        if most > process.clients * MOST_TASKS {
            let text = format!("worker {index} had up to {most} tasks");
            self.violations.push(Promise::Growth.violation(text));
        }
        let mortal_at = self.plan.work.mortal.then(|| process.id.machine());
        let worker = Worker { lease, killed, mortal_at, linger: 0, stalls: Vec::new() };
        self.ended.insert(index, (worker, records));
    }
}

impl Process {
    /// Returns what has grown in this idle process, whose guards are gone.
    fn growth(&self) -> Option<String> {
        let (tasks, bytes) = (world::live_tasks(self.id), memory::bytes_of(self.id));
        let Process { index, clients, .. } = self;
        let has_grown = tasks.len() > clients * IDLE_TASKS || bytes > clients * IDLE_BYTES;
        has_grown.then(|| {
            let count = tasks.len();
            format!("worker {index}, idle: {bytes} bytes and {count} tasks: {tasks:?}")
        })
    }
}

/// Moves the time of day of a worker now and then, forward or back. Such a step excuses nothing.
fn step_time_of_day(process: ProcessId) {
    let micros = |most: Duration| world::random() % most.as_micros() as u64;
    for _ in 0..world::random() % STEPS {
        let span = micros(2 * STEP) as i64 - STEP.as_micros() as i64;
        let at = Duration::from_micros(micros(STEPPED));
        world::after(at, move || world::step_wall_clock(process, span));
    }
}

/// Runs a worker until it shall end.
fn run(index: usize, arguments: &Arguments, signals: &Signals) {
    let ledger = arguments.work.told.then(Arc::<Ledger>::default);
    let clients = arguments.clients_with(|settings| match &ledger {
        Some(ledger) => settings.events(Arc::clone(ledger)),
        None => settings,
    });
    signals.is_ready.store(true, Ordering::SeqCst);
    let sink = |record: &Record| {
        memory::of_nobody(|| {
            leases::note(index, record);
            frees::note(index, record);
            if matches!(record.event, Event::Asks(_)) {
                net::note_call();
            }
            world::note(|| format!("{} {}", world::current_process(), record.line()));
            signals.records.lock().expect("no panic").push(record.clone());
        });
    };
    program::work(arguments, &clients, &sink, &signals.stops);
    signals.is_idle.store(true, Ordering::SeqCst);
    while !signals.ends.load(Ordering::SeqCst) {
        thread::sleep(INTERVAL);
    }
    if let Some(ledger) = ledger {
        *signals.miscounted.lock().expect("no panic") = ledger.check(&clients);
    }
    drop(clients);
}
