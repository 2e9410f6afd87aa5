//! The number of attempts and of log lines while a server is away: one growing pause per server,
//! one warning per outage and state, and one line at its end.
//!
//! The bounds are far above the expected numbers, and far below those of a client in which each
//! hold, caller or connection repeats its attempts for itself.

use crate::fake_server::{
    ACQUIRE, FakeServer, HELD, LogCheck, RELEASE, RENEW, default_reply, logged, name_of,
};
use crate::harness::faults::{Waiter, build, other, patient};
use crate::harness::resp::read_request;
use crate::harness::slots::slot;
use crate::harness::{Impostor, Proxy, Server, eventually, exists, in_time};
use leasehold::{Builder, Client, Events, OwnedGuard, RenewalFailed, Sharding};
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// A lease that is long enough for several pauses, and short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(4);

/// Counts the events of failed renewals.
#[derive(Default)]
struct FailureCount(Arc<AtomicUsize>);

impl Events for FailureCount {
    fn renewal_failed(&self, _: &RenewalFailed) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns settings with a short lease.
fn settings(url: &str) -> Builder {
    Client::builder().single(url).watchdog_timeout(LEASE)
}

fn take(client: &Client, holds: usize) -> Vec<OwnedGuard> {
    let lock = |number| client.lock(format!("taken {number}"));
    (0..holds).map(|number| lock(number).lock_owned().expect("free")).collect()
}

/// Blocks until all holds are lost.
fn all_are_lost(guards: &[OwnedGuard]) {
    eventually("all holds are lost", || guards.iter().all(|guard| !guard.is_held()));
}

/// Returns the log lines of this level that name the server.
fn lines(level: &str, server: &str) -> Vec<String> {
    let lines = logged().into_iter();
    lines.filter(|line| line.starts_with(level) && line.contains(server)).collect()
}

/// Asserts that the log has one warning about an outage of the server, and few others.
#[track_caller]
fn assert_one_warning(server: &str, text: &str) {
    let warnings = lines("WARN", server);
    let about = warnings.iter().filter(|line| line.contains(text)).count();
    assert_eq!(about, 1, "{text:?} in {warnings:#?}");
    assert!(warnings.len() <= 3, "{warnings:#?}");
}

/// Starts a server that is also the only node of a cluster. `reply` gets the name of a command, its
/// words and the port; without an answer of its own the server gives the usual one.
fn only_node(
    reply: impl Fn(&str, &[String], u16) -> Option<String> + Send + Sync + 'static,
) -> Impostor {
    let port = Arc::<OnceLock<u16>>::default();
    let its_port = Arc::clone(&port);
    let node = Impostor::answering(move |request| {
        let (name, port) = (name_of(request), *its_port.get()?);
        let usual = || match name.as_str() {
            "CLUSTER" if request[1] == "SLOTS" => {
                let node = format!("*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}")
            }
            "CLUSTER" => "$18\r\ncluster_state:ok\r\n\r\n".to_owned(),
            name => default_reply(name, request),
        };
        let text = reply(&name, request, port).unwrap_or_else(usual);
        (text != CLOSE).then(|| text.into_bytes())
    });
    port.set(node.addr().port()).expect("set once");
    node
}

/// Stands for the end of the connection instead of a reply.
const CLOSE: &str = "close";

/// A server that can begin to close each connection at the first command after `HELLO`.
struct ClosingServer {
    impostor: Impostor,
    closes: Arc<AtomicBool>,
}

impl ClosingServer {
    fn start() -> ClosingServer {
        let closes = Arc::new(AtomicBool::new(false));
        let is_closing = Arc::clone(&closes);
        let impostor = only_node(move |name, request, _| {
            let is_taken = request.iter().any(|word| word.starts_with("awaited"));
            match name {
                "HELLO" => None,
                _ if is_closing.load(Ordering::SeqCst) => Some(CLOSE.to_owned()),
                ACQUIRE if is_taken => Some(HELD.to_owned()),
                _ => None,
            }
        });
        ClosingServer { impostor, closes }
    }
}

/// The reconnection of the watchdog must not wake the watchdog: its connection proves nothing.
fn a_server_that_closes_at_the_first_command_causes_no_storm(
    settings: impl Fn(&str) -> Builder,
    holds: usize,
    waiters: usize,
) {
    let _log_check = LogCheck::start();
    let server = ClosingServer::start();
    let failures = FailureCount::default();
    let failed = Arc::clone(&failures.0);
    let url = server.impostor.url();
    let client = build(settings(&url).events(failures));
    let guards = take(&client, holds);
    for number in 0..waiters {
        let lock = client.lock(format!("awaited {number}"));
        thread::spawn(move || lock.lock().map(drop));
    }
    let (before, address) = (server.impostor.accepted(), server.impostor.addr().to_string());
    server.closes.store(true, Ordering::SeqCst);
    all_are_lost(&guards);
    let connections = server.impostor.accepted() - before;
    let failed = failed.load(Ordering::SeqCst);
    eprintln!(
        "{holds} holds, {waiters} waiters: {connections} connections, {failed} failures, {} lines",
        lines("", &address).len()
    );
    assert!(connections <= 400, "{connections} connections");
    assert!(failed <= 60 * holds, "{failed} events");
    assert!(lines("", &address).len() <= 1_000, "{:#?}", lines("", &address));
    assert_one_warning(&address, "does not answer");
    client.close();
}

#[test]
fn a_server_that_closes_at_the_first_command_causes_no_storm_for_one_hold() {
    a_server_that_closes_at_the_first_command_causes_no_storm(settings, 1, 0);
}

#[test]
fn a_server_that_closes_at_the_first_command_causes_no_storm_for_many_holds_and_waiters() {
    a_server_that_closes_at_the_first_command_causes_no_storm(settings, 50, 20);
}

/// Returns settings for a cluster with a short lease.
fn cluster_settings(url: &str) -> Builder {
    Client::builder().cluster([url]).sharding(Sharding::Off).watchdog_timeout(LEASE)
}

#[test]
fn a_node_that_closes_at_the_first_command_causes_no_storm() {
    a_server_that_closes_at_the_first_command_causes_no_storm(cluster_settings, 50, 20);
}

/// A server that answers one command per connection: each reconnection is reported, and the check
/// that follows needs the next connection.
#[test]
fn a_server_that_answers_one_command_per_connection_causes_no_storm() {
    let server = Impostor::start(|stream| {
        let mut requests = BufReader::new(&stream);
        for _ in 0..2 {
            let Ok(Some(request)) = read_request(&mut requests) else { return };
            let reply = default_reply(&name_of(&request), &request);
            if (&stream).write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    });
    let client = build(settings(&server.url()).announce(false));
    let guards = take(&client, 5);
    let before = server.accepted();
    thread::sleep(LEASE);
    let connections = server.accepted() - before;
    eprintln!("{connections} connections");
    assert!(connections <= 200, "{connections} connections");
    drop(guards);
    client.close();
}

#[test]
fn many_holds_share_one_pause_while_the_server_is_away() {
    let _log_check = LogCheck::start();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let failures = FailureCount::default();
    let failed = Arc::clone(&failures.0);
    let client = build(settings(&proxy.url()).events(failures));
    let guards = take(&client, 300);
    proxy.refuse();
    proxy.kill_all();
    all_are_lost(&guards);
    let (attempts, failed) = (proxy.stats().refused, failed.load(Ordering::SeqCst));
    eprintln!("{attempts} attempts, {failed} events");
    assert!(attempts <= 200, "{attempts} attempts to connect");
    assert!(failed <= 60 * guards.len(), "{failed} events");
    let address = proxy.addr().to_string();
    assert_one_warning(&address, "does not answer");

    proxy.heal();
    drop(guards);
    client.lock("after").lock().expect("the server is back").unlock().expect("it is held");
    let ends = || lines("INFO", &address).iter().filter(|it| it.contains("answers again")).count();
    eventually("the end of the outage is logged", || ends() == 1);
    client.close();
}

#[test]
fn many_waiting_threads_share_one_pause_while_the_server_is_away() {
    const THREADS: usize = 200;
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (holder, client) = (other(&server), build(settings(&proxy.url())));
    let name = |number| format!("wanted {number}");
    let held: Vec<_> =
        (0..THREADS).map(|it| holder.lock(name(it)).lock_owned().expect("free")).collect();
    let waiters: Vec<_> =
        (0..THREADS).map(|it| Waiter::start(&server, &client, &name(it))).collect();
    let start = Instant::now();
    proxy.refuse();
    proxy.kill_all();
    thread::sleep(LEASE);
    let attempts = proxy.stats().refused;
    eprintln!("{attempts} attempts in {:?}", start.elapsed());
    assert!(attempts <= 200, "{attempts} attempts to connect");
    proxy.heal();
    held.into_iter().for_each(|guard| guard.unlock().expect("it is held"));
    waiters.iter().for_each(Waiter::gets_it);
    waiters.into_iter().for_each(Waiter::releases);
}

#[test]
fn many_holds_share_one_pause_while_the_server_refuses_renewals() {
    let _log_check = LogCheck::start();
    let fake = FakeServer::start();
    let client = build(settings(&fake.url()));
    let guards = take(&client, 200);
    fake.reply_always(RENEW, "-NOREPLICAS Not enough good replicas to write.\r\n");
    all_are_lost(&guards);
    let renewals = fake.requests(RENEW);
    eprintln!("{renewals} renewals");
    assert!(renewals <= 200, "{renewals} calls");
    let address = fake.url().replace("redis://", "").replace('/', "");
    assert_one_warning(&address, "NOREPLICAS");
    client.close();
}

/// Waiting calls for locks of several servers that are away.
fn waiting_calls_share_one_pause<G>(
    name: &str,
    most: usize,
    wait: impl Fn([&Client; 3], String) -> leasehold::Result<Option<G>> + Sync,
) {
    const THREADS: usize = 100;
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let proxies = servers.each_ref().map(|server| Proxy::start(server.addr()));
    let clients = proxies.each_ref().map(|proxy| build(settings(&proxy.url()).announce(false)));
    let holders = servers.each_ref().map(other);
    let names: Vec<_> = (0..THREADS).map(|number| format!("{name} {number}")).collect();
    let take = |client: &Client| -> Vec<_> {
        names.iter().map(|it| client.lock(it).lock_owned().expect("free")).collect()
    };
    let held = holders.each_ref().map(take);
    let attempts = thread::scope(|scope| {
        for name in &names {
            let (wait, clients) = (&wait, clients.each_ref());
            scope.spawn(move || drop(wait(clients, name.clone())));
        }
        let waiting = || clients.iter().map(|client| client.stats().waiting_now()).max();
        eventually("all wait", || waiting() >= Some(THREADS as u64));
        proxies.iter().for_each(Proxy::refuse);
        proxies.iter().for_each(Proxy::kill_all);
        thread::sleep(LEASE);
        proxies.iter().map(|proxy| proxy.stats().refused).sum::<usize>()
    });
    eprintln!("{name}: {attempts} attempts");
    assert!(attempts <= most, "{attempts} attempts to connect");
    drop(held);
}

#[test]
fn many_waiting_red_locks_share_one_pause_while_their_servers_are_away() {
    waiting_calls_share_one_pause("red", 400, |clients, name| {
        leasehold::RedLock::new(clients.map(Clone::clone), name).try_lock_for(2 * LEASE)
    });
}

#[test]
fn many_waiting_multi_locks_share_one_pause_while_their_servers_are_away() {
    waiting_calls_share_one_pause("multi", 200, |clients, name| {
        let locks = clients.map(|client| client.lock(&name));
        leasehold::MultiLock::new(locks).try_lock_for(2 * LEASE)
    });
}

/// While some connections work and a new one cannot be made, the server has one outage.
#[test]
fn a_server_with_one_missing_connection_has_one_warning() {
    let log_check = LogCheck::start();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (holder, client) = (other(&server), build(settings(&proxy.url())));
    let held = client.lock("held").lock_owned().expect("free");
    let theirs = holder.lock("awaited").lock_owned().expect("free");
    let waiter = Waiter::start(&server, &client, "awaited");
    proxy.refuse();
    server.client_kill_type("pubsub");
    // Answers of the open connections come between the attempts of the listener.
    let before = proxy.stats().refused;
    let lock = client.lock("busy");
    let has_failed_often = || {
        drop(lock.lock().expect("its connection is open"));
        proxy.stats().refused >= before + 12
    };
    eventually("the listener has tried often", has_failed_often);
    let address = proxy.addr().to_string();
    let about = |level, text: &str| {
        let lines = lines(level, &address).into_iter();
        lines.filter(|line| line.contains(text)).count()
    };
    let told = (about("WARN", "does not answer"), about("INFO", "answers again"));
    assert_eq!(told, (1, 0), "{:#?}", logged());
    assert!(held.is_held());
    theirs.unlock().expect("held");
    // Neither a message nor a new connection: the poll asks on an open connection.
    waiter.gets_it();
    proxy.heal();
    waiter.releases();
    drop(log_check);
}

/// The second call makes a connection, because the first one is busy, and gets no login.
#[test]
fn a_call_whose_new_connection_cannot_log_in_uses_an_open_one() {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"]);
    let proxy = Proxy::start(server.addr());
    let client = build(patient(format!("redis://app:old@{}", proxy.addr())).pool_size(2));
    client.lock("warm").lock().expect("free").unlock().expect("held");
    client.lock("warm").lock().expect("free").unlock().expect("held");
    server.ask::<()>(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
    proxy.hold_replies();
    let accepted = proxy.stats().accepted;
    thread::scope(|scope| {
        let first = scope.spawn(|| client.lock("first").try_lock_owned());
        eventually("the first call is sent", || exists(&server, "first"));
        let second = scope.spawn(|| client.lock("second").try_lock_owned());
        proxy.wait_until("it makes a connection", |stats| stats.accepted > accepted);
        proxy.pass();
        for (call, name) in [(first, "first"), (second, "second")] {
            let guard = in_time(name, call).expect("on the open connection").expect("free");
            guard.unlock().expect("held");
        }
    });
}

/// The error of a connection that cannot be made is no error of a call with an open connection.
#[test]
fn a_waiting_call_goes_on_with_its_connection_while_others_cannot_log_in() {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"]);
    let client = build(settings(&server.login_url("app", "old")));
    let theirs = other(&server).lock("awaited").lock_owned().expect("free");
    let held = client.lock("held").lock_owned().expect("free");
    let waiter = Waiter::start(&server, &client, "awaited");
    server.ask::<()>(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
    // The watchdog makes its connection for the first renewal, or, on a stalled machine, has made
    // it before. It has the number behind those of the pool.
    for peer in server.clients().iter().filter(|peer| peer.name.contains(":8.")) {
        server.client_kill(peer.id);
    }
    all_are_lost(&[held]);
    assert!(client.lock("free").try_lock().is_ok_and(|guard| guard.is_some()));
    theirs.unlock().expect("held");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn requests_that_a_node_always_redirects_are_repeated_with_a_growing_pause() {
    const REQUESTS: usize = 20;
    let releases = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&releases);
    let node = only_node(move |name, request, port| match name {
        RELEASE => {
            count.fetch_add(1, Ordering::SeqCst);
            Some(format!("-MOVED {} 127.0.0.1:{port}\r\n", slot(&request[3])))
        }
        _ => None,
    });
    let client = build(cluster_settings(&node.url()).watchdog_timeout(2 * LEASE));
    take(&client, REQUESTS).into_iter().for_each(drop);
    thread::sleep(LEASE);
    let releases = releases.load(Ordering::SeqCst);
    eprintln!("{releases} releases");
    // Each attempt follows a few redirects.
    assert!((REQUESTS..=25 * REQUESTS).contains(&releases), "{releases} releases");
}
