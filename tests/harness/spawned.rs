//! A child process that never outlives this one.
//!
//! `Drop` kills the child, but runs neither when this process is killed nor for
//! statics. So each child has a watcher (`watcher.rs`). It is ended before the child
//! is reaped or as soon as that is seen, so it never kills a stranger who was given
//! the same process id.

use super::wait::{eventually, eventually_some};
use super::watcher;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};

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
        let watcher = watcher::watch(child.id(), folder).expect("a shell starts");
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

    /// Whether the process stands still now.
    pub fn is_stopped(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        status.is_ok_and(|status| status.contains("\nState:\tT"))
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing to one
    /// that has ended.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            watcher::end(&mut self.watcher);
            self.child.kill().expect("our own child can be killed");
            self.status = Some(self.child.wait().expect("our own child can be awaited"));
        }
    }

    /// Says how the process ended, or `None` while it runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child can be awaited");
            if self.status.is_some() {
                watcher::end(&mut self.watcher);
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
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.kill();
    }
}
