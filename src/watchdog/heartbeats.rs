//! Heartbeats for the callers of this process that wait for queue locks.
//!
//! One heartbeat per lock keeps the places of all its callers, at each poll and at each connection
//! of the listener. The answer repeats a grant whose message was lost, and tells the callers to ask
//! again if they may have lost their places.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Watchdog;
use super::batches::{self, BatchFailure};
use super::polls::log_failed_poll;
use crate::command::call::Call;
use crate::error::Result;
use crate::kind::queued::{self, HeartbeatReply};
use crate::kind::rules::GrantTerms;
use crate::local::Local;
use crate::local::waiters::GrantBase;
use crate::pool::request::CallReply;
use crate::topology::route::Generation;
use crate::util::clock::Moment;

impl Watchdog {
    /// Has the next round send a heartbeat for all awaited queue locks. Does not block.
    pub(crate) fn send_heartbeats_now(&self) {
        self.heartbeat_now.store(true, Ordering::Release);
        self.parker.unpark();
    }

    /// Returns the awaited queue locks, if heartbeats were requested before they are due.
    pub(super) fn take_early_heartbeats(&self) -> Vec<Arc<Local>> {
        match self.heartbeat_now.swap(false, Ordering::AcqRel) {
            true => self.awaited_queue_locks(),
            false => Vec::new(),
        }
    }

    /// Has all callers that wait for queue locks ask: the servers may have lost their places.
    pub(super) fn restore_places(&self) {
        self.awaited_queue_locks().iter().for_each(|local| local.ask_again());
    }

    fn awaited_queue_locks(&self) -> Vec<Arc<Local>> {
        let mut polled = self.timers.lock().polled();
        polled.retain(|local| local.awaits_grants());
        polled
    }

    /// Keeps the places of the waiting callers, and applies the answers.
    pub(super) fn send_queue_heartbeats(&self, mut locks: Vec<Arc<Local>>) {
        let (slot, generation) =
            (|local: &Arc<Local>| self.slot_of(local), self.router.generation());
        let call = |batch: &[Arc<Local>]| self.heartbeat_call(batch);
        batches::send_all(&self.router, &mut locks, slot, call, |batch, outcome| {
            let answers = outcome.map_err(BatchFailure::into_error).and_then(read);
            match answers {
                Ok((sent, answers)) => apply(batch, sent, generation, &answers),
                Err(error) => log_failed_poll(batch.len(), &error),
            }
        });
    }

    fn heartbeat_call(&self, batch: &[Arc<Local>]) -> Call {
        let (lease, is_cluster) = (self.settings.grant_lease, self.router.is_cluster());
        let names = batch.iter().map(|local| local.name());
        queued::heartbeat(names, self.settings.client, GrantTerms { lease, is_cluster })
    }
}

fn read(reply: CallReply) -> Result<(Moment, Vec<HeartbeatReply>)> {
    Ok((reply.sent, queued::read_heartbeat(reply.value)?))
}

fn apply(batch: &[Arc<Local>], sent: Moment, generation: Generation, answers: &[HeartbeatReply]) {
    for (local, answer) in batch.iter().zip(answers) {
        let base = GrantBase { sent, generation, token_bound: answer.token_bound };
        local.heartbeat_answered(base, answer);
    }
}
