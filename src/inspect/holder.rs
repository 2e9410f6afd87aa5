//! [`HolderInfo`]: one holder of a lock, or one waiting caller.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::owner_field::{self, OwnerField};
use crate::command::client_record::ClientRecord;
use crate::util::clock::WallTime;

/// A holder of a lock, or a caller in the queue of a fair lock.
///
/// Returned by [`Lock::holder`](crate::Lock::holder), [`Lock::holders`](crate::Lock::holders),
/// [`Lock::waiting`](crate::Lock::waiting) and [`Client::locks`](crate::Client::locks). The value
/// is a copy of the server's data at the time of the query. Facts that are unknown are `None`:
///
/// | source | facts | unknown for |
/// | --- | --- | --- |
/// | the hash of the lock | owner, count, remaining lease | |
/// | the [owner field](crate#terms) | client id, time of the acquisition | a Redisson thread has no time |
/// | the record of the client | host, pid, program, label, version, start | Redisson; a client that does not announce itself, or has ended |
/// | the running process | thread, guard count, exact time, local waiters | a process that does not answer in time |
///
/// Serialized by the feature `serde`: a structure with one field per method, durations in seconds
/// as numbers, times in seconds since 1970.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HolderInfo {
    owner: String,
    client_id: Option<Uuid>,
    /// The number of the hold, if leasehold wrote it.
    hold: Option<u64>,
    thread: Option<String>,
    thread_number: Option<u64>,
    since: Option<WallTime>,
    remaining: Option<Duration>,
    count: u64,
    local_waiters: Option<u64>,
    record: Option<Arc<ClientRecord>>,
}

impl HolderInfo {
    /// Returns the holder `owner`, about which the field `id` has the client and the number.
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
            local_waiters: None,
            record: None,
        }
    }

    pub(super) fn with_count(self, count: u64) -> HolderInfo {
        HolderInfo { count, ..self }
    }

    pub(super) fn with_remaining(self, remaining: Option<Duration>) -> HolderInfo {
        HolderInfo { remaining, ..self }
    }

    /// Sets what the client has recorded about itself.
    pub(super) fn set_record(&mut self, record: Option<Arc<ClientRecord>>) {
        self.record = record;
    }

    /// Returns the client and the number of the hold, if leasehold wrote them.
    pub(super) fn hold(&self) -> Option<(Uuid, u64)> {
        self.client_id.zip(self.hold)
    }

    /// Returns the owner: an [owner field](crate#terms), or the name of a
    /// [named holder](crate::Lock::with_holder).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the id of the client: that of [`Client::id`](crate::Client::id), or of Redisson.
    ///
    /// `None` for a count of a named holder that another library added.
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

    /// Returns the label of the client.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn label(&self) -> Option<&str> {
        self.record.as_ref()?.label()
    }

    /// Returns the version of this library in the process.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn version(&self) -> Option<&str> {
        self.record.as_ref()?.version()
    }

    /// Returns the time at which the client started, by the clock of its host.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn started(&self) -> Option<WallTime> {
        self.record.as_ref()?.started()
    }

    /// Returns the name of the thread; for a Redisson thread, its number.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn thread(&self) -> Option<&str> {
        self.thread.as_deref()
    }

    /// Returns the number of the thread, as its process counts threads.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn thread_number(&self) -> Option<u64> {
        self.thread_number
    }

    /// Returns the time since which the lock is held, by the clock of the holder's host.
    ///
    /// Without an answer of the process, this is the time of the call that acquired the lock from
    /// the server; the process may have handed the lock from thread to thread since. For a caller
    /// in a queue, this is the time of its call.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn since(&self) -> Option<WallTime> {
        self.since
    }

    /// Returns the remaining lease on the server. Millisecond precision.
    ///
    /// A reader has a lease of its own; zero means that its lease has ended and other readers keep
    /// the lock. `None` for a hold without a time to live, and for a caller in a queue.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns how many guards the holder has, or how often a Redisson thread holds the lock.
    ///
    /// Without an answer of the process, this is the count in Redis, which is 1 for a hold of this
    /// library. Zero for a caller in a queue.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns how many threads of the holder's process wait for the lock.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn local_waiters(&self) -> Option<u64> {
        self.local_waiters
    }
}
