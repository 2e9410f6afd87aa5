//! Models of the wait loop: what a caller does with what it knows.
//!
//! The loop itself speaks with an engine, so the models have a small one of their
//! own, [`visitor`], which does the same steps with the same parts: the gate and the
//! holds (`local.rs`, `lease.rs`), the questions (this file's parent) and the
//! channel (`waiters.rs`).

mod messages;
mod process;
mod visitor;
