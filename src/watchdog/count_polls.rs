//! Polls of counts, for the callers of this process that wait for a plain semaphore or a latch.
//!
//! One `MGET` reads many counts. A semaphore with free permits wakes the callers that fit; a latch
//! that has opened, or is in another round than at the last look of this process, wakes all. A poll
//! without a reply wakes callers too, so that they notice an error that does not end by itself.

use std::sync::Arc;

use super::Watchdog;
use super::batches::{self, BatchFailure};
use crate::error::Result;
use crate::kind::rules::ListensTo;
use crate::local::Local;
use crate::local::permits::PermitCallers;
use crate::transport::call::Call;
use crate::transport::listener::channels::Channel;
use crate::transport::reply::Reply;

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
        batches::send_weighted(
            &self.router,
            &mut due,
            slot,
            weight,
            poll_call,
            |batch, outcome| {
                let reply = outcome.map_err(BatchFailure::into_error);
                match reply.and_then(|reply| split(batch, reply.value)) {
                    Ok(values) => {
                        batch.iter().zip(values).for_each(|(due, values)| due.apply(&values))
                    }
                    Err(error) => {
                        batches::log_failed("count poll", batch.len(), &error);
                        batch.iter().for_each(CountPoll::wake);
                    }
                }
            },
        );
    }
}

impl CountPoll {
    /// Returns the poll of a plain semaphore; `None` if no caller waits for its permits.
    fn of_permits(local: &Arc<Local>) -> Option<CountPoll> {
        let callers = local.known_permits()?;
        callers.await_plain_permits().then(|| CountPoll {
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

/// Returns the call that reads all keys of a batch.
fn poll_call(batch: &[CountPoll]) -> Call {
    let mut keys = batch.iter().flat_map(CountPoll::keys);
    let first = keys.next().unwrap_or_default();
    let rest: Vec<_> = keys.collect();
    Call::on_key(b"MGET", first, &rest)
}

/// Splits a reply into the values of each poll.
fn split(batch: &[CountPoll], reply: Reply) -> Result<Vec<Vec<Reply>>> {
    let mut values = reply.into_list()?.into_iter();
    let of = |due: &CountPoll| values.by_ref().take(due.keys().count()).collect();
    Ok(batch.iter().map(of).collect())
}
