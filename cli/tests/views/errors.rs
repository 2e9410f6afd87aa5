//! The failures of the verbs: one line, an exit code, and never a password.

use super::program::{Outcome, Running, run};
use crate::harness::holders::stage;
use crate::harness::permissions::{DOCUMENT, rules_of_a_plain_lock};
use crate::harness::replicated::MASTER;
use crate::harness::{Replicated, Server, eventually, exists};

/// The verbs, with an argument each.
const VERBS: [&[&str]; 5] = [&["ls"], &["show", "a"], &["watch", "a"], &["force", "a"], &["audit"]];

#[track_caller]
fn fails(outcome: Outcome, code: i32) -> String {
    assert_eq!((outcome.code, &*outcome.out), (Some(code), ""), "{outcome:?}");
    assert_eq!(outcome.err.lines().count(), 1, "{outcome:?}");
    assert!(outcome.err.starts_with("leasehold: ") && !outcome.err.contains("pa55"), "{outcome:?}");
    assert!(!outcome.err.contains("Builder::"), "{outcome:?}");
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
        fails(run(&[verb[0], "", "--url", &server.url()]), 64);
    }
    fails(run(&["run", "a{b", "--url", &server.url(), "--", "true"]), 64);
    fails(run(&["ls", "", "--url", &server.url()]), 64);
    fails(run(&["watch", "--url", &server.url()]), 64);
}

/// Returns the permissions of a query in the section about holder information.
fn permissions_of(query: &str) -> impl Iterator<Item = &'static str> {
    let (_, section) = DOCUMENT.split_once("## Holder information\n").expect("the section");
    let start = section.find(&format!("- `{query}`")).expect("the query");
    let item = section[start..].split("\n- ").next().unwrap_or_default();
    let item = item.split("\n\n").next().unwrap_or_default();
    let spans = item.split('`').skip(1).step_by(2).filter(|it| it.starts_with(['+', '~']));
    spans.flat_map(str::split_whitespace)
}

/// Returns the permissions of the row for named holders in the section about kinds.
fn permissions_of_a_named_holder() -> impl Iterator<Item = &'static str> {
    let (_, row) = DOCUMENT.split_once("\n| named holder | `").expect("the row");
    row.split('`').next().unwrap_or_default().split_whitespace()
}

#[test]
fn the_documented_permissions_suffice() {
    let verbs: [(&[&str], &[&str]); 4] = [
        (&["ls", "orders:*"], &["Client::locks"]),
        (&["show", "orders:1"], &["Client::lock_info"]),
        (&["force", "orders:1"], &["Client::lock_info", "Client::force_unlock"]),
        (&["audit"], &["Client::audit"]),
    ];
    let stage = stage();
    stage.server.ask::<()>(&["CONFIG", "SET", "appendonly", "yes"]);
    let holder = ["orders:2", "--holder", "job"];
    let lease = ["--lease", "1m"];
    let of_scripts: [(&str, &[&str]); 3] =
        [("acquire", &lease), ("extend", &lease), ("release", &[])];
    for (verb, more) in of_scripts {
        let mut rules = vec!["ACL", "SETUSER", "worker", "reset"];
        rules.extend(rules_of_a_plain_lock());
        rules.extend(permissions_of_a_named_holder());
        stage.server.ask::<()>(&rules);
        let url = stage.server.login_url("worker", "password");
        let outcome = run(&[&[verb, "--url", &url], &holder[..], more].concat());
        assert_eq!((outcome.code, &*outcome.err), (Some(0), ""), "{verb:?}: {outcome:?}");
    }
    let _guard = stage.holding.lock("orders:1").lock().expect("free");
    let url = stage.server.login_url("worker", "password");
    for (verb, queries) in verbs {
        let mut rules = vec!["ACL", "SETUSER", "worker", "reset"];
        rules.extend(rules_of_a_plain_lock());
        rules.extend(queries.iter().flat_map(|query| permissions_of(query)));
        stage.server.ask::<()>(&rules);
        let outcome = run(&[verb, &["--url", &url]].concat());
        assert_eq!((outcome.code, &*outcome.err), (Some(0), ""), "{verb:?}: {outcome:?}");
    }
}

#[test]
fn a_permission_that_is_lost_ends_a_watch() {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "worker", "on", ">pa55", "~*", "&*", "+@all"]);
    let url = server.login_url("worker", "pa55");
    server.ask::<()>(&["HSET", "a", "6ba7b810-9dad-41d1-80b4-00c04fd430c8:94", "1"]);
    let watch = Running::watch(&["a", "--url", &url]);
    watch.until("acquired", &[]);
    server.ask::<()>(&["ACL", "SETUSER", "worker", "-evalsha"]);
    let line = fails(watch.finish(), 77);
    assert!(line.contains("NOPERM"), "{line}");
}

#[test]
fn a_sentinel_in_the_place_of_a_server_names_the_option() {
    let servers = Replicated::with(0, 1, |config| config.password("pass-word"));
    let sentinel = &servers.sentinels()[0];
    let line = fails(run(&["ls", "--url", &sentinel.url()]), 64);
    assert!(line.contains("sentinel") && line.contains("--sentinel M"), "{line}");
    let options = ["--sentinel", MASTER, "--url", &sentinel.url()];
    let line = fails(run(&[&["ls"], &options[..]].concat()), 77);
    assert!(line.contains("NOAUTH") && line.contains("LEASEHOLD_LOGIN"), "{line}");
}

#[test]
fn a_replica_in_the_place_of_its_master_is_an_error_without_settings_of_the_library() {
    let servers = Replicated::start(1, 0);
    let replica = servers.replicas()[0];
    servers.master().ask::<()>(&["HSET", "a", "java:1", "1"]);
    eventually("the replica has the lock", || exists(replica, "a"));
    for verb in [&["force", "a"][..], &["run", "a", "--", "true"]] {
        let line = fails(run(&[&["--url", &replica.url()], verb].concat()), 69);
        assert!(line.contains("(connect to the master)"), "{line}");
        assert!(!line.contains("try again later"), "{line}");
    }
}
