//! A child process that never outlives this process.
//!
//! `Drop` kills the child. If this process is killed, a watcher process kills the child. The
//! watcher ends before the child is reaped, so that it never kills another process with the same
//! id.

use std::io;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command};

#[path = "../../../tests/harness/watcher.rs"]
mod watcher;

/// A running child process. Dropping it kills it and waits for its end.
pub(crate) struct Spawned {
    child: Child,
    watcher: Child,
}

impl Spawned {
    /// Starts `command`. If this process dies first, the child is killed and `folder` removed.
    pub(crate) fn start(command: &mut Command, folder: Option<&Path>) -> io::Result<Spawned> {
        let mut child = command.spawn()?;
        let watcher =
            watcher::watch(child.id(), folder).inspect_err(|_| watcher::end(&mut child))?;
        Ok(Spawned { child, watcher })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pipes of the standard input and output, if the command has pipes.
    pub(crate) fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        watcher::end(&mut self.watcher);
        watcher::end(&mut self.child);
    }
}
