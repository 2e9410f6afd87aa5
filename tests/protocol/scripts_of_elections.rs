//! The scripts of elections: every documented reply, the messages to observers, late copies of each
//! command, damaged keys, and a full server.

use redis::{RedisResult, Value};

use crate::harness::bare::*;
use crate::harness::pttl;

const QUEUE: &str = "the-queue:{the-lock}";
const CLIENTS: &str = "the-clients:{the-lock}";
const COUNTER: &str = "redisson_lock_token:{the-lock}";
const RECORD: &str = "the-record:{the-lock}";
const OBSERVERS: &str = "the-observers:{the-lock}";
const LOCK_KEYS: [&str; 4] = [LOCK, QUEUE, CLIENTS, COUNTER];
const RELEASE_KEYS: [&str; 5] = [LOCK, QUEUE, CLIENTS, COUNTER, RECORD];

/// The parts of a reply of `leader_look`.
type Look = (String, String, String, i64);

fn take(bare: &mut Bare, owner: &str) -> i64 {
    let reply: Vec<i64> = bare.reply("queue_acquire", &LOCK_KEYS, &["60000", owner]);
    assert_eq!(reply[0], -2, "{owner} does not get the lock");
    reply[1]
}

/// Queues a candidate of a client that listens, or that nobody can tell whether it listens.
fn wait(bare: &mut Bare, owner: &str) {
    let args = ["60000", owner, "30000", "cluster", "0", ""];
    let reply: Vec<i64> = bare.reply("queue_acquire", &LOCK_KEYS, &args);
    assert!(reply[2] > 0, "{owner} does not wait");
}

fn announce(bare: &mut Bare, owner: &str, token: &str, value: &str) -> i64 {
    let args = [owner, token, value, "90000", OBSERVERS];
    bare.call("leader_announce", &[LOCK, RECORD], &args)
}

fn release(bare: &mut Bare, owner: &str) -> i64 {
    bare.call("leader_release", &RELEASE_KEYS, &[owner, OBSERVERS])
}

fn look(bare: &mut Bare) -> Option<Look> {
    let parts: Vec<Value> = bare.reply("leader_look", &[LOCK, RECORD], &[]);
    if parts.is_empty() {
        return None;
    }
    Some(redis::from_redis_value(Value::Array(parts)).expect("four parts"))
}

/// Asserts that the leader has this owner, token and value.
#[track_caller]
fn assert_leader(bare: &mut Bare, owner: &str, token: &str, value: &str) {
    let (found, of_term, with, left) = look(bare).expect("a leader");
    assert_eq!((&*found, &*of_term, &*with), (owner, token, value));
    assert!((30_000..=60_000).contains(&left), "{left} ms");
}

#[test]
fn leader_announce_replies_as_documented() {
    let replies = ["1 the record names the owner", "0 the owner does not hold the lock"];
    documents("leader_announce", &replies);
    let mut bare = Bare::start();
    let mut observer = Listener::on(&bare.server, OBSERVERS);

    // A free lock, and the lock of another owner.
    assert_eq!(silently(&mut bare, |bare| announce(bare, MINE, "7", "x")), 0);
    take(&mut bare, OTHER);
    assert_eq!(silently(&mut bare, |bare| announce(bare, MINE, "7", "x")), 0);
    assert!(!bare.server.keys().contains(&RECORD.to_owned()));

    // The owner: a record that expires, and a message.
    assert_eq!(announce(&mut bare, OTHER, "8", "host:1"), 1);
    assert_eq!(observer.next_message(), (OBSERVERS.to_owned(), "8".to_owned()));
    assert_leader(&mut bare, OTHER, "8", "host:1");
    assert_ttl(&bare.server, RECORD, 45_000..=90_000);

    // The same record again: a longer life, and no message.
    bare.ask::<()>(&["PEXPIRE", RECORD, "1000"]);
    assert_eq!(silently(&mut bare, |bare| announce(bare, OTHER, "8", "host:1")), 1);
    assert_ttl(&bare.server, RECORD, 45_000..=90_000);

    // Another value.
    assert_eq!(announce(&mut bare, OTHER, "8", ""), 1);
    assert_eq!(observer.next_message().1, "8");
    assert_leader(&mut bare, OTHER, "8", "");
}

#[test]
fn leader_look_replies_as_documented() {
    let leader = "else 1 the owner, 2 the token and 3 the value, both as text, 4 the lock's \
                  remaining lease in ms, -1 without an expiry";
    documents("leader_look", &["empty without a leader", leader]);
    let mut bare = Bare::start();
    assert_eq!(look(&mut bare), None);
    take(&mut bare, MINE);
    assert_eq!(look(&mut bare), None, "a holder without a record");
    announce(&mut bare, MINE, "7", "x");
    assert_leader(&mut bare, MINE, "7", "x");
    bare.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(look(&mut bare).expect("a leader").3, -1);

    // The record of a former holder.
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(look(&mut bare), None, "the lock is free");
    take(&mut bare, OTHER);
    assert_eq!(look(&mut bare), None, "the lock is that of another owner");

    // A record of which another program has deleted parts.
    announce(&mut bare, OTHER, "8", "y");
    bare.ask::<()>(&["HDEL", RECORD, "token", "value"]);
    assert_leader(&mut bare, OTHER, "0", "");
    bare.ask::<()>(&["HDEL", RECORD, "owner"]);
    assert_eq!(look(&mut bare), None);
}

#[test]
fn leader_release_replies_as_documented() {
    let replies = ["-1 not held by this owner", "1 granted to the next candidate", "0 free"];
    documents("leader_release", &replies);
    let mut bare = Bare::start();
    let mut observer = Listener::on(&bare.server, OBSERVERS);

    // Free, then held by another owner.
    assert_eq!(silently(&mut bare, |bare| release(bare, MINE)), -1);
    take(&mut bare, OTHER);
    announce(&mut bare, OTHER, "8", "x");
    assert_eq!(observer.next_message().1, "8");
    assert_eq!(silently(&mut bare, |bare| release(bare, MINE)), -1);
    assert_leader(&mut bare, OTHER, "8", "x");

    // Without a candidate: nothing but the counter is left.
    assert_eq!(release(&mut bare, OTHER), 0);
    assert_eq!(observer.next_message(), (OBSERVERS.to_owned(), "0".to_owned()));
    assert_eq!(bare.server.keys(), [COUNTER]);

    // Before an announcement there is nothing to tell.
    take(&mut bare, MINE);
    assert_eq!(silently(&mut bare, |bare| release(bare, MINE)), 0);

    // With a candidate, which is the holder and no leader yet.
    take(&mut bare, MINE);
    announce(&mut bare, MINE, "9", "x");
    wait(&mut bare, OTHER);
    assert_eq!(release(&mut bare, MINE), 1);
    bare.assert_held_by(OTHER);
    assert_eq!(look(&mut bare), None);
    assert_eq!(release(&mut bare, OTHER), 0);
    assert_eq!(bare.server.keys(), [COUNTER]);
}

#[test]
fn a_candidate_that_leaves_ends_its_wait_and_no_record() {
    let mut bare = Bare::start();
    take(&mut bare, MINE);
    announce(&mut bare, MINE, "7", "x");
    wait(&mut bare, OTHER);
    assert_eq!(silently(&mut bare, |bare| release(bare, OTHER)), -1);
    assert_eq!(bare.ask::<u32>(&["EXISTS", QUEUE, CLIENTS]), 0);
    assert_leader(&mut bare, MINE, "7", "x");
}

/// A late copy of each command runs in the next term.
#[test]
fn late_copies_change_nothing_in_the_next_term() {
    let mut bare = Bare::start();
    take(&mut bare, MINE);
    announce(&mut bare, MINE, "7", "old");
    assert_eq!(release(&mut bare, MINE), 0);
    take(&mut bare, OTHER);
    assert_eq!(silently(&mut bare, |bare| announce(bare, MINE, "7", "old")), 0);
    assert_eq!(look(&mut bare), None, "never the former leader");
    announce(&mut bare, OTHER, "8", "new");
    assert_eq!(silently(&mut bare, |bare| announce(bare, MINE, "7", "old")), 0);
    assert_eq!(silently(&mut bare, |bare| release(bare, MINE)), -1);
    assert_leader(&mut bare, OTHER, "8", "new");
    bare.assert_held_by(OTHER);
}

#[test]
fn a_key_of_another_type_is_refused_and_keeps_no_lock() {
    let mut bare = Bare::start();
    take(&mut bare, MINE);
    bare.ask::<()>(&["SET", RECORD, "a string"]);
    let refused =
        |reply: RedisResult<Value>| reply.is_err_and(|error| is_refused_as("WRONGTYPE", &error));
    let args = [MINE, "7", "x", "90000", OBSERVERS];
    assert!(refused(bare.try_call("leader_announce", &[LOCK, RECORD], &args)));
    assert!(refused(bare.try_call("leader_look", &[LOCK, RECORD], &[])));
    assert_eq!(release(&mut bare, MINE), 0);
    assert_eq!(bare.ask::<String>(&["GET", RECORD]), "a string");
    bare.ask::<()>(&["SET", LOCK, "a string"]);
    assert_eq!(bare.ask::<u32>(&["DEL", RECORD]), 1);
    assert!(refused(bare.try_call("leader_announce", &[LOCK, RECORD], &args)));
    assert!(refused(bare.try_call("leader_release", &RELEASE_KEYS, &[MINE, OBSERVERS])));
    assert_eq!(look(&mut bare), None, "without a record nobody asks for the lock");
}

#[test]
fn a_full_server_keeps_a_record_and_hands_over() {
    let mut bare = Bare::start();
    take(&mut bare, MINE);
    announce(&mut bare, MINE, "7", "x");
    wait(&mut bare, OTHER);
    bare.server.refuse_memory();
    assert_eq!(announce(&mut bare, MINE, "7", "x"), 1, "the record lives on");
    let args = [MINE, "7", "y", "90000", OBSERVERS];
    let refused = bare.try_call::<Value>("leader_announce", &[LOCK, RECORD], &args);
    assert!(refused.is_err_and(|error| is_refused_as("OOM", &error)));
    assert_leader(&mut bare, MINE, "7", "x");
    assert_eq!(release(&mut bare, MINE), 1);
    bare.assert_held_by(OTHER);
    assert_eq!(pttl(&bare.server, RECORD), -2);
}
