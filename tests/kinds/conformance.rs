//! The same cases over every kind of lock: what a caller may count on whichever it takes.
//!
//! A kind is what two clients see under one name: `mine`, `theirs`. Each case starts a
//! server of its own, and what a case leaves behind in Redis is a failure.

use crate::harness::subject::{Side, Subject, SubjectGuard};
use crate::harness::{Server, eventually, in_time, pttl};
use leasehold::kind::{Read, Write};
use leasehold::{
    AnyLock, Builder, CancelToken, Client, Events, Lock, Lost, MultiLock, RedLock, Released,
    Renewed, Waited,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// No case lives to see the end of it.
const NEVER: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(100);
/// A lease that is renewed a few times while a case looks on.
const BRIEF: Duration = Duration::from_millis(900);

/// What was told of a client's locks.
#[derive(Clone, Debug, Default)]
struct Heard {
    lost: Arc<AtomicUsize>,
    released: Arc<AtomicUsize>,
    renewed: Arc<AtomicUsize>,
    waited: Arc<AtomicUsize>,
}

impl Events for Heard {
    fn lost(&self, _: &Lost) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }
    fn waited(&self, _: &Waited) {
        self.waited.fetch_add(1, Ordering::SeqCst);
    }
    fn released(&self, _: &Released) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
    fn renewed(&self, _: &Renewed) {
        self.renewed.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a case is run on.
struct Stage<S> {
    servers: Vec<Server>,
    clients: [Client; 2],
    heard: Heard,
    mine: S,
    theirs: S,
}

impl<S: Subject> Stage<S> {
    /// Nothing left anywhere, but what outlives a lock by design.
    #[track_caller]
    fn is_clean(&self) {
        let left = |server: &Server| {
            let keys = server.keys().into_iter();
            keys.filter(|key| !key.starts_with("redisson_lock_token:")).count()
        };
        eventually("nothing is left", || self.servers.iter().map(left).sum::<usize>() == 0);
    }

    /// Where most are enough, the last server may hear later of what they have agreed on.
    #[track_caller]
    fn is_agreed(&self, kind: &Kind<S>, at: impl Fn(&Server) -> bool) {
        if kind.servers > 2 {
            eventually("the last server has heard of it", || self.servers.iter().all(&at));
        }
    }

    /// The same lock, from the other client if that sees the same.
    fn seen_by_others(&self, kind: &Kind<S>) -> &S {
        if kind.other.is_some() { &self.mine } else { &self.theirs }
    }

    /// All that is kept for the lock is gone, as if its server had lost it.
    fn wipe(&self) {
        self.servers.iter().for_each(|server| server.ask::<()>(&["FLUSHALL"]));
    }
}

/// How a kind is made: over how many servers, and from a client each of them.
struct Kind<S> {
    servers: usize,
    make: fn(&[Client]) -> S,
    /// What the other client sees, if it is another side of the lock.
    other: Option<fn(&[Client]) -> S>,
    /// The same thread gets it again without asking.
    re_enters: bool,
}

/// A kind on one server, of which both clients see the same.
fn one<S>(make: fn(&[Client]) -> S) -> Kind<S> {
    Kind { servers: 1, make, other: None, re_enters: true }
}

impl<S: Subject> Kind<S> {
    fn stage(&self) -> Stage<S> {
        self.stage_with(|builder| builder.watchdog_timeout(NEVER))
    }

    /// A poll interval of which no case sees the end: what happens, happens because of a
    /// message, or of the kind's own asking.
    fn stage_with(&self, settings: impl Fn(Builder) -> Builder) -> Stage<S> {
        let servers: Vec<_> = (0..self.servers).map(|_| Server::start()).collect();
        let heard = Heard::default();
        let client = |server: &Server, events: Option<&Heard>| {
            let builder = Client::builder().single(server.url()).poll_interval(NEVER);
            let builder = settings(builder);
            let builder = match events {
                Some(heard) => builder.events(heard.clone()),
                None => builder,
            };
            builder.build().expect("the server is there")
        };
        let mine: Vec<_> = servers.iter().map(|server| client(server, Some(&heard))).collect();
        let theirs: Vec<_> = servers.iter().map(|server| client(server, None)).collect();
        Stage {
            mine: (self.make)(&mine),
            theirs: self.other.unwrap_or(self.make)(&theirs),
            clients: [mine[0].clone(), theirs[0].clone()],
            servers,
            heard,
        }
    }
}

/// The cases, for one kind each.
macro_rules! conformance {
    ($($kind:ident: $expr:expr;)*) => { $(
        mod $kind {
            use super::*;

            conformance!(@cases $expr;
                excludes_and_is_released_by_unlock_and_by_drop
                a_waiter_gets_it_after_the_release
                a_wait_is_told
                a_wait_ends_in_time_and_leaves_nothing
                a_cancelled_wait_ends_and_leaves_nothing
                a_thread_gets_it_again
                an_owned_guard_travels
                a_fixed_lease_ends
                a_hold_is_renewed
                a_lost_hold_is_told_and_stays_lost
                force_unlock_takes_it_away
                queries_say_how_it_stands
                an_extension_never_shortens
                a_detached_hold_is_ended_by_unlock
                a_closed_client_gives_nothing
                what_cannot_be_is_refused
                no_increment_is_lost
                of_many_waiters_each_gets_it
            );
        }
    )* };
    (@cases $expr:expr; $($case:ident)*) => { $(
        #[test]
        fn $case() {
            super::$case(&$expr);
        }
    )* };
}

conformance! {
    plain: one(|c| c[0].lock("a"));
    fenced: one(|c| c[0].fenced_lock("a"));
    fair: one(|c| c[0].fair_lock("a"));
    write: one(|c| c[0].rw_lock("a").write_lock());
    spin: one(|c| c[0].spin_lock("a"));
    named: Kind { re_enters: false, ..one(by_name) };
    multi: one(of_one_server);
    mixed: Kind { servers: 2, ..one(of_two_servers) };
    read: Kind { other: Some(write_side), ..one(read_side) };
    majority: Kind { servers: 3, ..one(|c| RedLock::new(c.to_vec(), "a")) };
}

type Sides = Side<Lock<Read>, Lock<Write>>;

fn read_side(clients: &[Client]) -> Sides {
    Side::Read(clients[0].rw_lock("a").read_lock())
}

fn write_side(clients: &[Client]) -> Sides {
    Side::Write(clients[0].rw_lock("a").write_lock())
}

fn of_one_server(clients: &[Client]) -> MultiLock {
    MultiLock::new(["b", "a", "c"].map(|name| clients[0].lock(name)))
}

fn of_two_servers(clients: &[Client]) -> MultiLock {
    let [first, second] = clients else { panic!("two servers") };
    let write = second.rw_lock("b").write_lock();
    MultiLock::new([AnyLock::from(first.lock("a")), first.lock("b").into(), write.into()])
}

/// Each client presents another name.
fn by_name(clients: &[Client]) -> Lock {
    clients[0].lock("a").with_holder(format!("job of {}", clients[0].id()))
}

fn excludes_and_is_released_by_unlock_and_by_drop<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.mine.lock().expect("it is free");
    assert!(guard.is_held() && guard.check().is_ok());
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    assert!(stage.theirs.try_lock_owned().expect("an answer").is_none());
    guard.unlock().expect("it was held");
    let guard = stage.theirs.try_lock().expect("an answer").expect("it is free");
    assert!(stage.mine.try_lock().expect("an answer").is_none());
    drop(guard);
    stage.is_clean();
}

fn a_waiter_gets_it_after_the_release<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stage.theirs.lock().and_then(SubjectGuard::unlock));
        waits(&stage);
        guard.unlock().expect("it was held");
        in_time("the waiter", waiter).expect("it got the lock");
    });
    stage.is_clean();
}

fn a_wait_is_told<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.theirs.lock().expect("it is free");
    assert!(stage.mine.try_lock_for(SHORT).expect("an answer").is_none());
    eventually("it is told", || stage.heard.waited.load(Ordering::SeqCst) > 0);
    guard.unlock().expect("it was held");
    stage.is_clean();
}

/// Blocks until somebody has been refused, and will be told.
fn waits<S: Subject>(stage: &Stage<S>) {
    let asked = |server: &Server| server.calls("evalsha");
    let before: u64 = stage.servers.iter().map(asked).sum();
    let listens = |server: &Server| {
        server.channels().iter().any(|channel| !channel.starts_with("leasehold:"))
    };
    eventually("somebody waits", || {
        // Who spins asks again and again.
        let asks: u64 = stage.servers.iter().map(asked).sum();
        stage.servers.iter().any(listens) || asks > before + 4
    });
}

fn a_wait_ends_in_time_and_leaves_nothing<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.mine.lock().expect("it is free");
    let began = Instant::now();
    assert!(stage.theirs.try_lock_for(SHORT).expect("an answer").is_none());
    assert!(stage.theirs.try_lock_until(began + 2 * SHORT).expect("an answer").is_none());
    assert!(stage.theirs.try_lock_for_owned(SHORT).expect("an answer").is_none());
    let deadline = Instant::now() + SHORT;
    assert!(stage.theirs.try_lock_until_owned(deadline).expect("an answer").is_none());
    assert!(began.elapsed() >= 4 * SHORT, "each waited for its time");
    guard.unlock().expect("it was held");
    stage.is_clean();
}

fn a_cancelled_wait_ends_and_leaves_nothing<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let token = CancelToken::new();
    let guard = stage.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let cancelled = stage.theirs.clone().with_cancel(&token);
        let waiter = scope.spawn(move || cancelled.lock().map(drop));
        waits(&stage);
        token.cancel();
        let error = in_time("the waiter", waiter).expect_err("it was cancelled");
        assert!(error.is_cancelled(), "{error}");
    });
    guard.unlock().expect("it was held");
    stage.is_clean();
}

fn a_thread_gets_it_again<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.mine.lock().expect("it is free");
    let asked = |stage: &Stage<S>| -> u64 {
        stage.servers.iter().map(|server| server.calls("evalsha")).sum()
    };
    let before = asked(&stage);
    let nested = stage.mine.lock().expect("it has it");
    let third = stage.mine.try_lock().expect("an answer").expect("it has it");
    assert_eq!(stage.mine.hold_count(), 3);
    if kind.re_enters {
        assert_eq!(asked(&stage), before, "no round trip");
    }
    drop(guard);
    third.unlock().expect("it has it");
    assert!(nested.is_held() && stage.mine.hold_count() == 1);
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    nested.unlock().expect("it was held");
    assert_eq!((stage.mine.hold_count(), stage.mine.is_held()), (0, false));
    stage.is_clean();
}

fn an_owned_guard_travels<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let owned = stage.mine.lock_owned().expect("it is free");
    assert!(!stage.mine.is_held(), "it is no thread's");
    let travelled = thread::spawn(move || owned.is_held().then_some(owned));
    let owned = travelled.join().expect("no panic").expect("it is held there");
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    thread::spawn(move || owned.unlock()).join().expect("no panic").expect("it was held");

    let guard = stage.mine.lock().expect("it is free");
    if kind.re_enters && kind.other.is_none() {
        let error = stage.mine.lock_owned().map(drop).expect_err("it would wait for itself");
        assert!(error.is_deadlock(), "{error}");
        assert!(stage.mine.try_lock_owned().expect("an answer").is_none());
    }
    guard.unlock().expect("it was held");
    drop(stage.theirs.try_lock_owned().expect("an answer").expect("it is free"));
    stage.is_clean();
}

fn a_fixed_lease_ends<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let brief = stage.mine.clone().with_lease(3 * SHORT);
    let guard = brief.lock().expect("it is free");
    assert!(guard.remaining() <= 3 * SHORT);
    assert!(guard.wait_lost(NEVER), "nobody renews it");
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    // Nobody released it: who waits asks at the end of the lease.
    let next = stage.theirs.lock().expect("the lease is over");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(next.is_held(), "the old guard's end is not the new one's");
    next.unlock().expect("it was held");
    eventually("the loss is told", || stage.heard.lost.load(Ordering::SeqCst) > 0);
    stage.is_clean();
}

fn a_hold_is_renewed<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage_with(|builder| builder.watchdog_timeout(BRIEF));
    let (guard, began) = (stage.mine.lock().expect("it is free"), Instant::now());
    let enough = 4 * stage.servers.len();
    eventually("it is renewed", || stage.heard.renewed.load(Ordering::SeqCst) >= enough);
    eventually("longer than a lease", || began.elapsed() > 2 * BRIEF);
    guard.check().expect("it is renewed");
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    guard.unlock().expect("it was held");
    stage.is_clean();
}

fn a_lost_hold_is_told_and_stays_lost<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage_with(|builder| builder.watchdog_timeout(BRIEF));
    let guard = stage.mine.lock().expect("it is free");
    stage.wipe();
    let next = stage.theirs.lock().expect("it is free there");
    assert!(guard.wait_lost(NEVER), "the watchdog finds out");
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the loss is told", || stage.heard.lost.load(Ordering::SeqCst) > 0);
    assert!(next.is_held() && stage.mine.try_lock().expect("an answer").is_none());
    next.unlock().expect("it was held");
    stage.is_clean();
}

fn force_unlock_takes_it_away<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    assert!(!stage.mine.force_unlock().expect("an answer"), "it is free");
    let guard = stage.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stage.theirs.lock().and_then(SubjectGuard::unlock));
        waits(&stage);
        assert!(stage.mine.force_unlock().expect("an answer"));
        in_time("the waiter", waiter).expect("it got the lock");
    });
    assert!(guard.check().is_err_and(|error| error.is_lost()), "a hold of this process");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    stage.is_clean();
}

fn queries_say_how_it_stands<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    assert!(!stage.mine.is_locked().expect("an answer") && !stage.mine.is_held());
    assert_eq!(stage.theirs.remaining().expect("an answer"), None);
    let guard = stage.mine.lock().expect("it is free");
    let other = stage.seen_by_others(kind);
    assert!(other.is_locked().expect("an answer") && !stage.theirs.is_held());
    assert!(stage.mine.is_held() && stage.mine.hold_count() == 1);
    assert_eq!(thread::scope(|s| s.spawn(|| stage.mine.hold_count()).join().expect("0")), 0);
    let left = other.remaining().expect("an answer").expect("it is held");
    assert!(left <= NEVER && guard.remaining() <= left, "{left:?}");
    guard.unlock().expect("it was held");
    assert!(!stage.theirs.is_locked().expect("an answer"));
    stage.is_clean();
}

fn an_extension_never_shortens<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.mine.clone().with_lease(NEVER).lock().expect("it is free");
    guard.extend(NEVER / 2).expect("it is held");
    assert!(guard.remaining() > NEVER / 2);
    guard.extend(2 * NEVER).expect("it is held");
    assert!(guard.remaining() > NEVER);
    stage.is_agreed(kind, |server| pttl(server, "a") > NEVER.as_millis() as i64);
    let left = stage.seen_by_others(kind).remaining().expect("an answer").expect("it is held");
    assert!(left > NEVER && guard.remaining() <= left, "{left:?}");
    assert!(guard.extend(Duration::ZERO).is_err_and(|error| error.is_configuration()));
    guard.unlock().expect("it was held");
    stage.is_clean();
}

fn a_detached_hold_is_ended_by_unlock<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    assert!(stage.mine.unlock().is_err_and(|error| error.is_not_held()));
    stage.mine.lock().expect("it is free").detach();
    assert!(stage.mine.is_held() && stage.theirs.try_lock().expect("an answer").is_none());
    stage.mine.unlock().expect("it was detached");
    stage.mine.lock_owned().expect("it is free").detach();
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    let elsewhere = stage.mine.clone();
    thread::spawn(move || elsewhere.unlock()).join().expect("no panic").expect("it was detached");
    assert!(stage.mine.unlock().is_err_and(|error| error.is_not_held()));
    stage.is_clean();
}

fn a_closed_client_gives_nothing<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.theirs.lock().expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stage.mine.lock().map(drop));
        waits(&stage);
        stage.clients[0].close();
        let error = in_time("the waiter", waiter).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
    });
    let error = stage.mine.try_lock().map(drop).expect_err("the client is closed");
    assert!(error.is_closed(), "{error}");
    guard.unlock().expect("it was held");
    stage.is_clean();
}

fn what_cannot_be_is_refused<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let too_short = stage.mine.clone().with_lease(Duration::from_millis(9));
    assert!(too_short.lock().is_err_and(|error| error.is_configuration()));
    stage.servers.iter().for_each(|server| server.ask::<()>(&["SET", "a", "a text"]));
    let error = stage.mine.try_lock().map(drop).expect_err("it is no lock");
    assert!(error.is_server(), "{error}");
    stage.wipe();
    drop(stage.mine.try_lock().expect("an answer").expect("it is free"));
    stage.is_clean();
}

fn no_increment_is_lost<S: Subject>(kind: &Kind<S>) {
    const THREADS: usize = 3;
    const EACH: usize = 60;
    let stage = kind.stage();
    let (inside, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |lock: &S| {
        for _ in 0..EACH {
            let guard = lock.lock_owned().expect("it comes round");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "nobody else is in there");
            let before = count.load(Ordering::SeqCst);
            thread::yield_now();
            count.store(before + 1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
    };
    // The same name presented by several threads is one holder, and readers share.
    let threads = if kind.re_enters && kind.other.is_none() { THREADS } else { 1 };
    thread::scope(|scope| {
        for lock in [&stage.mine, &stage.theirs] {
            (0..threads).for_each(|_| drop(scope.spawn(|| work(lock))));
        }
    });
    assert_eq!(count.into_inner(), 2 * threads * EACH);
    stage.is_clean();
}

fn of_many_waiters_each_gets_it<S: Subject>(kind: &Kind<S>) {
    let stage = kind.stage();
    let guard = stage.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let wait = |lock: &S| lock.lock().and_then(SubjectGuard::unlock);
        let (mine, theirs) = (&stage.mine, &stage.theirs);
        let waiters: Vec<_> = [mine, theirs, mine, theirs, theirs]
            .map(|lock| scope.spawn(move || wait(lock)))
            .into_iter()
            .collect();
        waits(&stage);
        guard.unlock().expect("it was held");
        for waiter in waiters {
            in_time("a waiter", waiter).expect("it got the lock");
        }
    });
    stage.is_clean();
}
