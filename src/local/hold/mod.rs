//! The life of one hold, from its grant to its end.
//!
//! | state | becomes | when |
//! | --- | --- | --- |
//! | (asking) | held | the server granted the lock, and the deadline is still ahead |
//! | | releasing | the caller gave up, got no reply, or the grant came after its deadline |
//! | held | held | a renewal, an `extend` or a re-entry moves the deadline forward, never back |
//! | | held, by another thread | the last guard of a thread ends, and another thread of the process waits (`hand_off`) |
//! | | held, by nobody (*idle*) | the last guard ends, and the hold may linger (`linger`) |
//! | | releasing | the last guard is dropped or unlocked, and no thread of the process gets the hold |
//! | idle | held | a caller of the process takes it over (`hand_off`) |
//! | | releasing | it was asked for, its linger time is over, or a caller needs another hold |
//! | | lost | as a held one; nobody is told |
//! | | lost | the deadline has passed; a renewal found the hold gone; the server granted the lock to another thread of this process; `force_unlock` of this process |
//! | releasing | gone | the release has a reply, or will not be sent again |
//! | | lost | the reply to the release says that the server did not have the hold |
//! | lost | | final: a later renewal does not revive it; its release is sent only until the *server expiry bound* |
//!
//! A detached guard makes no difference here: the table of holds counts the detached shares.
//! A hold whose thread has ended is no longer renewed, and ends in the state lost. So does an
//! overdue hold, whose holder has had it for longer than the limit of its handle.
//!
//! Two moments bound a lease. Until the *deadline* the server keeps the lock for this hold: it
//! counts from the moment before the command was sent, less a margin for clocks of different speed.
//! Until the *server expiry bound* the server may keep the lock: it counts from the moment at which
//! a reply was read, or at which the wait for a reply ended. A hold that is over here and still
//! within that bound has to be released on the server. So has a hold whose hash other holds keep
//! beyond its lease.
//!
//! Every step below is one check and one change under the mutex of the hold, so of two concurrent
//! steps one comes first:
//! * a loss beats a hand-off and an extension: both check the clock before they change anything;
//! * a hand-off beats the time-out and the cancellation of its receiver, which finds the hold when
//!   it leaves the queue;
//! * the report of a loss queues each closure of `on_lost` that was registered before; a later
//!   closure is queued at its registration;
//! * `status` of a valid hold takes no mutex: `deadline` is a copy, which is zero from the step
//!   that ends the hold.
//!
//! Pure: no clock and no I/O. `model.rs` checks it with the model checker, `acquire/model` checks
//! it together with the queue.

#[cfg(all(test, leasehold_model))]
mod model;
mod settings;
mod state;
#[cfg(all(test, not(leasehold_model)))]
mod tests;

use std::mem;
use std::ops::RangeInclusive;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::{HoldId, Holder, Owner};
use crate::error::LostReason;
use crate::events::{HandleListener, Kind, LossCall};
use crate::kind::rules::KindRules;
use crate::stats::SeriesKey;
use crate::transport::call::{Call, ConnectionId, LateCopy};
use crate::util::clock::Moment;
use crate::util::sync::{AtomicU64, Condvar, Mutex, Parker};
use crate::util::wheel;
use state::{HoldState, OVER, Phase, Untold};

pub(crate) use settings::HoldSettings;

/// A grant by the server, and its holder.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) hold: HoldId,
    pub(crate) owner: Owner,
    pub(crate) rules: &'static dyn KindRules,
    pub(crate) deadline: Moment,
    /// The length of the requested lease.
    pub(crate) lease: Duration,
    /// The lease that the server may keep, which is longer after a grant by message.
    pub(crate) server_lease: Duration,
    /// Whether the watchdog renews the lease.
    pub(crate) renewed: bool,
    pub(crate) holder: Holder,
    pub(crate) settings: HoldSettings,
    /// The time from the grant for which the hold may linger; `None` if it may not.
    pub(crate) linger: Option<Duration>,
    /// The moment at which the reply was read.
    pub(crate) granted_at: Moment,
    /// A copy of the acquire command that may still run. The release has to follow that copy on
    /// the same connection.
    pub(crate) late_copy: Option<LateCopy>,
    /// One fencing token for each thread that may have the hold; `0..=0` for a kind without tokens.
    pub(crate) tokens: RangeInclusive<u64>,
    /// The slots of the permits, if they have some.
    pub(crate) slots: Box<[u32]>,
}

/// Returns the deadline of a lease whose command was sent at `sent`.
///
/// The margin of 1 % and 2 ms allows for a server clock that runs 1 % fast, and for the
/// millisecond precision of Redis.
pub(crate) fn deadline(sent: Moment, lease: Duration) -> Moment {
    let margin = lease / 100 + Duration::from_millis(2);
    sent + lease.saturating_sub(margin)
}

/// One hold of one lock.
#[derive(Debug)]
pub(crate) struct Hold {
    id: HoldId,
    owner: Owner,
    rules: &'static dyn KindRules,
    lease: Duration,
    /// The last fencing token of its block; zero for a kind without tokens.
    last_token: u64,
    /// The slots of the permits; empty without slots.
    slots: Box<[u32]>,
    /// Nanoseconds of the deadline; zero once the hold is over.
    deadline: AtomicU64,
    /// Nanoseconds of the moment for which the watchdog planned the next renewal.
    renewal_due: AtomicU64,
    state: Mutex<HoldState>,
    over: Condvar,
}

/// The state of a hold for its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldStatus {
    Held,
    /// The hold is over. `newly_lost` is set for the one call that found the loss, whose caller
    /// has to report it.
    Over {
        newly_lost: bool,
    },
}

/// The task of the watchdog for a hold whose timer fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerTask {
    /// Extend the lease.
    Extend,
    /// The lease is fixed: only verify that the server has the hold.
    Verify,
    /// The thread of the hold has ended: the lease is fixed from now on.
    Orphaned,
    /// The linger time of the hold is over, and nobody has the hold: release it.
    GiveUp,
    /// The linger time of the hold is over, and somebody has the hold: wait for the next renewal.
    Wait,
    /// Nothing: the hold is over, as in [`HoldStatus::Over`].
    Over { newly_lost: bool },
}

/// Bounds for hand-offs, after which the hold is released to other processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandoffBounds {
    pub(crate) max_handoffs: u32,
    /// Time since the grant.
    pub(crate) max_time: Duration,
    /// A lease with less than this remaining is released instead, for the leases of the client; of
    /// another renewed lease half has to remain.
    pub(crate) min_remaining: Duration,
}

/// A panic leaves the state consistent: callbacks run without the mutex
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for Hold {}

/// The facts of a hold.
impl Hold {
    pub(crate) fn new(grant: Grant) -> Hold {
        Hold {
            id: grant.hold,
            owner: grant.owner.clone(),
            rules: grant.rules,
            lease: grant.lease,
            last_token: *grant.tokens.end(),
            slots: grant.slots.clone(),
            deadline: AtomicU64::new(grant.deadline.nanos()),
            renewal_due: AtomicU64::new(grant.deadline.nanos()),
            state: Mutex::new(HoldState::new(grant)),
            over: Condvar::default(),
        }
    }

    pub(crate) fn id(&self) -> HoldId {
        self.id
    }

    /// Returns the moment of the grant.
    pub(crate) fn granted_at(&self) -> Moment {
        self.state.lock().granted_at
    }

    /// Returns the moment at which the present holder got the hold.
    pub(crate) fn possessed_since(&self) -> Moment {
        self.state.lock().possession.since
    }

    /// Returns the time from the grant to the release; zero for a hold that was not released.
    pub(crate) fn held_for(&self) -> Duration {
        let state = self.state.lock();
        state.granted_at.until(state.released_at)
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the kind and the number of the hold, as events name it.
    pub(crate) fn kind_and_number(&self) -> (Kind, u64) {
        (self.rules.kind(), self.id.number())
    }

    /// Returns the key of the statistics, with the label of the present holder.
    pub(crate) fn series_key(&self) -> SeriesKey {
        self.state.lock().possession.settings.series_key(self.rules.kind())
    }

    /// Returns the slots of the permits; none without slots.
    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the rules of the kind of lock.
    pub(crate) fn rules(&self) -> &'static dyn KindRules {
        self.rules
    }

    /// Returns the call that ends the hold on the server at `now`; `name` is that of its lock.
    ///
    /// Before the minimum of the holder, the lock stays taken until then.
    pub(crate) fn release_call(&self, name: &Name, now: Moment) -> Call {
        let left = self.minimum_left(now);
        match self.rules.early_release().filter(|_| !left.is_zero()) {
            Some(release) => release(name, &self.owner, left),
            None => self.rules.release(name, &self.owner),
        }
    }

    /// Returns the fencing token of the present holder; zero for a kind without tokens.
    pub(crate) fn token(&self) -> u64 {
        if self.last_token == 0 { 0 } else { self.state.lock().possession.token }
    }

    /// Returns the length of the lease that the acquire requested.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns a copy of the acquire command that may still run, if there is one.
    pub(crate) fn late_copy(&self) -> Option<LateCopy> {
        self.state.lock().late_copy
    }

    /// Returns the connection of that copy. Commands about the hold have to follow it there.
    pub(crate) fn late_connection(&self) -> Option<ConnectionId> {
        self.late_copy().map(|copy| copy.connection)
    }

    /// Returns the time to the deadline; zero once the hold is over.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        now.until(Moment::from_nanos(self.deadline.load(Ordering::Acquire)))
    }

    /// Returns the deadline, also of a hold that is over.
    pub(crate) fn last_deadline(&self) -> Moment {
        self.state.lock().deadline
    }

    /// Returns the moment until which the server may keep the hold without a release.
    pub(crate) fn server_expiry_bound(&self) -> Moment {
        self.state.lock().server.expiry_bound
    }

    /// Returns whether the watchdog renews the lease at `now`.
    pub(crate) fn is_renewed(&self, now: Moment) -> bool {
        self.state.lock().is_renewed(now)
    }

    /// Returns the length of a renewed lease, as the server has set it last.
    ///
    /// `None` if the lease was a fixed one at the grant.
    pub(crate) fn renewed_length(&self) -> Option<Duration> {
        self.state.lock().renewed_length
    }

    /// Returns the length to which a renewal sets the lease: that of the present holder's handle,
    /// or else that of the client.
    pub(crate) fn renewed_lease(&self, of_client: Duration) -> Duration {
        self.state.lock().possession.settings.renewed_lease().unwrap_or(of_client)
    }

    /// Returns whether the lease is not a fixed one. It may be overdue.
    pub(crate) fn has_renewed_lease(&self) -> bool {
        self.state.lock().renewed
    }

    /// Returns the reason of the loss; for a hold that is not lost, the reason if it expires.
    pub(crate) fn lost_reason(&self) -> LostReason {
        let state = self.state.lock();
        match state.phase {
            Phase::Lost(reason) => reason,
            Phase::Held | Phase::Releasing | Phase::Gone => state.expiry_reason(),
        }
    }
}

/// The steps in the life of a hold.
impl Hold {
    /// Returns whether the hold is valid at `now`. Ends it if its deadline has passed.
    pub(crate) fn status(&self, now: Moment) -> HoldStatus {
        if now.nanos() < self.deadline.load(Ordering::Acquire) {
            return HoldStatus::Held;
        }
        self.update_status(&mut self.state.lock(), now)
    }

    fn update_status(&self, state: &mut HoldState, now: Moment) -> HoldStatus {
        match state.phase {
            Phase::Held if now < state.deadline => HoldStatus::Held,
            Phase::Held => {
                let reason = state.expiry_reason();
                self.end(state, Phase::Lost(reason));
                HoldStatus::Over { newly_lost: true }
            }
            Phase::Releasing | Phase::Gone | Phase::Lost(_) => {
                HoldStatus::Over { newly_lost: false }
            }
        }
    }

    /// Ends the validity of the hold. No other function does.
    fn end(&self, state: &mut HoldState, phase: Phase) {
        state.phase = phase;
        self.deadline.store(0, Ordering::Release);
        self.over.notify_all();
        for parker in state.watchers.drain(..) {
            parker.unpark();
        }
    }

    /// Moves the deadline forward, if the hold is valid at `now`: the server set the lease anew
    /// between `sent` and `now`.
    pub(crate) fn extend(&self, sent: Moment, now: Moment, lease: Duration) -> HoldStatus {
        let mut state = self.state.lock();
        let status = self.update_status(&mut state, now);
        state.server.raise_expiry_bound(now + lease, status != HoldStatus::Held);
        let extended = deadline(sent, lease);
        if status == HoldStatus::Held && state.deadline < extended {
            state.deadline = extended;
            state.renewed_length = state.renewed_length.and(Some(lease));
            self.deadline.store(extended.nanos(), Ordering::Release);
        }
        status
    }

    /// Notes that an extension got no reply: the server may have set the lease anew before `now`.
    pub(crate) fn note_possible_extension(&self, now: Moment, lease: Duration) {
        self.state.lock().server.raise_expiry_bound(now + lease, true);
    }

    /// Returns, once, whether a lost hold still has to be released on the server.
    ///
    /// True if the hold was lost here while the server may still keep it, or may take it anew
    /// because of a late copy of the acquire command.
    /// False for a hold that is being released, and for a hold that has expired on the server too.
    pub(crate) fn take_may_still_be_held(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        let outlives = self.rules.outlives_its_lease() && !state.server.is_known_gone();
        let may_be_there = now < state.server.expiry_bound || outlives || state.late_copy.is_some();
        let is_lost = matches!(state.phase, Phase::Lost(_));
        is_lost && may_be_there && mem::take(&mut state.server.may_still_be_held)
    }

    /// Marks the hold as renewed by the watchdog. Returns `false` if it was so before.
    pub(crate) fn keep_renewed(&self) -> bool {
        !mem::replace(&mut self.state.lock().renewed, true)
    }

    /// Ends the hold because the server does not have it. Returns `false` if it was over before.
    ///
    /// The server may still have some of several permits.
    pub(crate) fn lose(&self) -> bool {
        let mut state = self.state.lock();
        if self.owner.member_count() > 1 {
            state.server.may_still_be_held = true
        } else {
            state.server.set_gone()
        }
        let newly_lost = state.phase == Phase::Held;
        if newly_lost {
            self.end(&mut state, Phase::Lost(LostReason::Gone));
        }
        newly_lost
    }

    /// Notes that the server did not have the hold at its release.
    pub(crate) fn lose_released(&self) {
        let mut state = self.state.lock();
        state.server.set_gone();
        state.phase = Phase::Lost(LostReason::Gone);
    }

    /// Ends the hold in order to release it. Returns `Held` if a release has to be sent.
    pub(crate) fn release(&self, now: Moment) -> HoldStatus {
        let mut state = self.state.lock();
        let status = self.update_status(&mut state, now);
        if status == HoldStatus::Held {
            if !state.is_idle {
                state.released_at = now;
            }
            self.end(&mut state, Phase::Releasing);
        }
        status
    }

    /// Notes that the release has a reply, or will not be sent again.
    pub(crate) fn release_settled(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Releasing {
            state.phase = Phase::Gone;
        }
    }

    /// Hands the hold off to another thread of this process, with the settings of its handle.
    ///
    /// Returns the former settings, for a drop without a mutex. `None` at the bounds, before the
    /// minimum of the present holder and after its limit, for a fixed lease, for a lease with too
    /// little remaining, and without a fencing token for the next holder.
    pub(crate) fn hand_off(
        &self,
        now: Moment,
        bounds: &HandoffBounds,
        to: &Holder,
        settings: &HoldSettings,
    ) -> Option<HoldSettings> {
        let mut state = self.state.lock();
        let possession = &state.possession;
        let half = possession.settings.renewed_lease().map(|lease| lease / 2);
        // Whoever wants a lock that lingers asks for it, so it needs no other bound.
        let is_within_bounds = now < state.linger_end
            || possession.handoffs < bounds.max_handoffs
                && now < state.granted_at + bounds.max_time;
        let may_hand_off = is_within_bounds
            && state.may_be_passed_on(now, self.last_token)
            && now.until(state.deadline) >= half.unwrap_or(bounds.min_remaining);
        if !may_hand_off {
            return None;
        }
        state.is_idle = false;
        // The watchdog may have reported the limit after the caller read its clock.
        state.overdue_reported = false;
        (state.told.present, state.told.waiting.overdue) = (false, None);
        let possession = &mut state.possession;
        possession.handoffs += 1;
        possession.token += u64::from(self.last_token > 0);
        possession.holder = to.clone();
        possession.since = now;
        possession.on_lost.clear();
        Some(mem::replace(&mut possession.settings, settings.clone()))
    }

    /// Returns the settings of the present holder.
    pub(crate) fn settings(&self) -> HoldSettings {
        self.state.lock().possession.settings.clone()
    }
}

/// The linger time: a hold without a guard stays held, for the next caller of this process.
impl Hold {
    /// Has the hold linger, if it may. Its last guard has ended, and no caller waits.
    ///
    /// `emit` queues the event. It runs under the mutex of the hold, and must not use the hold.
    pub(crate) fn linger(
        &self,
        now: Moment,
        emit: impl FnOnce(Option<&HandleListener>, Duration),
    ) -> bool {
        let mut state = self.state.lock();
        let lingers = now < state.linger_end.min(state.deadline)
            && state.may_be_passed_on(now, self.last_token);
        if lingers {
            (state.is_idle, state.released_at) = (true, now);
            let HoldState { possession, told, .. } = &mut *state;
            possession.on_lost.clear();
            if told.present {
                emit(possession.settings.listener(), possession.since.until(now));
            }
        }
        lingers
    }

    /// Has the hold not linger from now on, because another client has asked for it.
    ///
    /// Returns the number of its hand-offs and its linger time; zero if that is over. `None` if the
    /// hold was asked for before.
    pub(crate) fn stop_lingering(&self) -> Option<(u32, Duration)> {
        let mut state = self.state.lock();
        let end = mem::take(&mut state.linger_end);
        let lingers = end > Moment::START;
        lingers.then(|| (state.possession.handoffs, state.granted_at.until(end)))
    }

    /// Ends the linger time, because a caller of this process waits for the end of the hold.
    pub(crate) fn end_linger_time(&self) {
        let end = &mut self.state.lock().linger_end;
        *end = (*end).min(OVER);
    }

    /// Returns whether another client has asked for the hold, which might have lingered.
    pub(crate) fn was_asked_for(&self) -> bool {
        self.id.may_linger() && self.state.lock().linger_end == Moment::START
    }

    /// Returns whether the hold lingers, or has lingered to its end.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().is_idle
    }

    /// Returns the end of the linger time, if it lies ahead or if nobody has the hold.
    pub(crate) fn next_linger_end(&self, now: Moment) -> Option<Moment> {
        let state = self.state.lock();
        Some(state.linger_end).filter(|end| now < *end || state.is_idle)
    }
}

/// Timers of the watchdog, and waits for the end of a hold.
impl Hold {
    /// Notes that the timer of the hold has fired. Returns the task of the watchdog.
    ///
    /// The lease of a hold whose thread has ended becomes fixed.
    pub(crate) fn timer_fired(&self, now: Moment) -> TimerTask {
        let mut state = self.state.lock();
        state.timer = None;
        if let HoldStatus::Over { newly_lost } = self.update_status(&mut state, now) {
            return TimerTask::Over { newly_lost };
        }
        if state.linger_end <= now && state.is_idle {
            return TimerTask::GiveUp;
        }
        if OVER < state.linger_end && state.linger_end <= now {
            state.linger_end = OVER;
            if now < self.renewal_due() {
                return TimerTask::Wait;
            }
        }
        if state.renewed && state.possession.holder.has_ended() && !state.is_idle {
            state.renewed = false;
            return TimerTask::Orphaned;
        }
        if state.is_renewed(now) { TimerTask::Extend } else { TimerTask::Verify }
    }

    /// Returns the moment of the next renewal or verification.
    ///
    /// This is after `period`, or earlier: a renewed lease is due when `due_below` of it remains, a
    /// fixed or overdue lease at its deadline.
    pub(crate) fn next_renewal(
        &self,
        now: Moment,
        period: Duration,
        due_below: Duration,
    ) -> Moment {
        let state = self.state.lock();
        let due =
            if state.is_renewed(now) { state.deadline.before(due_below) } else { state.deadline };
        due.min(now + period)
    }

    /// Stores the moment for which the watchdog planned the next renewal.
    pub(crate) fn set_renewal_due(&self, at: Moment) {
        self.renewal_due.store(at.nanos(), Ordering::Relaxed);
    }

    /// Returns the moment for which the watchdog planned the next renewal.
    pub(crate) fn renewal_due(&self) -> Moment {
        Moment::from_nanos(self.renewal_due.load(Ordering::Relaxed))
    }

    /// Stores the timer of this hold. Returns the timer to cancel: the earlier one, or the new one
    /// if the hold is over.
    pub(crate) fn set_timer(&self, timer: wheel::Key) -> Option<wheel::Key> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Held => state.timer.replace(timer),
            Phase::Releasing | Phase::Gone | Phase::Lost(_) => Some(timer),
        }
    }

    pub(crate) fn has_timer(&self) -> bool {
        self.state.lock().timer.is_some()
    }

    pub(crate) fn take_timer(&self) -> Option<wheel::Key> {
        self.state.lock().timer.take()
    }

    /// Has the end of the hold unpark this parker. Does nothing for a hold that is over.
    pub(crate) fn watch(&self, parker: &Arc<Parker>) {
        let mut state = self.state.lock();
        // A parker with one reference belongs to a thread that has ended.
        state.watchers.retain(|other| Arc::strong_count(other) > 1);
        let known = state.watchers.iter().any(|other| Arc::ptr_eq(other, parker));
        if state.phase == Phase::Held && !known {
            state.watchers.push(Arc::clone(parker));
        }
    }

    /// Blocks until the hold is over, its deadline, or `end`. May also return early.
    pub(crate) fn wait(&self, end: Moment) {
        let mut state = self.state.lock();
        if state.phase == Phase::Held {
            let end = state.deadline.min(end);
            self.over.wait_until(&mut state, end);
        }
    }
}

/// The limit and the minimum of the present holder (`with_max_hold`, `with_min_hold`). Both are
/// those of the holder's handle, and count from the grant or from the last hand-off.
impl Hold {
    /// Returns the moment of the limit, past or future.
    ///
    /// `None` without a limit, and after the report that the hold is overdue.
    pub(crate) fn next_limit(&self) -> Option<Moment> {
        let state = self.state.lock();
        state.limit().filter(|_| !state.overdue_reported)
    }

    /// Returns, once, the time for which the holder of an overdue hold has had it.
    ///
    /// `None` if the hold is not overdue, and after an end for another reason.
    pub(crate) fn take_overdue(&self, now: Moment) -> Option<Duration> {
        let mut state = self.state.lock();
        let is_over = !matches!(state.phase, Phase::Held | Phase::Lost(LostReason::HeldTooLong));
        if is_over || !state.is_overdue(now) || mem::replace(&mut state.overdue_reported, true) {
            return None;
        }
        Some(state.possession.since.until(now))
    }

    /// Returns the time from `now` to the end of the minimum of the present holder.
    pub(crate) fn minimum_left(&self, now: Moment) -> Duration {
        now.until(self.state.lock().possession.minimum_end())
    }

    /// Removes the minimum of the present holder, whose call has failed.
    pub(crate) fn waive_minimum(&self) {
        let mut state = self.state.lock();
        let waived = state.possession.settings.with_min_hold(Duration::ZERO);
        state.possession.settings = waived;
    }
}

/// The order of the events of the hold: an acquisition comes before the end of the hold.
///
/// `emit` queues the event. It runs under the mutex of the hold, and must not use the hold.
impl Hold {
    /// Emits the event of an acquisition, and returns what has waited for it.
    ///
    /// `emit` gets the listener of the holder's handle. After the event of a loss there is no other:
    /// the hold was lost when it was handed off.
    pub(crate) fn tell_acquired(&self, emit: impl FnOnce(Option<&HandleListener>)) -> Untold {
        let HoldState { told, possession, .. } = &mut *self.state.lock();
        let waiting = mem::take(&mut told.waiting);
        if told.lost {
            return Untold::default();
        }
        emit(possession.settings.listener());
        (told.acquired, told.present, told.lost) = (true, true, waiting.lost);
        waiting
    }

    /// Emits the event of the loss, or keeps it for [`Hold::tell_acquired`].
    ///
    /// `emit` gets whether the acquisition by the present holder was told. If it was not, the loss
    /// does not concern the listener of its handle.
    pub(crate) fn tell_lost(&self, emit: impl FnOnce(bool)) {
        let told = &mut self.state.lock().told;
        if told.acquired {
            emit(told.present);
            told.lost = true;
        } else {
            told.waiting.lost = true;
        }
    }

    /// Emits the event of an overdue hold, or keeps it for [`Hold::tell_acquired`].
    pub(crate) fn tell_overdue(&self, held: Duration, emit: impl FnOnce()) {
        let told = &mut self.state.lock().told;
        if told.present {
            emit();
        } else {
            told.waiting.overdue = Some(held);
        }
    }
}

/// The closures that a loss of the hold calls.
///
/// Queueing and dropping a [`LossCall`] run no code of the program, so both happen under the mutex
/// of the hold. That keeps the order of the registrations.
impl Hold {
    /// Registers a call for the loss of the hold. Queues the call at once after a reported loss.
    ///
    /// A hand-off, and a release without a loss, drop the call.
    pub(crate) fn on_lost(&self, call: LossCall) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Lost(_) if state.loss_reported => call.queue(),
            Phase::Held | Phase::Lost(_) => state.possession.on_lost.push(call),
            Phase::Releasing | Phase::Gone => {}
        }
    }

    /// Queues the registered calls. The caller has just reported the loss of the hold.
    ///
    /// Each loss is reported once, a loss in the reply to the release included.
    pub(crate) fn note_loss_reported(&self) {
        let mut state = self.state.lock();
        state.loss_reported = true;
        for call in state.possession.on_lost.drain(..) {
            call.queue();
        }
    }
}

#[cfg(test)]
impl Grant {
    /// Returns the grant of an owned hold with a renewed lease.
    pub(crate) fn owned(at: Moment, deadline: Moment) -> Grant {
        let hold = HoldId::next();
        Grant {
            hold,
            owner: Owner::new(uuid::Uuid::nil(), hold, ""),
            rules: &crate::kind::plain::Plain,
            deadline,
            lease: at.until(deadline),
            server_lease: at.until(deadline),
            renewed: true,
            holder: Holder::owned(),
            settings: HoldSettings::default(),
            linger: None,
            granted_at: at,
            late_copy: None,
            tokens: 0..=0,
            slots: Box::default(),
        }
    }
}
