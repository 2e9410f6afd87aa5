//! The watcher of a child process: a shell that reads from a pipe whose only other end is here.
//!
//! However this process ends, the kernel closes that end. Then the shell kills the child and
//! removes the child's folder. The kernel's parent-death signal does not serve: the kernel sends it
//! at the end of the *thread* that started the child. The benchmark includes this file too.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The shell script of a watcher: `$1` is the child, `$2` its folder or empty.
const WATCH: &str = r#"read -r _; kill -KILL "$1"; [ -z "$2" ] || rm -rf -- "$2""#;

/// Starts the watcher of process `pid`.
///
/// The watcher has its own process group, so that a Ctrl-C at the terminal does not end it too
/// early.
pub(crate) fn watch(pid: u32, folder: Option<&Path>) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", WATCH, "watcher", &pid.to_string()])
        .arg(folder.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Kills a child process, if it still runs, and waits for its end.
pub(crate) fn end(child: &mut Child) {
    // Both calls fail only if the process has ended.
    let _ = child.kill();
    let _ = child.wait();
}
