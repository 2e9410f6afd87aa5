//! Tests of the verbs that print: `ls`, `show`, `watch`, `force`, `audit`.

#[path = "../support/command.rs"]
mod command;
use leasehold_harness as harness;

mod audit;
mod errors;
mod force;
mod ls;
mod once;
mod program;
mod show;
mod topologies;
mod watch;
