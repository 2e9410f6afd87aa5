//! What happens when servers, connections, threads and processes fail.

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
