//! Redis Sentinel: clients find the master, also after fail-overs. Silent, outdated or wrong
//! sentinels cost only time.

use crate::harness::bare::script;
use crate::harness::faults::Digests;
use crate::harness::ports::free_port;
use crate::harness::replicated::MASTER;
use crate::harness::{
    Direction, Flow, Impostor, Members, Proxy, Replicated, Server, eventually, exists, in_time,
    owner, pttl,
};
use leasehold::{Builder, Client, Events, Lost, LostReason, MultiLock, OwnedGuard};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn builder(servers: &Replicated) -> Builder {
    Client::builder().sentinel(MASTER, servers.sentinel_urls())
}

fn client(servers: &Replicated) -> Client {
    builder(servers).build().expect("there is a master")
}

/// Returns the number of a server's connections to clients of leasehold.
fn connections(server: &Server) -> usize {
    server.clients().iter().filter(|peer| peer.name.starts_with("leasehold:")).count()
}

/// Takes and releases a lock. Returns whether the client got the lock.
fn can_take(client: &Client, name: &str) -> bool {
    client.lock(name).try_lock().is_ok_and(|guard| guard.is_some())
}

/// Makes another owner hold a lock for ten minutes.
fn hold_for_another(server: &Server, name: &str) {
    server.ask::<()>(&["HSET", name, "another", "1"]);
    server.ask::<()>(&["PEXPIRE", name, "600000"]);
}

/// Deletes a key on a replica only.
///
/// A fail-over then loses the acquisition, or releases the lock without a message.
pub(crate) fn delete_on(replica: &Server, name: &str) {
    await_key(replica, name);
    replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.ask::<()>(&["DEL", name]);
}

/// Blocks until the replica has the key, which may take a moment.
pub(crate) fn await_key(replica: &Server, name: &str) {
    eventually("the replica has the key", || exists(replica, name));
}

struct Losses(Sender<Lost>);

impl Events for Losses {
    fn lost(&self, event: &Lost) {
        // The test may have ended.
        let _ = self.0.send(event.clone());
    }
}

fn losses() -> (Losses, Receiver<Lost>) {
    let (sender, losses) = mpsc::channel();
    (Losses(sender), losses)
}

#[test]
fn locks_are_on_the_master_and_waiters_get_messages() {
    let servers = Replicated::start(1, 3);
    let quiet = || builder(&servers).poll_interval(MINUTE).build().expect("there is a master");
    let (holder, waiter) = (quiet(), quiet());
    let guard = holder.lock("a").lock().expect("free");
    assert!(owner(servers.master(), "a").starts_with(&holder.id().to_string()));
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").lock().and_then(|guard| guard.unlock()));
        let channel = "redisson_lock__channel:{a}";
        eventually("the waiter subscribes", || servers.master().numsub(channel) == 1);
        guard.unlock().expect("held");
        in_time("the waiter gets the message", waits).expect("a lock");
    });
    let replica = servers.replicas()[0];
    assert_eq!(connections(replica), 0);
    drop((holder, waiter));
    let gone = |server: &Server| connections(server) == 0;
    eventually("all connections close", || {
        gone(servers.master()) && servers.sentinels().iter().all(gone)
    });
}

#[test]
fn a_hold_outlives_a_planned_fail_over_and_is_renewed_at_once() {
    let servers = Replicated::start(1, 3);
    let client = client(&servers);
    let guard = client.lock("a").lock().expect("free");
    let (old, field) = (servers.master().port(), owner(servers.master(), "a"));
    // No renewal is due for a long time, so a longer lease proves a renewal.
    servers.master().ask::<()>(&["PEXPIRE", "a", "20000"]);
    await_key(servers.replicas()[0], "a");
    let new = servers.fail_over();
    eventually("the hold is renewed at the new master", || pttl(new, "a") > 25_000);
    assert_eq!(owner(new, "a"), field);
    guard.unlock().expect("still held");
    assert!(!exists(new, "a"));
    // A master that becomes a replica closes its connections, those of this test too.
    eventually("the old master is a replica", || servers.server_at(old).says("role:slave"));
    eventually("no connection to the old master is left", || {
        connections(servers.server_at(old)) == 0
    });
    client.lock("b").lock().expect("free").unlock().expect("held");
    assert_eq!(connections(servers.server_at(old)), 0, "no connection to the old master is opened");
}

#[test]
fn a_hold_that_the_new_master_lacks_is_lost_at_once() {
    let servers = Replicated::start(1, 3);
    let (events, losses) = losses();
    let client = builder(&servers).events(events).build().expect("there is a master");
    let guards = [client.lock("a"), client.lock("b").with_lease(MINUTE * 10)]
        .map(|lock| lock.lock_owned().expect("free"));
    let kept = client.lock("c").with_lease(MINUTE * 10).lock_owned().expect("free");
    ["a", "b"].iter().for_each(|name| delete_on(servers.replicas()[0], name));
    await_key(servers.replicas()[0], "c");
    let old = servers.master();
    old.kill();
    servers.await_master_other_than(old.port());
    let lost = || losses.recv_timeout(SECOND * 20).expect("the loss comes before the deadline");
    let lost = [lost(), lost()].map(|lost| (lost.name.to_string(), lost.reason));
    assert!(["a", "b"].iter().all(|it| lost.contains(&(it.to_string(), LostReason::Gone))));
    assert!(guards.iter().all(|guard| guard.check().is_err_and(|error| error.is_lost())));
    kept.unlock().expect("the new master has the lock");
}

#[test]
fn a_waiter_asks_the_new_master_at_once() {
    let servers = Replicated::start(1, 3);
    hold_for_another(servers.master(), "a");
    // Neither a message nor a poll makes the waiter ask.
    let client = builder(&servers).poll_interval(MINUTE * 10).build().expect("there is a master");
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.lock("a").lock().and_then(|guard| guard.unlock()));
        let channel = "redisson_lock__channel:{a}";
        eventually("the waiter subscribes", || servers.master().numsub(channel) == 1);
        delete_on(servers.replicas()[0], "a");
        let old = servers.master();
        old.kill();
        servers.await_master_other_than(old.port());
        in_time("the waiter gets the lock", waits).expect("a lock");
    });
}

#[test]
fn a_client_leaves_a_stopped_master_although_its_connections_are_open() {
    let servers = Replicated::start(1, 3);
    let client = builder(&servers).response_timeout(SECOND * 2).build().expect("a master");
    let guard = client.lock("held").lock().expect("free");
    thread::scope(|scope| {
        hold_for_another(servers.master(), "a");
        await_key(servers.replicas()[0], "a");
        let lock = client.lock("a");
        let waits = scope.spawn(move || lock.lock().and_then(|guard| guard.unlock()));
        let channel = "redisson_lock__channel:{a}";
        eventually("the waiter subscribes", || servers.master().numsub(channel) == 1);
        let old = servers.master();
        old.stop();
        let new = servers.await_master_other_than(old.port());
        eventually("another lock is taken at the new master", || can_take(&client, "b"));
        eventually("the listener subscribes at the new master", || new.numsub(channel) == 1);
        new.ask::<()>(&["DEL", "a"]);
        new.ask::<()>(&["PUBLISH", channel, "0"]);
        in_time("the waiter gets the message there", waits).expect("a lock");
        guard.unlock().expect("still held");
        old.resume();
        eventually("the old master becomes a replica", || old.says("role:slave"));
        eventually("no connection to the old master is left", || connections(old) == 0);
    });
}

#[test]
fn a_stopped_sentinel_costs_only_time_outs() {
    let servers = Replicated::start(1, 3);
    servers.sentinels()[0].stop();
    let brief = SECOND / 2;
    let client = builder(&servers).response_timeout(brief).build().expect("there is a master");
    client.lock("a").lock().expect("free").unlock().expect("held");
    servers.sentinels()[1].kill();
    servers.master().client_kill_type("normal");
    client.lock("a").lock().expect("the third sentinel knows the master").unlock().expect("held");
    servers.sentinels()[2].kill();
    let error = builder(&servers).response_timeout(brief).build().expect_err("no sentinel answers");
    assert!(error.is_timeout(), "{error:?}");
}

/// Returns the replies of a sentinel that announces this master.
fn announcing(port: u16, epoch: impl Into<Option<u64>>) -> impl Fn(&[String]) -> Option<Vec<u8>> {
    let hello = b"%2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n".to_vec();
    let port = port.to_string();
    let text = |head: &str, texts: &[&str]| {
        let texts = texts.iter().map(|text| format!("${}\r\n{text}\r\n", text.len()));
        format!("{head}\r\n{}", texts.collect::<String>()).into_bytes()
    };
    let master = match epoch.into() {
        Some(epoch) => text("%1", &["config-epoch", &epoch.to_string()]),
        None => text("%1", &["port", &port]),
    };
    let address = text("*2", &["127.0.0.1", &port]);
    move |words| match words[0].as_str() {
        "HELLO" => Some(hello.clone()),
        "SENTINEL" if words[1] == "MASTER" => Some(master.clone()),
        "SENTINEL" => Some(address.clone()),
        _ => Some(Vec::new()),
    }
}

/// Starts a sentinel that announces this master, and counts the questions for it.
fn counting(port: u16) -> (Impostor, Arc<AtomicUsize>) {
    let (reply, asked) = (announcing(port, 0), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&asked);
    let sentinel = Impostor::answering(move |words| {
        counted.fetch_add(usize::from(words.get(1).is_some_and(|it| it == "MASTER")), Relaxed);
        reply(words)
    });
    (sentinel, asked)
}

#[test]
fn a_sentinel_is_watched_over_one_connection() {
    let master = Server::start();
    let (sentinel, asked) = counting(master.port());
    let builder = Client::builder().sentinel(MASTER, [sentinel.url()]);
    let _client = builder.build().expect("there is a master");
    // Each connection to the master needs one question, over a separate connection.
    let at_first = (asked.load(Relaxed), sentinel.accepted());
    eventually("the sentinel is asked repeatedly", || asked.load(Relaxed) >= at_first.0 + 8);
    assert!(sentinel.accepted() <= at_first.1 + 3, "{} connections", sentinel.accepted());
}

#[test]
fn a_sentinel_that_closes_connections_is_connected_to_with_growing_pauses() {
    let master = Server::start();
    let (sentinel, _) = counting(master.port());
    let closing = Impostor::answering(|_| None);
    let urls = [&sentinel, &closing].map(Impostor::url);
    let client = Client::builder().sentinel(MASTER, urls).build().expect("there is a master");
    thread::sleep(SECOND * 12);
    drop(client);
    assert!((1..=6).contains(&closing.accepted()), "{} connections", closing.accepted());
}

#[test]
fn another_sentinel_is_asked_while_one_is_silent() {
    let master = Server::start();
    let (sentinel, _) = counting(master.port());
    let silent = Impostor::always("");
    let urls = [&silent, &sentinel].map(Impostor::url);
    thread::scope(|scope| {
        // A response time-out longer than the test waits.
        let open = || Client::builder().sentinel(MASTER, urls).response_timeout(MINUTE).build();
        let client = in_time("the other sentinel is asked", scope.spawn(open)).expect("a master");
        let locks = scope.spawn(move || client.lock("a").lock().and_then(|guard| guard.unlock()));
        in_time("the client locks at the master", locks).expect("free");
    });
    assert!(silent.accepted() > 0, "the silent sentinel is asked first");
}

#[test]
fn a_slow_sentinel_gets_the_whole_time_out_if_no_other_knows_the_master() {
    let master = Server::start();
    let (sentinel, _) = counting(master.port());
    let slow = Proxy::start(sentinel.addr());
    // More than an eighth of the response time-out.
    slow.delay(Direction::Replies, SECOND / 2);
    let builder = Client::builder().sentinel(MASTER, [slow.url()]).response_timeout(SECOND * 3);
    drop(builder.build().expect("the sentinel answers in time"));
}

#[test]
fn a_sentinel_that_lies_is_not_believed() {
    let servers = Replicated::start(1, 1);
    let replica = servers.replicas()[0].port();
    let dead = free_port();
    let rubbish = Impostor::always("*1\r\n$1\r\nx\r\n");
    let liars = [
        Impostor::answering(announcing(replica, 0)),
        Impostor::answering(announcing(dead, 7)),
        Impostor::answering(announcing(replica, u64::MAX)),
        rubbish,
    ];
    let mut urls: Vec<_> = liars.iter().map(Impostor::url).collect();
    urls.extend(servers.sentinel_urls());
    let client = Client::builder()
        .sentinel(MASTER, urls)
        .build()
        .expect("one sentinel announces the master");
    let guard = client.lock("a").lock().expect("free");
    assert!(exists(servers.master(), "a"));
    for _ in 0..3 {
        servers.master().client_kill_type("normal");
        client.lock("b").lock().expect("free").unlock().expect("held");
    }
    guard.unlock().expect("still held");
}

#[test]
fn an_outdated_sentinel_does_not_bring_the_old_master_back() {
    let servers = Replicated::start(1, 3);
    let client = builder(&servers).response_timeout(SECOND / 2).build().expect("a master");
    client.lock("a").lock().expect("free").unlock().expect("held");
    let (behind, rest) = servers.sentinels().split_first().expect("three");
    behind.stop();
    let old = servers.master();
    old.kill();
    let new = servers.await_master_other_than(old.port());
    eventually("the client uses the new master", || can_take(&client, "b"));
    // Only one sentinel answers, and announces the old master, which still reports that it is a
    // master.
    rest.iter().for_each(Server::stop);
    old.restart();
    behind.resume();
    assert!(old.says("role:master"));
    new.client_kill_type("normal");
    new.stop();
    let asked = client.lock("c").try_lock();
    assert!(asked.as_ref().is_err_and(|error| error.is_timeout()), "{asked:?}");
    assert_eq!((old.keys(), connections(old)), (Vec::new(), 0));
    new.resume();
    rest.iter().for_each(Server::resume);
    eventually("the client uses the new master again", || can_take(&client, "c"));
}

#[test]
fn servers_and_sentinels_have_separate_users() {
    let servers = Replicated::with(1, 1, |config| config.password("pass-word"));
    let error = builder(&servers).build().expect_err("the master wants a password");
    assert!(error.is_server() && error.to_string().contains("NOAUTH"), "{error}");
    assert!(error.to_string().contains("Builder::login"), "{error}");
    let wrong = builder(&servers).login("default", "wrong").build().expect_err("as above");
    assert_eq!(wrong.code(), Some("WRONGPASS"));
    assert!(wrong.to_string().contains("password of Builder::login"), "{wrong}");
    let urls = servers.sentinel_urls().into_iter().map(|url| format!("{url}2"));
    let built = Client::builder().sentinel(MASTER, urls).login("default", "pass-word").build();
    let client = built.expect("the right password");
    let guard = client.lock("a").lock().expect("free");
    let mut admin = servers.master().connection();
    redis::cmd("SELECT").arg(2).exec(&mut admin).expect("a database");
    let exists: bool = redis::cmd("EXISTS").arg("a").query(&mut admin).expect("an answer");
    assert!(exists, "the lock is in the database of the URL");
    guard.unlock().expect("held");
}

#[test]
fn settings_that_cannot_work_are_errors_at_once() {
    let none = Client::builder().sentinel(MASTER, [""; 0]).build();
    assert!(none.is_err_and(|error| error.is_configuration()));
    let nameless = Client::builder().sentinel("", ["redis://127.0.0.1:1/"]).build();
    assert!(nameless.is_err_and(|error| error.is_configuration()));
    let absent = format!("redis://127.0.0.1:{}/", free_port());
    let absent = Client::builder().sentinel(MASTER, [absent]).build();
    assert!(absent.is_err_and(|error| error.is_connection()));
    let servers = Replicated::start(0, 1);
    let unknown = Client::builder().sentinel("unknown", servers.sentinel_urls()).build();
    let error = unknown.expect_err("no sentinel knows the name");
    assert!(error.to_string().contains("No such master"), "{error}");
}

#[test]
fn no_client_goes_back_to_the_old_master_while_a_replica_is_slow_to_follow() {
    let servers = Replicated::start(2, 3);
    for sentinel in servers.sentinels() {
        sentinel.ask::<()>(&["SENTINEL", "SET", MASTER, "failover-timeout", "60000"]);
    }
    // Until this replica follows, the sentinel that leads the fail-over announces the old master.
    let late = servers.replicas()[1];
    late.ask::<()>(&["CONFIG", "SET", "replica-priority", "200"]);
    late.ask::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
    let urls = servers.sentinel_urls();
    let first = client(&servers);
    let second = Client::builder().sentinel(MASTER, urls.into_iter().rev()).build();
    let second = second.expect("there is a master");
    let leader = &servers.sentinels()[0];
    let old = servers.master().port();
    eventually("the leader knows of the priority", || {
        leader.try_ask::<()>(&["SENTINEL", "FAILOVER", MASTER]).is_some()
    });
    servers.await_master_other_than(old);
    eventually("both clients use the new master", || {
        [&first, &second].iter().all(|client| {
            let taken = client.lock("x").lock().and_then(|guard| guard.unlock());
            taken.is_ok() && connections(servers.server_at(old)) == 0
        })
    });
    for _ in 0..3 {
        for server in servers.servers() {
            server.client_kill_type("normal");
        }
        let held = first.lock("y").lock_owned().expect("free");
        assert!(second.lock("y").try_lock().expect("an answer").is_none(), "two hold the lock");
        held.unlock().expect("held");
    }
}

/// A master whose reply arrives after a fail-over that lost the write.
pub(crate) struct LateReply {
    pub(crate) servers: Replicated,
    pub(crate) client: Client,
    digests: Digests,
    /// A hold that is renewed at the new master as soon as the client follows.
    kept: OwnedGuard,
}

impl LateReply {
    /// `response` is the response time-out of the client.
    pub(crate) fn start(response: Duration) -> LateReply {
        let servers = Replicated::with(1, 3, |config| config.gated(&Members::default()));
        let client = builder(&servers).response_timeout(response).watchdog_timeout(MINUTE * 10);
        let client = client.build().expect("there is a master");
        let (kept, digests) = (client.lock("kept").lock_owned(), Digests::of(servers.master()));
        let kept = kept.expect("free");
        servers.master().ask::<()>(&["PEXPIRE", "kept", "300000"]);
        LateReply { servers, client, digests, kept }
    }

    pub(crate) fn replica(&self) -> &Server {
        let replica = self.servers.replicas()[0];
        replica.ask::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
        replica
    }

    /// Runs `ask`, which calls this script on the old master, and returns its result.
    ///
    /// Calls `lose` with the replica after the script ran, and `change` with the new master before
    /// the reply of the old master arrives.
    pub(crate) fn answer_late<T: Send>(
        &self,
        script: &str,
        ask: impl FnOnce() -> T + Send,
        lose: impl FnOnce(&Server),
        change: impl FnOnce(&Server),
    ) -> T {
        let (old, replica) = (self.servers.master(), self.replica());
        await_key(replica, "kept");
        let way = old.gate().front();
        way.on_request(script.as_bytes(), Direction::Replies, Flow::Hold);
        thread::scope(|scope| {
            let asks = scope.spawn(ask);
            way.wait_until("the old master answers", |stats| stats.replies.held > 0);
            lose(replica);
            old.stop();
            let new = self.servers.await_master_other_than(old.port());
            change(new);
            way.release_held();
            let outcome = in_time("the call ends", asks);
            old.resume();
            outcome
        })
    }

    pub(crate) fn await_renewal(&self, new: &Server) {
        eventually("the hold is renewed at the new master", || pttl(new, "kept") > 500_000);
    }
}

#[test]
fn a_grant_of_the_old_master_is_not_accepted_after_the_fail_over() {
    for together in [false, true] {
        let late = LateReply::start(MINUTE / 2);
        let locks = ["a", "b"].map(|name| late.client.lock(name));
        let digest = if together {
            let script = script("multi_acquire").source();
            late.servers.master().ask(&["SCRIPT", "LOAD", &script])
        } else {
            late.digests.acquire.clone()
        };
        let ask = || {
            if together {
                MultiLock::new(locks.clone()).try_lock_owned().map(|guard| guard.is_some())
            } else {
                locks[0].try_lock_owned().map(|guard| guard.is_some())
            }
        };
        let change = |new: &Server| {
            late.await_renewal(new);
            hold_for_another(new, "a");
        };
        let granted = late.answer_late(&digest, ask, |replica| delete_on(replica, "a"), change);
        assert!(
            !granted.expect("the new master answers"),
            "two hold the lock (together: {together})"
        );
        assert!(late.kept.is_held());
    }
}

#[test]
fn a_grant_of_the_old_master_is_asked_for_again_at_the_new() {
    let late = LateReply::start(MINUTE / 2);
    let lock = late.client.lock("a");
    let change = |new: &Server| late.await_renewal(new);
    let ask = || lock.try_lock_owned();
    let acquire = &late.digests.acquire;
    let guard = late.answer_late(acquire, ask, |replica| delete_on(replica, "a"), change);
    let guard = guard.expect("the new master answers").expect("the lock is free there");
    assert!(owner(late.servers.master(), "a").starts_with(&late.client.id().to_string()));
    guard.unlock().expect("held");
}

#[test]
fn an_extension_of_the_old_master_is_asked_for_again_at_the_new() {
    let late = LateReply::start(MINUTE / 2);
    let long = MINUTE * 60;
    let lose = |replica: &Server| {
        eventually("the replica has the extension", || pttl(replica, "kept") > 3_000_000);
        replica.ask::<()>(&["PEXPIRE", "kept", "300000"]);
    };
    let (renew, extend) = (&late.digests.renew, || late.kept.extend(long));
    let outcome = late.answer_late(renew, extend, lose, |new| late.await_renewal(new));
    outcome.expect("the new master extends the lease");
    assert!(
        pttl(late.servers.master(), "kept") > 3_000_000,
        "the new master has the extended lease"
    );
}

#[test]
fn a_loss_reported_by_the_old_master_is_not_believed_after_the_fail_over() {
    let late = LateReply::start(SECOND * 12);
    // A request to the old master may delay the change to the new master by the response time-out.
    let (old, replica) = (late.servers.master(), late.replica());
    let lock = late.client.lock("a");
    let field = std::sync::OnceLock::new();
    let ask = || {
        let brief = late.client.lock("a").with_lease(MINUTE).lock().expect("free");
        await_key(replica, "a");
        field.set(owner(old, "a")).expect("once");
        old.ask::<()>(&["DEL", "a"]);
        // The new hold is renewed at once, since much less than two thirds of a lease is left.
        let renewed = lock.lock().expect("the thread holds the lock");
        // A replica that becomes the master closes its connections.
        let left = || replica.try_ask::<i64>(&["PTTL", "a"]);
        eventually("the hold is renewed at the new master", || {
            left().is_some_and(|ms| ms > 500_000)
        });
        renewed.unlock().and_then(|()| brief.unlock())
    };
    let restore = |replica: &Server| {
        eventually("the replica deletes the key", || !exists(replica, "a"));
        let field = field.get().expect("the lock was taken");
        replica.ask::<()>(&["HSET", "a", field, "1"]);
        replica.ask::<()>(&["PEXPIRE", "a", "60000"]);
    };
    let follow = |_: &Server| {
        eventually("the client uses the new master", || can_take(&late.client, "b"));
    };
    late.answer_late(&late.digests.renew, ask, restore, follow).expect("the hold is not lost");
}

#[test]
fn the_error_for_a_sentinel_in_the_place_of_a_server_names_the_right_setting() {
    let servers = Replicated::start(0, 1);
    let url = servers.sentinels()[0].url();
    let with_database = format!("{}/2", url.trim_end_matches('/'));
    let built = [
        Client::builder().single(&url).build(),
        Client::builder().single(with_database).build(),
        Client::builder().cluster([&url]).build(),
    ];
    for built in built {
        let error = built.expect_err("a sentinel has no locks");
        assert!(error.is_configuration() && !error.is_retryable(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("sentinel") && text.contains("Builder::sentinel"), "{text}");
    }
    let lazy = Client::builder().single(&url).build_lazily().expect("no connection");
    let error = lazy.lock("a").lock().map(drop).expect_err("a sentinel has no locks");
    assert!(error.to_string().contains("Builder::sentinel"), "{error}");
    let master = servers.servers()[0].url();
    let error = Client::builder().sentinel(MASTER, [master]).build().expect_err("no sentinel");
    assert!(error.to_string().contains("no sentinel; see Builder::single"), "{error}");
}

/// Other implementations of Sentinel do not count fail-overs.
#[test]
fn sentinels_without_epochs_are_followed_there_and_back() {
    let servers = [(); 2].map(|()| Server::start());
    let master = Arc::new(AtomicUsize::new(0));
    let sentinel = Impostor::answering({
        let master = Arc::clone(&master);
        let replies = servers.each_ref().map(|server| announcing(server.port(), None));
        move |words| replies[master.load(Relaxed)](words)
    });
    let client = Client::builder().sentinel(MASTER, [sentinel.url()]).build().expect("a master");
    for now in [0, 1, 0, 1] {
        master.store(now, Relaxed);
        servers[now].client_kill_type("normal");
        servers[1 - now].client_kill_type("normal");
        eventually("the client uses the master", || {
            let guard = client.lock("a").try_lock();
            guard.is_ok_and(|guard| guard.is_some() && exists(&servers[now], "a"))
        });
    }
}
