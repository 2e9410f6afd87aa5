//! [`Once`]: work that is done once, and its result for everybody.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::Taken;
use crate::cancel::CancelToken;
use crate::config::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::count::CountChange;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Events, Kind};
use crate::kind::once::{self, OnceResult, OnceWork};
use crate::lock::handle::{SharedHandle, endless_wait_ended};
use crate::synchronizer::once_run::OnceRun;
use crate::transport::reply::{self, Reply};
use crate::util::clock::{self, EPOCH, Patience, WallTime};

/// The time for which a result is kept, unless the handle says otherwise: a day.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// Work that is done once, by any process, and whose result everybody gets.
///
/// For a scheduled job, a request with an idempotency key, a value that one of many processes
/// computes for all. A lock alone runs the work again after its release.
///
/// The first caller [runs](Begin::Run) the work under a lock, which is renewed, and commits a
/// result. Callers that come meanwhile wait, and get the result one round trip after the commit.
/// Callers that come later get it in one round trip, until it expires.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn import() -> Vec<u8> { Vec::new() }
/// # fn use_it(_: &[u8]) {}
/// use leasehold::Begin;
///
/// let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let once = client.once("import:2026-11-25").with_keep(Duration::from_secs(86_400));
/// match once.begin()? {
///     Begin::Run(run) => {
///         let bytes = import();
///         run.commit(&bytes)?;
///     }
///     Begin::Done(done) => use_it(done.value()),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # What is done once
/// At most one result is committed per key while one is kept, unless somebody deletes it. A commit
/// succeeds only if its caller still has the work, and it ends the work in the same step; a commit
/// that is repeated because its reply got lost finds what it did.
///
/// The work itself may run more than once: if a process dies, or loses its lease, before its commit,
/// the next caller runs the work. So does the next caller after a drop of [`OnceRun`] without a
/// commit, as after an error. Give the [token](OnceRun::token) to what the work changes, so that it
/// refuses a run that is over. A fail-over may lose a result, as it may lose a lock; with
/// [`min_replicas`](crate::Builder::min_replicas) replicas have it before the commit returns, or the
/// commit returns an error. Other callers may get it before.
///
/// # Names
/// The name is that of the lock under which the work runs: the key of its hash, with the tokens of
/// a [`FencedLock`](crate::FencedLock), which expire a day after the last run began. Use one kind
/// for one name. The result is in the hash `leasehold_once:{<name>}`.
/// [`Client::force_unlock`](crate::Client::force_unlock) takes the work away from its holder;
/// [`forget`](Once::forget) deletes the result. Redisson has no such kind.
///
/// # Errors of every verb
/// - [`is_invalid_name`](crate::Error::is_invalid_name) if the name cannot be used.
/// - [`is_configuration`](crate::Error::is_configuration) if a setting is out of bounds, and in a
///   forked child.
/// - [`is_closed`](crate::Error::is_closed) after [`Client::close`](crate::Client::close).
/// - [`is_server`](crate::Error::is_server) if the server refuses the command. The
///   [code](crate::Error::code) is `WRONGTYPE` if one of the keys has another type.
#[derive(Clone)]
#[must_use = "this does nothing until one of its verbs is called"]
pub struct Once {
    handle: SharedHandle,
    keep: Duration,
}

/// What a caller of [`Once::begin`] gets: the work, or its result.
#[derive(Debug)]
pub enum Begin {
    /// This caller runs the work.
    Run(OnceRun),
    /// The work is done.
    Done(OnceOutcome),
}

/// The result of work that is done. Its `Debug` form has the length of the value in its place.
#[derive(Clone, PartialEq, Eq)]
pub struct OnceOutcome {
    value: Vec<u8>,
    at: WallTime,
    token: u64,
}

impl OnceOutcome {
    pub(super) fn new(result: OnceResult) -> OnceOutcome {
        let at = EPOCH.checked_add(Duration::from_millis(result.at)).unwrap_or(EPOCH);
        OnceOutcome { value: result.value, at, token: result.token }
    }

    /// Returns the value that was committed.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the value that was committed, without a copy.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn into_value(self) -> Vec<u8> {
        self.value
    }

    /// Returns the time of the commit, by the clock of the server. Millisecond precision.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn at(&self) -> WallTime {
        self.at
    }

    /// Returns the fencing token of the run that committed the value.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn token(&self) -> u64 {
        self.token
    }
}

impl fmt::Debug for OnceOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OnceOutcome { value, at, token } = self;
        f.debug_struct("OnceOutcome")
            .field("bytes", &value.len())
            .field("at", at)
            .field("token", token)
            .finish()
    }
}

impl Once {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> Once {
        Once { handle: SharedHandle::new(engine, name, Kind::Once), keep: KEEP }
    }

    /// Sets how long a result is kept, from its commit. No round trip.
    ///
    /// Default: a day. Afterwards the next caller runs the work again. Millisecond precision. The
    /// verbs return [`is_configuration`](crate::Error::is_configuration) below 10 ms. More than a
    /// hundred years means a hundred years. The time counts by the clock of the server, and is that
    /// of the handle that ran the work.
    #[must_use = "the time belongs to the value that is returned"]
    pub fn with_keep(mut self, keep: Duration) -> Once {
        self.handle.require(|_| {
            if keep < SHORTEST_LEASE {
                return Err(Error::configuration("a result must be kept for at least 10 ms"));
            }
            Ok(())
        });
        self.keep = keep.min(LONGEST_LEASE);
        self
    }

    /// Sets the length of the lease that the watchdog renews while the work runs. No round trip.
    ///
    /// The rules of [`Lock::with_renewed_lease`](crate::Lock::with_renewed_lease) apply.
    #[must_use = "the lease belongs to the value that is returned"]
    pub fn with_renewed_lease(mut self, lease: Duration) -> Once {
        self.handle.set_renewed_lease(lease);
        self
    }

    /// Sets the limit after which a run is overdue and no longer renewed. No round trip.
    ///
    /// The rules of [`Lock::with_max_hold`](crate::Lock::with_max_hold) apply.
    #[must_use = "the limit belongs to the value that is returned"]
    pub fn with_max_hold(mut self, max_hold: Duration) -> Once {
        self.handle.set_max_hold(max_hold);
        self
    }

    /// Sets a token by which another thread can end the waits of this handle. No round trip.
    ///
    /// Once the token is cancelled, every verb that begins returns
    /// [`is_cancelled`](crate::Error::is_cancelled), whether it waits or not. Runs stay valid.
    #[must_use = "the token belongs to the value that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> Once {
        self.handle.set_cancel(token);
        self
    }

    /// Sets an event listener for the runs and waits of this handle. No round trip.
    ///
    /// The listener receives the events of [`Lock::with_events`](crate::Lock::with_events). A commit
    /// counts as the release of the run.
    ///
    /// # Errors
    /// Does not fail itself. If the system cannot start the events thread, the verbs return
    /// [`is_configuration`](crate::Error::is_configuration).
    #[must_use = "the listener belongs to the value that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> Once {
        self.handle.set_listener(listener);
        self
    }

    /// Sets the label of this handle in exported metrics. No round trip.
    ///
    /// The rules of [`Lock::with_label`](crate::Lock::with_label) apply.
    #[must_use = "the label belongs to the value that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> Once {
        self.handle.set_label(label.as_ref());
        self
    }

    /// Returns the name, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Blocks until the work is done, or until this caller has to run it.
    ///
    /// One round trip if there is a result, or if nobody works on it. Otherwise the call waits as
    /// [`Lock::lock`](crate::Lock::lock) does: for the commit, or for the end of a run without one.
    /// Each waiting caller asks for itself, at each message and once per poll interval. Each that
    /// gets the result receives the whole value, up to 512 KiB, over the connections of the client.
    ///
    /// A thread that still has the [`OnceRun`] of this name waits for itself, without end.
    ///
    /// # Errors
    /// Those of [`Lock::lock`](crate::Lock::lock), except `is_deadlock`, and the [errors of every
    /// verb](Once#errors-of-every-verb).
    pub fn begin(&self) -> Result<Begin> {
        self.take(Patience::Forever)?.ok_or_else(endless_wait_ended)
    }

    /// Returns the result, or the work if nobody works on it; `None` if another caller does.
    ///
    /// Does not wait for the other caller, also one of this process. One round trip.
    ///
    /// # Errors
    /// Those of [`begin`](Once::begin).
    pub fn try_begin(&self) -> Result<Option<Begin>> {
        self.take(Patience::None)
    }

    /// Blocks as [`begin`](Once::begin) does; returns `None` after `timeout`.
    ///
    /// The rules of [`Lock::try_lock_for`](crate::Lock::try_lock_for) apply.
    ///
    /// # Errors
    /// Those of [`Lock::try_lock_for`](crate::Lock::try_lock_for), and the [errors of every
    /// verb](Once#errors-of-every-verb).
    pub fn try_begin_for(&self, timeout: Duration) -> Result<Option<Begin>> {
        self.take(Patience::span(clock::now(), timeout))
    }

    /// Blocks as [`begin`](Once::begin) does; returns `None` after `deadline`.
    ///
    /// # Errors
    /// Those of [`try_begin_for`](Once::try_begin_for).
    pub fn try_begin_until(&self, deadline: Instant) -> Result<Option<Begin>> {
        self.take(Patience::instant(clock::now(), deadline))
    }

    /// Returns the result: that of others, or else that of `work`, which this call runs and commits.
    ///
    /// An error of `work` commits nothing, and the next caller runs the work; so does a panic. Waits
    /// as [`begin`](Once::begin) does, and one round trip more for the commit.
    ///
    /// ```no_run
    /// # #[derive(Debug)] enum Failure { Lock(leasehold::Error), Work }
    /// # impl From<leasehold::Error> for Failure {
    /// #     fn from(error: leasehold::Error) -> Failure { Failure::Lock(error) }
    /// # }
    /// # fn import(_: u64) -> Result<Vec<u8>, Failure> { Err(Failure::Work) }
    /// # let client = leasehold::Client::open("redis://127.0.0.1/").map_err(Failure::from)?;
    /// let done = client.once("import:42").run(|run| import(run.token()))?;
    /// println!("{} bytes, committed at {:?}", done.value().len(), done.at());
    /// # Ok::<(), Failure>(())
    /// ```
    ///
    /// # Errors
    /// That of `work`, or one of [`begin`](Once::begin) or [`OnceRun::commit`], converted by
    /// `E::from`. After an error of the commit there may be a result: another call returns it.
    pub fn run<E: From<Error>>(
        &self,
        work: impl FnOnce(&OnceRun) -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<OnceOutcome, E> {
        match self.begin()? {
            Begin::Done(done) => Ok(done),
            Begin::Run(run) => {
                let value = work(&run)?;
                Ok(run.commit(value)?)
            }
        }
    }

    /// Returns the result, if there is one. Does not wait for work that runs.
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout) or
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server does not answer, and the
    /// [errors of every verb](Once#errors-of-every-verb).
    pub fn outcome(&self) -> Result<Option<OnceOutcome>> {
        let reply = self
            .handle
            .inspect(|inspector, name, target| inspector.ask(once::look(name), target))?;
        let result = once::read_result(reply).map_err(|error| self.handle.named(error))?;
        Ok(result.map(OnceOutcome::new))
    }

    /// Deletes the result, so that the next caller runs the work. Returns whether there was one.
    ///
    /// Does not touch work that runs. Blocks until the server answers, for one response time-out at
    /// most. One round trip.
    ///
    /// # Errors
    /// Those of [`outcome`](Once::outcome). After an error without an answer the result may be
    /// deleted, but no later one: the request takes effect once, or is closed in the background.
    pub fn forget(&self) -> Result<bool> {
        Ok(self.handle.change(CountChange::Forget)? == 1)
    }

    fn take(&self, patience: Patience) -> Result<Option<Begin>> {
        self.handle.check_max_hold()?;
        self.handle.take_owned(&OnceWork, None, patience, |taken| {
            Ok(match taken {
                Taken::Held(handle) => Some(Begin::Run(OnceRun::new(handle, self.keep))),
                Taken::Settled(reply) => Some(Begin::Done(self.outcome_of(reply)?)),
                Taken::InVain => None,
            })
        })
    }

    fn outcome_of(&self, reply: Reply) -> Result<OnceOutcome> {
        let result = once::read_result(reply)
            .and_then(|result| result.ok_or_else(|| reply::unexpected(&Reply::Nil)));
        result.map(OnceOutcome::new).map_err(|error| self.handle.named(error))
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt("Once", f)
    }
}
