//! One connection of a listener, its subscriptions, and the handling of its messages.
//!
//! States of a channel on a connection:
//!
//! 1. *Requested*: the subscription is sent. A confirmation leads to 2. Without a confirmation
//!    within the response time-out, the connection is closed as broken. A redirect by a cluster
//!    node drops the channel.
//! 2. *Confirmed*: messages arrive. A linger time without a waiting caller leads to 3, and so does
//!    the move of the slot to another node. A server ends the subscription of a shard channel when
//!    it loses the slot, which drops the channel.
//! 3. *Ending*: the end of the subscription is sent and has no reply yet. Sharded pub/sub needs
//!    this state to tell the reply from the loss of a slot.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Redirect, Refusal, Result};
use crate::transport::call::Call;
#[cfg(not(all(test, leasehold_model)))]
use crate::transport::connection::Connection;
#[cfg(all(test, leasehold_model))]
use crate::transport::connection::model::Connection;
use crate::transport::connection::{ReadLimit, Timeouts};
use crate::transport::listener::channels::{Channel, Channels, SubscriptionState};
use crate::transport::listener::control::Control;
use crate::transport::listener::{ListenerOrders, ListenerSettings, MAX_SILENCE};
use crate::transport::reply::{Push, Reply};
use crate::transport::topology::route::{Generation, RoutedConnection};
use crate::util::clock::{self, Moment};
use crate::util::system::HashMap;

/// One connection of a listener with its subscriptions.
pub(super) struct Subscriber<'a> {
    settings: &'a ListenerSettings,
    channels: &'a Channels,
    conn: Connection,
    /// The topology for which the connection was opened.
    generation: Generation,
    control: Arc<Control>,
    /// The channels with a requested or confirmed subscription, by name.
    subscriptions: HashMap<Box<str>, Subscription>,
    /// With sharded pub/sub, the channels whose request has no reply yet, in the order sent.
    requested: VecDeque<Box<str>>,
    /// The channels whose end of subscription has no reply yet.
    ending: Vec<Box<str>>,
    opened_at: Moment,
    /// The moment of the last message, or of the start of the connection.
    heard_at: Moment,
    /// The last check that found a subscription, or the end of the last quiet time.
    idle_since: Moment,
    /// Whether the connection was quiet at the last check.
    was_quiet: bool,
}

struct Subscription {
    channel: Arc<Channel>,
    requested_at: Moment,
}

impl Drop for Subscriber<'_> {
    fn drop(&mut self) {
        self.channels.end_control(&self.control);
        for subscription in self.subscriptions.values() {
            subscription.channel.set_subscription(SubscriptionState::Unsubscribed);
        }
    }
}

impl<'a> Subscriber<'a> {
    /// Connects, and requests the subscriptions to the control channel and all awaited channels.
    ///
    /// Blocks until the connection is open. Does not wait for the confirmations.
    pub(super) fn open(
        settings: &'a ListenerSettings,
        channels: &'a Channels,
    ) -> Result<Subscriber<'a>> {
        let timeouts = Timeouts { response: MAX_SILENCE, ..settings.timeouts.without_replicas() };
        let RoutedConnection { conn, generation, .. } =
            settings.route.open(timeouts, &settings.name)?;
        let control = Arc::new(Control::new(
            settings.node_number(),
            settings.control_channel()?,
            settings.shard().is_some(),
        ));
        let now = clock::now();
        let mut subscriber = Subscriber {
            settings,
            channels,
            conn,
            generation,
            control: Arc::clone(&control),
            subscriptions: HashMap::default(),
            requested: VecDeque::new(),
            ending: Vec::new(),
            opened_at: now,
            heard_at: now,
            idle_since: now,
            was_quiet: false,
        };
        subscriber.send("SUBSCRIBE", &[control.name().as_bytes()])?;
        subscriber.subscribe_awaited()?;
        Ok(subscriber)
    }

    /// Returns when the connection was opened.
    pub(super) fn opened_at(&self) -> Moment {
        self.opened_at
    }

    /// Receives messages until the listener has to stop, or nothing needs the connection.
    ///
    /// # Errors
    ///
    /// The connection is broken or silent, the topology has changed, or the server refuses or does
    /// not confirm a subscription.
    pub(super) fn listen(&mut self, orders: &ListenerOrders) -> Result<()> {
        orders.connected(self.conn.disconnector());
        while !orders.has_to_stop() {
            match self.receive()? {
                Some(Reply::Push(Push::Message { channel, payload })) => {
                    self.on_message(&channel, &payload)?
                }
                Some(Reply::Push(Push::Subscribed { channel })) => {
                    self.on_subscribed(&channel)?;
                    // A new connection that is only kept for requests becomes quiet here, because
                    // its control channel has to be confirmed within the short silence.
                    if !self.is_needed() {
                        self.becomes_quiet(orders);
                    }
                }
                Some(Reply::Push(Push::Unsubscribed { channel })) => {
                    self.on_unsubscribed(&channel)?
                }
                Some(Reply::Refused(refusal)) => self.on_refusal(&refusal)?,
                _ => {}
            }
            if self.generation != self.settings.route.generation() {
                return Err(Error::new(ErrorKind::Connection, "the topology has changed"));
            }
            self.end_quiet_time()?;
            if self.is_idle() && !self.becomes_quiet(orders) {
                break;
            }
        }
        Ok(())
    }

    /// Waits for a message. Returns `None` from time to time on a quiet connection.
    fn receive(&mut self) -> Result<Option<Reply>> {
        let (soon, quiet) = (clock::now() + MAX_SILENCE, self.settings.quiet_silence);
        let limit = if self.control.is_quiet() {
            // A caller that needs the connection meanwhile is noticed when the reader leaves.
            ReadLimit { leave: soon, ..ReadLimit::due(self.heard_at + quiet) }
        } else {
            ReadLimit::due(soon)
        };
        let reply = self.conn.receive_until(&limit).map_err(|fault| fault.error)?;
        if reply.is_some() {
            self.heard_at = clock::now();
        }
        Ok(reply)
    }

    /// Makes the connection quiet if it is kept for requests. Returns whether it is.
    fn becomes_quiet(&mut self, orders: &ListenerOrders) -> bool {
        let stays = orders.has_to_stay();
        if stays && !self.was_quiet {
            self.was_quiet = true;
            self.control.set_quiet(true);
            self.channels.set_listening(false);
        }
        stays
    }

    /// Looks for waiting callers if a caller needs a quiet connection.
    fn end_quiet_time(&mut self) -> Result<()> {
        if !self.was_quiet || self.control.is_quiet() && !self.is_needed() {
            return Ok(());
        }
        self.was_quiet = false;
        self.idle_since = clock::now();
        self.control.set_quiet(false);
        // As after the confirmation of the control channel.
        self.channels.set_listening(true);
        self.subscribe_awaited()
    }

    /// Wakes the callers of the channel, or does what the control channel requests.
    fn on_message(&mut self, channel: &[u8], payload: &[u8]) -> Result<()> {
        let channel = String::from_utf8_lossy(channel);
        if *channel != **self.control.name() {
            if let Some(subscription) = self.subscriptions.get(&*channel) {
                subscription.channel.message(payload);
            }
            return Ok(());
        }
        match payload {
            b"" => {
                self.check_confirmations()?;
                self.end_unused()
            }
            _ if self.channels.is_handled(payload, self.generation) => Ok(()),
            name => {
                let channel = self.channels.channel(&String::from_utf8_lossy(name));
                self.subscribe(vec![channel])
            }
        }
    }

    /// Stores a confirmed subscription.
    fn on_subscribed(&mut self, channel: &[u8]) -> Result<()> {
        let channel = String::from_utf8_lossy(channel);
        if *channel == **self.control.name() {
            self.channels.set_control(&self.control);
            // Callers that registered before could not request their subscriptions.
            return self.subscribe_awaited();
        }
        if let Some(at) = self.requested.iter().position(|name| **name == *channel) {
            self.requested.remove(at);
        }
        if let Some(subscription) = self.subscriptions.get(&*channel) {
            subscription.channel.set_subscription(SubscriptionState::Subscribed);
        }
        Ok(())
    }

    /// Stores the end of a subscription, which this listener requested or the server decided.
    ///
    /// The server ends a subscription when another node takes over the slot of the channel.
    fn on_unsubscribed(&mut self, channel: &[u8]) -> Result<()> {
        let channel = String::from_utf8_lossy(channel);
        if let Some(at) = self.ending.iter().position(|name| **name == *channel) {
            self.ending.swap_remove(at);
            return Ok(());
        }
        if *channel == **self.control.name() {
            return Err(Error::new(
                ErrorKind::Connection,
                "another node serves the control channel now",
            ));
        }
        if let Some(shard) = self.settings.shard() {
            shard.cluster.request_refresh();
        }
        self.drop_channel(&channel);
        Ok(())
    }

    /// Follows the redirect of a subscription. Any other refusal is an error.
    ///
    /// With sharded pub/sub the refusal belongs to the oldest request without a reply.
    fn on_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        let requested = self.requested.pop_front();
        let (Some(shard), Some(redirect)) = (self.settings.shard(), refusal.redirect()) else {
            return Err(Error::refused(refusal));
        };
        if let Redirect::Moved(slot, address) = redirect {
            shard.cluster.slot_moved(slot, &address, shard.number);
        }
        shard.cluster.request_refresh();
        // Without an open request, the node has refused the end of a subscription.
        if let Some(channel) = requested {
            self.drop_channel(&channel);
        }
        Ok(())
    }

    /// Drops a channel that another node serves.
    ///
    /// Its callers send another attempt, and the listener of the other node subscribes to it.
    fn drop_channel(&mut self, channel: &str) {
        if let Some(subscription) = self.subscriptions.remove(channel) {
            subscription.channel.set_subscription(SubscriptionState::Unsubscribed);
        }
    }

    fn subscribe_awaited(&mut self) -> Result<()> {
        self.subscribe(self.channels.awaited())
    }

    /// Requests subscriptions to the channels of this listener that have none.
    fn subscribe(&mut self, mut channels: Vec<Arc<Channel>>) -> Result<()> {
        let settings = self.settings;
        channels.retain(|channel| {
            !self.subscriptions.contains_key(channel.name()) && settings.covers(channel.name())
        });
        for chunk in channels.chunks(settings.channels_per_command()) {
            let names: Vec<_> = chunk.iter().map(|channel| channel.name().as_bytes()).collect();
            self.send("SUBSCRIBE", &names)?;
        }
        let requested_at = clock::now();
        for channel in channels {
            if settings.shard().is_some() {
                self.requested.push_back(channel.name().into());
            }
            channel.set_subscription(SubscriptionState::Requested);
            self.subscriptions
                .insert(channel.name().into(), Subscription { channel, requested_at });
        }
        Ok(())
    }

    /// Ends the subscriptions that no caller has used for the linger time, and those to channels
    /// that another node serves: the former node does not count their subscribers at a release.
    fn end_unused(&mut self) -> Result<()> {
        let (now, settings) = (clock::now(), self.settings);
        let ended = self.subscriptions.extract_if(|name, Subscription { channel, .. }| {
            let has_moved = settings.shard().is_none() && !settings.covers(name);
            if has_moved {
                channel.set_subscription(SubscriptionState::Unsubscribed);
            }
            has_moved || channel.retire(now, settings.linger)
        });
        let ended: Vec<_> = ended.map(|(name, _)| name).collect();
        for chunk in ended.chunks(self.settings.channels_per_command()) {
            let names: Vec<_> = chunk.iter().map(|name| name.as_bytes()).collect();
            self.send("UNSUBSCRIBE", &names)?;
        }
        self.ending.extend(ended);
        Ok(())
    }

    /// Returns an error if a subscription is not confirmed within the response time-out.
    fn check_confirmations(&self) -> Result<()> {
        let overdue_before = clock::now().before(self.settings.timeouts.response);
        for Subscription { channel, requested_at } in self.subscriptions.values() {
            if *requested_at < overdue_before
                && channel.subscription() == SubscriptionState::Requested
            {
                let message = "the server did not confirm a subscription in time";
                return Err(Error::new(ErrorKind::Connection, message));
            }
        }
        Ok(())
    }

    /// Returns whether callers of this process need the connection.
    fn is_needed(&self) -> bool {
        !self.subscriptions.is_empty() || self.settings.awaits_messages(self.channels)
    }

    /// Returns whether the connection is quiet, or was not needed for the idle time.
    fn is_idle(&mut self) -> bool {
        let now = clock::now();
        if self.is_needed() {
            self.idle_since = now;
            return false;
        }
        self.was_quiet || self.idle_since + self.settings.idle <= now
    }

    /// Sends a pub/sub command, in its sharded form if this listener uses sharded pub/sub.
    fn send(&mut self, command: &'static str, channels: &[&[u8]]) -> Result<()> {
        let prefix = if self.settings.shard().is_some() { "S" } else { "" };
        let command = format!("{prefix}{command}");
        let parts = [&[command.as_bytes()], channels].concat();
        let sent = self.conn.send(&Call::command(&parts).bytes);
        sent.map(drop).map_err(|fault| fault.error)
    }
}
