//! The pipeline of a shared connection: writes requests, reads replies, reconnects.
//!
//! The life of a request here:
//! 1. It is written together with all other unwritten requests, in queue order. A reply is
//!    late one response time-out after the write of its own request.
//! 2. Its reply completes it. A leader that leaves may write requests *ahead*, without reading
//!    their replies. The next leader reads those before its own reply.
//! 3. Some replies have the request written again (`in_flight.rs`): its script has to be
//!    loaded, or the server is a replica.
//! 4. If the connection breaks first, a new one is made at once, except for requests that are
//!    repeated anyway, if no command was answered on the broken one. Requests without a reply are
//!    written there once more, in the same order. The first copy may have run, so the reply
//!    names an open copy (`EarlierCopies`). A request whose reply is late is not written again, and
//!    a request that must not run twice ([`Call::once`]) never is. Background requests that fail go
//!    back to the pool, which retries them.
//!
//! A late reply ends the connection, but not the requests that were written after its own: their
//! time is not over, and the caller of the late one may have left long ago.
//!
//! Bytes that were written cannot be recalled: the server may read a command from a broken
//! connection after it has replied on the new one. So each answer has the moment of the last break.
//! A clean-up is repeated (`pool/background.rs`) if the connection has broken since the command
//! that the clean-up undoes was written.
//!
//! [`Call::once`]: crate::transport::call::Call::once

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::transport::call::ConnectionId;
#[cfg(not(all(test, leasehold_model)))]
use crate::transport::connection::Connection;
#[cfg(all(test, leasehold_model))]
use crate::transport::connection::model::Connection;
use crate::transport::connection::{Fault, ReadLimit, Timeouts};
use crate::transport::pool::LongestWait;
use crate::transport::pool::context::{ConnectionPause, PoolContext};
use crate::transport::pool::reply_slot::ReplySlot;
use crate::transport::pool::request::{Request, panicked};
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::util::threads;
use in_flight::InFlight;

mod in_flight;
mod replies;

/// The number of requests for which an idle connection keeps memory.
pub(super) const KEPT_REQUESTS: usize = 64;

/// The number of written bytes for which it keeps memory.
const KEPT_BYTES: usize = 16 * 1024;

/// The number of unread replies at which nothing more is written ahead. Requests that stay in the
/// queue can be joined with later ones (`pool/joined.rs`).
const MAX_UNREAD: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 8 };

/// A connection with the requests in flight; makes a new connection when it breaks.
#[derive(Debug)]
pub(crate) struct Pipeline {
    context: Arc<PipelineContext>,
    connection: Option<Connection>,
    /// The connection is valid while this is the generation of the route.
    generation: Generation,
    /// The number of connections made so far.
    connects: u64,
    in_flight: InFlight,
    buffer: Vec<u8>,
    /// The moment of the last attempt to connect, if it failed.
    unreachable_since: Option<Moment>,
    /// The last connection was given up because it led to a replica.
    led_to_replica: bool,
    /// The address of a new connection that is reported with the first answer.
    unreported: Option<Arc<str>>,
    /// Whether a command was answered on the present connection.
    has_answered: bool,
}

/// Where a pipeline connects, and how.
#[derive(Debug)]
pub(crate) struct PipelineContext {
    pub(crate) id: ConnectionId,
    pub(crate) pool: Arc<PoolContext>,
    pub(crate) timeouts: Timeouts,
    /// The longest wait of the watchdog, which repeats its requests, if the connection serves it.
    pub(crate) private: Option<Arc<LongestWait>>,
    pub(crate) pause: Arc<ConnectionPause>,
}

impl PipelineContext {
    /// Returns the present limits of a connection.
    pub(super) fn timeouts(&self) -> Timeouts {
        self.private.as_ref().map_or(self.timeouts, |longest| self.timeouts.within(longest.get()))
    }

    /// Returns whether only [`Pipeline::connect`] connects: requests fail without a connection.
    fn is_connected_explicitly(&self) -> bool {
        self.private.is_some() && self.pool.is_cluster_node
    }
}

/// When a leader stops reading although replies are missing.
#[derive(Clone, Copy)]
pub(crate) struct LeaderLimit<'a> {
    pub(crate) end: Moment,
    pub(crate) has_to_leave: &'a dyn Fn() -> bool,
}

type ExchangeResult<T> = std::result::Result<T, Fault>;

impl Pipeline {
    pub(crate) fn new(context: PipelineContext) -> Pipeline {
        let context = Arc::new(context);
        Pipeline {
            in_flight: InFlight::new(Arc::clone(&context)),
            context,
            connection: None,
            generation: Generation::default(),
            connects: 0,
            buffer: Vec::new(),
            unreachable_since: None,
            led_to_replica: false,
            unreported: None,
            has_answered: false,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The moment of the last attempt to connect, if it failed.
    pub(crate) fn unreachable_since(&self) -> Option<Moment> {
        self.unreachable_since
    }

    /// Adds a request behind those in flight. Writes nothing.
    pub(crate) fn push(&mut self, request: Request) {
        debug_assert!(request.written.is_none(), "it would never be written");
        self.in_flight.unanswered.push_back(request);
    }

    /// When the request of the oldest unread reply was written; `None` if no reply is unread.
    pub(crate) fn unread_since(&self) -> Option<Moment> {
        self.in_flight.unanswered.front()?.written
    }

    /// The slots of callers that wait for requests in flight.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &ReplySlot> {
        self.in_flight.all().filter_map(Request::waiter).map(Arc::as_ref)
    }

    /// Whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Gives back the memory of a burst of requests. Nothing is in flight.
    pub(crate) fn shrink(&mut self) {
        self.in_flight.shrink();
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES);
    }

    /// How many requests are not written, or have to be written again.
    pub(crate) fn unsent(&self) -> usize {
        self.in_flight.all().filter(|request| request.written.is_none()).count()
    }

    /// Whether a leader has to connect before it can write.
    pub(crate) fn has_to_connect(&self) -> bool {
        !self.context.is_connected_explicitly() && (self.connection.is_none() || self.is_outdated())
    }

    /// Whether the pipeline takes requests from the queue. It waits until the system has taken all
    /// bytes of the last write: meanwhile a caller can still take its queued request back.
    pub(crate) fn takes_more(&self) -> bool {
        self.connection.as_ref().is_none_or(Connection::is_flushed)
    }

    /// Whether requests can be written ahead, without waiting for anything.
    pub(crate) fn can_write_ahead(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_flushed)
            && !self.is_outdated()
            && !self.in_flight.waits_for_replicas()
            && self.in_flight.resend.is_empty()
            && self.in_flight.unanswered.len() < MAX_UNREAD
            && !self.in_flight.is_at_replica()
            && self.context.pool.check_process().is_ok()
    }

    /// Whether the server waits for replicas, and reads nothing until they have acknowledged.
    pub(crate) fn waits_for_replicas(&self) -> bool {
        self.in_flight.waits_for_replicas()
    }

    /// Writes all requests ahead, with their replies left unread. If the write fails, returns
    /// the requests without a reply, which have to be queued again.
    pub(crate) fn write_ahead(&mut self) -> Option<VecDeque<Request>> {
        let error = match threads::catch_panic("writing requests", || self.write()) {
            Some(Ok(())) => return None,
            Some(Err(fault)) => fault.error,
            None => panicked(),
        };
        self.disconnect();
        self.in_flight.fail_if(Request::must_not_repeat, &error);
        Some(self.in_flight.give_back())
    }

    /// Completes every request, or stops at the `limit`. Returns whether it completed all.
    ///
    /// Calls `on_progress` when some requests may be complete. With a limit, returns where a
    /// connection would have to be made.
    pub(crate) fn exchange(
        &mut self,
        limit: Option<LeaderLimit<'_>>,
        on_progress: impl Fn(),
    ) -> bool {
        let stayed = self.complete(limit, &on_progress);
        on_progress();
        stayed
    }

    fn complete(&mut self, limit: Option<LeaderLimit<'_>>, on_progress: &impl Fn()) -> bool {
        if let Err(error) = self.context.pool.check_process() {
            self.fail_all(&error);
            return true;
        }
        while !self.in_flight.is_empty() {
            if limit.is_some() && self.has_to_connect() {
                return true;
            }
            if let Some(error) = self.context.pause.error(clock::now())
                && self.has_to_connect()
            {
                // The request of a caller does not wait for the end of the pause. Those that a
                // former server may have run are to be written again.
                self.disconnect_outdated();
                self.in_flight.fail_if(|request| request.waiter().is_none(), &error);
                if self.in_flight.is_empty() {
                    break;
                }
            }
            if let Err(error) = self.stay_connected() {
                self.fail_all(&error);
                break;
            }
            // A panic must not leave the requests without an answer.
            let round = || self.round(limit);
            let Some(outcome) = threads::catch_panic("exchanging requests", round) else {
                self.abandon();
                break;
            };
            let Fault { error, timed_out } = match outcome {
                Ok(true) => continue,
                Ok(false) => return false,
                Err(fault) => fault,
            };
            self.note_silence(timed_out, &error);
            if timed_out && let Some(connection) = &self.connection {
                self.in_flight.note_late(|written| connection.is_late(written));
            }
            self.disconnect();
            let fails =
                |it: &Request| it.replay.is_late || it.replay.breaks > 1 || it.must_not_repeat();
            self.in_flight.fail_if(fails, &error);
            on_progress();
        }
        true
    }

    /// Makes one write and reads all replies. Requests that have to be written again stay in
    /// flight for the next round. Returns `false` if the limit ended the round.
    fn round(&mut self, limit: Option<LeaderLimit<'_>>) -> ExchangeResult<bool> {
        // Requests that are written again go before new ones. The missing replies are read first.
        if self.in_flight.resend.is_empty() {
            self.in_flight.begin_round();
            self.write()?;
        }
        let Some(connection) = &mut self.connection else { return Ok(true) };
        let limit_for = |due| match limit {
            None => ReadLimit::due(due),
            Some(LeaderLimit { end, has_to_leave }) => {
                ReadLimit { due, leave: end, has_to_leave: Some(has_to_leave) }
            }
        };
        let read = self.in_flight.read(connection, limit_for);
        self.note_answer();
        if !read? {
            return Ok(false);
        }
        self.in_flight.requeue();
        if std::mem::take(&mut self.in_flight.led_to_replica) {
            self.led_to_replica = true;
            self.connection = None;
        }
        Ok(true)
    }

    fn write(&mut self) -> ExchangeResult<()> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        self.buffer.clear();
        let held_back = self.in_flight.hold_back();
        self.in_flight.pack(&mut self.buffer);
        self.in_flight.unanswered.extend(held_back);
        if self.buffer.is_empty() { Ok(()) } else { connection.write(&self.buffer) }
    }

    /// Connects, unless there is a valid connection.
    pub(crate) fn connect(&mut self) -> Result<()> {
        if self.is_outdated() {
            self.disconnect_outdated();
        }
        if let Some(connection) = &mut self.connection {
            connection.set_timeouts(self.context.timeouts());
            return Ok(());
        }
        if self.context.private.is_some()
            && let Some(error) = self.context.pause.error(clock::now())
        {
            return Err(error);
        }
        let opened = self.open();
        self.unreachable_since = opened.is_err().then(clock::now);
        if let Err(error) = &opened {
            self.context.pause.begin(clock::now(), &self.context.pool.with_server(error.clone()));
        }
        opened
    }

    /// Notes that a server was silent: its reply is late, or a new connection broke before the
    /// first answer.
    ///
    /// A connection that was in use may end at any time.
    fn note_silence(&mut self, is_late: bool, error: &Error) {
        if is_late || self.connection.is_some() && !self.has_answered {
            self.context.pause.begin(clock::now(), &self.context.pool.with_server(error.clone()));
        }
    }

    /// Reports that commands were answered, if they were.
    fn note_answer(&mut self) {
        if !std::mem::take(&mut self.in_flight.has_answer) {
            return;
        }
        self.has_answered = true;
        let PipelineContext { id, pool, .. } = &*self.context;
        if pool.health.answered(clock::now) {
            pool.observer.recovered();
        }
        if let Some(server) = self.unreported.take() {
            pool.observer.reconnected(*id, &server);
        }
    }

    fn open(&mut self) -> Result<()> {
        let PipelineContext { id, pool, .. } = &*self.context;
        let name = format!("{}:{}.{}", pool.name, id.connection, self.connects);
        let opened = pool.route.open(self.context.timeouts(), &name)?;
        self.in_flight.refuses_writes = pool.found_replica(opened.conn.is_replica());
        self.in_flight.joiner.set_enabled(!pool.is_cluster_node);
        self.connection = Some(opened.conn);
        self.generation = opened.generation;
        self.connects += 1;
        self.has_answered = false;
        // The report makes the watchdog renew leases. After `READONLY` the server may be the same
        // replica again: it would refuse the renewals, which would lead here again, without end.
        let is_report_due = self.connects > 1 && !std::mem::take(&mut self.led_to_replica);
        self.unreported = is_report_due.then_some(opened.server);
        Ok(())
    }

    fn stay_connected(&mut self) -> Result<()> {
        if self.connection.is_some() || !self.context.is_connected_explicitly() {
            self.connect()
        } else {
            Err(Error::new(ErrorKind::Connection, "there is no connection"))
        }
    }

    /// Whether the connection leads to a former server.
    fn is_outdated(&self) -> bool {
        self.connection.is_some() && self.generation != self.context.pool.route.generation()
    }

    /// Gives up a connection to a former server. Returns the requests without a reply, which
    /// have to be queued again.
    pub(crate) fn leave_old_server(&mut self) -> VecDeque<Request> {
        if !self.is_outdated() {
            return VecDeque::new();
        }
        self.disconnect_outdated();
        self.in_flight.give_back()
    }

    fn disconnect_outdated(&mut self) {
        self.disconnect();
        self.in_flight.fail_if(Request::must_not_repeat, &Error::outdated());
    }

    /// Gives up the connection and fails all requests, after the leader panicked. How much it
    /// had read is unknown.
    pub(crate) fn abandon(&mut self) {
        self.disconnect();
        self.fail_all(&panicked());
    }

    /// Fails all requests in flight. Those that were written may have run.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.in_flight.outlive_connection();
        self.in_flight.fail_if(|_| true, error);
    }

    /// Gives up the connection. Requests without a reply are to be written again.
    fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.abort();
        }
        self.in_flight.outlive_connection();
    }
}
