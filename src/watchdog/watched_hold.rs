//! A hold together with the state of its lock, as the watchdog stores it.

use std::sync::Arc;

use crate::command::script::Script;
use crate::local::Local;
use crate::local::hold::Hold;
use crate::pool::request::{BackgroundTask, Request};
use crate::pool::router::Router;
use crate::util::clock;

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
        let undo = self.hold.undo_call(self.local.name());
        let deadline = self.hold.server_expiry_bound().max(clock::now() + self.hold.lease());
        let task = BackgroundTask::new(None, deadline)
            .outlives_lease(self.hold.rules().outlives_its_lease())
            .undoes(self.hold.lease(), self.hold.late_copy());
        let request = Request::background(undo, task);
        router.send_background(request, self.hold.late_connection());
    }
}
