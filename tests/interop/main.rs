//! Locks that leasehold shares with Redisson, which runs in a Java process.

#[path = "../harness/mod.rs"]
mod harness;

mod java;
mod redisson;
mod redisson_topologies;
