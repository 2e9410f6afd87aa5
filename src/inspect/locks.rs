//! [`Locks`]: the search for locks by a pattern.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::iter::FusedIterator;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::info::LockInfo;
use super::live::LiveSession;
use super::lock_state::LockState;
use super::pattern;
use super::query::{self, ClientRecords, Inspector, Reading};
use crate::command::client_record;
use crate::command::name::Name;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::transport::reply::Reply;
use crate::util::clock;
use crate::util::system::HashSet;

/// The number of keys that a server looks at per `SCAN`. One such page of locks takes the server
/// about 0.2 ms. A longer page would block the server for longer, also in several
/// script calls: a server runs all commands of one write without a break.
const PAGE: &[u8] = b"32";

/// The largest number of pages that share one question to the processes.
///
/// With 10,000 locks of 8 clients, a question per page costs the server as much time as half of all
/// other commands, and takes longer than these.
const MAX_PAGES: usize = 8;

/// The longest time for which a step reads further pages before it returns the locks it has found.
const READ_AHEAD: Duration = Duration::from_millis(50);

/// The cursor at the beginning and at the end of a scan.
const BEGIN: &[u8] = b"0";

/// An iterator over the held locks whose names match a pattern, on all servers.
///
/// Returned by [`Client::locks`](crate::Client::locks). Asks a server for the next locks when all
/// found locks have been returned; each such step blocks for one response time-out and 50 ms at
/// most, plus the time for questions to processes.
///
/// If a node of a cluster does not answer, the search goes on with the other nodes, and the
/// iterator returns the errors after all locks: one error, with its
/// [server](crate::Error::server), for each such node. Such a node delays a search once, and a
/// later one by 250 ms at a time. Any other error ends the search.
#[must_use = "an iterator does nothing until it is used"]
pub struct Locks {
    engine: Arc<Engine>,
    /// The pattern of keys.
    pattern: String,
    /// The scans that are not complete. The cursor is that of the first.
    scans: VecDeque<Scan>,
    cursor: Vec<u8>,
    /// The number of pages that the next step reads. Each step doubles it.
    pages: usize,
    found: VecDeque<LockInfo>,
    /// Whether the server may be one of several nodes, which the client does not know.
    may_miss_nodes: bool,
    /// The errors to return after all locks.
    errors: VecDeque<Error>,
    /// The keys of all locks that were found. A scan may return a key several times.
    found_keys: HashSet<String>,
    records: ClientRecords,
    session: LiveSession,
}

/// One pass over the keys of a server.
#[derive(Clone, Copy, Debug)]
struct Scan {
    server: Target,
    /// Whether the expiries of permits are sought, and not the hashes of locks. Few keys are sorted
    /// sets; any string may be a number of permits.
    for_permits: bool,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

impl Iterator for Locks {
    type Item = Result<LockInfo>;

    fn next(&mut self) -> Option<Result<LockInfo>> {
        while self.found.is_empty() {
            if self.scans.is_empty() {
                if mem::take(&mut self.may_miss_nodes) && self.errors.is_empty() {
                    self.errors.extend(self.missed_nodes().err());
                }
                return self.errors.pop_front().map(Err);
            }
            self.read_ahead();
        }
        self.found.pop_front().map(Ok)
    }
}

impl FusedIterator for Locks {}

impl Locks {
    /// Prepares the search. Waits only for a cluster that is not discovered yet.
    pub(crate) fn new(engine: Arc<Engine>, pattern: &str) -> Result<Locks> {
        let pattern = pattern::of_keys(engine.name_prefix(), pattern)?;
        engine.check_open()?;
        let limit = engine.limit(engine.response_limit());
        engine.wait_until_ready(|| limit)?;
        let servers = Inspector::new(&engine, &limit).targets().into_iter();
        let both = |server| [false, true].map(|for_permits| Scan { server, for_permits });
        let may_miss_nodes = !engine.is_cluster();
        Ok(Locks {
            scans: servers.flat_map(both).collect(),
            session: LiveSession::open(&engine),
            engine,
            pattern,
            cursor: BEGIN.to_vec(),
            pages: 1,
            may_miss_nodes,
            found: VecDeque::new(),
            errors: VecDeque::new(),
            found_keys: HashSet::default(),
            records: ClientRecords::default(),
        })
    }

    /// Reads the next pages, then asks the processes of the holders for details.
    fn read_ahead(&mut self) {
        let (mut found, end) = (Vec::new(), clock::now() + READ_AHEAD);
        for page in 0..self.pages {
            if page > 0 && clock::now() >= end {
                break;
            }
            let Some(scan) = self.scans.pop_front() else { break };
            match self.read_page(scan) {
                Ok(locks) => {
                    found.extend(locks);
                    if self.cursor != BEGIN {
                        self.scans.push_front(scan);
                    }
                }
                // The search goes on with the next server if the error concerns one of several.
                Err(error) => {
                    self.cursor = BEGIN.to_vec();
                    if self.engine.is_partial(&error) {
                        self.note(error);
                    } else {
                        self.scans.clear();
                        self.errors.push_back(error);
                    }
                }
            }
        }
        self.pages = MAX_PAGES.min(2 * self.pages);
        query::add_answers(&mut self.session, self.engine.name_prefix(), &mut found);
        self.found.extend(found);
    }

    /// Reads the next keys of a server, and the locks among them.
    ///
    /// An error about one of several servers is that of the scan.
    fn read_page(&mut self, scan: Scan) -> Result<Vec<LockInfo>> {
        let engine = Arc::clone(&self.engine);
        engine.check_open()?;
        let limit = engine.limit(engine.response_limit());
        let inspector = Inspector::new(&engine, &limit);
        let keys = self.scan(&inspector, scan)?;
        let names = self.new_names(keys, scan);
        let reading = if scan.for_permits { Reading::Permits } else { Reading::Hash };
        let states = inspector.describe(&names, reading);
        let mut locks = Vec::new();
        for (name, state) in names.into_iter().zip(states) {
            let state = self.known(state)?.flatten();
            locks.extend(state.filter(LockState::is_lock).map(|state| (name, state)));
        }
        let channels = locks.iter().map(|(name, state)| state.channel(name));
        let counts = inspector.subscribers(&channels.collect::<Vec<_>>());
        let mut found = Vec::new();
        for ((name, state), count) in locks.iter().zip(counts) {
            if let Some(count) = self.known(count)? {
                self.found_keys.insert(name.key().to_owned());
                found.push(LockInfo::new(name, state, count));
            }
        }
        let people = found.iter_mut().flat_map(LockInfo::people);
        inspector.add_records(&mut self.records, people)?;
        Ok(found)
    }

    /// Fails if the server is one of several nodes of a cluster, which refuses no search for the
    /// keys of the others. For a client that is not configured for a cluster.
    fn missed_nodes(&self) -> Result<()> {
        let limit = self.engine.limit(self.engine.response_limit());
        let inspector = Inspector::new(&self.engine, &limit);
        let hello = inspector.ask(Call::command(&[b"HELLO"]), Target::Any)?;
        if hello.field("mode").and_then(Reply::text) != Some(b"cluster") {
            return Ok(());
        }
        let ranges = inspector.ask(Call::command(&[b"CLUSTER", b"SLOTS"]), Target::Any)?;
        let mut masters = BTreeSet::new();
        for range in ranges.into_list()? {
            // The first and the last slot, the master, the replicas.
            masters.extend(range.into_list()?.into_iter().nth(2).map(|it| format!("{it:?}")));
        }
        if masters.len() < 2 {
            return Ok(());
        }
        let text = "the server is one node of a cluster, and only its locks were found; use \
                    Builder::cluster";
        Err(Error::configuration(text))
    }

    /// Returns a fact about one lock, or `None` if the node of its slot did not answer.
    ///
    /// That need not be the scanned server: a slot may move. The scan goes on.
    fn known<T>(&mut self, fact: Result<T>) -> Result<Option<T>> {
        match fact {
            Err(error) if self.engine.is_partial(&error) => {
                self.note(error);
                Ok(None)
            }
            fact => fact.map(Some),
        }
    }

    /// Keeps the first error of each server.
    fn note(&mut self, error: Error) {
        if self.errors.iter().all(|noted| noted.server() != error.server()) {
            self.errors.push_back(error);
        }
    }

    /// Returns the next keys of a server.
    fn scan(&mut self, inspector: &Inspector<'_>, scan: Scan) -> Result<Vec<Vec<u8>>> {
        let (pattern, of_type): (&[u8], &[u8]) = if scan.for_permits {
            (b"*:timeout", b"zset")
        } else {
            (self.pattern.as_bytes(), b"hash")
        };
        let parts: [&[u8]; 8] =
            [b"SCAN", &self.cursor, b"MATCH", pattern, b"COUNT", PAGE, b"TYPE", of_type];
        let reply = inspector.ask_in_turn(Call::command(&parts), scan.server)?;
        let mut parts = reply.into_list()?.into_iter();
        let mut next = || parts.next().unwrap_or(Reply::Nil);
        self.cursor = next().into_text()?;
        next().into_texts()
    }

    /// Returns the names of those keys that may be locks and were not found before.
    fn new_names(&self, keys: Vec<Vec<u8>>, scan: Scan) -> Vec<Name> {
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let keys: BTreeSet<_> = if scan.for_permits {
            let keys: Vec<_> = keys.collect();
            let semaphores = keys.iter().flat_map(|key| Name::keys_of_expiries(key));
            let wanted = semaphores.filter(|key| pattern::matches(&self.pattern, key));
            wanted.map(str::to_owned).collect()
        } else {
            keys.collect()
        };
        let is_new = |key: &String| !client_record::is_key(key) && !self.found_keys.contains(key);
        let prefix = self.engine.name_prefix();
        let name = |key: String| Name::of_any_lock(prefix, key.strip_prefix(prefix)?.into()).ok();
        keys.into_iter().filter(is_new).filter_map(name).collect()
    }
}
