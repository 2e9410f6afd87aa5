//! Injects the faults of a plan, at moments that follow from the seed.

use crate::checks::{Affected, Effect};
use crate::deployment::Deployment;
use crate::fault::Fault;
use crate::plan::Plan;
use crate::program::{Arguments, force_unlock};
use crate::schedule::{CUTS, Impact, SLOW, Schedule};
use crate::server::Server;
use crate::slots::slot;
use crate::system::now;
use crate::workers::Workers;
use leasehold_testserver::core::Data;
use simulated::net::{self, Direction, Flow, Whose};
use simulated::world;
use std::time::Duration;

/// The most slots that move during one fault.
const MOVES: usize = 3;

/// The settings of the limit of a server's memory, and of the number of replicas without which it
/// refuses writes; 0 for none.
const MAX_MEMORY: &str = "maxmemory";
const MIN_REPLICAS: &str = "min-replicas-to-write";

/// Injects the faults of a plan.
pub struct Nemesis<'a> {
    deployment: &'a Deployment,
    pub schedule: Schedule<'a>,
}

impl<'a> Nemesis<'a> {
    pub fn new(plan: &'a Plan, deployment: &'a Deployment) -> Nemesis<'a> {
        Nemesis { deployment, schedule: Schedule::new(plan) }
    }

    /// Injects the next fault after a rest, often with the fault of a worker beside it, and if the
    /// plan says so with another fault that begins later.
    ///
    /// Blocks until the faults have ended, all of them at once, and all servers work again.
    pub fn inject(&mut self, workers: &mut Workers<'_>) {
        self.schedule.rest();
        let (fault, beside) = self.schedule.next();
        let from = now();
        let mut faults: Vec<_> = [Some(fault), beside].into_iter().flatten().collect();
        let mut begun = Vec::new();
        for fault in &faults {
            begun.push((from, self.begin(*fault, workers)));
        }
        self.schedule.wait_out();
        if let Some(later) = self.schedule.during(&faults) {
            faults.push(later);
            begun.push((now(), self.begin(later, workers)));
            self.schedule.wait_out();
        }
        self.end(workers, faults.contains(&Fault::HalfOpen));
        let until = now();
        world::note(|| "-- the faults have ended".to_owned());
        for (fault, (from, impact)) in faults.iter().zip(begun) {
            self.schedule.record(format!("{fault:?}"), [from, until], impact);
        }
        for fault in faults {
            self.schedule.settle(fault);
        }
    }

    fn begin(&mut self, fault: Fault, workers: &mut Workers<'_>) -> Impact {
        world::note_fault(|| format!("-- {fault:?}"));
        match fault {
            Fault::Quiet => Impact::on_all_slots(Affected::Nobody, Effect::Delays),
            Fault::KillWorker
            | Fault::StopWorker
            | Fault::CutOffWorker
            | Fault::LateRequests
            | Fault::LateReplies => {
                let worker = self.schedule.rng.usize(..workers.len());
                self.begin_on_worker(fault, worker, workers)
            }
            Fault::CutOffSubscribers
            | Fault::KillConnections
            | Fault::KillSubscribers
            | Fault::FlushScripts => {
                self.begin_without_delay(fault);
                Impact::on_all_slots(Affected::Nobody, Effect::Delays)
            }
            Fault::DeleteLock | Fault::ForceUnlock => self.begin_on_lock(fault),
            Fault::HalfOpen | Fault::DelayReplies | Fault::CutReplies | Fault::CutRequests => {
                self.begin_on_connections(fault, workers);
                Impact::on_all_slots(Affected::All, Effect::Delays)
            }
            Fault::FullServer
            | Fault::LackReplicas
            | Fault::StopServers
            | Fault::KillServers
            | Fault::EmptyServer
            | Fault::MoveClock => Impact::on_all_slots(Affected::All, self.begin_on_servers(fault)),
            Fault::FailOver | Fault::KillMaster | Fault::StopMaster | Fault::CutOffMaster => {
                self.begin_on_master(fault, workers)
            }
            Fault::StopReplica | Fault::KillReplica | Fault::StopSentinel | Fault::KillSentinel => {
                self.begin_on_bystander(fault);
                self.schedule.impact_of_bystander(fault)
            }
            Fault::MoveSlot => {
                // The slots of some locks in use move, one after the other.
                for _ in 0..self.schedule.rng.usize(1..=MOVES) {
                    self.move_slot();
                }
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
                        self.schedule.pause(0..50);
                    }
                }
                _ => {
                    server.ask(&["SCRIPT", "FLUSH"]);
                }
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

    fn begin_on_lock(&mut self, fault: Fault) -> Impact {
        let lock = self.schedule.lock();
        if fault == Fault::DeleteLock {
            self.deployment.server_of(&lock).ask(&["DEL", &lock]);
        } else {
            let address = |arguments: &mut Arguments| self.deployment.add_addresses(arguments);
            let arguments = Arguments::beside_workers(self.schedule.plan, address);
            let forced = lock.clone();
            let force = move || force_unlock(&arguments, &forced);
            let forcing = world::spawn_in(world::start_process(0), "main", force);
            forcing.join().expect("no panic").expect("no fault prevents it");
        }
        Impact::on_lock(&lock)
    }

    /// Begins a fault between workers and servers.
    fn begin_on_connections(&mut self, fault: Fault, workers: &Workers<'_>) {
        let delay = Duration::from_millis(self.schedule.rng.u64(20..900));
        match fault {
            Fault::HalfOpen => self.fronts().for_each(|whose| set_both(whose, Flow::Swallow)),
            // Half of the workers: the others get their replies in time.
            Fault::DelayReplies => {
                for worker in 0..workers.len().div_ceil(2) {
                    let process = Some(workers.process(worker));
                    for whose in self.fronts() {
                        net::set_delay(Whose { process, ..whose }, Direction::Replies, delay);
                    }
                }
            }
            _ => {
                let replies = fault == Fault::CutReplies;
                let direction = if replies { Direction::Replies } else { Direction::Requests };
                // Delayed replies increase the time between a request and its repetition.
                for whose in self.fronts() {
                    net::set_delay(whose, Direction::Replies, delay.min(SLOW));
                }
                for _ in 0..CUTS {
                    // In the next message, or in one of the following.
                    let most = *self.schedule.rng.choice(&[8, 200]).expect("two");
                    let cut = Flow::CutAfter(self.schedule.rng.usize(0..most));
                    self.fronts().for_each(|whose| net::set_flow(whose, direction, cut));
                    self.schedule.pause(0..100);
                }
            }
        }
    }

    fn begin_on_servers(&mut self, fault: Fault) -> Effect {
        let servers = match fault {
            Fault::LackReplicas => self.deployment.serving(),
            _ => self.deployment.servers(),
        };
        let mut order: Vec<usize> = (0..servers.len()).collect();
        self.schedule.rng.shuffle(&mut order);
        // A minority, a majority or all of them.
        order.truncate(self.schedule.rng.usize(1..=servers.len()));
        for at in order {
            let server = &servers[at];
            match fault {
                Fault::FullServer => set(server, MAX_MEMORY, "1"),
                Fault::LackReplicas => set(server, MIN_REPLICAS, "9"),
                Fault::StopServers => self.deployment.pause(at),
                Fault::KillServers => self.deployment.kill(at, Data::Kept),
                Fault::EmptyServer => self.deployment.kill(at, Data::Lost),
                _ => net::set_clock_offset(server.id, self.schedule.step() * 1_000),
            }
        }
        self.schedule.effect_on_servers(fault)
    }

    fn begin_on_master(&mut self, fault: Fault, workers: &Workers<'_>) -> Impact {
        let master =
            *self.schedule.rng.choice(&self.deployment.masters()).expect("there is a master");
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
        let chosen = self.schedule.rng.usize(..workers.len());
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
        let bystanders = if is_sentinel {
            self.deployment.sentinels().collect()
        } else {
            self.deployment.replicas()
        };
        let one = *self.schedule.rng.choice(&bystanders).expect("there are some");
        match fault {
            Fault::StopReplica | Fault::StopSentinel => self.deployment.pause(one),
            _ => self.deployment.kill(one, Data::Lost),
        }
    }

    /// Moves the slot of a lock in use to another master.
    fn move_slot(&mut self) {
        let kind =
            *self.schedule.rng.choice(&self.schedule.plan.work.kinds).expect("there are some");
        // The first lock of a kind is always in use.
        let slot = slot(&kind.lock(0));
        let mut others = self.deployment.masters();
        let owner = self.deployment.owner_of(slot);
        others.retain(|place| *place != owner);
        let to = *self.schedule.rng.choice(&others).expect("there are others");
        self.deployment.move_slot(slot, to, || self.schedule.pause(0..500));
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
            if self.schedule.plan.faults.contains(&Fault::MoveClock) {
                net::set_clock_offset(server.id, 0);
            }
            if self.schedule.plan.faults.contains(&Fault::FullServer) {
                set(&server, MAX_MEMORY, "0");
            }
            if self.schedule.plan.faults.contains(&Fault::LackReplicas) {
                set(&server, MIN_REPLICAS, "0");
            }
        }
        workers.heal();
    }
}

fn set(server: &Server, setting: &str, value: &str) {
    server.ask(&["CONFIG", "SET", setting, value]);
}

/// Sets the flow of both directions.
fn set_both(whose: Whose, flow: Flow) {
    for direction in [Direction::Requests, Direction::Replies] {
        net::set_flow(whose, direction, flow);
    }
}
