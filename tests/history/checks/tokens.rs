//! Fencing tokens strictly increase.
//!
//! A call that begins after another has its token gets a larger one, and no two holds have the
//! same token. A master and the one that replaces it may both grant a lock in the same microsecond,
//! which is the token of both holds. A client may not know yet that servers have lost a hold which
//! lingers: then it gives that hold, with a smaller token, to its next caller.

use super::{Attempt, Held, History, Promise, Violation};

pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    let fenced = fenced(attempts.iter().copied());
    let by_two_masters =
        |(attempt, hold): &Held<'_>| history.may_be_outdated(&attempt.request.lock, hold.granted);
    let twice = repeated(&fenced).filter(|pair| !pair.iter().any(by_two_masters));
    let twice = twice.map(|pair| {
        Promise::Tokens.violation(format!("two holds have it:\n  {}\n  {}", pair[0].0, pair[1].0))
    });

    // From the largest token down: no hold with a larger token may be granted before an attempt
    // begins. The earliest of these grants decides.
    let mut found = Vec::new();
    let mut first_larger: Option<Held<'_>> = None;
    for &(attempt, hold) in fenced.iter().rev() {
        let may_linger_on =
            history.linger(attempt) > 0 && history.may_have_lost(attempt, hold.granted);
        if let Some((larger, first)) = first_larger
            && first.granted < attempt.asked
            && !may_linger_on
        {
            let text = format!("the later hold has the smaller one:\n  {larger}\n  {attempt}");
            found.push(Promise::Tokens.violation(text));
        }
        if first_larger.is_none_or(|(_, first)| hold.granted < first.granted) {
            first_larger = Some((attempt, hold));
        }
    }
    twice.chain(found).collect()
}

/// Returns the holds with tokens in the order of these.
pub(super) fn fenced<'a>(attempts: impl Iterator<Item = &'a Attempt>) -> Vec<Held<'a>> {
    let holds = attempts.filter_map(|attempt| Some((attempt, attempt.hold()?)));
    let has_token = |(attempt, hold): &Held<'_>| hold.token > 0 && !attempt.request.is_leased();
    let mut fenced: Vec<_> = holds.filter(has_token).collect();
    fenced.sort_by_key(|(_, hold)| hold.token);
    fenced
}

/// Returns the pairs of holds with the same token.
pub(super) fn repeated<'a>(fenced: &'a [Held<'a>]) -> impl Iterator<Item = &'a [Held<'a>]> {
    fenced.windows(2).filter(|pair| pair[0].1.token == pair[1].1.token)
}

#[cfg(test)]
mod tests {
    use super::super::examples::{disturbance, held, history, hold_of, violated};
    use super::super::{Affected, Attempt, Effect, Promise, REPLACED};

    fn with_token(mut attempt: Attempt, token: u64) -> Attempt {
        hold_of(&mut attempt).token = token;
        attempt
    }

    #[test]
    fn a_later_call_gets_a_larger_token() {
        let tokens = |first, second, third| {
            violated(&history(vec![
                with_token(held(0, 0, 10, 20), first),
                with_token(held(1, 5, 30, 40), second),
                with_token(held(0, 35, 50, 60), third),
            ]))
        };
        assert_eq!(tokens(1, 2, 3), []);
        assert_eq!(tokens(2, 1, 3), [], "the calls overlap");
        assert_eq!(tokens(0, 0, 0), [], "locks without tokens");
        assert_eq!(tokens(1, 3, 2), [Promise::Tokens]);
        assert_eq!(tokens(3, 1, 2), [Promise::Tokens]);
        assert_eq!(tokens(1, 2, 2), [Promise::Tokens], "the same token twice");
    }

    #[test]
    fn a_master_and_its_successor_may_give_the_same_token() {
        let with = |name: &str, from| {
            let holds = [held(0, 0, 10, 20), held(1, 0, 30, 40)];
            let mut history = history(holds.map(|hold| with_token(hold, 1)).into());
            let mut fault = disturbance(from, from + 5, Affected::All, Effect::LosesHolds);
            fault.name = name.to_owned();
            history.disturbances.push(fault);
            (violated(&history), history.repeated_tokens("a"))
        };
        assert_eq!(with(REPLACED[0], 30), (vec![], 1));
        assert_eq!(with(REPLACED[0], 31), (vec![Promise::Tokens], 1));
        assert_eq!(with("a fault", 30), (vec![Promise::Tokens], 1));
    }
}
