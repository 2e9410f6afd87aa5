//! The state of one lock in this process: its holds, and the callers that wait for it.
//!
//! One mutex per lock covers the queue and the holds. So a hand-off is one step for all callers;
//! so is the queueing of a release with the wake-up of the head of the queue. The mutex is never
//! held across I/O.
//!
//! * A thread that already holds the lock *re-enters*: its hold counts one more guard.
//! * Any other caller joins the queue. The head of the queue asks the server: at once if no thread
//!   of this process holds the lock; otherwise after the release or the loss of that hold, or when
//!   the watchdog's poll finds the lock free. If the server then grants the lock, the earlier
//!   hold of this process is lost.
//! * The end of the last guard hands the hold off to the head of the queue, within bounds. If
//!   nobody is in the queue, the hold may linger, for the next caller of the process (`linger.rs`).
//!   Otherwise the release is queued on a connection *before* the head is woken, and the head's
//!   acquire follows it on the same connection.
//! * A process that takes the lock again and again while others listen for its release yields
//!   (`fairness.rs`).
//!
//! Folder: `queue.rs` the queue, `table.rs` the holds with their guards, `hold/` the life of one
//! hold, `state.rs` the state under the mutex, `mailbox.rs` the news of a caller, `turn.rs` its
//! turn, `waiters.rs` the callers that wait for a queue lock, `permits.rs` those that wait for permits,
//! `release.rs` the end of a guard, `linger.rs` holds without a guard, `release_outcome.rs` the
//! meaning of a release's reply, `fairness.rs` the yields, `details.rs` what others may ask about a
//! hold. Imports `kind`, `command`, `events`, the channels of `transport`, `error`
//! and `util`. Read this file, `turn.rs`, `release.rs`, then the rest.

mod details;
mod fairness;
pub(crate) mod hold;
mod linger;
pub(crate) mod mailbox;
pub(crate) mod permit_queue;
pub(crate) mod permits;
pub(crate) mod queue;
mod release;
mod release_outcome;
mod state;
pub(crate) mod table;
#[cfg(all(test, not(leasehold_model)))]
mod tests;
mod turn;
pub(crate) mod waiters;

use std::fmt;
use std::ops::Deref;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::command::name::Name;
use crate::command::owner::{Holder, Owner, ThreadId};
use crate::error::{LostReason, Result};
use crate::events::{Acquired, Event, EventSink, HandleListener, Kind, Lost, Overdue};
use crate::kind::rules::{KindRules, ListensTo};
use crate::local::hold::{Grant, HandoffBounds, Hold, HoldSettings, HoldStatus};
use crate::local::mailbox::Mailbox;
use crate::local::permits::PermitCallers;
use crate::local::queue::Ticket;
use crate::local::state::LocalState;
use crate::local::table::{EntryOutcome, EntryRequest, HoldEntry};
use crate::transport::listener::channels::{Channel, Channels};
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Mutex;
use crate::util::system::OnceLock;

pub(crate) use fairness::YieldsTo;
pub(crate) use release::EndOutcome;
pub(crate) use turn::Turn;

#[cfg(all(test, leasehold_model))]
mod model;

/// The state of one lock in this process.
pub(crate) struct Local {
    name: Name,
    events: EventSink,
    bounds: HandoffBounds,
    channel: OnceLock<Arc<Channel>>,
    rw_channel: OnceLock<Arc<Channel>>,
    permits: OnceLock<Arc<PermitCallers>>,
    latch_channel: OnceLock<Arc<Channel>>,
    /// The last `with_permits` that a reply has confirmed, or [`WARNED`]; 0 before.
    known_capacity: AtomicU64,
    /// Whether a hold lingers: a copy, so that callers of other locks need no mutex.
    is_idle: AtomicBool,
    state: Mutex<LocalState>,
}

/// The known capacity of a semaphore after the warning about another one. No `u32` is as large.
const WARNED: u64 = u64::MAX;

/// A caller in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) request: EntryRequest,
    pub(crate) holder: Holder,
    pub(crate) settings: HoldSettings,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// The place of a caller that has come to the queue.
#[derive(Debug)]
pub(crate) enum JoinOutcome {
    Queued(Ticket),
    /// A hold has begun to linger: take it over or give it up, and join again.
    BehindIdle,
    /// The caller does not wait, and the process holds the lock or the queue has callers.
    Refused,
}

impl Caller {
    /// Returns the calling thread, as a caller for itself.
    #[cfg(test)]
    pub(crate) fn new(request: EntryRequest) -> Caller {
        Caller::of(request, None, &HoldSettings::default())
    }

    /// Returns the calling thread, as a caller for itself or on behalf of another holder.
    pub(crate) fn of(
        request: EntryRequest,
        on_behalf: Option<&Holder>,
        settings: &HoldSettings,
    ) -> Caller {
        let holder = Holder::of_caller(on_behalf, request.owned);
        Caller { request, holder, settings: settings.clone(), mailbox: Mailbox::mine() }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Local").field(&self.name.given()).finish()
    }
}

/// A panic leaves the state consistent: callbacks run without the mutex
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for Local {}

impl Local {
    pub(crate) fn new(name: Name, events: EventSink, bounds: HandoffBounds) -> Local {
        Local {
            name,
            events,
            bounds,
            channel: OnceLock::new(),
            rw_channel: OnceLock::new(),
            permits: OnceLock::new(),
            latch_channel: OnceLock::new(),
            known_capacity: AtomicU64::new(0),
            is_idle: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the channel on which releases of this lock are published.
    ///
    /// `None` for a kind without a common channel.
    pub(crate) fn channel(&self, listens: ListensTo, channels: &Channels) -> Option<&Arc<Channel>> {
        let name = match listens {
            ListensTo::Lock => self.name.channel(),
            ListensTo::ReadWrite => self.name.rw_channel(),
            ListensTo::Permits => return Some(self.permits(channels).channel()),
            ListensTo::Latch => self.name.latch_channel(),
            ListensTo::OwnChannel | ListensTo::Grants | ListensTo::Nothing => return None,
        };
        Some(self.channel_cell(listens)?.get_or_init(|| channels.channel(name)))
    }

    /// Returns the channel on which releases are published, if this process has used it before.
    pub(crate) fn known_channel(&self, listens: ListensTo) -> Option<&Arc<Channel>> {
        match listens {
            ListensTo::Permits => self.known_permits().map(|callers| callers.channel()),
            _ => self.channel_cell(listens)?.get(),
        }
    }

    /// Returns whether a call need not ask if the semaphore has this capacity.
    pub(crate) fn knows_capacity(&self, wanted: u32) -> bool {
        let known = self.known_capacity.load(Ordering::Relaxed);
        known == WARNED || known == u64::from(wanted)
    }

    /// Notes whether the semaphore has this capacity. Returns whether to warn, which is once.
    pub(crate) fn learn_capacity(&self, wanted: u32, is_other: bool) -> bool {
        let known = if is_other { WARNED } else { wanted.into() };
        let before = self.known_capacity.load(Ordering::Relaxed);
        before != WARNED && self.known_capacity.swap(known, Ordering::Relaxed) != WARNED && is_other
    }

    /// Returns the callers of this process that wait for permits.
    pub(crate) fn permits(&self, channels: &Channels) -> &Arc<PermitCallers> {
        let callers = || PermitCallers::on(channels.channel(self.name.permits_channel()));
        self.permits.get_or_init(callers)
    }

    /// Returns the callers that wait for permits, if this process has used the channel before.
    pub(crate) fn known_permits(&self) -> Option<&Arc<PermitCallers>> {
        self.permits.get()
    }

    fn channel_cell(&self, listens: ListensTo) -> Option<&OnceLock<Arc<Channel>>> {
        match listens {
            ListensTo::Lock => Some(&self.channel),
            ListensTo::ReadWrite => Some(&self.rw_channel),
            ListensTo::Latch => Some(&self.latch_channel),
            ListensTo::Permits | ListensTo::OwnChannel | ListensTo::Grants | ListensTo::Nothing => {
                None
            }
        }
    }

    /// Re-enters the hold of the thread, or returns how the caller gets a new one.
    ///
    /// `holder` is the name of a named holder. Fails with `is_lost` if the thread has lost its
    /// hold and still has a guard, and with `is_deadlock` if the thread would wait for itself.
    pub(crate) fn enter(
        &self,
        request: &EntryRequest,
        holder: Option<&Arc<str>>,
        thread: ThreadId,
        now: Moment,
    ) -> Result<EntryOutcome> {
        let mut state = self.state.lock();
        let lost = state.end_expired(now);
        let outcome = state.enter(request, holder, thread, now);
        drop(state);
        self.report_lost(lost);
        outcome
    }

    /// Returns whether the caller waits for an owned guard that the calling thread took.
    pub(crate) fn awaits_own_guard(&self, caller: &Caller, owner: &Owner, now: Moment) -> bool {
        let (state, thread) = (self.state.lock(), ThreadId::current());
        state.awaits_own_guard(&caller.request, owner.as_bytes(), thread, now)
    }

    /// Appends a caller to the queue.
    pub(crate) fn join_queue(&self, caller: Caller, now: Moment) -> JoinOutcome {
        let mut state = self.state.lock();
        if state.lingering.has_idle_hold() {
            return JoinOutcome::BehindIdle;
        }
        let free = state.queue.is_empty() && !state.is_held(now);
        if !free && !caller.request.waits {
            return JoinOutcome::Refused;
        }
        JoinOutcome::Queued(state.queue.enter(caller))
    }

    /// Returns the number of callers in the queue.
    pub(crate) fn queue_len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Removes a caller from the queue.
    ///
    /// Returns the hold that was handed off to this caller meanwhile, if any. It has to be used or
    /// released.
    pub(crate) fn leave(&self, ticket: Ticket, caller: &Caller) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        let was_head = state.queue.is_head(ticket);
        state.queue.leave(ticket);
        if was_head {
            state.wake_head();
        }
        drop(state);
        caller.mailbox.take_handed_off()
    }

    /// Adds a hold that the server granted, and removes its caller from the queue.
    ///
    /// Other holds of this process that cannot be valid beside the new one are lost.
    pub(crate) fn granted(
        &self,
        ticket: Option<Ticket>,
        caller: &Caller,
        grant: Grant,
        round_trip: Duration,
    ) -> Arc<Hold> {
        let mut state = self.state.lock();
        let hold = Arc::new(Hold::new(grant));
        state.last_error = None;
        // The callers for a queue lock never yield, and a grant by message has no round trip.
        if hold.rules().listens_to() != ListensTo::Grants {
            state.fairness.granted(hold.granted_at(), round_trip);
        }
        let mut lost = state.lose_others(&hold, &caller.holder);
        lost.extend(state.lingering.lose_idle(&hold));
        self.is_idle.store(state.lingering.has_idle_hold(), Ordering::Relaxed);
        state.lingering.granted(&hold, hold.granted_at());
        if let Some(ticket) = ticket {
            state.queue.leave(ticket);
            if let Some(superseded) = caller.mailbox.take_handed_off() {
                state.holds.remove(&superseded);
            }
        }
        state.waiters.remove(hold.id().number());
        state.holds.insert(Arc::clone(&hold), caller.holder.clone());
        state.acquired += 1;
        state.wake_head();
        drop(state);
        self.events.stats().series(|| hold.series_key()).acquired();
        self.report_lost(lost);
        hold
    }

    /// Returns the number of guards and detached shares of the thread.
    ///
    /// Counts only valid holds for which `matches` returns `true`.
    pub(crate) fn count(
        &self,
        matches: impl Fn(&Hold) -> bool,
        thread: ThreadId,
        now: Moment,
    ) -> usize {
        let state = self.state.lock();
        let own = state.holds.of_thread(thread).filter(|entry| matches(&entry.hold));
        let own: Vec<_> = own.map(|entry| (Arc::clone(&entry.hold), entry.count())).collect();
        drop(state);
        let valid = own.iter().filter(|(hold, _)| self.is_valid(hold, now));
        valid.map(|(_, count)| count).sum()
    }

    /// Returns whether the hold is valid. Reports its loss if this call notices it first.
    pub(crate) fn is_valid(&self, hold: &Hold, now: Moment) -> bool {
        match hold.status(now) {
            HoldStatus::Held => true,
            HoldStatus::Over { newly_lost } => {
                self.report_lost(newly_lost.then_some(hold));
                false
            }
        }
    }

    /// Ends the holds whose deadline has passed, and reports their losses.
    pub(crate) fn notice_expired(&self, now: Moment) {
        let lost = self.state.lock().end_expired(now);
        self.report_lost(lost);
    }

    /// Ends a hold that the server no longer has.
    pub(crate) fn lose(&self, hold: &Hold) {
        self.report_lost(hold.lose().then_some(hold));
    }

    /// Ends the holds that a server does not have, as the answer to a question at `asked` shows.
    ///
    /// A hold whose grant was read later may be younger than the answer. Returns the lost holds.
    pub(crate) fn lose_absent(
        &self,
        asked: Moment,
        is_absent: impl Fn(&Hold) -> bool,
    ) -> Vec<Arc<Hold>> {
        let mut absent = self.holds();
        absent.retain(|hold| hold.granted_at() <= asked && is_absent(hold));
        for hold in &absent {
            self.lose(hold);
        }
        absent
    }

    /// Returns whether the calling thread holds the lock and cannot get it again.
    ///
    /// True for a hold of another kind, and for a request of an owned guard.
    pub(crate) fn blocks_own_thread(
        &self,
        rules: &dyn KindRules,
        owned: bool,
        now: Moment,
    ) -> bool {
        let state = self.state.lock();
        let other = |entry: &HoldEntry| owned || entry.hold.rules().kind() != rules.kind();
        let mut own = state.holds.of_thread(ThreadId::current());
        own.any(|entry| other(entry) && !entry.hold.remaining(now).is_zero())
    }

    /// Returns all holds of this process.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let state = self.state.lock();
        state.all_holds().map(|entry| Arc::clone(&entry.hold)).collect()
    }

    /// Ends the count of all holds: the client is gone, so no thread will notice their ends.
    ///
    /// Only detached holds can be left. The server still keeps them to the end of their leases.
    pub(crate) fn abandon_holds(&self) {
        let holds = self.state.lock().end_expired(Moment::END);
        for hold in &holds {
            self.events.stats().series(|| hold.series_key()).abandoned();
        }
    }

    /// Returns the counters of the client, and its queue to the events thread.
    pub(crate) fn events(&self) -> &EventSink {
        &self.events
    }

    /// Counts, logs and emits losses, makes the calls of `on_lost`, and wakes the queue's head.
    ///
    /// The caller must not hold the mutex.
    pub(crate) fn report_lost<H: Deref<Target = Hold>>(&self, lost: impl IntoIterator<Item = H>) {
        let mut any = false;
        for hold in lost {
            any = true;
            if hold.is_idle() {
                self.report_idle_end(&hold);
                continue;
            }
            let reason = hold.lost_reason();
            if reason == LostReason::HeldTooLong {
                self.report_overdue(&hold, clock::now());
            }
            self.events.stats().series(|| hold.series_key()).lost(reason);
            let name = Arc::clone(self.name.given());
            let (kind, number) = hold.kind_and_number();
            log::warn!(
                logger: LINES, target: log_target::LEASE,
                lock = &*name, kind:?, hold = number, reason:?;
                "{} {name:?} was lost: {reason}", kind.subject()
            );
            let settings = hold.settings();
            hold.tell_lost(|present| {
                let listener = settings.listener().filter(|_| present);
                self.emit_lost(listener, (kind, number), reason);
            });
            hold.note_loss_reported();
        }
        if any {
            self.state.lock().wake_head();
        }
    }

    /// Logs and emits, once, that a hold has passed the limit of its holder.
    ///
    /// The caller must not hold the mutex.
    pub(crate) fn report_overdue(&self, hold: &Hold, now: Moment) {
        let Some(held) = hold.take_overdue(now) else { return };
        let (name, (kind, number)) = (Arc::clone(self.name.given()), hold.kind_and_number());
        log::warn!(
            logger: LINES, target: log_target::LEASE, lock = &*name, kind:?, hold = number;
            "{} {name:?} is held beyond its limit: it is not renewed any more", kind.subject()
        );
        let settings = hold.settings();
        hold.tell_overdue(held, || self.emit_overdue(settings.listener(), (kind, number), held));
    }

    /// Emits the event of a call that got the lock, and the events that have waited for it.
    pub(crate) fn report_acquired(&self, hold: &Hold, waited: Duration) {
        let id = hold.kind_and_number();
        let untold = hold.tell_acquired(|listener| {
            let (kind, hold) = id;
            self.emit(listener, |at, name| {
                Event::Acquired(Acquired { at, name, kind, hold, waited })
            });
        });
        if let Some(held) = untold.overdue {
            self.emit_overdue(hold.settings().listener(), id, held);
        }
        if untold.lost {
            self.emit_lost(hold.settings().listener(), id, hold.lost_reason());
        }
    }

    fn emit_lost(
        &self,
        listener: Option<&HandleListener>,
        (kind, hold): (Kind, u64),
        reason: LostReason,
    ) {
        self.emit(listener, |at, name| Event::Lost(Lost { at, name, kind, hold, reason }));
    }

    fn emit_overdue(
        &self,
        listener: Option<&HandleListener>,
        (kind, hold): (Kind, u64),
        held: Duration,
    ) {
        self.emit(listener, |at, name| Event::Overdue(Overdue { at, name, kind, hold, held }));
    }

    /// Emits an event of this lock, which happens now.
    fn emit(
        &self,
        listener: Option<&HandleListener>,
        event: impl FnOnce(SystemTime, Arc<str>) -> Event,
    ) {
        self.events
            .emit_with(listener, || event(clock::wall_time(), Arc::clone(self.name.given())));
    }
}
