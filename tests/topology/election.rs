//! Elections with Sentinel and Cluster: fail-overs, records that the new master lacks, and slots
//! that move.

use crate::await_subscriber;
use crate::harness::elections::*;
use crate::harness::faults::build;
use crate::harness::replicated::MASTER;
use crate::harness::wait::BOUND;
use crate::harness::{Cluster, Replicated, Server, eventually};
use leasehold::{Client, Leadership};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Replaces the master while a client leads and another one observes. `before` changes the
/// replica.
///
/// No poll and no regular announcement is near.
fn a_term_survives_a_fail_over(before: impl Fn(&Server)) {
    let servers = Replicated::start(1, 3);
    let sentinels = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let quiet = || sentinels().poll_interval(MINUTE).watchdog_timeout(10 * MINUTE);
    let [one, two] = [(); 2].map(|()| build(quiet()));
    let term = campaign(&candidate(&one, "first"));
    let observer = observe(servers.master(), &two);
    sees(&observer, "first");
    let replica = servers.replicas()[0];
    let has_both = || replica.try_ask::<u32>(&["EXISTS", "a", RECORD]) == Some(2);
    eventually("the replica has the term", has_both);
    before(replica);
    let new = servers.fail_over_and_settle();
    eventually("the record is there", || new.try_ask(&["EXISTS", RECORD]) == Some(1));
    assert_eq!(value_and_token(&two), Some(("first".to_owned(), term.token())));
    eventually("the observer listens at the new master", || new.numsub(CHANNEL) == 1);
    term.resign().expect("the term is valid");
    let next = campaign(&candidate(&one, "next"));
    sees(&observer, "next");
    assert_eq!(value_and_token(&two), Some(("next".to_owned(), next.token())));
}

#[test]
fn a_leader_stays_the_leader_through_a_fail_over() {
    a_term_survives_a_fail_over(|_| {});
}

#[test]
fn a_record_that_the_new_master_lacks_is_written_again() {
    a_term_survives_a_fail_over(|replica| {
        replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
        replica.ask::<()>(&["DEL", RECORD]);
    });
}

/// The new master has neither the lock nor the record: the term ends before the next one begins.
#[test]
fn a_term_that_the_new_master_lacks_ends() {
    let servers = Replicated::start(1, 3);
    let client = build(Client::builder().sentinel(MASTER, servers.sentinel_urls()));
    let term = campaign(&candidate(&client, "first"));
    let replica = servers.replicas()[0];
    eventually("the replica has the term", || replica.try_ask(&["EXISTS", RECORD]) == Some(1));
    replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.ask::<()>(&["DEL", "a"]);
    servers.fail_over();
    assert!(term.wait_lost(BOUND), "the renewal at the new master finds the loss");
    assert_eq!(leader(&client), None, "the record of a lost term names no leader");
    let next = campaign(&candidate(&client, "next"));
    assert!(next.token() > term.token());
    assert_eq!(value_and_token(&client), Some(("next".to_owned(), next.token())));
}

/// Observers that never poll follow the channel of their election to another node.
#[test]
fn an_observer_follows_its_slot() {
    let cluster = Cluster::start(3, 0);
    let quiet = || Client::builder().cluster(cluster.urls()).poll_interval(MINUTE);
    let [one, two] = [(); 2].map(|()| build(quiet()));
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let name = cluster.key_on(from, "election");
    let campaign = |value: &str| -> Leadership {
        one.election(&name).with_value(value).campaign().expect("the nodes answer")
    };
    let first = campaign("first");
    let observer = two.election(&name).observe().expect("the nodes answer");
    sees(&observer, "first");
    let channel = format!("leasehold_election:{{{name}}}");
    await_subscriber(cluster.nodes(), &channel);
    cluster.migrate(cluster.slot_of(&name), to);
    assert_eq!(
        two.election(&name).leader().expect("an answer").map(|it| it.token()),
        Some(first.token())
    );
    first.resign().expect("the term is valid");
    eventually("the observer listens at the other node", || to.listeners(&channel) == 1);
    let _next = campaign("next");
    sees(&observer, "next");
}

/// A look at an election on the silent node has no answer until the end of the test.
#[test]
fn a_silent_node_delays_no_observer_of_an_election_on_another_node() {
    let partial = "cluster-require-full-coverage no";
    let cluster = Cluster::with(3, 0, |config| config.line(partial));
    let node = &cluster.nodes()[1];
    let names = [0, 1].map(|at| cluster.key_on(&cluster.nodes()[at], "election"));
    let of_cluster = || Client::builder().cluster(cluster.urls());
    let often = of_cluster().poll_interval(Duration::from_millis(20)).response_timeout(MINUTE);
    let (one, two) = (build(of_cluster()), build(often));
    let [silent, other] = names.each_ref().map(|name| two.election(name).observe());
    let (silent, other) = (silent.expect("an answer"), other.expect("an answer"));
    assert_eq!([next_value(&silent), next_value(&other)], [None, None]);
    cluster.nodes()[0].stop();
    for number in 0..10 {
        let polls = node.calls("evalsha");
        eventually("polls go on", || node.calls("evalsha") > polls + 5);
        let election = one.election(&names[1]).with_value(number.to_string());
        let term = election.campaign().expect("the node answers");
        sees(&other, &number.to_string());
        term.resign().expect("the term is valid");
        while next_value(&other).is_some() {}
    }
    cluster.nodes()[0].resume();
}

#[test]
fn a_leader_of_a_cluster_hands_over_and_survives_a_fail_over_of_its_node() {
    let cluster = Cluster::start(3, 1);
    let quiet = || Client::builder().cluster(cluster.urls()).poll_interval(MINUTE);
    let [one, two] = [(); 2].map(|()| build(quiet()));
    let master = &cluster.nodes()[0];
    let name = cluster.key_on(master, "election");
    let term = one.election(&name).with_value("x").campaign().expect("the nodes answer");
    let observer = two.election(&name).observe().expect("the nodes answer");
    sees(&observer, "x");
    let replica = cluster.replica_of(master);
    let record = format!("leasehold_leader:{{{name}}}");
    cluster.fail_over(replica);
    eventually("the record is there", || replica.try_ask(&["EXISTS", &record]) == Some(1));
    let found = two.election(&name).leader().expect("an answer").expect("a leader");
    assert_eq!((found.value(), found.token()), ("x", term.token()));
    let channel = format!("leasehold_election:{{{name}}}");
    eventually("the observer listens at the new master", || replica.listeners(&channel) == 1);
    term.resign().expect("the term is valid");
    let _next = two.election(&name).with_value("next").campaign().expect("the nodes answer");
    sees(&observer, "next");
}
