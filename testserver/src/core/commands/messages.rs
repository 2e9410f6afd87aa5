//! Channels: subscriptions and messages.

use super::super::glob;
use super::super::replication::{Change, Message};
use super::super::resp::{Bytes, Reply};
use super::super::state::{Connection, Mode, State};
use super::{Call, Command, Keys, Outcome};
use std::collections::BTreeSet;

pub(super) const COMMANDS: &[Command] = &[
    Command::control("PSUBSCRIBE", -2, |call| subscribe(call, PATTERNS)),
    Command::keyless("PUBLISH", 3, |call| Ok(publish(call, false))),
    Command::keyless("PUBSUB|CHANNELS", -2, |call| channels(call, ALL)),
    Command::keyless("PUBSUB|NUMPAT", 2, |call| {
        let connections = call.state.connections.values();
        let patterns: BTreeSet<&Bytes> = connections.flat_map(|it| &it.patterns).collect();
        Ok(Reply::count(patterns.len()))
    }),
    Command::keyless("PUBSUB|NUMSUB", -2, |call| Ok(subscribers(call, ALL))),
    Command::keyless("PUBSUB|SHARDCHANNELS", -2, |call| channels(call, SHARD)),
    Command::keyless("PUBSUB|SHARDNUMSUB", -2, |call| Ok(subscribers(call, SHARD))),
    Command::control("PUNSUBSCRIBE", -1, |call| unsubscribe(call, PATTERNS)),
    Command::read("SPUBLISH", 3, |call| Ok(publish(call, true))),
    Command::control("SSUBSCRIBE", -2, |call| subscribe(call, SHARD)).with(Keys::All),
    Command::control("SUBSCRIBE", -2, |call| subscribe(call, ALL)),
    Command::control("SUNSUBSCRIBE", -1, |call| unsubscribe(call, SHARD)).with(Keys::All),
    Command::control("UNSUBSCRIBE", -1, |call| unsubscribe(call, ALL)),
];

/// What a connection can subscribe to.
#[derive(Clone, Copy)]
struct Channels {
    subscribe: &'static str,
    unsubscribe: &'static str,
    message: &'static str,
    of: fn(&mut Connection) -> &mut BTreeSet<Bytes>,
    /// The number of subscriptions that a connection is told.
    count: fn(&Connection) -> usize,
}

/// The channels of a whole cluster.
const ALL: Channels = Channels {
    subscribe: "subscribe",
    unsubscribe: "unsubscribe",
    message: "message",
    of: |connection| &mut connection.channels,
    count: |connection| connection.channels.len() + connection.patterns.len(),
};

/// All channels whose names fit a pattern.
const PATTERNS: Channels = Channels {
    subscribe: "psubscribe",
    unsubscribe: "punsubscribe",
    message: "pmessage",
    of: |connection| &mut connection.patterns,
    count: ALL.count,
};

/// The channels of one shard of a cluster.
const SHARD: Channels = Channels {
    subscribe: "ssubscribe",
    unsubscribe: "sunsubscribe",
    message: "smessage",
    of: |connection| &mut connection.shard_channels,
    count: |connection| connection.shard_channels.len(),
};

/// Sends a message to this server's subscribers, whose number it returns, and to other servers.
fn publish(call: &mut Call<'_>, is_sharded: bool) -> Reply {
    let (channel, text) = (call.args[1].clone(), call.args[2].clone());
    let message = Message { channel, text, is_sharded };
    let count = call.state.deliver(&message);
    match &mut call.state.mode {
        Mode::Cluster(view) => view.send(message),
        _ => call.state.replication.record(Change::Message(message)),
    }
    Reply::count(count)
}

impl State {
    /// Sends a message to this server's subscribers, and returns how often it was sent.
    pub(crate) fn deliver(&mut self, message: &Message) -> usize {
        if message.is_sharded {
            return self.send_to_channel(message, SHARD);
        }
        self.send_to_channel(message, ALL) + self.send_to_patterns(message)
    }

    /// Sends a message to all subscribers of its channel.
    fn send_to_channel(&mut self, message: &Message, kind: Channels) -> usize {
        let mut count = 0;
        for connection in self.connections.values_mut() {
            if (kind.of)(connection).contains(&message.channel) {
                count += 1;
                let name = Bytes::from(kind.message);
                let parts = [name, message.channel.clone(), message.text.clone()];
                connection.send(&Reply::Push(parts.map(Reply::Bulk).into()));
            }
        }
        count
    }

    /// Sends a message once for each subscribed pattern that fits its channel.
    fn send_to_patterns(&mut self, message: &Message) -> usize {
        let mut count = 0;
        let Message { channel, text, .. } = message;
        for connection in self.connections.values_mut() {
            let fitting = connection.patterns.iter().filter(|pattern| glob::fits(pattern, channel));
            for pattern in fitting.cloned().collect::<Vec<_>>() {
                count += 1;
                let name = Bytes::from(PATTERNS.message);
                let parts = [name, pattern, channel.clone(), text.clone()];
                connection.send(&Reply::Push(parts.map(Reply::Bulk).into()));
            }
        }
        count
    }

    /// Ends all subscriptions to some shard channels, whose slot has left, and tells it the
    /// subscribers.
    pub(crate) fn end_shard_channels(&mut self, is_ended: impl Fn(&Bytes) -> bool) {
        for connection in self.connections.values_mut() {
            let channels = connection.shard_channels.iter().filter(|channel| is_ended(channel));
            for channel in channels.cloned().collect::<Vec<_>>() {
                connection.shard_channels.remove(&channel);
                confirm(connection, SHARD, SHARD.unsubscribe, Reply::bulk(channel));
            }
        }
    }
}

fn subscribe(call: &mut Call<'_>, kind: Channels) -> Outcome {
    let new = &call.args[1..];
    let connection = call.connection()?;
    for channel in new {
        (kind.of)(connection).insert(channel.clone());
        confirm(connection, kind, kind.subscribe, Reply::bulk(channel.clone()));
    }
    Ok(Reply::Sent)
}

fn unsubscribe(call: &mut Call<'_>, kind: Channels) -> Outcome {
    let named = &call.args[1..];
    let connection = call.connection()?;
    let channels: Vec<Bytes> = if named.is_empty() {
        (kind.of)(connection).iter().cloned().collect()
    } else {
        named.to_vec()
    };
    if channels.is_empty() {
        confirm(connection, kind, kind.unsubscribe, Reply::Nil);
    }
    for channel in channels {
        (kind.of)(connection).remove(&channel);
        confirm(connection, kind, kind.unsubscribe, Reply::bulk(channel));
    }
    Ok(Reply::Sent)
}

/// Tells a connection what happened to its subscription, and how many it has.
fn confirm(connection: &mut Connection, kind: Channels, event: &str, channel: Reply) {
    let count = Reply::count((kind.count)(connection));
    connection.send(&Reply::Push(vec![Reply::bulk(event), channel, count]));
}

fn channels(call: &mut Call<'_>, kind: Channels) -> Outcome {
    if call.len() > 3 {
        return Err(super::unfit_subcommand("PUBSUB", &call.args[1]));
    }
    let pattern = call.args.get(2);
    let connections = call.state.connections.values_mut();
    let all: BTreeSet<Bytes> = connections.flat_map(|it| (kind.of)(it).clone()).collect();
    let fits = |name: &Bytes| pattern.is_none_or(|pattern| glob::fits(pattern, name));
    Ok(Reply::bulks(all.into_iter().filter(fits)))
}

fn subscribers(call: &mut Call<'_>, kind: Channels) -> Reply {
    let mut reply = Vec::new();
    for channel in &call.args[2..] {
        let connections = call.state.connections.values_mut();
        let count = connections.filter_map(|it| (kind.of)(it).contains(channel).then_some(()));
        reply.extend([Reply::bulk(channel.clone()), Reply::count(count.count())]);
    }
    Reply::Array(reply)
}
