//! A model of background requests and of the reapers that start and end.
//!
//! The pool and its connections are the real ones, connected to a server inside the model. The
//! model starts the reapers ([`World::dispatch`]), because the model checker does not schedule the
//! threads that the pool starts. The model also decides when a pause is over.
//!
//! In every schedule a background request is settled once by some reaper, also if the request is
//! queued while a reaper ends. When all requests are settled, a thread that waits for that returns,
//! and a reaper that was told to finish ends.
//!
//! Faults that the model was seen to catch:
//! * a reaper ends while a background request is open, or without releasing its claim;
//! * a failed request stays scheduled after another thread has made a connection;
//! * the last request wakes neither the thread that waits for it nor the reapers that finish.

use super::*;
use crate::transport::connection::Address;
use crate::transport::connection::model::{Mishap, Server};
use crate::transport::pool::request::BackgroundTask;
use crate::transport::pool::retry_queue::ConnectionRetries;
use crate::util::model::check;
use crate::util::sync::Mutex;
use shuttle::thread::{self as model, JoinHandle};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

struct World {
    server: Arc<Server>,
    pool: Pool,
    releases: Mutex<Vec<Arc<Release>>>,
    reapers: Mutex<Vec<JoinHandle<()>>>,
}

/// Receives the outcome of one background request.
#[derive(Default)]
struct Release {
    settled: AtomicUsize,
}

fn settings() -> PoolSettings {
    static ADDRESS: OnceLock<Address> = OnceLock::new();
    let address = ADDRESS.get_or_init(|| Address::parse("redis://model/").expect("a good URL"));
    let timeouts =
        Timeouts { connect: Duration::MAX, response: Duration::MAX, replicas: Duration::ZERO };
    PoolSettings {
        server: PoolServer {
            node: 0,
            is_cluster_node: false,
            route: Route::To(Arc::new(address.clone())),
        },
        process: std::process::id(),
        name: "model".to_owned(),
        size: 2,
        timeouts: PoolTimeouts {
            shared: timeouts,
            longest_private: Arc::new(LongestWait::new(Duration::MAX)),
            queue: Duration::MAX,
        },
        replicas: 0,
        refuses_replica: false,
        longest_repeat: Duration::MAX,
        healths: Arc::default(),
    }
}

impl World {
    fn new() -> Arc<World> {
        let server = Server::start();
        let pool = Pool::open(settings()).expect("the server can be reached");
        let (releases, reapers) = (Mutex::default(), Mutex::default());
        Arc::new(World { server, pool, releases, reapers })
    }

    /// Submits a background request with that deadline.
    fn submit(&self, text: &str, deadline: Moment) {
        self.submit_on(None, text, deadline);
    }

    fn submit_on(&self, connection: Option<ConnectionId>, text: &str, deadline: Moment) {
        let release = Arc::<Release>::default();
        self.releases.lock().push(Arc::clone(&release));
        let task = BackgroundTask::new(deadline).then(move |_| {
            release.settled.fetch_add(1, Ordering::Relaxed);
        });
        let connection = self.pool.submit(Request::background(echo(text), task), connection);
        self.dispatch(connection);
    }

    /// Like [`Pool::dispatch`], with a reaper that the model schedules.
    fn dispatch(&self, connection: ConnectionId) {
        let connections = &self.pool.connections;
        if connections.background.queue.claim_reaper(connection) {
            let connections = Arc::clone(connections);
            self.reapers.lock().push(model::spawn(move || connections.reap(connection)));
        }
        self.pool.flush(connection);
    }

    fn finish(&self) {
        assert!(self.pool.finish().is_empty(), "the reapers are the model's");
    }

    fn start(self: &Arc<World>, act: impl FnOnce(&World) + Send + 'static) -> JoinHandle<()> {
        let world = Arc::clone(self);
        model::spawn(move || act(&world))
    }

    /// Ends all pauses and makes all scheduled requests due.
    fn let_time_pass(&self) {
        let connections = &self.pool.connections;
        let queue = &connections.background.queue;
        for id in (0..connections.shared.len()).map(|number| connections.id(number)) {
            let mut state = queue.state.lock();
            let retries = state.connection(id);
            let scheduled = std::mem::take(&mut retries.scheduled);
            let due = |((_, arrival), request)| ((Moment::START, arrival), request);
            retries.scheduled = scheduled.into_iter().map(due).collect();
            queue.wake_reaper(id);
        }
    }

    fn count_settled(&self) -> usize {
        let settled = |release: &Arc<Release>| release.settled.load(Ordering::Relaxed);
        self.releases.lock().iter().map(settled).sum()
    }

    /// Lets the reapers finish, and checks what is left.
    fn check_rest(&self, requests: usize) {
        self.finish();
        let reapers = std::mem::take(&mut *self.reapers.lock());
        join(reapers);
        assert_eq!(self.count_settled(), requests);
        let once = |release: &Arc<Release>| release.settled.load(Ordering::Relaxed) == 1;
        assert!(self.releases.lock().iter().all(once), "every request is settled once");
        let state = self.pool.connections.background.queue.state.lock();
        assert_eq!(state.open, 0);
        let is_idle =
            |retries: &ConnectionRetries| retries.scheduled.is_empty() && !retries.has_reaper;
        assert!(state.connections.iter().all(is_idle));
    }
}

fn echo(text: &str) -> Call {
    Call::command(&[b"ECHO", text.as_bytes()])
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
}

#[test]
fn a_request_that_is_queued_while_the_reaper_ends_is_sent() {
    check(|| {
        let world = World::new();
        join([
            world.start(|world| world.submit("a", Moment::END)),
            world.start(World::finish),
            world.start(|world| ["b", "c"].iter().for_each(|text| world.submit(text, Moment::END))),
        ]);
        world.check_rest(3);
        assert_eq!(world.server.echoed().len(), 3);
    });
}

#[test]
fn background_requests_beside_calls_are_sent() {
    check(|| {
        let world = World::new();
        let call = |world: &World| {
            let reply = world.pool.call(echo("b"), Target::Any).expect("nothing is wrong here");
            assert_eq!(reply.value, crate::transport::reply::Reply::Text(b"b".into()));
        };
        join([
            world.start(|world| world.submit("a", Moment::END)),
            world.start(call),
            world.start(call),
            world.start(|world| world.submit("c", Moment::END)),
        ]);
        world.check_rest(2);
    });
}

#[test]
fn a_thread_that_waits_until_all_is_settled_returns() {
    check(|| {
        let world = World::new();
        let submit_and_wait = |world: &World| {
            world.submit("a", Moment::END);
            assert!(world.pool.wait_until_settled(Moment::END));
            assert!(world.count_settled() > 0);
        };
        join([
            world.start(submit_and_wait),
            world.start(|world| world.submit("b", Moment::END)),
            world.start(World::finish),
        ]);
        world.check_rest(2);
    });
}

#[test]
fn a_failed_request_is_retried_as_soon_as_there_is_a_connection() {
    check(|| {
        let world = World::new();
        world.server.plan(Mishap::Broken { ran: 0, answered: 0 });
        world.server.plan(Mishap::Unreachable);
        let call = |world: &World| {
            while world.pool.call(echo("b"), Target::Only(ConnectionId::at(0, 0))).is_err() {
                model::yield_now();
            }
        };
        join([
            world.start(|world| world.submit_on(Some(ConnectionId::at(0, 0)), "a", Moment::END)),
            world.start(call),
        ]);
        world.check_rest(1);
        assert!(world.server.echoed().contains(&"a".to_owned()));
    });
}

#[test]
fn failed_requests_are_retried_until_their_deadline() {
    for mishap in [Mishap::Unreachable, Mishap::Broken { ran: 0, answered: 0 }] {
        check(move || {
            let world = World::new();
            let pass_time = |world: &World| {
                while world.count_settled() < 2 {
                    world.let_time_pass();
                    model::yield_now();
                }
            };
            join([
                world.start(move |world| (0..3).for_each(|_| world.server.plan(mishap))),
                world.start(|world| world.submit("a", Moment::END)),
                world.start(|world| world.submit("b", Moment::START)),
                world.start(World::finish),
                world.start(pass_time),
            ]);
            world.check_rest(2);
            assert!(world.server.echoed().contains(&"a".to_owned()), "before its deadline");
        });
    }
}
