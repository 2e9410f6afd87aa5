//! A question about a lock has the right answer.
//!
//! A history does not show when a server answered. So an answer counts as wrong only if it was
//! wrong all the time from the question to the answer: one hold was valid all that time and the
//! lock is reported free, or no attempt can have held the lock and it is reported held. After an
//! early release with a minimum, nobody holds the lock and it may be reported either way.
//!
//! An answer with a token has at least that of each hold that was granted before the question.
//!
//! A search asks one server after the other. It may miss a lock while a master is replaced, or
//! while the lock's slot moves.

use super::waits::{Spans, done, end};
use super::{Attempt, History, Outcome, Promise, Violation};
use crate::record::{Verb, millis};
use crate::system::Nanos;

/// Checks the questions about one lock against the calls for it.
pub(super) fn check(
    history: &History,
    calls: &[&Attempt],
    questions: &[&Attempt],
) -> Vec<Violation> {
    if questions.is_empty() {
        return Vec::new();
    }
    let spans = Spans::of(history, calls);
    let wrong = questions.iter().filter_map(|question| match question.outcome {
        Outcome::Refused(at) => wrongly_free(history, calls, question, at),
        Outcome::Done(at) => wrongly_held(history, calls, &spans, question, at)
            .or_else(|| too_small_a_token(history, calls, question, at)),
        _ => None,
    });
    wrong.collect()
}

/// Checks the answer that a lock is free, which came at this moment.
fn wrongly_free(
    history: &History,
    calls: &[&Attempt],
    question: &Attempt,
    at: Nanos,
) -> Option<Violation> {
    let (asked, request) = (question.asked, &question.request);
    let holds_all_along = |call: &&&Attempt| {
        let hold = call.hold().filter(|hold| hold.granted <= asked && at <= hold.valid_to);
        hold.is_some() && call.request.shared == request.shared
    };
    let held =
        calls.iter().filter(holds_all_along).find(|call| !history.may_have_lost(call, at))?;
    let may_be_missed =
        request.verb == Verb::Search && history.may_have_moved(&request.lock, asked, at);
    let is_excused = may_be_missed || history.may_be_outdated(&request.lock, at);
    let text = || format!("reported free: {question}\n  held: {held}");
    (!is_excused).then(|| Promise::Question.violation(text()))
}

/// Checks the answer that a lock is held, which came at this moment.
fn wrongly_held(
    history: &History,
    calls: &[&Attempt],
    spans: &Spans<'_>,
    question: &Attempt,
    at: Nanos,
) -> Option<Violation> {
    let (asked, lock) = (question.asked, &question.request.lock);
    // A fail-over may lose a release. The lock is then held again until its lease ends.
    let fixed = calls.iter().filter_map(|call| call.request.lease).max().unwrap_or(0);
    let longest = history.longest_lease().max(millis(fixed));
    let since = asked.saturating_sub(history.bounds.latest(longest));
    // The server may have granted a call that has not returned.
    let runs =
        |call: &&Attempt| call.asked <= at && end(history, call).is_none_or(|ended| asked <= ended);
    let lingers = |call: &&Attempt| {
        let linger = history.linger(call);
        let ended = call.hold().and_then(|hold| hold.ended).filter(|_| linger > 0);
        ended.is_some_and(|(ended, _)| asked <= done(history, call, ended + linger))
    };
    let may_be_held = spans.of_others(question, asked, at).next().is_some()
        || calls.iter().any(runs)
        || calls.iter().any(lingers)
        || history.may_have_lost_between(lock, since, at)
        || history.may_be_outdated(lock, at);
    (!may_be_held).then(|| Promise::Question.violation(format!("reported held: {question}")))
}

/// Checks the token of an answer, which came at this moment.
fn too_small_a_token(
    history: &History,
    calls: &[&Attempt],
    question: &Attempt,
    at: Nanos,
) -> Option<Violation> {
    let token = question.seen.first()?.leader?.token;
    let is_larger = |call: &&&Attempt| {
        let hold = call.hold().filter(|hold| hold.granted < question.asked && token < hold.token);
        hold.is_some() && !history.may_have_lost(call, at)
    };
    let larger = calls.iter().find(is_larger)?;
    let is_excused = history.may_be_outdated(&question.request.lock, at);
    let text = || format!("{question}: token {token}, after {larger}");
    (!is_excused).then(|| Promise::Question.violation(text()))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, held, history, violated};
    use super::super::{Affected, Attempt, Disturbance, Effect, Outcome, Promise, Sighting};
    use crate::record::{Seen, Verb, millis};

    /// Returns a question of worker 1 from 20 ms on, answered after 10 ms.
    fn question(outcome: fn(u64) -> Outcome) -> Attempt {
        let mut question = asking(1, 20, outcome(millis(30)));
        question.request.verb = Verb::Ask;
        question.request.max_wait = 0;
        question
    }

    fn beside(question: Attempt, calls: Vec<Attempt>) -> Vec<Promise> {
        violated(&history([calls, vec![question]].concat()))
    }

    #[test]
    fn a_held_lock_is_not_reported_free() {
        let free = || question(Outcome::Refused);
        assert_eq!(beside(free(), vec![held(0, 0, 10, 30)]), [Promise::Question]);
        assert_eq!(beside(free(), vec![held(0, 0, 10, 29)]), [], "released before the answer");
        assert_eq!(beside(free(), vec![held(0, 0, 21, 90)]), [], "granted after the question");
        let mut reader = held(0, 0, 10, 90);
        reader.request.shared = true;
        assert_eq!(beside(free(), vec![reader.clone()]), [], "the other side is asked");
        let mut of_readers = free();
        of_readers.request.shared = true;
        assert_eq!(beside(of_readers, vec![reader]), [Promise::Question]);
    }

    #[test]
    fn a_free_lock_is_not_reported_held() {
        let taken = || question(Outcome::Done);
        assert_eq!(beside(taken(), Vec::new()), [Promise::Question]);
        assert_eq!(beside(taken(), vec![held(0, 0, 10, 19)]), [Promise::Question]);
        assert_eq!(beside(taken(), vec![held(0, 0, 10, 20)]), [], "released after the question");
        assert_eq!(beside(taken(), vec![held(0, 25, 40, 90)]), [], "asked before the answer");
        assert_eq!(beside(taken(), vec![held(0, 31, 40, 90)]), [Promise::Question]);
        let killed = asking(0, 0, Outcome::Unknown);
        assert_eq!(beside(taken(), vec![killed]), [], "a call without an answer");
    }

    #[test]
    fn an_answer_has_at_least_the_token_of_each_hold_that_was_granted_before() {
        let with = |token, granted, loss| {
            let mut taken = question(Outcome::Done);
            let leader = Some(Seen { token, value: 0 });
            taken.seen.push(Sighting { at: millis(30), leader });
            let mut history = history(vec![held(0, 0, granted, 90), taken]);
            let effect = if loss { Effect::LosesHolds } else { Effect::Delays };
            history.disturbances.push(disturbance(1, 2, Affected::Nobody, effect));
            violated(&history)
        };
        // The token of an example is the moment of its grant.
        assert_eq!(with(19, 19, false), []);
        assert_eq!(with(18, 19, false), [Promise::Question]);
        assert_eq!(with(18, 19, true), [], "the counter may be lost");
        assert_eq!(with(19, 20, false), [], "granted after the question");
    }

    #[test]
    fn a_search_may_miss_a_lock_that_moves() {
        let missed = |verb, name: &str, from| {
            let mut search = question(Outcome::Refused);
            search.request.verb = verb;
            let mut history = history(vec![held(0, 0, 10, 30), search]);
            let fault = disturbance(from, 25, Affected::Nobody, Effect::Delays);
            history.disturbances.push(Disturbance { name: name.to_owned(), ..fault });
            violated(&history)
        };
        for moves in ["MoveSlot", "FailOver"] {
            assert_eq!(missed(Verb::Search, moves, 15), []);
        }
        let wrong = [Promise::Question];
        assert_eq!(missed(Verb::Search, "KillConnections", 15), wrong);
        assert_eq!(missed(Verb::Ask, "MoveSlot", 15), wrong, "the question goes to one server");
    }

    #[test]
    fn lost_data_and_a_replaced_master_excuse_a_wrong_answer() {
        let with = |name: &str, effect, question, call| {
            let mut history = history(vec![call, question]);
            let fault = disturbance(15, 18, Affected::Nobody, effect);
            history.disturbances.push(Disturbance { name: name.to_owned(), ..fault });
            violated(&history)
        };
        let free = || question(Outcome::Refused);
        assert_eq!(with("a fault", Effect::LosesHolds, free(), held(0, 0, 10, 30)), []);
        let wrong = [Promise::Question];
        assert_eq!(with("a fault", Effect::Delays, free(), held(0, 0, 10, 30)), wrong);
        let taken = || question(Outcome::Done);
        assert_eq!(with("a fault", Effect::LosesHolds, taken(), held(0, 0, 10, 19)), []);
        assert_eq!(with("a fault", Effect::Delays, taken(), held(0, 0, 10, 19)), wrong);
    }
}
