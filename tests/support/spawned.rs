//! A child process that never outlives this one.
//!
//! `Drop` kills the child, but runs neither when this process is killed nor for
//! statics. So each child has a watcher: a shell that blocks in a read of a pipe
//! whose only other end is here. However this process ends, the kernel closes
//! that end, and the shell kills the child and removes its folder. (The
//! kernel's own parent-death signal will not do: it is sent when the *thread*
//! that started the child ends.) The watcher is ended before the child is
//! reaped or as soon as that is seen, so it never kills a stranger who was
//! given the same process id.

use super::wait::{eventually, eventually_some};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// What a watcher runs: `$1` is the child, `$2` its folder or nothing.
const WATCH: &str = r#"read -r _; kill -KILL "$1"; [ -z "$2" ] || rm -rf -- "$2""#;

/// A running child process. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    watcher: Child,
    status: Option<ExitStatus>,
}

impl Spawned {
    /// Starts `command`. If this process dies before the child does, the child
    /// is killed and `folder` removed.
    pub fn start(command: &mut Command, folder: Option<&Path>) -> Self {
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let watcher = watch(child.id(), folder);
        Self { child, watcher, status: None }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the pipe to the child's input, if one was asked for.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the pipe from the child's output, if one was asked for.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Stops the process (SIGSTOP), and blocks until all its threads stand still.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        eventually("the process stands still", || self.stands_still());
    }

    /// Lets a stopped process run again (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing to one
    /// that has ended.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            self.end_watcher();
            self.child.kill().expect("our own child can be killed");
            self.status = Some(self.child.wait().expect("our own child can be awaited"));
        }
    }

    /// Says how the process ended, or `None` while it runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child can be awaited");
            if self.status.is_some() {
                self.end_watcher();
            }
        }
        self.status
    }

    /// Blocks until the process has ended by itself, and says how.
    pub fn wait(&mut self) -> ExitStatus {
        eventually_some("the process ends by itself", || self.try_wait())
    }

    fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "the process has ended");
        kill_process(Pid::from_child(&self.child), signal).expect("our own child takes signals");
    }

    /// The kernel reports a stop once, when the last thread has stopped.
    fn stands_still(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let report = waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
        report.expect("our own child can be awaited").is_some()
    }

    fn end_watcher(&mut self) {
        // Both fail only if it has ended, which is what is wanted.
        let _ = self.watcher.kill();
        let _ = self.watcher.wait();
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the watcher of process `pid`. It has a process group of its own, so
/// that a Ctrl-C at the terminal does not end it before its work is done.
fn watch(pid: u32, folder: Option<&Path>) -> Child {
    Command::new("sh")
        .args(["-c", WATCH, "watcher", &pid.to_string()])
        .arg(folder.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a shell starts")
}
