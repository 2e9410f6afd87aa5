//! With Redisson itself at the other end of the same lock, on a cluster and on a master that
//! sentinels look after.
//!
//! Leases and poll intervals are far longer than these tests: what wakes somebody in time is
//! the message of the other side. Where there is no JDK or no Maven each test says that it
//! is skipped; with `LEASEHOLD_INTEROP` set that is a failure.

use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server, eventually, in_time};
use crate::java::Java;
use leasehold::{Builder, Client};
use std::thread;
use std::time::Duration;

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(600);

fn patient(builder: Builder) -> Client {
    let builder = builder.poll_interval(NEVER).watchdog_timeout(NEVER);
    builder.build().expect("the servers are there")
}

/// Whether anybody listens for releases of that lock, at any of these servers and in any way.
fn is_heard<'a>(servers: impl IntoIterator<Item = &'a Server>, name: &str) -> bool {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    servers.into_iter().any(|server| {
        ["NUMSUB", "SHARDNUMSUB"].iter().any(|how| {
            let heard: Option<(String, usize)> = server.tells(&["PUBSUB", how, &channel]);
            heard.is_some_and(|(_, count)| count > 0)
        })
    })
}

/// Each side holds while the other waits, and wakes it by its release.
fn pass_to_and_fro(java: &Java, rust: &Client, name: &str, is_heard: impl Fn() -> bool) {
    let lock = rust.lock(name);
    java.does("t", &format!("lock plain {name}"));
    assert!(lock.try_lock().expect("an answer").is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.lock().map(|guard| guard.detach()));
        eventually("Rust listens", &is_heard);
        java.does("t", &format!("unlock plain {name}"));
        in_time("Rust is told", waits).expect("a lock");
    });
    assert_eq!(java.does("t", &format!("try plain {name}")), "false");
    assert!(lock.force_unlock().expect("an answer"), "it was detached");
    // Or it could not be seen that Java does.
    eventually("Rust listens no more", || !is_heard());
    let guard = lock.lock().expect("free");
    let waits = java.order("t", &format!("lock plain {name}"));
    eventually("Java listens", &is_heard);
    guard.unlock().expect("held");
    waits.answer().expect("Java is told");
    java.does("t", &format!("unlock plain {name}"));
}

#[test]
fn both_hear_each_other_on_every_node_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let place = format!("cluster={}", cluster.urls().join(","));
    let Some(java) = Java::start_at(&place, NEVER) else { return };
    let short = Client::builder().cluster(cluster.urls()).poll_interval(Duration::from_secs(1));
    let short = short.watchdog_timeout(NEVER).build().expect("the cluster is well");
    for node in cluster.nodes() {
        let name = cluster.key_on(node, "lock");
        // So that subscriptions do not linger; messages come far sooner than polls.
        pass_to_and_fro(&java, &short, &name, || is_heard(cluster.nodes(), &name));
    }
    let patient = patient(Client::builder().cluster(cluster.urls()));
    for node in cluster.nodes() {
        let name = cluster.key_on(node, "other");
        java.does("t", &format!("lock plain {name}"));
        thread::scope(|scope| {
            let waits = scope.spawn(|| patient.lock(&name).lock().and_then(|guard| guard.unlock()));
            eventually("Rust listens", || is_heard(cluster.nodes(), &name));
            java.does("t", &format!("unlock plain {name}"));
            in_time("Rust is told by nothing but the message", waits).expect("a lock");
        });
    }
}

#[test]
fn both_exclude_each_other_before_and_after_a_fail_over() {
    let servers = Replicated::start(1, 3);
    let place = format!("{MASTER}={}", servers.sentinel_urls().join(","));
    let Some(java) = Java::start_at(&place, NEVER) else { return };
    let builder = Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let rust = builder.poll_interval(Duration::from_secs(1)).watchdog_timeout(NEVER).build();
    let rust = rust.expect("there is a master");
    pass_to_and_fro(&java, &rust, "a", || is_heard(servers.servers(), "a"));
    java.does("t", "lock plain b");
    let guard = rust.lock("c").lock().expect("free");
    let has_both = |server: &&Server| {
        let held: Option<usize> = server.tells(&["EXISTS", "b", "c"]);
        held == Some(2)
    };
    eventually("the replica has both", || servers.replicas().iter().all(has_both));
    servers.fail_over();
    eventually("Rust is there", || rust.lock("b").try_lock().is_ok_and(|got| got.is_none()));
    eventually("Java is there", || {
        java.order("t", "try plain c").answer() == Ok("false".to_owned())
    });
    guard.unlock().expect("still held");
    java.does("t", "unlock plain b");
    rust.lock("b").lock().expect("free").unlock().expect("held");
    pass_to_and_fro(&java, &rust, "d", || is_heard(servers.servers(), "d"));
}
