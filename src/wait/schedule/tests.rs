//! Tests of the schedule of one call.

use super::notifications::{FIRST_QUIET, LONGEST_QUIET};
use super::*;
use crate::error::ErrorKind;
use crate::transport::listener::channels::{Channels, SubscriptionState};
use crate::util::sync::Parker;
use std::sync::Arc;

const POLL: Duration = Duration::from_secs(1);
const START: Moment = Moment::from_nanos(1_000_000_000_000);

fn schedule() -> RetrySchedule {
    with_pace(Pace::WatchdogPolls)
}

fn with_pace(pace: Pace) -> RetrySchedule {
    RetrySchedule::new(START, POLL, BackOff::default(), 7, pace)
}

fn view_without_channel() -> ChannelView {
    let subscription = SubscriptionState::Unsubscribed;
    ChannelView { message_count: None, subscription, requested_in: None }
}

fn attempted(mut schedule: RetrySchedule) -> RetrySchedule {
    assert!(schedule.is_due(START, None), "the first attempt is due at once");
    schedule.before_attempt(view_without_channel());
    schedule
}

fn no_reply() -> Error {
    Error::new(ErrorKind::Connection, "no reply")
}

#[test]
fn the_next_attempt_is_due_at_the_end_of_the_lease_or_at_the_poll_interval() {
    for (left, least, most) in [
        (Some(Duration::from_millis(100)), 100, 100),
        (Some(Duration::ZERO), 1, 1),
        (Some(POLL * 3), 3000, 3000),
        (Some(POLL * 300), 30_000, 60_000),
        (None, 30_000, 60_000),
    ] {
        let mut schedule = attempted(schedule());
        schedule.refused(START, left);
        let millis = START.until(schedule.next_attempt()).as_millis();
        assert!((least..=most).contains(&millis), "{left:?}: {millis} ms");
        assert!(!schedule.is_due(START, None));
        assert!(schedule.is_due(schedule.next_attempt(), None));
    }
}

#[test]
fn the_first_failure_is_an_error_and_later_failures_are_pauses() {
    let no_pause = |_: &Error| -> Moment { panic!("the attempt is not repeated") };
    assert!(attempted(schedule()).unanswered(no_reply(), no_pause).is_err());
    let mut refused = attempted(schedule());
    refused.refused(START, None);
    assert!(refused.unanswered(Error::lost(LostReason::Gone, "for good"), no_pause).is_err());
    let pause_end = START + Duration::from_millis(7);
    refused.unanswered(no_reply(), |_| pause_end).expect("the call waits through an outage");
    assert_eq!(refused.next_attempt(), pause_end);
    assert!(refused.take_error().is_some() && refused.take_error().is_none());
}

#[test]
fn a_lock_held_in_this_process_is_polled_at_the_poll_interval() {
    let mut schedule = schedule();
    assert!(!schedule.is_due_while_held_here(START));
    assert!(schedule.is_due_while_held_here(START + POLL));
    assert!(schedule.is_due(START, None), "the first attempt");
    schedule.before_attempt(view_without_channel());
    schedule.refused(START, None);
    assert!(!schedule.is_due(START, None), "the attempt that follows that hold was made");
    assert!(!schedule.is_due_while_held_here(START));
    assert!(schedule.is_due(START, None), "the next hold has ended");
    assert!(!schedule.is_due(START, None), "once");
    assert!(!schedule.is_due_while_held_here(START + POLL), "the watchdog polls");
    assert!(schedule.is_due_while_held_here(START + POLLS_BEFORE_OWN_ATTEMPT * POLL));
}

#[test]
fn a_call_that_becomes_the_head_of_the_queue_makes_one_attempt() {
    let mut schedule = attempted(schedule());
    schedule.refused(START, None);
    schedule.wait_behind();
    assert!(schedule.is_due(START, None), "the former head may have released the lock");
    assert!(!schedule.is_due(START, None), "once");
}

#[test]
fn messages_make_attempts_due_and_lost_races_make_the_call_quiet() {
    let (channels, parker) = (Channels::default(), Arc::<Parker>::default());
    let channel = channels.channel("c");
    let registration = channel.register(&parker);
    channel.set_subscription(SubscriptionState::Subscribed);
    let mut schedule = schedule();
    let mut quiets = Vec::new();
    for _ in 0..8 {
        schedule.before_attempt(ChannelView {
            message_count: Some(channel.message_count()),
            subscription: channel.subscription(),
            requested_in: None,
        });
        schedule.refused(START, None);
        quiets.push(START.until(schedule.next_attempt()));
        channel.notify();
        let message_count = Some(registration.message_count());
        assert!(schedule.is_due(schedule.next_attempt(), message_count));
    }
    assert!(quiets[0] >= POLL / 2, "the first refusal starts no quiet time");
    assert!(quiets[1] <= FIRST_QUIET && quiets[7] <= LONGEST_QUIET);
    assert!(quiets[7] >= LONGEST_QUIET / 2);
}

#[test]
fn a_registration_makes_an_attempt_due_if_a_message_may_have_been_missed() {
    let (channels, parker) = (Channels::default(), Arc::<Parker>::default());
    let channel = channels.channel("c");
    let registration = channel.register(&parker);
    let registers = |subscription, session| {
        channel.set_subscription(subscription);
        let mut schedule = attempted(schedule());
        schedule.refused(START, None);
        schedule.registered(&registration, &channel, session);
        schedule.is_due(START, Some(registration.message_count()))
    };
    assert!(registers(SubscriptionState::Subscribed, None), "a message may have come before");
    assert!(!registers(SubscriptionState::Requested, None), "the confirmation will count");
    assert!(
        !registers(SubscriptionState::Unsubscribed, None),
        "the listener looks for waiting callers"
    );
    channels.set_listening(true);
    assert!(
        registers(SubscriptionState::Unsubscribed, channels.session()),
        "an attempt has to request the subscription"
    );
}

#[test]
fn unaided_calls_poll_at_the_poll_interval_and_spin_locks_back_off() {
    let next = |schedule: &mut RetrySchedule| {
        schedule.before_attempt(view_without_channel());
        schedule.refused(START, None);
        START.until(schedule.next_attempt())
    };
    let mut self_polling = with_pace(Pace::OwnPolls);
    assert!((POLL / 2..=POLL).contains(&next(&mut self_polling)));
    let back_off = BackOff::Exponential {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(128),
    };
    let mut spinning = RetrySchedule::new(START, POLL, back_off, 7, Pace::BackOff);
    let pauses: Vec<_> = (0..12).map(|_| next(&mut spinning)).collect();
    assert!(pauses[0] <= Duration::from_millis(1), "{pauses:?}");
    assert!(pauses[11] <= Duration::from_millis(128), "{pauses:?}");
    assert!(pauses[11] >= Duration::from_millis(64), "{pauses:?}");
}

/// Thousands of callers may wait for one lock.
#[test]
fn a_call_for_a_queue_lock_sleeps_until_it_is_woken() {
    let mut schedule = attempted(with_pace(Pace::Granted));
    schedule.refused(START, None);
    assert_eq!(schedule.next_attempt(), Moment::END);
    schedule.unanswered(no_reply(), |_| START).expect("the call waits through an outage");
    assert_eq!(schedule.next_attempt(), START, "an attempt without a reply is repeated");
    schedule.refused(START, None);
    assert_eq!(schedule.next_attempt(), Moment::END);
}

#[test]
fn a_call_whose_grants_always_arrive_too_late_ends_with_an_error() {
    let mut schedule = attempted(schedule());
    for _ in 1..MAX_LATE_GRANTS {
        schedule.granted_too_late(START).expect("another attempt");
        assert!(schedule.is_due(START, None));
    }
    assert!(schedule.granted_too_late(START).is_err_and(|error| error.is_lost()));
    let error = schedule.take_error();
    assert!(error.is_some_and(|error| error.is_lost()), "a call that gives up returns it");
}
