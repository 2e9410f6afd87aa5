//! The servers of a run among each other: what they send, and what keeps them from it.

use crate::server::{Sent, Server};
use leasehold_testserver::core::{Data, LogEntry, Snapshot};
use simulated::{net, world};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The time of a packet on its way, in microseconds: at least, and the part that is random.
const WAY: (u64, u64) = (20, 80);

/// One of this many packets takes longer, by up to this many microseconds, and all behind it.
const SLOW: (u64, u64) = (40, 30_000);

/// The longest time of all data on their way to a replica, in microseconds.
const COPIED: u64 = 100_000;

/// How often a replica acknowledges what it has, and tries to reach its master.
const TURN: Duration = Duration::from_secs(1);

/// What a packet does where it arrives.
type Act = Box<dyn FnOnce(&Rc<Peers>)>;

/// What becomes of a packet that cannot arrive yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The packet waits, as on a connection that outlasts a partition.
    Stream,
    /// The packet is lost, as on the bus of a cluster.
    Bus,
}

/// The packets from one server to another, which arrive in their order.
#[derive(Default)]
struct Wire {
    /// The moment at which the last packet arrives, in nanoseconds.
    last: u64,
    held: VecDeque<Act>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Paused,
    Down(Data),
}

/// The connection of a replica to its master.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    master: Option<usize>,
    /// Another one for each attempt to connect.
    number: u64,
    /// The master sends its log.
    is_fed: bool,
    /// The replica has got all data.
    is_up: bool,
}

impl Link {
    /// Ends the connection: packets with its number do nothing from now on.
    fn end(&mut self) {
        (self.is_fed, self.is_up, self.number) = (false, false, self.number + 1);
    }
}

/// A server as the others find it.
struct Peer {
    server: Server,
    state: State,
    /// The server reaches only the others that are cut off.
    is_cut_off: bool,
    /// The servers with the same number share their data and their sharded messages.
    shard: Option<usize>,
    link: Link,
}

/// The servers of a run, named by their places.
pub struct Peers {
    peers: RefCell<Vec<Peer>>,
    wires: RefCell<BTreeMap<(usize, usize), Wire>>,
}

impl Peers {
    /// Connects servers, each with the number of its shard if it has data.
    pub fn start(servers: Vec<(Server, Option<usize>)>) -> Rc<Peers> {
        let peer = |(server, shard)| {
            let (state, is_cut_off, link) = (State::Runs, false, Link::default());
            Peer { server, state, is_cut_off, shard, link }
        };
        let peers = RefCell::new(servers.into_iter().map(peer).collect());
        let peers = Rc::new(Peers { peers, wires: RefCell::default() });
        for place in 0..peers.len() {
            let weak = Rc::downgrade(&peers);
            peers.server(place).set_outbox(move |sent| {
                if let Some(peers) = weak.upgrade() {
                    peers.carry(place, sent);
                }
            });
            if peers.shard(place).is_some() {
                take_turn(Rc::downgrade(&peers), place);
            }
        }
        peers
    }

    pub fn len(&self) -> usize {
        self.peers.borrow().len()
    }

    pub fn server(&self, place: usize) -> Server {
        self.peers.borrow()[place].server.clone()
    }

    fn shard(&self, place: usize) -> Option<usize> {
        self.peers.borrow()[place].shard
    }

    fn link(&self, place: usize) -> Link {
        self.peers.borrow()[place].link
    }

    /// Tells whether a server runs, and reaches most others.
    pub fn is_well(&self, place: usize) -> bool {
        let peer = &self.peers.borrow()[place];
        peer.state == State::Runs && !peer.is_cut_off
    }

    pub fn is_cut_off(&self, place: usize) -> bool {
        self.peers.borrow()[place].is_cut_off
    }

    /// Tells whether a replica has its master's data and gets its log.
    pub fn follows(&self, replica: usize, master: usize) -> bool {
        let link = self.link(replica);
        link.is_up && link.master == Some(master)
    }

    // --- faults

    /// Pauses a server until [`Peers::heal`].
    pub fn pause(&self, place: usize) {
        self.peers.borrow_mut()[place].state = State::Paused;
        net::pause_server(self.server(place).id);
    }

    /// Kills a server. [`Peers::heal`] starts it with these data.
    pub fn kill(self: &Rc<Self>, place: usize, data: Data) {
        self.peers.borrow_mut()[place].state = State::Down(data);
        self.server(place).kill();
        for (_, wire) in self.wires.borrow_mut().iter_mut().filter(|((_, to), _)| *to == place) {
            wire.held.clear();
        }
        self.disconnect(place);
        for replica in self.peers.borrow_mut().iter_mut() {
            if replica.link.master == Some(place) {
                replica.link.end();
            }
        }
    }

    /// Separates these servers from all others until [`Peers::heal`].
    pub fn cut_off(&self, minority: &[usize]) {
        world::note_fault(|| format!("the servers {minority:?} are cut off"));
        for place in minority {
            self.peers.borrow_mut()[*place].is_cut_off = true;
        }
    }

    /// Ends all faults. Returns the servers that have started again.
    pub fn heal(self: &Rc<Self>) -> Vec<usize> {
        let mut started = Vec::new();
        for place in 0..self.len() {
            let (server, state) = {
                let peer = &mut self.peers.borrow_mut()[place];
                peer.is_cut_off = false;
                (peer.server.clone(), std::mem::replace(&mut peer.state, State::Runs))
            };
            match state {
                State::Runs => {}
                State::Paused => net::resume_server(server.id),
                State::Down(data) => {
                    server.restart(data);
                    started.push(place);
                }
            }
        }
        let wires: Vec<_> = self.wires.borrow().keys().copied().collect();
        for wire in wires {
            while let Some(act) = self.take_held(wire) {
                act(self);
            }
        }
        started.iter().for_each(|place| self.connect(*place));
        started
    }

    fn take_held(&self, wire: (usize, usize)) -> Option<Act> {
        self.wires.borrow_mut().get_mut(&wire)?.held.pop_front()
    }

    // --- packets

    /// Sends a packet, which needs `extra` microseconds more than others.
    fn send(
        self: &Rc<Self>,
        (from, to): (usize, usize),
        kind: Kind,
        extra: u64,
        act: impl FnOnce(&Rc<Peers>) + 'static,
    ) {
        let mut way = WAY.0 + world::random() % WAY.1 + extra;
        if world::random().is_multiple_of(SLOW.0) {
            way += world::random() % SLOW.1;
        }
        let now = world::now();
        let at = {
            let mut wires = self.wires.borrow_mut();
            let wire = wires.entry((from, to)).or_default();
            wire.last = (now + way * 1_000).max(wire.last + 1);
            wire.last
        };
        let peers = Rc::clone(self);
        world::after(Duration::from_nanos(at - now), move || {
            peers.arrive((from, to), kind, Box::new(act));
        });
    }

    fn arrive(self: &Rc<Self>, (from, to): (usize, usize), kind: Kind, act: Act) {
        let (state, is_apart) = {
            let peers = self.peers.borrow();
            (peers[to].state, peers[from].is_cut_off != peers[to].is_cut_off)
        };
        if matches!(state, State::Down(_)) || (is_apart && kind == Kind::Bus) {
            return;
        }
        let mut wires = self.wires.borrow_mut();
        let wire = wires.entry((from, to)).or_default();
        if state == State::Paused || is_apart || !wire.held.is_empty() {
            wire.held.push_back(act);
            return;
        }
        drop(wires);
        act(self);
    }

    /// Carries what a server has for others.
    fn carry(self: &Rc<Self>, from: usize, sent: Sent) {
        let Sent { log, messages, wants_answer } = sent;
        for replica in self.fed_by(from) {
            let number = self.link(replica).number;
            for entry in &log {
                let entry = entry.clone();
                self.send((from, replica), Kind::Stream, 0, move |peers| {
                    peers.apply(replica, number, &entry);
                });
            }
            if wants_answer {
                self.send((from, replica), Kind::Stream, 0, move |peers| {
                    peers.acknowledge(replica, number);
                });
            }
        }
        let shard = self.shard(from);
        for message in messages {
            for to in (0..self.len()).filter(|to| *to != from) {
                if message.is_sharded() && self.shard(to) != shard {
                    continue;
                }
                let message = message.clone();
                self.send((from, to), Kind::Bus, 0, move |peers| {
                    peers.server(to).with_core(|core| core.deliver(&message));
                });
            }
        }
    }

    // --- replicas

    /// Makes a server, which has become a replica, connect to its master.
    pub fn follow(self: &Rc<Self>, replica: usize, master: usize) {
        self.disconnect(replica);
        self.peers.borrow_mut()[replica].link.master = Some(master);
        self.connect(replica);
    }

    /// Notes that a server has become a master.
    pub fn lead(self: &Rc<Self>, place: usize) {
        self.disconnect(place);
        self.peers.borrow_mut()[place].link.master = None;
    }

    /// Ends the connection of a replica to its master.
    fn disconnect(self: &Rc<Self>, replica: usize) {
        let address = self.server(replica).address;
        let former = {
            let link = &mut self.peers.borrow_mut()[replica].link;
            link.end();
            link.master
        };
        if let Some(master) = former {
            self.send((replica, master), Kind::Stream, 0, move |peers| {
                peers.server(master).with_core(|core| core.remove_replica(&address));
            });
        }
    }

    /// Makes a replica ask its master for all data. A server that is no master refuses.
    fn connect(self: &Rc<Self>, replica: usize) {
        let link = {
            let link = &mut self.peers.borrow_mut()[replica].link;
            link.end();
            *link
        };
        let (Some(master), number) = (link.master, link.number) else { return };
        let address = self.server(replica).address;
        self.send((replica, master), Kind::Stream, 0, move |peers| {
            let server = peers.server(master);
            let is_master = server.with_core(|core| core.master().is_none());
            if !is_master || peers.link(replica).number != number {
                return;
            }
            let snapshot = server.with_core(|core| core.add_replica(address));
            peers.peers.borrow_mut()[replica].link.is_fed = true;
            let time = world::random() % COPIED;
            peers.send((master, replica), Kind::Stream, time, move |peers| {
                peers.load(replica, number, snapshot);
            });
        });
    }

    fn load(self: &Rc<Self>, replica: usize, number: u64, snapshot: Snapshot) {
        if self.link(replica).number == number {
            world::note(|| format!("server {replica} has the data up to {}", snapshot.offset()));
            self.server(replica).with_core(|core| core.load(snapshot));
            self.peers.borrow_mut()[replica].link.is_up = true;
            self.acknowledge(replica, number);
        }
    }

    fn apply(self: &Rc<Self>, replica: usize, number: u64, entry: &LogEntry) {
        if self.link(replica).number != number {
            return;
        }
        world::note(|| format!("server {replica} has entry {}", entry.offset()));
        if !self.server(replica).with_core(|core| core.apply(entry)) {
            self.connect(replica);
        }
    }

    /// Makes a replica tell its master what it has.
    fn acknowledge(self: &Rc<Self>, replica: usize, number: u64) {
        let link = self.link(replica);
        let (Some(master), true) = (link.master, link.number == number) else { return };
        let server = self.server(replica);
        let (address, offset) = (server.address.clone(), server.with_core(|core| core.offset()));
        self.send((replica, master), Kind::Stream, 0, move |peers| {
            if peers.link(replica).number == number {
                peers.server(master).with_core(|core| core.acknowledge(&address, offset));
            }
        });
    }

    /// Returns the replicas that get the log of a server.
    fn fed_by(&self, master: usize) -> Vec<usize> {
        let peers = self.peers.borrow();
        let links = peers.iter().map(|peer| peer.link).enumerate();
        let fed = links.filter(|(_, link)| link.is_fed && link.master == Some(master));
        fed.map(|(place, _)| place).collect()
    }
}

/// Lets a server do what a replica does once a second, from now on.
fn take_turn(peers: Weak<Peers>, place: usize) {
    let part = Duration::from_nanos(world::random() % (TURN.as_nanos() as u64 / 2));
    world::after(TURN / 2 + part, move || {
        let Some(all) = peers.upgrade() else { return };
        let (link, runs) = {
            let peer = &all.peers.borrow()[place];
            (peer.link, peer.state == State::Runs)
        };
        if runs && link.master.is_some() {
            if link.is_up { all.acknowledge(place, link.number) } else { all.connect(place) }
        }
        take_turn(peers, place);
    });
}
