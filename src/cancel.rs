//! The ends of a call: its deadline, a cancellation, the close of its client.
//!
//! [`CancelToken`] is public. Every wait for an answer takes a [`Limit`], which combines a deadline
//! with the tokens of the caller and of the client. [`ResponseLimit`] is the part of a limit that
//! is fixed when a call begins.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, Parker, TIME_PASSES};
use crate::util::system::HashMap;

/// Ends waits for locks, permits, latches and terms of elections from another thread.
///
/// [`Lock::with_cancel`](crate::Lock::with_cancel) attaches a token to a handle, and so do the
/// methods of that name of all other locks, of [`Semaphore`](crate::Semaphore),
/// [`PlainSemaphore`](crate::PlainSemaphore), [`CountDownLatch`](crate::CountDownLatch) and
/// [`Election`](crate::Election). [`Election::run`](crate::Election::run) takes a token as its
/// argument. After [`cancel`](CancelToken::cancel), each call through such a handle that takes a
/// lock or permits, waits for a latch or campaigns fails with
/// [`Error::is_cancelled`](crate::Error::is_cancelled), whether the call waits or not; a waiting
/// call returns within 100 ms. Guards, permits and terms keep their holds. A clone is the same
/// token, and a cancelled token stays cancelled.
///
/// ```no_run
/// use std::thread;
/// use leasehold::{CancelToken, Client};
///
/// let token = CancelToken::new();
/// let lock = Client::open("redis://127.0.0.1/")?.lock("orders:42").with_cancel(&token);
/// let waiter = thread::spawn(move || lock.lock().map(drop));
/// token.cancel();
/// let outcome = waiter.join().expect("no panic");
/// assert!(outcome.is_ok() || outcome.is_err_and(|error| error.is_cancelled()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a token ends no wait until it is given to a handle"]
pub struct CancelToken(Arc<TokenState>);

#[derive(Default)]
struct TokenState {
    cancelled: AtomicBool,
    watches: Mutex<Watches>,
}

/// The parkers of the waiting threads, by the numbers of their watches.
#[derive(Default)]
struct Watches {
    parkers: HashMap<u64, Arc<Parker>>,
    next: u64,
}

/// A panic leaves the state consistent: callbacks run without the mutex
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for TokenState {}

impl CancelToken {
    /// Returns a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends all present and later waits with this token. Does not block, no round trip.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        for parker in self.0.watches.lock().parkers.values() {
            parker.unpark();
        }
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Returns the error `is_cancelled` if the token is cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }

    /// Unparks the parker at cancellation, until the returned watch is dropped.
    ///
    /// The caller checks [`CancelToken::is_cancelled`] after this call and before each sleep: an
    /// earlier cancellation unparks nothing.
    pub(crate) fn watch(&self, parker: &Arc<Parker>) -> CancelWatch {
        let mut watches = self.0.watches.lock();
        watches.next += 1;
        let number = watches.next;
        watches.parkers.insert(number, Arc::clone(parker));
        CancelWatch { token: self.clone(), number }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// The registration of a parker with a token; dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct CancelWatch {
    token: CancelToken,
    number: u64,
}

impl Drop for CancelWatch {
    fn drop(&mut self) {
        let parker = self.token.0.watches.lock().parkers.remove(&self.number);
        drop(parker);
    }
}

/// Interval at which a waiting thread checks whether its call has ended.
///
/// In a model no time passes, so only a wake-up ends a sleep.
const CHECK_INTERVAL: Duration =
    if TIME_PASSES { Duration::from_millis(50) } else { Duration::MAX };

/// The end of a call without a deadline, fixed when the call begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseLimit {
    end: Moment,
    /// Whether the close of the client ends the call: the client was open at its begin.
    ends_on_close: bool,
}

impl ResponseLimit {
    pub(crate) fn new(end: Moment, closing: &CancelToken) -> ResponseLimit {
        ResponseLimit { end, ends_on_close: !closing.is_cancelled() }
    }

    /// Returns a limit in the past, for a call that fails anyway.
    pub(crate) fn over() -> ResponseLimit {
        ResponseLimit { end: Moment::START, ends_on_close: true }
    }

    pub(crate) fn end(self) -> Moment {
        self.end
    }

    /// Returns the response limit of a call on several locks: the later end.
    pub(crate) fn and(self, other: ResponseLimit) -> ResponseLimit {
        let ends_on_close = self.ends_on_close && other.ends_on_close;
        ResponseLimit { end: self.end.max(other.end), ends_on_close }
    }
}

/// The moment and the tokens at which a call returns, whatever the server does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'a> {
    end: Moment,
    /// The token of the client, cancelled by its close.
    closing: Option<&'a CancelToken>,
    /// The token of the caller.
    cancel: Option<&'a CancelToken>,
}

impl<'a> Limit<'a> {
    /// Returns a limit that ends the call at `end`.
    pub(crate) fn at(end: Moment) -> Limit<'a> {
        Limit { end, closing: None, cancel: None }
    }

    /// Returns a limit that never ends the call. The response time-out of the request still does.
    pub(crate) fn none() -> Limit<'a> {
        Limit::at(Moment::END)
    }

    /// Returns the limit of a call with this response limit.
    pub(crate) fn of(response_limit: ResponseLimit, closing: &'a CancelToken) -> Limit<'a> {
        Limit {
            closing: response_limit.ends_on_close.then_some(closing),
            ..Limit::at(response_limit.end)
        }
    }

    /// Returns a limit that also ends the call when the client is closed.
    pub(crate) fn or_closed(self, closing: &'a CancelToken) -> Limit<'a> {
        Limit { closing: Some(closing), ..self }
    }

    /// Returns a limit that also ends the call when the token is cancelled.
    pub(crate) fn or_cancelled(self, cancel: Option<&'a CancelToken>) -> Limit<'a> {
        Limit { cancel, ..self }
    }

    /// Returns a limit that also ends the call at `end`.
    pub(crate) fn no_later_than(self, end: Moment) -> Limit<'a> {
        Limit { end: self.end.min(end), ..self }
    }

    pub(crate) fn end(&self) -> Moment {
        self.end
    }

    /// Returns whether the call has to return at `now`.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.end <= now || self.is_stopped()
    }

    /// Returns whether another thread ended the call.
    pub(crate) fn is_stopped(&self) -> bool {
        let stopped = |token: Option<&CancelToken>| token.is_some_and(CancelToken::is_cancelled);
        stopped(self.closing) || stopped(self.cancel)
    }

    /// Returns the moment until which a thread may sleep before it checks the limit again.
    pub(crate) fn next_check(&self, now: Moment) -> Moment {
        match (self.closing, self.cancel) {
            (None, None) => self.end,
            _ => self.end.min(now + CHECK_INTERVAL),
        }
    }

    /// Sleeps for `span`, or until the call is over.
    pub(crate) fn pause(&self, span: Duration) {
        let mut now = clock::now();
        let end = now + span;
        while now < end && !self.is_over(now) {
            Parker::default().park_until(end.min(self.next_check(now)));
            now = clock::now();
        }
    }

    /// Returns the error for the end of the call; `late` if no token ended it.
    pub(crate) fn error(&self, late: Error) -> Error {
        match (self.closing, self.cancel) {
            (Some(closing), _) if closing.is_cancelled() => Error::closed(),
            (_, Some(cancel)) if cancel.is_cancelled() => cancelled(),
            _ => late,
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the wait was cancelled")
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_wakes_the_registered_thread_and_a_dropped_watch_is_forgotten() {
        let (token, parker) = (CancelToken::new(), Arc::default());
        let watch = token.watch(&parker);
        token.cancel();
        parker.park_until(Moment::END);
        drop(watch);
        assert!(token.0.watches.lock().parkers.is_empty());
    }

    #[test]
    fn the_end_of_a_nested_call_leaves_the_watch_of_the_outer_call() {
        let (token, parker) = (CancelToken::new(), Arc::default());
        let outer = token.watch(&parker);
        drop(token.watch(&parker));
        token.cancel();
        parker.park_until(Moment::END);
        drop(outer);
        assert!(token.0.watches.lock().parkers.is_empty());
    }

    #[test]
    fn a_limit_returns_the_error_for_its_end() {
        let (closing, cancel) = (CancelToken::new(), CancelToken::new());
        let now = clock::now();
        let limit = |end| Limit::at(end).or_closed(&closing).or_cancelled(Some(&cancel));
        assert!(!limit(Moment::END).is_over(now) && limit(now).is_over(now));
        assert_eq!(limit(now).error(Error::timeout()).kind(), ErrorKind::Timeout);
        assert_eq!(limit(Moment::END).next_check(now), now + CHECK_INTERVAL);
        assert_eq!(Limit::none().next_check(now), Moment::END);
        cancel.cancel();
        assert!(limit(Moment::END).is_stopped());
        assert!(limit(Moment::END).error(Error::timeout()).is_cancelled());
        let begun_before = ResponseLimit::new(Moment::END, &closing);
        closing.cancel();
        assert!(limit(Moment::END).error(Error::timeout()).is_closed());
        assert!(Limit::of(begun_before, &closing).error(Error::timeout()).is_closed());
        let begun_after = ResponseLimit::new(Moment::END, &closing);
        assert!(!Limit::of(begun_after, &closing).is_stopped());
        assert!(!Limit::of(begun_after.and(begun_before), &closing).is_stopped());
    }

    #[test]
    fn a_pause_ends_with_the_call() {
        let cancel = CancelToken::new();
        let other = cancel.clone();
        let cancelling = std::thread::spawn(move || other.cancel());
        Limit::none().or_cancelled(Some(&cancel)).pause(Duration::from_secs(3600));
        cancelling.join().expect("no panic");
        Limit::at(clock::now()).pause(Duration::from_secs(3600));
    }
}
