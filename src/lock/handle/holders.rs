//! Queries about the holders of a [`Lock`] and about the callers that wait for it.

use super::Lock;
use crate::error::Result;
use crate::events::Kind;
use crate::inspect::Side;
use crate::inspect::holder::HolderInfo;
use crate::inspect::info::WaitingInfo;
use crate::kind::rules::LockKind;

impl<K: LockKind> Lock<K> {
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
    /// answer these facts are unknown; see [`HolderInfo`]. A record is on any node of a cluster: if
    /// that node is known not to answer, the call waits 250 ms for it, and does without.
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
        let listens_to = self.rules.listens_to();
        self.shared.waiting(listens_to)
    }
}
