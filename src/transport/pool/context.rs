//! The settings that the shared connections of one pool have in common, and their observer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Redirect, Result};
use crate::transport::call::ConnectionId;
use crate::transport::pool::request::{CallReply, Request};
use crate::transport::topology::health::ServerHealth;
use crate::transport::topology::route::Route;
use crate::util::clock::Moment;
use crate::util::sync::{AtomicU64, TIME_PASSES};
use crate::util::system::process_id;

/// The settings that the shared connections of one pool have in common.
pub(crate) struct PoolContext {
    pub(crate) route: Route,
    pub(crate) health: Arc<ServerHealth>,
    /// The server is a node of a cluster.
    pub(crate) is_cluster_node: bool,
    /// How many replicas have to acknowledge commands that take or extend a lock.
    pub(crate) replicas: u32,
    /// Whether the scripts of locks are refused on a server that reports the role of replica.
    pub(crate) refuses_replica: bool,
    /// Whether the last new connection led to a server on which they are refused.
    pub(crate) is_replica: AtomicBool,
    /// The name of the client. Each connection adds numbers to it.
    pub(crate) name: String,
    /// The id of the process that may use the connections.
    pub(crate) process: u32,
    pub(crate) observer: Arc<dyn ConnectionObserver>,
}

impl fmt::Debug for PoolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolContext").field("route", &self.route).finish_non_exhaustive()
    }
}

impl PoolContext {
    /// Adds the server to an error that the server, or a connection to it, caused.
    pub(crate) fn with_server(&self, error: Error) -> Error {
        let is_answer = error.is_server() || error.is_not_replicated();
        let concerned = is_answer || error.is_unanswered() || error.is_pool_timeout();
        match self.route.server().filter(|_| concerned) {
            Some(server) => error.with_server(server),
            None => error,
        }
    }

    /// Stores the role that a new connection has found; returns whether writes are refused there.
    pub(crate) fn found_replica(&self, is_replica: bool) -> bool {
        let refuses = self.refuses_replica && is_replica;
        self.is_replica.store(refuses, Ordering::Relaxed);
        refuses
    }

    /// Returns whether the last new connection led to a server on which writes are refused.
    pub(crate) fn is_at_replica(&self) -> bool {
        self.is_replica.load(Ordering::Relaxed)
    }

    /// Returns an error in a forked child.
    pub(crate) fn check_process(&self) -> Result<()> {
        check_process(self.process)
    }
}

/// Returns an error if the calling process is not `process`, which made the client.
///
/// A forked child shares the sockets of its parent, where the bytes of both would mix. The child
/// has none of the parent's threads, and would use the parent's hold numbers again.
pub(crate) fn check_process(process: u32) -> Result<()> {
    if process_id() == process {
        Ok(())
    } else {
        Err(Error::configuration(
            "the client was made before a fork and cannot be used in the child",
        ))
    }
}

/// The pause of one connection between attempts to connect: its share of the server's pause.
///
/// Only an attempt of the same connection begins it, so each connection gets one attempt per pause.
/// An answer on any connection to the server ends it.
#[derive(Debug)]
pub(crate) struct ConnectionPause {
    health: Arc<ServerHealth>,
    /// Nanoseconds of the end.
    end: AtomicU64,
}

impl ConnectionPause {
    pub(crate) fn new(health: Arc<ServerHealth>) -> ConnectionPause {
        ConnectionPause { health, end: AtomicU64::new(0) }
    }

    fn end(&self) -> Moment {
        Moment::from_nanos(self.end.load(Ordering::Relaxed))
    }

    fn set_end(&self, end: Moment) {
        self.end.store(end.nanos(), Ordering::Relaxed);
    }

    /// Notes an attempt of this connection that got no answer.
    pub(crate) fn begin(&self, now: Moment, error: &Error) {
        self.set_end(self.health.unanswered(now, error));
    }

    /// Returns the last error of the server, unless an attempt is due.
    pub(crate) fn error(&self, now: Moment) -> Option<Error> {
        let pauses = TIME_PASSES && self.health.is_silent() && now < self.end();
        if pauses { self.health.error() } else { None }
    }

    /// Returns the moment of the attempt after one that failed, and ends the pause then.
    pub(crate) fn retry_at(&self, now: Moment, error: &Error, longest: Duration) -> Moment {
        let own = self.error(now).map(|_| self.end());
        let at = own.unwrap_or_else(|| self.health.retry_at(now, error)).min(now + longest);
        self.set_end(self.end().min(at));
        at
    }
}

/// Receives the events of shared connections. Methods must not block or panic.
pub(crate) trait ConnectionObserver: Send + Sync {
    /// The first command was answered on a connection that is not the first one.
    fn reconnected(&self, connection: ConnectionId, address: &Arc<str>);
    /// The server has answered a command after an outage.
    fn recovered(&self);
    /// The reply to a background request arrived.
    fn answered(&self, connection: ConnectionId, request: Request, reply: CallReply);
    /// A background request failed: no reply arrived, or the server refused the command.
    fn failed(&self, connection: ConnectionId, request: Request, error: Error);
    /// A cluster node redirected a background request.
    fn redirected(
        &self,
        connection: ConnectionId,
        request: Request,
        redirect: Redirect,
        error: Error,
    );
    /// Background requests are queued, and no thread leads or waits.
    fn queue_unattended(&self, connection: ConnectionId);
    /// A connection has to be made, and the system has no room for a thread that connects.
    ///
    /// Returns whether the reaper of the connection connects, now or when it can be started.
    fn connects(&self, connection: ConnectionId) -> bool;
    /// Replies to background requests are unread, and no thread leads or waits.
    fn replies_unread(&self, connection: ConnectionId);
}
