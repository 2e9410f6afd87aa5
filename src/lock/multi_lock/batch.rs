//! Takes several plain locks of one server by one script call: all or none.
//!
//! Each lock is entered as by a single `try_lock`: the caller joins its process's queue, and the
//! whole batch is refused without a round trip if any queue has another caller at its head. The
//! command follows the background release of one lock on its connection. It may overtake the
//! background release of another lock on another connection; the script then finds that lock held
//! and refuses the batch.

use crate::acquire::{
    AcquireCall, CallEntry, Candidate, GrantReply, HoldHandle, MAX_OUTDATED_ANSWERS,
};
use crate::command::call::{Call, ConnectionId};
use crate::command::reply::Reply;
use crate::command::script;
use crate::error::{Error, LostReason, Result};
use crate::kind::rules;
use crate::local::hold;
use crate::lock::multi_lock::acquire::MultiOutcome;
use crate::pool::Target;
use crate::pool::request::{Answer, Failure};
use crate::topology::route::Generation;
use crate::util::clock;

/// A lock of the batch.
enum BatchMember<'a> {
    /// The thread held the lock before.
    Held(HoldHandle),
    /// The caller is at the head of the queue of the lock.
    Queued(Candidate<'a>),
}

/// Takes plain locks of one client, all with the same lease, without waiting.
pub(crate) fn take(calls: &[AcquireCall<'_>]) -> Result<MultiOutcome> {
    let mut members = Vec::with_capacity(calls.len());
    for (position, call) in calls.iter().enumerate() {
        match call.enter(clock::now())? {
            CallEntry::Held(handle) => members.push(BatchMember::Held(handle)),
            CallEntry::Candidate(candidate) => members.push(BatchMember::Queued(candidate)),
            CallEntry::Refused => return Ok(MultiOutcome::Refused(position)),
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

impl<'a> BatchMember<'a> {
    fn queued(&self) -> Option<&Candidate<'a>> {
        match self {
            BatchMember::Queued(candidate) => Some(candidate),
            BatchMember::Held(_) => None,
        }
    }

    fn held(self) -> Option<HoldHandle> {
        match self {
            BatchMember::Held(handle) => Some(handle),
            BatchMember::Queued(_) => None,
        }
    }

    /// Returns the earlier hold, or the one that the answer grants.
    fn granted(self, answer: &Answer, generation: Generation) -> HoldHandle {
        match self {
            BatchMember::Held(handle) => handle,
            BatchMember::Queued(candidate) => granted(candidate, answer, generation),
        }
    }
}

fn granted(mut candidate: Candidate<'_>, answer: &Answer, generation: Generation) -> HoldHandle {
    let (sent, at) = (answer.sent, clock::now());
    let has_copies = answer.may_run_late && answer.maybe_duplicate;
    let may_run_late = has_copies.then_some(answer.connection);
    let reply = GrantReply { sent, at, generation, may_run_late, tokens: 0..=0 };
    let handle = candidate.granted(reply);
    candidate.call.report_acquired(&handle, sent.until(at));
    handle
}

/// One acquire command for several locks.
struct BatchAcquire<'a> {
    members: &'a [&'a Candidate<'a>],
    /// The member whose client, lease and limits stand for those of all.
    first: &'a Candidate<'a>,
}

impl<'a> BatchAcquire<'a> {
    /// `None` if there is no lock to ask for.
    fn new(members: &'a [&'a Candidate<'a>]) -> Option<BatchAcquire<'a>> {
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
        let lease = self.first.call.lease();
        let digits = rules::digits(lease);
        let keys =
            self.members.iter().map(|member| member.call.context.local.name().key().as_bytes());
        let owners = self.members.iter().map(|member| member.owner.as_bytes());
        let args = std::iter::once(digits.as_bytes()).chain(owners);
        Call::script(&script::MULTI_ACQUIRE, keys, args).lasting(lease).replicated()
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
            member.undo(Some(connection), None, member.call.lease());
        }
    }
}

fn read(reply: &Reply) -> Result<Vec<i64>> {
    reply.clone().into_ints()
}
