//! The wait for a latch to open.
//!
//! A latch is open if its count is 0 or less, or missing. A script that sets a count begins a
//! *round*, and stores a number of the round beside the count. So a caller that waits through a
//! round returns even if it looks only in a later round. Messages alone never end a wait: a late
//! message may belong to an earlier round. A round that only Redisson has set has no number.

use std::sync::Arc;

use crate::acquire::LockContext;
use crate::command::script;
use crate::count::wait::{self, Answer, AwaitedCount};
use crate::count::{CountCall, read_count};
use crate::error::Result;
use crate::kind::rules::ListensTo;
use crate::transport::call::Call;
use crate::transport::listener::channels::{Channel, Registration, SubscriptionState};
use crate::transport::pool::Target;
use crate::transport::pool::request::CallReply;
use crate::transport::reply::{self, Reply};
use crate::util::clock::Moment;
use crate::util::sync::Parker;
use crate::wait::schedule::{ChannelView, RetrySchedule};

/// The wait of one call for a latch.
#[derive(Default)]
struct LatchWait {
    /// The number of the round of the first answer; 0 for a round without a number.
    first_round: Option<u64>,
    /// The channel, from the beginning if this process has used it before.
    channel: Option<Arc<Channel>>,
    /// The registration at the channel, from the first answer on.
    registration: Option<Registration>,
}

impl CountCall<'_> {
    /// Blocks until the latch opens. Returns `false` if the patience of the call ends first.
    pub(crate) fn wait_for_latch(&self) -> Result<bool> {
        let channel = self.context.local.known_channel(ListensTo::Latch).cloned();
        wait::wait_for(self, LatchWait { channel, ..LatchWait::default() })
    }

    /// Reads count and round from the current server.
    fn look(&self) -> Result<CallReply> {
        let (router, name) = (&self.context.engine.router, self.context.local.name());
        let keys = [name.key().as_bytes(), name.round_key().as_bytes()];
        let look = || {
            let look = Call::script(&script::LATCH_LOOK, keys, []);
            router.call(look, Target::Any, &self.limit())
        };
        router.until_current(look).map(|(reply, _)| reply)
    }
}

impl AwaitedCount for LatchWait {
    fn ask(&mut self, call: &CountCall<'_>) -> Result<Answer> {
        let CallReply { value, sent, .. } = call.look()?;
        let (count, round) = read_look(value)?;
        let local = &call.context.local;
        if local.is_new_round(round)
            && let Some(channel) = local.known_channel(ListensTo::Latch)
        {
            // The other callers of this process have not looked since the round began.
            channel.notify();
        }
        // Without a number the round may still be the same: its number may have expired.
        let first_round = *self.first_round.get_or_insert(round);
        let has_ended = round != 0 && round != first_round;
        Ok(Answer { is_met: count <= 0 || has_ended, sent })
    }

    fn listen(&mut self, call: &CountCall<'_>, parker: &Arc<Parker>, schedule: &mut RetrySchedule) {
        let LockContext { engine, local } = &**call.context;
        let Some(channel) = local.channel(ListensTo::Latch, &engine.channels) else { return };
        if self.registration.is_none() {
            let registration = channel.register(parker);
            // The confirmation of the subscription below counts as a message.
            schedule.registered(&registration, channel, None);
            self.registration = Some(registration);
            self.channel = Some(Arc::clone(channel));
        }
        engine.subscribe(channel);
    }

    fn is_due(&self, now: Moment, schedule: &mut RetrySchedule) -> bool {
        schedule.is_due(now, self.channel_view().message_count)
    }

    fn channel_view(&self) -> ChannelView {
        let channel = self.channel.as_ref();
        ChannelView {
            message_count: channel.map(|channel| channel.message_count()),
            subscription: channel
                .map_or(SubscriptionState::Unsubscribed, |channel| channel.subscription()),
            requested_in: None,
        }
    }
}

/// Reads a look at a latch: the count, and the number of the round or 0.
fn read_look(reply: Reply) -> Result<(i64, u64)> {
    let unexpected = |parts| reply::unexpected(&Reply::List(parts));
    let [count, round] = <[Reply; 2]>::try_from(reply.into_list()?).map_err(unexpected)?;
    let round = String::from_utf8(round.into_text()?).ok();
    Ok((read_count(count)?, round.and_then(|round| round.parse().ok()).unwrap_or(0)))
}
