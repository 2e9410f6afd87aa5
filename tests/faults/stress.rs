//! Many clients and threads at once: nothing is done twice, nobody is left behind, and
//! nothing stays on the server.
//!
//! `LEASEHOLD_STRESS=10` makes it ten times as much.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{Builder, CancelToken, Client, Error, Guard, Lock, OwnedGuard};
use redis::Connection;

use crate::harness::wait::holds_within;
use crate::harness::{Server, eventually};

fn factor() -> usize {
    std::env::var("LEASEHOLD_STRESS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// The two ways in which a lock goes from thread to thread of one process.
const HANDOFFS: [(u32, Duration); 2] = [(0, Duration::ZERO), (1000, Duration::from_millis(100))];

fn client(server: &Server, (passes, time): (u32, Duration)) -> Client {
    let builder = Client::builder().single(server.url()).local_handoff(passes, time);
    let client = patient(builder).build().expect("the server is there");
    // The first release of all is sent twice, since the server does not know its script.
    client.lock("first").lock().and_then(Guard::unlock).expect("nobody else has it");
    client
}

/// Two slow cores that are busy with other tests: nothing here is about time-outs.
fn patient(builder: Builder) -> Builder {
    let patience = Duration::from_secs(60);
    builder.response_timeout(patience).pool_timeout(patience).connect_timeout(patience)
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name).spawn(work).expect("a thread starts")
}

/// Blocks until all threads have ended, and ends with the panic of one that has
/// panicked. Fails if some never end; these are left to themselves.
#[track_caller]
fn finish(threads: Vec<JoinHandle<()>>) {
    let bound = Duration::from_secs(120) * u32::try_from(factor()).expect("a small factor");
    let unfinished = || threads.iter().filter(|thread| !thread.is_finished()).count();
    // A panic tells more than that others, which may wait for that thread, are stuck.
    let all_ended = holds_within(bound, || unfinished() == 0);
    let left = unfinished();
    for thread in threads {
        if thread.is_finished() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
    assert!(all_ended, "{left} threads never end");
}

/// Nobody holds, waits or listens: there is nothing left of any lock. What is not a
/// lock's is named.
#[track_caller]
fn assert_clean(server: &Server, clients: Vec<Client>, keys: &[&str]) {
    eventually("no lock is left", || server.keys() == keys);
    let of_a_lock = |channel: &String| channel.starts_with("redisson_lock__channel:");
    eventually("no lock is listened to", || !server.channels().iter().any(of_a_lock));
    clients.iter().for_each(Client::close);
    drop(clients);
    eventually("no channel is left", || server.channels().is_empty());
    eventually("no connection is left", || server.clients().is_empty());
    assert_eq!(server.keys(), keys);
}

/// What only one may enter at a time.
#[derive(Default)]
struct Room {
    inside: AtomicBool,
    entered: AtomicUsize,
}

impl Room {
    #[track_caller]
    fn enter(&self) {
        let occupied = self.inside.swap(true, Ordering::SeqCst);
        assert!(!occupied, "two are in at once");
        self.entered.fetch_add(1, Ordering::SeqCst);
        // Whoever should not be in gets a chance to be.
        thread::yield_now();
        let alone = self.inside.swap(false, Ordering::SeqCst);
        assert!(alone, "another has left meanwhile");
    }

    fn entered(&self) -> usize {
        self.entered.load(Ordering::SeqCst)
    }
}

/// A counter on the server that loses increments when two are at it.
struct Counter(Connection);

impl Counter {
    fn on(server: &Server) -> Counter {
        Counter(server.connection())
    }

    fn get(&mut self) -> usize {
        let count: Option<usize> =
            redis::cmd("GET").arg("counter").query(&mut self.0).expect("a number or nothing");
        count.unwrap_or(0)
    }

    fn increment(&mut self) {
        let next = self.get() + 1;
        redis::cmd("SET").arg("counter").arg(next).query::<()>(&mut self.0).expect("it is set");
    }
}

#[test]
fn sixteen_clients_lose_no_increment() {
    const CLIENTS: usize = 16;
    let increments = 100 * factor();
    let server = Server::start();
    let clients: Vec<Client> =
        (0..CLIENTS).map(|number| client(&server, HANDOFFS[number % 2])).collect();
    let work = clients.iter().map(|client| {
        let (lock, mut counter) = (client.lock("lock"), Counter::on(&server));
        start("incrementing".to_owned(), move || {
            for round in 0..increments {
                let guard = lock.lock().expect("got in the end");
                counter.increment();
                // Both ways to release.
                match round % 2 {
                    0 => guard.unlock().expect("still held"),
                    _ => drop(guard),
                }
            }
        })
    });
    finish(work.collect());
    assert_eq!(Counter::on(&server).get(), CLIENTS * increments);
    assert_clean(&server, clients, &["counter"]);
}

#[test]
fn two_hundred_threads_of_one_process_share_one_lock() {
    const THREADS: usize = 200;
    for handoff in HANDOFFS {
        let rounds = 3 * factor();
        let server = Server::start();
        let client = client(&server, handoff);
        let room = Arc::new(Room::default());
        let counter = Arc::new(Mutex::new(Counter::on(&server)));
        let work = (0..THREADS).map(|number| {
            let (lock, room) = (client.lock("lock"), Arc::clone(&room));
            let counter = Arc::clone(&counter);
            start(format!("sharing {number}"), move || {
                for round in 0..rounds {
                    let guard = lock.lock().expect("got in the end");
                    room.enter();
                    if round == 0 {
                        increment_in_two_steps(&counter);
                    }
                    drop(guard);
                }
            })
        });
        finish(work.collect());
        assert_eq!(room.entered(), THREADS * rounds, "{handoff:?}");
        assert_eq!(Counter::on(&server).get(), THREADS, "{handoff:?}");
        drop(counter);
        assert_clean(&server, vec![client], &["counter"]);
    }
}

/// The mutex is for the connection, and free between reading and writing: it is the
/// lock that has to keep others out.
fn increment_in_two_steps(counter: &Mutex<Counter>) {
    let counter = || counter.lock().unwrap_or_else(PoisonError::into_inner);
    let next = counter().get() + 1;
    thread::yield_now();
    let set = redis::cmd("SET").arg("counter").arg(next).query::<()>(&mut counter().0);
    set.expect("it is set");
}

#[test]
fn two_hundred_threads_of_one_process_have_a_lock_each() {
    const THREADS: usize = 200;
    for handoff in HANDOFFS {
        let rounds = 20 * factor();
        let server = Server::start();
        let client = client(&server, handoff);
        let done = Arc::new(AtomicUsize::new(0));
        let work = (0..THREADS).map(|number| {
            let (lock, done) = (client.lock(format!("lock {number}")), Arc::clone(&done));
            start(format!("alone {number}"), move || {
                for _ in 0..rounds {
                    // Nobody else wants it: it is free again at once, dropped or not.
                    let guard = lock.try_lock().expect("answered").expect("nobody else has it");
                    let nested = lock.lock().expect("no question");
                    assert_eq!(lock.hold_count(), 2);
                    drop(guard);
                    nested.check().expect("still held");
                    drop(nested);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        finish(work.collect());
        assert_eq!(done.load(Ordering::SeqCst), THREADS * rounds, "{handoff:?}");
        assert_clean(&server, vec![client], &[]);
    }
}

// ---------------------------------------------------------------------------------
// Everything at once.

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

/// Whether leases may run out and locks may be freed by force: then nobody can promise
/// that only one is in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manners {
    Good,
    Bad,
}

/// What a thread of the mix needs.
struct Player {
    lock: Lock,
    room: Arc<Room>,
    dice: Dice,
    manners: Manners,
    /// To the thread that ends guards of others.
    away: Sender<OwnedGuard>,
    /// To the thread that ends the waits of others.
    doomed: Sender<CancelToken>,
}

impl Player {
    /// One way to take the lock, or not, and to end it.
    fn play(&mut self) {
        match self.dice.below(9) {
            0 => self.use_it(|lock| lock.try_lock()),
            1 | 2 => {
                let short = self.dice.millis(20);
                self.use_it(|lock| unless_late(lock.try_lock_for(short)));
            }
            3 => self.wait_until_cancelled(),
            4 => {
                let lease = self.lease();
                self.use_it(|lock| lock.clone().with_lease(lease).lock().map(Some));
            }
            5 => self.send_away(),
            6 => self.detach_and_end(),
            7 if self.manners == Manners::Bad => {
                self.lock.force_unlock().expect("the server is there");
            }
            _ => self.use_it(|lock| lock.lock().map(Some)),
        }
    }

    /// A lease that is over at once, or one that is not over before the test.
    fn lease(&mut self) -> Duration {
        match self.manners {
            Manners::Good => Duration::from_secs(3600),
            Manners::Bad => Duration::from_millis(10) + self.dice.millis(10),
        }
    }

    fn use_it<'a>(&'a mut self, take: impl FnOnce(&'a Lock) -> Result<Option<Guard>, Error>) {
        let manners = self.manners;
        let Some(guard) = accept(manners, take(&self.lock)).flatten() else { return };
        self.enter(guard.is_held());
        if self.dice.below(3) == 0 {
            let nested = accept(manners, self.lock.lock());
            drop(nested);
        }
        match self.dice.below(2) {
            0 => drop(guard),
            _ => drop(accept(manners, guard.unlock())),
        }
    }

    /// Only the well-mannered can be sure to be alone.
    fn enter(&self, is_held: bool) {
        if self.manners == Manners::Good {
            assert!(is_held, "a lease of minutes is lost");
            self.room.enter();
        }
    }

    fn wait_until_cancelled(&mut self) {
        let token = CancelToken::new();
        self.doomed.send(token.clone()).expect("somebody ends waits");
        let lock = self.lock.clone().with_cancel(&token);
        match lock.lock() {
            Ok(guard) => drop(guard),
            Err(error) if error.is_cancelled() => {}
            Err(error) => drop(accept::<()>(self.manners, Err(error))),
        }
    }

    fn send_away(&mut self) {
        let patience = self.dice.millis(50);
        let outcome = unless_late(self.lock.try_lock_for_owned(patience));
        if let Some(guard) = accept(self.manners, outcome).flatten() {
            self.enter(guard.is_held());
            self.away.send(guard).expect("somebody ends guards");
        }
    }

    fn detach_and_end(&mut self) {
        let patience = self.dice.millis(50);
        let outcome = unless_late(self.lock.try_lock_for(patience));
        if let Some(guard) = accept(self.manners, outcome).flatten() {
            self.enter(guard.is_held());
            guard.detach();
            accept(self.manners, self.lock.unlock());
        }
    }
}

/// A busy machine may answer after the deadline of a call, which is an error then.
fn unless_late<T>(outcome: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if error.is_timeout() => Ok(None),
        outcome => outcome,
    }
}

/// Who has bad manners may lose a lease; nothing else goes wrong here.
#[track_caller]
fn accept<T>(manners: Manners, outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if manners == Manners::Bad && error.is_lost() => None,
        Err(error) => panic!("{manners:?} manners: {error:?}"),
    }
}

fn mix(manners: Manners, seed: u64) {
    const CLIENTS: usize = 3;
    const THREADS: usize = 8;
    let rounds = 60 * factor();
    let server = Server::start();
    let clients: Vec<Client> =
        (0..CLIENTS).map(|number| client(&server, HANDOFFS[number % 2])).collect();
    let rooms: Vec<Arc<Room>> = (0..2).map(|_| Arc::default()).collect();
    let (away, guards) = channel();
    let (doomed, tokens) = channel();
    let mut threads = vec![
        start("ending guards".to_owned(), move || end_guards(manners, &guards)),
        start("ending waits".to_owned(), move || {
            tokens.iter().for_each(|token: CancelToken| token.cancel())
        }),
    ];
    for number in 0..CLIENTS * THREADS {
        let (name, room) = (format!("lock {}", number % 2), Arc::clone(&rooms[number % 2]));
        let mut player = Player {
            // With a token, since it sends owned guards away: without one a wait beside a guard
            // that its thread took is a deadlock.
            lock: clients[number % CLIENTS].lock(name).with_cancel(&CancelToken::new()),
            room,
            dice: Dice(seed ^ (number as u64) << 20),
            manners,
            away: away.clone(),
            doomed: doomed.clone(),
        };
        let play = move || (0..rounds).for_each(|_| player.play());
        threads.push(start(format!("playing {number}"), play));
    }
    drop((away, doomed));
    finish(threads);
    if manners == Manners::Good {
        assert!(rooms.iter().all(|room| room.entered() > rounds), "hardly anybody got in");
    }
    assert_clean(&server, clients, &[]);
}

fn end_guards(manners: Manners, guards: &Receiver<OwnedGuard>) {
    for (number, guard) in guards.iter().enumerate() {
        match number % 2 {
            0 => drop(guard),
            _ => drop(accept(manners, guard.unlock())),
        }
    }
}

#[test]
fn the_well_mannered_are_alone_in_any_mix() {
    mix(Manners::Good, 1);
    mix(Manners::Good, 2);
}

#[test]
fn short_leases_and_force_leave_nobody_behind() {
    mix(Manners::Bad, 3);
    mix(Manners::Bad, 4);
}
