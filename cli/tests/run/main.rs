//! `leasehold run`, `leasehold once` and the command line: real servers, real signals, real
//! terminals.
#![allow(missing_docs, reason = "tests")]

#[path = "../support/command.rs"]
mod command;
use leasehold_harness as harness;
#[path = "../support/terminal.rs"]
mod terminal;

mod addresses;
mod command_line;
mod death;
mod exit_codes;
mod holder;
mod interactive;
mod kinds;
mod loss;
mod once;
mod program;
mod sandbox;
mod signals;
mod waiting;
