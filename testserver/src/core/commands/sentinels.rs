//! What clients ask a sentinel.

use super::super::replication::Address;
use super::super::resp::{Reply, text_of};
use super::super::sentinel::Watched;
use super::super::state::Mode;
use super::{Call, Command};

pub(super) const COMMANDS: &[Command] = &[
    Command::control("SENTINEL|GET-MASTER-ADDR-BY-NAME", 3, |call| {
        let watched = watched(call).ok();
        Ok(watched.map_or(Reply::NilArray, |Watched { address, .. }| {
            Reply::bulks([address.host.clone(), address.port.to_string()])
        }))
    }),
    Command::control("SENTINEL|MASTER", 3, |call| {
        let name = text_of(&call.args[2]);
        watched(call).map(|watched| master(&name, watched))
    }),
    Command::control("SENTINEL|REPLICAS", 3, |call| {
        let watched = watched(call)?;
        let replicas = watched.replicas.iter().map(|address| replica(address, &watched.address));
        Ok(Reply::Array(replicas.collect()))
    }),
    Command::control("SENTINEL|SENTINELS", 3, |call| {
        Ok(Reply::Array(watched(call)?.sentinels.iter().map(sentinel).collect()))
    }),
];

/// The commands that a sentinel has, without its own.
pub(super) const OF_SENTINELS: &[&str] = &[
    "AUTH",
    "CLIENT",
    "HELLO",
    "PING",
    "PSUBSCRIBE",
    "PUNSUBSCRIBE",
    "ROLE",
    "SENTINEL",
    "SHUTDOWN",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
];

/// Returns what the sentinel knows of the master that the second argument names.
fn watched<'a>(call: &'a Call<'_>) -> Result<&'a Watched, String> {
    let watched = match &call.state.mode {
        Mode::Sentinel(masters) => masters.get(&text_of(&call.args[2])),
        Mode::Standalone | Mode::Cluster(_) => None,
    };
    watched.ok_or_else(|| "ERR No such master with that name".to_owned())
}

/// Returns the fields of a report about one server: those of every report, then its own.
fn report(name: &str, address: &Address, flags: &str, own: Vec<(&str, String)>) -> Reply {
    let common = [
        ("name", name.to_owned()),
        ("ip", address.host.clone()),
        ("port", address.port.to_string()),
        ("runid", String::new()),
        ("flags", flags.to_owned()),
        ("link-pending-commands", "0".to_owned()),
        ("link-refcount", "1".to_owned()),
        ("last-ping-sent", "0".to_owned()),
        ("last-ok-ping-reply", "0".to_owned()),
        ("last-ping-reply", "0".to_owned()),
        ("down-after-milliseconds", "30000".to_owned()),
    ];
    let fields = common.into_iter().chain(own);
    Reply::Map(fields.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect())
}

fn master(name: &str, watched: &Watched) -> Reply {
    let (replicas, sentinels) = (watched.replicas.len(), watched.sentinels.len());
    let own = vec![
        ("info-refresh", "0".to_owned()),
        ("role-reported", "master".to_owned()),
        ("role-reported-time", "0".to_owned()),
        ("config-epoch", watched.epoch.to_string()),
        ("num-slaves", replicas.to_string()),
        ("num-other-sentinels", sentinels.to_string()),
        ("quorum", (sentinels.div_ceil(2) + 1).to_string()),
        ("failover-timeout", "180000".to_owned()),
        ("parallel-syncs", "1".to_owned()),
    ];
    report(name, &watched.address, "master", own)
}

fn replica(address: &Address, master: &Address) -> Reply {
    let own = vec![
        ("info-refresh", "0".to_owned()),
        ("role-reported", "slave".to_owned()),
        ("role-reported-time", "0".to_owned()),
        ("master-link-down-time", "0".to_owned()),
        ("master-link-status", "ok".to_owned()),
        ("master-host", master.host.clone()),
        ("master-port", master.port.to_string()),
        ("slave-priority", "100".to_owned()),
        ("slave-repl-offset", "0".to_owned()),
        ("replica-announced", "1".to_owned()),
    ];
    report(&address.to_string(), address, "slave", own)
}

fn sentinel(address: &Address) -> Reply {
    let own = vec![
        ("last-hello-message", "0".to_owned()),
        ("voted-leader", "?".to_owned()),
        ("voted-leader-epoch", "0".to_owned()),
    ];
    report(&address.to_string(), address, "sentinel", own)
}
