//! The callers of this process that wait for permits of one semaphore, oldest first.
//!
//! A message tells how many permits are free. It wakes the callers whose requests fit into that
//! number, in the order of their arrival; so a caller for five permits does not use up the wake-up
//! of a caller for one. Each woken caller asks the server. Each reply tells how many permits are
//! left, which wakes further callers. A refused caller asked for more than that number, so the
//! chain of questions ends.
//!
//! A caller joins before its first question and leaves at its end. So no message falls between a
//! question and the sleep after it. A caller that leaves before the reply to its question, or
//! before it has asked, passes its wake-up on.
//!
//! Pure: no I/O and no clock. `permits.rs` keeps one queue per semaphore.

use std::sync::Arc;
use std::time::Duration;

use crate::local::mailbox::Mailbox;
use crate::util::clock::Moment;

#[cfg(all(test, leasehold_model))]
mod model;

/// A caller that waits for permits.
#[derive(Clone, Debug)]
pub(crate) struct PermitWaiter {
    /// The number of permits that the caller needs at once.
    pub(crate) permits: u32,
    /// The beginning of the call.
    pub(crate) since: Moment,
    pub(crate) mailbox: Arc<Mailbox>,
    /// The text that identifies the call in a claim; `None` for permits without a lease.
    pub(crate) claimant: Option<Arc<str>>,
}

/// The state of the first caller for leased permits, as a poll reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermitClaim {
    pub(crate) claimant: Arc<str>,
    pub(crate) permits: u32,
    /// The time for which the call has waited.
    pub(crate) waited: Duration,
    /// Whether the call has waited so long that others have to leave permits to it.
    pub(crate) is_due: bool,
}

/// The answer to a poll of one semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitsPolled {
    /// Whether the caller of the claim has to ask.
    pub(crate) must_ask: bool,
    /// The number of permits that other callers may take.
    pub(crate) others: u32,
    /// The number of permits of the semaphore, those in use included.
    pub(crate) capacity: u32,
}

/// The place of one caller in the queue. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PermitTicket(u64);

/// The waiting callers of one channel, oldest first.
#[derive(Debug, Default)]
pub(super) struct PermitQueue {
    entries: Vec<PermitEntry>,
    last: u64,
}

#[derive(Debug)]
struct PermitEntry {
    ticket: PermitTicket,
    waiter: PermitWaiter,
    /// Whether a question of the caller has no reply yet.
    is_asking: bool,
    /// Whether a poll has carried the claim of the caller.
    has_claimed: bool,
    /// Whether such a poll was answered since the last question.
    claimed_since_question: bool,
}

impl PermitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends a caller.
    pub(super) fn join(&mut self, waiter: PermitWaiter) -> PermitTicket {
        self.last += 1;
        let ticket = PermitTicket(self.last);
        self.entries.push(PermitEntry {
            ticket,
            waiter,
            is_asking: false,
            has_claimed: false,
            claimed_since_question: false,
        });
        ticket
    }

    /// Removes a caller, and passes on a wake-up that it has not used.
    pub(super) fn leave(&mut self, ticket: PermitTicket) {
        let Some(at) = self.entries.iter().position(|entry| entry.ticket == ticket) else { return };
        let entry = self.entries.remove(at);
        if entry.waiter.mailbox.must_ask() || entry.is_asking {
            self.hint(entry.waiter.permits);
        }
    }

    /// Wakes the callers whose requests fit into this number of permits, oldest first.
    ///
    /// Returns whether any caller fits.
    pub(super) fn offer(&self, permits: u32) -> bool {
        let mut left = permits;
        for entry in &self.entries {
            if entry.waiter.permits <= left {
                left -= entry.waiter.permits;
                entry.waiter.mailbox.ask();
            }
            if left == 0 {
                break;
            }
        }
        left < permits
    }

    /// Wakes callers after news that more permits may be free than this number.
    ///
    /// If no request fits, the oldest caller asks: Redisson also announces the number of permits
    /// that were given back, which is less than the number of free permits.
    pub(super) fn hint(&self, permits: u32) {
        if !self.offer(permits)
            && let Some(first) = self.entries.first()
        {
            first.waiter.mailbox.ask();
        }
    }

    /// Notes that the caller is about to ask. A later message has it ask again.
    pub(super) fn begin_question(&mut self, ticket: PermitTicket) {
        if let Some(entry) = self.entry(ticket) {
            entry.waiter.mailbox.begin_question();
            (entry.is_asking, entry.claimed_since_question) = (true, false);
        }
    }

    /// Notes that the question of the caller has a reply.
    ///
    /// Returns whether a poll was answered meanwhile that may have set the claim after a grant.
    pub(super) fn end_question(&mut self, ticket: PermitTicket) -> bool {
        let Some(entry) = self.entry(ticket) else { return false };
        entry.is_asking = false;
        entry.claimed_since_question
    }

    /// Returns whether a poll has carried the claim of the caller.
    pub(super) fn has_claimed(&mut self, ticket: PermitTicket) -> bool {
        self.entry(ticket).is_some_and(|entry| entry.has_claimed)
    }

    /// Returns whether callers wait for permits with a lease, or without.
    pub(super) fn awaits_permits_with(&self, lease: bool) -> bool {
        self.entries.iter().any(|entry| entry.waiter.claimant.is_some() == lease)
    }

    /// Returns the oldest caller for leased permits, for a poll at `now`.
    ///
    /// Its claim is due once it has waited for `patience`.
    pub(super) fn claim(&mut self, now: Moment, patience: Duration) -> Option<PermitClaim> {
        let mut entries = self.entries.iter_mut();
        entries.find_map(|entry| {
            let claimant = Arc::clone(entry.waiter.claimant.as_ref()?);
            let waited = entry.waiter.since.until(now);
            let is_due = waited >= patience;
            entry.has_claimed |= is_due;
            Some(PermitClaim { claimant, permits: entry.waiter.permits, waited, is_due })
        })
    }

    /// Wakes the callers for which the answer to a poll is news.
    ///
    /// A caller for more permits than the semaphore has asks too, and gets the error. Returns
    /// whether the caller of the claim still waits.
    pub(super) fn polled(&mut self, claim: &PermitClaim, answer: PermitsPolled) -> bool {
        let mut still_waits = false;
        for entry in &mut self.entries {
            let is_hopeless = entry.waiter.permits > answer.capacity;
            let is_first = entry.waiter.claimant.as_ref() == Some(&claim.claimant);
            still_waits |= is_first;
            entry.claimed_since_question |= is_first && claim.is_due;
            if is_hopeless || answer.must_ask && is_first {
                entry.waiter.mailbox.ask();
            }
        }
        self.offer(answer.others);
        still_waits
    }

    fn entry(&mut self, ticket: PermitTicket) -> Option<&mut PermitEntry> {
        self.entries.iter_mut().find(|entry| entry.ticket == ticket)
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waiter(permits: u32) -> PermitWaiter {
        PermitWaiter { permits, since: Moment::START, mailbox: Mailbox::mine(), claimant: None }
    }

    fn queue(requests: &[u32]) -> (PermitQueue, Vec<PermitTicket>) {
        let mut queue = PermitQueue::default();
        let tickets = requests.iter().map(|permits| queue.join(waiter(*permits))).collect();
        (queue, tickets)
    }

    /// Returns the requests of the callers that have to ask.
    fn asking(queue: &PermitQueue) -> Vec<u32> {
        let woken = queue.entries.iter().filter(|entry| entry.waiter.mailbox.must_ask());
        woken.map(|entry| entry.waiter.permits).collect()
    }

    #[test]
    fn an_offer_wakes_the_oldest_callers_that_fit() {
        for (requests, offer, expected) in [
            (&[5, 1, 1][..], 1, &[1][..]),
            (&[5, 1, 1], 5, &[5]),
            (&[5, 1, 1], 4, &[1, 1]),
            (&[2, 2, 1], 3, &[2, 1]),
            (&[2, 3], 1, &[]),
            (&[2, 3], 0, &[]),
            (&[], 3, &[]),
        ] {
            let (queue, _) = queue(requests);
            assert_eq!(queue.offer(offer), !expected.is_empty(), "{requests:?}, {offer}");
            assert_eq!(asking(&queue), expected, "{requests:?}, {offer}");
        }
    }

    #[test]
    fn a_hint_wakes_the_oldest_caller_if_none_fits() {
        let (queue, _) = queue(&[5, 4, 3]);
        queue.hint(2);
        assert_eq!(asking(&queue), [5]);
        queue.hint(3);
        assert_eq!(asking(&queue), [5, 3]);
    }

    #[test]
    fn a_caller_that_leaves_with_a_wake_up_passes_it_on() {
        let (mut woken, tickets) = queue(&[1, 1, 1]);
        woken.hint(1);
        woken.leave(tickets[0]);
        assert_eq!(asking(&woken), [1]);

        let (mut unanswered, tickets) = queue(&[1, 2]);
        unanswered.begin_question(tickets[0]);
        assert!(asking(&unanswered).is_empty());
        unanswered.leave(tickets[0]);
        assert_eq!(asking(&unanswered), [2]);

        let (mut answered, tickets) = queue(&[1, 1]);
        answered.begin_question(tickets[0]);
        answered.end_question(tickets[0]);
        answered.leave(tickets[0]);
        assert_eq!((asking(&answered), answered.len()), (vec![], 1));
    }

    #[test]
    fn a_message_during_a_question_has_the_caller_ask_again() {
        let (mut queue, tickets) = queue(&[1]);
        queue.begin_question(tickets[0]);
        queue.hint(1);
        queue.end_question(tickets[0]);
        assert_eq!(asking(&queue), [1]);
    }

    #[test]
    fn a_claim_belongs_to_the_oldest_caller_for_leased_permits() {
        let mut queue = PermitQueue::default();
        let second = Duration::from_secs(1);
        let leased = |text: &str, permits| PermitWaiter {
            claimant: Some(text.into()),
            since: Moment::START + second,
            ..waiter(permits)
        };
        assert_eq!(queue.claim(Moment::START, second), None);
        queue.join(waiter(9));
        let first = queue.join(leased("a", 3));
        let second_ticket = queue.join(leased("b", 2));
        let early = queue.claim(Moment::START + second + second / 2, second).expect("a caller");
        assert!(!early.is_due && !queue.has_claimed(first));
        let late = queue.claim(Moment::START + 3 * second, second).expect("a caller");
        let expected =
            PermitClaim { claimant: "a".into(), permits: 3, waited: 2 * second, is_due: true };
        assert_eq!(late, expected);
        assert!(queue.has_claimed(first) && !queue.has_claimed(second_ticket));

        // The callers beyond the capacity, the one of the claim, then the ones that fit.
        let answer = |must_ask, others, capacity| PermitsPolled { must_ask, others, capacity };
        assert!(queue.polled(&late, answer(false, 1, 9)));
        assert!(asking(&queue).is_empty());
        assert!(queue.polled(&late, answer(true, 0, 9)));
        assert_eq!(asking(&queue), [3]);
        assert!(queue.polled(&late, answer(true, 2, 8)));
        assert_eq!(asking(&queue), [9, 3, 2]);
        queue.leave(first);
        assert!(!queue.polled(&late, answer(false, 0, 9)), "it has left");
    }

    #[test]
    fn a_poll_that_is_answered_during_a_question_may_set_a_claim_after_the_grant() {
        let mut queue = PermitQueue::default();
        let first = queue.join(PermitWaiter { claimant: Some("a".into()), ..waiter(1) });
        let answer = PermitsPolled { must_ask: false, others: 0, capacity: 1 };
        let mut ask = |patience, polled: bool| {
            let claim = queue.claim(Moment::START, patience).expect("a caller");
            queue.polled(&claim, answer);
            queue.begin_question(first);
            if polled {
                queue.polled(&claim, answer);
            }
            queue.end_question(first)
        };
        assert!(!ask(Duration::ZERO, false) && ask(Duration::ZERO, true));
        assert!(!ask(Duration::ZERO, false) && !ask(Duration::from_secs(1), true), "not due");
    }

    /// A step of a server with one semaphore and its waiting callers.
    #[derive(Clone, Debug)]
    enum PermitStep {
        Join(u32),
        /// Permits are given back; the message has this payload, at least 1, at most the total.
        Release(u32, u32),
        /// The woken caller with this index asks, and gets the reply.
        Ask(usize),
        /// The caller with this index sends a question without a reply, and leaves.
        Fail(usize),
        Leave(usize),
    }

    fn permit_steps() -> impl Strategy<Value = Vec<PermitStep>> {
        let step = prop_oneof![
            (1..6_u32).prop_map(PermitStep::Join),
            (1..6_u32, 1..20_u32)
                .prop_map(|(permits, payload)| PermitStep::Release(permits, payload)),
            (0..8_usize).prop_map(PermitStep::Ask),
            (0..8_usize).prop_map(PermitStep::Fail),
            (0..8_usize).prop_map(PermitStep::Leave),
        ];
        prop::collection::vec(step, 0..60)
    }

    /// The server's reply to a caller: granted or refused, and the callers that are woken.
    fn ask(queue: &mut PermitQueue, ticket: PermitTicket, free: &mut u32) {
        queue.begin_question(ticket);
        let permits = queue.entry(ticket).expect("it waits").waiter.permits;
        queue.end_question(ticket);
        if permits <= *free {
            *free -= permits;
            queue.leave(ticket);
        }
        queue.offer(*free);
    }

    fn nth(queue: &PermitQueue, at: usize, woken: bool) -> Option<PermitTicket> {
        let fits = |entry: &&PermitEntry| !woken || entry.waiter.mailbox.must_ask();
        queue.entries.iter().filter(fits).nth(at).map(|entry| entry.ticket)
    }

    proptest! {
        #[test]
        fn no_caller_that_fits_sleeps_after_all_questions(steps in permit_steps()) {
            let (mut queue, mut free) = (PermitQueue::default(), 0);
            for step in steps {
                match step {
                    PermitStep::Join(permits) => {
                        let ticket = queue.join(waiter(permits));
                        ask(&mut queue, ticket, &mut free);
                    }
                    PermitStep::Release(permits, payload) => {
                        free += permits;
                        queue.hint(payload.min(free));
                    }
                    PermitStep::Ask(at) => {
                        if let Some(ticket) = nth(&queue, at, true) {
                            ask(&mut queue, ticket, &mut free);
                        }
                    }
                    PermitStep::Fail(at) => {
                        if let Some(ticket) = nth(&queue, at, true) {
                            queue.begin_question(ticket);
                            queue.leave(ticket);
                        }
                    }
                    PermitStep::Leave(at) => {
                        if let Some(ticket) = nth(&queue, at, false) {
                            queue.leave(ticket);
                        }
                    }
                }
            }
            let mut questions = 0;
            while let Some(ticket) = nth(&queue, 0, true) {
                ask(&mut queue, ticket, &mut free);
                questions += 1;
                prop_assert!(questions < 1000, "the chain of questions ends");
            }
            for entry in &queue.entries {
                prop_assert!(entry.waiter.permits > free, "{} of {free}", entry.waiter.permits);
            }
        }
    }
}
