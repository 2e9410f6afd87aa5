//! Queries about the holders of a [`Lock`] and about the callers that wait for it.

use super::Lock;
use crate::acquire::LockContext;
use crate::cancel::Limit;
use crate::command::name::Name;
use crate::error::Result;
use crate::events::Kind;
use crate::inspect::Side;
use crate::inspect::holder::HolderInfo;
use crate::inspect::info::WaitingInfo;
use crate::inspect::query::Inspector;
use crate::kind::rules::LockKind;
use crate::pool::Target;

impl<K: LockKind> Lock<K> {
    /// Returns the holder of the lock, or `None` if nobody holds it.
    ///
    /// The first of the [`holders`](Lock::holders), for locks that may have several.
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

    /// Returns all holders of the lock: callers of any process and language.
    ///
    /// A lock has one holder, except that readers share the read side, and a
    /// [named holder](Lock::with_holder) has one entry per hold, and one entry for the holds of
    /// other libraries together. The sides of an [`RwLock`](crate::RwLock) return the readers or
    /// the writer. There is no holder during a minimum hold after a release, although
    /// [`is_locked`](Lock::is_locked) returns true.
    ///
    /// Blocks until the server answers, for one response time-out at most. Two round trips; one if
    /// the lock is free. Then asks the processes of the holders, over a connection of its own: a
    /// process that is stopped or cut off delays the call by 125 ms.
    ///
    /// # Errors
    /// The errors of [`is_locked`](Lock::is_locked). A user who may not read the records of clients
    /// gets [`is_server`](crate::Error::is_server), with a text that names the permissions.
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        let side = match self.rules().kind() {
            Kind::Read => Side::Read,
            Kind::Write => Side::Write,
            _ => Side::Both,
        };
        self.inspect(|inspector, name, target| inspector.holders(name, side, target))
    }

    /// Returns the callers that wait for the lock, in any process and language.
    ///
    /// A fair lock: its queue. Other kinds: the number of waiting processes; those of both sides of
    /// an [`RwLock`](crate::RwLock) count together. [`WaitingInfo`] has the details.
    ///
    /// Blocks until the servers answer, for one response time-out at most. One round trip, to all
    /// nodes of a cluster at the same time; two for a queue that is not empty; none for a spin
    /// lock, whose waiters leave no trace.
    ///
    /// # Errors
    /// The errors of [`holders`](Lock::holders).
    pub fn waiting(&self) -> Result<WaitingInfo> {
        let listens_to = self.rules().listens_to();
        self.inspect(|inspector, name, target| inspector.waiting(name, listens_to, target))
    }

    /// Runs a query of the lock within one response time-out.
    fn inspect<T>(
        &self,
        query: impl FnOnce(&Inspector<'_>, &Name, Target) -> Result<T>,
    ) -> Result<T> {
        let response_limit = self.response_limit();
        let run = || {
            let LockContext { engine, local } = &**self.context()?;
            engine.check_open()?;
            let limit: Limit<'_> = engine.limit(response_limit);
            engine.wait_until_ready(&limit)?;
            let target = Target::prefer(local.unanswered_release());
            query(&Inspector::new(engine, &limit), local.name(), target)
        };
        run().map_err(|error| self.named(error))
    }
}
