//! Finds the servers, and notices fail-overs and silent servers.
//!
//! Imports `connection` and below. Read [`route`] first, then [`sentinel`] and [`cluster`], which
//! find servers. [`failover`] is the thread that watches for topology changes. [`health`] knows
//! which servers are silent.

pub(crate) mod cluster;
pub(crate) mod failover;
pub(crate) mod health;
pub(crate) mod route;
pub(crate) mod sentinel;
