//! `show`: all facts about one lock.

use super::program::{eventually_listed, holder, json, run};
use crate::harness::Server;
use crate::harness::faults::{NEVER, build, patient};
use crate::harness::holders::{GONE, JAVA, stage};
use crate::harness::wait::join;
use leasehold::CancelToken;
use serde_json::Value;
use std::thread;

#[test]
fn a_free_lock_gives_null_and_the_code_1() {
    let server = Server::start();
    assert_eq!(json(&["show", "a", "--url", &server.url()]), (Some(1), Value::Null));
    let outcome = run(&["show", "a\u{1b}b", "--url", &server.url()]);
    assert_eq!((outcome.code, &*outcome.out), (Some(1), "a\\u{1b}b is free\n"));
}

#[test]
fn a_held_lock_is_described() {
    let server = Server::start();
    let child = holder(&server.url(), "orders:42", 120_000);
    let arguments = ["show", "orders:42", "--url", &server.url()];
    let has_answered = |lock: &Value| lock["holders"][0]["thread"].is_string();
    let lock = eventually_listed(&arguments, "the process answers", has_answered);
    assert_eq!((&lock["name"], &lock["kind"]), (&"orders:42".into(), &"lock".into()));
    assert_eq!(lock["holders"][0]["pid"], child.pid());
    let outcome = run(&arguments);
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""));
    let pid = format!("  pid         {}\n", child.pid());
    for line in
        ["name          orders:42\n", "kind          plain\n", &pid, "  label       child\n"]
    {
        assert!(outcome.out.contains(line), "{line:?} is missing:\n{}", outcome.out);
    }
    assert!(outcome.out.contains("  thread      program::child_entry (number "), "{}", outcome.out);
}

#[test]
fn a_queue_is_shown_in_its_order() {
    let stage = stage();
    let _guard = stage.holding.fair_lock("a").lock().expect("free");
    let stop = CancelToken::new();
    let arguments = ["show", "a", "--url", &stage.server.url()];
    let clients = ["first", "second"]
        .map(|label| build(patient(stage.server.url()).announce(true).label(label)));
    let mut waiters = Vec::new();
    for client in &clients {
        let lock = client.fair_lock("a").with_cancel(&stop);
        waiters.push(thread::spawn(move || lock.lock().map(drop)));
        eventually_listed(&arguments, "the caller waits", |lock| {
            let queue = lock["waiting"]["queue"].as_array().map_or(&[][..], Vec::as_slice);
            queue.len() == waiters.len() && queue.iter().all(|caller| caller["label"].is_string())
        });
    }
    let shown = run(&arguments).out;
    assert!(shown.contains("waiting       2 callers of 2 processes\n"), "{shown}");
    let rows = shown.lines().skip_while(|line| !line.starts_with("PLACE")).skip(1);
    let labels = rows.map(|row| row.split_whitespace().rev().nth(1).unwrap_or_default().to_owned());
    assert_eq!(Vec::from_iter(labels), ["first", "second"], "{shown}");
    stop.cancel();
    waiters.into_iter().for_each(|it| assert!(join(it).is_err_and(|error| error.is_cancelled())));
}

#[test]
fn facts_of_other_programs_and_minimum_holds_are_shown() {
    let stage = stage();
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    stage.hash("kept", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    let shown = |name| run(&["show", name, "--url", &stage.server.url()]).out;
    let java = shown("java");
    for line in ["  thread      number 94\n", "  guards      2\n"] {
        assert!(java.contains(line), "{java}");
    }
    let kept = shown("kept");
    assert!(kept.contains("holders       none: the minimum of a hold"), "{kept}");
    assert!(kept.contains(&format!("former holder\n  owner       {GONE}:17")), "{kept}");
}

#[test]
fn the_holders_of_permits_are_shown() {
    let stage = stage();
    let arguments = ["show", "s", "--url", &stage.server.url()];
    let permit = stage.holding.semaphore("s").with_permits(3).acquire_many(2).expect("free");
    let (code, semaphore) = json(&arguments);
    assert_eq!((code, &semaphore["kind"]), (Some(0), &"semaphore".into()));
    assert_eq!((&semaphore["permits"], &semaphore["in_use"]), (&3.into(), &2.into()));
    let holder = &semaphore["holders"][0];
    assert_eq!(holder["client_id"], stage.holding.id().to_string());
    assert_eq!(holder["count"], 2);
    let shown = run(&arguments).out;
    for line in ["permits       3, 2 in use\n", "  permits     2\n"] {
        assert!(shown.contains(line), "{shown}");
    }
    permit.release().expect("held");
    let kept = stage.holding.semaphore("s").with_min_hold(NEVER);
    kept.acquire().expect("free").release().expect("held");
    let shown = run(&arguments).out;
    assert!(shown.contains("permits       3, 1 in use\n"), "{shown}");
}

#[test]
fn a_count_is_shown_although_nobody_holds_it() {
    let stage = stage();
    let url = &stage.server.url();
    assert!(stage.holding.latch("latch").try_set_count(7).expect("an answer"));
    let (code, count) = json(&["show", "latch", "--url", url]);
    assert_eq!((code, &count["kind"], &count["count"]), (Some(0), &"count".into(), &7.into()));
    let shown = run(&["show", "latch", "--url", url]).out;
    assert!(shown.starts_with("latch is a count of 7, without holders"), "{shown}");
    stage.server.ask::<()>(&["SET", "text", "no count"]);
    assert_eq!(run(&["show", "text", "--url", url]).code, Some(1));
}

#[test]
fn the_value_of_a_leader_is_shown() {
    let stage = stage();
    let election = stage.holding.election("scheduler").with_value("web-1:80");
    let term = election.campaign().expect("no leader");
    let arguments = ["show", "scheduler", "--url", &stage.server.url()];
    let (code, lock) = json(&arguments);
    assert_eq!((code, &lock["kind"]), (Some(0), &"election".into()));
    assert_eq!((&lock["leader_value"], &lock["token"]), (&"web-1:80".into(), &term.token().into()));
    let shown = run(&arguments).out;
    assert!(shown.contains("leader        web-1:80\n"), "{shown}");
}

#[test]
fn a_pattern_shows_all_locks_that_match() {
    let stage = stage();
    let url = &stage.server.url();
    let _held = stage.hold(&["a:1", "a:2", "b"]);
    let shown = run(&["show", "a:*", "--url", url]).out;
    let names: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix("name ")).collect();
    assert_eq!(names.iter().map(|name| name.trim()).collect::<Vec<_>>(), ["a:1", "a:2"]);
    let (code, locks) = json(&["show", "a:*", "--url", url]);
    assert_eq!((code, locks.as_array().map(Vec::len)), (Some(0), Some(2)));
    let none = run(&["show", "c*", "--url", url]);
    assert_eq!((none.code, &*none.out), (Some(1), "c* is free\n"));
    assert_eq!(json(&["show", "c*", "--url", url]).0, Some(1));
}
