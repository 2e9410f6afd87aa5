//! The callers of this process that wait for grants of a queue lock.
//!
//! A caller registers before it sends its first acquire, and keeps its hold number until its call
//! ends. So the number of a grant belongs to a waiting caller, to a hold, to a hold whose release
//! is on its way, or to a call that has ended.
//!
//! # The deadline of a grant
//!
//! A message has no time of its own, so its deadline counts from an earlier request, the *base*:
//! the last request whose answer says that the caller does not have the lock, or else the caller's
//! first request. A grant whose token is larger than the *token bound* of that answer is younger
//! than the base, and lasts at least until the base plus the grant lease. A smaller token belongs
//! to an earlier grant, which has ended: its message was delayed, and does not count. The queue
//! heartbeat (in this file, *heartbeat*) repeats a grant that is still valid, with its remaining
//! lease, which counts from the heartbeat.

use std::sync::Arc;
use std::time::Duration;

use crate::command::grant::GrantMessage;
use crate::command::owner::HoldId;
use crate::error::Error;
use crate::kind::queued::{HeartbeatReply, OwnHold};
use crate::kind::rules::{KindRules, TermsSince};
use crate::local::Local;
use crate::local::hold;
use crate::local::mailbox::Mailbox;
use crate::transport::topology::route::Generation;
use crate::util::clock::{Moment, jittered};
use crate::util::system::HashMap;

/// The number of grant leases after which a caller asks again, whatever the heartbeats say.
const LEASES_BEFORE_ASKING: u32 = 20;

/// A request after which the server did not have a hold of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantBase {
    /// The moment before the request was sent.
    pub(crate) sent: Moment,
    /// The generation in which the request was sent.
    pub(crate) generation: Generation,
    /// The server gives each later grant a larger token.
    pub(crate) token_bound: u64,
}

/// A grant to a waiting caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaiterGrant {
    pub(crate) token: u64,
    /// The lease that the server has set, counted from `sent`.
    pub(crate) lease: Duration,
    pub(crate) sent: Moment,
    pub(crate) generation: Generation,
}

impl WaiterGrant {
    fn new(base: &GrantBase, token: u64, lease: Duration) -> WaiterGrant {
        let GrantBase { sent, generation, .. } = *base;
        WaiterGrant { token, lease, sent, generation }
    }

    /// Returns the moment from which the caller no longer has the lock.
    pub(crate) fn deadline(&self) -> Moment {
        hold::deadline(self.sent, self.lease)
    }
}

/// The waiting callers of one lock, by hold number.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    by_hold: HashMap<u64, Waiter>,
    /// The last heartbeat with an answer, a base for all callers.
    heartbeat: Option<GrantBase>,
    /// The terms of the client, as the answer to the latest request has them.
    terms_since: TermsSince,
    /// The moment before that request was sent.
    terms_sent: Moment,
    /// The rules of the last call that registered: those of a queue lock, or of an election.
    rules: Option<&'static dyn KindRules>,
}

#[derive(Debug)]
struct Waiter {
    mailbox: Arc<Mailbox>,
    base: GrantBase,
    /// The terms of the client at the last acquire with an answer.
    terms_since: Option<TermsSince>,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.by_hold.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_hold.is_empty()
    }

    pub(super) fn remove(&mut self, hold: u64) {
        self.by_hold.remove(&hold);
    }

    /// Passes a grant by message to its caller.
    ///
    /// Returns `false` if no caller waits with its number. Tokens of different servers cannot be
    /// compared. So if the base is from another generation than the message, the caller only asks
    /// again.
    fn granted(&mut self, message: &GrantMessage<'_>, generation: Generation) -> bool {
        let Some(waiter) = self.by_hold.get_mut(&message.hold) else { return false };
        let base = self.heartbeat.filter(|beat| waiter.base.sent < beat.sent);
        let base = base.unwrap_or(waiter.base);
        if base.generation != generation {
            waiter.mailbox.ask();
        } else if base.token_bound < message.token {
            waiter.mailbox.grant(WaiterGrant::new(&base, message.token, message.lease));
        } else if waiter.base.token_bound < message.token {
            // The grant has ended since the caller was queued: it has no place any more.
            waiter.mailbox.ask();
        }
        true
    }

    /// Has callers ask again whose grants may have ended unnoticed.
    ///
    /// The bound of a new answer shows that a known grant has ended. Without an answer for about a
    /// grant lease, a grant may have come and expired. A caller also asks again a long time after
    /// its last acquire: an operator may have removed it from the queue.
    fn ask_if_outdated(&mut self, token_bound: u64, now: Moment, grant_lease: Duration) {
        let heartbeat = self.heartbeat.map_or(Moment::START, |base| base.sent);
        for (hold, waiter) in &mut self.by_hold {
            let last_answer = waiter.base.sent.max(heartbeat);
            let may_have_missed_one = hold::deadline(last_answer, grant_lease) <= now;
            let patience = jittered(grant_lease.saturating_mul(LEASES_BEFORE_ASKING), *hold);
            waiter.mailbox.end_grants(token_bound);
            if may_have_missed_one || waiter.base.sent + patience <= now {
                waiter.mailbox.ask();
            }
        }
    }

    /// Has the callers of other terms ask again: they may have lost their places.
    ///
    /// Ignores an answer to an earlier request, sent at `sent`, than that of the known terms.
    fn note_terms(&mut self, since: TermsSince, sent: Moment) {
        if sent < self.terms_sent {
            return;
        }
        self.terms_sent = sent;
        if self.terms_since == since && since != TermsSince::default() {
            return;
        }
        self.terms_since = since;
        for waiter in self.by_hold.values() {
            if waiter.terms_since.is_some_and(|known| known != since) {
                waiter.mailbox.ask();
            }
        }
    }
}

impl Waiter {
    /// Returns whether the caller may have a hold that a heartbeat found.
    ///
    /// `false` if the caller was refused after the heartbeat was sent, and the hold is older.
    fn may_have(&self, hold: OwnHold, heartbeat: &GrantBase) -> bool {
        self.base.sent <= heartbeat.sent || self.base.token_bound < hold.token
    }
}

impl Local {
    /// Registers a caller for grants. Does nothing for a registered one.
    ///
    /// Called before the first acquire is sent, at the moment `base.sent`.
    pub(crate) fn await_grant(
        &self,
        hold: u64,
        rules: &'static dyn KindRules,
        mailbox: &Arc<Mailbox>,
        base: GrantBase,
    ) {
        let waiter = || Waiter { mailbox: Arc::clone(mailbox), base, terms_since: None };
        let waiters = &mut self.state.lock().waiters;
        waiters.rules = Some(rules);
        waiters.by_hold.entry(hold).or_insert_with(waiter);
    }

    /// Notes the answer that a caller is queued.
    pub(crate) fn is_queued(&self, hold: u64, base: GrantBase, terms_since: TermsSince) {
        let waiters = &mut self.state.lock().waiters;
        if let Some(waiter) = waiters.by_hold.get_mut(&hold) {
            waiter.terms_since = Some(terms_since);
            if waiter.base.sent < base.sent {
                waiter.base = base;
                waiter.mailbox.end_grants(base.token_bound);
            }
            if base.sent < waiters.terms_sent && terms_since != waiters.terms_since {
                waiter.mailbox.ask();
            }
        }
        waiters.note_terms(terms_since, base.sent);
    }

    /// Has all callers that wait for grants send an acquire.
    pub(crate) fn ask_again(&self) {
        for waiter in self.state.lock().waiters.by_hold.values() {
            waiter.mailbox.ask();
        }
    }

    /// Ends the registration of a caller.
    pub(crate) fn stop_waiting(&self, hold: u64) {
        self.state.lock().waiters.remove(hold);
    }

    /// Returns whether callers wait for grants.
    pub(crate) fn awaits_grants(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Passes a grant by message to its caller; `generation` is that of the listener's connection.
    ///
    /// Returns `false` if the grant belongs to a call that has ended. It has to be released. The
    /// grant of a hold whose own release has no reply yet needs no other release, which would race
    /// that one on another connection.
    pub(crate) fn granted_by_message(
        &self,
        message: &GrantMessage<'_>,
        generation: Generation,
    ) -> bool {
        let mut state = self.state.lock();
        let is_own = |id: HoldId| id.number() == message.hold;
        state.waiters.granted(message, generation)
            || state.holds.iter().any(|entry| is_own(entry.hold.id()))
            || state.unanswered.iter().any(|release| is_own(release.hold))
    }

    /// Returns the rules of the calls whose grants have to be released.
    pub(crate) fn rules_of_grants(&self) -> Option<&'static dyn KindRules> {
        self.state.lock().waiters.rules
    }

    /// Notes a heartbeat without an answer.
    ///
    /// A caller that gives up returns the error. After an error that is no outage, the callers send
    /// acquires, whose errors end their calls.
    pub(crate) fn heartbeat_failed(&self, error: Option<&Error>) {
        let Some(error) = error else { return };
        let state = &mut *self.state.lock();
        state.last_error = Some(error.clone());
        if !error.is_outage() {
            for waiter in state.waiters.by_hold.values() {
                waiter.mailbox.ask();
            }
        }
    }

    /// Applies the answer to a heartbeat, read at `now`.
    ///
    /// A hold of no waiting caller is left alone: it is a hold of this process, or the reply to its
    /// acquire is not read yet.
    pub(crate) fn heartbeat_answered(
        &self,
        base: GrantBase,
        reply: &HeartbeatReply,
        now: Moment,
        grant_lease: Duration,
    ) {
        let state = &mut *self.state.lock();
        state.last_error = None;
        let waiters = &mut state.waiters;
        if base.token_bound == 0 {
            return waiters.note_terms(reply.terms_since, base.sent);
        }
        waiters.ask_if_outdated(base.token_bound, now, grant_lease);
        waiters.heartbeat = Some(base);
        if let Some(own) = reply.own_hold
            && let Some(waiter) = waiters.by_hold.get_mut(&own.hold)
            && waiter.may_have(own, &base)
        {
            let lease = reply.left.unwrap_or_default();
            waiter.mailbox.grant(WaiterGrant::new(&base, own.token, lease));
        }
        waiters.note_terms(reply.terms_since, base.sent);
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests;
