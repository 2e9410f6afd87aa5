//! The wait for permits of a plain semaphore.

use crate::count::wait::{self, Answer, Question};
use crate::count::{CountCall, CountChange, CountRequest};
use crate::error::Result;
use crate::kind::rules::ListensTo;

/// The request of one call for permits. The same request is repeated until it takes them, so a copy
/// that takes them late is found by the next one, or undone at the end of the call.
struct TakeQuestion<'a>(CountRequest<'a>);

impl CountCall<'_> {
    /// Takes permits, all or none. Returns `false` if the patience of the call ends first.
    pub(crate) fn take_permits(&self, permits: u32) -> Result<bool> {
        let request = CountRequest::new(self.context, CountChange::Take(permits));
        wait::wait_for(self, TakeQuestion(request))
    }
}

impl Question for TakeQuestion<'_> {
    const LISTENS_TO: ListensTo = ListensTo::Permits;

    fn ask(&mut self, call: &CountCall<'_>) -> Result<Answer> {
        let reply = self.0.take(&call.limit())?;
        Ok(Answer { is_met: reply.is_taken, sent: reply.sent })
    }
}
