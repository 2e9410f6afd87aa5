//! What the kinds of locks promise: all of them alike, and each by itself.

#[path = "../harness/mod.rs"]
mod harness;

mod conformance;
mod fair;
mod fenced;
mod holder_ids;
mod multi_lock;
mod read_write;
mod red_lock;
mod spin;
