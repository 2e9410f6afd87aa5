//! The interface of a lock library to the commands.

use std::any::Any;
use std::error::Error;
use std::time::Duration;

use crate::stamp::Held;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// The number of permits of each semaphore.
pub(crate) const PERMITS: u32 = 4;

/// A measured library, whose callers block or whose workers are tasks of an event loop.
pub(crate) enum Contender {
    Blocking(Box<dyn Blocking>),
    #[cfg(feature = "peers")]
    Tasks(crate::rslock::Tasks),
}

impl Contender {
    pub(crate) fn version(&self) -> &str {
        match self {
            Contender::Blocking(library) => library.version(),
            #[cfg(feature = "peers")]
            Contender::Tasks(_) => crate::rslock::VERSION,
        }
    }

    pub(crate) fn waits(&self) -> bool {
        match self {
            Contender::Blocking(library) => library.waits(),
            #[cfg(feature = "peers")]
            Contender::Tasks(_) => true,
        }
    }
}

pub(crate) trait Blocking: Send + Sync {
    fn version(&self) -> &str;

    /// Whether workers wait for a held lock.
    fn waits(&self) -> bool {
        true
    }

    /// Returns another client of the same library and server.
    fn another(&self) -> Result<Box<dyn Blocking>>;

    /// Returns the object by which a thread acquires and releases the lock `name` repeatedly.
    fn worker(&self, name: &str) -> Result<Box<dyn Worker>>;

    /// Returns a holder whose leases the library renews, if the library renews leases.
    fn holder(&self, _lease: Duration) -> Option<Result<Box<dyn Holder>>> {
        None
    }

    /// Returns an idle lock handle, if the library has handles.
    fn handle(&self, _name: String) -> Option<Box<dyn Any>> {
        None
    }
}

pub(crate) trait Worker: Send {
    /// Acquires the lock without a deadline, and holds it until `until` returns.
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result;

    /// Acquires the lock, records the moments in `held`, and releases the lock.
    fn pair(&mut self, held: &mut Held) -> Result {
        self.hold(&mut || held.stamp())
    }

    /// Acquires the lock, calls `body` with a function that makes a nested pair, and releases.
    ///
    /// `None` if the library has no re-entry.
    fn nest(
        &mut self,
        _body: &mut dyn FnMut(&mut dyn FnMut() -> Result) -> Result,
    ) -> Option<Result> {
        None
    }
}

/// Holds many locks at once.
pub(crate) trait Holder: Send {
    fn acquire(&mut self, name: &str) -> Result;

    /// Releases all locks. Returns the number of lost ones.
    fn release_all(self: Box<Self>) -> usize;
}
