//! The observers of the elections of one client, and their thread.
//!
//! The first observer starts the thread, and the thread ends with the last one, or at the close of
//! the client. Until then it keeps the client running. In each round the thread takes new observers
//! and replies, sends the looks that are due, and offers new states (`observation.rs`). It waits
//! for no server, so a silent one delays no election on another.
//!
//! The channel to a receiver has no capacity, so the receiver always gets the latest state, and
//! nothing accumulates.

use std::io;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use super::observation::{FirstLook, LookAttempt, Observation, Observer};
use crate::acquire::LockContext;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::inspect::leader::Leader;
use crate::transport::call::Call;
use crate::transport::pool::request::{BackgroundTask, CallReply, Request};
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, Offer, Parker};
use crate::util::system::channel::{self, Receiver};
use crate::util::threads;

/// The observers of one client: its clones and its elections share this value.
#[derive(Default)]
pub(crate) struct Observers {
    inbox: Mutex<Inbox>,
}

/// A panic leaves the state consistent: no foreign code runs with the mutex.
impl RefUnwindSafe for Observers {}

/// What other threads have for the thread of the observers.
#[derive(Default)]
struct Inbox {
    /// Where the thread sleeps, while it runs and will look here again.
    thread: Option<Arc<Parker>>,
    joined: Vec<Joined>,
    replies: Vec<(LookAttempt, Result<Reply>)>,
}

/// A new observer.
struct Joined {
    context: Arc<LockContext>,
    first: FirstLook,
    observer: Observer,
}

impl Observers {
    /// Returns a receiver whose first message is the leader that `first` has found.
    ///
    /// Starts the thread, unless it runs.
    pub(super) fn add(
        self: &Arc<Observers>,
        context: &Arc<LockContext>,
        first: FirstLook,
    ) -> Result<Receiver<Option<Leader>>> {
        let (sender, receiver) = channel::bounded(0);
        let poll_interval = context.engine.settings.poll_interval;
        let observer = Observer::new(sender, first.leader.clone(), poll_interval);
        let mut inbox = self.inbox.lock();
        let thread = match inbox.thread.take() {
            Some(thread) => thread,
            None => self.start(&context.engine).map_err(|error| {
                let text = "the thread of the observers cannot be started";
                Error::configuration(text).with_source(error)
            })?,
        };
        inbox.joined.push(Joined { context: Arc::clone(context), first, observer });
        thread.unpark();
        inbox.thread = Some(thread);
        Ok(receiver)
    }

    /// Starts the thread; returns the place where it sleeps.
    fn start(self: &Arc<Observers>, engine: &Arc<Engine>) -> io::Result<Arc<Parker>> {
        let (observers, observed) = (Arc::clone(self), Arc::clone(engine));
        let parker = Arc::new(Parker::default());
        let sleeps_at = Arc::clone(&parker);
        let run = move || {
            let serve = || observers.serve(&observed, &sleeps_at);
            if threads::catch_panic("observing elections", serve).is_none() {
                observers.abandon();
            }
        };
        engine.join_at_close(threads::start("leasehold-observer", run)?);
        Ok(parker)
    }

    /// Runs the thread.
    fn serve(self: &Arc<Observers>, engine: &Engine, parker: &Arc<Parker>) {
        let _closing = engine.closing.watch(parker);
        let mut elections: Vec<Observation> = Vec::new();
        while !engine.closing.is_cancelled() {
            self.take_inbox(engine, parker, &mut elections);
            let now = clock::now();
            for election in &mut elections {
                if let Some(look) = election.due(now) {
                    self.ask(engine, election.attempt, look);
                }
                election.deliver(now);
            }
            elections.retain(|election| !election.observers.is_empty());
            if elections.is_empty() && self.end_unless_joined() {
                return;
            }
            sleep(parker, &mut elections);
        }
        self.abandon();
    }

    /// Takes new observers and replies.
    fn take_inbox(
        self: &Arc<Observers>,
        engine: &Engine,
        parker: &Arc<Parker>,
        elections: &mut Vec<Observation>,
    ) {
        let mut inbox = self.inbox.lock();
        let (joined, replies) =
            (std::mem::take(&mut inbox.joined), std::mem::take(&mut inbox.replies));
        drop(inbox);
        for Joined { context, first, observer } in joined {
            match elections.iter_mut().find(|election| election.is_of(&context)) {
                Some(election) => election.join(observer),
                None => elections.push(Observation::new(context, first, observer, parker)),
            }
        }
        for (attempt, reply) in replies {
            let is_meant = |it: &&mut Observation| it.attempt.observation == attempt.observation;
            // The last observer may have left meanwhile.
            let Some(election) = elections.iter_mut().find(is_meant) else { continue };
            if let Some(query) = election.replied(attempt, reply) {
                self.ask(engine, election.attempt, query);
            }
        }
    }

    /// Sends a request of an observation, whose outcome goes to the inbox. Does not block.
    fn ask(self: &Arc<Observers>, engine: &Engine, attempt: LookAttempt, call: Call) {
        let observers = Arc::clone(self);
        let task = BackgroundTask::new(Moment::START).then(move |outcome: Result<CallReply>| {
            let Inbox { thread, replies, .. } = &mut *observers.inbox.lock();
            if let Some(thread) = thread {
                replies.push((attempt, outcome.map(|reply| reply.value)));
                thread.unpark();
            }
        });
        engine.router.send_background(Request::background(call, task), None);
    }

    /// Ends the service, unless an observer has joined.
    fn end_unless_joined(&self) -> bool {
        let Inbox { thread, joined, .. } = &mut *self.inbox.lock();
        thread.take_if(|_| joined.is_empty()).is_some()
    }

    /// Ends the service, and disconnects the observers that have just joined.
    fn abandon(&self) {
        let left = std::mem::take(&mut *self.inbox.lock());
        drop(left);
    }
}

/// Sleeps until a message, a reply or a new observer comes, until a receiver takes its new state,
/// or until something is due.
fn sleep(parker: &Parker, elections: &mut [Observation]) {
    let end = elections.iter().map(Observation::next).min().unwrap_or(Moment::END);
    let observers = elections.iter_mut().flat_map(|election| &mut election.observers);
    let mut offers: Vec<_> = observers.filter(|observer| observer.has_news).collect();
    let senders: Vec<_> = offers.iter().map(|observer| &observer.sender).collect();
    let value = |at: usize| offers[at].state.clone();
    match parker.park_and_offer(&senders, value, end) {
        Offer::Taken(at) => offers[at].delivered(),
        // The next round finds the receivers that are gone.
        Offer::Waiting | Offer::Abandoned => {}
    }
}
