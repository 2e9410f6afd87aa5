//! The keys in Redis: each expires, or is one of those that stay by design.

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::queued::token_key;
use crate::harness::{Server, eventually, join, sleeping};
use leasehold::{CancelToken, Client};
use std::collections::BTreeSet;

/// The table of the keys and their lives.
const DOCUMENT: &str = include_str!("../../docs/mechanisms.md");

/// The number of names of each kind.
const NAMES: usize = 20;

/// Returns the keys without a time to live.
fn permanent_keys(server: &Server) -> BTreeSet<String> {
    let records = server.client_records();
    let mut keys: BTreeSet<_> = server.keys().into_iter().chain(records).collect();
    // -2: the key is gone meanwhile.
    keys.retain(|key| server.ask::<i64>(&["PTTL", key]) == -1);
    keys
}

fn names(kind: &str) -> Vec<String> {
    (0..NAMES).map(|number| format!("{kind}:{number}")).collect()
}

/// Takes and releases locks of every kind, with waiting callers for those that have a queue.
fn use_locks(one: &Client, two: &Client) {
    for number in 0..NAMES {
        let name = |kind: &str| format!("{kind}:{number}");
        drop(one.lock(name("plain")).lock().expect("free"));
        drop(one.lock(name("named")).with_holder("job").lock().expect("free"));
        drop(one.fenced_lock(name("fenced")).lock().expect("free"));
        drop(one.spin_lock(name("spin")).lock().expect("free"));
        let rw = one.rw_lock(name("rw"));
        drop((rw.write().expect("free"), rw.read().expect("the same thread")));
        drop(one.queue_lock(name("queue")).lock().expect("free"));
        drop(one.fair_lock(name("fair")).lock().expect("free"));
        let kept = one.lock(name("kept")).with_min_hold(NEVER);
        kept.lock().expect("free").unlock().expect("held");
        one.lock(name("detached")).lock().expect("free").detach();
        let once = one.once(name("once"));
        once.run(|_| Ok::<_, leasehold::Error>(Vec::new())).expect("nobody works on it");
        drop(one.once(name("given-up")).begin().expect("nobody works on it"));
        assert!(once.forget().expect("an answer"));
        drop(one.election(name("election")).campaign().expect("nobody leads"));
    }
    let stop = CancelToken::new();
    let (queue, fair) = (two.queue_lock("queue:0"), two.fair_lock("fair:0"));
    let held = (
        one.queue_lock("queue:0").lock_owned().expect("free"),
        one.fair_lock("fair:0").lock_owned().expect("free"),
    );
    let [queued, waits] = [stop.clone(), stop.clone()];
    let waiters = [
        sleeping("queue", move || queue.with_cancel(&queued).lock().map(drop)),
        sleeping("fair", move || fair.with_cancel(&waits).lock().map(drop)),
    ];
    eventually("both wait", || two.stats().waiting_now() == 2);
    stop.cancel();
    waiters.into_iter().for_each(|waiter| assert!(join(waiter).is_err()));
    drop(held);
}

fn use_synchronizers(client: &Client) {
    for number in 0..NAMES {
        let name = |kind: &str| format!("{kind}:{number}");
        let semaphore = client.semaphore(name("semaphore")).with_permits(2).with_slots();
        drop(semaphore.acquire().expect("free"));
        let stock = client.plain_semaphore(name("stock"));
        assert!(stock.try_set_permits(2).expect("an answer"));
        assert!(stock.try_acquire(1).expect("an answer"));
        let latch = client.latch(name("latch"));
        assert!(latch.try_set_count(1).expect("an answer"));
        latch.count_down().expect("an answer");
    }
}

#[test]
fn every_key_expires_or_is_documented_to_stay() {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with('|') && line.contains("| for ever"));
    let documented: Vec<_> = rows.filter_map(|row| row.split('|').nth(1)).map(str::trim).collect();
    let expected = [
        "`redisson_lock_token:{<name>}`",
        "the name of a semaphore",
        "`leasehold_slots:{<name>}`",
        "the name of a plain semaphore",
    ];
    assert_eq!(documented, expected);

    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(patient(server.url()).announce(true)));
    use_locks(&one, &two);
    use_synchronizers(&one);
    let of_locks = ["fenced", "queue", "election"].into_iter().flat_map(names);
    let of_counts = ["semaphore", "stock"].into_iter().flat_map(names);
    let slots = names("semaphore").into_iter().map(|name| format!("leasehold_slots:{{{name}}}"));
    let stay: BTreeSet<_> =
        of_locks.map(|name| token_key(&name)).chain(of_counts).chain(slots).collect();
    eventually("the releases arrive", || permanent_keys(&server) == stay);
}

/// A key that an operator removes comes back with the next use.
#[test]
fn a_free_name_can_be_removed() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let (queue, fenced) = (client.queue_lock("queue"), client.fenced_lock("fenced"));
    let tokens = || {
        let guards = (queue.lock().expect("free"), fenced.lock().expect("free"));
        (guards.0.token(), guards.1.token())
    };
    let before = tokens();
    let semaphore = client.semaphore("semaphore").with_permits(2);
    semaphore.acquire().expect("free").release().expect("held");
    eventually("all is free", || !queue.is_locked().expect("an answer"));
    let removed = [token_key("queue"), token_key("fenced"), "semaphore".to_owned()];
    server.ask::<()>(&["UNLINK", &removed[0], &removed[1], &removed[2]]);
    let after = tokens();
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    let _permit = semaphore.acquire().expect("free");
    assert_eq!(semaphore.available().expect("an answer"), 1);
}
