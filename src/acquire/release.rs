//! A hold in the hands of a caller, and its end.
//!
//! A release is queued in one step with the end of the hold (`local.rs`). Then the
//! caller waits for the answer (`unlock`), or has it written and goes on; then the
//! answer is read by whoever speaks with the server next (`drop`). What it means is the
//! same for both (`settle.rs`). Without one the release is sent again until the lease is
//! over anyway; until there is one, if others keep alive what the hold took.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::schedule::ANEW;
use crate::acquire::settle::BackgroundRelease;
use crate::cancel::{Bound, Limit};
use crate::command::script::{Call, ConnectionId};
use crate::config::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::local::hold::{self, Hold, HoldStatus};
use crate::local::table::Counted;
use crate::local::{Ended, Local};
use crate::pool::At;
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
    seat: Arc<LockContext>,
    lease: Arc<Hold>,
    token: u64,
    ended: bool,
}

impl HoldHandle {
    pub(crate) fn new(seat: Arc<LockContext>, lease: Arc<Hold>) -> HoldHandle {
        let token = lease.token();
        HoldHandle { seat, lease, token, ended: false }
    }

    /// Its fencing token; zero if the kind has none.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn lease(&self) -> &Hold {
        &self.lease
    }

    pub(crate) fn name(&self) -> &str {
        self.seat.local.name().given()
    }

    /// What the watchdog needs of it.
    pub(crate) fn kept(&self) -> WatchedHold {
        WatchedHold { local: Arc::clone(&self.seat.local), lease: Arc::clone(&self.lease) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.seat.local.is_valid(&self.lease, clock::now())
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.is_held() {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.lease.remaining(clock::now())
    }

    /// Waits until the hold is lost; whether it is.
    pub(crate) fn wait_lost(&self, span: Duration) -> bool {
        let end = clock::now() + span;
        while self.is_held() {
            if end <= clock::now() {
                return false;
            }
            self.lease.wait(end);
        }
        true
    }

    fn lost(&self) -> Error {
        self.named(Error::lost(self.lease.lost_reason(), "the lock was lost"))
    }

    /// The error with the name of the lock.
    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(self.seat.local.name().given()))
    }

    /// The moment at which a call that begins now returns.
    pub(crate) fn bound(&self) -> Bound {
        self.seat.engine.bound()
    }

    /// Sets the lease anew, unless the one it has lasts longer. Returns within the bound.
    pub(crate) fn extend(&self, lease: Duration, bound: Bound) -> Result<()> {
        self.extend_within(lease, &self.seat.engine.limit(bound))
    }

    /// The same for a call with limits of its own.
    pub(crate) fn extend_within(&self, lease: Duration, limit: &Limit<'_>) -> Result<()> {
        self.ask_for(lease, limit).map_err(|error| self.named(error))
    }

    fn ask_for(&self, lease: Duration, limit: &Limit<'_>) -> Result<()> {
        let lease = checked_lease(lease)?;
        self.check()?;
        let answer = self.ask_to_extend(lease, limit);
        let answer = answer.inspect_err(|_| self.lease.may_be_extended(clock::now(), lease))?;
        let sent = answer.sent;
        let extended = watchdog::is_extended(answer);
        if !extended.inspect_err(|_| self.lease.may_be_extended(clock::now(), lease))? {
            self.seat.local.lose(&self.lease);
            return Err(self.lost());
        }
        match self.lease.extend(sent, clock::now(), lease) {
            HoldStatus::Held => Ok(()),
            HoldStatus::Over { noticed } => {
                self.kept().over(noticed, &self.seat.engine.fleet);
                Err(self.lost())
            }
        }
    }

    /// Neither a yes nor a no is believed of a server that was left meanwhile.
    fn ask_to_extend(&self, lease: Duration, limit: &Limit<'_>) -> Result<Answer> {
        let fleet = &self.seat.engine.fleet;
        for _ in 0..ANEW {
            let (moves, extension) = (fleet.moves(), watchdog::extension(&self.kept(), lease));
            let answer = fleet.call(extension, At::behind(self.lease.haunted()), limit)?;
            if fleet.moves() == moves {
                return Ok(answer);
            }
        }
        Err(Error::outdated())
    }

    /// Where what may block is done for its client.
    pub(crate) fn aside(&self) -> Arc<Executor> {
        Arc::clone(&self.seat.engine.aside)
    }

    /// Has the hold renewed from now on.
    pub(crate) fn keep_renewed(&self) {
        if self.lease.keep_renewed() {
            self.seat.engine.watchdog.forget(&self.lease);
            self.seat.engine.watchdog.keep(self.kept());
        }
    }

    /// Whether it is not renewed and would be over before such a lease.
    pub(crate) fn needs(&self, lease: Duration) -> bool {
        let now = clock::now();
        let lasts = now + self.lease.remaining(now);
        !self.lease.is_renewed() && lasts < hold::deadline(now, lease)
    }

    /// Lets it count on without a guard.
    pub(crate) fn leak(mut self) {
        self.ended = true;
        self.seat.local.leak(&self.lease);
    }

    /// Ends the guard's share and waits for what the server says.
    pub(crate) fn unlock(self) -> Result<()> {
        let bound = self.bound();
        self.begin_unlock(None).finish(bound)
    }

    /// The end of a share that has no guard any more.
    pub(crate) fn unlock_leaked(self, counted: Counted, bound: Bound) -> Result<()> {
        self.begin(counted, None).finish(bound)
    }

    /// Ends the guard's share; its release, if it is the last, stands in line: behind that
    /// of `other`, if they belong to one client.
    pub(crate) fn begin_unlock(self, other: Option<&PendingRelease>) -> PendingRelease {
        let same = other.filter(|other| Arc::ptr_eq(&other.hold.seat.engine, &self.seat.engine));
        let near = same.and_then(|other| other.queued.as_ref()).map(|queued| queued.lane);
        self.begin(Counted::Guard, near)
    }

    fn begin(mut self, counted: Counted, near: Option<ConnectionId>) -> PendingRelease {
        self.ended = true;
        let pool = &self.seat.engine.fleet;
        let mut queued = None;
        let ended = self.seat.local.end(&self.lease, counted, clock::now, || {
            let at = self.lease.haunted().map_or(At::near(near), At::Behind);
            queued.insert(pool.queue(self.release(), at)).lane
        });
        self.after(&ended);
        PendingRelease { hold: self, ended, queued }
    }

    fn wait_for(&self, pending: RoutedCall, bound: Bound) -> Result<()> {
        let _call = self.seat.engine.call();
        let pool = &self.seat.engine.fleet;
        let (lane, outcome) = pool.wait(pending, &self.seat.engine.limit(bound));
        match &outcome {
            Err(failure) if !failure.error.is_final() || failure.error.is_closed() => {
                pool.dispatch(pool.owe(self.owed().doubtful(failure.is_written()), Some(lane)));
                return Err(self.named(failure.error.clone()));
            }
            Ok(answer) if answer.haunted => {
                let until = answer.sent + self.haunted_for();
                pool.repeat(self.release(), lane, until);
            }
            _ => {}
        }
        self.seat.local.conclude(&self.lease, outcome.map_err(Failure::into_error))
    }

    fn end_quietly(&self) {
        let pool = &self.seat.engine.fleet;
        let mut queued = None;
        let ended = self.seat.local.end(&self.lease, Counted::Guard, clock::now, || {
            *queued.insert(pool.owe(self.owed(), self.lease.haunted()))
        });
        self.after(&ended);
        if let Some(lane) = queued {
            pool.dispatch(lane);
        }
    }

    fn release(&self) -> Call {
        let (rules, name) = (self.lease.rules(), self.seat.local.name());
        match self.lease.haunted() {
            // A late question would stand in the queue, where a release does not look.
            Some(_) if rules.queues() => {
                rules.undo(name, self.lease.owner(), Some(self.seat.engine.fair_wait))
            }
            _ => self.lease.release_call(name),
        }
    }

    fn owed(&self) -> Request {
        let (local, hold) = (Arc::clone(&self.seat.local), Arc::clone(&self.lease));
        let debt = BackgroundTask::new(
            Some(Arc::new(BackgroundRelease { local, hold })),
            self.lease.reach(),
        );
        let lives_on = self.lease.rules().outlives_its_lease();
        let debt = debt.lives_on(lives_on).haunted(self.haunted_for());
        Request::owed(self.release(), debt)
    }

    /// For how long a late copy of the question may undo the release. One of another
    /// hold's is its own caller's to see to.
    fn haunted_for(&self) -> Duration {
        let queued = self.lease.rules().queues().then_some(self.seat.engine.fair_wait);
        let lasting = self.lease.term().max(queued.unwrap_or_default());
        self.lease.haunted().map_or(Duration::ZERO, |_| lasting)
    }

    /// What is left to do when the hold is over here.
    fn after(&self, ended: &Ended) {
        if matches!(ended, Ended::Queued | Ended::Lost) {
            self.seat.engine.watchdog.forget(&self.lease);
        }
        if matches!(ended, Ended::Lost) {
            self.kept().undo(&self.seat.engine.fleet);
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
    hold: HoldHandle,
    ended: Ended,
    queued: Option<RoutedCall>,
}

impl PendingRelease {
    /// Writes the release, if that needs no waiting.
    pub(crate) fn post(&self) {
        if let Some(queued) = &self.queued {
            self.hold.seat.engine.fleet.post(queued.lane);
        }
    }

    /// Waits for what the server says. Returns within the bound.
    pub(crate) fn finish(self, bound: Bound) -> Result<()> {
        match (self.ended, self.queued) {
            (Ended::Nested, _) => self.hold.check(),
            (Ended::Passed, _) => Ok(()),
            (Ended::Queued, Some(pending)) => self.hold.wait_for(pending, bound),
            (Ended::Lost | Ended::Queued, _) => Err(self.hold.lost()),
            (Ended::NotHeld, _) => Err(self.hold.named(not_held())),
        }
    }
}

pub(crate) fn not_held() -> Error {
    Error::new(ErrorKind::NotHeld, "there is no leaked hold of this lock to end")
}

/// A lease that can be asked for; longer ones mean the longest.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    match lease < SHORTEST_LEASE {
        true => Err(Error::configuration("a lease must be at least 10 ms long")),
        false => Ok(lease.min(LONGEST_LEASE)),
    }
}
