//! The multi-lock: it acquires all its members or none, in any order of their names.

use crate::harness::bare::{
    Bare, MINE, OTHER, assert_ttl, documented_replies, hold, is_refused_as,
};
use crate::harness::faults::{NEVER, build, owners, patient};
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Proxy, Server, eventually, exists, in_time};
use leasehold::{AnyLock, Client, MultiGuard, MultiLock};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

fn multi_lock(client: &Client, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| client.lock(*name)))
}

#[test]
fn the_acquire_script_replies_as_documented() {
    let held = "else the position (from 1) of a lock that another owner holds, and its remaining \
                lease in ms, negative without expiry";
    assert_eq!(documented_replies("multi_acquire"), ["an empty list if all are acquired", held]);
    let mut bare = Bare::start();
    let keys = ["a", "b", "c"];
    let take = |bare: &mut Bare| -> Vec<i64> {
        bare.try_call("multi_acquire", &keys, &["60000", MINE, MINE, MINE]).expect("a list")
    };
    hold(&bare.server, "b", OTHER, "50000");
    let refused = take(&mut bare);
    assert!(refused[0] == 2 && (25_000..=50_000).contains(&refused[1]), "{refused:?}");
    assert_eq!(bare.server.keys(), ["b"], "a refusal acquires no member");
    bare.server.ask::<()>(&["PERSIST", "b"]);
    assert_eq!(take(&mut bare), [2, -1]);
    bare.server.ask::<()>(&["DEL", "b"]);
    // The second call re-acquires the owner's own locks.
    for _ in 0..2 {
        assert_eq!(take(&mut bare), [] as [i64; 0]);
        for key in keys {
            assert_eq!(owners(&bare.server, key), [(MINE.into(), 1)].into());
        }
    }
    for key in keys {
        assert_ttl(&bare.server, key, 30_000..=60_000);
    }
    bare.server.ask::<()>(&["SET", "c", "a text"]);
    bare.server.ask::<()>(&["DEL", "a", "b"]);
    let error = bare.try_call::<Vec<i64>>("multi_acquire", &keys, &["1", MINE, MINE, MINE]);
    assert!(is_refused_as("WRONGTYPE", &error.expect_err("no lock")));
    assert_eq!(bare.server.keys(), ["c"]);
}

#[test]
fn plain_locks_of_one_client_take_one_request() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let lock = multi_lock(&client, &["a", "b", "c", "b"]);
    lock.lock().and_then(MultiGuard::unlock).expect("free");
    let before = server.calls("evalsha");
    let guard = lock.lock().expect("free");
    assert_eq!(server.calls("evalsha") - before, 1);
    assert_eq!(server.keys(), ["a", "b", "c"]);
    let nested = lock.lock().expect("re-entry");
    let more = multi_lock(&client, &["b", "d"]).lock().expect("b is held by the thread, d is free");
    assert_eq!(server.calls("evalsha") - before, 2);
    drop((guard, more));
    assert!(nested.is_held());
    eventually("d is released", || server.keys() == ["a", "b", "c"]);
    nested.unlock().expect("held");
    assert!(server.keys().is_empty());
}

#[test]
fn a_waiter_for_one_member_holds_no_other() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let held = theirs.lock("b").lock().expect("free");
    let lock = multi_lock(&mine, &["a", "b", "c"]);
    assert!(lock.try_lock().expect("a reply").is_none());
    assert_eq!(server.keys(), ["b"]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock_owned());
        eventually("the caller waits for b", || server.numsub("redisson_lock__channel:{b}") == 1);
        eventually("the caller holds nothing", || server.keys() == ["b"]);
        let other = theirs.lock("c").lock().expect("free");
        held.unlock().expect("held");
        // The caller gets b, is refused c, releases b and waits for c.
        eventually("the caller waits for c", || server.numsub("redisson_lock__channel:{c}") == 1);
        eventually("the caller holds nothing", || server.keys() == ["c"]);
        other.unlock().expect("held");
        let guard = in_time("the call returns", waiter).expect("all are free");
        assert!(guard.is_held() && server.keys() == ["a", "b", "c"]);
        guard.unlock().expect("held");
    });
}

#[test]
fn callers_with_different_orders_of_names_do_not_deadlock() {
    const EACH: usize = 30;
    let server = Server::start();
    let clients = [build(patient(server.url())), build(patient(server.url()))];
    let inside = AtomicUsize::new(0);
    let names = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["c", "a", "b"]];
    thread::scope(|scope| {
        for (number, names) in names.iter().enumerate() {
            // One member is fenced, so one request cannot acquire all members.
            let client = &clients[number % 2];
            let [first, rest @ ..] = names;
            let members = rest.iter().map(|name| AnyLock::from(client.lock(*name)));
            let fenced = AnyLock::from(client.fenced_lock(*first));
            let lock = MultiLock::new(members.chain([fenced]));
            let inside = &inside;
            scope.spawn(move || {
                for _ in 0..EACH {
                    let guard = lock.lock().expect("the lock is granted in the end");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().expect("held");
                }
            });
        }
    });
    for name in ["a", "b", "c"] {
        assert!(!exists(&server, name), "{name}");
    }
}

/// Other callers of the process always queue for each member.
#[test]
fn queues_that_never_end_do_not_starve_a_multi_lock() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in ["a", "a", "a", "b", "b", "b"] {
            let (lock, stop) = (client.lock(name), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.lock().expect("the lock is granted in the end");
                    thread::yield_now();
                    drop(guard);
                }
            });
        }
        let both = multi_lock(&client, &["a", "b"]);
        let waiter = scope.spawn(move || both.lock().and_then(MultiGuard::unlock));
        let got = holds_within(BOUND, || waiter.is_finished());
        stop.store(true, Ordering::Relaxed);
        waiter.join().expect("no panic").expect("both are granted in the end");
        assert!(got, "the waiter got the locks only after the others ended");
    });
}

/// A stopped server does not delay the release on another server.
#[test]
fn an_unlock_sends_all_releases_before_it_waits_for_replies() {
    let servers = [Server::start(), Server::start()];
    let clients = servers.each_ref().map(|server| build(patient(server.url())));
    let lock = MultiLock::new(clients.iter().map(|client| client.lock("a")));
    lock.lock().and_then(MultiGuard::unlock).expect("free");
    for (stopped, other) in [(0, 1), (1, 0)] {
        let guard = lock.lock_owned().expect("free");
        servers[stopped].stop();
        thread::scope(|scope| {
            let unlocking = scope.spawn(|| guard.unlock());
            eventually("the other member is released", || !exists(&servers[other], "a"));
            servers[stopped].resume();
            in_time("the unlock returns", unlocking).expect("both were held");
        });
    }
}

#[test]
fn members_that_exclude_each_other_are_refused() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let sides = client.rw_lock("a");
    let sides = [AnyLock::from(sides.read_lock()), sides.write_lock().into()];
    let kinds = [AnyLock::from(client.lock("a")), client.fenced_lock("a").into()];
    let queued = [AnyLock::from(client.queue_lock("a")), client.fenced_lock("a").into()];
    for members in [sides, kinds, queued] {
        let lock = MultiLock::new(members);
        assert!(lock.lock_owned().is_err_and(|error| error.is_deadlock()));
        assert!(lock.try_lock().is_err_and(|error| error.is_deadlock()));
    }
    assert!(server.keys().is_empty());
}

#[test]
fn a_waiter_survives_an_outage_of_one_server() {
    let servers = [Server::start(), Server::start()];
    let proxy = Proxy::start(servers[0].addr());
    let clients = [build(patient(proxy.url())), build(patient(servers[1].url()))];
    let held = build(patient(servers[1].url())).lock("b").lock_owned().expect("free");
    let lock = MultiLock::new([clients[0].lock("a"), clients[1].lock("b")]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        eventually("the caller waits for b", || {
            servers[1].numsub("redisson_lock__channel:{b}") == 1
        });
        eventually("the caller holds nothing", || servers[0].keys().is_empty());
        let refused = proxy.stats().refused;
        proxy.refuse();
        proxy.kill_all();
        held.unlock().expect("held");
        proxy.wait_until("the client tries to connect", |stats| stats.refused > refused + 1);
        proxy.heal();
        in_time("the call returns", waiter).expect("both are free");
    });
}

#[test]
fn the_loss_of_one_member_is_the_loss_of_the_guard() {
    let server = Server::start();
    let client = build(patient(server.url()).watchdog_timeout(Duration::from_millis(600)));
    let guard = multi_lock(&client, &["a", "b"]).lock_owned().expect("free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.wait_lost(NEVER));
        server.ask::<()>(&["DEL", "b"]);
        assert!(in_time("wait_lost returns", waiting));
    });
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(server.keys().is_empty(), "the other member is released");
}

#[test]
fn a_multi_lock_without_members_is_refused() {
    let none = MultiLock::new(Vec::<AnyLock>::new());
    assert!(none.lock().is_err_and(|error| error.is_configuration()));
    assert!(!none.is_held());
}
