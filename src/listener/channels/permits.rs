//! The callers of a channel that wait for permits: their [queue](crate::listener::permit_queue)
//! under the mutex of the channel, and their places in it.

use std::sync::Arc;
use std::time::Duration;

use crate::listener::channels::Channel;
use crate::listener::permit_queue::{PermitClaim, PermitTicket, PermitWaiter, PermitsPolled};
use crate::util::clock::{self, Moment};

impl Channel {
    /// Adds a caller to the callers that wait for permits, until the result is dropped.
    ///
    /// Called before the first question of the caller.
    pub(crate) fn join(self: &Arc<Channel>, waiter: PermitWaiter) -> PermitPlace {
        let ticket = self.state.lock().permits.join(waiter);
        PermitPlace { channel: Arc::clone(self), ticket }
    }

    /// Wakes the callers that may take some of these permits, which a reply reports as free.
    pub(crate) fn offer(&self, permits: u32) {
        self.state.lock().permits.offer(permits);
    }

    /// Wakes a caller that asks how many permits are free; more than this number may be.
    pub(crate) fn hint(&self, permits: u32) {
        self.state.lock().permits.hint(permits);
    }

    /// Returns whether callers wait for permits without a lease.
    pub(crate) fn awaits_plain_permits(&self) -> bool {
        self.state.lock().permits.awaits_plain_permits()
    }

    /// Returns whether callers wait for permits.
    pub(crate) fn awaits_permits(&self) -> bool {
        !self.state.lock().permits.is_empty()
    }

    /// Returns the oldest caller for leased permits, for a poll at `now`.
    ///
    /// Its claim is due once it has waited for `patience`.
    pub(crate) fn claim(&self, now: Moment, patience: Duration) -> Option<PermitClaim> {
        self.state.lock().permits.claim(now, patience)
    }

    /// Wakes the callers for which the answer to a poll is news.
    ///
    /// Returns whether the caller of the claim still waits.
    pub(crate) fn polled(&self, claim: &PermitClaim, answer: PermitsPolled) -> bool {
        self.state.lock().permits.polled(claim, answer)
    }
}

/// The place of a caller that waits for permits, until it is dropped.
///
/// A place that is dropped before the reply to a question passes its wake-up on.
#[derive(Debug)]
#[must_use = "dropping it leaves the queue"]
pub(crate) struct PermitPlace {
    channel: Arc<Channel>,
    ticket: PermitTicket,
}

impl PermitPlace {
    /// Returns whether the caller has to ask the server.
    pub(crate) fn must_ask(&self) -> bool {
        self.channel.state.lock().permits.must_ask(self.ticket)
    }

    /// Notes that the caller is about to ask. A later message has it ask again.
    pub(crate) fn begin_question(&self) {
        self.channel.state.lock().permits.begin_question(self.ticket);
    }

    /// Notes that the question of the caller has a reply.
    ///
    /// Returns whether a poll was answered meanwhile that may have set the claim after a grant.
    pub(crate) fn end_question(&self) -> bool {
        self.channel.state.lock().permits.end_question(self.ticket)
    }

    /// Returns whether a poll has carried the claim of the caller.
    pub(crate) fn has_claimed(&self) -> bool {
        self.channel.state.lock().permits.has_claimed(self.ticket)
    }
}

impl Drop for PermitPlace {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        state.permits.leave(self.ticket);
        state.idle_since = clock::now();
    }
}

/// Returns the number of free permits that a message on the channel of a semaphore states.
///
/// `None` if the message says that no permit is free; 1 for a message of another form.
pub(super) fn free_permits(payload: &[u8]) -> Option<u32> {
    let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse::<i64>().ok());
    match number {
        Some(..=0) => None,
        Some(permits) => Some(u32::try_from(permits).unwrap_or(u32::MAX)),
        None => Some(1),
    }
}
