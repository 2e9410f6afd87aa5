//! The servers of a client, and the discovery of a cluster.
//!
//! A cluster has to be discovered before commands can be sent: its nodes, and whether they have
//! sharded pub/sub. A client that connects at its start discovers the cluster then. For a client
//! that is built lazily, the first call starts a thread for the discovery
//! ([`Deployment::wait_until_ready`]). A failed discovery fails the calls that wait for it, and the
//! next call starts another one.

use std::sync::Arc;

use crate::cancel::Limit;
use crate::config::{Servers, Sharding};
use crate::error::{Error, Result};
use crate::transport::call::Call;
use crate::transport::connection::{Connection, Timeouts};
use crate::transport::listener::ListenerSettings;
use crate::transport::listener::channels::Channels;
use crate::transport::listener::listeners::Listeners;
use crate::transport::pool::PoolSettings;
use crate::transport::pool::request::panicked;
use crate::transport::pool::router::Router;
use crate::transport::topology::cluster::Cluster;
use crate::transport::topology::route::Route;
use crate::transport::topology::sentinel::Sentinels;
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::{Mutex, Parker};
use crate::util::system::OnceLock;
use crate::util::threads;

/// The servers of one client.
#[derive(Debug)]
pub(crate) struct Deployment {
    /// The route of connections that may lead to any server of the deployment.
    pub(crate) route: Route,
    cluster: Option<Arc<Cluster>>,
    sharding: Sharding,
    sharded: Sharded,
    /// The name of the connections that query the cluster.
    name: String,
    timeouts: Timeouts,
    discovery: Mutex<Discovery>,
}

/// Whether a cluster uses sharded pub/sub; not set before its discovery.
pub(crate) type Sharded = Arc<OnceLock<bool>>;

/// The discovery of a cluster for a client that was built lazily.
#[derive(Debug, Default)]
struct Discovery {
    is_running: bool,
    /// The number of failed attempts, and the error of the last one.
    failures: u64,
    error: Option<Error>,
    waiting: Vec<Arc<Parker>>,
}

impl Deployment {
    /// Opens no connection.
    pub(crate) fn new(
        servers: Servers,
        name: &str,
        timeouts: Timeouts,
        sharding: Sharding,
    ) -> Deployment {
        let name = format!("{name}:failover");
        let (route, cluster) = match servers {
            Servers::Single(address) => (Route::To(Arc::new(address)), None),
            Servers::Sentinel { master, sentinels, template } => {
                let name = name.clone();
                let sentinels = Sentinels::new(master, sentinels, template, name, timeouts);
                (Route::Master(Arc::new(sentinels)), None)
            }
            Servers::Cluster(seeds) => {
                let cluster = Arc::new(Cluster::new(seeds, name.clone(), timeouts));
                (Route::Node(Arc::clone(&cluster)), Some(cluster))
            }
        };
        let (sharded, discovery) = (Sharded::default(), Mutex::default());
        Deployment { route, cluster, sharding, sharded, name, timeouts, discovery }
    }

    /// Reads the nodes of a cluster, and whether they have sharded pub/sub.
    ///
    /// Contacts no other servers. Blocks for a few connect and response time-outs per node.
    pub(crate) fn discover(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster.refresh()?;
        let sharded = match self.sharding {
            Sharding::Auto => supports_sharding(cluster, &self.name, self.timeouts)?,
            Sharding::On => true,
            Sharding::Off => false,
        };
        self.sharded.get_or_init(|| sharded);
        Ok(())
    }

    /// Returns whether commands can be sent: the nodes of a cluster are known.
    pub(crate) fn is_discovered(&self) -> bool {
        self.cluster.is_none() || self.sharded.get().is_some()
    }

    /// Returns whether the nodes have sharded pub/sub, as far as they have been discovered.
    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded.get() == Some(&true)
    }

    /// Blocks until a separate thread has discovered the cluster, or until the limit.
    ///
    /// Returns the error of the first attempt that fails while the caller waits.
    pub(crate) fn wait_until_ready(self: &Arc<Deployment>, limit: &Limit<'_>) -> Result<()> {
        if self.is_discovered() {
            return Ok(());
        }
        let parker = Parker::mine();
        let failures = self.begin_discovery(&parker);
        while !self.is_discovered() {
            let now = clock::now();
            let over = || limit.is_over(now).then(|| limit.error(Error::timeout()));
            if let Some(error) = self.failure_since(failures).or_else(over) {
                return Err(error);
            }
            parker.park_until(limit.next_check(now));
        }
        Ok(())
    }

    /// Starts an attempt unless one is running, and registers the parker for its end.
    ///
    /// Returns the number of attempts that have failed so far.
    fn begin_discovery(self: &Arc<Deployment>, parker: &Arc<Parker>) -> u64 {
        let mut discovery = self.discovery.lock();
        discovery.waiting.push(Arc::clone(parker));
        let failures = discovery.failures;
        let starts = !std::mem::replace(&mut discovery.is_running, true);
        drop(discovery);
        if starts {
            self.start_discovery();
        }
        failures
    }

    fn start_discovery(self: &Arc<Deployment>) {
        let deployment = Arc::clone(self);
        let discover = move || {
            let outcome = threads::catch_panic("discovering the cluster", || deployment.discover());
            deployment.end_discovery(outcome.unwrap_or_else(|| Err(panicked())));
        };
        if let Err(error) = threads::start("leasehold-connect", discover) {
            let message = "the thread that discovers the cluster cannot be started";
            self.end_discovery(Err(Error::configuration(message).with_source(error)));
        }
    }

    fn end_discovery(&self, outcome: Result<()>) {
        let mut discovery = self.discovery.lock();
        discovery.is_running = false;
        discovery.failures += u64::from(outcome.is_err());
        discovery.error = outcome.err();
        let waiting = std::mem::take(&mut discovery.waiting);
        drop(discovery);
        waiting.iter().for_each(|parker| parker.unpark());
    }

    /// Returns the last error, if more than `failures` attempts have failed.
    fn failure_since(&self, failures: u64) -> Option<Error> {
        let discovery = self.discovery.lock();
        discovery.error.clone().filter(|_| failures < discovery.failures)
    }

    /// Makes the pools of the servers, and unless `lazily` the connection to a single server.
    pub(crate) fn router(&self, settings: PoolSettings, lazily: bool) -> Result<Router> {
        match &self.cluster {
            Some(cluster) => {
                Ok(Router::cluster(Arc::clone(cluster), settings, Arc::clone(&self.sharded)))
            }
            None => Router::single(settings, lazily),
        }
    }

    pub(crate) fn listeners(
        &self,
        settings: ListenerSettings,
        channels: Arc<Channels>,
    ) -> Listeners {
        let cluster = self.cluster.clone().map(|cluster| (cluster, Arc::clone(&self.sharded)));
        Listeners::new(settings, channels, cluster)
    }
}

/// Returns whether the nodes have sharded pub/sub.
///
/// Sends the same command as Redisson, so that both decide alike. If a node does not reply, the
/// next node is asked.
fn supports_sharding(cluster: &Cluster, name: &str, timeouts: Timeouts) -> Result<bool> {
    cluster.with_any_node(|address| {
        let mut conn = Connection::open_server(address, timeouts, name)?;
        match conn.ask(&Call::command(&[b"PUBSUB", b"SHARDNUMSUB"])) {
            Ok(_) => Ok(true),
            Err(error) if !error.is_final() => Err(error),
            Err(error) => {
                log::info!(
                    logger: LINES, target: log_target::TOPOLOGY,
                    error:% = error.with_causes(), server = &**address.shown();
                    "no sharded pub/sub, so all nodes get each message: {}", error.with_causes()
                );
                Ok(false)
            }
        }
    })
}
