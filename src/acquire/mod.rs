//! The acquire of every kind of lock and every verb, and the release of holds.
//!
//! Reading order: `call.rs` (one call of a verb), `acquirer.rs` (a caller that asks for a new
//! hold), `question.rs` (its question for the [loop](crate::wait), and the acquire command),
//! `handle.rs` (a guard's share of a hold), `release.rs` (the end of a share), `commit.rs` (the end
//! that leaves a result). Imports: `wait` and below.

mod acquirer;
mod call;
mod commit;
mod handle;
#[cfg(all(test, leasehold_model))]
mod model;
mod question;
mod release;

pub(crate) use acquirer::{Acquirer, GrantReply};
pub(crate) use call::{AcquireCall, AcquireOptions, CallEntry, REPLY_GRACE, Taken};
pub(crate) use handle::{HoldHandle, LockContext, checked_lease};
pub(crate) use release::{PendingRelease, not_held};
