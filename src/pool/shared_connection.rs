//! One connection that many threads share, and the line of requests before it.
//!
//! Who brings a request and finds the lane free *leads*: has all that is queued
//! written in one write and reads the replies in order (`wire.rs`). Everyone else
//! queues and sleeps. With its own reply the leader goes: it has what it came for, and
//! the next answer may be slow.
//!
//! No caller stays longer than its [`Limit`]. A caller whose request is still in line takes
//! it back. One whose request was written leaves it behind: the reply is read by the next
//! leader or the reaper, and dropped. Callers never connect: a leader that finds no
//! connection hands the lead to a thread that makes one, and sleeps like the others.
//!
//! Whoever leaves the lane *posts* what is queued: writes it and leaves the replies
//! unread, so that the server has something to do until somebody comes to read them. One
//! of those who wait is offered the lead. Where nobody waits, because all of it is
//! *owed*, the next caller reads the replies, or the reaper (`pool.rs`) if none comes
//! soon. What cannot be posted, because there is no connection or because much is
//! unread already, is written by the next leader.
//!
//! Those whose requests are taken together sleep together, in one *crowd*, and are
//! woken by one system call. While one crowd is served, and another has been posted,
//! who comes joins the third.
//!
//! Requests of one lane reach the server in the order in which they were queued.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cancel::Limit;
use crate::command::call::ConnectionId;
use crate::connection::Timeouts;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::context::PoolContext;
use crate::pool::pipeline::{LeaderLimit, Pipeline, PipelineContext};
use crate::pool::reply_slot::ReplySlot;
use crate::pool::request::{Failure, Outcome, Request, panicked};
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, WaitGroup};
use crate::util::threads;

#[cfg(all(test, leasehold_model))]
mod model;

/// How many requests one write takes along.
const BATCH: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 128 };

/// One that is served, one that was posted, one that queues.
const CROWDS: usize = 3;

/// How long no caller tries to connect a lane, after that failed, while others stand.
const NO_MORE_FOR: Duration = Duration::from_secs(10);

/// One connection and its line.
pub(crate) struct SharedConnection {
    id: ConnectionId,
    context: Arc<PoolContext>,
    /// For the thread that connects.
    itself: Weak<SharedConnection>,
    state: Mutex<SharedState>,
    groups: [WaitGroup; CROWDS],
    /// Without a connection when it was last led.
    disconnected: AtomicBool,
}

#[derive(Debug)]
struct SharedState {
    queue: VecDeque<Request>,
    /// The crowd of those who queue, by a number that grows.
    queuing: usize,
    /// The crowds whose requests have been taken and not been completed.
    asleep: Range<usize>,
    /// How many requests the leader has taken and not finished with.
    taken: usize,
    /// What the leader needs; absent while somebody leads.
    pipeline: Option<Box<Pipeline>>,
}

/// What is known of replies that nobody has come for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    Nothing,
    Since(Moment),
    /// Somebody leads, and reads them.
    Led,
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lane").field(&self.id).finish()
    }
}

impl SharedConnection {
    pub(crate) fn new(
        id: ConnectionId,
        context: Arc<PoolContext>,
        timeouts: Timeouts,
    ) -> Arc<SharedConnection> {
        SharedConnection::made(id, context, timeouts, false)
    }

    /// One that is connected by [`SharedConnection::connect`] alone: who waits there while it is not,
    /// fails at once.
    pub(crate) fn connected_explicitly(
        id: ConnectionId,
        context: Arc<PoolContext>,
        timeouts: Timeouts,
    ) -> Arc<SharedConnection> {
        SharedConnection::made(id, context, timeouts, true)
    }

    fn made(
        id: ConnectionId,
        context: Arc<PoolContext>,
        timeouts: Timeouts,
        elsewhere: bool,
    ) -> Arc<SharedConnection> {
        let pipeline = Some(Box::new(Pipeline::new(PipelineContext {
            id,
            pool: Arc::clone(&context),
            timeouts,
            connected_explicitly: elsewhere,
        })));
        let state =
            SharedState { queue: VecDeque::new(), queuing: 0, asleep: 0..0, taken: 0, pipeline };
        Arc::new_cyclic(|itself| SharedConnection {
            id,
            context,
            itself: Weak::clone(itself),
            state: Mutex::new(state),
            groups: Default::default(),
            disconnected: AtomicBool::new(true),
        })
    }

    /// Connects, if it is not connected.
    pub(crate) fn connect(&self) -> Result<()> {
        let mut leadership = Leadership::take(self);
        let pipeline =
            leadership.as_mut().and_then(|leadership| leadership.pipeline.as_deref_mut());
        pipeline.map_or(Ok(()), Pipeline::connect)
    }

    /// Queues a request. Does no I/O: call [`SharedConnection::wait`] or [`SharedConnection::post`], or have it
    /// served.
    pub(crate) fn queue(&self, request: Request) {
        self.state.lock().queue(request);
    }

    /// Takes the request and queues it if nobody leads here; whether it did. One that
    /// nobody waits for does not come to a lane that would have to be connected first: that
    /// may fail, and nobody would ask elsewhere. No caller does either while that is known
    /// to have failed.
    pub(crate) fn queue_if_free(&self, request: &mut Option<Request>) -> bool {
        let mut state = self.state.lock();
        let waits = request.as_ref().is_some_and(|request| request.slot().is_some());
        let fits = |pipeline: &Pipeline| {
            (pipeline.is_connected() || waits && may_connect(pipeline))
                && !pipeline.waits_for_replicas()
        };
        let fits = state.pipeline.as_deref().is_some_and(fits);
        let free = fits && state.queue.is_empty();
        if free {
            request.take().into_iter().for_each(|request| state.queue(request));
        }
        free
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// How many requests have not been written, as far as nobody leads.
    pub(crate) fn unsent(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.pipeline.as_deref().map_or(0, Pipeline::unsent)
    }

    /// How many requests would come before another, and first of all whether it would
    /// have to be connected for it.
    pub(crate) fn load(&self) -> (bool, usize) {
        let state = self.state.lock();
        (self.is_disconnected(), state.queue.len() + state.taken)
    }

    /// Whether it would have to be connected first.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn set_disconnected(&self, disconnected: bool) {
        self.disconnected.store(disconnected, Ordering::Relaxed);
    }

    /// Whether replies have been left unread.
    pub(crate) fn unread(&self) -> Unread {
        match &self.state.lock().pipeline {
            None => Unread::Led,
            Some(pipeline) => pipeline.unread_since().map_or(Unread::Nothing, Unread::Since),
        }
    }

    /// Waits for a queued request, and leads if nobody else does. Returns at the `limit`;
    /// after `line_end` only if the request still stands in line.
    pub(crate) fn wait(
        &self,
        slot: &Arc<ReplySlot>,
        limit: &Limit<'_>,
        line_end: Moment,
    ) -> Outcome {
        let mut line_end = line_end;
        loop {
            if !slot.is_done()
                && let Some(leadership) = Leadership::take(self)
            {
                leadership.serve(Some(OwnRequest { slot, limit }));
            }
            if let Some(outcome) = slot.take() {
                return outcome;
            }
            let now = clock::now();
            if limit.is_over(now) || line_end <= now {
                if let Some(outcome) = self.leave_line(slot, limit) {
                    return outcome;
                }
                if limit.is_over(now) {
                    return self.leave_behind(slot, limit);
                }
                // It was taken, and will be completed.
                line_end = Moment::END;
            }
            let group = &self.groups[slot.group() % CROWDS];
            group.sleep(limit.next_check(now).min(line_end), || slot.is_done());
        }
    }

    /// Takes a request back, if it still stands in line.
    fn leave_line(&self, slot: &Arc<ReplySlot>, limit: &Limit<'_>) -> Option<Outcome> {
        let request = self.take_back(slot)?;
        // The lead may have been offered to it in this very moment.
        self.post();
        let late = match (self.is_disconnected(), limit.is_over(clock::now())) {
            (true, _) => self.context.named(no_connection()),
            (false, true) => self.context.named(Error::timeout()),
            (false, false) => self.context.named(all_busy()),
        };
        request.fail(&limit.error(late));
        slot.take()
    }

    /// Leaves without the outcome of a request that may have been written.
    fn leave_behind(&self, slot: &Arc<ReplySlot>, limit: &Limit<'_>) -> Outcome {
        slot.take_or_abandon().unwrap_or_else(|| {
            self.post();
            Err(Failure::sent(limit.error(self.context.named(Error::timeout()))))
        })
    }

    /// Leads until all is answered, or somebody else does.
    pub(crate) fn serve(&self) {
        if let Some(leadership) = Leadership::take(self) {
            leadership.serve(None);
        }
    }

    /// If nobody leads, gives up a connection to what is no more the server. (Who leads
    /// will find that out.)
    pub(crate) fn leave_old_server(&self) {
        if let Some(mut leadership) = Leadership::take(self)
            && let Some(pipeline) = leadership.pipeline.as_deref_mut()
        {
            let back = pipeline.leave_old_server();
            leadership.put_back(back);
        }
    }

    /// If nobody leads, writes what is queued, if that can be done without waiting for
    /// anything, and offers the lead to one who waits.
    pub(crate) fn post(&self) {
        drop(Leadership::take(self));
    }

    fn take_back(&self, slot: &Arc<ReplySlot>) -> Option<Request> {
        let mut state = self.state.lock();
        let mine = |r: &Request| r.slot().is_some_and(|s| Arc::ptr_eq(s, slot));
        let at = state.queue.iter().position(mine)?;
        state.queue.remove(at)
    }
}

/// Whether it is worth trying to make one more connection.
fn may_connect(pipeline: &Pipeline) -> bool {
    pipeline.unreachable_since().is_none_or(|since| since + NO_MORE_FOR <= clock::now())
}

fn all_busy() -> Error {
    Error::new(ErrorKind::PoolTimeout, "all connections were busy for the pool time-out")
}

fn no_connection() -> Error {
    Error::new(ErrorKind::Timeout, "no connection to the server was made in time")
}

/// The request of the caller that leads.
#[derive(Clone, Copy)]
struct OwnRequest<'a> {
    slot: &'a ReplySlot,
    limit: &'a Limit<'a>,
}

/// The lead of a lane, given back when dropped.
struct Leadership<'a> {
    connection: &'a SharedConnection,
    /// Always there, but at the end of the drop.
    pipeline: Option<Box<Pipeline>>,
    /// In the middle of an exchange.
    busy: bool,
}

/// What has to be done for a lane that nobody leads any more.
enum AfterLead {
    Nothing,
    /// What was just taken from the line is to be posted.
    Post,
    /// Somebody of these crowds waits, and is to lead.
    Waiters([Option<usize>; 2]),
    Unread,
    Deserted,
}

impl<'a> Leadership<'a> {
    fn take(connection: &'a SharedConnection) -> Option<Leadership<'a>> {
        let pipeline = connection.state.lock().pipeline.take()?;
        Some(Leadership { connection, pipeline: Some(pipeline), busy: false })
    }

    /// Serves the line: a caller until its own request is done or its limit is reached, the
    /// reaper until nothing is left, or somebody else can go on, or the connection is gone.
    fn serve(mut self, own: Option<OwnRequest<'_>>) {
        // It may have been answered just before the lead was taken.
        while own.is_none_or(|own| !own.slot.is_done()) {
            let connection = self.connection;
            let Some(pipeline) = self.pipeline.as_deref_mut() else { return };
            // In a forked child the exchange fails at once.
            if own.is_some()
                && pipeline.has_to_connect()
                && connection.context.check_process().is_ok()
            {
                return self.connect_elsewhere();
            }
            if connection.take_batch(pipeline) == 0 && pipeline.is_idle() {
                return;
            }
            let others =
                pipeline.waiters().any(|slot| own.is_none_or(|own| !ptr::eq(slot, own.slot)));
            self.busy = true;
            let stayed = exchange(connection, pipeline, own, || {
                if others {
                    connection.wake()
                }
            });
            self.busy = false;
            let goes = own.is_none() && (!pipeline.is_connected() || connection.somebody_waits());
            if !stayed || goes {
                return;
            }
        }
    }

    /// Hands the lead to a thread that connects the lane.
    fn connect_elsewhere(mut self) {
        let (Some(connection), Some(pipeline)) =
            (self.connection.itself.upgrade(), self.pipeline.take())
        else {
            return;
        };
        threads::detach_or_run("leasehold-connect", move || {
            Leadership { connection: &connection, pipeline: Some(pipeline), busy: false }.connect();
        });
    }

    /// Connects. If that fails, so does all that stands in line.
    fn connect(mut self) {
        let connection = self.connection;
        let Some(pipeline) = self.pipeline.as_deref_mut() else { return };
        let connected = threads::survive("connecting", || pipeline.connect());
        if let Err(error) = connected.unwrap_or_else(|| Err(panicked())) {
            connection.state.lock().hand_over(pipeline, usize::MAX);
            pipeline.fail_all(&error);
        }
        // Also what must not be sent twice may have failed.
        connection.wake();
    }

    /// Gives the lead back and looks at the line in one step: a request that is
    /// queued now finds the lead free, or is found here.
    fn leave(&mut self) -> AfterLead {
        let mut state = self.connection.state.lock();
        state.taken = 0;
        let Some(mut pipeline) = self.pipeline.take() else { return AfterLead::Nothing };
        let left = state.left(&pipeline);
        self.connection.disconnected.store(!pipeline.is_connected(), Ordering::Relaxed);
        match left {
            AfterLead::Post => {
                state.hand_over(&mut pipeline, usize::MAX);
                self.pipeline = Some(pipeline);
            }
            AfterLead::Nothing
            | AfterLead::Waiters(_)
            | AfterLead::Unread
            | AfterLead::Deserted => {
                state.pipeline = Some(pipeline);
            }
        }
        left
    }

    /// Posts what was taken from the line; what cannot be posted goes back there.
    fn post(&mut self) {
        if let Some(back) = self.pipeline.as_deref_mut().and_then(Pipeline::post) {
            self.put_back(back);
        }
    }

    /// Stands at the head of the line what has been taken from there.
    fn put_back(&mut self, mut back: VecDeque<Request>) {
        let mut state = self.connection.state.lock();
        back.append(&mut state.queue);
        state.queue = back;
        drop(state);
        self.connection.wake();
    }
}

/// Has requests written and answered; whether the leader stayed to the end. The reaper leaves
/// when a request comes that can be written: the reply that it reads may never come, and holds
/// nobody up.
fn exchange(
    connection: &SharedConnection,
    pipeline: &mut Pipeline,
    own: Option<OwnRequest<'_>>,
    some_done: impl Fn(),
) -> bool {
    match own {
        None if pipeline.has_to_connect() || !pipeline.takes_more() => {
            pipeline.exchange(None, some_done)
        }
        None => pipeline.exchange(
            Some(LeaderLimit { end: Moment::END, has_to_leave: &|| connection.has_line() }),
            some_done,
        ),
        Some(OwnRequest { slot, limit }) => {
            let has_to_go = || slot.is_done() || limit.is_stopped();
            pipeline.exchange(
                Some(LeaderLimit { end: limit.end(), has_to_leave: &has_to_go }),
                some_done,
            )
        }
    }
}

impl Drop for Leadership<'_> {
    /// Also when a thread that leads unwinds: the line must not stand still.
    fn drop(&mut self) {
        if let (true, Some(pipeline)) = (self.busy, self.pipeline.as_deref_mut()) {
            pipeline.abandon();
            self.connection.wake();
        }
        let connection = self.connection;
        loop {
            match self.leave() {
                AfterLead::Nothing => return,
                AfterLead::Post => self.post(),
                AfterLead::Waiters(groups) => return connection.offer(groups),
                AfterLead::Unread => {
                    return connection.context.observer.replies_unread(connection.id);
                }
                AfterLead::Deserted => {
                    return connection.context.observer.queue_unattended(connection.id);
                }
            }
        }
    }
}

impl SharedState {
    fn queue(&mut self, request: Request) {
        if let Some(slot) = request.slot() {
            slot.set_group(self.queuing);
        }
        self.queue.push_back(request);
    }

    /// Gives the wire what stands first in line; how much.
    fn hand_over(&mut self, pipeline: &mut Pipeline, most: usize) -> usize {
        let size = self.queue.len().min(most);
        let mut asleep = match pipeline.waiters().next() {
            Some(_) => self.asleep.clone(),
            None => self.queuing..self.queuing,
        };
        for request in self.queue.drain(..size) {
            // What came back from a broken connection is of an earlier crowd.
            if let Some(group) = request.slot().map(|slot| slot.group()) {
                asleep = asleep.start.min(group)..asleep.end.max(group + 1);
            }
            pipeline.push(request);
        }
        self.queuing += usize::from(self.queue.is_empty() && asleep.end > self.queuing);
        self.asleep = asleep;
        size
    }

    /// What is to be done when nobody leads any more.
    fn left(&self, pipeline: &Pipeline) -> AfterLead {
        let (posted, queued) = (pipeline.waiters().next(), self.waiters().next());
        let (posted, queued) = (posted.map(ReplySlot::group), queued.map(ReplySlot::group));
        // One crowd that was posted is enough: who leads next will be there soon.
        let full = posted.is_some() && queued.is_some();
        match posted.or(queued) {
            _ if !full && !self.queue.is_empty() && pipeline.can_post() => AfterLead::Post,
            Some(_) => AfterLead::Waiters([posted, queued]),
            None if !self.queue.is_empty() || pipeline.unsent() > 0 => AfterLead::Deserted,
            None if pipeline.unread_since().is_some() => AfterLead::Unread,
            None => AfterLead::Nothing,
        }
    }

    fn waiters(&self) -> impl Iterator<Item = &ReplySlot> {
        self.queue.iter().filter_map(Request::waiter).map(Arc::as_ref)
    }
}

impl SharedConnection {
    /// Moves the head of the line to the wire; how much.
    fn take_batch(&self, pipeline: &mut Pipeline) -> usize {
        if !pipeline.takes_more() {
            return 0;
        }
        let mut state = self.state.lock();
        state.taken = state.hand_over(pipeline, BATCH);
        state.taken
    }

    fn has_line(&self) -> bool {
        !self.state.lock().queue.is_empty()
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().waiters().next().is_some()
    }

    /// Offers the lead to the first crowd that has members. If none of them sleeps they
    /// are about to, and take it then, which may be a while on a busy machine; so it is
    /// offered to the next as well.
    fn offer(&self, groups: [Option<usize>; 2]) {
        let mut groups = groups.into_iter().flatten();
        groups.any(|group| self.groups[group % CROWDS].offer());
    }

    /// Wakes those whose requests have been taken from the line.
    fn wake(&self) {
        let asleep = self.state.lock().asleep.clone();
        asleep.for_each(|group| self.groups[group % CROWDS].wake());
    }
}
