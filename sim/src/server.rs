//! A server of the simulation: the core of the test server on the simulated network.

use leasehold_testserver::core::{ConnectionId, Core};
use simulated::net::Service;
use std::collections::BTreeMap;

/// A server in the process, as the network sees it.
#[derive(Debug)]
pub struct Redis {
    pub core: Core,
    connections: BTreeMap<u64, ConnectionId>,
    made: u64,
}

impl Redis {
    pub fn new(seed: u64) -> Redis {
        Redis { core: Core::new(seed), connections: BTreeMap::new(), made: 0 }
    }
}

impl Service for Redis {
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
