//! Replicas, Sentinel, Cluster, TLS, and the audit of servers.

use leasehold_harness as harness;

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
