//! A model of what is owed, and of the reaper that starts and ends.
//!
//! The pool and its lanes are the real ones, over connections to a server inside the
//! model. Its threads are not the model's: [`World::dispatch`] starts the reaper instead.
//! The pause before a debt is tried again is over when the model says so.
//!
//! What must be so in every schedule: a debt is settled once, by some reaper, also if
//! it is queued while the reaper ends; when all is settled, who waits for that hears
//! of it, and a reaper that was told to finish ends.
//!
//! Faults that it was seen to catch:
//! * a reaper ends while something is owed, or without saying so;
//! * what failed stays delayed when somebody else has made a connection;
//! * the last debt wakes neither who waits for it nor the reapers that are to finish.

use super::*;
use crate::connection::Address;
use crate::connection::model::{Mishap, Server};
use crate::local::hold::{Grant, Hold};
use crate::pool::request::{Answer, BackgroundTask, OnOutcome};
use crate::util::model::check;
use shuttle::thread::{self as model, JoinHandle};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

struct World {
    server: Arc<Server>,
    pool: Pool,
    creditors: Mutex<Vec<Arc<Creditor>>>,
    reapers: Mutex<Vec<JoinHandle<()>>>,
}

/// Somebody to whom something is owed.
#[derive(Default)]
struct Creditor {
    settled: AtomicUsize,
}

impl OnOutcome for Creditor {
    fn settle(&self, _outcome: Result<Answer>) {
        self.settled.fetch_add(1, Ordering::Relaxed);
    }
}

fn settings() -> PoolSettings {
    static ADDRESS: OnceLock<Address> = OnceLock::new();
    let address = ADDRESS.get_or_init(|| Address::parse("redis://model/").expect("a good URL"));
    PoolSettings {
        route: Route::To(Arc::new(address.clone())),
        replicas: 0,
        is_node: false,
        timeouts: Timeouts {
            connect: Duration::MAX,
            response: Duration::MAX,
            replicas: Duration::ZERO,
        },
        private: Timeouts {
            connect: Duration::MAX,
            response: Duration::MAX,
            replicas: Duration::ZERO,
        },
        node: 0,
        process: std::process::id(),
        name: "model".to_owned(),
        size: 2,
        wait: Duration::MAX,
        repeat: Duration::MAX,
        events: EventSink::default(),
    }
}

impl World {
    fn new() -> Arc<World> {
        let server = Server::start();
        let pool = Pool::open(settings()).expect("the server can be reached");
        let (creditors, reapers) = (Mutex::default(), Mutex::default());
        Arc::new(World { server, pool, creditors, reapers })
    }

    /// Owes something, worth trying until then.
    fn submit(&self, text: &str, until: Moment) {
        self.owe_on(None, text, until);
    }

    fn owe_on(&self, connection: Option<ConnectionId>, text: &str, until: Moment) {
        let creditor = Arc::<Creditor>::default();
        self.creditors.lock().push(Arc::clone(&creditor));
        let task = BackgroundTask::new(Some(creditor), until);
        let connection = self.pool.submit(Request::background(echo(text), task), connection);
        self.dispatch(connection);
    }

    /// What [`Pool::dispatch`] does.
    fn dispatch(&self, connection: ConnectionId) {
        let shared = &self.pool.shared;
        if shared.retries.starts_reaper(connection) {
            let shared = Arc::clone(shared);
            self.reapers.lock().push(model::spawn(move || shared.reap(connection)));
        }
        self.pool.shared.connection(connection).post();
    }

    fn finish(&self) {
        assert!(self.pool.finish().is_empty(), "the reapers are the model's");
    }

    fn start(self: &Arc<World>, act: impl FnOnce(&World) + Send + 'static) -> JoinHandle<()> {
        let world = Arc::clone(self);
        model::spawn(move || act(&world))
    }

    /// The pauses of all that was delayed are over.
    fn let_time_pass(&self) {
        let retries = &self.pool.shared.retries;
        for connection in (0..self.pool.shared.connections.len())
            .map(|connection| ConnectionId::at(0, connection))
        {
            let mut state = retries.state.lock();
            let state = state.connection(connection);
            let delayed = std::mem::take(&mut state.delayed);
            let due = |((_, number), request)| ((Moment::START, number), request);
            state.delayed = delayed.into_iter().map(due).collect();
            state.retry = Moment::START;
            retries.wake_reaper(connection);
        }
    }

    fn count_settled(&self) -> usize {
        let settled = |one: &Arc<Creditor>| one.settled.load(Ordering::Relaxed);
        self.creditors.lock().iter().map(settled).sum()
    }

    /// Has the reaper finish, if nobody has, and looks at what is left.
    fn check_rest(&self, tasks: usize) {
        self.finish();
        let reapers = std::mem::take(&mut *self.reapers.lock());
        join(reapers);
        assert_eq!(self.count_settled(), tasks);
        let once = |one: &Arc<Creditor>| one.settled.load(Ordering::Relaxed) == 1;
        assert!(self.creditors.lock().iter().all(once), "every debt is settled once");
        let state = self.pool.shared.retries.state.lock();
        assert_eq!(state.open, 0);
        assert!(
            state
                .connections
                .iter()
                .all(|connection| connection.delayed.is_empty() && !connection.reaping)
        );
    }
}

fn echo(text: &str) -> Call {
    Call::command(&[b"ECHO", text.as_bytes()])
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
}

#[test]
fn what_is_owed_while_the_reaper_ends_is_sent() {
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
fn what_is_owed_beside_calls_is_sent() {
    check(|| {
        let world = World::new();
        let call = |world: &World| {
            let answer = world.pool.call(echo("b"), Target::Any).expect("nothing is wrong here");
            assert_eq!(answer.reply, crate::command::reply::Reply::Text(b"b".into()));
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
fn who_waits_until_all_is_settled_hears_of_it() {
    check(|| {
        let world = World::new();
        let owe_and_flush = |world: &World| {
            world.submit("a", Moment::END);
            assert!(world.pool.wait_until_settled(Moment::END));
            assert!(world.count_settled() > 0);
        };
        join([
            world.start(owe_and_flush),
            world.start(|world| world.submit("b", Moment::END)),
            world.start(World::finish),
        ]);
        world.check_rest(2);
    });
}

#[test]
fn what_failed_is_tried_again_as_soon_as_there_is_a_connection() {
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
            world.start(|world| world.owe_on(Some(ConnectionId::at(0, 0)), "a", Moment::END)),
            world.start(call),
        ]);
        world.check_rest(1);
        assert!(world.server.echoed().contains(&"a".to_owned()));
    });
}

#[test]
fn what_fails_is_tried_again_while_that_is_worth_it() {
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
            assert!(world.server.echoed().contains(&"a".to_owned()), "it was worth it");
        });
    }
}
