//! The connections of one client, and the threads that see to what is owed.
//!
//! Callers hand in a command and wait ([`Pool::call`]), or owe it ([`Pool::owe`] and
//! [`Pool::dispatch`]): then they write it, if that needs no waiting, and go on. A
//! *reaper* thread sees to the rest: it reads the answers that nobody comes for, has
//! sent what could not be written, repeats it until it is answered or not worth it any
//! more. Each connection has a reaper of its own, so that one that does not answer holds
//! up no other; it is started at the first debt there. What failed is tried again
//! (`pool/desk.rs`).
//!
//! Connections are made when they are needed, as many as there are callers at the same
//! time. Callers that are more than that share two of them. Where the server takes no
//! more, the callers share those that stand.

mod background;
pub(crate) mod context;
mod joined;
pub(crate) mod pipeline;
mod reply_slot;
pub(crate) mod request;
pub(crate) mod router;
pub(crate) mod shared_connection;
mod stale;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cancel::Limit;
use crate::command::call::{Call, ConnectionId};
use crate::connection::Timeouts;
use crate::error::{Error, Redirect, Result};
use crate::events::EventSink;
use crate::pool::context::{Observer, PoolContext};
use crate::pool::reply_slot::ReplySlot;
use crate::pool::request::{Failure, Outcome, Redirected, Request, panicked};
use crate::pool::shared_connection::{SharedConnection, Unread};
use crate::topology::route::{Generation, Route};
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, TIME_PASSES};
use crate::util::threads;
use background::{LONGEST_PAUSE, RetryQueue};

use crate::topology::failover::OnReconnect;
pub(crate) use background::{Rerouter, no_agreement};

#[cfg(all(test, leasehold_model))]
mod model;

/// How long a reply is left unread for the next caller. Shorter costs wake-ups of the
/// reaper while there is traffic; longer delays what follows from a release that failed.
const LINGER: Duration = if TIME_PASSES { Duration::from_millis(5) } else { Duration::ZERO };

/// As long as there is a connection for each caller that is the fastest. Callers that are
/// more than that keep to so many: what goes out together costs less.
const SHARED: usize = 2;

/// How the pool is set up.
#[derive(Clone, Debug)]
pub(crate) struct PoolSettings {
    /// The number of the server, where there are several.
    pub(crate) node: u32,
    /// It is one of the nodes of a cluster.
    pub(crate) is_node: bool,
    /// The process that made the client.
    pub(crate) process: u32,
    pub(crate) route: Route,
    pub(crate) timeouts: Timeouts,
    /// Those of the private lane.
    pub(crate) private: Timeouts,
    /// How many replicas have to acknowledge what takes or prolongs a lock.
    pub(crate) replicas: u32,
    /// The name of the client's connections, on the server.
    pub(crate) name: String,
    pub(crate) size: usize,
    /// How long a caller queues if all connections are busy.
    pub(crate) wait: Duration,
    /// How often that is repeated which a late copy of another command may undo.
    pub(crate) repeat: Duration,
    pub(crate) events: EventSink,
}

/// The connections.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    context: Arc<PoolContext>,
    wait: Duration,
}

/// What the reapers need.
struct Shared {
    node: u32,
    connections: Vec<Arc<SharedConnection>>,
    /// Beside those, for who must not stand behind others.
    private: Arc<SharedConnection>,
    connecting: Mutex<Connecting>,
    /// How many callers wait for an answer.
    callers: AtomicUsize,
    retries: Arc<RetryQueue>,
    /// By the number of the lane.
    threads: Mutex<BTreeMap<usize, JoinHandle<()>>>,
}

/// What is known of the attempts to connect the private lane aside.
#[derive(Debug, Default)]
struct Connecting {
    under_way: bool,
    error: Option<Error>,
}

/// A command in the line of a lane, whose sender has yet to wait for it.
#[derive(Debug)]
#[must_use = "a command is served only if somebody waits for it"]
pub(crate) struct QueuedCall {
    pub(crate) connection: ConnectionId,
    slot: Arc<ReplySlot>,
    /// It may go to another lane, if this one has no connection and gets none.
    may_move: bool,
}

/// On which lane a command is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Any,
    /// On that one if it can be, behind all that is queued there.
    Prefer(ConnectionId),
    /// On that one and no other.
    Only(ConnectionId),
}

impl Target {
    /// Near that lane, if there is one.
    pub(crate) fn prefer(connection: Option<ConnectionId>) -> Target {
        connection.map_or(Target::Any, Target::Prefer)
    }

    /// The lane that was named.
    pub(crate) fn connection(self) -> Option<ConnectionId> {
        match self {
            Target::Any => None,
            Target::Prefer(connection) | Target::Only(connection) => Some(connection),
        }
    }

    /// The same on another server.
    pub(crate) fn on(self, node: u32) -> Target {
        match self {
            Target::Any => Target::Any,
            Target::Prefer(connection) => Target::Prefer(ConnectionId { node, ..connection }),
            Target::Only(connection) => Target::Only(ConnectionId { node, ..connection }),
        }
    }

    /// Behind what went there, if something did.
    pub(crate) fn only(connection: Option<ConnectionId>) -> Target {
        connection.map_or(Target::Any, Target::Only)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("lanes", &self.shared.connections).finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes the pool and its first connection.
    pub(crate) fn open(settings: PoolSettings) -> Result<Pool> {
        let pool = Pool::new(settings);
        pool.shared.connections.first().map_or(Ok(()), |connection| connection.connect())?;
        Ok(pool)
    }

    /// Makes the pool and no connection.
    pub(crate) fn new(settings: PoolSettings) -> Pool {
        let retries = Arc::new(RetryQueue::new(settings.size, settings.events, settings.repeat));
        let context = Arc::new(PoolContext {
            route: settings.route,
            is_node: settings.is_node,
            replicas: settings.replicas,
            name: settings.name,
            process: settings.process,
            observer: Arc::clone(&retries) as Arc<dyn Observer>,
        });
        let node = settings.node;
        let connection = |id, timeouts| {
            SharedConnection::new(ConnectionId::at(node, id), Arc::clone(&context), timeouts)
        };
        let connections: Vec<_> =
            (0..settings.size).map(|id| connection(id, settings.timeouts)).collect();
        let make = if settings.is_node {
            SharedConnection::connected_explicitly
        } else {
            SharedConnection::new
        };
        let private = ConnectionId::at(node, settings.size);
        let private = make(private, Arc::clone(&context), settings.private);
        let shared = Arc::new(Shared {
            node,
            connections,
            private,
            connecting: Mutex::default(),
            callers: AtomicUsize::new(0),
            retries,
            threads: Mutex::default(),
        });
        Pool { shared, context, wait: settings.wait }
    }

    /// The lane that is connected first.
    pub(crate) fn first_connection(&self) -> ConnectionId {
        ConnectionId::at(self.shared.node, 0)
    }

    /// The lane beside the others, for one thread only.
    pub(crate) fn private_connection(&self) -> ConnectionId {
        self.shared.private.id()
    }

    /// Whether that has a connection.
    pub(crate) fn is_private_connected(&self) -> bool {
        !self.shared.private.is_disconnected()
    }

    /// Has the private lane connected by a thread of its own, if it is not. An error while that
    /// is under way: that of the last attempt, if there was one.
    pub(crate) fn connect_private(&self) -> std::result::Result<(), Option<Error>> {
        if self.is_private_connected() {
            return Ok(());
        }
        let mut connecting = self.shared.connecting.lock();
        if !connecting.under_way {
            let shared = Arc::clone(&self.shared);
            let started = threads::start("leasehold-connect", move || shared.connect_private());
            connecting.under_way = started.is_ok();
        }
        Err(connecting.error.clone())
    }

    pub(crate) fn set_router(&self, router: Weak<dyn Rerouter>) {
        self.shared.retries.set_router(router);
    }

    /// Sees to a request that another pool has handed on, on the lane of that number.
    pub(crate) fn take_over(&self, request: Request, connection: usize) {
        if request.delays_close() {
            self.shared.retries.opened();
        }
        let connection = connection % self.shared.connections.len();
        let connection =
            self.shared.queue(request, Some(ConnectionId::at(self.shared.node, connection)));
        self.shared.have_reaped(connection);
        self.shared.retries.wake_reaper(connection);
    }

    /// The address of the server, if one has been found.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        self.context.route.server()
    }

    /// How often the server has been another than before.
    pub(crate) fn generation(&self) -> Generation {
        self.context.route.generation()
    }

    /// Gives up the connections to what is no more the server.
    pub(crate) fn leave_old_servers(&self) {
        self.shared.connections.iter().for_each(|connection| connection.leave_old_server());
        self.shared.private.leave_old_server();
    }

    /// Whom to tell of new connections.
    pub(crate) fn set_on_reconnect(&self, whom: Weak<dyn OnReconnect>) {
        self.shared.retries.set_on_reconnect(whom);
    }

    /// An error in a forked child.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.context.check_process()
    }

    /// Sends a command and waits for its answer.
    #[cfg(all(test, leasehold_model))]
    pub(crate) fn call(&self, call: Call, at: Target) -> Result<crate::pool::request::Answer> {
        let pending = self.queue(call, at);
        self.wait(pending, &Limit::none()).1.map_err(Failure::into_error)
    }

    /// The first half of [`Pool::call`]: takes a place in line and does no I/O.
    pub(crate) fn queue(&self, call: Call, at: Target) -> QueuedCall {
        let (request, slot) = Request::awaited(call);
        self.queue_request(request, slot, at)
    }

    /// The same for a command that another server has sent here.
    pub(crate) fn queue_redirected(&self, redirected: Redirected, connection: usize) -> QueuedCall {
        let asking = matches!(redirected.direction, Redirect::Ask(_));
        let (request, slot) = Request::awaited(redirected.call);
        let request = request.maybe_duplicate(redirected.maybe_duplicate).announced(asking);
        self.queue_request(
            request,
            slot,
            Target::Only(ConnectionId::at(self.shared.node, connection)),
        )
    }

    fn queue_request(&self, request: Request, slot: Arc<ReplySlot>, at: Target) -> QueuedCall {
        let (connection, may_move) = match at {
            Target::Any => (None, true),
            Target::Prefer(connection) => (Some(connection), true),
            Target::Only(connection) => (Some(connection), false),
        };
        QueuedCall { connection: self.shared.queue(request, connection), slot, may_move }
    }

    /// Writes what is queued on that lane, if that needs no waiting.
    pub(crate) fn flush(&self, connection: ConnectionId) {
        self.shared.connection(connection).post();
    }

    /// The second half of [`Pool::call`]; on which lane it was served in the end. Returns at
    /// the `limit`, or after the pool time-out if the command still stands in line.
    pub(crate) fn wait(&self, pending: QueuedCall, limit: &Limit<'_>) -> (ConnectionId, Outcome) {
        let connection = self.shared.connection(pending.connection);
        if connection.id() == self.private_connection() {
            let outcome = connection.wait(&pending.slot, limit, Moment::END);
            pending.slot.recycle();
            return (pending.connection, outcome);
        }
        let present = Present::new(&self.shared.callers);
        let outcome = connection.wait(&pending.slot, limit, clock::now() + self.wait);
        drop(present);
        if pending.slot.is_abandoned() {
            self.shared.read_soon(pending.connection);
        }
        pending.slot.recycle();
        match outcome {
            Err(failure) if pending.may_move => {
                self.wait_elsewhere(pending.connection, failure, limit)
            }
            outcome => (pending.connection, outcome),
        }
    }

    /// Waits on a connection that stands, if the command found none to be written to.
    fn wait_elsewhere(
        &self,
        connection: ConnectionId,
        failure: Failure,
        limit: &Limit<'_>,
    ) -> (ConnectionId, Outcome) {
        // Who has stood in line for as long as it may stands in no other.
        let waits = !limit.is_over(clock::now())
            && failure.error.is_transient()
            && !failure.error.is_pool_timeout();
        match (self.shared.connected().filter(|_| waits), failure) {
            (Some(other), Failure { unsent: Some(call), .. }) => {
                self.wait(self.queue(*call, Target::Only(other)), limit)
            }
            (_, failure) => (connection, Err(failure)),
        }
    }

    /// Has a request sent, by and by, until it is answered or not worth it any more. Does
    /// no I/O, and has to be followed by [`Pool::dispatch`].
    pub(crate) fn submit(
        &self,
        background: Request,
        connection: Option<ConnectionId>,
    ) -> ConnectionId {
        self.shared.retries.opened();
        self.shared.queue(background, connection)
    }

    /// Sees to it that what is owed on that lane is sent: at once, if that needs no
    /// waiting.
    pub(crate) fn dispatch(&self, connection: ConnectionId) {
        self.shared.dispatch(connection);
    }

    /// Has a command sent again and again until `until`, or until the pool is closed: to
    /// be on the safe side is no debt that a program's end would wait for.
    pub(crate) fn repeat(&self, call: Call, connection: ConnectionId, until: Moment) {
        self.shared.retries.repeat(connection, call, until);
        self.shared.dispatch(connection);
    }

    /// Whether nothing is owed.
    pub(crate) fn is_settled(&self) -> bool {
        self.wait_until_settled(Moment::START)
    }

    /// Waits until nothing is owed any more, or until `end`; whether that came.
    pub(crate) fn wait_until_settled(&self, end: Moment) -> bool {
        self.shared.retries.wait_until_settled(end)
    }

    /// Has the reapers end when nothing is owed any more.
    pub(crate) fn finish(&self) -> Vec<JoinHandle<()>> {
        self.shared.retries.finish();
        std::mem::take(&mut *self.shared.threads.lock()).into_values().collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn connection(&self, connection: ConnectionId) -> &SharedConnection {
        // Lanes are handed out by pools alone, all of the same size, and never taken away.
        self.connections.get(connection.connection).unwrap_or(&self.private)
    }

    fn connect_private(&self) {
        let connected = threads::survive("connecting", || self.private.connect());
        let error = connected.map_or_else(|| Some(panicked()), std::result::Result::err);
        *self.connecting.lock() = Connecting { under_way: false, error };
    }

    /// Stands a request in line: on the given lane; or, of those in use, on one that is
    /// free, or on the one with the shortest line.
    fn queue(&self, request: Request, connection: Option<ConnectionId>) -> ConnectionId {
        let mut request = Some(request);
        let connection = connection.unwrap_or_else(|| {
            let free = self.in_use().find(|connection| connection.queue_if_free(&mut request));
            let shortest = || self.in_use().min_by_key(|connection| connection.load());
            // The private lane has no reaper, so it is no place for what may go anywhere.
            free.or_else(shortest)
                .map_or(ConnectionId::at(self.node, 0), |connection| connection.id())
        });
        request.into_iter().for_each(|request| self.connection(connection).queue(request));
        connection
    }

    /// The lanes for what may go anywhere, at least one: few if there is none for one caller
    /// more, and then such as have a connection, if any has.
    fn in_use(&self) -> impl Iterator<Item = &Arc<SharedConnection>> {
        let all = self.connections.len();
        let shared = self.callers.load(Ordering::Relaxed) >= all;
        let few = if shared { SHARED } else { all };
        // It stays among them if it closes meanwhile.
        let open =
            self.connections.iter().position(|connection| shared && !connection.is_disconnected());
        let is_used = move |number, connection: &SharedConnection| {
            open.is_none_or(|open| open == number || !connection.is_disconnected())
        };
        let connections = self.connections.iter().enumerate();
        connections
            .filter(move |(number, connection)| is_used(*number, connection))
            .map(|(_, connection)| connection)
            .take(few)
    }

    /// The lane with the shortest line of those that have a connection.
    fn connected(&self) -> Option<ConnectionId> {
        let loads = self.connections.iter().map(|connection| (connection.load(), connection.id()));
        loads.filter(|((closed, _), _)| !closed).min_by_key(|(load, _)| *load).map(|(_, id)| id)
    }

    /// Sends what is owed on that lane, or leaves it to who leads there or to the
    /// reaper, which is started if there is none.
    fn dispatch(self: &Arc<Shared>, connection: ConnectionId) {
        self.have_reaped(connection);
        self.connection(connection).post();
    }

    /// Starts the reaper of that lane, if there is none.
    fn have_reaped(self: &Arc<Shared>, connection: ConnectionId) {
        if self.retries.starts_reaper(connection) {
            let shared = Arc::clone(self);
            match threads::start("leasehold-reaper", move || shared.reap(connection)) {
                Ok(thread) => drop(self.threads.lock().insert(connection.connection, thread)),
                Err(error) => self.do_without_reaper(connection, &error),
            }
        }
    }

    /// Has the reaper read the reply that a caller has left behind.
    fn read_soon(self: &Arc<Shared>, connection: ConnectionId) {
        self.have_reaped(connection);
        self.retries.wake_reaper(connection);
    }

    fn do_without_reaper(&self, connection: ConnectionId, error: &std::io::Error) {
        threads::say(|| {
            log::error!("no thread for what is owed, so this one has to wait: {error}");
        });
        self.retries.has_no_reaper(connection);
        self.connection(connection).serve();
    }

    /// What the reaper of a lane does.
    fn reap(&self, connection: ConnectionId) {
        let parker = &self.retries.reaper(connection).parker;
        while !self.retries.ends_reaper(connection) {
            let next = threads::survive("seeing to what is owed", || self.see_to(connection));
            parker.park_until(next.unwrap_or_else(|| clock::now() + threads::PAUSE));
        }
    }

    /// Sends what is owed and reads what was left unread for too long; when it has to
    /// look again, unless it is rung before.
    fn see_to(&self, id: ConnectionId) -> Moment {
        let (due, next, pauses) = self.retries.due(id, clock::now());
        let connection = self.connection(id);
        let due = due.into_iter().filter_map(|request| self.retries.reroute(id, request, None));
        due.for_each(|request| connection.queue(request));
        if !pauses && connection.unsent() > 0 {
            connection.serve();
        }
        let unread = self.read_unread(id);
        match next == Moment::END && connection.unsent() == 0 {
            // Nothing is delayed or stands in line, and what comes rings.
            true => unread,
            false => unread.min(next).min(clock::now() + LONGEST_PAUSE),
        }
    }

    /// Reads replies that nobody came for. When those are due that are younger.
    fn read_unread(&self, id: ConnectionId) -> Moment {
        let (connection, looks_again) = (self.connection(id), &self.retries.reaper(id).looks_again);
        looks_again.store(false, Ordering::Release);
        loop {
            let due = match connection.unread() {
                Unread::Led if TIME_PASSES => clock::now() + LINGER,
                Unread::Nothing | Unread::Led => return Moment::END,
                Unread::Since(since) => since + LINGER,
            };
            if clock::now() < due {
                looks_again.store(true, Ordering::Release);
                return due;
            }
            connection.serve();
        }
    }
}

/// A caller that waits, for as long as this lives.
struct Present<'a>(&'a AtomicUsize);

impl Present<'_> {
    fn new(callers: &AtomicUsize) -> Present<'_> {
        callers.fetch_add(1, Ordering::Relaxed);
        Present(callers)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::connection::Address;

    fn address() -> Address {
        Address::parse("redis://127.0.0.1/").expect("a good URL")
    }

    /// A pool of lanes that nobody connects.
    fn connections(size: usize) -> Arc<Shared> {
        let none = Duration::ZERO;
        let timeouts = Timeouts { connect: none, response: none, replicas: none };
        let pool = Pool::new(PoolSettings {
            node: 0,
            is_node: false,
            process: std::process::id(),
            route: Route::To(Arc::new(address())),
            timeouts,
            private: timeouts,
            replicas: 0,
            name: String::new(),
            size,
            wait: none,
            repeat: none,
            events: EventSink::default(),
        });
        Arc::clone(&pool.shared)
    }

    fn queue(shared: &Shared) -> usize {
        shared.queue(Request::awaited(Call::command(&[b"PING"])).0, None).connection
    }

    #[test]
    fn callers_have_a_lane_each_until_they_are_more_and_then_share_two() {
        let shared = connections(4);
        let mut present = Vec::new();
        let mut come = |shared| {
            let connection = queue(shared);
            present.push(Present::new(&shared.callers));
            connection
        };
        let first: Vec<_> = (0..4).map(|_| come(&shared)).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        let more: Vec<_> = (0..4).map(|_| come(&shared)).collect();
        assert_eq!(more, [0, 1, 0, 1]);
        present.truncate(3);
        assert_eq!(queue(&shared), 2, "there is one for each again");
    }

    #[test]
    fn a_lane_that_closes_meanwhile_sends_nobody_to_the_private_lane() {
        let shared = connections(2);
        let _present = [Present::new(&shared.callers), Present::new(&shared.callers)];
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connection = &shared.connections[0];
                while !stop.load(Ordering::Relaxed) {
                    connection.set_disconnected(false);
                    connection.set_disconnected(true);
                }
            });
            let always = (0..2_000_000).all(|_| shared.in_use().next().is_some());
            stop.store(true, Ordering::Relaxed);
            assert!(always, "the fallback was the private lane, which has no reaper");
        });
    }
}
