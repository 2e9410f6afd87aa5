//! Injects faults in an order and at moments that follow from a seed.

use super::checks::{Affected, Effect};
use super::deployment::{Deployment, whose, wipe};
use super::fault::Fault;
use super::plan::{Layout, Plan};
use super::program::{Arguments, force_unlock};
use super::schedule::{CUTS, Impact, SLOW, Schedule};
use super::workers::Workers;
use crate::harness::{Connections, Direction, Flow, Proxy, Server};
use crate::system::{Nanos, now};
use std::time::Duration;

/// Kills either the subscribers or the other connections of the workers.
///
/// The connections of sentinels stay: a sentinel whose connection is killed may consider the master
/// down.
fn kill(server: &Server, subscribers: bool) {
    let ours = server.clients().into_iter().filter(|peer| peer.name.starts_with("leasehold:"));
    for peer in ours.filter(|peer| peer.flags.contains('P') == subscribers) {
        // The connection may have closed in the meantime.
        server.client_kill(peer.id);
    }
}

/// The setting of the number of replicas without which a server refuses writes.
const MIN_REPLICAS: &str = "min-replicas-to-write";

/// Injects the faults of a plan.
pub struct Nemesis<'a> {
    deployment: &'a Deployment,
    pub schedule: Schedule<'a>,
    /// The masters at the last look, and its moment.
    masters: (Masters, Nanos),
}

/// The ports of the masters, and the number of changes: a master may be replaced and come back.
type Masters = (Vec<u16>, u64);

fn masters(deployment: &Deployment) -> Masters {
    (deployment.masters().into_iter().map(Server::port).collect(), deployment.epoch())
}

/// Whether this fault alone explains the change: one replaced master, or a moved slot.
fn explains(fault: Fault, (before, epoch): &Masters, (after, later): &Masters) -> bool {
    let gone = before.iter().filter(|port| !after.contains(port)).count();
    let explained = match fault {
        Fault::MoveSlot => before == after,
        fault => fault.is_of_masters() && gone <= 1,
    };
    explained && *later <= epoch + 1
}

impl<'a> Nemesis<'a> {
    pub fn new(plan: &'a Plan, deployment: &'a Deployment) -> Nemesis<'a> {
        let (schedule, masters) = (Schedule::new(plan), (masters(deployment), now()));
        Nemesis { deployment, schedule, masters }
    }

    /// Records a change of masters that `fault` does not explain.
    ///
    /// Servers on a busy machine may consider each other down without a fault, and lose data by
    /// the fail-over.
    pub fn record_unexplained_change(&mut self, fault: Fault) {
        let (masters, now) = (masters(self.deployment), now());
        let (before, from) = std::mem::replace(&mut self.masters, (masters, now));
        let after = &self.masters.0;
        if before != *after && !explains(fault, &before, after) {
            let impact = Impact::on_all_slots(Affected::All, Effect::LosesHolds);
            self.schedule.record("change of masters".to_owned(), [from, now], impact);
        }
    }

    /// Waits for a while without a fault.
    pub fn rest(&mut self) {
        self.schedule.rest();
        self.record_unexplained_change(Fault::Quiet);
    }

    /// Injects the next fault after a rest, and often the fault of a worker beside it.
    ///
    /// Blocks until the faults have ended and all servers work again.
    pub fn inject(&mut self, workers: &mut Workers) {
        self.rest();
        let (fault, beside) = self.schedule.next();
        self.deployment.identify();
        let from = now();
        let mut begun = Vec::new();
        for fault in [Some(fault), beside].into_iter().flatten() {
            begun.push((fault, self.begin(fault, workers)));
        }
        self.schedule.wait_out();
        self.end(workers, begun.iter().any(|(fault, _)| *fault == Fault::HalfOpen));
        let until = now();
        self.record_unexplained_change(fault);
        for (fault, impact) in begun {
            self.schedule.record(format!("{fault:?}"), [from, until], impact);
        }
        self.schedule.settle(fault);
    }

    fn begin(&mut self, fault: Fault, workers: &mut Workers) -> Impact {
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
            | Fault::FlushScripts => self.begin_without_delay(fault),
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
                self.move_slot();
                Impact::on_all_slots(Affected::All, Effect::Delays)
            }
        }
    }

    fn begin_on_worker(&self, fault: Fault, worker: usize, workers: &mut Workers) -> Impact {
        let member = workers.member(worker);
        match fault {
            Fault::KillWorker => workers.kill(worker),
            Fault::StopWorker => workers.stop(worker),
            Fault::CutOffWorker => self.deployment.cut_off_client(&member, |_| true),
            late => {
                let requests = late == Fault::LateRequests;
                let direction = if requests { Direction::Requests } else { Direction::Replies };
                let whose = whose(member);
                for front in self.deployment.fronts() {
                    front.set_for(whose.clone(), direction, Flow::Hold);
                }
            }
        }
        Impact::on_all_slots(Affected::Worker(workers.index(worker)), Effect::Delays)
    }

    /// Begins a fault that excuses no delay.
    fn begin_without_delay(&mut self, fault: Fault) -> Impact {
        for server in self.deployment.masters() {
            match fault {
                Fault::CutOffSubscribers => server.gate().keep_apart(&Connections::Subscribers),
                // Only once: a request may fail if its connection is killed twice.
                Fault::KillConnections => kill(server, false),
                Fault::KillSubscribers => {
                    for _ in 0..CUTS {
                        kill(server, true);
                        self.schedule.pause(0..50);
                    }
                }
                _ => server.ask::<()>(&["SCRIPT", "FLUSH"]),
            }
        }
        Impact::on_all_slots(Affected::Nobody, Effect::Delays)
    }

    fn begin_on_lock(&mut self, fault: Fault) -> Impact {
        let lock = self.schedule.lock();
        if fault == Fault::DeleteLock {
            self.deployment.server_of(&lock).ask::<()>(&["DEL", &lock]);
        } else {
            let address = |arguments: &mut Arguments| self.deployment.add_addresses(arguments);
            let arguments = Arguments::beside_workers(self.schedule.plan, address);
            force_unlock(&arguments, &lock).expect("no fault prevents it");
        }
        Impact::on_lock(&lock)
    }

    /// Begins a fault between workers and servers. Servers reach each other.
    fn begin_on_connections(&mut self, fault: Fault, workers: &Workers) {
        let delay = Duration::from_millis(self.schedule.rng.u64(20..900));
        match fault {
            Fault::HalfOpen => {
                self.set_for_all(workers, Direction::Requests, Flow::Swallow);
                self.set_for_all(workers, Direction::Replies, Flow::Swallow);
            }
            // Half of the workers: the others get their replies in time.
            Fault::DelayReplies => {
                self.for_each_proxy(workers.len().div_ceil(2), workers, |front, worker| {
                    front.delay_for(worker, Direction::Replies, delay);
                })
            }
            _ => {
                let replies = fault == Fault::CutReplies;
                let direction = if replies { Direction::Replies } else { Direction::Requests };
                // Delayed replies increase the time between a request and its repetition.
                let slow = delay.min(SLOW);
                self.for_each_proxy(workers.len(), workers, |front, worker| {
                    front.delay_for(worker, Direction::Replies, slow);
                });
                for _ in 0..CUTS {
                    // In the next message, or in one of the following.
                    let most = *self.schedule.rng.choice(&[8, 200]).expect("two");
                    let cut = Flow::CutAfter(self.schedule.rng.usize(0..most));
                    self.set_for_all(workers, direction, cut);
                    self.schedule.pause(0..100);
                }
            }
        }
    }

    fn set_for_all(&self, workers: &Workers, direction: Direction, flow: Flow) {
        self.for_each_proxy(workers.len(), workers, |front, worker| {
            front.set_for(worker, direction, flow)
        });
    }

    /// Calls `act` with every proxy and each of the first `count` workers.
    fn for_each_proxy(&self, count: usize, workers: &Workers, act: impl Fn(&Proxy, Connections)) {
        for front in self.deployment.fronts() {
            for worker in 0..count {
                act(front, whose(workers.member(worker)));
            }
        }
    }

    fn begin_on_servers(&mut self, fault: Fault) -> Effect {
        let mut servers: Vec<&Server> = self.deployment.servers().iter().collect();
        self.schedule.rng.shuffle(&mut servers);
        // A minority, a majority or all of them.
        let some = self.schedule.rng.usize(1..=servers.len());
        for server in &servers[..some] {
            match fault {
                Fault::FullServer => server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]),
                Fault::LackReplicas => server.ask::<()>(&["CONFIG", "SET", MIN_REPLICAS, "9"]),
                Fault::StopServers => self.deployment.stop(server),
                Fault::KillServers => self.deployment.kill(server),
                Fault::EmptyServer => {
                    self.deployment.kill(server);
                    wipe(server);
                }
                _ => server.set_clock(self.schedule.step()),
            }
        }
        self.schedule.effect_on_servers(fault)
    }

    fn begin_on_master(&mut self, fault: Fault, workers: &mut Workers) -> Impact {
        let masters = self.deployment.masters();
        let master = *self.schedule.rng.choice(&masters).expect("there is a master");
        let replica = match self.schedule.plan.layout {
            Layout::Cluster => self.deployment.cluster().replica_of(master),
            _ => self.deployment.replicas().first().copied().expect("there is a replica"),
        };
        let slots = self.deployment.slots_of(master);
        let mut effect = Effect::LosesHolds;
        match fault {
            Fault::FailOver => effect = self.deployment.fail_over(master),
            Fault::KillMaster => self.deployment.kill(master),
            Fault::StopMaster => self.deployment.stop(master),
            _ => self.cut_off_with_a_minority(master, workers),
        }
        self.deployment.await_replacement(master, replica);
        Impact { affected: Affected::All, effect, slots }
    }

    /// Separates the master, one sentinel and one worker from all others.
    fn cut_off_with_a_minority(&mut self, master: &Server, workers: &Workers) {
        let sentinel = self.deployment.sentinels().first();
        let minority: Vec<_> = [Some(master), sentinel].into_iter().flatten().collect();
        self.deployment.cut_off(&minority);
        let inside = |server: &Server| minority.iter().any(|one| one.port() == server.port());
        let chosen = self.schedule.rng.usize(..workers.len());
        for worker in 0..workers.len() {
            self.deployment.cut_off_client(&workers.member(worker), |server| {
                inside(server) != (worker == chosen)
            });
        }
    }

    fn begin_on_bystander(&mut self, fault: Fault) {
        let sentinels = self.deployment.sentinels().iter().collect();
        let replicas = self.deployment.replicas();
        let sentinel = matches!(fault, Fault::StopSentinel | Fault::KillSentinel);
        let bystanders: Vec<_> = if sentinel { sentinels } else { replicas };
        let one = *self.schedule.rng.choice(&bystanders).expect("there are some");
        match fault {
            Fault::StopReplica | Fault::StopSentinel => self.deployment.stop(one),
            _ => self.deployment.kill(one),
        }
    }

    /// Moves the slot of a lock in use to another master.
    fn move_slot(&mut self) {
        let cluster = self.deployment.cluster();
        let kind =
            *self.schedule.rng.choice(&self.schedule.plan.work.kinds).expect("there are some");
        // The first lock of a kind is always in use.
        let slot = cluster.slot_of(&kind.lock(0));
        let owner = cluster.owner_of_slot(slot).port();
        let masters = self.deployment.masters();
        let others: Vec<_> = masters.into_iter().filter(|other| other.port() != owner).collect();
        let to = *self.schedule.rng.choice(&others).expect("there are others");
        cluster.begin_migration(slot, to);
        self.schedule.pause(0..500);
        cluster.move_keys(slot, to);
        self.schedule.pause(0..500);
        cluster.end_migration(slot, to);
    }

    /// Ends all faults. Blocks until all servers and workers work again.
    fn end(&self, workers: &mut Workers, half_open: bool) {
        if half_open {
            // After dropped bytes, the rest of the stream cannot be parsed.
            self.deployment.fronts().for_each(Proxy::refuse);
            self.for_each_proxy(workers.len(), workers, |front, worker| front.kill(&worker));
        }
        self.deployment.heal();
        for server in self.deployment.servers() {
            if self.schedule.plan.faults.contains(&Fault::MoveClock) {
                server.set_clock(0);
            }
            if self.schedule.plan.faults.contains(&Fault::FullServer) {
                server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            if self.schedule.plan.faults.contains(&Fault::LackReplicas) {
                server.ask::<()>(&["CONFIG", "SET", MIN_REPLICAS, "0"]);
            }
        }
        workers.heal();
    }
}
