//! A child process that never outlives this process.
//!
//! `Drop` kills the child, but does not run if this process is killed, nor for statics. So each
//! child has a watcher (`watcher.rs`). The watcher ends before the child is reaped, or as soon as
//! the child's end is noticed, so that it never kills another process with the same process id.

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
    /// Starts `command` as a child process.
    ///
    /// If this process dies before the child, the child is killed and `folder` is removed.
    pub fn start(command: &mut Command, folder: Option<&Path>) -> Self {
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let watcher = watcher::watch(child.id(), folder).expect("a shell starts");
        Self { child, watcher, status: None }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the pipe to the child's input, if the command has one.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the pipe from the child's output, if the command has one.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Stops the process (SIGSTOP); blocks until all its threads have stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        // The kernel reports the stop once, when the last thread has stopped.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        eventually("the process stops", || {
            let report = waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
            report.expect("our own child can be awaited").is_some()
        });
    }

    /// Resumes a stopped process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Returns whether the process is stopped.
    pub fn is_stopped(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        status.is_ok_and(|status| status.contains("\nState:\tT"))
    }

    /// Kills the process (SIGKILL) and waits for its end.
    ///
    /// Does nothing if the process has ended.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            watcher::end(&mut self.watcher);
            self.child.kill().expect("our own child can be killed");
            self.status = Some(self.child.wait().expect("our own child can be awaited"));
        }
    }

    /// Returns the exit status of the process, or `None` while it runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child can be awaited");
            if self.status.is_some() {
                watcher::end(&mut self.watcher);
            }
        }
        self.status
    }

    /// Blocks until the process ends by itself, and returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        eventually_some("the process ends by itself", || self.try_wait())
    }

    fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "the process has ended");
        kill_process(Pid::from_child(&self.child), signal).expect("our own child takes signals");
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.kill();
    }
}
