//! What a program can be told of its locks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::error::{Error, LostReason};
use crate::util::clock::{EPOCH, WallTime};
use crate::util::threads;

/// Is told what happens to the locks of one client.
///
/// Every method has an empty default: implement those of interest and hand the
/// value to [`Builder::events`](crate::Builder::events). The methods are called one
/// after the other on a thread of their own (`leasehold-events`), so they may block,
/// take locks and use the client; no lock waits for them. If they fall more than 4,096
/// events behind, further events are dropped and the log says how many.
///
/// That thread, and the value, live as long as the client, its locks or its guards do.
/// A value that has its own client keeps both for ever, unless it gives it back.
///
/// Every event says when it happened. An event of a lock names it and its [kind](Kind), and has
/// the number of the hold, by which the events of one hold are told from those of others. All can
/// be made by a test:
///
/// ```
/// use leasehold::{Events, Lost, LostReason, Released};
///
/// struct Alarm;
///
/// impl Events for Alarm {
///     fn lost(&self, event: &Lost) {
///         eprintln!("{} ({}, hold {}): {}", event.name, event.kind, event.hold, event.reason);
///     }
/// }
///
/// Alarm.lost(&Lost::new("orders:42", LostReason::Expired));
/// let mut released = Released::new("orders:42");
/// released.heard_by = Some(2);
/// Alarm.released(&released);
/// ```
pub trait Events: Send + Sync {
    /// A lock was acquired (not told for re-entries).
    fn acquired(&self, event: &Acquired) {
        let _ = event;
    }
    /// A caller waited for a lock, whatever came of it.
    fn waited(&self, event: &Waited) {
        let _ = event;
    }
    /// A lock was released, or its release failed for good.
    fn released(&self, event: &Released) {
        let _ = event;
    }
    /// The watchdog renewed leases.
    fn renewed(&self, event: &Renewed) {
        let _ = event;
    }
    /// The watchdog could not ask for a renewal. The lease is still valid; it will
    /// be tried again until the lease runs out.
    fn renewal_failed(&self, event: &RenewalFailed) {
        let _ = event;
    }
    /// A lease was lost while it was held.
    fn lost(&self, event: &Lost) {
        let _ = event;
    }
    /// A connection was made again after it had broken.
    fn reconnected(&self, event: &Reconnected) {
        let _ = event;
    }
    /// A server is set up in a way that endangers locks; see
    /// [`Builder::audit`](crate::Builder::audit_policy).
    fn audit(&self, event: &Audit) {
        let _ = event;
    }
}

/// Gives the events of a client to a listener that others share.
impl<E: Events + ?Sized> Events for Arc<E> {
    fn acquired(&self, event: &Acquired) {
        (**self).acquired(event);
    }
    fn waited(&self, event: &Waited) {
        (**self).waited(event);
    }
    fn released(&self, event: &Released) {
        (**self).released(event);
    }
    fn renewed(&self, event: &Renewed) {
        (**self).renewed(event);
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        (**self).renewal_failed(event);
    }
    fn lost(&self, event: &Lost) {
        (**self).lost(event);
    }
    fn reconnected(&self, event: &Reconnected) {
        (**self).reconnected(event);
    }
    fn audit(&self, event: &Audit) {
        (**self).audit(event);
    }
}

/// The kind of a lock, as events name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// [`Client::lock`](crate::Client::lock).
    #[default]
    Plain,
    /// [`Lock::with_holder`](crate::Lock::with_holder).
    Named,
    /// [`Client::fair_lock`](crate::Client::fair_lock).
    Fair,
    /// [`Client::fenced_lock`](crate::Client::fenced_lock).
    Fenced,
    /// The reading side of [`Client::rw_lock`](crate::Client::rw_lock).
    Read,
    /// The writing side of [`Client::rw_lock`](crate::Client::rw_lock).
    Write,
    /// [`Client::spin_lock`](crate::Client::spin_lock).
    Spin,
    /// [`RedLock`](crate::RedLock).
    Red,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Plain => "lock",
            Kind::Named => "lock of a named holder",
            Kind::Fair => "fair lock",
            Kind::Fenced => "fenced lock",
            Kind::Read => "read lock",
            Kind::Write => "write lock",
            Kind::Spin => "spin lock",
            Kind::Red => "red lock",
        })
    }
}

/// Makes the type of an event, with a constructor for the tests of a program: it takes the
/// fields that have no default.
macro_rules! event {
    ($(#[$docs:meta])* $event:ident($($given:ident: $given_as:ty),*) {
        $($(#[$field_docs:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$docs])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $event {
            /// When it happened, by this machine's clock.
            pub at: WallTime,
            $($(#[$field_docs])* pub $field: $type,)*
        }

        impl $event {
            /// Returns an event at the Unix epoch, for the tests of a program. The fields can
            /// be set.
            #[must_use = "the event that is returned has to be told to somebody"]
            pub fn new($($given: $given_as),*) -> $event {
                $event { at: EPOCH, $($field: $default),* }
            }
        }
    };
}

event! {
    /// Told by [`Events::acquired`].
    Acquired(name: impl Into<Arc<str>>) {
        /// The name of the lock, as it was given.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold, which ends its owner field in Redis (`<client>:<number>`).
        /// A hold keeps it when it passes to another thread of the process.
        hold: u64 = 0,
        /// How long the caller took to get it, its questions to the server included.
        waited: Duration = Duration::ZERO,
    }
}

event! {
    /// Told by [`Events::waited`].
    Waited(name: impl Into<Arc<str>>) {
        /// The name of the lock, as it was given.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold; `None` if the caller did not get one, and for a
        /// [`RedLock`](crate::RedLock), which has a hold on each server.
        hold: Option<u64> = None,
        /// How long the caller waited.
        waited: Duration = Duration::ZERO,
        /// Whether it got the lock in the end.
        acquired: bool = false,
    }
}

event! {
    /// Told by [`Events::released`].
    Released(name: impl Into<Arc<str>>) {
        /// The name of the lock, as it was given.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// How long the lock was held: from the grant to its last guard's end, by all threads
        /// of the process to which the hold passed.
        held: Duration = Duration::ZERO,
        /// How many subscribers the server told; `None` if the release failed, or if its
        /// first answer was lost.
        heard_by: Option<u64> = None,
        /// Why the release failed for good; the lock is then free when its lease ends.
        error: Option<Error> = None,
    }
}

event! {
    /// Told by [`Events::renewed`].
    Renewed(holds: impl Into<Vec<u64>>) {
        /// The numbers of the holds whose leases one batch renewed.
        holds: Vec<u64> = holds.into(),
    }
}

event! {
    /// Told by [`Events::renewal_failed`].
    RenewalFailed(name: impl Into<Arc<str>>, error: Error) {
        /// The name of the lock, as it was given.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// How much of the lease is left.
        remaining: Duration = Duration::ZERO,
        /// Why the question failed.
        error: Error = error,
    }
}

event! {
    /// Told by [`Events::lost`].
    Lost(name: impl Into<Arc<str>>, reason: LostReason) {
        /// The name of the lock, as it was given.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// How the loss was noticed.
        reason: LostReason = reason,
    }
}

event! {
    /// Told by [`Events::reconnected`].
    Reconnected(address: impl Into<Arc<str>>) {
        /// The server's address, without user and password.
        address: Arc<str> = address.into(),
    }
}

event! {
    /// Told by [`Events::audit`].
    Audit(finding: impl Into<Arc<str>>) {
        /// What was found, in words.
        finding: Arc<str> = finding.into(),
    }
}

/// One call of an [`Events`] method, on its way to the events thread.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Acquired(Acquired),
    Waited(Waited),
    Released(Released),
    Renewed(Renewed),
    RenewalFailed(RenewalFailed),
    Lost(Lost),
    Reconnected(Reconnected),
    Audit(Audit),
}

impl Event {
    pub(crate) fn deliver(&self, to: &dyn Events) {
        match self {
            Event::Acquired(event) => to.acquired(event),
            Event::Waited(event) => to.waited(event),
            Event::Released(event) => to.released(event),
            Event::Renewed(event) => to.renewed(event),
            Event::RenewalFailed(event) => to.renewal_failed(event),
            Event::Lost(event) => to.lost(event),
            Event::Reconnected(event) => to.reconnected(event),
            Event::Audit(event) => to.audit(event),
        }
    }
}

/// How many events may wait for the events thread.
const BACKLOG: usize = 4096;

/// Where events are handed in. Without a listener it takes nothing and costs
/// nothing: the event is not even built.
#[derive(Clone, Default)]
pub(crate) struct EventSink(Option<Queue>);

#[derive(Clone)]
struct Queue {
    sender: Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl EventSink {
    /// A sink and the end at which the events thread takes them out.
    pub(crate) fn new() -> (EventSink, Receiver<Event>) {
        let (sender, receiver) = crossbeam_channel::bounded(BACKLOG);
        let dropped = Arc::default();
        (EventSink(Some(Queue { sender, dropped })), receiver)
    }

    /// Hands in what `event` builds; never blocks.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        let Some(queue) = &self.0 else { return };
        if let Err(TrySendError::Full(_)) = queue.sender.try_send(event()) {
            queue.count_dropped();
        }
    }
}

impl Queue {
    /// Says so at the first dropped event, then at every doubling.
    fn count_dropped(&self) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if dropped.is_power_of_two() {
            threads::say(|| {
                log::warn!("the events listener is too slow: {dropped} events dropped so far");
            });
        }
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventSink").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewed(hold: u64) -> Event {
        Event::Renewed(Renewed::new([hold]))
    }

    #[test]
    fn a_sink_without_listener_builds_no_event() {
        EventSink::default().emit(|| unreachable!("nobody listens"));
    }

    #[test]
    fn a_full_backlog_drops_instead_of_blocking() {
        let (sink, events) = EventSink::new();
        (0..BACKLOG as u64 + 3).for_each(|n| sink.emit(|| renewed(n)));
        assert_eq!(events.try_iter().count(), BACKLOG);
        let dropped = sink.0.map(|queue| queue.dropped.load(Ordering::Relaxed));
        assert_eq!(dropped, Some(3));
    }
}
