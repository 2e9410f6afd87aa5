//! A server of the simulation: the core of the test server on the simulated network.

use leasehold_testserver::core::{ConnectionId, Core, Data};
use simulated::net::{self, ServerId, Service};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A server in the process, as the network sees it.
#[derive(Debug)]
struct Carried {
    core: Core,
    connections: BTreeMap<u64, ConnectionId>,
    made: u64,
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
}

/// A server as the run sees it.
#[derive(Clone, Debug)]
pub struct Server {
    pub id: ServerId,
    pub url: String,
    carried: Rc<RefCell<Carried>>,
}

impl Server {
    /// Starts a server with this number.
    pub fn start(number: u64, seed: u64) -> Server {
        let address = format!("10.0.0.{number}:6379");
        let core = Core::new(seed.wrapping_add(number));
        let carried = Carried { core, connections: BTreeMap::new(), made: 0 };
        let carried = Rc::new(RefCell::new(carried));
        let id = net::add_server(&address, Rc::clone(&carried) as _);
        Server { id, url: format!("redis://{address}"), carried }
    }

    /// Returns the server's core, with its clock set.
    pub fn core(&self) -> RefMut<'_, Core> {
        let mut core = RefMut::map(self.carried.borrow_mut(), |carried| &mut carried.core);
        core.set_clock(net::server_time(self.id));
        core
    }

    /// Kills the server.
    pub fn kill(&self) {
        net::stop_server(self.id);
    }

    /// Starts the killed server again.
    pub fn restart(&self, data: Data) {
        self.core().restart(data);
        net::start_server(self.id);
    }

    /// Asks the server from outside of the network. Returns the bulk strings of its reply.
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let mut core = self.core();
        let connection = core.connect();
        core.receive(connection, request.as_bytes());
        let (reply, _) = core.take_output(connection);
        core.disconnect(connection);
        drop(core);
        net::touch(self.id);
        bulk_strings(&String::from_utf8_lossy(&reply))
    }

    /// Returns the keys but those of the records of clients, in order.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.core().keys();
        let mut keys: Vec<_> =
            keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        keys.retain(|key| !key.starts_with("leasehold_client:"));
        keys.sort();
        keys
    }

    /// Returns the text at a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key]).pop()
    }

    /// Returns the channels with subscribers, sharded channels included.
    pub fn channels(&self) -> Vec<String> {
        let mut channels = self.ask(&["PUBSUB", "CHANNELS"]);
        channels.extend(self.ask(&["PUBSUB", "SHARDCHANNELS"]));
        channels.sort();
        channels
    }

    /// Returns how many connections of the library the server has.
    pub fn connections(&self) -> usize {
        let list = self.ask(&["CLIENT", "LIST"]).concat();
        list.lines().filter(|line| line.contains("name=leasehold:")).count()
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
