//! The test binary again, as another process: for what happens between
//! processes, and to one that is stopped or killed.
//!
//! A test file that uses it has one test that plays the child's roles and does
//! nothing when it runs by itself:
//!
//! ```ignore
//! #[test]
//! fn child_entry() {
//!     match process::role() {
//!         None => {}
//!         Some(role) if role.name() == "holder" => hold(&role),
//!         Some(role) => panic!("nobody plays {role:?}"),
//!     }
//! }
//! ```
//!
//! Parent and child talk in lines. The child's carry a mark, because the test
//! runner prints lines of its own to the same output.

use super::spawned::Spawned;
use super::wait::BOUND;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const ARGS: &str = "LEASEHOLD_TEST_ARGS";
/// Stands between arguments; nobody puts it into one.
const SEPARATOR: &str = "\u{1f}";
/// Stands before what the child says, not always at the start of a line.
const MARK: &str = "[child says] ";

/// The role of a test that has a process for itself.
const ALONE: &str = "alone";

/// Returns true in a process that runs only this test. Elsewhere starts such a process, waits for
/// its success, and returns false. `test` has its module path.
#[track_caller]
pub fn alone(test: &str) -> bool {
    if role().is_some_and(|role| role.name() == ALONE) {
        return true;
    }
    let mut child = ChildProcess::start(test, ALONE, &[]);
    let said = child.said_to_the_end();
    let passed = child.wait().success() && child.other_output.contains("test result: ok. 1 passed");
    assert!(passed, "{said:?}; {}", child.noise());
    false
}

/// The parent's side: another process of this test binary. Dropping it kills it.
#[derive(Debug)]
pub struct ChildProcess {
    process: Spawned,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    other_output: String,
}

impl ChildProcess {
    /// Starts this test binary again, to run only the test `entry` (with its
    /// module path, if it has one) in this role.
    pub fn start(entry: &str, role: &str, args: &[&str]) -> Self {
        Self::start_with(entry, role, args, &[])
    }

    /// The same with more variables in its environment.
    pub fn start_with(entry: &str, role: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let program = env::current_exe().expect("a running program has a path");
        let mut command = Command::new(program);
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

    /// Blocks until the child says its next line, and returns it.
    #[track_caller]
    pub fn next_line(&mut self) -> String {
        let end = Instant::now() + BOUND;
        loop {
            let line = self.next_raw_line(end);
            if let Some(said) = self.keep_or_take(line) {
                return said;
            }
        }
    }

    /// Blocks until the child says its next line, which has to be this one.
    #[track_caller]
    pub fn expect_line(&mut self, expected: &str) {
        let line = self.next_line();
        assert_eq!(line, expected, "the child says something else");
    }

    /// What the child has said and nobody has read yet, first line first. Does
    /// not block.
    pub fn said_already(&mut self) -> Vec<String> {
        let lines: Vec<String> = self.lines.try_iter().collect();
        lines.into_iter().filter_map(|line| self.keep_or_take(line)).collect()
    }

    /// Blocks until the child's output has ended, which it does with the child, and returns
    /// what it has said that nobody has read.
    pub fn said_to_the_end(&mut self) -> Vec<String> {
        let lines: Vec<String> = self.lines.iter().collect();
        lines.into_iter().filter_map(|line| self.keep_or_take(line)).collect()
    }

    /// Sends the child a line.
    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the child's input is open");
        writeln!(input, "{line}").expect("the child reads");
    }

    /// Closes the child's input: `Role::hear` says `None` there.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops the child (SIGSTOP), and blocks until it stands still.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Lets a stopped child run again (SIGCONT).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills the child (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Blocks until the child ends by itself, and says how: code 0 if its role
    /// returned, 101 if it panicked.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    #[track_caller]
    fn next_raw_line(&self, end: Instant) -> String {
        let left = end.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child is silent; {}", self.noise()),
            Err(RecvTimeoutError::Disconnected) => panic!("the child has ended; {}", self.noise()),
        }
    }

    fn noise(&self) -> String {
        format!("its other output:\n{}", self.other_output)
    }

    /// Returns what the child said in this line, or keeps the line for a
    /// message if it is the test runner's.
    fn keep_or_take(&mut self, line: String) -> Option<String> {
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
            // It ends with the child's output, and does not panic.
            let _ = reader.join();
        }
    }
}

fn read_on_thread(output: ChildStdout, sender: Sender<String>) -> JoinHandle<()> {
    thread::Builder::new()
        .name("child output".to_owned())
        .spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The receiver goes away with the child's handle.
            let _ = lines.map(|line| sender.send(line)).find(Result::is_err);
        })
        .expect("a thread starts")
}

/// The child's side: which part it plays.
#[derive(Debug)]
pub struct Role {
    name: String,
    args: Vec<String>,
}

/// Says which role this process was started in, or `None` if it is no child.
pub fn role() -> Option<Role> {
    let args = env::var(ARGS).unwrap_or_default();
    Some(Role {
        name: env::var(ROLE).ok()?,
        args: args.split(SEPARATOR).map(str::to_owned).collect(),
    })
}

impl Role {
    /// The role's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An argument, counted from 0.
    pub fn arg(&self, index: usize) -> &str {
        &self.args[index]
    }

    /// All arguments.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Says a line to the parent.
    pub fn say(&self, line: &str) {
        let mut output = std::io::stdout().lock();
        // On a line of its own: the test runner leaves one unfinished.
        let result = write!(output, "\n{MARK}{line}\n").and_then(|()| output.flush());
        result.expect("the parent listens");
    }

    /// Blocks until the parent sends a line, and returns it; `None` when the
    /// parent has closed this input or has ended.
    pub fn hear(&self) -> Option<String> {
        let line = std::io::stdin().lines().next()?;
        Some(line.expect("the parent writes text"))
    }

    /// Blocks until the parent sends a line, which has to be this one.
    #[track_caller]
    pub fn expect(&self, expected: &str) {
        let line = self.hear();
        assert_eq!(line.as_deref(), Some(expected), "from the parent");
    }
}
