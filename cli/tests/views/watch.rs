//! `watch`: events of locks as they happen.

use super::program::{Running, holder, run};
use crate::harness::faults::{NEVER, build, other, patient};
use crate::harness::holders::stage;
use crate::harness::wait::join;
use crate::harness::{Server, eventually, exists};
use leasehold::{CancelToken, Lock, OwnedGuard};
use rustix::process::Signal;
use serde_json::Value;
use std::thread::{self, JoinHandle};

/// Every event but the one that the test waits for.
const ENDS: [&str; 4] = ["released", "expired", "left", "gone"];

/// Returns a thread that waits for a lock and keeps it.
fn waiter<K: leasehold::kind::LockKind>(lock: Lock<K>) -> JoinHandle<OwnedGuard<K>> {
    thread::spawn(move || lock.lock_owned().expect("granted"))
}

#[track_caller]
fn is_client(event: &Value, client: &leasehold::Client) {
    assert_eq!(event["client_id"], client.id().to_string(), "{event}");
}

#[test]
fn the_present_state_comes_first() {
    let stage = stage();
    let _guard = stage.holding.lock("a").lock().expect("free");
    let watch = Running::watch(&["a", "b", "a", "--url", &stage.server.url()]);
    let held = watch.until("acquired", &["mark"]);
    assert_eq!((&held["name"], &held["present"]), (&"a".into(), &true.into()));
    assert_eq!(held["kind"], "lock");
    assert!(held["since"].as_f64().expect("a time") <= held["at"].as_f64().expect("a time"));
    is_client(&held, &stage.holding);
    if held["pid"].is_null() {
        let identified = watch.until("identified", &ENDS);
        assert_eq!(identified["owner"], held["owner"]);
        assert_eq!(identified["pid"], std::process::id());
    }
    let next = stage.holding.lock("b").lock().expect("free");
    let acquired = watch.until("acquired", &ENDS);
    assert_eq!((&acquired["name"], acquired.get("present")), (&"b".into(), None));
    next.unlock().expect("held");
    let released = watch.until("released", &[]);
    assert_eq!((&released["name"], &released["owner"]), (&"b".into(), &acquired["owner"]));
    assert!(released["held"].as_f64().expect("a duration") >= 0.0);
}

#[test]
fn a_pattern_finds_locks_that_are_taken_later() {
    let stage = stage();
    let _held = stage.hold(&["a:1", "b:1"]);
    let watch = Running::watch(&["a:*", "c", "--url", &stage.server.url()]);
    let present = watch.until("acquired", &ENDS);
    assert_eq!((&present["name"], &present["present"]), (&"a:1".into(), &true.into()));
    let _later = stage.hold(&["b:2", "a:2"]);
    let acquired = watch.until("acquired", &ENDS);
    assert_eq!((&acquired["name"], acquired.get("present")), (&"a:2".into(), None));
    let since = stage.looking.lock("a:2").holder().expect("an answer").expect("held").since();
    assert!(since.is_some() && acquired["since"].is_number(), "{acquired}");
    let given = stage.holding.lock("c").lock().expect("free");
    assert_eq!(watch.until("acquired", &ENDS)["name"], "c");
    given.unlock().expect("held");
    assert_eq!(watch.until("released", &[])["name"], "c");
}

#[test]
fn the_permits_of_a_semaphore_have_events() {
    let stage = stage();
    let watch = Running::watch(&["s", "--url", &stage.server.url()]);
    let semaphore = stage.holding.semaphore("s").with_permits(3);
    let first = semaphore.acquire_many(2).expect("free");
    let acquired = watch.until("acquired", &ENDS);
    assert_eq!(acquired["kind"], "semaphore");
    is_client(&acquired, &stage.holding);
    let second = stage.looking.semaphore("s").acquire().expect("free");
    is_client(&watch.until("acquired", &ENDS), &stage.looking);
    first.release().expect("held");
    is_client(&watch.until("released", &[]), &stage.holding);
    second.release().expect("held");
    is_client(&watch.until("released", &[]), &stage.looking);
}

/// The names of the second lock's events are in the order of a hand-over.
#[test]
fn a_hand_over_between_processes_is_a_release_and_an_acquire() {
    let stage = stage();
    let guard = stage.holding.lock("a").lock_owned().expect("free");
    let watch = Running::watch(&["a", "--url", &stage.server.url()]);
    watch.until("acquired", &[]);
    let next = waiter(stage.looking.lock("a"));
    let waiting = watch.until("waiting", &ENDS);
    assert_eq!((&waiting["processes"], waiting.get("owner")), (&1.into(), None));
    guard.unlock().expect("held");
    is_client(&watch.until("released", &["acquired"]), &stage.holding);
    is_client(&watch.until("acquired", &["expired"]), &stage.looking);
    drop(join(next));
    is_client(&watch.until("released", &[]), &stage.looking);
}

#[test]
fn a_wait_in_a_queue_ends_with_the_lock_or_without() {
    let stage = stage();
    let guard = stage.holding.fair_lock("a").lock_owned().expect("free");
    let watch = Running::watch(&["a", "--url", &stage.server.url()]);
    watch.until("acquired", &[]);
    let stop = CancelToken::new();
    let lock = stage.looking.fair_lock("a").with_cancel(&stop);
    let cancelled = thread::spawn(move || lock.lock().map(drop));
    let waiting = watch.until("waiting", &ENDS);
    is_client(&waiting, &stage.looking);
    stop.cancel();
    assert!(join(cancelled).is_err());
    let left = watch.until("left", &["acquired"]);
    assert_eq!(left["owner"], waiting["owner"]);
    let next = waiter(stage.looking.fair_lock("a"));
    let waiting = watch.until("waiting", &ENDS);
    guard.unlock().expect("held");
    watch.until("released", &["acquired", "left"]);
    let acquired = watch.until("acquired", &["left"]);
    assert_eq!(acquired["owner"], waiting["owner"], "one owner for the wait and the hold");
    assert!(acquired["waited"].as_f64().expect("a duration") >= 0.0);
    drop(join(next));
}

#[test]
fn a_queue_lock_keeps_the_owner_of_its_waiter() {
    let stage = stage();
    let guard = stage.holding.queue_lock("a").lock_owned().expect("free");
    let watch = Running::watch(&["a", "--url", &stage.server.url()]);
    watch.until("acquired", &[]);
    let next = waiter(stage.looking.queue_lock("a"));
    let waiting = watch.until("waiting", &ENDS);
    guard.unlock().expect("held");
    let acquired = watch.until("acquired", &["left"]);
    assert_eq!(acquired["owner"], waiting["owner"]);
    drop(join(next));
}

/// Returns a watch of `a` whose first look the process of the holder answered.
///
/// On a busy machine the answer may be late. A watch asks again a second later, without an event.
fn watch_that_knows_the_thread(server: &Server) -> Running {
    let mut known = None;
    eventually("a look has the thread of the holder", || {
        let watch = Running::watch(&["a", "--url", &server.url()]);
        known = (!watch.until("acquired", &[])["thread"].is_null()).then_some(watch);
        known.is_some()
    });
    known.expect("a watch")
}

#[test]
fn a_hand_off_between_threads_of_a_process_is_told() {
    let server = Server::start();
    let client = build(patient(server.url()).announce(true).local_handoff(512, NEVER));
    let guard = client.lock("a").lock_owned().expect("free");
    let watch = watch_that_knows_the_thread(&server);
    let lock = client.lock("a");
    let next = thread::Builder::new().name("second".into());
    let next = next.spawn(move || lock.lock_owned().expect("granted")).expect("a thread");
    let looking = other(&server);
    eventually("the thread waits", || {
        let lock = looking.lock_info("a").expect("an answer").expect("held");
        lock.holders()[0].local_waiters() == Some(1)
    });
    guard.unlock().expect("held");
    let released = watch.until("released", &["acquired"]);
    let acquired = watch.until("acquired", &[]);
    for event in [&released, &acquired] {
        assert_eq!(event["handed_off"], true, "{event}");
    }
    assert_eq!((&acquired["owner"], &acquired["thread"]), (&released["owner"], &"second".into()));
    drop(join(next));
}

#[test]
fn a_killed_holder_s_lease_expires() {
    let server = Server::start();
    let mut child = holder(&server.url(), "a", 3000);
    let watch = Running::watch(&["a", "--url", &server.url()]);
    let held = watch.until_identified();
    assert_eq!((&held["pid"], &held["label"]), (&child.pid().into(), &"child".into()));
    child.kill();
    let expired = watch.until("expired", &["released"]);
    assert_eq!(expired["owner"], held["owner"]);
    assert!(!exists(&server, "a"));
}

#[test]
fn a_lock_that_is_forced_is_released() {
    let stage = stage();
    let _guard = stage.holding.lock("a").lock().expect("free");
    let url = stage.server.url();
    let watch = Running::watch(&["a", "--url", &url]);
    watch.until("acquired", &[]);
    assert_eq!(run(&["force", "a", "--url", &url]).code, Some(0));
    is_client(&watch.until("released", &["expired"]), &stage.holding);
}

#[test]
fn the_looks_go_on_after_an_outage() {
    let server = Server::start();
    let first = build(patient(server.url())).lock("a").lock_owned().expect("free");
    let watch = Running::watch(&["a", "b", "--url", &server.url()]);
    watch.until("acquired", &[]);
    server.kill();
    let outages = ["a", "b"].map(|_| watch.until("outage", &["recovered"]));
    assert_eq!(outages.each_ref().map(|event| &event["name"]), ["a", "b"]);
    assert!(outages[0]["text"].as_str().is_some_and(|text| !text.is_empty()));
    server.restart();
    let recovered = ["a", "b"].map(|_| watch.until("recovered", &["outage"]));
    assert_eq!(recovered.each_ref().map(|event| &event["name"]), ["a", "b"]);
    watch.until("released", &["outage"]);
    let next = build(patient(server.url()));
    let _guard = next.lock("b").lock().expect("free");
    is_client(&watch.until("acquired", &["outage"]), &next);
    drop(first);
}

#[test]
fn an_outage_is_told_of_a_pattern_that_no_held_lock_matches() {
    let server = Server::start();
    let watch = Running::watch(&["a:*", "--url", &server.url()]);
    // A search has two scans. From the second search on, an error is an outage.
    eventually("the program searches again", || server.calls("scan") > 2);
    server.kill();
    let outage = watch.until("outage", &["recovered"]);
    assert_eq!(outage["name"], "a:*");
    server.restart();
    assert_eq!(watch.until("recovered", &["outage"])["name"], "a:*");
    let next = build(patient(server.url()));
    let _guard = next.lock("a:1").lock().expect("free");
    is_client(&watch.until("acquired", &["outage"]), &next);
}

#[test]
fn signals_end_the_program() {
    let stage = stage();
    let _guard = stage.holding.lock("a").lock().expect("free");
    for signal in [Signal::INT, Signal::TERM] {
        let watch = Running::watch(&["a", "--url", &stage.server.url()]);
        watch.until("acquired", &[]);
        watch.signal(signal);
        let outcome = watch.finish();
        assert_eq!((outcome.code, &*outcome.out, &*outcome.err), (Some(0), "", ""));
    }
}

/// The server is stopped, so the program waits for an answer when the signal arrives.
#[test]
fn an_interrupt_that_was_ignored_at_the_start_stays_ignored() {
    let server = Server::start();
    let url = server.url();
    let watch = Running::ignoring("INT", &["watch", "a", "--json", "--url", &url]);
    let mut looks = server.calls("evalsha");
    eventually("the program looks", || server.calls("evalsha") > looks);
    watch.signal(Signal::INT);
    looks = server.calls("evalsha");
    eventually("the looks go on", || server.calls("evalsha") > looks + 2);
    watch.signal(Signal::TERM);
    assert_eq!(watch.finish().code, Some(0));
}

#[test]
fn a_signal_ends_the_program_during_an_outage() {
    let stage = stage();
    let _guard = stage.holding.lock("a").lock().expect("free");
    let watch = Running::watch(&["a", "--url", &stage.server.url()]);
    watch.until("acquired", &[]);
    stage.server.stop();
    watch.signal(Signal::INT);
    let outcome = watch.finish();
    stage.server.resume();
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""));
}

#[test]
fn a_closed_pipe_ends_the_program_without_an_event() {
    let server = Server::start();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["watch", "a", "--url", &server.url()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let mut status = None;
    eventually("the program ends", || {
        status = child.try_wait().expect("our own child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}

#[test]
fn people_read_one_line_per_event() {
    let stage = stage();
    let guard = stage.holding.lock("a\tb").lock().expect("free");
    let watch = Running::start(&["watch", "a\tb", "--url", &stage.server.url()]);
    let words = |line: &str| Vec::from_iter(line.split_whitespace().map(str::to_owned));
    let held = words(&watch.next_line());
    assert_eq!(&held[1..3], [r"a\tb", "held"], "{held:?}");
    assert_eq!(held[0].len(), "12:00:00.000".len());
    let pid = format!("[{}]", std::process::id());
    let has_process = |line: &[String]| line.iter().any(|word| word.ends_with(&pid));
    if !has_process(&held) {
        let known = words(&watch.next_line());
        assert!(known[2] == "known" && has_process(&known), "{known:?}");
    }
    guard.unlock().expect("held");
    let released = words(&watch.next_line());
    assert_eq!(&released[1..3], [r"a\tb", "released"], "{released:?}");
    assert_eq!(watch.said_already(), [""; 0]);
}
