//! The guards of one lock: [`Guard`] belongs to a thread, [`OwnedGuard`] to none.
//!
//! Each wraps one [`HoldHandle`], whose drop releases without waiting.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::error::Result;
use crate::kind::fenced::Fenced;
use crate::kind::plain::Plain;
use crate::kind::queued::Queued;
use crate::kind::read_write::{Read, Write};
use crate::kind::rules::LockKind;

/// Holds a lock for the thread that took it; releases the lock when dropped.
///
/// Re-entrant: the same thread can lock again and gets another guard of the same hold. The last
/// guard releases the lock; the order of the drops does not matter. A guard is not `Send`, since it
/// belongs to its thread; an [`OwnedGuard`] is `Send`. A guard does not borrow the
/// [`Lock`](crate::Lock).
///
/// While [`is_held`](Guard::is_held) returns true, no conflicting hold on the lock is valid. The
/// [page on guarantees](crate::_documentation::guarantees) names the conditions.
///
/// # Thread pools
/// A pool that steals work, such as rayon, runs other jobs on a thread that waits in `join`,
/// `scope` or a parallel iterator. If the waiting job has a guard, another job on its thread can
/// re-enter the lock, which then does not exclude the two jobs. So a job with a guard must not wait
/// inside the pool. Take an [`OwnedGuard`] outside of the pool instead, and send it with the job.
///
/// # Drop
/// The drop of a guard queues the release and does not wait for the server. The outcome goes to
/// [`Events::released`](crate::Events::released), and to the log if the release failed.
/// [`unlock`](Guard::unlock) waits for the outcome and returns it.
///
/// A process that exits right after the drop may exit before the release is sent. To avoid that,
/// drop or [`close`](crate::Client::close) the [`Client`](crate::Client) last: both wait for queued
/// releases. A guard passed to `mem::forget` keeps the lock, and its renewals, for as long as its
/// thread lives.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let lock = client.lock("orders:42");
/// let outer = lock.lock()?;
/// let inner = lock.lock()?;               // the same hold: no round trip
/// drop(outer);
/// inner.check()?;                         // before each step that must not run twice
/// drop(inner);                            // releases the lock
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard<K: LockKind = Plain> {
    handle: HoldHandle,
    kind: PhantomData<K>,
    not_send: PhantomData<SendAnOwnedGuardInstead>,
}

/// Makes a guard `Sync` but not `Send`: it belongs to its thread. The errors of the compiler name
/// this type where a guard is sent: [`lock_owned`](crate::Lock::lock_owned) takes one that can be.
pub(super) struct SendAnOwnedGuardInstead(
    #[expect(dead_code, reason = "only its type counts")] std::sync::MutexGuard<'static, ()>,
);

/// Holds a lock for no particular thread; releases the lock when dropped.
///
/// Like a [`Guard`], except that it can be sent to another thread and dropped there, and that it is
/// not re-entrant: each owned guard has a hold of its own. The lease is renewed until the guard is
/// dropped or the client is closed, unless the lock has a fixed lease.
///
/// A thread that has an owned guard and waits for the same lock waits for itself, until its
/// deadline or for ever. In a [thread pool that steals work](Guard#thread-pools), take owned guards
/// outside of the pool, or with a verb that does not wait.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let guard = client.lock("orders:42").lock_owned()?;
/// let worker = std::thread::spawn(move || guard.unlock());
/// # let _ = worker.join();
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct OwnedGuard<K: LockKind = Plain> {
    handle: HoldHandle,
    kind: PhantomData<K>,
}

/// The guard of a [fenced lock](crate::FencedLock), which has a fencing token.
pub type FencedGuard = Guard<Fenced>;

/// The guard of the read side of an [`RwLock`](crate::RwLock).
pub type ReadGuard = Guard<Read>;

/// The guard of the write side of an [`RwLock`](crate::RwLock).
pub type WriteGuard = Guard<Write>;

impl<K: LockKind> Guard<K> {
    pub(crate) fn new(handle: HoldHandle) -> Guard<K> {
        Guard { handle, kind: PhantomData, not_send: PhantomData }
    }
}

impl<K: LockKind> OwnedGuard<K> {
    pub(crate) fn new(handle: HoldHandle) -> OwnedGuard<K> {
        OwnedGuard { handle, kind: PhantomData }
    }
}

/// What all guards with one hold tell of its lease.
macro_rules! lease_queries {
    () => {
        /// Returns an error if the lease is lost. Does not block, no round trip.
        ///
        /// Compares the deadline of the lease with the clock. Call it before each step that needs
        /// the hold.
        ///
        /// # Errors
        /// [`is_lost`](crate::Error::is_lost) once the lease is lost. This is final.
        pub fn check(&self) -> Result<()> {
            self.handle.check()
        }

        /// Returns whether the lease is valid. Does not block, no round trip.
        ///
        /// Once false, always false.
        #[must_use = "a query changes nothing: use its answer"]
        pub fn is_held(&self) -> bool {
            self.handle.is_held()
        }

        /// Returns the time to the lease's deadline, or zero if the lease is lost.
        ///
        /// Does not block, no round trip. The value assumes that no renewal follows. A safety
        /// margin is subtracted, so the value never exceeds the remaining lease on the server.
        #[must_use = "a query changes nothing: use its answer"]
        pub fn remaining(&self) -> Duration {
            self.handle.remaining()
        }

        /// Blocks until the lease is lost, or for `timeout`; returns whether it is lost.
        ///
        /// No round trip. Another thread can call this method through a reference.
        #[must_use = "only the return value says whether the lease is lost"]
        pub fn wait_lost(&self, timeout: Duration) -> bool {
            self.handle.wait_lost(timeout)
        }
    };
}

pub(crate) use lease_queries;

macro_rules! guard_methods {
    ($guard:ident) => {
        impl<K: LockKind> $guard<K> {
            /// Releases the lock and waits for the server to confirm.
            ///
            /// Blocks for one response time-out at most. One round trip; none if the hold has other
            /// guards or is handed to another thread of this process.
            ///
            /// # Errors
            /// - [`is_lost`](crate::Error::is_lost) if the lease was lost before: another holder
            ///   may have worked at the same time.
            /// - [`is_connection`](crate::Error::is_connection),
            ///   [`is_timeout`](crate::Error::is_timeout) or
            ///   [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server did not answer.
            ///   The client then repeats the release in the background until the lease has expired.
            ///   Exception: other holders can keep the key of a read, write or named hold alive
            ///   beyond this lease, so its release is repeated until the server answers.
            /// - [`is_server`](crate::Error::is_server) if the server refuses the release.
            /// - [`is_closed`](crate::Error::is_closed) if the client is closed during the call;
            ///   [`is_configuration`](crate::Error::is_configuration) in a forked child.
            pub fn unlock(self) -> Result<()> {
                self.handle.unlock()
            }

            lease_queries!();

            /// Registers a closure that the client calls once if the hold is lost.
            ///
            /// Does not block, no round trip. The thread `leasehold-events` calls `f` when the
            /// client reports the loss, after the [`Events::lost`](crate::Events::lost) of the
            /// event listeners. The client reports a loss when a query or the watchdog notices that
            /// the lease has ended or that the server does not have the hold, or when the reply to
            /// the release says so. After the report, a new closure is called at once. Closures of
            /// one hold are called in the order of their registration. A panic in `f` is logged and
            /// ends only that call.
            ///
            /// `f` is called once or never. If `f` is not called, the thread `leasehold-events`
            /// drops it:
            ///
            /// | case | rule |
            /// | --- | --- |
            /// | release | not called, unless the reply reports the loss; a release without a reply is no loss |
            /// | nested guard | `f` belongs to the hold, and stays if this guard ends before the others |
            /// | local hand-off | not called: the hand-off drops `f` |
            /// | [`detach`](Self::detach) | `f` stays until the end of the hold |
            /// | after [`close`](crate::Client::close) | called only if a query such as [`check`](Self::check) notices the loss |
            /// | drop of the client and all its locks and guards | not called |
            ///
            /// `f` waits for earlier calls on that thread, those of slow event listeners included.
            /// A full event queue does not drop `f`. In a forked child `f` is dropped at once. If
            /// the system cannot start the thread, `f` is dropped at once too, and the log has an
            /// error.
            ///
            /// ```no_run
            /// # use std::sync::Arc;
            /// # use std::sync::atomic::{AtomicBool, Ordering};
            /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
            /// let guard = client.lock("import").lock()?;
            /// let stop = Arc::new(AtomicBool::new(false));
            /// let stops = Arc::clone(&stop);
            /// guard.on_lost(move || stops.store(true, Ordering::Relaxed));
            /// while !stop.load(Ordering::Relaxed) {
            ///     // ... one step of the work ...
            /// #   break;
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn on_lost(&self, f: impl FnOnce() + Send + 'static) {
                self.handle.on_lost(f);
            }

            /// Sets the remaining lease to `lease`, unless more than `lease` remains already.
            ///
            /// Blocks until the server answers, for one response time-out at most. One round trip.
            /// Millisecond precision. If the lease is a renewed one, the watchdog renews it again
            /// before less than two thirds of the watchdog time-out remain.
            ///
            /// # Errors
            /// The old deadline stands after every error but the first:
            /// - [`is_lost`](crate::Error::is_lost) if the lease is lost.
            /// - [`is_configuration`](crate::Error::is_configuration) if `lease` is below 10 ms,
            ///   and in a forked child.
            /// - [`is_connection`](crate::Error::is_connection),
            ///   [`is_timeout`](crate::Error::is_timeout) or
            ///   [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server did not answer.
            /// - [`is_not_replicated`](crate::Error::is_not_replicated) if fewer replicas
            ///   acknowledged the extension than
            ///   [`min_replicas`](crate::Builder::min_replicas) asks for.
            /// - [`is_server`](crate::Error::is_server) if the server refuses the extension.
            /// - [`is_closed`](crate::Error::is_closed) if the client is closed during the call.
            ///
            /// ```no_run
            /// # use std::time::Duration;
            /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
            /// let guard = client.lock("report").with_lease(Duration::from_secs(10)).lock()?;
            /// guard.extend(Duration::from_secs(60))?;
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn extend(&self, lease: Duration) -> Result<()> {
                self.handle.extend(lease, self.handle.response_limit())
            }

            /// Gives up the guard and keeps the lock. Does not block, no round trip.
            ///
            /// The lock stays held until [`Lock::unlock`](crate::Lock::unlock). A renewed lease is
            /// renewed until then; the lease of a detached [`Guard`] only while its thread lives. A
            /// fixed lease ends by itself, and needs no `unlock`.
            ///
            /// If the renewed lease of a detached [`Guard`] is lost, the thread of the guard has to
            /// learn of it: every verb that returns a `Guard` of the lock returns
            /// [`is_lost`](crate::Error::is_lost) there, until the thread has called `unlock`.
            ///
            /// ```no_run
            /// # use std::time::Duration;
            /// # fn report() {}
            /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
            /// // Once per minute, on any number of machines.
            /// let lock = client.lock("report").with_lease(Duration::from_secs(55));
            /// if let Some(guard) = lock.try_lock_owned()? {
            ///     guard.detach();
            ///     report();
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn detach(self) {
                self.handle.detach();
            }
        }

        impl<K: LockKind> fmt::Debug for $guard<K> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("name", &self.handle.name())
                    .field("owner", self.handle.hold().owner())
                    .field("remaining", &self.handle.remaining())
                    .finish()
            }
        }
    };
}

guard_methods!(Guard);
guard_methods!(OwnedGuard);

macro_rules! token_method {
    ($guard:ident, $kind:ident) => {
        impl $guard<$kind> {
            /// Returns the fencing token of this hold. Does not block, no round trip.
            ///
            /// The token is larger than the token of every earlier hold on the lock. Pass it to the
            /// resource that the lock protects. The resource stores the largest token so far and
            /// refuses smaller ones, so a holder that has lost its lease without noticing does no
            /// harm. Nested guards have the same token.
            ///
            /// ```no_run
            /// # fn write(token: u64, text: &str) {}
            /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
            /// let guard = client.fenced_lock("orders:42").lock()?;
            /// write(guard.token(), "shipped"); // refuses smaller tokens
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            #[must_use = "a query changes nothing: use its answer"]
            pub fn token(&self) -> u64 {
                self.handle.token()
            }
        }
    };
}

token_method!(Guard, Fenced);
token_method!(OwnedGuard, Fenced);
token_method!(Guard, Queued);
token_method!(OwnedGuard, Queued);
