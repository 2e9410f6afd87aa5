//! A model of one hold: its end, a hand-off, an extension and a wait are single steps, each before
//! or after every other.
//!
//! Faults that this model has caught:
//! * `extend` stores the copy of the deadline after it has released the mutex;
//! * `end` does not notify, or `wait` reads the phase before it takes the mutex;
//! * `release` does not check the phase.

use super::*;
use crate::util::model::{check, check_all};
use shuttle::thread;
use std::sync::Arc;

const NOW: Moment = at(1);
const DEADLINE: Moment = at(10);
const NOTICED: HoldStatus = HoldStatus::Over { newly_lost: true };

const fn at(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

fn bounds() -> HandoffBounds {
    HandoffBounds { max_handoffs: 1, max_time: Duration::MAX, min_remaining: Duration::ZERO }
}

fn hold() -> Arc<Hold> {
    Arc::new(Hold::new(Grant::owned(Moment::START, DEADLINE)))
}

/// Runs each step in a thread of its own. Returns the result of each.
fn race<const N: usize>(hold: &Arc<Hold>, steps: [fn(&Hold) -> bool; N]) -> [bool; N] {
    let threads = steps.map(|step| {
        let hold = Arc::clone(hold);
        thread::spawn(move || step(&hold))
    });
    threads.map(|thread| thread.join().expect("no thread of a model panics"))
}

fn releases(hold: &Hold) -> bool {
    hold.release(NOW) == HoldStatus::Held
}

fn loses(hold: &Hold) -> bool {
    let newly_lost = hold.lose();
    assert_eq!(hold.status(NOW), HoldStatus::Over { newly_lost: false }, "a loss is final");
    assert!(!hands_off(hold), "a lost hold is not handed off");
    newly_lost
}

fn expires(hold: &Hold) -> bool {
    hold.status(DEADLINE) == NOTICED
}

fn extends(hold: &Hold) -> bool {
    hold.extend(NOW, NOW, Duration::from_secs(20)) == HoldStatus::Held
}

fn hands_off(hold: &Hold) -> bool {
    hold.hand_off(NOW, &bounds(), &Holder::owned(), &HoldTerms::default()).is_some()
}

fn waits(hold: &Hold) -> bool {
    while hold.status(NOW) == HoldStatus::Held {
        hold.wait(Moment::END);
    }
    true
}

fn ends_once(steps: [fn(&Hold) -> bool; 2]) {
    let hold = hold();
    let ends = race(&hold, steps);
    assert_eq!(ends.into_iter().filter(|end| *end).count(), 1, "one end, reported once");
    assert_eq!(hold.remaining(NOW), Duration::ZERO);
}

#[test]
fn of_two_concurrent_ends_one_takes_effect() {
    check_all(|| ends_once([releases, loses]));
    check_all(|| ends_once([releases, expires]));
    check_all(|| ends_once([loses, expires]));
    check_all(|| ends_once([releases, releases]));
}

#[test]
fn an_extension_comes_before_the_deadline_or_not_at_all() {
    check_all(|| {
        let [extended, expired] = race(&hold(), [extends, expires]);
        assert!(extended != expired);
    });
}

#[test]
fn a_hold_that_is_over_is_not_extended() {
    check_all(|| {
        let hold = hold();
        race(&hold, [loses, extends]);
        assert_eq!(hold.remaining(NOW), Duration::ZERO);
    });
}

#[test]
fn a_single_handoff_has_one_receiver() {
    check_all(|| {
        let [one, other] = race(&hold(), [hands_off, hands_off]);
        assert!(one != other);
    });
}

#[test]
fn an_overdue_hold_is_reported_once_unless_its_release_comes_first() {
    fn reports(hold: &Hold) -> bool {
        hold.take_overdue(NOW).is_some()
    }
    fn limited() -> Arc<Hold> {
        let terms = HoldTerms::default().with_max_hold(Duration::from_millis(1));
        Arc::new(Hold::new(Grant { terms, ..Grant::owned(Moment::START, DEADLINE) }))
    }
    check_all(|| {
        let [one, other] = race(&limited(), [reports, reports]);
        assert!(one != other);
    });
    check_all(|| {
        let hold = limited();
        let [_, released, handed_off] = race(&hold, [reports, releases, hands_off]);
        assert!(released && !handed_off);
        assert!(!reports(&hold), "it was reported before, or is released");
    });
}

#[test]
fn a_wait_for_the_end_of_a_hold_returns() {
    check_all(|| assert_eq!(race(&hold(), [waits, Hold::lose]), [true, true]));
    check_all(|| assert_eq!(race(&hold(), [waits, releases]), [true, true]));
}

#[test]
fn all_steps_at_once() {
    check(|| {
        let hold = hold();
        let steps = [waits, releases, loses, expires, extends, hands_off];
        let [_, released, lost, expired, _, _] = race(&hold, steps);
        assert_eq!([released, lost, expired].into_iter().filter(|end| *end).count(), 1);
        assert_eq!(hold.remaining(NOW), Duration::ZERO);
    });
}
