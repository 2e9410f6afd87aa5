//! A hold together with the state of its lock, as the watchdog stores it.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::local::Local;
use crate::local::hold::Hold;
use crate::transport::call::Call;
use crate::transport::pool::request::{BackgroundTask, CallReply, Request};
use crate::transport::pool::router::Router;
use crate::transport::script::Script;
use crate::util::log_lines::LINES;
use crate::util::{clock, log_target};

/// A hold together with the state of its lock.
#[derive(Clone, Debug)]
pub(crate) struct WatchedHold {
    pub(crate) local: Arc<Local>,
    pub(crate) hold: Arc<Hold>,
}

impl WatchedHold {
    pub(super) fn renewal_script(&self) -> &'static Script {
        self.hold.rules().renewal()
    }

    /// Returns the background request that releases the hold, for a caller that does not wait.
    ///
    /// `effect` is the time for which a late copy of the acquire command would have an effect.
    pub(crate) fn background_release(&self, release: Call, effect: Duration) -> Request {
        let WatchedHold { local, hold } = self.clone();
        let task = BackgroundTask::new(hold.server_expiry_bound())
            .outlasts_deadline(hold.rules().outlives_its_lease())
            .undoes(effect, hold.late_copy())
            // The log and the events have the error of the outcome; no caller waits for it.
            .then(move |outcome| drop(local.finish_release(&hold, outcome)));
        Request::background(release, task)
    }

    /// Ends a hold that the server no longer has, and gives back what the server has of it.
    pub(crate) fn lose(&self, router: &Router) {
        self.local.lose(&self.hold);
        self.release_at_server(router);
    }

    /// Ends a hold past its deadline: reports a new loss, and releases the hold.
    pub(crate) fn end_lost(&self, newly_lost: bool, router: &Router) {
        self.local.report_lost(newly_lost.then_some(&*self.hold));
        self.release_at_server(router);
    }

    /// Releases a lost hold that the server may keep for another lease. Does not block.
    pub(crate) fn release_at_server(&self, router: &Router) {
        if !self.hold.take_may_still_be_held(clock::now()) {
            return;
        }
        let undo = self.hold.rules().undo(self.local.name(), self.hold.owner(), None);
        let deadline = self.hold.server_expiry_bound().max(clock::now() + self.hold.lease());
        let task = BackgroundTask::new(deadline)
            .outlasts_deadline(self.hold.rules().outlives_its_lease())
            .undoes(self.hold.lease(), self.hold.late_copy())
            .then(cleaned_up);
        let request = Request::background(undo, task);
        router.send_background(request, self.hold.late_connection());
    }
}

/// Logs the error of a request that ends what nobody in this process holds.
pub(crate) fn cleaned_up(outcome: Result<CallReply>) {
    if let Err(error) = outcome {
        log::warn!(
            logger: LINES, target: log_target::LEASE,
            error:% = error.with_causes(), server = error.server();
            "a clean-up failed; a lock may stay held until its lease ends: {}",
            error.with_causes()
        );
    }
}
