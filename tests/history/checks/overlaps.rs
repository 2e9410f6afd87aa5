//! No two valid holds overlap, unless something happened for which that is documented; and
//! then the loser is told in time.

use super::{Attempt, Disturbance, Effect, History, Hold, Promise, Violation};
use crate::Nanos;

pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    let holds = attempts.iter().filter_map(|attempt| Some((*attempt, attempt.hold()?)));
    let mut holds: Vec<_> = holds.collect();
    holds.sort_by_key(|(_, hold)| hold.got);
    let mut found: Vec<_> = holds.iter().filter_map(|one| outlives(history, *one)).collect();
    found.extend(holds.iter().filter_map(|one| was_not_told(history, *one)));
    let mut open: Vec<(&Attempt, &Hold)> = Vec::new();
    for later in holds {
        open.retain(|(_, hold)| later.1.got < hold.valid_to);
        for earlier in &open {
            if !(earlier.0.wish.shares && later.0.wish.shares) {
                found.extend(overlap(history, *earlier, later));
            }
        }
        open.push(later);
    }
    found
}

type Held<'a> = (&'a Attempt, &'a Hold);

/// Both were valid when the later was got.
fn overlap(history: &History, earlier: Held<'_>, later: Held<'_>) -> Option<Violation> {
    let begun = later.1.got;
    let excuses = |d: &&Disturbance| d.effect != Effect::Delays && d.touches(&later.0.wish.lock);
    let mut reasons = history.disturbances.iter().filter(excuses);
    let reason = reasons.any(|d| d.from <= begun && earlier.0.asked <= d.over);
    let text = format!("{} and\n  {}", earlier.0, later.0);
    if !reason {
        return Some(Promise::Exclusion.broken(text));
    }
    let late = earlier.1.valid_to > told_by(history, earlier.0, begun);
    late.then(|| Promise::Report.broken(format!("too late, {text}")))
}

/// When the holder of a lock that was lost at this moment has to know it.
fn told_by(history: &History, attempt: &Attempt, lost: Nanos) -> Nanos {
    let bounds = &history.bounds;
    let period = history.workers[attempt.worker].lease / 3;
    let takes = period + bounds.response + bounds.slack;
    // It needs that long without a disturbance: one may follow another.
    let mut from = lost;
    loop {
        let disturbed = history.disturbances_of(attempt.worker, lost, from + takes);
        let end = disturbed.map(|d| d.over).max().unwrap_or(from).max(from);
        if end == from {
            break;
        }
        from = end;
    }
    // A fixed lease is asked for no more: it is lost at its deadline.
    let deadline = attempt.hold().map_or(from, |hold| hold.got + history.lease(attempt));
    if attempt.wish.lease.is_some() { deadline } else { from + takes }
}

/// A hold with a fixed lease says that it is valid after its end.
fn outlives(history: &History, (attempt, hold): Held<'_>) -> Option<Violation> {
    let fixed = attempt.wish.lease.is_some();
    let over = fixed && hold.got + history.lease(attempt) < hold.valid_to;
    over.then(|| Promise::Report.broken(format!("valid after its lease: {attempt}")))
}

/// All servers have forgotten a hold, and its holder was not told.
fn was_not_told(history: &History, (attempt, hold): Held<'_>) -> Option<Violation> {
    let empties = history.disturbances.iter().filter(|d| d.effect == Effect::Empties);
    let mut gone = empties.filter(|d| hold.got < d.from && d.from < hold.valid_to);
    let late = gone.any(|d| told_by(history, attempt, d.over) < hold.valid_to);
    late.then(|| Promise::Report.broken(format!("not told that all is gone: {attempt}")))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{broken, disturbance, held, history};
    use super::super::{Disturbance, Effect, Promise, Whom};

    #[test]
    fn two_that_are_valid_at_once_are_found() {
        assert_eq!(broken(&history(vec![held(0, 0, 10, 20), held(1, 0, 20, 30)])), []);
        let overlap = history(vec![held(0, 0, 10, 21), held(1, 0, 20, 30)]);
        assert_eq!(broken(&overlap), [Promise::Exclusion]);
        let inside = history(vec![held(0, 0, 10, 90), held(1, 0, 20, 30), held(1, 30, 40, 50)]);
        assert_eq!(broken(&inside), [Promise::Exclusion, Promise::Exclusion]);
    }

    #[test]
    fn those_that_share_may_overlap_with_each_other_only() {
        let reader = |attempt: super::Attempt| {
            let mut attempt = attempt;
            attempt.wish.shares = true;
            attempt
        };
        let (one, two) = (reader(held(0, 0, 10, 30)), reader(held(1, 0, 20, 40)));
        assert_eq!(broken(&history(vec![one.clone(), two])), []);
        assert_eq!(broken(&history(vec![one, held(1, 0, 20, 40)])), [Promise::Exclusion]);
    }

    #[test]
    fn a_fault_that_forgets_excuses_until_the_loser_has_to_know() {
        let late = |end, whom, effect| {
            let mut history = history(vec![held(0, 0, 10, end), held(1, 0, 200, 210)]);
            history.disturbances.push(disturbance(100, 150, whom, effect));
            broken(&history)
        };
        // A third of a lease of 1000, the response time-out and the slack.
        assert_eq!(late(200 + 333 + 100, Whom::All, Effect::Forgets), []);
        assert_eq!(late(200 + 333 + 102, Whom::All, Effect::Forgets), [Promise::Report]);
        assert_eq!(late(201, Whom::All, Effect::Delays), [Promise::Exclusion]);
        let mut before = history(vec![held(0, 300, 310, 400), held(1, 300, 350, 360)]);
        before.disturbances.push(disturbance(100, 150, Whom::All, Effect::Forgets));
        assert_eq!(broken(&before), [Promise::Exclusion], "it was over when they came");
    }

    #[test]
    fn what_one_node_forgets_excuses_nothing_at_another() {
        let with = |slots| {
            let mut history = history(vec![held(0, 0, 10, 210), held(1, 0, 200, 210)]);
            let forgets = disturbance(100, 150, Whom::All, Effect::Forgets);
            history.disturbances.push(Disturbance { slots, ..forgets });
            broken(&history)
        };
        // The lock's name is "a".
        assert_eq!(with(vec![0..=100, 15_495..=15_495]), []);
        assert_eq!(with(vec![0..=15_494, 15_496..=16_383]), [Promise::Exclusion]);
    }

    #[test]
    fn who_cannot_reach_a_server_has_to_know_when_it_can() {
        let mut history = history(vec![held(0, 0, 10, 900), held(1, 0, 200, 210)]);
        history.disturbances.push(disturbance(100, 150, Whom::All, Effect::Forgets));
        history.disturbances.push(disturbance(150, 600, Whom::Worker(0), Effect::Delays));
        assert_eq!(broken(&history), []);
        history.disturbances.pop();
        assert_eq!(broken(&history), [Promise::Report]);
    }

    #[test]
    fn a_fixed_lease_is_over_at_its_end() {
        let mut fixed = held(0, 0, 10, 80);
        fixed.wish.lease = Some(70);
        assert_eq!(broken(&history(vec![fixed.clone()])), []);
        fixed.wish.lease = Some(69);
        assert_eq!(broken(&history(vec![fixed])), [Promise::Report]);
    }

    #[test]
    fn who_held_a_lock_when_all_was_forgotten_is_told() {
        let told = |end| {
            let mut history = history(vec![held(0, 0, 10, end)]);
            history.disturbances.push(disturbance(100, 200, Whom::All, Effect::Empties));
            broken(&history)
        };
        assert_eq!(told(200 + 333 + 100), []);
        assert_eq!(told(200 + 333 + 102), [Promise::Report]);
    }
}
