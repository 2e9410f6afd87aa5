//! The proxies through which a server is reached, where a test cuts some processes off from
//! others: clients, other servers and sentinels are told their ports, not its own.

use super::config::Kind;
use super::members::Members;
use super::ports::TO_THE_BUS;
use super::proxy::{Direction, Flow, Proxy, Whose};
use std::net::{Ipv4Addr, SocketAddr};

/// One server's proxies.
#[derive(Debug)]
pub struct Gate {
    front: Proxy,
    /// Where the other nodes of a cluster reach it.
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

    /// The proxy before the port for clients.
    pub fn front(&self) -> &Proxy {
        &self.front
    }

    /// The proxy before the port for the other nodes of a cluster.
    pub fn bus(&self) -> Option<&Proxy> {
        self.bus.as_ref()
    }

    /// Finds out who is connected; to be done before some are told apart.
    pub fn identify(&self) {
        self.front.identify();
        self.bus.iter().for_each(Proxy::identify);
    }

    /// Keeps back all that passes between the server and these, in both directions, until
    /// the gate is healed: what a partition does to the bytes of connections that stand.
    pub fn keep_apart(&self, whose: &Whose) {
        for proxy in [Some(&self.front), self.bus()].into_iter().flatten() {
            for direction in [Direction::Requests, Direction::Replies] {
                proxy.set_for(whose.clone(), direction, Flow::Hold);
            }
        }
    }

    /// Lets everything pass, after what is kept back.
    pub fn heal(&self) {
        self.front.heal();
        self.bus.iter().for_each(Proxy::heal);
    }

    /// The lines by which the server tells others where it is reached.
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
