//! No hold is valid for longer than its limit and one lease, and no lock is granted before the
//! minimum of its last hold.
//!
//! The minimum counts from a moment between the call and its return, so the check takes the call.
//! `capacity.rs` has the minimum holds of a semaphore.

use super::{Attempt, Held, History, Hold, Promise, Violation, by_grant};
use crate::record::{End, millis};
use crate::system::Nanos;

pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    let holds = by_grant(attempts);
    let outlived = holds.iter().filter_map(|held| outlives_its_limit(history, *held));
    if attempts.iter().any(|attempt| attempt.request.capacity() > 1) {
        return outlived.collect();
    }
    let early = holds.iter().enumerate().flat_map(|(at, held)| {
        let later = holds[at + 1..].iter();
        later.filter_map(|later| granted_before_minimum(history, *held, *later))
    });
    outlived.chain(early).collect()
}

/// Checks that a hold with a renewed lease is not valid for longer than its limit and one lease.
fn outlives_its_limit(history: &History, (attempt, hold): Held<'_>) -> Option<Violation> {
    let limit = millis(attempt.request.max_hold.filter(|_| attempt.request.lease.is_none())?);
    let longest = history.bounds.latest(limit + history.lease(attempt));
    let over = hold.granted + longest < hold.valid_to;
    over.then(|| Promise::Limit.violation(format!("valid long after its limit: {attempt}")))
}

/// Checks the grant of a lock after the release of an earlier hold with a minimum.
fn granted_before_minimum(
    history: &History,
    (earlier, hold): Held<'_>,
    (later, next): Held<'_>,
) -> Option<Violation> {
    let minimum_end = minimum_end(history, earlier, hold)?;
    // A grant beside a valid hold is an overlap.
    let early = hold.valid_to <= next.granted && next.granted < minimum_end && next.was_valid();
    let broken = early && !history.may_have_lost(earlier, next.granted);
    let text = || format!("granted before the minimum, {earlier} and\n  {later}");
    broken.then(|| Promise::Minimum.violation(text()))
}

/// Returns the moment until which the lock must stay taken after the end of this hold.
///
/// A release without a confirmation may have failed. The lock is then taken until its lease ends.
pub(super) fn minimum_end(history: &History, attempt: &Attempt, hold: &Hold) -> Option<Nanos> {
    let minimum = millis(attempt.request.min_hold.filter(|_| hold.lost.is_none())?);
    let kept = match hold.ended {
        Some((_, End::Unlocked)) => minimum,
        _ => minimum.min(history.lease(attempt)),
    };
    Some(attempt.asked + history.bounds.soonest(kept))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{disturbance, held, history, hold_of, violated};
    use super::super::{Affected, Attempt, Effect, Promise};
    use crate::record::{End, millis};

    /// Returns a hold until `end` with a limit, in milliseconds.
    fn limited(max_hold: u64, end: u64) -> Attempt {
        let mut limited = held(0, 0, 10, end);
        limited.request.max_hold = Some(max_hold);
        limited
    }

    #[test]
    fn a_hold_is_valid_for_at_most_its_limit_and_a_lease() {
        assert_eq!(violated(&history(vec![limited(300, 10 + 300 + 1000)])), []);
        assert_eq!(violated(&history(vec![limited(300, 10 + 300 + 1001)])), [Promise::Limit]);
        let mut fixed = limited(300, 1500);
        fixed.request.lease = Some(1600);
        assert_eq!(violated(&history(vec![fixed])), [], "a fixed lease stays");
        let mut disturbed = history(vec![limited(300, 1400)]);
        disturbed.disturbances.push(disturbance(0, 2000, Affected::All, Effect::LosesAllHolds));
        assert!(violated(&disturbed).contains(&Promise::Limit), "nothing excuses it");
    }

    /// Returns a hold until 20 ms that was released before its minimum.
    fn early(min_hold: u64, how: End) -> Attempt {
        let mut early = held(0, 0, 10, 20);
        early.request.min_hold = Some(min_hold);
        hold_of(&mut early).ended = Some((millis(20), how));
        early
    }

    #[test]
    fn no_lock_is_granted_before_the_minimum_of_a_released_hold() {
        let next = |granted| held(1, 0, granted, granted + 10);
        for how in [End::Unlocked, End::Dropped, End::Unknown] {
            assert_eq!(violated(&history(vec![early(90, how), next(90)])), [], "{how:?}");
            let before = history(vec![early(90, how), next(89)]);
            assert_eq!(violated(&before), [Promise::Minimum], "{how:?}");
        }
        let both = history(vec![early(90, End::Dropped), next(30), next(50)]);
        assert_eq!(violated(&both), [Promise::Minimum, Promise::Minimum]);
        let stopped = history(vec![early(90, End::Unlocked), held(1, 0, 30, 30)]);
        assert_eq!(violated(&stopped), [], "the holder found its hold over at once");
        let over = history(vec![early(15, End::Unlocked), next(20)]);
        assert_eq!(violated(&over), [], "the release was not early");
    }

    #[test]
    fn a_lease_that_ends_bounds_a_minimum_whose_release_is_not_confirmed() {
        let next = || held(1, 0, 80, 90);
        let fixed = |how| {
            let mut fixed = early(90, how);
            fixed.request.lease = Some(70);
            violated(&history(vec![fixed, next()]))
        };
        assert_eq!([fixed(End::Dropped), fixed(End::Unknown)], [[], []]);
        assert_eq!(fixed(End::Unlocked), [Promise::Minimum]);
        let mut lost = early(90, End::Dropped);
        lost.request.lease = Some(15);
        hold_of(&mut lost).lost = Some(millis(20));
        assert_eq!(violated(&history(vec![lost, next()])), [], "a lost hold has no minimum");
    }

    #[test]
    fn lost_data_excuses_a_grant_before_the_minimum_and_a_delay_does_not() {
        let with = |effect| {
            let mut history = history(vec![early(90, End::Unlocked), held(1, 0, 60, 70)]);
            history.disturbances.push(disturbance(30, 40, Affected::All, effect));
            violated(&history)
        };
        assert_eq!(with(Effect::LosesHolds), []);
        assert_eq!(with(Effect::Delays), [Promise::Minimum]);
    }

    #[test]
    fn the_time_before_a_minimum_is_no_wait_beside_a_free_lock() {
        // The longest permitted wait is 200 ms.
        let waits = |granted| {
            violated(&history(vec![early(300, End::Unlocked), held(1, 10, granted, 900)]))
        };
        assert_eq!(waits(20 + 300 + 200), []);
        assert_eq!(waits(20 + 300 + 201), [Promise::Wait]);
    }
}
