//! Redis Cluster: locks on the nodes of their slots, sharded and plain release messages, migrations
//! of slots, and fail-overs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::bare::script;
use crate::harness::faults::channel_of;
use crate::harness::ports::free_port;
use crate::harness::wait::holds_within;
use crate::harness::{
    Cluster, Direction, Flow, Impostor, Members, Peer, Proxy, Server, eventually, exists,
    holds_during_waits, in_time, join, owner, pttl,
};
use crate::{await_subscriber, lock_all, subscribers};
use leasehold::{
    Builder, Client, Events, Lost, LostReason, MultiLock, ReadGuard, Released, Sharding,
};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn builder(cluster: &Cluster) -> Builder {
    Client::builder().cluster(cluster.urls())
}

fn client(cluster: &Cluster) -> Client {
    builder(cluster).build().expect("the cluster is well")
}

/// Returns the name of a lock on this node.
fn name_on(cluster: &Cluster, node: usize) -> String {
    cluster.key_on(&cluster.nodes()[node], "lock")
}

/// Returns the effect of `Sharding::Auto`: sharded messages since Redis 7.
fn automatic(cluster: &Cluster) -> Sharding {
    let node = cluster.nodes().iter().find(|node| node.runs()).expect("a node runs");
    let answer: Option<Vec<String>> = node.try_ask(&["PUBSUB", "SHARDNUMSUB"]);
    if answer.is_some() { Sharding::On } else { Sharding::Off }
}

/// Returns the number of subscribers of a lock's channel at this node, sharded or not.
fn listeners(node: &Server, name: &str) -> usize {
    node.listeners(&channel_of(name))
}

/// Returns whether the lock's channel has one subscriber at this node, and none elsewhere.
fn is_subscribed_at(cluster: &Cluster, node: &Server, name: &str) -> bool {
    let all = subscribers(cluster.nodes(), &channel_of(name));
    (all, listeners(node, name)) == (1, 1)
}

#[test]
fn locks_of_all_kinds_are_kept_by_the_nodes_of_their_slots() {
    let cluster = Cluster::start(3, 0);
    // A client that announces itself sends its listener a plain message every ten seconds.
    let client = builder(&cluster).announce(false).build().expect("the cluster is well");
    for node in 0..3 {
        let name = name_on(&cluster, node);
        let plain = client.lock(&name);
        let guard = plain.lock().expect("free");
        assert!(owner(&cluster.nodes()[node], &name).starts_with(&client.id().to_string()));
        assert!(plain.is_locked().expect("an answer"));
        guard.extend(MINUTE).expect("held");
        drop(guard);
        eventually("the lock is released", || !plain.is_locked().expect("an answer"));
        client.fenced_lock(&name).lock().expect("free").unlock().expect("held");
        client.fair_lock(&name).lock().expect("free").unlock().expect("held");
        client.spin_lock(&name).lock().expect("free").unlock().expect("held");
        client.rw_lock(&name).read().expect("free").unlock().expect("held");
        client.rw_lock(&name).write().expect("free").unlock().expect("held");
        client.lock(&name).with_holder("me").lock().expect("free").unlock().expect("held");
    }
    let names: Vec<_> = (0..3).map(|node| name_on(&cluster, node)).collect();
    let same_slot = ["{a}1", "{a}2"].map(str::to_owned);
    let all = MultiLock::new(names.iter().chain(&same_slot).map(|name| client.lock(name)));
    let guard = all.lock().expect("free");
    assert!(names.iter().zip(cluster.nodes()).all(|(name, node)| exists(node, name)));
    guard.unlock().expect("held");
    let nodes =
        |command: &str| cluster.nodes().iter().filter(|node| node.calls(command) > 0).count();
    let counts = (nodes("spublish"), nodes("publish"));
    assert_eq!(counts, if automatic(&cluster) == Sharding::On { (3, 0) } else { (0, 3) });
    // Also tells the holder, by a message that all nodes get.
    for name in &names {
        let forced = client.lock(name).lock().expect("free");
        assert!(client.lock(name).force_unlock().expect("an answer"));
        assert!(forced.unlock().is_err_and(|error| error.is_lost()));
    }
}

/// Keeps all releases.
struct Releases(Sender<Released>);

impl Events for Releases {
    fn released(&self, released: &Released) {
        let _ = self.0.send(released.clone());
    }
}

/// `PUBLISH` and `SPUBLISH` count the subscribers of one node.
#[test]
fn a_holder_in_a_loop_yields_to_waiters_on_every_node() {
    const TURNS: usize = 5;
    let cluster = Cluster::start(3, 0);
    for sharding in [Sharding::Auto, Sharding::Off] {
        let (sender, releases) = mpsc::channel();
        let client = |builder: Builder| builder.sharding(sharding).build().expect("it is well");
        let (here, there) =
            (client(builder(&cluster).events(Releases(sender))), client(builder(&cluster)));
        for node in 0..3 {
            let name = name_on(&cluster, node);
            let take = || Some(here.lock(&name).lock().expect("the cluster is well"));
            let wait = || {
                let guard = there.lock(&name).try_lock_for(MINUTE).expect("an answer");
                guard.expect("the loop yields").unlock().expect("held");
            };
            let passed = holds_during_waits(TURNS, take, wait);
            println!("{sharding:?}, node {node}: {passed} holds in {TURNS} waits");
            // On a busy machine the waiter misses some yields.
            assert!(passed <= TURNS * 400, "{passed} holds in {TURNS} waits");
            let done: Vec<_> = releases.try_iter().collect();
            assert!(done.iter().all(|it| it.error.is_none()), "{sharding:?}: {done:?}");
            // A release that ran twice, behind a script that had to be loaded, does not know the
            // number. The loop waits at times too, and listens then.
            let most = done.iter().filter_map(|it| it.heard_by).max();
            assert!(matches!(most, Some(1 | 2)), "{sharding:?}: {done:?}");
        }
    }
}

#[test]
fn waiters_on_every_node_get_sharded_and_plain_messages() {
    let cluster = Cluster::start(3, 0);
    let shards = Some(Sharding::On).filter(|_| automatic(&cluster) == Sharding::On);
    for sharding in [Sharding::Auto, Sharding::Off].into_iter().chain(shards) {
        // Only a message can end a wait.
        let quiet = || builder(&cluster).sharding(sharding).poll_interval(MINUTE * 10);
        let [holder, waiter] =
            [quiet(), quiet()].map(|it| it.build().expect("the cluster is well"));
        for node in 0..3 {
            let name = name_on(&cluster, node);
            for _ in 0..2 {
                let guard = holder.lock(&name).lock().expect("free");
                thread::scope(|scope| {
                    let waits =
                        scope.spawn(|| waiter.lock(&name).lock().and_then(|it| it.unlock()));
                    await_subscriber(cluster.nodes(), &channel_of(&name));
                    guard.unlock().expect("held");
                    in_time("the waiter gets the message", waits).expect("a lock");
                });
            }
            assert_eq!(listeners(&cluster.nodes()[node], &name), 1, "the subscription lingers");
        }
        // A read-write lock has one channel for both sides.
        for node in 0..3 {
            let name = name_on(&cluster, node);
            let guard = holder.rw_lock(&name).write().expect("free");
            thread::scope(|scope| {
                let waits = scope.spawn(|| waiter.rw_lock(&name).read().map(drop));
                let channel = format!("redisson_rwlock:{{{name}}}");
                eventually("the reader waits", || subscribers(cluster.nodes(), &channel) > 0);
                guard.unlock().expect("held");
                in_time("the waiter gets the message", waits).expect("a lock");
            });
        }
    }
}

#[test]
fn listeners_get_heartbeats_and_unsubscribe_without_waiters() {
    let cluster = Cluster::start(3, 0);
    let client = builder(&cluster).poll_interval(SECOND / 5).build().expect("the cluster is well");
    let name = name_on(&cluster, 1);
    let node = &cluster.nodes()[1];
    node.ask::<()>(&["HSET", &name, "another", "1"]);
    node.ask::<()>(&["PEXPIRE", &name, "600000"]);
    let lock = client.lock(&name);
    assert!(lock.try_lock_for(SECOND * 4).expect("an answer").is_none());
    // Four seconds without a heartbeat would have ended the listener's connection.
    let listening = |peer: &Peer| peer.name.contains(":listener");
    assert!(cluster.nodes().iter().any(|node| node.clients().iter().any(listening)));
    let has_subscriber = |node: &Server| listeners(node, &name) > 0;
    eventually("the subscription ends", || !cluster.nodes().iter().any(has_subscriber));
    drop((lock, client));
    let ours = |peer: &Peer| peer.name.starts_with("leasehold:");
    let left = |node: &Server| node.clients().iter().any(ours);
    eventually("all connections close", || !cluster.nodes().iter().any(left));
}

struct Losses(Sender<Lost>);

impl Events for Losses {
    fn lost(&self, event: &Lost) {
        // The test may have ended.
        let _ = self.0.send(event.clone());
    }
}

#[test]
fn many_locks_on_all_nodes_are_renewed_by_slot() {
    let cluster = Cluster::start(3, 0);
    let brief = Duration::from_millis(1500);
    let client = builder(&cluster).watchdog_timeout(brief).build().expect("the cluster is well");
    let names: Vec<_> = (0..300).map(|number| format!("lock:{number}")).collect();
    let tagged: Vec<_> = (0..50).map(|number| format!("{{same}}:{number}")).collect();
    let all = || names.iter().chain(&tagged);
    let guards: Vec<_> = all().map(|name| client.lock(name).lock_owned().expect("free")).collect();
    let calls = || cluster.nodes().iter().map(|node| node.calls("evalsha")).sum::<u64>();
    let before = calls();
    // One call renews one slot, and each lock is renewed three times in two leases.
    eventually("all locks are renewed several times", || calls() > before + 6 * 301);
    assert!(guards.iter().all(|guard| guard.is_held()), "the holds outlive their lease");
    drop(guards);
    eventually("all are released", || cluster.nodes().iter().all(|node| node.keys().is_empty()));
}

#[test]
fn a_hold_and_its_waiter_move_with_the_slot() {
    for sharding in [Sharding::Auto, Sharding::Off] {
        let cluster = Cluster::start(3, 0);
        let quiet = || builder(&cluster).sharding(sharding).poll_interval(MINUTE * 10);
        let [holder, waiter] =
            [quiet(), quiet()].map(|it| it.build().expect("the cluster is well"));
        let name = name_on(&cluster, 0);
        let (slot, target) = (cluster.slot_of(&name), &cluster.nodes()[1]);
        let guard = holder.lock(&name).lock().expect("free");
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.lock(&name).lock().and_then(|guard| guard.unlock()));
            await_subscriber(cluster.nodes(), &channel_of(&name));
            cluster.begin_migration(slot, target);
            guard.extend(MINUTE).expect("the key is at the old node");
            cluster.move_keys(slot, target);
            // The old node does not have the key, and replies ASK.
            guard.extend(MINUTE * 2).expect("the key is at the new node");
            let tried = holder.lock(&name).try_lock_for(Duration::ZERO);
            assert!(!tried.is_ok_and(|got| got.is_none()));
            cluster.end_migration(slot, target);
            eventually("the waiter subscribes at the new node", || {
                is_subscribed_at(&cluster, target, &name)
            });
            guard.unlock().expect("held");
            in_time("the waiter gets the message there", waits).expect("a lock");
        });
        assert!(!exists(target, &name));
    }
}

#[test]
fn a_call_waits_until_the_nodes_agree_on_a_slot() {
    let cluster = Cluster::start(3, 0);
    let client = client(&cluster);
    let (name, [owner, other]) = (name_on(&cluster, 0), [0, 1].map(|at| &cluster.nodes()[at]));
    let slot = cluster.slot_of(&name).to_string();
    let give_to = |node: &Server| {
        let id: String = node.ask(&["CLUSTER", "MYID"]);
        owner.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    };
    // Each of the two nodes redirects to the other.
    give_to(other);
    let lock = client.lock(&name);
    let call = thread::spawn(move || lock.lock_owned());
    let redirects = |node: &Server| {
        let count = node.info("errorstats").get("errorstat_MOVED").cloned();
        count.is_some_and(|count| count != "count=1")
    };
    eventually("both redirect the call, again and again", || redirects(owner) && redirects(other));
    assert!(!call.is_finished(), "the nodes do not agree yet");
    give_to(owner);
    join(call).expect("the nodes agree").unlock().expect("held");
}

#[test]
fn locks_are_taken_and_released_throughout_a_resharding() {
    let cluster = Cluster::start(3, 0);
    let client = client(&cluster);
    let name = name_on(&cluster, 0);
    let slot = cluster.slot_of(&name);
    let names: Vec<_> = (0..8).map(|number| format!("{{{name}}}:{number}")).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = names
            .iter()
            .map(|name| {
                let (client, done) = (client.clone(), &done);
                scope.spawn(move || {
                    let mut pairs = 0;
                    while !done.load(Ordering::Relaxed) || pairs == 0 {
                        match pairs % 3 {
                            0 => client.lock(name).lock().map(drop),
                            1 => client.lock(name).lock().and_then(|guard| guard.unlock()),
                            _ => client.fenced_lock(name).lock().and_then(|guard| guard.unlock()),
                        }
                        .unwrap_or_else(|error| panic!("{name} after {pairs}: {error:?}"));
                        pairs += 1;
                    }
                    pairs
                })
            })
            .collect();
        for turn in 0..12 {
            cluster.migrate(slot, &cluster.nodes()[(turn + 1) % 3]);
        }
        done.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(in_time("the worker ends", worker) > 0);
        }
    });
    eventually("nothing is held", || {
        names.iter().all(|name| !exists(cluster.owner_of(name), name))
    });
}

/// Cuts the replicas off from their master, which still serves its logged-in clients.
pub(crate) fn cut_off_replicas(master: &Server) {
    master.ask::<()>(&["CONFIG", "SET", "requirepass", "pass-word"]);
    let mut admin = master.connection_as("default", "pass-word");
    let admin = &mut admin;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).exec(admin).expect("an administrator");
    eventually("no replica is connected", || {
        let info: String = redis::cmd("INFO").arg("replication").query(admin).expect("an answer");
        info.contains("connected_slaves:0")
    });
}

/// Blocks until a replica of the master has the lock with its lease.
pub(crate) fn await_replica(cluster: &Cluster, master: &Server, name: &str) {
    let mut reader = cluster.replica_of(master).connection();
    redis::cmd("READONLY").exec(&mut reader).expect("a replica");
    eventually("the replica has the lock", || {
        redis::cmd("PTTL").arg(name).query::<i64>(&mut reader).is_ok_and(|left| left > 0)
    });
}

#[test]
fn a_fail_over_keeps_a_replicated_hold_and_reports_others_lost_at_once() {
    let cluster = Cluster::start(3, 1);
    let (sender, losses) = mpsc::channel();
    let client = builder(&cluster).events(Losses(sender)).build().expect("the cluster is well");
    let kept = name_on(&cluster, 0);
    let gone = format!("{{{kept}}}");
    let master = &cluster.nodes()[0];
    let guard = client.lock(&kept).lock().expect("free");
    master.ask::<()>(&["PEXPIRE", &kept, "20000"]);
    await_replica(&cluster, master, &kept);
    cut_off_replicas(master);
    let fixed = format!("{{{kept}}}:fixed");
    let lost = [client.lock(&gone), client.lock(&fixed).with_lease(MINUTE * 10)]
        .map(|lock| lock.lock_owned().expect("free"));
    master.kill();
    let new = cluster.owner_of(&kept);
    eventually("the hold is renewed at the new master", || pttl(new, &kept) > 25_000);
    let loss = || losses.recv_timeout(SECOND * 20).expect("the loss comes before the deadline");
    let losses = [loss(), loss()].map(|lost| (lost.name.to_string(), lost.reason));
    assert!([gone, fixed].iter().all(|it| losses.contains(&(it.clone(), LostReason::Gone))));
    assert!(lost.into_iter().all(|it| it.unlock().is_err_and(|error| error.is_lost())));
    guard.unlock().expect("still held");
}

#[test]
fn a_grant_of_the_old_master_is_not_accepted_after_renewals_at_the_new() {
    let members = Members::default();
    let cluster = Cluster::with(3, 1, |config| config.gated(&members));
    let client = builder(&cluster).response_timeout(MINUTE).watchdog_timeout(MINUTE * 10);
    let client = client.build().expect("the cluster is well");
    let (kept, old) = (name_on(&cluster, 0), &cluster.nodes()[0]);
    let name = format!("{{{kept}}}");
    let guard = client.lock(&kept).lock().expect("free");
    old.ask::<()>(&["PEXPIRE", &kept, "300000"]);
    await_replica(&cluster, old, &kept);
    let acquire: String = old.ask(&["SCRIPT", "LOAD", &script("plain_acquire").source()]);
    let way = old.gate().front();
    way.on_request(acquire.as_bytes(), Direction::Replies, Flow::Hold);
    thread::scope(|scope| {
        let asks = scope.spawn(|| client.lock(&name).try_lock().map(|guard| guard.is_some()));
        way.wait_until("the old master answers", |stats| stats.replies.held > 0);
        let new = cluster.replica_of(old);
        cluster.fail_over(new);
        eventually("the hold is renewed at the new master", || pttl(new, &kept) > 500_000);
        new.ask::<()>(&["DEL", &name]);
        new.ask::<()>(&["HSET", &name, "another", "1"]);
        way.release_held();
        let granted = in_time("the call ends", asks).expect("the new master answers");
        assert!(!granted, "two hold the lock");
    });
    guard.unlock().expect("still held");
}

#[test]
fn a_waiter_asks_the_new_master() {
    let cluster = Cluster::start(3, 1);
    let client = builder(&cluster).poll_interval(SECOND).build().expect("the cluster is well");
    let name = name_on(&cluster, 0);
    let (master, other) = (&cluster.nodes()[0], name_on(&cluster, 1));
    master.ask::<()>(&["HSET", &name, "another", "1"]);
    master.ask::<()>(&["PEXPIRE", &name, "600000"]);
    await_replica(&cluster, master, &name);
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock(&name).lock().and_then(|guard| guard.unlock()));
        await_subscriber(cluster.nodes(), &channel_of(&name));
        master.kill();
        client.lock(&other).lock().expect("another node lives").unlock().expect("held");
        let new = cluster.owner_of(&name);
        eventually("the waiter subscribes at the new master", || {
            is_subscribed_at(&cluster, new, &name)
        });
        new.ask::<()>(&["DEL", &name]);
        in_time("the waiter gets the lock", waits).expect("a lock");
    });
}

#[test]
fn a_client_follows_a_planned_fail_over() {
    let cluster = Cluster::start(3, 1);
    let client = client(&cluster);
    let name = name_on(&cluster, 2);
    let guard = client.lock(&name).lock().expect("free");
    let master = cluster.owner_of(&name);
    cluster.fail_over(cluster.replica_of(master));
    guard.extend(MINUTE).expect("the new master has the lock");
    assert!(pttl(cluster.owner_of(&name), &name) > 30_000);
    guard.unlock().expect("held");
    assert!(!exists(cluster.owner_of(&name), &name));
}

/// The watchdog renews nothing while it waits for a node, which is a sixth of the shortest lease.
#[test]
fn a_silent_node_costs_no_short_lease_on_another_node() {
    let cluster = Cluster::with(3, 0, |config| config.line("cluster-require-full-coverage no"));
    let client = builder(&cluster).response_timeout(MINUTE).build().expect("the cluster is well");
    let [silent, other] = [0, 1].map(|node| {
        let lock = client.lock(name_on(&cluster, node)).with_renewed_lease(SECOND);
        lock.lock_owned().expect("free")
    });
    let renewed = |more| {
        let before = client.stats().renewals();
        eventually("renewals", || client.stats().renewals() >= before + more);
    };
    renewed(6); // over connections to both nodes
    let stopped = &cluster.nodes()[0];
    stopped.stop();
    assert!(silent.wait_lost(MINUTE), "nothing renews it");
    renewed(3);
    assert!(other.is_held());
    stopped.resume();
}

#[test]
fn a_search_at_one_node_alone_tells_that_others_are_missing() {
    let search = |node: &Server| {
        let client = Client::builder().single(node.url()).build().expect("a node");
        client.locks("*").expect("a pattern").collect::<Vec<_>>()
    };
    let cluster = Cluster::start(3, 0);
    let held = client(&cluster).lock("a").lock_owned().expect("free");
    for node in cluster.nodes() {
        let mut found = search(node);
        let error = found.pop().expect("an error").expect_err("two nodes are missing");
        assert!(error.to_string().contains("Builder::cluster"), "{error}");
        // The record of the holder's process may be at another node, which is an error too.
        let has_lock = error.is_configuration() && std::ptr::eq(node, cluster.owner_of("a"));
        assert_eq!(found.len(), usize::from(has_lock), "{error}");
    }
    drop(held);
    assert!(search(&Cluster::start(1, 0).nodes()[0]).is_empty(), "the node has all slots");
}

#[test]
fn a_cluster_is_found_by_any_running_node_and_a_single_server_is_an_error() {
    let cluster = Cluster::start(3, 0);
    let dead = format!("redis://127.0.0.1:{}/", free_port());
    let urls = [dead.clone(), cluster.nodes()[2].url()];
    let client = Client::builder().cluster(urls).build().expect("one of the nodes runs");
    for node in 0..3 {
        let name = name_on(&cluster, node);
        client.lock(name).lock().expect("free").unlock().expect("held");
    }
    let absent = Client::builder().cluster([dead]).build();
    assert!(absent.is_err_and(|error| error.is_connection()));
    let none = Client::builder().cluster([""; 0]).build();
    assert!(none.is_err_and(|error| error.is_configuration()));
    let database = Client::builder().cluster([cluster.nodes()[0].url() + "3"]).build();
    assert!(database.is_err_and(|error| error.is_configuration()));
    let single = Server::start();
    let error = Client::builder().cluster([single.url()]).build().expect_err("no cluster");
    assert!(error.to_string().contains("cluster support disabled"), "{error}");
    let node = Client::open(cluster.nodes()[0].url()).expect("a single server");
    let error = node.lock(name_on(&cluster, 1)).lock().expect_err("another node serves the slot");
    assert!(error.to_string().contains("Builder::cluster"), "{error}");
}

#[test]
fn a_client_logs_in_at_every_node_of_a_cluster() {
    let cluster = Cluster::with(3, 0, |config| config.password("pass-word"));
    let client =
        builder(&cluster).login("default", "pass-word").build().expect("the right password");
    for node in 0..3 {
        let name = name_on(&cluster, node);
        client.lock(name).lock().expect("free").unlock().expect("held");
    }
    let error = builder(&cluster).build().expect_err("no password");
    assert!(error.is_server() && error.to_string().contains("NOAUTH"), "{error}");
}

#[test]
fn replicas_of_the_right_node_acknowledge_a_lock() {
    let cluster = Cluster::start(3, 1);
    let acknowledged =
        builder(&cluster).min_replicas(1, SECOND * 20).build().expect("the cluster is well");
    for node in 0..3 {
        let name = name_on(&cluster, node);
        acknowledged.lock(name).lock().expect("acknowledged").unlock().expect("held");
        assert!(cluster.nodes()[node].calls("wait") > 0);
    }
    let too_many =
        builder(&cluster).min_replicas(2, SECOND / 20).build().expect("the cluster is well");
    let error = too_many.lock(name_on(&cluster, 1)).lock().expect_err("there is only one replica");
    assert!(error.is_not_replicated(), "{error:?}");
}

#[test]
fn stopped_nodes_delay_no_renewal_at_others() {
    let cluster = Cluster::with(9, 0, |config| config.line("cluster-require-full-coverage no"));
    // In sequence, the time-outs of the stopped nodes would take all of a lease that remains when
    // its renewal is due.
    let lease = SECOND * 3;
    let client = builder(&cluster).watchdog_timeout(lease).build().expect("the cluster is well");
    let guards: Vec<_> = (0..9)
        .map(|node| client.lock(name_on(&cluster, node)).lock_owned().expect("free"))
        .collect();
    let (stopped, others) = guards.split_at(4);
    let other = client.lock(cluster.key_on(&cluster.nodes()[5], "other"));
    cluster.nodes()[..4].iter().for_each(Server::stop);
    assert!(stopped.iter().all(|guard| guard.wait_lost(MINUTE)), "their nodes are stopped");
    for guard in others {
        assert!(!guard.wait_lost(lease), "the renewal came too late");
    }
    other.lock().expect("the node runs").unlock().expect("held");
    cluster.nodes()[..4].iter().for_each(Server::resume);
    drop(guards);
}

#[test]
fn a_stopped_node_with_locks_in_many_slots_delays_no_renewal_at_others() {
    let cluster = Cluster::with(3, 0, |config| {
        config.line("cluster-node-timeout 60000").line("cluster-require-full-coverage no")
    });
    let lease = SECOND * 6;
    let client = builder(&cluster).watchdog_timeout(lease).build().expect("the cluster is well");
    let [silent, well] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let is_there = |node: &Server, name: &String| cluster.owner_of(name).port() == node.port();
    let names = (0..1500).map(|number| format!("lock:{number}"));
    let names: Vec<_> = names.filter(|name| is_there(silent, name)).collect();
    let take = |name: &String| client.lock(name).lock_owned().expect("free");
    let lost: Vec<_> = names.iter().map(take).collect();
    let kept = take(&cluster.key_on(well, "kept"));
    silent.stop();
    assert!(lost.iter().all(|guard| guard.wait_lost(MINUTE)), "their node is stopped");
    assert!(!kept.wait_lost(lease), "the renewal came too late");
    silent.resume();
    kept.unlock().expect("held");
}

#[test]
fn a_release_that_is_redirected_in_a_circle_is_repeated_with_pauses() {
    let cluster = Cluster::start(3, 0);
    let [a, b] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let name = cluster.key_on(a, "lock");
    let client = client(&cluster);
    let guard = client.lock(&name).with_lease(SECOND * 2).lock_owned().expect("free");
    a.ask::<()>(&["DEL", &name]);
    let slot = cluster.slot_of(&name).to_string();
    a.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &b.ask::<String>(&["CLUSTER", "MYID"])]);
    drop(guard);
    let redirections = || a.info("errorstats").get("errorstat_MOVED").cloned();
    eventually("the release is redirected", || redirections().is_some());
    // The client gives the release up at the end of its lease.
    let mut last = redirections();
    let calm = || {
        thread::sleep(SECOND);
        let before = std::mem::replace(&mut last, redirections());
        before == last
    };
    eventually("the redirections end", calm);
    let count: u64 =
        last.and_then(|it| it.trim_start_matches("count=").parse().ok()).expect("a count");
    assert!(count < 1000, "{count} times in two seconds");
}

#[test]
fn a_forked_child_is_refused_at_nodes_that_its_parent_has_not_used() {
    use fork::{Fork, fork, waitpid};
    let cluster = Cluster::start(3, 0);
    let client = client(&cluster);
    let lock = client.lock(name_on(&cluster, 0));
    match fork().expect("a child") {
        Fork::Child => {
            let refused = lock.try_lock_owned().is_err_and(|error| error.is_configuration());
            std::process::exit(i32::from(!refused));
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).expect("the child ends") >> 8, 0),
    }
    assert!(lock.try_lock_owned().expect("an answer").is_some());
}

#[test]
fn a_release_is_complete_while_keys_of_its_slot_are_on_two_nodes() {
    let cluster = Cluster::start(3, 0);
    let [a, b] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let [client, other] = [client(&cluster), client(&cluster)];
    let name = cluster.key_on(a, "lock");
    let slot = cluster.slot_of(&name);
    let lock = client.rw_lock(&name);
    let writing = lock.write().expect("free");
    let reading = lock.read().expect("the writer may read");
    cluster.begin_migration(slot, b);
    let key =
        a.keys().into_iter().find(|key| key.contains("rwlock_timeout")).expect("a time-out key");
    a.ask::<String>(&["MIGRATE", "127.0.0.1", &b.port().to_string(), &key, "0", "5000"]);
    let before = a.calls("evalsha");
    drop(writing);
    eventually("the release is tried", || a.calls("evalsha") > before);
    cluster.move_keys(slot, b);
    cluster.end_migration(slot, b);
    let also = other.rw_lock(&name).read().expect("readers share");
    also.unlock().expect("held");
    reading.unlock().expect("held");
    eventually("nothing is held", || !exists(b, &name));
}

/// A read lock in a migrating slot. Only the reader's time-out key has moved.
struct HalfMoved<'a> {
    cluster: &'a Cluster,
    from: &'a Server,
    to: &'a Server,
    name: String,
    reading: ReadGuard,
}

impl HalfMoved<'_> {
    fn on<'a>(cluster: &'a Cluster, client: &Client) -> HalfMoved<'a> {
        let [from, to] = [&cluster.nodes()[0], &cluster.nodes()[1]];
        let name = cluster.key_on(from, "lock");
        let reading = client.rw_lock(&name).read_lock().with_lease(MINUTE).lock().expect("free");
        cluster.begin_migration(cluster.slot_of(&name), to);
        let key = from.keys().into_iter().find(|key| key.contains("rwlock_timeout"));
        let (port, key) = (to.port().to_string(), key.expect("a time-out key"));
        from.ask::<String>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        HalfMoved { cluster, from, to, name, reading }
    }

    fn move_the_rest(&self) {
        let slot = self.cluster.slot_of(&self.name);
        self.cluster.move_keys(slot, self.to);
        self.cluster.end_migration(slot, self.to);
    }
}

#[test]
fn a_reader_is_extended_completely_or_not_at_all_while_keys_are_on_two_nodes() {
    let cluster = Cluster::start(3, 0);
    let lock = HalfMoved::on(&cluster, &client(&cluster));
    lock.reading.extend(10 * MINUTE).expect_err("one key is at the other node");
    assert!(pttl(lock.from, &lock.name) <= 60_000, "{}", pttl(lock.from, &lock.name));
    lock.move_the_rest();
    lock.reading.extend(10 * MINUTE).expect("held");
    assert!(pttl(lock.to, &lock.name) > 60_000);
    lock.reading.unlock().expect("held");
}

/// Redisson lets time-out keys expire.
#[test]
fn a_lock_is_freed_by_force_while_keys_of_its_slot_are_on_two_nodes() {
    let cluster = Cluster::start(3, 0);
    let other = client(&cluster);
    let lock = HalfMoved::on(&cluster, &client(&cluster));
    let freed = other.rw_lock(&lock.name).read_lock().force_unlock();
    assert!(freed.expect("the time-out key is not needed"));
    assert!(!lock.from.keys().contains(&lock.name));
    lock.move_the_rest();
    other.rw_lock(&lock.name).write().expect("free").unlock().expect("held");
}

#[test]
fn an_error_names_the_unreachable_target_of_a_migration() {
    let members = Members::default();
    let cluster = Cluster::with(3, 0, |config| config.gated(&members));
    let target = &cluster.nodes()[1];
    let client = client(&cluster);
    let name = name_on(&cluster, 0);
    cluster.begin_migration(cluster.slot_of(&name), target);
    let way = target.gate().front();
    way.refuse();
    way.kill_all();
    let refused = way.stats().refused;
    let error = client.lock(&name).try_lock().expect_err("the target is unreachable");
    assert!(error.is_connection(), "{error:?}");
    assert!(error.to_string().contains(&way.addr().to_string()), "{error}");
    let attempts = way.stats().refused - refused;
    assert_eq!(attempts, 1, "the target is tried once");
}

/// Returns a client of a cluster's only node as a single server, behind a proxy.
fn single(cluster: &Cluster, lease: Duration) -> (Client, Proxy) {
    let proxy = Proxy::start(cluster.nodes()[0].addr());
    let client = Client::builder().single(proxy.url()).watchdog_timeout(lease);
    (client.build().expect("a single server"), proxy)
}

#[test]
fn leases_in_many_slots_of_a_single_server_are_renewed() {
    let (cluster, lease) = (Cluster::start(1, 0), SECOND * 4);
    let (client, proxy) = single(&cluster, lease);
    let mut guards = Vec::new();
    // Of each two leases one is renewed, and one is fixed.
    for number in 0..500 {
        let name = format!("lock:{number}");
        guards.push(client.lock(&name).lock_owned().expect("free"));
        let fixed = client.lock(format!("fixed:{number}")).with_lease(MINUTE);
        guards.push(fixed.lock_owned().expect("free"));
    }
    proxy.delay(Direction::Replies, Duration::from_millis(5));
    let lost = || guards.iter().filter(|guard| !guard.is_held()).count();
    assert!(!holds_within(lease * 2, || lost() > 0), "{} holds were lost", lost());
}

#[test]
fn members_in_many_slots_of_a_single_server_are_taken_together_and_polled() {
    let cluster = Cluster::start(1, 0);
    let (client, _proxy) = single(&cluster, MINUTE);
    let node = &cluster.nodes()[0];
    let names = ["a", "b", "c"];
    let all = MultiLock::new(names.map(|name| client.lock(name)));
    for _ in 0..2 {
        let guard = all.lock().expect("free");
        assert!(names.iter().all(|name| exists(node, name)));
        guard.unlock().expect("held");
    }
    for name in names {
        node.ask::<()>(&["HSET", name, "another", "1"]);
    }
    thread::scope(|scope| {
        let waits: Vec<_> =
            names.iter().map(|name| scope.spawn(|| client.lock(*name).lock().map(drop))).collect();
        for (name, waits) in names.iter().zip(waits) {
            eventually("the waiter subscribes", || listeners(node, name) == 1);
            node.ask::<()>(&["DEL", name]);
            in_time("the poll finds the lock free", waits).expect("a lock");
        }
    });
}

#[test]
fn leases_in_a_slot_that_stays_half_migrated_are_renewed() {
    let (cluster, lease) = (Cluster::start(3, 0), SECOND * 4);
    let client = builder(&cluster).watchdog_timeout(lease).build().expect("the cluster is well");
    let tag = name_on(&cluster, 0);
    let (slot, target) = (cluster.slot_of(&tag), &cluster.nodes()[1]);
    let names: Vec<_> = (0..20).map(|number| format!("{{{tag}}}:{number}")).collect();
    let guards = lock_all(&client, &names);
    let fixed = client.lock(format!("{{{tag}}}:fixed")).with_lease(MINUTE);
    let fixed = fixed.lock_owned().expect("free");
    cluster.begin_migration(slot, target);
    cluster.send(&names[..10], &cluster.nodes()[0], target);
    let lost = || guards.iter().filter(|guard| !guard.is_held()).count();
    assert!(!holds_within(lease * 2, || lost() > 0), "{} holds were lost", lost());
    assert!(fixed.is_held());
    drop(guards);
    // Each node lists its own keys, in any slot.
    let has_any = |node: &Server| node.keys().iter().any(|key| names.contains(key));
    eventually("all are released", || !cluster.nodes().iter().any(has_any));
    // Members whose keys were at both nodes.
    let all = MultiLock::new(names[8..12].iter().map(|name| client.lock(name)));
    all.lock().expect("free").unlock().expect("held");
}

/// A node with fixed replies, which counts the reads of its slot map.
struct FakeNode {
    node: Impostor,
    reads: Arc<AtomicUsize>,
}

/// The replies of a `FakeNode` about slots, the cluster and shards.
#[derive(Clone)]
struct Replies {
    /// The first slot, the last slot, and the port of their node.
    ranges: Vec<(u16, u16, u16)>,
    state: &'static str,
    /// The reply to `PUBSUB SHARDNUMSUB`.
    shards: &'static str,
}

impl FakeNode {
    fn start(replies: Replies) -> FakeNode {
        FakeNode::giving(move || replies.clone())
    }

    /// Starts a node with replies that may change.
    fn giving(replies: impl Fn() -> Replies + Send + Sync + 'static) -> FakeNode {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let node = Impostor::answering(move |words| match words[0].as_str() {
            "HELLO" => Some(b"%2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n".to_vec()),
            "CLUSTER" if words[1] == "SLOTS" => {
                counted.fetch_add(1, Ordering::Relaxed);
                let ranges = replies().ranges;
                let shown: String = ranges.iter().map(range).collect();
                Some(format!("*{}\r\n{shown}", ranges.len()).into_bytes())
            }
            "CLUSTER" => {
                let info = format!("cluster_state:{}\r\n", replies().state);
                Some(format!("${}\r\n{info}\r\n", info.len()).into_bytes())
            }
            "PUBSUB" => Some(replies().shards.into()),
            _ => Some(b"-CLUSTERDOWN The cluster is down\r\n".to_vec()),
        });
        FakeNode { node, reads }
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

fn range((first, last, port): &(u16, u16, u16)) -> String {
    format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
}

/// Asks for a lock that no node serves until `done` returns true.
fn keep_asking(client: &Client, name: &str, mut done: impl FnMut() -> bool) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            while !stop.load(Ordering::Relaxed) {
                assert!(client.lock(name).try_lock().is_err(), "no node serves the lock");
            }
        };
        let asks = scope.spawn(ask);
        eventually("the condition of the test is met", &mut done);
        stop.store(true, Ordering::Relaxed);
        in_time("the last call ends", asks);
    });
}

#[test]
fn repeated_reads_of_the_slot_map_share_a_connection() {
    let dead = free_port();
    // The node reports a healthy cluster, and an owner that does not exist. So every call reads
    // the map.
    let replies = Replies { ranges: vec![(0, 16_383, dead)], state: "ok", shards: "*0\r\n" };
    let known = FakeNode::start(replies);
    let builder = Client::builder().cluster([known.node.url()]).connect_timeout(SECOND / 10);
    let client = builder.build().expect("the cluster is well");
    let at_first = (known.reads(), known.node.accepted());
    keep_asking(&client, "a", || known.reads() >= at_first.0 + 8);
    let more = known.node.accepted() - at_first.1;
    assert!(more <= 3, "{more} connections");
}

#[test]
fn a_failing_cluster_is_connected_to_with_growing_pauses() {
    let dead = free_port();
    let replies = Replies { ranges: vec![(0, 16_383, dead)], state: "fail", shards: "*0\r\n" };
    let failing = FakeNode::start(replies);
    let builder = Client::builder().cluster([failing.node.url()]).connect_timeout(SECOND / 10);
    let client = builder.build().expect("the first reply is believed");
    let at_first = failing.node.accepted();
    let start = Instant::now();
    keep_asking(&client, "a", || start.elapsed() > SECOND * 6);
    let more = failing.node.accepted() - at_first;
    assert!((2..=25).contains(&more), "{more} connections");
}

#[test]
fn former_nodes_are_not_asked_for_the_slot_map() {
    let map = Arc::new(Mutex::new(Replies { ranges: vec![], state: "ok", shards: "*0\r\n" }));
    let node = || {
        let map = Arc::clone(&map);
        FakeNode::giving(move || map.lock().expect("no panic").clone())
    };
    let change = |change: &dyn Fn(&mut Replies)| change(&mut map.lock().expect("no panic"));
    let (seed, mut nodes) = (node(), (0..8).map(|_| node()).collect::<Vec<_>>());
    let give_all_to = |node: &FakeNode| {
        change(&|map| map.ranges = vec![(0, 16_383, node.node.addr().port())]);
    };
    give_all_to(&nodes[0]);
    let client = Client::builder().cluster([seed.node.url()]).build().expect("the cluster is well");
    for node in &nodes[1..] {
        give_all_to(node);
        // The call reaches the node after a reading of the map.
        let at_first = node.node.accepted();
        keep_asking(&client, "a", || node.node.accepted() > at_first);
    }
    let present = nodes.pop().expect("a node");
    // The nodes report a failure, so each reading goes to the next node.
    change(&|map| map.state = "fail");
    let reads = || nodes.iter().map(FakeNode::reads).collect::<Vec<_>>();
    let at_failure = present.reads();
    keep_asking(&client, "a", || present.reads() > at_failure);
    let (former, asked) = (reads(), present.reads() + seed.reads());
    keep_asking(&client, "a", || reads() != former || present.reads() + seed.reads() > asked + 16);
    assert_eq!(reads(), former, "former nodes were asked for the map");
}

/// The reply of a loading node to every command.
const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";

#[test]
fn a_loading_node_is_not_taken_for_one_without_sharded_channels() {
    let cluster = Cluster::start(1, 0);
    let served = cluster.nodes()[0].port();
    let loading = |port| Replies { ranges: vec![(0, 16_383, port)], state: "ok", shards: LOADING };
    let first = FakeNode::start(loading(served));
    let name = name_on(&cluster, 0);
    let builder = || Client::builder().cluster([first.node.url()]).poll_interval(MINUTE * 10);
    let [holder, waiter] = [(); 2].map(|()| builder().build().expect("the other node answers"));
    let guard = holder.lock(&name).lock().expect("free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(&name).lock().and_then(|it| it.unlock()));
        await_subscriber(cluster.nodes(), &channel_of(&name));
        let node = &cluster.nodes()[0];
        let shards: Vec<String> = node.try_ask(&["PUBSUB", "SHARDCHANNELS"]).unwrap_or_default();
        let sharded = automatic(&cluster) == Sharding::On;
        assert_eq!(shards.contains(&channel_of(&name)), sharded, "{shards:?}");
        guard.unlock().expect("held");
        in_time("the waiter gets the message", waits).expect("a lock");
    });
    let alone = FakeNode::start(loading(free_port()));
    let built = Client::builder().cluster([alone.node.url()]).connect_timeout(SECOND / 10).build();
    assert!(built.is_err(), "the client would never get a message: {built:?}");
}
