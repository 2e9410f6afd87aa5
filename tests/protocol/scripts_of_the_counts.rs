//! The scripts of the plain semaphore and the latch: every documented reply, repeated requests,
//! late copies, Redisson's operations, damaged keys, and a full server.

use redis::{RedisResult, Value};

use crate::harness::bare::*;
use crate::harness::redisson::{self, LATCH, LATCH_CHANNEL, PERMITS, SEMAPHORE_CHANNEL};
use crate::harness::{Cluster, Server, pttl};

const ROUND: &str = "leasehold_round:{the-latch}";
const LIFETIME: &str = "600000";
const ROUND_LIFETIME: &str = "86400000";
const RECEIVED: &str = "the number of subscribers that received the message, 0 without a message";

fn record(number: u32) -> String {
    format!("leasehold_request:{{the-permits}}:6ba7b810-9dad-41d1-80b4-00c04fd430c8:{number}")
}

fn latch_record(number: u32) -> String {
    format!("leasehold_request:{{the-latch}}:6ba7b810-9dad-41d1-80b4-00c04fd430c8:{number}")
}

#[track_caller]
fn take(bare: &mut Bare, request: u32, permits: &str) -> (i64, i64) {
    bare.reply("count_take", &[PERMITS, &record(request)], &[permits, LIFETIME])
}

fn try_add(bare: &mut Bare, request: u32, permits: &str) -> RedisResult<i64> {
    let args = [permits, LIFETIME, SEMAPHORE_CHANNEL];
    bare.try_call("count_add", &[PERMITS, &record(request)], &args)
}

#[track_caller]
fn add(bare: &mut Bare, request: u32, permits: &str) -> i64 {
    try_add(bare, request, permits).unwrap_or_else(|error| panic!("{permits}: {error}"))
}

#[track_caller]
fn drain(bare: &mut Bare, request: u32) -> String {
    bare.reply("count_drain", &[PERMITS, &record(request)], &[LIFETIME])
}

#[track_caller]
fn set(bare: &mut Bare, request: u32, permits: &str) -> i64 {
    let args = [permits, LIFETIME, SEMAPHORE_CHANNEL];
    bare.call("count_set", &[PERMITS, &record(request)], &args)
}

#[track_caller]
fn undo(bare: &mut Bare, request: u32) -> i64 {
    bare.call("count_undo", &[PERMITS, &record(request)], &[LIFETIME, SEMAPHORE_CHANNEL])
}

#[track_caller]
fn close(bare: &mut Bare, record: &str) -> i64 {
    bare.call("request_close", &[record], &[LIFETIME])
}

fn free(bare: &mut Bare) -> Option<i64> {
    bare.ask(&["GET", PERMITS])
}

#[track_caller]
fn assert_message(listener: &mut Listener, channel: &str, payload: &str) {
    assert_eq!(listener.next_message(), (channel.to_owned(), payload.to_owned()));
}

#[track_caller]
fn assert_recorded(bare: &Bare, record: &str) {
    assert_ttl(&bare.server, record, 300_000..=600_000);
}

// ---------------------------------------------------------------------------------
// The plain semaphore.

#[test]
fn count_take_replies_as_documented() {
    let replies = ["1 1 taken", "0 refused", "2 the number of permits that are left, at least 0"];
    documents("count_take", &replies);
    let mut bare = Bare::start();

    // Without a key, with too few permits, and with enough.
    assert_eq!(take(&mut bare, 1, "1"), (0, 0));
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    bare.ask::<()>(&["SET", PERMITS, "5"]);
    assert_eq!(take(&mut bare, 1, "6"), (0, 5));
    assert_eq!(bare.server.keys(), [PERMITS], "a refusal leaves no record");
    assert_eq!(take(&mut bare, 1, "3"), (1, 2));
    assert_recorded(&bare, &record(1));

    // A repeated request, also when no permit is left; another request.
    assert_eq!(take(&mut bare, 1, "3"), (1, 2));
    assert_eq!(take(&mut bare, 2, "2"), (1, 0));
    assert_eq!(take(&mut bare, 1, "3"), (1, 0));
    assert_eq!(take(&mut bare, 3, "1"), (0, 0));
    assert_eq!(free(&mut bare), Some(0));
    bare.ask::<()>(&["DEL", PERMITS]);
    assert_eq!(take(&mut bare, 1, "3"), (1, 0));

    // Numbers below 0 and beyond 32 bits.
    bare.ask::<()>(&["SET", PERMITS, "-3"]);
    assert_eq!(take(&mut bare, 3, "1"), (0, 0));
    bare.ask::<()>(&["SET", PERMITS, "9223372036854775807"]);
    assert_eq!(take(&mut bare, 3, "4294967295"), (1, 2_147_483_647));
    assert_eq!(free(&mut bare), Some(i64::MAX - 4_294_967_295));
}

#[test]
fn count_add_replies_as_documented() {
    documents("count_add", &[RECEIVED]);
    let mut bare = Bare::start();
    assert_eq!(add(&mut bare, 1, "2"), 0, "no subscriber");
    let mut listener = Listener::on(&bare.server, SEMAPHORE_CHANNEL);
    assert_eq!(add(&mut bare, 2, "3"), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "5");
    assert_recorded(&bare, &record(2));

    // A repeated request, and a request that was closed.
    assert_eq!(silently(&mut bare, |bare| add(bare, 1, "2")), 0);
    assert_eq!(close(&mut bare, &record(3)), 1);
    assert_eq!(silently(&mut bare, |bare| add(bare, 3, "2")), 0);
    assert_eq!(free(&mut bare), Some(5));

    // No permit is left, then one.
    assert_eq!(silently(&mut bare, |bare| add(bare, 4, "-5")), 0);
    assert_eq!(silently(&mut bare, |bare| add(bare, 5, "-1")), 0);
    assert_eq!(silently(&mut bare, |bare| add(bare, 6, "1")), 0);
    assert_eq!(add(&mut bare, 7, "1"), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "1");

    // More than Java understands, and more than the server counts.
    assert_eq!(add(&mut bare, 8, "9223372036854775806"), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "2147483647");
    assert_eq!(free(&mut bare), Some(i64::MAX));
    assert!(try_add(&mut bare, 9, "1").is_err());
    assert!(!bare.server.keys().contains(&record(9)), "the request has not run");
    assert_eq!(free(&mut bare), Some(i64::MAX));
}

#[test]
fn count_drain_replies_as_documented() {
    documents(
        "count_drain",
        &["the number of permits taken, as text", "negative if the count was"],
    );
    let mut bare = Bare::start();
    assert_eq!(drain(&mut bare, 1), "0");
    assert_eq!(free(&mut bare), None, "no key is made");
    for (request, number) in ["7", "-4", "9223372036854775807", "0"].into_iter().enumerate() {
        let request = 10 + u32::try_from(request).expect("small");
        bare.ask::<()>(&["SET", PERMITS, number]);
        assert_eq!(drain(&mut bare, request), number);
        assert_eq!(free(&mut bare), Some(0));
        assert_recorded(&bare, &record(request));
        // A repeated request, although permits were added meanwhile.
        bare.ask::<()>(&["SET", PERMITS, "3"]);
        assert_eq!(drain(&mut bare, request), number);
        assert_eq!(free(&mut bare), Some(3));
    }
    assert_eq!(drain(&mut bare, 1), "0", "repeated");
    undo(&mut bare, 2);
    assert_eq!(drain(&mut bare, 2), "0", "undone");
    assert_eq!(free(&mut bare), Some(3));
}

#[test]
fn count_set_replies_as_documented() {
    documents("count_set", &["1 set", "0 the semaphore exists"]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, SEMAPHORE_CHANNEL);
    assert_eq!(set(&mut bare, 1, "5"), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "5");
    assert_recorded(&bare, &record(1));
    assert_eq!(pttl(&bare.server, PERMITS), -1);
    assert_eq!(silently(&mut bare, |bare| set(bare, 2, "6")), 0);
    assert!(!bare.server.keys().contains(&record(2)));

    // A repeated request, before and after other requests.
    assert_eq!(silently(&mut bare, |bare| set(bare, 1, "5")), 1);
    take(&mut bare, 3, "2");
    assert_eq!(set(&mut bare, 1, "5"), 1);
    assert_eq!(free(&mut bare), Some(3));
    bare.ask::<()>(&["DEL", PERMITS]);
    assert_eq!(set(&mut bare, 1, "5"), 1);
    assert_eq!(free(&mut bare), None);

    // More than Java understands. A key without permits exists.
    assert_eq!(set(&mut bare, 4, "4294967295"), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "2147483647");
    drain(&mut bare, 5);
    assert_eq!(set(&mut bare, 6, "1"), 0);
}

#[test]
fn count_undo_replies_as_documented() {
    documents("count_undo", &["0 nothing to undo", "1 undone"]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, SEMAPHORE_CHANNEL);
    bare.ask::<()>(&["SET", PERMITS, "5"]);

    // A take, once; then its late copies take nothing.
    take(&mut bare, 1, "4");
    assert_eq!(undo(&mut bare, 1), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "5");
    assert_recorded(&bare, &record(1));
    for _ in 0..2 {
        assert_eq!(silently(&mut bare, |bare| undo(bare, 1)), 0);
        assert_eq!(take(&mut bare, 1, "4"), (0, 5));
    }
    assert_eq!(free(&mut bare), Some(5));

    // Before the take.
    assert_eq!(silently(&mut bare, |bare| undo(bare, 2)), 0);
    assert_eq!(take(&mut bare, 2, "4"), (0, 5));
    assert_recorded(&bare, &record(2));

    // Drains, also of a count below 0. No message without a free permit.
    assert_eq!(drain(&mut bare, 3), "5");
    take(&mut bare, 4, "1");
    assert_eq!(undo(&mut bare, 3), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "5");
    bare.ask::<()>(&["SET", PERMITS, "-2"]);
    assert_eq!(drain(&mut bare, 5), "-2");
    assert_eq!(silently(&mut bare, |bare| undo(bare, 5)), 1);
    assert_eq!(free(&mut bare), Some(-2));

    // The semaphore is gone, and the undo makes none.
    bare.ask::<()>(&["SET", PERMITS, "5"]);
    take(&mut bare, 6, "4");
    bare.ask::<()>(&["DEL", PERMITS]);
    assert_eq!(silently(&mut bare, |bare| undo(bare, 6)), 0);
    assert_eq!(free(&mut bare), None);

    // More than Java understands.
    bare.ask::<()>(&["SET", PERMITS, "5000000000"]);
    take(&mut bare, 7, "1");
    undo(&mut bare, 7);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "2147483647");
    assert_eq!(free(&mut bare), Some(5_000_000_000));
}

#[test]
fn request_close_replies_as_documented() {
    let replies = ["1 the request has not run and will not run", "0 it has run"];
    documents("request_close", &replies);
    let mut bare = Bare::start();
    assert_eq!(close(&mut bare, &record(1)), 1);
    assert_recorded(&bare, &record(1));
    assert_eq!(close(&mut bare, &record(1)), 0);
    set(&mut bare, 1, "5");
    assert_eq!(free(&mut bare), None, "closed");
    set(&mut bare, 2, "5");
    assert_eq!(close(&mut bare, &record(2)), 0);
    assert_eq!(free(&mut bare), Some(5));
}

#[test]
fn plain_permits_of_redisson_and_of_leasehold_are_the_same() {
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, SEMAPHORE_CHANNEL);
    assert!(redisson::set_permits(&mut bare, 3));
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "3");
    assert_eq!(set(&mut bare, 1, "9"), 0);
    assert_eq!(take(&mut bare, 2, "2"), (1, 1));
    assert!(!redisson::take(&mut bare, 2) && redisson::take(&mut bare, 1));
    assert_eq!(take(&mut bare, 3, "1"), (0, 0));
    redisson::give(&mut bare, 4);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "4");
    assert_eq!(take(&mut bare, 3, "1"), (1, 3));
    assert_eq!(redisson::drain(&mut bare), 3);
    assert_eq!(undo(&mut bare, 3), 1);
    assert_message(&mut listener, SEMAPHORE_CHANNEL, "1");
    assert!(redisson::take(&mut bare, 1));
    assert!(!redisson::set_permits(&mut bare, 3));
}

#[test]
fn a_time_to_live_of_a_plain_semaphore_stays() {
    let mut bare = Bare::start();
    bare.ask::<()>(&["SET", PERMITS, "5", "PX", "600000"]);
    take(&mut bare, 1, "2");
    undo(&mut bare, 1);
    add(&mut bare, 2, "3");
    assert_eq!(drain(&mut bare, 3), "8");
    assert_ttl(&bare.server, PERMITS, 300_000..=600_000);
}

// ---------------------------------------------------------------------------------
// The latch.

#[track_caller]
fn set_count(bare: &mut Bare, request: u32, count: &str) -> i64 {
    let args = [count, LIFETIME, LATCH_CHANNEL, ROUND_LIFETIME];
    bare.call("latch_set", &[LATCH, ROUND, &latch_record(request)], &args)
}

#[track_caller]
fn count_down(bare: &mut Bare, request: u32) -> i64 {
    let args = [LIFETIME, LATCH_CHANNEL, ROUND_LIFETIME];
    bare.call("latch_count_down", &[LATCH, ROUND, &latch_record(request)], &args)
}

#[track_caller]
fn delete(bare: &mut Bare, request: u32) -> i64 {
    let keys = [LATCH, ROUND, &latch_record(request)];
    bare.call("latch_delete", &keys, &[LIFETIME, LATCH_CHANNEL])
}

/// Returns the count and the round.
fn look(bare: &mut Bare) -> (String, String) {
    bare.reply("latch_look", &[LATCH, ROUND], &[])
}

fn round(bare: &mut Bare) -> String {
    look(bare).1
}

#[test]
fn latch_set_replies_as_documented() {
    documents("latch_set", &["1 set", "0 the latch has a count"]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, LATCH_CHANNEL);
    assert_eq!(set_count(&mut bare, 1, "3"), 1);
    assert_message(&mut listener, LATCH_CHANNEL, "1");
    assert_recorded(&bare, &latch_record(1));
    assert_eq!(pttl(&bare.server, LATCH), -1);
    assert_ttl(&bare.server, ROUND, 43_200_000..=86_400_000);
    let first = round(&mut bare);

    // Another request, and a repeated one.
    assert_eq!(silently(&mut bare, |bare| set_count(bare, 2, "7")), 0);
    assert!(!bare.server.keys().contains(&latch_record(2)));
    assert_eq!(silently(&mut bare, |bare| set_count(bare, 1, "3")), 1);
    assert_eq!(look(&mut bare), ("3".to_owned(), first.clone()));

    // A latch without a key, with 0 and with less is open. Each count begins a round.
    let mut rounds = vec![first];
    for (request, open) in [(3, "0"), (4, "-5"), (5, "")] {
        if open.is_empty() {
            bare.ask::<()>(&["DEL", LATCH]);
        } else {
            bare.ask::<()>(&["SET", LATCH, open]);
        }
        assert_eq!(set_count(&mut bare, request, "9223372036854775807"), 1, "{open:?}");
        assert_message(&mut listener, LATCH_CHANNEL, "1");
        assert_eq!(look(&mut bare).0, "9223372036854775807");
        rounds.push(round(&mut bare));
    }
    let moments: Vec<u64> = rounds.iter().map(|it| it.parse().expect("a number")).collect();
    assert!(moments.is_sorted_by(|a, b| a < b), "{moments:?}");

    // A repeated request after its round does not begin another one.
    bare.ask::<()>(&["DEL", LATCH]);
    assert_eq!(silently(&mut bare, |bare| set_count(bare, 5, "1")), 1);
    assert_eq!(look(&mut bare).0, "0");
}

#[test]
fn latch_count_down_replies_as_documented() {
    documents("latch_count_down", &["1 counted", "0 the latch is open"]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, LATCH_CHANNEL);

    // Open: without a key, with 0 and with less. The key stays as it is.
    for (request, open) in [(1, ""), (2, "0"), (3, "-5")] {
        if !open.is_empty() {
            bare.ask::<()>(&["SET", LATCH, open]);
        }
        assert_eq!(silently(&mut bare, |bare| count_down(bare, request)), 0);
        assert_eq!(bare.ask::<Option<String>>(&["GET", LATCH]).unwrap_or_default(), open);
        assert_recorded(&bare, &latch_record(request));
    }
    set_count(&mut bare, 4, "2");
    assert_message(&mut listener, LATCH_CHANNEL, "1");
    assert_eq!(count_down(&mut bare, 1), 0, "late copies count in no later round");

    // A repeated request counts once. The round lives on.
    bare.ask::<()>(&["PEXPIRE", ROUND, "1000"]);
    for _ in 0..3 {
        assert_eq!(silently(&mut bare, |bare| count_down(bare, 5)), 1);
        assert_eq!(look(&mut bare).0, "1");
    }
    assert_recorded(&bare, &latch_record(5));
    assert_ttl(&bare.server, ROUND, 43_200_000..=86_400_000);

    // The last one opens the latch.
    assert_eq!(count_down(&mut bare, 6), 1);
    assert_message(&mut listener, LATCH_CHANNEL, "0");
    assert!(!bare.server.keys().iter().any(|key| [LATCH, ROUND].contains(&&**key)));
    set_count(&mut bare, 7, "2");
    for late in [5, 6] {
        assert_eq!(count_down(&mut bare, late), 1);
    }
    assert_eq!(look(&mut bare).0, "2");
}

#[test]
fn latch_delete_replies_as_documented() {
    documents("latch_delete", &["1 deleted", "0 there was none"]);
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, LATCH_CHANNEL);
    assert_eq!(silently(&mut bare, |bare| delete(bare, 1)), 0);
    assert_recorded(&bare, &latch_record(1));
    set_count(&mut bare, 2, "3");
    assert_message(&mut listener, LATCH_CHANNEL, "1");
    assert_eq!(delete(&mut bare, 1), 0, "a late copy deletes no later count");
    assert_eq!(look(&mut bare).0, "3");
    assert_eq!(delete(&mut bare, 3), 1);
    assert_message(&mut listener, LATCH_CHANNEL, "0");
    assert!(!bare.server.keys().iter().any(|key| [LATCH, ROUND].contains(&&**key)));
    set_count(&mut bare, 4, "3");
    assert_eq!(silently(&mut bare, |bare| delete(bare, 3)), 1);
    assert_eq!(look(&mut bare).0, "3");
    // A latch that is open, but has a key.
    bare.ask::<()>(&["SET", LATCH, "0"]);
    assert_eq!(delete(&mut bare, 5), 1);
}

#[test]
fn latch_look_replies_as_documented() {
    let replies = ["1 the count, as text, 0 without a key, 2 the round, or empty"];
    documents("latch_look", &replies);
    let mut bare = Bare::start();
    assert_eq!(look(&mut bare), ("0".to_owned(), String::new()));
    bare.ask::<()>(&["SET", LATCH, "9223372036854775807"]);
    assert_eq!(look(&mut bare), (i64::MAX.to_string(), String::new()));
    bare.ask::<()>(&["SET", ROUND, "17"]);
    bare.ask::<()>(&["SET", LATCH, "-1"]);
    assert_eq!(look(&mut bare), ("-1".to_owned(), "17".to_owned()));
}

#[test]
fn a_latch_of_redisson_and_of_leasehold_is_the_same() {
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, LATCH_CHANNEL);
    assert!(redisson::set_count(&mut bare, 3));
    assert_message(&mut listener, LATCH_CHANNEL, "1");
    assert_eq!(set_count(&mut bare, 1, "9"), 0);
    assert_eq!(count_down(&mut bare, 2), 1);
    redisson::count_down(&mut bare);
    assert_eq!(count_down(&mut bare, 3), 1);
    assert_message(&mut listener, LATCH_CHANNEL, "0");
    assert_eq!(set_count(&mut bare, 4, "2"), 1);
    assert_message(&mut listener, LATCH_CHANNEL, "1");
    assert!(!redisson::set_count(&mut bare, 3));
    assert_eq!(count_down(&mut bare, 5), 1);
    redisson::count_down(&mut bare);
    assert_message(&mut listener, LATCH_CHANNEL, "0");
    assert_eq!(look(&mut bare).0, "0");
    assert_eq!(count_down(&mut bare, 6), 0);
    assert!(redisson::set_count(&mut bare, 3) && redisson::delete_latch(&mut bare));
    assert_eq!(delete(&mut bare, 7), 0);
}

// ---------------------------------------------------------------------------------
// Damaged keys, a full server, permissions, and a slot that moves.

/// Returns a request to each script of the plain semaphore and the latch.
fn requests() -> [(&'static str, Vec<String>, Vec<&'static str>); 8] {
    let plain = || vec![PERMITS.to_owned(), record(1)];
    let latch = || vec![LATCH.to_owned(), ROUND.to_owned(), latch_record(1)];
    [
        ("count_take", plain(), vec!["1", LIFETIME]),
        ("count_add", plain(), vec!["1", LIFETIME, SEMAPHORE_CHANNEL]),
        ("count_drain", plain(), vec![LIFETIME]),
        ("count_set", plain(), vec!["1", LIFETIME, SEMAPHORE_CHANNEL]),
        ("count_undo", plain(), vec![LIFETIME, SEMAPHORE_CHANNEL]),
        ("latch_set", latch(), vec!["1", LIFETIME, LATCH_CHANNEL, ROUND_LIFETIME]),
        ("latch_count_down", latch(), vec![LIFETIME, LATCH_CHANNEL, ROUND_LIFETIME]),
        ("latch_delete", latch(), vec![LIFETIME, LATCH_CHANNEL]),
    ]
}

/// A request that is refused leaves no record, so that a repeated one does not seem to have run.
#[test]
fn a_key_that_holds_no_integer_is_refused_without_a_record() {
    let mut bare = Bare::start();
    let wrong_texts = NO_INTEGERS.map(|text| ["SET", text]);
    for (script, keys, args) in requests() {
        let keys = texts(&keys);
        let (count, request) = (keys[0], keys[keys.len() - 1]);
        for [command, value] in [["RPUSH", "an element"]].into_iter().chain(wrong_texts) {
            bare.ask::<Value>(&[command, count, value]);
            let content = bare.server.content(count);
            let reply = bare.try_call::<Value>(script, &keys, &args);
            // An undo without a take changes nothing.
            let is_right = match &reply {
                Ok(_) => script == "count_undo",
                Err(error) => is_refused_as("WRONGTYPE", error),
            };
            assert!(is_right, "{script} {value:?}: {reply:?}");
            let is_recorded: bool = bare.ask(&["EXISTS", request]);
            assert_eq!(is_recorded, reply.is_ok(), "{script} {value:?}");
            assert_eq!(bare.server.content(count), content, "{script} {value:?}");
            bare.ask::<()>(&["FLUSHALL"]);
        }
    }
}

#[test]
fn a_full_server_still_adds_undoes_counts_down_and_deletes() {
    let mut bare = Bare::start();
    bare.ask::<()>(&["SET", PERMITS, "5"]);
    take(&mut bare, 1, "3");
    set_count(&mut bare, 1, "3");
    bare.server.refuse_memory();
    for (script, keys, args) in requests() {
        let request = if keys.len() == 2 { record(2) } else { latch_record(2) };
        let keys = [&keys[..keys.len() - 1], &[request]].concat();
        let reply = bare.try_call::<Value>(script, &texts(&keys), &args);
        let takes = ["count_take", "count_drain"].contains(&script);
        match reply {
            Err(error) => assert!(takes && is_refused_as("OOM", &error), "{script}: {error}"),
            // Both counts exist, so nothing would be written.
            Ok(reply) if script.ends_with("_set") => assert_eq!(reply, Value::Int(0)),
            Ok(_) => assert!(!takes, "{script}"),
        }
        bare.ask::<()>(&["DEL", &record(2), &latch_record(2)]);
    }
    assert_eq!(free(&mut bare), Some(3), "one was added");
    assert_eq!(look(&mut bare).0, "0", "deleted");
    assert_eq!(take(&mut bare, 1, "3"), (1, 3), "a repeated request needs no memory");
    assert_eq!((undo(&mut bare, 1), free(&mut bare)), (1, Some(6)));
    assert_eq!(close(&mut bare, &record(3)), 1);
    bare.ask::<()>(&["DEL", PERMITS]);
    for (script, keys, args) in requests().into_iter().filter(|it| it.0.ends_with("_set")) {
        let keys = [&keys[..keys.len() - 1], &[keys[keys.len() - 1].clone() + "7"]].concat();
        let reply = bare.try_call::<Value>(script, &texts(&keys), &args);
        assert!(reply.is_err_and(|error| is_refused_as("OOM", &error)), "{script}");
    }
}

/// A user that may access the keys in KEYS and no other key can run the scripts.
#[test]
fn count_scripts_access_only_the_keys_in_keys() {
    for (script, keys, args) in requests() {
        let mut bare = Bare::start();
        bare.ask::<()>(&["SET", &keys[0], "1"]);
        let patterns: Vec<String> = keys.iter().map(|key| format!("~{key}")).collect();
        let rules = [&["resetchannels", "&redisson_*", "+@all"][..], &texts(&patterns)].concat();
        bare.restricted(&rules).reply::<Value>(script, &texts(&keys), &args);
    }
}

/// A key that vanishes within a script counts as moved, and the next access to the key fails.
#[test]
fn an_undo_gives_permits_back_while_the_slot_moves() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(PERMITS);
    let from = cluster.owner_of(PERMITS);
    let to = cluster.nodes().iter().find(|node| node.port() != from.port()).expect("another");
    for name in ["count_take", "count_undo"] {
        from.ask::<String>(&["SCRIPT", "LOAD", &script(name).text]);
    }
    let mut bare = Bare { server: Server::start(), connection: from.connection() };
    bare.ask::<()>(&["SET", PERMITS, "5"]);
    assert_eq!(take(&mut bare, 1, "3"), (1, 2));
    cluster.begin_migration(slot, to);
    assert_eq!(undo(&mut bare, 1), 1);
    cluster.move_keys(slot, to);
    cluster.end_migration(slot, to);
    bare.connection = to.connection();
    assert_eq!(free(&mut bare), Some(5));
    assert_eq!(bare.ask::<String>(&["GET", &record(1)]), "undone");
}
