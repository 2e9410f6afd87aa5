//! One observed election: its looks at the server, and the states for its observers.
//!
//! A look is a background request, and so the thread of the observers never waits for a server. At
//! most one request about an election counts:
//!
//! | reply to a request | next step |
//! | --- | --- |
//! | no leader, or one that is known with its process | publish; look again when that is due |
//! | a leader whose process is unknown | ask for the record of its client |
//! | the record, none, or no reply for [`RECORD_PATIENCE`] | publish |
//! | an error | look again after a poll interval |
//! | any, after a change of servers | look again at once |
//!
//! A look is due after a message on the channel of the election, after a poll interval, and at the
//! end of the leader's lease. The client of a new leader may not have written its record yet, so
//! one more look follows [`RECORD_DELAY`] after the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::acquire::LockContext;
use crate::command::leader;
use crate::command::owner::HoldId;
use crate::engine::Engine;
use crate::engine::absence::Asked;
use crate::error::{Error, Result};
use crate::inspect::leader::Leader;
use crate::inspect::query::Inspector;
use crate::transport::call::Call;
use crate::transport::listener::channels::{Channel, MessageCount, Registration};
use crate::transport::pool::Target;
use crate::transport::reply::Reply;
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment, jittered};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Parker;
use crate::util::system::channel::{Sender, TrySendError};
use crate::util::system::per_process;

/// The time after which a state is sent again, in poll intervals, and the longest such time.
///
/// Only such a message finds that the observer has dropped its receiver.
const INTERVALS_BEFORE_REPEAT: u32 = 30;
const LONGEST_REPEAT: Duration = Duration::from_secs(30);

/// The time from the end of a lease to the look that finds it.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// The time from the first look at a leader without a client record to the next one.
///
/// A client writes its record right after its first hold, within a second of its first wait.
const RECORD_DELAY: Duration = Duration::from_secs(1);

/// The time for which a new leader is kept back until its client record is read.
///
/// In a cluster the record may be on a node that is silent.
const RECORD_PATIENCE: Duration = Duration::from_millis(250);

/// The way to one receiver.
pub(super) struct Observer {
    pub(super) sender: Sender<Option<Leader>>,
    pub(super) state: Option<Leader>,
    /// Whether the receiver does not have the state yet.
    pub(super) has_news: bool,
    /// The time after which the state is sent again.
    repeat_after: Duration,
    repeat_at: Moment,
    /// The first look whose result cannot be older than the state that the observer began with.
    first_look: u64,
}

/// An election with observers.
pub(super) struct Observation {
    /// The last request.
    pub(super) attempt: LookAttempt,
    context: Arc<LockContext>,
    channel: Arc<Channel>,
    _registration: Registration,
    /// The message count before the last look.
    seen: MessageCount,
    /// The number of the last look.
    look: u64,
    step: LookStep,
    next_look: Moment,
    /// The leader at the last look.
    leader: Option<Leader>,
    /// Whether the client record of this leader must not be read.
    is_forbidden: bool,
    pub(super) observers: Vec<Observer>,
}

/// A request about an observed election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookAttempt {
    /// The number of the observation, unique in this process.
    pub(super) observation: u64,
    /// The number of the request in this observation.
    request: u64,
}

/// The look of the call that makes an observer.
pub(super) struct FirstLook {
    pub(super) leader: Option<Leader>,
    /// The message count before the look.
    seen: MessageCount,
    generation: Generation,
}

/// The request in flight.
enum LookStep {
    Idle,
    /// For the leader.
    Leader(Asked),
    /// For the client record of this leader, which counts if it comes until that moment.
    Record {
        leader: Box<Leader>,
        until: Moment,
    },
}

impl FirstLook {
    /// Reads the leader from the current server, with the facts about its process.
    pub(super) fn new(context: &LockContext, inspector: &Inspector<'_>) -> Result<FirstLook> {
        let seen = channel_of(context).message_count();
        let (leader, generation) = context.engine.router.until_current(|| {
            let mut leader = inspector.leader(context.local.name(), Target::Any)?;
            if let Some(leader) = &mut leader {
                inspector.add_process(leader)?;
            }
            Ok(leader)
        })?;
        Ok(FirstLook { leader, seen, generation })
    }
}

impl Observer {
    /// Returns the way to a receiver whose first message is `state`.
    pub(super) fn new(
        sender: Sender<Option<Leader>>,
        state: Option<Leader>,
        poll_interval: Duration,
    ) -> Observer {
        let repeat_after =
            poll_interval.saturating_mul(INTERVALS_BEFORE_REPEAT).min(LONGEST_REPEAT);
        let repeat_at = Moment::END;
        Observer { sender, state, has_news: true, repeat_after, repeat_at, first_look: 0 }
    }

    /// Notes that the receiver has the state.
    pub(super) fn delivered(&mut self) {
        self.has_news = false;
        self.repeat_at = clock::now() + self.repeat_after;
    }

    /// Sends the state if it is new or has to be repeated. Returns `false` without a receiver.
    ///
    /// Does not block: the channel has no capacity.
    fn deliver(&mut self, now: Moment) -> bool {
        if !self.has_news && now < self.repeat_at {
            return true;
        }
        match self.sender.try_send(self.state.clone()) {
            Ok(()) => self.delivered(),
            Err(TrySendError::Disconnected(_)) => return false,
            // The receiver exists, and nobody reads it at this moment.
            Err(TrySendError::Full(_)) if self.has_news => {}
            Err(TrySendError::Full(_)) => self.delivered(),
        }
        true
    }
}

impl Observation {
    /// Returns the observation of an election by its first observer.
    pub(super) fn new(
        context: Arc<LockContext>,
        first: FirstLook,
        observer: Observer,
        parker: &Arc<Parker>,
    ) -> Observation {
        per_process! {
            static NUMBER: AtomicU64 = AtomicU64::new(1);
        }
        let FirstLook { leader, seen, generation } = first;
        let channel = channel_of(&context);
        let mut observation = Observation {
            attempt: LookAttempt {
                observation: NUMBER.fetch_add(1, Ordering::Relaxed),
                request: 0,
            },
            _registration: channel.register(parker),
            channel,
            seen,
            look: 0,
            step: LookStep::Idle,
            next_look: Moment::END,
            leader: None,
            is_forbidden: false,
            observers: vec![observer],
            context,
        };
        observation.engine().subscribe(&observation.channel);
        observation.plan(leader.as_ref());
        if observation.engine().router.generation() != generation {
            observation.next_look = Moment::START;
        }
        observation.leader = leader;
        observation
    }

    pub(super) fn is_of(&self, context: &LockContext) -> bool {
        Arc::ptr_eq(&self.context.local, &context.local)
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.context.engine
    }

    fn poll_interval(&self) -> Duration {
        self.engine().settings.poll_interval
    }

    /// Adds an observer, and has a look follow: the state that the observer begins with may be
    /// newer than the result of a look in flight, and older than that of the last look.
    pub(super) fn join(&mut self, observer: Observer) {
        self.observers.push(Observer { first_look: self.look + 1, ..observer });
    }

    /// Returns the request that is due.
    pub(super) fn due(&mut self, now: Moment) -> Option<Call> {
        let asked = self.engine().asks_now();
        match &self.step {
            LookStep::Idle => {}
            LookStep::Leader(sent) if sent.generation != asked.generation => {}
            LookStep::Record { leader, until } if *until <= now => {
                self.publish(Some(Leader::clone(leader)));
            }
            LookStep::Leader(_) | LookStep::Record { .. } => return None,
        }
        self.step = LookStep::Idle;
        let count = self.channel.message_count();
        let has_joined = self.observers.iter().any(|observer| observer.first_look > self.look);
        if count == self.seen && now < self.next_look && !has_joined {
            return None;
        }
        (self.seen, self.look) = (count, self.look + 1);
        Some(self.ask(LookStep::Leader(asked), leader::look(self.context.local.name())))
    }

    fn ask(&mut self, step: LookStep, call: Call) -> Call {
        self.step = step;
        self.attempt.request += 1;
        call
    }

    /// Takes the reply to a request. Returns the request that follows it.
    pub(super) fn replied(&mut self, attempt: LookAttempt, reply: Result<Reply>) -> Option<Call> {
        if attempt != self.attempt {
            return None;
        }
        match std::mem::replace(&mut self.step, LookStep::Idle) {
            LookStep::Idle => None,
            LookStep::Leader(asked) => self.looked(asked, reply),
            LookStep::Record { mut leader, .. } => {
                if let Err(error) = leader.add_record(reply) {
                    self.is_forbidden = error.code() == Some("NOPERM");
                    self.log_failure(&error);
                }
                self.publish(Some(*leader));
                None
            }
        }
    }

    fn looked(&mut self, asked: Asked, reply: Result<Reply>) -> Option<Call> {
        // The slot of the channel may have moved.
        self.engine().subscribe(&self.channel);
        if self.engine().router.generation() != asked.generation {
            self.next_look = Moment::START;
            return None;
        }
        let mut found = match reply.and_then(Leader::read) {
            Ok(found) => found,
            Err(error) => {
                self.next_look = clock::now() + self.poll_interval();
                self.log_failure(&error);
                return None;
            }
        };
        if let Some(leader) = &found {
            leader.end_other_terms(self.engine(), self.context.local.name(), asked);
        }
        self.plan(found.as_ref());
        self.is_forbidden &= found == self.leader;
        if let (Some(leader), Some(known)) = (&mut found, &self.leader) {
            leader.keep_process(known);
        }
        let query = found.as_ref().and_then(Leader::record_query);
        match (found, query.filter(|_| !self.is_forbidden)) {
            (Some(leader), Some(query)) => {
                let (leader, until) = (Box::new(leader), clock::now() + RECORD_PATIENCE);
                Some(self.ask(LookStep::Record { leader, until }, query))
            }
            (found, _) => {
                self.publish(found);
                None
            }
        }
    }

    /// Plans the next look after one that found this leader.
    fn plan(&mut self, found: Option<&Leader>) {
        let pause = jittered(self.poll_interval(), HoldId::next().seed());
        let left = found.and_then(|leader| leader.holder().remaining());
        let expiry = left.map_or(Duration::MAX, |left| left + AFTER_EXPIRY);
        let is_new = found.is_some() && found != self.leader.as_ref();
        let record = if is_new { RECORD_DELAY } else { Duration::MAX };
        self.next_look = clock::now() + pause.min(expiry).min(record);
    }

    /// Stores the result of a look, for the observers to whom it is news.
    fn publish(&mut self, found: Option<Leader>) {
        let look = self.look;
        for observer in self.observers.iter_mut().filter(|it| it.first_look <= look) {
            let knows = |state: &Option<Leader>| state.as_ref().is_some_and(Leader::has_process);
            if found != observer.state || (knows(&found) && !knows(&observer.state)) {
                observer.state.clone_from(&found);
                observer.has_news = true;
            }
        }
        self.leader = found;
    }

    /// Sends the states that are due, and forgets the observers whose receivers are dropped.
    pub(super) fn deliver(&mut self, now: Moment) {
        self.observers.retain_mut(|observer| observer.deliver(now));
    }

    /// Returns the moment at which a look or a repeated state is due.
    pub(super) fn next(&self) -> Moment {
        let look = match self.step {
            LookStep::Idle => self.next_look,
            LookStep::Leader(_) => Moment::END,
            LookStep::Record { until, .. } => until,
        };
        let idle = self.observers.iter().filter(|observer| !observer.has_news);
        idle.map(|observer| observer.repeat_at).fold(look, Moment::min)
    }

    fn log_failure(&self, error: &Error) {
        log::debug!(
            logger: LINES, target: log_target::CONNECTION,
            lock = &**self.context.local.name().given(), error:% = error.with_causes(),
            server = error.server();
            "an observer could not read the leader: {}", error.with_causes()
        );
    }
}

/// Returns the channel whose messages tell that the leader of the election may have changed.
fn channel_of(context: &LockContext) -> Arc<Channel> {
    context.engine.channels.channel(&context.local.name().election_channel())
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_receiver_is_found_within_30_poll_intervals_and_30_seconds() {
        let repeated_after = |poll_interval| {
            Observer::new(crossbeam_channel::bounded(0).0, None, poll_interval).repeat_after
        };
        assert_eq!(repeated_after(Duration::from_millis(50)), Duration::from_millis(1500));
        assert_eq!(repeated_after(Duration::from_secs(3600)), Duration::from_secs(30));
        assert_eq!(repeated_after(Duration::MAX), Duration::from_secs(30));
    }
}
