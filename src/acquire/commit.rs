//! The commit of work that is done once: it ends the hold, and leaves a result.
//!
//! The hold ends in this process when the commit is queued, as with `unlock`. It passes to no other
//! caller, since those of this kind do not queue here: its owner field names one result. A commit
//! without a reply is sent again until there is one, or until the lease is over; each copy finds
//! what an earlier one did. Then the hold is released behind the last copy, so that a result comes
//! now or never.

use std::time::Duration;

use crate::acquire::{HoldHandle, LockContext};
use crate::cancel::Limit;
use crate::error::{Error, ErrorKind, Result};
use crate::kind::once::{self, CommitReply};
use crate::local::EndOutcome;
use crate::local::table::HoldShare;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::Target;
use crate::transport::pool::request::{Failure, Outcome};
use crate::transport::pool::router::RoutedCall;
use crate::transport::topology::route::Generation;
use crate::util::clock;
use crate::util::sync::Parker;

/// The last outcome of a commit.
struct Committed {
    connection: ConnectionId,
    outcome: Outcome,
    /// Whether a copy without a reply may have run.
    may_have_run: bool,
}

impl HoldHandle {
    /// Writes the result of the work and ends the hold. Returns the time of the result, in ms since
    /// 1970.
    ///
    /// Blocks until there is a reply, or until the lease is over. One round trip.
    pub(crate) fn commit(mut self, keep: Duration, value: &[u8]) -> Result<u64> {
        self.ended = true;
        let (begun, handle) = (clock::now(), &self);
        let LockContext { engine, local } = &*handle.context;
        let commit =
            || once::commit(local.name(), handle.hold.owner(), handle.token(), keep, value);
        let generation = engine.router.generation();
        // Made before the end of the hold, which takes a mutex.
        let (first, mut queued) = (commit(), None);
        let outcome = local.end(&handle.hold, HoldShare::Guard, clock::now, || {
            let target = handle.hold.late_connection().map_or(Target::Any, Target::Only);
            queued.insert(engine.router.queue(first, target)).connection
        });
        debug_assert!(
            matches!(outcome, EndOutcome::Queued | EndOutcome::Lost),
            "it passes to nobody"
        );
        handle.after_end(&outcome);
        let Some(pending) = queued else { return Err(handle.lost()) };
        let Committed { connection, outcome, may_have_run } =
            handle.await_commit(pending, generation, &commit);
        let reply = match outcome {
            Ok(reply) => reply,
            Err(failure) => {
                let release = handle.background_release().maybe_duplicate(may_have_run);
                engine.router.send_background(release, Some(connection));
                return Err(handle.with_lock_name(failure.into_error()));
            }
        };
        handle.repeat_release_behind_late_copy(&reply, connection);
        // The clock of the server may be a little faster.
        let may_have_expired = may_have_run && begun.until(clock::now()) >= keep - keep / 50;
        let told = once::read_commit(reply.value).and_then(|told| match told {
            CommitReply::NotHeld if may_have_expired => Err(unknown()),
            told => Ok(told),
        });
        let at = local.finish_commit(&handle.hold, told)?;
        reply.not_replicated.map_or(Ok(at), |error| Err(handle.with_lock_name(error)))
    }

    /// Waits for the reply to a commit, and sends it again while the server is away.
    ///
    /// `generation` is that before the first copy. What a former server answers does not count.
    fn await_commit(
        &self,
        mut pending: RoutedCall,
        mut generation: Generation,
        commit: &dyn Fn() -> Call,
    ) -> Committed {
        let engine = &self.context.engine;
        let _call = engine.begin_call();
        let limit = Limit::at(self.hold.last_deadline()).or_closed(&engine.closing);
        let parker = Parker::mine();
        let _watching = engine.watch_ends(None, &parker);
        let mut may_have_run = false;
        loop {
            let (connection, mut outcome) = engine.router.wait(pending, &limit);
            let current = engine.router.generation();
            if outcome.is_ok() && generation != current {
                // The successor of the server that replied may lack the result.
                outcome = Err(Failure::written(Error::outdated()));
            }
            generation = current;
            let again = match &outcome {
                Ok(reply) => {
                    may_have_run |= reply.copies.may_exist();
                    None
                }
                Err(failure) => {
                    may_have_run |= failure.is_written();
                    let goes_on = failure.error.is_outage() && !limit.is_over(clock::now());
                    goes_on.then(|| self.context.health().retry_at(clock::now(), &failure.error))
                }
            };
            let Some(at) = again.filter(|at| *at < limit.end()) else {
                return Committed { connection, outcome, may_have_run };
            };
            while clock::now() < at && !engine.closing.is_cancelled() {
                parker.park_until(at);
            }
            pending = engine.router.queue(commit(), Target::Prefer(connection));
        }
    }
}

/// Returns the error of a commit whose hold is over, after a copy without a reply: that copy may
/// have written a result, which has expired since.
fn unknown() -> Error {
    let text = "the result may have been committed, and have expired before the server answered";
    Error::new(ErrorKind::Timeout, text)
}
