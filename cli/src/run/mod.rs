//! `leasehold run` runs a command while it holds a lock, `leasehold once` unless its result is kept.
//!
//! | file | content |
//! | --- | --- |
//! | `lock` | the lock of `run`: its kind; how long to wait |
//! | `once` | the work of `once`: its result, and the commit |
//! | `busy` | the lines that name the holder of a lock that is not acquired |
//! | `kinds` | locks of all kinds, semaphores and work that is done once, behind traits |
//! | `command` | the command: found before the lock is taken, started under the lock |
//! | `output` | the output of the command of `once`: read, and passed on |
//! | `signals` | the signals that are forwarded, and what each does before the command runs |
//! | `group` | the processes of the command |
//! | `guard` | the process that ends the command if `leasehold` is killed |
//! | `terminal` | the terminal of an interactive command, and job control |
//! | `supervisor` | the loop from the start of the command to its end |
//! | `outcome` | from the end of the command to the exit code |
//!
//! The main thread takes the lock, starts the command, and waits for its end. One more thread reads
//! signals, and with `once --output` one reads the output. The library has threads of its own, which
//! renew the lease.

mod busy;
mod command;
mod group;
mod guard;
mod kinds;
mod lock;
mod once;
mod outcome;
mod output;
mod signals;
mod supervisor;
mod terminal;

use std::io::PipeWriter;
use std::process::ExitCode;
use std::time::Instant;

use leasehold::{Builder, CancelToken, Client, OnceOutcome};

use crate::address::Server;
use crate::args::{CommandArgs, OnceArgs, RunArgs};
use crate::failure::{Code, Failure, Result, print_note};
pub(crate) use guard::run_if_asked;
pub(crate) use signals::is_ignored;

use busy::WaitNote;
use command::Program;
use group::Group;
use guard::{Guard, note_missing};
use kinds::Held;
use outcome::Outcome;
use output::{Captured, Output};
use signals::{Events, Recall, Signals};
use supervisor::{End, Supervisor};
use terminal::JobControl;

/// The most connections: one for the lock, one more if the first is silent.
const CONNECTIONS: usize = 2;

/// A verb that runs a command.
trait Job {
    fn call(&self) -> &CommandArgs;
    /// Returns the settings of the client.
    fn settings(&self, builder: Builder) -> Builder;
    /// Waits until the command may run; returns `None` if another caller has the lock for too long.
    fn take(&self, client: &Client, cancel: &CancelToken) -> leasehold::Result<Option<Taken>>;
    /// Returns whether the output of the command is its result.
    fn keeps_output(&self) -> bool;
}

/// What a caller gets.
enum Taken {
    Held(Held),
    /// The work was done before.
    Done(OnceOutcome),
}

impl Job for RunArgs {
    fn call(&self) -> &CommandArgs {
        &self.call
    }

    fn settings(&self, builder: Builder) -> Builder {
        lock::settings(builder, self)
    }

    fn take(&self, client: &Client, cancel: &CancelToken) -> leasehold::Result<Option<Taken>> {
        Ok(lock::acquire(client, self, cancel)?.map(Taken::Held))
    }

    fn keeps_output(&self) -> bool {
        false
    }
}

/// Runs the command under the lock. Returns the exit code of the program.
pub(crate) fn run(server: &Server, args: &RunArgs) -> Result<ExitCode> {
    perform(server, args)
}

/// Runs the command unless its result is kept, or deletes the result.
pub(crate) fn once(server: &Server, args: &OnceArgs) -> Result<ExitCode> {
    if args.forget { once::forget(server, args) } else { perform(server, args) }
}

fn perform(server: &Server, job: &impl Job) -> Result<ExitCode> {
    let program = Program::find(&job.call().command)?;
    let (listener, releases) = outcome::releases();
    let builder = server.builder()?.pool_size(CONNECTIONS).label(program.label());
    // With a listener, a client that cannot start its thread for events is not built. So a lock
    // that was taken can be watched.
    let builder = job.settings(builder).events(listener);
    let signals = Signals::catch()?;
    let client = builder.build_lazily()?;
    let mut result = take_and_run(&client, job, &program, signals);
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
    job: &impl Job,
    program: &Program<'_>,
    signals: Signals,
) -> Result<Outcome> {
    let call = job.call();
    let note = WaitNote::start(client, call);
    let taken = job.take(client, signals.cancel());
    drop(note);
    let held = match taken {
        Ok(Some(Taken::Held(held))) => held,
        Ok(Some(Taken::Done(done))) => return once::tell(&done, call, job.keeps_output()),
        Ok(None) => {
            busy::tell_not_acquired(client, call);
            return Ok(Outcome::of(call.conflict_exit_code));
        }
        Err(error) => return lock::not_acquired(error, &signals),
    };
    let recall = signals.recall();
    match signals.begin() {
        Ok(events) => run_to_end(client, job, program, held, events, recall),
        Err(signal) => {
            // Without an answer the lock ends with its lease: the signal decides the exit code.
            let _ = held.release();
            Ok(Outcome::of_signal(signal.as_raw()))
        }
    }
}

/// Runs the command, releases the lock or commits the result, and passes the output on.
fn run_to_end(
    client: &Client,
    job: &impl Job,
    program: &Program<'_>,
    held: Held,
    events: Events,
    recall: Recall,
) -> Result<Outcome> {
    // After an error the drop of `held` releases.
    let output = job.keeps_output().then(Output::start).transpose()?;
    let (writer, mut output) = output.unzip();
    let end = start(client, job.call(), program, &held, events, writer);
    if held.commits() {
        // A commit may wait for its server until the end of the lease.
        recall.now();
    }
    let captured = output.as_mut().map_or(Captured::Nothing, Output::end);
    let outcome = outcome::of_started(end, held, captured, job.call());
    // Also what a command has written that has failed, or was ended.
    let passed_on = output.map_or(Ok(()), Output::finish);
    let outcome = outcome?;
    passed_on.map(|()| outcome)
}

/// Starts the command and waits for its end, or ends it.
fn start(
    client: &Client,
    args: &CommandArgs,
    program: &Program<'_>,
    held: &Held,
    events: Events,
    output: Option<PipeWriter>,
) -> Result<End> {
    held.check().map_err(|error| {
        Failure::new(Code::Lost, format!("{}; the command was not started", error.with_causes()))
    })?;
    let limit = args.max_hold.and_then(|max_hold| Instant::now().checked_add(max_hold));
    let jobs = JobControl::new(output.is_none() && terminal::is_interactive());
    // The command works without it too.
    let guard = Guard::start().map_err(|error| note_missing(&error)).ok();
    let child = program.start(args.lock_name(), held, jobs.terminal(), guard.as_ref(), output);
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
