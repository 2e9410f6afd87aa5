//! The connection of a lane: writes requests, reads replies, and does again what a
//! broken connection left undone.
//!
//! What happens to a request here, step by step:
//! 1. It is written, together with all that came with it. One deadline for what is
//!    waited for. Many acquires and releases that stand next to each other are *joined*:
//!    made by one call of a script, with a list of replies. What fails there, or cannot be
//!    joined, is sent again by itself.
//! 2. Its reply completes it. Requests that nobody waits for may be left *unread*:
//!    written, their replies to be read by whoever comes next, before its own.
//!    Where replicas have to acknowledge what takes or prolongs a lock, `WAIT` comes last in
//!    the write, and the answers are held until it is answered. Nothing is posted behind it,
//!    where it would not be looked at before.
//! 3. A reply of `NOSCRIPT` loads the script and sends it again, and with it what was
//!    written behind it: order holds.
//!    One of `READONLY` has it sent again, once, over a new connection: the server was a
//!    master, or has taken its address, and the master may be elsewhere by now.
//!    A node of a cluster may send it elsewhere: then its sender is told where, or whoever
//!    sees to what is owed. What has to be announced there has `ASKING` before it.
//! 4. If the connection breaks before, a new one is made at once, and what has no
//!    answer is sent again, once; its answer is then marked *doubtful*, since the
//!    first copy may have run. If no answer comes in time nothing is sent again, and
//!    never what must not run twice ([`Call::once`]).
//!    Owed requests are given back to the pool, which tries later.
//!
//! Bytes that were written cannot be recalled: an old connection may still run a
//! command after its successor has answered. So the *ghost* of a connection that was
//! given up with questions under way is killed by its client id: the handshake of
//! the next connection asks whether the server still has it, and if so the first
//! thing written there is `CLIENT KILL`. What follows on this lane runs after it.
//! Where that is not permitted, answers are marked *haunted* for as long as a late
//! copy could leave something behind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::command::call::{Call, ConnectionId, Digits};
use crate::command::reply::Reply;
use crate::command::script::{self, Script};
#[cfg(not(all(test, leasehold_model)))]
use crate::connection::Connection;
#[cfg(all(test, leasehold_model))]
use crate::connection::model::Connection;
use crate::connection::{ConnectionIdentity, Fault, ReadLimit, STEP, StaleConnections, Timeouts};
use crate::error::{Error, ErrorKind, Redirect, Refusal, Result};
use crate::pool::context::PoolContext;
use crate::pool::reply_slot::ReplySlot;
use crate::pool::request::{
    Answer, Failure, PipelineCommand, ReplyTo, Request, TooFewReplicas, panicked,
};
use crate::topology::route::Generation;
use crate::util::clock::{self, Moment, millis};
use crate::util::threads;

/// How often a script is loaded for one request before that is an error.
const LOADS: u8 = 3;

/// No more is posted if so many replies are unread: what waits in line meanwhile is joined.
const UNREAD: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 8 };

/// From how many calls on it pays to join them, and how many are joined at most: the
/// server does nothing else meanwhile.
const PAYS: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 8 };
const JOINED: usize = 32;

/// The connection of a lane, what was written to it, and what is known of those
/// before it.
#[derive(Debug)]
pub(crate) struct Pipeline {
    context: PipelineContext,
    conn: Option<Connection>,
    /// What the connection is good for.
    generation: Generation,
    /// How many connections there have been.
    serial: u64,
    buffer: Vec<u8>,
    batch: InFlight,
    notes: ServerNotes,
    /// When it could not be connected, if the last attempt failed.
    unreachable: Option<Moment>,
}

/// Which lane it is, and how it is to connect.
#[derive(Debug)]
struct PipelineContext {
    connection: ConnectionId,
    pool: Arc<PoolContext>,
    timeouts: Timeouts,
    /// It is connected by [`Pipeline::connect`] alone, and never by who writes.
    connected_elsewhere: bool,
}

/// What has been taken from the line and has no answer.
#[derive(Debug, Default)]
struct InFlight {
    /// In order; what was written comes first.
    left: VecDeque<Request>,
    /// What has to be sent once more in the same order, before it.
    again: VecDeque<Request>,
    /// What was answered, and waits for replicas to acknowledge it.
    held: VecDeque<(Request, Reply)>,
}

/// What the replies said that is of use for what follows.
#[derive(Debug, Default)]
struct ServerNotes {
    stale: Vec<StaleConnection>,
    /// The server said that it is a replica.
    sent_to_replica: bool,
    /// That is why the connection was made anew, which is no news.
    led_back: bool,
    /// A script that could not be loaded in this round, and why.
    not_loaded: Option<(&'static str, Refusal)>,
    /// Calls can be joined on this connection, as far as is known.
    joins: bool,
    /// The script that does it has to be loaded.
    join_unknown: bool,
}

/// A connection that was given up with questions under way.
#[derive(Debug)]
struct StaleConnection {
    identity: ConnectionIdentity,
    /// How long that lasts which it may do late.
    lasting: Duration,
    fate: StaleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaleState {
    Unknown,
    /// The server has it, and it is to be killed.
    Alive,
    /// The server does not let us find out, or kill it. Forgotten at that moment.
    Untouchable(Moment),
}

impl StaleConnection {
    fn give_up(&mut self, now: Moment) {
        if !matches!(self.fate, StaleState::Untouchable(_)) {
            self.fate = StaleState::Untouchable(now + self.lasting);
        }
    }

    fn may_act(&self, now: Moment) -> bool {
        !matches!(self.fate, StaleState::Untouchable(until) if until <= now)
    }
}

type ExchangeResult<T> = std::result::Result<T, Fault>;

/// When the leader has to go before all is answered: at that moment, or when that is true.
pub(crate) type LeaveWhen<'a> = Option<(Moment, &'a dyn Fn() -> bool)>;

impl Pipeline {
    pub(crate) fn new(
        connection: ConnectionId,
        pool: Arc<PoolContext>,
        timeouts: Timeouts,
        connected_elsewhere: bool,
    ) -> Pipeline {
        Pipeline {
            context: PipelineContext { connection, pool, timeouts, connected_elsewhere },
            conn: None,
            generation: Generation::default(),
            serial: 0,
            buffer: Vec::new(),
            batch: InFlight::default(),
            notes: ServerNotes::default(),
            unreachable: None,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    /// When the last attempt to connect it was made, if that failed.
    pub(crate) fn unreachable_since(&self) -> Option<Moment> {
        self.unreachable
    }

    /// Takes a request over, behind those that it has.
    pub(crate) fn take(&mut self, request: Request) {
        debug_assert!(request.written.is_none(), "it would never be written");
        self.batch.left.push_back(request);
    }

    /// Since when replies have been left unread, if some have.
    pub(crate) fn unread_since(&self) -> Option<Moment> {
        self.batch.left.front()?.written
    }

    /// Those who wait for what was taken over and has no answer.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &ReplySlot> {
        self.batch.all().filter_map(Request::waiter).map(Arc::as_ref)
    }

    /// Whether it has no requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.batch.is_empty()
    }

    /// How many requests it has that are not written, or have to be written again.
    pub(crate) fn unsent(&self) -> usize {
        self.batch.all().filter(|request| request.written.is_none()).count()
    }

    /// Whether nothing can be written before it is connected, by whoever leads.
    pub(crate) fn has_to_connect(&self) -> bool {
        !self.context.connected_elsewhere && (self.conn.is_none() || self.has_been_left())
    }

    /// Whether it takes requests from the line: not while the system has not taken what was
    /// written before. In line they can still be taken back.
    pub(crate) fn takes_more(&self) -> bool {
        self.conn.as_ref().is_none_or(Connection::is_flushed)
    }

    /// Whether more can be written without waiting for anything.
    pub(crate) fn can_post(&self) -> bool {
        self.conn.as_ref().is_some_and(Connection::is_flushed)
            && !self.has_been_left()
            && !self.waits_for_replicas()
            && self.batch.again.is_empty()
            && self.batch.left.len() < UNREAD
            && self.context.pool.check_process().is_ok()
            && !self.notes.stale.iter().any(|stale| stale.fate == StaleState::Alive)
    }

    /// Whether the server has been asked to wait for replicas: what is written now is not
    /// looked at before that.
    pub(crate) fn waits_for_replicas(&self) -> bool {
        matches!(
            self.batch.left.back(),
            Some(Request { reply_to: ReplyTo::Pipeline(PipelineCommand::CountReplicas), .. })
        )
    }

    /// Writes what was taken over and leaves the replies unread. If that fails, what
    /// has no answer comes back.
    pub(crate) fn post(&mut self) -> Option<VecDeque<Request>> {
        let error = match threads::survive("writing requests", || self.write()) {
            Some(Ok(())) => return None,
            Some(Err(fault)) => fault.error,
            None => panicked(),
        };
        self.condemn();
        self.give_up(&error, |request| request.must_not_repeat());
        Some(self.give_back())
    }

    /// All that has no answer, to be queued again.
    fn give_back(&mut self) -> VecDeque<Request> {
        let mut back = std::mem::take(&mut self.batch.left);
        back.retain(|request| !request.is_of_pipeline());
        back
    }

    /// Has every request that was taken over completed, unless the leader has to go before;
    /// whether it stayed. A leader that may have to go does not connect. `some_done` is
    /// called when some may have been completed.
    pub(crate) fn exchange(&mut self, leaves: LeaveWhen<'_>, some_done: impl Fn()) -> bool {
        let stayed = self.complete(leaves, &some_done);
        some_done();
        stayed
    }

    fn complete(&mut self, leaves: LeaveWhen<'_>, some_done: &impl Fn()) -> bool {
        if let Err(error) = self.context.pool.check_process() {
            self.fail_all(&error);
            return true;
        }
        while !self.batch.is_empty() {
            if leaves.is_some() && self.has_to_connect() {
                return true;
            }
            if let Err(error) = self.stay_connected() {
                self.fail_all(&error);
                break;
            }
            // Loggers are foreign code. What they break must not stay unanswered.
            let round = || self.round(leaves);
            let (error, hopeless) = match threads::survive("speaking with the server", round) {
                Some(Ok(true)) => continue,
                Some(Ok(false)) => return false,
                Some(Err(fault)) => (fault.error, fault.timed_out),
                None => (panicked(), true),
            };
            self.condemn();
            self.give_up(&error, |request| {
                hopeless || request.replay.breaks > 1 || request.call.once
            });
            some_done();
        }
        true
    }

    fn give_up(&mut self, error: &Error, which: impl Fn(&Request) -> bool) {
        let given_up = self.batch.take(which);
        self.context.fail(given_up, error);
    }

    /// Connects if there is no connection, or one to what is no more the server.
    pub(crate) fn connect(&mut self) -> Result<()> {
        if self.has_been_left() {
            self.condemn_left();
        }
        if self.conn.is_some() {
            return Ok(());
        }
        let opened = self.open();
        self.unreachable = opened.is_err().then(clock::now);
        opened
    }

    fn open(&mut self) -> Result<()> {
        let PipelineContext { connection, pool, timeouts, .. } = &self.context;
        let now = clock::now();
        let unknown = self.notes.stale_that_may_act(now);
        let name = format!("{}:{}.{}", pool.name, connection.connection, self.serial);
        let reached = pool.route.open(*timeouts, &name, &unknown)?;
        self.notes.judge(&reached.stale, now);
        self.conn = Some(reached.conn);
        self.generation = reached.generation;
        // What stands together there is seldom of one slot.
        self.notes.joins = !pool.is_node;
        self.serial += 1;
        // The same server again would have every lease renewed, and so refused, without end.
        if self.serial > 1 && !std::mem::take(&mut self.notes.led_back) {
            pool.observer.reconnected(*connection, &reached.server);
        }
        Ok(())
    }

    /// Connects if there is no connection, where that is not somebody else's business.
    fn stay_connected(&mut self) -> Result<()> {
        match self.conn.is_some() || !self.context.connected_elsewhere {
            true => self.connect(),
            false => Err(Error::new(ErrorKind::Connection, "there is no connection")),
        }
    }

    /// Whether it has a connection that leads to what is no more the server.
    fn has_been_left(&self) -> bool {
        self.conn.is_some() && self.generation != self.context.pool.route.generation()
    }

    /// Gives up a connection that leads to what is no more the server. What has no answer
    /// there comes back.
    pub(crate) fn leave_old_server(&mut self) -> VecDeque<Request> {
        if !self.has_been_left() {
            return VecDeque::new();
        }
        self.condemn_left();
        self.give_back()
    }

    /// Gives up a connection to a former server. A command that must not run twice does not go
    /// to the new one.
    fn condemn_left(&mut self) {
        self.condemn();
        self.give_up(&Error::outdated(), |request| request.must_not_repeat());
    }

    /// Its leader has panicked in the middle: nobody knows what it has read.
    pub(crate) fn abandon(&mut self) {
        self.condemn();
        self.fail_all(&panicked());
    }

    /// Fails all that has no answer.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.batch.requeue();
        let all = std::mem::take(&mut self.batch.left);
        self.context.fail(all, error);
    }

    /// Gives the connection up. What has no answer may have run, and is to be sent
    /// again.
    fn condemn(&mut self) {
        self.batch.requeue();
        self.batch.take_back_held();
        let unanswered = &mut self.batch.left;
        let written = unanswered.iter().filter(|request| request.written.is_some());
        let lasting = written.map(|request| request.call.lasting).max().unwrap_or_default();
        unanswered.iter_mut().for_each(Request::outlive_connection);
        if let Some(conn) = self.conn.take()
            && !lasting.is_zero()
        {
            let identity = conn.identity().clone();
            self.notes.stale.push(StaleConnection { identity, lasting, fate: StaleState::Unknown });
        }
    }

    /// One write and all replies. What is answered leaves the batch; what needs its
    /// script loaded stays there for the next round. Returns `false` if the leader had to go
    /// before: the next round then goes on in the middle.
    fn round(&mut self, leaves: LeaveWhen<'_>) -> ExchangeResult<bool> {
        // What has to be sent again comes first, and not before all replies are there.
        if self.batch.again.is_empty() {
            self.notes.put_own_requests_first(&mut self.batch.left);
            self.notes.not_loaded = None;
            self.write()?;
        }
        let Pipeline { conn: Some(conn), notes, batch, .. } = self else { return Ok(true) };
        let until = |due| match leaves {
            None => ReadLimit::due(due),
            Some((leave, has_to_go)) => ReadLimit { due, leave, has_to_go: Some(has_to_go) },
        };
        if !notes.read(&self.context, conn, batch, until)? {
            return Ok(false);
        }
        batch.requeue();
        if std::mem::take(&mut notes.sent_to_replica) {
            notes.led_back = true;
            self.conn = None;
        }
        Ok(true)
    }

    /// Writes what has not been written, but for requests whose senders have left.
    fn write(&mut self) -> ExchangeResult<()> {
        let Pipeline { conn: Some(conn), buffer, batch, notes, .. } = self else { return Ok(()) };
        buffer.clear();
        let now = clock::now();
        batch.left.retain(|request| request.written.is_some() || !request.is_abandoned());
        let mut at = batch.left.partition_point(|request| request.written.is_some());
        while at < batch.left.len() {
            if batch.left[at].redirection.asking {
                let asking = Call::command(&[b"ASKING"]);
                buffer.extend_from_slice(&asking.bytes);
                let asking = Request {
                    written: Some(now),
                    ..Request::pipeline(asking, PipelineCommand::Asking)
                };
                batch.left.insert(at, asking);
                at += 1;
            }
            let joined = if notes.joins { batch.joins_from(at) } else { 1 };
            let together = at..at + joined;
            match joined {
                1 => buffer.extend_from_slice(&batch.left[at].call.bytes),
                _ => Call::join(batch.left.range(together.clone()).map(|r| &r.call), buffer),
            }
            batch.left.range_mut(together).for_each(|request| request.written = Some(now));
            batch.left[at].joining.count = joined;
            at += joined;
        }
        let fresh = batch.left.iter().rev().take_while(|request| request.written == Some(now));
        if fresh.into_iter().any(|request| self.context.wants_replicas(request)) {
            let wait = self.context.wait_for_replicas();
            buffer.extend_from_slice(&wait.bytes);
            let written = Some(now);
            batch.left.push_back(Request {
                written,
                ..Request::pipeline(wait, PipelineCommand::CountReplicas)
            });
        }
        if !buffer.is_empty() {
            conn.post(buffer)?;
        }
        Ok(())
    }
}

impl PipelineContext {
    fn answer(&self, mut request: Request, answer: Result<Answer>) {
        // It may be sent anew.
        request.written = None;
        let answer = answer.map_err(|error| self.pool.named(error));
        match (&mut request.reply_to, answer) {
            (ReplyTo::Caller(promise), answer) => {
                promise.keep(answer.map_err(Failure::sent));
            }
            (ReplyTo::Background(_), Err(error)) => {
                self.pool.observer.failed(self.connection, request, error)
            }
            (ReplyTo::Background(_), Ok(answer)) => {
                self.pool.observer.answered(self.connection, request, answer)
            }
            _ => {}
        }
    }

    /// Where the server, a node of a cluster, has sent a command, if so.
    fn direction(&self, reply: &Reply, request: &mut Request) -> Option<(Redirect, Error)> {
        let Reply::Refused(refusal) = reply else { return None };
        let direction = refusal.redirect().filter(|_| self.pool.is_node)?;
        request.replay.maybe_duplicate |= refusal.is_slot_migrating();
        Some((direction, self.pool.named(Error::refused(refusal))))
    }

    fn redirect(&self, mut request: Request, direction: Redirect, error: Error) {
        (request.written, request.redirection.asking) = (None, false);
        if let Some((request, direction, error)) = request.redirect(direction, error) {
            self.pool.observer.redirected(self.connection, request, direction, error);
        }
    }

    /// Whether replicas have to acknowledge it.
    fn wants_replicas(&self, request: &Request) -> bool {
        self.pool.replicas > 0 && request.call.replicated
    }

    /// Waits until enough replicas have all that was written before on that connection.
    fn wait_for_replicas(&self) -> Call {
        let (wanted, span) = (self.pool.replicas.into(), millis(self.timeouts.replicas));
        let (wanted, span) = (Digits::new(wanted), Digits::new(span.unsigned_abs()));
        Call::command(&[b"WAIT", wanted.as_bytes(), span.as_bytes()])
    }

    /// How many too few have it, by the answer to that.
    fn too_few(&self, reply: Reply) -> Result<Option<TooFewReplicas>> {
        let (acknowledged, wanted) = (reply.into_int()?.unsigned_abs(), self.pool.replicas);
        Ok((acknowledged < wanted.into()).then_some(TooFewReplicas { acknowledged, wanted }))
    }

    fn fail(&self, requests: impl IntoIterator<Item = Request>, error: &Error) {
        let error = &self.pool.named(error.clone());
        for request in requests.into_iter().filter_map(|request| request.fail(error)) {
            if let ReplyTo::Background(_) = request.reply_to {
                self.pool.observer.failed(self.connection, request, error.clone());
            }
        }
    }
}

impl InFlight {
    /// To how many requests the next reply belongs, and when they were written.
    fn next_reply(&self) -> Option<(usize, Moment)> {
        let first = self.left.front()?;
        Some((first.joining.count, first.written?))
    }

    /// How many from there on are written as one command.
    fn joins_from(&self, at: usize) -> usize {
        let fit = |request: &&Request| request.call.joins() && !request.joining.alone;
        match self.left.range(at..).take(JOINED).take_while(fit).count() {
            few if few < PAYS => 1,
            many => many,
        }
    }

    /// In the order in which it was taken over.
    fn all(&self) -> impl Iterator<Item = &Request> {
        self.held.iter().map(|(request, _)| request).chain(&self.again).chain(&self.left)
    }

    fn is_empty(&self) -> bool {
        self.left.is_empty() && self.again.is_empty()
    }

    /// What has to be sent once more comes before what has no answer.
    fn requeue(&mut self) {
        self.again.append(&mut self.left);
        std::mem::swap(&mut self.left, &mut self.again);
    }

    /// What waits for replicas comes before all else that has no answer.
    fn take_back_held(&mut self) {
        for (request, _) in self.held.drain(..).rev() {
            self.left.push_front(request);
        }
    }

    /// Has the next ones sent again, each by itself: they did not run.
    fn set_apart(&mut self, count: usize) {
        for mut request in self.left.drain(..count) {
            request.joining.alone = true;
            request.written = None;
            self.again.push_back(request);
        }
    }

    fn take(&mut self, which: impl Fn(&Request) -> bool) -> VecDeque<Request> {
        let (taken, left) = self.left.drain(..).partition(which);
        self.left = left;
        taken
    }
}

impl ServerNotes {
    fn stale_that_may_act(&mut self, now: Moment) -> Vec<ConnectionIdentity> {
        self.stale.retain(|stale| stale.may_act(now));
        self.stale.iter().map(|stale| stale.identity.clone()).collect()
    }

    /// Takes in what the server said of the ghosts.
    fn judge(&mut self, said: &StaleConnections, now: Moment) {
        match said {
            StaleConnections::Alive(alive) => {
                self.stale.retain(|stale| alive.contains(&stale.identity));
                self.stale.iter_mut().for_each(|stale| stale.fate = StaleState::Alive);
            }
            StaleConnections::Unknown => self.stale.iter_mut().for_each(|stale| stale.give_up(now)),
        }
    }

    /// Reads the replies to what was written and completes what they answer, each `until` it
    /// is late. Returns `false` if the leader had to go before.
    fn read<'a>(
        &mut self,
        context: &PipelineContext,
        conn: &mut Connection,
        batch: &mut InFlight,
        until: impl Fn(Moment) -> ReadLimit<'a>,
    ) -> ExchangeResult<bool> {
        let mut leave = Moment::END;
        while let Some((joined, written)) = batch.next_reply() {
            let until = until(written + conn.patience());
            // The replies of others may come for long.
            if until.has_to_go() {
                leave = leave.min(clock::now() + STEP);
            }
            if leave <= clock::now() || !conn.flush(&until)? {
                return Ok(false);
            }
            let Some(reply) = conn.answer_until(&until)? else { return Ok(false) };
            match (joined, reply) {
                (1, reply) => self.take_in(context, batch, reply),
                (_, Reply::List(replies)) if replies.len() == joined => {
                    for reply in replies {
                        match reply {
                            Reply::Nil => batch.set_apart(1),
                            reply => self.take_in(context, batch, reply),
                        }
                    }
                }
                (_, reply) => {
                    self.not_joined(&reply);
                    batch.set_apart(joined);
                }
            }
        }
        Ok(true)
    }

    /// Completes what is answered by the next reply, or has it sent again.
    fn take_in(&mut self, context: &PipelineContext, batch: &mut InFlight, reply: Reply) {
        let Some(mut request) = batch.left.pop_front() else { return };
        if let ReplyTo::Pipeline(PipelineCommand::CountReplicas) = request.reply_to {
            return self.acknowledged(context, batch, context.too_few(reply));
        }
        let reply = self.why_unknown(&request, reply);
        if reply.is_refused("NOSCRIPT") && request.replay.loads < LOADS {
            request.replay.loads += 1;
            request.written = None;
            batch.again.push_back(request);
        } else if reply.is_refused("READONLY") && !request.replay.sent_to_replica {
            self.sent_to_replica = true;
            request.replay.sent_to_replica = true;
            request.written = None;
            batch.again.push_back(request);
        } else if batch.again.is_empty() || request.call.once {
            if let Some((direction, error)) = context.direction(&reply, &mut request) {
                return context.redirect(request, direction, error);
            }
            match context.wants_replicas(&request) && !matches!(reply, Reply::Refused(_)) {
                true => batch.held.push_back((request, reply)),
                false => self.answer(context, request, reply, None),
            }
        } else {
            // It was answered too early: it stands behind one that did not run.
            request.take_back();
            batch.again.push_back(request);
        }
    }

    /// So many replicas have what was written up to here.
    fn acknowledged(
        &mut self,
        context: &PipelineContext,
        batch: &mut InFlight,
        too_few: Result<Option<TooFewReplicas>>,
    ) {
        for (request, reply) in batch.held.drain(..) {
            match &too_few {
                Ok(too_few) => self.answer(context, request, reply, *too_few),
                Err(error) => context.answer(request, Err(error.clone())),
            }
        }
    }

    /// The server would not run calls that were joined: perhaps it does not know how, or
    /// one of them is forbidden, or their keys are at home on different servers.
    fn not_joined(&mut self, reply: &Reply) {
        match reply.is_refused("NOSCRIPT") {
            true => self.join_unknown = true,
            false => self.joins = false,
        }
    }

    /// A script that is unknown because it could not be loaded: the reason for that is
    /// the better answer.
    fn why_unknown(&self, request: &Request, reply: Reply) -> Reply {
        match (&self.not_loaded, request.call.script) {
            (Some((digest, refusal)), Some(script))
                if script.digest == *digest && reply.is_refused("NOSCRIPT") =>
            {
                Reply::Refused(refusal.clone())
            }
            _ => reply,
        }
    }

    fn answer(
        &mut self,
        context: &PipelineContext,
        request: Request,
        reply: Reply,
        too_few: Option<TooFewReplicas>,
    ) {
        match &request.reply_to {
            ReplyTo::Pipeline(PipelineCommand::KillStale(identity)) => {
                self.killed(identity, &reply)
            }
            ReplyTo::Pipeline(PipelineCommand::LoadScript(script)) => {
                if let Reply::Refused(refusal) = reply {
                    self.joins &= script.digest != script::CALL_MANY.digest;
                    self.not_loaded = Some((script.digest, refusal));
                }
            }
            ReplyTo::Caller(_) | ReplyTo::Background(_) => {
                let sent = request.written.unwrap_or(Moment::START);
                let may_run_late = self.stale.iter().any(|stale| stale.may_act(sent));
                let (maybe_duplicate, connection) =
                    (request.replay.maybe_duplicate, context.connection);
                let answer = match reply {
                    Reply::Refused(refusal) => Err(Error::refused(&refusal)),
                    reply => Ok(Answer {
                        reply,
                        sent,
                        maybe_duplicate,
                        may_run_late,
                        too_few,
                        connection,
                    }),
                };
                context.answer(request, answer);
            }
            ReplyTo::Pipeline(_) => {}
        }
    }

    /// The server has answered the command that kills a ghost.
    fn killed(&mut self, identity: &ConnectionIdentity, reply: &Reply) {
        match reply {
            Reply::Refused(_) => {
                let stale = self.stale.iter_mut().filter(|stale| stale.identity == *identity);
                stale.for_each(|stale| stale.give_up(clock::now()));
            }
            _ => self.stale.retain(|stale| stale.identity != *identity),
        }
    }

    /// Ghosts are killed and missing scripts loaded before anything else is sent.
    fn put_own_requests_first(&mut self, left: &mut VecDeque<Request>) {
        // What was posted has answers to come.
        left.retain(|request| !request.is_of_pipeline() || request.written.is_some());
        let first = left.partition_point(|request| request.written.is_some());
        let join = std::mem::take(&mut self.join_unknown).then_some(&script::CALL_MANY);
        for script in missing_scripts(left).into_iter().chain(join) {
            threads::say(|| {
                log::debug!("the server does not know the script {}: loading it", script.name);
            });
            left.insert(
                first,
                Request::pipeline(Call::load(script), PipelineCommand::LoadScript(script)),
            );
        }
        for stale in self.stale.iter().filter(|stale| stale.fate == StaleState::Alive) {
            let to = PipelineCommand::KillStale(stale.identity.clone());
            left.insert(first, Request::pipeline(stale.identity.kill(), to));
        }
    }
}

/// What has to be loaded for requests that found their scripts missing, once each.
fn missing_scripts(left: &VecDeque<Request>) -> Vec<&'static Script> {
    let unwritten =
        left.iter().filter(|request| request.written.is_none() && request.replay.loads > 0);
    let mut scripts: Vec<_> = unwritten.filter_map(|request| request.call.script).collect();
    scripts.sort_unstable_by_key(|script| script.digest);
    scripts.dedup_by_key(|script| script.digest);
    scripts
}
