//! [`PlainSemaphore`]: permits without holders and leases.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::count::CountChange;
use crate::engine::Engine;
use crate::error::Result;
use crate::events::{Events, Kind};
use crate::inspect::info::WaitingInfo;
use crate::kind::rules::ListensTo;
use crate::lock::handle::{SharedHandle, endless_wait_ended};
use crate::synchronizer::{check_permits, check_positive};
use crate::util::clock::{self, Patience};

/// A semaphore whose permits have no holder and no lease: Redisson's `RSemaphore`.
///
/// For permits that are used up, such as the items of a stock, and for permits that another process
/// gives back. Redis keeps only the number of free permits. The permits of a process that dies are
/// gone until a caller [adds](PlainSemaphore::add_permits) them again. Use
/// [`Client::semaphore`](crate::Client::semaphore) for permits that come back after a crash.
///
/// The semaphore has no capacity: any caller may [release](PlainSemaphore::release) more permits
/// than were taken. A semaphore that was never set has no free permits.
///
/// # Exactness
/// Each call takes, adds or drains once, also if its request has to be repeated. For this the
/// server keeps a *request record*, a key of its own, until the reply has arrived. One more command
/// (`DEL`), without a waiting caller, then deletes the record. If a copy of the request may still
/// arrive, the record stays for twenty minutes instead.
///
/// After an error without an answer, the client undoes a call that takes permits, and completes a
/// call that gives permits. It does so in the background until the server answers, for ten minutes
/// at most, and for one [`watchdog_timeout`](crate::Builder::watchdog_timeout) at most after the
/// client is closed or dropped. The number may be wrong if the server does not answer in that time
/// (the log has a warning), or if the process ends before.
///
/// A fail-over can lose the last changes, as it can lose a lock.
/// [`min_replicas`](crate::Builder::min_replicas) applies to calls that take permits.
///
/// # Order
/// The waiting calls of one process are woken in the order of their arrival, each only if enough
/// permits are free: a call for five permits does not use up the wake-up of a call for one. New
/// calls and calls of other processes may come first, so small requests can delay a large one
/// without limit. (A [`Semaphore`](crate::Semaphore#order) limits that.)
///
/// The key has no time to live, unless Redisson sets one. Use one kind for one name: a lock, a
/// semaphore and a latch with the same name would use the same key.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let stock = client.plain_semaphore("stock");
/// stock.try_set_permits(100)?;            // only the first process sets the number
/// if stock.try_acquire(2)? {
///     // ... sell two items ...
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors of every verb
/// - [`is_invalid_name`](crate::Error::is_invalid_name) if the name cannot be used.
/// - [`is_configuration`](crate::Error::is_configuration) for 0 permits, for a call that takes more
///   than 1,000 permits, if the [label](PlainSemaphore::with_label) is invalid, and in a forked
///   child.
/// - [`is_closed`](crate::Error::is_closed) after [`Client::close`](crate::Client::close).
/// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout) or
///   [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server does not answer.
/// - [`is_server`](crate::Error::is_server) if the server refuses the command. The
///   [code](crate::Error::code) is `WRONGTYPE` if the key holds no integer, and `ERR` if the
///   integer would not fit into 64 bits.
#[derive(Clone)]
#[must_use = "a semaphore does nothing until one of its verbs is called"]
pub struct PlainSemaphore(SharedHandle);

impl PlainSemaphore {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> PlainSemaphore {
        PlainSemaphore(SharedHandle::new(engine, name, Kind::PlainSemaphore))
    }

    /// Sets a token by which another thread can end the waits of this handle. No round trip.
    ///
    /// Once the token is cancelled, [`acquire`](PlainSemaphore::acquire) and its variants return
    /// [`is_cancelled`](crate::Error::is_cancelled), whether they wait or not. The other verbs
    /// ignore the token.
    #[must_use = "the token belongs to the semaphore that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> PlainSemaphore {
        self.0.set_cancel(token);
        self
    }

    /// Sets an event listener for the waits of this handle. No round trip.
    ///
    /// The listener receives [`waited`](Events::waited), without a hold, for each call that waited.
    /// The rules of [`Lock::with_events`](crate::Lock::with_events) apply.
    ///
    /// # Errors
    /// Does not fail itself. If the system cannot start the events thread, the verbs return
    /// [`is_configuration`](crate::Error::is_configuration).
    #[must_use = "the listener belongs to the semaphore that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> PlainSemaphore {
        self.0.set_listener(listener);
        self
    }

    /// Sets the label of this handle in exported metrics. No round trip.
    ///
    /// The rules of [`Lock::with_label`](crate::Lock::with_label) apply.
    #[must_use = "the label belongs to the semaphore that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> PlainSemaphore {
        self.0.set_label(label.as_ref());
        self
    }

    /// Returns the name of the semaphore, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Sets the free permits of a semaphore without a key; returns `false` if it has one.
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip. If the
    /// server does not answer, it may still set the permits after the error, but no longer once the
    /// client has reached it again.
    ///
    /// # Errors
    /// The [errors of every verb](PlainSemaphore#errors-of-every-verb).
    pub fn try_set_permits(&self, permits: u32) -> Result<bool> {
        check_positive(permits.into()).map_err(|error| self.0.named(error))?;
        Ok(self.0.change(CountChange::SetPermits(permits))? == 1)
    }

    /// Adds permits, or takes them away if `permits` is negative.
    ///
    /// The number of free permits may become negative. Calls that take permits then wait until
    /// enough permits have been added. Wakes waiting callers, those of Redisson too. Blocks until
    /// the server answers, for one response time-out at most. One round trip.
    ///
    /// Adds exactly once, also if the request has to be repeated. After an error without an answer
    /// the client repeats the request in the background until the server answers, for ten minutes
    /// at most. So do not call again after [`is_connection`](crate::Error::is_connection) or
    /// [`is_timeout`](crate::Error::is_timeout) that is not
    /// [retryable](crate::Error::is_retryable): that would add twice.
    ///
    /// # Errors
    /// The [errors of every verb](PlainSemaphore#errors-of-every-verb), and
    /// [`is_server`](crate::Error::is_server) if the number leaves the range of 64 bits. An error
    /// is retryable if this call has not added and will not.
    pub fn add_permits(&self, permits: i64) -> Result<()> {
        check_positive(permits.unsigned_abs()).map_err(|error| self.0.named(error))?;
        self.0.change(CountChange::Add(permits)).map(drop)
    }

    /// Gives permits back.
    ///
    /// The same as [`add_permits`](PlainSemaphore::add_permits) with a positive number, errors
    /// included: after an error that is not [retryable](crate::Error::is_retryable), the client may
    /// still give them back in the background, and a second call would give twice.
    ///
    /// # Errors
    /// The errors of [`add_permits`](PlainSemaphore::add_permits).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.plain_semaphore("slots");
    /// slots.acquire(2)?;
    /// // ... work, perhaps in another process ...
    /// slots.release(2)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn release(&self, permits: u32) -> Result<()> {
        self.add_permits(permits.into())
    }

    /// Takes all free permits; returns their number.
    ///
    /// A negative number of free permits is returned as it is, and becomes 0. Blocks until the
    /// server answers, for one response time-out at most. One round trip. After an error without an
    /// answer the client undoes the call in the background, so the program may repeat it.
    ///
    /// # Errors
    /// [`is_not_replicated`](crate::Error::is_not_replicated) if fewer replicas acknowledged the
    /// change than [`min_replicas`](crate::Builder::min_replicas) asks for, and the [errors of
    /// every verb](PlainSemaphore#errors-of-every-verb).
    pub fn drain(&self) -> Result<i64> {
        self.0.change(CountChange::Drain)
    }

    /// Returns the number of free permits; 0 without a key, and negative if more were taken away.
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// The [errors of every verb](PlainSemaphore#errors-of-every-verb).
    pub fn available(&self) -> Result<i64> {
        self.0.count()
    }

    /// Blocks until that many permits are taken, all of them at once.
    ///
    /// One round trip if they are free. Otherwise the call sleeps until a message says that enough
    /// permits are free, and asks again. If the message is lost, the caller notices within the
    /// [poll interval](crate::Builder::poll_interval).
    ///
    /// The wait has no time limit. It ends early when the token of
    /// [`with_cancel`](PlainSemaphore::with_cancel) is cancelled, and when the client is closed.
    /// After an error the client undoes the call in the background, so the program may repeat it.
    /// From 1 to 1,000 permits.
    ///
    /// # Errors
    /// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout)
    ///   or [`is_pool_timeout`](crate::Error::is_pool_timeout) if the first request gets no answer,
    ///   after one response time-out at the latest. Once the server has answered, the call waits
    ///   through outages.
    /// - [`is_cancelled`](crate::Error::is_cancelled) if the token is cancelled.
    /// - [`is_not_replicated`](crate::Error::is_not_replicated) if fewer replicas acknowledged the
    ///   permits than [`min_replicas`](crate::Builder::min_replicas) asks for.
    /// - The other [errors of every verb](PlainSemaphore#errors-of-every-verb).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// client.plain_semaphore("stock").acquire(2)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquire(&self, permits: u32) -> Result<()> {
        if self.take(permits, Patience::Forever)? { Ok(()) } else { Err(endless_wait_ended()) }
    }

    /// Takes that many permits if they are free; returns `false` if they are not.
    ///
    /// Does not wait for permits, only for the answer of the server, for one response time-out at
    /// most. One round trip.
    ///
    /// # Errors
    /// The errors of [`acquire`](PlainSemaphore::acquire).
    pub fn try_acquire(&self, permits: u32) -> Result<bool> {
        self.take(permits, Patience::None)
    }

    /// Blocks until that many permits are taken; returns `false` after `timeout`.
    ///
    /// Waits as [`acquire`](PlainSemaphore::acquire) does. Free permits are taken even if `timeout`
    /// is zero. `Duration::MAX` waits without limit. The call returns at most 100 ms after its
    /// deadline, whatever the server does.
    ///
    /// # Errors
    /// The errors of [`acquire`](PlainSemaphore::acquire). If the time ends before the server has
    /// answered, the error is [`is_connection`](crate::Error::is_connection) or
    /// [`is_timeout`](crate::Error::is_timeout).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if !client.plain_semaphore("stock").try_acquire_for(2, Duration::from_secs(5))? {
    ///     println!("sold out");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_acquire_for(&self, permits: u32, timeout: Duration) -> Result<bool> {
        self.take(permits, Patience::span(clock::now(), timeout))
    }

    /// Blocks until that many permits are taken; returns `false` after `deadline`.
    ///
    /// Like [`try_acquire_for`](PlainSemaphore::try_acquire_for), for several calls that share one
    /// deadline.
    ///
    /// # Errors
    /// The errors of [`try_acquire_for`](PlainSemaphore::try_acquire_for).
    pub fn try_acquire_until(&self, permits: u32, deadline: Instant) -> Result<bool> {
        self.take(permits, Patience::instant(clock::now(), deadline))
    }

    /// Returns the number of clients with callers that wait for permits.
    ///
    /// Counts clients of this library and of Redisson. Blocks until the servers answer, for one
    /// response time-out at most. One round trip.
    ///
    /// # Errors
    /// The [errors of every verb](PlainSemaphore#errors-of-every-verb).
    pub fn waiting(&self) -> Result<WaitingInfo> {
        self.0.waiting(ListensTo::Permits)
    }

    fn take(&self, permits: u32, patience: Patience) -> Result<bool> {
        check_permits(permits).map_err(|error| self.0.named(error))?;
        self.0.wait(patience, |call| call.take_permits(permits))
    }
}

impl fmt::Debug for PlainSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt("PlainSemaphore", f)
    }
}
