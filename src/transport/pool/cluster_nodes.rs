//! The pools of the nodes of a cluster.
//!
//! A pool is made at the first use of its node. The pool is dropped when the node serves no slot
//! since a topology change, no thread uses the pool, and all its background requests have an
//! outcome. Then the [`Cluster`] forgets the node. A connection id that outlives its node stands
//! for the connection with the same number at any node: the owner of a key is never forgotten, and
//! a command without a key may go anywhere.
//!
//! A redirected command takes the connection with the same number at the other node. So commands
//! that were in order at one node stay in order at the other. A caller resends its own command
//! ([`Resend`](super::resend::Resend)). The thread that reads the redirection of a background
//! request moves it, or the reaper does when the request is due again ([`Rerouter`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::Redirect;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::background::Rerouter;
use crate::transport::pool::nodes::{Nodes, PoolRef};
use crate::transport::pool::request::Request;
use crate::transport::pool::{Pool, PoolServer, PoolSettings, Target};
use crate::transport::topology::cluster::Cluster;
use crate::transport::topology::failover::ServerObserver;
use crate::transport::topology::route::{Generation, Route};
use crate::util::sync::Mutex;
use crate::util::system::OnceLock;

/// The nodes of a cluster and their pools.
pub(super) struct ClusterNodes {
    cluster: Arc<Cluster>,
    /// The settings of each pool, except for its server.
    settings: PoolSettings,
    /// Whether messages are published to shards; not set before the discovery of the cluster.
    sharded: Arc<OnceLock<bool>>,
    pools: Mutex<BTreeMap<u32, Arc<Pool>>>,
    /// The nodes whose pools are to be dropped as soon as nothing needs them.
    former: Mutex<BTreeSet<u32>>,
    server_observer: OnceLock<Weak<dyn ServerObserver>>,
    this: Weak<ClusterNodes>,
}

impl fmt::Debug for ClusterNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.fmt(f)
    }
}

impl ClusterNodes {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        settings: PoolSettings,
        sharded: Arc<OnceLock<bool>>,
    ) -> Arc<ClusterNodes> {
        Arc::new_cyclic(|this| ClusterNodes {
            cluster,
            settings,
            sharded,
            pools: Mutex::default(),
            former: Mutex::default(),
            server_observer: OnceLock::new(),
            this: Weak::clone(this),
        })
    }

    /// Returns the pool of a node and makes it if it does not exist.
    ///
    /// For a node that the cluster has forgotten: the pool of any other node.
    pub(super) fn pool_of(&self, node: u32) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(&node) {
            return Arc::clone(pool);
        }
        // Configured nodes are never forgotten, so the fallback is never used.
        let fallback = || (node, self.settings.server.route.clone());
        let known = self.cluster.node_or_any(node);
        let (node, route) = known.map_or_else(fallback, |(node, at)| (node, Route::To(at)));
        let pool = pools.entry(node).or_insert_with(|| self.make_pool(node, route));
        Arc::clone(pool)
    }

    fn make_pool(&self, node: u32, route: Route) -> Arc<Pool> {
        let server = PoolServer { node, is_cluster_node: true, route };
        let pool = Arc::new(Pool::new(PoolSettings { server, ..self.settings.clone() }));
        if let Some(receiver) = self.server_observer.get() {
            pool.set_server_observer(Weak::clone(receiver));
        }
        pool.set_rerouter(Weak::clone(&self.this) as Weak<dyn Rerouter>);
        pool
    }

    /// Returns a node for a command without a key: one that can be reached, if any is known.
    fn any_node(&self) -> Option<u32> {
        let owners = self.cluster.owners();
        let pools = self.pools.lock();
        let connected =
            |node: &&u32| pools.get(*node).is_some_and(|pool| pool.is_private_connected());
        owners.iter().find(connected).or(owners.first()).copied()
    }

    /// Returns whether another node than that of the connection serves the call's key.
    pub(super) fn is_elsewhere(&self, call: &Call, connection: ConnectionId) -> bool {
        let owner = call.key().and_then(|key| self.cluster.owner_of(key));
        owner.is_some_and(|owner| owner != connection.node)
    }

    /// Returns the node to which `from` redirected a command, and records a moved slot.
    pub(super) fn follow(&self, redirect: &Redirect, from: u32) -> Option<u32> {
        match redirect {
            Redirect::Moved(slot, address) => {
                let node = self.cluster.slot_moved(*slot, address, from)?;
                self.cluster.request_refresh();
                Some(node)
            }
            Redirect::Ask(address) => self.cluster.node_at(address, from),
            Redirect::RetryLater => {
                self.cluster.request_refresh();
                None
            }
        }
    }
}

impl Nodes for ClusterNodes {
    fn pool(&self, node: u32) -> PoolRef<'_> {
        PoolRef::Owned(self.pool_of(node))
    }

    fn place(&self, key: Option<&[u8]>, target: Target) -> (PoolRef<'_>, Target) {
        let owner = key.and_then(|key| self.cluster.owner_of(key));
        let node = owner.or(target.connection().map(|connection| connection.node));
        let node = node.or_else(|| self.any_node()).unwrap_or_default();
        let pool = self.pool_of(node);
        let target = target.on(pool.first_connection().node);
        (PoolRef::Owned(pool), target)
    }

    fn pools(&self) -> Vec<Arc<Pool>> {
        self.pools.lock().values().cloned().collect()
    }

    fn serving(&self) -> Vec<Arc<Pool>> {
        self.cluster.owners().into_iter().map(|node| self.pool_of(node)).collect()
    }

    fn owner_of(&self, key: &[u8]) -> Option<u32> {
        self.cluster.owner_of(key)
    }

    fn generation(&self) -> Generation {
        Generation::of(self.cluster.generation())
    }

    fn leave_old_servers(&self) {
        let all = self.pools.lock().keys().copied().collect();
        *self.former.lock() = all;
        self.drop_former_pools();
    }

    fn drop_former_pools(&self) {
        let mut former = self.former.lock();
        if former.is_empty() {
            return;
        }
        let owners = self.cluster.owners();
        former.retain(|node| !owners.contains(node));
        let mut dropped = Vec::new();
        self.pools.lock().retain(|node, pool| {
            // A thread that has a reference may be about to submit a background request.
            let is_used = || Arc::strong_count(pool) > 1 || !pool.is_settled();
            let stays = !former.contains(node) || is_used();
            if !stays {
                former.remove(node);
                dropped.push(Arc::clone(pool));
            }
            stays
        });
        // The pools are dropped at the end, without the mutexes.
        drop(former);
        drop(dropped);
    }

    fn set_server_observer(&self, receiver: Weak<dyn ServerObserver>) {
        // Set once, at the start of the client.
        let receiver = self.server_observer.get_or_init(|| receiver);
        // The audit at the start may have made pools before.
        for pool in self.pools.lock().values() {
            pool.set_server_observer(Weak::clone(receiver));
        }
    }

    fn adapt(&self, call: Call) -> Call {
        match self.sharded.get() {
            Some(true) => call.for_shards(),
            Some(false) | None => call,
        }
    }
}

impl Rerouter for ClusterNodes {
    fn reroute(
        &self,
        connection: ConnectionId,
        request: Request,
        redirect: Option<&Redirect>,
    ) -> Option<Request> {
        let owner = request.call.key().and_then(|key| self.cluster.owner_of(key));
        let node = redirect.map_or(owner, |redirect| self.follow(redirect, connection.node));
        let asking = matches!(redirect, Some(Redirect::Ask(_)));
        match node {
            Some(node) if node != connection.node || redirect.is_some() => {
                let request = request.with_asking(asking);
                self.pool_of(node).take_over(request, connection.connection);
                None
            }
            _ => Some(request),
        }
    }

    fn request_refresh(&self) {
        self.cluster.request_refresh();
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::error::NodeAddress;
    use crate::transport::connection::{Address, Timeouts};
    use crate::transport::pool::context::ConnectionObserver;
    use crate::transport::pool::{LongestWait, PoolTimeouts};
    use crate::transport::slots::SLOTS;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[derive(Default)]
    struct Reconnections(AtomicUsize);

    impl ServerObserver for Reconnections {
        fn reconnected(&self, _address: &Arc<str>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn server_may_have_changed(&self) {}
    }

    fn nodes() -> Arc<ClusterNodes> {
        let none = Duration::ZERO;
        let timeouts = Timeouts { connect: none, response: none, replicas: none };
        let seed = Address::parse("redis://127.0.0.1:1/").expect("a good URL");
        let cluster = Arc::new(Cluster::new(vec![seed], String::new(), timeouts));
        let route = Route::Node(Arc::clone(&cluster));
        let settings = PoolSettings {
            server: PoolServer { node: 0, is_cluster_node: true, route },
            process: std::process::id(),
            name: String::new(),
            size: 1,
            timeouts: PoolTimeouts {
                shared: timeouts,
                longest_private: Arc::new(LongestWait::new(none)),
                queue: none,
            },
            replicas: 0,
            refuses_replica: false,
            longest_repeat: none,
            healths: Arc::default(),
        };
        ClusterNodes::new(cluster, settings, Arc::default())
    }

    /// Has the node at this port serve every key.
    fn move_all(nodes: &ClusterNodes, port: u16) -> u32 {
        let place = NodeAddress { host: None, port };
        let moved = |slot| nodes.cluster.slot_moved(slot, &place, 0);
        (0..SLOTS).filter_map(moved).next_back().expect("the first node is known")
    }

    #[test]
    fn the_pool_of_a_former_node_is_dropped_when_nothing_uses_it() {
        let nodes = nodes();
        let first = move_all(&nodes, 2);
        let (unused, used) = (nodes.pool_of(0), nodes.pool_of(first));
        drop(unused);
        let second = move_all(&nodes, 3);
        nodes.leave_old_servers();
        assert_eq!(nodes.pools.lock().keys().copied().collect::<Vec<_>>(), [first]);
        nodes.drop_former_pools();
        assert_eq!(nodes.pools.lock().len(), 1, "it is in use");
        drop(used);
        nodes.drop_former_pools();
        assert_eq!(nodes.pools.lock().len(), 0);
        assert!(nodes.former.lock().is_empty());
        assert_eq!(nodes.pool_of(second).first_connection().node, second);
    }

    #[test]
    fn reconnections_are_reported_also_by_pools_that_were_made_before() {
        let (nodes, reconnections) = (nodes(), Arc::<Reconnections>::default());
        let before = nodes.pool_of(0);
        let receiver = Arc::downgrade(&reconnections);
        nodes.set_server_observer(receiver);
        for pool in [before, nodes.pool_of(1)] {
            let background = &pool.connections.background;
            background.reconnected(pool.first_connection(), &"127.0.0.1:1".into());
        }
        assert_eq!(reconnections.0.load(Ordering::Relaxed), 2);
    }
}
