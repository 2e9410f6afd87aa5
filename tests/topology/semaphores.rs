//! Semaphores and latches with replicas, Sentinel and Cluster: messages from all nodes, slots that
//! move, fail-overs, and acknowledged permits.

use crate::harness::faults::build;
use crate::harness::replicated::MASTER;
use crate::harness::synchronizers::{SYNCHRONIZERS, Synchronizer};
use crate::harness::{Cluster, Replicated, eventually, in_time, join};
use crate::{await_subscriber, subscribers};
use leasehold::{Client, Error, Result, Sharding};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// A poll interval after which no test still waits.
const NEVER: Duration = Duration::from_secs(600);

/// Returns a client of a cluster whose waits end by messages only.
fn quiet(cluster: &Cluster) -> Client {
    build(Client::builder().cluster(cluster.urls()).poll_interval(NEVER))
}

/// Takes the only permit, or sets a count of 1; returns the step that ends this.
fn occupy(
    kind: Synchronizer,
    client: &Client,
    name: &str,
) -> Result<Box<dyn FnOnce() -> Result<()>>> {
    match kind {
        Synchronizer::Semaphore => {
            let permit = client.semaphore(name).with_permits(1).acquire()?;
            Ok(Box::new(|| permit.release()))
        }
        Synchronizer::PlainSemaphore => {
            let semaphore = client.plain_semaphore(name);
            semaphore.try_set_permits(1)?;
            semaphore.acquire(1)?;
            Ok(Box::new(move || semaphore.release(1)))
        }
        Synchronizer::Latch => {
            let latch = client.latch(name);
            assert!(latch.try_set_count(1)?);
            Ok(Box::new(move || latch.count_down()))
        }
    }
}

#[test]
fn waiters_on_every_node_are_woken_by_messages() {
    let cluster = Cluster::start(3, 0);
    for sharding in [Sharding::Auto, Sharding::Off] {
        let quiet = || {
            build(Client::builder().cluster(cluster.urls()).sharding(sharding).poll_interval(NEVER))
        };
        let [holder, client] = [quiet(), quiet()];
        for (node, kind) in
            cluster.nodes().iter().flat_map(|it| SYNCHRONIZERS.map(|kind| (it, kind)))
        {
            let name = cluster.key_on(node, &format!("{kind:?}"));
            let free = occupy(kind, &holder, &name).expect("free");
            let waiter = kind.wait(&client, &name);
            await_subscriber(cluster.nodes(), &kind.channel(&name));
            waiter.still_waits();
            free().expect("an answer");
            waiter.ends();
            node.ask::<()>(&["DEL", &name]);
        }
    }
}

#[test]
fn a_permit_and_the_waiters_for_it_move_with_the_slot() {
    for kind in SYNCHRONIZERS {
        let cluster = Cluster::start(3, 0);
        let [holder, client] = [quiet(&cluster), quiet(&cluster)];
        let name = cluster.key_on(&cluster.nodes()[0], "name");
        let (slot, target) = (cluster.slot_of(&name), &cluster.nodes()[1]);
        let free = occupy(kind, &holder, &name).expect("free");
        let (waiter, channel) = (kind.wait(&client, &name), kind.channel(&name));
        await_subscriber(cluster.nodes(), &channel);
        cluster.migrate(slot, target);
        // With sharded messages the old node ends the subscription.
        await_subscriber(cluster.nodes(), &channel);
        waiter.still_waits();
        free().expect("an answer");
        waiter.ends();
    }
}

/// Takes and gives back until `done`, and returns the number of pairs.
fn use_counts(client: &Client, name: &str, done: &AtomicBool) -> usize {
    let (permits, stock) = (format!("{{{name}}}:permits"), format!("{{{name}}}:stock"));
    let (semaphore, stock) =
        (client.semaphore(permits).with_permits(4), client.plain_semaphore(stock));
    let mut pairs = 0;
    while !done.load(Ordering::Relaxed) || pairs == 0 {
        let pair = || match pairs % 3 {
            0 => semaphore.acquire_many(2)?.release(),
            1 => semaphore.acquire().map(drop),
            _ => stock.acquire(2).and_then(|()| stock.release(2)),
        };
        pair().unwrap_or_else(|error| panic!("after {pairs}: {error:?}"));
        pairs += 1;
    }
    pairs
}

#[test]
fn permits_and_counts_are_exact_throughout_a_resharding() {
    let cluster = Cluster::start(3, 0);
    let client = build(Client::builder().cluster(cluster.urls()).response_timeout(MINUTE));
    let name = cluster.key_on(&cluster.nodes()[0], "name");
    let (slot, done) = (cluster.slot_of(&name), AtomicBool::new(false));
    let stock = client.plain_semaphore(format!("{{{name}}}:stock"));
    assert!(stock.try_set_permits(6).expect("an answer"));
    thread::scope(|scope| {
        let work = || use_counts(&client, &name, &done);
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(work)).collect();
        for turn in 0..8 {
            cluster.migrate(slot, &cluster.nodes()[(turn + 1) % 3]);
        }
        done.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(in_time("the worker ends", worker) > 0);
        }
    });
    let semaphore = client.semaphore(format!("{{{name}}}:permits"));
    eventually("all permits are free", || semaphore.available().expect("an answer") == 4);
    assert_eq!(semaphore.permits().expect("an answer"), 4);
    assert_eq!(stock.available().expect("an answer"), 6);
}

#[test]
fn the_names_of_latches_in_a_cluster_have_no_braces() {
    let cluster = Cluster::start(1, 0);
    let client = quiet(&cluster);
    for name in ["a{b}c", "{a}", "a{b"] {
        let latch = client.latch(name);
        let errors: [fn(&leasehold::CountDownLatch) -> Option<Error>; 4] = [
            |latch| latch.try_set_count(1).err(),
            |latch| latch.count_down().err(),
            |latch| latch.wait_for(MINUTE).err(),
            |latch| latch.delete().err(),
        ];
        for error in errors {
            let error = error(&latch).expect("the channel is in another slot");
            assert!(error.is_invalid_name(), "{error:?}");
        }
        let semaphore = client.semaphore(name).with_permits(1);
        if name != "a{b" {
            semaphore.acquire().and_then(|permit| permit.release()).expect("one slot");
        }
    }
    assert!(cluster.nodes()[0].keys().iter().all(|key| !key.contains("round")));
}

#[test]
fn permits_counts_and_waits_survive_a_fail_over() {
    for kind in SYNCHRONIZERS {
        let servers = Replicated::start(1, 3);
        let sentinels = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
        let [holder, client] = [(); 2].map(|()| build(sentinels().poll_interval(NEVER)));
        let free = occupy(kind, &holder, "a").expect("free");
        let waiter = kind.wait(&client, "a");
        await_subscriber(servers.servers(), &kind.channel("a"));
        let replica = servers.replicas()[0];
        let known = servers.master().ask::<Option<String>>(&["GET", "a"]);
        eventually("the replica has the count", || {
            replica.ask::<Option<String>>(&["GET", "a"]) == known
        });
        let new = servers.fail_over_and_settle();
        eventually("the waiter listens at the new master", || {
            new.listeners(&kind.channel("a")) == 1
        });
        waiter.still_waits();
        free().expect("an answer");
        waiter.ends();
    }
}

#[test]
fn a_permit_that_the_new_master_lacks_is_lost() {
    let servers = Replicated::start(1, 3);
    let sentinels = Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let client = build(sentinels.poll_interval(NEVER));
    let semaphore = client.semaphore("a").with_permits(2);
    let [kept, lost] = [(); 2].map(|()| semaphore.acquire().expect("free"));
    let replica = servers.replicas()[0];
    let expiries = "{a}:timeout";
    let in_use = || replica.ask::<Vec<Vec<u8>>>(&["ZRANGE", expiries, "0", "-1"]);
    eventually("the replica has both permits", || in_use().len() == 2);
    // The replica lacks the later permit.
    replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    let ids = in_use();
    let later = ids.iter().max().expect("two");
    let mut remove = redis::cmd("ZREM");
    remove.arg(expiries).arg(later).query::<()>(&mut replica.connection()).expect("removed");
    replica.ask::<()>(&["INCR", "a"]);
    servers.fail_over();
    assert!(lost.wait_lost(MINUTE), "the loss is reported");
    kept.check().expect("the new master has it");
    assert!(lost.release().expect_err("lost").is_lost());
    kept.release().expect("held");
    eventually("the capacity is free", || semaphore.available().is_ok_and(|free| free == 2));
}

#[test]
fn permits_on_too_few_replicas_are_given_back() {
    let servers = Replicated::start(1, 0);
    let (master, replica) = (&servers.servers()[0], &servers.servers()[1]);
    let client = |replicas, timeout| {
        let builder = Client::builder().single(master.url()).min_replicas(replicas, timeout);
        build(builder.response_timeout(MINUTE).announce(false))
    };
    let patient = client(1, Duration::from_secs(20));
    let semaphore = patient.semaphore("permits").with_permits(2);
    let stock = patient.plain_semaphore("stock");
    assert!(stock.try_set_permits(5).expect("an answer"));
    let permit = semaphore.acquire().expect("acknowledged");
    stock.acquire(2).expect("acknowledged");
    assert_eq!(replica.ask::<i64>(&["GET", "permits"]), 1, "before the grant");
    assert_eq!(replica.ask::<i64>(&["GET", "stock"]), 3, "before the grant");
    permit.release().expect("held");

    replica.stop();
    let hasty = client(1, Duration::from_millis(50));
    let refused = |error: Option<Error>| {
        let error = error.expect("no replica answers");
        assert!(error.is_not_replicated(), "{error:?}");
        // The refused call gives back in the background.
        eventually("nothing is taken", || {
            let count = |name: &str| master.ask::<i64>(&["GET", name]);
            (count("permits"), count("stock")) == (2, 3)
        });
    };
    refused(hasty.semaphore("permits").acquire().err());
    refused(hasty.semaphore("permits").try_acquire_many(2).err());
    refused(hasty.plain_semaphore("stock").acquire(1).err());
    refused(hasty.plain_semaphore("stock").try_acquire_for(1, MINUTE).err());
    refused(hasty.plain_semaphore("stock").drain().err());
    hasty.close();
    replica.resume();
}

#[test]
fn a_latch_opens_for_waiters_of_many_clients() {
    let cluster = Cluster::start(3, 0);
    let clients: Vec<Client> = (0..4).map(|_| quiet(&cluster)).collect();
    let name = cluster.key_on(&cluster.nodes()[2], "latch");
    assert!(clients[0].latch(&name).try_set_count(4).expect("an answer"));
    let waiters: Vec<_> = clients
        .iter()
        .map(|client| {
            let latch = client.latch(&name);
            thread::spawn(move || latch.wait_for(MINUTE))
        })
        .collect();
    let channel = Synchronizer::Latch.channel(&name);
    eventually("all subscribe", || subscribers(cluster.nodes(), &channel) == clients.len());
    for client in &clients {
        drop(client.latch(&name).count_down_on_drop());
    }
    for waiter in waiters {
        assert!(join(waiter).expect("an answer"), "open");
    }
}
