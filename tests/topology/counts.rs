//! Plain semaphores and latches with Sentinel and Cluster: messages of all nodes, slots that move,
//! and fail-overs.

use crate::harness::faults::build;
use crate::harness::replicated::MASTER;
use crate::harness::synchronizers::Synchronizer;
use crate::harness::{Cluster, Replicated, Server, eventually, in_time};
use crate::subscribers;
use leasehold::{Client, Sharding};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the names of a semaphore and a latch that this node serves.
fn names_on(cluster: &Cluster, node: &Server) -> [String; 2] {
    ["permits", "latch"].map(|prefix| cluster.key_on(node, prefix))
}

/// Runs `open` while `waiting` waits for two permits and a latch. `open` has to give both.
#[track_caller]
fn wait_for_both(
    servers: &[Server],
    waiting: &Client,
    names: &[String; 2],
    open: impl FnOnce(&[String; 2]),
) {
    let [permits, latch] = names;
    let channels =
        [Synchronizer::PlainSemaphore.channel(permits), Synchronizer::Latch.channel(latch)];
    assert!(waiting.latch(latch).try_set_count(1).expect("an answer"));
    thread::scope(|scope| {
        let taker = scope.spawn(|| waiting.plain_semaphore(permits).acquire(2));
        let waiter = scope.spawn(|| waiting.latch(latch).wait());
        let listens = |channel: &String| subscribers(servers, channel) == 1;
        eventually("both listen", || channels.iter().all(listens));
        open(names);
        in_time("the taker returns", taker).expect("the permits are free");
        in_time("the waiter returns", waiter).expect("the latch is open");
    });
}

/// Gives two permits more than the waiting call needs, and opens the latch.
fn give(client: &Client, [permits, latch]: &[String; 2]) {
    client.plain_semaphore(permits).release(4).expect("an answer");
    client.latch(latch).count_down().expect("an answer");
}

#[test]
fn messages_of_every_node_wake_callers() {
    let cluster = Cluster::start(3, 0);
    for sharding in [Sharding::Auto, Sharding::Off] {
        // Only a message can end a wait.
        let settings = || Client::builder().cluster(cluster.urls()).sharding(sharding);
        let [one, two] = [(); 2].map(|()| build(settings().poll_interval(MINUTE * 10)));
        for node in cluster.nodes() {
            let names = names_on(&cluster, node);
            wait_for_both(cluster.nodes(), &one, &names, |names| give(&two, names));
            let stock = two.plain_semaphore(&names[0]);
            assert_eq!(stock.waiting().expect("an answer").processes(), 1, "it lingers");
            assert_eq!(stock.drain().expect("an answer"), 2);
            assert_eq!(two.latch(&names[1]).count().expect("an answer"), 0);
        }
        one.close();
    }
}

#[test]
fn callers_wait_while_their_slot_moves() {
    let cluster = Cluster::start(2, 0);
    let client = build(Client::builder().cluster(cluster.urls()).poll_interval(MINUTE / 60));
    let [from, to] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let names = names_on(&cluster, from);
    wait_for_both(cluster.nodes(), &client, &names, |names| {
        for name in names {
            cluster.migrate(cluster.slot_of(name), to);
        }
        give(&client, names);
    });
    assert_eq!(client.plain_semaphore(&names[0]).available().expect("an answer"), 2);
    assert_eq!(to.ask::<Option<i64>>(&["GET", &names[0]]), Some(2));
}

/// A call in a moving slot gets `TRYAGAIN` until the end of the move, and takes effect once.
#[test]
fn a_call_during_the_move_of_its_slot_takes_effect_once() {
    let cluster = Cluster::start(2, 0);
    let settings = Client::builder().cluster(cluster.urls()).response_timeout(MINUTE);
    let client = build(settings);
    let [from, to] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let name = cluster.key_on(from, "permits");
    let (stock, slot) = (client.plain_semaphore(&name), cluster.slot_of(&name));
    stock.release(10).expect("an answer");
    cluster.begin_migration(slot, to);
    cluster.move_keys(slot, to);
    thread::scope(|scope| {
        let calls = [
            scope.spawn(|| stock.acquire(3)),
            scope.spawn(|| stock.release(1)),
            scope.spawn(|| stock.add_permits(5)),
        ];
        eventually("a call arrives", || from.calls("evalsha") > 1);
        cluster.end_migration(slot, to);
        for call in calls {
            in_time("the call returns", call).expect("an answer of the new owner");
        }
    });
    assert_eq!(stock.available().expect("an answer"), 13);
}

#[test]
fn callers_wait_through_a_fail_over() {
    let servers = Replicated::start(1, 3);
    let settings = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let [one, two] = [(); 2].map(|()| build(settings().poll_interval(MINUTE)));
    let names = ["permits", "latch"].map(str::to_owned);
    wait_for_both(servers.servers(), &one, &names, |names| {
        let has_latch = || servers.replicas()[0].ask::<bool>(&["EXISTS", &names[1]]);
        eventually("the replica has the count", has_latch);
        servers.fail_over_and_settle();
        give(&two, names);
    });
    let stock = two.plain_semaphore(&names[0]);
    assert_eq!(stock.available().expect("an answer"), 2);
}
