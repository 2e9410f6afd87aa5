//! Permits of a plain semaphore are taken and given back exactly once: after the run as many are
//! free as at its start, less those that killed workers did not give back, and with those that
//! callers have added. The client completes a change without an answer, unless it is killed.
//!
//! A server that loses data may lose the count, so there is no check after that.

use super::{Attempt, History, Outcome, Promise, Violation};
use crate::record::End;
use crate::system::Nanos;

pub(super) fn check(
    history: &History,
    attempts: &[&Attempt],
    changes: &[&Attempt],
) -> Option<Violation> {
    let first = attempts.iter().chain(changes).next()?;
    let request = Some(&first.request).filter(|it| it.is_counted())?;
    let is_used = attempts.iter().any(|attempt| attempt.hold().is_some()) || !changes.is_empty();
    if !is_used || history.may_have_lost_data(&request.lock, 0, Nanos::MAX) {
        return None;
    }
    let missing: u32 = attempts.iter().map(|attempt| may_be_missing(history, attempt)).sum();
    let (mut least, mut most) = (i64::from(request.capacity()), i64::from(request.capacity()));
    for change in changes {
        let added = change.request.added();
        let is_certain = match change.outcome {
            Outcome::Done(_) => true,
            // The client completes the change, unless it is killed.
            Outcome::Failed(_) => history.workers[change.worker].killed.is_none(),
            _ => false,
        };
        least += if is_certain { added } else { added.min(0) };
        most += if is_certain { added } else { added.max(0) };
    }
    let free = history.counts.get(&request.lock).copied().unwrap_or(0);
    let is_right = least - i64::from(missing) <= free && free <= most;
    (!is_right).then(|| {
        let text = format!("{free} of {least} to {most} permits of {} are free, ", request.lock);
        Promise::Counts.violation(text + &format!("and up to {missing} may be missing"))
    })
}

/// Returns the number of permits that the worker may have taken and not given back.
fn may_be_missing(history: &History, attempt: &Attempt) -> u32 {
    let is_killed = history.workers[attempt.worker].killed.is_some();
    match &attempt.outcome {
        Outcome::Held(hold) if matches!(hold.ended, Some((_, End::Unlocked))) => 0,
        // The client completes or undoes a request without an answer, unless it is killed.
        Outcome::Held(_) | Outcome::Refused(_) | Outcome::Failed(_) if !is_killed => 0,
        _ => attempt.request.permits,
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, held, history, hold_of, violated};
    use super::super::{Affected, Attempt, Effect, History, Outcome, Promise};
    use crate::record::{End, Verb, millis};

    /// Returns a history of calls for two permits each, after which so many are free.
    fn count(free: i64, attempts: Vec<Attempt>) -> History {
        let mut history = history(attempts);
        for attempt in &mut history.attempts {
            (attempt.request.permits, attempt.request.lock) = (2, "count-0".to_owned());
        }
        history.counts.insert("count-0".to_owned(), free);
        history
    }

    #[test]
    fn all_permits_are_free_after_the_run() {
        let attempts = || {
            let failed = asking(1, 30, Outcome::Failed(millis(90)));
            vec![held(0, 0, 10, 20), held(1, 20, 30, 40), failed]
        };
        assert_eq!(violated(&count(3, attempts())), []);
        assert_eq!(violated(&count(5, attempts())), [Promise::Counts], "given back twice");
        assert_eq!(violated(&count(1, attempts())), [Promise::Counts], "taken twice");
        let mut lost = count(5, attempts());
        lost.disturbances.push(disturbance(0, 5, Affected::All, Effect::LosesHolds));
        assert_eq!(violated(&lost), []);
    }

    #[test]
    fn added_permits_are_free_after_the_run() {
        let with = |verb, outcome, killed, free| {
            let mut change = asking(0, 50, Outcome::Unknown);
            (change.request.verb, change.outcome) = (verb, outcome);
            let mut history = count(free, vec![held(0, 0, 10, 20), change]);
            history.workers[0].killed = killed;
            violated(&history)
        };
        let wrong = [Promise::Counts];
        let done = || Outcome::Done(millis(60));
        assert_eq!(with(Verb::Add, done(), None, 5), []);
        assert_eq!([3, 7].map(|free| with(Verb::Add, done(), None, free)), [wrong; 2]);
        assert_eq!(with(Verb::Remove, done(), None, 1), []);
        assert_eq!([3, -1].map(|free| with(Verb::Remove, done(), None, free)), [wrong; 2]);
        // The client completes it, after 50 ms without a reply.
        let failed = || Outcome::Failed(millis(110));
        assert_eq!(with(Verb::Add, failed(), None, 5), []);
        assert_eq!(with(Verb::Add, failed(), None, 3), wrong);
        let killed = Some(millis(120));
        assert_eq!([3, 5].map(|free| with(Verb::Add, failed(), killed, free)), [[], []]);
        assert_eq!([2, 6].map(|free| with(Verb::Add, failed(), killed, free)), [wrong; 2]);
    }

    #[test]
    fn permits_are_counted_if_callers_only_add_some() {
        let added = |free| {
            let mut change = asking(0, 50, Outcome::Done(millis(60)));
            change.request.verb = Verb::Add;
            violated(&count(free, vec![change]))
        };
        assert_eq!([added(5), added(4)], [vec![], vec![Promise::Counts]]);
    }

    #[test]
    fn only_killed_workers_keep_permits() {
        let mut kept = held(0, 0, 10, 20);
        hold_of(&mut kept).ended = Some((millis(20), End::Dropped));
        for attempt in [kept, asking(0, 0, Outcome::Unknown)] {
            let with = |free, killed| {
                let mut history = count(free, vec![attempt.clone(), held(1, 20, 30, 40)]);
                history.workers[0].killed = killed;
                violated(&history)
            };
            let killed = Some(millis(25));
            assert_eq!([with(3, killed), with(1, killed)], [[], []]);
            assert_eq!([with(0, killed), with(5, killed)], [[Promise::Counts]; 2]);
            assert_eq!(with(2, None).is_empty(), attempt.hold().is_none());
        }
    }
}
