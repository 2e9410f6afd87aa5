//! One call of a verb that waits for a count.

use std::sync::Arc;

use crate::acquire::{LockContext, REPLY_GRACE};
use crate::cancel::{CancelToken, Limit};
use crate::error::{Error, Result};
use crate::events::{Event, Kind, Waited};
use crate::local::hold::HoldTerms;
use crate::stats::{CallRecord, Series};
use crate::util::clock::{self, Moment, Patience};

/// One call of a verb that waits for a count: its subject and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountCall<'a> {
    pub(crate) context: &'a Arc<LockContext>,
    pub(crate) kind: Kind,
    /// The event listener and the label of the handle.
    pub(crate) terms: &'a HoldTerms,
    pub(crate) cancel: Option<&'a CancelToken>,
    pub(crate) patience: Patience,
    pub(crate) record: &'a CallRecord<'a>,
}

impl CountCall<'_> {
    /// Returns the limit of the wait for a reply, as that of an acquire.
    pub(super) fn limit(&self) -> Limit<'_> {
        let engine = &self.context.engine;
        let end = engine.response_limit().end();
        Limit::at(end.min(self.patience.deadline() + REPLY_GRACE))
            .or_closed(&engine.closing)
            .or_cancelled(self.cancel)
    }

    /// Returns whether the call waits.
    pub(super) fn waits(&self) -> bool {
        self.patience != Patience::None
    }

    /// Returns an error if the client is closed or the call is cancelled.
    pub(super) fn check_not_ended(&self) -> Result<()> {
        self.context.engine.check_open()?;
        self.cancel.map_or(Ok(()), CancelToken::check)
    }

    /// Returns the statistics for the kind and the label of the handle.
    pub(super) fn series(&self) -> Series<'_> {
        let stats = self.context.engine.events.stats();
        stats.series(|| self.terms.series_key(self.kind))
    }

    pub(super) fn with_name(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(self.context.local.name().given()))
    }

    /// Emits the event of a call that has waited since `started`.
    pub(super) fn report_waited(&self, started: Moment, acquired: bool) {
        let (kind, waited) = (self.kind, started.until(clock::now()));
        self.context.engine.events.emit_with(self.terms.listener(), || {
            let (at, name) = (clock::wall_time(), Arc::clone(self.context.local.name().given()));
            Event::Waited(Waited { at, name, kind, hold: None, waited, acquired })
        });
    }
}
