//! Polls for the callers of this process that wait.
//!
//! A message may get lost, so the server is asked at the poll interval in any case. The watchdog
//! asks on behalf of all waiting callers, for many names in each command. A poll without a reply
//! wakes callers too, so that they notice an error that does not end by itself.
//!
//! * *Locks*: the head of the queue tries again if its lock is free.
//! * *Counts* of plain semaphores and latches: one `MGET` reads many. A semaphore with free permits
//!   wakes the callers that fit; a latch that has opened, or is in another round than at the last
//!   look of this process, wakes all.
//! * *Semaphores* with leased permits: the poll reclaims expired permits, tells how many are free,
//!   and carries the claim of the oldest caller of this process. The claim is due once the caller
//!   has waited for one poll interval: other callers then leave permits to it, unless a caller of
//!   another process has waited longer. So requests for few permits cannot delay a request for many
//!   without limit. A semaphore is also polled when its next permit expires.

use std::sync::Arc;
use std::time::Duration;

use super::Watchdog;
use super::batches::{self, BatchFailure};
use crate::command::script;
use crate::kind::rules::ListensTo;
use crate::kind::semaphore::{self, PermitPoll, PermitPollReply};
use crate::local::Local;
use crate::local::permit_queue::{PermitClaim, PermitsPolled};
use crate::local::permits::PermitCallers;
use crate::transport::call::Call;
use crate::transport::listener::channels::Channel;
use crate::transport::pool::request::Request;
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};

impl Watchdog {
    /// Asks the server about the locks that callers wait for, and plans the next polls.
    pub(super) fn poll_locks(&self, locks: Vec<Arc<Local>>) {
        let locks = self.keep_polled(locks);
        let polled = locks.iter().filter(|local| local.queue_len() > 0);
        self.find_free(polled.cloned().collect());
        self.poll_waiters(&locks);
        self.poll_counts(&locks);
        self.end_holds_of_dead(&locks);
        locks.into_iter().for_each(|local| self.plan_poll(local));
        // Dropped without the mutex.
        let _planned = self.timers.lock().replace_fired_polls(Vec::new());
    }

    /// Returns the locks that callers wait for. Only these are polled again if the round panics.
    ///
    /// A caller that begins to wait from now on plans the poll of any other lock.
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
        let call = |batch: &[Arc<Local>]| {
            let keys = batch.iter().map(|local| local.name().key().as_bytes());
            let client = self.settings.client.to_string();
            Call::script(&script::POLL_MANY, keys, [client.as_bytes()])
        };
        batches::send_all(&self.router, &mut locks, slot, call, |batch, outcome| {
            let free = outcome.map_err(BatchFailure::into_error);
            match free.and_then(|reply| reply.value.into_ints()) {
                Ok(free) => {
                    // Lua counts positions from 1.
                    for (position, local) in (1..).zip(batch) {
                        if free.contains(&position) {
                            local.may_be_free();
                            self.verify(local);
                        }
                    }
                }
                Err(error) => {
                    batches::log_failed("poll", batch.len(), &error);
                    batch.iter().for_each(|local| local.may_be_free());
                }
            }
        });
    }
}

/// A count that is polled in this round.
#[derive(Debug)]
struct CountPoll {
    local: Arc<Local>,
    awaited: Awaited,
}

/// What callers wait for.
#[derive(Debug)]
enum Awaited {
    Permits(Arc<PermitCallers>),
    Latch(Arc<Channel>),
}

impl Watchdog {
    /// Reads the counts for which callers wait, and wakes the callers for which they are news.
    pub(super) fn poll_counts(&self, locals: &[Arc<Local>]) {
        let permits = locals.iter().filter_map(CountPoll::of_permits);
        let latches = locals.iter().filter_map(CountPoll::of_latch);
        let mut due: Vec<_> = permits.chain(latches).collect();
        let slot = |due: &CountPoll| self.slot_of(&due.local);
        let weight = |due: &CountPoll| due.keys().count();
        let call = |batch: &[CountPoll]| {
            let mut keys = batch.iter().flat_map(CountPoll::keys);
            let first = keys.next().unwrap_or_default();
            Call::on_key(b"MGET", first, &Vec::from_iter(keys))
        };
        batches::send_weighted(&self.router, &mut due, slot, weight, call, |batch, outcome| {
            let reply = outcome.map_err(BatchFailure::into_error);
            match reply.and_then(|reply| reply.value.into_list()) {
                Ok(values) => {
                    let mut values = values.into_iter();
                    for due in batch {
                        let own: Vec<_> = values.by_ref().take(due.keys().count()).collect();
                        due.apply(&own);
                    }
                }
                Err(error) => {
                    batches::log_failed("count poll", batch.len(), &error);
                    batch.iter().for_each(CountPoll::wake);
                }
            }
        });
    }
}

impl CountPoll {
    /// Returns the poll of a plain semaphore; `None` if no caller waits for its permits.
    fn of_permits(local: &Arc<Local>) -> Option<CountPoll> {
        let callers = local.known_permits()?;
        callers.await_permits_with(false).then(|| CountPoll {
            local: Arc::clone(local),
            awaited: Awaited::Permits(Arc::clone(callers)),
        })
    }

    /// Returns the poll of a latch; `None` if no caller waits for it.
    fn of_latch(local: &Arc<Local>) -> Option<CountPoll> {
        let channel = local.known_channel(ListensTo::Latch)?;
        channel.has_waiting_callers().then(|| CountPoll {
            local: Arc::clone(local),
            awaited: Awaited::Latch(Arc::clone(channel)),
        })
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let name = self.local.name();
        let is_latch = matches!(self.awaited, Awaited::Latch(_));
        let round = is_latch.then(|| name.round_key().as_bytes());
        std::iter::once(name.key().as_bytes()).chain(round)
    }

    /// Wakes callers as after a message.
    fn wake(&self) {
        match &self.awaited {
            Awaited::Permits(callers) => callers.hint(1),
            Awaited::Latch(channel) => channel.notify(),
        }
    }

    /// Wakes the callers for which these values are news: the count, and the round of a latch.
    ///
    /// A key that is missing or holds no count wakes callers: their questions find out which.
    fn apply(&self, values: &[Reply]) {
        let number = |value: Option<&Reply>| {
            let text = std::str::from_utf8(value?.text()?).ok()?;
            text.parse::<i64>().ok()
        };
        match (&self.awaited, number(values.first())) {
            (_, None) => self.wake(),
            (Awaited::Permits(callers), Some(free)) => {
                callers.offer(u32::try_from(free.max(0)).unwrap_or(u32::MAX));
            }
            (Awaited::Latch(_), Some(count)) => {
                let round = number(values.get(1)).unwrap_or(0).unsigned_abs();
                if count <= 0 || self.local.is_new_round(round) {
                    self.wake();
                }
            }
        }
    }
}

/// The keys that a semaphore counts for in a batch: its script does more than a renewal of a hold.
const WEIGHT: usize = 2;

/// A semaphore that is polled in this round.
#[derive(Debug)]
struct DuePermitPoll {
    local: Arc<Local>,
    callers: Arc<PermitCallers>,
    claim: PermitClaim,
}

impl Watchdog {
    /// Plans a poll at the next expiry of a permit, which is after `left`.
    pub(crate) fn plan_poll_at_expiry(&self, local: &Arc<Local>, left: Option<Duration>) {
        if let Some(left) = left {
            self.plan_early_poll_after(local, left + Duration::from_millis(1));
        }
    }

    /// Asks about the semaphores among these names, and wakes callers for which there may be
    /// permits.
    pub(super) fn poll_permits(&self, locals: &[Arc<Local>]) {
        let mut due = Vec::new();
        for local in locals {
            // There is no claim if no caller waits for leased permits.
            if let Some(callers) = local.known_permits()
                && let Some(claim) = callers.claim(clock::now(), self.settings.poll_interval)
            {
                let (local, callers) = (Arc::clone(local), Arc::clone(callers));
                due.push(DuePermitPoll { local, callers, claim });
            }
        }
        let slot = |due: &DuePermitPoll| self.slot_of(&due.local);
        let weight = |_: &DuePermitPoll| WEIGHT;
        let call = |batch: &[DuePermitPoll]| {
            let polls: Vec<_> = batch.iter().map(DuePermitPoll::request).collect();
            semaphore::poll(&polls, self.grant_lease())
        };
        batches::send_weighted(&self.router, &mut due, slot, weight, call, |batch, outcome| {
            let reply = outcome.map_err(BatchFailure::into_error);
            match reply.and_then(|reply| semaphore::read_poll(reply.value)) {
                Ok(answers) => self.apply_polls(batch, &answers),
                Err(error) => {
                    batches::log_failed("semaphore poll", batch.len(), &error);
                    batch.iter().for_each(|due| due.callers.hint(1));
                }
            }
        });
    }

    /// Withdraws a claim that a poll may have set after the end of the call. Does not block.
    pub(crate) fn withdraw_claim(&self, local: &Local, claimant: &str) {
        let withdraw = semaphore::withdraw(local.name(), claimant);
        self.router.send_background(Request::background_once(withdraw), None);
    }

    fn apply_polls(&self, batch: &[DuePermitPoll], answers: &[PermitPollReply]) {
        for (due, answer) in batch.iter().zip(answers) {
            let PermitPollReply { must_ask, others, left, capacity } = *answer;
            let news = PermitsPolled { must_ask, others, capacity };
            if !due.callers.polled(&due.claim, news) && due.claim.is_due {
                self.withdraw_claim(&due.local, &due.claim.claimant);
            }
            self.plan_poll_at_expiry(&due.local, left);
        }
    }
}

impl DuePermitPoll {
    fn request(&self) -> PermitPoll<'_> {
        PermitPoll {
            name: self.local.name(),
            claimant: &self.claim.claimant,
            permits: self.claim.permits,
            waited: self.claim.waited,
            claims: self.claim.is_due,
        }
    }
}
