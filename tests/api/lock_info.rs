//! `Client::lock_info`: one lock of any kind, by its exact name.

use crate::harness::eventually;
use crate::harness::faults::{build, patient};
use crate::harness::holders::{GONE, JAVA, Stage, stage};
use crate::holders::cancel_all;
use leasehold::{CancelToken, Client, LockInfo};
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
    let _permit = stage.holding.semaphore("jobs").with_permits(1).acquire().expect("free");
    assert!(stage.holding.latch("latch").try_set_count(1).expect("an answer"));
    for name in ["user:1", "sessions", "text", "jobs", "latch"] {
        assert!(is_free(&stage, name), "{name}");
    }
}

#[test]
fn an_invalid_name_and_a_closed_client_are_errors() {
    let client = Client::builder().single("redis://127.0.0.1:1/").build_lazily().expect("no call");
    let error = client.lock_info("no}name").expect_err("braces");
    assert!(error.is_invalid_name() && error.lock_name() == Some("no}name"), "{error:?}");
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
        eventually("the process has answered", || {
            let ours = !["java", "kept"].contains(&name);
            !ours || held(&stage.looking, name).holders()[0].thread_number().is_some()
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
    for other in ["info", "config|resetstat", "client|setname", "hrandfield", "pttl"] {
        stats.remove(other);
    }
    let expected = [("evalsha", 1), ("pubsub|numsub", 1)];
    assert_eq!(stats, expected.map(|(command, calls)| (command.to_owned(), calls)).into());
}
