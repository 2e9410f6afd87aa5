//! Channels, and the callers of this process that wait for messages on them.
//!
//! A refused caller sleeps only if no message has come since its attempt. Each channel therefore
//! has a message count, which grows with each message, each confirmed subscription and each
//! broken connection of the listener. A caller
//!
//! 1. reads the count and sends its attempt,
//! 2. registers on the channel after a refusal,
//! 3. reads the count again, and sleeps if it is unchanged, or sends another attempt.
//!
//! Counting and registering happen under one mutex, so a registered caller is woken by every
//! message that its last look at the count did not include.
//!
//! A channel may have an [`Audience`], which itself decides whom a message wakes.
//!
//! The listener finds here the channels to subscribe to, and reports the messages that it receives.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::transport::call::Call;
use crate::transport::listener::control::{Control, Controls, Rousing};
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::util::interner::Interned;
use crate::util::sync::{AtomicU64, Mutex, Parker};
use crate::util::system::OnceLock;
use crate::util::threads;

#[cfg(all(test, leasehold_model))]
mod model;

/// One channel with its message count and the waiting callers of this process.
#[derive(Debug)]
pub(crate) struct Channel {
    name: Box<str>,
    /// The message count. Written under the mutex of `state`, read without it.
    message_count: AtomicU64,
    state: Mutex<ChannelState>,
}

#[derive(Debug)]
struct ChannelState {
    subscription: SubscriptionState,
    waiting: Vec<Arc<Parker>>,
    audience: Option<Weak<dyn Audience>>,
    /// The moment at which the last caller left.
    idle_since: Moment,
}

/// Callers of a channel that are not registered on it, and that themselves decide whom a message
/// wakes. Called under the mutex of the channel, so a mutex of the audience is always the second:
/// must not block, nor call the channel.
pub(crate) trait Audience: fmt::Debug + Send + Sync {
    fn hears(&self, payload: &[u8]);

    /// Notes an event after which messages may have been missed.
    fn may_have_missed(&self);

    /// Returns the number of waiting callers.
    fn callers(&self) -> usize;
}

/// Whether messages of a channel reach this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionState {
    /// No subscription is sent.
    Unsubscribed,
    /// The subscription is sent and not confirmed.
    Requested,
    /// The subscription is confirmed: all messages arrive.
    Subscribed,
}

/// The message count of a channel at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageCount(u64);

impl Channel {
    fn new(name: &str) -> Channel {
        let state = ChannelState {
            subscription: SubscriptionState::Unsubscribed,
            waiting: Vec::new(),
            audience: None,
            idle_since: clock::now(),
        };
        Channel { name: name.into(), message_count: AtomicU64::new(0), state: Mutex::new(state) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the message count. A caller reads it before it sends an attempt.
    pub(crate) fn message_count(&self) -> MessageCount {
        MessageCount(self.message_count.load(Ordering::Acquire))
    }

    pub(crate) fn subscription(&self) -> SubscriptionState {
        self.state.lock().subscription
    }

    /// Registers a waiting caller until the result is dropped.
    pub(crate) fn register(self: &Arc<Channel>, parker: &Arc<Parker>) -> Registration {
        self.state.lock().waiting.push(Arc::clone(parker));
        Registration { channel: Arc::clone(self), parker: Arc::clone(parker) }
    }

    /// Counts a message and wakes all waiting callers.
    ///
    /// For most kinds there is one: the head of the queue.
    pub(crate) fn notify(&self) {
        self.count_and_wake(&self.state.lock());
    }

    /// Counts a message with this payload, and wakes the callers that it concerns.
    pub(crate) fn message(&self, payload: &[u8]) {
        let state = self.state.lock();
        self.count(&state);
        if let Some(audience) = state.audience() {
            audience.hears(payload);
        }
    }

    /// Counts an event after which messages may have been missed.
    fn count_and_wake(&self, state: &ChannelState) {
        self.count(state);
        if let Some(audience) = state.audience() {
            audience.may_have_missed();
        }
    }

    fn count(&self, state: &ChannelState) {
        self.message_count.fetch_add(1, Ordering::AcqRel);
        for parker in &state.waiting {
            parker.unpark();
        }
    }

    /// Stores that the subscription was sent, was confirmed, or ended.
    ///
    /// A confirmation and an end count as messages, because an earlier message may have been
    /// missed. Every confirmation counts: an earlier one may belong to a former subscription.
    pub(crate) fn set_subscription(&self, subscription: SubscriptionState) {
        let mut state = self.state.lock();
        let counts = match subscription {
            SubscriptionState::Requested => false,
            SubscriptionState::Subscribed => true,
            SubscriptionState::Unsubscribed => {
                state.subscription != SubscriptionState::Unsubscribed
            }
        };
        state.subscription = subscription;
        if counts {
            self.count_and_wake(&state);
        }
    }

    /// Returns whether no caller has waited for `linger`, and ends the subscription if so.
    ///
    /// The end counts as a message, so that a caller that registers now sends another attempt.
    pub(crate) fn retire(&self, now: Moment, linger: Duration) -> bool {
        let mut state = self.state.lock();
        let idle = state.callers() == 0 && state.idle_since + linger <= now;
        if idle && state.subscription != SubscriptionState::Unsubscribed {
            state.subscription = SubscriptionState::Unsubscribed;
            self.count_and_wake(&state);
        }
        idle
    }

    /// Sets the audience of the channel, which takes the place of a former one.
    pub(crate) fn set_audience(&self, audience: Weak<dyn Audience>) {
        self.state.lock().audience = Some(audience);
    }

    /// Notes that a caller of the audience has left.
    pub(crate) fn caller_left(&self) {
        self.state.lock().idle_since = clock::now();
    }

    pub(crate) fn has_waiting_callers(&self) -> bool {
        self.waiting_callers() > 0
    }

    /// Returns the number of registered callers.
    pub(crate) fn waiting_callers(&self) -> usize {
        self.state.lock().callers()
    }
}

impl ChannelState {
    fn audience(&self) -> Option<Arc<dyn Audience>> {
        self.audience.as_ref().and_then(Weak::upgrade)
    }

    fn callers(&self) -> usize {
        self.waiting.len() + self.audience().map_or(0, |audience| audience.callers())
    }
}

/// The registration of a waiting caller on a channel, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the registration"]
pub(crate) struct Registration {
    channel: Arc<Channel>,
    parker: Arc<Parker>,
}

impl Registration {
    /// Returns the message count.
    ///
    /// If it differs from the count before the last attempt, the caller must send another attempt
    /// before it sleeps.
    pub(crate) fn message_count(&self) -> MessageCount {
        self.channel.message_count()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        if let Some(at) = state.waiting.iter().position(|other| Arc::ptr_eq(other, &self.parker)) {
            state.waiting.swap_remove(at);
        }
        state.idle_since = clock::now();
    }
}

/// The channels of one client, and the control channels of its connected listeners.
#[derive(Default)]
pub(crate) struct Channels {
    by_name: Interned<Channel>,
    /// Counts the starts and ends of sessions of the listener without a node. Odd in a session. A
    /// quiet connection is no session, so that no acquire carries a subscription request.
    transitions: AtomicU64,
    controls: Controls,
    /// The number of callers that wait for messages on the control channel.
    awaited_messages: AtomicU64,
    control_handler: OnceLock<Weak<dyn ControlHandler>>,
}

/// Handles messages on the control channel. Must not block.
pub(crate) trait ControlHandler: Send + Sync {
    /// Handles a message. Returns `false` for the name of a channel, to which the listener has to
    /// subscribe.
    ///
    /// `generation` is that of the connection that received the message.
    fn handle(&self, message: &[u8], generation: Generation) -> bool;

    /// Notes that messages arrive from now on: earlier ones may have been missed.
    fn listening(&self);
}

/// The wait of one caller for a message on the control channel, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the wait"]
pub(crate) struct AwaitedMessage(Arc<Channels>);

impl Drop for AwaitedMessage {
    fn drop(&mut self) {
        self.0.awaited_messages.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Channels");
        shown.field("controls", &self.controls).finish_non_exhaustive()
    }
}

/// One connection of the listener, while it accepts subscription requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerSession(u64);

impl Channels {
    /// Returns the channel of that name. All callers share one value per name.
    pub(crate) fn channel(&self, name: &str) -> Arc<Channel> {
        self.by_name.get(name, || Channel::new(name))
    }

    /// Returns the channels with a waiting caller.
    pub(crate) fn awaited(&self) -> Vec<Arc<Channel>> {
        let mut channels = self.by_name.all();
        channels.retain(|channel| channel.has_waiting_callers());
        channels
    }

    /// Makes all waiting callers send another attempt, after a topology change.
    pub(crate) fn wake_all(&self) {
        for channel in self.awaited() {
            channel.notify();
        }
    }

    /// Returns the listener's session, or `None` if it accepts no subscription requests.
    pub(crate) fn session(&self) -> Option<ListenerSession> {
        let transitions = self.transitions.load(Ordering::Acquire);
        (transitions % 2 == 1).then_some(ListenerSession(transitions))
    }

    /// Stores that a listener accepts subscription requests on its control channel.
    ///
    /// Only that listener calls this, before it looks for waiting callers.
    pub(super) fn set_control(&self, control: &Arc<Control>) {
        self.controls.insert(control);
        if control.node().is_none() {
            self.set_listening(true);
            self.with_handler(|handler| handler.listening());
        }
    }

    /// Stores that a listener no longer accepts subscription requests.
    pub(super) fn end_control(&self, control: &Arc<Control>) {
        self.controls.remove(control);
        if control.node().is_none() {
            self.set_listening(false);
        }
    }

    /// Returns whether callers need any of the connected listeners.
    pub(crate) fn needs_heartbeats(&self) -> bool {
        self.controls.any_needed()
    }

    /// Ends the quiet time of a listener, because a caller needs its connection.
    pub(super) fn rouse(&self, node: Option<u32>) -> Rousing {
        self.controls.rouse(node)
    }

    /// Returns a command that sends `payload` to a listener, or `None` if it is not connected.
    ///
    /// `None` as the node stands for the listener without a node.
    pub(crate) fn message_to_listener(&self, node: Option<u32>, payload: &str) -> Option<Call> {
        self.controls.message(node, payload)
    }

    /// Returns commands that send a heartbeat to each connected listener that callers need.
    pub(crate) fn heartbeats(&self) -> Vec<Call> {
        self.controls.heartbeats()
    }

    /// Returns commands that send a heartbeat to each connected listener that no caller needs.
    pub(crate) fn quiet_heartbeats(&self) -> Vec<Call> {
        self.controls.quiet_heartbeats()
    }

    /// Counts a caller that waits for a message on the control channel. The caller then wakes the
    /// listener.
    pub(crate) fn await_message(self: &Arc<Channels>) -> AwaitedMessage {
        self.awaited_messages.fetch_add(1, Ordering::AcqRel);
        AwaitedMessage(Arc::clone(self))
    }

    /// Returns whether callers wait for messages on the control channel.
    pub(super) fn awaits_messages(&self) -> bool {
        self.awaited_messages.load(Ordering::Acquire) > 0
    }

    /// Sets the receiver of the messages on the control channel.
    pub(crate) fn set_control_handler(&self, handler: Weak<dyn ControlHandler>) {
        // Set once, at the start of the client.
        let _ = self.control_handler.set(handler);
    }

    /// Returns whether the handler of the control channel has handled a message.
    ///
    /// `true` also if the client has ended, or the handler has panicked.
    pub(super) fn is_handled(&self, message: &[u8], generation: Generation) -> bool {
        self.control_handler.get().is_some()
            && self.with_handler(|handler| handler.handle(message, generation)).unwrap_or(true)
    }

    /// Runs `action` with the handler of the control channel, if there is one.
    fn with_handler<T>(&self, action: impl FnOnce(&dyn ControlHandler) -> T) -> Option<T> {
        let handler = self.control_handler.get().and_then(Weak::upgrade)?;
        threads::catch_panic("handling a message", || action(&*handler))
    }

    /// Starts or ends the session of the listener without a node.
    ///
    /// Only the listener calls this, before it looks for waiting callers. A caller that registers
    /// after that look finds the session.
    pub(crate) fn set_listening(&self, listening: bool) {
        if self.session().is_some() != listening {
            self.transitions.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    fn channel() -> Arc<Channel> {
        Channels::default().channel("c")
    }

    #[test]
    fn a_message_between_the_attempt_and_the_sleep_is_not_missed() {
        let (channel, parker) = (channel(), Arc::default());
        let before = channel.message_count();
        channel.notify();
        let registration = channel.register(&parker);
        assert_ne!(registration.message_count(), before);
        assert_eq!(registration.message_count(), channel.message_count());
    }

    #[test]
    fn a_message_wakes_the_waiting_caller() {
        let (channel, parker) = (channel(), Arc::default());
        let registration = channel.register(&parker);
        channel.notify();
        parker.park_until(Moment::END);
        drop(registration);
    }

    #[test]
    fn a_confirmed_or_ended_subscription_counts_as_a_message() {
        let channel = channel();
        let counts = |subscription| {
            let before = channel.message_count();
            channel.set_subscription(subscription);
            channel.message_count() != before
        };
        assert!(
            !counts(SubscriptionState::Requested),
            "no message was missed, and none arrives yet"
        );
        assert!(counts(SubscriptionState::Subscribed) && counts(SubscriptionState::Unsubscribed));
        assert!(!counts(SubscriptionState::Requested) && counts(SubscriptionState::Unsubscribed));
    }

    #[test]
    fn a_subscription_ends_when_no_caller_has_waited_for_the_linger_time() {
        let (channel, parker) = (channel(), Arc::default());
        channel.set_subscription(SubscriptionState::Subscribed);
        let later = clock::now() + Duration::from_secs(60);
        let registration = channel.register(&parker);
        assert!(!channel.retire(later, Duration::from_secs(1)), "a caller waits");
        drop(registration);
        assert!(!channel.retire(clock::now(), Duration::from_secs(60)), "too early");
        let before = channel.message_count();
        assert!(channel.retire(later, Duration::from_secs(1)));
        assert_ne!(
            channel.message_count(),
            before,
            "a caller that registers now must send another attempt"
        );
    }

    #[test]
    fn a_message_whose_handler_panics_is_no_name_of_a_channel() {
        #[derive(Default)]
        struct Panicking;
        impl ControlHandler for Panicking {
            fn handle(&self, message: &[u8], _: Generation) -> bool {
                assert!(message.starts_with(b"c"), "a message of a test");
                false
            }
            fn listening(&self) {}
        }
        let (channels, handler) = (Channels::default(), Arc::new(Panicking));
        let is_handled = |message: &[u8]| channels.is_handled(message, Generation::default());
        assert!(!is_handled(b"x"), "nobody handles messages yet");
        let handler_of: Weak<dyn ControlHandler> = Arc::downgrade(&handler) as _;
        channels.set_control_handler(handler_of);
        assert!(!is_handled(b"c") && is_handled(b"x"));
        drop(handler);
        assert!(is_handled(b"c"), "the client has ended");
    }

    #[test]
    fn every_connection_of_the_listener_is_a_new_session() {
        let channels = Channels::default();
        assert_eq!(channels.session(), None);
        channels.set_listening(true);
        let first = channels.session();
        channels.set_listening(true);
        assert!(first.is_some() && channels.session() == first);
        channels.set_listening(false);
        assert_eq!(channels.session(), None);
        channels.set_listening(true);
        assert!(channels.session().is_some() && channels.session() != first);
    }

    #[test]
    fn only_channels_with_a_waiting_caller_are_returned() {
        let channels = Channels::default();
        let (waited, idle) = (channels.channel("a"), channels.channel("b"));
        let parker = Arc::default();
        let registration = waited.register(&parker);
        let names: Vec<_> = channels.awaited().iter().map(|c| c.name().to_owned()).collect();
        assert_eq!(names, ["a"]);
        drop((registration, idle));
        assert!(channels.awaited().is_empty());
    }
}
