//! A caller that asks for a new hold.
//!
//! Shared by the wait loop and by the batches of a `MultiLock`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireCall, HoldHandle};
use crate::command::owner::{HoldId, Owner};
use crate::command::permit::PermitIds;
use crate::kind::rules::ListensTo;
use crate::local::Caller;
use crate::local::hold::{self, Grant};
use crate::local::queue::Ticket;
use crate::transport::call::{ConnectionId, LateCopy};
use crate::transport::pool::request::{BackgroundTask, Request};
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::watchdog;

/// A caller that asks for a new hold. Leaves the queue when dropped.
pub(crate) struct Acquirer<'a> {
    pub(crate) call: &'a AcquireCall<'a>,
    /// The beginning of the call.
    pub(super) started: Moment,
    pub(crate) caller: Caller,
    /// The place in the process's queue; `None` without a queue and after the grant.
    pub(crate) ticket: Option<Ticket>,
    /// The identity of the hold, the same in all attempts that may take effect.
    pub(crate) id: HoldId,
    pub(crate) owner: Owner,
    /// Another hold of the same thread, which stays valid beside the new one.
    pub(crate) beside: Option<Owner>,
}

/// A grant, as the reply to an acquire command reports it.
pub(crate) struct GrantReply {
    /// The moment before the command was sent.
    pub(crate) sent: Moment,
    /// The moment at which the reply was read.
    pub(crate) at: Moment,
    /// The lease that the server has set.
    pub(crate) lease: Duration,
    /// The generation in which the command was sent.
    pub(crate) generation: Generation,
    /// A copy of the command that may still run.
    pub(crate) late_copy: Option<LateCopy>,
    /// The fencing tokens; zeros if the kind has none.
    ///
    /// One for each thread that may have the hold.
    pub(crate) tokens: RangeInclusive<u64>,
    /// The slots of the permits, if they have some.
    pub(crate) slots: Box<[u32]>,
}

impl<'a> Acquirer<'a> {
    pub(super) fn new(
        call: &'a AcquireCall<'a>,
        started: Moment,
        caller: Caller,
        ticket: Option<Ticket>,
        beside: Option<Owner>,
    ) -> Acquirer<'a> {
        let (id, owner) = identity(call, None);
        Acquirer { call, started, caller, ticket, id, owner, beside }
    }

    /// Takes a new number, so that the number tells the time of the acquisition.
    ///
    /// Only for a caller whose earlier attempts have no effect, now or later.
    pub(super) fn renumber(&mut self) {
        let claimant = self.owner.permits().map(|permits| Arc::clone(permits.claimant()));
        (self.id, self.owner) = identity(self.call, claimant);
    }

    /// Leaves the queue; returns a valid hold that was handed over in the meantime.
    pub(super) fn leave(&mut self) -> Option<HoldHandle> {
        let hold = self.call.context.local.leave(self.ticket.take()?, &self.caller)?;
        let handle = self.call.handle(hold);
        if !handle.is_held() {
            return None;
        }
        handle.watch_limit();
        Some(handle)
    }

    /// Makes a hold of a grant that is still valid, and gives the hold to the watchdog.
    pub(crate) fn granted(&mut self, reply: GrantReply) -> HoldHandle {
        let (call, lease) = (self.call, reply.lease);
        let server_lease = match call.rules.listens_to() {
            // A fixed lease does not shorten the grant lease of a message that came before.
            ListensTo::Grants => lease.max(call.context.engine.watchdog.grant_terms().lease),
            _ => lease,
        };
        let grant = Grant {
            hold: self.id,
            owner: self.owner.clone(),
            rules: call.rules,
            deadline: hold::deadline(reply.sent, lease),
            lease,
            server_lease,
            renewed: call.options.lease.is_none(),
            holder: self.caller.holder.clone(),
            settings: self.caller.settings.clone(),
            linger: self.caller.settings.linger().filter(|_| self.id.may_linger()),
            granted_at: reply.at,
            late_copy: reply.late_copy,
            tokens: reply.tokens,
            slots: reply.slots,
        };
        let round_trip = reply.sent.until(reply.at);
        let local = &call.context.local;
        let hold = local.granted(self.ticket, &self.caller, grant, round_trip);
        self.ticket = None;
        let handle = call.handle(hold);
        if self.id.may_linger() {
            // Others ask for the hold on the control channel.
            call.context.engine.listeners.stay_connected();
        }
        call.context.engine.watchdog.watch_granted(handle.watched(), reply.generation);
        handle
    }

    /// Returns a copy of an acquire command of this call on that connection.
    pub(crate) fn copy_on(&self, connection: ConnectionId) -> LateCopy {
        LateCopy { connection, since: self.started }
    }

    /// Undoes what an acquire command took or may still take: a hold, or a place in Redis.
    ///
    /// Sends a background request, on the connection of the late copy if there is one. What is
    /// undone would last for the time `effect`.
    pub(crate) fn undo(
        &self,
        late_copy: Option<LateCopy>,
        waiter_timeout: Option<Duration>,
        effect: Duration,
    ) {
        let (rules, context) = (self.call.rules, self.call.context);
        let undo = rules.undo(context.local.name(), &self.owner, waiter_timeout);
        let task = BackgroundTask::new(clock::now() + effect)
            .outlasts_deadline(rules.outlives_its_lease())
            .undoes(effect, late_copy)
            .then(watchdog::cleaned_up);
        let (router, connection) = (&context.engine.router, late_copy.map(|copy| copy.connection));
        router.send_background(Request::background(undo, task), connection);
    }
}

/// Returns a new number for the hold, with its owner field.
///
/// `claimant` identifies the call in a claim; `None` at the first attempt, whose owner field does.
fn identity(call: &AcquireCall<'_>, claimant: Option<Arc<str>>) -> (HoldId, Owner) {
    let (client, suffix) = (call.context.engine.id, call.rules.suffix());
    let Some(permits) = call.options.permits else {
        let id = HoldId::of(call.rules.kind(), call.may_linger(clock::now()));
        return (id, Owner::new(client, id, suffix).named(call.holder_name.cloned()));
    };
    let id = HoldId::block(permits.count);
    let owner = Owner::new(client, id, suffix);
    let claimant = claimant.unwrap_or_else(|| owner.hold().into());
    let ids = PermitIds::new(client, id.number(), permits.count, claimant);
    (id, owner.with_permits(ids))
}

impl Drop for Acquirer<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.leave() {
            handle.discard();
        }
    }
}
