//! The scripts of the semaphore with leased permits: every documented reply, repeated requests and
//! late copies, partial losses, claims, expired permits, Redisson's operations, damaged keys, and a
//! full server.

use std::collections::BTreeMap;

use redis::{RedisResult, Value};

use crate::harness::bare::*;
use crate::harness::redisson::{self, EXPIRIES, NEVER, PERMITS, SEMAPHORE_CHANNEL};
use crate::harness::{Cluster, Config, Server, pttl};

const CLAIM: &str = "leasehold_claim:{the-permits}";
const KEYS: [&str; 3] = [PERMITS, EXPIRIES, CLAIM];
const SLOTS: &str = "leasehold_slots:{the-permits}";
const RECORD: &str = "leasehold_request:{the-permits}:6ba7b810-9dad-41d1-80b4-00c04fd430c8:1";
const MINUTE: i64 = 60_000;

/// The arguments of a request for permits.
#[derive(Clone, Copy)]
struct Call<'a> {
    lease: i64,
    capacity: &'a str,
    claimant: &'a str,
}

const CALL: Call<'static> = Call { lease: MINUTE, capacity: "5", claimant: "" };
/// A call that sets no capacity.
const KNOWN: Call<'static> = Call { capacity: "", ..CALL };

fn try_acquire(bare: &mut Bare, call: Call, ids: &[&str]) -> RedisResult<(i64, i64)> {
    let Call { lease, capacity, claimant } = call;
    let lease = lease.to_string();
    let args = [&[&*lease, capacity, SEMAPHORE_CHANNEL, claimant][..], ids].concat();
    bare.try_call("semaphore_acquire", &KEYS, &args)
}

/// Returns the two numbers of the reply.
#[track_caller]
fn acquire(bare: &mut Bare, call: Call, ids: &[&str]) -> (i64, i64) {
    try_acquire(bare, call, ids).unwrap_or_else(|error| panic!("{ids:?}: {error}"))
}

/// Takes permits of a semaphore with a capacity of 5.
#[track_caller]
fn take(bare: &mut Bare, ids: &[&str]) -> i64 {
    let (reply, others) = acquire(bare, CALL, ids);
    assert_eq!(reply, -2, "{ids:?}");
    others
}

#[track_caller]
fn release(bare: &mut Bare, ids: &[&str]) -> i64 {
    let args = [&[SEMAPHORE_CHANNEL], ids].concat();
    bare.call("semaphore_release", &[PERMITS, EXPIRIES], &args)
}

#[track_caller]
fn leave(bare: &mut Bare, claimant: &str, ids: &[&str]) -> i64 {
    let args = [&[SEMAPHORE_CHANNEL, claimant], ids].concat();
    bare.call("semaphore_leave", &KEYS, &args)
}

#[track_caller]
fn renew(bare: &mut Bare, lease: i64, ids: &[&str]) -> Vec<usize> {
    let lease = lease.to_string();
    bare.reply("semaphore_renew", &vec![EXPIRIES; ids.len()], &[&[&*lease], ids].concat())
}

#[track_caller]
fn resize(bare: &mut Bare, record: &str, capacity: &str) -> i64 {
    let args = [capacity, SEMAPHORE_CHANNEL, "600000"];
    bare.call("semaphore_resize", &[PERMITS, EXPIRIES, record], &args)
}

/// The first waiter of a client, as a poll describes it.
#[derive(Clone, Copy)]
struct Waiter<'a> {
    claimant: &'a str,
    permits: i64,
    waited: i64,
    mode: &'a str,
}

const FIRST: Waiter<'static> = Waiter { claimant: "w:1", permits: 3, waited: 1500, mode: "claim" };

/// A reply of `semaphore_poll` about one semaphore.
#[derive(Debug, PartialEq)]
struct Polled {
    must_ask: i64,
    others: i64,
    left: i64,
    capacity: i64,
}

#[track_caller]
fn polls(bare: &mut Bare, keys: &[&str], waiters: &[Waiter]) -> Vec<Polled> {
    let mut args = vec!["6000".to_owned()];
    for Waiter { claimant, permits, waited, mode } in waiters {
        let numbers = [permits, waited].map(|it| it.to_string());
        args.extend([SEMAPHORE_CHANNEL, claimant, &numbers[0], &numbers[1], mode].map(Into::into));
    }
    let numbers: Vec<i64> = bare.reply("semaphore_poll", keys, &texts(&args));
    assert_eq!(numbers.len(), 4 * waiters.len());
    let polled =
        |it: &[i64]| Polled { must_ask: it[0], others: it[1], left: it[2], capacity: it[3] };
    numbers.chunks(4).map(polled).collect()
}

#[track_caller]
fn poll(bare: &mut Bare, waiter: Waiter) -> Polled {
    polls(bare, &KEYS, &[waiter]).remove(0)
}

/// Returns the free permits, and the ids of the others.
fn state(bare: &mut Bare) -> (Option<i64>, Vec<String>) {
    let mut ids: Vec<String> = bare.ask(&["ZRANGE", EXPIRIES, "0", "-1"]);
    ids.sort();
    (bare.ask(&["GET", PERMITS]), ids)
}

#[track_caller]
fn assert_state(bare: &mut Bare, free: i64, ids: &[&str]) {
    let ids = ids.iter().map(|it| (*it).to_owned()).collect();
    assert_eq!(state(bare), (Some(free), ids));
}

fn claim(bare: &mut Bare) -> BTreeMap<String, String> {
    bare.ask(&["HGETALL", CLAIM])
}

#[track_caller]
fn assert_claim(bare: &mut Bare, claimant: &str, permits: &str) {
    let claim = claim(bare);
    assert_eq!((&*claim["claimant"], &*claim["permits"]), (claimant, permits), "{claim:?}");
    assert_ttl(&bare.server, CLAIM, 3000..=6000);
}

/// Returns the time of the server, in ms since 1970.
fn now(server: &Server) -> i64 {
    micros(server) / 1000
}

/// Asserts that the lease of a permit is of this length, and began within the last 30 s.
#[track_caller]
fn assert_lease(bare: &mut Bare, id: &str, lease: i64) {
    let expiry: i64 = bare.ask(&["ZSCORE", EXPIRIES, id]);
    let left = expiry - now(&bare.server);
    assert!((lease - 30_000..=lease).contains(&left), "{left} ms of {lease} remain");
}

/// Makes the leases of permits end an hour ago.
fn expire(bare: &mut Bare, ids: &[&str]) {
    let past = (now(&bare.server) - 60 * MINUTE).to_string();
    for id in ids {
        bare.ask::<()>(&["ZADD", EXPIRIES, "XX", &past, id]);
    }
}

/// Makes this number of further permits be in use, with leases that ended, the first one first.
fn add_expired(bare: &mut Bare, count: usize) {
    let mut command = redis::cmd("ZADD");
    command.arg(EXPIRIES);
    for at in 0..count {
        command.arg(1000 + at).arg(format!("expired {at}"));
    }
    command.query::<()>(&mut bare.connection).expect("added");
}

fn listen(bare: &Bare) -> Listener {
    Listener::on(&bare.server, SEMAPHORE_CHANNEL)
}

#[track_caller]
fn assert_message(listener: &mut Listener, payload: &str) {
    assert_eq!(listener.next_message(), (SEMAPHORE_CHANNEL.to_owned(), payload.to_owned()));
}

// ---------------------------------------------------------------------------------
// The replies.

#[test]
fn semaphore_acquire_replies_as_documented() {
    let replies = [
        "1 -2 acquired",
        "-3 more permits than the capacity",
        "-1 refused, and no permit expires",
        "else refused, and the ms until a permit expires",
        "2 the number of permits that callers without a claim may take now",
        "after -3 the capacity",
        "3 after `?` the capacity, if it is another than ARGV 2",
        "else -1 before slots, 4 .. for permits with slots that are acquired: the slot of each",
    ];
    documents("semaphore_acquire", &replies);
    let mut bare = Bare::start();

    // Another capacity, with permits taken, refused, and too many.
    let other = |bare: &mut Bare, ids: &[&str]| -> (i64, i64, i64) {
        let args = [&["60000", "?4", SEMAPHORE_CHANNEL, ""][..], ids].concat();
        bare.reply("semaphore_acquire", &KEYS, &args)
    };
    bare.ask::<()>(&["SET", PERMITS, "2"]);
    assert_eq!(other(&mut bare, &["a1"]), (-2, 1, 2));
    let (left, others, capacity) = other(&mut bare, &["b1", "b2"]);
    assert!(left > 50_000 && (others, capacity) == (1, 2), "{left}");
    for capacity in ["?2", "4", ""] {
        assert_eq!(acquire(&mut bare, Call { capacity, ..CALL }, &["a1"]), (-2, 1));
    }
    bare.ask::<()>(&["DEL", PERMITS, EXPIRIES]);

    // Slots: the smallest that are free. A repeated call finds its own.
    let slots = |bare: &mut Bare, ids: &[&str]| -> Vec<i64> {
        let args = [&["60000", "?4", SEMAPHORE_CHANNEL, ""][..], ids].concat();
        bare.reply("semaphore_acquire", &[&KEYS[..], &[SLOTS]].concat(), &args)
    };
    assert_eq!(slots(&mut bare, &["a1", "a2"]), [-2, 2, -1, 0, 1]);
    assert_eq!(slots(&mut bare, &["b1"]), [-2, 1, -1, 2]);
    bare.ask::<()>(&["ZREM", EXPIRIES, "a1"]);
    bare.ask::<()>(&["INCR", PERMITS]);
    assert_eq!(slots(&mut bare, &["b1"]), [-2, 2, -1, 2]);
    assert_eq!(slots(&mut bare, &["c1", "c2"]), [-2, 0, -1, 0, 3]);
    assert_eq!(slots(&mut bare, &["d1"]).len(), 2, "refused");
    let given = [("0", "c1"), ("1", "a2"), ("2", "b1"), ("3", "c2")];
    let given = given.map(|(slot, id)| (slot.to_owned(), id.to_owned()));
    assert_eq!(bare.ask::<BTreeMap<String, String>>(&["HGETALL", SLOTS]), given.into());
    bare.ask::<()>(&["DEL", PERMITS, EXPIRIES, SLOTS]);

    // No capacity: nothing is written.
    assert_eq!(acquire(&mut bare, KNOWN, &["a1"]), (-3, 0));
    assert_eq!(acquire(&mut bare, CALL, &["a1", "a2", "a3", "a4", "a5", "a6"]), (-3, 5));
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // The first call sets the capacity, and others keep it.
    assert_eq!(acquire(&mut bare, CALL, &["a1", "a2", "a3"]), (-2, 2));
    assert_state(&mut bare, 2, &["a1", "a2", "a3"]);
    let ten = Call { capacity: "10", ..CALL };
    assert_eq!(acquire(&mut bare, ten, &["b1", "b2", "b3", "b4", "b5", "b6"]), (-3, 5));
    assert_eq!(pttl(&bare.server, PERMITS), -1);
    for id in ["a1", "a2", "a3"] {
        assert_lease(&mut bare, id, MINUTE);
    }

    // A call takes all permits or none. The time is that of the permit that expires first.
    let (left, others) = acquire(&mut bare, KNOWN, &["b1", "b2", "b3"]);
    assert!((30_000..=MINUTE).contains(&left) && others == 2, "{left}, {others}");
    assert_state(&mut bare, 2, &["a1", "a2", "a3"]);
    assert_eq!(acquire(&mut bare, Call { lease: 10 * MINUTE, ..KNOWN }, &["b1", "b2"]), (-2, 0));
    let (left, others) = acquire(&mut bare, KNOWN, &["c1"]);
    assert!((30_000..=MINUTE).contains(&left) && others == 0, "{left}, {others}");

    // No permit expires: those of Redisson, and none in use beside a claim.
    bare.ask::<()>(&["DEL", EXPIRIES]);
    for id in ["j1", "j2", "j3", "j4", "j5"] {
        bare.ask::<()>(&["ZADD", EXPIRIES, &NEVER.to_string(), id]);
    }
    assert_eq!(acquire(&mut bare, KNOWN, &["c1"]), (-1, 0));
    bare.ask::<()>(&["DEL", EXPIRIES]);
    resize(&mut bare, RECORD, "5");
    poll(&mut bare, Waiter { permits: 5, ..FIRST });
    assert_eq!(acquire(&mut bare, KNOWN, &["c1"]), (-1, 0));
}

#[test]
fn a_repeated_acquire_counts_once_and_never_shortens_a_lease() {
    let mut bare = Bare::start();
    let mine = ["a1", "a2"];
    assert_eq!(take(&mut bare, &mine), 3);
    assert_eq!(acquire(&mut bare, Call { lease: 10 * MINUTE, ..CALL }, &mine), (-2, 3));
    assert_lease(&mut bare, "a1", 10 * MINUTE);
    assert_eq!(take(&mut bare, &mine), 3);
    assert_lease(&mut bare, "a2", 10 * MINUTE);
    assert_state(&mut bare, 3, &mine);

    // Without a free permit, and with one that others claim.
    take(&mut bare, &["b1", "b2", "b3"]);
    assert_eq!(acquire(&mut bare, KNOWN, &mine), (-2, 0));
    release(&mut bare, &["b1"]);
    poll(&mut bare, FIRST);
    assert_eq!(acquire(&mut bare, KNOWN, &mine), (-2, 0));
    assert_state(&mut bare, 1, &["a1", "a2", "b2", "b3"]);

    // A late copy after the release takes the permits again, until they are given back.
    bare.ask::<()>(&["DEL", CLAIM]);
    release(&mut bare, &mine);
    assert_eq!(acquire(&mut bare, KNOWN, &mine), (-2, 1));
    assert_eq!(leave(&mut bare, "", &mine), 0);
    assert_state(&mut bare, 3, &["b2", "b3"]);
}

/// The permits of a hold stay in use when the capacity becomes smaller.
#[test]
fn a_repeated_acquire_succeeds_although_the_capacity_is_smaller_now() {
    let mut bare = Bare::start();
    let mine = ["a1", "a2", "a3"];
    take(&mut bare, &mine);
    resize(&mut bare, RECORD, "2");
    assert_eq!(acquire(&mut bare, Call { lease: 10 * MINUTE, ..CALL }, &mine), (-2, 0));
    assert_state(&mut bare, -1, &mine);
    assert_lease(&mut bare, "a3", 10 * MINUTE);
    // Not after the end of the lease, nor for another caller.
    assert_eq!(acquire(&mut bare, CALL, &["b1", "b2", "b3"]), (-3, 2));
    expire(&mut bare, &mine);
    assert_eq!(acquire(&mut bare, CALL, &mine), (-3, 2));
    assert_state(&mut bare, -1, &mine);
    assert_eq!(acquire(&mut bare, CALL, &["b1", "b2"]), (-2, 0));
    assert_state(&mut bare, 0, &["b1", "b2"]);
}

#[test]
fn an_acquire_counts_only_the_permits_that_its_hold_lacks() {
    let mut bare = Bare::start();
    let mine = ["a1", "a2", "a3"];
    take(&mut bare, &mine);
    let moment = now(&bare.server);
    assert!(redisson::release(&mut bare, moment, "a2"));
    assert_eq!(take(&mut bare, &["b1", "b2"]), 1);
    assert_eq!(acquire(&mut bare, KNOWN, &mine), (-2, 0), "one permit is enough");
    assert_state(&mut bare, 0, &["a1", "a2", "a3", "b1", "b2"]);

    // One permit is not enough for a hold that lost two, and the claim of another caller counts.
    for lost in ["a2", "a3", "b1"] {
        assert!(redisson::release(&mut bare, moment, lost));
    }
    assert_eq!(take(&mut bare, &["c1", "c2"]), 1);
    assert!(acquire(&mut bare, KNOWN, &mine).0 > 0);
    assert!(redisson::release(&mut bare, moment, "c1"));
    poll(&mut bare, Waiter { permits: 1, ..FIRST });
    assert!(acquire(&mut bare, KNOWN, &mine).0 > 0);
    assert_state(&mut bare, 2, &["a1", "b2", "c2"]);

    // An expired permit of the hold itself is no permit that it has.
    bare.ask::<()>(&["DEL", CLAIM]);
    expire(&mut bare, &["a1"]);
    assert_eq!(acquire(&mut bare, KNOWN, &mine), (-2, 0));
    assert_state(&mut bare, 0, &["a1", "a2", "a3", "b2", "c2"]);
}

#[test]
fn semaphore_release_replies_as_documented() {
    let some = "-1 not all of them were held, the others are given back";
    documents("semaphore_release", &[some, &format!("{RECEIVED}, 0 if no permit is free")]);
    let mut bare = Bare::start();

    // Nothing, then permits of another hold.
    assert_eq!(silently(&mut bare, |bare| release(bare, &["a1"])), -1);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    take(&mut bare, &["b1"]);
    assert_eq!(silently(&mut bare, |bare| release(bare, &["a1"])), -1);
    assert_state(&mut bare, 4, &["b1"]);

    // The message says how many permits are free. A second release finds nothing.
    let mut listener = listen(&bare);
    take(&mut bare, &["a1", "a2"]);
    assert_eq!(release(&mut bare, &["a1", "a2"]), 1);
    assert_message(&mut listener, "4");
    assert_eq!(silently(&mut bare, |bare| release(bare, &["a1", "a2"])), -1);
    assert_state(&mut bare, 4, &["b1"]);

    // One permit of two is gone.
    take(&mut bare, &["a1", "a2"]);
    bare.ask::<()>(&["ZREM", EXPIRIES, "a1"]);
    assert_eq!(release(&mut bare, &["a1", "a2"]), -1);
    assert_message(&mut listener, "3");
    assert_state(&mut bare, 3, &["b1"]);

    // No permit is free afterwards.
    resize(&mut bare, RECORD, "1");
    acquire(&mut bare, Call { capacity: "5", ..CALL }, &["c1"]);
    bare.ask::<()>(&["SET", PERMITS, "-2"]);
    assert_eq!(silently(&mut bare, |bare| release(bare, &["b1"])), 0);
    assert_state(&mut bare, -1, &[]);
}

/// Ends a hold with this rest of its minimum.
#[track_caller]
fn release_early(bare: &mut Bare, left: i64, ids: &[&str]) -> i64 {
    let left = left.to_string();
    bare.call("semaphore_early_release", &[EXPIRIES], &[&[&*left], ids].concat())
}

/// A late copy of the acquire takes a permit again that a minimum keeps in use.
#[test]
fn a_permit_that_a_minimum_keeps_and_a_late_copy_of_it_are_both_counted() {
    const ID: &str = "client-1numbers1";
    let mut bare = Bare::start();
    take(&mut bare, &[ID]);
    assert_eq!(release_early(&mut bare, MINUTE, &[ID]), 0);
    take(&mut bare, &[ID]);
    for _ in 0..2 {
        assert_eq!(release_early(&mut bare, MINUTE, &[ID]), 0);
        let counts = (bare.ask::<i64>(&["GET", PERMITS]), bare.ask::<i64>(&["ZCARD", EXPIRIES]));
        assert_eq!(counts, (3, 2), "the capacity stays 5");
        assert_lease(&mut bare, ID, MINUTE);
    }
}

/// A payload above 2147483647 is an error in Java.
#[test]
fn messages_say_at_most_what_java_understands() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare);
    let most = "2147483647";
    let huge = Call { capacity: "3000000000", ..CALL };
    assert_eq!(acquire(&mut bare, huge, &["a1"]), (-2, 2_147_483_647));
    assert_message(&mut listener, most);
    release(&mut bare, &["a1"]);
    assert_message(&mut listener, most);
    assert_eq!(bare.ask::<i64>(&["GET", PERMITS]), 3_000_000_000);
    resize(&mut bare, RECORD, "4000000000");
    assert_message(&mut listener, most);
    take(&mut bare, &["a1"]);
    leave(&mut bare, "", &["a1"]);
    assert_message(&mut listener, most);
    take(&mut bare, &["a1"]);
    expire(&mut bare, &["a1"]);
    let polled = poll(&mut bare, FIRST);
    assert_message(&mut listener, most);
    assert_eq!((polled.others, polled.capacity), (2_147_483_647, 2_147_483_647));
    // Exact beyond 32 bits.
    assert_eq!(bare.ask::<i64>(&["GET", PERMITS]), 4_000_000_000);
}

#[test]
fn semaphore_leave_replies_as_documented() {
    documents("semaphore_leave", &["-1 not all of them were held", RECEIVED]);
    let mut bare = Bare::start();
    let mut listener = listen(&bare);
    let mine = ["a1", "a2"];

    // Before the acquire, and after.
    assert_eq!(silently(&mut bare, |bare| leave(bare, "", &mine)), -1);
    take(&mut bare, &mine);
    assert_message(&mut listener, "3");
    assert_eq!(leave(&mut bare, "", &mine), 1);
    assert_message(&mut listener, "5");
    assert_state(&mut bare, 5, &[]);
    assert_eq!(silently(&mut bare, |bare| leave(bare, "w:1", &mine)), -1);

    // Only one of two permits was taken.
    take(&mut bare, &["a1"]);
    assert_eq!(leave(&mut bare, "", &mine), -1);
    assert_message(&mut listener, "5");
    assert_state(&mut bare, 5, &[]);

    // The own claim ends, and others may take its permits; the claim of another caller stays.
    take(&mut bare, &["b1", "b2", "b3"]);
    poll(&mut bare, FIRST);
    for other in ["", "w:2"] {
        assert_eq!(silently(&mut bare, |bare| leave(bare, other, &mine)), -1);
        assert_claim(&mut bare, "w:1", "3");
    }
    assert_eq!(leave(&mut bare, "w:1", &mine), -1);
    assert_message(&mut listener, "2");
    assert_eq!(claim(&mut bare), BTreeMap::new());

    // No permit is free: no message.
    take(&mut bare, &["c1", "c2"]);
    poll(&mut bare, FIRST);
    assert_eq!(silently(&mut bare, |bare| leave(bare, "w:1", &mine)), -1);
    assert_eq!(claim(&mut bare), BTreeMap::new());
    assert_state(&mut bare, 0, &["b1", "b2", "b3", "c1", "c2"]);
}

#[test]
fn semaphore_early_release_replies_as_documented() {
    let some = "-1 not all of them were held, the others stay in use";
    documents("semaphore_early_release", &[some, "0 ended"]);
    let mut bare = Bare::start();
    let mine = ["12345678a0000001", "12345678a0000002"];
    assert_eq!(release_early(&mut bare, 1000, &mine), -1);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // The permits stay in use, without a holder, until the minimum ends.
    take(&mut bare, &mine);
    assert_eq!(silently(&mut bare, |bare| release_early(bare, 600_000, &mine)), 0);
    let ids: Vec<(Vec<u8>, i64)> = bare.ask(&["ZRANGE", EXPIRIES, "0", "-1", "WITHSCORES"]);
    let ended = ids.iter().map(|(id, _)| id.as_slice());
    assert!(ended.eq([b"12345678\xff0000001", b"12345678\xff0000002"]), "{ids:?}");
    let left = ids.iter().map(|(_, expiry)| expiry - now(&bare.server));
    assert!(left.into_iter().all(|left| (300_000..=600_000).contains(&left)), "{ids:?}");
    assert_eq!(bare.ask::<i64>(&["GET", PERMITS]), 3);

    // Late copies, and one permit of two.
    assert_eq!(release_early(&mut bare, 900_000, &mine), -1);
    assert_eq!(renew(&mut bare, MINUTE, &mine), [1, 2]);
    assert_eq!(release(&mut bare, &mine), -1);
    assert_eq!(bare.ask::<i64>(&["GET", PERMITS]), 3);
    take(&mut bare, &["12345678b0000009"]);
    bare.server.refuse_memory();
    let other = ["gone", "12345678b0000009"];
    assert_eq!(release_early(&mut bare, 600_000, &other), -1, "on a full server");
    assert_eq!(bare.ask::<i64>(&["ZCARD", EXPIRIES]), 3);
}

#[test]
fn semaphore_renew_replies_as_documented() {
    documents("semaphore_renew", &["the positions (from 1) of the permits that are gone"]);
    const NONE: [usize; 0] = [];
    let mut bare = Bare::start();
    assert_eq!(renew(&mut bare, MINUTE, &["a1", "a2"]), [1, 2]);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // A longer lease extends; a shorter one and a check change nothing.
    take(&mut bare, &["a1", "a2", "a3"]);
    assert_eq!(renew(&mut bare, 10 * MINUTE, &["a1", "a2"]), NONE);
    assert_eq!(renew(&mut bare, MINUTE, &["a1", "a2"]), NONE);
    assert_eq!(renew(&mut bare, -2, &["a1", "a2", "a3"]), NONE);
    assert_lease(&mut bare, "a1", 10 * MINUTE);
    assert_lease(&mut bare, "a2", 10 * MINUTE);
    assert_lease(&mut bare, "a3", MINUTE);
    let never = NEVER.to_string();
    bare.ask::<()>(&["ZADD", EXPIRIES, &never, "a1"]);
    assert_eq!(renew(&mut bare, 20 * MINUTE, &["a1", "gone", "a2"]), [2]);
    assert_eq!(bare.ask::<String>(&["ZSCORE", EXPIRIES, "a1"]), never);
    assert_lease(&mut bare, "a2", 20 * MINUTE);
    assert_eq!(renew(&mut bare, -2, &["gone", "a2", "gone"]), [1, 3]);
    assert_state(&mut bare, 2, &["a1", "a2", "a3"]);

    // Keys of several semaphores, one of another type and one without permits.
    bare.ask::<()>(&["ZADD", "other", "5", "b1"]);
    bare.ask::<()>(&["SET", "text", "a string"]);
    let keys = ["text", "other", "free", EXPIRIES];
    let args = ["600000", "x", "b1", "y", "a3"];
    assert_eq!(bare.reply::<Vec<usize>>("semaphore_renew", &keys, &args), [1, 3]);
    assert_lease(&mut bare, "a3", 10 * MINUTE);
    assert!(bare.ask::<i64>(&["ZSCORE", "other", "b1"]) > now(&bare.server));
    assert_eq!(bare.ask::<String>(&["GET", "text"]), "a string");
}

#[test]
fn semaphore_poll_replies_as_documented() {
    let replies = [
        "4 numbers per semaphore: 1 if the first waiter has to ask, else 0",
        "the number of permits that callers without a claim may take",
        "the ms until a permit expires, or -1",
        "the capacity",
        "or 1, 0, -1 and 0 for a key without a number of permits",
    ];
    documents("semaphore_poll", &replies);
    let mut bare = Bare::start();
    let waits = Waiter { mode: "wait", ..FIRST };
    let unknown = Polled { must_ask: 1, others: 0, left: -1, capacity: 0 };
    assert_eq!(poll(&mut bare, FIRST), unknown);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // Enough permits, too few, and more than the capacity.
    take(&mut bare, &["a1", "a2"]);
    let polled = poll(&mut bare, waits);
    assert!((30_000..=MINUTE).contains(&polled.left), "{polled:?}");
    assert_eq!((polled.must_ask, polled.others, polled.capacity), (1, 3, 5));
    take(&mut bare, &["a3"]);
    let polled = poll(&mut bare, waits);
    assert_eq!((polled.must_ask, polled.others, polled.capacity), (0, 2, 5));
    let polled = poll(&mut bare, Waiter { permits: 6, ..FIRST });
    assert_eq!((polled.must_ask, polled.others, polled.capacity), (1, 2, 5));
    assert_eq!(claim(&mut bare), BTreeMap::new(), "without the mode, or above the capacity");

    // Expired permits are reclaimed and announced.
    let mut listener = listen(&bare);
    expire(&mut bare, &["a1", "a3"]);
    let polled = poll(&mut bare, waits);
    assert_message(&mut listener, "4");
    assert_eq!((polled.must_ask, polled.others, polled.capacity), (1, 4, 5));
    assert_state(&mut bare, 4, &["a2"]);
    silently(&mut bare, |bare| poll(bare, waits));
    bare.ask::<()>(&["SET", PERMITS, "-3"]);
    expire(&mut bare, &["a2"]);
    let polled = silently(&mut bare, |bare| poll(bare, waits));
    assert_eq!(polled, Polled { must_ask: 1, others: 0, left: -1, capacity: -2 });

    // Permits that never expire.
    bare.ask::<()>(&["SET", PERMITS, "2"]);
    bare.ask::<()>(&["ZADD", EXPIRIES, &NEVER.to_string(), "j1"]);
    let polled = poll(&mut bare, waits);
    assert_eq!(polled, Polled { must_ask: 0, others: 2, left: -1, capacity: 3 });
}

#[test]
fn one_call_polls_several_semaphores() {
    let mut bare = Bare::start();
    let names: Vec<[String; 3]> =
        ["a", "b", "c", "d", "e"].map(|it| KEYS.map(|key| format!("{key}-{it}"))).into();
    let keys = texts(names.as_flattened());
    bare.ask::<()>(&["MSET", keys[0], "1", keys[3], "2", keys[6], "1.5", keys[12], "7"]);
    // No number, another type, and damaged further keys.
    bare.ask::<()>(&["ZADD", keys[7], "1", "expired"]);
    bare.ask::<()>(&["RPUSH", keys[9], "a list"]);
    bare.ask::<()>(&["SET", keys[4], "no sorted set"]);
    bare.ask::<()>(&["ZADD", keys[13], "1", "expired"]);
    let polled = polls(&mut bare, &keys, &[Waiter { permits: 1, ..FIRST }; 5]);
    let unknown = Polled { must_ask: 1, others: 0, left: -1, capacity: 0 };
    assert_eq!(polled[0], Polled { must_ask: 1, others: 0, left: -1, capacity: 1 });
    assert_eq!(polled[1..4], [&unknown, &unknown, &unknown].map(|it| Polled { ..*it }));
    assert_eq!(polled[4], Polled { must_ask: 1, others: 7, left: -1, capacity: 8 });
    let found = bare.server.keys();
    let claims = names.iter().enumerate().filter(|(_, it)| found.contains(&it[2]));
    assert_eq!(claims.map(|(at, _)| at).collect::<Vec<usize>>(), [0, 4]);
}

#[test]
fn semaphore_force_release_replies_as_documented() {
    let none = "-1 no permit was in use";
    documents("semaphore_force_release", &[none, &format!("{RECEIVED}, 0 if no permit is free")]);
    let mut bare = Bare::start();
    let force = |bare: &mut Bare, clients: &[&str]| -> i64 {
        let args = [&[SEMAPHORE_CHANNEL][..], clients].concat();
        bare.call("semaphore_force_release", &[PERMITS, EXPIRIES], &args)
    };

    // Nothing, then all permits, with and without a listener.
    assert_eq!(silently(&mut bare, |bare| force(bare, &[])), -1);
    take(&mut bare, &["a1", "b1"]);
    let mut listener = listen(&bare);
    assert_eq!(force(&mut bare, &["leasehold:wake:{a}", "leasehold:wake:{b}"]), 1);
    assert_message(&mut listener, "5");
    assert_state(&mut bare, 5, &[]);
    assert_eq!(silently(&mut bare, |bare| force(bare, &[])), -1);

    // No permit is free after a resize.
    bare.ask::<()>(&["SET", PERMITS, "-4"]);
    bare.ask::<()>(&["ZADD", EXPIRIES, &NEVER.to_string(), "a1", &NEVER.to_string(), "a2"]);
    assert_eq!(silently(&mut bare, |bare| force(bare, &[])), 0);
    assert_state(&mut bare, -2, &[]);
    bare.ask::<()>(&["SET", PERMITS, "many"]);
    let error =
        bare.try_call::<i64>("semaphore_force_release", &[PERMITS, EXPIRIES], &[SEMAPHORE_CHANNEL]);
    assert!(error.is_err_and(|error| error.to_string().contains("WRONGTYPE")));
}

#[test]
fn semaphore_info_replies_as_documented() {
    let replies = [
        "1 the available permits, as text: free or expired, 2 the permits in use, as text, 3 the \
         capacity, as text, 4 for holders the ids of the permits in use and their expiries in ms \
         since 1970, 5 the server's time in ms, 6 for holders each slot that was given and the id \
         of its permit",
    ];
    documents("semaphore_info", &replies);
    type Info = (i64, i64, i64, Vec<String>, i64);
    let mut bare = Bare::start();
    let ask = |bare: &mut Bare, capacity: &str, subject: &str| -> Info {
        let args = [capacity, subject, SLOTS];
        let mut reply: Vec<redis::Value> =
            bare.reply("semaphore_info", &[PERMITS, EXPIRIES], &args);
        let slots = reply.drain(5..).map(redis::from_redis_value::<Vec<String>>);
        let slots: Vec<_> = slots.map(|it| it.expect("texts")).collect();
        let with_slots = subject == "holders";
        assert_eq!(slots, if with_slots { vec![vec!["1", "a3"]] } else { Vec::new() });
        redis::from_redis_value(redis::Value::Array(reply)).expect("five parts")
    };
    let counts = |bare: &mut Bare, capacity: &str| {
        let (available, in_use, capacity, list, _) = ask(bare, capacity, "counts");
        assert_eq!(list, Vec::<String>::new());
        (available, in_use, capacity)
    };

    // Without a key: the given capacity.
    assert_eq!(counts(&mut bare, ""), (0, 0, 0));
    assert_eq!(counts(&mut bare, "20"), (20, 0, 20));
    assert_eq!(bare.server.keys(), Vec::<String>::new(), "a query writes nothing");

    // Expired permits are available.
    take(&mut bare, &["a1", "a2", "a3"]);
    assert_eq!(counts(&mut bare, "20"), (2, 3, 5));
    expire(&mut bare, &["a2"]);
    assert_eq!(counts(&mut bare, ""), (3, 2, 5));
    bare.ask::<()>(&["ZADD", EXPIRIES, &NEVER.to_string(), "a3"]);
    bare.ask::<()>(&["HSET", SLOTS, "1", "a3"]);
    let before = now(&bare.server);
    let (.., list, moment) = ask(&mut bare, "", "holders");
    assert!((before..=now(&bare.server)).contains(&moment));
    let expiry: String = bare.ask(&["ZSCORE", EXPIRIES, "a1"]);
    assert_eq!(list, ["a1", &expiry, "a3", &NEVER.to_string()]);
    assert_state(&mut bare, 2, &["a1", "a2", "a3"]);

    // The key of the free permits alone is lost; negative and large numbers.
    bare.ask::<()>(&["DEL", PERMITS]);
    assert_eq!(counts(&mut bare, "20"), (18, 2, 20));
    bare.ask::<()>(&["SET", PERMITS, "-4"]);
    assert_eq!(counts(&mut bare, ""), (-3, 2, -1));
    bare.ask::<()>(&["SET", PERMITS, "4503599627370496"]);
    assert_eq!(counts(&mut bare, "").2, 4_503_599_627_370_499);
}

#[test]
fn semaphore_resize_replies_as_documented() {
    let replies = ["the number of subscribers that received the message, 0 without a message"];
    documents("semaphore_resize", &replies);
    let mut bare = Bare::start();
    let mut listener = listen(&bare);
    let record = |number: u32| format!("{RECORD}{number}");

    // Without a semaphore, then larger, smaller, and smaller than the permits in use.
    assert_eq!(resize(&mut bare, &record(1), "3"), 1);
    assert_message(&mut listener, "3");
    assert_eq!(pttl(&bare.server, PERMITS), -1);
    assert_ttl(&bare.server, &record(1), 300_000..=600_000);
    take(&mut bare, &["a1", "a2"]);
    assert_eq!(resize(&mut bare, &record(2), "5"), 1);
    assert_message(&mut listener, "3");
    assert_state(&mut bare, 3, &["a1", "a2"]);
    assert_eq!(resize(&mut bare, &record(3), "3"), 1);
    assert_message(&mut listener, "1");
    assert_eq!(silently(&mut bare, |bare| resize(bare, &record(4), "3")), 0, "as before");
    assert_eq!(silently(&mut bare, |bare| resize(bare, &record(5), "1")), 0);
    assert_state(&mut bare, -1, &["a1", "a2"]);

    // A repeated request, after another request has changed the capacity.
    assert_eq!(silently(&mut bare, |bare| resize(bare, &record(1), "3")), 0);
    assert_state(&mut bare, -1, &["a1", "a2"]);
    // A request that was closed.
    assert_eq!(bare.call("request_close", &[&record(6)], &["600000"]), 1);
    assert_eq!(silently(&mut bare, |bare| resize(bare, &record(6), "9")), 0);
    assert_state(&mut bare, -1, &["a1", "a2"]);

    // A time to live stays. The key of the free permits alone is lost.
    bare.ask::<()>(&["PEXPIRE", PERMITS, "60000"]);
    resize(&mut bare, &record(7), "4");
    assert_ttl(&bare.server, PERMITS, 30_000..=60_000);
    bare.ask::<()>(&["DEL", PERMITS]);
    resize(&mut bare, &record(8), "6");
    assert_state(&mut bare, 4, &["a1", "a2"]);
}

// ---------------------------------------------------------------------------------
// Expired permits.

#[test]
fn an_acquire_reclaims_expired_permits_only_if_it_needs_them() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare);
    take(&mut bare, &["a1", "a2", "a3"]);
    assert_message(&mut listener, "2");
    expire(&mut bare, &["a1", "a2"]);
    assert_eq!(silently(&mut bare, |bare| take(bare, &["b1", "b2"])), 0);
    assert_state(&mut bare, 0, &["a1", "a2", "a3", "b1", "b2"]);
    // Both permits are reclaimed, and the second is announced.
    assert_eq!(acquire(&mut bare, KNOWN, &["c1"]), (-2, 1));
    assert_message(&mut listener, "1");
    assert_state(&mut bare, 1, &["a3", "b1", "b2", "c1"]);
    // A caller that is refused announces them too.
    expire(&mut bare, &["b1"]);
    let (left, others) = acquire(&mut bare, KNOWN, &["d1", "d2", "d3"]);
    assert!((30_000..=MINUTE).contains(&left) && others == 2, "{left}, {others}");
    assert_message(&mut listener, "2");
    assert_state(&mut bare, 2, &["a3", "b2", "c1"]);
}

#[test]
fn the_lease_of_a_permit_ends_by_the_clock_of_the_server() {
    let mut bare = Bare::on(Server::with(Config::movable_clock));
    take(&mut bare, &["a1", "a2", "a3", "a4", "a5"]);
    let (left, _) = acquire(&mut bare, KNOWN, &["b1"]);
    assert!((30_000..=MINUTE).contains(&left), "{left}");
    bare.server.set_clock(MINUTE / 2);
    let (left, _) = acquire(&mut bare, KNOWN, &["b1"]);
    assert!((1..=MINUTE / 2).contains(&left), "{left}");
    bare.server.set_clock(MINUTE + 1);
    assert_eq!(acquire(&mut bare, KNOWN, &["b1"]), (-2, 4));
    assert_state(&mut bare, 4, &["b1"]);
    bare.server.set_clock(2 * MINUTE + 2);
    let polled = poll(&mut bare, Waiter { mode: "wait", ..FIRST });
    assert_eq!(polled, Polled { must_ask: 1, others: 5, left: -1, capacity: 5 });
}

#[test]
fn twenty_thousand_expired_permits_are_reclaimed_in_pieces() {
    let mut bare = Bare::start();
    bare.ask::<()>(&["SET", PERMITS, "0"]);
    add_expired(&mut bare, 20_000);
    let members = |bare: &mut Bare| bare.ask::<i64>(&["ZCARD", EXPIRIES]);

    // Each call reclaims what it needs, and 500 more.
    assert_eq!(acquire(&mut bare, KNOWN, &["a1"]), (-2, 500));
    assert_eq!(members(&mut bare), 19_500);
    let many: Vec<String> = (0..1000).map(|at| format!("m{at}")).collect();
    let many = texts(&many);
    assert_eq!(acquire(&mut bare, KNOWN, &many), (-2, 500));
    assert_eq!(members(&mut bare), 19_500);
    assert_eq!(poll(&mut bare, Waiter { mode: "wait", ..FIRST }).others, 1000);
    assert_eq!(release(&mut bare, &many), 0);
    let info = |bare: &mut Bare| -> (i64, i64, i64) {
        let reply: Vec<Value> = bare.reply("semaphore_info", &[PERMITS, EXPIRIES], &["", "counts"]);
        let number = |at: usize| redis::from_redis_value(reply[at].clone()).expect("a number");
        (number(0), number(1), number(2))
    };
    assert_eq!(info(&mut bare), (19_999, 1, 20_000));

    // Far below 0: each call reclaims at most 2,000, and none refuses as if nothing would expire.
    let free: i64 = bare.ask(&["GET", PERMITS]);
    bare.ask::<()>(&["INCRBY", PERMITS, &(5 - 20_000i64).to_string()]);
    assert_eq!(free + members(&mut bare), 20_000);
    let calls = (1..).find(|_| {
        let (reply, others) = acquire(&mut bare, KNOWN, &["b1"]);
        assert!(others <= 5 && (reply == -2 || reply == 0), "{reply}, {others}");
        reply == -2
    });
    assert!(calls <= Some(20), "{calls:?} calls");
    assert_eq!(info(&mut bare).2, 5);
}

// ---------------------------------------------------------------------------------
// Claims.

#[test]
fn a_claim_reserves_permits_for_its_claimant() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1", "a2", "a3"]);
    let polled = poll(&mut bare, FIRST);
    assert_eq!((polled.must_ask, polled.others), (0, 0));
    assert_claim(&mut bare, "w:1", "3");

    // Two permits are free, and three are claimed.
    let theirs = Call { claimant: "w:2", ..KNOWN };
    for call in [KNOWN, theirs] {
        assert!(acquire(&mut bare, call, &["b1"]).0 > 0);
    }
    release(&mut bare, &["a1"]);
    assert!(acquire(&mut bare, KNOWN, &["b1"]).0 > 0);
    release(&mut bare, &["a2"]);
    assert_eq!(acquire(&mut bare, theirs, &["b1"]), (-2, 0), "the fourth is not claimed");
    assert_claim(&mut bare, "w:1", "3");
    assert_eq!(poll(&mut bare, FIRST).must_ask, 1);

    // The claim ends with the grant, and others may take what is left.
    release(&mut bare, &["b1"]);
    let own = Call { claimant: "w:1", ..KNOWN };
    assert_eq!(acquire(&mut bare, own, &["c1", "c2", "c3"]), (-2, 1));
    assert_eq!(claim(&mut bare), BTreeMap::new());
    assert_eq!(acquire(&mut bare, KNOWN, &["b2"]), (-2, 0));
}

#[test]
fn a_claimant_that_is_refused_keeps_its_claim() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1", "a2", "a3"]);
    poll(&mut bare, FIRST);
    let own = Call { claimant: "w:1", ..KNOWN };
    let (left, others) = acquire(&mut bare, own, &["c1", "c2", "c3"]);
    assert!(left > 0 && others == 0, "{left}, {others}");
    assert_claim(&mut bare, "w:1", "3");
}

#[test]
fn the_oldest_waiter_has_the_claim() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1", "a2", "a3", "a4", "a5"]);
    let hour = 60 * MINUTE;
    let claims = |bare: &mut Bare, claimant, permits, waited, mode| {
        poll(bare, Waiter { claimant, permits, waited, mode });
    };
    claims(&mut bare, "w:1", 3, hour, "wait");
    assert_eq!(claim(&mut bare), BTreeMap::new());
    claims(&mut bare, "w:1", 3, hour, "claim");
    assert_claim(&mut bare, "w:1", "3");
    let since: i64 = claim(&mut bare)["since"].parse().expect("a number");
    assert!((hour..=hour + 30_000).contains(&(now(&bare.server) - since)), "{since}");

    // A younger waiter neither takes nor keeps the claim; an older one takes it.
    bare.ask::<()>(&["PEXPIRE", CLAIM, "2000"]);
    claims(&mut bare, "w:2", 1, hour / 2, "claim");
    claims(&mut bare, "w:3", 2, 2 * hour, "wait");
    claims(&mut bare, "w:4", 6, 2 * hour, "claim");
    assert_eq!(claim(&mut bare)["claimant"], "w:1");
    assert_ttl(&bare.server, CLAIM, 1..=2000);
    claims(&mut bare, "w:1", 3, hour, "claim");
    assert_claim(&mut bare, "w:1", "3");
    assert_eq!(claim(&mut bare)["since"], since.to_string());
    claims(&mut bare, "w:3", 2, 2 * hour, "claim");
    assert_claim(&mut bare, "w:3", "2");
    claims(&mut bare, "w:1", 3, hour, "claim");
    assert_claim(&mut bare, "w:3", "2");
}

#[test]
fn a_claim_ends_with_its_life_time_or_above_the_capacity() {
    let mut bare = Bare::on(Server::with(Config::movable_clock));
    take(&mut bare, &["a1", "a2", "a3"]);
    poll(&mut bare, FIRST);
    assert!(acquire(&mut bare, KNOWN, &["b1"]).0 > 0);
    bare.server.set_clock(6001);
    assert_eq!(acquire(&mut bare, KNOWN, &["b1"]), (-2, 1));
    assert_eq!(claim(&mut bare), BTreeMap::new());

    // The capacity is below the claim now: its waiter has to ask, and the claim is not kept.
    poll(&mut bare, FIRST);
    resize(&mut bare, RECORD, "2");
    bare.ask::<()>(&["PEXPIRE", CLAIM, "2000"]);
    assert_eq!(poll(&mut bare, FIRST).must_ask, 1);
    assert_ttl(&bare.server, CLAIM, 1..=2000);
}

// ---------------------------------------------------------------------------------
// Redisson.

/// Both sides see one capacity and one set of permits.
#[test]
fn permits_of_redisson_and_of_leasehold_share_a_capacity() {
    let mut bare = Bare::start();
    let moment = now(&bare.server);
    let later = moment + 10 * MINUTE;
    assert!(redisson::set_permits(&mut bare, 3));
    assert!(redisson::acquire(&mut bare, moment, later, &["j1"]));
    assert_eq!(acquire(&mut bare, KNOWN, &["a1", "a2"]), (-2, 0));
    assert!(!redisson::acquire(&mut bare, moment, later, &["j2"]));
    assert_eq!(redisson::capacity(&mut bare, moment), 3);
    let (left, _) = acquire(&mut bare, KNOWN, &["b1"]);
    assert!((1..=MINUTE).contains(&left));

    // Each side wakes the other.
    let mut listener = listen(&bare);
    assert!(redisson::release(&mut bare, moment, "j1"));
    assert_message(&mut listener, "1");
    assert_eq!(acquire(&mut bare, KNOWN, &["b1"]), (-2, 0));
    release(&mut bare, &["b1"]);
    assert_message(&mut listener, "1");
    assert!(redisson::acquire(&mut bare, moment, later, &["j2"]));

    // Each side reclaims what has expired on the other.
    expire(&mut bare, &["j2"]);
    assert_eq!(acquire(&mut bare, KNOWN, &["b1"]), (-2, 0));
    assert!(!redisson::release(&mut bare, moment, "j2"));
    let expiry: i64 = bare.ask(&["ZSCORE", EXPIRIES, "a1"]);
    assert!(redisson::acquire(&mut bare, expiry, later, &["j3"]));
    assert_eq!(renew(&mut bare, -2, &["a1", "a2", "b1"]).len(), 1);
    assert_eq!(redisson::capacity(&mut bare, moment), 3);

    // Java's clock is ahead: the permits are gone before their leases end, and are not given back.
    assert_eq!(redisson::capacity(&mut bare, later + MINUTE), 3);
    assert_eq!(release(&mut bare, &["a1", "a2"]), -1);
    assert_eq!(renew(&mut bare, 10 * MINUTE, &["b1"]), [1]);
    assert_state(&mut bare, 3, &[]);
}

#[test]
fn a_permit_that_redisson_gives_back_is_lost_and_is_given_back_once() {
    let mut bare = Bare::start();
    let moment = now(&bare.server);
    take(&mut bare, &["a1", "a2", "a3"]);
    assert!(redisson::release_many(&mut bare, moment, &["a1", "a3"]));
    assert_eq!(renew(&mut bare, 10 * MINUTE, &["a1", "a2", "a3"]), [1, 3]);
    assert_eq!(release(&mut bare, &["a1", "a2", "a3"]), -1);
    assert_state(&mut bare, 5, &[]);

    // An expiry that Redisson brought forward.
    take(&mut bare, &["b1"]);
    assert!(redisson::update_lease(&mut bare, moment, moment + 1000, "b1"));
    assert_lease(&mut bare, "b1", 1000);
    assert_eq!(renew(&mut bare, MINUTE, &["b1"]), [] as [usize; 0]);
    assert_lease(&mut bare, "b1", MINUTE);
}

#[test]
fn a_capacity_that_redisson_changes_counts() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1", "a2", "a3"]);
    redisson::set_capacity(&mut bare, 2);
    assert_state(&mut bare, -1, &["a1", "a2", "a3"]);
    assert_eq!(acquire(&mut bare, CALL, &["b1", "b2", "b3"]), (-3, 2));
    redisson::add(&mut bare, -4);
    assert_eq!(acquire(&mut bare, CALL, &["b1"]), (-3, -2), "a negative total");
    redisson::add(&mut bare, 6);
    assert_eq!(acquire(&mut bare, CALL, &["b1"]), (-2, 0));
    redisson::set_capacity(&mut bare, 9);
    assert_eq!(acquire(&mut bare, CALL, &["b2"]), (-2, 4));
}

/// Java's `expire` limits the life of a semaphore.
#[test]
fn a_time_to_live_of_redisson_stays() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1"]);
    for key in [PERMITS, EXPIRIES] {
        bare.ask::<()>(&["PEXPIRE", key, "600000"]);
    }
    take(&mut bare, &["b1"]);
    release(&mut bare, &["a1"]);
    leave(&mut bare, "", &["b1"]);
    take(&mut bare, &["c1"]);
    expire(&mut bare, &["c1"]);
    poll(&mut bare, FIRST);
    resize(&mut bare, RECORD, "7");
    assert_ttl(&bare.server, PERMITS, 300_000..=600_000);
    assert_state(&mut bare, 7, &[]);
}

// ---------------------------------------------------------------------------------
// Lost and damaged keys, and a full server.

#[test]
fn the_capacity_stays_true_if_the_count_of_free_permits_is_lost() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1", "a2", "a3"]);
    bare.ask::<()>(&["DEL", PERMITS]);
    assert_eq!(silently(&mut bare, |bare| release(bare, &["a1"])), 0);
    assert_eq!(silently(&mut bare, |bare| leave(bare, "", &["a2"])), 0);
    assert!(!bare.ask::<bool>(&["EXISTS", PERMITS]), "unknown until an acquire with a capacity");
    assert_eq!(acquire(&mut bare, KNOWN, &["b1"]), (-3, 0));
    assert_eq!(take(&mut bare, &["b1"]), 3);
    assert_state(&mut bare, 3, &["a3", "b1"]);

    // More are in use than the capacity: nothing is granted, and the count is below 0.
    bare.ask::<()>(&["DEL", PERMITS]);
    let one = Call { capacity: "1", ..CALL };
    assert!(acquire(&mut bare, one, &["c1"]).0 > 0);
    assert_state(&mut bare, -1, &["a3", "b1"]);

    // Expired permits are reclaimed in the call that finds no count.
    bare.ask::<()>(&["DEL", PERMITS]);
    expire(&mut bare, &["a3", "b1"]);
    assert_eq!(acquire(&mut bare, one, &["c1"]), (-2, 0));
    assert_state(&mut bare, 0, &["c1"]);
}

#[test]
fn a_key_of_another_type_is_refused_and_no_permit_is_lost() {
    let mut bare = Bare::start();
    let steps: [(&str, &[&str]); 3] = [
        ("semaphore_acquire", &["60000", "5", SEMAPHORE_CHANNEL, "", "b1"]),
        ("semaphore_leave", &[SEMAPHORE_CHANNEL, "w:1", "a1"]),
        ("semaphore_release", &[SEMAPHORE_CHANNEL, "a1"]),
    ];
    for (step, args) in steps {
        let keys = if step == "semaphore_release" { &KEYS[..2] } else { &KEYS };
        for damaged in keys {
            take(&mut bare, &["a1", "a2", "a3", "a4", "a5"]);
            expire(&mut bare, &["a2"]);
            bare.ask::<()>(&["DEL", damaged]);
            bare.ask::<()>(&["RPUSH", damaged, "a list"]);
            let reply = bare.try_call::<Value>(step, keys, args);
            let error = reply.expect_err("a list is refused");
            assert!(is_refused_as("WRONGTYPE", &error), "{step} {damaged}: {error}");
            assert_eq!(bare.ask::<String>(&["TYPE", damaged]), "list");
            if *damaged == CLAIM {
                assert_state(&mut bare, 0, &["a1", "a2", "a3", "a4", "a5"]);
            }
            bare.ask::<()>(&["FLUSHALL"]);
        }
    }
}

#[test]
fn a_number_of_permits_that_is_no_integer_is_refused_and_nothing_changes() {
    let mut bare = Bare::start();
    let steps: [(&str, &[&str], &[&str]); 5] = [
        ("semaphore_acquire", &KEYS, &["60000", "5", SEMAPHORE_CHANNEL, "", "b1"]),
        ("semaphore_leave", &KEYS, &[SEMAPHORE_CHANNEL, "w:1", "a1"]),
        ("semaphore_release", &KEYS[..2], &[SEMAPHORE_CHANNEL, "a1"]),
        ("semaphore_resize", &[PERMITS, EXPIRIES, RECORD], &["5", SEMAPHORE_CHANNEL, "600000"]),
        ("semaphore_info", &KEYS[..2], &["5", "counts"]),
    ];
    take(&mut bare, &["a1", "a2", "a3", "a4", "a5"]);
    for text in NO_INTEGERS {
        bare.ask::<()>(&["SET", PERMITS, text]);
        let contents = |bare: &Bare| KEYS.map(|key| bare.server.content(key));
        let before = contents(&bare);
        for (step, keys, args) in steps {
            let error = bare.try_call::<Value>(step, keys, args).expect_err("no integer");
            assert!(is_refused_as("WRONGTYPE", &error), "{step} {text:?}: {error}");
        }
        assert_eq!(contents(&bare), before, "{text:?}");
        assert!(!bare.ask::<bool>(&["EXISTS", RECORD]), "{text:?}");
    }
}

#[test]
fn a_full_server_still_releases_renews_reclaims_and_claims() {
    let mut bare = Bare::start();
    take(&mut bare, &["a1", "a2", "a3", "a4", "a5"]);
    expire(&mut bare, &["a4", "a5"]);
    bare.server.refuse_memory();
    let refused =
        |reply: RedisResult<(i64, i64)>| reply.is_err_and(|error| is_refused_as("OOM", &error));

    // A new permit needs memory. A refusal for lack of permits, and a reclaim, do not.
    assert_eq!(poll(&mut bare, FIRST).must_ask, 0);
    assert_claim(&mut bare, "w:1", "3");
    assert_state(&mut bare, 2, &["a1", "a2", "a3"]);
    assert_eq!(leave(&mut bare, "w:1", &["x"]), -1);
    assert!(refused(try_acquire(&mut bare, CALL, &["b1"])));
    assert!(acquire(&mut bare, CALL, &["b1", "b2", "b3"]).0 > 0);
    assert_eq!(poll(&mut bare, FIRST).must_ask, 0, "no permit has expired");
    assert_claim(&mut bare, "w:1", "3");

    assert_eq!(renew(&mut bare, 10 * MINUTE, &["a1", "a2"]), [] as [usize; 0]);
    assert_lease(&mut bare, "a2", 10 * MINUTE);
    assert_eq!(release(&mut bare, &["a1"]), 0);
    assert_eq!(leave(&mut bare, "w:1", &["a2"]), 0);
    assert_eq!(claim(&mut bare), BTreeMap::new());
    assert_state(&mut bare, 4, &["a3"]);
    let resized = bare.try_call::<Value>(
        "semaphore_resize",
        &[PERMITS, EXPIRIES, RECORD],
        &["9", SEMAPHORE_CHANNEL, "600000"],
    );
    assert!(resized.is_err_and(|error| is_refused_as("OOM", &error)));
    assert_eq!(bare.call("request_close", &[RECORD], &["600000"]), 1);
    bare.server.grant_memory();
    assert_eq!(resize(&mut bare, RECORD, "9"), 0, "closed");
    assert_eq!(take(&mut bare, &["b1"]), 3);
}

/// A user that may access the keys in KEYS and no other key can run the scripts.
#[test]
fn semaphore_scripts_access_only_the_keys_in_keys() {
    let patterns = [PERMITS, EXPIRIES, CLAIM, RECORD].map(|key| format!("~{key}"));
    let rules = [&["resetchannels", "&redisson_sc:*", "+@all"][..], &texts(&patterns)].concat();
    let mut narrow = Bare::start().restricted(&rules);
    take(&mut narrow, &["a1", "a2", "a3"]);
    poll(&mut narrow, FIRST);
    renew(&mut narrow, MINUTE, &["a1"]);
    resize(&mut narrow, RECORD, "9");
    assert_eq!(release(&mut narrow, &["a1"]), 0);
    assert_eq!(leave(&mut narrow, "w:1", &["a2"]), 0);
    let args = ["", "holders", SLOTS];
    let info: Vec<Value> = narrow.reply("semaphore_info", &[PERMITS, EXPIRIES], &args);
    assert_eq!(info.last(), Some(&Value::Array(Vec::new())), "no slots without their permission");
}

/// Ids are bytes.
#[test]
fn ids_of_any_bytes_are_kept() {
    let mut bare = Bare::start();
    let ids: [[u8; 16]; 3] = [[0; 16], [255; 16], *b"\r\n\0 $*\xc3\x28 12345\n\n"];
    let call = |bare: &mut Bare, script: &str, keys: &[&str], args: &[&str]| -> Value {
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest(script)).arg(keys.len()).arg(keys).arg(args);
        for id in &ids {
            command.arg(id);
        }
        command.query(&mut bare.connection).expect("a reply")
    };
    let args = ["60000", "5", SEMAPHORE_CHANNEL, ""];
    for _ in 0..2 {
        call(&mut bare, "semaphore_acquire", &KEYS, &args);
        assert_eq!(bare.ask::<i64>(&["GET", PERMITS]), 2);
    }
    let found: Vec<Vec<u8>> = bare.ask(&["ZRANGE", EXPIRIES, "0", "-1"]);
    assert!(ids.iter().all(|id| found.contains(&id.to_vec())));
    let lost = call(&mut bare, "semaphore_renew", &[EXPIRIES; 3], &["90000"]);
    assert_eq!(lost, Value::Array(vec![]));
    let given = call(&mut bare, "semaphore_release", &[PERMITS, EXPIRIES], &[SEMAPHORE_CHANNEL]);
    assert_eq!(given, Value::Int(0));
    assert_state(&mut bare, 5, &[]);
}

// ---------------------------------------------------------------------------------
// A cluster.

/// A cluster of two nodes while the slot of the semaphore moves from one to the other.
struct Moving {
    cluster: Cluster,
    bare: Bare,
    to: usize,
}

impl Moving {
    /// Prepares a semaphore, and begins to move its slot.
    fn after(prepare: impl FnOnce(&mut Bare)) -> Moving {
        let cluster = Cluster::start(2, 0);
        let from = cluster.owner_of(PERMITS);
        let is_other = |node: &Server| node.port() != from.port();
        let to = cluster.nodes().iter().position(is_other).expect("another node");
        load_scripts(from);
        let mut bare = Bare { server: Server::start(), connection: from.connection() };
        prepare(&mut bare);
        cluster.begin_migration(cluster.slot_of(PERMITS), &cluster.nodes()[to]);
        Moving { cluster, bare, to }
    }

    /// Ends the move, and returns the free permits and the number of the others.
    fn end(mut self) -> (i64, usize) {
        let (slot, to) = (self.cluster.slot_of(PERMITS), &self.cluster.nodes()[self.to]);
        self.cluster.move_keys(slot, to);
        self.cluster.end_migration(slot, to);
        self.bare.connection = to.connection();
        let (free, ids) = state(&mut self.bare);
        (free.expect("the key has moved"), ids.len())
    }
}

#[test]
fn a_release_gives_back_the_last_permit_while_the_slot_moves() {
    let mut moving = Moving::after(|bare| assert_eq!(take(bare, &["a1"]), 4));
    assert_eq!(release(&mut moving.bare, &["a1"]), 0);
    assert_eq!(moving.end(), (5, 0));
    let mut moving = Moving::after(|bare| {
        take(bare, &["a1"]);
        poll(bare, Waiter { permits: 5, ..FIRST });
    });
    assert_eq!(leave(&mut moving.bare, "w:1", &["a1"]), 0);
    assert_eq!(moving.end(), (5, 0));
}

#[test]
fn an_early_release_keeps_the_last_permit_in_use_while_the_slot_moves() {
    let id = ["12345678a0000001"];
    let mut moving = Moving::after(|bare| assert_eq!(take(bare, &id), 4));
    assert_eq!(release_early(&mut moving.bare, 600_000, &id), 0);
    moving.cluster.move_keys(moving.cluster.slot_of(PERMITS), &moving.cluster.nodes()[moving.to]);
    let to = &moving.cluster.nodes()[moving.to];
    moving.cluster.end_migration(moving.cluster.slot_of(PERMITS), to);
    assert_eq!(to.ask::<i64>(&["ZCARD", EXPIRIES]), 1);
    assert_eq!(to.ask::<i64>(&["GET", PERMITS]), 4);
}

/// A key that vanishes within a script counts as moved, and the next access to the key fails.
#[test]
fn a_reclaim_of_all_permits_in_use_loses_none_while_the_slot_moves() {
    let prepare = |bare: &mut Bare| {
        let all = ["a1", "a2", "a3", "a4", "a5"];
        take(bare, &all);
        poll(bare, Waiter { permits: 1, ..FIRST });
        for id in all {
            bare.ask::<()>(&["ZADD", EXPIRIES, "1", id]);
        }
    };
    let waiter = ["6000", SEMAPHORE_CHANNEL, "w:1", "1", "1500", "claim"];
    let steps: [&dyn Fn(&mut Bare) -> bool; 3] = [
        &|bare| try_acquire(bare, KNOWN, &["b1"]).is_err(),
        &|bare| try_acquire(bare, KNOWN, &["b1", "b2", "b3", "b4", "b5"]).is_err(),
        &|bare| bare.try_call::<Value>("semaphore_poll", &KEYS, &waiter).is_err(),
    ];
    for step in steps {
        let mut moving = Moving::after(prepare);
        assert!(step(&mut moving.bare), "the script reads the key that has vanished");
        let (free, in_use) = moving.end();
        assert_eq!(free + in_use as i64, 5, "{in_use} in use");
    }
}
