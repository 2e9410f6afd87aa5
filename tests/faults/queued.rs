//! Faults of the queue lock: lost and late messages, lost replies, callers that leave, killed and
//! stopped processes, broken listeners, and restarts.

use crate::harness::bare::digest;
use crate::harness::faults::*;
use crate::harness::queued::*;
use crate::harness::{
    ChildProcess, Config, Connections, Direction, Flow, Proxy, Replicated, Server, eventually,
    exists, owner, process, pttl,
};
use leasehold::{Builder, CancelToken, Client, Guard};
use std::thread;
use std::time::Duration;

/// A hold of Redisson's plain lock.
const JAVA: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1";

/// A server, a client with a direct connection, and a client behind a proxy.
struct Scene {
    server: Server,
    direct: Client,
    proxy: Proxy,
    client: Client,
}

impl Scene {
    /// Returns a scene whose clients send no commands on their own account.
    fn patient() -> Scene {
        Scene::with(patient)
    }

    /// Returns a scene whose clients have a short poll interval.
    fn polling() -> Scene {
        Scene::with(polling)
    }

    fn with(settings: fn(String) -> Builder) -> Scene {
        let server = Server::start();
        load_scripts(&server);
        let proxy = Proxy::start(server.addr());
        let [direct, client] = [server.url(), proxy.url()].map(|url| build(settings(url)));
        Scene { server, direct, proxy, client }
    }

    /// Sets the flow of the messages to the client behind the proxy.
    fn set_messages(&self, flow: Flow) {
        self.proxy.set_for(Connections::Subscribers, Direction::Replies, flow);
    }

    /// Holds the heartbeats of the client behind the proxy back. The first one may be late anyway.
    fn hold_heartbeats(&self) {
        let heartbeat = digest("queue_heartbeat");
        self.proxy.on_request(heartbeat.as_bytes(), Direction::Requests, Flow::Hold);
    }

    /// Starts a waiter of the client behind the proxy.
    fn waiter(&self, name: &str) -> QueueWaiter {
        QueueWaiter::queued(&self.server, &self.client.queue_lock(name))
    }

    /// Starts a waiter of the client with the direct connection.
    fn direct_waiter(&self, name: &str) -> QueueWaiter {
        QueueWaiter::queued(&self.server, &self.direct.queue_lock(name))
    }

    /// Has the client behind the proxy open its second connection.
    fn open_second_connection(&self) {
        self.proxy.on_request(b"PTTL", Direction::Replies, Flow::Hold);
        thread::scope(|scope| {
            let query = || self.client.lock("first").is_locked().expect("a reply");
            let first = scope.spawn(query);
            something_is_held(&self.proxy);
            query();
            self.proxy.release_held();
            first.join().expect("no panic");
        });
    }

    fn is_granted_to(&self, client: &Client) -> bool {
        owner(&self.server, "a").starts_with(&client.id().to_string())
    }
}

#[test]
fn a_grant_whose_message_is_lost_is_found_by_a_heartbeat() {
    let scene = Scene::polling();
    let guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let waiter = scene.waiter("a");
    scene.set_messages(Flow::Swallow);
    guard.unlock().expect("it is held");
    waiter.gets_it();
    assert!(scene.is_granted_to(&scene.client));
    scene.proxy.wait_until("the message is lost", |stats| stats.replies.swallowed > 0);
    waiter.releases();
    only_tokens_are_left(&scene.server);
}

#[test]
fn heartbeats_without_a_reply_are_repeated() {
    for (direction, after) in
        [(Direction::Requests, 0), (Direction::Requests, 150), (Direction::Replies, 0)]
    {
        let scene = Scene::polling();
        scene.server.ask::<()>(&["HSET", "a", JAVA, "1"]);
        let waiter = scene.waiter("a");
        scene.set_messages(Flow::Swallow);
        let heartbeat = digest("queue_heartbeat");
        scene.proxy.on_request(heartbeat.as_bytes(), direction, Flow::CutAfter(after));
        scene.server.ask::<()>(&["DEL", "a"]);
        waiter.gets_it();
        scene.proxy.wait_until("a cut", |stats| stats.cuts == 1);
        waiter.releases();
        only_tokens_are_left(&scene.server);
    }
}

/// The waiter was queued before the outage, so only heartbeats of the watchdog fail.
#[test]
fn a_deadline_of_a_waiter_that_passes_in_an_outage_is_an_error() {
    let scene = Scene::with(|url| hasty(url).poll_interval(POLL));
    let guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let lock = scene.client.queue_lock("a");
    let outcome = lock.try_lock_for(POLL * 3).expect("a reply");
    assert!(outcome.is_none(), "two hold the lock");
    eventually("its place is given up", || queue_length(&scene.server, "a") == 0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.try_lock_for(POLL * 40).map(|guard| guard.is_some()));
        eventually("the waiter is queued", || queue_length(&scene.server, "a") == 1);
        scene.proxy.refuse();
        scene.proxy.kill_all();
        let outcome = waiter.join().expect("no panic");
        let error = outcome.expect_err("whether the lock is free is unknown");
        assert!(error.is_connection(), "{error}");
    });
    guard.unlock().expect("the direct connection works");
}

/// An administrator takes the permission for scripts away. The waiter asks on its own account
/// only after a minute or more.
#[test]
fn a_waiter_whose_heartbeats_are_refused_for_good_fails() {
    let scene = Scene::with(|url| patient(url).poll_interval(POLL * 20));
    let _guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let waiter = scene.waiter("a");
    scene.server.ask::<()>(&["ACL", "SETUSER", "default", "-evalsha"]);
    let error = waiter.fails();
    assert_eq!(error.code(), Some("NOPERM"), "{error}");
    scene.server.ask::<()>(&["ACL", "SETUSER", "default", "+evalsha"]);
}

/// A grant is late until its hold has ended, another caller has the lock, and the waiter is queued
/// again. The grant of another lock comes behind it.
#[test]
fn a_message_that_comes_after_the_end_of_its_grant_grants_nothing() {
    let scene = Scene::patient();
    scene.hold_heartbeats();
    let lock = scene.direct.queue_lock("a");
    let [guard, fence] = ["a", "fence"].map(|name| {
        let lock = scene.direct.queue_lock(name);
        lock.lock().expect("it is free")
    });
    let [first, behind] = ["a", "fence"].map(|name| scene.waiter(name));
    scene.set_messages(Flow::Hold);
    guard.unlock().expect("it is held");
    assert!(scene.is_granted_to(&scene.client));
    assert!(lock.force_unlock().expect("a reply"));
    let guard = lock.lock().expect("it is free");
    // This acquire tells the client that its waiters may have lost their places.
    let second = QueueWaiter::spawn(&scene.client.queue_lock("a"));
    eventually("both are queued", || queue_length(&scene.server, "a") == 2);
    fence.unlock().expect("it is held");
    scene.proxy.release_held();
    behind.gets_it();
    first.still_waits();
    second.still_waits();
    assert!(guard.check().is_ok());
    guard.unlock().expect("it is held");
    get_it_in_order([first, second]);
    behind.releases();
    only_tokens_are_left(&scene.server);
}

#[test]
fn a_grant_that_overtakes_the_reply_to_an_acquire_counts() {
    let scene = Scene::patient();
    let guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let other = scene.direct.queue_lock("b").lock().expect("it is free");
    let listening = scene.waiter("b");
    let acquire = digest("queue_acquire");
    scene.proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let waiter = QueueWaiter::queued(&scene.server, &scene.client.queue_lock("a"));
    something_is_held(&scene.proxy);
    guard.unlock().expect("it is held");
    other.unlock().expect("it is held");
    // The message for this lock came before.
    listening.gets_it();
    scene.proxy.release_held();
    waiter.gets_it();
    listening.releases();
    waiter.releases();
    only_tokens_are_left(&scene.server);
}

/// A heartbeat has brought the grant. Its message comes late, while the release is on its way over
/// another connection than that of a release by the listener.
#[test]
fn a_grant_that_comes_behind_its_release_ends_no_hold() {
    let scene = Scene::with(|url| polling(url).pool_size(2));
    scene.open_second_connection();
    let guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let waiter = scene.waiter("a");
    scene.set_messages(Flow::Swallow);
    guard.unlock().expect("it is held");
    let token = waiter.gets_it();
    scene.set_messages(Flow::Pass);
    eventually("the client listens", || is_listening(&scene.server, &scene.client));
    let release = digest("queue_release");
    scene.proxy.on_request(release.as_bytes(), Direction::Requests, Flow::Hold);
    let hold = owner(&scene.server, "a")[37..].to_owned();
    thread::scope(|scope| {
        let releasing = scope.spawn(|| waiter.releases());
        something_is_held(&scene.proxy);
        hear(&scene.server, &scene.client, &format!("granted {hold} {token} 2000 a"));
        scene.proxy.release_held();
        releasing.join().expect("the hold was valid");
    });
    only_tokens_are_left(&scene.server);
}

/// The caller leaves before it knows of its grant.
#[test]
fn a_waiter_that_leaves_passes_its_grant_on() {
    for closes in [false, true] {
        let scene = Scene::patient();
        scene.hold_heartbeats();
        let guard = scene.direct.queue_lock("a").lock().expect("it is free");
        let token = CancelToken::new();
        let lock = scene.client.queue_lock("a").with_cancel(&token);
        let leaving = QueueWaiter::queued(&scene.server, &lock);
        eventually("the client listens", || is_listening(&scene.server, &scene.client));
        let next = scene.direct_waiter("a");
        scene.set_messages(Flow::Hold);
        guard.unlock().expect("it is held");
        assert!(scene.is_granted_to(&scene.client));
        next.still_waits();
        thread::scope(|scope| {
            // The close waits for the reply to the heartbeat.
            let closing = closes.then(|| scope.spawn(|| scene.client.close()));
            if closing.is_none() {
                token.cancel();
            }
            let error = leaving.fails();
            assert!(if closes { error.is_closed() } else { error.is_cancelled() }, "{error}");
            next.gets_it();
            scene.proxy.pass();
        });
        next.releases();
        only_tokens_are_left(&scene.server);
    }
}

/// A late copy of an acquire has queued a call that has ended. The grants last for minutes.
#[test]
fn a_grant_to_a_call_that_has_ended_is_released_at_once() {
    let scene = Scene::patient();
    let [guard, other] = ["a", "b"].map(|name| scene.direct.queue_lock(name).lock_owned());
    let listening = scene.waiter("b");
    queue_ended_call(&scene.server, &scene.client);
    let next = scene.direct_waiter("a");
    guard.and_then(leasehold::OwnedGuard::unlock).expect("it is held");
    next.gets_it();
    next.releases();
    other.and_then(leasehold::OwnedGuard::unlock).expect("it is held");
    get_it_in_order([listening]);
    only_tokens_are_left(&scene.server);
}

#[test]
fn a_late_acquire_leaves_no_place() {
    let scene = Scene::with(|url| hasty(url).poll_interval(POLL));
    let guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let acquire = digest("queue_acquire");
    scene.proxy.on_request(acquire.as_bytes(), Direction::Requests, Flow::Hold);
    let error = scene.client.queue_lock("a").lock().expect_err("the acquire is held back");
    assert!(error.is_timeout(), "{error}");
    assert_eq!(scene.server.calls("zadd"), 0);
    scene.proxy.release_held();
    eventually("the late acquire runs", || scene.server.calls("zadd") == 1);
    eventually("its place is given up", || queue_length(&scene.server, "a") == 0);
    guard.unlock().expect("it is held");
    only_tokens_are_left(&scene.server);
}

/// Waits for the lock, and then executes the orders of the parent. Says the outcome of each.
#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    assert_eq!(role.name(), "wait");
    let watchdog = Duration::from_millis(role.arg(1).parse().expect("milliseconds"));
    let client = build(polling(role.arg(0)).watchdog_timeout(watchdog));
    role.say(&client.id().to_string());
    let mut guard = Some(client.queue_lock("a").lock().expect("it is granted"));
    role.say("locked");
    while let Some(order) = role.hear() {
        let is_lost = match &*order {
            "check" => guard.as_ref().is_none_or(|guard| is_lost(guard.check())),
            "unlock" => is_lost(guard.take().map_or(Ok(()), Guard::unlock)),
            _ => panic!("{order:?} is no order"),
        };
        role.say(if is_lost { "lost" } else { "good" });
    }
}

fn is_lost(outcome: leasehold::Result<()>) -> bool {
    outcome.is_err_and(|error| error.is_lost())
}

/// Starts a process that waits for the lock; blocks until it is queued and listens.
fn waiting_process(server: &Server, watchdog: Duration) -> (ChildProcess, String) {
    let watchdog = watchdog.as_millis().to_string();
    let before = queue_length(server, "a");
    let mut child = ChildProcess::start("queued::child_entry", "wait", &[&server.url(), &watchdog]);
    let id = child.next_line();
    eventually("the process is queued", || queue_length(server, "a") == before + 1);
    let channel = wake_channel(&id);
    eventually("the process listens", || server.numsub(&channel) == 1);
    (child, id)
}

/// Neither a poll nor the end of a lease passes the lock on.
#[test]
fn a_killed_waiter_is_passed_over_at_once() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let guard = client.queue_lock("a").lock().expect("it is free");
    let (mut child, id) = waiting_process(&server, NEVER);
    let next = QueueWaiter::queued(&server, &client.queue_lock("a"));
    child.kill();
    let channel = wake_channel(&id);
    eventually("its connections close", || server.numsub(&channel) == 0);
    guard.unlock().expect("it is held");
    get_it_in_order([next]);
    only_tokens_are_left(&server);
}

/// Returns a process that is granted the lock while it is stopped, and the waiter behind it.
fn stopped_grantee() -> (Server, ChildProcess, QueueWaiter) {
    let server = Server::start();
    let client = build(polling(server.url()));
    let guard = client.queue_lock("a").lock().expect("it is free");
    let (child, id) = waiting_process(&server, NEVER);
    let next = QueueWaiter::queued(&server, &client.queue_lock("a"));
    // A stopped process still has its connections.
    child.stop();
    guard.unlock().expect("it is held");
    assert!(owner(&server, "a").starts_with(&id));
    (server, child, next)
}

#[test]
fn the_grant_of_a_killed_process_ends_with_its_grant_lease() {
    let (server, mut child, next) = stopped_grantee();
    let left = Duration::from_millis(pttl(&server, "a").unsigned_abs());
    assert!(left <= GRANT_LEASE, "{left:?} are left");
    child.kill();
    get_it_in_order([next]);
    only_tokens_are_left(&server);
}

/// The process continues when another caller has the lock, and waits again.
#[test]
fn a_process_that_is_stopped_past_its_grant_does_not_take_it() {
    let (server, mut child, next) = stopped_grantee();
    next.gets_it();
    child.resume();
    eventually("the process is queued again", || queue_length(&server, "a") == 1);
    assert_eq!(child.said_already(), Vec::<String>::new());
    next.releases();
    child.expect_line("locked");
    child.send_line("unlock");
    child.expect_line("good");
    only_tokens_are_left(&server);
}

#[test]
fn a_process_that_is_stopped_past_its_lease_finds_its_hold_lost() {
    for order in ["check", "unlock"] {
        let server = Server::start();
        let client = build(polling(server.url()));
        let guard = client.queue_lock("a").lock().expect("it is free");
        let (mut child, _) = waiting_process(&server, GRANT_LEASE);
        let next = QueueWaiter::queued(&server, &client.queue_lock("a"));
        guard.unlock().expect("it is held");
        child.expect_line("locked");
        child.stop();
        next.gets_it();
        child.resume();
        child.send_line(order);
        child.expect_line("lost");
        child.close_input();
        assert!(child.wait().success());
        // The drop of the lost hold has not touched the next one.
        next.releases();
        only_tokens_are_left(&server);
    }
}

#[test]
fn a_waiter_keeps_its_place_while_its_listener_reconnects() {
    let scene = Scene::patient();
    let guard = scene.direct.queue_lock("a").lock().expect("it is free");
    let waiters = [scene.waiter("a"), scene.direct_waiter("a"), scene.waiter("a")];
    let before = places(&scene.server, "a");
    assert_eq!(scene.server.client_kill_type("pubsub"), 2);
    let both = [&scene.client, &scene.direct];
    eventually("both listen again", || both.iter().all(|it| is_listening(&scene.server, it)));
    assert_eq!(places(&scene.server, "a"), before);
    guard.unlock().expect("it is held");
    get_it_in_order(waiters);
    only_tokens_are_left(&scene.server);
}

/// The release passes the waiters over, since their client does not listen.
#[test]
fn waiters_that_were_passed_over_get_their_places_back() {
    let scene = Scene::patient();
    scene.hold_heartbeats();
    let lock = scene.direct.queue_lock("a");
    let guard = lock.lock().expect("it is free");
    let waiters = [scene.waiter("a"), scene.waiter("a")];
    let before = places(&scene.server, "a");
    scene.proxy.refuse();
    scene.proxy.kill(&Connections::Subscribers);
    eventually("the client does not listen", || !is_listening(&scene.server, &scene.client));
    guard.unlock().expect("it is held");
    assert!(!exists(&scene.server, "a") && queue_length(&scene.server, "a") == 0);
    let guard = lock.lock().expect("it is free");
    let newer = QueueWaiter::placed(&scene.server, &scene.direct.queue_lock("a"));
    scene.proxy.heal();
    eventually("the places are restored", || {
        let now = places(&scene.server, "a");
        now.len() == 3 && now[..2] == before[..]
    });
    // A heartbeat under way restores the places before the listener has connected.
    let both = [&scene.client, &scene.direct];
    eventually("both listen", || both.iter().all(|it| is_listening(&scene.server, it)));
    guard.unlock().expect("it is held");
    get_it_in_order(waiters.into_iter().chain([newer]));
    only_tokens_are_left(&scene.server);
}

/// Each release passes the waiter over.
#[test]
fn a_waiter_whose_client_cannot_listen_gets_the_lock_by_its_polls() {
    let scene = Scene::polling();
    for _ in 0..1_000 {
        scene.proxy.on_request(b"SUBSCRIBE", Direction::Requests, Flow::CutAfter(0));
    }
    let lock = scene.direct.queue_lock("a");
    let guard = lock.lock().expect("it is free");
    let waiter = QueueWaiter::placed(&scene.server, &scene.client.queue_lock("a"));
    guard.unlock().expect("it is held");
    waiter.gets_it();
    assert!(!is_listening(&scene.server, &scene.client));
    assert!(lock.try_lock().expect("a reply").is_none());
    waiter.releases();
    only_tokens_are_left(&scene.server);
}

/// Restarts a server while callers of two clients wait for a lock with a foreign holder.
fn places_survive_a_restart(server: &Server, end: impl Fn(&Server)) {
    let proxy = Proxy::start(server.addr());
    let (direct, clients) = (other(server), [(); 2].map(|()| build(patient(proxy.url()))));
    server.ask::<()>(&["HSET", "a", JAVA, "1"]);
    let waiters: Vec<_> = (0..4)
        .map(|number| QueueWaiter::queued(server, &clients[number % 2].queue_lock("a")))
        .collect();
    let before = places(server, "a");
    // The only connection of each client has delivered the replies to all its waiters.
    for client in &clients {
        assert!(!client.lock("b").is_locked().expect("a reply"));
    }
    proxy.refuse();
    proxy.kill_all();
    end(server);
    server.restart();
    // Otherwise the first caller that asks takes a free lock.
    server.ask::<()>(&["HSET", "a", JAVA, "1"]);
    proxy.heal();
    eventually("the places are restored", || places(server, "a") == before);
    eventually("both listen", || clients.iter().all(|client| is_listening(server, client)));
    assert!(direct.queue_lock("a").force_unlock().expect("a reply"));
    get_it_in_order(waiters);
    only_tokens_are_left(server);
}

#[test]
fn waiters_keep_their_order_when_the_server_restarts_with_data() {
    let server = Server::with(Config::durable);
    places_survive_a_restart(&server, Server::kill);
}

#[test]
fn waiters_keep_their_order_when_the_server_restarts_without_data() {
    places_survive_a_restart(&Server::start(), Server::kill);
}

/// Returns the settings of a client that needs one replica.
fn replicated(master: &Server, timeout: Duration) -> Builder {
    patient(master.url()).min_replicas(1, timeout)
}

#[test]
fn a_grant_counts_after_a_replica_has_it() {
    let servers = Replicated::start(1, 0);
    let (master, replica) = (&servers.servers()[0], &servers.servers()[1]);
    load_scripts(master);
    let client = build(replicated(master, NEVER / 6));
    let guard = client.queue_lock("a").lock().expect("the replica answers");
    let waiter = QueueWaiter::queued(master, &client.queue_lock("a"));
    let waits = master.calls("wait");
    guard.unlock().expect("it is held");
    waiter.gets_it();
    assert_eq!(master.calls("wait"), waits + 1);
    assert_eq!(owner(replica, "a"), owner(master, "a"));
    waiter.releases();
    only_tokens_are_left(master);
}

#[test]
fn a_grant_that_no_replica_has_is_passed_on() {
    let servers = Replicated::start(1, 0);
    let (master, replica) = (&servers.servers()[0], &servers.servers()[1]);
    let plain = build(patient(master.url()));
    let strict = build(replicated(master, Duration::from_millis(50)));
    let guard = plain.queue_lock("a").lock().expect("it is free");
    replica.stop();
    let first = QueueWaiter::queued(master, &strict.queue_lock("a"));
    let next = QueueWaiter::queued(master, &plain.queue_lock("a"));
    guard.unlock().expect("it is held");
    let error = first.fails();
    assert!(error.is_not_replicated(), "{error}");
    get_it_in_order([next]);
    only_tokens_are_left(master);
    replica.resume();
}
