//! The warning of a wait for an owned guard that the waiting thread took.
//!
//! If the thread has sent the guard to another one, that one can end the wait. If it has not, only
//! the deadline of the call does. The library cannot know which, so the call waits, and a line of
//! the log names the lock.

use std::time::Duration;

use crate::events::Kind;
use crate::util::clock::Moment;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The length of a wait after which the log has the warning.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// The warning of one call.
#[derive(Debug, Default)]
pub(crate) struct OwnGuardWarning {
    /// Whether the call has warned, or does not wait for a guard that its thread took.
    is_settled: bool,
}

impl OwnGuardWarning {
    /// Logs the warning once it is due. Returns the moment of the next check.
    ///
    /// `awaits` returns whether the call waits for an owned guard that its thread took. Once this
    /// is false it stays so, because the thread takes no further guards during the call.
    pub(crate) fn check(
        &mut self,
        started: Moment,
        now: Moment,
        deadline: Moment,
        awaits: impl FnOnce() -> bool,
        (name, kind): (&str, Kind),
    ) -> Moment {
        let due = started + LONG_WAIT;
        if self.is_settled || !awaits() {
            self.is_settled = true;
            return Moment::END;
        }
        if now < due {
            return due;
        }
        self.is_settled = true;
        let end = if deadline == Moment::END { "for ever" } else { "until its deadline" };
        log::warn!(
            logger: LINES, target: log_target::LEASE, lock = name, kind:?;
            "a call for the {kind} {name:?} waits for an owned guard that its own thread took: \
             it waits {end} if that thread still has the guard"
        );
        Moment::END
    }
}
