//! The kinds of errors, the reasons of a loss, and what ends a failure of each kind.

use std::fmt;

/// The kinds of [`Error`](crate::Error); its table has their meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease was lost: it ran out, or the server no longer has the hold.
    Lost,
    /// There was no hold to release.
    NotHeld,
    /// A [`CancelToken`](crate::CancelToken) ended the wait.
    Cancelled,
    /// The client was closed.
    Closed,
    /// There is no connection: it was refused, or it broke.
    Connection,
    /// The server did not answer in time.
    Timeout,
    /// All connections of the client stayed busy for the pool time-out.
    PoolTimeout,
    /// Too few replicas acknowledged the lock.
    NotReplicated,
    /// The name of the lock is invalid.
    InvalidName,
    /// The call would wait for the calling thread, without end.
    Deadlock,
    /// A setting or argument is invalid, the audit refused, or a forked child called.
    Configuration,
    /// The server refused the command; the text quotes its reply.
    Server,
}

/// The change that has to happen before a later attempt can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retryability {
    /// Nothing: the failure ends by itself.
    Transient,
    /// The server: a change there, or a lighter load, ends the failure.
    Recoverable,
    /// A user or a password, in the program or on the server.
    Login,
    /// No later attempt succeeds.
    Final,
}

impl ErrorKind {
    pub(super) fn retryability(self) -> Retryability {
        match self {
            ErrorKind::Connection | ErrorKind::Timeout | ErrorKind::PoolTimeout => {
                Retryability::Transient
            }
            ErrorKind::NotReplicated => Retryability::Recoverable,
            _ => Retryability::Final,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ErrorKind::Lost => "lease lost",
            ErrorKind::NotHeld => "lock not held",
            ErrorKind::Cancelled => "wait cancelled",
            ErrorKind::Closed => "client closed",
            ErrorKind::Connection => "no connection",
            ErrorKind::Timeout => "no reply in time",
            ErrorKind::PoolTimeout => "all connections busy",
            ErrorKind::NotReplicated => "too few replicas",
            ErrorKind::InvalidName => "invalid lock name",
            ErrorKind::Deadlock => "deadlock",
            ErrorKind::Configuration => "invalid configuration",
            ErrorKind::Server => "refused by the server",
        })
    }
}

/// The way in which the loss of a lease was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The deadline of the lease passed before a renewal or a release.
    Expired,
    /// The server no longer has the hold. Its key was deleted or overwritten, or another caller
    /// freed the lock.
    Gone,
    /// The lease ended after the limit of [`Lock::with_max_hold`](crate::Lock::with_max_hold). The
    /// watchdog had stopped its renewals at the limit.
    HeldTooLong,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LostReason::Expired => "the lease expired",
            LostReason::Gone => "the server no longer has the hold",
            LostReason::HeldTooLong => "the lock was held beyond its limit",
        })
    }
}
