//! The one error type.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// What every fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
///
/// A lock that is held elsewhere is no error: the `try_` verbs return `Ok(None)`. Each kind of
/// failure has a predicate; [`kind`](Error::kind) gives the same for a `match`.
///
/// | predicate | meaning | retryable | what to do |
/// | --- | --- | --- | --- |
/// | [`is_lost`](Error::is_lost) | The lease ended before the work did; [`lost_reason`](Error::lost_reason) says how. | no | Stop the work. Check what it changed: another holder may have worked at the same time. |
/// | [`is_not_held`](Error::is_not_held) | `unlock()` of a lock found no detached hold to release. | no | Release by dropping the guard. |
/// | [`is_cancelled`](Error::is_cancelled) | A [`CancelToken`](crate::CancelToken) ended the wait. | no | Return. |
/// | [`is_closed`](Error::is_closed) | The client was closed. | no | Make a new client. |
/// | [`is_connection`](Error::is_connection) | No connection: refused, broken, or to a server that does not speak the protocol. | yes | Repeat after a pause. Check address and server if it lasts. |
/// | [`is_timeout`](Error::is_timeout) | The server accepts commands or connections, but does not answer in time. | yes | Repeat after a pause. Check the load of the server, the network, `response_timeout`. |
/// | [`is_pool_timeout`](Error::is_pool_timeout) | All connections of the client were busy for the pool time-out. | yes | Repeat after a pause. Raise `pool_size` if it lasts. |
/// | [`is_not_replicated`](Error::is_not_replicated) | Too few replicas confirmed the lock. | yes | Repeat after a pause. Check the replicas. |
/// | [`is_invalid_name`](Error::is_invalid_name) | The name of the lock is empty, too long, or has braces that are no hash tag. | no | Use another name. |
/// | [`is_deadlock`](Error::is_deadlock) | The call would wait for the calling thread. | no | Release the guard of this thread first. |
/// | [`is_configuration`](Error::is_configuration) | A setting or an argument is out of bounds, or the client crossed a fork. | no | Correct the program or its settings. |
/// | [`is_server`](Error::is_server) | The server refused the command; [`code`](Error::code) is the first word of its reply. | by code | Follow the advice in the text. |
///
/// A refusal is retryable if it can end without a change to this program: `LOADING`, `BUSY`,
/// `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `OOM`, `MISCONF`, `NOREPLICAS` and
/// too many clients. Others, such as `NOAUTH` and `NOPERM`, are not.
///
/// The text names the lock and the server where they are known:
/// `the server did not answer in time [lock "orders:42", server 127.0.0.1:6379]`.
/// [`source`](std::error::Error::source) is the cause beneath, where there is one; the text
/// does not repeat it. Neither the text nor the `Debug` form holds a password.
///
/// Cheap to clone. Two errors are equal if all but their sources is. A test can make an error
/// with [`new`](Error::new):
///
/// ```
/// use leasehold::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Timeout, "no answer").with_lock_name("orders:42");
/// assert!(error.is_timeout() && error.is_retryable());
/// assert_eq!(error.to_string(), "no answer [lock \"orders:42\"]");
/// ```
#[derive(Clone)]
pub struct Error(Arc<ErrorDetails>);

#[derive(Clone)]
struct ErrorDetails {
    kind: ErrorKind,
    retryability: Retryability,
    message: Cow<'static, str>,
    code: Option<Box<str>>,
    lost: Option<LostReason>,
    lock: Option<Arc<str>>,
    server: Option<Arc<str>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// What becomes of a failure if one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retryability {
    /// It passes.
    Passing,
    /// A change on the server ends it, or a lighter load.
    Mendable,
    /// A user or a password is wrong: here, or on the server.
    Login,
    Final,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease was lost: it ran out, or the server said that it is gone.
    Lost,
    /// There is nothing to release: this caller holds no such lock.
    NotHeld,
    /// The wait was ended through a [`CancelToken`](crate::CancelToken).
    Cancelled,
    /// The client was closed.
    Closed,
    /// There is no connection: it was refused, or it broke.
    Connection,
    /// The server did not answer in time.
    Timeout,
    /// All connections stayed busy for the pool time-out.
    PoolTimeout,
    /// Too few replicas confirmed the lock.
    NotReplicated,
    /// The name of the lock cannot be used.
    InvalidName,
    /// Waiting would never end, because this very thread stands in the way.
    Deadlock,
    /// A setting or an argument makes no sense.
    Configuration,
    /// The server refused the command, in its own words.
    Server,
}

impl ErrorKind {
    fn name(self) -> &'static str {
        match self {
            ErrorKind::Lost => "lease lost",
            ErrorKind::NotHeld => "lock not held",
            ErrorKind::Cancelled => "wait cancelled",
            ErrorKind::Closed => "client closed",
            ErrorKind::Connection => "no connection",
            ErrorKind::Timeout => "no answer in time",
            ErrorKind::PoolTimeout => "all connections busy",
            ErrorKind::NotReplicated => "too few replicas",
            ErrorKind::InvalidName => "invalid lock name",
            ErrorKind::Deadlock => "deadlock",
            ErrorKind::Configuration => "invalid configuration",
            ErrorKind::Server => "refused by the server",
        }
    }

    fn retryability(self) -> Retryability {
        match self {
            ErrorKind::Connection | ErrorKind::Timeout | ErrorKind::PoolTimeout => {
                Retryability::Passing
            }
            ErrorKind::NotReplicated => Retryability::Mendable,
            _ => Retryability::Final,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the loss of a lease was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before it was renewed or released.
    Expired,
    /// The server said that the lock is not held by this hold any more.
    Gone,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LostReason::Expired => "the lease expired",
            LostReason::Gone => "the server no longer has the hold",
        })
    }
}

impl Error {
    /// Returns an error of that kind with that text, for the tests of a program.
    #[must_use = "an error does nothing until it is returned"]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        let (retryability, message) = (kind.retryability(), message.into());
        let (code, lost, lock, server, source) = (None, None, None, None, None);
        Error(Arc::new(ErrorDetails {
            kind,
            retryability,
            message,
            code,
            lost,
            lock,
            server,
            source,
        }))
    }

    /// Names the lock, unless the error names one.
    #[must_use = "returns the error with the name of the lock"]
    pub fn with_lock_name(mut self, name: impl Into<Arc<str>>) -> Error {
        if self.0.lock.is_none() {
            Arc::make_mut(&mut self.0).lock = Some(name.into());
        }
        self
    }

    /// Names the server by its address, unless the error names one.
    #[must_use = "returns the error with the address of the server"]
    pub fn with_server(mut self, address: impl Into<Arc<str>>) -> Error {
        if self.0.server.is_none() {
            Arc::make_mut(&mut self.0).server = Some(address.into());
        }
        self
    }

    /// Sets the reason of a loss. The text says it behind the message.
    #[must_use = "returns the error with the reason"]
    pub fn with_lost_reason(mut self, reason: LostReason) -> Error {
        Arc::make_mut(&mut self.0).lost = Some(reason);
        self
    }

    /// Sets the code of a refusal. For an error that [`is_server`](Error::is_server) it decides on
    /// [`is_retryable`](Error::is_retryable).
    #[must_use = "returns the error with the code"]
    pub fn with_code(mut self, code: &str) -> Error {
        let inner = Arc::make_mut(&mut self.0);
        if inner.kind == ErrorKind::Server {
            inner.retryability = Refusal::new(code, "").advice().0;
        }
        inner.code = Some(code.into());
        self
    }

    /// Sets the cause beneath.
    #[must_use = "returns the error with its cause"]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Arc::make_mut(&mut self.0).source = Some(source.into().into());
        self
    }

    /// Returns what kind of failure this is.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the lock, without the client's prefix; `None` if the error concerns
    /// no lock. For a [`MultiLock`](crate::MultiLock): that of the member, or the names of all
    /// members, separated by commas, if it concerns all.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lock_name(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// Returns the address of the server, without user and password; `None` if no server is
    /// concerned, or more than one.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn server(&self) -> Option<&str> {
        self.0.server.as_deref()
    }

    /// Returns how the loss was noticed, for every error that [`is_lost`](Error::is_lost).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.lost
    }

    /// Returns the first word of the server's refusal, such as `NOPERM`; `None` if there is none.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// Returns whether the same call may succeed later without a change to this program. See
    /// the [table](Error).
    ///
    /// A call for a lock that failed holds nothing: what a late answer grants is released.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.retryability, Retryability::Passing | Retryability::Mendable)
    }

    /// Returns whether the lease was lost: it ran out, or the server said that it
    /// is gone.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns whether there was nothing to release.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_not_held(&self) -> bool {
        self.kind() == ErrorKind::NotHeld
    }

    /// Returns whether the wait was ended through a [`CancelToken`](crate::CancelToken).
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_cancelled(&self) -> bool {
        self.kind() == ErrorKind::Cancelled
    }

    /// Returns whether the client was closed.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_closed(&self) -> bool {
        self.kind() == ErrorKind::Closed
    }

    /// Returns whether there was no connection: the server could not be reached, the
    /// connection broke, or the answer was not in Redis' protocol.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_connection(&self) -> bool {
        self.kind() == ErrorKind::Connection
    }

    /// Returns whether the server did not answer in time: a command, or an attempt to connect.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_timeout(&self) -> bool {
        self.kind() == ErrorKind::Timeout
    }

    /// Returns whether all connections of the pool stayed busy for its time-out.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_pool_timeout(&self) -> bool {
        self.kind() == ErrorKind::PoolTimeout
    }

    /// Returns whether too few replicas confirmed the lock.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_not_replicated(&self) -> bool {
        self.kind() == ErrorKind::NotReplicated
    }

    /// Returns whether the name of the lock cannot be used.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_invalid_name(&self) -> bool {
        self.kind() == ErrorKind::InvalidName
    }

    /// Returns whether the call would have waited for the calling thread itself.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_deadlock(&self) -> bool {
        self.kind() == ErrorKind::Deadlock
    }

    /// Returns whether a setting or an argument made no sense.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_configuration(&self) -> bool {
        self.kind() == ErrorKind::Configuration
    }

    /// Returns whether the server refused the command.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_server(&self) -> bool {
        self.kind() == ErrorKind::Server
    }

    /// Whether a server refused a command for the sake of its keys: because of one of them, or
    /// because there are several. Each by itself may fare better.
    pub(crate) fn is_caused_by_keys(&self) -> bool {
        self.is_server() && (self.is_final() || matches!(self.code(), Some("TRYAGAIN" | "ERR")))
    }

    /// Whether a server was asked and nothing was heard: a broken connection, or silence.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_connection() || self.is_timeout()
    }

    /// Whether waiting will mend it: no answer, or an answer that says "not now".
    pub(crate) fn is_transient(&self) -> bool {
        self.0.retryability == Retryability::Passing
    }

    /// Whether it is no use to try again.
    pub(crate) fn is_final(&self) -> bool {
        self.0.retryability == Retryability::Final
    }

    /// What the server refused: its words, and what can be done about them.
    pub(crate) fn refused(refusal: &Refusal) -> Error {
        let (retryability, advice) = refusal.advice();
        let message = match advice {
            "" => format!("the server refused the command: {refusal}"),
            advice => format!("the server refused the command: {refusal} ({advice})"),
        };
        let mut error = Error::new(ErrorKind::Server, message).with_code(&refusal.code);
        Arc::make_mut(&mut error.0).retryability = retryability;
        error
    }

    /// No connection could be made, or it broke.
    pub(crate) fn connection(message: &'static str) -> Error {
        Error::new(ErrorKind::Connection, message)
    }

    /// The server says nothing.
    pub(crate) fn timeout() -> Error {
        Error::new(ErrorKind::Timeout, "the server did not answer in time")
    }

    /// `message` says what was lost, without the reason.
    pub(crate) fn lost(reason: LostReason, message: &'static str) -> Error {
        Error::new(ErrorKind::Lost, message).with_lost_reason(reason)
    }

    pub(crate) fn not_connected() -> Error {
        Error::connection("the connection is being made")
    }

    pub(crate) fn outdated() -> Error {
        Error::new(ErrorKind::Connection, "the answer came from a server that has been left")
    }

    pub(crate) fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the client is closed")
    }

    pub(crate) fn configuration(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Configuration, message)
    }
}

impl Eq for Error {}

/// No call changes an error that exists, so none is left half changed.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let facts = |error: &Error| {
            let ErrorDetails { kind, retryability, lost, .. } = *error.0;
            (kind, retryability, lost)
        };
        let words = |it: &ErrorDetails| [it.code.is_some(), it.lock.is_some(), it.server.is_some()];
        facts(self) == facts(other)
            && words(&self.0) == words(&other.0)
            && self.to_string() == other.to_string()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorDetails { message, lost, lock, server, .. } = &*self.0;
        f.write_str(message)?;
        if let Some(reason) = lost {
            write!(f, ": {reason}")?;
        }
        match (lock.as_deref().map(Shortened), server) {
            (Some(lock), Some(server)) => write!(f, " [lock {lock}, server {server}]"),
            (Some(lock), None) => write!(f, " [lock {lock}]"),
            (None, Some(server)) => write!(f, " [server {server}]"),
            (None, None) => Ok(()),
        }
    }
}

/// A name in quotes, of which only the beginning is shown if it is very long.
struct Shortened<'a>(&'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 256;
        match self.0.char_indices().nth(LONGEST) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorDetails { kind, message, code, lost, lock, server, source, .. } = &*self.0;
        let mut debug = f.debug_struct("Error");
        debug.field("kind", kind).field("message", message);
        let facts: [(&str, Option<&dyn fmt::Debug>); 5] = [
            ("code", code.as_ref().map(|it| it as _)),
            ("lost_reason", lost.as_ref().map(|it| it as _)),
            ("lock_name", lock.as_ref().map(|it| it as _)),
            ("server", server.as_ref().map(|it| it as _)),
            ("source", source.as_ref().map(|it| it as _)),
        ];
        for (name, value) in facts {
            value.map(|value| debug.field(name, value));
        }
        debug.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// The error stays inside; `io::Error::downcast` gives it back.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind() {
            ErrorKind::Timeout | ErrorKind::PoolTimeout => io::ErrorKind::TimedOut,
            ErrorKind::Connection | ErrorKind::Closed => io::ErrorKind::NotConnected,
            ErrorKind::InvalidName | ErrorKind::Configuration => io::ErrorKind::InvalidInput,
            ErrorKind::Deadlock => io::ErrorKind::Deadlock,
            ErrorKind::Server => match error.code() {
                Some("NOAUTH" | "WRONGPASS" | "NOPERM") => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::Other,
            },
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// An error reply: the first word, and the rest of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) detail: String,
}

/// Where a node of a cluster sends a command that it has not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// That slot is served there from now on.
    Moved(u16, NodeAddress),
    /// This command is served there, if it is announced.
    Ask(NodeAddress),
    /// It can be run here or elsewhere soon.
    RetryLater,
}

/// Where a node says that another is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAddress {
    /// Where the one is that says so, if not known.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

const PERMISSIONS: &str = "docs/permissions.md lists the required permissions";

impl Refusal {
    /// Reads an error reply. Redis before 7 wraps what a script met in words of its own,
    /// with the code in the middle.
    pub(crate) fn new(code: &str, detail: &str) -> Refusal {
        let inner = if code == "ERR" { unwrapped(detail) } else { None };
        let (code, detail) = inner.unwrap_or((code, detail));
        Refusal { code: code.to_owned(), detail: detail.to_owned() }
    }

    /// What becomes of it, and what its reader can do.
    fn advice(&self) -> (Retryability, &'static str) {
        use Retryability::{Final, Login, Mendable, Passing};
        match self.code.as_str() {
            "LOADING" => (Passing, "it is still reading its data; try again later"),
            "BUSY" => (Passing, "a script has run for too long; end it with SCRIPT KILL"),
            "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => (Passing, "try again later"),
            "READONLY" => (Passing, "it is a replica; connect to the master"),
            "OOM" => (Mendable, "it is full; raise maxmemory or make room"),
            "MISCONF" => (Mendable, "it cannot save its data; see its log"),
            "NOREPLICAS" => (Mendable, "too few replicas are in good order"),
            "NOAUTH" => (Login, "it wants a password; put it into the URL"),
            "WRONGPASS" => (Login, "check the user and the password in the URL"),
            "WRONGTYPE" => (Final, "the key holds something that is no lock"),
            "NOPERM" => (Final, PERMISSIONS),
            "MOVED" | "ASK" => (Final, "it is a node of a cluster; see Builder::cluster"),
            "CROSSSLOT" => (Final, "the keys of one lock lie in different slots"),
            "NOSCRIPT" => (Mendable, "it forgets scripts as fast as they are loaded"),
            // The master became a replica while others waited for it.
            "UNBLOCKED" => (Passing, "it is a replica now"),
            _ if self.is_slot_migrating() => (Passing, "a slot is moving; try again later"),
            _ if self.detail.starts_with("max number of clients") => {
                (Passing, "raise maxclients, or close connections")
            }
            // What a script is not allowed to do has no code of its own before Redis 7.
            _ if self.detail.contains("executing the script can't")
                || self.detail.contains("ermission") =>
            {
                (Final, PERMISSIONS)
            }
            _ => (Final, ""),
        }
    }

    /// A script met a key that has moved, while its slot is moving: what it did before that
    /// stays done.
    pub(crate) fn is_slot_migrating(&self) -> bool {
        self.detail.contains("non local key")
    }

    /// Where a node of a cluster sends the command, or that it is too early for it.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        let place = || {
            let (slot, place) = self.detail.split_once(' ')?;
            // Newer servers say more behind the address.
            let (host, port) = place.split(' ').next()?.rsplit_once(':')?;
            let host = (!host.is_empty() && host != "?").then(|| host.to_owned());
            Some((slot.parse().ok()?, NodeAddress { host, port: port.parse().ok()? }))
        };
        match self.code.as_str() {
            "MOVED" => place().map(|(slot, place)| Redirect::Moved(slot, place)),
            "ASK" => place().map(|(_, place)| Redirect::Ask(place)),
            "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => Some(Redirect::RetryLater),
            _ if self.is_slot_migrating() => Some(Redirect::RetryLater),
            _ => None,
        }
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code == code
    }
}

/// The code, if there is one, and the rest of what a script met, from
/// `Error running script (call to <name>): @user_script:<line>: <what it met>`. What the
/// server itself objects to stands behind its place once more, and its code behind a `-`.
fn unwrapped(detail: &str) -> Option<(&str, &str)> {
    let (_, inner) = detail.strip_prefix("Error running script")?.rsplit_once("@user_script:")?;
    let (_line, inner) = inner.split_once(": ")?;
    let (code, rest) = inner.split_once(' ').unwrap_or((inner, ""));
    let code = code.strip_prefix('-').unwrap_or(code);
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some((code, rest))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.as_str() {
            "" => write!(f, "{}", self.code),
            detail => write!(f, "{} {detail}", self.code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    fn refusal(code: &str) -> Error {
        Error::refused(&Refusal::new(code, "something"))
    }

    #[test]
    fn the_source_is_kept_and_not_printed_twice() {
        let io = std::io::Error::new(std::io::ErrorKind::TimedOut, "no bytes");
        let error = Error::connection("no answer").with_source(io);
        assert_eq!(error.to_string(), "no answer");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("no bytes"));
        assert!(error.is_connection() && error.is_transient());
    }

    #[test]
    fn a_refusal_carries_the_servers_words_and_advice() {
        let error = refusal("NOPERM");
        assert_eq!(error.kind(), ErrorKind::Server);
        assert!(error.to_string().contains("NOPERM something"));
        assert!(error.to_string().contains("docs/permissions.md"));
    }

    #[test]
    fn what_a_script_met_is_unwrapped() {
        let wrapped = "Error running script (call to f_0a): @user_script:9: @user_script: 9: \
                       -OOM command not allowed when used memory > 'maxmemory'.";
        let refusal = Refusal::new("ERR", wrapped);
        assert_eq!(refusal.code, "OOM");
        assert_eq!(refusal.detail, "command not allowed when used memory > 'maxmemory'.");
        let answered = "Error running script (call to f_0a): @user_script:14: \
                        WRONGTYPE Operation against a key";
        let refusal = Refusal::new("ERR", answered);
        assert_eq!((&*refusal.code, &*refusal.detail), ("WRONGTYPE", "Operation against a key"));
        let uncoded = "Error running script (call to f_0a): @user_script:9: @user_script: 9: \
                       The user executing the script can't run this command";
        assert_eq!(Refusal::new("ERR", uncoded).detail, uncoded);
        assert_eq!(Refusal::new("ERR", "a: -b c").detail, "a: -b c");
    }

    #[test]
    fn directions_are_read() {
        let redirect = |code, detail| Refusal::new(code, detail).redirect();
        let place = |host: Option<&str>| NodeAddress { host: host.map(str::to_owned), port: 6381 };
        let moved = Some(Redirect::Moved(3999, place(Some("127.0.0.1"))));
        assert_eq!(redirect("MOVED", "3999 127.0.0.1:6381"), moved);
        assert_eq!(
            redirect("MOVED", "3999 ::1:6381"),
            Some(Redirect::Moved(3999, place(Some("::1"))))
        );
        assert_eq!(redirect("ASK", "1 :6381"), Some(Redirect::Ask(place(None))));
        assert_eq!(redirect("ASK", "1 ?:6381 more"), Some(Redirect::Ask(place(None))));
        assert_eq!(redirect("CLUSTERDOWN", "Hash slot not served"), Some(Redirect::RetryLater));
        for (code, detail) in [("MOVED", "nothing"), ("MOVED", "1 host"), ("ERR", "unknown")] {
            assert_eq!(redirect(code, detail), None, "{code} {detail}");
        }
    }

    #[test]
    fn what_is_refused_for_its_keys_is_told_from_what_the_server_does_not_do_now() {
        for code in ["CROSSSLOT", "TRYAGAIN", "WRONGTYPE", "NOPERM", "MOVED", "ERR"] {
            assert!(refusal(code).is_caused_by_keys(), "{code}");
        }
        for code in ["LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "OOM", "NOAUTH", "NOSCRIPT"] {
            assert!(!refusal(code).is_caused_by_keys(), "{code}");
        }
    }

    #[test]
    fn it_is_final_what_nobody_can_mend() {
        for code in ["WRONGTYPE", "NOPERM", "ERR"] {
            assert!(refusal(code).is_final(), "{code}");
        }
        for code in ["LOADING", "MISCONF", "NOREPLICAS", "NOAUTH", "WRONGPASS"] {
            assert!(!refusal(code).is_final(), "{code}");
        }
    }

    #[test]
    fn a_refusal_is_retryable_if_it_can_end_without_a_change_to_the_program() {
        let docs: String = DOCS.lines().map(|line| format!("{}\n", line.trim())).collect();
        let (_, rest) = docs.split_once("A refusal is retryable if").expect("the docs say which");
        let (named, others) = rest.split_once("Others").expect("and which are not");
        let (others, _) = others.split_once("The text").expect("the next paragraph");
        for (text, retryable) in [(named, true), (others, false)] {
            let codes: Vec<_> = text.split('`').skip(1).step_by(2).collect();
            assert!(codes.len() > 1, "{text}");
            for code in codes {
                assert_eq!(refusal(code).is_retryable(), retryable, "{code}");
                assert_eq!(refusal(code).code(), Some(code));
                let made = Error::new(ErrorKind::Server, "").with_code(code);
                assert_eq!(made.is_retryable(), retryable, "{code}");
            }
        }
    }

    const DOCS: &str = include_str!("error.rs");

    #[test]
    fn the_table_in_the_docs_has_a_row_for_each_kind() {
        use ErrorKind::*;
        let kinds = [
            (Lost, "is_lost"),
            (NotHeld, "is_not_held"),
            (Cancelled, "is_cancelled"),
            (Closed, "is_closed"),
            (Connection, "is_connection"),
            (Timeout, "is_timeout"),
            (PoolTimeout, "is_pool_timeout"),
            (NotReplicated, "is_not_replicated"),
            (InvalidName, "is_invalid_name"),
            (Deadlock, "is_deadlock"),
            (Configuration, "is_configuration"),
        ];
        for (kind, predicate) in kinds {
            let begin = format!("/// | [`{predicate}`](Error::{predicate}) | ");
            let row = DOCS.lines().find_map(|line| line.strip_prefix(&begin));
            let row = row.unwrap_or_else(|| panic!("no row for {kind:?}"));
            let stated = row.split(" | ").nth(1);
            let retryable = if Error::new(kind, "").is_retryable() { "yes" } else { "no" };
            assert_eq!(stated, Some(retryable), "{kind:?}");
        }
    }

    #[test]
    fn the_text_names_lock_server_and_reason_once_and_keeps_the_first() {
        let error = Error::lost(LostReason::Gone, "the lock was lost");
        assert_eq!(error.to_string(), "the lock was lost: the server no longer has the hold");
        let error = error.with_lock_name("a").with_server("h:1");
        let text = "the lock was lost: the server no longer has the hold [lock \"a\", server h:1]";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.clone().with_lock_name("b").with_server("h:2"), error);
        let long = Error::closed().with_lock_name("x".repeat(1 << 20));
        assert_eq!(long.lock_name().map(str::len), Some(1 << 20));
        assert!(long.to_string().len() < 400, "the text is shortened");
    }

    #[test]
    fn naming_an_error_leaves_its_clones_alone() {
        let error = Error::timeout();
        let named = error.clone().with_lock_name("a");
        assert_eq!((error.lock_name(), named.lock_name()), (None, Some("a")));
        assert_ne!(error, named);
        assert!(error.with_code("ERR").is_retryable(), "it is no refusal");
    }

    #[test]
    fn an_io_error_has_a_fitting_kind_and_gives_the_error_back() {
        let io = |error: &Error| io::Error::from(error.clone());
        assert_eq!(io(&Error::timeout()).kind(), io::ErrorKind::TimedOut);
        assert_eq!(io(&refusal("NOPERM")).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(io(&Error::closed()).kind(), io::ErrorKind::NotConnected);
        let back = io(&refusal("OOM")).downcast::<Error>().expect("it is inside");
        assert_eq!(back, refusal("OOM"));
    }

    #[test]
    fn only_what_passes_by_itself_is_passing() {
        for code in ["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"] {
            assert!(refusal(code).is_transient(), "{code}");
        }
        for code in ["OOM", "WRONGTYPE", "NOAUTH", "NOPERM", "ERR", "MISCONF"] {
            assert!(!refusal(code).is_transient(), "{code}");
        }
    }
}
