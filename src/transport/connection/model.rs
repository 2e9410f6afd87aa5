//! A server inside a model, and the connections to it.
//!
//! The server knows the commands and the scripts that the pool and the plain lock send. There is
//! no clock, so a lease never ends. A test can plan the failure of a connection, see [`Mishap`].
//! Push messages wait for the reader of their connection, which sleeps until one arrives.

use super::{Address, Fault, ReadLimit, Timeouts};
use crate::command::script;
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::transport::call::Call;
use crate::transport::reply::{Push, Reply};
use crate::transport::script::Script;
use crate::util::clock::Moment;
use crate::util::sync::{Condvar, Mutex};
use shuttle::rand::Rng as _;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A planned failure of the next connection that is opened or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// The connection is not opened.
    Unreachable,
    /// The connection breaks after `ran` commands have run and `answered` replies were sent.
    Broken { ran: usize, answered: usize },
    /// No reply arrives, and some are late. The server may run the written commands later, see
    /// [`Server::run_unread`].
    Silent,
}

/// The server of one run of a model.
#[derive(Debug, Default)]
pub(crate) struct Server {
    state: Mutex<State>,
    changed: Condvar,
}

/// The client number of commands that the test itself runs.
const NO_CLIENT: usize = usize::MAX;

type Bytes = Vec<u8>;
type Command = Vec<Bytes>;

#[derive(Debug, Default)]
struct State {
    /// The owner field of each held lock.
    locks: BTreeMap<Bytes, Bytes>,
    /// The first arguments of all ECHO commands, in order of execution.
    echoed: Vec<Bytes>,
    /// The digests of the loaded scripts.
    loaded: BTreeSet<Bytes>,
    /// Keys whose value is not a lock.
    spoiled: BTreeSet<Bytes>,
    /// All connections ever opened. The index is the client id.
    clients: Vec<Client>,
    mishaps: VecDeque<Mishap>,
}

/// The server's side of a connection.
#[derive(Debug)]
struct Client {
    name: String,
    /// Whether the client's side still exists.
    open: bool,
    fate: Fate,
    /// Replies and push messages that the client has not read.
    outgoing: VecDeque<Reply>,
    /// The length of `outgoing` beyond which replies are lost.
    outgoing_limit: Option<usize>,
    /// Commands that a silent connection has not run.
    unread: VecDeque<Command>,
    channels: BTreeSet<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Good,
    Broken,
    Silent,
}

// The model checker runs all threads of a model on one thread of the system.
thread_local!(static CURRENT: RefCell<Weak<Server>> = RefCell::default());

impl Server {
    /// Starts the server for all later connections. The server lives as long as the returned `Arc`.
    pub(crate) fn start() -> Arc<Server> {
        let server = Arc::default();
        CURRENT.with(|current| *current.borrow_mut() = Arc::downgrade(&server));
        server
    }

    fn current() -> Result<Arc<Server>> {
        let server = CURRENT.with(|current| current.borrow().upgrade());
        server.ok_or_else(|| broken("there is no server"))
    }

    /// Plans a failure of the next connection that is opened or written to.
    pub(crate) fn plan(&self, mishap: Mishap) {
        self.state.lock().mishaps.push_back(mishap);
    }

    /// Runs a command of a client without a modelled connection.
    pub(crate) fn execute(&self, call: &Call) -> Reply {
        let mut state = self.state.lock();
        state.loaded.extend(call.script.map(|script| script.digest().into()));
        let commands = parse(&call.bytes);
        let reply = commands.first().and_then(|command| state.execute_command(NO_CLIENT, command));
        self.changed.notify_all();
        reply.expect("a command with a reply")
    }

    /// Breaks all connections whose names have this ending.
    pub(crate) fn cut(&self, name: &str) {
        let mut state = self.state.lock();
        let cut = state.clients.iter_mut().filter(|client| client.name.ends_with(name));
        cut.for_each(Client::cut);
        self.changed.notify_all();
    }

    /// Runs the commands that were written to silent connections.
    pub(crate) fn run_unread(&self) {
        let mut state = self.state.lock();
        for id in 0..state.clients.len() {
            while let Some(command) = state.clients[id].unread.pop_front() {
                state.run(id, &command);
            }
        }
        self.changed.notify_all();
    }

    /// Returns the arguments of all ECHO commands, in order of execution.
    pub(crate) fn echoed(&self) -> Vec<String> {
        let state = self.state.lock();
        state.echoed.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }

    pub(crate) fn is_locked(&self) -> bool {
        !self.state.lock().locks.is_empty()
    }

    /// Gives a key a value that is not a lock.
    pub(crate) fn spoil(&self, key: &str) {
        self.state.lock().spoiled.insert(key.into());
    }

    /// Removes all loaded scripts.
    pub(crate) fn flush_scripts(&self) {
        self.state.lock().loaded.clear();
    }
}

impl Client {
    fn cut(&mut self) {
        self.fate = Fate::Broken;
        self.channels.clear();
        self.outgoing.clear();
    }
}

impl State {
    /// Opens a connection. Panics if the shared connection of that name has an open one.
    fn connect(&mut self, name: String) -> usize {
        let shared = |name: &str| name.rsplit_once('.').map(|(shared, _)| shared.to_owned());
        let is_same = |client: &Client| {
            client.open && shared(&client.name).is_some_and(|other| Some(other) == shared(&name))
        };
        let is_taken = self.clients.iter().any(is_same);
        assert!(!is_taken, "a shared connection has two open connections");
        let (outgoing, outgoing_limit, unread, channels) = Default::default();
        let (open, fate) = (true, Fate::Good);
        let client = Client { name, open, fate, outgoing, outgoing_limit, unread, channels };
        self.clients.push(client);
        self.clients.len() - 1
    }

    /// Accepts written commands. Returns the commands to be run at once.
    fn take(&mut self, id: usize, mut commands: Vec<Command>) -> Vec<Command> {
        if self.clients[id].fate == Fate::Silent {
            self.clients[id].unread.extend(commands);
            return Vec::new();
        }
        match self.mishaps.pop_front() {
            Some(Mishap::Silent) => {
                self.clients[id].fate = Fate::Silent;
                self.clients[id].unread = commands.into();
                return Vec::new();
            }
            Some(Mishap::Broken { ran, answered }) => {
                commands.truncate(ran);
                let client = &mut self.clients[id];
                client.fate = Fate::Broken;
                client.outgoing_limit = Some(client.outgoing.len() + answered);
            }
            Some(Mishap::Unreachable) | None => {}
        }
        commands
    }

    fn run(&mut self, id: usize, command: &Command) {
        let Some(reply) = self.execute_command(id, command) else { return };
        let client = &mut self.clients[id];
        if client.outgoing_limit.is_none_or(|limit| client.outgoing.len() < limit) {
            client.outgoing.push_back(reply);
        }
    }

    /// Runs a command. Returns `None` if push messages take the place of its reply.
    fn execute_command(&mut self, id: usize, command: &Command) -> Option<Reply> {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        Some(match words[..] {
            [b"ECHO", text] => {
                self.echoed.push(text.to_vec());
                Reply::Text(text.to_vec())
            }
            [b"SCRIPT", b"LOAD", source] => self.load(source),
            [b"EVALSHA", digest, b"1", lock, ref args @ ..] => self.call(digest, lock, args),
            [b"EVALSHA", digest, count, ref rest @ ..] => self.call_all(digest, count, rest),
            [b"PUBLISH", channel, payload] => self.publish(channel, payload),
            [b"SUBSCRIBE", ref channels @ ..] => return self.subscribe(id, channels),
            [b"UNSUBSCRIBE", ref channels @ ..] => return self.unsubscribe(id, channels),
            _ => panic!("the server does not know {command:?}"),
        })
    }

    fn load(&mut self, source: &[u8]) -> Reply {
        let digest = known(|script| script.source().as_bytes() == source).digest();
        self.loaded.insert(digest.into());
        Reply::Text(digest.into())
    }

    /// Runs the calls of one joined call.
    fn call_all(&mut self, digest: &[u8], count: &[u8], rest: &[&[u8]]) -> Reply {
        assert_eq!(digest, script::CALL_MANY.digest().as_bytes(), "a script with many keys");
        if !self.loaded.contains(digest) {
            return refused("NOSCRIPT");
        }
        let count: usize = String::from_utf8_lossy(count).parse().expect("a number");
        let (locks, args) = rest.split_at(count);
        let (calls, mut args) = args.split_first().expect("the codes of the calls");
        assert_eq!(calls.len(), 2 * count);
        let one = |(lock, call): (&&[u8], &[u8])| {
            let (own, others) = args.split_at(usize::from(call[1] - b'0'));
            args = others;
            self.run_script(
                known(|script| script.joining.is_some_and(|it| it.code == call[0])).name,
                lock,
                own,
            )
        };
        let replies = locks.iter().zip(calls.chunks(2)).map(one).collect();
        assert!(args.is_empty(), "arguments without a call");
        Reply::List(replies)
    }

    fn call(&mut self, digest: &[u8], lock: &[u8], args: &[&[u8]]) -> Reply {
        let name = known(|script| script.digest().as_bytes() == digest).name;
        if self.loaded.contains(digest) {
            self.run_script(name, lock, args)
        } else {
            refused("NOSCRIPT")
        }
    }

    fn run_script(&mut self, name: &str, lock: &[u8], args: &[&[u8]]) -> Reply {
        if self.spoiled.contains(lock) {
            return refused("WRONGTYPE");
        }
        match (name, args) {
            ("plain_acquire", [_, owner, wake @ ..]) => self.acquire(lock, owner, wake),
            ("plain_release", [owner, channel, message]) => {
                if self.is_owner(lock, owner) {
                    self.free(lock, channel, message)
                } else {
                    Reply::Int(-1)
                }
            }
            ("plain_force_unlock", [channel, message]) => {
                if self.locks.contains_key(lock) {
                    self.free(lock, channel, message)
                } else {
                    Reply::Int(-1)
                }
            }
            _ => panic!("the server does not know {name} with {} arguments", args.len()),
        }
    }

    fn is_owner(&self, lock: &[u8], owner: &[u8]) -> bool {
        self.locks.get(lock).is_some_and(|stored| stored == owner)
    }

    fn acquire(&mut self, lock: &[u8], owner: &[u8], wake: &[&[u8]]) -> Reply {
        if !self.locks.contains_key(lock) || self.is_owner(lock, owner) {
            self.locks.insert(lock.into(), owner.into());
            return Reply::Int(-2);
        }
        if let [control, channel] = wake {
            self.publish(control, channel);
        }
        Reply::Int(-1)
    }

    fn free(&mut self, lock: &[u8], channel: &[u8], message: &[u8]) -> Reply {
        self.locks.remove(lock);
        self.publish(channel, message)
    }

    fn publish(&mut self, channel: &[u8], payload: &[u8]) -> Reply {
        let (channel, payload) = (channel.to_vec(), payload.to_vec());
        let is_subscribed = |client: &&mut Client| client.channels.contains(&channel);
        let mut receivers = 0;
        for client in self.clients.iter_mut().filter(is_subscribed) {
            let (channel, payload) = (channel.clone(), payload.clone());
            client.outgoing.push_back(Reply::Push(Push::Message { channel, payload }));
            receivers += 1;
        }
        Reply::Int(receivers)
    }

    fn subscribe(&mut self, id: usize, channels: &[&[u8]]) -> Option<Reply> {
        for channel in channels {
            let channel = channel.to_vec();
            self.clients[id].channels.insert(channel.clone());
            self.clients[id].outgoing.push_back(Reply::Push(Push::Subscribed { channel }));
        }
        None
    }

    fn unsubscribe(&mut self, id: usize, channels: &[&[u8]]) -> Option<Reply> {
        for channel in channels {
            let channel = channel.to_vec();
            self.clients[id].channels.remove(&channel);
            self.clients[id].outgoing.push_back(Reply::Push(Push::Unsubscribed { channel }));
        }
        None
    }
}

/// Returns the modelled script that meets a condition. Panics if there is none.
fn known(is_wanted: impl Fn(&Script) -> bool) -> &'static Script {
    let plain = [&script::PLAIN_ACQUIRE, &script::PLAIN_RELEASE, &script::PLAIN_FORCE_UNLOCK];
    let all = plain.into_iter().chain([&script::CALL_MANY]);
    all.into_iter().find(|script| is_wanted(script)).expect("a modelled script")
}

fn refused(code: &str) -> Reply {
    Reply::Refused(Refusal { code: code.to_owned(), detail: String::new() })
}

/// Splits written bytes into commands.
fn parse(bytes: &[u8]) -> Vec<Command> {
    let mut rest = bytes;
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let words = number(&mut rest, b'*');
        commands.push((0..words).map(|_| word(&mut rest)).collect());
    }
    commands
}

fn word(rest: &mut &[u8]) -> Bytes {
    let length = number(rest, b'$');
    let (word, more) = rest.split_at(length);
    *rest = &more[b"\r\n".len()..];
    word.to_vec()
}

fn number(rest: &mut &[u8], kind: u8) -> usize {
    assert_eq!(rest[0], kind, "the bytes are not valid RESP");
    let end = rest.iter().position(|byte| *byte == b'\r').expect("the end of a line");
    let digits = String::from_utf8_lossy(&rest[1..end]).parse().expect("a number");
    *rest = &rest[end + b"\r\n".len()..];
    digits
}

/// The client's side of an open connection.
pub(crate) struct Connection {
    server: Arc<Server>,
    id: usize,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.id).finish()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.server.state.lock();
        let client = &mut state.clients[self.id];
        client.open = false;
        client.channels.clear();
    }
}

/// Ends a connection for the thread that owns it.
#[derive(Debug)]
pub(crate) struct Disconnector {
    server: Weak<Server>,
    id: usize,
}

impl Disconnector {
    pub(crate) fn disconnect(&self) {
        if let Some(server) = self.server.upgrade() {
            server.state.lock().clients[self.id].cut();
            server.changed.notify_all();
        }
    }
}

impl Connection {
    pub(crate) fn disconnector(&self) -> Disconnector {
        Disconnector { server: Arc::downgrade(&self.server), id: self.id }
    }

    pub(crate) fn open(_address: &Address, _timeouts: Timeouts, name: &str) -> Result<Connection> {
        let server = Server::current()?;
        let mut state = server.state.lock();
        if state.mishaps.front() == Some(&Mishap::Unreachable) {
            state.mishaps.pop_front();
            return Err(broken("the server cannot be reached"));
        }
        let id = state.connect(name.to_owned());
        drop(state);
        Ok(Connection { server, id })
    }

    pub(crate) fn open_server(
        address: &Address,
        timeouts: Timeouts,
        name: &str,
    ) -> Result<Connection> {
        Connection::open(address, timeouts, name)
    }

    pub(crate) fn is_replica(&self) -> bool {
        false
    }

    pub(crate) fn set_timeouts(&mut self, _timeouts: Timeouts) {}

    /// Closes the connection. The server may still run the commands that it has received.
    pub(crate) fn abort(self) {}

    /// Writes bytes. The server of a model takes all bytes at once.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::result::Result<(), Fault> {
        self.send(bytes).map(drop)
    }

    pub(crate) fn is_flushed(&self) -> bool {
        true
    }

    pub(crate) fn flush(&mut self, _limit: &ReadLimit<'_>) -> std::result::Result<bool, Fault> {
        Ok(true)
    }

    pub(crate) fn reply_limit(&self) -> Duration {
        Duration::MAX
    }

    /// Time stands still in models, so each request may be late or not.
    pub(crate) fn is_late(&self, _written: Moment) -> bool {
        shuttle::rand::thread_rng().gen_bool(0.5)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::result::Result<Moment, Fault> {
        let mut state = self.server.state.lock();
        if state.clients[self.id].fate == Fate::Broken {
            return Err(fault("the connection broke", false));
        }
        let commands = state.take(self.id, parse(bytes));
        drop(state);
        for command in commands {
            self.server.state.lock().run(self.id, &command);
        }
        self.server.changed.notify_all();
        Ok(Moment::END)
    }

    /// Reads the next reply. Without a subscription, no push messages arrive.
    pub(crate) fn read_reply_until(
        &mut self,
        limit: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        self.read(limit.leave == Moment::START)
    }

    /// Reads the next reply or push message.
    pub(crate) fn receive_until(
        &mut self,
        limit: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        self.read(limit.leave == Moment::START)
    }

    /// Reads a reply or push message. Blocks until one arrives, unless the reader `leaves` at once.
    fn read(&mut self, leaves: bool) -> std::result::Result<Option<Reply>, Fault> {
        let mut state = self.server.state.lock();
        loop {
            let client = &mut state.clients[self.id];
            match (client.outgoing.pop_front(), client.fate) {
                (Some(reply), _) => return Ok(Some(reply)),
                (None, Fate::Good) if leaves => return Ok(None),
                (None, Fate::Good) => self.server.changed.wait_until(&mut state, Moment::END),
                (None, Fate::Broken) => return Err(fault("the connection broke", false)),
                (None, Fate::Silent) => return Err(fault("no reply arrived in time", true)),
            }
        }
    }
}

fn broken(message: &'static str) -> Error {
    Error::new(ErrorKind::Connection, message)
}

fn fault(message: &'static str, timed_out: bool) -> Fault {
    Fault { error: broken(message), timed_out }
}
