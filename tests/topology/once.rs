//! Work that is done once, with replicas, Sentinel and Cluster: fail-overs before, during and after
//! a commit, and slots that move.

use crate::await_subscriber;
use crate::cluster::{await_replica, cut_off_replicas};
use crate::harness::bare::script;
use crate::harness::faults::{build, channel_of};
use crate::harness::replicated::MASTER;
use crate::harness::{
    Cluster, Direction, Flow, Members, Replicated, Server, eventually, eventually_some, exists,
    in_time, join, owner, pttl,
};
use crate::sentinel::{LateReply, await_key, delete_on};
use leasehold::{Begin, Builder, Client, Error, Once, OnceOutcome, OnceRun, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// A poll interval after which no test still waits.
const NEVER: Duration = Duration::from_secs(600);

/// The result of the work `a`.
const RESULT: &str = "leasehold_once:{a}";

/// Returns a run of work that nobody has done.
#[track_caller]
fn runs(once: &Once) -> OnceRun {
    match once.begin().expect("the servers answer") {
        Begin::Run(run) => run,
        Begin::Done(done) => panic!("it is done: {done:?}"),
    }
}

/// Starts a caller that gets the result of another one.
fn waiter(client: &Client, name: &str) -> JoinHandle<OnceOutcome> {
    let once = client.once(name);
    let run = move || once.run(|_| -> Result<Vec<u8>> { panic!("it is done") });
    thread::spawn(move || run().expect("a result"))
}

/// Asserts that callers of all clients get this result.
#[track_caller]
fn all_get(clients: &[&Client], name: &str, outcome: &OnceOutcome) {
    for client in clients {
        let once = client.once(name);
        let begun = once.begin().expect("the servers answer");
        assert!(matches!(&begun, Begin::Done(done) if done == outcome), "{begun:?}");
        assert_eq!(once.outcome().expect("an answer").as_ref(), Some(outcome));
    }
}

#[test]
fn a_run_its_waiters_and_its_result_survive_fail_overs() {
    let servers = Replicated::start(1, 3);
    let sentinels = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let [one, two] = [(); 2].map(|()| build(sentinels().poll_interval(NEVER)));
    let run = runs(&one.once("a"));
    let waiting = waiter(&two, "a");
    await_subscriber(servers.servers(), &channel_of("a"));
    await_key(servers.replicas()[0], "a");
    let new = servers.fail_over_and_settle();
    eventually("the waiter listens at the new master", || new.numsub(&channel_of("a")) == 1);
    assert!(!waiting.is_finished() && run.is_held());
    let outcome = run.commit("x").expect("the new master has the run");
    assert_eq!(join(waiting), outcome);
    await_key(servers.replicas()[0], RESULT);
    servers.fail_over_and_settle();
    all_get(&[&one, &two, &build(sentinels())], "a", &outcome);
}

/// A waiter begins at the new master, and the run of the old one commits nothing.
#[test]
fn a_run_that_the_new_master_lacks_commits_nothing() {
    for notices in [true, false] {
        let servers = Replicated::start(1, 3);
        let sentinels = || Client::builder().sentinel(MASTER, servers.sentinel_urls());
        let [one, two] = [(); 2].map(|()| build(sentinels()));
        let run = runs(&one.once("a"));
        delete_on(servers.replicas()[0], "a");
        let old = servers.master();
        old.kill();
        servers.await_master_other_than(old.port());
        let theirs = runs(&two.once("a"));
        assert!(theirs.token() > run.token());
        if notices {
            assert!(run.wait_lost(MINUTE / 4), "the loss comes before the deadline");
        }
        assert!(run.commit("old").is_err_and(|error| error.is_lost()));
        assert_eq!(one.once("a").outcome(), Ok(None));
        let outcome = theirs.commit("new").expect("held");
        all_get(&[&one, &two], "a", &outcome);
    }
}

/// What the new master has of a commit at the old one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    Result,
    /// It lacks the commit.
    Run,
    /// It lacks the run too.
    Nothing,
    RunOfAnother,
    ResultOfAnother,
}

const LEFT: [Left; 5] =
    [Left::Result, Left::Run, Left::Nothing, Left::RunOfAnother, Left::ResultOfAnother];

/// Returns the key of a result. Braces in the name determine the slot.
fn result_key(name: &str) -> String {
    if name.contains('{') {
        format!("leasehold_once:{name}")
    } else {
        format!("leasehold_once:{{{name}}}")
    }
}

/// The names of the keys of a run.
struct Keys {
    lock: String,
    result: String,
    owner: String,
}

impl Keys {
    /// `server` has the run.
    fn of(server: &Server, name: &str) -> Keys {
        Keys { lock: name.to_owned(), result: result_key(name), owner: owner(server, name) }
    }

    /// Changes a server that has the result.
    fn leave(&self, left: Left, server: &Server) {
        let hold = |owner: &str| {
            server.ask::<()>(&["HSET", &self.lock, owner, "1"]);
            server.ask::<()>(&["PEXPIRE", &self.lock, "600000"]);
        };
        if left != Left::Result {
            server.ask::<()>(&["DEL", &self.result]);
        }
        match left {
            Left::Result | Left::Nothing => {}
            Left::Run => hold(&self.owner),
            Left::RunOfAnother => hold("another"),
            Left::ResultOfAnother => {
                let fields = ["owner", "another", "token", "7", "at", "1", "value", "theirs"];
                server.ask::<()>(&[&["HSET", &*self.result], &fields[..]].concat());
            }
        }
    }

    /// Asserts that a commit has told what this server has.
    #[track_caller]
    fn has_found(&self, left: Left, committed: Result<OnceOutcome>, server: &Server) {
        let has: Option<String> = server.ask(&["HGET", &self.result, "value"]);
        match left {
            Left::Result | Left::Run => {
                committed.unwrap_or_else(|error| panic!("{left:?}: {error:?}"));
                assert_eq!(has.as_deref(), Some("mine"), "{left:?}");
                assert!(!exists(server, &self.lock), "{left:?}: the commit ends the run");
            }
            Left::Nothing | Left::RunOfAnother | Left::ResultOfAnother => {
                let error = committed.expect_err("the new master has no such run");
                assert!(error.is_lost(), "{left:?}: {error:?}");
                let theirs = (left == Left::ResultOfAnother).then_some("theirs");
                assert_eq!(has.as_deref(), theirs, "{left:?}");
                assert_eq!(exists(server, &self.lock), left == Left::RunOfAnother, "{left:?}");
            }
        }
    }
}

/// The reply of the old master comes when the client uses the new one.
#[test]
fn a_commit_without_a_reply_before_a_fail_over_finds_what_the_new_master_has() {
    for left in LEFT {
        let late = LateReply::start(MINUTE / 2);
        let run = runs(&late.client.once("a"));
        let commit = script("once_commit").source();
        let digest: String = late.servers.master().ask(&["SCRIPT", "LOAD", &commit]);
        let keys = Keys::of(late.servers.master(), "a");
        let lose = |replica: &Server| {
            await_key(replica, RESULT);
            keys.leave(left, replica);
        };
        let follow = |new: &Server| late.await_renewal(new);
        let committed = late.answer_late(&digest, || run.commit("mine"), lose, follow);
        keys.has_found(left, committed, late.servers.master());
    }
}

/// As above, in a cluster. The old node replies, as a replica, after it was replaced; or it is
/// killed.
fn a_commit_finds_what_the_new_node_has(left: Left, is_killed: bool) {
    let members = Members::default();
    let cluster = Cluster::with(3, 1, |config| config.gated(&members));
    let settings = Client::builder().cluster(cluster.urls()).response_timeout(MINUTE);
    let client = build(settings.watchdog_timeout(NEVER));
    let old = &cluster.nodes()[0];
    let kept = cluster.key_on(old, "work");
    let name = format!("{{{kept}}}");
    let guard = client.lock(&kept).lock().expect("free");
    old.ask::<()>(&["PEXPIRE", &kept, "300000"]);
    await_replica(&cluster, old, &kept);
    // The node knows the script.
    runs(&client.once(format!("{name}:b"))).commit("b").expect("held");
    let run = runs(&client.once(&name));
    let keys = Keys::of(old, &name);
    let way = old.gate().front();
    way.on_request(keys.result.as_bytes(), Direction::Replies, Flow::Hold);
    thread::scope(|scope| {
        let commits = scope.spawn(|| run.commit("mine"));
        way.wait_until("the old node answers", |stats| stats.replies.held > 0);
        await_replica(&cluster, old, &keys.result);
        let new = cluster.replica_of(old);
        if is_killed {
            old.kill();
            eventually("the replica becomes the master", || new.says("role:master"));
        } else {
            cluster.fail_over(new);
        }
        keys.leave(left, new);
        eventually("the hold is renewed at the new node", || pttl(new, &kept) > 500_000);
        if !is_killed {
            way.release_held();
        }
        keys.has_found(left, in_time("the commit ends", commits), new);
    });
    guard.unlock().expect("still held");
}

#[test]
fn a_commit_without_a_reply_before_its_node_is_replaced_finds_what_the_new_node_has() {
    for left in LEFT {
        a_commit_finds_what_the_new_node_has(left, false);
    }
}

#[test]
fn a_commit_whose_node_dies_before_the_reply_finds_what_the_new_node_has() {
    a_commit_finds_what_the_new_node_has(Left::Result, true);
}

/// Replicas have the first result and the first run only.
#[test]
fn a_fail_over_of_a_node_keeps_what_is_replicated_and_reports_other_runs_lost() {
    let cluster = Cluster::start(3, 1);
    let [one, two] = [(); 2].map(|()| build(Client::builder().cluster(cluster.urls())));
    let master = &cluster.nodes()[0];
    let name = cluster.key_on(master, "work");
    let [done, kept, lost] = ["done", "kept", "lost"].map(|it| format!("{{{name}}}:{it}"));
    let outcome = runs(&one.once(&done)).commit("x").expect("held");
    let kept_run = runs(&one.once(&kept));
    await_replica(&cluster, master, &result_key(&done));
    await_replica(&cluster, master, &kept);
    cut_off_replicas(master);
    let lost_run = runs(&one.once(&lost));
    master.kill();
    // The first request after the death may get no answer.
    let theirs = eventually_some("another caller begins", || two.once(&lost).begin().ok());
    let Begin::Run(theirs) = theirs else { panic!("nobody has committed: {theirs:?}") };
    assert!(lost_run.commit("late").is_err_and(|error| error.is_lost()));
    let theirs = theirs.commit("right").expect("held");
    let kept_outcome = kept_run.commit("y").expect("the new node has the run");
    for (name, outcome) in [(&done, outcome), (&kept, kept_outcome), (&lost, theirs)] {
        all_get(&[&one, &two], name, &outcome);
    }
}

fn of_cluster(cluster: &Cluster) -> Builder {
    Client::builder().cluster(cluster.urls()).response_timeout(MINUTE)
}

/// The keys of the work are on both nodes, or not there yet: the commit and another caller wait.
#[test]
fn a_run_its_waiters_and_its_result_move_with_the_slot() {
    let cluster = Cluster::start(3, 0);
    let [one, two, three] = [(); 3].map(|()| build(of_cluster(&cluster).poll_interval(NEVER)));
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let name = cluster.key_on(from, "work");
    let slot = cluster.slot_of(&name);
    let run = runs(&one.once(&name));
    let waiting = waiter(&two, &name);
    await_subscriber(cluster.nodes(), &channel_of(&name));
    cluster.begin_migration(slot, to);
    cluster.move_keys(slot, to);
    let refusals = |node: &Server| {
        let counts = node.info("errorstats");
        counts.keys().filter(|it| it.ends_with("TRYAGAIN") || it.ends_with("_ASK")).count()
    };
    let commits = thread::spawn(move || run.commit("x"));
    let late = waiter(&three, &name);
    eventually("the nodes refuse calls", || refusals(from) > 0 && refusals(to) > 0);
    assert!(!commits.is_finished() && !late.is_finished(), "the slot has not moved");
    cluster.end_migration(slot, to);
    let outcome = join(commits).expect("held");
    assert_eq!([join(waiting), join(late)], [outcome.clone(), outcome.clone()]);
    cluster.migrate(slot, &cluster.nodes()[2]);
    all_get(&[&one, &two, &three], &name, &outcome);
}

#[test]
fn work_runs_once_throughout_a_resharding() {
    const WORKERS: usize = 6;
    let cluster = Cluster::start(3, 0);
    let clients = [(); 2].map(|()| build(of_cluster(&cluster)));
    let name = cluster.key_on(&cluster.nodes()[0], "work");
    let (slot, done) = (cluster.slot_of(&name), AtomicBool::new(false));
    // The number of the work that nobody has begun yet, and that of all runs.
    let (next, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let work = |client: &Client| {
            let mut key = 0;
            while !done.load(Ordering::SeqCst) || key < next.load(Ordering::SeqCst) {
                let once = client.once(format!("{{{name}}}:{key}"));
                let outcome = once.run(|_| {
                    assert_eq!(next.fetch_max(key + 1, Ordering::SeqCst), key, "it runs twice");
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Error>(key.to_string().into_bytes())
                });
                assert_eq!(outcome.expect("an answer").value(), key.to_string().as_bytes());
                key += 1;
            }
            key
        };
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let client = &clients[number % clients.len()];
                scope.spawn(move || work(client))
            })
            .collect();
        for turn in 0..8 {
            cluster.migrate(slot, &cluster.nodes()[(turn + 1) % 3]);
        }
        done.store(true, Ordering::SeqCst);
        for worker in workers {
            assert!(in_time("the worker ends", worker) > 0);
        }
    });
    assert_eq!(ran.into_inner(), next.into_inner());
}

/// Only the result is not acknowledged: it stands, and the error says so.
#[test]
fn a_commit_on_too_few_replicas_is_an_error_and_the_result_stands() {
    let servers = Replicated::start(1, 0);
    let (master, replica) = (&servers.servers()[0], &servers.servers()[1]);
    let client = |timeout| {
        let builder = Client::builder().single(master.url()).min_replicas(1, timeout);
        build(builder.response_timeout(MINUTE).announce(false))
    };
    let patient = client(MINUTE / 3);
    let outcome = runs(&patient.once("b")).commit("acknowledged").expect("the replica answers");
    assert!(exists(replica, "leasehold_once:{b}"), "before the commit returns");
    all_get(&[&patient], "b", &outcome);

    let hasty = client(Duration::from_secs(2));
    let run = runs(&hasty.once("a"));
    replica.stop();
    let error = run.commit("x").expect_err("the replica is silent");
    assert!(error.is_not_replicated() && error.lock_name() == Some("a"), "{error:?}");
    assert!(!exists(master, "a"), "the run has ended");
    let outcome = patient.once("a").outcome().expect("an answer").expect("it stands");
    assert_eq!(outcome.value(), b"x");
    all_get(&[&hasty, &patient], "a", &outcome);
    replica.resume();
    await_key(replica, RESULT);
}

#[test]
fn replicas_of_the_right_node_acknowledge_a_commit() {
    let cluster = Cluster::start(3, 1);
    let client = build(of_cluster(&cluster).min_replicas(1, MINUTE / 3));
    for node in &cluster.nodes()[..3] {
        let name = cluster.key_on(node, "work");
        let run = runs(&client.once(&name));
        let waits = node.calls("wait");
        run.commit("x").expect("acknowledged");
        assert!(node.calls("wait") > waits);
    }
}
