//! The loss of the lock, the limit of a hold, and releases that fail.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::command::leasehold;
use crate::harness::{Proxy, Server, eventually, exists};
use crate::program::{Running, TRAPPING, UNTIL_INPUT, code_of, group_ends};

/// The time from TERM to KILL.
const GRACE: Duration = Duration::from_secs(5);

#[test]
fn a_deleted_lock_ends_the_command_within_a_third_of_the_lease() {
    let server = Server::start();
    for options in [&[][..], &["-s"], &["--fair"], &["--queue"], &["--permits", "1"]] {
        let words = [options, &["--lease", "3s", "x"]].concat();
        let running = Running::script(&server, &words, UNTIL_INPUT);
        let () = server.ask(&["FLUSHALL"]);
        let begin = Instant::now();
        let end = running.end();
        assert_eq!(end.code(), 75, "{options:?}: {end:?}");
        assert!(end.one_error().contains("was terminated; somebody deleted the key"), "{end:?}");
        // A second for the renewal, and the rest for a busy machine.
        assert!(begin.elapsed() < GRACE, "{:?}", begin.elapsed());
    }
}

#[test]
fn a_dead_server_ends_the_command_when_the_lease_ends() {
    let server = Server::start();
    let running = Running::script(&server, &["--lease", "1s", "x"], UNTIL_INPUT);
    server.kill();
    let end = running.end();
    assert_eq!(end.code(), 75, "{end:?}");
    assert!(end.one_error().contains("check the server and the network"), "{end:?}");
}

#[test]
fn a_command_that_ignores_term_is_killed_after_five_seconds_with_its_processes() {
    let server = Server::start();
    let script = format!("trap 'echo TERM' TERM;{TRAPPING}");
    let running = Running::script(&server, &["--lease", "300ms", "x"], &script);
    let () = server.ask(&["FLUSHALL"]);
    assert_eq!(running.line(), "TERM");
    let begin = Instant::now();
    eventually("the processes end", || !running.group_exists());
    assert!(begin.elapsed() > GRACE - Duration::from_millis(500), "{:?}", begin.elapsed());
    assert_eq!(running.end().code(), 75);
}

#[test]
fn processes_that_ignore_term_are_killed_when_the_command_ends_at_term() {
    let server = Server::start();
    let script = format!("trap 'echo TERM; exit 3' TERM;{TRAPPING}");
    let running = Running::script(&server, &["--lease", "300ms", "x"], &script);
    let () = server.ask(&["FLUSHALL"]);
    assert_eq!(running.line(), "TERM");
    eventually("the processes end", || !running.group_exists());
    assert_eq!(running.end().code(), 75);
}

#[test]
fn a_stopped_command_is_terminated() {
    let server = Server::start();
    let running = Running::script(&server, &["--lease", "300ms", "x"], UNTIL_INPUT);
    rustix::process::kill_process_group(running.group_id(), Signal::STOP).expect("our own group");
    let () = server.ask(&["FLUSHALL"]);
    let begin = Instant::now();
    assert_eq!(running.end().code(), 75);
    assert!(begin.elapsed() < GRACE, "it took TERM: {:?}", begin.elapsed());
}

#[test]
fn a_program_that_was_stopped_for_too_long_terminates_its_command() {
    let server = Server::start();
    let mut running = Running::script(&server, &["--lease", "300ms", "x"], UNTIL_INPUT);
    running.process().stop();
    eventually("the lease ends", || !exists(&server, "x"));
    assert!(running.group_exists());
    running.process().resume();
    let end = running.end();
    assert_eq!(end.code(), 75, "{end:?}");
    end.one_error();
}

#[test]
fn a_command_that_runs_for_too_long_is_terminated_and_the_lock_is_free() {
    let server = Server::start();
    let script = format!("trap 'echo TERM; exit 0' TERM;{TRAPPING}");
    let mut running = Running::script(&server, &["--max-hold", "200ms", "x"], &script);
    assert_eq!(running.line(), "TERM");
    running.end_input();
    let end = running.end();
    assert_eq!(end.code(), 75);
    assert!(end.one_error().contains("longer than --max-hold 200ms"), "{end:?}");
    assert!(!exists(&server, "x"));
    assert_eq!(code_of(&server, &["--max-hold", "1h", "x", "--", "true"]), 0);
}

#[test]
fn the_lock_is_held_until_the_last_process_has_ended() {
    let server = Server::start();
    let script = format!("trap 'echo TERM; exit 0' TERM;{TRAPPING}");
    let running = Running::script(&server, &["--max-hold", "200ms", "--lease", "1s", "x"], &script);
    assert_eq!(running.line(), "TERM");
    let mut was_free = false;
    eventually("the processes end", || {
        was_free |= !exists(&server, "x") && running.group_exists();
        !running.group_exists()
    });
    assert!(!was_free);
    assert_eq!(running.end().code(), 75);
}

#[test]
fn a_loss_that_the_release_finds_is_a_failure() {
    let server = Server::start();
    let running = Running::script(&server, &["x"], UNTIL_INPUT);
    let () = server.ask(&["FLUSHALL"]);
    let end = running.finish();
    assert_eq!(end.code(), 75, "{end:?}");
    assert!(end.one_error().contains("before the command ended"), "{end:?}");
}

#[test]
fn a_release_without_an_answer_keeps_the_code_of_the_command_and_is_reported() {
    let server = Server::start();
    let running = Running::script(&server, &["x"], UNTIL_INPUT);
    server.kill();
    let end = running.finish();
    assert_eq!(end.code(), 5, "{end:?}");
    assert!(end.one_error().contains("the release is not confirmed"), "{end:?}");
}

/// As in a fail-over during the end of the command: the client repeats the release.
#[test]
fn a_release_that_a_later_attempt_confirms_is_not_reported() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", proxy.url());
    command.args(["run", "x", "--", "sh", "-c", UNTIL_INPUT]);
    let mut running = Running::start(command);
    running.group();
    let refused = proxy.stats().refused;
    proxy.refuse();
    proxy.kill_all();
    running.end_input();
    group_ends(running.group_id());
    proxy.wait_until("the release fails", |stats| stats.refused > refused + 1);
    proxy.heal();
    let end = running.end();
    assert_eq!((end.code(), &*end.errors), (5, ""), "{end:?}");
    assert!(!exists(&server, "x"));
}
