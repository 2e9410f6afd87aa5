//! The shared connections of one pool, and which of them a request takes.
//!
//! A request that may go anywhere takes a connection without a queue, or the one with the shortest
//! queue. One connection per waiting caller is fastest. If there are more callers than connections,
//! all callers share [`SHARED_BY_MANY`] connections: requests of one write cost less than requests
//! on further connections. If the server refuses further connections, callers share the open ones.
//!
//! The private connection has no reaper. It serves one thread, which must not wait behind others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::Error;
use crate::transport::call::ConnectionId;
use crate::transport::pool::background::Background;
use crate::transport::pool::context::{ConnectionObserver, ConnectionPause, PoolContext};
use crate::transport::pool::pipeline::PipelineContext;
use crate::transport::pool::request::{Request, panicked};
use crate::transport::pool::shared_connection::SharedConnection;
use crate::transport::pool::{PoolServer, PoolSettings, PoolTimeouts};
use crate::util::clock;
use crate::util::sync::Mutex;
use crate::util::system::thread::JoinHandle;
use crate::util::threads;

/// The number of connections that callers share if there are more callers than connections.
const SHARED_BY_MANY: usize = 2;

/// The connections of one pool.
pub(super) struct Connections {
    node: u32,
    pub(super) shared: Vec<Arc<SharedConnection>>,
    pub(super) private: Arc<SharedConnection>,
    private_attempt: Mutex<PrivateAttempt>,
    /// The number of callers that wait for a reply.
    callers: AtomicUsize,
    pub(super) background: Arc<Background>,
    /// The threads of the reapers, by the number of their connection.
    pub(super) reapers: Mutex<BTreeMap<usize, JoinHandle<()>>>,
}

/// The attempts to connect the private connection on a thread of its own.
#[derive(Debug, Default)]
struct PrivateAttempt {
    is_running: bool,
    /// The error of the last attempt.
    error: Option<Error>,
}

impl Connections {
    /// Makes the connections of a pool without connecting them; returns what they have in common.
    pub(super) fn new(settings: PoolSettings) -> (Arc<Connections>, Arc<PoolContext>) {
        let health = settings.healths.of(settings.server.node);
        let background = Arc::new(Background::new(&settings, Arc::clone(&health)));
        let PoolServer { node, is_cluster_node, route } = settings.server;
        let context = Arc::new(PoolContext {
            route,
            health: Arc::clone(&health),
            is_cluster_node,
            replicas: settings.replicas,
            refuses_replica: settings.refuses_replica,
            is_replica: AtomicBool::new(false),
            name: settings.name,
            process: settings.process,
            observer: Arc::clone(&background) as Arc<dyn ConnectionObserver>,
        });
        let PoolTimeouts { shared: timeouts, longest_private, .. } = settings.timeouts;
        let make = |number, private| {
            SharedConnection::new(PipelineContext {
                id: ConnectionId::at(node, number),
                pool: Arc::clone(&context),
                timeouts,
                private,
                pause: Arc::new(ConnectionPause::new(Arc::clone(&health))),
            })
        };
        let private = make(settings.size, Some(longest_private));
        let connections = Connections {
            node,
            shared: (0..settings.size).map(|number| make(number, None)).collect(),
            private,
            private_attempt: Mutex::default(),
            callers: AtomicUsize::new(0),
            background,
            reapers: Mutex::default(),
        };
        (Arc::new(connections), context)
    }

    /// Returns the id of a connection by its number.
    pub(super) fn id(&self, number: usize) -> ConnectionId {
        ConnectionId::at(self.node, number)
    }

    /// Returns the connection with that id.
    pub(super) fn get(&self, connection: ConnectionId) -> &SharedConnection {
        // Ids come from pools of the same size, so any other number is the private connection's.
        self.shared.get(connection.connection).unwrap_or(&self.private)
    }

    /// Starts a thread that makes the private connection, unless the connection exists.
    ///
    /// Without room for a thread, the caller makes it: the watchdog, whose time-outs are short.
    ///
    /// Returns `Err` until the connection exists, with the error of the last attempt, if one
    /// failed.
    pub(super) fn connect_private(self: &Arc<Connections>) -> Result<(), Option<Error>> {
        if !self.private.is_disconnected() {
            return Ok(());
        }
        let mut attempt = self.private_attempt.lock();
        if !attempt.is_running && self.private.pause().error(clock::now()).is_none() {
            let connections = Arc::clone(self);
            let connect = move || connections.make_private_connection();
            attempt.is_running = threads::start("leasehold-connect", connect).is_ok();
        }
        if !attempt.is_running {
            drop(attempt);
            self.make_private_connection();
            attempt = self.private_attempt.lock();
        }
        Err(attempt.error.clone())
    }

    fn make_private_connection(&self) {
        let outcome = threads::catch_panic("connecting", || self.private.connect());
        let error = outcome.map_or_else(|| Some(panicked()), Result::err);
        *self.private_attempt.lock() = PrivateAttempt { is_running: false, error };
    }

    /// Queues a request on that connection, or on a free or the least loaded one. Returns its id.
    pub(super) fn queue(&self, request: Request, connection: Option<ConnectionId>) -> ConnectionId {
        let mut request = Some(request);
        let connection = connection.unwrap_or_else(|| {
            let free = self.eligible().find(|connection| connection.queue_if_free(&mut request));
            let shortest = || self.eligible().min_by_key(|connection| connection.load());
            // Not the private connection: it has no reaper.
            free.or_else(shortest).map_or(self.id(0), |connection| connection.id())
        });
        if let Some(request) = request {
            self.get(connection).queue(request);
        }
        connection
    }

    /// Returns the connections for a request that may take any connection, at least one.
    ///
    /// Returns all connections while they outnumber the waiting callers. Otherwise returns the
    /// first [`SHARED_BY_MANY`] open connections, or the first of all connections if none is open.
    fn eligible(&self) -> impl Iterator<Item = &Arc<SharedConnection>> {
        let all = self.shared.len();
        let outnumbered = self.callers.load(Ordering::Relaxed) >= all;
        let most = if outnumbered { SHARED_BY_MANY } else { all };
        // The first open connection stays eligible if it is closed meanwhile: at least one remains.
        let open =
            self.shared.iter().position(|connection| outnumbered && !connection.is_disconnected());
        let is_used = move |number, connection: &SharedConnection| {
            open.is_none_or(|open| open == number || !connection.is_disconnected())
        };
        let connections = self.shared.iter().enumerate();
        connections
            .filter(move |(number, connection)| is_used(*number, connection))
            .map(|(_, connection)| connection)
            .take(most)
    }

    /// Returns the open connection with the shortest queue.
    pub(super) fn shortest_open(&self) -> Option<ConnectionId> {
        let loads = self.shared.iter().map(|connection| (connection.load(), connection.id()));
        let open = loads.filter(|((is_disconnected, _), _)| !is_disconnected);
        open.min_by_key(|(load, _)| *load).map(|(_, id)| id)
    }

    /// Counts a waiting caller until the returned value is dropped.
    pub(super) fn count_caller(&self) -> WaitingCaller<'_> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        WaitingCaller(&self.callers)
    }
}

/// Counts one waiting caller.
pub(super) struct WaitingCaller<'a>(&'a AtomicUsize);

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::transport::call::Call;
    use crate::transport::connection::{Address, Timeouts};
    use crate::transport::pool::LongestWait;
    use crate::transport::topology::route::Route;
    use std::time::Duration;

    /// Connections that stay unconnected.
    fn connections(size: usize) -> Arc<Connections> {
        let none = Duration::ZERO;
        let timeouts = Timeouts { connect: none, response: none, replicas: none };
        let address = Address::parse("redis://127.0.0.1/").expect("a good URL");
        let settings = PoolSettings {
            server: PoolServer {
                node: 0,
                is_cluster_node: false,
                route: Route::To(Arc::new(address)),
            },
            process: std::process::id(),
            name: String::new(),
            size,
            timeouts: PoolTimeouts {
                shared: timeouts,
                longest_private: Arc::new(LongestWait::new(none)),
                queue: none,
            },
            replicas: 0,
            refuses_replica: true,
            longest_repeat: none,
            healths: Arc::default(),
        };
        Connections::new(settings).0
    }

    fn queue(connections: &Connections) -> usize {
        connections.queue(Request::awaited(Call::command(&[b"PING"])).0, None).connection
    }

    #[test]
    fn callers_share_two_connections_while_they_outnumber_the_connections() {
        let connections = connections(4);
        let mut waiting = Vec::new();
        let mut call = |connections| {
            let number = queue(connections);
            waiting.push(connections.count_caller());
            number
        };
        let first: Vec<_> = (0..4).map(|_| call(&connections)).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        let more: Vec<_> = (0..4).map(|_| call(&connections)).collect();
        assert_eq!(more, [0, 1, 0, 1]);
        waiting.truncate(3);
        assert_eq!(queue(&connections), 2, "each caller has a connection again");
    }

    #[test]
    fn a_connection_that_closes_meanwhile_sends_no_caller_to_the_private_connection() {
        let connections = connections(2);
        let _waiting = [connections.count_caller(), connections.count_caller()];
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connection = &connections.shared[0];
                while !stop.load(Ordering::Relaxed) {
                    connection.set_disconnected(false);
                    connection.set_disconnected(true);
                }
            });
            let always = (0..2_000_000).all(|_| connections.eligible().next().is_some());
            stop.store(true, Ordering::Relaxed);
            assert!(always, "the fallback was the private connection, which has no reaper");
        });
    }
}
