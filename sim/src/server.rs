//! A server of the simulation: the core of the test server on the simulated network.

use crate::frees;
use crate::left::Inspected;
use leasehold_testserver::core::{Address, ConnectionId, Core, Data, LogEntry, Message};
use simulated::net::{self, ServerId, Service};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// What a server has for other servers.
#[derive(Debug)]
pub struct Sent {
    pub log: Vec<LogEntry>,
    pub messages: Vec<Message>,
    /// Whether a connection waits for replicas.
    pub wants_answer: bool,
}

/// Takes what a server has for other servers. Must not use the server itself.
type Outbox = Box<dyn Fn(Sent)>;

/// A server in the process, as the network sees it.
struct Carried {
    core: Core,
    connections: BTreeMap<u64, ConnectionId>,
    made: u64,
    /// `None` before the network knows the server.
    id: Option<ServerId>,
    outbox: Option<Outbox>,
    /// The end of the first wait for replicas, when they were last asked. Nothing else is due at a
    /// server: no simulated client pauses it or sets its `timeout`.
    asked_for: Option<i64>,
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carried").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Carried {
    /// Gives what the core has to the outbox. A request may have begun to wait for replicas.
    fn pass_on(&mut self, is_request: bool) {
        if let Some(id) = self.id {
            frees::look(id, &mut self.core);
        }
        let Some(outbox) = &self.outbox else { return };
        let (log, messages) = (self.core.take_log(), self.core.take_messages());
        let waits = self.core.next_deadline();
        let is_new = waits != std::mem::replace(&mut self.asked_for, waits);
        let wants_answer = waits.is_some() && (is_request || is_new);
        if wants_answer || !log.is_empty() || !messages.is_empty() {
            outbox(Sent { log, messages, wants_answer });
        }
    }
}

impl Service for Carried {
    fn connect(&mut self, now: i64) -> u64 {
        self.core.set_clock(now);
        self.made += 1;
        self.connections.insert(self.made, self.core.connect());
        self.made
    }

    fn receive(&mut self, connection: u64, bytes: &[u8], now: i64) {
        self.core.set_clock(now);
        if let Some(id) = self.connections.get(&connection) {
            self.core.receive(*id, bytes);
        }
        self.pass_on(true);
    }

    fn take_output(&mut self, connection: u64) -> (Vec<u8>, bool) {
        let id = self.connections.get(&connection);
        id.map_or_else(|| (Vec::new(), true), |id| self.core.take_output(*id))
    }

    fn disconnect(&mut self, connection: u64) {
        if let Some(id) = self.connections.remove(&connection) {
            self.core.disconnect(id);
        }
    }

    fn due(&self) -> Option<i64> {
        self.core.next_deadline()
    }

    fn tick(&mut self, now: i64) {
        self.core.set_clock(now);
        self.pass_on(false);
    }
}

/// A server as the run sees it.
#[derive(Clone, Debug)]
pub struct Server {
    pub id: ServerId,
    pub address: Address,
    carried: Rc<RefCell<Carried>>,
}

impl Server {
    /// Starts a server at this address.
    pub fn start(address: Address, core: Core) -> Server {
        let connections = BTreeMap::new();
        let carried =
            Carried { core, connections, made: 0, id: None, outbox: None, asked_for: None };
        let carried = Rc::new(RefCell::new(carried));
        let id = net::add_server(&address.to_string(), Rc::clone(&carried) as _);
        carried.borrow_mut().id = Some(id);
        Server { id, address, carried }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Gives what the server has for other servers to `outbox` from now on.
    pub fn set_outbox(&self, outbox: impl Fn(Sent) + 'static) {
        self.carried.borrow_mut().outbox = Some(Box::new(outbox));
    }

    /// Changes or reads the core, and sends what it then has for clients and other servers.
    pub fn with_core<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut carried = self.carried.borrow_mut();
        carried.core.set_clock(net::server_time(self.id));
        let result = act(&mut carried.core);
        carried.pass_on(false);
        drop(carried);
        net::touch(self.id);
        result
    }

    /// Returns whether the server has a key.
    pub fn has(&self, key: &str) -> bool {
        self.with_core(|core| core.remaining(0, key.as_bytes())).is_some()
    }

    /// Kills the server.
    pub fn kill(&self) {
        net::stop_server(self.id);
    }

    /// Starts the killed server again.
    pub fn restart(&self, data: Data) {
        self.with_core(|core| core.restart(data));
        net::start_server(self.id);
    }

    /// Asks the server from outside of the network. Returns the bulk strings of its reply.
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let reply = self.with_core(|core| {
            let connection = core.connect();
            core.receive(connection, request.as_bytes());
            let (reply, _) = core.take_output(connection);
            core.disconnect(connection);
            reply
        });
        bulk_strings(&String::from_utf8_lossy(&reply))
    }
}

impl Inspected for Server {
    fn keys(&self) -> Vec<String> {
        let keys = self.with_core(Core::keys);
        let mut keys: Vec<_> =
            keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        keys.retain(|key| !key.starts_with("leasehold_client:"));
        keys.sort();
        keys
    }

    fn text(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key]).pop()
    }

    fn channels(&self) -> Vec<String> {
        let mut channels = self.ask(&["PUBSUB", "CHANNELS"]);
        channels.extend(self.ask(&["PUBSUB", "SHARDCHANNELS"]));
        channels.sort();
        channels
    }

    fn connections(&self) -> Vec<String> {
        let list = self.ask(&["CLIENT", "LIST"]).concat();
        let ours = list.lines().filter(|line| line.contains("name=leasehold:"));
        ours.map(str::to_owned).collect()
    }
}

/// Returns the bulk strings of a reply without nested arrays.
fn bulk_strings(reply: &str) -> Vec<String> {
    let mut rest = reply;
    if let Some(array) = rest.strip_prefix('*') {
        rest = array.split_once("\r\n").map_or("", |(_, rest)| rest);
    }
    let mut found = Vec::new();
    while let Some((length, tail)) = rest.strip_prefix('$').and_then(|rest| rest.split_once("\r\n"))
    {
        let Ok(length) = length.parse::<usize>() else { break };
        found.push(tail.get(..length).unwrap_or(tail).to_owned());
        rest = tail.get(length + 2..).unwrap_or("");
    }
    found
}
