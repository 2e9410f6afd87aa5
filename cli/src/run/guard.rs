//! The process that ends the command if `leasehold` is killed.
//!
//! It is this program again, in a process group of its own, and reads from a pipe. The command
//! writes its process id there before it executes. The end of the pipe means that `leasehold` has
//! died, by KILL for instance: then the guard ends the group of the command, as `leasehold` does
//! after a loss of the lock. When the command needs no guard any more, `leasehold` kills the guard.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::supervisor::{CHECK_INTERVAL, GRACE};
use crate::failure::print_note;

/// The only argument of the guard. No verb has this name.
const ARGUMENT: &str = "__guard";

/// The length of a process id in the pipe.
const ID: usize = size_of::<i32>();

/// The guard, as `leasehold` has it. Its drop without [`Guard::dismiss`] ends the command, because
/// it closes the pipe.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts the process.
    pub(super) fn start() -> io::Result<Guard> {
        // Also works if another version has replaced the file.
        let own =
            if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { env::current_exe()? };
        let mut command = Command::new(own);
        command.arg0("leasehold").arg(ARGUMENT).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Guard)
    }

    /// Returns the end of the pipe for the command, which has to [`announce`] itself.
    pub(super) fn pipe(&self) -> io::Result<OwnedFd> {
        self.0.stdin.as_ref().map_or(Err(Errno::PIPE.into()), |it| it.as_fd().try_clone_to_owned())
    }

    /// Ends the guard: the command has ended, goes on without the lock, or was not started.
    ///
    /// A guard that is stopped ends too. The call waits for it: the first process of a container
    /// may not remove it.
    pub(super) fn dismiss(mut self) {
        // Both fail only if the guard has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints that the command has no guard.
pub(super) fn note_missing(error: &io::Error) {
    print_note(&format!(
        "leasehold: no guard for the command: {error}; a SIGKILL of leasehold would not end it"
    ));
}

/// Tells the guard the id of this process, which leads the group of the command. Returns whether
/// the guard is there. Makes one system call; SIGPIPE has to be ignored.
pub(super) fn announce(pipe: &OwnedFd, own: Pid) -> bool {
    rustix::io::write(pipe, &own.as_raw_nonzero().get().to_ne_bytes()).is_ok()
}

/// Runs the guard, if the command line asks for it.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut words = env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new(ARGUMENT)) || words.next().is_some() {
        return None;
    }
    // Signals to all processes of a service leave the guard to its work. KILL of `leasehold` may
    // follow.
    let _ignored = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    let mut told = Vec::new();
    // An error is the end too.
    let _ = io::stdin().read_to_end(&mut told);
    if let Some(group) = abandoned(&told) {
        end(group);
    }
    Some(ExitCode::SUCCESS)
}

/// Returns the group that nobody watches any more, by what the pipe has told.
fn abandoned(told: &[u8]) -> Option<Pid> {
    let id: [u8; ID] = told.try_into().ok()?;
    Pid::from_raw(i32::from_ne_bytes(id)).filter(|group| !group.is_init())
}

/// Ends all processes of the group: TERM, and KILL after 5 s.
fn end(group: Pid) {
    // These fail only if there is no such process any more, or for those of another user.
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    let end = Instant::now() + GRACE;
    while test_kill_process_group(group) != Err(Errno::SRCH) {
        if Instant::now() >= end {
            let _ = kill_process_group(group, Signal::KILL);
            return;
        }
        thread::sleep(CHECK_INTERVAL.max(Duration::from_millis(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_abandoned_if_the_pipe_ends_behind_its_id() {
        let id = 4711_i32.to_ne_bytes();
        assert_eq!(abandoned(&id), Pid::from_raw(4711));
        for nobody in [&[][..], &id[..3], &0_i32.to_ne_bytes(), &1_i32.to_ne_bytes()] {
            assert_eq!(abandoned(nobody), None, "{nobody:?}");
        }
    }
}
