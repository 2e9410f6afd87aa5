//! `leasehold top` in a pseudo-terminal.

#[path = "../../../tests/harness/mod.rs"]
mod harness;
#[path = "../support/terminal.rs"]
mod terminal;

use std::process::Command;

use terminal::Terminal;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn a_terminal_of_a_test_has_a_size_keys_and_a_foreground() {
    let script = "stty size; read x; echo got $x; stty size; stty raw; read y; exit 7";
    let mut terminal = Terminal::start(&shell(script), 24, 80);
    terminal.wait_for_text("24 80");
    assert!(terminal.edits_lines());
    assert_eq!(terminal.foreground(), Some(terminal.pid()));
    terminal.resize(30, 100);
    terminal.press("abc\r");
    terminal.wait_for_text("got abc");
    terminal.wait_for_text("30 100");
    harness::eventually("the shell sets the mode", || !terminal.edits_lines());
    terminal.press("\n");
    assert_eq!(terminal.wait().code(), Some(7));
}

#[test]
fn the_end_of_a_terminal_ends_all_processes_of_its_session() {
    let script = "trap '' HUP TERM; sleep 600 & echo $!; exec sleep 600";
    let terminal = Terminal::start(&shell(script), 24, 80);
    terminal.wait_for("a process id", |screen| screen.contents().trim().parse::<u32>().is_ok());
    let process = format!("/proc/{}/stat", terminal.text().trim());
    drop(terminal);
    // A process that has ended may still wait for its parent: state Z.
    let runs = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z"));
    harness::eventually("the process ends", || !runs());
}
