//! One connection to a server. The only folder that names the redis crate.
//!
//! Imports `command`, `error` and `util`. The sockets and the waiting are the crate's own; the
//! redis crate gives the syntax of URLs and the parser of replies. Read this file first, then
//! [`stream`] with [`socket`] and [`tls`], and [`address`].
//!
//! - A connection writes bytes without blocking and reads one reply at a time, until a deadline.
//! - A reader may leave in the middle of a reply. The next reader continues there.
//! - An error, or a late reply, is a [`Fault`]. The connection must not be used after a fault.
#![cfg_attr(
    all(test, leasehold_model),
    allow(dead_code, reason = "a model connects to the server of connection/model.rs instead")
)]

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind as Cause, Parser};

use crate::command::call::{Call, Digits};
use crate::command::reply::{Reply, unexpected};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::util::clock::{self, Moment};

mod address;
mod decode;
#[cfg(all(test, leasehold_model))]
pub(crate) mod model;
mod socket;
mod stream;
mod tls;

pub(crate) use address::{Address, Login};
pub(crate) use tls::{Certificates, Trust};

pub(crate) use stream::STEP;
use stream::Stream;

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// The limit for each address of a host, and for a TLS handshake.
    pub(crate) connect: Duration,
    /// The limit for a reply.
    pub(crate) response: Duration,
    /// The additional limit for a reply that waits for replicas; zero if no reply does.
    pub(crate) replicas: Duration,
}

impl Timeouts {
    /// Returns the limits of a connection on which no reply waits for replicas.
    pub(crate) fn without_replicas(self) -> Timeouts {
        Timeouts { replicas: Duration::ZERO, ..self }
    }
}

/// The server's identification of one connection, valid also after the connection broke.
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

/// The conditions that end a read or a flush.
pub(crate) struct ReadLimit<'a> {
    /// The moment from which the reply is late, which is a fault.
    pub(crate) due: Moment,
    /// The moment at which the reader leaves.
    pub(crate) leave: Moment,
    /// Checked once per [`STEP`]. The reader leaves when the function returns `true`.
    pub(crate) has_to_leave: Option<&'a dyn Fn() -> bool>,
}

/// An error after which a connection must not be used.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) error: Error,
    /// Whether a reply was late. Otherwise the connection broke.
    pub(crate) timed_out: bool,
}

/// A new connection, with the server's statements about itself and about stale connections.
pub(crate) struct OpenedConnection {
    pub(crate) conn: Connection,
    pub(crate) stale: StaleConnections,
    pub(crate) is_replica: bool,
}

/// The state of connections that were abandoned with requests in flight.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StaleConnections {
    /// The server still has these connections. Other stale connections run no more commands.
    Alive(Vec<ConnectionIdentity>),
    /// The server did not list its connections.
    Unknown,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.identity).finish()
    }
}

impl Connection {
    /// Connects, authenticates, and sets the connection's name.
    ///
    /// One round trip after the socket is connected. The same write asks for the state of those
    /// `stale` connections that lead to this server.
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
        conn.handshake(address, stale)
            .map_err(|error| error.with_server(Arc::clone(address.shown())))
    }

    fn handshake(
        mut self,
        address: &Address,
        stale: &[ConnectionIdentity],
    ) -> Result<OpenedConnection> {
        let stale: Vec<_> = stale.iter().filter(|stale| stale.is_at(address)).cloned().collect();
        let select = address.select();
        let list = (!stale.is_empty()).then(|| list_clients(&stale));
        let mut bytes = address.hello(&self.identity.name).bytes;
        let optional = [&select, &list].into_iter().flatten();
        optional.for_each(|call| bytes.extend_from_slice(&call.bytes));

        let deadline = self.send(&bytes).map_err(|fault| fault.error)?;
        let mut next_reply = || self.answer(deadline).map_err(|fault| fault.error);
        let Greeting { id, is_replica } = read_hello(next_reply()?)?;
        if select.is_some() {
            accepted(next_reply()?)?;
        }
        let stale = match list {
            Some(_) => still_alive(next_reply()?, &stale),
            None => StaleConnections::Alive(Vec::new()),
        };
        self.identity.id = id;
        Ok(OpenedConnection { conn: self, stale, is_replica })
    }

    /// Sends one command and returns the reply. One round trip; a refusal is an error.
    pub(crate) fn ask(&mut self, call: &Call) -> Result<Reply> {
        let deadline = self.send(&call.bytes).map_err(|fault| fault.error)?;
        self.accepted_answer(deadline)
    }

    /// Reads the reply to a command that was sent before; a refusal is an error.
    pub(crate) fn accepted_answer(&mut self, deadline: Moment) -> Result<Reply> {
        accepted(self.answer(deadline).map_err(|fault| fault.error)?)
    }

    pub(crate) fn identity(&self) -> &ConnectionIdentity {
        &self.identity
    }

    /// Writes bytes and returns the moment at which their replies are due.
    ///
    /// Blocks until the system has taken the bytes. Fails if they are not written by that moment.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::result::Result<Moment, Fault> {
        let due = clock::now() + self.reply_limit();
        self.post(bytes)?;
        self.flush(&ReadLimit::due(due))?;
        Ok(due)
    }

    /// Writes bytes without blocking. Keeps the rest for [`Connection::flush`].
    pub(crate) fn post(&mut self, bytes: &[u8]) -> std::result::Result<(), Fault> {
        self.stream.write(bytes).map_err(Fault::broken)
    }

    /// Returns whether all posted bytes have been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.stream.is_flushed()
    }

    /// Returns the time within which a reply has to arrive.
    pub(crate) fn reply_limit(&self) -> Duration {
        self.timeouts.response + self.timeouts.replicas
    }

    /// Writes the posted bytes. Returns `false` if the caller left first.
    pub(crate) fn flush(&mut self, limit: &ReadLimit<'_>) -> std::result::Result<bool, Fault> {
        while !self.stream.is_flushed() {
            self.stream.begin_step(limit.step()).map_err(Fault::broken)?;
            match self.stream.flush() {
                Err(error) if stream::is_pause(&error) => {}
                flushed => flushed.map_err(Fault::broken)?,
            }
            if !self.stream.is_flushed() && limit.is_over()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads one reply or push message. Blocks until the deadline, which replies may share.
    pub(crate) fn receive(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        // With this limit the reader never leaves early, so `None` cannot occur.
        self.receive_until(&ReadLimit::due(deadline))?.ok_or_else(Fault::late)
    }

    /// Reads one reply or push message. Returns `None` if the caller left first.
    fn receive_until(
        &mut self,
        limit: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        loop {
            self.stream.begin_step(limit.step()).map_err(Fault::broken)?;
            match self.parser.parse_value(&mut self.stream) {
                Ok(value) => return Ok(Some(decode::reply(value))),
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(Fault::unreadable(error)),
            }
            if limit.is_over()? {
                return Ok(None);
            }
        }
    }

    /// Reads the next reply to a command. Skips push messages, until the deadline.
    pub(crate) fn answer(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        // With this limit the reader never leaves early, so `None` cannot occur.
        self.answer_until(&ReadLimit::due(deadline))?.ok_or_else(Fault::late)
    }

    /// Reads the next reply to a command. Returns `None` if the caller left first.
    pub(crate) fn answer_until(
        &mut self,
        limit: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        loop {
            match self.receive_until(limit)? {
                // Push messages without end must not keep the reader beyond its limit.
                Some(Reply::Push(_)) if limit.is_over()? => return Ok(None),
                Some(Reply::Push(_)) => {}
                reply => return Ok(reply),
            }
        }
    }
}

impl ReadLimit<'_> {
    /// Returns the limit of a reader that stays until the reply is late.
    pub(crate) fn due(due: Moment) -> ReadLimit<'static> {
        ReadLimit { due, leave: Moment::END, has_to_leave: None }
    }

    /// Returns the time for which the next system call may block.
    fn step(&self) -> Duration {
        let left = clock::now().until(self.due.min(self.leave));
        if self.has_to_leave.is_some() { left.min(STEP) } else { left }
    }

    /// Returns whether the reader's function tells it to leave.
    pub(crate) fn has_to_leave(&self) -> bool {
        self.has_to_leave.is_some_and(|has_to_leave| has_to_leave())
    }

    /// Returns whether the reader leaves now. A late reply is a fault.
    fn is_over(&self) -> std::result::Result<bool, Fault> {
        let now = clock::now();
        match self.due <= now {
            true => Err(Fault::late()),
            false => Ok(self.leave <= now || self.has_to_leave()),
        }
    }
}

impl ConnectionIdentity {
    fn is_at(&self, address: &Address) -> bool {
        self.server == *address.shown()
    }

    /// Returns the command that closes this connection, so that it runs no more commands.
    pub(crate) fn kill(&self) -> Call {
        Call::command(&[b"CLIENT", b"KILL", b"ID", Digits::new(self.id.unsigned_abs()).as_bytes()])
    }
}

fn list_clients(stale: &[ConnectionIdentity]) -> Call {
    let ids: Vec<_> = stale.iter().map(|one| Digits::new(one.id.unsigned_abs())).collect();
    let mut parts: Vec<&[u8]> = vec![b"CLIENT", b"LIST", b"ID"];
    parts.extend(ids.iter().map(Digits::as_bytes));
    Call::command(&parts)
}

/// Returns those stale connections that are in a reply to `CLIENT LIST`.
///
/// The name is compared too, because a restarted server gives the same ids to other connections.
fn still_alive(reply: Reply, stale: &[ConnectionIdentity]) -> StaleConnections {
    let Reply::Text(list) = reply else { return StaleConnections::Unknown };
    let list = String::from_utf8_lossy(&list);
    let is_alive = |stale: &&ConnectionIdentity| {
        let (id, name) = (format!("id={}", stale.id), format!("name={}", stale.name));
        let is_listed = |line: &str| {
            let mut fields = line.split(' ');
            fields.clone().any(|field| field == id) && fields.any(|field| field == name)
        };
        list.lines().any(is_listed)
    };
    StaleConnections::Alive(stale.iter().filter(is_alive).cloned().collect())
}

/// The parts of the reply to `HELLO` that are used.
struct Greeting {
    /// The client id of the connection.
    id: i64,
    is_replica: bool,
}

fn read_hello(hello: Reply) -> Result<Greeting> {
    if let Reply::Refused(refusal) = hello {
        return Err(hello_refused(&refusal));
    }
    let Some(&Reply::Int(id)) = hello.field("id") else { return Err(unexpected(&hello)) };
    let role = hello.field("role").and_then(Reply::text);
    Ok(Greeting { id, is_replica: role.is_some_and(|role| role != b"master") })
}

/// Returns the error for a refused `HELLO`.
///
/// Redis before version 6 does not know the command, and some proxies do not know RESP3.
fn hello_refused(refusal: &Refusal) -> Error {
    // The server's message is left out: a message about an unknown command may repeat the
    // arguments, which include the password.
    match refusal.is("NOPROTO") || refusal.detail.contains("unknown command") {
        true => Error::new(
            ErrorKind::Server,
            "the server does not speak RESP3; Redis 6.2 or newer is needed",
        ),
        false => Error::refused(refusal),
    }
}

/// Turns a refusal into an error.
fn accepted(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Refused(refusal) => Err(Error::refused(&refusal)),
        reply => Ok(reply),
    }
}

fn unreachable_server(address: &Address, error: io::Error) -> Error {
    let public = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::timeout(),
        _ => Error::connection("the server cannot be reached"),
    };
    public.with_source(error).with_server(Arc::clone(address.shown()))
}

impl Fault {
    fn late() -> Fault {
        Fault { error: Error::timeout(), timed_out: true }
    }

    fn broken(error: io::Error) -> Fault {
        let broken = Error::connection("the connection to the server broke");
        Fault { error: broken.with_source(error), timed_out: false }
    }

    /// Returns the fault for an error of the parser.
    fn unreadable(error: redis::RedisError) -> Fault {
        let public = match error.kind() {
            Cause::Io => Error::connection("the connection to the server broke"),
            _ => Error::connection("the server's reply is not valid RESP"),
        };
        Fault { error: public.with_source(error), timed_out: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_connection_is_alive_only_if_id_and_name_are_listed() {
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
