//! Nothing is left behind: no thread, descriptor, key, channel or connection.
//!
//! Each scenario runs in its own process, which still runs while the test checks the server.

use crate::harness::faults::*;
use crate::harness::process::{self, Role};
use crate::harness::server::free_port;
use crate::harness::wait::{open_descriptors, threads, threads_named};
use crate::harness::{ChildProcess, Impostor, Server, eventually};
use leasehold::{CancelToken, Client, CountDownGuard, Events, Leader, OwnedGuard, Released};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

/// A short lease or poll interval.
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    let scenario = match role.name() {
        "use" => use_locks,
        "fail to build" => fail_to_build,
        "give up" => give_up,
        "close" => close,
        "close while waiting" => close_while_waiting,
        "open many" => open_many,
        "lose the server" => lose_the_server,
        "drop without a server" => drop_without_a_server,
        "panic" => panic_with_a_guard,
        "drop in a callback" => drop_in_a_callback,
        "leave detached holds" => leave_detached_holds,
        "listen" => listen,
        "observe" => observe,
        "observe once" => observe_once,
        _ => panic!("unknown role: {role:?}"),
    };
    // With its first port, a process has a listener that it keeps.
    free_port();
    let (descriptors, all) = (open_descriptors(), all_threads());
    assert_eq!(library_threads(), Vec::<String>::new());
    scenario(&role);
    eventually("the threads end", || library_threads().is_empty() && all_threads() == all);
    eventually("all descriptors are closed", || open_descriptors() == descriptors);
    role.say("all gone");
    role.expect("bye");
}

/// Returns the names of the threads of the library in this process.
fn library_threads() -> Vec<String> {
    threads().into_keys().filter(|name| name.starts_with("leasehold")).collect()
}

fn all_threads() -> usize {
    threads().into_values().sum()
}

/// Runs a scenario in a child process and checks that the server keeps nothing.
///
/// `meanwhile` is the part of the parent. The child still runs during the check.
fn run_scenario(scenario: &str, server: &Server, meanwhile: impl FnOnce(&mut ChildProcess)) {
    let mut child = ChildProcess::start("leftovers::child_entry", scenario, &[&server.url()]);
    meanwhile(&mut child);
    child.expect_line("all gone");
    nothing_is_left(server);
    child.send_line("bye");
    assert!(child.wait().success());
}

#[test]
fn nothing_is_left_after_use() {
    run_scenario("use", &Server::start(), |_| {});
}

fn use_locks(role: &Role) {
    let (settings, heard) = EventLog::from(Client::builder().single(role.arg(0)));
    let (one, two) = (build(settings), Client::open(role.arg(0)).expect("the server answers"));
    let guard = one.lock("a").lock().expect("the lock is free");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                two.lock("a").lock().expect("the lock is free").unlock().expect("the lock is held")
            });
        }
        assert!(two.lock("a").try_lock_for(SHORT / 10).expect("the server answers").is_none());
        one.lock("b").lock_owned().expect("the lock is free").detach();
        one.lock("b").unlock().expect("the hold is detached");
        drop(guard);
    });
    assert!(heard.released().error.is_none());
    for name in ["leasehold-watch", "leasehold-liste", "leasehold-reape", "leasehold-event"] {
        eventually(name, || library_threads().iter().any(|thread| thread == name));
    }
}

#[test]
fn nothing_is_left_after_elections() {
    run_scenario("observe", &Server::start(), |_| {});
}

/// Leaders, candidates and observers, of which some end by the close of their client.
fn observe(role: &Role) {
    let client = || build(Client::builder().single(role.arg(0)).poll_interval(SHORT / 20));
    let [one, two] = [(); 2].map(|()| client());
    let (closed, dropped) = (two.election("a").observe(), one.election("a").observe());
    let (closed, dropped) = (closed.expect("an answer"), dropped.expect("an answer"));
    let observers = || threads_named("leasehold-observer");
    eventually("two threads observe", || observers() == 2);
    let term = one.election("a").campaign().expect("nobody leads");
    assert!(two.election("a").try_campaign_for(SHORT / 10).expect("an answer").is_none());
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let candidate = scope.spawn(|| two.election("a").run(&stop, |_| stop.cancel()));
        let waits = || one.election("a").waiting().expect("an answer").queue().len() == 1;
        eventually("the candidate waits", waits);
        drop(term);
        candidate.join().expect("no panic").expect("it leads, and is stopped");
    });
    drop(dropped);
    eventually("the observer ends", || observers() == 1);
    two.close();
    assert_eq!(observers(), 0, "the close waits for the thread");
    drop(closed);
}

#[test]
fn receivers_that_are_read_once_and_dropped_share_a_thread() {
    run_scenario("observe once", &Server::start(), |_| {});
}

/// Drops 300 receivers of 100 elections, with no change and no close.
fn observe_once(role: &Role) {
    let client = build(Client::builder().single(role.arg(0)).poll_interval(SHORT / 20));
    let observers = || threads_named("leasehold-observer");
    let observe = |number: usize| {
        let receiver = client.election(format!("a{}", number % 100)).observe().expect("an answer");
        assert_eq!(receiver.recv(), Ok(None), "nobody leads");
        // A thread that the observers' thread has just started has the same name at first.
        assert!(observers() <= 5, "{} threads after {number} receivers", observers());
        receiver
    };
    let kept = observe(0);
    for number in 1..300 {
        drop(observe(number));
    }
    eventually("one thread observes", || observers() == 1);
    let term = client.election("a0").campaign().expect("nobody leads");
    let leads = |state: Option<Leader>| state.is_some_and(|it| it.token() == term.token());
    assert!(kept.iter().any(leads), "the receiver that is left gets its messages");
    drop(kept);
    drop(term);
    eventually("the thread ends", || observers() == 0);
    // A later observer starts the thread again.
    let again = client.election("a0").observe().expect("an answer");
    assert_eq!(again.recv(), Ok(None));
    eventually("a thread observes", || observers() == 1);
    drop(again);
    eventually("the thread ends again", || observers() == 0);
}

#[test]
fn nothing_is_left_after_listeners_and_closures() {
    run_scenario("listen", &Server::start(), |_| {});
}

/// Eight threads set a listener and register a closure at the same time. One thread is left.
fn listen(role: &Role) {
    struct Ignores;
    impl Events for Ignores {}
    let client = Client::open(role.arg(0)).expect("the server answers");
    client.lock("a").lock().expect("the lock is free").unlock().expect("the lock is held");
    let events_threads = || threads_named("leasehold-events");
    assert_eq!(events_threads(), 0, "nothing listens");
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for number in 0..8 {
            let (lock, start) = (client.lock(number.to_string()), &start);
            let guard = lock.lock_owned().expect("the lock is free");
            scope.spawn(move || {
                start.wait();
                let _ = lock.with_events(Arc::new(Ignores));
                guard.on_lost(|| ());
                guard.detach();
            });
        }
    });
    eventually("one thread is left", || events_threads() == 1);
    for number in 0..8 {
        client.lock(number.to_string()).unlock().expect("a detached hold");
    }
}

#[test]
fn nothing_is_left_after_failed_attempts_to_connect() {
    run_scenario("fail to build", &Server::with(|config| config.password("right")), |_| {});
}

fn fail_to_build(role: &Role) {
    let refused = |url: &str| hasty(url).build().map(drop).expect_err("the client cannot connect");
    let wrong = role.arg(0).replace("redis://", "redis://:wrong@");
    let nobody = format!("redis://127.0.0.1:{}/", free_port());
    let silent = Impostor::always("");
    let invalid = Impostor::always("this is no RESP\r\n");
    for _ in 0..20 * stress() {
        assert!(refused(&wrong).is_server());
        assert!(refused(role.arg(0)).is_server(), "the server wants a password");
        assert!(refused(&nobody).is_connection());
        assert!(refused(&invalid.url()).is_connection());
        assert!(refused("redis:///nowhere at all").is_configuration());
    }
    assert!(refused(&silent.url()).is_timeout());
}

#[test]
fn nothing_is_left_after_waits_that_were_given_up() {
    let server = Server::start();
    run_scenario("give up", &server, |child| {
        child.expect_line("given up");
        let no_subscriptions =
            || server.channels().iter().all(|channel| channel.starts_with("leasehold:"));
        eventually("the subscriptions end", no_subscriptions);
        assert_eq!(server.keys(), ["taken"]);
        child.send_line("go on");
    });
}

fn give_up(role: &Role) {
    let client = build(patient(role.arg(0)).poll_interval(SHORT));
    let other_client = build(patient(role.arg(0)));
    let guard = other_client.lock("taken").lock().expect("the lock is free");
    let token = CancelToken::new();
    thread::scope(|scope| {
        for _ in 0..8 {
            let lock = client.lock("taken");
            let cancelled = lock.clone().with_cancel(&token);
            scope.spawn(move || {
                assert!(lock.try_lock_for(SHORT / 5).expect("the server answers").is_none())
            });
            scope.spawn(move || assert!(cancelled.lock().is_err_and(|e| e.is_cancelled())));
        }
        thread::scope(|scope| {
            let lock = client.lock("taken");
            scope
                .spawn(move || lock.try_lock_for(SHORT / 5).map(drop).expect("the server answers"));
        });
        token.cancel();
    });
    role.say("given up");
    role.expect("go on");
    guard.unlock().expect("the lock is held");
}

#[test]
fn nothing_is_left_after_a_close_with_guards_alive() {
    run_scenario("close", &Server::start(), |_| {});
}

fn close(role: &Role) {
    let client = Client::open(role.arg(0)).expect("the server answers");
    let guard = client.lock("a").lock().expect("the lock is free");
    let owned = client.lock("b").lock_owned().expect("the lock is free");
    drop(client.lock("c").lock().expect("the lock is free"));
    client.close();
    eventually("the threads end", || library_threads().is_empty());
    assert!(guard.is_held() && owned.is_held());
    assert!(client.lock("a").try_lock().is_err_and(|error| error.is_closed()));
    client.close();
    guard.unlock().expect("the lock is held");
    drop(owned);
}

#[test]
fn nothing_is_left_after_a_close_while_threads_wait() {
    run_scenario("close while waiting", &Server::start(), |_| {});
}

fn close_while_waiting(role: &Role) {
    let client = Client::open(role.arg(0)).expect("the server answers");
    let other_client = Client::open(role.arg(0)).expect("the server answers");
    let guard = other_client.lock("a").lock().expect("the lock is free");
    let queued = other_client.queue_lock("b").lock().expect("the lock is free");
    thread::scope(|scope| {
        for _ in 0..8 {
            let (lock, queue_lock) = (client.lock("a"), client.queue_lock("b"));
            scope.spawn(move || assert!(lock.lock().is_err_and(|error| error.is_closed())));
            scope.spawn(move || assert!(queue_lock.lock().is_err_and(|error| error.is_closed())));
        }
        eventually("the listener runs", || {
            library_threads().contains(&"leasehold-liste".to_owned())
        });
        client.close();
    });
    drop(client);
    let waiting = other_client.queue_lock("b").waiting().expect("an answer");
    assert!(waiting.queue().is_empty(), "the callers have left the queue: {waiting:?}");
    queued.unlock().expect("the lock is held");
    guard.unlock().expect("the lock is held");
}

#[test]
fn nothing_is_left_of_two_hundred_clients() {
    run_scenario("open many", &Server::start(), |_| {});
}

fn open_many(role: &Role) {
    let open = || Client::open(role.arg(0)).expect("the server answers");
    for number in 0..100 * stress() {
        let client = open();
        drop(client.lock(format!("lock {}", number % 7)).lock().expect("the lock is free"));
    }
    let clients: Vec<_> = (0..100).map(|_| open()).collect();
    let take = |(number, client): (usize, &Client)| {
        client.lock(format!("own {number}")).lock().expect("the lock is free")
    };
    let guards: Vec<_> = clients.iter().enumerate().map(take).collect();
    drop(clients);
    assert!(guards.iter().all(leasehold::Guard::is_held), "guards keep their client alive");
}

#[test]
fn nothing_is_left_after_a_close_without_a_server() {
    run_without_its_server("lose the server");
}

#[test]
fn nothing_is_left_after_a_drop_without_a_server() {
    run_without_its_server("drop without a server");
}

/// Runs a scenario in a child process and kills the server during the scenario.
fn run_without_its_server(scenario: &str) {
    let server = Server::start();
    let mut child = ChildProcess::start("leftovers::child_entry", scenario, &[&server.url()]);
    child.expect_line("ready");
    server.kill();
    child.send_line("the server is gone");
    child.expect_line("all gone");
    child.send_line("bye");
    assert!(child.wait().success());
}

/// Returns a client with a pending release and a pending count at a killed server, and two guards.
fn client_of_a_killed_server(role: &Role) -> (Client, OwnedGuard, CountDownGuard) {
    let settings = hasty(role.arg(0)).watchdog_timeout(SHORT).poll_interval(SHORT);
    let client = build(settings);
    let other_client = build(patient(role.arg(0)));
    other_client.lock("taken").lock().expect("the lock is free").detach();
    let refused = client.lock("taken");
    assert!(refused.try_lock_for(SHORT / 5).expect("the server answers").is_none());
    let dropped = client.lock("dropped").lock_owned().expect("the lock is free");
    let kept = client.lock("kept").lock_owned().expect("the lock is free");
    let latch = client.latch("counted down");
    let (counted, counts_later) = (latch.count_down_on_drop(), latch.count_down_on_drop());
    role.say("ready");
    role.expect("the server is gone");
    drop((dropped, counted));
    (client, kept, counts_later)
}

fn lose_the_server(role: &Role) {
    let (client, kept, counts_later) = client_of_a_killed_server(role);
    client.close();
    drop((kept, counts_later));
}

fn drop_without_a_server(role: &Role) {
    let (client, kept, counts_later) = client_of_a_killed_server(role);
    assert!(client.lock("kept").is_locked().is_err_and(|error| error.is_connection()));
    drop((client, kept, counts_later));
}

#[test]
fn nothing_is_left_after_a_panic_with_a_guard() {
    run_scenario("panic", &Server::start(), |_| {});
}

fn panic_with_a_guard(role: &Role) {
    let client = Client::open(role.arg(0)).expect("the server answers");
    let lock = client.lock("a");
    let panicked = thread::spawn(move || {
        let _guard = lock.lock().expect("the lock is free");
        // `panic!` would print a message in a test that passes.
        std::panic::resume_unwind(Box::new("the panic of this test"));
    });
    assert!(panicked.join().is_err());
    let guard = client.lock("a").try_lock_for(NEVER).expect("the server answers");
    drop(guard.expect("the lock is released"));
}

/// Drops the last handle of the client whose events it receives.
#[derive(Clone, Default)]
struct DropsClient(Arc<Mutex<Option<Client>>>);

impl Events for DropsClient {
    fn released(&self, _event: &Released) {
        drop(self.0.lock().expect("no thread panics").take());
    }
}

#[test]
fn nothing_is_left_when_the_last_handle_is_dropped_in_a_callback() {
    run_scenario("drop in a callback", &Server::start(), |_| {});
}

fn drop_in_a_callback(role: &Role) {
    let last = DropsClient::default();
    let client = build(Client::builder().single(role.arg(0)).events(last.clone()));
    let guard = client.lock("a").lock().expect("the lock is free");
    *last.0.lock().expect("no thread panics") = Some(client);
    drop(guard);
    let dropped = || last.0.lock().expect("no thread panics").is_none();
    eventually("the callback drops the client", dropped);
}

#[test]
fn nothing_is_left_of_detached_holds_that_are_never_unlocked() {
    run_scenario("leave detached holds", &Server::start(), |_| {});
}

fn leave_detached_holds(role: &Role) {
    let client = build(patient(role.arg(0)).watchdog_timeout(SHORT));
    let (lock, owned) = (client.lock("a"), client.lock("b"));
    thread::spawn(move || lock.lock().expect("the lock is free").detach())
        .join()
        .expect("no panic");
    owned.lock_owned().expect("the lock is free").detach();
}
