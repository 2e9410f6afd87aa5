//! The fair lock: the order is the one in which callers came, wherever they are.

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::process::{self, ChildProcess};
use crate::harness::{Proxy, Server, eventually, in_time};
use leasehold::{CancelToken, Client};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

const QUEUE: &str = "redisson_lock_queue:{a}";
const DEATHS: &str = "redisson_lock_timeout:{a}";

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    let client =
        Client::builder().single(role.arg(0)).fair_waiter_timeout(Duration::from_secs(1)).build();
    let client = client.expect("the server is there");
    let lock = client.fair_lock("a");
    let _ = lock.lock();
    role.say("got it");
}

fn length(server: &Server) -> usize {
    server.ask(&["LLEN", QUEUE])
}

#[test]
fn callers_of_several_clients_and_threads_come_in_the_order_in_which_they_asked() {
    const WAITERS: usize = 9;
    let server = Server::start();
    let clients: Vec<_> = (0..3).map(|_| build(patient(server.url()))).collect();
    let guard = clients[0].fair_lock("a").lock().expect("it is free");
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..WAITERS {
            let (lock, order) = (clients[number % 3].fair_lock("a"), &order);
            scope.spawn(move || {
                let guard = lock.lock().expect("it comes round");
                order.lock().expect("no panic").push(number);
                guard.unlock().expect("it was held");
            });
            eventually("it stands in the queue", || length(&server) == number + 1);
        }
        assert!(clients[1].fair_lock("a").try_lock().expect("an answer").is_none());
        assert_eq!(length(&server), WAITERS, "who would not wait does not queue");
        guard.unlock().expect("it was held");
    });
    assert_eq!(order.into_inner().expect("no panic"), Vec::from_iter(0..WAITERS));
    assert!(server.keys().is_empty());
}

/// A lock that is free and somebody's turn is not taken by who comes by.
#[test]
fn nobody_overtakes_who_waits_for_a_free_lock() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let now: Vec<i64> = server.ask(&["TIME"]);
    let later = ((now[0] + 600) * 1000).to_string();
    server.ask::<()>(&["RPUSH", QUEUE, "somebody"]);
    server.ask::<()>(&["ZADD", DEATHS, &later, "somebody"]);
    let lock = client.fair_lock("a");
    assert!(lock.try_lock().expect("an answer").is_none());
    let asked = server.calls("evalsha");
    assert!(lock.try_lock_for(Duration::from_millis(300)).expect("an answer").is_none());
    let asked = server.calls("evalsha") - asked;
    assert!(asked <= 4, "it asked {asked} times without pause");
    eventually("it has left the queue", || length(&server) == 1);
}

/// The holder takes longer than after how long waiters are taken for dead.
#[test]
fn a_live_waiter_keeps_its_place_however_long_it_takes() {
    let server = Server::start();
    let brief = Duration::from_millis(300);
    let settings = || patient(server.url()).fair_waiter_timeout(brief).poll_interval(brief / 6);
    let holder = build(settings().watchdog_timeout(brief));
    let (first, second) = (build(settings()), build(settings()));
    let guard = holder.fair_lock("a").lock().expect("it is free");
    let order = Mutex::new(Vec::new());
    let wait = |name: &'static str, client: &Client| {
        let guard = client.fair_lock("a").lock().expect("it comes round");
        order.lock().expect("no panic").push(name);
        guard.unlock().expect("it was held");
    };
    thread::scope(|scope| {
        let one = scope.spawn(|| wait("first", &first));
        eventually("it stands in the queue", || length(&server) == 1);
        let two = scope.spawn(|| wait("second", &second));
        eventually("so does the other", || length(&server) == 2);
        // Neither may be thrown out and come back.
        let places: Vec<String> = server.ask(&["LRANGE", QUEUE, "0", "-1"]);
        let score = || -> f64 { server.ask(&["ZSCORE", DEATHS, &places[0]]) };
        let began = score();
        let much_later = began + 4.0 * brief.as_millis() as f64;
        eventually("its death has moved on, again and again", || score() > much_later);
        assert_eq!(server.ask::<Vec<String>>(&["LRANGE", QUEUE, "0", "-1"]), places);
        guard.unlock().expect("it was held");
        in_time("the first", one);
        in_time("the second", two);
    });
    assert_eq!(order.into_inner().expect("no panic"), ["first", "second"]);
}

/// It had the message that the lock is free, and leaves: the next one gets it at once.
#[test]
fn who_leaves_passes_the_message_on() {
    let server = Server::start();
    let (holder, client) = (build(patient(server.url())), build(patient(server.url())));
    let guard = holder.fair_lock("a").lock().expect("it is free");
    let token = CancelToken::new();
    thread::scope(|scope| {
        let leaving = client.fair_lock("a").with_cancel(&token);
        let leaving = scope.spawn(move || leaving.lock().map(drop));
        eventually("it stands in the queue", || length(&server) == 1);
        let staying = scope.spawn(|| client.fair_lock("a").lock().map(drop));
        eventually("so does the other", || length(&server) == 2);
        token.cancel();
        assert!(in_time("the one", leaving).is_err_and(|error| error.is_cancelled()));
        eventually("it has left", || length(&server) == 1);
        guard.unlock().expect("it was held");
        in_time("the other", staying).expect("it got the lock");
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// Nobody releases: the first asks at the end of the lease, though its poll interval is far.
#[test]
fn the_lock_of_a_dead_holder_goes_to_the_first() {
    let server = Server::start();
    let client = build(patient(server.url()));
    server.ask::<()>(&["HSET", "a", "somebody", "1"]);
    server.ask::<()>(&["PEXPIRE", "a", "300"]);
    let guard = client.fair_lock("a").try_lock_for(NEVER).expect("an answer");
    drop(guard.expect("its lease is over"));
    eventually("nothing is left", || server.keys().is_empty());
}

/// A process dies in the queue: those behind it wait for the fair wait, not for ever, and
/// what it leaves in Redis has an end.
#[test]
fn a_waiter_whose_process_died_is_passed_over() {
    let server = Server::start();
    // The lease has long to go when the lock is released: the dead one's time begins then.
    let settings = patient(server.url()).fair_waiter_timeout(Duration::from_secs(1));
    let client = build(settings.poll_interval(Duration::from_millis(100)));
    let guard = client.fair_lock("a").lock().expect("it is free");
    let dying = ChildProcess::start("fair::child_entry", "waiter", &[&server.url()]);
    eventually("it stands in the queue", || length(&server) == 1);
    drop(dying);
    let dead: Vec<String> = server.ask(&["LRANGE", QUEUE, "0", "-1"]);
    for key in [QUEUE, DEATHS] {
        assert!(server.ask::<i64>(&["PTTL", key]) > 0, "{key} has an end");
    }
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.fair_lock("a").lock().map(drop));
        eventually("another queues", || {
            server.ask::<Vec<String>>(&["LRANGE", QUEUE, "0", "-1"]) != dead
        });
        guard.unlock().expect("it was held");
        in_time("the waiter", waiter).expect("the dead one is passed over");
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// A server that is away is not flooded, when it is back, by who never reached it.
#[test]
fn calls_that_were_never_written_leave_nothing_to_undo() {
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
    let asked = server.calls("evalsha") - before;
    assert!(asked <= 10, "that, and not one more for each of the others: {asked}");
}

/// Redisson says "released".
#[test]
fn releasing_a_lock_that_is_gone_is_an_error() {
    let server = Server::start();
    let guard = build(patient(server.url())).fair_lock("a").lock().expect("it is free");
    server.ask::<()>(&["DEL", "a"]);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
}
