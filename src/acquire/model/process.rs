//! A model of one lock and the threads of one process that want it.
//!
//! The server is one key and two connections. A thread runs the queued commands of a connection in
//! an attempt, in an unlock, and at the end of the model, which stands for the latest possible
//! reader of replies. Only the code under test unparks threads, so a lost wake-up is a deadlock.
//!
//! In every schedule:
//! * No two holds are valid at the same time.
//! * A lost hold stays lost, and each loss is reported once.
//! * Every call that is not cancelled gets the lock.
//! * An attempt while no thread of the process holds the lock follows the last release on the same
//!   connection.
//! * In the end the queue is empty, no hold is left, no release is open, and the key is free.
//!
//! Faults that this model has caught:
//! * The head of the queue leaves, or a release is queued, and the next in the queue is not woken.
//! * A grant of the server does not end the former hold of this process.
//! * A call that gives up does not look for a hold that was handed off to it.
//! * A hold that is over is handed off.
//! * The head of the queue does not send its command behind an open release.
//! * A poll makes an attempt while a thread of this process holds the lock. The attempt is refused,
//!   and no attempt follows the release of that hold.

use super::wait_loop::{Attempt, AttemptOutcome, CallFailed, CallOptions, Environment, acquire};
use crate::cancel::CancelToken;
use crate::command::name::Name;
use crate::command::owner::{HoldId, ThreadId};
use crate::events::{EventSink, EventsJob};
use crate::local::hold::{HandoffBounds, Hold, TimerTask};
use crate::local::table::HoldShare;
use crate::local::{EndOutcome, Local};
use crate::transport::call::ConnectionId;
use crate::transport::listener::channels::{Channel, Channels, ListenerSession, SubscriptionState};
use crate::util::clock::Moment;
use crate::util::model::check;
use crate::util::sync::{AtomicU64, Mutex};
use crossbeam_channel::Receiver;
use shuttle::thread::{self, JoinHandle};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time at the start, and after a jump past all deadlines.
const BEFORE: Moment = Moment::from_nanos(1_000_000_000);
const AFTER: Moment = Moment::from_nanos(100_000_000_000);

/// The lease at the server.
const SERVER_LEASE: Duration = Duration::from_secs(10);

const HANDOFFS: HandoffBounds =
    HandoffBounds { max_handoffs: 2, max_time: Duration::MAX, min_remaining: Duration::ZERO };
const NO_HANDOFFS: HandoffBounds =
    HandoffBounds { max_handoffs: 0, max_time: Duration::ZERO, min_remaining: Duration::ZERO };

struct World {
    local: Local,
    events: Receiver<EventsJob>,
    channel: Arc<Channel>,
    server: Mutex<Server>,
    /// Whether something has happened that ends holds.
    may_lose: AtomicBool,
    clock: AtomicU64,
    polls: AtomicU64,
    /// All holds that the process has taken from the server.
    granted: Mutex<Vec<Arc<Hold>>>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Calls that got the lock.
    acquired: usize,
    /// Queued releases.
    queued: usize,
    /// Releases whose reply was "not held".
    too_late: usize,
    /// The losses that came before the call told of its acquisition.
    lost_early: usize,
}

/// The key of the lock, and the commands on their way to it.
#[derive(Debug, Default)]
struct Server {
    /// The hold that has the lock, and the end of its lease.
    owner: Option<(HoldId, Moment)>,
    connections: [VecDeque<Command>; 2],
    next_connection: usize,
    replies: Vec<(HoldId, bool)>,
    released: Vec<HoldId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Acquire(HoldId),
    Release(HoldId),
    /// The release of a hold that the server may never grant.
    CleanUp(HoldId),
}

/// The effect of a command.
enum Effect {
    Acquired,
    Released { hold: HoldId, freed: bool },
    CleanedUp { freed: bool },
}

impl Server {
    fn queue(&mut self, command: Command, connection: Option<ConnectionId>) -> ConnectionId {
        let ConnectionId { connection, .. } =
            connection.unwrap_or(ConnectionId::at(0, self.next_connection));
        self.next_connection = (self.next_connection + 1) % self.connections.len();
        self.connections[connection].push_back(command);
        ConnectionId::at(0, connection)
    }

    /// Checks that no attempt overtakes the release of the present holder.
    fn check_order(&self, attempt: ConnectionId) {
        let Some((owner, _)) = self.owner else { return };
        let release = Command::Release(owner);
        let is_overtaken = |(connection, queue): (usize, &VecDeque<_>)| {
            connection != attempt.connection && queue.contains(&release)
        };
        assert!(
            !self.connections.iter().enumerate().any(is_overtaken),
            "an attempt overtakes a release"
        );
    }

    fn run(&mut self, connection: ConnectionId, now: Moment) -> Option<Effect> {
        let command = self.connections[connection.connection].pop_front()?;
        self.owner = self.owner.take_if(|(_, until)| now < *until);
        Some(match command {
            Command::Acquire(hold) => {
                let free = self.owner.is_none_or(|(owner, _)| owner == hold);
                if free {
                    self.owner = Some((hold, now + SERVER_LEASE));
                }
                self.replies.push((hold, free));
                Effect::Acquired
            }
            Command::Release(hold) => {
                assert!(!self.released.contains(&hold), "a hold is released once");
                self.released.push(hold);
                Effect::Released { hold, freed: self.free(hold) }
            }
            Command::CleanUp(hold) => Effect::CleanedUp { freed: self.free(hold) },
        })
    }

    fn free(&mut self, hold: HoldId) -> bool {
        self.owner.take_if(|(owner, _)| *owner == hold).is_some()
    }

    fn take_reply(&mut self, hold: HoldId) -> Option<bool> {
        let at = self.replies.iter().position(|(attempt, _)| *attempt == hold)?;
        Some(self.replies.swap_remove(at).1)
    }
}

impl World {
    fn new(bounds: HandoffBounds) -> Arc<World> {
        let (sink, events) = EventSink::recorded();
        let name = Name::new("", "model".into()).expect("a good name");
        let channel = Channels::default().channel(name.channel());
        channel.set_subscription(SubscriptionState::Subscribed);
        Arc::new(World {
            local: Local::new(name, sink, bounds),
            events,
            channel,
            server: Mutex::default(),
            may_lose: AtomicBool::new(false),
            clock: AtomicU64::new(BEFORE.nanos()),
            polls: AtomicU64::new(0),
            granted: Mutex::default(),
            counts: Mutex::default(),
        })
    }

    /// Runs the next command of a connection; returns `false` if there is none.
    fn run_next(&self, connection: ConnectionId) -> bool {
        let now = self.now();
        let effect = self.server.lock().run(connection, now);
        match effect {
            None => return false,
            Some(Effect::Acquired) => {}
            Some(Effect::Released { hold, freed }) => self.released(hold, freed),
            Some(Effect::CleanedUp { freed }) => self.announce(freed),
        }
        true
    }

    fn released(&self, hold: HoldId, freed: bool) {
        self.announce(freed);
        let hold = self.granted.lock().iter().find(|granted| granted.id() == hold).cloned();
        let hold = hold.expect("only granted holds are released");
        self.local.release_settled(&hold);
        if !freed {
            self.counts.lock().too_late += 1;
            hold.lose_released();
            self.local.report_lost([&*hold]);
        }
    }

    fn announce(&self, freed: bool) {
        if freed {
            self.channel.notify();
        }
    }

    fn run_all(&self, connection: ConnectionId) {
        while self.run_next(connection) {}
    }

    /// Ends a share of a hold; returns the connection of its release, if any.
    fn end_share(&self, hold: &Arc<Hold>, share: HoldShare) -> Option<ConnectionId> {
        let mut connection = None;
        let ended = self.local.end(
            hold,
            share,
            || self.now(),
            || {
                let queued = self.server.lock().queue(Command::Release(hold.id()), None);
                *connection.insert(queued)
            },
        );
        let queued = ended == EndOutcome::Queued;
        assert_eq!(queued, connection.is_some());
        self.counts.lock().queued += usize::from(queued);
        connection
    }

    /// Checks the exclusion while a call has the lock.
    fn work(&self, mine: &Arc<Hold>) {
        for other in self.granted.lock().clone() {
            let both = !Arc::ptr_eq(&other, mine) && self.is_valid(&other) && self.is_valid(mine);
            assert!(!both, "two holds are valid at one time");
        }
        let valid = self.is_valid(mine);
        assert!(valid || self.may_lose.load(Ordering::Acquire), "no event has ended the hold");
        assert!(valid || !self.is_valid(mine), "a lost hold stays lost");
    }

    fn is_valid(&self, hold: &Hold) -> bool {
        self.local.is_valid(hold, self.now())
    }

    /// Deletes the key; returns the hold that had the lock.
    fn delete_key(&self) -> Option<Arc<Hold>> {
        self.may_lose.store(true, Ordering::Release);
        let owner = self.server.lock().owner.take();
        let granted = self.granted.lock();
        let (owner, _) = owner?;
        granted.iter().find(|hold| hold.id() == owner).map(Arc::clone)
    }

    /// Polls for the calls in the queue, as the watchdog does.
    fn poll_by_watchdog(&self) {
        let free = self.server.lock().owner.is_none();
        if free && self.local.keep_polling() {
            self.local.may_be_free();
        }
    }

    /// Makes a poll by the head of the queue due.
    fn poll_by_head(&self) {
        self.polls.fetch_add(1, Ordering::AcqRel);
        self.local.wake_queue_head();
    }

    /// Moves the clock past all deadlines; the watchdog notices one hold after the other.
    fn jump(&self) {
        self.may_lose.store(true, Ordering::Release);
        self.clock.store(AFTER.nanos(), Ordering::Release);
        for hold in self.granted.lock().clone() {
            self.fire_timer(&hold);
        }
    }

    /// Does what the watchdog does when the timer of a hold fires.
    fn fire_timer(&self, hold: &Hold) {
        if let TimerTask::Over { newly_lost } = hold.timer_fired(self.now()) {
            self.local.report_lost(newly_lost.then_some(hold));
        }
    }

    /// Runs all queued commands, and checks that nothing is left.
    fn check_rest(&self) {
        (0..2).for_each(|connection| self.run_all(ConnectionId::at(0, connection)));
        self.local.assert_at_rest();
        let owner = self.server.lock().owner;
        assert!(owner.is_none_or(|(_, until)| until <= self.now()), "the key is free: {owner:?}");
        let counts = self.counts.lock();
        let lost = self.granted.lock().len() - counts.queued + counts.too_late;
        let told = self.events.len() + counts.lost_early;
        assert_eq!(told, lost, "each loss is reported once");
    }
}

impl Environment for World {
    fn local(&self) -> &Local {
        &self.local
    }

    fn known_channel(&self) -> Option<&Arc<Channel>> {
        Some(&self.channel)
    }

    fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    fn session(&self) -> Option<ListenerSession> {
        None
    }

    fn now(&self) -> Moment {
        Moment::from_nanos(self.clock.load(Ordering::Acquire))
    }

    fn polls(&self) -> u64 {
        self.polls.load(Ordering::Acquire)
    }

    fn attempt(&self, hold: HoldId, attempt: Attempt) -> AttemptOutcome {
        let mut server = self.server.lock();
        let connection = server.queue(Command::Acquire(hold), attempt.connection);
        if attempt.free_here {
            server.check_order(connection);
        }
        drop(server);
        if attempt.reply_lost {
            return AttemptOutcome::Unanswered(connection);
        }
        loop {
            match self.server.lock().take_reply(hold) {
                Some(true) => return AttemptOutcome::Granted(connection),
                Some(false) => return AttemptOutcome::Refused,
                None => {}
            }
            self.run_next(connection);
        }
    }

    fn clean_up(&self, hold: HoldId, connection: ConnectionId) {
        self.server.lock().queue(Command::CleanUp(hold), Some(connection));
        self.run_all(connection);
    }

    fn keep(&self, hold: &Arc<Hold>) {
        self.granted.lock().push(Arc::clone(hold));
        // The calls of the model tell no acquisition. So an event is that of a loss.
        self.counts.lock().lost_early += usize::from(hold.tell_acquired(|_| ()).lost);
        self.fire_timer(hold);
    }

    fn end(&self, hold: &Arc<Hold>) {
        self.end_share(hold, HoldShare::Guard);
    }
}

/// A thread that takes the lock.
#[derive(Clone, Debug)]
struct Worker {
    options: CallOptions,
    visits: usize,
    /// Whether it locks again while it has the lock.
    re_enters: bool,
    /// Whether it runs its releases at once.
    unlocks: bool,
}

impl Default for Worker {
    fn default() -> Worker {
        Worker { options: CallOptions::default(), visits: 1, re_enters: false, unlocks: false }
    }
}

impl Worker {
    fn visit(&self, world: &World) {
        let Ok(Some(hold)) = acquire(world, &self.options) else { return };
        world.counts.lock().acquired += 1;
        world.work(&hold);
        if self.re_enters {
            self.re_enter(world, &hold);
        }
        self.leave(world, &hold);
    }

    fn re_enter(&self, world: &World, hold: &Arc<Hold>) {
        match acquire(world, &self.options) {
            Ok(again) => {
                let again = again.expect("a thread that holds the lock gets it again");
                assert!(Arc::ptr_eq(hold, &again));
                self.leave(world, &again);
            }
            Err(CallFailed) => {
                assert!(!world.is_valid(hold), "only a lost lock refuses its thread");
            }
        }
    }

    fn leave(&self, world: &World, hold: &Arc<Hold>) {
        let connection = world.end_share(hold, HoldShare::Guard);
        if let (true, Some(connection)) = (self.unlocks, connection) {
            world.run_all(connection);
        }
    }

    fn start(self, world: &Arc<World>) -> JoinHandle<()> {
        let world = Arc::clone(world);
        thread::spawn(move || (0..self.visits).for_each(|_| self.visit(&world)))
    }
}

fn in_thread(world: &Arc<World>, act: impl FnOnce(&World) + Send + 'static) -> JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || act(&world))
}

/// Runs all workers beside `mishap`; returns how many calls got the lock.
fn run(
    bounds: HandoffBounds,
    workers: impl IntoIterator<Item = Worker>,
    mishap: impl FnOnce(&World) + Send + 'static,
) -> usize {
    let world = World::new(bounds);
    let mut threads: Vec<_> = workers.into_iter().map(|worker| worker.start(&world)).collect();
    threads.push(in_thread(&world, mishap));
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
    world.check_rest();
    world.counts.lock().acquired
}

fn no_mishap(_: &World) {}

fn worker() -> Worker {
    Worker::default()
}

fn worker_with(cancel: &CancelToken) -> Worker {
    let cancel = Some(cancel.clone());
    Worker { options: CallOptions { cancel, ..CallOptions::default() }, ..worker() }
}

fn impatient(end: &CancelToken) -> Worker {
    let patience = Some(end.clone());
    Worker { options: CallOptions { patience, ..CallOptions::default() }, ..worker() }
}

/// Returns workers that unlock, take the lock twice, re-enter, or own their guards.
fn workers() -> [Worker; 3] {
    [
        Worker { visits: 2, ..worker() },
        Worker { unlocks: true, re_enters: true, ..worker() },
        Worker { options: CallOptions { owned: true, ..CallOptions::default() }, ..worker() },
    ]
}

#[test]
fn all_calls_get_the_lock_in_turn() {
    check(|| assert_eq!(run(NO_HANDOFFS, workers(), no_mishap), 4));
}

#[test]
fn all_calls_get_the_lock_with_hand_offs() {
    check(|| assert_eq!(run(HANDOFFS, workers(), no_mishap), 4));
}

#[test]
fn all_calls_get_the_lock_beside_fixed_leases() {
    let fixed = || CallOptions { renewed: false, ..CallOptions::default() };
    check(move || {
        let workers = [worker(), Worker { options: fixed(), visits: 2, ..worker() }, worker()];
        assert_eq!(run(HANDOFFS, workers, no_mishap), 4);
    });
}

#[test]
fn a_call_that_does_not_wait_does_not_disturb_waiting_calls() {
    let at_once = || CallOptions { waits: false, ..CallOptions::default() };
    check(move || {
        let at_once = Worker { options: at_once(), visits: 2, ..worker() };
        assert!(run(HANDOFFS, [at_once, worker(), worker()], no_mishap) >= 2);
    });
}

#[test]
fn a_call_that_gives_up_keeps_no_hold() {
    for bounds in [HANDOFFS, NO_HANDOFFS] {
        check(move || {
            let (one, other) = (CancelToken::new(), CancelToken::new());
            let workers = [worker(), worker_with(&one), worker(), impatient(&other)];
            let cancel = move |_: &World| [one, other].iter().for_each(CancelToken::cancel);
            assert!(run(bounds, workers, cancel) >= 2);
        });
    }
}

#[test]
fn an_attempt_without_a_reply_is_cleaned_up() {
    let reply_lost = || CallOptions { reply_lost: true, ..CallOptions::default() };
    check(move || {
        let reply_lost = Worker { options: reply_lost(), ..worker() };
        assert!(run(HANDOFFS, [worker(), reply_lost, worker()], no_mishap) >= 2);
    });
}

#[test]
fn a_hold_past_its_deadline_is_lost() {
    for bounds in [HANDOFFS, NO_HANDOFFS] {
        check(move || {
            run(bounds, workers(), World::jump);
        });
    }
}

#[test]
fn a_loss_is_reported_although_the_call_that_finds_it_gives_up() {
    check(|| {
        let (one, other) = (CancelToken::new(), CancelToken::new());
        let workers = [worker(), impatient(&one), impatient(&other)];
        run(HANDOFFS, workers, move |world| {
            one.cancel();
            other.cancel();
            world.jump();
        });
    });
}

#[test]
fn a_hold_that_the_server_does_not_have_is_lost() {
    let renew = |world: &World| {
        if let Some(hold) = world.delete_key() {
            world.local.lose(&hold);
        }
    };
    for bounds in [HANDOFFS, NO_HANDOFFS] {
        check(move || assert_eq!(run(bounds, workers(), renew), 4));
    }
}

#[test]
fn a_forced_unlock_ends_only_the_present_hold() {
    let force = |world: &World| {
        let holds = world.local.holds();
        world.delete_key();
        world.announce(true);
        holds.iter().for_each(|hold| world.local.lose(hold));
    };
    for bounds in [HANDOFFS, NO_HANDOFFS] {
        check(move || assert_eq!(run(bounds, workers(), force), 4));
    }
}

#[test]
fn a_poll_finds_a_free_lock_that_this_process_holds() {
    for (bounds, poll) in [
        (HANDOFFS, World::poll_by_head as fn(&World)),
        (NO_HANDOFFS, World::poll_by_head),
        (HANDOFFS, World::poll_by_watchdog),
        (NO_HANDOFFS, World::poll_by_watchdog),
    ] {
        check(move || {
            let delete = move |world: &World| {
                poll(world);
                world.delete_key();
                poll(world);
            };
            assert_eq!(run(bounds, workers(), delete), 4);
        });
    }
}

#[test]
fn all_mishaps_at_once() {
    check(|| {
        let (one, other) = (CancelToken::new(), CancelToken::new());
        let workers = [worker(), worker_with(&one), worker(), impatient(&other)];
        run(HANDOFFS, workers, move |world| {
            world.delete_key();
            world.poll_by_head();
            world.poll_by_watchdog();
            one.cancel();
            other.cancel();
            world.jump();
        });
    });
}

/// Takes the lock, detaches the guard, and ends the thread.
fn detach(world: &World) {
    let hold = acquire(world, &CallOptions::default()).expect("no call is cancelled");
    world.local.detach(&hold.expect("the call waits"));
}

/// Does what `Lock::unlock` does.
fn unlock(world: &World) {
    let detached = world.local.detached(|_| true, ThreadId::current(), world.now());
    if let Some((hold, share)) = detached {
        world.end_share(&hold, share);
    }
}

#[test]
fn a_detached_hold_of_an_ended_thread_is_released_once() {
    for bounds in [HANDOFFS, NO_HANDOFFS] {
        check(move || {
            let world = World::new(bounds);
            in_thread(&world, detach).join().expect("no thread of a model panics");
            let mut threads = vec![worker().start(&world), worker().start(&world)];
            threads.extend([in_thread(&world, unlock), in_thread(&world, unlock)]);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            world.check_rest();
            assert_eq!(world.events.len(), 0);
        });
    }
}
