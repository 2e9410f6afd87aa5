//! Pictures of events in a file.

use std::fs;

use super::picture::Picture;
use super::program::{Running, run};
use crate::harness::holders::stage;

#[test]
fn the_lines_of_watch_are_drawn() {
    let stage = stage();
    let watch = Running::watch(&["a", "--url", &stage.server.url()]);
    let mut lines = Vec::new();
    for _ in 0..2 {
        let guard = stage.holding.fair_lock("a").lock().expect("free");
        lines.push(watch.until("acquired", &[]));
        guard.unlock().expect("held");
        lines.push(watch.until("released", &[]));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [events, path] = ["events.jsonl", "picture.svg"].map(|name| folder.path().join(name));
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&events, lines).expect("the events are written");

    let files = [&events, &path].map(|path| path.to_str().expect("UTF-8"));
    let outcome = run(&["timeline", "--input", files[0], "-o", files[1]]);
    assert_eq!((outcome.code, &*outcome.out), (Some(0), ""), "{outcome:?}");
    assert!(outcome.err.contains("2 holds"), "{outcome:?}");
    let picture = Picture::read(&path);
    picture.has("Timeline of the lock a");
    assert!(picture.rows >= 1, "{picture:#?}");
}

#[test]
fn an_existing_picture_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let [events, path] = ["events.jsonl", "picture.svg"].map(|name| folder.path().join(name));
    fs::write(&path, "before ".repeat(10_000)).expect("the file is written");
    let mark = r#"{"at":1.0,"name":"a","event":"mark","text":"killed <&>"}"#;
    fs::write(&events, format!("{mark}\n")).expect("the events are written");
    let files = [&events, &path].map(|path| path.to_str().expect("UTF-8"));
    let outcome = run(&["timeline", "--input", files[0], "-o", files[1]]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    Picture::read(&path).has("killed <&>");
}
