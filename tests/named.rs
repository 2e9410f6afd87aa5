//! Holders with a name: whoever presents it enters, and the count is in Redis.

mod faults;
mod support;

use faults::{NEVER, build, owners, patient};
use leasehold::{Client, Lock};
use std::thread;
use std::time::Duration;
use support::{Direction, Flow, Proxy, Server, eventually, in_time};

fn acquire_digest(server: &Server) -> String {
    server.ask(&["SCRIPT", "LOAD", include_str!("../lua/named_acquire.lua")])
}

fn release_digest(server: &Server) -> String {
    server.ask(&["SCRIPT", "LOAD", include_str!("../lua/named_release.lua")])
}

fn lock(client: &Client) -> Lock {
    client.lock("a").with_holder("tx-42")
}

fn count(server: &Server) -> u32 {
    owners(server, "a").get("tx-42").copied().unwrap_or(0)
}

#[test]
fn whoever_presents_the_name_enters_and_each_release_takes_one_off() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let first = lock(&mine).lock().expect("it is free");
    let second = lock(&mine).lock().expect("the same thread");
    let third = lock(&theirs).lock_owned().expect("another process");
    let fourth = thread::scope(|scope| {
        in_time("a thread", scope.spawn(|| lock(&mine).lock_owned())).expect("another thread")
    });
    assert_eq!(count(&server), 4);
    assert_eq!(format!("{first:?}").matches("tx-42").count(), 1);
    assert!(theirs.lock("a").try_lock().expect("an answer").is_none(), "no name, no entry");
    let other = theirs.lock("a").with_holder("tx-43");
    assert!(other.try_lock().expect("an answer").is_none());
    let _: Vec<()> = vec![drop(first)];
    second.unlock().expect("it was held");
    third.unlock().expect("it was held");
    eventually("one is left", || count(&server) == 1);
    assert!(fourth.is_held());
    fourth.unlock().expect("it was held");
    assert!(!server.ask::<bool>(&["EXISTS", "a"]));
}

/// A job goes on in another process, which ends what the first began.
#[test]
fn unlock_takes_one_off_whoever_counted_it() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    lock(&mine).with_lease(NEVER).lock_owned().expect("it is free").leak();
    lock(&mine).with_lease(NEVER).lock_owned().expect("its own").leak();
    mine.close();
    assert_eq!(count(&server), 2);
    lock(&theirs).unlock().expect("it presents the name");
    assert_eq!(count(&server), 1);
    lock(&theirs).unlock().expect("it presents the name");
    assert!(lock(&theirs).unlock().is_err_and(|error| error.is_not_held()));
    drop(theirs.lock("a").try_lock().expect("an answer").expect("it is free"));
}

/// Names on one lock do not end each other's leaks.
#[test]
fn what_one_name_leaked_another_does_not_end() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let leaked = lock(&client).lock().expect("it is free");
    assert_eq!((lock(&client).hold_count(), client.lock("a").hold_count()), (1, 0));
    leaked.leak();
    let other = client.lock("a").with_holder("tx-43");
    assert!(other.unlock().is_err_and(|error| error.is_not_held()));
    assert_eq!((count(&server), other.hold_count()), (1, 0));
    lock(&client).unlock().expect("it was leaked");
}

/// The lease of one hold runs out while another under the name is renewed: it counts no more.
#[test]
fn a_hold_whose_lease_is_over_is_taken_off_the_count() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let outer = lock(&client).lock().expect("free");
    let inner = lock(&client).with_lease(Duration::from_millis(100)).lock().expect("its own");
    assert!(inner.wait_lost(NEVER));
    eventually("it is taken off", || count(&server) == 1);
    assert!(inner.unlock().is_err_and(|error| error.is_lost()));
    assert!(outer.is_held() && count(&server) == 1);
    outer.unlock().expect("it was held");
    assert!(!server.ask::<bool>(&["EXISTS", "a"]));
}

#[test]
fn a_thread_under_two_names_would_wait_for_itself() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let guard = lock(&client).lock().expect("free");
    let error = client.lock("a").with_holder("tx-43").lock().map(drop).expect_err("it waits");
    assert!(error.is_deadlock(), "{error}");
    drop(guard);
}

/// The answer is cut off on its way, so the request is sent again: it counts once.
#[test]
fn a_request_that_is_sent_again_counts_once() {
    let server = Server::start();
    let (acquire, release) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let cut = Flow::CutAfter(0);
    let guards: Vec<_> = (1..=3)
        .map(|number| {
            proxy.on_request(acquire.as_bytes(), Direction::Replies, cut);
            let guard = lock(&client).lock_owned().expect("it is asked again");
            assert_eq!(count(&server), number);
            guard
        })
        .collect();
    assert!(proxy.stats().cuts >= 3, "{:?}", proxy.stats());
    for (left, guard) in (0..3).rev().zip(guards) {
        proxy.on_request(release.as_bytes(), Direction::Replies, cut);
        guard.unlock().expect("the first copy released it");
        assert_eq!(count(&server), left);
    }
    assert!(proxy.stats().cuts >= 6, "{:?}", proxy.stats());
    proxy.on_request(acquire.as_bytes(), Direction::Replies, cut);
    let guard = lock(&client).lock().expect("it is asked again");
    proxy.on_request(release.as_bytes(), Direction::Replies, cut);
    drop(guard);
    eventually("it is released, once", || !server.ask::<bool>(&["EXISTS", "a"]));
}

/// Nobody knows what became of the question: whatever it took is given back, and no more.
#[test]
fn a_request_without_an_answer_is_undone_and_nothing_else() {
    let server = Server::start();
    let (acquire, _) = (acquire_digest(&server), release_digest(&server));
    let proxy = Proxy::start(server.addr());
    let brief = Duration::from_millis(300);
    let client = build(patient(proxy.url()).response_timeout(brief));
    let straight = build(patient(server.url()));
    let kept = lock(&straight).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Swallow);
    let error = lock(&client).try_lock().map(drop).expect_err("no answer");
    assert!(error.is_connection(), "{error}");
    proxy.heal();
    eventually("what it took is given back", || count(&server) == 1);
    // A question that never arrived is undone as well: that takes nothing off.
    proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Swallow);
    let error = lock(&client).try_lock().map(drop).expect_err("no answer");
    assert!(error.is_connection(), "{error}");
    let undone = || server.keys().iter().filter(|key| key.starts_with("leasehold_request")).count();
    proxy.heal();
    eventually("it is undone", || undone() == 3);
    assert!(kept.is_held() && count(&server) == 1);
    kept.unlock().expect("it was held");
}

#[test]
fn a_named_hold_waits_and_is_renewed_as_any_other() {
    let server = Server::start();
    let brief = Duration::from_millis(600);
    let (mine, theirs) =
        (build(patient(server.url()).watchdog_timeout(brief)), build(patient(server.url())));
    let guard = lock(&mine).lock().expect("it is free");
    assert!(!guard.wait_lost(3 * brief), "it is renewed");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.lock("a").lock().map(drop));
        eventually("it waits", || server.numsub("redisson_lock__channel:{a}") == 1);
        guard.unlock().expect("it was held");
        in_time("the waiter", waiter).expect("a plain lock of that name");
    });
}
