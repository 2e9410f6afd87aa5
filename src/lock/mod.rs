//! The public locks and guards.
//!
//! May import every folder except `client`. Read [`handle`] and [`guard`] first: all kinds share
//! their verbs and guards. Continue with [`rw_lock`], then [`multi_guard`], [`multi_lock`] and
//! [`red_lock`].

pub(crate) mod force_unlock;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod multi_guard;
pub(crate) mod multi_lock;
mod multi_verbs;
pub(crate) mod red_lock;
pub(crate) mod rw_lock;
