//! Tests of the callers that wait for grants: tokens, deadlines, lost places.

use super::*;
use crate::command::name::Name;
use crate::events::EventSink;
use crate::kind::queued::Queued;
use crate::local::hold::Grant;
use crate::local::mailbox::News;
use crate::local::table::{EntryRequest, HoldShare};
use crate::local::{Caller, EndOutcome};
use crate::transport::call::ConnectionId;

const SECOND: Duration = Duration::from_secs(1);

/// The grant lease.
const LEASE: Duration = Duration::from_secs(3);

const TERMS: TermsSince = TermsSince(70);

/// The number of the waiting caller.
const WAITER: u64 = 17;

fn at(seconds: u64) -> Moment {
    Moment::START + SECOND * 100 + SECOND * u32::try_from(seconds).expect("a small number")
}

fn base(sent: Moment, token_bound: u64) -> GrantBase {
    GrantBase { sent, generation: Generation::default(), token_bound }
}

fn local() -> Local {
    let name = Name::new("", "a".into()).expect("a good name");
    Local::new(name, EventSink::default(), Default::default())
}

/// Returns a lock for which a caller waits, whose first acquire was sent at zero seconds.
fn with_waiter() -> Local {
    let local = local();
    local.await_grant(WAITER, &Queued, &Mailbox::mine(), base(at(0), 0));
    local
}

fn message(hold: u64, token: u64) -> GrantMessage<'static> {
    GrantMessage { hold, token, lease: LEASE, key: "a" }
}

/// Returns the answer to a heartbeat: the client has no hold.
fn answer(token_bound: u64) -> HeartbeatReply {
    let left = Some(SECOND * 30);
    HeartbeatReply { terms_since: TERMS, left, own_hold: None, token_bound }
}

impl Local {
    fn by_message(&self, message: &GrantMessage<'_>) -> bool {
        self.granted_by_message(message, Generation::default())
    }

    fn mailbox(&self, hold: u64) -> Arc<Mailbox> {
        Arc::clone(&self.state.lock().waiters.by_hold[&hold].mailbox)
    }

    /// Takes the grant of the waiting caller, if it has one.
    fn grant_of(&self, hold: u64) -> Option<WaiterGrant> {
        match self.mailbox(hold).take() {
            News::Granted(grant) => Some(grant),
            _ => None,
        }
    }

    /// Returns whether the waiting caller has to ask, and has it do so.
    fn has_to_ask(&self, hold: u64) -> bool {
        let mailbox = self.mailbox(hold);
        let must_ask = mailbox.must_ask();
        mailbox.begin_question();
        must_ask
    }

    fn beat(&self, sent: Moment, reply: HeartbeatReply) {
        self.heartbeat_answered(base(sent, reply.token_bound), &reply, sent, LEASE);
    }
}

#[test]
fn a_grant_before_the_first_reply_counts_from_the_first_request() {
    let local = with_waiter();
    assert!(local.by_message(&message(WAITER, 5)));
    let grant = local.grant_of(WAITER).expect("a grant");
    assert_eq!((grant.token, grant.deadline()), (5, hold::deadline(at(0), LEASE)));
    assert!(local.grant_of(WAITER).is_none(), "taken once");
}

#[test]
fn the_deadline_counts_from_the_last_answer_without_a_hold() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(1), 10), TERMS);
    local.by_message(&message(WAITER, 11));
    assert_eq!(local.grant_of(WAITER).map(|it| it.sent), Some(at(1)));
    local.beat(at(2), answer(11));
    local.by_message(&message(WAITER, 12));
    assert_eq!(local.grant_of(WAITER).map(|it| it.sent), Some(at(2)), "a heartbeat counts too");
    local.is_queued(WAITER, base(at(1), 10), TERMS);
    local.by_message(&message(WAITER, 13));
    assert_eq!(local.grant_of(WAITER).map(|it| it.sent), Some(at(2)), "an older answer does not");
}

/// The grant has expired, and the same caller was queued again.
#[test]
fn a_message_of_an_earlier_grant_does_not_count() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(9), 10), TERMS);
    for token in [9, 10] {
        assert!(local.by_message(&message(WAITER, token)), "the caller is known");
        assert!(local.grant_of(WAITER).is_none(), "{token}");
    }
    local.beat(at(10), answer(20));
    local.by_message(&message(WAITER, 20));
    assert!(local.grant_of(WAITER).is_none(), "the bound of a heartbeat counts too");
}

/// Both messages come before the reply that shows that the first grant has ended.
#[test]
fn a_message_of_a_later_grant_replaces_an_earlier_grant() {
    let local = with_waiter();
    for token in [5, 9] {
        local.by_message(&message(WAITER, token));
    }
    local.is_queued(WAITER, base(at(1), 7), TERMS);
    assert_eq!(local.grant_of(WAITER).map(|it| it.token), Some(9));
}

#[test]
fn a_heartbeat_repeats_a_grant_with_the_rest_of_its_lease() {
    let local = with_waiter();
    let own_hold = Some(OwnHold { hold: WAITER, token: 5 });
    local.beat(at(2), HeartbeatReply { left: Some(SECOND), own_hold, ..answer(5) });
    let grant = local.grant_of(WAITER).expect("a grant");
    assert_eq!((grant.token, grant.deadline()), (5, hold::deadline(at(2), SECOND)));
}

#[test]
fn the_grant_that_lasts_longest_counts() {
    let local = with_waiter();
    local.by_message(&message(WAITER, 5));
    let own_hold = Some(OwnHold { hold: WAITER, token: 5 });
    let reply = HeartbeatReply { left: Some(SECOND / 2), own_hold, ..answer(5) };
    local.beat(at(1), reply);
    local.by_message(&message(WAITER, 6));
    assert_eq!(local.grant_of(WAITER).map(|it| it.token), Some(6));
}

#[test]
fn a_grant_belongs_to_a_waiting_caller_or_to_a_hold() {
    let local = with_waiter();
    assert!(!local.by_message(&message(18, 5)), "the call has ended");
    local.stop_waiting(WAITER);
    assert!(!local.by_message(&message(WAITER, 5)));
    let request = EntryRequest { rules: &Queued, owned: true, waits: true, renewed: true };
    let grant = Grant::owned(at(0), at(30));
    let number = grant.hold.number();
    local.await_grant(number, &Queued, &Mailbox::mine(), base(at(0), 0));
    let hold = local.granted(None, &Caller::new(request), grant, Duration::ZERO);
    assert!(!local.awaits_grants(), "the hold ends the wait in the same step");
    assert!(local.by_message(&message(number, 5)), "a late message about a hold");
    let queued = local.end(&hold, HoldShare::Guard, || at(1), || ConnectionId::at(0, 0));
    assert_eq!(queued, EndOutcome::Queued);
    assert!(local.by_message(&message(number, 5)), "its own release is on the way");
    local.release_settled(&hold);
    assert!(!local.by_message(&message(number, 5)), "the release has a reply");
}

#[test]
fn callers_ask_again_if_the_server_forgot_the_terms_of_their_client() {
    let local = with_waiter();
    local.await_grant(18, &Queued, &Mailbox::mine(), base(at(0), 0));
    local.is_queued(WAITER, base(at(0), 10), TERMS);
    local.beat(at(1), answer(10));
    assert!(!local.has_to_ask(WAITER));
    local.beat(at(2), HeartbeatReply { terms_since: TermsSince(71), ..answer(10) });
    assert!(local.has_to_ask(WAITER));
    assert!(!local.has_to_ask(18), "its acquire has no reply yet");
    // The reply of the other caller is older than the heartbeat.
    local.is_queued(18, base(at(1), 10), TERMS);
    local.is_queued(WAITER, base(at(2), 10), TermsSince(71));
    local.beat(at(3), HeartbeatReply { terms_since: TermsSince(71), ..answer(10) });
    assert!(local.has_to_ask(18) && !local.has_to_ask(WAITER));
}

/// Replies come on several connections.
#[test]
fn the_terms_of_the_latest_request_count() {
    let local = with_waiter();
    local.await_grant(18, &Queued, &Mailbox::mine(), base(at(0), 0));
    local.is_queued(WAITER, base(at(2), 10), TermsSince(71));
    local.is_queued(18, base(at(1), 10), TERMS);
    assert!(local.has_to_ask(18), "its place may be lost");
    assert!(!local.has_to_ask(WAITER), "its terms are the latest");
    local.beat(at(1), HeartbeatReply { terms_since: TermsSince(0), ..answer(10) });
    assert!(!local.has_to_ask(WAITER), "nobody was queued at that moment");
    local.is_queued(18, base(at(3), 10), TermsSince(71));
    local.beat(at(4), HeartbeatReply { terms_since: TermsSince(71), ..answer(10) });
    assert!(!local.has_to_ask(18) && !local.has_to_ask(WAITER));
}

#[test]
fn callers_ask_again_while_a_server_has_no_terms() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(0), 10), TERMS);
    for second in [1, 2] {
        local.beat(at(second), HeartbeatReply { terms_since: TermsSince(0), ..answer(10) });
        assert!(local.has_to_ask(WAITER), "{second}");
    }
}

/// A grant may have come and expired meanwhile.
#[test]
fn callers_ask_again_if_no_answer_came_for_a_grant_lease() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(0), 10), TERMS);
    local.beat(at(2), answer(10));
    local.beat(at(4), answer(10));
    assert!(!local.has_to_ask(WAITER), "answers came in time");
    local.beat(at(7), answer(10));
    assert!(local.has_to_ask(WAITER));
}

/// For example after `force_unlock`.
/// An operator has removed the caller from the queue, for example.
#[test]
fn callers_ask_again_after_a_long_time_although_heartbeats_are_answered() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(0), 10), TERMS);
    let asked = (1..).map(|beat| 2 * beat).find(|second| {
        local.beat(at(*second), answer(10));
        local.has_to_ask(WAITER)
    });
    let after = asked.map(Duration::from_secs).expect("the caller asks some time");
    assert!((10 * LEASE..=20 * LEASE).contains(&after), "{after:?}");
}

#[test]
fn a_grant_that_has_ended_on_the_server_is_dropped() {
    let local = with_waiter();
    local.by_message(&message(WAITER, 5));
    local.beat(at(1), answer(5));
    assert!(local.has_to_ask(WAITER), "the heartbeat says that the caller has no hold");
    local.by_message(&message(WAITER, 6));
    local.is_queued(WAITER, base(at(2), 6), TERMS);
    assert!(local.grant_of(WAITER).is_none(), "its own acquire says so");
}

#[test]
fn an_answer_without_a_bound_is_no_base() {
    let local = with_waiter();
    local.beat(at(2), HeartbeatReply { terms_since: TermsSince(0), left: None, ..answer(0) });
    local.by_message(&message(WAITER, 5));
    assert_eq!(local.grant_of(WAITER).map(|it| it.sent), Some(at(0)));
}

/// The hold was freed by force before the caller was refused.
#[test]
fn a_heartbeat_from_before_a_refusal_repeats_no_earlier_grant() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(2), 7), TERMS);
    let own =
        |token| HeartbeatReply { own_hold: Some(OwnHold { hold: WAITER, token }), ..answer(token) };
    local.beat(at(1), own(5));
    assert!(local.grant_of(WAITER).is_none());
    local.beat(at(1), own(8));
    assert_eq!(local.grant_of(WAITER).map(|it| it.token), Some(8), "a later grant counts");
}

/// Otherwise each of the two timers would plan a next heartbeat, for as long as callers wait.
#[test]
fn one_of_two_timers_sends_the_planned_heartbeat() {
    let local = with_waiter();
    assert!(local.plans_early_poll(at(5), at(0)) && local.plans_early_poll(at(4), at(0)));
    assert!(!local.takes_early_poll(at(3)));
    assert!(local.takes_early_poll(at(4)) && !local.takes_early_poll(at(4)));
    assert!(local.plans_early_poll(at(6), at(0)));
    assert!(!local.takes_early_poll(at(5)), "another one is planned");
    assert!(local.takes_early_poll(at(6)));
}

/// A poll sends a heartbeat too, in the same round of the watchdog and before the planned ones.
#[test]
fn a_heartbeat_of_a_poll_takes_the_place_of_a_planned_one() {
    let local = with_waiter();
    assert!(local.plans_early_poll(at(5), at(0)));
    local.begins_poll();
    assert!(!local.takes_early_poll(at(5)));
    assert!(local.plans_early_poll(at(6), at(5)), "after the answer");
    assert!(!local.takes_early_poll(at(5)) && local.takes_early_poll(at(6)));
}

#[test]
fn heartbeats_at_about_the_same_moment_are_planned_once() {
    let local = with_waiter();
    assert!(local.plans_early_poll(at(5), at(0)));
    assert!(!local.plans_early_poll(at(5), at(0)) && !local.plans_early_poll(at(6), at(0)));
    assert!(local.plans_early_poll(at(4), at(0)), "an earlier one");
    local.begins_poll();
    assert!(local.awaits_grants() && local.plans_early_poll(at(6), at(0)));
    local.stop_waiting(WAITER);
    assert!(!local.awaits_grants());
}

#[test]
fn a_grant_takes_the_place_of_the_request_to_ask_and_is_not_replaced_by_it() {
    let local = with_waiter();
    local.ask_again();
    local.by_message(&message(WAITER, 5));
    local.ask_again();
    assert_eq!(local.grant_of(WAITER).map(|it| it.token), Some(5));
    assert!(!local.has_to_ask(WAITER));
}

/// The caller may have been asked to ask before the grant came.
#[test]
fn a_caller_whose_grant_has_ended_asks() {
    let local = with_waiter();
    local.by_message(&message(WAITER, 5));
    local.is_queued(WAITER, base(at(1), 5), TERMS);
    assert!(local.grant_of(WAITER).is_none() && local.has_to_ask(WAITER));
}

/// The clock of the former server may have been ahead, so its tokens cannot be compared.
#[test]
fn a_message_of_another_server_only_makes_its_caller_ask() {
    let local = with_waiter();
    assert!(local.granted_by_message(&message(WAITER, 5), Generation::of(1)));
    assert!(local.has_to_ask(WAITER));
}

/// The grant came after the last answer, and has ended: the caller has no place any more.
#[test]
fn a_message_of_a_grant_that_ended_before_a_heartbeat_makes_its_caller_ask() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(0), 10), TERMS);
    local.beat(at(1), answer(20));
    local.by_message(&message(WAITER, 15));
    assert!(local.has_to_ask(WAITER));
}

/// The clock of a server may run by 1 % faster, as the margin of a deadline assumes.
#[test]
fn a_silence_of_almost_a_grant_lease_makes_callers_ask() {
    let local = with_waiter();
    local.is_queued(WAITER, base(at(0), 10), TERMS);
    local.beat(hold::deadline(at(0), LEASE), answer(20));
    assert!(local.has_to_ask(WAITER));
}

#[test]
fn a_plan_in_the_past_does_not_prevent_the_next_heartbeat() {
    let local = with_waiter();
    assert!(local.plans_early_poll(at(1), at(0)) && !local.plans_early_poll(at(3), at(1)));
    assert!(local.plans_early_poll(at(3), at(2)), "the round of the planned one has panicked");
}

#[test]
fn a_failed_heartbeat_leaves_open_whether_the_lock_is_free_until_the_next_answer() {
    let local = with_waiter();
    local.heartbeat_failed(None);
    assert!(local.last_error(at(1)).is_none(), "no connection was made yet");
    local.heartbeat_failed(Some(&Error::timeout()));
    local.heartbeat_failed(None);
    assert!(local.last_error(at(1)).is_some_and(|error| error.is_timeout()));
    local.beat(at(2), answer(10));
    assert!(local.last_error(at(2)).is_none());
}

#[test]
fn callers_ask_after_a_heartbeat_that_no_later_one_can_replace() {
    let local = with_waiter();
    local.heartbeat_failed(Some(&Error::timeout()));
    assert!(!local.has_to_ask(WAITER));
    local.heartbeat_failed(Some(&Error::closed()));
    assert!(local.has_to_ask(WAITER));
}
