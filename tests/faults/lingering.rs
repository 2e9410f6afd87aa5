//! Holds that linger, under faults: they end as other holds do, and nobody is told of a loss.

use crate::harness::details::wake_channel;
use crate::harness::faults::*;
use crate::harness::process::{ChildProcess, role};
use crate::harness::{Direction, Flow, Proxy, Server, eventually};
use leasehold::{Client, Lock};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);

fn lingering(client: &Client, linger: Duration) -> Lock {
    client.lock("a").with_linger(linger)
}

fn numsub_of(server: &Server, client: &Client) -> usize {
    server.numsub(&wake_channel(client.id()))
}

#[test]
fn requests_that_get_lost_cost_a_linger_time() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let control = subscribe(&wake_channel(client.id()));
    proxy.on_request(&control, Direction::Replies, Flow::Swallow);
    let begun = Instant::now();
    drop(lingering(&client, SHORT).lock().expect("free"));
    eventually("the listener seems to listen", || numsub_of(&server, &client) == 1);
    other(&server).lock("a").lock().expect("given up").unlock().expect("held");
    assert!(begun.elapsed() >= SHORT, "nobody else gave the hold up");
}

#[test]
fn a_hold_that_lingers_is_renewed() {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    drop(lingering(&client, BRISK / 2).lock().expect("free"));
    assert_eq!(events.renewed(1), [1]);
    eventually("the linger time ends", || !exists(&server, "a"));
    assert_eq!(client.stats().lost_in_total(), 0);
}

#[test]
fn a_hold_whose_loss_is_known_is_not_taken_over() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let lock = lingering(&client, NEVER / 2);
    for round in 1..4 {
        drop(lock.lock().expect("free"));
        server.ask::<u32>(&["DEL", "a"]);
        assert_eq!(lock.is_locked(), Ok(false));
        let guard = lock.lock().expect("free");
        assert!(exists(&server, "a") && guard.is_held(), "a new hold");
        drop(guard);
        drop(lock.lock().expect("it lingers"));
        assert_eq!(client.stats().lingered(), round);
        assert!(client.force_unlock("a").expect("a reply"));
    }
    assert_eq!(client.stats().lost_in_total(), 0);
}

/// The lease of a guard that took a hold over is the one that the server keeps.
#[test]
fn a_hold_that_lingers_ends_with_its_lease_during_an_outage() {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let lock = lingering(&client, BRISK / 2);
    drop(lock.lock().expect("free"));
    server.stop();
    let guard = lock.lock().expect("it lingers, without a command");
    assert!(guard.is_held() && guard.remaining() <= BRISK);
    let lost = events.lost();
    assert_eq!((&*lost.name, guard.is_held()), ("a", false));
    server.resume();
    drop(guard);
    eventually("the lock can be taken", || lock.try_lock().is_ok_and(|it| it.is_some()));
}

#[test]
fn a_lost_reply_to_the_release_of_a_hold_that_lingered_leaves_nothing() {
    let server = Server::start();
    let digests = Digests::of(&server);
    let proxy = Proxy::start(server.addr());
    let (settings, events) = EventLog::from(hasty(proxy.url()));
    let client = build(settings);
    let begun = Instant::now();
    drop(lingering(&client, SHORT).lock().expect("free"));
    let held = begun.elapsed();
    proxy.on_request(digests.release.as_bytes(), Direction::Replies, Flow::Swallow);
    let released = events.released();
    assert_eq!((&*released.name, &released.error), ("a", &None));
    assert!(released.held <= held, "the time in which nobody had it does not count");
    assert_others_can_take(&other(&server), "a");
    assert_eq!(client.stats().lost_in_total(), 0);
}

#[test]
fn child_entry() {
    let Some(role) = role() else { return };
    let client = build(patient(role.arg(0)).watchdog_timeout(Duration::from_secs(2)));
    drop(lingering(&client, Duration::from_secs(1)).lock().expect("free"));
    role.say("lingers");
    role.hear();
}

#[test]
fn the_lock_of_a_killed_process_is_free_after_the_lease() {
    let server = Server::start();
    let mut child = ChildProcess::start("lingering::child_entry", "lingers", &[&server.url()]);
    child.expect_line("lingers");
    child.kill();
    if exists(&server, "a") {
        assert!(left(&server, "a") <= Duration::from_secs(2));
    }
    eventually("the lease ends", || !exists(&server, "a"));
    assert_others_can_take(&other(&server), "a");
}
