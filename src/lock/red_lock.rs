//! [`RedLock`]: a lock that a majority of several independent servers must grant.
//!
//! Each server has a plain lock of that name. The threads of one process share one [`RedLocal`]
//! per set of clients and name, with a queue and a table of holds. The head of the queue asks all
//! servers at the same time ([`acquire`]), by one [`ballot`]. A majority of grants becomes one
//! [`quorum`] hold, and every [`guard`] has a share of that hold. Re-entry adds one to a count in
//! the table.

mod acquire;
mod ballot;
mod guard;
mod local;
mod quorum;

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::acquire::{checked_lease, not_held};
use crate::cancel::{CancelToken, CancelWatch};
use crate::command::owner::Holder;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Events, Kind};
use crate::inspect::holder::HolderInfo;
use crate::kind::plain::Plain;
use crate::lock::handle::Lock;
use crate::lock::multi_guard::{GuardSet, MultiGuard, OwnedMultiGuard};
use crate::lock::multi_verbs::multi_verbs;
use crate::stats::{CallRecord, Series};
use crate::util::clock::{self, Patience};
use crate::util::interner::Interned;
use crate::util::sync::Parker;
use crate::util::system::per_process;
use acquire::RedAcquire;
use ballot::{Ballot, BallotLimits};
use guard::RedHoldHandle;
use local::{RedEntryOutcome, RedEntryRequest, RedLocal};
use quorum::QuorumHold;

per_process! {
    /// The red locks of this process, by their clients and their name.
    static LOCALS: LazyLock<Interned<RedLocal>> = LazyLock::new(Interned::default);
}

/// A lock on several independent servers, held by a majority: Redisson's `RedissonRedLock`.
///
/// Each server keeps a plain lock with the name of the `RedLock`. The `RedLock` is held while the
/// leases on more than half of the servers are valid. Each lease starts at the moment before its
/// command was sent, and is shortened by a margin for clocks that run at different rates.
///
/// A call asks all servers at the same time, each on a thread of its client. An acquire ends with
/// the answers of the fastest majority, after one round trip: a minority of silent or slow servers
/// delays nothing. A call fails if no majority answers the first request within one response
/// time-out, with [`is_timeout`](crate::Error::is_timeout) or
/// [`is_connection`](crate::Error::is_connection).
///
/// While a minority of the servers is down, holds stay valid and a free lock can be taken. Limits:
/// - A server that returns *without its data* may grant the lock again while another server is
///   down. Keep such a server away for one lease, or let it write every change to its disk
///   (`appendfsync always`).
/// - A clock that steps can make two holds overlap.
/// - A process that is paused after its last check can still do harm (see
///   [`FencedLock`](crate::FencedLock)).
///
/// If the calling thread already holds the plain lock of the same name on one of the servers, the
/// call re-enters that lock there.
///
/// Every client reports its own [events](crate::Events): `acquired` and `released` for each grant
/// of its server, also if only a minority granted the lock, and `waited` for each call that waited.
/// Its [statistics](crate::Client::stats) count the same way.
///
/// A client and its clones count as one server.
///
/// ```no_run
/// use leasehold::{Client, RedLock};
///
/// let servers = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
/// let clients: Result<Vec<_>, _> = servers.iter().map(Client::open).collect();
/// let lock = RedLock::new(clients?, "orders:42");
/// let guard = lock.lock()?;
/// guard.check()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a lock is not taken until lock() or another of its verbs is called"]
pub struct RedLock {
    name: Arc<str>,
    members: Vec<RedMember>,
    local: Arc<RedLocal>,
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
}

/// The lock on one of the servers.
#[derive(Clone)]
struct RedMember {
    engine: Arc<Engine>,
    lock: Lock<Plain>,
}

impl RedMember {
    /// Returns the statistics of the client for calls of the red lock.
    fn series(&self) -> Series<'_> {
        let key = || (Kind::Red.short_name(), self.lock.label().cloned());
        self.engine.events.stats().series(key)
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.members.len();
        f.debug_struct("RedLock")
            .field("name", &self.name)
            .field("servers", &servers)
            .finish_non_exhaustive()
    }
}

impl RedLock {
    pub(crate) fn over(mut engines: Vec<Arc<Engine>>, name: String) -> RedLock {
        engines.sort_by_key(|engine| engine.id);
        engines.dedup_by_key(|engine| engine.id);
        let ids: String = engines.iter().map(|engine| format!("{} ", engine.id)).collect();
        let local = LOCALS.get(&format!("{} {ids}{name}", engines.len()), RedLocal::default);
        let member = |engine: Arc<Engine>| {
            let lock = Lock::new(Arc::clone(&engine), name.clone());
            RedMember { engine, lock }
        };
        let members = engines.into_iter().map(member).collect();
        RedLock { name: name.into(), members, local, lease: None, cancel: None }
    }

    /// Sets a fixed lease on every server. No round trip. See [`Lock::with_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> RedLock {
        self.lease = Some(lease);
        self
    }

    /// Sets the length of renewed leases on every server. No round trip. See
    /// [`Lock::with_renewed_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_renewed_lease(mut self, lease: Duration) -> RedLock {
        self.lease = None;
        for member in &mut self.members {
            member.lock = member.lock.clone().with_renewed_lease(lease);
        }
        self
    }

    /// Sets the label in exported metrics. No round trip. See [`Lock::with_label`].
    ///
    /// Calls have the kind `red`; the holds on the servers have the kind `plain`.
    #[must_use = "the label belongs to the lock that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> RedLock {
        for member in &mut self.members {
            member.lock = member.lock.clone().with_label(label.as_ref());
        }
        self
    }

    /// Sets the limit of holds on every server. No round trip. See [`Lock::with_max_hold`].
    ///
    /// Each client emits [`overdue`](crate::Events::overdue) for its server. The lock is lost when
    /// fewer valid leases than a majority are left.
    #[must_use = "the limit belongs to the lock that is returned"]
    pub fn with_max_hold(mut self, max_hold: Duration) -> RedLock {
        for member in &mut self.members {
            member.lock = member.lock.clone().with_max_hold(max_hold);
        }
        self
    }

    /// Sets a token by which another thread can end the waits. See [`Lock::with_cancel`].
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> RedLock {
        self.cancel = Some(token.clone());
        self
    }

    /// Sets an event listener for the holds and waits on all servers. See [`Lock::with_events`].
    ///
    /// Each client reports the events of its own server to the listener.
    #[must_use = "the listener belongs to the lock that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> RedLock {
        for member in &mut self.members {
            member.lock = member.lock.clone().with_events(Arc::clone(&listener));
        }
        self
    }

    /// Returns the name of the lock, without the clients' prefixes.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Releases a hold whose guard was [detached](MultiGuard::detach).
    ///
    /// Releases a hold that this thread detached, or else the hold of a detached owned guard or of
    /// a thread that has ended. Blocks for one response time-out at most. One round trip to all
    /// servers at the same time; none if the hold has other guards.
    ///
    /// # Errors
    /// [`is_not_held`](Error::is_not_held) if there is no such hold, and the errors of
    /// [`MultiGuard::unlock`].
    pub fn unlock(&self) -> Result<()> {
        self.check_process().map_err(|error| self.named(error))?;
        let hold = self.local.take_detached().ok_or_else(|| self.named(not_held()))?;
        Box::new(self.handle(hold)).unlock()
    }

    /// Checks that a majority of the servers answers: a readiness probe.
    ///
    /// Blocks for one response time-out at most. One round trip to all servers at the same time.
    ///
    /// # Errors
    /// The errors of [`Client::ping`](crate::Client::ping), if no majority answers.
    pub fn ping(&self) -> Result<()> {
        self.ask_all(|lock| lock.ping().map(Some), false).map(drop)
    }

    /// Returns whether a majority of the servers reports the lock as held.
    ///
    /// Blocks for one response time-out at most. One round trip to all servers at the same time.
    ///
    /// # Errors
    /// [`is_timeout`](Error::is_timeout) or [`is_connection`](Error::is_connection) if the answers
    /// that arrive in this time do not decide the result, and the errors of [`Lock::is_locked`].
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds the lock. Does not block, no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many valid guards of the lock this thread has. Does not block, no round trip.
    ///
    /// Guards that the thread has detached count.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_count(&self) -> usize {
        self.local.count()
    }

    /// Returns the remaining lease on a majority of servers, or `None` for a free lock.
    ///
    /// The lock is free if so many servers report it free that no majority can hold it. The result
    /// may be too short while the lease is being extended. Blocks for one response time-out at
    /// most. One round trip to all servers at the same time.
    ///
    /// # Errors
    /// The errors of [`is_locked`](RedLock::is_locked).
    pub fn remaining(&self) -> Result<Option<Duration>> {
        let mut left = self.ask_all(Lock::remaining, false)?;
        left.sort_unstable_by(|a, b| b.cmp(a));
        Ok(left.get(self.quorum() - 1).copied())
    }

    /// Returns the holders of the lock: one entry for each server where it is held.
    ///
    /// Each entry is the result of [`Lock::holder`] on one server, so a caller that holds the lock
    /// on three servers has up to three entries. Returns the answers of the first majority of
    /// servers. Blocks for one response time-out at most. Two round trips to all servers at the
    /// same time, and then the questions of [`Lock::holders`] to the processes.
    ///
    /// # Errors
    /// The errors of [`is_locked`](RedLock::is_locked) and [`Lock::holders`].
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        let holders = self.ask_all(|lock| lock.holder().map(Some), false)?;
        Ok(holders.into_iter().flatten().collect())
    }

    /// Frees the lock on all servers regardless of its holder.
    ///
    /// Returns whether the lock was held on a majority of the servers, as soon as the answers
    /// decide this; the other servers are still asked. Blocks for one response time-out at most.
    /// Two round trips to all servers at the same time. See [`Lock::force_unlock`].
    ///
    /// # Errors
    /// The errors of [`is_locked`](RedLock::is_locked); some servers may then have freed the lock.
    pub fn force_unlock(&self) -> Result<bool> {
        let freed = self.ask_all(|lock| Ok(lock.force_unlock()?.then_some(())), true)?;
        Ok(freed.len() >= self.quorum())
    }

    /// Asks all servers. Returns the values of the yes votes, or none if no majority votes yes.
    ///
    /// With `must`, asks every server, even if the votes of the others have decided already.
    fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&Lock<Plain>) -> Result<Option<T>> + Clone + Send + 'static,
        must: bool,
    ) -> Result<Vec<T>> {
        self.check_not_ended().map_err(|error| self.named(error))?;
        let ballot = self.query(question, must);
        let majority = ballot.decide().map_err(|error| self.named(error))?;
        let values = ballot.take_yes();
        ballot.close();
        Ok(if majority { values } else { Vec::new() })
    }

    /// Starts a query of all servers.
    fn query<T: Send + 'static>(
        &self,
        question: impl Fn(&Lock<Plain>) -> Result<Option<T>> + Clone + Send + 'static,
        must: bool,
    ) -> Arc<Ballot<T>> {
        let limits = BallotLimits::of_query(self.response_timeout());
        let ballot = Ballot::new(self.members.len(), self.quorum(), limits, &Parker::mine());
        for RedMember { engine, lock } in self.members.iter().cloned() {
            let (asking, question) = (Arc::clone(&ballot), question.clone());
            let ask = move || if must || asking.is_wanted() { question(&lock) } else { Ok(None) };
            ballot.ask(&engine.executor, ask);
        }
        ballot
    }

    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Returns the longest response time-out of the clients.
    fn response_timeout(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.engine.settings.response_timeout);
        timeouts.max().unwrap_or_default()
    }

    fn poll_interval(&self) -> Duration {
        let intervals = self.members.iter().map(|member| member.engine.settings.poll_interval);
        intervals.min().unwrap_or_default()
    }

    fn term(&self) -> Duration {
        let renewed = self.members.iter().map(|RedMember { engine, lock }| {
            lock.renewed_lease().unwrap_or(engine.settings.watchdog_timeout)
        });
        self.lease.or(renewed.min()).unwrap_or_default()
    }

    fn handle(&self, hold: Arc<QuorumHold>) -> RedHoldHandle {
        let (name, local) = (Arc::clone(&self.name), Arc::clone(&self.local));
        let response_timeout = self.response_timeout();
        let events = self.members.first().map(|member| member.engine.events.clone());
        let events = events.unwrap_or_default();
        RedHoldHandle { name, local, hold, response_timeout, events, ended: false }
    }

    /// Fails in a forked child, after a client is closed, and after a cancellation.
    fn check_not_ended(&self) -> Result<()> {
        if self.members.is_empty() {
            return Err(Error::configuration("a lock on no server"));
        }
        self.members.iter().try_for_each(|member| member.engine.check_open())?;
        self.check_process()?;
        self.cancel.as_ref().map_or(Ok(()), CancelToken::check)
    }

    /// Fails in a forked child.
    fn check_process(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.engine.router.check_process())
    }

    /// Adds the name of the lock to the error.
    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.name))
    }

    /// Wakes `parker` when the token is cancelled or a client is closed.
    fn watch(&self, parker: &Arc<Parker>) -> Vec<CancelWatch> {
        let closing = self.members.iter().map(|member| &member.engine.closing);
        closing.chain(&self.cancel).map(|token| token.watch(parker)).collect()
    }

    fn acquire(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        let stats: Vec<_> = self.members.iter().map(RedMember::series).collect();
        let record = CallRecord::new(&stats);
        let outcome = record.end(patience, self.take_majority(patience, owned, &record));
        outcome.map_err(|error| self.named(error))
    }

    fn take_majority(
        &self,
        patience: Patience,
        owned: bool,
        record: &CallRecord<'_>,
    ) -> Result<Option<Box<dyn GuardSet>>> {
        self.check_not_ended()?;
        self.lease.map(checked_lease).transpose()?;
        self.members.iter().try_for_each(|member| member.lock.check_limits())?;
        let waits = patience != Patience::None;
        if waits {
            // The thread would wait for itself if it held the lock in another way, on so many
            // servers that no majority is left.
            let own = self.members.iter().filter(|member| member.lock.blocks_own_thread(owned));
            if own.count() > self.members.len() - self.quorum() && self.local.count() == 0 {
                return Err(local::deadlock());
            }
        }
        let parker = Parker::mine();
        match self.local.enter(RedEntryRequest { owned, waits }, &parker)? {
            RedEntryOutcome::Reentered(hold) => {
                let handle = self.handle(hold);
                handle.re_enter(self, patience)?;
                Ok(Some(Box::new(handle)))
            }
            RedEntryOutcome::Busy => Ok(None),
            RedEntryOutcome::Queued(ticket) => {
                let holder = if owned { Holder::owned() } else { Holder::this_thread() };
                let call = RedAcquire::new(self, patience, holder, (parker, ticket), record);
                let granted = call.run()?;
                Ok(granted.map(|hold| Box::new(self.handle(hold)) as Box<dyn GuardSet>))
            }
        }
    }
}

multi_verbs!(RedLock);
