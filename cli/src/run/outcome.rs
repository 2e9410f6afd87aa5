//! From the end of the command to the exit code.

use std::process::ExitCode;

use leasehold::LostReason;
use rustix::process::WaitStatus;

use super::lock::Held;
use super::supervisor::End;
use crate::args::RunArgs;
use crate::failure::{Code, Failure, Result};

/// The exit code for signal number 0; that of signal N is higher by N.
const SIGNALLED: u8 = 128;

/// Returns the exit code for an end by a signal.
pub(super) fn ended_by(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(SIGNALLED)))
}

/// Releases the lock, and returns the exit code.
pub(super) fn of_started(end: Result<End>, held: Held, args: &RunArgs) -> Result<ExitCode> {
    match end {
        Ok(End::Ended(status)) => ended(status, held),
        Ok(End::Lost) => Err(lost(held.check().err(), "the command was terminated")),
        Ok(End::TooLong) => {
            confirm(held.release())?;
            Err(too_long(args))
        }
        Err(failure) => {
            confirm(held.release())?;
            Err(failure)
        }
    }
}

/// Returns the exit code of a command that has ended by itself.
///
/// A lock that was lost before makes it a failure: another command may have run at the same time.
fn ended(status: WaitStatus, held: Held) -> Result<ExitCode> {
    match held.check() {
        Ok(()) => confirm(held.release())?,
        Err(error) => return Err(lost(Some(error), "it was lost before the command ended")),
    }
    Ok(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => ended_by(signal),
        (None, None) => Code::Internal.into(),
    })
}

/// Reports a release that failed. Only a loss is a failure: the rest ends with the lease.
fn confirm(outcome: leasehold::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.is_lost() => {
            Err(lost(Some(error), "it was lost before the command ended"))
        }
        Err(error) => {
            eprintln!(
                "leasehold: the release is not confirmed, the lease may have to end: {error}"
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn lost(error: Option<leasehold::Error>, consequence: &str) -> Failure {
    let advice = match error.as_ref().and_then(leasehold::Error::lost_reason) {
        Some(LostReason::Gone) => "somebody deleted the key or freed the lock",
        _ => "check the server and the network, or use a longer --lease",
    };
    let text = error.map_or_else(|| "the lock was lost".to_owned(), |error| error.to_string());
    Failure::new(Code::Lost, format!("{text}; {consequence}; {advice}"))
}

fn too_long(args: &RunArgs) -> Failure {
    let limit = args.max_hold.unwrap_or_default();
    let text = format!("the command ran for longer than --max-hold {limit:?} and was terminated");
    Failure::new(Code::Lost, text)
}
