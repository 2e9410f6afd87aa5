//! [`Failure`]: an exit code, and one line that says what to do.

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use leasehold::ErrorKind;
use rustix::io::Errno;

use crate::views::print::is_harmless;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The exit codes of the program, other than 0 and those of a child.
///
/// The README has the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// The lock was not acquired; `show`: the lock is free; `audit`: there are findings.
    Negative = 1,
    /// The command line is wrong.
    Usage = 64,
    /// The output of the command of `once` is too large for a result.
    TooLarge = 65,
    /// No server answers.
    Unavailable = 69,
    /// The program or the system failed.
    Internal = 70,
    /// The output file of `timeline` cannot be written.
    CannotCreate = 73,
    /// The lock was lost, and the child was terminated.
    Lost = 75,
    /// The server refuses the command.
    Refused = 77,
    /// The command of `run` cannot be executed.
    NotExecutable = 126,
    /// The command of `run` does not exist.
    NotFound = 127,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// A failure of the program: an exit code, and one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}", one_line(.text))]
pub(crate) struct Failure {
    pub(crate) code: Code,
    text: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(Code::Usage, text)
    }

    /// Prints the line and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        print_note(&format!("leasehold: {self}"));
        self.code.into()
    }
}

/// Returns a text without its line breaks. The text of a server may have several lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The settings in the texts of the library, and those of the program. Some it does not have.
const SETTINGS: [(&str, &str); 5] = [
    ("; Builder::allow_replica permits replicas", ""),
    ("Builder::single", "--url alone"),
    ("Builder::sentinel", "--sentinel M"),
    ("Builder::cluster", "--cluster"),
    ("Builder::login", "LEASEHOLD_LOGIN"),
];

/// Returns a text of the library with the settings of the program.
pub(crate) fn with_own_settings(text: &str) -> String {
    SETTINGS.iter().fold(text.to_owned(), |text, (of_library, of_program)| {
        text.replace(of_library, of_program)
    })
}

impl From<leasehold::Error> for Failure {
    fn from(error: leasehold::Error) -> Failure {
        let (code, advice) = advice(&error);
        Failure::new(code, with_own_settings(&error.with_causes().to_string()) + advice)
    }
}

/// Returns the exit code for an error of the library, and what to do. The text of a refusal by the
/// server already says that.
fn advice(error: &leasehold::Error) -> (Code, &'static str) {
    match error.kind() {
        ErrorKind::Connection => (Code::Unavailable, "; is the server running, and --url right?"),
        ErrorKind::Timeout | ErrorKind::PoolTimeout => {
            (Code::Unavailable, "; check the load of the server and the network")
        }
        ErrorKind::InvalidName => (Code::Usage, "; use another name"),
        ErrorKind::Configuration if is_caused_by_limit(error) => {
            (Code::Internal, "; raise the limits of threads and memory")
        }
        ErrorKind::Configuration => (Code::Usage, ""),
        ErrorKind::Server if error.is_retryable() => (Code::Unavailable, ""),
        ErrorKind::Server => (Code::Refused, ""),
        ErrorKind::Lost => (Code::Lost, ""),
        _ => (Code::Internal, ""),
    }
}

fn is_caused_by_limit(error: &leasehold::Error) -> bool {
    error.source().and_then(|cause| cause.downcast_ref()).is_some_and(is_limit)
}

/// Returns whether the process or the system has no room for more threads, processes or files.
pub(crate) fn is_limit(error: &io::Error) -> bool {
    let limits = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
    Errno::from_io_error(error).is_some_and(|error| limits.contains(&error))
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new(Code::Internal, error.to_string())
    }
}

/// Prints lines on stderr, without anything else that a terminal obeys.
///
/// A stderr that has no reader or no space changes nothing else, least of all the exit code.
pub(crate) fn print_note(lines: &str) {
    let _ = io::stderr().write_all(format!("{}\n", harmless(lines)).as_bytes());
}

/// Returns the lines with escapes in the place of what a terminal obeys.
fn harmless(lines: &str) -> String {
    let mut shown = String::with_capacity(lines.len());
    for sign in lines.chars() {
        if sign == '\n' || is_harmless(sign) {
            shown.push(sign);
        } else {
            shown.extend(sign.escape_debug());
        }
    }
    shown
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Tables for people.
    Text,
    /// JSON for programs.
    Json,
}

impl Output {
    /// Returns whether the output may have colours.
    pub(crate) fn has_colours(self) -> bool {
        self == Output::Text && io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_have_nothing_that_a_terminal_obeys() {
        assert_eq!(harmless("a\u{1b}[2J\r\nb \\ é 漢"), "a\\u{1b}[2J\\r\nb \\ é 漢");
        assert_eq!(harmless("\u{202e}a\u{9b}"), "\\u{202e}a\\u{9b}");
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_no_wrong_usage() {
        let error = leasehold::Error::new(ErrorKind::Configuration, "no thread");
        assert_eq!(Failure::from(error.clone()).code, Code::Usage);
        let limited = error.clone().with_source(io::Error::from(Errno::AGAIN));
        assert_eq!(Failure::from(limited).code, Code::Internal);
        let missing = error.with_source(io::Error::from(Errno::NOENT));
        assert_eq!(Failure::from(missing).code, Code::Usage);
    }
}
