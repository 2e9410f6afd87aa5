//! `Client::locks`: the search for locks by a pattern.

use crate::client_record::record_key;
use crate::harness::faults::{NEVER, build, patient};
use crate::harness::holders::{GONE, JAVA, find, stage};
use crate::harness::{Server, eventually, eventually_some};
use crate::holders::cancel_all;
use leasehold::{CancelToken, Client, HolderInfo, LockInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

// ---------------------------------------------------------------------------------
// Patterns and names.

#[test]
fn a_pattern_selects_locks_by_their_names() {
    let stage = stage();
    let _held = stage.hold(&["orders:1", "orders:2", "orders:10", "bills:1"]);
    assert_eq!(stage.names("*"), ["bills:1", "orders:1", "orders:10", "orders:2"]);
    assert_eq!(stage.names("orders:?"), ["orders:1", "orders:2"]);
    assert_eq!(stage.names("orders:[2-9]"), ["orders:2"]);
    assert_eq!(stage.names("bills:1"), ["bills:1"]);
    assert_eq!(stage.names("nothing*"), [""; 0]);
}

#[test]
fn names_with_glob_characters_are_found() {
    let stage = stage();
    let names = ["a*b", "a?b", "a[1]", "a\\b", "a{1}b", "axb", "ä ö"];
    let _held = stage.hold(&names);
    let found = stage.find("*");
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), names.into());
    assert!(found.values().all(|lock| lock.holders().len() == 1));
    assert_eq!(stage.names(r"a\*b"), ["a*b"]);
    assert_eq!(stage.names(r"a\[1\]"), ["a[1]"]);
    assert_eq!(stage.names(r"a\\b"), ["a\\b"]);
    assert_eq!(stage.names("a?b").len(), 4);
}

#[test]
fn the_prefix_of_a_client_is_taken_literally_and_left_out() {
    let server = Server::start();
    for prefix in ["app:", "a*?", "[ab]", "x\\"] {
        let client = build(patient(server.url()).name_prefix(prefix));
        let guard = client.lock("one").lock().expect("free");
        assert_eq!(Vec::from_iter(find(&client, "*").into_keys()), ["one"], "{prefix}");
        guard.unlock().expect("held");
    }
    let all = build(patient(server.url()));
    let prefixed = build(patient(server.url()).name_prefix("a?"));
    let _guards = [all.lock("abc").lock(), prefixed.lock("c").lock()];
    assert_eq!(Vec::from_iter(find(&prefixed, "*").into_keys()), ["c"]);
    assert_eq!(Vec::from_iter(find(&all, "*").into_keys()), ["a?c", "abc"]);
}

#[test]
fn an_invalid_pattern_is_a_configuration_error() {
    let client = Client::builder().single("redis://127.0.0.1:1/").build_lazily().expect("no call");
    for bad in ["", "a\nb", "\0", &"x".repeat(257), "[", "a[b-", "a[b\\]", "[a]["] {
        assert!(client.locks(bad).is_err_and(|error| error.is_configuration()), "{bad:?}");
    }
    let mut locks = client.locks("x".repeat(256)).expect("no round trip");
    let error = locks.next().expect("one item").expect_err("no server");
    assert!(error.is_retryable(), "{error:?}");
    assert!(locks.next().is_none(), "the error ends the iterator");
    client.close();
    assert!(client.locks("*").is_err_and(|error| error.is_closed()));
}

// ---------------------------------------------------------------------------------
// Keys that are locks, and keys that are none.

#[test]
fn keys_that_are_no_lock_are_left_out() {
    let stage = stage();
    stage.hash("user:1", &["name", "Ann", "mail", "a@b.c"]);
    stage.hash("settings", &["mode", "read"]);
    stage.hash("settings:2", &["mode", "write", "colour", "red"]);
    stage.hash("counter", &["requests", "12"]);
    stage.hash("sessions", &[&format!("{JAVA}:5"), "{\"user\": 1}"]);
    stage.hash("sessions:2", &[&format!("{JAVA}:5"), "1", "name", "Ann"]);
    stage.hash("two names", &[&format!("{GONE}:5"), "0", "job-1", "1", "job-2", "1"]);
    stage.hash("with text", &[&format!("{GONE}:5"), "0", "job-1", "done"]);
    stage.hash("uuid", &[JAVA, "1"]);
    stage.hash(&record_key(GONE), &[&format!("{JAVA}:5"), "1"]);
    let many: Vec<String> = (0..3000).flat_map(|n| [format!("f{n}"), "1".to_owned()]).collect();
    stage.hash("many", &many.iter().map(String::as_str).collect::<Vec<_>>());
    stage.server.ask::<()>(&["SET", "text", "1"]);
    stage.server.ask::<()>(&["RPUSH", "list", &format!("{JAVA}:5")]);
    let mut command = redis::cmd("HSET");
    command.arg(b"\xff\xfe".as_slice()).arg(format!("{JAVA}:5")).arg("1");
    command.query::<()>(&mut stage.server.connection()).expect("a hash");
    assert_eq!(stage.names("*"), [""; 0]);
}

/// Monitoring counts the errors of a server, and `top` searches once a second.
#[test]
fn a_search_among_keys_of_other_programs_causes_no_error_on_the_server() {
    let stage = stage();
    stage.hash("user:1", &["name", "Ann"]);
    stage.hash("user:2", &["name", "Bob"]);
    stage.server.ask::<()>(&["SET", "text", "1"]);
    stage.server.ask::<()>(&["ZADD", "set:timeout", "1", "x"]);
    let _held = stage.holding.lock("a").lock().expect("free");
    let _permit = stage.holding.semaphore("jobs").with_permits(2).acquire().expect("free");
    stage.server.ask::<()>(&["CONFIG", "RESETSTAT"]);
    assert_eq!(stage.names("*"), ["a", "jobs"]);
    let errors: String = stage.server.ask(&["INFO", "errorstats"]);
    assert!(!errors.contains("WRONGTYPE"), "{errors}");
}

/// Redisson takes names whose braces are no hash tag; leasehold refuses to lock them.
#[test]
fn locks_with_names_that_only_redisson_takes_are_found() {
    let stage = stage();
    let names = ["a}b", "order{1", "{}x"];
    names.iter().for_each(|name| stage.hash(name, &[&format!("{JAVA}:5"), "1"]));
    assert_eq!(stage.names("*"), names);
    for name in names {
        assert!(stage.looking.lock(name).try_lock().is_err_and(|error| error.is_invalid_name()));
        let info = stage.looking.lock_info(name).expect("an answer").expect("held");
        assert_eq!((info.name(), info.holders().len()), (name, 1));
    }
    let mut watch = stage.looking.watch_locks(names).expect("names of locks");
    assert!(watch.look().expect("an answer").iter().all(Option::is_some));
}

#[test]
fn locks_of_every_kind_are_found_with_their_kind() {
    let stage = stage();
    let client = &stage.holding;
    let _plain = client.lock("plain").lock().expect("free");
    let _fenced = client.fenced_lock("fenced").lock().expect("free");
    let _named = client.lock("named").with_holder("job").lock().expect("free");
    let _write = client.rw_lock("write").write().expect("free");
    let _read = client.rw_lock("read").read().expect("free");
    let found = stage.find("*");
    assert_eq!(
        kinds(&found),
        [
            ("fenced", "fenced lock"),
            ("named", "lock of a named holder"),
            ("plain", "lock"),
            ("read", "read lock"),
            ("write", "write lock"),
        ]
    );
    found.values().for_each(|lock| assert_held_by(lock, client));
}

/// Returns the names and kinds.
fn kinds(found: &BTreeMap<String, LockInfo>) -> Vec<(&str, &str)> {
    found.values().map(|lock| (lock.name(), lock.kind())).collect()
}

#[track_caller]
fn assert_held_by(lock: &LockInfo, client: &Client) {
    let [holder] = lock.holders() else { panic!("one holder: {lock:?}") };
    assert_eq!(holder.client_id(), Some(client.id()));
    let left = [holder.remaining(), lock.remaining()];
    assert!(left.iter().all(|it| it.is_some_and(|it| it <= NEVER && it > NEVER / 2)));
}

/// The holder's process has no record, and is not asked.
#[test]
fn locks_with_a_queue_are_found_with_it() {
    let stage = stage();
    let silent = build(patient(stage.server.url()).announce(false));
    let _fair = silent.fair_lock("fair").lock().expect("free");
    let _queued = silent.queue_lock("queued").lock().expect("free");
    let stop = CancelToken::new();
    let (fair, queued) = (stage.looking.fair_lock("fair"), stage.looking.queue_lock("queued"));
    let waiting = (fair.clone().with_cancel(&stop), queued.clone().with_cancel(&stop));
    let waiters = [
        thread::spawn(move || waiting.0.lock_owned().map(drop)),
        thread::spawn(move || waiting.1.lock_owned().map(drop)),
    ];
    eventually("the callers wait", || {
        [fair.waiting(), queued.waiting()].map(|it| it.expect("an answer").queue().len()) == [1, 1]
    });
    let found = stage.find("*");
    assert_eq!(kinds(&found), [("fair", "fair lock"), ("queued", "queue lock")]);
    for lock in found.values() {
        assert_held_by(lock, &silent);
        let [caller] = lock.waiting().queue() else { panic!("one caller: {lock:?}") };
        assert_eq!(caller.client_id(), Some(stage.looking.id()));
        assert_eq!(lock.waiting().processes(), 1);
    }
    cancel_all(&stop, waiters);
}

#[test]
fn locks_of_other_programs_and_minimum_holds_are_found() {
    let stage = stage();
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    stage.hash("kept", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    let writer = format!("{GONE}:1700000000000000:write:min_hold");
    stage.hash("kept rw", &["mode", "write", &writer, "1"]);
    let counted = [&format!("{GONE}:1700000000000000"), "0", "job", "1"];
    stage.hash("counted", &counted);

    let found = stage.find("*");
    let expected = [
        ("counted", "lock of a named holder"),
        ("java", "lock"),
        ("kept", "lock"),
        ("kept rw", "write lock"),
    ];
    assert_eq!(kinds(&found), expected);
    assert_eq!(found["java"].holders()[0].thread(), Some("94"));
    for name in ["kept", "kept rw"] {
        assert!(found[name].holders().is_empty() && found[name].remaining().is_some());
    }
}

/// The other data of these locks, without waiting callers, are those of a plain lock or of a fenced
/// lock. The counter is that of a former fenced lock.
#[test]
fn a_hold_tells_its_kind_without_its_process() {
    let stage = stage();
    let silent = build(patient(stage.server.url()).announce(false));
    drop(silent.fenced_lock("plain").lock().expect("free"));
    let _spin = silent.spin_lock("spin").lock().expect("free");
    let _fair = silent.fair_lock("fair").lock().expect("free");
    let _queued = silent.queue_lock("queued").lock().expect("free");
    let _fenced = silent.fenced_lock("fenced").lock().expect("free");
    let _plain = silent.lock("plain").lock().expect("free");
    let term = silent.election("term").campaign().expect("nobody leads");
    let kept = silent.fair_lock("kept").with_min_hold(NEVER / 2);
    kept.lock().expect("free").unlock().expect("held");
    let found = stage.find("*");
    let expected = [
        ("fair", "fair lock"),
        ("fenced", "fenced lock"),
        ("kept", "fair lock"),
        ("plain", "lock"),
        ("queued", "queue lock"),
        ("spin", "spin lock"),
        ("term", "election"),
    ];
    assert_eq!(kinds(&found), expected);
    assert!(found.values().flat_map(LockInfo::holders).all(|it| it.thread_number().is_none()));
    term.resign().expect("the term is valid");
}

#[test]
fn a_running_process_answers_about_locks_of_every_kind() {
    let stage = stage();
    let client = &stage.holding;
    let _spin = client.spin_lock("spin").lock().expect("free");
    let _fair = client.fair_lock("fair").lock().expect("free");
    let _queued = client.queue_lock("queued").lock().expect("free");
    let lock = client.rw_lock("both");
    let _sides = (lock.write().expect("free"), lock.read().expect("the same thread"));
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    let found = eventually_some("the process answers", || {
        let found = stage.find("*");
        let holders = || found.values().flat_map(LockInfo::holders);
        let answered = holders().filter(|it| it.thread_number().is_some()).count();
        (answered == 6).then_some(found)
    });
    let expected = [
        ("both", "write lock"),
        ("fair", "fair lock"),
        ("java", "lock"),
        ("queued", "queue lock"),
        ("spin", "spin lock"),
    ];
    assert_eq!(kinds(&found), expected);
}

#[test]
fn waiting_processes_and_records_are_shown() {
    let stage = stage();
    let _held = stage.hold(&["a", "b", "c"]);
    let stop = CancelToken::new();
    let waiting = stage.looking.lock("b").with_cancel(&stop);
    let waiter = thread::spawn(move || waiting.lock().map(drop));
    let processes = || -> Vec<u64> {
        stage.find("*").values().map(|lock| lock.waiting().processes()).collect()
    };
    eventually("one process waits", || processes() == [0, 1, 0]);
    cancel_all(&stop, [waiter]);

    let key = record_key(GONE);
    stage.server.ask::<()>(&["HSET", &key, "host", "web-7", "pid", "42", "program", "api"]);
    for name in ["d", "e"] {
        stage.hash(name, &[&format!("{GONE}:1700000000000000"), "1"]);
    }
    for lock in stage.find("[de]").values() {
        let [holder] = lock.holders() else { panic!("one holder: {lock:?}") };
        assert_eq!((holder.host(), holder.pid()), (Some("web-7"), Some(42)));
    }
}

#[test]
fn a_lock_without_an_expiry_has_no_remaining_time() {
    let stage = stage();
    stage.server.ask::<()>(&["HSET", "a", &format!("{JAVA}:1"), "1"]);
    let found = stage.find("*");
    assert_eq!((found["a"].remaining(), found["a"].holders()[0].remaining()), (None, None));
}

// ---------------------------------------------------------------------------------
// Many keys.

/// Makes this many locks `lock:<number>` and as many other keys.
fn fill(server: &Server, count: usize) {
    let mut pipe = redis::pipe();
    for number in 0..count {
        let owner = format!("{GONE}:{}", 1_700_000_000_000_000 + number);
        pipe.cmd("HSET").arg(format!("lock:{number}")).arg(owner).arg(1).ignore();
        pipe.cmd("HSET").arg(format!("user:{number}")).arg("name").arg("Ann").ignore();
    }
    pipe.query::<()>(&mut server.connection()).expect("an answer");
}

#[test]
fn a_search_is_lazy_and_never_sends_keys() {
    const COUNT: usize = 2000;
    let stage = stage();
    fill(&stage.server, COUNT);
    stage.server.reset_stats();
    let mut locks = stage.looking.locks("lock:*").expect("a good pattern");
    assert_eq!(stage.server.calls("scan"), 0, "nothing is asked for yet");
    locks.next().expect("many locks").expect("an answer");
    let first = stage.server.calls("scan");
    assert!((1..=2).contains(&first), "{first} pages for one lock");
    let rest: Vec<LockInfo> = locks.map(|lock| lock.expect("an answer")).collect();
    assert_eq!(rest.len(), COUNT - 1);
    let names: BTreeSet<_> = rest.iter().map(LockInfo::name).collect();
    assert_eq!(names.len(), COUNT - 1, "each once");
    assert!(stage.server.calls("scan") > first);
    assert_eq!(stage.server.calls("keys"), 0);
    let per_lock = stage.server.calls("evalsha") as f64 / COUNT as f64;
    assert!(per_lock < 0.1, "look-ups are batched: {per_lock}");
    assert_eq!(stage.server.calls("hmget"), 1, "the record of a client is read once");
    assert!(rest.iter().flat_map(LockInfo::holders).all(|it: &HolderInfo| it.count() == 1));
}

#[test]
fn a_server_that_ends_during_a_search_is_one_error() {
    let stage = stage();
    fill(&stage.server, 2000);
    let brief = build(patient(stage.server.url()).response_timeout(Duration::from_secs(1)));
    let mut locks = brief.locks("lock:*").expect("a good pattern");
    locks.next().expect("many locks").expect("an answer");
    stage.server.kill();
    let outcomes: Vec<_> = locks.collect();
    let (errors, found): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_err);
    assert_eq!(errors.len(), 1, "after {} locks", found.len());
}

#[test]
fn results_can_be_sent_to_other_threads() {
    fn is_send<T: Send + 'static>() {}
    is_send::<leasehold::Locks>();
    is_send::<LockInfo>();
    fn is_shared<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
    is_shared::<LockInfo>();
    is_shared::<HolderInfo>();
    is_shared::<leasehold::WaitingInfo>();
}
