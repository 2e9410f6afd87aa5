//! `Client::force_unlock`: frees a lock without knowledge of its kind.

use crate::harness::faults::{build, patient};
use crate::harness::holders::{GONE, JAVA, Stage, stage};
use crate::harness::{eventually, exists, join};
use leasehold::kind::LockKind;
use leasehold::{Client, Lock, LostReason, Result};
use std::thread::{self, JoinHandle};

fn force(stage: &Stage, name: &str) -> bool {
    stage.looking.force_unlock(name).expect("an answer")
}

/// Returns a thread that waits for the lock, after the lock has a waiting caller.
fn waiter<K: LockKind>(stage: &Stage, lock: Lock<K>) -> JoinHandle<Result<()>> {
    let name = lock.name().to_owned();
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    eventually("the caller waits", || {
        let info = stage.looking.lock_info(&*name).expect("an answer").expect("held");
        info.waiting().processes() == 1
    });
    waiter
}

/// Frees a lock that is held, which wakes its waiter before any poll.
#[track_caller]
fn frees<K: LockKind>(stage: &Stage, lock: Lock<K>) {
    let waiting = build(patient(stage.server.url()));
    let name = lock.name().to_owned();
    let guard = lock.lock_owned().expect("free");
    let waiter = waiter(stage, of_client(&waiting, &lock));
    assert!(force(stage, &name));
    join(waiter).expect("the waiter gets the lock");
    let error = guard.unlock().expect_err("the hold is lost");
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
    eventually("the lock is free", || !exists(&stage.server, &name));
    assert!(!force(stage, &name), "nothing is held");
}

/// Returns the same lock of another client.
fn of_client<K: LockKind>(client: &Client, lock: &Lock<K>) -> Lock<K> {
    use std::any::Any;
    let name = lock.name();
    let all: [Box<dyn Any>; 6] = [
        Box::new(client.lock(name)),
        Box::new(client.fair_lock(name)),
        Box::new(client.fenced_lock(name)),
        Box::new(client.queue_lock(name)),
        Box::new(client.rw_lock(name).read_lock()),
        Box::new(client.rw_lock(name).write_lock()),
    ];
    let same = all.into_iter().find_map(|it| it.downcast::<Lock<K>>().ok());
    *same.expect("one of these kinds")
}

#[test]
fn the_waiters_of_a_plain_lock_are_woken() {
    let stage = stage();
    frees(&stage, stage.holding.lock("a"));
}

#[test]
fn the_waiters_of_a_fenced_lock_are_woken() {
    let stage = stage();
    frees(&stage, stage.holding.fenced_lock("a"));
}

#[test]
fn the_first_waiter_of_a_fair_lock_is_woken() {
    let stage = stage();
    frees(&stage, stage.holding.fair_lock("a"));
}

#[test]
fn a_queue_lock_is_granted_to_its_waiter() {
    let stage = stage();
    frees(&stage, stage.holding.queue_lock("a"));
}

#[test]
fn the_waiters_of_a_write_lock_are_woken() {
    let stage = stage();
    frees(&stage, stage.holding.rw_lock("a").write_lock());
}

#[test]
fn a_writer_that_waits_for_readers_is_woken() {
    let stage = stage();
    let guards = ["one", "two"].map(|_| stage.holding.rw_lock("a").read_owned().expect("shared"));
    let waiting = build(patient(stage.server.url()));
    let waiter = waiter(&stage, waiting.rw_lock("a").write_lock());
    assert!(force(&stage, "a"));
    join(waiter).expect("the writer gets the lock");
    drop(guards);
    assert_eq!(stage.server.keys(), [""; 0], "no time-out key of a reader is left");
}

#[test]
fn a_lock_without_waiters_is_freed_whatever_its_kind() {
    let stage = stage();
    let client = &stage.holding;
    let both = client.rw_lock("both");
    let held = [
        client.lock("plain").lock().map(|it| it.detach()),
        client.spin_lock("spin").lock().map(|it| it.detach()),
        client.fair_lock("fair").lock().map(|it| it.detach()),
        client.fenced_lock("fenced").lock().map(|it| it.detach()),
        client.queue_lock("queued").lock().map(|it| it.detach()),
        client.lock("named").with_holder("job").lock().map(|it| it.detach()),
        client.rw_lock("read").read().map(|it| it.detach()),
        both.write().map(|it| it.detach()),
        both.read().map(|it| it.detach()),
    ];
    held.into_iter().for_each(|outcome| outcome.expect("free"));
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    stage.hash("kept", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    let names = ["plain", "spin", "fair", "fenced", "queued", "named", "read", "both", "java"];
    for name in names.into_iter().chain(["kept"]) {
        assert!(force(&stage, name), "{name}");
        assert!(!exists(&stage.server, name), "{name}");
        assert!(!force(&stage, name), "{name}");
    }
}

#[test]
fn keys_of_other_programs_and_counts_stay() {
    let stage = stage();
    stage.hash("user:1", &["name", "Ann"]);
    stage.hash("settings", &["mode", "read"]);
    stage.server.ask::<()>(&["SET", "text", "1"]);
    let _permit = stage.holding.semaphore("jobs").with_permits(1).acquire().expect("free");
    let before = stage.server.keys();
    for name in ["user:1", "settings", "text", "jobs", "free"] {
        assert!(!force(&stage, name), "{name}");
    }
    assert_eq!(stage.server.keys(), before);
}

#[test]
fn a_holder_in_the_same_process_loses_its_hold_at_once() {
    let stage = stage();
    let client = &stage.holding;
    let guard = client.rw_lock("a").write().expect("free");
    assert!(client.force_unlock("a").expect("an answer"));
    assert!(!guard.is_held());
    let error = guard.unlock().expect_err("lost");
    assert_eq!(error.lost_reason(), Some(LostReason::Gone), "{error:?}");
}

#[test]
fn an_invalid_name_and_a_closed_client_are_errors() {
    let client = Client::builder().single("redis://127.0.0.1:1/").build_lazily().expect("no call");
    assert!(client.force_unlock("no}name").is_err_and(|error| error.is_invalid_name()));
    let error = client.force_unlock("a").expect_err("no server");
    assert!(error.is_retryable() && error.lock_name() == Some("a"), "{error:?}");
    client.close();
    assert!(client.force_unlock("a").is_err_and(|error| error.is_closed()));
}
