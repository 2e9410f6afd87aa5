//! Locks shared with Redisson, in a cluster and on a master with sentinels.
//!
//! Leases, and most poll intervals, are far longer than these tests, so that waiters are woken by
//! the messages of the other side. Without a JDK or Maven each test prints that it is skipped; with
//! `LEASEHOLD_INTEROP` set that is a failure.

use crate::harness::faults::channel_of;
use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server, eventually, in_time};
use crate::java::Java;
use crate::shared::with_java;
use leasehold::{Builder, Client};
use std::thread;
use std::time::Duration;

/// A duration longer than any test.
const NEVER: Duration = Duration::from_secs(600);

fn patient(builder: Builder) -> Client {
    let builder = builder.poll_interval(NEVER).watchdog_timeout(NEVER);
    builder.build().expect("the servers are there")
}

/// Returns whether the lock's channel, sharded or not, has a subscriber at these servers.
fn is_subscribed<'a>(servers: impl IntoIterator<Item = &'a Server>, name: &str) -> bool {
    let channel = channel_of(name);
    servers.into_iter().any(|server| server.listeners(&channel) > 0)
}

/// Asserts that each side, when it releases the lock, wakes a waiter of the other.
fn wake_each_other(java: &Java, rust: &Client, name: &str, is_subscribed: impl Fn() -> bool) {
    let lock = rust.lock(name);
    java.does("t", &format!("lock plain {name}"));
    assert!(lock.try_lock().expect("an answer").is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.lock().map(|guard| guard.detach()));
        eventually("Rust subscribes", &is_subscribed);
        java.does("t", &format!("unlock plain {name}"));
        in_time("Rust gets the message", waits).expect("a lock");
    });
    assert_eq!(java.does("t", &format!("try plain {name}")), "false");
    assert!(lock.force_unlock().expect("an answer"), "it is detached");
    // Otherwise the subscription of Java could not be told from that of Rust.
    eventually("Rust unsubscribes", || !is_subscribed());
    let guard = lock.lock().expect("free");
    let waits = java.order("t", &format!("lock plain {name}"));
    eventually("Java subscribes", &is_subscribed);
    guard.unlock().expect("held");
    waits.answer().expect("Java gets the message");
    java.does("t", &format!("unlock plain {name}"));
}

#[test]
fn both_sides_wake_each_other_on_every_node_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let java = with_java!(Java::start_in(&cluster, NEVER));
    let short = Client::builder().cluster(cluster.urls()).poll_interval(Duration::from_secs(1));
    let short = short.watchdog_timeout(NEVER).build().expect("the cluster is well");
    for node in cluster.nodes() {
        let name = cluster.key_on(node, "lock");
        // With a short poll interval subscriptions end soon. Messages come far sooner than polls.
        wake_each_other(&java, &short, &name, || is_subscribed(cluster.nodes(), &name));
    }
    let patient = patient(Client::builder().cluster(cluster.urls()));
    for node in cluster.nodes() {
        let name = cluster.key_on(node, "other");
        java.does("t", &format!("lock plain {name}"));
        thread::scope(|scope| {
            let waits = scope.spawn(|| patient.lock(&name).lock().and_then(|guard| guard.unlock()));
            eventually("Rust subscribes", || is_subscribed(cluster.nodes(), &name));
            java.does("t", &format!("unlock plain {name}"));
            in_time("the message alone wakes Rust", waits).expect("a lock");
        });
    }
}

#[test]
fn both_sides_exclude_each_other_before_and_after_a_fail_over() {
    let servers = Replicated::start(1, 3);
    let place = format!("{MASTER}={}", servers.sentinel_urls().join(","));
    let java = with_java!(Java::start_at(&place, NEVER));
    let builder = Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let rust = builder.poll_interval(Duration::from_secs(1)).watchdog_timeout(NEVER).build();
    let rust = rust.expect("there is a master");
    wake_each_other(&java, &rust, "a", || is_subscribed(servers.servers(), "a"));
    java.does("t", "lock plain b");
    let guard = rust.lock("c").lock().expect("free");
    let has_both = |server: &&Server| {
        let held: Option<usize> = server.try_ask(&["EXISTS", "b", "c"]);
        held == Some(2)
    };
    eventually("the replica has both locks", || servers.replicas().iter().all(has_both));
    servers.fail_over_and_settle();
    eventually("Rust uses the new master", || {
        rust.lock("b").try_lock().is_ok_and(|got| got.is_none())
    });
    eventually("Java uses the new master", || {
        java.order("t", "try plain c").answer() == Ok("false".to_owned())
    });
    guard.unlock().expect("still held");
    java.does("t", "unlock plain b");
    rust.lock("b").lock().expect("free").unlock().expect("held");
    wake_each_other(&java, &rust, "d", || is_subscribed(servers.servers(), "d"));
}
