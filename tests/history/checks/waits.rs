//! A waiter gets a free lock within the poll interval and one response time-out.
//!
//! A history does not show when a server had a lock free. It shows when no attempt can have held
//! the lock: when no attempt was between its call and its end. The servers of the simulation show
//! more: when they had no key of the lock. Neither time may be longer than the bound.
//!
//! A semaphore counts as free for a waiter while the permits of all other attempts that may have
//! some, the largest of the possible claims, and its own are not more than the least capacity that
//! it may have at that moment. A plain semaphore whose count may be lost with a change of its
//! capacity is left out.

use super::capacities::Capacities;
use super::{Attempt, Bounds, History, Hold, Outcome, Promise, Violation};
use crate::record::{End, Verb, millis};
use crate::system::Nanos;

/// Checks all attempts at one lock. `gaps` has the gap of each.
pub(super) fn check(
    history: &History,
    attempts: &[&Attempt],
    gaps: &[(&Attempt, Nanos)],
) -> Vec<Violation> {
    let bound = history.bounds.wait();
    let late = gaps.iter().filter(|(attempt, gap)| {
        *gap > bound && *gap > bound + delay_by_killed_waiters(history, attempts, attempt)
    });
    let text = |(attempt, gap): &(&Attempt, Nanos)| {
        format!("{:.0} ms beside a free lock: {attempt}", *gap as f64 / 1e6)
    };
    late.map(|gap| Promise::Wait.violation(text(gap))).collect()
}

/// Returns the delay that killed waiters in the queue of a fair lock may cause.
///
/// Each keeps its place for its time-out, which begins when a caller finds that the waiter ignores
/// a free lock.
fn delay_by_killed_waiters(history: &History, attempts: &[&Attempt], waiting: &Attempt) -> Nanos {
    if !waiting.request.is_fair() {
        return 0;
    }
    let end = end(history, waiting).unwrap_or(Nanos::MAX);
    let Bounds { poll, fair_waiter_timeout, step, .. } = history.bounds;
    let killed = attempts.iter().filter(|attempt| attempt.outcome == Outcome::Unknown);
    let killed: Vec<Nanos> = killed
        .filter_map(|attempt| {
            let at = history.workers[attempt.worker].killed.filter(|at| *at < end)?;
            // A delayed request may arrive until the end of a disturbance.
            let disturbed = history.disturbances_of(attempt, attempt.asked, at);
            Some(disturbed.map(|d| d.felt_until).max().unwrap_or(at).max(at))
        })
        .collect();
    // A killed waiter keeps its place at most for the lease that it saw, its own time-out, and
    // those of the killed waiters ahead of it.
    let kept = history.longest_lease() + (killed.len() as u64 + 1) * fair_waiter_timeout + step;
    let queued = killed.iter().filter(|at| waiting.asked < *at + kept).count();
    queued as u64 * (fair_waiter_timeout + poll)
}

/// Returns the gap of each waiting attempt: its longest undisturbed wait beside a free lock.
pub(super) fn gaps<'a>(
    history: &History,
    attempts: &[&'a Attempt],
    capacities: &Capacities,
) -> Vec<(&'a Attempt, Nanos)> {
    let spans = Spans::of(history, attempts);
    // A member of a multi-lock waits for the other members too.
    let waits = attempts
        .iter()
        .filter(|attempt| attempt.request.max_wait > 0 && attempt.request.verb != Verb::Join);
    waits.filter_map(|it| Some((*it, gap(history, it, &spans, capacities)?))).collect()
}

/// The time in which a server may have kept the lock for an attempt.
pub(super) struct Span<'a> {
    from: Nanos,
    to: Nanos,
    attempt: &'a Attempt,
}

impl Span<'_> {
    /// Returns the end of the time for this waiter: it sees that the process of the holder is gone.
    ///
    /// A request of that process, or its record, may be delayed or lost. Counts have no holders, a
    /// minimum has none either, and a waiter in a queue that was killed may be granted the lock
    /// later.
    fn end_for(&self, history: &History, waiting: &Attempt) -> Nanos {
        let (holder, bounds) = (self.attempt, &history.bounds);
        let [gone, seeing] = [holder, waiting].map(|it| &history.workers[it.worker]);
        let request = &holder.request;
        let ends = !request.is_counted()
            && request.min_hold.is_none()
            && !(request.is_queued() && holder.outcome == Outcome::Unknown);
        let sees = ends && gone.mortal_at.is_some() && gone.mortal_at == seeing.mortal_at;
        let Some(killed) = gone.killed.filter(|_| sees) else { return self.to };
        let mut disturbed = history.disturbances.iter().filter(|d| {
            d.name != "KillWorker" && d.from <= killed + bounds.response && d.affects(holder)
        });
        if disturbed.next().is_some() { self.to } else { self.to.min(killed.max(waiting.asked)) }
    }
}

/// Spans in the order of their start. `furthest` has the latest end up to each span.
pub(super) struct Spans<'a> {
    spans: Vec<Span<'a>>,
    furthest: Vec<Nanos>,
}

impl<'a> Spans<'a> {
    /// Returns the spans of these attempts at one lock.
    pub(super) fn of(history: &History, attempts: &[&'a Attempt]) -> Spans<'a> {
        let mut spans: Vec<Span<'a>> = attempts.iter().filter_map(|a| span(history, a)).collect();
        spans.sort_by_key(|span| span.from);
        let mut latest = 0;
        let furthest = spans.iter().map(|span| {
            latest = span.to.max(latest);
            latest
        });
        Spans { furthest: furthest.collect(), spans }
    }

    /// Returns the spans of other attempts that overlap the time between two moments.
    pub(super) fn of_others(
        &self,
        but: &Attempt,
        from: Nanos,
        to: Nanos,
    ) -> impl Iterator<Item = &Span<'a>> {
        let end = self.spans.partition_point(|span| span.from <= to);
        let start = self.furthest.partition_point(|furthest| *furthest < from).min(end);
        let is_other = move |span: &&Span<'_>| !std::ptr::eq(span.attempt, but);
        self.spans[start..end].iter().filter(is_other)
    }
}

impl Spans<'_> {
    /// Returns the times between two moments in which too few permits may be free for a waiter.
    fn without_enough_permits(
        &self,
        history: &History,
        waiting: &Attempt,
        (from, to): (Nanos, Nanos),
        capacities: &Capacities,
    ) -> Vec<(Nanos, Nanos)> {
        let taken = self.of_others(waiting, from, to);
        let taken = taken
            .map(|span| (span.from, span.end_for(history, waiting), span.attempt.request.permits));
        let taken: Vec<_> = taken.collect();
        let claims = claims(history, waiting);
        let mut moments: Vec<Nanos> =
            taken.iter().chain(&claims).flat_map(|(start, end, _)| [*start, *end]).collect();
        moments.extend(capacities.moments().chain([from, to]));
        moments.retain(|at| (from..=to).contains(at));
        moments.sort_unstable();
        moments.dedup();
        let covers = |at: Nanos| move |it: &&(Nanos, Nanos, u32)| it.0 <= at && at < it.1;
        let is_short = |at: Nanos| {
            let taken: u32 = taken.iter().filter(covers(at)).map(|it| it.2).sum();
            let claimed = claims.iter().filter(covers(at)).map(|it| it.2).max().unwrap_or(0);
            i64::from(taken + claimed + waiting.request.permits) > capacities.least_from(at)
        };
        let parts = moments.windows(2).map(|pair| (pair[0], pair[1]));
        parts.filter(|(start, _)| is_short(*start)).collect()
    }
}

/// Returns the times in which others may have a claim, and the permits of each.
fn claims(history: &History, waiting: &Attempt) -> Vec<(Nanos, Nanos, u32)> {
    let bounds = &history.bounds;
    let others = history.attempts.iter().filter(|other| {
        other.request.lock == waiting.request.lock
            && other.request.is_leased()
            && other.request.max_wait > bounds.heartbeat / millis(1)
            && !std::ptr::eq(*other, waiting)
    });
    // A waiter takes the claim of a younger one over.
    let own = waiting.asked + 2 * bounds.heartbeat + bounds.slack;
    let claim = |other: &Attempt| {
        let ended = end(history, other).unwrap_or(Nanos::MAX);
        // A poll on its way at the end leaves a claim, which lasts a grant lease.
        let until = ended.saturating_add(bounds.grant_lease + bounds.response);
        let until = if other.asked <= waiting.asked { until } else { until.min(own) };
        let from = other.asked + bounds.heartbeat;
        (from < ended).then_some((from, until, other.request.permits))
    };
    others.filter_map(claim).collect()
}

/// Returns the moment at which a hold has certainly ended on the servers; `MAX` if none is known.
pub(super) fn over(history: &History, attempt: &Attempt) -> Nanos {
    let killed = history.workers[attempt.worker].killed;
    match (attempt.hold().map(|hold| released(history, attempt, hold)), killed) {
        (Some(None), Some(killed)) => {
            // The last renewal may be on its way. A kill itself delays no request.
            let disturbed = history.disturbances_of(attempt, attempt.asked, killed);
            let disturbed = disturbed.filter(|d| d.name != "KillWorker").map(|d| d.felt_until);
            let renewed = disturbed.max().unwrap_or(killed).max(killed + history.bounds.response);
            renewed + history.lease(attempt) + history.bounds.step
        }
        _ => span(history, attempt).map_or(Nanos::MAX, |span| span.to),
    }
}

/// Returns the end of a hold, if its release was certainly sent.
///
/// The drop of a guard does not wait for its release, so a kill right after it may prevent that. A
/// hold that lingers is released later, in the background too.
fn released(history: &History, attempt: &Attempt, hold: &Hold) -> Option<(Nanos, End)> {
    let killed = history.workers[attempt.worker].killed;
    let linger = history.linger(attempt);
    let how = |how| if linger > 0 { End::Dropped } else { how };
    let ended = hold.ended.map(|(at, end)| (at, how(end)));
    ended.filter(|(at, how)| {
        let is_sent = |killed| done(history, attempt, at.saturating_add(linger)) < killed;
        *how != End::Dropped || killed.is_none_or(is_sent)
    })
}

/// Returns the moment at which a background request of a call has been done that began before this
/// moment. A fault that begins before that moment may still meet the request.
pub(super) fn done(history: &History, attempt: &Attempt, at: Nanos) -> Nanos {
    let Bounds { response, slack, .. } = history.bounds;
    let mut end = at.saturating_add(response);
    loop {
        let disturbed = history.disturbances_of(attempt, attempt.asked, end);
        let disturbed = disturbed.map(|d| d.felt_until.max(at) + slack).max();
        let next = disturbed.unwrap_or(at).saturating_add(response);
        if next <= end {
            return end;
        }
        end = next;
    }
}

/// Returns the latest moment at which the hold of a guard that has ended is released, if somebody
/// waits for the lock: a disturbance may prevent that a hold that lingers is asked for.
fn given_up(history: &History, attempt: &Attempt, ended: Nanos) -> Nanos {
    let end = ended.saturating_add(history.linger(attempt));
    let is_disturbed = history.disturbances_of(attempt, ended, end).next().is_some();
    if is_disturbed { end } else { ended }
}

fn span<'a>(history: &History, attempt: &'a Attempt) -> Option<Span<'a>> {
    let (asked, lock, bounds) = (attempt.asked, &attempt.request.lock, &history.bounds);
    let killed = history.workers[attempt.worker].killed;
    let disturbed = |at| history.disturbances_of(attempt, asked, at).map(|d| d.felt_until).max();
    // A hold that nobody releases. A delayed request may arrive until the end of a disturbance.
    let waiter = if attempt.request.is_queued() {
        // A client counts as alive, then a grant to one of its waiters lasts.
        2 * bounds.grant_lease
    } else if attempt.request.is_leased() {
        0
    } else {
        bounds.fair_waiter_timeout
    };
    let kept = if !attempt.request.is_counted() {
        history.lease(attempt).max(waiter) + bounds.step
    } else if killed.is_some() {
        // The permits of a killed process do not come back.
        Nanos::MAX
    } else {
        0
    };
    // A request that arrives later than a lease is not undone.
    let is_late = |at| {
        let last = history.disturbances_of(attempt, asked, at).map(|d| d.until).max();
        last > Some(asked + bounds.soonest(history.lease(attempt)))
    };
    let is_finite = kept < Nanos::MAX;
    // A new master that does not know of a release keeps the lock until the end of its lease.
    let freed = |from: Nanos, to: Nanos| {
        let forgotten = is_finite && history.may_have_lost_data(lock, from, to + kept);
        if forgotten { to + kept } else { to }
    };
    // The worker undoes what a failed attempt may have left. If it cannot, the lease ends it.
    let undone = |at| {
        let arrived = disturbed(at).unwrap_or(at).max(at) + bounds.response + bounds.slack;
        let done = done(history, attempt, at);
        if killed.is_some_and(|killed| killed <= done) {
            arrived.saturating_add(kept)
        } else if attempt.request.is_counted() {
            done
        } else if is_late(at) {
            arrived + kept
        } else {
            freed(at, done.min(arrived + kept))
        }
    };
    let expired = |at: Nanos| disturbed(at).unwrap_or(at).max(at).saturating_add(kept);
    let (from, to) = match &attempt.outcome {
        Outcome::Unknown => (asked, expired(killed.unwrap_or(Nanos::MAX))),
        // A member may be held while the call waits for the others, and is released then.
        Outcome::Refused(at) | Outcome::Failed(at) if attempt.request.verb == Verb::Join => {
            (asked, undone(*at))
        }
        Outcome::Refused(at) | Outcome::Failed(at) | Outcome::Done(at) => {
            // Without a disturbance the attempt has left nothing.
            disturbed(*at)?;
            (asked, undone(*at))
        }
        Outcome::Held(hold) => {
            let is_known = attempt.request.verb != Verb::Join && disturbed(hold.granted).is_none();
            let from = if is_known { hold.granted } else { asked };
            let mut to = match (released(history, attempt, hold), hold.lost) {
                (Some((at, End::Unlocked | End::Committed)), None) => freed(at, at),
                // The permits of a killed process may not be given back after a failed request.
                (Some((at, End::Dropped)), None) if is_finite => {
                    freed(at, done(history, attempt, given_up(history, attempt, at)))
                }
                (Some((at, _)), _) => expired(at),
                (None, _) => expired(killed.unwrap_or(Nanos::MAX)),
            };
            let minimum = attempt.request.min_hold.map_or(0, millis);
            if hold.ended.is_none_or(|(at, _)| at < hold.granted + minimum) {
                // A release before the minimum keeps the lock taken for what is left of it.
                to = to.saturating_add(minimum + bounds.step);
                if attempt.request.is_queued() {
                    // No message tells of the minimum's end. The next heartbeat grants the lock.
                    to = to.saturating_add(bounds.heartbeat);
                }
            }
            (from, to)
        }
    };
    Some(Span { from, to, attempt })
}

/// Returns the gap of an attempt; `None` if its end is not known, or if permits may be missing.
fn gap(
    history: &History,
    attempt: &Attempt,
    spans: &Spans<'_>,
    capacities: &Capacities,
) -> Option<Nanos> {
    let (from, end) = (attempt.asked, end(history, attempt)?);
    if lacks_permits(history, attempt, end, capacities) {
        return None;
    }
    // After a campaign that fails, `run` pauses.
    let pause = if attempt.request.verb == Verb::Lead { history.bounds.pause } else { 0 };
    let disturbed = history.disturbances_of(attempt, from.saturating_sub(pause), end);
    let disturbed: Vec<_> = disturbed.map(|d| (d.from, d.felt_until + pause)).collect();
    let gap =
        |held: Vec<(Nanos, Nanos)>| longest_gap(from, end, [held, disturbed.clone()].concat());
    if attempt.request.capacity() > 1 {
        return Some(gap(spans.without_enough_permits(history, attempt, (from, end), capacities)));
    }
    let others = || spans.of_others(attempt, from, end);
    let by_attempts =
        gap(others().map(|span| (span.from, span.end_for(history, attempt))).collect());
    let taken = outside(history.free.get(&attempt.request.lock), from, end);
    let minimums = others().filter_map(|span| after_minimum(&history.bounds, span.attempt));
    let by_servers = gap(taken.into_iter().chain(minimums).collect());
    Some(by_attempts.max(by_servers))
}

/// Returns the time in which a queue lock is free after the minimum of a hold that ended early: no
/// message tells of that end, so the next heartbeat grants the lock.
fn after_minimum(bounds: &Bounds, attempt: &Attempt) -> Option<(Nanos, Nanos)> {
    let hold = attempt.hold().filter(|_| attempt.request.is_queued())?;
    let minimum = hold.granted + millis(attempt.request.min_hold?);
    let is_early = hold.ended.is_some_and(|(at, _)| at < minimum);
    is_early.then(|| (minimum, minimum + bounds.step + bounds.heartbeat))
}

/// Returns the times from one moment to another that are not among these; all if none are known.
fn outside(free: Option<&Vec<(Nanos, Nanos)>>, from: Nanos, to: Nanos) -> Vec<(Nanos, Nanos)> {
    let (mut taken, mut since) = (Vec::new(), from);
    for (start, end) in free.into_iter().flatten().filter(|(_, end)| *end > from) {
        taken.push((since, *start));
        since = *end;
    }
    taken.push((since, to));
    taken
}

/// Returns whether a fault may have lost the return of permits that nobody holds any more, or the
/// addition of permits.
///
/// The count after the run tells whether permits are missing, unless a later loss has begun a new
/// count. A loss may also have left no count.
fn lacks_permits(history: &History, attempt: &Attempt, to: Nanos, capacities: &Capacities) -> bool {
    let (request, free) = (&attempt.request, history.counts.get(&attempt.request.lock));
    let is_short = free.is_none_or(|free| *free < i64::from(request.capacity()));
    let is_lost_later = || history.losses_of(&request.lock).any(|loss| loss.from > to);
    request.is_counted()
        && history.may_have_lost_data(&request.lock, 0, to)
        && (is_short || !capacities.are_constant() || is_lost_later())
}

/// Returns the end of the wait; `None` if it is not known.
pub(super) fn end(history: &History, attempt: &Attempt) -> Option<Nanos> {
    match &attempt.outcome {
        Outcome::Unknown => history.workers[attempt.worker].killed,
        Outcome::Refused(at) | Outcome::Failed(at) | Outcome::Done(at) => Some(*at),
        Outcome::Held(hold) => Some(hold.granted),
    }
}

/// Returns the longest time between two moments that no span covers.
pub(super) fn longest_gap(from: Nanos, to: Nanos, mut spans: Vec<(Nanos, Nanos)>) -> Nanos {
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
    use super::super::examples::{
        asking, disturbance, held, history, hold_of, resize, violated, with_permits,
    };
    use super::super::{Affected, Attempt, Effect, History, Outcome, Promise};
    use crate::record::{End, Verb, millis};

    /// The poll interval, the response time-out and the slack of the examples.
    const BOUND: u64 = 200;

    #[test]
    fn only_the_wait_beside_a_free_lock_is_bounded() {
        let in_time = history(vec![held(0, 0, 0, 900), held(1, 10, 900 + BOUND, 2000)]);
        assert_eq!(violated(&in_time), []);
        let late = history(vec![held(0, 0, 0, 900), held(1, 10, 901 + BOUND, 2000)]);
        assert_eq!(violated(&late), [Promise::Wait]);
        let first = history(vec![held(0, 0, BOUND + 1, 900)]);
        assert_eq!(violated(&first), [Promise::Wait], "no other attempt held the lock");
    }

    #[test]
    fn a_greater_capacity_wakes_a_waiter() {
        let waits = |capacity, until| {
            let mut waiting = held(1, 10, until, until + 10);
            waiting.request.lock = "semaphore-0".to_owned();
            let mut holder = held(0, 0, 5, 5000);
            (holder.request.lock, holder.request.permits) = ("semaphore-0".to_owned(), 3);
            (hold_of(&mut holder).token, hold_of(&mut waiting).token) = (0, 0);
            violated(&history(vec![holder, waiting, resize(capacity, 1000, 1010)]))
        };
        assert_eq!(waits(4, 1010 + BOUND), []);
        assert_eq!(waits(4, 1011 + BOUND), [Promise::Wait]);
    }

    #[test]
    fn a_fault_that_begins_right_after_a_drop_delays_its_release() {
        let late = |from, granted| {
            let disturb = |history: &mut History| {
                let fault = disturbance(from, 300, Affected::Worker(0), Effect::Delays);
                history.disturbances.push(fault);
            };
            after(dropped(), granted, disturb)
        };
        // The response time-out is 50 ms, and the slack as long.
        assert_eq!(late(150, 400 + BOUND), []);
        assert_eq!(late(150, 401 + BOUND), [Promise::Wait]);
        assert_eq!(late(151, 151 + BOUND), [Promise::Wait], "the release has been done");
    }

    #[test]
    fn the_wait_beside_a_lock_that_servers_show_free_is_bounded() {
        // By its attempt alone, the killed holder may have the lock until 1150.
        let mut killed = held(0, 0, 0, 100);
        hold_of(&mut killed).ended = None;
        let granted = |free: &[(u64, u64)]| {
            let killed = killed.clone();
            let lock = killed.request.lock.clone();
            let mut history = history(vec![killed, held(1, 50, 1000, 2000)]);
            history.workers[0].killed = Some(millis(150));
            let free = free.iter().map(|(from, to)| (millis(*from), millis(*to))).collect();
            history.free = [(lock, free)].into();
            violated(&history)
        };
        assert_eq!(granted(&[(1000 - BOUND, 1000)]), []);
        assert_eq!(granted(&[(999 - BOUND, 1000)]), [Promise::Wait]);
        assert_eq!(granted(&[(300, 300 + BOUND), (999 - BOUND, 1000)]), [Promise::Wait]);
        assert_eq!(granted(&[(300, 301 + BOUND), (999, 1000)]), [Promise::Wait]);
    }

    #[test]
    fn a_waiter_on_the_same_machine_sees_the_end_of_a_process() {
        let mut killed = held(0, 0, 0, 100);
        hold_of(&mut killed).ended = None;
        let granted = |at, machines: [u32; 2]| {
            let mut history = history(vec![killed.clone(), held(1, 50, at, 5000)]);
            history.workers[0].killed = Some(millis(150));
            for (worker, machine) in history.workers.iter_mut().zip(machines) {
                worker.mortal_at = Some(machine);
            }
            violated(&history)
        };
        assert_eq!(granted(150 + BOUND, [0, 0]), []);
        assert_eq!(granted(151 + BOUND, [0, 0]), [Promise::Wait]);
        assert_eq!(granted(1150, [0, 1]), [], "the lease ends then");
    }

    #[test]
    fn a_heartbeat_grants_a_queue_lock_after_the_minimum_of_a_hold() {
        let late = |kind: &str, ended, late| {
            let (mut early, minimum) = (held(0, 0, 0, ended), 500);
            early.request.min_hold = Some(minimum);
            // The poll interval of the examples.
            let granted = minimum + 100 + BOUND + late;
            let mut history = history(vec![early, held(1, 50, granted, granted)]);
            let lock = format!("{kind}-0");
            history.attempts.iter_mut().for_each(|it| it.request.lock.clone_from(&lock));
            let free = vec![(millis(minimum.max(ended)), millis(granted))];
            history.free = [(lock, free)].into();
            violated(&history)
        };
        assert_eq!(late("queued", 100, 0), []);
        assert_eq!(late("queued", 100, 1), [Promise::Wait]);
        assert_eq!(late("queued", 510, 0), [Promise::Wait], "the release sends a message");
        assert_eq!(late("plain", 100, 0), [Promise::Wait], "the caller knows the end");
    }

    #[test]
    fn the_wait_of_a_refused_caller_is_bounded_too() {
        let holder = || held(0, 0, 0, 100);
        let refused = |at| asking(1, 50, Outcome::Refused(millis(at)));
        assert_eq!(violated(&history(vec![holder(), refused(100 + BOUND)])), []);
        assert_eq!(violated(&history(vec![holder(), refused(101 + BOUND)])), [Promise::Wait]);
    }

    #[test]
    fn a_disturbance_excuses_the_waits_of_affected_workers() {
        let waiting = |from, to, affected| {
            let mut history = history(vec![held(0, 0, 0, 100), held(1, 50, 600, 700)]);
            history.disturbances.push(disturbance(from, to, affected, Effect::Delays));
            violated(&history)
        };
        assert_eq!(waiting(150, 450, Affected::All), []);
        assert_eq!(waiting(150, 450, Affected::Worker(1)), []);
        assert_eq!(waiting(150, 450, Affected::Worker(0)), [Promise::Wait]);
        assert_eq!(waiting(150, 450, Affected::Nobody), [Promise::Wait]);
        assert_eq!(
            waiting(150, 350, Affected::All),
            [Promise::Wait],
            "the wait continues after it"
        );
    }

    fn after(earlier: Attempt, granted: u64, change: impl Fn(&mut History)) -> Vec<Promise> {
        let mut history = history(vec![earlier, held(1, 50, granted, granted)]);
        change(&mut history);
        violated(&history)
    }

    fn dropped() -> Attempt {
        let mut dropped = held(0, 0, 0, 100);
        hold_of(&mut dropped).ended = Some((millis(100), End::Dropped));
        dropped
    }

    #[test]
    fn the_hold_of_a_killed_worker_ends_with_its_lease() {
        let mut killed = held(0, 0, 0, 100);
        hold_of(&mut killed).ended = None;
        let kill = |history: &mut History| history.workers[0].killed = Some(millis(150));
        assert_eq!(after(killed.clone(), 1150 + BOUND, kill), []);
        assert_eq!(after(killed, 1151 + BOUND, kill), [Promise::Wait]);
        // A guard that is dropped right before the kill may not be released.
        let kill_soon = |history: &mut History| history.workers[0].killed = Some(millis(149));
        assert_eq!(after(dropped(), 1149 + BOUND, kill_soon), []);
        assert_eq!(after(dropped(), 1150 + BOUND, kill_soon), [Promise::Wait]);
        let kill_later = |history: &mut History| history.workers[0].killed = Some(millis(151));
        assert_eq!(after(dropped(), 151 + BOUND, kill_later), [Promise::Wait]);
    }

    #[test]
    fn a_request_that_arrives_later_than_a_lease_is_not_undone() {
        for verb in [Verb::Acquire, Verb::Join] {
            let late = |until, granted| {
                let mut failed = asking(0, 0, Outcome::Failed(millis(100)));
                failed.request.verb = verb;
                let mut history = history(vec![failed, held(1, until, granted, granted)]);
                let delays = disturbance(0, until, Affected::Worker(0), Effect::Delays);
                history.disturbances.push(delays);
                violated(&history)
            };
            // The worker undoes the attempt within a response time-out and the slack.
            assert_eq!(late(1000, 1000 + 100 + BOUND), []);
            assert_eq!(late(1000, 1001 + 100 + BOUND), [Promise::Wait]);
            assert_eq!(late(1001, 1001 + 100 + 1000 + BOUND), []);
            assert_eq!(late(1001, 1002 + 100 + 1000 + BOUND), [Promise::Wait]);
        }
    }

    #[test]
    fn a_master_that_does_not_know_of_a_release_keeps_the_lock_for_its_lease() {
        let failed = || asking(0, 0, Outcome::Failed(millis(80)));
        let late = |earlier, from, granted| {
            let lose = |history: &mut History| {
                history.disturbances.push(disturbance(60, 61, Affected::Worker(0), Effect::Delays));
                let loss = disturbance(from, from + 10, Affected::Nobody, Effect::LosesHolds);
                history.disturbances.push(loss);
            };
            after(earlier, granted, lose)
        };
        // A release that the call does not wait for takes a response time-out and the slack.
        for (earlier, released) in [(held(0, 0, 0, 100), 100), (dropped(), 200), (failed(), 180)] {
            let late = |from, granted| late(earlier.clone(), from, granted);
            assert_eq!(late(released + 1000, released + 1000 + BOUND), []);
            assert_eq!(late(released + 1000, released + 1001 + BOUND), [Promise::Wait]);
            assert_eq!(late(released + 1001, released + 1 + BOUND), [Promise::Wait]);
        }
        // The loss may meet the release before it is done.
        assert_eq!(late(dropped(), 120, 1200 + BOUND), []);
        assert_eq!(late(dropped(), 120, 1201 + BOUND), [Promise::Wait]);
    }

    #[test]
    fn killed_waiters_keep_their_places_in_a_fair_queue_for_a_while() {
        let late = |lock: &str, gap, killed| {
            let dead = [asking(0, 80, Outcome::Unknown), asking(0, 90, Outcome::Unknown)];
            // The lock is held until 5000, long after any hold of the killed worker.
            let waits = [held(1, 100, 100, 5000), held(1, 4000, 5000 + gap, 6000)];
            let mut history = history([&dead[..], &waits].concat());
            history.workers[0].killed = Some(millis(killed));
            history.workers[1].lease = millis(8000);
            history.attempts.iter_mut().for_each(|it| it.request.lock = lock.to_owned());
            violated(&history)
        };
        // For each killed waiter: the fair waiter time-out and the poll interval.
        assert_eq!(late("fair-0", BOUND + 2 * 400, 95), []);
        assert_eq!(late("fair-0", BOUND + 2 * 400 + 1, 95), [Promise::Wait]);
        assert_eq!(late("plain-0", BOUND + 1, 95), [Promise::Wait]);
    }

    #[test]
    fn a_live_worker_releases_what_it_left_after_a_disturbance() {
        assert_eq!(after(dropped(), 150 + BOUND, |_| ()), []);
        assert_eq!(after(dropped(), 151 + BOUND, |_| ()), [Promise::Wait]);
        let failed = || asking(0, 0, Outcome::Failed(millis(80)));
        let disturb = |history: &mut History| {
            let fault = disturbance(60, 300, Affected::Worker(0), Effect::Delays);
            history.disturbances.push(fault);
        };
        for left in [failed(), dropped()] {
            // The response time-out and the slack.
            assert_eq!(after(left.clone(), 400 + BOUND, disturb), []);
            assert_eq!(after(left.clone(), 401 + BOUND, disturb), [Promise::Wait]);
            // A second fault meets the release, unless it begins when that has been done.
            let again = |from: u64| {
                move |history: &mut History| {
                    disturb(history);
                    let fault = disturbance(from, 700, Affected::Worker(0), Effect::Delays);
                    history.disturbances.push(fault);
                }
            };
            assert_eq!(after(left.clone(), 800 + BOUND, again(400)), []);
            assert_eq!(after(left.clone(), 801 + BOUND, again(400)), [Promise::Wait]);
            assert_eq!(after(left, 401 + BOUND, again(401)), [Promise::Wait]);
        }
    }

    #[test]
    fn a_killed_worker_leaves_what_it_has_not_undone() {
        let waits = |lock: &str, killed, granted| {
            let failed = (3, asking(0, 0, Outcome::Failed(millis(80))));
            let waiting = (1, held(1, 50, granted, granted));
            let mut history = history(with_permits(lock, vec![failed, waiting]));
            let fault = disturbance(60, 90, Affected::Worker(0), Effect::Delays);
            history.disturbances.push(fault);
            history.workers[0].killed = Some(millis(killed));
            violated(&history)
        };
        // What was left is undone within the response time-out and the slack after the fault.
        assert_eq!(waits("count-0", 190, 5000), [], "the permits never come back");
        assert_eq!(waits("count-0", 191, 191 + BOUND), [Promise::Wait]);
        assert_eq!(waits("plain-0", 190, 190 + 1000 + BOUND), [], "the lease ends");
        assert_eq!(waits("plain-0", 190, 191 + 1000 + BOUND), [Promise::Wait]);
        assert_eq!(waits("plain-0", 191, 191 + BOUND), [Promise::Wait]);
    }

    #[test]
    fn a_waiter_for_permits_waits_only_while_too_few_are_free() {
        let waits = |permits, granted| {
            let holds = vec![
                (1, held(0, 0, 0, 900)),
                (1, held(0, 0, 1, 300)),
                (permits, held(1, 10, granted, 2000)),
            ];
            violated(&history(with_permits("semaphore-0", holds)))
        };
        assert_eq!(waits(1, 10 + BOUND), []);
        assert_eq!(waits(1, 11 + BOUND), [Promise::Wait]);
        assert_eq!(waits(2, 300 + BOUND), []);
        assert_eq!(waits(2, 301 + BOUND), [Promise::Wait]);
        assert_eq!(waits(3, 900 + BOUND), []);
        assert_eq!(waits(3, 901 + BOUND), [Promise::Wait]);
    }

    #[test]
    fn a_later_loss_hides_how_many_permits_an_earlier_one_left() {
        let waits = |free: Option<i64>, losses: &[u64]| {
            let refused = asking(1, 400, Outcome::Refused(millis(501 + BOUND)));
            let mut history = history(with_permits("count-0", vec![(3, refused)]));
            history.counts.extend(free.map(|free| ("count-0".to_owned(), free)));
            history.disturbances = losses
                .iter()
                .map(|at| disturbance(*at, at + 10, Affected::All, Effect::LosesAllHolds))
                .collect();
            violated(&history)
        };
        assert_eq!(waits(Some(2), &[100]), []);
        assert_eq!(waits(None, &[100]), [], "the loss left no count");
        assert_eq!(waits(Some(3), &[100]), [Promise::Wait]);
        assert_eq!(waits(Some(3), &[5000]), [Promise::Wait]);
        let outlasts = waits(Some(3), &[495 + BOUND]);
        assert_eq!(outlasts, [Promise::Wait], "one loss, which outlasts the wait");
        assert_eq!(waits(Some(3), &[100, 5000]), []);
    }

    #[test]
    fn the_claim_of_an_older_waiter_excuses_a_wait() {
        let waits = |asked, granted| {
            let older = (3, held(0, asked, 2000, 2010));
            let waiting = (1, held(1, 800, granted, granted + 1));
            let holds = vec![(2, held(0, 0, 0, 2000)), older, waiting];
            violated(&history(with_permits("semaphore-0", holds)))
        };
        // The older waiter claims after one poll.
        assert_eq!(waits(700, 2010), []);
        // A younger one claims at 1000, and the first takes over after two polls and the slack.
        assert_eq!(waits(900, 1050 + BOUND), []);
        assert_eq!(waits(900, 1051 + BOUND), [Promise::Wait]);
    }

    #[test]
    fn two_waiters_beside_a_free_lock_do_not_excuse_each_other() {
        let both = vec![held(0, 0, 0, 100), held(0, 101, 900, 950), held(1, 50, 960, 990)];
        assert_eq!(violated(&history(both)), [Promise::Wait, Promise::Wait]);
    }
}
