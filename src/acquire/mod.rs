//! The one wait loop, for every kind of lock and every verb.
//!
//! What a caller goes through:
//! 1. It holds the lock already: a count, and perhaps a longer lease.
//! 2. It stands in line at the gate (`local.rs`) and sleeps until it is the front,
//!    or a hold was passed to it. (Not for a kind without a gate, such as the fair lock:
//!    there each caller asks by itself.)
//! 3. As the front it asks the server. Granted: done, if the lease is not over by
//!    the time the answer is read.
//! 4. Refused: it registers with the lock's channel, has it subscribed, and sleeps
//!    until there is news there, the holder's lease is over, or the watchdog has found
//!    the lock free, which looks at the poll interval; then it asks again. News between a
//!    question and the sleep is not missed (`waiters.rs`). Without a gate it asks itself at
//!    the poll interval; without a channel (the spin lock) after a pause that grows.
//! 5. One that was woken by a message and refused again has lost a race against
//!    other processes. It ignores messages for a short, growing, jittered while and
//!    then asks once.
//! 6. No answer: the first question of a call fails with the error. Later ones are
//!    tried again, with pauses, until the deadline.
//!
//! One hold number serves all questions of a call, so a question may be asked twice
//! without harm. Whoever leaves without the lock and has a question open has its
//! hold released, in the same line to the server: behind whatever may still run.

mod release;
mod release_outcome;
mod schedule;

pub(crate) use release::{HoldHandle, LockContext, PendingRelease, checked_lease, not_held};
pub(crate) use schedule::MAX_OUTDATED_ANSWERS;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::schedule::{Pace, RetrySchedule};
use crate::cancel::{CancelToken, CancelWatch, Limit};
use crate::command::call::{Call, ConnectionId};
use crate::command::owner::{HoldId, Holder, Owner, ThreadId};
use crate::engine::ActiveCall;
use crate::error::{Error, Result};
use crate::events::{Acquired, Event, Waited};
use crate::kind::rules::{AcquireArgs, AcquireReply, KindRules, ListensTo, Queueing, Wake};
use crate::listener::channels::{Channel, SubscriptionState, Waiting};
use crate::local::hold::{self, Grant, Hold};
use crate::local::queue::Ticket;
use crate::local::table::{EntryOutcome, EntryRequest};
use crate::local::{Caller, Turn};
use crate::pool::Target;
use crate::pool::request::{Answer, BackgroundTask, Request};
use crate::topology::route::Generation;
use crate::util::clock::{self, Moment, Patience};

#[cfg(all(test, leasehold_model))]
mod model;

/// Time after the caller's deadline in which the last reply may still arrive.
///
/// A call that sends its last command shortly before its deadline can so report whether the lock
/// was free.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_millis(50);

/// The choices of one call: the kind of guard, the lease, and what ends the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireOptions<'a> {
    /// The length of a fixed lease; `None` for a lease that the watchdog renews.
    pub(crate) lease: Option<Duration>,
    /// Whether the hold belongs to a guard and to no thread.
    pub(crate) owned: bool,
    /// The holder to record, if it is not the calling thread.
    pub(crate) on_behalf: Option<&'a Holder>,
    /// How long the call waits for the lock.
    pub(crate) patience: Patience,
    /// The moment at which the caller expects the call to return; `patience` may end earlier.
    pub(crate) return_by: Moment,
    pub(crate) cancel: Option<&'a CancelToken>,
}

impl AcquireOptions<'_> {
    /// Returns options for a renewed lease and the calling thread.
    pub(crate) fn new(patience: Patience) -> Self {
        AcquireOptions {
            lease: None,
            owned: false,
            on_behalf: None,
            patience,
            return_by: patience.deadline(),
            cancel: None,
        }
    }
}

/// One call of an acquiring verb: a lock and the options of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireCall<'a> {
    pub(crate) context: &'a Arc<LockContext>,
    pub(crate) rules: &'static dyn KindRules,
    /// The owner field that the program chose, for a named holder.
    pub(crate) holder_name: Option<&'a Arc<str>>,
    pub(crate) options: AcquireOptions<'a>,
}

impl<'a> AcquireCall<'a> {
    /// Returns the same call with another patience.
    ///
    /// The call still returns by the moment that its caller expects.
    pub(crate) fn with_patience(mut self, patience: Patience) -> AcquireCall<'a> {
        self.options.patience = patience;
        self
    }
}

impl AcquireCall<'_> {
    /// Gets the lock, or does not: `None` if the caller's patience ended.
    pub(crate) fn acquire(&self) -> Result<Option<HoldHandle>> {
        self.ask().map_err(|error| self.named(error))
    }

    /// The error with the name of the lock.
    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(self.context.local.name().given()))
    }

    fn ask(&self) -> Result<Option<HoldHandle>> {
        let now = clock::now();
        self.check_not_ended()?;
        let (rules, owned, renewed) =
            (self.rules, self.options.owned, self.options.lease.is_none());
        let waits = self.options.patience != Patience::None;
        let endless = self.options.patience == Patience::Forever && self.options.cancel.is_none();
        let request = EntryRequest { rules, owned, waits, endless, renewed };
        let entry = self.context.local.enter(&request, self.holder_name, self.thread(), now);
        if entry.as_ref().is_err_and(Error::is_deadlock) {
            // In a forked child the one in the way is the parent's.
            self.context.engine.router.check_process()?;
        }
        let beside = match entry? {
            EntryOutcome::Reentered(lease) => return self.re_enter(self.handle(lease)).map(Some),
            EntryOutcome::Beside(owner) => Some(owner),
            EntryOutcome::New => None,
            EntryOutcome::Busy => return self.context.engine.router.check_process().map(|()| None),
        };
        self.context.engine.ready(&self.limit())?;
        let caller = Caller::of(request, self.options.on_behalf);
        if self.rules.queueing() == Queueing::None {
            return Acquire::new(self, caller, None, beside, now).run();
        }
        match self.context.local.join_queue(caller.clone(), now) {
            Some(ticket) => Acquire::new(self, caller, Some(ticket), beside, now).run(),
            None => self.context.engine.router.check_process().map(|()| None),
        }
    }

    fn thread(&self) -> ThreadId {
        self.options.on_behalf.and_then(Holder::thread).unwrap_or_else(ThreadId::current)
    }

    /// How long the lease is that it asks for.
    pub(crate) fn term(&self) -> Duration {
        self.options.lease.unwrap_or(self.context.engine.settings.watchdog_timeout)
    }

    /// How soon one that was refused asks again.
    fn pace(&self) -> Pace {
        match (self.rules.listens_to(), self.rules.queueing()) {
            (ListensTo::Nothing, _) => Pace::BackOff(self.context.engine.settings.back_off),
            (_, Queueing::None) => Pace::Unaided,
            (_, Queueing::InProcess) => Pace::Polled,
        }
    }

    /// When a question has to be answered.
    pub(crate) fn limit(&self) -> Limit<'_> {
        let engine = &self.context.engine;
        let answered = engine.bound().end();
        Limit::at(answered.min(self.options.return_by + ANSWER_GRACE))
            .or_closed(&engine.closing)
            .or_cancelled(self.options.cancel)
    }

    /// An error if the client was closed or the wait cancelled.
    pub(crate) fn check_not_ended(&self) -> Result<()> {
        self.context.engine.check_open()?;
        self.options.cancel.map_or(Ok(()), CancelToken::check)
    }

    pub(crate) fn handle(&self, lease: Arc<Hold>) -> HoldHandle {
        HoldHandle::new(Arc::clone(self.context), lease)
    }

    /// A nested guard: sees to the lease that it wants. The hold that is given is
    /// ended again if that fails.
    pub(crate) fn re_enter(&self, hold: HoldHandle) -> Result<HoldHandle> {
        match self.options.lease {
            None => hold.keep_renewed(),
            // A fixed lease inside a hold that is renewed needs nothing.
            Some(lease) if hold.needs_extension(lease) => {
                hold.extend_within(lease, &self.limit())?
            }
            Some(_) => {}
        }
        Ok(hold)
    }
}

/// A caller that wants the lock.
struct Acquire<'a> {
    /// Dropped last, after the clean-up.
    _call: ActiveCall<'a>,
    attempt: &'a AcquireCall<'a>,
    caller: Caller,
    /// Its place in line, if the kind has one.
    ticket: Option<Ticket>,
    hold: HoldId,
    owner: Owner,
    /// The hold of its thread beside which it is to stand.
    beside: Option<Owner>,
    /// To how many threads the hold may go, itself included.
    threads: u32,
    started: Moment,
    /// The line to the server on which a question has no answer yet.
    open: Option<ConnectionId>,
    /// How many moves there had been before the last question.
    generation: Generation,
    schedule: RetrySchedule,
    /// What wakes it, from its first sleep on.
    watching: Option<[Option<CancelWatch>; 2]>,
    /// The channel that it listens to, once it was refused.
    listening: Option<Waiting>,
    /// The channel that it alone hears, where the kind has such.
    own_channel: OnceCell<Arc<Channel>>,
    /// Its questions have left something behind that must be undone.
    queued: bool,
    /// It slept because others hold the lock, or stand before it.
    waited: bool,
    /// It has not left.
    here: bool,
    /// It was said that the lock has no end.
    endless: bool,
}

impl Drop for Acquire<'_> {
    /// Also if a logger or an allocation panics: the line must move on.
    fn drop(&mut self) {
        if self.here {
            drop(self.leave());
            self.clean_up(false);
        }
    }
}

/// What to do next.
enum Next {
    Ask(Option<ConnectionId>),
    Sleep(Moment),
    /// Sleep, though the lock may be free.
    Yield(Moment),
}

impl<'a> Acquire<'a> {
    fn new(
        attempt: &'a AcquireCall<'a>,
        caller: Caller,
        ticket: Option<Ticket>,
        beside: Option<Owner>,
        now: Moment,
    ) -> Acquire<'a> {
        let (engine, rules, hold) = (&attempt.context.engine, attempt.rules, HoldId::next());
        let owner = Owner::new(engine.id, hold, rules.suffix());
        Acquire {
            _call: engine.begin_call(),
            attempt,
            caller,
            ticket,
            hold,
            owner: owner.named(attempt.holder_name.cloned()),
            beside,
            threads: 0,
            started: now,
            open: None,
            generation: Generation::default(),
            schedule: RetrySchedule::new(
                now,
                engine.settings.poll_interval,
                hold.seed(),
                attempt.pace(),
            ),
            watching: None,
            listening: None,
            own_channel: OnceCell::new(),
            queued: false,
            waited: false,
            here: true,
            endless: false,
        }
    }

    fn context(&self) -> &'a LockContext {
        self.attempt.context
    }

    fn run(mut self) -> Result<Option<HoldHandle>> {
        let outcome = match self.wait() {
            Ok(Some(hold)) => Ok(Some(hold)),
            // A hold may be passed to it in the very moment in which it gives up; it
            // then takes it, or passes it on by dropping it.
            other => {
                let passed = self.leave();
                other.map(|_| passed)
            }
        };
        self.here = false;
        self.clean_up(matches!(outcome, Ok(Some(_))));
        self.tell(outcome.as_ref().ok().and_then(Option::as_ref));
        outcome
    }

    fn leave(&mut self) -> Option<HoldHandle> {
        self.here = false;
        let passed = self.context().local.leave(self.ticket?);
        passed.map(|lease| self.attempt.handle(lease)).filter(HoldHandle::is_held)
    }

    fn wait(&mut self) -> Result<Option<HoldHandle>> {
        loop {
            let now = clock::now();
            let local = &self.context().local;
            let turn =
                self.ticket.map_or_else(|| local.turn_unqueued(now), |it| local.turn(it, now));
            if let Turn::Handed(lease) = turn {
                let hold = self.attempt.handle(lease);
                self.attempt.check_not_ended()?;
                if hold.is_held() {
                    return Ok(Some(hold));
                }
                // It was lost between the passing and the waking.
                drop(hold);
                self.ticket = local.join_queue(self.caller.clone(), now).or(self.ticket);
                continue;
            }
            self.attempt.check_not_ended()?;
            let next = self.next(&turn, now);
            if self.is_over(&next, now) {
                return self.give_up();
            }
            match next {
                Next::Sleep(end) => {
                    self.waited |= self.watching.is_some();
                    self.sleep(end)?;
                }
                Next::Yield(end) => self.sleep(end)?,
                Next::Ask(connection) => {
                    if let Some(hold) = self.ask(connection)? {
                        return Ok(Some(hold));
                    }
                }
            }
        }
    }

    /// Whether the caller's patience ends before that: never before the first
    /// question, if it may ask.
    fn is_over(&self, next: &Next, now: Moment) -> bool {
        let first = matches!(next, Next::Ask(_)) && !self.schedule.asked();
        !first && self.attempt.options.patience.is_over(now)
    }

    fn next(&mut self, turn: &Turn, now: Moment) -> Next {
        let messages = self.listening.as_ref().map(Waiting::messages);
        match turn {
            Turn::Behind | Turn::Handed(_) => {
                self.schedule.stand_behind();
                Next::Sleep(Moment::END)
            }
            Turn::AskAtOnce(connection, held_here) => {
                self.schedule.found_free(*held_here);
                Next::Ask(*connection)
            }
            Turn::HeldHere if self.schedule.is_due_beside_a_holder(now) => Next::Ask(None),
            Turn::HeldHere => Next::Sleep(self.schedule.next_poll()),
            Turn::Yield(end, _) if self.may_yield(*end) => Next::Yield(*end),
            Turn::Yield(_, connection) | Turn::Ask(connection)
                if self.schedule.is_due(now, messages) =>
            {
                Next::Ask(*connection)
            }
            Turn::Yield(..) | Turn::Ask(_) => Next::Sleep(self.schedule.next()),
        }
    }

    /// Whether it can ask after that; it has to ask once.
    fn may_yield(&self, end: Moment) -> bool {
        self.schedule.asked() || end < self.attempt.options.patience.end()
    }

    /// Sleeps until something may have changed. The first time it only sees to it
    /// that it will be woken: what it looked at may have changed before.
    fn sleep(&mut self, end: Moment) -> Result<()> {
        let (attempt, parker) = (self.attempt, &self.caller.parker);
        if self.watching.is_none() {
            // In a forked child those who stand before it are not there.
            attempt.context.engine.router.check_process()?;
            let closing = Some(attempt.context.engine.closing.watch(parker));
            let cancel = attempt.options.cancel.map(|cancel| cancel.watch(parker));
            self.watching = Some([closing, cancel]);
            return Ok(());
        }
        parker.park_until(end.min(attempt.options.patience.end()));
        Ok(())
    }

    /// Asks the server once. `None` if it was refused or got no answer, and goes on.
    fn ask(&mut self, connection: Option<ConnectionId>) -> Result<Option<HoldHandle>> {
        let LockContext { engine, local } = self.context();
        let session = engine.listeners.session().filter(|_| self.caller.request.waits);
        // Who tells the listener of a channel has looked there before: it may be
        // subscribed and given up again before this caller registers.
        let channel = match session {
            Some(_) => self.channel(),
            None => local.known_channel(self.attempt.rules.listens_to()).or(self.own_channel.get()),
        };
        let subscription =
            channel.map_or(SubscriptionState::Nothing, |channel| channel.subscription());
        let told =
            session.filter(|_| channel.is_some() && subscription == SubscriptionState::Nothing);
        let messages = channel.map(|channel| channel.messages());
        let wanted = channel.filter(|_| told.is_some()).cloned();
        self.schedule.before(messages, subscription, told);
        if self.threads == 0 {
            self.threads = self.wants_threads();
        }
        let question = self.question(wanted.as_deref());
        let at = self.open.map_or(Target::prefer(connection), Target::Only);
        self.generation = engine.router.generation();
        let pending = engine.router.queue(question, at);
        match engine.router.wait(pending, &self.attempt.limit()) {
            (_, Ok(answer)) => {
                self.queued |= self.queues();
                self.answered(answer)
            }
            (connection, Err(failure)) => {
                self.queued |= self.queues() && failure.is_written();
                // Also a script that was refused may have been so half-way.
                self.open = self.open.or(failure.is_written().then_some(connection));
                let error = failure.into_error();
                self.context().local.set_last_error(error.is_transient().then(|| error.clone()));
                self.schedule.failed(clock::now(), error)?;
                Ok(None)
            }
        }
    }

    /// Whether a question that was not granted is a place in a queue there.
    fn queues(&self) -> bool {
        self.attempt.rules.queues_in_redis() && self.caller.request.waits
    }

    fn question(&self, wanted: Option<&Channel>) -> Call {
        let LockContext { engine, local } = self.context();
        let call = self.attempt.rules.acquire(&AcquireArgs {
            name: local.name(),
            owner: &self.owner,
            lease: self.attempt.term(),
            beside: self.beside.as_ref(),
            patience: self.patience(),
            fair_waiter_timeout: engine.settings.fair_waiter_timeout,
            threads: self.threads,
            wake: wanted
                .map(|channel| Wake { control: &engine.settings.control, channel: channel.name() }),
        });
        call.replicated()
    }

    /// The channel on which it hears that the lock is free.
    fn channel(&self) -> Option<&Arc<Channel>> {
        let (LockContext { engine, local }, rules) = (self.context(), self.attempt.rules);
        match rules.listens_to() {
            ListensTo::Itself => Some(
                self.own_channel
                    .get_or_init(|| engine.waiters.channel(&local.name().own_channel(&self.owner))),
            ),
            listens => local.channel(listens, &engine.waiters),
        }
    }

    /// For how long nobody need think that it is dead; `None` if it does not wait.
    fn patience(&self) -> Option<Duration> {
        let engine = &self.context().engine;
        let least = engine.settings.poll_interval.saturating_mul(2);
        match self.attempt.options.patience {
            Patience::None => None,
            Patience::Forever => Some(engine.settings.fair_waiter_timeout),
            Patience::Until(end) => {
                Some(self.started.until(end).clamp(least, engine.settings.fair_waiter_timeout))
            }
        }
    }

    /// How many threads would have the hold one after the other, if it is not lost.
    fn wants_threads(&self) -> u32 {
        if !self.attempt.rules.has_tokens() {
            return 1;
        }
        let LockContext { engine, local } = self.context();
        let passed = self.ticket.map_or(0, |_| local.queue_len().saturating_sub(1));
        let most = if self.attempt.options.lease.is_none() {
            engine.settings.handoff.max_handoffs
        } else {
            0
        };
        1 + u32::try_from(passed).unwrap_or(u32::MAX).min(most)
    }

    fn answered(&mut self, answer: Answer) -> Result<Option<HoldHandle>> {
        let (sent, connection, too_few) = (answer.sent, answer.connection, answer.too_few);
        if self.context().engine.router.generation() != self.generation {
            // Nor will the watchdog ask for it: it has renewed what was held at the move.
            self.open = Some(connection);
            self.schedule.outdated()?;
            return self.ask(Some(connection));
        }
        // A copy of a question of this call that runs late can still take the lock,
        // whatever this answer says.
        let copies = answer.maybe_duplicate || self.open.is_some();
        self.open = (answer.may_run_late && copies).then_some(connection);
        let verdict = self.attempt.rules.read_acquire(answer.reply);
        match verdict.inspect_err(|_| self.open = Some(connection))? {
            AcquireReply::Granted(_) if too_few.is_some() => {
                self.open = Some(connection);
                too_few.map_or(Ok(None), |too_few| Err(too_few.into_error()))
            }
            AcquireReply::Granted(token) => self.granted(sent, connection, token),
            AcquireReply::Refused { left } => {
                self.refused(left);
                Ok(None)
            }
        }
    }

    fn granted(
        &mut self,
        sent: Moment,
        connection: ConnectionId,
        token: u64,
    ) -> Result<Option<HoldHandle>> {
        let (deadline, now) = (hold::deadline(sent, self.attempt.term()), clock::now());
        if deadline <= now {
            self.context().local.set_last_error(None);
            self.open = Some(connection);
            return self.schedule.granted_too_late(now).map(|()| None);
        }
        let grant = Grant {
            hold: self.hold,
            owner: self.owner.clone(),
            rules: self.attempt.rules,
            deadline,
            lease: self.attempt.term(),
            renewed: self.attempt.options.lease.is_none(),
            holder: self.caller.holder.clone(),
            at: now,
            may_run_late: self.open.take(),
            tokens: token..=if token == 0 { 0 } else { token + u64::from(self.threads - 1) },
        };
        let (local, round_trip) = (&self.context().local, sent.until(now));
        let lease = local.granted(self.ticket, &self.caller, grant, round_trip);
        let hold = self.attempt.handle(lease);
        self.context().engine.watchdog.keep_granted(hold.watched(), self.generation);
        Ok(Some(hold))
    }

    fn refused(&mut self, left: Option<Duration>) {
        let (LockContext { engine, local }, waits) = (self.context(), self.caller.request.waits);
        let polled = waits && matches!(self.attempt.pace(), Pace::Polled);
        if local.refused(clock::now(), polled) {
            engine.watchdog.poll(Arc::clone(local));
        }
        if left.is_none() && !std::mem::replace(&mut self.endless, true) {
            let name = local.name().given();
            log::warn!("the lock {name:?} is held without a time to live: somebody must free it");
        }
        self.schedule.refused(clock::now(), left);
        let Some(channel) = self.channel().filter(|_| waits).cloned() else { return };
        if self.listening.is_none() {
            let listening = channel.wait(&self.caller.parker);
            self.schedule.listens(&listening, &channel, engine.listeners.session());
            self.listening = Some(listening);
        }
        engine.request_subscription(&channel);
    }

    /// The deadline has passed: without an answer to the last question, its own or that
    /// of who stands before it, nobody knows whether the lock was free.
    fn give_up(&mut self) -> Result<Option<HoldHandle>> {
        let unanswered = self.schedule.take_error();
        let trouble = || self.context().local.last_error(clock::now());
        unanswered.or_else(trouble).map_or(Ok(None), Err)
    }

    /// Undoes what an open question may do yet, and what those have left behind that were
    /// answered.
    fn clean_up(&mut self, acquired: bool) {
        let connection = self.open.take();
        if connection.is_none() && (acquired || !self.queued) {
            return;
        }
        let attempt = self.attempt;
        let name = attempt.context.local.name();
        let undo = attempt.rules.undo(name, &self.owner, self.patience());
        let (router, lasting) = (&attempt.context.engine.router, self.attempt.term());
        let worth = lasting.max(self.patience().filter(|_| self.queued).unwrap_or_default());
        let task = BackgroundTask::new(None, clock::now() + worth)
            .outlives_lease(attempt.rules.outlives_its_lease());
        let task = task.late_effect(worth);
        router.dispatch(router.submit(Request::background(undo, task), connection));
    }

    fn tell(&self, acquired: Option<&HoldHandle>) {
        let (events, waited) = (&self.context().engine.events, self.started.until(clock::now()));
        let (at, kind) = (clock::wall_time, self.attempt.rules.kind());
        let name = || Arc::clone(self.context().local.name().given());
        let hold = acquired.map(|hold| hold.hold().id().number());
        if let Some(hold) = hold {
            events
                .emit(|| Event::Acquired(Acquired { at: at(), name: name(), kind, hold, waited }));
        }
        if self.waited {
            let acquired = hold.is_some();
            let event = || Waited { at: at(), name: name(), kind, hold, waited, acquired };
            events.emit(|| Event::Waited(event()));
        }
    }
}
