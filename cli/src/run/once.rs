//! The work of `once`: its result, which is kept, and the commit after the command.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use leasehold::{Begin, Builder, CancelToken, Client, Error, OnceOutcome};

use super::kinds::Held;
use super::outcome::{self, Outcome};
use super::output::{Captured, MOST_BYTES};
use super::{Job, Taken, lock};
use crate::address::Server;
use crate::args::{CommandArgs, OnceArgs};
use crate::failure::{Code, Failure, Result, print_note};
use crate::views::{print, text};

impl Job for OnceArgs {
    fn call(&self) -> &CommandArgs {
        &self.call
    }

    fn settings(&self, builder: Builder) -> Builder {
        builder
    }

    fn take(&self, client: &Client, cancel: &CancelToken) -> leasehold::Result<Option<Taken>> {
        let mut once = client.once(self.call.lock_name()).with_keep(self.keep).with_cancel(cancel);
        if let Some(lease) = self.call.lease {
            once = once.with_renewed_lease(lease);
        }
        let taken = lock::take(&once, &self.call)?;
        Ok(taken.map(|begin| match begin {
            Begin::Run(run) => Taken::Held(Held::of_work(run)),
            Begin::Done(done) => Taken::Done(done),
        }))
    }

    fn keeps_output(&self) -> bool {
        self.output
    }
}

/// Tells the result of work that was done before: prints it, if it is the output of a command.
pub(super) fn tell(done: &OnceOutcome, args: &CommandArgs, is_output: bool) -> Result<Outcome> {
    if args.verbose {
        let age = SystemTime::now().duration_since(done.at()).unwrap_or(Duration::ZERO);
        print_note(&format!(
            "leasehold: {} was done {} ago; the command is not run",
            text::printable(args.lock_name()),
            text::brief(age.as_secs_f64())
        ));
    }
    if is_output {
        print::print_bytes(done.value())?;
    }
    Ok(Outcome::of(0))
}

/// Commits the result of a command that has succeeded.
pub(super) fn commit(held: Held, output: Captured, args: &CommandArgs) -> Result<Outcome> {
    let value = match output {
        Captured::Nothing => Vec::new(),
        Captured::Output(value) => value,
        Captured::Failed(error) => {
            // The exit code says enough if this release fails.
            let _ = held.release();
            let text = "the output of the command was not read to its end";
            let text = format!("{text}: {error}; its result is not committed");
            return Err(Failure::new(Code::Internal, text));
        }
        Captured::TooLarge => {
            // The exit code says enough if this release fails.
            let _ = held.release();
            return Err(Failure::new(
                Code::TooLarge,
                format!(
                    "the output of the command is larger than {} KiB: its result is not committed, \
                     and the next caller runs it again",
                    MOST_BYTES / 1024
                ),
            ));
        }
    };
    let committed = held.check().and_then(|()| held.commit(&value));
    committed.map(|()| Outcome::of(0)).map_err(|error| not_committed(error, args))
}

fn not_committed(error: Error, args: &CommandArgs) -> Failure {
    if error.is_lost() {
        return outcome::lost(
            Some(error),
            "the command had ended by itself, and its result is not committed",
        );
    }
    let is_unanswered = error.is_connection() || error.is_timeout() || error.is_pool_timeout();
    let text = error.with_causes().to_string();
    let consequence = if is_unanswered {
        let name = text::printable(args.lock_name());
        format!("leasehold show {name} tells whether the result of the command is committed")
    } else {
        "the result of the command is not committed".to_owned()
    };
    Failure::new(Failure::from(error).code, format!("{text}; {consequence}"))
}

/// Deletes the result, and tells whether there was one.
pub(super) fn forget(server: &Server, args: &OnceArgs) -> Result<ExitCode> {
    let name = args.call.lock_name();
    let had_result = server.connect()?.once(name).forget()?;
    let name = text::printable(name);
    if had_result {
        print::print(&format!("the result of {name} is deleted\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    print::print(&format!("{name} has no result\n"))?;
    Ok(Code::Negative.into())
}
