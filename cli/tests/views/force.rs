//! `force`: takes locks of any kind away from their holders.

use super::program::{json, run};
use crate::harness::faults::{build, patient};
use crate::harness::holders::{Stage, stage};
use crate::harness::queued::is_listening;
use crate::harness::wait::BOUND;
use crate::harness::{eventually, exists, join};
use leasehold::kind::LockKind;
use leasehold::{Client, Lock};
use std::thread;

/// Frees a lock that is held, which wakes its waiter before any poll.
#[track_caller]
fn wakes<K: LockKind>(kind: &str, of_client: impl Fn(&Client) -> Lock<K>) {
    let stage = stage();
    let guard = of_client(&stage.holding).lock_owned().expect("free");
    let lock = of_client(&build(patient(stage.server.url())));
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    eventually("the caller waits", || {
        let lock = stage.looking.lock_info("a").expect("an answer").expect("held");
        lock.waiting().processes() == 1
    });
    let (code, forced) = json(&["force", "a", "--url", &stage.server.url()]);
    assert_eq!((code, &forced["name"], &forced["forced"]), (Some(0), &"a".into(), &true.into()));
    let lock = &forced["lock"];
    assert_eq!((&lock["name"], &lock["kind"]), (&"a".into(), &kind.into()));
    assert_eq!(lock["holders"][0]["client_id"], stage.holding.id().to_string());
    join(waiter).expect("the waiter gets the lock");
    let error = guard.unlock().expect_err("the hold is lost");
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
}

#[test]
fn the_waiters_of_a_plain_lock_are_woken() {
    wakes("lock", |client| client.lock("a"));
}

#[test]
fn the_waiters_of_a_fair_lock_are_woken() {
    wakes("fair lock", |client| client.fair_lock("a"));
}

#[test]
fn the_waiters_of_a_fenced_lock_are_woken() {
    wakes("fenced lock", |client| client.fenced_lock("a"));
}

#[test]
fn a_queue_lock_is_granted_to_its_waiter() {
    wakes("queue lock", |client| client.queue_lock("a"));
}

#[test]
fn the_waiters_of_a_write_lock_are_woken() {
    wakes("write lock", |client| client.rw_lock("a").write_lock());
}

#[test]
fn a_free_lock_gives_the_code_1() {
    let stage = stage();
    let url = stage.server.url();
    let (code, forced) = json(&["force", "a", "--url", &url]);
    assert_eq!(code, Some(1));
    assert_eq!(forced, serde_json::json!({ "name": "a", "forced": false, "lock": null }));
    let outcome = run(&["force", "a", "--url", &url]);
    assert_eq!((outcome.code, &*outcome.out), (Some(1), "a is free\n"));
}

#[test]
fn a_key_that_is_no_lock_stays_and_is_an_error() {
    let stage = stage();
    stage.hash("user:1", &["name", "Ann"]);
    stage.server.ask::<()>(&["SET", "permits", "7"]);
    let outcome = run(&["force", "user:1", "--url", &stage.server.url()]);
    assert_eq!((outcome.code, &*outcome.out), (Some(77), ""), "{outcome:?}");
    assert!(outcome.err.contains("WRONGTYPE"), "{outcome:?}");
    let outcome = run(&["force", "permits", "--url", &stage.server.url()]);
    assert_eq!((outcome.code, &*outcome.err), (Some(1), ""), "{outcome:?}");
    assert!(outcome.out.contains("a count of 7, without holders"), "{outcome:?}");
    for name in ["user:1", "permits"] {
        assert!(exists(&stage.server, name), "{name}");
    }
}

#[test]
fn the_permits_of_a_semaphore_are_taken_away() {
    let stage = stage();
    let semaphore = stage.holding.semaphore("transcode").with_permits(3);
    let permits = semaphore.acquire_many(2).expect("free");
    eventually("the holder listens", || is_listening(&stage.server, &stage.holding));
    let arguments = ["force", "transcode", "--url", &stage.server.url()];
    let outcome = run(&arguments);
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""), "{outcome:?}");
    assert!(outcome.out.starts_with("transcode is taken away from its holders\n"), "{outcome:?}");
    assert!(outcome.out.contains("semaphore"), "{outcome:?}");
    assert_eq!(semaphore.available(), Ok(3));
    assert!(permits.wait_lost(BOUND), "a message tells the holder");
    assert_eq!(run(&arguments).code, Some(1));
}

#[test]
fn all_readers_and_locks_without_waiters_are_freed() {
    let stage = stage();
    let client = &stage.holding;
    for name in ["r", "r"] {
        client.rw_lock(name).read_owned().expect("shared").detach();
    }
    client.spin_lock("s").lock().expect("free").detach();
    client.lock("n").with_holder("job").lock().expect("free").detach();
    for name in ["r", "s", "n"] {
        shows_the_former_holders(&stage, name);
        assert!(!exists(&stage.server, name), "{name} is free");
    }
}

fn shows_the_former_holders(stage: &Stage, name: &str) {
    let holders = stage.looking.lock(name).holders().expect("an answer").len();
    let outcome = run(&["force", name, "--url", &stage.server.url()]);
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""));
    let (first, table) = outcome.out.split_once('\n').expect("several lines");
    assert_eq!(first, format!("{name} is taken away from its holders"));
    assert_eq!(table.lines().count(), 1 + holders.max(1), "{table}");
}
