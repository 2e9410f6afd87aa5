//! Polls of the locks for which callers of this process wait.
//!
//! A release message may get lost, so the server is asked at the poll interval in any case. The
//! watchdog asks on behalf of all waiting callers, for many locks in each script call. The head of
//! the queue tries again if its lock is free, or if the poll got no reply.

use std::sync::Arc;

use super::Watchdog;
use super::batches::{self, BatchFailure};
use crate::command::script;
use crate::local::Local;
use crate::transport::call::Call;
use crate::util::clock::Moment;

impl Watchdog {
    /// Asks the server about the locks that callers wait for, and plans the next polls.
    pub(super) fn poll_locks(&self, locks: Vec<Arc<Local>>) {
        let locks = self.keep_polled(locks);
        let polled = locks.iter().filter(|local| local.queue_len() > 0);
        self.find_free(polled.cloned().collect());
        self.poll_waiters(&locks);
        self.poll_counts(&locks);
        locks.into_iter().for_each(|local| self.plan_poll(local));
        // Dropped without the mutex.
        let _planned = self.timers.lock().replace_fired_polls(Vec::new());
    }

    /// Returns the locks that callers wait for. Only these are polled again if the round panics.
    ///
    /// A caller that is refused from now on plans the poll of any other lock.
    pub(super) fn keep_polled(&self, mut locks: Vec<Arc<Local>>) -> Vec<Arc<Local>> {
        locks.retain(|local| local.keep_polling());
        let _fired = self.timers.lock().replace_fired_polls(locks.clone());
        locks
    }

    /// Polls the locks whose early polls are planned for `now` or earlier.
    pub(super) fn poll_early(&self, now: Moment) {
        let mut due = self.timers.lock().due_early_polls(now);
        due.retain(|local| local.takes_early_poll(now));
        self.poll_waiters(&due);
    }

    /// Sends the polls that may also come early: those of queue locks and of semaphores.
    fn poll_waiters(&self, locks: &[Arc<Local>]) {
        locks.iter().for_each(|local| local.begins_poll());
        let queued = locks.iter().filter(|local| local.awaits_grants());
        self.send_queue_heartbeats(queued.cloned().collect());
        self.poll_permits(locks);
    }

    /// Asks which of these locks are free, and has the heads of their queues ask.
    fn find_free(&self, mut locks: Vec<Arc<Local>>) {
        let slot = |local: &Arc<Local>| self.slot_of(local);
        batches::send_all(&self.router, &mut locks, slot, poll_call, |batch, outcome| {
            let free = outcome.map_err(BatchFailure::into_error);
            match free.and_then(|reply| reply.value.into_ints()) {
                Ok(free) => {
                    // Lua counts positions from 1.
                    let free = (1..).zip(batch).filter(|(position, _)| free.contains(position));
                    free.for_each(|(_, local)| {
                        local.set_may_be_free();
                        self.verify(local);
                    });
                }
                Err(error) => {
                    batches::log_failed("poll", batch.len(), &error);
                    batch.iter().for_each(|local| local.set_may_be_free());
                }
            }
        });
    }
}

/// Returns the call that asks which of these locks are free.
fn poll_call(batch: &[Arc<Local>]) -> Call {
    let keys = batch.iter().map(|local| local.name().key().as_bytes());
    Call::script(&script::POLL_MANY, keys, [])
}
