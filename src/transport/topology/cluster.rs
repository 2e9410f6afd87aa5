//! The slot map of a Redis Cluster.
//!
//! - A node has a number, given when the client learns of the node. Numbers are not used again.
//! - The map is read (`CLUSTER SLOTS`) from a node that reports a healthy cluster, and is corrected
//!   by every `MOVED`.
//! - The map is read again after [`REFRESH`], and soon after a node could not be reached or has
//!   redirected a command.
//! - The generation grows when a reading finds that slots have another owner than at the last
//!   reading. This corresponds to a fail-over with Sentinel.
//! - A reading tries the nodes that serve slots, then the configured nodes, and no others: the
//!   addresses of former nodes may take a connect time-out each.
//! - Each reading forgets the nodes that serve no slot, are not configured, and whose address is
//!   not in use by a pool or a listener.
//!
//! A [`ClusterWatch`] reads the map over one connection, which stays open. After an error it
//! connects to the next node. Errors, and readings without changes, make the pauses grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, NodeAddress, Result};
use crate::transport::call::Call;
use crate::transport::connection::{Address, Connection, Timeouts};
use crate::transport::reply::{Reply, unexpected};
use crate::transport::slots::{SLOTS, slot};
use crate::util::clock::{self, Moment, doubled, jittered};
use crate::util::sync::{Mutex, Parker};

/// The age at which the map is read again.
const REFRESH: Duration = Duration::from_secs(5);

/// The first pause between two readings of the map.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two readings while nodes can be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The owner of a slot without a known node.
const NO_NODE: u32 = u32::MAX;

/// The number of names that [`Cluster::channel_on`] tries.
const TRIALS: u32 = 1 << 20;

/// The nodes and the slot map of one cluster.
pub(crate) struct Cluster {
    nodes: Mutex<KnownNodes>,
    /// The number of the node that serves each slot. Written under the mutex `nodes`, read without
    /// it.
    owners: Box<[AtomicU32]>,
    /// The name of the connections that read the map.
    name: String,
    timeouts: Timeouts,
    /// Whether a slot has changed its owner since the last reading of the map.
    changed: AtomicBool,
    generation: AtomicU64,
    /// Wakes the watch for a refresh.
    parker: Parker,
    /// The node that replied last. New connections try this node first.
    last_reached: Mutex<Option<Arc<str>>>,
}

/// The addresses of the nodes that the client knows.
#[derive(Debug)]
struct KnownNodes {
    by_number: BTreeMap<u32, Arc<Address>>,
    /// The number of configured nodes, which have the first numbers.
    configured: u32,
    /// The number of the next new node.
    next: u32,
}

impl KnownNodes {
    fn new(configured: Vec<Address>) -> KnownNodes {
        let by_number: BTreeMap<_, _> = (0..).zip(configured.into_iter().map(Arc::new)).collect();
        let next = by_number.keys().next_back().map_or(0, |last| last + 1);
        KnownNodes { by_number, configured: next, next }
    }

    /// Returns the number of the node at an address. A new node gets the next number.
    fn number(&mut self, address: Address) -> u32 {
        let known = self.by_number.iter().find(|(_, node)| node.shown() == address.shown());
        if let Some((number, _)) = known {
            return *number;
        }
        let number = self.next;
        self.by_number.insert(number, Arc::new(address));
        self.next += 1;
        number
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &*self.nodes.lock()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Creates the cluster of some configured nodes. Connects to none.
    pub(crate) fn new(seeds: Vec<Address>, name: String, timeouts: Timeouts) -> Cluster {
        Cluster {
            nodes: Mutex::new(KnownNodes::new(seeds)),
            owners: (0..SLOTS).map(|_| AtomicU32::new(NO_NODE)).collect(),
            name,
            timeouts,
            changed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            parker: Parker::default(),
            last_reached: Mutex::default(),
        }
    }

    /// Returns the number of the node that serves a slot, if known.
    fn owner(&self, slot: u16) -> Option<u32> {
        let owner = self.owners.get(usize::from(slot))?.load(Ordering::Relaxed);
        (owner != NO_NODE).then_some(owner)
    }

    /// Returns the number of the node that serves a key or a shard channel, if known.
    pub(crate) fn owner_of(&self, key: &[u8]) -> Option<u32> {
        self.owner(slot(key))
    }

    /// Returns the address of a node. The node is not forgotten while the address is in use.
    pub(crate) fn address(&self, node: u32) -> Option<Arc<Address>> {
        self.nodes.lock().by_number.get(&node).cloned()
    }

    /// Returns a node and its address: that with this number, or any if that node is forgotten.
    pub(crate) fn node_or_any(&self, node: u32) -> Option<(u32, Arc<Address>)> {
        let nodes = self.nodes.lock();
        let owner = || self.owners().into_iter().find(|node| nodes.by_number.contains_key(node));
        let known = nodes.by_number.contains_key(&node).then_some(node);
        let node = known.or_else(owner).unwrap_or(0);
        Some((node, nodes.by_number.get(&node).cloned()?))
    }

    /// Returns the numbers of all nodes that serve slots.
    pub(crate) fn owners(&self) -> BTreeSet<u32> {
        let owners = self.owners.iter().map(|owner| owner.load(Ordering::Relaxed));
        owners.filter(|owner| *owner != NO_NODE).collect()
    }

    /// Returns the count of readings that found slots with new owners.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the number of the node at `place`, an address that node `named_by` has sent.
    pub(crate) fn node_at(&self, place: &NodeAddress, named_by: u32) -> Option<u32> {
        let address = self.named(place, named_by)?;
        Some(self.nodes.lock().number(address))
    }

    /// Records that node `named_by` has named the node at `place` as the owner of a slot.
    ///
    /// Returns the number of the owner.
    pub(crate) fn slot_moved(&self, slot: u16, place: &NodeAddress, named_by: u32) -> Option<u32> {
        let address = self.named(place, named_by)?;
        let mut nodes = self.nodes.lock();
        let node = nodes.number(address);
        self.set_owner(slot, node);
        Some(node)
    }

    /// Returns the address of `place`. Calls the `address_map` of the program, so the caller must
    /// not hold the mutex.
    fn named(&self, place: &NodeAddress, named_by: u32) -> Option<Address> {
        Some(self.address(named_by)?.beside(place.host.as_deref(), place.port))
    }

    /// Stores the node that serves a slot. The caller has locked `nodes`, so that the node stays
    /// known.
    fn set_owner(&self, slot: u16, node: u32) {
        if let Some(owner) = self.owners.get(usize::from(slot))
            && owner.swap(node, Ordering::Relaxed) != node
        {
            self.changed.store(true, Ordering::Release);
        }
    }

    /// Asks the watch to read the map again soon.
    pub(crate) fn request_refresh(&self) {
        self.parker.unpark();
    }

    /// Reads the map from any node, over a new connection. Returns whether slots changed owners.
    pub(crate) fn refresh(&self) -> Result<bool> {
        self.with_any_node(|address| self.read_over(address, &mut self.open(address)?))?;
        Ok(self.count_change())
    }

    fn open(&self, address: &Address) -> Result<Connection> {
        Connection::open_server(address, self.timeouts, &self.name)
    }

    /// Returns whether slots changed owners since the last call, and counts the change.
    fn count_change(&self) -> bool {
        let changed = self.changed.swap(false, Ordering::AcqRel);
        self.generation.fetch_add(changed.into(), Ordering::AcqRel);
        changed
    }

    /// Calls `open` with one node after the other until it succeeds.
    ///
    /// Nodes that serve slots come first, then the other configured nodes. Of both, the node that
    /// replied last comes first. Returns the error of the last node if all fail.
    pub(crate) fn with_any_node<T>(
        &self,
        mut open: impl FnMut(&Address) -> Result<T>,
    ) -> Result<T> {
        let reached = self.last_reached.lock().clone();
        let mut last = None;
        for address in self.candidates(|nodes| {
            nodes.sort_by_key(|address| reached.as_ref() != Some(address.shown()));
        }) {
            match open(&address) {
                Ok(opened) => {
                    *self.last_reached.lock() = Some(Arc::clone(address.shown()));
                    return Ok(opened);
                }
                Err(error) => last = Some(error.with_server(Arc::clone(address.shown()))),
            }
        }
        Err(last.unwrap_or_else(no_node))
    }

    /// Returns the nodes that may know the map, in the order in which to ask them.
    ///
    /// These are the nodes that serve slots, then the other configured nodes. A configured node may
    /// be known to the cluster by another name, and then comes last. `arrange` orders both groups.
    fn candidates(&self, arrange: impl Fn(&mut [Arc<Address>])) -> Vec<Arc<Address>> {
        let owners = self.owners();
        let nodes = self.nodes.lock();
        let (mut serving, mut others) = (Vec::new(), Vec::new());
        for (number, address) in &nodes.by_number {
            if owners.contains(number) {
                serving.push(Arc::clone(address));
            } else if *number < nodes.configured {
                others.push(Arc::clone(address));
            }
        }
        arrange(&mut serving);
        arrange(&mut others);
        serving.append(&mut others);
        serving
    }

    /// Reads the map over a connection to the node at `address`. Two round trips.
    ///
    /// Fails if the node reports an unhealthy cluster, unless the client has no map yet.
    fn read_over(&self, address: &Address, conn: &mut Connection) -> Result<()> {
        let slots = conn.ask(&Call::command(&[b"CLUSTER", b"SLOTS"]))?;
        // A node that was cut off from the cluster keeps reporting an outdated map.
        let info = conn.ask(&Call::command(&[b"CLUSTER", b"INFO"]));
        let is_healthy = |text: &[u8]| text.windows(16).any(|part| part == b"cluster_state:ok");
        match info {
            Ok(info) if self.has_map() && !info.text().is_some_and(is_healthy) => {
                Err(Error::new(ErrorKind::Connection, "the node reports an unhealthy cluster"))
            }
            // A refusal of `CLUSTER INFO` is tolerated; a broken connection is not.
            Err(error) if error.is_unanswered() => Err(error),
            _ => self.apply(address, &slots),
        }
    }

    fn has_map(&self) -> bool {
        self.owners.iter().any(|owner| owner.load(Ordering::Relaxed) != NO_NODE)
    }

    /// Applies the reply to `CLUSTER SLOTS` of the node at `asked` to the map, and forgets former
    /// nodes.
    fn apply(&self, asked: &Address, slots: &Reply) -> Result<()> {
        let Reply::List(ranges) = slots else { return Err(unexpected(slots)) };
        let read = |range| read_range(asked, range).ok_or_else(|| unexpected(range));
        let ranges = ranges.iter().map(read).collect::<Result<Vec<_>>>()?;
        if ranges.is_empty() && self.has_map() {
            return Err(Error::new(ErrorKind::Connection, "the node knows no owner of a slot"));
        }
        let mut nodes = self.nodes.lock();
        let mut served = vec![false; self.owners.len()];
        for (slots, address) in ranges {
            let node = nodes.number(address);
            for slot in slots {
                self.set_owner(slot, node);
                served[usize::from(slot)] = true;
            }
        }
        for slot in (0..SLOTS).filter(|slot| !served[usize::from(*slot)]) {
            self.set_owner(slot, NO_NODE);
        }
        // Former nodes are neither owners nor configured, and nothing uses their address.
        let (owners, configured) = (self.owners(), nodes.configured);
        nodes.by_number.retain(|node, address| {
            *node < configured || owners.contains(node) || Arc::strong_count(address) > 1
        });
        Ok(())
    }

    /// Returns a channel name that belongs to a slot of a node.
    ///
    /// The name begins with `prefix`, which must not contain braces. Returns `None` if the node
    /// serves no slots.
    pub(crate) fn channel_on(&self, node: u32, prefix: &str) -> Option<String> {
        if !self.owners().contains(&node) {
            return None;
        }
        let mut names = (0..TRIALS).map(|trial| format!("{prefix}:{{{trial}}}"));
        names.find(|name| self.owner_of(name.as_bytes()) == Some(node))
    }
}

/// Reads the map repeatedly, for one thread.
pub(crate) struct ClusterWatch {
    cluster: Arc<Cluster>,
    conn: Option<(Arc<Address>, Connection)>,
    /// The index of the node for the next connection, modulo the number of nodes.
    next: usize,
    /// The start of the last reading.
    last_read: Moment,
    /// Consecutive readings that failed, or that were requested and found no change.
    futile: u32,
    /// Whether the last reading failed.
    failed: bool,
    /// Whether the last attempt to connect reached a node.
    reached: bool,
}

impl ClusterWatch {
    pub(crate) fn new(cluster: Arc<Cluster>) -> ClusterWatch {
        let last_read = clock::now();
        // A random start, so that processes use different nodes.
        let next = jittered(Duration::from_nanos(1 << 16), last_read.nanos()).subsec_nanos();
        let next = usize::try_from(next).unwrap_or(0);
        ClusterWatch {
            cluster,
            conn: None,
            next,
            last_read,
            futile: 0,
            failed: false,
            reached: true,
        }
    }

    /// Blocks until the next reading is due.
    ///
    /// After a successful reading this takes [`REFRESH`], or until [`Cluster::request_refresh`],
    /// and then a pause. After a failed reading it takes only the pause. `stop` ends the pause.
    pub(crate) fn wait(&mut self, stop: &Parker) {
        if !self.failed {
            let refresh = self.last_read + REFRESH;
            self.cluster.parker.park_until(refresh);
            if refresh <= clock::now() {
                self.futile = 0;
            }
        }
        // The pause grows with each futile reading.
        let longest = if self.reached { LONGEST_PAUSE } else { REFRESH };
        let pause = jittered(doubled(FIRST_PAUSE, self.futile, longest), self.last_read.nanos());
        stop.park_until(self.last_read + pause);
    }

    /// Reads the map. Returns whether slots have changed owners.
    pub(crate) fn check(&mut self) -> Result<bool> {
        self.last_read = clock::now();
        let read = self.read();
        let changed = read.as_ref().is_ok_and(|changed| *changed);
        self.futile = if changed { 0 } else { self.futile.saturating_add(1) };
        self.failed = read.is_err();
        read
    }

    fn read(&mut self) -> Result<bool> {
        let (address, mut conn) = match self.conn.take() {
            Some(watched) => watched,
            None => self.connect()?,
        };
        self.cluster.read_over(&address, &mut conn)?;
        // A former node may go on with a map of its own.
        let may_know = self.cluster.candidates(|_| {});
        let stays = may_know.iter().any(|node| node.shown() == address.shown());
        self.conn = stays.then_some((address, conn));
        Ok(self.cluster.count_change())
    }

    fn connect(&mut self) -> Result<(Arc<Address>, Connection)> {
        self.reached = false;
        let mut last = None;
        for address in self.next_candidates() {
            match self.cluster.open(&address) {
                Ok(conn) => {
                    self.reached = true;
                    return Ok((address, conn));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(no_node))
    }

    /// Returns the nodes for the next connection, in order. Each call begins with another node.
    fn next_candidates(&mut self) -> Vec<Arc<Address>> {
        let start = self.next;
        self.next = self.next.wrapping_add(1);
        self.cluster.candidates(|nodes| {
            if !nodes.is_empty() {
                nodes.rotate_left(start % nodes.len());
            }
        })
    }
}

fn no_node() -> Error {
    Error::new(ErrorKind::Connection, "no node is known")
}

/// Reads one range of the map: `[first, last, [host, port, ...], replicas ...]`.
///
/// Without a host, the range belongs to the host of the node that was asked.
fn read_range(asked: &Address, range: &Reply) -> Option<(std::ops::RangeInclusive<u16>, Address)> {
    let Reply::List(parts) = range else { return None };
    let [Reply::Int(first), Reply::Int(last), Reply::List(master), ..] = &parts[..] else {
        return None;
    };
    let (host, port) = match &master[..] {
        [host, Reply::Int(port), ..] => (host.text(), u16::try_from(*port).ok()?),
        _ => return None,
    };
    let host = host.map(String::from_utf8_lossy).filter(|host| !host.is_empty() && host != "?");
    let last = u16::try_from(*last).ok().filter(|last| *last < SLOTS)?;
    Some((u16::try_from(*first).ok()?..=last, asked.beside(host.as_deref(), port)))
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        let url = format!("redis://seed:{port}/");
        Address::parse(&url).expect("a good URL")
    }

    fn cluster() -> Cluster {
        let second = Duration::from_secs(1);
        let timeouts = Timeouts { connect: second, response: second, replicas: Duration::ZERO };
        Cluster::new(vec![address(7000)], "test".to_owned(), timeouts)
    }

    fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Reply, port: i64) -> Reply {
        let node = |host, port| Reply::List(vec![host, Reply::Int(port), text("id")]);
        let replica = node(text("replica"), 1);
        Reply::List(vec![Reply::Int(first), Reply::Int(last), node(host, port), replica])
    }

    #[test]
    fn the_map_is_read_and_then_corrected_by_a_redirection() {
        let cluster = cluster();
        let ranges = [
            range(0, 100, text(""), 7000),
            range(101, 200, text("other"), 7001),
            range(201, 16_383, Reply::Nil, 7002),
        ];
        cluster.apply(&address(7000), &Reply::List(ranges.to_vec())).expect("a good map");
        let shown = |slot| {
            let owner = cluster.owner(slot).and_then(|node| cluster.address(node));
            owner.expect("the slot has an owner").shown().to_string()
        };
        assert_eq!([shown(0), shown(101), shown(16_383)], ["seed:7000", "other:7001", "seed:7002"]);
        assert_eq!(cluster.owners().into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(cluster.changed.swap(false, Ordering::AcqRel));
        cluster.set_owner(5, 0);
        assert!(!cluster.changed.load(Ordering::Acquire), "the owner is the same");
        let place = NodeAddress { host: Some("other".to_owned()), port: 7001 };
        let node = cluster.slot_moved(5, &place, 0).expect("a node");
        assert_eq!((shown(5), node), ("other:7001".to_owned(), 1));
        assert!(cluster.changed.load(Ordering::Acquire));
    }

    /// Applies a map in which this node serves all slots.
    fn move_all(cluster: &Cluster, host: &str) {
        let all = Reply::List(vec![range(0, 16_383, text(host), 1)]);
        cluster.apply(&address(7000), &all).expect("a good map");
    }

    fn shown(nodes: &[Arc<Address>]) -> Vec<String> {
        nodes.iter().map(|node| node.shown().to_string()).collect()
    }

    #[test]
    fn a_reading_tries_only_nodes_with_slots_and_configured_nodes() {
        let cluster = Arc::new(cluster());
        (0..40).for_each(|number| move_all(&cluster, &format!("former{number}")));
        move_all(&cluster, "present");
        let known = cluster.nodes.lock().by_number.len();
        assert_eq!(known, 2, "former nodes are forgotten");
        let mut tried = Vec::new();
        let opened = cluster.with_any_node(|address| {
            tried.push(address.shown().to_string());
            Err::<(), _>(no_node())
        });
        assert!(opened.is_err());
        assert_eq!(tried, ["present:1", "seed:7000"]);
        let mut watch = ClusterWatch::new(Arc::clone(&cluster));
        for start in 0..3 {
            watch.next = start;
            assert_eq!(shown(&watch.next_candidates()), ["present:1", "seed:7000"]);
        }
        *cluster.last_reached.lock() = Some("seed:7000".into());
        let _ = cluster.with_any_node(|address| {
            tried.push(address.shown().to_string());
            Err::<(), _>(no_node())
        });
        assert_eq!(tried[2..], ["present:1", "seed:7000"]);
    }

    #[test]
    fn a_node_in_use_stays_known_and_a_forgotten_number_is_not_used_again() {
        let cluster = cluster();
        move_all(&cluster, "a");
        let used = cluster.address(1).expect("the first node after the configured one");
        move_all(&cluster, "b");
        assert_eq!(cluster.address(1).map(|a| a.shown().to_string()), Some("a:1".to_owned()));
        drop(used);
        move_all(&cluster, "b");
        assert_eq!(cluster.address(1).map(|a| a.shown().to_string()), None);
        move_all(&cluster, "a");
        assert_eq!(cluster.owners().into_iter().collect::<Vec<_>>(), [3]);
        assert_eq!(cluster.node_or_any(1).map(|(node, _)| node), Some(3));
    }

    #[test]
    fn slots_without_an_owner_keep_no_former_owner() {
        let cluster = cluster();
        move_all(&cluster, "a");
        let half = Reply::List(vec![range(0, 100, text("b"), 1)]);
        cluster.apply(&address(7000), &half).expect("a good map");
        assert_eq!((cluster.owner(100), cluster.owner(101)), (Some(2), None));
        let error = cluster.apply(&address(7000), &Reply::List(Vec::new()));
        assert!(error.is_err(), "a node without a map does not know the cluster");
        assert_eq!(cluster.owner(100), Some(2));
    }

    #[test]
    fn a_malformed_map_is_an_error() {
        for wrong in [
            Reply::Nil,
            Reply::List(vec![Reply::Int(1)]),
            Reply::List(vec![range(0, 16_384, text("h"), 1)]),
            Reply::List(vec![range(-1, 5, text("h"), 1)]),
            Reply::List(vec![range(0, 5, text("h"), 70_000)]),
        ] {
            assert!(cluster().apply(&address(1), &wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn each_node_with_slots_has_a_channel_in_one_of_them() {
        let cluster = cluster();
        cluster.set_owner(7, 1);
        (8..SLOTS).for_each(|slot| cluster.set_owner(slot, 0));
        for node in [0, 1] {
            let channel =
                cluster.channel_on(node, "leasehold:wake:x").expect("the node serves slots");
            assert_eq!(cluster.owner_of(channel.as_bytes()), Some(node), "{channel}");
        }
        assert_eq!(cluster.channel_on(2, "x"), None);
    }
}
