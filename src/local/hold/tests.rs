//! Tests of the steps of one hold.

use super::*;
use crate::events::EventSink;
use crate::stats::StatsRecorder;
use crossbeam_channel::Sender;
use std::cell::RefCell;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Moment {
    Moment::START + SECOND * u32::try_from(seconds).expect("small")
}

fn hold(renewed: bool, until: u64) -> Hold {
    let holder = Holder::this_thread();
    Hold::new(Grant {
        lease: SECOND,
        server_lease: SECOND,
        renewed,
        holder,
        ..Grant::owned(at(0), at(until))
    })
}

const NOTICED: HoldStatus = HoldStatus::Over { newly_lost: true };
const KNOWN: HoldStatus = HoldStatus::Over { newly_lost: false };

fn bounds() -> HandoffBounds {
    HandoffBounds { max_handoffs: 2, max_time: 5 * SECOND, min_remaining: 3 * SECOND }
}

#[test]
fn a_hold_ends_at_its_deadline_and_one_call_reports_the_loss() {
    let hold = hold(true, 10);
    assert_eq!(hold.status(at(9)), HoldStatus::Held);
    assert_eq!(hold.remaining(at(9)), SECOND);
    assert_eq!(hold.status(at(10)), NOTICED);
    assert_eq!(hold.status(at(9)), KNOWN, "a loss is final, even if the clock went back");
    assert_eq!(hold.remaining(at(9)), Duration::ZERO);
}

#[test]
fn the_deadline_moves_forward_only_and_never_after_it_has_passed() {
    let hold = hold(true, 10);
    assert_eq!(hold.extend(at(5), at(6), 10 * SECOND), HoldStatus::Held);
    assert_eq!(hold.extend(at(6), at(6), 6 * SECOND), HoldStatus::Held);
    assert_eq!(hold.remaining(at(6)), at(6).until(deadline(at(5), 10 * SECOND)));
    assert_eq!(hold.extend(at(9), at(15), 15 * SECOND), NOTICED, "the reply came too late");
    assert_eq!(hold.extend(at(7), at(7), 15 * SECOND), KNOWN);
}

#[test]
fn the_server_may_keep_a_hold_that_is_over_here_until_it_is_known_to_be_gone() {
    let overrun = hold(true, 10);
    assert_eq!(overrun.server_expiry_bound(), at(1), "granted at 0 for a second");
    overrun.note_possible_extension(at(8), 10 * SECOND);
    assert_eq!(overrun.status(at(11)), NOTICED, "no reply confirmed an extension");
    assert_eq!(overrun.server_expiry_bound(), at(18));
    assert!(
        overrun.take_may_still_be_held(at(11)) && !overrun.take_may_still_be_held(at(11)),
        "once"
    );
    assert_eq!(overrun.extend(at(10), at(12), 10 * SECOND), KNOWN);
    assert_eq!(overrun.server_expiry_bound(), at(22));
    assert!(!overrun.take_may_still_be_held(at(22)), "the lease is over on the server too");
    assert!(overrun.take_may_still_be_held(at(21)));
    overrun.lose();
    overrun.note_possible_extension(at(12), 10 * SECOND);
    assert_eq!(overrun.server_expiry_bound(), at(0));
}

#[test]
fn a_release_is_sent_once_and_not_after_a_loss() {
    let released = hold(true, 10);
    assert_eq!(released.release(at(9)), HoldStatus::Held);
    assert_eq!(released.release(at(9)), KNOWN);
    assert!(!released.lose(), "a released hold cannot be lost");
    assert_eq!(released.extend(at(8), at(9), 30 * SECOND), KNOWN);
    assert!(!released.take_may_still_be_held(at(9)), "its release is on its way");
    let overrun = hold(false, 10);
    assert_eq!(overrun.release(at(11)), NOTICED);
    let taken = hold(true, 10);
    assert!(taken.lose() && !taken.lose());
    assert_eq!(taken.release(at(1)), KNOWN);
}

/// Hands the hold off to an owned guard with the default settings.
fn hands_off(hold: &Hold, now: Moment, bounds: &HandoffBounds) -> bool {
    hold.hand_off(now, bounds, &Holder::owned(), &HoldSettings::default()).is_some()
}

#[test]
fn a_hold_is_handed_off_within_its_bounds() {
    let passed = hold(true, 10);
    assert!(hands_off(&passed, at(1), &bounds()) && hands_off(&passed, at(2), &bounds()));
    assert!(!hands_off(&passed, at(3), &bounds()), "the bound is two");
    assert!(!hands_off(&hold(true, 10), at(5), &bounds()), "the time is over");
    assert!(!hands_off(&hold(true, 4), at(2), &bounds()), "too little remains");
    assert!(!hands_off(&hold(false, 10), at(1), &bounds()), "a fixed lease");
    let lost = hold(true, 10);
    lost.lose();
    assert!(!hands_off(&lost, at(1), &bounds()));
    assert!(!hands_off(&hold(true, 10), at(1), &HandoffBounds::default()), "switched off");
}

#[test]
fn a_hold_that_is_handed_off_has_the_terms_of_its_new_holder() {
    let stats = StatsRecorder::default();
    let labels = ["a", "b"].map(|text| stats.label(text));
    let [a, b] = labels.clone().map(|label| HoldSettings::default().with_label(label));
    let hold = Hold::new(Grant { settings: a, ..Grant::owned(at(0), at(10)) });
    let former = hold.hand_off(at(1), &bounds(), &Holder::owned(), &b).expect("a hand-off");
    assert_eq!([former.label(), hold.settings().label()], labels.each_ref().map(Some));
}

/// Returns the settings of a handle whose holds are overdue after that many seconds.
fn limited(seconds: u32) -> HoldSettings {
    HoldSettings::default().with_max_hold(SECOND * seconds)
}

#[test]
fn an_overdue_hold_is_reported_once_and_not_renewed_and_lost_at_its_deadline() {
    let hold = Hold::new(Grant { settings: limited(5), ..Grant::owned(at(0), at(10)) });
    assert!(hold.is_renewed(at(4)) && hold.take_overdue(at(4)).is_none());
    assert_eq!((hold.timer_fired(at(4)), hold.next_limit()), (TimerTask::Extend, Some(at(5))));
    assert_eq!(hold.take_overdue(at(5)), Some(5 * SECOND));
    assert!(hold.take_overdue(at(6)).is_none() && hold.next_limit().is_none());
    assert!(!hold.is_renewed(at(5)) && hold.has_renewed_lease());
    assert_eq!(hold.timer_fired(at(5)), TimerTask::Verify);
    assert!(!hands_off(&hold, at(5), &HandoffBounds { max_time: 60 * SECOND, ..bounds() }));
    assert_eq!(hold.extend(at(6), at(6), 10 * SECOND), HoldStatus::Held, "an explicit extension");
    assert_eq!((hold.status(at(16)), hold.lost_reason()), (NOTICED, LostReason::HeldTooLong));
}

#[test]
fn a_loss_before_the_limit_is_no_loss_by_the_limit() {
    let late = Hold::new(Grant { settings: limited(12), ..Grant::owned(at(0), at(10)) });
    assert_eq!((late.status(at(20)), late.lost_reason()), (NOTICED, LostReason::Expired));
    assert!(late.take_overdue(at(20)).is_none());
    let gone = Hold::new(Grant { settings: limited(5), ..Grant::owned(at(0), at(10)) });
    assert!(gone.lose() && gone.take_overdue(at(20)).is_none());
    assert_eq!(gone.lost_reason(), LostReason::Gone);
    let unnoticed = Hold::new(Grant { settings: limited(5), ..Grant::owned(at(0), at(10)) });
    assert_eq!(unnoticed.status(at(20)), NOTICED);
    assert_eq!(unnoticed.take_overdue(at(20)), Some(20 * SECOND), "the report comes late");
}

#[test]
fn the_limit_counts_anew_for_the_receiver_of_a_hand_off() {
    let hold = Hold::new(Grant { settings: limited(3), ..Grant::owned(at(0), at(10)) });
    let former = hold.hand_off(at(2), &bounds(), &Holder::owned(), &limited(4));
    assert!(former.is_some());
    assert_eq!(hold.next_limit(), Some(at(6)));
    assert!(hold.is_renewed(at(5)));
    assert_eq!(hold.take_overdue(at(7)), Some(5 * SECOND));
}

#[test]
fn a_release_before_the_minimum_of_the_present_holder_keeps_the_lock_taken() {
    let minimum = |seconds: u32| HoldSettings::default().with_min_hold(SECOND * seconds);
    let name = Name::new("", "a".into()).expect("a good name");
    let is_early = |hold: &Hold, now| {
        let script = hold.release_call(&name, now).script.map(|script| script.name);
        script == Some("early_release")
    };
    let hold = Hold::new(Grant { settings: minimum(2), ..Grant::owned(at(0), at(10)) });
    assert_eq!([at(0), at(1), at(2)].map(|now| hold.minimum_left(now).as_secs()), [2, 1, 0]);
    assert!(is_early(&hold, at(1)) && !is_early(&hold, at(2)));
    assert!(!hands_off(&hold, at(1), &bounds()), "the minimum is not over");
    let former = hold.hand_off(at(2), &bounds(), &Holder::owned(), &minimum(3));
    assert!(former.is_some());
    assert_eq!(hold.minimum_left(at(3)), 2 * SECOND, "counted from the hand-off");
    let none = Hold::new(Grant { settings: minimum(0), ..Grant::owned(at(0), at(10)) });
    assert!(!is_early(&none, at(0)) && hands_off(&none, at(0), &bounds()));
}

#[test]
fn a_fenced_hold_is_handed_off_while_it_has_tokens_and_each_holder_has_its_own() {
    let tokens = 7..=8;
    let fenced = Hold::new(Grant { tokens, ..Grant::owned(at(0), at(10)) });
    let bounds = HandoffBounds { max_handoffs: 9, ..bounds() };
    assert_eq!(fenced.token(), 7);
    assert!(hands_off(&fenced, at(1), &bounds));
    assert_eq!(fenced.token(), 8);
    assert!(!hands_off(&fenced, at(1), &bounds));
    assert_eq!(hold(true, 10).token(), 0);
}

#[test]
fn a_renewal_is_due_when_too_little_remains_and_once_in_a_period() {
    let due = |hold: &Hold, now| hold.next_renewal(at(now), 10 * SECOND, 20 * SECOND);
    let watched = hold(true, 30);
    assert_eq!([due(&watched, 9), due(&watched, 11)], [at(10), at(10)]);
    assert_eq!(watched.timer_fired(at(9)), TimerTask::Extend);
    watched.extend(at(11), at(11), 289 * SECOND);
    assert_eq!(due(&watched, 12), at(22), "a long lease is renewed in each period too");
    assert_eq!(watched.timer_fired(at(300)), TimerTask::Over { newly_lost: true });
}

#[test]
fn a_fixed_lease_is_verified_in_each_period_and_at_its_end_unless_a_re_entry_renews_it() {
    let fixed = hold(false, 30);
    let due = |now| fixed.next_renewal(at(now), 10 * SECOND, 20 * SECOND);
    assert_eq!([due(9), due(20), due(29)], [at(19), at(30), at(30)]);
    assert_eq!(fixed.timer_fired(at(29)), TimerTask::Verify);
    assert!(fixed.keep_renewed() && !fixed.keep_renewed());
    assert_eq!((due(29), fixed.timer_fired(at(29))), (at(10), TimerTask::Extend));
}

#[test]
fn the_hold_of_an_ended_thread_is_no_longer_renewed() {
    let orphan = std::thread::spawn(|| hold(true, 30)).join().expect("no panic");
    assert_eq!(orphan.timer_fired(at(25)), TimerTask::Orphaned);
    assert_eq!(orphan.timer_fired(at(26)), TimerTask::Verify);
}

#[test]
fn a_deadline_counts_from_the_sending_less_a_margin() {
    let lease = Duration::from_secs(30);
    assert_eq!(deadline(at(0), lease), Moment::START + Duration::from_millis(29_698));
    assert_eq!(deadline(at(5), Duration::from_millis(1)), at(5), "never before the sending");
}

/// Registers a closure that sends `number` when it is called.
fn registers(hold: &Hold, sink: &EventSink, number: u32, called: &Sender<u32>) {
    let called = called.clone();
    let closure = move || called.send(number).expect("the test receives it");
    let call = sink.loss_call(&"a".into(), Box::new(closure)).expect("the thread starts");
    hold.on_lost(call);
}

#[test]
fn a_loss_calls_the_closures_in_order_and_each_later_one_at_once() {
    let (sink, (called, calls)) = (EventSink::default(), crossbeam_channel::unbounded());
    let hold = hold(true, 10);
    (0..3).for_each(|number| registers(&hold, &sink, number, &called));
    assert!(hold.lose());
    registers(&hold, &sink, 3, &called);
    assert!(calls.is_empty(), "the loss is not reported yet");
    hold.note_loss_reported();
    registers(&hold, &sink, 4, &called);
    let in_time = || calls.recv_timeout(SECOND * 30).expect("the closure is called");
    assert_eq!([(); 5].map(|()| in_time()), [0, 1, 2, 3, 4]);
}

#[test]
fn a_hand_off_and_the_end_of_a_released_hold_drop_the_closures() {
    let (sink, (called, calls)) = (EventSink::default(), crossbeam_channel::unbounded());
    let released = hold(true, 10);
    registers(&released, &sink, 0, &called);
    assert!(hands_off(&released, at(1), &bounds()));
    registers(&released, &sink, 1, &called);
    assert_eq!(released.release(at(2)), HoldStatus::Held);
    drop((released, called));
    assert!(calls.recv_timeout(SECOND * 30).is_err_and(|error| error.is_disconnected()));
}

#[test]
fn the_reply_to_a_release_may_reveal_a_loss() {
    let (sink, (called, calls)) = (EventSink::default(), crossbeam_channel::unbounded());
    let released = hold(true, 10);
    registers(&released, &sink, 0, &called);
    assert_eq!(released.release(at(2)), HoldStatus::Held);
    released.release_settled();
    released.note_loss_reported();
    assert_eq!(calls.recv_timeout(SECOND * 30), Ok(0));
}

/// Each round registers a closure while another thread loses the hold.
#[test]
fn a_closure_that_is_registered_beside_the_loss_is_called_once() {
    const ROUNDS: u32 = 2000;
    let (sink, (called, calls)) = (EventSink::default(), crossbeam_channel::unbounded());
    for number in 0..ROUNDS {
        let hold = hold(true, 10);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(hold.lose());
                hold.note_loss_reported();
            });
            registers(&hold, &sink, number, &called);
        });
    }
    drop((sink, called));
    assert!(calls.into_iter().eq(0..ROUNDS));
}

#[test]
fn a_hand_off_by_an_older_clock_reading_than_the_report_starts_a_new_limit() {
    let settings = HoldSettings::default().with_max_hold(SECOND);
    let hold = Hold::new(Grant { settings: settings.clone(), ..Grant::owned(at(0), at(100)) });
    assert!(hold.take_overdue(at(1)).is_some());
    let bounds = HandoffBounds { max_handoffs: 9, max_time: 100 * SECOND, min_remaining: SECOND };
    assert!(hold.hand_off(at(0), &bounds, &Holder::owned(), &settings).is_some());
    assert_eq!(hold.next_limit(), Some(at(1)));
    assert!(hold.take_overdue(at(2)).is_some(), "reported for the new holder too");
}

/// Tells events of the hold; returns those that were emitted, in their order.
fn told(hold: &Hold, events: &[&'static str]) -> Vec<&'static str> {
    let told = RefCell::new(Vec::new());
    let emit = |event| told.borrow_mut().push(event);
    for event in events {
        match *event {
            "acquired" => {
                let untold = hold.tell_acquired(|_| emit("acquired"));
                untold.overdue.into_iter().for_each(|_| emit("overdue"));
                untold.lost.then(|| emit("lost"));
            }
            "overdue" => hold.tell_overdue(SECOND, || emit("overdue")),
            "hand-off" => hold.state.lock().told.present = false,
            _ => hold.tell_lost(|present| emit(if present { "lost" } else { "lost by another" })),
        }
    }
    told.into_inner()
}

#[test]
fn the_end_of_a_hold_is_told_after_its_acquisition() {
    let (now, deadline) = (Moment::START + SECOND, Moment::START + 2 * SECOND);
    let hold = || Hold::new(Grant::owned(now, deadline));
    let all = ["acquired", "overdue", "lost"];
    assert_eq!(told(&hold(), &all), all);
    assert_eq!(told(&hold(), &["overdue", "lost", "acquired"]), all);
    assert_eq!(told(&hold(), &["lost"]), [""; 0], "the call that got it has failed");
    // The second acquisition is that of a hand-off.
    assert_eq!(told(&hold(), &["acquired", "acquired", "lost"]), ["acquired", "acquired", "lost"]);
    assert_eq!(told(&hold(), &["acquired", "lost", "acquired"]), ["acquired", "lost"]);
    assert_eq!(told(&hold(), &["lost", "acquired", "acquired"]), ["acquired", "lost"]);
    let lost_after_hand_off = ["acquired", "hand-off", "overdue", "lost", "acquired"];
    assert_eq!(
        told(&hold(), &lost_after_hand_off),
        ["acquired", "lost by another"],
        "nobody has it any more, and the last holder has heard of no acquisition"
    );
}
