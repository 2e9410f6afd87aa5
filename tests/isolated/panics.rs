//! A logger that panics: foreign code on this library's threads, and on its callers'.
//!
//! One test, in a process of its own: a logger is there for good.

use crate::harness::process::alone;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, exists};
use leasehold::Client;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

struct Clumsy {
    armed: AtomicBool,
    panics: AtomicUsize,
}

static LOG: Clumsy = Clumsy { armed: AtomicBool::new(false), panics: AtomicUsize::new(0) };

impl log::Log for Clumsy {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.armed.load(Ordering::SeqCst) && record.target().starts_with("leasehold") {
            self.panics.fetch_add(1, Ordering::SeqCst);
            panic!("a clumsy logger");
        }
    }
    fn flush(&self) {}
}

#[test]
fn a_logger_that_panics_breaks_nothing() {
    if !alone("panics::a_logger_that_panics_breaks_nothing") {
        return;
    }
    const SOON: Duration = Duration::from_millis(500);
    log::set_logger(&LOG).expect("nobody else logs");
    log::set_max_level(log::LevelFilter::Trace);
    // The panics are on purpose, and many.
    std::panic::set_hook(Box::new(|_| {}));
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let builder = Client::builder().single(proxy.url()).response_timeout(SOON);
    let client = builder.watchdog_timeout(4 * SOON).poll_interval(SOON).build().expect("a server");
    let lock = client.lock("a");
    LOG.armed.store(true, Ordering::SeqCst);

    // Scripts that the server does not know, connections that break, renewals that fail,
    // and a lock that is lost: each is logged, on the one thread or the other.
    lock.lock().expect("it is free").unlock().expect("it is held");
    let guard = lock.lock_owned().expect("it is free");
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    server.client_kill_type("normal");
    drop(guard);
    eventually("the release is sent", || server.keys().is_empty());

    // A thread that ends with a lock of its own: that of others are renewed all the same.
    let take = |number: usize| client.lock(format!("other {number}")).lock_owned();
    let others: Vec<_> = (0..8).map(take).collect::<Result<_, _>>().expect("they are free");
    let orphan = client.lock("orphan");
    let ended = std::thread::spawn(move || orphan.lock().map(std::mem::forget)).join();
    ended.expect("no panic").expect("it is free");
    let clock = client.lock("clock").with_lease(12 * SOON);
    clock.lock_owned().expect("it is free").detach();
    eventually("three leases to pass", || !exists(&server, "clock"));
    assert!(!exists(&server, "orphan"));
    others.into_iter().for_each(|guard| guard.unlock().expect("it was renewed"));

    let guard = lock.lock_owned().expect("it is free");
    proxy.refuse();
    proxy.kill_all();
    assert!(guard.wait_lost(60 * SOON), "no renewal gets through");
    drop(guard);
    proxy.heal();
    eventually("what is left is freed", || server.keys().is_empty());

    let guard = client.lock("b").lock_owned().expect("it is free");
    proxy.set(Direction::Requests, Flow::Swallow);
    assert!(guard.unlock().is_err_and(|error| error.is_timeout()));
    proxy.kill_all();
    proxy.pass();
    eventually("the release is sent again", || server.keys().is_empty());

    let held = client.lock("c").lock_owned().expect("it is free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("c").lock().map(drop));
        eventually("it listens", || !server.channels().is_empty());
        server.client_kill_type("pubsub");
        held.unlock().expect("it is held");
        assert!(waiter.join().is_ok_and(|outcome| outcome.is_ok()));
    });
    client.close();
    eventually("nothing is left", || server.keys().is_empty());
    assert!(LOG.panics.load(Ordering::SeqCst) >= 4, "all this is logged");
    LOG.armed.store(false, Ordering::SeqCst);
}
