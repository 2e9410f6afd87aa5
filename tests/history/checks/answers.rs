//! Who asks is answered in time and with a reason: no error, no refusal before its patience is
//! over and none long after it, and no hold that is renewed is lost, unless something was in
//! the way.

use super::{Attempt, History, Hold, Outcome, Promise, Violation};
use crate::millis;

pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    attempts.iter().filter_map(|attempt| groundless(history, attempt)).collect()
}

fn groundless(history: &History, attempt: &Attempt) -> Option<Violation> {
    let Attempt { wish, asked, worker, .. } = attempt;
    let calm = |to| history.disturbances_of(*worker, *asked, to).next().is_none();
    let patient = asked + millis(wish.patience);
    let late = patient + history.bounds.response + history.bounds.slack;
    // A call without a deadline waits for a response time-out.
    let due = match wish.patience {
        0 => history.bounds.response,
        patience => millis(patience).min(history.bounds.response),
    };
    let (promise, broken) = match &attempt.outcome {
        // A busy machine is reason enough for a time-out, but for no other error.
        Outcome::Failed(at) => (Promise::Answer, *at < asked + due && calm(*at)),
        Outcome::Refused(at) => {
            (Promise::Answer, (wish.patience > 0 && *at < patient) || (late < *at && calm(*at)))
        }
        Outcome::Held(Hold { lost: Some(at), .. }) => {
            (Promise::Kept, wish.lease.is_none() && calm(*at))
        }
        Outcome::Held(_) | Outcome::Unknown => return None,
    };
    broken.then(|| promise.broken(format!("without a reason: {attempt}")))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{asking, broken, disturbance, held, history};
    use super::super::{Attempt, Effect, Outcome, Promise, Whom};
    use crate::millis;

    /// What is broken by it, in calm and in a disturbance.
    fn both(attempt: Attempt) -> [Vec<Promise>; 2] {
        let calm = history(vec![attempt]);
        let mut disturbed = calm.clone();
        disturbed.disturbances.push(disturbance(0, 9000, Whom::All, Effect::Delays));
        [broken(&calm), broken(&disturbed)]
    }

    #[test]
    fn an_error_needs_a_reason() {
        let failed = |patience, at| {
            let mut failed = asking(0, 0, Outcome::Failed(millis(at)));
            failed.wish.patience = patience;
            both(failed)
        };
        for patience in [0, 5000] {
            assert_eq!(failed(patience, 49), [vec![Promise::Answer], vec![]]);
            assert_eq!(failed(patience, 50), [vec![], vec![]], "after the response time-out");
        }
        assert_eq!(failed(40, 39), [vec![Promise::Answer], vec![]]);
        assert_eq!(failed(40, 40), [vec![], vec![]], "at its deadline");
    }

    #[test]
    fn a_refusal_comes_when_patience_is_over() {
        let refused = |at| {
            let mut refused = asking(0, 0, Outcome::Refused(millis(at)));
            refused.wish.patience = 40;
            both(refused)
        };
        assert_eq!(refused(39), [[Promise::Answer], [Promise::Answer]]);
        assert_eq!(refused(40), [vec![], vec![]]);
        // The response time-out and the slack.
        assert_eq!(refused(140), [vec![], vec![]]);
        assert_eq!(refused(141), [vec![Promise::Answer], vec![]]);
    }

    #[test]
    fn a_hold_that_is_renewed_is_not_lost() {
        let lost = |lease| {
            let mut lost = held(0, 0, 10, 20);
            lost.wish.lease = lease;
            if let Outcome::Held(hold) = &mut lost.outcome {
                hold.lost = Some(millis(20));
            }
            both(lost)
        };
        assert_eq!(lost(None), [vec![Promise::Kept], vec![]]);
        assert_eq!(lost(Some(15)), [vec![], vec![]], "a fixed lease ends");
    }
}
