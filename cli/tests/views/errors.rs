//! The failures of the verbs: one line, an exit code, and never a password.

use super::program::{Outcome, run};
use crate::harness::Server;

/// The verbs, with an argument each.
const VERBS: [&[&str]; 5] = [&["ls"], &["show", "a"], &["watch", "a"], &["force", "a"], &["audit"]];

#[track_caller]
fn fails(outcome: Outcome, code: i32) -> String {
    assert_eq!((outcome.code, &*outcome.out), (Some(code), ""), "{outcome:?}");
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
    assert!(outcome.err.starts_with("leasehold: ") && !outcome.err.contains("pa55"), "{outcome:?}");
    outcome.err
}

#[test]
fn a_server_that_does_not_run_is_an_error() {
    for verb in VERBS {
        let line = fails(run(&[verb, &["--url", "redis://user:pa55@127.0.0.1:1/"]].concat()), 69);
        assert!(line.contains("127.0.0.1:1"), "{line}");
    }
}

#[test]
fn a_wrong_password_is_an_error() {
    let server = Server::with(|config| config.password("secret"));
    for verb in VERBS {
        fails(run(&[verb, &["--url", &server.login_url("default", "pa55")]].concat()), 77);
    }
}

#[test]
fn a_missing_permission_is_named() {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "worker", "on", ">pa55", "~*", "&*", "-@all", "+select"]);
    for verb in VERBS.into_iter().take(4) {
        let line =
            fails(run(&[verb, &["--url", &server.login_url("worker", "pa55")]].concat()), 77);
        assert!(line.contains("NOPERM") && line.contains("docs/permissions.md"), "{line}");
        assert!(line.contains("no permissions to run the '"), "the command is named: {line}");
    }
}

#[test]
fn a_name_that_is_no_name_is_wrong_usage() {
    let server = Server::start();
    for verb in &VERBS[1..4] {
        for name in ["a{b", ""] {
            fails(run(&[verb[0], name, "--url", &server.url()]), 64);
        }
    }
    fails(run(&["ls", "", "--url", &server.url()]), 64);
    fails(run(&["watch", "--url", &server.url()]), 64);
}
