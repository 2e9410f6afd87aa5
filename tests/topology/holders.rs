//! Holders, waiting callers and the search for locks, in a cluster and on a master with sentinels.

use std::collections::BTreeSet;
use std::thread;

use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, eventually, exists, in_time};
use crate::lock_all;
use leasehold::{CancelToken, Client, LockInfo, Sharding};

/// Returns the names of all locks, each of which is found once.
fn names(client: &Client) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for lock in client.locks("*").expect("a good pattern") {
        let name = lock.expect("an answer").name().to_owned();
        assert!(names.insert(name.clone()), "{name} is found twice");
    }
    names
}

/// Has a client hold and another one wait for locks on all nodes, while a third one looks.
fn finds_locks_of_all_nodes(sharding: Sharding) {
    let cluster = Cluster::start(3, 0);
    let builder = || Client::builder().cluster(cluster.urls()).sharding(sharding);
    let holding = builder().build().expect("the cluster is well");
    let waiting = builder().build().expect("the cluster is well");
    // Nothing is known about the nodes before the first call.
    let looking = builder().build_lazily().expect("no connection");
    let expected: Vec<String> = (0..60).map(|number| format!("lock {number}")).collect();
    let guards = lock_all(&holding, &expected);
    assert_eq!(names(&looking), BTreeSet::from_iter(expected.clone()));
    let scans = cluster.nodes().iter().filter(|node| node.calls("scan") > 0);
    assert_eq!(scans.count(), 3, "every master is asked");

    let stop = CancelToken::new();
    thread::scope(|scope| {
        let first_on = |port| expected.iter().find(|name| cluster.owner_of(name).port() == port);
        let nodes = cluster.nodes().iter();
        let on_each: Vec<_> = nodes.filter_map(|node| first_on(node.port())).collect();
        assert_eq!(on_each.len(), 3, "each node has locks");
        let wait = |name: &&String| {
            let lock = waiting.lock(*name).with_cancel(&stop);
            scope.spawn(move || lock.lock().map(drop))
        };
        let waiters: Vec<_> = on_each.iter().map(wait).collect();
        for name in &on_each {
            let lock = looking.lock(*name);
            eventually("the process answers", || {
                let holder = lock.holder().expect("an answer").expect("held");
                assert_eq!(holder.client_id(), Some(holding.id()));
                holder.pid() == Some(std::process::id()) && holder.thread().is_some()
            });
            let processes = || lock.waiting().expect("an answer").processes();
            eventually("one process waits", || processes() == 1);
        }
        let found: Vec<LockInfo> =
            looking.locks("*").expect("good").map(|it| it.expect("an answer")).collect();
        let awaited = found.iter().filter(|lock| lock.waiting().processes() == 1);
        let awaited: BTreeSet<_> = awaited.map(LockInfo::name).collect();
        assert_eq!(awaited, on_each.iter().map(|name| name.as_str()).collect());
        stop.cancel();
        for waiter in waiters {
            let outcome = in_time("the wait ends", waiter);
            assert!(outcome.is_err_and(|error| error.is_cancelled()));
        }
    });
    drop(guards);
}

#[test]
fn locks_of_all_masters_are_found_with_plain_messages() {
    finds_locks_of_all_nodes(Sharding::Off);
}

#[test]
fn locks_of_all_masters_are_found_with_the_messages_of_the_cluster() {
    finds_locks_of_all_nodes(Sharding::Auto);
}

#[test]
fn a_search_goes_on_while_a_slot_moves() {
    let cluster = Cluster::start(2, 0);
    let client = Client::builder().cluster(cluster.urls()).build().expect("the cluster is well");
    let expected: Vec<String> = (0..4).map(|number| format!("{{moving}}{number}")).collect();
    let guards = lock_all(&client, &expected);
    let slot = cluster.slot_of("{moving}");
    let old = cluster.owner_of("{moving}");
    let new = cluster.nodes().iter().find(|node| node.port() != old.port()).expect("two nodes");
    cluster.begin_migration(slot, new);
    let half = expected.iter().take(2).map(String::as_str);
    let port = new.port().to_string();
    // First both nodes have these keys, then only the new one has them.
    for how in ["COPY", "REPLACE"] {
        let moved = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", how, "KEYS"];
        old.ask::<()>(&moved.into_iter().chain(half.clone()).collect::<Vec<_>>());
        assert_eq!(names(&client), BTreeSet::from_iter(expected.clone()), "{how}");
    }
    for name in &expected {
        assert!(client.lock(name).holder().expect("an answer").is_some(), "{name}");
    }
    cluster.migrate(slot, new);
    assert_eq!(names(&client), BTreeSet::from_iter(expected.clone()));
    drop(guards);
}

#[test]
fn queues_of_all_masters_are_shown() {
    let cluster = Cluster::start(3, 0);
    let client = || Client::builder().cluster(cluster.urls()).build().expect("the cluster is well");
    let (holding, waiting, looking) = (client(), client(), client());
    let stop = CancelToken::new();
    let names: Vec<String> = (0..12).map(|number| format!("lock {number}")).collect();
    let guards = names.iter().map(|name| holding.queue_lock(name).lock_owned().expect("free"));
    let guards: Vec<_> = guards.collect();
    thread::scope(|scope| {
        let wait = |name: &String| {
            let lock = waiting.queue_lock(name).with_cancel(&stop);
            scope.spawn(move || lock.lock_owned().map(drop))
        };
        let waiters: Vec<_> = names.iter().map(wait).collect();
        for name in &names {
            let queue = || looking.queue_lock(name).waiting().expect("an answer");
            eventually("the caller is in the queue", || queue().queue().len() == 1);
        }
        let found: Vec<LockInfo> =
            looking.locks("*").expect("good").map(|it| it.expect("an answer")).collect();
        assert_eq!(found.len(), names.len());
        for lock in &found {
            let [caller] = lock.waiting().queue() else { panic!("one caller: {lock:?}") };
            assert_eq!((lock.kind(), caller.client_id()), ("queue lock", Some(waiting.id())));
        }
        stop.cancel();
        for waiter in waiters {
            let outcome = in_time("the wait ends", waiter);
            assert!(outcome.is_err_and(|error| error.is_cancelled()));
        }
    });
    drop(guards);
}

/// The slots of its keys are unknown to a client that takes a cluster node for a single server.
#[test]
fn a_single_server_that_is_a_cluster_node_is_searched() {
    let cluster = Cluster::start(1, 0);
    let client = Client::open(cluster.nodes()[0].url()).expect("a server");
    let expected: Vec<String> = (0..20).map(|number| format!("lock {number}")).collect();
    let guards = lock_all(&client, &expected);
    let looking = Client::open(cluster.nodes()[0].url()).expect("a server");
    assert_eq!(names(&looking), BTreeSet::from_iter(expected));
    drop(guards);
}

#[test]
fn holders_are_found_on_the_master_before_and_after_a_fail_over() {
    let servers = Replicated::start(1, 3);
    let builder = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let holding = builder().build().expect("there is a master");
    let looking = builder().build_lazily().expect("no connection");
    assert_eq!(looking.lock("a").waiting().expect("an answer").processes(), 0);
    let guard = holding.lock("a").lock().expect("free");
    let holder = || looking.lock("a").holder().expect("an answer");
    assert_eq!(holder().expect("held").client_id(), Some(holding.id()));
    assert_eq!(names(&looking), BTreeSet::from(["a".to_owned()]));
    // A fail-over may lose what no replica has yet.
    eventually("the replica has the lock", || exists(servers.replicas()[0], "a"));
    servers.fail_over();
    eventually("the new master is asked", || {
        let found = looking.lock("a").holder();
        found.is_ok_and(|it| it.is_some_and(|it| it.client_id() == Some(holding.id())))
    });
    // The old master may have answered that, before it became a replica and dropped its data.
    eventually("a search finds the lock on the new master", || {
        let mut found = looking.locks("*").expect("the client is open");
        found.any(|lock| lock.is_ok_and(|lock| lock.name() == "a"))
    });
    drop(guard);
}
