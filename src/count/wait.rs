//! A call of a verb that waits for a count, and its question for the [loop](crate::wait).
//!
//! The call asks the server. If the count is not there yet, the call listens on the channel and
//! asks again after a message, or after a poll of the watchdog, because a message may be lost. A
//! question without a reply ends the call with an error, unless the server has answered the call
//! before. In that case the call asks again, with pauses, until its deadline.

use std::sync::Arc;

use crate::acquire::{LockContext, REPLY_GRACE};
use crate::cancel::{CancelToken, CancelWatch, Limit};
use crate::command::owner::HoldId;
use crate::error::{Error, Result};
use crate::events::{Event, Kind, Waited};
use crate::kind::rules::Pace;
use crate::local::hold::HoldSettings;
use crate::stats::{CallRecord, Series};
use crate::transport::listener::channels::SubscriptionState;
use crate::util::clock::{self, Moment, Patience};
use crate::util::sync::Parker;
use crate::wait::schedule::{ChannelView, RetrySchedule};
use crate::wait::{self, Question, Step};

/// One call of a verb that waits for a count: its subject and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountCall<'a> {
    pub(crate) context: &'a Arc<LockContext>,
    pub(crate) kind: Kind,
    /// The event listener and the label of the handle.
    pub(crate) settings: &'a HoldSettings,
    pub(crate) cancel: Option<&'a CancelToken>,
    pub(crate) patience: Patience,
    pub(crate) record: &'a CallRecord<'a>,
}

impl CountCall<'_> {
    /// Returns the limit of the wait for a reply, as that of an acquire.
    pub(super) fn limit(&self) -> Limit<'_> {
        let engine = &self.context.engine;
        let end = engine.response_limit().end();
        Limit::at(end.min(self.patience.deadline() + REPLY_GRACE))
            .or_closed(&engine.closing)
            .or_cancelled(self.cancel)
    }

    /// Returns whether the call waits.
    pub(super) fn waits(&self) -> bool {
        self.patience != Patience::None
    }

    /// Returns an error if the client is closed or the call is cancelled.
    pub(super) fn check_not_ended(&self) -> Result<()> {
        self.context.engine.check_not_ended(self.cancel)
    }

    /// Returns the statistics for the kind and the label of the handle.
    pub(super) fn series(&self) -> Series<'_> {
        let stats = self.context.engine.events.stats();
        stats.series(|| self.settings.series_key(self.kind))
    }

    /// Emits the event of a call that has waited since `started`.
    pub(super) fn report_waited(&self, started: Moment, acquired: bool) {
        let (kind, waited) = (self.kind, started.until(clock::now()));
        self.context.engine.events.emit_with(self.settings.listener(), || {
            let (at, name) = (clock::wall_time(), Arc::clone(self.context.local.name().given()));
            Event::Waited(Waited { at, name, kind, hold: None, waited, acquired })
        });
    }
}

/// What a call waits for: permits, or a latch.
pub(super) trait AwaitedCount {
    /// Notes that a question is due, also if the pause of the server answers it.
    fn begin(&mut self) {}

    /// Asks the server. One round trip.
    fn ask(&mut self, call: &CountCall<'_>) -> Result<Answer>;

    /// Listens for messages after an answer, on behalf of a caller that waits.
    fn listen(&mut self, call: &CountCall<'_>, parker: &Arc<Parker>, schedule: &mut RetrySchedule);

    /// Returns whether a message has come since the last question that makes the next one due.
    fn is_due(&self, now: Moment, schedule: &mut RetrySchedule) -> bool;

    /// Returns whether a late copy of a question may bring the answer, without a message.
    fn may_be_met_late(&self) -> bool {
        false
    }

    /// Returns the state of the channel, if the schedule compares its message counts.
    fn channel_view(&self) -> ChannelView {
        ChannelView {
            message_count: None,
            subscription: SubscriptionState::Unsubscribed,
            requested_in: None,
        }
    }
}

/// The answer of the server to a question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) is_met: bool,
    /// The moment before the question was sent.
    pub(super) sent: Moment,
}

/// The state of one call that waits for a count.
struct CountWait<'a, C> {
    call: &'a CountCall<'a>,
    count: C,
    started: Moment,
    parker: Arc<Parker>,
    schedule: RetrySchedule,
    waited: bool,
}

/// Blocks until the answer is yes. Returns `false` if the patience of the call ends first.
pub(super) fn wait_for(call: &CountCall<'_>, count: impl AwaitedCount) -> Result<bool> {
    let (engine, started) = (&call.context.engine, clock::now());
    // Dropped after the count, whose drop may send a request that the close waits for.
    let _active = engine.begin_call();
    let (settings, seed) = (&engine.settings, HoldId::next().seed());
    let (poll_interval, back_off) = (settings.poll_interval, settings.back_off);
    let mut wait = CountWait {
        call,
        count,
        started,
        parker: Parker::mine(),
        schedule: RetrySchedule::new(started, poll_interval, back_off, seed, Pace::WatchdogPolls),
        waited: false,
    };
    let outcome = call
        .check_not_ended()
        .and_then(|()| engine.wait_until_ready(|| call.limit()))
        .and_then(|()| wait::wait_for(&mut wait));
    let outcome = outcome.map(|met| met.is_some());
    if wait.waited {
        call.report_waited(started, outcome.as_ref().is_ok_and(|is_met| *is_met));
    }
    outcome.map_err(|error| error.with_lock_name(Arc::clone(call.context.local.name().given())))
}

impl<C: AwaitedCount> Question for CountWait<'_, C> {
    type Yes = ();

    fn next(&mut self, now: Moment) -> Result<Step<()>> {
        let is_due = self.count.is_due(now, &mut self.schedule);
        Ok(if is_due { self.schedule.ask() } else { Step::Sleep(self.schedule.next_attempt()) })
    }

    fn ask(&mut self) -> Result<Option<()>> {
        self.schedule.before_attempt(self.count.channel_view());
        self.count.begin();
        let LockContext { engine, local } = &**self.call.context;
        let answer = if self.schedule.was_refused()
            && let Some(error) = self.call.context.pause_error()
        {
            Err(error)
        } else {
            self.count.ask(self.call)
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let health = self.call.context.health();
                let pause_end = |error: &Error| health.retry_at(clock::now(), error);
                return self.schedule.unanswered(error, pause_end).map(|()| None);
            }
        };
        let now = clock::now();
        self.call.series().answered(answer.sent.until(now));
        if answer.is_met {
            return Ok(Some(()));
        }
        // No poll of the watchdog shows what a late copy has taken.
        let poll_interval = engine.settings.poll_interval;
        self.schedule.refused(now, self.count.may_be_met_late().then_some(poll_interval));
        if self.call.waits() {
            self.count.listen(self.call, &self.parker, &mut self.schedule);
            // The polls of the watchdog go on while callers listen.
            local.refused(answer.sent, clock::now());
            engine.watchdog.poll_for(local);
        }
        Ok(None)
    }

    fn give_up(&mut self) -> Result<Option<()>> {
        self.schedule.take_error().map_or(Ok(None), Err)
    }

    fn patience(&self) -> Patience {
        self.call.patience
    }

    fn check_not_ended(&self) -> Result<()> {
        self.call.check_not_ended()
    }

    fn watch(&mut self) -> Result<Vec<CancelWatch>> {
        let engine = &self.call.context.engine;
        engine.router.check_process()?;
        Ok(engine.watch_ends(self.call.cancel, &self.parker))
    }

    fn parker(&self) -> &Arc<Parker> {
        &self.parker
    }

    fn waits(&mut self) {
        self.waited = true;
        self.call.record.waits(self.started);
    }
}
