//! Takes several plain locks of one server by one script call: all or none.
//!
//! The caller enters each lock as a single `try_lock` does: it joins the queue of its process. If
//! any queue has another caller at its head, the whole batch is refused without a round trip. The
//! command goes to the connection of one lock's background release, behind that release. It may
//! overtake the background release of another lock on another connection; the script then finds
//! that lock held and refuses the batch.

use crate::acquire::{AcquireCall, Acquirer, CallEntry, GrantReply, HoldHandle};
use crate::command::script;
use crate::error::{Error, LostReason, Result};
use crate::local::{Local, hold};
use crate::lock::multi_lock::acquire::MultiOutcome;
use crate::transport::call::{Call, ConnectionId, Digits};
use crate::transport::pool::Target;
use crate::transport::pool::request::{CallReply, Failure};
use crate::transport::topology::route::Generation;
use crate::util::clock;

/// Takes plain locks of one client, all with the same lease, without waiting.
pub(crate) fn take(calls: &[AcquireCall<'_>]) -> Result<MultiOutcome> {
    let (mut holds, mut acquirers) = (Vec::with_capacity(calls.len()), Vec::new());
    for (position, call) in calls.iter().enumerate() {
        match call.enter(clock::now())? {
            CallEntry::Held(handle) => holds.push((position, handle)),
            CallEntry::Acquirer(_) if call.has_to_yield() => {
                return Ok(MultiOutcome::Refused(position));
            }
            CallEntry::Acquirer(acquirer) => acquirers.push((position, acquirer)),
            CallEntry::Refused => return Ok(MultiOutcome::Refused(position)),
        }
    }
    if let Some((_, first)) = acquirers.first() {
        let acquire = BatchAcquire { acquirers: &acquirers, first: first.call };
        let mut answered = acquire.ask()?;
        while let Some(refused) = acquire.refused(&answered)? {
            // The undo of an earlier copy would end what another question takes.
            if answered.earlier_copy.is_some() || !acquire.ends_dead_holds(refused) {
                return Ok(MultiOutcome::Refused(acquirers[refused].0));
            }
            answered = acquire.ask()?;
        }
        acquire.check_grant(&answered.reply)?;
        for (position, acquirer) in acquirers {
            holds.push((position, granted(acquirer, &answered)));
        }
        holds.sort_by_key(|(position, _)| *position);
    }
    Ok(MultiOutcome::All(holds.into_iter().map(|(_, handle)| handle).collect()))
}

fn granted(mut acquirer: Acquirer<'_>, answered: &Answered) -> HoldHandle {
    let Answered { reply, generation, earlier_copy } = answered;
    let (sent, at, lease) = (reply.sent, clock::now(), acquirer.call.lease());
    let late_copy = earlier_copy.map(|connection| acquirer.copy_on(connection));
    let late_copy = late_copy.filter(|copy| reply.may_precede(copy, lease));
    let (generation, tokens, slots) = (*generation, 0..=0, Box::default());
    let reply = GrantReply { sent, at, lease, generation, late_copy, tokens, slots };
    let handle = acquirer.granted(reply);
    acquirer.call.context.local.report_acquired(handle.hold(), sent.until(at));
    handle
}

/// One acquire command for several locks.
struct BatchAcquire<'a> {
    /// The callers, each with its position among the calls.
    acquirers: &'a [(usize, Acquirer<'a>)],
    /// The call whose client, lease and limits are those of all.
    first: &'a AcquireCall<'a>,
}

/// The reply to the acquire command.
struct Answered {
    reply: CallReply,
    /// The generation in which the command was sent.
    generation: Generation,
    /// The connection of an earlier copy of the command.
    earlier_copy: Option<ConnectionId>,
}

impl<'a> BatchAcquire<'a> {
    fn locals(&self) -> impl Iterator<Item = &'a Local> + Clone {
        self.acquirers.iter().map(|(_, acquirer)| &*acquirer.call.context.local)
    }

    /// Sends the command and returns its reply.
    ///
    /// Repeats the command if the topology changed before the reply was read: the reply is then
    /// from a server that this client no longer uses.
    fn ask(&self) -> Result<Answered> {
        let engine = &self.first.context.engine;
        let (_call, router) = (engine.begin_call(), &engine.router);
        if self.first.options.is_repeated
            && let Some(error) = self.first.context.pause_error()
        {
            return Err(error);
        }
        let mut near = self.locals().find_map(Local::unanswered_release);
        let (limit, mut earlier_copy) = (self.first.limit(), None);
        let mut former = None;
        let outcome = router.until_current(|| {
            // The former server may have granted the locks.
            (earlier_copy, near) = (earlier_copy.or(former), former.or(near));
            let pending = router.queue(self.command(), Target::prefer(near));
            let (connection, outcome) = router.wait_without_retry(pending, &limit);
            if let Err(failure) = &outcome
                && (failure.is_written() || earlier_copy.is_some())
            {
                self.undo(connection);
                former = None;
            }
            let reply = outcome.map_err(Failure::into_error)?;
            if reply.copies.may_exist() {
                earlier_copy.get_or_insert(connection);
            }
            former = Some(connection);
            Ok(reply)
        });
        match outcome {
            Ok((reply, generation)) => {
                self.first.series().answered(reply.sent.until(clock::now()));
                Ok(Answered { reply, generation, earlier_copy })
            }
            Err(error) => {
                if let Some(connection) = former {
                    self.undo(connection);
                }
                Err(error)
            }
        }
    }

    fn command(&self) -> Call {
        let lease = self.first.lease();
        let digits = Digits::of_millis(lease);
        let keys = self.locals().map(|local| local.name().key().as_bytes());
        let owners = self.acquirers.iter().map(|(_, acquirer)| acquirer.owner.as_bytes());
        let args = std::iter::once(digits.as_bytes()).chain(owners);
        Call::script(&script::MULTI_ACQUIRE, keys, args).replicated()
    }

    /// Looks whether the process of the holder of a refused lock is gone. Returns whether its hold
    /// has been ended.
    fn ends_dead_holds(&self, refused: usize) -> bool {
        let (engine, local) =
            (&self.first.context.engine, &self.acquirers[refused].1.call.context.local);
        engine.watchdog.ends_dead_holds_of(local, false, &self.first.limit())
    }

    /// Returns which of the acquirers was refused, `None` if all were granted.
    fn refused(&self, answered: &Answered) -> Result<Option<usize>> {
        let reply = &answered.reply;
        let numbers = reply.value.clone().into_ints();
        let numbers = numbers.inspect_err(|_| self.undo(reply.connection))?;
        let Some(number) = numbers.first() else { return Ok(None) };
        // An earlier copy may have taken all locks, and lost one of them before this copy ran.
        if answered.earlier_copy.is_some() {
            self.undo(reply.connection);
        }
        let refused = usize::try_from(*number).unwrap_or_default().saturating_sub(1);
        // A script that tells of another position has refused the first lock at least.
        let refused = if refused < self.acquirers.len() { refused } else { 0 };
        self.acquirers[refused].1.call.context.local.refused(reply.sent, clock::now());
        Ok(Some(refused))
    }

    /// Fails if too few replicas have the grant, or if it arrived after the deadline.
    fn check_grant(&self, reply: &CallReply) -> Result<()> {
        let over = hold::deadline(reply.sent, self.first.lease()) <= clock::now();
        let error = match reply.not_replicated.clone() {
            Some(error) => error,
            None if over => Error::lost(LostReason::Expired, "the grant arrived too late"),
            None => return Ok(()),
        };
        self.undo(reply.connection);
        Err(error)
    }

    /// Releases all locks that the command took or may still take.
    fn undo(&self, connection: ConnectionId) {
        for (_, acquirer) in self.acquirers {
            acquirer.undo(Some(acquirer.copy_on(connection)), None, self.first.lease());
        }
    }
}
