//! The reaction of one call to the messages of the lock's channel.
//!
//! A message makes an attempt due. A call that a message woke and the server refused has lost a
//! race against other processes. It then ignores messages for a short, growing, jittered time: if
//! all such calls came back at the next message, the same processes would be faster again.

use std::time::Duration;

use crate::transport::listener::channels::{
    Channel, ListenerSession, MessageCount, Registration, SubscriptionState,
};
use crate::util::clock::{Moment, doubled, jittered};

/// The first and the longest time in which a call that lost a race ignores messages.
pub(super) const FIRST_QUIET: Duration = Duration::from_micros(200);
pub(super) const LONGEST_QUIET: Duration = Duration::from_millis(2);

/// The time since the first lost race after which a call reacts to every message again.
///
/// Calls that came later still ignore some messages then, which favours the longest waiters.
const LONG_LOSS: Duration = Duration::from_millis(20);

/// The state of the lock's channel when a command is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelView {
    /// The message count, if the call knows the channel.
    pub(crate) message_count: Option<MessageCount>,
    pub(crate) subscription: SubscriptionState,
    /// The listener's session in which the command requests the subscription, if it does.
    pub(crate) requested_in: Option<ListenerSession>,
}

/// The messages of the lock's channel that one call knows of.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    /// The message count at the last attempt, if the call knew the channel.
    seen: Option<MessageCount>,
    /// Whether the channel was subscribed at the last attempt.
    subscribed: bool,
    /// Whether a message caused the last attempt.
    woken: bool,
    /// Whether the registration found that a message may have been missed.
    missed: bool,
    /// The listener's session in which the last attempt requested the subscription, if it did.
    requested_in: Option<ListenerSession>,
    /// Set while the call ignores messages: the end of that time, at which an attempt is due.
    quiet_until: Option<Moment>,
    lost_races: u32,
    first_loss: Option<Moment>,
}

impl Notifications {
    /// Returns whether an attempt is due because of a message.
    pub(super) fn is_due(&self, now: Moment, message_count: Option<MessageCount>) -> bool {
        match self.quiet_until {
            Some(end) => end <= now,
            None => self.missed || self.has_grown(message_count),
        }
    }

    /// Returns whether messages have come since the last attempt.
    fn has_grown(&self, message_count: Option<MessageCount>) -> bool {
        message_count.is_some() && self.seen.is_some() && message_count != self.seen
    }

    /// Decides at the registration whether a message may have been missed.
    ///
    /// There are two such cases. The channel was subscribed already, and the call did not read the
    /// message count before its command. Or the listener accepts subscription requests, and the
    /// last command sent no request in the present session. A listener that accepts no requests
    /// yet looks for waiting callers once it does.
    pub(super) fn registered(
        &mut self,
        registration: &Registration,
        channel: &Channel,
        session: Option<ListenerSession>,
    ) {
        let first_look = self.seen.is_none();
        self.seen.get_or_insert(registration.message_count());
        self.missed = match channel.subscription() {
            SubscriptionState::Subscribed => first_look,
            SubscriptionState::Requested => false,
            SubscriptionState::Unsubscribed => session.is_some() && session != self.requested_in,
        };
    }

    /// Notes the state of the channel before the acquire command is sent.
    pub(super) fn before_attempt(&mut self, view: ChannelView) {
        // A call without a subscription at its last attempt cannot be woken by a message.
        self.woken =
            self.subscribed && self.quiet_until.is_none() && self.has_grown(view.message_count);
        self.subscribed = view.subscription == SubscriptionState::Subscribed;
        self.seen = view.message_count;
        self.requested_in = view.requested_in;
        self.missed = false;
        self.quiet_until = None;
    }

    /// Makes the call ignore messages for a while, if a message caused the refused attempt.
    pub(super) fn refused(&mut self, now: Moment, seed: u64) {
        if self.woken && now < *self.first_loss.get_or_insert(now) + LONG_LOSS {
            let quiet = doubled(FIRST_QUIET, self.lost_races, LONGEST_QUIET);
            self.quiet_until = Some(now + jittered(quiet, seed ^ now.nanos()));
            self.lost_races += 1;
        }
    }

    /// Returns the end of the time in which the call ignores messages, if it does.
    pub(super) fn quiet_until(&self) -> Option<Moment> {
        self.quiet_until
    }

    /// Ends the time in which the call ignores messages.
    #[cfg(all(test, leasehold_model))]
    pub(super) fn end_pause(&mut self) {
        self.quiet_until = self.quiet_until.and(Some(Moment::START));
    }
}
