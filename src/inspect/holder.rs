//! [`HolderInfo`]: one holder of a lock, or one waiting caller.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::live::LiveAnswers;
use crate::command::client_record::ClientRecord;
use crate::command::owner::HoldId;
use crate::command::owner_field::{self, OwnerField};
use crate::events::Kind;
use crate::util::clock::{self, WallTime};

/// A holder of a lock or of permits, or a caller in the queue of a fair lock or a queue lock.
///
/// Returned by [`Lock::holder`](crate::Lock::holder), [`Lock::holders`](crate::Lock::holders),
/// [`Lock::waiting`](crate::Lock::waiting), [`Client::locks`](crate::Client::locks),
/// [`RedLock::holders`](crate::RedLock::holders), [`Semaphore::holders`](crate::Semaphore::holders)
/// and [`Leader::holder`](crate::Leader::holder). The value is a snapshot at the time of the query.
/// Unknown facts are `None`:
///
/// | source | facts | unknown for |
/// | --- | --- | --- |
/// | the hash of the lock, or the ids of the permits | owner, count, remaining lease | the remaining lease of a caller in a queue |
/// | the [owner field](crate#terms) | client id, time of the request | the time of a Redisson thread, and of a holder of a fair lock |
/// | the [token](crate::LockInfo::token) of a queue lock or of a leader | time of the grant | |
/// | the [record](crate::Builder::announce) of the client | host, pid, program, label, version, start, instance, whether its holds end with its process | Redisson; a client without a record, or a client that has ended |
/// | the running process | thread, guard count, exact time, local waiters, holds so far | a process without an answer in time; a caller in a queue |
///
/// With the feature `serde`, serialized as a structure with one field per method: durations as
/// numbers of seconds, times as numbers of seconds since 1970.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HolderInfo {
    owner: String,
    client_id: Option<Uuid>,
    /// The number of the hold, if leasehold wrote the owner field.
    hold: Option<u64>,
    thread: Option<String>,
    thread_number: Option<u64>,
    since: Option<WallTime>,
    remaining: Option<Duration>,
    count: u64,
    is_idle: bool,
    slots: Vec<u32>,
    local_waiters: Option<u64>,
    acquired: Option<u64>,
    record: Option<Arc<ClientRecord>>,
}

impl HolderInfo {
    /// Returns the holder `owner`, with the client and the number of its owner field `id`.
    ///
    /// The time is that of the request, which the number states.
    pub(super) fn new(owner: &str, id: Option<OwnerField>) -> HolderInfo {
        let hold = id.filter(OwnerField::is_ours).map(|id| id.number);
        let thread_number = id.filter(|id| !id.is_ours()).map(|id| id.number);
        HolderInfo {
            owner: owner.to_owned(),
            client_id: id.map(|id| id.client),
            hold,
            thread: thread_number.map(|number| number.to_string()),
            thread_number,
            since: hold.and_then(owner_field::time_of),
            remaining: None,
            count: 0,
            is_idle: false,
            slots: Vec::new(),
            local_waiters: None,
            acquired: None,
            record: None,
        }
    }

    pub(super) fn with_count(self, count: u64) -> HolderInfo {
        HolderInfo { count, ..self }
    }

    pub(super) fn with_remaining(self, remaining: Option<Duration>) -> HolderInfo {
        HolderInfo { remaining, ..self }
    }

    pub(super) fn with_slots(self, slots: Vec<u32>) -> HolderInfo {
        HolderInfo { slots, ..self }
    }

    pub(super) fn with_since(self, since: Option<WallTime>) -> HolderInfo {
        HolderInfo { since, ..self }
    }

    pub(super) fn record(&self) -> Option<&Arc<ClientRecord>> {
        self.record.as_ref()
    }

    /// Sets the record of the client.
    pub(super) fn set_record(&mut self, record: Option<Arc<ClientRecord>>) {
        self.record = record;
    }

    /// Returns the client and the number of the hold, if leasehold wrote the owner field.
    pub(super) fn hold(&self) -> Option<(Uuid, u64)> {
        self.client_id.zip(self.hold)
    }

    /// Returns the client and the number of the hold, if its process can be asked for details.
    ///
    /// A client without a record does not listen for questions, or has ended.
    pub(super) fn hold_to_ask(&self) -> Option<(Uuid, u64)> {
        self.hold().filter(|_| self.record.is_some())
    }

    /// Sets the facts of the answer of the holder's process, if there is one.
    pub(super) fn add_answers(&mut self, answers: &LiveAnswers) {
        let Some(hold) = self.hold() else { return };
        self.acquired = answers.acquired.get(&hold).copied();
        let Some(details) = answers.details.get(&hold) else { return };
        self.thread.clone_from(&details.thread_name);
        self.thread_number = Some(details.thread);
        (self.count, self.is_idle) = (details.guards, details.guards == 0);
        self.since = clock::wall_time().checked_sub(details.held_for).or(self.since);
        // A process does not count its waiters for a fair lock together.
        let is_fair = HoldId::kind_of(hold.1) == Kind::Fair;
        self.local_waiters = (!is_fair).then_some(details.waiters);
    }

    /// Returns the owner: an [owner field](crate#terms), or the name of a
    /// [named holder](crate::Lock::with_holder).
    ///
    /// For a permit of Redisson its id, in hexadecimal digits.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the id of the client, of leasehold ([`Client::id`](crate::Client::id)) or of
    /// Redisson.
    ///
    /// `None` for the holds of a named holder by other libraries, and for permits of Redisson.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn client_id(&self) -> Option<Uuid> {
        self.client_id
    }

    /// Returns the host name of the process.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn host(&self) -> Option<&str> {
        self.record.as_ref()?.host()
    }

    /// Returns the id of the process on its host.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn pid(&self) -> Option<u32> {
        self.record.as_ref()?.pid()
    }

    /// Returns the name of the program.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn program(&self) -> Option<&str> {
        self.record.as_ref()?.program()
    }

    /// Returns the label of the client ([`Builder::label`](crate::Builder::label)).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn label(&self) -> Option<&str> {
        self.record.as_ref()?.label()
    }

    /// Returns the version of leasehold in the process.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn version(&self) -> Option<&str> {
        self.record.as_ref()?.version()
    }

    /// Returns the time at which the client started, by the clock of its host.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn started(&self) -> Option<WallTime> {
        self.record.as_ref()?.started()
    }

    /// Returns the instance of the client ([`Builder::instance`](crate::Builder::instance)).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn instance(&self) -> Option<&str> {
        self.record.as_ref()?.instance()
    }

    /// Returns whether the hold ends with its process
    /// ([`Builder::release_on_death`](crate::Builder::release_on_death)).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn ends_with_process(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.ends_with_process())
    }

    /// Returns the name of the thread that acquired the lock; for a Redisson thread, its number.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn thread(&self) -> Option<&str> {
        self.thread.as_deref()
    }

    /// Returns the number of the thread, unique in its process.
    ///
    /// Not the thread id of the operating system.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn thread_number(&self) -> Option<u64> {
        self.thread_number
    }

    /// Returns the time since which the holder has the lock.
    ///
    /// If the process has answered, the time of the grant or of the last hand-off, by the clock of
    /// this machine. Otherwise hand-offs do not change the time, and the kind decides:
    ///
    /// - a queue lock, and the term of a leader: the time of the grant, by the server's clock;
    ///   `None` if the token is lost, and for a query through the handle of another kind;
    /// - a fair lock: `None`, because Redis has only the beginning of the wait;
    /// - other kinds, and permits: the time of the request that was granted, by the clock of the
    ///   holder's host.
    ///
    /// For a caller in a queue, the time of its call.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn since(&self) -> Option<WallTime> {
        self.since
    }

    /// Returns the remaining lease on the server. Millisecond precision.
    ///
    /// Each reader has a lease of its own. Zero means that this lease has ended, while other
    /// readers keep the lock. `None` for a hold without a time to live, and for a caller in a
    /// queue.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the number of guards of the holder, or the hold count of a Redisson thread.
    ///
    /// If the process has answered, detached guards count too. Otherwise this is the count in
    /// Redis, which is 1 for a hold of this library. Zero for a caller in a queue. For permits of a
    /// [`Semaphore`](crate::Semaphore) this is their number.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether nobody has the hold: it lingers ([`Lock::with_linger`]).
    ///
    /// The thread is then that of the last holder, and the count of guards is zero. `false` without
    /// an answer of the process.
    ///
    /// [`Lock::with_linger`]: crate::Lock::with_linger
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Returns the slots of the permits ([`Semaphore::with_slots`](crate::Semaphore::with_slots)).
    ///
    /// Empty for a lock, for permits without slots, and without the permission
    /// `~leasehold_slots:*`.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the number of callers of the holder's process that wait for the lock.
    ///
    /// `None` without an answer, and for a fair lock: its [queue](crate::WaitingInfo::queue) has
    /// these callers.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn local_waiters(&self) -> Option<u64> {
        self.local_waiters
    }

    /// Returns the number of holds of this name that the holder's client has had so far.
    ///
    /// Counts each grant by the server and each hand-off within the process, for all kinds of lock
    /// with this name together. The present hold counts; a re-entry does not. The difference
    /// between two looks is the number of holds that the client got in between, including those
    /// that were too short for a look to see them. Known also if this hold ends before the process
    /// answers.
    ///
    /// The count begins again at zero when the client has forgotten the name: it has no handle,
    /// guard or waiting caller of this name, and has used more than 32 other names since. `None`
    /// without an answer of the process, and if its version of leasehold does not count.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn acquired(&self) -> Option<u64> {
        self.acquired
    }
}
