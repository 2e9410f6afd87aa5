//! The server without sockets and without a clock of its own.
//!
//! A [`Core`] takes bytes and returns bytes; whoever owns it carries them, and sets the clock.
//! [`TestServer`](crate::TestServer) does so with sockets and the machine's clock, a simulation
//! with a network and a time of its own. One seed and the same calls give the same bytes.
//!
//! # Several servers
//!
//! A core is a master, a replica, a node of a cluster or a sentinel, and sends other servers
//! nothing: its owner takes what it has for them, and brings it to them when it likes. So the owner
//! decides which changes a fail-over loses, and which server knows of it. Nothing happens by
//! itself: no fail-over, no election, no new connection to a master.
//!
//! A master with a replica, and a sentinel:
//!
//! ```
//! use leasehold_testserver::core::{Address, Core};
//!
//! let (first, second) = (Address::new("10.0.0.1", 6379), Address::new("10.0.0.2", 6379));
//! let (mut master, mut replica) = (Core::new(1), Core::new(2));
//! let mut sentinel = Core::new_sentinel(3);
//! sentinel.set_master("main", first.clone(), 0);
//! // The first synchronization copies all data.
//! replica.become_replica_of(first);
//! replica.load(master.add_replica(second.clone()));
//! // Then each change is an entry of the log.
//! let client = master.connect();
//! master.receive(client, b"SET a 1\r\nWAIT 1 1000\r\n");
//! for entry in master.take_log() {
//!     replica.apply(&entry);
//! }
//! assert_eq!(master.take_output(client).0, b"+OK\r\n");
//! master.acknowledge(&second, replica.offset());
//! assert_eq!(master.take_output(client).0, b":1\r\n");
//! // A fail-over. The former master loses what the replica has not got.
//! replica.promote();
//! sentinel.set_master("main", second.clone(), 1);
//! master.become_replica_of(second);
//! master.close_connections();
//! master.load(replica.add_replica(Address::new("10.0.0.1", 6379)));
//! ```
//!
//! Two masters of a cluster, between which a slot moves:
//!
//! ```
//! use leasehold_testserver::core::{Address, ClusterMap, Core, slot_of};
//! use std::rc::Rc;
//!
//! let (mut a, mut b) = (Core::new(1), Core::new(2));
//! a.join_cluster("a");
//! b.join_cluster("b");
//! let mut map = ClusterMap::new();
//! map.add_master("a", Address::new("10.0.0.1", 6379), 0..=8191);
//! map.add_master("b", Address::new("10.0.0.2", 6379), 8192..=16_383);
//! let shared = Rc::new(map.clone());
//! a.set_cluster_map(&shared);
//! b.set_cluster_map(&shared);
//! // Until the keys have moved, a asks for the missing ones at b.
//! let slot = slot_of(b"bar");
//! b.begin_import(slot);
//! a.begin_migration(slot, "b");
//! for key in a.keys_in_slot(slot) {
//!     if let Some(key) = a.export_key(&key) {
//!         b.import_key(key);
//!     }
//! }
//! map.give(slot, "b");
//! let shared = Rc::new(map);
//! b.set_cluster_map(&shared);
//! a.set_cluster_map(&shared);
//! // Messages go to all nodes.
//! for message in a.take_messages() {
//!     b.deliver(&message);
//! }
//! ```
//!
//! # Differences from Redis
//!
//! - Offsets count entries instead of bytes, and only what differs afterwards is an entry.
//! - Each synchronization copies all data; a replica serves the old ones until then.
//! - `min-replicas-to-write` looks at the age of acknowledgements at each write, not once a second.
//! - Keys that have expired are removed when they are looked up, or by [`Core::remove_expired`].
//! - A slot has an owner by the map alone; without an owner for each slot, a node is down at once.

mod clients;
mod cluster;
mod commands;
mod glob;
mod number;
mod replication;
mod resp;
mod script;
mod sentinel;
mod sorted_set;
mod state;
mod store;

pub use cluster::{ClusterMap, ExportedKey, SLOTS, slot_of};
pub use replication::{Address, LogEntry, Message, Snapshot};
pub use state::ConnectionId;
pub(crate) use state::Settings;

use commands::{Action, Call, Command, Outcome, Unknown};
use resp::{Bytes, Reply, text_of};
use script::Scripts;
use state::{Connection, Counts, DATABASES, State};
use std::cell::RefCell;
use std::rc::Rc;

/// What is left of a server's data after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All keys, as of a server that writes each change to its disk.
    Kept,
    /// Nothing, as of a server without persistence.
    Lost,
}

/// A Redis-compatible server as a passive state machine.
#[derive(Debug)]
pub struct Core {
    state: Rc<RefCell<State>>,
    scripts: Scripts,
    next_connection: u64,
}

impl Core {
    /// Creates a server whose random choices follow from the seed. Its clock stands at 1970.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(RefCell::new(State::new(seed)).into())
    }

    fn with(state: Rc<RefCell<State>>) -> Self {
        let scripts = Scripts::new(Rc::clone(&state));
        Self { state, scripts, next_connection: 1 }
    }

    /// Sets the clock, in microseconds since 1970. Answers connections whose wait is over, and ends
    /// idle ones: see [`Core::next_deadline`].
    pub fn set_clock(&mut self, now: i64) {
        let mut state = self.state.borrow_mut();
        if state.now == 0 {
            state.started_at = now;
        }
        state.now = now;
        state.end_by_clock();
        drop(state);
        self.end_waits();
    }

    /// Takes bytes from a connection, and runs the requests that they complete. Requests behind one
    /// that waits for replicas, or for the end of a pause, wait too.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8]) {
        let mut input = Vec::new();
        {
            let state = &mut *self.state.borrow_mut();
            let Some(connection) = state.connections.get_mut(&id) else { return };
            std::mem::swap(&mut connection.input, &mut input);
            state.counts.bytes_in += bytes.len() as u64;
        }
        input.extend_from_slice(bytes);
        let mut at = 0;
        while !self.is_closing(id) && !self.state.borrow().replication.waits.contains_key(&id) {
            let start = at;
            match resp::take_request(&input, &mut at) {
                Ok(Some(request)) if request.is_empty() => {}
                Ok(Some(request)) => {
                    if !self.execute(id, &request) {
                        at = start;
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.state.borrow_mut().counts.add_error(&error);
                    self.answer(id, &Reply::Error(error));
                    self.with_connection(id, |connection| connection.is_closing = true);
                }
            }
        }
        input.drain(..at);
        self.with_connection(id, |connection| connection.input = input);
        self.go_on();
    }

    /// Takes the bytes to send to a connection, and tells whether it ends after them.
    pub fn take_output(&mut self, id: ConnectionId) -> (Vec<u8>, bool) {
        let state = &mut *self.state.borrow_mut();
        let Some(connection) = state.connections.get_mut(&id) else { return (Vec::new(), true) };
        state.counts.bytes_out += connection.output.len() as u64;
        (std::mem::take(&mut connection.output), connection.is_closing)
    }

    /// Sets the password of the default user; empty for none.
    pub fn set_password(&mut self, password: &str) {
        password.clone_into(&mut self.state.borrow_mut().settings.password);
    }

    /// Replaces all settings.
    pub(crate) fn change_settings(&mut self, settings: Settings) {
        self.state.borrow_mut().settings = settings;
    }

    /// Tells whether a client has asked the server to end.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.state.borrow().is_shut_down
    }

    /// Ends all connections, scripts and channels, as a restart does, and all data if it is lost.
    ///
    /// A master has no replicas then; a replica has to load its master's data again.
    pub fn restart(&mut self, data: Data) {
        self.scripts = Scripts::new(Rc::clone(&self.state));
        let mut state = self.state.borrow_mut();
        state.connections.clear();
        state.paused_until = None;
        state.postponed.clear();
        state.counts = Counts::default();
        state.run_id = state.random.run_id();
        let history = state.run_id.clone();
        state.replication.restart(history);
        state.started_at = state.now;
        state.is_shut_down = false;
        if data == Data::Lost {
            state.clear();
        }
    }

    /// Ends the time of a key that expires, in every database; tells whether there was one.
    pub fn expire(&mut self, key: &[u8]) -> bool {
        let mut state = self.state.borrow_mut();
        let mut found = false;
        for database in 0..DATABASES {
            state.database = database;
            if state.entry(key).is_some_and(|entry| entry.expires.is_some()) {
                state.remove(database, key);
                found = true;
            }
        }
        state.replication.end_entry();
        found
    }

    /// Removes all that has expired, as Redis does several times a second; a replica leaves that to
    /// its master.
    ///
    /// Clients see no difference until the clock goes back, or a replica whose clock is behind
    /// takes the master's place.
    pub fn remove_expired(&mut self) {
        let mut state = self.state.borrow_mut();
        for database in 0..DATABASES {
            state.remove_expired(database);
        }
        state.replication.end_entry();
    }

    /// Answers a command with an error from now on, also in scripts, without running it.
    ///
    /// `command` is a name as `PUBLISH` or `CLIENT|LIST`; the name of a container refuses all its
    /// subcommands.
    pub fn refuse(&mut self, command: &str, error: &str) {
        let refusals = &mut self.state.borrow_mut().refusals;
        refusals.insert(command.to_ascii_uppercase(), text_of(error.as_bytes()));
    }

    /// Ends a refusal.
    pub fn accept(&mut self, command: &str) {
        self.state.borrow_mut().refusals.remove(&command.to_ascii_uppercase());
    }

    /// Returns the time in milliseconds until a key of a database expires, `i64::MAX` for a key
    /// that does not expire; `None` if there is no such key.
    pub fn remaining(&mut self, database: usize, key: &[u8]) -> Option<i64> {
        let mut state = self.state.borrow_mut();
        let now = state.now_ms();
        let entry = state.databases().get_mut(database)?.get(key)?;
        entry.is_alive(now).then(|| entry.expires.map_or(i64::MAX, |at| at - now))
    }

    /// Returns the keys of all databases, in no order.
    pub fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut state = self.state.borrow_mut();
        let now = state.now_ms();
        let all = state.databases().iter().flat_map(|database| database.starting_at(0, now));
        all.flat_map(|(_, keys)| keys).map(|(key, _)| key.clone()).collect()
    }

    fn with_connection(&self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.state.borrow_mut().connections.get_mut(&id) {
            change(connection);
        }
    }

    fn is_closing(&self, id: ConnectionId) -> bool {
        self.state.borrow().connections.get(&id).is_none_or(|it| it.is_closing)
    }

    fn answer(&self, id: ConnectionId, reply: &Reply) {
        self.with_connection(id, |connection| connection.send(reply));
    }

    /// Answers a request; returns whether it need not wait for the end of a pause.
    fn execute(&mut self, id: ConnectionId, args: &[Bytes]) -> bool {
        let outcome = match self.admit(id, args) {
            Ok(_) if self.state.borrow_mut().postpones(id) => return false,
            Ok(command) => self.run(id, command, args),
            Err(error) => Err(error),
        };
        self.answer(id, &outcome.unwrap_or_else(Reply::Error));
        let mut state = self.state.borrow_mut();
        state.replication.end_entry();
        let offset = state.replication.offset;
        if let Some(connection) = state.connections.get_mut(&id) {
            connection.offset = offset;
        }
        true
    }

    fn run(&mut self, id: ConnectionId, command: &'static Command, args: &[Bytes]) -> Outcome {
        match command.action {
            Action::Data(run) | Action::Control(run) => {
                let mut state = self.state.borrow_mut();
                state.run(command, args, |state| run(&mut Call { state, caller: id, args }))
            }
            Action::Script(run) => {
                // A script's commands borrow the state for themselves.
                self.scripts.set_caller(id);
                let outcome = run(&mut self.scripts, args);
                let mut state = self.state.borrow_mut();
                state.script_has_written = false;
                state.count_script(command, &outcome, &self.scripts.take_failures());
                outcome
            }
        }
    }

    /// Finds the command of a request that the connection may send.
    fn admit(&self, id: ConnectionId, args: &[Bytes]) -> Result<&'static Command, String> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let now = state.now;
        let connection = state.connections.get_mut(&id).ok_or("ERR the connection has ended")?;
        connection.last_used = now;
        state.database = connection.database;
        state.is_asking = std::mem::take(&mut connection.is_asking);
        let command = match commands::find(args, &state.mode) {
            Ok(command) => command,
            Err(Unknown::Subcommand { container }) if args.len() == 1 => {
                return Err(state.rejected(container, commands::wrong_arity(container)));
            }
            Err(unknown) => {
                let error = unknown_command(&unknown, args);
                state.counts.add_error(&error);
                return Err(error);
            }
        };
        connection.last_command = command.name.to_ascii_lowercase();
        let is_logged_in = connection.is_logged_in;
        let is_restricted = !connection.resp3 && connection.is_subscriber();
        if !command.takes(args.len()) {
            return Err(state.rejected(command.name, commands::wrong_arity(command.name)));
        }
        if !is_logged_in && !["AUTH", "HELLO", "QUIT", "RESET"].contains(&command.name) {
            return Err(state.rejected(command.name, "NOAUTH Authentication required.".to_owned()));
        }
        if let Some(elsewhere) = state.elsewhere(command, args) {
            return Err(state.rejected(command.name, elsewhere.error()));
        }
        const FOR_SUBSCRIBERS: &[&str] = &[
            "PING",
            "PSUBSCRIBE",
            "PUNSUBSCRIBE",
            "QUIT",
            "RESET",
            "SSUBSCRIBE",
            "SUBSCRIBE",
            "SUNSUBSCRIBE",
            "UNSUBSCRIBE",
        ];
        if is_restricted && !FOR_SUBSCRIBERS.contains(&command.name) {
            let name = command.name.to_ascii_lowercase();
            let error = format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT \
                 / RESET are allowed in this context"
            );
            return Err(state.rejected(command.name, error));
        }
        if state.keys().has_many_new() {
            state.remove_expired(state.database);
        }
        state.admit(command)?;
        Ok(command)
    }
}

fn unknown_command(unknown: &Unknown, args: &[Bytes]) -> String {
    match unknown {
        Unknown::Subcommand { container } => {
            let subcommand = text_of(&args[1][..args[1].len().min(128)]);
            format!("ERR unknown subcommand '{subcommand}'. Try {container} HELP.")
        }
        Unknown::Command => {
            let name = text_of(&args[0][..args[0].len().min(128)]);
            let mut beginning = String::new();
            for arg in &args[1..] {
                if beginning.len() >= 128 {
                    break;
                }
                let arg = &arg[..arg.len().min(128 - beginning.len())];
                beginning += &format!("'{}' ", text_of(arg));
            }
            format!("ERR unknown command '{name}', with args beginning with: {beginning}")
        }
    }
}
