//! The servers of a client, a pool for each, and which of them a command is for.
//!
//! Mostly there is one. In a cluster the slot of a command's key says which it is. What a node
//! sends elsewhere goes there, in the lane of the same number: so what stood in order here
//! stands so there. Who waits sends it on itself (`Router::wait`); what is owed is handed
//! on by whoever reads the answer, or by the reaper when it is due again ([`Rerouter`]).
//!
//! A command is sent behind another only as long as the same node serves their slot: what comes
//! late to one that does not serve it any more is not run there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cancel::Limit;
use crate::command::call::{Call, ConnectionId};
use crate::command::name::slot;
use crate::command::reply::Reply;
use crate::error::{self, Error, Redirect};
use crate::pool::context;
use crate::pool::request::{Answer, Failure, Outcome, Redirected, Request};
use crate::pool::{self, Pool, PoolSettings, Rerouter, Target, no_agreement};
use crate::topology::cluster::Cluster;
use crate::topology::failover::OnReconnect;
use crate::topology::route::{Generation, Route};
use crate::util::clock::{self, Moment, doubled, jittered};
use crate::util::sync::Mutex;

/// How often a command is sent on between two pauses: nodes may not agree for a while.
const HOPS: u32 = 4;

/// How often a command that found no connection is sent to another owner of its slot.
const TRIES: u32 = 16;

/// The first and the longest pause before a command is sent again for which it was too early.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The pools of a client.
pub(crate) enum Router {
    /// And whether it is known to take only keys of one slot in one command.
    One(Arc<Pool>, AtomicBool),
    Nodes(Arc<NodePools>),
}

/// The nodes of a cluster.
pub(crate) struct NodePools {
    cluster: Arc<Cluster>,
    /// The same for all but for the address.
    settings: PoolSettings,
    /// Messages go to shards.
    sharded: Arc<OnceLock<bool>>,
    /// For how long a command is sent again for which it is too early.
    patience: Duration,
    pools: Mutex<BTreeMap<u32, Arc<Pool>>>,
    on_reconnect: OnceLock<Weak<dyn OnReconnect>>,
    itself: Weak<NodePools>,
}

/// A command in the line of a lane, whose sender has yet to wait for it.
#[derive(Debug)]
#[must_use = "a command is served only if somebody waits for it"]
pub(crate) struct RoutedCall {
    pub(crate) connection: ConnectionId,
    queued: pool::QueuedCall,
    /// Where it is queued, where there are several; not forgotten before it is done.
    pool: Option<Arc<Pool>>,
}

impl RoutedCall {
    fn of(queued: pool::QueuedCall) -> RoutedCall {
        RoutedCall { connection: queued.connection, queued, pool: None }
    }

    fn at(pool: Arc<Pool>, queued: pool::QueuedCall) -> RoutedCall {
        RoutedCall { pool: Some(pool), ..RoutedCall::of(queued) }
    }
}

/// How often a command was sent elsewhere, and how often it was too early for it.
#[derive(Debug, Default)]
struct Tries {
    sent: u32,
    pauses: u32,
    /// Where it stands now it was sent by the owner of its slot, which would do so again.
    asks: bool,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Router::One(pool, _) => pool.fmt(f),
            Router::Nodes(nodes) => nodes.cluster.fmt(f),
        }
    }
}

impl Router {
    /// One server, or what takes its place by and by. Connects to it, unless `lazily`.
    pub(crate) fn one(settings: PoolSettings, lazily: bool) -> error::Result<Router> {
        let pool = if lazily { Pool::new(settings) } else { Pool::open(settings)? };
        Ok(Router::One(Arc::new(pool), AtomicBool::new(false)))
    }

    /// Asks all servers that serve something for a word. An error if one of them has none.
    pub(crate) fn ping(&self, limit: &Limit<'_>) -> error::Result<()> {
        let ping = |connection: &ConnectionId| {
            self.queue(Call::command(&[b"PING"]), Target::Prefer(*connection))
        };
        let connections = match self {
            Router::One(pool, _) => vec![pool.first_connection()],
            Router::Nodes(_) => {
                self.servers().into_iter().map(|(_, connection)| connection).collect()
            }
        };
        let pending: Vec<_> = connections.iter().map(ping).collect();
        let answers = pending.into_iter().map(|it| self.wait(it, limit).1);
        let answers: Vec<_> = answers.collect();
        answers.into_iter().try_for_each(|outcome| match outcome.map_err(Failure::into_error) {
            // It answers, and may have the rights that locks need.
            Err(error) if error.code() == Some("NOPERM") => Ok(()),
            outcome => outcome.map(drop),
        })
    }

    /// The nodes of a cluster.
    pub(crate) fn nodes(
        cluster: Arc<Cluster>,
        settings: PoolSettings,
        sharded: Arc<OnceLock<bool>>,
    ) -> Router {
        let patience = settings.timeouts.response;
        Router::Nodes(Arc::new_cyclic(|itself| NodePools {
            cluster,
            settings: PoolSettings { is_node: true, ..settings },
            sharded,
            patience,
            pools: Mutex::default(),
            on_reconnect: OnceLock::new(),
            itself: Weak::clone(itself),
        }))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Router::Nodes(_))
    }

    /// Whom to tell of new connections.
    pub(crate) fn set_on_reconnect(&self, whom: Weak<dyn OnReconnect>) {
        match self {
            Router::One(pool, _) => pool.set_on_reconnect(whom),
            // There is but one.
            Router::Nodes(nodes) => drop(nodes.on_reconnect.set(whom)),
        }
    }

    /// How often the servers have been others than before.
    pub(crate) fn generation(&self) -> Generation {
        match self {
            Router::One(pool, _) => pool.generation(),
            Router::Nodes(nodes) => Generation::of(nodes.cluster.generation()),
        }
    }

    /// Gives up what leads to what is no more the server.
    pub(crate) fn leave_old_servers(&self) {
        match self {
            Router::One(pool, _) => pool.leave_old_servers(),
            Router::Nodes(nodes) => nodes.dismiss(),
        }
    }

    /// An error in a forked child.
    pub(crate) fn check_process(&self) -> error::Result<()> {
        match self {
            Router::One(pool, _) => pool.check_process(),
            Router::Nodes(nodes) => context::check_process(nodes.settings.process),
        }
    }

    /// Those that commands of one script call have to share; always the same where there are
    /// no slots, as far as is known.
    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        match self {
            Router::One(_, has_slots) if !has_slots.load(Ordering::Relaxed) => 0,
            Router::One(..) | Router::Nodes(_) => slot(key.as_bytes()),
        }
    }

    /// The servers whose private lane has a connection, with that lane.
    pub(crate) fn connected_servers(&self) -> Vec<(Arc<str>, ConnectionId)> {
        let pools = self.pools();
        let connected = pools.iter().filter(|pool| pool.is_private_connected());
        connected.filter_map(|pool| Some((pool.server()?, pool.private_connection()))).collect()
    }

    /// All servers that are known to serve something, with a lane of each that may have to be
    /// connected first.
    pub(crate) fn servers(&self) -> Vec<(Arc<str>, ConnectionId)> {
        let pools = match self {
            Router::One(..) => self.pools(),
            Router::Nodes(nodes) => {
                nodes.cluster.owners().into_iter().map(|node| nodes.pool(node)).collect()
            }
        };
        pools.iter().filter_map(|pool| Some((pool.server()?, pool.first_connection()))).collect()
    }

    fn pools(&self) -> Vec<Arc<Pool>> {
        match self {
            Router::One(pool, _) => vec![Arc::clone(pool)],
            Router::Nodes(nodes) => nodes.pools.lock().values().cloned().collect(),
        }
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(&self, call: Call, at: Target, limit: &Limit<'_>) -> error::Result<Answer> {
        let pending = self.queue(call, at);
        self.wait(pending, limit).1.map_err(Failure::into_error)
    }

    /// Sends commands in one write to the server of that lane; the replies of those that were
    /// not refused.
    pub(crate) fn call_all(&self, calls: Vec<Call>, connection: ConnectionId) -> Vec<Reply> {
        let pending: Vec<_> =
            calls.into_iter().map(|call| self.queue(call, Target::Only(connection))).collect();
        let answers = pending.into_iter().map(|pending| self.wait(pending, &Limit::none()).1);
        answers.filter_map(|outcome| outcome.ok().map(|answer| answer.reply)).collect()
    }

    /// Asks each server on its private lane, in one write to each; the numbers of the nodes,
    /// their addresses and the outcomes. Of several only those to which that is connected.
    pub(crate) fn call_each_server(
        &self,
        call: impl Fn() -> Call,
    ) -> Vec<(u32, Arc<str>, Outcome)> {
        let pools = self.pools().into_iter();
        let asked = pools.filter(|pool| !self.is_cluster() || pool.is_private_connected());
        let asked = asked.filter_map(|pool| Some((pool.server()?, pool.private_connection())));
        let asked = asked.map(|(server, connection)| {
            let pending = self.queue(call(), Target::Only(connection));
            self.flush(connection);
            (connection.node, server, pending)
        });
        let asked: Vec<_> = asked.collect();
        let wait = |(node, server, pending)| {
            (node, server, self.wait_without_retry(pending, &Limit::none()).1)
        };
        asked.into_iter().map(wait).collect()
    }

    /// The number of the server that has a key, as far as is known.
    pub(crate) fn node_of(&self, key: &str) -> u32 {
        match self {
            Router::One(pool, _) => pool.private_connection().node,
            Router::Nodes(nodes) => nodes.cluster.owner_of(key.as_bytes()).unwrap_or(u32::MAX),
        }
    }

    /// The first half of [`Router::call`]: takes a place in line and does no I/O.
    pub(crate) fn queue(&self, call: Call, at: Target) -> RoutedCall {
        match self {
            Router::One(pool, _) => RoutedCall::of(pool.queue(call, at)),
            Router::Nodes(nodes) => {
                let (pool, at) = nodes.place(call.key(), at);
                let queued = pool.queue(nodes.translated(call), at);
                RoutedCall::at(pool, queued)
            }
        }
    }

    /// The same for who must not stand behind others, nor wait for one server while there is
    /// something to do at another: on a lane of its own, which in a cluster is connected aside
    /// (`None`: that is under way). It is written at once, where that can be.
    pub(crate) fn queue_private(&self, call: Call) -> Result<RoutedCall, Option<Error>> {
        match self {
            Router::One(pool, _) => {
                Ok(RoutedCall::of(pool.queue(call, Target::Only(pool.private_connection()))))
            }
            Router::Nodes(nodes) => {
                let (pool, _) = nodes.place(call.key(), Target::Any);
                pool.connect_private().inspect_err(|error| {
                    error.iter().for_each(|_| nodes.cluster.request_refresh())
                })?;
                let connection = pool.private_connection();
                let queued = pool.queue(nodes.translated(call), Target::Only(connection));
                pool.flush(connection);
                Ok(RoutedCall::at(pool, queued))
            }
        }
    }

    /// Writes what is queued on that lane, if that needs no waiting.
    pub(crate) fn flush(&self, connection: ConnectionId) {
        match self {
            Router::One(pool, _) => pool.flush(connection),
            Router::Nodes(nodes) => nodes.pool(connection.node).flush(connection),
        }
    }

    /// The second half of [`Router::call`], as [`Pool::wait`]. Where it is too early for a
    /// command, it is sent again for a response time-out at most.
    pub(crate) fn wait(&self, pending: RoutedCall, limit: &Limit<'_>) -> (ConnectionId, Outcome) {
        match self {
            Router::One(pool, _) => pool.wait(pending.queued, limit),
            Router::Nodes(nodes) => nodes.wait(pending, limit, clock::now() + nodes.patience),
        }
    }

    /// The same for a question about several keys, or from who must not pause: nothing is sent
    /// again because it is too early for it.
    pub(crate) fn wait_without_retry(
        &self,
        pending: RoutedCall,
        limit: &Limit<'_>,
    ) -> (ConnectionId, Outcome) {
        match self {
            Router::One(pool, has_slots) => {
                let (connection, outcome) = pool.wait(pending.queued, limit);
                if outcome.as_ref().is_err_and(|it| it.error.code() == Some("CROSSSLOT")) {
                    has_slots.store(true, Ordering::Relaxed);
                }
                (connection, outcome)
            }
            Router::Nodes(nodes) => nodes.wait(pending, limit, Moment::START),
        }
    }

    /// Has a request sent, by and by, until it is answered or not worth it any more. Does no
    /// I/O, and has to be followed by [`Router::dispatch`].
    pub(crate) fn submit(
        &self,
        background: Request,
        connection: Option<ConnectionId>,
    ) -> ConnectionId {
        match self {
            Router::One(pool, _) => pool.submit(background, connection),
            Router::Nodes(nodes) => {
                let (pool, at) = nodes.place(background.call.key(), Target::only(connection));
                let background = Request { call: nodes.translated(background.call), ..background };
                pool.submit(background, at.connection())
            }
        }
    }

    /// Sees to it that what is owed on that lane is sent: at once, if that needs no waiting.
    pub(crate) fn dispatch(&self, connection: ConnectionId) {
        match self {
            Router::One(pool, _) => pool.dispatch(connection),
            Router::Nodes(nodes) => nodes.pool(connection.node).dispatch(connection),
        }
    }

    /// Has a command sent again and again until `until`, as [`Pool::repeat`].
    pub(crate) fn repeat(&self, call: Call, connection: ConnectionId, until: Moment) {
        match self {
            Router::One(pool, _) => pool.repeat(call, connection, until),
            Router::Nodes(nodes) => {
                nodes.pool(connection.node).repeat(nodes.translated(call), connection, until);
            }
        }
    }

    /// Waits until nothing is owed any more, or until `end`.
    pub(crate) fn wait_until_settled(&self, end: Moment) {
        // What one owes may be handed on meanwhile to another that owed nothing.
        while self.pools().iter().any(|pool| !pool.is_settled()) && clock::now() < end {
            for pool in self.pools() {
                pool.wait_until_settled(end);
            }
        }
    }

    /// Has the reapers end when nothing is owed any more.
    pub(crate) fn finish(&self) -> Vec<JoinHandle<()>> {
        self.pools().iter().flat_map(|pool| pool.finish()).collect()
    }
}

impl NodePools {
    /// The pool of the node of that number.
    fn pool(&self, node: u32) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(&node) {
            return Arc::clone(pool);
        }
        // Numbers are given to addresses alone.
        let address = self.cluster.address(node).or_else(|| self.cluster.address(0));
        let route =
            address.map_or_else(|| self.settings.route.clone(), |it| Route::To(Arc::new(it)));
        let pool = Arc::new(Pool::new(PoolSettings { node, route, ..self.settings.clone() }));
        if let Some(whom) = self.on_reconnect.get() {
            pool.set_on_reconnect(Weak::clone(whom));
        }
        pool.set_router(Weak::clone(&self.itself) as Weak<dyn Rerouter>);
        pools.insert(node, Arc::clone(&pool));
        pool
    }

    /// Forgets the pools of nodes that serve nothing any more, and owe nothing.
    fn dismiss(&self) {
        let owners = self.cluster.owners();
        let mut dismissed = Vec::new();
        self.pools.lock().retain(|node, pool| {
            // Who has it now may be about to owe something there.
            let used = Arc::strong_count(pool) > 1;
            let stays = owners.contains(node) || used || !pool.is_settled();
            if !stays {
                dismissed.push(Arc::clone(pool));
            }
            stays
        });
        // Dropped here, with nothing locked.
        drop(dismissed);
    }

    /// Where a command with that key is to be sent that was to go there.
    fn place(&self, key: Option<&[u8]>, at: Target) -> (Arc<Pool>, Target) {
        let owner = key.and_then(|key| self.cluster.owner_of(key));
        let node = owner.or(at.connection().map(|connection| connection.node));
        let node = node.or_else(|| self.any_node()).unwrap_or_default();
        (self.pool(node), at.on(node))
    }

    /// A node for what any can do: one that can be reached, if that is known of any.
    fn any_node(&self) -> Option<u32> {
        let owners = self.cluster.owners();
        let pools = self.pools.lock();
        let connected =
            |node: &&u32| pools.get(*node).is_some_and(|pool| pool.is_private_connected());
        owners.iter().find(connected).or(owners.first()).copied()
    }

    fn translated(&self, call: Call) -> Call {
        match self.sharded.get() {
            Some(true) => call.for_shards(),
            Some(false) | None => call,
        }
    }

    /// Waits for a command, which is sent again until `end` while it is too early for it.
    fn wait(&self, pending: RoutedCall, limit: &Limit<'_>, end: Moment) -> (ConnectionId, Outcome) {
        let (mut pending, mut tries) = (pending, Tries::default());
        loop {
            let pool = pending.pool.unwrap_or_else(|| self.pool(pending.connection.node));
            let (connection, outcome) = pool.wait(pending.queued, limit);
            let Err(failure) = outcome else { return (connection, outcome) };
            match self.again(connection, failure, &mut tries, limit, end) {
                Ok(again) => pending = again,
                Err(failure) => return (connection, Err(failure)),
            }
        }
    }

    /// Stands a command in another line that could not be run in the first.
    fn again(
        &self,
        connection: ConnectionId,
        failure: Failure,
        tries: &mut Tries,
        limit: &Limit<'_>,
        end: Moment,
    ) -> Result<RoutedCall, Failure> {
        if failure.error.is_unanswered() {
            self.cluster.request_refresh();
        }
        match failure {
            Failure { redirected: Some(redirected), error, .. } => {
                match self.wait_for_agreement(&redirected.direction, tries, limit, end) {
                    true => self.send_on(connection, *redirected, error, tries),
                    false if redirected.direction == Redirect::RetryLater => {
                        Err(Failure::not_followed(*redirected, error))
                    }
                    false => Err(Failure::not_followed(*redirected, no_agreement())),
                }
            }
            Failure { unsent: Some(call), error, .. }
                if error.is_unanswered()
                    && self.is_elsewhere(&call, connection)
                    && !tries.asks
                    && tries.sent < TRIES =>
            {
                tries.sent += 1;
                let (pool, at) = self.place(call.key(), Target::Only(connection));
                let queued = pool.queue(*call, at);
                Ok(RoutedCall::at(pool, queued))
            }
            failure => Err(failure),
        }
    }

    /// Pauses where it is too early for a command, or nodes send it to and fro. Returns
    /// whether there is time to send it once more.
    fn wait_for_agreement(
        &self,
        direction: &Redirect,
        tries: &mut Tries,
        limit: &Limit<'_>,
        end: Moment,
    ) -> bool {
        // After each pause it is sent on at once again: the slot may have moved meanwhile.
        let follows = tries.sent == 0 || !tries.sent.is_multiple_of(HOPS);
        if *direction != Redirect::RetryLater && follows {
            return true;
        }
        let now = clock::now();
        if end <= now || limit.is_over(now) {
            return false;
        }
        self.pause(tries.pauses, limit);
        tries.pauses += 1;
        true
    }

    /// Stands a command in the line to which a node has sent it.
    fn send_on(
        &self,
        connection: ConnectionId,
        redirected: Redirected,
        error: Error,
        tries: &mut Tries,
    ) -> Result<RoutedCall, Failure> {
        tries.asks = matches!(redirected.direction, Redirect::Ask(_));
        let node = match &redirected.direction {
            Redirect::RetryLater => {
                let owner = redirected.call.key().and_then(|key| self.cluster.owner_of(key));
                owner.or(Some(connection.node))
            }
            direction => {
                tries.sent += 1;
                self.follow(direction, connection.node)
            }
        };
        let Some(node) = node else { return Err(Failure::not_followed(redirected, error)) };
        let pool = self.pool(node);
        // That lane is connected aside, and perhaps not yet.
        if pool.private_connection().connection == connection.connection
            && let Err(error) = pool.connect_private()
        {
            let error = error.unwrap_or_else(Error::not_connected);
            return Err(Failure::not_followed(redirected, error));
        }
        let queued = pool.queue_redirected(redirected, connection.connection);
        Ok(RoutedCall::at(pool, queued))
    }

    fn is_elsewhere(&self, call: &Call, connection: ConnectionId) -> bool {
        let owner = call.key().and_then(|key| self.cluster.owner_of(key));
        owner.is_some_and(|owner| owner != connection.node)
    }

    /// The node to which that one has sent a command.
    fn follow(&self, direction: &Redirect, from: u32) -> Option<u32> {
        match direction {
            Redirect::Moved(slot, place) => {
                let node = self.cluster.node_at(place, from)?;
                self.cluster.set_owner(*slot, node);
                self.cluster.request_refresh();
                Some(node)
            }
            Redirect::Ask(place) => self.cluster.node_at(place, from),
            Redirect::RetryLater => {
                self.cluster.request_refresh();
                None
            }
        }
    }

    fn pause(&self, tries: u32, limit: &Limit<'_>) {
        self.cluster.request_refresh();
        let pause = doubled(FIRST_PAUSE, tries, LONGEST_PAUSE);
        limit.pause(jittered(pause, clock::now().nanos()));
    }
}

impl Rerouter for NodePools {
    fn reroute(
        &self,
        connection: ConnectionId,
        request: Request,
        direction: Option<&Redirect>,
    ) -> Option<Request> {
        let owner = request.call.key().and_then(|key| self.cluster.owner_of(key));
        let node = direction.map_or(owner, |direction| self.follow(direction, connection.node));
        let asking = matches!(direction, Some(Redirect::Ask(_)));
        match node {
            Some(node) if node != connection.node || direction.is_some() => {
                let request = request.announced(asking);
                self.pool(node).take_over(request, connection.connection);
                None
            }
            _ => Some(request),
        }
    }

    fn request_refresh(&self) {
        self.cluster.request_refresh();
    }
}
