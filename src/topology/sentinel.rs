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
//! One sentinel at a time is listened to as well ([`Sentinels::listen`]), each for a second:
//! it tells of fail-overs by itself (`+switch-master`) and is asked at the beginning, so that
//! one that is cut off delays the news by a connect time-out at most.
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

use crate::conn::{Address, Conn, Timeouts};
use crate::error::{Error, ErrorKind, Result};
use crate::script::{Call, Push, Reply, unexpected};
use crate::sync::Mutex;
use crate::time::{self, Moment};

/// How long one sentinel is listened to.
const LISTEN: Duration = Duration::from_secs(1);

/// The channel on which sentinels tell of fail-overs.
const SWITCHED: &[u8] = b"+switch-master";

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
    found: Mutex<Found>,
    /// How often another master was found than before; changed under `found`, read without.
    moves: AtomicU64,
}

/// The last master that was one.
#[derive(Debug, Default)]
struct Found {
    address: Option<Arc<str>>,
    epoch: u64,
    /// Masters that were found before, up to this epoch.
    left: Vec<Arc<str>>,
}

impl Found {
    fn is_before(&self, named: &Named) -> bool {
        let left = self.left.contains(named.address.shown());
        self.epoch < named.epoch || self.epoch == named.epoch && !left
    }
}

/// What a sentinel names.
#[derive(Debug)]
struct Named {
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
            moves: AtomicU64::new(0),
        }
    }

    /// How often another master was found than before.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// The address of the last master that was found.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        self.found.lock().address.clone()
    }

    /// Has `open` tried with what the sentinels name, until it is content: it is to see to
    /// it that this is a master. With what it gives, how often the master had moved by then.
    pub(crate) fn reach<T>(
        &self,
        timeouts: Timeouts,
        mut open: impl FnMut(&Address) -> Result<T>,
    ) -> Result<(T, u64)> {
        let sentinels: Vec<_> = self.sentinels.lock().iter().cloned().collect();
        let mut tried = Tried::default();
        let mut outdated = Vec::new();
        for sentinel in &sentinels {
            match self.ask(sentinel, timeouts) {
                Ok(named) if self.is_outdated(&named) => outdated.push(named),
                Ok(named) => {
                    if let Some(opened) = tried.open(&named, &mut open)
                        && let Some(moves) = self.found(&named)
                    {
                        return Ok((opened, moves));
                    }
                }
                Err(error) => {
                    self.put_last(sentinel);
                    tried.failed(error);
                }
            }
        }
        if outdated.len() > sentinels.len() / 2 {
            outdated.sort_by_key(|named| std::cmp::Reverse(named.epoch));
            let opened = |named| Some((tried.open(named, &mut open)?, self.found_anew(named)));
            if let Some(found) = outdated.iter().find_map(opened) {
                return Ok(found);
            }
        }
        Err(tried.error())
    }

    fn ask(&self, sentinel: &Address, timeouts: Timeouts) -> Result<Named> {
        let mut conn = Conn::open(sentinel, timeouts, self.name.clone(), &[])?.conn;
        let deadline = self.send_questions(&mut conn)?;
        let epoch = epoch(&conn.told(deadline)?)?;
        self.named(&conn.told(deadline)?, epoch)
    }

    /// Asks for the epoch and then the address, in one write; until when the answers are due.
    fn send_questions(&self, conn: &mut Conn) -> Result<Moment> {
        let question =
            |what: &str| Call::command(&[b"SENTINEL", what.as_bytes(), self.master.as_bytes()]);
        let mut bytes = question("MASTER").bytes;
        bytes.extend_from_slice(&question("GET-MASTER-ADDR-BY-NAME").bytes);
        conn.send(&bytes).map_err(|fault| fault.error)
    }

    fn named(&self, address: &Reply, epoch: u64) -> Result<Named> {
        let Reply::List(parts) = address else { return Err(unexpected(address)) };
        let mut texts = parts.iter().map(|part| part.text().and_then(|it| str::from_utf8(it).ok()));
        let mut next = || texts.next().flatten();
        match (next(), next().and_then(|port| port.parse().ok())) {
            (Some(host), Some(port)) => Ok(Named { address: self.servers.at(host, port), epoch }),
            _ => Err(unexpected(address)),
        }
    }

    fn is_outdated(&self, named: &Named) -> bool {
        !self.found.lock().is_before(named)
    }

    /// That was found to be the master. How often it has moved, unless another of a later
    /// fail-over was found meanwhile.
    fn found(&self, named: &Named) -> Option<u64> {
        let mut found = self.found.lock();
        found.is_before(named).then(|| self.note(&mut found, named))
    }

    /// The same, whatever was found before.
    fn found_anew(&self, named: &Named) -> u64 {
        self.note(&mut self.found.lock(), named)
    }

    fn note(&self, found: &mut Found, named: &Named) -> u64 {
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
        self.moves.fetch_add(moved, Ordering::AcqRel) + moved
    }

    /// Has that sentinel asked after the others, since it does not answer.
    fn put_last(&self, silent: &Address) {
        let mut sentinels = self.sentinels.lock();
        if let Some(at) = sentinels.iter().position(|one| one.shown() == silent.shown()) {
            let silent = sentinels.remove(at);
            sentinels.extend(silent);
        }
    }

    /// Listens to the sentinel with that number, counted round, until there is another
    /// master than before (then `true`), or for a second.
    pub(crate) fn listen(&self, turn: usize) -> Result<bool> {
        let sentinel = {
            let sentinels = self.sentinels.lock();
            sentinels[turn % sentinels.len()].clone()
        };
        let end = time::now() + LISTEN;
        let timeouts = Timeouts { response: LISTEN, ..self.timeouts };
        let mut conn = Conn::open(&sentinel, timeouts, self.name.clone(), &[])?.conn;
        let subscribe = Call::command(&[b"SUBSCRIBE", SWITCHED]);
        conn.send(&subscribe.bytes).map_err(|fault| fault.error)?;
        // From here on it tells of every fail-over; what was before, it answers.
        self.send_questions(&mut conn)?;
        self.hear(&mut conn, end)
    }

    fn hear(&self, conn: &mut Conn, end: Moment) -> Result<bool> {
        let mut known_epoch = None;
        while time::now() < end {
            let reply = match conn.receive(end) {
                Ok(reply) => reply,
                Err(fault) if fault.timed_out => break,
                Err(fault) => return Err(fault.error),
            };
            match reply {
                Reply::Push(Push::Message { payload, .. }) if self.is_ours(&payload) => {
                    self.send_questions(conn)?;
                }
                Reply::Push(_) => {}
                Reply::Refused(refusal) => return Err(Error::server(&refusal)),
                reply => match known_epoch.take() {
                    None => known_epoch = Some(epoch(&reply)?),
                    Some(epoch) if self.is_news(&self.named(&reply, epoch)?) => return Ok(true),
                    Some(_) => {}
                },
            }
        }
        Ok(false)
    }

    /// `<master> <old host> <old port> <new host> <new port>`.
    fn is_ours(&self, payload: &[u8]) -> bool {
        payload.strip_prefix(self.master.as_bytes()).is_some_and(|rest| rest.starts_with(b" "))
    }

    /// Whether a fail-over is known by now that was not before, and its master is one.
    fn is_news(&self, named: &Named) -> bool {
        let known = {
            let found = self.found.lock();
            !found.is_before(named) || found.address.as_ref() == Some(named.address.shown())
        };
        if known {
            return false;
        }
        let (before, name) = (self.moves(), self.name.clone());
        let opened = Conn::open(&named.address, self.timeouts, name, &[]);
        let is_master = opened.is_ok_and(|opened| !opened.is_replica);
        is_master && self.found(named).is_some_and(|moves| moves != before)
    }
}

/// How many fail-overs there have been, by the answer to `SENTINEL MASTER`.
fn epoch(master: &Reply) -> Result<u64> {
    let text = master.field("config-epoch").and_then(Reply::text);
    let epoch = text.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
    epoch.ok_or_else(|| unexpected(master))
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
        named: &Named,
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
        if !self.error.as_ref().is_some_and(Error::is_passing) {
            self.error = Some(error);
        }
    }

    fn error(self) -> Error {
        self.error.unwrap_or_else(|| {
            Error::new(ErrorKind::Connection, "the sentinels name no master that can be reached")
        })
    }
}
