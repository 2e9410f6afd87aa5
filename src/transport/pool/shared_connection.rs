//! A connection that many threads share, with a queue of requests.
//!
//! There is no I/O thread: one of the callers *leads*. A caller queues its request and takes
//! the leadership if it is free. The leader writes all queued requests in one write and reads
//! the replies in order (`pool/pipeline.rs`); the other callers sleep. A leader gives up the
//! leadership as soon as it has its own reply, because the next reply may be slow.
//!
//! Giving up the leadership (`shared_connection/leadership.rs`):
//! * The leader writes the queued requests *ahead*: it leaves their replies unread. So the
//!   server works while the next leader wakes up.
//! * If callers wait, one of them is offered the leadership.
//! * If only background requests are left, the next caller reads their replies, or the reaper
//!   of the pool if none comes soon.
//! * If there is no connection, or many replies are unread, the next leader writes the queued
//!   requests instead.
//!
//! No caller stays longer than its [`Limit`]. A caller takes a queued request back. A request
//! that was written is abandoned: the next leader or the reaper reads its reply and drops it.
//! No caller connects, because connecting may take long: a leader without a connection passes
//! the leadership to a thread that connects, and sleeps like the other callers.
//!
//! The requests of one shared connection reach the server in the order of the queue.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cancel::Limit;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::call::ConnectionId;
use crate::transport::pool::context::{ConnectionPause, PoolContext};
use crate::transport::pool::pipeline::{Pipeline, PipelineContext};
use crate::transport::pool::reply_slot::ReplySlot;
use crate::transport::pool::request::{Failure, Outcome, Request};
use crate::util::clock::{self, Moment};
use crate::util::sync::Mutex;
use leadership::{OwnRequest, PipelineLead};
use wait_groups::{GroupNumbers, WaitGroups};

mod leadership;
#[cfg(all(test, leasehold_model))]
mod model;
mod wait_groups;

/// After a failed attempt to connect, callers avoid the connection for this time.
const RECONNECT_PAUSE: Duration = Duration::from_secs(10);

/// A connection that many threads share, with a queue of requests.
pub(crate) struct SharedConnection {
    id: ConnectionId,
    context: Arc<PoolContext>,
    /// For the thread that connects.
    itself: Weak<SharedConnection>,
    state: Mutex<QueueState>,
    groups: WaitGroups,
    pause: Arc<ConnectionPause>,
    /// There was no connection when the last leader finished.
    disconnected: AtomicBool,
}

#[derive(Debug)]
struct QueueState {
    queue: VecDeque<Request>,
    groups: GroupNumbers,
    /// How many requests the leader took from the queue in its present exchange.
    taken: usize,
    /// Taken by the leader.
    pipeline: Option<Box<Pipeline>>,
}

/// Replies that were left unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    Nothing,
    /// The oldest of their requests was written at this moment.
    Since(Moment),
    /// A leader reads them.
    Led,
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedConnection").field(&self.id).finish()
    }
}

impl SharedConnection {
    /// Makes a shared connection that is not connected yet.
    pub(crate) fn new(context: PipelineContext) -> Arc<SharedConnection> {
        Arc::new_cyclic(|itself| SharedConnection {
            id: context.id,
            context: Arc::clone(&context.pool),
            itself: Weak::clone(itself),
            pause: Arc::clone(&context.pause),
            state: Mutex::new(QueueState {
                queue: VecDeque::new(),
                groups: GroupNumbers::default(),
                taken: 0,
                pipeline: Some(Box::new(Pipeline::new(context))),
            }),
            groups: WaitGroups::default(),
            disconnected: AtomicBool::new(true),
        })
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Returns the pause between attempts to connect.
    pub(crate) fn pause(&self) -> &ConnectionPause {
        &self.pause
    }

    /// Connects, unless there is a valid connection or a leader. Blocks until connected, or
    /// until the time-outs are over.
    pub(crate) fn connect(&self) -> Result<()> {
        let Some(mut leadership) = PipelineLead::take(self) else { return Ok(()) };
        leadership.pipeline().map_or(Ok(()), Pipeline::connect)
    }

    /// Queues a request. Does no I/O: [`SharedConnection::wait`], [`SharedConnection::flush`]
    /// or [`SharedConnection::serve`] has to follow.
    pub(crate) fn queue(&self, request: Request) {
        self.state.lock().queue(request);
    }

    /// Takes and queues the request if the connection is free. Returns whether it was free.
    ///
    /// Free means: no leader, an empty queue, and a connection. A request of a
    /// caller needs no connection, unless an attempt to connect has failed lately. Background
    /// requests never open a connection: the attempt may fail while another connection is usable.
    pub(crate) fn queue_if_free(&self, request: &mut Option<Request>) -> bool {
        let mut state = self.state.lock();
        let Some(pipeline) = state.pipeline.as_deref() else { return false };
        let has_caller = request.as_ref().is_some_and(|request| request.slot().is_some());
        let is_usable = pipeline.is_connected() || has_caller && may_connect(pipeline);
        let is_free = is_usable && !pipeline.waits_for_replicas() && state.queue.is_empty();
        if is_free && let Some(request) = request.take() {
            state.queue(request);
        }
        is_free
    }

    /// How many requests are not written. Counts only the queue while there is a leader.
    pub(crate) fn unsent(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.pipeline.as_deref().map_or(0, Pipeline::unsent)
    }

    /// Returns whether a connection has to be made first, and how many requests are ahead.
    pub(crate) fn load(&self) -> (bool, usize) {
        let state = self.state.lock();
        (self.is_disconnected(), state.queue.len() + state.taken)
    }

    /// Whether a connection has to be made first.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Relaxed)
    }

    #[cfg(all(test, not(leasehold_model)))]
    pub(crate) fn set_disconnected(&self, disconnected: bool) {
        self.disconnected.store(disconnected, Ordering::Relaxed);
    }

    /// Returns whether replies were left unread.
    pub(crate) fn unread(&self) -> Unread {
        match &self.state.lock().pipeline {
            None => Unread::Led,
            Some(pipeline) => pipeline.unread_since().map_or(Unread::Nothing, Unread::Since),
        }
    }

    /// Waits for the outcome of a queued request. Leads while there is no other leader.
    ///
    /// Returns at the `limit`, or at `queue_end` if the request is still queued then.
    pub(crate) fn wait(
        &self,
        slot: &Arc<ReplySlot>,
        limit: &Limit<'_>,
        queue_end: Moment,
    ) -> Outcome {
        let mut queue_end = queue_end;
        loop {
            if !slot.is_done()
                && let Some(leadership) = PipelineLead::take(self)
            {
                leadership.serve(Some(OwnRequest { slot, limit }));
            }
            if let Some(outcome) = slot.take() {
                return outcome;
            }
            let now = clock::now();
            if limit.is_over(now) || queue_end <= now {
                if let Some(outcome) = self.withdraw(slot, limit) {
                    return outcome;
                }
                if limit.is_over(now) {
                    return self.abandon(slot, limit);
                }
                // A leader has taken the request and will complete it.
                queue_end = Moment::END;
            }
            let end = limit.next_check(now).min(queue_end);
            self.groups.sleep(slot.group(), end, || slot.is_done());
        }
    }

    /// Takes a request out of the queue and fails it, if it is queued.
    fn withdraw(&self, slot: &Arc<ReplySlot>, limit: &Limit<'_>) -> Option<Outcome> {
        let request = self.state.lock().remove(slot)?;
        self.pass_on_leadership();
        let is_over = limit.is_over(clock::now());
        let late = if self.is_disconnected() {
            Error::new(ErrorKind::Timeout, "no connection to the server was made in time")
        } else if is_over {
            Error::timeout()
        } else {
            Error::new(ErrorKind::PoolTimeout, "all connections were busy for the pool time-out")
        };
        request.fail(&limit.error(self.context.with_server(late)));
        slot.take()
    }

    /// Returns without waiting for a request that may have been written.
    fn abandon(&self, slot: &Arc<ReplySlot>, limit: &Limit<'_>) -> Outcome {
        if let Some(outcome) = slot.take_or_abandon() {
            return outcome;
        }
        self.pass_on_leadership();
        Err(Failure::written(limit.error(self.context.with_server(Error::timeout()))))
    }

    /// Offers the leadership to another caller: this one may have been offered it just before.
    fn pass_on_leadership(&self) {
        self.flush();
    }

    /// Leads, unless there is a leader. For the reaper.
    ///
    /// Blocks until all requests are complete, a caller can lead, or the connection is lost.
    pub(crate) fn serve(&self) {
        if let Some(leadership) = PipelineLead::take(self) {
            leadership.serve(None);
        }
    }

    /// Gives up a connection to a former server, if there is no leader. (A leader notices by
    /// itself.)
    pub(crate) fn leave_old_server(&self) {
        if let Some(mut leadership) = PipelineLead::take(self)
            && let Some(pipeline) = leadership.pipeline()
        {
            let back = pipeline.leave_old_server();
            leadership.put_back(back);
        }
    }

    /// Writes the queue, if there is no leader and the write needs no waiting. Offers the
    /// leadership to a caller that waits.
    pub(crate) fn flush(&self) {
        drop(PipelineLead::take(self));
    }
}

impl QueueState {
    fn queue(&mut self, request: Request) {
        if let Some(slot) = request.slot() {
            slot.set_group(self.groups.queued());
        }
        self.queue.push_back(request);
    }

    fn remove(&mut self, slot: &Arc<ReplySlot>) -> Option<Request> {
        let is_own = |it: &Request| it.slot().is_some_and(|other| Arc::ptr_eq(other, slot));
        let position = self.queue.iter().position(is_own)?;
        self.queue.remove(position)
    }
}

/// Whether an attempt to connect may succeed.
fn may_connect(pipeline: &Pipeline) -> bool {
    pipeline.unreachable_since().is_none_or(|since| since + RECONNECT_PAUSE <= clock::now())
}
