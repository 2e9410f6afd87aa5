//! A logger that panics on threads of the library and of its callers.
//!
//! The test runs in its own process, because a logger cannot be removed.

use crate::harness::process::alone;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, exists};
use leasehold::Client;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

struct PanickingLogger {
    armed: AtomicBool,
    panics: AtomicUsize,
}

static LOG: PanickingLogger =
    PanickingLogger { armed: AtomicBool::new(false), panics: AtomicUsize::new(0) };

impl log::Log for PanickingLogger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.armed.load(Ordering::SeqCst) && record.target().starts_with("leasehold") {
            self.panics.fetch_add(1, Ordering::SeqCst);
            panic!("the panic of the logger");
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
    log::set_logger(&LOG).expect("no other logger is set");
    log::set_max_level(log::LevelFilter::Trace);
    // The default hook would print all panics of the logger.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload().downcast_ref() != Some(&"the panic of the logger") {
            eprintln!("{panic}");
        }
    }));
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let builder = Client::builder().single(proxy.url()).response_timeout(4 * SOON);
    let client =
        builder.watchdog_timeout(4 * SOON).poll_interval(SOON).build().expect("the server answers");
    let lock = client.lock("a");
    LOG.armed.store(true, Ordering::SeqCst);

    // The client logs unknown scripts, broken connections, failed renewals and lost locks, on
    // different threads.
    lock.lock().expect("the lock is free").unlock().expect("the lock is held");
    let guard = lock.lock_owned().expect("the lock is free");
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    server.client_kill_type("normal");
    drop(guard);
    eventually("the release is sent", || server.keys().is_empty());

    // A thread ends with a lock. The other locks are renewed all the same.
    let take = |number: usize| client.lock(format!("other {number}")).lock_owned();
    let others: Vec<_> = (0..8).map(take).collect::<Result<_, _>>().expect("the locks are free");
    let orphan = client.lock("orphan");
    let ended = std::thread::spawn(move || orphan.lock().map(std::mem::forget)).join();
    ended.expect("no panic").expect("the lock is free");
    let clock = client.lock("clock").with_lease(12 * SOON);
    clock.lock_owned().expect("the lock is free").detach();
    eventually("three leases pass", || !exists(&server, "clock"));
    assert!(!exists(&server, "orphan"));
    for guard in others {
        guard.unlock().expect("the lease was renewed");
    }

    let guard = lock.lock_owned().expect("the lock is free");
    proxy.refuse();
    proxy.kill_all();
    assert!(guard.wait_lost(60 * SOON), "no renewal gets through");
    drop(guard);
    proxy.heal();
    eventually("all locks are free", || server.keys().is_empty());

    let guard = client.lock("b").lock_owned().expect("the lock is free");
    proxy.set(Direction::Requests, Flow::Swallow);
    assert!(guard.unlock().is_err_and(|error| error.is_timeout()));
    proxy.kill_all();
    proxy.pass();
    eventually("the release is sent again", || server.keys().is_empty());

    let held = client.lock("c").lock_owned().expect("the lock is free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("c").lock().map(drop));
        let of_the_lock = |channel: &String| channel.ends_with(":{c}");
        eventually("the waiter subscribes", || server.channels().iter().any(of_the_lock));
        server.client_kill_type("pubsub");
        held.unlock().expect("the lock is held");
        assert!(waiter.join().is_ok_and(|outcome| outcome.is_ok()));
    });
    client.close();
    eventually("all locks are free", || server.keys().is_empty());
    assert!(LOG.panics.load(Ordering::SeqCst) >= 4, "each part of the test logs");
    LOG.armed.store(false, Ordering::SeqCst);
}
