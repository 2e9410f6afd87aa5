//! Reapers: threads that read replies which no caller reads, and send due background requests.
//!
//! A connection gets its reaper with its first background request, or with the first caller that
//! leaves before its reply. So a silent connection delays no other connection.
//!
//! In each round a reaper
//! 1. queues the background requests that are due,
//! 2. writes the queue and reads the replies; while the connection pauses after a failure, the
//!    requests fail, and are scheduled for the end of the pause,
//! 3. reads replies that have been unread for [`UNREAD_LIMIT`],
//! 4. sleeps until it is woken or something is due.
//!
//! If the system has no room for the thread, callers write requests and read replies meanwhile, and
//! each round of the watchdog tries again.
//!
//! Under traffic it checks every [`UNREAD_LIMIT`] without being woken: waking it for each reply
//! doubled the context switches of a thread that locks and unlocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::transport::call::ConnectionId;
use crate::transport::pool::connections::Connections;
use crate::transport::pool::shared_connection::Unread;
use crate::util::clock::{self, Moment};
use crate::util::sync::TIME_PASSES;
use crate::util::threads;

/// How long a reply is left for the next caller to read.
///
/// A shorter limit wakes the reaper more often under traffic. A longer one delays the retry of a
/// release that failed.
const UNREAD_LIMIT: Duration = if TIME_PASSES { Duration::from_millis(5) } else { Duration::ZERO };

/// The longest sleep while requests are scheduled or queued.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

impl Connections {
    /// Sends the background requests of a connection, as far as that needs no waiting.
    ///
    /// The thread that leads there or the reaper sends the rest.
    pub(super) fn dispatch(self: &Arc<Connections>, connection: ConnectionId) {
        self.ensure_reaper(connection);
        self.get(connection).flush();
    }

    /// Has the reaper of a connection begin a round now. Starts it, unless it runs.
    pub(super) fn start_or_wake_reaper(self: &Arc<Connections>, connection: ConnectionId) {
        self.ensure_reaper(connection);
        self.background.queue.wake_reaper(connection);
    }

    /// Starts the reaper of a connection, unless it runs.
    pub(super) fn ensure_reaper(self: &Arc<Connections>, connection: ConnectionId) {
        if self.background.queue.claim_reaper(connection) {
            let connections = Arc::clone(self);
            match threads::start("leasehold-reaper", move || connections.reap(connection)) {
                Ok(thread) => drop(self.reapers.lock().insert(connection.connection, thread)),
                Err(_) => self.background.queue.unclaim_reaper(connection),
            }
        }
    }

    /// Starts the reapers for which the system had no room.
    pub(super) fn start_missing_reapers(self: &Arc<Connections>) {
        for number in self.background.queue.take_missing_reapers() {
            self.start_or_wake_reaper(self.id(number));
        }
    }

    /// Runs the reaper of a connection.
    pub(super) fn reap(&self, connection: ConnectionId) {
        let parker = &self.background.queue.reaper(connection).parker;
        while !self.background.queue.end_reaper(connection) {
            let next =
                threads::catch_panic("sending background requests", || self.round(connection));
            parker.park_until(next.unwrap_or_else(|| clock::now() + threads::PANIC_PAUSE));
        }
    }

    /// Runs one round. Returns when the next one is due.
    fn round(&self, id: ConnectionId) -> Moment {
        let (due, next) = self.background.queue.take_due(id, clock::now());
        let connection = self.get(id);
        for request in due {
            if let Some(request) = self.background.reroute(id, request, None) {
                connection.queue(request);
            }
        }
        if connection.unsent() > 0 {
            connection.serve();
        }
        let unread_due = self.read_unread(id);
        if next == Moment::END && connection.unsent() == 0 {
            // Nothing is scheduled or queued, and new requests wake the reaper.
            unread_due
        } else {
            unread_due.min(next).min(clock::now() + LONGEST_SLEEP)
        }
    }

    /// Reads replies that are unread for too long. Returns when the next ones are due.
    fn read_unread(&self, id: ConnectionId) -> Moment {
        let connection = self.get(id);
        let will_check = &self.background.queue.reaper(id).will_check;
        will_check.store(false, Ordering::Release);
        loop {
            let due = match connection.unread() {
                Unread::Led if TIME_PASSES => clock::now() + UNREAD_LIMIT,
                Unread::Nothing | Unread::Led => return Moment::END,
                Unread::Since(since) => since + UNREAD_LIMIT,
            };
            if clock::now() < due {
                will_check.store(true, Ordering::Release);
                return due;
            }
            connection.serve();
        }
    }
}
