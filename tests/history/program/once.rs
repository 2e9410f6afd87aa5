//! Work that is done once: runs with and without a commit, reads and deletions of results.
//!
//! The value of a result is a number that belongs to one call, so a check can compare a result that
//! a caller gets with the call that committed it.

use super::acquire::{Acquired, AnyGuard, Call, with_span};
use super::{Thread, error_word};
use crate::kind::Kind;
use crate::record::{Event, Request, Seen, Verb};
use crate::system::now;
use leasehold::{Begin, Once, OnceOutcome, Result};
use std::ops::Range;

/// Percentage of turns at a key that only read its result, and of those that delete it.
const READ: u8 = 20;
const FORGOTTEN: u8 = 10;

/// Percentage of results that are kept briefly, and for how long, in milliseconds.
const BRIEF: u8 = 60;
const KEPT: Range<u64> = 50..1500;

/// Percentage of runs that commit a result.
pub(super) const COMMITTED: u8 = 70;

/// Begins the work, unless it is done.
pub(super) fn begin(call: Call<'_>) -> Result<Option<Acquired>> {
    let request = call.request;
    let once = call.clients[0].once(&*request.lock);
    let once = with_span(once, request.keep, Once::with_keep);
    let once = with_span(once, request.max_hold, Once::with_max_hold);
    let once = with_span(once, request.renewed, Once::with_renewed_lease);
    let begun = call.make(
        || once.try_begin(),
        |span| once.try_begin_for(span),
        |deadline| once.try_begin_until(deadline),
        |cancel| once.clone().with_cancel(cancel).begin(),
    )?;
    Ok(begun.map(|begun| match begun {
        Begin::Run(run) => {
            let token = run.token();
            (AnyGuard::Sendable(Box::new(run)), token)
        }
        Begin::Done(done) => (AnyGuard::Done(seen(&done)), done.token()),
    }))
}

fn seen(done: &OnceOutcome) -> Seen {
    let value = std::str::from_utf8(done.value()).ok().and_then(|text| text.parse().ok());
    Seen { token: done.token(), value: value.unwrap_or(0) }
}

impl Thread<'_> {
    /// Reads or deletes a result at some of the turns.
    pub(super) fn only_reads_or_forgets(&mut self) -> bool {
        let verb = match self.rng.u8(0..100) {
            turn if turn < READ => Verb::Outcome,
            turn if turn < READ + FORGOTTEN => Verb::Forget,
            _ => return false,
        };
        let request = Request { verb, max_wait: 0, ..self.request(Kind::Once, false) };
        let once = self.clients[0].once(&*request.lock);
        let attempt = self.asks(request);
        let event = if verb == Verb::Forget {
            once.forget().map(|was_there| if was_there { Event::Done } else { Event::Refused })
        } else {
            once.outcome().map(|done| {
                self.record(attempt, now(), Event::Seen(done.as_ref().map(seen)));
                Event::Done
            })
        };
        let failed = |error| Event::Failed(error_word(&error));
        self.record(attempt, now(), event.unwrap_or_else(failed));
        true
    }

    /// Returns how long the result of a call is kept, or `None` for longer than a run.
    pub(super) fn keep(&mut self, kind: Kind) -> Option<u64> {
        (kind == Kind::Once && self.happens(BRIEF)).then(|| self.rng.u64(KEPT))
    }
}
