//! The capacities that a semaphore may have had.
//!
//! A change takes effect at one moment between its call and its reply. After an error it may take
//! effect until the client has reached the server again, and never later; after a kill, until what
//! the process has sent has arrived.
//!
//! Lost data excuse each earlier capacity from the loss on, until a change that was certainly made
//! later: a replica may not have the last ones, and the next caller gives an empty server the first
//! capacity. A plain semaphore without its count has any number of permits, so the checks leave it
//! out after a loss, and nothing here excuses one.

use super::waits::done;
use super::{Attempt, History, Outcome};
use crate::record::Verb;
use crate::system::Nanos;
use std::ops::RangeInclusive;

/// A capacity, and the time in which the semaphore may have had it.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: Nanos,
    to: Nanos,
    capacity: i64,
}

/// The capacities of one semaphore. A lock has one permit all the time.
#[derive(Debug)]
pub(super) struct Capacities(Vec<Span>);

impl Capacities {
    /// Returns the capacities of a semaphore with this first capacity after these changes.
    pub(super) fn of(history: &History, first: u32, changes: &[&Attempt]) -> Capacities {
        let first = i64::from(first);
        let resizes: Vec<&Attempt> =
            changes.iter().copied().filter(|it| it.request.verb == Verb::Resize).collect();
        let spans = if resizes.is_empty() {
            of_additions(first, changes)
        } else {
            of_resizes(history, first, &resizes)
        };
        Capacities(spans)
    }

    /// Returns the least and the greatest capacity between two moments.
    pub(super) fn between(&self, from: Nanos, to: Nanos) -> RangeInclusive<i64> {
        let spans = self.0.iter().filter(|span| span.from <= to && from <= span.to);
        let (mut least, mut greatest) = (i64::MAX, i64::MIN);
        for span in spans {
            (least, greatest) = (least.min(span.capacity), greatest.max(span.capacity));
        }
        least..=greatest
    }

    /// Returns whether the last capacity may be this one.
    pub(super) fn may_end_with(&self, capacity: i64) -> bool {
        let last = self.0.iter().filter(|span| span.to == Nanos::MAX);
        last.map(|span| span.capacity).any(|it| it == capacity)
    }

    /// Returns the least capacity from this moment until the next one of [`Capacities::moments`].
    pub(super) fn least_from(&self, at: Nanos) -> i64 {
        let spans = self.0.iter().filter(|span| span.from <= at && at < span.to);
        spans.map(|span| span.capacity).min().expect("a semaphore always has a capacity")
    }

    /// Returns whether there is only one capacity.
    pub(super) fn are_constant(&self) -> bool {
        self.0.iter().all(|span| span.capacity == self.0[0].capacity)
    }

    /// Returns the moments at which the possible capacities change.
    pub(super) fn moments(&self) -> impl Iterator<Item = Nanos> {
        self.0.iter().flat_map(|span| [span.from, span.to])
    }

    /// Returns the times in which the semaphore may have this many permits.
    pub(super) fn with_at_least(&self, permits: u32) -> impl Iterator<Item = (Nanos, Nanos)> {
        let enough = self.0.iter().filter(move |span| i64::from(permits) <= span.capacity);
        enough.map(|span| (span.from, span.to))
    }
}

/// Returns the latest moment at which a change takes effect, if it does.
fn settled(history: &History, change: &Attempt) -> Nanos {
    match change.outcome {
        Outcome::Done(at) => at,
        Outcome::Failed(at) => done(history, change, at),
        _ => {
            let killed = history.workers[change.worker].killed;
            killed.map_or(Nanos::MAX, |at| done(history, change, at))
        }
    }
}

/// Returns the capacities of a semaphore with leases. Each change sets one. There is at least one.
fn of_resizes(history: &History, first: i64, resizes: &[&Attempt]) -> Vec<Span> {
    // The first change that was certainly made after this moment replaces what was set before.
    let replaced = |since: Nanos| {
        let later = resizes.iter().filter(|it| since <= it.asked);
        let made = later.filter_map(|it| match it.outcome {
            Outcome::Done(at) => Some(at),
            _ => None,
        });
        made.min().unwrap_or(Nanos::MAX)
    };
    let set = |it: &&Attempt| {
        let (to, capacity) = (replaced(settled(history, it)), i64::from(it.request.permits));
        Span { from: it.asked, to, capacity }
    };
    let begin = Span { from: 0, to: replaced(0), capacity: first };
    let mut spans: Vec<_> = [begin].into_iter().chain(resizes.iter().map(set)).collect();
    let set_once = spans.clone();
    let lock = &resizes[0].request.lock;
    for loss in history.losses_of(lock) {
        // A replaced master may answer until the fault is not felt any more.
        let to = replaced(loss.felt_until);
        let earlier = set_once.iter().filter(|span| span.from <= loss.felt_until);
        spans.extend(earlier.map(|span| Span { from: loss.from, to, ..*span }));
    }
    spans
}

/// Returns the numbers of permits of a plain semaphore, those in use included: each change adds
/// some or takes some away.
fn of_additions(first: i64, changes: &[&Attempt]) -> Vec<Span> {
    // The least and the greatest number change by so much at each moment.
    let mut steps: Vec<(Nanos, i64, i64)> = Vec::new();
    for change in changes {
        let added = change.request.added();
        let certain = match change.outcome {
            Outcome::Done(at) => at,
            _ => Nanos::MAX,
        };
        let [least_at, greatest_at] =
            if added < 0 { [change.asked, certain] } else { [certain, change.asked] };
        steps.extend([(least_at, added, 0), (greatest_at, 0, added)]);
    }
    steps.sort_unstable();
    let (mut from, mut least, mut greatest) = (0, first, first);
    let mut spans = Vec::new();
    for (to, less, more) in steps.into_iter().chain([(Nanos::MAX, 0, 0)]) {
        spans.extend([least, greatest].map(|capacity| Span { from, to, capacity }));
        (from, least, greatest) = (to, least + less, greatest + more);
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, history};
    use super::super::{Affected, Attempt, Effect, History, Outcome};
    use super::Capacities;
    use crate::record::{Verb, millis};
    use std::ops::RangeInclusive;

    /// Returns a change of worker 0 with this verb and number of permits.
    fn change(verb: Verb, permits: u32, asked: u64, outcome: Outcome) -> Attempt {
        let mut change = asking(0, asked, Outcome::Unknown);
        (change.request.verb, change.request.permits, change.outcome) = (verb, permits, outcome);
        change
    }

    fn done(at: u64) -> Outcome {
        Outcome::Done(millis(at))
    }

    /// Returns the capacities between two moments after these changes of a semaphore of three.
    fn between(history: &History, from: u64, to: u64) -> RangeInclusive<i64> {
        let changes: Vec<_> = history.attempts.iter().collect();
        Capacities::of(history, 3, &changes).between(millis(from), millis(to))
    }

    #[test]
    fn a_change_takes_effect_between_its_call_and_its_reply() {
        let resizes = history(vec![
            change(Verb::Resize, 5, 100, done(110)),
            change(Verb::Resize, 1, 200, done(210)),
        ]);
        let around =
            |history: &History| [99, 105, 150, 205, 211].map(|at| between(history, at, at));
        assert_eq!(around(&resizes), [3..=3, 3..=5, 5..=5, 1..=5, 1..=1]);
        assert_eq!(between(&resizes, 150, 300), 1..=5);
        let additions = history(vec![
            change(Verb::Add, 2, 100, done(110)),
            change(Verb::Remove, 1, 200, done(210)),
        ]);
        assert_eq!(around(&additions), [3..=3, 3..=5, 5..=5, 4..=5, 4..=4]);
    }

    #[test]
    fn a_change_without_a_reply_takes_effect_later() {
        let failed = || Outcome::Failed(millis(150));
        let with_killed = |outcome, killed: Option<u64>, next| {
            let first = change(Verb::Resize, 5, 100, outcome);
            let mut history = history(vec![first, change(Verb::Resize, 1, next, done(next + 10))]);
            history.workers[0].killed = killed.map(millis);
            history.disturbances.push(disturbance(90, 160, Affected::All, Effect::Delays));
            between(&history, 3000, 3000)
        };
        let with = |outcome, next| with_killed(outcome, None, next);
        // The slack and a response time-out after the end of the fault.
        assert_eq!(with(failed(), 160 + 100), 1..=1, "the client has reached the server");
        assert_eq!(with(failed(), 160 + 99), 1..=5);
        let killed = |next| with_killed(Outcome::Unknown, Some(150), next);
        assert_eq!(killed(160 + 100), 1..=1, "what the killed process sent has arrived");
        assert_eq!(killed(160 + 99), 1..=5);
        let added = history(vec![change(Verb::Add, 2, 100, failed())]);
        assert_eq!(between(&added, 3000, 3000), 3..=5);
    }

    #[test]
    fn only_a_capacity_that_was_set_may_be_the_last() {
        let lost = change(Verb::Resize, 5, 200, Outcome::Failed(millis(250)));
        let history = history(vec![change(Verb::Resize, 1, 100, done(110)), lost]);
        let changes: Vec<_> = history.attempts.iter().collect();
        let capacities = Capacities::of(&history, 3, &changes);
        let last = (0..7).filter(|capacity| capacities.may_end_with(*capacity));
        assert_eq!(last.collect::<Vec<_>>(), [1, 5]);
    }

    #[test]
    fn lost_data_excuse_earlier_capacities_until_the_next_change() {
        let with = |effect, at| {
            let mut history = history(vec![
                change(Verb::Resize, 5, 100, done(110)),
                change(Verb::Resize, 4, 200, done(210)),
                change(Verb::Resize, 1, 400, done(410)),
            ]);
            history.disturbances.push(disturbance(300, 350, Affected::All, effect));
            between(&history, at, at)
        };
        assert_eq!([with(Effect::LosesHolds, 290), with(Effect::Delays, 320)], [4..=4, 4..=4]);
        assert_eq!(with(Effect::LosesHolds, 320), 3..=5);
        assert_eq!(with(Effect::LosesHolds, 411), 1..=1);
    }
}
