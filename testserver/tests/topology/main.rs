//! Several servers whose owner carries everything between them: a master with replicas, sentinels,
//! and a cluster.

mod clients;
mod replication;
mod sentinel;
