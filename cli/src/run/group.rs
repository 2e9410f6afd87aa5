//! The process group of the command.

use std::process::Child;

use rustix::io::Errno;
use rustix::process::{self, Pid, Signal, WaitOptions, WaitStatus};

/// The processes of the command: it leads their group.
pub(super) struct Group {
    /// The process id of the command, and the id of the group.
    leader: Pid,
    /// The end of the command, once it is known.
    status: Option<WaitStatus>,
}

/// A change of the command's state.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Ended(WaitStatus),
    /// Stopped by a signal with this number.
    Stopped(i32),
}

impl Group {
    /// Returns the group that this child leads.
    pub(super) fn of(child: &Child) -> Group {
        Group { leader: Pid::from_child(child), status: None }
    }

    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// Sends a signal to the processes of the group, and to the command if it left the group.
    pub(super) fn signal(&self, signal: Signal) {
        // Both fail only if there is no such process any more.
        let _ = process::kill_process_group(self.leader, signal);
        if self.status.is_none() && process::getpgid(Some(self.leader)) != Ok(self.leader) {
            let _ = process::kill_process(self.leader, signal);
        }
    }

    /// Returns the last change of the command's state since the last call.
    ///
    /// Also removes other ended children: of the first process of a container, and of
    /// [`Group::adopt`].
    pub(super) fn change(&mut self) -> Option<Change> {
        let mut last = None;
        while let Some((pid, status)) = next_change() {
            if pid != self.leader {
                continue;
            }
            if status.exited() || status.signaled() {
                self.status = Some(status);
                last = Some(Change::Ended(status));
            } else {
                last = status.stopping_signal().map(Change::Stopped);
            }
        }
        last
    }

    /// Returns whether no process of the group is left.
    ///
    /// After this the id may become that of another group: the caller sends no more signals.
    pub(super) fn has_ended(&self) -> bool {
        let group = process::test_kill_process_group(self.leader);
        self.status.is_some() && group == Err(Errno::SRCH)
    }

    /// Makes this process the parent of the group's orphans, to remove them when they have ended.
    ///
    /// The first process of a container often does not, and the group would never seem empty.
    pub(super) fn adopt() {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = process::set_child_subreaper(Some(process::getpid()));
    }
}

fn next_change() -> Option<(Pid, WaitStatus)> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    loop {
        match process::wait(options) {
            Err(Errno::INTR) => {}
            // The error means that there is no child.
            change => return change.ok().flatten(),
        }
    }
}
