//! The listeners of one client: one, or where messages go to the shards of a cluster, one for
//! each node that serves channels on which somebody waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::listener::{Listener, ListenerSettings, Shard};
use crate::script::Call;
use crate::sync::Mutex;
use crate::topology::Route;
use crate::topology::cluster::Cluster;
use crate::waiters::{Channel, Hearing, Session, Waiters};

/// The listeners.
#[derive(Debug)]
pub(crate) struct Ears {
    waiters: Arc<Waiters>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    One(Arc<Listener>),
    Many(Shards),
}

/// Those of a cluster.
#[derive(Debug)]
struct Shards {
    cluster: Arc<Cluster>,
    /// Of each, but for its route.
    settings: ListenerSettings,
    waiters: Arc<Waiters>,
    /// By the numbers of their nodes.
    listeners: Mutex<BTreeMap<u32, Arc<Listener>>>,
}

impl Ears {
    /// One listener for all channels.
    pub(crate) fn one(settings: ListenerSettings, waiters: Arc<Waiters>) -> Ears {
        let kind = Kind::One(Arc::new(Listener::new(settings, Arc::clone(&waiters))));
        Ears { waiters, kind }
    }

    /// One for each node; `settings` as for one, but for the route.
    pub(crate) fn of_shards(
        cluster: Arc<Cluster>,
        settings: ListenerSettings,
        waiters: Arc<Waiters>,
    ) -> Ears {
        let shards = Shards {
            cluster,
            settings,
            waiters: Arc::clone(&waiters),
            listeners: Mutex::default(),
        };
        Ears { waiters, kind: Kind::Many(shards) }
    }

    /// The listener's connection, if the script that refuses a caller can tell it what to
    /// subscribe to: a script reaches channels of its own slot only.
    pub(crate) fn session(&self) -> Option<Session> {
        match &self.kind {
            Kind::One(_) => self.waiters.session(),
            Kind::Many(_) => None,
        }
    }

    /// Sees to it that there is a listener that hears that channel. To be called by a waiter
    /// after it has registered there. What is to be sent to tell that listener, if the script
    /// could not.
    pub(crate) fn call(&self, channel: &Channel) -> Option<Call> {
        match &self.kind {
            Kind::One(listener) => {
                listener.call();
                None
            }
            Kind::Many(shards) => {
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
        match &self.kind {
            Kind::One(_) => self.message(None, channel),
            Kind::Many(shards) => self.message(Some(shards.node_of(channel)?), channel),
        }
    }

    fn message(&self, node: Option<u32>, channel: &Channel) -> Option<Call> {
        let deaf = channel.hearing() == Hearing::Nothing;
        deaf.then(|| self.waiters.message(node, channel.name())).flatten()
    }

    /// Has the threads end, each at the next message on its control channel, or at the end of a
    /// silence.
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        match &self.kind {
            Kind::One(listener) => listener.stop().into_iter().collect(),
            Kind::Many(shards) => {
                let listeners = std::mem::take(&mut *shards.listeners.lock());
                listeners.into_values().filter_map(|listener| listener.stop()).collect()
            }
        }
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
