//! Access for the models of `acquire/model` to the process state of a lock.

use super::Local;

impl Local {
    /// Wakes the head of the queue, as the end of its sleep does at the poll interval.
    pub(crate) fn wake_queue_head(&self) {
        self.state.lock().wake_head();
    }

    /// Asserts that the queue is empty, and that no hold and no release is left.
    pub(crate) fn assert_at_rest(&self) {
        let state = self.state.lock();
        assert!(state.queue.is_empty(), "a caller is left in the queue");
        assert!(state.holds.iter().len() == 0, "a hold is left without a guard");
        assert!(
            state.unanswered.is_empty(),
            "a release with a reply is still listed as unanswered"
        );
    }
}
