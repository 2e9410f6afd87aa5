//! A read-write lock: its two sides under one name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::Result;
use crate::kind::read_write::{Read, Write};
use crate::lock::guard::{Guard, OwnedGuard};
use crate::lock::handle::Lock;

/// A lock that many may hold for reading at once, or one for writing: Redisson's
/// `RReadWriteLock`.
///
/// A cheap handle, as a [`Lock`] is; each verb is that of one of its two sides, which are
/// locks of their own ([`read_lock`](RwLock::read_lock), [`write_lock`](RwLock::write_lock))
/// with all that a [`Lock`] can do.
///
/// A thread that writes may read too, and goes on reading when it has ended writing. A thread
/// that reads cannot write before it has ended reading:
/// [`is_deadlock`](crate::Error::is_deadlock). Writers get no preference: readers who come
/// all the time can keep them waiting.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let prices = client.rw_lock("prices");
/// {
///     let _writing = prices.write()?;
///     // ... nobody else reads or writes ...
/// }
/// let _reading = prices.read()?;      // others may read too
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock is not taken until read(), write() or another of its verbs is called"]
pub struct RwLock {
    read: Lock<Read>,
    write: Lock<Write>,
}

impl RwLock {
    pub(crate) fn new(engine: &Arc<Engine>, name: String) -> RwLock {
        let write = Lock::new(Arc::clone(engine), name.clone());
        RwLock { read: Lock::new(Arc::clone(engine), name), write }
    }

    /// Returns the reading side.
    pub fn read_lock(&self) -> Lock<Read> {
        self.read.clone()
    }

    /// Returns the writing side.
    pub fn write_lock(&self) -> Lock<Write> {
        self.write.clone()
    }

    /// Gives both sides a fixed lease; see [`Lock::with_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(self, lease: Duration) -> RwLock {
        RwLock { read: self.read.with_lease(lease), write: self.write.with_lease(lease) }
    }

    /// Lets `token` end the waits of this lock's verbs.
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(self, token: &CancelToken) -> RwLock {
        RwLock { read: self.read.with_cancel(token), write: self.write.with_cancel(token) }
    }

    /// Returns the name of the lock, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}

/// The verbs of one side: those of its lock.
macro_rules! side {
    ($side:ident, $kind:ident, $what:literal, $lock:ident, $try:ident, $for:ident, $until:ident,
     $owned:ident, $try_owned:ident, $for_owned:ident, $until_owned:ident) => {
        impl RwLock {
            #[doc = concat!("Blocks until this thread may ", $what, ": [`Lock::lock`].")]
            ///
            /// # Errors
            /// Those of [`Lock::lock`].
            pub fn $lock(&self) -> Result<Guard<$kind>> {
                self.$side.lock()
            }

            #[doc = concat!("May ", $what, ", if that is possible without waiting: [`Lock::try_lock`].")]
            ///
            /// # Errors
            /// Those of [`Lock::lock`].
            pub fn $try(&self) -> Result<Option<Guard<$kind>>> {
                self.$side.try_lock()
            }

            #[doc = concat!("Blocks until this thread may ", $what, ", or for `timeout`: [`Lock::try_lock_for`].")]
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for`].
            pub fn $for(&self, timeout: Duration) -> Result<Option<Guard<$kind>>> {
                self.$side.try_lock_for(timeout)
            }

            #[doc = concat!("Blocks until this thread may ", $what, ", or until `deadline`: [`Lock::try_lock_until`].")]
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for`].
            pub fn $until(&self, deadline: Instant) -> Result<Option<Guard<$kind>>> {
                self.$side.try_lock_until(deadline)
            }

            #[doc = concat!("Blocks until it may ", $what, "; the guard can be sent: [`Lock::lock_owned`].")]
            ///
            /// # Errors
            /// Those of [`Lock::lock_owned`].
            pub fn $owned(&self) -> Result<OwnedGuard<$kind>> {
                self.$side.lock_owned()
            }

            #[doc = concat!("May ", $what, ", if that is possible without waiting; the guard can be sent: [`Lock::try_lock_owned`].")]
            ///
            /// # Errors
            /// Those of [`Lock::lock`].
            pub fn $try_owned(&self) -> Result<Option<OwnedGuard<$kind>>> {
                self.$side.try_lock_owned()
            }

            #[doc = concat!("Blocks until it may ", $what, ", or for `timeout`; the guard can be sent: [`Lock::try_lock_for_owned`].")]
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for_owned`].
            pub fn $for_owned(&self, timeout: Duration) -> Result<Option<OwnedGuard<$kind>>> {
                self.$side.try_lock_for_owned(timeout)
            }

            #[doc = concat!("Blocks until it may ", $what, ", or until `deadline`; the guard can be sent: [`Lock::try_lock_until_owned`].")]
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for_owned`].
            pub fn $until_owned(&self, deadline: Instant) -> Result<Option<OwnedGuard<$kind>>> {
                self.$side.try_lock_until_owned(deadline)
            }
        }
    };
}

side!(
    read,
    Read,
    "read",
    read,
    try_read,
    try_read_for,
    try_read_until,
    read_owned,
    try_read_owned,
    try_read_for_owned,
    try_read_until_owned
);
side!(
    write,
    Write,
    "write",
    write,
    try_write,
    try_write_for,
    try_write_until,
    write_owned,
    try_write_owned,
    try_write_for_owned,
    try_write_until_owned
);
