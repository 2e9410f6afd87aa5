//! The trait [`Events`] and the arguments of its methods.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, LostReason};
use crate::events::Kind;
use crate::util::clock::{EPOCH, WallTime};

/// Receives the events of a client, or of the holds and waits of one lock handle.
///
/// Every method has an empty default. Implement the methods of interest and pass the value to
/// [`Builder::events`](crate::Builder::events) or [`Lock::with_events`](crate::Lock::with_events).
/// One thread of the client (`leasehold-events`) calls the methods of all its event listeners, one
/// call after the other. A method may block, take locks and use the client: no lock waits for it.
/// Up to 4,096 events wait for a slow method. Further events are dropped; a warning in the log
/// gives their number. A panic in a method is logged and ends only that method call.
///
/// The thread and the value live as long as the client, its locks or its guards. A value that
/// owns a clone of its own client keeps that client alive until the value drops the clone.
///
/// Every event has its time. An event of one lock also has the name and the [kind](Kind) of the
/// lock, and the number of the hold, which is unique within the process. Every event has a
/// constructor for tests:
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
    /// A caller acquired a lock or permits. Re-entries are not reported.
    fn acquired(&self, event: &Acquired) {
        let _ = event;
    }
    /// A caller waited for a lock, for permits or for a latch, with success or not.
    fn waited(&self, event: &Waited) {
        let _ = event;
    }
    /// A lock was released, or its release has failed and is not repeated any more.
    fn released(&self, event: &Released) {
        let _ = event;
    }
    /// The last guard of a hold has ended, and the client keeps the hold for its next caller.
    ///
    /// See [`Lock::with_linger`](crate::Lock::with_linger).
    fn idle(&self, event: &Idle) {
        let _ = event;
    }
    /// The watchdog renewed the leases of one batch of holds.
    fn renewed(&self, event: &Renewed) {
        let _ = event;
    }
    /// A renewal failed: no answer, a refusal by the server, or too few replicas.
    ///
    /// The lease is still valid. The watchdog repeats the renewal until the deadline of the lease.
    fn renewal_failed(&self, event: &RenewalFailed) {
        let _ = event;
    }
    /// A lock is held beyond the limit of [`Lock::with_max_hold`](crate::Lock::with_max_hold).
    ///
    /// The watchdog no longer renews the lease. Reported once for each holder.
    fn overdue(&self, event: &Overdue) {
        let _ = event;
    }
    /// A lease was lost while the lock was held.
    fn lost(&self, event: &Lost) {
        let _ = event;
    }
    /// A broken connection was replaced, and the server has answered a command on the new one.
    fn reconnected(&self, event: &Reconnected) {
        let _ = event;
    }
    /// The configuration of a server endangers locks.
    ///
    /// See [`Builder::audit_policy`](crate::Builder::audit_policy).
    fn audit(&self, event: &Audit) {
        let _ = event;
    }
}

/// Passes the events to a shared event listener.
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
    fn idle(&self, event: &Idle) {
        (**self).idle(event);
    }
    fn renewed(&self, event: &Renewed) {
        (**self).renewed(event);
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        (**self).renewal_failed(event);
    }
    fn overdue(&self, event: &Overdue) {
        (**self).overdue(event);
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

/// Defines the type of an event and its constructor.
///
/// The constructor takes the fields without a default.
macro_rules! event {
    ($(#[$docs:meta])* $event:ident($($given:ident: $given_as:ty),*) {
        $($(#[$field_docs:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$docs])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $event {
            /// The wall-clock time of this machine at the event.
            pub at: WallTime,
            $($(#[$field_docs])* pub $field: $type,)*
        }

        impl $event {
            /// Returns an event at the Unix epoch, for the tests of a program.
            ///
            /// Fields that are no arguments are zero, empty, `None`, `false` or the plain kind. The
            /// test can set them afterwards.
            #[must_use = "an event does nothing until it is passed to a method of `Events`"]
            pub fn new($($given: $given_as),*) -> $event {
                $event { at: EPOCH, $($field: $default),* }
            }
        }
    };
}

event! {
    /// The argument of [`Events::acquired`].
    Acquired(name: impl Into<Arc<str>>) {
        /// The name of the lock, without the client's prefix.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold, the last part of its [owner field](crate#terms) in Redis. A
        /// hand-off to another thread of the process keeps the number.
        hold: u64 = 0,
        /// The time from the call to the grant, round trips included.
        waited: Duration = Duration::ZERO,
    }
}

event! {
    /// The argument of [`Events::waited`].
    Waited(name: impl Into<Arc<str>>) {
        /// The name of the lock, without the client's prefix.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold. `None` if the caller gave up, or found its work done
        /// ([`Once`](crate::Once)). Also `None` for a [`RedLock`](crate::RedLock), which has one
        /// hold per server, and for a plain semaphore and a latch, which have no holds.
        hold: Option<u64> = None,
        /// The time from the call to its end.
        waited: Duration = Duration::ZERO,
        /// Whether the caller got the lock.
        acquired: bool = false,
    }
}

event! {
    /// The argument of [`Events::released`].
    Released(name: impl Into<Arc<str>>) {
        /// The name of the lock, without the client's prefix.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// The time from the grant to the end of the last guard. Includes all threads of the
        /// process that had the hold one after the other, and the times between in which it lingered.
        held: Duration = Duration::ZERO,
        /// The number of subscribers that received the message of the release; 1 if the release
        /// granted a queue lock to its next waiter. `None` if the release failed, and if a repeated
        /// release found the lock already released because the first answer got lost, and for a hold
        /// that was lost while it lingered. The server counts only the subscribers that are
        /// connected to it. In a cluster this server is the node that has the lock. All clients of
        /// leasehold subscribe at that node, and so do those of Redisson unless they listen at
        /// replicas.
        heard_by: Option<u64> = None,
        /// The reason for which the release failed, or `None`. A lock whose release failed is free
        /// when its lease ends.
        error: Option<Error> = None,
    }
}

event! {
    /// The argument of [`Events::idle`].
    Idle(name: impl Into<Arc<str>>) {
        /// The name of the lock, without the client's prefix.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// The time from the grant, or from the take-over or hand-off to the last holder, to the
        /// end of its guard.
        held: Duration = Duration::ZERO,
    }
}

event! {
    /// The argument of [`Events::renewed`].
    Renewed(holds: impl Into<Vec<u64>>) {
        /// The numbers of the holds with renewed leases.
        holds: Vec<u64> = holds.into(),
    }
}

event! {
    /// The argument of [`Events::renewal_failed`].
    RenewalFailed(name: impl Into<Arc<str>>, error: Error) {
        /// The name of the lock, without the client's prefix.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// The time to the deadline of the lease.
        remaining: Duration = Duration::ZERO,
        /// The reason for which the renewal failed.
        error: Error = error,
    }
}

event! {
    /// The argument of [`Events::overdue`].
    Overdue(name: impl Into<Arc<str>>) {
        /// The name of the lock, without the client's prefix.
        name: Arc<str> = name.into(),
        /// The kind of the lock.
        kind: Kind = Kind::default(),
        /// The number of the hold.
        hold: u64 = 0,
        /// The time since the grant, or since the hand-off to the present holder.
        held: Duration = Duration::ZERO,
    }
}

event! {
    /// The argument of [`Events::lost`].
    Lost(name: impl Into<Arc<str>>, reason: LostReason) {
        /// The name of the lock, without the client's prefix.
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
    /// The argument of [`Events::reconnected`].
    Reconnected(server: impl Into<Arc<str>>) {
        /// The address of the server, without user and password.
        server: Arc<str> = server.into(),
    }
}

event! {
    /// The argument of [`Events::audit`].
    Audit(finding: impl Into<Arc<str>>) {
        /// The address of the server, without user and password.
        server: Arc<str> = Arc::default(),
        /// The finding, as a sentence that begins with the server.
        finding: Arc<str> = finding.into(),
    }
}

/// A queued call of an [`Events`] method.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Acquired(Acquired),
    Waited(Waited),
    Released(Released),
    Idle(Idle),
    Renewed(Renewed),
    RenewalFailed(RenewalFailed),
    Overdue(Overdue),
    Lost(Lost),
    Reconnected(Reconnected),
    Audit(Audit),
}

impl Event {
    /// Calls the method for this event.
    pub(crate) fn deliver(&self, receiver: &dyn Events) {
        match self {
            Event::Acquired(event) => receiver.acquired(event),
            Event::Waited(event) => receiver.waited(event),
            Event::Released(event) => receiver.released(event),
            Event::Idle(event) => receiver.idle(event),
            Event::Renewed(event) => receiver.renewed(event),
            Event::RenewalFailed(event) => receiver.renewal_failed(event),
            Event::Overdue(event) => receiver.overdue(event),
            Event::Lost(event) => receiver.lost(event),
            Event::Reconnected(event) => receiver.reconnected(event),
            Event::Audit(event) => receiver.audit(event),
        }
    }
}
