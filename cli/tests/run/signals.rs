//! Signals while the command runs, and around its start.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::command::PROGRAM;
use crate::harness::wait::holds_within;
use crate::harness::{Server, eventually, exists};
use crate::program::{Running, TRAPPING, UNTIL_INPUT, group_ends, has_processes, run};

const FORWARDED: [(&str, Signal); 11] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
];

/// The signals below those that the C library uses itself: glibc ignores one in new processes.
const OF_PROGRAMS: u64 = (1 << 31) - 1;

#[test]
fn signals_are_forwarded_to_the_command() {
    let server = Server::start();
    let traps: String =
        FORWARDED.iter().map(|(name, _)| format!("trap 'echo {name}' {name};")).collect();
    let running = Running::script(&server, &["x"], &(traps + TRAPPING));
    for (name, signal) in FORWARDED {
        running.signal(signal);
        assert_eq!(running.line(), name);
    }
    assert_eq!(running.finish().code(), 5);
}

#[test]
fn cont_is_forwarded_and_follows_term_and_hup() {
    let server = Server::start();
    let script = format!("trap '' TERM HUP; trap 'echo CONT' CONT;{TRAPPING}");
    let running = Running::script(&server, &["x"], &script);
    for signal in [Signal::CONT, Signal::TERM, Signal::HUP] {
        running.signal(signal);
        assert_eq!(running.line(), "CONT");
    }
    assert_eq!(running.finish().code(), 5);
}

#[test]
fn a_signal_that_ends_the_command_frees_the_lock() {
    let server = Server::start();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let running = Running::script(&server, &["x"], UNTIL_INPUT);
        running.signal(signal);
        let end = running.end();
        assert_eq!((end.code(), end.errors.as_str()), (code, ""));
        assert!(!exists(&server, "x"));
    }
}

#[test]
fn a_signal_around_the_start_is_not_lost_and_leaves_no_process() {
    let server = Server::start();
    for step in 0..40 {
        let mut running = Running::start(run(&server, &["x", "--", "sh", "-c", UNTIL_INPUT]));
        // Not a wait for a condition: each round sends the signal at another moment.
        holds_within(Duration::from_micros(250 * step), || false);
        running.signal(Signal::TERM);
        let started = holds_within(Duration::from_millis(1), || false);
        assert!(!started);
        // Before the handlers are installed, the signal ends the program itself.
        let status = running.process().wait();
        assert!(status.code() == Some(143) || is_end_by_term(status), "{status}");
        let end = running.end();
        assert_eq!(end.errors, "");
        if let Some(pid) = end.output.first().and_then(|line| line.strip_prefix("group ")) {
            group_ends(Pid::from_raw(pid.parse().expect("a number")).expect("a process id"));
        }
        eventually("the lock is free", || !exists(&server, "x"));
    }
}

fn is_end_by_term(status: std::process::ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::TERM.as_raw())
}

#[test]
fn the_command_gets_term_when_leasehold_is_killed() {
    let server = Server::start();
    let script = format!("trap 'echo got TERM; exit 3' TERM;{TRAPPING}");
    let mut running = Running::script(&server, &["x"], &script);
    running.process().kill();
    assert_eq!(running.line(), "got TERM");
}

/// The shell waits for a child, and both have children that ignore TERM.
#[test]
fn all_processes_of_the_command_end_when_leasehold_is_killed() {
    let server = Server::start();
    let script =
        "sh -c 'trap \"\" TERM; sleep 1000 & wait; sleep 1000' & sleep 1000 & echo group $$; wait";
    let mut running = Running::script(&server, &["x"], script);
    let group = running.group_id();
    running.process().kill();
    group_ends(group);
}

/// Returns the guard of a `run`: a child with a process group of its own that is not the command.
fn guard_of(running: &mut Running, command: Pid) -> Pid {
    let parent = running.process().pid();
    let of_parent = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = of_parent.expect("the kernel lists children");
    let ids = children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
    ids.into_iter().find(|id| *id != command).expect("a guard")
}

#[test]
fn a_signal_to_all_processes_leaves_the_guard_to_its_work() {
    let server = Server::start();
    let mut running = Running::script(&server, &["x"], "trap '' TERM; echo group $$; sleep 1000");
    let group = running.group_id();
    let guard = guard_of(&mut running, group);
    eventually("the guard catches TERM", || {
        let status = fs::read_to_string(format!("/proc/{}/status", guard.as_raw_nonzero()));
        let caught = status
            .expect("a process")
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
        caught.is_some_and(|caught| caught & (1 << (Signal::TERM.as_raw() - 1)) != 0)
    });
    kill_process(guard, Signal::TERM).expect("our own process");
    running.process().kill();
    group_ends(group);
}

#[test]
fn a_stopped_guard_does_not_keep_the_lock() {
    let server = Server::start();
    let mut running = Running::script(&server, &["x"], "echo group $$; read line");
    let group = running.group_id();
    let guard = guard_of(&mut running, group);
    kill_process(guard, Signal::STOP).expect("our own process");
    kill_process(group, Signal::TERM).expect("our own process");
    running.process().wait();
    assert!(!exists(&server, "x"));
}

#[test]
fn the_processes_of_a_command_that_ended_by_itself_go_on() {
    let server = Server::start();
    let script = "sleep 1000 >/dev/null 2>&1 & echo group $$";
    let mut running = Running::script(&server, &["x"], script);
    let group = running.group_id();
    assert!(running.process().wait().success());
    // A guard that was not dismissed would end the child within this time.
    assert!(!holds_within(Duration::from_millis(500), || !has_processes(group)));
    kill_process_group(group, Signal::KILL).expect("the child goes on");
    assert_eq!(running.end().code(), 0);
}

#[test]
fn the_command_has_default_signals_and_no_sockets() {
    let server = Server::start();
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls -l /proc/self/fd";
    let end = Running::start(run(&server, &["x", "--", "sh", "-c", script])).finish();
    let mask = |index: usize, name: &str| {
        let mask = end.output[index].strip_prefix(name).expect("a line of the status").trim();
        u64::from_str_radix(mask, 16).expect("a hexadecimal number") & OF_PROGRAMS
    };
    assert_eq!((mask(0, "SigBlk:"), mask(1, "SigIgn:")), (0, 0));
    assert!(!end.output.iter().any(|line| line.contains("socket:")), "{:?}", end.output);
}

/// Starts `leasehold run x` from a shell that ignores a signal.
fn run_ignoring(server: &Server, signal: &str, script: &str) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' {signal}; exec \"$0\" run x -- sh -c \"$1\"")]);
    command.args([PROGRAM, script]).env("LEASEHOLD_URL", server.url());
    Running::start(command)
}

#[test]
fn ignored_signals_stay_ignored() {
    let server = Server::start();
    let mut running = run_ignoring(&server, "HUP", UNTIL_INPUT);
    running.group();
    running.signal(Signal::HUP);
    assert_eq!(running.finish().code(), 5);
}

#[test]
fn the_code_of_the_command_is_known_if_ends_of_children_were_ignored() {
    let server = Server::start();
    assert_eq!(run_ignoring(&server, "CHLD", "exit 7").finish().code(), 7);
}

#[test]
fn the_end_of_the_command_is_known_if_its_signal_was_blocked() {
    let server = Server::start();
    let mut command = Command::new("env");
    command.args(["--block-signal=CHLD", PROGRAM]);
    command.env("LEASEHOLD_URL", server.url()).args(["run", "x", "--", "sh", "-c", "exit 7"]);
    assert_eq!(Running::start(command).finish().code(), 7);
}

#[test]
fn a_run_inside_of_a_run_forwards_signals_too() {
    let server = Server::start();
    let words = ["x", "--", PROGRAM, "run", "y", "--", "sh", "-c", UNTIL_INPUT];
    let mut running = Running::start(run(&server, &words));
    running.group();
    assert!(exists(&server, "x") && exists(&server, "y"));
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), 143);
    assert!(!exists(&server, "x") && !exists(&server, "y"));
}

#[test]
fn input_and_output_are_those_of_the_command() {
    let server = Server::start();
    let script = "read -r line; echo \"out $line\"; echo \"err $line\" >&2";
    let mut running = Running::start(run(&server, &["x", "--", "sh", "-c", script]));
    running.say("text");
    let end = running.finish();
    assert_eq!((end.output.concat().as_str(), end.errors.as_str()), ("out text", "err text\n"));
}

#[test]
fn a_stopped_command_keeps_the_lock_and_can_continue() {
    let server = Server::start();
    let mut running = Running::script(&server, &["--lease", "500ms", "x"], UNTIL_INPUT);
    let group = running.group_id();
    rustix::process::kill_process(group, Signal::STOP).expect("our own process");
    let begin = Instant::now();
    eventually("several leases pass", || begin.elapsed() > Duration::from_secs(2));
    assert!(exists(&server, "x") && !running.process().is_stopped());
    rustix::process::kill_process(group, Signal::CONT).expect("our own process");
    assert_eq!(running.finish().code(), 5);
}

#[test]
fn a_stopped_command_ends_at_term() {
    let server = Server::start();
    let running = Running::script(&server, &["x"], UNTIL_INPUT);
    rustix::process::kill_process(running.group_id(), Signal::STOP).expect("our own process");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), 143);
}
