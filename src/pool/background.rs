//! What a client owes: how much of it there is, and what failed and waits to be tried
//! again.
//!
//! Each lane has a pause of its own: what fails there while it lasts is tried again
//! together, at its end or as soon as there is a connection. The pauses grow until there
//! is an answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::command::call::{Call, ConnectionId};
use crate::error::{Error, ErrorKind, Redirect, Result};
use crate::events::{Event, EventSink, Reconnected};
use crate::pool::context::Observer;
use crate::pool::request::{Answer, BackgroundTask, Request};
use crate::topology::failover::OnReconnect;
use crate::util::clock::{self, Moment, doubled, jittered};
use crate::util::sync::{Condvar, Mutex, Parker};
use crate::util::threads;

/// The first and the longest pause before an owed request is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a request that is owed is sent elsewhere without a pause.
const HOPS: u8 = 4;

/// Knows on which server a request is to be sent, where there are several.
pub(crate) trait Rerouter: Send + Sync {
    /// Hands on a request that stands on that lane, and belongs elsewhere by what the server
    /// has answered, or by what is known now. Must not block.
    fn reroute(
        &self,
        connection: ConnectionId,
        request: Request,
        direction: Option<&Redirect>,
    ) -> Option<Request>;

    /// A server could not be reached: another may serve by now what it served.
    fn request_refresh(&self);
}

/// Why nobody runs a command that the nodes of a cluster send to each other.
pub(crate) fn no_agreement() -> Error {
    let message = "the nodes of the cluster do not agree where a slot is served";
    Error::new(ErrorKind::Connection, message)
}

/// Where debts are counted, and where those that failed wait to be tried again.
pub(super) struct RetryQueue {
    pub(super) state: Mutex<RetryQueueState>,
    settled: Condvar,
    /// By the number of the lane.
    reapers: Box<[Reaper]>,
    events: EventSink,
    repeat: Duration,
    on_reconnect: Mutex<Option<Weak<dyn OnReconnect>>>,
    router: OnceLock<Weak<dyn Rerouter>>,
}

/// Where the reaper of one lane sleeps.
#[derive(Default)]
pub(super) struct Reaper {
    pub(super) parker: Parker,
    /// It will look for unread replies without being rung.
    pub(super) looks_again: AtomicBool,
}

#[derive(Debug)]
pub(super) struct RetryQueueState {
    /// Debts that are neither settled nor given up.
    pub(super) open: usize,
    finish: bool,
    pub(super) connections: Box<[ConnectionRetries]>,
}

/// What is owed on one lane, later.
#[derive(Debug, Default)]
pub(super) struct ConnectionRetries {
    /// By the moment at which it is due, and a number.
    pub(super) delayed: BTreeMap<(Moment, u64), Request>,
    serial: u64,
    /// When what failed is tried again. The reaper sends nothing before; a caller that
    /// leads takes along what is queued.
    pub(super) retry: Moment,
    /// How often that was put off since the last answer.
    failures: u32,
    /// There is a reaper, and it will look again.
    pub(super) reaping: bool,
}

impl RetryQueue {
    pub(super) fn new(connections: usize, events: EventSink, repeat: Duration) -> RetryQueue {
        let state = RetryQueueState {
            open: 0,
            finish: false,
            connections: (0..connections).map(|_| ConnectionRetries::default()).collect(),
        };
        RetryQueue {
            state: Mutex::new(state),
            settled: Condvar::default(),
            reapers: (0..connections).map(|_| Reaper::default()).collect(),
            events,
            repeat,
            on_reconnect: Mutex::new(None),
            router: OnceLock::new(),
        }
    }

    pub(super) fn wake_reaper(&self, connection: ConnectionId) {
        if let Some(reaper) = self.reapers.get(connection.connection) {
            reaper.parker.unpark();
        }
    }

    pub(super) fn opened(&self) {
        self.state.lock().open += 1;
    }

    /// A debt has found its end.
    fn settle(
        &self,
        connection: ConnectionId,
        call: Call,
        task: BackgroundTask,
        outcome: Result<Answer>,
    ) {
        let may_run_late = outcome.as_ref().ok().filter(|answer| answer.may_run_late);
        let may_run_late =
            may_run_late.map_or(Moment::START, |answer| answer.sent + task.late_effect);
        let repeat_until = task.repeat_until.max(may_run_late);
        let answered = outcome.is_ok();
        threads::survive("settling what was owed", || task.settle(outcome));
        self.repeat(connection, call, repeat_until);
        self.closed(connection, task.delays_close, answered);
    }

    /// The time of a debt is over without an answer. What may live on is sent all the same.
    fn overdue(&self, connection: ConnectionId, call: Call, task: BackgroundTask, error: Error) {
        if error.is_final() || !task.outlives_lease {
            return self.settle(connection, call, task, Err(error));
        }
        let delays_close = task.delays_close;
        threads::survive("settling what was owed", || task.settle(Err(error)));
        let after_lease = Request::background(call, task.after_lease());
        self.delay(connection, after_lease, |state| state.retry(clock::now()));
        self.closed(connection, delays_close, false);
    }

    /// Has a command sent once more, if that is before `until`, and so on.
    pub(super) fn repeat(&self, connection: ConnectionId, call: Call, until: Moment) {
        let at = clock::now() + self.repeat;
        if at < until {
            let again = BackgroundTask {
                repeat_until: until,
                delays_close: false,
                ..BackgroundTask::new(None, until)
            };
            self.delay(connection, Request::background(call, again), |_| at);
        }
    }

    fn closed(&self, connection: ConnectionId, delays_close: bool, answered: bool) {
        let mut state = self.state.lock();
        state.open -= usize::from(delays_close);
        if answered {
            state.connection(connection).failures = 0;
        }
        if state.open == 0 {
            self.settled.notify_all();
            if state.finish {
                self.reapers.iter().for_each(|reaper| reaper.parker.unpark());
            }
        }
    }

    pub(super) fn wait_until_settled(&self, end: Moment) -> bool {
        let mut state = self.state.lock();
        while state.open > 0 && clock::now() < end {
            self.settled.wait_until(&mut state, end);
        }
        state.open == 0
    }

    pub(super) fn finish(&self) {
        self.state.lock().finish = true;
        self.reapers.iter().for_each(|reaper| reaper.parker.unpark());
    }

    /// Whether a reaper has to be started by the caller.
    pub(super) fn starts_reaper(&self, connection: ConnectionId) -> bool {
        !std::mem::replace(&mut self.state.lock().connection(connection).reaping, true)
    }

    /// No reaper could be started after all.
    pub(super) fn has_no_reaper(&self, connection: ConnectionId) {
        self.state.lock().connection(connection).reaping = false;
    }

    pub(super) fn reaper(&self, connection: ConnectionId) -> &Reaper {
        &self.reapers[connection.connection]
    }

    pub(super) fn set_on_reconnect(&self, whom: Weak<dyn OnReconnect>) {
        *self.on_reconnect.lock() = Some(whom);
    }

    /// Who serves what may have changed.
    fn request_refresh(&self) {
        if let Some(router) = self.router.get().and_then(Weak::upgrade) {
            router.request_refresh();
        }
    }

    pub(super) fn set_router(&self, router: Weak<dyn Rerouter>) {
        // There is but one.
        let _ = self.router.set(router);
    }

    /// Hands a request on that belongs elsewhere; it is not owed here any more then.
    pub(super) fn reroute(
        &self,
        connection: ConnectionId,
        request: Request,
        direction: Option<&Redirect>,
    ) -> Option<Request> {
        let Some(router) = self.router.get().and_then(Weak::upgrade) else { return Some(request) };
        let delays_close = request.delays_close();
        let back = router.reroute(connection, request, direction);
        if back.is_none() {
            self.closed(connection, delays_close, true);
        }
        back
    }

    /// Whether the reaper has to end; one step with looking for debts, so that a new
    /// one either is seen here or starts a new reaper.
    pub(super) fn ends_reaper(&self, connection: ConnectionId) -> bool {
        let mut state = self.state.lock();
        let ends = state.finish && state.open == 0;
        if ends {
            state.connection(connection).reaping = false;
        }
        ends
    }

    /// Keeps a request until `at` says.
    fn delay(
        &self,
        connection: ConnectionId,
        request: Request,
        at: impl FnOnce(&mut ConnectionRetries) -> Moment,
    ) {
        let mut state = self.state.lock();
        let state = state.connection(connection);
        let at = at(state);
        let before = state.next();
        state.serial += 1;
        state.delayed.insert((at, state.serial), request);
        if at < before {
            self.wake_reaper(connection);
        }
    }

    /// Has what failed tried again at once: there is a connection.
    fn pause_no_more(&self, connection: ConnectionId) {
        let mut state = self.state.lock();
        let Some(state) = state.connections.get_mut(connection.connection) else { return };
        let paused = std::mem::replace(&mut state.retry, Moment::START);
        let later = state.delayed.split_off(&(paused + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut state.delayed, later);
        if !due.is_empty() {
            let at_once = |((_, number), request)| ((Moment::START, number), request);
            state.delayed.extend(due.into_iter().map(at_once));
            self.wake_reaper(connection);
        }
    }

    /// What is due at `now`, when the next will be, and whether the lane pauses.
    pub(super) fn due(
        &self,
        connection: ConnectionId,
        now: Moment,
    ) -> (Vec<Request>, Moment, bool) {
        let mut state = self.state.lock();
        let state = state.connection(connection);
        let later = state.delayed.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut state.delayed, later).into_values().collect();
        let next = state.next();
        match now < state.retry {
            true => (due, next.min(state.retry), true),
            false => (due, next, false),
        }
    }
}

impl RetryQueueState {
    pub(super) fn connection(&mut self, connection: ConnectionId) -> &mut ConnectionRetries {
        &mut self.connections[connection.connection]
    }
}

impl ConnectionRetries {
    /// When the next of what is delayed is due.
    fn next(&self) -> Moment {
        self.delayed.first_key_value().map_or(Moment::END, |((at, _), _)| *at)
    }

    /// When something that failed now is tried again: together with all that fails
    /// until then.
    fn retry(&mut self, now: Moment) -> Moment {
        if self.retry <= now {
            let pause = doubled(FIRST_PAUSE, self.failures, LONGEST_PAUSE);
            self.retry = now + jittered(pause, now.nanos());
            self.failures += 1;
        }
        self.retry
    }
}

impl Observer for RetryQueue {
    fn reconnected(&self, connection: ConnectionId, address: &Arc<str>) {
        self.pause_no_more(connection);
        let address = Arc::clone(address);
        threads::survive("telling of a new connection", || {
            log::info!("connected to {address} again");
            let at = clock::wall_time();
            self.events.emit(|| Event::Reconnected(Reconnected { at, address }));
        });
        let whom = self.on_reconnect.lock().clone();
        if let Some(whom) = whom.and_then(|whom| whom.upgrade()) {
            whom.reconnected();
        }
    }

    fn answered(&self, connection: ConnectionId, request: Request, answer: Answer) {
        if let Some((call, task)) = request.into_task() {
            self.settle(connection, call, task, Ok(answer));
        }
    }

    fn failed(&self, connection: ConnectionId, request: Request, error: Error) {
        let (now, until) = (clock::now(), request.deadline());
        if error.is_unanswered() {
            self.request_refresh();
        }
        if !error.is_final() && now < until {
            self.delay(connection, request, |state| state.retry(now));
        } else if let Some((call, task)) = request.into_task() {
            self.overdue(connection, call, task, error);
        }
    }

    fn redirected(
        &self,
        connection: ConnectionId,
        mut request: Request,
        direction: Redirect,
        error: Error,
    ) {
        let redirects = request.count_redirection();
        // Nodes that send it to and fro do not agree yet.
        let follows = redirects <= HOPS && direction != Redirect::RetryLater;
        let back = match follows {
            true => self.reroute(connection, request, Some(&direction)),
            false => Some(request),
        };
        if let Some(request) = back {
            self.request_refresh();
            let error = if error.is_transient() { error } else { no_agreement() };
            self.failed(connection, request, error);
        }
    }

    fn queue_unattended(&self, connection: ConnectionId) {
        self.wake_reaper(connection);
    }

    fn replies_unread(&self, connection: ConnectionId) {
        let reaper = self.reapers.get(connection.connection);
        if let Some(reaper) = reaper.filter(|r| !r.looks_again.swap(true, Ordering::AcqRel)) {
            reaper.parker.unpark();
        }
    }
}
