//! The parts of an error's text, its comparison, its `Debug` form, and its conversion to
//! `io::Error`.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::{Error, ErrorDetails, ErrorKind, LostReason};

impl Eq for Error {}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let facts = |error: &Error| {
            let ErrorDetails { kind, retryability, lost, .. } = *error.0;
            (kind, retryability, lost)
        };
        // The text shows these values, but two errors with different fields may have one text.
        let present =
            |it: &ErrorDetails| [it.code.is_some(), it.lock.is_some(), it.server.is_some()];
        facts(self) == facts(other)
            && present(&self.0) == present(&other.0)
            && self.to_string() == other.to_string()
    }
}

/// The reason of a loss, behind the message.
pub(super) struct Reason<'a>(pub(super) &'a Option<LostReason>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// The names of the lock and the server, behind the reason.
pub(super) struct Location<'a>(pub(super) &'a Option<Arc<str>>, pub(super) &'a Option<Arc<str>>);

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_deref().map(Shortened), self.1) {
            (Some(lock), Some(server)) => write!(f, " [lock {lock}, server {server}]"),
            (Some(lock), None) => write!(f, " [lock {lock}]"),
            (None, Some(server)) => write!(f, " [server {server}]"),
            (None, None) => Ok(()),
        }
    }
}

/// An error and its causes: `a: b: c`. A cause whose text is there already is left out.
pub(crate) struct CauseChain<'a>(pub(crate) &'a dyn std::error::Error);

impl fmt::Display for CauseChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut chain, mut cause) = (self.0.to_string(), self.0.source());
        while let Some(error) = cause {
            let text = error.to_string();
            if !chain.contains(&text) {
                chain = format!("{chain}: {text}");
            }
            cause = error.source();
        }
        f.write_str(&chain)
    }
}

/// A name in quotes, cut after 256 characters.
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

impl fmt::Debug for ErrorDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorDetails { kind, message, code, lost, lock, server, source, .. } = self;
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
            if let Some(value) = value {
                debug.field(name, value);
            }
        }
        debug.finish()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The cause of an error, which clones of the error share.
#[derive(Clone)]
pub(super) struct Cause(pub(super) Arc<dyn std::error::Error + Send + Sync>);

/// `source()` returns the cause itself. An `Arc` would be an error of another type.
impl Deref for Cause {
    type Target = dyn std::error::Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Wraps the error in the nearest [`io::ErrorKind`]; `io::Error::downcast` returns it unchanged.
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
