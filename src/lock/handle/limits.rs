//! The settings for the time of a hold of a [`Lock`]: its limit and its minimum.

use std::time::Duration;

use super::Lock;
use crate::error::{Error, Result};
use crate::kind::rules::LockKind;

impl<K: LockKind> Lock<K> {
    /// Sets the limit after which a hold is overdue and no longer renewed. No round trip.
    ///
    /// Without a limit, a thread that hangs keeps its lock for as long as its process lives. When
    /// `max_hold` has passed since the grant, the watchdog emits
    /// [`Events::overdue`](crate::Events::overdue) and stops the renewals. The hold stays valid
    /// until its lease ends, within one [watchdog time-out](crate::Builder::watchdog_timeout) after
    /// the limit. It is then lost with the reason [`HeldTooLong`](crate::LostReason::HeldTooLong),
    /// before the server frees the lock. Before its loss an overdue hold is released like any other
    /// hold.
    ///
    /// The timer of the watchdog has steps of 5 ms. The verbs return
    /// [`is_configuration`](crate::Error::is_configuration) below 10 ms. More than a hundred years
    /// means a hundred years.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its limit, also if the nested call makes a fixed lease a renewed one; the limit of the nested handle has no effect |
    /// | local hand-off | each holder has the limit of its own handle, counted from the hand-off; an overdue hold is not handed off |
    /// | fixed lease | the lease stays; if it is longer than the limit, `overdue` is emitted, and a loss has the reason `HeldTooLong` |
    /// | [`extend`](crate::Guard::extend) | extends the lease, also after the limit; after the limit the watchdog does not renew the extended lease |
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
        self.shared.set_max_hold(max_hold);
        self
    }

    /// Sets the minimum time for which the lock stays taken. No round trip.
    ///
    /// An early release, before `min_hold` has passed since the grant, ends the hold but does not
    /// free the lock: it stays taken, without a holder, until `min_hold` has passed
    /// (`lockAtLeastFor` of ShedLock). Until then every caller is refused, callers of Redisson and
    /// the former holder included. Waiting callers get the lock afterwards.
    /// [`is_locked`](Lock::is_locked) and [`remaining`](Lock::remaining) report the lock as taken,
    /// and [`force_unlock`](Lock::force_unlock) frees it.
    ///
    /// An early release makes as many round trips as any release. The rest of the minimum is
    /// rounded up to milliseconds, and passes by the clock of the server. Zero means no minimum.
    /// More than a hundred years means a hundred years.
    ///
    /// Only a release keeps the minimum. The lock is free when its lease ends if the hold is lost,
    /// if its process dies, or if no release reaches the server before that.
    ///
    /// A release that an outage delays keeps the lock taken for as much longer, at most for one
    /// lease. No release waits for replicas, so a fail-over can lose the minimum.
    ///
    /// Plain, fair, fenced, queue, spin and write locks permit a minimum. The verbs return
    /// [`is_configuration`](crate::Error::is_configuration) for readers, for
    /// [named holders](Lock::with_holder) and for members of a [`MultiLock`](crate::MultiLock). A
    /// [`RedLock`](crate::RedLock) has no such setting.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its minimum, counted from the grant; the minimum of the nested handle has no effect |
    /// | local hand-off | there is none before the minimum: the hold is released instead; after a hand-off, the minimum of the receiver's handle counts from the hand-off |
    /// | fixed lease | if the lease ends before the minimum, the hold is lost and the lock is free |
    /// | [`extend`](crate::Guard::extend) | no effect on the minimum |
    /// | [`detach`](crate::Guard::detach) | [`unlock`](Lock::unlock) keeps the minimum; a detached hold that is not unlocked ends with its lease |
    /// | [owned guard](crate::OwnedGuard) | the same minimum |
    /// | [`with_max_hold`](Lock::with_max_hold) | an overdue hold that is released before it is lost keeps its minimum |
    /// | write lock, if its thread also reads | the release of the write hold ends the minimum, and others may read |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn report() {}
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// // Once per minute, on any number of machines.
    /// let lock = client.lock("report").with_min_hold(Duration::from_secs(50));
    /// if let Some(_guard) = lock.try_lock()? {
    ///     report();
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the minimum belongs to the lock that is returned"]
    pub fn with_min_hold(mut self, min_hold: Duration) -> Lock<K> {
        self.shared.set_min_hold(min_hold);
        self
    }

    /// Fails if the limit is too short, or if the kind does not permit the minimum.
    pub(crate) fn check_limits(&self) -> Result<()> {
        self.shared.check_max_hold()?;
        if self.shared.settings().min_hold().is_none() || self.rules.early_release().is_some() {
            return Ok(());
        }
        let text = format!("a {} cannot have a minimum hold", self.shared.kind());
        Err(self.shared.named(Error::configuration(text)))
    }
}
