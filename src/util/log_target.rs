//! The targets of log lines, one per subject. Programs filter by them, so they stay stable.
//!
//! The section "Logging" of the crate documentation has the levels and keys of each target.
//! `tests/api/log_targets.rs` compares it with the code.

/// Leases of single locks: losses, overdue holds, failed releases and clean-ups, waits for an owned
/// guard of the same thread.
pub(crate) const LEASE: &str = "leasehold::lease";

/// Outages, connections, subscriptions, heartbeats, polls, loads of scripts.
pub(crate) const CONNECTION: &str = "leasehold::connection";

/// Sentinel, Cluster, fail-overs, sharded pub/sub.
pub(crate) const TOPOLOGY: &str = "leasehold::topology";

/// Servers whose configuration endangers locks.
pub(crate) const AUDIT: &str = "leasehold::audit";

/// Dropped events, and panics of event listeners and closures.
pub(crate) const EVENTS: &str = "leasehold::events";

/// Threads of a client (start, panic, close), its client record, questions to processes.
pub(crate) const CLIENT: &str = "leasehold::client";
