//! The proxies in front of a server, for tests that cut some processes off from others.
//!
//! Clients, other servers and sentinels get the ports of the proxies, not those of the server.

use super::config::Kind;
use super::members::Members;
use super::ports::TO_THE_BUS;
use super::proxy::{Connections, Direction, Flow, Proxy};
use std::net::{Ipv4Addr, SocketAddr};

/// The proxies of one server.
#[derive(Debug)]
pub struct Gate {
    front: Proxy,
    /// The proxy for the other nodes of a cluster.
    bus: Option<Proxy>,
}

impl Gate {
    pub(super) fn before(port: u16, kind: Kind, members: &Members) -> Self {
        let proxy = |port| {
            let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            Proxy::knowing(members.clone(), upstream)
        };
        let bus = (kind == Kind::Node).then(|| proxy(port + TO_THE_BUS));
        Self { front: proxy(port), bus }
    }

    /// Returns the proxy in front of the port for clients.
    pub fn front(&self) -> &Proxy {
        &self.front
    }

    /// Returns the proxy in front of the port for the other nodes of a cluster.
    pub fn bus(&self) -> Option<&Proxy> {
        self.bus.as_ref()
    }

    /// Identifies the members of all connections, before a test cuts some of them off.
    pub fn identify(&self) {
        self.front.identify();
        if let Some(bus) = &self.bus {
            bus.identify();
        }
    }

    /// Holds all bytes of these connections back, in both directions, until `heal`.
    ///
    /// A partition does the same to the bytes of open connections.
    pub fn keep_apart(&self, connections: &Connections) {
        for proxy in [Some(&self.front), self.bus()].into_iter().flatten() {
            for direction in [Direction::Requests, Direction::Replies] {
                proxy.set_for(connections.clone(), direction, Flow::Hold);
            }
        }
    }

    /// Forwards the held bytes, and lets everything pass.
    pub fn heal(&self) {
        self.front.heal();
        if let Some(bus) = &self.bus {
            bus.heal();
        }
    }

    /// Returns the configuration lines that announce the proxies to other processes.
    pub(super) fn lines(&self, kind: Kind) -> Vec<String> {
        let port = self.front.addr().port();
        match (kind, self.bus()) {
            (Kind::Sentinel, _) => vec![
                "sentinel announce-ip 127.0.0.1".to_owned(),
                format!("sentinel announce-port {port}"),
            ],
            (_, Some(bus)) => vec![
                format!("cluster-announce-port {port}"),
                format!("cluster-announce-bus-port {}", bus.addr().port()),
                format!("replica-announce-port {port}"),
            ],
            (_, None) => vec![format!("replica-announce-port {port}")],
        }
    }
}
