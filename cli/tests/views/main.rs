//! Tests of the verbs that print: `ls`, `show`, `watch`, `force`, `audit`.

#[path = "../support/command.rs"]
mod command;
#[path = "../../../tests/harness/mod.rs"]
mod harness;

mod audit;
mod errors;
mod force;
mod ls;
mod program;
mod show;
mod topologies;
mod watch;
