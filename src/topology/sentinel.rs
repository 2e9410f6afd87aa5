//! The master that Redis Sentinel names.
//!
//! Sentinels may be stopped, cut off, or wrong, so none is believed: they are asked one after
//! the other, and what one names is the master if it can be reached and says so itself, on the
//! very connection that will be used. A sentinel that was cut off during a fail-over goes on
//! naming the old master, which may not know better either. So every fail-over is known by its
//! *epoch*, a number that grows: what is named with a smaller one than that of a master that
//! was found before is outdated, and taken only if most sentinels name such (then they were
//! set up anew, or one of the others has lied).
//!
//! A [`SentinelWatch`] asks the sentinels in turn, one every [`TURN`], over connections that it keeps: a
//! sentinel that is cut off delays the news by a turn. After an error it leaves that sentinel
//! alone for pauses that grow.
//!
//! `SENTINEL MASTER` tells the epoch. The address in it is the old one, with the new epoch, until all
//! replicas follow the new master, which may take minutes; `GET-MASTER-ADDR-BY-NAME` tells the
//! new one at once. And what has been left in an epoch is not gone back to in the same.

use std::collections::VecDeque;
use std::fmt;
use std::str;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::command::call::Call;
use crate::command::reply::{Reply, unexpected};
use crate::connection::{Address, Connection, Timeouts};
use crate::error::{Error, ErrorKind, Result};
use crate::util::clock::{self, Moment, doubled, jittered};
use crate::util::sync::{Mutex, Parker};

/// How often a sentinel is asked, one after the other.
const TURN: Duration = Duration::from_secs(1);

/// The longest pause before a sentinel that has failed is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The part of the time-outs that a sentinel is first given for its answer.
const BRIEF: u32 = 8;

/// A first attempt is given no less.
const LEAST: Duration = Duration::from_millis(100);

/// The sentinels of one master.
pub(crate) struct Sentinels {
    /// What they call it.
    master: String,
    /// Those that answer come before those that do not.
    sentinels: Mutex<VecDeque<Address>>,
    /// How the servers are spoken to, wherever they are.
    servers: Address,
    /// The name of the connections to the sentinels.
    name: String,
    timeouts: Timeouts,
    found: Mutex<KnownMaster>,
    /// How often another master was found than before; changed under `found`, read without.
    generation: AtomicU64,
}

/// The last master that was one.
#[derive(Debug, Default)]
struct KnownMaster {
    address: Option<Arc<str>>,
    epoch: u64,
    /// Masters that were found before, up to this epoch.
    left: Vec<Arc<str>>,
}

impl KnownMaster {
    fn is_before(&self, named: &NamedMaster) -> bool {
        let left = self.left.contains(named.address.shown());
        self.epoch < named.epoch || self.epoch == named.epoch && !left
    }
}

/// What a sentinel names.
#[derive(Debug)]
struct NamedMaster {
    address: Address,
    epoch: u64,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Sentinels");
        debug.field("master", &self.master).field("sentinels", &*self.sentinels.lock());
        debug.finish_non_exhaustive()
    }
}

impl Sentinels {
    /// Those of the master of that name. `servers` says how it is spoken to, but not where.
    pub(crate) fn new(
        master: String,
        sentinels: Vec<Address>,
        servers: Address,
        name: String,
        timeouts: Timeouts,
    ) -> Sentinels {
        Sentinels {
            master,
            sentinels: Mutex::new(sentinels.into()),
            servers,
            name,
            timeouts,
            found: Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// How often another master was found than before.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The address of the last master that was found.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        self.found.lock().address.clone()
    }

    /// Has `open` tried with what the sentinels name, until it is content: it is to see to
    /// it that this is a master. With what it gives, how often the master had moved by then.
    ///
    /// Each sentinel is asked briefly at first. Silent ones get their whole time-outs when no
    /// other knows a master.
    pub(crate) fn with_master<T>(
        &self,
        timeouts: Timeouts,
        open: impl FnMut(&Address) -> Result<T>,
    ) -> Result<(T, u64)> {
        let sentinels: Vec<_> = self.sentinels.lock().iter().cloned().collect();
        let mut search = Search::new(self, open);
        let mut silent = Vec::new();
        for sentinel in &sentinels {
            match search.ask(sentinel, brief(timeouts)) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => {
                    self.put_last(sentinel);
                    match error.is_unanswered() {
                        true => silent.push(sentinel),
                        false => search.tried.failed(error),
                    }
                }
            }
        }
        for sentinel in silent {
            match search.ask(sentinel, timeouts) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => search.tried.failed(error),
            }
        }
        search.settle_for_outdated(sentinels.len())
    }

    fn ask(&self, sentinel: &Address, timeouts: Timeouts) -> Result<NamedMaster> {
        let named = self.ask_over(&mut self.open(sentinel, timeouts)?);
        named.map_err(|error| error.with_server(Arc::clone(sentinel.shown())))
    }

    fn open(&self, sentinel: &Address, timeouts: Timeouts) -> Result<Connection> {
        Ok(Connection::open(sentinel, timeouts, self.name.clone(), &[])?.conn)
    }

    fn ask_over(&self, conn: &mut Connection) -> Result<NamedMaster> {
        let deadline = self.send_questions(conn)?;
        let epoch = epoch(&conn.accepted_answer(deadline)?)?;
        self.named(&conn.accepted_answer(deadline)?, epoch)
    }

    /// Asks for the epoch and then the address, in one write; until when the answers are due.
    fn send_questions(&self, conn: &mut Connection) -> Result<Moment> {
        let question =
            |what: &str| Call::command(&[b"SENTINEL", what.as_bytes(), self.master.as_bytes()]);
        let mut bytes = question("MASTER").bytes;
        bytes.extend_from_slice(&question("GET-MASTER-ADDR-BY-NAME").bytes);
        conn.send(&bytes).map_err(|fault| fault.error)
    }

    fn named(&self, address: &Reply, epoch: u64) -> Result<NamedMaster> {
        let Reply::List(parts) = address else { return Err(unexpected(address)) };
        let mut texts = parts.iter().map(|part| part.text().and_then(|it| str::from_utf8(it).ok()));
        let mut next = || texts.next().flatten();
        match (next(), next().and_then(|port| port.parse().ok())) {
            (Some(host), Some(port)) => {
                Ok(NamedMaster { address: self.servers.at(host, port), epoch })
            }
            _ => Err(unexpected(address)),
        }
    }

    fn is_outdated(&self, named: &NamedMaster) -> bool {
        !self.found.lock().is_before(named)
    }

    /// That was found to be the master. How often it has moved, unless another of a later
    /// fail-over was found meanwhile.
    fn found(&self, named: &NamedMaster) -> Option<u64> {
        let mut found = self.found.lock();
        found.is_before(named).then(|| self.note(&mut found, named))
    }

    /// The same, whatever was found before.
    fn found_anew(&self, named: &NamedMaster) -> u64 {
        self.note(&mut self.found.lock(), named)
    }

    fn note(&self, found: &mut KnownMaster, named: &NamedMaster) -> u64 {
        let address = named.address.shown();
        let before = found.address.replace(Arc::clone(address));
        let before = before.filter(|before| before != address);
        if found.epoch != named.epoch {
            found.left.clear();
        }
        found.epoch = named.epoch;
        let moved = u64::from(before.is_some());
        found.left.extend(before);
        found.left.retain(|left| left != address);
        self.generation.fetch_add(moved, Ordering::AcqRel) + moved
    }

    /// Has that sentinel asked after the others, since it does not answer.
    fn put_last(&self, silent: &Address) {
        let mut sentinels = self.sentinels.lock();
        if let Some(at) = sentinels.iter().position(|one| one.shown() == silent.shown()) {
            let silent = sentinels.remove(at);
            sentinels.extend(silent);
        }
    }

    /// Whether a fail-over is known by now that was not before, and its master is one.
    fn is_news(&self, named: &NamedMaster) -> Result<bool> {
        let known = {
            let found = self.found.lock();
            !found.is_before(named) || found.address.as_ref() == Some(named.address.shown())
        };
        if known {
            return Ok(false);
        }
        let (before, name) = (self.generation(), self.name.clone());
        let opened = Connection::open(&named.address, self.timeouts, name, &[])?;
        if opened.is_replica {
            return Err(no_master(&named.address));
        }
        Ok(self.found(named).is_some_and(|generation| generation != before))
    }
}

/// The error of a server that says that it is a replica.
pub(super) fn no_master(address: &Address) -> Error {
    Error::connection("the server is not the master").with_server(Arc::clone(address.shown()))
}

/// What a first attempt may take.
fn brief(timeouts: Timeouts) -> Timeouts {
    let part = |span: Duration| span.min(LEAST.max(span / BRIEF));
    let Timeouts { connect, response, replicas } = timeouts;
    Timeouts { connect: part(connect), response: part(response), replicas }
}

/// Asks the sentinels in turn for another master, for one thread.
pub(crate) struct SentinelWatch {
    sentinels: Arc<Sentinels>,
    turns: Vec<WatchedSentinel>,
}

/// One sentinel, and when it is asked next.
struct WatchedSentinel {
    sentinel: Address,
    conn: Option<Connection>,
    due: Moment,
    /// Consecutive failures: of the sentinel, or of the master that it names.
    failures: u32,
}

impl SentinelWatch {
    pub(crate) fn new(sentinels: Arc<Sentinels>) -> SentinelWatch {
        let all: Vec<_> = sentinels.sentinels.lock().iter().cloned().collect();
        let mut due = clock::now();
        let turns = all.into_iter().map(|sentinel| {
            due = due + jittered(TURN, due.nanos());
            WatchedSentinel { sentinel, conn: None, due, failures: 0 }
        });
        SentinelWatch { turns: turns.collect(), sentinels }
    }

    /// Blocks until it is the turn of a sentinel. `stop` ends the wait.
    pub(crate) fn wait(&mut self, stop: &Parker) {
        let due = self.turns.iter().map(|turn| turn.due).min();
        stop.park_until(due.unwrap_or(Moment::END));
    }

    /// Asks the sentinel whose turn it is. Returns whether there is another master than before.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let round = TURN.saturating_mul(u32::try_from(self.turns.len()).unwrap_or(u32::MAX));
        let Some(turn) = self.turns.iter_mut().min_by_key(|turn| turn.due) else {
            return Ok(false);
        };
        let messages = turn.ask(&self.sentinels);
        turn.failures = if messages.is_err() { turn.failures.saturating_add(1) } else { 0 };
        let pause = doubled(round, turn.failures, LONGEST_PAUSE.max(round));
        let now = clock::now();
        turn.due = now + jittered(pause, now.nanos());
        messages
    }
}

impl WatchedSentinel {
    fn ask(&mut self, sentinels: &Sentinels) -> Result<bool> {
        let named = self.named(sentinels).inspect_err(|_| sentinels.put_last(&self.sentinel))?;
        sentinels.is_news(&named)
    }

    fn named(&mut self, sentinels: &Sentinels) -> Result<NamedMaster> {
        let timeouts = Timeouts { response: TURN, ..sentinels.timeouts };
        let mut conn = match self.conn.take() {
            Some(watched) => watched,
            None => sentinels.open(&self.sentinel, timeouts)?,
        };
        let named = sentinels.ask_over(&mut conn)?;
        self.conn = Some(conn);
        Ok(named)
    }
}

/// How many fail-overs there have been, by the answer to `SENTINEL MASTER`.
fn epoch(master: &Reply) -> Result<u64> {
    let text = master.field("config-epoch").and_then(Reply::text);
    let epoch = text.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
    epoch.ok_or_else(|| unexpected(master))
}

/// One attempt to reach the master.
struct Search<'a, F> {
    sentinels: &'a Sentinels,
    open: F,
    tried: Tried,
    outdated: Vec<NamedMaster>,
}

impl<'a, T, F: FnMut(&Address) -> Result<T>> Search<'a, F> {
    fn new(sentinels: &'a Sentinels, open: F) -> Search<'a, F> {
        Search { sentinels, open, tried: Tried::default(), outdated: Vec::new() }
    }

    /// Asks one sentinel, and tries what it names. An error is the sentinel's.
    fn ask(&mut self, sentinel: &Address, timeouts: Timeouts) -> Result<Option<(T, u64)>> {
        let named = self.sentinels.ask(sentinel, timeouts)?;
        if self.sentinels.is_outdated(&named) {
            self.outdated.push(named);
            return Ok(None);
        }
        let opened = self.tried.open(&named, &mut self.open);
        Ok(opened.and_then(|opened| Some((opened, self.sentinels.found(&named)?))))
    }

    /// Takes what most sentinels name, although it was left before.
    fn settle_for_outdated(mut self, sentinels: usize) -> Result<(T, u64)> {
        if self.outdated.len() > sentinels / 2 {
            self.outdated.sort_by_key(|named| std::cmp::Reverse(named.epoch));
            for named in &self.outdated {
                if let Some(opened) = self.tried.open(named, &mut self.open) {
                    return Ok((opened, self.sentinels.found_anew(named)));
                }
            }
        }
        Err(self.tried.error())
    }
}

/// What one attempt to reach the master has met.
#[derive(Debug, Default)]
struct Tried {
    addresses: Vec<Arc<str>>,
    error: Option<Error>,
}

impl Tried {
    /// Tries each address once.
    fn open<T>(
        &mut self,
        named: &NamedMaster,
        open: &mut impl FnMut(&Address) -> Result<T>,
    ) -> Option<T> {
        if self.addresses.contains(named.address.shown()) {
            return None;
        }
        self.addresses.push(Arc::clone(named.address.shown()));
        open(&named.address).map_err(|error| self.failed(error)).ok()
    }

    /// Keeps the first error that may pass by itself, or the last.
    fn failed(&mut self, error: Error) {
        if !self.error.as_ref().is_some_and(Error::is_transient) {
            self.error = Some(error);
        }
    }

    fn error(self) -> Error {
        self.error.unwrap_or_else(|| {
            Error::new(ErrorKind::Connection, "the sentinels name no master that can be reached")
        })
    }
}
