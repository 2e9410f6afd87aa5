//! The schedule of background requests, and the reapers that serve it.
//!
//! A failed request is retried at the end of the server's pause (`topology/health.rs`), or as soon
//! as the server has answered a command on any connection.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::transport::call::ConnectionId;
use crate::transport::pool::request::Request;
use crate::util::clock::{self, Moment};
use crate::util::sync::{Condvar, Mutex, Parker};

/// Holds background requests that wait for their next attempt, and counts the open ones.
pub(super) struct RetryQueue {
    pub(super) state: Mutex<RetryQueueState>,
    /// Notified when no request is open.
    settled: Condvar,
    /// By the number of the connection.
    reapers: Box<[Reaper]>,
}

/// Where the reaper of one connection sleeps.
#[derive(Default)]
pub(super) struct Reaper {
    pub(super) parker: Parker,
    /// The reaper will check for unread replies without being woken.
    pub(super) will_check: AtomicBool,
}

#[derive(Debug)]
pub(super) struct RetryQueueState {
    /// The number of requests that delay the close and have no outcome.
    pub(super) open: usize,
    /// The moment at which the client was closed. Since then reapers end when no request is open.
    closed: Option<Moment>,
    pub(super) connections: Box<[ConnectionRetries]>,
}

/// The scheduled requests of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionRetries {
    /// By the moment of the next attempt, then in the order of arrival.
    pub(super) scheduled: BTreeMap<(Moment, u64), Request>,
    arrivals: u64,
    /// The moment for which the last failed request was scheduled.
    pub(super) pause_end: Moment,
    /// A reaper exists and will check the schedule again.
    pub(super) has_reaper: bool,
    /// A reaper is needed, and the system had no room for its thread.
    lacks_reaper: bool,
}

/// Counting and scheduling.
impl RetryQueue {
    pub(super) fn new(connections: usize) -> RetryQueue {
        let state = RetryQueueState {
            open: 0,
            closed: None,
            connections: (0..connections).map(|_| ConnectionRetries::default()).collect(),
        };
        RetryQueue {
            state: Mutex::new(state),
            settled: Condvar::default(),
            reapers: (0..connections).map(|_| Reaper::default()).collect(),
        }
    }

    /// Counts a request that delays the close.
    pub(super) fn count_open(&self) {
        self.state.lock().open += 1;
    }

    /// Counts a request that has its outcome.
    pub(super) fn count_closed(&self, delays_close: bool) {
        let mut state = self.state.lock();
        state.open -= usize::from(delays_close);
        if state.open == 0 {
            self.settled.notify_all();
            if state.closed.is_some() {
                self.wake_reapers();
            }
        }
    }

    /// Blocks until no request is open, or until `end`. Returns whether no request is open.
    pub(super) fn wait_until_settled(&self, end: Moment) -> bool {
        let mut state = self.state.lock();
        while state.open > 0 && clock::now() < end {
            self.settled.wait_until(&mut state, end);
        }
        state.open == 0
    }

    /// Returns the number of requests that delay the close and have no outcome.
    pub(super) fn open(&self) -> usize {
        self.state.lock().open
    }

    /// Schedules a request for that moment; wakes the reaper if that comes first.
    pub(super) fn schedule(&self, connection: ConnectionId, request: Request, at: Moment) {
        self.insert(connection, request, at, false);
    }

    /// Schedules a failed request for the end of a pause.
    pub(super) fn schedule_retry(&self, connection: ConnectionId, request: Request, at: Moment) {
        self.insert(connection, request, at, true);
    }

    fn insert(&self, connection: ConnectionId, request: Request, at: Moment, pauses: bool) {
        let mut state = self.state.lock();
        let retries = state.connection(connection);
        let before = retries.next();
        retries.arrivals += 1;
        retries.scheduled.insert((at, retries.arrivals), request);
        if pauses {
            retries.pause_end = retries.pause_end.max(at);
        }
        if at < before {
            self.wake_reaper(connection);
        }
    }

    /// Makes the requests due that wait for the end of a pause.
    pub(super) fn end_pauses(&self) {
        let mut state = self.state.lock();
        for (retries, reaper) in state.connections.iter_mut().zip(&self.reapers) {
            let pause_end = mem::replace(&mut retries.pause_end, Moment::START);
            let due = retries.take_until(pause_end);
            if !due.is_empty() {
                let at_once = |((_, arrival), request)| ((Moment::START, arrival), request);
                retries.scheduled.extend(due.into_iter().map(at_once));
                reaper.parker.unpark();
            }
        }
    }

    /// Takes the requests that are due at `now`. Also returns when the next one is due.
    pub(super) fn take_due(&self, id: ConnectionId, now: Moment) -> (Vec<Request>, Moment) {
        let mut state = self.state.lock();
        let retries = state.connection(id);
        let requests = retries.take_until(now).into_values().collect();
        (requests, retries.next())
    }
}

/// Reapers.
impl RetryQueue {
    pub(super) fn reaper(&self, connection: ConnectionId) -> &Reaper {
        &self.reapers[connection.connection]
    }

    pub(super) fn wake_reaper(&self, connection: ConnectionId) {
        if let Some(reaper) = self.find_reaper(connection) {
            reaper.parker.unpark();
        }
    }

    /// Returns the reaper of a connection; the private connection has none.
    pub(super) fn find_reaper(&self, connection: ConnectionId) -> Option<&Reaper> {
        self.reapers.get(connection.connection)
    }

    /// Returns whether the caller has to start the reaper, and counts it as started.
    pub(super) fn claim_reaper(&self, connection: ConnectionId) -> bool {
        !mem::replace(&mut self.state.lock().connection(connection).has_reaper, true)
    }

    /// Takes back a claim whose thread could not be started, and notes that the reaper is missing.
    pub(super) fn unclaim_reaper(&self, connection: ConnectionId) {
        let mut state = self.state.lock();
        state.connection(connection).has_reaper = false;
        state.connection(connection).lacks_reaper = true;
    }

    /// Wakes the reaper of a connection, or notes that it is missing.
    ///
    /// Returns `false` for the private connection, which has none.
    pub(super) fn wake_or_miss_reaper(&self, connection: ConnectionId) -> bool {
        let Some(reaper) = self.find_reaper(connection) else { return false };
        let mut state = self.state.lock();
        let retries = state.connection(connection);
        retries.lacks_reaper = !retries.has_reaper;
        drop(state);
        reaper.parker.unpark();
        true
    }

    /// Returns the numbers of the connections whose reapers are missing, and forgets them.
    pub(super) fn take_missing_reapers(&self) -> Vec<usize> {
        let mut state = self.state.lock();
        let connections = state.connections.iter_mut().enumerate();
        let missing = |(number, it): (_, &mut ConnectionRetries)| {
            mem::take(&mut it.lacks_reaper).then_some(number)
        };
        connections.filter_map(missing).collect()
    }

    /// Tells the reapers to end when no request is open.
    pub(super) fn finish(&self) {
        self.state.lock().closed.get_or_insert_with(clock::now);
        self.wake_reapers();
    }

    fn wake_reapers(&self) {
        for reaper in &self.reapers {
            reaper.parker.unpark();
        }
    }

    /// Returns the moment at which the client was closed, or [`Moment::END`].
    pub(super) fn closed(&self) -> Moment {
        self.state.lock().closed.unwrap_or(Moment::END)
    }

    /// Returns whether the calling reaper has to end.
    ///
    /// The check and the end are one step: a new request either is counted before, or starts a new
    /// reaper.
    pub(super) fn end_reaper(&self, connection: ConnectionId) -> bool {
        let mut state = self.state.lock();
        let ends = state.closed.is_some() && state.open == 0;
        if ends {
            state.connection(connection).has_reaper = false;
        }
        ends
    }
}

impl RetryQueueState {
    pub(super) fn connection(&mut self, connection: ConnectionId) -> &mut ConnectionRetries {
        &mut self.connections[connection.connection]
    }
}

impl ConnectionRetries {
    /// Returns the moment of the next attempt.
    fn next(&self) -> Moment {
        self.scheduled.first_key_value().map_or(Moment::END, |((at, _), _)| *at)
    }

    /// Removes the requests that are scheduled until that moment, inclusive.
    fn take_until(&mut self, moment: Moment) -> BTreeMap<(Moment, u64), Request> {
        let later = self.scheduled.split_off(&(moment + Duration::from_nanos(1), 0));
        mem::replace(&mut self.scheduled, later)
    }
}
