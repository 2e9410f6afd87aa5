//! The servers of a client, a pool for each, and which of them a command is for.
//!
//! Mostly there is one. In a cluster the slot of a command's key says which it is. What a node
//! sends elsewhere goes there, in the lane of the same number: so what stood in order here
//! stands so there. Who waits sends it on itself (`Fleet::wait`); what is owed is handed
//! on by whoever reads the answer, or by the reaper when it is due again ([`Router`]).
//!
//! A command is sent behind another only as long as the same node serves their slot: what comes
//! late to one that does not serve it any more is not run there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{self, Direction, Error};
use crate::name::slot;
use crate::pool::{self, At, OnReconnect, Pool, PoolSettings, Router, no_agreement};
use crate::request::{self, Answer, Failure, Outcome, Request};
use crate::script::{Call, LaneId, Reply};
use crate::sync::{Mailbox, Mutex};
use crate::time::{self, Moment, doubled, jittered};
use crate::topology::cluster::Cluster;
use crate::topology::{Moves, Route};

/// How often a command is sent elsewhere before that is an error.
const TRIES: u32 = 16;

/// The first and the longest pause before a command is sent again for which it was too early.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The pools of a client.
pub(crate) enum Fleet {
    One(Arc<Pool>),
    Nodes(Arc<Nodes>),
}

/// The nodes of a cluster.
pub(crate) struct Nodes {
    cluster: Arc<Cluster>,
    /// The same for all but for the address.
    settings: PoolSettings,
    /// Messages go to shards.
    sharded: bool,
    /// For how long a command is sent again for which it is too early.
    patience: Duration,
    pools: Mutex<BTreeMap<u32, Arc<Pool>>>,
    on_reconnect: OnceLock<Weak<dyn OnReconnect>>,
    itself: Weak<Nodes>,
}

/// A command in the line of a lane, whose sender has yet to wait for it.
#[derive(Debug)]
#[must_use = "a command is served only if somebody waits for it"]
pub(crate) struct Pending {
    pub(crate) lane: LaneId,
    queued: pool::Pending,
    /// Where it is queued, where there are several; not forgotten before it is done.
    pool: Option<Arc<Pool>>,
}

impl Pending {
    fn of(queued: pool::Pending) -> Pending {
        Pending { lane: queued.lane, queued, pool: None }
    }

    fn at(pool: Arc<Pool>, queued: pool::Pending) -> Pending {
        Pending { pool: Some(pool), ..Pending::of(queued) }
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

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fleet::One(pool) => pool.fmt(f),
            Fleet::Nodes(nodes) => nodes.cluster.fmt(f),
        }
    }
}

impl Fleet {
    /// One server, or what takes its place by and by. Connects to it.
    pub(crate) fn one(settings: PoolSettings) -> error::Result<Fleet> {
        Pool::open(settings).map(|pool| Fleet::One(Arc::new(pool)))
    }

    /// The nodes of a cluster, whose map has been read.
    pub(crate) fn nodes(cluster: Arc<Cluster>, settings: PoolSettings, sharded: bool) -> Fleet {
        let patience = settings.timeouts.response;
        Fleet::Nodes(Arc::new_cyclic(|itself| Nodes {
            cluster,
            settings: PoolSettings { is_node: true, ..settings },
            sharded,
            patience,
            pools: Mutex::default(),
            on_reconnect: OnceLock::new(),
            itself: Weak::clone(itself),
        }))
    }

    /// Whom to tell of new connections.
    pub(crate) fn set_on_reconnect(&self, whom: Weak<dyn OnReconnect>) {
        match self {
            Fleet::One(pool) => pool.set_on_reconnect(whom),
            // There is but one.
            Fleet::Nodes(nodes) => drop(nodes.on_reconnect.set(whom)),
        }
    }

    /// How often the servers have been others than before.
    pub(crate) fn moves(&self) -> Moves {
        match self {
            Fleet::One(pool) => pool.moves(),
            Fleet::Nodes(nodes) => Moves::of(nodes.cluster.moves()),
        }
    }

    /// Gives up what leads to what is no more the server.
    pub(crate) fn leave_old_servers(&self) {
        match self {
            Fleet::One(pool) => pool.leave_old_servers(),
            Fleet::Nodes(nodes) => nodes.dismiss(),
        }
    }

    /// An error in a forked child.
    pub(crate) fn check_process(&self) -> error::Result<()> {
        match self {
            Fleet::One(pool) => pool.check_process(),
            Fleet::Nodes(nodes) => request::check_process(nodes.settings.process),
        }
    }

    /// Those that commands of one script call have to share; always the same where there are
    /// no slots.
    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        match self {
            Fleet::One(_) => 0,
            Fleet::Nodes(_) => slot(key.as_bytes()),
        }
    }

    /// The servers whose private lane has a connection, with that lane.
    pub(crate) fn connected(&self) -> Vec<(Arc<str>, LaneId)> {
        let pools = self.pools();
        let connected = pools.iter().filter(|pool| pool.is_private_lane_connected());
        connected.filter_map(|pool| Some((pool.server()?, pool.private_lane()))).collect()
    }

    /// All servers that are known to serve something, with a lane of each that may have to be
    /// connected first.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, LaneId)> {
        let pools = match self {
            Fleet::One(_) => self.pools(),
            Fleet::Nodes(nodes) => {
                nodes.cluster.owners().into_iter().map(|node| nodes.pool(node)).collect()
            }
        };
        pools.iter().filter_map(|pool| Some((pool.server()?, pool.first_lane()))).collect()
    }

    fn pools(&self) -> Vec<Arc<Pool>> {
        match self {
            Fleet::One(pool) => vec![Arc::clone(pool)],
            Fleet::Nodes(nodes) => nodes.pools.lock().values().cloned().collect(),
        }
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(&self, call: Call, at: At) -> error::Result<Answer> {
        let pending = self.queue(call, at);
        self.wait(pending, Moment::END).1.map_err(Failure::into_error)
    }

    /// Sends commands in one write to the server of that lane; the replies of those that were
    /// not refused.
    pub(crate) fn ask_all(&self, calls: Vec<Call>, lane: LaneId) -> Vec<Reply> {
        let pending: Vec<_> =
            calls.into_iter().map(|call| self.queue(call, At::Behind(lane))).collect();
        let answers = pending.into_iter().map(|pending| self.wait(pending, Moment::END).1);
        answers.filter_map(|outcome| outcome.ok().map(|answer| answer.reply)).collect()
    }

    /// The first half of [`Fleet::call`]: takes a place in line and does no I/O.
    pub(crate) fn queue(&self, call: Call, at: At) -> Pending {
        match self {
            Fleet::One(pool) => Pending::of(pool.queue(call, at)),
            Fleet::Nodes(nodes) => {
                let (pool, at) = nodes.place(call.key(), at);
                let queued = pool.queue(nodes.translated(call), at);
                Pending::at(pool, queued)
            }
        }
    }

    /// The same for who must not stand behind others, nor wait for one server while there is
    /// something to do at another: on a lane of its own, which in a cluster is connected aside
    /// (`None`: that is under way). It is written at once, where that can be.
    pub(crate) fn queue_private(&self, call: Call) -> Result<Pending, Option<Error>> {
        match self {
            Fleet::One(pool) => Ok(Pending::of(pool.queue(call, At::Behind(pool.private_lane())))),
            Fleet::Nodes(nodes) => {
                let (pool, _) = nodes.place(call.key(), At::Any);
                pool.connect_private_lane()
                    .inspect_err(|error| error.iter().for_each(|_| nodes.cluster.doubt()))?;
                let lane = pool.private_lane();
                let queued = pool.queue(nodes.translated(call), At::Behind(lane));
                pool.post(lane);
                Ok(Pending::at(pool, queued))
            }
        }
    }

    /// Writes what is queued on that lane, if that needs no waiting.
    pub(crate) fn post(&self, lane: LaneId) {
        match self {
            Fleet::One(pool) => pool.post(lane),
            Fleet::Nodes(nodes) => nodes.pool(lane.node).post(lane),
        }
    }

    /// The second half of [`Fleet::call`], as [`Pool::wait`]. Where it is too early for a
    /// command, it is sent again for a response time-out at most.
    pub(crate) fn wait(&self, pending: Pending, patience: Moment) -> (LaneId, Outcome) {
        match self {
            Fleet::One(pool) => pool.wait(pending.queued, patience),
            Fleet::Nodes(nodes) => {
                nodes.wait(pending, patience, patience.min(time::now() + nodes.patience))
            }
        }
    }

    /// The same for who must not pause.
    pub(crate) fn wait_private(&self, pending: Pending) -> Outcome {
        match self {
            Fleet::One(pool) => pool.wait(pending.queued, Moment::END).1,
            Fleet::Nodes(nodes) => nodes.wait(pending, Moment::END, Moment::START).1,
        }
    }

    /// Has a request sent, by and by, until it is answered or not worth it any more. Does no
    /// I/O, and has to be followed by [`Fleet::dispatch`].
    pub(crate) fn owe(&self, owed: Request, lane: Option<LaneId>) -> LaneId {
        match self {
            Fleet::One(pool) => pool.owe(owed, lane),
            Fleet::Nodes(nodes) => {
                let (pool, at) = nodes.place(owed.call.key(), At::behind(lane));
                let owed = Request { call: nodes.translated(owed.call), ..owed };
                pool.owe(owed, at.lane())
            }
        }
    }

    /// Sees to it that what is owed on that lane is sent: at once, if that needs no waiting.
    pub(crate) fn dispatch(&self, lane: LaneId) {
        match self {
            Fleet::One(pool) => pool.dispatch(lane),
            Fleet::Nodes(nodes) => nodes.pool(lane.node).dispatch(lane),
        }
    }

    /// Has a command sent again and again until `until`, as [`Pool::repeat`].
    pub(crate) fn repeat(&self, call: Call, lane: LaneId, until: Moment) {
        match self {
            Fleet::One(pool) => pool.repeat(call, lane, until),
            Fleet::Nodes(nodes) => {
                nodes.pool(lane.node).repeat(nodes.translated(call), lane, until);
            }
        }
    }

    /// Waits until nothing is owed any more, or until `end`.
    pub(crate) fn wait_until_settled(&self, end: Moment) {
        // What one owes may be handed on meanwhile to another that owed nothing.
        while self.pools().iter().any(|pool| !pool.is_settled()) && time::now() < end {
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

impl Nodes {
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
        pool.set_router(Weak::clone(&self.itself) as Weak<dyn Router>);
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
    fn place(&self, key: Option<&[u8]>, at: At) -> (Arc<Pool>, At) {
        let owner = key.and_then(|key| self.cluster.owner_of(key));
        let node = owner.or(at.lane().map(|lane| lane.node));
        let node = node.or_else(|| self.any_node()).unwrap_or_default();
        (self.pool(node), at.on(node))
    }

    /// A node for what any can do: one that can be reached, if that is known of any.
    fn any_node(&self) -> Option<u32> {
        let owners = self.cluster.owners();
        let pools = self.pools.lock();
        let connected =
            |node: &&u32| pools.get(*node).is_some_and(|pool| pool.is_private_lane_connected());
        owners.iter().find(connected).or(owners.first()).copied()
    }

    fn translated(&self, call: Call) -> Call {
        match self.sharded {
            true => call.for_shards(),
            false => call,
        }
    }

    fn wait(&self, pending: Pending, patience: Moment, end: Moment) -> (LaneId, Outcome) {
        let (mut pending, mut tries) = (pending, Tries::default());
        loop {
            let pool = pending.pool.unwrap_or_else(|| self.pool(pending.lane.node));
            let (lane, outcome) = pool.wait(pending.queued, patience);
            let Err(failure) = outcome else { return (lane, outcome) };
            match self.again(lane, failure, &mut tries, end) {
                Ok(again) => pending = again,
                Err(failure) => return (lane, Err(failure)),
            }
        }
    }

    /// Stands a command in another line that could not be run in the first.
    fn again(
        &self,
        lane: LaneId,
        failure: Failure,
        tries: &mut Tries,
        end: Moment,
    ) -> Result<Pending, Failure> {
        if failure.error.is_connection() {
            self.cluster.doubt();
        }
        match failure {
            Failure { astray: Some(astray), error, .. } => {
                tries.asks = matches!(astray.direction, Direction::Ask(_));
                let node = match &astray.direction {
                    Direction::Later if end <= time::now() => None,
                    Direction::Later => {
                        self.pause(tries.pauses);
                        tries.pauses += 1;
                        let owner = astray.call.key().and_then(|key| self.cluster.owner_of(key));
                        owner.or(Some(lane.node))
                    }
                    _ if tries.sent == TRIES => {
                        return Err(Failure::lost_on_its_way(*astray, no_agreement()));
                    }
                    direction => {
                        tries.sent += 1;
                        self.follow(direction, lane.node)
                    }
                };
                match node {
                    Some(node) => {
                        let pool = self.pool(node);
                        let queued = pool.queue_astray(*astray, lane.lane);
                        Ok(Pending::at(pool, queued))
                    }
                    None => Err(Failure::lost_on_its_way(*astray, error)),
                }
            }
            Failure { unsent: Some(call), error, .. }
                if error.is_connection()
                    && self.is_elsewhere(&call, lane)
                    && !tries.asks
                    && tries.sent < TRIES =>
            {
                tries.sent += 1;
                let (pool, at) = self.place(call.key(), At::Behind(lane));
                let queued = pool.queue(*call, at);
                Ok(Pending::at(pool, queued))
            }
            failure => Err(failure),
        }
    }

    fn is_elsewhere(&self, call: &Call, lane: LaneId) -> bool {
        let owner = call.key().and_then(|key| self.cluster.owner_of(key));
        owner.is_some_and(|owner| owner != lane.node)
    }

    /// The node to which that one has sent a command.
    fn follow(&self, direction: &Direction, from: u32) -> Option<u32> {
        match direction {
            Direction::Moved(slot, place) => {
                let node = self.cluster.node_at(place, from)?;
                self.cluster.set_owner(*slot, node);
                self.cluster.doubt();
                Some(node)
            }
            Direction::Ask(place) => self.cluster.node_at(place, from),
            Direction::Later => {
                self.cluster.doubt();
                None
            }
        }
    }

    fn pause(&self, tries: u32) {
        self.cluster.doubt();
        let now = time::now();
        let pause = jittered(doubled(FIRST_PAUSE, tries, LONGEST_PAUSE), now.nanos());
        Mailbox::default().sleep(now + pause);
    }
}

impl Router for Nodes {
    fn reroute(
        &self,
        lane: LaneId,
        request: Request,
        direction: Option<&Direction>,
    ) -> Option<Request> {
        let owner = request.call.key().and_then(|key| self.cluster.owner_of(key));
        let node = direction.map_or(owner, |direction| self.follow(direction, lane.node));
        let asking = matches!(direction, Some(Direction::Ask(_)));
        match node {
            Some(node) if node != lane.node || direction.is_some() => {
                let request = Request { asking, alone: asking || request.alone, ..request };
                self.pool(node).take_over(request, lane.lane);
                None
            }
            _ => Some(request),
        }
    }

    fn doubt(&self) {
        self.cluster.doubt();
    }
}
