//! The lock of `run`: its kind, and how long `run` and `once` wait.

use std::time::{Duration, Instant};

use leasehold::{Builder, CancelToken, Client, Error, Semaphore};

use super::kinds::{Held, Settings, Take};
use super::outcome::Outcome;
use super::signals::Signals;
use crate::args::{CommandArgs, RunArgs};
use crate::failure::{Code, Failure, Result, print_note};
use crate::views::text;

/// The poll interval of plain locks and readers.
///
/// The two exclude each other, but a reader does not hear the release of a plain lock, nor a plain
/// lock that of a reader. So each asks this often.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the settings of the client for this command line.
pub(super) fn settings(builder: Builder, args: &RunArgs) -> Builder {
    if args.fair || args.queue || args.permits.is_some() {
        builder
    } else {
        builder.poll_interval(POLL_INTERVAL)
    }
}

/// Takes the lock of `run`; returns `None` if another holder has it for too long.
pub(super) fn acquire(
    client: &Client,
    args: &RunArgs,
    cancel: &CancelToken,
) -> leasehold::Result<Option<Held>> {
    let name = args.call.lock_name();
    if let Some(permits) = args.permits {
        let semaphore = client.semaphore(name).with_permits(permits).with_slots();
        let semaphore = semaphore.with_cancel(cancel);
        check_capacity(&semaphore, permits, args)?;
        return take_with(semaphore, args);
    }
    if args.queue {
        let lock = client.queue_lock(name).with_weight(args.weight.unwrap_or(1));
        return take_with(lock.with_cancel(cancel), args);
    }
    match (args.shared, args.fair) {
        (true, _) => take_with(client.rw_lock(name).read_lock().with_cancel(cancel), args),
        (_, true) => take_with(client.fair_lock(name).with_cancel(cancel), args),
        _ => take_with(client.lock(name).with_cancel(cancel), args),
    }
}

/// Warns of a semaphore with another number of permits, or gives it this number.
fn check_capacity(semaphore: &Semaphore, permits: u32, args: &RunArgs) -> leasehold::Result<()> {
    let capacity = semaphore.permits()?;
    if capacity == i64::from(permits) {
        return Ok(());
    }
    if args.resize {
        return semaphore.resize(permits);
    }
    let name = text::printable(args.call.lock_name());
    print_note(&format!(
        "leasehold: {name} has {capacity} permits, and not {permits}; --resize changes that"
    ));
    Ok(())
}

/// Takes a lock of any kind, with the settings of the command line.
fn take_with<L>(mut lock: L, args: &RunArgs) -> leasehold::Result<Option<Held>>
where
    L: Take<Taken = Held> + Settings,
{
    if let Some(lease) = args.call.lease {
        lock = lock.renew(lease);
    }
    if let Some(min_hold) = args.min_hold {
        lock = lock.keep(min_hold);
    }
    take(&lock, &args.call)
}

/// Waits as the command line says; returns `None` if another caller has it for too long.
///
/// The wait counts from the first answer, so that a slow connection does not use it up.
pub(super) fn take<T: Take>(it: &T, args: &CommandArgs) -> leasehold::Result<Option<T::Taken>> {
    let Some(wait) = args.wait.filter(|_| !args.nonblock) else {
        return if args.nonblock { it.take_now() } else { it.take().map(Some) };
    };
    if let Some(taken) = it.take_now()? {
        return Ok(Some(taken));
    }
    let begin = Instant::now();
    match it.take_within(wait) {
        // Nobody answered during a short wait. Another caller had it before.
        Err(error) if is_unanswered(&error) && begin.elapsed() >= wait => Ok(None),
        result => result,
    }
}

fn is_unanswered(error: &Error) -> bool {
    error.is_timeout() || error.is_connection() || error.is_pool_timeout()
}

/// Returns the outcome of a call that did not acquire the lock.
pub(super) fn not_acquired(error: Error, signals: &Signals) -> Result<Outcome> {
    match signals.ended_by() {
        Some(signal) => Ok(Outcome::of_signal(signal.as_raw())),
        // A grant that arrived too late, and not the loss of a lock under which a command ran.
        None if error.is_lost() => Err(Failure::new(
            Code::Unavailable,
            format!("{}; check the load of the server and the network", error.with_causes()),
        )),
        None => Err(error.into()),
    }
}
