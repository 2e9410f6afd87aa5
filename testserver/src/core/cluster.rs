//! A node of a cluster.
//!
//! Each node has a map of the cluster of its own, because real nodes learn of changes at different
//! times. The owner of the nodes makes the maps and hands them out ([`Core::set_cluster_map`]), and
//! carries what the nodes of a real cluster send each other:
//!
//! - A fail-over is [`Core::promote`] at the replica, and a map in which it has taken the place of
//!   its master.
//! - A slot moves in steps: [`Core::begin_import`] at the target, [`Core::begin_migration`] at the
//!   owner, each key of the slot by [`Core::export_key`] and [`Core::import_key`], and a map in
//!   which the target has the slot, for the target first.
//! - Messages go to all nodes ([`Core::take_messages`], [`Core::deliver`]).

use super::Core;
use super::commands::Command;
use super::replication::{Address, Change, Message};
use super::resp::Bytes;
use super::state::{Mode, State};
use super::store::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of a key or a shard channel: that of the text between its first `{` and the
/// next `}`, if there is one.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = (|| {
        let start = key.iter().position(|byte| *byte == b'{')? + 1;
        let len = key[start..].iter().position(|byte| *byte == b'}')?;
        (len > 0).then(|| &key[start..start + len])
    })();
    let mut sum = 0_u16;
    for byte in tag.unwrap_or(key) {
        sum ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = sum >> 15;
            sum = (sum << 1) ^ (carry * 0x1021);
        }
    }
    sum % SLOTS
}

/// A node, as the others know it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) address: Address,
    /// The place of its master in the map, if it is a replica.
    master: Option<usize>,
    /// The number of the fail-over or the move of a slot by which it last got slots.
    pub(crate) epoch: u64,
}

/// The nodes of a cluster, and which of them serves each slot.
///
/// A node is named by its id, which clients see: forty hexadecimal digits in a real cluster.
#[derive(Clone, Debug)]
pub struct ClusterMap {
    nodes: Vec<Node>,
    /// The place of the node that serves each slot.
    owners: Vec<Option<u16>>,
}

impl Default for ClusterMap {
    fn default() -> Self {
        Self::new()
    }
}

impl ClusterMap {
    /// Creates a map without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self { nodes: Vec::new(), owners: vec![None; SLOTS.into()] }
    }

    /// Adds a master that serves a range of slots.
    ///
    /// # Panics
    ///
    /// Panics if the range ends behind the last slot.
    pub fn add_master(&mut self, id: &str, address: Address, slots: RangeInclusive<u16>) {
        let place = self.nodes.len();
        let epoch = self.epoch() + 1;
        self.nodes.push(Node { id: id.to_owned(), address, master: None, epoch });
        for slot in slots {
            self.owners[usize::from(slot)] = Some(place as u16);
        }
    }

    /// Adds a replica of a master.
    ///
    /// # Panics
    ///
    /// Panics if the map has no node with the master's id.
    pub fn add_replica(&mut self, id: &str, address: Address, master: &str) {
        let master = Some(self.place(master));
        self.nodes.push(Node { id: id.to_owned(), address, master, epoch: 0 });
    }

    /// Gives a slot to a master.
    ///
    /// # Panics
    ///
    /// Panics if the map has no node with this id, or if there is no such slot.
    pub fn give(&mut self, slot: u16, to: &str) {
        let place = self.place(to);
        self.nodes[place].epoch = self.epoch() + 1;
        self.owners[usize::from(slot)] = Some(place as u16);
    }

    /// Puts a replica in the place of its master, which becomes a replica of it, as all other
    /// replicas of that master do.
    ///
    /// # Panics
    ///
    /// Panics if the map has no node with this id, or if it is no replica.
    pub fn fail_over(&mut self, replica: &str) {
        let new = self.place(replica);
        let old = self.nodes[new].master.expect("a replica");
        let epoch = self.epoch() + 1;
        for node in &mut self.nodes {
            if node.master == Some(old) {
                node.master = Some(new);
            }
        }
        self.nodes[old].master = Some(new);
        self.nodes[new].master = None;
        self.nodes[new].epoch = epoch;
        for owner in &mut self.owners {
            if *owner == Some(old as u16) {
                *owner = Some(new as u16);
            }
        }
    }

    fn place(&self, id: &str) -> usize {
        self.nodes.iter().position(|node| node.id == id).expect("a node of the map")
    }

    fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    fn owner(&self, slot: u16) -> Option<&Node> {
        self.owners[usize::from(slot)].map(|place| &self.nodes[usize::from(place)])
    }

    /// Returns the master of a node, if it is a replica.
    fn master(&self, id: &str) -> Option<&Node> {
        self.node(id)?.master.map(|place| &self.nodes[place])
    }

    /// Returns the id of the node that serves a slot.
    ///
    /// # Panics
    ///
    /// Panics if there is no such slot.
    #[must_use]
    pub fn owner_id(&self, slot: u16) -> Option<&str> {
        self.owner(slot).map(|node| &*node.id)
    }

    /// Returns the number of the last change of an owner.
    pub(crate) fn epoch(&self) -> u64 {
        self.nodes.iter().map(|node| node.epoch).max().unwrap_or(0)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the number of slots that have an owner.
    pub(crate) fn served(&self) -> usize {
        self.owners.iter().flatten().count()
    }

    /// Returns the number of masters with slots.
    pub(crate) fn size(&self) -> usize {
        self.owners.iter().flatten().collect::<BTreeSet<_>>().len()
    }

    /// Returns the ranges of slots with one owner, each with the owner and its replicas.
    pub(crate) fn ranges(&self) -> Vec<(RangeInclusive<u16>, Vec<&Node>)> {
        let mut ranges = Vec::new();
        let mut first = 0;
        for slot in 0..SLOTS {
            let owner = self.owners[usize::from(slot)];
            if slot + 1 < SLOTS && self.owners[usize::from(slot + 1)] == owner {
                continue;
            }
            if let Some(owner) = owner.map(usize::from) {
                let replicas = self.nodes.iter().filter(|node| node.master == Some(owner));
                ranges.push((
                    first..=slot,
                    [&self.nodes[owner]].into_iter().chain(replicas).collect(),
                ));
            }
            first = slot + 1;
        }
        ranges
    }
}

/// A cluster, as one of its nodes sees it.
#[derive(Debug)]
pub(crate) struct ClusterView {
    /// The id of this node.
    pub(crate) own: String,
    pub(crate) map: Rc<ClusterMap>,
    /// Whether each slot has an owner.
    is_complete: bool,
    /// Whether the node sees most of the cluster's masters.
    is_connected: bool,
    /// The nodes to which slots of this node are moving, by slot.
    migrating: BTreeMap<u16, String>,
    /// The slots of other nodes that are moving to this node.
    importing: BTreeSet<u16>,
    /// The messages for other nodes.
    messages: Vec<Message>,
}

impl ClusterView {
    /// Tells whether the node serves requests: it sees most masters, and each slot has an owner.
    pub(crate) fn is_ok(&self) -> bool {
        self.is_connected && self.is_complete
    }

    /// Returns the number of the last change by which this node got slots.
    pub(crate) fn own_epoch(&self) -> u64 {
        self.map.node(&self.own).map_or(0, |node| node.epoch)
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.messages.push(message);
    }
}

/// Why a node does not run a command.
#[derive(Debug)]
pub(crate) enum Elsewhere {
    CrossSlot,
    /// Some of the keys of a moving slot are here.
    Divided,
    Down,
    /// The slot has no owner.
    Unserved,
    Moved(u16, Address),
    Ask(u16, Address),
}

impl Elsewhere {
    /// Returns the error for a client.
    pub(crate) fn error(&self) -> String {
        match self {
            Self::CrossSlot => "CROSSSLOT Keys in request don't hash to the same slot".to_owned(),
            Self::Divided => "TRYAGAIN Multiple keys request during rehashing of slot".to_owned(),
            Self::Down => "CLUSTERDOWN The cluster is down".to_owned(),
            Self::Unserved => "CLUSTERDOWN Hash slot not served".to_owned(),
            Self::Moved(slot, address) => format!("MOVED {slot} {address}"),
            Self::Ask(slot, address) => format!("ASK {slot} {address}"),
        }
    }

    /// Returns the error for a script.
    pub(crate) fn error_in_script(&self) -> &'static str {
        match self {
            Self::Down => "ERR Script attempted to execute a command while the cluster is down",
            _ => "ERR Script attempted to access a non local key in a cluster node",
        }
    }
}

impl State {
    /// Tells why a command has to go elsewhere, if its keys do not let this node run it.
    pub(crate) fn elsewhere(&mut self, command: &Command, args: &[Bytes]) -> Option<Elsewhere> {
        let Mode::Cluster(view) = &self.mode else { return None };
        let keys = command.keys(args);
        let slot = slot_of(keys.first()?);
        let Some(owner) = view.map.owner(slot) else { return Some(Elsewhere::Unserved) };
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Some(Elsewhere::CrossSlot);
        }
        let is_for_shard = ["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"].contains(&command.name);
        if !view.is_ok() && !is_for_shard {
            return Some(Elsewhere::Down);
        }
        let is_own = owner.id == view.own;
        if is_own && let Some(target) = view.migrating.get(&slot).filter(|_| !is_for_shard) {
            let target = view.map.node(target)?.address.clone();
            return match self.missing(&keys) {
                0 => None,
                missing if missing < keys.len() => Some(Elsewhere::Divided),
                _ => Some(Elsewhere::Ask(slot, target)),
            };
        }
        // Replicas have the channels of their shard, too.
        if is_own
            || (is_for_shard && view.map.master(&view.own).is_some_and(|it| it.id == owner.id))
        {
            return None;
        }
        if self.is_asking && view.importing.contains(&slot) {
            let has_several = keys.iter().any(|key| *key != keys[0]);
            let is_divided = has_several && !is_for_shard && self.missing(&keys) > 0;
            return is_divided.then_some(Elsewhere::Divided);
        }
        Some(Elsewhere::Moved(slot, owner.address.clone()))
    }

    fn missing(&mut self, keys: &[&Bytes]) -> usize {
        keys.iter().filter(|key| self.entry(key).is_none()).count()
    }
}

/// A key with its value and its expiry, on its way to another node.
#[derive(Clone, Debug)]
pub struct ExportedKey {
    key: Bytes,
    entry: Entry,
}

/// Nodes of a cluster.
impl Core {
    /// Makes the server a node of a cluster, with this id and a map without nodes.
    pub fn join_cluster(&mut self, id: &str) {
        let view = ClusterView {
            own: id.to_owned(),
            map: Rc::default(),
            is_complete: false,
            is_connected: true,
            migrating: BTreeMap::new(),
            importing: BTreeSet::new(),
            messages: Vec::new(),
        };
        self.state.borrow_mut().mode = Mode::Cluster(view);
    }

    /// Tells a node the state of the cluster.
    ///
    /// Where a slot has another owner than before, its move ends at this node. If the slot has left
    /// the node or its master, the subscriptions to its shard channels end. A master that has lost
    /// a slot deletes its keys; one that has become a replica keeps them until [`Core::load`].
    /// Roles change by [`Core::promote`] and [`Core::become_replica_of`].
    pub fn set_cluster_map(&mut self, map: &Rc<ClusterMap>) {
        let mut state = self.state.borrow_mut();
        let Mode::Cluster(view) = &mut state.mode else { return };
        let old = std::mem::replace(&mut view.map, Rc::clone(map));
        let (new, own) = (&view.map, &view.own);
        let has_moved = |slot: &u16| old.owner_id(*slot) != new.owner_id(*slot);
        let moved: BTreeSet<u16> = (0..SLOTS).filter(has_moved).collect();
        view.is_complete = new.served() == usize::from(SLOTS);
        view.migrating.retain(|slot, _| !moved.contains(slot));
        view.importing.retain(|slot| new.owner_id(*slot) != Some(own));
        let is_master = new.node(own).is_some_and(|node| node.master.is_none());
        let lost = moved.iter().filter(|slot| is_master && old.owner_id(**slot) == Some(own));
        let lost: Vec<u16> = lost.copied().collect();
        let old_master = old.master(own).map(|node| &*node.id);
        let is_of_shard = |slot: &u16| {
            let owner = old.owner_id(*slot);
            owner == Some(own) || (owner.is_some() && owner == old_master)
        };
        let left: BTreeSet<u16> = moved.iter().copied().filter(is_of_shard).collect();
        state.end_shard_channels(|channel| left.contains(&slot_of(channel)));
        for slot in lost {
            for key in state.keys_in_slot(slot) {
                state.remove(0, &key);
            }
        }
        state.replication.end_entry();
    }

    /// Tells a node whether it sees most masters of the cluster. Without them it refuses requests.
    pub fn set_cluster_connected(&mut self, is_connected: bool) {
        self.with_view(|view| view.is_connected = is_connected);
    }

    /// Begins to move a slot of this node to another one: it answers `ASK` for keys that it does
    /// not have.
    pub fn begin_migration(&mut self, slot: u16, to: &str) {
        self.with_view(|view| {
            view.migrating.insert(slot, to.to_owned());
        });
    }

    /// Begins to take a slot of another node: the node runs requests about it after `ASKING`.
    pub fn begin_import(&mut self, slot: u16) {
        self.with_view(|view| {
            view.importing.insert(slot);
        });
    }

    /// Gives up the move of a slot that has begun at this node. Keys that have moved do not return.
    pub fn abandon_move(&mut self, slot: u16) {
        self.with_view(|view| {
            view.migrating.remove(&slot);
            view.importing.remove(&slot);
        });
    }

    /// Returns the keys of a slot that the node has, in no order.
    pub fn keys_in_slot(&mut self, slot: u16) -> Vec<Vec<u8>> {
        self.state.borrow_mut().keys_in_slot(slot)
    }

    /// Takes a key with its value and its expiry out of a node of a cluster.
    pub fn export_key(&mut self, key: &[u8]) -> Option<ExportedKey> {
        let mut state = self.state.borrow_mut();
        state.database = 0;
        let entry = state.entry(key)?.clone();
        state.remove(0, key);
        state.replication.end_entry();
        Some(ExportedKey { key: key.to_vec(), entry })
    }

    /// Puts a key of another node into a node of a cluster.
    pub fn import_key(&mut self, exported: ExportedKey) {
        let ExportedKey { key, entry } = exported;
        let mut state = self.state.borrow_mut();
        state.databases()[0].set(&key, entry.clone());
        state.replication.record(Change::Key { database: 0, key, entry: Some(entry) });
        state.replication.end_entry();
    }

    /// Takes the messages that clients have published at a node of a cluster, for the other nodes:
    /// for those of its shard only if they are sharded.
    pub fn take_messages(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        self.with_view(|view| messages = std::mem::take(&mut view.messages));
        messages
    }

    /// Sends a message of another node to this node's subscribers.
    pub fn deliver(&mut self, message: &Message) {
        self.state.borrow_mut().deliver(message);
    }

    fn with_view(&mut self, change: impl FnOnce(&mut ClusterView)) {
        if let Mode::Cluster(view) = &mut self.state.borrow_mut().mode {
            change(view);
        }
    }
}

impl State {
    fn keys_in_slot(&mut self, slot: u16) -> Vec<Bytes> {
        let now = self.now_ms();
        let all = self.databases()[0].starting_at(0, now).flat_map(|(_, keys)| keys);
        all.map(|(key, _)| key).filter(|key| slot_of(key) == slot).cloned().collect()
    }
}
