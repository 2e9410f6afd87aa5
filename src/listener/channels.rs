//! Callers that wait for a message on a channel.
//!
//! A caller that was refused may only sleep if no message came since it asked.
//! So every channel counts its news: messages, confirmed subscriptions, broken
//! connections. The caller reads the count, asks the server, and then wants to
//! sleep *since that count*; if there was news in between, it asks again instead.
//! The counting and the registering happen under one mutex, so nothing is missed.
//!
//! The listener thread finds here what to subscribe to, and tells what it heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::command::call::Call;
use crate::util::clock::{self, Moment};
use crate::util::interner::Interned;
use crate::util::sync::{AtomicU64, Mutex, Parker};

#[cfg(all(test, leasehold_model))]
mod model;

/// One channel, and who of this process waits for its messages.
#[derive(Debug)]
pub(crate) struct Channel {
    name: Box<str>,
    /// How much was heard so far; changed under `state`, read without.
    messages: AtomicU64,
    state: Mutex<ChannelState>,
}

#[derive(Debug)]
struct ChannelState {
    subscription: SubscriptionState,
    waiting: Vec<Arc<Parker>>,
    /// Since when nobody has waited.
    idle_since: Moment,
}

/// Whether messages of a channel reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionState {
    /// Not subscribed.
    Nothing,
    /// A subscription was sent and has not been confirmed.
    Asked,
    Everything,
}

/// How much news a channel had when its reader looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageCount(u64);

impl Channel {
    fn new(name: &str) -> Channel {
        let idle_since = clock::now();
        let state = ChannelState {
            subscription: SubscriptionState::Nothing,
            waiting: Vec::new(),
            idle_since,
        };
        Channel { name: name.into(), messages: AtomicU64::new(0), state: Mutex::new(state) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How much news there was up to now. To be read before the server is asked.
    pub(crate) fn messages(&self) -> MessageCount {
        MessageCount(self.messages.load(Ordering::Acquire))
    }

    pub(crate) fn subscription(&self) -> SubscriptionState {
        self.state.lock().subscription
    }

    /// Registers a waiter until the answer is dropped.
    pub(crate) fn wait(self: &Arc<Channel>, parker: &Arc<Parker>) -> Waiting {
        self.state.lock().waiting.push(Arc::clone(parker));
        Waiting { channel: Arc::clone(self), parker: Arc::clone(parker) }
    }

    fn leave(&self, parker: &Arc<Parker>) {
        let mut state = self.state.lock();
        if let Some(at) = state.waiting.iter().position(|m| Arc::ptr_eq(m, parker)) {
            state.waiting.swap_remove(at);
        }
        state.idle_since = clock::now();
    }

    /// A message has come: counts it and wakes everybody who waits. (Only one
    /// caller of a process waits for most kinds of lock: the front of the gate.)
    pub(crate) fn message(&self) {
        self.tell(&self.state.lock());
    }

    fn tell(&self, state: &ChannelState) {
        self.messages.fetch_add(1, Ordering::AcqRel);
        state.waiting.iter().for_each(|parker| parker.unpark());
    }

    /// The subscription was sent, confirmed, or is gone with its connection. All but
    /// the first is news for those who wait: what came before may have been missed. Each
    /// confirmation is: it may be that of a subscription before the last one.
    pub(crate) fn set_hearing(&self, subscription: SubscriptionState) {
        let mut state = self.state.lock();
        let messages = match subscription {
            SubscriptionState::Asked => false,
            SubscriptionState::Everything => true,
            SubscriptionState::Nothing => state.subscription != SubscriptionState::Nothing,
        };
        state.subscription = subscription;
        if messages {
            self.tell(&state);
        }
    }

    /// Gives the subscription up if nobody has waited for `linger`; `true` if so.
    pub(crate) fn retire(&self, now: Moment, linger: Duration) -> bool {
        let mut state = self.state.lock();
        let idle = state.waiting.is_empty() && state.idle_since + linger <= now;
        if idle && state.subscription != SubscriptionState::Nothing {
            state.subscription = SubscriptionState::Nothing;
            self.tell(&state);
        }
        idle
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }
}

/// A caller that waits on a channel.
#[derive(Debug)]
#[must_use = "the caller waits only as long as this lives"]
pub(crate) struct Waiting {
    channel: Arc<Channel>,
    parker: Arc<Parker>,
}

impl Waiting {
    /// How much news there is by now. If it is not what there was before the server
    /// was asked, it must be asked again before any sleep.
    pub(crate) fn messages(&self) -> MessageCount {
        self.channel.messages()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.channel.leave(&self.parker);
    }
}

/// What one client hears, and whether it hears anything.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    channels: Interned<Channel>,
    /// How often the listener began and ceased to listen: it does while this is odd.
    turns: AtomicU64,
    /// The control channels of the listeners that listen, by the number of their node.
    controls: Mutex<BTreeMap<Option<u32>, Arc<str>>>,
}

/// One connection of the listener, from the moment it can be told what to subscribe
/// to until it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerSession(u64);

impl Waiters {
    /// The channel of that name; the same one for all who ask.
    pub(crate) fn channel(&self, name: &str) -> Arc<Channel> {
        self.channels.get(name, || Channel::new(name))
    }

    /// The channels that somebody waits on.
    pub(crate) fn waited_for(&self) -> Vec<Arc<Channel>> {
        let mut channels = self.channels.all();
        channels.retain(|channel| channel.is_waited_for());
        channels
    }

    /// Has all who wait ask again: what they know is of another server.
    pub(crate) fn shake(&self) {
        self.waited_for().iter().for_each(|channel| channel.message());
    }

    /// The listener's connection, while it can be told what to subscribe to.
    pub(crate) fn session(&self) -> Option<ListenerSession> {
        let turns = self.turns.load(Ordering::Acquire);
        (turns % 2 == 1).then_some(ListenerSession(turns))
    }

    /// A listener can be told what to subscribe to from now on, over that channel. To be called
    /// by it alone, before it looks who waits.
    pub(crate) fn set_control(&self, node: Option<u32>, control: &Arc<str>) {
        self.controls.lock().insert(node, Arc::clone(control));
        if node.is_none() {
            self.set_listening(true);
        }
    }

    /// It cannot be told any more over that channel.
    pub(crate) fn end_control(&self, node: Option<u32>, control: &Arc<str>) {
        let mut controls = self.controls.lock();
        // Its successor may have come already.
        if controls.get(&node).is_some_and(|now| Arc::ptr_eq(now, control)) {
            controls.remove(&node);
        }
        drop(controls);
        if node.is_none() {
            self.set_listening(false);
        }
    }

    /// Whether any listener listens.
    pub(crate) fn is_listening(&self) -> bool {
        !self.controls.lock().is_empty()
    }

    /// What tells the listener of a node, or the only one, something; `None` if it does not
    /// listen.
    pub(crate) fn message(&self, node: Option<u32>, payload: &str) -> Option<Call> {
        let controls = self.controls.lock();
        Some(message(node, controls.get(&node)?, payload))
    }

    /// A heartbeat for every listener that listens.
    pub(crate) fn beats(&self) -> Vec<Call> {
        let controls = self.controls.lock();
        controls.iter().map(|(node, control)| message(*node, control, "")).collect()
    }

    /// To be called by the listener alone, before it looks who waits: a waiter that
    /// registers too late for that look finds the session.
    pub(crate) fn set_listening(&self, listening: bool) {
        if self.session().is_some() != listening {
            self.turns.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// What says something on a control channel.
fn message(node: Option<u32>, control: &str, payload: &str) -> Call {
    let name: &[u8] = if node.is_some() { b"SPUBLISH" } else { b"PUBLISH" };
    match node {
        Some(_) => Call::on_key(name, control.as_bytes(), &[payload.as_bytes()]),
        None => Call::command(&[name, control.as_bytes(), payload.as_bytes()]),
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    fn channel() -> Arc<Channel> {
        Waiters::default().channel("c")
    }

    #[test]
    fn a_message_between_the_question_and_the_sleep_is_not_missed() {
        let (channel, parker) = (channel(), Arc::default());
        let before = channel.messages();
        channel.message();
        let waiting = channel.wait(&parker);
        assert_ne!(waiting.messages(), before);
        assert_eq!(waiting.messages(), channel.messages());
    }

    #[test]
    fn a_message_wakes_who_waits() {
        let (channel, parker) = (channel(), Arc::default());
        let waiting = channel.wait(&parker);
        channel.message();
        parker.park_until(Moment::END);
        drop(waiting);
    }

    #[test]
    fn a_subscription_that_comes_or_goes_is_news() {
        let channel = channel();
        let is_news = |subscription| {
            let before = channel.messages();
            channel.set_hearing(subscription);
            channel.messages() != before
        };
        assert!(!is_news(SubscriptionState::Asked), "nothing was missed, and nothing is heard yet");
        assert!(is_news(SubscriptionState::Everything) && is_news(SubscriptionState::Nothing));
        assert!(!is_news(SubscriptionState::Asked) && is_news(SubscriptionState::Nothing));
    }

    #[test]
    fn a_channel_retires_when_nobody_has_waited_for_a_while() {
        let (channel, parker) = (channel(), Arc::default());
        channel.set_hearing(SubscriptionState::Everything);
        let later = clock::now() + Duration::from_secs(60);
        let waiting = channel.wait(&parker);
        assert!(!channel.retire(later, Duration::from_secs(1)), "somebody waits");
        drop(waiting);
        assert!(!channel.retire(clock::now(), Duration::from_secs(60)), "too early");
        let before = channel.messages();
        assert!(channel.retire(later, Duration::from_secs(1)));
        assert_ne!(channel.messages(), before, "a waiter that comes now must ask again");
    }

    #[test]
    fn every_connection_of_the_listener_is_another_session() {
        let waiters = Waiters::default();
        assert_eq!(waiters.session(), None);
        waiters.set_listening(true);
        let first = waiters.session();
        waiters.set_listening(true);
        assert!(first.is_some() && waiters.session() == first);
        waiters.set_listening(false);
        assert_eq!(waiters.session(), None);
        waiters.set_listening(true);
        assert!(waiters.session().is_some() && waiters.session() != first);
    }

    #[test]
    fn only_channels_with_a_waiter_are_waited_for() {
        let waiters = Waiters::default();
        let (waited, idle) = (waiters.channel("a"), waiters.channel("b"));
        let parker = Arc::default();
        let waiting = waited.wait(&parker);
        let names: Vec<_> = waiters.waited_for().iter().map(|c| c.name().to_owned()).collect();
        assert_eq!(names, ["a"]);
        drop((waiting, idle));
        assert!(waiters.waited_for().is_empty());
    }
}
