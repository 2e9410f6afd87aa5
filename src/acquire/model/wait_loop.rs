//! The question of the models: `LockQuestion` without an engine, for the real loop.

use crate::cancel::{CancelToken, CancelWatch};
use crate::command::owner::{HoldId, Owner, ThreadId};
use crate::config::BackOff;
use crate::error::{Error, ErrorKind, Result as LibraryResult};
use crate::kind::plain::Plain;
use crate::kind::rules::Pace;
use crate::local::hold::{self, Grant, Hold};
use crate::local::mailbox::News;
use crate::local::queue::Ticket;
use crate::local::table::{EntryOutcome, EntryRequest};
use crate::local::{Caller, JoinOutcome, Local, Turn, YieldsTo};
use crate::transport::call::ConnectionId;
use crate::transport::listener::channels::{
    Channel, ListenerSession, Registration, SubscriptionState,
};
use crate::util::clock::{Moment, Patience};
use crate::util::sync::Parker;
use crate::wait::schedule::{ChannelView, RetrySchedule};
use crate::wait::{Question, Step, wait_for};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The lease that calls ask for.
const LEASE: Duration = Duration::from_secs(10);

/// The world around a call: the process, the server and the clock.
pub(super) trait Environment {
    fn local(&self) -> &Local;
    /// Returns the channel of the lock if this process has used it before.
    fn known_channel(&self) -> Option<&Arc<Channel>>;
    fn channel(&self) -> &Arc<Channel>;
    /// Returns the listener's connection while the listener accepts subscription requests.
    fn session(&self) -> Option<ListenerSession>;
    /// Wakes a listener that may be idle.
    fn wake_listener(&self) {}
    fn now(&self) -> Moment;
    /// Returns a number that grows when polls are due.
    fn polls(&self) -> u64;
    /// Sends the acquire command of `hold`.
    fn attempt(&self, hold: HoldId, attempt: Attempt) -> AttemptOutcome;
    /// Queues the release of a hold that the server may never grant.
    fn clean_up(&self, hold: HoldId, connection: ConnectionId);
    /// Notes a hold that the server granted and the call took.
    fn keep(&self, hold: &Arc<Hold>);
    /// Ends a hold that was handed off to a call that cannot use it.
    fn end(&self, hold: &Arc<Hold>);
}

/// An acquire command, with the state of the process when it is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// The connection that it has to use, if there is one.
    pub(super) connection: Option<ConnectionId>,
    /// Whether no thread of this process holds the lock.
    pub(super) free_here: bool,
    /// Whether it requests the subscription of the channel.
    pub(super) requests_subscription: bool,
    /// Whether its reply gets lost.
    pub(super) reply_lost: bool,
}

/// The outcome of an attempt, with the connection that it used.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttemptOutcome {
    Granted(ConnectionId),
    Refused,
    Unanswered(ConnectionId),
}

/// The options of a call in the models.
#[derive(Clone, Debug)]
pub(super) struct CallOptions {
    pub(super) waits: bool,
    pub(super) owned: bool,
    pub(super) renewed: bool,
    pub(super) cancel: Option<CancelToken>,
    /// Cancelled when the patience of the call ends.
    pub(super) patience: Option<CancelToken>,
    /// Whether the reply to the first attempt gets lost.
    pub(super) reply_lost: bool,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            waits: true,
            owned: false,
            renewed: true,
            cancel: None,
            patience: None,
            reply_lost: false,
        }
    }
}

/// The error of a call that was cancelled, or whose attempt got no reply.
#[derive(Debug)]
pub(super) struct CallFailed;

/// A call in the wait loop.
struct WaitingCall<'a, E> {
    environment: &'a E,
    options: &'a CallOptions,
    caller: Caller,
    ticket: Ticket,
    id: HoldId,
    schedule: RetrySchedule,
    may_run_late: Option<ConnectionId>,
    /// The value of [`Environment::polls`] at the last attempt.
    polls: u64,
    /// What made the next attempt due: its connection, and whether the lock is free here.
    upcoming: (Option<ConnectionId>, bool),
    registration: Option<Registration>,
}

/// Takes the lock; returns `None` if the patience of the call ends first.
pub(super) fn acquire<E: Environment>(
    environment: &E,
    options: &CallOptions,
) -> Result<Option<Arc<Hold>>, CallFailed> {
    let (local, now) = (environment.local(), environment.now());
    let CallOptions { owned, waits, renewed, .. } = *options;
    let request = EntryRequest { rules: &Plain, owned, waits, renewed };
    let entry = local.enter(&request, None, ThreadId::current(), now).map_err(|_| CallFailed)?;
    if let EntryOutcome::Reentered(hold) = entry {
        return Ok(Some(hold));
    }
    let caller = Caller::new(request);
    match local.join_queue(caller.clone(), now) {
        JoinOutcome::Queued(ticket) => WaitingCall::new(environment, options, caller, ticket).run(),
        JoinOutcome::BehindIdle | JoinOutcome::Refused => Ok(None),
    }
}

impl<'a, E: Environment> WaitingCall<'a, E> {
    fn new(
        environment: &'a E,
        options: &'a CallOptions,
        caller: Caller,
        ticket: Ticket,
    ) -> WaitingCall<'a, E> {
        let (id, now) = (HoldId::next(), environment.now());
        WaitingCall {
            environment,
            options,
            caller,
            ticket,
            id,
            schedule: RetrySchedule::new(
                now,
                LEASE,
                BackOff::default(),
                id.seed(),
                Pace::WatchdogPolls,
            ),
            may_run_late: None,
            polls: environment.polls(),
            upcoming: (None, false),
            registration: None,
        }
    }

    fn run(mut self) -> Result<Option<Arc<Hold>>, CallFailed> {
        let outcome = match wait_for(&mut self) {
            Ok(Some(hold)) => Ok(Some(hold)),
            Ok(None) => Ok(self.environment.local().leave(self.ticket, &self.caller)),
            Err(_) => {
                let handed_off = self.environment.local().leave(self.ticket, &self.caller);
                handed_off.iter().for_each(|hold| self.environment.end(hold));
                Err(CallFailed)
            }
        };
        if let Some(connection) = self.may_run_late.take() {
            self.environment.clean_up(self.id, connection);
        }
        let is_left = matches!(self.caller.mailbox.take(), News::HandedOff(_));
        assert!(!is_left, "a hold was handed off to a caller that has left");
        outcome
    }

    /// Takes a hold that another thread handed off.
    ///
    /// Joins the queue again and returns `None` if the hold was lost before this thread woke.
    fn take_handed_off(
        &mut self,
        hold: Arc<Hold>,
        now: Moment,
    ) -> LibraryResult<Option<Arc<Hold>>> {
        self.check_not_ended().inspect_err(|_| self.environment.end(&hold))?;
        let local = self.environment.local();
        if local.is_valid(&hold, now) {
            return Ok(Some(hold));
        }
        self.environment.end(&hold);
        if let JoinOutcome::Queued(ticket) = local.join_queue(self.caller.clone(), now) {
            self.ticket = ticket;
        }
        Ok(None)
    }

    /// Gives the schedule the state of the channel.
    ///
    /// Returns whether the command requests the subscription.
    fn look_at_channel(&mut self) -> bool {
        let session = self.environment.session().filter(|_| self.options.waits);
        let channel = match session {
            Some(_) => Some(self.environment.channel()),
            None => self.environment.known_channel(),
        };
        let subscription =
            channel.map_or(SubscriptionState::Unsubscribed, |channel| channel.subscription());
        let requested_in = session.filter(|_| subscription == SubscriptionState::Unsubscribed);
        let message_count = channel.map(|channel| channel.message_count());
        self.schedule.before_attempt(ChannelView { message_count, subscription, requested_in });
        requested_in.is_some()
    }

    fn granted(&mut self, sent: Moment, connection: ConnectionId) -> LibraryResult<Arc<Hold>> {
        let (deadline, now) = (hold::deadline(sent, LEASE), self.environment.now());
        if deadline <= now {
            self.may_run_late = Some(connection);
            return Err(no_reply());
        }
        let grant = Grant {
            hold: self.id,
            owner: Owner::new(Uuid::nil(), self.id, ""),
            rules: &Plain,
            deadline,
            lease: LEASE,
            server_lease: LEASE,
            renewed: self.options.renewed,
            holder: self.caller.holder.clone(),
            settings: self.caller.settings.clone(),
            linger: None,
            granted_at: now,
            late_copy: None,
            tokens: 0..=0,
            slots: Box::default(),
        };
        let (local, ticket) = (self.environment.local(), Some(self.ticket));
        let hold = local.granted(ticket, &self.caller, grant, Duration::ZERO);
        self.environment.keep(&hold);
        Ok(hold)
    }

    fn rely_on_polls(&self) {
        if self.options.waits {
            self.environment.local().starts_polls();
        }
    }

    fn refused(&mut self) {
        self.schedule.refused(self.environment.now(), None);
        if self.options.waits && self.registration.is_none() {
            let channel = self.environment.channel();
            let registration = Channel::register(channel, self.caller.mailbox.parker());
            self.schedule.registered(&registration, channel, self.environment.session());
            self.registration = Some(registration);
            self.environment.wake_listener();
        }
    }
}

impl<E: Environment> Question for WaitingCall<'_, E> {
    type Yes = Arc<Hold>;

    /// The clock stands still, so all pauses count as over.
    fn next(&mut self, now: Moment) -> LibraryResult<Step<Arc<Hold>>> {
        let must_ask = loop {
            match self.caller.mailbox.take() {
                News::HandedOff(hold) => {
                    if let Some(hold) = self.take_handed_off(hold, now)? {
                        return Ok(Step::Done(hold));
                    }
                }
                news => break matches!(news, News::Ask),
            }
        };
        let message_count = self.registration.as_ref().map(Registration::message_count);
        let polls = self.environment.polls() != self.polls;
        let turn = self.environment.local().turn(Some(self.ticket), now, YieldsTo::Nobody);
        let Turn::Ask { held_here, connection } = turn else {
            self.polls = self.environment.polls();
            return Ok(Step::Sleep(Moment::END));
        };
        self.upcoming = (connection, !held_here);
        let is_due = if must_ask {
            self.schedule.found_free(held_here);
            true
        } else if held_here {
            self.rely_on_polls();
            self.schedule.is_due_while_held_here(now);
            polls
        } else {
            self.schedule.end_pauses(polls);
            self.schedule.is_due(now, message_count)
        };
        Ok(if is_due { self.schedule.ask() } else { Step::Sleep(Moment::END) })
    }

    fn ask(&mut self) -> LibraryResult<Option<Arc<Hold>>> {
        self.caller.mailbox.begin_question();
        self.polls = self.environment.polls();
        let requests_subscription = self.look_at_channel();
        let sent = self.environment.now();
        let (connection, free_here) = self.upcoming;
        let reply_lost = self.options.reply_lost;
        let attempt = Attempt { connection, free_here, requests_subscription, reply_lost };
        match self.environment.attempt(self.id, attempt) {
            AttemptOutcome::Granted(connection) => self.granted(sent, connection).map(Some),
            AttemptOutcome::Unanswered(connection) => {
                self.may_run_late.get_or_insert(connection);
                self.environment.local().set_last_error(Some(no_reply()));
                Err(no_reply())
            }
            AttemptOutcome::Refused => {
                self.environment.local().refused(sent, self.environment.now());
                self.rely_on_polls();
                self.refused();
                Ok(None)
            }
        }
    }

    fn give_up(&mut self) -> LibraryResult<Option<Arc<Hold>>> {
        self.environment.local().last_error(self.environment.now()).map_or(Ok(None), Err)
    }

    fn patience(&self) -> Patience {
        Patience::Forever
    }

    fn is_over(&self, _now: Moment) -> bool {
        !self.options.waits || self.options.patience.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    fn check_not_ended(&self) -> LibraryResult<()> {
        self.options.cancel.as_ref().map_or(Ok(()), CancelToken::check)
    }

    fn watch(&mut self) -> LibraryResult<Vec<CancelWatch>> {
        let tokens = self.options.cancel.iter().chain(&self.options.patience);
        Ok(tokens.map(|token| token.watch(self.caller.mailbox.parker())).collect())
    }

    fn parker(&self) -> &Arc<Parker> {
        self.caller.mailbox.parker()
    }

    fn waits(&mut self) {}

    fn now(&self) -> Moment {
        self.environment.now()
    }
}

fn no_reply() -> Error {
    Error::new(ErrorKind::Connection, "no reply")
}
