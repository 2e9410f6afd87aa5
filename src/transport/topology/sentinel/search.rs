//! One search for the master: the questions to the sentinels, and the servers that they name.

use std::sync::Arc;

use super::{NamedMaster, Sentinels};
use crate::error::{Error, Result};
use crate::transport::connection::{Address, Timeouts};

/// One search for the master.
pub(super) struct Search<'a, F> {
    sentinels: &'a Sentinels,
    open: F,
    /// The servers that were tried.
    tried: Vec<Arc<str>>,
    /// The outdated servers that sentinels have named.
    outdated: Vec<NamedMaster>,
    /// The error to report.
    error: Option<Error>,
}

impl<'a, T, F: FnMut(&Address) -> Result<T>> Search<'a, F> {
    pub(super) fn new(sentinels: &'a Sentinels, open: F) -> Search<'a, F> {
        Search { sentinels, open, tried: Vec::new(), outdated: Vec::new(), error: None }
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
        if !self.sentinels.known.lock().accepts(&named) {
            self.outdated.push(named);
            return Ok(None);
        }
        let opened = self.try_open(&named);
        Ok(opened.and_then(|opened| Some((opened, self.sentinels.confirm(&named)?))))
    }

    /// Keeps the first transient error for the report, or else the last error.
    pub(super) fn record(&mut self, error: Error) {
        if !self.error.as_ref().is_some_and(Error::is_transient) {
            self.error = Some(error);
        }
    }

    /// Tries the outdated servers, newest first, if most of the sentinels named outdated servers.
    pub(super) fn accept_outdated(mut self, sentinels: usize) -> Result<(T, u64)> {
        if self.outdated.len() > sentinels / 2 {
            self.outdated.sort_by_key(|named| std::cmp::Reverse(named.epoch));
            for named in std::mem::take(&mut self.outdated) {
                if let Some(opened) = self.try_open(&named) {
                    return Ok((opened, self.sentinels.confirm_outdated(&named)));
                }
            }
        }
        let none = || Error::connection("no sentinel names a master that can be reached");
        Err(self.error.unwrap_or_else(none))
    }

    /// Connects to a named server, unless this search has tried its address before.
    fn try_open(&mut self, named: &NamedMaster) -> Option<T> {
        if self.tried.contains(named.address.shown()) {
            return None;
        }
        self.tried.push(Arc::clone(named.address.shown()));
        match (self.open)(&named.address) {
            Ok(opened) => Some(opened),
            Err(error) => {
                self.record(error);
                None
            }
        }
    }
}
