//! The servers of a run, and what they do about the faults of each other.
//!
//! Servers do not watch each other: a fail-over happens because the nemesis has it done, after as
//! long as real servers need to agree on it. Who learns of it when follows from the seed.

use crate::checks::{ALL_SLOTS, Effect, Slots};
use crate::peers::Peers;
use crate::plan::{Layout, Plan};
use crate::program::Arguments;
use crate::server::Server;
use crate::slots::slot;
use crate::system::{holds_within, thread};
use leasehold_testserver::core::{Address, ClusterMap, Core, Data, SLOTS};
use simulated::{net, world};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The name of the master for the sentinels.
const MASTER: &str = "main";

/// The number of sentinels, and of servers beside them.
const SENTINELS: usize = 3;
const REPLICATED: usize = 3;

/// The number of masters of a cluster, and of their replicas.
const SHARDS: usize = 3;

/// The milliseconds until sentinels agree on a fail-over.
const AGREED: Range<u64> = 500..3000;

/// The milliseconds until a sentinel or another replica learns of a fail-over.
const TOLD: Range<u64> = 0..1500;

/// The milliseconds until a sentinel makes a former master a replica. Until then it takes writes.
const DEMOTED: Range<u64> = 100..6000;

/// The milliseconds until the nodes of a cluster miss each other, and until an election has ended.
const MISSED: Range<u64> = 1500..2250;
const ELECTED: Range<u64> = 500..1000;

/// The milliseconds of the steps of a planned fail-over.
const PLANNED: Range<u64> = 0..200;

/// The milliseconds until a node of a cluster learns of a change, as a rule and at most.
const GOSSIP: Range<u64> = 0..20;
const LATE_GOSSIP: Range<u64> = 0..1000;

/// The time within which all servers have to agree.
const SETTLED: Duration = Duration::from_secs(60);

/// Who serves what, and who knows of it.
#[derive(Debug)]
struct Topology {
    /// The place of the master of each shard.
    masters: Vec<usize>,
    /// The number of changes.
    version: u64,
    /// The last change that each server knows.
    known: Vec<u64>,
    /// The map of a cluster.
    map: Rc<ClusterMap>,
}

/// The servers of a run, named by their places: those with data first, then the sentinels.
#[derive(Clone)]
pub struct Deployment {
    layout: Layout,
    peers: Rc<Peers>,
    topology: Rc<RefCell<Topology>>,
    /// The number of servers with data.
    count: usize,
}

/// Returns a random time.
fn random(millis: Range<u64>) -> Duration {
    let (start, span) = (millis.start * 1_000, (millis.end - millis.start) * 1_000);
    Duration::from_micros(start + world::random() % span)
}

/// Returns the id of a node of a cluster.
fn id(place: usize) -> String {
    format!("{:040x}", place + 1)
}

fn address(place: usize) -> Address {
    Address::new(&format!("10.0.0.{}", place + 1), 6379)
}

fn addresses(places: Range<usize>) -> Vec<Address> {
    places.map(address).collect()
}

impl Deployment {
    /// Starts the servers of a plan.
    pub fn start(plan: &Plan) -> Deployment {
        let (shards, count, sentinels) = match plan.layout {
            Layout::One => (1, 1, 0),
            Layout::Five => (5, 5, 0),
            Layout::Sentinel => (1, REPLICATED, SENTINELS),
            Layout::Cluster => (SHARDS, 2 * SHARDS, 0),
        };
        let start = |place: usize| {
            let seed = plan.seed.wrapping_add(place as u64 + 1);
            let (core, shard) = if place < count {
                (Core::new(seed), Some(place % shards))
            } else {
                (Core::new_sentinel(seed), None)
            };
            (Server::start(address(place), core), shard)
        };
        let all = count + sentinels;
        let peers = Peers::start((0..all).map(start).collect());
        let map = if plan.layout == Layout::Cluster { first_map() } else { ClusterMap::new() };
        let (masters, version, known) = ((0..shards).collect(), 1, vec![1; all]);
        let topology = Topology { masters, version, known, map: Rc::new(map) };
        let topology = Rc::new(RefCell::new(topology));
        let deployment = Deployment { layout: plan.layout, peers, topology, count };
        deployment.introduce(shards);
        deployment.settle();
        deployment
    }

    fn introduce(&self, shards: usize) {
        if self.layout == Layout::Cluster {
            let map = Rc::clone(&self.topology.borrow().map);
            for place in 0..self.count {
                self.server(place).with_core(|core| {
                    core.join_cluster(&id(place));
                    core.set_cluster_map(&map);
                });
            }
        }
        for replica in shards..self.count {
            let master = replica % shards;
            self.server(replica).with_core(|core| core.become_replica_of(address(master)));
            self.peers.follow(replica, master);
        }
        for sentinel in self.sentinels() {
            let mut others = addresses(self.sentinels());
            others.retain(|it| *it != address(sentinel));
            self.server(sentinel).with_core(|core| {
                core.set_master(MASTER, address(0), 0);
                core.set_companions(MASTER, &addresses(1..self.count), &others);
            });
        }
    }

    /// Adds the topology and the addresses of the servers to the arguments of a worker.
    pub fn add_addresses(&self, arguments: &mut Arguments) {
        let (topology, places) = match self.layout {
            Layout::One | Layout::Five => ("single", 0..self.count),
            Layout::Sentinel => (MASTER, self.sentinels()),
            Layout::Cluster => ("cluster", 0..self.count),
        };
        topology.clone_into(&mut arguments.topology);
        arguments.urls = places.map(|place| self.server(place).url()).collect();
    }

    pub fn server(&self, place: usize) -> Server {
        self.peers.server(place)
    }

    /// Returns all servers with data.
    pub fn servers(&self) -> Vec<Server> {
        (0..self.count).map(|place| self.server(place)).collect()
    }

    /// Returns the places of the sentinels.
    pub fn sentinels(&self) -> Range<usize> {
        self.count..self.peers.len()
    }

    /// Returns the places of the servers that serve locks.
    pub fn masters(&self) -> Vec<usize> {
        self.topology.borrow().masters.clone()
    }

    /// Returns the servers that serve locks.
    pub fn serving(&self) -> Vec<Server> {
        self.masters().into_iter().map(|place| self.server(place)).collect()
    }

    /// Returns the places of the replicas.
    pub fn replicas(&self) -> Vec<usize> {
        let masters = self.masters();
        (0..self.count).filter(|place| !masters.contains(place)).collect()
    }

    /// Returns the shard of a server with data.
    fn shard(&self, place: usize) -> usize {
        place % self.topology.borrow().masters.len()
    }

    /// Returns the place of the master of a server with data.
    fn master_of(&self, place: usize) -> usize {
        self.topology.borrow().masters[self.shard(place)]
    }

    /// Returns the slots of a master: all slots, except in a cluster.
    pub fn slots_of(&self, master: usize) -> Vec<Slots> {
        if self.layout != Layout::Cluster {
            return vec![ALL_SLOTS];
        }
        let (map, own) = (Rc::clone(&self.topology.borrow().map), id(master));
        let mut ranges: Vec<Slots> = Vec::new();
        for slot in (0..SLOTS).filter(|slot| map.owner_id(*slot) == Some(&own)) {
            match ranges.last_mut() {
                Some(last) if last.end() + 1 == slot => *last = *last.start()..=slot,
                _ => ranges.push(slot..=slot),
            }
        }
        ranges
    }

    /// Returns the place of the node that serves a slot.
    pub fn owner_of(&self, slot: u16) -> usize {
        let map = Rc::clone(&self.topology.borrow().map);
        let owner = map.owner_id(slot).expect("each slot has an owner");
        (0..self.count).find(|place| id(*place) == owner).expect("a node of the map")
    }

    /// Returns the server that serves a lock.
    pub fn server_of(&self, lock: &str) -> Server {
        match self.layout {
            Layout::Cluster => self.server(self.owner_of(slot(lock))),
            _ => self.server(self.masters()[0]),
        }
    }

    // --- faults

    /// Pauses a server until [`Deployment::heal`].
    pub fn pause(&self, place: usize) {
        self.peers.pause(place);
    }

    /// Kills a server. [`Deployment::heal`] starts it again, with these data.
    pub fn kill(&self, place: usize, data: Data) {
        self.peers.kill(place, data);
        if self.layout == Layout::Cluster {
            self.topology.borrow_mut().known[place] = 0;
        }
    }

    /// Cuts these servers off from all others.
    pub fn cut_off(&self, minority: &[usize]) {
        self.peers.cut_off(minority);
        if self.layout != Layout::Cluster {
            return;
        }
        for place in minority.iter().copied() {
            let deployment = self.clone();
            // A node of a cluster stops to serve once it has not heard from most others.
            world::after(random(MISSED), move || {
                if deployment.peers.is_cut_off(place) {
                    deployment.topology.borrow_mut().known[place] = 0;
                    deployment.server(place).with_core(|core| core.set_cluster_connected(false));
                }
            });
        }
    }

    /// Replaces a master by a planned fail-over. Returns the effect.
    pub fn fail_over(&self, master: usize) -> Effect {
        match self.layout {
            Layout::Cluster => {
                self.hand_over(master);
                Effect::Delays
            }
            _ => {
                thread::sleep(random(PLANNED));
                self.promote(self.best_replica(master));
                self.await_sentinels();
                Effect::LosesHolds
            }
        }
    }

    /// Blocks until a replica has replaced a master that most others do not reach.
    pub fn replace(&self, master: usize) {
        if self.layout != Layout::Cluster {
            thread::sleep(random(AGREED));
            self.promote(self.best_replica(master));
            self.await_sentinels();
            return;
        }
        thread::sleep(random(MISSED));
        // A cluster serves nothing while a slot is without a master.
        for place in (0..self.count).filter(|place| self.peers.is_well(*place)) {
            self.topology.borrow_mut().known[place] = 0;
            self.server(place).with_core(|core| core.set_cluster_connected(false));
        }
        thread::sleep(random(ELECTED));
        self.promote(self.best_replica(master));
    }

    /// Replaces the master of a shard without a loss, as `CLUSTER FAILOVER` does.
    fn hand_over(&self, master: usize) {
        thread::sleep(random(PLANNED));
        let (server, replica) = (self.server(master), self.best_replica(master));
        // The master lets its clients wait until its replica has all.
        net::pause_server(server.id);
        // A question of a check may still write there: the first look at a key after its end.
        let offset = |server: &Server| server.with_core(|core| core.offset());
        wait_until("the replica has all", || offset(&self.server(replica)) == offset(&server));
        thread::sleep(random(PLANNED));
        self.promote(replica);
        wait_until("the former master knows", || self.knows(master));
        net::resume_server(server.id);
    }

    /// Returns the replica of a master with the most data, of those that most others reach.
    fn best_replica(&self, master: usize) -> usize {
        let shard = self.shard(master);
        let replicas = self.replicas().into_iter().filter(|place| self.shard(*place) == shard);
        let reached = replicas.filter(|place| self.peers.is_well(*place));
        let best = reached.max_by_key(|place| self.server(*place).with_core(|core| core.offset()));
        best.expect("a replica runs")
    }

    fn promote(&self, replica: usize) {
        world::note_fault(|| format!("server {replica} becomes a master"));
        let shard = self.shard(replica);
        {
            let mut topology = self.topology.borrow_mut();
            topology.masters[shard] = replica;
            topology.version += 1;
            if self.layout == Layout::Cluster {
                Rc::make_mut(&mut topology.map).fail_over(&id(replica));
            }
        }
        self.learn(replica);
        self.spread();
    }

    /// Blocks until most sentinels know the master.
    fn await_sentinels(&self) {
        wait_until("sentinels know the master", || {
            self.sentinels().filter(|place| self.knows(*place)).count() * 2 > SENTINELS
        });
    }

    /// Moves a slot to another master of a cluster. Blocks until all nodes know of it. `pause` is
    /// called between the steps.
    pub fn move_slot(&self, slot: u16, to: usize, mut pause: impl FnMut()) {
        let (source, target) = (self.server(self.owner_of(slot)), self.server(to));
        world::note_fault(|| format!("the slot {slot} moves to server {to}"));
        target.with_core(|core| core.begin_import(slot));
        source.with_core(|core| core.begin_migration(slot, &id(to)));
        pause();
        loop {
            let mut keys = source.with_core(|core| core.keys_in_slot(slot));
            keys.sort();
            let Some(key) = keys.first() else { break };
            // As by MIGRATE, which ends when the key is at the target.
            if let Some(key) = source.with_core(|core| core.export_key(key)) {
                target.with_core(|core| core.import_key(key));
            }
            thread::sleep(random(0..5));
        }
        pause();
        {
            let mut topology = self.topology.borrow_mut();
            topology.version += 1;
            Rc::make_mut(&mut topology.map).give(slot, &id(to));
        }
        self.learn(to);
        self.spread();
        self.settle();
    }

    /// Ends all faults. Blocks until all servers work again.
    pub fn heal(&self) {
        for place in self.peers.heal() {
            if self.layout == Layout::Cluster {
                // A node serves when it has heard from the others.
                self.server(place).with_core(|core| core.set_cluster_connected(false));
            }
        }
        self.spread();
        self.settle();
    }

    /// Blocks until all servers agree, and all replicas follow their masters.
    fn settle(&self) {
        let follows = |place: &usize| self.peers.follows(*place, self.master_of(*place));
        wait_until("the servers agree", || {
            (0..self.peers.len()).all(|place| self.knows(place))
                && self.replicas().iter().all(follows)
        });
    }

    // --- who learns what

    fn knows(&self, place: usize) -> bool {
        let topology = self.topology.borrow();
        topology.known[place] == topology.version
    }

    /// Lets all servers that do not know the present masters learn of them, each after a while.
    fn spread(&self) {
        for place in (0..self.peers.len()).filter(|place| !self.knows(*place)) {
            let (deployment, span) = (self.clone(), random(self.time_to_learn(place)));
            world::after(span, move || {
                // Another try comes when the others reach it.
                if deployment.peers.is_well(place) && !deployment.knows(place) {
                    deployment.learn(place);
                }
            });
        }
    }

    fn time_to_learn(&self, place: usize) -> Range<u64> {
        let is_late = world::random().is_multiple_of(4);
        match self.layout {
            Layout::Cluster if is_late => LATE_GOSSIP,
            Layout::Cluster => GOSSIP,
            _ if place < self.count && self.server(place).with_core(|it| it.master().is_none()) => {
                DEMOTED
            }
            _ => TOLD,
        }
    }

    /// Tells a server the present masters.
    fn learn(&self, place: usize) {
        world::note(|| format!("server {place} learns of the masters"));
        let (version, map) = {
            let topology = self.topology.borrow();
            (topology.version, Rc::clone(&topology.map))
        };
        self.topology.borrow_mut().known[place] = version;
        if place < self.count {
            self.take_role(place);
        }
        self.server(place).with_core(|core| {
            core.set_master(MASTER, address(self.master_of(0)), version - 1);
            core.set_cluster_map(&map);
            core.set_cluster_connected(true);
        });
    }

    /// Makes a server what it is by the present masters.
    fn take_role(&self, place: usize) {
        let (server, master) = (self.server(place), self.master_of(place));
        let present = server.with_core(|core| core.master());
        let wanted = (place != master).then(|| address(master));
        if present == wanted {
            return;
        }
        server.with_core(|core| {
            match wanted {
                None => core.promote(),
                Some(master) => core.become_replica_of(master),
            }
            // Sentinels have it end all connections; nodes of a cluster keep them.
            if self.layout == Layout::Sentinel {
                core.close_connections();
            }
        });
        if place == master { self.peers.lead(place) } else { self.peers.follow(place, master) }
    }
}

/// Returns the map of a new cluster.
fn first_map() -> ClusterMap {
    let mut map = ClusterMap::new();
    let first = |shard: usize| (shard * usize::from(SLOTS) / SHARDS) as u16;
    for shard in 0..SHARDS {
        map.add_master(&id(shard), address(shard), first(shard)..=first(shard + 1) - 1);
    }
    for shard in 0..SHARDS {
        map.add_replica(&id(SHARDS + shard), address(SHARDS + shard), &id(shard));
    }
    map
}

/// Blocks until a condition holds. Panics if it does not come about.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(SETTLED, holds), "never happened: {what}");
}
