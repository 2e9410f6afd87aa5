//! What happens when servers, connections, threads and processes fail.

#[path = "../harness/mod.rs"]
mod harness;

mod late_commands;
mod lost_replies;
mod malformed_replies;
mod outages;
mod processes;
mod stress;
mod watchdog;
