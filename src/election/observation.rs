//! The thread of one observer of an election.
//!
//! The thread sleeps until a message arrives on the channel of the election, or until the next look
//! is due: after a poll interval, or at the end of the leader's lease. Then it reads the leader,
//! and hands a new state to the observer. The channel to the observer has no capacity, so the
//! observer always gets the latest state, and nothing accumulates.
//!
//! The thread owns a registration at the channel of the election, as a waiting caller does. So the
//! listener keeps the subscription, and subscribes again after a reconnection. After each look the
//! thread asks for a subscription that is missing, because the slot of the channel has moved.
//!
//! The thread ends at the close of the client, and at the first message after the observer has
//! dropped its receiver. Until then the thread keeps the client running.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::acquire::{LockContext, MAX_OUTDATED_REPLIES};
use crate::command::owner::HoldId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::inspect::leader::Leader;
use crate::inspect::query::Inspector;
use crate::listener::channels::{Channel, MessageCount};
use crate::pool::Target;
use crate::util::clock::{self, Moment, jittered};
use crate::util::log_lines::LINES;
use crate::util::sync::{Offer, Parker};
use crate::util::{log_target, threads};

/// The number of poll intervals after which a state is sent again.
///
/// Only such a message finds that the observer has dropped its receiver.
const INTERVALS_BEFORE_REPEAT: u32 = 30;

/// The time from the end of a lease to the look that finds it.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// The knowledge of the thread of one observer.
pub(super) struct Observation {
    context: Arc<LockContext>,
    channel: Arc<Channel>,
    /// The message count before the last look.
    seen: MessageCount,
    leader: Option<Leader>,
    next_look: Moment,
}

/// The way to the observer.
struct Observer {
    sender: Sender<Option<Leader>>,
    /// Whether the observer does not have the present state yet.
    has_news: bool,
    repeat_at: Moment,
}

impl Observation {
    pub(super) fn new(context: &Arc<LockContext>) -> Observation {
        let LockContext { engine, local } = &**context;
        let channel = engine.channels.channel(&local.name().election_channel());
        Observation {
            context: Arc::clone(context),
            seen: channel.message_count(),
            channel,
            leader: None,
            next_look: Moment::START,
        }
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.context.engine
    }

    fn poll_interval(&self) -> Duration {
        self.engine().settings.poll_interval
    }

    /// Reads the leader from the current server, with the facts about its process if it is new.
    pub(super) fn ask(&mut self, inspector: &Inspector<'_>) -> Result<Option<Leader>> {
        self.seen = self.channel.message_count();
        let mut found = self.look(inspector)?;
        let left = found.as_ref().and_then(|leader| leader.holder().remaining());
        let poll_interval = jittered(self.poll_interval(), HoldId::next().seed());
        let expiry = left.map_or(Duration::MAX, |left| left + AFTER_EXPIRY);
        self.next_look = clock::now() + poll_interval.min(expiry);
        if let Some(leader) = found.as_mut().filter(|it| self.leader.as_ref() != Some(&**it)) {
            inspector.add_process(leader)?;
        }
        Ok(found)
    }

    fn look(&self, inspector: &Inspector<'_>) -> Result<Option<Leader>> {
        for _ in 0..MAX_OUTDATED_REPLIES {
            let generation = inspector.generation();
            let leader = inspector.leader(self.context.local.name(), Target::Any)?;
            if inspector.generation() == generation {
                return Ok(leader);
            }
        }
        Err(Error::outdated())
    }

    /// Starts the thread. The receiver gets the first state and each later one.
    pub(super) fn start(mut self, first: Option<Leader>) -> Result<Receiver<Option<Leader>>> {
        let (sender, receiver) = crossbeam_channel::bounded(0);
        self.leader = first;
        let repeat_at = self.next_repeat();
        let observer = Observer { sender, has_news: true, repeat_at };
        let engine = Arc::clone(self.engine());
        let run = || {
            threads::catch_panic("observing an election", || self.run(observer));
        };
        let thread = threads::start("leasehold-observer", run).map_err(|error| {
            Error::configuration("the thread of an observer cannot be started").with_source(error)
        })?;
        engine.join_at_close(thread);
        Ok(receiver)
    }

    fn run(mut self, mut observer: Observer) {
        let (parker, closing) = (Parker::mine(), self.engine().closing.clone());
        let _closing = closing.watch(&parker);
        let registration = self.channel.register(&parker);
        self.engine().subscribe(&self.channel);
        while !closing.is_cancelled() {
            let is_due =
                registration.message_count() != self.seen || self.next_look <= clock::now();
            let is_observed = match is_due {
                true => self.look_again(&mut observer),
                false => self.sleep(&mut observer, &parker),
            };
            if !is_observed {
                return;
            }
        }
    }

    /// Reads the leader. Returns `false` if the observer is gone.
    fn look_again(&mut self, observer: &mut Observer) -> bool {
        let engine = Arc::clone(self.engine());
        let limit = engine.limit(engine.response_limit());
        match self.ask(&Inspector::new(&engine, &limit)) {
            Ok(found) if found != self.leader => {
                self.leader = found;
                observer.has_news = true;
            }
            // The remaining lease is new.
            Ok(_) => {}
            Err(error) => {
                self.next_look = clock::now() + self.poll_interval();
                self.log_failure(&error);
            }
        }
        engine.subscribe(&self.channel);
        self.deliver(observer)
    }

    /// Sends the state if it is new, or if it has to be repeated. Does not block.
    ///
    /// Returns `false` if the observer is gone.
    fn deliver(&self, observer: &mut Observer) -> bool {
        if !observer.has_news && clock::now() < observer.repeat_at {
            return true;
        }
        match observer.sender.try_send(self.leader.clone()) {
            Ok(()) => self.delivered(observer),
            // The receiver exists, and nobody reads it at this moment.
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }

    fn delivered(&self, observer: &mut Observer) {
        observer.has_news = false;
        observer.repeat_at = self.next_repeat();
    }

    fn next_repeat(&self) -> Moment {
        clock::now() + self.poll_interval().saturating_mul(INTERVALS_BEFORE_REPEAT)
    }

    /// Sleeps until a message, until the next look, or until the observer takes a new state.
    ///
    /// Returns `false` if the observer is gone.
    fn sleep(&self, observer: &mut Observer, parker: &Parker) -> bool {
        if !observer.has_news {
            parker.park_until(self.next_look);
            return true;
        }
        match parker.park_and_offer(&observer.sender, || self.leader.clone(), self.next_look) {
            Offer::Taken => self.delivered(observer),
            Offer::Waiting => {}
            Offer::Abandoned => return false,
        }
        true
    }

    fn log_failure(&self, error: &Error) {
        log::debug!(
            logger: LINES, target: log_target::CONNECTION,
            lock = &**self.context.local.name().given(), error:%,
            server = error.server();
            "an observer could not read the leader: {error}"
        );
    }
}
