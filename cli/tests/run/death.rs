//! The death of `leasehold run --release-on-death`.

use crate::harness::{Server, eventually};
use crate::program::{Running, TRAPPING, UNTIL_INPUT, code_of, group_ends};

/// A lock that no lease frees during a test.
const LOCK: [&str; 3] = ["--lease", "1000s", "x"];

/// Starts a command with a lock. Blocks until others know its process group.
fn start(server: &Server, script: &str) -> Running {
    let running = Running::script(server, &[&["--release-on-death"], &LOCK[..]].concat(), script);
    let group = running.group_id().to_string();
    eventually("the record has the group", || {
        let records: Vec<String> = server.ask(&["KEYS", "leasehold_client:*"]);
        let known = |key: &String| server.ask::<Option<String>>(&["HGET", key, "group"]);
        records.iter().any(|key| known(key).as_ref() == Some(&group))
    });
    running
}

#[test]
fn a_killed_run_gives_its_lock_back_when_its_command_has_ended() {
    let server = Server::start();
    let mut running = start(&server, UNTIL_INPUT);
    running.process().kill();
    // The guard ends the command.
    group_ends(running.group_id());
    assert_eq!(code_of(&server, &["-n", "x", "--", "true"]), 0);
}

/// The guard kills such a command after 5 s.
#[test]
fn the_lock_stays_taken_while_a_process_of_the_command_is_left() {
    let server = Server::start();
    let mut running = start(&server, &format!("trap 'echo TERM' TERM;{TRAPPING}"));
    running.process().kill();
    assert_eq!(running.line(), "TERM", "the guard ends the command");
    assert_eq!(code_of(&server, &["-n", "x", "--", "true"]), 1);
    assert_eq!(code_of(&server, &["-w", "100s", "x", "--", "true"]), 0);
    assert!(!running.group_exists());
}

#[test]
fn without_the_flag_the_lock_of_a_killed_run_stays_taken() {
    let server = Server::start();
    let mut running = Running::script(&server, &LOCK, UNTIL_INPUT);
    running.process().kill();
    group_ends(running.group_id());
    assert_eq!(code_of(&server, &["-n", "x", "--", "true"]), 1);
}
