//! No wait outlasts the freeing of its lock by more than the poll interval and one response
//! time-out.
//!
//! When a server had a lock free is not written down, but when it cannot have been held is:
//! when no attempt was between its asking and its end.

use super::super::record::End;
use super::{Attempt, Bounds, History, Outcome, Promise, Violation};
use crate::Nanos;

/// `gaps` has those of all attempts at one lock.
pub(super) fn check(
    history: &History,
    attempts: &[&Attempt],
    gaps: &[(&Attempt, Nanos)],
) -> Vec<Violation> {
    let bound = history.bounds.wait();
    let late = gaps.iter().filter(|(attempt, gap)| {
        *gap > bound && *gap > bound + for_the_dead(history, attempts, attempt)
    });
    let text = |(attempt, gap): &(&Attempt, Nanos)| {
        format!("{:.0} ms beside a free lock: {attempt}", *gap as f64 / 1e6)
    };
    late.map(|gap| Promise::Wait.broken(text(gap))).collect()
}

/// How much longer it may take because of those who have died in the queue of a fair lock: for each
/// its time there, which begins when somebody finds that it leaves a free lock alone.
fn for_the_dead(history: &History, attempts: &[&Attempt], waiting: &Attempt) -> Nanos {
    if !waiting.wish.queues() {
        return 0;
    }
    let end = end(history, waiting).unwrap_or(Nanos::MAX);
    let Bounds { poll, fair_waiter_timeout, step, .. } = history.bounds;
    let died = attempts.iter().filter(|attempt| attempt.outcome == Outcome::Unknown);
    let died: Vec<Nanos> = died
        .filter_map(|attempt| {
            let at = history.workers[attempt.worker].killed.filter(|at| *at < end)?;
            // What it had sent may arrive when a disturbance is over.
            let disturbed = history.disturbances_of(attempt.worker, attempt.asked, at);
            Some(disturbed.map(|d| d.to).max().unwrap_or(at).max(at))
        })
        .collect();
    // None has a place for longer: the lease that it saw, its time, and those of the dead before it.
    let longest = history.workers.iter().map(|worker| worker.lease).max().unwrap_or(0);
    let kept = |dead: usize| longest + (dead as u64 + 1) * fair_waiter_timeout + step;
    let dead = died.iter().filter(|at| waiting.asked < *at + kept(died.len())).count();
    dead as u64 * (fair_waiter_timeout + poll)
}

/// How long each attempt has waited at a stretch while nobody can have held the lock and
/// nothing was in the way.
pub(super) fn gaps<'a>(history: &History, attempts: &[&'a Attempt]) -> Vec<(&'a Attempt, Nanos)> {
    let mut taken: Vec<Span<'_>> = attempts.iter().filter_map(|a| taken(history, a)).collect();
    taken.sort_by_key(|span| span.from);
    let taken = Taken::new(taken);
    let waits = attempts.iter().filter(|attempt| attempt.wish.patience > 0);
    waits.filter_map(|attempt| Some((*attempt, gap(history, attempt, &taken)?))).collect()
}

/// When a server may have kept the lock for an attempt.
struct Span<'a> {
    from: Nanos,
    to: Nanos,
    whose: &'a Attempt,
}

/// All of them, by their start; and how far those up to each place reach.
struct Taken<'a> {
    spans: Vec<Span<'a>>,
    reach: Vec<Nanos>,
}

impl<'a> Taken<'a> {
    fn new(spans: Vec<Span<'a>>) -> Taken<'a> {
        let mut furthest = 0;
        let reach = spans.iter().map(|span| {
            furthest = span.to.max(furthest);
            furthest
        });
        Taken { reach: reach.collect(), spans }
    }

    /// Those of others than this one that lie between the two.
    fn between(&self, but: &Attempt, from: Nanos, to: Nanos) -> impl Iterator<Item = &Span<'a>> {
        let end = self.spans.partition_point(|span| span.from <= to);
        let start = self.reach.partition_point(|reach| *reach < from).min(end);
        let others = move |span: &&Span<'_>| !std::ptr::eq(span.whose, but);
        self.spans[start..end].iter().filter(others)
    }
}

fn taken<'a>(history: &History, attempt: &'a Attempt) -> Option<Span<'a>> {
    let (asked, bounds) = (attempt.asked, &history.bounds);
    let killed = history.workers[attempt.worker].killed;
    let disturbed = |at| history.disturbances_of(attempt.worker, asked, at).map(|d| d.to).max();
    // What it has left is released when it can be again.
    let released = |at| disturbed(at).map(|to| to.max(at) + bounds.response + bounds.slack);
    // What nobody releases: what it had sent may arrive when a disturbance is over.
    let kept = history.lease(attempt).max(bounds.fair_waiter_timeout) + bounds.step;
    let runs_out = |at: Nanos| disturbed(at).unwrap_or(at).max(at).saturating_add(kept);
    let (from, to) = match &attempt.outcome {
        Outcome::Unknown => (asked, runs_out(killed.unwrap_or(Nanos::MAX))),
        Outcome::Refused(at) | Outcome::Failed(at) => (asked, released(*at)?),
        Outcome::Held(hold) => {
            let from = disturbed(hold.got).map_or(hold.got, |_| asked);
            let to = match (hold.ended, hold.lost) {
                (Some((at, End::Unlocked)), None) => at,
                (Some((at, End::Dropped)), None) => released(at).unwrap_or(at + bounds.response),
                (Some((at, _)), _) => runs_out(at),
                (None, _) => runs_out(killed.unwrap_or(Nanos::MAX)),
            };
            (from, to)
        }
    };
    Some(Span { from, to, whose: attempt })
}

/// The longest of an attempt; `None` if its end is not known.
fn gap(history: &History, attempt: &Attempt, taken: &Taken<'_>) -> Option<Nanos> {
    let (from, end) = (attempt.asked, end(history, attempt)?);
    let busy = taken.between(attempt, from, end).map(|span| (span.from, span.to));
    let disturbed = history.disturbances_of(attempt.worker, from, end).map(|d| (d.from, d.to));
    Some(longest_gap(from, end, busy.chain(disturbed).collect()))
}

/// When it waited no more; `None` if that is not known.
fn end(history: &History, attempt: &Attempt) -> Option<Nanos> {
    match &attempt.outcome {
        Outcome::Unknown => history.workers[attempt.worker].killed,
        Outcome::Refused(at) | Outcome::Failed(at) => Some(*at),
        Outcome::Held(hold) => Some(hold.got),
    }
}

/// The longest time between the two that none of these covers.
fn longest_gap(from: Nanos, to: Nanos, mut spans: Vec<(Nanos, Nanos)>) -> Nanos {
    spans.push((to, to));
    spans.sort_unstable();
    let (mut covered, mut longest) = (from, 0);
    for (start, end) in spans {
        longest = longest.max(start.min(to).saturating_sub(covered));
        covered = covered.max(end);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, broken, disturbance, held, history};
    use super::super::{Attempt, Effect, History, Outcome, Promise, Whom};
    use crate::millis;
    use crate::record::End;

    /// The poll interval, the response time-out and the slack of the examples.
    const BOUND: u64 = 200;

    #[test]
    fn a_wait_beside_a_lock_that_is_held_is_well() {
        assert_eq!(broken(&history(vec![held(0, 0, 0, 900), held(1, 10, 900 + BOUND, 2000)])), []);
        let late = history(vec![held(0, 0, 0, 900), held(1, 10, 901 + BOUND, 2000)]);
        assert_eq!(broken(&late), [Promise::Wait]);
        let first = history(vec![held(0, 0, BOUND + 1, 900)]);
        assert_eq!(broken(&first), [Promise::Wait], "nobody ever held it");
    }

    #[test]
    fn who_gives_up_has_waited_too() {
        let holder = || held(0, 0, 0, 100);
        let refused = |at| asking(1, 50, Outcome::Refused(millis(at)));
        assert_eq!(broken(&history(vec![holder(), refused(100 + BOUND)])), []);
        assert_eq!(broken(&history(vec![holder(), refused(101 + BOUND)])), [Promise::Wait]);
    }

    #[test]
    fn a_disturbance_counts_for_those_whom_it_meets() {
        let waiting = |from, to, whom| {
            let mut history = history(vec![held(0, 0, 0, 100), held(1, 50, 600, 700)]);
            history.disturbances.push(disturbance(from, to, whom, Effect::Delays));
            broken(&history)
        };
        assert_eq!(waiting(150, 450, Whom::All), []);
        assert_eq!(waiting(150, 450, Whom::Worker(1)), []);
        assert_eq!(waiting(150, 450, Whom::Worker(0)), [Promise::Wait]);
        assert_eq!(waiting(150, 450, Whom::Nobody), [Promise::Wait]);
        assert_eq!(waiting(150, 350, Whom::All), [Promise::Wait], "it was over");
    }

    fn after(earlier: Attempt, got: u64, change: impl Fn(&mut History)) -> Vec<Promise> {
        let mut history = history(vec![earlier, held(1, 50, got, got)]);
        change(&mut history);
        broken(&history)
    }

    fn dropped() -> Attempt {
        let mut dropped = held(0, 0, 0, 100);
        if let Outcome::Held(hold) = &mut dropped.outcome {
            hold.ended = Some((millis(100), End::Dropped));
        }
        dropped
    }

    #[test]
    fn what_a_dead_one_has_left_ends_with_its_lease() {
        let mut killed = held(0, 0, 0, 100);
        if let Outcome::Held(hold) = &mut killed.outcome {
            hold.ended = None;
        }
        let kill = |history: &mut History| history.workers[0].killed = Some(millis(150));
        assert_eq!(after(killed.clone(), 1150 + BOUND, kill), []);
        assert_eq!(after(killed, 1151 + BOUND, kill), [Promise::Wait]);
    }

    #[test]
    fn the_dead_keep_their_places_in_a_queue_for_a_while() {
        let late = |lock: &str, gap, killed| {
            let dead = [asking(0, 80, Outcome::Unknown), asking(0, 90, Outcome::Unknown)];
            // A lock that was taken until 5000, long after what the dead may have had was over.
            let waits = [held(1, 100, 100, 5000), held(1, 4000, 5000 + gap, 6000)];
            let mut history = history([&dead[..], &waits].concat());
            history.workers[0].killed = Some(millis(killed));
            history.workers[1].lease = millis(8000);
            history.attempts.iter_mut().for_each(|it| it.wish.lock = lock.to_owned());
            broken(&history)
        };
        // For each the fair wait and the poll interval.
        assert_eq!(late("fair-0", BOUND + 2 * 400, 95), []);
        assert_eq!(late("fair-0", BOUND + 2 * 400 + 1, 95), [Promise::Wait]);
        assert_eq!(late("plain-0", BOUND + 1, 95), [Promise::Wait]);
    }

    #[test]
    fn what_a_live_one_has_left_is_released_when_it_can_be() {
        assert_eq!(after(dropped(), 150 + BOUND, |_| ()), []);
        assert_eq!(after(dropped(), 151 + BOUND, |_| ()), [Promise::Wait]);
        let failed = || asking(0, 0, Outcome::Failed(millis(80)));
        let disturb = |history: &mut History| {
            let fault = disturbance(60, 300, Whom::Worker(0), Effect::Delays);
            history.disturbances.push(fault);
        };
        for left in [failed(), dropped()] {
            // The response time-out and the slack.
            assert_eq!(after(left.clone(), 400 + BOUND, disturb), []);
            assert_eq!(after(left, 401 + BOUND, disturb), [Promise::Wait]);
        }
    }

    #[test]
    fn two_that_both_wait_beside_a_free_lock_do_not_excuse_each_other() {
        let both = vec![held(0, 0, 0, 100), held(0, 101, 900, 950), held(1, 50, 960, 990)];
        assert_eq!(broken(&history(both)), [Promise::Wait, Promise::Wait]);
    }
}
