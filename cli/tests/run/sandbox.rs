//! A sandbox that refuses system calls which `run` can do without.

use crate::harness::{Server, exists, refusals};
use crate::program::{Running, run};
use crate::terminal::Terminal;

#[test]
fn a_command_runs_without_a_signal_for_the_death_of_its_parent() {
    let server = Server::start();
    let mut command = run(&server, &["--min-hold", "1h", "x", "--", "sh", "-c", "exit 4"]);
    let (name, library) = refusals();
    command.env(name, library);
    let end = Running::start(command).finish();
    assert!(end.errors.contains("the system refuses PR_SET_PDEATHSIG"), "{end:?}");
    assert_eq!(end.code(), 4);
    assert!(exists(&server, "x"));
}

#[test]
fn a_command_runs_without_its_terminal() {
    let server = Server::start();
    let mut command = run(&server, &["x", "--", "sh", "-c", "echo \"it \"runs; exit 4"]);
    let (name, library) = refusals();
    command.env(name, library);
    let mut terminal = Terminal::start(&command, 24, 100);
    terminal.wait_for_text("the system refuses to give the terminal");
    terminal.wait_for_text("it runs");
    assert_eq!(terminal.wait().code(), Some(4));
}
