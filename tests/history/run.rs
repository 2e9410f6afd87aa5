//! One run from its start to its report.

use super::checks::{Bounds, Disturbance, History, Stall};
use super::deployment::Deployment;
use super::fault::Fault;
use super::left::{self, Inspected};
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
use std::time::Instant;

/// The delay that a busy machine may add: two processors serve about thirty processes.
const SLACK: Nanos = millis(1500);

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
    let mut left = left::by_idle_workers(plan, || deployment.masters());
    let (disturbances, counts) =
        (nemesis.schedule.disturbances, left::counts(|| deployment.masters()));
    let (bounds, mut stalls) = (Bounds::of(plan, SLACK), probe.finish());
    stalls.extend(deployment.members.waits().into_iter().map(stalls::between));
    // A server that a fault stops is no stall of the machine.
    let stops = |it: &Disturbance, stall: &Stall| {
        it.name.starts_with("Stop") && it.from <= stall.to && stall.from <= it.until
    };
    stalls.retain(|stall| !disturbances.iter().any(|it| stops(it, stall)));
    let mut history = History { disturbances, stalls, bounds, counts, ..History::default() };
    for (worker, records) in workers.finish() {
        history.add(worker, records);
    }
    history.add_long_stalls();
    left.append(&mut workers.leftovers);
    if left.is_empty() {
        let arguments = Arguments::beside_workers(plan, |it| deployment.add_addresses(it));
        let acquire = |abandoned| acquire_all_once(&arguments, abandoned);
        let may_be_capacity = |lock: &str, free| history.may_have_capacity(lock, free);
        left = left::by_ended_workers(&deployment.masters(), may_be_capacity, acquire);
    }
    Report::of(plan, &history, store::accounts(&store), &left)
}

impl Inspected for &Server {
    fn keys(&self) -> Vec<String> {
        Server::keys(self)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.try_ask(&["GET", key])
    }

    fn channels(&self) -> Vec<String> {
        let sharded: Option<Vec<String>> = self.try_ask(&["PUBSUB", "SHARDCHANNELS"]);
        Server::channels(self).into_iter().chain(sharded.unwrap_or_default()).collect()
    }

    fn connections(&self) -> Vec<String> {
        let clients = self.clients().into_iter();
        let ours = clients.filter(|client| client.name.starts_with("leasehold:"));
        ours.map(|client| format!("{client:?}")).collect()
    }
}
