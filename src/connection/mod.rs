//! One connection. Sockets and waiting are our own, the protocol's parser is the redis
//! crate's.
//!
//! A connection writes bytes without waiting and reads reply by reply until a deadline. A
//! reader may stop in the middle of a reply; the next one goes on there. An error or a
//! reply that is late condemns the connection.
#![cfg_attr(
    all(test, leasehold_model),
    allow(dead_code, reason = "in a model, connections lead to a server inside it: conn/model.rs")
)]

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind as Cause, Parser, PushKind, Value};

use crate::command::call::{Call, Digits};
use crate::command::reply::{Push, Reply, unexpected};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::util::clock::{self, Moment};

mod address;
#[cfg(all(test, leasehold_model))]
pub(crate) mod model;
mod socket;
mod stream;
mod tls;

pub(crate) use address::{Address, Login};
pub(crate) use tls::{Certificates, Trust};

pub(crate) use stream::STEP;
use stream::Stream;

/// How long a connection waits, for itself and for answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
    /// How much longer an answer may take that waits for replicas; zero if none does.
    pub(crate) replicas: Duration,
}

impl Timeouts {
    /// For a connection on which nothing waits for replicas.
    pub(crate) fn without_replicas(self) -> Timeouts {
        Timeouts { replicas: Duration::ZERO, ..self }
    }
}

/// By what the server knows one connection, now and after it has broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionIdentity {
    server: Arc<str>,
    id: i64,
    name: String,
}

/// An open connection.
pub(crate) struct Connection {
    stream: Stream,
    parser: Parser,
    identity: ConnectionIdentity,
    timeouts: Timeouts,
}

/// How long a thread reads.
pub(crate) struct ReadLimit<'a> {
    /// From then on the reply is late.
    pub(crate) due: Moment,
    /// The reader leaves then, or soon after it `has_to_go`.
    pub(crate) leave: Moment,
    pub(crate) has_to_go: Option<&'a dyn Fn() -> bool>,
}

/// Why a connection is condemned.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) error: Error,
    /// It did not break: the answer did not come in time.
    pub(crate) timed_out: bool,
}

/// A fresh connection, and what the server said of itself and of old ones.
pub(crate) struct OpenedConnection {
    pub(crate) conn: Connection,
    pub(crate) stale: StaleConnections,
    pub(crate) is_replica: bool,
}

/// What has become of connections that were given up with questions under way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StaleConnections {
    /// The server still has these; the others cannot do anything any more.
    Alive(Vec<ConnectionIdentity>),
    /// The server would not say.
    Unknown,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Conn").field(&self.identity).finish()
    }
}

impl Connection {
    /// Connects and introduces itself as `name`, in one round trip, and asks what
    /// became of those `ghosts` that are connections to this server in the same write.
    pub(crate) fn open(
        address: &Address,
        timeouts: Timeouts,
        name: String,
        stale: &[ConnectionIdentity],
    ) -> Result<OpenedConnection> {
        let stream = Stream::connect(address, timeouts.connect)
            .map_err(|error| unreachable_server(address, error))?;
        let identity = ConnectionIdentity { server: Arc::clone(address.shown()), id: 0, name };
        let conn = Connection { stream, parser: Parser::new(), identity, timeouts };
        conn.shake_hands(address, stale)
            .map_err(|error| error.with_server(Arc::clone(address.shown())))
    }

    fn shake_hands(
        mut self,
        address: &Address,
        stale: &[ConnectionIdentity],
    ) -> Result<OpenedConnection> {
        let stale: Vec<_> = stale.iter().filter(|stale| stale.is_at(address)).cloned().collect();
        let select = address.select();
        let list = (!stale.is_empty()).then(|| list_clients(&stale));
        let mut bytes = address.hello(&self.identity.name).bytes;
        let more = [&select, &list].into_iter().flatten();
        more.for_each(|call| bytes.extend_from_slice(&call.bytes));

        let deadline = self.send(&bytes).map_err(|fault| fault.error)?;
        let mut answer = || self.answer(deadline).map_err(|fault| fault.error);
        let Greeting { id, is_replica } = greeting(answer()?)?;
        if select.is_some() {
            accepted(answer()?)?;
        }
        let stale = match list {
            Some(_) => still_alive(answer()?, &stale),
            None => StaleConnections::Alive(Vec::new()),
        };
        self.identity.id = id;
        Ok(OpenedConnection { conn: self, stale, is_replica })
    }

    /// Sends one command and reads its answer; a refusal is an error.
    pub(crate) fn ask(&mut self, call: &Call) -> Result<Reply> {
        let deadline = self.send(&call.bytes).map_err(|fault| fault.error)?;
        self.told(deadline)
    }

    /// Reads the answer to a command; a refusal is an error.
    pub(crate) fn told(&mut self, deadline: Moment) -> Result<Reply> {
        match self.answer(deadline).map_err(|fault| fault.error)? {
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            reply => Ok(reply),
        }
    }

    pub(crate) fn identity(&self) -> &ConnectionIdentity {
        &self.identity
    }

    /// Writes bytes and returns when their answers are due. Blocks until they are written.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::result::Result<Moment, Fault> {
        let due = clock::now() + self.patience();
        self.post(bytes)?;
        self.flush(&ReadLimit::due(due))?;
        Ok(due)
    }

    /// Writes bytes without waiting. What the system does not take is kept for
    /// [`Connection::flush`].
    pub(crate) fn post(&mut self, bytes: &[u8]) -> std::result::Result<(), Fault> {
        self.stream.write(bytes).map_err(Fault::broken)
    }

    /// Whether all that was posted has been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.stream.is_flushed()
    }

    /// How long an answer may take.
    pub(crate) fn patience(&self) -> Duration {
        self.timeouts.response + self.timeouts.replicas
    }

    /// Writes what was posted. Returns `false` if the caller left before.
    pub(crate) fn flush(&mut self, until: &ReadLimit<'_>) -> std::result::Result<bool, Fault> {
        while !self.stream.is_flushed() {
            self.stream.begin_step(until.step()).map_err(Fault::broken)?;
            match self.stream.flush() {
                Err(error) if stream::is_pause(&error) => {}
                flushed => flushed.map_err(Fault::broken)?,
            }
            if !self.stream.is_flushed() && until.is_over()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads one reply, of a deadline that many may share.
    pub(crate) fn receive(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        // It never leaves before the reply is late.
        self.receive_until(&ReadLimit::due(deadline))?.ok_or_else(Fault::late)
    }

    /// Reads one reply. Returns `None` if the caller left before.
    fn receive_until(
        &mut self,
        until: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        loop {
            self.stream.begin_step(until.step()).map_err(Fault::broken)?;
            match self.parser.parse_value(&mut self.stream) {
                Ok(value) => return Ok(Some(reply(value))),
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(Fault::new(error)),
            }
            if until.is_over()? {
                return Ok(None);
            }
        }
    }

    /// Reads the next reply that answers a command. A server may say something else in
    /// between, but not for ever.
    pub(crate) fn answer(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        // It never leaves before the reply is late.
        self.answer_until(&ReadLimit::due(deadline))?.ok_or_else(Fault::late)
    }

    /// Reads the next reply that answers a command. Returns `None` if the caller left before.
    pub(crate) fn answer_until(
        &mut self,
        until: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        loop {
            match self.receive_until(until)? {
                Some(Reply::Push(_)) if until.is_over()? => return Ok(None),
                Some(Reply::Push(_)) => {}
                reply => return Ok(reply),
            }
        }
    }
}

impl ReadLimit<'_> {
    /// The reader stays until the reply is late.
    pub(crate) fn due(due: Moment) -> ReadLimit<'static> {
        ReadLimit { due, leave: Moment::END, has_to_go: None }
    }

    /// How long to wait before the next look.
    fn step(&self) -> Duration {
        let left = clock::now().until(self.due.min(self.leave));
        if self.has_to_go.is_some() { left.min(STEP) } else { left }
    }

    /// Whether the reader was told to leave.
    pub(crate) fn has_to_go(&self) -> bool {
        self.has_to_go.is_some_and(|has_to_go| has_to_go())
    }

    /// Whether the reader leaves now; an error if the reply is late.
    fn is_over(&self) -> std::result::Result<bool, Fault> {
        let now = clock::now();
        match self.due <= now {
            true => Err(Fault::late()),
            false => Ok(self.leave <= now || self.has_to_go()),
        }
    }
}

impl ConnectionIdentity {
    fn is_at(&self, address: &Address) -> bool {
        self.server == *address.shown()
    }

    /// The command that makes sure that this connection does nothing any more.
    pub(crate) fn kill(&self) -> Call {
        Call::command(&[b"CLIENT", b"KILL", b"ID", Digits::new(self.id.unsigned_abs()).as_bytes()])
    }
}

fn list_clients(stale: &[ConnectionIdentity]) -> Call {
    let ids: Vec<_> = stale.iter().map(|g| Digits::new(g.id.unsigned_abs())).collect();
    let mut parts: Vec<&[u8]> = vec![b"CLIENT", b"LIST", b"ID"];
    parts.extend(ids.iter().map(Digits::as_bytes));
    Call::command(&parts)
}

/// Which of `ghosts` are in a client list. The name is compared too: a server that
/// was restarted gives the same numbers to others.
fn still_alive(reply: Reply, stale: &[ConnectionIdentity]) -> StaleConnections {
    let Reply::Text(list) = reply else { return StaleConnections::Unknown };
    let list = String::from_utf8_lossy(&list);
    let is_in = |stale: &&ConnectionIdentity| {
        let (id, name) = (format!("id={}", stale.id), format!("name={}", stale.name));
        let listed = |line: &str| {
            let mut fields = line.split(' ');
            fields.clone().any(|field| field == id) && fields.any(|field| field == name)
        };
        list.lines().any(listed)
    };
    StaleConnections::Alive(stale.iter().filter(is_in).cloned().collect())
}

/// What a server says of itself and of the connection.
struct Greeting {
    id: i64,
    is_replica: bool,
}

fn greeting(hello: Reply) -> Result<Greeting> {
    if let Reply::Refused(refusal) = hello {
        return Err(hello_refused(&refusal));
    }
    let Some(&Reply::Int(id)) = hello.field("id") else { return Err(unexpected(&hello)) };
    let role = hello.field("role").and_then(Reply::text);
    Ok(Greeting { id, is_replica: role.is_some_and(|role| role != b"master") })
}

/// Redis before 6 does not know HELLO, some proxies do not know version 3.
fn hello_refused(refusal: &Refusal) -> Error {
    // What the server says of a command that it does not know is left out: it may
    // repeat the arguments, and the password is one of them.
    match refusal.is("NOPROTO") || refusal.detail.contains("unknown command") {
        true => Error::new(
            ErrorKind::Server,
            "the server does not speak RESP3; Redis 6.2 or newer is needed",
        ),
        false => Error::refused(refusal),
    }
}

fn accepted(reply: Reply) -> Result<()> {
    match reply {
        Reply::Refused(refusal) => Err(Error::refused(&refusal)),
        _ => Ok(()),
    }
}

fn unreachable_server(address: &Address, error: io::Error) -> Error {
    let unreachable = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::timeout(),
        _ => Error::connection("the server cannot be reached"),
    };
    unreachable.with_source(error).with_server(Arc::clone(address.shown()))
}

impl Fault {
    fn late() -> Fault {
        Fault { error: Error::timeout(), timed_out: true }
    }

    fn broken(error: io::Error) -> Fault {
        let fault = Error::connection("the connection to the server broke");
        Fault { error: fault.with_source(error), timed_out: false }
    }

    fn new(error: redis::RedisError) -> Fault {
        let fault = match error.kind() {
            Cause::Io => Error::connection("the connection to the server broke"),
            _ => Error::connection("the server's answer is not Redis' protocol"),
        };
        Fault { error: fault.with_source(error), timed_out: false }
    }
}

fn reply(value: Value) -> Reply {
    match value {
        Value::Int(number) => Reply::Int(number),
        Value::Boolean(truth) => Reply::Int(i64::from(truth)),
        Value::BulkString(text) => Reply::Text(text),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
            Reply::Text(text.into_bytes())
        }
        Value::Okay => Reply::Text(b"OK".to_vec()),
        Value::Double(number) => Reply::Text(number.to_string().into_bytes()),
        Value::Array(parts) | Value::Set(parts) => {
            Reply::List(parts.into_iter().map(reply).collect())
        }
        Value::Map(pairs) => {
            Reply::List(pairs.into_iter().flat_map(|(k, v)| [reply(k), reply(v)]).collect())
        }
        Value::Attribute { data, .. } => reply(*data),
        Value::Push { kind, data } => Reply::Push(push(&kind, data)),
        Value::ServerError(error) => {
            Reply::Refused(Refusal::new(error.code(), error.details().unwrap_or_default()))
        }
        _ => Reply::Nil,
    }
}

fn push(kind: &PushKind, data: Vec<Value>) -> Push {
    let mut texts = data.into_iter().map(|value| match value {
        Value::BulkString(text) => text,
        Value::SimpleString(text) => text.into_bytes(),
        _ => Vec::new(),
    });
    let mut next = || texts.next().unwrap_or_default();
    match kind {
        PushKind::Message | PushKind::SMessage => {
            Push::Message { channel: next(), payload: next() }
        }
        PushKind::Subscribe | PushKind::SSubscribe => Push::Subscribed { channel: next() },
        PushKind::Unsubscribe | PushKind::SUnsubscribe => Push::Unsubscribed { channel: next() },
        _ => Push::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_connection_is_alive_only_under_its_own_name() {
        let identity = |id: i64, name: &str| ConnectionIdentity {
            server: "s".into(),
            id,
            name: name.to_owned(),
        };
        let stale = [identity(3, "a"), identity(4, "b"), identity(5, "c")];
        let list = b"id=3 addr=1 name=a age=1\nid=4 addr=2 name=other age=1\n".to_vec();
        let alive = still_alive(Reply::Text(list), &stale);
        assert_eq!(alive, StaleConnections::Alive(vec![identity(3, "a")]));
        let refusal = Refusal { code: "NOPERM".into(), detail: String::new() };
        assert_eq!(still_alive(Reply::Refused(refusal), &stale), StaleConnections::Unknown);
    }
}
