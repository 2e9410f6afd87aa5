//! Polls of semaphores, for the callers of this process that wait for leased permits.
//!
//! A poll reclaims expired permits, tells how many are free, and carries the claim of the oldest
//! caller of this process. The claim is due once the caller has waited for one poll interval: other
//! callers then leave permits to it, unless a caller of another process has waited longer. So
//! requests for few permits cannot delay a request for many without limit.
//!
//! Beside the regular polls, a semaphore is polled when its next permit expires.

use std::sync::Arc;
use std::time::Duration;

use super::Watchdog;
use super::batches::{self, BatchFailure};
use crate::kind::semaphore::{self, PermitPoll, PermitPollReply};
use crate::local::Local;
use crate::local::permit_queue::{PermitClaim, PermitsPolled};
use crate::local::permits::PermitCallers;
use crate::transport::pool::request::Request;
use crate::util::clock;

/// The keys that a semaphore counts for in a batch: its script does more than a renewal of a hold.
const WEIGHT: usize = 2;

/// A semaphore that is polled in this round.
#[derive(Debug)]
struct DuePoll {
    local: Arc<Local>,
    callers: Arc<PermitCallers>,
    claim: PermitClaim,
}

impl Watchdog {
    /// Plans a poll at the next expiry of a permit, which is after `left`.
    pub(crate) fn plan_poll_at_expiry(&self, local: &Arc<Local>, left: Option<Duration>) {
        if let Some(left) = left {
            self.plan_early_poll_after(local, left + Duration::from_millis(1));
        }
    }

    /// Asks about the semaphores among these names, and wakes callers for which there may be
    /// permits.
    pub(super) fn poll_permits(&self, locals: &[Arc<Local>]) {
        let mut due: Vec<_> = locals.iter().filter_map(|local| self.due_poll(local)).collect();
        let slot = |due: &DuePoll| self.slot_of(&due.local);
        let lifetime = self.settings.grant_lease;
        let call = |batch: &[DuePoll]| {
            let polls: Vec<_> = batch.iter().map(DuePoll::request).collect();
            semaphore::poll(&polls, lifetime)
        };
        batches::send_weighted(
            &self.router,
            &mut due,
            slot,
            |_| WEIGHT,
            call,
            |batch, outcome| {
                let reply = outcome.map_err(BatchFailure::into_error);
                match reply.and_then(|reply| semaphore::read_poll(reply.value)) {
                    Ok(answers) => self.apply_polls(batch, &answers),
                    Err(error) => {
                        batches::log_failed("semaphore poll", batch.len(), &error);
                        batch.iter().for_each(|due| due.callers.hint(1));
                    }
                }
            },
        );
    }

    /// Withdraws a claim that a poll may have set after the end of the call. Does not block.
    pub(crate) fn withdraw_claim(&self, local: &Local, claimant: &str) {
        let withdraw = semaphore::withdraw(local.name(), claimant);
        self.router.send_background(Request::background_once(withdraw), None);
    }

    /// Returns the poll of a semaphore; `None` if no caller waits for leased permits.
    fn due_poll(&self, local: &Arc<Local>) -> Option<DuePoll> {
        let callers = local.known_permits()?;
        let claim = callers.claim(clock::now(), self.settings.poll_interval)?;
        Some(DuePoll { local: Arc::clone(local), callers: Arc::clone(callers), claim })
    }

    fn apply_polls(&self, batch: &[DuePoll], answers: &[PermitPollReply]) {
        for (due, answer) in batch.iter().zip(answers) {
            let PermitPollReply { must_ask, others, left, capacity } = *answer;
            let news = PermitsPolled { must_ask, others, capacity };
            if !due.callers.polled(&due.claim, news) && due.claim.is_due {
                self.withdraw_claim(&due.local, &due.claim.claimant);
            }
            self.plan_poll_at_expiry(&due.local, left);
        }
    }
}

impl DuePoll {
    fn request(&self) -> PermitPoll<'_> {
        PermitPoll {
            name: self.local.name(),
            claimant: &self.claim.claimant,
            permits: self.claim.permits,
            waited: self.claim.waited,
            claims: self.claim.is_due,
        }
    }
}
