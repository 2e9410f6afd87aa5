//! The scripts of the queue lock: every documented reply, the order of the grants, dead waiters,
//! late copies of each command, damaged keys, and a full server.

use std::collections::BTreeMap;

use redis::{RedisResult, Value};

use crate::harness::bare::*;
use crate::harness::details::wake_channel;
use crate::harness::{Cluster, Server, pttl};
use crate::sequences::try_sequences;

const QUEUE: &str = "the-queue:{the-lock}";
const CLIENTS: &str = "the-clients:{the-lock}";
const COUNTER: &str = "redisson_lock_token:{the-lock}";
const KEYS: [&str; 4] = [LOCK, QUEUE, CLIENTS, COUNTER];
/// A field of Redisson, which has no hold numbers.
const JAVA: &str = "5c6a9f2e-9dad-11d1-80b4-00c04fd430c8:57";

fn uuid(client: usize) -> String {
    format!("6ba7b810-9dad-11d1-80b4-{client:012}")
}

fn owner(client: usize, hold: usize) -> String {
    format!("{}:{hold}", uuid(client))
}

/// The wait of a caller. With a grant lease of 0 its client counts as gone at once.
#[derive(Clone, Copy)]
struct Wait<'a> {
    grant_lease: &'a str,
    mode: &'a str,
    advance: &'a str,
    place: &'a str,
}

const SINGLE: Wait<'static> =
    Wait { grant_lease: "30000", mode: "single", advance: "0", place: "" };
const CLUSTER: Wait<'static> = Wait { mode: "cluster", ..SINGLE };

/// A reply of `queue_acquire`.
#[derive(Clone, Debug, PartialEq)]
struct Acquired {
    ttl: i64,
    token: i64,
    place: i64,
    since: i64,
}

/// A reply of `queue_heartbeat` about one lock.
#[derive(Clone, Debug, PartialEq)]
struct Beat {
    since: i64,
    ttl: i64,
    hold: i64,
    token: i64,
    bound: i64,
}

/// A message on a client's wake channel.
#[derive(Debug, PartialEq)]
struct Granted {
    hold: usize,
    token: i64,
    lease: i64,
    key: String,
}

fn listen(bare: &Bare, client: usize) -> Listener {
    Listener::on(&bare.server, &wake_channel(uuid(client)))
}

/// Returns the next grant. Skips messages about locks that were freed by force.
fn next_grant(listener: &mut Listener) -> Granted {
    let (_, message) = listener.next_message();
    if message == format!("freed {LOCK}") {
        return next_grant(listener);
    }
    let words: Vec<&str> = message.splitn(5, ' ').collect();
    let ["granted", hold, token, lease, key] = words[..] else { panic!("{message}") };
    let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{message}"));
    Granted {
        hold: number(hold) as usize,
        token: number(token),
        lease: number(lease),
        key: key.to_owned(),
    }
}

fn try_acquire(bare: &mut Bare, args: &[&str]) -> RedisResult<Acquired> {
    let [ttl, token, place, since]: [i64; 4] =
        bare.try_call::<Vec<i64>>("queue_acquire", &KEYS, args)?.try_into().expect("four numbers");
    Ok(Acquired { ttl, token, place, since })
}

#[track_caller]
fn take(bare: &mut Bare, owner: &str) -> Acquired {
    try_acquire(bare, &["60000", owner]).unwrap_or_else(|error| panic!("{owner}: {error}"))
}

#[track_caller]
fn wait(bare: &mut Bare, owner: &str, wait: Wait) -> Acquired {
    let Wait { grant_lease, mode, advance, place } = wait;
    try_acquire(bare, &["60000", owner, grant_lease, mode, advance, place])
        .unwrap_or_else(|error| panic!("{owner}: {error}"))
}

fn wait_in_turn(bare: &mut Bare, client: usize, holds: impl Iterator<Item = usize>) {
    for hold in holds {
        wait(bare, &owner(client, hold), SINGLE);
    }
}

/// Queues a caller, and ends the terms of its client.
fn wait_and_die(bare: &mut Bare, owner: &str) {
    wait(bare, owner, CLUSTER);
    end_terms(bare, owner);
}

/// Has the client of a caller count as gone since 1 ms after 1970.
fn end_terms(bare: &mut Bare, owner: &str) {
    let (client, _) = owner.split_at(36);
    let terms: String = bare.ask(&["HGET", CLIENTS, client]);
    let (_, rest) = terms.split_once(' ').expect("the end and more");
    bare.ask::<()>(&["HSET", CLIENTS, client, &format!("1 {rest}")]);
}

#[track_caller]
fn release(bare: &mut Bare, owner: &str) -> i64 {
    bare.call("queue_release", &KEYS, &[owner, CHANNEL, "0"])
}

#[track_caller]
fn force(bare: &mut Bare) -> i64 {
    bare.call("queue_force_unlock", &KEYS, &[CHANNEL, "0"])
}

#[track_caller]
fn beats(bare: &mut Bare, client: usize, keys: &[&str]) -> Vec<Beat> {
    let args = [&*uuid(client), "30000", "single"];
    let numbers: Vec<i64> = bare.reply("queue_heartbeat", keys, &args);
    assert_eq!(numbers.len(), keys.len() / 4 * 5);
    let beat =
        |it: &[i64]| Beat { since: it[0], ttl: it[1], hold: it[2], token: it[3], bound: it[4] };
    numbers.chunks(5).map(beat).collect()
}

#[track_caller]
fn beat(bare: &mut Bare, client: usize) -> Beat {
    beats(bare, client, &KEYS).remove(0)
}

fn queued(server: &Server) -> Vec<String> {
    server.ask(&["ZRANGE", QUEUE, "0", "-1"])
}

fn counter(server: &Server) -> Option<i64> {
    server.ask(&["GET", COUNTER])
}

#[track_caller]
fn assert_about(lease: i64, ttl: i64) {
    assert!((lease / 2..=lease).contains(&ttl), "{ttl} ms remain of {lease}");
}

#[track_caller]
fn assert_lock(bare: &Bare, owner: &str, lease: i64) {
    bare.assert_held_by(owner);
    assert_about(lease, pttl(&bare.server, LOCK));
}

/// Every key expires, but not the counter.
#[track_caller]
fn assert_expiries(server: &Server) {
    for key in server.keys() {
        assert_eq!(pttl(server, &key) == -1, key == COUNTER, "{key}: {}", pttl(server, &key));
    }
}

const ACQUIRED: [&str; 8] = [
    "1 -2 acquired",
    "-1 held without expiry",
    "else the holder's remaining lease in ms, or 0 if too many dead waiters precede",
    "2 the token of the hold",
    "if refused, a number that is at least each token handed out so far and less than each \
     later one",
    "3 the caller's place in the queue, or 0",
    "4 the time in us since which the client has its terms: if it changes, waiters of \
     the client may have lost their places",
    "0 without a place",
];
const BEATEN: [&str; 6] = [
    "5 numbers per lock: the time in us since which the client has its terms, or 0 if nobody \
     waits: if it changes, its waiters may have lost their places",
    "the holder's remaining lease in ms, -2 free, -1 held without expiry",
    "the hold number if this client holds the lock, else 0",
    "the token of that hold, else 0",
    "and a number that is at least each token handed out so far and less than each \
     later one",
    "0, -1, 0, 0 and 0 for a lock with a key of another type",
];
const NEXT: &str = "1 granted to the next waiter";

// ---------------------------------------------------------------------------------
// The replies.

#[test]
fn queue_acquire_replies_as_documented() {
    documents("queue_acquire", &ACQUIRED);
    let mut bare = Bare::start();
    let (mine, other) = (owner(1, 1), owner(2, 1));

    // A free lock. The first token is the server's time.
    let before = micros(&bare.server);
    let first = take(&mut bare, &mine);
    assert_eq!((first.ttl, first.place, first.since), (-2, 0, 0));
    assert!((before..=micros(&bare.server)).contains(&first.token));
    assert_lock(&bare, &mine, 60_000);
    assert_eq!(bare.server.keys(), [COUNTER, LOCK], "no queue without a waiter");
    assert_eq!(counter(&bare.server), Some(first.token));

    // The same owner again: the same token. The lease becomes longer, never shorter.
    bare.ask::<()>(&["PEXPIRE", LOCK, "1000"]);
    assert_eq!(wait(&mut bare, &mine, SINGLE), first);
    assert_lock(&bare, &mine, 60_000);
    bare.ask::<()>(&["PEXPIRE", LOCK, "600000"]);
    assert_eq!(take(&mut bare, &mine), first);
    assert_lock(&bare, &mine, 600_000);
    assert_eq!(bare.server.keys(), [COUNTER, LOCK], "a holder does not queue");

    // Held by another owner: a caller without a wait leaves no trace.
    let refused = take(&mut bare, &other);
    assert_about(600_000, refused.ttl);
    assert_eq!((refused.place, refused.since), (0, 0));
    assert!(refused.token >= first.token);
    assert_eq!(bare.server.keys(), [COUNTER, LOCK]);
}

#[test]
fn a_caller_that_waits_has_a_place_and_keeps_it() {
    let mut bare = Bare::start();
    let (mine, other, third) = (owner(1, 1), owner(2, 1), owner(2, 2));
    take(&mut bare, &mine);
    let before = micros(&bare.server);
    let first = wait(&mut bare, &other, SINGLE);
    assert_about(60_000, first.ttl);
    assert!((before..=micros(&bare.server)).contains(&first.place));
    assert_eq!(first.since, first.place, "the client had no terms");
    let again = wait(&mut bare, &other, SINGLE);
    assert_eq!((again.place, again.since), (first.place, first.since));
    let behind = wait(&mut bare, &third, SINGLE);
    assert!(behind.place > again.place && behind.since == again.since);
    assert_eq!(queued(&bare.server), [other.clone(), third.clone()]);
    assert_expiries(&bare.server);
    assert_ttl(&bare.server, QUEUE, 1_800_000..=3_600_000);
    assert_ttl(&bare.server, CLIENTS, 30_000..=60_000);

    // Held without expiry.
    bare.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!([take(&mut bare, &other).ttl, wait(&mut bare, &other, SINGLE).ttl], [-1, -1]);
    // The holder's own lock without expiry gets a lease.
    assert_eq!(take(&mut bare, &mine).ttl, -2);
    assert_lock(&bare, &mine, 60_000);
}

#[test]
fn queue_release_replies_as_documented() {
    documents("queue_release", &["-1 not held by this owner", NEXT, RECEIVED]);
    let mut bare = Bare::start();
    let (mine, other) = (owner(1, 1), owner(2, 7));

    // Free, then held by another owner.
    assert_eq!(release(&mut bare, &mine), -1);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    take(&mut bare, &other);
    assert_eq!(release(&mut bare, &mine), -1);
    assert_lock(&bare, &other, 60_000);

    // Without a waiter: the number of other subscribers.
    assert_eq!(release(&mut bare, &other), 0);
    assert_eq!(bare.server.keys(), [COUNTER]);
    let mut plain = Listener::on(&bare.server, CHANNEL);
    take(&mut bare, &mine);
    assert_eq!(release(&mut bare, &mine), 1);
    assert_eq!(plain.next_message(), (CHANNEL.to_owned(), "0".to_owned()));
}

#[test]
fn a_release_grants_the_lock_to_a_waiter_whose_client_alone_receives_a_message() {
    let mut bare = Bare::start();
    let (mine, other) = (owner(1, 1), owner(2, 7));
    let mut waiter = listen(&bare, 2);
    let first = take(&mut bare, &mine);
    wait(&mut bare, &other, SINGLE);
    bare.server.reset_stats();
    assert_eq!(release(&mut bare, &mine), 1);
    assert_eq!(bare.server.calls("publish"), 1);
    let granted = next_grant(&mut waiter);
    assert_eq!((granted.hold, granted.lease, &*granted.key), (7, 30_000, LOCK));
    assert!(granted.token > first.token);
    assert_eq!(counter(&bare.server), Some(granted.token));
    assert_lock(&bare, &other, 30_000);
    assert_eq!(queued(&bare.server), Vec::<String>::new());
    assert_expiries(&bare.server);

    // A release by a former owner changes nothing.
    bare.server.reset_stats();
    assert_eq!(release(&mut bare, &mine), -1);
    assert_lock(&bare, &other, 30_000);
    assert_eq!(bare.server.calls("publish"), 0);
    // The grantee may ask again: the same token, and the full lease.
    assert_eq!(
        wait(&mut bare, &other, SINGLE),
        Acquired { ttl: -2, token: granted.token, place: 0, since: 0 }
    );
    assert_lock(&bare, &other, 60_000);
}

#[test]
fn queue_force_unlock_replies_as_documented() {
    documents("queue_force_unlock", &["-1 the lock was free", NEXT, RECEIVED]);
    let mut bare = Bare::start();
    let other = owner(2, 7);
    let mut waiter = listen(&bare, 2);
    assert_eq!(force(&mut bare), -1);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    take(&mut bare, &owner(1, 1));
    assert_eq!(force(&mut bare), 0);
    let mut plain = Listener::on(&bare.server, CHANNEL);
    hold(&bare.server, LOCK, JAVA, "60000");
    assert_eq!(force(&mut bare), 1, "whatever its holder");
    assert_eq!(plain.next_message(), (CHANNEL.to_owned(), "0".to_owned()));
    take(&mut bare, &owner(1, 2));
    wait(&mut bare, &other, SINGLE);
    bare.server.reset_stats();
    assert_eq!(force(&mut bare), 1);
    assert_eq!(bare.server.calls("publish"), 2, "to the former holder, and to the next one");
    assert_eq!(next_grant(&mut waiter).hold, 7);
    assert_lock(&bare, &other, 30_000);
    // A free lock with a waiter.
    wait(&mut bare, &owner(2, 8), SINGLE);
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(force(&mut bare), -1);
    assert_eq!(next_grant(&mut waiter).hold, 8);
}

#[test]
fn queue_heartbeat_replies_as_documented() {
    documents("queue_heartbeat", &BEATEN);
    let mut bare = Bare::start();

    // Free, and nobody waits.
    let first = beat(&mut bare, 2);
    assert_eq!((first.since, first.ttl, first.hold, first.token), (0, -2, 0, 0));
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    let token = take(&mut bare, &owner(1, 1)).token;
    assert!(first.bound < token);

    // Held by another client, with and without expiry; held by this client.
    let refused = beat(&mut bare, 2);
    assert_about(60_000, refused.ttl);
    assert_eq!((refused.since, refused.hold, refused.token), (0, 0, 0));
    assert!(refused.bound >= token);
    let held = beat(&mut bare, 1);
    assert_about(60_000, held.ttl);
    assert_eq!((held.hold, held.token), (1, token));
    assert!(held.bound >= token);
    bare.ask::<()>(&["PERSIST", LOCK]);
    assert_eq!(beat(&mut bare, 2).ttl, -1);
    bare.ask::<()>(&["DEL", LOCK]);
    assert!(take(&mut bare, &owner(1, 2)).token > held.bound);
}

#[test]
fn a_heartbeat_reports_since_when_a_client_has_its_terms() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    assert_eq!(beat(&mut bare, 2).since, 0, "nobody waits");
    assert_eq!(bare.server.keys(), [COUNTER, LOCK]);
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since;
    assert_eq!(beat(&mut bare, 2).since, since);
    // A client without terms gets terms, because its waiters may have lost their places.
    let before = micros(&bare.server);
    let other = beat(&mut bare, 3).since;
    assert!((before..=micros(&bare.server)).contains(&other));
    assert_eq!(beat(&mut bare, 3).since, other);
    assert_expiries(&bare.server);
}

/// Otherwise each grant to the only waiter would make other callers of its client ask.
#[test]
fn a_grant_keeps_the_terms_of_the_clients_and_the_last_caller_deletes_them() {
    let mut bare = Bare::start();
    let _listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since;
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(queued(&bare.server), Vec::<String>::new());
    assert_eq!(wait(&mut bare, &owner(2, 2), SINGLE).since, since);
    // The last caller that leaves a held lock, and a release that finds no waiter.
    assert_eq!(release(&mut bare, &owner(2, 2)), -1);
    assert_eq!(bare.server.keys(), [COUNTER, LOCK]);
    let later = wait(&mut bare, &owner(2, 3), SINGLE).since;
    assert!(later > since);
    assert_eq!(release(&mut bare, &owner(2, 1)), 1);
    assert!(bare.server.keys().contains(&CLIENTS.to_owned()));
    assert_eq!(release(&mut bare, &owner(2, 3)), 0);
    assert_eq!(bare.server.keys(), [COUNTER]);
}

/// The grantee may not know of its grant, which ends.
#[test]
fn a_client_learns_of_a_grant_that_was_ended_by_force() {
    let mut bare = Bare::start();
    let _listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since;
    wait(&mut bare, &owner(3, 1), CLUSTER);
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(force(&mut bare), 1);
    assert_lock(&bare, &owner(3, 1), 30_000);
    wait(&mut bare, &owner(3, 2), CLUSTER);
    assert!(beat(&mut bare, 2).since > since);
}

/// Otherwise other clients would overtake the waiters of the holder's client.
#[test]
fn force_unlock_keeps_the_places_of_the_clients_of_the_holder() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(2, 1));
    wait(&mut bare, &owner(2, 2), SINGLE);
    wait(&mut bare, &owner(3, 1), CLUSTER);
    assert_eq!(force(&mut bare), 1);
    assert_lock(&bare, &owner(2, 2), 30_000);
    assert_eq!(next_grant(&mut listener).hold, 2);
}

// ---------------------------------------------------------------------------------
// The order.

/// Grants the lock until no waiter is left, and returns the hold numbers in order.
fn drain(bare: &mut Bare, listener: &mut Listener, client: usize) -> Vec<usize> {
    let mut holds = Vec::new();
    while force(bare) == 1 {
        let granted = next_grant(listener);
        bare.assert_held_by(&owner(client, granted.hold));
        holds.push(granted.hold);
    }
    holds
}

#[test]
fn waiters_are_granted_in_the_order_of_arrival_and_weight() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let advances = ["0", "0", "9000000", "1000000", "9000000", "0"];
    for (number, advance) in advances.iter().enumerate() {
        wait(&mut bare, &owner(2, number), Wait { advance, ..SINGLE });
    }
    assert_eq!(drain(&mut bare, &mut listener, 2), [2, 4, 3, 0, 1, 5]);
    assert_eq!(queued(&bare.server), Vec::<String>::new());
}

/// The bound of the order: a weight moves a waiter forward by a fixed time.
#[test]
fn a_waiter_is_overtaken_only_by_arrivals_within_the_time_of_their_weight() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let place = wait(&mut bare, &owner(2, 1), SINGLE).place;
    let heavy = wait(&mut bare, &owner(2, 2), Wait { advance: "9000000", ..SINGLE });
    assert!(heavy.place < place && place - heavy.place <= 9_000_000);
    // A place of long ago, which the client sends again.
    let earlier = (heavy.place - 1).to_string();
    let old = wait(&mut bare, &owner(2, 3), Wait { place: &earlier, ..SINGLE });
    assert_eq!(old.place, heavy.place - 1);
    assert_eq!(drain(&mut bare, &mut listener, 2), [3, 2, 1]);
}

#[test]
fn a_lost_place_is_given_again() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let waits = [1, 2, 3].map(|hold| wait(&mut bare, &owner(2, hold), SINGLE));
    let (places, since) = (waits.each_ref().map(|it| it.place.to_string()), waits[0].since);
    bare.ask::<()>(&["DEL", QUEUE, CLIENTS]);
    assert_ne!(beat(&mut bare, 2).since, since, "the client learns of it");
    for hold in [3, 1, 2] {
        let place = &places[hold - 1];
        let again = wait(&mut bare, &owner(2, hold), Wait { place, ..SINGLE });
        assert_eq!(again.place.to_string(), *place);
    }
    assert_eq!(drain(&mut bare, &mut listener, 2), [1, 2, 3]);
}

/// The late copy of a first acquire queues the caller at a later place.
#[test]
fn a_lost_place_is_given_again_after_a_late_copy_of_the_first_acquire() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    let place = wait(&mut bare, &owner(2, 1), SINGLE).place;
    wait(&mut bare, &owner(3, 1), SINGLE);
    bare.ask::<()>(&["ZREM", QUEUE, &owner(2, 1)]);
    let late = wait(&mut bare, &owner(2, 1), SINGLE);
    assert!(late.place > place);
    let again = wait(&mut bare, &owner(2, 1), Wait { place: &place.to_string(), ..SINGLE });
    assert_eq!(again.place, place);
    // A copy that is later still changes nothing.
    assert_eq!(wait(&mut bare, &owner(2, 1), SINGLE).place, place);
    assert_eq!(queued(&bare.server), [owner(2, 1), owner(3, 1)]);
}

#[test]
fn a_caller_without_a_wait_never_overtakes_a_live_waiter() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    wait(&mut bare, &owner(2, 1), SINGLE);
    wait(&mut bare, &owner(2, 2), SINGLE);
    bare.ask::<()>(&["DEL", LOCK]);
    let refused = take(&mut bare, &owner(3, 1));
    assert_about(30_000, refused.ttl);
    assert_eq!((refused.place, refused.since), (0, 0));
    let granted = next_grant(&mut listener);
    assert_eq!(granted.hold, 1);
    assert!(refused.token >= granted.token, "the bound covers the grant of this call");
    assert_eq!(queued(&bare.server), [owner(2, 2)]);
}

#[test]
fn a_caller_that_waits_takes_a_free_lock_if_it_is_the_best() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    wait(&mut bare, &owner(2, 1), SINGLE);
    bare.ask::<()>(&["DEL", LOCK]);
    // Behind another waiter: that waiter gets the lock.
    let refused = wait(&mut bare, &owner(3, 1), CLUSTER);
    assert_about(30_000, refused.ttl);
    assert!(refused.place > 0);
    assert_eq!(next_grant(&mut listener).hold, 1);
    bare.ask::<()>(&["DEL", LOCK]);
    // The best: the full lease, and no message.
    bare.server.reset_stats();
    let taken = wait(&mut bare, &owner(3, 1), CLUSTER);
    assert_eq!((taken.ttl, taken.place, taken.since), (-2, 0, 0), "no place");
    assert_lock(&bare, &owner(3, 1), 60_000);
    assert_eq!(bare.server.calls("publish"), 0);
    assert_eq!(counter(&bare.server), Some(taken.token));
    // A weight comes before an earlier arrival.
    wait(&mut bare, &owner(2, 2), SINGLE);
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(wait(&mut bare, &owner(3, 2), Wait { advance: "9000000", ..SINGLE }).ttl, -2);
}

// ---------------------------------------------------------------------------------
// Waiters that leave, and dead waiters.

#[test]
fn a_waiter_that_leaves_is_forgotten_and_passes_its_grant_on() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    wait_in_turn(&mut bare, 2, 1..=3);
    assert_eq!(release(&mut bare, &owner(2, 2)), -1);
    assert_eq!(queued(&bare.server), [owner(2, 1), owner(2, 3)]);
    assert_lock(&bare, &owner(1, 1), 60_000);
    // Granted while it leaves.
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(release(&mut bare, &owner(2, 1)), 1);
    assert_eq!([next_grant(&mut listener).hold, next_grant(&mut listener).hold], [1, 3]);
    assert_lock(&bare, &owner(2, 3), 30_000);
    // A leave from a free lock, whose holder's lease has ended.
    wait(&mut bare, &owner(2, 4), SINGLE);
    wait(&mut bare, &owner(2, 5), SINGLE);
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(release(&mut bare, &owner(2, 4)), -1);
    assert_eq!(next_grant(&mut listener).hold, 5);
}

/// A late acquire queues a caller that has left. Its client ends the grant by a release.
#[test]
fn a_late_acquire_of_a_caller_that_has_left_costs_one_more_release() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    wait(&mut bare, &owner(2, 1), SINGLE);
    assert_eq!(release(&mut bare, &owner(2, 1)), -1);
    wait(&mut bare, &owner(2, 1), SINGLE);
    wait(&mut bare, &owner(2, 2), SINGLE);
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(next_grant(&mut listener).hold, 1);
    assert_eq!(release(&mut bare, &owner(2, 1)), 1);
    assert_eq!(next_grant(&mut listener).hold, 2);
}

#[test]
fn a_grant_passes_over_dead_waiters() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    for dead in [1, 100] {
        take(&mut bare, &owner(1, dead));
        for client in 0..dead {
            wait_and_die(&mut bare, &owner(10 + client, 1));
        }
        wait(&mut bare, &owner(2, dead), SINGLE);
        let since = wait(&mut bare, &owner(3, dead), SINGLE).since;
        end_terms(&mut bare, &owner(3, dead));
        assert_eq!(release(&mut bare, &owner(1, dead)), 1);
        assert_eq!(next_grant(&mut listener).hold, dead);
        assert_eq!(queued(&bare.server), [owner(3, dead)], "only those before the grantee");
        assert_eq!(release(&mut bare, &owner(2, dead)), 0, "no live waiter");
        assert_ne!(beat(&mut bare, 3).since, since, "a client that lives learns of it");
        assert_eq!(queued(&bare.server), Vec::<String>::new());
    }
}

/// Otherwise the clients of a lock that is always in use would add up.
#[test]
fn clients_that_are_gone_are_forgotten() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    wait(&mut bare, &owner(1, 2), SINGLE);
    for client in 10..510 {
        wait_and_die(&mut bare, &owner(client, 1));
        release(&mut bare, &owner(client, 1));
        beat(&mut bare, 1);
    }
    let clients: usize = bare.ask(&["HLEN", CLIENTS]);
    assert!(clients < 100, "{clients} of 500");
}

#[test]
fn a_client_without_a_listener_is_dead_on_one_server_and_alive_in_a_cluster() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    let token = take(&mut bare, &owner(1, 1)).token;
    let since = wait(&mut bare, &owner(3, 1), SINGLE).since;
    wait(&mut bare, &owner(3, 2), SINGLE);
    wait(&mut bare, &owner(2, 1), SINGLE);
    bare.server.reset_stats();
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(bare.server.calls("publish"), 2, "one attempt per client");
    assert_eq!(bare.server.calls("hget"), 2, "one look per client");
    assert!(next_grant(&mut listener).token > token);
    assert_lock(&bare, &owner(2, 1), 30_000);
    assert_ne!(beat(&mut bare, 3).since, since, "the client learns that it lost its places");

    wait(&mut bare, &owner(3, 3), CLUSTER);
    wait(&mut bare, &owner(2, 2), SINGLE);
    assert_eq!(release(&mut bare, &owner(2, 1)), 1);
    assert_lock(&bare, &owner(3, 3), 30_000);
}

/// A caller that waits takes the lock behind dead waiters; so does a caller that does not wait.
#[test]
fn dead_waiters_do_not_exclude_a_caller() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    for caller in [None, Some(SINGLE)] {
        wait_and_die(&mut bare, &owner(3, 1));
        wait(&mut bare, &owner(4, 1), SINGLE); // does not listen
        bare.ask::<()>(&["DEL", LOCK]);
        let mine = owner(2, 1);
        let taken = match caller {
            None => take(&mut bare, &mine),
            Some(terms) => wait(&mut bare, &mine, terms),
        };
        assert_eq!((taken.ttl, taken.place, taken.since), (-2, 0, 0), "no place");
        assert_lock(&bare, &mine, 60_000);
        assert_eq!(queued(&bare.server), Vec::<String>::new());
    }
}

/// Returns the number of dead waiters that one run removes. Each takes two commands.
fn max_dead() -> usize {
    let text = script(COMMON_TEXTS[0]).text;
    let (_, bound) = text.split_once("local work = ").expect("the bound");
    bound.lines().next().and_then(|it| it.parse::<usize>().ok()).expect("a number") / 2
}

/// Queues waiters of clients without terms, before all others.
fn queue_dead(bare: &mut Bare, count: usize) {
    let mut pipe = redis::pipe();
    for at in 0..count {
        pipe.zadd(QUEUE, owner(100 + at, 1), at).ignore();
    }
    pipe.query::<()>(&mut bare.connection).expect("queued");
}

#[test]
fn a_run_that_meets_too_many_dead_waiters_continues_at_the_next_step() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    for step in ["heartbeat", "try", "wait", "release", "force_unlock"] {
        take(&mut bare, &owner(1, 1));
        wait(&mut bare, &owner(2, 1), SINGLE);
        queue_dead(&mut bare, max_dead() + 5);
        assert_eq!(release(&mut bare, &owner(1, 1)), 0, "no grant, but a message to other kinds");
        assert_eq!(bare.server.ask::<usize>(&["ZCARD", QUEUE]), 6, "bounded");
        match step {
            "heartbeat" => {
                beat(&mut bare, 3);
            }
            "try" => assert_about(30_000, take(&mut bare, &owner(3, 1)).ttl),
            "wait" => assert_about(30_000, wait(&mut bare, &owner(3, 1), SINGLE).ttl),
            "release" => assert_eq!(release(&mut bare, &owner(3, 1)), -1),
            _ => assert_eq!(force(&mut bare), -1),
        }
        assert_eq!(next_grant(&mut listener).hold, 1, "{step}");
        bare.ask::<()>(&["DEL", LOCK, QUEUE, CLIENTS]);
    }
    // A caller that meets too many of them is refused, with no lease to wait for.
    queue_dead(&mut bare, 2 * max_dead() + 5);
    assert_eq!(take(&mut bare, &owner(3, 1)).ttl, 0);
    let refused = wait(&mut bare, &owner(3, 1), SINGLE);
    assert!(refused.ttl == 0 && refused.place > 0, "{refused:?}");
    assert_eq!(wait(&mut bare, &owner(3, 1), SINGLE).ttl, -2);
}

/// A server stands still while it removes them.
#[test]
fn a_heartbeat_for_several_locks_meets_no_more_dead_waiters_than_one_for_one_lock() {
    let mut bare = Bare::start();
    queue_dead(&mut bare, max_dead() + 5);
    let queues: Vec<_> = (0..3).map(|at| format!("queue-{at}:{{the-lock}}")).collect();
    for queue in &queues {
        bare.ask::<()>(&["COPY", QUEUE, queue]);
    }
    let names: Vec<_> = (0..3).map(|at| format!("lock-{at}:{{the-lock}}")).collect();
    let keys = names.iter().zip(&queues).flat_map(|(name, queue)| [name, queue, CLIENTS, COUNTER]);
    let keys: Vec<&str> = keys.collect();
    beats(&mut bare, 3, &keys);
    let left = queues.iter().map(|queue| bare.server.ask::<usize>(&["ZCARD", queue]));
    assert_eq!(left.sum::<usize>(), 2 * max_dead() + 15);
}

// ---------------------------------------------------------------------------------
// Heartbeats.

/// An acquire renews the terms of its client in their last half only, a heartbeat always.
#[test]
fn an_acquire_renews_only_terms_that_end_soon() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since;
    let end_in = |bare: &mut Bare, left: i64| {
        let end = micros(&bare.server) / 1000 + left;
        bare.ask::<()>(&["HSET", CLIENTS, &uuid(2), &format!("{end} 30000 single {since}")]);
        end
    };
    let late = end_in(&mut bare, 20_000);
    bare.ask::<()>(&["PEXPIRE", QUEUE, "1000"]);
    assert_eq!(wait(&mut bare, &owner(2, 2), SINGLE).since, since);
    assert_eq!(gone_at(&mut bare), late, "more than half of the grant lease is left");
    assert_ttl(&bare.server, QUEUE, 1_800_000..=3_600_000);
    beat(&mut bare, 2);
    assert!(gone_at(&mut bare) > late);
    let soon = end_in(&mut bare, 14_000);
    assert_eq!(wait(&mut bare, &owner(2, 3), SINGLE).since, since);
    assert!(gone_at(&mut bare) > soon, "less than half of the grant lease was left");
}

/// Returns the moment in ms at which client 2 counts as gone.
fn gone_at(bare: &mut Bare) -> i64 {
    let terms: String = bare.ask(&["HGET", CLIENTS, &uuid(2)]);
    terms.split(' ').next().and_then(|end| end.parse().ok()).expect("a time")
}

#[test]
fn a_heartbeat_keeps_the_places_of_a_client() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since;
    end_terms(&mut bare, &owner(2, 1));
    bare.ask::<()>(&["PEXPIRE", QUEUE, "1000"]);
    bare.ask::<()>(&["PEXPIRE", CLIENTS, "1000"]);
    assert_eq!(beat(&mut bare, 2).since, since, "its terms have ended, but its places are there");
    assert_ttl(&bare.server, QUEUE, 1_800_000..=3_600_000);
    assert_ttl(&bare.server, CLIENTS, 30_000..=60_000);
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(next_grant(&mut listener).hold, 1);
}

#[test]
fn a_heartbeat_repeats_a_grant_and_grants_a_free_lock() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    wait(&mut bare, &owner(2, 1), SINGLE);
    wait(&mut bare, &owner(2, 2), SINGLE);
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    let token = next_grant(&mut listener).token;
    bare.server.reset_stats();
    for _ in 0..2 {
        let repeated = beat(&mut bare, 2);
        assert_about(30_000, repeated.ttl);
        assert_eq!((repeated.hold, repeated.token), (1, token));
        assert!(repeated.bound >= token);
    }
    assert_eq!(bare.server.calls("publish"), 0, "the reply is enough");
    assert_eq!(beat(&mut bare, 3).hold, 0, "another client");

    // The holder's lease ends. The heartbeat of any client grants the lock.
    for (client, hold) in [(2, 2), (3, 0)] {
        bare.ask::<()>(&["DEL", LOCK]);
        let granted = beat(&mut bare, client);
        assert_eq!(granted.hold, hold);
        let message = next_grant(&mut listener);
        assert!(granted.bound >= message.token);
        if hold > 0 {
            assert_eq!((message.hold as i64, message.token), (hold, granted.token));
        }
        wait(&mut bare, &owner(2, 3), SINGLE);
    }
    bare.assert_held_by(&owner(2, 3));
}

#[test]
fn a_hold_of_another_kind_excludes_and_a_heartbeat_grants_after_its_end() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    // Redisson, a plain lock of the same client, a reader, a writer, and a named job.
    let plain = owner(2, 9);
    let writer = format!("{}:write", owner(2, 9));
    let holders: [&[&str]; 5] = [
        &[JAVA, "2"],
        &[&plain, "1"],
        &["mode", "read", &plain, "1"],
        &["mode", "write", &writer, "1"],
        &["tx-42", "1", &plain, "0"],
    ];
    for (hold, fields) in holders.into_iter().enumerate() {
        let set = [&["HSET", LOCK], fields].concat();
        bare.ask::<()>(&set);
        bare.ask::<()>(&["PEXPIRE", LOCK, "40000"]);
        assert_about(40_000, take(&mut bare, &owner(2, hold)).ttl);
        assert_about(40_000, wait(&mut bare, &owner(2, hold), SINGLE).ttl);
        let held = beat(&mut bare, 2);
        assert_about(40_000, held.ttl);
        // A plain hold of the same client has a number, which is no waiter.
        assert_eq!(held.hold, if hold == 1 { 9 } else { 0 }, "{fields:?}");
        assert_eq!(release(&mut bare, &owner(3, 1)), -1);
        assert_eq!(queued(&bare.server), [owner(2, hold)]);
        bare.ask::<()>(&["DEL", LOCK]);
        assert_eq!(beat(&mut bare, 2).hold, hold as i64);
        assert_eq!(next_grant(&mut listener).hold, hold);
        assert_eq!(release(&mut bare, &owner(2, hold)), 0);
    }
}

#[test]
fn a_plain_release_wakes_nobody_and_a_queue_release_wakes_other_kinds() {
    let mut bare = Bare::start();
    let (mut plain, _waiter) = (Listener::on(&bare.server, CHANNEL), listen(&bare, 2));
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", JAVA]), -2);
    assert!(wait(&mut bare, &owner(2, 1), CLUSTER).ttl > 0);
    bare.call("plain_release", &[LOCK], &[JAVA, CHANNEL, "0"]);
    assert_eq!(plain.next_message().1, "0");
    assert!(!bare.server.ask::<bool>(&["EXISTS", LOCK]), "until the next heartbeat");
    assert_eq!(beat(&mut bare, 2).hold, 1);
    assert!(bare.call("plain_acquire", &[LOCK], &["60000", JAVA]) > 0);
    assert_eq!(release(&mut bare, &owner(2, 1)), 1);
    assert_eq!(plain.next_message().1, "0");
}

#[test]
fn one_call_carries_the_heartbeats_of_several_locks() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    let names: Vec<[String; 4]> =
        ["a", "b", "c"].map(|it| KEYS.map(|key| format!("{key}-{it}"))).into();
    let keys = texts(names.as_flattened());
    hold(&bare.server, "the-lock-a", JAVA, "60000");
    bare.ask::<()>(&["ZADD", keys[5], "1", &owner(2, 5)]);
    let replies: [Beat; 3] = beats(&mut bare, 2, &keys).try_into().expect("three locks");
    assert_eq!(replies.each_ref().map(|it| it.since > 0), [false, true, false], "a queue");
    assert_eq!(replies.iter().map(|it| it.hold).collect::<Vec<i64>>(), [0, 5, 0]);
    assert_about(60_000, replies[0].ttl);
    assert_eq!(replies[2].ttl, -2);
    let message = next_grant(&mut listener);
    assert_eq!((message.hold, &*message.key, message.token), (5, "the-lock-b", replies[1].token));
}

/// The heartbeat of a client is the only step that tells the client of its lost places.
#[test]
fn a_heartbeat_whose_own_run_loses_a_place_is_followed_by_one_that_says_so() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since; // does not listen
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(beat(&mut bare, 2).since, since);
    assert_eq!(queued(&bare.server), Vec::<String>::new());
    assert_ne!(beat(&mut bare, 2).since, since);
    // Also if other clients wait.
    wait(&mut bare, &owner(3, 1), CLUSTER);
    wait(&mut bare, &owner(3, 2), CLUSTER);
    assert!(beat(&mut bare, 2).since > since);
}

/// The reply of the first heartbeat is lost, or that heartbeat was a late copy of an earlier one.
#[test]
fn a_lost_reply_hides_no_lost_place() {
    let mut bare = Bare::start();
    take(&mut bare, &owner(1, 1));
    let since = wait(&mut bare, &owner(2, 1), SINGLE).since; // does not listen
    assert_eq!(release(&mut bare, &owner(1, 1)), 0);
    assert_eq!(queued(&bare.server), Vec::<String>::new());
    beat(&mut bare, 2);
    assert_ne!(beat(&mut bare, 2).since, since);
    take(&mut bare, &owner(1, 2));
    assert!(wait(&mut bare, &owner(2, 2), SINGLE).since > since);
    assert!(beat(&mut bare, 2).since > since);
}

// ---------------------------------------------------------------------------------
// Tokens.

#[test]
fn tokens_grow_over_all_steps_and_the_fenced_lock() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    let mut last = 0;
    let mut next = |token: i64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    for round in 0..6 {
        let fenced = bare.call("fenced_acquire", &[LOCK, COUNTER], &["60000", JAVA, "3"]);
        next(-fenced);
        next(-fenced + 2);
        bare.call("plain_release", &[LOCK], &[JAVA, CHANNEL, "0"]);
        next(take(&mut bare, &owner(1, round)).token);
        wait(&mut bare, &owner(2, round), SINGLE);
        match round {
            1 => bare.ask::<()>(&["DEL", COUNTER]),
            // Ahead of the clock, and damaged.
            3 => bare.ask::<()>(&["SET", COUNTER, "4000000000000000", "PX", "60000"]),
            _ => {}
        }
        release(&mut bare, &owner(1, round));
        let granted = next_grant(&mut listener);
        next(granted.token);
        let digits = granted.token.to_string();
        assert_eq!(bare.server.ask::<String>(&["GET", COUNTER]), digits, "in decimal");
        assert_eq!(pttl(&bare.server, COUNTER), -1, "the counter never expires");
        release(&mut bare, &owner(2, round));
    }
}

/// The hold outlives its token: the next reply has a larger one, and no lease becomes shorter.
#[test]
fn a_hold_whose_counter_was_lost_gets_a_larger_token() {
    let mut bare = Bare::start();
    let first = take(&mut bare, &owner(1, 1)).token;
    bare.ask::<()>(&["PEXPIRE", LOCK, "600000"]);
    bare.ask::<()>(&["DEL", COUNTER]);
    let held = beat(&mut bare, 1);
    assert!(held.hold == 1 && held.token > first && held.bound >= held.token, "{held:?}");
    assert_eq!(counter(&bare.server), Some(held.token));
    assert_lock(&bare, &owner(1, 1), 600_000);
    assert_eq!(take(&mut bare, &owner(1, 1)).token, held.token);
    bare.ask::<()>(&["SET", COUNTER, "no number"]);
    let again = take(&mut bare, &owner(1, 1)).token;
    assert!(again > held.token);
    assert_lock(&bare, &owner(1, 1), 600_000);
    // For another client: no token, and bounds that cover the tokens before the loss.
    bare.ask::<()>(&["DEL", COUNTER]);
    let other = beat(&mut bare, 2);
    assert!(other.token == 0 && other.bound >= again, "{other:?}");
    assert!(take(&mut bare, &owner(2, 1)).token >= again);
    assert_eq!(counter(&bare.server), None);
}

// ---------------------------------------------------------------------------------
// Damaged keys, and a full server.

#[test]
fn a_key_of_another_type_is_refused() {
    let mut bare = Bare::start();
    let waiting = owner(2, 1);
    for key in KEYS {
        for step in ["queue_acquire", "queue_release", "queue_force_unlock"] {
            hold(&bare.server, LOCK, &owner(1, 1), "60000");
            wait(&mut bare, &owner(3, 1), CLUSTER);
            bare.ask::<()>(&["DEL", key]);
            if key == COUNTER {
                bare.ask::<()>(&["HSET", key, "a", "hash"]);
            } else {
                bare.ask::<()>(&["SET", key, "a string", "PX", "60000"]);
            }
            let args: &[&str] = match step {
                "queue_acquire" => &["60000", &waiting, "30000", "cluster", "0", ""],
                "queue_release" => &[&owner(1, 1), CHANNEL, "0"],
                _ => &[CHANNEL, "0"],
            };
            let reply = bare.try_call::<Value>(step, &KEYS, args);
            let refused = reply.is_err_and(|error| is_refused_as("WRONGTYPE", &error));
            assert!(refused, "{step} {key}");
            let kind: String = bare.ask(&["TYPE", key]);
            assert_eq!(kind, if key == COUNTER { "hash" } else { "string" }, "{step} {key}");
            if step == "queue_force_unlock" && key != LOCK {
                assert!(bare.ask::<bool>(&["EXISTS", LOCK]), "{key}: refused before the release");
            }
            bare.ask::<()>(&["FLUSHALL"]);
        }
    }
}

/// Otherwise one damaged key would end the waits of all locks in the call.
#[test]
fn a_damaged_lock_does_not_prevent_the_heartbeats_of_other_locks() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    let others: Vec<String> = KEYS.iter().map(|key| format!("{key}-b")).collect();
    let keys = [&KEYS[..], &texts(&others)].concat();
    for key in KEYS {
        if key != LOCK {
            bare.ask::<()>(&["ZADD", QUEUE, "1", &owner(2, 1)]);
        }
        bare.ask::<()>(&["DEL", key]);
        bare.ask::<()>(&["RPUSH", key, "a list"]);
        bare.ask::<()>(&["ZADD", keys[5], "1", &owner(2, 5)]);
        let replies = beats(&mut bare, 2, &keys);
        let damaged = &replies[0];
        assert_eq!((damaged.since, damaged.hold, damaged.token), (0, 0, 0), "{key}");
        assert_eq!(replies[1].hold, 5, "{key}");
        assert_eq!(next_grant(&mut listener).hold, 5);
        bare.ask::<()>(&["FLUSHALL"]);
    }
}

/// A user without permission for wake channels gets an error, but leaves no lock without a holder.
#[test]
fn a_heartbeat_finds_a_grant_whose_message_was_refused() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    let rule = ["on", ">secret", "~*", "+@all", "resetchannels", "&redisson*"];
    bare.ask::<()>(&[&["ACL", "SETUSER", "narrow"], &rule[..]].concat());
    take(&mut bare, &owner(1, 1));
    wait_in_turn(&mut bare, 2, 1..=2);
    let mine = owner(1, 1);
    let digest = digest("queue_release");
    let words = [&["EVALSHA", &digest, "4"], &KEYS[..], &[&mine, CHANNEL, "0"]].concat();
    let mut narrow = bare.server.connection_as("narrow", "secret");
    let refused = redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut narrow);
    assert!(refused.is_err_and(|error| error.to_string().contains("channel")));
    assert_lock(&bare, &owner(2, 1), 30_000);
    let found = beat(&mut bare, 2);
    assert_eq!((found.hold, Some(found.token)), (1, counter(&bare.server)));
    assert_eq!(release(&mut bare, &owner(2, 1)), 1);
    assert_eq!(next_grant(&mut listener).hold, 2);
}

#[test]
fn a_full_server_still_grants_releases_and_keeps_places() {
    let mut bare = Bare::start();
    let mut listener = listen(&bare, 2);
    take(&mut bare, &owner(1, 1));
    let waits = [1, 2, 3, 4, 5].map(|hold| wait(&mut bare, &owner(2, hold), SINGLE));
    bare.server.refuse_memory();
    let refused =
        |reply: RedisResult<Acquired>| reply.is_err_and(|error| is_refused_as("OOM", &error));
    assert!(refused(try_acquire(&mut bare, &["60000", &owner(3, 1), "30000", "single", "0", ""])));
    assert_eq!(queued(&bare.server).len(), 5);
    // The places stay, the grants go on, and a grantee can ask again.
    assert_eq!(beat(&mut bare, 2).since, waits[0].since);
    assert!(beat(&mut bare, 3).since > waits[0].since, "a new client");
    assert_eq!(release(&mut bare, &owner(1, 1)), 1);
    assert_eq!(take(&mut bare, &owner(2, 1)).ttl, -2);
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(beat(&mut bare, 2).hold, 2);
    assert_eq!(force(&mut bare), 1);
    bare.ask::<()>(&["DEL", LOCK]);
    assert_eq!(release(&mut bare, &owner(9, 9)), -1);
    bare.ask::<()>(&["DEL", LOCK]);
    assert_about(30_000, take(&mut bare, &owner(3, 1)).ttl);
    let holds = [(); 5].map(|()| next_grant(&mut listener).hold);
    assert_eq!(holds, [1, 2, 3, 4, 5]);
    assert_eq!(release(&mut bare, &owner(2, 5)), 0);
    assert!(refused(try_acquire(&mut bare, &["60000", &owner(3, 1)])));
    assert!(!bare.server.ask::<bool>(&["EXISTS", LOCK]), "no lock without a lease");
    bare.server.grant_memory();
    assert_eq!(take(&mut bare, &owner(3, 1)).ttl, -2);
    assert_expiries(&bare.server);
}

// ---------------------------------------------------------------------------------
// All orders of all steps.

/// A step of the sequences below: in time, late, repeated, or by a caller that has left.
///
/// Client 0 has no listener, but says `cluster`; client 1 has no listener; 2 and 3 have one.
#[derive(Clone, Copy, Debug)]
enum Step {
    Try(usize, usize),
    Wait(usize, usize, bool),
    Release(usize, usize),
    Beat(usize),
    Force,
    /// The client counts as gone from now on.
    Die(usize),
    /// The holder's lease ends.
    Lapse,
    LoseCounter,
}

/// The state of the lock at a server.
#[derive(Clone, Debug, PartialEq)]
struct Look {
    holder: Option<String>,
    queue: Vec<String>,
    /// With the terms of each.
    clients: BTreeMap<String, String>,
}

impl Look {
    /// Returns the time since which the client of a waiter has its terms.
    fn since(&self, waiter: &str) -> Option<&str> {
        self.clients.get(&waiter[..36]).and_then(|terms| terms.split(' ').nth(3))
    }
}

const CLIENT_COUNT: usize = 4;

fn look(bare: &mut Bare) -> Look {
    let mut holders: Vec<String> = bare.ask(&["HKEYS", LOCK]);
    assert!(holders.len() <= 1, "{holders:?}");
    let (queue, clients) = (queued(&bare.server), bare.ask(&["HGETALL", CLIENTS]));
    Look { holder: holders.pop(), queue, clients }
}

fn mode_of(client: usize) -> Wait<'static> {
    if client == 0 { CLUSTER } else { SINGLE }
}

/// Runs a step and returns the client that called, and the token of its hold if it has one.
fn run(bare: &mut Bare, step: Step) -> (Option<usize>, Option<i64>) {
    let token = |it: Acquired| (it.ttl == -2).then_some(it.token);
    let nothing = |_: i64| (None, None);
    match step {
        Step::Try(client, hold) => (Some(client), token(take(bare, &owner(client, hold)))),
        Step::Wait(client, hold, is_heavy) => {
            let advance = if is_heavy { "9000000" } else { "0" };
            let terms = Wait { advance, ..mode_of(client) };
            (Some(client), token(wait(bare, &owner(client, hold), terms)))
        }
        Step::Beat(client) => {
            let args = [&*uuid(client), "30000", mode_of(client).mode];
            let reply: Vec<i64> = bare.reply("queue_heartbeat", &KEYS, &args);
            assert!(reply[4] >= reply[3], "{reply:?}");
            (Some(client), (reply[2] > 0).then_some(reply[3]))
        }
        Step::Release(client, hold) => nothing(release(bare, &owner(client, hold))),
        Step::Force => nothing(force(bare)),
        Step::Die(client) => nothing(bare.ask(&["HDEL", CLIENTS, &uuid(client)])),
        Step::Lapse => nothing(bare.ask(&["DEL", LOCK])),
        Step::LoseCounter => nothing(bare.ask(&["DEL", COUNTER])),
    }
}

/// Returns whether a server would grant the lock to this waiter. Client `alive` has terms.
fn is_live(look: &Look, alive: Option<usize>, waiter: &str) -> bool {
    let has_terms = look.since(waiter).is_some()
        || alive.is_some_and(|client| waiter.starts_with(&uuid(client)));
    has_terms && !waiter.starts_with(&uuid(1))
}

/// Returns the owner field of the caller.
fn own_field(step: Step) -> Option<String> {
    match step {
        Step::Try(client, hold) | Step::Wait(client, hold, _) | Step::Release(client, hold) => {
            Some(owner(client, hold))
        }
        _ => None,
    }
}

/// Returns the waiters whose places ended, other than by a grant, by their own release, or with the
/// terms of their client.
fn lost_silently(before: &Look, after: &Look, step: Step) -> Vec<String> {
    let has_left = |place: &String| {
        matches!(step, Step::Release(..)) && own_field(step).as_ref() == Some(place)
    };
    let is_told =
        |place: &String| after.since(place).is_none_or(|since| before.since(place) != Some(since));
    let lost = before.queue.iter().filter(|place| !after.queue.contains(place));
    let lost = lost.filter(|place| after.holder.as_ref() != Some(place));
    lost.filter(|place| !has_left(place) && !is_told(place)).cloned().collect()
}

/// Returns whether a new holder was the best live waiter, or the caller if there was none.
fn is_best(before: &Look, after: &Look, step: Step, caller: Option<usize>) -> bool {
    let own = own_field(step);
    let is_own = |waiter: &String| own.as_ref() == Some(waiter);
    let is_release = matches!(step, Step::Release(..));
    // A try does not count its client as alive.
    let alive = caller.filter(|_| !matches!(step, Step::Try(..)));
    let mut live = before
        .queue
        .iter()
        .filter(|waiter| if is_own(waiter) { !is_release } else { is_live(before, alive, waiter) });
    let expected = live.next().or(own.as_ref().filter(|_| !is_release));
    let comes_first = matches!(step, Step::Wait(_, _, true)) && after.holder == own;
    after.holder.as_ref() == expected || comes_first
}

/// Checks what a step did to the lock.
fn check(before: &Look, after: &Look, step: Step, caller: Option<usize>) -> Result<(), String> {
    let is_script = !matches!(step, Step::Die(_) | Step::Lapse | Step::LoseCounter);
    let (free, queue) = (after.holder.is_none(), &after.queue);
    if is_script && free && !queue.is_empty() {
        return Err("a free lock has waiters".to_owned());
    }
    if after.holder.as_ref().is_some_and(|holder| queue.contains(holder)) {
        return Err("the holder waits".to_owned());
    }
    let lost = lost_silently(before, after, step);
    if !lost.is_empty() {
        return Err(format!("{lost:?} lost their places silently"));
    }
    let is_granted = !free && after.holder != before.holder;
    if is_granted && !is_best(before, after, step, caller) {
        return Err("another waiter was better".to_owned());
    }
    Ok(())
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let number = 1..4usize;
    let client = 0..CLIENT_COUNT;
    let step = prop_oneof![
        2 => (client.clone(), number.clone()).prop_map(|(client, hold)| Step::Try(client, hold)),
        6 => (client.clone(), number.clone(), proptest::bool::ANY)
            .prop_map(|(client, hold, is_heavy)| Step::Wait(client, hold, is_heavy)),
        4 => (client.clone(), number.clone())
            .prop_map(|(client, hold)| Step::Release(client, hold)),
        2 => client.clone().prop_map(Step::Beat),
        1 => Just(Step::Force),
        1 => client.prop_map(Step::Die),
        1 => Just(Step::Lapse),
        1 => Just(Step::LoseCounter),
    ];
    proptest::collection::vec(step, 1..60)
}

#[test]
fn no_order_of_the_steps_loses_a_place_silently_or_leaves_a_lock_free() {
    use proptest::prelude::*;
    let bare = Bare::start();
    let _listeners = [listen(&bare, 2), listen(&bare, 3)];
    try_sequences(bare, 100, steps(), |bare, steps| {
        bare.ask::<()>(&["FLUSHALL"]);
        let (mut before, mut last) = (look(bare), 0);
        for step in steps {
            let (caller, token) = run(bare, step);
            let after = look(bare);
            let checked = check(&before, &after, step, caller);
            prop_assert_eq!(checked, Ok(()), "{:?}: {:?} -> {:?}", step, before, after);
            let is_same = after.holder == before.holder;
            let newest = counter(&bare.server).unwrap_or(0).max(token.unwrap_or(0));
            prop_assert!(newest >= last || newest == 0, "{newest} after {last}");
            prop_assert!(is_same || after.holder.is_none() || newest > last, "no new token");
            last = last.max(newest);
            for key in bare.server.keys() {
                let ttl = pttl(&bare.server, &key);
                prop_assert_eq!(ttl == -1, key == COUNTER, "{} of {}", ttl, key);
            }
            before = after;
        }
        Ok(())
    });
}

// ---------------------------------------------------------------------------------
// A cluster.

/// A key that vanishes within a script counts as moved while its slot migrates, and the script
/// fails. The waiters must still be there afterwards.
#[test]
fn no_step_loses_a_waiter_while_its_slot_migrates() {
    for step in ["queue_release", "queue_force_unlock"] {
        let cluster = Cluster::start(2, 0);
        let slot = cluster.slot_of(LOCK);
        let from = cluster.owner_of(LOCK);
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).expect("another");
        for node in [from, to] {
            for name in ["queue_acquire", "queue_heartbeat", step] {
                node.ask::<String>(&["SCRIPT", "LOAD", &script(name).source()]);
            }
        }
        let (mine, waiter) = (owner(1, 1), owner(2, 1));
        let call = |node: &Server, name: &str, args: &[&str]| {
            let digest = digest(name);
            let words = [&["EVALSHA", &digest, "4"], &KEYS[..], args].concat();
            redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut node.connection())
        };
        call(from, "queue_acquire", &["60000", &mine]).expect("taken");
        let waiting = ["60000", &waiter, "30000", "cluster", "0", ""];
        call(from, "queue_acquire", &waiting).expect("queued");

        cluster.begin_migration(slot, to);
        let args: &[&str] =
            if step == "queue_release" { &[&mine, CHANNEL, "0"] } else { &[CHANNEL, "0"] };
        let failed = call(from, step, args).expect_err("the hash has vanished");
        assert!(failed.to_string().contains("non local key"), "{step}: {failed}");
        cluster.move_keys(slot, to);
        cluster.end_migration(slot, to);

        let beat = call(to, "queue_heartbeat", &[&uuid(2), "30000", "cluster"]);
        let beat: Vec<i64> = redis::from_redis_value(beat.expect("a reply")).expect("numbers");
        assert_eq!(beat[2], 1, "{step}: granted at its place");
    }
}
