//! Servers, connections, threads and processes that fail.

#[path = "../harness/mod.rs"]
mod harness;

mod fake_server;
mod lost_replies;
mod malformed_replies;
mod outages;
mod processes;
mod refusals;
mod stale_connections;
mod stress;
mod watchdog;
