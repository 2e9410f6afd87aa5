//! Queries about a [`Lock`], and releases that need no guard.
//!
//! Two commands must not run twice: `force_unlock`, and the release of a count that another process
//! left. Each is sent once, behind a query on the same connection. The query may be repeated on a
//! new connection, so a connection that turns out to be dead fails the query and not the command.

use std::sync::Arc;
use std::time::Duration;

use super::Lock;
use crate::acquire::{HoldHandle, LockContext, checked_lease, not_held};
use crate::cancel::{Limit, ResponseLimit};
use crate::command::name::Name;
use crate::command::owner::ThreadId;
use crate::error::{Error, Result};
use crate::events::Kind;
use crate::inspect::Side;
use crate::inspect::holder::HolderInfo;
use crate::inspect::info::WaitingInfo;
use crate::kind::named::Named;
use crate::kind::rules::{self, LockKind, ReleaseReply};
use crate::local::hold::Hold;
use crate::local::table::HoldShare;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::Target;
use crate::util::clock;
use crate::watchdog;

impl<K: LockKind> Lock<K> {
    /// Returns whether any caller holds the lock.
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip. A hold
    /// of this process that the answer does not show is lost at once, as with every query.
    ///
    /// # Errors
    /// [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout) or
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server does not answer, and the
    /// [errors of every verb](Lock#errors-of-every-verb).
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds the lock. Does not block, no round trip.
    ///
    /// An [`OwnedGuard`](crate::OwnedGuard) belongs to no thread and does not count.
    ///
    /// ```
    /// # let client = leasehold::Client::builder().single("redis://127.0.0.1:1/").build_lazily()?;
    /// let lock = client.lock("orders:42");
    /// assert!(!lock.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many valid guards of the lock this thread has. Does not block, no round trip.
    ///
    /// Guards that the thread has detached count. An [`OwnedGuard`](crate::OwnedGuard) does not.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_count(&self) -> usize {
        let (thread, now) = (ThreadId::current(), clock::now());
        let mine = |hold: &Hold| self.is_mine(hold);
        self.shared.context().map_or(0, |context| context.local.count(mine, thread, now))
    }

    /// Returns the remaining lease of the holder, or `None` if the lock is free.
    ///
    /// The result is `Duration::MAX` for a held lock without a time to live. Millisecond precision.
    /// Blocks until the server answers, for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// The errors of [`is_locked`](Lock::is_locked).
    pub fn remaining(&self) -> Result<Option<Duration>> {
        self.remaining_within(self.response_limit())
    }

    /// Returns the holder of the lock, or `None` if nobody holds it.
    ///
    /// If there are several, returns the first of the [`holders`](Lock::holders), in no particular
    /// order. Blocks and asks as [`holders`](Lock::holders) does.
    ///
    /// # Errors
    /// The errors of [`holders`](Lock::holders).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if let Some(holder) = client.lock("orders:42").holder()? {
    ///     println!("{:?} on {:?} since {:?}", holder.pid(), holder.host(), holder.since());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder(&self) -> Result<Option<HolderInfo>> {
        Ok(self.holders()?.into_iter().next())
    }

    /// Returns all holders of the lock, in any process and language.
    ///
    /// Most locks have one holder. A read lock has one entry per reader. A lock of a
    /// [named holder](Lock::with_holder) has one entry per hold of this library, and one entry for
    /// all holds of other libraries. The read side of an [`RwLock`](crate::RwLock) returns the
    /// readers, the write side the writer. After an early release with a
    /// [minimum](Lock::with_min_hold) there is no holder, although [`is_locked`](Lock::is_locked)
    /// returns true.
    ///
    /// Blocks until the server answers, for one response time-out at most. Two round trips; one if
    /// the lock is free. The call then asks the processes of the holders for more facts, if their
    /// clients have a [record](crate::Builder::announce): it connects to a server for this, in up
    /// to 250 ms per server that it tries, and waits 125 ms at most for the answers. Without an
    /// answer these facts are unknown; see [`HolderInfo`]. In a cluster, the record of a client may
    /// be on any node. If the client knows that this node does not answer, the call waits for it
    /// for 250 ms, and then does without the record.
    ///
    /// # Errors
    /// The errors of [`is_locked`](Lock::is_locked), and [`is_server`](crate::Error::is_server)
    /// without the permission to read the records of clients. The text then names the permissions
    /// (`docs/permissions.md`).
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        let side = match self.shared.kind() {
            Kind::Read => Side::Read,
            Kind::Write => Side::Write,
            _ => Side::Both,
        };
        // The time of the grant is in the token.
        let has_tokens = self.shared.kind() == Kind::Queued;
        self.shared
            .inspect(|inspector, name, target| inspector.holders(name, side, has_tokens, target))
    }

    /// Returns the callers that wait for the lock, in any process and language.
    ///
    /// For a fair lock and a queue lock, returns the queue; for other kinds, the number of waiting
    /// clients. Waiters of both sides of an [`RwLock`](crate::RwLock) count together.
    /// [`WaitingInfo`] has the details.
    ///
    /// Blocks until the servers answer, for one response time-out at most. One round trip; two for
    /// a queue that is not empty; none for a spin lock, because its waiters leave no trace on the
    /// server.
    ///
    /// # Errors
    /// The errors of [`holders`](Lock::holders).
    pub fn waiting(&self) -> Result<WaitingInfo> {
        self.shared.waiting(self.rules.listens_to())
    }

    /// Releases a hold whose guard was [detached](crate::Guard::detach).
    ///
    /// Releases a hold that this thread detached, or else a hold that belongs to no thread: the
    /// hold of a detached [`OwnedGuard`](crate::OwnedGuard), or of a thread that has ended. Blocks
    /// until the server answers, for one response time-out at most. One round trip; none if the
    /// hold has other guards.
    ///
    /// With a [named holder](Lock::with_holder), and without a detached hold in this process, the
    /// call subtracts one count that another process left. This takes two round trips. The client
    /// never sends that command twice: without an answer the command may have run, or may still run
    /// late.
    ///
    /// # Errors
    /// [`is_not_held`](crate::Error::is_not_held) if there is no such hold, and the errors of
    /// [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("orders:42");
    /// lock.lock()?.detach();
    /// // ... later, on the same thread ...
    /// lock.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn unlock(&self) -> Result<()> {
        self.unlock_within(self.response_limit())
    }

    /// Sets the remaining lease of a hold without a guard to `lease`, unless more remains already.
    ///
    /// The hold is one that [`unlock`](Lock::unlock) would release. With a [named
    /// holder](Lock::with_holder), and without a detached hold in this process, it is that of any
    /// process: the lease of the holder ends after `lease` at the earliest. Blocks until the server
    /// answers, for one response time-out at most. One round trip. Millisecond precision.
    ///
    /// # Errors
    /// [`is_not_held`](crate::Error::is_not_held) if there is no such hold, and the errors of
    /// [`Guard::extend`](crate::Guard::extend).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// // Another process has taken the lock for this job.
    /// client.lock("deploy:shop").with_holder("build-17").extend(Duration::from_secs(600))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.extend_detached(lease).map_err(|error| self.shared.named(error))
    }

    /// Frees the lock regardless of its holder; returns whether it was held.
    ///
    /// For repairs by hand. Wakes the waiters; those of a spin lock notice at their next attempt,
    /// and a queue lock is granted to its next waiter. A holder in this process loses its hold at
    /// once. The clients of up to 1,000 holders get a message, and their watchdogs ask the server
    /// at once. All other holders notice the loss at the next renewal or check by their watchdog.
    /// So do the holders of a client that receives no message, because it is not connected, or
    /// neither [announces itself](crate::Builder::announce) nor waits. A caller that gets the lock
    /// at the same moment may lose its hold too, and notices the loss in the same way. Blocks until
    /// the server answers, for one response time-out at most. Two round trips; one if the lock is
    /// free.
    ///
    /// The read side of an [`RwLock`](crate::RwLock) frees only read holds, the write side only
    /// write holds. Exception: while the writer also reads, the write side frees both holds and the
    /// read side frees nothing.
    ///
    /// The client never sends this command twice, since the second copy could free the hold of the
    /// next holder. Without an answer the command may have run, or may still run late.
    ///
    /// # Errors
    /// - [`is_server`](crate::Error::is_server) with the code `WRONGTYPE` if the key is no lock,
    ///   such as a semaphore or a hash of another program. The key stays as it is.
    /// - The errors of [`is_locked`](Lock::is_locked).
    pub fn force_unlock(&self) -> Result<bool> {
        self.force_unlock_within(self.response_limit())
    }

    /// Returns the response limit of a call that begins now without a deadline.
    pub(crate) fn response_limit(&self) -> ResponseLimit {
        self.shared.response_limit()
    }

    /// [`Lock::unlock`] within a response limit.
    pub(crate) fn unlock_within(&self, response_limit: ResponseLimit) -> Result<()> {
        self.end_detached(response_limit).map_err(|error| self.shared.named(error))
    }

    /// [`Lock::remaining`] within a response limit.
    pub(crate) fn remaining_within(
        &self,
        response_limit: ResponseLimit,
    ) -> Result<Option<Duration>> {
        self.shared.run(response_limit, |context, limit| {
            let (left, _) = self.ask_remaining(context, limit)?;
            Ok(left)
        })
    }

    /// [`Lock::force_unlock`] within a response limit.
    pub(crate) fn force_unlock_within(&self, response_limit: ResponseLimit) -> Result<bool> {
        let local = &self.shared.context()?.local;
        let mut held = Vec::new();
        let force = |name: &Name| {
            // Listed before the lock is freed: a later holder in this process keeps its hold.
            held = local.holds();
            self.rules.force_unlock(name)
        };
        if self.send_once(force, response_limit)? == ReleaseReply::NotHeld {
            return Ok(false);
        }
        for hold in &held {
            local.lose(hold);
        }
        Ok(true)
    }

    fn extend_detached(&self, lease: Duration) -> Result<()> {
        let lease = checked_lease(lease)?;
        let context = self.shared.context()?;
        match (self.detached(context), &self.holder) {
            (Some((hold, _)), _) => {
                HoldHandle::new(Arc::clone(context), hold).extend(lease, self.response_limit())
            }
            (None, Some(holder)) => {
                let extended = self.shared.run(self.response_limit(), |context, limit| {
                    let LockContext { engine, local } = context;
                    // After a topology change neither a yes nor a no of the former server counts.
                    let (reply, _) = engine.router.until_current(|| {
                        let extension = Named::extension(local.name(), holder, lease);
                        let target = Target::prefer(local.unanswered_release());
                        engine.router.call(extension, target, limit)
                    })?;
                    watchdog::is_extended(reply)
                })?;
                if extended { Ok(()) } else { Err(self.not_held_by_name(context)) }
            }
            (None, None) => Err(not_held()),
        }
    }

    /// Returns a hold of this handle without a guard that this thread may end, and its share.
    fn detached(&self, context: &LockContext) -> Option<(Arc<Hold>, HoldShare)> {
        let mine = |hold: &Hold| self.is_mine(hold);
        context.local.detached(mine, ThreadId::current(), clock::now())
    }

    /// Returns the error for a named holder that the server does not have.
    fn not_held_by_name(&self, context: &LockContext) -> Error {
        // Other threads of this process may have guards of this name.
        context.engine.watchdog.verify(&context.local);
        not_held()
    }

    fn end_detached(&self, response_limit: ResponseLimit) -> Result<()> {
        let context = self.shared.context()?;
        match (self.detached(context), &self.holder) {
            (Some((hold, counted)), _) => {
                HoldHandle::new(Arc::clone(context), hold).unlock_detached(counted, response_limit)
            }
            (None, Some(holder)) => {
                match self.send_once(|name| Named::unlock(name, holder), response_limit)? {
                    ReleaseReply::Released(_) => Ok(()),
                    ReleaseReply::NotHeld => Err(self.not_held_by_name(context)),
                }
            }
            (None, None) => Err(not_held()),
        }
    }

    /// Returns the remaining lease, `None` if the lock is free, and the connection of the reply.
    fn ask_remaining(
        &self,
        context: &LockContext,
        limit: &Limit<'_>,
    ) -> Result<(Option<Duration>, ConnectionId)> {
        const FREE: i64 = -2;
        let LockContext { engine, local } = context;
        let target = Target::prefer(local.unanswered_release());
        let asked = engine.asks_now();
        let reply = engine.router.call(self.rules.ttl(local.name()), target, limit)?;
        let left = reply.value.into_int()?;
        if left == FREE {
            let is_of_kind = |hold: &Hold| hold.rules().kind() == self.shared.kind();
            engine.lose_absent(asked, local.name().key(), is_of_kind);
            return Ok((None, reply.connection));
        }
        Ok((Some(rules::lease_left(left).unwrap_or(Duration::MAX)), reply.connection))
    }

    /// Sends a command that must not run twice, if the lock is held.
    ///
    /// Two round trips, one if the lock is free.
    fn send_once(
        &self,
        command: impl FnOnce(&Name) -> Call,
        response_limit: ResponseLimit,
    ) -> Result<ReleaseReply> {
        self.shared.run(response_limit, |context, limit| {
            let (left, connection) = self.ask_remaining(context, limit)?;
            if left.is_none() {
                return Ok(ReleaseReply::NotHeld);
            }
            let command = command(context.local.name());
            let reply = context.engine.router.call(command, Target::Only(connection), limit)?;
            rules::read_release(reply.value)
        })
    }

    /// Returns whether a hold has this kind and this named holder, if there is one.
    fn is_mine(&self, hold: &Hold) -> bool {
        let has_name = |name: &Arc<str>| hold.owner().as_bytes() == name.as_bytes();
        hold.rules().kind() == self.shared.kind() && self.holder.as_ref().is_none_or(has_name)
    }
}
