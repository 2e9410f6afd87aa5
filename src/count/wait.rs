//! The loop of a call that waits for a count.
//!
//! The call asks the server. If the count is not there yet, the call listens on the channel and
//! asks again after a message, or after a poll of the watchdog, because a message may be lost. A
//! question without a reply ends the call with an error, unless the server has answered the call
//! before. In that case the call asks again, with pauses, until its deadline.

use std::sync::Arc;

use crate::acquire::{ChannelView, LockContext, Pace, RetrySchedule};
use crate::cancel::{CancelToken, CancelWatch};
use crate::command::owner::HoldId;
use crate::count::CountCall;
use crate::error::{Error, Result};
use crate::transport::listener::channels::SubscriptionState;
use crate::util::clock::{self, Moment};
use crate::util::sync::Parker;

/// The question that a waiting call repeats until the answer is yes.
pub(super) trait CountQuestion {
    /// Notes that the question is due, also if the pause of the server answers it.
    fn begin(&mut self) {}

    /// Asks the server and returns whether the wait is over. One round trip.
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
struct CountWait<'a, Q> {
    call: &'a CountCall<'a>,
    question: Q,
    started: Moment,
    parker: Arc<Parker>,
    schedule: RetrySchedule,
    /// The watches for the close of the client and for the cancellation, from the first sleep on.
    end_watches: Option<[Option<CancelWatch>; 2]>,
    waited: bool,
}

/// Blocks until the answer is yes. Returns `false` if the patience of the call ends first.
pub(super) fn wait_for(call: &CountCall<'_>, question: impl CountQuestion) -> Result<bool> {
    let (engine, started) = (&call.context.engine, clock::now());
    // Dropped after the question, whose drop may send a request that the close waits for.
    let _active = engine.begin_call();
    let (interval, seed) = (engine.settings.poll_interval, HoldId::next().seed());
    let mut wait = CountWait {
        call,
        question,
        started,
        parker: Parker::mine(),
        schedule: RetrySchedule::new(started, interval, seed, Pace::Polled),
        end_watches: None,
        waited: false,
    };
    let outcome = wait.run();
    if wait.waited {
        call.report_waited(started, outcome.as_ref().is_ok_and(|is_met| *is_met));
    }
    outcome.map_err(|error| call.with_name(error))
}

impl<Q: CountQuestion> CountWait<'_, Q> {
    fn run(&mut self) -> Result<bool> {
        self.call.check_not_ended()?;
        self.call.context.engine.wait_until_ready(&self.call.limit())?;
        loop {
            let now = clock::now();
            self.call.check_not_ended()?;
            if self.schedule.has_attempted() && self.call.patience.is_over(now) {
                return self.schedule.take_error().map_or(Ok(false), Err);
            }
            match self.question.is_due(now, &mut self.schedule) {
                true if self.ask()? => return Ok(true),
                true => {}
                false => self.sleep()?,
            }
        }
    }

    /// Asks once; returns whether the wait is over.
    fn ask(&mut self) -> Result<bool> {
        self.schedule.before_attempt(self.question.channel_view());
        self.question.begin();
        let context = self.call.context;
        let paused = || context.pause_error();
        let answer = match self.schedule.was_refused().then(paused).flatten() {
            None => self.question.ask(self.call),
            Some(error) => Err(error),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let pause_end = |error: &Error| context.health().retry_at(clock::now(), error);
                return self.schedule.unanswered(error, pause_end).map(|()| false);
            }
        };
        let now = clock::now();
        self.call.series().answered(answer.sent.until(now));
        if answer.is_met {
            return Ok(true);
        }
        // No poll of the watchdog shows what a late copy has taken.
        let poll_interval = self.call.context.engine.settings.poll_interval;
        self.schedule.refused(now, self.question.may_be_met_late().then_some(poll_interval));
        if self.call.waits() {
            self.question.listen(self.call, &self.parker, &mut self.schedule);
            self.have_polled(answer.sent);
        }
        Ok(false)
    }

    /// Starts the polls of the watchdog, which go on while callers listen.
    fn have_polled(&self, sent: Moment) {
        let LockContext { engine, local } = &**self.call.context;
        if local.refused(sent, clock::now(), true) {
            engine.watchdog.plan_poll(Arc::clone(local));
        }
    }

    /// Sleeps until something may have changed.
    ///
    /// The first call only registers for the end of the call and returns, because the call may have
    /// ended before.
    fn sleep(&mut self) -> Result<()> {
        let engine = &self.call.context.engine;
        if self.end_watches.is_none() {
            engine.router.check_process()?;
            let cancel = |cancel: &CancelToken| cancel.watch(&self.parker);
            let watches = [Some(engine.closing.watch(&self.parker)), self.call.cancel.map(cancel)];
            self.end_watches = Some(watches);
            return Ok(());
        }
        if !std::mem::replace(&mut self.waited, true) {
            self.call.record.waits(self.started);
        }
        let end = self.schedule.next_attempt().min(self.call.patience.end());
        self.parker.park_until(end);
        Ok(())
    }
}
