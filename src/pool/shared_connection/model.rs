//! A model of one lane and the threads that share it.
//!
//! Some wait for their requests, some only until nobody has taken them at once, some leave
//! theirs behind, some owe theirs, and a reaper reads what nobody comes for. Only the code
//! under test wakes anybody.
//!
//! What must be so in every schedule:
//! * there is one connection at a time, and requests run in the order in which they
//!   were queued;
//! * every request is completed once: answered, failed, or taken back and not sent;
//! * an answer that is not doubtful is that of the only copy that ran;
//! * whoever waits wakes up, and what is owed is sent;
//! * what was asked on a connection that fell silent does not run after its clean-up.
//!
//! Faults that it was seen to catch:
//! * the lead is given back without a look at the line: at who waits, or at what is
//!   owed;
//! * who gives up keeps the lead that it was offered at that moment;
//! * what has to be repeated comes after what stood behind it;
//! * what must not run twice is sent again, or what was sent again is not doubtful;
//! * ghosts are not killed;
//! * what was posted and could not be written is not put back in line, or those whose
//!   requests it was are not woken;
//! * nobody is offered the lead when only such wait whose requests were posted;
//! * of calls that were joined, one that fails is answered by nothing or joined again, or
//!   the answers go to each other's callers.

use super::*;
use crate::command::call::Call;
use crate::command::name::Name;
use crate::command::owner::{HoldId, Owner};
use crate::command::reply::Reply;
use crate::connection::Address;
use crate::connection::model::{Mishap, Server};
use crate::error::Error;
use crate::kind::plain::Plain;
use crate::kind::rules::{AcquireArgs, AcquireReply, KindRules as _};
use crate::local::hold::{Grant, Hold};
use crate::pool::context::Observer;
use crate::pool::request::{Answer, BackgroundTask, Failure, OnOutcome};
use crate::topology::route::Route;
use crate::util::model::check;
use crate::util::sync::Parker;
use shuttle::thread::{self, JoinHandle};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// How long a sender waits.
#[derive(Clone, Copy)]
enum Stay {
    /// For the answer.
    Patient,
    /// Until nobody has taken its request at once.
    Hasty,
    /// Not at all.
    Gone,
}

use Stay::{Gone, Hasty, Patient};

impl Stay {
    fn wait(self, connection: &SharedConnection, slot: &Arc<ReplySlot>) -> Outcome {
        let (limit, line_end) = match self {
            Patient => (Limit::none(), Moment::END),
            Hasty => (Limit::none(), Moment::START),
            Gone => (Limit::at(Moment::START), Moment::END),
        };
        connection.wait(slot, &limit, line_end)
    }
}

struct World {
    server: Arc<Server>,
    connection: Arc<SharedConnection>,
    reaper: Arc<Reaper>,
    /// What was queued, in order.
    queued: Mutex<Vec<String>>,
    /// How often a request may run: one time more if the connection breaks, and one if
    /// a script before it had to be loaded.
    most_copies: AtomicUsize,
}

/// What the thread that sees to owed requests is told.
#[derive(Default)]
struct Reaper {
    parker: Parker,
    open: Mutex<usize>,
}

impl Observer for Reaper {
    fn reconnected(&self, _lane: ConnectionId, _address: &Arc<str>) {}

    fn answered(&self, _lane: ConnectionId, request: Request, answer: Answer) {
        self.settle(request, Ok(answer));
    }

    fn failed(&self, _lane: ConnectionId, request: Request, error: Error) {
        self.settle(request, Err(error));
    }

    fn redirected(
        &self,
        _lane: ConnectionId,
        request: Request,
        _direction: crate::error::Redirect,
        error: Error,
    ) {
        self.settle(request, Err(error));
    }

    fn queue_unattended(&self, _lane: ConnectionId) {
        self.parker.unpark();
    }

    fn replies_unread(&self, _lane: ConnectionId) {
        self.parker.unpark();
    }
}

impl Reaper {
    fn settle(&self, request: Request, outcome: Result<Answer>) {
        let (_, task) = request.into_task().expect("only what is owed comes back");
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

/// Somebody to whom a request is owed. Told of its outcome once.
#[derive(Default)]
struct Creditor(Mutex<Option<Result<Answer>>>);

impl OnOutcome for Creditor {
    fn settle(&self, outcome: Result<Answer>) {
        let before = self.0.lock().replace(outcome);
        assert!(before.is_none(), "a debt is settled once");
    }
}

impl World {
    /// `debts` is how many requests will be owed.
    fn new(tasks: usize) -> Arc<World> {
        let reaper = Arc::new(Reaper { parker: Parker::default(), open: Mutex::new(tasks) });
        static ADDRESS: OnceLock<Address> = OnceLock::new();
        let address = ADDRESS.get_or_init(|| Address::parse("redis://model/").expect("a URL"));
        let context = PoolContext {
            route: Route::To(Arc::new(address.clone())),
            replicas: 0,
            is_node: false,
            name: "model".to_owned(),
            process: std::process::id(),
            observer: Arc::clone(&reaper) as Arc<dyn Observer>,
        };
        let timeouts =
            Timeouts { connect: Duration::MAX, response: Duration::MAX, replicas: Duration::ZERO };
        let connection = SharedConnection::new(ConnectionId::at(0, 0), Arc::new(context), timeouts);
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
        if let Ok(answer) = &outcome {
            assert_eq!(answer.reply, Reply::Text(text.into()), "its own answer");
        }
        outcome
    }

    fn submit(&self, text: &str) -> Arc<Creditor> {
        let creditor = Arc::<Creditor>::default();
        self.queue(Request::background(echo(text), debt_to(&creditor)), text);
        self.connection.post();
        creditor
    }

    fn owe_call(&self, call: Call) {
        self.connection.queue(Request::background(call, debt_to(&Arc::default())));
        self.connection.post();
    }

    /// How often it ran.
    fn copies(&self, text: &str) -> usize {
        self.server.echoed().iter().filter(|echoed| *echoed == text).count()
    }

    /// What became of a request must fit what the server ran.
    fn check_outcome(&self, text: &str, outcome: &Outcome) {
        let (copies, most) = (self.copies(text), self.most_copies.load(Ordering::Relaxed));
        match outcome {
            Ok(answer) if answer.maybe_duplicate => assert!((1..=most).contains(&copies)),
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

fn debt_to(creditor: &Arc<Creditor>) -> BackgroundTask {
    let settle = Arc::clone(creditor) as Arc<dyn OnOutcome>;
    BackgroundTask::new(Some(settle), Moment::END)
}

fn echo(text: &str) -> Call {
    Call::command(&[b"ECHO", text.as_bytes()])
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
}

/// Asks and looks at the answer; its failure is one of those that are allowed.
fn ask(text: &'static str, stay: Stay) -> impl Fn(&World) {
    move |world| {
        let outcome = world.ask(text, stay);
        world.check_outcome(text, &outcome);
    }
}

/// Owes something, and then asks on the same lane.
fn owe_and_ask(background: &'static str, asked: &'static str, stay: Stay) -> impl Fn(&World) {
    move |world| {
        world.submit(background);
        ask(asked, stay)(world);
    }
}

#[test]
fn everything_runs_once_and_in_order() {
    check(|| {
        let world = World::new(2);
        join([
            world.start(owe_and_ask("a", "b", Patient)),
            world.start(owe_and_ask("c", "d", Patient)),
            world.start(|world| ["e", "f"].iter().for_each(|text| ask(text, Patient)(world))),
            world.start_reaper(),
        ]);
        assert_eq!(world.server.echoed(), *world.queued.lock());
    });
}

#[test]
fn who_gives_up_takes_no_lead_along() {
    check(|| {
        let world = World::new(2);
        join([
            world.start(ask("a", Hasty)),
            world.start(owe_and_ask("b", "c", Hasty)),
            world.start(owe_and_ask("d", "e", Patient)),
            world.start(ask("f", Patient)),
            world.start_reaper(),
        ]);
        assert!(world.connection.unsent() == 0, "nothing is left in line");
    });
}

/// A sender that leaves in the middle keeps nobody from an answer, and no debt from being
/// paid, whatever happens to the connection.
#[test]
fn a_sender_that_leaves_holds_up_nobody() {
    for mishap in [None, Some(Mishap::Broken { ran: 1, answered: 0 }), Some(Mishap::Unreachable)] {
        check(move || {
            let world = World::new(2);
            mishap.into_iter().for_each(|mishap| world.server.plan(mishap));
            join([
                world.start(ask("a", Gone)),
                world.start(owe_and_ask("b", "c", Gone)),
                world.start(owe_and_ask("d", "e", Patient)),
                world.start(World::flush_scripts),
                world.start(take_and_leave),
                world.start_reaper(),
            ]);
            assert!(world.connection.unsent() == 0, "nothing is left in line");
        });
    }
}

/// Takes a lock and leaves before the answer; then frees it.
fn take_and_leave(world: &World) {
    let locking = Locking::new();
    let (request, slot) = Request::awaited(locking.take());
    world.connection.queue(request);
    let _ = Gone.wait(&world.connection, &slot);
    while world.call(locking.free()).is_err() {}
    assert!(!world.server.is_locked(), "the release stands behind the acquire");
}

#[test]
fn what_breaks_is_sent_again_once_and_said_to_be_doubtful() {
    for mishap in [
        Mishap::Broken { ran: 0, answered: 0 },
        Mishap::Broken { ran: 2, answered: 1 },
        Mishap::Unreachable,
    ] {
        check(move || {
            let world = World::new(1);
            let submit = |world: &World| {
                let creditor = world.submit("a");
                ask("b", Patient)(world);
                let outcome = creditor.0.lock().clone().expect("settled before what came after");
                let outcome = outcome.map_err(Failure::sent);
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
fn a_question_stays_behind_the_release_before_it() {
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
                Plain.read_acquire(granted.reply).expect("a number"),
                AcquireReply::Granted(0)
            );
            let next = move |world: &World| {
                world.owe_call(first.free());
                if let Ok(answer) = world.call(second.take()) {
                    let verdict = Plain.read_acquire(answer.reply).expect("a number");
                    assert_eq!(verdict, AcquireReply::Granted(0), "the release came too late");
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
fn what_must_not_run_twice_does_not() {
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
                world.start(|world| drop(world.submit("owed"))),
                world.start_reaper(),
                world.start(take_and_free),
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
            threads: 1,
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
}

impl World {
    /// Takes a lock that nobody else wants and frees it again.
    fn lock_alone(&self, name: &'static str) {
        let locking = Locking::of(name);
        let taken = self.call(locking.take()).expect("sent again if it breaks");
        assert_eq!(Plain.read_acquire(taken.reply).expect("a number"), AcquireReply::Granted(0));
        let freed = self.call(locking.free()).expect("sent again if it breaks");
        let left = freed.reply == Reply::Int(0) || freed.maybe_duplicate;
        assert!(left, "it had nothing to free: {freed:?}");
    }
}

/// Takes the lock and frees it again, whatever is known of it, until the server says
/// that it has.
fn take_and_free(world: &World) {
    let locking = Locking::new();
    let _ = world.call(locking.take());
    while world.call(locking.free()).is_err() {}
}

#[test]
fn what_fell_silent_does_not_run_after_its_clean_up() {
    check(|| {
        let world = World::new(0);
        join([
            world.start(take_and_free),
            world.start(ask("a", Patient)),
            world.start(|world| world.server.plan(Mishap::Silent)),
            world.start(|world| world.server.run_ghosts()),
        ]);
        world.server.run_ghosts();
        assert!(!world.server.is_locked(), "a late copy has taken the lock");
    });
}

#[test]
fn scripts_that_the_server_forgets_are_loaded_again() {
    check(|| {
        let world = World::new(0);
        join([
            world.start(take_and_free),
            world.start(take_and_free),
            world.start(|world| (0..2).for_each(|_| world.flush_scripts())),
        ]);
        assert!(!world.server.is_locked());
    });
}

/// What is joined is answered each for itself, whatever becomes of the others.
#[test]
fn calls_that_are_joined_get_their_own_answers() {
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
                    assert!(world.call(spoiled.take()).is_err(), "it is no lock");
                    assert!(world.call(spoiled.free()).is_err(), "it is no lock");
                }),
                world.start(meddle),
            ]);
            assert!(!world.server.is_locked());
        });
    }
}
