//! Takes several plain locks of one server by one script call: all or none.
//!
//! Each lock is entered as by a single `try_lock`: the caller joins its process's queue, and the
//! whole batch is refused without a round trip if any queue has another caller at its head. The
//! command follows the background release of one lock on its connection. It may overtake the
//! background release of another lock on another connection; the script then finds that lock held
//! and refuses the batch.

use std::sync::Arc;

use crate::acquire::{AcquireCall, HoldHandle, LockContext, MAX_OUTDATED_ANSWERS};
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
use crate::lock::multi_lock::acquire::MultiOutcome;
use crate::pool::Target;
use crate::pool::request::{Answer, BackgroundTask, Failure, Request};
use crate::topology::route::Generation;
use crate::util::clock;

/// A lock of the batch.
enum BatchMember<'a> {
    /// The thread held the lock before.
    Held(HoldHandle),
    Queued(QueuedMember<'a>),
}

/// A lock to ask the server for, with the caller at the head of its queue.
struct QueuedMember<'a> {
    call: &'a AcquireCall<'a>,
    caller: Caller,
    /// `None` once the lock is granted.
    ticket: Option<Ticket>,
    hold: HoldId,
    owner: Owner,
}

impl Drop for QueuedMember<'_> {
    /// Leaves the queue, and releases a hold that was handed to this caller meanwhile.
    fn drop(&mut self) {
        let handed = self.ticket.and_then(|ticket| self.call.context.local.leave(ticket));
        drop(handed.map(|hold| self.call.handle(hold)));
    }
}

/// Takes plain locks of one client, all with the same lease, without waiting.
pub(crate) fn take(calls: &[AcquireCall<'_>]) -> Result<MultiOutcome> {
    let mut members = Vec::with_capacity(calls.len());
    for (position, call) in calls.iter().enumerate() {
        match enter(call)? {
            Some(member) => members.push(member),
            None => return Ok(MultiOutcome::Refused(position)),
        }
    }
    let queued: Vec<_> = members.iter().filter_map(BatchMember::queued).collect();
    let Some(acquire) = BatchAcquire::new(&queued) else {
        return Ok(MultiOutcome::All(members.into_iter().filter_map(BatchMember::held).collect()));
    };
    let (answer, generation) = acquire.ask()?;
    if let Some(refused) = acquire.refused(&answer)? {
        let positions = members.iter().enumerate().filter(|(_, member)| member.queued().is_some());
        let position = positions.map(|(position, _)| position).nth(refused);
        return Ok(MultiOutcome::Refused(position.unwrap_or_default()));
    }
    acquire.check_grant(&answer)?;
    let granted = |member: BatchMember<'_>| member.granted(&answer, generation);
    Ok(MultiOutcome::All(members.into_iter().map(granted).collect()))
}

/// Re-enters the lock, or joins its queue. `None` if the caller would have to wait.
fn enter<'a>(call: &'a AcquireCall<'a>) -> Result<Option<BatchMember<'a>>> {
    call.check_not_ended()?;
    let LockContext { engine, local } = &**call.context;
    engine.ready(&call.limit())?;
    let (now, renewed) = (clock::now(), call.options.lease.is_none());
    let request = EntryRequest {
        rules: call.rules,
        owned: call.options.owned,
        waits: false,
        endless: false,
        renewed,
    };
    match local.enter(&request, None, ThreadId::current(), now)? {
        EntryOutcome::Reentered(hold) => {
            return call.re_enter(call.handle(hold)).map(BatchMember::Held).map(Some);
        }
        EntryOutcome::Busy => return engine.router.check_process().map(|()| None),
        EntryOutcome::Beside(_) | EntryOutcome::New => {}
    }
    let caller = Caller::new(request);
    let Some(ticket) = local.join_queue(caller.clone(), now) else {
        return engine.router.check_process().map(|()| None);
    };
    let hold = HoldId::next();
    let owner = Owner::new(engine.id, hold, call.rules.suffix());
    Ok(Some(BatchMember::Queued(QueuedMember { call, caller, ticket: Some(ticket), hold, owner })))
}

impl<'a> BatchMember<'a> {
    fn queued(&self) -> Option<&QueuedMember<'a>> {
        match self {
            BatchMember::Queued(member) => Some(member),
            BatchMember::Held(_) => None,
        }
    }

    fn held(self) -> Option<HoldHandle> {
        match self {
            BatchMember::Held(hold) => Some(hold),
            BatchMember::Queued(_) => None,
        }
    }

    /// Returns the earlier hold, or the one that the answer grants.
    fn granted(self, answer: &Answer, generation: Generation) -> HoldHandle {
        match self {
            BatchMember::Held(hold) => hold,
            BatchMember::Queued(member) => member.granted(answer, generation),
        }
    }
}

impl QueuedMember<'_> {
    fn granted(mut self, answer: &Answer, generation: Generation) -> HoldHandle {
        let (call, now) = (self.call, clock::now());
        let term = call.lease();
        let grant = Grant {
            hold: self.hold,
            owner: self.owner.clone(),
            rules: call.rules,
            deadline: hold::deadline(answer.sent, term),
            lease: term,
            renewed: call.options.lease.is_none(),
            holder: self.caller.holder.clone(),
            at: now,
            may_run_late: (answer.may_run_late && answer.maybe_duplicate)
                .then_some(answer.connection),
            tokens: 0..=0,
        };
        let (local, round_trip) = (&call.context.local, answer.sent.until(now));
        let hold = local.granted(self.ticket.take(), &self.caller, grant, round_trip);
        let hold = call.handle(hold);
        call.context.engine.watchdog.keep_granted(hold.watched(), generation);
        let (kind, number) = hold.hold().kind_and_number();
        call.context.engine.events.emit(|| {
            let (at, name) = (clock::wall_time(), Arc::clone(local.name().given()));
            Event::Acquired(Acquired { at, name, kind, hold: number, waited: round_trip })
        });
        hold
    }
}

/// One acquire command for several locks.
struct BatchAcquire<'a> {
    members: &'a [&'a QueuedMember<'a>],
    /// The member whose client, lease and limits stand for those of all.
    first: &'a QueuedMember<'a>,
}

impl<'a> BatchAcquire<'a> {
    /// `None` if there is no lock to ask for.
    fn new(members: &'a [&'a QueuedMember<'a>]) -> Option<BatchAcquire<'a>> {
        Some(BatchAcquire { members, first: members.first()? })
    }

    /// Returns the answer and the generation in which the command was sent.
    ///
    /// Repeats the command if a topology change came between: the answer is then from a server
    /// that this client no longer uses.
    fn ask(&self) -> Result<(Answer, Generation)> {
        let engine = &self.first.call.context.engine;
        let (_call, router) = (engine.begin_call(), &engine.router);
        let mut near =
            self.members.iter().find_map(|member| member.call.context.local.background());
        let limit = self.first.call.limit();
        for _ in 0..MAX_OUTDATED_ANSWERS {
            let generation = router.generation();
            let pending = router.queue(self.command(), Target::prefer(near));
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

    fn command(&self) -> Call {
        let term = self.first.call.lease();
        let lease = rules::digits(term);
        let keys =
            self.members.iter().map(|member| member.call.context.local.name().key().as_bytes());
        let owners = self.members.iter().map(|member| member.owner.as_bytes());
        let args = std::iter::once(lease.as_bytes()).chain(owners);
        Call::script(&script::MULTI_ACQUIRE, keys, args).lasting(term).replicated()
    }

    /// Returns the position of the refused lock, `None` if all were granted.
    fn refused(&self, answer: &Answer) -> Result<Option<usize>> {
        let numbers = read(&answer.reply).inspect_err(|_| self.undo(answer.connection))?;
        let Some(position) = numbers.first() else { return Ok(None) };
        // An earlier copy may have taken all locks, and one of them may have been lost since.
        if answer.maybe_duplicate {
            self.undo(answer.connection);
        }
        let position = usize::try_from(*position).unwrap_or_default().saturating_sub(1);
        if let Some(member) = self.members.get(position) {
            member.call.context.local.refused(clock::now(), false);
        }
        Ok(Some(position))
    }

    /// Fails if too few replicas have the grant, or if it arrived after the deadline.
    fn check_grant(&self, answer: &Answer) -> Result<()> {
        let over = hold::deadline(answer.sent, self.first.call.lease()) <= clock::now();
        let error = match answer.too_few {
            Some(too_few) => too_few.into_error(),
            None if over => Error::lost(LostReason::Expired, "the grant arrived too late"),
            None => return Ok(()),
        };
        self.undo(answer.connection);
        Err(error)
    }

    /// Releases all locks that the command took or may still take.
    fn undo(&self, connection: ConnectionId) {
        for member in self.members {
            let (call, lasting) = (member.call, member.call.lease());
            let release = call.rules.release(call.context.local.name(), &member.owner);
            let task = BackgroundTask::new(None, clock::now() + lasting).late_effect(lasting);
            let router = &call.context.engine.router;
            router.dispatch(router.submit(Request::background(release, task), Some(connection)));
        }
    }
}

fn read(reply: &Reply) -> Result<Vec<i64>> {
    reply.clone().into_ints()
}
