//! The guards of several locks that count as one: [`MultiGuard`] and [`OwnedMultiGuard`].
//!
//! A [`GuardSet`] decides when its holds count as one hold: [`AllHolds`] while all are valid, the
//! holds of a `RedLock` while a majority is.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{HoldHandle, PendingRelease};
use crate::cancel::ResponseLimit;
use crate::error::Result;
use crate::events::Closure;
use crate::lock::guard::SendAnOwnedGuardInstead;
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, Parker};

/// Several holds that count as one.
pub(crate) trait GuardSet: Send + Sync + UnwindSafe + RefUnwindSafe {
    fn check(&self) -> Result<()>;

    fn remaining(&self) -> Duration;

    /// Registers a parker, which is unparked when any of the holds ends.
    fn watch(&self, parker: &Arc<Parker>);

    /// Registers a call for the moment at which the holds no longer count as one hold.
    ///
    /// An events thread makes the call, once.
    fn on_lost(&self, call: Closure);

    fn extend(&self, lease: Duration) -> Result<()>;

    fn detach(self: Box<Self>);

    fn unlock(self: Box<Self>) -> Result<()>;
}

/// The holds of a `MultiLock`, in the order of its members. Valid while all are.
pub(crate) struct AllHolds(pub(crate) Vec<HoldHandle>);

impl GuardSet for AllHolds {
    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(HoldHandle::check)
    }

    fn remaining(&self) -> Duration {
        self.0.iter().map(HoldHandle::remaining).min().unwrap_or_default()
    }

    fn watch(&self, parker: &Arc<Parker>) {
        for handle in &self.0 {
            handle.hold().watch(parker);
        }
    }

    /// Registers one call with all holds. The first loss makes the call.
    fn on_lost(&self, call: Closure) {
        let call = Arc::new(Mutex::new(Some(call)));
        for handle in &self.0 {
            let call = Arc::clone(&call);
            handle.on_lost(move || {
                let first = call.lock().take();
                if let Some(call) = first {
                    call();
                }
            });
        }
    }

    fn extend(&self, lease: Duration) -> Result<()> {
        let response_limit = response_limit(&self.0);
        self.0.iter().try_for_each(|handle| handle.extend(lease, response_limit))
    }

    fn detach(self: Box<Self>) {
        for handle in self.0 {
            handle.detach();
        }
    }

    /// Sends all releases before it waits for the first reply. Returns the first error.
    fn unlock(self: Box<Self>) -> Result<()> {
        let response_limit = response_limit(&self.0);
        let mut releases: Vec<PendingRelease> = Vec::with_capacity(self.0.len());
        for handle in self.0 {
            let release = handle.begin_unlock(releases.last());
            releases.push(release);
        }
        for release in &releases {
            release.flush();
        }
        let mut outcome = Ok(());
        for release in releases {
            outcome = outcome.and(release.finish(response_limit));
        }
        outcome
    }
}

/// Returns the response limit of one call on all these holds.
fn response_limit(handles: &[HoldHandle]) -> ResponseLimit {
    handles
        .iter()
        .map(HoldHandle::response_limit)
        .reduce(ResponseLimit::and)
        .unwrap_or_else(ResponseLimit::over)
}

/// Holds several locks as one for the thread that took them; releases them when dropped.
///
/// The guard of a [`MultiLock`](crate::MultiLock) and of a [`RedLock`](crate::RedLock). Valid while
/// the leases on all members of the `MultiLock`, or on a majority of the servers of the `RedLock`,
/// are valid.
///
/// Like a [`Guard`](crate::Guard), it is re-entrant and not `Send`, and its drop waits for no
/// server.
///
/// ```no_run
/// use leasehold::MultiLock;
///
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let guard = MultiLock::new([client.lock("account:1"), client.lock("account:2")]).lock()?;
/// guard.check()?;
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a guard that is dropped at once releases the locks at once"]
pub struct MultiGuard {
    holds: Box<dyn GuardSet>,
    not_send: PhantomData<SendAnOwnedGuardInstead>,
}

/// Holds several locks as one for no particular thread; releases them when dropped.
///
/// Like a [`MultiGuard`], except that it can be sent to another thread and is not re-entrant, as an
/// [`OwnedGuard`](crate::OwnedGuard).
#[must_use = "a guard that is dropped at once releases the locks at once"]
pub struct OwnedMultiGuard {
    holds: Box<dyn GuardSet>,
}

impl MultiGuard {
    pub(crate) fn new(holds: Box<dyn GuardSet>) -> MultiGuard {
        MultiGuard { holds, not_send: PhantomData }
    }
}

impl OwnedMultiGuard {
    pub(crate) fn new(holds: Box<dyn GuardSet>) -> OwnedMultiGuard {
        OwnedMultiGuard { holds }
    }
}

/// Blocks until the set of holds is lost, or until `end`; returns whether it is.
fn wait_lost(holds: &dyn GuardSet, end: Moment) -> bool {
    let parker = Parker::mine();
    holds.watch(&parker);
    loop {
        let now = clock::now();
        if holds.check().is_err() || end <= now {
            return holds.check().is_err();
        }
        parker.park_until(end.min(now + holds.remaining()));
    }
}

macro_rules! multi_guard_methods {
    ($guard:ident) => {
        impl $guard {
            /// Releases all locks and waits for the servers to confirm.
            ///
            /// Sends all releases before it waits for the first answer. Blocks for one response
            /// time-out at most. One round trip to each server, at the same time.
            ///
            /// # Errors
            /// - [`is_lost`](crate::Error::is_lost) if the guard was not valid any more: another
            ///   holder may have worked at the same time.
            /// - [`is_connection`](crate::Error::is_connection),
            ///   [`is_timeout`](crate::Error::is_timeout) or
            ///   [`is_pool_timeout`](crate::Error::is_pool_timeout) if a server did not answer; for
            ///   a [`RedLock`](crate::RedLock), if no majority answered. The missing releases are
            ///   then repeated in the background, as after [`Guard::unlock`](crate::Guard::unlock).
            pub fn unlock(self) -> Result<()> {
                self.holds.unlock()
            }

            /// Returns an error if the guard is no longer valid. Does not block, no round trip.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) once too many leases are lost. This is final.
            pub fn check(&self) -> Result<()> {
                self.holds.check()
            }

            /// Returns whether the guard is valid. Does not block, no round trip.
            ///
            /// Once false, always false.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn is_held(&self) -> bool {
                self.holds.check().is_ok()
            }

            /// Returns how long the guard stays valid, or zero if it is lost.
            ///
            /// Does not block, no round trip. The value assumes that no renewal follows. A safety
            /// margin is subtracted.
            #[must_use = "a query changes nothing: use its answer"]
            pub fn remaining(&self) -> Duration {
                self.holds.remaining()
            }

            /// Blocks until the guard is not valid, or for `timeout`; returns whether it is lost.
            ///
            /// No round trip. Another thread can call this method through a reference.
            #[must_use = "only the return value says whether the lease is lost"]
            pub fn wait_lost(&self, timeout: Duration) -> bool {
                wait_lost(&*self.holds, clock::now() + timeout)
            }

            /// Registers a closure that a client calls once if the guard becomes invalid.
            ///
            /// The rules of [`Guard::on_lost`](crate::Guard::on_lost) apply. For a
            /// [`MultiLock`](crate::MultiLock), the first loss of a member calls `f`, on the thread
            /// `leasehold-events` of that member's client. For a [`RedLock`](crate::RedLock), the
            /// loss of the majority calls `f`, on the thread `leasehold-events` of one of the
            /// clients. After each loss on one server, the thread of its client counts the
            /// remaining holds. Once the release of a `RedLock` has begun, `f` is not called.
            pub fn on_lost(&self, f: impl FnOnce() + Send + 'static) {
                self.holds.on_lost(Box::new(f));
            }

            /// Sets each remaining lease to `lease`, unless more than `lease` remains already.
            ///
            /// Blocks until the servers answer, for one response time-out at most. One round trip
            /// for each member of a [`MultiLock`](crate::MultiLock), one after the other; one round
            /// trip to all servers of a [`RedLock`](crate::RedLock) at the same time.
            ///
            /// # Errors
            /// The errors of [`Guard::extend`](crate::Guard::extend). Some leases may then be
            /// extended and others not.
            pub fn extend(&self, lease: Duration) -> Result<()> {
                self.holds.extend(lease)
            }

            /// Gives up the guard and keeps the locks. Does not block, no round trip.
            ///
            /// The locks stay held until `unlock()` of the lock that gave the guard. See
            /// [`Guard::detach`](crate::Guard::detach).
            pub fn detach(self) {
                self.holds.detach();
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
