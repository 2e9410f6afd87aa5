//! What one process knows of one lock: who holds it here, and who waits.
//!
//! One mutex per lock and process, never held across I/O, joins the gate with the
//! holds: a hold is passed to the front, or released and the front told, in one
//! step that no caller can come between.
//!
//! * A caller that holds the lock already, on this thread, *re-enters*: a count.
//! * Everyone else stands in line at the gate. The front asks the server: at once
//!   if nobody here holds the lock, else when that hold is released or lost, and when
//!   the watchdog's poll finds the lock free, in any case. If it is granted the lock all
//!   the same, whoever held it here has lost it.
//! * A process that has taken the lock again and again, while others listen for its
//!   release, yields (`runs.rs`).
//! * The guard that ends a hold passes it to the front, within bounds, or has the
//!   release queued *before* the front is told; the front's question then stands
//!   behind it in the same line to the server.

mod fairness;
pub(crate) mod hold;
pub(crate) mod queue;
pub(crate) mod table;

use std::fmt;
use std::ops::Deref;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::command::call::ConnectionId;
use crate::command::name::Name;
use crate::command::owner::{HoldId, Holder, ThreadId};
use crate::error::{Error, LostReason, Result};
use crate::events::{Event, EventSink, Lost};
use crate::kind::rules::{KindRules, ListensTo, OtherHold};
use crate::listener::channels::{Channel, SubscriptionState, Waiters};
use crate::local::fairness::Fairness;
use crate::local::hold::{Grant, HandoffBounds, Hold, HoldStatus};
use crate::local::queue::{Ticket, WaitQueue};
use crate::local::table::{EntryOutcome, EntryRequest, HoldEntry, HoldShare, HoldTable};
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;

#[cfg(all(test, leasehold_model))]
mod model;

/// One lock, as seen from this process.
pub(crate) struct Local {
    name: Name,
    events: EventSink,
    bounds: HandoffBounds,
    channel: OnceLock<Arc<Channel>>,
    rw_channel: OnceLock<Arc<Channel>>,
    state: Mutex<LocalState>,
}

#[derive(Debug, Default)]
struct LocalState {
    queue: WaitQueue<Caller>,
    /// Holds that were passed to callers who have not woken up yet.
    handed: Vec<(Ticket, Arc<Hold>)>,
    holds: HoldTable,
    /// The releases that have no answer yet, and the lines in which they stand: one at most,
    /// but of a kind that is shared.
    background: Vec<Owed>,
    /// Why the last question of this process got no answer.
    last_error: Option<Error>,
    fairness: Fairness,
    /// The watchdog polls the server for those who stand in line.
    polled: bool,
    /// It has something for the front to ask about.
    may_be_free: bool,
    /// That of a hold that is gone, to be used again.
    spare: Option<Arc<Hold>>,
}

/// A release without an answer.
#[derive(Debug)]
struct Owed {
    hold: HoldId,
    connection: ConnectionId,
}

/// A caller in line.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) request: EntryRequest,
    pub(crate) holder: Holder,
    pub(crate) parker: Arc<Parker>,
}

impl Caller {
    /// Returns the calling thread.
    #[cfg(test)]
    pub(crate) fn new(request: EntryRequest) -> Caller {
        Caller::of(request, None)
    }

    /// The calling thread, for itself or on behalf of another.
    pub(crate) fn of(request: EntryRequest, other: Option<&Holder>) -> Caller {
        let holder = match other {
            Some(other) => other.clone(),
            None if request.owned => Holder::owned(),
            None => Holder::this_thread(),
        };
        Caller { request, holder, parker: Parker::mine() }
    }
}

/// What a caller in line has to do.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Wait until the mailbox rings.
    Behind,
    /// Wait for the hold of a thread of this process, but ask at the poll interval.
    HeldHere,
    /// Ask the server, behind what stands in that line.
    Ask(Option<ConnectionId>),
    /// The same, though a thread of this process may hold it: a poll found it free.
    AskAtOnce(Option<ConnectionId>, bool),
    /// The same, but not before that moment, out of regard for other processes.
    Yield(Moment, Option<ConnectionId>),
    /// Go: a hold was passed to it.
    Handed(Arc<Hold>),
}

/// What the end of a guard meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EndOutcome {
    /// The hold has other guards.
    Nested,
    /// The hold went on to another thread of this process.
    HandedOff,
    /// The release stands in line.
    Queued,
    /// The hold was lost before.
    Lost,
    /// What was detached has been ended before.
    NotHeld,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Local").field(&self.name.given()).finish()
    }
}

/// A panic leaves it in order: loggers and callbacks run with no lock held (`tests/panics.rs`).
impl RefUnwindSafe for Local {}

impl Local {
    pub(crate) fn new(name: Name, events: EventSink, bounds: HandoffBounds) -> Local {
        let [channel, rw_channel] = [OnceLock::new(), OnceLock::new()];
        Local { name, events, bounds, channel, rw_channel, state: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// The channel on which releases of this lock are heard; `None` if there is none that
    /// its callers share.
    pub(crate) fn channel(&self, listens: ListensTo, waiters: &Waiters) -> Option<&Arc<Channel>> {
        let name = match listens {
            ListensTo::Lock => self.name.channel(),
            ListensTo::ReadWrite => self.name.rw_channel(),
            ListensTo::Itself | ListensTo::Nothing => return None,
        };
        Some(self.cell(listens)?.get_or_init(|| waiters.channel(name)))
    }

    /// The same, if anybody here has ever waited.
    pub(crate) fn known_channel(&self, listens: ListensTo) -> Option<&Arc<Channel>> {
        self.cell(listens)?.get()
    }

    fn cell(&self, listens: ListensTo) -> Option<&OnceLock<Arc<Channel>>> {
        match listens {
            ListensTo::Lock => Some(&self.channel),
            ListensTo::ReadWrite => Some(&self.rw_channel),
            ListensTo::Itself | ListensTo::Nothing => None,
        }
    }

    /// How the calling thread comes to what it wants: counts one more guard of the hold that
    /// it has, if it has one. An error if it has lost that, or would wait for itself.
    /// `holder` is the name that the hold is to have, if it has one.
    pub(crate) fn enter(
        &self,
        request: &EntryRequest,
        holder: Option<&Arc<str>>,
        thread: ThreadId,
        now: Moment,
    ) -> Result<EntryOutcome> {
        let mut state = self.state.lock();
        let newly_lost = state.look_at_all(now);
        let entry = state.enter(request, holder, thread, now);
        drop(state);
        self.report_lost(newly_lost, LostReason::Expired);
        entry
    }

    /// Stands in line; not a caller that would have to wait and does not.
    pub(crate) fn join_queue(&self, caller: Caller, now: Moment) -> Option<Ticket> {
        let mut state = self.state.lock();
        let free = state.queue.is_empty() && !state.is_held(now);
        (free || caller.request.waits).then(|| state.queue.enter(caller))
    }

    /// How many stand in line.
    pub(crate) fn queue_len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// What a caller has to do now that stands in no line.
    pub(crate) fn turn_unqueued(&self, now: Moment) -> Turn {
        let mut state = self.state.lock();
        let newly_lost = state.look_at_all(now);
        let turn = Turn::Ask(state.connection());
        drop(state);
        self.report_lost(newly_lost, LostReason::Expired);
        turn
    }

    /// What the caller with that ticket has to do now.
    pub(crate) fn turn(&self, ticket: Ticket, now: Moment) -> Turn {
        let mut state = self.state.lock();
        if let Some(lease) = state.take_handed(ticket) {
            return Turn::Handed(lease);
        }
        if !state.queue.is_head(ticket) {
            return Turn::Behind;
        }
        let newly_lost = state.look_at_all(now);
        let held = state.is_held(now);
        let turn = match std::mem::take(&mut state.may_be_free) {
            true => Turn::AskAtOnce(state.connection(), held),
            false if held => Turn::HeldHere,
            false => state.free_turn(now, &self.bounds),
        };
        drop(state);
        self.report_lost(newly_lost, LostReason::Expired);
        turn
    }

    /// The server granted the lock to a caller: it leaves the line, where it stands in one,
    /// and holds. Whoever held it here does not any more, unless they share.
    pub(crate) fn granted(
        &self,
        ticket: Option<Ticket>,
        caller: &Caller,
        grant: Grant,
        round_trip: Duration,
    ) -> Arc<Hold> {
        let mut state = self.state.lock();
        let lease = state.lease(grant);
        state.last_error = None;
        state.fairness.granted(lease.granted(), round_trip);
        let newly_lost = state.lose_others(&lease, &caller.holder);
        if let Some(ticket) = ticket {
            if let Some(stale) = state.take_handed(ticket) {
                state.holds.remove(&stale);
            }
            state.queue.leave(ticket);
        }
        state.holds.insert(Arc::clone(&lease), caller.holder.clone());
        state.wake_head();
        drop(state);
        self.report_lost(newly_lost, LostReason::Gone);
        lease
    }

    /// The last question of this process got no answer, or one. Those behind the front
    /// know no more than it does.
    pub(crate) fn set_last_error(&self, trouble: Option<Error>) {
        let before = std::mem::replace(&mut self.state.lock().last_error, trouble);
        drop(before);
    }

    /// The server said that the lock is held: by another, if nobody here holds it.
    /// Whether a caller that waits has to have the server polled.
    pub(crate) fn refused(&self, now: Moment, waits: bool) -> bool {
        let mut state = self.state.lock();
        if !state.is_held(now) {
            state.fairness.end();
        }
        let trouble = state.last_error.take();
        let starts = waits && !state.polled;
        state.polled |= waits;
        drop(state);
        drop(trouble);
        starts
    }

    /// Whether the server is to be polled once more: while anybody stands in line.
    pub(crate) fn keep_polling(&self) -> bool {
        let mut state = self.state.lock();
        state.polled = !state.queue.is_empty();
        state.polled
    }

    /// A poll found the lock free, or nobody knows: the front is to ask.
    pub(crate) fn may_be_free(&self) {
        let mut state = self.state.lock();
        state.may_be_free = true;
        state.wake_head();
    }

    /// A release was heard by so many subscribers, this process perhaps among them.
    pub(crate) fn release_heard(&self, rules: &dyn KindRules, subscribers: u64) {
        let listens = rules.listens_to();
        // Readers of this process listen by themselves, and are others for who writes.
        let own = |channel: &Arc<Channel>| {
            let others = listens == ListensTo::ReadWrite && channel.is_waited_for();
            channel.subscription() == SubscriptionState::Everything && !others
        };
        let own = self.known_channel(listens).is_some_and(own);
        let mut state = self.state.lock();
        match listens {
            ListensTo::Nothing => state.fairness.unheard(),
            _ => state.fairness.heard(subscribers > u64::from(own)),
        }
    }

    /// Why nobody here knows whether the lock is free, if so.
    pub(crate) fn last_error(&self, now: Moment) -> Option<Error> {
        let state = self.state.lock();
        if state.is_held(now) { None } else { state.last_error.clone() }
    }

    /// The caller with that ticket leaves the line. The hold that was passed to it
    /// meanwhile, if one was: it must be released.
    pub(crate) fn leave(&self, ticket: Ticket) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        let was_front = state.queue.is_head(ticket);
        state.queue.leave(ticket);
        if was_front {
            state.wake_head();
        }
        state.take_handed(ticket)
    }

    /// Ends one guard of a hold, or one detach. If it was the last, the hold passes to
    /// the front, or `send` queues its release: no I/O, the mutex is held.
    pub(crate) fn end(
        &self,
        lease: &Arc<Hold>,
        counted: HoldShare,
        clock: impl FnOnce() -> Moment,
        send: impl FnOnce() -> ConnectionId,
    ) -> EndOutcome {
        let mut state = self.state.lock();
        let Some(held) = state.holds.entry_mut(lease).filter(|held| held.has(counted)) else {
            return if counted == HoldShare::Guard {
                EndOutcome::Lost
            } else {
                EndOutcome::NotHeld
            };
        };
        held.end(counted);
        if held.count() > 0 {
            return EndOutcome::Nested;
        }
        let now = clock();
        if state.hand_off(lease, now, &self.bounds) {
            return EndOutcome::HandedOff;
        }
        state.holds.remove(lease);
        let look = lease.release(now);
        state.fairness.released(now);
        if look == HoldStatus::Held {
            state.background.push(Owed { hold: lease.id(), connection: send() });
        }
        state.wake_head();
        drop(state);
        match look {
            HoldStatus::Held => EndOutcome::Queued,
            HoldStatus::Over { newly_lost } => {
                self.report_lost(newly_lost.then_some(&**lease), LostReason::Expired);
                EndOutcome::Lost
            }
        }
    }

    /// The line in which a release stands that has no answer yet: what is to see its
    /// effect has to stand behind it.
    pub(crate) fn background(&self) -> Option<ConnectionId> {
        self.state.lock().connection()
    }

    /// The release of that hold was answered, or will not be sent again.
    pub(crate) fn release_settled(&self, lease: &Arc<Hold>) {
        lease.set_gone();
        let mut state = self.state.lock();
        state.background.retain(|background| background.hold != lease.id());
        state.spare = Some(Arc::clone(lease));
    }

    /// One guard of the hold is detached: it counts, but nobody has it.
    pub(crate) fn detach(&self, lease: &Arc<Hold>) {
        self.state.lock().holds.detach(lease);
    }

    /// The detached hold that this thread may end: its own, one that was owned, or one
    /// whose thread has ended.
    pub(crate) fn detached(
        &self,
        mine: impl Fn(&Hold) -> bool,
        thread: ThreadId,
        now: Moment,
    ) -> Option<(Arc<Hold>, HoldShare)> {
        let state = self.state.lock();
        state.holds.detached(thread, mine, |hold| !hold.remaining(now).is_zero())
    }

    /// How many guards and detached holds this thread has of those valid holds.
    pub(crate) fn count(
        &self,
        mine: impl Fn(&Hold) -> bool,
        thread: ThreadId,
        now: Moment,
    ) -> usize {
        let state = self.state.lock();
        let own = state.holds.of_thread(thread).filter(|held| mine(&held.hold));
        let own: Vec<_> = own.map(|held| (Arc::clone(&held.hold), held.count())).collect();
        drop(state);
        let valid = own.iter().filter(|(lease, _)| self.is_valid(lease, now));
        valid.map(|(_, count)| count).sum()
    }

    /// Whether the hold is valid. Tells of its loss if this look finds it out.
    pub(crate) fn is_valid(&self, lease: &Hold, now: Moment) -> bool {
        match lease.status(now) {
            HoldStatus::Held => true,
            HoldStatus::Over { newly_lost } => {
                self.report_lost(newly_lost.then_some(lease), LostReason::Expired);
                false
            }
        }
    }

    /// The server said that this hold is gone.
    pub(crate) fn lose(&self, lease: &Hold) {
        self.report_lost(lease.lose().then_some(lease), LostReason::Gone);
    }

    /// Whether this thread has the lock, and cannot get it again: as another kind, or as an
    /// owned guard.
    pub(crate) fn blocks_own_thread(
        &self,
        rules: &dyn KindRules,
        owned: bool,
        now: Moment,
    ) -> bool {
        let state = self.state.lock();
        let other = |held: &HoldEntry| owned || held.hold.rules().kind() != rules.kind();
        let mut own = state.holds.of_thread(ThreadId::current());
        own.any(|held| other(held) && !held.hold.remaining(now).is_zero())
    }

    /// All holds of this process at this moment.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.state.lock().holds.iter().map(|held| Arc::clone(&held.hold)).collect()
    }

    /// Tells of what happened, if anybody wants to know.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        self.events.emit(event);
    }

    /// Tells of losses, and opens the gate. To be called with no lock held.
    pub(crate) fn report_lost<L: Deref<Target = Hold>>(
        &self,
        lost: impl IntoIterator<Item = L>,
        reason: LostReason,
    ) {
        let mut any = false;
        for lease in lost {
            any = true;
            let name = Arc::clone(self.name.given());
            // A guard may be dropped here while its thread unwinds.
            threads::say(|| log::warn!("the lock {name:?} was lost: {reason}"));
            let (kind, hold) = lease.kind_and_number();
            let at = clock::wall_time;
            self.events.emit(|| Event::Lost(Lost { at: at(), name, kind, hold, reason }));
        }
        if any {
            self.state.lock().wake_head();
        }
    }
}

impl LocalState {
    /// Ends what is behind its deadline, and forgets it where nobody is left to be told:
    /// what a thread left when it ended, and what was detached, unless a thread counts on
    /// its renewal. The losses that are news.
    fn look_at_all(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let mut newly_lost = Vec::new();
        self.holds.retain(|held| match held.hold.status(now) {
            HoldStatus::Held => true,
            HoldStatus::Over { newly_lost: messages } => {
                newly_lost.extend(messages.then(|| Arc::clone(&held.hold)));
                !held.holder.has_ended() && (held.guards > 0 || held.is_counted_on())
            }
        });
        newly_lost
    }

    /// Ends all holds beside which that one cannot be.
    fn lose_others(&mut self, lease: &Hold, holder: &Holder) -> Vec<Arc<Hold>> {
        let lost = |held: &&HoldEntry| {
            let other = OtherHold {
                kind: held.hold.rules().kind(),
                owner: held.hold.owner(),
                same_thread: held.holder.is_same_thread(holder),
            };
            !lease.rules().shares_with(lease.owner().as_bytes(), &other) && held.hold.lose()
        };
        self.holds.iter().filter(lost).map(|held| Arc::clone(&held.hold)).collect()
    }

    fn enter(
        &mut self,
        request: &EntryRequest,
        holder: Option<&Arc<str>>,
        thread: ThreadId,
        now: Moment,
    ) -> Result<EntryOutcome> {
        let same = |held: &&mut HoldEntry| {
            held.holder.is_thread(thread) && held.hold.rules().kind() == request.rules.kind()
        };
        match self.holds.iter_mut().find(same) {
            Some(held) if !request.owned && request.rules.re_enters() => held.again(now),
            _ => {
                let owner = holder.map_or(&[][..], |it| it.as_bytes());
                let entry = EntryOutcome::of(self.holds.of_thread(thread), request, owner, now)?;
                self.check_owned(request, owner, thread, now).map(|()| entry)
            }
        }
    }

    /// An error for a wait without end beside an owned guard that the caller's thread took.
    fn check_owned(
        &self,
        request: &EntryRequest,
        owner: &[u8],
        thread: ThreadId,
        now: Moment,
    ) -> Result<()> {
        let bars = |held: &HoldEntry| {
            held.is_owned_guard_of(thread) && held.is_in_the_way(request, owner, now)
        };
        match request.endless && !request.owned && self.holds.iter().any(bars) {
            true => Err(table::deadlock_with_owned()),
            false => Ok(()),
        }
    }

    /// Whether any hold is valid. Ends none: a loss that it came upon would not be told.
    fn is_held(&self, now: Moment) -> bool {
        self.holds.iter().any(|held| !held.hold.remaining(now).is_zero())
    }

    /// The line in which a release stands that has no answer yet.
    fn connection(&self) -> Option<ConnectionId> {
        self.background.last().map(|background| background.connection)
    }

    fn take_handed(&mut self, ticket: Ticket) -> Option<Arc<Hold>> {
        let at = self.handed.iter().position(|(to, _)| *to == ticket)?;
        Some(self.handed.swap_remove(at).1)
    }

    /// A lease for what was granted.
    fn lease(&mut self, grant: Grant) -> Arc<Hold> {
        let lease = Hold::new(grant);
        let Some(mut spare) = self.spare.take() else { return Arc::new(lease) };
        match Arc::get_mut(&mut spare) {
            Some(unused) => *unused = lease,
            None => spare = Arc::new(lease),
        }
        spare
    }

    fn hand_off(&mut self, lease: &Arc<Hold>, now: Moment, bounds: &HandoffBounds) -> bool {
        let Some((ticket, head)) = self.queue.head() else { return false };
        let (holder, request) = (head.holder.clone(), head.request);
        // What its thread has beside it would stay behind.
        let same = |held: &&HoldEntry| Arc::ptr_eq(&held.hold, lease);
        let Some(own) = self.holds.iter().find(same).map(|held| &held.holder) else { return false };
        let beside = |other: &HoldEntry| !same(&other) && other.holder.is_same_thread(own);
        let alone = !self.holds.iter().any(beside);
        let Some(held) = self.holds.entry_mut(lease) else { return false };
        let fits = alone && request.renewed && held.hold.rules().kind() == request.rules.kind();
        if !fits || !held.hold.hand_off(now, bounds, &holder) {
            return false;
        }
        held.holder = holder;
        held.guards = 1;
        self.fairness.handed_off();
        self.handed.push((ticket, Arc::clone(lease)));
        if let Some(next) = self.queue.pop() {
            next.parker.unpark();
        }
        self.wake_head();
        true
    }

    /// What the front does while nobody here holds the lock. A caller that would not wait
    /// never has to yield.
    fn free_turn(&mut self, now: Moment, bounds: &HandoffBounds) -> Turn {
        let connection = self.connection();
        if !self.queue.head().is_some_and(|(_, head)| head.request.waits) {
            return Turn::Ask(connection);
        }
        match self.fairness.yields(now, bounds) {
            Some(end) => Turn::Yield(end, connection),
            None => Turn::Ask(connection),
        }
    }

    fn wake_head(&self) {
        if let Some((_, head)) = self.queue.head() {
            head.parker.unpark();
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::kind::plain::Plain;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(micros: u64) -> Moment {
        Moment::START + SECOND + Duration::from_micros(micros)
    }

    fn local(max_handoffs: u32) -> Local {
        let name = Name::new("", "a".into()).expect("a good name");
        let bounds = HandoffBounds { max_handoffs, max_time: MILLI, min_remaining: Duration::ZERO };
        Local::new(name, EventSink::default(), bounds)
    }

    fn caller(waits: bool) -> Caller {
        Caller::new(EntryRequest {
            rules: &Plain,
            owned: true,
            waits,
            endless: false,
            renewed: true,
        })
    }

    impl Local {
        fn come(&self, waits: bool, now: Moment) -> Ticket {
            self.join_queue(caller(waits), now).expect("it waits, or need not")
        }

        /// The server grants the lock to who has that ticket.
        fn grant(&self, ticket: Ticket, now: Moment, round_trip: Duration) -> Arc<Hold> {
            let grant = Grant::owned(now, now + SECOND);
            self.granted(Some(ticket), &caller(true), grant, round_trip)
        }

        /// And it is released at once.
        fn hold(&self, ticket: Ticket, now: Moment, round_trip: Duration) {
            let lease = self.grant(ticket, now, round_trip);
            assert_eq!(
                self.end(&lease, HoldShare::Guard, || now, || ConnectionId::at(0, 0)),
                EndOutcome::Queued
            );
            self.release_settled(&lease);
        }

        /// Takes the lock at that moment, and says until when it should have yielded.
        fn take(&self, waits: bool, now: Moment) -> Option<Moment> {
            let ticket = self.come(waits, now);
            let yields = match self.turn(ticket, now) {
                Turn::Yield(end, _) => Some(end),
                Turn::Ask(_) => None,
                other => panic!("not the front: {other:?}"),
            };
            self.hold(ticket, now, Duration::from_micros(100));
            yields
        }
    }

    #[test]
    fn a_caller_that_would_not_wait_need_not_yield() {
        let local = local(0);
        local.release_heard(&Plain, 1);
        assert_eq!(local.take(true, at(0)), None);
        assert_eq!(local.take(true, at(400)), None);
        assert_eq!(local.take(false, at(500)), None);
        assert_eq!(local.take(true, at(500)), Some(at(1000)));
    }

    #[test]
    fn a_refusal_ends_a_run() {
        let local = local(0);
        local.release_heard(&Plain, 1);
        assert_eq!(local.take(true, at(0)), None);
        local.refused(at(50), true);
        assert_eq!(local.take(true, at(400)), None);
        assert_eq!(local.take(true, at(600)), None);
        assert_eq!(local.take(true, at(900)), Some(at(1100)));
    }

    #[test]
    fn a_hold_of_its_own_neither_ends_a_run_nor_uses_it_up() {
        let local = local(0);
        local.release_heard(&Plain, 1);
        let first = local.come(true, at(0));
        let lease = local.grant(first, at(0), Duration::ZERO);
        let next = local.come(true, at(0));
        assert!(matches!(local.turn(next, at(50_000)), Turn::HeldHere));
        local.refused(at(50_000), true);
        assert_eq!(
            local.end(&lease, HoldShare::Guard, || at(60_000), || ConnectionId::at(0, 0)),
            EndOutcome::Queued
        );
        assert!(matches!(local.turn(next, at(60_000)), Turn::Yield(..)));
    }

    #[test]
    fn its_own_subscription_is_nobody_elses() {
        let (local, waiters) = (local(0), Waiters::default());
        let channel = local.channel(ListensTo::Lock, &waiters).expect("it has one");
        channel.set_hearing(SubscriptionState::Everything);
        for (subscribers, yields) in [(1, None), (2, Some(at(900)))] {
            local.refused(at(0), true);
            local.release_heard(&Plain, subscribers);
            assert_eq!(local.take(true, at(0)), None);
            assert_eq!(local.take(true, at(400)), None);
            assert_eq!(local.take(true, at(500)), yields);
        }
    }
}
