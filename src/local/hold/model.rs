//! A model of one hold: whoever ends it, passes it on, extends it or waits for its
//! end does so in one step, before or after each of the others.
//!
//! Faults that it was seen to catch:
//! * `extend` stores the copy of the deadline after it has let go of the mutex;
//! * `end` does not notify, or `wait` looks at the phase before it takes the mutex;
//! * `release` does not look at the phase.

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

fn lease() -> Arc<Hold> {
    Arc::new(Hold::new(Grant::owned(Moment::START, DEADLINE)))
}

/// Has each step taken by a thread of its own; what each came to.
fn race<const N: usize>(lease: &Arc<Hold>, steps: [fn(&Hold) -> bool; N]) -> [bool; N] {
    let threads = steps.map(|step| {
        let lease = Arc::clone(lease);
        thread::spawn(move || step(&lease))
    });
    threads.map(|thread| thread.join().expect("no thread of a model panics"))
}

fn releases(lease: &Hold) -> bool {
    lease.release(NOW) == HoldStatus::Held
}

fn loses(lease: &Hold) -> bool {
    let messages = lease.lose();
    assert_eq!(lease.status(NOW), HoldStatus::Over { newly_lost: false }, "lost is final");
    assert!(!lease.hand_off(NOW, &bounds(), &Holder::owned()), "a lost hold is not passed on");
    messages
}

fn expires(lease: &Hold) -> bool {
    lease.status(DEADLINE) == NOTICED
}

fn extends(lease: &Hold) -> bool {
    lease.extend(NOW, NOW, Duration::from_secs(20)) == HoldStatus::Held
}

fn passes(lease: &Hold) -> bool {
    lease.hand_off(NOW, &bounds(), &Holder::owned())
}

fn waits(lease: &Hold) -> bool {
    while lease.status(NOW) == HoldStatus::Held {
        lease.wait(Moment::END);
    }
    true
}

fn ends_once(steps: [fn(&Hold) -> bool; 2]) {
    let lease = lease();
    let ends = race(&lease, steps);
    assert_eq!(ends.into_iter().filter(|end| *end).count(), 1, "one end, told once");
    assert_eq!(lease.remaining(NOW), Duration::ZERO);
}

#[test]
fn two_that_would_end_a_hold_do_not_both() {
    check_all(|| ends_once([releases, loses]));
    check_all(|| ends_once([releases, expires]));
    check_all(|| ends_once([loses, expires]));
    check_all(|| ends_once([releases, releases]));
}

#[test]
fn an_extension_comes_before_the_deadline_or_not_at_all() {
    check_all(|| {
        let [extended, expired] = race(&lease(), [extends, expires]);
        assert!(extended != expired);
    });
}

#[test]
fn what_is_over_is_not_extended() {
    check_all(|| {
        let lease = lease();
        race(&lease, [loses, extends]);
        assert_eq!(lease.remaining(NOW), Duration::ZERO);
    });
}

#[test]
fn a_hold_that_is_passed_once_is_passed_to_one() {
    check_all(|| {
        let [one, other] = race(&lease(), [passes, passes]);
        assert!(one != other);
    });
}

#[test]
fn who_waits_for_the_end_of_a_hold_hears_of_it() {
    check_all(|| assert_eq!(race(&lease(), [waits, Hold::lose]), [true, true]));
    check_all(|| assert_eq!(race(&lease(), [waits, releases]), [true, true]));
}

#[test]
fn all_at_once() {
    check(|| {
        let lease = lease();
        let steps = [waits, releases, loses, expires, extends, passes];
        let [_, released, lost, expired, _, _] = race(&lease, steps);
        assert_eq!([released, lost, expired].into_iter().filter(|end| *end).count(), 1);
        assert_eq!(lease.remaining(NOW), Duration::ZERO);
    });
}
