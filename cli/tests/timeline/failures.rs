//! Failures: one line that says what to do, an exit code, and no file.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::PROGRAM;

use super::program::{Outcome, run};

/// The address of no server.
const NOWHERE: &str = "redis://user:pa55@127.0.0.1:1/";

#[track_caller]
fn fails(outcome: &Outcome, code: i32, parts: &[&str]) {
    assert_eq!((outcome.code, &*outcome.out), (Some(code), ""), "{outcome:?}");
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
    for part in parts {
        assert!(outcome.err.contains(part), "no {part} in {outcome:?}");
    }
    assert!(!outcome.err.contains("pa55"), "{outcome:?}");
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A server that does not answer would be the failure of an observation.
#[test]
fn a_file_that_cannot_be_written_fails_before_the_observation() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing").join("a.svg");
    for path in [utf8(&missing), utf8(folder.path())] {
        let outcome = run(&["timeline", "a", "--url", NOWHERE, "-o", path]);
        fails(&outcome, 73, &[path, "cannot be written", "name a file in a folder that exists"]);
    }
}

#[test]
fn a_failed_observation_leaves_no_file_and_keeps_an_existing_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.svg");
    let observe = || run(&["timeline", "a", "--url", NOWHERE, "-o", utf8(&path)]);
    fails(&observe(), 69, &["127.0.0.1:1"]);
    assert!(!path.exists());
    fs::write(&path, "before").expect("the file is written");
    fails(&observe(), 69, &["127.0.0.1:1"]);
    assert_eq!(fs::read_to_string(&path).expect("a file"), "before");
}

/// No file may grow beyond 512 bytes, as on a full disk.
#[test]
fn a_picture_that_cannot_be_written_keeps_the_old_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let [events, path] = ["events.jsonl", "a.svg"].map(|name| folder.path().join(name));
    fs::write(&events, "{\"at\":1.0,\"name\":\"a\",\"event\":\"acquired\"}\n").expect("our folder");
    fs::write(&path, "before").expect("our folder");
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" timeline --input \"$1\" -o \"$2\"";
    let limited = Command::new("sh").args(["-c", script, PROGRAM]).args([&events, &path]).output();
    let limited = limited.expect("sh runs");
    assert_eq!(limited.status.code(), Some(73), "{limited:?}");
    assert!(String::from_utf8_lossy(&limited.stderr).contains("File too large"), "{limited:?}");
    assert_eq!(fs::read_to_string(&path).expect("a file"), "before");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "no neighbour is left");
}

#[test]
fn a_wrong_line_is_named_by_its_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let [events, path] = ["events.jsonl", "a.svg"].map(|name| folder.path().join(name));
    let good = r#"{"at":1.0,"name":"a","event":"acquired"}"#;
    fs::write(&events, format!("{good}\n\nno event\n")).expect("the events are written");
    let outcome = run(&["timeline", "--input", utf8(&events), "-o", utf8(&path)]);
    fails(&outcome, 64, &[utf8(&events), "line 3", "each line must be an event"]);
    assert!(!path.exists());
}

#[test]
fn an_input_that_does_not_exist_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let [events, path] = ["events.jsonl", "a.svg"].map(|name| folder.path().join(name));
    let outcome = run(&["timeline", "--input", utf8(&events), "-o", utf8(&path)]);
    fails(&outcome, 64, &[utf8(&events), "cannot be read"]);
}

#[test]
fn the_command_line_is_checked() {
    for arguments in [
        &["timeline", "-o", "a.svg"][..],
        &["timeline", "a"],
        &["timeline", "a", "--input", "events.jsonl", "-o", "a.svg"],
        &["timeline", "a", "--for", "soon", "-o", "a.svg"],
    ] {
        fails(&run(arguments), 64, &[]);
    }
}
