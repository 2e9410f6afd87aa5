//! The fenced lock: tokens grow from hold to hold, even if the counter is lost.

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::{Server, eventually, join, sleeping};
use leasehold::FencedLock;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

const COUNTER: &str = "redisson_lock_token:{a}";

fn token(lock: &FencedLock) -> u64 {
    let guard = lock.lock().expect("it is free");
    let token = guard.token();
    guard.unlock().expect("it was held");
    token
}

#[test]
fn tokens_grow_from_hold_to_hold_across_clients_and_lost_counters() {
    let server = Server::start();
    let clients = [build(patient(server.url())), build(patient(server.url()))];
    let locks = clients.each_ref().map(|client| client.fenced_lock("a"));
    let mut last = 0;
    let mut grows = |lock: &FencedLock| {
        let token = token(lock);
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    (0..10).for_each(|round| grows(&locks[round % 2]));
    server.ask::<()>(&["DEL", COUNTER]);
    (0..2).for_each(|round| grows(&locks[round % 2]));
    server.ask::<()>(&["SET", COUNTER, "5"]);
    (0..2).for_each(|round| grows(&locks[round % 2]));
    assert_eq!(server.ask::<i64>(&["TTL", COUNTER]), -1);
}

#[test]
fn nested_guards_have_the_token_of_their_hold() {
    let server = Server::start();
    let lock = build(patient(server.url())).fenced_lock("a");
    let guard = lock.lock().expect("it is free");
    let nested = lock.lock().expect("re-entry");
    assert!(guard.token() > 0 && guard.token() == nested.token());
    let first = guard.token();
    drop((guard, nested));
    let owned = lock.lock_owned().expect("it is free");
    assert!(owned.token() > first);
}

/// The tokens of locally handed-off holds grow too, and never exceed the server's counter.
#[test]
fn each_local_hand_off_has_its_own_larger_token() {
    const THREADS: usize = 8;
    const EACH: usize = 50;
    let server = Server::start();
    let client = build(patient(server.url()).local_handoff(1000, NEVER));
    let lock = client.fenced_lock("a");
    let tokens = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let guard = lock.lock().expect("the lock is granted in the end");
                    tokens.lock().expect("no panic").push(guard.token());
                }
            });
        }
    });
    let tokens = tokens.into_inner().expect("no panic");
    assert_eq!(tokens.len(), THREADS * EACH);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let counter: u64 = server.ask(&["GET", COUNTER]);
    assert!(counter >= *tokens.last().expect("there are tokens"));
    eventually("the lock is released", || server.keys() == [COUNTER]);
    let acquires = server.calls("set");
    assert!(acquires < (THREADS * EACH) as u64 / 2, "{acquires} acquires: there were no hand-offs");
}

/// An acquire reserves one token per caller in the queue. A later caller needs another acquire.
#[test]
fn a_hold_without_a_reserved_token_left_is_not_handed_off() {
    let server = Server::start();
    let client = build(patient(server.url()).local_handoff(1000, NEVER));
    let lock = client.fenced_lock("a");
    let guard = lock.lock().expect("it is free");
    let first = guard.token();
    let waiter = sleeping("late", move || token(&lock));
    guard.unlock().expect("it was held");
    assert!(join(waiter) > first);
    assert_eq!(server.calls("set"), 2, "the second hold needs an acquire");
}

/// Redisson reports such a lock as acquired, with the token -1.
#[test]
fn a_held_lock_without_a_time_to_live_is_not_acquired() {
    let server = Server::start();
    let lock = build(patient(server.url())).fenced_lock("a");
    server.ask::<()>(&["HSET", "a", "another", "1"]);
    assert!(lock.try_lock().expect("a reply").is_none());
    assert!(lock.try_lock_for(Duration::from_millis(300)).expect("a reply").is_none());
    assert_eq!(server.keys(), ["a"], "no token is used");
}

/// Redisson's `lockAndGetToken(lease)` ignores its lease.
#[test]
fn the_lease_of_a_call_is_respected() {
    let server = Server::start();
    let lock = build(patient(server.url())).fenced_lock("a").with_lease(NEVER / 4);
    let guard = lock.lock().expect("it is free");
    assert!(guard.remaining() <= NEVER / 4 && guard.remaining() > NEVER / 5);
    let remaining: i64 = server.ask(&["PTTL", "a"]);
    assert!(u128::try_from(remaining).expect("the key has an expiry") <= (NEVER / 4).as_millis());
}
