//! Replicas, Sentinel, Cluster, TLS, and the audit of servers.

#[path = "../harness/mod.rs"]
mod harness;

mod announcements;
mod audit;
mod cluster;
mod counts;
mod election;
mod holders;
mod inspection;
mod queued;
mod replicas;
mod semaphores;
mod sentinel;
mod tls;
