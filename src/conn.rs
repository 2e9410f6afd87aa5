//! One connection: a thin layer over the redis crate's.
//!
//! It writes what it is given and reads reply by reply against a deadline. Any
//! failure condemns it: what comes after a time-out or a half-read reply cannot
//! be told from what came before.
#![cfg_attr(
    all(test, leasehold_model),
    allow(dead_code, reason = "in a model, connections lead to a server inside it: conn/model.rs")
)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, Value};

use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::script::{Call, Digits, Push, Reply, unexpected};
use crate::time::{self, Moment};

mod address;
#[cfg(all(test, leasehold_model))]
pub(crate) mod model;
mod tls;

pub(crate) use address::{Address, Login};
pub(crate) use tls::Certificates;

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
pub(crate) struct Identity {
    server: Arc<str>,
    id: i64,
    name: String,
}

/// An open connection.
pub(crate) struct Conn {
    inner: redis::Connection,
    identity: Identity,
    timeouts: Timeouts,
    /// What the socket's read time-out is set to.
    patience: Duration,
}

/// Why a connection is condemned.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) error: Error,
    /// It did not break: the answer did not come in time.
    pub(crate) timed_out: bool,
}

/// A fresh connection, and what the server said of itself and of old ones.
pub(crate) struct Opened {
    pub(crate) conn: Conn,
    pub(crate) ghosts: Ghosts,
    pub(crate) is_replica: bool,
}

/// What has become of connections that were given up with questions under way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ghosts {
    /// The server still has these; the others cannot do anything any more.
    Alive(Vec<Identity>),
    /// The server would not say.
    Unknown,
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Conn").field(&self.identity).finish()
    }
}

impl Conn {
    /// Connects and introduces itself as `name`, in one round trip, and asks what
    /// became of those `ghosts` that are connections to this server in the same write.
    pub(crate) fn open(
        address: &Address,
        timeouts: Timeouts,
        name: String,
        ghosts: &[Identity],
    ) -> Result<Opened> {
        let inner = redis::Client::open(address.info())
            .and_then(|client| client.get_connection_with_timeout(timeouts.connect))
            .map_err(|error| unreachable_server(address, error))?;
        let identity = Identity { server: Arc::clone(address.shown()), id: 0, name };
        let conn = Conn { inner, identity, timeouts, patience: Duration::ZERO };
        conn.shake_hands(address, ghosts).map_err(|error| refused(address, error))
    }

    fn shake_hands(mut self, address: &Address, ghosts: &[Identity]) -> Result<Opened> {
        let ghosts: Vec<_> = ghosts.iter().filter(|ghost| ghost.is_at(address)).cloned().collect();
        let select = address.select();
        let list = (!ghosts.is_empty()).then(|| list_clients(&ghosts));
        let mut bytes = address.hello(&self.identity.name).bytes;
        let more = [&select, &list].into_iter().flatten();
        more.for_each(|call| bytes.extend_from_slice(&call.bytes));

        let deadline = self.send(&bytes).map_err(|fault| fault.error)?;
        let mut answer = || self.answer(deadline).map_err(|fault| fault.error);
        let Greeting { id, is_replica } = greeting(answer()?)?;
        if select.is_some() {
            accepted(answer()?)?;
        }
        let ghosts = match list {
            Some(_) => still_alive(answer()?, &ghosts),
            None => Ghosts::Alive(Vec::new()),
        };
        self.identity.id = id;
        Ok(Opened { conn: self, ghosts, is_replica })
    }

    /// Sends one command and reads its answer; a refusal is an error.
    pub(crate) fn ask(&mut self, call: &Call) -> Result<Reply> {
        let deadline = self.send(&call.bytes).map_err(|fault| fault.error)?;
        self.told(deadline)
    }

    /// Reads the answer to a command; a refusal is an error.
    pub(crate) fn told(&mut self, deadline: Moment) -> Result<Reply> {
        match self.answer(deadline).map_err(|fault| fault.error)? {
            Reply::Refused(refusal) => Err(Error::server(&refusal)),
            reply => Ok(reply),
        }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Writes `bytes` and says until when their answers are waited for.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::result::Result<Moment, Fault> {
        let patience = self.timeouts.response + self.timeouts.replicas;
        self.be_patient(patience)?;
        self.inner.send_packed_command(bytes).map_err(Fault::new)?;
        Ok(time::now() + patience)
    }

    /// Reads one reply, of a deadline that many may share.
    pub(crate) fn receive(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        let left = time::now().until(deadline);
        // Setting the time-out is a system call: a reply that may come an eighth
        // too late does not pay for one.
        if left < self.patience - self.patience / 8 {
            self.be_patient(left.max(Duration::from_millis(1)))?;
        }
        self.inner.recv_response().map(reply).map_err(Fault::new)
    }

    /// Reads the next reply that answers a command. A server may say something else in
    /// between, but not for ever.
    pub(crate) fn answer(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        loop {
            match self.receive(deadline)? {
                Reply::Push(_) if deadline <= time::now() => return Err(Fault::late()),
                Reply::Push(_) => {}
                reply => return Ok(reply),
            }
        }
    }

    fn be_patient(&mut self, span: Duration) -> std::result::Result<(), Fault> {
        if self.patience != span {
            self.inner.set_read_timeout(Some(span)).map_err(Fault::new)?;
            self.inner.set_write_timeout(Some(span)).map_err(Fault::new)?;
            self.patience = span;
        }
        Ok(())
    }
}

impl Identity {
    fn is_at(&self, address: &Address) -> bool {
        self.server == *address.shown()
    }

    /// The command that makes sure that this connection does nothing any more.
    pub(crate) fn kill(&self) -> Call {
        Call::command(&[b"CLIENT", b"KILL", b"ID", Digits::new(self.id.unsigned_abs()).as_bytes()])
    }
}

fn list_clients(ghosts: &[Identity]) -> Call {
    let ids: Vec<_> = ghosts.iter().map(|g| Digits::new(g.id.unsigned_abs())).collect();
    let mut parts: Vec<&[u8]> = vec![b"CLIENT", b"LIST", b"ID"];
    parts.extend(ids.iter().map(Digits::as_bytes));
    Call::command(&parts)
}

/// Which of `ghosts` are in a client list. The name is compared too: a server that
/// was restarted gives the same numbers to others.
fn still_alive(reply: Reply, ghosts: &[Identity]) -> Ghosts {
    let Reply::Text(list) = reply else { return Ghosts::Unknown };
    let list = String::from_utf8_lossy(&list);
    let is_in = |ghost: &&Identity| {
        let (id, name) = (format!("id={}", ghost.id), format!("name={}", ghost.name));
        let listed = |line: &str| {
            let mut fields = line.split(' ');
            fields.clone().any(|field| field == id) && fields.any(|field| field == name)
        };
        list.lines().any(listed)
    };
    Ghosts::Alive(ghosts.iter().filter(is_in).cloned().collect())
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
        false => Error::server(refusal),
    }
}

fn accepted(reply: Reply) -> Result<()> {
    match reply {
        Reply::Refused(refusal) => Err(Error::server(&refusal)),
        _ => Ok(()),
    }
}

fn unreachable_server(address: &Address, error: redis::RedisError) -> Error {
    let message = format!("the server at {} cannot be reached", address.shown());
    Error::caused(ErrorKind::Connection, message, error)
}

/// Says at which server a handshake failed; what the server said stays the error.
fn refused(address: &Address, error: Error) -> Error {
    match error.is_connection() {
        true => {
            let message = format!("the server at {} gave no proper answer", address.shown());
            Error::caused(ErrorKind::Connection, message, error)
        }
        false => error,
    }
}

impl Fault {
    fn late() -> Fault {
        let message = "the server did not answer in time";
        Fault { error: Error::new(ErrorKind::Connection, message), timed_out: true }
    }

    fn new(error: redis::RedisError) -> Fault {
        let timed_out = error.is_timeout();
        let message = match (timed_out, error.is_io_error()) {
            (true, _) => "the server did not answer in time",
            (false, true) => "the connection to the server broke",
            (false, false) => "the server's answer is not Redis' protocol",
        };
        Fault { error: Error::caused(ErrorKind::Connection, message, error), timed_out }
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
    fn a_ghost_is_alive_only_under_its_own_name() {
        let ghost =
            |id: i64, name: &str| Identity { server: "s".into(), id, name: name.to_owned() };
        let ghosts = [ghost(3, "a"), ghost(4, "b"), ghost(5, "c")];
        let list = b"id=3 addr=1 name=a age=1\nid=4 addr=2 name=other age=1\n".to_vec();
        let alive = still_alive(Reply::Text(list), &ghosts);
        assert_eq!(alive, Ghosts::Alive(vec![ghost(3, "a")]));
        let refusal = Refusal { code: "NOPERM".into(), detail: String::new() };
        assert_eq!(still_alive(Reply::Refused(refusal), &ghosts), Ghosts::Unknown);
    }
}
