//! The calls of a handle that semaphores and latches share.

use crate::acquire::HoldHandle;
use crate::count::{CountCall, CountChange, CountRequest, read_count};
use crate::error::Result;
use crate::kind::rules::{KindRules, PermitRequest};
use crate::lock::handle::SharedHandle;
use crate::stats::CallRecord;
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::util::clock::Patience;

impl SharedHandle {
    /// Takes permits; returns `None` if the patience ended, as a verb of a lock does.
    pub(super) fn take_permits(
        &self,
        rules: &'static dyn KindRules,
        permits: PermitRequest,
        patience: Patience,
    ) -> Result<Option<HoldHandle>> {
        self.check_max_hold()?;
        self.acquire_owned(rules, Some(permits), patience)
    }

    /// Makes a change, and returns the number in the reply. One round trip.
    pub(super) fn change(&self, change: CountChange) -> Result<i64> {
        self.run(self.response_limit(), |context, limit| {
            CountRequest::new(context, change).run(limit)
        })
    }

    /// Returns the count in Redis, 0 without a key. One round trip.
    pub(super) fn count(&self) -> Result<i64> {
        self.run(self.response_limit(), |context, limit| {
            let get = Call::on_key(b"GET", context.local.name().key().as_bytes(), &[]);
            read_count(context.engine.router.call(get, Target::Any, limit)?.value)
        })
    }

    /// Runs a call that waits, and counts its outcome.
    pub(super) fn wait(
        &self,
        patience: Patience,
        wait: impl FnOnce(&CountCall<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let clients = [self.series()?];
        let record = CallRecord::new(&clients);
        let call = CountCall {
            context: self.context()?,
            kind: self.kind(),
            settings: self.settings(),
            cancel: self.cancel(),
            patience,
            record: &record,
        };
        let outcome = wait(&call).map(|is_met| is_met.then_some(()));
        Ok(record.end(patience, outcome)?.is_some())
    }
}
