//! The wait loop of the models: `Acquire` without an engine.

use crate::acquire::schedule::{ChannelView, Pace, RetrySchedule};
use crate::cancel::{CancelToken, CancelWatch};
use crate::command::call::ConnectionId;
use crate::command::owner::{HoldId, Owner, ThreadId};
use crate::error::{Error, ErrorKind};
use crate::kind::plain::Plain;
use crate::listener::channels::{Channel, ListenerSession, SubscriptionState, Waiting};
use crate::local::hold::{self, Grant, Hold};
use crate::local::queue::Ticket;
use crate::local::table::{EntryOutcome, EntryRequest};
use crate::local::{Caller, Local, Turn};
use crate::util::clock::Moment;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The lease that visitors ask for, and what they have of it.
const LEASE: Duration = Duration::from_secs(10);

/// What a visitor sees of the world.
pub(super) trait Surroundings {
    fn local(&self) -> &Local;
    /// The channel of the lock, if anybody here has waited for it before.
    fn known_channel(&self) -> Option<&Arc<Channel>>;
    fn channel(&self) -> &Arc<Channel>;
    /// The listener's connection, while it can be told what to subscribe to.
    fn session(&self) -> Option<ListenerSession>;
    /// Calls the listener, which may have gone idle.
    fn call_listener(&self) {}
    fn now(&self) -> Moment;
    /// A number that grows when it is time to ask again, whatever has been heard.
    fn polls(&self) -> u64;
    /// Asks the server, on the given line or on any; see [`Answered`].
    fn ask(&self, hold: HoldId, question: Question) -> Answered;
    /// Queues the release of a hold that may never have been.
    fn clean_up(&self, hold: HoldId, connection: ConnectionId);
    /// A hold is the visitor's, from the server.
    fn keep(&self, lease: &Arc<Hold>);
    /// The visitor does not want a hold that it was passed.
    fn end(&self, lease: &Arc<Hold>);
}

/// A question, and what is known when it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) connection: Option<ConnectionId>,
    /// Nobody of this process holds the lock.
    pub(super) free_here: bool,
    /// It has the listener told of the channel.
    pub(super) tells: bool,
    /// Its answer will not arrive.
    pub(super) unheard: bool,
}

/// What became of a question, and on which line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answered {
    Granted(ConnectionId),
    Refused,
    Nothing(ConnectionId),
}

/// How a visitor behaves.
#[derive(Clone, Debug)]
pub(super) struct Manners {
    pub(super) waits: bool,
    pub(super) owned: bool,
    pub(super) renewed: bool,
    pub(super) cancel: Option<CancelToken>,
    /// Cancelled when its patience ends.
    pub(super) patience: Option<CancelToken>,
    /// Its first question gets no answer.
    pub(super) unheard: bool,
}

impl Default for Manners {
    fn default() -> Manners {
        Manners {
            waits: true,
            owned: false,
            renewed: true,
            cancel: None,
            patience: None,
            unheard: false,
        }
    }
}

/// It left without the lock: because it was cancelled, or there was no answer.
#[derive(Debug)]
pub(super) struct Left;

/// A caller at the gate.
pub(super) struct Visitor<'a, S> {
    around: &'a S,
    manners: &'a Manners,
    caller: Caller,
    ticket: Ticket,
    hold: HoldId,
    schedule: RetrySchedule,
    open: Option<ConnectionId>,
    /// What [`Surroundings::polls`] was at the last question.
    polls: u64,
    watching: Option<[Option<CancelWatch>; 2]>,
    listening: Option<Waiting>,
}

/// Gets the lock, or does not: `None` if the visitor's patience ended.
pub(super) fn acquire<S: Surroundings>(
    around: &S,
    manners: &Manners,
) -> Result<Option<Arc<Hold>>, Left> {
    let Manners { owned, waits, renewed, .. } = *manners;
    let (request, now) =
        (EntryRequest { rules: &Plain, owned, waits, endless: false, renewed }, around.now());
    let entry = around.local().enter(&request, None, ThreadId::current(), now).map_err(|_| Left)?;
    if let EntryOutcome::Reentered(lease) = entry {
        return Ok(Some(lease));
    }
    let caller = Caller::new(request);
    match around.local().join_queue(caller.clone(), now) {
        None => Ok(None),
        Some(ticket) => Visitor::new(around, manners, caller, ticket).run(),
    }
}

impl<'a, S: Surroundings> Visitor<'a, S> {
    fn new(around: &'a S, manners: &'a Manners, caller: Caller, ticket: Ticket) -> Visitor<'a, S> {
        let hold = HoldId::next();
        Visitor {
            around,
            manners,
            caller,
            ticket,
            hold,
            schedule: RetrySchedule::new(around.now(), LEASE, hold.seed(), Pace::Polled),
            open: None,
            polls: around.polls(),
            watching: None,
            listening: None,
        }
    }

    fn run(mut self) -> Result<Option<Arc<Hold>>, Left> {
        let outcome = match self.wait() {
            Ok(Some(lease)) => Ok(Some(lease)),
            Ok(None) => Ok(self.around.local().leave(self.ticket)),
            Err(left) => {
                let passed = self.around.local().leave(self.ticket);
                passed.iter().for_each(|lease| self.around.end(lease));
                Err(left)
            }
        };
        if let Some(connection) = self.open.take() {
            self.around.clean_up(self.hold, connection);
        }
        outcome
    }

    fn wait(&mut self) -> Result<Option<Arc<Hold>>, Left> {
        loop {
            let now = self.around.now();
            let turn = self.around.local().turn(self.ticket, now);
            if let Turn::Handed(lease) = turn {
                let lease = self.take(lease)?;
                if self.around.local().is_valid(&lease, now) {
                    return Ok(Some(lease));
                }
                // It was lost between the passing and the waking.
                self.around.end(&lease);
                let again = self.around.local().join_queue(self.caller.clone(), now);
                self.ticket = again.unwrap_or(self.ticket);
                continue;
            }
            self.check_wanted()?;
            let wants = self.wants_to_ask(&turn);
            if self.is_over(wants) {
                return self.give_up();
            }
            match wants {
                false => self.sleep(),
                true => {
                    if let Some(lease) = self.ask(&turn)? {
                        return Ok(Some(lease));
                    }
                }
            }
        }
    }

    fn take(&self, lease: Arc<Hold>) -> Result<Arc<Hold>, Left> {
        match self.check_wanted() {
            Ok(()) => Ok(lease),
            Err(left) => {
                self.around.end(&lease);
                Err(left)
            }
        }
    }

    fn check_wanted(&self) -> Result<(), Left> {
        match is_cancelled(&self.manners.cancel) {
            true => Err(Left),
            false => Ok(()),
        }
    }

    fn is_over(&self, wants_to_ask: bool) -> bool {
        let first = wants_to_ask && !self.schedule.has_attempted();
        !first && (!self.manners.waits || is_cancelled(&self.manners.patience))
    }

    fn give_up(&self) -> Result<Option<Arc<Hold>>, Left> {
        match self.around.local().last_error(self.around.now()) {
            Some(_) => Err(Left),
            None => Ok(None),
        }
    }

    /// Time stands still here: what would come by and by has come.
    fn wants_to_ask(&mut self, turn: &Turn) -> bool {
        let messages = self.listening.as_ref().map(Waiting::messages);
        let polls = self.around.polls() != self.polls;
        match turn {
            Turn::Behind | Turn::Handed(_) => {
                self.polls = self.around.polls();
                false
            }
            Turn::AskAtOnce(_, held_here) => {
                self.schedule.found_free(*held_here);
                true
            }
            Turn::HeldHere => {
                self.schedule.is_due_while_held_here(self.around.now());
                polls
            }
            Turn::Ask(_) | Turn::Yield(..) => {
                self.schedule.end_pauses(polls);
                self.schedule.is_due(self.around.now(), messages)
            }
        }
    }

    fn sleep(&mut self) {
        let parker = &self.caller.parker;
        if self.watching.is_none() {
            let ends = [&self.manners.cancel, &self.manners.patience];
            self.watching = Some(ends.map(|end| end.as_ref().map(|end| end.watch(parker))));
            return;
        }
        parker.park_until(Moment::END);
    }

    fn ask(&mut self, turn: &Turn) -> Result<Option<Arc<Hold>>, Left> {
        self.polls = self.around.polls();
        let session = self.around.session().filter(|_| self.manners.waits);
        let channel = match session {
            Some(_) => Some(self.around.channel()),
            None => self.around.known_channel(),
        };
        let subscription =
            channel.map_or(SubscriptionState::Nothing, |channel| channel.subscription());
        let told = session.filter(|_| subscription == SubscriptionState::Nothing);
        let messages = channel.map(|channel| channel.messages());
        self.schedule.before_attempt(ChannelView { messages, subscription, requested_in: told });
        let sent = self.around.now();
        let (connection, free_here) = match turn {
            Turn::Ask(connection) | Turn::Yield(_, connection) => (*connection, true),
            Turn::AskAtOnce(connection, held_here) => (*connection, !held_here),
            Turn::HeldHere | Turn::Behind | Turn::Handed(_) => (None, false),
        };
        let (tells, unheard) = (told.is_some(), self.manners.unheard);
        let question = Question { connection, free_here, tells, unheard };
        match self.around.ask(self.hold, question) {
            Answered::Granted(connection) => self.granted(sent, connection).map(Some),
            Answered::Nothing(connection) => {
                self.open = self.open.or(Some(connection));
                self.around.local().set_last_error(Some(no_answer()));
                Err(Left)
            }
            Answered::Refused => {
                self.around.local().refused(self.around.now(), self.manners.waits);
                self.refused();
                Ok(None)
            }
        }
    }

    fn granted(&mut self, sent: Moment, connection: ConnectionId) -> Result<Arc<Hold>, Left> {
        let (deadline, now) = (hold::deadline(sent, LEASE), self.around.now());
        if deadline <= now {
            self.open = Some(connection);
            return Err(Left);
        }
        let grant = Grant {
            hold: self.hold,
            owner: Owner::new(Uuid::nil(), self.hold, ""),
            rules: &Plain,
            deadline,
            lease: LEASE,
            renewed: self.manners.renewed,
            holder: self.caller.holder.clone(),
            at: now,
            may_run_late: None,
            tokens: 0..=0,
        };
        let (local, ticket) = (self.around.local(), Some(self.ticket));
        let lease = local.granted(ticket, &self.caller, grant, Duration::ZERO);
        self.around.keep(&lease);
        Ok(lease)
    }

    fn refused(&mut self) {
        self.schedule.refused(self.around.now(), None);
        if self.manners.waits && self.listening.is_none() {
            let channel = self.around.channel();
            let listening = Channel::wait(channel, &self.caller.parker);
            self.schedule.registered(&listening, channel, self.around.session());
            self.listening = Some(listening);
            self.around.call_listener();
        }
    }
}

fn is_cancelled(token: &Option<CancelToken>) -> bool {
    token.as_ref().is_some_and(CancelToken::is_cancelled)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Connection, "no answer")
}
