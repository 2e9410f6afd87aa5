//! The master that Redis Sentinel names.
//!
//! Sentinels may be stopped, cut off or wrong, so the reply of a sentinel is checked:
//!
//! - The sentinels are asked one after the other. The server that a sentinel names has to be
//!   reachable, and has to confirm its role on the connection that will be used.
//! - A sentinel that was cut off during a fail-over keeps naming the old master, and the old master
//!   may not know of the fail-over either. Each fail-over therefore has an *epoch*, a growing
//!   number. A server named with a smaller epoch than that of the last known master is outdated.
//! - An outdated server is accepted only if a majority of the sentinels name outdated servers: then
//!   the sentinels were set up anew, or a wrong sentinel named the newer epoch.
//! - A master that was replaced within an epoch is not accepted again in the same epoch.
//! - Some other implementations have no epochs: theirs count as 0. So the majority decides about a
//!   master that comes back.
//!
//! `SENTINEL MASTER` gives the epoch. Its address may stay the old one, beside the new epoch, for
//! minutes, until all replicas follow the new master. `GET-MASTER-ADDR-BY-NAME` gives the new
//! address at once.
//!
//! A [`SentinelWatch`] asks one sentinel in each [`TURN_INTERVAL`], one after the other, over
//! connections that stay open. A sentinel that is cut off delays the detection of a fail-over by
//! one interval. After an error, the pauses before the next question to that sentinel grow.
//! [`search`] is one search for the master.

use std::collections::VecDeque;
use std::fmt;
use std::str;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::transport::call::Call;
use crate::transport::connection::{Address, Connection, Timeouts};
use crate::transport::reply::{Reply, unexpected_to};
use crate::util::clock::{self, Moment, doubled, jittered};
use crate::util::sync::{Mutex, Parker};

mod search;

use search::Search;

/// The interval between two questions, each to another sentinel.
const TURN_INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause before a sentinel that has failed is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The number of masters replaced in one epoch that are remembered.
const MAX_REPLACED: usize = 16;

/// The divisor of the time-outs for the first question to a sentinel.
const BRIEF_DIVISOR: u32 = 8;

/// The least time-out for the first question to a sentinel.
const SHORTEST_BRIEF: Duration = Duration::from_millis(100);

/// The sentinels of one master.
pub(crate) struct Sentinels {
    /// The sentinels' name for the master.
    master: String,
    /// The sentinels in the order of questions. A sentinel that fails moves to the end.
    sentinels: Mutex<VecDeque<Address>>,
    /// The settings for connecting to a server. The endpoint in these settings is not used.
    servers: Address,
    /// The name of the connections to the sentinels.
    name: String,
    timeouts: Timeouts,
    known: Mutex<KnownMaster>,
    /// The count of changes of the master. Written under the mutex `known`, read without it.
    generation: AtomicU64,
}

/// The last server that confirmed the role of master.
#[derive(Debug, Default)]
struct KnownMaster {
    address: Option<Arc<str>>,
    epoch: u64,
    /// The masters that were replaced in this epoch.
    replaced: Vec<Arc<str>>,
}

impl KnownMaster {
    /// Returns whether a named server is not outdated.
    ///
    /// Its epoch is newer, or is the same and the server was not replaced in that epoch.
    fn accepts(&self, named: &NamedMaster) -> bool {
        let was_replaced = self.replaced.contains(named.address.shown());
        self.epoch < named.epoch || self.epoch == named.epoch && !was_replaced
    }
}

/// The master according to a sentinel.
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
    /// Creates the sentinels of one master.
    ///
    /// `servers` gives the settings for connecting to the master, without its endpoint.
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
            known: Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// Returns the count of changes of the master.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the address of the last known master.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        self.known.lock().address.clone()
    }

    /// Calls `open` with the servers that the sentinels name, until it succeeds.
    ///
    /// `open` has to check that the server is a master. Returns its result with the generation in
    /// which that server is the master.
    ///
    /// Each sentinel is first asked with short time-outs. Sentinels that did not reply are asked
    /// again with full time-outs if the others lead to no master.
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
                    if error.is_unanswered() { silent.push(sentinel) } else { search.record(error) }
                }
            }
        }
        for sentinel in silent {
            match search.ask(sentinel, timeouts) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => search.record(error),
            }
        }
        search.accept_outdated(sentinels.len())
    }

    fn ask(&self, sentinel: &Address, timeouts: Timeouts) -> Result<NamedMaster> {
        let named = self.ask_over(&mut self.open(sentinel, timeouts)?);
        named.map_err(|error| error.with_server(Arc::clone(sentinel.shown())))
    }

    fn open(&self, sentinel: &Address, timeouts: Timeouts) -> Result<Connection> {
        Connection::open(sentinel, timeouts, &self.name)
    }

    /// Asks a sentinel for the master: its epoch and its address. One write, one round trip.
    fn ask_over(&self, conn: &mut Connection) -> Result<NamedMaster> {
        let question =
            |verb: &str| Call::command(&[b"SENTINEL", verb.as_bytes(), self.master.as_bytes()]);
        let mut bytes = question("MASTER").bytes;
        bytes.extend_from_slice(&question("GET-MASTER-ADDR-BY-NAME").bytes);
        let deadline = conn.send(&bytes).map_err(|fault| fault.error)?;
        let epoch = epoch(&conn.read_accepted_reply(deadline)?)?;
        self.named(&conn.read_accepted_reply(deadline)?, epoch)
    }

    /// Reads the reply to `GET-MASTER-ADDR-BY-NAME`.
    fn named(&self, address: &Reply, epoch: u64) -> Result<NamedMaster> {
        let unexpected = || unexpected_to("SENTINEL GET-MASTER-ADDR-BY-NAME", address);
        let Reply::List(parts) = address else { return Err(unexpected()) };
        let mut texts =
            parts.iter().map(|part| part.text().and_then(|text| str::from_utf8(text).ok()));
        let mut next = || texts.next().flatten();
        match (next(), next().and_then(|port| port.parse().ok())) {
            (Some(host), Some(port)) => {
                Ok(NamedMaster { address: self.servers.at(host, port), epoch })
            }
            _ => Err(unexpected()),
        }
    }

    /// Records a confirmed master and returns the generation.
    ///
    /// Returns `None` if a master of a later fail-over was recorded in the meantime.
    fn confirm(&self, named: &NamedMaster) -> Option<u64> {
        let mut known = self.known.lock();
        known.accepts(named).then(|| self.record(&mut known, named))
    }

    /// Records a confirmed master even if it is outdated, and returns the generation.
    fn confirm_outdated(&self, named: &NamedMaster) -> u64 {
        self.record(&mut self.known.lock(), named)
    }

    fn record(&self, known: &mut KnownMaster, named: &NamedMaster) -> u64 {
        let address = named.address.shown();
        let before = known.address.replace(Arc::clone(address));
        let before = before.filter(|before| before != address);
        if known.epoch != named.epoch {
            known.replaced.clear();
        }
        known.epoch = named.epoch;
        let changes = u64::from(before.is_some());
        known.replaced.extend(before);
        known.replaced.retain(|replaced| replaced != address);
        // Without epochs the list would grow with each fail-over to a new address.
        let excess = known.replaced.len().saturating_sub(MAX_REPLACED);
        known.replaced.drain(..excess);
        self.generation.fetch_add(changes, Ordering::AcqRel) + changes
    }

    /// Moves a sentinel that failed to the end of the order.
    fn put_last(&self, failed: &Address) {
        let mut sentinels = self.sentinels.lock();
        if let Some(index) = sentinels.iter().position(|one| one.shown() == failed.shown()) {
            let failed = sentinels.remove(index);
            sentinels.extend(failed);
        }
    }

    /// Checks a named master. Returns whether the check has raised the generation.
    ///
    /// Connects only to a server that differs from the known master and is not outdated.
    fn check(&self, named: &NamedMaster) -> Result<bool> {
        let known = self.known.lock();
        if !known.accepts(named) || known.address.as_ref() == Some(named.address.shown()) {
            return Ok(false);
        }
        drop(known);
        let before = self.generation();
        if Connection::open(&named.address, self.timeouts, &self.name)?.is_replica() {
            return Err(not_master(&named.address));
        }
        Ok(self.confirm(named).is_some_and(|generation| generation != before))
    }
}

/// Returns the error for a server that reports the role of replica.
pub(super) fn not_master(address: &Address) -> Error {
    Error::connection("the server is not the master").with_server(Arc::clone(address.shown()))
}

/// Returns the short time-outs of the first question to a sentinel.
fn brief(timeouts: Timeouts) -> Timeouts {
    let part = |span: Duration| span.min(SHORTEST_BRIEF.max(span / BRIEF_DIVISOR));
    let Timeouts { connect, response, replicas } = timeouts;
    Timeouts { connect: part(connect), response: part(response), replicas }
}

/// Asks the sentinels in turn for the master, for one thread.
pub(crate) struct SentinelWatch {
    sentinels: Arc<Sentinels>,
    watched: Vec<WatchedSentinel>,
}

/// One sentinel, with the time of the next question.
struct WatchedSentinel {
    sentinel: Address,
    conn: Option<Connection>,
    due: Moment,
    /// Consecutive failures of the sentinel, or of the server that it names.
    failures: u32,
}

impl SentinelWatch {
    pub(crate) fn new(sentinels: Arc<Sentinels>) -> SentinelWatch {
        let all: Vec<_> = sentinels.sentinels.lock().iter().cloned().collect();
        let mut due = clock::now();
        let watched = all.into_iter().map(|sentinel| {
            due = due + jittered(TURN_INTERVAL, due.nanos());
            WatchedSentinel { sentinel, conn: None, due, failures: 0 }
        });
        SentinelWatch { watched: watched.collect(), sentinels }
    }

    /// Blocks until the next question to a sentinel is due. `stop` ends the wait.
    pub(crate) fn wait(&mut self, stop: &Parker) {
        let due = self.watched.iter().map(|watched| watched.due).min();
        stop.park_until(due.unwrap_or(Moment::END));
    }

    /// Asks the sentinel that is due. Returns whether the master has changed.
    pub(crate) fn check(&mut self) -> Result<bool> {
        let round =
            TURN_INTERVAL.saturating_mul(u32::try_from(self.watched.len()).unwrap_or(u32::MAX));
        let Some(watched) = self.watched.iter_mut().min_by_key(|watched| watched.due) else {
            return Ok(false);
        };
        let checked = watched.ask(&self.sentinels);
        watched.failures = if checked.is_err() { watched.failures.saturating_add(1) } else { 0 };
        let pause = doubled(round, watched.failures, LONGEST_PAUSE.max(round));
        let now = clock::now();
        watched.due = now + jittered(pause, now.nanos());
        checked
    }
}

impl WatchedSentinel {
    fn ask(&mut self, sentinels: &Sentinels) -> Result<bool> {
        let named = self.named(sentinels).inspect_err(|_| sentinels.put_last(&self.sentinel))?;
        sentinels.check(&named)
    }

    fn named(&mut self, sentinels: &Sentinels) -> Result<NamedMaster> {
        let timeouts = Timeouts { response: TURN_INTERVAL, ..sentinels.timeouts };
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => sentinels.open(&self.sentinel, timeouts)?,
        };
        let named = sentinels.ask_over(&mut conn)?;
        self.conn = Some(conn);
        Ok(named)
    }
}

/// Reads the epoch, the number of fail-overs, from the reply to `SENTINEL MASTER`.
///
/// A sentinel without epochs counts as one that has seen no fail-over.
fn epoch(master: &Reply) -> Result<u64> {
    match (master, master.field("config-epoch")) {
        (Reply::List(_), None) => Ok(0),
        (_, epoch) => {
            let text = epoch.and_then(Reply::text);
            let epoch = text.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
            epoch.ok_or_else(|| unexpected_to("SENTINEL MASTER", master))
        }
    }
}
