//! Latches: rounds that begin, are counted down or deleted, and waits for their ends.

use super::acquire::{until_cancelled, until_not_retryable};
use super::{Thread, error_word};
use crate::kind::Kind;
use crate::record::{Event, Request, Verb};
use crate::system::{now, thread};
use std::time::Duration;

/// The largest count of a latch.
const LARGEST_COUNT: u32 = 6;

/// The most count-downs of a thread after it has set the count. Several threads end a round.
const MOST_COUNT_DOWNS: u32 = 3;

/// Percentage of rounds of a latch that a thread ends by a deletion.
const DELETED: u8 = 10;

impl Thread<'_> {
    /// Waits for a latch, or begins a round of it and counts down for a while.
    pub(super) fn use_latch(&mut self) {
        let wait = self.request(Kind::Latch, false);
        // Without a reply, a wait fails soon after its deadline. A `max_wait` of 0 stands for a
        // call that waits for the reply.
        let wait = Request { max_wait: wait.max_wait.max(1), ..wait };
        if self.rng.bool() {
            return self.call_latch(wait);
        }
        let change = Request { max_wait: 0, ..wait };
        let count = self.rng.u32(1..=LARGEST_COUNT);
        self.call_latch(Request { verb: Verb::SetCount, permits: count, ..change.clone() });
        for _ in 0..self.rng.u32(0..=MOST_COUNT_DOWNS) {
            thread::sleep(self.span());
            self.call_latch(Request { verb: Verb::CountDown, ..change.clone() });
        }
        if self.happens(DELETED) {
            self.call_latch(Request { verb: Verb::Delete, ..change });
        }
    }

    /// Makes one call about a latch.
    fn call_latch(&self, request: Request) {
        let attempt = self.asks(request.clone());
        let latch = self.clients[0].latch(&*request.lock);
        let max_wait = Duration::from_millis(request.max_wait);
        // Whether the call has changed something, or its wait has ended.
        let outcome = match request.verb {
            Verb::SetCount => latch.try_set_count(request.permits.into()),
            Verb::CountDown => until_not_retryable(|| latch.count_down()).map(|()| true),
            Verb::Delete => latch.delete(),
            Verb::Acquire if request.cancelled => {
                let opened = until_cancelled(max_wait, |token| latch.with_cancel(token).wait());
                opened.map(|opened| opened.is_some())
            }
            Verb::Acquire => latch.wait_for(max_wait),
            _ => unreachable!("no verb of latches"),
        };
        let event = match outcome {
            Ok(true) => Event::Done,
            Ok(false) => Event::Refused,
            Err(error) => Event::Failed(error_word(&error)),
        };
        self.record(attempt, now(), event);
    }
}
