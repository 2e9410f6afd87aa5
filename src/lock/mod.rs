//! The public locks and guards.
//!
//! May import every folder except `client`. Read [`handle`] and [`guard`] first: all kinds share
//! their verbs and guards. Continue with [`rw_lock`], then [`multi_guard`], [`multi_lock`] and
//! [`batch`], then [`quorum`] and [`red_lock`].

pub(crate) mod batch;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod multi_guard;
pub(crate) mod multi_lock;
pub(crate) mod quorum;
pub(crate) mod red_lock;
pub(crate) mod rw_lock;
