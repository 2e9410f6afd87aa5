//! A child process that never outlives this one.
//!
//! `Drop` kills the child, but does not run when this process is killed. So each child has a
//! watcher: a shell that blocks in a read of a pipe whose only other end is here. However this
//! process ends, the kernel closes that end, and the shell kills the child and removes its
//! folder. The watcher is ended before the child is reaped, so that it never kills a stranger
//! who was given the same process id.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;

/// What a watcher runs: `$1` is the child, `$2` its folder or nothing.
const WATCH: &str = r#"read -r _; kill -KILL "$1"; [ -z "$2" ] || rm -rf -- "$2""#;

/// A running child process. Dropping it kills it and waits for its end.
pub(crate) struct Spawned {
    child: Child,
    watcher: Child,
}

impl Spawned {
    /// Starts `command`. If this process dies before the child does, the child is killed
    /// and `folder` removed.
    pub(crate) fn start(command: &mut Command, folder: Option<&Path>) -> Result<Spawned> {
        let mut child = command.spawn()?;
        let watcher = watch(child.id(), folder).inspect_err(|_| end(&mut child))?;
        Ok(Spawned { child, watcher })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pipes to its input and from its output, if it was given any.
    pub(crate) fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        end(&mut self.watcher);
        end(&mut self.child);
    }
}

/// Starts the watcher of process `pid`. It has a process group of its own, so that a Ctrl-C
/// at the terminal does not end it before its work is done.
fn watch(pid: u32, folder: Option<&Path>) -> Result<Child> {
    let watcher = Command::new("sh")
        .args(["-c", WATCH, "watcher", &pid.to_string()])
        .arg(folder.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    Ok(watcher?)
}

fn end(child: &mut Child) {
    // Both fail only if it has ended, which is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}
