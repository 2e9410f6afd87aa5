//! The closures that a loss of the hold calls.
//!
//! Queueing and dropping a [`LossCall`] run no code of the program, so both happen under the mutex
//! of the hold. That keeps the order of the registrations.

use crate::events::LossCall;
use crate::local::hold::Hold;
use crate::local::hold::state::Phase;

impl Hold {
    /// Registers a call for the loss of the hold. Queues the call at once after a reported loss.
    ///
    /// A hand-off, and a release without a loss, drop the call.
    pub(crate) fn on_lost(&self, call: LossCall) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Lost(_) if state.loss_reported => call.queue(),
            Phase::Held | Phase::Lost(_) => state.possession.on_lost.push(call),
            Phase::Releasing | Phase::Gone => {}
        }
    }

    /// Queues the registered calls. The caller has just reported the loss of the hold.
    ///
    /// Each loss is reported once, a loss in the reply to the release included.
    pub(crate) fn note_loss_reported(&self) {
        let mut state = self.state.lock();
        state.loss_reported = true;
        state.possession.on_lost.drain(..).for_each(LossCall::queue);
    }
}
