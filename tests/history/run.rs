//! One run from its start to its report.

use super::checks::{Bounds, Disturbance, History, Stall};
use super::deployment::Deployment;
use super::fault::Fault;
use super::left;
use super::nemesis::Nemesis;
use super::plan::Plan;
use super::program::{Arguments, acquire_all_once};
use super::record::millis;
use super::report::Report;
use super::stalls::{self, Probe};
use super::store;
use super::system::Nanos;
use super::workers::Workers;
use crate::harness::Server;
use crate::harness::wait::holds_within;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The delay that a busy machine may add: two processors serve about thirty processes.
const SLACK: Nanos = millis(1500);

/// The time within which idle workers complete requests in the background, which do not reconnect
/// at once.
const COMPLETED: Duration = Duration::from_secs(25);

/// Runs a plan and checks its history.
pub fn run(plan: &Plan) -> Report {
    let (deployment, store) = (Deployment::start(plan.layout), Server::start());
    let sockets = deployment.servers().iter().map(|server| server.path("redis.sock"));
    let probe = Probe::start(sockets);
    let mut workers = Workers::start(plan, &deployment, store.url());
    let mut nemesis = Nemesis::new(plan, &deployment);
    let end = Instant::now() + plan.span;
    while Instant::now() < end || !nemesis.schedule.has_injected_all() {
        nemesis.inject(&mut workers);
    }
    nemesis.rest();
    workers.stop_work();
    nemesis.record_unexplained_change(Fault::Quiet);
    let mut left = left_by_idle_workers(plan, &deployment);
    let (disturbances, counts) = (nemesis.schedule.disturbances, counts(&deployment));
    let (bounds, mut stalls) = (Bounds::of(plan, SLACK), probe.finish());
    stalls.extend(deployment.members.waits().into_iter().map(stalls::between));
    // A server that a fault stops is no stall of the machine.
    let stops = |it: &Disturbance, stall: &Stall| {
        it.name.starts_with("Stop") && it.from <= stall.to && stall.from <= it.until
    };
    stalls.retain(|stall| !disturbances.iter().any(|it| stops(it, stall)));
    let mut history = History { disturbances, stalls, bounds, counts, ..History::default() };
    workers.finish().for_each(|(worker, records)| history.add(worker, records));
    history.add_long_stalls();
    left.append(&mut workers.leftovers);
    if left.is_empty() {
        left = left_by_ended_workers(plan, &deployment);
    }
    Report::of(plan, &history, store::accounts(&store), &left)
}

/// Returns the locks and subscriptions in Redis when the workers are idle but still run.
fn left_by_idle_workers(plan: &Plan, deployment: &Deployment) -> Vec<String> {
    let mut left = Vec::new();
    holds_within(left::idle_time(plan), || {
        let masters = deployment.masters();
        let keys = masters.iter().flat_map(|master| used_keys(master));
        let keys = keys.filter(|key| !left::is_kept_by_idle_workers(plan, key));
        let channels = masters.iter().flat_map(|master| channels(master));
        let channels = channels.filter(|name| left::is_left_by_idle_workers(plan, name));
        left = keys.chain(channels).map(|what| format!("idle, but there is {what}")).collect();
        left.is_empty()
    });
    left
}

/// Returns the keys of a server but those of semaphores without permits in use.
fn used_keys(server: &Server) -> impl Iterator<Item = String> {
    let is_used = |key: &String| left::is_used(key, || server.try_ask(&["GET", key]));
    server.keys().into_iter().filter(is_used)
}

/// Returns the count of each plain semaphore and latch.
///
/// Waits a while until all permits are free: idle workers complete requests without an answer in
/// the background. Killed workers may keep permits.
fn counts(deployment: &Deployment) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    holds_within(COMPLETED, || {
        counts = present_counts(deployment);
        counts.iter().all(|(name, count)| left::is_free(name, *count))
    });
    counts
}

fn present_counts(deployment: &Deployment) -> BTreeMap<String, i64> {
    let masters = deployment.masters();
    let of_server = |server: &&Server| {
        let keys = server.keys().into_iter().filter(|key| left::is_count(key));
        let read = |key: String| Some((server.try_ask::<i64>(&["GET", &key])?, key));
        keys.filter_map(read).map(|(free, key)| (key, free)).collect::<Vec<_>>()
    };
    masters.iter().flat_map(of_server).collect()
}

/// Returns the channels with subscribers, sharded channels included.
fn channels(server: &Server) -> impl Iterator<Item = String> {
    let sharded: Option<Vec<String>> = server.try_ask(&["PUBSUB", "SHARDCHANNELS"]);
    server.channels().into_iter().chain(sharded.unwrap_or_default())
}

/// Acquires every lock once after all workers have ended, and returns the leftovers in Redis.
fn left_by_ended_workers(plan: &Plan, deployment: &Deployment) -> Vec<String> {
    let mut arguments = Arguments::new(&plan.work, 0, plan.seed, String::new());
    deployment.add_addresses(&mut arguments);
    let masters = deployment.masters();
    let keys = masters.iter().flat_map(|master| master.keys());
    let abandoned = keys.filter_map(|key| left::abandoned(&key)).collect();
    let mut left = acquire_all_once(&arguments, abandoned);
    let mut on_servers = Vec::new();
    holds_within(Duration::from_secs(20), || {
        on_servers = masters.iter().flat_map(|master| left_on(master)).collect();
        on_servers.is_empty()
    });
    left.append(&mut on_servers);
    left
}

fn left_on(server: &Server) -> Vec<String> {
    let keys = used_keys(server).filter(|key| !left::is_kept_by_ended_workers(key));
    let keys = keys.map(|key| format!("the key {key}"));
    let channels = channels(server).filter(|name| !left::is_kept_channel(name));
    let channels = channels.map(|channel| format!("the channel {channel}"));
    let ours = server.clients().into_iter().filter(|client| client.name.starts_with("leasehold:"));
    keys.chain(channels).chain(ours.map(|client| format!("the client {client:?}"))).collect()
}
