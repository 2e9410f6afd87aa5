//! A model of one hold: its end, a hand-off, an extension and a wait are single steps, each before
//! or after every other.
//!
//! Faults that this model has caught:
//! * `extend` stores the copy of the deadline after it has released the mutex;
//! * `end` does not notify, or `wait` reads the phase before it takes the mutex;
//! * `release` does not check the phase;
//! * `on_lost` checks whether the loss was reported before it takes the mutex;
//! * a hand-off keeps the closures of the former holder.

use super::*;
use crate::events::{EventSink, EventsJob};
use crate::util::model::{check, check_all};
use crossbeam_channel::Receiver;
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
    hold.hand_off(NOW, &bounds(), &Holder::owned(), &HoldSettings::default()).is_some()
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
        let settings = HoldSettings::default().with_max_hold(Duration::from_millis(1));
        Arc::new(Hold::new(Grant { settings, ..Grant::owned(Moment::START, DEADLINE) }))
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

/// The jobs of the closures of `on_lost`: those to call, and those to drop.
#[derive(Debug, Default, PartialEq, Eq)]
struct LossCalls {
    called: usize,
    dropped: usize,
}

const CALLED: LossCalls = LossCalls { called: 1, dropped: 0 };
const DROPPED: LossCalls = LossCalls { called: 0, dropped: 1 };

/// Returns the jobs that were queued; the hold and the call are dropped.
fn jobs_of(jobs: &Receiver<EventsJob>) -> LossCalls {
    jobs.try_iter().fold(LossCalls::default(), |mut calls, job| {
        match job {
            EventsJob::LossCall(..) => calls.called += 1,
            _ => calls.dropped += 1,
        }
        calls
    })
}

/// Registers a closure while another thread runs `step`. Returns the jobs.
fn registers_beside(step: fn(&Hold) -> bool) -> LossCalls {
    let (sink, jobs) = EventSink::recorded();
    let (hold, call) = (hold(), sink.loss_call(&"a".into(), Box::new(|| ())));
    let registers = {
        let hold = Arc::clone(&hold);
        thread::spawn(move || call.into_iter().for_each(|call| hold.on_lost(call)))
    };
    assert_eq!(race(&hold, [step]), [true]);
    registers.join().expect("no thread of a model panics");
    drop(hold);
    jobs_of(&jobs)
}

/// Runs two steps beside each other on a hold with a closure. Returns their results and the jobs.
fn with_closure(steps: [fn(&Hold) -> bool; 2]) -> ([bool; 2], LossCalls) {
    let ((sink, jobs), hold) = (EventSink::recorded(), hold());
    let call = sink.loss_call(&"a".into(), Box::new(|| ()));
    call.into_iter().for_each(|call| hold.on_lost(call));
    let results = race(&hold, steps);
    drop(hold);
    (results, jobs_of(&jobs))
}

/// Loses the hold and reports the loss, as `Local::report_lost` does.
fn loses_and_reports(hold: &Hold) -> bool {
    let newly_lost = hold.lose();
    if newly_lost {
        hold.note_loss_reported();
    }
    newly_lost
}

#[test]
fn a_loss_beside_the_registration_of_a_closure_calls_it_once() {
    check_all(|| assert_eq!(registers_beside(loses_and_reports), CALLED));
}

#[test]
fn a_release_beside_the_registration_of_a_closure_drops_it() {
    check_all(|| assert_eq!(registers_beside(releases), DROPPED));
}

#[test]
fn of_a_loss_and_a_release_only_the_loss_calls_a_closure() {
    check_all(|| {
        let ([lost, released], calls) = with_closure([loses_and_reports, releases]);
        assert!(lost != released);
        assert_eq!(calls, if lost { CALLED } else { DROPPED });
    });
}

#[test]
fn a_loss_after_a_hand_off_does_not_call_the_closure_of_the_former_holder() {
    check_all(|| {
        let ([lost, handed_off], calls) = with_closure([loses_and_reports, hands_off]);
        assert!(lost);
        assert_eq!(calls, if handed_off { DROPPED } else { CALLED });
    });
}
