//! What a program can be told of its locks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::error::Error;
use crate::thread;

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
    /// [`Builder::audit`](crate::Builder::audit).
    fn audit(&self, event: &Audit) {
        let _ = event;
    }
}

/// Told by [`Events::acquired`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquired {
    /// The name of the lock, as it was given.
    pub name: Arc<str>,
    /// How long the caller took to get it, its questions to the server included.
    pub waited: Duration,
}

/// Told by [`Events::waited`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waited {
    /// The name of the lock, as it was given.
    pub name: Arc<str>,
    /// How long the caller waited.
    pub waited: Duration,
    /// Whether it got the lock in the end.
    pub acquired: bool,
}

/// Told by [`Events::released`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Released {
    /// The name of the lock, as it was given.
    pub name: Arc<str>,
    /// How many subscribers the server told; `None` if the release failed, or if its
    /// first answer was lost.
    pub heard_by: Option<u64>,
    /// Why the release failed for good; the lock is then free when its lease ends.
    pub error: Option<Error>,
}

/// Told by [`Events::renewed`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewed {
    /// How many leases one batch renewed.
    pub leases: usize,
}

/// Told by [`Events::renewal_failed`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewalFailed {
    /// The name of the lock, as it was given.
    pub name: Arc<str>,
    /// How much of the lease is left.
    pub remaining: Duration,
    /// Why the question failed.
    pub error: Error,
}

/// Told by [`Events::lost`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lost {
    /// The name of the lock, as it was given.
    pub name: Arc<str>,
    /// How the loss was noticed.
    pub reason: LostReason,
}

/// How a loss was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before it was renewed or released.
    Expired,
    /// The server said that the lock is not held by this hold any more.
    Gone,
}

/// Told by [`Events::reconnected`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reconnected {
    /// The server's address, without user and password.
    pub address: Arc<str>,
}

/// Told by [`Events::audit`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Audit {
    /// What was found, in words.
    pub finding: Arc<str>,
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
    pub(crate) fn tell(&self, to: &dyn Events) {
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
pub(crate) struct Sink(Option<Queue>);

#[derive(Clone)]
struct Queue {
    sender: Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Sink {
    /// A sink and the end at which the events thread takes them out.
    pub(crate) fn new() -> (Sink, Receiver<Event>) {
        let (sender, receiver) = crossbeam_channel::bounded(BACKLOG);
        let dropped = Arc::default();
        (Sink(Some(Queue { sender, dropped })), receiver)
    }

    /// Hands in what `event` builds; never blocks.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
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
            thread::say(|| {
                log::warn!("the events listener is too slow: {dropped} events dropped so far");
            });
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sink").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewed(leases: usize) -> Event {
        Event::Renewed(Renewed { leases })
    }

    #[test]
    fn a_sink_without_listener_builds_no_event() {
        Sink::default().tell(|| unreachable!("nobody listens"));
    }

    #[test]
    fn a_full_backlog_drops_instead_of_blocking() {
        let (sink, events) = Sink::new();
        (0..BACKLOG + 3).for_each(|n| sink.tell(|| renewed(n)));
        assert_eq!(events.try_iter().count(), BACKLOG);
        let dropped = sink.0.map(|queue| queue.dropped.load(Ordering::Relaxed));
        assert_eq!(dropped, Some(3));
    }
}
