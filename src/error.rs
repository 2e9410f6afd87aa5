//! The one error type.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// What every fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
///
/// Not getting a lock is no error: the `try_` verbs say `Ok(None)`. What callers
/// branch on has a predicate (`is_lost`, `is_connection`, ...); the same is given
/// by [`kind`](Error::kind) for a `match`. [`source`](std::error::Error::source)
/// is the cause beneath, where there is one.
///
/// Cheap to clone. Neither its text nor its `Debug` form holds a password.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Inner {
    kind: ErrorKind,
    outlook: Outlook,
    message: Cow<'static, str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What becomes of a failure if one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// It passes.
    Passing,
    /// Somebody may mend it: a server that is full, a password that is wrong.
    Mendable,
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
    /// No server answered.
    Connection,
    /// All connections stayed busy for the pool time-out.
    Timeout,
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

impl Error {
    /// Returns what kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the lease was lost: it ran out, or the server said that it
    /// is gone.
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns whether there was nothing to release.
    pub fn is_not_held(&self) -> bool {
        self.kind() == ErrorKind::NotHeld
    }

    /// Returns whether the wait was ended through a [`CancelToken`](crate::CancelToken).
    pub fn is_cancelled(&self) -> bool {
        self.kind() == ErrorKind::Cancelled
    }

    /// Returns whether the client was closed.
    pub fn is_closed(&self) -> bool {
        self.kind() == ErrorKind::Closed
    }

    /// Returns whether no server answered: it could not be reached, the connection
    /// broke, or the answer did not come in time.
    pub fn is_connection(&self) -> bool {
        self.kind() == ErrorKind::Connection
    }

    /// Returns whether all connections of the pool stayed busy for its time-out.
    pub fn is_timeout(&self) -> bool {
        self.kind() == ErrorKind::Timeout
    }

    /// Returns whether too few replicas confirmed the lock.
    pub fn is_not_replicated(&self) -> bool {
        self.kind() == ErrorKind::NotReplicated
    }

    /// Returns whether the name of the lock cannot be used.
    pub fn is_invalid_name(&self) -> bool {
        self.kind() == ErrorKind::InvalidName
    }

    /// Returns whether the call would have waited for the calling thread itself.
    pub fn is_deadlock(&self) -> bool {
        self.kind() == ErrorKind::Deadlock
    }

    /// Returns whether a setting or an argument made no sense.
    pub fn is_configuration(&self) -> bool {
        self.kind() == ErrorKind::Configuration
    }

    /// Returns whether the server refused the command.
    pub fn is_server(&self) -> bool {
        self.kind() == ErrorKind::Server
    }

    /// Whether waiting will mend it: no answer, or an answer that says "not now".
    pub(crate) fn is_passing(&self) -> bool {
        self.0.outlook == Outlook::Passing
    }

    /// Whether it is no use to try again.
    pub(crate) fn is_final(&self) -> bool {
        self.0.outlook == Outlook::Final
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error::of(kind, message.into(), None)
    }

    pub(crate) fn caused(
        kind: ErrorKind,
        message: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::of(kind, message.into(), Some(source.into()))
    }

    fn of(
        kind: ErrorKind,
        message: Cow<'static, str>,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let outlook = match kind {
            ErrorKind::Connection | ErrorKind::Timeout => Outlook::Passing,
            _ => Outlook::Final,
        };
        Error(Arc::new(Inner { kind, outlook, message, source }))
    }

    /// What the server refused: its words, and what can be done about them.
    pub(crate) fn server(refusal: &Refusal) -> Error {
        let (outlook, advice) = refusal.advice();
        let message = match advice {
            "" => format!("the server refused the command: {refusal}"),
            advice => format!("the server refused the command: {refusal} ({advice})"),
        };
        let (kind, message) = (ErrorKind::Server, message.into());
        Error(Arc::new(Inner { kind, outlook, message, source: None }))
    }

    pub(crate) fn lost(message: &'static str) -> Error {
        Error::new(ErrorKind::Lost, message)
    }

    pub(crate) fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the client is closed")
    }

    pub(crate) fn configuration(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Configuration, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
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
pub(crate) enum Direction {
    /// That slot is served there from now on.
    Moved(u16, Place),
    /// This command is served there, if it is announced.
    Ask(Place),
    /// It can be run here or elsewhere soon.
    Later,
}

/// Where a node says that another is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where the one is that says so, if not known.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

const PERMISSIONS: &str = "the README lists the permissions that are needed";

impl Refusal {
    /// Reads an error reply. Redis before 7 wraps what a script met in words of its own,
    /// with the code in the middle.
    pub(crate) fn new(code: &str, detail: &str) -> Refusal {
        let inner = if code == "ERR" { unwrapped(detail) } else { None };
        let (code, detail) = inner.unwrap_or((code, detail));
        Refusal { code: code.to_owned(), detail: detail.to_owned() }
    }

    /// What becomes of it, and what its reader can do.
    fn advice(&self) -> (Outlook, &'static str) {
        use Outlook::{Final, Mendable, Passing};
        match self.code.as_str() {
            "LOADING" => (Passing, "it is still reading its data; try again later"),
            "BUSY" => (Passing, "a script has run for too long; end it with SCRIPT KILL"),
            "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => (Passing, "try again later"),
            "READONLY" => (Passing, "it is a replica; connect to the master"),
            "OOM" => (Mendable, "it is full; raise maxmemory or make room"),
            "MISCONF" => (Mendable, "it cannot save its data; see its log"),
            "NOREPLICAS" => (Mendable, "too few replicas are in good order"),
            "NOAUTH" => (Mendable, "it wants a password; put it into the URL"),
            "WRONGPASS" => (Mendable, "check the user and the password in the URL"),
            "WRONGTYPE" => (Final, "the key holds something that is no lock"),
            "NOPERM" => (Final, PERMISSIONS),
            "MOVED" | "ASK" => (Final, "it is a node of a cluster; see Builder::cluster"),
            "CROSSSLOT" => (Final, "the keys of one lock lie in different slots"),
            "NOSCRIPT" => (Mendable, "it forgets scripts as fast as they are loaded"),
            // The master became a replica while others waited for it.
            "UNBLOCKED" => (Passing, "it is a replica now"),
            _ if self.is_half_way() => (Passing, "a slot is moving; try again later"),
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
    pub(crate) fn is_half_way(&self) -> bool {
        self.detail.contains("non local key")
    }

    /// Where a node of a cluster sends the command, or that it is too early for it.
    pub(crate) fn direction(&self) -> Option<Direction> {
        let place = || {
            let (slot, place) = self.detail.split_once(' ')?;
            // Newer servers say more behind the address.
            let (host, port) = place.split(' ').next()?.rsplit_once(':')?;
            let host = (!host.is_empty() && host != "?").then(|| host.to_owned());
            Some((slot.parse().ok()?, Place { host, port: port.parse().ok()? }))
        };
        match self.code.as_str() {
            "MOVED" => place().map(|(slot, place)| Direction::Moved(slot, place)),
            "ASK" => place().map(|(_, place)| Direction::Ask(place)),
            "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => Some(Direction::Later),
            _ if self.is_half_way() => Some(Direction::Later),
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
        Error::server(&Refusal::new(code, "something"))
    }

    #[test]
    fn the_source_is_kept_and_not_printed_twice() {
        let io = std::io::Error::new(std::io::ErrorKind::TimedOut, "no bytes");
        let error = Error::caused(ErrorKind::Connection, "no answer", io);
        assert_eq!(error.to_string(), "no answer");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("no bytes"));
        assert!(error.is_connection() && error.is_passing());
    }

    #[test]
    fn a_refusal_carries_the_servers_words_and_advice() {
        let error = refusal("NOPERM");
        assert_eq!(error.kind(), ErrorKind::Server);
        assert!(error.to_string().contains("NOPERM something"));
        assert!(error.to_string().contains("README"));
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
        let direction = |code, detail| Refusal::new(code, detail).direction();
        let place = |host: Option<&str>| Place { host: host.map(str::to_owned), port: 6381 };
        let moved = Some(Direction::Moved(3999, place(Some("127.0.0.1"))));
        assert_eq!(direction("MOVED", "3999 127.0.0.1:6381"), moved);
        assert_eq!(
            direction("MOVED", "3999 ::1:6381"),
            Some(Direction::Moved(3999, place(Some("::1"))))
        );
        assert_eq!(direction("ASK", "1 :6381"), Some(Direction::Ask(place(None))));
        assert_eq!(direction("ASK", "1 ?:6381 more"), Some(Direction::Ask(place(None))));
        assert_eq!(direction("CLUSTERDOWN", "Hash slot not served"), Some(Direction::Later));
        for (code, detail) in [("MOVED", "nothing"), ("MOVED", "1 host"), ("ERR", "unknown")] {
            assert_eq!(direction(code, detail), None, "{code} {detail}");
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
    fn only_what_passes_by_itself_is_passing() {
        for code in ["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"] {
            assert!(refusal(code).is_passing(), "{code}");
        }
        for code in ["OOM", "WRONGTYPE", "NOAUTH", "NOPERM", "ERR", "MISCONF"] {
            assert!(!refusal(code).is_passing(), "{code}");
        }
    }
}
