//! Servers, connections, threads and processes that fail.

use leasehold_harness as harness;

mod counts;
mod dead_holders;
mod election;
mod fake_server;
mod known_losses;
mod late_commands;
mod late_grants;
mod lingering;
mod lost_replies;
mod malformed_replies;
mod outages;
mod processes;
mod queued;
mod refusals;
mod semaphores;
mod storms;
mod stress;
mod watchdog;
