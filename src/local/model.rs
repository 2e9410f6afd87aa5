//! What the models of `acquire/model` need to look at in a lock of this process.

use super::Local;

impl Local {
    /// Wakes the front, as its own clock does at the poll interval.
    pub(crate) fn ring(&self) {
        self.state.lock().wake_head();
    }

    /// Nobody is in line, nobody holds, and nothing is owed.
    pub(crate) fn assert_at_rest(&self) {
        let state = self.state.lock();
        assert!(state.queue.is_empty(), "somebody is left in line");
        assert!(state.handed.is_empty(), "a hold was passed to somebody who left");
        assert!(state.holds.iter().len() == 0, "a hold is left without an owner");
        assert!(state.background.is_empty(), "a release that has run is still owed");
    }
}
