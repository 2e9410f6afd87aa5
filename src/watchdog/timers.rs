//! The timers of the watchdog: one for each hold, and one for each lock that is polled.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::{POLL_GRAIN_DIVISOR, Watchdog, WatchedHold};
use crate::command::owner::HoldId;
use crate::local::Local;
use crate::local::hold::{Hold, HoldStatus};
use crate::util::clock::{self, Moment, jittered};
use crate::util::wheel::{self, Wheel};

/// The resolution of the timers.
pub(super) const TICK: Duration = Duration::from_millis(5);

/// The time from a renewal to the next one, as a part of the lease.
///
/// With the whole spread and one more grain, the next timer fires before a third of the lease has
/// passed, and leaves 1/120 of the lease for the round trip: the guarantees promise that a holder
/// learns of a loss within a third.
const RENEWAL_PERIOD: (u32, u32) = (28, 120);

/// The divisor of the lease that gives the span over which renewals are spread.
const SPREAD_DIVISOR: u32 = 12;

/// The divisor of the lease that gives the span in which due renewals go out together.
pub(super) const RENEWAL_GRAIN_DIVISOR: u32 = 120;

/// The timers, and the items whose timers have fired.
#[derive(Debug)]
pub(super) struct Timers {
    pub(super) holds: Wheel<WatchedHold>,
    polls: Wheel<Arc<Local>>,
    /// The locks with a queue heartbeat or a poll that is due before their next regular poll.
    early_polls: Wheel<Arc<Local>>,
    /// Items of the present round. The next round repeats them if this round panics.
    fired_holds: Vec<WatchedHold>,
    fired_polls: Vec<Arc<Local>>,
    /// The moment at which the thread wakes next.
    next_round: Moment,
}

impl Timers {
    pub(super) fn new(now: Moment) -> Timers {
        Timers {
            holds: Wheel::new(TICK, now),
            polls: Wheel::new(TICK, now),
            early_polls: Wheel::new(TICK, now),
            fired_holds: Vec::new(),
            fired_polls: Vec::new(),
            next_round: Moment::START,
        }
    }

    /// Returns the due items, and the items of a round that panicked.
    pub(super) fn advance(&mut self, now: Moment) -> (Vec<WatchedHold>, Vec<Arc<Local>>) {
        self.fired_holds.retain(|watched| !watched.hold.has_timer());
        self.holds.advance(now, &mut self.fired_holds);
        self.polls.advance(now, &mut self.fired_polls);
        (self.fired_holds.clone(), self.fired_polls.clone())
    }

    /// Returns the locks that are polled, those of the present round included.
    pub(super) fn polled(&self) -> Vec<Arc<Local>> {
        self.polls.iter().chain(&self.fired_polls).cloned().collect()
    }

    /// Returns the watched holds and the polled locks.
    pub(super) fn all(&self) -> (Vec<WatchedHold>, Vec<Arc<Local>>) {
        (self.holds.iter().cloned().collect(), self.polled())
    }

    /// Returns the locks with an early poll that is due now.
    pub(super) fn due_early_polls(&mut self, now: Moment) -> Vec<Arc<Local>> {
        let mut due = Vec::new();
        self.early_polls.advance(now, &mut due);
        due
    }

    /// Takes the holds of a round that has ended without a panic.
    pub(super) fn take_fired(&mut self) -> Vec<WatchedHold> {
        mem::take(&mut self.fired_holds)
    }

    /// Replaces the locks whose polls the next round repeats if this round panics.
    ///
    /// A lock whose next poll is planned is none of them: it would have two timers.
    pub(super) fn replace_fired_polls(&mut self, locks: Vec<Arc<Local>>) -> Vec<Arc<Local>> {
        mem::replace(&mut self.fired_polls, locks)
    }

    /// Plans the next round for the earliest timer, at the latest for `latest`. Returns its moment.
    pub(super) fn plan_round(&mut self, latest: Moment) -> Moment {
        let timers = [self.holds.next_due(), self.polls.next_due(), self.early_polls.next_due()];
        self.next_round = timers.into_iter().flatten().fold(latest, Moment::min);
        self.next_round
    }

    /// Plans the next round for `at` if that is earlier. Returns whether to wake the thread.
    fn ensure_round_by(&mut self, at: Moment) -> bool {
        let must_wake = self.next_round > at;
        self.next_round = self.next_round.min(at);
        must_wake
    }
}

impl Watchdog {
    /// Watches a hold until [`Watchdog::unwatch`], or ends it if it is lost already.
    pub(crate) fn watch(&self, watched: WatchedHold) {
        match watched.hold.status(clock::now()) {
            HoldStatus::Held => self.set_renewal_timer(watched),
            HoldStatus::Over { newly_lost } => watched.end_lost(newly_lost, &self.router),
        }
    }

    /// Stops watching a hold.
    pub(crate) fn unwatch(&self, hold: &Hold) {
        let timer = hold.take_timer();
        let watched = timer.and_then(|timer| self.timers.lock().holds.cancel(timer));
        drop(watched);
    }

    /// Releases the hold of a lock that lingers, or only if it is this hold. Does not block.
    ///
    /// Returns whether there was one.
    pub(crate) fn give_up(&self, local: &Arc<Local>, hold: Option<HoldId>) -> bool {
        let mut queued = None;
        let given_up = local.give_up(hold, clock::now(), |hold| {
            let watched = WatchedHold { local: Arc::clone(local), hold: Arc::clone(hold) };
            let release = hold.rules().release(local.name(), hold.owner());
            let request = watched.background_release(release, hold.lease());
            *queued.insert(self.router.submit(request, hold.late_connection()))
        });
        let Some(hold) = given_up else { return false };
        self.unwatch(&hold);
        match queued {
            Some(connection) => self.router.dispatch(connection),
            // The hold was lost, and the server may still have it.
            None => WatchedHold { local: Arc::clone(local), hold }.release_at_server(&self.router),
        }
        true
    }

    /// Renews or verifies the valid holds of a lock at once: the server may not have them.
    ///
    /// Does not block. The reply of the server decides.
    pub(crate) fn verify(&self, local: &Arc<Local>) {
        let now = clock::now();
        for hold in local.holds().into_iter().filter(|hold| !hold.remaining(now).is_zero()) {
            hold.set_renewal_due(now);
            self.set_timer(WatchedHold { local: Arc::clone(local), hold }, |_| now);
        }
    }

    /// Polls a lock for a caller from now on, until no caller waits for the lock. Does not block.
    pub(crate) fn poll_for(&self, local: &Arc<Local>) {
        if local.starts_polls() {
            self.plan_poll(Arc::clone(local));
        }
    }

    /// Plans the next poll of a lock. Each poll plans another one while callers wait for the lock.
    pub(super) fn plan_poll(&self, local: Arc<Local>) {
        let interval = self.settings.poll_interval;
        let grain = interval / POLL_GRAIN_DIVISOR;
        let at = (clock::now() + (interval - 2 * grain)).rounded_up(grain);
        self.plan(at, |timers| timers.polls.insert(at, local));
    }

    /// Plans a poll of a lock for `at`, before its next regular poll, unless one is planned.
    pub(super) fn plan_early_poll(&self, local: Arc<Local>, at: Moment) {
        if local.plans_early_poll(at, clock::now()) {
            self.plan(at, |timers| timers.early_polls.insert(at, local));
        }
    }

    /// Plans an early poll of a lock after `span`, if that is before the next regular poll.
    pub(super) fn plan_early_poll_after(&self, local: &Arc<Local>, span: Duration) {
        if span < self.settings.poll_interval {
            self.plan_early_poll(Arc::clone(local), clock::now() + span);
        }
    }

    /// Sets a timer by `insert`, and wakes the thread if its next round comes after `at`.
    fn plan(&self, at: Moment, insert: impl FnOnce(&mut Timers) -> wheel::Key) {
        let mut timers = self.timers.lock();
        insert(&mut timers);
        let must_wake = timers.ensure_round_by(at);
        drop(timers);
        if must_wake {
            self.parker.unpark();
        }
    }

    /// Returns the length to which a renewal sets the lease of the hold.
    pub(super) fn lease_of(&self, hold: &Hold) -> Duration {
        hold.renewed_lease(self.settings.timeout)
    }

    pub(super) fn set_renewal_timer(&self, watched: WatchedHold) {
        self.set_timer(watched, |watched| {
            let at = self.renewal_time(watched);
            watched.hold.set_renewal_due(at);
            at
        });
    }

    /// Returns the moment of the next renewal or verification of the hold.
    ///
    /// This is a little later than the due time, so that many renewals share a batch, but not after
    /// the end of a fixed lease.
    pub(super) fn renewal_time(&self, watched: &WatchedHold) -> Moment {
        let now = clock::now();
        let is_renewed = watched.hold.is_renewed(now);
        // A grant by message has a shorter lease than a renewal.
        let length = watched.hold.renewed_length().filter(|_| is_renewed);
        let lease = self.lease_of(&watched.hold).min(length.unwrap_or(Duration::MAX));
        let period = (lease * RENEWAL_PERIOD.0 / RENEWAL_PERIOD.1).saturating_sub(TICK);
        let due = watched.hold.next_renewal(now, period, lease - period);
        let spread = jittered(lease / SPREAD_DIVISOR, watched.hold.id().seed());
        let later = (due + spread).rounded_up(lease / RENEWAL_GRAIN_DIVISOR);
        if due <= now {
            now
        } else if is_renewed {
            later
        } else {
            later.min(now + watched.hold.remaining(now))
        }
    }

    /// Replaces the timer of a hold; `at` computes its moment.
    ///
    /// The timer fires at the limit of the hold or at the end of its linger time, if that is
    /// earlier.
    pub(super) fn set_timer(&self, watched: WatchedHold, at: impl FnOnce(&WatchedHold) -> Moment) {
        let hold = Arc::clone(&watched.hold);
        let mut timers = self.timers.lock();
        // Computed under the mutex. Otherwise another thread could make this fixed lease a renewed
        // one and set an earlier timer in between, which this timer would then replace.
        let at = at(&watched);
        let ends = [watched.hold.next_limit(), watched.hold.next_linger_end(clock::now())];
        let at = ends.into_iter().flatten().fold(at, Moment::min);
        let timer = timers.holds.insert(at, watched);
        let must_wake = timers.ensure_round_by(at);
        // Stored under the mutex too. Otherwise the watchdog could fire this timer and set the next
        // one in between, which would then be cancelled as superseded.
        let superseded = hold.set_timer(timer);
        let superseded = superseded.and_then(|timer| timers.holds.cancel(timer));
        drop(timers);
        drop(superseded);
        if must_wake {
            self.parker.unpark();
        }
    }
}
