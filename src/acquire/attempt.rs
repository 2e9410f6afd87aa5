//! An attempt of a call in the wait loop: the acquire command, its reply, and the clean-up.
//!
//! A reply counts only if no topology change happened since the command was sent; otherwise the
//! command is sent again. A grant counts only if its deadline lies ahead when the reply is read.
//! Every other end of an attempt may leave an effect at the server, now or later
//! ([`Leftovers`](super::Leftovers)), which the clean-up undoes.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::schedule::{ChannelView, Pace};
use crate::acquire::{Candidate, GrantReply, HoldHandle, LockContext, WaitLoop};
use crate::error::{Error, Result};
use crate::kind::rules::{
    AcquireArgs, AcquireReply, ListensTo, PlaceArgs, QueuedReply, Queueing, Wake,
};
use crate::local::hold;
use crate::local::permit_queue::PermitWaiter;
use crate::local::waiters::{GrantBase, WaiterGrant};
use crate::transport::call::{Call, ConnectionId, LateCopy};
use crate::transport::listener::channels::{Channel, SubscriptionState};
use crate::transport::pool::Target;
use crate::transport::pool::request::{CallReply, Failure};
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment, Patience};
use crate::util::log_lines::LINES;
use crate::util::log_target;

impl WaitLoop<'_> {
    /// Sends the acquire command once and applies its reply.
    ///
    /// Returns `None` if the lock was refused, or if there was no reply and the call goes on.
    pub(super) fn attempt(
        &mut self,
        connection: Option<ConnectionId>,
    ) -> Result<Option<HoldHandle>> {
        let command = self.prepare();
        let router = &self.context().engine.router;
        let copy = self.leftovers.late_copy.map(|copy| copy.connection);
        let target = copy.map_or(Target::prefer(connection), Target::Only);
        let generation = router.generation();
        self.register_for_grants(generation);
        self.begin_question();
        if self.schedule.was_refused()
            && let Some(error) = self.context().pause_error()
        {
            return self.failed(error).map(|()| None);
        }
        let pending = router.queue(command, target);
        match router.wait(pending, &self.call.limit()) {
            (_, Ok(reply)) => {
                self.leftovers.queued |= self.takes_place_in_redis();
                self.answered(reply, generation)
            }
            (connection, Err(failure)) => self.unanswered(connection, failure).map(|()| None),
        }
    }

    /// Registers the call, so that a grant by message can come before the reply.
    fn register_for_grants(&mut self, generation: Generation) {
        if self.awaits_grants() {
            self.wakeups.session = self.context().engine.channels.session();
            let base = GrantBase { sent: clock::now(), generation, token_bound: 0 };
            let (id, parker) = (self.candidate.id, &self.candidate.caller.parker);
            self.context().local.await_grant(id.number(), self.call.rules, parker, base);
        }
    }

    /// Joins the callers of this process that wait for permits, before the first question.
    fn begin_question(&mut self) {
        let Candidate { call, caller, owner, started, .. } = &self.candidate;
        let (Some(permits), true) = (owner.permits(), caller.request.waits) else { return };
        let LockContext { engine, local } = &**call.context;
        let place = self.wakeups.permits.get_or_insert_with(|| {
            local.permits(&engine.channels).join(PermitWaiter {
                permits: permits.count(),
                since: *started,
                parker: Arc::clone(&caller.parker),
                claimant: Some(Arc::clone(permits.claimant())),
            })
        });
        place.begin_question();
    }

    /// Wakes the callers of this process that may take the permits that a reply offers.
    ///
    /// A call that has its permits leaves first, so that it takes no part of the offer.
    fn end_question(&mut self, offered: Option<u32>, granted: bool) {
        let LockContext { engine, local } = self.context();
        let place = self.wakeups.permits.as_ref();
        let may_claim = place.is_some_and(|place| place.end_question()) && granted;
        if let Some(permits) = self.candidate.owner.permits().filter(|_| may_claim) {
            engine.watchdog.withdraw_claim(local, permits.claimant());
        }
        self.wakeups.permits.take_if(|_| granted);
        if let (Some(offered @ 1..), Some(callers)) = (offered, local.known_permits()) {
            callers.offer(offered);
        }
    }

    /// Takes a hold that a server granted by message.
    ///
    /// Asks the server instead if the grant has expired, if the topology has changed since, or if
    /// the call needs more than the grant: another lease, or the acknowledgements of replicas.
    pub(super) fn take_grant(
        &mut self,
        grant: &WaiterGrant,
        now: Moment,
    ) -> Result<Option<HoldHandle>> {
        let engine = &self.context().engine;
        let is_valid = now < grant.deadline() && grant.generation == engine.router.generation();
        let suffices = self.call.options.lease.is_none() && !engine.settings.needs_replicas;
        if !(is_valid && suffices) {
            return self.attempt(None);
        }
        Ok(Some(self.candidate.granted(GrantReply {
            sent: grant.sent,
            at: now,
            lease: grant.lease,
            generation: grant.generation,
            late_copy: self.leftovers.late_copy.take(),
            tokens: grant.token..=grant.token,
        })))
    }

    /// Gives the schedule the state of the channel, and returns the acquire command.
    fn prepare(&mut self) -> Call {
        let LockContext { engine, local } = self.context();
        let has_slept = self.wakeups.end_watches.is_some();
        let may_take_effect = self.leftovers.late_copy.is_some() || self.leftovers.queued;
        if has_slept && !may_take_effect && !self.awaits_grants() {
            self.candidate.renumber();
        }
        // The callers for permits have a queue of their own on the channel, joined before.
        let is_counted = self.call.options.permits.is_none();
        let waits = self.candidate.caller.request.waits;
        let session = engine.listeners.session().filter(|_| waits && is_counted);
        let channel = match session {
            // For a command that requests a subscription, the message count is read before it: the
            // listener may subscribe and unsubscribe again before this call registers.
            Some(_) => self.channel(),
            None => {
                let shared = local.known_channel(self.call.rules.listens_to());
                shared.filter(|_| is_counted).or(self.wakeups.own_channel.get())
            }
        };
        let subscription =
            channel.map_or(SubscriptionState::Unsubscribed, |channel| channel.subscription());
        let unsubscribed = channel.is_some() && subscription == SubscriptionState::Unsubscribed;
        let requested_in = session.filter(|_| unsubscribed);
        let message_count = channel.map(|channel| channel.message_count());
        let to_subscribe = channel.filter(|_| requested_in.is_some()).cloned();
        self.schedule.before_attempt(ChannelView { message_count, subscription, requested_in });
        if self.max_holders == 0 {
            self.max_holders = self.threads_to_serve();
        }
        self.command(to_subscribe.as_deref())
    }

    fn command(&self, to_subscribe: Option<&Channel>) -> Call {
        let LockContext { engine, local } = self.context();
        let wake =
            |channel| Wake { control: &engine.settings.control, channel: Channel::name(channel) };
        let command = self.call.rules.acquire(&AcquireArgs {
            name: local.name(),
            owner: &self.candidate.owner,
            lease: self.call.lease(),
            beside: self.candidate.beside.as_ref(),
            waiter_timeout: self.waiter_timeout(),
            fair_waiter_timeout: engine.settings.fair_waiter_timeout,
            capacity: self.call.options.permits.and_then(|permits| permits.capacity),
            place: self.awaits_grants().then(|| self.place_args()),
            max_holders: self.max_holders,
            wake: to_subscribe.map(wake),
        });
        command.replicated()
    }

    /// Returns the place in the queue of a queue lock that the call asks for.
    fn place_args(&self) -> PlaceArgs {
        let engine = &self.context().engine;
        let steps = self.candidate.caller.terms.weight().saturating_sub(1);
        let advance = engine.settings.weight_step.saturating_mul(steps);
        PlaceArgs { terms: engine.watchdog.grant_terms(), advance, known: self.place }
    }

    /// Returns the channel whose messages say that the lock is free.
    fn channel(&self) -> Option<&Arc<Channel>> {
        let LockContext { engine, local } = self.context();
        match self.call.rules.listens_to() {
            ListensTo::OwnChannel => Some(self.wakeups.own_channel.get_or_init(|| {
                engine.channels.channel(&local.name().own_channel(&self.candidate.owner))
            })),
            listens => local.channel(listens, &engine.channels),
        }
    }

    /// Returns the time without a sign of this call after which others may take it for dead.
    ///
    /// `None` for a call that does not wait.
    fn waiter_timeout(&self) -> Option<Duration> {
        let settings = &self.context().engine.settings;
        let least = settings.poll_interval.saturating_mul(2);
        match self.call.options.patience {
            Patience::None => None,
            Patience::Forever => Some(settings.fair_waiter_timeout),
            Patience::Until(end) => {
                Some(self.candidate.started.until(end).clamp(least, settings.fair_waiter_timeout))
            }
        }
    }

    /// Returns the number of threads that may get the hold in turn. Each needs a token.
    fn threads_to_serve(&self) -> u32 {
        if !self.call.rules.has_tokens() || self.call.rules.queueing() == Queueing::None {
            return 1;
        }
        let LockContext { engine, local } = self.context();
        let behind = self.candidate.ticket.map_or(0, |_| local.queue_len().saturating_sub(1));
        let renewed = self.call.options.lease.is_none();
        let most = if renewed { engine.settings.handoff.max_handoffs } else { 0 };
        1 + u32::try_from(behind).unwrap_or(u32::MAX).min(most)
    }

    /// Returns whether a refused attempt takes a place in a queue in Redis.
    fn takes_place_in_redis(&self) -> bool {
        self.call.rules.queues_in_redis() && self.candidate.caller.request.waits
    }

    /// Applies the failure of an attempt; an error if the call cannot go on.
    fn unanswered(&mut self, connection: ConnectionId, failure: Failure) -> Result<()> {
        // A refused script counts too: it may have been refused half-way.
        if failure.is_written() {
            self.leftovers.queued |= self.takes_place_in_redis();
            let copy = self.candidate.copy_on(connection);
            self.leftovers.late_copy.get_or_insert(copy);
        }
        self.failed(failure.into_error())
    }

    /// Plans the next attempt after one that failed; an error if the call cannot go on.
    fn failed(&mut self, error: Error) -> Result<()> {
        let context = &self.call.context;
        context.local.set_last_error(error.is_outage().then(|| error.clone()));
        let pause_end = |error: &Error| context.health().retry_at(clock::now(), error);
        self.schedule.unanswered(error, pause_end)
    }

    fn answered(&mut self, reply: CallReply, generation: Generation) -> Result<Option<HoldHandle>> {
        let (sent, connection) = (reply.sent, reply.connection);
        let not_replicated = reply.not_replicated.clone();
        if self.context().engine.router.generation() != generation {
            // The watchdog renewed the known holds after the change, and did not know this hold.
            self.leftovers.late_copy = Some(self.candidate.copy_on(connection));
            self.schedule.outdated()?;
            return self.attempt(Some(connection));
        }
        // A late copy of a command of this call can take the lock after this reply.
        let (this, effect) = (self.candidate.copy_on(connection), self.effect());
        let copy = self.leftovers.late_copy.or(reply.copies.may_exist().then_some(this));
        self.leftovers.late_copy = copy.filter(|copy| reply.may_precede(copy, effect));
        let offered = self.call.rules.offered(&reply.value);
        let reply = self.call.rules.read_acquire(reply.value);
        let reply = reply.inspect_err(|_| self.leftovers.late_copy = Some(this))?;
        let outcome = self.apply_reply(reply, not_replicated, this, sent, generation);
        self.end_question(offered, matches!(outcome, Ok(Some(_))));
        outcome
    }

    /// Applies a reply of the present servers, which `this` copy of the command got.
    fn apply_reply(
        &mut self,
        reply: AcquireReply,
        not_replicated: Option<Error>,
        this: LateCopy,
        sent: Moment,
        generation: Generation,
    ) -> Result<Option<HoldHandle>> {
        match (reply, not_replicated) {
            (AcquireReply::Granted(_), Some(error)) => {
                self.leftovers.late_copy = Some(this);
                self.failed(error).map(|()| None)
            }
            (AcquireReply::Granted(token), None) => {
                self.granted(sent, this.connection, token, generation)
            }
            (AcquireReply::Exceeds { capacity }, _) => Err(self.too_many(capacity)),
            (AcquireReply::Refused { left, queued }, _) => {
                if let Some(queued) = queued {
                    self.queued(&queued, sent, generation);
                }
                if self.candidate.beside.is_some() {
                    // The server would admit this hold beside the other one of the thread.
                    let LockContext { engine, local } = self.context();
                    engine.watchdog.verify(local);
                }
                self.refused(left, sent);
                Ok(None)
            }
        }
    }

    /// Returns the error for a call that needs more permits than the semaphore has.
    fn too_many(&self, capacity: i64) -> Error {
        let count = self.call.options.permits.map_or(1, |permits| permits.count);
        Error::configuration(match capacity {
            ..=0 => "the semaphore has no capacity: set it by with_permits or resize".to_owned(),
            _ => format!("{count} permits requested, and the semaphore has {capacity}"),
        })
    }

    /// Makes a hold of a grant; returns `None` if its deadline has passed already.
    fn granted(
        &mut self,
        sent: Moment,
        connection: ConnectionId,
        token: u64,
        generation: Generation,
    ) -> Result<Option<HoldHandle>> {
        let (deadline, now) = (hold::deadline(sent, self.call.lease()), clock::now());
        self.call.series().answered(sent.until(now));
        if deadline <= now {
            self.context().local.set_last_error(None);
            self.leftovers.late_copy = Some(self.candidate.copy_on(connection));
            return self.schedule.granted_too_late(now).map(|()| None);
        }
        let last_token = if token == 0 { 0 } else { token + u64::from(self.max_holders - 1) };
        Ok(Some(self.candidate.granted(GrantReply {
            sent,
            at: now,
            lease: self.call.lease(),
            generation,
            late_copy: self.leftovers.late_copy.take(),
            tokens: token..=last_token,
        })))
    }

    /// Notes the place of the call in the queue of a queue lock, and awaits a grant by message.
    fn queued(&mut self, queued: &QueuedReply, sent: Moment, generation: Generation) {
        self.place = Some(queued.place);
        let LockContext { engine, local } = self.context();
        let base = GrantBase { sent, generation, token_bound: queued.token_bound };
        local.is_queued(self.candidate.id.number(), base, queued.terms_since);
        if self.wakeups.awaited_grant.is_none() {
            self.wakeups.awaited_grant = Some(engine.channels.await_message());
        }
    }

    /// Starts the listener for a grant by message. The watchdog already polls for the call.
    ///
    /// If the listener has connected since the attempt, a message may have been missed.
    fn listen_for_grants(&self, left: Option<Duration>) {
        let LockContext { engine, local } = self.context();
        engine.watchdog.plan_next_queue_heartbeat(local, left);
        engine.listen_for_grants();
        let session = engine.channels.session();
        if session.is_some() && session != self.wakeups.session {
            engine.watchdog.plan_queue_heartbeat_now(local);
        }
    }

    /// Prepares the wait after a refusal; `left` is the rest of the holder's lease.
    fn refused(&mut self, left: Option<Duration>, sent: Moment) {
        let (LockContext { engine, local }, waits) =
            (self.context(), self.candidate.caller.request.waits);
        let polled = waits && matches!(self.call.pace(), Pace::Polled | Pace::Granted);
        let now = clock::now();
        self.call.series().answered(sent.until(now));
        if local.refused(sent, now, polled) {
            engine.watchdog.plan_poll(Arc::clone(local));
        }
        if self.call.options.permits.is_some() {
            return self.await_permits(left);
        }
        if self.awaits_grants() {
            self.listen_for_grants(left);
        }
        if left.is_none() && !std::mem::replace(&mut self.reports.warned, true) {
            let (name, kind) = (local.name().given(), self.call.rules.kind());
            log::warn!(
                logger: LINES, target: log_target::LEASE, lock = &**name, kind:?;
                "the lock {name:?} is held without a time to live: it stays held until it is freed"
            );
        }
        // A lock that is granted by message is not asked for at the end of the holder's lease.
        let left = left.filter(|_| !self.awaits_grants());
        self.schedule.refused(clock::now(), left);
        let Some(channel) = self.channel().filter(|_| waits).cloned() else { return };
        if self.wakeups.registration.is_none() {
            let registration = channel.register(&self.candidate.caller.parker);
            self.schedule.registered(&registration, &channel, engine.listeners.session());
            self.wakeups.registration = Some(registration);
        }
        engine.request_subscription(&channel);
    }

    /// Prepares the wait for permits; the next one expires after `left`.
    ///
    /// The queue of the channel wakes the call; its poll has to ask at the expiry.
    fn await_permits(&mut self, left: Option<Duration>) {
        let LockContext { engine, local } = self.context();
        self.schedule.refused(clock::now(), None);
        if self.wakeups.permits.is_some()
            && let Some(channel) = self.channel()
        {
            engine.watchdog.plan_poll_at_expiry(local, left);
            engine.subscribe(channel);
        }
    }

    /// Returns how long a hold or a place in Redis would last that the call leaves behind.
    fn effect(&self) -> Duration {
        let place = self.waiter_timeout().filter(|_| self.leftovers.queued).unwrap_or_default();
        self.call.lease().max(place)
    }

    /// Undoes what the attempts have left at the server, or may leave there yet.
    ///
    /// Sends a background request, on the connection on which an acquire command may run late.
    pub(super) fn clean_up(&mut self, acquired: bool) {
        let late_copy = self.leftovers.late_copy.take();
        let place = self.wakeups.permits.take();
        let has_claimed = place.is_some_and(|place| place.has_claimed());
        if late_copy.is_none() && (acquired || !self.leftovers.queued && !has_claimed) {
            return;
        }
        self.candidate.undo(late_copy, self.waiter_timeout(), self.effect());
    }
}
