//! The valid holds of a semaphore never have more permits than its capacity, except after a fault
//! with which that is documented.
//!
//! Even then the holders of lost permits learn of the loss in time. The holders of a plain
//! semaphore never learn of it, so there is no check after a loss of its count.
//!
//! Released permits count until the minimum of their hold.
//!
//! Changes of the capacity excuse what was granted before them: the last of the valid holds was
//! granted between its call and its return, so the greatest capacity of that time counts.
//!
//! A call for more permits than there are does not wait for them: it fails within the poll
//! interval.

use super::capacities::Capacities;
use super::limits::minimum_end;
use super::overlaps::report_due;
use super::waits::{end, longest_gap};
use super::{Attempt, Bounds, Held, History, Promise, Violation, by_grant};
use crate::system::Nanos;

pub(super) fn check(
    history: &History,
    attempts: &[&Attempt],
    capacities: &Capacities,
) -> Vec<Violation> {
    if attempts.first().is_none_or(|attempt| attempt.request.capacity() == 1) {
        return Vec::new();
    }
    let waiting = attempts.iter().filter(|attempt| attempt.request.is_leased());
    let mut found: Vec<_> =
        waiting.filter_map(|attempt| waits_in_vain(history, attempt, capacities)).collect();
    let mut open: Vec<Held<'_>> = Vec::new();
    for later in by_grant(attempts) {
        let begun = later.1.granted;
        let capacity = *capacities.between(later.0.asked, begun).end();
        // The minimum of a hold keeps its permits in use.
        open.retain(|(attempt, hold)| {
            begun < hold.valid_to.max(minimum_end(history, attempt, hold).unwrap_or(0))
        });
        let (valid, kept): (Vec<_>, Vec<_>) =
            open.iter().partition(|(_, hold)| begun < hold.valid_to);
        let valid = [valid, vec![later]].concat();
        open.push(later);
        if later.1.was_valid() {
            found.extend(
                too_many(history, &valid, begun, capacity)
                    .or_else(|| too_early(history, &valid, &kept, begun, capacity)),
            );
        }
    }
    found
}

/// Returns whether servers may have lost the permits of a hold, or the count that has them.
fn may_be_lost(history: &History, (attempt, _): &Held<'_>, begun: Nanos) -> bool {
    if attempt.request.is_counted() {
        history.may_have_lost_data(&attempt.request.lock, 0, begun)
    } else {
        history.may_have_lost(attempt, begun)
    }
}

/// Checks the valid holds and the permits that a minimum keeps at the last grant.
fn too_early(
    history: &History,
    valid: &[Held<'_>],
    kept: &[Held<'_>],
    begun: Nanos,
    capacity: i64,
) -> Option<Violation> {
    let all = [valid, kept].concat();
    let certain = all.iter().filter(|held| !may_be_lost(history, held, begun));
    let taken: i64 = certain.map(|held| i64::from(held.0.request.permits)).sum();
    (taken > capacity).then(|| {
        let text = format!("more than {capacity} permits before a minimum:{}", list(&all));
        Promise::Minimum.violation(text)
    })
}

fn list(holds: &[Held<'_>]) -> String {
    holds.iter().map(|(attempt, _)| format!("\n  {attempt}")).collect()
}

/// Checks the holds that are valid at the grant of the last of them.
fn too_many(
    history: &History,
    open: &[Held<'_>],
    begun: Nanos,
    capacity: i64,
) -> Option<Violation> {
    let sum = |counts: &dyn Fn(&Held<'_>) -> bool| -> i64 {
        let counted = open.iter().filter(|held| counts(held));
        counted.map(|held| i64::from(held.0.request.permits)).sum()
    };
    let may_be_lost = |held: &Held<'_>| may_be_lost(history, held, begun);
    // A hold that ends by itself before its report is due is no violation.
    let unreported = |held: &Held<'_>| {
        let due = || report_due(history, held.0, begun);
        !held.0.request.is_counted() && held.1.valid_to > due()
    };
    let promise = if sum(&|held| !may_be_lost(held)) > capacity {
        Promise::Exclusion
    } else if sum(&|held| !may_be_lost(held) || unreported(held)) > capacity {
        Promise::LossReport
    } else {
        return None;
    };
    Some(promise.violation(format!("more than {capacity} permits:{}", list(open))))
}

/// Checks that a call does not wait for more permits than there are.
fn waits_in_vain(
    history: &History,
    attempt: &Attempt,
    capacities: &Capacities,
) -> Option<Violation> {
    let (asked, permits) = (attempt.asked, attempt.request.permits);
    let ended = end(history, attempt).filter(|_| attempt.request.max_wait > 0)?;
    let disturbed = history.disturbances_of(attempt, asked, ended);
    let disturbed = disturbed.map(|d| (d.from, d.felt_until));
    let excused = capacities.with_at_least(permits).chain(disturbed).collect();
    let in_vain = longest_gap(asked, ended, excused);
    let Bounds { heartbeat, response, slack, .. } = history.bounds;
    (in_vain > heartbeat + response + slack).then(|| {
        let span = in_vain as f64 / 1e6;
        Promise::Wait.violation(format!("{span:.0} ms for more permits than there are: {attempt}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::examples::{
        asking, disturbance, held, history, resize, violated, with_permits,
    };
    use super::super::{Affected, Attempt, Effect, History, Outcome, Promise};
    use crate::record::{Verb, millis};

    /// Returns a history of holds of this kind with their numbers of permits.
    fn semaphore(kind: &str, holds: Vec<(u32, Attempt)>) -> History {
        let mut history = history(with_permits(&format!("{kind}-0"), holds));
        history.counts.insert("count-0".to_owned(), 3);
        history
    }

    #[test]
    fn holds_share_the_capacity_and_no_more() {
        for kind in ["semaphore", "count"] {
            let holds = |second, third| {
                let holds = vec![
                    (1, held(0, 0, 10, 50)),
                    (second, held(1, 0, 20, 50)),
                    (third, held(1, 0, 30, 40)),
                ];
                violated(&semaphore(kind, holds))
            };
            assert_eq!(holds(1, 1), []);
            assert_eq!(holds(2, 0), []);
            assert_eq!(holds(2, 1), [Promise::Exclusion]);
        }
        let stopped = vec![(3, held(0, 0, 10, 50)), (1, held(1, 0, 20, 20))];
        assert_eq!(violated(&semaphore("semaphore", stopped)), []);
        let one_after_the_other = vec![(3, held(0, 0, 10, 20)), (3, held(1, 0, 20, 30))];
        assert_eq!(violated(&semaphore("semaphore", one_after_the_other)), []);
    }

    #[test]
    fn a_change_of_the_capacity_allows_as_many_permits_from_its_call_to_that_of_the_next() {
        let second = |asked, granted| {
            let holds = vec![(3, held(0, 0, 10, 9000)), (2, held(1, asked, granted, 8000))];
            let mut history = semaphore("semaphore", holds);
            history.attempts.push(resize(5, 200, 210));
            history.attempts.push(resize(4, 300, 310));
            violated(&history)
        };
        assert_eq!(second(150, 199), [Promise::Exclusion], "before the change");
        assert_eq!(second(150, 200), []);
        assert_eq!(second(310, 320), [], "the second change may come now");
        assert_eq!(second(311, 320), [Promise::Exclusion], "after the second change");
        let added = |verb| {
            let mut change = asking(1, 100, Outcome::Done(millis(110)));
            (change.request.verb, change.request.permits) = (verb, 2);
            let holds = vec![(3, held(0, 0, 10, 900)), (2, held(1, 150, 160, 800)), (2, change)];
            let mut history = semaphore("count", holds);
            history.counts.insert("count-0".to_owned(), if verb == Verb::Add { 5 } else { 1 });
            violated(&history)
        };
        assert_eq!(added(Verb::Add), []);
        assert_eq!(added(Verb::Remove), [Promise::Exclusion]);
    }

    #[test]
    fn a_call_for_more_permits_than_there_are_ends() {
        let waits = |capacity, until, effect: Option<Effect>| {
            let refused = asking(0, 1000, Outcome::Refused(millis(until)));
            let mut history = semaphore("semaphore", vec![(3, refused)]);
            history.attempts.push(resize(capacity, 100, 110));
            history.disturbances.extend(effect.map(|it| disturbance(0, 1150, Affected::All, it)));
            violated(&history)
        };
        // The poll interval, the response time-out and the slack.
        assert_eq!(waits(2, 1200, None), []);
        assert_eq!(waits(2, 1201, None), [Promise::Wait]);
        assert_eq!(waits(2, 1201, Some(Effect::Delays)), []);
    }

    #[test]
    fn released_permits_stay_in_use_until_the_minimum_of_their_hold() {
        let next = |permits, granted, effect| {
            let mut early = held(0, 0, 10, 20);
            early.request.min_hold = Some(90);
            let beside = (1, held(0, 30, 40, 150));
            let mut next = held(1, 30, granted, granted + 10);
            next.request.min_hold = Some(10);
            let mut history = semaphore("semaphore", vec![(2, early), beside, (permits, next)]);
            history.disturbances.push(disturbance(45, 50, Affected::All, effect));
            violated(&history)
        };
        assert_eq!(next(2, 90, Effect::Delays), []);
        assert_eq!(next(2, 89, Effect::Delays), [Promise::Minimum]);
        assert_eq!(next(3, 89, Effect::Delays), [Promise::Exclusion], "valid ones are too many");
        assert_eq!(next(2, 89, Effect::LosesHolds), []);
    }

    #[test]
    fn lost_data_excuses_too_many_permits_until_the_holders_must_know() {
        let late = |kind, end, effect| {
            let holds = vec![
                (2, held(0, 0, 10, end)),
                (1, held(0, 0, 10, 205)),
                (3, held(1, 160, 200, 210)),
            ];
            let mut history = semaphore(kind, holds);
            history.disturbances.push(disturbance(100, 150, Affected::All, effect));
            violated(&history)
        };
        // A third of a lease of 1000, the response time-out and the slack.
        assert_eq!(late("semaphore", 200 + 333 + 100, Effect::LosesHolds), []);
        let too_late = late("semaphore", 200 + 333 + 102, Effect::LosesHolds);
        assert_eq!(too_late, [Promise::LossReport]);
        assert_eq!(late("semaphore", 205, Effect::Delays), [Promise::Exclusion]);
        assert_eq!(late("count", 2000, Effect::LosesHolds), [], "a count reports no loss");
        assert_eq!(late("count", 205, Effect::Delays), [Promise::Exclusion]);
    }
}
