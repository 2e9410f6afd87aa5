//! The listeners of one client: one, or where messages go to the shards of a cluster, one for
//! each node that serves channels on which somebody waits.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crate::command::call::Call;
use crate::listener::channels::{Channel, ListenerSession, SubscriptionState, Waiters};
use crate::listener::{Listener, ListenerSettings, Shard};
use crate::topology::cluster::Cluster;
use crate::topology::route::Route;
use crate::util::sync::Mutex;

/// The listeners.
#[derive(Debug)]
pub(crate) struct Listeners {
    waiters: Arc<Waiters>,
    /// For all channels.
    one: Arc<Listener>,
    /// One for each node instead, if messages go to shards.
    many: Option<Shards>,
}

/// Those of a cluster.
#[derive(Debug)]
struct Shards {
    cluster: Arc<Cluster>,
    /// Not set before the first contact with the cluster.
    sharded: Arc<OnceLock<bool>>,
    /// Of each, but for its route.
    settings: ListenerSettings,
    waiters: Arc<Waiters>,
    /// By the numbers of their nodes.
    listeners: Mutex<BTreeMap<u32, Arc<Listener>>>,
}

impl Listeners {
    /// Starts no thread. With a cluster there is a listener for each node, if that says that its
    /// messages go to shards; `settings` as for one, but for the route.
    pub(crate) fn new(
        settings: ListenerSettings,
        waiters: Arc<Waiters>,
        cluster: Option<(Arc<Cluster>, Arc<OnceLock<bool>>)>,
    ) -> Listeners {
        let many = cluster.map(|(cluster, sharded)| Shards {
            cluster,
            sharded,
            settings: settings.clone(),
            waiters: Arc::clone(&waiters),
            listeners: Mutex::default(),
        });
        let one = Arc::new(Listener::new(settings, Arc::clone(&waiters)));
        Listeners { waiters, one, many }
    }

    fn shards(&self) -> Option<&Shards> {
        self.many.as_ref().filter(|shards| shards.sharded.get() == Some(&true))
    }

    /// The listener's connection, if the script that refuses a caller can tell it what to
    /// subscribe to: a script reaches channels of its own slot only.
    pub(crate) fn session(&self) -> Option<ListenerSession> {
        match self.shards() {
            None => self.waiters.session(),
            Some(_) => None,
        }
    }

    /// Sees to it that there is a listener that hears that channel. To be called by a waiter
    /// after it has registered there. What is to be sent to tell that listener, if the script
    /// could not.
    pub(crate) fn call(&self, channel: &Channel) -> Option<Call> {
        match self.shards() {
            None => {
                self.one.call();
                None
            }
            Some(shards) => {
                let node = shards.node_of(channel)?;
                let listener = shards.listener(node)?;
                let told = self.message(Some(node), channel);
                listener.call();
                told
            }
        }
    }

    /// What is to be sent to have a channel subscribed to that is not, if the listener can be
    /// told so.
    pub(crate) fn tell(&self, channel: &Channel) -> Option<Call> {
        match self.shards() {
            None => self.message(None, channel),
            Some(shards) => self.message(Some(shards.node_of(channel)?), channel),
        }
    }

    fn message(&self, node: Option<u32>, channel: &Channel) -> Option<Call> {
        let deaf = channel.subscription() == SubscriptionState::Nothing;
        deaf.then(|| self.waiters.message(node, channel.name())).flatten()
    }

    /// Has the threads end, each at the next message on its control channel, or at the end of a
    /// silence.
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        let many = self.many.iter();
        let many = many.flat_map(|shards| std::mem::take(&mut *shards.listeners.lock()));
        let all = many.map(|(_, listener)| listener).chain([Arc::clone(&self.one)]);
        all.filter_map(|listener| listener.stop()).collect()
    }
}

impl Shards {
    fn node_of(&self, channel: &Channel) -> Option<u32> {
        self.cluster.owner_of(channel.name().as_bytes())
    }

    /// That of a node, which is made if there is none.
    fn listener(&self, node: u32) -> Option<Arc<Listener>> {
        let Shards { cluster, settings, .. } = self;
        let mut listeners = self.listeners.lock();
        if let Some(listener) = listeners.get(&node) {
            return Some(Arc::clone(listener));
        }
        let route = Route::To(Arc::new(cluster.address(node)?));
        let shard = Some(Shard { node, cluster: Arc::clone(cluster) });
        let name = format!("{}.{node}", settings.name);
        let settings = ListenerSettings { route, shard, name, ..settings.clone() };
        let listener = Arc::new(Listener::new(settings, Arc::clone(&self.waiters)));
        listeners.insert(node, Arc::clone(&listener));
        // Those of nodes that serve nothing any more.
        let owners = cluster.owners();
        listeners.retain(|node, listener| {
            let stays = owners.contains(node);
            if !stays {
                drop(listener.stop());
            }
            stays
        });
        Some(listener)
    }
}
