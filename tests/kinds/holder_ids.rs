//! Named holders: each caller with the same holder id enters, and Redis counts the holds.

use crate::harness::bare::script;
use crate::harness::faults::{BRISK, EventLog, NEVER, build, hasty, owners, patient};
use crate::harness::{Direction, Flow, Proxy, Server, eventually, exists, in_time, pttl};
use leasehold::{Client, Lock};
use std::thread;
use std::time::Duration;

/// Loads the scripts, and returns the digests of the acquire and of the release.
fn load_scripts(server: &Server) -> [String; 2] {
    ["named_acquire", "named_release"]
        .map(|name| server.ask(&["SCRIPT", "LOAD", &script(name).source()]))
}

fn lock(client: &Client) -> Lock {
    client.lock("a").with_holder("tx-42")
}

fn count(server: &Server) -> u32 {
    owners(server, "a").get("tx-42").copied().unwrap_or(0)
}

#[test]
fn each_caller_with_the_holder_id_enters_and_each_release_counts_down() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let first = lock(&mine).lock().expect("it is free");
    let second = lock(&mine).lock().expect("the same thread");
    let third = lock(&theirs).lock_owned().expect("another process");
    let fourth = thread::scope(|scope| {
        in_time("the call returns", scope.spawn(|| lock(&mine).lock_owned()))
            .expect("another thread")
    });
    assert_eq!(count(&server), 4);
    assert_eq!(format!("{first:?}").matches("tx-42").count(), 1);
    assert!(theirs.lock("a").try_lock().expect("a reply").is_none(), "without a holder id");
    let other = theirs.lock("a").with_holder("tx-43");
    assert!(other.try_lock().expect("a reply").is_none());
    drop(first);
    second.unlock().expect("it was held");
    third.unlock().expect("it was held");
    eventually("one hold is left", || count(&server) == 1);
    assert!(fourth.is_held());
    fourth.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

/// A job moves to another process, which releases the holds of the first.
#[test]
fn unlock_ends_one_hold_of_any_process() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    lock(&mine).with_lease(NEVER).lock_owned().expect("it is free").detach();
    lock(&mine).with_lease(NEVER).lock_owned().expect("the same holder id").detach();
    mine.close();
    assert_eq!(count(&server), 2);
    lock(&theirs).unlock().expect("the same holder id");
    assert_eq!(count(&server), 1);
    lock(&theirs).unlock().expect("the same holder id");
    assert!(lock(&theirs).unlock().is_err_and(|error| error.is_not_held()));
    drop(theirs.lock("a").try_lock().expect("a reply").expect("it is free"));
}

#[test]
fn extend_extends_the_lease_of_a_holder_that_any_process_has() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let not_held = |lock: &Lock| lock.extend(NEVER).is_err_and(|error| error.is_not_held());
    assert!(not_held(&lock(&theirs)) && !exists(&server, "a"), "no free lock is taken");
    lock(&mine).with_lease(NEVER).lock_owned().expect("it is free").detach();
    let other = theirs.lock("a").with_holder("tx-43");
    assert!(not_held(&other) && not_held(&theirs.lock("a")));
    // An extension without a trace: a process that dies at any moment of it leaves no count.
    let changes = || ["hset", "hincrby", "hdel"].map(|command| server.calls(command));
    let before = changes();
    lock(&theirs).extend(NEVER * 2).expect("the same holder id");
    lock(&theirs).extend(NEVER).expect("more is left already");
    assert_eq!(changes(), before);
    assert!(pttl(&server, "a") > i64::try_from(NEVER.as_millis()).expect("a lease"));
    assert_eq!(count(&server), 1);
    // A detached hold of this process knows its new deadline.
    lock(&mine).extend(NEVER * 3).expect("it was detached here");
    assert!(lock(&mine).remaining().expect("a reply") > Some(NEVER * 2));
    assert!(lock(&theirs).extend(Duration::from_millis(9)).is_err_and(|e| e.is_configuration()));
    lock(&theirs).unlock().expect("the same holder id");
    assert!(not_held(&lock(&theirs)));
}

#[test]
fn one_holder_id_does_not_end_the_detached_hold_of_another() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let detached = lock(&client).lock().expect("it is free");
    assert_eq!((lock(&client).hold_count(), client.lock("a").hold_count()), (1, 0));
    detached.detach();
    let other = client.lock("a").with_holder("tx-43");
    assert!(other.unlock().is_err_and(|error| error.is_not_held()));
    assert_eq!((count(&server), other.hold_count()), (1, 0));
    lock(&client).unlock().expect("it was detached");
}

/// The lease of one hold ends while another hold with the same holder id is renewed.
#[test]
fn an_expired_hold_is_not_counted() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let outer = lock(&client).lock().expect("free");
    let inner =
        lock(&client).with_lease(Duration::from_millis(200)).lock().expect("the same holder id");
    assert!(inner.wait_lost(NEVER));
    eventually("the count falls to 1", || count(&server) == 1);
    assert!(inner.unlock().is_err_and(|error| error.is_lost()));
    assert!(outer.is_held() && count(&server) == 1);
    outer.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

#[test]
fn a_second_holder_id_of_the_same_thread_is_a_deadlock() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let guard = lock(&client).lock().expect("free");
    let error = client.lock("a").with_holder("tx-43").lock().map(drop).expect_err("a deadlock");
    assert!(error.is_deadlock(), "{error}");
    drop(guard);
}

/// The reply is cut off, so the client sends the request again.
#[test]
fn a_repeated_request_counts_once() {
    let server = Server::start();
    let [acquire, release] = load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let cut = Flow::CutAfter(0);
    let guards: Vec<_> = (1..=3)
        .map(|number| {
            proxy.on_request(acquire.as_bytes(), Direction::Replies, cut);
            let guard = lock(&client).lock_owned().expect("the request is repeated");
            assert_eq!(count(&server), number);
            guard
        })
        .collect();
    assert!(proxy.stats().cuts >= 3, "{:?}", proxy.stats());
    for (remaining, guard) in (0..3).rev().zip(guards) {
        proxy.on_request(release.as_bytes(), Direction::Replies, cut);
        guard.unlock().expect("the first copy released it");
        assert_eq!(count(&server), remaining);
    }
    assert!(proxy.stats().cuts >= 6, "{:?}", proxy.stats());
    proxy.on_request(acquire.as_bytes(), Direction::Replies, cut);
    let guard = lock(&client).lock().expect("the request is repeated");
    proxy.on_request(release.as_bytes(), Direction::Replies, cut);
    drop(guard);
    eventually("the hold is released", || !exists(&server, "a"));
}

/// Whether the server ran the request is unknown. The clean-up ends at most one hold.
#[test]
fn the_clean_up_of_a_request_without_a_reply_ends_no_other_hold() {
    let server = Server::start();
    let [acquire, _] = load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let brief = Duration::from_millis(300);
    let client = build(patient(proxy.url()).response_timeout(brief));
    let direct = build(patient(server.url()));
    let kept = lock(&direct).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Swallow);
    let error = lock(&client).try_lock().map(drop).expect_err("no reply");
    assert!(error.is_timeout(), "{error}");
    proxy.heal();
    eventually("the acquire is undone", || count(&server) == 1);
    // A request that never reached the server is undone too, without an effect.
    proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Swallow);
    let error = lock(&client).try_lock().map(drop).expect_err("no reply");
    assert!(error.is_timeout(), "{error}");
    let before = server.calls("evalsha");
    proxy.heal();
    eventually("the clean-up runs", || server.calls("evalsha") > before);
    assert!(kept.is_held() && count(&server) == 1);
    kept.unlock().expect("it was held");
}

#[test]
fn a_named_hold_is_renewed_and_wakes_waiters() {
    let server = Server::start();
    let (mine, theirs) =
        (build(patient(server.url()).watchdog_timeout(BRISK)), build(patient(server.url())));
    let guard = lock(&mine).lock().expect("it is free");
    assert!(!guard.wait_lost(3 * BRISK), "the hold is renewed");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.lock("a").lock().map(drop));
        eventually("the caller waits", || server.numsub("redisson_lock__channel:{a}") == 1);
        guard.unlock().expect("it was held");
        in_time("the waiter returns", waiter).expect("the lock is granted");
    });
}

// ---------------------------------------------------------------------------------
// The lease of a hold ends, and another process takes the lock with the same holder id.

/// A lease that is longer than a request takes, and short enough to wait for its end.
const SHORT: Duration = Duration::from_millis(300);

/// Ends a hold by `end`, with requests that reach the server late.
///
/// The requests arrive after the lease, when another process holds the lock with the same holder
/// id. Asserts that the hold of the other process does not change.
fn end_with_late_requests(end: impl FnOnce(leasehold::Guard)) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) = (build(patient(proxy.url())), build(patient(server.url())));
    let guard = lock(&mine).with_lease(SHORT).lock().expect("it is free");
    proxy.hold_requests();
    end(guard);
    eventually("the lease expires", || !exists(&server, "a"));
    let next = lock(&theirs).lock().expect("it is free");
    let before = server.calls("evalsha");
    proxy.pass();
    eventually("the late request runs", || server.calls("evalsha") > before);
    assert_eq!(count(&server), 1);
    assert!(mine.lock("a").try_lock().expect("a reply").is_none(), "it is held");
    next.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

#[test]
fn a_loss_that_the_watchdog_notices_ends_no_hold_of_another_process() {
    end_with_late_requests(|guard| assert!(guard.wait_lost(NEVER)));
}

#[test]
fn a_guard_dropped_after_its_lease_ends_no_hold_of_another_process() {
    end_with_late_requests(|guard| {
        assert!(guard.wait_lost(NEVER));
        drop(guard);
    });
}

#[test]
fn a_release_that_arrives_late_ends_no_hold_of_another_process() {
    end_with_late_requests(drop);
}

/// The connection of the release breaks, so the release is repeated over a new connection.
#[test]
fn a_release_repeated_late_ends_no_hold_of_another_process() {
    let server = Server::start();
    let [_, release] = load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) = (build(patient(proxy.url())), build(patient(server.url())));
    let guard = lock(&mine).with_lease(100 * SHORT).lock().expect("it is free");
    proxy.on_request(release.as_bytes(), Direction::Replies, Flow::CutAfter(0));
    let connected = || proxy.stats().accepted;
    let before = connected();
    proxy.refuse();
    drop(guard);
    eventually("the first copy runs", || !exists(&server, "a"));
    proxy.wait_until("the connection breaks", |stats| stats.cuts == 1);
    let next = lock(&theirs).lock().expect("it is free");
    let calls = server.calls("evalsha");
    proxy.heal();
    eventually("a new connection is made", || connected() > before);
    eventually("the second copy runs", || server.calls("evalsha") > calls);
    assert_eq!(count(&server), 1);
    next.unlock().expect("it was held");
}

/// The server loses its data, and another process takes the lock with the same holder id.
#[test]
fn the_renewal_of_a_lost_hold_does_not_renew_another_hold_of_the_holder_id() {
    let server = Server::start();
    let brief = Duration::from_millis(600);
    let mine = build(patient(server.url()).watchdog_timeout(brief));
    let theirs = build(patient(server.url()));
    let lost = lock(&mine).lock().expect("it is free");
    server.ask::<()>(&["FLUSHALL"]);
    let next = lock(&theirs).lock().expect("it is free");
    assert!(lost.wait_lost(NEVER), "the server has lost its data");
    assert!(lost.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(count(&server), 1);
    next.unlock().expect("it was held");
}

/// Any caller with the holder id may end a hold of another process.
#[test]
fn a_hold_ended_by_another_process_is_lost_and_its_guard_ends_no_other_hold() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let detached = lock(&mine).with_lease(SHORT).lock_owned().expect("it is free");
    let kept = lock(&theirs).lock_owned().expect("the same holder id");
    lock(&theirs).unlock().expect("the same holder id");
    assert_eq!(count(&server), 1);
    assert!(detached.wait_lost(NEVER));
    drop(detached);
    drop(mine);
    assert!(kept.is_held() && count(&server) == 1);
    kept.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}

// ---------------------------------------------------------------------------------
// Holder ids.

/// A holder id may be any text, also a word of the protocol.
#[test]
fn a_holder_with_any_id_excludes_readers_writers_and_other_holders() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    for id in ["nobody", "mode", "read", "write", "leasehold", "0", "1", "redisson:1:write"] {
        let rw_lock = theirs.rw_lock("a");
        let held = mine.lock("a").with_holder(id).lock().expect("it is free");
        assert!(rw_lock.try_read().expect("a reply").is_none(), "{id}");
        assert!(rw_lock.try_write().expect("a reply").is_none(), "{id}");
        assert!(theirs.lock("a").try_lock().expect("a reply").is_none(), "{id}");
        assert!(lock(&theirs).try_lock().expect("a reply").is_none(), "{id}");
        held.unlock().expect("it was held");
        let named = mine.lock("a").with_holder(id);
        let reading = rw_lock.read_owned().expect("it is free");
        assert!(named.try_lock().expect("a reply").is_none(), "{id}");
        reading.unlock().expect("it was held");
        let writing = rw_lock.write_owned().expect("it is free");
        assert!(named.try_lock().expect("a reply").is_none(), "{id}");
        assert!(named.unlock().is_err_and(|error| error.is_not_held()), "{id}");
        writing.unlock().expect("it was held");
    }
}

/// The release of that hold would end all holds in its field.
#[test]
fn the_owner_field_of_a_hold_is_refused_as_a_holder_id() {
    let server = Server::start();
    let (mine, theirs) = (build(patient(server.url())), build(patient(server.url())));
    let held = mine.lock("a").lock().expect("it is free");
    let [owner] = &owners(&server, "a").into_keys().collect::<Vec<_>>()[..] else {
        panic!("one owner");
    };
    for id in [owner.as_str(), &format!("{owner}:write"), &format!("{}:1", theirs.id()), ""] {
        let named = theirs.lock("a").with_holder(id);
        assert!(named.try_lock().is_err_and(|error| error.is_invalid_name()), "{id}");
        assert!(named.unlock().is_err_and(|error| error.is_invalid_name()), "{id}");
    }
    assert!(theirs.lock("a").with_holder(theirs.id().to_string()).try_lock().is_ok());
    held.unlock().expect("it was held");
}

// ---------------------------------------------------------------------------------
// Releases that cannot be sent before the end of their lease.

/// The other hold keeps the count of the ended one in Redis beyond its lease.
#[test]
fn a_release_is_repeated_until_a_reply_if_another_hold_keeps_the_lock() {
    // The ways to end a hold while the server cannot be reached.
    type End = fn(leasehold::Guard);
    let ends: [(&str, End); 3] = [
        ("dropped", drop),
        ("unlocked", |guard| {
            let error = guard.unlock().expect_err("the server cannot be reached");
            assert!(error.is_connection(), "{error}");
        }),
        ("expired", |guard| assert!(guard.wait_lost(NEVER))),
    ];
    for (how, end) in ends {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let (settings, events) = EventLog::from(patient(proxy.url()));
        let (mine, theirs) = (build(settings), build(patient(server.url())));
        let kept = lock(&theirs).lock().expect("it is free");
        let ended = lock(&mine).with_lease(SHORT).lock().expect("the same holder id");
        proxy.refuse();
        proxy.kill_all();
        end(ended);
        if how != "expired" {
            assert!(events.released().error.is_some(), "the lease is over: {how}");
        }
        outlast(&theirs, 4 * SHORT);
        assert_eq!(count(&server), 2, "{how}");
        proxy.heal();
        eventually("the count falls to 1", || count(&server) == 1);
        assert!(kept.is_held());
        kept.unlock().expect("it was held");
        assert!(!exists(&server, "a"));
    }
}

/// Blocks for at least the length of a lease.
fn outlast(client: &Client, span: Duration) {
    let other = client.lock("b").with_lease(span).lock().expect("it is free");
    assert!(other.wait_lost(NEVER));
}

/// The server cannot be reached before the end of the lease.
#[test]
fn a_request_without_a_reply_is_undone_even_late_if_another_hold_keeps_the_lock() {
    let server = Server::start();
    let [acquire, _] = load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let (mine, theirs) =
        (build(patient(proxy.url()).response_timeout(SHORT)), build(patient(server.url())));
    let kept = lock(&theirs).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Swallow);
    let caller = lock(&mine).with_lease(SHORT);
    let error = caller.try_lock().map(drop).expect_err("no reply");
    assert!(error.is_timeout(), "{error}");
    proxy.refuse();
    proxy.kill_all();
    outlast(&theirs, 4 * SHORT);
    proxy.heal();
    eventually("the acquire is undone", || count(&server) == 1);
    kept.unlock().expect("it was held");
}

/// A close waits for releases only until the end of their leases.
#[test]
fn a_close_does_not_wait_for_a_release_after_its_lease() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (settings, events) = EventLog::from(patient(proxy.url()));
    let (mine, theirs) = (build(settings), build(patient(server.url())));
    let kept = lock(&theirs).lock().expect("it is free");
    let ended = lock(&mine).with_lease(SHORT).lock().expect("the same holder id");
    proxy.refuse();
    proxy.kill_all();
    drop(ended);
    assert!(events.released().error.is_some(), "the lease is over");
    let closing = thread::spawn(move || drop(mine));
    eventually("the client closes", || closing.is_finished());
    let refused = proxy.stats().refused;
    outlast(&theirs, 4 * SHORT);
    assert_eq!(proxy.stats().refused, refused);
    kept.unlock().expect("it was held");
}

// ---------------------------------------------------------------------------------
// Acquires that run late.

/// A repetition of the clean-up undoes a request that the server runs after the first clean-up.
#[test]
fn an_acquire_that_runs_after_its_clean_up_does_not_stay_counted() {
    let server = Server::start();
    let [acquire, _] = load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let mine = build(hasty(proxy.url()).poll_interval(Duration::from_millis(100)));
    let theirs = build(patient(server.url()));
    let kept = lock(&theirs).lock().expect("it is free");
    proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Hold);
    let error = lock(&mine).try_lock().map(drop).expect_err("the proxy holds the request");
    assert!(error.is_timeout(), "{error}");
    eventually("the clean-up runs more than once", || server.calls("hdel") >= 2);
    let counted = server.calls("hincrby");
    proxy.release_held();
    eventually("the acquire runs", || server.calls("hincrby") > counted);
    eventually("the count falls to 1", || count(&server) == 1);
    assert!(kept.is_held());
    kept.unlock().expect("it was held");
    assert!(!exists(&server, "a"));
}
