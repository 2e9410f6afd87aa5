//! Holds that linger: the process keeps a hold without a guard, for its next caller.
//!
//! The hold of a handle with a linger time becomes *idle* when its last guard ends and no caller of
//! the process waits. The next caller takes it over without a command. A hold lingers until a fixed
//! time after its grant, whatever its uses. Then, or when it is asked for, it is released as any
//! other hold. So each linger time costs one acquire and one release, and callers that do not ask,
//! such as those of Redisson, wait for one linger time at most.
//!
//! Callers of this library ask: a server that refuses them tells the client of the holder, if the
//! number of the hold says that the hold may linger (`ask_holder.lua`). Without more, a lock that
//! processes use in turn would cost more than without lingering. So after a hold that was asked for
//! before it was of use, no hold lingers for a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::command::owner::{HoldId, Holder};
use crate::events::{Event, HandleListener, Idle};
use crate::kind::rules::KindRules;
use crate::local::Local;
use crate::local::hold::{HandoffBounds, Hold, HoldSettings, HoldStatus};
use crate::local::state::{LocalState, UnansweredRelease};
use crate::local::table::HoldEntry;
use crate::transport::call::ConnectionId;
use crate::util::clock::Moment;

/// The number of hand-offs from which a hold that lingered was of use: they saved more round trips
/// than the asking process has to wait for.
const USEFUL: u32 = 2;

/// The time in which no hold lingers after one that was of no use, in linger times.
const PAUSE: u32 = 4;

/// The idle hold of a lock in this process, and the decision whether further holds linger.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    /// The idle hold, with its last holder. Only while no caller is in the queue.
    idle: Option<HoldEntry>,
    /// A hold that a caller wants from the server before this moment does not linger.
    paused_until: Moment,
    /// The number of a hold that was asked for before its grant was known here.
    asked_early: Option<u64>,
    has_ended: bool,
}

impl Lingering {
    pub(super) fn has_idle_hold(&self) -> bool {
        self.idle.is_some()
    }

    /// Ends the idle hold, because the server has granted `other` since. Returns it.
    pub(super) fn lose_idle(&mut self, other: &Hold) -> Option<Arc<Hold>> {
        let is_older = |idle: &mut HoldEntry| idle.hold.granted_at() < other.last_deadline();
        self.idle.take_if(is_older).map(|idle| idle.hold).filter(|hold| hold.lose())
    }

    /// Notes the request for a hold that came before the reply with its grant.
    pub(super) fn granted(&mut self, hold: &Hold, now: Moment) {
        if self.asked_early.take_if(|asked| *asked == hold.id().number()).is_some()
            && let Some((hand_offs, linger)) = hold.stop_lingering()
        {
            self.was_asked(hand_offs, linger, now);
        }
    }

    /// Notes that another client asked for a hold with this linger time, which had been handed off
    /// that often.
    fn was_asked(&mut self, hand_offs: u32, linger: Duration, now: Moment) {
        if hand_offs < USEFUL {
            self.paused_until = now + linger.saturating_mul(PAUSE);
        }
    }
}

impl LocalState {
    /// Returns all holds, the idle one included.
    pub(super) fn all_holds(&self) -> impl Iterator<Item = &HoldEntry> {
        self.holds.iter().chain(&self.lingering.idle)
    }

    /// Notes a release for the fairness between processes.
    pub(super) fn note_release(&mut self, hold: &Hold, now: Moment) {
        if hold.was_asked_for() {
            self.fairness.released_to_asker(now);
        } else {
            self.fairness.released(now);
        }
    }

    /// Has a hold without guards linger, if it may.
    pub(super) fn linger(
        &mut self,
        hold: &Arc<Hold>,
        now: Moment,
        emit: impl FnOnce(Option<&HandleListener>, Duration),
    ) -> bool {
        let lingers = hold.id().may_linger()
            && !self.lingering.has_ended
            && self.queue.is_empty()
            && self.is_only_hold_of_its_thread(hold)
            && hold.linger(now, emit);
        if lingers {
            self.lingering.idle = self.holds.take(hold);
        }
        lingers
    }

    /// Gives the idle hold to a caller, if its kind and its lease allow that.
    ///
    /// Returns also the settings of the former holder, for a drop without the mutex.
    fn take_over(
        &mut self,
        (rules, holder, settings): (&dyn KindRules, Holder, &HoldSettings),
        now: Moment,
        bounds: &HandoffBounds,
    ) -> Option<(Arc<Hold>, HoldSettings)> {
        let HoldEntry { hold, .. } = self.lingering.idle.as_ref()?;
        // A thread that has another hold has lost it, and learns of that.
        let has_other = self.holds.iter().any(|entry| entry.holder.is_same_thread(&holder));
        if has_other || hold.rules().kind() != rules.kind() {
            return None;
        }
        let from = hold.hand_off(now, bounds, &holder, settings)?;
        let hold = self.lingering.idle.take()?.hold;
        self.holds.insert(Arc::clone(&hold), holder);
        self.acquired += 1;
        self.fairness.handed_off();
        Some((hold, from))
    }
}

impl Local {
    /// Returns whether a hold lingers here. Takes no mutex.
    pub(crate) fn has_idle_hold(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed)
    }

    /// Gives the hold that lingers to a caller. `None` if there is none that the caller can have.
    pub(crate) fn take_over(
        &self,
        rules: &dyn KindRules,
        holder: Holder,
        settings: &HoldSettings,
        now: Moment,
    ) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        let (hold, from) = state.take_over((rules, holder, settings), now, &self.bounds)?;
        self.is_idle.store(false, Ordering::Relaxed);
        drop(state);
        let (stats, kind) = (self.events.stats(), rules.kind());
        let from = stats.series(|| from.series_key(kind));
        stats.series(|| settings.series_key(kind)).taken_over(&from);
        Some(hold)
    }

    /// Returns whether a hold that a caller asks for now may linger.
    pub(crate) fn may_linger(&self, now: Moment) -> bool {
        let lingering = &self.state.lock().lingering;
        !lingering.has_ended && lingering.paused_until <= now
    }

    /// Notes that another client asks for the hold with this number, which does not linger any
    /// more. Returns the hold.
    pub(crate) fn was_asked(&self, number: u64, now: Moment) -> Option<HoldId> {
        let mut state = self.state.lock();
        let asked = state.all_holds().find(|entry| entry.hold.id().number() == number);
        let Some(hold) = asked.map(|entry| Arc::clone(&entry.hold)) else {
            // The reply with the grant may be on its way.
            state.lingering.asked_early = Some(number);
            return None;
        };
        if let Some((hand_offs, linger)) = hold.stop_lingering() {
            state.lingering.was_asked(hand_offs, linger, now);
        }
        Some(hold.id())
    }

    /// Has the holds of this process not linger, because one of its callers waits for their end.
    pub(crate) fn end_linger_times(&self) {
        self.state.lock().all_holds().for_each(|entry| entry.hold.end_linger_time());
    }

    /// Has no hold linger from now on, because the client is closed.
    pub(crate) fn end_lingering(&self) {
        self.state.lock().lingering.has_ended = true;
    }

    /// Ends the idle hold, or `only` this one. `send` queues its release on a connection.
    ///
    /// The mutex is held meanwhile, so `send` does no I/O. Returns the hold, if there was one.
    pub(crate) fn give_up(
        &self,
        only: Option<HoldId>,
        now: Moment,
        send: impl FnOnce(&Arc<Hold>) -> ConnectionId,
    ) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        let is_meant = |entry: &mut HoldEntry| only.is_none_or(|only| only == entry.hold.id());
        let hold = state.lingering.idle.take_if(is_meant)?.hold;
        self.is_idle.store(false, Ordering::Relaxed);
        state.note_release(&hold, now);
        let status = hold.release(now);
        if status == HoldStatus::Held {
            let connection = send(&hold);
            state.unanswered.push(UnansweredRelease { hold: hold.id(), connection });
        }
        drop(state);
        match status {
            HoldStatus::Held => self.count_release(&hold),
            HoldStatus::Over { newly_lost } => self.report_lost(newly_lost.then_some(&*hold)),
        }
        Some(hold)
    }

    /// Emits the event that a hold lingers.
    pub(super) fn emit_idle(&self, hold: &Hold, listener: Option<&HandleListener>, held: Duration) {
        let (kind, hold) = hold.kind_and_number();
        self.emit(listener, |at, name| Event::Idle(Idle { at, name, kind, hold, held }));
    }

    /// Ends the count of an idle hold. Its guards ended in time.
    fn count_release(&self, hold: &Hold) {
        self.events.stats().series(|| hold.series_key()).released(hold.held_for(), true);
    }

    /// Reports the end of an idle hold that was lost: as a release, since nobody had it.
    pub(super) fn report_idle_end(&self, hold: &Hold) {
        self.count_release(hold);
        self.report_release(hold, Ok(None));
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    fn no_hold_lingers_for_a_time_after_one_that_was_of_no_use() {
        let mut lingering = Lingering::default();
        let mut asked = |hand_offs, now| {
            lingering.was_asked(hand_offs, LINGER, at(now));
            lingering.paused_until
        };
        assert_eq!(asked(USEFUL, 0), at(0), "the hold was of use");
        assert_eq!(asked(USEFUL - 1, 10), at(14));
        assert_eq!(asked(USEFUL, 11), at(14));
        assert_eq!(asked(0, 20), at(24));
    }
}
