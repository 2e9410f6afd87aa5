//! Every documented answer of the scripts of the kinds other than the plain lock, against
//! a real server.

mod bare;
mod support;

use std::collections::BTreeMap;

use bare::*;
use support::{Server, exists};

const WRITER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1:write";
const OTHER_WRITER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:2:write";
const RW_CHANNEL: &str = "redisson_rwlock:{the-lock}";
const COUNTER: &str = "redisson_lock_token:{the-lock}";
const QUEUE: [&str; 3] =
    [LOCK, "redisson_lock_queue:{the-lock}", "redisson_lock_timeout:{the-lock}"];
const NO_END: &str = "-1 held without a time to live";
const TOLD: &str = "else how many subscribers were told";

fn fields(server: &Server) -> BTreeMap<String, String> {
    server.ask(&["HGETALL", LOCK])
}

fn map<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<String, String> {
    fields.into_iter().map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}

fn timeout(owner: &str) -> String {
    format!("{{the-lock}}:{owner}:rwlock_timeout:1")
}

fn micros(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = server.ask(&["TIME"]);
    seconds * 1_000_000 + micros
}

#[track_caller]
fn documents(script: &str, answers: &[&str]) {
    assert_eq!(documented_answers(script), answers, "each is tried below");
}

/// What a caller that is refused publishes reaches the channel; nothing else is published.
#[track_caller]
fn wakes_only_if_refused(bare: &mut Bare, script: &str, keys: &[&str], args: &[&str]) {
    let wanting = [args, &["wake", "the channel"]].concat();
    let mut ear = Ear::on(&bare.server, "wake");
    bare.server.reset_stats();
    assert!(bare.call(script, keys, &wanting) > -2, "it is refused");
    assert_eq!(ear.hear(), ("wake".to_owned(), "the channel".to_owned()));
    bare.call(script, keys, args);
    assert_eq!(bare.server.calls("publish"), 1, "{script}");
}

// ---------------------------------------------------------------------------------
// All kinds.

/// A late copy of an acquire must not undo an `extend`.
#[test]
fn no_repeated_acquire_shortens_a_lease() {
    let mut bare = Bare::start();
    let reads = timeout(MINE);
    let scripts: [(&str, &[&str], &[&str]); 7] = [
        ("plain_acquire", &[LOCK], &["60000", MINE]),
        ("fenced_acquire", &[LOCK, COUNTER], &["60000", MINE, "1"]),
        ("fair_acquire", &QUEUE, &["60000", MINE, "300000", "300000"]),
        ("read_acquire", &[LOCK, &reads], &["60000", MINE, ""]),
        ("write_acquire", &[LOCK], &["60000", WRITER]),
        ("named_acquire", &[LOCK], &["60000", "tx-42", MINE]),
        ("multi_acquire", &[LOCK, "another"], &["60000", MINE, MINE]),
    ];
    let acquires = bare::scripts().into_iter().filter(|script| script.name.ends_with("_acquire"));
    assert_eq!(acquires.count(), scripts.len(), "all of them");
    for (script, keys, args) in scripts {
        for _ in 0..2 {
            bare.try_call::<redis::Value>(script, keys, args).expect("it is free, or its own");
            for key in bare.server.keys() {
                bare.ask::<()>(&["PEXPIRE", &key, "600000"]);
            }
        }
        bare.try_call::<redis::Value>(script, keys, args).expect("its own");
        let keys = bare.server.keys();
        keys.iter().for_each(|key| assert_left(&bare.server, key, 300_000..=600_000));
        bare.ask::<()>(&["FLUSHALL"]);
    }
}

// ---------------------------------------------------------------------------------
// Fenced.

#[test]
fn fenced_acquire_answers_as_documented_and_its_tokens_grow() {
    let left = "else ms that the holder has left, or acquired: the first token of the block, \
                below zero";
    documents("fenced_acquire", &[NO_END, left]);
    let mut bare = Bare::start();
    let keys = [LOCK, COUNTER];
    let counter = |bare: &Bare| bare.server.ask::<i64>(&["GET", COUNTER]);

    // Free, and no counter: the server's time.
    let before = micros(&bare.server);
    let first = -bare.call("fenced_acquire", &keys, &["60000", MINE, "3"]);
    assert!((before..=micros(&bare.server)).contains(&first), "{first}");
    assert_eq!(counter(&bare), first + 2, "a block of three");
    assert_eq!(left_of(&bare, COUNTER), -1, "the counter has no end");
    bare.is_held_by(MINE);
    assert_left(&bare.server, LOCK, 30_000..=60_000);

    // One's own field again: the same tokens.
    assert_eq!(bare.call("fenced_acquire", &keys, &["600000", MINE, "3"]), -first);
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    assert_eq!(counter(&bare), first + 2);
    // Unless the counter was lost in between.
    bare.server.ask::<()>(&["DEL", COUNTER]);
    let again = -bare.call("fenced_acquire", &keys, &["60000", MINE, "3"]);
    assert!(again > first, "{again}");
    bare.is_held_by(MINE);

    // Held by another, with an end and without.
    let left = bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]);
    assert!((300_000..=600_000).contains(&left), "{left}");
    wakes_only_if_refused(&mut bare, "fenced_acquire", &keys, &["60000", OTHER, "1"]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]), -1);
    assert_eq!(counter(&bare), again + 2, "who is refused takes none");

    // A counter ahead of the clock counts on, in decimal.
    let ahead = "4000000000000000";
    bare.server.ask::<()>(&["SET", COUNTER, ahead, "PX", "60000"]);
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]), -4_000_000_000_000_001);
    assert_eq!(bare.server.ask::<String>(&["GET", COUNTER]), "4000000000000001");
    assert_eq!(left_of(&bare, COUNTER), -1, "it is never lost by an end");

    // One that is behind the clock is overtaken.
    bare.server.ask::<()>(&["SET", COUNTER, "7"]);
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert!(-bare.call("fenced_acquire", &keys, &["60000", OTHER, "1"]) > before);
}

fn left_of(bare: &Bare, key: &str) -> i64 {
    left(&bare.server, key)
}

// ---------------------------------------------------------------------------------
// Spin.

#[test]
fn spin_release_and_force_answer_as_documented() {
    documents("spin_release", &["-1 not held by this owner", "0 released"]);
    documents("spin_force_unlock", &["-1 it was free", "0 freed"]);
    let mut bare = Bare::start();
    bare.server.reset_stats();
    assert_eq!(bare.call("spin_release", &[LOCK], &[MINE]), -1);
    assert_eq!(bare.call("spin_force_unlock", &[LOCK], &[]), -1);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("spin_release", &[LOCK], &[MINE]), -1);
    bare.is_held_by(OTHER);
    assert_eq!(bare.call("spin_release", &[LOCK], &[OTHER]), 0);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("spin_force_unlock", &[LOCK], &[]), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    assert_eq!(bare.server.calls("publish"), 0);
    bare.is_refused_for_a_text("spin_release", &[MINE]);
    bare.is_refused_for_a_text("spin_force_unlock", &[]);
}

// ---------------------------------------------------------------------------------
// Reading and writing.

fn read(bare: &mut Bare, lease: &str, owner: &str) -> i64 {
    // The write hold under which it may read, of the same thread.
    let writer = format!("{owner}:write");
    bare.call("read_acquire", &[LOCK, &timeout(owner)], &[lease, owner, &writer])
}

fn end_read(bare: &mut Bare, owner: &str) -> i64 {
    let args = [owner, RW_CHANNEL, "0", "{the-lock}:"];
    bare.call("read_release", &[LOCK, &timeout(owner)], &args)
}

fn write(bare: &mut Bare, lease: &str, owner: &str) -> i64 {
    bare.call("write_acquire", &[LOCK], &[lease, owner])
}

fn end_write(bare: &mut Bare, owner: &str) -> i64 {
    bare.call("write_release", &[LOCK], &[owner, RW_CHANNEL, "1", "{the-lock}:"])
}

#[test]
fn write_acquire_and_release_answer_as_documented() {
    documents("write_acquire", &["-2 acquired", NO_END, "else ms that the holders have left"]);
    documents("write_release", &["-1 not held by this owner", TOLD]);
    let mut bare = Bare::start();
    assert_eq!(end_write(&mut bare, WRITER), -1);
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    assert_eq!(fields(&bare.server), map([("mode", "write"), (WRITER, "1")]));
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert_eq!(write(&mut bare, "600000", WRITER), -2, "again");
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    assert!(write(&mut bare, "60000", OTHER_WRITER) >= 300_000);
    wakes_only_if_refused(&mut bare, "write_acquire", &[LOCK], &["60000", OTHER_WRITER]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(write(&mut bare, "60000", OTHER_WRITER), -1);
    assert_eq!(end_write(&mut bare, OTHER_WRITER), -1);

    let mut ear = Ear::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_write(&mut bare, WRITER), 1);
    assert_eq!(ear.hear(), (RW_CHANNEL.to_owned(), "1".to_owned()));
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    bare.is_refused_for_a_text("write_acquire", &["60000", WRITER]);
    bare.is_refused_for_a_text("write_release", &[WRITER, RW_CHANNEL, "1", "{the-lock}:"]);
}

#[test]
fn read_acquire_and_release_answer_as_documented() {
    documents("read_acquire", &["-2 acquired", NO_END, "else ms that the holder has left"]);
    let kept = "0 released, and others hold it";
    documents("read_release", &["-1 not held by this owner", kept, TOLD]);
    let mut bare = Bare::start();
    assert_eq!(end_read(&mut bare, MINE), -1);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(fields(&bare.server), map([("mode", "read"), (MINE, "1")]));
    assert_eq!(bare.server.ask::<String>(&["GET", &timeout(MINE)]), "1");
    assert_left(&bare.server, &timeout(MINE), 30_000..=60_000);

    // A shorter lease beside it shortens nothing; a longer one does not stay behind.
    assert_eq!(read(&mut bare, "10000", OTHER), -2);
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert_left(&bare.server, &timeout(OTHER), 5_000..=10_000);
    assert!(write(&mut bare, "60000", WRITER) > 30_000, "readers keep a writer out");
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_left(&bare.server, LOCK, 5_000..=10_000);
    assert_eq!(bare.server.keys(), [LOCK, &timeout(OTHER)].map(str::to_owned).to_vec().sorted());

    // Again: the full lease anew, the count stays.
    assert_eq!(read(&mut bare, "60000", OTHER), -2);
    assert_eq!(fields(&bare.server), map([("mode", "read"), (OTHER, "1")]));
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    let mut ear = Ear::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_read(&mut bare, OTHER), 1);
    assert_eq!(ear.hear(), (RW_CHANNEL.to_owned(), "0".to_owned()));
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // Another writes: with an end, and without. A plain lock of that name too.
    assert_eq!(write(&mut bare, "60000", OTHER_WRITER), -2);
    assert!(read(&mut bare, "60000", MINE) > 30_000);
    let keys = [LOCK, &timeout(MINE)];
    wakes_only_if_refused(&mut bare, "read_acquire", &keys, &["60000", MINE, WRITER]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(read(&mut bare, "60000", MINE), -1);
    bare.server.ask::<()>(&["DEL", LOCK]);
    hold(&bare.server, LOCK, OTHER, "60000");
    assert!(read(&mut bare, "60000", MINE) > 30_000, "a hash without a mode is no free lock");
    assert!(write(&mut bare, "60000", WRITER) > 30_000);
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl Sorted for Vec<String> {
    fn sorted(mut self) -> Vec<String> {
        self.sort();
        self
    }
}

/// Traps of Redisson's: a read release shortens the lease of its own writer, and nobody
/// is told when a writer goes on reading.
#[test]
fn who_writes_may_read_and_goes_on_reading() {
    let mut bare = Bare::start();
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    assert_eq!(read(&mut bare, "5000", MINE), -2, "under its own write hold");
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert_eq!(fields(&bare.server), map([("mode", "write"), (WRITER, "1"), (MINE, "1")]));
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert!(read(&mut bare, "60000", OTHER) > 0, "another may not");

    assert_eq!(read(&mut bare, "5000", MINE), -2);
    let mut ear = Ear::on(&bare.server, RW_CHANNEL);
    assert_eq!(end_write(&mut bare, WRITER), 1);
    assert_eq!(ear.hear(), (RW_CHANNEL.to_owned(), "1".to_owned()));
    assert_eq!(fields(&bare.server), map([("mode", "read"), (MINE, "1")]));
    assert_left(&bare.server, LOCK, 1..=5_000);
    assert_eq!(read(&mut bare, "60000", OTHER), -2, "others may read now");
}

#[test]
fn a_reader_whose_lease_is_over_keeps_nobody_out_when_the_last_one_goes() {
    let mut bare = Bare::start();
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(read(&mut bare, "60000", OTHER), -2);
    bare.server.ask::<()>(&["DEL", &timeout(OTHER)]);
    assert_eq!(end_read(&mut bare, MINE), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
}

#[test]
fn read_renew_answers_as_documented_and_never_shortens() {
    let told = "the positions (from 1) of the locks that are not held by their owners any more";
    documents("read_renew", &[told]);
    let mut bare = Bare::start();
    let renew = |bare: &mut Bare, lease: &str| -> Vec<i64> {
        bare.try_call("read_renew", &[LOCK, "text", "gone"], &[lease, MINE, MINE, MINE])
            .expect("a list")
    };
    bare.server.ask::<()>(&["SET", "text", "no lock"]);
    assert_eq!(renew(&mut bare, "60000"), [1, 2, 3]);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert_eq!(renew(&mut bare, "600000"), [2, 3]);
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    assert_left(&bare.server, &timeout(MINE), 300_000..=600_000);
    assert_eq!(renew(&mut bare, "60000"), [2, 3]);
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    assert_left(&bare.server, &timeout(MINE), 300_000..=600_000);
    // A time-out key that is gone is set again, but not by a look.
    bare.server.ask::<()>(&["DEL", &timeout(MINE)]);
    assert_eq!(renew(&mut bare, "-2"), [2, 3]);
    assert!(!exists(&bare.server, &timeout(MINE)));
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    assert_eq!(renew(&mut bare, "60000"), [2, 3]);
    assert_left(&bare.server, &timeout(MINE), 30_000..=60_000);
}

#[test]
fn read_and_write_force_and_left_answer_as_documented() {
    documents("write_force_unlock", &["-1 nobody held it for writing", TOLD]);
    documents("read_force_unlock", &["-1 nobody held it for reading", TOLD]);
    documents("write_ttl", &["-2 nobody writes", NO_END, "else ms that the holder has left"]);
    documents("read_ttl", &["-2 nobody reads", NO_END, "else ms that the holders have left"]);
    let mut bare = Bare::start();
    let left =
        |bare: &mut Bare| ["read_ttl", "write_ttl"].map(|name| bare.call(name, &[LOCK], &[]));
    let force = |bare: &mut Bare, name, message| {
        bare.call(name, &[LOCK], &[RW_CHANNEL, message, "{the-lock}:"])
    };
    assert_eq!(left(&mut bare), [-2, -2]);
    assert_eq!(force(&mut bare, "read_force_unlock", "0"), -1);
    assert_eq!(force(&mut bare, "write_force_unlock", "1"), -1);

    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    let [reads, writes] = left(&mut bare);
    assert!(reads == -2 && writes > 30_000, "{reads} {writes}");
    assert_eq!(force(&mut bare, "read_force_unlock", "0"), -1);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    assert!(left(&mut bare)[0] > 30_000, "its writer reads");
    let mut ear = Ear::on(&bare.server, RW_CHANNEL);
    assert_eq!(force(&mut bare, "write_force_unlock", "1"), 1);
    assert_eq!(ear.hear().1, "1");
    assert_eq!(left(&mut bare), [-2, -2]);

    assert_eq!(read(&mut bare, "60000", MINE), -2);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(left(&mut bare), [-1, -2]);
    assert_eq!(force(&mut bare, "write_force_unlock", "1"), -1);
    assert_eq!(force(&mut bare, "read_force_unlock", "0"), 1);
    assert_eq!(ear.hear().1, "0");
    assert_eq!(write(&mut bare, "60000", WRITER), -2);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(left(&mut bare), [-2, -1]);
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

/// In how many seconds each that waits is taken for dead.
fn deaths(bare: &Bare) -> BTreeMap<String, i64> {
    let now = micros(&bare.server) / 1000;
    let all: Vec<(String, i64)> = bare.server.ask(&["ZRANGE", QUEUE[2], "0", "-1", "WITHSCORES"]);
    all.into_iter().map(|(owner, at)| (owner, (at - now + 500) / 1000)).collect()
}

#[track_caller]
fn dies_in(bare: &Bare, owner: &str, seconds: i64) {
    let deaths = deaths(bare);
    let found = deaths.get(owner).copied().unwrap_or(i64::MIN);
    assert!((seconds - 20..=seconds + 1).contains(&found), "{owner} in {found} s, not {seconds}");
}

#[test]
fn fair_acquire_answers_as_documented() {
    let left = "else ms that the holder has left, or who is first in the queue";
    documents("fair_acquire", &["-2 acquired", NO_END, left]);
    let mut bare = Bare::start();
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    assert_eq!(take(&mut bare, "a", "300000"), -2, "again");
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert!(take(&mut bare, "b", "0") > 30_000, "it does not wait");
    assert_eq!(bare.server.keys(), [LOCK]);

    // Who waits stands in the queue once, and is told what the holder has left, or the first.
    let left = take(&mut bare, "b", "300000");
    assert!((30_000..=60_000).contains(&left), "{left}");
    dies_in(&bare, "b", 360);
    assert!(take(&mut bare, "c", "300000") > 300_000, "it waits for b");
    dies_in(&bare, "c", 660);
    take(&mut bare, "b", "300000");
    assert_eq!(queue(&bare), ["b", "c"]);
    assert_left(&bare.server, QUEUE[1], 3_600_000..=4_300_000);
    assert_left(&bare.server, QUEUE[2], 3_600_000..=4_300_000);
    wakes_only_if_refused(&mut bare, "fair_acquire", &QUEUE, &["60000", "b", "300000", "300000"]);

    // A lock without an end.
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(take(&mut bare, "b", "300000"), -1);
    assert_eq!(take(&mut bare, "d", "0"), -1);

    // Free: only the first gets it, whoever asks; the others move up.
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert!(take(&mut bare, "d", "0") > 100_000, "nobody overtakes");
    dies_in(&bare, "b", 360);
    let told = take(&mut bare, "c", "300000");
    assert!(told > 100_000, "c is not to ask without pause: {told} ms");
    dies_in(&bare, "b", 300);
    assert_eq!(take(&mut bare, "b", "300000"), -2);
    assert_eq!(queue(&bare), ["c"]);
    dies_in(&bare, "c", 360);
}

/// Redisson's waiters take from those behind them what they have added, however soon they are
/// taken for dead beside a free lock.
#[test]
fn who_comes_behind_redissons_waiters_outlives_their_subtractions() {
    let mut bare = Bare::start();
    let short = |bare: &mut Bare, owner: &str| {
        bare.call("fair_acquire", &QUEUE, &["60000", owner, "30000", "30000"])
    };
    let death = (micros(&bare.server) / 1000 + 310_000).to_string();
    bare.server.ask::<()>(&["RPUSH", QUEUE[1], "theirs"]);
    bare.server.ask::<()>(&["ZADD", QUEUE[2], &death, "theirs"]);
    short(&mut bare, "ours");
    dies_in(&bare, "theirs", 30);
    dies_in(&bare, "ours", 340);
    // It gets the lock.
    bare.server.ask::<()>(&["LPOP", QUEUE[1]]);
    bare.server.ask::<()>(&["ZREM", QUEUE[2], "theirs"]);
    bare.server.ask::<()>(&["ZINCRBY", QUEUE[2], "-300000", "ours"]);
    bare.server.ask::<()>(&["HSET", LOCK, "theirs", "1"]);
    short(&mut bare, "another");
    assert_eq!(queue(&bare), ["ours", "another"]);
}

/// However long the lock is held: who asks in time keeps its place, behind whoever stands
/// before it.
#[test]
fn a_poll_keeps_a_place_in_the_fair_queue() {
    let mut bare = Bare::start();
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    take(&mut bare, "b", "300000");
    take(&mut bare, "c", "300000");
    let now = micros(&bare.server) / 1000;
    let soon = |seconds: i64| (now + seconds * 1000).to_string();
    bare.server.ask::<()>(&["ZADD", QUEUE[2], &soon(100), "b", &soon(100), "c"]);
    take(&mut bare, "b", "300000");
    dies_in(&bare, "b", 360);
    take(&mut bare, "c", "300000");
    dies_in(&bare, "c", 660);
    // Who has half of its time left changes nothing.
    bare.server.ask::<()>(&["ZADD", QUEUE[2], &soon(200), "b"]);
    take(&mut bare, "b", "300000");
    dies_in(&bare, "b", 200);
    assert_eq!(queue(&bare), ["b", "c"]);
}

#[test]
fn the_dead_at_the_head_of_the_fair_queue_are_passed_over() {
    let mut bare = Bare::start();
    let die = |bare: &Bare, owner: &str| bare.server.ask::<()>(&["ZADD", QUEUE[2], "1", owner]);
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    ["b", "c", "d", "e"].iter().for_each(|owner| {
        take(&mut bare, owner, "300000");
    });
    ["b", "c", "e"].iter().for_each(|owner| die(&bare, owner));
    let mut ear = Ear::on(&bare.server, "own:d");
    assert_eq!(end_fair(&mut bare, "a"), 1, "d is told");
    assert_eq!(ear.hear(), ("own:d".to_owned(), "0".to_owned()));
    assert_eq!(queue(&bare), ["d", "e"]);
    die(&bare, "d");
    assert_eq!(take(&mut bare, "f", "0"), -2, "all are dead");
    assert_eq!(bare.server.keys(), [LOCK]);
}

#[test]
fn fair_release_force_and_leave_answer_as_documented() {
    documents("fair_release", &["-1 not held by this owner", TOLD]);
    documents("fair_force_unlock", &["-1 it was free", TOLD]);
    let nobody = "0 nobody had to be told";
    documents("fair_leave", &["-1 it neither held nor waited", nobody, TOLD]);
    let mut bare = Bare::start();
    let force = |bare: &mut Bare| bare.call("fair_force_unlock", &QUEUE, &["own:", "0"]);
    assert_eq!(end_fair(&mut bare, "a"), -1, "a lock that is gone is not released");
    assert_eq!(force(&mut bare), -1);
    assert_eq!(leave(&mut bare, "a", "300000"), -1);

    assert_eq!(take(&mut bare, "a", "300000"), -2);
    assert_eq!(end_fair(&mut bare, "a"), 0, "nobody waits");
    assert_eq!(take(&mut bare, "a", "300000"), -2);
    ["b", "c", "d"].iter().for_each(|owner| {
        take(&mut bare, owner, "300000");
    });
    assert_eq!(end_fair(&mut bare, "b"), -1);

    // From the middle: those behind move up. The lock is held: nobody is told.
    assert_eq!(leave(&mut bare, "c", "300000"), 0);
    assert_eq!(queue(&bare), ["b", "d"]);
    dies_in(&bare, "b", 360);
    dies_in(&bare, "d", 660);
    // The first, when the lock is free: it may have had the message.
    let mut ear = Ear::on(&bare.server, "own:d");
    assert_eq!(end_fair(&mut bare, "a"), 0, "b does not listen");
    assert_eq!(leave(&mut bare, "b", "300000"), 1);
    assert_eq!(ear.hear(), ("own:d".to_owned(), "0".to_owned()));
    // One that had got the lock by then.
    assert_eq!(take(&mut bare, "d", "300000"), -2);
    take(&mut bare, "e", "300000");
    assert_eq!(leave(&mut bare, "d", "300000"), 0, "e does not listen");
    assert_eq!(take(&mut bare, "e", "300000"), -2);
    assert_eq!(force(&mut bare), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    let text = ["a", "own:", "0"];
    bare.is_refused_for_a_text("fair_release", &text);
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
    documents("named_acquire", &["-2 acquired", NO_END, "else ms that the holder has left"]);
    let mut bare = Bare::start();
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2);
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2, "the same hold");
    assert_eq!(fields(&bare.server), map([("tx-42", "1"), (MINE, "0")]));
    assert_eq!(enter(&mut bare, AGAIN, "10000", "tx-42"), -2);
    assert_eq!(fields(&bare.server), map([("tx-42", "2"), (MINE, "0"), (AGAIN, "0")]));
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert!(enter(&mut bare, OTHER, "60000", "tx-43") > 30_000);
    wakes_only_if_refused(&mut bare, "named_acquire", &[LOCK], &["60000", "tx-43", OTHER]);
    bare.server.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(enter(&mut bare, OTHER, "60000", "tx-43"), -1);
    assert_eq!(fields(&bare.server).len(), 3, "a refused caller leaves nothing");
    bare.is_refused_for_a_text("named_acquire", &["60000", "tx-42", MINE]);
}

#[test]
fn named_release_takes_off_each_hold_once() {
    let left = "0 other holds are left";
    documents("named_release", &["-1 the hold is not counted", left, TOLD]);
    let mut bare = Bare::start();
    let mut ear = Ear::on(&bare.server, CHANNEL);
    assert_eq!(enter(&mut bare, MINE, "60000", "tx-42"), -2);
    assert_eq!(enter(&mut bare, AGAIN, "60000", "tx-42"), -2);
    assert_eq!(end_named(&mut bare, MINE), 0);
    assert_eq!(end_named(&mut bare, MINE), -1, "the same hold");
    assert_eq!(fields(&bare.server), map([("tx-42", "1"), (AGAIN, "0")]));
    assert_eq!(end_named(&mut bare, AGAIN), 1);
    assert_eq!(ear.hear(), (CHANNEL.to_owned(), "0".to_owned()));
    assert!(!bare.server.ask::<bool>(&["EXISTS", LOCK]));
    assert_eq!(end_named(&mut bare, AGAIN), -1);
    bare.is_refused_for_a_text("named_release", &["tx-42", MINE, CHANNEL, "0"]);
}

#[test]
fn named_unlock_takes_off_the_oldest_hold_or_a_count_without_one() {
    let left = "0 other holds are left";
    documents("named_unlock", &["-1 not held by this holder", left, TOLD]);
    let mut bare = Bare::start();
    let mut ear = Ear::on(&bare.server, CHANNEL);
    assert_eq!(end_any(&mut bare, "tx-42"), -1);
    for hold in [AGAIN, MINE] {
        assert_eq!(enter(&mut bare, hold, "60000", "tx-42"), -2);
    }
    assert_eq!(end_any(&mut bare, "tx-43"), -1);
    assert_eq!(end_any(&mut bare, MINE), -1, "a hold is no holder");
    assert_eq!(end_any(&mut bare, "tx-42"), 0);
    assert_eq!(fields(&bare.server), map([("tx-42", "1"), (MINE, "0")]));
    assert_eq!(end_any(&mut bare, "tx-42"), 1);
    assert_eq!(ear.hear(), (CHANNEL.to_owned(), "0".to_owned()));
    assert!(!bare.server.ask::<bool>(&["EXISTS", LOCK]));
    // Another library counts without fields for its holds.
    bare.server.ask::<()>(&["HSET", LOCK, "tx-42", "2"]);
    assert_eq!(end_any(&mut bare, "tx-42"), 0);
    assert_eq!(end_any(&mut bare, "tx-42"), 1);
    bare.is_refused_for_a_text("named_unlock", &["tx-42", CHANNEL, "0"]);
}

/// Every name is only a name: no field of the hash that is something else lets its caller in.
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
    ["mode", "write", WRITER, MINE, "nobody"].iter().for_each(|name| refused(&mut bare, name));
    bare.server.ask::<()>(&["DEL", LOCK]);
    assert_eq!(read(&mut bare, "60000", MINE), -2);
    ["mode", "read", MINE, "nobody"].iter().for_each(|name| refused(&mut bare, name));
}

/// The reverse: a lock that is held under any such name is not free to other kinds.
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
        let left = ["read_ttl", "write_ttl"].map(|script| bare.call(script, &[LOCK], &[]));
        assert_eq!(left, [-2, -2], "{name}");
        let force = ["read_force_unlock", "write_force_unlock"]
            .map(|script| bare.call(script, &[LOCK], &[RW_CHANNEL, "0", "{the-lock}:"]));
        assert_eq!(force, [-1, -1], "{name}");
        assert_eq!(fields(&bare.server), before);
        bare.server.ask::<()>(&["DEL", LOCK]);
    }
}

/// What a step of the sequences below does, to a hold or a holder by its number.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// For the first time, again after a lost reply, or late after the release.
    Acquire(usize),
    /// In time, late, or as a repetition.
    Release(usize),
    Renew(usize),
    /// By name, whoever counted it.
    Unlock(usize),
    /// Redisson enters, or leaves.
    Enter(usize),
    Leave(usize),
    /// The lease ends, or the server loses its data.
    Lapse,
}

/// Which holds count, and how much Redisson counts, under the one name that has the lock.
#[derive(Default)]
struct Model {
    holder: usize,
    holds: Vec<usize>,
    more: usize,
}

impl Model {
    /// There are more holds than holders.
    fn holder_of(hold: usize) -> usize {
        hold % 2
    }

    fn count(&self) -> usize {
        self.holds.len() + self.more
    }

    fn admits(&mut self, holder: usize) -> bool {
        let admitted = self.count() == 0 || self.holder == holder;
        self.holder = if admitted { holder } else { self.holder };
        admitted
    }

    fn left(&self) -> i64 {
        if self.count() > 0 { 0 } else { 1 }
    }

    /// What the server has to answer: a time to live counts as 0, a listener is told.
    fn takes(&mut self, step: Step) -> i64 {
        match step {
            Step::Acquire(hold) if self.holds.contains(&hold) => -2,
            Step::Acquire(hold) if self.admits(Model::holder_of(hold)) => {
                self.holds.push(hold);
                -2
            }
            Step::Enter(holder) if self.admits(holder) => {
                self.more += 1;
                -2
            }
            Step::Acquire(_) | Step::Enter(_) => 0,
            Step::Release(hold) | Step::Renew(hold) if !self.holds.contains(&hold) => -1,
            Step::Renew(_) => 0,
            Step::Release(hold) => {
                self.holds.retain(|other| *other != hold);
                self.left()
            }
            Step::Unlock(holder) if self.count() == 0 || self.holder != holder => -1,
            Step::Unlock(_) if self.holds.is_empty() => {
                self.more -= 1;
                self.left()
            }
            Step::Unlock(_) => {
                self.holds.remove(0);
                self.left()
            }
            Step::Leave(holder) if self.holder != holder || self.more == 0 => -1,
            Step::Leave(_) => {
                self.more -= 1;
                self.left()
            }
            Step::Lapse => {
                *self = Model::default();
                0
            }
        }
    }

    fn fields(&self) -> BTreeMap<String, String> {
        let holds = self.holds.iter().map(|hold| (format!("hold:{hold}"), "0".to_owned()));
        let count = (self.count() > 0).then(|| (self.holder.to_string(), self.count().to_string()));
        holds.chain(count).collect()
    }
}

/// As Redisson's scripts do it. Its threads end what they have; the model says what that is.
fn redisson(bare: &mut Bare, holder: &str, step: i64) -> i64 {
    let mut field = |words: &[&str]| bare.ask::<i64>(words);
    if step > 0 {
        let entered = field(&["EXISTS", LOCK]) == 0 || field(&["HEXISTS", LOCK, holder]) == 1;
        if entered {
            field(&["HINCRBY", LOCK, holder, "1"]);
            field(&["PEXPIRE", LOCK, "60000"]);
        }
        return if entered { -2 } else { 0 };
    }
    if field(&["HINCRBY", LOCK, holder, "-1"]) > 0 {
        return 0;
    }
    field(&["DEL", LOCK])
}

fn take_step(bare: &mut Bare, step: Step, expected: i64) -> i64 {
    let hold = |number: usize| format!("hold:{number}");
    let answer = match step {
        Step::Acquire(number) => {
            let holder = Model::holder_of(number).to_string();
            enter(bare, &hold(number), "60000", &holder)
        }
        Step::Release(number) => {
            let holder = Model::holder_of(number).to_string();
            bare.call("named_release", &[LOCK], &[&holder, &hold(number), CHANNEL, "0"])
        }
        Step::Renew(number) => {
            let lost: Vec<i64> = bare
                .try_call("plain_renew", &[LOCK], &["60000", &hold(number)])
                .expect("an answer");
            return if lost.is_empty() { 0 } else { -1 };
        }
        Step::Unlock(holder) => end_any(bare, &holder.to_string()),
        Step::Enter(holder) => redisson(bare, &holder.to_string(), 1),
        Step::Leave(_) if expected == -1 => -1,
        Step::Leave(holder) => redisson(bare, &holder.to_string(), -1),
        Step::Lapse => bare.ask::<i64>(&["DEL", LOCK]).min(0),
    };
    // A time to live.
    if answer > 1 { 0 } else { answer }
}

/// A count is that of the holds that were granted and have not ended, in whatever order
/// acquires, their repetitions and late copies, renewals, releases and the ends of leases come.
#[test]
fn the_count_of_a_holder_is_that_of_its_holds_in_every_order() {
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
    let mut bare = Bare::start();
    let _ear = Ear::on(&bare.server, CHANNEL);
    let config = ProptestConfig { cases: 200, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let bare = std::cell::RefCell::new(&mut bare);
    let outcome = runner.run(&proptest::collection::vec(step, 1..40), |steps| {
        let mut bare = bare.borrow_mut();
        let mut model = Model::default();
        bare.ask::<i64>(&["DEL", LOCK]);
        for step in steps {
            let expected = model.takes(step);
            prop_assert_eq!(take_step(&mut bare, step, expected), expected, "{:?}", step);
            let fields: BTreeMap<String, String> = bare.ask(&["HGETALL", LOCK]);
            prop_assert_eq!(fields, model.fields(), "after {:?}", step);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
