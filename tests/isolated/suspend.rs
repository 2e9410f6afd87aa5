//! Suspended machines: a process notices passed leases and deadlines soon after it resumes.

use crate::harness::faults::*;
use crate::harness::process::{self, Role};
use crate::harness::{BootClock, ChildProcess, Server, eventually};
use leasehold::{Client, MultiLock};
use std::thread;
use std::time::Duration;

/// A suspension longer than any lease or deadline of these tests.
const NIGHT: Duration = Duration::from_secs(8 * 3600);

/// A lease or deadline longer than a test and shorter than the night.
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "wait" => wait(&role),
        Some(role) if role.name() == "hold" => hold(&role),
        Some(role) => panic!("unknown role: {role:?}"),
    }
}

fn client(role: &Role) -> Client {
    build(patient(role.arg(0)))
}

/// Waits for a lock with two threads of one queue, for an hour each.
fn wait(role: &Role) {
    let client = client(role);
    let lock = client.lock("a");
    let waits = || lock.try_lock_for(HOUR).map(|guard| guard.is_some());
    thread::scope(|scope| {
        let first = scope.spawn(waits);
        let second = scope.spawn(waits);
        // Both deadlines are before the end of the night.
        eventually("both threads wait", || client.stats().waiting_now() == 2);
        role.say("waiting");
        let outcomes = [first, second].map(|wait| wait.join().expect("no panic"));
        role.say(&format!("{:?}", outcomes.map(|outcome| outcome.expect("a reply"))));
    });
    role.hear();
}

/// Takes locks and waits for the loss of the holds.
fn hold(role: &Role) {
    let client = client(role);
    let guard = client.lock("b").with_lease(HOUR).lock().expect("the lock is free");
    let both = MultiLock::new([client.lock("c"), client.lock("d")]).with_lease(HOUR);
    let both = both.lock_owned().expect("the locks are free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| both.wait_lost(NIGHT));
        role.say("held");
        role.say(&guard.wait_lost(NIGHT).to_string());
        role.say(&waits.join().expect("no panic").to_string());
    });
    assert!(!guard.is_held() && !both.is_held());
    role.hear();
}

fn child(clock: &BootClock, role: &str, server: &Server) -> ChildProcess {
    let variables = clock.variables();
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    ChildProcess::start_with("suspend::child_entry", role, &[&server.url()], &variables)
}

#[test]
fn waits_end_soon_after_a_suspension_in_which_their_deadlines_passed() {
    let (server, clock) = (Server::start(), BootClock::new());
    let guard = build(patient(server.url())).lock("a").lock_owned().expect("the lock is free");
    let mut waiting = child(&clock, "wait", &server);
    waiting.expect_line("waiting");
    eventually("the waiter subscribes", || server.numsub("redisson_lock__channel:{a}") > 0);
    clock.suspend_for(NIGHT);
    waiting.expect_line("[false, false]");
    assert!(guard.is_held(), "the machine of the holder was not suspended");
}

#[test]
fn losses_are_noticed_soon_after_a_suspension() {
    let (server, clock) = (Server::start(), BootClock::new());
    let mut holder = child(&clock, "hold", &server);
    holder.expect_line("held");
    clock.suspend_for(NIGHT);
    holder.expect_line("true");
    holder.expect_line("true");
}
