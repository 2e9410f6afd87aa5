//! The loop of a call that waits for a count.
//!
//! The call asks the server. If the count is not there yet, the call listens on the channel and
//! asks again after a message, and at intervals, because a message may be lost. A question without
//! a reply ends the call with an error, unless the server has answered the call before. In that
//! case the call asks again, with pauses, until its deadline.

use std::sync::Arc;

use crate::acquire::{ChannelView, LockContext, Pace, RetrySchedule};
use crate::cancel::{CancelToken, CancelWatch};
use crate::command::owner::HoldId;
use crate::count::CountCall;
use crate::error::Result;
use crate::kind::rules::ListensTo;
use crate::listener::channels::{Channel, Registration, SubscriptionState};
use crate::util::clock::{self, Moment};
use crate::util::sync::Parker;

/// The question that a waiting call repeats until the answer is yes.
pub(super) trait Question {
    /// The channel whose messages make the next question due.
    const LISTENS_TO: ListensTo;

    /// Asks the server and returns whether the wait is over. One round trip.
    fn ask(&mut self, call: &CountCall<'_>) -> Result<Answer>;
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
    /// The channel, from the beginning if this process has used it before.
    channel: Option<Arc<Channel>>,
    /// The registration at the channel, from the first answer on.
    registration: Option<Registration>,
    /// The watches for the close of the client and for the cancellation, from the first sleep on.
    end_watches: Option<[Option<CancelWatch>; 2]>,
    waited: bool,
}

/// Blocks until the answer is yes. Returns `false` if the patience of the call ends first.
pub(super) fn wait_for<Q: Question>(call: &CountCall<'_>, question: Q) -> Result<bool> {
    let (engine, started) = (&call.context.engine, clock::now());
    // Dropped after the question, whose drop may send a request that the close waits for.
    let _active = engine.begin_call();
    let (interval, seed) = (engine.settings.poll_interval, HoldId::next().seed());
    let mut wait = CountWait {
        call,
        question,
        started,
        parker: Parker::mine(),
        schedule: RetrySchedule::new(started, interval, seed, Pace::SelfPolling),
        channel: call.context.local.known_channel(Q::LISTENS_TO).cloned(),
        registration: None,
        end_watches: None,
        waited: false,
    };
    let outcome = wait.run();
    if wait.waited {
        call.report_waited(started, outcome.as_ref().is_ok_and(|is_met| *is_met));
    }
    outcome.map_err(|error| call.with_name(error))
}

impl<Q: Question> CountWait<'_, Q> {
    fn run(&mut self) -> Result<bool> {
        self.call.check_not_ended()?;
        self.call.context.engine.wait_until_ready(&self.call.limit())?;
        loop {
            let now = clock::now();
            self.call.check_not_ended()?;
            if self.schedule.has_attempted() && self.call.patience.is_over(now) {
                return self.schedule.take_error().map_or(Ok(false), Err);
            }
            match self.schedule.is_due(now, self.channel_view().message_count) {
                true if self.ask()? => return Ok(true),
                true => {}
                false => self.sleep()?,
            }
        }
    }

    /// Asks once; returns whether the wait is over.
    fn ask(&mut self) -> Result<bool> {
        self.schedule.before_attempt(self.channel_view());
        let answer = match self.question.ask(self.call) {
            Ok(answer) => answer,
            Err(error) => return self.schedule.unanswered(clock::now(), error).map(|()| false),
        };
        let now = clock::now();
        self.call.series().answered(answer.sent.until(now));
        if answer.is_met {
            return Ok(true);
        }
        self.schedule.refused(now, None);
        if self.call.waits() {
            self.listen();
        }
        Ok(false)
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

    /// Listens for messages after an answer.
    fn listen(&mut self) {
        let LockContext { engine, local } = &**self.call.context;
        let Some(channel) = local.channel(Q::LISTENS_TO, &engine.channels) else { return };
        if self.registration.is_none() {
            let registration = channel.register(&self.parker);
            // The confirmation of the subscription below counts as a message.
            self.schedule.registered(&registration, channel, None);
            self.registration = Some(registration);
            self.channel = Some(Arc::clone(channel));
        }
        engine.subscribe(channel);
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
