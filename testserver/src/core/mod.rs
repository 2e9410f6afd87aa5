//! The server without sockets and without a clock of its own.
//!
//! A [`Core`] takes bytes and returns bytes; whoever owns it carries them, and sets the clock.
//! [`TestServer`](crate::TestServer) does so with sockets and the machine's clock, a simulation
//! with a network and a time of its own. One seed and the same calls give the same bytes.

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

pub use replication::{Address, LogEntry, Message, Snapshot};
pub use state::ConnectionId;

use commands::{Action, Call, Command, Outcome, Unknown};
use resp::{Bytes, Reply, text_of};
use script::Scripts;
use state::{Connection, DATABASES, State};
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

    /// Sets the clock, in microseconds since 1970. Answers connections whose wait is over: see
    /// [`Core::next_deadline`].
    pub fn set_clock(&mut self, now: i64) {
        let mut state = self.state.borrow_mut();
        if state.now == 0 {
            state.started_at = now;
        }
        state.now = now;
        drop(state);
        self.end_waits();
    }

    /// Opens a connection.
    pub fn connect(&mut self) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let mut state = self.state.borrow_mut();
        let (is_logged_in, now) = (state.password.is_empty(), state.now);
        let connection = Connection {
            is_logged_in,
            connected_at: now,
            last_used: now,
            last_command: "NULL".to_owned(),
            ..Connection::default()
        };
        state.connections.insert(id, connection);
        state.connections_made += 1;
        id
    }

    /// Forgets a connection that has ended.
    pub fn disconnect(&mut self, id: ConnectionId) {
        let mut state = self.state.borrow_mut();
        state.connections.remove(&id);
        state.replication.waits.remove(&id);
    }

    /// Takes bytes from a connection, and runs the requests that they complete. Requests behind one
    /// that waits for replicas wait too.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8]) {
        let mut input = match self.state.borrow_mut().connections.get_mut(&id) {
            Some(connection) => std::mem::take(&mut connection.input),
            None => return,
        };
        input.extend_from_slice(bytes);
        let mut at = 0;
        while !self.is_closing(id) && !self.state.borrow().replication.waits.contains_key(&id) {
            match resp::take_request(&input, &mut at) {
                Ok(Some(request)) if request.is_empty() => {}
                Ok(Some(request)) => self.execute(id, &request),
                Ok(None) => break,
                Err(error) => {
                    self.answer(id, &Reply::Error(error));
                    self.with_connection(id, |connection| connection.is_closing = true);
                }
            }
        }
        input.drain(..at);
        self.with_connection(id, |connection| connection.input = input);
    }

    /// Takes the bytes to send to a connection, and tells whether it ends after them.
    pub fn take_output(&mut self, id: ConnectionId) -> (Vec<u8>, bool) {
        match self.state.borrow_mut().connections.get_mut(&id) {
            Some(connection) => (std::mem::take(&mut connection.output), connection.is_closing),
            None => (Vec::new(), true),
        }
    }

    /// Sets the password of the default user; empty for none.
    pub fn set_password(&mut self, password: &str) {
        password.clone_into(&mut self.state.borrow_mut().password);
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
        state.calls.clear();
        state.connections_made = 0;
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

    fn execute(&mut self, id: ConnectionId, args: &[Bytes]) {
        let reply = self.outcome(id, args).unwrap_or_else(Reply::Error);
        self.answer(id, &reply);
        let mut state = self.state.borrow_mut();
        state.replication.end_entry();
        let offset = state.replication.offset;
        state.connections.entry(id).and_modify(|connection| connection.offset = offset);
    }

    fn outcome(&mut self, id: ConnectionId, args: &[Bytes]) -> Outcome {
        let command = self.admit(id, args)?;
        match command.action {
            Action::Data(run) | Action::Control(run) => {
                let mut state = self.state.borrow_mut();
                state.run(command, args, |state| run(&mut Call { state, caller: id, args }))
            }
            Action::Script(run) => {
                // A script's commands borrow the state for themselves.
                self.state.borrow_mut().admit(command)?;
                self.scripts.set_caller(id);
                let outcome = run(&mut self.scripts, args);
                self.state.borrow_mut().count(command, &outcome);
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
        let command = commands::find(args, &state.mode);
        let command = command.map_err(|unknown| unknown_command(&unknown, args))?;
        connection.last_command = command.name.to_ascii_lowercase();
        let mut reject = |error: String| {
            state.calls.entry(command.name).or_default().rejected += 1;
            Err(error)
        };
        if !command.takes(args.len()) {
            return reject(commands::wrong_arity(command.name));
        }
        if !connection.is_logged_in && !["AUTH", "HELLO", "QUIT", "RESET"].contains(&command.name) {
            return reject("NOAUTH Authentication required.".to_owned());
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
        let is_restricted = !connection.resp3 && connection.is_subscriber();
        if is_restricted && !FOR_SUBSCRIBERS.contains(&command.name) {
            let name = command.name.to_ascii_lowercase();
            return reject(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT \
                 / RESET are allowed in this context"
            ));
        }
        state.tidy();
        Ok(command)
    }
}

fn unknown_command(unknown: &Unknown, args: &[Bytes]) -> String {
    match unknown {
        Unknown::Subcommand { container } => match args.get(1) {
            None => commands::wrong_arity(container),
            Some(subcommand) => {
                let subcommand = &subcommand[..subcommand.len().min(128)];
                let subcommand = text_of(subcommand);
                format!("ERR unknown subcommand '{subcommand}'. Try {container} HELP.")
            }
        },
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
