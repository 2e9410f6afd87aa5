//! The verbs for scripts: `acquire`, `extend`, `release`.

use crate::command::leasehold;
use crate::harness::{Server, eventually, exists, pttl};
use crate::program::{Finished, Running, code_of};

/// Returns the end of a verb with these words.
fn end(server: &Server, words: &[&str]) -> Finished {
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", server.url()).args(words);
    Running::start(command).finish()
}

fn code(server: &Server, words: &str) -> i32 {
    end(server, &words.split(' ').collect::<Vec<_>>()).code()
}

#[test]
fn a_lock_is_taken_extended_and_released_by_three_commands() {
    let server = Server::start();
    assert_eq!(code(&server, "acquire x --holder deploy-7 --lease 1m"), 0);
    assert!((50_000..=60_000).contains(&pttl(&server, "x")));
    assert_eq!(code_of(&server, &["-n", "x", "--", "true"]), 1, "another caller is refused");
    assert_eq!(code(&server, "acquire x --holder deploy-8 --lease 1m -n"), 1);
    assert_eq!(code(&server, "acquire x --holder deploy-8 --lease 1m -w 10ms"), 1);
    assert_eq!(code(&server, "extend x --holder deploy-7 --lease 1h"), 0);
    assert!(pttl(&server, "x") > 3_500_000);
    assert_eq!(code(&server, "extend x --holder deploy-8 --lease 1h"), 1);
    let stranger = end(&server, &["release", "x", "--holder", "deploy-8"]);
    assert_eq!(stranger.code(), 1);
    assert!(stranger.errors.contains("x is not held by deploy-8"), "{stranger:?}");
    assert_eq!(code(&server, "release x --holder deploy-7"), 0);
    assert!(!exists(&server, "x"));
    assert_eq!(code(&server, "release x --holder deploy-7"), 1);
    assert_eq!(code(&server, "extend x --holder deploy-7 --lease 1h"), 1);
    assert!(!exists(&server, "x"), "an extension takes no free lock");
}

/// Two commands, a share taken and given back, left a share if the program was killed between.
#[test]
fn an_extension_takes_no_share() {
    let server = Server::start();
    assert_eq!(code(&server, "acquire x --holder job --lease 1m"), 0);
    server.ask::<()>(&["ACL", "SETUSER", "default", "-hincrby", "-hset"]);
    assert_eq!(code(&server, "extend x --holder job --lease 1h"), 0);
    assert!(pttl(&server, "x") > 3_500_000);
}

#[test]
fn a_holder_that_takes_its_lock_twice_releases_it_twice() {
    let server = Server::start();
    for _ in 0..2 {
        assert_eq!(code(&server, "acquire x --holder job --lease 1m"), 0);
    }
    assert_eq!(code(&server, "release x --holder job"), 0);
    assert!(exists(&server, "x"));
    assert_eq!(code(&server, "release x --holder job"), 0);
    assert!(!exists(&server, "x"));
}

#[test]
fn a_lease_ends_without_a_release_and_a_waiter_gets_the_lock() {
    let server = Server::start();
    assert_eq!(code(&server, "acquire x --holder dead --lease 300ms"), 0);
    assert_eq!(code(&server, "acquire x --holder next --lease 1h -w 1m"), 0);
    assert!(pttl(&server, "x") > 3_500_000);
    assert_eq!(code(&server, "acquire x --holder next --lease 1ms"), 64, "below 10 ms");
    assert_eq!(code(&server, "release x --holder next"), 0);
    eventually("the lock is free", || !exists(&server, "x"));
}

#[test]
fn a_name_may_begin_with_a_hyphen() {
    let server = Server::start();
    assert_eq!(code(&server, "run --min-hold 1h --name=-x -- true"), 0);
    assert!(exists(&server, "-x"));
    assert_eq!(code(&server, "show -- -x"), 0);
    assert_eq!(code(&server, "force -- -x"), 0);
    assert_eq!(code(&server, "acquire --holder job --lease 1m -- -x"), 0);
    assert_eq!(code(&server, "release --holder job -- -x"), 0);
    assert_eq!(code(&server, "run --name=x y -- true"), 64, "two names");
    assert_eq!(code(&server, "run -- true"), 64, "no name");
}
