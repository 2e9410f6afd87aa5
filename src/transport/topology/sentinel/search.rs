//! One search for the master: the questions to the sentinels, and the servers that they name.

use std::sync::Arc;

use super::{NamedMaster, Sentinels};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::connection::{Address, Timeouts};

/// One search for the master.
pub(super) struct Search<'a, F> {
    sentinels: &'a Sentinels,
    open: F,
    attempts: Attempts,
    /// The outdated servers that sentinels have named.
    outdated: Vec<NamedMaster>,
}

impl<'a, T, F: FnMut(&Address) -> Result<T>> Search<'a, F> {
    pub(super) fn new(sentinels: &'a Sentinels, open: F) -> Search<'a, F> {
        Search { sentinels, open, attempts: Attempts::default(), outdated: Vec::new() }
    }

    /// Asks one sentinel and tries the server that it names.
    ///
    /// Returns `None` if that server is outdated, cannot be reached or is no master, and an error
    /// only if the sentinel fails.
    pub(super) fn ask(
        &mut self,
        sentinel: &Address,
        timeouts: Timeouts,
    ) -> Result<Option<(T, u64)>> {
        let named = self.sentinels.ask(sentinel, timeouts)?;
        if self.sentinels.is_outdated(&named) {
            self.outdated.push(named);
            return Ok(None);
        }
        let opened = self.attempts.open(&named, &mut self.open);
        Ok(opened.and_then(|opened| Some((opened, self.sentinels.confirm(&named)?))))
    }

    /// Keeps an error of a sentinel for the report.
    pub(super) fn record(&mut self, error: Error) {
        self.attempts.record(error);
    }

    /// Tries the outdated servers, newest first, if most of the sentinels named outdated servers.
    pub(super) fn accept_outdated(mut self, sentinels: usize) -> Result<(T, u64)> {
        if self.outdated.len() > sentinels / 2 {
            self.outdated.sort_by_key(|named| std::cmp::Reverse(named.epoch));
            for named in &self.outdated {
                if let Some(opened) = self.attempts.open(named, &mut self.open) {
                    return Ok((opened, self.sentinels.confirm_outdated(named)));
                }
            }
        }
        Err(self.attempts.error())
    }
}

/// The servers tried in one search, and the error to report.
#[derive(Debug, Default)]
struct Attempts {
    addresses: Vec<Arc<str>>,
    error: Option<Error>,
}

impl Attempts {
    /// Connects to a named server, unless this search has tried its address before.
    fn open<T>(
        &mut self,
        named: &NamedMaster,
        open: &mut impl FnMut(&Address) -> Result<T>,
    ) -> Option<T> {
        if self.addresses.contains(named.address.shown()) {
            return None;
        }
        self.addresses.push(Arc::clone(named.address.shown()));
        open(&named.address).map_err(|error| self.record(error)).ok()
    }

    /// Keeps the first transient error, or else the last error.
    fn record(&mut self, error: Error) {
        if !self.error.as_ref().is_some_and(Error::is_transient) {
            self.error = Some(error);
        }
    }

    fn error(self) -> Error {
        self.error.unwrap_or_else(|| {
            Error::new(ErrorKind::Connection, "no sentinel names a master that can be reached")
        })
    }
}
