//! The metrics that the feature `metrics` exports.
//!
//! With the feature `metrics`, each change of a number of [`Stats`](crate::Stats) is exported at
//! once. Install the recorder before the first client is built: a client registers each metric at
//! its first use, with the recorder that is installed then. `examples/metrics.rs` exports the
//! metrics to Prometheus.
//!
//! | metric | number |
//! | --- | --- |
//! | `leasehold_lock_acquired_total` | [`Stats::acquired`](crate::Stats::acquired) |
//! | `leasehold_lock_passed_locally_total` | [`Stats::passed_locally`](crate::Stats::passed_locally) |
//! | `leasehold_lock_lingered_total` | [`Stats::lingered`](crate::Stats::lingered) |
//! | `leasehold_lock_freed_total` | [`Stats::freed`](crate::Stats::freed); label `kind` of the hold, `label` empty |
//! | `leasehold_lock_found_done_total` | [`Stats::found_done`](crate::Stats::found_done) |
//! | `leasehold_lock_released_total` | [`Stats::released`](crate::Stats::released) |
//! | `leasehold_lock_released_after_expiry_total` | [`Stats::released_after_expiry`](crate::Stats::released_after_expiry) |
//! | `leasehold_lock_lost_total` | [`Stats::lost`](crate::Stats::lost); label `reason`: `expired`, `gone`, `held_too_long` |
//! | `leasehold_lock_refused_total` | [`Stats::refused`](crate::Stats::refused) |
//! | `leasehold_lock_timed_out_total` | [`Stats::timed_out`](crate::Stats::timed_out) |
//! | `leasehold_lock_cancelled_total` | [`Stats::cancelled`](crate::Stats::cancelled) |
//! | `leasehold_lock_contended_total` | [`Stats::contended`](crate::Stats::contended) |
//! | `leasehold_lock_renewals_total` | [`Stats::renewals`](crate::Stats::renewals) |
//! | `leasehold_lock_renewal_failures_total` | [`Stats::renewal_failures`](crate::Stats::renewal_failures) |
//! | `leasehold_reconnects_total` | [`Stats::reconnects`](crate::Stats::reconnects); no labels |
//! | `leasehold_locks_held` | gauge, [`Stats::held_now`](crate::Stats::held_now) |
//! | `leasehold_locks_waiting` | gauge, [`Stats::waiting_now`](crate::Stats::waiting_now) |
//! | `leasehold_lock_wait_seconds` | histogram, [`Stats::wait_time`](crate::Stats::wait_time) |
//! | `leasehold_lock_hold_seconds` | histogram, [`Stats::hold_time`](crate::Stats::hold_time) |
//! | `leasehold_lock_renewal_lag_seconds` | histogram, [`Stats::renewal_lag`](crate::Stats::renewal_lag) |
//! | `leasehold_lock_round_trip_seconds` | histogram, [`Stats::round_trip`](crate::Stats::round_trip) |
//!
//! All clients of a process share the metrics. Every metric except `leasehold_reconnects_total` has
//! two labels:
//! - `kind`: `plain`, `named`, `fair`, `fenced`, `once`, `queue`, `read`, `write`, `spin`,
//!   `semaphore`, `plain_semaphore`, `latch`; `multi` and `red` for the calls of a
//!   [`MultiLock`](crate::MultiLock) and a [`RedLock`](crate::RedLock). Their holds have the kinds
//!   of the members.
//! - `label`: the text of [`Lock::with_label`](crate::Lock::with_label), empty for a handle without
//!   one. A call of a `MultiLock` counts for each client with the label that all members of this
//!   client share; the label is empty if their labels differ.
//!
//! The name of a lock is never a label, because the number of names has no bound.
//!
//! A hand-off between handles with different labels moves the hold from one label to the other in
//! `leasehold_locks_held`, and counts as passed locally for the label of the new holder. So does a
//! take-over of a hold that lingers, which counts as lingered. The release, the loss and the time of
//! the hold count for the label of the last holder. One command for several members of a
//! `MultiLock` counts its round trip for the first member. A panic of the recorder is caught and
//! logged.
