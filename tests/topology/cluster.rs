//! Redis Cluster: locks on the nodes of their slots, releases told to a shard or to all,
//! and what happens to both when slots move and masters die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::wait::holds_within;
use crate::harness::{
    Cluster, Direction, Flow, Impostor, Members, Proxy, Server, eventually, exists, in_time, join,
    owner, pttl, sleeping,
};
use leasehold::{Builder, Client, Events, Lost, LostReason, MultiLock, ReadGuard, Sharding};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn builder(cluster: &Cluster) -> Builder {
    Client::builder().cluster(cluster.urls())
}

fn client(cluster: &Cluster) -> Client {
    builder(cluster).build().expect("the cluster is well")
}

/// A name whose lock that node keeps.
fn name_on(cluster: &Cluster, node: usize) -> String {
    cluster.key_on(&cluster.nodes()[node], "lock")
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// How releases are told where nothing else was said: to shards from Redis 7 on.
fn automatic(cluster: &Cluster) -> Sharding {
    let node = cluster.nodes().iter().find(|node| node.runs()).expect("one of them runs");
    let answer: Option<Vec<String>> = node.tells(&["PUBSUB", "SHARDNUMSUB"]);
    if answer.is_some() { Sharding::On } else { Sharding::Off }
}

/// How many listen to a channel there, in any way.
fn listeners(node: &Server, name: &str) -> usize {
    node.listeners(&channel(name))
}

/// Whether one listens to the releases of that lock: at this node, if that one tells of them.
fn is_heard_at(cluster: &Cluster, node: &Server, name: &str) -> bool {
    let running = cluster.nodes().iter().filter(|node| node.runs());
    match automatic(cluster) {
        Sharding::On => listeners(node, name) == 1,
        _ => running.map(|node| listeners(node, name)).sum::<usize>() == 1,
    }
}

/// The channels there that somebody listens to, in any way.
fn heard(node: &Server) -> Vec<String> {
    let channels = |how: &str| node.tells::<Vec<String>>(&["PUBSUB", how]).unwrap_or_default();
    [channels("CHANNELS"), channels("SHARDCHANNELS")].concat()
}

/// Blocks until somebody listens to the channel of that lock, at any node.
fn is_heard(cluster: &Cluster, name: &str) {
    eventually("the waiter listens", || {
        let running = cluster.nodes().iter().filter(|node| node.runs());
        running.map(|node| listeners(node, name)).sum::<usize>() == 1
    });
}

#[test]
fn locks_of_all_kinds_are_kept_by_the_nodes_of_their_slots() {
    let cluster = Cluster::start(3, 0);
    let client = client(&cluster);
    for node in 0..3 {
        let name = name_on(&cluster, node);
        let plain = client.lock(&name);
        let guard = plain.lock().expect("free");
        assert!(owner(&cluster.nodes()[node], &name).starts_with(&client.id().to_string()));
        assert!(plain.is_locked().expect("an answer"));
        guard.extend(MINUTE).expect("held");
        drop(guard);
        eventually("it is released", || !plain.is_locked().expect("an answer"));
        client.fenced_lock(&name).lock().expect("free").unlock().expect("held");
        client.fair_lock(&name).lock().expect("free").unlock().expect("held");
        client.spin_lock(&name).lock().expect("free").unlock().expect("held");
        client.rw_lock(&name).read().expect("free").unlock().expect("held");
        client.rw_lock(&name).write().expect("free").unlock().expect("held");
        client.lock(&name).with_holder("me").lock().expect("free").unlock().expect("held");
        let forced = plain.lock().expect("free");
        assert!(plain.force_unlock().expect("an answer"));
        assert!(forced.unlock().is_err_and(|error| error.is_lost()));
    }
    let names: Vec<_> = (0..3).map(|node| name_on(&cluster, node)).collect();
    let same_slot = ["{a}1", "{a}2"].map(str::to_owned);
    let all = MultiLock::new(names.iter().chain(&same_slot).map(|name| client.lock(name)));
    let guard = all.lock().expect("free");
    assert!(names.iter().zip(cluster.nodes()).all(|(name, node)| exists(node, name)));
    guard.unlock().expect("held");
    let told = |how: &str| cluster.nodes().iter().filter(|node| node.calls(how) > 0).count();
    let counts = (told("spublish"), told("publish"));
    assert_eq!(counts, if automatic(&cluster) == Sharding::On { (3, 0) } else { (0, 3) });
}

#[test]
fn waiters_on_every_node_are_told_by_its_shard_or_by_all() {
    let cluster = Cluster::start(3, 0);
    let shards = Some(Sharding::On).filter(|_| automatic(&cluster) == Sharding::On);
    for sharding in [Sharding::Auto, Sharding::Off].into_iter().chain(shards) {
        // Only a message can end such a wait.
        let quiet = || builder(&cluster).sharding(sharding).poll_interval(MINUTE * 10);
        let [holder, waiter] = [quiet(), quiet()].map(|it| it.build().expect("it is well"));
        for node in 0..3 {
            let name = name_on(&cluster, node);
            for _ in 0..2 {
                let guard = holder.lock(&name).lock().expect("free");
                thread::scope(|scope| {
                    let waits =
                        scope.spawn(|| waiter.lock(&name).lock().and_then(|it| it.unlock()));
                    is_heard(&cluster, &name);
                    guard.unlock().expect("held");
                    in_time("it is told", waits).expect("a lock");
                });
            }
            if sharding == Sharding::On {
                assert_eq!(listeners(&cluster.nodes()[node], &name), 1, "it lingers");
            }
        }
        // Both sides of a lock, and the line of a fair one, have channels of their own.
        for node in 0..3 {
            let name = name_on(&cluster, node);
            let guard = holder.rw_lock(&name).write().expect("free");
            thread::scope(|scope| {
                let waits = scope.spawn(|| waiter.rw_lock(&name).read().map(drop));
                eventually("it waits", || {
                    let channel = format!("redisson_rwlock:{{{name}}}");
                    cluster.nodes().iter().any(|node| heard(node).contains(&channel))
                });
                guard.unlock().expect("held");
                in_time("it is told", waits).expect("a lock");
            });
        }
    }
}

#[test]
fn listeners_hear_heartbeats_and_leave_when_nobody_waits() {
    let cluster = Cluster::start(3, 0);
    let client = builder(&cluster).poll_interval(SECOND / 5).build().expect("the cluster is well");
    let name = name_on(&cluster, 1);
    let node = &cluster.nodes()[1];
    node.ask::<()>(&["HSET", &name, "another", "1"]);
    node.ask::<()>(&["PEXPIRE", &name, "600000"]);
    let lock = client.lock(&name);
    assert!(lock.try_lock_for(SECOND * 4).expect("an answer").is_none());
    // Four seconds without a heartbeat would have ended the connection, and that its name.
    let listening = |peer: &crate::harness::Peer| peer.name.contains(":listener");
    assert!(cluster.nodes().iter().any(|node| node.clients().iter().any(listening)));
    let heard = |node: &Server| listeners(node, &name) > 0;
    eventually("the subscription ends", || !cluster.nodes().iter().any(heard));
    drop((lock, client));
    let ours = |peer: &crate::harness::Peer| peer.name.starts_with("leasehold:");
    let left = |node: &Server| node.clients().iter().any(ours);
    eventually("nothing is left", || !cluster.nodes().iter().any(left));
}

struct Losses(Sender<Lost>);

impl Events for Losses {
    fn lost(&self, event: &Lost) {
        // Nobody hears it when the test is over.
        let _ = self.0.send(event.clone());
    }
}

#[test]
fn many_locks_of_all_nodes_are_renewed_by_slot() {
    let cluster = Cluster::start(3, 0);
    let brief = Duration::from_millis(1500);
    let client = builder(&cluster).watchdog_timeout(brief).build().expect("the cluster is well");
    let names: Vec<_> = (0..300).map(|number| format!("lock:{number}")).collect();
    let tagged: Vec<_> = (0..50).map(|number| format!("{{same}}:{number}")).collect();
    let all = || names.iter().chain(&tagged);
    let guards: Vec<_> = all().map(|name| client.lock(name).lock_owned().expect("free")).collect();
    let calls = || cluster.nodes().iter().map(|node| node.calls("evalsha")).sum::<u64>();
    let before = calls();
    // Each slot has its calls, and each of those locks is renewed three times in two leases.
    eventually("they are renewed again and again", || calls() > before + 6 * 301);
    assert!(guards.iter().all(|guard| guard.is_held()), "they outlive their lease");
    drop(guards);
    eventually("all are released", || cluster.nodes().iter().all(|node| node.keys().is_empty()));
}

#[test]
fn a_hold_goes_with_its_slot_and_so_does_who_waits() {
    let cluster = Cluster::start(3, 0);
    let quiet = || builder(&cluster).poll_interval(MINUTE * 10);
    let [holder, waiter] = [quiet(), quiet()].map(|it| it.build().expect("it is well"));
    let name = name_on(&cluster, 0);
    let (slot, target) = (cluster.slot_of(&name), &cluster.nodes()[1]);
    let guard = holder.lock(&name).lock().expect("free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(&name).lock().and_then(|guard| guard.unlock()));
        is_heard(&cluster, &name);
        cluster.begin_migration(slot, target);
        guard.extend(MINUTE).expect("still where it was");
        cluster.move_keys(slot, target);
        // The old node has not the key, and sends it to the new.
        guard.extend(MINUTE * 2).expect("found there");
        assert!(!holder.lock(&name).try_lock_for(Duration::ZERO).is_ok_and(|got| got.is_none()));
        cluster.end_migration(slot, target);
        eventually("the waiter listens there", || is_heard_at(&cluster, target, &name));
        guard.unlock().expect("held");
        in_time("it is told there", waits).expect("a lock");
    });
    assert!(!exists(target, &name));
}

#[test]
fn nodes_that_do_not_agree_for_a_while_are_waited_for() {
    let cluster = Cluster::start(3, 0);
    let client = client(&cluster);
    let (name, [owner, other]) = (name_on(&cluster, 0), [0, 1].map(|at| &cluster.nodes()[at]));
    let slot = cluster.slot_of(&name).to_string();
    let give_to = |node: &Server| {
        let id: String = node.ask(&["CLUSTER", "MYID"]);
        owner.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    };
    // Each of the two says that the other serves it.
    give_to(other);
    let lock = client.lock(&name);
    let call = sleeping("in between", move || lock.lock_owned());
    assert!(!call.is_finished(), "the nodes do not agree yet");
    give_to(owner);
    join(call).expect("they agree").unlock().expect("it is held");
}

#[test]
fn locks_are_taken_and_released_all_through_a_resharding() {
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

/// Cuts a replica off from its master, which goes on with those who have logged in.
fn cut_off_replicas(master: &Server) {
    master.ask::<()>(&["CONFIG", "SET", "requirepass", "pass-word"]);
    let mut admin = master.connection_as("default", "pass-word");
    let admin = &mut admin;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).exec(admin).expect("an administrator");
    eventually("no replica is connected", || {
        let info: String = redis::cmd("INFO").arg("replication").query(admin).expect("an answer");
        info.contains("connected_slaves:0")
    });
}

/// Blocks until the replica of a master has a lock with a time to live.
fn await_replica(cluster: &Cluster, master: &Server, name: &str) {
    let mut reader = cluster.replica_of(master).connection();
    redis::cmd("READONLY").exec(&mut reader).expect("a replica");
    eventually("the replica has it", || {
        redis::cmd("PTTL").arg(name).query::<i64>(&mut reader).is_ok_and(|left| left > 0)
    });
}

#[test]
fn a_hold_outlives_the_death_of_its_master_or_is_lost_there_at_once() {
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
    eventually("it is renewed there", || pttl(new, &kept) > 25_000);
    let told = || losses.recv_timeout(SECOND * 20).expect("it is told before the lease is over");
    let told = [told(), told()].map(|lost| (lost.name.to_string(), lost.reason));
    assert!([gone, fixed].iter().all(|it| told.contains(&(it.clone(), LostReason::Gone))));
    assert!(lost.into_iter().all(|it| it.unlock().is_err_and(|error| error.is_lost())));
    guard.unlock().expect("still held");
}

#[test]
fn a_grant_of_the_old_master_is_not_accepted_after_the_new_was_asked_for_all_holds() {
    let members = Members::default();
    let cluster = Cluster::with(3, 1, |config| config.gated(&members));
    let client = builder(&cluster).response_timeout(MINUTE).watchdog_timeout(MINUTE * 10);
    let client = client.build().expect("the cluster is well");
    let (kept, old) = (name_on(&cluster, 0), &cluster.nodes()[0]);
    let name = format!("{{{kept}}}");
    let guard = client.lock(&kept).lock().expect("free");
    old.ask::<()>(&["PEXPIRE", &kept, "300000"]);
    await_replica(&cluster, old, &kept);
    let acquire: String = old.ask(&["SCRIPT", "LOAD", include_str!("../../lua/plain_acquire.lua")]);
    let way = old.gate().front();
    way.on_request(acquire.as_bytes(), Direction::Replies, Flow::Hold);
    thread::scope(|scope| {
        let asks = scope.spawn(|| client.lock(&name).try_lock().map(|guard| guard.is_some()));
        way.wait_until("its answer", |stats| stats.replies.held > 0);
        let new = cluster.replica_of(old);
        cluster.fail_over(new);
        eventually("it is renewed there", || pttl(new, &kept) > 500_000);
        new.ask::<()>(&["DEL", &name]);
        new.ask::<()>(&["HSET", &name, "another", "1"]);
        way.release_held();
        let granted = in_time("it ends", asks).expect("the new master answers");
        assert!(!granted, "two have it");
    });
    guard.unlock().expect("still held");
}

#[test]
fn who_waits_asks_the_new_master() {
    let cluster = Cluster::start(3, 1);
    let client = builder(&cluster).poll_interval(SECOND).build().expect("the cluster is well");
    let name = name_on(&cluster, 0);
    let (master, other) = (&cluster.nodes()[0], name_on(&cluster, 1));
    master.ask::<()>(&["HSET", &name, "another", "1"]);
    master.ask::<()>(&["PEXPIRE", &name, "600000"]);
    await_replica(&cluster, master, &name);
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock(&name).lock().and_then(|guard| guard.unlock()));
        is_heard(&cluster, &name);
        master.kill();
        client.lock(&other).lock().expect("another node lives").unlock().expect("held");
        let new = cluster.owner_of(&name);
        eventually("it listens there", || is_heard_at(&cluster, new, &name));
        new.ask::<()>(&["DEL", &name]);
        in_time("it gets the lock", waits).expect("a lock");
    });
}

#[test]
fn a_planned_fail_over_is_followed() {
    let cluster = Cluster::start(3, 1);
    let client = client(&cluster);
    let name = name_on(&cluster, 2);
    let guard = client.lock(&name).lock().expect("free");
    let master = cluster.owner_of(&name);
    cluster.fail_over(cluster.replica_of(master));
    guard.extend(MINUTE).expect("found on the new master");
    assert!(pttl(cluster.owner_of(&name), &name) > 30_000);
    guard.unlock().expect("held");
    assert!(!exists(cluster.owner_of(&name), &name));
}

#[test]
fn a_cluster_is_found_by_any_node_that_lives_and_a_server_that_is_none_is_an_error() {
    let cluster = Cluster::start(3, 0);
    let dead = format!("redis://127.0.0.1:{}/", crate::harness::ports::free_port());
    let urls = [dead.clone(), cluster.nodes()[2].url()];
    let client = Client::builder().cluster(urls).build().expect("one of them lives");
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
    let node = Client::open(cluster.nodes()[0].url()).expect("it is a server");
    let error = node.lock(name_on(&cluster, 1)).lock().expect_err("it is elsewhere");
    assert!(error.to_string().contains("Builder::cluster"), "{error}");
}

#[test]
fn a_cluster_with_a_password_is_spoken_to_with_it() {
    let cluster = Cluster::with(3, 0, |config| config.password("pass-word"));
    let client = builder(&cluster).login("default", "pass-word").build().expect("the right one");
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
    let acknowledged = builder(&cluster).min_replicas(1, SECOND * 20).build().expect("it is well");
    for node in 0..3 {
        let name = name_on(&cluster, node);
        acknowledged.lock(name).lock().expect("acknowledged").unlock().expect("held");
        assert!(cluster.nodes()[node].calls("wait") > 0);
    }
    let too_many = builder(&cluster).min_replicas(2, SECOND / 20).build().expect("it is well");
    let error = too_many.lock(name_on(&cluster, 1)).lock().expect_err("there is but one");
    assert!(error.is_not_replicated(), "{error:?}");
}

#[test]
fn nodes_that_stand_still_delay_no_renewal_at_others() {
    let cluster = Cluster::with(9, 0, |config| config.line("cluster-require-full-coverage no"));
    // One after the other, those that stand still would take as long as is left of a lease
    // when its renewal is due.
    let lease = SECOND * 3;
    let client = builder(&cluster).watchdog_timeout(lease).build().expect("the cluster is well");
    let guards: Vec<_> = (0..9)
        .map(|node| client.lock(name_on(&cluster, node)).lock_owned().expect("free"))
        .collect();
    let (still, others) = guards.split_at(4);
    let other = client.lock(cluster.key_on(&cluster.nodes()[5], "other"));
    cluster.nodes()[..4].iter().for_each(Server::stop);
    assert!(still.iter().all(|guard| guard.wait_lost(MINUTE)), "nobody renews these");
    for guard in others {
        assert!(!guard.wait_lost(lease), "it was lost for want of renewals");
    }
    other.lock().expect("who lives answers").unlock().expect("held");
    cluster.nodes()[..4].iter().for_each(Server::resume);
    drop(guards);
}

#[test]
fn who_dies_at_one_node_is_renewed_in_many_slots_at_others() {
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
    assert!(lost.iter().all(|guard| guard.wait_lost(MINUTE)), "nobody renews these");
    assert!(!kept.wait_lost(lease), "it was lost for want of renewals");
    silent.resume();
    kept.unlock().expect("held");
}

#[test]
fn nodes_that_send_a_release_to_and_fro_are_not_asked_without_pause() {
    let cluster = Cluster::start(3, 0);
    let [a, b] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let name = cluster.key_on(a, "lock");
    let client = client(&cluster);
    let guard = client.lock(&name).with_lease(SECOND * 2).lock_owned().expect("free");
    a.ask::<()>(&["DEL", &name]);
    let slot = cluster.slot_of(&name).to_string();
    a.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &b.ask::<String>(&["CLUSTER", "MYID"])]);
    drop(guard);
    let sent_away = || a.info("errorstats").get("errorstat_MOVED").cloned();
    eventually("it is sent away", || sent_away().is_some());
    // At the end of its lease it is given up.
    let mut last = sent_away();
    let calm = || {
        thread::sleep(SECOND);
        let before = std::mem::replace(&mut last, sent_away());
        before == last
    };
    eventually("nobody sends it any more", calm);
    let count: u64 = last.and_then(|it| it.trim_start_matches("count=").parse().ok()).expect("one");
    assert!(count < 1000, "{count} times in two seconds");
}

#[test]
fn a_forked_child_is_refused_also_at_nodes_that_its_parent_has_not_used() {
    use fork::{Fork, fork, waitpid};
    let cluster = Cluster::start(3, 0);
    let client = client(&cluster);
    let lock = client.lock(name_on(&cluster, 0));
    match fork().expect("a child") {
        Fork::Child => {
            let refused = lock.try_lock_owned().is_err_and(|error| error.is_configuration());
            std::process::exit(i32::from(!refused));
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).expect("it ends") >> 8, 0),
    }
    assert!(lock.try_lock_owned().expect("an answer").is_some());
}

#[test]
fn a_release_is_whole_while_keys_of_its_slot_are_at_two_nodes() {
    let cluster = Cluster::start(3, 0);
    let [a, b] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let [client, other] = [client(&cluster), client(&cluster)];
    let name = cluster.key_on(a, "lock");
    let slot = cluster.slot_of(&name);
    let lock = client.rw_lock(&name);
    let writing = lock.write().expect("free");
    let reading = lock.read().expect("one's own");
    cluster.begin_migration(slot, b);
    let key = a.keys().into_iter().find(|key| key.contains("rwlock_timeout")).expect("a reader's");
    a.ask::<String>(&["MIGRATE", "127.0.0.1", &b.port().to_string(), &key, "0", "5000"]);
    let before = a.calls("evalsha");
    drop(writing);
    eventually("the release is tried", || a.calls("evalsha") > before);
    cluster.move_keys(slot, b);
    cluster.end_migration(slot, b);
    let also = other.rw_lock(&name).read().expect("readers are let in");
    also.unlock().expect("held");
    reading.unlock().expect("held");
    eventually("nothing is held", || !exists(b, &name));
}

/// A lock that is read, whose slot is on the move. The time-out key of the reader has moved.
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
        let (port, key) = (to.port().to_string(), key.expect("a reader's"));
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
fn a_reader_is_renewed_whole_or_not_at_all_while_keys_of_its_slot_are_at_two_nodes() {
    let cluster = Cluster::start(3, 0);
    let lock = HalfMoved::on(&cluster, &client(&cluster));
    lock.reading.extend(10 * MINUTE).expect_err("one of its keys is elsewhere");
    assert!(pttl(lock.from, &lock.name) <= 60_000, "{}", pttl(lock.from, &lock.name));
    lock.move_the_rest();
    lock.reading.extend(10 * MINUTE).expect("held");
    assert!(pttl(lock.to, &lock.name) > 60_000);
    lock.reading.unlock().expect("held");
}

/// Redisson leaves time-out keys to their end.
#[test]
fn a_lock_is_freed_by_force_while_keys_of_its_slot_are_at_two_nodes() {
    let cluster = Cluster::start(3, 0);
    let other = client(&cluster);
    let lock = HalfMoved::on(&cluster, &client(&cluster));
    let freed = other.rw_lock(&lock.name).read_lock().force_unlock();
    assert!(freed.expect("the time-out key does not matter"));
    assert!(!lock.from.keys().contains(&lock.name));
    lock.move_the_rest();
    other.rw_lock(&lock.name).write().expect("free").unlock().expect("held");
}

#[test]
fn an_error_names_the_node_to_which_a_slot_moves_if_that_cannot_be_reached() {
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
    let error = client.lock(&name).try_lock().expect_err("the node that would have it is away");
    assert!(error.is_connection(), "{error:?}");
    assert!(error.to_string().contains(&way.addr().to_string()), "{error}");
    let attempts = way.stats().refused - refused;
    assert_eq!(attempts, 1, "it is not asked again and again");
}

/// A client of a cluster's only node that takes it for a single server, by way of a proxy.
fn single(cluster: &Cluster, lease: Duration) -> (Client, Proxy) {
    let proxy = Proxy::start(cluster.nodes()[0].addr());
    let client = Client::builder().single(proxy.url()).watchdog_timeout(lease);
    (client.build().expect("it is a server"), proxy)
}

#[test]
fn leases_in_many_slots_of_a_single_server_are_renewed() {
    let (cluster, lease) = (Cluster::start(1, 0), SECOND * 4);
    let (client, proxy) = single(&cluster, lease);
    let mut guards = Vec::new();
    // Of each two one is renewed, and one is fixed.
    for number in 0..500 {
        let name = format!("lock:{number}");
        guards.push(client.lock(&name).lock_owned().expect("free"));
        let fixed = client.lock(format!("fixed:{number}")).with_lease(MINUTE);
        guards.push(fixed.lock_owned().expect("free"));
    }
    proxy.delay(Direction::Replies, Duration::from_millis(5));
    let lost = || guards.iter().filter(|guard| !guard.is_held()).count();
    assert!(!holds_within(lease * 2, || lost() > 0), "{} were lost", lost());
}

#[test]
fn members_in_many_slots_of_a_single_server_are_taken_together_and_polled_for() {
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
    names.iter().for_each(|name| node.ask::<()>(&["HSET", name, "another", "1"]));
    thread::scope(|scope| {
        let waits: Vec<_> =
            names.iter().map(|name| scope.spawn(|| client.lock(*name).lock().map(drop))).collect();
        for (name, waits) in names.iter().zip(waits) {
            eventually("it listens", || listeners(node, name) == 1);
            node.ask::<()>(&["DEL", name]);
            in_time("the poll finds it free", waits).expect("a lock");
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
    let guards: Vec<_> =
        names.iter().map(|name| client.lock(name).lock_owned().expect("free")).collect();
    let fixed = client.lock(format!("{{{tag}}}:fixed")).with_lease(MINUTE);
    let fixed = fixed.lock_owned().expect("free");
    cluster.begin_migration(slot, target);
    cluster.send(&names[..10], &cluster.nodes()[0], target);
    let lost = || guards.iter().filter(|guard| !guard.is_held()).count();
    assert!(!holds_within(lease * 2, || lost() > 0), "{} were lost", lost());
    assert!(fixed.is_held());
    // Members of both nodes, and new ones.
    drop(guards);
    eventually("all are released", || {
        names.iter().all(|name| cluster.nodes().iter().all(|node| !has_key(node, name)))
    });
    let all = MultiLock::new(names[8..12].iter().map(|name| client.lock(name)));
    all.lock().expect("free").unlock().expect("held");
}

/// Whether the node itself has that key, of whatever slot.
fn has_key(node: &Server, name: &str) -> bool {
    node.keys().iter().any(|key| key == name)
}

/// A node that says what it is told to, and counts how often its map is read.
struct MadeUp {
    node: Impostor,
    reads: Arc<AtomicUsize>,
}

/// What a made-up node says: of the slots, of the cluster, and to every other command.
struct Says {
    /// The first slot, the last, and the port of the node that serves them.
    ranges: Vec<(u16, u16, u16)>,
    state: &'static str,
    /// To `PUBSUB SHARDNUMSUB`.
    shards: &'static str,
}

impl MadeUp {
    fn start(says: Says) -> MadeUp {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let ranges: String = says.ranges.iter().map(range).collect();
        let slots = format!("*{}\r\n{ranges}", says.ranges.len()).into_bytes();
        let info = format!("cluster_state:{}\r\n", says.state);
        let node = Impostor::answering(move |words| match words[0].as_str() {
            "HELLO" => Some(b"%2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n".to_vec()),
            "CLUSTER" if words[1] == "SLOTS" => {
                counted.fetch_add(1, Ordering::Relaxed);
                Some(slots.clone())
            }
            "CLUSTER" => Some(format!("${}\r\n{info}\r\n", info.len()).into_bytes()),
            "PUBSUB" => Some(says.shards.into()),
            _ => Some(b"-CLUSTERDOWN The cluster is down\r\n".to_vec()),
        });
        MadeUp { node, reads }
    }

    fn url(&self) -> String {
        format!("redis://{}/", self.node.addr())
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

fn range((first, last, port): &(u16, u16, u16)) -> String {
    format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
}

/// A lock that no node serves is asked for all the while `done` says no.
fn keep_asking(client: &Client, name: &str, mut done: impl FnMut() -> bool) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            while !stop.load(Ordering::Relaxed) {
                assert!(client.lock(name).try_lock().is_err(), "nobody serves it");
            }
        };
        let asks = scope.spawn(ask);
        eventually("enough has happened", &mut done);
        stop.store(true, Ordering::Relaxed);
        in_time("the last question ends", asks);
    });
}

#[test]
fn a_map_that_is_read_again_and_again_is_read_over_one_connection() {
    let dead = crate::harness::ports::free_port();
    // It is well, and names a node that is not there: so every question has the map read.
    let says = Says { ranges: vec![(0, 16_383, dead)], state: "ok", shards: "*0\r\n" };
    let known = MadeUp::start(says);
    let builder = Client::builder().cluster([known.url()]).connect_timeout(SECOND / 10);
    let client = builder.build().expect("it is well");
    let at_first = (known.reads(), known.node.accepted());
    keep_asking(&client, "a", || known.reads() >= at_first.0 + 8);
    let more = known.node.accepted() - at_first.1;
    assert!(more <= 3, "{more} connections");
}

#[test]
fn a_cluster_that_is_not_well_is_connected_to_with_growing_pauses() {
    let dead = crate::harness::ports::free_port();
    let says = Says { ranges: vec![(0, 16_383, dead)], state: "fail", shards: "*0\r\n" };
    let ill = MadeUp::start(says);
    let builder = Client::builder().cluster([ill.url()]).connect_timeout(SECOND / 10);
    let client = builder.build().expect("its first word is believed");
    let at_first = ill.node.accepted();
    let start = Instant::now();
    keep_asking(&client, "a", || start.elapsed() > SECOND * 6);
    let more = ill.node.accepted() - at_first;
    assert!((2..=25).contains(&more), "{more} connections");
}

/// A node that is reading its data says so to every question.
const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";

#[test]
fn a_node_that_cannot_say_yet_whether_it_has_shards_is_not_taken_for_one_without() {
    let cluster = Cluster::start(1, 0);
    let served = cluster.nodes()[0].port();
    let loading = |port| Says { ranges: vec![(0, 16_383, port)], state: "ok", shards: LOADING };
    let first = MadeUp::start(loading(served));
    let name = name_on(&cluster, 0);
    let builder = || Client::builder().cluster([first.url()]).poll_interval(MINUTE * 10);
    let [holder, waiter] = [(); 2].map(|()| builder().build().expect("the other node says it"));
    let guard = holder.lock(&name).lock().expect("free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock(&name).lock().and_then(|it| it.unlock()));
        is_heard(&cluster, &name);
        let node = &cluster.nodes()[0];
        let shards: Vec<String> = node.tells(&["PUBSUB", "SHARDCHANNELS"]).unwrap_or_default();
        let sharded = automatic(&cluster) == Sharding::On;
        assert_eq!(shards.contains(&channel(&name)), sharded, "{shards:?}");
        guard.unlock().expect("held");
        in_time("it is told", waits).expect("a lock");
    });
    let alone = MadeUp::start(loading(crate::harness::ports::free_port()));
    let nobody_says = Client::builder().cluster([alone.url()]).connect_timeout(SECOND / 10).build();
    assert!(nobody_says.is_err(), "it would be deaf for ever: {nobody_says:?}");
}
