//! Finds the servers, notices fail-overs, and audits the configuration of servers.
//!
//! Imports `connection`, `command` and folders below them. Read [`route`] first, then [`sentinel`]
//! and [`cluster`], which find servers. [`failover`] is the thread that watches for topology
//! changes, [`audit`] checks the configuration of each server. [`health`] knows which servers are
//! silent.

pub(crate) mod cluster;
pub(crate) mod failover;
pub(crate) mod health;
pub(crate) mod route;
pub(crate) mod sentinel;
