//! The targets of log lines, one per subject. Programs filter by them, so they stay stable.
//!
//! The section "Logging" of the crate documentation has the levels and keys of each target.
//! `tests/api/logging.rs` compares it with the code.

/// Leases of single locks: losses, overdue holds, failed renewals, releases and clean-ups.
pub(crate) const LEASE: &str = "leasehold::lease";

/// Connections to servers, and the messages and polls that waiting callers need.
pub(crate) const CONNECTION: &str = "leasehold::connection";

/// Sentinel, Cluster, fail-overs, sharded pub/sub.
pub(crate) const TOPOLOGY: &str = "leasehold::topology";

/// Servers whose configuration endangers locks.
pub(crate) const AUDIT: &str = "leasehold::audit";

/// Events that were dropped, and panics of the program's callbacks.
pub(crate) const EVENTS: &str = "leasehold::events";

/// Threads of a client: start, panic, close.
pub(crate) const CLIENT: &str = "leasehold::client";
