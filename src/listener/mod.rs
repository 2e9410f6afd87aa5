//! The thread that hears messages: one, or in a cluster whose messages go to shards one for
//! each node with channels that somebody waits on (`ears.rs`).
//!
//! It owns one connection, blocks in its reads, and knows nothing of locks: it
//! subscribes to channels and tells [`Channel`]s what it heard. Nobody can wake it
//! but by a message, so it is always subscribed to a *control channel* of its
//! client's own:
//! * a caller that was refused has the acquire script publish there the name of the
//!   channel it will wait on; the listener subscribes to it;
//! * an empty message is the watchdog's heartbeat. At each the listener gives up
//!   subscriptions that nobody has used for half a poll interval. Silence for
//!   [`SILENCE`] means that the path is broken, whatever the socket says.
//!
//! Confirmations are matched by the channel's name; each is news to the waiters,
//! which then ask the server once more. A broken connection is made again with
//! growing, jittered pauses; its channels are subscribed again, and their
//! confirmations wake every waiter. A channel whose slot moves to another node is given up: its
//! waiters ask again, and have the listener there subscribe to it. The thread connects when somebody waits, and
//! disconnects when nobody has for [`IDLE`].

pub(crate) mod channels;
pub(crate) mod shards;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::command::call::Call;
use crate::command::reply::{Push, Reply};
#[cfg(not(all(test, leasehold_model)))]
use crate::connection::Connection;
use crate::connection::Timeouts;
#[cfg(all(test, leasehold_model))]
use crate::connection::model::Connection;
use crate::error::{Error, ErrorKind, Redirect, Refusal, Result};
use crate::listener::channels::{Channel, SubscriptionState, Waiters};
use crate::topology::cluster::Cluster;
use crate::topology::route::{Generation, Route, RoutedConnection};
use crate::util::clock::{self, Moment, jittered};
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;

#[cfg(all(test, leasehold_model))]
pub(crate) mod model;

/// How long the connection may be silent: three heartbeats and more.
const SILENCE: Duration = Duration::from_secs(3);

/// How long the connection stays when nobody waits.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// The first and the longest pause before it is made again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection that lasted so long was good, and the next may be made at once.
const STEADY: Duration = Duration::from_secs(5);

/// How many channels one command subscribes to.
const MANY: usize = 128;

/// How the listener is set up.
#[derive(Clone, Debug)]
pub(crate) struct ListenerSettings {
    pub(crate) route: Route,
    /// The node of a cluster whose shard it hears, if it hears one.
    pub(crate) shard: Option<Shard>,
    pub(crate) timeouts: Timeouts,
    /// The name of its connection, on the server.
    pub(crate) name: String,
    pub(crate) control: Arc<str>,
    /// How long a subscription is kept when nobody uses it.
    pub(crate) linger: Duration,
    /// How long the connection is kept without a subscription.
    pub(crate) idle: Duration,
}

/// The node of a cluster whose channels are heard.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) node: u32,
    pub(crate) cluster: Arc<Cluster>,
}

impl ListenerSettings {
    fn node(&self) -> Option<u32> {
        self.shard.as_ref().map(|shard| shard.node)
    }

    /// Whether that channel is heard here, if anybody waits there.
    fn covers(&self, channel: &str) -> bool {
        self.shard.as_ref().is_none_or(|Shard { node, cluster }| {
            cluster.owner_of(channel.as_bytes()) == Some(*node)
        })
    }

    /// The channel of its own, on its node.
    fn own_channel(&self) -> Result<Arc<str>> {
        let Some(Shard { node, cluster }) = &self.shard else {
            return Ok(Arc::clone(&self.control));
        };
        let prefix = self.control.replace(['{', '}'], "");
        let channel = cluster.channel_on(*node, &prefix).map(Arc::from);
        let none = || Error::new(ErrorKind::Connection, "the node serves nothing any more");
        channel.ok_or_else(none)
    }

    fn command(&self, classic: &'static str) -> String {
        format!("{}{classic}", if self.shard.is_some() { "S" } else { "" })
    }

    /// How many channels one command subscribes to: those of a shard differ in their slots.
    fn many(&self) -> usize {
        if self.shard.is_some() { 1 } else { MANY }
    }
}

/// The listener of one client.
pub(crate) struct Listener {
    settings: ListenerSettings,
    waiters: Arc<Waiters>,
    calls: Parker,
    started: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("waiters", &self.waiters).finish_non_exhaustive()
    }
}

impl Listener {
    pub(crate) fn new(settings: ListenerSettings, waiters: Arc<Waiters>) -> Listener {
        let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (calls, thread) = (Parker::default(), Mutex::new(None));
        Listener { settings, waiters, calls, started, stop, thread }
    }

    /// Sees to it that the thread runs and connects. To be called by a waiter after
    /// it has registered with its channel.
    pub(crate) fn call(self: &Arc<Listener>) {
        if self.listens() {
            return;
        }
        self.calls.unpark();
        if !self.started.swap(true, Ordering::AcqRel) {
            self.start();
        }
    }

    fn listens(&self) -> bool {
        self.waiters.message(self.settings.node(), "").is_some()
    }

    fn is_wanted(&self) -> bool {
        let waited_for = self.waiters.waited_for();
        waited_for.iter().any(|channel| self.settings.covers(channel.name()))
    }

    fn start(self: &Arc<Listener>) {
        let listener = Arc::clone(self);
        match threads::start("leasehold-listener", move || listener.run()) {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => {
                log::error!("no thread to listen for releases, so waiters poll: {error}");
                self.started.store(false, Ordering::Release);
            }
        }
    }

    /// Has the thread end at the next message on its control channel, or at the end
    /// of a silence.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        self.stop.store(true, Ordering::Release);
        self.calls.unpark();
        self.thread.lock().take()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self) {
        // The call of `stop` may have been heard in a pause: so the flag is looked at
        // before each sleep, too.
        while !self.is_stopped() {
            self.calls.park_until(Moment::END);
            while threads::survive("listening", || self.listen_while_wanted()).is_none() {
                self.calls.park_until(clock::now() + threads::PAUSE);
            }
        }
    }

    /// Listens, over as many connections as it takes, until nobody waits any more.
    ///
    /// The look for waiters comes after the end of the connection. A waiter that registers
    /// before the look is seen, and one that registers after it calls.
    fn listen_while_wanted(&self) {
        let mut pause = FIRST_PAUSE;
        while !self.is_stopped() && self.is_wanted() {
            let mut subscriber = match Subscriber::open(&self.settings, &self.waiters) {
                Ok(subscriber) => subscriber,
                Err(error) => {
                    self.pause(&mut pause, &error);
                    continue;
                }
            };
            if let Err(error) = subscriber.listen(&self.stop) {
                // One that was refused as soon as it worked is no better than one
                // that never did.
                let lasted = subscriber.opened + STEADY <= clock::now();
                drop(subscriber);
                pause = if lasted { FIRST_PAUSE } else { pause };
                self.pause(&mut pause, &error);
            }
        }
    }

    fn pause(&self, pause: &mut Duration, error: &Error) {
        threads::say(|| log::warn!("not listening for releases, so waiters poll: {error}"));
        let now = clock::now();
        let end = now + jittered(*pause, now.nanos());
        // Calls of waiters do not cut it short, or they would make it a storm.
        while !self.is_stopped() && clock::now() < end {
            self.calls.park_until(end);
        }
        *pause = LONGEST_PAUSE.min(*pause * 2);
    }
}

/// One connection of the listener, and what it is subscribed to.
struct Subscriber<'a> {
    settings: &'a ListenerSettings,
    waiters: &'a Waiters,
    conn: Connection,
    /// What the connection is good for.
    generation: Generation,
    /// By which it is told what to subscribe to.
    control: Arc<str>,
    channels: HashMap<Box<str>, Subscribed>,
    /// Those of a shard whose subscription has no answer, in order.
    asked: VecDeque<Box<str>>,
    /// Those that were given up, without an answer yet.
    leaving: Vec<Box<str>>,
    opened: Moment,
    idle_since: Moment,
}

struct Subscribed {
    channel: Arc<Channel>,
    asked: Moment,
}

impl Drop for Subscriber<'_> {
    fn drop(&mut self) {
        self.waiters.end_control(self.settings.node(), &self.control);
        self.channels.values().for_each(|one| one.channel.set_hearing(SubscriptionState::Nothing));
    }
}

impl<'a> Subscriber<'a> {
    fn open(settings: &'a ListenerSettings, waiters: &'a Waiters) -> Result<Subscriber<'a>> {
        let timeouts = Timeouts { response: SILENCE, ..settings.timeouts.without_replicas() };
        let RoutedConnection { conn, generation, .. } =
            settings.route.open(timeouts, &settings.name, &[])?;
        let (channels, asked, control) = (HashMap::new(), VecDeque::new(), settings.own_channel()?);
        let now = clock::now();
        let mut subscriber = Subscriber {
            settings,
            waiters,
            conn,
            generation,
            control,
            channels,
            asked,
            leaving: Vec::new(),
            opened: now,
            idle_since: now,
        };
        let control = Arc::clone(&subscriber.control);
        subscriber.send("SUBSCRIBE", &[control.as_bytes()])?;
        subscriber.subscribe_waited_for()?;
        Ok(subscriber)
    }

    /// Hears, until it is stopped or nobody has waited for long (`Ok`), or something
    /// is wrong with the connection.
    fn listen(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Acquire) {
            let reply = self.conn.receive(clock::now() + SILENCE).map_err(|fault| fault.error)?;
            match reply {
                Reply::Push(Push::Message { channel, payload }) => {
                    self.heard(&channel, &payload)?
                }
                Reply::Push(Push::Subscribed { channel }) => self.confirmed(&channel)?,
                Reply::Push(Push::Unsubscribed { channel }) => self.moved_away(&channel)?,
                Reply::Refused(refusal) => self.refused(&refusal)?,
                _ => {}
            }
            if self.generation != self.settings.route.generation() {
                return Err(Error::new(ErrorKind::Connection, "the server is another one now"));
            }
            if self.is_idle() {
                break;
            }
        }
        Ok(())
    }

    fn heard(&mut self, channel: &[u8], payload: &[u8]) -> Result<()> {
        let channel = String::from_utf8_lossy(channel);
        if *channel != *self.control {
            if let Some(one) = self.channels.get(&*channel) {
                one.channel.message();
            }
            return Ok(());
        }
        match payload {
            b"" => self.check_confirmations().and_then(|()| self.retire_unused()),
            wanted => {
                let wanted = self.waiters.channel(&String::from_utf8_lossy(wanted));
                self.subscribe(vec![wanted])
            }
        }
    }

    fn confirmed(&mut self, channel: &[u8]) -> Result<()> {
        let channel = String::from_utf8_lossy(channel);
        if *channel == *self.control {
            self.waiters.set_control(self.settings.node(), &self.control);
            // Who came while this channel was not heard could not make itself known.
            return self.subscribe_waited_for();
        }
        if let Some(at) = self.asked.iter().position(|asked| **asked == *channel) {
            self.asked.remove(at);
        }
        if let Some(one) = self.channels.get(&*channel) {
            one.channel.set_hearing(SubscriptionState::Everything);
        }
        Ok(())
    }

    /// The server has ended a subscription: another node serves its slot now.
    fn moved_away(&mut self, channel: &[u8]) -> Result<()> {
        let channel = String::from_utf8_lossy(channel);
        if let Some(at) = self.leaving.iter().position(|left| **left == *channel) {
            self.leaving.swap_remove(at);
            return Ok(());
        }
        if *channel == *self.control {
            return Err(Error::new(ErrorKind::Connection, "another node serves its channel now"));
        }
        if let Some(Shard { cluster, .. }) = &self.settings.shard {
            cluster.request_refresh();
        }
        self.give_up(&channel);
        Ok(())
    }

    /// The server has refused a subscription: of a shard, the first without an answer.
    fn refused(&mut self, refusal: &Refusal) -> Result<()> {
        match (&self.settings.shard, refusal.redirect(), self.asked.pop_front()) {
            (Some(Shard { node, cluster }), Some(direction), channel) => {
                if let Redirect::Moved(slot, place) = direction
                    && let Some(owner) = cluster.node_at(&place, *node)
                {
                    cluster.set_owner(slot, owner);
                }
                cluster.request_refresh();
                // Else it was one that is given up anyway.
                channel.into_iter().for_each(|channel| self.give_up(&channel));
                Ok(())
            }
            _ => Err(Error::refused(refusal)),
        }
    }

    /// Who waits there asks again, and has it subscribed to where it is.
    fn give_up(&mut self, channel: &str) {
        if let Some(one) = self.channels.remove(channel) {
            one.channel.set_hearing(SubscriptionState::Nothing);
        }
    }

    fn subscribe_waited_for(&mut self) -> Result<()> {
        self.subscribe(self.waiters.waited_for())
    }

    fn subscribe(&mut self, mut wanted: Vec<Arc<Channel>>) -> Result<()> {
        let settings = self.settings;
        wanted.retain(|channel| {
            !self.channels.contains_key(channel.name()) && settings.covers(channel.name())
        });
        for many in wanted.chunks(settings.many()) {
            let names: Vec<_> = many.iter().map(|channel| channel.name().as_bytes()).collect();
            self.send("SUBSCRIBE", &names)?;
        }
        let asked = clock::now();
        for channel in wanted {
            if settings.shard.is_some() {
                self.asked.push_back(channel.name().into());
            }
            channel.set_hearing(SubscriptionState::Asked);
            self.channels.insert(channel.name().into(), Subscribed { channel, asked });
        }
        Ok(())
    }

    fn retire_unused(&mut self) -> Result<()> {
        let now = clock::now();
        let unused = |one: &Subscribed| one.channel.retire(now, self.settings.linger);
        let retired: Vec<_> =
            self.channels.extract_if(|_, one| unused(one)).map(|(name, _)| name).collect();
        for many in retired.chunks(self.settings.many()) {
            let names: Vec<_> = many.iter().map(|name| name.as_bytes()).collect();
            self.send("UNSUBSCRIBE", &names)?;
        }
        self.leaving.extend(retired);
        Ok(())
    }

    /// A subscription that is not confirmed in time condemns the connection.
    fn check_confirmations(&self) -> Result<()> {
        let late = clock::now().before(self.settings.timeouts.response);
        let unconfirmed = |one: &Subscribed| {
            one.asked < late && one.channel.subscription() == SubscriptionState::Asked
        };
        match self.channels.values().any(unconfirmed) {
            true => {
                let message = "the server did not confirm a subscription in time";
                Err(Error::new(ErrorKind::Connection, message))
            }
            false => Ok(()),
        }
    }

    fn is_idle(&mut self) -> bool {
        let now = clock::now();
        if !self.channels.is_empty() {
            self.idle_since = now;
            return false;
        }
        self.idle_since + self.settings.idle <= now
    }

    fn send(&mut self, command: &'static str, channels: &[&[u8]]) -> Result<()> {
        let command = self.settings.command(command);
        let parts = [&[command.as_bytes()], channels].concat();
        let sent = self.conn.send(&Call::command(&parts).bytes);
        sent.map(drop).map_err(|fault| fault.error)
    }
}
