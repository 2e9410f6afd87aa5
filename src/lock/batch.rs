//! Plain locks of one server, taken by one script call: all or none.
//!
//! Each passes its gate as if it were asked for alone, but none of them waits there: where
//! somebody stands before one, nothing is asked. A release of one that is still owed may be
//! overtaken if that of another is owed on another line: then the lock counts as held,
//! and is waited for.

use std::sync::Arc;

use crate::acquire::{AcquireCall, HoldHandle, MAX_OUTDATED_ANSWERS};
use crate::command::call::{Call, ConnectionId};
use crate::command::owner::{HoldId, Owner, ThreadId};
use crate::command::reply::Reply;
use crate::command::script;
use crate::error::{Error, LostReason, Result};
use crate::events::{Acquired, Event};
use crate::kind::rules;
use crate::local::Caller;
use crate::local::hold::{self, Grant};
use crate::local::queue::Ticket;
use crate::local::table::{EntryOutcome, EntryRequest};
use crate::pool::Target;
use crate::pool::request::{Answer, BackgroundTask, Failure, Request};
use crate::topology::route::Generation;
use crate::util::clock;

/// What became of the question for all.
#[derive(Debug)]
pub(crate) enum BatchOutcome {
    /// In the order of the attempts.
    All(Vec<HoldHandle>),
    /// Somebody else has, or wants, the one with that position.
    Refused(usize),
}

/// A place in line; left when dropped, unless the lock was granted.
struct BatchQueue<'a> {
    attempt: &'a AcquireCall<'a>,
    caller: Caller,
    ticket: Option<Ticket>,
    hold: HoldId,
    owner: Owner,
}

impl Drop for BatchQueue<'_> {
    fn drop(&mut self) {
        let passed = self.ticket.and_then(|ticket| self.attempt.context.local.leave(ticket));
        drop(passed.map(|lease| self.attempt.handle(lease)));
    }
}

/// One that is held already, or is to be asked for.
enum BatchStep<'a> {
    Held(HoldHandle),
    Asked(BatchQueue<'a>),
}

/// Takes plain locks of one client, with one lease for all and without waiting.
pub(crate) fn take(attempts: &[AcquireCall<'_>]) -> Result<BatchOutcome> {
    let mut steps = Vec::with_capacity(attempts.len());
    for (position, attempt) in attempts.iter().enumerate() {
        match step(attempt)? {
            Some(step) => steps.push(step),
            None => return Ok(BatchOutcome::Refused(position)),
        }
    }
    let asked: Vec<_> = steps.iter().filter_map(BatchStep::asked).collect();
    if let Some(question) = BatchQuestion::new(&asked) {
        let (answer, generation) = question.ask()?;
        if let Some(refused) = question.refused(&answer)? {
            let positions = steps.iter().enumerate().filter(|(_, step)| step.asked().is_some());
            let position = positions.map(|(position, _)| position).nth(refused);
            return Ok(BatchOutcome::Refused(position.unwrap_or_default()));
        }
        question.check_grant(&answer)?;
        let granted = |step: BatchStep<'_>| step.granted(&answer, generation);
        return Ok(BatchOutcome::All(steps.into_iter().map(granted).collect()));
    }
    Ok(BatchOutcome::All(steps.into_iter().filter_map(BatchStep::held).collect()))
}

fn step<'a>(attempt: &'a AcquireCall<'a>) -> Result<Option<BatchStep<'a>>> {
    attempt.check_not_ended()?;
    attempt.context.engine.ready(&attempt.limit())?;
    let (now, renewed) = (clock::now(), attempt.options.lease.is_none());
    let request = EntryRequest {
        rules: attempt.rules,
        owned: attempt.options.owned,
        waits: false,
        endless: false,
        renewed,
    };
    let (local, hold) = (&attempt.context.local, HoldId::next());
    match local.enter(&request, None, ThreadId::current(), now)? {
        EntryOutcome::Reentered(lease) => {
            return attempt.re_enter(attempt.handle(lease)).map(BatchStep::Held).map(Some);
        }
        EntryOutcome::Busy => return attempt.context.engine.router.check_process().map(|()| None),
        EntryOutcome::Beside(_) | EntryOutcome::New => {}
    }
    let caller = Caller::new(request);
    let Some(ticket) = local.join_queue(caller.clone(), now) else {
        return attempt.context.engine.router.check_process().map(|()| None);
    };
    let owner = Owner::new(attempt.context.engine.id, hold, attempt.rules.suffix());
    Ok(Some(BatchStep::Asked(BatchQueue { attempt, caller, ticket: Some(ticket), hold, owner })))
}

impl<'a> BatchStep<'a> {
    fn asked(&self) -> Option<&BatchQueue<'a>> {
        match self {
            BatchStep::Asked(standing) => Some(standing),
            BatchStep::Held(_) => None,
        }
    }

    fn held(self) -> Option<HoldHandle> {
        match self {
            BatchStep::Held(hold) => Some(hold),
            BatchStep::Asked(_) => None,
        }
    }

    /// The hold that it has, or has now.
    fn granted(self, answer: &Answer, generation: Generation) -> HoldHandle {
        match self {
            BatchStep::Held(hold) => hold,
            BatchStep::Asked(standing) => standing.granted(answer, generation),
        }
    }
}

impl BatchQueue<'_> {
    fn granted(mut self, answer: &Answer, generation: Generation) -> HoldHandle {
        let (attempt, now) = (self.attempt, clock::now());
        let term = attempt.term();
        let grant = Grant {
            hold: self.hold,
            owner: self.owner.clone(),
            rules: attempt.rules,
            deadline: hold::deadline(answer.sent, term),
            lease: term,
            renewed: attempt.options.lease.is_none(),
            holder: self.caller.holder.clone(),
            at: now,
            may_run_late: (answer.may_run_late && answer.maybe_duplicate)
                .then_some(answer.connection),
            tokens: 0..=0,
        };
        let (local, round_trip) = (&attempt.context.local, answer.sent.until(now));
        let lease = local.granted(self.ticket.take(), &self.caller, grant, round_trip);
        let hold = attempt.handle(lease);
        attempt.context.engine.watchdog.keep_granted(hold.watched(), generation);
        let (kind, number) = hold.hold().kind_and_number();
        attempt.context.engine.events.emit(|| {
            let (at, name) = (clock::wall_time(), Arc::clone(local.name().given()));
            Event::Acquired(Acquired { at, name, kind, hold: number, waited: round_trip })
        });
        hold
    }
}

/// One question for several locks.
struct BatchQuestion<'a> {
    asked: &'a [&'a BatchQueue<'a>],
    first: &'a BatchQueue<'a>,
}

impl<'a> BatchQuestion<'a> {
    fn new(asked: &'a [&'a BatchQueue<'a>]) -> Option<BatchQuestion<'a>> {
        Some(BatchQuestion { asked, first: asked.first()? })
    }

    /// The answer, and how many moves there had been before it was asked for. What came from
    /// a server that was left meanwhile says nothing.
    fn ask(&self) -> Result<(Answer, Generation)> {
        let _call = self.first.attempt.context.engine.begin_call();
        let router = &self.first.attempt.context.engine.router;
        let mut near = self.asked.iter().find_map(|one| one.attempt.context.local.background());
        let limit = self.first.attempt.limit();
        for _ in 0..MAX_OUTDATED_ANSWERS {
            let generation = router.generation();
            let pending = router.queue(self.call(), Target::prefer(near));
            let (connection, outcome) = router.wait_without_retry(pending, &limit);
            let unanswered = |failure: &Failure| {
                if failure.is_written() {
                    self.undo(connection);
                }
            };
            let answer = outcome.inspect_err(unanswered).map_err(Failure::into_error)?;
            if router.generation() == generation {
                return Ok((answer, generation));
            }
            near = Some(connection);
        }
        near.into_iter().for_each(|connection| self.undo(connection));
        Err(Error::outdated())
    }

    fn call(&self) -> Call {
        let term = self.first.attempt.term();
        let lease = rules::digits(term);
        let keys = self.asked.iter().map(|one| one.attempt.context.local.name().key().as_bytes());
        let owners = self.asked.iter().map(|one| one.owner.as_bytes());
        let args = std::iter::once(lease.as_bytes()).chain(owners);
        Call::script(&script::MULTI_ACQUIRE, keys, args).lasting(term).replicated()
    }

    /// Which of them was refused, if that was why none was taken.
    fn refused(&self, answer: &Answer) -> Result<Option<usize>> {
        let numbers = read(&answer.reply).inspect_err(|_| self.undo(answer.connection))?;
        let Some(position) = numbers.first() else { return Ok(None) };
        // An earlier copy may have taken them, and one of them been lost since.
        if answer.maybe_duplicate {
            self.undo(answer.connection);
        }
        let position = usize::try_from(*position).unwrap_or_default().saturating_sub(1);
        if let Some(one) = self.asked.get(position) {
            one.attempt.context.local.refused(clock::now(), false);
        }
        Ok(Some(position))
    }

    /// An error if too few replicas have them, or the leases were over before the answer came.
    fn check_grant(&self, answer: &Answer) -> Result<()> {
        let over = hold::deadline(answer.sent, self.first.attempt.term()) <= clock::now();
        let error = match answer.too_few {
            Some(too_few) => too_few.into_error(),
            None if over => Error::lost(LostReason::Expired, "the grant arrived too late"),
            None => return Ok(()),
        };
        self.undo(answer.connection);
        Err(error)
    }

    /// Releases whatever the question took, or takes yet.
    fn undo(&self, connection: ConnectionId) {
        for one in self.asked {
            let (attempt, lasting) = (one.attempt, one.attempt.term());
            let release = attempt.rules.release(attempt.context.local.name(), &one.owner);
            let task = BackgroundTask::new(None, clock::now() + lasting).late_effect(lasting);
            let pool = &attempt.context.engine.router;
            pool.dispatch(pool.submit(Request::background(release, task), Some(connection)));
        }
    }
}

fn read(reply: &Reply) -> Result<Vec<i64>> {
    reply.clone().into_ints()
}
