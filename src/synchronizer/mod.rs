//! Public handles of semaphores and latches.
//!
//! `handle.rs` has the parts that plain semaphores and latches share. Imports `count` and below.

mod handle;
pub(crate) mod latch;
pub(crate) mod plain;
