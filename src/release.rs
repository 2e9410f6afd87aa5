//! A hold in the hands of a caller, and its end.
//!
//! A release is queued in one step with the end of the hold (`local.rs`). Then the
//! caller waits for the answer (`unlock`), or has it written and goes on; then the
//! answer is read by whoever speaks with the server next (`drop`). What the answer means is the same for both:
//! * released: good;
//! * "not held", and an earlier copy of the release may have run: that one released
//!   it, if the deadline still lay ahead; else nobody knows, and it counts as lost;
//! * "not held" without such doubt: somebody took the lock away; it was lost;
//! * no answer: it is sent again until the lease is over anyway.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::config::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, LostReason, Released, Sink};
use crate::lease::{Lease, Look};
use crate::local::{Counted, Ended, Local};
use crate::pool::{Pending, Pool};
use crate::protocol::{self, Freed, Rules};
use crate::request::{Answer, Failure, Settle};
use crate::script::{Call, LaneId};
use crate::thread;
use crate::time::{self, Moment};
use crate::watchdog::{self, Kept};

/// One guard's share of a hold. Dropped, it releases without waiting.
#[derive(Debug)]
pub(crate) struct Hold {
    engine: Arc<Engine>,
    local: Arc<Local>,
    lease: Arc<Lease>,
    rules: &'static dyn Rules,
    ended: bool,
}

impl Hold {
    pub(crate) fn new(
        engine: Arc<Engine>,
        local: Arc<Local>,
        lease: Arc<Lease>,
        rules: &'static dyn Rules,
    ) -> Hold {
        Hold { engine, local, lease, rules, ended: false }
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn name(&self) -> &str {
        self.local.name().given()
    }

    /// What the watchdog needs of it.
    pub(crate) fn kept(&self) -> Kept {
        let (local, lease) = (Arc::clone(&self.local), Arc::clone(&self.lease));
        Kept { local, lease, rules: self.rules }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.local.is_valid(&self.lease, time::now())
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.is_held() {
            true => Ok(()),
            false => Err(lost()),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.lease.remaining(time::now())
    }

    /// Waits until the hold is lost; whether it is.
    pub(crate) fn wait_lost(&self, span: Duration) -> bool {
        let end = time::now() + span;
        while self.is_held() {
            if end <= time::now() {
                return false;
            }
            self.lease.wait(end);
        }
        true
    }

    /// Sets the lease anew, unless the one it has lasts longer.
    pub(crate) fn extend(&self, lease: Duration) -> Result<()> {
        let lease = checked_lease(lease)?;
        self.check()?;
        let extension = watchdog::extension(&self.kept(), lease);
        let answer = self.engine.pool.call(extension, self.lease.haunted());
        let answer = answer.inspect_err(|_| self.lease.may_be_extended(time::now(), lease))?;
        let sent = answer.sent;
        if !watchdog::is_extended(answer)? {
            self.local.lose(&self.lease);
            return Err(lost());
        }
        match self.lease.extend(sent, time::now(), lease) {
            Look::Held => Ok(()),
            Look::Over { noticed } => {
                self.kept().over(noticed, &self.engine.pool);
                Err(lost())
            }
        }
    }

    /// Lets it count on without a guard.
    pub(crate) fn leak(mut self) {
        self.ended = true;
        self.local.leak(&self.lease);
    }

    /// Ends the guard's share and waits for what the server says.
    pub(crate) fn unlock(mut self) -> Result<()> {
        self.ended = true;
        self.end_and_wait(Counted::Guard)
    }

    /// The end of a share that has no guard any more.
    pub(crate) fn unlock_leaked(mut self, counted: Counted) -> Result<()> {
        self.ended = true;
        self.end_and_wait(counted)
    }

    fn end_and_wait(&self, counted: Counted) -> Result<()> {
        let (now, pool) = (time::now(), &self.engine.pool);
        let deadline = now + self.lease.remaining(now);
        let mut queued = None;
        let ended = self.local.end(&self.lease, counted, now, || {
            let settlement = self.settlement(deadline);
            let pending = pool.queue(settlement.clean_up.call.clone(), settlement.lane);
            queued.insert((pending, settlement)).0.lane
        });
        self.after(&ended);
        match (ended, queued) {
            (Ended::Nested { valid: true } | Ended::Passed, _) => Ok(()),
            (Ended::Queued, Some((pending, settlement))) => self.wait_for(pending, settlement),
            (Ended::Nested { valid: false } | Ended::Lost | Ended::Queued, _) => Err(lost()),
            (Ended::NotHeld, _) => Err(not_held()),
        }
    }

    fn wait_for(&self, pending: Pending, settlement: Settlement) -> Result<()> {
        let lane = pending.lane;
        match self.engine.pool.wait(pending, Moment::END) {
            Err(failure) if !failure.error.is_final() => {
                let doubtful = failure.written;
                self.owe(Settlement { lane: Some(lane), doubtful, ..settlement });
                Err(failure.error)
            }
            outcome => settlement.conclude(outcome.map_err(Failure::into_error)),
        }
    }

    fn end_quietly(&self) {
        let (now, pool) = (time::now(), &self.engine.pool);
        let deadline = now + self.lease.remaining(now);
        let mut queued = None;
        let ended = self.local.end(&self.lease, Counted::Guard, now, || {
            *queued.insert(self.queue_owed(self.settlement(deadline)))
        });
        self.after(&ended);
        if let Some(lane) = queued {
            pool.dispatch(lane);
        }
    }

    fn owe(&self, settlement: Settlement) {
        let lane = self.queue_owed(settlement);
        self.engine.pool.dispatch(lane);
    }

    fn queue_owed(&self, settlement: Settlement) -> LaneId {
        let (call, lane) = (settlement.clean_up.call.clone(), settlement.lane);
        self.engine.pool.owe(call, lane, self.lease.reach(), Arc::new(settlement))
    }

    /// What is left to do when the hold is over here.
    fn after(&self, ended: &Ended) {
        if matches!(ended, Ended::Queued | Ended::Lost) {
            self.engine.watchdog.forget(&self.lease);
        }
        if matches!(ended, Ended::Lost) {
            self.kept().undo(&self.engine.pool);
        }
    }

    fn settlement(&self, deadline: Moment) -> Settlement {
        Settlement {
            local: Arc::clone(&self.local),
            lease: Arc::clone(&self.lease),
            clean_up: CleanUp {
                pool: Arc::downgrade(&self.engine.pool),
                call: self.rules.release(self.local.name(), self.lease.owner()),
                lasting: self.lease.term(),
                every: self.engine.poll_bound,
            },
            lane: self.lease.haunted(),
            deadline,
            doubtful: false,
            events: self.engine.events.clone(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.ended {
            self.end_quietly();
        }
    }
}

fn lost() -> Error {
    Error::lost("the lease was lost")
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

/// What is done with the answer to a release.
struct Settlement {
    local: Arc<Local>,
    lease: Arc<Lease>,
    clean_up: CleanUp,
    lane: Option<LaneId>,
    /// That of the hold when it was released.
    deadline: Moment,
    /// A copy of the release was sent before, and its answer is not known.
    doubtful: bool,
    events: Sink,
}

impl Settlement {
    fn conclude(&self, outcome: Result<Answer>) -> Result<()> {
        self.local.settled(self.lease.hold());
        self.lease.gone();
        let told = outcome.and_then(|answer| self.read(answer));
        self.tell(told.clone());
        told.map(drop)
    }

    /// How many subscribers the release was told to, if it was.
    fn read(&self, answer: Answer) -> Result<Option<u64>> {
        let doubtful = answer.doubtful || self.doubtful;
        // A late copy of a question of another hold is its own caller's to see to.
        if self.lease.haunted().is_some() {
            self.clean_up.repeat_if_haunted(&answer);
        }
        match protocol::freed(answer.reply)? {
            Freed::Told(told) => {
                self.local.told_to(told);
                Ok(Some(told))
            }
            Freed::NotHeld if doubtful && time::now() < self.deadline => Ok(None),
            Freed::NotHeld => {
                self.local.tell_lost(1, LostReason::Gone);
                Err(Error::lost("the lock was not held any more when it was released"))
            }
        }
    }

    fn tell(&self, told: Result<Option<u64>>) {
        if let Err(error) = &told {
            let name = self.local.name().given();
            thread::say(|| log::warn!("the release of the lock {name:?} failed: {error}"));
        }
        let name = || Arc::clone(self.local.name().given());
        self.events.tell(|| match told {
            Ok(heard_by) => Event::Released(Released { name: name(), heard_by, error: None }),
            Err(error) => {
                Event::Released(Released { name: name(), heard_by: None, error: Some(error) })
            }
        });
    }
}

impl Settle for Settlement {
    fn settle(&self, outcome: Result<Answer>) {
        // Nobody waits for it; the log and the events have been told.
        let _ = self.conclude(outcome);
    }
}

/// The release of a hold that may never have been: of a caller that left with a
/// question open.
pub(crate) struct CleanUp {
    pub(crate) pool: Weak<Pool>,
    pub(crate) call: Call,
    pub(crate) lasting: Duration,
    pub(crate) every: Duration,
}

impl CleanUp {
    /// A late copy of the question may still run after the release: sends that again and
    /// again while it matters.
    fn repeat_if_haunted(&self, answer: &Answer) {
        if let (true, Some(pool)) = (answer.haunted, self.pool.upgrade()) {
            let until = answer.sent + self.lasting;
            pool.repeat(self.call.clone(), answer.lane, until, self.every);
        }
    }
}

impl Settle for CleanUp {
    fn settle(&self, outcome: Result<Answer>) {
        match outcome {
            Ok(answer) => self.repeat_if_haunted(&answer),
            Err(error) => {
                thread::say(|| log::warn!("a clean-up failed; the lease will end it: {error}"));
            }
        }
    }
}
