//! Questions to running processes about their holds.
//!
//! A [`LiveSession`] publishes a request on the control channel of each client, and receives the
//! answers on a channel of its own (`command/details.rs` has the messages). A client that is
//! stopped, cut off or busy does not answer. The waits for silent clients share one budget,
//! [`PATIENCE`]. Each question may use half of the rest, so later questions have time too. A silent
//! client is asked again after a pause, which doubles from [`SHORTEST_PAUSE`] to
//! [`LONGEST_PAUSE`]. So is the server, after a failure of the connection.
//!
//! The session subscribes to its own channel only. A subscriber of a lock's channel would count as
//! a waiting process, and its presence would make holders yield.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
    /// The time left for silent clients.
    patience: Duration,
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
        shown.field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// One question to several clients.
struct Question {
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
        LiveSession {
            engine: Arc::clone(engine),
            link: None,
            failure: None,
            patience: PATIENCE,
            silent: BTreeMap::new(),
        }
    }

    /// Begins the next query: it has the whole time for silent clients.
    ///
    /// Forgets the clients that have not been asked for long, because they hold nothing any more.
    pub(super) fn begin_query(&mut self) {
        let now = clock::now();
        self.patience = PATIENCE;
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
            self.patience = self.patience.saturating_sub(begun.until(now));
            // The next question must not take a late answer, or the reply to a late `PUBLISH`, for
            // its own.
            self.link = None;
        }
        if self.failure.is_none() {
            asked.into_iter().for_each(|(client, _)| self.note(*client, &question, now));
        }
        question.answers
    }

    /// Notes whether a client has answered.
    fn note(&mut self, client: Uuid, question: &Question, now: Moment) {
        let before = self.silent.remove(&client);
        if question.is_silent(&client) {
            self.silent.insert(client, AskPause::after(before, now));
        }
    }

    /// Asks one question. A connection of an earlier question may be broken: it has a second try.
    fn question(&mut self, asked: &[&(Uuid, Vec<(String, u64)>)], begun: Moment) -> Question {
        self.link.take_if(|link| !self.engine.is_current(&link.routed));
        let mut may_retry = self.link.is_some();
        loop {
            let mut question = Question::new(asked, !self.engine.is_cluster());
            let Err(error) = self.exchange(asked, &mut question, begun) else {
                self.failure = None;
                return question;
            };
            self.link = None;
            if !std::mem::take(&mut may_retry) {
                log::debug!(
                    target: log_target::CLIENT, error:%, server = error.server();
                    "running processes are not asked for details: {error}"
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

    /// Returns whether the client did not answer.
    fn is_silent(&self, client: &Uuid) -> bool {
        self.asked.contains_key(client) || self.gone.contains(client)
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
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::cancel::Limit;
    use crate::config::Builder;
    use crate::error::ErrorKind;
    use crate::util::sync::Parker;

    /// A redis-server on a Unix socket in a folder of its own.
    struct Server {
        process: Child,
        folder: tempfile::TempDir,
    }

    impl Server {
        fn start() -> Server {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let process = Command::new("redis-server")
                .args(["--port", "0", "--save", "", "--unixsocket"])
                .arg(folder.path().join("redis.sock"))
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is installed");
            let server = Server { process, folder };
            eventually("the server answers", || server.engine(true).is_ok());
            server
        }

        fn engine(&self, announce: bool) -> Result<Arc<Engine>> {
            let socket = self.folder.path().join("redis.sock");
            let builder = Builder::default().single(format!("redis+unix://{}", socket.display()));
            Engine::start(builder.announce(announce), false)
        }

        /// Returns an engine that listens for requests.
        fn listening(&self) -> Arc<Engine> {
            let engine = self.engine(true).expect("the server runs");
            engine.listeners.stay_connected();
            let is_connected = || engine.channels.message_to_listener(None, "").is_some();
            eventually("the listener is connected", is_connected);
            engine
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            // The server may have ended by itself.
            let _ = self.process.kill().and_then(|()| self.process.wait());
        }
    }

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let end = clock::now() + Duration::from_secs(30);
        while !condition() {
            assert!(clock::now() < end, "{what}");
            Parker::default().park_until(clock::now() + Duration::from_millis(2));
        }
    }

    /// Takes a lock in this thread. Returns key and number of the hold, and its guard.
    fn hold(engine: &Arc<Engine>, name: &str) -> ((String, u64), crate::Guard) {
        let lock = crate::lock::handle::Lock::new(Arc::clone(engine), name.to_owned());
        let guard = lock.lock().expect("the lock is free");
        let local = engine.local(&name.into()).expect("a good name");
        let number = local.holds()[0].id().number();
        ((name.to_owned(), number), guard)
    }

    #[test]
    fn a_running_process_tells_details_of_its_holds() {
        let server = Server::start();
        let (asking, holding) = (server.engine(false).expect("it runs"), server.listening());
        let ((key, number), guard) = hold(&holding, "a");
        let (other, _other_guard) = hold(&holding, "b");
        let mut session = LiveSession::open(&asking);
        let unknown = ("c".to_owned(), number);
        let ended = (key.clone(), number - 1);
        let all = vec![(key.clone(), number), other.clone(), unknown, ended.clone()];
        let all = [(holding.id, all)];
        let answers = session.ask(&all);
        let mut numbers: Vec<_> = answers.details.keys().copied().collect();
        numbers.sort();
        assert_eq!(numbers, [(holding.id, number), (holding.id, other.1)]);
        let counts = [(ended.1, 1), (number, 1), (other.1, 1)];
        assert_eq!(answers.acquired, counts.map(|(it, count)| ((holding.id, it), count)).into());
        let first = &answers.details[&(holding.id, number)];
        assert_eq!((first.hold, first.kind.as_deref()), (number, Some("lock")));
        assert_eq!(first.thread_name.as_deref(), std::thread::current().name());
        assert_eq!((first.guards, first.waiters), (1, 0));
        assert!(first.remaining > Duration::ZERO && first.remaining <= Duration::from_secs(30));
        assert!(first.held_for < Duration::from_secs(30));
        drop(guard);
        let answers = session.ask(&[(holding.id, vec![(key, number)])]);
        assert_eq!((answers.details.len(), answers.acquired.len()), (0, 1), "it has ended");
        assert_eq!(session.ask(&all).details.len(), 1, "an answer without details is an answer");
        assert_eq!(session.patience, PATIENCE, "no client was silent");
    }

    #[test]
    fn more_holds_than_fit_into_one_request_are_asked_for_in_several() {
        let server = Server::start();
        let holding = server.listening();
        let ((key, number), _guard) = hold(&holding, "a");
        let unknown = (0..3 * MAX_HOLDS as u64).map(|hold| ("b".to_owned(), hold));
        let holds = unknown.chain([(key, number)]).collect();
        let details = LiveSession::open(&holding).ask(&[(holding.id, holds)]);
        assert_eq!(details.details.len(), 1, "a client may ask itself");
    }

    #[test]
    fn a_client_without_a_listener_is_not_waited_for() {
        let server = Server::start();
        let (asking, silent) = (server.engine(false).expect("it runs"), server.listening());
        silent.close();
        let mut session = LiveSession::open(&asking);
        assert!(session.ask(&[(silent.id, vec![("a".to_owned(), 1)])]).details.is_empty());
        assert_eq!((session.patience, session.silent.len()), (PATIENCE, 1));
        // The session goes on with other clients.
        let holding = server.listening();
        let (held, _guard) = hold(&holding, "a");
        let both = [(silent.id, vec![held.clone()]), (holding.id, vec![held])];
        assert_eq!(session.ask(&both).details.len(), 1);
    }

    #[test]
    fn a_client_that_does_not_answer_costs_half_of_the_patience_once() {
        let server = Server::start();
        let (asking, holding) = (server.engine(false).expect("it runs"), server.listening());
        let (held, _guard) = hold(&holding, "a");
        // A subscriber that never answers, as a stopped process.
        let silent = Uuid::new_v4();
        let subscriber = ReplyLink::open(&asking).and_then(|mut link| {
            let channel = details::wake_channel(silent);
            let subscribe = Call::command(&[b"SUBSCRIBE", channel.as_bytes()]);
            link.routed.conn.send(&subscribe.bytes).map_err(|fault| fault.error)?;
            link.receive(clock::now() + Duration::from_secs(30))?;
            Ok(link)
        });
        let _subscriber = subscriber.expect("the server runs");
        let mut session = LiveSession::open(&asking);
        let both = [(silent, vec![("b".to_owned(), 1)]), (holding.id, vec![held])];
        let begun = clock::now();
        assert_eq!(session.ask(&both).details.len(), 1);
        let (waited, left) = (begun.until(clock::now()), session.patience);
        assert!(waited >= PATIENCE / 2 && left <= PATIENCE / 2, "{waited:?}, {left:?}");
        assert_eq!(session.ask(&both).details.len(), 1);
        assert_eq!(session.patience, left, "the silent client was not asked again");
    }

    #[test]
    fn a_session_without_a_connection_or_permission_has_no_answers() {
        let server = Server::start();
        let holding = server.listening();
        let (held, _guard) = hold(&holding, "a");
        let asked = [(holding.id, vec![held])];
        let acl = |words: &[&[u8]]| {
            let parts = [&[b"ACL".as_slice(), b"SETUSER", b"default"], words].concat();
            let (call, limit) = (Call::command(&parts), Limit::none());
            holding.router.call(call, crate::pool::Target::Any, &limit).expect("it is permitted");
        };
        acl(&[b"resetchannels", b"&leasehold:wake:*"]);
        let mut refused = LiveSession::open(&holding);
        assert!(
            refused.ask(&asked).details.is_empty() && refused.failure.is_some(),
            "no channel for the answers"
        );
        acl(&[b"&leasehold:reply:*"]);
        assert_eq!(LiveSession::open(&holding).ask(&asked).details.len(), 1);
        drop(server);
        let mut cut_off = LiveSession::open(&holding);
        assert!(cut_off.ask(&asked).details.is_empty() && cut_off.failure.is_some());
        let error = ReplyLink::open(&holding).err().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::Connection));
    }
}
