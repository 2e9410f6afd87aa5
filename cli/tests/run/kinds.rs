//! The kinds of locks: what excludes what, and the variables of the command.

use leasehold::Client;

use crate::harness::{Server, eventually, exists, pttl};
use crate::program::{Running, UNTIL_INPUT, code_of, run};

const KINDS: [&[&str]; 5] = [&[], &["-s"], &["--fair"], &["--queue"], &["--permits", "1"]];

fn refused(server: &Server, options: &[&str]) -> bool {
    match code_of(server, &[options, &["-n", "-E", "9", "x", "--", "true"]].concat()) {
        0 => false,
        9 => true,
        code => panic!("exit code {code}"),
    }
}

fn holding(server: &Server, options: &[&str]) -> Running {
    Running::script(server, &[options, &["x"]].concat(), UNTIL_INPUT)
}

#[test]
fn each_kind_excludes_itself_except_readers() {
    let server = Server::start();
    for options in KINDS {
        let holder = holding(&server, options);
        assert_eq!(refused(&server, options), options != ["-s"], "{options:?}");
        assert_eq!(holder.finish().code(), 5, "{options:?}");
        assert!(!refused(&server, options), "{options:?}");
        let _: u32 = server.ask(&["DEL", "x"]);
    }
}

#[test]
fn readers_and_plain_holders_exclude_each_other() {
    let server = Server::start();
    for (holder, other) in [(&["-s"][..], &[][..]), (&[], &["-s"])] {
        let holder = holding(&server, holder);
        assert!(refused(&server, other));
        let waiter =
            Running::start(run(&server, &[other, &["x", "--", "echo", "got it"]].concat()));
        assert_eq!(holder.finish().code(), 5);
        assert_eq!(waiter.line(), "got it");
        assert_eq!(waiter.finish().code(), 0);
    }
}

#[test]
fn plain_runs_and_locks_in_code_exclude_each_other() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let (lock, shared) = (client.lock("x"), client.rw_lock("x"));
    let holder = holding(&server, &[]);
    assert!(lock.try_lock().expect("the server answers").is_none());
    assert!(shared.try_read().expect("the server answers").is_none());
    holder.finish();
    let holder = holding(&server, &["-s"]);
    assert!(lock.try_lock().expect("the server answers").is_none());
    assert!(shared.try_write().expect("the server answers").is_none());
    assert!(shared.try_read().expect("the server answers").is_some());
    holder.finish();
    let guard = lock.lock().expect("the lock is free");
    assert!(refused(&server, &[]) && refused(&server, &["-s"]));
    guard.unlock().expect("the lock was held");
    let guard = shared.write().expect("the lock is free");
    assert!(refused(&server, &[]) && refused(&server, &["-s"]));
    guard.unlock().expect("the lock was held");
}

#[test]
fn a_semaphore_has_as_many_permits_as_its_first_user_said() {
    let server = Server::start();
    let holders = [holding(&server, &["--permits", "2"]), holding(&server, &["--permits", "2"])];
    assert!(refused(&server, &["--permits", "2"]));
    assert!(refused(&server, &["--permits", "3"]));
    let end = |words: &[&str]| {
        Running::start(run(&server, &[words, &["-n", "x", "--", "true"]].concat())).finish()
    };
    let other = end(&["--permits", "3"]);
    let note = "leasehold: x has 2 permits, and not 3; --resize changes that";
    assert!(other.errors.contains(note), "{other:?}");
    let resized = end(&["--permits", "3", "--resize"]);
    assert_eq!((resized.code(), &*resized.errors), (0, ""));
    assert!(!refused(&server, &["--permits", "3"]));
    let [first, second] = holders;
    first.finish();
    assert!(!refused(&server, &["--permits", "2"]));
    second.finish();
}

#[test]
fn the_command_knows_its_lock_and_the_token_of_a_queue_lock() {
    let server = Server::start();
    let script = "echo \"$LEASEHOLD_LOCK ${LEASEHOLD_TOKEN-none}\"";
    let mut tokens = Vec::new();
    for options in [KINDS.as_slice(), &[&["--queue"]]].concat() {
        let name = format!("name {}", options.concat());
        let words = [options, &[name.as_str(), "--", "sh", "-c", script]].concat();
        let mut command = run(&server, &words);
        // As inside of another run.
        command.env("LEASEHOLD_LOCK", "outer").env("LEASEHOLD_TOKEN", "7");
        let end = Running::start(command).finish();
        let (lock, token) = end.output[0].rsplit_once(' ').expect("two words");
        assert_eq!(lock, name);
        if options == ["--queue"] {
            tokens.push(token.parse::<u64>().expect("a number"))
        } else {
            assert_eq!(token, "none")
        }
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// Asks for the channels on which clients wait for grants.
const LISTENING: [&str; 3] = ["PUBSUB", "CHANNELS", "leasehold:wake:*"];

#[test]
fn a_higher_weight_overtakes_in_the_queue() {
    let server = Server::start();
    // A listener of this client would count as that of a program.
    let client = Client::builder().single(server.url()).announce(false).build();
    let lock = client.expect("the server runs").queue_lock("x");
    let guard = lock.lock().expect("the lock is free");
    let waiters = ["1", "10"].map(|weight| {
        let waiting = || lock.waiting().expect("the server answers").queue().len();
        // A waiter that does not listen yet gets no grant.
        let listening = || server.ask::<Vec<String>>(&LISTENING).len();
        let before = (waiting(), listening());
        let words = ["--queue", "--weight", weight, "x", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"];
        let running = Running::start(run(&server, &words));
        eventually("the program waits", || waiting() > before.0 && listening() > before.1);
        running
    });
    guard.unlock().expect("the lock was held");
    let [light, heavy] = waiters.map(|waiter| waiter.line().parse::<u64>().expect("a token"));
    assert!(heavy < light, "{heavy} {light}");
}

#[test]
fn the_lock_is_free_at_once_unless_a_minimum_keeps_it() {
    let server = Server::start();
    for options in [&[][..], &["--fair"], &["--queue"], &["--permits", "1"]] {
        assert_eq!(code_of(&server, &[options, &["x", "--", "true"]].concat()), 0);
        assert!(!refused(&server, options), "{options:?}");
        assert_eq!(
            code_of(&server, &[options, &["--min-hold", "1h", "x", "--", "true"]].concat()),
            0
        );
        assert!(refused(&server, options), "{options:?}");
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn the_lease_has_the_chosen_length() {
    let server = Server::start();
    for (options, longest) in [(&[][..], 30_000), (&["--lease", "5s"], 5000)] {
        let holder = holding(&server, options);
        let left = pttl(&server, "x");
        assert!((1..=longest).contains(&left), "{left}");
        assert!(left > 5000 || longest == 5000, "{left}");
        holder.finish();
        assert!(!exists(&server, "x"));
    }
}

#[test]
fn others_see_the_command_that_holds_the_lock() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let lock = client.lock("x");
    let mut holder = holding(&server, &[]);
    eventually("the record has the command", || {
        let info = lock.holder().expect("the server answers").expect("the lock is held");
        info.label() == Some("sh") && info.pid() == Some(holder.process().pid())
    });
    assert_eq!(server.client_records().len(), 1);
    holder.finish();
    assert!(server.client_records().is_empty());
}

#[test]
fn commands_under_a_semaphore_have_slots_of_their_own() {
    let server = Server::start();
    let words = ["--permits", "2", "x"];
    let script = format!("echo \"${{LEASEHOLD_SLOT-none}}\";{UNTIL_INPUT}");
    let mut slots = Vec::new();
    let running = [(); 2].map(|()| {
        let running =
            Running::start(run(&server, &[&words[..], &["--", "sh", "-c", &script]].concat()));
        slots.push(running.line());
        running
    });
    slots.sort();
    assert_eq!(slots, ["0", "1"]);
    for mut running in running {
        running.group();
        assert_eq!(running.finish().code(), 5);
    }
    let mut outer = run(&server, &["y", "--", "sh", "-c", "exit ${LEASEHOLD_SLOT-5}"]);
    outer.env("LEASEHOLD_SLOT", "7");
    assert_eq!(Running::start(outer).finish().code(), 5, "a slot of an outer run is no slot");
}
