//! The harness itself: deployments of several servers that fail over, come back and move slots.

use crate::harness::slots;
use crate::harness::{Cluster, Connections, Members, Replicated, Server, eventually, exists};
use redis::{RedisError, RedisResult};
use std::thread;
use std::time::Duration;

#[test]
fn a_planned_fail_over_promotes_a_replica_with_the_data() {
    let replicated = Replicated::start(2, 3);
    assert_eq!(replicated.sentinel_urls().len(), 3);
    let old = replicated.master();
    assert_eq!(old.port(), replicated.servers()[0].port(), "the first server is the master");
    put(old, "kept", 2);

    let new = replicated.fail_over();
    assert_ne!(new.port(), old.port());
    assert!(exists(new, "kept"));
    replicated.settle();
    assert!(old.says("role:slave"));
    assert_eq!(replicated.replicas().len(), 2);
    assert_ne!(replicated.fail_over().port(), new.port(), "a second fail-over follows at once");
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() {
    let replicated = Replicated::start(1, 3);
    let old = replicated.master();
    put(old, "kept", 1);

    old.kill();
    let new = replicated.await_master_other_than(old.port());
    assert_eq!(replicated.master().port(), new.port());
    assert!(exists(new, "kept") && replicated.replicas().is_empty());
    replicated.await_agreement_of_sentinels(new);
    old.restart();
    replicated.settle();
    // The old master came back without data, so the key proves that it was a replica. (On a busy
    // machine it may have been promoted again since.)
    assert!(exists(old, "kept"));
    assert_eq!(replicated.replicas().len(), 1);
}

#[test]
fn a_stopped_master_is_replaced_although_one_sentinel_is_stopped() {
    let replicated = Replicated::start(1, 3);
    let (old, sentinel) = (replicated.master(), &replicated.sentinels()[0]);
    sentinel.stop();
    old.stop();
    let new = replicated.await_master_other_than(old.port());
    old.resume();
    sentinel.resume();
    replicated.settle();
    assert_eq!(replicated.master().port(), new.port());
}

/// A sentinel that seldom runs suspects the clock, and does not act for a while. The harness
/// shortens that time, except with Redis 6.2, which has no command for it.
#[test]
fn sentinels_fail_over_soon_after_they_were_stopped() {
    let replicated = Replicated::start(1, 3);
    if replicated.sentinels()[0].try_ask::<redis::Value>(&["SENTINEL", "DEBUG"]).is_none() {
        return println!("skipped: this server has no SENTINEL DEBUG");
    }
    let old = replicated.master();
    replicated.sentinels().iter().for_each(Server::stop);
    thread::sleep(Duration::from_secs(3));
    replicated.sentinels().iter().for_each(Server::resume);
    old.kill();
    replicated.await_master_other_than(old.port());
}

#[test]
fn a_killed_sentinel_comes_back_and_learns_the_new_master() {
    let replicated = Replicated::start(1, 3);
    let sentinel = &replicated.sentinels()[1];
    sentinel.kill();
    assert!(!sentinel.runs());
    let new = replicated.fail_over();
    sentinel.restart();
    replicated.settle();
    assert_eq!(replicated.master().port(), new.port());
}

#[test]
fn servers_with_a_password_replicate_and_fail_over() {
    let replicated = Replicated::with(1, 1, |config| config.password("pass-word"));
    let old = replicated.master().port();
    assert_ne!(replicated.fail_over().port(), old);
}

#[test]
fn replicas_need_no_sentinels() {
    let replicated = Replicated::start(2, 0);
    put(replicated.master(), "kept", 2);
    assert!(replicated.replicas().iter().all(|replica| exists(replica, "kept")));
}

#[test]
fn a_node_of_a_cluster_serves_its_keys_and_redirects_others() {
    let cluster = Cluster::start(3, 1);
    assert_eq!(cluster.urls().len(), 6);
    for master in &cluster.nodes()[..3] {
        let key = cluster.key_on(master, "mine");
        put(master, &key, 1);
        assert!(cluster.replica_of(master).says("master_link_status:up"));
        let others = cluster.nodes().iter().filter(|node| node.port() != master.port());
        for other in others {
            let error = get(other, &key).expect_err("another node's key");
            assert_eq!(redirection(&error), ("MOVED", master.port()));
        }
    }
}

#[test]
fn a_slot_moves_with_its_keys_and_its_owner_replies_ask_meanwhile() {
    let cluster = Cluster::with(2, 1, |config| config.password("pass-word"));
    let [from, to] = &cluster.nodes()[..2] else { panic!("two masters") };
    let tag = cluster.key_on(from, "tag");
    let keys: Vec<String> = (0..250).map(|count| format!("{{{tag}}}:{count}")).collect();
    keys.iter().for_each(|key| put(from, key, 0));
    let slot = cluster.slot_of(&keys[0]);
    assert_eq!(slots::slot(&tag), slot);

    cluster.begin_migration(slot, to);
    assert!(get(from, &keys[0]).is_ok(), "the owner still has the key");
    let error = get(from, &format!("{{{tag}}}:new")).expect_err("the owner does not have the key");
    assert_eq!(redirection(&error), ("ASK", to.port()));
    cluster.move_keys(slot, to);
    assert_eq!(redirection(&get(from, &keys[0]).expect_err("moved")), ("ASK", to.port()));
    assert_eq!(cluster.owner_of(&keys[0]).port(), from.port());
    cluster.end_migration(slot, to);

    assert_eq!(cluster.owner_of(&keys[0]).port(), to.port());
    assert_eq!(redirection(&get(from, &keys[0]).expect_err("moved")), ("MOVED", to.port()));
    assert_eq!(to.keys().len(), keys.len());
    cluster.migrate(slot, from);
    assert_eq!(cluster.owner_of_slot(slot).port(), from.port());
    assert_eq!(from.keys().len(), keys.len());
}

#[test]
fn a_planned_fail_over_in_a_cluster_promotes_the_replica() {
    let cluster = Cluster::start(3, 1);
    let old = &cluster.nodes()[0];
    let (new, key) = (cluster.replica_of(old), cluster.key_on(old, "kept"));
    put(old, &key, 1);
    cluster.fail_over(new);
    assert_eq!(cluster.owner_of(&key).port(), new.port());
    assert_eq!(cluster.replica_of(new).port(), old.port());
    assert!(exists(new, &key));
}

#[test]
fn a_killed_master_in_a_cluster_is_replaced_and_comes_back_as_a_replica() {
    let cluster = Cluster::start(3, 1);
    let old = &cluster.nodes()[0];
    let (new, key) = (cluster.replica_of(old), cluster.key_on(old, "kept"));
    put(old, &key, 1);

    old.kill();
    assert_eq!(cluster.owner_of(&key).port(), new.port());
    cluster.settle();
    assert!(exists(new, &key));
    old.restart();
    cluster.settle();
    assert_eq!(cluster.replica_of(new).port(), old.port());
}

#[test]
fn a_master_behind_a_partition_is_replaced_and_follows_after_the_partition() {
    let members = Members::default();
    let replicated = Replicated::with(1, 3, |config| config.gated(&members));
    let old = replicated.master();
    put(old, "kept", 1);
    cut_off(old, replicated.servers().iter().chain(replicated.sentinels()));
    let new = replicated.await_master_other_than(old.port());
    assert!(old.says("role:master") && exists(new, "kept"), "both are masters");
    replicated.servers().iter().for_each(|server| server.gate().heal());
    replicated.settle();
    assert!(old.says("role:slave"));
}

#[test]
fn a_node_behind_a_partition_is_replaced_and_follows_after_the_partition() {
    let members = Members::default();
    let cluster = Cluster::with(3, 1, |config| config.gated(&members));
    let old = &cluster.nodes()[0];
    let (new, key) = (cluster.replica_of(old), cluster.key_on(old, "kept"));
    put(old, &key, 1);
    cut_off(old, cluster.nodes().iter());
    eventually("the replica becomes the master", || new.says("role:master"));
    cluster.nodes().iter().for_each(|node| node.gate().heal());
    cluster.settle();
    assert_eq!(cluster.replica_of(new).port(), old.port());
}

/// Cuts one server off from others, for connections in both directions.
fn cut_off<'a>(one: &Server, others: impl Iterator<Item = &'a Server>) {
    let others: Vec<_> = others.filter(|other| other.port() != one.port()).collect();
    one.gate().identify();
    for other in others {
        other.gate().identify();
        one.gate().keep_apart(&Connections::Member(other.member().into()));
        other.gate().keep_apart(&Connections::Member(one.member().into()));
    }
}

#[test]
fn the_clock_of_a_server_can_be_moved() {
    let server = Server::with(|config| config.movable_clock());
    let seconds = || server.ask::<(i64, i64)>(&["TIME"]).0;
    let before = seconds();
    put(&server, "volatile", 0);
    server.ask::<()>(&["PEXPIRE", "volatile", "1000000"]);
    server.set_clock(500_000);
    assert!((before + 500..before + 600).contains(&seconds()));
    assert!(exists(&server, "volatile"));
    server.set_clock(2_000_000);
    assert!(!exists(&server, "volatile"), "the key has expired");
    server.set_clock(-500_000);
    assert!(seconds() < before);
}

/// Sets a key; blocks until `replicas` replicas have it.
fn put(master: &Server, key: &str, replicas: usize) {
    let mut connection = master.connection();
    redis::cmd("SET").arg(key).arg(1).exec(&mut connection).expect("the node serves the key");
    eventually("replicas have the key", || {
        let wait = redis::cmd("WAIT").arg(replicas).arg(1000).query::<usize>(&mut connection);
        wait.expect("WAIT is answered") >= replicas
    });
}

fn get(node: &Server, key: &str) -> RedisResult<String> {
    redis::cmd("GET").arg(key).query(&mut node.connection())
}

/// Returns the code and the port of a redirection.
fn redirection(error: &RedisError) -> (&str, u16) {
    let (address, _) = error.redirect_node().expect("a redirection");
    let (_, port) = address.rsplit_once(':').expect("an address with a port");
    (error.code().expect("a code"), port.parse().expect("a port"))
}
