//! The view that a node of a cluster has of all nodes: `CLUSTER NODES`.

use super::ports::TO_THE_BUS;
use super::server::Server;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// One node of a cluster, in the view of one of the nodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// The node id: 40 hexadecimal digits that never change.
    pub id: String,
    /// The port for clients.
    pub port: u16,
    /// The flags without `myself`, such as `master`, `slave`, `fail?`, `handshake`.
    pub flags: Vec<String>,
    /// The id of the node's master, or `-`.
    pub master: String,
    /// The configuration epoch. If two nodes claim a slot, the higher epoch wins.
    pub epoch: u64,
    /// The slots that the node serves. A migrating slot belongs to its old node.
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Node {
    /// Returns the nodes that `node` sees, by port, including itself.
    ///
    /// `None` if `node` does not answer.
    pub fn seen_by(node: &Server) -> Option<BTreeMap<u16, Self>> {
        let text: String = node.try_ask(&["CLUSTER", "NODES"])?;
        text.lines().map(|line| Self::parse(line).map(|node| (node.port, node))).collect()
    }

    /// Returns the view that `node` has of itself.
    pub fn itself(node: &Server) -> Option<Self> {
        Self::seen_by(node)?.remove(&node.port())
    }

    /// Returns whether the node has this flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|other| other == flag)
    }

    /// Returns whether the node serves this slot.
    pub fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// Parses `<id> <ip:port@bus,...> <flags> <master> <ping> <pong> <epoch> <link> <slots>...`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let id = words.next()?.to_owned();
        let port = client_port(words.next()?)?;
        let flags = words.next()?.split(',').filter(|flag| *flag != "myself");
        let flags = flags.map(str::to_owned).collect();
        let master = words.next()?.to_owned();
        let epoch = words.nth(2)?.parse().ok()?;
        let slots = words.skip(1).filter(|word| !word.starts_with('['));
        let slots = slots.map(range).collect::<Option<_>>()?;
        Some(Self { id, port, flags, master, epoch, slots })
    }
}

/// Parses `<ip:port@bus,...>` and returns the port for clients.
///
/// If a node serves only TLS, newer servers give the port 0 to a client without TLS. The port then
/// follows from the port of the bus.
fn client_port(word: &str) -> Option<u16> {
    let (address, rest) = word.split_once('@')?;
    let bus: u16 = rest.split(',').next()?.parse().ok()?;
    match address.rsplit_once(':')?.1.parse().ok()? {
        0 => bus.checked_sub(TO_THE_BUS),
        port => Some(port),
    }
}

/// Parses `<slot>` or `<first>-<last>`.
fn range(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Returns the nodes that `node` sees, with the epochs of replicas set to 0.
///
/// The epochs of replicas spread late. The epochs of masters are compared: if the nodes do not know
/// them, two owners of a slot can get the same epoch and disagree for ever.
pub(super) fn view(node: &Server) -> Option<BTreeMap<u16, Node>> {
    let mut view = Node::seen_by(node)?;
    for replica in view.values_mut().filter(|seen| seen.has("slave")) {
        replica.epoch = 0;
    }
    Some(view)
}

/// Returns whether a node reports that all slots are served.
///
/// A replica must also report that it is in sync.
pub(super) fn is_well(node: &Server) -> bool {
    let info: Option<String> = node.try_ask(&["CLUSTER", "INFO"]);
    let is_ok = info.is_some_and(|info| info.lines().any(|line| line == "cluster_state:ok"));
    is_ok && (node.says("role:master") || node.says("master_link_status:up"))
}
