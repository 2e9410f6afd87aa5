//! `timeline`: pictures of observed locks and of recorded events.

#[path = "../support/command.rs"]
mod command;
use leasehold_harness as harness;

#[allow(dead_code, reason = "the tests of the verbs that print use the rest")]
#[path = "../views/program.rs"]
mod program;

mod failures;
mod observed;
mod picture;
mod recorded;
