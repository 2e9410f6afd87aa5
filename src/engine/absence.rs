//! Holds of this process that the answer to a question does not show.
//!
//! A query tells that a lock is free, or who has it. If it was sent after the grant of a hold, and
//! the servers have not changed since, a hold that the answer does not show is lost. It ends at
//! once: the watchdog would find the loss only at its next renewal.

use std::sync::Arc;

use super::Engine;
use crate::local::hold::Hold;
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::watchdog::WatchedHold;

/// The moment before a question was sent, and the servers that it was sent to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at: Moment,
    pub(crate) generation: Generation,
}

impl Engine {
    /// Returns the present moment. Called before a question is sent.
    pub(crate) fn asks_now(&self) -> Asked {
        Asked { at: clock::now(), generation: self.router.generation() }
    }

    /// Ends the holds of the lock with this key that an answer does not show, and gives back what
    /// the server has of them.
    pub(crate) fn lose_absent(&self, asked: Asked, key: &str, is_absent: impl Fn(&Hold) -> bool) {
        if self.router.generation() != asked.generation {
            return;
        }
        if let Some(local) = self.known_local(key) {
            for hold in local.lose_absent(asked.at, is_absent) {
                let lost = WatchedHold { local: Arc::clone(&local), hold };
                lost.release_at_server(&self.router);
            }
        }
    }
}
