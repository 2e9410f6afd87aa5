//! The answer of a client to a question about one of its holds, or about the lock of a past hold.

use crate::command::details::LiveDetails;
use crate::local::Local;
use crate::local::table::HoldEntry;
use crate::util::clock::Moment;

impl Local {
    /// Returns the details of the hold with that number. `None` if it is over or unknown.
    pub(crate) fn details(&self, hold: u64, now: Moment) -> Option<LiveDetails> {
        let state = self.state.lock();
        let is_asked = |entry: &&HoldEntry| entry.hold.id().number() == hold;
        let entry = state.all_holds().find(is_asked)?;
        let remaining = entry.hold.remaining(now);
        let thread = entry.holder.acquirer();
        let permits = entry.hold.owner().permits();
        let registered = self.known_channel(entry.hold.rules().listens_to());
        // In a kind without a queue, all waiting callers are registered on the channel.
        let registered = registered.map_or(0, |channel| channel.waiting_callers());
        let details = LiveDetails {
            hold,
            thread_name: thread.name().map(str::to_owned),
            thread: thread.number(),
            guards: permits.map_or(entry.count() as u64, |permits| permits.count().into()),
            remaining,
            held_for: entry.hold.possessed_since().until(now),
            waiters: state.queue.len().max(registered).max(state.waiters.len()) as u64,
        };
        (!remaining.is_zero()).then_some(details)
    }

    /// Returns the number of holds of this process so far: grants and hand-offs.
    pub(crate) fn acquired(&self) -> u64 {
        self.state.lock().acquired
    }
}
