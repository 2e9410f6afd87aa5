//! Pictures of locks that the program observes on a real server.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Begin, Client};
use rustix::process::Signal;
use tempfile::TempDir;

use super::picture::Picture;
use super::program::{Running, holder, run};
use crate::harness::holders::stage;
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::{Server, eventually, exists};

/// The length of each hold of the alternating processes.
const TURN: Duration = Duration::from_millis(50);

#[test]
fn child_entry() {
    if let Some(role) = process::role() {
        take_turns(&role);
    }
}

/// Takes a fair lock again and again, until the parent ends the process.
fn take_turns(role: &Role) {
    let client = Client::builder().single(role.arg(0)).label(role.arg(1)).build();
    let lock = client.expect("the server answers").fair_lock("a");
    loop {
        let guard = lock.lock().expect("granted");
        thread::sleep(TURN);
        guard.unlock().expect("held");
        role.say("turn");
    }
}

fn taker_of_turns(server: &Server, label: &str) -> ChildProcess {
    let arguments = [&*server.url(), label];
    ChildProcess::start("observed::child_entry", "turns", &arguments)
}

/// A folder, and the path of a picture in it.
fn output() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("picture.svg");
    (folder, path)
}

/// Starts an observation of the lock `a`, and blocks until the program has looked at it.
fn observe(server: &Server, path: &Path) -> Running {
    let (url, path) = (server.url(), path.to_str().expect("UTF-8"));
    let arguments = ["timeline", "a", "--for", "1h", "--every", "10ms", "--url", &url, "-o", path];
    let observation = Running::start(&arguments);
    two_more_looks(server);
    observation
}

/// Blocks until the program has looked twice.
fn two_more_looks(server: &Server) {
    let before = server.calls("hrandfield");
    // The third look begins after the events of the second.
    eventually("two more looks", || server.calls("hrandfield") > before + 2);
}

#[test]
fn two_processes_that_alternate_have_holds_and_waits() {
    let (server, (_folder, path)) = (Server::start(), output());
    let mut children = ["first", "second"].map(|label| taker_of_turns(&server, label));
    children.iter_mut().for_each(|child| child.expect_line("turn"));
    eventually("two records", || server.client_records().len() == 2);

    let (begun, file) = (Instant::now(), path.to_str().expect("UTF-8"));
    let every = ["--every", "5ms", "--url", &server.url()];
    let outcome = run(&[&["timeline", "a", "--for", "2s", "-o", file][..], &every].concat());
    assert_eq!((outcome.code, &*outcome.out), (Some(0), ""), "{outcome:?}");
    assert!(begun.elapsed() >= Duration::from_secs(2), "the observation ended early");
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
    assert!(outcome.err.contains("2 processes"), "{outcome:?}");

    let picture = Picture::read(&path);
    for (label, child) in ["first", "second"].iter().zip(&children) {
        picture.has(label);
        picture.has(&format!("pid {}", child.pid()));
    }
    assert!(picture.rows >= 2, "{picture:#?}");
    assert!(picture.count("Held a") >= 2, "{picture:#?}");
    assert!(picture.count("Waited") >= 2, "{picture:#?}");
}

#[test]
fn the_hold_of_a_killed_process_is_lost() {
    let (server, (_folder, path)) = (Server::start(), output());
    let mut child = holder(&server.url(), "a", 30_000);
    eventually("a record", || server.client_records().len() == 1);
    let observation = observe(&server, &path);
    child.kill();
    // The test does not wait for the rest of the lease.
    assert!(server.ask::<bool>(&["PEXPIRE", "a", "2000"]));
    two_more_looks(&server);
    eventually("the end of the lease", || !exists(&server, "a"));
    two_more_looks(&server);

    observation.signal(Signal::INT);
    let outcome = observation.finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.err.contains("1 lost hold"), "{outcome:?}");
    let picture = Picture::read(&path);
    picture.has(&format!("pid {}", child.pid()));
    picture.has("Held a before the start");
    picture.has("; lost at");
}

#[test]
fn the_commit_of_work_ends_a_hold_that_is_not_lost() {
    let (server, (_folder, path)) = (Server::start(), output());
    let client = Client::open(server.url()).expect("the server answers");
    let Begin::Run(work) = client.once("a").begin().expect("an answer") else {
        panic!("nothing is committed")
    };
    let observation = observe(&server, &path);
    work.commit("x").expect("held");
    two_more_looks(&server);
    observation.signal(Signal::INT);
    let outcome = observation.finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let is_whole = outcome.err.contains("1 hold") && !outcome.err.contains("lost");
    assert!(is_whole, "{outcome:?}");
    Picture::read(&path).has("Held a before the start");
}

#[test]
fn waiting_processes_have_a_row() {
    let (server, (_folder, path)) = (Server::start(), output());
    let mut held = holder(&server.url(), "a", 30_000);
    let waiting = Client::open(server.url()).expect("the server answers");
    let waiter = thread::spawn(move || waiting.lock("a").lock().map(drop));
    eventually("a waiting process", || !server.channels().iter().all(|it| !it.ends_with("{a}")));
    let observation = observe(&server, &path);
    observation.signal(Signal::TERM);
    assert_eq!(observation.finish().code, Some(0));
    let picture = Picture::read(&path);
    picture.has("waiting processes");
    picture.has("1 process waited");
    held.send_line("end");
    assert!(held.wait().success());
    crate::harness::wait::join(waiter).expect("granted");
}

#[test]
fn a_lock_that_nothing_holds_gives_a_picture_that_says_so() {
    let (server, (_folder, path)) = (Server::start(), output());
    let (url, file) = (server.url(), path.to_str().expect("UTF-8"));
    let outcome = run(&["timeline", "quiet", "--for", "50ms", "--url", &url, "-o", file]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let picture = Picture::read(&path);
    picture.has("Timeline of the lock quiet");
    picture.has("Nothing held these locks");
    assert_eq!(picture.rows, 0);
}

#[test]
fn a_pattern_is_drawn_with_the_locks_that_match() {
    let stage = stage();
    let _held = stage.hold(&["a:1", "a:2", "b"]);
    let (_folder, path) = output();
    let output = path.to_str().expect("UTF-8");
    let url = stage.server.url();
    let outcome = run(&["timeline", "a:*", "--for", "200ms", "-o", output, "--url", &url]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let svg = std::fs::read_to_string(&path).expect("a picture");
    for (name, is_drawn) in [("a:1", true), ("a:2", true), (">b<", false)] {
        assert_eq!(svg.contains(name), is_drawn, "{name}");
    }
}
