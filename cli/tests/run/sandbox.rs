//! A sandbox that refuses system calls which `run` can do without.

use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::command::{PROGRAM, leasehold};
use crate::harness::replicated::MASTER;
use crate::harness::{Direction, Flow, Proxy, Replicated, Server, refusals, refusals_and_signals};
use crate::program::{Running, run};
use crate::terminal::Terminal;

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

/// Reads have no time-out of the system, and signals interrupt them.
#[test]
fn a_signal_ends_the_wait_for_a_reply() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    proxy.on_request(b"silent", Direction::Replies, Flow::Swallow);
    let mut command = leasehold();
    let (name, library) = refusals_and_signals();
    command.env(name, library).args(["run", "--url", &proxy.url(), "silent", "--", "true"]);
    let running = Running::start(command);
    proxy.wait_until("no reply arrives", |stats| stats.replies.swallowed > 0);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), 143);
}

/// Each limit leaves room for one thread more than the limit before. Without room for the thread
/// that connects, the server counts as unreachable.
#[test]
fn too_few_threads_are_no_wrong_usage_and_no_loss() {
    if !geteuid().is_root() {
        // The limit counts all threads of a user: only root has another user without any.
        return;
    }
    let servers = Replicated::start(0, 1);
    let user = 1_000_000_000 + std::process::id();
    let codes = (1..=14).map(|limit| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--clear-groups", "bash", "-c"]);
        command.args([&format!("ulimit -u {limit}; exec \"$@\""), "bash", PROGRAM, "run"]);
        command.args(["--sentinel", MASTER, "--url", &servers.sentinel_urls().join(",")]);
        command.args(["x", "--", "sh", "-c", "exit 4"]);
        let end = Running::start(command).finish();
        assert!([4, 69, 70].contains(&end.code()), "{limit}: {end:?}");
        end.code()
    });
    let codes: Vec<_> = codes.collect();
    assert!(codes.first() == Some(&70) && codes.last() == Some(&4), "{codes:?}");
}
