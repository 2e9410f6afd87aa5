//! All listeners of one client: one, and in a cluster one more for each node.
//!
//! A node gets a listener when a caller waits on a channel that the node serves. The listener ends
//! after a topology change that leaves the node without slots. The node of a channel's slot runs
//! the releases of its locks. `PUBLISH` and `SPUBLISH` count the subscribers of one node, so this
//! node knows whether another process waits. Redisson listens there too.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::transport::call::Call;
use crate::transport::listener::channels::{Channel, Channels, ListenerSession, SubscriptionState};
use crate::transport::listener::{ListenedNode, Listener, ListenerSettings};
use crate::transport::topology::cluster::Cluster;
use crate::transport::topology::route::Route;
use crate::util::sync::Mutex;
use crate::util::system::{OnceLock, thread::JoinHandle};

/// The listeners of one client.
#[derive(Debug)]
pub(crate) struct Listeners {
    channels: Arc<Channels>,
    /// The listener of all channels; in a cluster only for messages on the control channel.
    single: Arc<Listener>,
    /// The listeners of the nodes, in a cluster.
    per_node: Option<NodeListeners>,
}

/// The listeners of the nodes of a cluster.
#[derive(Debug)]
struct NodeListeners {
    cluster: Arc<Cluster>,
    /// Whether the cluster uses sharded pub/sub; empty before the first contact.
    is_sharded: Arc<OnceLock<bool>>,
    /// The settings of each listener, except route, node and name.
    settings: ListenerSettings,
    channels: Arc<Channels>,
    /// The listeners by node.
    listeners: Mutex<BTreeMap<u32, Arc<Listener>>>,
}

impl Listeners {
    /// Creates the listeners without starting a thread.
    ///
    /// A cluster comes with a cell that tells whether it uses sharded pub/sub. Each of its nodes
    /// has its own listener, with these settings except route, node and name.
    pub(crate) fn new(
        settings: ListenerSettings,
        channels: Arc<Channels>,
        cluster: Option<(Arc<Cluster>, Arc<OnceLock<bool>>)>,
    ) -> Listeners {
        let per_node = cluster.map(|(cluster, is_sharded)| NodeListeners {
            cluster,
            is_sharded,
            settings: settings.clone(),
            channels: Arc::clone(&channels),
            listeners: Mutex::default(),
        });
        let settings = ListenerSettings { only_control: per_node.is_some(), ..settings };
        let single = Arc::new(Listener::new(settings, Arc::clone(&channels)));
        Listeners { channels, single, per_node }
    }

    /// Connects the listener without a node, and keeps it connected for questions.
    ///
    /// In a cluster it has no subscriptions to channels of locks. Does not block.
    pub(crate) fn stay_connected(&self) {
        self.single.stay_connected();
    }

    /// Undoes [`Listeners::stay_connected`]. Does not block.
    pub(crate) fn need_not_stay(&self) {
        self.single.need_not_stay();
    }

    /// Starts and connects the listener without a node, for a caller that waits for a message on
    /// the control channel.
    ///
    /// Does not block. Returns a message to send, which ends the quiet time of the listener.
    pub(crate) fn listen_for_messages(&self) -> Option<Call> {
        self.single.wake()
    }

    /// Returns the listener's session, if the acquire script can send it subscription requests.
    ///
    /// `None` in a cluster, where a script reaches only shard channels of its own slot.
    pub(crate) fn session(&self) -> Option<ListenerSession> {
        match self.per_node {
            None => self.channels.session(),
            Some(_) => None,
        }
    }

    /// Starts and connects the listener of the channel. Does not block.
    ///
    /// A caller calls this after it has registered on the channel. Returns the message to send to a
    /// listener that the acquire script could not tell.
    pub(crate) fn listen_to(&self, channel: &Channel) -> Option<Call> {
        match &self.per_node {
            None => self.single.wake(),
            Some(nodes) => {
                let node = nodes.node_of(channel)?;
                let listener = nodes.listener(node)?;
                let request = self.request_to(Some(node), channel);
                // This message makes a quiet listener look for callers too; there is none per node.
                request.or(listener.wake())
            }
        }
    }

    /// Returns the subscription request to send for a channel without a subscription.
    ///
    /// `None` if the channel has one, or if its listener is not connected.
    pub(crate) fn subscription_request(&self, channel: &Channel) -> Option<Call> {
        match &self.per_node {
            None => self.request_to(None, channel),
            Some(nodes) => self.request_to(Some(nodes.node_of(channel)?), channel),
        }
    }

    fn request_to(&self, node: Option<u32>, channel: &Channel) -> Option<Call> {
        if channel.subscription() != SubscriptionState::Unsubscribed {
            return None;
        }
        self.channels.message_to_listener(node, channel.name())
    }

    /// Stops the listeners of nodes that serve no slots. Does not block.
    pub(crate) fn leave_old_nodes(&self) {
        let Some(nodes) = &self.per_node else { return };
        let owners = nodes.cluster.owners();
        nodes.listeners.lock().retain(|node, listener| {
            let stays = owners.contains(node);
            if !stays {
                drop(listener.stop());
            }
            stays
        });
    }

    /// Makes all threads end, and returns them for joining. Does not block.
    ///
    /// See [`Listener::stop`].
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        let per_node = self.per_node.iter();
        let per_node = per_node.flat_map(|nodes| std::mem::take(&mut *nodes.listeners.lock()));
        let all = per_node.map(|(_, listener)| listener).chain([Arc::clone(&self.single)]);
        all.filter_map(|listener| listener.stop()).collect()
    }
}

impl NodeListeners {
    fn node_of(&self, channel: &Channel) -> Option<u32> {
        self.cluster.owner_of(channel.name().as_bytes())
    }

    /// Returns the listener of a node, and creates it at first use. `None` for an unknown node.
    fn listener(&self, node: u32) -> Option<Arc<Listener>> {
        let NodeListeners { cluster, settings, .. } = self;
        let mut listeners = self.listeners.lock();
        if let Some(listener) = listeners.get(&node) {
            return Some(Arc::clone(listener));
        }
        let route = Route::To(cluster.address(node)?);
        let (cluster, is_sharded) = (Arc::clone(cluster), self.is_sharded.get() == Some(&true));
        let listened = Some(ListenedNode { number: node, cluster, is_sharded });
        let name = format!("{}.{node}", settings.name);
        let settings = ListenerSettings { route, node: listened, name, ..settings.clone() };
        let listener = Arc::new(Listener::new(settings, Arc::clone(&self.channels)));
        listeners.insert(node, Arc::clone(&listener));
        Some(listener)
    }
}
