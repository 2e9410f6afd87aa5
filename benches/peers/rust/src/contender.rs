//! What the commands need of a lock library.

use std::any::Any;
use std::error::Error;
use std::time::Duration;

use crate::stamp::Held;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// A library under test: one whose callers block, or one with an event loop of its own.
pub(crate) enum Contender {
    Blocking(Box<dyn Blocking>),
    Tasks(crate::rslock::Tasks),
}

impl Contender {
    pub(crate) fn version(&self) -> &str {
        match self {
            Contender::Blocking(library) => library.version(),
            Contender::Tasks(_) => crate::rslock::VERSION,
        }
    }

    pub(crate) fn waits(&self) -> bool {
        match self {
            Contender::Blocking(library) => library.waits(),
            Contender::Tasks(_) => true,
        }
    }
}

pub(crate) trait Blocking: Send + Sync {
    fn version(&self) -> &str;

    /// Whether its workers wait for a lock that is taken.
    fn waits(&self) -> bool {
        true
    }

    /// One client more, of the same kind.
    fn another(&self) -> Result<Box<dyn Blocking>>;

    /// What a thread uses to take and release the lock `name` again and again.
    fn worker(&self, name: &str) -> Result<Box<dyn Worker>>;

    /// What holds `name` on a lease that is renewed by the library.
    fn keeper(&self, _lease: Duration) -> Option<Result<Box<dyn Keeper>>> {
        None
    }

    /// An idle handle, if the library has such a thing.
    fn handle(&self, _name: String) -> Option<Box<dyn Any>> {
        None
    }
}

pub(crate) trait Worker: Send {
    /// Takes the lock however long that lasts, and keeps it until `until` returns.
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result;

    /// Takes the lock, stamps, releases it.
    fn pair(&mut self, held: &mut Held) -> Result {
        self.hold(&mut || held.stamp())
    }

    /// Takes the lock, calls `body` with what makes a pair within it, and releases it.
    /// `None` if the library has no re-entry.
    fn nest(
        &mut self,
        _body: &mut dyn FnMut(&mut dyn FnMut() -> Result) -> Result,
    ) -> Option<Result> {
        None
    }
}

/// Holds many locks at once.
pub(crate) trait Keeper: Send {
    fn take(&mut self, name: &str) -> Result;

    /// Releases all; how many were lost.
    fn drop_all(self: Box<Self>) -> usize;
}
