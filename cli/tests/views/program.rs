//! The program under test, as a child process.

use crate::command::{PROGRAM, leasehold};
use crate::harness::eventually_some;
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::spawned::Spawned;
use crate::harness::wait::BOUND;
use leasehold::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// The outcome of a run of the program.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A running program, whose lines the test reads.
pub(crate) struct Running {
    process: Spawned,
    lines: Option<Receiver<String>>,
    err: NamedTempFile,
}

/// Returns the command with these arguments, without a server in the environment.
fn command(arguments: &[&str]) -> Command {
    let mut command = leasehold();
    command.args(arguments).env("TZ", "UTC");
    command
}

/// Runs the program until it ends by itself.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    Running::start(arguments).finish()
}

/// Runs the program with `--json`, and returns its exit code and the value that it prints.
#[track_caller]
pub(crate) fn json(arguments: &[&str]) -> (Option<i32>, Value) {
    let outcome = run(&[arguments, &["--json"]].concat());
    assert_eq!(outcome.err, "");
    let value = serde_json::from_str(&outcome.out);
    (outcome.code, value.unwrap_or_else(|error| panic!("{error}: {outcome:?}")))
}

impl Running {
    pub(crate) fn start(arguments: &[&str]) -> Running {
        Running::of(command(arguments))
    }

    /// Starts the program from a shell that ignores a signal.
    pub(crate) fn ignoring(signal: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("trap '' {signal}; exec \"$@\""), "sh", PROGRAM]);
        command.args(arguments);
        Running::of(command)
    }

    fn of(mut command: Command) -> Running {
        let err = NamedTempFile::new().expect("a temporary file");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(err.reopen().expect("our own file"));
        let mut process = Spawned::start(&mut command, None);
        let output = process.take_output().expect("output was asked for");
        let (sender, lines) = mpsc::channel();
        // Ends with the output, or closes it after the test has dropped the receiver.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Running { process, lines: Some(lines), err }
    }

    /// Starts `watch --json`, and blocks until the first look has seen the one held lock.
    #[track_caller]
    pub(crate) fn watch(arguments: &[&str]) -> Running {
        let start = ["watch", "--json", "--every", "10ms"];
        Running::start(&[&start[..], arguments].concat())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("our own child takes signals");
    }

    /// Closes the pipe at its reading end, at the latest when the program prints the next line.
    pub(crate) fn close_output(&mut self) {
        self.lines = None;
    }

    /// Blocks until the program prints a line, and returns the line.
    #[track_caller]
    pub(crate) fn next_line(&self) -> String {
        let lines = self.lines.as_ref().expect("the output is open");
        let line = lines.recv_timeout(BOUND);
        line.unwrap_or_else(|error| panic!("no line: {error}; {:?}", self.errors()))
    }

    /// Returns the unread lines until now. Does not block.
    pub(crate) fn said_already(&self) -> Vec<String> {
        self.lines.iter().flat_map(Receiver::try_iter).collect()
    }

    /// Blocks until the program prints an object with this `event`, and returns the object.
    ///
    /// Objects before it are passed over, except those with an event in `never`.
    #[track_caller]
    pub(crate) fn until(&self, event: &str, never: &[&str]) -> Value {
        let end = Instant::now() + BOUND;
        while Instant::now() < end {
            let line = self.next_line();
            let object: Value = serde_json::from_str(&line).expect("a line is an object");
            let name = object["event"].as_str().expect("an event has a name").to_owned();
            if name == event {
                return object;
            }
            assert!(!never.contains(&&*name), "no {event} before {object}");
        }
        panic!("no {event}");
    }

    /// Blocks until the program has told the processes of the present holder, and returns the
    /// event.
    #[track_caller]
    pub(crate) fn until_identified(&self) -> Value {
        let held = self.until("acquired", &[]);
        if held["pid"].is_number() { held } else { self.until("identified", &["released"]) }
    }

    /// Blocks until the program ends by itself, and returns its outcome.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Outcome {
        let code = self.process.wait().code();
        let lines = self.lines.iter().flatten();
        let out = lines.map(|line| line + "\n").collect();
        Outcome { code, out, err: self.errors() }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.err.path()).expect("our own file")
    }
}

#[test]
fn child_entry() {
    if let Some(role) = process::role() {
        hold(&role);
    }
}

/// Holds a lock until the parent ends the process.
fn hold(role: &Role) {
    let lease = role.arg(2).parse().expect("a number");
    let builder = Client::builder().single(role.arg(0)).label("child");
    let client = builder.watchdog_timeout(Duration::from_millis(lease));
    let client = client.build().expect("the server answers");
    let _guard = client.lock(role.arg(1)).lock().expect("free");
    role.say("locked");
    role.hear();
}

/// Starts a process that holds a lock with a renewed lease of this many milliseconds.
#[track_caller]
pub(crate) fn holder(url: &str, name: &str, lease: u32) -> ChildProcess {
    let arguments = [url, name, &lease.to_string()];
    let mut child = ChildProcess::start("program::child_entry", "hold", &arguments);
    child.expect_line("locked");
    child
}

/// Blocks until `look` finds the one element of an array that it wants.
#[track_caller]
pub(crate) fn eventually_listed(
    arguments: &[&str],
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    eventually_some(what, || {
        let (_, value) = json(arguments);
        wanted(&value).then_some(value)
    })
}
