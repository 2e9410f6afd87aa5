//! Which node of a Redis Cluster serves which slot.
//!
//! Nodes are known by numbers, given in the order in which they were first heard of. The map is
//! read from a node that says that the cluster is well (`CLUSTER SLOTS`) and corrected by every
//! `MOVED`. It is read again at the latest every [`REFRESH`], and soon after a node could not
//! be reached or has sent a command elsewhere; when slots are found to be served by others
//! than before that is a *move*, as a fail-over is one for Sentinel.
//!
//! A [`ClusterWatch`] reads the map over one connection, which it keeps. After an error it connects to
//! the next node. Readings that find nothing new, and errors, make its pauses grow.

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

/// How old the map becomes.
const REFRESH: Duration = Duration::from_secs(5);

/// The first pause between two readings of the map.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause before the map is read again that a node has cast doubt on.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// No node: a slot that nobody is known to serve.
const NOBODY: u32 = u32::MAX;

/// How many names are tried for a channel that is to lie on a certain node.
const TRIALS: u32 = 1 << 20;

/// The nodes of a cluster.
pub(crate) struct Cluster {
    /// By their numbers; the first are those that were given.
    nodes: Mutex<Vec<Address>>,
    /// By slot, the number of the node that serves it.
    owners: Box<[AtomicU32]>,
    /// The name of the connections over which the map is read.
    name: String,
    timeouts: Timeouts,
    /// A slot has another owner since the map was last read.
    changed: AtomicBool,
    generation: AtomicU64,
    parker: Parker,
    /// The node that answered last, and is asked first.
    answered: Mutex<Option<Arc<str>>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &*self.nodes.lock()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster to which these nodes belong.
    pub(crate) fn new(seeds: Vec<Address>, name: String, timeouts: Timeouts) -> Cluster {
        Cluster {
            nodes: Mutex::new(seeds),
            owners: (0..SLOTS).map(|_| AtomicU32::new(NOBODY)).collect(),
            name,
            timeouts,
            changed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            parker: Parker::default(),
            answered: Mutex::default(),
        }
    }

    /// The number of the node that serves a slot, as far as is known.
    fn owner(&self, slot: u16) -> Option<u32> {
        let owner = self.owners.get(usize::from(slot))?.load(Ordering::Relaxed);
        (owner != NOBODY).then_some(owner)
    }

    /// The number of the node that serves a key, or the channel of a shard.
    pub(crate) fn owner_of(&self, key: &[u8]) -> Option<u32> {
        self.owner(slot(key))
    }

    /// Where the node of that number is.
    pub(crate) fn address(&self, node: u32) -> Option<Address> {
        self.nodes.lock().get(usize::try_from(node).ok()?).cloned()
    }

    /// The numbers of all nodes that serve slots.
    pub(crate) fn owners(&self) -> BTreeSet<u32> {
        let owners = self.owners.iter().map(|owner| owner.load(Ordering::Relaxed));
        owners.filter(|owner| *owner != NOBODY).collect()
    }

    /// How often slots were found to be served by others than before.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The number of the node at a place that another has named.
    pub(crate) fn node_at(&self, place: &NodeAddress, named_by: u32) -> Option<u32> {
        let named_by = self.address(named_by)?;
        Some(self.number(named_by.beside(place.host.as_deref(), place.port)))
    }

    fn number(&self, address: Address) -> u32 {
        let mut nodes = self.nodes.lock();
        let known = nodes.iter().position(|node| node.shown() == address.shown());
        let number = known.unwrap_or_else(|| {
            nodes.push(address);
            nodes.len() - 1
        });
        u32::try_from(number).unwrap_or(NOBODY)
    }

    /// A node has said that a slot is served by that one.
    pub(crate) fn set_owner(&self, slot: u16, node: u32) {
        if let Some(owner) = self.owners.get(usize::from(slot))
            && owner.swap(node, Ordering::Relaxed) != node
        {
            self.changed.store(true, Ordering::Release);
        }
    }

    /// Has the map read again soon.
    pub(crate) fn request_refresh(&self) {
        self.parker.unpark();
    }

    /// Reads the map from any node, over a connection of its own.
    pub(crate) fn refresh(&self) -> Result<bool> {
        self.with_any_node(|address| self.read_over(address, &mut self.open(address)?))?;
        Ok(self.count_move())
    }

    fn open(&self, address: &Address) -> Result<Connection> {
        Ok(Connection::open(address, self.timeouts, self.name.clone(), &[])?.conn)
    }

    /// Returns whether a slot has another owner since the last call.
    fn count_move(&self) -> bool {
        let changed = self.changed.swap(false, Ordering::AcqRel);
        self.generation.fetch_add(changed.into(), Ordering::AcqRel);
        changed
    }

    /// Has `open` tried with one node after the other: the one that answered last, then those that
    /// serve slots.
    pub(crate) fn with_any_node<T>(
        &self,
        mut open: impl FnMut(&Address) -> Result<T>,
    ) -> Result<T> {
        let mut last = None;
        for address in self.addresses() {
            match open(&address) {
                Ok(opened) => {
                    *self.answered.lock() = Some(Arc::clone(address.shown()));
                    return Ok(opened);
                }
                Err(error) => last = Some(error.with_server(Arc::clone(address.shown()))),
            }
        }
        Err(last.unwrap_or_else(no_node))
    }

    /// The node that answered last comes first.
    fn addresses(&self) -> Vec<Address> {
        let mut all = self.known();
        let answered = self.answered.lock().clone();
        all.sort_by_key(|address| answered.as_ref() != Some(address.shown()));
        all
    }

    /// Nodes that serve slots come first.
    fn known(&self) -> Vec<Address> {
        let (owners, nodes) = (self.owners(), self.nodes.lock());
        let serves = |number: usize| u32::try_from(number).is_ok_and(|it| owners.contains(&it));
        let (first, rest): (Vec<_>, Vec<_>) =
            nodes.iter().enumerate().partition(|(number, _)| serves(*number));
        // A node that was given may be called otherwise by the others, and comes last.
        first.into_iter().chain(rest).map(|(_, address)| address.clone()).collect()
    }

    fn read_over(&self, address: &Address, conn: &mut Connection) -> Result<()> {
        let slots = conn.ask(&Call::command(&[b"CLUSTER", b"SLOTS"]))?;
        // One that was cut off from the others goes on saying what it knew.
        let info = conn.ask(&Call::command(&[b"CLUSTER", b"INFO"]));
        let is_well = |text: &[u8]| text.windows(16).any(|part| part == b"cluster_state:ok");
        match info {
            Ok(info) if self.has_map() && !info.text().is_some_and(is_well) => {
                Err(Error::new(ErrorKind::Connection, "the cluster is not well"))
            }
            // The connection, not the right to ask.
            Err(error) if error.is_unanswered() => Err(error),
            _ => self.take_in(address, &slots),
        }
    }

    fn has_map(&self) -> bool {
        self.owners.iter().any(|owner| owner.load(Ordering::Relaxed) != NOBODY)
    }

    fn take_in(&self, asked: &Address, slots: &Reply) -> Result<()> {
        let Reply::List(ranges) = slots else { return Err(unexpected(slots)) };
        for range in ranges {
            let (slots, address) = read_range(asked, range).ok_or_else(|| unexpected(range))?;
            let node = self.number(address);
            slots.into_iter().for_each(|slot| self.set_owner(slot, node));
        }
        Ok(())
    }

    /// A channel of the node of that number, if it serves anything, whose name begins with
    /// `prefix`, in which there are no braces.
    pub(crate) fn channel_on(&self, node: u32, prefix: &str) -> Option<String> {
        if !self.owners().contains(&node) {
            return None;
        }
        let mut names = (0..TRIALS).map(|trial| format!("{prefix}:{{{trial}}}"));
        names.find(|name| self.owner_of(name.as_bytes()) == Some(node))
    }
}

/// Reads the map again and again, for one thread.
pub(crate) struct ClusterWatch {
    cluster: Arc<Cluster>,
    conn: Option<(Address, Connection)>,
    /// Which of the known nodes is connected to next, counted round.
    next: usize,
    last_read: Moment,
    /// Consecutive readings that failed, or found nothing new although a node had cast doubt.
    futile: u32,
    failed: bool,
    /// A node could be connected to when the map was last read.
    reached: bool,
}

impl ClusterWatch {
    pub(crate) fn new(cluster: Arc<Cluster>) -> ClusterWatch {
        let last_read = clock::now();
        // Processes begin with different nodes.
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

    /// Blocks until the map is to be read again. `stop` ends the pause, [`Cluster::request_refresh`] the
    /// wait after a good reading.
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

    /// Grows to a second while nodes answer, and to [`REFRESH`] while none can be connected to.
    fn pause(&self) -> Duration {
        let longest = if self.reached { LONGEST_PAUSE } else { REFRESH };
        jittered(doubled(FIRST_PAUSE, self.futile, longest), self.last_read.nanos())
    }

    /// Reads the map. Returns whether slots are served by other nodes than before.
    pub(crate) fn look(&mut self) -> Result<bool> {
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
        Ok(self.cluster.count_move())
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

/// `[first, last, [host, port, ...], replicas ...]`.
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
    fn the_map_is_read_and_corrected() {
        let cluster = cluster();
        let ranges = [
            range(0, 100, text(""), 7000),
            range(101, 200, text("other"), 7001),
            range(201, 16_383, Reply::Nil, 7002),
        ];
        cluster.take_in(&address(7000), &Reply::List(ranges.to_vec())).expect("a good map");
        let shown = |slot| {
            let owner = cluster.owner(slot).and_then(|node| cluster.address(node));
            owner.expect("it is served").shown().to_string()
        };
        assert_eq!([shown(0), shown(101), shown(16_383)], ["seed:7000", "other:7001", "seed:7002"]);
        assert_eq!(cluster.owners().into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(cluster.changed.swap(false, Ordering::AcqRel));
        cluster.set_owner(5, 0);
        assert!(!cluster.changed.load(Ordering::Acquire), "it was known");
        let place = NodeAddress { host: Some("other".to_owned()), port: 7001 };
        let node = cluster.node_at(&place, 0).expect("a node");
        cluster.set_owner(5, node);
        assert_eq!((shown(5), node), ("other:7001".to_owned(), 1));
        assert!(cluster.changed.load(Ordering::Acquire));
    }

    #[test]
    fn a_map_of_a_wrong_shape_is_an_error() {
        for wrong in [
            Reply::Nil,
            Reply::List(vec![Reply::Int(1)]),
            Reply::List(vec![range(0, 16_384, text("h"), 1)]),
            Reply::List(vec![range(-1, 5, text("h"), 1)]),
            Reply::List(vec![range(0, 5, text("h"), 70_000)]),
        ] {
            assert!(cluster().take_in(&address(1), &wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_node_has_a_channel_of_its_own() {
        let cluster = cluster();
        cluster.set_owner(7, 1);
        (8..SLOTS).for_each(|slot| cluster.set_owner(slot, 0));
        for node in [0, 1] {
            let channel = cluster.channel_on(node, "leasehold:wake:x").expect("it serves slots");
            assert_eq!(cluster.owner_of(channel.as_bytes()), Some(node), "{channel}");
        }
        assert_eq!(cluster.channel_on(2, "x"), None);
    }
}
