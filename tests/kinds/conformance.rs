//! The promises that all kinds of locks share: each case runs on each kind.
//!
//! Two clients use a lock under one name: `mine` and `theirs`. Each case starts its own servers,
//! and fails if it leaves anything in Redis.

use crate::harness::faults::BRISK;
use crate::harness::subject::{OnePermit, Side, Subject, SubjectGuard};
use crate::harness::wait::BOUND;
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

/// A time that outlives every case.
const NEVER: Duration = Duration::from_secs(120);
/// A wait in which a slow machine asks several servers.
const SHORT: Duration = Duration::from_secs(1);

/// Counts of the events of one client.
#[derive(Clone, Debug, Default)]
struct EventCounts {
    lost: Arc<AtomicUsize>,
    released: Arc<AtomicUsize>,
    renewed: Arc<AtomicUsize>,
    waited: Arc<AtomicUsize>,
}

impl Events for EventCounts {
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

/// The servers, clients and locks of one case.
struct Setup<S> {
    servers: Vec<Server>,
    clients: [Client; 2],
    events: EventCounts,
    mine: S,
    theirs: S,
    /// The key that stays when nothing is held.
    lasting_key: Option<&'static str>,
}

impl<S: Subject> Setup<S> {
    /// Blocks until no keys are left but those that outlive all holds by design: token counters,
    /// and the capacity of a semaphore.
    #[track_caller]
    fn assert_clean(&self) {
        let stays =
            |key: &String| key.starts_with("redisson_lock_token:") || self.lasting_key == Some(key);
        let left = |server: &Server| server.keys().into_iter().filter(|key| !stays(key)).count();
        eventually("nothing is left", || self.servers.iter().map(left).sum::<usize>() == 0);
    }

    /// Blocks until all servers of a majority lock satisfy the condition.
    ///
    /// A call returns as soon as a majority does, so the last server may follow later.
    #[track_caller]
    fn wait_for_all_servers(&self, kind: &Kind<S>, condition: impl Fn(&Server) -> bool) {
        if kind.servers > 2 {
            eventually("all servers follow", || self.servers.iter().all(&condition));
        }
    }

    /// Returns `theirs`, or `mine` if `theirs` is the other side of a read-write lock.
    fn seen_by_others(&self, kind: &Kind<S>) -> &S {
        if kind.other.is_some() { &self.mine } else { &self.theirs }
    }

    /// Deletes all data of the servers.
    fn flush(&self) {
        self.servers.iter().for_each(|server| server.ask::<()>(&["FLUSHALL"]));
    }
}

/// One kind of lock: the number of its servers, and a function that makes it.
struct Kind<S> {
    servers: usize,
    /// Makes the lock from one client of each server.
    make: fn(&[Client]) -> S,
    /// Makes the lock of the other client, if it is the other side of a read-write lock.
    other: Option<fn(&[Client]) -> S>,
    /// Whether a thread re-enters the lock without a round trip.
    re_enters: bool,
    /// Whether the threads of one client exclude each other.
    excludes_threads: bool,
    /// The key that stays when nothing is held.
    lasting_key: Option<&'static str>,
}

/// Returns a kind on one server, with the same lock for both clients.
fn on_one_server<S>(make: fn(&[Client]) -> S) -> Kind<S> {
    let (re_enters, excludes_threads) = (true, true);
    Kind { servers: 1, make, other: None, re_enters, excludes_threads, lasting_key: None }
}

impl<S: Subject> Kind<S> {
    fn setup(&self) -> Setup<S> {
        self.setup_with(|builder| builder.watchdog_timeout(NEVER))
    }

    /// Returns clients whose poll interval outlives the case, so that no poll ends a wait.
    fn setup_with(&self, settings: impl Fn(Builder) -> Builder) -> Setup<S> {
        let servers: Vec<_> = (0..self.servers).map(|_| Server::start()).collect();
        let events = EventCounts::default();
        let client = |server: &Server, events: Option<&EventCounts>| {
            // A majority lock does not ask a server again that was late.
            let builder = Client::builder().single(server.url()).response_timeout(BOUND);
            let builder = builder.connect_timeout(BOUND).poll_interval(NEVER).announce(false);
            let builder = settings(builder);
            let builder = match events {
                Some(events) => builder.events(events.clone()),
                None => builder,
            };
            builder.build().expect("the server answers")
        };
        let mine: Vec<_> = servers.iter().map(|server| client(server, Some(&events))).collect();
        let theirs: Vec<_> = servers.iter().map(|server| client(server, None)).collect();
        Setup {
            mine: (self.make)(&mine),
            theirs: self.other.unwrap_or(self.make)(&theirs),
            clients: [mine[0].clone(), theirs[0].clone()],
            servers,
            events,
            lasting_key: self.lasting_key,
        }
    }
}

/// Makes a module of tests for each kind, with one test per case.
macro_rules! conformance {
    ($($kind:ident: $expr:expr;)*) => { $(
        mod $kind {
            use super::*;

            conformance!(@cases $expr;
                a_hold_excludes_others_until_unlock_or_drop
                a_waiter_gets_the_lock_after_its_release
                a_wait_is_reported
                a_waiter_survives_a_time_without_replicas
                a_wait_ends_at_its_deadline_and_leaves_nothing
                a_cancelled_wait_ends_and_leaves_nothing
                a_thread_re_enters_its_lock
                an_owned_guard_moves_between_threads
                a_fixed_lease_ends
                a_hold_is_renewed
                a_lost_hold_is_reported_and_stays_lost
                force_unlock_ends_the_hold
                queries_report_the_state
                an_extension_never_shortens_a_lease
                a_detached_hold_is_ended_by_unlock
                a_closed_client_grants_no_lock
                a_short_lease_and_a_key_of_another_type_are_refused
                an_overwritten_key_is_a_loss_at_the_release
                no_increment_is_lost
                each_of_many_waiters_gets_the_lock
            );
        }
    )* };
    ($kind:ident: $expr:expr, in the cases $($case:ident)*) => {
        mod $kind {
            use super::*;

            conformance!(@cases $expr; $($case)*);
        }
    };
    (@cases $expr:expr; $($case:ident)*) => { $(
        #[test]
        fn $case() {
            super::$case(&$expr);
        }
    )* };
}

conformance! {
    plain: on_one_server(|c| c[0].lock("a"));
    fenced: on_one_server(|c| c[0].fenced_lock("a"));
    fair: on_one_server(|c| c[0].fair_lock("a"));
    queued: on_one_server(|c| c[0].queue_lock("a"));
    write: on_one_server(|c| c[0].rw_lock("a").write_lock());
    spin: on_one_server(|c| c[0].spin_lock("a"));
    named: Kind { re_enters: false, excludes_threads: false, ..on_one_server(by_name) };
    multi: on_one_server(|c| MultiLock::new(["b", "a", "c"].map(|name| c[0].lock(name))));
    mixed: Kind { servers: 2, ..on_one_server(of_two_servers) };
    read: Kind {
        other: Some(write_side), excludes_threads: false, ..on_one_server(read_side)
    };
    majority: Kind { servers: 3, ..on_one_server(|c| RedLock::new(c.to_vec(), "a")) };
}

// A permit has no re-entry, no extension and no detached form, and a semaphore no `force_unlock`.
conformance! {
    semaphore: Kind {
        re_enters: false, lasting_key: Some("a"),
        ..on_one_server(|c| OnePermit(c[0].semaphore("a").with_permits(1)))
    }, in the cases
        a_hold_excludes_others_until_unlock_or_drop
        a_waiter_gets_the_lock_after_its_release
        a_wait_is_reported
        a_waiter_survives_a_time_without_replicas
        a_wait_ends_at_its_deadline_and_leaves_nothing
        a_cancelled_wait_ends_and_leaves_nothing
        an_owned_guard_moves_between_threads
        a_fixed_lease_ends
        a_hold_is_renewed
        a_lost_hold_is_reported_and_stays_lost
        a_closed_client_grants_no_lock
        a_short_lease_and_a_key_of_another_type_are_refused
        an_overwritten_key_is_a_loss_at_the_release
        no_increment_is_lost
        each_of_many_waiters_gets_the_lock
}

type Sides = Side<Lock<Read>, Lock<Write>>;

fn read_side(clients: &[Client]) -> Sides {
    Side::Read(clients[0].rw_lock("a").read_lock())
}

fn write_side(clients: &[Client]) -> Sides {
    Side::Write(clients[0].rw_lock("a").write_lock())
}

fn of_two_servers(clients: &[Client]) -> MultiLock {
    let [first, second] = clients else { panic!("two servers") };
    let write = second.rw_lock("b").write_lock();
    MultiLock::new([AnyLock::from(first.lock("a")), first.lock("b").into(), write.into()])
}

/// Makes a lock with a holder id that differs from client to client.
fn by_name(clients: &[Client]) -> Lock {
    clients[0].lock("a").with_holder(format!("job of {}", clients[0].id()))
}

fn a_hold_excludes_others_until_unlock_or_drop<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.mine.lock().expect("it is free");
    assert!(guard.is_held() && guard.check().is_ok());
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    assert!(setup.theirs.try_lock_owned().expect("a reply").is_none());
    guard.unlock().expect("it was held");
    let guard = setup.theirs.try_lock().expect("a reply").expect("it is free");
    assert!(setup.mine.try_lock().expect("a reply").is_none());
    drop(guard);
    setup.assert_clean();
}

fn a_waiter_gets_the_lock_after_its_release<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| setup.theirs.lock().and_then(SubjectGuard::unlock));
        wait_for_a_waiter(&setup);
        guard.unlock().expect("it was held");
        in_time("the waiter returns", waiter).expect("the lock is granted");
    });
    setup.assert_clean();
}

fn a_wait_is_reported<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.theirs.lock().expect("it is free");
    assert!(setup.mine.try_lock_for(SHORT).expect("a reply").is_none());
    eventually("the wait is reported", || setup.events.waited.load(Ordering::SeqCst) > 0);
    guard.unlock().expect("it was held");
    setup.assert_clean();
}

/// The lock is free while the servers refuse all writes, until a replica is back.
fn a_waiter_survives_a_time_without_replicas<S: Subject>(kind: &Kind<S>) {
    let soon = Duration::from_millis(100);
    let setup = kind.setup_with(|builder| builder.watchdog_timeout(NEVER).poll_interval(soon));
    let guard = setup.mine.lock().expect("it is free");
    setup.wait_for_all_servers(kind, |server| !server.keys().is_empty());
    let need_a_replica = |server: &Server| {
        let mut both = redis::pipe();
        both.cmd("FLUSHALL").cmd("CONFIG").arg(&["SET", "min-replicas-to-write", "1"]);
        both.query::<redis::Value>(&mut server.connection()).expect("an administrator may");
    };
    let calls = || setup.servers.iter().map(|server| server.calls("evalsha")).sum::<u64>();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| setup.theirs.lock().and_then(SubjectGuard::unlock));
        wait_for_a_waiter(&setup);
        setup.servers.iter().for_each(need_a_replica);
        let before = calls();
        eventually("it is refused or has ended", || waiter.is_finished() || calls() >= before + 10);
        if !waiter.is_finished() {
            for server in &setup.servers {
                server.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
            }
        }
        in_time("the waiter returns", waiter).expect("the lock is granted");
    });
    drop(guard);
    setup.assert_clean();
}

/// Blocks until a caller waits: it has been refused, and is subscribed or spins.
fn wait_for_a_waiter<S: Subject>(setup: &Setup<S>) {
    let calls = |server: &Server| server.calls("evalsha");
    let before: u64 = setup.servers.iter().map(calls).sum();
    let is_subscribed = |server: &Server| {
        server.channels().iter().any(|channel| !channel.starts_with("leasehold:"))
    };
    let has_queue =
        |server: &Server| server.keys().iter().any(|key| key.starts_with("leasehold_queue:"));
    eventually("a caller waits", || {
        // A waiter of a spin lock does not subscribe.
        let after: u64 = setup.servers.iter().map(calls).sum();
        let mut servers = setup.servers.iter();
        servers.any(|server| is_subscribed(server) || has_queue(server)) || after > before + 4
    });
}

fn a_wait_ends_at_its_deadline_and_leaves_nothing<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.mine.lock().expect("it is free");
    let began = Instant::now();
    assert!(setup.theirs.try_lock_for(SHORT).expect("a reply").is_none());
    assert!(setup.theirs.try_lock_until(began + 2 * SHORT).expect("a reply").is_none());
    assert!(setup.theirs.try_lock_for_owned(SHORT).expect("a reply").is_none());
    let deadline = Instant::now() + SHORT;
    assert!(setup.theirs.try_lock_until_owned(deadline).expect("a reply").is_none());
    assert!(began.elapsed() >= 4 * SHORT, "a wait ended before its deadline");
    guard.unlock().expect("it was held");
    setup.assert_clean();
}

fn a_cancelled_wait_ends_and_leaves_nothing<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let token = CancelToken::new();
    let guard = setup.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let cancelled = setup.theirs.clone().with_cancel(&token);
        let waiter = scope.spawn(move || cancelled.lock().map(drop));
        wait_for_a_waiter(&setup);
        token.cancel();
        let error = in_time("the waiter returns", waiter).expect_err("it was cancelled");
        assert!(error.is_cancelled(), "{error}");
    });
    guard.unlock().expect("it was held");
    setup.assert_clean();
}

fn a_thread_re_enters_its_lock<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.mine.lock().expect("it is free");
    let calls = |setup: &Setup<S>| -> u64 {
        setup.servers.iter().map(|server| server.calls("evalsha")).sum()
    };
    setup.wait_for_all_servers(kind, |server| !server.keys().is_empty());
    let before = calls(&setup);
    let nested = setup.mine.lock().expect("the thread holds it");
    let third = setup.mine.try_lock().expect("a reply").expect("the thread holds it");
    assert_eq!(setup.mine.hold_count(), 3);
    if kind.re_enters {
        assert_eq!(calls(&setup), before, "re-entry sends no request");
    }
    drop(guard);
    third.unlock().expect("the thread holds it");
    assert!(nested.is_held() && setup.mine.hold_count() == 1);
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    nested.unlock().expect("it was held");
    assert_eq!((setup.mine.hold_count(), setup.mine.is_held()), (0, false));
    setup.assert_clean();
}

fn an_owned_guard_moves_between_threads<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let owned = setup.mine.lock_owned().expect("it is free");
    assert!(!setup.mine.is_held(), "an owned guard belongs to no thread");
    let moved = thread::spawn(move || owned.is_held().then_some(owned));
    let owned = moved.join().expect("no panic").expect("it is held on the other thread");
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    thread::spawn(move || owned.unlock()).join().expect("no panic").expect("it was held");

    let guard = setup.mine.lock().expect("it is free");
    if kind.re_enters && kind.other.is_none() {
        let error =
            setup.mine.lock_owned().map(drop).expect_err("the thread would wait for itself");
        assert!(error.is_deadlock(), "{error}");
        assert!(setup.mine.try_lock_owned().expect("a reply").is_none());
    }
    guard.unlock().expect("it was held");
    drop(setup.theirs.try_lock_owned().expect("a reply").expect("it is free"));
    setup.assert_clean();
}

fn a_fixed_lease_ends<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let brief = setup.mine.clone().with_lease(3 * SHORT);
    let guard = brief.lock().expect("it is free");
    assert!(guard.remaining() <= 3 * SHORT);
    assert!(guard.wait_lost(NEVER), "a fixed lease is not renewed");
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    // No release wakes the waiter: it asks at the end of the lease.
    let next = setup.theirs.lock().expect("the lease is over");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(next.is_held(), "the old guard does not end the next hold");
    next.unlock().expect("it was held");
    eventually("the loss is reported", || setup.events.lost.load(Ordering::SeqCst) > 0);
    setup.assert_clean();
}

fn a_hold_is_renewed<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup_with(|builder| builder.watchdog_timeout(BRISK));
    let (guard, began) = (setup.mine.lock().expect("it is free"), Instant::now());
    let enough = 4 * setup.servers.len();
    eventually("the lease is renewed", || setup.events.renewed.load(Ordering::SeqCst) >= enough);
    eventually("two leases have passed", || began.elapsed() > 2 * BRISK);
    guard.check().expect("the lease is renewed");
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    guard.unlock().expect("it was held");
    setup.assert_clean();
}

fn a_lost_hold_is_reported_and_stays_lost<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup_with(|builder| builder.watchdog_timeout(BRISK));
    let guard = setup.mine.lock().expect("it is free");
    setup.flush();
    let next = setup.theirs.lock().expect("the server has no hold");
    assert!(guard.wait_lost(NEVER), "the watchdog notices the loss");
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the loss is reported", || setup.events.lost.load(Ordering::SeqCst) > 0);
    assert!(next.is_held() && setup.mine.try_lock().expect("a reply").is_none());
    next.unlock().expect("it was held");
    setup.assert_clean();
}

fn force_unlock_ends_the_hold<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    assert!(!setup.mine.force_unlock().expect("a reply"), "it is free");
    let guard = setup.mine.lock().expect("it is free");
    // A server without this hold could grant the next one before the release by force arrives.
    setup.wait_for_all_servers(kind, |server| !server.keys().is_empty());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| setup.theirs.lock().and_then(SubjectGuard::unlock));
        wait_for_a_waiter(&setup);
        assert!(setup.mine.force_unlock().expect("a reply"));
        in_time("the waiter returns", waiter).expect("the lock is granted");
    });
    assert!(guard.check().is_err_and(|error| error.is_lost()), "a hold of the same process");
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    setup.assert_clean();
}

fn queries_report_the_state<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    assert!(!setup.mine.is_locked().expect("a reply") && !setup.mine.is_held());
    assert_eq!(setup.theirs.remaining().expect("a reply"), None);
    let guard = setup.mine.lock().expect("it is free");
    let other = setup.seen_by_others(kind);
    assert!(other.is_locked().expect("a reply") && !setup.theirs.is_held());
    assert!(setup.mine.is_held() && setup.mine.hold_count() == 1);
    assert_eq!(thread::scope(|s| s.spawn(|| setup.mine.hold_count()).join().expect("no panic")), 0);
    let remaining = other.remaining().expect("a reply").expect("it is held");
    assert!(remaining <= NEVER && guard.remaining() <= remaining, "{remaining:?}");
    guard.unlock().expect("it was held");
    assert!(!setup.theirs.is_locked().expect("a reply"));
    setup.assert_clean();
}

fn an_extension_never_shortens_a_lease<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.mine.clone().with_lease(NEVER).lock().expect("it is free");
    guard.extend(NEVER / 2).expect("it is held");
    assert!(guard.remaining() > NEVER / 2);
    guard.extend(2 * NEVER).expect("it is held");
    assert!(guard.remaining() > NEVER);
    setup.wait_for_all_servers(kind, |server| pttl(server, "a") > NEVER.as_millis() as i64);
    let remaining = setup.seen_by_others(kind).remaining().expect("a reply").expect("it is held");
    assert!(remaining > NEVER && guard.remaining() <= remaining, "{remaining:?}");
    assert!(guard.extend(Duration::ZERO).is_err_and(|error| error.is_configuration()));
    guard.unlock().expect("it was held");
    setup.assert_clean();
}

fn a_detached_hold_is_ended_by_unlock<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    assert!(setup.mine.unlock().is_err_and(|error| error.is_not_held()));
    setup.mine.lock().expect("it is free").detach();
    assert!(setup.mine.is_held() && setup.theirs.try_lock().expect("a reply").is_none());
    setup.mine.unlock().expect("it was detached");
    setup.mine.lock_owned().expect("it is free").detach();
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    let moved = setup.mine.clone();
    thread::spawn(move || moved.unlock()).join().expect("no panic").expect("it was detached");
    assert!(setup.mine.unlock().is_err_and(|error| error.is_not_held()));
    setup.assert_clean();
}

fn a_closed_client_grants_no_lock<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.theirs.lock().expect("it is free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| setup.mine.lock().map(drop));
        wait_for_a_waiter(&setup);
        setup.clients[0].close();
        let error = in_time("the waiter returns", waiter).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
    });
    let error = setup.mine.try_lock().map(drop).expect_err("the client is closed");
    assert!(error.is_closed(), "{error}");
    guard.unlock().expect("it was held");
    setup.assert_clean();
}

fn a_short_lease_and_a_key_of_another_type_are_refused<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let too_short = setup.mine.clone().with_lease(Duration::from_millis(9));
    assert!(too_short.lock().is_err_and(|error| error.is_configuration()));
    setup.servers.iter().for_each(|server| server.ask::<()>(&["SET", "a", "a text"]));
    let error = setup.mine.try_lock().map(drop).expect_err("the key is no lock");
    assert!(error.is_server(), "{error}");
    setup.flush();
    drop(setup.mine.try_lock().expect("a reply").expect("it is free"));
    setup.assert_clean();
}

fn an_overwritten_key_is_a_loss_at_the_release<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    for unlocks in [true, false] {
        let guard = setup.mine.lock_owned().expect("it is free");
        setup.wait_for_all_servers(kind, |server| !server.keys().is_empty());
        for server in &setup.servers {
            let names = server.keys().into_iter().filter(|key| key.len() == 1);
            names.for_each(|name| server.ask::<()>(&["SET", &name, "a text"]));
        }
        let before = setup.events.lost.load(Ordering::SeqCst);
        if unlocks {
            let error = guard.unlock().expect_err("the key was overwritten");
            assert!(error.is_lost(), "{error}");
        } else {
            drop(guard);
        }
        let lost = || setup.events.lost.load(Ordering::SeqCst);
        eventually("the loss is reported", || lost() > before);
        setup.flush();
    }
    setup.assert_clean();
}

fn no_increment_is_lost<S: Subject>(kind: &Kind<S>) {
    const THREADS: usize = 3;
    const EACH: usize = 60;
    let setup = kind.setup();
    let (inside, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |lock: &S| {
        for _ in 0..EACH {
            let guard = lock.lock_owned().expect("the lock is granted in the end");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two callers are inside");
            let before = count.load(Ordering::SeqCst);
            thread::yield_now();
            count.store(before + 1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
    };
    let threads = if kind.excludes_threads { THREADS } else { 1 };
    thread::scope(|scope| {
        for lock in [&setup.mine, &setup.theirs] {
            for _ in 0..threads {
                scope.spawn(|| work(lock));
            }
        }
    });
    assert_eq!(count.into_inner(), 2 * threads * EACH);
    setup.assert_clean();
}

fn each_of_many_waiters_gets_the_lock<S: Subject>(kind: &Kind<S>) {
    let setup = kind.setup();
    let guard = setup.mine.lock().expect("it is free");
    thread::scope(|scope| {
        let (mine, theirs) = (&setup.mine, &setup.theirs);
        let waiters = [mine, theirs, mine, theirs, theirs]
            .map(|lock| scope.spawn(move || lock.lock().and_then(SubjectGuard::unlock)));
        wait_for_a_waiter(&setup);
        guard.unlock().expect("it was held");
        for waiter in waiters {
            in_time("a waiter returns", waiter).expect("the lock is granted");
        }
    });
    setup.assert_clean();
}
