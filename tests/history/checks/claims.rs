//! Two poll intervals after the call of a waiter for permits, no later call takes permits that the
//! waiter needs.
//!
//! Only the oldest waiter is protected. After its end, the next one is protected within a poll
//! interval. A waiter that gives up withdraws its claim. One whose call fails, or whose process is
//! killed, may leave its claim, which ends with a grant lease.
//!
//! The check leaves out times with faults or stalls, so each command takes less than the response
//! time-out. It also leaves out waiters for more permits than there may be, which claim none, and
//! counts the greatest capacity of the time of their wait.

use super::capacities::Capacities;
use super::order::Steady;
use super::waits::end;
use super::{Attempt, History, Outcome, Promise, Violation};
use crate::system::Nanos;
use std::ops::RangeInclusive;

pub(super) fn check(
    history: &History,
    attempts: &[&Attempt],
    capacities: &Capacities,
) -> Vec<Violation> {
    let leased: Vec<&Attempt> =
        attempts.iter().copied().filter(|attempt| attempt.request.is_leased()).collect();
    if leased.is_empty() {
        return Vec::new();
    }
    let steady = Steady::new(history);
    let waiting = leased.iter().filter(|attempt| attempt.request.max_wait > 0);
    let overtaken = |it: &&Attempt| overtaken(history, &steady, &leased, it, capacities);
    waiting.filter_map(overtaken).collect()
}

/// Returns a violation if a later call took permits that this waiter needs.
fn overtaken(
    history: &History,
    steady: &Steady<'_>,
    attempts: &[&Attempt],
    waiting: &Attempt,
    capacities: &Capacities,
) -> Option<Violation> {
    let bounds = &history.bounds;
    let claims = waiting.asked + 2 * bounds.heartbeat + bounds.response;
    let ends = end(history, waiting)?;
    // A grant may have happened this long before its record.
    let delay = bounds.response;
    let by = attempts.iter().find(|later| {
        let granted = later.hold().map_or(Nanos::MAX, |hold| hold.granted);
        let is_later = claims <= later.asked && granted.saturating_add(delay) < ends;
        is_later
            && steady.covers(waiting, granted)
            && !has_older(history, attempts, waiting, later.asked, granted)
            && shows_a_claim(capacities.between(waiting.asked, granted), waiting, later)
    })?;
    let text = format!("a later call took permits: {by}\n  {waiting}");
    Some(Promise::Claim.violation(text))
}

/// Returns whether a waiter has a claim with these capacities, and a later call took its permits:
/// both at once are more than there are.
fn shows_a_claim(capacities: RangeInclusive<i64>, waiting: &Attempt, later: &Attempt) -> bool {
    let [own, others] = [waiting, later].map(|it| i64::from(it.request.permits));
    own <= *capacities.start() && *capacities.end() < own + others
}

/// Returns whether an older waiter may have had the claim in this time.
fn has_older(
    history: &History,
    attempts: &[&Attempt],
    waiting: &Attempt,
    from: Nanos,
    to: Nanos,
) -> bool {
    let bounds = &history.bounds;
    attempts.iter().filter(|older| older.request.max_wait > 0).any(|older| {
        let kept = match older.outcome {
            Outcome::Held(_) | Outcome::Refused(_) | Outcome::Done(_) => 0,
            Outcome::Unknown | Outcome::Failed(_) => bounds.grant_lease,
        };
        let ended = end(history, older).unwrap_or(Nanos::MAX);
        let until = ended.saturating_add(kept + bounds.heartbeat + bounds.response);
        !std::ptr::eq(*older, waiting)
            // The claim of a younger waiter lasts until the older one claims.
            && older.asked <= waiting.asked + bounds.response
            && older.asked <= to
            && from <= until
    })
}

#[cfg(test)]
mod tests {
    use super::super::examples::{
        asking, disturbance, held, history, resize, violated, with_permits,
    };
    use super::super::{Affected, Attempt, Effect, History, Outcome, Promise};
    use crate::record::millis;

    /// The moment from which a call at 1000 is protected: two polls and the response time-out
    /// later.
    const CLAIMS: u64 = 1000 + 2 * 100 + 50;

    /// A long hold, a waiter for three permits from 1000 to 9000, and other calls.
    fn starved(others: Vec<(u32, Attempt)>) -> History {
        let calls = vec![(1, held(0, 0, 0, 1)), (2, held(1, 500, 500, 9000))];
        let waiting = vec![(3, held(0, 1000, 9000, 9001))];
        history(with_permits("semaphore-0", [calls, waiting, others].concat()))
    }

    #[test]
    fn a_later_call_takes_no_permits_of_the_oldest_waiter() {
        assert_eq!(violated(&starved(vec![])), []);
        let later = |asked| violated(&starved(vec![(1, held(1, asked, asked + 5, asked + 9))]));
        assert_eq!(later(CLAIMS - 1), [], "the claim may come later");
        assert_eq!(later(CLAIMS), [Promise::Claim]);
        assert_eq!(later(8950), [], "its record may be late");
    }

    /// The next waiter claims at its poll, 100 ms later. The response time-out is 50 ms.
    #[test]
    fn an_older_waiter_that_has_left_protects_the_next_one() {
        let later = |outcome: fn(u64) -> Outcome| {
            // The older waiter called first, and waited for 1000 ms.
            let older = (3, asking(0, 900, outcome(millis(1900))));
            let call = |asked| {
                let later = (1, held(1, asked, asked + 5, asked + 9));
                violated(&starved(vec![older.clone(), later]))
            };
            [call(1900 + 150), call(1900 + 151), call(1900 + 300 + 151)]
        };
        let [kept, broken] = [vec![], vec![Promise::Claim]];
        assert_eq!(later(Outcome::Refused), [kept.clone(), broken.clone(), broken.clone()]);
        // A call that fails may leave its claim for a grant lease.
        assert_eq!(later(Outcome::Failed), [kept.clone(), kept, broken]);
    }

    #[test]
    fn an_older_waiter_and_a_fault_excuse_a_later_call() {
        let later = || (1, held(1, 3000, 3005, 3009));
        // Another waiter for three permits, which called 50 ms later than the first.
        let older = (3, held(1, 1050, 9001, 9002));
        assert_eq!(violated(&starved(vec![later(), older])), []);
        let mut history = starved(vec![later()]);
        history.disturbances.push(disturbance(2000, 2100, Affected::All, Effect::Delays));
        assert_eq!(violated(&history), []);
    }

    #[test]
    fn a_changed_capacity_excuses_a_later_call() {
        let with = |change| {
            let mut history = starved(vec![(1, held(1, 3000, 3005, 3009))]);
            history.attempts.push(change);
            violated(&history)
        };
        assert_eq!(with(resize(3, 2000, 2010)), [Promise::Claim]);
        assert_eq!(with(resize(4, 2000, 2010)), [], "there is a permit for both");
        assert_eq!(with(resize(3, 100, 110)), [Promise::Claim]);
    }
}
