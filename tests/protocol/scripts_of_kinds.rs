//! Every documented reply of the scripts of all kinds but the plain lock, against a real server.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::bare::*;
use crate::harness::details::wake_channel;
use crate::harness::{Server, exists, pttl};
use crate::sequences::try_sequences;

const WRITER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1:write";
const OTHER_WRITER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:2:write";
const RW_CHANNEL: &str = "redisson_rwlock:{the-lock}";
const WAITERS: &str = "leasehold_queue:{the-lock}";
const COUNTER: &str = "redisson_lock_token:{the-lock}";
const RESULT: &str = "leasehold_once:{the-lock}";
const QUEUE: [&str; 3] =
    [LOCK, "redisson_lock_queue:{the-lock}", "redisson_lock_timeout:{the-lock}"];
const NO_EXPIRY: &str = "-1 held without expiry";
const LEASE: &str = "else the holder's remaining lease in ms";

fn fields(server: &Server) -> BTreeMap<String, String> {
    server.ask(&["HGETALL", LOCK])
}

fn map<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields.into_iter().map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

fn timeout(owner: &str) -> String {
    format!("{{the-lock}}:{owner}:rwlock_timeout:1")
}

/// Asserts that a refusal publishes the channel, and that nothing else is published.
#[track_caller]
fn publishes_only_on_a_refusal(bare: &mut Bare, script: &str, keys: &[&str], args: &[&str]) {
    let waiting = [args, &["wake", "the channel"]].concat();
    let mut listener = Listener::on(&bare.server, "wake");
    bare.server.reset_stats();
    assert!(bare.call(script, keys, &waiting) > -2, "refused");
    assert_eq!(listener.next_message(), ("wake".to_owned(), "the channel".to_owned()));
    bare.call(script, keys, args);
    assert_eq!(bare.server.calls("publish"), 1, "{script}");
}

// ---------------------------------------------------------------------------------
// All kinds.

/// A late copy of an acquire must not shorten a lease that was extended.
#[test]
fn no_repeated_acquire_shortens_a_lease() {
    let mut bare = Bare::start();
    let reads = timeout(MINE);
    let scripts: [(&str, &[&str], &[&str]); 9] = [
        ("plain_acquire", &[LOCK], &["60000", MINE]),
        ("fenced_acquire", &[LOCK, COUNTER], &["60000", MINE, "1"]),
        ("once_acquire", &[LOCK, COUNTER, RESULT], &["60000", MINE, "1"]),
        ("fair_acquire", &QUEUE, &["60000", MINE, "300000", "300000"]),
        ("read_acquire", &[LOCK, &reads, TURNS], &["60000", MINE, "", "0"]),
        ("write_acquire", &[LOCK, TURNS], &["60000", WRITER, "0"]),
        ("named_acquire", &[LOCK], &["60000", "tx-42", MINE]),
        ("multi_acquire", &[LOCK, "another"], &["60000", MINE, MINE]),
        ("queue_acquire", &[LOCK, "queue", "clients", COUNTER], &["60000", MINE]),
    ];
    // The lease of a permit is no time to live of a key (scripts_of_the_semaphores.rs).
    let takes_lock = |name: &str| name.ends_with("_acquire") && !name.starts_with("semaphore");
    let acquires = crate::harness::bare::scripts();
    let acquires = acquires.iter().filter(|script| takes_lock(&script.name));
    assert_eq!(acquires.count(), scripts.len(), "all acquire scripts of locks");
    for (script, keys, args) in scripts {
        for _ in 0..2 {
            bare.try_call::<redis::Value>(script, keys, args).expect("free, or held by this owner");
            for key in bare.server.keys() {
                bare.ask::<()>(&["PEXPIRE", &key, "600000"]);
            }
        }
        bare.try_call::<redis::Value>(script, keys, args).expect("held by this owner");
        for key in bare.server.keys() {
            // The tokens of work that is done once stay for a day.
            assert_ttl(&bare.server, &key, 300_000..=86_400_000);
        }
        bare.ask::<()>(&["FLUSHALL"]);
    }
}

// ---------------------------------------------------------------------------------
// Fenced.

#[test]
fn fenced_acquire_replies_as_documented_and_its_tokens_grow() {
    let lease_or_token = "else the holder's remaining lease in ms, or if acquired the first token \
                          of the block, negated";
    documents("fenced_acquire", &[NO_EXPIRY, lease_or_token]);
    let mut bare = Bare::start();
    let keys = [LOCK, COUNTER];
    let counter = |bare: &Bare| bare.server.ask::<i64>(&["GET", COUNTER]);

    // A free lock without a counter: the first token is the server's time.
    let before = micros(&bare.server);
    let first = -bare.call("fenced_acquire", &keys, &["60000", MINE, "3"]);
    assert!((before..=micros(&bare.server)).contains(&first), "{first}");
    assert_eq!(counter(&bare), first + 2, "a block of three");
    assert_eq!(pttl(&bare.server, COUNTER), -1, "the counter never expires");
    bare.assert_held_by(MINE);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);

    // The same owner again: the same tokens.
    assert_eq!(bare.call("fenced_acquire", &keys, &["600000", MINE, "3"]), -first);
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    assert_eq!(counter(&bare), first + 2);
    // A counter that was lost in between: new tokens.
    bare.server.ask::<()>(&["DEL", COUNTER]);
    let again = -bare.call("fenced_acquire", &keys, &["60000", MINE, "3"]);
    assert!(again > first, "{again}");
    bare.assert_held_by(MINE);

    // Held by another owner, with and without expiry.
    let ttl = bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]);
    assert!((300_000..=600_000).contains(&ttl), "{ttl}");
    publishes_only_on_a_refusal(&mut bare, "fenced_acquire", &keys, &["60000", OTHER, "1"]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]), -1);
    assert_eq!(counter(&bare), again + 2, "a refused caller takes no token");

    // A counter ahead of the clock continues, in decimal.
    let ahead = "4000000000000000";
    bare.server.ask::<()>(&["SET", COUNTER, ahead, "PX", "60000"]);
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]), -4_000_000_000_000_001);
    assert_eq!(bare.server.ask::<String>(&["GET", COUNTER]), "4000000000000001");
    assert_eq!(pttl(&bare.server, COUNTER), -1, "the counter never expires");

    // A counter behind the clock jumps to the clock.
    bare.server.ask::<()>(&["SET", COUNTER, "7"]);
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert!(-bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]) > before);
}

#[test]
fn a_release_by_force_tells_each_client_of_the_holders_once() {
    const THIRD: &str = "6ba7b810-9dad-81d1-80b4-00c04fd430c8:7";
    let bare = &mut Bare::start();
    let wake = |owner: &str| wake_channel(&owner[..36]);
    let mut listeners = [MINE, THIRD].map(|owner| Listener::on(&bare.server, &wake(owner)));
    let again = format!("{}:77", &MINE[..36]);
    for owner in [MINE, &again, THIRD] {
        assert_eq!(read(bare, "60000", owner), -2);
    }
    bare.server.reset_stats();
    let args = [RW_CHANNEL, "0", "{the-lock}:", "read"];
    assert_eq!(bare.call("rw_force_unlock", &[LOCK], &args), 0);
    assert_eq!(bare.server.calls("publish"), 3);
    for (listener, owner) in listeners.iter_mut().zip([MINE, THIRD]) {
        assert_eq!(listener.next_message(), (wake(owner), format!("freed {LOCK}")));
    }
}

// ---------------------------------------------------------------------------------
// Spin.

#[test]
fn spin_release_and_force_unlock_reply_as_documented() {
    documents("spin_release", &["-1 not held by this owner", "0 released"]);
    documents("spin_force_unlock", &["-1 the lock was free", "0 freed"]);
    let mut bare = Bare::start();
    bare.server.reset_stats();
    assert_eq!(bare.call("spin_release", &[LOCK], &[MINE]), -1);
    assert_eq!(bare.call("spin_force_unlock", &[LOCK], &[]), -1);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("spin_release", &[LOCK], &[MINE]), -1);
    bare.assert_held_by(OTHER);
    assert_eq!(bare.call("spin_release", &[LOCK], &[OTHER]), 0);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("spin_force_unlock", &[LOCK], &[]), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    assert_eq!(bare.server.calls("publish"), 1, "only the client of the freed holder is told");
    bare.assert_wrong_type("spin_release", &[MINE]);
    bare.assert_wrong_type("spin_force_unlock", &[]);
}

// ---------------------------------------------------------------------------------
// Read-write.

const TURNS: &str = "leasehold_turns:{the-lock}";

/// The third reply of the scripts that take a side of a read-write lock.
const LEFT_OR_TURN: &str = "else the ms after which to ask again: the holder's remaining lease, or \
                            the rest of the turn of others";

fn read(bare: &mut Bare, lease: &str, owner: &str) -> i64 {
    // The write hold of the same thread, under which it may read.
    let writer = format!("{owner}:write");
    bare.call("read_acquire", &[LOCK, &timeout(owner), TURNS], &[lease, owner, &writer, "0"])
}

fn end_read(bare: &mut Bare, owner: &str) -> i64 {
    let args = [owner, RW_CHANNEL, "0", "{the-lock}:"];
    bare.call("read_release", &[LOCK, &timeout(owner)], &args)
}

fn write(bare: &mut Bare, lease: &str, owner: &str) -> i64 {
    bare.call("write_acquire", &[LOCK, TURNS], &[lease, owner, "0"])
}

fn end_write(bare: &mut Bare, owner: &str) -> i64 {
    bare.call("write_release", &[LOCK, TURNS], &[owner, RW_CHANNEL, "1", "{the-lock}:"])
}

#[test]
fn write_acquire_and_release_reply_as_documented() {
    documents(
        "write_acquire",
        &["-2 acquired", NO_EXPIRY, &LEFT_OR_TURN.replace("holder's", "holders'")],
    );
    documents("write_release", &["-1 not held by this owner", RECEIVED]);
    let mut bare = Bare::start();
    assert_eq!(end_write(&mut bare, WRITER), -1);
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    assert_eq!(fields(&bare.server), map([("mode", "write"), (WRITER, "1")]));
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert_eq!(write(&mut bare, "600000", WRITER), -2, "again");
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    assert!(write(&mut bare, "60000", OTHER_WRITER) >= 300_000);
    let keys = [LOCK, TURNS];
    publishes_only_on_a_refusal(&mut bare, "write_acquire", &keys, &["60000", OTHER_WRITER, "0"]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(write(&mut bare, "60000", OTHER_WRITER), -1);
    assert_eq!(end_write(&mut bare, OTHER_WRITER), -1);

    let mut listener = Listener::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_write(&mut bare, WRITER), 1);
    assert_eq!(listener.next_message(), (RW_CHANNEL.to_owned(), "1".to_owned()));
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    bare.assert_wrong_type_of("write_acquire", &keys, &["60000", WRITER, "0"]);
    bare.assert_wrong_type_of("write_release", &keys, &[WRITER, RW_CHANNEL, "1", "{the-lock}:"]);
}

#[test]
fn read_acquire_and_release_reply_as_documented() {
    documents("read_acquire", &["-2 acquired", NO_EXPIRY, LEFT_OR_TURN]);
    let others = "0 released while other holds remain";
    documents("read_release", &["-1 not held by this owner", others, RECEIVED]);
    let mut bare = Bare::start();
    assert_eq!(end_read(&mut bare, MINE), -1);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(fields(&bare.server), map([("mode", "read"), (MINE, "1")]));
    assert_eq!(bare.server.ask::<String>(&["GET", &timeout(MINE)]), "1");
    assert_ttl(&bare.server, &timeout(MINE), 30_000..=60_000);

    // A second, shorter lease does not shorten the lock; its own time-out key is short.
    assert_eq!(read(&mut bare, "10000", OTHER), -2);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert_ttl(&bare.server, &timeout(OTHER), 5_000..=10_000);
    assert!(write(&mut bare, "60000", WRITER) > 30_000, "readers exclude a writer");
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_ttl(&bare.server, LOCK, 5_000..=10_000);
    assert_eq!(bare.server.keys(), [LOCK, &timeout(OTHER)]);

    // The same owner again: the full lease, the same count.
    assert_eq!(read(&mut bare, "60000", OTHER), -2);
    assert_eq!(fields(&bare.server), map([("mode", "read"), (OTHER, "1")]));
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    let mut listener = Listener::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_read(&mut bare, OTHER), 1);
    assert_eq!(listener.next_message(), (RW_CHANNEL.to_owned(), "0".to_owned()));
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // Another owner writes, with and without expiry; then a plain lock has the same name.
    assert_eq!(write(&mut bare, "60000", OTHER_WRITER), -2);
    assert!(read(&mut bare, "60000", MINE) > 30_000);
    let keys = [LOCK, &timeout(MINE), TURNS];
    publishes_only_on_a_refusal(&mut bare, "read_acquire", &keys, &["60000", MINE, WRITER, "0"]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(read(&mut bare, "60000", MINE), -1);
    bare.server.ask::<()>(&["DEL", LOCK]);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert!(read(&mut bare, "60000", MINE) > 30_000, "a hash without a mode is no free lock");
    assert!(write(&mut bare, "60000", WRITER) > 30_000);
}

/// Redisson differs: there a read release shortens the lease of its own writer, and no message is
/// sent when a writer continues as a reader.
#[test]
fn a_writer_may_read_and_continue_as_a_reader() {
    let mut bare = Bare::start();
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    assert_eq!(read(&mut bare, "5000", MINE), -2, "under its own write hold");
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert_eq!(fields(&bare.server), map([("mode", "write"), (WRITER, "1"), (MINE, "1")]));
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert!(read(&mut bare, "60000", OTHER) > 0, "another owner may not");

    assert_eq!(read(&mut bare, "5000", MINE), -2);
    let mut listener = Listener::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_write(&mut bare, WRITER), 1);
    assert_eq!(listener.next_message(), (RW_CHANNEL.to_owned(), "1".to_owned()));
    assert_eq!(fields(&bare.server), map([("mode", "read"), (MINE, "1")]));
    assert_ttl(&bare.server, LOCK, 1..=5_000);
    assert_eq!(read(&mut bare, "60000", OTHER), -2, "other owners may read now");
}

#[test]
fn a_reader_whose_lease_has_ended_excludes_no_writer_after_the_last_release() {
    let mut bare = Bare::start();
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(read(&mut bare, "60000", OTHER), -2);
    bare.server.ask::<()>(&["DEL", &timeout(OTHER)]);
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
}

/// Returns the owner field of a hold.
fn numbered(number: usize) -> String {
    format!("{}{number}", MINE.strip_suffix('1').expect("an owner field"))
}

/// Adds many readers to a lock that is held for reading, with this lease.
fn add_readers(bare: &mut Bare, lease: &str) {
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg(LOCK).arg(&["mode", "read"]).ignore();
    for number in 1000..5000 {
        let owner = numbered(number);
        pipe.cmd("HSET").arg(LOCK).arg(&owner).arg(1).ignore();
        pipe.cmd("SET").arg(timeout(&owner)).arg(&["1", "PX", lease]).ignore();
    }
    pipe.cmd("PEXPIRE").arg(LOCK).arg(lease).ignore();
    pipe.query::<()>(&mut bare.connection).expect("added");
}

fn remove_timeouts(bare: &mut Bare, numbers: std::ops::Range<usize>) {
    let mut pipe = redis::pipe();
    for number in numbers {
        pipe.cmd("DEL").arg(timeout(&numbered(number))).ignore();
    }
    pipe.query::<()>(&mut bare.connection).expect("removed");
}

/// Ends a read hold, and returns the number of leases that the script has read.
fn leases_read(bare: &mut Bare, owner: &str, reply: i64) -> u64 {
    let before = bare.server.calls("pttl");
    assert_eq!(end_read(bare, owner), reply);
    bare.server.calls("pttl") - before
}

#[test]
fn a_release_reads_few_of_many_readers() {
    let mut bare = Bare::start();
    add_readers(&mut bare, "60000");
    // Another reader determines the expiry, then this reader does, again and again.
    assert!(leases_read(&mut bare, &numbered(1000), 0) <= 40);
    for number in 1001..1100 {
        assert_eq!(read(&mut bare, "70000", MINE), -2);
        assert!(leases_read(&mut bare, MINE, 0) <= 40);
        assert_ttl(&bare.server, LOCK, 40_000..=70_000);
        assert!(leases_read(&mut bare, &numbered(number), 0) <= 40);
        assert_ttl(&bare.server, LOCK, 40_000..=70_000);
    }
    // A long lease ends early: the lock expires with the others, and all leases are read once.
    assert_eq!(read(&mut bare, "3600000", MINE), -2);
    assert!(leases_read(&mut bare, &numbered(1100), 0) <= 40);
    assert_ttl(&bare.server, LOCK, 70_001..=3_600_000);
    assert!(leases_read(&mut bare, MINE, 0) >= 3899);
    assert_ttl(&bare.server, LOCK, 10_000..=60_000);
    assert!(leases_read(&mut bare, &numbered(1101), 0) <= 40);
    assert_ttl(&bare.server, LOCK, 10_000..=60_000);
}

/// The readers of processes that have crashed keep their fields until the lock ends.
#[test]
fn a_release_among_many_expired_readers_reads_them_once_and_the_last_one_frees_the_lock() {
    let mut bare = Bare::start();
    add_readers(&mut bare, "60000");
    remove_timeouts(&mut bare, 1000..4900);
    remove_timeouts(&mut bare, 4902..5000);
    bare.ask::<()>(&["PEXPIRE", LOCK, "600000"]);
    assert_eq!(read(&mut bare, "3600000", MINE), -2);
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_ttl(&bare.server, LOCK, 10_000..=60_000);
    assert!(leases_read(&mut bare, &numbered(4900), 0) <= 40);
    let left = numbered(4901);
    assert_eq!(fields(&bare.server), map([("mode", "read"), (&left, "1")]));

    add_readers(&mut bare, "60000");
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    remove_timeouts(&mut bare, 1000..5000);
    let mut listener = Listener::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_read(&mut bare, MINE), 1);
    assert_eq!(listener.next_message(), (RW_CHANNEL.to_owned(), "0".to_owned()));
    assert_eq!(bare.server.keys(), Vec::<String>::new());
}

#[test]
fn read_renew_replies_as_documented_and_never_shortens_a_lease() {
    let lost = "the positions (from 1) of the locks that their owners no longer hold";
    documents("read_renew", &[lost]);
    let mut bare = Bare::start();
    let renew = |bare: &mut Bare, lease: &str| -> Vec<i64> {
        bare.reply("read_renew", &[LOCK, "text", "gone"], &[lease, MINE, MINE, MINE])
    };
    bare.server.ask::<()>(&["SET", "text", "no lock"]);
    assert_eq!(renew(&mut bare, "60000"), [1, 2, 3]);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(renew(&mut bare, "600000"), [2, 3]);
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    assert_ttl(&bare.server, &timeout(MINE), 300_000..=600_000);
    assert_eq!(renew(&mut bare, "60000"), [2, 3]);
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    assert_ttl(&bare.server, &timeout(MINE), 300_000..=600_000);
    // A renewal restores a missing time-out key; a check does not.
    bare.server.ask::<()>(&["DEL", &timeout(MINE)]);
    assert_eq!(renew(&mut bare, "-2"), [2, 3]);
    assert!(!exists(&bare.server, &timeout(MINE)));
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    assert_eq!(renew(&mut bare, "60000"), [2, 3]);
    assert_ttl(&bare.server, &timeout(MINE), 30_000..=60_000);
}

#[test]
fn read_and_write_force_unlock_and_ttl_reply_as_documented() {
    documents("rw_force_unlock", &["-1 not held in this mode", RECEIVED]);
    documents(
        "write_ttl",
        &["-2 not held for writing", NO_EXPIRY, "else the remaining lease in ms"],
    );
    documents(
        "read_ttl",
        &["-2 not held for reading", NO_EXPIRY, "else the remaining lease in ms"],
    );
    let mut bare = Bare::start();
    let ttls =
        |bare: &mut Bare| ["read_ttl", "write_ttl"].map(|name| bare.call(name, &[LOCK], &[]));
    let force = |bare: &mut Bare, mode, message| {
        bare.call("rw_force_unlock", &[LOCK], &[RW_CHANNEL, message, "{the-lock}:", mode])
    };
    assert_eq!(ttls(&mut bare), [-2, -2]);
    assert_eq!(force(&mut bare, "read", "0"), -1);
    assert_eq!(force(&mut bare, "write", "1"), -1);

    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    let [reads, writes] = ttls(&mut bare);
    assert!(reads == -2 && writes > 30_000, "{reads} {writes}");
    assert_eq!(force(&mut bare, "read", "0"), -1);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert!(ttls(&mut bare)[0] > 30_000, "its writer also reads");
    let mut listener = Listener::on(&bare.server, RW_CHANNEL);
    assert_eq!(force(&mut bare, "write", "1"), 1);
    assert_eq!(listener.next_message().1, "1");
    assert_eq!(ttls(&mut bare), [-2, -2]);

    assert_eq!(read(&mut bare, "60000", MINE), -2);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(ttls(&mut bare), [-1, -2]);
    assert_eq!(force(&mut bare, "write", "1"), -1);
    assert_eq!(force(&mut bare, "read", "0"), 1);
    assert_eq!(listener.next_message().1, "0");
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(ttls(&mut bare), [-2, -1]);
}

// ---------------------------------------------------------------------------------
// Fair.

fn take(bare: &mut Bare, owner: &str, patience: &str) -> i64 {
    bare.call("fair_acquire", &QUEUE, &["60000", owner, patience, "300000"])
}

fn end_fair(bare: &mut Bare, owner: &str) -> i64 {
    bare.call("fair_release", &QUEUE, &[owner, "own:", "0"])
}

fn leave(bare: &mut Bare, owner: &str, patience: &str) -> i64 {
    bare.call("fair_leave", &QUEUE, &[owner, "own:", "0", patience])
}

fn queue(bare: &Bare) -> Vec<String> {
    bare.server.ask(&["LRANGE", QUEUE[1], "0", "-1"])
}

/// Returns the seconds until each waiter times out.
fn timeouts(bare: &Bare) -> BTreeMap<String, i64> {
    let now = micros(&bare.server) / 1000;
    let all: Vec<(String, i64)> = bare.server.ask(&["ZRANGE", QUEUE[2], "0", "-1", "WITHSCORES"]);
    all.into_iter().map(|(owner, at)| (owner, (at - now + 500) / 1000)).collect()
}

#[track_caller]
fn times_out_in(bare: &Bare, owner: &str, seconds: i64) {
    let timeouts = timeouts(bare);
    let found = timeouts.get(owner).copied().unwrap_or(i64::MIN);
    assert!((seconds - 20..=seconds + 1).contains(&found), "{owner} in {found} s, not {seconds}");
}

#[test]
fn fair_acquire_replies_as_documented() {
    let wait = "else the ms to wait: the holder's remaining lease, or the time until the head of \
                the queue times out if that is longer";
    documents("fair_acquire", &["-2 acquired", NO_EXPIRY, wait]);
    let mut bare = Bare::start();
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    assert_eq!(take(&mut bare, "a", "300000"), -2, "again");
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert!(take(&mut bare, "b", "0") > 30_000, "the caller does not wait");
    assert_eq!(bare.server.keys(), [LOCK]);

    // A waiter is queued once. The reply is the remaining lease, or the timeout of the head.
    let wait = take(&mut bare, "b", "300000");
    assert!((30_000..=60_000).contains(&wait), "{wait}");
    times_out_in(&bare, "b", 360);
    assert!(take(&mut bare, "c", "300000") > 300_000, "c waits for b");
    times_out_in(&bare, "c", 660);
    take(&mut bare, "b", "300000");
    assert_eq!(queue(&bare), ["b", "c"]);
    assert_ttl(&bare.server, QUEUE[1], 3_600_000..=4_300_000);
    assert_ttl(&bare.server, QUEUE[2], 3_600_000..=4_300_000);
    publishes_only_on_a_refusal(
        &mut bare,
        "fair_acquire",
        &QUEUE,
        &["60000", "b", "300000", "300000"],
    );

    // A lock without expiry.
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(take(&mut bare, "b", "300000"), -1);
    assert_eq!(take(&mut bare, "d", "0"), -1);

    // Free: only the head of the queue gets the lock; the others move up.
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert!(take(&mut bare, "d", "0") > 100_000, "d does not overtake");
    times_out_in(&bare, "b", 360);
    let wait = take(&mut bare, "c", "300000");
    assert!(wait > 100_000, "c must not retry without a pause: {wait} ms");
    times_out_in(&bare, "b", 300);
    assert_eq!(take(&mut bare, "b", "300000"), -2);
    assert_eq!(queue(&bare), ["c"]);
    times_out_in(&bare, "c", 360);
}

/// When a waiter of Redisson acquires the lock, it subtracts its full addition from the timeouts
/// behind it, even if its own timeout became earlier beside a free lock.
#[test]
fn a_waiter_behind_redissons_waiters_outlives_their_subtractions() {
    let mut bare = Bare::start();
    let short = |bare: &mut Bare, owner: &str| {
        bare.call("fair_acquire", &QUEUE, &["60000", owner, "30000", "30000"])
    };
    let timeout = (micros(&bare.server) / 1000 + 310_000).to_string();
    bare.server.ask::<()>(&["RPUSH", QUEUE[1], "theirs"]);
    bare.server.ask::<()>(&["ZADD", QUEUE[2], &timeout, "theirs"]);
    short(&mut bare, "ours");
    times_out_in(&bare, "theirs", 30);
    times_out_in(&bare, "ours", 340);
    // Redisson's waiter gets the lock.
    bare.server.ask::<()>(&["LPOP", QUEUE[1]]);
    bare.server.ask::<()>(&["ZREM", QUEUE[2], "theirs"]);
    bare.server.ask::<()>(&["ZINCRBY", QUEUE[2], "-300000", "ours"]);
    bare.server.ask::<()>(&["HSET", LOCK, "theirs", "1"]);
    short(&mut bare, "another");
    assert_eq!(queue(&bare), ["ours", "another"]);
}

/// However long the lock is held, a waiter that polls in time keeps its place in the queue.
#[test]
fn a_poll_keeps_the_place_of_a_waiter_in_the_fair_queue() {
    let mut bare = Bare::start();
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    take(&mut bare, "b", "300000");
    take(&mut bare, "c", "300000");
    let now = micros(&bare.server) / 1000;
    let soon = |seconds: i64| (now + seconds * 1000).to_string();
    bare.server.ask::<()>(&["ZADD", QUEUE[2], &soon(100), "b", &soon(100), "c"]);
    take(&mut bare, "b", "300000");
    times_out_in(&bare, "b", 360);
    take(&mut bare, "c", "300000");
    times_out_in(&bare, "c", 660);
    // A waiter with half of its patience left changes nothing.
    bare.server.ask::<()>(&["ZADD", QUEUE[2], &soon(200), "b"]);
    take(&mut bare, "b", "300000");
    times_out_in(&bare, "b", 200);
    assert_eq!(queue(&bare), ["b", "c"]);
}

#[test]
fn waiters_that_timed_out_at_the_head_of_the_fair_queue_are_removed() {
    let mut bare = Bare::start();
    let time_out =
        |bare: &Bare, owner: &str| bare.server.ask::<()>(&["ZADD", QUEUE[2], "1", owner]);
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    for owner in ["b", "c", "d", "e"] {
        take(&mut bare, owner, "300000");
    }
    for owner in ["b", "c", "e"] {
        time_out(&bare, owner);
    }
    let mut listener = Listener::on(&bare.server, "own:d");
    assert_eq!(end_fair(&mut bare, "a"), 1, "d receives the message");
    assert_eq!(listener.next_message(), ("own:d".to_owned(), "0".to_owned()));
    assert_eq!(queue(&bare), ["d", "e"]);
    time_out(&bare, "d");
    assert_eq!(take(&mut bare, "f", "0"), -2, "all waiters have timed out");
    assert_eq!(bare.server.keys(), [LOCK]);
}

#[test]
fn fair_release_force_unlock_and_leave_reply_as_documented() {
    documents("fair_release", &["-1 not held by this owner", RECEIVED]);
    documents("fair_force_unlock", &["-1 the lock was free", RECEIVED]);
    documents("fair_leave", &["-1 neither held nor queued", "0 no waiter to notify", RECEIVED]);
    let mut bare = Bare::start();
    let force = |bare: &mut Bare| bare.call("fair_force_unlock", &QUEUE, &["own:", "0"]);
    assert_eq!(end_fair(&mut bare, "a"), -1, "a free lock is not released");
    assert_eq!(force(&mut bare), -1);
    assert_eq!(leave(&mut bare, "a", "300000"), -1);

    assert_eq!(take(&mut bare, "a", "300000"), -2);
    assert_eq!(end_fair(&mut bare, "a"), 0, "no waiter");
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    for owner in ["b", "c", "d"] {
        take(&mut bare, owner, "300000");
    }
    assert_eq!(end_fair(&mut bare, "b"), -1);

    // From the middle of the queue: the waiters behind move up. The lock is held: no message.
    assert_eq!(leave(&mut bare, "c", "300000"), 0);
    assert_eq!(queue(&bare), ["b", "d"]);
    times_out_in(&bare, "b", 360);
    times_out_in(&bare, "d", 660);
    // From the head of the queue, with a free lock: this waiter may have received the message.
    let mut listener = Listener::on(&bare.server, "own:d");
    assert_eq!(end_fair(&mut bare, "a"), 0, "b does not listen");
    assert_eq!(leave(&mut bare, "b", "300000"), 1);
    assert_eq!(listener.next_message(), ("own:d".to_owned(), "0".to_owned()));
    // A waiter that has acquired the lock in the meantime.
    assert_eq!(take(&mut bare, "d", "300000"), -2);
    take(&mut bare, "e", "300000");
    assert_eq!(leave(&mut bare, "d", "300000"), 0, "e does not listen");
    assert_eq!(take(&mut bare, "e", "300000"), -2);
    assert_eq!(end_fair(&mut bare, "e"), 0);
    hold(&bare.server, LOCK, MINE, "60000");
    assert_eq!(force(&mut bare), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    let args = ["a", "own:", "0"];
    bare.assert_wrong_type("fair_release", &args);
}

// ---------------------------------------------------------------------------------
// Minimum holds.

const NOBODY: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1:min_hold";
const NO_WRITER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1:write:min_hold";

/// The shortest rest of a minimum of 300 s in these tests.
const LEFT: i64 = 200_000;

#[test]
fn early_release_replies_as_documented() {
    documents("early_release", &["-1 not held by this owner", "0 for a spin lock", RECEIVED]);
    let mut bare = Bare::start();
    let args = [MINE, NOBODY, "300000", CHANNEL, "0"];
    assert_eq!(bare.call("early_release", &[LOCK], &args), -1);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("early_release", &[LOCK], &args), -1);
    bare.assert_held_by(OTHER);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    bare.server.ask::<()>(&["DEL", LOCK]);

    // The minimum ends after the lease, or before.
    let mut listener = Listener::on(&bare.server, CHANNEL);
    for lease in ["60000", "600000"] {
        hold(&bare.server, LOCK, MINE, lease);
        assert_eq!(bare.call("early_release", &[LOCK], &args), 1);
        assert_eq!(listener.next_message(), (CHANNEL.to_owned(), "0".to_owned()));
        bare.assert_held_by(NOBODY);
        assert_ttl(&bare.server, LOCK, LEFT..=300_000);
        let again = [MINE, NOBODY, "900000", CHANNEL, "0"];
        assert_eq!(bare.call("early_release", &[LOCK], &again), -1, "a second copy");
        // Late copies of the commands of the hold that has ended.
        assert!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]) > LEFT);
        assert_eq!(bare.call("plain_release", &[LOCK], &[MINE, CHANNEL, "0"]), -1);
        let lost: Vec<usize> = bare.reply("plain_renew", &[LOCK], &["900000", MINE]);
        assert_eq!(lost, [1], "not held");
        bare.assert_held_by(NOBODY);
        assert_ttl(&bare.server, LOCK, LEFT..=300_000);
        assert_eq!(bare.call("plain_force_unlock", &[LOCK], &[CHANNEL, "0"]), 1);
        listener.next_message();
    }
    hold(&bare.server, LOCK, MINE, "60000");
    bare.server.reset_stats();
    assert_eq!(bare.call("early_release", &[LOCK], &[MINE, NOBODY, "1000"]), 0, "a spin lock");
    assert_eq!(bare.server.calls("publish"), 0);
    bare.server.ask::<()>(&["DEL", LOCK]);
    bare.assert_wrong_type("early_release", &args);
}

#[test]
fn early_release_of_a_fair_lock_notifies_the_head_of_the_queue() {
    let mut bare = Bare::start();
    let release = |bare: &mut Bare, owner: &str, nobody: &str| {
        bare.call("fair_release", &QUEUE, &[owner, "own:", "0", nobody, "300000"])
    };
    assert_eq!(take(&mut bare, "a", "0"), -2);
    assert_eq!(release(&mut bare, "a", "a:min_hold"), 0, "no waiter");
    bare.assert_held_by("a:min_hold");
    assert!(take(&mut bare, "b", "300000") > LEFT);
    assert!(take(&mut bare, "c", "300000") > LEFT);
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(take(&mut bare, "b", "300000"), -2);
    let mut listener = Listener::on(&bare.server, "own:c");
    assert_eq!(release(&mut bare, "b", "b:min_hold"), 1);
    assert_eq!(listener.next_message(), ("own:c".to_owned(), "0".to_owned()));
    assert!(take(&mut bare, "c", "300000") > LEFT, "it learns the end of the minimum");
    assert_eq!(queue(&bare), ["c"]);
    // The head of the queue has timed out, and the next waiter does not listen.
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(take(&mut bare, "c", "300000"), -2);
    take(&mut bare, "d", "300000");
    take(&mut bare, "e", "300000");
    bare.server.ask::<()>(&["ZADD", QUEUE[2], "1", "d"]);
    assert_eq!(release(&mut bare, "c", "c:min_hold"), 0);
    assert_eq!(queue(&bare), ["e"], "the timed-out head is removed");
}

#[test]
fn write_release_before_its_minimum_keeps_the_lock_taken_for_writing() {
    let mut bare = Bare::start();
    let release = |bare: &mut Bare| {
        let args = [WRITER, RW_CHANNEL, "1", "{the-lock}:", NO_WRITER, "300000"];
        bare.call("write_release", &[LOCK, TURNS], &args)
    };
    assert_eq!(release(&mut bare), -1);
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    let mut listener = Listener::on(&bare.server, RW_CHANNEL);
    assert_eq!(release(&mut bare), 1);
    assert_eq!(listener.next_message(), (RW_CHANNEL.to_owned(), "1".to_owned()));
    let taken = map([("mode", "write"), (NO_WRITER, "1")]);
    assert_eq!(fields(&bare.server), taken);
    assert_eq!(release(&mut bare), -1, "a second copy");
    assert!(write(&mut bare, "60000", OTHER_WRITER) > LEFT);
    assert!(write(&mut bare, "60000", WRITER) > LEFT, "a late copy");
    assert!(read(&mut bare, "60000", OTHER) > LEFT && read(&mut bare, "60000", MINE) > LEFT);
    assert_eq!(end_read(&mut bare, MINE), -1);
    assert_eq!(fields(&bare.server), taken);
    assert_ttl(&bare.server, LOCK, LEFT..=300_000);
    assert!(bare.call("write_ttl", &[LOCK], &[]) > LEFT);
    assert_eq!(bare.call("read_ttl", &[LOCK], &[]), -2, "no reader");
    let mut force =
        |mode| bare.call("rw_force_unlock", &[LOCK], &[RW_CHANNEL, "0", "{the-lock}:", mode]);
    assert_eq!((force("read"), force("write")), (-1, 1));
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    // The minimum ends with the write hold if the writer also reads.
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(release(&mut bare), 1);
    assert_eq!(fields(&bare.server), map([("mode", "read"), (MINE, "1")]));
    assert_eq!(read(&mut bare, "60000", OTHER), -2);
}

// ---------------------------------------------------------------------------------
// Named holders.

const AGAIN: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:3";

fn enter(bare: &mut Bare, hold: &str, lease: &str, holder: &str) -> i64 {
    bare.call("named_acquire", &[LOCK], &[lease, holder, hold])
}

fn end_named(bare: &mut Bare, hold: &str) -> i64 {
    bare.call("named_release", &[LOCK], &["tx-42", hold, CHANNEL, "0"])
}

fn end_any(bare: &mut Bare, holder: &str) -> i64 {
    bare.call("named_unlock", &[LOCK], &[holder, CHANNEL, "0"])
}

#[test]
fn named_acquire_counts_each_hold_once() {
    documents("named_acquire", &["-2 acquired", NO_EXPIRY, LEASE]);
    let mut bare = Bare::start();
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2);
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2, "the same hold");
    assert_eq!(fields(&bare.server), map([("tx-42", "1"), (MINE, "0")]));
    assert_eq!(enter(&mut bare, AGAIN, "10000", "tx-42"), -2);
    assert_eq!(fields(&bare.server), map([("tx-42", "2"), (MINE, "0"), (AGAIN, "0")]));
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert!(enter(&mut bare, OTHER, "60000", "tx-43") > 30_000);
    publishes_only_on_a_refusal(&mut bare, "named_acquire", &[LOCK], &["60000", "tx-43", OTHER]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(enter(&mut bare, OTHER, "60000", "tx-43"), -1);
    assert_eq!(fields(&bare.server).len(), 3, "a refusal adds no field");
    bare.assert_wrong_type("named_acquire", &["60000", "tx-42", MINE]);
}

#[test]
fn named_release_subtracts_each_hold_once() {
    let others = "0 other holds remain";
    documents("named_release", &["-1 the hold is not counted", others, RECEIVED]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, CHANNEL);
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2);
    assert_eq!(enter(&mut bare, AGAIN, "60000", "tx-42"), -2);
    assert_eq!(end_named(&mut bare, MINE), 0);
    assert_eq!(end_named(&mut bare, MINE), -1, "the same hold");
    assert_eq!(fields(&bare.server), map([("tx-42", "1"), (AGAIN, "0")]));
    assert_eq!(end_named(&mut bare, AGAIN), 1);
    assert_eq!(listener.next_message(), (CHANNEL.to_owned(), "0".to_owned()));
    assert!(!bare.server.ask::<bool>(&["EXISTS", LOCK]));
    assert_eq!(end_named(&mut bare, AGAIN), -1);
    bare.assert_wrong_type("named_release", &["tx-42", MINE, CHANNEL, "0"]);
}

#[test]
fn named_unlock_subtracts_the_oldest_hold_or_a_count_without_a_hold() {
    let others = "0 other holds remain";
    documents("named_unlock", &["-1 not held by this holder", others, RECEIVED]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, CHANNEL);
    assert_eq!(end_any(&mut bare, "tx-42"), -1);
    for hold in [AGAIN, MINE] {
        assert_eq!(enter(&mut bare, hold, "60000", "tx-42"), -2);
    }
    assert_eq!(end_any(&mut bare, "tx-43"), -1);
    assert_eq!(end_any(&mut bare, MINE), -1, "a hold is no holder");
    assert_eq!(end_any(&mut bare, "tx-42"), 0);
    assert_eq!(fields(&bare.server), map([("tx-42", "1"), (MINE, "0")]));
    assert_eq!(end_any(&mut bare, "tx-42"), 1);
    assert_eq!(listener.next_message(), (CHANNEL.to_owned(), "0".to_owned()));
    assert!(!bare.server.ask::<bool>(&["EXISTS", LOCK]));
    // Another library counts without fields for its holds:
    bare.server.ask::<()>(&["HSET", LOCK, "tx-42", "2"]);
    assert_eq!(end_any(&mut bare, "tx-42"), 0);
    assert_eq!(end_any(&mut bare, "tx-42"), 1);
    bare.assert_wrong_type("named_unlock", &["tx-42", CHANNEL, "0"]);
}

/// A holder name that equals another field of the hash does not admit its caller.
#[test]
fn a_name_that_is_another_field_of_the_lock_is_no_holder() {
    let mut bare = Bare::start();
    let refused = |bare: &mut Bare, name: &str| {
        let before = fields(&bare.server);
        assert!(enter(bare, "another", "60000", name) > 0, "{name}");
        assert_eq!(end_any(bare, name), -1, "{name}");
        assert_eq!(fields(&bare.server), before);
    };
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2);
    refused(&mut bare, MINE);
    refused(&mut bare, "mode");
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    for name in ["mode", "write", WRITER, MINE, "nobody"] {
        refused(&mut bare, name);
    }
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    for name in ["mode", "read", MINE, "nobody"] {
        refused(&mut bare, name);
    }
}

/// A lock that is held under such a name is not free to other kinds.
#[test]
fn a_holder_of_any_name_excludes_readers_and_writers() {
    let mut bare = Bare::start();
    for name in ["nobody", "mode", "read", "write", WRITER, MINE, "1"] {
        assert_eq!(enter(&mut bare, AGAIN, "60000", name), -2);
        let before = fields(&bare.server);
        assert!(read(&mut bare, "60000", OTHER) > 0, "{name}");
        let timeout = [LOCK, "the-timeout"];
        for writer in [name, "", WRITER] {
            let args = ["60000", OTHER, writer];
            assert!(bare.call("read_acquire", &timeout, &args) > 0, "{name}, {writer}");
        }
        assert!(write(&mut bare, "60000", "other:write") > 0, "{name}");
        let ttls = ["read_ttl", "write_ttl"].map(|script| bare.call(script, &[LOCK], &[]));
        assert_eq!(ttls, [-2, -2], "{name}");
        let force = ["read", "write"].map(|mode| {
            bare.call("rw_force_unlock", &[LOCK], &[RW_CHANNEL, "0", "{the-lock}:", mode])
        });
        assert_eq!(force, [-1, -1], "{name}");
        assert_eq!(fields(&bare.server), before);
        bare.server.ask::<()>(&["DEL", LOCK]);
    }
}

/// A step of the sequences below, on a hold or a holder with this number.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The first attempt, a repetition after a lost reply, or a late copy after the release.
    Acquire(usize),
    /// In time, late, or repeated.
    Release(usize),
    Renew(usize),
    /// By name: any hold of the holder.
    Unlock(usize),
    /// Redisson acquires, or releases.
    Enter(usize),
    Leave(usize),
    /// The lease ends, or the server loses its data.
    Lapse,
}

/// The counted holds, and the count that Redisson added, of the holder that has the lock.
#[derive(Default)]
struct Model {
    holder: usize,
    holds: Vec<usize>,
    redisson: usize,
}

impl Model {
    /// Several holds share one holder.
    fn holder_of(hold: usize) -> usize {
        hold % 2
    }

    fn count(&self) -> usize {
        self.holds.len() + self.redisson
    }

    fn admits(&mut self, holder: usize) -> bool {
        let admitted = self.count() == 0 || self.holder == holder;
        self.holder = if admitted { holder } else { self.holder };
        admitted
    }

    fn release_reply(&self) -> i64 {
        if self.count() > 0 { 0 } else { 1 }
    }

    /// Applies a step and returns the expected reply. A remaining lease counts as 0, and one
    /// listener receives the message of a release.
    fn apply(&mut self, step: Step) -> i64 {
        match step {
            Step::Acquire(hold) if self.holds.contains(&hold) => -2,
            Step::Acquire(hold) if self.admits(Model::holder_of(hold)) => {
                self.holds.push(hold);
                -2
            }
            Step::Enter(holder) if self.admits(holder) => {
                self.redisson += 1;
                -2
            }
            Step::Acquire(_) | Step::Enter(_) => 0,
            Step::Release(hold) | Step::Renew(hold) if !self.holds.contains(&hold) => -1,
            Step::Renew(_) => 0,
            Step::Release(hold) => {
                self.holds.retain(|other| *other != hold);
                self.release_reply()
            }
            Step::Unlock(holder) if self.count() == 0 || self.holder != holder => -1,
            Step::Unlock(_) if self.holds.is_empty() => {
                self.redisson -= 1;
                self.release_reply()
            }
            Step::Unlock(_) => {
                self.holds.remove(0);
                self.release_reply()
            }
            Step::Leave(holder) if self.holder != holder || self.redisson == 0 => -1,
            Step::Leave(_) => {
                self.redisson -= 1;
                self.release_reply()
            }
            Step::Lapse => {
                *self = Model::default();
                0
            }
        }
    }

    fn fields(&self) -> BTreeMap<String, String> {
        let holds = self.holds.iter().map(|hold| (numbered(*hold), "0".to_owned()));
        let count = (self.count() > 0).then(|| (self.holder.to_string(), self.count().to_string()));
        holds.chain(count).collect()
    }
}

/// Acquires as Redisson's script does.
fn enter_as_redisson(bare: &mut Bare, holder: &str) -> i64 {
    if bare.ask(&["EXISTS", LOCK]) && !bare.ask::<bool>(&["HEXISTS", LOCK, holder]) {
        return 0;
    }
    bare.ask::<()>(&["HINCRBY", LOCK, holder, "1"]);
    bare.ask::<()>(&["PEXPIRE", LOCK, "60000"]);
    -2
}

/// Releases as Redisson's script does. Redisson releases only what it holds; the model knows it.
fn leave_as_redisson(bare: &mut Bare, holder: &str) -> i64 {
    if bare.ask::<i64>(&["HINCRBY", LOCK, holder, "-1"]) > 0 {
        return 0;
    }
    bare.ask(&["DEL", LOCK])
}

fn take_step(bare: &mut Bare, step: Step, expected: i64) -> i64 {
    let reply = match step {
        Step::Acquire(hold) => {
            let holder = Model::holder_of(hold).to_string();
            enter(bare, &numbered(hold), "60000", &holder)
        }
        Step::Release(hold) => {
            let holder = Model::holder_of(hold).to_string();
            bare.call("named_release", &[LOCK], &[&holder, &numbered(hold), CHANNEL, "0"])
        }
        Step::Renew(hold) => {
            let args = ["60000", &numbered(hold)];
            let lost: Vec<i64> = bare.reply("plain_renew", &[LOCK], &args);
            return if lost.is_empty() { 0 } else { -1 };
        }
        Step::Unlock(holder) => end_any(bare, &holder.to_string()),
        Step::Enter(holder) => enter_as_redisson(bare, &holder.to_string()),
        Step::Leave(_) if expected == -1 => -1,
        Step::Leave(holder) => leave_as_redisson(bare, &holder.to_string()),
        Step::Lapse => bare.ask::<i64>(&["DEL", LOCK]).min(0),
    };
    // A remaining lease.
    if reply > 1 { 0 } else { reply }
}

/// The count of a holder equals the number of its granted holds that have not ended, in every order
/// of acquires, repetitions, late copies, renewals, releases and ends of leases.
#[test]
fn the_count_of_a_holder_is_the_number_of_its_holds_in_every_order() {
    use proptest::prelude::*;
    let step = prop_oneof![
        3 => (0..5usize).prop_map(Step::Acquire),
        3 => (0..5usize).prop_map(Step::Release),
        1 => (0..5usize).prop_map(Step::Renew),
        1 => (0..2usize).prop_map(Step::Unlock),
        1 => (0..2usize).prop_map(Step::Enter),
        1 => (0..2usize).prop_map(Step::Leave),
        1 => Just(Step::Lapse),
    ];
    let bare = Bare::start();
    let _listener = Listener::on(&bare.server, CHANNEL);
    try_sequences(bare, 200, proptest::collection::vec(step, 1..40), |bare, steps| {
        let mut model = Model::default();
        bare.ask::<i64>(&["DEL", LOCK]);
        for step in steps {
            let expected = model.apply(step);
            prop_assert_eq!(take_step(bare, step, expected), expected, "{:?}", step);
            let fields: BTreeMap<String, String> = bare.ask(&["HGETALL", LOCK]);
            prop_assert_eq!(fields, model.fields(), "after {:?}", step);
        }
        Ok(())
    });
}

// ---------------------------------------------------------------------------------
// Descriptions of locks.

/// The description of one lock by `lock_info`.
#[derive(Debug, PartialEq)]
struct Description {
    ttl: i64,
    fields: Vec<String>,
    leases: Vec<i64>,
    /// The token counter, except for a look.
    counter: Option<String>,
    /// The two queues; only of a search.
    queues: Option<[Vec<String>; 2]>,
}

/// Calls `lock_info`; `None` stands for an empty list.
fn describe(bare: &mut Bare, verb: &str, keys: &[&str]) -> Vec<Option<Description>> {
    let names: Vec<String> = keys.iter().map(|key| format!("{{{key}}}")).collect();
    let args = [&[verb][..], &texts(&names)].concat();
    let parts: Vec<Vec<redis::Value>> = bare.reply("lock_info", keys, &args);
    let describe = |parts: Vec<redis::Value>| {
        let mut parts = parts.into_iter();
        let ttl = redis::from_redis_value(parts.next()?).expect("a number");
        let fields = redis::from_redis_value(parts.next().expect("fields")).expect("texts");
        let leases = redis::from_redis_value(parts.next().expect("leases")).expect("numbers");
        let counter = parts.next().map(|it| redis::from_redis_value(it).expect("a text"));
        let queues = parts.next().map(|queue| {
            let queues = [queue, parts.next().expect("two queues")];
            queues.map(|it| redis::from_redis_value(it).expect("texts"))
        });
        Some(Description { ttl, fields, leases, counter, queues })
    };
    parts.into_iter().map(describe).collect()
}

#[test]
fn lock_info_replies_as_documented() {
    let list = "one list per lock, empty without a key: 1 the reply of PTTL, 2 the fields and \
                values, none for a key that is no hash or is left out, 3 for a read-write lock \
                one number per field: the ms left of the reader, -2 without a time-out key, -1 if \
                that key has no expiry or cannot be read, 4 except for `look`: the text of the \
                token counter, empty if there is none, 5 and 6 for a search: the queue of a fair \
                lock, and the queue of a queue lock, 7 for a search: the owner and the value of \
                the record of a leader, or nothing, 8 for a search, if permits of a semaphore are \
                in use: the reply of `semaphore_info` with holders, and 1 is -2 without the key";
    documents("lock_info", &[list]);
    let mut bare = Bare::start();
    let texts = |texts: &[&str]| Vec::from_iter(texts.iter().map(|it| (*it).to_owned()));

    // No key, and a key of another type.
    bare.ask::<()>(&["SET", "string", "value"]);
    let no_lock = || {
        let (fields, leases, counter, queues) = (vec![], vec![], None, None);
        Some(Description { ttl: -1, fields, leases, counter, queues })
    };
    for verb in ["look", "token", "search"] {
        assert_eq!(describe(&mut bare, verb, &["free", "string"]), [None, no_lock()]);
    }

    // Without an expiry; the counter except for a look, the queues only for a search.
    bare.ask::<()>(&["HSET", LOCK, MINE, "1"]);
    bare.ask::<()>(&["RPUSH", QUEUE[1], OTHER]);
    bare.ask::<()>(&["ZADD", WAITERS, "2", MINE, "1", OTHER]);
    bare.ask::<()>(&["SET", COUNTER, "7"]);
    let held = |counter: Option<&str>, queues| {
        let (fields, counter) = (texts(&[MINE, "1"]), counter.map(str::to_owned));
        Some(Description { ttl: -1, fields, leases: vec![], counter, queues })
    };
    assert_eq!(describe(&mut bare, "look", &[LOCK]), [held(None, None)]);
    assert_eq!(describe(&mut bare, "token", &[LOCK]), [held(Some("7"), None)]);
    let all = Some([texts(&[OTHER]), texts(&[OTHER, MINE])]);
    assert_eq!(describe(&mut bare, "search", &["free", LOCK]), [None, held(Some("7"), all)]);
    bare.ask::<()>(&["DEL", QUEUE[1], WAITERS, COUNTER]);
    let nothing = held(Some(""), Some([vec![], vec![]]));
    assert_eq!(describe(&mut bare, "search", &[LOCK]), [nothing]);
    assert_eq!(describe(&mut bare, "token", &[LOCK]), [held(Some(""), None)]);
    bare.ask::<()>(&["MSET", QUEUE[1], "no queue", WAITERS, "no queue"]);
    bare.ask::<()>(&["RPUSH", COUNTER, "no counter"]);
    let nothing = held(Some(""), Some([vec![], vec![]]));
    assert_eq!(describe(&mut bare, "search", &[LOCK]), [nothing]);

    // A search leaves out a hash without an owner field.
    bare.ask::<()>(&["HSET", "rw", "mode", "read", "reader:1", "1"]);
    assert_eq!(describe(&mut bare, "search", &["rw"]), [no_lock()]);
    bare.ask::<()>(&["HSET", "both", "job-17", "1", MINE, "0"]);
    let both = describe(&mut bare, "search", &["both"]).remove(0).expect("a lock");
    assert_eq!(both.fields.len(), 4);
}

/// A lease, the longest of several leases, no expiry, and a lease that is over.
#[test]
fn lock_info_tells_the_leases_of_readers() {
    let mut bare = Bare::start();
    let readers: Vec<String> = (1..=4).map(|number| format!("reader:{number}")).collect();
    let mut words = vec!["HSET", "rw", "mode", "read"];
    for (reader, count) in readers.iter().zip(["1", "3", "1", "1"]) {
        words.extend([reader, count]);
    }
    bare.ask::<()>(&words);
    bare.ask::<()>(&["PEXPIRE", "rw", "60000"]);
    for (reader, number, lease) in [(0, 1, 40_000), (1, 1, 10_000), (1, 3, 30_000), (2, 1, 0)] {
        let key = format!("{{rw}}:{}:rwlock_timeout:{number}", readers[reader]);
        bare.ask::<()>(&["SET", &key, "1"]);
        if lease > 0 {
            bare.ask::<()>(&["PEXPIRE", &key, &lease.to_string()]);
        }
    }
    let found = describe(&mut bare, "look", &["rw"]).remove(0).expect("a lock");
    assert!((30_000..=60_000).contains(&found.ttl));
    let [-2, first, second, -1, -2] = found.leases[..] else { panic!("{found:?}") };
    assert!((30_000..=40_000).contains(&first) && (20_000..=30_000).contains(&second));
}

#[test]
fn once_acquire_takes_the_work_or_tells_its_result() {
    let lease_or_token = "else the holder's remaining lease in ms, or if acquired the first token \
                          of the block, negated";
    let result = "of work that is done a list: 1 the time of the result in ms since 1970, 2 its \
                  token, 3 its value";
    documents("once_acquire", &[NO_EXPIRY, lease_or_token, result]);
    let mut bare = Bare::start();
    let keys = [LOCK, COUNTER, RESULT];
    let args = |owner: &'static str| ["60000", owner, "1"];
    let token = -bare.call("once_acquire", &keys, &args(MINE));
    assert_eq!(bare.call("once_acquire", &keys, &args(MINE)), -token, "the same owner again");
    assert_ttl(&bare.server, COUNTER, 80_000_000..=86_400_000);
    let left = bare.call("once_acquire", &keys, &args(OTHER));
    assert!((30_000..=60_000).contains(&left), "{left}");
    publishes_only_on_a_refusal(&mut bare, "once_acquire", &keys, &args(OTHER));
    bare.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(bare.call("once_acquire", &keys, &args(OTHER)), -1);

    // A result is told to everybody, and nothing is taken.
    bare.ask::<()>(&["HSET", RESULT, "at", "5", "token", "7", "value", "x", "owner", MINE]);
    bare.ask::<()>(&["DEL", LOCK]);
    let told: Vec<String> = bare.reply("once_acquire", &keys, &args(OTHER));
    assert_eq!(told, ["5", "7", "x"]);
    assert!(!bare.ask::<bool>(&["EXISTS", LOCK]));
}

#[test]
fn once_commit_writes_one_result_and_ends_the_hold() {
    let committed = "else a list: 1 the number of subscribers that received the message, or 0 if \
                     it was refused, -1 from a repeated call, 2 the time of the result in ms since \
                     1970";
    documents("once_commit", &["-1 not held, and this hold has written no result", committed]);
    let mut bare = Bare::start();
    let keys = [LOCK, RESULT];
    let args =
        |owner: &'static str, value: &'static str| [owner, CHANNEL, "0", "60000", "7", value];
    assert_eq!(bare.call("once_commit", &keys, &args(MINE, "x")), -1);
    assert_eq!(bare.server.keys(), Vec::<String>::new(), "nothing is written");
    bare.ask::<()>(&["HSET", LOCK, MINE, "1"]);
    assert_eq!(bare.call("once_commit", &keys, &args(OTHER, "x")), -1, "another one runs");
    let before = micros(&bare.server) / 1000;
    let first: (i64, i64) = bare.reply("once_commit", &keys, &args(MINE, "x"));
    assert!(first.0 == 0 && (before..=micros(&bare.server) / 1000).contains(&first.1), "{first:?}");
    assert_eq!(bare.server.keys(), [RESULT]);
    assert_ttl(&bare.server, RESULT, 30_000..=60_000);

    // A copy changes nothing, also while another one has the work.
    bare.ask::<()>(&["HSET", LOCK, OTHER, "1"]);
    let again: (i64, i64) = bare.reply("once_commit", &keys, &args(MINE, "y"));
    assert_eq!(again, (-1, first.1));
    let at = first.1.to_string();
    let result = [("at", &*at), ("owner", MINE), ("token", "7"), ("value", "x")];
    let result = result.map(|(field, value)| (field.to_owned(), value.to_owned()));
    assert_eq!(bare.ask::<BTreeMap<String, String>>(&["HGETALL", RESULT]), result.into());
    bare.ask::<()>(&["DEL", RESULT]);
    assert_eq!(bare.call("once_commit", &keys, &args(MINE, "x")), -1, "it is forgotten");
    bare.assert_held_by(OTHER);
}

#[test]
fn once_forget_deletes_one_result() {
    documents("once_forget", &["1 deleted", "0 there was none"]);
    let mut bare = Bare::start();
    let forget = |bare: &mut Bare, record| bare.call("once_forget", &[RESULT, record], &["60000"]);
    assert_eq!(forget(&mut bare, "first"), 0);
    bare.ask::<()>(&["HSET", RESULT, "at", "5"]);
    assert_eq!(forget(&mut bare, "first"), 0, "a late copy deletes no later result");
    assert_eq!(bare.server.keys(), ["first", RESULT]);
    assert_eq!((forget(&mut bare, "next"), forget(&mut bare, "next")), (1, 1));
    assert_eq!(bare.server.keys(), ["first", "next"]);
    assert_ttl(&bare.server, "next", 30_000..=60_000);
    bare.ask::<()>(&["SET", RESULT, "a text"]);
    let refused = bare.try_call::<redis::Value>("once_forget", &[RESULT, "third"], &["60000"]);
    assert!(refused.is_err_and(|error| error.to_string().contains("WRONGTYPE")));
    assert_eq!(bare.server.keys(), ["first", RESULT, "next"]);
}

#[test]
fn lock_holders_tells_fields_and_permits() {
    let list = "one list per key: 1 the mode of a read-write lock, else an empty text, 2 .. a \
                sample of the fields, each with its value";
    let ids = "of a semaphore the ids that expire next, each with its expiry";
    documents("lock_holders", &[list, ids, "nothing for a key of another type"]);
    let mut bare = Bare::start();
    bare.ask::<()>(&["HSET", "plain", "owner", "1"]);
    bare.ask::<()>(&["HSET", "rw", "mode", "read", "reader", "1"]);
    bare.ask::<()>(&["SET", "free", "5"]);
    bare.ask::<()>(&["ZADD", "used", "30", "late", "20", "soon"]);
    let keys = ["plain", "rw", "free", "missing", "free", "plain"];
    let found: Vec<Vec<String>> =
        bare.reply("lock_holders", &keys, &["", "", "used", "", "", "plain"]);
    assert_eq!(found[0], ["", "owner", "1"]);
    let pairs: BTreeSet<_> = found[1][1..].chunks(2).map(|it| (&*it[0], &*it[1])).collect();
    assert_eq!((&*found[1][0], pairs), ("read", [("mode", "read"), ("reader", "1")].into()));
    assert_eq!(found[2], ["", "soon", "20", "late", "30"]);
    assert_eq!((&found[3][..], found[4].len(), found[5].len()), (&[String::new()][..], 0, 0));

    // A sample of many holders.
    for number in 0..100 {
        bare.ask::<()>(&["HSET", "many", &format!("reader-{number}"), "1"]);
        bare.ask::<()>(&["ZADD", "all", &number.to_string(), &format!("permit-{number}")]);
    }
    let found: Vec<Vec<String>> = bare.reply("lock_holders", &["many", "free"], &["", "all"]);
    assert_eq!((found[0].len(), found[1].len()), (1 + 2 * 64, 1 + 2 * 64));
    assert_eq!(found[1][1], "permit-0");
}

// ---------------------------------------------------------------------------------
// Records of clients.

#[test]
fn client_record_writes_a_record_that_expires() {
    documents("client_record", &["1"]);
    let mut bare = Bare::start();
    let write = |bare: &mut Bare, lifetime: &str, label: &str| {
        let args = [lifetime, "host", "web-1", "pid", "42", "start", "1700000000000"];
        let label = (!label.is_empty()).then_some(["label", label]);
        let args = [&args[..], label.as_ref().map_or(&[][..], |label| label)].concat();
        assert_eq!(bare.call("client_record", &[LOCK], &args), 1);
    };
    write(&mut bare, "60000", "");
    let unlabelled = [("host", "web-1"), ("pid", "42"), ("start", "1700000000000")];
    assert_eq!(fields(&bare.server), map(unlabelled));
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    // A repeated write changes nothing but the expiry.
    write(&mut bare, "600000", "billing");
    assert_eq!(fields(&bare.server)["label"], "billing");
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    bare.server.ask::<()>(&["SET", LOCK, "a text"]);
    let error = bare.try_call::<i64>("client_record", &[LOCK], &["1", "", "", "", "", "", ""]);
    assert!(is_refused_as("WRONGTYPE", &error.expect_err("no hash")));
}
