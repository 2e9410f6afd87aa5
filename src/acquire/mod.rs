//! The wait loop of every kind of lock and every verb, and the release of holds.
//!
//! Reading order: `call.rs` (one call of a verb), `candidate.rs` (a caller that asks for a new
//! hold), this file (the loop), `attempt.rs` (one acquire command), `schedule.rs` (when the next
//! attempt is due), `own_guard.rs` (the warning of a wait for the own thread), `handle.rs` (a
//! guard's share of a hold), `release.rs` and `release_outcome.rs` (the end of a share). Imports:
//! everything below the public handles and guards.
//!
//! The steps of a call:
//! 1. A thread that holds the lock already counts one more guard, and perhaps extends the lease.
//! 2. The caller joins the queue of this process (`local/`). It sleeps until it is the head of the
//!    queue or a hold is handed off to it. Kinds without that queue, such as the fair lock, skip
//!    this step: each of their callers asks the server.
//! 3. The head of the queue sends the acquire command. If the server grants the lock and the reply
//!    arrives before the new deadline, the call is done.
//! 4. A refused call registers at the lock's channel and requests the subscription. It sleeps until
//!    the channel counts a message, the holder's lease ends, or a poll of the watchdog finds the
//!    lock free; then it tries again. A message between the command and the sleep is not missed
//!    (`transport/listener/channels.rs`). Without a process queue the call itself polls at the poll interval;
//!    without a channel (the spin lock) it tries again after a growing pause. A call for a queue
//!    lock sleeps until a message or a queue heartbeat grants the lock (`local/waiters.rs`).
//! 5. A call that a message woke and the server refused again has lost a race against other
//!    processes. It ignores messages for a short, growing, jittered time and then tries once.
//! 6. An attempt without a reply ends the call with an error, unless the server has refused the
//!    call before. In that case the call repeats the attempt, with pauses, until its deadline.
//!
//! Attempts that may take effect, now or later, name the same hold, so a repeated command does no
//! harm. After a refusal that leaves nothing behind, the next attempt names a new hold: the number
//! of a hold tells the time of its acquisition. A waiter with a place in Redis keeps its number. A
//! call that leaves without the lock releases the hold behind any command that may still run, on
//! the same connection.

mod attempt;
mod call;
mod candidate;
mod handle;
mod own_guard;
mod release;
mod release_outcome;
mod schedule;

pub(crate) use call::{AcquireCall, AcquireOptions, CallEntry, REPLY_GRACE};
pub(crate) use candidate::{Candidate, GrantReply};
pub(crate) use handle::{HoldHandle, LockContext, checked_lease};
pub(crate) use own_guard::OwnGuardWarning;
pub(crate) use release::{PendingRelease, not_held};
pub(crate) use schedule::{ChannelView, MAX_OUTDATED_REPLIES, Pace, RetrySchedule};

use std::cell::OnceCell;
use std::sync::Arc;

use crate::cancel::CancelWatch;
use crate::error::Result;
use crate::events::{Event, Waited};
use crate::kind::rules::{ListensTo, Place};
use crate::local::hold::Hold;
use crate::local::permits::PermitPlace;
use crate::local::{Turn, YieldsTo};
use crate::transport::call::{ConnectionId, LateCopy};
use crate::transport::listener::channels::{
    AwaitedMessage, Channel, ListenerSession, Registration,
};
use crate::util::clock::{self, Moment};

#[cfg(all(test, leasehold_model))]
mod model;

/// The state of one call in the wait loop.
struct WaitLoop<'a> {
    call: &'a AcquireCall<'a>,
    candidate: Candidate<'a>,
    /// Whether the call has left the queue and the loop.
    has_left: bool,
    /// The number of threads that may have the hold, one after the other; zero before the first
    /// attempt.
    max_holders: u32,
    leftovers: Leftovers,
    /// The place in the queue of a queue lock, as the server last reported it.
    place: Option<Place>,
    schedule: RetrySchedule,
    wakeups: Wakeups,
    reports: Reports,
}

/// Effects of earlier attempts at the server, for the clean-up to undo.
#[derive(Default)]
struct Leftovers {
    /// A copy of an acquire command that may still run.
    late_copy: Option<LateCopy>,
    /// Whether the call may have a place in a queue in Redis.
    queued: bool,
}

/// The registrations that wake a sleeping call.
#[derive(Default)]
struct Wakeups {
    /// The watches for the close of the client and for the cancellation, from the first sleep on.
    end_watches: Option<[Option<CancelWatch>; 2]>,
    /// The registration at the lock's channel, from the first refusal on.
    registration: Option<Registration>,
    /// The place among the callers of this process that wait for permits, from the first question
    /// on.
    permits: Option<PermitPlace>,
    /// The channel of this call alone, for kinds that have such channels.
    own_channel: OnceCell<Arc<Channel>>,
    /// The listener's session before the last attempt, for a call that awaits a grant by message.
    session: Option<ListenerSession>,
    /// Keeps the listener connected for a grant by message, from the first refusal on.
    awaited_grant: Option<AwaitedMessage>,
}

/// Facts about a call for the log and the events.
#[derive(Default)]
struct Reports {
    /// Whether the call slept because of other holders or callers.
    waited: bool,
    /// Whether the warning about a lock without a time to live was logged.
    warned: bool,
    own_guard: OwnGuardWarning,
}

/// The next step of a call.
enum NextStep {
    /// Send the acquire command, on the given connection if there is one.
    Attempt(Option<ConnectionId>),
    Sleep(Moment),
    /// Sleep although the lock may be free, so that other processes can take it.
    Yield(Moment),
}

impl Drop for WaitLoop<'_> {
    /// Leaves the queue and cleans up after a panic, of an allocation for example.
    fn drop(&mut self) {
        if !self.has_left {
            self.leave().into_iter().for_each(HoldHandle::discard);
            self.clean_up(false);
        }
    }
}

impl<'a> WaitLoop<'a> {
    fn new(candidate: Candidate<'a>, now: Moment) -> WaitLoop<'a> {
        let (call, seed) = (candidate.call, candidate.id.seed());
        let poll_interval = call.context.engine.settings.poll_interval;
        WaitLoop {
            call,
            candidate,
            has_left: false,
            max_holders: 0,
            leftovers: Leftovers::default(),
            place: None,
            schedule: RetrySchedule::new(now, poll_interval, seed, call.pace()),
            wakeups: Wakeups::default(),
            reports: Reports::default(),
        }
    }

    fn context(&self) -> &'a LockContext {
        self.call.context
    }

    /// Runs the loop to its end, undoes what it leaves behind, and reports the outcome.
    fn run(mut self) -> Result<Option<HoldHandle>> {
        let outcome = match self.wait() {
            Ok(Some(handle)) => Ok(Some(handle)),
            // Another thread may hand the hold off at the moment at which this call gives up. The
            // call then takes the hold. A call that failed discards the handle, which hands the
            // hold off again or releases it.
            Ok(None) => Ok(self.leave()),
            Err(error) => {
                self.leave().into_iter().for_each(HoldHandle::discard);
                Err(error)
            }
        };
        self.has_left = true;
        self.clean_up(matches!(outcome, Ok(Some(_))));
        self.report(outcome.as_ref().ok().and_then(Option::as_ref));
        outcome
    }

    /// Leaves the queue. Returns a valid hold that was handed off in the meantime.
    ///
    /// The clean-up passes a grant by message on to the next waiter.
    fn leave(&mut self) -> Option<HoldHandle> {
        self.has_left = true;
        if self.awaits_grants() {
            self.context().local.stop_waiting(self.candidate.id.number());
        }
        self.candidate.leave()
    }

    fn wait(&mut self) -> Result<Option<HoldHandle>> {
        loop {
            let now = clock::now();
            let turn = self.turn(now);
            if let Turn::HandedOff(hold) = turn {
                if let Some(handle) = self.take_handed_off(hold, now)? {
                    return Ok(Some(handle));
                }
                continue;
            }
            self.call.check_not_ended()?;
            if let Turn::Granted(grant) = turn {
                if let Some(handle) = self.take_grant(&grant, now)? {
                    return Ok(Some(handle));
                }
                continue;
            }
            let step = self.next_step(&turn, now);
            if self.is_over(&step, now) {
                return self.give_up();
            }
            match step {
                NextStep::Sleep(end) => {
                    self.note_wait();
                    let warning = self.warn_of_own_guard(now);
                    self.sleep(end.min(warning))?;
                }
                NextStep::Yield(end) => self.sleep(end)?,
                NextStep::Attempt(connection) => {
                    if let Some(handle) = self.attempt(connection)? {
                        return Ok(Some(handle));
                    }
                }
            }
        }
    }

    /// Notes that the call waits. The first sleep only registers for wake-ups.
    fn note_wait(&mut self) {
        if self.wakeups.end_watches.is_some() && !self.reports.waited {
            self.reports.waited = true;
            if let Some(record) = self.call.options.record {
                record.waits(self.candidate.started);
            }
        }
    }

    /// Warns of a long wait for an owned guard that this thread took. Returns the next check.
    fn warn_of_own_guard(&mut self, now: Moment) -> Moment {
        let (local, kind) = (&self.context().local, self.call.rules.kind());
        let Candidate { caller, owner, started, .. } = &self.candidate;
        let awaits = || local.awaits_own_guard(caller, owner, now);
        let deadline = self.call.options.return_by;
        let name = local.name().given();
        self.reports.own_guard.check(*started, now, deadline, awaits, (name, kind))
    }

    fn turn(&self, now: Moment) -> Turn {
        let local = &self.context().local;
        let was_refused = self.schedule.was_refused();
        let yields = if was_refused { YieldsTo::Nobody } else { self.call.yields_to(now) };
        match self.candidate.ticket {
            Some(ticket) => local.turn(ticket, now, yields),
            None => local.turn_unqueued(self.candidate.id, now, yields),
        }
    }

    /// Returns whether a server may grant the lock to this call by message.
    fn awaits_grants(&self) -> bool {
        self.candidate.caller.request.waits && self.call.rules.listens_to() == ListensTo::Grants
    }

    /// Takes a hold that another thread handed off.
    ///
    /// Joins the queue again and returns `None` if the hold was lost before this thread woke.
    fn take_handed_off(&mut self, hold: Arc<Hold>, now: Moment) -> Result<Option<HoldHandle>> {
        let handle = self.call.handle(hold);
        if let Err(error) = self.call.check_not_ended() {
            handle.discard();
            return Err(error);
        }
        let Candidate { caller, ticket, .. } = &mut self.candidate;
        if handle.is_held() {
            *ticket = None;
            handle.watch_limit();
            return Ok(Some(handle));
        }
        drop(handle);
        *ticket = self.call.context.local.join_queue(caller.clone(), now).or(*ticket);
        Ok(None)
    }

    /// Returns whether the patience of the caller is over.
    ///
    /// Returns `false` if `step` is the first attempt of the call.
    fn is_over(&self, step: &NextStep, now: Moment) -> bool {
        let first = matches!(step, NextStep::Attempt(_)) && !self.schedule.has_attempted();
        !first && self.call.options.patience.is_over(now)
    }

    fn next_step(&mut self, turn: &Turn, now: Moment) -> NextStep {
        let message_count = self.wakeups.registration.as_ref().map(Registration::message_count);
        match turn {
            Turn::Behind | Turn::HandedOff(_) | Turn::Granted(_) => {
                self.schedule.wait_behind();
                NextStep::Sleep(Moment::END)
            }
            Turn::AskAtOnce { connection, held_here } => {
                self.schedule.found_free(*held_here);
                NextStep::Attempt(*connection)
            }
            Turn::HeldHere if self.schedule.is_due_while_held_here(now) => NextStep::Attempt(None),
            Turn::HeldHere => NextStep::Sleep(self.schedule.next_poll()),
            Turn::Yield(end) => NextStep::Yield(*end),
            Turn::AskWhenDue(connection) if self.must_ask() => NextStep::Attempt(*connection),
            Turn::AskWhenDue(connection) if self.schedule.is_due(now, message_count) => {
                NextStep::Attempt(*connection)
            }
            Turn::AskWhenDue(_) => NextStep::Sleep(self.schedule.next_attempt()),
        }
    }

    /// Returns whether permits may be free that the call has not asked for.
    fn must_ask(&self) -> bool {
        self.schedule.has_attempted()
            && self.wakeups.permits.as_ref().is_some_and(|it| it.must_ask())
    }

    /// Sleeps until something may have changed, at most until `end`.
    ///
    /// The first call only registers for wake-ups and returns, because the state may have changed
    /// before the registration.
    fn sleep(&mut self, end: Moment) -> Result<()> {
        let (call, parker) = (self.call, &self.candidate.caller.parker);
        if self.wakeups.end_watches.is_none() {
            // The threads ahead in the queue do not exist in a forked child.
            call.context.engine.router.check_process()?;
            let closing = Some(call.context.engine.closing.watch(parker));
            let cancel = call.options.cancel.map(|cancel| cancel.watch(parker));
            self.wakeups.end_watches = Some([closing, cancel]);
            return Ok(());
        }
        parker.park_until(end.min(call.options.patience.end()));
        Ok(())
    }

    /// Returns the outcome of a call whose patience is over: `None`, or an error.
    ///
    /// The lock may have been free if the last attempt of this call, of the call at the head of the
    /// queue, or the last queue heartbeat got no reply. The error of these is then the outcome.
    fn give_up(&mut self) -> Result<Option<HoldHandle>> {
        let own = self.schedule.take_error();
        let of_others = || self.context().local.last_error(clock::now());
        own.or_else(of_others).map_or(Ok(None), Err)
    }

    /// Emits the events of a call that has ended.
    fn report(&self, acquired: Option<&HoldHandle>) {
        let (events, waited) =
            (&self.context().engine.events, self.candidate.started.until(clock::now()));
        if let Some(handle) = acquired {
            self.call.report_acquired(handle, waited);
        }
        if self.reports.waited {
            let hold = acquired.map(|handle| handle.hold().id().number());
            let (at, kind, acquired) = (clock::wall_time, self.call.rules.kind(), hold.is_some());
            let name = || Arc::clone(self.context().local.name().given());
            let event = || Waited { at: at(), name: name(), kind, hold, waited, acquired };
            events.emit_with(self.call.terms.listener(), || Event::Waited(event()));
        }
    }
}
