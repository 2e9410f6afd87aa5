//! A cluster of servers, each of which serves some of the slots.

use super::config::{Config, Credentials};
use super::nodes::{Node, is_well, view};
use super::server::Server;
use super::wait::{eventually, eventually_some, holds_within};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The silence after which a majority of the masters considers a node dead.
///
/// A little later a replica takes the node's place.
const NODE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The time after which a replica gives up an attempt to take its master's place.
const FAILOVER_TRIED: Duration = Duration::from_secs(5);

/// The time for the nodes to agree on a slot's owner, before `SETSLOT` is repeated.
const AGREED_WITHIN: Duration = Duration::from_secs(1);

/// The number of keys that move at once.
const BATCH: &str = "100";

/// The time-out of such a move in milliseconds.
const MOVED_WITHIN: u16 = 5000;

/// The nodes of a cluster on loopback, with the slots divided evenly among the masters.
///
/// A test may stop, kill and restart each node.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    config: Config,
}

impl Cluster {
    /// Starts masters with `replicas_each` replicas each; blocks as `settle` does.
    pub fn start(masters: usize, replicas_each: usize) -> Self {
        Self::with(masters, replicas_each, |config| config)
    }

    /// Starts like `start`, with more configuration for every node.
    pub fn with(
        masters: usize,
        replicas_each: usize,
        configure: impl Fn(Config) -> Config,
    ) -> Self {
        // A replica stays with its master, and may take its place however old the data is.
        let config = Config::default()
            .node()
            .follower()
            .line(format!("cluster-node-timeout {}", NODE_TIMEOUT.as_millis()))
            .line("cluster-allow-replica-migration no")
            .line("cluster-replica-validity-factor 0");
        let config = configure(config).login_at_master();
        let start = |_| Server::with(|_| config.clone());
        let nodes = (0..masters * (1 + replicas_each)).map(start).collect();
        let cluster = Self { nodes, config };
        cluster.share_slots(masters);
        cluster.introduce();
        cluster.settle();
        for (index, replica) in cluster.nodes.iter().enumerate().skip(masters) {
            let master = id(&cluster.nodes[index % masters]);
            replica.ask::<()>(&["CLUSTER", "REPLICATE", &master]);
        }
        cluster.settle();
        cluster
    }

    /// Returns all nodes, in every role. The first ones started as masters.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns the URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// Returns the slot of a key, computed by a node.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = || self.nodes.iter().find_map(|node| node.try_ask(&["CLUSTER", "KEYSLOT", key]));
        eventually_some("a node computes a slot", slot)
    }

    /// Returns the node that serves the slot of this key.
    pub fn owner_of(&self, key: &str) -> &Server {
        self.owner_of_slot(self.slot_of(key))
    }

    /// Returns the node that serves this slot; blocks until there is one.
    ///
    /// Of the running nodes that claim the slot, the node with the highest epoch.
    pub fn owner_of_slot(&self, slot: u16) -> &Server {
        eventually_some("a node serves the slot", || {
            let all = self.nodes.iter().filter_map(|node| Some((node, Node::itself(node)?)));
            let owners = all.filter(|(_, seen)| seen.has("master") && seen.serves(slot));
            owners.max_by_key(|(_, seen)| seen.epoch).map(|(node, _)| node)
        })
    }

    /// Returns the number of the last election that a node knows.
    pub fn epoch(&self) -> u64 {
        let known = |node: &Server| -> Option<u64> {
            let info: String = node.try_ask(&["CLUSTER", "INFO"])?;
            let line = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
            line?.trim().parse().ok()
        };
        self.nodes.iter().filter_map(known).max().unwrap_or(0)
    }

    /// Returns a running replica of this node; blocks until there is one.
    pub fn replica_of(&self, master: &Server) -> &Server {
        let id = id(master);
        let is_replica = |node: &&Server| Node::itself(node).is_some_and(|node| node.master == id);
        eventually_some("there is a replica", || self.nodes.iter().find(is_replica))
    }

    /// Returns a key with this prefix that this node serves.
    ///
    /// The prefix must not contain braces, since they alone would determine the slot.
    pub fn key_on(&self, node: &Server, prefix: &str) -> String {
        let mut keys = (0..1000).map(|count| format!("{prefix}-{count}"));
        keys.find(|key| self.owner_of(key).port() == node.port()).expect("a master has slots")
    }

    /// Moves a slot with all its keys to another master.
    ///
    /// Blocks until all running nodes agree on the new owner.
    pub fn migrate(&self, slot: u16, to: &Server) {
        self.begin_migration(slot, to);
        self.move_keys(slot, to);
        self.end_migration(slot, to);
    }

    /// Begins the migration of a slot.
    ///
    /// The owner of the slot then replies `ASK` for keys that it does not have, and `to` serves
    /// those keys after `ASKING`.
    pub fn begin_migration(&self, slot: u16, to: &Server) {
        let (from, slot) = (self.owner_of_slot(slot), slot.to_string());
        to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves all keys of the slot from its owner to `to`.
    pub fn move_keys(&self, slot: u16, to: &Server) {
        let (from, slot) = (self.owner_of_slot(slot), slot.to_string());
        eventually("the slot is empty", || {
            let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, BATCH]);
            if !keys.is_empty() {
                self.send(&keys, from, to);
            }
            keys.is_empty()
        });
    }

    /// Ends the migration of a slot whose keys are at `to`.
    ///
    /// Blocks until all running nodes agree on the new owner.
    pub fn end_migration(&self, slot: u16, to: &Server) {
        self.give(slot, to);
        eventually("the nodes agree", || {
            let settled = holds_within(AGREED_WITHIN, || self.is_settled());
            if !settled {
                self.give(slot, to);
            }
            settled
        });
    }

    fn give(&self, slot: u16, to: &Server) {
        let (slot, target) = (slot.to_string(), id(to));
        let others = self.nodes.iter().filter(|node| node.port() != to.port());
        let masters = others.filter(|node| node.says("role:master"));
        // The target is first, since a slot given up by its owner alone would have no owner. The
        // target needs the highest epoch, or a late claim of a former owner would win.
        to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        to.ask::<()>(&["CLUSTER", "BUMPEPOCH"]);
        for node in masters {
            node.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    /// Promotes a replica in place of its healthy master; blocks as `settle` does.
    pub fn fail_over(&self, replica: &Server) {
        eventually("the replica becomes the master", || {
            let _ = replica.try_ask::<()>(&["CLUSTER", "FAILOVER"]);
            holds_within(FAILOVER_TRIED, || replica.says("role:master"))
        });
        self.settle();
    }

    /// Blocks until all running nodes agree and serve all slots.
    ///
    /// The nodes see the same masters, replicas and slots, know which nodes do not run, and the
    /// replicas are in sync.
    pub fn settle(&self) {
        eventually("the nodes agree", || self.is_settled());
    }

    fn is_settled(&self) -> bool {
        let running = || self.nodes.iter().filter(|node| node.runs());
        let views: Option<Vec<_>> = running().map(view).collect();
        let views = views.unwrap_or_default();
        let Some(seen) = views.first() else { return false };
        views.iter().all(|view| view == seen) && self.is_complete(seen) && running().all(is_well)
    }

    /// Returns whether a view has all nodes, and shows as failed exactly those that do not run.
    fn is_complete(&self, view: &BTreeMap<u16, Node>) -> bool {
        let is_right = |node: &Server| {
            view.get(&node.port()).is_some_and(|seen| {
                !seen.has("handshake") && !seen.has("fail?") && seen.has("fail") != node.runs()
            })
        };
        view.len() == self.nodes.len() && self.nodes.iter().all(is_right)
    }

    fn share_slots(&self, masters: usize) {
        let first = |index: usize| index * usize::from(SLOTS) / masters;
        for (index, node) in self.nodes.iter().enumerate() {
            node.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        for (index, master) in self.nodes[..masters].iter().enumerate() {
            let slots: Vec<usize> = (first(index)..first(index + 1)).collect();
            let mut words = redis::cmd("CLUSTER");
            let added = words.arg("ADDSLOTS").arg(slots).exec(&mut master.connection());
            added.expect("the slots have no owner");
        }
    }

    /// Introduces every node to every other, which is faster than gossip.
    fn introduce(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[index + 1..] {
                let port = other.port().to_string();
                let bus = other.bus_port().to_string();
                node.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
    }

    /// Moves these keys of a migrating slot.
    pub fn send(&self, keys: &[String], from: &Server, to: &Server) {
        let mut words = redis::cmd("MIGRATE");
        words.arg("127.0.0.1").arg(to.port()).arg("").arg(0).arg(MOVED_WITHIN);
        match &self.config.credentials {
            Some(Credentials { user: Some(user), password }) => {
                words.arg("AUTH2").arg(user).arg(password)
            }
            Some(Credentials { user: None, password }) => words.arg("AUTH").arg(password),
            None => &mut words,
        };
        words.arg("KEYS").arg(keys).exec(&mut from.connection()).expect("the target takes keys");
    }
}

fn id(node: &Server) -> String {
    node.ask(&["CLUSTER", "MYID"])
}
