//! The end of a guard's share of a hold, and the release of the hold.
//!
//! The release is queued in the same step that ends the hold (`local/`). `unlock` then waits for
//! the reply. A drop only has the release written; the next thread that uses the connection reads
//! the reply. `local/release_outcome.rs` gives both replies the same meaning.
//!
//! An early release, before the minimum of a hold (`Lock::with_min_hold`), keeps the lock taken
//! without a holder. The lock stays taken for the time that is left when the release is queued. A
//! repeated release has the time that is left at its own queueing, or the same time, so the lock is
//! never free before the minimum.
//!
//! A release without a reply is sent again until the lease is over. If other holds can keep the
//! state of this hold in Redis alive, the release is sent again until there is a reply.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::cancel::ResponseLimit;
use crate::error::{Error, ErrorKind, Result};
use crate::local::EndOutcome;
use crate::local::table::HoldShare;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::Target;
use crate::transport::pool::request::{CallReply, Failure, Request};
use crate::transport::pool::router::RoutedCall;
use crate::util::clock;

impl HoldHandle {
    /// Ends the share without a release: the hold counts it as detached.
    pub(crate) fn detach(mut self) {
        self.ended = true;
        self.context.local.detach(&self.hold);
    }

    /// Ends the share; the release of the last share waits for its reply.
    pub(crate) fn unlock(self) -> Result<()> {
        let response_limit = self.response_limit();
        self.begin_unlock(None).finish(response_limit)
    }

    /// Ends a detached share and waits for the reply to its release.
    pub(crate) fn unlock_detached(
        self,
        share: HoldShare,
        response_limit: ResponseLimit,
    ) -> Result<()> {
        self.begin(share, None).finish(response_limit)
    }

    /// Ends the share and queues the release if it was the last share.
    ///
    /// The release goes to the connection of `other`, if both belong to one client. Does no I/O.
    pub(crate) fn begin_unlock(self, other: Option<&PendingRelease>) -> PendingRelease {
        let same_client =
            other.filter(|other| Arc::ptr_eq(&other.handle.context.engine, &self.context.engine));
        let near = same_client.and_then(|other| other.queued.as_ref());
        let near = near.map(|queued| queued.connection);
        self.begin(HoldShare::Guard, near)
    }

    fn begin(mut self, share: HoldShare, near: Option<ConnectionId>) -> PendingRelease {
        self.ended = true;
        let router = &self.context.engine.router;
        let mut queued = None;
        let outcome = self.context.local.end(&self.hold, share, clock::now, || {
            let late = self.hold.late_connection();
            let target = late.map_or(Target::prefer(near), Target::Only);
            queued.insert(router.queue(self.release(), target)).connection
        });
        self.after_end(&outcome);
        PendingRelease { handle: self, outcome, queued }
    }

    /// Tells the watchdog if the hold has ended in this process; releases a lost hold.
    pub(super) fn after_end(&self, outcome: &EndOutcome) {
        if matches!(outcome, EndOutcome::Queued | EndOutcome::Lost) {
            self.context.engine.watchdog.unwatch(&self.hold);
        }
        if matches!(outcome, EndOutcome::Lost) {
            self.watched().release_at_server(&self.context.engine.router);
        }
    }

    /// Waits for the reply to a queued release.
    ///
    /// Without a reply the release goes on as a background request, and the caller gets the error.
    fn wait_for(&self, pending: RoutedCall, response_limit: ResponseLimit) -> Result<()> {
        let _call = self.context.engine.begin_call();
        let router = &self.context.engine.router;
        let (connection, outcome) =
            router.wait(pending, &self.context.engine.limit(response_limit));
        match &outcome {
            Err(failure) if !failure.error.is_final() || failure.error.is_closed() => {
                let again = self.background_release().maybe_duplicate(failure.is_written());
                router.send_background(again, Some(connection));
                return Err(self.with_lock_name(failure.error.clone()));
            }
            Ok(reply) => self.repeat_release_behind_late_copy(reply, connection),
            Err(_) => {}
        }
        self.context.local.finish_release(&self.hold, outcome.map_err(Failure::into_error))
    }

    /// Has the release follow an acquire command that may run after this reply.
    pub(super) fn repeat_release_behind_late_copy(
        &self,
        reply: &CallReply,
        connection: ConnectionId,
    ) {
        let effect = self.effect();
        if self.hold.late_copy().is_some_and(|copy| reply.may_precede(&copy, effect)) {
            let router = &self.context.engine.router;
            router.repeat(self.release(), connection, reply.sent + effect);
        }
    }

    fn release(&self) -> Call {
        let (rules, name, now) = (self.hold.rules(), self.context.local.name(), clock::now());
        let minimum_left = self.hold.minimum_left(now);
        self.context.engine.watchdog.keep_record_until(now + minimum_left);
        let may_queue_late = self.hold.late_copy().is_some() && rules.queues_in_redis();
        if may_queue_late && minimum_left.is_zero() {
            // A late acquire command would take a place in the queue, which a release ignores.
            // Before the minimum of the hold this place stays until its waiter timeout.
            let waiter_timeout = self.context.engine.settings.fair_waiter_timeout;
            return rules.undo(name, self.hold.owner(), Some(waiter_timeout));
        }
        self.hold.release_call(name, now)
    }

    pub(super) fn background_release(&self) -> Request {
        self.watched().background_release(self.release(), self.effect())
    }

    /// Returns how long a hold lasts that a late copy of the acquire command takes, or its place in
    /// a queue in Redis.
    fn effect(&self) -> Duration {
        let fair_waiter_timeout = self.context.engine.settings.fair_waiter_timeout;
        let place = self.hold.rules().queues_in_redis().then_some(fair_waiter_timeout);
        self.hold.lease().max(place.unwrap_or_default())
    }
}

impl Drop for HoldHandle {
    /// Ends the share without waiting: the release is a background request.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let router = &self.context.engine.router;
        let mut queued = None;
        let outcome = self.context.local.end(&self.hold, HoldShare::Guard, clock::now, || {
            let late = self.hold.late_connection();
            *queued.insert(router.submit(self.background_release(), late))
        });
        self.after_end(&outcome);
        if let Some(connection) = queued {
            router.dispatch(connection);
        }
    }
}

/// A share that has ended in this process, and the release of the last share.
#[derive(Debug)]
#[must_use = "the release is sent only by flush() or finish()"]
pub(crate) struct PendingRelease {
    handle: HoldHandle,
    outcome: EndOutcome,
    queued: Option<RoutedCall>,
}

impl PendingRelease {
    /// Writes the release if that does not block.
    pub(crate) fn flush(&self) {
        if let Some(queued) = &self.queued {
            self.handle.context.engine.router.flush(queued.connection);
        }
    }

    /// Waits for the reply to the release. Returns within the limit.
    pub(crate) fn finish(self, response_limit: ResponseLimit) -> Result<()> {
        match (self.outcome, self.queued) {
            (EndOutcome::Nested, _) => self.handle.check(),
            (EndOutcome::HandedOff | EndOutcome::Lingers, _) => Ok(()),
            (EndOutcome::Queued, Some(pending)) => self.handle.wait_for(pending, response_limit),
            (EndOutcome::Lost | EndOutcome::Queued, _) => Err(self.handle.lost()),
            (EndOutcome::NotHeld, _) => Err(self.handle.with_lock_name(not_held())),
        }
    }
}

/// Returns the error of an `unlock` without a detached hold.
pub(crate) fn not_held() -> Error {
    Error::new(ErrorKind::NotHeld, "there is no detached hold of this lock to end")
}
