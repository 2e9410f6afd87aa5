//! `leasehold run`: runs a command while it holds a lock.
//!
//! | file | content |
//! | --- | --- |
//! | `lock` | the lock of the command line: its kind, and how long to wait for it |
//! | `busy` | the lines that name the holder of a lock that is not acquired |
//! | `kinds` | locks of all kinds and semaphores, behind two traits |
//! | `command` | the command: found before the lock is taken, started under the lock |
//! | `signals` | the signals that are forwarded, and what each does before the command runs |
//! | `group` | the processes of the command |
//! | `guard` | the process that ends the command if `leasehold` is killed |
//! | `terminal` | the terminal of an interactive command, and job control |
//! | `supervisor` | the loop from the start of the command to its end |
//! | `outcome` | from the end of the command to the exit code |
//!
//! The main thread takes the lock, starts the command, and waits for its end. One more thread reads
//! signals. The library has threads of its own, which renew the lease.

mod busy;
mod command;
mod group;
mod guard;
mod kinds;
mod lock;
mod outcome;
mod signals;
mod supervisor;
mod terminal;

use std::process::ExitCode;
use std::time::Instant;

use leasehold::Client;

use crate::address::Server;
use crate::args::RunArgs;
use crate::failure::{Code, Failure, Result, print_note};
pub(crate) use guard::run_if_asked;
pub(crate) use signals::is_ignored;

use busy::WaitNote;
use command::Program;
use group::Group;
use guard::{Guard, note_missing};
use kinds::Held;
use outcome::Outcome;
use signals::{Events, Signals};
use supervisor::{End, Supervisor};
use terminal::JobControl;

/// Runs the command under the lock. Returns the exit code of the program.
pub(crate) fn run(server: &Server, args: &RunArgs) -> Result<ExitCode> {
    let program = Program::find(&args.command)?;
    let (listener, releases) = outcome::releases();
    let builder = lock::settings(server.builder()?, args).label(program.label());
    // With a listener, a client that cannot start its thread for events is not built. So a lock
    // that was taken can be watched.
    let builder = builder.events(listener);
    let signals = Signals::catch()?;
    let client = builder.build_lazily()?;
    let mut result = take_and_run(&client, args, &program, signals);
    match &mut result {
        Ok(outcome) if outcome.is_confirmed() => client.close(),
        // Waits for the release as `close` does, and not for threads that a silent server delays.
        Ok(outcome) => {
            drop(client);
            if releases.was_released() {
                outcome.confirm();
            }
        }
        Err(_) => drop(client),
    }
    Ok(result?.report())
}

fn take_and_run(
    client: &Client,
    args: &RunArgs,
    program: &Program<'_>,
    signals: Signals,
) -> Result<Outcome> {
    let note = WaitNote::start(client, args);
    let acquired = lock::acquire(client, args, signals.cancel());
    drop(note);
    let held = match acquired {
        Ok(Some(held)) => held,
        Ok(None) => {
            busy::tell_not_acquired(client, args);
            return Ok(Outcome::of(args.conflict_exit_code));
        }
        Err(error) => return lock::not_acquired(error, &signals),
    };
    match signals.begin() {
        Ok(events) => outcome::of_started(start(client, args, program, &held, events), held, args),
        Err(signal) => {
            // Without an answer the lock ends with its lease: the signal decides the exit code.
            let _ = held.release();
            Ok(Outcome::of_signal(signal.as_raw()))
        }
    }
}

/// Starts the command and waits for its end, or ends it.
fn start(
    client: &Client,
    args: &RunArgs,
    program: &Program<'_>,
    held: &Held,
    events: Events,
) -> Result<End> {
    held.check().map_err(|error| {
        Failure::new(Code::Lost, format!("{}; the command was not started", error.with_causes()))
    })?;
    let limit = args.max_hold.and_then(|max_hold| Instant::now().checked_add(max_hold));
    let jobs = JobControl::new();
    // The command works without it too.
    let guard = Guard::start().map_err(|error| note_missing(&error)).ok();
    let child = program.start(args.lock_name(), held, jobs.terminal(), guard.as_ref());
    let end = child.map(|child| {
        if args.release_on_death
            && let Err(error) = client.end_with_group(child.id())
        {
            print_note(&format!("leasehold: --release-on-death has no effect: {error}"));
        }
        held.on_lost(events.loss_reporter());
        Supervisor::new(Group::of(&child), jobs, events, limit).run()
    });
    if let Some(guard) = guard {
        guard.dismiss();
    }
    end
}
