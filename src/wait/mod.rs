//! The loop of every call that waits: for a lock, a grant by message, permits, a count, a latch, or
//! a majority of servers.
//!
//! A caller asks a [`Question`] until the answer is yes. Between two answers it sleeps, until a
//! message, a poll of the watchdog, another thread of its process, or a moment of its own makes the
//! next question due. [`wait_for`] is the loop; a question knows whom to ask, what else may answer
//! it, and when it is due. [`schedule`] tells when a refused caller asks a server again, and
//! [`own_guard`] warns of a caller that waits for itself. Imports: `config` and below.

pub(crate) mod own_guard;
pub(crate) mod schedule;

use std::sync::Arc;

use crate::cancel::CancelWatch;
use crate::error::Result;
use crate::util::clock::{self, Moment, Patience};
use crate::util::sync::Parker;

/// The question of one call, with all that the call knows.
pub(crate) trait Question {
    /// What the caller gets.
    type Yes;

    /// Returns the next step of the caller.
    ///
    /// Called before each step: what others have done for the caller is noticed here.
    fn next(&mut self, now: Moment) -> Result<Step<Self::Yes>>;

    /// Asks once. Returns `None` if the answer is no, or has not come and the call goes on. What a
    /// later answer needs is done then.
    fn ask(&mut self) -> Result<Option<Self::Yes>>;

    /// Returns the outcome of a call whose patience is over: `None`, or the error that left the
    /// last question without an answer.
    fn give_up(&mut self) -> Result<Option<Self::Yes>>;

    fn patience(&self) -> Patience;

    fn is_over(&self, now: Moment) -> bool {
        self.patience().is_over(now)
    }

    /// Returns an error if the call is cancelled, or a client of it is closed.
    fn check_not_ended(&self) -> Result<()>;

    /// Has the parker woken by such an end. Called once, before the first sleep.
    fn watch(&mut self) -> Result<Vec<CancelWatch>>;

    /// Returns the parker on which the caller sleeps.
    fn parker(&self) -> &Arc<Parker>;

    /// Notes that the caller waits for others.
    fn waits(&mut self);

    /// Returns the current moment. It stands still in models.
    fn now(&self) -> Moment {
        clock::now()
    }
}

/// The next step of a caller.
#[derive(Debug)]
pub(crate) enum Step<Yes> {
    /// Return: the caller has what it waits for.
    Done(Yes),
    /// Ask, if the patience of the caller is not over.
    Ask,
    /// Ask in any case: the first question of the call, or a grant that waits for its caller.
    AskAtLeastOnce,
    /// Sleep until a wake-up, at most until that moment.
    Sleep(Moment),
    /// Sleep in the same way. What the caller waits for may be free: others shall get it first.
    Yield(Moment),
}

/// Blocks until the answer is yes. Returns `None` if the patience of the caller ends first.
pub(crate) fn wait_for<Q: Question>(question: &mut Q) -> Result<Option<Q::Yes>> {
    let mut watches = None;
    loop {
        // 1. What has happened since the last step? A hold that another thread has handed off, for
        //    example, is the end of the call, even at its last moment.
        let now = question.now();
        let step = question.next(now)?;
        if let Step::Done(yes) = step {
            return Ok(Some(yes));
        }
        // 2. The ends of the call. Its first question is asked however short its patience is.
        question.check_not_ended()?;
        if question.is_over(now) && !matches!(step, Step::AskAtLeastOnce) {
            return question.give_up();
        }
        match step {
            // 3. Ask.
            Step::Done(_) | Step::Ask | Step::AskAtLeastOnce => {
                if let Some(yes) = question.ask()? {
                    return Ok(Some(yes));
                }
            }
            // 4. Before the first sleep, have the ends of the call wake the parker, and look again:
            //    they may have come before.
            Step::Sleep(_) | Step::Yield(_) if watches.is_none() => {
                watches = Some(question.watch()?);
            }
            // 5. Sleep. A wake-up between step 1 and here ends the sleep at once.
            Step::Sleep(end) => {
                question.waits();
                question.parker().park_until(end.min(question.patience().end()));
            }
            Step::Yield(end) => question.parker().park_until(end.min(question.patience().end())),
        }
    }
}
