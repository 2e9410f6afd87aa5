//! A master and its replicas.
//!
//! The servers exchange nothing themselves: their owner carries all between them.
//!
//! 1. [`Core::add_replica`] makes a server a master's replica, and returns a [`Snapshot`] of all
//!    data for it. The replica takes it with [`Core::load`].
//! 2. Each command or script that changes data makes one [`LogEntry`] at the master, which
//!    [`Core::take_log`] hands out. It has what has changed, not the command: so neither the clock
//!    nor a random choice can make a replica differ. A published message is a change too.
//! 3. Each replica applies the entries in their order ([`Core::apply`]), at any time, as far as the
//!    owner likes. What comes twice, late or from a former master is not applied.
//! 4. [`Core::acknowledge`] tells the master how far a replica has come. `WAIT` and
//!    `min-replicas-to-write` know nothing else.
//!
//! A replica hides the keys that have expired by its own clock, and removes them when its master
//! does. [`Core::promote`] makes it a master, which removes them itself.

use super::Core;
use super::resp::{Bytes, Reply};
use super::state::{ConnectionId, State};
use super::store::{Entry, Keyspace};
use std::collections::BTreeMap;
use std::fmt;

/// The time without an acknowledgement after which a replica is not good, in microseconds:
/// `min-replicas-max-lag`.
const MAX_LAG: i64 = 10_000_000;

/// The host and the port of a server, as other servers and clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The name or the number of the host.
    pub host: String,
    /// The port for clients.
    pub port: u16,
}

impl Address {
    /// Creates the address of a host and a port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub(crate) channel: Bytes,
    pub(crate) text: Bytes,
    pub(crate) is_sharded: bool,
}

impl Message {
    /// Tells whether the message is for one shard of a cluster (`SPUBLISH`).
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.is_sharded
    }
}

/// What a command changes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A key has another entry, or none.
    Key {
        database: usize,
        key: Bytes,
        entry: Option<Entry>,
    },
    /// A database has no keys any more.
    Clear {
        database: usize,
    },
    Message(Message),
}

/// The changes of one command or script at a master.
#[derive(Clone, Debug)]
pub struct LogEntry {
    history: String,
    offset: u64,
    changes: Vec<Change>,
}

impl LogEntry {
    /// Returns the place of the entry in the log of its master.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// All data of a master at one place of its log.
#[derive(Clone, Debug)]
pub struct Snapshot {
    history: String,
    offset: u64,
    databases: Vec<Keyspace>,
}

impl Snapshot {
    /// Returns the offset of the last entry of the log that the data contain.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// A replica, as its master sees it.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) address: Address,
    /// The last acknowledgement. A replica without one is not online yet.
    pub(crate) acknowledged: Option<Acknowledgement>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement {
    pub(crate) offset: u64,
    /// In microseconds since 1970, by the master's clock.
    pub(crate) at: i64,
}

/// A connection that waits for acknowledgements.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) offset: u64,
    pub(crate) replicas: i64,
    /// The end of the wait, in microseconds since 1970.
    pub(crate) until: Option<i64>,
}

/// The part of a server in the replication.
#[derive(Debug)]
pub(crate) struct Replication {
    /// The master that this server follows, if it is a replica.
    pub(crate) master: Option<Address>,
    /// Whether a replica has its master's data.
    pub(crate) is_synchronized: bool,
    /// Forty hexadecimal digits for the data since the last promotion or restart.
    pub(crate) history: String,
    /// The last entry of the log that the data contain.
    pub(crate) offset: u64,
    pub(crate) replicas: Vec<Replica>,
    /// Whether changes count: from the first replica on.
    is_active: bool,
    /// The changes of the running command or script.
    changes: Vec<Change>,
    /// The entries for the replicas.
    log: Vec<LogEntry>,
    /// The connections that wait for replicas.
    pub(crate) waits: BTreeMap<ConnectionId, Wait>,
}

impl Replication {
    /// A master without replicas.
    pub(crate) fn new(history: String) -> Self {
        Self {
            master: None,
            is_synchronized: false,
            history,
            offset: 0,
            replicas: Vec::new(),
            is_active: false,
            changes: Vec::new(),
            log: Vec::new(),
            waits: BTreeMap::new(),
        }
    }

    /// Tells whether changes have to be recorded.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Returns the number of replicas that have acknowledged an entry of the log.
    pub(crate) fn count(&self, offset: u64) -> usize {
        let acknowledged = self.replicas.iter().filter_map(|replica| replica.acknowledged);
        acknowledged.filter(|it| it.offset >= offset).count()
    }

    pub(crate) fn count_good(&self, now: i64) -> usize {
        let acknowledged = self.replicas.iter().filter_map(|replica| replica.acknowledged);
        acknowledged.filter(|it| now - it.at <= MAX_LAG).count()
    }

    pub(crate) fn record(&mut self, change: Change) {
        if self.is_active {
            self.changes.push(change);
        }
    }

    /// Makes an entry of what has changed since the last one.
    pub(crate) fn end_entry(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return;
        }
        self.offset += 1;
        if !self.replicas.is_empty() {
            let (history, offset) = (self.history.clone(), self.offset);
            self.log.push(LogEntry { history, offset, changes });
        }
    }

    /// Begins anew in the same role, without a connection to another server.
    pub(crate) fn restart(&mut self, history: String) {
        self.end();
        self.history = history;
        self.waits.clear();
        self.is_synchronized = false;
    }

    /// Forgets all replicas, and the log.
    fn end(&mut self) {
        self.replicas.clear();
        self.is_active = false;
        self.changes.clear();
        self.log.clear();
    }
}

impl State {
    /// Returns the connections that need not wait any longer, and what `WAIT` answers them.
    fn ended_waits(&self) -> Vec<(ConnectionId, usize)> {
        let waits = self.replication.waits.iter();
        let ended = waits.filter_map(|(id, wait)| {
            let count = self.replication.count(wait.offset);
            let is_over = wait.until.is_some_and(|until| until <= self.now);
            (is_over || count as i64 >= wait.replicas).then_some((*id, count))
        });
        ended.collect()
    }

    /// Applies a change of the master.
    fn change(&mut self, change: &Change) {
        match change {
            Change::Key { database, key, entry: Some(entry) } => {
                self.databases()[*database].set(key, entry.clone());
            }
            Change::Key { database, key, entry: None } => {
                self.databases()[*database].remove(key);
            }
            Change::Clear { database } => self.databases()[*database].clear(),
            Change::Message(message) => {
                self.deliver(message);
            }
        }
    }
}

/// Replicas, their masters, and what goes from one to the other.
impl Core {
    /// Makes the server a replica of the master at this address; does nothing if it is.
    ///
    /// It keeps its data until [`Core::load`]. Connections that wait for replicas get the error
    /// `UNBLOCKED` and end; all others stay. Sentinels end them too: see
    /// [`Core::close_connections`].
    pub fn become_replica_of(&mut self, master: Address) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.replication.master.as_ref() == Some(&master) {
            return;
        }
        state.replication.end();
        state.replication.master = Some(master);
        state.replication.is_synchronized = false;
        let error = "UNBLOCKED force unblock from blocking operation, instance state changed \
                     (master -> replica?)";
        for id in std::mem::take(&mut state.replication.waits).into_keys() {
            if let Some(connection) = state.connections.get_mut(&id) {
                connection.send(&Reply::Error(error.to_owned()));
                connection.is_closing = true;
            }
        }
    }

    /// Makes a replica a master without replicas; does nothing at a master. Connections stay.
    pub fn promote(&mut self) {
        let mut state = self.state.borrow_mut();
        if state.replication.master.take().is_some() {
            state.replication.end();
            state.replication.history = state.random.run_id();
        }
    }

    /// Returns the master that the server follows, or `None` if it is a master.
    #[must_use]
    pub fn master(&self) -> Option<Address> {
        self.state.borrow().replication.master.clone()
    }

    /// Ends all connections after what they have to send, as a sentinel has it done by a server
    /// whose role it changes.
    pub fn close_connections(&mut self) {
        for connection in self.state.borrow_mut().connections.values_mut() {
            connection.is_closing = true;
        }
    }

    /// Begins to log changes for the replica at this address, and returns all data until then.
    ///
    /// The replica is online from its first acknowledgement on. One that has lost its connection to
    /// the master is added again.
    pub fn add_replica(&mut self, address: Address) -> Snapshot {
        let mut state = self.state.borrow_mut();
        let replication = &mut state.replication;
        replication.replicas.retain(|replica| replica.address != address);
        replication.replicas.push(Replica { address, acknowledged: None });
        replication.is_active = replication.master.is_none();
        let (history, offset) = (replication.history.clone(), replication.offset);
        Snapshot { history, offset, databases: state.databases().to_vec() }
    }

    /// Forgets a replica: the connection to it has ended.
    pub fn remove_replica(&mut self, address: &Address) {
        let replicas = &mut self.state.borrow_mut().replication.replicas;
        replicas.retain(|replica| replica.address != *address);
    }

    /// Takes what has changed since the last call, for all replicas.
    pub fn take_log(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.state.borrow_mut().replication.log)
    }

    /// Replaces the data of a replica by those of its master. Returns whether it is a replica.
    pub fn load(&mut self, snapshot: Snapshot) -> bool {
        let mut state = self.state.borrow_mut();
        if state.replication.master.is_none() {
            return false;
        }
        state.replication.history = snapshot.history;
        state.replication.offset = snapshot.offset;
        state.replication.is_synchronized = true;
        for (own, masters) in state.databases().iter_mut().zip(snapshot.databases) {
            *own = masters;
        }
        true
    }

    /// Applies an entry of the master's log at a replica.
    ///
    /// Returns whether it was the next one after what the replica has; otherwise nothing happens. A
    /// replica that has missed an entry needs another [`Snapshot`].
    pub fn apply(&mut self, entry: &LogEntry) -> bool {
        let mut state = self.state.borrow_mut();
        let replication = &mut state.replication;
        let is_next = replication.master.is_some()
            && replication.is_synchronized
            && replication.history == entry.history
            && replication.offset + 1 == entry.offset;
        if is_next {
            replication.offset = entry.offset;
            for change in &entry.changes {
                state.change(change);
            }
        }
        is_next
    }

    /// Returns the offset of the last entry of the log that the server's data contain.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.state.borrow().replication.offset
    }

    /// Tells a master how much of its log a replica has applied. Answers connections that have
    /// waited for it.
    ///
    /// A real replica does so each second, also without changes, and when a connection waits.
    pub fn acknowledge(&mut self, replica: &Address, offset: u64) {
        let mut state = self.state.borrow_mut();
        let at = state.now;
        let mut replicas = state.replication.replicas.iter_mut();
        if let Some(replica) = replicas.find(|it| it.address == *replica) {
            replica.acknowledged = Some(Acknowledgement { offset, at });
        }
        drop(state);
        self.end_waits();
    }

    /// Answers the connections whose wait has ended, and runs what they have sent meanwhile.
    pub(super) fn end_waits(&mut self) {
        let ended = self.state.borrow().ended_waits();
        for (id, count) in &ended {
            self.answer(*id, &Reply::count(*count));
            let mut state = self.state.borrow_mut();
            state.replication.waits.remove(id);
            state.released.push(*id);
        }
        self.go_on();
    }
}
