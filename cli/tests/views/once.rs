//! Work that is done once: while it runs, and its result.

use super::program::{Running, json, run};
use crate::harness::holders::{Stage, stage};
use crate::harness::{eventually, exists};
use leasehold::{Begin, Once, OnceRun};

#[track_caller]
fn runs(once: &Once) -> OnceRun {
    match once.begin().expect("an answer") {
        Begin::Run(run) => run,
        Begin::Done(done) => panic!("it is done: {done:?}"),
    }
}

/// Runs a verb for the server, and returns its output; checks its exit code.
#[track_caller]
fn shown(stage: &Stage, words: &[&str], code: i32) -> String {
    let outcome = run(&[words, &["--url", &stage.server.url()]].concat());
    assert_eq!((outcome.code, &*outcome.err), (Some(code), ""), "{outcome:?}");
    outcome.out
}

#[test]
fn a_run_is_a_hold_of_its_kind() {
    let stage = stage();
    let work = runs(&stage.holding.once("a"));
    let (code, locks) = json(&["ls", "--url", &stage.server.url()]);
    assert_eq!((code, locks.as_array().map(Vec::len)), (Some(0), Some(1)));
    assert_eq!((&locks[0]["name"], &locks[0]["kind"]), (&"a".into(), &"work done once".into()));
    assert_eq!(locks[0]["token"], work.token());
    assert_eq!(locks[0]["holders"][0]["client_id"], stage.holding.id().to_string());
    let table = shown(&stage, &["ls"], 0);
    let cells: Vec<_> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(cells[..2], ["a", "once"], "{table}");
    let facts = shown(&stage, &["show", "a"], 0);
    for line in ["kind          once\n", &format!("last token    {}\n", work.token())] {
        assert!(facts.contains(line), "{facts}");
    }
}

#[test]
fn a_result_is_no_lock_and_show_tells_of_it() {
    let stage = stage();
    let work = runs(&stage.holding.once("a"));
    let token = work.token();
    work.commit("twelve bytes").expect("held");
    let key = "leasehold_once:{a}";
    assert_eq!(shown(&stage, &["ls"], 0), "");
    assert_eq!(json(&["ls", "--url", &stage.server.url()]), (Some(0), serde_json::json!([])));
    let facts = shown(&stage, &["show", "a"], 0);
    for line in
        ["name          a\n", "result        12 bytes\n", &format!("token         {token}\n")]
    {
        assert!(facts.contains(line), "{facts}");
    }
    let (code, result) = json(&["show", "a", "--url", &stage.server.url()]);
    assert_eq!((code, &result["kind"], &result["bytes"]), (Some(0), &"result".into(), &12.into()));
    assert_eq!((&result["name"], &result["token"]), (&"a".into(), &token.into()));
    assert!(result["at"].is_number() && result["age"].is_number(), "{result}");
    // The key of the result is that of no lock.
    assert!(shown(&stage, &["show", key], 1).ends_with(" is free\n"));
    let refused = run(&["force", key, "--url", &stage.server.url()]);
    assert_eq!(refused.code, Some(77), "{refused:?}");
    assert!(exists(&stage.server, key));
}

#[test]
fn force_takes_the_run_and_leaves_the_result() {
    let stage = stage();
    let once = stage.holding.once("a");
    let work = runs(&once);
    let former = shown(&stage, &["force", "a"], 0);
    assert!(former.starts_with("a is taken away from its holders\n"), "{former}");
    assert!(former.contains("once"), "{former}");
    let error = work.commit("late").expect_err("it is lost");
    assert!(error.is_lost(), "{error}");
    runs(&once).commit("right").expect("held");
    let free = shown(&stage, &["force", "a"], 1);
    assert!(free.starts_with("a is free, and was done "), "{free}");
    let (_, forced) = json(&["force", "a", "--url", &stage.server.url()]);
    assert_eq!(forced, serde_json::json!({ "name": "a", "forced": false, "lock": null }));
    assert!(once.outcome().expect("an answer").is_some());
}

#[test]
fn a_commit_is_a_release() {
    let stage = stage();
    let watch = Running::watch(&["a", "--url", &stage.server.url()]);
    let work = runs(&stage.holding.once("a"));
    let acquired = watch.until("acquired", &["expired"]);
    assert_eq!(acquired["kind"], "work done once");
    let others = stage.looking.once("a");
    let waiter = std::thread::spawn(move || others.begin());
    eventually("it waits", || stage.looking.stats().waiting_now() == 1);
    work.commit("x").expect("held");
    let released = watch.until("released", &["expired", "acquired"]);
    assert_eq!(released["client_id"], stage.holding.id().to_string());
    let begun = waiter.join().expect("no panic").expect("an answer");
    assert!(matches!(begun, Begin::Done(_)), "{begun:?}");
}
