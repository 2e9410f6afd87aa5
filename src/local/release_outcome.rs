//! The meaning of a release's outcome, with and without a caller that waits for it.
//!
//! * Released: success.
//! * "Not held", while an earlier copy of the release may have released the hold before the
//!   deadline: success.
//! * "Not held" by a hold that lingered: success, because nobody had it.
//! * "Not held" in any other case: the hold was lost. So was it if the key was overwritten
//!   (`WRONGTYPE`).
//! * No reply by the end of the lease: an error for the log and the events. The lease ends by
//!   itself.
//!
//! In the last case, the release is still sent again if other holds can keep the hold alive
//! (`BackgroundTask::after_deadline`).

use std::sync::Arc;

use crate::error::{Error, LostReason, Result};
use crate::events::{Event, Released};
use crate::kind::once::CommitReply;
use crate::kind::rules::{self, ReleaseReply};
use crate::local::Local;
use crate::local::hold::Hold;
use crate::transport::pool::request::CallReply;
use crate::transport::reply::Reply;
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// Returns whether a release with such a reply may have ended the hold.
///
/// A refused script may have failed at its message.
fn may_have_released(reply: &Reply) -> bool {
    !matches!(rules::read_release(reply.clone()), Ok(ReleaseReply::NotHeld))
}

impl Local {
    /// Applies the outcome of a release, and reports it to the log and the events.
    ///
    /// Returns the error that `unlock` gives to its caller.
    pub(crate) fn finish_release(
        &self,
        hold: &Arc<Hold>,
        outcome: Result<CallReply>,
    ) -> Result<()> {
        self.release_settled(hold);
        let subscribers = match outcome {
            Ok(reply) => self.read_release_reply(hold, reply),
            Err(error) if error.code() == Some("WRONGTYPE") && !hold.is_idle() => {
                Err(self.found_no_hold(hold))
            }
            Err(error) => Err(error),
        };
        let subscribers = subscribers.map_err(|error| self.named(error));
        self.report_release(hold, subscribers.clone());
        subscribers.map(drop)
    }

    /// Applies the reply to a commit, which ends the hold as a release does. Returns the time of the
    /// result.
    pub(crate) fn finish_commit(
        &self,
        hold: &Arc<Hold>,
        outcome: Result<CommitReply>,
    ) -> Result<u64> {
        self.release_settled(hold);
        let committed = match outcome {
            Ok(CommitReply::Committed { subscribers, at }) => {
                Ok((subscribers.map(|number| self.heard_by(hold, number)), at))
            }
            Ok(CommitReply::NotHeld) => Err(self.found_no_hold(hold)),
            Err(error) => Err(error),
        };
        let committed = committed.map_err(|error| self.named(error));
        self.report_release(hold, committed.clone().map(|(subscribers, _)| subscribers));
        committed.map(|(_, at)| at)
    }

    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(self.name().given()))
    }

    /// Returns the number of subscribers that the release message reached.
    ///
    /// `None` if an earlier copy of the release had the reply with that number, and it got lost.
    fn read_release_reply(&self, hold: &Hold, reply: CallReply) -> Result<Option<u64>> {
        match rules::read_release(reply.value)? {
            ReleaseReply::Released(subscribers) => Ok(Some(self.heard_by(hold, subscribers))),
            // Nobody had the hold when it was lost.
            ReleaseReply::NotHeld if hold.is_idle() => Ok(None),
            ReleaseReply::NotHeld
                if reply.copies.may_have_reply(may_have_released)
                    && clock::now() < hold.last_deadline() =>
            {
                let read = |early: &Reply| rules::read_release(early.clone()).ok()?.subscribers();
                let early = reply.copies.replies().iter().find_map(read);
                Ok(early.map(|subscribers| self.heard_by(hold, subscribers)))
            }
            ReleaseReply::NotHeld => Err(self.found_no_hold(hold)),
        }
    }

    fn heard_by(&self, hold: &Hold, subscribers: u64) -> u64 {
        self.release_heard(hold.rules(), subscribers);
        subscribers
    }

    /// Reports the loss of a hold that its release did not find, and returns the error.
    fn found_no_hold(&self, hold: &Hold) -> Error {
        self.events().stats().series(|| hold.series_key()).release_found_no_hold();
        hold.lose_released();
        self.report_lost([hold]);
        let subject = hold.rules().kind().bare_subject();
        Error::lost(LostReason::Gone, format!("{subject} was lost before its release"))
    }

    pub(super) fn report_release(&self, hold: &Hold, subscribers: Result<Option<u64>>) {
        let (name, (kind, number)) = (self.name().given(), hold.kind_and_number());
        if let Err(error) = &subscribers {
            log::warn!(
                logger: LINES, target: log_target::LEASE,
                lock = &**name, kind:?, hold = number,
                error:% = error.with_causes(), server = error.server();
                "a release failed: {}", error.with_causes()
            );
        }
        self.events().emit_with(hold.settings().listener(), || {
            let (heard_by, error) = match subscribers {
                Ok(subscribers) => (subscribers, None),
                Err(error) => (None, Some(error)),
            };
            let (name, held, at) = (Arc::clone(name), hold.held_for(), clock::wall_time());
            Event::Released(Released { at, name, kind, hold: number, held, heard_by, error })
        });
    }
}
