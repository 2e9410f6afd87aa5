//! The spin lock: it subscribes to nothing, and asks again after a while.

use crate::harness::faults::{build, patient};
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Server, eventually, in_time};
use leasehold::{BackOff, Guard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn nobody_subscribes_and_nothing_is_published() {
    let server = Server::start();
    let (holder, client) = (build(patient(server.url())), build(patient(server.url())));
    let guard = holder.spin_lock("a").lock().expect("it is free");
    let before = server.calls("evalsha");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.spin_lock("a").lock().and_then(Guard::unlock));
        eventually("it asks again", || server.calls("evalsha") > before + 3);
        assert_eq!(server.channels(), Vec::<String>::new());
        guard.unlock().expect("it was held");
        in_time("the waiter", waiter).expect("it got the lock");
    });
    assert_eq!((server.calls("publish"), server.calls("subscribe")), (0, 0));
}

/// The pauses are those that were set: the default's would be many times as many.
#[test]
fn the_back_off_is_a_setting() {
    let server = Server::start();
    let holder = build(patient(server.url()));
    let seldom = BackOff::Constant(Duration::from_secs(2));
    let client = build(patient(server.url()).spin_back_off(seldom));
    let guard = holder.spin_lock("a").lock().expect("it is free");
    let before = server.calls("evalsha");
    assert!(
        client.spin_lock("a").try_lock_for(Duration::from_millis(900)).expect("None").is_none()
    );
    assert_eq!(server.calls("evalsha") - before, 1, "once, and then its time was over");
    guard.unlock().expect("it was held");
    let none = BackOff::Constant(Duration::ZERO);
    let error = patient(server.url()).spin_back_off(none).build().map(drop);
    assert!(error.is_err_and(|error| error.is_configuration()));
}

/// A process that takes it again and again leaves it alone now and then.
#[test]
fn another_process_gets_it_from_one_that_goes_on_and_on() {
    let server = Server::start();
    let (busy, other) = (build(patient(server.url())), build(patient(server.url())));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(busy.spin_lock("a").lock().expect("it comes round"));
                }
            });
        }
        let waiter = scope.spawn(|| other.spin_lock("a").lock().and_then(Guard::unlock));
        let got = holds_within(BOUND, || waiter.is_finished());
        stop.store(true, Ordering::Relaxed);
        waiter.join().expect("no panic").expect("it comes round");
        assert!(got, "only when the others had ended");
    });
}

/// Several threads of a process take turns; only one of them asks.
#[test]
fn one_of_a_process_spins() {
    const THREADS: usize = 4;
    let server = Server::start();
    let holder = build(patient(server.url()));
    let pause = Duration::from_millis(50);
    let client = build(patient(server.url()).spin_back_off(BackOff::Constant(pause)));
    let guard = holder.spin_lock("a").lock().expect("it is free");
    thread::scope(|scope| {
        let wait = || client.spin_lock("a").lock().and_then(Guard::unlock);
        let waiters: Vec<_> = (0..THREADS).map(|_| scope.spawn(wait)).collect();
        // Each pause is at least half of it: several that asked would take less.
        let (before, began) = (server.calls("evalsha"), Instant::now());
        eventually("they ask", || server.calls("evalsha") >= before + 10);
        assert!(began.elapsed() >= 8 * pause / 2, "more than one of them asks");
        guard.unlock().expect("it was held");
        waiters.into_iter().for_each(|waiter| {
            in_time("a waiter", waiter).expect("it got the lock");
        });
    });
    eventually("nothing is left", || server.keys().is_empty());
}
