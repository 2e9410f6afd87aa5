//! What a client stands on: where its servers are, and what they can do.

use std::sync::Arc;

use crate::config::{Servers, Sharding};
use crate::conn::{Conn, Timeouts};
use crate::ears::Ears;
use crate::error::Result;
use crate::fleet::Fleet;
use crate::listener::ListenerSettings;
use crate::pool::PoolSettings;
use crate::script::Call;
use crate::topology::Route;
use crate::topology::cluster::Cluster;
use crate::topology::sentinel::Sentinels;
use crate::waiters::Waiters;

/// Where the servers are.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Where a connection leads for which one server is as good as another.
    pub(crate) route: Route,
    cluster: Option<Arc<Cluster>>,
    /// Messages go to the shards of the cluster.
    sharded: bool,
}

impl Ground {
    /// Speaks with a cluster, to learn of its nodes, and with no other servers.
    pub(crate) fn find(
        servers: Servers,
        name: &str,
        timeouts: Timeouts,
        sharding: Sharding,
    ) -> Result<Ground> {
        let name = format!("{name}:scout");
        let route = match servers {
            Servers::One(address) => Route::To(Arc::new(address)),
            Servers::Named { master, sentinels, like } => {
                Route::Master(Arc::new(Sentinels::new(master, sentinels, like, name, timeouts)))
            }
            Servers::Nodes(seeds) => {
                let cluster = Arc::new(Cluster::new(seeds, name.clone(), timeouts));
                cluster.refresh()?;
                let sharded = match sharding {
                    Sharding::Auto => shards(&cluster, &name, timeouts),
                    Sharding::On => true,
                    Sharding::Off => false,
                };
                let route = Route::Node(Arc::clone(&cluster));
                return Ok(Ground { route, cluster: Some(cluster), sharded });
            }
        };
        Ok(Ground { route, cluster: None, sharded: false })
    }

    pub(crate) fn fleet(&self, settings: PoolSettings) -> Result<Fleet> {
        match &self.cluster {
            Some(cluster) => Ok(Fleet::nodes(Arc::clone(cluster), settings, self.sharded)),
            None => Fleet::one(settings),
        }
    }

    pub(crate) fn ears(&self, settings: ListenerSettings, waiters: Arc<Waiters>) -> Ears {
        match &self.cluster {
            Some(cluster) if self.sharded => {
                Ears::of_shards(Arc::clone(cluster), settings, waiters)
            }
            _ => Ears::one(settings, waiters),
        }
    }
}

/// Whether the nodes have messages that go to shards: asked as Redisson asks, so that both
/// come to the same answer.
fn shards(cluster: &Cluster, name: &str, timeouts: Timeouts) -> bool {
    let ask = |address: &_| {
        let mut conn = Conn::open(address, timeouts, name.to_owned(), &[])?.conn;
        match conn.ask(&Call::command(&[b"PUBSUB", b"SHARDNUMSUB"])) {
            Err(error) if error.is_connection() => Err(error),
            answer => Ok(answer.is_ok()),
        }
    };
    cluster.reach(ask).unwrap_or(false)
}
