//! The public interface of one client: settings, verbs, deadlines, errors, events.

#[path = "../harness/mod.rs"]
mod harness;

mod client;
mod deadlines;
mod detached;
mod errors;
mod events;
mod exact_deadlines;
mod hand_off;
mod lazy_start;
mod listeners;
mod log_targets;
mod names_and_arguments;
mod on_lost;
mod readme;
mod reentry;
mod self_deadlock;
mod stats;
mod verbs;
mod waiting;
