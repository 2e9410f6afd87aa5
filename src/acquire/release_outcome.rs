//! What the answer to the release of a hold means, whether somebody waits for it or not:
//! * released: good;
//! * "not held", and an earlier copy of the release may have run: that one released
//!   it, if the deadline still lay ahead; else nobody knows, and it counts as lost;
//! * "not held" without such doubt: somebody took the lock away; it was lost;
//! * no answer before the end of the lease: that will do, or the release is sent on for a
//!   hold whose lease others keep alive (`BackgroundTask::after_lease`).

use std::sync::Arc;

use crate::error::{Error, LostReason, Result};
use crate::events::{Event, Released};
use crate::kind::rules::{self, ReleaseReply};
use crate::local::Local;
use crate::local::hold::Hold;
use crate::pool::request::{Answer, OnOutcome};
use crate::util::clock;
use crate::util::threads;

/// A release that nobody waits for.
pub(crate) struct BackgroundRelease {
    pub(crate) local: Arc<Local>,
    pub(crate) hold: Arc<Hold>,
}

impl OnOutcome for BackgroundRelease {
    fn settle(&self, outcome: Result<Answer>) {
        // The log and the events have been told.
        let _ = self.local.conclude(&self.hold, outcome);
    }
}

impl Local {
    /// The release of that hold was answered, or will not be sent again.
    pub(crate) fn conclude(&self, hold: &Arc<Hold>, outcome: Result<Answer>) -> Result<()> {
        self.release_settled(hold);
        let told = outcome.and_then(|answer| self.read(hold, answer));
        let told = told.map_err(|error| error.with_lock_name(Arc::clone(self.name().given())));
        self.tell_released(hold, told.clone());
        told.map(drop)
    }

    /// How many subscribers the release was told to, if it was.
    fn read(&self, hold: &Hold, answer: Answer) -> Result<Option<u64>> {
        match rules::read_release(answer.reply)? {
            ReleaseReply::Told(told) => {
                self.release_heard(hold.rules(), told);
                Ok(Some(told))
            }
            ReleaseReply::NotHeld
                if answer.maybe_duplicate && clock::now() < hold.last_deadline() =>
            {
                Ok(None)
            }
            ReleaseReply::NotHeld => {
                self.report_lost([hold], LostReason::Gone);
                Err(Error::lost(LostReason::Gone, "the lock was lost before its release"))
            }
        }
    }

    fn tell_released(&self, hold: &Hold, told: Result<Option<u64>>) {
        if let Err(error) = &told {
            threads::say(|| log::warn!("a release failed: {error}"));
        }
        self.emit(|| {
            let name = Arc::clone(self.name().given());
            let (heard_by, error) = told.map_or_else(|e| (None, Some(e)), |heard| (heard, None));
            let ((kind, hold), held, at) =
                (hold.kind_and_number(), hold.held_for(), clock::wall_time());
            Event::Released(Released { at, name, kind, hold, held, heard_by, error })
        });
    }
}
