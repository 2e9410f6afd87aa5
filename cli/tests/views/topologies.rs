//! The verbs with a cluster and with sentinels.

use super::program::{Running, json, run};
use crate::harness::replicated::MASTER;
use crate::harness::wait::join;
use crate::harness::{Cluster, Replicated, eventually, eventually_some, exists};
use leasehold::{Builder, Client};
use serde_json::Value;
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
        let acquired = watch.until("acquired", &["released"]);
        assert_eq!(acquired["name"], name, "{acquired}");
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

/// One node of a cluster dies, and the others go on without its slots.
#[test]
fn a_dead_node_of_a_cluster_hides_only_its_locks() {
    let cluster = Cluster::with(3, 0, |config| config.line("cluster-require-full-coverage no"));
    let holding = client(Client::builder().cluster(cluster.urls()));
    let url = cluster.nodes()[0].url();
    let options = ["--cluster", "--url", &url];
    let names: Vec<_> = cluster.nodes().iter().map(|node| cluster.key_on(node, "a")).collect();
    let guards = names.iter().map(|name| holding.lock(name).lock_owned().expect("free"));
    let mut guards: Vec<_> = guards.collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let watch = Running::watch(&[&all[..], &options].concat());
    for _ in &names {
        watch.until("acquired", &["outage"]);
    }
    cluster.nodes()[2].kill();
    let lists_two = || {
        // The nodes refuse commands until they know of the death.
        let outcome = run(&[&["ls", "--json"], &options[..]].concat());
        let listed: Option<Vec<Value>> = serde_json::from_str(&outcome.out).ok();
        (listed?.len() == 2).then_some(outcome)
    };
    let outcome = eventually_some("the live nodes answer", lists_two);
    assert_eq!(outcome.code, Some(69), "{outcome:?}");
    let dead = cluster.nodes()[2].addr().to_string();
    assert!(outcome.err.lines().count() == 1 && outcome.err.contains(&dead), "{outcome:?}");
    let (code, shown) = json(&[&["show", &names[0]], &options[..]].concat());
    assert_eq!((code, &shown["name"]), (Some(0), &Value::from(&*names[0])));
    let lost = run(&[&["show", &names[2]], &options[..]].concat());
    assert_eq!((lost.code, &*lost.out), (Some(69), ""), "{lost:?}");
    let (code, forced) = json(&[&["force", &names[1]], &options[..]].concat());
    assert_eq!((code, &forced["forced"]), (Some(0), &true.into()));
    // All locks may have had an outage before the nodes knew of the death.
    loop {
        let released = watch.until("released", &[]);
        if released["name"] == names[1] {
            break;
        }
    }
    drop(guards.remove(0));
    assert_eq!(watch.until("released", &[])["name"], names[0]);
    assert_eq!(guards.len(), 2);
}
