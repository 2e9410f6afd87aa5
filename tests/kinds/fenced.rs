//! The fenced lock: tokens that grow, whatever happens.

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
    let nested = lock.lock().expect("it has it");
    assert!(guard.token() > 0 && guard.token() == nested.token());
    let (first, owned) = (guard.token(), {
        drop((guard, nested));
        lock.lock_owned().expect("it is free")
    });
    assert!(owned.token() > first);
}

/// Threads that hand the lock on without a round trip have tokens of their own, in the
/// order in which they had it; and the server's counter is never behind.
#[test]
fn each_local_pass_has_its_own_larger_token() {
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
                    let guard = lock.lock().expect("it comes round");
                    tokens.lock().expect("no panic").push(guard.token());
                }
            });
        }
    });
    let tokens = tokens.into_inner().expect("no panic");
    assert_eq!(tokens.len(), THREADS * EACH);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let counter: u64 = server.ask(&["GET", COUNTER]);
    assert!(counter >= *tokens.last().expect("some"));
    eventually("it is released", || server.keys() == [COUNTER]);
    let asked = server.calls("set");
    assert!(asked < (THREADS * EACH) as u64 / 2, "{asked} acquires: nothing was passed");
}

/// The block is as long as the line was; who comes later has to ask.
#[test]
fn a_pass_without_a_token_left_is_a_real_release() {
    let server = Server::start();
    let client = build(patient(server.url()).local_handoff(1000, NEVER));
    let lock = client.fenced_lock("a");
    let guard = lock.lock().expect("it is free");
    let first = guard.token();
    let waiter = sleeping("late", move || token(&lock));
    guard.unlock().expect("it was held");
    assert!(join(waiter) > first);
    assert_eq!(server.calls("set"), 2, "the second hold is another one");
}

/// Redisson's own answer to this is "acquired", with the token -1.
#[test]
fn a_lock_without_a_time_to_live_is_not_taken_for_acquired() {
    let server = Server::start();
    let lock = build(patient(server.url())).fenced_lock("a");
    server.ask::<()>(&["HSET", "a", "somebody", "1"]);
    assert!(lock.try_lock().expect("an answer").is_none());
    assert!(lock.try_lock_for(Duration::from_millis(300)).expect("an answer").is_none());
    assert_eq!(server.keys(), ["a"], "and no token is taken");
}

/// Redisson's `lockAndGetToken(lease)` ignores it.
#[test]
fn a_lease_is_kept_to() {
    let server = Server::start();
    let lock = build(patient(server.url())).fenced_lock("a").with_lease(NEVER / 4);
    let guard = lock.lock().expect("it is free");
    assert!(guard.remaining() <= NEVER / 4 && guard.remaining() > NEVER / 5);
    let left: i64 = server.ask(&["PTTL", "a"]);
    assert!(u128::try_from(left).expect("an end") <= (NEVER / 4).as_millis());
}
