//! Queue heartbeats, for the callers of this process that wait for queue locks.
//!
//! (In this file, *heartbeat* means the queue heartbeat, and not the listener's.) One heartbeat per
//! lock keeps the places of all callers of the client. It is due at each poll, three times
//! per grant lease, at the end of the holder's lease, and when the listener has connected. The
//! answer repeats a grant whose message was lost, and tells the callers to ask again if they may
//! have lost their places.

use std::sync::Arc;
use std::time::Duration;

use super::batches::{self, BatchFailure};
use super::{RECONNECT_PAUSE, Watchdog};
use crate::error::Error;
use crate::events::Kind;
use crate::kind::queued::{self, HeartbeatReply};
use crate::kind::rules::GrantTerms;
use crate::local::Local;
use crate::local::waiters::GrantBase;
use crate::transport::pool::request::CallReply;
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};

/// The number of heartbeats in the time after which a silent client counts as gone.
///
/// The poll interval may be longer than that time.
const HEARTBEATS_PER_GRANT_LEASE: u32 = 3;

impl Watchdog {
    /// Plans a heartbeat at once for all awaited queue locks. Does not block.
    pub(crate) fn plan_queue_heartbeats_now(&self) {
        self.awaited_queue_locks().iter().for_each(|local| self.plan_queue_heartbeat_now(local));
    }

    /// Plans a heartbeat at once for a queue lock. Does not block.
    pub(crate) fn plan_queue_heartbeat_now(&self, local: &Arc<Local>) {
        self.plan_early_poll(Arc::clone(local), clock::now());
    }

    /// Plans a heartbeat before the next poll, if one is due by then.
    ///
    /// It is due at the end of the holder's lease, and a third of a grant lease from now at the
    /// latest, so that the client still counts as alive. `left` is the rest of the holder's lease.
    pub(crate) fn plan_next_queue_heartbeat(&self, local: &Arc<Local>, left: Option<Duration>) {
        let latest = self.queue_heartbeat_interval();
        let due = left.map_or(latest, |left| latest.min(left + Duration::from_millis(1)));
        self.plan_early_poll_after(local, due);
    }

    /// Returns the longest time between two heartbeats for one lock.
    fn queue_heartbeat_interval(&self) -> Duration {
        self.grant_lease() / HEARTBEATS_PER_GRANT_LEASE
    }

    /// Returns the terms on which the servers grant queue locks to callers of this client.
    pub(crate) fn grant_terms(&self) -> GrantTerms {
        GrantTerms { lease: self.grant_lease(), is_cluster: self.router.is_cluster() }
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
        locks.retain(|local| local.awaits_grants());
        let (slot, generation) =
            (|local: &Arc<Local>| self.slot_of(local), self.router.generation());
        let call = |batch: &[Arc<Local>]| {
            let names = batch.iter().map(|local| local.name());
            queued::heartbeat(names, self.settings.client, self.grant_terms())
        };
        batches::send_all(&self.router, &mut locks, slot, call, |batch, outcome| {
            match outcome.and_then(read) {
                Ok((sent, answers)) => self.apply_heartbeats(batch, sent, generation, &answers),
                Err(failure) => {
                    batch.iter().for_each(|local| self.repeat_heartbeat(local, failure.error()));
                    batches::log_failed("queue heartbeat", batch.len(), &failure.into_error());
                }
            }
        });
    }

    /// Plans a heartbeat after one that failed, at the end of the server's pause.
    fn repeat_heartbeat(&self, local: &Arc<Local>, error: Option<&Error>) {
        local.heartbeat_failed(error);
        let at = match error {
            Some(error) => {
                let longest = self.queue_heartbeat_interval();
                self.router.retry_private_at(local.name().key(), error, longest)
            }
            None => clock::now() + RECONNECT_PAUSE,
        };
        self.plan_early_poll(Arc::clone(local), at);
    }

    fn apply_heartbeats(
        &self,
        batch: &[Arc<Local>],
        sent: Moment,
        generation: Generation,
        answers: &[HeartbeatReply],
    ) {
        for (local, answer) in batch.iter().zip(answers) {
            let base = GrantBase { sent, generation, token_bound: answer.token_bound };
            local.heartbeat_answered(base, answer, clock::now(), self.grant_lease());
            if answer.token_bound != 0 {
                let own = answer.own_hold.map(|own| own.hold);
                local.lose_absent(sent, |hold| {
                    hold.rules().kind() == Kind::Queued && own != Some(hold.id().number())
                });
            }
            self.plan_next_queue_heartbeat(local, answer.left);
        }
    }
}

fn read(reply: CallReply) -> Result<(Moment, Vec<HeartbeatReply>), BatchFailure> {
    let answers = queued::read_heartbeat(reply.value);
    let answers = answers.map_err(|error| BatchFailure::Failed { error, written: true });
    Ok((reply.sent, answers?))
}
