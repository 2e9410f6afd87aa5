//! What a client stands on: where its servers are, and what they can do.

use std::sync::{Arc, OnceLock};

use crate::cancel::Limit;
use crate::command::call::Call;
use crate::config::{Servers, Sharding};
use crate::connection::{Connection, Timeouts};
use crate::error::{Error, Result};
use crate::listener::ListenerSettings;
use crate::listener::channels::Waiters;
use crate::listener::shards::Listeners;
use crate::pool::PoolSettings;
use crate::pool::request::panicked;
use crate::pool::router::Router;
use crate::topology::cluster::Cluster;
use crate::topology::route::Route;
use crate::topology::sentinel::Sentinels;
use crate::util::clock;
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;

/// Where the servers are.
#[derive(Debug)]
pub(crate) struct Deployment {
    /// Where a connection leads for which one server is as good as another.
    pub(crate) route: Route,
    cluster: Option<Arc<Cluster>>,
    sharding: Sharding,
    sharded: Sharded,
    /// The name of the connections that ask the cluster.
    name: String,
    timeouts: Timeouts,
    meeting: Mutex<FirstContact>,
}

/// Whether messages go to the shards of a cluster; not set before the first contact with it.
pub(crate) type Sharded = Arc<OnceLock<bool>>;

/// The first contact with the cluster of a client that was built without one.
#[derive(Debug, Default)]
struct FirstContact {
    under_way: bool,
    /// Consecutive number of the attempts, and why the last one failed.
    failed: u64,
    error: Option<Error>,
    waiting: Vec<Arc<Parker>>,
}

impl Deployment {
    /// Speaks with no server.
    pub(crate) fn new(
        servers: Servers,
        name: &str,
        timeouts: Timeouts,
        sharding: Sharding,
    ) -> Deployment {
        let name = format!("{name}:scout");
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
        let (sharded, meeting) = (Sharded::default(), Mutex::default());
        Deployment { route, cluster, sharding, sharded, name, timeouts, meeting }
    }

    /// Learns of the nodes of a cluster, and whether they have shards. Speaks with no other
    /// servers. Blocks for a few connect and response time-outs for each node.
    pub(crate) fn meet(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster.refresh()?;
        let sharded = match self.sharding {
            Sharding::Auto => shards(cluster, &self.name, self.timeouts)?,
            Sharding::On => true,
            Sharding::Off => false,
        };
        self.sharded.get_or_init(|| sharded);
        Ok(())
    }

    /// Whether commands can be sent: the nodes of a cluster are known.
    pub(crate) fn is_met(&self) -> bool {
        self.cluster.is_none() || self.sharded.get().is_some()
    }

    /// Blocks until [`meet`](Ground::meet) has been done, by a thread of its own, or until the
    /// limit.
    pub(crate) fn ready(self: &Arc<Deployment>, limit: &Limit<'_>) -> Result<()> {
        if self.is_met() {
            return Ok(());
        }
        let parker = Parker::mine();
        let failed = self.begin_meeting(&parker);
        while !self.is_met() {
            let now = clock::now();
            let over = || limit.is_over(now).then(|| limit.error(Error::silent()));
            if let Some(error) = self.failure_after(failed).or_else(over) {
                return Err(error);
            }
            parker.park_until(limit.next_look(now));
        }
        Ok(())
    }

    /// Starts an attempt, unless there is one, and has the mailbox rung at its end. How many
    /// had failed before.
    fn begin_meeting(self: &Arc<Deployment>, parker: &Arc<Parker>) -> u64 {
        let mut meeting = self.meeting.lock();
        meeting.waiting.push(Arc::clone(parker));
        let (failed, starts) = (meeting.failed, !std::mem::replace(&mut meeting.under_way, true));
        drop(meeting);
        if starts {
            let deployment = Arc::clone(self);
            let meet = move || {
                let met = threads::survive("connecting", || deployment.meet());
                deployment.end_meeting(met.unwrap_or_else(|| Err(panicked())));
            };
            if let Err(error) = threads::start("leasehold-connect", meet) {
                let message = format!("the thread that connects cannot be started: {error}");
                self.end_meeting(Err(Error::configuration(message)));
            }
        }
        failed
    }

    fn end_meeting(&self, met: Result<()>) {
        let mut meeting = self.meeting.lock();
        meeting.under_way = false;
        meeting.failed += u64::from(met.is_err());
        meeting.error = met.err();
        let waiting = std::mem::take(&mut meeting.waiting);
        drop(meeting);
        waiting.iter().for_each(|parker| parker.unpark());
    }

    /// Why an attempt has failed since so many had.
    fn failure_after(&self, failed: u64) -> Option<Error> {
        let meeting = self.meeting.lock();
        meeting.error.clone().filter(|_| failed < meeting.failed)
    }

    /// The pools of the servers; makes the first connection to a single one, unless `lazily`.
    pub(crate) fn router(&self, settings: PoolSettings, lazily: bool) -> Result<Router> {
        match &self.cluster {
            Some(cluster) => {
                Ok(Router::nodes(Arc::clone(cluster), settings, Arc::clone(&self.sharded)))
            }
            None => Router::one(settings, lazily),
        }
    }

    pub(crate) fn listeners(&self, settings: ListenerSettings, waiters: Arc<Waiters>) -> Listeners {
        let cluster = self.cluster.as_ref().map(Arc::clone);
        let cluster = cluster.map(|cluster| (cluster, Arc::clone(&self.sharded)));
        Listeners::new(settings, waiters, cluster)
    }
}

/// Whether the nodes have messages that go to shards. Redisson asks the same question, so that
/// both come to the same answer. A node that cannot say is no answer: the next one is asked.
fn shards(cluster: &Cluster, name: &str, timeouts: Timeouts) -> Result<bool> {
    cluster.with_any_node(|address| {
        let mut conn = Connection::open(address, timeouts, name.to_owned(), &[])?.conn;
        match conn.ask(&Call::command(&[b"PUBSUB", b"SHARDNUMSUB"])) {
            Ok(_) => Ok(true),
            Err(error) if !error.is_final() => Err(error),
            Err(error) => {
                threads::say(|| {
                    log::info!("releases are told to all nodes of the cluster: {error}")
                });
                Ok(false)
            }
        }
    })
}
