//! [`Leadership`]: the guard of one term of an election.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::util::clock;
use crate::util::sync::Parker;
use crate::watchdog::Announcement;

/// One term of a leader of an [`Election`](crate::Election); resigns when dropped.
///
/// Belongs to no thread: it can be sent to another thread and dropped there. The watchdog renews
/// the lease until the term ends.
///
/// While [`is_held`](Leadership::is_held) returns true, no other term of the election is valid. The
/// [page on guarantees](crate::_documentation::guarantees) names the conditions. A process that was
/// stopped for longer than its lease finds its term over when it resumes.
///
/// # Drop
/// The drop queues the resignation and does not wait for the server. The next candidate is the
/// leader as soon as the server has the resignation. [`resign`](Leadership::resign) waits for the
/// confirmation. The rules of [`Guard`](crate::Guard#drop) apply.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let term = client.election("scheduler").campaign()?;
/// term.check()?;                          // an error if the term is over
/// // ... a step that only the leader may make ...
/// term.resign()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "a term that is dropped at once ends at once"]
pub struct Leadership {
    handle: HoldHandle,
    /// The watchdog repeats the announcement while this value exists.
    _announcement: Arc<Announcement>,
    /// The token whose cancellation asks the leader to end the term.
    stop: Option<CancelToken>,
}

impl Leadership {
    pub(super) fn new(handle: HoldHandle, announcement: Arc<Announcement>) -> Leadership {
        Leadership { handle, _announcement: announcement, stop: None }
    }

    /// Returns the term with a token whose cancellation asks the leader to end it.
    pub(super) fn until(self, stop: &CancelToken) -> Leadership {
        Leadership { stop: Some(stop.clone()), ..self }
    }

    /// Ends the term, so that the next candidate leads; waits for the server to confirm.
    ///
    /// Blocks for one response time-out at most. One round trip.
    ///
    /// # Errors
    /// - [`is_lost`](crate::Error::is_lost) if the term was lost before: another leader may have
    ///   worked at the same time.
    /// - [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout)
    ///   or [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server did not answer. The
    ///   client then repeats the resignation in the background until the lease has expired.
    /// - [`is_server`](crate::Error::is_server) if the server refuses the resignation.
    /// - [`is_closed`](crate::Error::is_closed) if the client is closed during the call;
    ///   [`is_configuration`](crate::Error::is_configuration) in a forked child.
    pub fn resign(self) -> Result<()> {
        self.handle.unlock()
    }

    /// Returns the fencing token of the term. Does not block, no round trip.
    ///
    /// The token is larger than the tokens of all earlier terms, and of all earlier holds of a
    /// queue lock or a fenced lock with the same name. Pass the token to the resources that only
    /// the leader may change; these resources refuse smaller tokens.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn token(&self) -> u64 {
        self.handle.token()
    }

    /// Returns an error if the term is over. Does not block, no round trip.
    ///
    /// Compares the deadline of the lease with the clock. Call it before each step that only the
    /// leader may make.
    ///
    /// # Errors
    /// - [`is_lost`](crate::Error::is_lost) once the lease is lost. This is final.
    /// - [`is_cancelled`](crate::Error::is_cancelled) inside of [`run`](crate::Election::run) once
    ///   its stop token is cancelled.
    pub fn check(&self) -> Result<()> {
        self.handle.check()?;
        if self.is_stopped() {
            let text = "the term has to end: its stop token is cancelled";
            return Err(Error::new(ErrorKind::Cancelled, text).with_lock_name(self.handle.name()));
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Returns whether the term goes on. Does not block, no round trip.
    ///
    /// Once false, always false. Inside of [`run`](crate::Election::run) also false once the stop
    /// token is cancelled. After a cancellation no other leader follows before the closure returns
    /// or the lease ends.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.handle.is_held() && !self.is_stopped()
    }

    /// Returns the time to the lease's deadline, or zero if the lease is lost.
    ///
    /// Does not block, no round trip. The value assumes that no renewal follows. A safety margin is
    /// subtracted, so the value never exceeds the remaining lease on the server.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn remaining(&self) -> Duration {
        self.handle.remaining()
    }

    /// Blocks until the term is over, or for `timeout`; returns whether it is over.
    ///
    /// No round trip. Another thread can call this method through a reference. Inside of
    /// [`run`](crate::Election::run) a cancellation of the stop token ends the wait too.
    #[must_use = "only the return value says whether the term is over"]
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        let Some(stop) = &self.stop else { return self.handle.wait_lost(timeout) };
        let (end, parker) = (clock::now() + timeout, Parker::mine());
        let _stopped = stop.watch(&parker);
        self.handle.hold().watch(&parker);
        while self.is_held() {
            let now = clock::now();
            if end <= now {
                return false;
            }
            parker.park_until(end.min(now + self.remaining()));
        }
        true
    }

    /// Registers a closure that the client calls once if the term is lost.
    ///
    /// Does not block, no round trip. A resignation and a cancelled stop token are no losses. The
    /// thread `leasehold-events` calls `f`; the rules of
    /// [`Guard::on_lost`](crate::Guard::on_lost) apply.
    pub fn on_lost(&self, f: impl FnOnce() + Send + 'static) {
        self.handle.on_lost(f);
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.handle.name())
            .field("owner", self.handle.hold().owner())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish()
    }
}
