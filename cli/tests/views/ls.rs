//! `ls`: the table, and the array of `ls --json`.

use super::program::{Outcome, Running, eventually_listed, holder, json, run};
use crate::harness::faults::{NEVER, build, patient};
use crate::harness::holders::{GONE, JAVA, Stage, stage};
use crate::harness::wait::join;
use crate::harness::{Cluster, Server, pttl};
use leasehold::{CancelToken, Client};
use serde_json::{Value, json as value};
use std::thread;

/// Returns the elements of `ls --json`, after the holders' processes have answered.
fn list(url: &str) -> Vec<Value> {
    let answered = |list: &Value| {
        let holders = || elements(list).iter().flat_map(|lock| elements(&lock["holders"]));
        holders().count() > 0 && holders().all(|holder| holder["thread_number"].is_number())
    };
    let list = eventually_listed(&["ls", "--url", url], "the processes answer", answered);
    elements(&list).to_vec()
}

fn elements(array: &Value) -> &[Value] {
    array.as_array().expect("an array")
}

/// Returns the number, which is within the bounds.
#[track_caller]
fn number(value: &Value, least: f64, most: f64) -> f64 {
    let number = value.as_f64().unwrap_or_else(|| panic!("a number: {value}"));
    assert!((least..=most).contains(&number), "{number}");
    number
}

#[track_caller]
fn succeeds(outcome: Outcome) -> String {
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""), "{outcome:?}");
    outcome.out
}

#[test]
fn the_array_has_locks_of_every_kind_with_their_holders() {
    let stage = stage();
    let client = &stage.holding;
    let _plain = client.lock("plain").lock().expect("free");
    let _fair = client.fair_lock("fair").lock().expect("free");
    let fenced = client.fenced_lock("fenced").lock().expect("free");
    let _named = client.lock("named").with_holder("job").lock().expect("free");
    let queued = client.queue_lock("queued").lock().expect("free");
    let _read = client.rw_lock("read").read().expect("free");
    let _spin = client.spin_lock("spin").lock().expect("free");
    let _write = client.rw_lock("write").write().expect("free");
    let _term = client.election("leader").with_value("web-1").campaign().expect("no leader");
    // A call that waits may have its client subscribe to the channel if the listener connects at
    // that moment: the client then counts as waiting for half a poll interval, which is long here.
    let _permit = client.semaphore("permits").with_permits(3).try_acquire();
    let _permit = _permit.expect("an answer").expect("free");
    let locks = list(&stage.server.url());
    let kinds = locks.iter().map(|lock| (text(&lock["name"]), text(&lock["kind"])));
    let expected = [
        ("fair", "fair lock"),
        ("fenced", "fenced lock"),
        ("leader", "election"),
        ("named", "lock of a named holder"),
        ("permits", "semaphore"),
        ("plain", "lock"),
        ("queued", "queue lock"),
        ("read", "read lock"),
        ("spin", "spin lock"),
        ("write", "write lock"),
    ];
    assert_eq!(Vec::from_iter(kinds), expected);
    locks.iter().for_each(|lock| assert_held_by(lock, client));
    assert_eq!(locks[1]["token"], fenced.token());
    assert_eq!(locks[2]["leader_value"], "web-1");
    assert_eq!((&locks[4]["in_use"], &locks[4]["permits"]), (&value!(1), &value!(3)));
    number(&locks[6]["token"], queued.token() as f64, f64::MAX);
    assert_eq!(
        (&locks[5]["token"], &locks[3]["holders"][0]["owner"]),
        (&Value::Null, &value!("job"))
    );
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[track_caller]
fn assert_held_by(lock: &Value, client: &Client) {
    let [holder] = elements(&lock["holders"]) else { panic!("one holder: {lock}") };
    assert_eq!(holder["client_id"], client.id().to_string());
    assert_eq!((&holder["pid"], &holder["count"]), (&value!(std::process::id()), &value!(1)));
    assert!(holder["host"].is_string() && holder["program"].is_string(), "{holder}");
    let lease = NEVER.as_secs_f64();
    for object in [lock, holder] {
        number(&object["remaining"], lease / 2.0, lease);
        number(&object["age"], 0.0, lease);
    }
    assert_eq!(lock["waiting"], value!({ "processes": 0, "queue": [] }));
}

#[test]
fn a_dead_holder_does_not_look_alive() {
    let server = Server::start();
    let mut child = holder(&server.url(), "orders:42", 120_000);
    list(&server.url());
    child.kill();
    let table = succeeds(run(&["ls", "--url", &server.url()]));
    assert!(table.contains("no answer"), "{table}");
    let shown = succeeds(run(&["show", "orders:42", "--url", &server.url()]));
    assert!(shown.contains("  answer      none: the process may have died"), "{shown}");
    let busy = run(&["run", "-n", "--verbose", "--url", &server.url(), "orders:42", "--", "true"]);
    assert!(busy.err.contains(", no answer"), "{busy:?}");
}

#[test]
fn the_table_shows_a_holder_in_another_process() {
    let server = Server::start();
    let child = holder(&server.url(), "orders:42", 120_000);
    list(&server.url());
    let table = succeeds(run(&["ls", "--url", &server.url()]));
    let lines: Vec<_> = table.lines().map(|line| Vec::from_iter(line.split_whitespace())).collect();
    let [titles, cells] = &lines[..] else { panic!("two lines: {table}") };
    let expected =
        ["NAME", "KIND", "HOLDER", "HOST", "PID", "PROGRAM", "LABEL", "AGE", "LEFT", "WAIT"];
    assert_eq!(titles, &expected);
    let cell = |title| cells[titles.iter().position(|it| *it == title).expect("a column")];
    assert_eq!((cell("NAME"), cell("KIND")), ("orders:42", "plain"));
    assert_eq!((cell("PID"), cell("LABEL")), (&*child.pid().to_string(), "child"));
    assert!(cell("AGE").ends_with('s') && cell("LEFT").ends_with('s'), "{table}");
    assert_eq!((cell("HOLDER"), cell("WAIT")), ("program::child_entry", "0"));
}

#[test]
fn each_reader_has_a_row() {
    let stage = stage();
    let _guards = ["one", "two"].map(|_| stage.holding.rw_lock("a").read_owned().expect("shared"));
    let table = succeeds(run(&["ls", "--url", &stage.server.url()]));
    assert_eq!(table.lines().filter(|line| line.starts_with("a     read")).count(), 2, "{table}");
    let (_, list) = json(&["ls", "--url", &stage.server.url()]);
    assert_eq!(elements(&list[0]["holders"]).len(), 2);
}

#[test]
fn a_pattern_selects_locks() {
    let stage = stage();
    let _guards = ["orders:1", "orders:2", "bills:1"]
        .map(|name| stage.holding.lock(name).lock_owned().expect("free"));
    let names = |arguments: &[&str]| -> Vec<String> {
        let url = stage.server.url();
        let (code, list) = json(&[&["ls", "--url", &url], arguments].concat());
        assert_eq!(code, Some(0));
        elements(&list).iter().map(|lock| text(&lock["name"]).to_owned()).collect()
    };
    assert_eq!(names(&[]), ["bills:1", "orders:1", "orders:2"], "sorted by name");
    assert_eq!(names(&["orders:*"]), ["orders:1", "orders:2"]);
    assert_eq!(names(&["nothing"]), [""; 0]);
    let url = stage.server.url();
    assert_eq!(succeeds(run(&["--json", "ls", "nothing", "--url", &url])), "[]\n");
    assert_eq!(succeeds(run(&["ls", "nothing", "--url", &url])), "");
}

/// A Redisson thread, an ended client, a minimum hold, and a lock without an expiry.
#[test]
fn holders_without_a_record_are_listed_with_the_known_facts() {
    let stage = stage();
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    stage.hash("kept", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    stage.server.ask::<()>(&["HSET", "endless", &format!("{JAVA}:95"), "1"]);
    let (_, list) = json(&["ls", "--url", &stage.server.url()]);
    let [endless, java, kept] = elements(&list) else { panic!("three locks: {list}") };
    assert_eq!((&endless["remaining"], &endless["age"]), (&Value::Null, &Value::Null));
    let holder = &java["holders"][0];
    let facts = [&holder["owner"], &holder["thread"], &holder["count"], &holder["pid"]];
    assert_eq!(facts, [&value!(format!("{JAVA}:94")), &value!("94"), &value!(2), &Value::Null]);
    number(&java["remaining"], 20.0, 60.0);
    assert_eq!(kept["holders"], value!([]));
    number(&kept["remaining"], 20.0, 60.0);
    let table = succeeds(run(&["ls", "--url", &stage.server.url()]));
    let rows: Vec<_> = table.lines().map(|line| Vec::from_iter(line.split_whitespace())).collect();
    assert_eq!(rows[0], ["NAME", "KIND", "HOLDER", "AGE", "LEFT", "WAIT"], "columns with content");
    assert_eq!(rows[1], ["endless", "plain", &format!("{}:95", &JAVA[..8]), "-", "-", "0"]);
    assert_eq!((rows[3][0], &rows[3][2..4]), ("kept", &["min", "hold"][..]), "{table}");
    assert_eq!(kept["former_holder"]["client_id"], GONE);
    assert_eq!(java["former_holder"], Value::Null);
}

/// A job of cron ends long before its minimum. Its record outlasts its process.
#[test]
fn a_lock_in_its_minimum_names_the_process_that_had_it() {
    let stage = stage();
    let url = stage.server.url();
    let cron = run(&["run", "--url", &url, "--min-hold", "50s", "report", "--", "true"]);
    assert_eq!(cron.code, Some(0));
    let (_, list) = json(&["ls", "report", "--url", &url]);
    let former = &list[0]["former_holder"];
    assert_eq!((&former["label"], &former["program"]), (&value!("true"), &value!("leasehold")));
    let table = succeeds(run(&["ls", "report", "--url", &url]));
    assert!(table.contains("min hold") && table.contains("leasehold  true"), "{table}");
    let record = format!("leasehold_client:{{{}}}", former["client_id"].as_str().expect("an id"));
    assert!((30_000..=50_000).contains(&pttl(&stage.server, &record)), "as long as the minimum");
}

#[test]
fn waiting_callers_are_counted_and_queues_are_in_order() {
    let stage = stage();
    let _held = (
        stage.holding.lock("plain").lock().expect("free"),
        stage.holding.fair_lock("fair").lock().expect("free"),
    );
    let stop = CancelToken::new();
    let plain = stage.looking.lock("plain").with_cancel(&stop);
    let fair = stage.looking.fair_lock("fair").with_cancel(&stop);
    let waiters = [
        thread::spawn(move || plain.lock().map(drop)),
        thread::spawn(move || fair.lock().map(drop)),
    ];
    let url = stage.server.url();
    let list = eventually_listed(&["ls", "--url", &url], "both wait", |list| {
        elements(list).iter().all(|lock| lock["waiting"]["processes"] == 1)
    });
    assert_eq!((&list[0]["name"], &list[1]["waiting"]["queue"]), (&value!("fair"), &value!([])));
    let caller = &list[0]["waiting"]["queue"][0];
    assert_eq!(caller["client_id"], stage.looking.id().to_string());
    number(&caller["age"], 0.0, 120.0);
    stop.cancel();
    waiters.into_iter().for_each(|it| assert!(join(it).is_err_and(|error| error.is_cancelled())));
}

#[test]
fn strange_names_and_labels_are_escaped() {
    let server = Server::start();
    let names = ["a\u{1b}[2Jb", "new\nline", "\u{202e}left", "漢字", "a \"b\" \\ {c}"];
    let client = build(patient(server.url()).announce(true).label("漢字 \u{202e}label"));
    let _guards = names.map(|name| client.lock(name).lock_owned().expect("free"));
    let locks = list(&server.url());
    let mut found: Vec<_> = locks.iter().map(|lock| text(&lock["name"])).collect();
    let mut expected = names;
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "JSON has the names themselves");
    assert_eq!(locks[0]["holders"][0]["label"], "漢字 \u{202e}label");
    for arguments in
        [["ls", "--url", &server.url()].to_vec(), vec!["ls", "--json", "--url", &server.url()]]
    {
        let shown = succeeds(run(&arguments));
        let is_safe = |sign: char| sign == '\n' || !sign.is_control() && sign != '\u{202e}';
        assert!(shown.chars().all(is_safe), "{shown:?}");
    }
    let table = succeeds(run(&["ls", "--url", &server.url()]));
    assert_eq!(table.lines().count(), 1 + names.len(), "{table}");
}

#[test]
fn the_locks_of_a_cluster_are_listed() {
    let cluster = Cluster::start(3, 0);
    let client = Client::builder().cluster(cluster.urls()).build().expect("the nodes answer");
    let names: Vec<_> = cluster.nodes().iter().map(|node| cluster.key_on(node, "lock")).collect();
    let _guards: Vec<_> =
        names.iter().map(|name| client.lock(name).lock_owned().expect("free")).collect();
    let (_, list) = json(&["ls", "--cluster", "--url", &cluster.nodes()[0].url()]);
    for name in &names {
        let show = ["show", name, "--cluster", "--url", &cluster.nodes()[0].url()];
        assert_eq!(&text(&json(&show).1["name"]), name);
    }
    let mut names = names.clone();
    names.sort();
    assert_eq!(Vec::from_iter(elements(&list).iter().map(|it| text(&it["name"]))), names);
    drop(client);
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let stage = stage();
    let mut pipe = redis::pipe();
    for number in 0..2000 {
        pipe.hset(format!("lock:{number}"), format!("{JAVA}:{number}"), 1).ignore();
    }
    pipe.query::<()>(&mut stage.server.connection()).expect("an answer");
    for arguments in [&["ls"][..], &["ls", "--json"]] {
        let url = stage.server.url();
        let mut running = Running::start(&[arguments, &["--url", &url]].concat());
        running.close_output();
        succeeds(running.finish());
    }
    let stage: &Stage = &stage;
    assert_eq!(succeeds(run(&["ls", "--url", &stage.server.url()])).lines().count(), 2001);
}
