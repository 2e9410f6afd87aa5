//! Lost messages: the listener's connection is killed, receives nothing, or gets no confirmation
//! of a subscription. Waiters get the lock nevertheless.

use crate::harness::details::wake_channel;
use crate::harness::faults::*;
use crate::harness::proxy::Stats;
use crate::harness::synchronizers::SYNCHRONIZERS;
use crate::harness::wait::BOUND;
use crate::harness::{Direction, Flow, Proxy, Server, await_unchanged, eventually};
use leasehold::Client;
use std::time::Duration;

struct Stage {
    server: Server,
    digests: Digests,
    proxy: Proxy,
    client: Client,
    other: Client,
}

impl Stage {
    /// Makes a client whose waiters ask again only after a message or a new subscription.
    fn new() -> Stage {
        Stage::confirming_within(BOUND)
    }

    fn confirming_within(response: Duration) -> Stage {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let settings = patient(proxy.url()).pool_size(2).response_timeout(response);
        let client = build(settings);
        let (digests, other) = (Digests::of(&server), other(&server));
        Stage { server, digests, proxy, client, other }
    }

    fn waiter(&self, name: &str) -> Waiter {
        Waiter::start(&self.server, &self.client, name)
    }

    /// Sets the flow of the listener's connection from its next `SUBSCRIBE` to this channel alone.
    fn on_subscribe(&self, channel: &str, direction: Direction, flow: Flow) {
        self.proxy.on_request(&subscribe(channel), direction, flow);
    }

    fn kill_listener(&self) {
        eventually("a listener to kill", || self.server.client_kill_type("pubsub") == 1);
    }

    fn attempts(&self) -> u64 {
        self.server.calls("evalsha")
    }

    /// Blocks until callers send no more attempts and only wait for messages.
    ///
    /// If this returned too early, a test would check less, and not fail.
    fn await_no_attempts(&self) {
        await_unchanged("the attempts end", BRIEF / 4, || Some(self.attempts()));
    }
}

#[test]
fn a_release_before_the_subscription_is_found_by_the_attempt_after_it() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("no fault affects this client");
    stage.on_subscribe(&channel_of("a"), Direction::Requests, Flow::Hold);
    let waiter = Waiter::spawn(&stage.client, "a");
    something_is_held(&stage.proxy);
    stage.await_no_attempts();
    guard.unlock().expect("no fault affects this client");
    waiter.still_waits();
    stage.proxy.release_held();
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_release_while_the_listener_reconnects_is_found_after_the_reconnect() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("no fault affects this client");
    let waiter = stage.waiter("a");
    for _ in 0..3 {
        let before = stage.attempts();
        stage.proxy.on_request(b"HELLO", Direction::Requests, Flow::Hold);
        stage.kill_listener();
        something_is_held(&stage.proxy);
        eventually("the waiter asks again", || stage.attempts() > before);
        stage.proxy.release_held();
        waiter.is_subscribed(&stage.server, "a");
        waiter.still_waits();
    }
    stage.proxy.on_request(b"HELLO", Direction::Requests, Flow::Hold);
    stage.kill_listener();
    something_is_held(&stage.proxy);
    stage.await_no_attempts();
    guard.unlock().expect("no fault affects this client");
    stage.proxy.release_held();
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn many_subscriptions_are_made_again_after_a_reconnect() {
    let stage = Stage::new();
    let names: Vec<_> = (0..20 * stress()).map(|number| format!("lock {number}")).collect();
    let take = |name| stage.other.lock(name).lock_owned().expect("no fault affects this client");
    let guards: Vec<_> = names.iter().map(take).collect();
    let waiters: Vec<_> = names.iter().map(|name| stage.waiter(name)).collect();
    stage.kill_listener();
    for (name, waiter) in names.iter().zip(&waiters) {
        waiter.is_subscribed(&stage.server, name);
        waiter.still_waits();
    }
    for guard in guards {
        guard.unlock().expect("no fault affects this client");
    }
    for waiter in waiters {
        waiter.gets_it();
        waiter.releases();
    }
}

#[test]
fn a_listener_connection_that_receives_nothing_is_found_by_the_missing_heartbeat() {
    let stage = Stage::new();
    let take = |name| stage.other.lock(name).lock().expect("no fault affects this client");
    let (first, second) = (take("first"), take("second"));
    let waiter = stage.waiter("first");
    // The waiter has made its attempt after the confirmation of its subscription.
    stage.await_no_attempts();
    // From the second subscription on, the listener receives nothing.
    stage.on_subscribe(&channel_of("second"), Direction::Replies, Flow::Swallow);
    let bystander = Waiter::spawn(&stage.client, "second");
    stage.proxy.wait_until("replies to be dropped", |stats| stats.replies.swallowed > 0);
    let before = stage.proxy.stats();
    first.unlock().expect("no fault affects this client");
    let swallowed = |stats: &Stats| stats.replies.swallowed > before.replies.swallowed;
    stage.proxy.wait_until("the message to be dropped", swallowed);
    waiter.gets_it();
    assert!(stage.proxy.stats().accepted > before.accepted, "the listener did not reconnect");
    waiter.releases();

    // The new connection is subscribed, also to the channel that the old one did not confirm.
    bystander.is_subscribed(&stage.server, "second");
    bystander.still_waits();
    second.unlock().expect("no fault affects this client");
    bystander.gets_it();
    bystander.releases();
}

#[test]
fn an_unconfirmed_subscription_is_repeated() {
    let stage = Stage::confirming_within(BRIEF);
    let guard = stage.other.lock("a").lock().expect("no fault affects this client");
    stage.on_subscribe(&channel_of("a"), Direction::Requests, Flow::Hold);
    stage.on_subscribe(&channel_of("a"), Direction::Replies, Flow::Swallow);
    let waiter = Waiter::spawn(&stage.client, "a");
    something_is_held(&stage.proxy);
    stage.await_no_attempts();
    // No subscriber receives this message. Only the confirmation of a subscription can cause the
    // next attempt.
    guard.unlock().expect("no fault affects this client");
    stage.proxy.release_held();
    stage.proxy.wait_until("the confirmation to be dropped", |s| s.replies.swallowed > 0);
    stage.proxy.pass();
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn an_unconfirmed_control_channel_is_subscribed_again() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("no fault affects this client");
    let control_channel = wake_channel(stage.client.id());
    stage.on_subscribe(&control_channel, Direction::Replies, Flow::Swallow);
    let waiter = stage.waiter("a");
    stage.await_no_attempts();
    guard.unlock().expect("no fault affects this client");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_quiet_listener_connection_stays_open() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("no fault affects this client");
    let waiter = stage.waiter("a");
    let before = stage.server.calls("publish");
    eventually("the first heartbeat", || stage.server.calls("publish") > before);
    let accepted = stage.proxy.stats().accepted;
    // Longer than the silence that would close the connection.
    eventually("more heartbeats", || stage.server.calls("publish") > before + 5);
    assert_eq!(stage.proxy.stats().accepted, accepted, "the listener reconnected");
    guard.unlock().expect("no fault affects this client");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_client_that_may_not_subscribe_polls() {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    let mute = "user mute on >secret ~* &* +@all -subscribe";
    let server = Server::with(|config| config.line(mute));
    let client = build(patient(server.login_url("mute", "secret")).poll_interval(POLL_INTERVAL));
    let beside = other(&server);
    let guard = beside.lock("a").lock().expect("no fault affects this client");
    let waiter = Waiter::spawn(&client, "a");
    let asked = server.calls("evalsha");
    eventually("the waiter polls", || server.calls("evalsha") > asked + 3);
    waiter.still_waits();
    guard.unlock().expect("no fault affects this client");
    waiter.gets_it();
    waiter.releases();
    assert_eq!(server.channels(), Vec::<String>::new());
}

#[test]
fn a_caller_refused_while_the_listener_connects_is_subscribed_too() {
    let stage = Stage::new();
    let take = |name| stage.other.lock(name).lock().expect("no fault affects this client");
    let (slow, quick) = (take("slow"), take("quick"));
    // The first attempt is sent before the listener exists, so it does not wake the listener. The
    // listener exists when the reply is read.
    stage.proxy.on_request(stage.digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let slow_waiter = Waiter::spawn(&stage.client, "slow");
    something_is_held(&stage.proxy);
    let quick_waiter = stage.waiter("quick");
    eventually("the first heartbeat", || stage.server.calls("publish") > 0);
    stage.proxy.release_held();
    slow_waiter.is_subscribed(&stage.server, "slow");
    for (guard, waiter) in [(slow, slow_waiter), (quick, quick_waiter)] {
        waiter.still_waits();
        guard.unlock().expect("no fault affects this client");
        waiter.gets_it();
        waiter.releases();
    }
}

// ---------------------------------------------------------------------------------
// Semaphores and latches.

#[test]
fn a_permit_or_a_count_before_the_subscription_is_found_by_the_question_after_it() {
    for kind in SYNCHRONIZERS {
        let stage = Stage::new();
        kind.occupy(&stage.server, "a");
        stage.on_subscribe(&kind.channel("a"), Direction::Requests, Flow::Hold);
        let waiter = kind.wait(&stage.client, "a");
        something_is_held(&stage.proxy);
        stage.await_no_attempts();
        kind.free(&stage.server, "a");
        waiter.still_waits();
        stage.proxy.release_held();
        waiter.ends();
    }
}

#[test]
fn a_permit_or_a_count_while_the_listener_reconnects_is_found_after_the_reconnect() {
    for kind in SYNCHRONIZERS {
        let stage = Stage::new();
        kind.occupy(&stage.server, "a");
        let waiter = kind.wait_subscribed(&stage.server, &stage.client, "a");
        stage.await_no_attempts();
        stage.proxy.on_request(b"HELLO", Direction::Requests, Flow::Hold);
        stage.kill_listener();
        something_is_held(&stage.proxy);
        stage.await_no_attempts();
        kind.free(&stage.server, "a");
        waiter.still_waits();
        stage.proxy.release_held();
        waiter.ends();
    }
}

/// Redisson publishes totals of 0 and less. Other programs may publish anything.
#[test]
fn a_message_with_any_payload_ends_no_wait_and_the_next_one_is_heard() {
    for kind in SYNCHRONIZERS {
        let stage = Stage::new();
        kind.occupy(&stage.server, "a");
        let waiter = kind.wait_subscribed(&stage.server, &stage.client, "a");
        stage.await_no_attempts();
        let payloads =
            ["0", "-1", "", "no number", "1.5", "1", "2147483647", "99999999999999999999"];
        for payload in payloads {
            stage.server.ask::<()>(&["PUBLISH", &kind.channel("a"), payload]);
            stage.await_no_attempts();
            waiter.still_waits();
        }
        kind.free(&stage.server, "a");
        waiter.ends();
    }
}
