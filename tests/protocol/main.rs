//! The bytes on the wire: scripts, keys, permissions, subscriptions.

use leasehold_harness as harness;

mod calls_of_the_semaphores;
mod messages;
mod models_of_counts;
mod permissions_of_kinds;
mod permissions_of_queries;
mod polls;
mod scripts;
mod scripts_of_elections;
mod scripts_of_kinds;
mod scripts_of_the_counts;
mod scripts_of_the_queue;
mod scripts_of_the_semaphores;
mod sequences;
mod wire;
