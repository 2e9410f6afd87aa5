//! The network, the servers at its one end and the sockets at its other.
//!
//! A server is a [`Service`]: it gets bytes and leaves bytes, and sees no other clock than the one
//! that it is given. Each direction of a connection is a [`Link`], which keeps the order of its
//! bytes. What a test sets with [`set_flow`] and [`set_delay`] holds for the connections that
//! [`Whose`] names, present and later ones, until [`heal`].

use crate::clock::{START, nanos, since_boot};
use crate::sync::Sleepers;
use crate::world::{self, ProcessId, World, current, park, peek_clock, with};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time of a packet on its way, in nanoseconds: at least, and the part that is random.
const WAY: (u64, u64) = (20_000, 80_000);

/// One of this many packets takes longer, by up to this many nanoseconds.
const SLOW: (u64, u64) = (100, 5_000_000);

/// The bytes on their way or held back at which a connection takes no more.
const BUFFER: usize = 256 * 1024;

/// The interval at which a blocked connection attempt tries again.
const RETRY: Duration = Duration::from_millis(20);

/// A server: bytes in, bytes out. All moments are microseconds since 1970 on the server's clock.
pub trait Service {
    /// Opens a connection.
    fn connect(&mut self, now: i64) -> u64;
    /// Takes bytes of a connection.
    fn receive(&mut self, connection: u64, bytes: &[u8], now: i64);
    /// Takes the bytes for a connection, and whether the server ends it after them.
    fn take_output(&mut self, connection: u64) -> (Vec<u8>, bool);
    /// Forgets a connection that has ended.
    fn disconnect(&mut self, connection: u64);
    /// Returns the moment at which the server acts without a request, if there is one.
    fn due(&self) -> Option<i64> {
        None
    }
    /// Acts because a moment has come.
    fn tick(&mut self, _now: i64) {}
}

/// The number of a server in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerId(usize);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S{}", self.0)
    }
}

/// Notes a call of the present process, whose first request may make a connection.
pub fn note_call() {
    let process = world::current_process();
    with(|world| {
        let now = world.now();
        add_moment(world.net.calls.entry(process).or_default(), now);
    });
}

/// Returns the most unexplained attempts of a process to connect to a server within one second.
pub fn busiest_connecting() -> Connecting {
    with(|world| world.net.busiest)
}

/// The way of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Requests,
    Replies,
}

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Pass,
    /// The bytes wait for the end of this flow, as behind a partition.
    Hold,
    /// The bytes and all later ones of the connection are lost, and nobody is told.
    Swallow,
    /// The connection breaks after this many more bytes.
    CutAfter(usize),
}

/// The connections that a fault affects. `None` stands for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whose {
    pub process: Option<ProcessId>,
    pub server: Option<ServerId>,
    pub subscribers: Option<bool>,
}

impl Whose {
    /// All connections of a process.
    pub fn of(process: ProcessId) -> Whose {
        Whose { process: Some(process), ..Whose::default() }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "{process}")?,
            None => f.write_str("all")?,
        }
        if let Some(server) = self.server {
            write!(f, "-{server}")?;
        }
        f.write_str(match self.subscribers {
            Some(true) => " subscribers",
            Some(false) => " callers",
            None => "",
        })
    }
}

#[derive(Debug)]
pub(crate) enum Packet {
    Data(Vec<u8>),
    /// The peer has closed its end in the ordinary way.
    End,
    Reset,
}

/// What happens on the network at a moment.
#[derive(Debug)]
pub(crate) enum Event {
    Arrives(usize, Direction, Packet),
    /// A server acts on its own.
    Due(ServerId),
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Link {
    held: Vec<Packet>,
    /// The moment at which the last packet arrives.
    last: u64,
    on_way: usize,
    /// All further bytes are lost.
    is_dead: bool,
    cut_after: Option<usize>,
}

struct Connection {
    process: ProcessId,
    server: ServerId,
    /// The connection's number at the server.
    peer: u64,
    /// The client has not closed its end.
    is_open: bool,
    /// The server has not closed its end, and runs.
    is_served: bool,
    is_subscriber: bool,
    /// The client has ended both directions, but not closed.
    is_shut: bool,
    requests: Link,
    replies: Link,
    arrived: VecDeque<u8>,
    ended: Option<Packet>,
    reader: Sleepers,
}

impl Connection {
    fn link(&mut self, direction: Direction) -> &mut Link {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Replies => &mut self.replies,
        }
    }
}

struct Server {
    address: String,
    service: Rc<RefCell<dyn Service>>,
    is_up: bool,
    /// The server accepts no connection, and serves those that it has.
    is_refusing: bool,
    is_paused: bool,
    /// What arrived during a pause.
    backlog: Vec<(usize, Packet)>,
    /// How far the clock is ahead, in microseconds.
    clock_offset: i64,
    /// In the order of their making.
    connections: Vec<usize>,
    /// The moment at which the server acts on its own.
    due: Option<i64>,
}

struct Rule {
    whose: Whose,
    direction: Direction,
    flow: Option<Flow>,
    delay: u64,
}

/// The network of a run.
#[derive(Default)]
pub(crate) struct Net {
    connections: Vec<Connection>,
    /// The connections that at least one end has not closed.
    open: Vec<usize>,
    servers: Vec<Server>,
    rules: Vec<Rule>,
    /// The moments of the latest attempts to connect, by process and server.
    attempts: BTreeMap<(ProcessId, ServerId), VecDeque<u64>>,
    /// The moments of the latest calls, by process.
    calls: BTreeMap<ProcessId, VecDeque<u64>>,
    busiest: Connecting,
    /// The number of connections that broke after a number of bytes.
    cuts: usize,
    /// The connection of the latest request.
    latest: Option<usize>,
}

/// The attempts of a process to connect to a server within one second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connecting {
    /// The number of attempts that no call explains.
    pub unexplained: usize,
    pub attempts: usize,
    pub whose: Option<(ProcessId, ServerId)>,
    /// The moment of the last one.
    pub at: u64,
}

/// The attempts to connect to a server that one call explains: its own, and those of its releases.
const EXPLAINED: usize = 3;

/// Adds a moment, and returns the number of those within the last second.
fn add_moment(moments: &mut VecDeque<u64>, now: u64) -> usize {
    moments.push_back(now);
    forget_before(moments, now)
}

fn forget_before(moments: &mut VecDeque<u64>, now: u64) -> usize {
    while moments.front().is_some_and(|first| first + 1_000_000_000 < now) {
        moments.pop_front();
    }
    moments.len()
}

impl Net {
    fn note_attempt(&mut self, whose: (ProcessId, ServerId), at: u64) {
        let attempts = add_moment(self.attempts.entry(whose).or_default(), at);
        let calls = self.calls.get_mut(&whose.0).map_or(0, |calls| forget_before(calls, at));
        let unexplained = attempts.saturating_sub(EXPLAINED * calls);
        if self.busiest.unexplained < unexplained {
            self.busiest = Connecting { unexplained, attempts, whose: Some(whose), at };
        }
    }

    fn matches(&self, whose: &Whose, id: usize) -> bool {
        let it = &self.connections[id];
        whose.process.is_none_or(|process| process == it.process)
            && whose.server.is_none_or(|server| server == it.server)
            && whose.subscribers.is_none_or(|is| is == it.is_subscriber)
    }

    /// Returns whether the rules stop a new connection.
    fn stops(&self, process: ProcessId, server: ServerId) -> bool {
        let stops = |rule: &&Rule| {
            rule.whose.process.is_none_or(|it| it == process)
                && rule.whose.server.is_none_or(|it| it == server)
                && rule.whose.subscribers.is_none()
                && rule.flow.is_some()
        };
        let flows = [Direction::Requests, Direction::Replies].map(|direction| {
            let mut rules = self.rules.iter().rev().filter(|rule| rule.direction == direction);
            rules.find(|rule| stops(rule)).and_then(|rule| rule.flow)
        });
        flows.iter().any(|flow| matches!(flow, Some(Flow::Hold | Flow::Swallow)))
    }

    /// Returns the flow of one direction of a connection: the latest rule counts.
    fn flow(&self, id: usize, direction: Direction) -> Flow {
        let mut rules = self.rules.iter().rev();
        let rule = rules.find(|rule| {
            rule.direction == direction && rule.flow.is_some() && self.matches(&rule.whose, id)
        });
        rule.and_then(|rule| rule.flow).unwrap_or(Flow::Pass)
    }

    fn delay(&self, id: usize, direction: Direction) -> u64 {
        let rules = self.rules.iter();
        let of = rules.filter(|rule| rule.direction == direction && self.matches(&rule.whose, id));
        of.map(|rule| rule.delay).max().unwrap_or(0)
    }
}

// --- servers

/// Adds a server that runs.
pub fn add_server(address: &str, service: Rc<RefCell<dyn Service>>) -> ServerId {
    with(|world| {
        world.net.servers.push(Server {
            address: address.to_owned(),
            service,
            is_up: true,
            is_refusing: false,
            is_paused: false,
            backlog: Vec::new(),
            clock_offset: 0,
            connections: Vec::new(),
            due: None,
        });
        ServerId(world.net.servers.len() - 1)
    })
}

/// Returns the microseconds since 1970 on the clock of a server.
pub fn server_time(server: ServerId) -> i64 {
    with(|world| time_at(world, server))
}

fn time_at(world: &World, server: ServerId) -> i64 {
    let now = i64::try_from(world.now() / 1_000).expect("a short run");
    START + now + world.net.servers[server.0].clock_offset
}

/// Sets how far the clock of a server is ahead of the true one, in microseconds.
pub fn set_clock_offset(server: ServerId, offset: i64) {
    with(|world| world.net.servers[server.0].clock_offset = offset);
    world::note_fault(|| format!("the clock of {server} is ahead by {offset} us"));
}

/// Ends a server: its connections break, and new ones are refused.
pub fn stop_server(server: ServerId) {
    world::note_fault(|| format!("{server} is killed"));
    let (service, peers) = with(|world| {
        let it = &mut world.net.servers[server.0];
        (it.is_up, it.is_paused) = (false, false);
        it.backlog.clear();
        let connections = std::mem::take(&mut it.connections);
        let service = Rc::clone(&it.service);
        let mut peers = Vec::new();
        for id in connections {
            world.net.connections[id].is_served = false;
            peers.push(world.net.connections[id].peer);
            send(world, id, Direction::Replies, Packet::Reset);
        }
        (service, peers)
    });
    for peer in peers {
        service.borrow_mut().disconnect(peer);
    }
}

/// Lets a server that was stopped accept connections again.
pub fn start_server(server: ServerId) {
    with(|world| world.net.servers[server.0].is_up = true);
    world::note(|| format!("{server} starts"));
}

/// Lets a server stop in the middle of everything, as `SIGSTOP` does. Its system goes on.
pub fn pause_server(server: ServerId) {
    with(|world| world.net.servers[server.0].is_paused = true);
    world::note_fault(|| format!("{server} is paused"));
}

/// Ends a pause: what arrived meanwhile is done now.
pub fn resume_server(server: ServerId) {
    let backlog = with(|world| {
        let it = &mut world.net.servers[server.0];
        it.is_paused = false;
        std::mem::take(&mut it.backlog)
    });
    world::note(|| format!("{server} goes on"));
    for (id, packet) in backlog {
        arrive_at_server(id, packet);
    }
    touch(server);
}

/// Sends what a server has for its connections, after its owner has changed it.
pub fn touch(server: ServerId) {
    let (service, is_up) = with(|world| {
        let it = &world.net.servers[server.0];
        (Rc::clone(&it.service), it.is_up && !it.is_paused)
    });
    if !is_up {
        return;
    }
    let mut service = service.borrow_mut();
    with(|world| {
        let ids = world.net.servers[server.0].connections.clone();
        let mut ended = Vec::new();
        for id in ids {
            let (bytes, ends) = service.take_output(world.net.connections[id].peer);
            if !bytes.is_empty() {
                send(world, id, Direction::Replies, Packet::Data(bytes));
            }
            if ends {
                service.disconnect(world.net.connections[id].peer);
                world.net.connections[id].is_served = false;
                send(world, id, Direction::Replies, Packet::End);
                ended.push(id);
            }
        }
        world.net.servers[server.0].connections.retain(|id| !ended.contains(id));
        let due = service.due();
        let it = &mut world.net.servers[server.0];
        if it.due != due {
            it.due = due;
            if let Some(due) = due {
                let wait = due.saturating_sub(time_at(world, server)).max(0);
                let wait = u64::try_from(wait).unwrap_or(0).saturating_mul(1_000);
                world.net_event(world.now().saturating_add(wait), Event::Due(server));
            }
        }
    });
}

// --- faults

/// Sets the flow of one direction, for present and later connections.
pub fn set_flow(whose: Whose, direction: Direction, flow: Flow) {
    world::note_fault(|| format!("{direction:?} of {whose}: {flow:?}"));
    with(|world| {
        world.net.rules.push(Rule { whose, direction, flow: Some(flow), delay: 0 });
        apply_rules(world);
    });
}

/// Adds up to `span` to the way of each packet.
pub fn set_delay(whose: Whose, direction: Direction, span: Duration) {
    world::note_fault(|| format!("{direction:?} of {whose}: late by up to {span:?}"));
    with(|world| {
        world.net.rules.push(Rule { whose, direction, flow: None, delay: nanos(span) });
    });
}

/// Ends all flows and delays. What was held arrives now.
pub fn heal() {
    world::note(|| "the network is healed".to_owned());
    with(|world| {
        world.net.rules.clear();
        apply_rules(world);
    });
}

/// Breaks the connection of the latest request, after this many more bytes of one direction.
pub fn cut_latest_after(direction: Direction, count: usize) {
    with(|world| {
        let latest = world.net.latest.expect("there was a request");
        world.net.connections[latest].link(direction).cut_after = Some(count);
    });
}

/// Returns the number of connections that broke after a number of bytes.
pub fn cuts() -> usize {
    with(|world| world.net.cuts)
}

/// Lets a server refuse new connections, or accept them again.
pub fn refuse_connections(server: ServerId, refuses: bool) {
    with(|world| world.net.servers[server.0].is_refusing = refuses);
}

/// Breaks connections.
pub fn reset(whose: Whose) {
    world::note_fault(|| format!("connections of {whose} break"));
    with(|world| {
        for id in world.net.open.clone() {
            if world.net.matches(&whose, id) {
                break_connection(world, id);
            }
        }
    });
}

fn break_connection(world: &mut World, id: usize) {
    for direction in [Direction::Requests, Direction::Replies] {
        world.net.connections[id].link(direction).held.clear();
        deliver(world, id, direction, Packet::Reset);
    }
}

fn apply_rules(world: &mut World) {
    for id in world.net.open.clone() {
        for direction in [Direction::Requests, Direction::Replies] {
            let flow = world.net.flow(id, direction);
            let link = world.net.connections[id].link(direction);
            link.cut_after = None;
            match flow {
                Flow::Pass => {
                    for packet in std::mem::take(&mut link.held) {
                        send(world, id, direction, packet);
                    }
                }
                Flow::CutAfter(count) => link.cut_after = Some(count),
                Flow::Hold => {}
                Flow::Swallow => link.is_dead = true,
            }
        }
    }
}

/// Returns how many connections of a process are open.
pub fn open_connections(process: ProcessId) -> usize {
    with(|world| {
        let open = world.net.open.iter().map(|id| &world.net.connections[*id]);
        open.filter(|it| it.process == process && it.is_open).count()
    })
}

pub(crate) fn end_connections_of(process: ProcessId) {
    with(|world| {
        for id in world.net.open.clone() {
            let it = &mut world.net.connections[id];
            if it.process == process && it.is_open {
                it.is_open = false;
                send(world, id, Direction::Requests, Packet::End);
            }
        }
    });
}

// --- the way of packets

/// Sends a packet, if the flow of its direction lets it pass.
fn send(world: &mut World, id: usize, direction: Direction, packet: Packet) {
    if direction == Direction::Requests {
        world.net.latest = Some(id);
    }
    let flow = world.net.flow(id, direction);
    let link = world.net.connections[id].link(direction);
    if link.is_dead {
        return;
    }
    match (flow, packet) {
        (Flow::Hold, packet) => {
            world.counts.faults += 1;
            link.held.push(packet);
        }
        (Flow::Swallow, _) => {
            world.counts.faults += 1;
            link.is_dead = true;
        }
        (_, Packet::Data(bytes)) => match link.cut_after {
            Some(left) if left <= bytes.len() => {
                world.counts.faults += 1;
                world.net.cuts += 1;
                deliver(world, id, direction, Packet::Data(bytes[..left].to_vec()));
                break_connection(world, id);
                let link = world.net.connections[id].link(direction);
                (link.is_dead, link.cut_after) = (true, None);
            }
            left => {
                link.cut_after = left.map(|left| left - bytes.len());
                // Some packets arrive in two parts.
                let splits = bytes.len() > 1 && world.below(8) == 0;
                let at = if splits { 1 + world.below(bytes.len() as u64 - 1) as usize } else { 0 };
                if at > 0 {
                    deliver(world, id, direction, Packet::Data(bytes[..at].to_vec()));
                }
                deliver(world, id, direction, Packet::Data(bytes[at..].to_vec()));
            }
        },
        (_, packet) => deliver(world, id, direction, packet),
    }
}

/// Lets a packet arrive after its way.
fn deliver(world: &mut World, id: usize, direction: Direction, packet: Packet) {
    let delay = world.net.delay(id, direction);
    let mut way = WAY.0 + world.below(WAY.1);
    if world.below(SLOW.0) == 0 {
        way += world.below(SLOW.1);
    }
    if delay > 0 {
        world.counts.faults += 1;
        way += world.below(delay);
    }
    world.counts.messages += 1;
    let now = world.now();
    let link = world.net.connections[id].link(direction);
    // A link keeps the order of its packets.
    let at = (now + way).max(link.last + 1);
    link.last = at;
    if let Packet::Data(bytes) = &packet {
        link.on_way += bytes.len();
    }
    world.net_event(at, Event::Arrives(id, direction, packet));
}

pub(crate) fn happen(event: Event) {
    match event {
        Event::Arrives(id, direction, packet) => {
            with(|world| {
                if let Packet::Data(bytes) = &packet {
                    let link = world.net.connections[id].link(direction);
                    link.on_way = link.on_way.saturating_sub(bytes.len());
                }
                note_packet(world, id, direction, &packet);
            });
            match direction {
                Direction::Requests => arrive_at_server(id, packet),
                Direction::Replies => arrive_at_client(id, packet),
            }
        }
        Event::Due(server) => {
            let service = with(|world| {
                let now = time_at(world, server);
                let it = &mut world.net.servers[server.0];
                let is_due = it.due.is_some_and(|due| due <= now);
                let runs = it.is_up && !it.is_paused;
                if is_due {
                    it.due = None;
                }
                (is_due && runs).then(|| (Rc::clone(&it.service), now))
            });
            if let Some((service, now)) = service {
                service.borrow_mut().tick(now);
                touch(server);
            }
        }
    }
}

fn note_packet(world: &mut World, id: usize, direction: Direction, packet: &Packet) {
    let bytes: &[u8] = match packet {
        Packet::Data(bytes) => bytes,
        Packet::End => b"end",
        Packet::Reset => b"reset",
    };
    world.note(bytes, |world| {
        let it = &world.net.connections[id];
        let arrow = if direction == Direction::Requests { "->" } else { "<-" };
        let what = match packet {
            Packet::Data(bytes) => shown(bytes),
            Packet::End => "end".to_owned(),
            Packet::Reset => "reset".to_owned(),
        };
        format!("{} {arrow} {} #{id} {what}", it.process, it.server)
    });
}

/// Returns bytes of the protocol as text without the lengths of its parts.
fn shown(bytes: &[u8]) -> String {
    const LONGEST: usize = 300;
    let text = String::from_utf8_lossy(bytes);
    let words = text.split("\r\n").filter(|word| {
        let is_length = word.strip_prefix(['$', '*', '%', '>', '~']);
        !is_length.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let mut shown = words.join(" ").replace('\n', " ");
    if let Some((end, _)) = shown.char_indices().nth(LONGEST) {
        shown.truncate(end);
        shown.push_str("..");
    }
    shown
}

fn arrive_at_server(id: usize, packet: Packet) {
    let found = with(|world| {
        let it = &mut world.net.connections[id];
        let server = it.server;
        if let Packet::Data(bytes) = &packet {
            it.is_subscriber |= bytes.windows(11).any(|part| part == b"SUBSCRIBE\r\n");
        }
        if !it.is_served {
            if matches!(packet, Packet::Data(_)) {
                deliver(world, id, Direction::Replies, Packet::Reset);
            }
            close_if_over(world, id);
            return None;
        }
        let peer = it.peer;
        let now = time_at(world, server);
        let place = &mut world.net.servers[server.0];
        if place.is_paused {
            place.backlog.push((id, packet));
            return None;
        }
        Some((server, Rc::clone(&place.service), peer, now, packet))
    });
    let Some((server, service, peer, now, packet)) = found else { return };
    match packet {
        Packet::Data(bytes) => service.borrow_mut().receive(peer, &bytes, now),
        Packet::End | Packet::Reset => {
            service.borrow_mut().disconnect(peer);
            with(|world| {
                world.net.connections[id].is_served = false;
                world.net.servers[server.0].connections.retain(|other| *other != id);
                if matches!(packet, Packet::End) {
                    send(world, id, Direction::Replies, Packet::End);
                }
                close_if_over(world, id);
            });
        }
    }
    touch(server);
}

fn arrive_at_client(id: usize, packet: Packet) {
    with(|world| {
        let it = &mut world.net.connections[id];
        match packet {
            Packet::Data(bytes) if it.ended.is_none() => it.arrived.extend(bytes),
            Packet::Data(_) => {}
            end => {
                it.ended.get_or_insert(end);
            }
        }
        wake_reader(world, id);
        close_if_over(world, id);
    });
}

fn wake_reader(world: &mut World, id: usize) {
    for task in world.net.connections[id].reader.take() {
        world.unpark(task);
    }
}

/// Takes a connection that both ends have closed from the list of open ones.
fn close_if_over(world: &mut World, id: usize) {
    let it = &world.net.connections[id];
    if !it.is_open && !it.is_served {
        world.net.open.retain(|other| *other != id);
    }
}

// --- the client's end

/// An open socket, with the methods of the library's own.
pub struct Socket {
    id: usize,
    /// What disconnectors refer to.
    life: Arc<()>,
    step_end: u64,
    has_read: bool,
    has_written: bool,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.id)
    }
}

/// Ends a connection for the task that owns it.
#[derive(Debug)]
pub struct Disconnector {
    id: usize,
    life: Weak<()>,
}

impl Disconnector {
    /// Makes all reads and writes of the connection end at once.
    pub fn disconnect(&self) {
        if self.life.upgrade().is_none() {
            return;
        }
        with(|world| {
            if !std::mem::replace(&mut world.net.connections[self.id].is_shut, true) {
                send(world, self.id, Direction::Requests, Packet::End);
                wake_reader(world, self.id);
            }
        });
    }
}

impl Socket {
    pub fn tcp(host: &str, port: u16, span: Duration) -> io::Result<Socket> {
        Socket::connect(&format!("{host}:{port}"), span)
    }

    pub fn unix(path: &Path, span: Duration) -> io::Result<Socket> {
        Socket::connect(&path.to_string_lossy(), span)
    }

    fn connect(address: &str, span: Duration) -> io::Result<Socket> {
        let process = world::current_process();
        let server = with(|world| {
            world.net.servers.iter().position(|server| server.address == address).map(ServerId)
        });
        let server = server.ok_or(io::ErrorKind::NotFound)?;
        with(|world| world.net.note_attempt((process, server), world.now()));
        let end = since_boot().saturating_add(nanos(span));
        let trip = with(|world| 2 * WAY.0 + world.below(2 * WAY.1));
        crate::clock::sleep(Duration::from_nanos(trip));
        while with(|world| world.net.stops(process, server)) {
            if end <= peek_clock() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            crate::clock::sleep(RETRY);
        }
        let service = with(|world| {
            let it = &world.net.servers[server.0];
            let accepts = it.is_up && !it.is_refusing;
            accepts.then(|| (Rc::clone(&it.service), time_at(world, server)))
        });
        let (service, now) = service.ok_or(io::ErrorKind::ConnectionRefused)?;
        let peer = service.borrow_mut().connect(now);
        with(|world| {
            let id = world.net.connections.len();
            world.net.connections.push(Connection {
                process,
                server,
                peer,
                is_open: true,
                is_served: true,
                is_subscriber: false,
                is_shut: false,
                requests: Link::default(),
                replies: Link::default(),
                arrived: VecDeque::new(),
                ended: None,
                reader: Sleepers::default(),
            });
            world.net.open.push(id);
            world.net.servers[server.0].connections.push(id);
            for direction in [Direction::Requests, Direction::Replies] {
                if let Flow::CutAfter(count) = world.net.flow(id, direction) {
                    world.net.connections[id].link(direction).cut_after = Some(count);
                }
            }
            world.note(b"connect", |world| format!("{} connects #{id} to {server}", world.who()));
            let (life, step_end, has_read, has_written) = (Arc::new(()), 0, false, false);
            Ok(Socket { id, life, step_end, has_read, has_written })
        })
    }

    pub fn disconnector(&self) -> Disconnector {
        Disconnector { id: self.id, life: Arc::downgrade(&self.life) }
    }

    /// Closes the socket. Bytes that the network holds back are lost or arrive later, by chance.
    pub fn abort(self) {
        with(|world| {
            if world.below(2) == 0 {
                world.net.connections[self.id].requests.held.clear();
            }
        });
    }

    pub fn begin_step(&mut self, span: Duration) {
        let span = span.max(Duration::from_millis(1));
        self.step_end = since_boot().saturating_add(nanos(span));
        (self.has_read, self.has_written) = (false, false);
    }

    pub fn begin_write(&mut self) {
        (self.step_end, self.has_written) = (0, false);
    }

    pub fn wait_to_write(&self) -> io::Result<()> {
        const STEP: u64 = 1_000_000;
        loop {
            let now = since_boot();
            if self.step_end <= now {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if with(|world| has_room(world, self.id)) {
                return Ok(());
            }
            park(Some(self.step_end.min(now + STEP)));
        }
    }
}

fn has_room(world: &World, id: usize) -> bool {
    let it = &world.net.connections[id];
    let held = it.requests.held.iter().map(|packet| match packet {
        Packet::Data(bytes) => bytes.len(),
        Packet::End | Packet::Reset => 0,
    });
    it.is_shut || it.ended.is_some() || held.sum::<usize>() + it.requests.on_way < BUFFER
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let now = since_boot();
            if self.has_read && self.step_end <= now {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let done = with(|world| {
                let it = &mut world.net.connections[self.id];
                if it.is_shut {
                    return Some(Ok(0));
                }
                if !it.arrived.is_empty() {
                    let count = buffer.len().min(it.arrived.len());
                    for (place, byte) in buffer.iter_mut().zip(it.arrived.drain(..count)) {
                        *place = byte;
                    }
                    return Some(Ok(count));
                }
                match it.ended {
                    Some(Packet::Reset) => Some(Err(io::ErrorKind::ConnectionReset.into())),
                    Some(_) => Some(Ok(0)),
                    None if self.step_end <= now => Some(Err(io::ErrorKind::WouldBlock.into())),
                    None => None,
                }
            });
            if let Some(done) = done {
                self.has_read = true;
                return done;
            }
            let reader = current();
            with(|world| world.net.connections[self.id].reader.add(reader));
            park(Some(self.step_end));
            with(|world| world.net.connections[self.id].reader.remove(reader));
        }
    }
}

impl Write for Socket {
    /// Takes as many bytes as there is room for, at random some fewer, without blocking.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.has_written && self.step_end <= since_boot() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.has_written = true;
        with(|world| {
            let it = &world.net.connections[self.id];
            if it.is_shut || it.ended.is_some() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if !has_room(world, self.id) || world.below(256) == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let is_short = world.below(32) == 0;
            let count =
                if is_short { 1 + world.below(bytes.len() as u64) as usize } else { bytes.len() };
            let count = count.min(bytes.len());
            send(world, self.id, Direction::Requests, Packet::Data(bytes[..count].to_vec()));
            Ok(count)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        with(|world| {
            let it = &mut world.net.connections[self.id];
            it.is_open = false;
            if !it.is_shut {
                send(world, self.id, Direction::Requests, Packet::End);
            }
            close_if_over(world, self.id);
        });
    }
}
