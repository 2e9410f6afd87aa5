//! [`RwLock`]: the two sides of a read-write lock under one name.
//!
//! Each side is a [`Lock`] of its own kind. This file only forwards to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::Result;
use crate::events::Events;
use crate::kind::read_write::{Read, Write};
use crate::lock::guard::{Guard, OwnedGuard};
use crate::lock::handle::Lock;

/// A lock with many readers or one writer: Redisson's `RReadWriteLock`.
///
/// A cheap handle, as a [`Lock`] is. The lock has two sides, [`read_lock`](RwLock::read_lock) and
/// [`write_lock`](RwLock::write_lock), which are [`Lock`]s. The verbs of an `RwLock` call one of
/// the sides: `read()` is `read_lock().lock()`. The other methods of a [`Lock`] are methods of the
/// sides alone.
///
/// A thread that writes can also read, and can continue to read after it has released the write
/// side. A thread that reads cannot write before it has released the read side: a verb that waits
/// returns [`is_deadlock`](crate::Error::is_deadlock), and [`try_write`](RwLock::try_write) returns
/// `None`.
///
/// Readers and writers take turns. While a writer waits, no further reader enters: the writer waits
/// for the readers that were there before. After a release by a writer, the readers that wait enter
/// before the next writer: they have a hundredth of their poll interval, at least 10 ms. So a
/// reader waits for one writer. A caller that dies while it waits delays the others by one [poll
/// interval](crate::Builder::poll_interval) at most. Two things follow:
/// - The verbs that do not wait refuse a lock that is free, or held by readers, while another
///   caller has its turn.
/// - A job that reads, and waits for another thread or for an owned guard that reads too, may wait
///   for itself: a waiting writer is between the two. Such jobs need
///   [`with_reader_preference`](RwLock::with_reader_preference). In the same way, jobs that read
///   several locks in different orders can wait for each other: read them in one order, or by a
///   [`MultiLock`](crate::MultiLock).
///
/// Readers of Redisson take no turns: they enter while a writer waits. Beside several of them without
/// pauses a writer of this library waits for long, and its readers wait for that writer (2.3 s
/// measured, beside four). Readers [with preference](RwLock::with_reader_preference) do not.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let prices = client.rw_lock("prices");
/// {
///     let _writing = prices.write()?;
///     // ... no other reader or writer is here ...
/// }
/// let _reading = prices.read()?;          // together with other readers
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

    /// Returns the read side. No round trip.
    pub fn read_lock(&self) -> Lock<Read> {
        self.read.clone()
    }

    /// Returns the write side. No round trip.
    pub fn write_lock(&self) -> Lock<Write> {
        self.write.clone()
    }

    /// Sets a fixed lease for both sides. See [`Lock::with_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(self, lease: Duration) -> RwLock {
        RwLock { read: self.read.with_lease(lease), write: self.write.with_lease(lease) }
    }

    /// Sets the length of renewed leases for both sides. See [`Lock::with_renewed_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_renewed_lease(self, lease: Duration) -> RwLock {
        let read = self.read.with_renewed_lease(lease);
        RwLock { read, write: self.write.with_renewed_lease(lease) }
    }

    /// Ignores the turns of others: a reader enters whenever no writer holds the lock. No round
    /// trip.
    ///
    /// This is the order of Redisson. A steady stream of such readers keeps writers waiting without
    /// end. A writer of such a handle does not keep readers out while it waits.
    #[must_use = "the preference belongs to the lock that is returned"]
    pub fn with_reader_preference(self) -> RwLock {
        let (read, write) = (self.read.with_reader_preference(), self.write);
        RwLock { read, write: write.with_reader_preference() }
    }

    /// Sets the label of both sides in exported metrics. See [`Lock::with_label`].
    #[must_use = "the label belongs to the lock that is returned"]
    pub fn with_label(self, label: impl AsRef<str>) -> RwLock {
        let label = label.as_ref();
        RwLock { read: self.read.with_label(label), write: self.write.with_label(label) }
    }

    /// Sets the limit of holds on both sides. See [`Lock::with_max_hold`].
    #[must_use = "the limit belongs to the lock that is returned"]
    pub fn with_max_hold(self, max_hold: Duration) -> RwLock {
        let (read, write) = (self.read.with_max_hold(max_hold), self.write.with_max_hold(max_hold));
        RwLock { read, write }
    }

    /// Keeps a hold of the write side after its last guard. See [`Lock::with_linger`].
    ///
    /// Readers of this client and of others ask for such a hold, as writers do.
    #[must_use = "the linger time belongs to the lock that is returned"]
    pub fn with_linger(self, linger: Duration) -> RwLock {
        RwLock { write: self.write.with_linger(linger), ..self }
    }

    /// Sets a token that ends the waits of both sides. See [`Lock::with_cancel`].
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(self, token: &CancelToken) -> RwLock {
        RwLock { read: self.read.with_cancel(token), write: self.write.with_cancel(token) }
    }

    /// Sets an event listener for the holds and waits of both sides. See [`Lock::with_events`].
    #[must_use = "the listener belongs to the lock that is returned"]
    pub fn with_events(self, listener: Arc<dyn Events>) -> RwLock {
        let read = self.read.with_events(Arc::clone(&listener));
        RwLock { read, write: self.write.with_events(listener) }
    }

    /// Returns the name of the lock, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}

/// Implements the verbs of one side, which call the verbs of its [`Lock`].
macro_rules! side {
    ($side:ident, $kind:ident, $verb:literal, $gerund:literal,
     $lock:ident, $try:ident, $for:ident, $until:ident,
     $owned:ident, $try_owned:ident, $for_owned:ident, $until_owned:ident) => {
        impl RwLock {
            #[doc = concat!("Blocks until this thread may ", $verb, ".")]
            ///
            /// Waits as [`Lock::lock`] does.
            ///
            /// # Errors
            /// The errors of [`Lock::lock`].
            pub fn $lock(&self) -> Result<Guard<$kind>> {
                self.$side.lock()
            }

            #[doc = concat!("Takes the lock for ", $gerund, " without waiting, or returns `None`.")]
            ///
            /// See [`Lock::try_lock`].
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock`].
            pub fn $try(&self) -> Result<Option<Guard<$kind>>> {
                self.$side.try_lock()
            }

            #[doc = concat!("Blocks until this thread may ", $verb, "; `None` after `timeout`.")]
            ///
            /// See [`Lock::try_lock_for`].
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_for`].
            pub fn $for(&self, timeout: Duration) -> Result<Option<Guard<$kind>>> {
                self.$side.try_lock_for(timeout)
            }

            #[doc = concat!("Blocks until this thread may ", $verb, "; `None` after `deadline`.")]
            ///
            /// See [`Lock::try_lock_until`].
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_until`].
            pub fn $until(&self, deadline: Instant) -> Result<Option<Guard<$kind>>> {
                self.$side.try_lock_until(deadline)
            }

            #[doc = concat!("Like `", stringify!($lock), "`, but returns an owned guard.")]
            ///
            /// See [`Lock::lock_owned`].
            ///
            /// # Errors
            /// The errors of [`Lock::lock_owned`].
            pub fn $owned(&self) -> Result<OwnedGuard<$kind>> {
                self.$side.lock_owned()
            }

            #[doc = concat!("Like `", stringify!($try), "`, but returns an owned guard.")]
            ///
            /// See [`Lock::try_lock_owned`].
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_owned`].
            pub fn $try_owned(&self) -> Result<Option<OwnedGuard<$kind>>> {
                self.$side.try_lock_owned()
            }

            #[doc = concat!("Like `", stringify!($for), "`, but returns an owned guard.")]
            ///
            /// See [`Lock::try_lock_for_owned`].
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_for_owned`].
            pub fn $for_owned(&self, timeout: Duration) -> Result<Option<OwnedGuard<$kind>>> {
                self.$side.try_lock_for_owned(timeout)
            }

            #[doc = concat!("Like `", stringify!($until), "`, but returns an owned guard.")]
            ///
            /// See [`Lock::try_lock_until_owned`].
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_until_owned`].
            pub fn $until_owned(&self, deadline: Instant) -> Result<Option<OwnedGuard<$kind>>> {
                self.$side.try_lock_until_owned(deadline)
            }
        }
    };
}

side! {
    read, Read, "read", "reading",
    read, try_read, try_read_for, try_read_until,
    read_owned, try_read_owned, try_read_for_owned, try_read_until_owned
}
side! {
    write, Write, "write", "writing",
    write, try_write, try_write_for, try_write_until,
    write_owned, try_write_owned, try_write_for_owned, try_write_until_owned
}
