//! The slot map of a Redis Cluster.
//!
//! - A node has a number, given when the client first learns of the node.
//! - The map is read (`CLUSTER SLOTS`) from a node that reports a healthy cluster, and is corrected
//!   by every `MOVED`.
//! - The map is read again after [`REFRESH`], and soon after a node could not be reached or has
//!   redirected a command.
//! - The generation grows when a reading finds that slots have another owner than at the last
//!   reading. This corresponds to a fail-over with Sentinel.
//!
//! A [`ClusterWatch`] reads the map over one connection, which stays open. After an error it
//! connects to the next node. Errors, and readings without changes, make the pauses grow.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::command::call::Call;
use crate::command::name::{SLOTS, slot};
use crate::command::reply::{Reply, unexpected};
use crate::connection::{Address, Connection, Timeouts};
use crate::error::{Error, ErrorKind, NodeAddress, Result};
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
    /// The addresses of the nodes. The index is the node's number; configured nodes come first.
    nodes: Mutex<Vec<Address>>,
    /// The number of the node that serves each slot.
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

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &*self.nodes.lock()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Creates the cluster of some configured nodes. Connects to none.
    pub(crate) fn new(seeds: Vec<Address>, name: String, timeouts: Timeouts) -> Cluster {
        Cluster {
            nodes: Mutex::new(seeds),
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

    /// Returns the address of a node.
    pub(crate) fn address(&self, node: u32) -> Option<Address> {
        self.nodes.lock().get(usize::try_from(node).ok()?).cloned()
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
        let named_by = self.address(named_by)?;
        Some(self.number(named_by.beside(place.host.as_deref(), place.port)))
    }

    /// Returns the number of the node at an address. A new node gets the next number.
    fn number(&self, address: Address) -> u32 {
        let mut nodes = self.nodes.lock();
        let known = nodes.iter().position(|node| node.shown() == address.shown());
        let number = known.unwrap_or_else(|| {
            nodes.push(address);
            nodes.len() - 1
        });
        u32::try_from(number).unwrap_or(NO_NODE)
    }

    /// Records the node that serves a slot.
    pub(crate) fn set_owner(&self, slot: u16, node: u32) {
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
        Connection::open(address, self.timeouts, &self.name)
    }

    /// Returns whether slots changed owners since the last call, and counts the change.
    fn count_change(&self) -> bool {
        let changed = self.changed.swap(false, Ordering::AcqRel);
        self.generation.fetch_add(changed.into(), Ordering::AcqRel);
        changed
    }

    /// Calls `open` with one node after the other until it succeeds.
    ///
    /// The node that replied last comes first, then nodes that serve slots. Returns the error of
    /// the last node if all fail.
    pub(crate) fn with_any_node<T>(
        &self,
        mut open: impl FnMut(&Address) -> Result<T>,
    ) -> Result<T> {
        let mut last = None;
        for address in self.addresses() {
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

    /// Returns all known nodes. The node that replied last comes first.
    fn addresses(&self) -> Vec<Address> {
        let mut all = self.known();
        let reached = self.last_reached.lock().clone();
        all.sort_by_key(|address| reached.as_ref() != Some(address.shown()));
        all
    }

    /// Returns all known nodes. Nodes that serve slots come first.
    fn known(&self) -> Vec<Address> {
        let (owners, nodes) = (self.owners(), self.nodes.lock());
        let serves = |number: usize| u32::try_from(number).is_ok_and(|node| owners.contains(&node));
        let (first, rest): (Vec<_>, Vec<_>) =
            nodes.iter().enumerate().partition(|(number, _)| serves(*number));
        // A configured node may be known to the cluster by another name, and then comes last.
        first.into_iter().chain(rest).map(|(_, address)| address.clone()).collect()
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

    /// Applies the reply to `CLUSTER SLOTS` of the node at `asked` to the map.
    fn apply(&self, asked: &Address, slots: &Reply) -> Result<()> {
        let Reply::List(ranges) = slots else { return Err(unexpected(slots)) };
        for range in ranges {
            let (slots, address) = read_range(asked, range).ok_or_else(|| unexpected(range))?;
            let node = self.number(address);
            slots.into_iter().for_each(|slot| self.set_owner(slot, node));
        }
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
    conn: Option<(Address, Connection)>,
    /// The index of the node for the next connection, modulo the number of known nodes.
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
        stop.park_until(self.last_read + self.pause());
    }

    /// Returns the pause after the last reading. The pause grows with each futile reading.
    ///
    /// The bound is [`LONGEST_PAUSE`] while nodes can be reached, otherwise [`REFRESH`].
    fn pause(&self) -> Duration {
        let longest = if self.reached { LONGEST_PAUSE } else { REFRESH };
        jittered(doubled(FIRST_PAUSE, self.futile, longest), self.last_read.nanos())
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
        self.conn = Some((address, conn));
        Ok(self.cluster.count_change())
    }

    fn connect(&mut self) -> Result<(Address, Connection)> {
        self.reached = false;
        let known = self.cluster.known();
        let mut last = None;
        for _ in 0..known.len() {
            let address = &known[self.next % known.len()];
            self.next = self.next.wrapping_add(1);
            match self.cluster.open(address) {
                Ok(conn) => {
                    self.reached = true;
                    return Ok((address.clone(), conn));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(no_node))
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
        let node = cluster.node_at(&place, 0).expect("a node");
        cluster.set_owner(5, node);
        assert_eq!((shown(5), node), ("other:7001".to_owned(), 1));
        assert!(cluster.changed.load(Ordering::Acquire));
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
