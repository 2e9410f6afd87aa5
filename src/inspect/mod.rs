//! Queries about the holders of locks and about waiting callers.
//!
//! [`live`] asks running processes for details about their holds. Imports `engine` and below.

pub(crate) mod live;
