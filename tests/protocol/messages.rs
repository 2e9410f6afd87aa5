//! Messages that do not come: the listener's connection is killed, lets nothing
//! through, or never confirms a subscription. Whoever waits gets in all the same.

use crate::harness::faults::*;
use crate::harness::proxy::Stats;
use crate::harness::wait::BOUND;
use crate::harness::{Direction, Flow, Proxy, Server, eventually};
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
    /// Nothing but a message, or a look after a new subscription, lets a waiter in
    /// before the test gives up.
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

    /// Does that to the listener's connection from the next command on that
    /// subscribes to this channel alone.
    fn on_subscribe(&self, channel: &str, direction: Direction, flow: Flow) {
        self.proxy.on_request(&subscribe(channel), direction, flow);
    }

    fn control(&self) -> String {
        format!("leasehold:wake:{{{}}}", self.client.id())
    }

    fn kill_listener(&self) {
        eventually("a listener to kill", || self.server.client_kill_type("pubsub") == 1);
    }

    fn questions(&self) -> u64 {
        self.server.calls("evalsha")
    }

    /// Waits until nobody asks any more: who still waits, waits for news. (Were it
    /// wrong about that, a test would only see less.)
    fn settles(&self) {
        let (mut last, mut looks) = (self.questions(), 0);
        eventually("the questions end", || {
            let now = self.questions();
            looks = if now == last { looks + 1 } else { 0 };
            last = now;
            looks >= 100
        });
    }
}

#[test]
fn a_release_before_the_subscription_is_found_by_the_question_after_it() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("its way is straight");
    stage.on_subscribe(&channel_of("a"), Direction::Requests, Flow::Hold);
    let waiter = Waiter::spawn(&stage.client, "a");
    something_is_held(&stage.proxy);
    stage.settles();
    guard.unlock().expect("its way is straight");
    waiter.still_waits();
    stage.proxy.release_held();
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_release_while_the_listener_reconnects_is_found_after_it() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("its way is straight");
    let waiter = stage.waiter("a");
    for _ in 0..3 {
        let asked = stage.questions();
        stage.proxy.on_request(b"HELLO", Direction::Requests, Flow::Hold);
        stage.kill_listener();
        something_is_held(&stage.proxy);
        eventually("it asks when it loses its ear", || stage.questions() > asked);
        stage.proxy.release_held();
        waiter.is_subscribed(&stage.server, "a");
        waiter.still_waits();
    }
    stage.proxy.on_request(b"HELLO", Direction::Requests, Flow::Hold);
    stage.kill_listener();
    something_is_held(&stage.proxy);
    stage.settles();
    guard.unlock().expect("its way is straight");
    stage.proxy.release_held();
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn many_subscriptions_are_made_again_after_a_reconnect() {
    let stage = Stage::new();
    let names: Vec<_> = (0..20 * stress()).map(|number| format!("lock {number}")).collect();
    let take = |name| stage.other.lock(name).lock_owned().expect("its way is straight");
    let guards: Vec<_> = names.iter().map(take).collect();
    let waiters: Vec<_> = names.iter().map(|name| stage.waiter(name)).collect();
    stage.kill_listener();
    for (name, waiter) in names.iter().zip(&waiters) {
        waiter.is_subscribed(&stage.server, name);
        waiter.still_waits();
    }
    guards.into_iter().for_each(|guard| guard.unlock().expect("its way is straight"));
    for waiter in waiters {
        waiter.gets_it();
        waiter.releases();
    }
}

#[test]
fn an_ear_that_hears_nothing_any_more_is_found_by_the_missing_heartbeat() {
    let stage = Stage::new();
    let take = |name| stage.other.lock(name).lock().expect("its way is straight");
    let (first, second) = (take("first"), take("second"));
    let waiter = stage.waiter("first");
    // The confirmation of its subscription has been heard, and asked about.
    stage.settles();
    // From the second subscription on nothing comes through to the listener.
    stage.on_subscribe(&channel_of("second"), Direction::Replies, Flow::Swallow);
    let bystander = Waiter::spawn(&stage.client, "second");
    stage.proxy.wait_until("the ear to close", |stats| stats.replies.swallowed > 0);
    let before = stage.proxy.stats();
    first.unlock().expect("its way is straight");
    let swallowed = |stats: &Stats| stats.replies.swallowed > before.replies.swallowed;
    stage.proxy.wait_until("the message to be dropped", swallowed);
    waiter.gets_it();
    assert!(stage.proxy.stats().accepted > before.accepted, "it did not connect again");
    waiter.releases();

    // The new ear hears, also what the old one had not confirmed.
    bystander.is_subscribed(&stage.server, "second");
    bystander.still_waits();
    second.unlock().expect("its way is straight");
    bystander.gets_it();
    bystander.releases();
}

#[test]
fn a_subscription_that_is_not_confirmed_is_made_again() {
    let stage = Stage::confirming_within(BRIEF);
    let guard = stage.other.lock("a").lock().expect("its way is straight");
    stage.on_subscribe(&channel_of("a"), Direction::Requests, Flow::Hold);
    stage.on_subscribe(&channel_of("a"), Direction::Replies, Flow::Swallow);
    let waiter = Waiter::spawn(&stage.client, "a");
    something_is_held(&stage.proxy);
    stage.settles();
    // Nobody hears this, and only the confirmation can tell that something was missed.
    guard.unlock().expect("its way is straight");
    stage.proxy.release_held();
    stage.proxy.wait_until("the confirmation to be dropped", |s| s.replies.swallowed > 0);
    stage.proxy.pass();
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_control_channel_that_is_not_confirmed_is_subscribed_again() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("its way is straight");
    stage.on_subscribe(&stage.control(), Direction::Replies, Flow::Swallow);
    let waiter = stage.waiter("a");
    stage.settles();
    guard.unlock().expect("its way is straight");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn a_quiet_ear_stays_open() {
    let stage = Stage::new();
    let guard = stage.other.lock("a").lock().expect("its way is straight");
    let waiter = stage.waiter("a");
    let told = stage.server.calls("publish");
    eventually("the first heartbeat", || stage.server.calls("publish") > told);
    let accepted = stage.proxy.stats().accepted;
    // Longer than the silence that would condemn it.
    eventually("more heartbeats", || stage.server.calls("publish") > told + 5);
    assert_eq!(stage.proxy.stats().accepted, accepted, "it connected again");
    guard.unlock().expect("its way is straight");
    waiter.gets_it();
    waiter.releases();
}

#[test]
fn who_may_not_subscribe_polls() {
    const SOON: Duration = Duration::from_millis(100);
    let mute = "user mute on >secret ~* &* +@all -subscribe";
    let server = Server::with(|config| config.line(mute));
    let client = build(patient(server.login_url("mute", "secret")).poll_interval(SOON));
    let beside = other(&server);
    let guard = beside.lock("a").lock().expect("its way is straight");
    let waiter = Waiter::spawn(&client, "a");
    let asked = server.calls("evalsha");
    eventually("it asks again and again", || server.calls("evalsha") > asked + 3);
    waiter.still_waits();
    guard.unlock().expect("its way is straight");
    waiter.gets_it();
    waiter.releases();
    assert_eq!(server.channels(), Vec::<String>::new());
}

#[test]
fn a_caller_that_is_refused_while_the_listener_connects_is_subscribed_too() {
    let stage = Stage::new();
    let take = |name| stage.other.lock(name).lock().expect("its way is straight");
    let (slow, quick) = (take("slow"), take("quick"));
    // The listener is not there when the first question goes out, so that does not
    // ask it to subscribe; it is there when the answer is read.
    stage.proxy.on_request(stage.digests.acquire.as_bytes(), Direction::Replies, Flow::Hold);
    let slow_waiter = Waiter::spawn(&stage.client, "slow");
    something_is_held(&stage.proxy);
    let quick_waiter = stage.waiter("quick");
    eventually("the first heartbeat", || stage.server.calls("publish") > 0);
    stage.proxy.release_held();
    slow_waiter.is_subscribed(&stage.server, "slow");
    for (guard, waiter) in [(slow, slow_waiter), (quick, quick_waiter)] {
        waiter.still_waits();
        guard.unlock().expect("its way is straight");
        waiter.gets_it();
        waiter.releases();
    }
}
