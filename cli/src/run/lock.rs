//! The lock of the command line: its kind, how long to wait for it, and its release.

use std::time::Duration;

use leasehold::kind::{LockKind, Queued};
use leasehold::{Builder, CancelToken, Client, Error, Lock, OwnedGuard, Permit, Semaphore};

use super::outcome::Outcome;
use super::signals::Signals;
use crate::args::RunArgs;
use crate::failure::{Code, Failure, Result};

/// The poll interval of plain locks and readers.
///
/// The two exclude each other, but a reader does not hear the release of a plain lock, nor a plain
/// lock that of a reader. So each asks this often.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The most connections: one for the lock, one more if the first is silent.
const CONNECTIONS: usize = 2;

/// Returns the settings of the client for this command line.
pub(super) fn settings(builder: Builder, args: &RunArgs) -> Builder {
    let builder = builder.pool_size(CONNECTIONS);
    let builder = match args.lease {
        Some(lease) => builder.watchdog_timeout(lease),
        None => builder,
    };
    match args.fair || args.queue || args.permits.is_some() {
        true => builder,
        false => builder.poll_interval(POLL_INTERVAL),
    }
}

/// A lock or a permit that is held.
pub(super) struct Held {
    hold: Box<dyn Hold>,
    token: Option<u64>,
}

impl Held {
    fn new(hold: impl Hold + 'static) -> Held {
        Held { hold: Box::new(hold), token: None }
    }

    /// Returns the token of a queue lock.
    pub(super) fn token(&self) -> Option<u64> {
        self.token
    }

    /// Returns an error if the hold is lost.
    pub(super) fn check(&self) -> leasehold::Result<()> {
        self.hold.check()
    }

    /// Calls `report` once if the hold is lost.
    pub(super) fn on_lost(&self, report: impl FnOnce() + Send + 'static) {
        self.hold.on_lost(Box::new(report));
    }

    /// Releases the lock and waits for the server to confirm.
    pub(super) fn release(self) -> leasehold::Result<()> {
        self.hold.release()
    }
}

/// The guards of all kinds.
trait Hold {
    fn check(&self) -> leasehold::Result<()>;
    fn on_lost(&self, report: Box<dyn FnOnce() + Send>);
    fn release(self: Box<Self>) -> leasehold::Result<()>;
}

impl<K: LockKind> Hold for OwnedGuard<K> {
    fn check(&self) -> leasehold::Result<()> {
        self.check()
    }

    fn on_lost(&self, report: Box<dyn FnOnce() + Send>) {
        self.on_lost(report);
    }

    fn release(self: Box<Self>) -> leasehold::Result<()> {
        self.unlock()
    }
}

impl Hold for Permit {
    fn check(&self) -> leasehold::Result<()> {
        self.check()
    }

    fn on_lost(&self, report: Box<dyn FnOnce() + Send>) {
        self.on_lost(report);
    }

    fn release(self: Box<Self>) -> leasehold::Result<()> {
        (*self).release()
    }
}

/// Takes the lock; returns `None` if another holder has it for too long.
pub(super) fn acquire(
    client: &Client,
    args: &RunArgs,
    cancel: &CancelToken,
) -> leasehold::Result<Option<Held>> {
    let name = args.name.as_str();
    if let Some(permits) = args.permits {
        let semaphore = client.semaphore(name).with_permits(permits).with_cancel(cancel);
        return Ok(take_permit(semaphore, args)?.map(Held::new));
    }
    if args.queue {
        let lock = client.queue_lock(name).with_weight(args.weight.unwrap_or(1));
        return Ok(take(lock, args, cancel)?.map(with_token));
    }
    Ok(match (args.shared, args.fair) {
        (true, _) => take(client.rw_lock(name).read_lock(), args, cancel)?.map(Held::new),
        (_, true) => take(client.fair_lock(name), args, cancel)?.map(Held::new),
        _ => take(client.lock(name), args, cancel)?.map(Held::new),
    })
}

fn with_token(guard: OwnedGuard<Queued>) -> Held {
    Held { token: Some(guard.token()), ..Held::new(guard) }
}

fn take<K: LockKind>(
    lock: Lock<K>,
    args: &RunArgs,
    cancel: &CancelToken,
) -> leasehold::Result<Option<OwnedGuard<K>>> {
    let mut lock = lock.with_cancel(cancel);
    if let Some(min_hold) = args.min_hold {
        lock = lock.with_min_hold(min_hold);
    }
    match args.wait {
        _ if args.nonblock => lock.try_lock_owned(),
        Some(wait) => lock.try_lock_for_owned(wait),
        None => lock.lock_owned().map(Some),
    }
}

fn take_permit(mut semaphore: Semaphore, args: &RunArgs) -> leasehold::Result<Option<Permit>> {
    if let Some(min_hold) = args.min_hold {
        semaphore = semaphore.with_min_hold(min_hold);
    }
    match args.wait {
        _ if args.nonblock => semaphore.try_acquire(),
        Some(wait) => semaphore.try_acquire_for(wait),
        None => semaphore.acquire().map(Some),
    }
}

/// Returns the outcome of a call that did not acquire the lock.
pub(super) fn not_acquired(error: Error, signals: &Signals) -> Result<Outcome> {
    match signals.ended_by() {
        Some(signal) => Ok(Outcome::of_signal(signal.as_raw())),
        // A grant that arrived too late, and not the loss of a lock under which a command ran.
        None if error.is_lost() => Err(Failure::new(
            Code::Unavailable,
            format!("{error}; check the load of the server and the network"),
        )),
        None => Err(error.into()),
    }
}
