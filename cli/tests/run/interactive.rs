//! Commands in a terminal: keys, job control, and the terminal after the end.

use std::process::Command;
use std::time::Duration;

use leasehold::Client;

use crate::command::PROGRAM;
use crate::harness::wait::holds_within;
use crate::harness::{Server, eventually, exists};
use crate::program::run;
use crate::terminal::Terminal;

/// A script that says that it runs, reads a line, and exits with 4.
const READING: &str = "echo \"it \"runs; read -r line; echo \"read <$line>\"; exit 4";

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

fn terminal(command: &Command) -> Terminal {
    Terminal::start(command, 24, 80)
}

/// Starts a shell with job control, in which `$run` is `leasehold run`.
fn shell(server: &Server) -> Terminal {
    let mut command = Command::new("sh");
    command.arg("-i").env("PS1", "prompt> ").env_remove("ENV").env("LEASEHOLD_URL", server.url());
    command.env("run", [PROGRAM, "run"].join(" "));
    let terminal = terminal(&command);
    terminal.wait_for_text("prompt>");
    terminal
}

/// Ends the shell; all processes of its jobs have ended.
fn exit(mut shell: Terminal) {
    shell.press("exit\r");
    shell.wait();
}

#[test]
fn an_interactive_command_has_the_terminal() {
    let server = Server::start();
    let mut terminal = terminal(&run(&server, &["x", "--", "sh", "-c", READING]));
    terminal.wait_for_text("it runs");
    eventually("the command is in the foreground", || {
        terminal.foreground().is_some_and(|group| group != terminal.pid())
    });
    terminal.press("text\r");
    terminal.wait_for_text("read <text>");
    assert_eq!(terminal.wait().code(), Some(4));
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let server = Server::start();
    let script = format!("trap 'echo one INT' INT; {READING}; ");
    // The read that the signal ends is repeated.
    let script = script.replace("read -r line;", "while ! read -r line; do :; done;");
    let mut terminal = terminal(&run(&server, &["x", "--", "sh", "-c", &script]));
    terminal.wait_for_text("it runs");
    terminal.press(CTRL_C);
    terminal.wait_for_text("one INT");
    terminal.press("text\r");
    terminal.wait_for_text("read <text>");
    assert_eq!(terminal.wait().code(), Some(4));
    assert_eq!(terminal.text().matches("one INT").count(), 1, "{}", terminal.framed());
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let server = Server::start();
    let mut shell = shell(&server);
    shell.press(&format!("$run x -- sh -c '{READING}'; echo code $?\r"));
    shell.wait_for_text("it runs");
    shell.press(CTRL_Z);
    shell.wait_for_text("Stopped");
    assert!(exists(&server, "x"));
    shell.press("fg\r");
    eventually("the command is in the foreground", || shell.foreground() != Some(shell.pid()));
    shell.press("text\r");
    shell.wait_for_text("read <text>");
    eventually("the shell is in the foreground", || shell.foreground() == Some(shell.pid()));
    assert!(!exists(&server, "x"));
    exit(shell);
}

#[test]
fn a_stop_that_is_longer_than_the_lease_ends_the_command() {
    let server = Server::start();
    let mut shell = shell(&server);
    shell.press(&format!("$run --lease 500ms x -- sh -c '{READING}'\r"));
    shell.wait_for_text("it runs");
    shell.press(CTRL_Z);
    shell.wait_for_text("Stopped");
    eventually("the lease ends", || !exists(&server, "x"));
    shell.press("fg; echo code $?\r");
    // If the stop came within a renewal, the server is the first to say so.
    let reasons = ["the lease expired", "the server no longer has the hold"];
    shell.wait_for("the reason of the loss", |screen| {
        reasons.iter().any(|reason| screen.contents().contains(reason))
    });
    shell.wait_for_text("code 75");
    exit(shell);
}

#[test]
fn ctrl_z_without_a_shell_stops_nothing() {
    let server = Server::start();
    let mut terminal = terminal(&run(&server, &["x", "--", "sh", "-c", READING]));
    terminal.wait_for_text("it runs");
    terminal.press(CTRL_Z);
    terminal.wait_for_text("^Z");
    terminal.press("text\r");
    terminal.wait_for_text("read <text>");
    assert_eq!(terminal.wait().code(), Some(4));
}

/// The first process of a PID namespace: its group and its session are outside, and have no ids.
#[test]
fn a_group_outside_of_the_namespace_keeps_the_terminal() {
    let namespace = ["--user", "--map-root-user", "--pid", "--fork"];
    let is_allowed = Command::new("unshare").args(namespace).arg("true").status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine allows no PID namespaces");
        return;
    }
    let server = Server::start();
    let script = "trap 'echo one INT; exit 5' INT; echo \"it \"runs; while :; do sleep 0.05; done";
    let mut command = Command::new("unshare");
    command.args(namespace).args([PROGRAM, "run", "x", "--", "sh", "-c", script]);
    command.env("LEASEHOLD_URL", server.url());
    let mut terminal = terminal(&command);
    terminal.wait_for_text("it runs");
    terminal.press(CTRL_Z);
    terminal.wait_for_text("^Z");
    terminal.press(CTRL_C);
    terminal.wait_for_text("one INT");
    assert_eq!(terminal.wait().code(), Some(5), "{}", terminal.framed());
}

#[test]
fn the_program_takes_the_terminal_back() {
    let server = Server::start();
    let mut command = Command::new("sh");
    let twice =
        "$0 run x -- true; $0 run x -- sh -c \"$1\"; echo code $?; read -r line; echo $line";
    command.args(["-c", twice]).args([PROGRAM, READING]).env("LEASEHOLD_URL", server.url());
    let mut terminal = terminal(&command);
    terminal.wait_for_text("it runs");
    terminal.press("text\r");
    terminal.wait_for_text("code 4");
    terminal.press("end\r");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn a_reader_of_the_output_keeps_the_terminal() {
    let server = Server::start();
    let mut shell = shell(&server);
    let reader = "(read -r data; read -r key </dev/tty; echo \"$data <$key>\"; cat)";
    shell.press(&format!("$run x -- sh -c 'echo data; exec sleep 60' | {reader}\r"));
    eventually("the command runs", || exists(&server, "x"));
    shell.press("key\r");
    shell.wait_for_text("data <key>");
    shell.press(CTRL_C);
    eventually("the command ends", || !exists(&server, "x"));
    eventually("the shell is in the foreground", || shell.foreground() == Some(shell.pid()));
    exit(shell);
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal_when_it_reads() {
    let server = Server::start();
    let mut shell = shell(&server);
    shell.press(&format!("$run x -- sh -c '{READING}' | cat\r"));
    shell.wait_for_text("it runs");
    shell.press("text\r");
    shell.wait_for_text("read <text>");
    eventually("the shell is in the foreground", || shell.foreground() == Some(shell.pid()));
    exit(shell);
}

/// Starts `run` with these words in the background, and `fg` when it has stopped.
fn stops_in_the_background_when_it_reads(words: &str) {
    let server = Server::start();
    let mut shell = shell(&server);
    shell.press(&format!("$run {words} -- sh -c '{READING}' &\r"));
    shell.wait_for_text("it runs");
    eventually("the shell knows of the stop", || {
        shell.press("jobs\r");
        holds_within(Duration::from_millis(200), || shell.text().contains("Stopped"))
    });
    shell.press("fg\r");
    eventually("the command is in the foreground", || shell.foreground() != Some(shell.pid()));
    shell.press("text\r");
    shell.wait_for_text("read <text>");
    eventually("the shell is in the foreground", || shell.foreground() == Some(shell.pid()));
    exit(shell);
}

#[test]
fn a_command_in_the_background_stops_when_it_reads() {
    stops_in_the_background_when_it_reads("x");
}

#[test]
fn a_run_inside_of_a_run_in_the_background_stops_when_it_reads() {
    stops_in_the_background_when_it_reads("x -- $run y");
}

#[test]
fn a_command_that_no_shell_would_continue_ends_when_it_needs_the_terminal() {
    let server = Server::start();
    let mut shell = shell(&server);
    for (round, ignored) in ["", "HUP", "HUP TERM"].into_iter().enumerate() {
        let traps =
            if ignored.is_empty() { ":".to_owned() } else { format!("trap \"\" {ignored}") };
        let script = format!("{traps}; echo \"round \"{round}; read -r line </dev/tty");
        // The parent ends, so that no shell controls the group.
        shell.press(&format!("($run x -- sh -c '{script}' &)\r"));
        shell.wait_for_text(&format!("round {round}"));
        eventually("the command ends", || !exists(&server, "x"));
    }
    exit(shell);
}

#[test]
fn the_terminal_has_its_settings_after_a_command_was_killed() {
    let server = Server::start();
    let mut shell = shell(&server);
    let script = "trap \"\" TERM; stty raw -echo; echo it runs; read -r line";
    shell.press(&format!("$run --lease 300ms x -- sh -c '{script}'; echo code $?\r"));
    eventually("the command sets the mode", || !shell.edits_lines());
    let () = server.ask(&["FLUSHALL"]);
    shell.wait_for_text("code 75");
    assert!(shell.edits_lines());
    exit(shell);
}

#[test]
fn the_terminal_has_its_settings_after_another_program_killed_the_command() {
    let server = Server::start();
    let mut shell = shell(&server);
    shell.press("$run x -- sh -c 'stty raw -echo; kill -KILL $$'; echo code $?\r");
    shell.wait_for_text("code 137");
    assert!(shell.edits_lines());
    exit(shell);
}

#[test]
fn ctrl_c_and_ctrl_z_reach_a_waiting_program() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let lock = client.lock("x");
    let guard = lock.lock().expect("the lock is free");
    let mut shell = shell(&server);
    let waits = || lock.waiting().expect("the server answers").processes() > 0;
    shell.press("$run x -- echo no; echo code $?\r");
    eventually("the program waits", waits);
    shell.press(CTRL_C);
    // A shell may stop its list of commands at Ctrl-C.
    eventually("the shell is in the foreground", || shell.foreground() == Some(shell.pid()));
    eventually("the program no longer waits", || !waits());
    shell.press("$run x -- echo \"it \"runs\r");
    eventually("the program waits", waits);
    shell.press(CTRL_Z);
    shell.wait_for_text("Stopped");
    guard.unlock().expect("the lock was held");
    shell.press("fg\r");
    shell.wait_for_text("it runs");
    exit(shell);
}
