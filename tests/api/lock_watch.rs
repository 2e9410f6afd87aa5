//! `Client::watch_locks`: repeated looks at locks with known names.

use crate::client_record::record_key;
use crate::harness::details::wake_channel;
use crate::harness::faults::{BRIEF, build, hasty, patient};
use crate::harness::holders::{GONE, Stage, stage};
use crate::harness::process::{self, ChildProcess};
use crate::harness::{Server, eventually, join, sleeping};
use leasehold::{Client, HolderInfo, LockInfo, LockWatch};
use std::time::{Duration, Instant};

fn watch(client: &Client, names: &[&str]) -> LockWatch {
    client.watch_locks(names.iter().copied()).expect("good names")
}

fn look(watch: &mut LockWatch) -> Vec<Option<LockInfo>> {
    watch.look().expect("an answer")
}

/// Returns the only holder of the only lock.
fn holder(watch: &mut LockWatch) -> HolderInfo {
    let [Some(lock)] = &look(watch)[..] else { panic!("one held lock") };
    let [holder] = lock.holders() else { panic!("one holder: {lock:?}") };
    holder.clone()
}

/// Waits until a look has an answer of the holder's process.
fn await_answer(watch: &mut LockWatch) -> HolderInfo {
    eventually("the process answers", || holder(watch).thread_number().is_some());
    holder(watch)
}

#[test]
fn the_locks_come_in_the_order_of_the_names() {
    let stage = stage();
    let _held = ["b", "d"].map(|name| stage.holding.lock(name).lock().expect("free"));
    let mut watch = watch(&stage.looking, &["d", "a", "b", "d", "c"]);
    let found = look(&mut watch);
    let names: Vec<_> = found.iter().map(|it| it.as_ref().map(LockInfo::name)).collect();
    assert_eq!(names, [Some("d"), None, Some("b"), Some("d"), None]);
    assert_eq!(look(&mut stage.looking.watch_locks([""; 0]).expect("no name")).len(), 0);
}

#[test]
fn an_invalid_name_and_a_closed_client_are_errors() {
    let stage = stage();
    let error = stage.looking.watch_locks(["a", ""]).expect_err("an empty name");
    assert!(error.is_invalid_name() && error.lock_name() == Some(""), "{error:?}");
    let mut watch = watch(&stage.looking, &["a"]);
    stage.looking.close();
    assert!(watch.look().is_err_and(|error| error.is_closed()));
    assert!(stage.looking.watch_locks(["a"]).is_err_and(|error| error.is_closed()));
}

#[test]
fn hundreds_of_locks_of_all_kinds_are_seen_at_each_look() {
    let stage = stage();
    let names: Vec<String> = (0..300).map(|number| format!("lock {number}")).collect();
    let mut watch = stage.looking.watch_locks(names.clone()).expect("good names");
    let owner = format!("{GONE}:1700000000000000");
    for held in [names.clone(), names[100..].to_vec(), Vec::new()] {
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(&names).ignore();
        for name in &held {
            pipe.cmd("HSET").arg(name).arg(&owner).arg(1).ignore();
        }
        pipe.query::<()>(&mut stage.server.connection()).expect("an answer");
        let found = look(&mut watch);
        assert_eq!(found.len(), names.len());
        for (name, lock) in names.iter().zip(&found) {
            assert_eq!(lock.as_ref().map(LockInfo::name), held.contains(name).then_some(&**name));
        }
    }
}

#[test]
fn a_look_costs_one_script_one_count_and_one_question() {
    let stage = stage();
    let names: Vec<String> = (0..20).map(|number| format!("lock {number}")).collect();
    let held = names.iter().map(|name| stage.holding.lock(name).lock().expect("free"));
    let _held: Vec<_> = held.collect();
    let mut watch = stage.looking.watch_locks(names).expect("good names");
    eventually("the process answers", || {
        let found = look(&mut watch);
        found.iter().flatten().all(|lock| lock.holders()[0].thread_number().is_some())
    });
    let connections = stage.server.info("stats")["total_connections_received"].clone();
    stage.server.reset_stats();
    for _ in 0..5 {
        look(&mut watch);
    }
    let stats = stage.server.commandstats();
    let calls = |command: &str| stats.get(command).copied().unwrap_or(0);
    assert_eq!((calls("evalsha"), calls("pubsub|numsub")), (5, 5), "{stats:?}");
    // The client may renew its record meanwhile, with a heartbeat.
    assert!((10..=11).contains(&calls("publish")), "questions and answers: {stats:?}");
    assert_eq!((calls("hmget"), calls("subscribe"), calls("scan")), (0, 0, 0), "{stats:?}");
    let opened = &stage.server.info("stats")["total_connections_received"];
    let [before, after] = [&connections, opened].map(|it| it.parse::<u64>().expect("a number"));
    assert!(after <= before + 5, "only the harness connects: {before} to {after}");
}

/// A subscriber would count as a waiting process, to which holders yield.
#[test]
fn a_watch_does_not_count_as_a_waiting_process() {
    let stage = stage();
    let guard = stage.holding.lock("a").lock().expect("free");
    let mut watch = watch(&stage.looking, &["a"]);
    await_answer(&mut watch);
    let [Some(lock)] = &look(&mut watch)[..] else { panic!("held") };
    assert_eq!(lock.waiting().processes(), 0);
    let channels = stage.server.channels();
    let lock_channels = channels.iter().filter(|name| !name.starts_with("leasehold:"));
    assert_eq!(lock_channels.count(), 0, "{channels:?}");
    guard.unlock().expect("held");
}

#[test]
fn the_number_of_holds_counts_grants_and_hand_offs_and_no_re_entries() {
    let server = Server::start();
    let builder = Client::builder().single(server.url());
    let minute = Duration::from_secs(60);
    let holding = builder.local_handoff(100, minute).build().expect("the server answers");
    let looking = build(patient(server.url()));
    let mut watch = watch(&looking, &["a"]);
    let lock = holding.lock("a");
    for _ in 0..3 {
        lock.lock().expect("free").unlock().expect("held");
    }
    let guard = lock.lock().expect("free");
    let nested = lock.lock().expect("re-entered");
    let before = await_answer(&mut watch);
    assert_eq!((before.acquired(), before.count()), (Some(4), 2));
    drop(nested);

    let waiters = ["one", "two", "three"].map(|name| {
        let lock = holding.lock("a");
        sleeping(name, move || lock.lock()?.unlock())
    });
    guard.unlock().expect("held");
    for waiter in waiters {
        join(waiter).expect("handed off");
    }
    let _guard = lock.lock().expect("free");
    assert_eq!(await_answer(&mut watch).acquired(), Some(4 + 3 + 1));
    let _other = holding.lock("b").lock().expect("free");
    let mut other = looking.watch_locks(["b"]).expect("a good name");
    assert_eq!(await_answer(&mut other).acquired(), Some(1), "each name counts for itself");
}

/// A look shows a hold that is over when its process is asked.
#[test]
fn the_number_of_holds_is_known_for_a_hold_that_is_over() {
    let stage = stage();
    stage.holding.lock("a").lock().expect("free").unlock().expect("held");
    stage.hash("a", &[&format!("{}:1700000000000000", stage.holding.id()), "1"]);
    let mut watch = watch(&stage.looking, &["a"]);
    eventually("the process answers", || holder(&mut watch).acquired() == Some(1));
    let shown = holder(&mut watch);
    assert_eq!((shown.thread_number(), shown.pid()), (None, Some(std::process::id())));
}

#[test]
fn the_number_of_holds_is_unknown_without_an_answer() {
    let stage = stage();
    let silent = build(patient(stage.server.url()));
    let _guard = silent.lock("a").lock().expect("free");
    assert_eq!(holder(&mut watch(&stage.looking, &["a"])).acquired(), None);
}

#[test]
fn a_client_that_announces_itself_later_is_shown() {
    let stage = stage();
    stage.hash("a", &[&format!("{GONE}:1700000000000000"), "1"]);
    let mut watch = watch(&stage.looking, &["a"]);
    assert_eq!(holder(&mut watch).host(), None);
    let record = record_key(GONE);
    stage.server.ask::<()>(&["HSET", &record, "host", "web-7"]);
    eventually("the record is found", || holder(&mut watch).host() == Some("web-7"));
    stage.server.ask::<()>(&["DEL", &record]);
    assert_eq!(holder(&mut watch).host(), Some("web-7"), "a known record is kept");
}

#[test]
fn a_broken_connection_for_answers_is_made_again() {
    let stage = stage();
    let _guard = stage.holding.lock("a").lock().expect("free");
    let mut watch = watch(&stage.looking, &["a"]);
    await_answer(&mut watch);
    let details = stage.server.clients().into_iter().find(|it| it.name.ends_with(":details"));
    let details = details.expect("the connection stays open between looks");
    assert!(stage.server.client_kill(details.id));
    await_answer(&mut watch);
}

#[test]
fn a_failed_look_does_not_end_the_watch() {
    let server = Server::start();
    let client = build(hasty(server.url()).connect_timeout(BRIEF).pool_timeout(BRIEF));
    let owner = format!("{GONE}:1700000000000000");
    let mut watch = watch(&client, &["a"]);
    assert!(look(&mut watch)[0].is_none());
    server.kill();
    let error = watch.look().expect_err("the server is gone");
    assert!(error.is_retryable(), "{error:?}");
    server.restart();
    server.ask::<()>(&["HSET", "a", &owner, "1"]);
    eventually("the watch goes on", || {
        watch.look().is_ok_and(|found| found[0].as_ref().is_some_and(|it| it.holders().len() == 1))
    });
}

/// Each question costs 125 ms.
#[test]
fn a_silent_client_is_asked_again_only_now_and_then() {
    let stage = stage();
    stage.hash("a", &[&format!("{GONE}:1700000000000000"), "1"]);
    stage.server.ask::<()>(&["HSET", &record_key(GONE), "host", "web-7"]);
    let mut connection = stage.server.connection();
    let mut questions = connection.as_pubsub();
    questions.subscribe(wake_channel(GONE)).expect("the server answers");
    let mut watch = watch(&stage.looking, &["a"]);
    let (begun, mut looks) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(4) {
        assert_eq!(holder(&mut watch).host(), Some("web-7"));
        looks += 1;
    }
    stage.server.ask::<()>(&["PUBLISH", &wake_channel(GONE), "end"]);
    let mut next = || questions.get_message().expect("a message").get_payload::<String>();
    let asked = std::iter::from_fn(|| next().ok().filter(|it| it != "end")).count();
    // At once, and after 1 s, 2 s and 4 s more.
    assert!((1..=4).contains(&asked) && looks > 20, "{asked} questions at {looks} looks");
}

#[test]
fn a_stopped_process_is_shown_and_answers_again_when_it_is_resumed() {
    let Stage { looking, server, holding } = stage();
    let mut child = ChildProcess::start("lock_watch::child_entry", "holds", &[&server.url()]);
    let id = child.next_line();
    eventually("the client listens", || server.numsub(&wake_channel(&id)) == 1);
    let _guard = holding.lock("b").lock().expect("free");
    let mut watch = watch(&looking, &["a", "b"]);
    let answered = |found: &[Option<LockInfo>]| {
        let answers = found.iter().flatten().flat_map(LockInfo::holders);
        answers.map(|it| it.thread_number().is_some()).collect::<Vec<_>>()
    };
    eventually("both answer", || answered(&look(&mut watch)) == [true, true]);
    child.stop();
    eventually("the other process answers", || answered(&look(&mut watch)) == [false, true]);
    child.resume();
    eventually("both answer again", || answered(&look(&mut watch)) == [true, true]);
    child.close_input();
    assert!(child.wait().success());
}

#[test]
fn child_entry() {
    let Some(role) = process::role().filter(|role| role.name() == "holds") else { return };
    let client = Client::open(role.arg(0)).expect("the server runs");
    let _guard = client.lock("a").lock().expect("the lock is free");
    role.say(&client.id().to_string());
    role.hear();
}

#[test]
fn a_watch_can_be_sent_to_another_thread() {
    fn is_send<T: Send + std::fmt::Debug + 'static>() {}
    is_send::<LockWatch>();
}
