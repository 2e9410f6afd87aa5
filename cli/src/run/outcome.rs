//! From the end of the command to the exit code.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use leasehold::{Error, Events, LostReason, Released};
use rustix::process::WaitStatus;

use super::kinds::Held;
use super::once;
use super::output::Captured;
use super::supervisor::{End, Rest};
use crate::args::CommandArgs;
use crate::failure::{Code, Failure, Result, print_note};

/// The exit code for signal number 0; that of signal N is higher by N.
pub(super) const SIGNALLED: i32 = 128;

/// How long the last event of a client may take to its listener.
const LAST_EVENT: Duration = Duration::from_millis(250);

/// Returns the listener of the client, and what it hears.
pub(super) fn releases() -> (impl Events, Releases) {
    let (sender, receiver) = channel();
    (Listener(sender), Releases(receiver))
}

struct Listener(Sender<bool>);

impl Events for Listener {
    fn released(&self, event: &Released) {
        let _ = self.0.send(event.error.is_none());
    }
}

/// The ends of releases, which the client repeats without an answer.
pub(super) struct Releases(Receiver<bool>);

impl Releases {
    /// Returns whether the hold was released, for a client that has ended.
    pub(super) fn was_released(&self) -> bool {
        self.0.recv_timeout(LAST_EVENT).unwrap_or(false)
    }
}

/// An exit code that is no failure of `leasehold`.
pub(super) struct Outcome {
    code: u8,
    /// The error of a release that the server did not confirm.
    unconfirmed: Option<Error>,
}

impl Outcome {
    pub(super) fn of(code: u8) -> Outcome {
        Outcome { code, unconfirmed: None }
    }

    /// Returns the outcome of an end by a signal.
    pub(super) fn of_signal(signal: i32) -> Outcome {
        Outcome::of(u8::try_from(signal + SIGNALLED).unwrap_or(u8::MAX))
    }

    /// Returns the outcome of a command that has ended by itself.
    fn of_command(status: WaitStatus) -> Outcome {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Outcome::of(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Outcome::of_signal(signal),
            (None, None) => Outcome::of(Code::Internal as u8),
        }
    }

    /// Returns whether the server has confirmed the release.
    pub(super) fn is_confirmed(&self) -> bool {
        self.unconfirmed.is_none()
    }

    /// Notes that the client has repeated the release with success.
    pub(super) fn confirm(&mut self) {
        self.unconfirmed = None;
    }

    /// Tells about a release that is not confirmed, and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        if let Some(error) = self.unconfirmed {
            let note = "the release is not confirmed; the lock is free when its lease ends";
            print_note(&format!("leasehold: {note}: {}", error.with_causes()));
        }
        ExitCode::from(self.code)
    }
}

/// Releases the lock, or commits the result, and returns the outcome.
///
/// If the lock was lost before the command ended, another command may have run at the same time:
/// this is a failure, whatever the command returned.
pub(super) fn of_started(
    end: Result<End>,
    held: Held,
    output: Captured,
    args: &CommandArgs,
) -> Result<Outcome> {
    match end {
        Ok(End::Ended(status)) if held.commits() && status.exit_status() == Some(0) => {
            once::commit(held, output, args)
        }
        Ok(End::Ended(status)) => match held.check().and_then(|()| held.release()).err() {
            Some(error) if error.is_lost() => {
                Err(lost(Some(error), "this was before the command ended"))
            }
            unconfirmed => Ok(Outcome { unconfirmed, ..Outcome::of_command(status) }),
        },
        Ok(End::Lost(rest)) => Err(lost(held.check().err(), consequence(rest))),
        // The exit code says enough if this release fails.
        Ok(End::TooLong(rest)) => {
            let _ = held.release();
            let (limit, consequence) = (args.max_hold.unwrap_or_default(), consequence(rest));
            let text =
                format!("the command ran for longer than --max-hold {limit:?}; {consequence}");
            Err(Failure::new(Code::Lost, text))
        }
        Err(failure) => {
            let _ = held.release();
            Err(failure)
        }
    }
}

pub(super) fn lost(error: Option<Error>, consequence: &str) -> Failure {
    let advice = match error.as_ref().and_then(Error::lost_reason) {
        Some(LostReason::Gone) => "somebody deleted the key or freed the lock",
        _ => "check the server and the network, or use a longer --lease",
    };
    let text = error
        .map_or_else(|| "the lock was lost".to_owned(), |error| error.with_causes().to_string());
    Failure::new(Code::Lost, format!("{text}; {consequence}; {advice}"))
}

fn consequence(rest: Rest) -> &'static str {
    match rest {
        Rest::HadEnded => "the command had ended by itself",
        Rest::Nothing => "the command was terminated",
        Rest::Survivors => "the command could not be terminated: its processes may still run",
    }
}
