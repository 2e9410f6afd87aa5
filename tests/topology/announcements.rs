//! Records of clients, and their answers to questions, in clusters and after fail-overs.

use std::thread;

use crate::harness::details::{ask_details, wake_channel};
use crate::harness::faults::channel_of;
use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server, eventually, exists, in_time, owner};
use crate::{await_subscriber, subscribers};
use leasehold::{Builder, Client, Guard, Sharding};

fn record(client: &Client) -> String {
    format!("leasehold_client:{{{}}}", client.id())
}

fn number(server: &Server, name: &str) -> String {
    owner(server, name).split(':').nth(1).expect("an owner field").to_owned()
}

fn listeners<'a>(nodes: &'a [Server], client: &Client) -> Vec<&'a Server> {
    let wake = wake_channel(client.id());
    nodes.iter().filter(|node| node.runs() && node.numsub(&wake) == 1).collect()
}

fn check_cluster(cluster: &Cluster, builder: Builder) {
    let [client, other] = [builder.clone(), builder].map(|it| it.build().expect("it is well"));
    let (name, key) = (cluster.key_on(&cluster.nodes()[0], "lock"), record(&client));
    let guard = client.lock(&name).lock().expect("free");
    eventually("the record is written", || exists(cluster.owner_of(&key), &key));
    eventually("the client listens", || listeners(cluster.nodes(), &client).len() == 1);

    // A question and its answer reach the processes from and at every node.
    let hold = number(&cluster.nodes()[0], &name);
    for (at, node) in cluster.nodes().iter().enumerate() {
        let publisher = &cluster.nodes()[(at + 1) % 3];
        let answer = ask_details(node, publisher, client.id(), &[(&name, &hold)]);
        assert_eq!((answer.len(), &answer[2]), (2 + 14, &hold));
    }

    // The listener for questions disturbs no wait.
    thread::scope(|scope| {
        let waits = scope.spawn(|| other.lock(&name).lock().and_then(Guard::unlock));
        await_subscriber(cluster.nodes(), &channel_of(&name));
        guard.unlock().expect("held");
        in_time("the waiter gets the message", waits).expect("a lock");
        // With shards, the listener of the node alone subscribes.
        assert!(subscribers(cluster.nodes(), &channel_of(&name)) <= 1);
    });

    // Another node takes over the connection of a killed one.
    let node = listeners(cluster.nodes(), &client)[0];
    node.client_kill_type("pubsub");
    eventually("the client listens again", || listeners(cluster.nodes(), &client).len() == 1);
    client.close();
    assert!(!exists(cluster.owner_of(&key), &key));
}

#[test]
fn a_client_of_a_cluster_announces_itself_with_and_without_shards() {
    let cluster = Cluster::start(3, 0);
    for sharding in [Sharding::Auto, Sharding::Off] {
        let builder = Client::builder().cluster(cluster.urls()).sharding(sharding);
        // No poll ends a wait.
        check_cluster(&cluster, builder.poll_interval(std::time::Duration::from_secs(600)));
    }
}

#[test]
fn a_fail_over_that_loses_the_record_brings_it_back() {
    let servers = Replicated::start(1, 3);
    let builder = Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let client = builder.build().expect("there is a master");
    let _guard = client.lock("a").lock().expect("free");
    let key = record(&client);
    let replica = servers.replicas()[0];
    eventually("the replica has both", || exists(replica, &key) && exists(replica, "a"));
    replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.ask::<()>(&["DEL", &key]);
    let new = servers.fail_over();
    eventually("the record is back", || exists(new, &key));
    let wake = wake_channel(client.id());
    eventually("the client listens at the new master", || new.numsub(&wake) == 1);
    let hold = number(new, "a");
    assert_eq!(ask_details(new, new, client.id(), &[("a", &hold)]).len(), 2 + 14);
}
