//! Where the servers are, and whether they are still the same.
//!
//! Imports `connection`, `command` and below. Read [`route`] first, then [`sentinel`] and
//! [`cluster`]; [`failover`] is the thread that looks for changes, [`audit`] looks how a server is
//! set up.

pub(crate) mod audit;
pub(crate) mod cluster;
pub(crate) mod failover;
pub(crate) mod route;
pub(crate) mod sentinel;
