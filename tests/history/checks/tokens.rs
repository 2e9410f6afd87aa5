//! Fencing tokens strictly increase: who asks after another has its token gets a larger one,
//! and no two get the same.

use super::{Attempt, Promise, Violation};

pub(super) fn check(attempts: &[&Attempt]) -> Vec<Violation> {
    let holds = attempts.iter().filter_map(|attempt| Some((*attempt, attempt.hold()?)));
    let mut fenced: Vec<_> = holds.filter(|(_, hold)| hold.token > 0).collect();
    fenced.sort_by_key(|(_, hold)| hold.token);
    let twice = fenced.windows(2).filter(|pair| pair[0].1.token == pair[1].1.token);
    let twice = twice.map(|pair| {
        Promise::Tokens.broken(format!("the same for two:\n  {}\n  {}", pair[0].0, pair[1].0))
    });

    // By token: nobody who comes later may have had it before this one asked... so the
    // earliest that one with a larger token had it is looked at from the end.
    let mut found = Vec::new();
    let mut first_larger: Option<(&Attempt, u64)> = None;
    for (attempt, hold) in fenced.iter().rev() {
        if let Some((larger, got)) = first_larger.filter(|(_, got)| *got < attempt.asked) {
            debug_assert_eq!(larger.hold().map(|hold| hold.got), Some(got));
            let text = format!("a smaller one for the later:\n  {larger}\n  {attempt}");
            found.push(Promise::Tokens.broken(text));
        }
        if first_larger.is_none_or(|(_, got)| hold.got < got) {
            first_larger = Some((attempt, hold.got));
        }
    }
    twice.chain(found).collect()
}

#[cfg(test)]
mod tests {
    use super::super::examples::{broken, held, history};
    use super::super::{Attempt, Outcome, Promise};

    fn with_token(mut attempt: Attempt, token: u64) -> Attempt {
        if let Outcome::Held(hold) = &mut attempt.outcome {
            hold.token = token;
        }
        attempt
    }

    #[test]
    fn tokens_increase_from_each_hold_to_those_that_were_asked_for_after_it() {
        let tokens = |first, second, third| {
            broken(&history(vec![
                with_token(held(0, 0, 10, 20), first),
                with_token(held(1, 5, 30, 40), second),
                with_token(held(0, 35, 50, 60), third),
            ]))
        };
        assert_eq!(tokens(1, 2, 3), []);
        assert_eq!(tokens(2, 1, 3), [], "they were asked for at the same time");
        assert_eq!(tokens(0, 0, 0), [], "locks without tokens");
        assert_eq!(tokens(1, 3, 2), [Promise::Tokens]);
        assert_eq!(tokens(3, 1, 2), [Promise::Tokens]);
        assert_eq!(tokens(1, 2, 2), [Promise::Tokens], "twice the same");
    }
}
