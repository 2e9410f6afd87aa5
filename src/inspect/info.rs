//! [`LockInfo`] and [`WaitingInfo`].

use std::collections::BTreeSet;
use std::time::Duration;

use super::holder::HolderInfo;
use super::live::LiveAnswers;
use super::lock_state::{LockState, Side};
use super::permits::PermitCounts;
use crate::command::name::Name;

/// The kind of the lock of an election with a leader.
const ELECTION: &str = "election";

/// The callers that wait for a lock, for permits or for a latch, at the time of the query.
///
/// Returned by [`Lock::waiting`](crate::Lock::waiting), [`LockInfo::waiting`] and the method
/// `waiting` of semaphores and latches. With the feature `serde`, serialized as a structure with
/// one field per method.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WaitingInfo {
    processes: u64,
    queue: Vec<HolderInfo>,
}

impl WaitingInfo {
    /// Returns the waiting callers of a lock without a queue in Redis.
    pub(super) fn of_processes(processes: u64) -> WaitingInfo {
        WaitingInfo { processes, queue: Vec::new() }
    }

    /// Returns the waiting callers of a lock with a queue in Redis.
    pub(super) fn of_queue(queue: Vec<HolderInfo>) -> WaitingInfo {
        let clients: BTreeSet<_> = queue.iter().filter_map(HolderInfo::client_id).collect();
        WaitingInfo { processes: clients.len() as u64, queue }
    }

    /// Returns the number of clients with waiting callers.
    ///
    /// For a fair lock and a queue lock, the number of clients in the queue. For a spin lock always
    /// zero, because its waiters leave no trace on the server. For other kinds, semaphores and
    /// latches, the number of subscribers of the channel. A client unsubscribes within one [poll
    /// interval](crate::Builder::poll_interval) after its last waiting caller has left, and counts
    /// until then.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn processes(&self) -> u64 {
        self.processes
    }

    /// Returns the queue of a fair lock or a queue lock, in its order; empty for other kinds.
    ///
    /// A caller of a dead process stays in the queue of a fair lock until it is the first and the
    /// [fair waiter time-out](crate::Builder::fair_waiter_timeout) has passed. It stays in the
    /// queue of a queue lock until a grant passes over it.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn queue(&self) -> &[HolderInfo] {
        &self.queue
    }
}

/// A held lock, or a semaphore with permits in use, in the form that
/// [`Client::locks`](crate::Client::locks) returns.
///
/// Also returned by [`Client::lock_info`](crate::Client::lock_info) and
/// [`LockWatch::look`](crate::LockWatch::look). The value is a snapshot at the time of the query.
///
/// With the feature `serde`, serialized as a structure with one field per method: durations as
/// numbers of seconds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    name: String,
    kind: &'static str,
    holders: Vec<HolderInfo>,
    former_holder: Option<HolderInfo>,
    remaining: Option<Duration>,
    waiting: WaitingInfo,
    token: Option<u64>,
    leader_value: Option<String>,
    permits: Option<PermitCounts>,
}

impl LockInfo {
    /// Returns the facts that the server has; `subscribers` are those of the lock's channel.
    pub(super) fn new(name: &Name, state: &LockState, subscribers: u64) -> LockInfo {
        let queue = state.queue();
        let leader_value = state.leader_value().map(str::to_owned);
        LockInfo {
            name: name.given().to_string(),
            kind: if leader_value.is_some() { ELECTION } else { state.kind().name() },
            holders: state.holders(Side::Both),
            former_holder: state.former_holder(),
            remaining: state.remaining(),
            waiting: if queue.is_empty() {
                WaitingInfo::of_processes(subscribers)
            } else {
                WaitingInfo::of_queue(queue)
            },
            token: state.token(),
            leader_value,
            permits: state.permits().map(|permits| permits.counts),
        }
    }

    /// Returns the holders, former and present, and the waiting callers.
    pub(super) fn people(&mut self) -> impl Iterator<Item = &mut HolderInfo> {
        self.holders.iter_mut().chain(&mut self.former_holder).chain(&mut self.waiting.queue)
    }

    /// Sets the facts of the answers of the holders' processes.
    pub(super) fn add_answers(&mut self, answers: &LiveAnswers) {
        self.holders.iter_mut().for_each(|holder| holder.add_answers(answers));
    }

    /// Returns the name of the lock, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the kind, as [events](crate::Acquired) show it: `lock`, `fair lock`,
    /// `semaphore`.
    ///
    /// The lock of an [`Election`](crate::Election) with an announced leader is an `election`, else
    /// a `queue lock`. The hold tells its kind, whether its process answers or not. A hold of
    /// Redisson does not: it counts as that of a `fair lock` while callers wait in the queue of
    /// such a lock, of a `fenced lock` if the name has a token counter, and of a `lock` otherwise.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn kind(&self) -> &str {
        self.kind
    }

    /// Returns the holders, none after an [early release](crate::Lock::with_min_hold).
    ///
    /// Those of a semaphore are as in [`Semaphore::holders`](crate::Semaphore::holders).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn holders(&self) -> &[HolderInfo] {
        &self.holders
    }

    /// Returns the holder that released the lock early, and whose
    /// [minimum](crate::Lock::with_min_hold) keeps it taken.
    ///
    /// The record of its process stays until the minimum ends, so that jobs that last a second are
    /// named after their end; not after a kill. `None` for permits of a semaphore.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn former_holder(&self) -> Option<&HolderInfo> {
        self.former_holder.as_ref()
    }

    /// Returns the remaining lease of the lock on the server. Millisecond precision.
    ///
    /// With several readers, or permits of a semaphore, the longest of their leases. After an early
    /// release, the rest of the minimum. `None` for a lock without a time to live.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the callers that wait for the lock.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn waiting(&self) -> &WaitingInfo {
        &self.waiting
    }

    /// Returns the last fencing token of this name that the server has handed out.
    ///
    /// `None` if the name has never been a fenced lock or a queue lock. An equal token at two looks
    /// means that the server has granted no such lock of this name in between; a larger one, that
    /// it has granted at least one. The difference is no count of holds: the tokens of this library
    /// follow the server's time in microseconds. [`HolderInfo::acquired`] counts holds.
    ///
    /// A process may have tokens of a fenced lock in reserve for hand-offs to its own threads. The
    /// token of its present guard is then smaller.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Returns the value of the leader of an election, as [`Leader::value`](crate::Leader::value).
    ///
    /// `None` for another lock, and for an election whose leader is not announced yet.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn leader_value(&self) -> Option<&str> {
        self.leader_value.as_deref()
    }

    /// Returns the number of permits in use, if this is a semaphore.
    ///
    /// Permits that a minimum keeps in use after an early release count, and have no holder.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn in_use(&self) -> Option<u64> {
        self.permits.map(|permits| permits.in_use)
    }

    /// Returns the capacity, if this is a semaphore: the number of its permits.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn permits(&self) -> Option<i64> {
        self.permits.map(|permits| permits.capacity)
    }
}
