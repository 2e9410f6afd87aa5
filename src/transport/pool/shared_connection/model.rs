//! A model of one shared connection and the threads that use it.
//!
//! Some callers wait for their replies, some only until no leader has taken the request at
//! once, and some return immediately. Others send background requests, and a reaper reads the
//! replies that no caller reads. Only the code under test wakes threads.
//!
//! Properties in every schedule:
//! * There is one connection at a time, and requests run in the order of the queue.
//! * Every request is completed once: answered, failed, or taken back unsent.
//! * A reply that names no earlier copies is the reply to the only copy that ran.
//! * Every waiting caller wakes up, and every background request is sent.
//! * The reply to a clean-up says that the connection broke, if a late command can undo it.
//!
//! Faults that the model has caught:
//! * The leadership is given up without a look at the queue, at its callers or at its
//!   background requests.
//! * A caller that gives up keeps the leadership that it was offered at that moment.
//! * A repeated request comes after the requests that stood behind it.
//! * A request that must not run twice is repeated, or a repeated one is not marked.
//! * The reply to a clean-up on the next connection does not say that the connection broke.
//! * Requests that could not be written ahead are not queued again, or their callers sleep on.
//! * No caller is offered the leadership when all waiting callers have requests in flight.
//! * A failed call among joined ones gets no error, or is joined again, or replies reach the
//!   wrong callers.

use super::*;
use crate::command::name::Name;
use crate::command::owner::{HoldId, Owner};
use crate::error::Error;
use crate::kind::plain::Plain;
use crate::kind::rules::{AcquireArgs, AcquireReply, KindRules as _};
use crate::transport::call::{Call, LateCopy};
use crate::transport::connection::model::{Mishap, Server};
use crate::transport::connection::{Address, Timeouts};
use crate::transport::pool::context::ConnectionObserver;
use crate::transport::pool::request::{BackgroundTask, CallReply, Failure};
use crate::transport::reply::Reply;
use crate::transport::topology::route::Route;
use crate::util::model::check;
use crate::util::sync::Parker;
use shuttle::thread::{self, JoinHandle};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// How long a caller waits.
#[derive(Clone, Copy)]
enum Stay {
    /// Until the reply arrives.
    Patient,
    /// Leaves the queue unless a leader takes the request at once.
    Hasty,
    /// Returns at once.
    Gone,
}

use Stay::{Gone, Hasty, Patient};

impl Stay {
    fn wait(self, connection: &SharedConnection, slot: &Arc<ReplySlot>) -> Outcome {
        let (limit, queue_end) = match self {
            Patient => (Limit::none(), Moment::END),
            Hasty => (Limit::none(), Moment::START),
            Gone => (Limit::at(Moment::START), Moment::END),
        };
        connection.wait(slot, &limit, queue_end)
    }
}

struct World {
    server: Arc<Server>,
    connection: Arc<SharedConnection>,
    reaper: Arc<Reaper>,
    /// The texts of the queued requests, in order.
    queued: Mutex<Vec<String>>,
    /// The most times that a request may run: once, once more after the connection breaks, and
    /// once more if the script of a request ahead has to be loaded.
    most_copies: AtomicUsize,
}

/// The thread that sends background requests and reads unread replies.
#[derive(Default)]
struct Reaper {
    parker: Parker,
    open: Mutex<usize>,
}

impl ConnectionObserver for Reaper {
    fn reconnected(&self, _connection: ConnectionId, _address: &Arc<str>) {}

    fn connects(&self, _connection: ConnectionId) -> bool {
        false
    }

    fn recovered(&self) {}

    fn answered(&self, _connection: ConnectionId, request: Request, reply: CallReply) {
        self.settle(request, Ok(reply));
    }

    fn failed(&self, _connection: ConnectionId, request: Request, error: Error) {
        self.settle(request, Err(error));
    }

    fn redirected(
        &self,
        _connection: ConnectionId,
        request: Request,
        _redirect: crate::error::Redirect,
        error: Error,
    ) {
        self.settle(request, Err(error));
    }

    fn queue_unattended(&self, _connection: ConnectionId) {
        self.parker.unpark();
    }

    fn replies_unread(&self, _connection: ConnectionId) {
        self.parker.unpark();
    }
}

impl Reaper {
    fn settle(&self, request: Request, outcome: Result<CallReply>) {
        let (_, mut task) = request.into_task().expect("only background requests are reported");
        task.settle(outcome);
        *self.open.lock() -= 1;
        self.parker.unpark();
    }

    fn run(&self, connection: &SharedConnection) {
        while *self.open.lock() > 0 {
            if connection.unsent() > 0 || connection.unread() != Unread::Nothing {
                connection.serve();
            }
            self.parker.park_until(Moment::END);
        }
    }
}

/// Receives the outcome of one background request.
#[derive(Default)]
struct OutcomeProbe(Mutex<Option<Result<CallReply>>>);

impl OutcomeProbe {
    fn settle(&self, outcome: Result<CallReply>) {
        let before = self.0.lock().replace(outcome);
        assert!(before.is_none(), "a background request is settled once");
    }
}

impl World {
    /// `tasks` is the number of background requests to come.
    fn new(tasks: usize) -> Arc<World> {
        let reaper = Arc::new(Reaper { parker: Parker::default(), open: Mutex::new(tasks) });
        static ADDRESS: OnceLock<Address> = OnceLock::new();
        let address = ADDRESS.get_or_init(|| Address::parse("redis://model/").expect("a URL"));
        let context = PoolContext {
            route: Route::To(Arc::new(address.clone())),
            health: Arc::default(),
            replicas: 0,
            refuses_replica: false,
            is_replica: std::sync::atomic::AtomicBool::new(false),
            is_cluster_node: false,
            name: "model".to_owned(),
            process: std::process::id(),
            observer: Arc::clone(&reaper) as Arc<dyn ConnectionObserver>,
        };
        let timeouts =
            Timeouts { connect: Duration::MAX, response: Duration::MAX, replicas: Duration::ZERO };
        let pause = Arc::new(ConnectionPause::new(Arc::clone(&context.health)));
        let (id, pool) = (ConnectionId::at(0, 0), Arc::new(context));
        let context = PipelineContext { id, pool, timeouts, private: None, pause };
        let connection = SharedConnection::new(context);
        let (server, queued) = (Server::start(), Mutex::default());
        let most_copies = AtomicUsize::new(2);
        Arc::new(World { server, connection, reaper, queued, most_copies })
    }

    fn queue(&self, request: Request, text: &str) {
        let mut queued = self.queued.lock();
        self.connection.queue(request);
        queued.push(text.to_owned());
    }

    fn ask(&self, text: &str, stay: Stay) -> Outcome {
        let (request, slot) = Request::awaited(echo(text));
        self.queue(request, text);
        let outcome = stay.wait(&self.connection, &slot);
        if let Ok(reply) = &outcome {
            assert_eq!(reply.value, Reply::Text(text.into()), "its own reply");
        }
        outcome
    }

    fn submit(&self, text: &str) -> Arc<OutcomeProbe> {
        let probe = Arc::<OutcomeProbe>::default();
        self.queue(Request::background(echo(text), task_for(&probe)), text);
        self.connection.flush();
        probe
    }

    fn submit_call(&self, call: Call) {
        self.connection.queue(Request::background(call, task_for(&Arc::default())));
        self.connection.flush();
    }

    /// How often the request ran.
    fn copies(&self, text: &str) -> usize {
        self.server.echoed().iter().filter(|echoed| *echoed == text).count()
    }

    /// Checks the outcome of a request against what the server ran.
    fn check_outcome(&self, text: &str, outcome: &Outcome) {
        let (copies, most) = (self.copies(text), self.most_copies.load(Ordering::Relaxed));
        match outcome {
            Ok(reply) if reply.copies.may_exist() => assert!((1..=most).contains(&copies)),
            Ok(_) => assert_eq!(copies, 1, "{text} ran once"),
            Err(failure) if !failure.is_written() => assert_eq!(copies, 0, "{text} was not sent"),
            Err(Failure { error, .. }) => assert!(copies <= most, "{error}"),
        }
    }

    fn flush_scripts(&self) {
        self.most_copies.store(3, Ordering::Relaxed);
        self.server.flush_scripts();
    }

    fn start(self: &Arc<World>, act: impl FnOnce(&World) + Send + 'static) -> JoinHandle<()> {
        let world = Arc::clone(self);
        thread::spawn(move || act(&world))
    }

    fn start_reaper(self: &Arc<World>) -> JoinHandle<()> {
        self.start(|world| world.reaper.run(&world.connection))
    }
}

fn task_for(probe: &Arc<OutcomeProbe>) -> BackgroundTask {
    let probe = Arc::clone(probe);
    BackgroundTask::new(Moment::END).then(move |outcome| probe.settle(outcome))
}

fn echo(text: &str) -> Call {
    Call::command(&[b"ECHO", text.as_bytes()])
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
}

/// Sends a request and checks its outcome.
fn ask(text: &'static str, stay: Stay) -> impl Fn(&World) {
    move |world| {
        let outcome = world.ask(text, stay);
        world.check_outcome(text, &outcome);
    }
}

/// Sends a background request, and then a request of a caller.
fn submit_and_ask(background: &'static str, asked: &'static str, stay: Stay) -> impl Fn(&World) {
    move |world| {
        world.submit(background);
        ask(asked, stay)(world);
    }
}

#[test]
fn requests_run_once_and_in_order() {
    check(|| {
        let world = World::new(2);
        join([
            world.start(submit_and_ask("a", "b", Patient)),
            world.start(submit_and_ask("c", "d", Patient)),
            world.start(|world| ["e", "f"].iter().for_each(|text| ask(text, Patient)(world))),
            world.start_reaper(),
        ]);
        assert_eq!(world.server.echoed(), *world.queued.lock());
    });
}

#[test]
fn a_caller_that_gives_up_passes_the_leadership_on() {
    check(|| {
        let world = World::new(2);
        join([
            world.start(ask("a", Hasty)),
            world.start(submit_and_ask("b", "c", Hasty)),
            world.start(submit_and_ask("d", "e", Patient)),
            world.start(ask("f", Patient)),
            world.start_reaper(),
        ]);
        assert!(world.connection.unsent() == 0, "the queue is empty");
    });
}

/// A caller that returns during an exchange delays no reply and no background request.
#[test]
fn a_caller_that_returns_early_delays_no_other() {
    for mishap in [None, Some(Mishap::Broken { ran: 1, answered: 0 }), Some(Mishap::Unreachable)] {
        check(move || {
            let world = World::new(2);
            mishap.into_iter().for_each(|mishap| world.server.plan(mishap));
            join([
                world.start(ask("a", Gone)),
                world.start(submit_and_ask("b", "c", Gone)),
                world.start(submit_and_ask("d", "e", Patient)),
                world.start(World::flush_scripts),
                world.start(take_and_leave),
                world.start_reaper(),
            ]);
            assert!(world.connection.unsent() == 0, "the queue is empty");
        });
    }
}

/// Takes a lock, returns before the reply, and frees the lock.
fn take_and_leave(world: &World) {
    let locking = Locking::new();
    let (request, slot) = Request::awaited(locking.take());
    world.connection.queue(request);
    let _ = Gone.wait(&world.connection, &slot);
    while world.call(locking.free()).is_err() {}
    assert!(!world.server.is_locked(), "the release runs after the acquire");
}

#[test]
fn requests_on_a_broken_connection_are_repeated_once_and_marked() {
    for mishap in [
        Mishap::Broken { ran: 0, answered: 0 },
        Mishap::Broken { ran: 2, answered: 1 },
        Mishap::Unreachable,
    ] {
        check(move || {
            let world = World::new(1);
            let submit = |world: &World| {
                let probe = world.submit("a");
                ask("b", Patient)(world);
                let outcome = probe.0.lock().clone().expect("settled before the request behind it");
                let outcome = outcome.map_err(Failure::written);
                world.check_outcome("a", &outcome);
            };
            join([
                world.start(submit),
                world.start(ask("c", Patient)),
                world.start(ask("d", Hasty)),
                world.start(move |world| (0..2).for_each(|_| world.server.plan(mishap))),
                world.start_reaper(),
            ]);
        });
    }
}

#[test]
fn an_acquire_runs_after_the_release_queued_before_it() {
    for mishap in [
        Mishap::Broken { ran: 0, answered: 0 },
        Mishap::Broken { ran: 1, answered: 1 },
        Mishap::Broken { ran: 2, answered: 1 },
    ] {
        check(move || {
            let world = World::new(1);
            let (first, second) = (Locking::new(), Locking::new());
            let granted = world.call(first.take()).expect("nothing is wrong yet");
            assert_eq!(
                Plain.read_acquire(granted.value).expect("a number"),
                AcquireReply::Granted(0)
            );
            let next = move |world: &World| {
                world.submit_call(first.free());
                if let Ok(reply) = world.call(second.take()) {
                    let reply = Plain.read_acquire(reply.value).expect("a number");
                    assert_eq!(
                        reply,
                        AcquireReply::Granted(0),
                        "the release ran after the acquire"
                    );
                }
            };
            join([
                world.start(next),
                world.start(World::flush_scripts),
                world.start(move |world| world.server.plan(mishap)),
                world.start_reaper(),
            ]);
        });
    }
}

#[test]
fn a_request_that_must_not_run_twice_runs_once() {
    for mishap in [
        Mishap::Broken { ran: 0, answered: 0 },
        Mishap::Broken { ran: 1, answered: 0 },
        Mishap::Broken { ran: 2, answered: 1 },
        Mishap::Silent,
    ] {
        check(move || {
            let world = World::new(1);
            let once = |world: &World| {
                let outcome = world.call(echo("once").once());
                assert!(world.copies("once") <= 1, "it ran twice");
                world.check_outcome("once", &outcome);
            };
            join([
                world.start(once),
                world.start(ask("a", Patient)),
                world.start(|world| drop(world.submit("background"))),
                world.start_reaper(),
                world.start(|world| {
                    take_and_free(world);
                }),
                world.start(World::flush_scripts),
                world.start(move |world| (0..2).for_each(|_| world.server.plan(mishap))),
            ]);
        });
    }
}

/// A hold of a lock, and the commands that take and free it.
struct Locking {
    name: Name,
    owner: Owner,
}

impl Locking {
    fn new() -> Locking {
        Locking::of("model")
    }

    fn of(name: &'static str) -> Locking {
        let name = Name::new("", name.into()).expect("a good name");
        Locking { name, owner: Owner::new(Uuid::nil(), HoldId::next(), "") }
    }

    fn take(&self) -> Call {
        let (name, owner, lease) = (&self.name, &self.owner, Duration::MAX);
        Plain.acquire(&AcquireArgs {
            name,
            owner,
            lease,
            beside: None,
            waiter_timeout: None,
            fair_waiter_timeout: Duration::ZERO,
            place: None,
            max_holders: 1,
            capacity: None,
            asks_capacity: false,
            with_slots: false,
            announced: None,
            wake: None,
        })
    }

    fn free(&self) -> Call {
        Plain.release(&self.name, &self.owner)
    }
}

impl World {
    fn call(&self, call: Call) -> Outcome {
        let (request, slot) = Request::awaited(call);
        self.connection.queue(request);
        Patient.wait(&self.connection, &slot)
    }

    /// Takes and frees a lock that no other thread wants.
    fn lock_alone(&self, name: &'static str) {
        let locking = Locking::of(name);
        let taken = self.call(locking.take()).expect("sent again if it breaks");
        assert_eq!(Plain.read_acquire(taken.value).expect("a number"), AcquireReply::Granted(0));
        let freed = self.call(locking.free()).expect("sent again if it breaks");
        let left =
            freed.value == Reply::Int(0) || freed.copies.may_have_reply(|it| *it == Reply::Int(0));
        assert!(left, "there was nothing to free: {freed:?}");
    }
}

/// Takes the lock, and frees it whatever the outcome was, until the server confirms.
///
/// Returns whether a late copy of a command may run after that.
fn take_and_free(world: &World) -> bool {
    let (locking, since) = (Locking::new(), clock::now());
    let _ = world.call(locking.take());
    loop {
        if let Ok(reply) = world.call(locking.free()) {
            let copy = LateCopy { connection: reply.connection, since };
            return reply.may_precede(&copy, Duration::MAX);
        }
    }
}

#[test]
fn a_clean_up_that_a_late_command_can_undo_is_repeated() {
    check(|| {
        let world = World::new(0);
        // A request behind the first script runs again, and may run late on the silent connection.
        world.most_copies.store(3, Ordering::Relaxed);
        let is_marked = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&is_marked);
        join([
            world.start(move |world| mark.store(take_and_free(world), Ordering::Relaxed)),
            world.start(ask("a", Patient)),
            world.start(|world| world.server.plan(Mishap::Silent)),
            world.start(|world| world.server.run_unread()),
        ]);
        world.server.run_unread();
        let is_safe = is_marked.load(Ordering::Relaxed) || !world.server.is_locked();
        assert!(is_safe, "a late copy took the lock");
    });
}

#[test]
fn removed_scripts_are_loaded_again() {
    check(|| {
        let world = World::new(0);
        join([
            world.start(|world| {
                take_and_free(world);
            }),
            world.start(|world| {
                take_and_free(world);
            }),
            world.start(|world| (0..2).for_each(|_| world.flush_scripts())),
        ]);
        assert!(!world.server.is_locked());
    });
}

/// Each joined call gets its own reply, whatever happens to the others.
#[test]
fn joined_calls_get_their_own_replies() {
    for mishap in [None, Some(Mishap::Broken { ran: 1, answered: 0 })] {
        check(move || {
            let world = World::new(0);
            world.server.spoil("spoiled");
            let meddle = move |world: &World| {
                mishap.into_iter().for_each(|mishap| world.server.plan(mishap));
                world.flush_scripts();
            };
            join([
                world.start(|world| world.lock_alone("one")),
                world.start(|world| world.lock_alone("two")),
                world.start(|world| {
                    let spoiled = Locking::of("spoiled");
                    assert!(world.call(spoiled.take()).is_err(), "the key is no lock");
                    assert!(world.call(spoiled.free()).is_err(), "the key is no lock");
                }),
                world.start(meddle),
            ]);
            assert!(!world.server.is_locked());
        });
    }
}
