//! A latch opens at the last count-down of its round or at its deletion, not before, and its
//! waiters return in time.
//!
//! A history does not show when a server had a latch open. Each reply shows that the latch was open
//! or closed at some moment between the call and its return. Other moments follow from the calls:
//!
//! * After a call that set the count, the latch is closed for as long as fewer count-downs, and no
//!   deletion, may have run.
//! * It is open if that many count-downs have returned, or a reply has shown it open, and since
//!   then no call may have set a count.
//!
//! A call without a reply may run at any later moment. A loss of data that may concern a call makes
//! its reply worthless.

use super::waits::{end, longest_gap};
use super::{Attempt, History, Outcome, Promise, Violation};
use crate::record::Verb;
use crate::system::Nanos;

/// Checks all calls about one latch. Returns the longest wait at an open latch, too.
pub(super) fn check(history: &History, attempts: &[&Attempt]) -> (Vec<Violation>, Nanos) {
    let latch = Latch::new(history, attempts);
    let waits = attempts.iter().filter(|attempt| attempt.request.verb == Verb::Acquire);
    let gaps: Vec<_> = waits.filter_map(|wait| Some((wait, latch.gap(wait)?))).collect();
    let contradictions = attempts.iter().filter_map(|attempt| latch.contradiction(attempt));
    let late = gaps.iter().filter(|(_, gap)| *gap > history.bounds.wait());
    let late = late.map(|(wait, gap)| {
        let text = format!("{:.0} ms at an open latch: {wait}", *gap as f64 / 1e6);
        Promise::Wait.violation(text)
    });
    let found = contradictions.chain(late).chain(latch.wrong_count()).collect();
    (found, gaps.iter().map(|(_, gap)| *gap).max().unwrap_or(0))
}

/// The calls about one latch. A run may have 150,000 of them, so no question looks at all.
struct Latch<'a> {
    history: &'a History,
    sets: Changes<'a>,
    count_downs: Changes<'a>,
    deletions: Changes<'a>,
    /// The calls that show the latch open at some moment, with their ends, in the order of the
    /// calls.
    openings: Vec<(&'a Attempt, Nanos)>,
}

/// The calls with one verb that may have changed the latch, in the order of the calls.
struct Changes<'a> {
    calls: Vec<&'a Attempt>,
    /// For each call, the latest known end of the calls up to it.
    latest_ends: Vec<Nanos>,
    /// The calls whose end is not known.
    unsettled: Vec<&'a Attempt>,
}

impl<'a> Changes<'a> {
    fn of(attempts: &[&'a Attempt], verb: Verb) -> Changes<'a> {
        let changes = |attempt: &&&Attempt| {
            attempt.request.verb == verb && !matches!(attempt.outcome, Outcome::Refused(_))
        };
        let mut calls: Vec<_> = attempts.iter().filter(changes).copied().collect();
        calls.sort_by_key(|call| call.asked);
        let mut latest = 0;
        let mut latest_ends = Vec::with_capacity(calls.len());
        for call in &calls {
            if settled(call) < Nanos::MAX {
                latest = latest.max(settled(call));
            }
            latest_ends.push(latest);
        }
        let unsettled = calls.iter().copied().filter(|call| settled(call) == Nanos::MAX).collect();
        Changes { calls, latest_ends, unsettled }
    }

    /// Returns the calls that begin at a moment or later.
    fn from(&self, moment: Nanos) -> &[&'a Attempt] {
        &self.calls[self.calls.partition_point(|call| call.asked < moment)..]
    }

    /// Returns the calls that begin at a moment or earlier.
    fn until(&self, moment: Nanos) -> &[&'a Attempt] {
        &self.calls[..self.calls.partition_point(|call| call.asked <= moment)]
    }

    /// Returns the calls that may have run between two moments.
    fn running(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = &'a Attempt> {
        let known = (0..self.until(to).len()).rev();
        let known = known.take_while(move |at| from <= self.latest_ends[*at]);
        let known = known.map(|at| self.calls[at]);
        let known = known.filter(move |it| from <= settled(it) && settled(it) < Nanos::MAX);
        self.unsettled.iter().copied().filter(move |it| it.asked <= to).chain(known)
    }
}

/// Returns when the effect of a call is certain; `MAX` for a call without a reply.
fn settled(attempt: &Attempt) -> Nanos {
    match attempt.outcome {
        Outcome::Done(at) | Outcome::Refused(at) => at,
        Outcome::Unknown | Outcome::Failed(_) | Outcome::Held(_) => Nanos::MAX,
    }
}

/// Returns the end of a call that shows the latch open at some moment.
fn shown_open(attempt: &Attempt) -> Option<Nanos> {
    match (attempt.request.verb, &attempt.outcome) {
        (Verb::Acquire | Verb::SetCount | Verb::Delete, Outcome::Done(at))
        | (Verb::Delete, Outcome::Refused(at)) => Some(*at),
        _ => None,
    }
}

/// Returns the end of a call that shows the latch closed at some moment.
fn shown_closed(attempt: &Attempt) -> Option<Nanos> {
    match (attempt.request.verb, &attempt.outcome) {
        (Verb::Acquire | Verb::SetCount, Outcome::Refused(at))
        | (Verb::Delete, Outcome::Done(at)) => Some(*at),
        _ => None,
    }
}

impl<'a> Latch<'a> {
    fn new(history: &'a History, attempts: &[&'a Attempt]) -> Latch<'a> {
        let opening = |attempt: &&'a Attempt| Some((*attempt, shown_open(attempt)?));
        let mut openings: Vec<_> = attempts.iter().filter_map(opening).collect();
        openings.sort_by_key(|(attempt, _)| attempt.asked);
        Latch {
            history,
            sets: Changes::of(attempts, Verb::SetCount),
            count_downs: Changes::of(attempts, Verb::CountDown),
            deletions: Changes::of(attempts, Verb::Delete),
            openings,
        }
    }

    /// Returns the last call before this moment that set the count, if it counts until `to`.
    fn last_round(&self, before: Nanos, to: Nanos) -> Option<&'a Attempt> {
        let mut last: Option<&Attempt> = None;
        for (at, set) in self.sets.until(before).iter().enumerate().rev() {
            if last.is_some_and(|last| self.sets.latest_ends[at] <= settled(last)) {
                break;
            }
            if settled(set) <= before && last.is_none_or(|last| settled(last) < settled(set)) {
                last = Some(set);
            }
        }
        last.filter(|last| !self.history.may_have_lost(last, to))
    }

    /// Returns whether the latch is closed from one moment to another.
    fn is_closed(&self, from: Nanos, to: Nanos) -> bool {
        self.last_round(from, to).is_some_and(|set| {
            let count = set.request.permits as usize;
            let has_count_downs =
                self.count_downs.running(set.asked, to).take(count).count() == count;
            let is_deleted = self.deletions.running(set.asked, to).next().is_some();
            !has_count_downs && !is_deleted
        })
    }

    /// Returns the moment since which the latch is open, if it is open until `to`.
    fn open_since(&self, to: Nanos) -> Option<Nanos> {
        let Some(newest) = self.sets.until(to).last() else { return Some(0) };
        // Others may have ended later than the one that began last.
        let ending = self.sets.running(newest.asked, to);
        let last = ending.max_by_key(|set| settled(set)).unwrap_or(newest);
        let from = settled(last);
        let shown = self.first_opening(from, to).filter(|at| *at <= to);
        let mut running = self.sets.running(last.asked, to);
        let is_only = running.all(|set| std::ptr::eq(set, last));
        let has_count = is_only && !self.history.may_have_lost(last, to);
        let counted = has_count.then(|| self.counted_down(from, last.request.permits as usize, to));
        shown.into_iter().chain(counted.flatten()).min()
    }

    /// Returns the first end of the calls from a moment on that show the latch open, and that no
    /// loss until `to` may concern.
    fn first_opening(&self, from: Nanos, to: Nanos) -> Option<Nanos> {
        let mut first = None;
        let later = self.openings.partition_point(|(attempt, _)| attempt.asked < from);
        for (attempt, end) in &self.openings[later..] {
            if first.is_some_and(|first| first <= attempt.asked) {
                break;
            }
            if first.is_none_or(|first| *end < first) && !self.history.may_have_lost(attempt, to) {
                first = Some(*end);
            }
        }
        first
    }

    /// Returns when that many count-downs from a moment on have certainly run, if before `to`.
    fn counted_down(&self, from: Nanos, count: usize, to: Nanos) -> Option<Nanos> {
        let mut ends = Vec::new();
        for down in self.count_downs.from(from) {
            if to < down.asked || ends.get(count - 1).is_some_and(|end| *end <= down.asked) {
                break;
            }
            if settled(down) <= to {
                ends.insert(ends.partition_point(|end| *end <= settled(down)), settled(down));
            }
        }
        ends.get(count - 1).copied()
    }

    /// Checks a reply against the moments at which the latch is certainly open or closed.
    fn contradiction(&self, attempt: &Attempt) -> Option<Violation> {
        let from = attempt.asked;
        let is_early = shown_open(attempt).is_some_and(|to| self.is_closed(from, to));
        let is_late = shown_closed(attempt).is_some_and(|to| {
            // A cancelled wait may end without a reply.
            let may_be_unanswered = attempt.request.cancelled
                && self.history.disturbances_of(attempt, from, to).next().is_some();
            self.open_since(to).is_some_and(|since| since <= from) && !may_be_unanswered
        });
        let text = if is_early {
            "open before its last count-down"
        } else if is_late {
            "closed after its last count-down"
        } else {
            return None;
        };
        Some(Promise::Counts.violation(format!("a latch is {text}: {attempt}")))
    }

    /// Returns the longest undisturbed wait after the end of a round of this call; `None` if the
    /// end of the call is not known.
    fn gap(&self, wait: &Attempt) -> Option<Nanos> {
        let to = end(self.history, wait)?;
        let ended = self.open_since(to).into_iter().chain(self.round_ended(wait, to)).min();
        let from = ended.unwrap_or(to).max(wait.asked);
        let disturbed = self.history.disturbances_of(wait, from, to);
        Some(longest_gap(from, to, disturbed.map(|d| (d.from, d.felt_until)).collect()))
    }

    /// Returns the end of a call that shows the round of a waiting call over, though the latch may
    /// be closed again.
    ///
    /// The waiting call has had the answer to its first question by then, or an error.
    fn round_ended(&self, wait: &Attempt, to: Nanos) -> Option<Nanos> {
        let asked = wait.asked + self.history.bounds.response + self.history.bounds.slack;
        if self.history.disturbances_of(wait, wait.asked, asked).next().is_some() {
            return None;
        }
        self.first_opening(asked, to)
    }

    /// Checks the count after the run against the count-downs of the last round.
    fn wrong_count(&self) -> Option<Violation> {
        let set = self.last_round(Nanos::MAX - 1, Nanos::MAX)?;
        let sets = self.sets.running(set.asked, Nanos::MAX).count();
        let is_deleted = self.deletions.running(set.asked, Nanos::MAX).next().is_some();
        let count = i64::from(set.request.permits);
        let left = |downs: usize| (count - i64::try_from(downs).unwrap_or(i64::MAX)).max(0);
        let least = left(self.count_downs.running(set.asked, Nanos::MAX).count());
        let later = self.count_downs.from(settled(set)).iter();
        let most = left(later.filter(|down| settled(down) < Nanos::MAX).count());
        let found = self.history.counts.get(&set.request.lock).copied().unwrap_or(0);
        let is_right = sets > 1 || is_deleted || (least..=most).contains(&found);
        (!is_right).then(|| {
            let text = format!("the count is {found}, not from {least} to {most}, after {set}");
            Promise::Counts.violation(text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, history, violated};
    use super::super::{Affected, Attempt, Effect, History, Outcome, Promise};
    use crate::record::{Verb, millis};

    /// The poll interval, the response time-out and the slack of the examples.
    const BOUND: u64 = 200;

    /// The time until the first answer to a waiting call: the response time-out and the slack.
    const ANSWERED: u64 = 100;

    /// Returns a call about the latch. All moments are in milliseconds.
    fn call(verb: Verb, asked: u64, outcome: Outcome) -> Attempt {
        let mut call = asking(0, asked, outcome);
        (call.request.lock, call.request.verb) = ("latch-0".to_owned(), verb);
        call
    }

    fn done(verb: Verb, asked: u64, at: u64) -> Attempt {
        call(verb, asked, Outcome::Done(millis(at)))
    }

    fn set(count: u32, asked: u64, at: u64) -> Attempt {
        let mut set = done(Verb::SetCount, asked, at);
        set.request.permits = count;
        set
    }

    /// Returns a call of the second worker that waits until the latch is open.
    fn wait(asked: u64, at: u64) -> Attempt {
        Attempt { worker: 1, ..done(Verb::Acquire, asked, at) }
    }

    /// Returns a history of calls after which the latch has this count.
    fn latch(count: i64, calls: Vec<Attempt>) -> History {
        let mut history = history(calls);
        history.counts.insert("latch-0".to_owned(), count);
        history
    }

    fn down(asked: u64, at: u64) -> Attempt {
        done(Verb::CountDown, asked, at)
    }

    #[test]
    fn a_latch_does_not_open_before_its_last_count_down_begins() {
        let waits = |from, second| {
            violated(&latch(0, vec![set(2, 0, 10), down(20, 30), down(second, 90), wait(from, 60)]))
        };
        assert_eq!(waits(15, 60), [], "the second count-down begins in time");
        assert_eq!(waits(15, 61), [Promise::Counts]);
        assert_eq!(waits(9, 61), [], "the call begins before the round");
        let unanswered = call(Verb::CountDown, 5, Outcome::Unknown);
        let late = vec![unanswered, set(2, 9, 10), down(20, 30), wait(40, 60)];
        assert_eq!(violated(&latch(0, late)), [], "a count-down without a reply runs late");
    }

    #[test]
    fn a_deletion_opens_a_latch_and_another_set_needs_an_open_one() {
        let again = |middle: Vec<Attempt>| {
            violated(&latch(2, [vec![set(2, 0, 10)], middle, vec![set(2, 50, 60)]].concat()))
        };
        assert_eq!(again(vec![done(Verb::Delete, 20, 90)]), []);
        assert_eq!(again(vec![call(Verb::Delete, 20, Outcome::Unknown)]), []);
        assert_eq!(again(vec![down(20, 30)]), [Promise::Counts]);
        let refused = call(Verb::Delete, 20, Outcome::Refused(millis(30)));
        assert_eq!(again(vec![refused]), [Promise::Counts; 2], "a deletion of an open latch, too");
    }

    #[test]
    fn a_latch_is_open_after_its_last_count_down() {
        let then = |second, call: Attempt| {
            violated(&latch(0, vec![set(2, 0, 10), down(20, 30), down(20, second), call]))
        };
        for verb in [Verb::SetCount, Verb::Acquire] {
            let refused = || call(verb, 40, Outcome::Refused(millis(50)));
            assert_eq!(then(40, refused()), [Promise::Counts], "{verb}");
            assert_eq!(then(41, refused()), [], "{verb}");
        }
        assert_eq!(then(40, done(Verb::Delete, 40, 50)), [Promise::Counts]);
        let early = vec![down(5, 30), set(2, 6, 10), down(20, 30), down(70, 80)];
        let refused = call(Verb::SetCount, 40, Outcome::Refused(millis(50)));
        let early = [early, vec![refused]].concat();
        assert_eq!(violated(&latch(0, early)), [], "a count-down may run before the round");
    }

    #[test]
    fn a_waiter_returns_in_time_after_its_round() {
        let waits = |at, more: Vec<Attempt>| {
            let round = vec![set(1, 0, 10), down(20, 130)];
            violated(&latch(0, [round, more, vec![wait(15, at)]].concat()))
        };
        assert_eq!(waits(130 + BOUND, vec![]), []);
        assert_eq!(waits(131 + BOUND, vec![]), [Promise::Wait]);
        // The next round: another worker finds the latch open, and sets the count.
        let next = |asked| vec![set(1, asked, 140), down(800, 900)];
        assert_eq!(waits(140 + BOUND, next(15 + ANSWERED)), []);
        assert_eq!(waits(141 + BOUND, next(15 + ANSWERED)), [Promise::Wait]);
        assert_eq!(waits(141 + BOUND, next(14 + ANSWERED)), [], "the round of the call is unknown");
    }

    #[test]
    fn a_wait_at_a_latch_that_was_never_set_ends_at_once() {
        assert_eq!(violated(&latch(0, vec![wait(0, BOUND)])), []);
        assert_eq!(violated(&latch(0, vec![wait(0, BOUND + 1)])), [Promise::Wait]);
        let refused = call(Verb::Acquire, 0, Outcome::Refused(millis(10)));
        assert_eq!(violated(&latch(0, vec![refused])), [Promise::Counts]);
    }

    #[test]
    fn a_disturbance_excuses_the_waits_of_affected_workers() {
        let waits = |affected, at| {
            let mut history = latch(0, vec![set(1, 0, 10), down(20, 30), wait(15, at)]);
            history.disturbances.push(disturbance(20, 400, affected, Effect::Delays));
            violated(&history)
        };
        assert_eq!(waits(Affected::Worker(1), 400 + BOUND), []);
        assert_eq!(waits(Affected::Worker(1), 401 + BOUND), [Promise::Wait]);
        assert_eq!(waits(Affected::Worker(0), 31 + BOUND), [Promise::Wait]);
    }

    #[test]
    fn a_cancelled_wait_may_end_without_a_reply() {
        let with = |cancelled, affected| {
            let mut wait = call(Verb::Acquire, 20, Outcome::Refused(millis(30)));
            wait.request.cancelled = cancelled;
            let mut history = latch(0, vec![wait]);
            history.disturbances.push(disturbance(15, 40, affected, Effect::Delays));
            violated(&history)
        };
        assert_eq!(with(true, Affected::Worker(0)), []);
        assert_eq!(with(true, Affected::Worker(1)), [Promise::Counts]);
        assert_eq!(with(false, Affected::Worker(0)), [Promise::Counts]);
    }

    #[test]
    fn lost_data_excuses_an_early_opening_and_a_delay_does_not() {
        let with = |effect| {
            let mut history = latch(0, vec![set(2, 0, 10), wait(15, 60), set(2, 70, 80)]);
            history.disturbances.push(disturbance(30, 40, Affected::All, effect));
            history.counts.insert("latch-0".to_owned(), 2);
            violated(&history)
        };
        assert_eq!(with(Effect::LosesHolds), []);
        assert_eq!(with(Effect::Delays), [Promise::Counts; 2]);
    }

    #[test]
    fn the_count_after_the_run_is_exact() {
        let with = |count, calls: Vec<Attempt>| {
            violated(&latch(count, [vec![down(0, 5), set(3, 8, 10)], calls].concat()))
        };
        let unanswered = || call(Verb::CountDown, 20, Outcome::Failed(millis(90)));
        let calls = || vec![down(20, 30), unanswered()];
        assert_eq!([with(1, calls()), with(2, calls())], [[], []]);
        assert_eq!([with(0, calls()), with(3, calls())], [[Promise::Counts], [Promise::Counts]]);
        assert_eq!(with(0, [calls(), vec![done(Verb::Delete, 95, 99)]].concat()), []);
        let another = call(Verb::SetCount, 95, Outcome::Unknown);
        assert_eq!(with(0, [calls(), vec![another]].concat()), [], "it may have begun a round");
    }
}
