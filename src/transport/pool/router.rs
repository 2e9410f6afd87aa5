//! Sends commands to the server that serves their key.
//!
//! Most deployments have one server. In a cluster the slot of the command's key names the node; see
//! [`nodes`](super::nodes) for the pools and [`resend`](super::resend) for redirections.
//!
//! A command follows another one on the same connection only while the same node serves their slot.
//! If the slot has moved, the former node does not run a command that reaches it late.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cancel::Limit;
use crate::error::{self, Error};
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::background::Rerouter;
use crate::transport::pool::cluster_nodes::ClusterNodes;
use crate::transport::pool::context;
use crate::transport::pool::nodes::{Nodes, PoolRef, SingleNode};
use crate::transport::pool::request::{CallReply, Failure, Outcome, Request};
use crate::transport::pool::resend::Resend;
use crate::transport::pool::{self, Pool, PoolSettings, Target};
use crate::transport::reply::Reply;
use crate::transport::slots::slot;
use crate::transport::topology::cluster::Cluster;
use crate::transport::topology::failover::ServerObserver;
use crate::transport::topology::health::{ServerHealth, ServerHealths};
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::util::system::{OnceLock, thread::JoinHandle};

/// The number of replies from former servers at which a call ends with an error.
pub(crate) const MAX_OUTDATED_REPLIES: u32 = 16;

/// Sends the commands of one client.
#[derive(Debug)]
pub(crate) struct Router {
    nodes: Arc<dyn Nodes>,
    healths: Arc<ServerHealths>,
    /// The nodes again, if they are the nodes of a cluster.
    cluster: Option<Arc<ClusterNodes>>,
    /// Whether the keys of one command have to share a slot. A single server may be a node of a
    /// cluster; its first `CROSSSLOT` error shows that.
    has_slots: AtomicBool,
    process: u32,
    /// How long a call is repeated while a cluster refuses it for the moment.
    response_timeout: Duration,
}

/// A call in the queue of a connection, before its caller waits for the reply.
#[derive(Debug)]
#[must_use = "a call is served only if its caller waits for it"]
pub(crate) struct RoutedCall {
    pub(crate) connection: ConnectionId,
    queued: pool::QueuedCall,
    /// The pool of a cluster node, which must not be dropped before the reply.
    pool: Option<Arc<Pool>>,
}

impl RoutedCall {
    pub(super) fn new(pool: PoolRef<'_>, queued: pool::QueuedCall) -> RoutedCall {
        RoutedCall { connection: queued.connection, queued, pool: pool.into_owned() }
    }
}

impl Router {
    /// A single server, or the master that Sentinel names. Connects to it, unless `lazily`.
    pub(crate) fn single(settings: PoolSettings, lazily: bool) -> error::Result<Router> {
        let (process, response_timeout) = (settings.process, settings.timeouts.shared.response);
        let healths = Arc::clone(&settings.healths);
        let pool = if lazily { Pool::new(settings) } else { Pool::open(settings)? };
        Ok(Router {
            nodes: Arc::new(SingleNode::new(pool)),
            healths,
            cluster: None,
            has_slots: AtomicBool::new(false),
            process,
            response_timeout,
        })
    }

    /// The nodes of a cluster. Connects to none of them.
    pub(crate) fn cluster(
        cluster: Arc<Cluster>,
        settings: PoolSettings,
        sharded: Arc<OnceLock<bool>>,
    ) -> Router {
        let (process, response_timeout) = (settings.process, settings.timeouts.shared.response);
        let healths = Arc::clone(&settings.healths);
        let nodes = ClusterNodes::new(cluster, settings, sharded);
        Router {
            nodes: Arc::clone(&nodes) as Arc<dyn Nodes>,
            healths,
            cluster: Some(nodes),
            has_slots: AtomicBool::new(true),
            process,
            response_timeout,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Sets the receiver of reconnections.
    pub(crate) fn set_server_observer(&self, receiver: Weak<dyn ServerObserver>) {
        self.nodes.set_server_observer(receiver);
    }

    /// Returns the number of topology changes so far.
    pub(crate) fn generation(&self) -> Generation {
        self.nodes.generation()
    }

    /// Repeats a step until no server is replaced during it. Returns its last value, and the number
    /// of topology changes before it.
    ///
    /// What a former server answers does not count. Fails at [`MAX_OUTDATED_REPLIES`].
    pub(crate) fn until_current<T>(
        &self,
        mut step: impl FnMut() -> error::Result<T>,
    ) -> error::Result<(T, Generation)> {
        for _ in 0..MAX_OUTDATED_REPLIES {
            let generation = self.generation();
            let value = step()?;
            if self.generation() == generation {
                return Ok((value, generation));
            }
        }
        Err(Error::outdated())
    }

    /// Gives up connections to servers that were replaced.
    pub(crate) fn leave_old_servers(&self) {
        self.nodes.leave_old_servers();
    }

    /// Drops the connections to servers that were replaced, if they were still in use at that time.
    pub(crate) fn drop_former_pools(&self) {
        self.nodes.drop_former_pools();
    }

    /// Returns the addresses of the servers that the client has used and has not left.
    pub(crate) fn used_servers(&self) -> BTreeSet<Arc<str>> {
        self.nodes.pools().iter().filter_map(|pool| pool.server()).collect()
    }

    /// Returns an error in a forked child.
    pub(crate) fn check_process(&self) -> error::Result<()> {
        context::check_process(self.process)
    }

    /// Returns the slot that the keys of one script call have to share.
    ///
    /// Always 0 for a single server that is not known to have slots.
    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        if self.has_slots.load(Ordering::Relaxed) { slot(key.as_bytes()) } else { 0 }
    }

    /// Returns the number of the server that serves a key, or `u32::MAX` if it is unknown.
    pub(crate) fn node_of(&self, key: &str) -> u32 {
        self.nodes.owner_of(key.as_bytes()).unwrap_or(u32::MAX)
    }

    /// Returns the health of each server, with the number of its node.
    pub(crate) fn healths(&self) -> Vec<(u32, Arc<ServerHealth>)> {
        self.healths.all()
    }

    /// Returns the health of the server that serves a key.
    pub(crate) fn health_of(&self, key: &str) -> Arc<ServerHealth> {
        self.healths.of(self.node_of(key))
    }

    /// Returns the error of the server of a key, if the server pauses and no connection to it is
    /// open.
    pub(crate) fn pause_error(&self, key: &str) -> Option<Error> {
        let error = self.health_of(key).paused_error(clock::now())?;
        let (pool, _) = self.nodes.place(Some(key.as_bytes()), Target::Any);
        (!pool.has_open()).then_some(error)
    }

    /// Returns whether a server has answered no command since its last failure.
    pub(crate) fn is_silent(&self, node: u32) -> bool {
        self.healths.of(node).is_silent()
    }

    /// Ends the pauses of all servers, because others may have taken over.
    pub(crate) fn end_pauses(&self) {
        self.healths.end_pauses();
    }

    /// Returns the moment at which to repeat a failed request for this key on the private
    /// connection, at most `longest` from now.
    pub(crate) fn retry_private_at(&self, key: &str, error: &Error, longest: Duration) -> Moment {
        let (pool, _) = self.nodes.place(Some(key.as_bytes()), Target::Any);
        pool.retry_private_at(error, longest)
    }

    /// Returns the number of background requests to a node that have no outcome.
    pub(crate) fn open_requests(&self, node: u32) -> usize {
        let pools = self.nodes.pools().into_iter();
        let of_node = pools.filter(|pool| pool.private_connection().node == node);
        of_node.map(|pool| pool.open_requests()).sum()
    }

    /// Returns the servers whose private connection is open, with that connection.
    pub(crate) fn connected_servers(&self) -> Vec<(Arc<str>, ConnectionId)> {
        let pools = self.nodes.pools();
        let connected = pools.iter().filter(|pool| pool.is_private_connected());
        connected.filter_map(|pool| Some((pool.server()?, pool.private_connection()))).collect()
    }

    /// Returns all servers that serve keys, with a connection that may not be open yet.
    pub(crate) fn servers(&self) -> Vec<(Arc<str>, ConnectionId)> {
        let pools = self.nodes.serving();
        pools.iter().filter_map(|pool| Some((pool.server()?, pool.first_connection()))).collect()
    }
}

/// Commands whose caller waits.
impl Router {
    /// Sends a command and waits for its reply.
    pub(crate) fn call(
        &self,
        call: Call,
        target: Target,
        limit: &Limit<'_>,
    ) -> error::Result<CallReply> {
        let routed = self.queue(call, target);
        self.wait(routed, limit).1.map_err(Failure::into_error)
    }

    /// Queues a command without I/O: the first half of [`Router::call`].
    pub(crate) fn queue(&self, call: Call, target: Target) -> RoutedCall {
        let (pool, target) = self.nodes.place(call.key(), target);
        let queued = pool.queue(self.nodes.adapt(call), target);
        RoutedCall::new(pool, queued)
    }

    /// Returns whether a connection is open.
    pub(crate) fn is_connected(&self, connection: ConnectionId) -> bool {
        self.nodes.pool(connection.node).is_connected(connection)
    }

    /// Queues a command on the private connection of its server.
    ///
    /// For the watchdog, whose commands must not wait behind others. In a cluster a silent server
    /// must not delay the commands to the other servers. So a thread makes the private connection;
    /// until it exists, the result is `Err` with the error of the last attempt, if one failed. On
    /// an existing connection the command is written at once, if the system takes the bytes.
    pub(crate) fn queue_private(&self, call: Call) -> Result<RoutedCall, Option<Error>> {
        let (pool, _) = self.nodes.place(call.key(), Target::Any);
        if let Some(error) = pool.private_pause_error().filter(|_| !pool.is_private_connected()) {
            return Err(Some(error));
        }
        if let Some(cluster) = &self.cluster
            && let Err(error) = pool.connect_private()
        {
            if error.is_some() {
                cluster.request_refresh();
            }
            return Err(error);
        }
        let connection = pool.private_connection();
        let queued = pool.queue(self.nodes.adapt(call), Target::Only(connection));
        if self.is_cluster() {
            pool.flush(connection);
        }
        Ok(RoutedCall::new(pool, queued))
    }

    /// Writes the queue of a connection as far as that needs no waiting.
    pub(crate) fn flush(&self, connection: ConnectionId) {
        self.nodes.pool(connection.node).flush(connection);
    }

    /// Waits for a queued command: the second half of [`Router::call`].
    ///
    /// Returns as [`Pool::wait`]. A command that a cluster refuses for the moment is sent again for
    /// at most one response time-out.
    pub(crate) fn wait(&self, routed: RoutedCall, limit: &Limit<'_>) -> (ConnectionId, Outcome) {
        self.wait_and_resend(routed, limit, || clock::now() + self.response_timeout)
    }

    /// Like [`Router::wait`], but a command that a cluster refuses for the moment fails.
    ///
    /// For callers that must not pause, and for commands about several keys.
    pub(crate) fn wait_without_retry(
        &self,
        routed: RoutedCall,
        limit: &Limit<'_>,
    ) -> (ConnectionId, Outcome) {
        let (connection, outcome) = self.wait_and_resend(routed, limit, || Moment::START);
        if outcome.as_ref().is_err_and(|failure| failure.error.code() == Some("CROSSSLOT")) {
            self.has_slots.store(true, Ordering::Relaxed);
        }
        (connection, outcome)
    }

    /// Waits, and in a cluster follows redirections; pauses begin until `retry_end` at the latest.
    fn wait_and_resend(
        &self,
        routed: RoutedCall,
        limit: &Limit<'_>,
        retry_end: impl FnOnce() -> Moment,
    ) -> (ConnectionId, Outcome) {
        let Some(cluster) = &self.cluster else { return self.wait_once(routed, limit) };
        let mut resend = Resend::new(cluster, limit, retry_end());
        let mut routed = routed;
        loop {
            // Keeps the pool during the pause before the next attempt: only the pool knows until
            // when its commands may run late.
            let _pool = routed.pool.clone();
            let (connection, outcome) = self.wait_once(routed, limit);
            let Err(failure) = outcome else { return (connection, outcome) };
            match resend.next(connection, failure) {
                Ok(again) => routed = again,
                Err(failure) => return (connection, Err(failure)),
            }
        }
    }

    fn wait_once(&self, routed: RoutedCall, limit: &Limit<'_>) -> (ConnectionId, Outcome) {
        match routed.pool {
            Some(pool) => pool.wait(routed.queued, limit),
            None => self.nodes.pool(routed.connection.node).wait(routed.queued, limit),
        }
    }
}

/// Commands to several servers, or several commands to one.
impl Router {
    /// Sends `PING` to all servers that serve keys. Returns the first error.
    pub(crate) fn ping(&self, limit: &Limit<'_>) -> error::Result<()> {
        let ping = |pool: Arc<Pool>| {
            self.queue(Call::command(&[b"PING"]), Target::Prefer(pool.first_connection()))
        };
        let routed: Vec<_> = self.nodes.serving().into_iter().map(ping).collect();
        let outcomes: Vec<_> = routed.into_iter().map(|it| self.wait(it, limit).1).collect();
        outcomes.into_iter().try_for_each(|outcome| match outcome.map_err(Failure::into_error) {
            // The server replies, and the user may still have the permissions that locks need.
            Err(error) if error.code() == Some("NOPERM") => Ok(()),
            outcome => outcome.map(drop),
        })
    }

    /// Sends commands in one write; returns the replies that are not errors.
    pub(crate) fn call_all(&self, calls: Vec<Call>, connection: ConnectionId) -> Vec<Reply> {
        let outcomes = self.call_in_one_write(calls, connection, &Limit::none());
        outcomes.into_iter().flatten().collect()
    }

    /// Sends commands in one write; returns their outcomes.
    pub(crate) fn call_in_one_write(
        &self,
        calls: Vec<Call>,
        connection: ConnectionId,
        limit: &Limit<'_>,
    ) -> Vec<error::Result<Reply>> {
        let queue = |call| self.queue(call, Target::Only(connection));
        let routed: Vec<_> = calls.into_iter().map(queue).collect();
        let outcomes = routed.into_iter().map(|it| self.wait(it, limit).1);
        outcomes.map(|it| it.map(|reply| reply.value).map_err(Failure::into_error)).collect()
    }

    /// Sends a command to each server on its private connection, before it waits for the replies.
    ///
    /// Returns number, address and outcome of each server. Leaves out the nodes of a cluster whose
    /// private connection is not open.
    pub(crate) fn call_each_server(
        &self,
        call: impl Fn() -> Call,
    ) -> Vec<(u32, Arc<str>, Outcome)> {
        let mut queued = Vec::new();
        for pool in self.nodes.pools() {
            if self.is_cluster() && !pool.is_private_connected() {
                continue;
            }
            let Some(server) = pool.server() else { continue };
            let connection = pool.private_connection();
            queued.push((connection.node, server, self.queue(call(), Target::Only(connection))));
            self.flush(connection);
        }
        let outcome = |routed| self.wait_without_retry(routed, &Limit::none()).1;
        queued.into_iter().map(|(node, server, it)| (node, server, outcome(it))).collect()
    }
}

/// Background requests.
impl Router {
    /// Queues a background request without I/O; has to be followed by [`Router::dispatch`].
    pub(crate) fn submit(
        &self,
        background: Request,
        connection: Option<ConnectionId>,
    ) -> ConnectionId {
        let (pool, target) = self.nodes.place(background.call.key(), Target::only(connection));
        let background = Request { call: self.nodes.adapt(background.call), ..background };
        pool.submit(background, target.connection())
    }

    /// Queues a background request and writes it, as far as that needs no waiting.
    ///
    /// Returns the connection of the request.
    pub(crate) fn send_background(
        &self,
        background: Request,
        connection: Option<ConnectionId>,
    ) -> ConnectionId {
        let connection = self.submit(background, connection);
        self.dispatch(connection);
        connection
    }

    /// Sends the background requests of a connection, as far as that needs no waiting.
    pub(crate) fn dispatch(&self, connection: ConnectionId) {
        self.nodes.pool(connection.node).dispatch(connection);
    }

    /// Starts the reapers for which the system had no room.
    pub(crate) fn start_missing_reapers(&self) {
        for pool in self.nodes.pools() {
            pool.start_missing_reapers();
        }
    }

    /// Sends a command repeatedly until `until`, as [`Pool::repeat`].
    pub(crate) fn repeat(&self, call: Call, connection: ConnectionId, until: Moment) {
        self.nodes.pool(connection.node).repeat(self.nodes.adapt(call), connection, until);
    }

    /// Blocks until all background requests are done, or until `end`. Returns whether all are done.
    pub(crate) fn wait_until_settled(&self, end: Moment) -> bool {
        // A request may have moved meanwhile, to a node whose requests were all done.
        while self.nodes.pools().iter().any(|pool| !pool.is_settled()) {
            if end <= clock::now() {
                return false;
            }
            for pool in self.nodes.pools() {
                pool.wait_until_settled(end);
            }
        }
        true
    }

    /// Lets the reapers end after the last background request; returns their threads.
    pub(crate) fn finish(&self) -> Vec<JoinHandle<()>> {
        self.nodes.pools().iter().flat_map(|pool| pool.finish()).collect()
    }
}
