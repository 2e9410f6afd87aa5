//! The wait for permits of a plain semaphore.
//!
//! A call that waits joins the callers for permits of this process before its first question
//! (`local/permit_queue.rs`), so it misses no message between a question and its sleep.

use std::sync::Arc;

use crate::acquire::LockContext;
use crate::count::wait::{self, Answer, AwaitedCount};
use crate::count::{CountCall, CountChange, CountRequest};
use crate::error::Result;
use crate::local::mailbox::Mailbox;
use crate::local::permit_queue::PermitWaiter;
use crate::local::permits::PermitPlace;
use crate::util::clock::{self, Moment};
use crate::util::sync::Parker;
use crate::wait::schedule::RetrySchedule;

/// The request of one call for permits. The same request is repeated until it takes them, so a copy
/// that takes them late is found by the next one, or undone at the end of the call.
struct PermitWait<'a> {
    request: CountRequest<'a>,
    /// The place among the callers of this process; `None` for a call that does not wait.
    place: Option<PermitPlace>,
    mailbox: Arc<Mailbox>,
}

impl CountCall<'_> {
    /// Takes permits, all or none. Returns `false` if the patience of the call ends first.
    pub(crate) fn take_permits(&self, permits: u32) -> Result<bool> {
        let LockContext { engine, local } = &**self.context;
        let (since, mailbox) = (clock::now(), Mailbox::mine());
        let place = if self.waits() {
            let mailbox = Arc::clone(&mailbox);
            let waiter = PermitWaiter { permits, since, mailbox, claimant: None };
            Some(local.permits(&engine.channels).join(waiter))
        } else {
            None
        };
        let request = CountRequest::new(self.context, CountChange::Take(permits));
        wait::wait_for(self, PermitWait { request, place, mailbox })
    }
}

impl AwaitedCount for PermitWait<'_> {
    fn begin(&mut self) {
        if let Some(place) = &self.place {
            place.begin_question();
        }
    }

    fn ask(&mut self, call: &CountCall<'_>) -> Result<Answer> {
        let reply = self.request.take(&call.limit())?;
        if let Some(place) = &self.place {
            place.end_question();
        }
        if reply.is_taken {
            // Leaves before the offer, which would count its own request again.
            self.place = None;
        }
        if let Some(callers) = call.context.local.known_permits() {
            callers.offer(reply.left);
        }
        Ok(Answer { is_met: reply.is_taken, sent: reply.sent })
    }

    fn listen(&mut self, call: &CountCall<'_>, _: &Arc<Parker>, _: &mut RetrySchedule) {
        if let Some(callers) = call.context.local.known_permits() {
            call.context.engine.subscribe(callers.channel());
        }
    }

    fn may_be_met_late(&self) -> bool {
        self.request.may_run_late()
    }

    fn is_due(&self, now: Moment, schedule: &mut RetrySchedule) -> bool {
        schedule.is_due(now, None) || self.mailbox.must_ask()
    }
}
