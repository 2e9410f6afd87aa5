//! `min_replicas`: what takes or prolongs a lock counts only if enough replicas have it.

use crate::harness::{
    Replicated, Server, eventually, eventually_some, exists, in_time, owner, pttl,
};
use leasehold::{Builder, Client, Events, MultiLock, RenewalFailed};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// How long replicas have. Long where they are well, short where they stand still.
const PATIENT: Duration = Duration::from_secs(20);
const BRIEF: Duration = Duration::from_secs(2);
/// Too little, but for one that needs nothing of a replica.
const NO_TIME: Duration = Duration::from_millis(50);

struct Pair {
    servers: Replicated,
}

impl Pair {
    /// A master with one replica.
    fn start() -> Pair {
        Pair { servers: Replicated::start(1, 0) }
    }

    fn master(&self) -> &Server {
        &self.servers.servers()[0]
    }

    fn replica(&self) -> &Server {
        &self.servers.servers()[1]
    }

    fn builder(&self, replicas: u32, timeout: Duration) -> Builder {
        let timeout = Client::builder().single(self.master().url()).min_replicas(replicas, timeout);
        timeout.response_timeout(MINUTE)
    }

    fn client(&self, replicas: u32, timeout: Duration) -> Client {
        self.builder(replicas, timeout).build().expect("the master is there")
    }
}

#[test]
fn what_a_replica_has_is_granted_and_the_wait_costs_no_round_trip_of_its_own() {
    let pair = Pair::start();
    let client = pair.client(1, PATIENT);
    // Until the server knows the scripts, each is asked for twice.
    let guard = client.lock("a").lock().expect("acknowledged");
    guard.extend(MINUTE).and_then(|()| guard.unlock()).expect("acknowledged");
    pair.master().reset_stats();
    for name in ["a", "b"] {
        let guard = client.lock(name).lock().expect("acknowledged");
        assert_eq!(owner(pair.replica(), name), owner(pair.master(), name), "before it is granted");
        guard.extend(MINUTE).expect("acknowledged");
        assert!(pttl(pair.replica(), name) > 30_000, "before it is extended");
        guard.unlock().expect("held");
    }
    let [waits, calls] = ["wait", "evalsha"].map(|command| pair.master().calls(command));
    assert_eq!((waits, calls), (4, 6), "a release waits for nobody");
    let off = pair.client(0, PATIENT);
    off.lock("a").lock().expect("free").unlock().expect("held");
    assert_eq!(pair.master().calls("wait"), waits, "it is off by default");
}

#[test]
fn a_lock_that_too_few_replicas_have_is_given_back() {
    let pair = Pair::start();
    for (replicas, stopped) in [(2, false), (1, true)] {
        if stopped {
            pair.replica().stop();
        }
        let client = pair.client(replicas, NO_TIME);
        let refused = |error: leasehold::Error| {
            assert!(error.is_not_replicated(), "{error:?}");
            assert!(error.to_string().contains(&format!("of {replicas}")), "{error}");
        };
        refused(client.lock("plain").lock().expect_err("too few have it"));
        refused(client.lock("timed").try_lock_for(MINUTE).expect_err("too few have it"));
        refused(client.lock("fixed").with_lease(MINUTE).lock().expect_err("too few have it"));
        refused(client.fenced_lock("fenced").lock_owned().expect_err("too few have it"));
        refused(client.fair_lock("fair").lock().expect_err("too few have it"));
        refused(client.rw_lock("both").read().expect_err("too few have it"));
        refused(client.rw_lock("both").write().expect_err("too few have it"));
        refused(client.spin_lock("spin").lock().expect_err("too few have it"));
        refused(client.lock("named").with_holder("me").lock().expect_err("too few have it"));
        let several = MultiLock::new([client.lock("one"), client.lock("two")]);
        refused(several.lock().expect_err("too few have them"));
        client.close();
        eventually("nothing is held", || {
            let mut left = pair.master().keys();
            left.retain(|key| !key.contains("token"));
            left.is_empty()
        });
    }
    pair.replica().resume();
    let guard = pair.client(1, PATIENT).lock("plain").lock().expect("the replica has it now");
    guard.unlock().expect("held");
}

#[test]
fn who_is_refused_waits_as_ever() {
    let pair = Pair::start();
    let builder = || pair.builder(1, PATIENT).poll_interval(MINUTE);
    let [one, two] = [builder(), builder()].map(|it| it.build().expect("the master is there"));
    let guard = one.lock("a").lock().expect("acknowledged");
    assert!(two.lock("a").try_lock().expect("an answer").is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| two.lock("a").lock().and_then(|guard| guard.unlock()));
        let channel = "redisson_lock__channel:{a}";
        eventually("it listens", || pair.master().numsub(channel) == 1);
        guard.unlock().expect("held");
        in_time("it is told", waits).expect("acknowledged");
    });
}

struct Failures(Sender<RenewalFailed>);

impl Events for Failures {
    fn renewal_failed(&self, event: &RenewalFailed) {
        // Nobody hears it when the test is over.
        let _ = self.0.send(event.clone());
    }
}

#[test]
fn a_renewal_that_too_few_replicas_have_does_not_count_and_frees_nothing() {
    let pair = Pair::start();
    let (sender, failures) = mpsc::channel();
    let lease = Duration::from_secs(15);
    let builder = pair.builder(1, BRIEF).watchdog_timeout(lease).events(Failures(sender));
    let client = builder.build().expect("the master is there");
    let guard = client.lock("a").lock().expect("acknowledged");
    pair.replica().stop();
    let failed = failures.recv_timeout(MINUTE).expect("the renewal is not acknowledged");
    assert!(failed.error.is_not_replicated(), "{failed:?}");
    assert!(guard.is_held() && guard.remaining() <= failed.remaining, "the deadline stays");
    assert!(exists(pair.master(), "a"), "nothing is freed while it is held");
    assert!(guard.wait_lost(MINUTE), "it ends as if nobody had renewed it");
    eventually("what the server kept for longer is freed", || !exists(pair.master(), "a"));
    drop(guard);
    pair.replica().resume();
    let guard = eventually_some("the replica has caught up", || client.lock("b").lock().ok());
    pair.replica().stop();
    let before = failures.recv_timeout(MINUTE).expect("another renewal fails").remaining;
    pair.replica().resume();
    eventually("a later one is acknowledged", || guard.remaining() > before);
    guard.unlock().expect("still held");
}

#[test]
fn an_extension_that_too_few_replicas_have_is_an_error_and_the_lock_is_kept() {
    let pair = Pair::start();
    let client = pair.client(1, BRIEF);
    let guard = client.lock("a").with_lease(MINUTE).lock().expect("acknowledged");
    pair.replica().stop();
    let error = guard.extend(MINUTE * 5).expect_err("too few have it");
    assert!(error.is_not_replicated(), "{error:?}");
    assert!(guard.is_held() && guard.remaining() <= MINUTE);
    guard.unlock().expect("still held");
    assert!(!exists(pair.master(), "a"));
}

#[test]
fn nobody_waits_for_the_replicas_of_others() {
    let pair = Pair::start();
    // Its connections: one stands still for the replica, which never comes; others are made.
    let client = pair.client(1, MINUTE);
    let held = client.lock("held").lock().expect("acknowledged");
    pair.replica().stop();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").lock().map(drop));
        eventually("it waits for the replica", || exists(pair.master(), "a"));
        for _ in 0..10 {
            assert!(client.lock("a").is_locked().expect("an answer"));
        }
        held.unlock().expect("an answer");
        let other = client.lock("b");
        assert!(!other.is_locked().expect("an answer"));
        assert!(!waits.is_finished(), "or it has proved nothing");
        pair.replica().resume();
        in_time("the replica comes", waits).expect("acknowledged");
    });
}

#[test]
fn many_threads_share_connections_and_waits() {
    let pair = Pair::start();
    let client = pair.builder(1, PATIENT).pool_size(2).build().expect("the master is there");
    thread::scope(|scope| {
        let workers: Vec<_> = (0..16)
            .map(|number| {
                let lock = client.lock(format!("lock:{number}"));
                scope.spawn(move || {
                    for turn in 0..50 {
                        let guard = lock.lock().expect("acknowledged");
                        match turn % 2 {
                            0 => drop(guard),
                            _ => guard.unlock().expect("held"),
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| in_time("the worker ends", worker));
    });
    eventually("nothing is held", || pair.master().keys().is_empty());
}

#[test]
fn where_one_may_not_wait_for_replicas_nothing_is_taken() {
    let pair = Pair::start();
    let client = pair.client(1, PATIENT);
    pair.master().ask::<()>(&["ACL", "SETUSER", "default", "-wait"]);
    let error = client.lock("a").lock().expect_err("nobody knows how many have it");
    assert!(error.is_server() && error.to_string().contains("NOPERM"), "{error}");
    eventually("it is given back", || !exists(pair.master(), "a"));
}

#[test]
fn a_connection_that_breaks_while_replicas_are_waited_for_costs_a_resend() {
    let pair = Pair::start();
    let client = pair.client(1, MINUTE);
    pair.replica().stop();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").lock().map(|guard| guard.unlock()));
        eventually("it waits for the replica", || exists(pair.master(), "a"));
        pair.master().client_kill_type("normal");
        eventually("it asks again", || pair.master().calls("evalsha") >= 2);
        pair.replica().resume();
        in_time("it is granted", waits).expect("acknowledged").expect("held");
    });
    assert!(!exists(pair.master(), "a"));
}
