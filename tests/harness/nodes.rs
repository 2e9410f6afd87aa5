//! What the nodes of a cluster say of each other: `CLUSTER NODES`.

use super::ports::TO_THE_BUS;
use super::server::Server;
use crc::{CRC_16_XMODEM, Crc};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The slot of a key that has no braces.
pub fn slot(key: &str) -> u16 {
    const SUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    SUM.checksum(key.as_bytes()) % 16_384
}

/// One node of a cluster, as one of the nodes sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// 40 hexadecimal digits, the same for its whole life.
    pub id: String,
    /// The port for clients.
    pub port: u16,
    /// For instance `master`, `slave`, `fail?`, `handshake`, without `myself`.
    pub flags: Vec<String>,
    /// The id of its master, or `-`.
    pub master: String,
    /// Of two that claim a slot the one with the higher epoch is right.
    pub epoch: u64,
    /// The slots that it serves. Those on the move are with the node that they
    /// move from.
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Node {
    /// What a node sees, itself among it, by port; nothing where it does not answer.
    pub fn seen_by(node: &Server) -> Option<BTreeMap<u16, Self>> {
        let text: String = node.tells(&["CLUSTER", "NODES"])?;
        text.lines().map(|line| Self::parse(line).map(|node| (node.port, node))).collect()
    }

    /// How a node sees itself.
    pub fn itself(node: &Server) -> Option<Self> {
        Self::seen_by(node)?.remove(&node.port())
    }

    /// Whether it is called this.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|other| other == flag)
    }

    /// Whether it serves this slot.
    pub fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// Reads `<id> <ip:port@bus,...> <flags> <master> <ping> <pong> <epoch> <link> <slots>...`.
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

/// Reads `<ip:port@bus,...>`. Newer servers say 0 for the port to who asks without TLS, if the
/// node serves clients with TLS alone; then it is told by that of the bus.
fn client_port(word: &str) -> Option<u16> {
    let (address, rest) = word.split_once('@')?;
    let bus: u16 = rest.split(',').next()?.parse().ok()?;
    match address.rsplit_once(':')?.1.parse().ok()? {
        0 => bus.checked_sub(TO_THE_BUS),
        port => Some(port),
    }
}

/// Reads `<slot>` or `<first>-<last>`.
fn range(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// What a node sees, but for the epochs of replicas, which spread late. Where the nodes do not
/// know the masters' epochs, two owners of a slot can get the same one, and disagree for ever.
pub(super) fn view(node: &Server) -> Option<BTreeMap<u16, Node>> {
    let mut view = Node::seen_by(node)?;
    view.values_mut().filter(|seen| seen.has("slave")).for_each(|seen| seen.epoch = 0);
    Some(view)
}

/// Whether a node says that all slots are served, and, if it is a replica, that it
/// is in sync.
pub(super) fn is_well(node: &Server) -> bool {
    let info: Option<String> = node.tells(&["CLUSTER", "INFO"]);
    let is_ok = info.is_some_and(|info| info.lines().any(|line| line == "cluster_state:ok"));
    is_ok && (node.says("role:master") || node.says("master_link_status:up"))
}
