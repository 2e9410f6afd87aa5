//! The thread that keeps leases alive, and notices those that are lost.
//!
//! Every hold has a timer on one wheel: a hold that is renewed fires when two
//! thirds of its lease are left (a little later, spread, so that locks taken
//! together are not renewed together). A fixed lease fires after the same period, or at its
//! deadline: the server is asked whether it has the hold, and extends nothing. Taking and
//! dropping a lock costs one insert and one cancel, and no system call.
//!
//! What is due goes out in batches ([`batches`]), many calls per write, over a connection of
//! its own. "Not yours" ends a hold at once.
//! No answer (`renewal_failed`) leaves it valid to its deadline, and is tried again
//! until then. In a cluster nobody at one node waits for another: all is written before any answer is
//! read, with one deadline, and connections are made aside. When a connection of the client, its listener's excepted, was made
//! anew, every lease is renewed, or asked for, at once: a server that came back empty is noticed. (Not if
//! it names the same history of its data: [`histories`].) The same
//! if the server is another one by now (`topology.rs`), and all who wait are told to ask.
//!
//! The same thread polls for those who wait. A message that says that a lock is free
//! may be lost, so the server is asked at the poll interval in any case: not by each waiting
//! thread, but here for all of them, as many locks per script call. Where one is free, or
//! nobody knows, its front is told to ask.
//!
//! The same thread beats the drum for the listener: while that is connected, a
//! message on the client's own channel, at most a second apart, proves the path.

mod batches;
mod histories;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cancel::Limit;
use crate::command::call::{Call, Digits};
use crate::command::script::{self, Script};
use crate::connection::Timeouts;
use crate::error::{Error, LostReason, Result};
use crate::events::{Event, EventSink, RenewalFailed, Renewed};
use crate::listener::channels::Waiters;
use crate::local::Local;
use crate::local::hold::{Hold, HoldStatus, Renewal};
use crate::pool::request::{Answer, BackgroundTask, Failure, Request, TooFewReplicas};
use crate::pool::router::Router;
use crate::topology::audit::Auditor;
use crate::topology::failover::OnReconnect;
use crate::topology::route::Generation;
use crate::util::clock::{self, Moment, jittered, millis};
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;
use crate::util::wheel::Wheel;
use batches::NoAnswer;
use histories::Histories;

/// The grain of the timers.
const TICK: Duration = Duration::from_millis(5);

/// No sleep is longer, so that a suspended machine is late by no more.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How much of its lease a hold has left when its renewal is due: two thirds.
const DUE: (u32, u32) = (2, 3);

/// Renewals are spread over this part of the lease, and those that fall into the same
/// grain, this part of it, go out together.
const SPREAD: u32 = 12;
const GRAIN: u32 = 120;

/// How long a connection is waited for that is being made, or another server.
const SOON: Duration = Duration::from_millis(250);

/// Polls that fall into this part of the poll interval go together. They are planned for the
/// last part but one, so that the front can ask within the bound.
const POLL_GRAIN: u32 = 8;

/// The part of a lease that one renewal may wait for its answer.
const PATIENCE: u32 = 6;

/// A hold, and all that is needed to renew it.
#[derive(Clone, Debug)]
pub(crate) struct WatchedHold {
    pub(crate) local: Arc<Local>,
    pub(crate) hold: Arc<Hold>,
}

/// The lease with which a script that renews only looks: no key has less left.
const LOOK: &[u8] = b"-2";

/// A hold that the server is to be asked for now.
#[derive(Debug)]
struct Due {
    watched: WatchedHold,
    /// Its lease is to be extended.
    renewed: bool,
}

/// How the watchdog is set up.
#[derive(Debug)]
pub(crate) struct WatchdogSettings {
    /// The lease that it renews.
    pub(crate) timeout: Duration,
    /// How often the listeners are to be beaten.
    pub(crate) beat: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) events: EventSink,
}

/// The watchdog of one client.
pub(crate) struct Watchdog {
    settings: WatchdogSettings,
    router: Arc<Router>,
    waiters: Arc<Waiters>,
    auditor: Arc<Auditor>,
    timers: Mutex<Timers>,
    parker: Parker,
    renew_all: AtomicBool,
    /// A connection was made anew.
    reconnected: AtomicBool,
    histories: Histories,
    generation: Mutex<Generation>,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Timers {
    wheel: Wheel<WatchedHold>,
    polls: Wheel<Arc<Local>>,
    /// What has fired and is being seen to. A round that panics leaves it to the next.
    fired: Vec<WatchedHold>,
    polled: Vec<Arc<Local>>,
    /// When the thread will look next.
    planned: Moment,
}

/// How long the watchdog waits for connections and answers: while it does, it renews nothing.
pub(crate) fn timeouts(of: Timeouts, renewed: Duration) -> Timeouts {
    let longest = renewed / PATIENCE;
    Timeouts {
        connect: of.connect.min(longest),
        response: of.response.min(longest),
        replicas: of.replicas.min(longest),
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = self.timers.lock().wheel.len();
        f.debug_struct("Watchdog").field("holds", &holds).finish_non_exhaustive()
    }
}

impl OnReconnect for Watchdog {
    fn reconnected(&self) {
        self.reconnected.store(true, Ordering::Release);
        self.parker.unpark();
    }
}

impl Watchdog {
    pub(crate) fn new(
        settings: WatchdogSettings,
        router: Arc<Router>,
        waiters: Arc<Waiters>,
        auditor: Arc<Auditor>,
    ) -> Watchdog {
        let now = clock::now();
        Watchdog {
            settings,
            router,
            waiters,
            auditor,
            timers: Mutex::new(Timers::new(now)),
            parker: Parker::default(),
            renew_all: AtomicBool::new(false),
            reconnected: AtomicBool::new(false),
            histories: Histories::default(),
            generation: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    pub(crate) fn start(self: &Arc<Watchdog>) -> Result<JoinHandle<()>> {
        let watchdog = Arc::clone(self);
        threads::start("leasehold-watchdog", move || watchdog.run()).map_err(|error| {
            Error::configuration(format!("the watchdog thread cannot be started: {error}"))
        })
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.parker.unpark();
    }

    /// Looks after a hold until [`Watchdog::forget`].
    pub(crate) fn keep(&self, watched: WatchedHold) {
        match watched.hold.status(clock::now()) {
            HoldStatus::Held => self.ask_in_time(watched),
            HoldStatus::Over { newly_lost } => watched.over(newly_lost, &self.router),
        }
    }

    /// The same for a hold that was granted to a question which was sent when there were so
    /// many moves: after one more, all that are kept have been renewed already.
    pub(crate) fn keep_granted(&self, watched: WatchedHold, generation: Generation) {
        self.keep(watched);
        if self.router.generation() != generation {
            self.renew_all.store(true, Ordering::Release);
            self.parker.unpark();
        }
    }

    /// Sets the timer of a hold: a little later than it might be asked for, lest many are asked
    /// for in small batches, but not after the end of a fixed lease.
    fn ask_in_time(&self, watched: WatchedHold) {
        self.set_timer(watched, |watched| self.time_to_ask(watched));
    }

    fn time_to_ask(&self, watched: &WatchedHold) -> Moment {
        let (now, timeout) = (clock::now(), self.settings.timeout);
        let at = watched.hold.next_renewal(now, timeout - self.due_below(), self.due_below());
        let spread = jittered(timeout / SPREAD, watched.hold.id().seed());
        let later = (at + spread).rounded_up(timeout / GRAIN);
        match watched.hold.is_renewed() {
            _ if at <= now => now,
            true => later,
            false => later.min(now + watched.hold.remaining(now)),
        }
    }

    /// Drops the timer of a hold.
    pub(crate) fn forget(&self, lease: &Hold) {
        let timer = lease.take_timer();
        let watched = timer.and_then(|timer| self.timers.lock().wheel.cancel(timer));
        drop(watched);
    }

    fn due_below(&self) -> Duration {
        self.settings.timeout * DUE.0 / DUE.1
    }

    fn set_timer(&self, watched: WatchedHold, at: impl FnOnce(&WatchedHold) -> Moment) {
        let lease = Arc::clone(&watched.hold);
        let mut timers = self.timers.lock();
        // No earlier: a later timer must not replace one that was set meanwhile, of a lease
        // that is renewed from now on.
        let at = at(&watched);
        let timer = timers.wheel.insert(at, watched);
        let too_late = timers.hurry(at);
        // Before the wheel is let go: the watchdog may fire this timer at once and set
        // the next, which must not be taken for the one before.
        let superseded = lease.set_timer(timer);
        let superseded = superseded.and_then(|timer| timers.wheel.cancel(timer));
        drop(timers);
        drop(superseded);
        if too_late {
            self.parker.unpark();
        }
    }

    /// Has the server polled for those who wait for that lock, while anybody does.
    pub(crate) fn poll(&self, local: Arc<Local>) {
        let bound = self.settings.poll_interval;
        let grain = bound / POLL_GRAIN;
        let at = (clock::now() + (bound - 2 * grain)).rounded_up(grain);
        let mut timers = self.timers.lock();
        timers.polls.insert(at, local);
        let too_late = timers.hurry(at);
        drop(timers);
        if too_late {
            self.parker.unpark();
        }
    }

    fn run(&self) {
        let mut next_beat = Moment::START;
        while !self.stop.load(Ordering::Acquire) {
            let round = || self.round(&mut next_beat);
            let planned = threads::survive("renewing leases", round);
            self.parker.park_until(planned.unwrap_or_else(|| self.after_a_panic()));
        }
    }

    /// Nobody knows how far the round has come; when the next is to be.
    fn after_a_panic(&self) -> Moment {
        self.renew_all.store(true, Ordering::Release);
        clock::now() + threads::PAUSE
    }

    /// Sees to all that is due; when it has to look again.
    fn round(&self, next_beat: &mut Moment) -> Moment {
        let now = clock::now();
        let (fired, polled) = self.timers.lock().advance(now);
        self.follow();
        let mut due = self.look_at(fired, now);
        let reconnected = self.reconnected.swap(false, Ordering::AcqRel);
        let renew_all = self.renew_all.swap(false, Ordering::AcqRel);
        if renew_all {
            due.extend(self.all());
        }
        self.renew(due);
        if reconnected && !renew_all {
            self.renew(self.all_that_may_be_gone());
        }
        self.look_for_free(polled);
        let seen_to = self.timers.lock().take_fired();
        drop(seen_to);
        self.audit();
        if !self.waiters.is_listening() {
            return self.plan(Moment::END);
        }
        if *next_beat <= now {
            *next_beat = now + self.settings.beat;
            self.beat();
        }
        self.plan(*next_beat)
    }

    /// Looks at servers that are new how they are set up.
    fn audit(&self) {
        for (server, connection) in self.router.connected_servers() {
            let ask = |schedule| self.router.call_all(schedule, connection);
            // It was reported; the client is built, so there is nothing to refuse any more.
            let _ = self.auditor.look(server, ask);
        }
    }

    /// Leaves a server that is not the one any more, and has those who wait ask the other.
    fn follow(&self) {
        let generation = self.router.generation();
        let before = std::mem::replace(&mut *self.generation.lock(), generation);
        if before != generation {
            self.renew_all.store(true, Ordering::Release);
            self.router.leave_old_servers();
            self.waiters.shake();
        }
    }

    fn plan(&self, next_beat: Moment) -> Moment {
        let longest = LONGEST_SLEEP.min(self.settings.timeout / PATIENCE);
        let mut timers = self.timers.lock();
        let next_due = timers.next_due();
        timers.planned = (clock::now() + longest).min(next_due).min(next_beat);
        timers.planned
    }

    /// Sees to the timers that fired; the holds that are to be asked for.
    fn look_at(&self, fired: Vec<WatchedHold>, now: Moment) -> Vec<Due> {
        let mut due = Vec::new();
        for watched in fired {
            match watched.hold.renewal(now) {
                Renewal::Extend => due.push(Due { watched, renewed: true }),
                Renewal::Verify => due.push(Due { watched, renewed: false }),
                Renewal::Orphaned => self.orphaned(watched),
                Renewal::Over { newly_lost } => watched.over(newly_lost, &self.router),
            }
        }
        due
    }

    fn orphaned(&self, watched: WatchedHold) {
        let name = Arc::clone(watched.local.name().given());
        self.ask_in_time(watched);
        threads::say(|| {
            log::warn!("the thread that held the lock {name:?} has ended: it is renewed no more");
        });
    }

    fn all(&self) -> Vec<Due> {
        let timers = self.timers.lock();
        let due = |watched: &WatchedHold| Due {
            watched: watched.clone(),
            renewed: watched.hold.is_renewed(),
        };
        timers.wheel.iter().map(due).collect()
    }

    /// All holds but those of servers that have kept their data. Asks the servers.
    fn all_that_may_be_gone(&self) -> Vec<Due> {
        let mut all = self.all();
        if all.is_empty() || !self.auditor.is_on() {
            return all;
        }
        let unchanged = self.histories.unchanged(&self.router);
        let node = |due: &Due| self.router.node_of(due.watched.local.name().key());
        all.retain(|due| !unchanged.contains(&node(due)));
        all
    }

    /// Asks for holds.
    fn renew(&self, mut due: Vec<Due>) {
        let kind = |due: &Due| {
            (due.renewed, due.watched.renewal().digest(), self.slot_of(&due.watched.local))
        };
        let question = |batch: &[Due]| self.question(batch);
        batches::ask(&self.router, &mut due, kind, question, |batch, outcome| {
            match outcome.map(Renewals::read) {
                Ok(Ok(renewals)) => self.renewed(batch, &renewals),
                Ok(Err(error)) => self.failed(batch, &error),
                Err(NoAnswer::Connecting) => self.try_again(batch, SOON),
                Err(NoAnswer::Outdated) => {
                    self.may_be_renewed(batch);
                    self.try_again(batch, SOON);
                }
                Err(NoAnswer::Failed { error, written }) => {
                    if written {
                        self.may_be_renewed(batch);
                    }
                    self.failed(batch, &error);
                }
            }
        });
    }

    fn question(&self, batch: &[Due]) -> Call {
        let lease = Digits::new(millis(self.settings.timeout).unsigned_abs());
        let holds = batch.iter().map(|due| &due.watched);
        match batch.first() {
            Some(Due { renewed: true, .. }) => renewal(holds, lease.as_bytes()).replicated(),
            _ => renewal(holds, LOOK),
        }
    }

    fn renewed(&self, batch: &[Due], answer: &Renewals) {
        let now = clock::now();
        let positions = (1..).zip(batch);
        let (lost, watched): (Vec<_>, Vec<_>) =
            positions.partition(|(position, _)| answer.lost.contains(position));
        lost.iter().for_each(|(_, due)| due.watched.local.lose(&due.watched.hold));
        let (renewed, fixed): (Vec<_>, Vec<_>) =
            watched.into_iter().map(|(_, due)| due).partition(|due| due.renewed);
        fixed.iter().for_each(|due| self.keep(due.watched.clone()));
        if renewed.is_empty() {
            return;
        }
        if let Some(too_few) = answer.too_few {
            self.may_be_renewed(renewed.iter().copied());
            return self.failed(renewed, &too_few.into_error());
        }
        renewed.iter().for_each(|due| self.extend(&due.watched, answer.sent, now));
        let holds = || renewed.iter().map(|due| due.watched.hold.id().number()).collect();
        let at = clock::wall_time;
        self.settings.events.emit(|| Event::Renewed(Renewed { at: at(), holds: holds() }));
    }

    fn extend(&self, watched: &WatchedHold, sent: Moment, now: Moment) {
        match watched.hold.extend(sent, now, self.settings.timeout) {
            HoldStatus::Held => self.ask_in_time(watched.clone()),
            HoldStatus::Over { newly_lost } => watched.over(newly_lost, &self.router),
        }
    }

    /// Polls the server for those who wait for these locks.
    fn look_for_free(&self, mut polled: Vec<Arc<Local>>) {
        polled.retain(|local| local.keep_polling());
        let slot = |local: &Arc<Local>| self.slot_of(local);
        batches::ask(&self.router, &mut polled, slot, poll, |batch, outcome| {
            let free = outcome.map_err(NoAnswer::into_error);
            match free.and_then(|answer| answer.reply.into_ints()) {
                Ok(free) => {
                    let free = (1..).zip(batch).filter(|(position, _)| free.contains(position));
                    free.for_each(|(_, local)| local.may_be_free());
                }
                Err(error) => {
                    let many = batch.len();
                    threads::say(|| log::debug!("{many} locks could not be looked at: {error}"));
                    batch.iter().for_each(|local| local.may_be_free());
                }
            }
        });
        polled.into_iter().for_each(|local| self.poll(local));
    }

    /// What may go into one script call has the same.
    fn slot_of(&self, local: &Local) -> u16 {
        self.router.slot_of(local.name().key())
    }

    fn may_be_renewed<'a>(&self, batch: impl IntoIterator<Item = &'a Due>) {
        let now = clock::now();
        let renewed = batch.into_iter().filter(|due| due.renewed);
        renewed.for_each(|due| due.watched.hold.may_be_extended(now, self.settings.timeout));
    }

    /// The question got no answer, or not the kind that says anything of a hold.
    fn failed<'a>(&self, batch: impl IntoIterator<Item = &'a Due>, error: &Error) {
        let (now, batch) = (clock::now(), Vec::from_iter(batch));
        threads::say(|| log::warn!("{} leases could not be asked for: {error}", batch.len()));
        for Due { watched, renewed } in &batch {
            if !watched.local.is_valid(&watched.hold, now) {
                watched.undo(&self.router);
            } else if *renewed {
                let name = Arc::clone(watched.local.name().given());
                let error = error.clone().with_lock_name(Arc::clone(&name));
                let remaining = watched.hold.remaining(now);
                let ((kind, hold), at) = (watched.hold.kind_and_number(), clock::wall_time());
                let failed = RenewalFailed { at, name, kind, hold, remaining, error };
                self.settings.events.emit(|| Event::RenewalFailed(failed));
            }
        }
        self.try_again(batch, LONGEST_SLEEP);
    }

    /// Has these asked for again after a while, those that have little time sooner.
    fn try_again<'a>(&self, batch: impl IntoIterator<Item = &'a Due>, longest: Duration) {
        let now = clock::now();
        let watched = batch.into_iter().map(|due| &due.watched);
        for watched in watched.filter(|watched| watched.local.is_valid(&watched.hold, now)) {
            let pause = (watched.hold.remaining(now) / 8).min(longest).max(TICK);
            let at = now + jittered(pause, watched.hold.id().seed());
            self.set_timer(watched.clone(), |_| at);
        }
    }

    fn beat(&self) {
        let beats = self.waiters.beats().into_iter();
        let beats: Vec<_> = beats.flat_map(|beat| self.router.queue_private(beat)).collect();
        for beat in beats {
            if let Err(Failure { error, .. }) =
                self.router.wait_without_retry(beat, &Limit::none()).1
            {
                threads::say(|| log::debug!("a listener's heartbeat could not be sent: {error}"));
            }
        }
    }
}

impl Timers {
    fn new(now: Moment) -> Timers {
        let (wheel, polls) = (Wheel::new(TICK, now), Wheel::new(TICK, now));
        let (fired, polled) = (Vec::new(), Vec::new());
        Timers { wheel, polls, fired, polled, planned: Moment::START }
    }

    /// What is due, and what a round has left behind that panicked.
    fn advance(&mut self, now: Moment) -> (Vec<WatchedHold>, Vec<Arc<Local>>) {
        self.fired.retain(|watched| !watched.hold.has_timer());
        self.wheel.advance(now, &mut self.fired);
        self.polls.advance(now, &mut self.polled);
        (self.fired.clone(), self.polled.clone())
    }

    fn take_fired(&mut self) -> (Vec<WatchedHold>, Vec<Arc<Local>>) {
        (std::mem::take(&mut self.fired), std::mem::take(&mut self.polled))
    }

    fn next_due(&self) -> Moment {
        let next = [self.wheel.next_due(), self.polls.next_due()];
        next.into_iter().flatten().min().unwrap_or(Moment::END)
    }

    /// Has the thread look at that moment, if it would look later; then it is to be rung.
    fn hurry(&mut self, at: Moment) -> bool {
        let too_late = self.planned > at;
        self.planned = self.planned.min(at);
        too_late
    }
}

impl WatchedHold {
    fn renewal(&self) -> &'static Script {
        self.hold.rules().renewal()
    }

    /// The hold is over here: tells of it, if that is news, and ends it there.
    pub(crate) fn over(&self, newly_lost: bool, router: &Router) {
        self.local.report_lost(newly_lost.then_some(&*self.hold), LostReason::Expired);
        self.undo(router);
    }

    /// Releases what was lost here and may be kept by the server for a whole lease more.
    pub(crate) fn undo(&self, router: &Router) {
        if !self.hold.take_may_still_be_held(clock::now()) {
            return;
        }
        let undo = self.hold.undo_call(self.local.name());
        let worth = self.hold.server_expiry_bound().max(clock::now() + self.hold.lease());
        let task =
            BackgroundTask::new(None, worth).outlives_lease(self.hold.rules().outlives_its_lease());
        let background = Request::background(undo, task);
        router.dispatch(router.submit(background, self.hold.may_run_late()));
    }
}

/// Asks which of these locks are free.
fn poll(batch: &[Arc<Local>]) -> Call {
    let keys = batch.iter().map(|local| local.name().key().as_bytes());
    Call::script(&script::POLL_MANY, keys, [])
}

/// The answer to one batch.
#[derive(Debug)]
struct Renewals {
    sent: Moment,
    /// Which holds are lost, by their positions, which Lua counts from 1.
    lost: Vec<i64>,
    /// The others count as not renewed.
    too_few: Option<TooFewReplicas>,
}

impl Renewals {
    fn read(answer: Answer) -> Result<Renewals> {
        let (sent, too_few) = (answer.sent, answer.too_few);
        Ok(Renewals { sent, lost: answer.reply.into_ints()?, too_few })
    }
}

/// Asks for holds that one script renews.
fn renewal<'a>(
    holds: impl ExactSizeIterator<Item = &'a WatchedHold> + Clone,
    lease: &[u8],
) -> Call {
    let script = holds.clone().next().map(WatchedHold::renewal);
    let keys = holds.clone().map(|watched| watched.local.name().key().as_bytes());
    let owners = holds.map(|watched| watched.hold.owner().hold().as_bytes());
    let args = std::iter::once(lease).chain(owners);
    match script {
        Some(script) => Call::script(script, keys, args),
        None => Call::command(&[b"PING"]),
    }
}

/// Extends one hold, now: what `extend` and a longer fixed re-entry send.
pub(crate) fn extension(watched: &WatchedHold, lease: Duration) -> Call {
    let lease = Digits::new(millis(lease).unsigned_abs());
    renewal(std::slice::from_ref(watched).iter(), lease.as_bytes()).replicated()
}

/// Whether the answer to [`extension`] says that the hold is still there. An error if it was
/// not extended for want of replicas.
pub(crate) fn is_extended(answer: Answer) -> Result<bool> {
    let Renewals { lost, too_few, .. } = Renewals::read(answer)?;
    match too_few.filter(|_| lost.is_empty()) {
        Some(too_few) => Err(too_few.into_error()),
        None => Ok(lost.is_empty()),
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::command::name::Name;
    use crate::command::owner::Owner;
    use crate::connection::Address;
    use crate::events::Kind;
    use crate::kind::plain::Plain;
    use crate::kind::rules::{AcquireArgs, KindRules};
    use crate::local::hold::Grant;
    use crate::pool::{PoolServer, PoolSettings, PoolTimeouts};
    use crate::topology::audit::AuditPolicy;
    use crate::topology::cluster::Cluster;
    use crate::topology::route::Route;

    const SECOND: Duration = Duration::from_secs(1);

    /// A kind whose first renewal panics.
    struct Panics(AtomicBool);

    impl KindRules for Panics {
        fn kind(&self) -> Kind {
            Plain.kind()
        }

        fn acquire(&self, ask: &AcquireArgs<'_>) -> Call {
            Plain.acquire(ask)
        }

        fn release(&self, name: &Name, owner: &Owner) -> Call {
            Plain.release(name, owner)
        }

        fn force_unlock(&self, name: &Name) -> Call {
            Plain.force_unlock(name)
        }

        fn renewal(&self) -> &'static Script {
            assert!(self.0.swap(true, Ordering::Relaxed), "this is expected");
            Plain.renewal()
        }
    }

    static PANICS: Panics = Panics(AtomicBool::new(false));

    /// The nodes of a cluster at which nobody listens.
    fn nobody() -> Router {
        let address = Address::parse("redis://127.0.0.1:1/");
        let timeouts = Timeouts { connect: SECOND, response: SECOND, replicas: Duration::ZERO };
        let seeds = vec![address.expect("a good URL")];
        let cluster = Arc::new(Cluster::new(seeds, "test".to_owned(), timeouts));
        let settings = PoolSettings {
            server: PoolServer { node: 0, is_node: true, route: Route::Node(Arc::clone(&cluster)) },
            process: std::process::id(),
            name: "test".to_owned(),
            size: 1,
            timeouts: PoolTimeouts { shared: timeouts, private: timeouts, queue: SECOND },
            replicas: 0,
            repeat_interval: SECOND,
            events: EventSink::default(),
        };
        Router::cluster(cluster, settings, Arc::default())
    }

    fn watchdog() -> Watchdog {
        let settings = WatchdogSettings {
            timeout: 30 * SECOND,
            beat: SECOND,
            poll_interval: SECOND,
            events: EventSink::default(),
        };
        let auditor = Auditor::new(AuditPolicy::Ignore, true, EventSink::default());
        Watchdog::new(settings, Arc::new(nobody()), Arc::default(), Arc::new(auditor))
    }

    fn local() -> Arc<Local> {
        let name = Name::new("", "a".into()).expect("a good name");
        Arc::new(Local::new(name, EventSink::default(), Default::default()))
    }

    /// One thread has asked for a fixed lease, while another has it renewed from now on.
    #[test]
    fn the_timer_of_a_lease_that_is_renewed_from_now_on_is_not_put_off() {
        let local = local();
        for round in 0..5_000 {
            let (watchdog, now) = (watchdog(), clock::now());
            let grant = Grant { renewed: false, ..Grant::owned(now, now + 10 * SECOND) };
            let lease = Arc::new(Hold::new(grant));
            let watched = WatchedHold { local: Arc::clone(&local), hold: Arc::clone(&lease) };
            let started = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    started.store(true, Ordering::Relaxed);
                    watchdog.keep(watched.clone());
                });
                while !started.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                // A little earlier or later each time.
                (0..round % 200).for_each(|_| std::hint::spin_loop());
                lease.keep_renewed();
                watchdog.forget(&lease);
                watchdog.keep(watched.clone());
            });
            let (soon, _) = watchdog.timers.lock().advance(now + 5 * SECOND);
            assert_eq!(soon.len(), 1, "in round {round} it is renewed when it is over");
        }
    }

    #[test]
    fn a_round_that_panics_loses_no_hold() {
        let (watchdog, now, local) = (watchdog(), clock::now(), local());
        // Less than two thirds of a lease are left, so both are asked for at once.
        let keep = |rules: &'static dyn KindRules| {
            let grant = Grant { rules, ..Grant::owned(now, now + 10 * SECOND) };
            let lease = Arc::new(Hold::new(grant));
            watchdog.keep(WatchedHold { local: Arc::clone(&local), hold: lease });
        };
        keep(&PANICS);
        keep(&Plain);
        let round = || watchdog.round(&mut Moment::START.clone());
        assert_eq!(threads::survive("testing", round), None);
        let holds = || watchdog.timers.lock().wheel.len();
        assert_eq!(holds(), 0, "they had fired");
        threads::survive("testing", round).expect("it panics once");
        assert_eq!(holds(), 2);
    }
}
