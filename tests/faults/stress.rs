//! Many clients and threads that use locks at the same time.
//!
//! One caller holds a lock at a time, every call ends, and nothing is left on the server.
//! `LEASEHOLD_STRESS=10` multiplies the number of rounds by ten.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{CancelToken, Client, Error, Guard, Lock, OwnedGuard};
use redis::Connection;

use crate::harness::faults::stress;
use crate::harness::wait::holds_within;
use crate::harness::{Server, eventually, or_too_late};

/// Without and with hand-off between the threads of a process.
const HANDOFFS: [(u32, Duration); 2] = [(0, Duration::ZERO), (1000, Duration::from_millis(100))];

fn client(server: &Server, (passes, time): (u32, Duration)) -> Client {
    // Long time-outs, because a busy machine must not fail these tests.
    let timeout = Duration::from_secs(60);
    let builder = Client::builder().single(server.url()).local_handoff(passes, time);
    let builder = builder.response_timeout(timeout).pool_timeout(timeout).connect_timeout(timeout);
    let client = builder.build().expect("the server answers");
    // The very first release is sent twice, because the server does not know its script.
    client.lock("first").lock().and_then(Guard::unlock).expect("the lock is free");
    client
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name).spawn(work).expect("a thread starts")
}

/// Blocks until all threads have ended. Fails if a thread panicked, or does not end in time.
#[track_caller]
fn finish(threads: Vec<JoinHandle<()>>) {
    let bound = Duration::from_secs(120) * u32::try_from(stress()).expect("a small factor");
    let unfinished = || threads.iter().filter(|thread| !thread.is_finished()).count();
    // A panic is reported first: other threads may hang because of it.
    let all_ended = holds_within(bound, || unfinished() == 0);
    let hanging = unfinished();
    for thread in threads {
        if thread.is_finished() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
    assert!(all_ended, "{hanging} threads never end");
}

/// Asserts that no hold, waiter or subscription is left, and no keys but `keys`.
#[track_caller]
fn assert_clean(server: &Server, clients: Vec<Client>, keys: &[&str]) {
    eventually("no lock is left", || server.keys() == keys);
    let of_a_lock = |channel: &String| channel.starts_with("redisson_lock__channel:");
    eventually("no subscription to a lock is left", || !server.channels().iter().any(of_a_lock));
    clients.iter().for_each(Client::close);
    drop(clients);
    eventually("no channel is left", || server.channels().is_empty());
    eventually("no connection is left", || server.clients().is_empty());
    assert_eq!(server.keys(), keys);
}

/// Checks that one caller is inside at a time, and counts the entries.
#[derive(Default)]
struct CriticalSection {
    inside: AtomicBool,
    entered: AtomicUsize,
}

impl CriticalSection {
    #[track_caller]
    fn enter(&self) {
        let occupied = self.inside.swap(true, Ordering::SeqCst);
        assert!(!occupied, "two callers are inside");
        self.entered.fetch_add(1, Ordering::SeqCst);
        // Gives other callers time to enter by mistake.
        thread::yield_now();
        let alone = self.inside.swap(false, Ordering::SeqCst);
        assert!(alone, "another caller has left");
    }

    fn entered(&self) -> usize {
        self.entered.load(Ordering::SeqCst)
    }
}

/// A counter on the server that loses increments if two callers use it at the same time.
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
    let increments = 100 * stress();
    let server = Server::start();
    let clients: Vec<Client> =
        (0..CLIENTS).map(|number| client(&server, HANDOFFS[number % 2])).collect();
    let work = clients.iter().map(|client| {
        let (lock, mut counter) = (client.lock("lock"), Counter::on(&server));
        start("incrementing".to_owned(), move || {
            for round in 0..increments {
                let guard = lock.lock().expect("the lock is granted in the end");
                counter.increment();
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
        let rounds = 3 * stress();
        let server = Server::start();
        let client = client(&server, handoff);
        let section = Arc::new(CriticalSection::default());
        let counter = Arc::new(Mutex::new(Counter::on(&server)));
        let work = (0..THREADS).map(|number| {
            let (lock, section) = (client.lock("lock"), Arc::clone(&section));
            let counter = Arc::clone(&counter);
            start(format!("sharing {number}"), move || {
                for round in 0..rounds {
                    let guard = lock.lock().expect("the lock is granted in the end");
                    section.enter();
                    if round == 0 {
                        increment_in_two_steps(&counter);
                    }
                    drop(guard);
                }
            })
        });
        finish(work.collect());
        assert_eq!(section.entered(), THREADS * rounds, "{handoff:?}");
        assert_eq!(Counter::on(&server).get(), THREADS, "{handoff:?}");
        drop(counter);
        assert_clean(&server, vec![client], &["counter"]);
    }
}

/// Increments the counter with the mutex free between the read and the write.
///
/// The mutex protects the connection; only the lock protects the increment.
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
        let rounds = 20 * stress();
        let server = Server::start();
        let client = client(&server, handoff);
        let done = Arc::new(AtomicUsize::new(0));
        let work = (0..THREADS).map(|number| {
            let (lock, done) = (client.lock(format!("lock {number}")), Arc::clone(&done));
            start(format!("alone {number}"), move || {
                for _ in 0..rounds {
                    // No other thread uses this lock: it is free again right after its release.
                    let guard = lock.try_lock().expect("a reply").expect("the lock is free");
                    let nested = lock.lock().expect("re-entry sends no request");
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
// A random mix of verbs.

/// Pseudo-random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

/// Whether leases may expire and locks may be freed by force, so that two callers may be inside.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Losses {
    Forbidden,
    Allowed,
}

/// A thread of the mix.
struct Caller {
    lock: Lock,
    section: Arc<CriticalSection>,
    random: Random,
    losses: Losses,
    /// To the thread that ends the guards.
    guards: Sender<OwnedGuard>,
    /// To the thread that cancels the waits.
    tokens: Sender<CancelToken>,
}

impl Caller {
    /// Takes the lock with a random verb, and ends the hold.
    fn call(&mut self) {
        match self.random.below(9) {
            0 => self.lock_with(|lock| lock.try_lock()),
            1 | 2 => {
                let short = self.random.millis(20);
                self.lock_with(|lock| or_too_late(lock.try_lock_for(short)));
            }
            3 => self.wait_until_cancelled(),
            4 => {
                let lease = self.lease();
                self.lock_with(|lock| lock.clone().with_lease(lease).lock().map(Some));
            }
            5 => self.send_to_another_thread(),
            6 => self.detach_and_unlock(),
            7 if self.losses == Losses::Allowed => {
                self.lock.force_unlock().expect("the server answers");
            }
            _ => self.lock_with(|lock| lock.lock().map(Some)),
        }
    }

    /// Returns a lease that outlives the test, or a short one if losses are allowed.
    fn lease(&mut self) -> Duration {
        match self.losses {
            Losses::Forbidden => Duration::from_secs(3600),
            Losses::Allowed => Duration::from_millis(10) + self.random.millis(10),
        }
    }

    fn lock_with<'a>(&'a mut self, take: impl FnOnce(&'a Lock) -> Result<Option<Guard>, Error>) {
        let losses = self.losses;
        let Some(guard) = accept(losses, take(&self.lock)).flatten() else { return };
        self.enter(guard.is_held());
        if self.random.below(3) == 0 {
            drop(accept(losses, self.lock.lock()));
        }
        match self.random.below(2) {
            0 => drop(guard),
            _ => drop(accept(losses, guard.unlock())),
        }
    }

    /// Enters the critical section, unless another caller may be inside.
    fn enter(&self, is_held: bool) {
        if self.losses == Losses::Forbidden {
            assert!(is_held, "a long lease is lost");
            self.section.enter();
        }
    }

    fn wait_until_cancelled(&mut self) {
        let token = CancelToken::new();
        self.tokens.send(token.clone()).expect("a thread cancels waits");
        let lock = self.lock.clone().with_cancel(&token);
        match lock.lock() {
            Ok(guard) => drop(guard),
            Err(error) if error.is_cancelled() => {}
            Err(error) => drop(accept::<()>(self.losses, Err(error))),
        }
    }

    fn send_to_another_thread(&mut self) {
        let timeout = self.random.millis(50);
        let outcome = or_too_late(self.lock.try_lock_for_owned(timeout));
        if let Some(guard) = accept(self.losses, outcome).flatten() {
            self.enter(guard.is_held());
            self.guards.send(guard).expect("a thread ends guards");
        }
    }

    fn detach_and_unlock(&mut self) {
        let timeout = self.random.millis(50);
        let outcome = or_too_late(self.lock.try_lock_for(timeout));
        if let Some(guard) = accept(self.losses, outcome).flatten() {
            self.enter(guard.is_held());
            guard.detach();
            accept(self.losses, self.lock.unlock());
        }
    }
}

/// Returns the value of an outcome, or `None` for an allowed loss. Panics at any other error.
#[track_caller]
fn accept<T>(losses: Losses, outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if losses == Losses::Allowed && error.is_lost() => None,
        Err(error) => panic!("losses are {losses:?}: {error:?}"),
    }
}

fn mix(losses: Losses, seed: u64) {
    const CLIENTS: usize = 3;
    const THREADS: usize = 8;
    let rounds = 60 * stress();
    let server = Server::start();
    let clients: Vec<Client> =
        (0..CLIENTS).map(|number| client(&server, HANDOFFS[number % 2])).collect();
    let sections: Vec<Arc<CriticalSection>> = (0..2).map(|_| Arc::default()).collect();
    let (guards, sent_guards) = channel::<OwnedGuard>();
    let (tokens, sent_tokens) = channel::<CancelToken>();
    let mut threads = vec![
        start("ending guards".to_owned(), move || {
            for (number, guard) in sent_guards.iter().enumerate() {
                match number % 2 {
                    0 => drop(guard),
                    _ => drop(accept(losses, guard.unlock())),
                }
            }
        }),
        start("ending waits".to_owned(), move || {
            for token in sent_tokens {
                token.cancel();
            }
        }),
    ];
    for number in 0..CLIENTS * THREADS {
        let (name, section) = (format!("lock {}", number % 2), Arc::clone(&sections[number % 2]));
        let mut caller = Caller {
            lock: clients[number % CLIENTS].lock(name),
            section,
            random: Random(seed ^ (number as u64) << 20),
            losses,
            guards: guards.clone(),
            tokens: tokens.clone(),
        };
        let calls = move || {
            for _ in 0..rounds {
                caller.call();
            }
        };
        threads.push(start(format!("calling {number}"), calls));
    }
    drop((guards, tokens));
    finish(threads);
    if losses == Losses::Forbidden {
        assert!(sections.iter().all(|section| section.entered() > rounds), "hardly any entries");
    }
    assert_clean(&server, clients, &[]);
}

#[test]
fn no_mix_of_verbs_lets_two_callers_in() {
    mix(Losses::Forbidden, 1);
    mix(Losses::Forbidden, 2);
}

#[test]
fn short_leases_and_force_unlocks_block_no_caller() {
    mix(Losses::Allowed, 3);
    mix(Losses::Allowed, 4);
}
