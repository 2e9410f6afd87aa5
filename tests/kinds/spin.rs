//! The spin lock: waiters do not subscribe, and ask again after a pause.

use crate::harness::faults::{build, patient};
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Server, eventually, in_time};
use leasehold::{BackOff, Guard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn waiters_do_not_subscribe_and_releases_do_not_publish() {
    let server = Server::start();
    let (holder, client) = (build(patient(server.url())), build(patient(server.url())));
    let guard = holder.spin_lock("a").lock().expect("it is free");
    let before = server.calls("evalsha");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.spin_lock("a").lock().and_then(Guard::unlock));
        eventually("the waiter asks again", || server.calls("evalsha") > before + 3);
        assert_eq!(server.channels(), Vec::<String>::new());
        guard.unlock().expect("it was held");
        in_time("the waiter returns", waiter).expect("the lock is granted");
    });
    assert_eq!((server.calls("publish"), server.calls("subscribe")), (0, 0));
}

/// With the default pauses the call would send many more requests.
#[test]
fn the_back_off_can_be_set() {
    let server = Server::start();
    let holder = build(patient(server.url()));
    let seldom = BackOff::Constant(Duration::from_secs(2));
    let client = build(patient(server.url()).spin_back_off(seldom));
    let guard = holder.spin_lock("a").lock().expect("it is free");
    let before = server.calls("evalsha");
    assert!(
        client.spin_lock("a").try_lock_for(Duration::from_millis(900)).expect("None").is_none()
    );
    assert_eq!(server.calls("evalsha") - before, 1, "one request before the deadline");
    guard.unlock().expect("it was held");
    let none = BackOff::Constant(Duration::ZERO);
    let error = patient(server.url()).spin_back_off(none).build().map(drop);
    assert!(error.is_err_and(|error| error.is_configuration()));
}

/// A process that takes the lock again and again pauses at times.
#[test]
fn a_busy_process_does_not_starve_another_one() {
    let server = Server::start();
    let (busy, other) = (build(patient(server.url())), build(patient(server.url())));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(busy.spin_lock("a").lock().expect("the lock is granted in the end"));
                }
            });
        }
        let waiter = scope.spawn(|| other.spin_lock("a").lock().and_then(Guard::unlock));
        let got = holds_within(BOUND, || waiter.is_finished());
        stop.store(true, Ordering::Relaxed);
        waiter.join().expect("no panic").expect("the lock is granted in the end");
        assert!(got, "the waiter got the lock only after the busy process ended");
    });
}

/// The other waiters queue in the process, and send no requests.
#[test]
fn only_one_waiter_of_a_process_spins() {
    const THREADS: usize = 4;
    let server = Server::start();
    let holder = build(patient(server.url()));
    let pause = Duration::from_millis(50);
    let client = build(patient(server.url()).spin_back_off(BackOff::Constant(pause)));
    let guard = holder.spin_lock("a").lock().expect("it is free");
    thread::scope(|scope| {
        let wait = || client.spin_lock("a").lock().and_then(Guard::unlock);
        let waiters: Vec<_> = (0..THREADS).map(|_| scope.spawn(wait)).collect();
        // Each pause lasts at least half of `pause`, so several spinning waiters would be faster.
        let (before, began) = (server.calls("evalsha"), Instant::now());
        eventually("ten requests", || server.calls("evalsha") >= before + 10);
        assert!(began.elapsed() >= 8 * pause / 2, "several waiters spin");
        guard.unlock().expect("it was held");
        for waiter in waiters {
            in_time("a waiter returns", waiter).expect("the lock is granted");
        }
    });
    eventually("nothing is left", || server.keys().is_empty());
}
