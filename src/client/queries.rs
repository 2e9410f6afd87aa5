//! Queries of a [`Client`] about locks of any kind, the release by force, and the audit.

use std::sync::Arc;

use super::Client;
use crate::audit::AuditFinding;
use crate::error::Result;
use crate::inspect::info::LockInfo;
use crate::inspect::locks::Locks;
use crate::inspect::watch::LockWatch;
use crate::lock::force_unlock;

impl Client {
    /// Finds the held locks whose names match a pattern, on all servers.
    ///
    /// In the pattern, `*` stands for any text, `?` for one character, `[ab]` and `[a-c]` for one
    /// of several characters; `\` before such a character removes its meaning. The pattern applies
    /// to names without the client's [prefix](crate::Builder::name_prefix).
    ///
    /// Makes no round trip itself, except that a lazily built client of a cluster discovers the
    /// nodes. The returned iterator asks one server after the other, whenever it needs more locks:
    /// two round trips (`SCAN`, for locks and for semaphores) for about 32 keys of the server, and
    /// about three more if there are locks among these keys. Each such page takes the server about
    /// a millisecond at most (4 ms for a queue of 10,000 callers). The first step of the iterator
    /// reads one page, later steps up to eight. A step blocks for one response time-out and 50 ms
    /// at most. The iterator then asks the processes of the holders for more facts; stopped and
    /// unreachable processes delay the whole search by 250 ms at most. A search that finds 10,000
    /// held locks takes the server about 0.26 s of processor time.
    ///
    /// The search finds locks of all kinds, elections, and semaphores with permits in use. It
    /// returns each once, with the queue of a fair lock or a queue lock. It recognizes a lock by
    /// the fields of its hash, and leaves out names that are invalid or not UTF-8. It does not find
    /// plain semaphores and latches: the server has a number for each, and does not know who took
    /// it. The iterator keeps the keys of all locks that it has found in memory.
    ///
    /// A lock that is held during the whole search is returned. Exception: the search may miss a
    /// lock after a fail-over, or if the slot of the lock moves to another server during the
    /// search. A lock that is taken or released during the search may be returned or not.
    ///
    /// # Errors
    /// - [`is_configuration`](crate::Error::is_configuration) if the pattern is empty, has control
    ///   characters or a `[` without a `]`, or is longer than 256 bytes.
    /// - [`is_closed`](crate::Error::is_closed) after [`close`](Client::close).
    /// - The iterator returns the errors of [`Lock::holder`](crate::Lock::holder). In a cluster the
    ///   search goes on after a node that does not answer, and its error comes after all locks. So
    ///   does [`is_configuration`](crate::Error::is_configuration) of a client that is not
    ///   configured for a cluster, and whose server is one of several nodes.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// for lock in client.locks("orders:*")? {
    ///     let lock = lock?;
    ///     println!("{} is held by {:?}", lock.name(), lock.holders());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn locks(&self, pattern: impl AsRef<str>) -> Result<Locks> {
        Locks::new(Arc::clone(&self.engine), pattern.as_ref())
    }

    /// Returns the lock with this name, of any kind, or `None` if it is free.
    ///
    /// Has the facts of [`locks`](Client::locks), and needs no search. The name may also be one
    /// that only Redisson takes, with braces that are no hash tag. Also returns a semaphore with
    /// permits in use. Returns `None` also for a free lock with waiting callers, for a hash of
    /// another program, and for the name of a plain semaphore or a latch.
    ///
    /// Blocks until the servers answer, for one response time-out at most. Two round trips; one if
    /// the lock is free. Then asks the processes of the holders for more facts, as
    /// [`Lock::holders`](crate::Lock::holders) does.
    ///
    /// # Errors
    /// The errors of [`Lock::holder`](crate::Lock::holder).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if let Some(lock) = client.lock_info("orders:42")? {
    ///     println!("{} is held by {:?}", lock.kind(), lock.holders());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lock_info(&self, name: impl Into<String>) -> Result<Option<LockInfo>> {
        let name = name.into();
        let mut watch = self.watch_locks([name.clone()])?;
        let looked = watch.look().map_err(|error| error.with_lock_name(name));
        Ok(looked?.pop().flatten())
    }

    /// Returns a [`LockWatch`] of the locks with these names. No round trip.
    ///
    /// [`LockWatch::look`] looks at the locks, and its docs state the cost. The locks may be of any
    /// kind, and a name may occur several times.
    ///
    /// # Errors
    /// - [`is_invalid_name`](crate::Error::is_invalid_name) if a name is empty or too long. A
    ///   name that only Redisson takes, with braces that are no hash tag, is accepted.
    /// - [`is_closed`](crate::Error::is_closed) after [`close`](Client::close).
    pub fn watch_locks(
        &self,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<LockWatch> {
        LockWatch::new(Arc::clone(&self.engine), names.into_iter().map(Into::into))
    }

    /// Frees the lock with this name regardless of kind and holder; returns whether it was held.
    ///
    /// For repairs by hand. As [`Lock::force_unlock`](crate::Lock::force_unlock), without the need
    /// to know the kind: frees all holders of a lock with several, both sides of a read-write lock,
    /// and the rest of a minimum hold, and wakes the waiters of the kind. Takes all permits of a
    /// semaphore away from their holders. Refuses a key that is no lock and leaves it as it is,
    /// such as a hash of another program, a plain semaphore, a latch, and a semaphore without
    /// permits in use.
    ///
    /// Two round trips: a look at the lock, and the release. One round trip if the lock is free;
    /// two more if the lock changes from readers to a writer, or back, between the look and the
    /// release. Blocks until the server answers, for one response time-out at most. A caller that
    /// gets the lock between the look and the release loses it. A caller of a fair lock that joins
    /// an empty queue in this time notices the free lock at its next poll. Late copies and lost
    /// answers have the effects that [`Lock::force_unlock`](crate::Lock::force_unlock) describes.
    ///
    /// # Errors
    /// - [`is_server`](crate::Error::is_server) with the code `WRONGTYPE` if the key is no lock.
    /// - The errors of [`Lock::is_locked`](crate::Lock::is_locked).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let was_held = client.force_unlock("orders:42")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn force_unlock(&self, name: impl Into<String>) -> Result<bool> {
        force_unlock::force_unlock(Arc::clone(&self.engine), name.into())
    }

    /// Audits all servers of the deployment now; returns all findings.
    ///
    /// [`Builder::audit_policy`](crate::Builder::audit_policy) lists the findings. The policy does
    /// not matter here: each call audits every server. The call does not log the findings, and does
    /// not pass them to event listeners. With Sentinel it audits the master, with a cluster all
    /// nodes that serve slots. A command of the audit that a server refuses is a finding.
    ///
    /// Blocks for one response time-out per server at most, one server after the other; for one
    /// more without a cluster. One round trip per server; one more without a cluster. A node of a
    /// cluster that does not answer is a finding too, and the call goes on with the other nodes.
    ///
    /// # Errors
    /// The errors of [`ping`](Client::ping) if no server answers.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// for finding in client.audit()? {
    ///     println!("{}: {}", finding.server, finding.text);
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "a query changes nothing: use its answer"]
    pub fn audit(&self) -> Result<Vec<AuditFinding>> {
        self.engine.audit()
    }
}
