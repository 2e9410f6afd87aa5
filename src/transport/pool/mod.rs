//! Connections that threads share, background requests, and the way to the right server.
//!
//! Imports `topology`, `connection` and below. Read [`request`] first (a command, and the receiver
//! of its outcome), then [`shared_connection`] (a queue whose leader writes and reads for all),
//! [`pipeline`] (one connection's requests on the wire), [`connections`] (which
//! connection a request takes), [`background`] and [`reaper`], and [`router`] (which server).
//! [`joined`] holds one mechanism of the pipeline, and can be read last.
//!
//! * *Background request*: a request whose sender does not wait for the reply. The sender writes
//!   the request if the write needs no waiting, and goes on.
//! * *Retry queue*: failed background requests that wait for their next attempt.
//! * *Reaper*: the thread of a connection that reads replies which no caller reads, and sends the
//!   background requests that are due.

mod background;
mod cluster_nodes;
mod connections;
pub(crate) mod context;
mod joined;
mod nodes;
pub(crate) mod pipeline;
mod reaper;
mod reply_slot;
pub(crate) mod request;
mod resend;
mod retry_queue;
pub(crate) mod router;
pub(crate) mod shared_connection;
mod target;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cancel::Limit;
use crate::error::{Error, Redirect, Result};
use crate::transport::call::{Call, ConnectionId};
use crate::transport::connection::Timeouts;
use crate::transport::pool::background::Rerouter;
use crate::transport::pool::connections::Connections;
use crate::transport::pool::context::PoolContext;
use crate::transport::pool::reply_slot::ReplySlot;
use crate::transport::pool::request::{Failure, Outcome, Redirected, Request};
use crate::transport::topology::failover::ServerObserver;
use crate::transport::topology::health::ServerHealths;
use crate::transport::topology::route::{Generation, Route};
use crate::util::clock::{self, Moment};
use crate::util::system::thread::JoinHandle;
pub(crate) use target::Target;

#[cfg(all(test, leasehold_model))]
mod model;

/// The settings of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolSettings {
    pub(crate) server: PoolServer,
    /// The id of the process that made the client.
    pub(crate) process: u32,
    /// The name of the client's connections on the server.
    pub(crate) name: String,
    /// The greatest number of shared connections.
    pub(crate) size: usize,
    pub(crate) timeouts: PoolTimeouts,
    /// How many replicas have to acknowledge commands that take or extend a lock.
    pub(crate) replicas: u32,
    /// Whether the scripts of locks are refused on a server that reports the role of replica.
    pub(crate) refuses_replica: bool,
    /// The longest interval for repeating a clean-up that a late command could undo.
    pub(crate) longest_repeat: Duration,
    pub(crate) healths: Arc<ServerHealths>,
}

/// The server of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolServer {
    /// The number of the server, 0 if there is only one.
    pub(crate) node: u32,
    /// The server is a node of a cluster.
    pub(crate) is_cluster_node: bool,
    pub(crate) route: Route,
}

/// The longest wait for a reply on the private connections, which a shorter lease shortens.
#[derive(Debug)]
pub(crate) struct LongestWait(AtomicU64);

impl LongestWait {
    pub(crate) fn new(longest: Duration) -> LongestWait {
        LongestWait(AtomicU64::new(clock::nanos(longest)))
    }

    /// Shortens the wait to `longest`, unless it is shorter.
    pub(crate) fn shorten(&self, longest: Duration) {
        self.0.fetch_min(clock::nanos(longest), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The time-outs of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolTimeouts {
    pub(crate) shared: Timeouts,
    /// Bounds the same time-outs of the private connection.
    pub(crate) longest_private: Arc<LongestWait>,
    /// How long a command stays in the queue of a busy connection.
    pub(crate) queue: Duration,
}

/// The connections to one server.
pub(crate) struct Pool {
    connections: Arc<Connections>,
    context: Arc<PoolContext>,
    queue_timeout: Duration,
}

/// A command in the queue of a connection, before its caller waits for the reply.
#[derive(Debug)]
#[must_use = "a command is served only if its caller waits for it"]
pub(crate) struct QueuedCall {
    pub(crate) connection: ConnectionId,
    slot: Arc<ReplySlot>,
    /// Another connection may serve the command if this one cannot be connected.
    may_move: bool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("connections", &self.connections.shared)
            .finish_non_exhaustive()
    }
}

/// The pool and its server.
impl Pool {
    /// Makes the pool and its first connection.
    pub(crate) fn open(settings: PoolSettings) -> Result<Pool> {
        let pool = Pool::new(settings);
        if let Some(connection) = pool.connections.shared.first() {
            connection.connect()?;
        }
        Ok(pool)
    }

    /// Makes the pool without a connection.
    pub(crate) fn new(settings: PoolSettings) -> Pool {
        let queue_timeout = settings.timeouts.queue;
        let (connections, context) = Connections::new(settings);
        Pool { connections, context, queue_timeout }
    }

    /// Returns the connection that is made first.
    pub(crate) fn first_connection(&self) -> ConnectionId {
        self.connections.id(0)
    }

    /// Returns the connection that is reserved for one thread.
    pub(crate) fn private_connection(&self) -> ConnectionId {
        self.connections.private.id()
    }

    pub(crate) fn is_connected(&self, connection: ConnectionId) -> bool {
        !self.connections.get(connection).is_disconnected()
    }

    pub(crate) fn is_private_connected(&self) -> bool {
        !self.connections.private.is_disconnected()
    }

    /// Returns whether a shared connection is open.
    pub(crate) fn has_open(&self) -> bool {
        self.connections.shortest_open().is_some()
    }

    /// Returns the error for which the private connection pauses before its next attempt.
    pub(crate) fn private_pause_error(&self) -> Option<Error> {
        self.connections.private.pause().error(clock::now())
    }

    /// Returns the moment for the next attempt of the private connection after one that failed,
    /// at most `longest` from now.
    pub(crate) fn retry_private_at(&self, error: &Error, longest: Duration) -> Moment {
        self.connections.private.pause().retry_at(clock::now(), error, longest)
    }

    /// Starts a thread that makes the private connection, unless the connection exists.
    ///
    /// Returns `Err` until the connection exists, with the error of the last attempt, if one
    /// failed.
    pub(crate) fn connect_private(&self) -> std::result::Result<(), Option<Error>> {
        self.connections.connect_private()
    }

    /// Sets the receiver of background requests that another server has to run.
    pub(crate) fn set_rerouter(&self, rerouter: Weak<dyn Rerouter>) {
        self.connections.background.set_rerouter(rerouter);
    }

    /// Sets the receiver of reconnections.
    pub(crate) fn set_server_observer(&self, receiver: Weak<dyn ServerObserver>) {
        self.connections.background.set_server_observer(receiver);
    }

    /// Returns the address of the server, if it has been found.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        self.context.route.server()
    }

    /// Returns the number of topology changes so far.
    pub(crate) fn generation(&self) -> Generation {
        self.context.route.generation()
    }

    /// Gives up the connections to a server that was replaced.
    pub(crate) fn leave_old_servers(&self) {
        for connection in self.connections.shared.iter().chain([&self.connections.private]) {
            connection.leave_old_server();
        }
    }
}

/// Commands whose caller waits.
impl Pool {
    /// Sends a command and waits for its reply.
    #[cfg(all(test, leasehold_model))]
    pub(crate) fn call(
        &self,
        call: Call,
        target: Target,
    ) -> Result<crate::transport::pool::request::CallReply> {
        let queued = self.queue(call, target);
        self.wait(queued, &Limit::none()).1.map_err(Failure::into_error)
    }

    /// Queues a command without I/O; its caller has to call [`Pool::wait`].
    pub(crate) fn queue(&self, call: Call, target: Target) -> QueuedCall {
        let (request, slot) = Request::awaited(call);
        self.queue_request(request, slot, target)
    }

    /// Queues a command that another node redirected here, on the connection with that number.
    pub(crate) fn queue_redirected(&self, redirected: Redirected, connection: usize) -> QueuedCall {
        let asking = matches!(redirected.redirect, Redirect::Ask(_));
        let (mut request, slot) = Request::awaited(redirected.call);
        request.replay.copies = redirected.copies;
        let request = request.with_asking(asking);
        self.queue_request(request, slot, Target::Only(self.connections.id(connection)))
    }

    fn queue_request(&self, request: Request, slot: Arc<ReplySlot>, target: Target) -> QueuedCall {
        let may_move = !matches!(target, Target::Only(_));
        QueuedCall {
            connection: self.connections.queue(request, target.connection()),
            slot,
            may_move,
        }
    }

    /// Writes the queue of a connection as far as that needs no waiting.
    pub(crate) fn flush(&self, connection: ConnectionId) {
        self.connections.get(connection).flush();
    }

    /// Waits for a queued command. Returns its outcome, and the connection that served it.
    ///
    /// Ends at the `limit`. Ends after the pool time-out if the command is still in the queue; on
    /// the private connection only the `limit` counts. An unsent command moves to an open
    /// connection and waits there, if there is one.
    pub(crate) fn wait(&self, queued: QueuedCall, limit: &Limit<'_>) -> (ConnectionId, Outcome) {
        let connection = self.connections.get(queued.connection);
        if connection.id() == self.private_connection() {
            return (queued.connection, connection.wait(&queued.slot, limit, Moment::END));
        }
        let waiting = self.connections.count_caller();
        let outcome = connection.wait(&queued.slot, limit, clock::now() + self.queue_timeout);
        drop(waiting);
        if queued.slot.is_abandoned() {
            // The reaper reads the reply.
            self.connections.start_or_wake_reaper(queued.connection);
        }
        let failure = match outcome {
            Err(failure) if queued.may_move => failure,
            outcome => return (queued.connection, outcome),
        };
        // After the pool time-out in one queue the caller does not join another.
        let may_wait = !limit.is_over(clock::now())
            && (failure.error.is_transient() || failure.error.is_login_refused())
            && !failure.error.is_pool_timeout()
            && failure.error.code() != Some("READONLY");
        match (self.connections.shortest_open().filter(|_| may_wait), failure) {
            (Some(other), Failure { unsent: Some(call), .. }) => {
                self.wait(self.queue(*call, Target::Only(other)), limit)
            }
            (_, failure) => (queued.connection, Err(failure)),
        }
    }
}

/// Background requests.
impl Pool {
    /// Queues a background request without I/O; has to be followed by [`Pool::dispatch`].
    ///
    /// The request is retried until its reply arrives or its deadline has passed.
    pub(crate) fn submit(
        &self,
        background: Request,
        connection: Option<ConnectionId>,
    ) -> ConnectionId {
        self.connections.background.queue.count_open();
        self.connections.queue(background, connection)
    }

    /// Sends the background requests of a connection, as far as that needs no waiting.
    pub(crate) fn dispatch(&self, connection: ConnectionId) {
        self.connections.dispatch(connection);
    }

    /// Starts the reapers for which the system had no room.
    pub(crate) fn start_missing_reapers(&self) {
        self.connections.start_missing_reapers();
    }

    /// Takes over a background request of another pool, on the connection with that number.
    pub(crate) fn take_over(&self, request: Request, connection: usize) {
        if request.delays_close() {
            self.connections.background.queue.count_open();
        }
        let connection = self.connections.id(connection % self.connections.shared.len());
        let connection = self.connections.queue(request, Some(connection));
        self.connections.start_or_wake_reaper(connection);
    }

    /// Sends a command repeatedly until `until`, or until the pool is closed.
    ///
    /// The close of the client does not wait for the repetitions: they are a precaution.
    pub(crate) fn repeat(&self, call: Call, connection: ConnectionId, until: Moment) {
        self.connections.background.repeat(connection, call, 0, until);
        self.connections.dispatch(connection);
    }

    /// Returns the number of background requests without an outcome.
    pub(crate) fn open_requests(&self) -> usize {
        self.connections.background.queue.open()
    }

    /// Returns whether all background requests have an outcome.
    pub(crate) fn is_settled(&self) -> bool {
        self.wait_until_settled(Moment::START)
    }

    /// Blocks until all background requests have an outcome, or until `end`.
    ///
    /// Returns whether all have one.
    pub(crate) fn wait_until_settled(&self, end: Moment) -> bool {
        self.connections.background.queue.wait_until_settled(end)
    }

    /// Lets the reapers end after the last background request; returns their threads.
    pub(crate) fn finish(&self) -> Vec<JoinHandle<()>> {
        self.connections.background.queue.finish();
        std::mem::take(&mut *self.connections.reapers.lock()).into_values().collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.finish();
    }
}
