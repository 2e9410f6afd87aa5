//! The warning of a wait for an owned guard that the waiting thread took.
//!
//! If the thread has sent the guard to another one, that one can end the wait. If it has not, only
//! the deadline of the call does. The library cannot know which, so the call waits, and a line of
//! the log names the lock. A call for an owned guard gets the line later: a thread that passes such
//! guards on waits for them as a rule.

use std::time::Duration;

use crate::events::Kind;
use crate::util::clock::Moment;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The length of a wait after which the log has the warning.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// The same for a call for an owned guard.
const LONG_WAIT_OF_OWNED: Duration = Duration::from_secs(30);

/// The warning of one call.
#[derive(Debug, Default)]
pub(crate) struct OwnGuardWarning {
    /// Whether the call has warned, or does not wait for a guard that its thread took.
    is_settled: bool,
}

impl OwnGuardWarning {
    /// Logs the warning once it is due. Returns the moment of the next check.
    ///
    /// `owned` tells whether the call is for an owned guard, and `awaits` returns whether the call waits for an owned guard that its thread took. Once this
    /// is false it stays so, because the thread takes no further guards during the call.
    pub(crate) fn check(
        &mut self,
        started: Moment,
        now: Moment,
        deadline: Moment,
        owned: bool,
        awaits: impl FnOnce() -> bool,
        (name, kind): (&str, Kind),
    ) -> Moment {
        let due = started + if owned { LONG_WAIT_OF_OWNED } else { LONG_WAIT };
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    #[test]
    fn a_call_for_an_owned_guard_is_warned_of_later() {
        for (owned, due) in [(false, START + LONG_WAIT), (true, START + LONG_WAIT_OF_OWNED)] {
            let mut warning = OwnGuardWarning::default();
            let mut check = |now, awaits| {
                warning.check(START, now, Moment::END, owned, || awaits, ("a", Kind::Plain))
            };
            assert_eq!(check(START, true), due);
            assert_eq!(check(due.before(Duration::from_nanos(1)), true), due);
            assert_eq!(check(due, true), Moment::END, "it warns");
            assert_eq!(check(due, true), Moment::END, "once");
        }
        let mut warning = OwnGuardWarning::default();
        let next = warning.check(START, START, Moment::END, true, || false, ("a", Kind::Plain));
        assert_eq!(next, Moment::END, "the call waits for others");
    }
}
