//! The pools of a deployment, one per node.
//!
//! A single server, or the master that Sentinel names, is a deployment of one node: [`SingleNode`].
//! Its pool is known from the start, so finding it locks no mutex and counts no reference. The
//! nodes of a cluster are [`ClusterNodes`](super::cluster_nodes::ClusterNodes).

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::transport::call::Call;
use crate::transport::pool::{Pool, Target};
use crate::transport::topology::failover::ServerObserver;
use crate::transport::topology::route::Generation;

/// Finds the pool for a command.
pub(super) trait Nodes: fmt::Debug + Send + Sync {
    /// Returns the pool of the node with that number.
    fn pool(&self, node: u32) -> PoolRef<'_>;

    /// Returns the pool that serves a key, and the target of the command there.
    ///
    /// Without a key, or if the owner of its slot is unknown: the pool of the target.
    fn place(&self, key: Option<&[u8]>, target: Target) -> (PoolRef<'_>, Target);

    /// Returns the pools that exist.
    fn pools(&self) -> Vec<Arc<Pool>>;

    /// Returns the pools of all nodes that serve slots; makes those that do not exist.
    fn serving(&self) -> Vec<Arc<Pool>>;

    /// Returns the number of the node that serves a key, if it is known.
    fn owner_of(&self, key: &[u8]) -> Option<u32>;

    /// Returns the number of topology changes so far.
    fn generation(&self) -> Generation;

    /// Gives up connections and pools of servers that were replaced.
    fn leave_old_servers(&self);

    /// Drops the pools of servers that were replaced, if they were still in use at that time.
    fn drop_former_pools(&self);

    /// Sets the receiver of reconnections.
    fn set_server_observer(&self, receiver: Weak<dyn ServerObserver>);

    /// Returns the variant of a call whose messages reach the listeners of this deployment.
    fn adapt(&self, call: Call) -> Call;
}

/// A pool in use: borrowed from the deployment, or kept alive by this reference.
pub(super) enum PoolRef<'a> {
    Borrowed(&'a Arc<Pool>),
    Owned(Arc<Pool>),
}

impl PoolRef<'_> {
    /// Returns the pool if it has to be kept alive.
    pub(super) fn into_owned(self) -> Option<Arc<Pool>> {
        match self {
            PoolRef::Borrowed(_) => None,
            PoolRef::Owned(pool) => Some(pool),
        }
    }
}

impl Deref for PoolRef<'_> {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        match self {
            PoolRef::Borrowed(pool) => pool,
            PoolRef::Owned(pool) => pool,
        }
    }
}

/// A deployment whose only node serves every key.
#[derive(Debug)]
pub(super) struct SingleNode(Arc<Pool>);

impl SingleNode {
    pub(super) fn new(pool: Pool) -> SingleNode {
        SingleNode(Arc::new(pool))
    }
}

impl Nodes for SingleNode {
    fn pool(&self, _node: u32) -> PoolRef<'_> {
        PoolRef::Borrowed(&self.0)
    }

    fn place(&self, _key: Option<&[u8]>, target: Target) -> (PoolRef<'_>, Target) {
        (PoolRef::Borrowed(&self.0), target)
    }

    fn pools(&self) -> Vec<Arc<Pool>> {
        vec![Arc::clone(&self.0)]
    }

    fn serving(&self) -> Vec<Arc<Pool>> {
        self.pools()
    }

    fn owner_of(&self, _key: &[u8]) -> Option<u32> {
        Some(self.0.first_connection().node)
    }

    fn generation(&self) -> Generation {
        self.0.generation()
    }

    fn leave_old_servers(&self) {
        self.0.leave_old_servers();
    }

    fn drop_former_pools(&self) {}

    fn set_server_observer(&self, receiver: Weak<dyn ServerObserver>) {
        self.0.set_server_observer(receiver);
    }

    fn adapt(&self, call: Call) -> Call {
        call
    }
}
