//! A hold in the hands of a caller, and its end.
//!
//! A release is queued in one step with the end of the hold (`local.rs`). Then the
//! caller waits for the answer (`unlock`), or has it written and goes on; then the
//! answer is read by whoever speaks with the server next (`drop`). What it means is the
//! same for both (`settle.rs`). Without one the release is sent again until the lease is
//! over anyway; until there is one, if others keep alive what the hold took.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::release_outcome::BackgroundRelease;
use crate::acquire::schedule::MAX_OUTDATED_ANSWERS;
use crate::cancel::{Bound, Limit};
use crate::command::call::{Call, ConnectionId};
use crate::config::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::local::hold::{self, Hold, HoldStatus};
use crate::local::table::HoldShare;
use crate::local::{EndOutcome, Local};
use crate::pool::Target;
use crate::pool::request::{Answer, BackgroundTask, Failure, Request};
use crate::pool::router::RoutedCall;
use crate::util::clock;
use crate::util::executor::Executor;
use crate::watchdog::{self, WatchedHold};

/// What the guards of one handle share: a lock, and the client to which it belongs.
#[derive(Debug)]
pub(crate) struct LockContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) local: Arc<Local>,
}

/// One guard's share of a hold. Dropped, it releases without waiting.
#[derive(Debug)]
pub(crate) struct HoldHandle {
    context: Arc<LockContext>,
    hold: Arc<Hold>,
    token: u64,
    ended: bool,
}

impl HoldHandle {
    pub(crate) fn new(context: Arc<LockContext>, hold: Arc<Hold>) -> HoldHandle {
        let token = hold.token();
        HoldHandle { context, hold, token, ended: false }
    }

    /// Its fencing token; zero if the kind has none.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn name(&self) -> &str {
        self.context.local.name().given()
    }

    /// What the watchdog needs of it.
    pub(crate) fn watched(&self) -> WatchedHold {
        WatchedHold { local: Arc::clone(&self.context.local), hold: Arc::clone(&self.hold) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.context.local.is_valid(&self.hold, clock::now())
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.is_held() {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold.remaining(clock::now())
    }

    /// Waits until the hold is lost; whether it is.
    pub(crate) fn wait_lost(&self, span: Duration) -> bool {
        let end = clock::now() + span;
        while self.is_held() {
            if end <= clock::now() {
                return false;
            }
            self.hold.wait(end);
        }
        true
    }

    fn lost(&self) -> Error {
        self.named(Error::lost(self.hold.lost_reason(), "the lock was lost"))
    }

    /// The error with the name of the lock.
    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(self.context.local.name().given()))
    }

    /// The moment at which a call that begins now returns.
    pub(crate) fn bound(&self) -> Bound {
        self.context.engine.bound()
    }

    /// Sets the lease anew, unless the one it has lasts longer. Returns within the bound.
    pub(crate) fn extend(&self, lease: Duration, bound: Bound) -> Result<()> {
        self.extend_within(lease, &self.context.engine.limit(bound))
    }

    /// The same for a call with limits of its own.
    pub(crate) fn extend_within(&self, lease: Duration, limit: &Limit<'_>) -> Result<()> {
        self.ask_for(lease, limit).map_err(|error| self.named(error))
    }

    fn ask_for(&self, lease: Duration, limit: &Limit<'_>) -> Result<()> {
        let lease = checked_lease(lease)?;
        self.check()?;
        let answer = self.ask_to_extend(lease, limit);
        let answer = answer.inspect_err(|_| self.hold.may_be_extended(clock::now(), lease))?;
        let sent = answer.sent;
        let extended = watchdog::is_extended(answer);
        if !extended.inspect_err(|_| self.hold.may_be_extended(clock::now(), lease))? {
            self.context.local.lose(&self.hold);
            return Err(self.lost());
        }
        match self.hold.extend(sent, clock::now(), lease) {
            HoldStatus::Held => Ok(()),
            HoldStatus::Over { newly_lost } => {
                self.watched().over(newly_lost, &self.context.engine.router);
                Err(self.lost())
            }
        }
    }

    /// Neither a yes nor a no is believed of a server that was left meanwhile.
    fn ask_to_extend(&self, lease: Duration, limit: &Limit<'_>) -> Result<Answer> {
        let router = &self.context.engine.router;
        for _ in 0..MAX_OUTDATED_ANSWERS {
            let (generation, extension) =
                (router.generation(), watchdog::extension(&self.watched(), lease));
            let answer = router.call(extension, Target::only(self.hold.may_run_late()), limit)?;
            if router.generation() == generation {
                return Ok(answer);
            }
        }
        Err(Error::outdated())
    }

    /// Where what may block is done for its client.
    pub(crate) fn executor(&self) -> Arc<Executor> {
        Arc::clone(&self.context.engine.executor)
    }

    /// Has the hold renewed from now on.
    pub(crate) fn keep_renewed(&self) {
        if self.hold.keep_renewed() {
            self.context.engine.watchdog.forget(&self.hold);
            self.context.engine.watchdog.keep(self.watched());
        }
    }

    /// Whether it is not renewed and would be over before such a lease.
    pub(crate) fn needs_extension(&self, lease: Duration) -> bool {
        let now = clock::now();
        let lasts = now + self.hold.remaining(now);
        !self.hold.is_renewed() && lasts < hold::deadline(now, lease)
    }

    /// Lets it count on without a guard.
    pub(crate) fn detach(mut self) {
        self.ended = true;
        self.context.local.detach(&self.hold);
    }

    /// Ends the guard's share and waits for what the server says.
    pub(crate) fn unlock(self) -> Result<()> {
        let bound = self.bound();
        self.begin_unlock(None).finish(bound)
    }

    /// The end of a share that has no guard any more.
    pub(crate) fn unlock_detached(self, counted: HoldShare, bound: Bound) -> Result<()> {
        self.begin(counted, None).finish(bound)
    }

    /// Ends the guard's share; its release, if it is the last, stands in line: behind that
    /// of `other`, if they belong to one client.
    pub(crate) fn begin_unlock(self, other: Option<&PendingRelease>) -> PendingRelease {
        let same =
            other.filter(|other| Arc::ptr_eq(&other.handle.context.engine, &self.context.engine));
        let near = same.and_then(|other| other.queued.as_ref()).map(|queued| queued.connection);
        self.begin(HoldShare::Guard, near)
    }

    fn begin(mut self, counted: HoldShare, near: Option<ConnectionId>) -> PendingRelease {
        self.ended = true;
        let pool = &self.context.engine.router;
        let mut queued = None;
        let ended = self.context.local.end(&self.hold, counted, clock::now, || {
            let at = self.hold.may_run_late().map_or(Target::prefer(near), Target::Only);
            queued.insert(pool.queue(self.release(), at)).connection
        });
        self.after(&ended);
        PendingRelease { handle: self, ended, queued }
    }

    fn wait_for(&self, pending: RoutedCall, bound: Bound) -> Result<()> {
        let _call = self.context.engine.begin_call();
        let pool = &self.context.engine.router;
        let (connection, outcome) = pool.wait(pending, &self.context.engine.limit(bound));
        match &outcome {
            Err(failure) if !failure.error.is_final() || failure.error.is_closed() => {
                pool.dispatch(pool.submit(
                    self.background().maybe_duplicate(failure.is_written()),
                    Some(connection),
                ));
                return Err(self.named(failure.error.clone()));
            }
            Ok(answer) if answer.may_run_late => {
                let until = answer.sent + self.late_for();
                pool.repeat(self.release(), connection, until);
            }
            _ => {}
        }
        self.context.local.conclude(&self.hold, outcome.map_err(Failure::into_error))
    }

    fn end_quietly(&self) {
        let pool = &self.context.engine.router;
        let mut queued = None;
        let ended = self.context.local.end(&self.hold, HoldShare::Guard, clock::now, || {
            *queued.insert(pool.submit(self.background(), self.hold.may_run_late()))
        });
        self.after(&ended);
        if let Some(connection) = queued {
            pool.dispatch(connection);
        }
    }

    fn release(&self) -> Call {
        let (rules, name) = (self.hold.rules(), self.context.local.name());
        match self.hold.may_run_late() {
            // A late question would stand in the queue, where a release does not look.
            Some(_) if rules.queues_in_redis() => rules.undo(
                name,
                self.hold.owner(),
                Some(self.context.engine.settings.fair_waiter_timeout),
            ),
            _ => self.hold.release_call(name),
        }
    }

    fn background(&self) -> Request {
        let (local, hold) = (Arc::clone(&self.context.local), Arc::clone(&self.hold));
        let task = BackgroundTask::new(
            Some(Arc::new(BackgroundRelease { local, hold })),
            self.hold.server_expiry_bound(),
        );
        let outlives_lease = self.hold.rules().outlives_its_lease();
        let task = task.outlives_lease(outlives_lease).late_effect(self.late_for());
        Request::background(self.release(), task)
    }

    /// For how long a late copy of the question may undo the release. One of another
    /// hold's is its own caller's to see to.
    fn late_for(&self) -> Duration {
        let queued = self
            .hold
            .rules()
            .queues_in_redis()
            .then_some(self.context.engine.settings.fair_waiter_timeout);
        let lasting = self.hold.lease().max(queued.unwrap_or_default());
        self.hold.may_run_late().map_or(Duration::ZERO, |_| lasting)
    }

    /// What is left to do when the hold is over here.
    fn after(&self, ended: &EndOutcome) {
        if matches!(ended, EndOutcome::Queued | EndOutcome::Lost) {
            self.context.engine.watchdog.forget(&self.hold);
        }
        if matches!(ended, EndOutcome::Lost) {
            self.watched().undo(&self.context.engine.router);
        }
    }
}

impl Drop for HoldHandle {
    fn drop(&mut self) {
        if !self.ended {
            self.end_quietly();
        }
    }
}

/// A share that has ended here, and whose release perhaps stands in line.
#[derive(Debug)]
#[must_use = "a release is sent only if somebody waits for it"]
pub(crate) struct PendingRelease {
    handle: HoldHandle,
    ended: EndOutcome,
    queued: Option<RoutedCall>,
}

impl PendingRelease {
    /// Writes the release, if that needs no waiting.
    pub(crate) fn flush(&self) {
        if let Some(queued) = &self.queued {
            self.handle.context.engine.router.flush(queued.connection);
        }
    }

    /// Waits for what the server says. Returns within the bound.
    pub(crate) fn finish(self, bound: Bound) -> Result<()> {
        match (self.ended, self.queued) {
            (EndOutcome::Nested, _) => self.handle.check(),
            (EndOutcome::HandedOff, _) => Ok(()),
            (EndOutcome::Queued, Some(pending)) => self.handle.wait_for(pending, bound),
            (EndOutcome::Lost | EndOutcome::Queued, _) => Err(self.handle.lost()),
            (EndOutcome::NotHeld, _) => Err(self.handle.named(not_held())),
        }
    }
}

pub(crate) fn not_held() -> Error {
    Error::new(ErrorKind::NotHeld, "there is no detached hold of this lock to end")
}

/// A lease that can be asked for; longer ones mean the longest.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    match lease < SHORTEST_LEASE {
        true => Err(Error::configuration("a lease must be at least 10 ms long")),
        false => Ok(lease.min(LONGEST_LEASE)),
    }
}
