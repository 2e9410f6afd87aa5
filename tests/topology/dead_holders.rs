//! Holders that are killed, whose holds end with them: on the nodes of a cluster, after fail-overs,
//! and on several servers.

use crate::cluster::await_replica;
use crate::harness::faults::build;
use crate::harness::held::{KINDS, opposite, take};
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::replicated::MASTER;
use crate::harness::wait::BOUND;
use crate::harness::{Cluster, Replicated, Server, eventually, exists, in_time};
use crate::sentinel::await_key;
use leasehold::{Builder, Client, MultiLock, RedLock};
use std::thread;
use std::time::Duration;

/// A lease that outlives every test.
const NEVER: Duration = Duration::from_secs(1000);

/// The poll interval of the clients that wait.
const POLL: Duration = Duration::from_millis(200);

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "hold" => hold(&role),
        Some(role) => panic!("unknown: {role:?}"),
    }
}

/// Returns the settings of a client of these servers.
fn settings(topology: &str, urls: &[String]) -> Builder {
    let builder = Client::builder();
    let builder = match topology {
        "single" => builder.single(&urls[0]),
        "sentinel" => builder.sentinel(MASTER, urls),
        "cluster" => builder.cluster(urls),
        topology => panic!("unknown: {topology}"),
    };
    builder.watchdog_timeout(NEVER).poll_interval(POLL)
}

/// Holds a lock of this kind until the process is killed.
fn hold(role: &Role) {
    let [topology, urls, kind, name] = [0, 1, 2, 3].map(|at| role.arg(at));
    let urls: Vec<_> = urls.split(' ').map(str::to_owned).collect();
    let open = |topology, urls| build(settings(topology, urls).release_on_death(true));
    let clients: Vec<_> = match topology {
        "servers" => urls.iter().map(|url| open("single", std::slice::from_ref(url))).collect(),
        topology => vec![open(topology, &urls)],
    };
    let ids: Vec<_> = clients.iter().map(|client| client.id().to_string()).collect();
    let _held = match topology {
        "servers" => Box::new(RedLock::new(clients, name).lock_owned().expect("free")),
        _ => take(&clients[0], name, kind, Some(BOUND)).expect("nobody else holds it"),
    };
    role.say(&ids[0]);
    while role.hear().is_some() {}
}

/// A process that holds a lock.
struct Holder {
    process: ChildProcess,
    /// The key of the record of its client.
    record: String,
}

impl Holder {
    fn start(topology: &str, urls: &[String], kind: &str, name: &str) -> Holder {
        let args = [topology, &urls.join(" "), kind, name];
        let mut process = ChildProcess::start("dead_holders::child_entry", "hold", &args);
        let record = format!("leasehold_client:{{{}}}", process.next_line());
        Holder { process, record }
    }
}

/// Has callers wait for these locks, each of a kind, while `kill` kills their holders.
#[track_caller]
fn waiters_get(client: &Client, locks: &[(String, &'static str)], kill: impl FnOnce()) {
    thread::scope(|scope| {
        let wait = |(name, kind): &(String, &'static str)| {
            let (client, name, kind) = (client.clone(), name.clone(), *kind);
            let take = move || take(&client, &name, opposite(kind), Some(4 * BOUND)).is_some();
            (kind, scope.spawn(take))
        };
        let waiters: Vec<_> = locks.iter().map(wait).collect();
        let all = u64::try_from(locks.len()).expect("a few");
        eventually("all callers wait", || client.stats().waiting_now() == all);
        assert_eq!(client.stats().freed(), 0, "the processes live");
        kill();
        for (kind, waiter) in waiters {
            assert!(in_time(kind, waiter), "{kind}: the lock stays taken");
        }
    });
    // The grant by message may come before the reply to the release.
    eventually("the releases are counted", || client.stats().freed() >= locks.len() as u64);
}

/// Returns a lock of each kind, spread over the masters of a cluster.
fn locks_on(cluster: &Cluster) -> Vec<(String, &'static str)> {
    let name = |at: usize, kind: &str| cluster.key_on(&cluster.nodes()[at % 3], kind);
    KINDS.iter().enumerate().map(|(at, kind)| (name(at, kind), *kind)).collect()
}

#[test]
fn waiters_of_all_kinds_end_the_holds_of_killed_processes_on_all_nodes() {
    let cluster = Cluster::start(3, 0);
    let (urls, locks) = (cluster.urls(), locks_on(&cluster));
    let holder = |(name, kind): &(String, &str)| Holder::start("cluster", &urls, kind, name);
    let mut holders: Vec<_> = locks.iter().map(holder).collect();
    let client = build(settings("cluster", &urls));
    waiters_get(&client, &locks, || holders.iter_mut().for_each(|it| it.process.kill()));
}

#[test]
fn callers_that_do_not_wait_take_the_locks_of_killed_processes_on_all_nodes() {
    let cluster = Cluster::start(3, 0);
    let (urls, locks) = (cluster.urls(), locks_on(&cluster));
    let client = || build(settings("cluster", &urls));
    for (name, kind) in &locks {
        let mut holder = Holder::start("cluster", &urls, kind, name);
        assert!(take(&client(), name, opposite(kind), None).is_none(), "{kind} is held");
        holder.process.kill();
        assert!(take(&client(), name, opposite(kind), None).is_some(), "{kind} is free");
    }
    // The members of a multi-lock are on several nodes.
    let names: Vec<_> = (0..3).map(|at| cluster.key_on(&cluster.nodes()[at], "member")).collect();
    let mut holder = Holder::start("cluster", &urls, "plain", &names[1]);
    let client = client();
    let all = MultiLock::new(names.iter().map(|name| client.lock(name)));
    assert!(all.try_lock().expect("an answer").is_none(), "a member is held");
    holder.process.kill();
    assert!(all.try_lock_for(BOUND).expect("an answer").is_some());
}

#[test]
fn the_lock_of_a_killed_process_moves_with_its_slot() {
    let cluster = Cluster::start(3, 0);
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let urls = cluster.urls();
    for (number, kind) in ["plain", "queue", "slots", "once"].into_iter().enumerate() {
        let name = cluster.key_on(from, kind);
        let slot = cluster.slot_of(&name);
        let mut holder = Holder::start("cluster", &urls, kind, &name);
        let client = build(settings("cluster", &urls));
        // Killed before its keys move, before the slot has moved, or afterwards.
        waiters_get(&client, &[(name, kind)], || {
            let mut kill_at = |at| {
                if number % 3 == at {
                    holder.process.kill();
                }
            };
            cluster.begin_migration(slot, to);
            kill_at(0);
            cluster.move_keys(slot, to);
            kill_at(1);
            cluster.end_migration(slot, to);
            kill_at(2);
        });
    }
}

/// The node dies with the process, before anybody could look.
#[test]
fn a_waiter_ends_the_hold_of_a_killed_process_on_the_new_master_of_its_slot() {
    let cluster = Cluster::start(3, 1);
    let (urls, master) = (cluster.urls(), &cluster.nodes()[0]);
    let name = cluster.key_on(master, "lock");
    let mut holder = Holder::start("cluster", &urls, "plain", &name);
    await_replica(&cluster, master, &name);
    await_replica(&cluster, cluster.owner_of(&holder.record), &holder.record);
    let client = build(settings("cluster", &urls));
    waiters_get(&client, &[(name, "plain")], || {
        holder.process.stop();
        master.kill();
        holder.process.kill();
    });
}

/// `before` changes the replica, which becomes the master while the holder lives.
fn a_killed_holder_is_seen_after_a_fail_over(before: impl Fn(&Server, &Holder)) {
    let servers = Replicated::start(1, 3);
    let urls = servers.sentinel_urls();
    let client = build(settings("sentinel", &urls));
    let locks: Vec<_> = KINDS.map(|kind| (kind.to_owned(), kind)).into();
    let start = |(name, kind): &(String, &str)| Holder::start("sentinel", &urls, kind, name);
    let mut holders: Vec<_> = locks.iter().map(start).collect();
    let replica = servers.replicas()[0];
    for ((name, _), holder) in locks.iter().zip(&holders) {
        await_key(replica, name);
        await_key(replica, &holder.record);
        before(replica, holder);
    }
    waiters_get(&client, &locks, || {
        let new = servers.fail_over_and_settle();
        for holder in &mut holders {
            eventually("the record is there", || exists(new, &holder.record));
            holder.process.kill();
        }
    });
}

#[test]
fn a_killed_holder_of_any_kind_is_seen_after_a_fail_over() {
    a_killed_holder_is_seen_after_a_fail_over(|_, _| {});
}

#[test]
fn a_record_of_a_holder_that_the_new_master_lacks_is_written_again() {
    a_killed_holder_is_seen_after_a_fail_over(|replica, holder| {
        replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
        replica.ask::<()>(&["DEL", &holder.record]);
    });
}

#[test]
fn a_waiter_whose_grant_needs_a_replica_ends_the_hold_of_a_killed_process() {
    let servers = Replicated::start(1, 0);
    let urls = [servers.master().url()];
    let mut holder = Holder::start("single", &urls, "plain", "a");
    let client = build(settings("single", &urls).min_replicas(1, BOUND));
    waiters_get(&client, &[("a".to_owned(), "plain")], || holder.process.kill());
}

#[test]
fn the_red_lock_of_a_killed_process_passes_on_to_its_waiters() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let open = |url: &String| build(settings("single", std::slice::from_ref(url)));
    let lock = RedLock::new(urls.iter().map(open), "a");
    let mut holder = Holder::start("servers", &urls, "red", "a");
    assert!(lock.try_lock().expect("an answer").is_none(), "it is held");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.try_lock_for(BOUND).expect("an answer").is_some());
        holder.process.kill();
        assert!(in_time("the waiter ends", waiter), "the lock stays taken");
    });
}
