//! What ends a call: its deadline, a cancellation, the close of its client.

use std::collections::HashMap;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, Parker, TIME_PASSES};

/// Ends waits from another thread.
///
/// Give it to a lock with [`Lock::with_cancel`](crate::Lock::with_cancel); from
/// [`cancel`](CancelToken::cancel) on, every call that would take that lock fails with
/// [`Error::is_cancelled`](crate::Error::is_cancelled), whether it waits or not. What is
/// held already stays held. A clone is the same token; a cancelled one stays cancelled.
///
/// ```
/// let token = leasehold::CancelToken::new();
/// assert!(!token.is_cancelled());
/// token.clone().cancel();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Default)]
#[must_use = "a token ends no wait until it is given to a lock"]
pub struct CancelToken(Arc<TokenState>);

#[derive(Default)]
struct TokenState {
    cancelled: AtomicBool,
    /// Who to wake, by the address of the mailbox: a thread waits once at a time.
    waiting: Mutex<HashMap<usize, Arc<Parker>>>,
}

/// A panic leaves it in order: loggers and callbacks run with no lock held (`tests/panics.rs`).
impl RefUnwindSafe for TokenState {}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the waits that were given this token, and all later ones. Does not block.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.0.waiting.lock().values().for_each(|parker| parker.unpark());
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// An error once it is cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_cancelled() {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }

    /// Has the mailbox rung at cancellation, until the answer is dropped. To be
    /// looked at ([`CancelToken::is_cancelled`]) after this and before each sleep.
    pub(crate) fn watch(&self, parker: &Arc<Parker>) -> CancelWatch {
        let key = Arc::as_ptr(parker) as usize;
        self.0.waiting.lock().insert(key, Arc::clone(parker));
        CancelWatch { token: self.clone(), key }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// A wait that ends when its token is cancelled.
#[derive(Debug)]
pub(crate) struct CancelWatch {
    token: CancelToken,
    key: usize,
}

impl Drop for CancelWatch {
    fn drop(&mut self) {
        self.token.0.waiting.lock().remove(&self.key);
    }
}

/// How long a thread that waits for an answer sleeps before it looks whether its call was
/// ended. In a model nothing but a wake-up ends a sleep.
const CHECK_INTERVAL: Duration =
    if TIME_PASSES { Duration::from_millis(50) } else { Duration::MAX };

/// When a call returns that has no deadline of its own: fixed when it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    end: Moment,
    /// The client was open when the call began: its close ends the call.
    ends_on_close: bool,
}

impl Bound {
    pub(crate) fn new(end: Moment, closing: &CancelToken) -> Bound {
        Bound { end, ends_on_close: !closing.is_cancelled() }
    }

    /// A bound that is over at once, for a call that fails anyway.
    pub(crate) fn over() -> Bound {
        Bound { end: Moment::START, ends_on_close: true }
    }

    pub(crate) fn end(self) -> Moment {
        self.end
    }

    /// The bound of a call on several locks.
    pub(crate) fn and(self, other: Bound) -> Bound {
        let ends_on_close = self.ends_on_close && other.ends_on_close;
        Bound { end: self.end.max(other.end), ends_on_close }
    }
}

/// When a call has to return, whatever the server does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'a> {
    end: Moment,
    /// The client's token, which ends the call when the client is closed.
    closing: Option<&'a CancelToken>,
    cancel: Option<&'a CancelToken>,
}

impl<'a> Limit<'a> {
    /// The call returns at `end`.
    pub(crate) fn at(end: Moment) -> Limit<'a> {
        Limit { end, closing: None, cancel: None }
    }

    /// The call returns when it has its answer, which is late at some time in any case.
    pub(crate) fn none() -> Limit<'a> {
        Limit::at(Moment::END)
    }

    /// The limit of a call with that bound.
    pub(crate) fn of(bound: Bound, closing: &'a CancelToken) -> Limit<'a> {
        Limit { closing: bound.ends_on_close.then_some(closing), ..Limit::at(bound.end) }
    }

    /// Ends the call when the client is closed.
    pub(crate) fn or_closed(self, closing: &'a CancelToken) -> Limit<'a> {
        Limit { closing: Some(closing), ..self }
    }

    /// Ends the call when the token is cancelled.
    pub(crate) fn or_cancelled(self, cancel: Option<&'a CancelToken>) -> Limit<'a> {
        Limit { cancel, ..self }
    }

    pub(crate) fn end(&self) -> Moment {
        self.end
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.end <= now || self.is_stopped()
    }

    /// Whether the call was ended by another thread.
    pub(crate) fn is_stopped(&self) -> bool {
        let stopped = |token: Option<&CancelToken>| token.is_some_and(CancelToken::is_cancelled);
        stopped(self.closing) || stopped(self.cancel)
    }

    /// Until when a thread may sleep before it looks again.
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

    /// Why the call is over: it was ended, or else it is `late`.
    pub(crate) fn error(&self, late: Error) -> Error {
        match (self.closing, self.cancel) {
            (Some(closing), _) if closing.is_cancelled() => Error::closed(),
            (_, Some(cancel)) if cancel.is_cancelled() => cancelled(),
            _ => late,
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the wait for the lock was cancelled")
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_wakes_who_watches_and_nobody_else() {
        let (token, parker) = (CancelToken::new(), Arc::default());
        let watching = token.watch(&parker);
        token.cancel();
        parker.park_until(Moment::END);
        drop(watching);
        assert!(token.0.waiting.lock().is_empty());
    }

    #[test]
    fn a_limit_tells_what_ended_the_call() {
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
        let begun_before = Bound::new(Moment::END, &closing);
        closing.cancel();
        assert!(limit(Moment::END).error(Error::timeout()).is_closed());
        assert!(Limit::of(begun_before, &closing).error(Error::timeout()).is_closed());
        let begun_after = Bound::new(Moment::END, &closing);
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
