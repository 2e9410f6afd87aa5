//! [`LockWatch`]: repeated looks at locks with known names.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::holder::HolderInfo;
use super::info::LockInfo;
use super::live::LiveSession;
use super::query::{self, ClientRecords, Inspector};
use crate::command::name::Name;
use crate::engine::Engine;
use crate::error::Result;
use crate::transport::pool::Target;
use crate::util::clock::{self, Moment};
use crate::util::system::HashMap;

/// The time after which a client without a record is looked up again.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// The number of records above which the records of unseen clients are dropped.
const MAX_RECORDS: usize = 1024;

/// Repeated looks at a fixed set of locks, each with its holders and waiting callers.
///
/// Returned by [`Client::watch_locks`](crate::Client::watch_locks). For programs that display
/// events of locks. A watch changes nothing and delays no caller. It never subscribes to the
/// channel of a lock: holders would take the subscriber for a waiting process, and yield.
///
/// A look finds the state at one moment. [`HolderInfo::acquired`] counts the holds of a client,
/// those between two looks included; a larger [`LockInfo::token`] tells of such holds too.
///
/// The watch keeps a connection for the answers of the holders' processes, and the facts about
/// their clients. It keeps the client running.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let mut watch = client.watch_locks(["orders:42", "orders:43"])?;
/// for _ in 0..10 {
///     for (name, lock) in ["orders:42", "orders:43"].iter().zip(watch.look()?) {
///         println!("{name} is held by {:?}", lock.as_ref().map(|lock| lock.holders()));
///     }
///     std::thread::sleep(std::time::Duration::from_millis(250));
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a watch does nothing until look() is called"]
pub struct LockWatch {
    engine: Arc<Engine>,
    /// The names, each once.
    names: Vec<Name>,
    /// The position in `names` of each name that the caller gave.
    given: Vec<usize>,
    records: ClientRecords,
    /// The moment from which clients without a record are looked up again.
    next_lookup: Moment,
    session: LiveSession,
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.given.iter().map(|at| self.names[*at].given());
        f.debug_struct("LockWatch").field("names", &Vec::from_iter(names)).finish_non_exhaustive()
    }
}

impl LockWatch {
    /// Returns a watch of these names. No round trip.
    pub(crate) fn new(
        engine: Arc<Engine>,
        given: impl Iterator<Item = String>,
    ) -> Result<LockWatch> {
        engine.check_open()?;
        let mut watch = LockWatch {
            names: Vec::new(),
            given: Vec::new(),
            records: ClientRecords::default(),
            next_lookup: Moment::START,
            session: LiveSession::open(&engine),
            engine,
        };
        let mut positions = HashMap::<String, usize>::default();
        for given in given {
            let at = *positions.entry(given.clone()).or_insert(watch.names.len());
            if at == watch.names.len() {
                let given: Arc<str> = given.into();
                let name = Name::of_any_lock(watch.engine.name_prefix(), Arc::clone(&given));
                watch.names.push(name.map_err(|error| error.with_lock_name(given))?);
            }
            watch.given.push(at);
        }
        Ok(watch)
    }

    /// Returns the state of each lock, in the order of the names; `None` for a free lock.
    ///
    /// A look has the facts of [`Client::locks`](crate::Client::locks). All locks in one slot of a
    /// cluster, or of a single server, are read at the same moment if there are at most 32 of them.
    ///
    /// A look takes a server about 15 us per lock, in which no other command runs. So a watch suits
    /// some hundreds of locks. A look at a semaphore lists all its permits in use.
    ///
    /// Blocks until the servers answer, for one response time-out at most. One round trip, to all
    /// nodes of a cluster at the same time. One more for clients that no earlier look has seen;
    /// clients without a [record](crate::Builder::announce) are looked up again once a second. Then
    /// asks the processes of the holders for more facts. Processes without an answer delay the look
    /// by 125 ms at most, and are not asked again for 1 s, later for up to 16 s. The first look
    /// opens a connection for the answers, in up to 250 ms per server that it tries. After a
    /// failure of this connection, the same pauses apply.
    ///
    /// # Errors
    /// The errors of [`Lock::holder`](crate::Lock::holder). The next look tries again. In a cluster
    /// one node that does not answer makes the look fail; [`look_each`](LockWatch::look_each)
    /// returns the locks of the other nodes.
    pub fn look(&mut self) -> Result<Vec<Option<LockInfo>>> {
        self.look_each()?.into_iter().collect()
    }

    /// Returns the state of each lock as [`look`](LockWatch::look) does, with an error for each
    /// lock whose state is unknown.
    ///
    /// So one node of a cluster that does not answer hides only the locks in its slots. The facts
    /// about clients whose records are on that node are missing, also for locks on other nodes;
    /// they are asked for again after 16 s. The first look that meets the silence takes one
    /// response time-out. Later looks wait for the node for 250 ms, and as long for its records. If
    /// all locks of the watch are on nodes that do not answer, later looks also take one response
    /// time-out.
    ///
    /// # Errors
    /// An inner error concerns one lock, and names it. The outer errors concern all:
    /// [`is_closed`](crate::Error::is_closed) after [`close`](crate::Client::close), and
    /// [`is_server`](crate::Error::is_server) without the permission to read the records of
    /// clients. The next look tries again.
    pub fn look_each(&mut self) -> Result<Vec<Result<Option<LockInfo>>>> {
        let engine = Arc::clone(&self.engine);
        engine.check_open()?;
        let _active = engine.begin_call();
        let limit = engine.limit(engine.response_limit());
        engine.wait_until_ready(|| limit)?;
        let inspector = Inspector::new(&engine, &limit);
        let mut found = Vec::new();
        let mut positions = Vec::with_capacity(self.names.len());
        let states = inspector.look(&self.names, self.behind_release());
        for (name, state) in self.names.iter().zip(states) {
            positions.push(match state {
                Ok(Some((state, count))) => {
                    found.push(LockInfo::new(name, &state, count));
                    Ok(Some(found.len() - 1))
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error.with_lock_name(Arc::clone(name.given()))),
            });
        }
        self.forget_records(&mut found);
        let people = found.iter_mut().flat_map(LockInfo::people);
        inspector.add_records(&mut self.records, people)?;
        self.session.begin_query();
        query::add_answers(&mut self.session, engine.name_prefix(), &mut found);
        let lock = |at: &usize| positions[*at].clone().map(|at| Some(found[at?].clone()));
        Ok(self.given.iter().map(lock).collect())
    }

    /// Returns the connection of an unanswered release of this process, which a look follows.
    fn behind_release(&self) -> Target {
        let release = |name: &Name| self.engine.known_local(name.key())?.unanswered_release();
        Target::prefer(self.names.iter().find_map(release))
    }

    /// Forgets clients without a record at intervals, and clients that are gone if there are many.
    fn forget_records(&mut self, found: &mut [LockInfo]) {
        let now = clock::now();
        if self.next_lookup <= now {
            self.next_lookup = now + RECORD_INTERVAL;
            self.records.forget_missing();
        }
        if self.records.len() > MAX_RECORDS {
            let seen = found.iter_mut().flat_map(LockInfo::people);
            let seen: BTreeSet<_> =
                seen.filter_map(|holder| HolderInfo::client_id(holder)).collect();
            self.records.forget_others(&seen);
        }
    }
}
