//! [`CountDownLatch`], and the guard that counts a latch down.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::LockContext;
use crate::cancel::CancelToken;
use crate::command::name;
use crate::count::{self, CountChange};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Events, Kind};
use crate::inspect::info::WaitingInfo;
use crate::kind::rules::ListensTo;
use crate::lock::handle::{SharedHandle, endless_wait_ended};
use crate::util::clock::{self, Patience};

/// A latch that opens when its count has reached 0: Redisson's `RCountDownLatch`.
///
/// [`try_set_count`](CountDownLatch::try_set_count) begins a *round*. Each
/// [`count_down`](CountDownLatch::count_down), in any process, counts down by one. The last one
/// opens the latch, and all callers of [`wait`](CountDownLatch::wait) return. An open latch has no
/// key in Redis, so a latch that was never set is open too: set the count before the first process
/// waits. The next `try_set_count` begins the next round.
///
/// The count has no owner and no lease: if a process dies before it counts down, the latch stays
/// closed until another caller counts down in its place, or [deletes](CountDownLatch::delete) the
/// latch. Use [`wait_for`](CountDownLatch::wait_for) if that may happen.
///
/// A waiting caller returns once the round in which its call began is over, even if it notices this
/// only in the next round. For this purpose [`try_set_count`](CountDownLatch::try_set_count) gives
/// each round a number. A round that Redisson sets has no number. So a caller that misses the end
/// of its round, and then finds a round of Redisson, waits for the end of that round too. The
/// server keeps the number of a round for one day after the last change of the count by this
/// library.
///
/// Each change counts once, even if its request has to be repeated. The request records that
/// [`PlainSemaphore`](crate::PlainSemaphore#exactness) describes ensure this. A fail-over can lose
/// the last changes; a latch whose key is lost is open.
///
/// The key has no time to live. Use one kind for one name: a lock, a semaphore and a latch with the
/// same name would use the same key.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let latch = client.latch("loaded");
/// latch.try_set_count(3)?;                // three parts have to be loaded
/// // ... each loader, in any process, calls latch.count_down()? ...
/// latch.wait()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors of every verb
/// - [`is_invalid_name`](Error::is_invalid_name) if the name cannot be used. In a cluster, also if
///   the name has braces: Redisson's channel of such a latch is in another slot.
/// - [`is_configuration`](Error::is_configuration) if the [label](CountDownLatch::with_label) is
///   invalid, and in a forked child.
/// - [`is_closed`](Error::is_closed) after [`Client::close`](crate::Client::close).
/// - [`is_connection`](Error::is_connection), [`is_timeout`](Error::is_timeout) or
///   [`is_pool_timeout`](Error::is_pool_timeout) if the server does not answer.
/// - [`is_server`](Error::is_server) if the server refuses the command. The
///   [code](Error::code) is `WRONGTYPE` if the key holds no integer, and may be `ERR` if the
///   integer does not fit into 64 bits.
#[derive(Clone)]
#[must_use = "a latch does nothing until one of its verbs is called"]
pub struct CountDownLatch(SharedHandle);

impl CountDownLatch {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> CountDownLatch {
        let mut handle = SharedHandle::new(engine, name, Kind::Latch);
        // Redisson puts braces around a name with braces too, so the channel of such a latch is in
        // another slot than the key.
        handle.require(|LockContext { engine, local }| {
            if engine.is_cluster() && local.name().key().contains('{') {
                Err(name::invalid("the name of a latch in a cluster must not have braces"))
            } else {
                Ok(())
            }
        });
        CountDownLatch(handle)
    }

    /// Sets a token by which another thread can end the waits of this handle. No round trip.
    ///
    /// Once the token is cancelled, [`wait`](CountDownLatch::wait) and its variants return
    /// [`is_cancelled`](Error::is_cancelled). The other verbs ignore the token.
    #[must_use = "the token belongs to the latch that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> CountDownLatch {
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
    /// [`is_configuration`](Error::is_configuration).
    #[must_use = "the listener belongs to the latch that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> CountDownLatch {
        self.0.set_listener(listener);
        self
    }

    /// Sets the label of this handle in exported metrics. No round trip.
    ///
    /// The rules of [`Lock::with_label`](crate::Lock::with_label) apply.
    #[must_use = "the label belongs to the latch that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> CountDownLatch {
        self.0.set_label(label.as_ref());
        self
    }

    /// Returns the name of the latch, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Sets the count of an open latch; returns `false` if the latch is not open.
    ///
    /// Begins a round. Blocks until the server answers, for one response time-out at most. One
    /// round trip. If the server does not answer, it may still set the count after the error, but
    /// no longer once the client has reached it again.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration) if `count` is 0 or above 2^63 - 1, and the
    /// [errors of every verb](CountDownLatch#errors-of-every-verb).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let latch = client.latch("loaded");
    /// if !latch.try_set_count(3)? {
    ///     println!("another process has begun a round, with {} to go", latch.count()?);
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_set_count(&self, count: u64) -> Result<bool> {
        if i64::try_from(count).is_err() || count == 0 {
            let message = "the count of a latch must be from 1 to 2^63 - 1";
            return Err(self.0.named(Error::configuration(message)));
        }
        Ok(self.0.change(CountChange::SetCount(count))? == 1)
    }

    /// Counts down by one. The last count opens the latch.
    ///
    /// Does nothing if the latch is open. Blocks until the server answers, for one response
    /// time-out at most. One round trip.
    ///
    /// Counts once, also if the request has to be repeated. After an error without an answer the
    /// client repeats the request in the background until the server answers, for ten minutes at
    /// most. So do not call again after [`is_connection`](Error::is_connection) or
    /// [`is_timeout`](Error::is_timeout) that is not [retryable](Error::is_retryable): that would
    /// count twice. The repeated request counts in the round that it finds. That is a later round
    /// if the latch was [deleted](CountDownLatch::delete) meanwhile, or counted to 0 by other
    /// calls.
    ///
    /// # Errors
    /// The [errors of every verb](CountDownLatch#errors-of-every-verb). An error is retryable if
    /// this call has not counted and will not.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// client.latch("loaded").count_down()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn count_down(&self) -> Result<()> {
        self.0.change(CountChange::CountDown).map(drop)
    }

    /// Returns a guard that counts down by one when it is dropped. No round trip.
    ///
    /// So a worker counts down however it ends, also by a panic. See [`CountDownGuard`].
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let done = client.latch("loaded").count_down_on_drop();
    /// // ... work that may return early or panic ...
    /// drop(done);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn count_down_on_drop(&self) -> CountDownGuard {
        CountDownGuard { context: self.0.context().map(Arc::clone) }
    }

    /// Returns the count; 0 if the latch is open.
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// The [errors of every verb](CountDownLatch#errors-of-every-verb).
    pub fn count(&self) -> Result<u64> {
        Ok(u64::try_from(self.0.count()?).unwrap_or(0))
    }

    /// Deletes the latch, which opens it; returns whether it had a count.
    ///
    /// Wakes all waiting callers, those of Redisson too. Blocks until the server answers, for one
    /// response time-out at most. One round trip. If the server does not answer, it may still
    /// delete the latch after the error, but no longer once the client has reached it again.
    ///
    /// # Errors
    /// The [errors of every verb](CountDownLatch#errors-of-every-verb).
    pub fn delete(&self) -> Result<bool> {
        Ok(self.0.change(CountChange::DeleteLatch)? == 1)
    }

    /// Blocks until the latch opens.
    ///
    /// Returns at once, after one round trip, if the latch is open. Otherwise the call sleeps until
    /// a message says that the latch may be open, and looks again: two more round trips. If the
    /// message is lost, the call looks within the [poll
    /// interval](crate::Builder::poll_interval).
    ///
    /// The wait has no time limit. It ends early when the token of
    /// [`with_cancel`](CountDownLatch::with_cancel) is cancelled, and when the client is closed.
    ///
    /// # Errors
    /// - [`is_connection`](Error::is_connection), [`is_timeout`](Error::is_timeout) or
    ///   [`is_pool_timeout`](Error::is_pool_timeout) if the first request gets no answer, after one
    ///   response time-out at the latest. Once the server has answered, the call waits through
    ///   outages.
    /// - [`is_cancelled`](Error::is_cancelled) if the token is cancelled.
    /// - The other [errors of every verb](CountDownLatch#errors-of-every-verb).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// client.latch("loaded").wait()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn wait(&self) -> Result<()> {
        if self.wait_with(Patience::Forever)? { Ok(()) } else { Err(endless_wait_ended()) }
    }

    /// Blocks until the latch opens; returns `false` after `timeout`.
    ///
    /// Waits as [`wait`](CountDownLatch::wait) does. An open latch is noticed even if `timeout` is
    /// zero. `Duration::MAX` waits without limit. The call returns at most 100 ms after its
    /// deadline, whatever the server does.
    ///
    /// # Errors
    /// The errors of [`wait`](CountDownLatch::wait). If the time ends before the server has
    /// answered, the error is [`is_connection`](Error::is_connection) or
    /// [`is_timeout`](Error::is_timeout).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if !client.latch("loaded").wait_for(Duration::from_secs(60))? {
    ///     println!("some loaders have not finished");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.wait_with(Patience::span(clock::now(), timeout))
    }

    /// Blocks until the latch opens; returns `false` after `deadline`.
    ///
    /// Like [`wait_for`](CountDownLatch::wait_for), for several calls that share one deadline.
    ///
    /// # Errors
    /// The errors of [`wait_for`](CountDownLatch::wait_for).
    pub fn wait_until(&self, deadline: Instant) -> Result<bool> {
        self.wait_with(Patience::instant(clock::now(), deadline))
    }

    fn wait_with(&self, patience: Patience) -> Result<bool> {
        self.0.wait(patience, |call| call.wait_for_latch())
    }

    /// Returns the number of clients with callers that wait for the latch.
    ///
    /// Counts clients of this library and of Redisson. Blocks until the servers answer, for one
    /// response time-out at most. One round trip.
    ///
    /// # Errors
    /// The [errors of every verb](CountDownLatch#errors-of-every-verb).
    pub fn waiting(&self) -> Result<WaitingInfo> {
        self.0.waiting(ListensTo::Latch)
    }
}

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt("CountDownLatch", f)
    }
}

/// Counts a [`CountDownLatch`] down by one when it is dropped.
///
/// Made by [`CountDownLatch::count_down_on_drop`]. The drop does not block and does not fail. The
/// client sends the request in the background, and repeats it until the server answers, for ten
/// minutes at most. The request counts once, in the round that it finds. A guard of a handle that
/// cannot be used counts nothing: the verbs of that handle return the error. A drop after
/// [`Client::close`](crate::Client::close) still counts; a drop in a forked child does not. After
/// the close the request is repeated for one [`watchdog_timeout`](crate::Builder::watchdog_timeout)
/// at most.
///
/// If the process dies, the guard is not dropped, and the latch is not counted down for it.
#[must_use = "a guard that is dropped at once counts down at once"]
pub struct CountDownGuard {
    context: Result<Arc<LockContext>>,
}

impl Drop for CountDownGuard {
    fn drop(&mut self) {
        if let Ok(context) = &self.context {
            count::send_in_background(context, CountChange::CountDown);
        }
    }
}

impl fmt::Debug for CountDownGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.context.as_ref().map(|context| context.local.name().given());
        f.debug_struct("CountDownGuard").field("name", &name.ok()).finish()
    }
}
