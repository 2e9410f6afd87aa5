//! Replies which show that the server lacks a hold of this process. The hold is lost at once, and
//! not at the next renewal: no client here renews a lease or polls, unless a test says so.

use crate::harness::elections::{campaign, candidate, leader};
use crate::harness::faults::*;
use crate::harness::queued::{QueueWaiter, load_scripts, polling};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, in_time, owner};
use leasehold::{Client, LostReason};
use std::thread;

/// A hold of Redisson's plain lock.
const JAVA: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1";

fn scene() -> (Server, Client) {
    let server = Server::start();
    let client = build(patient(server.url()));
    (server, client)
}

fn delete(server: &Server, key: &str) {
    assert_eq!(server.ask::<u32>(&["DEL", key]), 1, "{key}");
}

#[test]
fn a_query_that_finds_the_lock_free_ends_the_hold() {
    type Query = fn(&Client);
    let queries: [(&str, Query); 6] = [
        ("is_locked", |client| assert!(!client.lock("a").is_locked().expect("a reply"))),
        ("holders", |client| assert!(client.lock("a").holders().expect("a reply").is_empty())),
        ("lock_info", |client| assert!(client.lock_info("a").expect("a reply").is_none())),
        ("force_unlock", |client| assert!(!client.lock("a").force_unlock().expect("a reply"))),
        ("Client::force_unlock", |client| assert!(!client.force_unlock("a").expect("a reply"))),
        ("look", |client| {
            let looked = client.watch_locks(["b", "a"]).expect("good names").look();
            assert!(looked.expect("a reply").iter().all(Option::is_none));
        }),
    ];
    let (server, client) = scene();
    for (query, ask) in queries {
        let guard = client.lock("a").lock().expect("it is free");
        delete(&server, "a");
        ask(&client);
        let error = guard.check().expect_err("the server does not have the hold");
        assert_eq!(error.lost_reason(), Some(LostReason::Gone), "{query}");
    }
}

#[test]
fn a_query_that_finds_another_holder_ends_the_hold() {
    let (server, client) = scene();
    let guard = client.lock("a").lock().expect("it is free");
    let beside = client.lock("b").lock().expect("it is free");
    delete(&server, "a");
    server.ask::<u32>(&["HSET", "a", JAVA, "1"]);
    assert_eq!(client.locks("*").expect("a good pattern").count(), 2);
    assert!(!guard.is_held() && beside.is_held());
    let fair = client.fair_lock("f").lock().expect("it is free");
    let reader = client.rw_lock("r").read_lock().lock().expect("it is free");
    let named = client.lock("n").with_holder("job").lock().expect("it is free");
    let queued = client.queue_lock("q").lock().expect("it is free");
    assert_eq!(client.locks("*").expect("a good pattern").count(), 6);
    assert!(fair.is_held() && reader.is_held() && named.is_held() && queued.is_held());
}

#[test]
fn a_query_about_one_side_of_a_read_write_lock_leaves_the_other_side_alone() {
    let (_server, client) = scene();
    let lock = client.rw_lock("a");
    let writer = lock.write_lock().lock().expect("it is free");
    assert!(!lock.read_lock().is_locked().expect("a reply"));
    let reader = lock.read_lock().lock().expect("the thread writes");
    writer.unlock().expect("it is held");
    assert!(!lock.write_lock().is_locked().expect("a reply") && reader.is_held());
}

#[test]
fn a_query_about_permits_ends_the_hold_that_lacks_one() {
    let (server, client) = scene();
    let semaphore = client.semaphore("s").with_permits(9);
    let [lacking, complete] = [2, 3].map(|permits| {
        semaphore.try_acquire_many(permits).expect("a reply").expect("there are permits")
    });
    let lock = client.lock("s");
    assert!(lock.holders().expect("a reply").is_empty());
    assert!(lacking.is_held() && complete.is_held(), "the key of a semaphore is no lock");
    server.ask::<()>(&["ZPOPMIN", "{s}:timeout"]);
    semaphore.holders().expect("a reply");
    assert_ne!(lacking.is_held(), complete.is_held(), "one hold lacks a permit");
}

#[test]
fn the_sight_of_another_leader_ends_the_term() {
    let (server, client) = scene();
    let term = campaign(&candidate(&client, "x"));
    assert!(leader(&client).is_some() && term.is_held());
    delete(&server, "a");
    let other = other(&server);
    let _next = campaign(&candidate(&other, "y"));
    assert_eq!(leader(&client).expect("a leader").value(), "y");
    assert!(term.check().is_err_and(|error| error.lost_reason() == Some(LostReason::Gone)));
}

/// A thread of the same client waits, so there are queue heartbeats.
#[test]
fn a_queue_heartbeat_that_shows_another_holder_ends_the_hold() {
    let server = Server::start();
    let client = build(polling(server.url()));
    let guard = client.queue_lock("a").lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a"));
    let beats = server.calls("hrandfield");
    eventually("heartbeats find the hold", || server.calls("hrandfield") > beats + 2);
    assert!(guard.is_held());
    let own = owner(&server, "a");
    server.ask::<u32>(&["HSET", "a", JAVA, "1"]);
    assert_eq!(server.ask::<u32>(&["HDEL", "a", &own]), 1);
    eventually("the hold is lost", || !guard.is_held());
    delete(&server, "a");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_refusal_of_a_reader_ends_the_write_hold_of_its_thread() {
    let (server, client) = scene();
    let lock = client.rw_lock("a");
    let writer = lock.write_lock().lock().expect("it is free");
    delete(&server, "a");
    server.ask::<u32>(&["HSET", "a", "mode", "write", &format!("{JAVA}:write"), "1"]);
    assert!(lock.read_lock().try_lock().expect("a reply").is_none());
    eventually("the hold is lost", || !writer.is_held());
}

/// The reply was sent before the grant, and is read after it.
#[test]
fn a_reply_to_an_earlier_question_ends_no_hold() {
    let server = Server::start();
    load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()).pool_size(2));
    proxy.on_request(b"PTTL", Direction::Replies, Flow::Hold);
    thread::scope(|scope| {
        let query = scope.spawn(|| client.lock("a").is_locked().expect("a reply"));
        something_is_held(&proxy);
        let guard = client.lock("a").lock().expect("it is free");
        proxy.release_held();
        assert!(!in_time("the query ends", query));
        guard.check().expect("the reply is older than the hold");
        guard.unlock().expect("it is held");
    });
}
