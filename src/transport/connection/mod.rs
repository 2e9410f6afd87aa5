//! One connection to a server. The only folder that names the redis crate.
//!
//! Imports `error` and `util`. The sockets and the waiting are the crate's own; the
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

use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::transport::call::Call;
use crate::transport::reply::{Reply, unexpected};
use crate::util::clock::{self, Moment};
#[cfg(leasehold_sim)]
use simulated::net as socket;

mod address;
mod decode;
#[cfg(all(test, not(leasehold_model)))]
mod fuzz;
#[cfg(all(test, leasehold_model))]
pub(crate) mod model;
#[cfg(not(leasehold_sim))]
mod socket;
mod stream;
mod tls;
mod url;

pub(crate) use address::{Address, AddressMap, Credentials, Login, LoginProvider};
pub(crate) use decode::parse;
pub(crate) use socket::Disconnector;
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

    /// Returns these limits, each at most `longest`.
    pub(crate) fn within(self, longest: Duration) -> Timeouts {
        Timeouts {
            connect: self.connect.min(longest),
            response: self.response.min(longest),
            replicas: self.replicas.min(longest),
        }
    }
}

/// An open connection.
pub(crate) struct Connection {
    stream: Stream,
    parser: Parser,
    server: Arc<str>,
    timeouts: Timeouts,
    role: ServerRole,
}

/// What a server says about itself in the reply to `HELLO`.
#[derive(Clone, Copy, Debug, Default)]
struct ServerRole {
    is_replica: bool,
    is_sentinel: bool,
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

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.server).finish()
    }
}

impl Connection {
    /// Connects, authenticates, and sets the connection's name.
    ///
    /// One round trip after the socket is connected.
    pub(crate) fn open(address: &Address, timeouts: Timeouts, name: &str) -> Result<Connection> {
        let server = Arc::clone(address.shown());
        // The login provider may take its time: the server need not wait meanwhile.
        let hello = address.hello(name).map_err(|error| error.with_server(Arc::clone(&server)))?;
        let stream = Stream::connect(address, timeouts.connect).map_err(|error| {
            let public = match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock if address.uses_tls() => {
                    let hint = "the address asks for TLS, and a server without it never answers";
                    Error::timeout().with_source(hint)
                }
                // The cause says no more.
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::timeout(),
                _ => Error::connection("the server cannot be reached").with_source(error),
            };
            public.with_server(Arc::clone(&server))
        })?;
        let (parser, role) = (Parser::new(), ServerRole::default());
        let mut conn = Connection { stream, parser, server, timeouts, role };
        let role = conn.handshake(address, hello);
        conn.role = role.map_err(|error| error.with_server(Arc::clone(&conn.server)))?;
        Ok(conn)
    }

    /// Connects to a server that has locks, as [`Connection::open`] does. A sentinel has none.
    pub(crate) fn open_server(
        address: &Address,
        timeouts: Timeouts,
        name: &str,
    ) -> Result<Connection> {
        let conn = Connection::open(address, timeouts, name)?;
        if conn.role.is_sentinel {
            Err(sentinel().with_server(Arc::clone(address.shown())))
        } else {
            Ok(conn)
        }
    }

    /// Authenticates and selects the database. Returns the role of the server.
    fn handshake(&mut self, address: &Address, hello: Call) -> Result<ServerRole> {
        let select = address.select();
        let mut bytes = hello.bytes;
        if let Some(call) = &select {
            bytes.extend_from_slice(&call.bytes);
        }

        let deadline = self.send(&bytes).map_err(|fault| fault.error)?;
        let hello = self.read_reply(deadline).map_err(|fault| fault.error)?;
        let role = read_hello(hello, address)?;
        if select.is_some() {
            // A sentinel does not know the command, and is never asked to select a database.
            let selected = self.read_accepted_reply(deadline);
            selected.map_err(|error| if role.is_sentinel { sentinel() } else { error })?;
        }
        Ok(role)
    }

    /// Sends one command and returns the reply. One round trip; a refusal is an error.
    pub(crate) fn ask(&mut self, call: &Call) -> Result<Reply> {
        let deadline = self.send(&call.bytes).map_err(|fault| fault.error)?;
        self.read_accepted_reply(deadline)
    }

    /// Reads the reply to a command that was sent before; a refusal is an error.
    pub(crate) fn read_accepted_reply(&mut self, deadline: Moment) -> Result<Reply> {
        match self.read_reply(deadline).map_err(|fault| fault.error)? {
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            reply => Ok(reply),
        }
    }

    /// Returns whether the server reported the role of replica.
    pub(crate) fn is_replica(&self) -> bool {
        self.role.is_replica
    }

    /// Returns what ends the connection from another thread.
    pub(crate) fn disconnector(&self) -> Disconnector {
        self.stream.disconnector()
    }

    /// Closes a connection that failed, and has the system discard the bytes it has not sent.
    ///
    /// After an ordinary close the system goes on sending them, for example after a partition.
    pub(crate) fn abort(self) {
        self.stream.abort();
    }

    /// Writes bytes and returns the moment at which their replies are due.
    ///
    /// Blocks until the system has taken the bytes; fails if it has not by that moment.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::result::Result<Moment, Fault> {
        let due = clock::now() + self.reply_limit();
        self.write(bytes)?;
        self.flush(&ReadLimit::due(due))?;
        Ok(due)
    }

    /// Writes bytes without blocking. Keeps the rest for [`Connection::flush`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::result::Result<(), Fault> {
        self.stream.write(bytes).map_err(Fault::broken)
    }

    /// Returns whether the system has taken all bytes.
    pub(crate) fn is_flushed(&self) -> bool {
        self.stream.is_flushed()
    }

    /// Replaces the limits of the connection for replies from now on.
    pub(crate) fn set_timeouts(&mut self, timeouts: Timeouts) {
        self.timeouts = timeouts;
    }

    /// Returns the time within which a reply has to arrive.
    pub(crate) fn reply_limit(&self) -> Duration {
        self.timeouts.response + self.timeouts.replicas
    }

    /// Returns whether the reply to a request written at that moment is late now.
    pub(crate) fn is_late(&self, written: Moment) -> bool {
        written + self.reply_limit() <= clock::now()
    }

    /// Writes the bytes that [`Connection::write`] kept. Returns `false` if the caller left first.
    pub(crate) fn flush(&mut self, limit: &ReadLimit<'_>) -> std::result::Result<bool, Fault> {
        while !self.stream.is_flushed() {
            self.stream.begin_step(limit.step());
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

    /// Reads one reply or push message. Returns `None` if the caller left first.
    pub(crate) fn receive_until(
        &mut self,
        limit: &ReadLimit<'_>,
    ) -> std::result::Result<Option<Reply>, Fault> {
        loop {
            self.stream.begin_step(limit.step());
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
    pub(crate) fn read_reply(&mut self, deadline: Moment) -> std::result::Result<Reply, Fault> {
        // With this limit the reader never leaves early, so `None` cannot occur.
        self.read_reply_until(&ReadLimit::due(deadline))?.ok_or_else(Fault::late)
    }

    /// Reads the next reply to a command. Returns `None` if the caller left first.
    pub(crate) fn read_reply_until(
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
        if self.due <= now {
            Err(Fault::late())
        } else {
            Ok(self.leave <= now || self.has_to_leave())
        }
    }
}

/// Returns the role of the server, as its reply to `HELLO` says.
fn read_hello(hello: Reply, address: &Address) -> Result<ServerRole> {
    if let Reply::Refused(refusal) = hello {
        return Err(hello_refused(&refusal, address));
    }
    if !matches!(hello.field("id"), Some(Reply::Int(_))) {
        return Err(unexpected(&hello));
    }
    let text = |field| hello.field(field).and_then(Reply::text);
    Ok(ServerRole {
        is_replica: text("role").is_some_and(|role| role != b"master"),
        is_sentinel: text("mode") == Some(b"sentinel"),
    })
}

/// Returns the error for a sentinel in the place of a server.
fn sentinel() -> Error {
    Error::configuration(
        "the address is that of a sentinel, which has no locks; use Builder::sentinel",
    )
}

/// Returns the error for a refused `HELLO`.
///
/// Redis before version 6 does not know the command, and some proxies do not know RESP3.
fn hello_refused(refusal: &Refusal, address: &Address) -> Error {
    // The server's message is left out: a message about an unknown command may repeat the
    // arguments, which include the password.
    if refusal.is("NOPROTO") || refusal.detail.contains("unknown command") {
        Error::new(
            ErrorKind::Server,
            "the server does not speak RESP3; Redis 6.2 or newer is needed",
        )
    } else {
        address.login_refused(refusal)
    }
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
