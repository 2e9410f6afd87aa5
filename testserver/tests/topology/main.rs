//! Several servers whose owner carries everything between them: a master with replicas, sentinels,
//! and a cluster.

mod clients;
mod cluster;
mod real;
mod replication;
#[path = "../differential/requests.rs"]
mod requests;
mod sentinel;
#[path = "../wire/mod.rs"]
mod wire;
