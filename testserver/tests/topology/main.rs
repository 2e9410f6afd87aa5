//! Several servers whose owner carries everything between them: a master with replicas, sentinels,
//! and a cluster.

mod clients;
mod cluster;
mod real;
mod replication;
mod sentinel;
#[path = "../wire/mod.rs"]
mod wire;
