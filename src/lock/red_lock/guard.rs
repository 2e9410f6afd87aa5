//! The share of one guard in a hold on a majority of servers.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{HoldHandle, REPLY_GRACE, checked_lease};
use crate::error::{Error, Result};
use crate::events::{Closure, EventSink};
use crate::lock::multi_guard::GuardSet;
use crate::lock::red_lock::RedLock;
use crate::lock::red_lock::ballot::{Ballot, BallotLimits};
use crate::lock::red_lock::local::RedLocal;
use crate::lock::red_lock::quorum::{self, QuorumHold};
use crate::util::clock::{self, Moment, Patience};
use crate::util::sync::Parker;

/// One guard's share of a hold. The drop of the last share releases without waiting.
pub(super) struct RedHoldHandle {
    pub(super) name: Arc<str>,
    pub(super) local: Arc<RedLocal>,
    pub(super) hold: Arc<QuorumHold>,
    pub(super) response_timeout: Duration,
    /// The events of one of the clients.
    pub(super) events: EventSink,
    pub(super) ended: bool,
}

impl RedHoldHandle {
    /// Applies `act` to all holds at the same time.
    ///
    /// Blocks until it has succeeded for a quorum, until `end`, or until `check` fails.
    fn with_all(
        &self,
        holds: Vec<Arc<HoldHandle>>,
        (end, check): (Moment, impl Fn() -> Result<()>),
        act: impl Fn(Arc<HoldHandle>) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let quorum = self.hold.quorum();
        if holds.len() < quorum {
            return self.check();
        }
        let timeout = self.response_timeout.min(clock::now().until(end));
        let limits = BallotLimits::of_query(timeout);
        let ballot = Ballot::new(holds.len(), quorum, limits, &Parker::mine());
        for hold in holds {
            let (act, executor) = (act.clone(), hold.executor());
            ballot.ask(&executor, move || act(hold).map(Some));
        }
        ballot.decide_while(check).map(drop).map_err(|error| self.named(error))
    }

    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.name))
    }

    /// Starts the renewal or the extension that a nested guard needs.
    pub(super) fn re_enter(&self, lock: &RedLock, patience: Patience) -> Result<()> {
        let end = patience.deadline() + REPLY_GRACE;
        match lock.lease {
            None => self.hold.keep_renewed(),
            Some(lease) if self.hold.needs_extension(lease) => {
                let parker = Parker::mine();
                let _watching = lock.watch(&parker);
                return self.extend_while(lease, (end, || lock.check_not_ended()));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn extend_while(
        &self,
        lease: Duration,
        limits: (Moment, impl Fn() -> Result<()>),
    ) -> Result<()> {
        let lease = checked_lease(lease).map_err(|error| self.named(error))?;
        self.hold.check_process().map_err(|error| self.named(error))?;
        self.check()?;
        let extend = move |hold: Arc<HoldHandle>| hold.extend(lease, hold.response_limit());
        self.with_all(self.hold.all_to_extend(lease), limits, extend)?;
        self.check()
    }
}

impl GuardSet for RedHoldHandle {
    fn check(&self) -> Result<()> {
        self.hold.check().map_err(|error| self.named(error))
    }

    fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    fn watch(&self, parker: &Arc<Parker>) {
        self.hold.watch(parker);
    }

    fn on_lost(&self, call: Closure) {
        if self.hold.check_process().is_err() {
            return;
        }
        if let Some(call) = self.events.loss_call(&self.name, call) {
            self.hold.on_lost(call);
        }
    }

    fn extend(&self, lease: Duration) -> Result<()> {
        self.extend_while(lease, (Moment::END, || Ok(())))
    }

    fn detach(mut self: Box<Self>) {
        self.ended = true;
        self.local.detach(&self.hold);
    }

    fn unlock(mut self: Box<Self>) -> Result<()> {
        self.ended = true;
        self.hold.check_process().map_err(|error| self.named(error))?;
        let valid = self.check();
        if !self.local.end(&self.hold) {
            return valid;
        }
        let released = valid.and_then(|()| {
            let unlock = |hold| quorum::unshared(hold).unlock();
            self.with_all(self.hold.take(), (Moment::END, || Ok(())), unlock)
        });
        drop(self.hold.take());
        self.local.remove(&self.hold);
        released
    }
}

impl Drop for RedHoldHandle {
    fn drop(&mut self) {
        let ends = !self.ended && self.hold.check_process().is_ok();
        if ends && self.local.end(&self.hold) {
            // Reports a loss that was not noticed yet.
            self.hold.is_valid();
            drop(self.hold.take());
            self.local.remove(&self.hold);
        }
    }
}
