//! The verbs that acquire a [`Lock`].
//!
//! Each verb is one call of [`Lock::acquire`]. The verbs differ in their patience (how long they
//! wait) and in the guard.

use std::time::{Duration, Instant};

use super::{Lock, endless_wait_ended};
use crate::acquire::{AcquireOptions, HoldHandle};
use crate::error::Result;
use crate::kind::rules::LockKind;
use crate::lock::guard::{Guard, OwnedGuard};
use crate::stats::CallRecord;
use crate::util::clock::{self, Patience};

impl<K: LockKind> Lock<K> {
    /// Blocks until this thread holds the lock.
    ///
    /// One round trip if the lock is free, none if this thread already holds it (exceptions:
    /// [`with_holder`](Lock::with_holder), and a longer [`with_lease`](Lock::with_lease)).
    ///
    /// If the lock is held, the call waits in the queue of its process. A release by another thread
    /// of the process hands the lock to the head of the queue without a round trip, within the
    /// bounds of [`local_handoff`](crate::Builder::local_handoff). After a release by another
    /// process, a message wakes the head of the queue, which asks the server. If the message is
    /// lost, the head of the queue asks when the lease of the holder ends or within the
    /// [poll interval](crate::Builder::poll_interval), whichever is earlier. Fair locks, queue
    /// locks, readers and named holders do not queue in the process: each call asks and listens on
    /// its own. A waiting call for a [queue lock](crate::QueueLock) gets the lock by message.
    ///
    /// The wait has no time limit. A cancellation of the token of
    /// [`with_cancel`](Lock::with_cancel) and the close of the client end it.
    ///
    /// A call also waits for an [`OwnedGuard`] that its own thread took, because the guard may be
    /// in another thread by then. If the calling thread still has the guard, the call waits for
    /// ever: after a second of such a wait the [log](crate::_documentation::logging) has a warning
    /// (after 30 s if the call is for an owned guard).
    ///
    /// # Errors
    /// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout)
    ///   or [`is_pool_timeout`](crate::Error::is_pool_timeout) if the first request gets no answer,
    ///   after one response time-out at the latest. Once the server has answered that the lock is
    ///   held, the call waits through outages.
    /// - [`is_cancelled`](crate::Error::is_cancelled) if the token is cancelled.
    /// - [`is_lost`](crate::Error::is_lost) if this thread still has a guard of a lost hold. Also
    ///   if three grants of the lock arrived after their lease had expired; one such grant suffices
    ///   if the time of the call is over by then.
    /// - [`is_deadlock`](crate::Error::is_deadlock) if this thread holds the lock as another kind
    ///   or under another holder name.
    /// - [`is_not_replicated`](crate::Error::is_not_replicated) if fewer replicas acknowledged the
    ///   hold than [`min_replicas`](crate::Builder::min_replicas) asks for.
    /// - The [errors of every verb](Lock#errors-of-every-verb).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.lock("orders:42").lock()?;
    /// // ... work ...
    /// drop(guard);                        // releases without waiting for the server
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lock(&self) -> Result<Guard<K>> {
        self.acquire(Patience::Forever, false)?.map(Guard::new).ok_or_else(endless_wait_ended)
    }

    /// Takes the lock if it is free; returns `None` if it is not.
    ///
    /// Does not wait for the lock, only for the answer of the server, for one response time-out at
    /// most. One round trip. If the lock is held, this client also looks whether the
    /// [process of the holder is gone](crate::Builder::release_on_death), at most twice per lock and
    /// poll interval: one more round trip, two if it does not know the client of the holder yet. If
    /// that process is gone, the client releases its hold and asks once more, for another response
    /// time-out at most. (Not with [`announce(false)`](crate::Builder::announce).) No round trip if
    /// this thread already holds the lock, or if another thread of
    /// this process holds it or waits for it. Calls for fair locks, queue locks, readers and named
    /// holders always ask the server. Also returns `None`, without a round trip, if this thread
    /// holds the lock as another kind or under another holder name, and in a pause in which this
    /// process leaves the lock to another one. The pause lasts for two round trips (at most 20 ms)
    /// after the last release of this process. It occurs if this process has held the lock again
    /// and again, and another process received the message of that release.
    ///
    /// # Errors
    /// The errors of [`lock`](Lock::lock), except [`is_deadlock`](crate::Error::is_deadlock).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// match client.lock("report").try_lock()? {
    ///     Some(guard) => guard.unlock()?,
    ///     None => println!("another worker writes the report"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_lock(&self) -> Result<Option<Guard<K>>> {
        Ok(self.acquire(Patience::None, false)?.map(Guard::new))
    }

    /// Blocks until this thread holds the lock; returns `None` after `timeout`.
    ///
    /// Waits as [`lock`](Lock::lock) does. A free lock is taken even if `timeout` is zero, unless
    /// this process leaves it to another one, as for [`try_lock`](Lock::try_lock).
    /// `Duration::MAX` waits without limit. The call returns at most 100 ms after its deadline,
    /// whatever the server does. A request without an answer is undone in the background.
    ///
    /// # Errors
    /// The errors of [`lock`](Lock::lock). If the time ends before the server has answered whether
    /// the lock is free, the error is [`is_connection`](crate::Error::is_connection),
    /// [`is_timeout`](crate::Error::is_timeout) or, if no request could be sent,
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if let Some(guard) = client.lock("orders:42").try_lock_for(Duration::from_secs(2))? {
    ///     // ... work ...
    ///     guard.unlock()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<Guard<K>>> {
        Ok(self.acquire(Patience::span(clock::now(), timeout), false)?.map(Guard::new))
    }

    /// Blocks until this thread holds the lock; returns `None` after `deadline`.
    ///
    /// Like [`try_lock_for`](Lock::try_lock_for), for several calls that share one deadline. A free
    /// lock is taken even if the deadline has passed, with the same exception.
    ///
    /// # Errors
    /// The errors of [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard<K>>> {
        Ok(self.acquire(Patience::instant(clock::now(), deadline), false)?.map(Guard::new))
    }

    /// Blocks until the lock is held; returns an owned guard.
    ///
    /// Waits as [`lock`](Lock::lock) does. The guard can be sent to another thread. It has a hold
    /// of its own, which belongs to no thread: later calls of this thread are not nested in it.
    ///
    /// # Errors
    /// The errors of [`lock`](Lock::lock), and [`is_deadlock`](crate::Error::is_deadlock) if this
    /// thread has a [`Guard`] of the lock.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.lock("orders:42").lock_owned()?;
    /// std::thread::spawn(move || {
    ///     // ... work ...
    ///     drop(guard);
    /// });
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lock_owned(&self) -> Result<OwnedGuard<K>> {
        self.acquire(Patience::Forever, true)?.map(OwnedGuard::new).ok_or_else(endless_wait_ended)
    }

    /// Takes the lock if it is free; returns an owned guard or `None`.
    ///
    /// Like [`try_lock`](Lock::try_lock), with the guard of [`lock_owned`](Lock::lock_owned).
    ///
    /// # Errors
    /// The errors of [`try_lock`](Lock::try_lock).
    pub fn try_lock_owned(&self) -> Result<Option<OwnedGuard<K>>> {
        Ok(self.acquire(Patience::None, true)?.map(OwnedGuard::new))
    }

    /// Blocks until the lock is held; returns an owned guard, or `None` after `timeout`.
    ///
    /// Like [`try_lock_for`](Lock::try_lock_for), with the guard of
    /// [`lock_owned`](Lock::lock_owned).
    ///
    /// # Errors
    /// The errors of [`lock_owned`](Lock::lock_owned) and [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<OwnedGuard<K>>> {
        Ok(self.acquire(Patience::span(clock::now(), timeout), true)?.map(OwnedGuard::new))
    }

    /// Blocks until the lock is held; returns an owned guard, or `None` after `deadline`.
    ///
    /// Like [`try_lock_until`](Lock::try_lock_until), with the guard of
    /// [`lock_owned`](Lock::lock_owned).
    ///
    /// # Errors
    /// The errors of [`lock_owned`](Lock::lock_owned) and [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<OwnedGuard<K>>> {
        Ok(self.acquire(Patience::instant(clock::now(), deadline), true)?.map(OwnedGuard::new))
    }

    /// Acquires with the settings of the handle; returns `None` if the patience ended.
    fn acquire(&self, patience: Patience, owned: bool) -> Result<Option<HoldHandle>> {
        let clients = [self.shared.series()?];
        let record = CallRecord::new(&clients);
        let options =
            AcquireOptions { owned, record: Some(&record), ..AcquireOptions::new(patience) };
        record.end(patience, self.acquire_call(&options)?.acquire())
    }
}
