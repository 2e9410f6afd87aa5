//! Tests that count what a whole process has, or change it, or read its log.

#[path = "../harness/mod.rs"]
mod harness;

mod allocations;
mod fork;
mod leftovers;
mod panics;
mod permissions;
mod suspend;
