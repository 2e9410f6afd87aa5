//! What a caller holds while it holds several locks as one.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{HoldHandle, PendingRelease};
use crate::cancel::Bound;
use crate::error::Result;
use crate::util::clock::{self, Moment};
use crate::util::sync::Parker;

/// Several holds that count as one.
pub(crate) trait GuardSet: Send + Sync + UnwindSafe + RefUnwindSafe {
    fn check(&self) -> Result<()>;

    fn remaining(&self) -> Duration;

    /// Has the mailbox rung when any of the holds is over.
    fn watch(&self, parker: &Arc<Parker>);

    fn extend(&self, lease: Duration) -> Result<()>;

    fn detach(self: Box<Self>);

    fn unlock(self: Box<Self>) -> Result<()>;
}

/// The holds on all members of a lock, in its order.
pub(crate) struct AllHolds(pub(crate) Vec<HoldHandle>);

impl GuardSet for AllHolds {
    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(HoldHandle::check)
    }

    fn remaining(&self) -> Duration {
        self.0.iter().map(HoldHandle::remaining).min().unwrap_or_default()
    }

    fn watch(&self, parker: &Arc<Parker>) {
        self.0.iter().for_each(|hold| hold.hold().watch(parker));
    }

    fn extend(&self, lease: Duration) -> Result<()> {
        let bound = bound(&self.0);
        self.0.iter().try_for_each(|hold| hold.extend(lease, bound))
    }

    fn detach(self: Box<Self>) {
        self.0.into_iter().for_each(HoldHandle::detach);
    }

    /// All releases go out before any answer is waited for. The first error, if any.
    fn unlock(self: Box<Self>) -> Result<()> {
        let bound = bound(&self.0);
        let mut endings: Vec<PendingRelease> = Vec::with_capacity(self.0.len());
        for hold in self.0 {
            let ending = hold.begin_unlock(endings.last());
            endings.push(ending);
        }
        endings.iter().for_each(PendingRelease::flush);
        let ended: Vec<_> = endings.into_iter().map(|ending| ending.finish(bound)).collect();
        ended.into_iter().collect()
    }
}

/// The moment at which a call for all these holds returns.
fn bound(holds: &[HoldHandle]) -> Bound {
    holds.iter().map(HoldHandle::bound).reduce(Bound::and).unwrap_or_else(Bound::over)
}

/// Keeps several locks as one for the thread that took them, and releases them when dropped.
///
/// What [`MultiLock`](crate::MultiLock) and [`RedLock`](crate::RedLock) give. Like a
/// [`Guard`](crate::Guard): re-entrant, not `Send`, and dropping it waits for nobody.
#[must_use = "a guard that is dropped at once releases the locks at once"]
pub struct MultiGuard {
    many: Box<dyn GuardSet>,
    /// Of a thread: not `Send`, but `Sync`.
    of_thread: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// Keeps several locks as one for whoever has it, and releases them when dropped.
///
/// Like an [`OwnedGuard`](crate::OwnedGuard): it can be sent, and is not re-entrant.
#[must_use = "a guard that is dropped at once releases the locks at once"]
pub struct OwnedMultiGuard {
    many: Box<dyn GuardSet>,
}

impl MultiGuard {
    pub(crate) fn new(many: Box<dyn GuardSet>) -> MultiGuard {
        MultiGuard { many, of_thread: PhantomData }
    }
}

impl OwnedMultiGuard {
    pub(crate) fn new(many: Box<dyn GuardSet>) -> OwnedMultiGuard {
        OwnedMultiGuard { many }
    }
}

/// Waits until the holds do not count as one any more, or until `end`; whether they do not.
fn wait_lost(many: &dyn GuardSet, end: Moment) -> bool {
    let parker = Parker::mine();
    many.watch(&parker);
    loop {
        let now = clock::now();
        if many.check().is_err() || end <= now {
            return many.check().is_err();
        }
        parker.park_until(end.min(now + many.remaining()));
    }
}

macro_rules! multi_guard_methods {
    ($guard:ident) => {
        impl $guard {
            /// Releases the locks and waits for the servers to say so: the releases go out
            /// together.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) if a lease was lost before, of as many locks
            /// as were needed. [`is_connection`](crate::Error::is_connection),
            /// [`is_timeout`](crate::Error::is_timeout) or
            /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if nobody answered; the releases are
            /// then sent again until the leases are over anyway.
            pub fn unlock(self) -> Result<()> {
                self.many.unlock()
            }

            /// Does nothing while the leases are valid that are needed. No round trip.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) once they are not; that is final.
            pub fn check(&self) -> Result<()> {
                self.many.check()
            }

            /// Returns whether the leases are valid that are needed. No round trip. Once
            /// false, always false.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn is_held(&self) -> bool {
                self.many.check().is_ok()
            }

            /// Returns how long they stay valid unless they are renewed. No round trip.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn remaining(&self) -> Duration {
                self.many.remaining()
            }

            /// Blocks until a lease is lost that is needed (`true`), or for `timeout`
            /// (`false`). No round trip; may be called from other threads.
            #[must_use = "without the answer nobody knows whether the lease was lost: use it"]
            pub fn wait_lost(&self, timeout: Duration) -> bool {
                wait_lost(&*self.many, clock::now() + timeout)
            }

            /// Sets the leases anew to `lease`, and never shortens one: one round trip for
            /// each lock, at the same time for those on different servers of a
            /// [`RedLock`](crate::RedLock).
            ///
            /// # Errors
            /// Those of [`Guard::extend`](crate::Guard::extend): some leases may then have been
            /// set anew, and others not.
            pub fn extend(&self, lease: Duration) -> Result<()> {
                self.many.extend(lease)
            }

            /// Keeps the locks without a guard, until `unlock()` of the lock that gave them. No
            /// round trip.
            pub fn detach(self) {
                self.many.detach();
            }

            /// The old name of [`detach`](Self::detach).
            #[deprecated(note = "renamed to `detach`")]
            pub fn leak(self) {
                self.detach();
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let remaining = self.remaining();
                f.debug_struct(stringify!($guard))
                    .field("remaining", &remaining)
                    .finish_non_exhaustive()
            }
        }
    };
}

multi_guard_methods!(MultiGuard);
multi_guard_methods!(OwnedMultiGuard);
