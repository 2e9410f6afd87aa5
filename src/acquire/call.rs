//! A call of an acquiring verb on one lock.
//!
//! An [`AcquireCall`] is a lock together with [`AcquireOptions`]. A thread that holds the lock
//! already counts one more guard. Any other caller enters the [loop](crate::wait).

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Acquirer;
use crate::acquire::handle::{HoldHandle, LockContext};
use crate::acquire::question::LockQuestion;
use crate::cancel::{CancelToken, Limit};
use crate::command::owner::{Holder, ThreadId};
use crate::error::{Error, Result};
use crate::kind::rules::{KindRules, PermitRequest, Queueing};
use crate::local::hold::{Hold, HoldSettings};
use crate::local::queue::Ticket;
use crate::local::table::{EntryOutcome, EntryRequest};
use crate::local::{Caller, JoinOutcome, YieldsTo};
use crate::stats::{CallRecord, Series};
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment, Patience};

/// Time after the caller's deadline in which the last reply may still arrive.
///
/// So a call that sends its last command shortly before its deadline can still report whether the
/// lock was free.
pub(crate) const REPLY_GRACE: Duration = Duration::from_millis(50);

/// The choices of one call: the guard, the lease, and the end of the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireOptions<'a> {
    /// The length of a fixed lease; `None` for a lease that the watchdog renews.
    pub(crate) lease: Option<Duration>,
    /// Whether the hold belongs to a guard and to no thread.
    pub(crate) owned: bool,
    /// The holder to record, if it is not the calling thread.
    pub(crate) on_behalf: Option<&'a Holder>,
    /// How long the call waits for the lock.
    pub(crate) patience: Patience,
    /// The moment at which the caller expects the call to return; `patience` may end earlier.
    pub(crate) return_by: Moment,
    pub(crate) cancel: Option<&'a CancelToken>,
    /// The patience of the whole call, by which it yields; `None` if it does not yield.
    pub(crate) yields_by: Option<Patience>,
    /// The permits that the call takes; `None` for a lock.
    pub(crate) permits: Option<PermitRequest>,
    /// Counts the wait; `None` for a part of a call that does not wait.
    pub(crate) record: Option<&'a CallRecord<'a>>,
    /// Whether the call repeats a question of a longer one. It then fails at once where it would
    /// have to connect to a server that pauses after a failure.
    pub(crate) is_repeated: bool,
}

impl AcquireOptions<'_> {
    /// Returns options for a renewed lease and the calling thread.
    pub(crate) fn new(patience: Patience) -> Self {
        AcquireOptions {
            lease: None,
            owned: false,
            on_behalf: None,
            patience,
            return_by: patience.deadline(),
            cancel: None,
            yields_by: Some(patience),
            permits: None,
            record: None,
            is_repeated: false,
        }
    }
}

/// What a call has taken.
#[derive(Debug)]
pub(crate) enum Taken {
    Held(HoldHandle),
    /// The work is done: the reply of the server has its result.
    Settled(Reply),
    /// The patience of the caller has ended first.
    InVain,
}

impl Taken {
    pub(crate) fn hold(self) -> Option<HoldHandle> {
        match self {
            Taken::Held(handle) => Some(handle),
            Taken::Settled(_) | Taken::InVain => None,
        }
    }
}

/// A call of an acquiring verb: a lock and the options of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireCall<'a> {
    pub(crate) context: &'a Arc<LockContext>,
    pub(crate) rules: &'static dyn KindRules,
    /// The owner field that the program chose, for a named holder.
    pub(crate) holder_name: Option<&'a Arc<str>>,
    pub(crate) settings: &'a HoldSettings,
    pub(crate) options: AcquireOptions<'a>,
}

/// The first step of a call in this process.
#[expect(clippy::large_enum_variant, reason = "each call moves one such value, on the stack")]
pub(crate) enum CallEntry<'a> {
    /// The thread holds the lock already, now with one more guard.
    Held(HoldHandle),
    /// The caller has to ask the server, perhaps after other callers in the queue.
    Acquirer(Acquirer<'a>),
    /// Another thread of this process comes first, and the call does not wait.
    Refused,
}

/// What became of a call that joined the process's queue.
pub(super) enum JoinResult {
    Queue(Ticket),
    /// A hold that lingered here.
    TookOver(HoldHandle),
    /// Another thread of this process comes first, and the call does not wait.
    Refused,
}

impl<'a> AcquireCall<'a> {
    /// Returns the same call with another patience.
    ///
    /// The call still returns by the moment that its caller expects, and yields as before.
    pub(crate) fn with_patience(mut self, patience: Patience) -> AcquireCall<'a> {
        self.options.patience = patience;
        self
    }

    /// Returns the same call as a later question of a longer one ([`AcquireOptions::is_repeated`]).
    pub(crate) fn repeated(mut self) -> AcquireCall<'a> {
        self.options.is_repeated = true;
        self
    }

    /// Returns the processes to which the call yields.
    ///
    /// Kinds with a queue in Redis need no yields: a release passes the lock to the next waiter. A
    /// call for permits that does not wait takes all free permits that are not claimed.
    pub(crate) fn yields_to(&self, now: Moment) -> YieldsTo {
        match self.options.yields_by.map(|patience| YieldsTo::of(patience, now)) {
            Some(YieldsTo::Listeners) if self.options.permits.is_some() => YieldsTo::Nobody,
            Some(yields) if self.rules.yields() => yields,
            _ => YieldsTo::Nobody,
        }
    }

    /// Returns whether the call has to yield now.
    pub(crate) fn has_to_yield(&self) -> bool {
        let now = clock::now();
        self.context.local.yield_until(self.yields_to(now), now).is_some()
    }

    /// Takes the lock; returns `None` if the patience of the call ends first.
    ///
    /// A cancellation and the close of the client end the wait with an error. A thread that holds
    /// the lock makes no round trip; a free lock takes one. Errors carry the name of the lock.
    pub(crate) fn acquire(&self) -> Result<Option<HoldHandle>> {
        self.take().map(Taken::hold)
    }

    /// Takes the lock as [`acquire`](AcquireCall::acquire) does, unless there is nothing to take.
    pub(crate) fn take(&self) -> Result<Taken> {
        let name = self.context.local.name().given();
        self.run().map_err(|error| error.with_lock_name(Arc::clone(name)))
    }

    fn run(&self) -> Result<Taken> {
        let now = clock::now();
        match self.enter(now)? {
            CallEntry::Held(handle) => Ok(Taken::Held(handle)),
            CallEntry::Acquirer(acquirer) => {
                // Dropped after the clean-up of the loop, for which the close of the client waits.
                let _call = self.context.engine.begin_call();
                LockQuestion::new(acquirer, now).run()
            }
            CallEntry::Refused => Ok(Taken::InVain),
        }
    }

    /// Takes over a hold that lingers, counts one more guard of this thread's hold, or joins the
    /// process's queue.
    pub(crate) fn enter(&self, now: Moment) -> Result<CallEntry<'_>> {
        self.check_not_ended()?;
        if let Some(handle) = self.take_over(now)? {
            self.context.local.report_acquired(handle.hold(), Duration::ZERO);
            return Ok(CallEntry::Held(handle));
        }
        let AcquireOptions { on_behalf, owned, lease, patience, .. } = self.options;
        let thread = on_behalf.and_then(Holder::thread).unwrap_or_else(ThreadId::current);
        let waits = patience != Patience::None;
        let request = EntryRequest { rules: self.rules, owned, waits, renewed: lease.is_none() };
        let entry = self.context.local.enter(&request, self.holder_name, thread, now);
        if entry.as_ref().is_err_and(Error::is_deadlock) {
            // In a forked child the hold in the way is one of the parent process.
            self.context.engine.router.check_process()?;
        }
        let beside = match entry? {
            EntryOutcome::Reentered(hold) => {
                return self.apply_lease(self.handle(hold)).map(CallEntry::Held);
            }
            EntryOutcome::Beside(owner) => Some(owner),
            EntryOutcome::New => None,
            EntryOutcome::Busy => return self.refuse_at_once(),
        };
        self.context.engine.wait_until_ready(|| self.limit())?;
        let caller = Caller::of(request, on_behalf, self.settings);
        if self.rules.queueing() == Queueing::None {
            return Ok(CallEntry::Acquirer(Acquirer::new(self, now, caller, None, beside)));
        }
        match self.join_queue(&caller, now)? {
            JoinResult::Queue(ticket) => {
                let ticket = Some(ticket);
                Ok(CallEntry::Acquirer(Acquirer::new(self, now, caller, ticket, beside)))
            }
            JoinResult::TookOver(handle) => {
                self.context.local.report_acquired(handle.hold(), Duration::ZERO);
                Ok(CallEntry::Held(handle))
            }
            JoinResult::Refused => self.refuse_at_once(),
        }
    }

    /// Joins the process's queue, unless a hold lingers here by now: takes that over, or has it
    /// released first.
    pub(super) fn join_queue(&self, caller: &Caller, now: Moment) -> Result<JoinResult> {
        loop {
            match self.context.local.join_queue(caller.clone(), now) {
                JoinOutcome::Queued(ticket) => return Ok(JoinResult::Queue(ticket)),
                JoinOutcome::Refused => return Ok(JoinResult::Refused),
                JoinOutcome::BehindIdle => {
                    if let Some(handle) = self.take_over(now)? {
                        return Ok(JoinResult::TookOver(handle));
                    }
                }
            }
        }
    }

    /// Takes over a hold that lingers here. Has a hold released that the caller cannot have, so that
    /// the acquire follows that release.
    pub(super) fn take_over(&self, now: Moment) -> Result<Option<HoldHandle>> {
        let LockContext { engine, local } = &**self.context;
        if !local.has_idle_hold() {
            return Ok(None);
        }
        // The hold belongs to the parent of a forked child.
        engine.router.check_process()?;
        let AcquireOptions { lease, owned, on_behalf, .. } = self.options;
        let holder = || Holder::of_caller(on_behalf, owned);
        let take_over = || local.take_over(self.rules, holder(), self.settings, now);
        let Some(hold) = lease.is_none().then(take_over).flatten() else {
            engine.watchdog.give_up(local, None);
            return Ok(None);
        };
        let handle = self.handle(hold);
        if self.settings.max_hold().is_some() {
            handle.watch_limit();
        }
        Ok(Some(handle))
    }

    /// Refuses a call that does not wait, because of another thread of this process.
    ///
    /// In a forked child that thread is one of the parent process, which is an error.
    fn refuse_at_once(&self) -> Result<CallEntry<'_>> {
        self.context.engine.router.check_process().map(|()| CallEntry::Refused)
    }

    /// Returns the statistics for the kind and the label of the lock.
    pub(crate) fn series(&self) -> Series<'_> {
        let stats = self.context.engine.events.stats();
        stats.series(|| self.settings.series_key(self.rules.kind()))
    }

    /// Returns the length of the lease that the call asks for.
    pub(crate) fn lease(&self) -> Duration {
        let of_client = || self.context.engine.settings.watchdog_timeout;
        self.options.lease.or(self.settings.renewed_lease()).unwrap_or_else(of_client)
    }

    /// Returns whether a hold that the call asks for now may linger.
    pub(super) fn may_linger(&self, now: Moment) -> bool {
        let wants = self.settings.linger().is_some() && self.options.lease.is_none();
        wants && self.context.local.may_linger(now)
    }

    /// Returns the limit of the wait for a reply.
    ///
    /// The wait ends at the first of: the response time-out, the grace after `return_by`, the close
    /// of the client, the cancellation.
    pub(crate) fn limit(&self) -> Limit<'_> {
        let engine = &self.context.engine;
        let response = engine.response_limit().end();
        Limit::at(response.min(self.options.return_by + REPLY_GRACE))
            .or_closed(&engine.closing)
            .or_cancelled(self.options.cancel)
    }

    /// Returns an error if the client is closed or the call is cancelled.
    pub(crate) fn check_not_ended(&self) -> Result<()> {
        self.context.engine.check_not_ended(self.options.cancel)
    }

    pub(crate) fn handle(&self, hold: Arc<Hold>) -> HoldHandle {
        HoldHandle::new(Arc::clone(self.context), hold)
    }

    /// Gives a nested guard the lease that the call asks for.
    ///
    /// Ends the nested guard again if its lease cannot be extended. Makes no round trip unless it
    /// has to extend a fixed lease.
    pub(crate) fn apply_lease(&self, handle: HoldHandle) -> Result<HoldHandle> {
        match self.options.lease {
            None => handle.keep_renewed(),
            // A fixed lease inside a renewed hold needs nothing.
            Some(lease) if handle.needs_extension(lease) => {
                handle.extend_within(lease, &self.limit())?;
            }
            Some(_) => {}
        }
        Ok(handle)
    }
}
