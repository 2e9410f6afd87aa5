//! Injects the faults of a plan, at moments that follow from the seed.

use crate::checks::{ALL_SLOTS, Affected, Disturbance, Effect, Slots};
use crate::deployment::Deployment;
use crate::fault::{Fault, STEP};
use crate::plan::{Layout, Plan};
use crate::record::millis;
use crate::server::Server;
use crate::slots::slot;
use crate::system::{Nanos, now, thread};
use crate::workers::Workers;
use leasehold_testserver::core::Data;
use simulated::net::{self, Direction, Flow, Whose};
use std::ops::Range;
use std::time::Duration;

/// How long a fault may be felt after its end: a response time-out for a request that is in flight,
/// and as long again for the next connection.
const RECOVERY: Nanos = millis(2000);

/// The number of cuts during a fault that cuts connections.
const CUTS: usize = 12;

/// The most slots that move during one fault.
const MOVES: usize = 3;

/// The longest delay of replies while connections are cut.
const SLOW: Duration = Duration::from_millis(100);

/// Injects the faults of a plan.
pub struct Nemesis<'a> {
    plan: &'a Plan,
    deployment: &'a Deployment,
    rng: fastrand::Rng,
    /// The faults that come before any fault is repeated.
    pending: Vec<Fault>,
    /// How often all faults were shuffled into `pending`.
    rounds: usize,
    pub disturbances: Vec<Disturbance>,
}

/// The affected workers and slots of a fault, and its effect.
struct Impact {
    affected: Affected,
    effect: Effect,
    slots: Vec<Slots>,
}

impl Impact {
    fn on_all_slots(affected: Affected, effect: Effect) -> Impact {
        Impact { affected, effect, slots: vec![ALL_SLOTS] }
    }
}

impl<'a> Nemesis<'a> {
    pub fn new(plan: &'a Plan, deployment: &'a Deployment) -> Nemesis<'a> {
        let rng = fastrand::Rng::with_seed(plan.seed);
        let (pending, disturbances) = (Vec::new(), Vec::new());
        Nemesis { plan, deployment, rng, pending, rounds: 0, disturbances }
    }

    /// Whether every fault was injected once.
    pub fn has_injected_all(&self) -> bool {
        self.rounds > 0 && self.pending.is_empty()
    }

    /// Waits for a while without a fault.
    pub fn rest(&mut self) {
        self.pause(self.plan.quiet.clone());
    }

    /// Injects the next fault after a rest, and often the fault of a worker beside it.
    ///
    /// Blocks until the faults have ended and all servers work again.
    pub fn inject(&mut self, workers: &mut Workers<'_>) {
        self.rest();
        let fault = self.next_fault();
        let has_company = !fault.is_of_clients() && self.rng.u8(0..100) < 40;
        let beside = if has_company { self.client_fault() } else { None };
        let from = now();
        let mut begun = Vec::new();
        for fault in [Some(fault), beside].into_iter().flatten() {
            simulated::world::note_fault(|| format!("-- {fault:?}"));
            begun.push((fault, self.begin(fault, workers)));
        }
        self.pause(self.plan.lasting.clone());
        self.end(workers, begun.iter().any(|(fault, _)| *fault == Fault::HalfOpen));
        let until = now();
        simulated::world::note(|| "-- the faults have ended".to_owned());
        for (fault, Impact { affected, effect, slots }) in begun {
            let (name, felt_until) = (format!("{fault:?}"), until + RECOVERY);
            let of = Disturbance { name, from, until, felt_until, affected, effect, slots };
            self.disturbances.push(of);
        }
        if matches!(fault, Fault::EmptyServer | Fault::MoveClock) {
            // Tokens may be ahead of the clock for this long. A lost counter would repeat them, and
            // so would a clock that steps back after the loss.
            self.pause(STEP..STEP + 1);
        }
    }

    fn next_fault(&mut self) -> Fault {
        if self.pending.is_empty() {
            self.pending = self.plan.faults.clone();
            self.rng.shuffle(&mut self.pending);
            self.rounds += 1;
        }
        self.pending.pop().expect("a plan has faults")
    }

    fn client_fault(&mut self) -> Option<Fault> {
        let fault = self.rng.choice(Fault::CLIENTS).expect("there are some");
        self.plan.faults.contains(&fault).then_some(fault)
    }

    fn pause(&mut self, millis: Range<u64>) {
        thread::sleep(Duration::from_millis(self.rng.u64(millis)));
    }

    fn begin(&mut self, fault: Fault, workers: &mut Workers<'_>) -> Impact {
        match fault {
            Fault::Quiet => Impact::on_all_slots(Affected::Nobody, Effect::Delays),
            Fault::KillWorker
            | Fault::StopWorker
            | Fault::CutOffWorker
            | Fault::LateRequests
            | Fault::LateReplies => {
                let worker = self.rng.usize(..workers.len());
                self.begin_on_worker(fault, worker, workers)
            }
            Fault::CutOffSubscribers
            | Fault::KillConnections
            | Fault::KillSubscribers
            | Fault::FlushScripts => {
                self.begin_without_delay(fault);
                Impact::on_all_slots(Affected::Nobody, Effect::Delays)
            }
            Fault::HalfOpen | Fault::DelayReplies | Fault::CutReplies | Fault::CutRequests => {
                self.begin_on_connections(fault, workers);
                Impact::on_all_slots(Affected::All, Effect::Delays)
            }
            Fault::FullServer
            | Fault::StopServers
            | Fault::KillServers
            | Fault::EmptyServer
            | Fault::MoveClock => Impact::on_all_slots(Affected::All, self.begin_on_servers(fault)),
            Fault::FailOver | Fault::KillMaster | Fault::StopMaster | Fault::CutOffMaster => {
                self.begin_on_master(fault, workers)
            }
            Fault::StopReplica | Fault::KillReplica | Fault::StopSentinel | Fault::KillSentinel => {
                self.begin_on_bystander(fault);
                Impact::on_all_slots(Affected::Nobody, Effect::Delays)
            }
            Fault::MoveSlot => {
                self.move_slots();
                Impact::on_all_slots(Affected::All, Effect::Delays)
            }
        }
    }

    /// Returns the connections of all workers to each server with data.
    fn fronts(&self) -> impl Iterator<Item = Whose> {
        let servers = self.deployment.servers().into_iter();
        servers.map(|server| Whose { server: Some(server.id), ..Whose::default() })
    }

    /// Begins a fault that excuses no delay.
    fn begin_without_delay(&mut self, fault: Fault) {
        for server in self.deployment.serving() {
            let subscribers =
                |is| Whose { server: Some(server.id), subscribers: Some(is), ..Whose::default() };
            match fault {
                Fault::CutOffSubscribers => set_both(subscribers(true), Flow::Hold),
                // Only once: a request may fail if its connection is killed twice.
                Fault::KillConnections => net::reset(subscribers(false)),
                Fault::KillSubscribers => {
                    for _ in 0..CUTS {
                        net::reset(subscribers(true));
                        self.pause(0..50);
                    }
                }
                _ => drop(server.ask(&["SCRIPT", "FLUSH"])),
            }
        }
    }

    fn begin_on_worker(&self, fault: Fault, worker: usize, workers: &mut Workers<'_>) -> Impact {
        let process = workers.process(worker);
        let index = workers.index(worker);
        match fault {
            Fault::KillWorker => workers.kill(worker),
            Fault::StopWorker => workers.stop(worker),
            Fault::CutOffWorker => set_both(Whose::of(process), Flow::Hold),
            late => {
                let requests = late == Fault::LateRequests;
                let direction = if requests { Direction::Requests } else { Direction::Replies };
                for whose in self.fronts() {
                    net::set_flow(Whose { process: Some(process), ..whose }, direction, Flow::Hold);
                }
            }
        }
        Impact::on_all_slots(Affected::Worker(index), Effect::Delays)
    }

    /// Begins a fault between workers and servers.
    fn begin_on_connections(&mut self, fault: Fault, workers: &Workers<'_>) {
        let delay = Duration::from_millis(self.rng.u64(20..900));
        match fault {
            Fault::HalfOpen => self.fronts().for_each(|whose| set_both(whose, Flow::Swallow)),
            // Half of the workers: the others get their replies in time.
            Fault::DelayReplies => {
                for worker in 0..workers.len().div_ceil(2) {
                    let process = Some(workers.process(worker));
                    self.fronts().for_each(|whose| {
                        net::set_delay(Whose { process, ..whose }, Direction::Replies, delay);
                    });
                }
            }
            _ => {
                let replies = fault == Fault::CutReplies;
                let direction = if replies { Direction::Replies } else { Direction::Requests };
                // Delayed replies increase the time between a request and its repetition.
                self.fronts().for_each(|whose| {
                    net::set_delay(whose, Direction::Replies, delay.min(SLOW));
                });
                for _ in 0..CUTS {
                    // In the next message, or in one of the following.
                    let most = *self.rng.choice(&[8, 200]).expect("two");
                    let cut = Flow::CutAfter(self.rng.usize(0..most));
                    self.fronts().for_each(|whose| net::set_flow(whose, direction, cut));
                    self.pause(0..100);
                }
            }
        }
    }

    fn begin_on_servers(&mut self, fault: Fault) -> Effect {
        let servers = self.deployment.servers();
        let mut order: Vec<usize> = (0..servers.len()).collect();
        self.rng.shuffle(&mut order);
        // A minority, a majority or all of them.
        order.truncate(self.rng.usize(1..=servers.len()));
        for at in order {
            let server = &servers[at];
            match fault {
                Fault::FullServer => limit_memory(server, "1"),
                Fault::StopServers => self.deployment.pause(at),
                Fault::KillServers => self.deployment.kill(at, Data::Kept),
                Fault::EmptyServer => self.deployment.kill(at, Data::Lost),
                _ => {
                    let step = i64::try_from(STEP * 1_000).expect("a few seconds");
                    let step = if self.rng.bool() { step } else { -step };
                    net::set_clock_offset(server.id, step);
                }
            }
        }
        match fault {
            Fault::EmptyServer if self.plan.layout == Layout::One => Effect::LosesAllHolds,
            Fault::EmptyServer | Fault::MoveClock => Effect::LosesHolds,
            _ => Effect::Delays,
        }
    }

    fn begin_on_master(&mut self, fault: Fault, workers: &Workers<'_>) -> Impact {
        let master = *self.rng.choice(&self.deployment.masters()).expect("there is a master");
        let slots = self.deployment.slots_of(master);
        let mut effect = Effect::LosesHolds;
        match fault {
            Fault::FailOver => effect = self.deployment.fail_over(master),
            // Servers with replicas keep nothing on disk.
            Fault::KillMaster => self.deployment.kill(master, Data::Lost),
            Fault::StopMaster => self.deployment.pause(master),
            _ => self.cut_off_with_a_minority(master, workers),
        }
        if fault != Fault::FailOver {
            self.deployment.replace(master);
        }
        Impact { affected: Affected::All, effect, slots }
    }

    /// Separates the master, one sentinel and one worker from all others.
    fn cut_off_with_a_minority(&mut self, master: usize, workers: &Workers<'_>) {
        let sentinels = self.deployment.sentinels();
        let minority: Vec<_> =
            [Some(master), sentinels.clone().next()].into_iter().flatten().collect();
        self.deployment.cut_off(&minority);
        let chosen = self.rng.usize(..workers.len());
        let servers = self.deployment.servers().len();
        for worker in 0..workers.len() {
            for place in (0..servers).chain(sentinels.clone()) {
                if minority.contains(&place) != (worker == chosen) {
                    let server = Some(self.deployment.server(place).id);
                    let process = Some(workers.process(worker));
                    set_both(Whose { process, server, subscribers: None }, Flow::Hold);
                }
            }
        }
    }

    fn begin_on_bystander(&mut self, fault: Fault) {
        let is_sentinel = matches!(fault, Fault::StopSentinel | Fault::KillSentinel);
        let bystanders = match is_sentinel {
            true => self.deployment.sentinels().collect(),
            false => self.deployment.replicas(),
        };
        let one = *self.rng.choice(&bystanders).expect("there are some");
        match fault {
            Fault::StopReplica | Fault::StopSentinel => self.deployment.pause(one),
            _ => self.deployment.kill(one, Data::Lost),
        }
    }

    /// Moves the slots of some locks in use to other masters, one after the other.
    fn move_slots(&mut self) {
        for _ in 0..self.rng.usize(1..=MOVES) {
            self.move_slot();
        }
    }

    fn move_slot(&mut self) {
        let kind = *self.rng.choice(&self.plan.work.kinds).expect("there are some");
        // The first lock of a kind is always in use.
        let slot = slot(&kind.lock(0));
        let mut others = self.deployment.masters();
        let owner = self.deployment.owner_of(slot);
        others.retain(|place| *place != owner);
        let to = *self.rng.choice(&others).expect("there are others");
        self.deployment.move_slot(slot, to, || self.pause(0..500));
    }

    /// Ends all faults. Blocks until all servers and workers work again.
    fn end(&mut self, workers: &mut Workers<'_>, was_half_open: bool) {
        if was_half_open {
            // After lost bytes, the rest of the stream cannot be read.
            self.fronts().for_each(net::reset);
        }
        net::heal();
        self.deployment.heal();
        for server in self.deployment.servers() {
            if self.plan.faults.contains(&Fault::MoveClock) {
                net::set_clock_offset(server.id, 0);
            }
            if self.plan.faults.contains(&Fault::FullServer) {
                limit_memory(&server, "0");
            }
        }
        workers.heal();
    }
}

/// Sets the limit of a server's memory in bytes; 0 for none.
fn limit_memory(server: &Server, bytes: &str) {
    server.ask(&["CONFIG", "SET", "maxmemory", bytes]);
}

/// Sets the flow of both directions.
fn set_both(whose: Whose, flow: Flow) {
    for direction in [Direction::Requests, Direction::Replies] {
        net::set_flow(whose, direction, flow);
    }
}
