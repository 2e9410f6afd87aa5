//! [`OnceRun`]: work that runs, until its commit.

use std::fmt;
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::error::{Error, Result};
use crate::kind::once::OnceResult;
use crate::lock::guard::lease_queries;
use crate::synchronizer::once::OnceOutcome;

/// The greatest length of a value in bytes.
const MOST_BYTES: usize = 512 * 1024;

/// Work that this caller runs, made by [`Once::begin`](crate::Once::begin).
///
/// Belongs to no thread: it can be sent to another thread. The watchdog renews its lease until the
/// commit, or until it is dropped. A run that is dropped without a commit passes to the next caller,
/// who begins anew: the drop queues the release and does not wait for the server.
#[must_use = "a run that is dropped at once passes to the next caller"]
pub struct OnceRun {
    handle: HoldHandle,
    keep: Duration,
}

impl OnceRun {
    pub(super) fn new(handle: HoldHandle, keep: Duration) -> OnceRun {
        OnceRun { handle, keep }
    }

    /// Commits the result and ends the run: all waiting and later callers get it. Up to 512 KiB.
    ///
    /// Blocks until the server answers: one round trip. While the server is away, the commit is
    /// repeated until the lease is over. At most one of this commit and those of later runs makes
    /// the result.
    ///
    /// # Errors
    /// | error | is the result committed? |
    /// | --- | --- |
    /// | `is_lost`, `is_configuration` | no |
    /// | `is_not_replicated` | yes |
    /// | `is_connection`, `is_timeout`, `is_closed` | nobody can tell yet: ask [`outcome`](crate::Once::outcome) |
    /// | `is_server` | no, unless an earlier answer was lost; else the next caller runs the work |
    ///
    /// - [`is_lost`](crate::Error::is_lost) if this caller has lost the run before: another one may
    ///   have committed its result, or runs the work. If a first answer was lost, also if the result
    ///   was committed, and deleted by [`forget`](crate::Once::forget) before the next answer.
    /// - [`is_configuration`](crate::Error::is_configuration) for a value above 512 KiB, without a
    ///   round trip. The next caller runs the work.
    /// - [`is_not_replicated`](crate::Error::is_not_replicated) if fewer replicas have the result than
    ///   [`min_replicas`](crate::Builder::min_replicas) asks for: a fail-over may lose it.
    /// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout) or
    ///   [`is_closed`](crate::Error::is_closed) if the server did not answer before the end of the
    ///   lease, or of the client. A copy of the commit may be on its way: once the lease has ended at
    ///   the server, the result is committed or never will be. After `is_closed` that is up to one
    ///   lease later. So it is, with `is_timeout`, if the result may have expired before the answer.
    /// - [`is_server`](crate::Error::is_server) if the server refuses the commit for good.
    pub fn commit(self, value: impl AsRef<[u8]>) -> Result<OnceOutcome> {
        let value = value.as_ref();
        if value.len() > MOST_BYTES {
            let text = "a result has at most 512 KiB";
            return Err(self.handle.with_lock_name(Error::configuration(text)));
        }
        let token = self.handle.token();
        let at = self.handle.commit(self.keep, value)?;
        Ok(OnceOutcome::new(OnceResult { at, token, value: value.to_vec() }))
    }

    /// Returns the fencing token of the run, larger than those of all runs before.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn token(&self) -> u64 {
        self.handle.token()
    }

    lease_queries!();

    /// Registers a closure that the client calls once if the run is lost.
    ///
    /// Does not block, no round trip. The rules of [`Guard::on_lost`](crate::Guard::on_lost) apply.
    pub fn on_lost(&self, f: impl FnOnce() + Send + 'static) {
        self.handle.on_lost(f);
    }

    /// Gives the run up and waits for the server to confirm: the next caller begins.
    ///
    /// Blocks for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// Those of [`Permit::release`](crate::Permit::release).
    pub fn give_up(self) -> Result<()> {
        self.handle.unlock()
    }
}

impl fmt::Debug for OnceRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceRun")
            .field("name", &self.handle.name())
            .field("owner", self.handle.hold().owner())
            .field("token", &self.token())
            .field("remaining", &self.handle.remaining())
            .finish()
    }
}
