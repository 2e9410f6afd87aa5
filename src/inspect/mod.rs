//! Queries about the holders of locks and about waiting callers.
//!
//! Reading order: [`lock_state`] (the hash of one lock, and its holders), [`holder`] and [`info`]
//! (the public types), [`query`] (the commands), [`live`] (questions to running processes),
//! [`locks`] (the search for locks by a pattern), [`watch`] (looks at locks with known names),
//! [`permits`] (semaphores), [`leader`] (elections). Imports `engine` and below.
//!
//! Nothing here changes a lock, or subscribes to the channel of a lock: a subscriber counts as a
//! waiting process, to which holders yield. A query reads the lock in one round trip, and the
//! records of the holders' clients in a second round trip ([`query::Inspector`]). Then it sends
//! questions to the clients with a record.

#[cfg(all(test, not(leasehold_model)))]
mod fuzz;
pub(crate) mod holder;
pub(crate) mod info;
pub(crate) mod leader;
pub(crate) mod live;
mod lock_state;
pub(crate) mod locks;
mod pattern;
pub(crate) mod permits;
pub(crate) mod query;
#[cfg(feature = "serde")]
mod serialize;
pub(crate) mod watch;

pub(crate) use lock_state::Side;
