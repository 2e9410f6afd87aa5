//! What a caller holds while it holds a lock.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::error::Result;
use crate::kind::fenced::Fenced;
use crate::kind::plain::Plain;
use crate::kind::read_write::{Read, Write};
use crate::kind::rules::LockKind;

/// Keeps a lock for the thread that took it, and releases it when dropped.
///
/// Re-entrant: the same thread may lock again and gets another guard of the same
/// hold; the last one dropped, in whatever order, releases it. Not `Send`: it
/// belongs to its thread. [`OwnedGuard`] can be sent. It does not borrow the lock.
///
/// Dropping it hands in the release and does not wait for the server; the answer is
/// told to [`Events::released`](crate::Events::released) and, if it was bad, to the
/// log. [`unlock`](Guard::unlock) waits and says what happened. A process that ends
/// right after the drop may end before the release is sent, unless it drops or closes
/// its [`Client`](crate::Client) last, which waits for that. A forgotten guard
/// (`mem::forget`) is one that lives on: the lock stays taken, and renewed, while its
/// thread lives.
///
/// While [`is_held`](Guard::is_held) says true no other hold on the lock is valid,
/// as long as the server keeps its word: the crate's documentation says what can
/// break it.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard<P: LockKind = Plain> {
    hold: HoldHandle,
    protocol: PhantomData<P>,
    /// Of a thread: not `Send`, but `Sync`.
    of_thread: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// Keeps a lock for whoever has it, and releases it when dropped.
///
/// Like a [`Guard`], but a hold of its own: it can be sent to another thread and
/// dropped there, and is not re-entrant. It is renewed until it is dropped or the
/// client is closed.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct OwnedGuard<P: LockKind = Plain> {
    hold: HoldHandle,
    protocol: PhantomData<P>,
}

/// The guard of a [fenced lock](crate::FencedLock), which has a fencing token.
pub type FencedGuard = Guard<Fenced>;

/// The guard of the reading side of an [`RwLock`](crate::RwLock).
pub type ReadGuard = Guard<Read>;

/// The guard of the writing side of an [`RwLock`](crate::RwLock).
pub type WriteGuard = Guard<Write>;

impl<P: LockKind> Guard<P> {
    pub(crate) fn new(hold: HoldHandle) -> Guard<P> {
        Guard { hold, protocol: PhantomData, of_thread: PhantomData }
    }
}

impl<P: LockKind> OwnedGuard<P> {
    pub(crate) fn new(hold: HoldHandle) -> OwnedGuard<P> {
        OwnedGuard { hold, protocol: PhantomData }
    }
}

macro_rules! guard_methods {
    ($guard:ident) => {
        impl<P: LockKind> $guard<P> {
            /// Releases the lock and waits for the server to say so: one round trip,
            /// none if the thread holds it more than once or it passes to another
            /// thread of this process.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) if the lease was lost before: what it
            /// protected may have been done by others too.
            /// [`is_connection`](crate::Error::is_connection),
            /// [`is_timeout`](crate::Error::is_timeout) or
            /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if nobody answered. The
            /// release is then sent again until the lease is over; for a read, write or named
            /// hold, whose lock others can keep alive, until the server answers.
            pub fn unlock(self) -> Result<()> {
                self.hold.unlock()
            }

            /// Does nothing while the lease is valid. No round trip: it looks at the
            /// clock.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) once the lease is lost; that is
            /// final.
            pub fn check(&self) -> Result<()> {
                self.hold.check()
            }

            /// Returns whether the lease is valid. No round trip. Once false, always
            /// false.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn is_held(&self) -> bool {
                self.hold.is_held()
            }

            /// Returns how long the lease stays valid unless it is renewed, zero if it
            /// is lost. No round trip. It is a little less than what the server says,
            /// so that it is never more.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn remaining(&self) -> Duration {
                self.hold.remaining()
            }

            /// Blocks until the lease is lost (`true`), or for `timeout` (`false`). No
            /// round trip; may be called from other threads.
            #[must_use = "without the answer nobody knows whether the lease was lost: use it"]
            pub fn wait_lost(&self, timeout: Duration) -> bool {
                self.hold.wait_lost(timeout)
            }

            /// Sets the lease anew to `lease`, and never shortens it: one round trip.
            ///
            /// A lock that the watchdog renews is still renewed, when less than two
            /// thirds of the watchdog time-out are left.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) if the lease is lost;
            /// [`is_configuration`](crate::Error::is_configuration) for less than 10 ms;
            /// [`is_connection`](crate::Error::is_connection),
            /// [`is_timeout`](crate::Error::is_timeout) or
            /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if nobody answered: the old
            /// lease then stands.
            pub fn extend(&self, lease: Duration) -> Result<()> {
                self.hold.extend(lease, self.hold.bound())
            }

            /// Keeps the lock without a guard, until
            /// [`Lock::unlock`](crate::Lock::unlock). No round trip.
            ///
            /// A thread whose detached lock was lost although it was renewed is told so when
            /// it locks it again, until it has called `unlock`: what it began may have been
            /// disturbed. A fixed lease may simply run out.
            pub fn detach(self) {
                self.hold.detach();
            }

            /// The old name of [`detach`](Self::detach).
            #[deprecated(note = "renamed to `detach`")]
            pub fn leak(self) {
                self.detach();
            }
        }

        impl<P: LockKind> fmt::Debug for $guard<P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("name", &self.hold.name())
                    .field("owner", self.hold.hold().owner())
                    .field("remaining", &self.hold.remaining())
                    .finish()
            }
        }
    };
}

guard_methods!(Guard);
guard_methods!(OwnedGuard);

macro_rules! token_method {
    ($guard:ident) => {
        impl $guard<Fenced> {
            /// Returns the fencing token of this hold: no round trip.
            ///
            /// It is larger than that of every hold on the lock before. Hand it to what the
            /// lock protects, which is to refuse who comes with a smaller one than it has
            /// seen: so a holder that has lost its lease and does not know it does no harm.
            /// Guards of nested calls have the same token.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn token(&self) -> u64 {
                self.hold.token()
            }
        }
    };
}

token_method!(Guard);
token_method!(OwnedGuard);
