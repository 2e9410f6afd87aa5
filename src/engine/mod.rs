//! The state that all handles of one client share, and its start and stop.
//!
//! Imports `config`, `watchdog`, `local`, `transport` and below. [`start`]
//! builds an engine; [`Deployment`] knows the servers; [`control`] handles the messages of
//! other processes and of the servers; this file has the state that the verbs use, and the
//! shutdown:
//!
//! 1. The closing token ends waits, and the executor, watchdog, listeners and fail-over monitor are
//!    told to stop.
//! 2. The calls that were ended return, and background requests are sent.
//! 3. The threads are joined, and the logger gets the queued lines. All three steps together take
//!    at most one response time-out, and [`LAST_LINES`] for the logger.
//!
//! Dropping the last handle does only step 1: it never waits.

pub(crate) mod absence;
mod control;
mod deployment;
mod start;

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::audit::{self, AuditFinding, AuditScope};
use crate::cancel::{CancelToken, CancelWatch, Limit, ResponseLimit};
use crate::command::name::Name;
use crate::config::BackOff;
use crate::engine::deployment::Deployment;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::local::Local;
use crate::local::hold::HandoffBounds;
use crate::stats::Stats;
use crate::transport::call::Call;
use crate::transport::connection::Timeouts;
use crate::transport::listener::channels::{Channel, Channels};
use crate::transport::listener::listeners::Listeners;
use crate::transport::pool::request::Request;
use crate::transport::pool::router::Router;
use crate::transport::topology::failover::FailoverMonitor;
use crate::transport::topology::route::RoutedConnection;
use crate::util::clock::{self, Moment};
use crate::util::executor::Executor;
use crate::util::interner::{Interned, Recent};
use crate::util::log_lines::{self, LINES};
use crate::util::log_target;
use crate::util::sync::{Mutex, Parker};
use crate::util::system::thread::{self, JoinHandle};
use crate::watchdog::Watchdog;

/// The interval at which a close checks whether a thread or a call has ended.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The time that the logger has for the lines about a server that did not answer a close.
const LAST_LINES: Duration = Duration::from_millis(50);

/// The shared state of one client.
pub(crate) struct Engine {
    pub(crate) id: Uuid,
    pub(crate) settings: EngineSettings,
    deployment: Arc<Deployment>,
    pub(crate) router: Arc<Router>,
    pub(crate) channels: Arc<Channels>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) events: EventSink,
    pub(crate) executor: Arc<Executor>,
    /// Cancelled when the client is closed.
    pub(crate) closing: CancelToken,
    /// The number of calls that a close waits for.
    active_calls: AtomicUsize,
    /// Whether a close has waited in vain for background requests. The drop of the last clone then
    /// does not wait for them.
    has_given_up: AtomicBool,
    locals: Locals,
    threads: BackgroundThreads,
}

/// The settings that the verbs use.
#[derive(Debug)]
pub(crate) struct EngineSettings {
    /// The control channel of the listener.
    pub(crate) control: String,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) poll_interval: Duration,
    /// How long the queue of a fair lock keeps the place of a waiter that does not report.
    pub(crate) fair_waiter_timeout: Duration,
    pub(crate) back_off: BackOff,
    /// The time by which each unit of weight above 1 moves a waiter forward.
    pub(crate) weight_step: Duration,
    /// Whether replicas have to acknowledge each hold.
    pub(crate) needs_replicas: bool,
    /// Whether the client takes locks on replicas.
    allows_replica: bool,
    /// Whether the client answers questions of other processes.
    announces: bool,
    pub(crate) response_timeout: Duration,
    pub(crate) handoff: HandoffBounds,
    /// How long a call without a deadline waits for its reply: the response time-out and the time
    /// for acknowledgements of replicas.
    reply_span: Duration,
    name_prefix: String,
}

/// The states of the locks that this process uses, by key.
#[derive(Default)]
struct Locals {
    by_key: Interned<Local>,
    /// Keeps recently used states alive between handles that live for one call.
    recent: Recent<Local>,
}

/// The threads that every client has.
struct BackgroundThreads {
    failover: Arc<FailoverMonitor>,
    /// The threads of the watchdog, of the fail-over monitor if the deployment needs one, and of
    /// observers.
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A panic leaves the state consistent: callbacks run without a mutex
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for Engine {}

impl Engine {
    /// Returns the state that this process shares for the lock of that name.
    pub(crate) fn local(&self, given: &Arc<str>) -> Result<Arc<Local>> {
        Ok(self.local_of(Name::new(&self.settings.name_prefix, Arc::clone(given))?))
    }

    /// Returns that state for a lock that Redisson may have named, for its forced release.
    pub(crate) fn local_of_any_lock(&self, given: &Arc<str>) -> Result<Arc<Local>> {
        Ok(self.local_of(Name::of_any_lock(&self.settings.name_prefix, Arc::clone(given))?))
    }

    fn local_of(&self, name: Name) -> Arc<Local> {
        let key = name.key().to_owned();
        let make = || Local::new(name, self.events.clone(), self.settings.handoff);
        let local = self.locals.by_key.get(&key, make);
        self.locals.recent.keep(&local);
        local
    }

    /// Returns the state of the lock with this key, if this process uses the lock.
    pub(crate) fn known_local(&self, key: &str) -> Option<Arc<Local>> {
        self.locals.by_key.find(key)
    }

    /// Starts a listener for the channel if none runs. Asks the listener to subscribe if no script
    /// can do that.
    ///
    /// For a caller that registered on the channel and whose acquire was refused. The acquire
    /// script asks the listener itself, except in a cluster.
    pub(crate) fn request_subscription(&self, channel: &Channel) {
        self.send(self.listeners.listen_to(channel));
    }

    /// Starts the listener for a caller that waits for grants.
    pub(crate) fn listen_for_grants(&self) {
        self.send(self.listeners.listen_for_messages());
    }

    /// Has a listener subscribe to a channel on which a caller waits without a refused acquire.
    pub(crate) fn subscribe(&self, channel: &Channel) {
        self.send(self.listeners.subscription_request(channel));
        self.request_subscription(channel);
    }

    /// Sends each call once, as a background request that is not retried.
    fn send(&self, calls: impl IntoIterator<Item = Call>) {
        for call in calls {
            self.router.send_background(Request::background_once(call), None);
        }
    }

    /// Has [`Engine::close`] join a thread that ends by itself after the closing token.
    pub(crate) fn join_at_close(&self, thread: JoinHandle<()>) {
        let mut handles = self.threads.handles.lock();
        handles.retain(|other| !other.is_finished());
        handles.push(thread);
    }

    /// Counts a call until the returned value is dropped; [`Engine::close`] waits for it.
    pub(crate) fn begin_call(&self) -> ActiveCall<'_> {
        self.active_calls.fetch_add(1, Ordering::AcqRel);
        ActiveCall(&self.active_calls)
    }

    /// Returns the response limit of a call that begins now and has no deadline of its own.
    pub(crate) fn response_limit(&self) -> ResponseLimit {
        ResponseLimit::new(clock::now() + self.settings.reply_span, &self.closing)
    }

    /// Returns the limit of a call with that response limit.
    pub(crate) fn limit(&self, response_limit: ResponseLimit) -> Limit<'_> {
        Limit::of(response_limit, &self.closing)
    }

    /// Returns an error once the client is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.is_cancelled() { Err(Error::closed()) } else { Ok(()) }
    }

    /// Returns an error once the client is closed, or the call with that token is cancelled.
    pub(crate) fn check_not_ended(&self, cancel: Option<&CancelToken>) -> Result<()> {
        self.check_open()?;
        cancel.map_or(Ok(()), CancelToken::check)
    }

    /// Has the parker woken when the client is closed, or the call with that token is cancelled.
    pub(crate) fn watch_ends(
        &self,
        cancel: Option<&CancelToken>,
        parker: &Arc<Parker>,
    ) -> Vec<CancelWatch> {
        let ends = std::iter::once(&self.closing).chain(cancel);
        ends.map(|end| end.watch(parker)).collect()
    }

    /// Blocks until commands can be sent.
    ///
    /// Only a lazily built client of a cluster waits here. The wait ends when the nodes are known,
    /// when the discovery fails, or at the limit.
    pub(crate) fn wait_until_ready<'a>(&self, limit: impl FnOnce() -> Limit<'a>) -> Result<()> {
        if self.deployment.is_discovered() {
            return Ok(());
        }
        self.router.check_process()?;
        self.deployment.wait_until_ready(&limit())
    }

    /// Returns the prefix of all lock names of this client.
    pub(crate) fn name_prefix(&self) -> &str {
        &self.settings.name_prefix
    }

    /// Returns whether release messages are published to the shards of a cluster.
    pub(crate) fn is_sharded(&self) -> bool {
        self.deployment.is_sharded()
    }

    /// Returns whether the servers are a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.router.is_cluster()
    }

    /// Returns whether an error concerns one node of a cluster: a query goes on with the others.
    pub(crate) fn is_partial(&self, error: &Error) -> bool {
        self.is_cluster() && error.is_transient()
    }

    /// Opens a connection for one purpose, which its name shows. The caller closes it.
    pub(crate) fn open_connection(
        &self,
        timeouts: Timeouts,
        purpose: &str,
    ) -> Result<RoutedConnection> {
        self.router.check_process()?;
        self.deployment.route.open(timeouts, &format!("leasehold:{}:{purpose}", self.id))
    }

    /// Returns whether a connection of [`Engine::open_connection`] still leads to a current server.
    pub(crate) fn is_current(&self, connection: &RoutedConnection) -> bool {
        connection.generation == self.deployment.route.generation()
    }

    /// Sends `PING` to all servers. One round trip.
    pub(crate) fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.wait_until_ready(|| self.limit(self.response_limit()))?;
        self.router.ping(&self.limit(self.response_limit()))
    }

    /// Audits all servers that serve keys, one after the other.
    ///
    /// A node of a cluster that does not answer is a finding, unless no node answers.
    pub(crate) fn audit(&self) -> Result<Vec<AuditFinding>> {
        self.check_open()?;
        let _active = self.begin_call();
        self.wait_until_ready(|| self.limit(self.response_limit()))?;
        if !self.is_cluster() {
            // Finds the present master, which the audit then names.
            self.router.ping(&self.limit(self.response_limit()))?;
        }
        let allows_replica = self.settings.allows_replica;
        let scope = AuditScope { of_cluster: self.is_cluster(), allows_replica };
        let (mut findings, mut first_error, mut has_answer) = (Vec::new(), None, false);
        for (server, connection) in self.router.servers() {
            let limit = self.limit(self.response_limit());
            let ask = |calls| self.router.call_in_one_write(calls, connection, &limit);
            match audit::examine(&server, scope, ask) {
                Ok(found) => {
                    has_answer = true;
                    findings.extend(found);
                }
                Err(error) if error.is_closed() => return Err(error),
                Err(error) => {
                    findings.push(audit::unanswered(&server, &error));
                    first_error.get_or_insert(error);
                }
            }
        }
        match first_error.filter(|_| !has_answer) {
            Some(error) => Err(error),
            None => Ok(findings),
        }
    }

    /// Returns the statistics of the client.
    ///
    /// The watchdog of a closed client no longer notices expired leases, so this call does then.
    pub(crate) fn stats(&self) -> Stats {
        if self.closing.is_cancelled() && self.router.check_process().is_ok() {
            let now = clock::now();
            self.locals.by_key.all().iter().for_each(|local| local.notice_expired(now));
        }
        self.events.stats().snapshot()
    }

    /// Blocks until all background requests are done, or for one response time-out.
    ///
    /// Returns at once in a forked child, which sends nothing, and after a close that has waited in
    /// vain.
    pub(crate) fn flush(&self) {
        if self.router.check_process().is_ok() && !self.has_given_up.load(Ordering::Acquire) {
            self.give_up_idle_holds();
            self.router.wait_until_settled(clock::now() + self.settings.response_timeout);
        }
    }

    /// Ends waits and renewals, sends the background requests, and joins the threads.
    ///
    /// Blocks for at most one response time-out and [`LAST_LINES`]. A forked child has nothing to
    /// send and no thread to join. A second close does nothing.
    pub(crate) fn close(&self) {
        let is_closed = self.closing.is_cancelled();
        self.closing.cancel();
        if is_closed || self.router.check_process().is_err() {
            return;
        }
        let end = clock::now() + self.settings.response_timeout;
        self.locals.by_key.all().iter().for_each(|local| local.end_lingering());
        self.give_up_idle_holds();
        let threads = self.stop();
        // The calls that were ended return.
        while self.active_calls.load(Ordering::Acquire) > 0 && clock::now() < end {
            Parker::default().park_until(clock::now() + CLOSE_CHECK_INTERVAL);
        }
        self.has_given_up.store(!self.router.wait_until_settled(end), Ordering::Release);
        let reapers = self.router.finish();
        for thread in threads.into_iter().chain(reapers) {
            join(thread, end);
        }
        log_lines::flush(end.max(clock::now() + LAST_LINES));
    }

    /// Releases the holds that linger. Does not block.
    fn give_up_idle_holds(&self) {
        for local in self.locals.by_key.all() {
            self.watchdog.give_up(&local, None);
        }
    }

    /// Tells the threads to end, and returns them for joining.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        let workers = self.executor.close();
        self.watchdog.stop();
        let listeners = self.listeners.stop();
        self.threads.failover.stop();
        let handles = std::mem::take(&mut *self.threads.handles.lock());
        workers.into_iter().chain(listeners).chain(handles).collect()
    }
}

impl Drop for Engine {
    /// Never waits, because the last guard may be dropped anywhere. Does nothing in a forked child:
    /// a thread of the parent may have left a mutex locked there.
    fn drop(&mut self) {
        if self.router.check_process().is_err() {
            return;
        }
        self.closing.cancel();
        self.give_up_idle_holds();
        self.stop();
        self.locals.by_key.all().iter().for_each(|local| local.abandon_holds());
    }
}

/// A call that a close waits for.
#[derive(Debug)]
pub(crate) struct ActiveCall<'a>(&'a AtomicUsize);

impl Drop for ActiveCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Joins a thread, unless it is the current thread or still runs at `end`.
fn join(thread: JoinHandle<()>, end: Moment) {
    if thread.thread().id() == thread::current().id() {
        return;
    }
    while !thread.is_finished() && clock::now() < end {
        thread::park_timeout(CLOSE_CHECK_INTERVAL);
    }
    if !thread.is_finished() {
        return log::warn!(
            logger: LINES, target: log_target::CLIENT,
            "a thread of a closed client is still busy and is not joined"
        );
    }
    if thread.join().is_err() {
        log::error!(
            logger: LINES, target: log_target::CLIENT,
            "a thread of the client has panicked"
        );
    }
}
