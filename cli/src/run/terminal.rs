//! The terminal of an interactive command, and job control.
//!
//! The command has a process group of its own, and a terminal serves one group at a time, the
//! foreground group. So the group of the command gets the terminal:
//! - before the command executes, if the group of `leasehold` has the terminal, and stdin and
//!   stdout are terminals. Keys such as Ctrl-C then reach the command directly.
//! - when the command stops because it needs the terminal (TTIN, TTOU). In `run ... | less`, the
//!   pager keeps the terminal as long as the command does not need it.
//!
//! When the command stops (Ctrl-Z), `leasehold` takes the terminal back and stops too, with its own
//! group, so that the shell takes over. `fg` continues `leasehold`, and `leasehold` continues the
//! command. At the end of the command the terminal is taken back.
//!
//! Without a shell nobody gives the terminal to a command in the background: `leasehold` ends it.

use std::fs::{self, File};
use std::io::{self, IsTerminal, stdin, stdout};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blocked};
use nix::unistd;
use rustix::process::{self, Pid, Signal};
use rustix::termios::{self, OptionalActions, Termios};

use super::group::Group;

/// The path of the controlling terminal.
const PATH: &str = "/dev/tty";

/// The signals that end a command that waits for the terminal in vain, in their order.
///
/// The kernel, too, sends HUP to stopped processes that no shell will continue. A command that
/// ignores it would stop again, for ever, under the lock.
const ENDS: [Signal; 3] = [Signal::HUP, Signal::TERM, Signal::KILL];

/// The controlling terminal.
pub(super) struct Terminal(File);

impl Terminal {
    /// Returns the terminal for a command that starts, if it is interactive.
    fn of_interactive() -> Option<Terminal> {
        let terminal = Terminal::open()?;
        (terminal.foreground()? == own_group()?).then_some(terminal)
    }

    fn open() -> Option<Terminal> {
        File::options().read(true).write(true).open(PATH).ok().map(Terminal)
    }

    /// Returns the terminal once more, for a forked child.
    pub(super) fn try_clone(&self) -> io::Result<Terminal> {
        self.0.try_clone().map(Terminal)
    }

    /// Returns the foreground group; `None` if it is outside of this PID namespace.
    fn foreground(&self) -> Option<Pid> {
        termios::tcgetpgrp(&self.0).ok()
    }

    /// Gives the terminal to a group. Only system calls that are async-signal-safe.
    pub(super) fn give_to(&self, group: Pid) -> io::Result<()> {
        // A group in the background gets TTOU for this call, unless the signal is blocked.
        let mut mask = SigSet::empty();
        mask.add(Blocked::SIGTTOU);
        let old = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let result = termios::tcsetpgrp(&self.0, group);
        old.thread_set_mask()?;
        Ok(result?)
    }

    fn settings(&self) -> Option<Termios> {
        termios::tcgetattr(&self.0).ok()
    }
}

/// Returns whether a command with the input and the output of this process is interactive.
pub(super) fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Moves the terminal between the groups, and stops this process with the command.
pub(super) struct JobControl {
    /// Whether the input and the output of the command are a terminal.
    is_interactive: bool,
    /// The group of this process, if it has an id here.
    own: Option<Pid>,
    /// The group of the command, once it has started.
    other: Option<Pid>,
    /// The terminal, while the command has it.
    given: Option<Terminal>,
    /// The settings of the terminal before the command had it for the first time.
    settings: Option<Termios>,
    /// Whether a TSTP was forwarded.
    stop_forwarded: bool,
    /// The signals that the command has yet to get if it needs a terminal that nobody gives to it.
    ends: std::slice::Iter<'static, Signal>,
}

impl JobControl {
    /// Returns the state before the command starts: an interactive command gets the terminal.
    pub(super) fn new(is_interactive: bool) -> JobControl {
        let given = is_interactive.then(Terminal::of_interactive).flatten();
        let settings = given.as_ref().and_then(Terminal::settings);
        let (own, other) = (own_group(), None);
        let (stop_forwarded, ends) = (false, ENDS.iter());
        JobControl { is_interactive, own, other, given, settings, stop_forwarded, ends }
    }

    /// Returns the terminal that the command gets.
    pub(super) fn terminal(&self) -> Option<&Terminal> {
        self.given.as_ref()
    }

    /// Sets the group of the command, which has started.
    pub(super) fn with(self, other: Pid) -> JobControl {
        JobControl { other: Some(other), ..self }
    }

    /// Forwards a signal to the command.
    pub(super) fn forward(&mut self, signal: Signal, group: &Group) {
        match signal {
            Signal::TSTP if !has_shell() => return,
            Signal::TSTP => self.stop_forwarded = true,
            Signal::CONT => {
                self.stop_forwarded = false;
                if self.is_interactive {
                    self.give();
                }
            }
            _ => {}
        }
        group.signal(signal);
        if [Signal::TERM, Signal::HUP].contains(&signal) {
            // A stopped command takes them when it continues. Shells send CONT too.
            group.signal(Signal::CONT);
        }
    }

    /// Reacts to a stop of the command.
    pub(super) fn stopped(&mut self, signal: i32, group: &Group) {
        let needs_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        if needs_terminal && self.give() {
            return group.signal(Signal::CONT);
        }
        if self.given.is_none() && !self.stop_forwarded && !needs_terminal {
            // Somebody looks at the command, without the shell: the lock stays held.
            return;
        }
        match (is_orphaned(), needs_terminal) {
            // An outer `run` has to know the reason: it gives the terminal, or stops too.
            (Some(false), true) => self.stop(signal),
            (Some(false), false) => self.stop(Signal::STOP.as_raw()),
            // No shell would continue this process. A program of its own would not stop there.
            (_, false) => self.forward(Signal::CONT, group),
            // Nobody would continue the command: each of its stops brings a harder signal.
            (Some(true), true) => {
                if let Some(signal) = self.ends.next() {
                    group.signal(*signal);
                    group.signal(Signal::CONT);
                }
            }
            (None, true) => {}
        }
    }

    /// Stops this process by this signal until the shell continues it.
    ///
    /// A CONT then follows, which is forwarded.
    fn stop(&mut self, signal: i32) {
        if self.end() {
            // The terminal has stopped the command alone: the rest of the job has to stop too.
            let _ = process::kill_current_process_group(Signal::STOP);
        } else {
            stop_this_thread_and_all_others(signal);
        }
    }

    /// Takes the terminal back; returns whether the command had it.
    pub(super) fn end(&mut self) -> bool {
        self.take_back().is_some()
    }

    /// Takes the terminal back, with the settings that it had.
    pub(super) fn end_with_old_settings(&mut self) {
        if let (Some(terminal), Some(settings)) = (self.take_back(), &self.settings) {
            // The call fails if the terminal is gone.
            let _ = termios::tcsetattr(&terminal.0, OptionalActions::Drain, settings);
        }
    }

    /// Gives the terminal to the command, if this process has it.
    ///
    /// Returns whether the command has the terminal.
    fn give(&mut self) -> bool {
        let (Some(terminal), Some(other)) = (Terminal::open(), self.other) else {
            return false;
        };
        match terminal.foreground() {
            // The command stopped before it had the terminal, and has it now.
            Some(group) if group == other => true,
            Some(group) if Some(group) == self.own => {
                self.settings = self.settings.take().or_else(|| terminal.settings());
                let is_given = terminal.give_to(other).is_ok();
                self.given = is_given.then_some(terminal);
                is_given
            }
            _ => false,
        }
    }

    /// Takes the terminal back, unless a shell or another job has it.
    fn take_back(&mut self) -> Option<Terminal> {
        let terminal = self.given.take()?;
        let exists = |group| process::test_kill_process_group(group).is_ok();
        let is_elsewhere = |group: Pid| Some(group) != self.other && exists(group);
        if terminal.foreground().is_some_and(is_elsewhere) {
            return None;
        }
        if let Some(own) = self.own {
            // The call fails if the terminal is gone.
            let _ = terminal.give_to(own);
        }
        Some(terminal)
    }
}

/// Returns the group of this process; `None` if it is outside of this PID namespace.
///
/// `unshare --pid` without a new session leaves a process in such a group. The group has no id in
/// the namespace, so nothing can give it the terminal.
pub(super) fn own_group() -> Option<Pid> {
    // The kernel shows such a group as 0, which the types of rustix cannot hold.
    Pid::from_raw(unistd::getpgrp().as_raw())
}

/// Stops this process until CONT, unless no shell would continue it.
pub(super) fn stop_this_process() {
    if has_shell() {
        stop_this_thread_and_all_others(Signal::STOP.as_raw());
    }
}

/// Stops this process; the calling thread has stopped when the call returns.
fn stop_this_thread_and_all_others(signal: i32) {
    let _ = signal_hook::low_level::raise(signal);
}

/// Returns whether a shell is known that would continue this process after a stop.
fn has_shell() -> bool {
    is_orphaned() == Some(false)
}

/// Returns whether the group of this process is orphaned: no shell in the session controls it.
///
/// The kernel ignores TSTP for such a group. The first ancestor outside of the group decides;
/// `None` if it is not visible: outside of this PID namespace, or hidden in `/proc`.
fn is_orphaned() -> Option<bool> {
    // Groups and sessions outside of this PID namespace have the id 0, which only nix can hold.
    let (group, session) = (unistd::getpgrp(), unistd::getsid(None));
    let mut ancestor = process::getppid();
    loop {
        let pid = ancestor?;
        let id = Some(unistd::Pid::from_raw(pid.as_raw_nonzero().get()));
        if unistd::getsid(id) != session {
            return Some(true);
        }
        if unistd::getpgid(id) != Ok(group) {
            return Some(false);
        }
        ancestor = parent_of(pid);
    }
}

/// Returns the parent of another process; `None` on systems without `/proc`.
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name of the program, in parentheses, may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    Pid::from_raw(fields.split_whitespace().nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_process_is_known() {
        assert_eq!(parent_of(process::getpid()), process::getppid());
    }
}
