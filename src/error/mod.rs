//! The error type of the crate: [`Error`], its [`ErrorKind`], and refusals by a server.
//!
//! `mod.rs` has the type, its constructors and predicates; `kind.rs` the kinds, `format.rs` the
//! text and comparison, `refusal.rs` the error replies of Redis. Imports nothing of the crate.

mod format;
mod kind;
mod refusal;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

pub(crate) use format::CauseChain;
use format::{Cause, Location, Reason};
use kind::Retryability;

pub use kind::{ErrorKind, LostReason};
pub(crate) use refusal::{NodeAddress, Redirect, Refusal};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of a call: its kind, its text, and facts about it.
///
/// A lock that another caller holds is not an error: the `try_` verbs return `Ok(None)`. Each kind
/// of failure has a predicate; [`kind`](Error::kind) returns the same fact for a `match`.
///
/// | predicate | meaning | retryable | what to do |
/// | --- | --- | --- | --- |
/// | [`is_lost`](Error::is_lost) | The lease ended before the work did; [`lost_reason`](Error::lost_reason) says how the loss was noticed. | no | Stop the work. Check its results: another holder may have worked at the same time. |
/// | [`is_not_held`](Error::is_not_held) | `unlock()` of a lock found no detached hold to release. | no | Release by dropping the guard. |
/// | [`is_cancelled`](Error::is_cancelled) | A [`CancelToken`](crate::CancelToken) ended the wait. | no | Return. |
/// | [`is_closed`](Error::is_closed) | The client was closed. | no | Make a new client. |
/// | [`is_connection`](Error::is_connection) | No connection: refused, broken, or to a server that does not speak the Redis protocol. | yes | Repeat after a pause. Check address and server if the error lasts. |
/// | [`is_timeout`](Error::is_timeout) | The server accepts commands or connections, but does not answer in time. | yes | Repeat after a pause. Check the load of the server, the network, `response_timeout`. |
/// | [`is_pool_timeout`](Error::is_pool_timeout) | All connections of the client were busy for the pool time-out. | yes | Repeat after a pause. Raise `pool_size` if the error lasts. |
/// | [`is_not_replicated`](Error::is_not_replicated) | Too few replicas acknowledged the lock or the permits, or the server refused to tell. | yes | Repeat after a pause. Check the replicas. |
/// | [`is_invalid_name`](Error::is_invalid_name) | The name of the lock is empty, too long, or has braces that are not a hash tag; in a cluster, the name of a latch has braces. | no | Use another name. |
/// | [`is_deadlock`](Error::is_deadlock) | The call would wait for the calling thread. | no | Release the guard of this thread first. |
/// | [`is_configuration`](Error::is_configuration) | A setting or an argument is invalid, a call needs more permits than the semaphore has, the [audit](crate::Builder::audit_policy) refused a server, a thread cannot be started, or a forked child uses the client of its parent. | no | Correct the program or its settings. |
/// | [`is_server`](Error::is_server) | The server refused the command; [`code`](Error::code) is the first word of its reply. | by code | Follow the advice in the text. |
///
/// A refusal by the server is retryable if it can end without a change to this program: `LOADING`,
/// `BUSY`, `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `OOM`, `MISCONF`, `NOREPLICAS`,
/// `NOSCRIPT`, `UNBLOCKED`, a slot that is moving, and too many clients. Others, such as `NOAUTH`
/// and `NOPERM`, are not. With a [`login_provider`](crate::Builder::login_provider), a refused
/// login is retryable too. The same rule applies if the server refuses `WAIT`, the command that
/// asks how many replicas have a write: the error is then
/// [`is_not_replicated`](Error::is_not_replicated), with the code of the refusal. A retryable
/// refusal does not end a call that already waits.
///
/// "Repeat" means the call, and not the work before it: an error of `unlock()` needs no repetition.
/// The work is done, and the client repeats the release until the lease ends.
///
/// The text names the lock and the server where they are known:
/// `the server did not answer in time [lock "orders:42", server 127.0.0.1:6379]`.
/// [`source`](std::error::Error::source) is the underlying cause, if there is one; the text
/// does not repeat it. [`with_causes`](Error::with_causes) shows both, as log lines do.
/// No form contains a password. An `Error` converts into a [`std::io::Error`].
///
/// An error is one pointer, so a clone is cheap. The comparison of two errors ignores their
/// sources.
///
/// ```
/// use leasehold::{Error, ErrorKind};
///
/// fn next_step(error: &Error) -> &'static str {
///     match error.kind() {
///         ErrorKind::Lost => "stop, and check the results",
///         _ if error.is_retryable() => "repeat after a pause",
///         _ => "give up",
///     }
/// }
///
/// // A test makes its errors with `new`.
/// let error = Error::new(ErrorKind::Timeout, "no answer").with_lock_name("orders:42");
/// assert_eq!(next_step(&error), "repeat after a pause");
/// assert_eq!(error.to_string(), "no answer [lock \"orders:42\"]");
/// ```
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct Error(Arc<ErrorDetails>);

#[derive(Clone, thiserror::Error)]
#[error("{message}{}{}", Reason(.lost), Location(.lock, .server))]
struct ErrorDetails {
    kind: ErrorKind,
    retryability: Retryability,
    message: Cow<'static, str>,
    code: Option<Box<str>>,
    lost: Option<LostReason>,
    lock: Option<Arc<str>>,
    server: Option<Arc<str>>,
    source: Option<Cause>,
}

/// No call changes an error that other code can see. The `with_` methods copy a shared one.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

/// Errors for the tests of a program.
impl Error {
    /// Returns an error of this kind with this text, for the tests of a program.
    ///
    /// An error of kind [`Server`](ErrorKind::Server) is retryable if
    /// [`with_code`](Error::with_code) sets a retryable code.
    #[must_use = "an error does nothing until it is returned"]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error(Arc::new(ErrorDetails {
            kind,
            retryability: kind.retryability(),
            message: message.into(),
            code: None,
            lost: None,
            lock: None,
            server: None,
            source: None,
        }))
    }

    /// Returns the error with the name of a lock, unless it has one already.
    #[must_use = "returns the error with the name of the lock"]
    pub fn with_lock_name(mut self, name: impl Into<Arc<str>>) -> Error {
        if self.0.lock.is_none() {
            Arc::make_mut(&mut self.0).lock = Some(name.into());
        }
        self
    }

    /// Returns the error with the address of a server, unless it has one already.
    #[must_use = "returns the error with the address of the server"]
    pub fn with_server(mut self, address: impl Into<Arc<str>>) -> Error {
        if self.0.server.is_none() {
            Arc::make_mut(&mut self.0).server = Some(address.into());
        }
        self
    }

    /// Returns the error with the reason of a loss. The text shows it after the message.
    #[must_use = "returns the error with the reason"]
    pub fn with_lost_reason(mut self, reason: LostReason) -> Error {
        Arc::make_mut(&mut self.0).lost = Some(reason);
        self
    }

    /// Returns the error with the code of a refusal, such as `OOM`.
    ///
    /// For an error of kind [`Server`](ErrorKind::Server) the code decides whether the error
    /// [is retryable](Error::is_retryable). The text does not change.
    #[must_use = "returns the error with the code"]
    pub fn with_code(mut self, code: &str) -> Error {
        let details = Arc::make_mut(&mut self.0);
        if details.kind == ErrorKind::Server {
            details.retryability = Refusal::new(code, "").advice().0;
        }
        details.code = Some(code.into());
        self
    }

    /// Returns the error with an underlying cause.
    #[must_use = "returns the error with its cause"]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Arc::make_mut(&mut self.0).source = Some(Cause(source.into().into()));
        self
    }
}

/// The facts of an error.
impl Error {
    /// Returns the kind of the failure.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the lock without the client's prefix, or `None`.
    ///
    /// For a [`MultiLock`](crate::MultiLock) this is the name of the member that failed, or the
    /// names of all members, separated by commas, if the failure concerns all. `None` if the
    /// failure concerns no lock.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lock_name(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// Returns the address of the server, without user and password, or `None`.
    ///
    /// The form is `host:port`, or the path of a Unix socket. `None` if the failure concerns no
    /// server, or more than one.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn server(&self) -> Option<&str> {
        self.0.server.as_deref()
    }

    /// Returns the text of the error with the texts of its causes, each once.
    ///
    /// An example: `the server cannot be reached [server 10.0.0.7:6379]: Connection refused (os
    /// error 111)`.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn with_causes(&self) -> impl fmt::Display + use<'_> {
        CauseChain(self)
    }

    /// Returns how the loss of a lease was noticed, or `None` for other errors.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.lost
    }

    /// Returns the first word of the server's refusal, such as `NOPERM`, or `None`.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// Returns whether the same call may succeed later without a change to this program.
    ///
    /// The [table](Error) lists the retryable kinds. A repeated acquire does no harm: if the server
    /// grants the failed one late, the client releases that grant. Exception: if
    /// [`PlainSemaphore::add_permits`](crate::PlainSemaphore::add_permits),
    /// [`PlainSemaphore::release`](crate::PlainSemaphore::release) or
    /// [`CountDownLatch::count_down`](crate::CountDownLatch::count_down) gets no answer and the
    /// request may have been sent, the error is not retryable, because the client completes the
    /// request in the background.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.retryability, Retryability::Transient | Retryability::Recoverable)
    }

    /// Returns whether the lease expired, or the server no longer has the hold.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns whether there was no hold to release.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_not_held(&self) -> bool {
        self.kind() == ErrorKind::NotHeld
    }

    /// Returns whether a [`CancelToken`](crate::CancelToken) ended the wait.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_cancelled(&self) -> bool {
        self.kind() == ErrorKind::Cancelled
    }

    /// Returns whether the client was closed.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_closed(&self) -> bool {
        self.kind() == ErrorKind::Closed
    }

    /// Returns whether there was no connection.
    ///
    /// The server could not be reached, the connection broke, or the answer was not in the Redis
    /// protocol.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_connection(&self) -> bool {
        self.kind() == ErrorKind::Connection
    }

    /// Returns whether a command, or an attempt to connect, got no answer in time.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_timeout(&self) -> bool {
        self.kind() == ErrorKind::Timeout
    }

    /// Returns whether all connections of the client stayed busy for the pool time-out.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_pool_timeout(&self) -> bool {
        self.kind() == ErrorKind::PoolTimeout
    }

    /// Returns whether too few replicas acknowledged the lock, or the server refused to tell.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_not_replicated(&self) -> bool {
        self.kind() == ErrorKind::NotReplicated
    }

    /// Returns whether the name of the lock is invalid.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_invalid_name(&self) -> bool {
        self.kind() == ErrorKind::InvalidName
    }

    /// Returns whether the call would have waited for the calling thread itself.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_deadlock(&self) -> bool {
        self.kind() == ErrorKind::Deadlock
    }

    /// Returns whether a setting is invalid, the audit refused, or a forked child called.
    ///
    /// The [table](Error) has all causes.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_configuration(&self) -> bool {
        self.kind() == ErrorKind::Configuration
    }

    /// Returns whether the server refused the command.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_server(&self) -> bool {
        self.kind() == ErrorKind::Server
    }
}

/// Predicates and constructors for this crate.
impl Error {
    /// Returns whether the server refused the command because of one or several of its keys.
    /// A command for each key alone may succeed.
    pub(crate) fn is_caused_by_keys(&self) -> bool {
        self.is_server() && (self.is_final() || matches!(self.code(), Some("TRYAGAIN" | "ERR")))
    }

    /// Returns whether no reply came: the connection broke, or the server was silent.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_connection() || self.is_timeout()
    }

    /// Returns whether the failure ends by itself: no reply, or a refusal such as `LOADING`.
    pub(crate) fn is_transient(&self) -> bool {
        self.0.retryability == Retryability::Transient
    }

    /// Returns whether a server refuses the login of a new connection.
    pub(crate) fn is_login_refused(&self) -> bool {
        self.0.retryability == Retryability::Login
    }

    /// Returns whether a call that already waits goes on after the failure.
    ///
    /// The failure ends by itself or by a change at the servers: there is no reply, or a retryable
    /// refusal. Too few acknowledgements are no outage, because the server granted the lock.
    pub(crate) fn is_outage(&self) -> bool {
        self.is_transient() || self.is_retryable() && !self.is_not_replicated()
    }

    /// Returns whether no later attempt can succeed.
    pub(crate) fn is_final(&self) -> bool {
        self.0.retryability == Retryability::Final
    }

    /// Returns the error of a request that the client goes on with in the background.
    ///
    /// A repetition by the program would be a second request.
    pub(crate) fn not_retryable(mut self) -> Error {
        Arc::make_mut(&mut self.0).retryability = Retryability::Final;
        self
    }

    /// Returns the error of a failure that ends by itself, although its kind does not say so.
    pub(crate) fn made_transient(mut self) -> Error {
        Arc::make_mut(&mut self.0).retryability = Retryability::Transient;
        self
    }

    /// Returns the error for an error reply, with advice.
    pub(crate) fn refused(refusal: &Refusal) -> Error {
        Error::refused_with(refusal, refusal.advice().1)
    }

    /// Returns the error for an error reply, with other advice than usual.
    pub(crate) fn refused_with(refusal: &Refusal, advice: &str) -> Error {
        let (retryability, _) = refusal.advice();
        let message = match advice {
            "" => format!("the server refused the command: {refusal}"),
            advice => format!("the server refused the command: {refusal} ({advice})"),
        };
        let mut error = Error::new(ErrorKind::Server, message).with_code(&refusal.code);
        Arc::make_mut(&mut error.0).retryability = retryability;
        error
    }

    /// Returns the error of a write that has run, and whose acknowledgements by replicas are
    /// unknown because of this error.
    pub(crate) fn unacknowledged(mut self) -> Error {
        let details = Arc::make_mut(&mut self.0);
        details.kind = ErrorKind::NotReplicated;
        let reason = &details.message;
        details.message = format!("the acknowledgements of replicas are unknown: {reason}").into();
        self
    }

    /// Returns the error for a connection that was not made, or that broke.
    pub(crate) fn connection(message: &'static str) -> Error {
        Error::new(ErrorKind::Connection, message)
    }

    /// Returns the error for a request that is not sent because the server is a replica.
    ///
    /// A replica that accepts no writes refuses the request with the same code.
    pub(crate) fn replica() -> Error {
        let message = "the server reports the role of replica, and its master may grant the same \
                       lock (connect to the master; Builder::allow_replica permits replicas)";
        Error::new(ErrorKind::Server, message).with_code("READONLY")
    }

    /// Returns the error for a server that sends no reply.
    pub(crate) fn timeout() -> Error {
        Error::new(ErrorKind::Timeout, "the server did not answer in time")
    }

    /// Returns the error for a loss. `message` names the lost object, without the reason.
    pub(crate) fn lost(reason: LostReason, message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Lost, message).with_lost_reason(reason)
    }

    /// Returns the error for a request that needs a connection which is not made yet.
    pub(crate) fn not_connected() -> Error {
        Error::connection("the connection is not established yet")
    }

    /// Returns the error for a reply of a server that a fail-over has replaced.
    pub(crate) fn outdated() -> Error {
        Error::connection("the reply came from a server that is no longer in use")
    }

    pub(crate) fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the client is closed")
    }

    pub(crate) fn configuration(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Configuration, message)
    }
}
