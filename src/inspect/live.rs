//! Questions to running processes about their holds.
//!
//! A [`LiveSession`] publishes a request on the control channel of each client, and receives the
//! answers on a channel of its own (`command/details.rs` has the messages). A client that is
//! stopped, cut off or busy does not answer. The waits for silent clients share one budget,
//! [`PATIENCE`]. Each question may use half of the rest, so later questions have time too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::command::call::Call;
use crate::command::details::{self, AskedHold, DetailsAnswer, DetailsRequest, MAX_HOLDS};
use crate::command::reply::{Push, Reply, unexpected};
use crate::connection::{self, ReadLimit, Timeouts};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::topology::route::RoutedConnection;
use crate::util::clock::{self, Moment};
use crate::util::log_target;

pub(crate) use crate::command::details::LiveDetails;

/// The longest time that one session waits for silent clients, all questions together.
///
/// Also the limit for the connection and for the reply to its first command.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// The questions of one query to running processes. A failure means missing answers, not an error.
pub(crate) struct LiveSession {
    engine: Arc<Engine>,
    /// The connection, made by the first question; `None` also after a failure.
    link: Option<ReplyLink>,
    has_failed: bool,
    /// The time left for silent clients.
    patience: Duration,
    /// The clients that left a question without an answer. They are not asked again.
    silent: BTreeSet<Uuid>,
}

/// A connection that is subscribed to a channel for answers.
struct ReplyLink {
    routed: RoutedConnection,
    channel: String,
}

impl fmt::Debug for LiveSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LiveSession");
        shown.field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// One question to several clients.
struct Question {
    /// The clients of the requests whose `PUBLISH` has no reply yet, in the order sent.
    published: VecDeque<Uuid>,
    /// The holds that each client was asked for, and the number of answers that are missing.
    asked: BTreeMap<Uuid, (BTreeSet<u64>, usize)>,
    answers: Vec<(Uuid, u64, LiveDetails)>,
    /// Whether a request without a subscriber is lost: there is no other server.
    is_single_server: bool,
    /// The clients whose requests were lost.
    gone: BTreeSet<Uuid>,
}

impl LiveSession {
    /// Returns a session without a connection. No round trip.
    pub(crate) fn open(engine: &Arc<Engine>) -> LiveSession {
        LiveSession {
            engine: Arc::clone(engine),
            link: None,
            has_failed: false,
            patience: PATIENCE,
            silent: BTreeSet::new(),
        }
    }

    /// Asks each client for details of some of its holds, named by key and number.
    ///
    /// Returns the details that arrived, with client and number of hold. Blocks until all clients
    /// have answered, or for half of the time that is left for silent clients. One round trip to
    /// the clients; the first call connects.
    pub(crate) fn ask(
        &mut self,
        asked: &[(Uuid, Vec<(String, u64)>)],
    ) -> Vec<(Uuid, u64, LiveDetails)> {
        let is_worthwhile =
            |(client, holds): &&(Uuid, Vec<_>)| !holds.is_empty() && !self.silent.contains(client);
        let asked: Vec<_> = asked.iter().filter(is_worthwhile).collect();
        if asked.is_empty() || self.has_failed {
            return Vec::new();
        }
        let mut question = Question::new(&asked, !self.engine.is_cluster());
        let begun = clock::now();
        if let Err(error) = self.exchange(&asked, &mut question, begun) {
            log::debug!(
                target: log_target::CLIENT, error:%, server = error.server();
                "running processes are not asked for details: {error}"
            );
            (self.link, self.has_failed) = (None, true);
        }
        if question.is_waiting() {
            self.patience = self.patience.saturating_sub(begun.until(clock::now()));
        }
        self.silent.extend(question.silent());
        question.answers
    }

    /// Sends the requests, and reads answers until all are there or the time is over.
    fn exchange(
        &mut self,
        asked: &[&(Uuid, Vec<(String, u64)>)],
        question: &mut Question,
        begun: Moment,
    ) -> Result<()> {
        let link = match self.link.take() {
            Some(link) => link,
            None => ReplyLink::open(&self.engine)?,
        };
        let link = self.link.insert(link);
        let mut requests = Vec::new();
        for (client, holds) in asked {
            for holds in holds.chunks(MAX_HOLDS) {
                requests.extend(link.request(*client, holds).bytes);
            }
        }
        link.routed.conn.send(&requests).map_err(|fault| fault.error)?;
        let end = begun.max(clock::now()) + self.patience / 2;
        while question.is_waiting() {
            match link.receive(end)? {
                Some(reply) => question.receive(reply, &link.channel)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

impl ReplyLink {
    /// Connects and subscribes. Blocks for up to [`PATIENCE`] for each server that is contacted.
    fn open(engine: &Engine) -> Result<ReplyLink> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let timeouts = Timeouts { connect: PATIENCE, response: PATIENCE, replicas: Duration::ZERO };
        let routed = engine.open_connection(timeouts, "details")?;
        let mut link = ReplyLink { routed, channel: details::reply_channel(engine.id, number) };
        let subscribe = Call::command(&[b"SUBSCRIBE", link.channel.as_bytes()]);
        let due = link.routed.conn.send(&subscribe.bytes).map_err(|fault| fault.error)?;
        match link.receive(due)? {
            Some(Reply::Push(Push::Subscribed { .. })) => Ok(link),
            Some(Reply::Refused(refusal)) => Err(Error::refused(&refusal)),
            Some(other) => Err(unexpected(&other)),
            None => Err(Error::timeout()),
        }
    }

    /// Returns the command that asks a client for these holds.
    fn request(&self, client: Uuid, holds: &[(String, u64)]) -> Call {
        let asked = |(key, hold): &(String, u64)| AskedHold { key: key.clone(), hold: *hold };
        let holds = holds.iter().map(asked).collect();
        let request = DetailsRequest { reply_to: self.channel.clone(), holds };
        Call::command(&[b"PUBLISH", details::wake_channel(client).as_bytes(), &request.pack()])
    }

    /// Reads a reply or a message. Returns `None` at `end`.
    fn receive(&mut self, end: Moment) -> Result<Option<Reply>> {
        let limit = ReadLimit { leave: end, ..ReadLimit::due(Moment::END) };
        self.routed.conn.receive_until(&limit).map_err(|fault| fault.error)
    }
}

impl Question {
    fn new(asked: &[&(Uuid, Vec<(String, u64)>)], is_single_server: bool) -> Question {
        let mut question = Question {
            published: VecDeque::new(),
            asked: BTreeMap::new(),
            answers: Vec::new(),
            is_single_server,
            gone: BTreeSet::new(),
        };
        for (client, holds) in asked {
            let requests = holds.len().div_ceil(MAX_HOLDS);
            question.published.extend(std::iter::repeat_n(*client, requests));
            let (numbers, missing) = question.asked.entry(*client).or_default();
            numbers.extend(holds.iter().map(|(_, hold)| *hold));
            *missing += requests;
        }
        question
    }

    /// Returns whether an answer may still arrive.
    fn is_waiting(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns the clients that did not answer.
    fn silent(&self) -> impl Iterator<Item = Uuid> {
        self.asked.keys().chain(&self.gone).copied()
    }

    /// Applies the reply to a `PUBLISH`, or an answer.
    fn receive(&mut self, reply: Reply, channel: &str) -> Result<()> {
        match reply {
            Reply::Int(receivers) => self.published(receivers),
            Reply::Refused(refusal) => return Err(Error::refused(&refusal)),
            Reply::Push(Push::Message { channel: at, payload }) if at == channel.as_bytes() => {
                let answer = connection::parse(&payload);
                let answer = answer.as_ref().and_then(DetailsAnswer::read);
                answer.into_iter().for_each(|answer| self.answered(answer));
            }
            _ => {}
        }
        Ok(())
    }

    fn published(&mut self, receivers: i64) {
        if let Some(client) = self.published.pop_front()
            && receivers == 0
            && self.is_single_server
            && self.asked.remove(&client).is_some()
        {
            self.gone.insert(client);
        }
    }

    fn answered(&mut self, answer: DetailsAnswer) {
        let DetailsAnswer { client, holds } = answer;
        let Some((numbers, missing)) = self.asked.get_mut(&client) else { return };
        let holds = holds.into_iter().filter(|details| numbers.contains(&details.hold));
        self.answers.extend(holds.map(|details| (client, details.hold, details)));
        *missing -= 1;
        if *missing == 0 {
            self.asked.remove(&client);
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests;
