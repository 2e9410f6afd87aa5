//! Servers that end, restart with or without data, stop for a while, close connections or lose
//! their scripts.

use crate::harness::faults::*;
use crate::harness::wait::holds_within;
use crate::harness::{
    Config, Direction, Flow, Proxy, Server, StopsOnDrop, eventually, exists, in_time,
};
use leasehold::{Client, Error, Guard, MultiLock, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval that is short enough to wait for.
const SOON: Duration = Duration::from_millis(200);

#[test]
fn a_hold_is_lost_when_the_server_restarts_without_data() {
    let server = Server::start();
    let (settings, events) = EventLog::from(patient(server.url()));
    let (holder, waiting) = (build(settings), build(patient(server.url()).poll_interval(SOON)));
    let guard = holder.lock("gone").lock().expect("all is well");
    let waiter = Waiter::start(&server, &waiting, "gone");

    server.kill();
    server.restart();
    waiter.gets_it();
    assert!(guard.is_held(), "the client does not know so far, and the lease is long");
    holder.lock("another").is_locked().expect("a new connection");
    assert_eq!(&*events.lost().name, "gone");
    assert!(!guard.is_held() && guard.wait_lost(Duration::ZERO));
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(owners(&server, "gone").len(), 1, "the waiter's hold is unchanged");
    waiter.releases();
}

/// The name of a hold, and a function that returns whether the client counts it as valid.
type IsHeld<'a> = (&'static str, Box<dyn Fn() -> bool + 'a>);

/// Takes one hold of each kind, with a fixed lease that outlives the test.
fn fixed_holds(client: &Client) -> Vec<IsHeld<'_>> {
    let lock = |name| client.lock(name).with_lease(NEVER);
    let guard = lock("plain").lock().expect("free");
    let owned = lock("owned").lock_owned().expect("free");
    let named = lock("named").with_holder("a job").lock().expect("free");
    let fenced = client.fenced_lock("fenced").with_lease(NEVER).lock().expect("free");
    let fair = client.fair_lock("fair").with_lease(NEVER).lock().expect("free");
    let spin = client.spin_lock("spin").with_lease(NEVER).lock().expect("free");
    let read = client.rw_lock("read").with_lease(NEVER).read().expect("free");
    let write = client.rw_lock("write").with_lease(NEVER).write().expect("free");
    let members = ["one", "two"].map(|name| client.lock(name));
    let members = MultiLock::new(members).with_lease(NEVER).lock().expect("free");
    lock("detached").lock().expect("free").detach();
    vec![
        ("plain", Box::new(move || guard.is_held())),
        ("owned", Box::new(move || owned.is_held())),
        ("named", Box::new(move || named.is_held())),
        ("fenced", Box::new(move || fenced.is_held())),
        ("fair", Box::new(move || fair.is_held())),
        ("spin", Box::new(move || spin.is_held())),
        ("read", Box::new(move || read.is_held())),
        ("write", Box::new(move || write.is_held())),
        ("members", Box::new(move || members.is_held())),
        ("detached", Box::new(|| client.lock("detached").is_held())),
    ]
}

/// Returns the names of the holds that count as valid.
fn valid(holds: &[IsHeld<'_>]) -> Vec<&'static str> {
    holds.iter().filter(|(_, is_held)| is_held()).map(|(name, _)| *name).collect()
}

#[test]
fn fixed_leases_of_all_kinds_are_lost_when_the_server_restarts_without_data() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let holds = fixed_holds(&client);
    assert_eq!(valid(&holds).len(), holds.len());
    server.kill();
    server.restart();
    client.lock("another").is_locked().expect("a new connection");
    let lost = || valid(&holds).is_empty();
    assert!(holds_within(NEVER / 4, lost), "still held: {:?}", valid(&holds));
}

#[test]
fn fixed_leases_of_all_kinds_do_not_change_when_the_server_restarts_with_data() {
    let server = Server::with(Config::durable);
    let client = build(patient(server.url()));
    let holds = fixed_holds(&client);
    // Redis 6.2 has no PEXPIRETIME. This sum is exact to two milliseconds.
    let script = "local time, left = redis.call('time'), redis.call('pttl', KEYS[1]) \
        return left < 0 and left or time[1] * 1000 + math.floor(time[2] / 1000) + left";
    let end_of = |name: &str| server.ask::<i64>(&["EVAL", script, "1", name]);
    let before: Vec<_> = server.keys().iter().map(|name| (name.clone(), end_of(name))).collect();
    server.kill();
    server.restart();
    client.lock("another").is_locked().expect("a new connection");
    // The watchdog checks each hold with `hexists`.
    eventually("all holds are checked", || server.calls("hexists") >= holds.len() as u64);
    for (name, end) in before {
        assert!(end_of(&name).abs_diff(end) <= 2, "the lease of {name} was changed");
    }
    assert_eq!(valid(&holds).len(), holds.len());
}

/// The server closes the connections of the caller and of the watchdog in each round.
#[test]
fn repeated_closes_of_idle_connections_renew_each_lease_at_most_once() {
    const LOCKS: u64 = 100;
    let server = Server::with(|config| config.line("timeout 1"));
    let client = build(patient(server.url()));
    let take = |number| client.lock(format!("kept {number}")).lock_owned().expect("free");
    let guards: Vec<_> = (0..LOCKS).map(take).collect();
    let taken = server.calls("pexpire");
    let connections =
        || server.clients().iter().filter(|peer| peer.name.starts_with("leasehold")).count();
    for _ in 0..4 {
        eventually("all connections are closed", || connections() == 0);
        let before = server.calls("hello");
        client.lock("another").is_locked().expect("a new connection");
        eventually("the watchdog connects again", || server.calls("hello") >= before + 2);
    }
    let renewed = server.calls("pexpire") - taken;
    assert!(renewed <= LOCKS, "{renewed} renewals of {LOCKS} leases");
    drop(guards);
}

#[test]
fn a_hold_survives_a_killed_server_with_an_append_only_file() {
    let server = Server::with(Config::durable);
    a_hold_and_its_waiter_survive(&server, Server::kill);
}

#[test]
fn a_hold_survives_a_server_that_saves_and_restarts() {
    a_hold_and_its_waiter_survive(&Server::start(), Server::shutdown_save);
}

fn a_hold_and_its_waiter_survive(server: &Server, end: impl Fn(&Server)) {
    let (settings, events) = EventLog::from(patient(server.url()));
    let (holder, waiting) = (build(settings), build(patient(server.url())));
    let guard = holder.lock("kept").lock().expect("all is well");
    let waiter = Waiter::start(server, &waiting, "kept");

    end(server);
    server.restart();
    // Only a message can wake the waiter: the poll interval outlives the test.
    waiter.is_subscribed(server, "kept");
    let before = left(server, "kept");
    holder.lock("another").is_locked().expect("a new connection");
    events.renewed(1);
    assert!(left(server, "kept") > before, "the lease was not renewed at once");
    assert_held(server, "kept", &guard, NEVER);
    waiter.still_waits();
    guard.unlock().expect("it is held");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_waiter_survives_refused_connections() {
    a_waiter_survives(|proxy| {
        proxy.refuse();
        proxy.kill_all();
        let refused = proxy.stats().refused;
        proxy.wait_until("more connection attempts", |stats| stats.refused > refused + 8);
    });
}

#[test]
fn a_waiter_survives_a_time_without_replies() {
    a_waiter_survives(|proxy| {
        proxy.swallow_replies();
        let accepted = proxy.stats().accepted;
        proxy.wait_until("more connection attempts", |stats| stats.accepted > accepted + 4);
    });
}

fn a_waiter_survives(outage: impl Fn(&Proxy)) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, direct) = (build(hasty(proxy.url()).poll_interval(SOON)), other(&server));
    let guard = direct.lock("far").lock().expect("the direct connection works");
    let waiter = Waiter::start(&server, &client, "far");
    outage(&proxy);
    assert!(guard.is_held());
    waiter.still_waits();
    proxy.heal();
    guard.unlock().expect("the direct connection works");
    waiter.gets_it();
    waiter.releases();
    drop((client, direct));
    nothing_is_left(&server);
}

/// The caller gives the lock of the other server back, and leaves that server alone.
#[test]
fn a_waiter_for_locks_on_two_servers_pauses_while_one_is_away() {
    let (near, far) = (Server::start(), Server::start());
    let proxy = Proxy::start(far.addr());
    let clients = [near.url(), proxy.url()].map(|url| build(hasty(url)));
    let direct = other(&near);
    let guard = direct.lock("a").lock().expect("it is free");
    thread::scope(|scope| {
        let both = MultiLock::new(clients.each_ref().map(|client| client.lock("a")));
        let waiter = scope.spawn(move || both.lock().and_then(|guard| guard.unlock()));
        eventually("it waits", || near.numsub(&channel_of("a")) == 1);
        proxy.refuse();
        proxy.kill_all();
        let calls = near.calls("evalsha");
        guard.unlock().expect("it is held");
        proxy.wait_until("more attempts", |stats| stats.refused >= 16);
        let calls = near.calls("evalsha") - calls;
        proxy.heal();
        in_time("the waiter returns", waiter).expect("both locks are free");
        // The release that frees the lock, and one round.
        assert!(calls <= 6, "{calls} calls of the server that is well");
    });
}

#[test]
fn a_connection_that_breaks_at_its_first_request_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, digests) = (build(patient(proxy.url()).pool_size(2)), Digests::of(&server));
    let acquire = digests.acquire.as_bytes();
    proxy.on_request(acquire, Direction::Replies, Flow::Hold);
    thread::scope(|scope| {
        scope.spawn(|| drop(client.lock("on the first").lock().expect("all is well")));
        something_is_held(&proxy);
        proxy.on_request(acquire, Direction::Replies, Flow::CutAfter(0));
        let outcome = client.lock("on the second").try_lock();
        proxy.release_held();
        let guard = outcome.expect("a new connection works").expect("it is free");
        assert_held(&server, "on the second", &guard, NEVER);
    });
    assert_eq!(proxy.stats().triggered, 2);
}

/// Returns the error of each verb, which sends a first request to a server without replies.
fn first_requests(client: &Client) -> Vec<Error> {
    let lock = client.lock("first");
    let started = Instant::now();
    let errors = vec![
        lock.lock().map(drop).expect_err("no reply arrives"),
        lock.try_lock().map(drop).expect_err("no reply arrives"),
        lock.try_lock_for(NEVER).map(drop).expect_err("no reply arrives"),
        lock.is_locked().map(drop).expect_err("no reply arrives"),
        lock.force_unlock().map(drop).expect_err("no reply arrives"),
    ];
    let each = started.elapsed() / u32::try_from(errors.len()).expect("few");
    assert!(each < BRIEF * 10, "more than the time-outs of a connection and a reply: {each:?}");
    errors
}

#[test]
fn a_first_request_without_a_server_fails() {
    let server = Server::start();
    let clients = [server.url(), server.unix_url()].map(|url| build(hasty(url)));
    server.kill();
    for error in clients.iter().flat_map(first_requests) {
        assert!(error.is_connection(), "{error}");
    }
    server.restart();
    for client in clients {
        client.lock("first").lock().expect("the server answers").unlock().expect("it is held");
    }
}

#[test]
fn a_first_request_to_a_stopped_server_fails() {
    let server = Server::start();
    let clients = [server.url(), server.unix_url()].map(|url| build(hasty(url)));
    server.stop();
    let errors: Vec<_> = thread::scope(|scope| {
        let both = clients.each_ref().map(|client| scope.spawn(|| first_requests(client)));
        both.map(|errors| errors.join().expect("no panic")).into_iter().flatten().collect()
    });
    server.resume();
    for error in errors {
        assert!(error.is_timeout(), "{error}");
    }
    eventually("late grants are undone", || !exists(&server, "first"));
    for client in clients {
        client.lock("first").lock().expect("the server answers").unlock().expect("it is held");
    }
}

#[test]
fn a_first_request_does_not_wait_for_background_requests() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(hasty(proxy.url()));
    let take = |number| client.lock(format!("dropped {number}")).lock_owned().expect("all is well");
    let mut guards: Vec<_> = (0..50).map(take).collect();
    proxy.swallow_replies();
    thread::scope(|scope| {
        let caller = scope.spawn(|| client.lock("first").try_lock().map(drop));
        proxy.wait_until("the request", |stats| stats.replies.swallowed > 0);
        // The caller leads the connection. Each attempt to connect queues one more release.
        let mut before = 0;
        let in_time = holds_within(BRIEF * 20, || {
            let accepted = proxy.stats().accepted;
            guards.truncate(guards.len() - usize::from(accepted > before));
            before = accepted;
            caller.is_finished()
        });
        proxy.pass();
        drop(guards);
        assert!(in_time, "far more than the time-outs of a connection and a reply");
        let error = caller.join().expect("no panic").expect_err("no reply arrives");
        assert!(error.is_timeout(), "{error}");
    });
    eventually("all releases are sent", || server.keys().is_empty());
}

#[test]
fn a_deadline_that_passes_in_an_outage_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, direct) = (build(hasty(proxy.url()).poll_interval(SOON)), other(&server));
    let guard = direct.lock("far").lock().expect("the direct connection works");
    let lock = client.lock("far");
    let outcome = lock.try_lock_for(SOON * 3).expect("a reply");
    assert!(outcome.is_none(), "two hold the lock");
    eventually("the subscription ends", || server.numsub(&channel_of("far")) == 0);

    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.try_lock_for(SOON * 20).map(|guard| guard.is_some()));
        let subscribed = || server.numsub(&channel_of("far")) == 1;
        eventually("the waiter has been refused", subscribed);
        proxy.refuse();
        proxy.kill_all();
        let error =
            waiter.join().expect("no panic").expect_err("whether the lock is free is unknown");
        assert!(error.is_connection(), "{error}");
    });
    guard.unlock().expect("the direct connection works");
}

#[test]
fn a_deadline_behind_the_head_of_the_queue_in_an_outage_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, direct) = (build(hasty(proxy.url()).poll_interval(SOON)), other(&server));
    let guard = direct.lock("far").lock().expect("the direct connection works");
    let head = Waiter::start(&server, &client, "far");
    proxy.refuse();
    proxy.kill_all();
    let refused = proxy.stats().refused;
    proxy.wait_until("more connection attempts", |stats| stats.refused > refused + 4);
    let outcome = client.lock("far").try_lock_for(SOON);
    proxy.heal();
    guard.unlock().expect("the direct connection works");
    head.gets_it();
    head.releases();
    let error =
        outcome.map(|guard| guard.is_some()).expect_err("whether the lock is free is unknown");
    assert!(error.is_connection(), "{error}");
}

#[test]
fn a_server_stopped_for_less_than_the_lease_loses_no_hold() {
    const LEASE: Duration = Duration::from_secs(6);
    let server = Server::start();
    let (settings, events) = EventLog::from(patient(server.url()).watchdog_timeout(LEASE));
    let (holder, waiting) = (build(settings), build(patient(server.url()).poll_interval(SOON)));
    let guard = holder.lock("kept").lock().expect("all is well");
    let waiter = Waiter::start(&server, &waiting, "kept");
    server.stop();
    events.renewal_failed();
    assert!(guard.is_held(), "the lease is not over");
    server.resume();
    events.renewed(1);
    assert_held(&server, "kept", &guard, LEASE);
    waiter.still_waits();
    guard.unlock().expect("it is held");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_renewal_without_a_reply_is_repeated_in_time() {
    const LEASE: Duration = Duration::from_secs(3);
    for direction in [Direction::Requests, Direction::Replies] {
        let server = Server::start();
        let (proxy, digests) = (Proxy::start(server.addr()), Digests::of(&server));
        let (settings, events) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
        let client = build(settings);
        let guard = client.lock("kept").lock().expect("all is well");
        proxy.on_request(digests.renew.as_bytes(), direction, Flow::Swallow);
        events.renewal_failed();
        events.renewed(1);
        assert_held(&server, "kept", &guard, LEASE);
        guard.unlock().expect("it is held");
    }
}

#[test]
fn a_call_during_a_pause_of_the_server_fails_and_leaves_nothing() {
    let server = Server::start();
    let (client, direct) = (build(hasty(server.url()).poll_interval(SOON)), other(&server));
    let guard = direct.lock("taken").lock().expect("all is well");
    let waiter = Waiter::start(&server, &client, "taken");
    pause(&server, BRIEF * 4);
    let error = client.lock("paused").try_lock().expect_err("no reply arrives in time");
    assert!(error.is_timeout(), "{error}");
    guard.unlock().expect("the reply comes after the pause");
    waiter.gets_it();
    waiter.releases();
    eventually("late grants are undone", || !exists(&server, "paused"));
    assert_others_can_take(&direct, "paused");
    drop((client, direct));
    nothing_is_left(&server);
}

/// Has the server run no command for this time.
fn pause(server: &Server, span: Duration) {
    server.ask::<()>(&["CLIENT", "PAUSE", &span.as_millis().to_string(), "ALL"]);
}

/// Asserts that no increment of a counter is lost while `fault` happens again and again.
///
/// Eight threads of two clients increment the counter under a lock. The next fault waits until each
/// thread has made two increments since the last one, so a call never meets two faults.
fn increments_survive(fault: impl Fn(&Server)) {
    const THREADS: usize = 8;
    let server = Server::start();
    let clients = [connected(&server), connected(&server)];
    let (done, progress) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; THREADS]);
    let all = || progress.iter().map(|one| one.load(Ordering::Acquire)).collect::<Vec<_>>();
    thread::scope(|scope| {
        for (thread, progress) in progress.iter().enumerate() {
            let (server, client, done) = (&server, &clients[thread % clients.len()], &done);
            scope.spawn(move || {
                let mut connection = server.connection();
                while !done.load(Ordering::Acquire) {
                    increment(client, &mut connection, progress);
                }
            });
        }
        let end = StopsOnDrop(&done);
        for _ in 0..10 * stress() {
            let before = all();
            let advanced = || all().iter().zip(&before).all(|(now, before)| *now >= before + 2);
            eventually("every thread advances", advanced);
            fault(&server);
        }
        drop(end);
    });
    let counted: usize = server.ask(&["GET", "counter"]);
    assert_eq!(counted, all().iter().sum(), "increments were lost");
    server.ask::<()>(&["DEL", "counter"]);
    drop(clients);
    nothing_is_left(&server);
}

/// Returns a client with two open connections.
fn connected(server: &Server) -> Client {
    let client = build(patient(server.url()).pool_size(2));
    eventually("both connections are open", || {
        thread::scope(|scope| {
            let ask = || client.lock("any").is_locked().expect("all is well");
            for _ in 0..4 {
                scope.spawn(ask);
            }
        });
        let id = client.id().to_string();
        server.clients().iter().filter(|peer| peer.name.contains(&id)).count() == 2
    });
    client
}

fn increment(client: &Client, connection: &mut redis::Connection, progress: &AtomicUsize) {
    let guard = client.lock("guarded").lock().expect("a new connection works");
    let get = redis::cmd("GET").arg("counter").query::<Option<usize>>(connection);
    let count = get.expect("this connection stays open").unwrap_or(0);
    let set = redis::cmd("SET").arg(&["counter", &(count + 1).to_string()]).query(connection);
    let () = set.expect("this connection stays open");
    match count % 2 {
        0 => guard.unlock().expect("a new connection works"),
        _ => drop(guard),
    }
    progress.fetch_add(1, Ordering::AcqRel);
}

#[test]
fn killed_connections_cost_no_error_and_no_increment() {
    increments_survive(|server| assert!(server.client_kill_type("normal") > 0));
}

#[test]
fn killed_listeners_cost_no_error_and_no_increment() {
    increments_survive(|server| {
        eventually("listeners to kill", || server.client_kill_type("pubsub") > 0);
    });
}

#[test]
fn all_connections_killed_at_once_cost_no_error_and_no_increment() {
    increments_survive(|server| {
        server.client_kill_type("pubsub");
        server.client_kill_type("normal");
    });
}

#[test]
fn flushed_scripts_cost_no_error_and_no_increment() {
    increments_survive(|server| {
        for _ in 0..20 {
            server.ask::<()>(&["SCRIPT", "FLUSH"]);
        }
    });
}

#[test]
fn short_pauses_cost_no_error_and_no_increment() {
    increments_survive(|server| pause(server, Duration::from_millis(50)));
}

/// Ends a hold behind a request whose script is missing. Such a release runs twice, to keep the
/// order, and its second copy never finds the hold.
fn unlock_twice(meanwhile: impl Fn(&Client)) -> Result<()> {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let guard = client.lock("a").lock_owned().expect("all is well");
    meanwhile(&other(&server));
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    Digests::of(&server);
    let latch = client.latch("b");
    let (first, second) =
        written_together(&proxy, &client, move || latch.wait(), move || guard.unlock());
    first.expect("the latch is open");
    second
}

#[test]
fn a_release_that_runs_twice_is_confirmed() {
    unlock_twice(|_| {}).expect("the first copy released the hold");
}

#[test]
fn a_release_that_runs_twice_tells_of_a_loss() {
    let force = |direct: &Client| assert!(direct.force_unlock("a").expect("an answer"));
    let error = unlock_twice(force).expect_err("neither copy released a hold");
    assert!(error.is_lost(), "{error}");
}

/// The only connection is busy, and another cannot be opened.
#[test]
fn the_release_of_a_dropped_guard_waits_for_a_busy_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()).pool_size(2));
    let guard = client.lock("dropped").lock().expect("all is well");
    proxy.refuse();
    proxy.hold_replies();
    thread::scope(|scope| {
        let caller = scope.spawn(|| client.lock("taken").try_lock().map(|guard| guard.is_some()));
        eventually("the request is in flight", || exists(&server, "taken"));
        drop(guard);
        assert!(exists(&server, "dropped"), "the connection is busy");
        proxy.pass();
        assert!(in_time("the call returns", caller).expect("the connection is open"));
    });
    eventually("both are free", || server.keys().is_empty());
}

#[test]
fn a_caller_shares_a_connection_if_another_cannot_be_opened() {
    shares_the_only_connection(|_, proxy| proxy.refuse(), |_, proxy| proxy.stats().refused);
}

#[test]
fn a_caller_shares_a_connection_if_the_server_accepts_no_more() {
    let rejected = |admin: &mut redis::Connection, _: &Proxy| {
        let stats: redis::InfoDict = redis::cmd("INFO").arg("stats").query(admin).expect("INFO");
        stats.get("rejected_connections").expect("a number")
    };
    let fill = |admin: &mut redis::Connection, _: &Proxy| {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(admin).expect("CLIENT LIST");
        let most =
            redis::cmd("CONFIG").arg(&["SET", "maxclients"]).arg(list.lines().count()).query(admin);
        most.expect("CONFIG SET")
    };
    shares_the_only_connection(fill, rejected);
}

fn shares_the_only_connection(
    forbid: impl Fn(&mut redis::Connection, &Proxy),
    rejected: impl Fn(&mut redis::Connection, &Proxy) -> usize,
) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()).pool_size(3));
    client.lock("a").lock().and_then(Guard::unlock).expect("all is well");
    let mut admin = server.connection();
    forbid(&mut admin, &proxy);
    proxy.hold_replies();
    let try_lock = &|name| client.lock(name).try_lock().map(|guard| guard.is_some());
    thread::scope(|scope| {
        let first = scope.spawn(|| try_lock("a"));
        eventually("the only connection is busy", || {
            redis::cmd("EXISTS").arg("a").query(&mut admin).expect("EXISTS")
        });
        let others = ["b", "c"].map(|name| (name, scope.spawn(move || try_lock(name))));
        eventually("a caller asks for another connection", || rejected(&mut admin, &proxy) > 0);
        proxy.pass();
        assert!(in_time("the call returns", first).expect("the connection is open"));
        for (name, other) in others {
            assert!(in_time(name, other).expect("the caller shares the connection"), "{name}");
        }
    });
}

#[test]
fn the_client_of_a_demoted_master_opens_few_connections() {
    let server = Server::start();
    let client = build(Client::builder().single(server.url()));
    let guard = client.lock("a").lock_owned().expect("a free lock");
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    server.client_kill_type("normal");
    assert!(client.lock("b").try_lock().is_err(), "it is a replica");
    let opened = || -> u64 {
        let opened = server.info("stats").remove("total_connections_received");
        opened.and_then(|opened| opened.parse().ok()).expect("a number")
    };
    let before = opened();
    // Without pauses the client would open more than a thousand in a second.
    thread::sleep(Duration::from_secs(2));
    let opened = opened() - before;
    assert!(opened < 200, "{opened} connections in two seconds");
    drop(guard);
}
