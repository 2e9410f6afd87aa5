//! The limit and the minimum of the present holder (`with_max_hold`, `with_min_hold`).
//!
//! Both are those of the holder's handle, and count from the grant or from the last hand-off.

use std::mem;
use std::time::Duration;

use super::Hold;
use super::state::Phase;
use crate::error::LostReason;
use crate::util::clock::Moment;

impl Hold {
    /// Returns the moment of the limit, past or future.
    ///
    /// `None` without a limit, and after the report that the hold is overdue.
    pub(crate) fn next_limit(&self) -> Option<Moment> {
        let state = self.state.lock();
        state.possession.limit().filter(|_| !state.overdue_reported)
    }

    /// Returns, once, the time for which the holder of an overdue hold has had it.
    ///
    /// `None` if the hold is not overdue, and after an end for another reason.
    pub(crate) fn take_overdue(&self, now: Moment) -> Option<Duration> {
        let mut state = self.state.lock();
        let is_over = !matches!(state.phase, Phase::Held | Phase::Lost(LostReason::HeldTooLong));
        if is_over || !state.is_overdue(now) || mem::replace(&mut state.overdue_reported, true) {
            return None;
        }
        Some(state.possession.since.until(now))
    }

    /// Returns the time from `now` to the end of the minimum of the present holder.
    pub(crate) fn minimum_left(&self, now: Moment) -> Duration {
        now.until(self.state.lock().possession.minimum_end())
    }

    /// Removes the minimum of the present holder, whose call has failed.
    pub(crate) fn waive_minimum(&self) {
        let mut state = self.state.lock();
        let waived = state.possession.terms.with_min_hold(Duration::ZERO);
        state.possession.terms = waived;
    }
}
