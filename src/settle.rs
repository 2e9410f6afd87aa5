//! What the answer to the release of a hold means, whether somebody waits for it or not:
//! * released: good;
//! * "not held", and an earlier copy of the release may have run: that one released
//!   it, if the deadline still lay ahead; else nobody knows, and it counts as lost;
//! * "not held" without such doubt: somebody took the lock away; it was lost;
//! * no answer, and it is not worth sending any more: the end of the lease will do.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::{Event, LostReason, Released};
use crate::lease::Lease;
use crate::local::Local;
use crate::protocol::{self, Freed};
use crate::request::{Answer, Settle};
use crate::thread;
use crate::time;

impl Settle for Local {
    fn settle(&self, hold: &Arc<Lease>, outcome: Result<Answer>) {
        // Nobody waits for it; the log and the events have been told.
        let _ = self.conclude(hold, outcome);
    }
}

impl Local {
    /// The release of that hold was answered, or will not be sent again.
    pub(crate) fn conclude(&self, hold: &Arc<Lease>, outcome: Result<Answer>) -> Result<()> {
        self.settled(hold);
        let told = outcome.and_then(|answer| self.read(hold, answer));
        self.tell_released(told.clone());
        told.map(drop)
    }

    /// How many subscribers the release was told to, if it was.
    fn read(&self, hold: &Lease, answer: Answer) -> Result<Option<u64>> {
        match protocol::freed(answer.reply)? {
            Freed::Told(told) => {
                self.told_to(hold.rules(), told);
                Ok(Some(told))
            }
            Freed::NotHeld if answer.doubtful && time::now() < hold.held_until() => Ok(None),
            Freed::NotHeld => {
                self.tell_lost(1, LostReason::Gone);
                Err(Error::lost("the lock was not held any more when it was released"))
            }
        }
    }

    fn tell_released(&self, told: Result<Option<u64>>) {
        if let Err(error) = &told {
            let name = self.name().given();
            thread::say(|| log::warn!("the release of the lock {name:?} failed: {error}"));
        }
        self.tell(|| {
            let name = Arc::clone(self.name().given());
            let (heard_by, error) = told.map_or_else(|e| (None, Some(e)), |heard| (heard, None));
            Event::Released(Released { name, heard_by, error })
        });
    }
}
