//! Tests of the queue, the holds and the fairness of one lock in one process.

use super::*;
use crate::command::owner::HoldId;
use crate::kind::plain::Plain;
use crate::kind::queued::Queued;
use crate::local::table::HoldShare;
use crate::transport::call::ConnectionId;
use crate::transport::listener::channels::SubscriptionState;
use crate::util::clock::Patience;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn at(micros: u64) -> Moment {
    Moment::START + SECOND + Duration::from_micros(micros)
}

fn local(max_handoffs: u32) -> Local {
    let name = Name::new("", "a".into()).expect("a good name");
    let bounds = HandoffBounds { max_handoffs, max_time: MILLI, min_remaining: Duration::ZERO };
    Local::new(name, EventSink::default(), bounds)
}

fn caller(waits: bool) -> Caller {
    Caller::new(EntryRequest { rules: &Plain, owned: true, waits, renewed: true })
}

impl Local {
    /// Joins the queue.
    fn join(&self, waits: bool, now: Moment) -> Ticket {
        match self.join_queue(caller(waits), now) {
            JoinOutcome::Queued(ticket) => ticket,
            other => panic!("the caller waits, or the lock is free: {other:?}"),
        }
    }

    /// Adds a hold of one second for the caller with this ticket.
    fn grant(&self, ticket: Ticket, now: Moment, round_trip: Duration) -> Arc<Hold> {
        let grant = Grant::owned(now, now + SECOND);
        self.granted(Some(ticket), &caller(true), grant, round_trip)
    }

    /// Adds and releases a hold at `now`.
    fn grant_and_release(&self, ticket: Ticket, now: Moment, round_trip: Duration) {
        let hold = self.grant(ticket, now, round_trip);
        assert_eq!(
            self.end(&hold, HoldShare::Guard, || now, || ConnectionId::at(0, 0)),
            EndOutcome::Queued
        );
        self.release_settled(&hold);
    }

    /// Takes and releases the lock at `now`. Returns the end of the yield that was due.
    fn take(&self, waits: bool, now: Moment) -> Option<Moment> {
        let ticket = self.join(waits, now);
        let patience = if waits { Patience::Forever } else { Patience::None };
        let caller = YieldsTo::of(patience, now);
        let yields = match self.turn(Some(ticket), now, caller) {
            Turn::Yield(end) => Some(end),
            Turn::Ask { .. } => None,
            other => panic!("not the head of the queue: {other:?}"),
        };
        self.grant_and_release(ticket, now, Duration::from_micros(100));
        yields
    }
}

/// The message of another client may overtake the reply with the grant.
#[test]
fn a_hold_that_is_asked_for_before_its_grant_is_known_does_not_linger() {
    for is_asked in [true, false] {
        let local = local(0);
        let hold = HoldId::of(Kind::Plain, true);
        let grant = Grant { hold, linger: Some(MILLI), ..Grant::owned(at(0), at(0) + SECOND) };
        let ticket = local.join(true, at(0));
        if is_asked {
            assert_eq!(local.was_asked(hold.number(), at(0)), None);
        }
        let hold = local.granted(Some(ticket), &caller(true), grant, Duration::ZERO);
        let end = local.end(&hold, HoldShare::Guard, || at(100), || ConnectionId::at(0, 0));
        let expected = if is_asked { EndOutcome::Queued } else { EndOutcome::Lingers };
        assert_eq!((end, local.has_idle_hold()), (expected, !is_asked));
    }
}

#[test]
fn a_caller_that_does_not_wait_yields_only_to_processes_that_are_known_to_listen() {
    let local = local(0);
    local.release_heard(&Plain, 1);
    assert_eq!(local.take(false, at(0)), None);
    assert_eq!(local.take(false, at(400)), None);
    assert_eq!(local.take(false, at(500)), Some(at(900)));
    local.release_heard(&Plain, 0);
    assert_eq!(local.take(false, at(20_000)), None);
}

#[test]
fn a_refusal_ends_a_run() {
    let local = local(0);
    local.release_heard(&Plain, 1);
    assert_eq!(local.take(true, at(0)), None);
    local.refused(at(50), at(50));
    assert_eq!(local.take(true, at(400)), None);
    assert_eq!(local.take(true, at(600)), None);
    assert_eq!(local.take(true, at(900)), Some(at(1100)));
}

#[test]
fn a_refusal_because_of_a_hold_of_this_process_does_not_end_a_run() {
    let local = local(0);
    local.release_heard(&Plain, 1);
    let first = local.join(true, at(0));
    let hold = local.grant(first, at(0), Duration::ZERO);
    let next = local.join(true, at(0));
    let turn = local.turn(Some(next), at(50_000), YieldsTo::Anybody);
    assert!(matches!(turn, Turn::Ask { held_here: true, .. }));
    local.refused(at(50_000), at(50_000));
    assert_eq!(
        local.end(&hold, HoldShare::Guard, || at(60_000), || ConnectionId::at(0, 0)),
        EndOutcome::Queued
    );
    assert!(matches!(local.turn(Some(next), at(60_000), YieldsTo::Anybody), Turn::Yield(_)));
}

#[test]
fn the_own_subscription_does_not_count_as_another_listener() {
    let (local, channels) = (local(0), Channels::default());
    let channel = local.channel(ListensTo::Lock, &channels).expect("a plain lock has a channel");
    channel.set_subscription(SubscriptionState::Subscribed);
    for (subscribers, yields) in [(1, None), (2, Some(at(900)))] {
        local.refused(at(0), at(0));
        local.release_heard(&Plain, subscribers);
        assert_eq!(local.take(true, at(0)), None);
        assert_eq!(local.take(true, at(400)), None);
        assert_eq!(local.take(true, at(500)), yields);
    }
}

/// A caller of this process may have the grant.
#[test]
fn a_release_of_a_queue_lock_tells_nothing_about_other_listeners() {
    let local = local(0);
    local.release_heard(&Queued, 1);
    assert_eq!(local.take(true, at(0)), None);
    assert_eq!(local.take(true, at(400)), None);
    assert_eq!(local.take(true, at(500)), None, "no other process listens");
}

/// Its round trip counts from the base of the grant, which may be seconds old.
#[test]
fn a_hold_of_a_queue_lock_belongs_to_no_run() {
    let local = local(0);
    local.release_heard(&Plain, 1);
    let grant = Grant { rules: &Queued, ..Grant::owned(at(0), at(0) + SECOND) };
    let hold = local.granted(None, &caller(true), grant, SECOND);
    let end = local.end(&hold, HoldShare::Guard, || at(30_000), || ConnectionId::at(0, 0));
    assert_eq!(end, EndOutcome::Queued);
    assert_eq!(local.take(true, at(30_000)), None, "the first hold of a run");
}

/// The thread of the first hold was paused between its reply and this step.
#[test]
fn a_grant_noted_after_its_deadline_ends_no_hold_that_the_server_granted_since() {
    let local = local(0);
    let (paused, next) = (local.join(true, at(0)), local.join(true, at(0)));
    let later = at(0) + 2 * SECOND;
    let valid = local.grant(next, later, MILLI);
    let over = local.grant(paused, at(0), MILLI);
    assert_eq!(valid.status(later), HoldStatus::Held);
    assert_eq!(over.status(later), HoldStatus::Over { newly_lost: true });
}

#[test]
fn a_call_of_a_thread_waits_for_the_owned_guard_that_the_thread_took() {
    let local = local(0);
    let first = local.join(true, at(0));
    let hold = local.grant(first, at(0), Duration::ZERO);
    for owned in [false, true] {
        let request = EntryRequest { rules: &Plain, owned, waits: true, renewed: true };
        let caller = Caller::new(request);
        let owner = Owner::new(uuid::Uuid::nil(), HoldId::next(), "");
        assert!(local.awaits_own_guard(&caller, &owner, at(0)), "owned: {owned}");
        let of_another_thread = || local.awaits_own_guard(&caller, &owner, at(0));
        let awaits = std::thread::scope(|scope| scope.spawn(of_another_thread).join());
        assert!(!awaits.expect("no panic"), "owned: {owned}");
    }
    drop(hold);
}
