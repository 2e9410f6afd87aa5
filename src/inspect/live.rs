//! Questions to running processes about their holds.
//!
//! A [`LiveSession`] publishes a request on the control channel of each client, and receives the
//! answers on a channel of its own (`command/details.rs` has the messages). A client that is
//! stopped, cut off or busy does not answer. The waits for silent clients share one budget,
//! [`PATIENCE`]. Each question may use half of the rest, so later questions have time too. A silent
//! client is asked again after a pause, which doubles from [`SHORTEST_PAUSE`] to
//! [`LONGEST_PAUSE`]. The same pauses follow failures of the connection.
//!
//! The session subscribes to its own channel only. A subscriber of a lock's channel would count as
//! a waiting process, and its presence would make holders yield.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::command::details::{self, AskedHold, DetailsAnswer, DetailsRequest, MAX_HOLDS};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::transport::call::Call;
use crate::transport::connection::{self, ReadLimit, Timeouts};
use crate::transport::reply::{Push, Reply, unexpected};
use crate::transport::topology::route::RoutedConnection;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::system::{HashMap, per_process};

pub(crate) use crate::command::details::LiveDetails;

/// The answers of running processes, by client and number of the hold.
#[derive(Debug, Default)]
pub(crate) struct LiveAnswers {
    /// The details of the holds that the clients still have.
    pub(super) details: HashMap<(Uuid, u64), LiveDetails>,
    /// The number of holds that each client has had of the lock of that hold.
    pub(super) acquired: HashMap<(Uuid, u64), u64>,
}

/// The longest time that one session waits for silent clients, all questions together.
///
/// Also the limit for the connection and for the reply to its first command.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// The first pause before a silent client, or a server that failed, is asked again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// The questions of a query to running processes. A failure means missing answers, not an error.
pub(crate) struct LiveSession {
    engine: Arc<Engine>,
    /// The connection, made by the first question; `None` also after a failure.
    link: Option<ReplyLink>,
    /// The pause after a failure of the connection.
    failure: Option<AskPause>,
    /// The time of each query for silent clients, and the limit for the connection.
    patience: Duration,
    /// The part of it that is left.
    patience_left: Duration,
    /// The clients that left the last question without an answer.
    silent: BTreeMap<Uuid, AskPause>,
}

/// A pause before the next question.
#[derive(Clone, Copy, Debug)]
struct AskPause {
    end: Moment,
    length: Duration,
}

impl AskPause {
    /// Returns the pause after a failure at `now`: twice as long as the one before.
    fn after(before: Option<AskPause>, now: Moment) -> AskPause {
        let twice = |pause: AskPause| LONGEST_PAUSE.min(pause.length * 2);
        let length = before.map_or(SHORTEST_PAUSE, twice);
        AskPause { end: now + length, length }
    }
}

/// A connection that is subscribed to a channel for answers.
struct ReplyLink {
    routed: RoutedConnection,
    channel: String,
}

impl fmt::Debug for LiveSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LiveSession");
        shown.field("patience_left", &self.patience_left).finish_non_exhaustive()
    }
}

/// One question to several clients.
struct LiveQuestion {
    /// The clients of the requests whose `PUBLISH` has no reply yet, in the order sent.
    published: VecDeque<Uuid>,
    /// The holds that each client was asked for, and the number of answers that are missing.
    asked: BTreeMap<Uuid, (BTreeSet<u64>, usize)>,
    answers: LiveAnswers,
    /// Whether a request without a subscriber is lost: there is no other server.
    is_single_server: bool,
    /// The clients whose requests were lost.
    gone: BTreeSet<Uuid>,
}

impl LiveSession {
    /// Returns a session without a connection. No round trip.
    pub(crate) fn open(engine: &Arc<Engine>) -> LiveSession {
        LiveSession::with_patience(engine, PATIENCE)
    }

    fn with_patience(engine: &Arc<Engine>, patience: Duration) -> LiveSession {
        LiveSession {
            engine: Arc::clone(engine),
            link: None,
            failure: None,
            patience,
            patience_left: patience,
            silent: BTreeMap::new(),
        }
    }

    /// Begins the next query: it has the whole time for silent clients.
    ///
    /// Forgets the clients that have not been asked for long, because they hold nothing any more.
    pub(super) fn begin_query(&mut self) {
        let now = clock::now();
        self.patience_left = self.patience;
        self.silent.retain(|_, pause| now < pause.end + LONGEST_PAUSE);
    }

    /// Asks each client for details of some of its holds, named by key and number.
    ///
    /// Returns the answers that arrived. Blocks until all clients
    /// have answered, or for half of the time that is left for silent clients. One round trip to
    /// the clients; the first call connects.
    pub(crate) fn ask(&mut self, asked: &[(Uuid, Vec<(String, u64)>)]) -> LiveAnswers {
        let begun = clock::now();
        let is_paused = |pause: Option<&AskPause>| pause.is_some_and(|pause| begun < pause.end);
        let is_worthwhile = |(client, holds): &&(Uuid, Vec<_>)| {
            !holds.is_empty() && !is_paused(self.silent.get(client))
        };
        let asked: Vec<_> = asked.iter().filter(is_worthwhile).collect();
        if asked.is_empty() || is_paused(self.failure.as_ref()) {
            return LiveAnswers::default();
        }
        let question = self.question(&asked, begun);
        let now = clock::now();
        if question.is_waiting() {
            self.patience_left = self.patience_left.saturating_sub(begun.until(now));
            // The next question must not take a late answer, or the reply to a late `PUBLISH`, for
            // its own.
            self.link = None;
        }
        if self.failure.is_none() {
            for (client, _) in asked {
                let before = self.silent.remove(client);
                // An answer is missing, or a request was lost.
                if question.asked.contains_key(client) || question.gone.contains(client) {
                    self.silent.insert(*client, AskPause::after(before, now));
                }
            }
        }
        question.answers
    }

    /// Asks one question. A connection of an earlier question may be broken: it has a second try.
    fn question(&mut self, asked: &[&(Uuid, Vec<(String, u64)>)], begun: Moment) -> LiveQuestion {
        self.link.take_if(|link| !self.engine.is_current(&link.routed));
        let mut may_retry = self.link.is_some();
        loop {
            let mut question = LiveQuestion::new(asked, !self.engine.is_cluster());
            let Err(error) = self.exchange(asked, &mut question, begun) else {
                self.failure = None;
                return question;
            };
            self.link = None;
            if !std::mem::take(&mut may_retry) {
                log::debug!(
                    logger: LINES, target: log_target::CLIENT,
                    error:% = error.with_causes(), server = error.server();
                    "running processes are not asked for details: {}", error.with_causes()
                );
                self.failure = Some(AskPause::after(self.failure, clock::now()));
                return question;
            }
        }
    }

    /// Sends the requests, and reads answers until all are there or the time is over.
    fn exchange(
        &mut self,
        asked: &[&(Uuid, Vec<(String, u64)>)],
        question: &mut LiveQuestion,
        begun: Moment,
    ) -> Result<()> {
        let link = match self.link.take() {
            Some(link) => link,
            None => ReplyLink::open(&self.engine, self.patience)?,
        };
        let link = self.link.insert(link);
        let mut requests = Vec::new();
        for (client, holds) in asked {
            for holds in holds.chunks(MAX_HOLDS) {
                requests.extend(link.request(*client, holds).bytes);
            }
        }
        link.routed.conn.send(&requests).map_err(|fault| fault.error)?;
        let end = begun.max(clock::now()) + self.patience_left / 2;
        // Messages without end must not keep the caller beyond its time.
        while question.is_waiting() && clock::now() < end {
            match link.receive(end)? {
                Some(reply) => question.receive(reply, &link.channel)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

impl ReplyLink {
    /// Connects and subscribes. Blocks for up to `limit` for each server that is contacted.
    fn open(engine: &Engine, limit: Duration) -> Result<ReplyLink> {
        per_process! {
            static NUMBER: AtomicU64 = AtomicU64::new(1);
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let timeouts = Timeouts { connect: limit, response: limit, replicas: Duration::ZERO };
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

impl LiveQuestion {
    fn new(asked: &[&(Uuid, Vec<(String, u64)>)], is_single_server: bool) -> LiveQuestion {
        let mut question = LiveQuestion {
            published: VecDeque::new(),
            asked: BTreeMap::new(),
            answers: LiveAnswers::default(),
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

    /// Applies the reply to a `PUBLISH`, or an answer.
    fn receive(&mut self, reply: Reply, channel: &str) -> Result<()> {
        match reply {
            Reply::Int(receivers) => {
                if let Some(client) = self.published.pop_front()
                    && receivers == 0
                    && self.is_single_server
                    && self.asked.remove(&client).is_some()
                {
                    self.gone.insert(client);
                }
            }
            Reply::Refused(refusal) => return Err(Error::refused(&refusal)),
            Reply::Push(Push::Message { channel: at, payload }) if at == channel.as_bytes() => {
                let answer = connection::parse(&payload);
                if let Some(answer) = answer.as_ref().and_then(DetailsAnswer::read) {
                    self.answered(answer);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, answer: DetailsAnswer) {
        let DetailsAnswer { client, holds, counts } = answer;
        let Some((numbers, missing)) = self.asked.get_mut(&client) else { return };
        let holds = holds.into_iter().filter(|details| numbers.contains(&details.hold));
        let counts = counts.into_iter().filter(|count| numbers.contains(&count.hold));
        self.answers.details.extend(holds.map(|details| ((client, details.hold), details)));
        self.answers.acquired.extend(counts.map(|it| ((client, it.hold), it.acquired)));
        *missing -= 1;
        if *missing == 0 {
            self.asked.remove(&client);
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests;
