//! The fair lock: callers of all processes get the lock in the order of their requests.

use crate::harness::faults::{BRISK, NEVER, build, patient};
use crate::harness::process::{self, ChildProcess};
use crate::harness::{Proxy, Server, eventually, in_time};
use leasehold::{CancelToken, Client};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

const QUEUE: &str = "redisson_lock_queue:{a}";
const TIMEOUTS: &str = "redisson_lock_timeout:{a}";

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    let client =
        Client::builder().single(role.arg(0)).fair_waiter_timeout(Duration::from_secs(1)).build();
    let client = client.expect("the server answers");
    let lock = client.fair_lock("a");
    let _ = lock.lock();
    role.say("locked");
}

fn length(server: &Server) -> usize {
    server.ask(&["LLEN", QUEUE])
}

#[test]
fn callers_of_several_clients_get_the_lock_in_the_order_of_their_requests() {
    const WAITERS: usize = 9;
    let server = Server::start();
    let clients: Vec<_> = (0..3).map(|_| build(patient(server.url()))).collect();
    let guard = clients[0].fair_lock("a").lock().expect("it is free");
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..WAITERS {
            let (lock, order) = (clients[number % 3].fair_lock("a"), &order);
            scope.spawn(move || {
                let guard = lock.lock().expect("the lock is granted in the end");
                order.lock().expect("no panic").push(number);
                guard.unlock().expect("it was held");
            });
            eventually("the waiter is in the queue", || length(&server) == number + 1);
        }
        assert!(clients[1].fair_lock("a").try_lock().expect("a reply").is_none());
        assert_eq!(length(&server), WAITERS, "a caller that does not wait does not queue");
        guard.unlock().expect("it was held");
    });
    assert_eq!(order.into_inner().expect("no panic"), Vec::from_iter(0..WAITERS));
    assert!(server.keys().is_empty());
}

/// The lock is free, but another waiter is the first in the queue of the server.
#[test]
fn a_free_lock_is_granted_only_to_the_first_waiter() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let now: Vec<i64> = server.ask(&["TIME"]);
    let later = ((now[0] + 600) * 1000).to_string();
    server.ask::<()>(&["RPUSH", QUEUE, "another"]);
    server.ask::<()>(&["ZADD", TIMEOUTS, &later, "another"]);
    let lock = client.fair_lock("a");
    assert!(lock.try_lock().expect("a reply").is_none());
    let before = server.calls("evalsha");
    assert!(lock.try_lock_for(Duration::from_millis(300)).expect("a reply").is_none());
    let requests = server.calls("evalsha") - before;
    assert!(requests <= 4, "{requests} requests without a pause");
    eventually("the caller has left the queue", || length(&server) == 1);
}

/// The lock is held for longer than `fair_waiter_timeout`.
#[test]
fn a_live_waiter_keeps_its_place_in_the_queue() {
    let server = Server::start();
    let settings = || patient(server.url()).fair_waiter_timeout(BRISK).poll_interval(BRISK / 6);
    let holder = build(settings().watchdog_timeout(BRISK));
    let (first, second) = (build(settings()), build(settings()));
    let guard = holder.fair_lock("a").lock().expect("it is free");
    let order = Mutex::new(Vec::new());
    let wait = |name: &'static str, client: &Client| {
        let guard = client.fair_lock("a").lock().expect("the lock is granted in the end");
        order.lock().expect("no panic").push(name);
        guard.unlock().expect("it was held");
    };
    thread::scope(|scope| {
        let one = scope.spawn(|| wait("first", &first));
        eventually("the waiter is in the queue", || length(&server) == 1);
        let two = scope.spawn(|| wait("second", &second));
        eventually("both waiters are in the queue", || length(&server) == 2);
        // A waiter that times out and queues again would get another place or field.
        let places: Vec<String> = server.ask(&["LRANGE", QUEUE, "0", "-1"]);
        let score = || -> f64 { server.ask(&["ZSCORE", TIMEOUTS, &places[0]]) };
        let much_later = score() + 4.0 * BRISK.as_millis() as f64;
        eventually("its time-out is extended several times", || score() > much_later);
        assert_eq!(server.ask::<Vec<String>>(&["LRANGE", QUEUE, "0", "-1"]), places);
        guard.unlock().expect("it was held");
        in_time("the first returns", one);
        in_time("the second returns", two);
    });
    assert_eq!(order.into_inner().expect("no panic"), ["first", "second"]);
}

/// The first waiter leaves before the release, which then wakes the next one.
#[test]
fn a_cancelled_waiter_passes_its_turn_on() {
    let server = Server::start();
    let (holder, client) = (build(patient(server.url())), build(patient(server.url())));
    let guard = holder.fair_lock("a").lock().expect("it is free");
    let token = CancelToken::new();
    thread::scope(|scope| {
        let leaving = client.fair_lock("a").with_cancel(&token);
        let leaving = scope.spawn(move || leaving.lock().map(drop));
        eventually("the waiter is in the queue", || length(&server) == 1);
        let staying = scope.spawn(|| client.fair_lock("a").lock().map(drop));
        eventually("both waiters are in the queue", || length(&server) == 2);
        token.cancel();
        assert!(
            in_time("the cancelled call returns", leaving).is_err_and(|error| error.is_cancelled())
        );
        eventually("the cancelled waiter has left", || length(&server) == 1);
        guard.unlock().expect("it was held");
        in_time("the other call returns", staying).expect("the lock is granted");
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// No release is sent: the first waiter asks at the end of the lease, before its poll interval.
#[test]
fn the_first_waiter_gets_the_lock_of_a_dead_holder() {
    let server = Server::start();
    let client = build(patient(server.url()));
    server.ask::<()>(&["HSET", "a", "another", "1"]);
    server.ask::<()>(&["PEXPIRE", "a", "300"]);
    let guard = client.fair_lock("a").try_lock_for(NEVER).expect("a reply");
    drop(guard.expect("the lease is over"));
    eventually("nothing is left", || server.keys().is_empty());
}

/// A dead waiter delays the next one by `fair_waiter_timeout`. Its data in Redis expires.
#[test]
fn a_dead_waiter_is_skipped() {
    let server = Server::start();
    // The lease outlives the test. The time-out of the dead waiter begins at the release.
    let settings = patient(server.url()).fair_waiter_timeout(Duration::from_secs(1));
    let client = build(settings.poll_interval(Duration::from_millis(100)));
    let guard = client.fair_lock("a").lock().expect("it is free");
    let dying = ChildProcess::start("fair::child_entry", "waiter", &[&server.url()]);
    eventually("the waiter is in the queue", || length(&server) == 1);
    drop(dying);
    let dead: Vec<String> = server.ask(&["LRANGE", QUEUE, "0", "-1"]);
    for key in [QUEUE, TIMEOUTS] {
        assert!(server.ask::<i64>(&["PTTL", key]) > 0, "{key} has no expiry");
    }
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.fair_lock("a").lock().map(drop));
        eventually("another waiter queues", || {
            server.ask::<Vec<String>>(&["LRANGE", QUEUE, "0", "-1"]) != dead
        });
        guard.unlock().expect("it was held");
        in_time("the waiter returns", waiter).expect("the dead waiter is skipped");
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// A server that becomes reachable again gets no clean-ups of requests that it never received.
#[test]
fn requests_that_were_never_written_are_not_undone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let lock = client.fair_lock("a");
    lock.lock().and_then(leasehold::Guard::unlock).expect("all is well");
    proxy.refuse();
    proxy.kill_all();
    for _ in 0..20 {
        assert!(lock.try_lock_for(Duration::from_secs(1)).is_err_and(|it| it.is_connection()));
    }
    proxy.heal();
    let before = server.calls("evalsha");
    lock.lock().and_then(leasehold::Guard::unlock).expect("all is well again");
    let requests = server.calls("evalsha") - before;
    assert!(requests <= 10, "{requests} requests: also one clean-up for each failed call");
}

/// Redisson reports success here.
#[test]
fn the_release_of_a_deleted_lock_is_an_error() {
    let server = Server::start();
    let guard = build(patient(server.url())).fair_lock("a").lock().expect("it is free");
    server.ask::<()>(&["DEL", "a"]);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
}
