//! Waiters for a queue lock are granted in the order of arrival and weight.
//!
//! A history does not show when a call reached its queue. It shows two bounds: a call arrives after
//! it begins, and within a response time-out. A call counts as overtaken if it arrived earlier by
//! these bounds and the weights, and still waited when the other call had the lock. So a waiter
//! cannot starve: nine weight steps after its arrival nothing comes before it.
//!
//! A client whose listener is not connected may lose its places for a while. So a call is checked
//! only if its worker began long before the call, and if there were no faults and stalls.

use super::{Attempt, Bounds, History, Outcome, Promise, Violation};
use crate::record::{Request, Verb, millis};
use crate::system::Nanos;

pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    let queued = || attempts.iter().copied().filter(|attempt| attempt.request.is_queued());
    let steady = Steady::new(history);
    let waiters: Vec<Waiter<'_>> =
        queued().filter_map(|attempt| Waiter::new(history, attempt)).collect();
    let granted: Vec<Granted<'_>> =
        queued().filter_map(|attempt| Granted::new(history, attempt)).collect();
    let overtaken = waiters.iter().filter_map(|waiter| {
        let other = granted.iter().find(|other| waiter.is_overtaken_by(other))?;
        steady.covers(waiter.attempt, other.at).then_some((waiter, other))
    });
    let text = |(waiter, other): (&Waiter<'_>, &Granted<'_>)| {
        Promise::Order.violation(format!("{} overtakes\n  {}", other.attempt, waiter.attempt))
    };
    overtaken.map(text).collect()
}

/// A call that waits.
struct Waiter<'a> {
    attempt: &'a Attempt,
    /// The moment from which the call has its place.
    arrived: Nanos,
    /// The latest possible place, as the time of arrival of a waiter of weight 1.
    place: i128,
    /// The earliest moment at which it no longer waits.
    until: Nanos,
}

/// A call that got the lock.
struct Granted<'a> {
    attempt: &'a Attempt,
    at: Nanos,
    /// The earliest possible place.
    place: i128,
}

/// Returns the place of a call that arrives at this moment.
fn place(bounds: &Bounds, attempt: &Attempt, arrived: Nanos) -> i128 {
    let steps = Nanos::from(attempt.request.weight - 1);
    i128::from(arrived) - i128::from(steps * bounds.weight_step)
}

impl<'a> Waiter<'a> {
    /// `None` for a call that does not wait, or whose end is not known.
    fn new(history: &History, attempt: &'a Attempt) -> Option<Waiter<'a>> {
        let end = attempt.asked + millis(attempt.request.max_wait);
        let until = match &attempt.outcome {
            Outcome::Unknown | Outcome::Failed(_) | Outcome::Done(_) => return None,
            Outcome::Refused(at) => (*at).min(end),
            Outcome::Held(hold) => hold.granted.min(end),
        };
        // A call in `run` comes after a resignation.
        let requests = if attempt.request.verb == Verb::Lead { 2 } else { 1 };
        let arrived = attempt.asked + requests * history.bounds.response;
        let place = place(&history.bounds, attempt, arrived);
        (arrived < until).then_some(Waiter { attempt, arrived, place, until })
    }

    fn is_overtaken_by(&self, other: &Granted<'_>) -> bool {
        // In `run` less than a millisecond may be left for a term.
        let Request { max_wait, verb, .. } = other.attempt.request;
        let other_waits = max_wait > 0 || verb == Verb::Lead;
        // A call that does not wait has no place, and comes after all waiters.
        let is_behind = !other_waits || self.place < other.place;
        is_behind && self.arrived < other.attempt.asked && other.at < self.until
    }
}

impl<'a> Granted<'a> {
    fn new(history: &History, attempt: &'a Attempt) -> Option<Granted<'a>> {
        let place = place(&history.bounds, attempt, attempt.asked);
        Some(Granted { attempt, at: attempt.hold()?.granted, place })
    }
}

/// The times in which nothing excuses another order.
pub(super) struct Steady<'a> {
    history: &'a History,
    /// The first call of each worker.
    begun: Vec<Nanos>,
}

impl Steady<'_> {
    pub(super) fn new(history: &History) -> Steady<'_> {
        let mut begun = vec![Nanos::MAX; history.workers.len()];
        for attempt in &history.attempts {
            begun[attempt.worker] = begun[attempt.worker].min(attempt.asked);
        }
        Steady { history, begun }
    }

    /// Returns whether nothing happened to a waiter from a while before its call to this moment.
    pub(super) fn covers(&self, attempt: &Attempt, to: Nanos) -> bool {
        let bounds = &self.history.bounds;
        let from = attempt.asked.saturating_sub(bounds.wait());
        let mut faults = self.history.disturbances.iter().filter(|it| it.name != "Quiet");
        let stalled = self.history.longest_stall(from, to) >= bounds.response / 2;
        let is_new = from < self.begun[attempt.worker];
        !is_new && !stalled && !faults.any(|it| it.from <= to && from <= it.felt_until)
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, held, history, violated};
    use super::super::{Affected, Attempt, Disturbance, Effect, History, Outcome, Promise, Stall};
    use crate::record::{Verb, millis};

    /// The response time-out of the examples.
    const RESPONSE: u64 = 50;

    /// Returns a history in which both workers began long before these calls for a queue lock.
    fn queue(calls: Vec<Attempt>) -> History {
        let early = vec![held(0, 0, 0, 1), held(1, 900, 900, 3000)];
        let mut history = history([early, calls].concat());
        history.attempts.iter_mut().for_each(|it| it.request.lock = "queued-0".to_owned());
        history
    }

    fn weighing(weight: u32, mut attempt: Attempt) -> Attempt {
        attempt.request.weight = weight;
        attempt
    }

    #[test]
    fn a_later_call_does_not_overtake() {
        let second =
            |asked| violated(&queue(vec![held(0, 1000, 3100, 3200), held(1, asked, 3000, 3100)]));
        assert_eq!(second(1000 + RESPONSE), [], "it may have arrived first");
        assert_eq!(second(1001 + RESPONSE), [Promise::Order]);
        let in_order = queue(vec![held(0, 1000, 3000, 3100), held(1, 1100, 3100, 3200)]);
        assert_eq!(violated(&in_order), []);
    }

    #[test]
    fn a_weight_moves_a_call_forward_by_its_steps_and_no_more() {
        // Nine steps of 200 ms.
        let heavy = |asked| {
            let heavy = weighing(10, held(1, asked, 3000, 3100));
            violated(&queue(vec![held(0, 1000, 3100, 3200), heavy]))
        };
        assert_eq!(heavy(1000 + RESPONSE + 9 * 200), []);
        assert_eq!(heavy(1001 + RESPONSE + 9 * 200), [Promise::Order]);
    }

    #[test]
    fn a_call_that_does_not_wait_never_overtakes() {
        let trying = |asked, verb| {
            let mut trying = weighing(10, held(1, asked, 3000, 3100));
            (trying.request.max_wait, trying.request.verb) = (0, verb);
            violated(&queue(vec![held(0, 1000, 3100, 3200), trying]))
        };
        assert_eq!(trying(1000 + RESPONSE, Verb::Acquire), []);
        assert_eq!(trying(1001 + RESPONSE, Verb::Acquire), [Promise::Order]);
        assert_eq!(trying(1001 + RESPONSE, Verb::Lead), [], "a term in `run` waits for its place");
    }

    #[test]
    fn a_call_that_gave_up_was_overtaken_only_before_its_deadline() {
        let overtaken = |until| {
            let gave_up = asking(0, 1000, Outcome::Refused(millis(until)));
            violated(&queue(vec![gave_up, held(1, 2000, 3000, 3100)]))
        };
        assert_eq!(overtaken(3000), []);
        assert_eq!(overtaken(3001), [Promise::Order]);
    }

    /// Returns the broken promises of a history in which a call overtakes, with one change.
    fn with(change: impl Fn(&mut History)) -> Vec<Promise> {
        let mut history = queue(vec![held(0, 1000, 3100, 3200), held(1, 1500, 3000, 3100)]);
        change(&mut history);
        violated(&history)
    }

    #[test]
    fn a_fault_a_stall_and_a_new_worker_excuse_another_order() {
        assert_eq!(with(|_| ()), [Promise::Order]);
        let fault = |name: &str| {
            let fault = disturbance(1200, 1300, Affected::Nobody, Effect::Delays);
            let fault = Disturbance { name: name.to_owned(), ..fault };
            with(|history| history.disturbances.push(fault.clone()))
        };
        assert_eq!(fault("KillSubscribers"), []);
        assert_eq!(fault("Quiet"), [Promise::Order]);
        let stalled = |to| {
            let stall = Stall { from: millis(1200), to: millis(to) };
            with(|history| history.workers[1].stalls.push(stall))
        };
        assert_eq!(stalled(1225), []);
        assert_eq!(stalled(1224), [Promise::Order]);
        // The worker began less than the longest wait before its call.
        let is_new = |history: &mut History| history.attempts[0].asked = millis(801);
        assert_eq!(with(is_new), []);
    }
}
