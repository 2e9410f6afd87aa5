//! [`Permit`]: one or more permits of a [`Semaphore`](crate::Semaphore).

use std::fmt;
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::error::Result;
use crate::lock::guard::lease_queries;

/// One or more permits of a [`Semaphore`](crate::Semaphore); gives them back when dropped.
///
/// Belongs to no thread: a permit can be sent to another thread and dropped there. The watchdog
/// renews the lease until the permit is dropped or the client is closed, unless the semaphore has a
/// [fixed lease](crate::Semaphore::with_lease). Permits that one call took have one lease and are
/// given back together.
///
/// While [`is_held`](Permit::is_held) returns true, the server counts the permits as in use, under
/// the conditions of the [page on guarantees](crate::_documentation::guarantees).
///
/// # Drop
/// The drop queues the release and does not wait for the server. The outcome goes to
/// [`Events::released`](crate::Events::released), and to the log if the release failed.
/// [`release`](Permit::release) waits for the outcome and returns it. The rules of
/// [`Guard`](crate::Guard#drop) apply.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let permit = client.semaphore("jobs").with_permits(20).acquire()?;
/// let worker = std::thread::spawn(move || permit.release());
/// # let _ = worker.join();
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a permit that is dropped at once is given back at once"]
pub struct Permit {
    handle: HoldHandle,
}

impl Permit {
    pub(super) fn new(handle: HoldHandle) -> Permit {
        Permit { handle }
    }

    /// Gives the permits back and waits for the server to confirm.
    ///
    /// Blocks for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// - [`is_lost`](crate::Error::is_lost) if one of the permits was lost before: one caller more
    ///   than the capacity may have worked. The other permits are given back.
    /// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout)
    ///   or [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server did not answer. The
    ///   client then repeats the release in the background until the lease has expired.
    /// - [`is_server`](crate::Error::is_server) if the server refuses the release.
    /// - [`is_closed`](crate::Error::is_closed) if the client is closed during the call;
    ///   [`is_configuration`](crate::Error::is_configuration) in a forked child.
    pub fn release(self) -> Result<()> {
        self.handle.unlock()
    }

    /// Returns the number of permits. Does not block, no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn count(&self) -> u32 {
        self.handle.hold().owner().permits().map_or(1, |permits| permits.count())
    }

    /// Returns the [slot](crate::Semaphore::with_slots) of the permit; of several the first one.
    ///
    /// `None` if the semaphore gives no slots. Does not block, no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn slot(&self) -> Option<u32> {
        self.slots().first().copied()
    }

    /// Returns the [slots](crate::Semaphore::with_slots) of the permits, one for each.
    ///
    /// Empty if the semaphore gives no slots. Does not block, no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn slots(&self) -> &[u32] {
        self.handle.hold().slots()
    }

    lease_queries!();

    /// Registers a closure that the client calls once if the permits are lost.
    ///
    /// Does not block, no round trip. The permits are lost together: if one of them is gone, the
    /// client reports all as lost. The thread `leasehold-events` calls `f`; the rules of
    /// [`Guard::on_lost`](crate::Guard::on_lost) apply.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.semaphore("jobs").with_permits(20).acquire()?;
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let stops = Arc::clone(&stop);
    /// permit.on_lost(move || stops.store(true, Ordering::Relaxed));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn on_lost(&self, f: impl FnOnce() + Send + 'static) {
        self.handle.on_lost(f);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("name", &self.handle.name())
            .field("owner", self.handle.hold().owner())
            .field("count", &self.count())
            .field("slots", &self.slots())
            .field("remaining", &self.handle.remaining())
            .finish()
    }
}
