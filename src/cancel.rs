//! Ending a wait from another thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mailbox, Mutex};

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
pub struct CancelToken(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    /// Who to wake, by the address of the mailbox: a thread waits once at a time.
    waiting: Mutex<HashMap<usize, Arc<Mailbox>>>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the waits that were given this token, and all later ones. Does not block.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.0.waiting.lock().values().for_each(|mailbox| mailbox.ring());
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// An error once it is cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_cancelled() {
            true => Err(Error::new(ErrorKind::Cancelled, "the wait for the lock was cancelled")),
            false => Ok(()),
        }
    }

    /// Has the mailbox rung at cancellation, until the answer is dropped. To be
    /// looked at ([`CancelToken::is_cancelled`]) after this and before each sleep.
    pub(crate) fn watch(&self, mailbox: &Arc<Mailbox>) -> Watching {
        let key = Arc::as_ptr(mailbox) as usize;
        self.0.waiting.lock().insert(key, Arc::clone(mailbox));
        Watching { token: self.clone(), key }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// A wait that ends when its token is cancelled.
#[derive(Debug)]
pub(crate) struct Watching {
    token: CancelToken,
    key: usize,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.token.0.waiting.lock().remove(&self.key);
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::time::Moment;

    #[test]
    fn a_cancellation_wakes_who_watches_and_nobody_else() {
        let (token, mailbox) = (CancelToken::new(), Arc::default());
        let watching = token.watch(&mailbox);
        token.cancel();
        mailbox.sleep(Moment::END);
        drop(watching);
        assert!(token.0.waiting.lock().is_empty());
    }
}
