//! The public handles and guards.
//!
//! Imports everything but `client`. Read [`handle`] and [`guard`] first: every kind has the verbs
//! and guards of these. Then [`multi_lock`] with [`batch`], [`red_lock`] with [`quorum`].

pub(crate) mod batch;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod multi_guard;
pub(crate) mod multi_lock;
pub(crate) mod quorum;
pub(crate) mod red_lock;
pub(crate) mod rw_lock;
