//! What is left when all is over: no thread, no descriptor, no key, no channel, no
//! connection. Each scene is played in a process of its own, which is still there
//! when the server is looked at.

use crate::harness::faults::*;
use crate::harness::process::{self, Role};
use crate::harness::server::free_port;
use crate::harness::wait::{open_descriptors, threads};
use crate::harness::{ChildProcess, Impostor, Server, eventually};
use leasehold::{CancelToken, Client, Events, Released};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A lease, or a poll interval, that is soon over.
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    let scene = match role.name() {
        "use" => use_it,
        "fail to build" => fail_to_build,
        "give up" => give_up,
        "close" => close,
        "close while waiting" => close_while_waiting,
        "open many" => open_many,
        "lose the server" => lose_the_server,
        "drop without a server" => drop_without_a_server,
        "panic" => panic_with_it,
        "drop in a callback" => drop_in_a_callback,
        "leave it locked" => leave_it_locked,
        _ => panic!("nobody plays {role:?}"),
    };
    let (descriptors, all) = (open_descriptors(), all_threads());
    assert_eq!(ours(), Vec::<String>::new());
    scene(&role);
    eventually("the threads end", || ours().is_empty() && all_threads() == all);
    eventually("all descriptors are closed", || open_descriptors() == descriptors);
    role.say("all gone");
    role.expect("bye");
}

/// The library's threads in this process.
fn ours() -> Vec<String> {
    threads().into_keys().filter(|name| name.starts_with("leasehold")).collect()
}

fn all_threads() -> usize {
    threads().into_values().sum()
}

/// Has the scene played, with `while_it_plays` for what it needs of its parent, and
/// looks at what is left of it on the server while its process is still there.
fn play(scene: &str, server: &Server, while_it_plays: impl FnOnce(&mut ChildProcess)) {
    let mut child = ChildProcess::start("leftovers::child_entry", scene, &[&server.url()]);
    while_it_plays(&mut child);
    child.expect_line("all gone");
    nothing_is_left(server);
    child.send_line("bye");
    assert!(child.wait().success());
}

#[test]
fn nothing_is_left_after_use() {
    play("use", &Server::start(), |_| {});
}

fn use_it(role: &Role) {
    let (settings, heard) = EventLog::from(Client::builder().single(role.arg(0)));
    let (one, two) = (build(settings), Client::open(role.arg(0)).expect("the server answers"));
    let guard = one.lock("a").lock().expect("it is free");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| two.lock("a").lock().expect("it is free").unlock().expect("held"));
        }
        assert!(two.lock("a").try_lock_for(SHORT / 10).expect("all is well").is_none());
        one.lock("b").lock_owned().expect("it is free").detach();
        one.lock("b").unlock().expect("it was detached");
        drop(guard);
    });
    assert!(heard.released().error.is_none());
    for name in ["leasehold-watch", "leasehold-liste", "leasehold-reape", "leasehold-event"] {
        eventually(name, || ours().iter().any(|ours| ours == name));
    }
}

#[test]
fn nothing_is_left_after_failed_attempts_to_connect() {
    play("fail to build", &Server::with(|config| config.password("right")), |_| {});
}

fn fail_to_build(role: &Role) {
    let refused = |url: &str| hasty(url).build().map(drop).expect_err("it cannot be built");
    let wrong = role.arg(0).replace("redis://", "redis://:wrong@");
    let nobody = format!("redis://127.0.0.1:{}/", free_port());
    let silent = Impostor::always("");
    let babbling = Impostor::always("this is no RESP\r\n");
    for _ in 0..20 * stress() {
        assert!(refused(&wrong).is_server());
        assert!(refused(role.arg(0)).is_server(), "it wants a password");
        assert!(refused(&nobody).is_connection());
        assert!(refused(&babbling.url()).is_connection());
        assert!(refused("redis:///nowhere at all").is_configuration());
    }
    assert!(refused(&silent.url()).is_timeout());
}

#[test]
fn nothing_is_left_after_waits_that_were_given_up() {
    let server = Server::start();
    play("give up", &server, |child| {
        child.expect_line("given up");
        let none = || server.channels().iter().all(|channel| channel.starts_with("leasehold:"));
        eventually("the subscriptions end", none);
        assert_eq!(server.keys(), ["taken"]);
        child.send_line("go on");
    });
}

fn give_up(role: &Role) {
    let client = build(patient(role.arg(0)).poll_interval(SHORT));
    let beside = build(patient(role.arg(0)));
    let guard = beside.lock("taken").lock().expect("it is free");
    let token = CancelToken::new();
    thread::scope(|scope| {
        for _ in 0..8 {
            let lock = client.lock("taken");
            let cancelled = lock.clone().with_cancel(&token);
            scope.spawn(move || assert!(lock.try_lock_for(SHORT / 5).expect("well").is_none()));
            scope.spawn(move || assert!(cancelled.lock().is_err_and(|e| e.is_cancelled())));
        }
        thread::scope(|scope| {
            let lock = client.lock("taken");
            scope.spawn(move || lock.try_lock_for(SHORT / 5).map(drop).expect("all is well"));
        });
        token.cancel();
    });
    role.say("given up");
    role.expect("go on");
    guard.unlock().expect("nobody took it away");
}

#[test]
fn nothing_is_left_after_a_close_with_guards_alive() {
    play("close", &Server::start(), |_| {});
}

fn close(role: &Role) {
    let client = Client::open(role.arg(0)).expect("the server answers");
    let guard = client.lock("a").lock().expect("it is free");
    let owned = client.lock("b").lock_owned().expect("it is free");
    drop(client.lock("c").lock().expect("it is free"));
    client.close();
    eventually("the threads end", || ours().is_empty());
    assert!(guard.is_held() && owned.is_held());
    assert!(client.lock("a").try_lock().is_err_and(|error| error.is_closed()));
    client.close();
    guard.unlock().expect("it is held");
    drop(owned);
}

#[test]
fn nothing_is_left_after_a_close_while_others_wait() {
    play("close while waiting", &Server::start(), |_| {});
}

fn close_while_waiting(role: &Role) {
    let client = Client::open(role.arg(0)).expect("the server answers");
    let beside = Client::open(role.arg(0)).expect("the server answers");
    let guard = beside.lock("a").lock().expect("it is free");
    thread::scope(|scope| {
        for _ in 0..8 {
            let lock = client.lock("a");
            scope.spawn(move || assert!(lock.lock().is_err_and(|error| error.is_closed())));
        }
        eventually("they listen", || ours().contains(&"leasehold-liste".to_owned()));
        client.close();
    });
    drop(client);
    guard.unlock().expect("nobody took it away");
}

#[test]
fn nothing_is_left_of_two_hundred_clients() {
    play("open many", &Server::start(), |_| {});
}

fn open_many(role: &Role) {
    let open = || Client::open(role.arg(0)).expect("the server answers");
    for number in 0..100 * stress() {
        let client = open();
        drop(client.lock(format!("lock {}", number % 7)).lock().expect("it is free"));
    }
    let clients: Vec<_> = (0..100).map(|_| open()).collect();
    let guards = clients.iter().enumerate();
    let guards: Vec<_> = guards
        .map(|(number, client)| client.lock(format!("own {number}")).lock().expect("it is free"))
        .collect();
    drop(clients);
    assert!(guards.iter().all(leasehold::Guard::is_held), "guards keep their client alive");
}

#[test]
fn nothing_is_left_after_a_close_without_a_server() {
    let server = Server::start();
    without_its_server("lose the server", &server);
}

#[test]
fn nothing_is_left_after_a_drop_without_a_server() {
    let server = Server::start();
    without_its_server("drop without a server", &server);
}

fn without_its_server(scene: &str, server: &Server) {
    let mut child = ChildProcess::start("leftovers::child_entry", scene, &[&server.url()]);
    child.expect_line("ready");
    server.kill();
    child.send_line("the server is gone");
    child.expect_line("all gone");
    child.send_line("bye");
    assert!(child.wait().success());
}

/// A client with a guard, a waiter, and a release that nobody answers any more.
fn busy_client_of_a_dead_server(role: &Role) -> (Client, leasehold::OwnedGuard) {
    let settings = hasty(role.arg(0)).watchdog_timeout(SHORT).poll_interval(SHORT);
    let client = build(settings);
    let beside = build(patient(role.arg(0)));
    beside.lock("taken").lock().expect("it is free").detach();
    let waiter = client.lock("taken");
    assert!(waiter.try_lock_for(SHORT / 5).expect("all is well").is_none());
    let dropped = client.lock("dropped").lock_owned().expect("it is free");
    let kept = client.lock("kept").lock_owned().expect("it is free");
    role.say("ready");
    role.expect("the server is gone");
    drop(dropped);
    (client, kept)
}

fn lose_the_server(role: &Role) {
    let (client, kept) = busy_client_of_a_dead_server(role);
    client.close();
    drop(kept);
}

fn drop_without_a_server(role: &Role) {
    let (client, kept) = busy_client_of_a_dead_server(role);
    assert!(client.lock("kept").is_locked().is_err_and(|error| error.is_connection()));
    drop((client, kept));
}

#[test]
fn nothing_is_left_after_a_panic_with_a_guard() {
    play("panic", &Server::start(), |_| {});
}

fn panic_with_it(role: &Role) {
    let client = Client::open(role.arg(0)).expect("the server answers");
    let lock = client.lock("a");
    let panicked = thread::spawn(move || {
        let _guard = lock.lock().expect("it is free");
        // Not panic!(): its message would stand in the output of a test that passes.
        std::panic::resume_unwind(Box::new("as it should"));
    });
    assert!(panicked.join().is_err());
    let guard = client.lock("a").try_lock_for(NEVER).expect("all is well");
    drop(guard.expect("it was released"));
}

/// Drops the last handle of the client whose events it is told.
#[derive(Clone, Default)]
struct DropsClient(Arc<Mutex<Option<Client>>>);

impl Events for DropsClient {
    fn released(&self, _event: &Released) {
        drop(self.0.lock().expect("nobody panics with it").take());
    }
}

#[test]
fn nothing_is_left_when_the_last_handle_is_dropped_in_a_callback() {
    play("drop in a callback", &Server::start(), |_| {});
}

fn drop_in_a_callback(role: &Role) {
    let last = DropsClient::default();
    let client = build(Client::builder().single(role.arg(0)).events(last.clone()));
    let guard = client.lock("a").lock().expect("it is free");
    *last.0.lock().expect("nobody panics with it") = Some(client);
    drop(guard);
    let dropped = || last.0.lock().expect("nobody panics with it").is_none();
    eventually("the callback drops it", dropped);
}

#[test]
fn nothing_is_left_of_locks_that_nobody_ends() {
    play("leave it locked", &Server::start(), |_| {});
}

fn leave_it_locked(role: &Role) {
    let client = build(patient(role.arg(0)).watchdog_timeout(SHORT));
    let (lock, owned) = (client.lock("a"), client.lock("b"));
    thread::spawn(move || lock.lock().expect("it is free").detach()).join().expect("no panic");
    owned.lock_owned().expect("it is free").detach();
}
