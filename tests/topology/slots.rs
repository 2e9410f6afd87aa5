//! Permits with slots, with replicas, Sentinel and Cluster: no two valid permits have one slot.

use crate::cluster::cut_off_replicas;
use crate::harness::bare::script;
use crate::harness::faults::build;
use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server, eventually, eventually_some, in_time};
use crate::sentinel::{LateReply, await_key};
use leasehold::{Builder, Client, Permit, Semaphore};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The keys of the semaphore `a`.
const KEYS: [&str; 3] = ["a", "{a}:timeout", "leasehold_slots:{a}"];

fn slots(client: &Client, name: &str, permits: u32) -> Semaphore {
    client.semaphore(name).with_permits(permits).with_slots()
}

fn take(semaphore: &Semaphore, count: u32) -> Permit {
    semaphore.acquire_many(count).expect("free")
}

/// Returns the slots of all valid permits, sorted. Asserts that no two are the same.
#[track_caller]
fn valid_slots(permits: &[&Permit]) -> Vec<u32> {
    let valid = permits.iter().filter(|permit| permit.is_held());
    let mut all: Vec<u32> = valid.flat_map(|permit| permit.slots()).copied().collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{permits:?}");
    all
}

/// The replica lacks the permit with slot 1, which another caller gets.
#[test]
fn the_slot_of_a_permit_that_the_new_master_lacks_has_one_owner_again() {
    let servers = Replicated::start(1, 3);
    let sentinels = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let [one, two] = [(); 2].map(|()| build(sentinels()));
    let (mine, theirs) = (slots(&one, "a", 4), slots(&two, "a", 4));
    let [kept, lost, last] = [&mine, &mine, &theirs].map(|semaphore| take(semaphore, 1));
    assert_eq!(valid_slots(&[&kept, &lost, &last]), [0, 1, 2]);
    let replica = servers.replicas()[0];
    eventually("the replica has all", || replica.try_ask(&["HLEN", KEYS[2]]) == Some(3));
    replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    let id: Vec<u8> = replica.ask(&["HGET", KEYS[2], "1"]);
    let mut remove = redis::cmd("ZREM");
    remove.arg(KEYS[1]).arg(id).exec(&mut replica.connection()).expect("a writable replica");
    replica.ask::<()>(&["HDEL", KEYS[2], "1"]);
    replica.ask::<()>(&["INCR", "a"]);
    let old = servers.master();
    old.kill();
    servers.await_master_other_than(old.port());
    assert!(lost.wait_lost(MINUTE / 2), "the loss is reported");
    let next = eventually_some("the new master answers", || theirs.acquire_many(2).ok());
    assert_eq!(next.slots(), [1, 3]);
    assert_eq!(valid_slots(&[&kept, &lost, &last, &next]), [0, 1, 2, 3]);
    kept.release().expect("held");
    assert_eq!(take(&mine, 1).slot(), Some(0));
}

/// The old master has given slot 0, and the new one has given it to another caller.
#[test]
fn slots_of_the_old_master_are_not_told_after_the_fail_over() {
    let late = LateReply::start(MINUTE / 2);
    let other = build(Client::builder().sentinel(MASTER, late.servers.sentinel_urls()));
    let (mine, theirs) = (slots(&late.client, "a", 3), slots(&other, "a", 3));
    let acquire = script("semaphore_acquire").source();
    let digest: String = late.servers.master().ask(&["SCRIPT", "LOAD", &acquire]);
    let lose = |replica: &Server| {
        await_key(replica, KEYS[2]);
        KEYS.iter().for_each(|key| replica.ask::<()>(&["DEL", key]));
    };
    let got = Mutex::new(None);
    let change = |new: &Server| {
        late.await_renewal(new);
        let taken = eventually_some("the new master answers", || theirs.acquire().ok());
        *got.lock().expect("no panic") = Some(taken);
    };
    // A poll for a call that waits would delay the change by the response time-out.
    let ask = || mine.try_acquire().expect("an answer").expect("free");
    let permit = late.answer_late(&digest, ask, lose, change);
    let other = got.into_inner().expect("no panic").expect("it is taken");
    assert_eq!((other.slot(), permit.slot()), (Some(0), Some(1)));
    assert_eq!(valid_slots(&[&permit, &other]), [0, 1]);
}

fn of_cluster(cluster: &Cluster) -> Builder {
    Client::builder().cluster(cluster.urls()).response_timeout(MINUTE)
}

/// Blocks until a replica of the master has these permits.
fn await_permits(cluster: &Cluster, master: &Server, name: &str, count: usize) {
    let mut reader = cluster.replica_of(master).connection();
    redis::cmd("READONLY").exec(&mut reader).expect("a replica");
    eventually("the replica has the permits", || {
        let mut ask = redis::cmd("HLEN");
        let slots = ask.arg(format!("leasehold_slots:{{{name}}}"));
        slots.query::<usize>(&mut reader).is_ok_and(|slots| slots == count)
    });
}

/// The replica has the first permits only.
#[test]
fn slots_stay_unique_through_a_fail_over_of_their_node() {
    let cluster = Cluster::start(3, 1);
    let [one, two] = [(); 2].map(|()| build(of_cluster(&cluster)));
    let master = &cluster.nodes()[0];
    let name = cluster.key_on(master, "gpu");
    let (mine, theirs) = (slots(&one, &name, 4), slots(&two, &name, 4));
    let kept = take(&mine, 2);
    await_permits(&cluster, master, &name, 2);
    cut_off_replicas(master);
    let lost = take(&mine, 2);
    assert_eq!(valid_slots(&[&kept, &lost]), [0, 1, 2, 3]);
    master.kill();
    let next = eventually_some("another caller gets permits", || theirs.acquire_many(2).ok());
    assert!(lost.wait_lost(MINUTE / 2), "the loss is reported");
    assert_eq!((kept.slots(), next.slots()), (&[0, 1][..], &[2, 3][..]));
    assert_eq!(valid_slots(&[&kept, &lost, &next]), [0, 1, 2, 3]);
    kept.release().expect("the new node has it");
    assert_eq!(take(&theirs, 1).slot(), Some(0));
}

#[test]
fn permits_keep_their_slots_while_the_hash_slot_moves() {
    let cluster = Cluster::start(3, 0);
    let [one, two] = [(); 2].map(|()| build(of_cluster(&cluster)));
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let name = cluster.key_on(from, "gpu");
    let (mine, theirs) = (slots(&one, &name, 3), slots(&two, &name, 3));
    let (first, second) = (take(&mine, 1), take(&theirs, 1));
    let slot = cluster.slot_of(&name);
    cluster.begin_migration(slot, to);
    cluster.send(&[format!("leasehold_slots:{{{name}}}")], from, to);
    first.release().expect("it is given back during the move");
    thread::scope(|scope| {
        let taker = scope.spawn(|| take(&theirs, 2));
        cluster.move_keys(slot, to);
        cluster.end_migration(slot, to);
        let next = in_time("the caller gets permits", taker);
        assert_eq!(valid_slots(&[&second, &next]), [0, 1, 2]);
    });
}

#[test]
fn no_two_valid_permits_have_one_slot_throughout_a_resharding() {
    let cluster = Cluster::start(3, 0);
    let clients = [(); 3].map(|()| build(of_cluster(&cluster)));
    let name = cluster.key_on(&cluster.nodes()[0], "gpu");
    let (slot, done) = (cluster.slot_of(&name), AtomicBool::new(false));
    let used = Mutex::new(HashSet::new());
    let work = |number: usize| {
        let gpus = slots(&clients[number % clients.len()], &name, 5);
        let mut rounds = 0;
        while !done.load(Ordering::Relaxed) || rounds == 0 {
            let permit = take(&gpus, 1 + (number as u32 + rounds) % 3);
            let mut all = used.lock().expect("no panic");
            let is_new = permit.slots().iter().all(|slot| *slot < 5 && all.insert(*slot));
            assert!(is_new && permit.is_held(), "{permit:?} beside {all:?}");
            drop(all);
            thread::yield_now();
            let mut all = used.lock().expect("no panic");
            assert!(permit.slots().iter().all(|slot| all.remove(slot)));
            drop(all);
            permit.release().expect("held");
            rounds += 1;
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..6).map(|number| scope.spawn(move || work(number))).collect();
        for turn in 0..8 {
            cluster.migrate(slot, &cluster.nodes()[(turn + 1) % 3]);
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| in_time("the worker ends", worker));
    });
}

#[test]
fn the_slots_of_permits_on_too_few_replicas_are_given_again() {
    let servers = Replicated::start(1, 0);
    let (master, replica) = (&servers.servers()[0], &servers.servers()[1]);
    let client = |timeout| {
        let builder = Client::builder().single(master.url()).min_replicas(1, timeout);
        build(builder.response_timeout(MINUTE).announce(false))
    };
    let (patient, hasty) = (client(MINUTE / 3), client(MINUTE / 1200));
    let first = take(&slots(&patient, "a", 3), 1);
    assert_eq!(replica.ask::<usize>(&["HLEN", KEYS[2]]), 1, "before the grant");
    replica.stop();
    let error = slots(&hasty, "a", 3).acquire().expect_err("the replica is silent");
    assert!(error.is_not_replicated(), "{error:?}");
    eventually("it is given back", || master.ask::<i64>(&["GET", "a"]) == 2);
    replica.resume();
    let rest = take(&slots(&patient, "a", 3), 2);
    assert_eq!(valid_slots(&[&first, &rest]), [0, 1, 2]);
}
