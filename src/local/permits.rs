//! The callers of this process that wait for permits of one semaphore, their places in their
//! [queue](crate::local::permit_queue), and what they hear on the channel of the semaphore.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::local::permit_queue::{
    PermitClaim, PermitQueue, PermitTicket, PermitWaiter, PermitsPolled,
};
use crate::transport::listener::channels::{Audience, Channel};
use crate::util::clock::Moment;
use crate::util::sync::Mutex;

/// The callers that wait for permits of one semaphore.
#[derive(Debug)]
pub(crate) struct PermitCallers {
    channel: Arc<Channel>,
    queue: Mutex<PermitQueue>,
}

impl Audience for PermitCallers {
    fn hears(&self, payload: &[u8]) {
        if let Some(permits) = free_permits(payload) {
            self.hint(permits);
        }
    }

    fn may_have_missed(&self) {
        self.hint(1);
    }

    fn callers(&self) -> usize {
        self.queue.lock().len()
    }
}

impl PermitCallers {
    /// Returns the callers that hear what is published on the channel. None waits yet.
    pub(crate) fn on(channel: Arc<Channel>) -> Arc<PermitCallers> {
        let callers = Arc::new(PermitCallers { channel, queue: Mutex::default() });
        let audience: Weak<dyn Audience> = Arc::downgrade(&callers) as _;
        callers.channel.set_audience(audience);
        callers
    }

    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Adds a caller, until the result is dropped. Called before the first question of the caller.
    pub(crate) fn join(self: &Arc<PermitCallers>, waiter: PermitWaiter) -> PermitPlace {
        let ticket = self.queue.lock().join(waiter);
        PermitPlace { callers: Arc::clone(self), ticket }
    }

    /// Wakes the callers that may take some of these permits, which a reply reports as free.
    pub(crate) fn offer(&self, permits: u32) {
        self.queue.lock().offer(permits);
    }

    /// Wakes a caller that asks how many permits are free; more than this number may be.
    pub(crate) fn hint(&self, permits: u32) {
        self.queue.lock().hint(permits);
    }

    /// Returns whether callers wait for permits with a lease, or without.
    pub(crate) fn await_permits_with(&self, lease: bool) -> bool {
        self.queue.lock().awaits_permits_with(lease)
    }

    /// Returns whether callers wait for permits.
    pub(crate) fn await_permits(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// Returns the oldest caller for leased permits, for a poll at `now`.
    ///
    /// Its claim is due once it has waited for `patience`.
    pub(crate) fn claim(&self, now: Moment, patience: Duration) -> Option<PermitClaim> {
        self.queue.lock().claim(now, patience)
    }

    /// Wakes the callers for which the answer to a poll is news.
    ///
    /// Returns whether the caller of the claim still waits.
    pub(crate) fn polled(&self, claim: &PermitClaim, answer: PermitsPolled) -> bool {
        self.queue.lock().polled(claim, answer)
    }
}

/// The place of a caller that waits for permits, until it is dropped.
///
/// A place that is dropped before the reply to a question passes its wake-up on.
#[derive(Debug)]
#[must_use = "dropping it leaves the queue"]
pub(crate) struct PermitPlace {
    callers: Arc<PermitCallers>,
    ticket: PermitTicket,
}

impl PermitPlace {
    /// Notes that the caller is about to ask. A later message has it ask again.
    pub(crate) fn begin_question(&self) {
        self.callers.queue.lock().begin_question(self.ticket);
    }

    /// Notes that the question of the caller has a reply.
    ///
    /// Returns whether a poll was answered meanwhile that may have set the claim after a grant.
    pub(crate) fn end_question(&self) -> bool {
        self.callers.queue.lock().end_question(self.ticket)
    }

    /// Returns whether a poll has carried the claim of the caller.
    pub(crate) fn has_claimed(&self) -> bool {
        self.callers.queue.lock().has_claimed(self.ticket)
    }
}

impl Drop for PermitPlace {
    fn drop(&mut self) {
        // First, so that the subscription does not end between the two steps.
        self.callers.channel.caller_left();
        self.callers.queue.lock().leave(self.ticket);
    }
}

/// Returns the number of free permits that a message on the channel of a semaphore states.
///
/// `None` if the message says that no permit is free; 1 for a message of another form.
fn free_permits(payload: &[u8]) -> Option<u32> {
    let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse::<i64>().ok());
    match number {
        Some(..=0) => None,
        Some(permits) => Some(u32::try_from(permits).unwrap_or(u32::MAX)),
        None => Some(1),
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_a_semaphore_states_the_free_permits() {
        for (payload, expected) in [
            (&b"3"[..], Some(3)),
            (b"2147483647", Some(2_147_483_647)),
            (b"9999999999", Some(u32::MAX)),
            (b"0", None),
            (b"-4", None),
            (b"", Some(1)),
            (b"x", Some(1)),
            (b"99999999999999999999", Some(1)),
        ] {
            assert_eq!(free_permits(payload), expected, "{payload:?}");
        }
    }
}
