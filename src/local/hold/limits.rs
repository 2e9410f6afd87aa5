//! The limits of the present holder: the longest and the minimum hold.
//!
//! Both count from the grant or from the last hand-off, by the terms of the holder.

use std::mem;
use std::time::Duration;

use super::Hold;
use super::state::Phase;
use crate::error::LostReason;
use crate::util::clock::Moment;

impl Hold {
    /// Returns the moment at which the hold will be overdue, or is since.
    ///
    /// `None` without a limit, and once that is reported.
    pub(crate) fn next_limit(&self) -> Option<Moment> {
        let state = self.state.lock();
        state.possession.limit().filter(|_| !state.overdue_reported)
    }

    /// Returns, once, the time for which an overdue holder has had the hold.
    ///
    /// `None` if the hold is not overdue, and if it ended otherwise.
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
}
