//! Injects the faults of a plan, at moments that follow from the seed.

use crate::checks::{ALL_SLOTS, Affected, Disturbance, Effect, Slots};
use crate::fault::{Fault, STEP};
use crate::plan::{Layout, Plan};
use crate::record::millis;
use crate::server::Server;
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

/// The longest delay of replies while connections are cut.
const SLOW: Duration = Duration::from_millis(100);

const BOTH: [Direction; 2] = [Direction::Requests, Direction::Replies];

/// Injects the faults of a plan.
pub struct Nemesis<'a> {
    plan: &'a Plan,
    servers: &'a [Server],
    rng: fastrand::Rng,
    /// The faults that come before any fault is repeated.
    pending: Vec<Fault>,
    /// How often all faults were shuffled into `pending`.
    rounds: usize,
    /// The killed servers, and what they will have after their start.
    down: Vec<(usize, Data)>,
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
    pub fn new(plan: &'a Plan, servers: &'a [Server]) -> Nemesis<'a> {
        let rng = fastrand::Rng::with_seed(plan.seed);
        let (pending, down, disturbances) = (Vec::new(), Vec::new(), Vec::new());
        Nemesis { plan, servers, rng, pending, rounds: 0, down, disturbances }
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
        if fault == Fault::MoveClock {
            // Tokens may be ahead of the clock for this long. A lost counter would repeat them.
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
                begin_on_worker(fault, worker, workers)
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
            Fault::FailOver
            | Fault::KillMaster
            | Fault::StopMaster
            | Fault::CutOffMaster
            | Fault::StopReplica
            | Fault::KillReplica
            | Fault::StopSentinel
            | Fault::KillSentinel
            | Fault::MoveSlot => unreachable!("no plan of the simulation has {fault:?}"),
        }
    }

    /// Begins a fault that excuses no delay.
    fn begin_without_delay(&mut self, fault: Fault) {
        let subscribers = |is| Whose { subscribers: Some(is), ..Whose::default() };
        match fault {
            Fault::CutOffSubscribers => {
                BOTH.into_iter()
                    .for_each(|direction| net::set_flow(subscribers(true), direction, Flow::Hold));
            }
            // Only once: a request may fail if its connection is killed twice.
            Fault::KillConnections => net::reset(subscribers(false)),
            Fault::KillSubscribers => {
                for _ in 0..CUTS {
                    net::reset(subscribers(true));
                    self.pause(0..50);
                }
            }
            _ => self.servers.iter().for_each(|server| drop(server.ask(&["SCRIPT", "FLUSH"]))),
        }
    }

    /// Begins a fault between workers and servers.
    fn begin_on_connections(&mut self, fault: Fault, workers: &Workers<'_>) {
        let delay = Duration::from_millis(self.rng.u64(20..900));
        match fault {
            Fault::HalfOpen => {
                BOTH.into_iter().for_each(|direction| {
                    net::set_flow(Whose::default(), direction, Flow::Swallow)
                });
            }
            // Half of the workers: the others get their replies in time.
            Fault::DelayReplies => {
                for worker in 0..workers.len().div_ceil(2) {
                    let whose = Whose::of(workers.process(worker));
                    net::set_delay(whose, Direction::Replies, delay);
                }
            }
            _ => {
                let replies = fault == Fault::CutReplies;
                let direction = if replies { Direction::Replies } else { Direction::Requests };
                // Delayed replies increase the time between a request and its repetition.
                net::set_delay(Whose::default(), Direction::Replies, delay.min(SLOW));
                for _ in 0..CUTS {
                    // In the next message, or in one of the following.
                    let most = *self.rng.choice(&[8, 200]).expect("two");
                    let cut = Flow::CutAfter(self.rng.usize(0..most));
                    net::set_flow(Whose::default(), direction, cut);
                    self.pause(0..100);
                }
            }
        }
    }

    fn begin_on_servers(&mut self, fault: Fault) -> Effect {
        let mut order: Vec<usize> = (0..self.servers.len()).collect();
        self.rng.shuffle(&mut order);
        // A minority, a majority or all of them.
        order.truncate(self.rng.usize(1..=self.servers.len()));
        for at in order {
            let server = &self.servers[at];
            match fault {
                Fault::FullServer => limit_memory(server, "1"),
                Fault::StopServers => net::pause_server(server.id),
                Fault::KillServers | Fault::EmptyServer => {
                    let is_lost = fault == Fault::EmptyServer;
                    server.kill();
                    self.down.push((at, if is_lost { Data::Lost } else { Data::Kept }));
                }
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

    /// Ends all faults. Blocks until all workers work again.
    fn end(&mut self, workers: &mut Workers<'_>, was_half_open: bool) {
        if was_half_open {
            // After lost bytes, the rest of the stream cannot be read.
            net::reset(Whose::default());
        }
        net::heal();
        for (at, data) in std::mem::take(&mut self.down) {
            self.servers[at].restart(data);
        }
        for server in self.servers {
            net::resume_server(server.id);
            if self.plan.faults.contains(&Fault::MoveClock) {
                net::set_clock_offset(server.id, 0);
            }
            limit_memory(server, "0");
        }
        workers.heal();
    }
}

/// Sets the limit of a server's memory in bytes; 0 for none.
fn limit_memory(server: &Server, bytes: &str) {
    server.ask(&["CONFIG", "SET", "maxmemory", bytes]);
}

fn begin_on_worker(fault: Fault, worker: usize, workers: &mut Workers<'_>) -> Impact {
    let whose = Whose::of(workers.process(worker));
    let index = workers.index(worker);
    match fault {
        Fault::KillWorker => workers.kill(worker),
        Fault::StopWorker => workers.stop(worker),
        Fault::CutOffWorker => {
            BOTH.into_iter().for_each(|direction| net::set_flow(whose, direction, Flow::Hold));
        }
        Fault::LateRequests => net::set_flow(whose, Direction::Requests, Flow::Hold),
        _ => net::set_flow(whose, Direction::Replies, Flow::Hold),
    }
    Impact::on_all_slots(Affected::Worker(index), Effect::Delays)
}
