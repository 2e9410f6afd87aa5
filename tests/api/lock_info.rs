//! `Client::lock_info`: one lock of any kind, by its exact name.

use crate::client_record::record_key;
use crate::harness::faults::{NEVER, build, patient};
use crate::harness::holders::{GONE, JAVA, Stage, stage};
use crate::harness::{eventually, exists};
use crate::holders::cancel_all;
use leasehold::{CancelToken, Client, HolderInfo, LockInfo};
use std::collections::BTreeSet;
use std::thread;

fn held(client: &Client, name: &str) -> LockInfo {
    client.lock_info(name).expect("an answer").unwrap_or_else(|| panic!("{name} is held"))
}

fn is_free(stage: &Stage, name: &str) -> bool {
    stage.looking.lock_info(name).expect("an answer").is_none()
}

#[test]
fn a_free_lock_and_keys_that_are_no_locks_have_no_info() {
    let stage = stage();
    assert!(is_free(&stage, "a"));
    stage.hash("user:1", &["name", "Ann"]);
    stage.hash("sessions", &[&format!("{JAVA}:5"), "{\"user\": 1}"]);
    stage.server.ask::<()>(&["SET", "text", "1"]);
    let permit = stage.holding.semaphore("jobs").with_permits(1).acquire().expect("free");
    permit.release().expect("held");
    assert!(stage.holding.latch("latch").try_set_count(1).expect("an answer"));
    for name in ["user:1", "sessions", "text", "jobs", "latch"] {
        assert!(is_free(&stage, name), "{name}");
    }
}

#[test]
fn an_invalid_name_and_a_closed_client_are_errors() {
    let client = Client::builder().single("redis://127.0.0.1:1/").build_lazily().expect("no call");
    let error = client.lock_info("").expect_err("empty");
    assert!(error.is_invalid_name() && error.lock_name() == Some(""), "{error:?}");
    let error = client.lock_info("a").expect_err("no server");
    assert!(error.is_retryable() && error.lock_name() == Some("a"), "{error:?}");
    client.close();
    assert!(client.lock_info("a").is_err_and(|error| error.is_closed()));
}

#[test]
fn the_info_of_each_kind_is_that_of_a_search() {
    let stage = stage();
    let client = &stage.holding;
    let _plain = client.lock("plain").lock().expect("free");
    let _fair = client.fair_lock("fair").lock().expect("free");
    let _fenced = client.fenced_lock("fenced").lock().expect("free");
    let _queued = client.queue_lock("queued").lock().expect("free");
    let _spin = client.spin_lock("spin").lock().expect("free");
    let _named = client.lock("named").with_holder("job").lock().expect("free");
    let _read = client.rw_lock("read").read().expect("free");
    let _write = client.rw_lock("write").write().expect("free");
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    stage.hash("kept", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    let kinds = [
        ("plain", "lock"),
        ("fair", "fair lock"),
        ("fenced", "fenced lock"),
        ("queued", "queue lock"),
        ("spin", "spin lock"),
        ("named", "lock of a named holder"),
        ("read", "read lock"),
        ("write", "write lock"),
        ("java", "lock"),
        ("kept", "lock"),
    ];
    for (name, kind) in kinds {
        eventually("the process has answered, and its record is written", || {
            let is_ours = !["java", "kept"].contains(&name);
            let is_known = |it: &HolderInfo| it.thread_number().is_some() && it.pid().is_some();
            !is_ours || is_known(&held(&stage.looking, name).holders()[0])
        });
        let info = held(&stage.looking, name);
        let mut search = stage.looking.locks(name).expect("a good pattern");
        let found = search.next().expect("found").expect("an answer");
        assert_eq!((info.name(), info.kind()), (name, kind));
        assert_eq!(found.kind(), kind);
        let owners = |lock: &LockInfo| {
            let holders = lock.holders().iter();
            holders.map(|it| (it.owner().to_owned(), it.pid(), it.count())).collect::<Vec<_>>()
        };
        assert_eq!(owners(&info), owners(&found), "{name}");
        assert_eq!(info.token(), found.token(), "{name}");
        let has_token = ["fenced lock", "queue lock"].contains(&kind);
        assert_eq!(info.token().is_some(), has_token, "{name}");
    }
    assert!(held(&stage.looking, "kept").holders().is_empty());
    assert_eq!(stage.server.calls("keys"), 0);
}

#[test]
fn a_semaphore_with_permits_in_use_has_an_info_like_a_lock() {
    let stage = stage();
    let client = build(patient(stage.server.url()).announce(true));
    let names = ["jobs", "a{b}c", "{a}{b}"];
    for name in names {
        let semaphore = client.semaphore(name).with_permits(5).with_lease(NEVER / 2);
        let _permits = [semaphore.acquire_many(2), stage.holding.semaphore(name).acquire()];
        let records = [&client, &stage.holding].map(|client| record_key(client.id()));
        eventually("the records of the clients", || {
            records.iter().all(|record| exists(&stage.server, record))
        });
        let info = held(&stage.looking, name);
        assert_eq!((info.kind(), info.in_use(), info.permits()), ("semaphore", Some(3), Some(5)));
        let holders = stage.looking.semaphore(name).holders().expect("an answer");
        let shown = |all: &[HolderInfo]| {
            let facts = |it: &HolderInfo| (it.owner().to_owned(), it.count(), it.pid());
            all.iter().map(facts).collect::<BTreeSet<_>>()
        };
        assert_eq!(shown(info.holders()), shown(&holders), "{name}");
        assert_eq!(info.holders().len(), 2);
        assert!(info.remaining() > Some(NEVER / 3), "the longest lease: {:?}", info.remaining());
        assert_eq!((info.token(), info.leader_value()), (None, None));
        let found = stage.find("*").remove(name).expect("a search finds it");
        assert_eq!((found.kind(), found.in_use()), ("semaphore", Some(3)));
        assert_eq!(shown(found.holders()), shown(&holders), "{name}");
    }
    assert_eq!(stage.names("j*"), [""; 0], "all permits were given back");
}

/// The keys of the expiries of `{jobs}` and `jobs` are the same.
#[test]
fn a_semaphore_whose_name_is_a_hash_tag_is_not_taken_for_another() {
    let stage = stage();
    let permit = stage.holding.semaphore("{jobs}").with_permits(3).acquire().expect("free");
    assert_eq!(stage.names("*"), ["{jobs}"]);
    assert!(is_free(&stage, "jobs"));
    assert_eq!(stage.looking.force_unlock("jobs"), Ok(false));
    permit.check().expect("nobody took it away");
    assert_eq!(stage.looking.force_unlock("{jobs}"), Ok(true));
    assert_eq!(stage.looking.semaphore("{jobs}").available(), Ok(3));
}

#[test]
fn the_waiters_of_a_semaphore_are_those_of_its_info() {
    let stage = stage();
    let semaphore = stage.holding.semaphore("jobs").with_permits(1);
    let permit = semaphore.acquire().expect("free");
    let stop = CancelToken::new();
    let waiter = stage.looking.semaphore("jobs").with_cancel(&stop);
    let waiter = thread::spawn(move || waiter.acquire().map(drop));
    eventually("a process waits", || held(&stage.holding, "jobs").waiting().processes() == 1);
    let found = stage.find("jobs").remove("jobs").expect("a search finds it");
    assert_eq!(found.waiting().processes(), 1);
    stop.cancel();
    assert!(waiter.join().expect("no panic").is_err_and(|error| error.is_cancelled()));
    permit.release().expect("held");
}

#[test]
fn permits_that_a_minimum_keeps_are_in_use_without_a_holder() {
    let stage = stage();
    let semaphore = stage.holding.semaphore("jobs").with_permits(2).with_min_hold(NEVER / 2);
    semaphore.acquire().expect("free").release().expect("held");
    let info = held(&stage.looking, "jobs");
    assert_eq!((info.in_use(), info.holders().len()), (Some(1), 0));
    assert!(info.remaining() > Some(NEVER / 3));
}

#[test]
fn keys_that_only_look_like_a_semaphore_have_no_info() {
    let stage = stage();
    for words in [
        &["ZADD", "{other}:timeout", "4000000000000", "member"][..],
        &["HSET", "other", "name", "Ann"],
        &["ZADD", "{text}:timeout", "4000000000000", "member"],
        &["SET", "text", "not a number"],
        &["ZADD", "{over}:timeout", "1", "member"],
        &["SET", "over", "1"],
        &["SET", "{string}:timeout", "4000000000000"],
        &["SET", "string", "1"],
        &["ZADD", "free:timeout", "4000000000000", "member"],
    ] {
        stage.server.ask::<()>(words);
    }
    for name in ["other", "text", "over", "string", "free"] {
        assert!(is_free(&stage, name), "{name}");
    }
    assert_eq!(stage.names("*"), [""; 0]);
}

#[test]
fn an_announced_leader_makes_an_election_of_a_queue_lock() {
    let stage = stage();
    let term = stage.holding.election("a").with_value("web-1:80").campaign().expect("no leader");
    let info = held(&stage.looking, "a");
    assert_eq!((info.kind(), info.leader_value()), ("election", Some("web-1:80")));
    assert_eq!(stage.find("a")["a"].leader_value(), Some("web-1:80"));
    term.resign().expect("the term is valid");
    assert!(is_free(&stage, "a"));
    // The record of an earlier leader says nothing about this holder.
    let _lock = stage.holding.queue_lock("a").lock().expect("free");
    stage.server.ask::<()>(&["HSET", "leasehold_leader:{a}", "owner", JAVA, "value", "gone"]);
    let info = held(&stage.looking, "a");
    assert_eq!((info.kind(), info.leader_value()), ("queue lock", None));
}

#[test]
fn the_token_is_the_last_one_handed_out() {
    let stage = stage();
    let queued = stage.holding.queue_lock("a");
    let mut last = 0;
    for _ in 0..3 {
        let guard = queued.lock().expect("free");
        let token = held(&stage.looking, "a").token();
        assert_eq!(token, Some(guard.token()));
        assert!(guard.token() > last);
        last = guard.token();
        guard.unlock().expect("held");
    }
    let guard = stage.holding.fenced_lock("b").lock().expect("free");
    assert!(held(&stage.looking, "b").token() >= Some(guard.token()), "some are in reserve");
}

#[test]
fn a_token_counter_with_another_value_is_no_token() {
    let stage = stage();
    let _guard = stage.holding.lock("a").lock().expect("free");
    stage.server.ask::<()>(&["SET", "redisson_lock_token:{a}", "many"]);
    assert_eq!(held(&stage.looking, "a").token(), None);
    stage.server.ask::<()>(&["DEL", "redisson_lock_token:{a}"]);
    stage.server.ask::<()>(&["HSET", "redisson_lock_token:{a}", "1", "1"]);
    assert_eq!(held(&stage.looking, "a").token(), None);
}

#[test]
fn waiting_callers_are_shown() {
    let stage = stage();
    let silent = build(patient(stage.server.url()));
    let _held = (
        silent.lock("plain").lock().expect("free"),
        silent.rw_lock("rw").write().expect("free"),
        silent.queue_lock("queued").lock().expect("free"),
    );
    let stop = CancelToken::new();
    let plain = stage.holding.lock("plain").with_cancel(&stop);
    let reading = stage.holding.rw_lock("rw").read_lock().with_cancel(&stop);
    let queued = stage.holding.queue_lock("queued").with_cancel(&stop);
    let waiters = [
        thread::spawn(move || plain.lock_owned().map(drop)),
        thread::spawn(move || reading.lock_owned().map(drop)),
        thread::spawn(move || queued.lock_owned().map(drop)),
    ];
    for name in ["plain", "rw", "queued"] {
        eventually("one process waits", || held(&stage.looking, name).waiting().processes() == 1);
    }
    let info = held(&stage.looking, "queued");
    let [caller] = info.waiting().queue() else { panic!("one caller: {info:?}") };
    assert_eq!(caller.client_id(), Some(stage.holding.id()));
    cancel_all(&stop, waiters);
}

/// The release of a dropped guard may still be in the background.
#[test]
fn a_lock_that_this_client_has_released_is_free() {
    let stage = stage();
    for _ in 0..50 {
        drop(stage.holding.lock("a").lock().expect("free"));
        assert!(stage.holding.lock_info("a").expect("an answer").is_none());
    }
}

#[test]
fn a_name_has_the_prefix_of_the_client() {
    let stage = stage();
    let prefixed = build(patient(stage.server.url()).name_prefix("app:"));
    let _guard = prefixed.lock("a").lock().expect("free");
    assert_eq!(held(&prefixed, "a").name(), "a");
    assert_eq!(held(&stage.looking, "app:a").name(), "app:a");
    assert!(is_free(&stage, "a"));
}

#[test]
fn a_look_at_a_free_lock_costs_one_script_and_one_count() {
    let stage = stage();
    assert!(is_free(&stage, "a"));
    stage.server.reset_stats();
    assert!(is_free(&stage, "a"));
    let mut stats = stage.server.commandstats();
    // The commands of the harness, and those of the script.
    for other in
        ["info", "config|resetstat", "client|setname", "hrandfield", "pttl", "get", "zcard"]
    {
        stats.remove(other);
    }
    let expected = [("evalsha", 1), ("pubsub|numsub", 1)];
    assert_eq!(stats, expected.map(|(command, calls)| (command.to_owned(), calls)).into());
}
