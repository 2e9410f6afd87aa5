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

    /// Sets the shortest time for which the lock stays taken. No round trip.
    ///
    /// A release before `min_hold` has passed since the grant ends the hold, but keeps the lock
    /// taken until then, held by nobody (ShedLock's `lockAtLeastFor`). Until then every caller is
    /// refused, Redisson's callers and the thread that released the lock too. Waiting callers wake
    /// up at the end. [`is_locked`](Lock::is_locked) and [`remaining`](Lock::remaining) report the
    /// lock as taken, and [`force_unlock`](Lock::force_unlock) frees it.
    ///
    /// The release makes the same round trips as ever. Millisecond precision, by the clock of the
    /// server. Zero is no minimum. More than a hundred years means a hundred years.
    ///
    /// Only a release has a minimum. If the hold is lost, if its process dies, or if the server
    /// does not answer the release before the lease ends, the lock is free when its lease ends.
    ///
    /// Plain, fair, fenced, spin and write locks have minimum holds. The verbs return
    /// [`is_configuration`](crate::Error::is_configuration) for readers, for
    /// [named holders](Lock::with_holder) and for members of a [`MultiLock`](crate::MultiLock). A
    /// [`RedLock`](crate::RedLock) has no minimum holds.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the minimum of the hold counts, from the grant; the minimum of the nested handle has no effect |
    /// | local hand-off | not before the minimum: the hold is then released; a later receiver has the minimum of its own handle, from the hand-off |
    /// | fixed lease | a lease that ends before the minimum is a loss, without a minimum |
    /// | [`extend`](crate::Guard::extend) | no effect on the minimum |
    /// | [`detach`](crate::Guard::detach) | [`unlock`](Lock::unlock) keeps the minimum; a detached hold that is not unlocked ends with its lease |
    /// | [owned guard](crate::OwnedGuard) | the same minimum |
    /// | [`with_max_hold`](Lock::with_max_hold) | an overdue hold that is released before it is lost keeps its minimum |
    /// | write lock whose thread also reads | the minimum ends with the write hold, and others may read |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn report() {}
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// // Once per minute, on any number of machines.
    /// let lock = client.lock("report").with_min_hold(Duration::from_secs(55));
    /// if let Some(_guard) = lock.try_lock()? {
    ///     report();
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the minimum belongs to the lock that is returned"]
    pub fn with_min_hold(mut self, min_hold: Duration) -> Lock<K> {
        self.terms = self.terms.with_min_hold(min_hold.min(LONGEST_LEASE));
        self
    }

    /// Fails if the longest hold is too short, or if the kind has no minimum holds.
    pub(crate) fn check_limits(&self) -> Result<()> {
        if self.terms.max_hold().is_some_and(|max_hold| max_hold < SHORTEST_LEASE) {
            return Err(Error::configuration("the longest hold must be at least 10 ms long"));
        }
        if self.terms.min_hold().is_some() && self.rules().early_release().is_none() {
            let kind = self.rules().kind();
            return Err(Error::configuration(format!("a {kind} cannot have a minimum hold")));
        }
        Ok(())
    }
}
