//! The question of a call for a lock or for permits: the state of the call, and its attempts.
//!
//! The steps of a call:
//! 1. A thread that holds the lock already counts one more guard, and perhaps extends the lease.
//! 2. The caller joins the queue of this process (`local/`). It sleeps until it is the head of the
//!    queue or a hold is handed off to it. Kinds without that queue, such as the fair lock, skip
//!    this step: each of their callers asks the server.
//! 3. The head of the queue sends the acquire command. If the server grants the lock and the reply
//!    arrives before the new deadline, the call is done.
//! 4. A refused call registers at the lock's channel and requests the subscription. It sleeps until
//!    the channel counts a message, the holder's lease ends, or a poll of the watchdog finds the
//!    lock free; then it tries again. A message between the command and the sleep is not missed
//!    (`transport/listener/channels.rs`). Without a process queue the call itself polls at the poll
//!    interval; without a channel (the spin lock) it tries again after a growing pause. A call for
//!    a queue lock sleeps until a message or a queue heartbeat grants the lock
//!    (`local/waiters.rs`).
//! 5. A call that a message woke and the server refused again has lost a race against other
//!    processes. It ignores messages for a short, growing, jittered time and then tries once.
//! 6. An attempt without a reply ends the call with an error, unless the server has refused the
//!    call before. In that case the call repeats the attempt, with pauses, until its deadline.
//!
//! Attempts that may take effect, now or later, name the same hold, so a repeated command does no
//! harm. After a refusal that leaves nothing behind, the next attempt names a new hold: the number
//! of a hold tells the time of its acquisition. A waiter with a place in Redis keeps its number. A
//! call that leaves without the lock releases the hold behind any command that may still run, on
//! the same connection.
//!
//! A reply counts only if no topology change happened since the command was sent; otherwise the
//! command is sent again. A grant counts only if its deadline lies ahead when the reply is read.
//! Every other end of an attempt may leave an effect at the server, now or later ([`Leftovers`]),
//! which the clean-up undoes.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::call::JoinResult;
use crate::acquire::{AcquireCall, Acquirer, GrantReply, HoldHandle, LockContext, Taken};
use crate::cancel::CancelWatch;
use crate::error::{Error, Result};
use crate::events::{Event, Waited};
use crate::kind::rules::{
    AcquireArgs, AcquireReply, ListensTo, Pace, Place, PlaceArgs, QueuedReply, Queueing, Wake,
};
use crate::local::hold::{self, Hold};
use crate::local::mailbox::News;
use crate::local::permit_queue::PermitWaiter;
use crate::local::permits::PermitPlace;
use crate::local::waiters::{GrantBase, WaiterGrant};
use crate::local::{Turn, YieldsTo};
use crate::transport::call::{Call, ConnectionId, LateCopy};
use crate::transport::listener::channels::{
    AwaitedMessage, Channel, ListenerSession, Registration, SubscriptionState,
};
use crate::transport::pool::Target;
use crate::transport::pool::request::{CallReply, Failure};
use crate::transport::reply::Reply;
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment, Patience};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Parker;
use crate::wait::own_guard::OwnGuardWarning;
use crate::wait::schedule::{ChannelView, RetrySchedule};
use crate::wait::{Question, Step, wait_for};

/// The number of callers that may have a fenced hold that lingers, one after the other.
///
/// Even callers without any work between take about one token per microsecond then. So tokens stay
/// behind the server's time, from which they go on if the counter is lost.
const LINGERING_HOLDERS: u32 = 128;

/// The question of one call for a lock or for permits.
pub(super) struct LockQuestion<'a> {
    call: &'a AcquireCall<'a>,
    acquirer: Acquirer<'a>,
    /// Whether the call has left the queue and the loop.
    has_left: bool,
    /// Whether the call has begun to wait.
    has_slept: bool,
    /// The number of threads that may have the hold, one after the other; zero before the first
    /// attempt.
    max_holders: u32,
    /// The reply of a server that there is nothing to take.
    settled: Option<Reply>,
    leftovers: Leftovers,
    /// The place in the queue of a queue lock, as the server last reported it.
    place: Option<Place>,
    schedule: RetrySchedule,
    /// What the next attempt has to know.
    upcoming: Upcoming,
    wakeups: Wakeups,
    reports: Reports,
}

/// What made the next attempt due.
#[derive(Default)]
struct Upcoming {
    /// The connection of a release without a reply, which the acquire command has to follow.
    connection: Option<ConnectionId>,
    /// A grant by message, which may make the command unnecessary.
    grant: Option<WaiterGrant>,
}

/// Effects of earlier attempts at the server, for the clean-up to undo.
#[derive(Default)]
struct Leftovers {
    /// A copy of an acquire command that may still run.
    late_copy: Option<LateCopy>,
    /// Whether the call may have a place in a queue in Redis.
    queued: bool,
    /// Whether the call may be announced to others at a read-write lock.
    announced: bool,
}

/// The registrations that wake a sleeping call.
#[derive(Default)]
struct Wakeups {
    /// The registration at the lock's channel, from the first refusal on.
    registration: Option<Registration>,
    /// The place among the callers of this process that wait for permits, from the first question
    /// on.
    permits: Option<PermitPlace>,
    /// The channel of this call alone, for kinds that have such channels.
    own_channel: OnceCell<Arc<Channel>>,
    /// The listener's session before the last attempt, for a call that awaits a grant by message.
    session: Option<ListenerSession>,
    /// Keeps the listener connected for a grant by message, from the first refusal on.
    awaited_grant: Option<AwaitedMessage>,
}

/// Facts about a call for the log and the events.
#[derive(Default)]
struct Reports {
    /// Whether the call slept because of other holders or callers.
    waited: bool,
    /// Whether the warning about a lock without a time to live was logged.
    warned: bool,
    own_guard: OwnGuardWarning,
}

impl Drop for LockQuestion<'_> {
    /// Leaves the queue and cleans up after a panic, of an allocation for example.
    fn drop(&mut self) {
        if !self.has_left {
            self.leave_without_hold();
            self.clean_up(false);
        }
    }
}

impl<'a> LockQuestion<'a> {
    pub(super) fn new(acquirer: Acquirer<'a>, now: Moment) -> LockQuestion<'a> {
        let (call, seed) = (acquirer.call, acquirer.id.seed());
        let settings = &call.context.engine.settings;
        let (poll_interval, back_off) = (settings.poll_interval, settings.back_off);
        LockQuestion {
            call,
            acquirer,
            has_left: false,
            has_slept: false,
            max_holders: 0,
            settled: None,
            leftovers: Leftovers::default(),
            place: None,
            schedule: RetrySchedule::new(now, poll_interval, back_off, seed, call.rules.pace()),
            upcoming: Upcoming::default(),
            wakeups: Wakeups::default(),
            reports: Reports::default(),
        }
    }

    fn context(&self) -> &'a LockContext {
        self.call.context
    }

    /// Asks until the end of the call, undoes what it leaves behind, and reports the outcome.
    pub(super) fn run(mut self) -> Result<Taken> {
        // Another thread may hand the hold off at the moment at which this call gives up. The call
        // then takes the hold. A call that needs none discards the handle, which hands the hold off
        // again or releases it.
        let outcome = match (wait_for(&mut self), self.settled.take()) {
            (Ok(Some(handle)), _) => Ok(Taken::Held(handle)),
            (Ok(None), None) => Ok(self.leave().map_or(Taken::InVain, Taken::Held)),
            (Ok(None), Some(reply)) => {
                self.leave_without_hold();
                self.call.series().found_done();
                Ok(Taken::Settled(reply))
            }
            (Err(error), _) => {
                self.leave_without_hold();
                Err(error)
            }
        };
        self.has_left = true;
        let acquired = match &outcome {
            Ok(Taken::Held(handle)) => Some(handle),
            _ => None,
        };
        self.clean_up(acquired.is_some());
        self.report(acquired);
        outcome
    }

    fn leave_without_hold(&mut self) {
        if let Some(handle) = self.leave() {
            handle.discard();
        }
    }

    /// Leaves the queue. Returns a valid hold that was handed off in the meantime.
    ///
    /// The clean-up passes a grant by message on to the next waiter.
    fn leave(&mut self) -> Option<HoldHandle> {
        self.has_left = true;
        if self.awaits_grants() {
            self.context().local.stop_waiting(self.acquirer.id.number());
        }
        self.acquirer.leave()
    }

    /// Warns of a long wait for an owned guard that this thread took. Returns the next check.
    ///
    /// A call that ends now waits no more.
    fn warn_of_own_guard(&mut self, now: Moment) -> Moment {
        if self.is_over(now) {
            return Moment::END;
        }
        let (local, kind) = (&self.context().local, self.call.rules.kind());
        let Acquirer { caller, owner, started, .. } = &self.acquirer;
        let awaits = || local.awaits_own_guard(caller, owner, now);
        let deadline = self.call.options.return_by;
        let (owned, name) = (caller.request.owned, &**local.name().given());
        self.reports.own_guard.check(*started, now, deadline, owned, awaits, (name, kind))
    }

    /// Returns whether a server may grant the lock to this call by message.
    fn awaits_grants(&self) -> bool {
        self.acquirer.caller.request.waits && self.call.rules.listens_to() == ListensTo::Grants
    }

    /// Takes a hold that another thread handed off.
    ///
    /// Joins the queue again and returns `None` if the hold was lost before this thread woke.
    fn take_handed_off(&mut self, hold: Arc<Hold>, now: Moment) -> Result<Option<HoldHandle>> {
        let handle = self.call.handle(hold);
        if let Err(error) = self.call.check_not_ended() {
            handle.discard();
            return Err(error);
        }
        let Acquirer { caller, ticket, .. } = &mut self.acquirer;
        if handle.is_held() {
            *ticket = None;
            handle.watch_limit();
            return Ok(Some(handle));
        }
        drop(handle);
        match self.call.join_queue(caller, now)? {
            JoinResult::Queue(place) => *ticket = Some(place),
            JoinResult::Refused => {}
            JoinResult::TookOver(handle) => {
                *ticket = None;
                return Ok(Some(handle));
            }
        }
        Ok(None)
    }

    /// Emits the events of a call that has ended.
    fn report(&self, acquired: Option<&HoldHandle>) {
        let LockContext { engine, local } = self.context();
        let waited = self.acquirer.started.until(clock::now());
        if let Some(handle) = acquired {
            local.report_acquired(handle.hold(), waited);
        }
        if self.reports.waited {
            let hold = acquired.map(|handle| handle.hold().id().number());
            let (kind, acquired) = (self.call.rules.kind(), hold.is_some());
            engine.events.emit_with(self.call.settings.listener(), || {
                let (at, name) = (clock::wall_time(), Arc::clone(local.name().given()));
                Event::Waited(Waited { at, name, kind, hold, waited, acquired })
            });
        }
    }
}

impl Question for LockQuestion<'_> {
    type Yes = HoldHandle;

    fn next(&mut self, now: Moment) -> Result<Step<HoldHandle>> {
        self.upcoming = Upcoming::default();
        let must_ask = loop {
            match self.acquirer.caller.mailbox.take() {
                News::HandedOff(hold) => {
                    if let Some(handle) = self.take_handed_off(hold, now)? {
                        return Ok(Step::Done(handle));
                    }
                }
                News::Granted(grant) => {
                    self.upcoming.grant = Some(grant);
                    return Ok(Step::AskAtLeastOnce);
                }
                News::Ask => break true,
                News::None => break false,
            }
        };
        let yields_to_nobody = must_ask || self.schedule.was_refused();
        let yields = if yields_to_nobody { YieldsTo::Nobody } else { self.call.yields_to(now) };
        let sleep_until = match self.context().local.turn(self.acquirer.ticket, now, yields) {
            Turn::Behind => {
                self.schedule.wait_behind();
                Moment::END
            }
            Turn::Yield(end) => return Ok(Step::Yield(end)),
            Turn::Ask { held_here, connection } => {
                let is_due = if must_ask {
                    self.schedule.found_free(held_here);
                    true
                } else if held_here {
                    self.rely_on_polls();
                    self.schedule.is_due_while_held_here(now)
                } else {
                    let registration = self.wakeups.registration.as_ref();
                    self.schedule.is_due(now, registration.map(Registration::message_count))
                };
                if is_due {
                    self.upcoming.connection = connection;
                    return Ok(self.schedule.ask());
                }
                if held_here { self.schedule.next_poll() } else { self.schedule.next_attempt() }
            }
        };
        Ok(Step::Sleep(sleep_until.min(self.warn_of_own_guard(now))))
    }

    fn ask(&mut self) -> Result<Option<HoldHandle>> {
        let Upcoming { connection, grant } = std::mem::take(&mut self.upcoming);
        match grant {
            Some(grant) => self.take_grant(&grant),
            None => self.attempt(connection),
        }
    }

    /// The lock may have been free if the last attempt of this call, of the call at the head of the
    /// queue, or the last queue heartbeat got no reply. The error of these is then the outcome.
    fn give_up(&mut self) -> Result<Option<HoldHandle>> {
        if self.settled.is_some() {
            return Ok(None);
        }
        let own = self.schedule.take_error();
        let of_others = || self.context().local.last_error(clock::now());
        own.or_else(of_others).map_or(Ok(None), Err)
    }

    fn patience(&self) -> Patience {
        self.call.options.patience
    }

    fn is_over(&self, now: Moment) -> bool {
        self.settled.is_some() || self.patience().is_over(now)
    }

    fn check_not_ended(&self) -> Result<()> {
        self.call.check_not_ended()
    }

    fn watch(&mut self) -> Result<Vec<CancelWatch>> {
        self.has_slept = true;
        // The threads ahead in the queue do not exist in a forked child.
        let engine = &self.context().engine;
        engine.router.check_process()?;
        Ok(engine.watch_ends(self.call.options.cancel, self.parker()))
    }

    fn parker(&self) -> &Arc<Parker> {
        self.acquirer.caller.mailbox.parker()
    }

    fn waits(&mut self) {
        if !self.reports.waited {
            self.reports.waited = true;
            if let Some(record) = self.call.options.record {
                record.waits(self.acquirer.started);
            }
        }
    }
}

/// The attempts: the acquire command, its reply, and the clean-up.
impl LockQuestion<'_> {
    /// Sends the acquire command once and applies its reply.
    ///
    /// Returns `None` if the lock was refused, or if there was no reply and the call goes on.
    fn attempt(&mut self, connection: Option<ConnectionId>) -> Result<Option<HoldHandle>> {
        self.acquirer.caller.mailbox.begin_question();
        let command = self.prepare();
        let router = &self.context().engine.router;
        let copy = self.leftovers.late_copy.map(|copy| copy.connection);
        let target = copy.map_or(Target::prefer(connection), Target::Only);
        let generation = router.generation();
        if self.awaits_grants() {
            // A grant by message can come before the reply.
            self.wakeups.session = self.context().engine.channels.session();
            let base = GrantBase { sent: clock::now(), generation, token_bound: 0 };
            let (id, mailbox) = (self.acquirer.id, &self.acquirer.caller.mailbox);
            self.context().local.await_grant(id.number(), self.call.rules, mailbox, base);
        }
        self.begin_question();
        if (self.schedule.was_refused() || self.call.options.is_repeated)
            && let Some(error) = self.context().pause_error()
        {
            return self.failed(error).map(|()| None);
        }
        let pending = router.queue(command, target);
        match router.wait(pending, &self.call.limit()) {
            (_, Ok(reply)) => {
                self.leftovers.queued |= self.takes_place_in_redis();
                self.leftovers.announced |= self.is_announced();
                let outcome = self.answered(reply, generation)?;
                if outcome.is_none() && self.schedule.was_refused() && self.ends_dead_holds() {
                    return self.attempt(None);
                }
                Ok(outcome)
            }
            (connection, Err(failure)) => self.unanswered(connection, failure).map(|()| None),
        }
    }

    /// Joins the callers of this process that wait for permits, before the first question.
    fn begin_question(&mut self) {
        let Acquirer { call, caller, owner, started, .. } = &self.acquirer;
        let (Some(permits), true) = (owner.permits(), caller.request.waits) else { return };
        let LockContext { engine, local } = &**call.context;
        let place = self.wakeups.permits.get_or_insert_with(|| {
            local.permits(&engine.channels).join(PermitWaiter {
                permits: permits.count(),
                since: *started,
                mailbox: Arc::clone(&caller.mailbox),
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
        if may_claim && let Some(permits) = self.acquirer.owner.permits() {
            engine.watchdog.withdraw_claim(local, permits.claimant());
        }
        if granted {
            self.wakeups.permits = None;
        }
        if let (Some(offered @ 1..), Some(callers)) = (offered, local.known_permits()) {
            callers.offer(offered);
        }
    }

    /// Takes a hold that a server granted by message.
    ///
    /// Asks the server instead if the grant has expired, if the topology has changed since, or if
    /// the call needs more than the grant: another lease, or the acknowledgements of replicas.
    fn take_grant(&mut self, grant: &WaiterGrant) -> Result<Option<HoldHandle>> {
        let (engine, now) = (&self.context().engine, clock::now());
        let is_valid = now < grant.deadline() && grant.generation == engine.router.generation();
        let suffices = self.call.options.lease.is_none() && !engine.settings.needs_replicas;
        if !(is_valid && suffices) {
            return self.attempt(None);
        }
        Ok(Some(self.acquirer.granted(GrantReply {
            sent: grant.sent,
            at: now,
            lease: grant.lease,
            generation: grant.generation,
            late_copy: self.leftovers.late_copy.take(),
            tokens: grant.token..=grant.token,
            slots: Box::default(),
        })))
    }

    /// Gives the schedule the state of the channel, and returns the acquire command.
    fn prepare(&mut self) -> Call {
        let LockContext { engine, local } = self.context();
        let may_take_effect = self.leftovers.late_copy.is_some() || self.leftovers.queued;
        if self.has_slept && !may_take_effect && !self.awaits_grants() {
            self.acquirer.renumber();
            self.max_holders = 0;
        }
        // The callers for permits have a queue of their own on the channel, joined before.
        let is_counted = self.call.options.permits.is_none();
        let waits = self.acquirer.caller.request.waits;
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
            owner: &self.acquirer.owner,
            lease: self.call.lease(),
            beside: self.acquirer.beside.as_ref(),
            waiter_timeout: self.waiter_timeout(),
            fair_waiter_timeout: engine.settings.fair_waiter_timeout,
            capacity: self.capacity(),
            with_slots: self.call.options.permits.is_some_and(|permits| permits.with_slots),
            asks_capacity: self.capacity().is_some_and(|wanted| !local.knows_capacity(wanted)),
            place: self.awaits_grants().then(|| self.place_args()),
            max_holders: self.max_holders,
            announced: self.announced(),
            wake: to_subscribe.map(wake),
        });
        command.replicated()
    }

    /// Returns how long others at a read-write lock know that the call waits.
    fn announced(&self) -> Option<Duration> {
        let waits = self.acquirer.caller.request.waits;
        let span =
            if waits { self.context().engine.settings.poll_interval } else { Duration::ZERO };
        (!self.call.settings.prefers_readers()).then_some(span)
    }

    /// Returns the capacity that the call sets if the semaphore has none.
    fn capacity(&self) -> Option<u32> {
        self.call.options.permits.and_then(|permits| permits.capacity)
    }

    /// Returns the place in the queue of a queue lock that the call asks for.
    fn place_args(&self) -> PlaceArgs {
        let engine = &self.context().engine;
        let steps = self.acquirer.caller.settings.weight().saturating_sub(1);
        let advance = engine.settings.weight_step.saturating_mul(steps);
        PlaceArgs { terms: engine.watchdog.grant_terms(), advance, known: self.place }
    }

    /// Returns the channel whose messages say that the lock is free.
    fn channel(&self) -> Option<&Arc<Channel>> {
        let LockContext { engine, local } = self.context();
        match self.call.rules.listens_to() {
            ListensTo::OwnChannel => Some(self.wakeups.own_channel.get_or_init(|| {
                engine.channels.channel(&local.name().own_channel(&self.acquirer.owner))
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
                Some(self.acquirer.started.until(end).clamp(least, settings.fair_waiter_timeout))
            }
        }
    }

    /// Returns the number of threads that may get the hold in turn. Each needs a token.
    fn threads_to_serve(&self) -> u32 {
        if !self.call.rules.has_tokens() || self.call.rules.queueing() == Queueing::None {
            return 1;
        }
        if self.acquirer.id.may_linger() {
            return LINGERING_HOLDERS;
        }
        let LockContext { engine, local } = self.context();
        let behind = self.acquirer.ticket.map_or(0, |_| local.queue_len().saturating_sub(1));
        let renewed = self.call.options.lease.is_none();
        let most = if renewed { engine.settings.handoff.max_handoffs } else { 0 };
        1 + u32::try_from(behind).unwrap_or(u32::MAX).min(most)
    }

    /// Returns whether a refused attempt takes a place in a queue in Redis.
    fn takes_place_in_redis(&self) -> bool {
        self.call.rules.queues_in_redis() && self.acquirer.caller.request.waits
    }

    /// Returns whether a refused attempt of the call is announced to others.
    fn is_announced(&self) -> bool {
        let waits = self.announced().is_some_and(|span| !span.is_zero());
        waits && self.call.rules.announces_waits()
    }

    /// Applies the failure of an attempt; an error if the call cannot go on.
    fn unanswered(&mut self, connection: ConnectionId, failure: Failure) -> Result<()> {
        // A refused script counts too: it may have been refused half-way.
        if failure.is_written() {
            self.leftovers.queued |= self.takes_place_in_redis();
            let copy = self.acquirer.copy_on(connection);
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

    /// Applies a reply. That of a former server does not count: the command is sent again.
    fn answered(&mut self, reply: CallReply, generation: Generation) -> Result<Option<HoldHandle>> {
        let (sent, connection) = (reply.sent, reply.connection);
        let not_replicated = reply.not_replicated.clone();
        if self.context().engine.router.generation() != generation {
            // The watchdog renewed the known holds after the change, and did not know this hold.
            self.leftovers.late_copy = Some(self.acquirer.copy_on(connection));
            self.schedule.outdated()?;
            return self.attempt(Some(connection));
        }
        // A late copy of a command of this call can take the lock after this reply.
        let (this, effect) = (self.acquirer.copy_on(connection), self.effect());
        let copy = self.leftovers.late_copy.or(reply.copies.may_exist().then_some(this));
        self.leftovers.late_copy = copy.filter(|copy| reply.may_precede(copy, effect));
        let offered = self.call.rules.offered(&reply.value);
        let other_capacity = self.call.rules.other_capacity(&reply.value);
        let slots = self.call.rules.slots(&reply.value);
        let reply = self.call.rules.read_acquire(reply.value);
        let reply = reply.inspect_err(|_| self.leftovers.late_copy = Some(this))?;
        if !matches!(reply, AcquireReply::Exceeds { .. }) {
            self.note_capacity(other_capacity);
        }
        let outcome = match (reply, not_replicated) {
            (AcquireReply::Granted(_), Some(error)) => {
                self.leftovers.late_copy = Some(this);
                self.failed(error).map(|()| None)
            }
            (AcquireReply::Granted(token), None) => {
                self.granted(sent, connection, (token, slots), generation)
            }
            (AcquireReply::Exceeds { capacity }, _) => Err(self.too_many(capacity)),
            (AcquireReply::Settled(reply), _) => {
                self.settled = Some(reply);
                self.call.series().answered(sent.until(clock::now()));
                self.context().local.set_last_error(None);
                Ok(None)
            }
            (AcquireReply::Refused { left, queued }, _) => {
                if let Some(queued) = queued {
                    self.queued(&queued, sent, generation);
                }
                if self.acquirer.beside.is_some() {
                    // The server would admit this hold beside the other one of the thread.
                    let LockContext { engine, local } = self.context();
                    engine.watchdog.verify(local);
                }
                self.refused(left, sent);
                Ok(None)
            }
        };
        self.end_question(offered, matches!(outcome, Ok(Some(_))));
        outcome
    }

    /// Logs that the capacity of a semaphore is not that of the handle. `other` is this capacity.
    ///
    /// Later calls of this process do not ask for what they know.
    fn note_capacity(&self, other: Option<i64>) {
        let local = &self.context().local;
        let Some(wanted) = self.capacity().filter(|wanted| !local.knows_capacity(*wanted)) else {
            return;
        };
        let warns = local.learn_capacity(wanted, other.is_some());
        let Some(capacity) = other.filter(|_| warns) else { return };
        let name = local.name().given();
        log::warn!(
            logger: LINES, target: log_target::LEASE, lock = &**name, capacity, wanted;
            "the semaphore {name:?} has {capacity} permits already, and not {wanted} as with_permits \
             says: Semaphore::resize changes that"
        );
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
        (token, slots): (u64, Box<[u32]>),
        generation: Generation,
    ) -> Result<Option<HoldHandle>> {
        let (deadline, now) = (hold::deadline(sent, self.call.lease()), clock::now());
        self.call.series().answered(sent.until(now));
        if deadline <= now {
            self.context().local.set_last_error(None);
            self.leftovers.late_copy = Some(self.acquirer.copy_on(connection));
            return self.schedule.granted_too_late(now).map(|()| None);
        }
        let last_token = if token == 0 { 0 } else { token + u64::from(self.max_holders - 1) };
        Ok(Some(self.acquirer.granted(GrantReply {
            sent,
            at: now,
            lease: self.call.lease(),
            generation,
            late_copy: self.leftovers.late_copy.take(),
            tokens: token..=last_token,
            slots,
        })))
    }

    /// Notes the place of the call in the queue of a queue lock, and awaits a grant by message.
    fn queued(&mut self, queued: &QueuedReply, sent: Moment, generation: Generation) {
        self.place = Some(queued.place);
        let LockContext { engine, local } = self.context();
        let base = GrantBase { sent, generation, token_bound: queued.token_bound };
        local.is_queued(self.acquirer.id.number(), base, queued.terms_since);
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

    /// Looks for holders whose process is gone, if no poll of the watchdog does so for the call.
    ///
    /// Returns whether their holds have been ended: the call then asks again at once.
    fn ends_dead_holds(&self) -> bool {
        let LockContext { engine, local } = self.context();
        let next_poll = clock::now() + engine.settings.poll_interval;
        if self.relies_on_polls() && self.call.options.patience.end() > next_poll {
            return false;
        }
        let has_permits = self.call.options.permits.is_some();
        // The attempt and the look together take one response time-out at most.
        let end = self.acquirer.started + engine.settings.response_timeout;
        let limit = self.call.limit();
        let limit = if self.has_slept { limit } else { limit.no_later_than(end) };
        engine.watchdog.ends_dead_holds_of(local, has_permits, &limit)
    }

    /// Prepares the wait after a refusal; `left` is the rest of the holder's lease.
    fn refused(&mut self, left: Option<Duration>, sent: Moment) {
        let (LockContext { engine, local }, waits) =
            (self.context(), self.acquirer.caller.request.waits);
        let now = clock::now();
        self.call.series().answered(sent.until(now));
        local.refused(sent, now);
        self.rely_on_polls();
        if self.call.options.permits.is_some() {
            return self.await_permits(left);
        }
        if self.call.rules.queueing() == Queueing::None {
            // This caller is in no queue, so no hold of this process passes to it.
            local.end_linger_times();
            if local.has_idle_hold() {
                engine.watchdog.give_up(local, None);
            }
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
            let registration = channel.register(self.acquirer.caller.mailbox.parker());
            self.schedule.registered(&registration, &channel, engine.listeners.session());
            self.wakeups.registration = Some(registration);
        }
        engine.request_subscription(&channel);
    }

    /// Has the watchdog poll for the call, if the call waits and its kind relies on that.
    fn rely_on_polls(&self) {
        let LockContext { engine, local } = self.context();
        if self.relies_on_polls() {
            engine.watchdog.poll_for(local);
        }
    }

    fn relies_on_polls(&self) -> bool {
        let polled = matches!(self.call.rules.pace(), Pace::WatchdogPolls | Pace::Granted);
        self.acquirer.caller.request.waits && polled
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
    fn clean_up(&mut self, acquired: bool) {
        let late_copy = self.leftovers.late_copy.take();
        let place = self.wakeups.permits.take();
        let has_claimed = place.is_some_and(|place| place.has_claimed());
        let leaves = self.leftovers.queued || self.leftovers.announced || has_claimed;
        if late_copy.is_none() && (acquired || !leaves) {
            return;
        }
        self.acquirer.undo(late_copy, self.waiter_timeout(), self.effect());
    }
}
