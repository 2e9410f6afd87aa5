//! The queue lock with Sentinel and Cluster: fail-overs, grants from other nodes, and slots that
//! move.

use crate::harness::faults::{build, channel_of};
use crate::harness::queued::*;
use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server, eventually, exists, join};
use crate::{await_subscriber, subscribers};
use leasehold::{Client, Sharding};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// A hold of Redisson's plain lock.
const JAVA: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1";

const WAITERS: usize = 4;

/// Starts waiters of the clients in turn; blocks until all are in the queue of this server.
fn start_waiters(server: &Server, clients: &[Client], name: &str) -> Vec<QueueWaiter> {
    let client = |number: usize| clients[number % clients.len()].queue_lock(name);
    (0..WAITERS).map(|number| QueueWaiter::placed(server, &client(number))).collect()
}

/// Blocks until one of the servers has a connection on which the client listens.
fn await_listeners(servers: &[Server], clients: &[Client]) {
    let listens = |client: &Client| subscribers(servers, &wake_channel(client.id())) == 1;
    eventually("all clients listen", || clients.iter().all(listens));
}

/// Replaces the master while callers of two clients wait. `before` changes the replica.
fn order_survives_a_fail_over(before: impl Fn(&Server)) {
    let servers = Replicated::start(1, 3);
    let sentinels = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let clients = [(); 2].map(|()| build(sentinels().poll_interval(MINUTE)));
    servers.master().ask::<()>(&["HSET", "a", JAVA, "1"]);
    let waiters = start_waiters(servers.master(), &clients, "a");
    await_listeners(servers.servers(), &clients);
    let order = places(servers.master(), "a");
    let replica = servers.replicas()[0];
    eventually("the replica has the queue", || queue_length(replica, "a") == WAITERS);
    before(replica);
    let new = servers.fail_over();
    eventually("the places are restored", || places(new, "a") == order);
    eventually("the clients listen at the new master", || {
        clients.iter().all(|client| is_listening(new, client))
    });
    assert!(clients[0].queue_lock("a").force_unlock().expect("an answer"));
    get_it_in_order(waiters);
    only_tokens_are_left(new);
}

#[test]
fn waiters_keep_their_order_through_a_fail_over() {
    order_survives_a_fail_over(|_| {});
}

#[test]
fn waiters_that_the_new_master_lacks_get_their_places_back() {
    order_survives_a_fail_over(|replica| {
        replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
        replica.ask::<()>(&["DEL", &queue_key("a"), &clients_key("a")]);
    });
}

/// Has a client wait for a plain lock, which the other client has as a queue lock.
fn a_plain_waiter_is_woken(cluster: &Cluster, [holder, client]: [&Client; 2], name: &str) {
    let guard = holder.queue_lock(name).lock().expect("free");
    let plain = client.lock(name);
    let waiter = thread::spawn(move || plain.lock_owned().and_then(|guard| guard.unlock()));
    await_subscriber(cluster.nodes(), &channel_of(name));
    guard.unlock().expect("held");
    join(waiter).expect("it is woken");
}

/// The clients listen at one node each, and never poll.
#[test]
fn grants_come_from_the_nodes_of_all_locks() {
    let cluster = Cluster::start(3, 0);
    for sharding in [Sharding::Auto, Sharding::Off] {
        let quiet =
            || Client::builder().cluster(cluster.urls()).sharding(sharding).poll_interval(MINUTE);
        let (holder, client) = (build(quiet()), build(quiet()));
        let clients = [client];
        for node in cluster.nodes() {
            let name = cluster.key_on(node, "lock");
            let guard = holder.queue_lock(&name).lock().expect("free");
            let waiters = start_waiters(node, &clients, &name);
            await_listeners(cluster.nodes(), &clients);
            guard.unlock().expect("held");
            get_it_in_order(waiters);
            a_plain_waiter_is_woken(&cluster, [&holder, &clients[0]], &name);
            only_tokens_are_left(node);
        }
        let node_of_listener = |node: &&Server| node.listeners(&wake_channel(clients[0].id())) == 1;
        assert_eq!(cluster.nodes().iter().filter(node_of_listener).count(), 1);
    }
}

/// The lock is released while some of its keys are on each of the two nodes.
#[test]
fn waiters_keep_their_order_when_their_slot_moves() {
    let cluster = Cluster::start(3, 0);
    let quiet = || Client::builder().cluster(cluster.urls()).poll_interval(MINUTE);
    let clients = [(); 2].map(|()| build(quiet()));
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let name = cluster.key_on(from, "lock");
    let holder = build(quiet());
    let guard = holder.queue_lock(&name).lock_owned().expect("free");
    let waiters = start_waiters(from, &clients, &name);
    await_listeners(cluster.nodes(), &clients);
    let slot = cluster.slot_of(&name);
    cluster.begin_migration(slot, to);
    cluster.send(&[queue_key(&name)], from, to);
    let release = thread::spawn(|| guard.unlock());
    cluster.move_keys(slot, to);
    cluster.end_migration(slot, to);
    join(release).expect("held");
    get_it_in_order(waiters);
    only_tokens_are_left(to);
}

#[test]
fn waiters_keep_their_order_through_a_fail_over_of_their_node() {
    let cluster = Cluster::start(3, 1);
    let quiet = || Client::builder().cluster(cluster.urls()).poll_interval(MINUTE);
    let clients = [(); 2].map(|()| build(quiet()));
    let master = &cluster.nodes()[0];
    let name = cluster.key_on(master, "lock");
    master.ask::<()>(&["HSET", &name, JAVA, "1"]);
    let waiters = start_waiters(master, &clients, &name);
    let order = places(master, &name);
    let replica = cluster.replica_of(master);
    cluster.fail_over(replica);
    eventually("the places are kept", || places(replica, &name) == order);
    await_listeners(cluster.nodes(), &clients);
    assert!(exists(replica, &name));
    assert!(clients[0].queue_lock(&name).force_unlock().expect("an answer"));
    get_it_in_order(waiters);
    only_tokens_are_left(replica);
}
