//! The fate of background requests: requests whose sender does not wait.
//!
//! | outcome                          | next step                                                 |
//! |----------------------------------|-----------------------------------------------------------|
//! | reply                            | report it; repeat if a late command could undo it         |
//! | refusal that a retry cannot mend | report it                                                 |
//! | no reply, before the deadline    | retry after a pause                                       |
//! | no reply, after the deadline     | report the error; go on if what it ends may outlast it   |
//! | redirection                      | move it to the other node, [`MAX_REDIRECTS`] times; then  |
//! |                                  | as without a reply                                        |

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Redirect, Result};
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::PoolSettings;
use crate::transport::pool::context::ConnectionObserver;
use crate::transport::pool::request::{BackgroundTask, CallReply, Request};
use crate::transport::pool::retry_queue::RetryQueue;
use crate::transport::topology::failover::ServerObserver;
use crate::transport::topology::health::ServerHealth;
use crate::util::clock::{self, Moment, doubled};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Mutex;
use crate::util::system::OnceLock;
use crate::util::threads;

/// The first interval for repeating a clean-up that a late command could undo. Doubles with each
/// copy, up to the poll interval.
///
/// So a lock that a late command takes is freed after about as long as the command was late.
const FIRST_REPEAT: Duration = Duration::from_millis(10);

/// The number of redirections that a background request follows without a pause.
const MAX_REDIRECTS: u8 = 4;

/// Finds the node for a background request in a cluster.
pub(crate) trait Rerouter: Send + Sync {
    /// Moves a request to the server that `redirect` names, or that serves its key now.
    ///
    /// Returns the request if it stays on its connection. Must not block.
    fn reroute(
        &self,
        connection: ConnectionId,
        request: Request,
        redirect: Option<&Redirect>,
    ) -> Option<Request>;

    /// Has the topology read again soon: a server may have been replaced.
    fn request_refresh(&self);
}

/// The error of a command that the nodes of a cluster redirect to each other.
pub(crate) fn no_agreement() -> Error {
    let message = "the nodes of the cluster disagree about the owner of a slot";
    Error::new(ErrorKind::Connection, message)
}

/// The background requests of one pool.
pub(super) struct Background {
    pub(super) queue: RetryQueue,
    /// The longest interval for repeating a clean-up that a late command could undo.
    longest_repeat: Duration,
    health: Arc<ServerHealth>,
    server_observer: Mutex<Option<Weak<dyn ServerObserver>>>,
    /// Set in a cluster.
    rerouter: OnceLock<Weak<dyn Rerouter>>,
}

impl Background {
    pub(super) fn new(settings: &PoolSettings, health: Arc<ServerHealth>) -> Self {
        Background {
            queue: RetryQueue::new(settings.size),
            longest_repeat: settings.longest_repeat,
            health,
            server_observer: Mutex::new(None),
            rerouter: OnceLock::new(),
        }
    }

    pub(super) fn set_server_observer(&self, receiver: Weak<dyn ServerObserver>) {
        *self.server_observer.lock() = Some(receiver);
    }

    pub(super) fn set_rerouter(&self, rerouter: Weak<dyn Rerouter>) {
        // Set once, when the pool is made.
        let _ = self.rerouter.set(rerouter);
    }

    /// Schedules one more copy of a command that has `copies`, unless it would come after `until`.
    pub(super) fn repeat(&self, connection: ConnectionId, call: Call, copies: u32, until: Moment) {
        let at = clock::now() + doubled(FIRST_REPEAT, copies, self.longest_repeat);
        if at < until {
            let copy = BackgroundTask {
                repeat_until: until,
                copies: copies.saturating_add(1),
                delays_close: false,
                ..BackgroundTask::new(until)
            };
            self.queue.schedule(connection, Request::background(call, copy), at);
        }
    }

    /// Moves a request to the server it belongs to. Returns the request if it stays.
    pub(super) fn reroute(
        &self,
        connection: ConnectionId,
        request: Request,
        redirect: Option<&Redirect>,
    ) -> Option<Request> {
        let rerouter = self.rerouter.get().and_then(Weak::upgrade);
        let Some(rerouter) = rerouter else { return Some(request) };
        let delays_close = request.delays_close();
        let back = rerouter.reroute(connection, request, redirect);
        if back.is_none() {
            // The other pool has counted the request by now.
            self.queue.count_closed(delays_close);
        }
        back
    }

    /// Reports the outcome of a request, and repeats its command if that is due.
    fn complete(
        &self,
        connection: ConnectionId,
        call: Call,
        mut task: BackgroundTask,
        outcome: Result<CallReply>,
    ) {
        let late_until = match (&outcome, &task.late_copy) {
            (Ok(reply), Some(copy)) if reply.may_precede(copy, task.effect) => {
                reply.sent + task.effect
            }
            _ => Moment::START,
        };
        let (copies, repeat_until) = (task.copies, task.repeat_until.max(late_until));
        report(&mut task, outcome);
        self.repeat(connection, call, copies, repeat_until);
        self.queue.count_closed(task.delays_close);
    }

    /// Ends a request without a reply at its deadline. Keeps sending it if what it ends may last
    /// longer.
    fn expire(&self, connection: ConnectionId, call: Call, mut task: BackgroundTask, error: Error) {
        if error.is_final() || !task.outlasts_deadline {
            return self.complete(connection, call, task, Err(error));
        }
        let delays_close = task.delays_close;
        let retry_at = self.health.retry_at(clock::now(), &error);
        report(&mut task, Err(error));
        let request = Request::background(call, task.after_deadline());
        self.queue.schedule_retry(connection, request, retry_at);
        self.queue.count_closed(delays_close);
    }

    fn request_refresh(&self) {
        if let Some(rerouter) = self.rerouter.get().and_then(Weak::upgrade) {
            rerouter.request_refresh();
        }
    }
}

fn report(task: &mut BackgroundTask, outcome: Result<CallReply>) {
    threads::catch_panic("reporting the outcome of a background request", || task.settle(outcome));
}

impl ConnectionObserver for Background {
    fn reconnected(&self, _connection: ConnectionId, address: &Arc<str>) {
        log::info!(
            logger: LINES, target: log_target::CONNECTION, server = &**address;
            "reconnected to {address}"
        );
        let receiver = self.server_observer.lock().clone();
        if let Some(receiver) = receiver.and_then(|receiver| receiver.upgrade()) {
            receiver.reconnected(address);
        }
    }

    fn recovered(&self) {
        self.queue.end_pauses();
    }

    fn answered(&self, connection: ConnectionId, request: Request, reply: CallReply) {
        if let Some((call, task)) = request.into_task() {
            self.complete(connection, call, task, Ok(reply));
        }
    }

    fn failed(&self, connection: ConnectionId, request: Request, error: Error) {
        let (now, deadline) = (clock::now(), request.deadline(self.queue.closed()));
        if error.is_unanswered() {
            self.request_refresh();
        }
        if !error.is_final() && now < deadline {
            let retry_at = self.health.retry_at(now, &error);
            self.queue.schedule_retry(connection, request, retry_at);
        } else if let Some((call, task)) = request.into_task() {
            self.expire(connection, call, task, error);
        }
    }

    fn redirected(
        &self,
        connection: ConnectionId,
        mut request: Request,
        redirect: Redirect,
        error: Error,
    ) {
        let redirects = &mut request.redirection.count;
        *redirects = redirects.saturating_add(1);
        let follows = *redirects <= MAX_REDIRECTS && redirect != Redirect::RetryLater;
        let back = if follows {
            self.reroute(connection, request, Some(&redirect))
        } else {
            Some(request)
        };
        if let Some(request) = back {
            self.request_refresh();
            let error = if error.is_transient() { error } else { no_agreement() };
            self.failed(connection, request, error);
        }
    }

    fn queue_unattended(&self, connection: ConnectionId) {
        self.queue.wake_reaper(connection);
    }

    fn connects(&self, connection: ConnectionId) -> bool {
        self.queue.wake_or_miss_reaper(connection)
    }

    fn replies_unread(&self, connection: ConnectionId) {
        let reaper = self.queue.find_reaper(connection);
        if let Some(reaper) = reaper.filter(|r| !r.will_check.swap(true, Ordering::AcqRel)) {
            reaper.parker.unpark();
        }
    }
}
