//! The watcher of a child process: a shell that blocks in a read of a pipe whose only other
//! end is here. However this process ends, the kernel closes that end, and the shell kills
//! the child and removes its folder. (The kernel's own parent-death signal will not do: it
//! is sent when the *thread* that started the child ends.) The benchmark has this file too.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What a watcher runs: `$1` is the child, `$2` its folder or nothing.
const WATCH: &str = r#"read -r _; kill -KILL "$1"; [ -z "$2" ] || rm -rf -- "$2""#;

/// Starts the watcher of process `pid`. It has a process group of its own, so that a Ctrl-C
/// at the terminal does not end it before its work is done.
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

/// Ends a child process, if it has not ended.
pub(crate) fn end(child: &mut Child) {
    // Both fail only if it has ended, which is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}
