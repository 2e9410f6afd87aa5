//! The limits of the holds of a [`Lock`]: the longest and the shortest time.

use std::time::Duration;

use super::Lock;
use crate::config::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::error::{Error, Result};
use crate::kind::rules::LockKind;

impl<K: LockKind> Lock<K> {
    /// Sets the time after which a hold is overdue and not renewed any more. No round trip.
    ///
    /// A thread that hangs would otherwise keep its lock for as long as its process lives. At
    /// `max_hold` after the grant, the client emits
    /// [`Events::overdue`](crate::Events::overdue) and stops the renewals. When the last lease
    /// ends, the hold is lost with the reason
    /// [`HeldTooLong`](crate::LostReason::HeldTooLong): within one
    /// [watchdog time-out](crate::Builder::watchdog_timeout) after `max_hold`, and before the
    /// server frees the lock. A guard that ends before is released as ever.
    ///
    /// Millisecond precision. The verbs return [`is_configuration`](crate::Error::is_configuration)
    /// below 10 ms. More than a hundred years means a hundred years.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the limit of the hold counts, also if the nested call makes a fixed lease a renewed one; the limit of the nested handle has no effect |
    /// | local hand-off | the limit counts anew for each holder, from the hand-off, by the handle of that holder; an overdue hold is not handed off |
    /// | fixed lease | `overdue` is emitted if the lease is longer than the limit; the lease stays |
    /// | [`extend`](crate::Guard::extend) | extends the lease, before and after the limit; the watchdog does not renew the lease afterwards |
    /// | [`detach`](crate::Guard::detach) | the same limit |
    /// | [owned guard](crate::OwnedGuard) | the same limit |
    /// | [`MultiLock`](crate::MultiLock) | each member has the limit of its handle; the guard is lost with the first member |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("import").with_max_hold(Duration::from_secs(600));
    /// let guard = lock.lock()?;
    /// // ... work that takes a minute ...
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the limit belongs to the lock that is returned"]
    pub fn with_max_hold(mut self, max_hold: Duration) -> Lock<K> {
        self.terms = self.terms.with_max_hold(max_hold.min(LONGEST_LEASE));
        self
    }

    /// Fails if a limit of this handle is too short.
    pub(crate) fn check_limits(&self) -> Result<()> {
        match self.terms.max_hold().is_some_and(|max_hold| max_hold < SHORTEST_LEASE) {
            true => Err(Error::configuration("the longest hold must be at least 10 ms long")),
            false => Ok(()),
        }
    }
}
