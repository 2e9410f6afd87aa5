//! The leadership of a shared connection: one thread writes and reads for all callers.
//!
//! A [`PipelineLead`] owns the pipeline. When it is dropped, the pipeline goes back and the
//! queue is looked at in one step under the mutex. So a request that is queued at that moment
//! either finds the leadership free or is found here.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cancel::Limit;
use crate::transport::pool::pipeline::{KEPT_REQUESTS, LeaderLimit, Pipeline};
use crate::transport::pool::reply_slot::ReplySlot;
use crate::transport::pool::request::{Request, panicked};
use crate::transport::pool::shared_connection::{QueueState, SharedConnection};
use crate::util::clock::Moment;
use crate::util::threads;

/// The most requests in one write.
const MAX_BATCH: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 128 };

/// The leadership of a shared connection. Dropping it gives the leadership up.
pub(super) struct PipelineLead<'a> {
    connection: &'a SharedConnection,
    /// `None` only at the end of the drop, or after the leadership was passed on.
    pipeline: Option<Box<Pipeline>>,
    /// Set during an exchange. Still set in the drop if the exchange panicked.
    in_exchange: bool,
}

/// The request of the caller that leads.
#[derive(Clone, Copy)]
pub(super) struct OwnRequest<'a> {
    pub(super) slot: &'a ReplySlot,
    pub(super) limit: &'a Limit<'a>,
}

impl<'a> PipelineLead<'a> {
    /// Takes the leadership; `None` if there is a leader.
    pub(super) fn take(connection: &'a SharedConnection) -> Option<PipelineLead<'a>> {
        let pipeline = connection.state.lock().pipeline.take()?;
        Some(PipelineLead::new(connection, pipeline))
    }

    fn new(connection: &'a SharedConnection, pipeline: Box<Pipeline>) -> PipelineLead<'a> {
        PipelineLead { connection, pipeline: Some(pipeline), in_exchange: false }
    }

    pub(super) fn pipeline(&mut self) -> Option<&mut Pipeline> {
        self.pipeline.as_deref_mut()
    }

    /// Writes the queue and reads replies.
    ///
    /// A caller stays until its own request is done or its limit is reached. The reaper
    /// (`own` is `None`) stays until nothing is left, a caller waits in the queue, or the
    /// connection is lost.
    pub(super) fn serve(mut self, own: Option<OwnRequest<'_>>) {
        let connection = self.connection;
        // The reply may have arrived just before the leadership was taken.
        while own.is_none_or(|own| !own.slot.is_done()) {
            let Some(pipeline) = self.pipeline.as_deref_mut() else { return };
            // In a forked child the exchange fails at once.
            let connects = own.is_some() && pipeline.has_to_connect();
            if connects && connection.context.check_process().is_ok() {
                return self.connect_on_thread();
            }
            if connection.take_batch(pipeline) == 0 && pipeline.is_idle() {
                return connection.shrink(pipeline);
            }
            self.in_exchange = true;
            let stayed = exchange(connection, pipeline, own);
            self.in_exchange = false;
            let leaves = own.is_none() && (!pipeline.is_connected() || connection.has_waiters());
            if !stayed || leaves {
                return;
            }
        }
    }

    /// Passes the leadership to a thread that connects.
    ///
    /// Without room for a thread the reaper connects, and until then the callers sleep up to their
    /// limits. The private connection has no reaper: its only caller, the watchdog, connects.
    fn connect_on_thread(mut self) {
        let Some(connection) = self.connection.itself.upgrade() else { return };
        let Some(pipeline) = self.pipeline.take() else { return };
        let connect = |(connection, pipeline): (Arc<SharedConnection>, _)| {
            PipelineLead::new(&connection, pipeline).connect();
        };
        let unstarted = threads::detach("leasehold-connect", (connection, pipeline), connect);
        let Err((connection, pipeline)) = unstarted else { return };
        // The lead goes back without an offer to a caller, which could not connect either.
        connection.state.lock().pipeline = Some(pipeline);
        if !connection.context.observer.connects(connection.id)
            && let Some(lead) = PipelineLead::take(&connection)
        {
            lead.connect();
        }
    }

    /// Connects. If that fails, all queued requests fail.
    fn connect(mut self) {
        let connection = self.connection;
        let Some(pipeline) = self.pipeline() else { return };
        let connected = threads::catch_panic("connecting", || pipeline.connect());
        if let Err(error) = connected.unwrap_or_else(|| Err(panicked())) {
            connection.state.lock().hand_over(pipeline, usize::MAX);
            pipeline.fail_all(&error);
        }
        // Also after a success: a request that must not be written twice may have failed.
        connection.wake_taken();
    }

    /// Puts requests back at the front of the queue.
    pub(super) fn put_back(&mut self, mut back: VecDeque<Request>) {
        let mut state = self.connection.state.lock();
        back.append(&mut state.queue);
        state.queue = back;
        drop(state);
        self.connection.wake_taken();
    }
}

impl Drop for PipelineLead<'_> {
    /// Writes ahead as long as that is possible. Then gives the pipeline back, and tells those who
    /// have to act next: the waiting callers, or the reaper.
    ///
    /// Also runs when the thread of the leader unwinds: the queue must not stop.
    fn drop(&mut self) {
        let connection = self.connection;
        if self.in_exchange
            && let Some(pipeline) = self.pipeline()
        {
            pipeline.abandon();
            connection.wake_taken();
        }
        loop {
            let mut state = connection.state.lock();
            state.taken = 0;
            let Some(mut pipeline) = self.pipeline.take() else { return };
            let in_flight = pipeline.waiters().next().map(ReplySlot::group);
            let queued = state.waiters().next().map(ReplySlot::group);
            // One group in flight is enough: a caller of it leads next and writes the queued group.
            let enough = in_flight.is_some() && queued.is_some();
            let writes_ahead = !enough && !state.queue.is_empty() && pipeline.can_write_ahead();
            connection.disconnected.store(!pipeline.is_connected(), Ordering::Relaxed);
            if writes_ahead {
                // The thread is still the leader.
                state.hand_over(&mut pipeline, usize::MAX);
                drop(state);
                if let Some(back) = self.pipeline.insert(pipeline).write_ahead() {
                    self.put_back(back);
                }
                continue;
            }
            let callers_wait = in_flight.is_some() || queued.is_some();
            // If no caller waits, only background requests are left: the reaper sends the unsent
            // ones, and reads the unread replies.
            let has_unsent = !callers_wait && (!state.queue.is_empty() || pipeline.unsent() > 0);
            let has_unread = pipeline.unread_since().is_some();
            state.pipeline = Some(pipeline);
            drop(state);
            if callers_wait {
                connection.groups.offer_leadership([in_flight, queued]);
            } else if has_unsent {
                connection.context.observer.queue_unattended(connection.id);
            } else if has_unread {
                connection.context.observer.replies_unread(connection.id);
            }
            return;
        }
    }
}

/// Writes requests and reads replies. Returns whether the leader stayed until all were done.
fn exchange(
    connection: &SharedConnection,
    pipeline: &mut Pipeline,
    own: Option<OwnRequest<'_>>,
) -> bool {
    let is_other = |slot: &ReplySlot| own.is_none_or(|own| !ptr::eq(slot, own.slot));
    let others_wait = pipeline.waiters().any(is_other);
    let on_progress = || {
        if others_wait {
            connection.wake_taken();
        }
    };
    match own {
        Some(OwnRequest { slot, limit }) => {
            let has_to_leave = || slot.is_done() || limit.is_stopped();
            let limit = LeaderLimit { end: limit.end(), has_to_leave: &has_to_leave };
            pipeline.exchange(Some(limit), on_progress)
        }
        None if pipeline.has_to_connect() || !pipeline.takes_more() => {
            pipeline.exchange(None, on_progress)
        }
        // The reaper leaves when a request is queued that can be written: the reply that the
        // reaper waits for may never come, and must not delay the request.
        None => {
            let has_to_leave = || !connection.state.lock().queue.is_empty();
            let limit = LeaderLimit { end: Moment::END, has_to_leave: &has_to_leave };
            pipeline.exchange(Some(limit), on_progress)
        }
    }
}

impl SharedConnection {
    /// Moves the front of the queue to the pipeline. Returns the number of requests.
    fn take_batch(&self, pipeline: &mut Pipeline) -> usize {
        if !pipeline.takes_more() {
            return 0;
        }
        let mut state = self.state.lock();
        state.taken = state.hand_over(pipeline, MAX_BATCH);
        state.taken
    }

    /// Gives back the memory of a burst of requests.
    fn shrink(&self, pipeline: &mut Pipeline) {
        pipeline.shrink();
        self.state.lock().queue.shrink_to(KEPT_REQUESTS);
    }

    fn has_waiters(&self) -> bool {
        self.state.lock().waiters().next().is_some()
    }

    /// Wakes the callers whose requests were taken from the queue.
    fn wake_taken(&self) {
        let groups = self.state.lock().groups.taken();
        self.groups.wake(groups);
    }
}

impl QueueState {
    /// Moves up to `most` requests to the pipeline. Returns their number.
    fn hand_over(&mut self, pipeline: &mut Pipeline, most: usize) -> usize {
        let count = self.queue.len().min(most);
        if pipeline.waiters().next().is_none() {
            self.groups.forget_taken();
        }
        for request in self.queue.drain(..count) {
            if let Some(slot) = request.slot() {
                self.groups.take(slot.group());
            }
            pipeline.push(request);
        }
        if self.queue.is_empty() {
            self.groups.note_empty_queue();
        }
        count
    }

    fn waiters(&self) -> impl Iterator<Item = &ReplySlot> {
        self.queue.iter().filter_map(Request::waiter).map(Arc::as_ref)
    }
}
