//! The test binary as a child process, for tests that stop, kill or compare processes.
//!
//! A test file with child processes has one test that plays the roles of the child. In the parent
//! process that test does nothing:
//!
//! ```ignore
//! #[test]
//! fn child_entry() {
//!     match process::role() {
//!         None => {}
//!         Some(role) if role.name() == "holder" => hold(&role),
//!         Some(role) => panic!("unknown role {role:?}"),
//!     }
//! }
//! ```
//!
//! Parent and child exchange lines. The child's lines carry a mark, because the test runner prints
//! to the same output.

use super::spawned::Spawned;
use super::wait::BOUND;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const ARGS: &str = "LEASEHOLD_TEST_ARGS";
/// The separator between arguments. No argument contains it.
const SEPARATOR: &str = "\u{1f}";
/// The mark before a message of the child, also within a line.
const MARK: &str = "[child says] ";

/// The role of a test in a process of its own.
const ALONE: &str = "alone";

/// Returns whether this process runs only this test.
///
/// If not, starts such a process and waits for its success. `test` includes the module path.
#[track_caller]
pub fn alone(test: &str) -> bool {
    if role().is_some_and(|role| role.name() == ALONE) {
        return true;
    }
    let mut child = ChildProcess::start(test, ALONE, &[]);
    let lines = child.said_to_the_end();
    let passed = child.wait().success() && child.other_output.contains("test result: ok. 1 passed");
    assert!(passed, "{lines:?}; {}", child.runner_output());
    false
}

/// A child process of this test binary, in the parent. Dropping the value kills the child.
#[derive(Debug)]
pub struct ChildProcess {
    process: Spawned,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    other_output: String,
}

impl ChildProcess {
    /// Starts this test binary with only the test `entry`, in this role.
    ///
    /// `entry` includes the module path.
    pub fn start(entry: &str, role: &str, args: &[&str]) -> Self {
        Self::start_with(entry, role, args, &[])
    }

    /// Starts like `start`, with more environment variables.
    pub fn start_with(entry: &str, role: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::run(Command::new(own_program()), entry, role, args, variables)
    }

    /// Starts like `start`, by a program that gets this one as its last arguments.
    pub fn start_by(wrapper: &[&str], entry: &str, role: &str, args: &[&str]) -> Self {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(own_program());
        Self::run(command, entry, role, args, &[])
    }

    fn run(
        mut command: Command,
        entry: &str,
        role: &str,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        command
            .args(["--exact", entry, "--include-ignored", "--nocapture"])
            .env(ROLE, role)
            .env(ARGS, args.join(SEPARATOR))
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Spawned::start(&mut command, None);
        let output = process.take_output().expect("output was asked for");
        let (sender, lines) = channel();
        Self {
            input: process.take_input(),
            process,
            lines,
            reader: Some(read_on_thread(output, sender)),
            other_output: String::new(),
        }
    }

    /// Blocks until the child sends a line, and returns the line.
    #[track_caller]
    pub fn next_line(&mut self) -> String {
        let end = Instant::now() + BOUND;
        loop {
            let line = self.next_raw_line(end);
            if let Some(said) = self.message_of(line) {
                return said;
            }
        }
    }

    /// Blocks until the child sends a line, which has to be `expected`.
    #[track_caller]
    pub fn expect_line(&mut self, expected: &str) {
        let line = self.next_line();
        assert_eq!(line, expected, "the child sends another line");
    }

    /// Returns the unread lines of the child, oldest first. Does not block.
    pub fn said_already(&mut self) -> Vec<String> {
        let lines: Vec<String> = self.lines.try_iter().collect();
        lines.into_iter().filter_map(|line| self.message_of(line)).collect()
    }

    /// Blocks until the child's output ends, and returns the unread lines.
    ///
    /// The output ends with the child.
    pub fn said_to_the_end(&mut self) -> Vec<String> {
        let lines: Vec<String> = self.lines.iter().collect();
        lines.into_iter().filter_map(|line| self.message_of(line)).collect()
    }

    /// Sends a line to the child.
    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the child's input is open");
        writeln!(input, "{line}").expect("the child reads");
    }

    /// Closes the child's input, so that `Role::hear` returns `None`.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Returns the child's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops the child (SIGSTOP); blocks until all its threads have stopped.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Resumes a stopped child (SIGCONT).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills the child (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Blocks until the child ends by itself, and returns its exit status.
    ///
    /// The code is 0 if the role returned, 101 if it panicked.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    #[track_caller]
    fn next_raw_line(&self, end: Instant) -> String {
        let left = end.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("the child is silent; {}", self.runner_output())
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the child has ended; {}", self.runner_output())
            }
        }
    }

    fn runner_output(&self) -> String {
        format!("its other output:\n{}", self.other_output)
    }

    /// Returns the child's message in this line, or keeps a line of the test runner.
    fn message_of(&mut self, line: String) -> Option<String> {
        if let Some((_, said)) = line.split_once(MARK) {
            return Some(said.to_owned());
        }
        self.other_output.push_str(&line);
        self.other_output.push('\n');
        None
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.process.kill();
        if let Some(reader) = self.reader.take() {
            // The thread ends with the child's output, and does not panic.
            let _ = reader.join();
        }
    }
}

fn own_program() -> PathBuf {
    env::current_exe().expect("a running program has a path")
}

fn read_on_thread(output: ChildStdout, sender: Sender<String>) -> JoinHandle<()> {
    thread::Builder::new()
        .name("child output".to_owned())
        .spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The receiver is dropped with the `ChildProcess`.
                if sender.send(line).is_err() {
                    return;
                }
            }
        })
        .expect("a thread starts")
}

/// The role of this process, in the child.
#[derive(Debug)]
pub struct Role {
    name: String,
    args: Vec<String>,
}

/// Returns the role of this process, or `None` if it is no child.
pub fn role() -> Option<Role> {
    let args = env::var(ARGS).unwrap_or_default();
    Some(Role {
        name: env::var(ROLE).ok()?,
        args: args.split(SEPARATOR).map(str::to_owned).collect(),
    })
}

impl Role {
    /// Returns the role's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns an argument; the first has the index 0.
    pub fn arg(&self, index: usize) -> &str {
        &self.args[index]
    }

    /// Returns all arguments.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Sends a line to the parent.
    pub fn say(&self, line: &str) {
        let mut output = std::io::stdout().lock();
        // The test runner leaves a line unfinished, so the message starts a new line.
        let result = write!(output, "\n{MARK}{line}\n").and_then(|()| output.flush());
        result.expect("the parent listens");
    }

    /// Blocks until the parent sends a line, and returns the line.
    ///
    /// `None` if the parent has closed this input or has ended.
    pub fn hear(&self) -> Option<String> {
        let line = std::io::stdin().lines().next()?;
        Some(line.expect("the parent writes text"))
    }

    /// Blocks until the parent sends a line, which has to be `expected`.
    #[track_caller]
    pub fn expect(&self, expected: &str) {
        let line = self.hear();
        assert_eq!(line.as_deref(), Some(expected), "from the parent");
    }
}
