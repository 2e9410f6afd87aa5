//! Processes that are killed or stopped while they hold a lock, wait for it, or acquire it.

use crate::harness::faults::*;
use crate::harness::process::{self, Role};
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{ChildProcess, Direction, Flow, Proxy, Server, eventually};
use leasehold::{Client, Error, Guard, Result};
use std::thread;
use std::time::{Duration, Instant};

/// A lease that is short enough to wait for its end.
const SHORT: Duration = Duration::from_secs(1);

/// The lock of all child processes.
const NAME: &str = "shared";

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "increment" => increment(&role),
        Some(role) if role.name() == "increment for ever" => increment_for_ever(&role),
        Some(role) if role.name() == "hold" => hold(&role),
        Some(role) => panic!("unknown: {role:?}"),
    }
}

/// Increments a counter in two threads, as often as the second argument says.
fn increment(role: &Role) {
    let (url, times): (_, usize) = (role.arg(0), role.arg(1).parse().expect("a number"));
    let client = Client::open(url).expect("the server answers");
    role.say("ready");
    role.expect("go");
    thread::scope(|scope| {
        for _ in 0..2 {
            let lock = client.lock(NAME);
            scope.spawn(move || {
                let server = redis::Client::open(url).expect("a good URL");
                let mut server = server.get_connection().expect("the server answers");
                for _ in 0..times {
                    let guard = lock.lock().expect("the server answers");
                    let count: Option<usize> = ask(&mut server, &["GET", "counter"]);
                    let next = (count.unwrap_or(0) + 1).to_string();
                    let () = ask(&mut server, &["SET", "counter", &next]);
                    drop(guard);
                }
            });
        }
    });
    drop(client);
    role.say("done");
}

/// Increments the common counter and one of its own in one script, until it is killed.
fn increment_for_ever(role: &Role) {
    let client = build(patient(role.arg(0)).watchdog_timeout(SHORT));
    let server = redis::Client::open(role.arg(0)).expect("a good URL");
    let mut server = server.get_connection().expect("the server answers");
    loop {
        let guard = client.lock(NAME).lock().expect("the server answers");
        let count: Option<usize> = ask(&mut server, &["GET", "counter"]);
        let both = "redis.call('set', KEYS[1], ARGV[1]) redis.call('incr', KEYS[2])";
        let next = (count.unwrap_or(0) + 1).to_string();
        let () = ask(&mut server, &["EVAL", both, "2", "counter", role.arg(1), &next]);
        drop(guard);
    }
}

fn ask<T: redis::FromRedisValue>(server: &mut redis::Connection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(server).expect("the server answers")
}

/// Takes the lock and executes the orders of the parent. Says the outcome of each.
fn hold(role: &Role) {
    let (url, lease) = (role.arg(0), role.arg(1).parse().expect("milliseconds"));
    let lease = Duration::from_millis(lease);
    let client = build(patient(url).watchdog_timeout(lease));
    let lock = match role.arg(2) {
        "watched" => client.lock(NAME),
        _ => client.lock(NAME).with_lease(lease),
    };
    role.say("ready");
    role.expect("lock");
    let mut guard = match lock.lock() {
        Ok(guard) => Some(guard),
        Err(error) => return role.say(&format!("not locked: {}", kind(&error))),
    };
    role.say("locked");
    while let Some(order) = role.hear() {
        let held = guard.as_ref();
        let outcome = match &*order {
            "check" => held.map_or("nothing", |guard| word(&guard.check())).to_owned(),
            "state" => format!("{:?}", held.map(state).expect("the guard exists")),
            "debug" => format!("{held:?}"),
            "unlock" => word(&guard.take().map_or(Ok(()), Guard::unlock)).to_owned(),
            "drop" => {
                drop(guard.take());
                "dropped".to_owned()
            }
            _ => panic!("{order:?} is no order"),
        };
        role.say(&outcome);
    }
}

/// Returns what the queries of a guard return that have no error.
fn state(guard: &Guard) -> (bool, Duration, bool) {
    (guard.is_held(), guard.remaining(), guard.wait_lost(Duration::ZERO))
}

fn word(outcome: &Result<()>) -> &'static str {
    outcome.as_ref().map_or_else(kind, |()| "good")
}

fn kind(error: &Error) -> &'static str {
    if error.is_lost() {
        "lost"
    } else if error.is_connection() {
        "connection"
    } else {
        "another error"
    }
}

/// Starts a process that is ready to take the lock.
fn holder(url: &str, lease: Duration, how: &str) -> ChildProcess {
    let lease = lease.as_millis().to_string();
    let mut child = ChildProcess::start("processes::child_entry", "hold", &[url, &lease, how]);
    child.expect_line("ready");
    child
}

/// Starts a process and has it take the lock.
fn locked(url: &str, lease: Duration, how: &str) -> ChildProcess {
    let mut child = holder(url, lease, how);
    tell(&mut child, "lock", "locked");
    child
}

#[track_caller]
fn tell(child: &mut ChildProcess, order: &str, outcome: &str) {
    child.send_line(order);
    child.expect_line(outcome);
}

#[test]
fn processes_lose_no_increment() {
    let server = Server::start();
    let (processes, times) = (2 + stress(), 50);
    let start = |_| {
        ChildProcess::start(
            "processes::child_entry",
            "increment",
            &[&server.url(), &times.to_string()],
        )
    };
    let mut children: Vec<_> = (0..processes).map(start).collect();
    children.iter_mut().for_each(|child| child.expect_line("ready"));
    children.iter_mut().for_each(|child| child.send_line("go"));
    children.iter_mut().for_each(|child| child.expect_line("done"));
    assert!(children.iter_mut().all(|child| child.wait().success()));
    assert_eq!(server.ask::<usize>(&["GET", "counter"]), processes * 2 * times);
    assert_eq!(server.keys(), ["counter"]);
}

#[test]
fn processes_that_are_killed_at_any_moment_lose_no_increment() {
    const ROLE: &str = "increment for ever";
    let server = Server::start();
    let count = || server.ask::<Option<usize>>(&["GET", "counter"]).unwrap_or(0);
    let mut own = 0;
    let mut start = || {
        own += 1;
        ChildProcess::start("processes::child_entry", ROLE, &[&server.url(), &format!("own {own}")])
    };
    let mut children = vec![start(), start()];
    for round in 0..4 * stress() {
        children.push(start());
        let before = count();
        eventually("the others advance", || count() > before + 50 + round);
        children.remove(0).kill();
    }
    let before = count();
    eventually("the others advance", || count() > before + 50);
    children.iter_mut().for_each(ChildProcess::kill);
    let counted = |own| server.ask::<Option<usize>>(&["GET", &format!("own {own}")]).unwrap_or(0);
    let counted: usize = (1..=own).map(counted).sum();
    assert_eq!(count(), counted, "increments were lost");
    eventually("the last lease ends", || !exists(&server, NAME));
}

#[test]
fn the_lock_of_a_killed_process_is_free_at_the_end_of_its_lease_not_before() {
    for how in ["watched", "fixed"] {
        let server = Server::start();
        let client = other(&server);
        let mut child = locked(&server.url(), SHORT * 3, how);
        let waiter = Waiter::start(&server, &client, NAME);
        let (then, left) = (Instant::now(), left(&server, NAME));
        child.kill();
        waiter.gets_it();
        let waited = then.elapsed();
        // Redis counts whole milliseconds.
        assert!(waited + Duration::from_millis(2) >= left, "{how}: {waited:?} of {left:?}");
        assert!(waited < SHORT * 3 + BOUND / 3, "{how}: it took {waited:?}");
        waiter.releases();
        drop(client);
        nothing_is_left(&server);
    }
}

#[test]
fn a_killed_waiter_leaves_nothing() {
    let server = Server::start();
    let client = other(&server);
    let guard = client.lock(NAME).lock().expect("it is free");
    let mut child = holder(&server.url(), NEVER, "watched");
    child.send_line("lock");
    eventually("the child waits", || server.numsub(&channel_of(NAME)) == 1);
    child.kill();
    eventually("its subscription ends", || server.numsub(&channel_of(NAME)) == 0);
    guard.unlock().expect("it is held");
    assert_others_can_take(&client, NAME);
    drop(client);
    nothing_is_left(&server);
}

/// Stops a holder until another caller has the lock, resumes it, and sends it these orders.
///
/// The holder has a watched lease, and in a second run a fixed one. Asserts the outcome of each
/// order, and that the hold of the other caller does not change.
fn stopped_past_its_lease(orders: &[(&str, &str)]) {
    for how in ["watched", "fixed"] {
        let server = Server::start();
        let client = other(&server);
        let mut child = locked(&server.url(), SHORT, how);
        child.stop();
        let guard = client.lock(NAME).lock().expect("the lease is over");
        child.resume();
        for (order, outcome) in orders {
            tell(&mut child, order, outcome);
        }
        child.close_input();
        assert!(child.wait().success(), "{how}");
        assert_held(&server, NAME, &guard, NEVER);
        guard.unlock().expect("it is held");
    }
}

#[test]
fn a_process_stopped_past_its_lease_learns_of_the_loss_at_the_first_check() {
    stopped_past_its_lease(&[("check", "lost"), ("unlock", "lost")]);
}

#[test]
fn a_process_stopped_past_its_lease_learns_of_the_loss_at_the_first_query() {
    stopped_past_its_lease(&[("state", "(false, 0ns, true)"), ("check", "lost")]);
}

#[test]
fn the_unlock_of_a_process_stopped_past_its_lease_is_an_error() {
    stopped_past_its_lease(&[("unlock", "lost")]);
}

#[test]
fn the_drop_of_a_process_stopped_past_its_lease_does_not_touch_the_next_hold() {
    stopped_past_its_lease(&[("drop", "dropped")]);
}

#[test]
fn a_process_stopped_for_less_than_its_lease_keeps_the_lock() {
    const LEASE: Duration = Duration::from_secs(6);
    let server = Server::start();
    let mut child = locked(&server.url(), LEASE, "watched");
    for _ in 0..5 * stress() {
        child.stop();
        child.resume();
        tell(&mut child, "check", "good");
    }
    // Right after a renewal no later one would leave more.
    let is_older = || left(&server, NAME) < LEASE - Duration::from_millis(500);
    eventually("the last renewal is older", is_older);
    eventually("the lease is renewed", || !is_older());
    child.stop();
    child.resume();
    tell(&mut child, "check", "good");
    tell(&mut child, "unlock", "good");
    assert!(!exists(&server, NAME));
}

/// Stops a process between its acquire request and the reply, for longer than the lease.
///
/// `then` delivers the reply and resumes the process. Asserts that the outcome in the process is
/// true, and returns it. A stop can interrupt the read of a reply that has arrived. The process
/// then sends the request again, and may get the lock.
fn stopped_before_the_reply(then: impl Fn(&Proxy, &ChildProcess)) -> String {
    let server = Server::start();
    let (digests, client) = (Digests::of(&server), other(&server));
    let proxy = Proxy::start(server.addr());
    let mut child = holder(&proxy.url(), SHORT, "fixed");
    proxy.on_request(digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    child.send_line("lock");
    something_is_held(&proxy);
    child.stop();
    eventually("the lease is over", || !exists(&server, NAME));
    then(&proxy, &child);
    let outcome = child.next_line();
    if outcome == "locked" {
        let owners = owners(&server, NAME);
        let owner = owners.keys().next().expect("the lock is held on the server");
        child.send_line("debug");
        let guard = child.next_line();
        assert!(guard.contains(owner), "{owner} is not {guard}");
        assert_others_cannot_take(&client, NAME);
        tell(&mut child, "unlock", "good");
    }
    child.close_input();
    assert!(child.wait().success());
    proxy.heal();
    eventually("the lock is free", || !exists(&server, NAME));
    assert_others_can_take(&client, NAME);
    outcome
}

#[test]
fn a_reply_that_arrives_during_a_stop_past_the_lease_is_not_a_grant() {
    stopped_before_the_reply(|proxy, child| {
        let forwarded = proxy.stats().replies.forwarded;
        proxy.release_held();
        proxy.wait_for_bytes(Direction::Replies, forwarded + 1);
        child.resume();
    });
}

#[test]
fn an_expired_grant_is_an_error_if_the_server_cannot_be_asked_again() {
    let outcome = stopped_before_the_reply(|proxy, child| {
        proxy.refuse();
        let forwarded = proxy.stats().replies.forwarded;
        proxy.release_held();
        proxy.wait_for_bytes(Direction::Replies, forwarded + 1);
        // The next request gets no reply.
        proxy.cut_requests_after(0);
        child.resume();
    });
    assert!(["not locked: lost", "not locked: connection"].contains(&&*outcome), "{outcome}");
}

#[test]
fn a_reply_that_arrives_after_a_stop_past_the_lease_is_not_a_grant() {
    stopped_before_the_reply(|proxy, child| {
        proxy.refuse();
        child.resume();
        let connects_again = || proxy.stats().refused > 0;
        if !holds_within(SHORT, connects_again) {
            proxy.release_held();
        }
    });
}

#[test]
fn a_stopped_waiter_delays_no_other_caller_and_continues_later() {
    let server = Server::start();
    let client = other(&server);
    let guard = client.lock(NAME).lock().expect("it is free");
    let mut child = holder(&server.url(), NEVER, "watched");
    child.send_line("lock");
    eventually("the child waits", || server.numsub(&channel_of(NAME)) == 1);
    child.stop();
    guard.unlock().expect("it is held");
    let guard = client.lock(NAME).try_lock().expect("all is well").expect("it is free");
    child.resume();
    assert_held(&server, NAME, &guard, NEVER);
    assert_eq!(child.said_already(), Vec::<String>::new());
    guard.unlock().expect("it is held");
    child.expect_line("locked");
    tell(&mut child, "unlock", "good");
}
