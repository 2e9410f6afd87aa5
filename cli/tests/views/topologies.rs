//! The verbs with a cluster and with sentinels.

use super::program::{Running, json};
use crate::harness::replicated::MASTER;
use crate::harness::wait::join;
use crate::harness::{Cluster, Replicated, eventually, exists};
use leasehold::{Builder, Client};
use std::thread;
use std::time::Duration;

/// A client of these servers that renews its locks and keeps them through a fail-over.
fn client(builder: Builder) -> Client {
    let patient = builder.watchdog_timeout(Duration::from_secs(60));
    patient.build().expect("the servers answer")
}

/// Each lock has another node: the looks of `watch` and the search of `force` go to all of them.
#[test]
fn locks_of_all_nodes_of_a_cluster_are_watched_and_forced() {
    let cluster = Cluster::start(3, 0);
    let [holding, waiting] = [(); 2].map(|()| client(Client::builder().cluster(cluster.urls())));
    let url = cluster.nodes()[0].url();
    let options = ["--cluster", "--url", &url];
    let names: Vec<_> = cluster.nodes().iter().map(|node| cluster.key_on(node, "a")).collect();
    let locked: Vec<&str> = names.iter().map(String::as_str).collect();
    let watch = Running::watch(&[&locked[..], &options].concat());
    for name in locked {
        let guard = holding.queue_lock(name).lock_owned().expect("free");
        assert_eq!(watch.until("acquired", &["released"])["name"], name);
        let lock = waiting.queue_lock(name);
        let waiter = thread::spawn(move || lock.lock_owned());
        let waits = watch.until("waiting", &["released"]);
        assert_eq!((&waits["name"], &waits["kind"]), (&name.into(), &"queue lock".into()));
        let (code, forced) = json(&[&["force", name], &options[..]].concat());
        assert_eq!((code, &forced["forced"]), (Some(0), &true.into()));
        assert_eq!(watch.until("released", &["expired"])["name"], name);
        let granted = join(waiter).expect("the waiter gets the lock");
        let acquired = watch.until("acquired", &["expired"]);
        assert_eq!(acquired["client_id"], waiting.id().to_string());
        granted.unlock().expect("held");
        assert_eq!(watch.until("released", &["expired"])["name"], name);
        assert!(guard.unlock().is_err(), "the hold was taken away");
    }
}

/// The verbs find the master again after a fail-over, and a running `watch` follows it.
#[test]
fn a_fail_over_under_sentinels_is_followed() {
    let servers = Replicated::start(1, 3);
    let client = client(Client::builder().sentinel(MASTER, servers.sentinel_urls()));
    let urls = servers.sentinel_urls().join(",");
    let options = ["--sentinel", MASTER, "--url", &urls];
    let guard = client.lock("a").lock_owned().expect("free");
    let watch = Running::watch(&[&["a"], &options[..]].concat());
    assert_eq!(watch.until("acquired", &["released"])["name"], "a");
    let replica = servers.replicas()[0];
    eventually("the replica has the lock", || exists(replica, "a"));
    servers.fail_over_and_settle();
    let (code, shown) = json(&[&["show", "a"], &options[..]].concat());
    assert_eq!((code, &shown["name"]), (Some(0), &"a".into()));
    let (_, listed) = json(&[&["ls"], &options[..]].concat());
    assert_eq!(listed[0]["holders"][0]["client_id"], client.id().to_string());
    guard.unlock().expect("the lock survived the fail-over");
    assert_eq!(watch.until("released", &["expired"])["name"], "a");
}
