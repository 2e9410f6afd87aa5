//! A program in a pseudo-terminal: its screen, its keys, its end.
//!
//! The program leads a session of its own, and the pseudo-terminal is its controlling terminal. A
//! thread reads the output and keeps the screen, as a terminal does.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{CommandBuilder, MasterPty, PtySize, native_pty_system};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{self, LocalModes};
use vt100::{Parser, Screen};

/// The bound of every wait, after which the test fails. Long enough for a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// The pause between two questions about the end of the program.
const INTERVAL: Duration = Duration::from_millis(5);

/// The lines above the screen that are kept.
const LINES_KEPT: usize = 1000;

/// A running program in a pseudo-terminal.
///
/// Dropping the value kills the program and all processes of its session.
pub(crate) struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    child: Child,
    status: Option<ExitStatus>,
    output: Arc<Output>,
}

/// The output of the program so far.
struct Output {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    parser: Parser,
    bytes: Vec<u8>,
    /// Whether no process has the terminal open any more.
    is_closed: bool,
}

impl Terminal {
    /// Starts a program in a terminal of this many rows and columns.
    ///
    /// The program, arguments, folder and variables of `command` count. TERM is `xterm-256color`.
    pub(crate) fn start(command: &Command, rows: u16, columns: u16) -> Terminal {
        let pair = native_pty_system().openpty(size(rows, columns)).expect("a pseudo-terminal");
        let child = pair.slave.spawn_command(builder(command)).expect("the program starts");
        let child: Box<dyn portable_pty::Child> = child;
        let child = child.downcast::<Child>().expect("a process of this system");
        let reader = pair.master.try_clone_reader().expect("a descriptor is left");
        let output = Arc::new(Output::new(rows, columns));
        let shared = Arc::clone(&output);
        thread::spawn(move || shared.read(reader));
        let keys = pair.master.take_writer().expect("the first writer");
        Terminal { master: pair.master, keys, child: *child, status: None, output }
    }

    /// Returns the process id of the program, which is the id of its session too.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types these characters, such as `q`, `\r` or `\x1b[A`.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal is open");
        self.keys.flush().expect("the terminal is open");
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "the program has ended");
        kill_process(Pid::from_child(&self.child), signal).expect("our own child takes signals");
    }

    /// Changes the size of the terminal; the program receives WINCH.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let [rows_of_screen, columns_of_screen] = [rows, columns].map(positive);
        let mut state = self.output.lock();
        state.parser.screen_mut().set_size(rows_of_screen, columns_of_screen);
        self.master.resize(size(rows, columns)).expect("the terminal is open");
    }

    /// Blocks until the condition holds for the screen. Panics with the screen after [`BOUND`].
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&Screen) -> bool) {
        let state = self.output.wait(|state| condition(state.parser.screen()));
        let screen = state.parser.screen();
        assert!(condition(screen), "never happened: {what}; the screen:\n{}", framed(screen));
    }

    /// Blocks until the screen shows a text. Panics with the screen after [`BOUND`].
    #[track_caller]
    pub(crate) fn wait_for_text(&self, text: &str) {
        let what = format!("the screen shows {text:?}");
        self.wait_for(&what, |screen| screen.contents().contains(text));
    }

    /// Blocks until the screen no longer shows a text. Panics with the screen after [`BOUND`].
    #[track_caller]
    pub(crate) fn wait_for_no_text(&self, text: &str) {
        let what = format!("the screen no longer shows {text:?}");
        self.wait_for(&what, |screen| !screen.contents().contains(text));
    }

    /// Returns a copy of the screen.
    pub(crate) fn screen(&self) -> Screen {
        self.output.lock().parser.screen().clone()
    }

    /// Returns the lines of the screen, without spaces at their ends.
    pub(crate) fn text(&self) -> String {
        self.screen().contents()
    }

    /// Returns all bytes that the program has written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.output.lock().bytes.clone()
    }

    /// Returns whether the terminal shows keys and edits lines, as a shell expects it.
    pub(crate) fn edits_lines(&self) -> bool {
        let modes = termios::tcgetattr(self.open()).expect("a terminal has modes").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Returns the process group in the foreground of the terminal.
    pub(crate) fn foreground(&self) -> Option<u32> {
        self.master.process_group_leader().and_then(|group| group.try_into().ok())
    }

    /// Returns the exit status of the program, or `None` while it runs.
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child can be awaited");
        }
        self.status
    }

    /// Blocks until the program ends, and all its output is on the screen; returns its status.
    ///
    /// Panics with the screen after [`BOUND`].
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + BOUND;
        while self.try_wait().is_none() {
            assert!(Instant::now() < end, "it never ended; the screen:\n{}", self.framed());
            thread::sleep(INTERVAL);
        }
        let state = self.output.wait(|state| state.is_closed);
        assert!(state.is_closed, "a process has the terminal still open");
        drop(state);
        self.status.expect("the program has ended")
    }

    /// Returns the screen between two lines, for messages of failed tests.
    pub(crate) fn framed(&self) -> String {
        framed(&self.screen())
    }

    /// Opens the terminal without making it the controlling terminal of the test.
    fn open(&self) -> File {
        let path = self.master.tty_name().expect("a pseudo-terminal has a path");
        let flags = OFlags::NOCTTY.bits().try_into().expect("a flag of this system");
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        file.expect("our own terminal can be opened")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            // Not reaped before the others have ended: its id names their session.
            let _ = self.child.kill();
            for process in members(self.child.id()) {
                let _ = kill_process(process, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

impl Output {
    fn new(rows: u16, columns: u16) -> Output {
        let parser = Parser::new(positive(rows), positive(columns), LINES_KEPT);
        let state = State { parser, bytes: Vec::new(), is_closed: false };
        Output { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Reads until the last process closes the terminal.
    fn read(&self, mut reader: Box<dyn Read + Send>) {
        let mut bytes = [0; 1 << 14];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            let mut state = self.lock();
            state.parser.process(&bytes[..count]);
            state.bytes.extend_from_slice(&bytes[..count]);
            self.changed.notify_all();
        }
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Blocks until the condition holds, for at most [`BOUND`].
    fn wait(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let result = self.changed.wait_timeout_while(self.lock(), BOUND, |it| !condition(it));
        result.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Locks the state, also after a condition of a test has panicked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(rows: u16, columns: u16) -> PtySize {
    PtySize { rows, cols: columns, ..PtySize::default() }
}

fn positive(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a screen has rows and columns")
}

/// Returns the same command for the pseudo-terminal.
fn builder(command: &Command) -> CommandBuilder {
    let mut builder = CommandBuilder::new(command.get_program());
    builder.args(command.get_args());
    builder.env("TERM", "xterm-256color");
    if let Some(folder) = command.get_current_dir() {
        builder.cwd(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => builder.env(name, value),
            None => builder.env_remove(name),
        }
    }
    builder
}

/// Returns the processes of a session.
fn members(session: u32) -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |pid| session_of(*pid) == Some(session))
        .filter_map(|pid| Pid::from_raw(pid.try_into().ok()?))
}

/// Returns the session of a process: the fourth field after the name in parentheses.
fn session_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}

fn framed(screen: &Screen) -> String {
    let columns = screen.size().1.get();
    let rule = "-".repeat(columns.into());
    let rows = screen.rows(0, columns).collect::<Vec<_>>().join("\n");
    format!("{rule}\n{rows}\n{rule}")
}
