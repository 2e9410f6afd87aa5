//! The program `leasehold`, started by a test, with its output and its end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use tempfile::TempDir;

use crate::command::leasehold;
use crate::harness::Server;
use crate::harness::server::free_port;
use crate::harness::spawned::Spawned;
use crate::harness::wait::{BOUND, eventually, holds_within};

/// A command that tells its group and runs until its input ends; then it exits with 5.
pub(crate) const UNTIL_INPUT: &str = "echo group $$; read -r line; exit 5";

/// The end of a script with traps: waits until its input ends; then the script exits with 5.
///
/// Traps run meanwhile. The `cat` ignores all signals but KILL, and has the group of the script.
/// Its shell names the group, so that no signal comes before these signals are ignored.
pub(crate) const TRAPPING: &str = "\
exec 3<&0
(trap '' HUP INT QUIT TERM USR1 USR2 ALRM VTALRM PROF IO; echo group $$; exec cat <&3 >/dev/null) &
while kill -0 $! 2>/dev/null; do wait $!; done
exit 5";

/// Returns `leasehold run` with these words, for this server.
pub(crate) fn run(server: &Server, words: &[&str]) -> Command {
    verb(server, "run", words)
}

/// Returns `leasehold once` with these words, for this server.
pub(crate) fn once(server: &Server, words: &[&str]) -> Command {
    verb(server, "once", words)
}

fn verb(server: &Server, verb: &str, words: &[&str]) -> Command {
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", server.url()).arg(verb).args(words);
    command
}

/// Returns the exit code of `leasehold run` with these words.
#[track_caller]
pub(crate) fn code_of(server: &Server, words: &[&str]) -> i32 {
    Running::start(run(server, words)).finish().code()
}

/// Asserts that these words are wrong for a verb, which asks no server then.
#[track_caller]
pub(crate) fn assert_wrong_usage(verb: &str, wrong: &[&[&str]]) {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    for words in wrong {
        let mut command = leasehold();
        command.env("LEASEHOLD_URL", &url).arg(verb).args(*words);
        let end = Running::start(command).finish();
        assert_eq!(end.code(), 64, "{words:?}: {end:?}");
        end.one_error();
    }
}

/// A running program. Its end is checked: no process of its command may be left.
pub(crate) struct Running {
    process: Spawned,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    folder: TempDir,
    group: Option<Pid>,
}

/// The end of a program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: std::process::ExitStatus,
    pub(crate) output: Vec<String>,
    pub(crate) errors: String,
}

impl Running {
    /// Starts a program with pipes for its input and output.
    pub(crate) fn start(mut command: Command) -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let errors = fs::File::create(errors_in(folder.path())).expect("our own folder");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut process = Spawned::start(&mut command, None);
        let output = process.take_output().expect("a pipe");
        let (sender, lines) = channel();
        let reader = thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The receiver is dropped with the `Running`.
            let _ = lines.map(|line| sender.send(line)).find(Result::is_err);
        });
        let input = process.take_input();
        Running { process, input, lines, reader: Some(reader), folder, group: None }
    }

    /// Starts `leasehold run` with a shell script; blocks until the script runs.
    pub(crate) fn script(server: &Server, words: &[&str], script: &str) -> Running {
        Running::script_of("run", server, words, script)
    }

    /// Starts this verb of `leasehold` with a shell script; blocks until the script runs.
    pub(crate) fn script_of(name: &str, server: &Server, words: &[&str], script: &str) -> Running {
        let words = [words, &["--", "sh", "-c", script]].concat();
        let mut running = Running::start(verb(server, name, &words));
        running.group();
        running
    }

    /// Blocks until the command tells its group, and returns the group.
    #[track_caller]
    pub(crate) fn group(&mut self) -> Pid {
        let line = self.line();
        let pid = line.strip_prefix("group ").and_then(|pid| pid.parse().ok());
        let group = pid.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no group: {line}"));
        self.group = Some(group);
        group
    }

    /// Returns the group of the command, which has told it.
    pub(crate) fn group_id(&self) -> Pid {
        self.group.expect("the command has told its group")
    }

    /// Returns the next line of the output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(BOUND) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no more output; {}", self.errors()),
            Err(RecvTimeoutError::Disconnected) => panic!("the output ended; {}", self.errors()),
        }
    }

    /// Returns what the program has written to its stderr so far.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(errors_in(self.folder.path())).expect("our own folder")
    }

    /// Writes a line to the input of the program.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the input is open");
        writeln!(input, "{line}").expect("the program reads");
    }

    /// Ends the input of the program.
    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    /// Sends a signal to `leasehold`.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.pid().try_into().expect("a process id"));
        kill_process(pid.expect("a process id"), signal).expect("our own child takes signals");
    }

    /// Returns the process of `leasehold`.
    pub(crate) fn process(&mut self) -> &mut Spawned {
        &mut self.process
    }

    /// Ends the input, and blocks until the program has ended.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        self.end_input();
        self.end()
    }

    /// Blocks until the program has ended by itself, with its input open.
    #[track_caller]
    pub(crate) fn end(mut self) -> Finished {
        let status = self.process.wait();
        let errors = self.errors();
        // Orphans may have the output open until the input ends.
        self.end_input();
        let output = std::iter::from_fn(|| self.lines.recv_timeout(BOUND).ok()).collect();
        Finished { status, output, errors }
    }

    /// Returns whether a process of the command's group exists.
    pub(crate) fn group_exists(&self) -> bool {
        self.group.is_some_and(has_processes)
    }
}

impl Finished {
    /// Returns the exit code.
    #[track_caller]
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("no exit code: {self:?}"))
    }

    /// Checks that the program has printed one line of its own, and returns it.
    #[track_caller]
    pub(crate) fn one_error(&self) -> &str {
        let line = self.errors.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {self:?}"));
        assert!(!line.contains('\n') && line.starts_with("leasehold: "), "{line}");
        line
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
        self.end_input();
        if let Some(group) = self.group
            && !holds_within(BOUND, || !has_processes(group))
        {
            let _ = kill_process_group(group, Signal::KILL);
            assert!(thread::panicking(), "processes of the command are left");
        }
        if let Some(reader) = self.reader.take() {
            // The thread ends with the output, and does not panic.
            let _ = reader.join();
        }
    }
}

/// Blocks until no process of the group exists.
#[track_caller]
pub(crate) fn group_ends(group: Pid) {
    eventually("the processes of the command end", || !has_processes(group));
}

pub(crate) fn has_processes(group: Pid) -> bool {
    test_kill_process_group(group) != Err(Errno::SRCH)
}

fn errors_in(folder: &Path) -> std::path::PathBuf {
    folder.join("stderr")
}
