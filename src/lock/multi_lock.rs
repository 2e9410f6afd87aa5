//! [`MultiLock`]: several locks, taken all together or not at all.
//!
//! [`acquire`] takes the members; a [`batch`] takes several plain members by one script call.

mod acquire;
mod batch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::{AcquireOptions, LockContext};
use crate::cancel::{CancelToken, ResponseLimit};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Kind;
use crate::kind::rules::LockKind;
use crate::lock::handle::Lock;
use crate::lock::multi_guard::{AllHolds, GuardSet, MultiGuard, OwnedMultiGuard};
use crate::lock::multi_verbs::multi_verbs;
use crate::stats::{CallRecord, Series};
use crate::util::clock::{self, Patience};
use acquire::MultiAcquire;

/// A lock of any kind as a member of a [`MultiLock`].
#[derive(Clone, Debug)]
#[must_use = "a member does nothing until it is given to a MultiLock"]
pub struct AnyLock(Lock);

impl<K: LockKind> From<Lock<K>> for AnyLock {
    fn from(lock: Lock<K>) -> AnyLock {
        AnyLock(lock.untyped())
    }
}

/// Several locks, taken all together or not at all: Redisson's `RedissonMultiLock`.
///
/// The members may be of any kind and of any clients. Callers may name the members in any order,
/// without a deadlock: in general, a caller releases the members that it has taken before it waits
/// for another one. Exception, so that a caller does not starve: after two failed attempts it takes
/// the members in an order that all callers share, keeps those it has, and waits at most 1 s for
/// each. A `MultiLock` has no key of its own, so it also excludes callers of a single member.
///
/// One round trip takes all plain locks that have one client, one lease and, in a cluster, one
/// slot. Every other member takes a round trip of its own.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// use leasehold::MultiLock;
///
/// let transfer = MultiLock::new([client.lock("account:1"), client.lock("account:2")]);
/// let guard = transfer.lock()?;       // both
/// // ...
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a lock is not taken until lock() or another of its verbs is called"]
pub struct MultiLock {
    members: Vec<AnyLock>,
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MultiLock { members, lease, .. } = self;
        f.debug_struct("MultiLock")
            .field("members", members)
            .field("lease", lease)
            .finish_non_exhaustive()
    }
}

impl MultiLock {
    /// Returns a lock of all these members. No round trip.
    ///
    /// A lock that is given twice counts once. The members keep their own leases and cancel tokens,
    /// unless [`with_lease`](MultiLock::with_lease) or [`with_cancel`](MultiLock::with_cancel)
    /// replaces them. Locks of several kinds are members as [`AnyLock`]s:
    ///
    /// ```no_run
    /// use leasehold::{AnyLock, MultiLock};
    ///
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let (account, report) = (client.fair_lock("account:1"), client.rw_lock("report"));
    /// let both = MultiLock::new([AnyLock::from(account), report.read_lock().into()]);
    /// let guard = both.lock()?;
    /// # drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// Does not fail itself. The verbs that acquire or release return
    /// [`is_configuration`](Error::is_configuration) if there is no member or if a member has a
    /// [minimum hold](Lock::with_min_hold), and
    /// [`is_deadlock`](Error::is_deadlock) if two members of one client have the same name and
    /// differ in kind or holder.
    pub fn new(members: impl IntoIterator<Item = impl Into<AnyLock>>) -> MultiLock {
        let members = members.into_iter().map(Into::into).collect();
        MultiLock { members, lease: None, cancel: None }
    }

    /// Sets a fixed lease for all members. No round trip. See [`Lock::with_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> MultiLock {
        self.lease = Some(lease);
        self
    }

    /// Sets a token by which another thread can end the waits. See [`Lock::with_cancel`].
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> MultiLock {
        self.cancel = Some(token.clone());
        self
    }

    /// Releases the holds of a guard that was [detached](MultiGuard::detach).
    ///
    /// Calls [`Lock::unlock`] for each member, one after the other. Blocks for one response
    /// time-out at most. At most one round trip for each member.
    ///
    /// # Errors
    /// The first error of [`Lock::unlock`]; the other members are unlocked nevertheless.
    pub fn unlock(&self) -> Result<()> {
        let response_limit = self.response_limit();
        let members = self.distinct().map_err(|error| self.named(error))?;
        let mut outcome = Ok(());
        for member in members {
            outcome = outcome.and(member.0.unlock_within(response_limit));
        }
        outcome
    }

    /// Returns whether any caller holds any of the members.
    ///
    /// Blocks for one response time-out at most. One round trip for each member.
    ///
    /// # Errors
    /// The errors of [`Lock::is_locked`].
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds all members. Does not block, no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many times this thread holds all members. Does not block, no round trip.
    ///
    /// This is the smallest [`Lock::hold_count`] of the members.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_count(&self) -> usize {
        self.members.iter().map(|member| member.0.hold_count()).min().unwrap_or_default()
    }

    /// Returns the longest remaining lease on a member, or `None` if all are free.
    ///
    /// Blocks for one response time-out at most. One round trip for each member.
    ///
    /// # Errors
    /// The errors of [`Lock::remaining`].
    pub fn remaining(&self) -> Result<Option<Duration>> {
        let response_limit = self.response_limit();
        let left: Result<Vec<_>> =
            self.members.iter().map(|member| member.0.remaining_within(response_limit)).collect();
        Ok(left?.into_iter().max().flatten())
    }

    /// Frees all members regardless of their holders; returns whether any was held.
    ///
    /// Calls [`Lock::force_unlock`] for each member, one after the other. Blocks for one response
    /// time-out at most. Two round trips for each held member, one for each free member.
    ///
    /// # Errors
    /// The errors of [`Lock::force_unlock`]; some members may then have been freed.
    pub fn force_unlock(&self) -> Result<bool> {
        let response_limit = self.response_limit();
        let mut was_held = false;
        for member in &self.members {
            was_held |= member.0.force_unlock_within(response_limit)?;
        }
        Ok(was_held)
    }

    /// Returns the response limit of a call that begins now without a deadline.
    fn response_limit(&self) -> ResponseLimit {
        let all = self.members.iter().map(|member| member.0.response_limit());
        all.reduce(ResponseLimit::and).unwrap_or_else(ResponseLimit::over)
    }

    /// Returns the members, each once, in the order that all callers use.
    fn distinct(&self) -> Result<Vec<&AnyLock>> {
        let options = AcquireOptions::new(Patience::None);
        let mut members = Vec::with_capacity(self.members.len());
        for member in &self.members {
            let call = member.0.acquire_call(&options)?;
            let LockContext { engine, local } = &**call.context;
            // The release of several locks is not one step, so no member may have a minimum.
            if call.settings.min_hold().is_some() {
                let text = "a member of a MultiLock cannot have a minimum hold";
                let name = Arc::clone(local.name().given());
                return Err(Error::configuration(text).with_lock_name(name));
            }
            let order = LockOrder {
                key: local.name().key().to_owned(),
                client: engine.id,
                kind: call.rules.kind(),
                holder: call.holder_name.cloned(),
            };
            members.push((order, member));
        }
        if members.is_empty() {
            return Err(Error::configuration("a MultiLock needs at least one lock"));
        }
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        members.dedup_by(|(a, _), (b, _)| a == b);
        let excludes_next = |pair: &[(LockOrder, _)]| {
            pair[0].0.key == pair[1].0.key && pair[0].0.client == pair[1].0.client
        };
        if members.windows(2).any(excludes_next) {
            let message = "two of the locks have the same key, and would wait for each other";
            return Err(Error::new(ErrorKind::Deadlock, message));
        }
        Ok(members.into_iter().map(|(_, member)| member).collect())
    }

    /// Adds the names of all members to an error without a name.
    fn named(&self, error: Error) -> Error {
        let names: Vec<_> = self.members.iter().map(|member| member.0.name()).collect();
        if names.is_empty() { error } else { error.with_lock_name(names.join(", ")) }
    }

    fn acquire(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        self.take_all(patience, owned).map_err(|error| self.named(error))
    }

    fn take_all(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        let members = self.distinct()?;
        let mut clients =
            members.iter().map(|member| member.0.engine()).collect::<Result<Vec<_>>>()?;
        clients.sort_by_key(|client| client.id);
        clients.dedup_by_key(|client| client.id);
        let stats: Vec<_> = clients.iter().map(|client| series(client, &members)).collect();
        let record = CallRecord::new(&stats);
        let options = AcquireOptions {
            lease: self.lease,
            owned,
            record: Some(&record),
            cancel: self.cancel.as_ref(),
            // `try_lock` has one limit for all members. A wait without end has no limit, and fails
            // if its first request gets no reply.
            return_by: match patience {
                Patience::None => self.response_limit().end(),
                _ => patience.deadline(),
            },
            ..AcquireOptions::new(patience)
        };
        let calls: Result<Vec<_>> =
            members.iter().map(|member| member.0.acquire_call(&options)).collect();
        let call = MultiAcquire { calls: calls?, patience, record: &record };
        let holds = record.end(patience, call.acquire())?;
        Ok(holds.map(|holds| Box::new(AllHolds(holds)) as Box<dyn GuardSet>))
    }
}

/// Returns the statistics of a client for calls of the multi lock.
///
/// The label is that of the members of this client; there is none if they have different labels.
fn series<'a>(client: &'a Arc<Engine>, members: &[&AnyLock]) -> Series<'a> {
    client.events.stats().series(|| {
        let is_own =
            |member: &&&AnyLock| member.0.engine().is_ok_and(|engine| Arc::ptr_eq(engine, client));
        let mut labels = members.iter().filter(is_own).map(|member| member.0.label());
        let first = labels.next().flatten();
        ("multi", first.filter(|_| labels.all(|label| label == first)).cloned())
    })
}

/// The identity of a member, ordered. All callers take their members in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LockOrder {
    key: String,
    client: uuid::Uuid,
    kind: Kind,
    holder: Option<Arc<str>>,
}

multi_verbs!(MultiLock);
