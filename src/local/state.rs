//! The state of one lock under its mutex: queue, holds, unanswered releases, fairness.
//!
//! Pure: no I/O, no clock, no log and no events. Losses are returned, for the caller to report them
//! after it has released the mutex.

use std::sync::Arc;

use crate::command::owner::{HoldId, Holder, ThreadId};
use crate::error::{Error, Result};
use crate::kind::rules::OtherHold;
use crate::local::Caller;
use crate::local::fairness::Fairness;
use crate::local::hold::{HandoffBounds, Hold, HoldSettings, HoldStatus};
use crate::local::linger::Lingering;
use crate::local::mailbox::Mailbox;
use crate::local::queue::WaitQueue;
use crate::local::table::{EntryOutcome, EntryRequest, HoldEntry, HoldTable};
use crate::local::waiters::Waiters;
use crate::transport::call::ConnectionId;
use crate::util::clock::Moment;

#[derive(Debug, Default)]
pub(super) struct LocalState {
    pub(super) queue: WaitQueue<Caller>,
    pub(super) holds: HoldTable,
    pub(super) lingering: Lingering,
    /// The number of grants and hand-offs so far.
    pub(super) acquired: u64,
    /// The callers that wait for grants of a queue lock.
    pub(super) waiters: Waiters,
    /// The releases without a reply: at most one, except for a kind whose holds share the lock.
    pub(super) unanswered: Vec<UnansweredRelease>,
    /// The error of the last acquire or queue heartbeat of this process, if it got no reply.
    pub(super) last_error: Option<Error>,
    pub(super) fairness: Fairness,
    /// Whether the watchdog polls the server for the callers in the queue.
    pub(super) polled: bool,
    /// Whether the next poll has to wake the head of the queue.
    pub(super) poll_wakes_head: bool,
    /// The moment of the next poll, if one is planned before the next regular poll.
    pub(super) next_early_poll: Option<Moment>,
    /// The moment of the last look for holders whose process is gone, by a refused caller.
    pub(super) last_look: Moment,
    /// The round of the latch at the last look of this process; 0 before the first look.
    pub(super) latch_round: u64,
}

/// A release without a reply, and its connection.
#[derive(Debug)]
pub(super) struct UnansweredRelease {
    pub(super) hold: HoldId,
    pub(super) connection: ConnectionId,
}

/// A hand-off: the settings of the former holder and of the present one, and who has to be woken.
///
/// Both are woken without the mutex: the head needs it at once, the present holder for its release.
#[derive(Debug)]
pub(super) struct HandOff {
    pub(super) from: HoldSettings,
    pub(super) to: HoldSettings,
    /// The present holder.
    pub(super) receiver: Arc<Mailbox>,
    /// The new head of the queue, unless a poll of the watchdog wakes it.
    pub(super) head: Option<Arc<Mailbox>>,
}

impl LocalState {
    /// Ends the holds whose deadline has passed. Returns the newly lost ones.
    ///
    /// Removes an ended hold from the table if no caller will ask for it: its thread has ended,
    /// or it is detached and no thread relies on its renewal.
    pub(super) fn end_expired(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let mut lost = Vec::new();
        self.holds.retain(|entry| match entry.hold.status(now) {
            HoldStatus::Held => true,
            HoldStatus::Over { newly_lost } => {
                if newly_lost {
                    lost.push(Arc::clone(&entry.hold));
                }
                !entry.holder.has_ended() && (entry.guards > 0 || entry.is_relied_on())
            }
        });
        lost
    }

    /// Ends all holds that cannot be valid at the same time as `hold`. Returns them.
    ///
    /// A hold that was granted after the deadline of `hold` stays: the thread of `hold` was paused
    /// for its whole lease, and the server has granted the lock again since.
    pub(super) fn lose_others(&mut self, hold: &Hold, holder: &Holder) -> Vec<Arc<Hold>> {
        let mut lost = Vec::new();
        for entry in self.holds.iter() {
            let other = OtherHold {
                kind: entry.hold.rules().kind(),
                owner: entry.hold.owner(),
                same_thread: entry.holder.is_same_thread(holder),
            };
            if !hold.rules().shares_with(hold.owner().as_bytes(), &other)
                && entry.hold.granted_at() < hold.last_deadline()
                && entry.hold.lose()
            {
                lost.push(Arc::clone(&entry.hold));
            }
        }
        lost
    }

    pub(super) fn enter(
        &mut self,
        request: &EntryRequest,
        holder: Option<&Arc<str>>,
        thread: ThreadId,
        now: Moment,
    ) -> Result<EntryOutcome> {
        let same = |entry: &&mut HoldEntry| {
            entry.holder.is_thread(thread) && entry.hold.rules().kind() == request.rules.kind()
        };
        match self.holds.iter_mut().find(same) {
            Some(entry) if !request.owned && request.rules.re_enters() => entry.re_enter(now),
            _ => {
                let owner = holder.map_or(&[][..], |name| name.as_bytes());
                EntryOutcome::of(self.holds.of_thread(thread), request, owner, now)
            }
        }
    }

    /// Returns whether the request waits for an owned guard that the calling thread took.
    pub(super) fn awaits_own_guard(
        &self,
        request: &EntryRequest,
        owner: &[u8],
        thread: ThreadId,
        now: Moment,
    ) -> bool {
        let is_in_the_way = |entry: &HoldEntry| {
            entry.is_owned_guard_of(thread) && entry.excludes(request, owner, now)
        };
        self.holds.iter().any(is_in_the_way)
    }

    /// Returns whether any hold is valid. Ends no hold, because its callers report no loss.
    pub(super) fn is_held(&self, now: Moment) -> bool {
        self.holds.iter().any(|entry| !entry.hold.remaining(now).is_zero())
    }

    /// Returns the connection of the latest release without a reply.
    pub(super) fn unanswered_release(&self) -> Option<ConnectionId> {
        self.unanswered.last().map(|release| release.connection)
    }

    /// Hands the hold off to the head of the queue, if kind, lease and bounds allow it.
    ///
    /// The returned settings have to be dropped without the mutex.
    pub(super) fn hand_off(
        &mut self,
        hold: &Arc<Hold>,
        now: Moment,
        bounds: &HandoffBounds,
    ) -> Option<HandOff> {
        let (_, head) = self.queue.head()?;
        let (holder, request, to) = (head.holder.clone(), head.request, head.settings.clone());
        let fits = request.renewed
            && hold.rules().kind() == request.rules.kind()
            && self.is_only_hold_of_its_thread(hold);
        if !fits {
            return None;
        }
        let from = hold.hand_off(now, bounds, &holder, &to)?;
        let entry = self.holds.entry_mut(hold)?;
        entry.holder = holder;
        entry.guards = 1;
        self.acquired += 1;
        self.fairness.handed_off();
        let receiver = self.queue.pop()?.mailbox;
        receiver.hand_off(Arc::clone(hold));
        // The head only plans its next attempt, and most heads get the hold before it is due. So it
        // sleeps on until a poll, if there are polls.
        self.poll_wakes_head = self.polled;
        let head = self.queue.head().filter(|_| !self.polled);
        let head = head.map(|(_, head)| Arc::clone(&head.mailbox));
        Some(HandOff { from, to, receiver, head })
    }

    /// Returns whether the thread of this hold has no other hold of the lock. Another hold, such
    /// as a read hold under a write hold, would stay with the thread.
    pub(super) fn is_only_hold_of_its_thread(&self, hold: &Arc<Hold>) -> bool {
        let is_same = |entry: &HoldEntry| Arc::ptr_eq(&entry.hold, hold);
        let Some(own) = self.holds.iter().find(|entry| is_same(entry)) else { return false };
        let beside =
            |other: &HoldEntry| !is_same(other) && other.holder.is_same_thread(&own.holder);
        !self.holds.iter().any(beside)
    }

    pub(super) fn wake_head(&self) {
        if let Some((_, head)) = self.queue.head() {
            head.mailbox.wake();
        }
    }
}
