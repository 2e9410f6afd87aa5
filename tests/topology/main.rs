//! Replicas, Sentinel, Cluster, TLS, and the audit of servers.

use leasehold::{Client, OwnedGuard};
use leasehold_harness as harness;

use crate::harness::{Server, eventually};

mod announcements;
mod audit;
mod cluster;
mod counts;
mod dead_holders;
mod election;
mod fairness;
mod holders;
mod inspection;
mod once;
mod queued;
mod reach;
mod replicas;
mod semaphores;
mod sentinel;
mod slots;
mod tls;

/// Takes these locks.
fn lock_all(client: &Client, names: &[String]) -> Vec<OwnedGuard> {
    names.iter().map(|name| client.lock(name).lock_owned().expect("the lock is free")).collect()
}

/// Returns the number of subscribers of a channel at all running nodes, sharded or not.
fn subscribers(nodes: &[Server], channel: &str) -> usize {
    nodes.iter().map(|node| node.listeners(channel)).sum()
}

/// Blocks until a channel has one subscriber, at any running node.
#[track_caller]
fn await_subscriber(nodes: &[Server], channel: &str) {
    eventually("the channel has one subscriber", || subscribers(nodes, channel) == 1);
}
