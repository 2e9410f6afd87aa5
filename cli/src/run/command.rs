//! The command of `run` and `once`: found before the lock is taken, started under the lock.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::sys::signal::{self, SigHandler, Signal as Handled};
use rustix::fs::{Access, access};
use rustix::process::getpid;

use super::guard::{self, Guard, note_missing};
use super::kinds::Held;
use super::terminal::{Terminal, own_group};
use crate::failure::{Code, Failure, Result, is_limit};

/// The variable with the name of the lock.
const LOCK: &str = "LEASEHOLD_LOCK";

/// The variable with the token of a queue lock, or of work that is done once.
const TOKEN: &str = "LEASEHOLD_TOKEN";

/// The variable with the slot of a permit.
const SLOT: &str = "LEASEHOLD_SLOT";

/// The folders that are searched if PATH is not set, as by execvp(3).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The greatest length of a client's label in bytes.
const LABEL_LENGTH: usize = 256;

/// A command that exists.
pub(super) struct Program<'a> {
    name: &'a OsStr,
    arguments: &'a [OsString],
}

impl<'a> Program<'a> {
    /// Finds the command as a shell does, so that a missing one takes no lock.
    pub(super) fn find(words: &'a [OsString]) -> Result<Program<'a>> {
        let (name, arguments) =
            words.split_first().ok_or_else(|| Failure::usage("no command is given"))?;
        let found: Vec<PathBuf> = candidates(name).into_iter().filter(|it| it.exists()).collect();
        if found.iter().any(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok()) {
            Ok(Program { name, arguments })
        } else if found.is_empty() {
            Err(not_started(name, Code::NotFound, "not found"))
        } else {
            Err(not_started(name, Code::NotExecutable, "not executable"))
        }
    }

    /// Returns the file name of the command, as the label of a client.
    pub(super) fn label(&self) -> String {
        let name = Path::new(self.name).file_name().unwrap_or(self.name).to_string_lossy();
        let mut label = String::new();
        for sign in name.chars().filter(|sign| !sign.is_control()) {
            if label.len() + sign.len_utf8() <= LABEL_LENGTH {
                label.push(sign);
            }
        }
        if label.is_empty() { "leasehold".to_owned() } else { label }
    }

    /// Starts the command as the leader of a process group of its own, which gets the terminal and
    /// the guard, and writes to this pipe, if there is one.
    pub(super) fn start(
        &self,
        lock: &str,
        held: &Held,
        terminal: Option<&Terminal>,
        guard: Option<&Guard>,
        output: Option<PipeWriter>,
    ) -> Result<Child> {
        let mut command = Command::new(self.name);
        if let Some(output) = output {
            command.stdout(output);
        }
        command.args(self.arguments).process_group(0).env(LOCK, lock);
        let facts = [(TOKEN, held.token()), (SLOT, held.slot().map(u64::from))];
        for (variable, fact) in facts {
            match fact {
                Some(fact) => command.env(variable, fact.to_string()),
                // A token of an outer `run` is no token of this lock.
                None => command.env_remove(variable),
            };
        }
        let terminal_of_command = terminal.map(Terminal::try_clone).transpose()?;
        let guard = guard.and_then(|guard| guard.pipe().map_err(|error| note_missing(&error)).ok());
        prepare(&mut command, terminal_of_command, guard);
        command.spawn().map_err(|error| {
            if let (Some(terminal), Some(own)) = (terminal, own_group()) {
                // The child may have had it already.
                let _ = terminal.give_to(own);
            }
            self.refused(&error)
        })
    }

    fn refused(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            _ if is_limit(error) => Code::Internal,
            _ => Code::NotExecutable,
        };
        not_started(self.name, code, &error.to_string())
    }
}

fn not_started(name: &OsStr, code: Code, reason: &str) -> Failure {
    Failure::new(code, format!("the command {} cannot be run: {reason}", name.display()))
}

/// Returns the paths where the system looks for a command.
fn candidates(name: &OsStr) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if Path::new(name).components().count() > 1 || name.as_encoded_bytes().contains(&b'/') {
        return vec![name.into()];
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    env::split_paths(&folders).map(|folder| folder.join(name)).collect()
}

/// Has the child prepare itself before it executes the command.
#[allow(unsafe_code, reason = "only the child itself can make these calls, before it executes")]
fn prepare(command: &mut Command, terminal: Option<Terminal>, guard: Option<OwnedFd>) {
    let prepare = move || {
        if guard.as_ref().is_some_and(|pipe| !announce(pipe)) {
            note(
                b"leasehold: the guard of the command has ended; a SIGKILL of leasehold would not \
                end the command\n",
            );
        }
        drop_handlers();
        let given = terminal.as_ref().map_or(Ok(()), |terminal| terminal.give_to(getpid()));
        if given.is_err() {
            note(b"leasehold: the system refuses to give the terminal to the command\n");
        }
        Ok(())
    };
    // SAFETY: between fork and exec, `prepare` only makes system calls that are async-signal-safe
    // (sigaction, getpid, sigprocmask, ioctl, write). It neither allocates nor locks.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Announces this process to the guard; returns false if the guard has ended, which must not end
/// the command by SIGPIPE.
#[allow(unsafe_code, reason = "neither effect runs code of this program")]
fn announce(guard: &OwnedFd) -> bool {
    // SAFETY: neither an ignored signal nor the former effect, which exec would have kept, has a
    // handler of this program: `run` handles no SIGPIPE.
    let former = unsafe { signal::signal(Handled::SIGPIPE, SigHandler::SigIgn) };
    let is_there = guard::announce(guard, getpid());
    if let Ok(former) = former {
        // SAFETY: as above.
        let _ = unsafe { signal::signal(Handled::SIGPIPE, former) };
    }
    is_there
}

/// Gives signals their default effect, except those that are ignored.
///
/// Until it executes the command, the child has the handlers of its parent, which would swallow a
/// TERM or a Ctrl-C.
#[allow(unsafe_code, reason = "the default effect runs no code of this program")]
fn drop_handlers() {
    for signal in Handled::iterator() {
        // SAFETY: neither effect is a handler. KILL and STOP have none, and the call fails.
        unsafe {
            if !matches!(signal::signal(signal, SigHandler::SigIgn), Ok(SigHandler::SigIgn)) {
                let _ = signal::signal(signal, SigHandler::SigDfl);
            }
        }
    }
}

/// Prints a note of the child before it executes the command. The command works without the rest.
fn note(text: &[u8]) {
    // A stderr that has no reader changes nothing else.
    let _ = rustix::io::write(rustix::stdio::stderr(), text);
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn label(name: &str) -> String {
        Program { name: OsStr::new(name), arguments: &[] }.label()
    }

    #[test]
    fn the_label_is_the_file_name_of_the_command() {
        assert_eq!(label("/usr/bin/true"), "true");
        assert_eq!(label("back\nup"), "backup");
        assert_eq!(label("\u{7}"), "leasehold");
        assert_eq!(label(&"ä".repeat(300)).len(), LABEL_LENGTH);
    }

    #[test]
    fn a_limit_of_the_system_is_no_fault_of_the_command() {
        let program = Program { name: OsStr::new("true"), arguments: &[] };
        for (error, code) in [
            (Errno::NOENT, Code::NotFound),
            (Errno::ACCESS, Code::NotExecutable),
            (Errno::AGAIN, Code::Internal),
            (Errno::MFILE, Code::Internal),
        ] {
            assert_eq!(program.refused(&error.into()).code, code, "{error}");
        }
    }

    #[test]
    fn a_command_is_found_as_a_shell_finds_it() {
        let code = |name: &str| Program::find(&[name.into()]).err().map(|failure| failure.code);
        assert_eq!(code("true"), None);
        assert_eq!(code("/bin/sh"), None);
        assert_eq!(code("/"), Some(Code::NotExecutable));
        assert_eq!(code("/dev/null"), Some(Code::NotExecutable));
        for missing in ["", "/no/such/command", "no-such-command"] {
            assert_eq!(code(missing), Some(Code::NotFound), "{missing}");
        }
    }
}
