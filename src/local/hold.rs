//! The life of a hold, from the moment the server granted it.
//!
//! | state | becomes | when, and who does it |
//! | --- | --- | --- |
//! | (asking) | held | the caller, on the server's yes, if the deadline still lies ahead |
//! | | releasing | the caller: it gave up, got no answer, or the yes came too late |
//! | held | held | the watchdog on "renewed", `extend`, a re-entry: the deadline moves forward, never back |
//! | | held, by another thread | the releasing thread, if one of its process waits (`pass`) |
//! | | releasing | the last guard is dropped or unlocked |
//! | | lost | whoever first sees that the deadline is behind; the watchdog on "not yours"; a thread of this process that was given the lock; `force_unlock` from this process |
//! | releasing | gone | the server's answer, or the end of trying |
//! | lost | | final: its renewal is not believed; its release is sent only within its *reach* |
//!
//! A hold is *detached* when its guard is; that is counted beside the guards
//! (`local.rs`) and changes nothing here, except that nobody may be left to look.
//! A hold whose thread has ended is renewed no more, and lost in the end.
//!
//! The deadline is what a lease is about: until then the server keeps the lock for
//! this hold. It is reckoned from the moment just before the command was sent, less
//! a margin for clocks that run apart. Its counterpart is the *reach*: until then the
//! server may keep it, reckoned from the moment at which an answer was read, or was
//! given up. What is over here and still within reach there has to be released; so has what
//! others may keep there beyond its lease. Every step below is one look and one change
//! under the lease's mutex, so of two that race one comes first:
//! * losing beats passing and extending: both look at the clock before they act;
//! * passing beats time-out and cancellation of the waiter, which finds the hold its
//!   own when it leaves the line;
//! * a look that finds the deadline ahead needs no mutex: `deadline` is a copy that is
//!   zero from the step that ended the hold.
//!
//! Pure: it reads no clock and does no I/O. `lease/model.rs` runs it under the model
//! checker, `local/model.rs` runs it together with the gate.

use std::ops::RangeInclusive;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::command::call::{Call, ConnectionId};
use crate::command::name::Name;
use crate::command::owner::{HoldId, Holder, Owner};
use crate::error::LostReason;
use crate::events::Kind;
use crate::kind::rules::KindRules;
use crate::util::clock::Moment;
use crate::util::sync::{AtomicU64, Condvar, Mutex, Parker};
use crate::util::wheel;

/// One hold of one lock.
#[derive(Debug)]
pub(crate) struct Hold {
    hold: HoldId,
    owner: Owner,
    rules: &'static dyn KindRules,
    lease: Duration,
    /// The last of its fencing tokens; zero if it has none.
    last_token: u64,
    /// Nanoseconds of the deadline; zero once the hold is over.
    deadline: AtomicU64,
    life: Mutex<HoldState>,
    over: Condvar,
}

#[derive(Debug)]
struct HoldState {
    phase: Phase,
    deadline: Moment,
    server_expiry_bound: Moment,
    /// The reach is further than the server said: an answer did not come, or too late.
    may_still_be_held: bool,
    renewed: bool,
    holder: Holder,
    granted: Moment,
    /// When its last guard ended.
    released: Moment,
    handoffs: u32,
    /// The fencing token of its present holder.
    token: u64,
    may_run_late: Option<ConnectionId>,
    timer: Option<wheel::Key>,
    /// Who waits for its end beside others.
    watched: Vec<Arc<Parker>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Releasing,
    Gone,
    Lost(LostReason),
}

/// What the server granted, and to whom.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) hold: HoldId,
    pub(crate) owner: Owner,
    pub(crate) rules: &'static dyn KindRules,
    pub(crate) deadline: Moment,
    /// How long the lease is that was asked for.
    pub(crate) lease: Duration,
    /// Whether the watchdog renews it.
    pub(crate) renewed: bool,
    pub(crate) holder: Holder,
    pub(crate) at: Moment,
    /// The line to the server in which a late copy of the question may still come:
    /// the release has to follow it there.
    pub(crate) may_run_late: Option<ConnectionId>,
    /// Its fencing tokens, one for each thread to which it may go; zeros if it has none.
    pub(crate) tokens: RangeInclusive<u64>,
}

/// Whether a hold is still one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldStatus {
    Held,
    /// It is over; `noticed` for the one look that found out that it was lost, and
    /// has to tell.
    Over {
        newly_lost: bool,
    },
}

/// What the watchdog has to do for a lease whose timer fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Extend it.
    Extend,
    /// It is a fixed lease: only ask whether the server has it.
    Verify,
    /// Its thread has ended: from now on it is a fixed lease.
    Orphaned,
    Over {
        newly_lost: bool,
    },
}

/// How often and for how long a hold may pass between threads of this process
/// before others get their chance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandoffBounds {
    pub(crate) max_handoffs: u32,
    pub(crate) max_time: Duration,
    /// A lease with less than this left is released instead.
    pub(crate) min_remaining: Duration,
}

/// The deadline of a lease whose command was sent at `sent`. The margin allows for
/// a server's clock that runs 1 % fast, and for the millisecond in which Redis
/// counts.
pub(crate) fn deadline(sent: Moment, lease: Duration) -> Moment {
    let margin = lease / 100 + Duration::from_millis(2);
    sent + lease.saturating_sub(margin)
}

/// A panic leaves it in order: loggers and callbacks run with no lock held (`tests/panics.rs`).
impl RefUnwindSafe for Hold {}

impl Hold {
    pub(crate) fn new(grant: Grant) -> Hold {
        Hold {
            hold: grant.hold,
            owner: grant.owner,
            rules: grant.rules,
            lease: grant.lease,
            last_token: *grant.tokens.end(),
            deadline: AtomicU64::new(grant.deadline.nanos()),
            life: Mutex::new(HoldState {
                phase: Phase::Held,
                deadline: grant.deadline,
                server_expiry_bound: grant.at + grant.lease,
                may_still_be_held: grant.rules.outlives_its_lease(),
                renewed: grant.renewed,
                holder: grant.holder,
                granted: grant.at,
                released: Moment::START,
                handoffs: 0,
                token: *grant.tokens.start(),
                may_run_late: grant.may_run_late,
                timer: None,
                watched: Vec::new(),
            }),
            over: Condvar::default(),
        }
    }

    pub(crate) fn id(&self) -> HoldId {
        self.hold
    }

    /// When the server granted it.
    pub(crate) fn granted(&self) -> Moment {
        self.life.lock().granted
    }

    /// Returns the time from the grant to the release; zero for a hold that was not released.
    pub(crate) fn held_for(&self) -> Duration {
        let life = self.life.lock();
        life.granted.until(life.released)
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns its kind and its number, as events name it.
    pub(crate) fn kind_and_number(&self) -> (Kind, u64) {
        (self.rules.kind(), self.hold.number())
    }

    /// Of which kind of lock it is a hold.
    pub(crate) fn rules(&self) -> &'static dyn KindRules {
        self.rules
    }

    /// What ends the hold at the server; `name` is that of its lock.
    pub(crate) fn release_call(&self, name: &Name) -> Call {
        self.rules.release(name, &self.owner)
    }

    /// What undoes it at the server, if it is there.
    pub(crate) fn undo_call(&self, name: &Name) -> Call {
        self.rules.undo(name, &self.owner, None)
    }

    /// The fencing token of its present holder; zero if it has none.
    pub(crate) fn token(&self) -> u64 {
        if self.last_token == 0 { 0 } else { self.life.lock().token }
    }

    /// How long the lease is that was first asked for.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether the hold is valid at `now`; ends it if its deadline is behind.
    pub(crate) fn status(&self, now: Moment) -> HoldStatus {
        if now.nanos() < self.deadline.load(Ordering::Acquire) {
            return HoldStatus::Held;
        }
        self.update_status(&mut self.life.lock(), now)
    }

    fn update_status(&self, life: &mut HoldState, now: Moment) -> HoldStatus {
        match life.phase {
            Phase::Held if now < life.deadline => HoldStatus::Held,
            Phase::Held => {
                self.end(life, Phase::Lost(LostReason::Expired));
                HoldStatus::Over { newly_lost: true }
            }
            Phase::Releasing | Phase::Gone | Phase::Lost(_) => {
                HoldStatus::Over { newly_lost: false }
            }
        }
    }

    /// The one step that takes the validity from a hold.
    fn end(&self, life: &mut HoldState, phase: Phase) {
        life.phase = phase;
        self.deadline.store(0, Ordering::Release);
        self.over.notify_all();
        life.watched.drain(..).for_each(|parker| parker.unpark());
    }

    /// The line to the server in which its release has to stand, if it matters.
    pub(crate) fn may_run_late(&self) -> Option<ConnectionId> {
        self.life.lock().may_run_late
    }

    /// How long the hold stays valid if nothing happens.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        now.until(Moment::from_nanos(self.deadline.load(Ordering::Acquire)))
    }

    /// Its deadline, or the one that it had when it was over.
    pub(crate) fn last_deadline(&self) -> Moment {
        self.life.lock().deadline
    }

    /// Moves the deadline forward, if the hold is valid at `now`: the server set the
    /// lease anew between `sent` and `now`.
    pub(crate) fn extend(&self, sent: Moment, now: Moment, lease: Duration) -> HoldStatus {
        let mut life = self.life.lock();
        let look = self.update_status(&mut life, now);
        life.server_may_expire(now + lease, look != HoldStatus::Held);
        let to = deadline(sent, lease);
        if look == HoldStatus::Held && life.deadline < to {
            life.deadline = to;
            self.deadline.store(to.nanos(), Ordering::Release);
        }
        look
    }

    /// The server may have set the lease anew, up to `now`: there was no answer.
    pub(crate) fn may_be_extended(&self, now: Moment, lease: Duration) {
        self.life.lock().server_may_expire(now + lease, true);
    }

    /// Whether the hold was lost here while the server may keep it for long: it has to be
    /// released there. `true` once. (One that is being released was not lost, and one
    /// that simply ran out is over there too.)
    pub(crate) fn take_may_still_be_held(&self, now: Moment) -> bool {
        let mut life = self.life.lock();
        // One that was found gone has no reach.
        let outlives = self.rules.outlives_its_lease() && Moment::START < life.server_expiry_bound;
        let there =
            matches!(life.phase, Phase::Lost(_)) && (now < life.server_expiry_bound || outlives);
        there && std::mem::take(&mut life.may_still_be_held)
    }

    /// Until when the server may keep the hold, if nobody releases it.
    pub(crate) fn server_expiry_bound(&self) -> Moment {
        self.life.lock().server_expiry_bound
    }

    /// Has the watchdog renew the hold from now on. Whether that is news.
    pub(crate) fn keep_renewed(&self) -> bool {
        !std::mem::replace(&mut self.life.lock().renewed, true)
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.life.lock().renewed
    }

    /// Ends the hold because the server does not keep it any more. Whether that is news.
    pub(crate) fn lose(&self) -> bool {
        let mut life = self.life.lock();
        life.server_expiry_bound = Moment::START;
        let messages = life.phase == Phase::Held;
        if messages {
            self.end(&mut life, Phase::Lost(LostReason::Gone));
        }
        messages
    }

    /// Returns how the hold was lost; for one that was not, what its end would be.
    pub(crate) fn lost_reason(&self) -> LostReason {
        match self.life.lock().phase {
            Phase::Lost(reason) => reason,
            Phase::Held | Phase::Releasing | Phase::Gone => LostReason::Expired,
        }
    }

    /// Ends the hold in order to release it: `Held` if there is something to send.
    pub(crate) fn release(&self, now: Moment) -> HoldStatus {
        let mut life = self.life.lock();
        let look = self.update_status(&mut life, now);
        if look == HoldStatus::Held {
            life.released = now;
            self.end(&mut life, Phase::Releasing);
        }
        look
    }

    /// The server has answered the release, or will not be asked again.
    pub(crate) fn set_gone(&self) {
        let mut life = self.life.lock();
        if life.phase == Phase::Releasing {
            life.phase = Phase::Gone;
        }
    }

    /// Hands the hold to another thread of this process, with its lease. Refused
    /// at the bounds, for a fixed lease, and for one that has too little left.
    pub(crate) fn hand_off(&self, now: Moment, bounds: &HandoffBounds, to: &Holder) -> bool {
        let mut life = self.life.lock();
        // The next holder needs a token of its own.
        let has_token = self.last_token == 0 || life.token < self.last_token;
        let allowed = has_token && life.may_hand_off(now, bounds);
        if allowed {
            life.handoffs += 1;
            life.token += u64::from(self.last_token > 0);
            life.holder = to.clone();
        }
        allowed
    }

    /// What is to be done for the hold, whose timer has fired.
    pub(crate) fn renewal(&self, now: Moment) -> Renewal {
        let mut life = self.life.lock();
        life.timer = None;
        if let HoldStatus::Over { newly_lost } = self.update_status(&mut life, now) {
            return Renewal::Over { newly_lost };
        }
        life.renewal()
    }

    /// When the server is to be asked for the hold: after `period`, or when less than
    /// `due_below` is left of a lease that is renewed.
    pub(crate) fn next_renewal(
        &self,
        now: Moment,
        period: Duration,
        due_below: Duration,
    ) -> Moment {
        let life = self.life.lock();
        let due = if life.renewed { life.deadline.before(due_below) } else { life.deadline };
        due.min(now + period)
    }

    /// Remembers the timer that will fire for this hold, and gives back the one
    /// that was remembered; an ended hold gives back the new one.
    pub(crate) fn set_timer(&self, timer: wheel::Key) -> Option<wheel::Key> {
        let mut life = self.life.lock();
        match life.phase {
            Phase::Held => life.timer.replace(timer),
            Phase::Releasing | Phase::Gone | Phase::Lost(_) => Some(timer),
        }
    }

    pub(crate) fn has_timer(&self) -> bool {
        self.life.lock().timer.is_some()
    }

    pub(crate) fn take_timer(&self) -> Option<wheel::Key> {
        self.life.lock().timer.take()
    }

    /// Has the mailbox rung when the hold is over, if it is not.
    pub(crate) fn watch(&self, parker: &Arc<Parker>) {
        let mut life = self.life.lock();
        // Those of threads that have ended are nobody's any more.
        life.watched.retain(|other| Arc::strong_count(other) > 1);
        let known = life.watched.iter().any(|other| Arc::ptr_eq(other, parker));
        if life.phase == Phase::Held && !known {
            life.watched.push(Arc::clone(parker));
        }
    }

    /// Sleeps until the hold is over, its deadline has come, or `end`; may also
    /// return for no reason.
    pub(crate) fn wait(&self, end: Moment) {
        let mut life = self.life.lock();
        if life.phase == Phase::Held {
            let end = life.deadline.min(end);
            self.over.wait_until(&mut life, end);
        }
    }
}

impl HoldState {
    /// A hold that is gone at the server is not brought back by a renewal.
    fn server_may_expire(&mut self, to: Moment, unknown: bool) {
        if Moment::START < self.server_expiry_bound && self.server_expiry_bound < to {
            self.server_expiry_bound = to;
            self.may_still_be_held |= unknown;
        }
    }

    fn may_hand_off(&self, now: Moment, bounds: &HandoffBounds) -> bool {
        self.phase == Phase::Held
            && self.renewed
            && self.handoffs < bounds.max_handoffs
            && now < self.granted + bounds.max_time
            && now.until(self.deadline) >= bounds.min_remaining
    }

    fn renewal(&mut self) -> Renewal {
        if self.renewed && self.holder.has_ended() {
            self.renewed = false;
            return Renewal::Orphaned;
        }
        if self.renewed { Renewal::Extend } else { Renewal::Verify }
    }
}

#[cfg(test)]
impl Grant {
    /// That of an owned hold which is renewed.
    pub(crate) fn owned(at: Moment, deadline: Moment) -> Grant {
        let hold = HoldId::next();
        Grant {
            hold,
            owner: Owner::new(uuid::Uuid::nil(), hold, ""),
            rules: &crate::kind::plain::Plain,
            deadline,
            lease: at.until(deadline),
            renewed: true,
            holder: Holder::owned(),
            at,
            may_run_late: None,
            tokens: 0..=0,
        }
    }
}

#[cfg(all(test, leasehold_model))]
mod model;

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::START + SECOND * u32::try_from(seconds).expect("small")
    }

    fn lease(renewed: bool, until: u64) -> Hold {
        let holder = Holder::this_thread();
        Hold::new(Grant { lease: SECOND, renewed, holder, ..Grant::owned(at(0), at(until)) })
    }

    const NOTICED: HoldStatus = HoldStatus::Over { newly_lost: true };
    const KNOWN: HoldStatus = HoldStatus::Over { newly_lost: false };

    fn bounds() -> HandoffBounds {
        HandoffBounds { max_handoffs: 2, max_time: 5 * SECOND, min_remaining: 3 * SECOND }
    }

    #[test]
    fn a_hold_ends_at_its_deadline_and_only_one_look_has_to_tell() {
        let lease = lease(true, 10);
        assert_eq!(lease.status(at(9)), HoldStatus::Held);
        assert_eq!(lease.remaining(at(9)), SECOND);
        assert_eq!(lease.status(at(10)), NOTICED);
        assert_eq!(lease.status(at(9)), KNOWN, "lost is final, even if the clock went back");
        assert_eq!(lease.remaining(at(9)), Duration::ZERO);
    }

    #[test]
    fn the_deadline_only_moves_forward_and_never_from_behind() {
        let lease = lease(true, 10);
        assert_eq!(lease.extend(at(5), at(6), 10 * SECOND), HoldStatus::Held);
        assert_eq!(lease.extend(at(6), at(6), 6 * SECOND), HoldStatus::Held);
        assert_eq!(lease.remaining(at(6)), at(6).until(deadline(at(5), 10 * SECOND)));
        assert_eq!(lease.extend(at(9), at(15), 15 * SECOND), NOTICED, "the answer came too late");
        assert_eq!(lease.extend(at(7), at(7), 15 * SECOND), KNOWN);
    }

    #[test]
    fn a_hold_that_is_over_here_may_be_kept_there_until_it_is_known_to_be_gone() {
        let overrun = lease(true, 10);
        assert_eq!(overrun.server_expiry_bound(), at(1), "granted at 0 for a second");
        overrun.may_be_extended(at(8), 10 * SECOND);
        assert_eq!(overrun.status(at(11)), NOTICED, "nobody knows of an extension");
        assert_eq!(overrun.server_expiry_bound(), at(18));
        assert!(
            overrun.take_may_still_be_held(at(11)) && !overrun.take_may_still_be_held(at(11)),
            "once"
        );
        assert_eq!(overrun.extend(at(10), at(12), 10 * SECOND), KNOWN);
        assert_eq!(overrun.server_expiry_bound(), at(22));
        assert!(!overrun.take_may_still_be_held(at(22)), "it is over there too");
        assert!(overrun.take_may_still_be_held(at(21)));
        overrun.lose();
        overrun.may_be_extended(at(12), 10 * SECOND);
        assert_eq!(overrun.server_expiry_bound(), at(0));
    }

    #[test]
    fn a_release_is_sent_once_and_not_after_a_loss() {
        let released = lease(true, 10);
        assert_eq!(released.release(at(9)), HoldStatus::Held);
        assert_eq!(released.release(at(9)), KNOWN);
        assert!(!released.lose(), "a released hold cannot be lost");
        assert_eq!(released.extend(at(8), at(9), 30 * SECOND), KNOWN);
        assert!(!released.take_may_still_be_held(at(9)), "its release is under way");
        let overrun = lease(false, 10);
        assert_eq!(overrun.release(at(11)), NOTICED);
        let taken = lease(true, 10);
        assert!(taken.lose() && !taken.lose());
        assert_eq!(taken.release(at(1)), KNOWN);
    }

    #[test]
    fn a_hold_passes_within_its_bounds() {
        let to = Holder::owned();
        let passed = lease(true, 10);
        assert!(passed.hand_off(at(1), &bounds(), &to) && passed.hand_off(at(2), &bounds(), &to));
        assert!(!passed.hand_off(at(3), &bounds(), &to), "twice is the bound");
        assert!(!lease(true, 10).hand_off(at(5), &bounds(), &to), "the time is over");
        assert!(!lease(true, 4).hand_off(at(2), &bounds(), &to), "too little is left");
        assert!(!lease(false, 10).hand_off(at(1), &bounds(), &to), "a fixed lease");
        let lost = lease(true, 10);
        lost.lose();
        assert!(!lost.hand_off(at(1), &bounds(), &to));
        assert!(!lease(true, 10).hand_off(at(1), &HandoffBounds::default(), &to), "switched off");
    }

    #[test]
    fn a_fenced_hold_passes_while_it_has_tokens_and_each_holder_has_its_own() {
        let tokens = 7..=8;
        let fenced = Hold::new(Grant { tokens, ..Grant::owned(at(0), at(10)) });
        assert_eq!(fenced.token(), 7);
        assert!(fenced.hand_off(
            at(1),
            &HandoffBounds { max_handoffs: 9, ..bounds() },
            &Holder::owned()
        ));
        assert_eq!(fenced.token(), 8);
        assert!(!fenced.hand_off(
            at(1),
            &HandoffBounds { max_handoffs: 9, ..bounds() },
            &Holder::owned()
        ));
        assert_eq!(lease(true, 10).token(), 0);
    }

    #[test]
    fn a_hold_is_asked_for_when_too_little_is_left_and_once_in_a_period() {
        let ask_at = |lease: &Hold, now| lease.next_renewal(at(now), 10 * SECOND, 20 * SECOND);
        let watched = lease(true, 30);
        assert_eq!([ask_at(&watched, 9), ask_at(&watched, 11)], [at(10), at(10)]);
        assert_eq!(watched.renewal(at(9)), Renewal::Extend);
        watched.extend(at(11), at(11), 289 * SECOND);
        assert_eq!(ask_at(&watched, 12), at(22), "it is not left alone till its end is near");
        assert_eq!(watched.renewal(at(300)), Renewal::Over { newly_lost: true });
    }

    #[test]
    fn a_fixed_lease_is_looked_at_in_each_period_and_at_its_end_unless_a_re_entry_keeps_it() {
        let fixed = lease(false, 30);
        let ask_at = |now| fixed.next_renewal(at(now), 10 * SECOND, 20 * SECOND);
        assert_eq!([ask_at(9), ask_at(20), ask_at(29)], [at(19), at(30), at(30)]);
        assert_eq!(fixed.renewal(at(29)), Renewal::Verify);
        assert!(fixed.keep_renewed() && !fixed.keep_renewed());
        assert_eq!((ask_at(29), fixed.renewal(at(29))), (at(10), Renewal::Extend));
    }

    #[test]
    fn the_hold_of_an_ended_thread_is_renewed_no_more() {
        let orphan = std::thread::spawn(|| lease(true, 30)).join().expect("no panic");
        assert_eq!(orphan.renewal(at(25)), Renewal::Orphaned);
        assert_eq!(orphan.renewal(at(26)), Renewal::Verify);
    }

    #[test]
    fn a_deadline_is_reckoned_from_the_sending_and_less_a_margin() {
        let lease = Duration::from_secs(30);
        assert_eq!(deadline(at(0), lease), Moment::START + Duration::from_millis(29_698));
        assert_eq!(deadline(at(5), Duration::from_millis(1)), at(5), "never before it");
    }
}
