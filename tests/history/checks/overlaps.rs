//! No two valid holds overlap, except after a fault with which that is documented.
//!
//! Even then the first holder learns of its loss in time, or the second does, if a master that was
//! replaced may have granted the second hold. Permits overlap, but not if they have one slot: the
//! token of such a hold has a bit for each slot. `capacity.rs` counts overlapping permits.

use super::{Attempt, Effect, Held, History, Hold, Promise, Violation, by_grant};
use crate::record::millis;
use crate::system::Nanos;

pub(super) fn check(history: &History, attempts: &[&Attempt]) -> Vec<Violation> {
    let mut holds = by_grant(attempts);
    holds.retain(|(_, hold)| hold.was_valid());
    let mut found: Vec<_> =
        holds.iter().filter_map(|held| valid_after_lease(history, *held)).collect();
    found.extend(holds.iter().filter_map(|held| unreported_loss(history, *held)));
    let of_semaphore = attempts.iter().any(|attempt| attempt.request.capacity() > 1);
    let conflict = |a: Held<'_>, b: Held<'_>| {
        let slots = |hold: &Hold| hold.token;
        if of_semaphore {
            slots(a.1) & slots(b.1) != 0
        } else {
            !(a.0.request.shared && b.0.request.shared)
        }
    };
    let mut open: Vec<Held<'_>> = Vec::new();
    for later in holds {
        open.retain(|(_, hold)| later.1.granted < hold.valid_to);
        for earlier in &open {
            if conflict(*earlier, later) {
                found.extend(overlap(history, *earlier, later));
            }
        }
        open.push(later);
    }
    found
}

/// Checks two holds that were valid at the grant of the later one.
fn overlap(history: &History, earlier: Held<'_>, later: Held<'_>) -> Option<Violation> {
    let begun = later.1.granted;
    let text = format!("{} and\n  {}", earlier.0, later.0);
    // The news of a grant may be late. Tokens tell which of the two the server granted first.
    let has_tokens = !earlier.0.request.is_leased();
    let is_late_news = has_tokens && (1..earlier.1.token).contains(&later.1.token);
    // Without tokens nobody can tell: then the one that a fault explains came first.
    let is_explained = |held: Held<'_>| history.may_have_lost(held.0, begun);
    let may_be_late_news = later.1.token == 0
        && later.0.asked < earlier.1.granted
        && is_explained(later)
        && !is_explained(earlier);
    let is_late_news = is_late_news || may_be_late_news;
    let (first, second) = if is_late_news { (later, earlier) } else { (earlier, later) };
    if !history.may_have_lost(first.0, begun) {
        return Some(Promise::Exclusion.violation(text));
    }
    let is_late = |held: Held<'_>| held.1.valid_to > report_due(history, held.0, begun);
    // A replaced master grants until it learns of that: then the second hold is the lost one.
    let late = is_late(first)
        && (is_late(second) || !history.may_be_outdated(&second.0.request.lock, begun));
    late.then(|| Promise::LossReport.violation(format!("too late, {text}")))
}

/// Returns the latest moment at which the holder learns of a loss at this moment.
pub(super) fn report_due(history: &History, attempt: &Attempt, lost: Nanos) -> Nanos {
    let bounds = &history.bounds;
    let of_client = history.workers[attempt.worker].lease;
    let period = attempt.request.renewed.map_or(of_client, millis) / 3;
    let takes = period + bounds.response + bounds.slack;
    // The holder needs this long without a disturbance, and one disturbance may follow another.
    let mut from = lost;
    loop {
        let disturbed = history.disturbances_of(attempt, lost, from + takes);
        let end = disturbed.map(|d| d.until).max().unwrap_or(from).max(from);
        if end == from {
            break;
        }
        from = end;
    }
    // A fixed lease is not renewed, so no reply reports its loss before its deadline.
    let deadline = attempt.hold().map_or(from, |hold| hold.leased + history.lease(attempt));
    if attempt.request.lease.is_some() { deadline } else { from + takes }
}

/// Checks that a hold with a fixed lease is not valid after its end.
fn valid_after_lease(history: &History, (attempt, hold): Held<'_>) -> Option<Violation> {
    let fixed = attempt.request.lease.is_some();
    let over = fixed && hold.leased + history.lease(attempt) < hold.valid_to;
    over.then(|| Promise::LossReport.violation(format!("valid after its lease: {attempt}")))
}

/// Checks that a holder learns of the loss of all data.
fn unreported_loss(history: &History, (attempt, hold): Held<'_>) -> Option<Violation> {
    if attempt.request.is_counted() {
        return None;
    }
    let losses = history.disturbances.iter().filter(|d| d.effect == Effect::LosesAllHolds);
    let mut losses = losses.filter(|d| hold.granted < d.from && d.from < hold.valid_to);
    let late = losses.any(|d| report_due(history, attempt, d.until) < hold.valid_to);
    late.then(|| Promise::LossReport.violation(format!("valid after the loss of all: {attempt}")))
}

#[cfg(test)]
mod tests {
    use super::super::examples::{disturbance, held, history, hold_of, violated};
    use super::super::{Affected, Disturbance, Effect, Outcome, Promise};

    #[test]
    fn two_valid_holds_at_once_are_found() {
        assert_eq!(violated(&history(vec![held(0, 0, 10, 20), held(1, 0, 20, 30)])), []);
        let overlap = history(vec![held(0, 0, 10, 21), held(1, 0, 20, 30)]);
        assert_eq!(violated(&overlap), [Promise::Exclusion]);
        let inside = history(vec![held(0, 0, 10, 90), held(1, 0, 20, 30), held(1, 30, 40, 50)]);
        assert_eq!(violated(&inside), [Promise::Exclusion, Promise::Exclusion]);
        let stopped = history(vec![held(0, 0, 10, 90), held(1, 0, 20, 20)]);
        assert_eq!(violated(&stopped), [], "the holder found its hold over at once");
    }

    #[test]
    fn without_tokens_the_hold_that_a_fault_explains_came_first() {
        let with = |asked, tokens: [u64; 2]| {
            // A fault at 5 may have lost a hold that was asked for before.
            let mut holds = vec![held(0, 8, 10, 2000), held(1, asked, 20, 21)];
            for (held, token) in holds.iter_mut().zip(tokens) {
                hold_of(held).token = token;
            }
            let mut history = history(holds);
            let loss = disturbance(4, 5, Affected::All, Effect::LosesHolds);
            history.disturbances.push(loss);
            violated(&history)
        };
        assert_eq!(with(3, [0, 0]), []);
        assert_eq!(with(6, [0, 0]), [Promise::Exclusion]);
        assert_eq!(with(3, [1, 2]), [Promise::Exclusion], "the tokens tell the order");
    }

    #[test]
    fn permits_with_one_slot_at_once_are_found() {
        let with = |slots: [u64; 2]| {
            let mut holds = [held(0, 0, 10, 30), held(1, 0, 20, 40)];
            for (held, slots) in holds.iter_mut().zip(slots) {
                held.request.lock = "semaphore-0".to_owned();
                hold_of(held).token = slots;
            }
            violated(&history(holds.into()))
        };
        assert_eq!(with([0b001, 0b110]), []);
        assert_eq!(with([0b011, 0b110]), [Promise::Exclusion]);
        assert_eq!(with([0, 0]), [], "without slots");
    }

    #[test]
    fn a_hold_of_a_replaced_master_is_the_lost_one() {
        let with = |fault: &str, granted, later_end| {
            let mut history = history(vec![held(0, 0, 10, 2000), held(1, 0, granted, later_end)]);
            let loss = disturbance(100, 150, Affected::All, Effect::LosesHolds);
            history.disturbances.push(Disturbance { name: fault.to_owned(), ..loss });
            violated(&history)
        };
        assert_eq!(with("KillMaster", 140, 145), []);
        assert_eq!(with("KillMaster", 140, 1000), [Promise::LossReport], "both go on");
        assert_eq!(with("KillMaster", 900, 910), [Promise::LossReport], "nobody is outdated");
        assert_eq!(with("MoveClock", 140, 145), [Promise::LossReport], "nobody was replaced");
    }

    #[test]
    fn shared_holds_overlap_only_with_shared_holds() {
        let reader = |attempt: super::Attempt| {
            let mut attempt = attempt;
            attempt.request.shared = true;
            attempt
        };
        let (one, two) = (reader(held(0, 0, 10, 30)), reader(held(1, 0, 20, 40)));
        assert_eq!(violated(&history(vec![one.clone(), two])), []);
        assert_eq!(violated(&history(vec![one, held(1, 0, 20, 40)])), [Promise::Exclusion]);
    }

    #[test]
    fn lost_data_excuses_an_overlap_until_the_first_holder_must_know() {
        let late = |end, affected, effect| {
            let mut history = history(vec![held(0, 0, 10, end), held(1, 0, 200, 210)]);
            history.disturbances.push(disturbance(100, 150, affected, effect));
            violated(&history)
        };
        // A third of a lease of 1000, the response time-out and the slack.
        assert_eq!(late(200 + 333 + 100, Affected::All, Effect::LosesHolds), []);
        let too_late = late(200 + 333 + 102, Affected::All, Effect::LosesHolds);
        assert_eq!(too_late, [Promise::LossReport]);
        assert_eq!(late(201, Affected::All, Effect::Delays), [Promise::Exclusion]);
        let mut before = history(vec![held(0, 300, 310, 400), held(1, 300, 350, 360)]);
        before.disturbances.push(disturbance(100, 150, Affected::All, Effect::LosesHolds));
        assert_eq!(violated(&before), [Promise::Exclusion], "both calls begin after the fault");
    }

    /// The second call begins after the fault, and hears of its grant before the first one does.
    #[test]
    fn late_news_of_a_grant_before_the_loss_excuse_an_overlap() {
        let with = |tokens: [u64; 2], end| {
            let mut holds = [held(0, 50, 240, end), held(1, 160, 200, 250)];
            for (attempt, token) in holds.iter_mut().zip(tokens) {
                if let Outcome::Held(hold) = &mut attempt.outcome {
                    hold.token = token;
                }
            }
            let mut history = history(holds.to_vec());
            let loss = disturbance(100, 150, Affected::All, Effect::LosesHolds);
            history.disturbances.push(loss);
            violated(&history)
        };
        assert_eq!(with([1, 2], 260), []);
        assert_eq!(with([2, 1], 260), [Promise::Exclusion], "the server granted it later");
        assert_eq!(with([1, 2], 240 + 333 + 102), [Promise::LossReport], "too late");
    }

    #[test]
    fn lost_data_of_one_node_excuses_no_overlap_on_another() {
        let with = |slots| {
            let mut history = history(vec![held(0, 0, 10, 210), held(1, 0, 200, 210)]);
            let fault = disturbance(100, 150, Affected::All, Effect::LosesHolds);
            history.disturbances.push(Disturbance { slots, ..fault });
            violated(&history)
        };
        // The lock's name is "a".
        assert_eq!(with(vec![0..=100, 15_495..=15_495]), []);
        assert_eq!(with(vec![0..=15_494, 15_496..=16_383]), [Promise::Exclusion]);
    }

    #[test]
    fn a_cut_off_holder_must_know_its_loss_once_it_is_connected() {
        let mut history = history(vec![held(0, 0, 10, 900), held(1, 0, 200, 210)]);
        history.disturbances.push(disturbance(100, 150, Affected::All, Effect::LosesHolds));
        history.disturbances.push(disturbance(150, 600, Affected::Worker(0), Effect::Delays));
        assert_eq!(violated(&history), []);
        history.disturbances.pop();
        assert_eq!(violated(&history), [Promise::LossReport]);
    }

    #[test]
    fn a_hold_is_not_valid_after_its_fixed_lease() {
        let mut fixed = held(0, 0, 10, 80);
        fixed.request.lease = Some(70);
        assert_eq!(violated(&history(vec![fixed.clone()])), []);
        fixed.request.lease = Some(69);
        assert_eq!(violated(&history(vec![fixed])), [Promise::LossReport]);
    }

    #[test]
    fn a_holder_learns_of_the_loss_of_all_data() {
        let valid_to = |end| {
            let mut history = history(vec![held(0, 0, 10, end)]);
            history.disturbances.push(disturbance(100, 200, Affected::All, Effect::LosesAllHolds));
            violated(&history)
        };
        assert_eq!(valid_to(200 + 333 + 100), []);
        assert_eq!(valid_to(200 + 333 + 102), [Promise::LossReport]);
    }
}
