//! A call returns in time, and fails only with a reason.
//!
//! Without a disturbance there is no error, no refusal before the deadline or long after it, and
//! no renewed hold is lost.
//!
//! A stall of the machine, as a worker or a server felt it, excuses a loss. A renewal begins a
//! third of a lease after the last one, so two thirds of a lease pass until the loss, at four
//! steps: the watchdog, the proxy, the server and the proxy again. At least one of the steps then
//! takes a sixth of the lease.
//!
//! A request without a reply in time fails the later requests of its connection too, and so does an
//! attempt to connect. So a stall excuses an early time-out: one of four steps took a quarter of
//! the response time-out.
//!
//! Once a server has answered, a waiting call waits through outages. So a call fails before its
//! deadline only if a fault may have met its first request, or with an error that needs an answer.
//! Beside other calls of its process, it may ask late.
//!
//! A call for more permits than a semaphore may have had is refused as a wrong one.

use super::capacities::Capacities;
use super::waits::end;
use super::{Attempt, History, Hold, Outcome, Promise, Violation};
use crate::plan::MAX_WAIT;
use crate::record::{End, Verb, millis};
use crate::system::Nanos;

/// The number of equal parts of a lease of which one step of a lost renewal takes at least one.
const STEPS_OF_A_LOSS: Nanos = 6;

/// The number of steps of a request, of which one takes at least an equal part of a time-out.
const STEPS_OF_A_REQUEST: Nanos = 4;

pub(super) fn check(
    history: &History,
    attempts: &[&Attempt],
    capacities: &Capacities,
) -> Vec<Violation> {
    let unexplained = |it: &&Attempt| {
        unexplained(history, it, capacities).or_else(|| gives_up(history, attempts, it, capacities))
    };
    attempts.iter().filter_map(unexplained).collect()
}

fn unexplained(history: &History, attempt: &Attempt, capacities: &Capacities) -> Option<Violation> {
    let Attempt { request, asked, .. } = attempt;
    let undisturbed = |to| history.disturbances_of(attempt, *asked, to).next().is_none();
    let bounds = &history.bounds;
    // The time for a term in `run` is what is left of a longer wait.
    let longest = if request.verb == Verb::Lead { MAX_WAIT.end } else { request.max_wait };
    let off = millis(longest) - bounds.soonest(millis(longest));
    let deadline = asked + millis(request.max_wait).saturating_sub(off);
    let late = asked + bounds.latest(millis(request.max_wait) + bounds.response) + bounds.slack;
    // A call that does not wait still waits for a response time-out.
    let time_out = match request.max_wait {
        0 => bounds.response,
        max_wait => millis(max_wait).min(bounds.response),
    };
    // A grant whose fixed lease has ended on the way is an error too.
    let time_out = bounds.soonest(time_out.min(history.lease(attempt)));
    let (promise, broken) = match &attempt.outcome {
        // Only its stop ends the campaigns of `run`.
        Outcome::Failed(at) if request.verb == Verb::Lead => (Promise::Answer, *at < deadline),
        // A busy machine excuses a time-out, but no earlier error.
        Outcome::Failed(at) => {
            let early = *at < asked + time_out && undisturbed(*at);
            let is_explained = explained_by_older_request(history, attempt, *at)
                || explained_by_capacity(capacities, attempt, *at);
            (Promise::Answer, early && !is_explained)
        }
        Outcome::Refused(at) => {
            let early = request.max_wait > 0 && *at < deadline;
            (Promise::Answer, early || (late < *at && undisturbed(*at)))
        }
        // A check found the loss, or the release of a hold that was valid just before.
        Outcome::Held(Hold { lost: Some(at), .. } | Hold { ended: Some((at, End::Lost)), .. }) => {
            let limit = request.max_hold.map(|max_hold| asked + bounds.soonest(millis(max_hold)));
            let within = limit.is_none_or(|limit| *at < limit);
            let renewed = request.lease.is_none() && within;
            (
                Promise::Renewal,
                renewed && undisturbed(*at) && !explained_by_stall(history, attempt, *at),
            )
        }
        Outcome::Held(_) | Outcome::Done(_) | Outcome::Unknown => return None,
    };
    broken.then(|| promise.violation(format!("without a reason: {attempt}")))
}

/// Checks that a call does not stop to wait once a server has answered it.
fn gives_up(
    history: &History,
    attempts: &[&Attempt],
    attempt: &Attempt,
    capacities: &Capacities,
) -> Option<Violation> {
    let Attempt { worker, request, asked, error, outcome, .. } = attempt;
    let (bounds, max_wait) = (&history.bounds, millis(request.max_wait));
    let Outcome::Failed(at) = *outcome else { return None };
    if request.verb != Verb::Acquire || asked + bounds.soonest(max_wait) <= at {
        return None;
    }
    // A caller that yields to other processes asks a little later.
    let answered = asked + 2 * bounds.response + bounds.slack;
    // A grant came too late, or too few replicas have it.
    let needs_answer = ["Lost", "NotReplicated"].iter().any(|kind| error.starts_with(kind));
    let ended = |other: &Attempt| match other.hold() {
        Some(hold) => hold.ended.map_or(Nanos::MAX, |(at, _)| at),
        None => end(history, other).unwrap_or(Nanos::MAX),
    };
    let is_beside = |other: &&Attempt| {
        !std::ptr::eq(*other, attempt)
            && other.worker == *worker
            && other.asked <= answered
            && *asked <= ended(other)
    };
    let was_answered = answered < at
        && !attempts.iter().any(is_beside)
        && history.disturbances_of(attempt, *asked, answered).next().is_none();
    let broken = was_answered && !needs_answer && !explained_by_capacity(capacities, attempt, at);
    broken.then(|| Promise::Answer.violation(format!("waits no longer: {attempt}")))
}

/// Returns whether the machine stalled long enough for the loss of a renewed hold.
fn explained_by_stall(history: &History, attempt: &Attempt, lost: Nanos) -> bool {
    let lease = history.lease(attempt);
    history.longest_stall(lost.saturating_sub(lease), lost) >= lease / STEPS_OF_A_LOSS
}

/// Returns whether the machine stalled long enough for a time-out of an older request.
fn explained_by_older_request(history: &History, attempt: &Attempt, failed: Nanos) -> bool {
    let response = history.bounds.response;
    attempt.error.starts_with("Timeout")
        && history.longest_stall(failed.saturating_sub(response), failed)
            >= response / STEPS_OF_A_REQUEST
}

/// Returns whether a call for permits failed because there may have been fewer of them.
fn explained_by_capacity(capacities: &Capacities, attempt: &Attempt, failed: Nanos) -> bool {
    let Attempt { request, asked, error, .. } = attempt;
    request.is_leased()
        && !request.is_change()
        && error.starts_with("Configuration")
        && *capacities.between(*asked, failed).start() < i64::from(request.permits)
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, held, history, hold_of, resize, violated};
    use super::super::{Affected, Attempt, Effect, Outcome, Promise, Stall};
    use crate::record::{End, millis};

    /// Returns the broken promises without and with a disturbance.
    fn violated_without_and_with_disturbance(attempt: Attempt) -> [Vec<Promise>; 2] {
        let undisturbed = history(vec![attempt]);
        let mut disturbed = undisturbed.clone();
        disturbed.disturbances.push(disturbance(0, 9000, Affected::All, Effect::Delays));
        [violated(&undisturbed), violated(&disturbed)]
    }

    #[test]
    fn an_error_needs_a_reason() {
        let failed = |max_wait, at| {
            let mut failed = asking(0, 0, Outcome::Failed(millis(at)));
            failed.request.max_wait = max_wait;
            violated_without_and_with_disturbance(failed)
        };
        for max_wait in [0, 5000] {
            assert_eq!(failed(max_wait, 49), [vec![Promise::Answer], vec![]]);
            assert_eq!(failed(max_wait, 50), [vec![], vec![]], "after the response time-out");
        }
        assert_eq!(failed(40, 39), [vec![Promise::Answer], vec![]]);
        assert_eq!(failed(40, 40), [vec![], vec![]], "at its deadline");
    }

    #[test]
    fn a_call_that_was_answered_waits_through_an_outage() {
        let failed = |holder, error: &str, from, at| {
            let mut failed = asking(0, 1000, Outcome::Failed(millis(at)));
            failed.error = error.to_owned();
            let mut history = history(vec![held(holder, 900, 910, 8000), failed]);
            history.disturbances.push(disturbance(from, 9000, Affected::All, Effect::Delays));
            violated(&history)
        };
        // The first request has its reply after two response time-outs and the slack.
        let (answered, broken) = (1000 + 2 * 50 + 50, [Promise::Answer]);
        assert_eq!(failed(1, "Server", answered + 1, 1200), broken);
        assert_eq!(failed(1, "Server", answered, 1200), []);
        assert_eq!(failed(1, "Server", answered + 1, 6000), [], "at its deadline");
        assert_eq!(failed(1, "Lost", answered + 1, 1200), [], "it was granted too late");
        assert_eq!(failed(0, "Server", answered + 1, 1200), [], "behind its own process");
    }

    #[test]
    fn a_stall_excuses_an_early_time_out() {
        let stalled = |error: &str, from, to| {
            let mut failed = asking(0, 1000, Outcome::Failed(millis(1010)));
            failed.error = error.to_owned();
            let mut history = history(vec![failed]);
            history.workers[1].stalls.push(Stall { from: millis(from), to: millis(to) });
            violated(&history)
        };
        // The response time-out is 50 ms.
        assert_eq!(stalled("Timeout", 960, 973), []);
        assert_eq!(stalled("Timeout", 960, 972), [Promise::Answer], "a short stall");
        assert_eq!(stalled("Timeout", 900, 972), [Promise::Answer], "mostly before the request");
        assert_eq!(stalled("Connection", 960, 973), [Promise::Answer], "another error");
    }

    #[test]
    fn a_call_for_more_permits_than_there_are_is_refused() {
        let failed = |error: &str, capacity| {
            let mut failed = asking(0, 1000, Outcome::Failed(millis(1010)));
            (failed.request.lock, failed.request.permits) = ("semaphore-0".to_owned(), 3);
            failed.error = error.to_owned();
            violated(&history(vec![resize(capacity, 900, 910), failed]))
        };
        assert_eq!(failed("Configuration", 2), []);
        assert_eq!(failed("Configuration", 3), [Promise::Answer]);
        assert_eq!(failed("Timeout", 2), [Promise::Answer]);
        let mut change = resize(5, 1000, 1010);
        (change.outcome, change.error) =
            (Outcome::Failed(millis(1010)), "Configuration".to_owned());
        assert_eq!(
            violated(&history(vec![change])),
            [Promise::Answer],
            "a change is no call for some"
        );
    }

    #[test]
    fn a_refusal_comes_at_the_deadline() {
        let refused = |at| {
            let mut refused = asking(0, 0, Outcome::Refused(millis(at)));
            refused.request.max_wait = 40;
            violated_without_and_with_disturbance(refused)
        };
        assert_eq!(refused(39), [[Promise::Answer], [Promise::Answer]]);
        assert_eq!(refused(40), [vec![], vec![]]);
        // The response time-out and the slack.
        assert_eq!(refused(140), [vec![], vec![]]);
        assert_eq!(refused(141), [vec![Promise::Answer], vec![]]);
    }

    #[test]
    fn a_renewed_hold_is_not_lost() {
        let lost = |lease| {
            let mut lost = held(0, 0, 10, 20);
            lost.request.lease = lease;
            hold_of(&mut lost).lost = Some(millis(20));
            violated_without_and_with_disturbance(lost)
        };
        assert_eq!(lost(None), [vec![Promise::Renewal], vec![]]);
        let mut ended = held(0, 0, 10, 20);
        hold_of(&mut ended).ended = Some((millis(20), End::Lost));
        let reported = violated_without_and_with_disturbance(ended);
        assert_eq!(reported, [vec![Promise::Renewal], vec![]], "by its release");
        assert_eq!(lost(Some(15)), [vec![], vec![]], "a fixed lease ends");
        let limited = |max_hold| {
            let mut lost = held(0, 0, 10, 20);
            lost.request.max_hold = Some(max_hold);
            hold_of(&mut lost).lost = Some(millis(20));
            violated(&history(vec![lost]))
        };
        let stalled = |from, to| {
            let mut lost = held(0, 0, 10, 2000);
            hold_of(&mut lost).lost = Some(millis(2000));
            let mut history = history(vec![lost]);
            // Any worker notices it.
            history.workers[1].stalls.push(Stall { from: millis(from), to: millis(to) });
            violated(&history)
        };
        assert_eq!(stalled(1500, 1667), [], "a sixth of the lease");
        assert_eq!(stalled(1500, 1666), [Promise::Renewal], "a short stall");
        assert_eq!(stalled(500, 1166), [Promise::Renewal], "mostly before the last lease");
        assert_eq!(limited(20), [], "after its limit");
        assert_eq!(limited(21), [Promise::Renewal], "before its limit");
    }
}
