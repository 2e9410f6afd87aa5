//! The listeners of one client: one, or where messages go to the shards of a cluster, one for
//! each node that serves channels on which somebody waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::listener::{Listener, ListenerSettings, Shard};
use crate::name::slot;
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
    Shards { cluster: Arc<Cluster>, settings: ListenerSettings, of: Mutex<Listeners> },
}

/// By the numbers of their nodes.
type Listeners = BTreeMap<u32, Arc<Listener>>;

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
        let kind = Kind::Shards { cluster, settings, of: Mutex::default() };
        Ears { waiters, kind }
    }

    /// The listener's connection, if the script that refuses a caller can tell it what to
    /// subscribe to: a script reaches channels of its own slot only.
    pub(crate) fn session(&self) -> Option<Session> {
        match &self.kind {
            Kind::One(_) => self.waiters.session(),
            Kind::Shards { .. } => None,
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
            Kind::Shards { cluster, settings, of } => {
                let node = cluster.owner(slot(channel.name().as_bytes()))?;
                let listener = self.listener(cluster, settings, of, node)?;
                let told = self.tell(channel);
                listener.call();
                told
            }
        }
    }

    /// What is to be sent to have a channel subscribed to that is not, if the listener can be
    /// told so.
    pub(crate) fn tell(&self, channel: &Channel) -> Option<Call> {
        let node = match &self.kind {
            Kind::One(_) => None,
            Kind::Shards { cluster, .. } => Some(cluster.owner(slot(channel.name().as_bytes()))?),
        };
        let deaf = channel.hearing() == Hearing::Nothing;
        deaf.then(|| self.waiters.message(node, channel.name())).flatten()
    }

    fn listener(
        &self,
        cluster: &Arc<Cluster>,
        settings: &ListenerSettings,
        of: &Mutex<Listeners>,
        node: u32,
    ) -> Option<Arc<Listener>> {
        let mut listeners = of.lock();
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

    /// Has the threads end, each at the next message on its control channel, or at the end of a
    /// silence.
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        match &self.kind {
            Kind::One(listener) => listener.stop().into_iter().collect(),
            Kind::Shards { of, .. } => {
                let listeners = std::mem::take(&mut *of.lock());
                listeners.into_values().filter_map(|listener| listener.stop()).collect()
            }
        }
    }
}
