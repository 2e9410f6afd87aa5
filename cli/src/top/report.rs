//! [`Report`]: the outcome of a look, from the thread that looks.

use std::time::{Duration, Instant};

use super::sight::Sight;
use crate::observe::event::LockEvent;

/// The outcome of a look.
#[derive(Debug)]
pub(crate) enum Report {
    /// Some locks were found, or looked at by name.
    Found(Finding),
    /// A search has seen all locks.
    Searched {
        begun: Instant,
        /// The time of its looks, without the pauses.
        took: Duration,
        /// The time until the next search, pauses included.
        every: Duration,
    },
    /// Events of the followed lock.
    Happened(Vec<LockEvent>),
    /// No look succeeds: the last error.
    Failed(String),
}

/// The locks that one look found.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
    pub(crate) sights: Vec<Sight>,
    /// The error of a server that does not answer, while others do.
    pub(crate) missing: Option<String>,
}
