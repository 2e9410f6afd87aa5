//! Looks at locks with known names, and releases by force, in clusters and after fail-overs.

use crate::harness::replicated::MASTER;
use crate::harness::wait::BOUND;
use crate::harness::{Cluster, Replicated, eventually, exists, in_time};
use crate::lock_all;
use leasehold::{CancelToken, Client, Guard, LockInfo, LockWatch, Sharding};
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval after the end of any test: only messages wake a waiting caller.
const NEVER: Duration = Duration::from_secs(120);

fn look(watch: &mut LockWatch) -> Vec<LockInfo> {
    watch.look().expect("an answer").into_iter().map(|it| it.expect("held")).collect()
}

/// Watches locks on all nodes, and frees them by force; each has a waiting caller. The holders
/// learn of their loss at once.
fn shows_and_frees_locks_of_all_nodes(sharding: Sharding) {
    let cluster = Cluster::start(3, 0);
    let builder = || Client::builder().cluster(cluster.urls()).sharding(sharding);
    let holding = builder().watchdog_timeout(NEVER).build().expect("the cluster is well");
    let waiting = builder().poll_interval(NEVER).build().expect("the cluster is well");
    let looking = builder().build_lazily().expect("no connection");
    let names: Vec<String> = (0..12).map(|number| format!("lock {number}")).collect();
    let nodes = names.iter().map(|name| cluster.owner_of(name).port());
    assert_eq!(nodes.collect::<std::collections::BTreeSet<_>>().len(), 3, "on all nodes");
    let guards = lock_all(&holding, &names);

    let mut watch = looking.watch_locks(names.clone()).expect("good names");
    eventually("the process answers for all locks", || {
        let found = look(&mut watch);
        found.iter().all(|lock| lock.holders()[0].acquired() == Some(1))
    });
    let found = look(&mut watch);
    assert_eq!(found.iter().map(LockInfo::name).collect::<Vec<_>>(), names);
    assert!(found.iter().all(|lock| lock.holders()[0].client_id() == Some(holding.id())));

    thread::scope(|scope| {
        let wait = |name: &String| {
            let lock = waiting.lock(name);
            scope.spawn(move || lock.lock().and_then(Guard::unlock))
        };
        let waiters: Vec<_> = names.iter().map(wait).collect();
        eventually("one process waits for each", || {
            look(&mut watch).iter().all(|lock| lock.waiting().processes() == 1)
        });
        for name in &names {
            let lock = looking.lock_info(name).expect("an answer").expect("held");
            assert_eq!(lock.waiting().processes(), 1);
            assert!(looking.force_unlock(name).expect("an answer"), "{name}");
        }
        for waiter in waiters {
            in_time("the waiter gets the lock", waiter).expect("the lock");
        }
    });
    // No lease is renewed in this time: a message tells the loss.
    assert!(guards.iter().all(|guard| guard.wait_lost(BOUND)));
    eventually("all are free", || watch.look().expect("an answer").iter().all(Option::is_none));
    assert!(!looking.force_unlock(&names[0]).expect("an answer"));
    drop(guards);
}

#[test]
fn locks_of_all_masters_are_shown_and_freed_with_plain_messages() {
    shows_and_frees_locks_of_all_nodes(Sharding::Off);
}

#[test]
fn locks_of_all_masters_are_shown_and_freed_with_the_messages_of_the_cluster() {
    shows_and_frees_locks_of_all_nodes(Sharding::Auto);
}

#[test]
fn kinds_with_more_keys_are_shown_and_freed_in_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let client = || Client::builder().cluster(cluster.urls()).build().expect("the cluster is well");
    let (holding, looking) = (client(), client());
    let stop = CancelToken::new();
    thread::scope(|scope| {
        holding.queue_lock("queued").lock().expect("free").detach();
        holding.fair_lock("fair").lock().expect("free").detach();
        holding.rw_lock("read").read().expect("free").detach();
        let queued = looking.queue_lock("queued").with_cancel(&stop);
        let waiter = scope.spawn(move || queued.lock_owned().map(drop));
        let look = |name: &str| looking.lock_info(name).expect("an answer").expect("held");
        eventually("a caller waits", || look("queued").waiting().queue().len() == 1);
        assert!(look("queued").token().is_some());
        assert_eq!(look("read").kind(), "read lock");
        for name in ["queued", "fair", "read"] {
            assert!(looking.force_unlock(name).expect("an answer"), "{name}");
        }
        in_time("the caller gets the lock", waiter).expect("the lock");
        for name in ["queued", "fair", "read"] {
            let free = || looking.lock_info(name).expect("an answer").is_none();
            eventually("the lock is free", free);
        }
    });
}

#[test]
fn a_watch_goes_on_while_a_slot_moves() {
    let cluster = Cluster::start(2, 0);
    let client = Client::builder().cluster(cluster.urls()).build().expect("the cluster is well");
    let names: Vec<String> = (0..4).map(|number| format!("{{moving}}{number}")).collect();
    let guards = lock_all(&client, &names);
    let mut watch = client.watch_locks(names.clone()).expect("good names");
    assert_eq!(look(&mut watch).len(), 4);
    let slot = cluster.slot_of("{moving}");
    let old = cluster.owner_of("{moving}");
    let new = cluster.nodes().iter().find(|node| node.port() != old.port()).expect("two nodes");
    cluster.begin_migration(slot, new);
    let port = new.port().to_string();
    let head = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", &names[0], &names[1]];
    old.ask::<()>(&head);
    assert_eq!(look(&mut watch).len(), 4, "half of the keys have moved");
    cluster.migrate(slot, new);
    assert_eq!(look(&mut watch).len(), 4);
    drop(guards);
}

#[test]
fn a_watch_follows_the_master_after_a_fail_over() {
    let servers = Replicated::start(1, 3);
    let builder = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let holding = builder().build().expect("there is a master");
    let looking = builder().build_lazily().expect("no connection");
    let mut watch = looking.watch_locks(["a"]).expect("a good name");
    assert!(watch.look().expect("an answer")[0].is_none());
    let guard = holding.lock("a").lock().expect("free");
    let answers = |watch: &mut LockWatch| {
        let found = watch.look().ok().and_then(|mut found| found.pop().flatten());
        found.is_some_and(|lock| lock.holders().iter().any(|it| it.acquired() == Some(1)))
    };
    eventually("the process answers", || answers(&mut watch));
    // A fail-over may lose what no replica has yet.
    eventually("the replica has the lock", || exists(servers.replicas()[0], "a"));
    let new = servers.fail_over();
    new.reset_stats();
    eventually("the process answers by the new master", || {
        answers(&mut watch) && new.calls("publish") > 0 && new.calls("pubsub|numsub") > 0
    });
    drop(guard);
}

/// One node of a cluster dies, and the others go on without its slots.
fn shows_and_frees_locks_of_live_nodes(sharding: Sharding) {
    let cluster = Cluster::with(3, 0, |config| config.line("cluster-require-full-coverage no"));
    let builder = || Client::builder().cluster(cluster.urls()).sharding(sharding);
    let build = || builder().build().expect("the cluster is well");
    let dead = &cluster.nodes()[2];
    // The record of this client is on the node that dies.
    let of_dead = |client: &Client| {
        let record = format!("leasehold_client:{{{}}}", client.id());
        cluster.owner_of(&record).port() == dead.port()
    };
    let holding = std::iter::repeat_with(build).find(of_dead).expect("one of many");
    let (waiting, looking) = (build(), build());
    let [alive, other, lost] = [0, 1, 2].map(|node| cluster.key_on(&cluster.nodes()[node], "a"));
    let names = [&alive, &lost, &other];
    let guards = names.map(|name| holding.queue_lock(name).lock_owned().expect("free"));
    let plain = cluster.key_on(&cluster.nodes()[0], "plain");
    let plain_guard = holding.lock(&plain).lock_owned().expect("free");
    let mut watch = looking.watch_locks(names).expect("good names");
    assert_eq!(look(&mut watch).len(), 3);
    dead.kill();
    let is_lost = |error: leasehold::Error| {
        assert!(error.is_retryable(), "{error:?}");
        assert!(error.is_connection() || error.is_timeout() || error.is_server(), "{error:?}");
    };
    let token = CancelToken::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.lock(&plain).with_cancel(&token).lock().map(drop));
        eventually("the live nodes answer, and the caller waits", || {
            // The nodes refuse commands until they know of the death.
            looking.lock(&plain).waiting().is_ok_and(|waiting| waiting.processes() == 1)
        });
        let shown = looking.lock_info(&alive).expect("its node answers").expect("held");
        assert_eq!(shown.holders()[0].client_id(), Some(holding.id()));
        assert_eq!(looking.queue_lock(&other).holders().expect("its node answers").len(), 1);
        is_lost(looking.lock_info(&lost).map(drop).expect_err("its node is dead"));
        is_lost(looking.queue_lock(&lost).holders().map(drop).expect_err("its node is dead"));

        let mut each = watch.look_each().expect("some nodes answer");
        let error = each.remove(1).expect_err("its node is dead");
        assert_eq!(error.lock_name(), Some(&*lost));
        is_lost(error);
        for lock in each {
            assert!(lock.expect("its node answers").is_some(), "held");
        }
        is_lost(watch.look().expect_err("one node is dead"));

        let found: Vec<_> = looking.locks("*").expect("a good pattern").collect();
        let (locks, errors): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
        let mut shown: Vec<_> = locks.into_iter().map(|it| it.expect("a lock")).collect();
        shown.sort_by(|a, b| a.name().cmp(b.name()));
        let mut expected = [&alive, &other, &plain];
        expected.sort();
        assert_eq!(Vec::from_iter(shown.iter().map(LockInfo::name)), expected);
        assert_eq!(errors.len(), 1, "{errors:?}");
        for error in errors.into_iter().filter_map(Result::err) {
            assert_eq!(error.server(), Some(&*dead.addr().to_string()));
            is_lost(error);
        }
        assert!(!looking.audit().expect("some nodes answer").is_empty());
        assert!(looking.force_unlock(&alive).expect("its node answers"));
        token.cancel();
        assert!(in_time("the wait ends", waiter).is_err_and(|error| error.is_cancelled()));
    });
    drop((guards, plain_guard));
}

#[test]
fn a_dead_node_hides_only_its_locks_with_plain_messages() {
    shows_and_frees_locks_of_live_nodes(Sharding::Off);
}

#[test]
fn a_dead_node_hides_only_its_locks_with_the_messages_of_the_cluster() {
    shows_and_frees_locks_of_live_nodes(Sharding::Auto);
}

#[test]
fn only_the_node_of_a_lock_counts_its_waiting_processes() {
    let cluster = Cluster::start(3, 0);
    for (sharding, verb) in [(Sharding::Off, "numsub"), (Sharding::Auto, "shardnumsub")] {
        let builder = Client::builder().cluster(cluster.urls()).sharding(sharding);
        let client = builder.build().expect("the cluster is well");
        let name = cluster.key_on(&cluster.nodes()[1], "a");
        let guard = client.lock(&name).lock().expect("free");
        // The first use of the script sends some commands twice. The second use follows them.
        for _ in 0..2 {
            assert!(client.lock_info(&name).expect("an answer").is_some());
        }
        cluster.nodes().iter().for_each(|node| node.reset_stats());
        assert!(client.lock_info(&name).expect("an answer").is_some());
        client.lock(&name).waiting().expect("an answer");
        assert!(client.locks("*").expect("a good pattern").all(|lock| lock.is_ok()));
        let asked = cluster.nodes().iter().map(|node| node.calls(&format!("pubsub|{verb}")));
        assert_eq!(Vec::from_iter(asked), [0, 3, 0], "{verb}");
        drop(guard);
    }
}

/// One node of a cluster stops, and the queries about locks of the others go on.
fn asks_other_nodes_beside_a_silent_one(sharding: Sharding) {
    /// The delay of a query that waits for the silent node.
    const SILENCE: Duration = Duration::from_secs(2);
    const ROUNDS: u32 = 5;
    let cluster = Cluster::with(3, 0, |config| config.line("cluster-require-full-coverage no"));
    let builder = || Client::builder().cluster(cluster.urls()).sharding(sharding);
    let build = || builder().response_timeout(SILENCE).build().expect("the cluster is well");
    let [live, other, silent] = cluster.nodes() else { panic!("three nodes") };
    let [live, other, lost] = [live, other, silent].map(|node| cluster.key_on(node, "a"));
    // The records of the holders are on the node that stops.
    let of_silent = |client: &Client| {
        let record = format!("leasehold_client:{{{}}}", client.id());
        cluster.owner_of(&record).port() == silent.port()
    };
    let mut holding = std::iter::repeat_with(build).filter(of_silent);
    let holding: [Client; 2] = std::array::from_fn(|_| holding.next().expect("one of many"));
    let looking = build();
    // Several pages of a search, each with locks of both clients.
    let names: Vec<_> = (0..120).map(|number| format!("{{{live}}}{number}")).collect();
    let all = names.iter().chain([&other, &lost]).zip(holding.iter().cycle());
    let guards: Vec<_> = all.map(|(name, by)| by.lock(name).lock_owned().expect("free")).collect();
    let has_process = |name: &str| {
        let found = looking.lock_info(name).expect("an answer").expect("held");
        found.holders()[0].pid().is_some()
    };
    eventually("the records are written", || has_process(&names[0]) && has_process(&names[1]));
    let mut watch = looking.watch_locks([&names[0], &lost, &other]).expect("good names");
    assert_eq!(look(&mut watch).len(), 3);
    silent.stop();
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let found: Vec<_> = looking.locks("*").expect("a good pattern").collect();
        assert_eq!(found.iter().filter(|found| found.is_ok()).count(), 121);
        let shown = looking.lock_info(&names[0]).expect("its node answers").expect("held");
        assert_eq!(shown.holders()[0].client_id(), Some(holding[0].id()));
        let holders = looking.lock(&other).holders().expect("its node answers");
        assert_eq!(holders[0].client_id(), Some(holding[0].id()));
        let each = watch.look_each().expect("some nodes answer");
        let seen = each.iter().map(|lock| lock.as_ref().is_ok_and(Option::is_some));
        assert_eq!(Vec::from_iter(seen), [true, false, true]);
    }
    // At first some queries find out that the node is silent.
    let took = begun.elapsed();
    assert!(took < 15 * SILENCE, "{took:?} for {} queries", 4 * ROUNDS);
    silent.resume();
    eventually("all is known again", || {
        let found: Vec<_> = looking.locks("*").expect("a good pattern").collect();
        let is_known = |found: &leasehold::Result<LockInfo>| {
            found.as_ref().is_ok_and(|lock| lock.holders().iter().all(|it| it.pid().is_some()))
        };
        found.iter().filter(|found| is_known(found)).count() == 122
            && watch.look().is_ok_and(|looked| looked.iter().all(Option::is_some))
    });
    drop(guards);
}

#[test]
fn a_silent_node_delays_few_queries_with_plain_messages() {
    asks_other_nodes_beside_a_silent_one(Sharding::Off);
}

#[test]
fn a_silent_node_delays_few_queries_with_the_messages_of_the_cluster() {
    asks_other_nodes_beside_a_silent_one(Sharding::Auto);
}

#[test]
fn a_search_skips_the_locks_whose_slot_is_moving_from_a_dead_node() {
    let cluster = Cluster::with(3, 0, |config| config.line("cluster-require-full-coverage no"));
    // The lock outlives its node.
    let builder = Client::builder().cluster(cluster.urls()).watchdog_timeout(NEVER);
    let client = builder.build().expect("the cluster is well");
    let [old, new, _] = cluster.nodes() else { panic!("three nodes") };
    let (moving, near) = (cluster.key_on(old, "a"), cluster.key_on(new, "a"));
    // Several pages of a search.
    let near = (0..200).map(|number| format!("{{{near}}}{number}"));
    let names: Vec<_> = [format!("{{{moving}}}")].into_iter().chain(near).collect();
    let guards = lock_all(&client, &names);
    cluster.begin_migration(cluster.slot_of(&moving), new);
    let port = new.port().to_string();
    old.ask::<()>(&["MIGRATE", "127.0.0.1", &port, &names[0], "0", "5000"]);
    old.kill();
    let shown = || {
        let found = client.locks("*").expect("a good pattern");
        let (locks, errors): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
        let servers = errors.iter().filter_map(|it| Some(it.as_ref().err()?.server()?.to_owned()));
        (locks.len(), errors.len(), servers.collect::<Vec<_>>())
    };
    // The nodes refuse commands until they know of the death.
    let expected = (200, 1, vec![old.addr().to_string()]);
    eventually("the locks of the live nodes are found", || shown() == expected);
    drop(guards);
}
