//! Redis Cluster: locks on the nodes of their slots, releases told to a shard or to all,
//! and what happens to both when slots move and masters die.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Client, Events, Lost, LostReason, MultiLock, Sharding};
use support::{Cluster, Members, Server, eventually, exists, in_time, owner, pttl};

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
        let quiet = || builder(&cluster).sharding(sharding).poll_bound(MINUTE * 10);
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
    let client = builder(&cluster).poll_bound(SECOND / 5).build().expect("the cluster is well");
    let name = name_on(&cluster, 1);
    let node = &cluster.nodes()[1];
    node.ask::<()>(&["HSET", &name, "another", "1"]);
    node.ask::<()>(&["PEXPIRE", &name, "600000"]);
    let lock = client.lock(&name);
    assert!(lock.try_lock_for(SECOND * 4).expect("an answer").is_none());
    // Four seconds without a heartbeat would have ended the connection, and that its name.
    let listening = |peer: &support::Peer| peer.name.contains(":listener");
    assert!(cluster.nodes().iter().any(|node| node.clients().iter().any(listening)));
    let heard = |node: &Server| listeners(node, &name) > 0;
    eventually("the subscription ends", || !cluster.nodes().iter().any(heard));
    drop((lock, client));
    let ours = |peer: &support::Peer| peer.name.starts_with("leasehold:");
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
    let quiet = || builder(&cluster).poll_bound(MINUTE * 10);
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
    let lost = client.lock(&gone).lock().expect("free");
    master.kill();
    let new = cluster.owner_of(&kept);
    eventually("it is renewed there", || pttl(new, &kept) > 25_000);
    let told = losses.recv_timeout(SECOND * 20).expect("it is told before the lease is over");
    assert_eq!((&*told.name, told.reason), (&*gone, LostReason::Gone));
    assert!(lost.unlock().is_err_and(|error| error.is_lost()));
    guard.unlock().expect("still held");
}

#[test]
fn who_waits_asks_the_new_master() {
    let cluster = Cluster::start(3, 1);
    let client = builder(&cluster).poll_bound(SECOND).build().expect("the cluster is well");
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
    let dead = format!("redis://127.0.0.1:{}/", support::ports::free_port());
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
