//! What is sent to Redis: scripts and packed commands, the names of keys and channels, the
//! owner fields of locks.
//!
//! Imports only `error` and `util`. Read [`script`] first (commands and replies), then [`owner`]
//! and [`name`], which make the bytes that other clients read.

pub(crate) mod call;
pub(crate) mod name;
pub(crate) mod owner;
pub(crate) mod reply;
pub(crate) mod script;
