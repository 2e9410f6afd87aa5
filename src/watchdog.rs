//! The thread that keeps leases alive, and notices those that are lost.
//!
//! Every hold has a timer on one wheel: a hold that is renewed fires when two
//! thirds of its lease are left (a little later, spread, so that locks taken
//! together are not renewed together), a fixed one at its deadline. Taking and
//! dropping a lock costs one insert and one cancel, and no system call.
//!
//! What is due goes out in batches, up to [`KEYS`] per script call and many
//! calls per write, over a connection of its own. "Not yours" ends a hold at once.
//! No answer (`renewal_failed`) leaves it valid to its deadline, and is tried again
//! until then. In a cluster nobody at one node waits for another: all is written before any answer is
//! read, with one deadline, and connections are made aside. When a connection of the client, its listener's excepted, was made
//! anew, every lease is renewed at once: a server that came back empty is noticed. The same
//! if the server is another one by now (`topology.rs`), and all who wait are told to ask.
//!
//! The same thread polls for those who wait. A message that says that a lock is free
//! may be lost, so the server is asked at the poll bound in any case: not by each waiting
//! thread, but here for all of them, as many locks per script call. Where one is free, or
//! nobody knows, its front is told to ask.
//!
//! The same thread beats the drum for the listener: while that is connected, a
//! message on the client's own channel, at most a second apart, proves the path.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::audit::Auditor;
use crate::conn::Timeouts;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, LostReason, RenewalFailed, Renewed, Sink};
use crate::fleet::{Fleet, Pending};
use crate::lease::{Lease, Look, Renewal};
use crate::local::Local;
use crate::pool::OnReconnect;
use crate::request::{Answer, Debt, Failure, Request, TooFew};
use crate::script::{self, Call, Digits, Script};
use crate::sync::{Mailbox, Mutex};
use crate::thread;
use crate::time::{self, Moment, jittered, millis};
use crate::topology::Moves;
use crate::waiters::Waiters;
use crate::wheel::Wheel;

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

/// How many leases one script call renews, and how many locks one looks at.
const KEYS: usize = 128;

/// How long a connection is waited for that is being made.
const CONNECTED: Duration = Duration::from_millis(250);

/// Polls that fall into this part of the poll bound go together. They are planned for the
/// last part but one, so that the front can ask within the bound.
const POLL_GRAIN: u32 = 8;

/// The part of a lease that one renewal may wait for its answer.
const PATIENCE: u32 = 6;

/// A hold, and all that is needed to renew it.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) local: Arc<Local>,
    pub(crate) lease: Arc<Lease>,
}

/// A question that was queued, or why it was not.
type Asked = std::result::Result<Pending, Option<Error>>;

/// How the watchdog is set up.
#[derive(Debug)]
pub(crate) struct WatchdogSettings {
    /// The lease that it renews.
    pub(crate) timeout: Duration,
    /// How often the listeners are to be beaten.
    pub(crate) beat: Duration,
    pub(crate) poll_bound: Duration,
    pub(crate) events: Sink,
}

/// The watchdog of one client.
pub(crate) struct Watchdog {
    settings: WatchdogSettings,
    fleet: Arc<Fleet>,
    waiters: Arc<Waiters>,
    auditor: Arc<Auditor>,
    timers: Mutex<Timers>,
    bell: Mailbox,
    renew_all: AtomicBool,
    moves: Mutex<Moves>,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Timers {
    wheel: Wheel<Kept>,
    polls: Wheel<Arc<Local>>,
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
        self.renew_all.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Watchdog {
    pub(crate) fn new(
        settings: WatchdogSettings,
        fleet: Arc<Fleet>,
        waiters: Arc<Waiters>,
        auditor: Arc<Auditor>,
    ) -> Watchdog {
        let now = time::now();
        Watchdog {
            settings,
            fleet,
            waiters,
            auditor,
            timers: Mutex::new(Timers::new(now)),
            bell: Mailbox::default(),
            renew_all: AtomicBool::new(false),
            moves: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    pub(crate) fn start(self: &Arc<Watchdog>) -> Result<JoinHandle<()>> {
        let watchdog = Arc::clone(self);
        thread::start("leasehold-watchdog", move || watchdog.run()).map_err(|error| {
            Error::configuration(format!("the watchdog thread cannot be started: {error}"))
        })
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Looks after a hold until [`Watchdog::forget`].
    pub(crate) fn keep(&self, kept: Kept) {
        let now = time::now();
        match kept.lease.renewal(now, self.due_below()) {
            Renewal::Later(at) | Renewal::Orphaned(at) => self.look_later(kept, at),
            Renewal::Ask => self.set_timer(kept, now),
            Renewal::Over { noticed } => kept.over(noticed, &self.fleet),
        }
    }

    /// Sets the timer of a hold for `at`, or a little later if it is renewed then.
    fn look_later(&self, kept: Kept, at: Moment) {
        if !kept.lease.is_renewed() {
            return self.set_timer(kept, at);
        }
        let spread = jittered(self.settings.timeout / SPREAD, kept.lease.hold().seed());
        self.set_timer(kept, (at + spread).rounded_up(self.settings.timeout / GRAIN));
    }

    /// Drops the timer of a hold.
    pub(crate) fn forget(&self, lease: &Lease) {
        let timer = lease.take_timer();
        let kept = timer.and_then(|timer| self.timers.lock().wheel.cancel(timer));
        drop(kept);
    }

    fn due_below(&self) -> Duration {
        self.settings.timeout * DUE.0 / DUE.1
    }

    fn set_timer(&self, kept: Kept, at: Moment) {
        let lease = Arc::clone(&kept.lease);
        let mut timers = self.timers.lock();
        let timer = timers.wheel.insert(at, kept);
        let too_late = timers.hurry(at);
        // Before the wheel is let go: the watchdog may fire this timer at once and set
        // the next, which must not be taken for the one before.
        let superseded = lease.set_timer(timer);
        let superseded = superseded.and_then(|timer| timers.wheel.cancel(timer));
        drop(timers);
        drop(superseded);
        if too_late {
            self.bell.ring();
        }
    }

    /// Has the server polled for those who wait for that lock, while anybody does.
    pub(crate) fn poll(&self, local: Arc<Local>) {
        let bound = self.settings.poll_bound;
        let grain = bound / POLL_GRAIN;
        let at = (time::now() + (bound - 2 * grain)).rounded_up(grain);
        let mut timers = self.timers.lock();
        timers.polls.insert(at, local);
        let too_late = timers.hurry(at);
        drop(timers);
        if too_late {
            self.bell.ring();
        }
    }

    fn run(&self) {
        let mut next_beat = Moment::START;
        while !self.stop.load(Ordering::Acquire) {
            let round = || self.round(&mut next_beat);
            let planned = thread::survive("renewing leases", round);
            self.bell.sleep(planned.unwrap_or_else(|| time::now() + thread::PAUSE));
        }
    }

    /// Sees to all that is due; when it has to look again.
    fn round(&self, next_beat: &mut Moment) -> Moment {
        let now = time::now();
        let (mut fired, mut polled) = (Vec::new(), Vec::new());
        self.timers.lock().advance(now, &mut fired, &mut polled);
        self.follow();
        let mut due = self.look_at(fired, now);
        if self.renew_all.swap(false, Ordering::AcqRel) {
            due.extend(self.all_renewed());
        }
        self.renew(due);
        self.look_for_free(polled);
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
        for (server, lane) in self.fleet.connected() {
            let ask = |questions| self.fleet.ask_all(questions, lane);
            // It was reported; the client is built, so there is nothing to refuse any more.
            let _ = self.auditor.look(server, ask);
        }
    }

    /// Leaves a server that is not the one any more, and has those who wait ask the other.
    fn follow(&self) {
        let moves = self.fleet.moves();
        let before = std::mem::replace(&mut *self.moves.lock(), moves);
        if before != moves {
            self.renew_all.store(true, Ordering::Release);
            self.fleet.leave_old_servers();
            self.waiters.shake();
        }
    }

    fn plan(&self, next_beat: Moment) -> Moment {
        let longest = LONGEST_SLEEP.min(self.settings.timeout / PATIENCE);
        let mut timers = self.timers.lock();
        let next_due = timers.next_due();
        timers.planned = (time::now() + longest).min(next_due).min(next_beat);
        timers.planned
    }

    /// Sees to the timers that fired; the holds whose renewal is due.
    fn look_at(&self, fired: Vec<Kept>, now: Moment) -> Vec<Kept> {
        let mut due = Vec::new();
        for kept in fired {
            match kept.lease.renewal(now, self.due_below()) {
                Renewal::Ask => due.push(kept),
                Renewal::Later(at) => self.look_later(kept, at),
                Renewal::Orphaned(at) => self.orphaned(kept, at),
                Renewal::Over { noticed } => kept.over(noticed, &self.fleet),
            }
        }
        due
    }

    fn orphaned(&self, kept: Kept, at: Moment) {
        let name = Arc::clone(kept.local.name().given());
        self.set_timer(kept, at);
        thread::say(|| {
            log::warn!("the thread that held the lock {name:?} has ended: it is renewed no more");
        });
    }

    fn all_renewed(&self) -> Vec<Kept> {
        let timers = self.timers.lock();
        timers.wheel.iter().filter(|kept| kept.lease.is_renewed()).cloned().collect()
    }

    /// Renews holds, in batches that are written together and answered one by one.
    fn renew(&self, mut due: Vec<Kept>) {
        let kind = |kept: &Kept| (kept.renewal().digest, self.slot_of(&kept.local));
        due.sort_by_key(kind);
        let batches = due.chunk_by(|a, b| kind(a) == kind(b)).flat_map(|chunk| chunk.chunks(KEYS));
        let batches: Vec<_> = batches.map(|batch| (batch, self.ask(batch))).collect();
        for (batch, asked) in batches {
            let pending = match asked {
                Ok(pending) => pending,
                Err(Some(error)) => {
                    self.failed(batch, &error);
                    continue;
                }
                Err(None) => {
                    self.try_again(batch, CONNECTED);
                    continue;
                }
            };
            let answer = self.fleet.wait_private(pending).inspect_err(|failure| {
                if failure.is_written() {
                    self.may_be_renewed(batch);
                }
            });
            match answer.map_err(Failure::into_error).and_then(Renewals::read) {
                Ok(renewals) => self.renewed(batch, &renewals),
                Err(error) => self.failed(batch, &error),
            }
        }
    }

    /// Queues the question for one batch.
    fn ask(&self, batch: &[Kept]) -> Asked {
        let lease = Digits::new(millis(self.settings.timeout).unsigned_abs());
        self.fleet.queue_private(renewal(batch, &lease))
    }

    fn renewed(&self, batch: &[Kept], answer: &Renewals) {
        let now = time::now();
        let positions = (1..).zip(batch);
        let (lost, kept): (Vec<_>, Vec<_>) =
            positions.partition(|(position, _)| answer.lost.contains(position));
        lost.iter().for_each(|(_, kept)| kept.local.lose(&kept.lease));
        let kept: Vec<_> = kept.into_iter().map(|(_, kept)| kept.clone()).collect();
        if let Some(too_few) = answer.too_few {
            self.may_be_renewed(&kept);
            return self.failed(&kept, &too_few.into_error());
        }
        kept.iter().for_each(|kept| self.extend(kept, answer.sent, now));
        self.settings.events.tell(|| Event::Renewed(Renewed { leases: kept.len() }));
    }

    fn extend(&self, kept: &Kept, sent: Moment, now: Moment) {
        match kept.lease.extend(sent, now, self.settings.timeout) {
            Look::Held => {
                let deadline = now + kept.lease.remaining(now);
                self.look_later(kept.clone(), deadline.before(self.due_below()));
            }
            Look::Over { noticed } => kept.over(noticed, &self.fleet),
        }
    }

    /// Polls the server for those who wait for these locks.
    fn look_for_free(&self, mut polled: Vec<Arc<Local>>) {
        polled.retain(|local| local.is_polled());
        let ask = |batch: &[Arc<Local>]| {
            let keys = batch.iter().map(|local| local.name().key().as_bytes());
            self.fleet.queue_private(Call::script(&script::ANY_POLL, keys, []))
        };
        polled.sort_by_key(|local| self.slot_of(local));
        let batches = polled.chunk_by(|a, b| self.slot_of(a) == self.slot_of(b));
        let batches = batches.flat_map(|chunk| chunk.chunks(KEYS));
        let batches: Vec<_> = batches.map(|batch| (batch, ask(batch))).collect();
        for (batch, asked) in batches {
            let wait = |pending| self.fleet.wait_private(pending).map_err(Failure::into_error);
            let answer = asked.map_err(|error| error.unwrap_or_else(not_connected)).and_then(wait);
            match answer.and_then(|answer| answer.reply.into_ints()) {
                Ok(free) => {
                    let free = (1..).zip(batch).filter(|(position, _)| free.contains(position));
                    free.for_each(|(_, local)| local.may_be_free());
                }
                Err(error) => {
                    let many = batch.len();
                    thread::say(|| log::debug!("{many} locks could not be looked at: {error}"));
                    batch.iter().for_each(|local| local.may_be_free());
                }
            }
        }
        polled.into_iter().for_each(|local| self.poll(local));
    }

    /// What may go into one script call has the same.
    fn slot_of(&self, local: &Local) -> u16 {
        self.fleet.slot_of(local.name().key())
    }

    fn may_be_renewed(&self, batch: &[Kept]) {
        let now = time::now();
        batch.iter().for_each(|kept| kept.lease.may_be_extended(now, self.settings.timeout));
    }

    /// The question got no answer, or not the kind that says anything of a hold.
    fn failed(&self, batch: &[Kept], error: &Error) {
        let now = time::now();
        thread::say(|| log::warn!("{} leases could not be renewed: {error}", batch.len()));
        for kept in batch {
            if !kept.local.is_valid(&kept.lease, now) {
                kept.undo(&self.fleet);
                continue;
            }
            let (name, error) = (Arc::clone(kept.local.name().given()), error.clone());
            let remaining = kept.lease.remaining(now);
            let failed = RenewalFailed { name, remaining, error };
            self.settings.events.tell(|| Event::RenewalFailed(failed));
        }
        self.try_again(batch, LONGEST_SLEEP);
    }

    /// Has these asked for again after a while, those that have little time sooner.
    fn try_again(&self, batch: &[Kept], longest: Duration) {
        let now = time::now();
        for kept in batch.iter().filter(|kept| kept.local.is_valid(&kept.lease, now)) {
            let pause = (kept.lease.remaining(now) / 8).min(longest).max(TICK);
            self.set_timer(kept.clone(), now + jittered(pause, kept.lease.hold().seed()));
        }
    }

    fn beat(&self) {
        let beats = self.waiters.beats().into_iter();
        let beats: Vec<_> = beats.flat_map(|beat| self.fleet.queue_private(beat)).collect();
        for beat in beats {
            if let Err(Failure { error, .. }) = self.fleet.wait_private(beat) {
                thread::say(|| log::debug!("a listener's heartbeat could not be sent: {error}"));
            }
        }
    }
}

impl Timers {
    fn new(now: Moment) -> Timers {
        let (wheel, polls) = (Wheel::new(TICK, now), Wheel::new(TICK, now));
        Timers { wheel, polls, planned: Moment::START }
    }

    fn advance(&mut self, now: Moment, fired: &mut Vec<Kept>, polled: &mut Vec<Arc<Local>>) {
        self.wheel.advance(now, fired);
        self.polls.advance(now, polled);
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

impl Kept {
    fn renewal(&self) -> &'static Script {
        self.lease.rules().renewal()
    }

    /// The hold is over here: tells of it, if that is news, and ends it there.
    pub(crate) fn over(&self, noticed: bool, fleet: &Fleet) {
        self.local.tell_lost(usize::from(noticed), LostReason::Expired);
        self.undo(fleet);
    }

    /// Releases what was lost here and may be kept by the server for a whole lease more.
    pub(crate) fn undo(&self, fleet: &Fleet) {
        if !self.lease.take_kept_there(time::now()) {
            return;
        }
        let undo = self.lease.undo_call(self.local.name());
        let worth = self.lease.reach().max(time::now() + self.lease.term());
        let owed = Request::owed(undo, Debt::new(None, worth));
        fleet.dispatch(fleet.owe(owed, self.lease.haunted()));
    }
}

fn not_connected() -> Error {
    Error::new(ErrorKind::Connection, "the connection is being made")
}

/// The answer to one batch.
#[derive(Debug)]
struct Renewals {
    sent: Moment,
    /// Which holds are lost, by their positions, which Lua counts from 1.
    lost: Vec<i64>,
    /// The others count as not renewed.
    too_few: Option<TooFew>,
}

impl Renewals {
    fn read(answer: Answer) -> Result<Renewals> {
        let (sent, too_few) = (answer.sent, answer.too_few);
        Ok(Renewals { sent, lost: answer.reply.into_ints()?, too_few })
    }
}

fn renewal(batch: &[Kept], lease: &Digits) -> Call {
    let script = batch.first().map(Kept::renewal);
    let keys = batch.iter().map(|kept| kept.local.name().key().as_bytes());
    let owners = batch.iter().map(|kept| kept.lease.owner().as_bytes());
    let args = std::iter::once(lease.as_bytes()).chain(owners);
    match script {
        Some(script) => Call::script(script, keys, args).replicated(),
        None => Call::command(&[b"PING"]),
    }
}

/// Extends one hold, now: what `extend` and a longer fixed re-entry send.
pub(crate) fn extension(kept: &Kept, lease: Duration) -> Call {
    renewal(std::slice::from_ref(kept), &Digits::new(millis(lease).unsigned_abs()))
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
