//! The records of leaders, which the watchdog keeps while their terms are valid.
//!
//! The call that wins an election announces the term once. From then on the watchdog repeats the
//! announcement: after a third of the watchdog time-out, after 500 ms without a reply, and after a
//! change of servers, because a fail-over may have lost the record and kept the lock. The script
//! writes nothing unless the term holds the lock, so a late or repeated announcement does no harm;
//! its reply then ends the term at once. The commands of the watchdog are background requests that
//! are not retried, so they delay no renewal.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Watchdog, WatchedHold};
use crate::cancel::Limit;
use crate::command::leader;
use crate::error::Result;
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::transport::pool::request::{BackgroundTask, CallReply, Request};
use crate::transport::pool::router::Router;
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::{AtomicU64, Mutex};

/// The time from an announcement without a reply to the next one.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The lifetime of a record, in leases of the term: it outlives each of them.
const LIFETIME: u32 = 2;

/// The divisor of the lease that gives the time between two announcements.
const PERIOD_DIVISOR: u32 = 3;

/// The announcement of one term.
pub(crate) struct Announcement {
    term: WatchedHold,
    value: Arc<str>,
    lease: Duration,
    router: Arc<Router>,
    /// Nanoseconds of the moment of the next announcement.
    next: AtomicU64,
}

/// A panic leaves the state consistent: callbacks run without a mutex
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for Announcement {}

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Announcement").field(self.term.hold.owner()).finish()
    }
}

impl Announcement {
    /// Returns the announcement of a term with this value. The first one is due at once.
    pub(crate) fn new(
        term: WatchedHold,
        value: Arc<str>,
        lease: Duration,
        router: Arc<Router>,
    ) -> Self {
        Announcement { term, value, lease, router, next: AtomicU64::new(0) }
    }

    /// Announces the term and waits for the reply. One round trip.
    ///
    /// Returns `false` if the server denies the term.
    pub(crate) fn send(&self, limit: &Limit<'_>) -> Result<bool> {
        let generation = self.router.generation();
        let target = Target::only(self.term.hold.late_connection());
        let reply = self.router.call(self.call(), target, limit)?;
        self.answered(reply, generation)
    }

    fn call(&self) -> Call {
        let WatchedHold { local, hold } = &self.term;
        let lifetime = self.lease.saturating_mul(LIFETIME);
        leader::announcement(local.name(), hold.owner(), hold.token(), &self.value, lifetime)
    }

    /// Ends a term that the server denies. The reply of a former server proves nothing.
    fn answered(&self, reply: CallReply, generation: Generation) -> Result<bool> {
        let is_announced = leader::is_announced(reply.value)?;
        if !is_announced && self.router.generation() == generation {
            self.term.local.lose(&self.term.hold);
        }
        Ok(is_announced)
    }

    /// Notes that the server has the record at `now`.
    pub(crate) fn announced(&self, now: Moment) {
        self.plan(now + self.lease / PERIOD_DIVISOR);
    }

    /// Plans the announcement after one that had this outcome, unless a change of servers has
    /// planned one meanwhile.
    fn settle(&self, repeat_at: Moment, generation: Generation, outcome: Result<CallReply>) {
        let is_planned = repeat_at == self.next();
        match outcome.and_then(|reply| self.answered(reply, generation)) {
            Ok(true) if is_planned => self.announced(clock::now()),
            Ok(_) => {}
            Err(error) => log::debug!(
                logger: LINES, target: log_target::LEASE,
                lock = &**self.term.local.name().given(), error:% = error.with_causes(),
                server = error.server();
                "a leader could not be announced: {}", error.with_causes()
            ),
        }
    }

    fn plan(&self, next: Moment) {
        self.next.store(next.nanos(), Ordering::Release);
    }

    fn next(&self) -> Moment {
        Moment::from_nanos(self.next.load(Ordering::Acquire))
    }
}

/// The announcements of the valid terms of a client.
#[derive(Debug, Default)]
pub(super) struct Announcements(Mutex<Vec<Weak<Announcement>>>);

impl Announcements {
    /// Returns the announcements of terms that are valid at `now`, and forgets the others.
    ///
    /// The last reference to an ended term may be dropped here, outside of the mutex.
    fn valid(&self, now: Moment) -> Vec<Arc<Announcement>> {
        let is_valid = |it: &Arc<Announcement>| !it.term.hold.remaining(now).is_zero();
        let mut announcements = Vec::new();
        self.0.lock().retain(|known| {
            let announcement = known.upgrade();
            let is_kept = announcement.as_ref().is_some_and(is_valid);
            announcements.extend(announcement);
            is_kept
        });
        announcements.retain(is_valid);
        announcements
    }
}

impl Watchdog {
    /// Keeps the record of a leader, until the term or the announcement ends. Does not block.
    pub(crate) fn keep_announced(&self, announcement: &Arc<Announcement>) {
        self.announcements.0.lock().push(Arc::downgrade(announcement));
        // Other announcements are due after the longest sleep of the watchdog.
        if announcement.next() <= clock::now() {
            self.parker.unpark();
        }
    }

    /// Sends the due announcements. Returns the moment for the next call.
    pub(super) fn announce_leaders(&self, servers_may_have_changed: bool) -> Moment {
        let now = clock::now();
        let announcements = self.announcements.valid(now);
        let is_due = |it: &&Arc<Announcement>| servers_may_have_changed || it.next() <= now;
        for announcement in announcements.iter().filter(is_due) {
            // Unless it is answered, it is repeated then.
            let repeat_at = now + RETRY_INTERVAL;
            announcement.plan(repeat_at);
            let (settled, generation) = (Arc::clone(announcement), self.router.generation());
            let task = BackgroundTask::new(Moment::START)
                .then(move |outcome| settled.settle(repeat_at, generation, outcome));
            let late = announcement.term.hold.late_connection();
            self.router.send_background(Request::background(announcement.call(), task), late);
        }
        announcements.iter().map(|it| it.next()).min().unwrap_or(Moment::END)
    }
}
