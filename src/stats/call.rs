//! The outcome and the wait of one call of an acquiring verb.

use std::cell::Cell;
use std::time::Duration;

use crate::error::Result;
use crate::stats::Series;
use crate::util::clock::{self, Moment, Patience};

/// Counts one call of an acquiring verb, once for each client of its locks.
///
/// The drop ends the wait of the call.
#[derive(Debug)]
pub(crate) struct CallRecord<'a> {
    clients: &'a [Series<'a>],
    /// The beginning of a call that waits.
    waits_since: Cell<Option<Moment>>,
}

impl<'a> CallRecord<'a> {
    pub(crate) fn new(clients: &'a [Series<'a>]) -> CallRecord<'a> {
        CallRecord { clients, waits_since: Cell::new(None) }
    }

    /// Counts the call, which began at `started`, as a call that waits. Counts only once.
    pub(crate) fn waits(&self, started: Moment) {
        if self.waits_since.get().is_none() {
            self.waits_since.set(Some(started));
            self.clients.iter().for_each(Series::waits);
        }
    }

    /// Returns the time since the beginning of a call that waits; `None` for other calls.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.waits_since.get().map(|started| started.until(clock::now()))
    }

    /// Counts the outcome of the call, and returns it.
    pub(crate) fn end<T>(
        &self,
        patience: Patience,
        outcome: Result<Option<T>>,
    ) -> Result<Option<T>> {
        for client in self.clients {
            match &outcome {
                Ok(None) if patience == Patience::None => client.refused(),
                Ok(None) => client.timed_out(),
                Err(error) if error.is_cancelled() => client.cancelled(),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        outcome
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        if let Some(waited) = self.waited() {
            self.clients.iter().for_each(|client| client.waited(waited));
        }
    }
}
