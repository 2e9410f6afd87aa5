//! The connections of one client, and the thread that sees to what is owed.
//!
//! Callers hand in a command and wait ([`Pool::call`]), or owe it
//! ([`Pool::owe`]): then they go on, and the *reaper* thread has it sent, repeats
//! it until it is answered or not worth it any more, and gives the outcome to whom
//! it concerns. The reaper is started at the first debt and rung awake by each.

use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::conn::{Address, Timeouts};
use crate::error::{Error, Result};
use crate::event::{Event, Reconnected, Sink};
use crate::lane::{Answer, Debt, Lane, Link, Request, Settle, Slot, Watch};
use crate::script::{Call, LaneId};
use crate::sync::{Condvar, Mailbox, Mutex};
use crate::thread;
use crate::time::{self, Moment, jittered};

#[cfg(all(test, leasehold_model))]
mod model;

/// The first and the longest pause before an owed request is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

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
    pub(crate) events: Sink,
}

/// The connections.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    link: Arc<Link>,
    wait: Duration,
}

/// What the reaper needs.
struct Shared {
    lanes: Vec<Lane>,
    desk: Arc<Desk>,
    reaper: Mutex<Option<JoinHandle<()>>>,
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
        let desk = Arc::new(Desk::new(settings.events));
        let (address, name) = (settings.address, settings.name);
        let watch = Arc::clone(&desk) as Arc<dyn Watch>;
        let link = Arc::new(Link { address, name, watch });
        let lane = |id| Lane::new(LaneId(id), Arc::clone(&link), settings.timeouts);
        let lanes: Vec<_> = (0..settings.size).map(lane).collect();
        lanes.first().map_or(Ok(()), Lane::connect)?;
        let shared = Arc::new(Shared { lanes, desk, reaper: Mutex::new(None) });
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

    /// Sends a command and waits for its answer: on `lane`, behind all that is
    /// queued there, or on any.
    pub(crate) fn call(&self, call: Call, lane: Option<LaneId>) -> Result<Answer> {
        let pending = self.queue(call, lane);
        self.wait(pending)
    }

    /// The first half of [`Pool::call`]: takes a place in line and does no I/O.
    pub(crate) fn queue(&self, call: Call, lane: Option<LaneId>) -> Pending {
        let (request, slot) = Request::awaited(call);
        let lane = self.shared.queue(request, lane);
        Pending { lane, slot }
    }

    /// The second half of [`Pool::call`].
    pub(crate) fn wait(&self, pending: Pending) -> Result<Answer> {
        let give_up = time::now() + self.wait;
        self.shared.lane(pending.lane).wait(&pending.slot, give_up)
    }

    /// Has a command sent, by and by, until it is answered or `until` has come. Does
    /// no I/O, and has to be followed by [`Pool::wake`].
    pub(crate) fn owe(
        &self,
        call: Call,
        lane: Option<LaneId>,
        until: Moment,
        settle: Arc<dyn Settle>,
    ) -> LaneId {
        let debt = Debt { settle, until, failures: 0 };
        self.shared.desk.opened();
        self.shared.queue(Request::owed(call, debt), lane)
    }

    /// Sees to it that what is owed on that lane is sent.
    pub(crate) fn wake(&self, lane: LaneId) {
        self.shared.wake_reaper(lane);
    }

    /// Has a command sent again and again until `until`.
    pub(crate) fn repeat(&self, call: Call, lane: LaneId, until: Moment, every: Duration) {
        let desk = Arc::downgrade(&self.shared.desk);
        let repeat = Arc::new(Repeat { call, lane, until, every, desk });
        repeat.again(&self.shared.desk);
        self.shared.wake_reaper(lane);
    }

    /// Waits until nothing is owed any more, or until `end`; whether that came.
    pub(crate) fn settle(&self, end: Moment) -> bool {
        self.shared.desk.wait_until_settled(end)
    }

    /// Has the reaper end when nothing is owed any more.
    pub(crate) fn finish(&self) -> Option<JoinHandle<()>> {
        self.shared.desk.state.lock().finish = true;
        self.shared.desk.reaper.ring();
        self.shared.reaper.lock().take()
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

    /// Stands a request in line: on the given lane, on one that is free, or on the
    /// one with the shortest line.
    fn queue(&self, request: Request, lane: Option<LaneId>) -> LaneId {
        let mut request = request;
        if let Some(lane) = lane {
            self.lane(lane).queue(request);
            return lane;
        }
        for lane in &self.lanes {
            match lane.queue_if_free(request) {
                Ok(()) => return lane.id(),
                Err(back) => request = back,
            }
        }
        let shortest = self.lanes.iter().min_by_key(|lane| lane.queued());
        let lane = shortest.map_or(LaneId(0), Lane::id);
        self.lane(lane).queue(request);
        lane
    }

    /// Wakes the reaper, or starts it.
    fn wake_reaper(self: &Arc<Shared>, lane: LaneId) {
        self.desk.reaper.ring();
        if self.desk.starts_reaper() {
            let shared = Arc::clone(self);
            match thread::start("leasehold-reaper", move || shared.reap()) {
                Ok(thread) => *self.reaper.lock() = Some(thread),
                Err(error) => self.do_without_reaper(lane, &error),
            }
        }
    }

    fn do_without_reaper(&self, lane: LaneId, error: &std::io::Error) {
        log::error!("no thread for what is owed, so this one has to wait: {error}");
        self.desk.state.lock().reaping = false;
        self.lane(lane).serve();
    }

    /// What the reaper does.
    fn reap(&self) {
        while !self.desk.ends_reaper() {
            let next = thread::survive("sending what is owed", || self.send_what_is_owed());
            let longest = if next.is_some() { LONGEST_PAUSE } else { thread::REST };
            self.desk.reaper.sleep(next.unwrap_or(Moment::END).min(time::now() + longest));
        }
    }

    fn send_what_is_owed(&self) -> Moment {
        let next = self.queue_delayed(time::now());
        self.lanes.iter().filter(|lane| lane.queued() > 0).for_each(Lane::serve);
        next
    }

    /// Queues what was delayed and is due; when the next will be.
    fn queue_delayed(&self, now: Moment) -> Moment {
        let (due, next) = self.desk.due(now);
        due.into_iter().for_each(|delayed| self.lane(delayed.lane).queue(delayed.request));
        next
    }
}

/// Where debts are counted, and where those that failed wait to be tried again.
struct Desk {
    state: Mutex<DeskState>,
    settled: Condvar,
    reaper: Mailbox,
    events: Sink,
    on_reconnect: Mutex<Option<Weak<dyn OnReconnect>>>,
}

#[derive(Debug, Default)]
struct DeskState {
    delayed: Vec<Delayed>,
    /// Debts that are neither settled nor given up.
    open: usize,
    /// There is a reaper, and it will look again.
    reaping: bool,
    finish: bool,
}

#[derive(Debug)]
struct Delayed {
    at: Moment,
    lane: LaneId,
    request: Request,
}

impl Desk {
    fn new(events: Sink) -> Desk {
        Desk {
            state: Mutex::default(),
            settled: Condvar::default(),
            reaper: Mailbox::default(),
            events,
            on_reconnect: Mutex::new(None),
        }
    }

    fn opened(&self) {
        self.state.lock().open += 1;
    }

    fn closed(&self) {
        let mut state = self.state.lock();
        state.open -= 1;
        if state.open == 0 {
            self.settled.notify_all();
            self.reaper.ring();
        }
    }

    fn wait_until_settled(&self, end: Moment) -> bool {
        let mut state = self.state.lock();
        while state.open > 0 && time::now() < end {
            self.settled.wait_until(&mut state, end);
        }
        state.open == 0
    }

    /// Whether a reaper has to be started by the caller.
    fn starts_reaper(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().reaping, true)
    }

    /// Whether the reaper has to end; one step with looking for debts, so that a new
    /// one either is seen here or starts a new reaper.
    fn ends_reaper(&self) -> bool {
        let mut state = self.state.lock();
        let ends = state.finish && state.open == 0;
        if ends {
            state.reaping = false;
        }
        ends
    }

    fn delay(&self, delayed: Delayed) {
        self.state.lock().delayed.push(delayed);
        self.reaper.ring();
    }

    /// What is due at `now`, and when the next will be.
    fn due(&self, now: Moment) -> (Vec<Delayed>, Moment) {
        let mut state = self.state.lock();
        let all = std::mem::take(&mut state.delayed);
        let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.at <= now);
        let next = later.iter().map(|one| one.at).min();
        state.delayed = later;
        (due, next.unwrap_or(Moment::END))
    }
}

impl Watch for Desk {
    fn reconnected(&self, address: &Arc<str>) {
        let address = Arc::clone(address);
        log::info!("connected to {address} again");
        self.events.tell(|| Event::Reconnected(Reconnected { address }));
        let whom = self.on_reconnect.lock().clone();
        if let Some(whom) = whom.and_then(|whom| whom.upgrade()) {
            whom.reconnected();
        }
    }

    fn answered(&self, debt: &Debt, answer: Answer) {
        debt.settle.settle(Ok(answer));
        self.closed();
    }

    fn failed(&self, lane: LaneId, mut request: Request, error: Error) {
        let now = time::now();
        let Some(debt) = request.debt_mut() else { return };
        debt.failures += 1;
        let pause = LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.saturating_pow(debt.failures.min(8)));
        let at = now + jittered(pause, now.nanos());
        if !error.is_passing() || debt.until <= at {
            debt.settle.settle(Err(error));
            return self.closed();
        }
        log::debug!("an owed command failed, and will be sent again: {error}");
        self.delay(Delayed { at, lane, request });
    }

    fn deserted(&self, _lane: LaneId) {
        self.reaper.ring();
    }
}

/// A command that is sent again and again, in case a late copy of another ran after
/// the last one.
struct Repeat {
    call: Call,
    lane: LaneId,
    until: Moment,
    every: Duration,
    desk: Weak<Desk>,
}

impl Repeat {
    fn again(self: &Arc<Repeat>, desk: &Desk) {
        let at = time::now() + self.every;
        if at < self.until {
            let settle = Arc::new(Again(Arc::clone(self)));
            let debt = Debt { settle, until: self.until, failures: 0 };
            let request = Request::owed(self.call.clone(), debt);
            desk.opened();
            desk.delay(Delayed { at, lane: self.lane, request });
        }
    }
}

struct Again(Arc<Repeat>);

impl Settle for Again {
    fn settle(&self, _outcome: Result<Answer>) {
        if let Some(desk) = self.0.desk.upgrade() {
            self.0.again(&desk);
        }
    }
}
