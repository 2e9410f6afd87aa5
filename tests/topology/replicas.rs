//! `min_replicas`: acquiring or extending a lock counts only if enough replicas have the write.

use crate::harness::{
    Config, Replicated, Server, eventually, eventually_some, exists, in_time, owner, pttl,
};
use leasehold::{Audit, AuditPolicy, Builder, Client, Error, Events, MultiLock, RenewalFailed};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// The time-out for replicas that answer.
const PATIENT: Duration = Duration::from_secs(20);
/// The time-out for replicas that are stopped.
const BRIEF: Duration = Duration::from_secs(2);
/// A time-out for tests in which too few replicas answer.
const NO_TIME: Duration = Duration::from_millis(50);

struct Pair {
    servers: Replicated,
}

impl Pair {
    /// Starts a master with one replica.
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
        timeout.response_timeout(MINUTE).announce(false)
    }

    fn client(&self, replicas: u32, timeout: Duration) -> Client {
        self.builder(replicas, timeout).build().expect("the master is there")
    }
}

#[test]
fn a_lock_that_a_replica_has_is_granted_without_another_round_trip() {
    let pair = Pair::start();
    let client = pair.client(1, PATIENT);
    // The first call of each script is repeated, since the server does not know the script.
    let guard = client.lock("a").lock().expect("acknowledged");
    guard.extend(MINUTE).and_then(|()| guard.unlock()).expect("acknowledged");
    pair.master().reset_stats();
    for name in ["a", "b"] {
        let guard = client.lock(name).lock().expect("acknowledged");
        assert_eq!(
            owner(pair.replica(), name),
            owner(pair.master(), name),
            "the replica has the lock before the grant"
        );
        guard.extend(MINUTE).expect("acknowledged");
        assert!(pttl(pair.replica(), name) > 30_000, "the replica has the extension first");
        guard.unlock().expect("held");
    }
    let [waits, calls] = ["wait", "evalsha"].map(|command| pair.master().calls(command));
    assert_eq!((waits, calls), (4, 6), "a release waits for no replica");
    let off = pair.client(0, PATIENT);
    off.lock("a").lock().expect("free").unlock().expect("held");
    assert_eq!(pair.master().calls("wait"), waits, "0 replicas need no WAIT");
}

/// Asserts that no kind of lock or permit is granted.
fn every_kind_fails(client: &Client, refused: impl Fn(Error)) {
    refused(client.lock("plain").lock().expect_err("too few replicas"));
    refused(client.lock("timed").try_lock_for(MINUTE).expect_err("too few replicas"));
    refused(client.lock("fixed").with_lease(MINUTE).lock().expect_err("too few replicas"));
    refused(client.fenced_lock("fenced").lock_owned().expect_err("too few replicas"));
    refused(client.fair_lock("fair").lock().expect_err("too few replicas"));
    refused(client.rw_lock("both").read().expect_err("too few replicas"));
    refused(client.rw_lock("both").write().expect_err("too few replicas"));
    refused(client.spin_lock("spin").lock().expect_err("too few replicas"));
    refused(client.lock("named").with_holder("me").lock().expect_err("too few replicas"));
    let several = MultiLock::new([client.lock("one"), client.lock("two")]);
    refused(several.lock().expect_err("too few replicas"));
    let semaphore = client.semaphore("permits").with_permits(2);
    refused(semaphore.acquire().expect_err("too few replicas"));
    refused(client.once("once").begin().map(drop).expect_err("too few replicas"));
}

/// Closes the client, and blocks until the server has no holds.
fn nothing_is_held(client: Client, server: &Server) {
    client.close();
    eventually("nothing is held", || {
        let mut left = server.keys();
        left.retain(|key| !key.contains("token") && key != "permits");
        left.is_empty()
    });
    assert_eq!(server.ask::<i64>(&["GET", "permits"]), 2);
}

#[test]
fn a_lock_on_too_few_replicas_is_released() {
    let pair = Pair::start();
    for (replicas, stopped) in [(2, false), (1, true)] {
        if stopped {
            pair.replica().stop();
        }
        let client = pair.client(replicas, NO_TIME);
        let refused = |error: Error| {
            assert!(error.is_not_replicated(), "{error:?}");
            assert!(error.to_string().contains(&format!("of {replicas}")), "{error}");
        };
        every_kind_fails(&client, refused);
        nothing_is_held(client, pair.master());
    }
    pair.replica().resume();
    let guard = pair.client(1, PATIENT).lock("plain").lock().expect("the replica runs again");
    guard.unlock().expect("held");
}

/// The acquire has run when the server refuses the `WAIT` behind it.
#[test]
fn a_lock_whose_wait_for_replicas_is_forbidden_is_released() {
    let pair = Pair::start();
    pair.master().ask::<()>(&["ACL", "SETUSER", "default", "-wait"]);
    let client = pair.client(1, PATIENT);
    every_kind_fails(&client, |error| {
        assert!(error.is_not_replicated() && !error.is_retryable(), "{error:?}");
        assert_eq!(error.code(), Some("NOPERM"));
        assert!(error.to_string().contains("docs/permissions.md"), "{error}");
        assert!(error.server().is_some(), "{error}");
    });
    nothing_is_held(client, pair.master());
}

/// An operator ends the `WAIT` of a waiting call: the call asks again.
#[test]
fn a_waiting_call_survives_the_end_of_its_wait_for_replicas() {
    let pair = Pair::start();
    let (holder, client) = (pair.client(0, PATIENT), pair.client(1, MINUTE));
    let guard = holder.lock("a").lock().expect("it is free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").lock().and_then(|guard| guard.unlock()));
        let channel = "redisson_lock__channel:{a}";
        eventually("the waiter subscribes", || pair.master().numsub(channel) == 1);
        pair.replica().stop();
        guard.unlock().expect("held");
        let blocked = || {
            let mut peers = pair.master().clients().into_iter();
            peers.find(|peer| peer.cmd == "wait" && peer.flags.contains('b'))
        };
        let peer = eventually_some("the grant waits for the replica", blocked);
        let unblock = ["CLIENT", "UNBLOCK", &peer.id.to_string(), "ERROR"];
        assert_eq!(pair.master().ask::<i64>(&unblock), 1);
        pair.replica().resume();
        in_time("the waiter gets the lock", waits).expect("the replica answers again");
    });
}

#[test]
fn a_refused_caller_waits_for_a_message() {
    let pair = Pair::start();
    let builder = || pair.builder(1, PATIENT).poll_interval(MINUTE);
    let [one, two] = [builder(), builder()].map(|it| it.build().expect("the master is there"));
    let guard = one.lock("a").lock().expect("acknowledged");
    assert!(two.lock("a").try_lock().expect("an answer").is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| two.lock("a").lock().and_then(|guard| guard.unlock()));
        let channel = "redisson_lock__channel:{a}";
        eventually("the waiter subscribes", || pair.master().numsub(channel) == 1);
        guard.unlock().expect("held");
        in_time("the waiter gets the message", waits).expect("acknowledged");
    });
}

struct Failures(Sender<RenewalFailed>);

impl Events for Failures {
    fn renewal_failed(&self, event: &RenewalFailed) {
        // The test may have ended.
        let _ = self.0.send(event.clone());
    }
}

#[test]
fn a_renewal_on_too_few_replicas_neither_counts_nor_frees_the_lock() {
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
    assert!(exists(pair.master(), "a"), "the held lock is not freed");
    assert!(guard.wait_lost(MINUTE), "the hold ends at its old deadline");
    eventually("the longer lease on the server is freed", || !exists(pair.master(), "a"));
    drop(guard);
    pair.replica().resume();
    let guard = eventually_some("the replica has caught up", || client.lock("b").lock().ok());
    pair.replica().stop();
    let before = failures.recv_timeout(MINUTE).expect("another renewal fails").remaining;
    pair.replica().resume();
    eventually("a later renewal is acknowledged", || guard.remaining() > before);
    guard.unlock().expect("still held");
}

#[test]
fn an_extension_on_too_few_replicas_is_an_error_and_keeps_the_lock() {
    let pair = Pair::start();
    let client = pair.client(1, BRIEF);
    let guard = client.lock("a").with_lease(MINUTE).lock().expect("acknowledged");
    pair.replica().stop();
    let error = guard.extend(MINUTE * 5).expect_err("too few replicas");
    assert!(error.is_not_replicated(), "{error:?}");
    assert!(guard.is_held() && guard.remaining() <= MINUTE);
    guard.unlock().expect("still held");
    assert!(!exists(pair.master(), "a"));
}

#[test]
fn a_wait_for_replicas_delays_no_other_caller() {
    let pair = Pair::start();
    // One connection is blocked by the wait for the replica. Other calls open other connections.
    let client = pair.client(1, MINUTE);
    let held = client.lock("held").lock().expect("acknowledged");
    pair.replica().stop();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").lock().map(drop));
        eventually("the caller waits for the replica", || exists(pair.master(), "a"));
        for _ in 0..10 {
            assert!(client.lock("a").is_locked().expect("an answer"));
        }
        held.unlock().expect("an answer");
        let other = client.lock("b");
        assert!(!other.is_locked().expect("an answer"));
        assert!(!waits.is_finished(), "the caller still waits for the replica");
        pair.replica().resume();
        in_time("the replica acknowledges", waits).expect("acknowledged");
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
fn a_connection_that_breaks_during_a_wait_for_replicas_costs_a_resend() {
    let pair = Pair::start();
    let client = pair.client(1, MINUTE);
    pair.replica().stop();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").lock().map(|guard| guard.unlock()));
        eventually("the caller waits for the replica", || exists(pair.master(), "a"));
        pair.master().client_kill_type("normal");
        eventually("the caller asks again", || pair.master().calls("evalsha") >= 2);
        pair.replica().resume();
        in_time("the lock is granted", waits).expect("acknowledged").expect("held");
    });
    assert!(!exists(pair.master(), "a"));
}

/// Starts a master with a replica that accepts writes.
fn writable() -> Pair {
    let settings = |config: Config| config.line("replica-read-only no").line("appendonly yes");
    Pair { servers: Replicated::with(1, 0, settings) }
}

#[test]
fn a_replica_that_accepts_writes_grants_nothing_beside_its_master() {
    let pair = writable();
    let single = || Client::builder().single(pair.replica().url());
    let (sender, findings) = mpsc::channel();
    let client = single().events(Findings(sender)).build().expect("queries need the connection");
    let held = pair.client(0, NO_TIME).lock("held").with_lease(MINUTE).lock().expect("free");
    let refused = |error: leasehold::Error| {
        assert_eq!((error.code(), error.is_retryable()), (Some("READONLY"), true), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("role of replica") && text.contains("allow_replica"), "{text}");
        assert_eq!(error.server(), Some(pair.replica().addr().to_string()).as_deref());
    };
    refused(client.lock("a").try_lock().map(drop).expect_err("its master grants locks"));
    refused(client.lock("a").lock().map(drop).expect_err("its master grants locks"));
    refused(client.lock("a").with_holder("me").lock().map(drop).expect_err("as above"));
    refused(client.fair_lock("a").lock().map(drop).expect_err("as above"));
    refused(client.fenced_lock("a").lock().map(drop).expect_err("as above"));
    refused(client.queue_lock("a").lock().map(drop).expect_err("as above"));
    refused(client.spin_lock("a").lock().map(drop).expect_err("as above"));
    refused(client.rw_lock("a").read().map(drop).expect_err("as above"));
    refused(client.rw_lock("a").write().map(drop).expect_err("as above"));
    refused(client.election("a").campaign().map(drop).expect_err("as above"));
    refused(client.semaphore("a").with_permits(1).acquire().map(drop).expect_err("as above"));
    refused(client.once("a").begin().map(drop).expect_err("as above"));
    refused(client.plain_semaphore("a").add_permits(1).expect_err("as above"));
    refused(client.latch("a").try_set_count(1).map(drop).expect_err("as above"));
    let both = MultiLock::new([client.lock("a"), client.lock("b")]);
    refused(both.lock().map(drop).expect_err("as above"));
    eventually("the replica has the lock of its master", || exists(pair.replica(), "held"));
    assert!(client.lock("held").is_locked().expect("a query"));
    assert_eq!(client.lock("held").holders().expect("a query").len(), 1);
    assert!(client.lock("held").force_unlock().is_err(), "the master keeps the lock");
    let keys = pair.replica().keys();
    assert_eq!(
        keys.iter().filter(|key| !key.starts_with("leasehold_client")).count(),
        1,
        "{keys:?}"
    );
    eventually("the role is a finding", || {
        let is_role = |it: String| it.contains("is a replica of") && it.contains("accepts writes");
        findings.try_iter().any(is_role)
    });
    held.unlock().expect("held");

    let allowed = single().allow_replica(true).audit_policy(AuditPolicy::Refuse);
    let allowed = allowed.build().expect("the role is no finding");
    assert_eq!(allowed.audit().expect("the replica answers"), []);
    allowed.lock("a").lock().expect("the setting permits it").unlock().expect("held");
}

#[test]
fn a_replica_that_becomes_the_master_grants_at_once() {
    let pair = writable();
    let client = Client::builder().single(pair.replica().url()).pool_size(2).build();
    let client = client.expect("the replica answers");
    client.lock("a").try_lock().map(drop).expect_err("its master grants locks");
    pair.replica().ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    client.lock("a").try_lock().expect("a master").expect("free").unlock().expect("held");
}

/// Passes on the findings of the audit.
struct Findings(Sender<String>);

impl Events for Findings {
    fn audit(&self, event: &Audit) {
        // The test may have ended.
        let _ = self.0.send(event.finding.to_string());
    }
}
