//! The connections of one client, and the threads that see to what is owed.
//!
//! Callers hand in a command and wait ([`Pool::call`]), or owe it ([`Pool::owe`] and
//! [`Pool::dispatch`]): then they write it, if that needs no waiting, and go on. A
//! *reaper* thread sees to the rest: it reads the answers that nobody comes for, has
//! sent what could not be written, repeats it until it is answered or not worth it any
//! more. Each connection has a reaper of its own, so that one that does not answer holds
//! up no other; it is started at the first debt there. What failed on one connection is
//! tried again together, after a pause.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::conn::{Address, Timeouts};
use crate::error::{Error, Result};
use crate::event::{Event, Reconnected, Sink};
use crate::lane::{Lane, Unread};
use crate::request::{Answer, Debt, Failure, Link, Observer, Outcome, Request, Slot};
use crate::script::{Call, LaneId};
use crate::sync::{Condvar, Mailbox, Mutex};
use crate::thread;
use crate::time::{self, Moment, jittered};

#[cfg(all(test, leasehold_model))]
mod model;

/// The first and the longest pause before an owed request is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a reply is left unread for the next caller. Shorter costs wake-ups of the
/// reaper while there is traffic; longer delays what follows from a release that failed.
const LINGER: Duration = if TIME_PASSES { Duration::from_millis(5) } else { Duration::ZERO };

/// As long as there is a connection for each caller that is the fastest. A crowd of more
/// keeps to so many: what goes out together costs less.
const FOR_A_CROWD: usize = 2;

/// Not in a model, where nothing ends a sleep but a ring.
const TIME_PASSES: bool = !cfg!(all(test, leasehold_model));

/// How the pool is set up.
#[derive(Debug)]
pub(crate) struct PoolSettings {
    pub(crate) address: Address,
    pub(crate) timeouts: Timeouts,
    /// The name of the client's connections, on the server.
    pub(crate) name: String,
    pub(crate) size: usize,
    /// How long a caller queues if all connections are busy.
    pub(crate) wait: Duration,
    /// How often that is repeated which a late copy of another command may undo.
    pub(crate) repeat: Duration,
    pub(crate) events: Sink,
}

/// The connections.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    link: Arc<Link>,
    wait: Duration,
}

/// What the reapers need.
struct Shared {
    lanes: Vec<Lane>,
    /// How many callers wait for an answer.
    callers: AtomicUsize,
    desk: Arc<Desk>,
    /// By the number of the lane.
    threads: Mutex<BTreeMap<usize, JoinHandle<()>>>,
}

/// Is told when a connection was made again after one that broke. Must not block.
pub(crate) trait OnReconnect: Send + Sync {
    fn reconnected(&self);
}

/// A command in the line of a lane, whose sender has yet to wait for it.
#[derive(Debug)]
#[must_use = "a command is served only if somebody waits for it"]
pub(crate) struct Pending {
    pub(crate) lane: LaneId,
    slot: Arc<Slot>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("lanes", &self.shared.lanes).finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes the pool and its first connection.
    pub(crate) fn open(settings: PoolSettings) -> Result<Pool> {
        let desk = Arc::new(Desk::new(settings.size, settings.events, settings.repeat));
        let link = Arc::new(Link {
            address: settings.address,
            name: settings.name,
            process: std::process::id(),
            observer: Arc::clone(&desk) as Arc<dyn Observer>,
        });
        let lane = |id| Lane::new(LaneId(id), Arc::clone(&link), settings.timeouts);
        let lanes: Vec<_> = (0..settings.size).map(lane).collect();
        lanes.first().map_or(Ok(()), Lane::connect)?;
        let shared = Arc::new(Shared {
            lanes,
            callers: AtomicUsize::new(0),
            desk,
            threads: Mutex::default(),
        });
        Ok(Pool { shared, link, wait: settings.wait })
    }

    /// A lane of one's own, beside those of the pool.
    pub(crate) fn private_lane(&self, timeouts: Timeouts) -> Lane {
        Lane::new(LaneId(self.shared.lanes.len()), Arc::clone(&self.link), timeouts)
    }

    /// Whom to tell of new connections.
    pub(crate) fn set_on_reconnect(&self, whom: Weak<dyn OnReconnect>) {
        *self.shared.desk.on_reconnect.lock() = Some(whom);
    }

    /// An error in a forked child.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.link.check_process()
    }

    /// Sends a command and waits for its answer: on `lane`, behind all that is
    /// queued there, or on any.
    pub(crate) fn call(&self, call: Call, lane: Option<LaneId>) -> Result<Answer> {
        let pending = self.queue(call, lane);
        self.wait(pending, Moment::END).map_err(Failure::into_error)
    }

    /// The first half of [`Pool::call`]: takes a place in line and does no I/O.
    pub(crate) fn queue(&self, call: Call, lane: Option<LaneId>) -> Pending {
        let (request, slot) = Request::awaited(call);
        let lane = self.shared.queue(request, lane);
        Pending { lane, slot }
    }

    /// The second half of [`Pool::call`]. Stands in line until `patience` ends or the
    /// pool time-out, but sends if it can do so at once.
    pub(crate) fn wait(&self, pending: Pending, patience: Moment) -> Outcome {
        let give_up = patience.min(time::now() + self.wait);
        let _present = Present::new(&self.shared.callers);
        let outcome = self.shared.lane(pending.lane).wait(&pending.slot, give_up);
        pending.slot.give_back();
        outcome
    }

    /// Has a request sent, by and by, until it is answered or not worth it any more. Does
    /// no I/O, and has to be followed by [`Pool::dispatch`].
    pub(crate) fn owe(&self, owed: Request, lane: Option<LaneId>) -> LaneId {
        self.shared.desk.opened();
        self.shared.queue(owed, lane)
    }

    /// Sees to it that what is owed on that lane is sent: at once, if that needs no
    /// waiting.
    pub(crate) fn dispatch(&self, lane: LaneId) {
        self.shared.dispatch(lane);
    }

    /// Has a command sent again and again until `until`, or until the pool is closed: to
    /// be on the safe side is no debt that a program's end would wait for.
    pub(crate) fn repeat(&self, call: Call, lane: LaneId, until: Moment) {
        self.shared.desk.repeat(lane, call, until);
        self.shared.dispatch(lane);
    }

    /// Waits until nothing is owed any more, or until `end`; whether that came.
    pub(crate) fn wait_until_settled(&self, end: Moment) -> bool {
        self.shared.desk.wait_until_settled(end)
    }

    /// Has the reapers end when nothing is owed any more.
    pub(crate) fn finish(&self) -> Vec<JoinHandle<()>> {
        self.shared.desk.finish();
        std::mem::take(&mut *self.shared.threads.lock()).into_values().collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn lane(&self, lane: LaneId) -> &Lane {
        // Lanes are handed out by this pool alone, and never taken away.
        &self.lanes[lane.0.min(self.lanes.len() - 1)]
    }

    /// Stands a request in line: on the given lane; or, of those in use, on one that is
    /// free, or on the one with the shortest line.
    fn queue(&self, request: Request, lane: Option<LaneId>) -> LaneId {
        let mut request = Some(request);
        let lanes = self.in_use();
        let lane = match lane {
            Some(lane) => lane,
            None => match lanes.iter().find(|lane| lane.queue_if_free(&mut request)) {
                Some(lane) => lane.id(),
                None => lanes.iter().min_by_key(|lane| lane.load()).map_or(LaneId(0), Lane::id),
            },
        };
        request.into_iter().for_each(|request| self.lane(lane).queue(request));
        lane
    }

    /// The lanes for what may go anywhere: few if there is a crowd.
    fn in_use(&self) -> &[Lane] {
        let all = self.lanes.len();
        match self.callers.load(Ordering::Relaxed) > all {
            true => &self.lanes[..all.min(FOR_A_CROWD)],
            false => &self.lanes,
        }
    }

    /// Sends what is owed on that lane, or leaves it to who leads there or to the
    /// reaper, which is started if there is none.
    fn dispatch(self: &Arc<Shared>, lane: LaneId) {
        if self.desk.starts_reaper(lane) {
            let shared = Arc::clone(self);
            match thread::start("leasehold-reaper", move || shared.reap(lane)) {
                Ok(thread) => drop(self.threads.lock().insert(lane.0, thread)),
                Err(error) => self.do_without_reaper(lane, &error),
            }
        }
        self.lane(lane).post();
    }

    fn do_without_reaper(&self, lane: LaneId, error: &std::io::Error) {
        thread::say(|| {
            log::error!("no thread for what is owed, so this one has to wait: {error}");
        });
        self.desk.state.lock().lane(lane).reaping = false;
        self.lane(lane).serve();
    }

    /// What the reaper of a lane does.
    fn reap(&self, lane: LaneId) {
        let bell = &self.desk.reapers[lane.0].bell;
        while !self.desk.ends_reaper(lane) {
            let next = thread::survive("seeing to what is owed", || self.see_to(lane));
            bell.sleep(next.unwrap_or_else(|| time::now() + thread::PAUSE));
        }
    }

    /// Sends what is owed and reads what was left unread for too long; when it has to
    /// look again, unless it is rung before.
    fn see_to(&self, id: LaneId) -> Moment {
        let (due, next, pauses) = self.desk.due(id, time::now());
        let lane = self.lane(id);
        due.into_iter().for_each(|request| lane.queue(request));
        if !pauses && lane.queued() > 0 {
            lane.serve();
        }
        let unread = self.read_unread(id);
        match next == Moment::END && lane.queued() == 0 {
            // Nothing is delayed or stands in line, and what comes rings.
            true => unread,
            false => unread.min(next).min(time::now() + LONGEST_PAUSE),
        }
    }

    /// Reads replies that nobody came for. When those are due that are younger.
    fn read_unread(&self, id: LaneId) -> Moment {
        let (lane, looks_again) = (self.lane(id), &self.desk.reapers[id.0].looks_again);
        looks_again.store(false, Ordering::Release);
        loop {
            let due = match lane.unread() {
                Unread::Led if TIME_PASSES => time::now() + LINGER,
                Unread::Nothing | Unread::Led => return Moment::END,
                Unread::Since(since) => since + LINGER,
            };
            if time::now() < due {
                looks_again.store(true, Ordering::Release);
                return due;
            }
            lane.serve();
        }
    }
}

/// A caller that waits, for as long as this lives.
struct Present<'a>(&'a AtomicUsize);

impl Present<'_> {
    fn new(callers: &AtomicUsize) -> Present<'_> {
        callers.fetch_add(1, Ordering::Relaxed);
        Present(callers)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where debts are counted, and where those that failed wait to be tried again.
struct Desk {
    state: Mutex<DeskState>,
    settled: Condvar,
    /// By the number of the lane.
    reapers: Box<[Reaper]>,
    events: Sink,
    repeat: Duration,
    on_reconnect: Mutex<Option<Weak<dyn OnReconnect>>>,
}

/// Where the reaper of one lane sleeps.
#[derive(Default)]
struct Reaper {
    bell: Mailbox,
    /// It will look for unread replies without being rung.
    looks_again: AtomicBool,
}

#[derive(Debug)]
struct DeskState {
    /// Debts that are neither settled nor given up.
    open: usize,
    finish: bool,
    lanes: Box<[LaneState]>,
}

/// What is owed on one lane, later.
#[derive(Debug, Default)]
struct LaneState {
    /// By the moment at which it is due, and a number.
    delayed: BTreeMap<(Moment, u64), Request>,
    serial: u64,
    /// When what failed is tried again. The reaper sends nothing before; a caller that
    /// leads takes along what is queued.
    retry: Moment,
    /// How often that was put off since the last answer.
    failures: u32,
    /// There is a reaper, and it will look again.
    reaping: bool,
}

impl Desk {
    fn new(lanes: usize, events: Sink, repeat: Duration) -> Desk {
        let state = DeskState {
            open: 0,
            finish: false,
            lanes: (0..lanes).map(|_| LaneState::default()).collect(),
        };
        Desk {
            state: Mutex::new(state),
            settled: Condvar::default(),
            reapers: (0..lanes).map(|_| Reaper::default()).collect(),
            events,
            repeat,
            on_reconnect: Mutex::new(None),
        }
    }

    fn ring(&self, lane: LaneId) {
        if let Some(reaper) = self.reapers.get(lane.0) {
            reaper.bell.ring();
        }
    }

    fn opened(&self) {
        self.state.lock().open += 1;
    }

    /// A debt has found its end.
    fn settle(&self, lane: LaneId, call: Call, debt: Debt, outcome: Result<Answer>) {
        let haunted = outcome.as_ref().ok().filter(|answer| answer.haunted);
        let haunted = haunted.map_or(Moment::START, |answer| answer.sent + debt.lasting);
        let again_until = debt.again_until.max(haunted);
        let answered = outcome.is_ok();
        thread::survive("settling what was owed", || debt.settle(outcome));
        self.repeat(lane, call, again_until);
        self.closed(lane, debt.counts, answered);
    }

    /// Has a command sent once more, if that is before `until`, and so on.
    fn repeat(&self, lane: LaneId, call: Call, until: Moment) {
        let at = time::now() + self.repeat;
        if at < until {
            let again = Debt { again_until: until, counts: false, ..Debt::new(None, until) };
            self.delay(lane, Request::owed(call, again), |_| at);
        }
    }

    fn closed(&self, lane: LaneId, counted: bool, answered: bool) {
        let mut state = self.state.lock();
        state.open -= usize::from(counted);
        if answered {
            state.lane(lane).failures = 0;
        }
        if state.open == 0 {
            self.settled.notify_all();
            if state.finish {
                self.reapers.iter().for_each(|reaper| reaper.bell.ring());
            }
        }
    }

    fn wait_until_settled(&self, end: Moment) -> bool {
        let mut state = self.state.lock();
        while state.open > 0 && time::now() < end {
            self.settled.wait_until(&mut state, end);
        }
        state.open == 0
    }

    fn finish(&self) {
        self.state.lock().finish = true;
        self.reapers.iter().for_each(|reaper| reaper.bell.ring());
    }

    /// Whether a reaper has to be started by the caller.
    fn starts_reaper(&self, lane: LaneId) -> bool {
        !std::mem::replace(&mut self.state.lock().lane(lane).reaping, true)
    }

    /// Whether the reaper has to end; one step with looking for debts, so that a new
    /// one either is seen here or starts a new reaper.
    fn ends_reaper(&self, lane: LaneId) -> bool {
        let mut state = self.state.lock();
        let ends = state.finish && state.open == 0;
        if ends {
            state.lane(lane).reaping = false;
        }
        ends
    }

    /// Keeps a request until `at` says.
    fn delay(&self, lane: LaneId, request: Request, at: impl FnOnce(&mut LaneState) -> Moment) {
        let mut state = self.state.lock();
        let state = state.lane(lane);
        let at = at(state);
        let before = state.next();
        state.serial += 1;
        state.delayed.insert((at, state.serial), request);
        if at < before {
            self.ring(lane);
        }
    }

    /// Has what failed tried again at once: there is a connection.
    fn pause_no_more(&self, lane: LaneId) {
        let mut state = self.state.lock();
        let Some(state) = state.lanes.get_mut(lane.0) else { return };
        let paused = std::mem::replace(&mut state.retry, Moment::START);
        let later = state.delayed.split_off(&(paused + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut state.delayed, later);
        if !due.is_empty() {
            let at_once = |((_, number), request)| ((Moment::START, number), request);
            state.delayed.extend(due.into_iter().map(at_once));
            self.ring(lane);
        }
    }

    /// What is due at `now`, when the next will be, and whether the lane pauses.
    fn due(&self, lane: LaneId, now: Moment) -> (Vec<Request>, Moment, bool) {
        let mut state = self.state.lock();
        let state = state.lane(lane);
        let later = state.delayed.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut state.delayed, later).into_values().collect();
        let next = state.next();
        match now < state.retry {
            true => (due, next.min(state.retry), true),
            false => (due, next, false),
        }
    }
}

impl DeskState {
    fn lane(&mut self, lane: LaneId) -> &mut LaneState {
        &mut self.lanes[lane.0]
    }
}

impl LaneState {
    /// When the next of what is delayed is due.
    fn next(&self) -> Moment {
        self.delayed.first_key_value().map_or(Moment::END, |((at, _), _)| *at)
    }

    /// When something that failed now is tried again: together with all that fails
    /// until then.
    fn retry(&mut self, now: Moment) -> Moment {
        if self.retry <= now {
            let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.failures.min(8));
            self.retry = now + jittered(pause.min(LONGEST_PAUSE), now.nanos());
            self.failures += 1;
        }
        self.retry
    }
}

impl Observer for Desk {
    fn reconnected(&self, lane: LaneId, address: &Arc<str>) {
        self.pause_no_more(lane);
        let address = Arc::clone(address);
        thread::survive("telling of a new connection", || {
            log::info!("connected to {address} again");
            self.events.tell(|| Event::Reconnected(Reconnected { address }));
        });
        let whom = self.on_reconnect.lock().clone();
        if let Some(whom) = whom.and_then(|whom| whom.upgrade()) {
            whom.reconnected();
        }
    }

    fn answered(&self, lane: LaneId, request: Request, answer: Answer) {
        if let Some((call, debt)) = request.into_debt() {
            self.settle(lane, call, debt, Ok(answer));
        }
    }

    fn failed(&self, lane: LaneId, request: Request, error: Error) {
        let (now, until) = (time::now(), request.until());
        if !error.is_final() && now < until {
            self.delay(lane, request, |state| state.retry(now));
        } else if let Some((call, debt)) = request.into_debt() {
            self.settle(lane, call, debt, Err(error));
        }
    }

    fn deserted(&self, lane: LaneId) {
        self.ring(lane);
    }

    fn unread(&self, lane: LaneId) {
        let reaper = self.reapers.get(lane.0);
        if let Some(reaper) = reaper.filter(|r| !r.looks_again.swap(true, Ordering::AcqRel)) {
            reaper.bell.ring();
        }
    }
}
