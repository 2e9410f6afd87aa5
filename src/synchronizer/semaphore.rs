//! [`Semaphore`]: permits with a lease, which come back after a crash.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::count::CountChange;
use crate::engine::Engine;
use crate::error::Result;
use crate::events::{Events, Kind};
use crate::inspect::holder::HolderInfo;
use crate::inspect::info::WaitingInfo;
use crate::inspect::permits::PermitCounts;
use crate::kind::rules::{ListensTo, PermitRequest};
use crate::kind::semaphore::Permits;
use crate::lock::handle::{SharedHandle, endless_wait_ended};
use crate::synchronizer::permit::Permit;
use crate::synchronizer::{check_permits, check_positive};
use crate::util::clock::{self, Patience};

/// A semaphore whose permits have a lease: Redisson's `RPermitExpirableSemaphore`.
///
/// Limits how many callers work at the same time, in all threads and processes and on all machines.
/// The watchdog renews the lease of a [`Permit`] until it is dropped. If a process dies, its
/// permits are free again within one [watchdog time-out](crate::Builder::watchdog_timeout).
///
/// The *capacity* is the number of permits, those in use included. If the semaphore has no capacity
/// yet, the first call that acquires permits on a handle [with permits](Semaphore::with_permits)
/// sets the capacity. Later only [`resize`](Semaphore::resize) or `setPermits` of Redisson changes
/// it. The capacity stays in Redis, without a time to live, when all permits are free. To remove a
/// semaphore that nobody uses any more, delete its key.
///
/// # Order
/// A call gets all its permits at once. The waiting calls of one process are woken in the order of
/// their arrival, each only if enough permits are free: a call for five permits does not use up the
/// wake-up of a call for one. New calls and calls of other processes may come first.
///
/// So small requests can delay a large one, but only for a while. Within two [poll
/// intervals](crate::Builder::poll_interval) the call that has waited longest *claims* its permits.
/// Later requests then leave these permits free, [`try_acquire`](Semaphore::try_acquire) included:
/// it may return `None` although [`available`](Semaphore::available) is above zero. After two poll
/// intervals a call waits only for releases, and for the calls that have waited longer: these claim
/// one after the other, and the next claim follows within one poll interval. Redisson ignores
/// claims. A process that dies with a claim delays the others for three poll intervals, at least
/// two seconds and at most one [watchdog time-out](crate::Builder::watchdog_timeout).
///
/// A caller that has permits and waits for more can wait for ever, even while permits are free: the
/// call with the claim may wait for the permits that this caller has. Get all permits in one call.
///
/// # Clocks
/// The server's clock decides when a lease ends. Redisson uses the clock of its host instead. So
/// the clocks of Java hosts that share a semaphore have to agree with the clocks of the servers. A
/// Java clock that is ahead ends all leases too early, those of this library included. A Java clock
/// that is behind ends the leases of Redisson too early.
///
/// Use one kind for one name: a lock, a semaphore and a latch with the same name would use the same
/// key.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let jobs = client.semaphore("jobs").with_permits(20);
/// let permit = jobs.acquire()?;
/// // ... at most 20 callers at a time are here ...
/// permit.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors of every verb
/// - [`is_invalid_name`](crate::Error::is_invalid_name) if the name cannot be used.
/// - [`is_configuration`](crate::Error::is_configuration) for 0 permits, for a call that takes more
///   than 1,000 permits, if the lease, the [limit](Semaphore::with_max_hold) or the
///   [label](Semaphore::with_label) is invalid, and in a forked child.
/// - [`is_closed`](crate::Error::is_closed) after [`Client::close`](crate::Client::close).
/// - [`is_server`](crate::Error::is_server) if the server refuses the command. The
///   [code](crate::Error::code) is `WRONGTYPE` if the key holds no number of permits.
#[derive(Clone)]
#[must_use = "a semaphore does nothing until one of its verbs is called"]
pub struct Semaphore {
    handle: SharedHandle,
    /// The capacity that a semaphore without one gets.
    capacity: Option<u32>,
    with_slots: bool,
}

impl Semaphore {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> Semaphore {
        let handle = SharedHandle::new(engine, name, Kind::Semaphore);
        Semaphore { handle, capacity: None, with_slots: false }
    }

    /// Sets the capacity that the semaphore gets if it has none. No round trip.
    ///
    /// The next verb that acquires sets it, in the same round trip. A capacity that the semaphore
    /// has already stays, and the log has one warning if it is another: a program that means its
    /// number calls [`resize`](Semaphore::resize) at its start.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_configuration`](crate::Error::is_configuration)
    /// for 0.
    #[must_use = "the capacity belongs to the semaphore that is returned"]
    pub fn with_permits(mut self, permits: u32) -> Semaphore {
        self.handle.require(|_| check_positive(permits.into()));
        self.capacity = Some(permits);
        self
    }

    /// Gives each permit a slot: a number that no other valid permit has. No round trip.
    ///
    /// For things that are one of n, when a caller must know which: worker ids, GPUs, ports, test
    /// accounts. [`Permit::slot`] is a number from 0 to the capacity less 1, the smallest that is
    /// free. It stays the same while the permit is valid, and is free again with the permit: after
    /// its release, or when its lease has ended. A caller that was paused past its lease, or whose
    /// permit a fail-over lost, may go on to use a slot that another has by now: call
    /// [`Permit::check`] before each use.
    /// [`Permit::slots`] has those of [several permits](Semaphore::acquire_many).
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | [`resize`](Semaphore::resize) to fewer | permits in use keep their slots; later permits have slots below the new capacity, as soon as so few permits are in use |
    /// | permits of handles without slots, and of Redisson | they have no slot, and take none |
    /// | [`with_min_hold`](Semaphore::with_min_hold) | the slot is free with the early release, the permit later |
    /// | a slot that is lost with the permit | the holder learns of it as of the loss of the permit: [`Permit::check`] |
    ///
    /// The acquire makes no further round trip. It reads one entry for each slot that was in use at
    /// a time: 1,000 slots take the server about 0.5 ms.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let gpus = client.semaphore("gpu").with_permits(8).with_slots();
    /// let permit = gpus.acquire()?;
    /// let gpu = permit.slot().expect("a semaphore with slots");
    /// println!("working on GPU {gpu} of 8");
    /// permit.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the slots belong to the semaphore that is returned"]
    pub fn with_slots(mut self) -> Semaphore {
        self.with_slots = true;
        self
    }

    /// Sets a fixed lease, which the watchdog does not renew. No round trip.
    ///
    /// The permits are free again after `lease` at the latest. Millisecond precision. The verbs
    /// return [`is_configuration`](crate::Error::is_configuration) below 10 ms. More than a hundred
    /// years means a hundred years.
    #[must_use = "the lease belongs to the semaphore that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> Semaphore {
        self.handle.set_lease(lease);
        self
    }

    /// Sets the length of the lease that the watchdog renews. No round trip.
    ///
    /// The rules of [`Lock::with_renewed_lease`](crate::Lock::with_renewed_lease) apply.
    #[must_use = "the lease belongs to the semaphore that is returned"]
    pub fn with_renewed_lease(mut self, lease: Duration) -> Semaphore {
        self.handle.set_renewed_lease(lease);
        self
    }

    /// Sets the limit after which a permit is overdue and no longer renewed. No round trip.
    ///
    /// The rules of [`Lock::with_max_hold`](crate::Lock::with_max_hold) apply.
    #[must_use = "the limit belongs to the semaphore that is returned"]
    pub fn with_max_hold(mut self, max_hold: Duration) -> Semaphore {
        self.handle.set_max_hold(max_hold);
        self
    }

    /// Sets the minimum time for which a permit stays in use. No round trip.
    ///
    /// An early release, before `min_hold` has passed since the grant, ends the hold of the permit
    /// but does not free it: the permit stays in use, without a holder, until `min_hold` has
    /// passed. So each permit is taken at most once per `min_hold`, for instance to limit the rate
    /// of calls to another service. Waiting callers get the permit afterwards. Until then
    /// [`in_use`](Semaphore::in_use) counts the permit, and [`holders`](Semaphore::holders) has no
    /// entry for it.
    ///
    /// The rules of [`Lock::with_min_hold`](crate::Lock::with_min_hold) apply.
    #[must_use = "the minimum belongs to the semaphore that is returned"]
    pub fn with_min_hold(mut self, min_hold: Duration) -> Semaphore {
        self.handle.set_min_hold(min_hold);
        self
    }

    /// Sets a token by which another thread can end the waits of this handle. No round trip.
    ///
    /// Once the token is cancelled, every verb that acquires returns
    /// [`is_cancelled`](crate::Error::is_cancelled), whether it waits or not. Permits stay valid.
    #[must_use = "the token belongs to the semaphore that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> Semaphore {
        self.handle.set_cancel(token);
        self
    }

    /// Sets an event listener for the permits and waits of this handle. No round trip.
    ///
    /// The listener receives the events of [`Lock::with_events`](crate::Lock::with_events), one per
    /// [`Permit`], whatever its [count](Permit::count).
    ///
    /// # Errors
    /// Does not fail itself. If the system cannot start the events thread, the verbs return
    /// [`is_configuration`](crate::Error::is_configuration).
    #[must_use = "the listener belongs to the semaphore that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> Semaphore {
        self.handle.set_listener(listener);
        self
    }

    /// Sets the label of this handle in exported metrics. No round trip.
    ///
    /// The rules of [`Lock::with_label`](crate::Lock::with_label) apply.
    #[must_use = "the label belongs to the semaphore that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> Semaphore {
        self.handle.set_label(label.as_ref());
        self
    }

    /// Returns the name of the semaphore, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Blocks until a permit is taken.
    ///
    /// One round trip if a permit is free. Otherwise the call sleeps until a message says that
    /// enough permits are free, and asks again. If the message is lost, the call asks when the next
    /// permit expires or within the [poll interval](crate::Builder::poll_interval), whichever is
    /// earlier.
    ///
    /// The wait has no time limit. It ends early when the token of
    /// [`with_cancel`](Semaphore::with_cancel) is cancelled, and when the client is closed. After
    /// an error the client undoes the call in the background, so the program may repeat it.
    ///
    /// # Errors
    /// - [`is_configuration`](crate::Error::is_configuration) if the semaphore has no capacity: its
    ///   key is missing, and the handle has no [`with_permits`](Semaphore::with_permits). Also if
    ///   the call needs more permits than the capacity, now or after a
    ///   [`resize`](Semaphore::resize).
    /// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout)
    ///   or [`is_pool_timeout`](crate::Error::is_pool_timeout) if the first request gets no answer,
    ///   after one response time-out at the latest. Once the server has answered, the call waits
    ///   through outages.
    /// - [`is_cancelled`](crate::Error::is_cancelled) if the token is cancelled.
    /// - [`is_lost`](crate::Error::is_lost) if three grants arrived after their lease had expired.
    ///   One such grant suffices if the time of the call is over by then.
    /// - [`is_not_replicated`](crate::Error::is_not_replicated) if fewer replicas acknowledged the
    ///   permit than [`min_replicas`](crate::Builder::min_replicas) asks for.
    /// - The [errors of every verb](Semaphore#errors-of-every-verb).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.semaphore("jobs").with_permits(20).acquire()?;
    /// permit.check()?;                    // an error if the lease was lost
    /// drop(permit);                       // gives it back, without waiting for the server
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1)
    }

    /// Takes a permit if one is free; returns `None` if none is.
    ///
    /// Does not wait for a permit, only for the answer of the server, for one response time-out at
    /// most. One round trip. Also returns `None` if the free permits are
    /// [claimed](Semaphore#order).
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// match client.semaphore("jobs").with_permits(20).try_acquire()? {
    ///     Some(permit) => permit.release()?,
    ///     None => println!("20 jobs run already"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1)
    }

    /// Blocks until a permit is taken; returns `None` after `timeout`.
    ///
    /// Waits as [`acquire`](Semaphore::acquire) does. A free permit is taken even if `timeout` is
    /// zero. `Duration::MAX` waits without limit. The call returns at most 100 ms after its
    /// deadline, whatever the server does. A request without an answer is undone in the background.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire). If the time ends before the server has
    /// answered, the error is [`is_connection`](crate::Error::is_connection),
    /// [`is_timeout`](crate::Error::is_timeout) or, if no request could be sent,
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let jobs = client.semaphore("jobs").with_permits(20);
    /// match jobs.try_acquire_for(Duration::from_secs(5))? {
    ///     Some(permit) => permit.release()?,
    ///     None => println!("20 jobs have run for 5 seconds"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Permit>> {
        self.try_acquire_many_for(1, timeout)
    }

    /// Blocks until a permit is taken; returns `None` after `deadline`.
    ///
    /// Like [`try_acquire_for`](Semaphore::try_acquire_for), for several calls that share one
    /// deadline.
    ///
    /// # Errors
    /// The errors of [`try_acquire_for`](Semaphore::try_acquire_for).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Permit>> {
        self.try_acquire_many_until(1, deadline)
    }

    /// Blocks until that many permits are taken, all of them at once.
    ///
    /// Waits as [`acquire`](Semaphore::acquire) does. The permits have one lease, and are given
    /// back together. From 1 to 1,000 permits.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let cores = client.semaphore("cores").with_permits(64);
    /// let permit = cores.acquire_many(8)?;
    /// assert_eq!(permit.count(), 8);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquire_many(&self, permits: u32) -> Result<Permit> {
        let permit = self.take(permits, Patience::Forever)?;
        permit.ok_or_else(endless_wait_ended)
    }

    /// Takes that many permits if they are free; returns `None` if they are not.
    ///
    /// Takes all of them or none, as [`try_acquire`](Semaphore::try_acquire) does.
    ///
    /// # Errors
    /// The errors of [`acquire`](Semaphore::acquire).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>> {
        self.take(permits, Patience::None)
    }

    /// Blocks until that many permits are taken; returns `None` after `timeout`.
    ///
    /// Waits as [`try_acquire_for`](Semaphore::try_acquire_for) does.
    ///
    /// # Errors
    /// The errors of [`try_acquire_for`](Semaphore::try_acquire_for).
    pub fn try_acquire_many_for(&self, permits: u32, timeout: Duration) -> Result<Option<Permit>> {
        self.take(permits, Patience::span(clock::now(), timeout))
    }

    /// Blocks until that many permits are taken; returns `None` after `deadline`.
    ///
    /// Waits as [`try_acquire_until`](Semaphore::try_acquire_until) does.
    ///
    /// # Errors
    /// The errors of [`try_acquire_for`](Semaphore::try_acquire_for).
    pub fn try_acquire_many_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<Permit>> {
        self.take(permits, Patience::instant(clock::now(), deadline))
    }

    /// Sets the capacity; wakes waiting callers if permits become free.
    ///
    /// Permits in use stay valid. If more permits are in use than the new capacity,
    /// [`available`](Semaphore::available) is negative until enough of them are given back. A
    /// waiting call for more permits than the new capacity returns
    /// [`is_configuration`](crate::Error::is_configuration) within the
    /// [poll interval](crate::Builder::poll_interval).
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip. If the
    /// server does not answer, it may still set the capacity after the error, but no longer once
    /// the client has reached it again.
    ///
    /// # Errors
    /// The errors of [`available`](Semaphore::available).
    pub fn resize(&self, permits: u32) -> Result<()> {
        check_positive(permits.into()).map_err(|error| self.handle.named(error))?;
        self.handle.change(CountChange::Resize(permits)).map(drop)
    }

    /// Returns the number of permits that are free or have expired.
    ///
    /// Negative if more permits are in use than the capacity. For a semaphore without a capacity,
    /// returns that of [`with_permits`](Semaphore::with_permits), or 0. Changes nothing. Blocks
    /// until the server answers, for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout) or
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server does not answer, and the
    /// [errors of every verb](Semaphore#errors-of-every-verb).
    pub fn available(&self) -> Result<i64> {
        Ok(self.counts()?.available)
    }

    /// Returns the number of permits in use, in any process and language.
    ///
    /// Expired permits do not count. Blocks as [`available`](Semaphore::available) does.
    ///
    /// # Errors
    /// The errors of [`available`](Semaphore::available).
    pub fn in_use(&self) -> Result<u64> {
        Ok(self.counts()?.in_use)
    }

    /// Returns the capacity: the number of permits, those in use included.
    ///
    /// For a semaphore without a capacity, returns that of
    /// [`with_permits`](Semaphore::with_permits), or 0. Blocks as
    /// [`available`](Semaphore::available) does.
    ///
    /// # Errors
    /// The errors of [`available`](Semaphore::available).
    pub fn permits(&self) -> Result<i64> {
        Ok(self.counts()?.capacity)
    }

    /// Returns the holders of the permits in use, in any process and language.
    ///
    /// One entry per [`Permit`], with its [number of permits](HolderInfo::count), and one entry per
    /// permit of Redisson, whose [owner](HolderInfo::owner) is the id that Redisson shows. The
    /// [remaining](HolderInfo::remaining) lease is that by the server's clock, `None` for a permit
    /// of Redisson that never expires. Blocks and asks as [`Lock::holders`](crate::Lock::holders)
    /// does, and needs [permissions](crate::_documentation::permissions) of its own.
    ///
    /// # Errors
    /// The errors of [`Lock::holders`](crate::Lock::holders).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// for holder in client.semaphore("jobs").holders()? {
    ///     println!("{:?} has {} permits", holder.host(), holder.count());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holders(&self) -> Result<Vec<HolderInfo>> {
        self.handle.inspect(|inspector, name, target| inspector.permit_holders(name, target))
    }

    /// Returns the number of clients with callers that wait for permits.
    ///
    /// Counts clients of this library and of Redisson. Blocks until the servers answer, for one
    /// response time-out at most. One round trip.
    ///
    /// # Errors
    /// The errors of [`available`](Semaphore::available).
    pub fn waiting(&self) -> Result<WaitingInfo> {
        self.handle.waiting(ListensTo::Permits)
    }

    fn counts(&self) -> Result<PermitCounts> {
        let capacity = self.capacity;
        self.handle
            .inspect(|inspector, name, target| inspector.permit_counts(name, capacity, target))
    }

    fn take(&self, count: u32, patience: Patience) -> Result<Option<Permit>> {
        check_permits(count).map_err(|error| self.handle.named(error))?;
        self.handle.check_max_hold()?;
        let (capacity, with_slots) = (self.capacity, self.with_slots);
        let permits = PermitRequest { count, capacity, with_slots };
        let handle = self.handle.acquire_owned(&Permits, Some(permits), patience)?;
        Ok(handle.map(Permit::new))
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt("Semaphore", f)
    }
}
