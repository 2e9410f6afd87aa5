//! A guard's share of a hold: queries about the hold, and extensions of its lease.
//!
//! The end of a share is in `release.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::cancel::{Limit, ResponseLimit};
use crate::config::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::local::Local;
use crate::local::hold::{self, Hold, HoldStatus};
use crate::transport::pool::Target;
use crate::transport::topology::health::ServerHealth;
use crate::util::clock;
use crate::util::executor::Executor;
use crate::watchdog::{self, WatchedHold};

/// A lock together with its client, shared by the guards of the lock.
#[derive(Debug)]
pub(crate) struct LockContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) local: Arc<Local>,
}

impl LockContext {
    /// Returns the health of the server that serves the lock.
    pub(crate) fn health(&self) -> Arc<ServerHealth> {
        self.engine.router.health_of(self.local.name().key())
    }

    /// Returns the error of the lock's server if the server pauses after a failure and no
    /// connection to it is open.
    ///
    /// A call that repeats its attempts sends none then, so that many calls that wait for one
    /// server send few attempts.
    pub(crate) fn pause_error(&self) -> Option<Error> {
        self.engine.router.pause_error(self.local.name().key())
    }
}

/// A guard's share of a hold. Its drop ends the share and does not wait for a reply.
#[derive(Debug)]
pub(crate) struct HoldHandle {
    pub(super) context: Arc<LockContext>,
    pub(super) hold: Arc<Hold>,
    token: u64,
    /// Whether the share has ended, so that the drop has nothing to do.
    pub(super) ended: bool,
}

impl HoldHandle {
    pub(crate) fn new(context: Arc<LockContext>, hold: Arc<Hold>) -> HoldHandle {
        let token = hold.token();
        HoldHandle { context, hold, token, ended: false }
    }

    /// Returns the fencing token of this share; zero if the kind has no tokens.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Returns the name of the lock as the program gave it.
    pub(crate) fn name(&self) -> &str {
        self.context.local.name().given()
    }

    /// Returns the hold in the form that the watchdog keeps.
    pub(crate) fn watched(&self) -> WatchedHold {
        WatchedHold { local: Arc::clone(&self.context.local), hold: Arc::clone(&self.hold) }
    }

    /// Returns whether the hold is valid. Reports its loss if this call notices it first.
    pub(crate) fn is_held(&self) -> bool {
        self.context.local.is_valid(&self.hold, clock::now())
    }

    /// Returns an error if the hold is lost.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_held() { Ok(()) } else { Err(self.lost()) }
    }

    /// Returns the time to the deadline of the lease.
    pub(crate) fn remaining(&self) -> Duration {
        self.hold.remaining(clock::now())
    }

    /// Blocks for at most `span` until the hold is lost, and returns whether it is.
    pub(crate) fn wait_lost(&self, span: Duration) -> bool {
        let end = clock::now() + span;
        while self.is_held() {
            if end <= clock::now() {
                return false;
            }
            self.hold.wait(end);
        }
        true
    }

    /// Registers `f` for the loss of the hold. The events thread calls `f`, at once after a loss.
    ///
    /// Drops `f` in a forked child, and if the system cannot start the thread.
    pub(crate) fn on_lost(&self, f: impl FnOnce() + Send + 'static) {
        let LockContext { engine, local } = &*self.context;
        if engine.router.check_process().is_err() {
            return;
        }
        if let Some(call) = engine.events.loss_call(local.name().given(), Box::new(f)) {
            self.hold.on_lost(call);
            // Reports a loss that was not noticed yet.
            self.is_held();
        }
    }

    pub(super) fn lost(&self) -> Error {
        let text = format!("{} was lost", self.hold.rules().kind().bare_subject());
        self.with_lock_name(Error::lost(self.hold.lost_reason(), text))
    }

    pub(crate) fn with_lock_name(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(self.context.local.name().given()))
    }

    /// Returns the response limit of a call that begins now.
    pub(crate) fn response_limit(&self) -> ResponseLimit {
        self.context.engine.response_limit()
    }

    /// Returns the client's threads for work that may block.
    pub(crate) fn executor(&self) -> Arc<Executor> {
        Arc::clone(&self.context.engine.executor)
    }

    /// Sets the lease to `lease` from now, unless the present lease lasts longer.
    ///
    /// Returns within the limit. One round trip.
    pub(crate) fn extend(&self, lease: Duration, response_limit: ResponseLimit) -> Result<()> {
        self.extend_within(lease, &self.context.engine.limit(response_limit))
    }

    /// Extends the lease as [`HoldHandle::extend`] does, within any limit.
    pub(crate) fn extend_within(&self, lease: Duration, limit: &Limit<'_>) -> Result<()> {
        let extended = checked_lease(lease).and_then(|lease| self.try_extend(lease, limit));
        extended.map_err(|error| self.with_lock_name(error))
    }

    fn try_extend(&self, lease: Duration, limit: &Limit<'_>) -> Result<()> {
        self.check()?;
        let LockContext { engine, .. } = &*self.context;
        engine.watchdog.keep_record_for(lease);
        let router = &engine.router;
        // After a topology change neither a yes nor a no of the former server counts.
        let outcome = router.until_current(|| {
            let extension = watchdog::extension_call(&self.watched(), lease);
            router.call(extension, Target::only(self.hold.late_connection()), limit)
        });
        // Without a reply that says otherwise, the server may have extended the lease.
        let unknown = |_: &Error| self.hold.note_possible_extension(clock::now(), lease);
        let (reply, _) = outcome.inspect_err(unknown)?;
        let sent = reply.sent;
        if !watchdog::is_extended(reply).inspect_err(unknown)? {
            self.watched().lose(router);
            return Err(self.lost());
        }
        match self.hold.extend(sent, clock::now(), lease) {
            HoldStatus::Held => Ok(()),
            HoldStatus::Over { newly_lost } => {
                self.watched().end_lost(newly_lost, router);
                Err(self.lost())
            }
        }
    }

    /// Sets the timer of the hold to the limit of its new holder, after a hand-off.
    ///
    /// The timer may have been set for a later moment.
    pub(crate) fn watch_limit(&self) {
        if self.hold.next_limit().is_some() {
            self.context.engine.watchdog.watch(self.watched());
        }
    }

    /// Ends the share of a call that failed, whose caller never had the hold: without a minimum.
    pub(super) fn discard(self) {
        self.hold.waive_minimum();
    }

    /// Has the watchdog renew the hold from now on.
    pub(crate) fn keep_renewed(&self) {
        if self.hold.keep_renewed() {
            self.context.engine.watchdog.unwatch(&self.hold);
            self.context.engine.watchdog.watch(self.watched());
        }
    }

    /// Returns whether the hold has a fixed lease that ends before a new `lease` would.
    pub(crate) fn needs_extension(&self, lease: Duration) -> bool {
        let now = clock::now();
        let deadline = now + self.hold.remaining(now);
        !self.hold.has_renewed_lease() && deadline < hold::deadline(now, lease)
    }
}

/// Returns the lease, at most the longest one; an error if it is too short.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    if lease < SHORTEST_LEASE {
        Err(Error::configuration("a lease must be at least 10 ms long"))
    } else {
        Ok(lease.min(LONGEST_LEASE))
    }
}
