//! A key has the result of its last run, and no run begins beside a result.
//!
//! Every result that a caller gets is that of one run, which was not told that nothing is written.
//! A caller that asks after a grant, or after another result, gets no result of an earlier run. A
//! run whose commit succeeded is followed by another one, or by an answer that there is no result,
//! only if its result may have expired or have been deleted.
//!
//! Servers that lost data, or whose clocks stepped, excuse all of this.

use super::{Attempt, Held, History, Outcome, Promise, Seen, Violation};
use crate::record::{End, Verb, millis};
use crate::system::Nanos;

/// An answer about a result.
struct Answer<'a> {
    attempt: &'a Attempt,
    at: Nanos,
    seen: Option<Seen>,
}

/// Checks the calls for one key, those that read and delete its result included.
pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    if !attempts.iter().any(|attempt| attempt.request.is_once()) {
        return Vec::new();
    }
    let holds = attempts.iter().filter_map(|attempt| Some((*attempt, attempt.hold()?)));
    let mut runs: Vec<Held<'_>> = holds.collect();
    runs.sort_by_key(|(_, hold)| hold.token);
    let answers = attempts.iter().flat_map(|attempt| {
        attempt.seen.iter().map(|seen| Answer { attempt, at: seen.at, seen: seen.leader })
    });
    let answers: Vec<Answer<'_>> = answers.collect();
    let key = Key { history, attempts, runs };
    let begun = key.runs.windows(2).filter_map(|pair| key.begun_beside_result(pair[0], pair[1]));
    let read = answers.iter().filter_map(|answer| match answer.seen {
        Some(seen) => key.of_no_run(answer, seen).or_else(|| key.of_earlier_run(answer, &answers)),
        None => key.missed(answer),
    });
    begun.chain(read).collect()
}

/// The calls for one key, and its runs in the order of their tokens.
struct Key<'a> {
    history: &'a History,
    attempts: &'a [&'a Attempt],
    runs: Vec<Held<'a>>,
}

impl Key<'_> {
    /// Checks that a run follows another one only if that has left no result.
    fn begun_beside_result(&self, first: Held<'_>, next: Held<'_>) -> Option<Violation> {
        committed(first.1)?;
        let is_gone = self.may_be_gone(first, next.1.granted);
        let text = || format!("begun beside a result:\n  {}\n  {}", first.0, next.0);
        (!is_gone).then(|| Promise::Result.violation(text()))
    }

    /// Checks an answer that there is no result.
    fn missed(&self, answer: &Answer<'_>) -> Option<Violation> {
        let is_before = |(_, hold): &&Held<'_>| committed(hold) < Some(answer.attempt.asked);
        let mut committed = self.runs.iter().filter(|(_, hold)| committed(hold).is_some());
        let last = committed.rfind(is_before)?;
        let is_gone = self.may_be_gone(*last, answer.at);
        let text = || format!("not found: {}\n  {}", last.0, answer.attempt);
        (!is_gone).then(|| Promise::Result.violation(text()))
    }

    /// Checks that a result is that of a run, which may have written it.
    fn of_no_run(&self, answer: &Answer<'_>, seen: Seen) -> Option<Violation> {
        let is_run = |(attempt, hold): &&Held<'_>| {
            hold.token == seen.token && attempt.request.value == seen.value
        };
        let found = self.runs.iter().find(is_run);
        let text = || format!("the result {seen:?}: {}", answer.attempt);
        let Some(run) = found else { return Some(Promise::Result.violation(text())) };
        let may_be_written = match run.1.ended {
            None | Some((_, End::Committed | End::Unknown)) => true,
            // The commit was repeated, and what the first copy had written was deleted meanwhile.
            Some((at, End::Lost)) => self.may_be_forgotten(run.1.valid_to, at),
            Some((_, End::Unlocked | End::Dropped)) => false,
        };
        let is_excused = may_be_written || self.may_be_lost(run.0, answer.at);
        let text = || format!("{}\n  of {}", text(), run.0);
        (!is_excused).then(|| Promise::Result.violation(text()))
    }

    /// Checks that a result is not that of a run before the last one that is known.
    fn of_earlier_run(&self, answer: &Answer<'_>, answers: &[Answer<'_>]) -> Option<Violation> {
        let seen = answer.seen?;
        let asked = answer.attempt.asked;
        let granted = self.runs.iter().map(|(_, hold)| (hold.granted, hold.token));
        let read = answers.iter().filter_map(|other| Some((other.at, other.seen?.token)));
        let known = granted.chain(read).filter(|(at, _)| *at < asked);
        let last = known.map(|(_, token)| token).max().filter(|token| seen.token < *token)?;
        let run = self.runs.iter().find(|(_, hold)| hold.token == seen.token)?;
        let text = || format!("{seen:?} after token {last}: {}", answer.attempt);
        (!self.may_be_lost(run.0, answer.at)).then(|| Promise::Result.violation(text()))
    }

    /// Whether the result of a run may have expired at this moment, or may have been deleted.
    fn may_be_gone(&self, run: Held<'_>, at: Nanos) -> bool {
        let bounds = &self.history.bounds;
        let keep = run.0.request.keep.map_or(Nanos::MAX, |keep| bounds.soonest(millis(keep)));
        run.1.valid_to.saturating_add(keep) <= at
            || self.may_be_forgotten(run.1.valid_to, at)
            || self.may_be_lost(run.0, at)
    }

    /// Whether a result may have been deleted between two moments. The request of a call that
    /// failed may arrive later.
    fn may_be_forgotten(&self, from: Nanos, to: Nanos) -> bool {
        let mut calls = self.attempts.iter().filter(|it| it.request.verb == Verb::Forget);
        calls.any(|call| {
            let until = match call.outcome {
                Outcome::Refused(_) => return false,
                Outcome::Done(at) => at,
                _ => Nanos::MAX,
            };
            call.asked <= to && from <= until
        })
    }

    /// Whether servers may have lost, between the call of a run and this moment, what they know of
    /// the key, or may have an older state.
    fn may_be_lost(&self, run: &Attempt, at: Nanos) -> bool {
        let lock = &run.request.lock;
        self.history.may_have_lost_between(lock, run.asked, at)
            || self.history.may_be_outdated(lock, at)
    }
}

/// Returns the moment at which the commit of a run was known to have succeeded.
fn committed(hold: &super::Hold) -> Option<Nanos> {
    hold.ended.filter(|(_, how)| *how == End::Committed).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, held, history, hold_of, violated};
    use super::super::{Affected, Attempt, Effect, Outcome, Promise, Seen, Sighting};
    use crate::record::{End, Verb, millis};

    /// Returns a run with the token and the value `granted`.
    fn run(asked: u64, granted: u64, end: u64, how: End) -> Attempt {
        let mut run = held(0, asked, granted, end);
        run.request.lock = "once-0".to_owned();
        run.request.value = granted;
        hold_of(&mut run).ended = Some((millis(end), how));
        run
    }

    /// Returns a call about the result from one moment to another.
    fn call(verb: Verb, (asked, at): (u64, u64), seen: Option<Option<u64>>) -> Attempt {
        let mut call = asking(1, asked, Outcome::Done(millis(at)));
        call.request.lock = "once-0".to_owned();
        (call.request.verb, call.request.max_wait) = (verb, 0);
        let seen = seen.map(|token| token.map(|token| Seen { token, value: token }));
        call.seen.extend(seen.map(|leader| Sighting { at: millis(at), leader }));
        call
    }

    fn read(span: (u64, u64), token: u64) -> Attempt {
        call(Verb::Outcome, span, Some(Some(token)))
    }

    fn missed(span: (u64, u64)) -> Attempt {
        call(Verb::Outcome, span, Some(None))
    }

    fn forgotten(span: (u64, u64)) -> Attempt {
        call(Verb::Forget, span, None)
    }

    fn of(attempts: Vec<Attempt>) -> Vec<Promise> {
        violated(&history(attempts))
    }

    #[test]
    fn a_run_follows_a_result_that_is_gone() {
        let [first, next] = [run(0, 10, 20, End::Committed), run(15, 30, 40, End::Committed)];
        assert_eq!(of(vec![first.clone(), next.clone()]), [Promise::Result]);
        for how in [End::Dropped, End::Unlocked, End::Unknown] {
            assert_eq!(of(vec![run(0, 10, 20, how), next.clone()]), []);
        }
        assert_eq!(of(vec![first.clone(), forgotten((18, 25)), next.clone()]), []);
        assert_eq!(of(vec![first.clone(), forgotten((31, 35)), next.clone()]), [Promise::Result]);
        let mut refused = forgotten((18, 25));
        refused.outcome = Outcome::Refused(millis(25));
        assert_eq!(of(vec![first.clone(), refused, next.clone()]), [Promise::Result]);
        let kept = |keep| {
            let mut first = first.clone();
            first.request.keep = Some(keep);
            of(vec![first, next.clone()])
        };
        assert_eq!((kept(10), kept(11)), (vec![], vec![Promise::Result]));
    }

    #[test]
    fn an_answer_without_a_result_follows_one_that_is_gone() {
        let first = run(0, 10, 20, End::Committed);
        assert_eq!(of(vec![first.clone(), missed((21, 25))]), [Promise::Result]);
        assert_eq!(of(vec![first.clone(), missed((19, 25))]), [], "before the commit");
        let gone = vec![first.clone(), forgotten((21, 22)), missed((23, 25))];
        assert_eq!(of(gone), []);
        let mut lost = history(vec![first, missed((21, 25))]);
        lost.disturbances.push(disturbance(15, 16, Affected::Nobody, Effect::LosesHolds));
        assert_eq!(violated(&lost), []);
    }

    #[test]
    fn a_result_is_that_of_a_run_that_may_have_written_it() {
        let with = |how, token| of(vec![run(0, 10, 20, how), read((30, 31), token)]);
        assert_eq!(with(End::Committed, 10), []);
        assert_eq!(with(End::Unknown, 10), []);
        assert_eq!(with(End::Committed, 9), [Promise::Result], "of no run");
        assert_eq!(with(End::Dropped, 10), [Promise::Result]);
        let lost = |forgotten: Option<Attempt>| {
            let mut late = run(0, 10, 20, End::Lost);
            // The end of a fixed lease is a reason.
            late.request.lease = Some(20);
            of([vec![late, read((15, 16), 10)], Vec::from_iter(forgotten)].concat())
        };
        assert_eq!(lost(None), [Promise::Result]);
        assert_eq!(lost(Some(forgotten((18, 25)))), []);
    }

    #[test]
    fn a_result_is_not_that_of_an_earlier_run() {
        let [first, next] = [run(0, 10, 20, End::Unknown), run(15, 30, 40, End::Dropped)];
        let with = |last: Attempt| of(vec![first.clone(), next.clone(), last]);
        assert_eq!(with(read((25, 31), 10)), [], "asked before the grant");
        assert_eq!(with(read((35, 36), 10)), [Promise::Result]);
        let again = vec![first, next, read((31, 36), 30), read((37, 38), 10)];
        assert_eq!(of(again), [Promise::Result; 2], "a dropped run has no result either");
    }
}
