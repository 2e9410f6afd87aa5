//! Public handles of semaphores, latches, and work that is done once.
//!
//! This file has what they share: the checks of numbers and the calls of a handle. Imports `lock`
//! and below.

pub(crate) mod latch;
pub(crate) mod once;
pub(crate) mod once_run;
pub(crate) mod permit;
pub(crate) mod plain;
pub(crate) mod semaphore;

use crate::count::{CountCall, CountChange, CountRequest, read_count};
use crate::error::{Error, Result};
use crate::lock::handle::SharedHandle;
use crate::stats::CallRecord;
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::util::clock::Patience;

/// The largest number of permits that one call takes: a script must not block a server for more
/// than about a millisecond.
const MOST_PERMITS: u32 = 1000;

/// Returns an error if one call cannot take that many permits.
fn check_permits(permits: u32) -> Result<()> {
    check_positive(permits.into())?;
    if permits > MOST_PERMITS {
        Err(Error::configuration(format!("one call takes at most {MOST_PERMITS} permits")))
    } else {
        Ok(())
    }
}

/// Returns an error for 0 permits.
fn check_positive(permits: u64) -> Result<()> {
    match permits {
        0 => Err(Error::configuration("the number of permits must not be 0")),
        _ => Ok(()),
    }
}

/// The calls that change or read a count.
impl SharedHandle {
    /// Makes a change, and returns the number in the reply. One round trip.
    fn change(&self, change: CountChange) -> Result<i64> {
        self.run(self.response_limit(), |context, limit| {
            CountRequest::new(context, change).run(limit)
        })
    }

    /// Returns the count in Redis, 0 without a key. One round trip.
    fn count(&self) -> Result<i64> {
        self.run(self.response_limit(), |context, limit| {
            let get = Call::on_key(b"GET", context.local.name().key().as_bytes(), &[]);
            read_count(context.engine.router.call(get, Target::Any, limit)?.value)
        })
    }

    /// Runs a call that waits, and counts its outcome.
    fn wait(
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
