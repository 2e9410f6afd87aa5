//! The public interface of one client: settings, verbs, deadlines, errors, events.

use leasehold_harness as harness;

mod client;
mod client_record;
mod counts;
mod deadlines;
mod detached;
mod errors;
mod events;
mod exact_deadlines;
mod fairness;
mod force_unlock;
mod hand_off;
mod holders;
mod lazy_start;
mod listeners;
mod live_details;
mod lock_info;
mod lock_watch;
mod locks;
mod log_targets;
mod max_hold;
mod min_hold;
mod names_and_arguments;
mod on_lost;
mod readme;
mod reentry;
mod renewed_lease;
mod self_deadlock;
mod serialization;
mod stats;
mod verbs;
mod waiting;
