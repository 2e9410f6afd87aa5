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

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionInfo, IntoConnectionInfo, PushKind, Value};

use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::script::{Call, Digits, Push, Reply, unexpected};
use crate::time::{self, Moment};

#[cfg(all(test, leasehold_model))]
pub(crate) mod model;

/// After such a silence the system looks whether the other end is still there: a
/// connection that died while it was idle is better found broken than silent.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a server is, and as whom to speak to it.
#[derive(Clone)]
pub(crate) struct Address {
    info: ConnectionInfo,
    shown: Arc<str>,
    user: Option<String>,
    password: Option<String>,
    database: i64,
}

/// How long a connection waits, for itself and for answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// By what the server knows one connection, now and after it has broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
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

/// A fresh connection, and which of the asked-for old ones the server still has.
pub(crate) struct Opened {
    pub(crate) conn: Conn,
    pub(crate) ghosts: Ghosts,
}

/// What has become of connections that were given up with questions under way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ghosts {
    /// The server still has these; the others cannot do anything any more.
    Alive(Vec<Identity>),
    /// The server would not say.
    Unknown,
}

impl Address {
    /// Reads a URL. The error never repeats it: there may be a password in it.
    pub(crate) fn parse(url: &str) -> Result<Address> {
        let info = url.into_connection_info().map_err(|error| bad_url(&error))?;
        let settings = info.redis_settings();
        let user = settings.username().map(str::to_owned);
        let password = settings.password().map(str::to_owned);
        let database = settings.db();
        let shown = info.addr().to_string().into();
        // The handshake is ours, with one deadline: the crate's would wait its
        // time-out once per command.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        let silent = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        let info = info
            .set_redis_settings(silent)
            .set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive));
        Ok(Address { info, shown, user, password, database })
    }

    /// The address without user and password.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    /// The first command on a connection; RESP3 tells its client id.
    fn hello(&self, name: &str) -> Call {
        let mut parts: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if self.user.is_some() || self.password.is_some() {
            let user = self.user.as_deref().unwrap_or("default");
            let password = self.password.as_deref().unwrap_or_default();
            parts.extend([b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        parts.extend([b"SETNAME", name.as_bytes()]);
        Call::command(&parts)
    }

    fn select(&self) -> Option<Call> {
        let database = u64::try_from(self.database).ok().filter(|database| *database > 0)?;
        Some(Call::command(&[b"SELECT", Digits::new(database).as_bytes()]))
    }
}

fn bad_url(error: &redis::RedisError) -> Error {
    let reason = match cfg!(feature = "tls") {
        false if error.to_string().contains("TLS") => "TLS needs the feature \"tls\" of leasehold",
        _ => "it must be redis://, rediss:// or redis+unix://, with a host or a path",
    };
    Error::configuration(format!("the URL of the server cannot be used: {reason}"))
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.shown).finish()
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Conn").field(&self.identity).finish()
    }
}

impl Conn {
    /// Connects and introduces itself as `name`, in one round trip, and asks what
    /// became of `ghosts` in the same write.
    pub(crate) fn open(
        address: &Address,
        timeouts: Timeouts,
        name: String,
        ghosts: &[Identity],
    ) -> Result<Opened> {
        let inner = redis::Client::open(address.info.clone())
            .and_then(|client| client.get_connection_with_timeout(timeouts.connect))
            .map_err(|error| unreachable_server(address, error))?;
        let identity = Identity { id: 0, name };
        let mut conn = Conn { inner, identity, timeouts, patience: Duration::ZERO };
        let ghosts = conn.shake_hands(address, ghosts).map_err(|error| refused(address, error))?;
        Ok(Opened { conn, ghosts })
    }

    fn shake_hands(&mut self, address: &Address, ghosts: &[Identity]) -> Result<Ghosts> {
        let select = address.select();
        let list = (!ghosts.is_empty()).then(|| list_clients(ghosts));
        let mut bytes = address.hello(&self.identity.name).bytes;
        let more = [&select, &list].into_iter().flatten();
        more.for_each(|call| bytes.extend_from_slice(&call.bytes));

        let deadline = self.send(&bytes).map_err(|fault| fault.error)?;
        let mut answer = || self.answer(deadline).map_err(|fault| fault.error);
        let id = client_id(answer()?)?;
        if select.is_some() {
            accepted(answer()?)?;
        }
        let alive = match list {
            Some(_) => still_alive(answer()?, ghosts),
            None => Ghosts::Alive(Vec::new()),
        };
        self.identity.id = id;
        Ok(alive)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Writes `bytes` and says until when their answers are waited for.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::result::Result<Moment, Fault> {
        self.be_patient(self.timeouts.response)?;
        self.inner.send_packed_command(bytes).map_err(Fault::new)?;
        Ok(time::now() + self.timeouts.response)
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

fn client_id(hello: Reply) -> Result<i64> {
    match hello {
        Reply::Refused(refusal) => Err(hello_refused(&refusal)),
        Reply::List(parts) => parts
            .chunks_exact(2)
            .find_map(|pair| match pair {
                [Reply::Text(key), Reply::Int(id)] if key == b"id" => Some(*id),
                _ => None,
            })
            .ok_or_else(|| unexpected(&Reply::Nil)),
        other => Err(unexpected(&other)),
    }
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
    let message = format!("the server at {} cannot be reached", address.shown);
    Error::caused(ErrorKind::Connection, message, error)
}

/// Says at which server a handshake failed; what the server said stays the error.
fn refused(address: &Address, error: Error) -> Error {
    match error.is_connection() {
        true => {
            let message = format!("the server at {} gave no proper answer", address.shown);
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

    fn shown(url: &str) -> String {
        format!("{:?}", Address::parse(url).expect("a good URL"))
    }

    #[test]
    fn urls_are_read_and_passwords_never_shown() {
        assert_eq!(shown("redis://u:secret@host:7000/3"), "Address(\"host:7000\")");
        assert_eq!(
            shown("redis+unix:///run/r.sock?user=u&pass=secret"),
            "Address(\"/run/r.sock\")"
        );
        let address = Address::parse("redis://u:s%20x@host/3").expect("a good URL");
        let hello = String::from_utf8(address.hello("n").bytes.to_vec()).expect("ASCII");
        assert!(hello.contains("AUTH\r\n$1\r\nu\r\n$3\r\ns x\r\n"), "{hello}");
        assert!(address.select().is_some_and(|call| call.bytes.ends_with(b"3\r\n")));
    }

    #[test]
    fn bad_urls_are_refused_without_being_repeated() {
        for url in ["", "secret", "http://secret/", "redis://:secret@", "redis://h/secret"] {
            let error = Address::parse(url).expect_err(url);
            assert!(error.is_configuration(), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error:?}");
        }
    }

    #[test]
    fn a_ghost_is_alive_only_under_its_own_name() {
        let ghost = |id: i64, name: &str| Identity { id, name: name.to_owned() };
        let ghosts = [ghost(3, "a"), ghost(4, "b"), ghost(5, "c")];
        let list = b"id=3 addr=1 name=a age=1\nid=4 addr=2 name=other age=1\n".to_vec();
        let alive = still_alive(Reply::Text(list), &ghosts);
        assert_eq!(alive, Ghosts::Alive(vec![ghost(3, "a")]));
        let refusal = Refusal { code: "NOPERM".into(), detail: String::new() };
        assert_eq!(still_alive(Reply::Refused(refusal), &ghosts), Ghosts::Unknown);
    }
}
