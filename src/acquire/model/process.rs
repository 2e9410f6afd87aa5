//! A model of one lock and the threads of one process that want it.
//!
//! The server is one key and two lines of commands; a command that is queued runs
//! when somebody has it run: who asks, who unlocks, and the end of the model, which
//! stands for a reaper that comes as late as it can. Nothing here rings a mailbox
//! but the code under test, so a wake-up that it loses is a deadlock.
//!
//! What must be so in every schedule:
//! * of all holds that were ever given out, no two are valid at one time;
//! * what is lost stays lost, and each loss is told once;
//! * everybody gets in who was not cancelled;
//! * a question that is asked when nobody here holds the lock stands behind the last
//!   release;
//! * in the end nobody is in line, nobody holds, nothing is owed, and the key is free.
//!
//! Faults that it was seen to catch:
//! * the front leaves, or a release is queued, and nobody rings the next in line;
//! * a lock that the server grants does not end the hold that was here before;
//! * who gives up does not look for a hold that was passed to it;
//! * a hold that is over is passed on;
//! * the front does not ask behind the release that is still owed;
//! * who asks because of a poll beside a holder of this process, and is refused, does not
//!   ask again when that lets go.

use super::visitor::{Answered, Left, Manners, Question, Surroundings, acquire};
use crate::cancel::CancelToken;
use crate::command::call::ConnectionId;
use crate::command::name::Name;
use crate::command::owner::{HoldId, ThreadId};
use crate::error::LostReason;
use crate::events::{Event, EventSink};
use crate::listener::channels::{Channel, ListenerSession, SubscriptionState, Waiters};
use crate::local::hold::{HandoffBounds, Hold, Renewal};
use crate::local::table::HoldShare;
use crate::local::{EndOutcome, Local};
use crate::util::clock::Moment;
use crate::util::model::check;
use crate::util::sync::{AtomicU64, Mutex};
use crossbeam_channel::Receiver;
use shuttle::thread::{self, JoinHandle};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the clock says at first, and after it has jumped past all deadlines.
const BEFORE: Moment = Moment::from_nanos(1_000_000_000);
const AFTER: Moment = Moment::from_nanos(100_000_000_000);

/// How long the server keeps a lock.
const SERVERS_LEASE: Duration = Duration::from_secs(10);

const PASSES: HandoffBounds =
    HandoffBounds { max_handoffs: 2, max_time: Duration::MAX, min_remaining: Duration::ZERO };
const NO_PASSES: HandoffBounds =
    HandoffBounds { max_handoffs: 0, max_time: Duration::ZERO, min_remaining: Duration::ZERO };

struct World {
    local: Local,
    told: Receiver<Event>,
    channel: Arc<Channel>,
    server: Mutex<Server>,
    /// Something has happened that ends holds.
    has_lost: AtomicBool,
    clock: AtomicU64,
    polls: AtomicU64,
    /// All holds that the server has granted and the process has taken.
    given: Mutex<Vec<Arc<Hold>>>,
    tally: Mutex<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    /// Visits that ended with the lock.
    got_in: usize,
    /// Releases that were queued.
    queued: usize,
    /// Releases that came too late: the server said that the lock was not held.
    too_late: usize,
}

/// The key of the lock, and what is on its way to it.
#[derive(Debug, Default)]
struct Server {
    /// Who holds the lock, and until when.
    owner: Option<(HoldId, Moment)>,
    connections: [VecDeque<Command>; 2],
    next_lane: usize,
    answers: Vec<(HoldId, bool)>,
    released: Vec<HoldId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Ask(HoldId),
    Release(HoldId),
    /// The release of a hold that may never have been.
    CleanUp(HoldId),
}

/// What a command came to that has to be told.
enum Ran {
    Answered,
    Released { hold: HoldId, freed: bool },
    CleanedUp { freed: bool },
}

impl Server {
    fn queue(&mut self, command: Command, connection: Option<ConnectionId>) -> ConnectionId {
        let ConnectionId { connection, .. } =
            connection.unwrap_or(ConnectionId::at(0, self.next_lane));
        self.next_lane = (self.next_lane + 1) % self.connections.len();
        self.connections[connection].push_back(command);
        ConnectionId::at(0, connection)
    }

    /// Nobody may be sent to ask past the release of the one who holds the lock.
    fn check_order(&self, asked: ConnectionId) {
        let Some((owner, _)) = self.owner else { return };
        let release = Command::Release(owner);
        let passed = |(connection, queue): (usize, &VecDeque<_>)| {
            connection != asked.connection && queue.contains(&release)
        };
        assert!(!self.connections.iter().enumerate().any(passed), "a question overtakes a release");
    }

    fn run(&mut self, connection: ConnectionId, now: Moment) -> Option<Ran> {
        let command = self.connections[connection.connection].pop_front()?;
        self.owner = self.owner.take_if(|(_, until)| now < *until);
        Some(match command {
            Command::Ask(hold) => {
                let free = self.owner.is_none_or(|(owner, _)| owner == hold);
                if free {
                    self.owner = Some((hold, now + SERVERS_LEASE));
                }
                self.answers.push((hold, free));
                Ran::Answered
            }
            Command::Release(hold) => {
                assert!(!self.released.contains(&hold), "a hold is released once");
                self.released.push(hold);
                Ran::Released { hold, freed: self.free(hold) }
            }
            Command::CleanUp(hold) => Ran::CleanedUp { freed: self.free(hold) },
        })
    }

    fn free(&mut self, hold: HoldId) -> bool {
        self.owner.take_if(|(owner, _)| *owner == hold).is_some()
    }

    fn answer(&mut self, hold: HoldId) -> Option<bool> {
        let at = self.answers.iter().position(|(asked, _)| *asked == hold)?;
        Some(self.answers.swap_remove(at).1)
    }
}

impl World {
    fn new(bounds: HandoffBounds) -> Arc<World> {
        let (events, told) = EventSink::new();
        let name = Name::new("", "model".into()).expect("a good name");
        let channel = Waiters::default().channel(name.channel());
        channel.set_hearing(SubscriptionState::Everything);
        Arc::new(World {
            local: Local::new(name, events, bounds),
            told,
            channel,
            server: Mutex::default(),
            has_lost: AtomicBool::new(false),
            clock: AtomicU64::new(BEFORE.nanos()),
            polls: AtomicU64::new(0),
            given: Mutex::default(),
            tally: Mutex::default(),
        })
    }

    /// Has the next command of a line run; `false` if there was none.
    fn run_next(&self, connection: ConnectionId) -> bool {
        let now = self.now();
        let ran = self.server.lock().run(connection, now);
        match ran {
            None => return false,
            Some(Ran::Answered) => {}
            Some(Ran::Released { hold, freed }) => self.released(hold, freed),
            Some(Ran::CleanedUp { freed }) => self.announce(freed),
        }
        true
    }

    fn released(&self, hold: HoldId, freed: bool) {
        self.announce(freed);
        let lease = self.given.lock().iter().find(|lease| lease.id() == hold).cloned();
        let lease = lease.expect("only what was given is released");
        self.local.release_settled(&lease);
        if !freed {
            self.tally.lock().too_late += 1;
            self.local.report_lost([&*lease], LostReason::Gone);
        }
    }

    fn announce(&self, freed: bool) {
        if freed {
            self.channel.message();
        }
    }

    fn run_all(&self, connection: ConnectionId) {
        while self.run_next(connection) {}
    }

    /// Ends a guard; tells on which line its release stands, if there is one.
    fn end_guard(&self, lease: &Arc<Hold>, counted: HoldShare) -> Option<ConnectionId> {
        let mut connection = None;
        let ended = self.local.end(
            lease,
            counted,
            || self.now(),
            || {
                let queued = self.server.lock().queue(Command::Release(lease.id()), None);
                *connection.insert(queued)
            },
        );
        let queued = ended == EndOutcome::Queued;
        assert_eq!(queued, connection.is_some());
        self.tally.lock().queued += usize::from(queued);
        connection
    }

    /// What is done with the lock: it is looked after.
    fn work(&self, mine: &Arc<Hold>) {
        for other in self.given.lock().clone() {
            let both = !Arc::ptr_eq(&other, mine) && self.is_valid(&other) && self.is_valid(mine);
            assert!(!both, "two holds are valid at one time");
        }
        let valid = self.is_valid(mine);
        assert!(valid || self.has_lost.load(Ordering::Acquire), "nothing may have ended it");
        assert!(valid || !self.is_valid(mine), "lost is final");
    }

    fn is_valid(&self, lease: &Hold) -> bool {
        self.local.is_valid(lease, self.now())
    }

    /// The server forgets the lock, as if somebody had deleted the key. Whose it was.
    fn delete_key(&self) -> Option<Arc<Hold>> {
        self.has_lost.store(true, Ordering::Release);
        let owner = self.server.lock().owner.take();
        let given = self.given.lock();
        let (owner, _) = owner?;
        given.iter().find(|lease| lease.id() == owner).map(Arc::clone)
    }

    /// The watchdog has polled for those who are in line.
    fn look_for_free(&self) {
        let free = self.server.lock().owner.is_none();
        if free && self.local.keep_polling() {
            self.local.may_be_free();
        }
    }

    /// The front asks unaided.
    fn poll(&self) {
        self.polls.fetch_add(1, Ordering::AcqRel);
        self.local.ring();
    }

    /// The clock jumps past all deadlines; the watchdog notices by and by.
    fn jump(&self) {
        self.has_lost.store(true, Ordering::Release);
        self.clock.store(AFTER.nanos(), Ordering::Release);
        for lease in self.given.lock().clone() {
            self.watch_over(&lease);
        }
    }

    /// What the watchdog does when the timer of a hold fires.
    fn watch_over(&self, lease: &Hold) {
        if let Renewal::Over { newly_lost } = lease.renewal(self.now()) {
            self.local.report_lost(newly_lost.then_some(lease), LostReason::Expired);
        }
    }

    /// All is over: nothing may be left.
    fn check_rest(&self) {
        (0..2).for_each(|connection| self.run_all(ConnectionId::at(0, connection)));
        self.local.assert_at_rest();
        let owner = self.server.lock().owner;
        assert!(owner.is_none_or(|(_, until)| until <= self.now()), "the key is free: {owner:?}");
        let tally = self.tally.lock();
        let lost = self.given.lock().len() - tally.queued + tally.too_late;
        assert_eq!(self.told.len(), lost, "each loss is told once");
    }
}

impl Surroundings for World {
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

    fn ask(&self, hold: HoldId, question: Question) -> Answered {
        let mut server = self.server.lock();
        let connection = server.queue(Command::Ask(hold), question.connection);
        if question.free_here {
            server.check_order(connection);
        }
        drop(server);
        if question.unheard {
            return Answered::Nothing(connection);
        }
        loop {
            match self.server.lock().answer(hold) {
                Some(true) => return Answered::Granted(connection),
                Some(false) => return Answered::Refused,
                None => {}
            }
            self.run_next(connection);
        }
    }

    fn clean_up(&self, hold: HoldId, connection: ConnectionId) {
        self.server.lock().queue(Command::CleanUp(hold), Some(connection));
        self.run_all(connection);
    }

    fn keep(&self, lease: &Arc<Hold>) {
        self.given.lock().push(Arc::clone(lease));
        self.watch_over(lease);
    }

    fn end(&self, lease: &Arc<Hold>) {
        self.end_guard(lease, HoldShare::Guard);
    }
}

/// A thread that wants the lock.
#[derive(Clone, Debug)]
struct Guest {
    manners: Manners,
    visits: usize,
    /// Whether it locks again while it has the lock.
    again: bool,
    /// Whether it waits for its releases to have run.
    unlocks: bool,
}

impl Default for Guest {
    fn default() -> Guest {
        Guest { manners: Manners::default(), visits: 1, again: false, unlocks: false }
    }
}

impl Guest {
    fn visit(&self, world: &World) {
        let Ok(Some(lease)) = acquire(world, &self.manners) else { return };
        world.tally.lock().got_in += 1;
        world.work(&lease);
        if self.again {
            self.visit_again(world, &lease);
        }
        self.go(world, &lease);
    }

    fn visit_again(&self, world: &World, lease: &Arc<Hold>) {
        match acquire(world, &self.manners) {
            Ok(again) => {
                let again = again.expect("a caller that holds the lock gets in");
                assert!(Arc::ptr_eq(lease, &again));
                self.go(world, &again);
            }
            Err(Left) => assert!(!world.is_valid(lease), "only a lost lock is not entered again"),
        }
    }

    fn go(&self, world: &World, lease: &Arc<Hold>) {
        let connection = world.end_guard(lease, HoldShare::Guard);
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

/// Runs all, and looks at what is left. How many visits ended with the lock.
fn run(
    bounds: HandoffBounds,
    guests: impl IntoIterator<Item = Guest>,
    mishap: impl FnOnce(&World) + Send + 'static,
) -> usize {
    let world = World::new(bounds);
    let mut threads: Vec<_> = guests.into_iter().map(|guest| guest.start(&world)).collect();
    threads.push(in_thread(&world, mishap));
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
    world.check_rest();
    world.tally.lock().got_in
}

fn nothing(_: &World) {}

fn guest() -> Guest {
    Guest::default()
}

fn guest_with(cancel: &CancelToken) -> Guest {
    let cancel = Some(cancel.clone());
    Guest { manners: Manners { cancel, ..Manners::default() }, ..guest() }
}

fn impatient(end: &CancelToken) -> Guest {
    let patience = Some(end.clone());
    Guest { manners: Manners { patience, ..Manners::default() }, ..guest() }
}

/// Guests of whom some unlock, some come twice, and some lock again inside.
fn guests() -> [Guest; 3] {
    [
        Guest { visits: 2, ..guest() },
        Guest { unlocks: true, again: true, ..guest() },
        Guest { manners: Manners { owned: true, ..Manners::default() }, ..guest() },
    ]
}

#[test]
fn all_get_in_one_after_the_other() {
    check(|| assert_eq!(run(NO_PASSES, guests(), nothing), 4));
}

#[test]
fn all_get_in_when_holds_are_passed_on() {
    check(|| assert_eq!(run(PASSES, guests(), nothing), 4));
}

#[test]
fn all_get_in_if_some_want_leases_that_are_not_passed_on() {
    let fixed = || Manners { renewed: false, ..Manners::default() };
    check(move || {
        let guests = [guest(), Guest { manners: fixed(), visits: 2, ..guest() }, guest()];
        assert_eq!(run(PASSES, guests, nothing), 4);
    });
}

#[test]
fn who_does_not_wait_does_not_disturb_those_who_do() {
    let hasty = || Manners { waits: false, ..Manners::default() };
    check(move || {
        let hasty = Guest { manners: hasty(), visits: 2, ..guest() };
        assert!(run(PASSES, [hasty, guest(), guest()], nothing) >= 2);
    });
}

#[test]
fn who_gives_up_takes_nothing_along() {
    for bounds in [PASSES, NO_PASSES] {
        check(move || {
            let (one, other) = (CancelToken::new(), CancelToken::new());
            let guests = [guest(), guest_with(&one), guest(), impatient(&other)];
            let cancel = move |_: &World| [one, other].iter().for_each(CancelToken::cancel);
            assert!(run(bounds, guests, cancel) >= 2);
        });
    }
}

#[test]
fn a_question_without_an_answer_is_cleaned_up() {
    let unheard = || Manners { unheard: true, ..Manners::default() };
    check(move || {
        let unheard = Guest { manners: unheard(), ..guest() };
        assert!(run(PASSES, [guest(), unheard, guest()], nothing) >= 2);
    });
}

#[test]
fn who_holds_past_the_deadline_has_lost() {
    for bounds in [PASSES, NO_PASSES] {
        check(move || {
            run(bounds, guests(), World::jump);
        });
    }
}

#[test]
fn a_loss_is_told_also_if_who_finds_it_gives_up() {
    check(|| {
        let (one, other) = (CancelToken::new(), CancelToken::new());
        let guests = [guest(), impatient(&one), impatient(&other)];
        run(PASSES, guests, move |world| {
            one.cancel();
            other.cancel();
            world.jump();
        });
    });
}

#[test]
fn what_the_server_says_is_not_ours_is_lost() {
    let renew = |world: &World| {
        if let Some(lease) = world.delete_key() {
            world.local.lose(&lease);
        }
    };
    for bounds in [PASSES, NO_PASSES] {
        check(move || assert_eq!(run(bounds, guests(), renew), 4));
    }
}

#[test]
fn a_lock_that_is_freed_by_force_is_lost_to_its_holder_alone() {
    let force = |world: &World| {
        let held = world.local.holds();
        world.delete_key();
        world.announce(true);
        held.iter().for_each(|lease| world.local.lose(lease));
    };
    for bounds in [PASSES, NO_PASSES] {
        check(move || assert_eq!(run(bounds, guests(), force), 4));
    }
}

#[test]
fn a_poll_finds_that_a_lock_held_here_is_free() {
    for (bounds, poll) in [
        (PASSES, World::poll as fn(&World)),
        (NO_PASSES, World::poll),
        (PASSES, World::look_for_free),
        (NO_PASSES, World::look_for_free),
    ] {
        check(move || {
            let delete = move |world: &World| {
                poll(world);
                world.delete_key();
                poll(world);
            };
            assert_eq!(run(bounds, guests(), delete), 4);
        });
    }
}

#[test]
fn all_mishaps_at_once() {
    check(|| {
        let (one, other) = (CancelToken::new(), CancelToken::new());
        let guests = [guest(), guest_with(&one), guest(), impatient(&other)];
        run(PASSES, guests, move |world| {
            world.delete_key();
            world.poll();
            world.look_for_free();
            one.cancel();
            other.cancel();
            world.jump();
        });
    });
}

/// Locks, detached holds the guard, and ends.
fn detach(world: &World) {
    let lease = acquire(world, &Manners::default()).expect("nobody cancels");
    world.local.detach(&lease.expect("it waits"));
}

/// What `Lock::unlock` does.
fn unlock(world: &World) {
    let detached = world.local.detached(|_| true, ThreadId::current(), world.now());
    if let Some((lease, counted)) = detached {
        world.end_guard(&lease, counted);
    }
}

#[test]
fn a_hold_that_was_left_behind_is_ended_by_one_and_once() {
    for bounds in [PASSES, NO_PASSES] {
        check(move || {
            let world = World::new(bounds);
            in_thread(&world, detach).join().expect("no thread of a model panics");
            let mut threads = vec![guest().start(&world), guest().start(&world)];
            threads.extend([in_thread(&world, unlock), in_thread(&world, unlock)]);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            world.check_rest();
            assert_eq!(world.told.len(), 0);
        });
    }
}
