//! Channels: subscriptions and messages.

use super::super::glob;
use super::super::resp::{Bytes, Reply};
use super::super::state::{Connection, State};
use super::{Call, Command, Outcome};
use std::collections::BTreeSet;

pub(super) const COMMANDS: &[Command] = &[
    Command::control("PSUBSCRIBE", -2, |call| subscribe(call, PATTERNS)),
    Command::read("PUBLISH", 3, |call| {
        let (channel, message) = (&call.args[1], &call.args[2]);
        let subscribers = publish(call.state, channel, message, ALL);
        Ok(Reply::count(subscribers + publish_to_patterns(call.state, channel, message)))
    }),
    Command::read("PUBSUB|CHANNELS", -2, |call| channels(call, ALL)),
    Command::read("PUBSUB|NUMPAT", 2, |call| {
        let connections = call.state.connections.values();
        let patterns: BTreeSet<&Bytes> = connections.flat_map(|it| &it.patterns).collect();
        Ok(Reply::count(patterns.len()))
    }),
    Command::read("PUBSUB|NUMSUB", -2, |call| Ok(subscribers(call, ALL))),
    Command::read("PUBSUB|SHARDCHANNELS", -2, |call| channels(call, SHARD)),
    Command::read("PUBSUB|SHARDNUMSUB", -2, |call| Ok(subscribers(call, SHARD))),
    Command::control("PUNSUBSCRIBE", -1, |call| unsubscribe(call, PATTERNS)),
    Command::read("SPUBLISH", 3, |call| {
        Ok(Reply::count(publish(call.state, &call.args[1], &call.args[2], SHARD)))
    }),
    Command::control("SSUBSCRIBE", -2, |call| subscribe(call, SHARD)),
    Command::control("SUBSCRIBE", -2, |call| subscribe(call, ALL)),
    Command::control("SUNSUBSCRIBE", -1, |call| unsubscribe(call, SHARD)),
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

/// Sends a message to all subscribers of a channel, and returns their number.
fn publish(state: &mut State, channel: &Bytes, message: &Bytes, kind: Channels) -> usize {
    let mut count = 0;
    for connection in state.connections.values_mut() {
        if (kind.of)(connection).contains(channel) {
            count += 1;
            let parts = [Bytes::from(kind.message), channel.clone(), message.clone()];
            connection.send(&Reply::Push(parts.map(Reply::Bulk).into()));
        }
    }
    count
}

/// Sends a message once for each subscribed pattern that fits its channel, and returns their
/// number.
fn publish_to_patterns(state: &mut State, channel: &Bytes, message: &Bytes) -> usize {
    let mut count = 0;
    for connection in state.connections.values_mut() {
        let fitting = connection.patterns.iter().filter(|pattern| glob::fits(pattern, channel));
        for pattern in fitting.cloned().collect::<Vec<_>>() {
            count += 1;
            let name = Bytes::from(PATTERNS.message);
            let parts = [name, pattern, channel.clone(), message.clone()];
            connection.send(&Reply::Push(parts.map(Reply::Bulk).into()));
        }
    }
    count
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
