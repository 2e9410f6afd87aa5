//! The callers of this process that wait for grants of a queue lock.
//!
//! A caller registers before it sends its first acquire, and keeps its hold number until its call
//! ends. So the number of a grant belongs to a waiting caller, to a hold, or to a call that has
//! ended.
//!
//! # The deadline of a grant
//!
//! A message has no time of its own, so its deadline counts from an earlier request, the *base*: the
//! last one whose answer says that the caller does not have the lock, or the caller's first request.
//! A grant whose token is larger than the *token bound* of that answer is younger than the base, and
//! lasts at least until the base plus the grant lease. A smaller token belongs to an earlier grant,
//! which has ended: its message was delayed, and does not count. The heartbeat repeats a grant that
//! is still valid, with its remaining lease, which counts from the heartbeat.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::command::grant::GrantMessage;
use crate::kind::queued::HeartbeatReply;
use crate::local::Local;
use crate::local::hold;
use crate::local::table::HoldEntry;
use crate::topology::route::Generation;
use crate::util::clock::Moment;
use crate::util::sync::Parker;

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
}

#[derive(Debug)]
struct Waiter {
    parker: Arc<Parker>,
    base: GrantBase,
    grant: Option<WaiterGrant>,
    /// Whether the caller has to send an acquire, because it may have lost its place.
    must_ask: bool,
}

/// The news of a caller that waits for a grant.
#[derive(Debug)]
pub(super) enum WaiterNews {
    Granted(WaiterGrant),
    MustAsk,
    None,
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

    /// Takes the news of the caller with this hold number.
    pub(super) fn take_news(&mut self, hold: u64) -> WaiterNews {
        let Some(waiter) = self.by_hold.get_mut(&hold) else { return WaiterNews::None };
        match (waiter.grant.take(), std::mem::take(&mut waiter.must_ask)) {
            (Some(grant), _) => WaiterNews::Granted(grant),
            (None, true) => WaiterNews::MustAsk,
            (None, false) => WaiterNews::None,
        }
    }

    /// Passes a grant by message to its caller. Returns whether the number belongs to one.
    fn granted(&mut self, message: &GrantMessage<'_>) -> bool {
        let Some(waiter) = self.by_hold.get_mut(&message.hold) else { return false };
        let base = self.heartbeat.filter(|beat| waiter.base.sent < beat.sent);
        let base = base.unwrap_or(waiter.base);
        if base.token_bound < message.token {
            waiter.grant(WaiterGrant::new(&base, message.token, message.lease));
        }
        true
    }

    fn ask_again(&mut self, except: Option<u64>) {
        let others = self.by_hold.iter_mut().filter(|(hold, _)| Some(**hold) != except);
        others.for_each(|(_, waiter)| {
            waiter.must_ask = true;
            waiter.parker.unpark();
        });
    }
}

impl Waiter {
    /// Stores a grant, unless a known grant lasts longer.
    fn grant(&mut self, grant: WaiterGrant) {
        if self.grant.is_none_or(|known| known.deadline() < grant.deadline()) {
            self.grant = Some(grant);
        }
        self.parker.unpark();
    }
}

impl Local {
    /// Registers a caller for grants. Does nothing for a registered one.
    ///
    /// Called before the first acquire is sent, at the moment `base.sent`.
    pub(crate) fn await_grant(&self, hold: u64, parker: &Arc<Parker>, base: GrantBase) {
        let waiter = || Waiter { parker: Arc::clone(parker), base, grant: None, must_ask: false };
        self.state.lock().waiters.by_hold.entry(hold).or_insert_with(waiter);
    }

    /// Notes the answer that a caller is queued. The others ask again if they may have lost their
    /// places.
    pub(crate) fn is_queued(&self, hold: u64, base: GrantBase, lost_places: bool) {
        let mut state = self.state.lock();
        if let Some(waiter) = state.waiters.by_hold.get_mut(&hold)
            && waiter.base.sent < base.sent
        {
            waiter.base = base;
        }
        if lost_places {
            state.waiters.ask_again(Some(hold));
        }
    }

    /// Has all callers that wait for grants send an acquire.
    pub(crate) fn ask_again(&self) {
        self.state.lock().waiters.ask_again(None);
    }

    /// Ends the registration of a caller.
    pub(crate) fn stop_waiting(&self, hold: u64) {
        self.state.lock().waiters.remove(hold);
    }

    /// Returns whether callers wait for grants.
    pub(crate) fn awaits_grants(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Passes a grant by message to its caller.
    ///
    /// Returns `false` if the grant belongs to a call that has ended. It has to be released.
    pub(crate) fn granted_by_message(&self, message: &GrantMessage<'_>) -> bool {
        let mut state = self.state.lock();
        let is_granted = |entry: &HoldEntry| entry.hold.id().number() == message.hold;
        state.waiters.granted(message) || state.holds.iter().any(is_granted)
    }

    /// Applies the answer to a heartbeat.
    ///
    /// A hold of no waiting caller is left alone: it is a hold of this process, or an acquire got it
    /// whose reply is not read yet.
    pub(crate) fn heartbeat_answered(&self, base: GrantBase, reply: &HeartbeatReply) {
        let waiters = &mut self.state.lock().waiters;
        waiters.heartbeat = Some(base);
        if let Some(own) = reply.own_hold
            && let Some(waiter) = waiters.by_hold.get_mut(&own.hold)
        {
            let lease = reply.left.unwrap_or_default();
            waiter.grant(WaiterGrant::new(&base, own.token, lease));
        }
        if reply.lost_places {
            waiters.ask_again(None);
        }
    }
}
