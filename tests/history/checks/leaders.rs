//! Readers and observers of an election see its leader, and no former one.
//!
//! A history does not show when a server answered a question. It shows two bounds: the call and its
//! answer. So an answer must not name a term that was over before the call, nor a smaller token
//! than one that was known before the call. During a term that is announced it must name that term.
//! The value must always belong to the token.
//!
//! A message to an observer has a state that was read within the bound of waits. It must not go
//! back to a smaller token. An observer learns within that bound of the begin and the end of terms.
//!
//! A loss of data excuses all but a value of another term. A term whose resignation has returned is
//! over. Other terms are over when their lease has ended on the servers.

use super::waits::{end, over};
use super::{Attempt, Held, History, Hold, Promise, Sighting, Violation, by_grant};
use crate::record::{Seen, Verb};
use crate::system::Nanos;
use std::collections::BTreeMap;

/// Checks the questions and observations of one election against its terms.
pub(super) fn check(history: &History, calls: &[&Attempt], looks: &[&Attempt]) -> Vec<Violation> {
    if looks.is_empty() {
        return Vec::new();
    }
    let election = Election::new(history, calls, looks);
    let each = looks.iter().flat_map(|look| look.seen.iter().map(move |it| (*look, it)));
    let mut found: Vec<_> = each.filter_map(|(look, it)| election.wrong(look, it)).collect();
    for observer in looks.iter().filter(|look| look.request.verb == Verb::Observe) {
        found.extend(election.goes_back(observer));
        found.extend(election.is_behind(observer));
        found.extend(election.misses_a_term(observer));
    }
    found
}

/// A token that a process knows from this moment on.
struct Known {
    from: Nanos,
    token: u64,
    /// A moment before the servers had this term.
    before: Nanos,
}

/// The terms of one election.
struct Election<'a> {
    history: &'a History,
    /// In the order of their grants.
    terms: Vec<Held<'a>>,
    by_token: BTreeMap<u64, Held<'a>>,
    by_value: BTreeMap<u64, Vec<&'a Attempt>>,
    /// The largest tokens so far, in the order of time.
    known: Vec<Known>,
}

fn violation(text: &str, look: &Attempt, sighting: &Sighting, more: &str) -> Violation {
    let after = sighting.at.saturating_sub(look.asked) as f64 / 1e6;
    let text = format!("{:?} after {after:.1} ms {text}: {look}{more}", sighting.leader);
    Promise::Leader.violation(text)
}

impl<'a> Election<'a> {
    fn new(history: &'a History, calls: &[&'a Attempt], looks: &[&'a Attempt]) -> Election<'a> {
        let terms = by_grant(calls);
        let by_token = terms.iter().map(|term| (term.1.token, *term)).collect();
        let mut by_value: BTreeMap<u64, Vec<&Attempt>> = BTreeMap::new();
        for call in calls {
            by_value.entry(call.request.value).or_default().push(call);
        }
        let mut election = Election { history, terms, by_token, by_value, known: Vec::new() };
        election.known = election.known_tokens(looks);
        election
    }

    fn known_tokens(&self, looks: &[&Attempt]) -> Vec<Known> {
        let granted = self.terms.iter().map(|(attempt, hold)| Known {
            from: hold.granted,
            token: hold.token,
            before: attempt.asked,
        });
        let seen = looks.iter().flat_map(|look| {
            look.seen.iter().filter_map(|it| {
                let before = self.read_after(look, it).unwrap_or(look.asked);
                Some(Known { from: it.at, token: it.leader?.token, before })
            })
        });
        let mut known: Vec<_> = granted.chain(seen).collect();
        known.sort_by_key(|it| it.from);
        let mut largest = 0;
        known.retain(|it| {
            let is_larger = it.token > largest;
            largest = largest.max(it.token);
            is_larger
        });
        known
    }

    /// Returns a moment before the servers had this state; `None` for a message to an observer
    /// during a fault or a stall.
    fn read_after(&self, look: &Attempt, sighting: &Sighting) -> Option<Nanos> {
        if look.request.verb == Verb::Look {
            return Some(look.asked);
        }
        let from = sighting.at.saturating_sub(self.history.bounds.wait()).max(look.asked);
        self.is_steady(look, from, sighting.at).then_some(from)
    }

    /// Returns whether no fault affects the worker of a call, and the machine does not stall.
    fn is_steady(&self, attempt: &Attempt, from: Nanos, to: Nanos) -> bool {
        let history = self.history;
        history.disturbances_of(attempt, from, to).next().is_none()
            && history.longest_stall(from, to) < history.bounds.response / 2
    }

    /// Checks one answer or message.
    fn wrong(&self, look: &Attempt, sighting: &Sighting) -> Option<Violation> {
        if let Some(text) = sighting.leader.and_then(|leader| self.wrong_value(leader)) {
            return Some(violation(text, look, sighting, ""));
        }
        let after = self.read_after(look, sighting)?;
        let (text, term) = self
            .names_a_former_term(sighting, after)
            .or_else(|| self.names_a_smaller_token(look, sighting, after))
            .or_else(|| self.names_no_leader(look, sighting))?;
        let more = term.map_or(String::new(), |term| format!("\n  {term}"));
        Some(violation(text, look, sighting, &more))
    }

    /// Checks that the value belongs to the token, as far as the token is known.
    fn wrong_value(&self, Seen { token, value }: Seen) -> Option<&'static str> {
        let calls = self.by_value.get(&value).map_or(&[][..], |calls| calls);
        // Two masters may have given the same token.
        let decides =
            |term: &&Held<'_>| !self.history.may_be_outdated(&term.0.request.lock, term.1.granted);
        let is_right = match self.by_token.get(&token).filter(decides) {
            Some((attempt, _)) => attempt.request.value == value,
            // The call was killed before it recorded its term, or it failed after the grant. Or it
            // lost a term before the program saw it, and has another one since.
            None => calls.iter().any(|call| {
                let is_of_call = |hold: &Hold| {
                    token == hold.token || token < hold.token && self.is_new(token, call.asked)
                };
                call.hold().is_none_or(is_of_call)
            }),
        };
        (!is_right).then_some("has a value of another term")
    }

    /// Returns whether all tokens that were known before this moment are smaller.
    fn is_new(&self, token: u64, at: Nanos) -> bool {
        let known = &self.known[..self.known.partition_point(|it| it.from < at)];
        known.last().is_none_or(|it| it.token < token)
    }

    /// Checks that the named term was not over before this moment.
    fn names_a_former_term(
        &self,
        sighting: &Sighting,
        after: Nanos,
    ) -> Option<(&'static str, Option<&'a Attempt>)> {
        let (attempt, _) = self.by_token.get(&sighting.leader?.token)?;
        let is_over = over(self.history, attempt) < after;
        let wrong = is_over && !self.history.may_have_lost(attempt, sighting.at);
        wrong.then_some(("names a term that is over", Some(*attempt)))
    }

    /// Checks that no larger token was known before this moment.
    fn names_a_smaller_token(
        &self,
        look: &Attempt,
        sighting: &Sighting,
        after: Nanos,
    ) -> Option<(&'static str, Option<&'a Attempt>)> {
        let known = &self.known[..self.known.partition_point(|it| it.from < after)];
        let larger = known.last().filter(|it| Some(it.token) > sighting.leader.map(|it| it.token));
        let Known { token, before, .. } = larger.filter(|_| sighting.leader.is_some())?;
        let excused = self.history.may_have_lost_between(&look.request.lock, *before, sighting.at);
        let term = self.by_token.get(token).map(|(attempt, _)| *attempt);
        (!excused).then_some(("names a former term", term))
    }

    /// Checks that an answer during an announced term names it.
    fn names_no_leader(
        &self,
        look: &Attempt,
        sighting: &Sighting,
    ) -> Option<(&'static str, Option<&'a Attempt>)> {
        let before = self.terms.partition_point(|(_, hold)| hold.granted < look.asked);
        let (attempt, hold) = self.terms[..before].last()?;
        let is_valid = look.request.verb == Verb::Look && sighting.at < hold.valid_to;
        let is_named = sighting.leader.is_some_and(|leader| leader.token == hold.token);
        let wrong = is_valid && !is_named && self.is_announced(attempt, sighting.at);
        wrong.then_some(("does not name the present term", Some(*attempt)))
    }

    /// Returns whether the servers certainly have the record of a valid term.
    fn is_announced(&self, attempt: &Attempt, to: Nanos) -> bool {
        self.is_steady(attempt, attempt.asked, to) && !self.history.may_have_lost(attempt, to)
    }

    /// Checks that the tokens of an observer grow.
    fn goes_back(&self, observer: &Attempt) -> Vec<Violation> {
        let named = observer.seen.iter().filter(|it| it.leader.is_some());
        let named: Vec<_> = named.collect();
        let token = |it: &Sighting| it.leader.map(|leader| leader.token);
        let back = named.windows(2).filter(|pair| token(pair[1]) < token(pair[0]));
        let back = back.filter(|pair| {
            let from = self.read_after(observer, pair[0]).unwrap_or(observer.asked);
            let lock = &observer.request.lock;
            !self.history.may_have_lost_between(lock, from, pair[1].at)
        });
        back.map(|pair| violation("goes back", observer, pair[1], "")).collect()
    }

    /// Checks that an observer learns of the end of a term in time.
    fn is_behind(&self, observer: &Attempt) -> Vec<Violation> {
        let next = observer.seen.iter().skip(1).map(|it| Some(it.at));
        let next = next.chain([end(self.history, observer)]);
        let late = observer.seen.iter().zip(next).filter(|(seen, next)| {
            let term = seen.leader.and_then(|leader| self.by_token.get(&leader.token));
            let (Some((attempt, _)), Some(next)) = (term, *next) else { return false };
            let over = over(self.history, attempt).max(seen.at);
            let due = over.saturating_add(self.history.bounds.wait());
            due < next
                && self.is_steady(observer, over, due)
                && !self.history.may_have_lost(attempt, due)
        });
        late.map(|(seen, _)| violation("is a state of long ago", observer, seen, "")).collect()
    }

    /// Checks that an observer learns in time of a term that lasts.
    fn misses_a_term(&self, observer: &Attempt) -> Vec<Violation> {
        let missed = self.terms.iter().filter(|(attempt, hold)| {
            let due = hold.granted + self.history.bounds.wait();
            let is_named = |it: &Sighting| it.leader.is_some_and(|it| it.token == hold.token);
            let mut in_time = observer.seen.iter().filter(|it| it.at <= due);
            observer.asked < attempt.asked
                && due < hold.valid_to
                && end(self.history, observer).is_some_and(|end| due < end)
                && !in_time.any(is_named)
                && self.is_steady(observer, attempt.asked, due)
                && self.is_announced(attempt, due)
        });
        let text = |(attempt, _): &Held<'_>| {
            Promise::Leader.violation(format!("not seen by {observer}: {attempt}"))
        };
        missed.map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, disturbance, held, history, hold_of, violated};
    use super::super::{Affected, Attempt, Effect, History, Outcome, Promise, Sighting};
    use crate::record::{End, Seen, Verb, millis};

    /// The poll interval, the response time-out and the slack of the examples.
    const BOUND: u64 = 200;

    fn on(mut call: Attempt, verb: Verb, value: u64) -> Attempt {
        (call.request.lock, call.request.verb) = ("election-0".to_owned(), verb);
        call.request.value = value;
        call
    }

    /// Returns a term with this token. Its value is ten times the token.
    fn term(token: u64, asked: u64, granted: u64, end: u64) -> Attempt {
        let mut term = on(held(0, asked, granted, end), Verb::Acquire, 10 * token);
        hold_of(&mut term).token = token;
        term
    }

    fn sighting(at: u64, token: u64) -> Sighting {
        let leader = (token > 0).then_some(Seen { token, value: 10 * token });
        Sighting { at: millis(at), leader }
    }

    /// Returns a question of the second worker, and its answer; 0 for no leader.
    fn look(asked: u64, at: u64, token: u64) -> Attempt {
        let look = on(asking(1, asked, Outcome::Done(millis(at))), Verb::Look, 0);
        Attempt { seen: vec![sighting(at, token)], ..look }
    }

    /// Returns an observation of the second worker with these messages.
    fn observed(asked: u64, end: u64, messages: &[(u64, u64)]) -> Attempt {
        let seen = messages.iter().map(|(at, token)| sighting(*at, *token)).collect();
        let observed = on(asking(1, asked, Outcome::Done(millis(end))), Verb::Observe, 0);
        Attempt { seen, ..observed }
    }

    fn broken(calls: Vec<Attempt>) -> Vec<Promise> {
        violated(&history(calls))
    }

    #[test]
    fn an_answer_names_no_term_that_was_resigned_before_the_question() {
        let asked = |at| broken(vec![term(1, 0, 10, 100), look(at, 150, 1)]);
        assert_eq!(asked(100), [], "the resignation returns after the question");
        assert_eq!(asked(101), [Promise::Leader]);
        let dropped = |at| {
            let mut term = term(1, 0, 10, 100);
            hold_of(&mut term).ended = Some((millis(100), End::Dropped));
            broken(vec![term, look(at, at, 1)])
        };
        assert_eq!(dropped(150), [], "the resignation may take a response time-out");
        assert_eq!(dropped(151), [Promise::Leader]);
    }

    #[test]
    fn an_answer_names_no_killed_leader_after_its_lease() {
        let asked = |at| {
            let mut killed = term(1, 0, 10, 100);
            hold_of(&mut killed).ended = None;
            let mut history = history(vec![killed, look(at, at, 1)]);
            history.workers[0].killed = Some(millis(110));
            violated(&history)
        };
        // The response time-out and the lease.
        assert_eq!(asked(110 + 50 + 1000), []);
        assert_eq!(asked(111 + 50 + 1000), [Promise::Leader]);
    }

    #[test]
    fn an_answer_never_goes_back_to_a_smaller_token() {
        let mut first = term(1, 0, 10, 100);
        first.outcome = Outcome::Unknown;
        let after = |more: Attempt, asked| broken(vec![first.clone(), more, look(asked, 200, 1)]);
        let second = || term(2, 90, 120, 130);
        assert_eq!(after(second(), 120), []);
        assert_eq!(after(second(), 121), [Promise::Leader]);
        let unknown = || on(asking(0, 0, Outcome::Unknown), Verb::Acquire, 20);
        let seen = |asked| {
            let history = vec![first.clone(), unknown(), look(90, 120, 2), look(asked, 200, 1)];
            broken(history)
        };
        assert_eq!(seen(120), []);
        assert_eq!(seen(121), [Promise::Leader], "another reader has seen the larger token");
    }

    #[test]
    fn a_term_that_a_call_lost_before_it_returned_may_be_seen() {
        // The second call has the token 5. It may have lost an earlier term with its value.
        let led = |token| {
            let mut look = look(45, 48, 0);
            look.seen[0].leader = Some(Seen { token, value: 50 });
            broken(vec![term(3, 0, 10, 30), term(5, 40, 50, 100), look])
        };
        assert_eq!(led(4), []);
        assert_eq!(led(6), [Promise::Leader], "newer than its term");
        assert_eq!(led(2), [Promise::Leader], "older than the call");
    }

    #[test]
    fn a_value_belongs_to_the_token() {
        let asked = |call: Attempt, token, value| {
            let mut look = look(20, 50, token);
            look.seen[0].leader = Some(Seen { token, value });
            broken(vec![call, look])
        };
        let leads = || term(1, 0, 10, 100);
        assert_eq!(asked(leads(), 1, 10), []);
        assert_eq!(asked(leads(), 1, 20), [Promise::Leader]);
        assert_eq!(asked(leads(), 2, 10), [Promise::Leader], "the call has another token");
        let failed = on(asking(0, 0, Outcome::Failed(millis(90))), Verb::Acquire, 10);
        assert_eq!(asked(failed.clone(), 2, 10), [], "the failed call has got the lock");
        assert_eq!(asked(failed, 2, 11), [Promise::Leader], "nobody has this value");
    }

    #[test]
    fn an_answer_names_the_present_leader() {
        let asked = |asked, at, token| {
            let unknown = on(asking(0, 0, Outcome::Unknown), Verb::Acquire, 90);
            broken(vec![unknown, term(1, 0, 10, 100), look(asked, at, token)])
        };
        assert_eq!(asked(11, 99, 1), []);
        for other in [0, 9] {
            assert_eq!(asked(10, 99, other), [], "the term is not announced yet");
            assert_eq!(asked(11, 99, other), [Promise::Leader]);
            assert_eq!(asked(11, 100, other), [], "the term may have ended");
        }
    }

    #[test]
    fn an_observer_never_goes_back() {
        let first = || on(asking(0, 0, Outcome::Unknown), Verb::Acquire, 10);
        let messages = |messages: &[(u64, u64)]| {
            broken(vec![first(), term(2, 0, 90, 250), observed(0, 200, messages)])
        };
        assert_eq!(messages(&[(60, 1), (70, 0), (100, 2)]), []);
        assert_eq!(messages(&[(95, 2), (97, 0), (100, 1)]), [Promise::Leader]);
    }

    #[test]
    fn an_observer_learns_of_the_end_of_a_term_in_time() {
        let next = |at| {
            let observer = observed(0, 900, &[(50, 1), (at, 0)]);
            broken(vec![term(1, 0, 10, 100), observer])
        };
        assert_eq!(next(100 + BOUND), []);
        assert_eq!(next(101 + BOUND), [Promise::Leader]);
        let ends = |end| broken(vec![term(1, 0, 10, 100), observed(0, end, &[(50, 1)])]);
        assert_eq!(ends(100 + BOUND), []);
        assert_eq!(ends(101 + BOUND), [Promise::Leader]);
        let named = |at| broken(vec![term(1, 0, 10, 100), observed(0, at, &[(at, 1)])]);
        assert_eq!(named(100 + BOUND), []);
        assert_eq!(named(101 + BOUND), [Promise::Leader], "a message of long ago");
    }

    #[test]
    fn an_observer_learns_of_a_term_in_time() {
        let named = |at, end| {
            let messages = [(5, 0), (at, 1), (end + BOUND, 0)];
            broken(vec![term(1, 100, 110, end), observed(0, 900, &messages)])
        };
        assert_eq!(named(110 + BOUND, 500), []);
        assert_eq!(named(111 + BOUND, 500), [Promise::Leader]);
        assert_eq!(named(111 + BOUND, 110 + BOUND), [], "a short term");
    }

    /// Returns the broken promises of a history with one violation of each sort, and a fault.
    fn with(affected: Affected, effect: Effect) -> Vec<Promise> {
        let calls = vec![
            term(1, 0, 10, 100),
            look(150, 160, 1),
            term(2, 200, 210, 900),
            look(220, 230, 0),
            look(240, 250, 1),
            observed(0, 950, &[(50, 1)]),
        ];
        let mut history: History = history(calls);
        history.disturbances.push(disturbance(120, 220, affected, effect));
        violated(&history)
    }

    #[test]
    fn lost_data_excuses_a_former_leader_and_a_delay_only_late_news() {
        let nobody = with(Affected::Nobody, Effect::Delays);
        // Three answers, the end of the first term and the begin of the second.
        assert_eq!(nobody, [Promise::Leader; 5]);
        assert_eq!(with(Affected::Worker(1), Effect::Delays), [Promise::Leader; 3]);
        assert_eq!(with(Affected::Worker(0), Effect::Delays), [Promise::Leader; 3]);
        // The second term begins before the end of the fault.
        assert_eq!(with(Affected::Nobody, Effect::LosesHolds), []);
    }
}
