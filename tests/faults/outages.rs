//! Servers that go away, come back with or without their data, stand still, close
//! connections or forget scripts.

use crate::harness::faults::*;
use crate::harness::wait::holds_within;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, exists, in_time};
use leasehold::{Client, Error, Guard, MultiLock};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval that is soon over.
const SOON: Duration = Duration::from_millis(200);

#[test]
fn a_holder_finds_its_lock_lost_when_the_server_comes_back_without_it() {
    let server = Server::start();
    let (settings, heard) = EventLog::from(patient(server.url()));
    let (holder, waiting) = (build(settings), build(patient(server.url()).poll_interval(SOON)));
    let guard = holder.lock("gone").lock().expect("all is well");
    let waiter = Waiter::start(&server, &waiting, "gone");

    server.kill();
    server.restart();
    waiter.gets_it();
    assert!(guard.is_held(), "nobody has told it, and its lease is long");
    holder.lock("another").is_locked().expect("it connects again");
    assert_eq!(&*heard.lost().name, "gone");
    assert!(!guard.is_held() && guard.wait_lost(Duration::ZERO));
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(owners(&server, "gone").len(), 1, "the waiter's hold is untouched");
    waiter.releases();
}

/// A question whether a hold counts as valid.
type IsHeld<'a> = (&'static str, Box<dyn Fn() -> bool + 'a>);

/// One hold of each kind with a fixed lease that outlives the test.
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

/// The holds that count as valid.
fn valid(holds: &[IsHeld<'_>]) -> Vec<&'static str> {
    holds.iter().filter(|(_, is_held)| is_held()).map(|(kind, _)| *kind).collect()
}

#[test]
fn fixed_leases_of_all_kinds_are_lost_when_the_server_comes_back_without_them() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let holds = fixed_holds(&client);
    assert_eq!(valid(&holds).len(), holds.len());
    server.kill();
    server.restart();
    client.lock("another").is_locked().expect("it connects again");
    let lost = || valid(&holds).is_empty();
    assert!(holds_within(NEVER / 4, lost), "still held: {:?}", valid(&holds));
}

#[test]
fn fixed_leases_of_all_kinds_are_kept_as_they_are_by_a_server_that_comes_back_with_them() {
    let server = Server::with(|config| config.line("appendonly yes").line("appendfsync always"));
    let client = build(patient(server.url()));
    let holds = fixed_holds(&client);
    let ends = |name: &str| server.ask::<i64>(&["PEXPIRETIME", name]);
    let before: Vec<_> = server.keys().iter().map(|name| (name.clone(), ends(name))).collect();
    server.kill();
    server.restart();
    client.lock("another").is_locked().expect("it connects again");
    // One command for reading, one for all others, and what loads their scripts.
    eventually("they are asked for", || server.calls("hexists") >= holds.len() as u64);
    let after: Vec<_> = before.iter().map(|(name, _)| (name.clone(), ends(name))).collect();
    assert_eq!(after, before, "a lease was changed");
    assert_eq!(valid(&holds).len(), holds.len());
}

/// Each call finds its connection closed, and the watchdog its own.
#[test]
fn connections_that_a_server_closes_because_they_are_idle_have_leases_renewed_once() {
    const LOCKS: u64 = 100;
    let server = Server::with(|config| config.line("timeout 1"));
    let client = build(patient(server.url()));
    let take = |number| client.lock(format!("kept {number}")).lock_owned().expect("free");
    let guards: Vec<_> = (0..LOCKS).map(take).collect();
    let taken = server.calls("pexpire");
    let ours = || server.clients().iter().filter(|peer| peer.name.starts_with("leasehold")).count();
    for _ in 0..4 {
        eventually("all connections are closed", || ours() == 0);
        let before = server.calls("hello");
        client.lock("another").is_locked().expect("it connects again");
        eventually("the watchdog asks", || server.calls("hello") >= before + 2);
    }
    let renewed = server.calls("pexpire") - taken;
    assert!(renewed <= LOCKS, "{renewed} renewals of {LOCKS} leases");
    drop(guards);
}

#[test]
fn a_hold_survives_a_server_that_keeps_a_log_and_is_killed() {
    let logging = Server::with(|config| config.line("appendonly yes").line("appendfsync always"));
    survives_with_its_waiter(&logging, Server::kill);
}

#[test]
fn a_hold_survives_a_server_that_saves_and_ends() {
    survives_with_its_waiter(&Server::start(), Server::shutdown_save);
}

fn survives_with_its_waiter(server: &Server, end: impl Fn(&Server)) {
    let (settings, heard) = EventLog::from(patient(server.url()));
    let (holder, waiting) = (build(settings), build(patient(server.url())));
    let guard = holder.lock("kept").lock().expect("all is well");
    let waiter = Waiter::start(server, &waiting, "kept");

    end(server);
    server.restart();
    // Only a message can wake it: its poll interval is far away.
    waiter.is_subscribed(server, "kept");
    let before = left(server, "kept");
    holder.lock("another").is_locked().expect("it connects again");
    heard.until("a renewal", |told| matches!(told, Event::Renewed(_)).then_some(()));
    assert!(left(server, "kept") > before, "it was not renewed at once");
    assert_held(server, "kept", &guard, NEVER);
    waiter.still_waits();
    guard.unlock().expect("it is held");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn who_was_refused_once_waits_through_refused_connections() {
    waits_through(|proxy| {
        proxy.refuse();
        proxy.kill_all();
        let refused = proxy.stats().refused;
        proxy.wait_until("a few tries", |stats| stats.refused > refused + 8);
    });
}

#[test]
fn who_was_refused_once_waits_through_silence() {
    waits_through(|proxy| {
        proxy.swallow_replies();
        let accepted = proxy.stats().accepted;
        proxy.wait_until("a few tries", |stats| stats.accepted > accepted + 4);
    });
}

fn waits_through(outage: impl Fn(&Proxy)) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, beside) = (build(hasty(proxy.url()).poll_interval(SOON)), other(&server));
    let guard = beside.lock("far").lock().expect("its way is straight");
    let waiter = Waiter::start(&server, &client, "far");
    outage(&proxy);
    assert!(guard.is_held());
    waiter.still_waits();
    proxy.heal();
    guard.unlock().expect("its way is straight");
    waiter.gets_it();
    waiter.releases();
    drop((client, beside));
    nothing_is_left(&server);
}

#[test]
fn a_connection_that_breaks_under_its_very_first_question_is_made_again() {
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
        let guard = outcome.expect("another connection is enough").expect("it is free");
        assert_held(&server, "on the second", &guard, NEVER);
    });
    assert_eq!(proxy.stats().triggered, 2);
}

/// First questions of every sort; each has to fail with what is returned.
fn first_questions(client: &Client) -> Vec<Error> {
    let lock = client.lock("unasked");
    let started = Instant::now();
    let errors = vec![
        lock.lock().map(drop).expect_err("nobody answers"),
        lock.try_lock().map(drop).expect_err("nobody answers"),
        lock.try_lock_for(NEVER).map(drop).expect_err("nobody answers"),
        lock.is_locked().map(drop).expect_err("nobody answers"),
        lock.force_unlock().map(drop).expect_err("nobody answers"),
    ];
    let each = started.elapsed() / u32::try_from(errors.len()).expect("few");
    assert!(each < BRIEF * 10, "more than a connect and a response time-out: {each:?}");
    errors
}

#[test]
fn a_first_question_without_a_server_fails() {
    let server = Server::start();
    let clients = [server.url(), server.unix_url()].map(|url| build(hasty(url)));
    server.kill();
    for error in clients.iter().flat_map(first_questions) {
        assert!(error.is_connection(), "{error}");
    }
    server.restart();
    for client in clients {
        client.lock("unasked").lock().expect("it is back").unlock().expect("it is held");
    }
}

#[test]
fn a_first_question_to_a_server_that_stands_still_fails() {
    let server = Server::start();
    let clients = [server.url(), server.unix_url()].map(|url| build(hasty(url)));
    server.stop();
    let errors: Vec<_> = thread::scope(|scope| {
        let both = clients.each_ref().map(|client| scope.spawn(|| first_questions(client)));
        both.map(|errors| errors.join().expect("no panic")).into_iter().flatten().collect()
    });
    server.resume();
    for error in errors {
        assert!(error.is_timeout(), "{error}");
    }
    eventually("what was taken late is freed", || !exists(&server, "unasked"));
    for client in clients {
        client.lock("unasked").lock().expect("it is back").unlock().expect("it is held");
    }
}

#[test]
fn a_first_question_does_not_wait_for_what_others_owe() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(hasty(proxy.url()));
    let take = |number| client.lock(format!("owed {number}")).lock_owned().expect("all is well");
    let mut guards: Vec<_> = (0..50).map(take).collect();
    proxy.swallow_replies();
    thread::scope(|scope| {
        let asking = scope.spawn(|| client.lock("unasked").try_lock().map(drop));
        proxy.wait_until("its question", |stats| stats.replies.swallowed > 0);
        // It is the one that speaks with the server; at every try there is more to say.
        let mut tries = 0;
        let in_time = holds_within(BRIEF * 20, || {
            let accepted = proxy.stats().accepted;
            guards.truncate(guards.len() - usize::from(accepted > tries));
            tries = accepted;
            asking.is_finished()
        });
        proxy.pass();
        drop(guards);
        assert!(in_time, "far more than a connect and a response time-out");
        let error = asking.join().expect("no panic").expect_err("nobody answers");
        assert!(error.is_timeout(), "{error}");
    });
    eventually("all that is owed is sent", || server.keys().is_empty());
}

#[test]
fn a_deadline_that_passes_without_an_answer_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, beside) = (build(hasty(proxy.url()).poll_interval(SOON)), other(&server));
    let guard = beside.lock("far").lock().expect("its way is straight");
    let lock = client.lock("far");
    let outcome = lock.try_lock_for(SOON * 3).expect("all is well, but it is taken");
    assert!(outcome.is_none(), "two hold the lock");
    eventually("the subscription ends", || server.numsub(&channel_of("far")) == 0);

    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.try_lock_for(SOON * 20).map(|guard| guard.is_some()));
        let subscribed = || server.numsub(&channel_of("far")) == 1;
        eventually("it has been refused", subscribed);
        proxy.refuse();
        proxy.kill_all();
        let error = waiter.join().expect("no panic").expect_err("nobody knows whether it is free");
        assert!(error.is_connection(), "{error}");
    });
    guard.unlock().expect("its way is straight");
}

#[test]
fn a_deadline_that_passes_in_line_behind_one_without_an_answer_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, beside) = (build(hasty(proxy.url()).poll_interval(SOON)), other(&server));
    let guard = beside.lock("far").lock().expect("its way is straight");
    let front = Waiter::start(&server, &client, "far");
    proxy.refuse();
    proxy.kill_all();
    let refused = proxy.stats().refused;
    proxy.wait_until("a few tries", |stats| stats.refused > refused + 4);
    let outcome = client.lock("far").try_lock_for(SOON);
    proxy.heal();
    guard.unlock().expect("its way is straight");
    front.gets_it();
    front.releases();
    let error = outcome.map(|guard| guard.is_some()).expect_err("nobody knows whether it is free");
    assert!(error.is_connection(), "{error}");
}

#[test]
fn a_server_that_stands_still_for_less_than_the_lease_costs_no_hold() {
    const LEASE: Duration = Duration::from_secs(6);
    let server = Server::start();
    let (settings, heard) = EventLog::from(patient(server.url()).watchdog_timeout(LEASE));
    let (holder, waiting) = (build(settings), build(patient(server.url()).poll_interval(SOON)));
    let guard = holder.lock("kept").lock().expect("all is well");
    let waiter = Waiter::start(&server, &waiting, "kept");
    server.stop();
    heard.until("a failed renewal", |told| matches!(told, Event::RenewalFailed(_)).then_some(()));
    assert!(guard.is_held(), "its lease is not over");
    server.resume();
    heard.until("a renewal", |told| matches!(told, Event::Renewed(_)).then_some(()));
    assert_held(&server, "kept", &guard, LEASE);
    waiter.still_waits();
    guard.unlock().expect("it is held");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_renewal_without_an_answer_is_tried_again_in_time() {
    const LEASE: Duration = Duration::from_secs(3);
    for direction in [Direction::Requests, Direction::Replies] {
        let server = Server::start();
        let (proxy, digests) = (Proxy::start(server.addr()), Digests::of(&server));
        let (settings, heard) = EventLog::from(patient(proxy.url()).watchdog_timeout(LEASE));
        let client = build(settings);
        let guard = client.lock("kept").lock().expect("all is well");
        proxy.on_request(digests.renew.as_bytes(), direction, Flow::Swallow);
        heard.until("a failure", |told| matches!(told, Event::RenewalFailed(_)).then_some(()));
        heard.until("a renewal", |told| matches!(told, Event::Renewed(_)).then_some(()));
        assert_held(&server, "kept", &guard, LEASE);
        guard.unlock().expect("it is held");
    }
}

#[test]
fn a_pause_longer_than_the_response_time_out_fails_and_leaves_nothing() {
    let server = Server::start();
    let (client, beside) = (build(hasty(server.url()).poll_interval(SOON)), other(&server));
    let guard = beside.lock("taken").lock().expect("all is well");
    let waiter = Waiter::start(&server, &client, "taken");
    pause(&server, BRIEF * 4);
    let error = client.lock("paused").try_lock().expect_err("it does not answer in time");
    assert!(error.is_timeout(), "{error}");
    guard.unlock().expect("it waits for the end of the pause");
    waiter.gets_it();
    waiter.releases();
    eventually("what was taken late is freed", || !exists(&server, "paused"));
    assert_others_can_take(&beside, "paused");
    drop((client, beside));
    nothing_is_left(&server);
}

/// Keeps all commands waiting.
fn pause(server: &Server, span: Duration) {
    server.ask::<()>(&["CLIENT", "PAUSE", &span.as_millis().to_string(), "ALL"]);
}

/// Eight threads of two processes' worth of clients increment a counter that only
/// the lock guards, while `trouble` is made: after all of them have got on since the
/// last, so that what suffices against one is never asked to suffice against two.
fn increments_survive(trouble: impl Fn(&Server)) {
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
        let ends = Ends(&done);
        for _ in 0..10 * stress() {
            let before = all();
            let on = || all().iter().zip(&before).all(|(now, before)| *now >= before + 2);
            eventually("every thread gets on", on);
            trouble(&server);
        }
        drop(ends);
    });
    let counted: usize = server.ask(&["GET", "counter"]);
    assert_eq!(counted, all().iter().sum(), "increments were lost");
    server.ask::<()>(&["DEL", "counter"]);
    drop(clients);
    nothing_is_left(&server);
}

/// A client with two connections, both of which stand.
fn connected(server: &Server) -> Client {
    let client = build(patient(server.url()).pool_size(2));
    eventually("both connections", || {
        thread::scope(|scope| {
            let ask = || client.lock("any").is_locked().expect("all is well");
            (0..4).for_each(|_| drop(scope.spawn(ask)));
        });
        let id = client.id().to_string();
        server.clients().iter().filter(|peer| peer.name.contains(&id)).count() == 2
    });
    client
}

/// Tells the threads of a test to end, also when it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn increment(client: &Client, connection: &mut redis::Connection, progress: &AtomicUsize) {
    let guard = client.lock("guarded").lock().expect("a new connection is enough");
    let get = redis::cmd("GET").arg("counter").query::<Option<usize>>(connection);
    let count = get.expect("our own connection stays").unwrap_or(0);
    let set = redis::cmd("SET").arg(&["counter", &(count + 1).to_string()]).query(connection);
    let () = set.expect("our own connection stays");
    match count % 2 {
        0 => guard.unlock().expect("a new connection is enough"),
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
fn forgotten_scripts_cost_no_error_and_no_increment() {
    increments_survive(|server| {
        let flush = || server.ask::<()>(&["SCRIPT", "FLUSH"]);
        (0..20).for_each(|_| flush());
    });
}

#[test]
fn short_pauses_cost_no_error_and_no_increment() {
    increments_survive(|server| pause(server, Duration::from_millis(50)));
}

/// While the only connection is busy, and another cannot be made, a release stands in line
/// for the one that there is.
#[test]
fn a_dropped_guard_does_not_count_on_a_new_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()).pool_size(2));
    let guard = client.lock("dropped").lock().expect("all is well");
    proxy.refuse();
    proxy.hold_replies();
    thread::scope(|scope| {
        let asking = scope.spawn(|| client.lock("asked").try_lock().map(|guard| guard.is_some()));
        eventually("it is asked for", || exists(&server, "asked"));
        drop(guard);
        assert!(exists(&server, "dropped"), "the connection is busy");
        proxy.pass();
        assert!(in_time("it is answered", asking).expect("the connection stands"));
    });
    eventually("both are free", || server.keys().is_empty());
}

#[test]
fn a_caller_shares_a_connection_if_another_cannot_be_made() {
    shares_the_only_connection(|_, proxy| proxy.refuse(), |_, proxy| proxy.stats().refused);
}

#[test]
fn a_caller_shares_a_connection_if_the_server_takes_no_more() {
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
    let ask = &|name| client.lock(name).try_lock().map(|guard| guard.is_some());
    thread::scope(|scope| {
        let first = scope.spawn(|| ask("a"));
        eventually("the one connection is busy", || {
            redis::cmd("EXISTS").arg("a").query(&mut admin).expect("EXISTS")
        });
        let others = ["b", "c"].map(|name| (name, scope.spawn(move || ask(name))));
        eventually("one wants another connection", || rejected(&mut admin, &proxy) > 0);
        proxy.pass();
        assert!(in_time("it is answered", first).expect("the connection stands"));
        for (name, other) in others {
            assert!(in_time(name, other).expect("it shares the connection"), "{name}");
        }
    });
}

#[test]
fn a_master_that_was_demoted_is_not_stormed() {
    let server = Server::start();
    let client = build(Client::builder().single(server.url()));
    let guard = client.lock("a").lock_owned().expect("a free lock");
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    server.client_kill_type("normal");
    assert!(client.lock("b").try_lock().is_err(), "it is a replica");
    let made = || -> u64 {
        let made = server.info("stats").remove("total_connections_received");
        made.and_then(|made| made.parse().ok()).expect("a number")
    };
    let before = made();
    // Without a pause it would be more than a thousand in a second.
    thread::sleep(Duration::from_secs(2));
    let made = made() - before;
    assert!(made < 200, "{made} connections in two seconds");
    drop(guard);
}
