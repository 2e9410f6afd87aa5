//! The end of guards and detached shares, and the release of a hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::command::owner::ThreadId;
use crate::kind::rules::{KindRules, ListensTo, Queueing};
use crate::local::Local;
use crate::local::fairness::Rivals;
use crate::local::hold::{Hold, HoldStatus};
use crate::local::state::{HandOff, UnansweredRelease};
use crate::local::table::HoldShare;
use crate::transport::call::ConnectionId;
use crate::transport::listener::channels::SubscriptionState;
use crate::util::clock::Moment;

/// The effect of the end of a share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EndOutcome {
    /// The hold has other shares.
    Nested,
    /// The hold was handed off to another thread of this process.
    HandedOff,
    /// The hold lingers, for the next caller of this process.
    Lingers,
    /// The release is queued on a connection.
    Queued,
    /// The hold was lost before.
    Lost,
    /// There was no such detached share.
    NotHeld,
}

impl Local {
    /// Ends one share of a hold. The end of the last share hands the hold off, has it linger or
    /// releases it.
    ///
    /// `send` queues the release on a connection. The mutex is held meanwhile, so `send` does no
    /// I/O. The head of the queue is woken after the call of `send`.
    pub(crate) fn end(
        &self,
        hold: &Arc<Hold>,
        share: HoldShare,
        clock: impl FnOnce() -> Moment,
        send: impl FnOnce() -> ConnectionId,
    ) -> EndOutcome {
        let mut state = self.state.lock();
        let Some(entry) = state.holds.entry_mut(hold).filter(|entry| entry.has(share)) else {
            return match share {
                HoldShare::Guard => EndOutcome::Lost,
                HoldShare::Detached | HoldShare::Everything => EndOutcome::NotHeld,
            };
        };
        entry.end(share);
        if entry.count() > 0 {
            return EndOutcome::Nested;
        }
        let now = clock();
        if let Some(hand_off) = state.hand_off(hold, now, &self.bounds) {
            drop(state);
            hand_off.receiver.wake();
            if let Some(head) = &hand_off.head {
                head.wake();
            }
            self.count_hand_off(hold, &hand_off);
            return EndOutcome::HandedOff;
        }
        let emit = |listener: Option<&_>, held| self.emit_idle(hold, listener, held);
        if state.linger(hold, now, emit) {
            self.is_idle.store(true, Ordering::Relaxed);
            return EndOutcome::Lingers;
        }
        state.holds.remove(hold);
        let status = hold.release(now);
        state.note_release(hold, now);
        if status == HoldStatus::Held {
            state.unanswered.push(UnansweredRelease { hold: hold.id(), connection: send() });
        }
        state.wake_head();
        drop(state);
        let held = hold.granted_at().until(now);
        self.events.stats().series(|| hold.series_key()).released(held, status == HoldStatus::Held);
        match status {
            HoldStatus::Held => EndOutcome::Queued,
            HoldStatus::Over { newly_lost } => {
                self.report_lost(newly_lost.then_some(&**hold));
                EndOutcome::Lost
            }
        }
    }

    fn count_hand_off(&self, hold: &Hold, HandOff { from, to, .. }: &HandOff) {
        let (stats, kind) = (self.events.stats(), hold.rules().kind());
        let from = stats.series(|| from.series_key(kind));
        stats.series(|| to.series_key(kind)).passed_locally(&from);
    }

    /// Returns the connection on which a release has no reply yet.
    ///
    /// A command that has to see the effect of that release goes over the same connection.
    pub(crate) fn unanswered_release(&self) -> Option<ConnectionId> {
        self.state.lock().unanswered_release()
    }

    /// Notes that the release of this hold has a reply, or will not be sent again.
    pub(crate) fn release_settled(&self, hold: &Arc<Hold>) {
        hold.release_settled();
        let mut state = self.state.lock();
        state.unanswered.retain(|release| release.hold != hold.id());
    }

    /// Notes the number of subscribers that received the message of a release.
    ///
    /// The listener of this process may be one of them. The release of a queue lock tells nothing:
    /// it may have granted the lock to a caller of this process.
    pub(crate) fn release_heard(&self, rules: &dyn KindRules, subscribers: u64) {
        let listens = rules.listens_to();
        // Readers and named holders of this process that wait compete with each other and with the
        // head of its queue, so they count as others. Callers for permits have a queue.
        let competes = match listens {
            ListensTo::Permits => false,
            ListensTo::ReadWrite => true,
            _ => rules.queueing() == Queueing::None,
        };
        let rivals = match listens {
            ListensTo::Grants => return,
            ListensTo::Nothing => Rivals::Polling,
            _ => {
                let own_listens = self.known_channel(listens).is_some_and(|channel| {
                    channel.subscription() == SubscriptionState::Subscribed
                        && !(competes && channel.has_waiting_callers())
                });
                let others_listen = subscribers > u64::from(own_listens);
                if others_listen { Rivals::Listening } else { Rivals::Absent }
            }
        };
        self.state.lock().fairness.release_answered(rivals);
    }

    /// Turns one guard of the hold into a detached share, which counts as a guard does.
    pub(crate) fn detach(&self, hold: &Arc<Hold>) {
        self.state.lock().holds.detach(hold);
    }

    /// Returns the detached hold that this thread may end: a hold that it detached; otherwise a
    /// detached owned hold, or a hold of a thread that has ended.
    pub(crate) fn detached(
        &self,
        matches: impl Fn(&Hold) -> bool,
        thread: ThreadId,
        now: Moment,
    ) -> Option<(Arc<Hold>, HoldShare)> {
        let state = self.state.lock();
        state.holds.detached(thread, matches, |hold| !hold.remaining(now).is_zero())
    }
}
