//! What the owner of a cluster's nodes carries between them.

use crate::clients::{START, ask, asks, output};
use leasehold_testserver::core::{Address, ClusterMap, Core, slot_of};
use std::rc::Rc;

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

/// The masters a and b, and a replica of a.
struct Nodes {
    a: Core,
    b: Core,
    replica: Core,
    map: ClusterMap,
}

impl Nodes {
    fn start() -> Self {
        let [mut a, mut b, mut replica] = [1, 2, 3].map(Core::new);
        for (core, id) in [(&mut a, "a"), (&mut b, "b"), (&mut replica, "r")] {
            core.set_clock(START);
            core.join_cluster(id);
        }
        replica.become_replica_of(at(1));
        assert!(replica.load(a.add_replica(at(3))));
        let mut map = ClusterMap::new();
        map.add_master("a", at(1), 0..=8191);
        map.add_master("b", at(2), 8192..=16_383);
        map.add_replica("r", at(3), "a");
        let mut nodes = Self { a, b, replica, map };
        nodes.tell();
        nodes
    }

    fn tell(&mut self) {
        let map = Rc::new(self.map.clone());
        for core in [&mut self.a, &mut self.b, &mut self.replica] {
            core.set_cluster_map(&map);
        }
    }

    fn replicate(&mut self) {
        for entry in self.a.take_log() {
            assert!(self.replica.apply(&entry));
        }
    }
}

#[test]
fn a_replica_takes_its_masters_place() {
    let mut nodes = Nodes::start();
    let subscriber = nodes.a.connect();
    ask(&mut nodes.a, subscriber, "HELLO 3");
    ask(&mut nodes.a, subscriber, "SSUBSCRIBE bar");
    asks(&mut nodes.a, "SET bar 1");
    nodes.replicate();
    asks(&mut nodes.a, "SET hello 1");
    assert_eq!(asks(&mut nodes.replica, "GET bar"), "-MOVED 5061 127.0.0.1:1");
    let slots = asks(&mut nodes.b, "CLUSTER SLOTS");
    assert!(slots.starts_with("*2|*4|:0|:8191|*4|$9|127.0.0.1|:1|$1|a|*0|*4|"), "{slots}");
    nodes.replica.promote();
    nodes.map.fail_over("r");
    nodes.a.become_replica_of(at(3));
    nodes.tell();
    assert_eq!(asks(&mut nodes.replica, "MGET {bar} {bar}2"), "*2|$-1|$-1");
    assert_eq!(asks(&mut nodes.replica, "GET bar"), "$1|1");
    assert_eq!(asks(&mut nodes.replica, "EXISTS hello"), ":0", "it was not replicated");
    assert_eq!(asks(&mut nodes.a, "GET bar"), "-MOVED 5061 127.0.0.1:3");
    assert_eq!(output(&mut nodes.a, subscriber), ">3|$12|sunsubscribe|$3|bar|:0");
    let info = asks(&mut nodes.b, "CLUSTER INFO");
    assert!(
        info.contains("cluster_known_nodes:3|cluster_size:2|cluster_current_epoch:3"),
        "{info}"
    );
    assert!(nodes.a.load(nodes.replica.add_replica(at(1))));
    assert_eq!(nodes.a.keys(), [b"bar"]);
}

#[test]
fn the_owner_carries_messages_to_other_nodes() {
    let mut nodes = Nodes::start();
    let [at_b, at_replica] = [&mut nodes.b, &mut nodes.replica].map(|core| {
        let connection = core.connect();
        ask(core, connection, "HELLO 3");
        ask(core, connection, "SUBSCRIBE c");
        ask(core, connection, "SSUBSCRIBE bar");
        connection
    });
    assert_eq!(asks(&mut nodes.a, "PUBLISH c m"), ":0", "only its own subscribers count");
    assert_eq!(asks(&mut nodes.a, "SPUBLISH bar n"), ":0");
    nodes.replicate();
    let messages = nodes.a.take_messages();
    assert!(nodes.a.take_messages().is_empty());
    let sharded: Vec<bool> = messages.iter().map(|message| message.is_sharded()).collect();
    assert_eq!(sharded, [false, true]);
    for message in &messages {
        nodes.replica.deliver(message);
        if !message.is_sharded() {
            nodes.b.deliver(message);
        }
    }
    assert_eq!(output(&mut nodes.b, at_b), ">3|$7|message|$1|c|$1|m");
    let both = ">3|$7|message|$1|c|$1|m|>3|$8|smessage|$3|bar|$1|n";
    assert_eq!(output(&mut nodes.replica, at_replica), both, "once each");
}

#[test]
fn a_slot_moves_with_its_keys_also_at_replicas() {
    let mut nodes = Nodes::start();
    let slot = slot_of(b"bar");
    for request in ["SET {bar}1 1 PX 5000", "HSET {bar}2 f v", "SET hello 1"] {
        asks(&mut nodes.a, request);
    }
    nodes.b.begin_import(slot);
    nodes.a.begin_migration(slot, "b");
    let exported = nodes.a.export_key(b"{bar}1").expect("it is there");
    assert!(nodes.a.export_key(b"{bar}1").is_none());
    nodes.b.import_key(exported);
    assert_eq!(asks(&mut nodes.a, "PTTL {bar}1"), "-ASK 5061 127.0.0.1:2");
    assert_eq!(asks(&mut nodes.b, "PTTL {bar}1"), "-MOVED 5061 127.0.0.1:1");
    assert_eq!(asks(&mut nodes.b, "ASKING\r\nPTTL {bar}1"), "+OK|:5000");
    assert_eq!(nodes.a.keys_in_slot(slot), [b"{bar}2"]);
    nodes.map.give(slot, "b");
    nodes.tell();
    nodes.replicate();
    assert_eq!(nodes.a.keys(), [b"hello"], "a node deletes the keys of a slot that it has lost");
    assert_eq!(nodes.replica.keys(), [b"hello"]);
    assert_eq!(asks(&mut nodes.b, "PTTL {bar}1"), ":5000");
    assert_eq!(asks(&mut nodes.a, "GET {bar}1"), "-MOVED 5061 127.0.0.1:2");
    assert_eq!(asks(&mut nodes.b, "GET {bar}2"), "$-1");
}

#[test]
fn an_abandoned_move_leaves_the_slot_where_it_is() {
    let mut nodes = Nodes::start();
    nodes.b.begin_import(0);
    nodes.a.begin_migration(slot_of(b"bar"), "b");
    assert_eq!(asks(&mut nodes.a, "GET bar"), "-ASK 5061 127.0.0.1:2");
    nodes.a.abandon_move(slot_of(b"bar"));
    assert_eq!(asks(&mut nodes.a, "GET bar"), "$-1");
}

#[test]
fn a_node_that_is_cut_off_refuses_requests_about_keys() {
    let mut nodes = Nodes::start();
    nodes.a.set_cluster_connected(false);
    assert_eq!(asks(&mut nodes.a, "GET bar"), "-CLUSTERDOWN The cluster is down");
    assert!(asks(&mut nodes.a, "CLUSTER INFO").contains("|cluster_state:fail|"));
    assert_eq!(asks(&mut nodes.a, "PING"), "+PONG");
    nodes.a.set_cluster_connected(true);
    assert_eq!(asks(&mut nodes.a, "GET bar"), "$-1");
    assert!(asks(&mut nodes.a, "CLUSTER INFO").contains("|cluster_state:ok|"));
}

#[test]
fn what_a_node_does_not_have_it_refuses() {
    let mut nodes = Nodes::start();
    for request in ["CLUSTER NODES", "CLUSTER SHARDS", "READONLY", "READWRITE"] {
        let reply = asks(&mut nodes.a, request);
        assert!(reply.starts_with("-ERR the test server does not have "), "{reply}");
    }
    let mut lone = Core::new(1);
    for request in ["ASKING", "CLUSTER INFO", "CLUSTER KEYSLOT a", "READONLY"] {
        let disabled = "-ERR This instance has cluster support disabled";
        assert_eq!(asks(&mut lone, request), disabled, "{request}");
    }
}
