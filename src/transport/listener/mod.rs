//! The listener: a thread that subscribes to channels and receives their messages.
//!
//! A client has one listener; in a cluster also one for each node that serves a channel with a
//! waiting caller ([`listeners`]). Imports `topology`, `connection` and what is
//! below them. Read [`channels`] first, then this file (the thread), then
//! `subscriber` (one connection).
//!
//! The thread owns one connection and blocks in its reads, so only a message can wake it, or the
//! end of the connection. It is therefore always subscribed to a *control channel* of its own
//! client:
//! * A payload is the name of a channel to subscribe to. The acquire script publishes it for the
//!   caller that it refuses.
//! * An empty payload is a heartbeat of the watchdog. At each heartbeat the listener ends
//!   subscriptions that no caller has used for half a poll interval. A silence of [`MAX_SILENCE`]
//!   means that the connection is broken, whatever the socket reports.
//! * Other payloads belong to the [`ControlHandler`](channels::ControlHandler).
//!
//! Rules:
//! * Confirmations are matched by the name of the channel. Each counts as a message, so that the
//!   waiting callers send another attempt.
//! * The thread connects when a caller waits, and disconnects when none has waited for [`IDLE`].
//! * A client that has announced itself keeps the connection of the listener without a node. While
//!   no caller needs it, the connection is *quiet*: a heartbeat comes with each renewal of the
//!   client record only, the longest silence is `quiet_silence`, and acquires do not carry
//!   subscription requests. The first refused caller sends a heartbeat, at which the listener looks
//!   for waiting callers as after a new connection.
//! * After a broken connection it reconnects with growing, jittered pauses, which are those of the
//!   server if the server is silent, and subscribes again to all channels with a waiting caller.
//!   The confirmations wake these callers.
//! * When the slot of a channel moves to another node, the listener drops the channel: at the
//!   message of the server about a shard channel, otherwise at a heartbeat. Its callers send
//!   another attempt, and the listener of the new node subscribes to it.

pub(crate) mod channels;
mod control;
pub(crate) mod listeners;
mod subscriber;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::transport::call::Call;
#[cfg(not(all(test, leasehold_model)))]
use crate::transport::connection::Disconnector;
use crate::transport::connection::Timeouts;
#[cfg(all(test, leasehold_model))]
use crate::transport::connection::model::Disconnector;
use crate::transport::listener::channels::Channels;
use crate::transport::listener::control::Rousing;
use crate::transport::listener::subscriber::Subscriber;
use crate::transport::topology::cluster::Cluster;
use crate::transport::topology::health::{GrowingPause, STABLE, ServerHealths};
use crate::transport::topology::route::Route;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::{Mutex, Parker};
use crate::util::system::thread::JoinHandle;
use crate::util::threads;

#[cfg(all(test, leasehold_model))]
pub(crate) mod model;

/// The longest silence of a working connection: at least three heartbeats.
const MAX_SILENCE: Duration = Duration::from_secs(3);

/// How long the connection stays open without a subscription.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// The largest number of channels in one command.
const CHANNELS_PER_COMMAND: usize = 128;

/// The settings of one listener.
#[derive(Clone, Debug)]
pub(crate) struct ListenerSettings {
    pub(crate) route: Route,
    /// The cluster node of this listener; `None` for the listener without a node.
    pub(crate) node: Option<ListenedNode>,
    /// Whether other listeners, those of nodes, have all channels but the control channel.
    pub(crate) only_control: bool,
    pub(crate) timeouts: Timeouts,
    /// The name of the connection on the server (`CLIENT SETNAME`).
    pub(crate) name: String,
    /// The control channel of the client.
    pub(crate) control: Arc<str>,
    pub(crate) healths: Arc<ServerHealths>,
    /// How long a subscription is kept without a waiting caller.
    pub(crate) linger: Duration,
    /// How long the connection is kept without a subscription.
    pub(crate) idle: Duration,
    /// The longest silence of a working connection that is quiet: three heartbeats.
    pub(crate) quiet_silence: Duration,
}

/// A cluster node with the channels of its slots.
#[derive(Clone, Debug)]
pub(crate) struct ListenedNode {
    pub(crate) number: u32,
    pub(crate) cluster: Arc<Cluster>,
    /// Whether the channels are shard channels.
    pub(crate) is_sharded: bool,
}

impl ListenerSettings {
    fn node_number(&self) -> Option<u32> {
        self.node.as_ref().map(|node| node.number)
    }

    /// Returns the node of this listener if its channels are shard channels.
    fn shard(&self) -> Option<&ListenedNode> {
        self.node.as_ref().filter(|node| node.is_sharded)
    }

    /// Returns the number under which the health of the listener's server is known.
    fn health_node(&self) -> u32 {
        match (&self.route, &self.node) {
            (_, Some(node)) => node.number,
            (Route::Node(_), None) => ServerHealths::ANY_NODE,
            (Route::To(_) | Route::Master(_), None) => 0,
        }
    }

    /// Returns whether this listener is responsible for the channel.
    fn covers(&self, channel: &str) -> bool {
        match &self.node {
            Some(node) => node.cluster.owner_of(channel.as_bytes()) == Some(node.number),
            None => !self.only_control,
        }
    }

    /// Returns whether callers wait for messages on the control channel of the listener without a
    /// node.
    fn awaits_messages(&self, channels: &Channels) -> bool {
        self.node.is_none() && channels.awaits_messages()
    }

    /// Returns this listener's control channel, for a listener of a node in a slot of the node.
    fn control_channel(&self) -> Result<Arc<str>> {
        let Some(node) = &self.node else { return Ok(Arc::clone(&self.control)) };
        let prefix = self.control.replace(['{', '}'], "");
        let Some(channel) = node.cluster.channel_on(node.number, &prefix) else {
            return Err(Error::new(ErrorKind::Connection, "the node serves no slots any more"));
        };
        Ok(channel.into())
    }

    /// Returns the largest number of channels in one command.
    ///
    /// One with sharded pub/sub, where all channels of a command must be in the same slot.
    fn channels_per_command(&self) -> usize {
        if self.shard().is_some() { 1 } else { CHANNELS_PER_COMMAND }
    }
}

/// One listener: its settings and its thread.
pub(crate) struct Listener {
    settings: ListenerSettings,
    channels: Arc<Channels>,
    /// The place where the thread sleeps while no caller waits.
    parker: Parker,
    started: AtomicBool,
    orders: ListenerOrders,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The orders of a client to the thread of a listener.
#[derive(Debug, Default)]
pub(crate) struct ListenerOrders {
    stop: AtomicBool,
    /// Keeps the connection without waiting callers, for requests of other processes.
    stay: AtomicBool,
    /// The present connection of the thread.
    connection: Mutex<Option<Disconnector>>,
}

impl ListenerOrders {
    /// Makes the thread end, and ends its connection. Does not block.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if let Some(connection) = &*self.connection.lock() {
            connection.disconnect();
        }
    }

    /// Stores the connection that a stop has to end. A stop before that shows in `has_to_stop`.
    fn connected(&self, connection: Disconnector) {
        *self.connection.lock() = Some(connection);
    }

    fn has_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn has_to_stay(&self) -> bool {
        self.stay.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl Listener {
    pub(crate) fn new(settings: ListenerSettings, channels: Arc<Channels>) -> Listener {
        let (started, orders) = (AtomicBool::new(false), ListenerOrders::default());
        let (parker, thread) = (Parker::default(), Mutex::new(None));
        Listener { settings, channels, parker, started, orders, thread }
    }

    /// Starts the thread if necessary, and makes it connect. Does not block.
    ///
    /// A caller calls this after it has registered on its channel. Returns a message that the
    /// caller has to send: a quiet listener looks for waiting callers when it receives one.
    pub(crate) fn wake(self: &Arc<Listener>) -> Option<Call> {
        match self.channels.rouse(self.settings.node_number()) {
            Rousing::NotConnected => {
                self.wake_thread();
                None
            }
            Rousing::WasQuiet(message) => Some(message),
            Rousing::Active => None,
        }
    }

    /// Connects, and keeps the connection without waiting callers. Does not block.
    pub(crate) fn stay_connected(self: &Arc<Listener>) {
        self.orders.stay.store(true, Ordering::Release);
        self.wake_thread();
    }

    /// Lets the connection end when no caller needs it. Does not block.
    pub(crate) fn need_not_stay(&self) {
        self.orders.stay.store(false, Ordering::Release);
    }

    fn wake_thread(self: &Arc<Listener>) {
        self.parker.unpark();
        if self.started.swap(true, Ordering::AcqRel) {
            return;
        }
        let listener = Arc::clone(self);
        match threads::start("leasehold-listener", move || listener.run()) {
            Ok(thread) => *self.thread.lock() = Some(thread),
            // Waiting callers poll, and the next one tries again.
            Err(_) => self.started.store(false, Ordering::Release),
        }
    }

    /// Returns whether a caller waits on a channel of this listener.
    fn has_waiting_callers(&self) -> bool {
        let awaited = self.channels.awaited();
        awaited.iter().any(|channel| self.settings.covers(channel.name()))
            || self.settings.awaits_messages(&self.channels)
    }

    /// Makes the thread end, and returns it for joining. Does not block.
    ///
    /// The thread ends at once, unless it is about to connect.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        self.orders.stop();
        self.parker.unpark();
        self.thread.lock().take()
    }

    fn is_stopped(&self) -> bool {
        self.orders.has_to_stop()
    }

    fn run(&self) {
        // A pause may have consumed the wake-up of `stop`, so the flag is read before each sleep.
        while !self.is_stopped() {
            self.parker.park_until(Moment::END);
            while threads::catch_panic("listening", || self.listen_while_needed()).is_none() {
                self.parker.park_until(clock::now() + threads::PANIC_PAUSE);
            }
        }
    }

    /// Listens until nothing needs the connection, and reconnects whenever it breaks.
    ///
    /// The search for waiting callers comes after the end of the connection. It finds the callers
    /// that registered before; a caller that registers later wakes the thread.
    fn listen_while_needed(&self) {
        let mut failures = ListenerFailures::default();
        while !self.is_stopped() && (self.has_waiting_callers() || self.orders.has_to_stay()) {
            let mut subscriber = match Subscriber::open(&self.settings, &self.channels) {
                Ok(subscriber) => subscriber,
                // The watchdog tells of a silent server.
                Err(error) if error.is_unanswered() => {
                    let health = self.settings.healths.of(self.settings.health_node());
                    let end = health.unanswered(clock::now(), &error);
                    self.pause(end, &error, true);
                    continue;
                }
                Err(error) => {
                    let end = failures.pause.attempted(clock::now());
                    self.pause(end, &error, failures.are_known(&error));
                    continue;
                }
            };
            if let Err(error) = subscriber.listen(&self.orders) {
                if self.is_stopped() {
                    // The stop has ended the connection.
                    return;
                }
                let opened_at = subscriber.opened_at();
                drop(subscriber);
                let now = clock::now();
                if opened_at + STABLE <= now {
                    failures = ListenerFailures::default();
                }
                let end = failures.pause.attempted(now);
                self.pause(end, &error, failures.are_known(&error));
            }
        }
    }

    /// Logs the error, with a warning unless it is known, and sleeps until `end`.
    ///
    /// After a refusal the connection is no longer kept for requests.
    fn pause(&self, end: Moment, error: &Error, is_known: bool) {
        let only_for_requests = self.orders.has_to_stay() && !self.has_waiting_callers();
        if only_for_requests || is_known {
            log::debug!(
                logger: LINES, target: log_target::CONNECTION,
                error:% = error.with_causes(), server = error.server();
                "cannot listen for releases and requests: {}", error.with_causes()
            );
        } else {
            log::warn!(
                logger: LINES, target: log_target::CONNECTION,
                error:% = error.with_causes(), server = error.server();
                "cannot listen for releases, so waiting callers poll: {}", error.with_causes()
            );
        }
        if error.is_final() {
            self.need_not_stay();
        }
        // Wake-ups by waiting callers do not shorten the pause: many callers would cause a storm of
        // connections.
        while !self.is_stopped() && clock::now() < end {
            self.parker.park_until(end);
        }
    }
}

/// The failures of a listener since its connection last worked for a while.
#[derive(Debug, Default)]
struct ListenerFailures {
    pause: GrowingPause,
    /// The number of connections that broke.
    broken: u32,
    /// The code of the last refusal that was logged.
    refused: Option<String>,
}

impl ListenerFailures {
    /// Notes a failure; returns whether no warning is due.
    ///
    /// A connection may break once without a warning.
    fn are_known(&mut self, error: &Error) -> bool {
        if let Some(code) = error.code() {
            let is_known = self.refused.as_deref() == Some(code);
            self.refused = Some(code.to_owned());
            return is_known;
        }
        self.broken += 1;
        self.broken != 2
    }
}
