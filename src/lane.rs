//! One connection that many threads share, and the line of requests before it.
//!
//! Who brings a request and finds the lane free *leads*: writes all that is queued
//! in one write, reads the replies in order, completes each request, and goes on
//! with what was queued meanwhile. Everyone else queues and sleeps. After its own
//! reply the leader serves a few rounds more and then hands the lead to one who
//! waits. Requests that nobody waits for (*owed* ones) are led by the reaper
//! (`pool.rs`) if nobody else comes.
//!
//! What happens to a request, step by step:
//! 1. It is queued. Requests of one lane reach the server in this order.
//! 2. A leader takes it, with up to [`BATCH`] others, and writes them. One deadline
//!    for the batch.
//! 3. Its reply completes it. A reply of `NOSCRIPT` loads the script and sends it
//!    again, and with it what stood behind it in the batch: order holds.
//! 4. If the connection breaks before, a new one is made at once, and what has no
//!    answer is sent again, once; its answer is then marked *doubtful*, since the
//!    first copy may have run. If no answer comes in time nothing is sent again.
//!    Owed requests are given back to the pool, which tries later.
//!
//! Bytes that were written cannot be recalled: an old connection may still run a
//! command after its successor has answered. So the *ghost* of a connection that was
//! given up with questions under way is killed by its client id: the handshake of
//! the next connection asks whether the server still has it, and if so the first
//! thing written there is `CLIENT KILL`. What follows on this lane runs after it.
//! Where that is not permitted, answers are marked *haunted* for as long as a late
//! copy could leave something behind.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(all(test, leasehold_model)))]
use crate::conn::Conn;
#[cfg(all(test, leasehold_model))]
use crate::conn::model::Conn;
use crate::conn::{Address, Fault, Ghosts, Identity, Timeouts};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::script::{Call, LaneId, Reply, Script};
use crate::sync::{Condvar, Mutex};
use crate::time::{self, Moment};

#[cfg(all(test, leasehold_model))]
mod model;

/// How many requests one write takes along.
pub(crate) const BATCH: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 128 };

/// How many rounds a leader serves after its own reply, if somebody waits to lead.
const ROUNDS_FOR_OTHERS: u32 = if cfg!(all(test, leasehold_model)) { 0 } else { 4 };

/// How often a script is loaded for one request before that is an error.
const LOADS: u8 = 3;

/// An answer, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// The moment just before the command was (last) written.
    pub(crate) sent: Moment,
    /// An earlier copy of the command may have run as well.
    pub(crate) doubtful: bool,
    /// A copy of this or of an earlier command may still run, later.
    pub(crate) haunted: bool,
    pub(crate) lane: LaneId,
}

/// What is done with the outcome of a request that nobody waits for. Called with no
/// lock held, by whichever thread spoke with the server; must not block.
pub(crate) trait Settle: Send + Sync {
    fn settle(&self, outcome: Result<Answer>);
}

/// A request that nobody waits for, and how long it is worth sending.
#[derive(Clone)]
pub(crate) struct Debt {
    pub(crate) settle: Arc<dyn Settle>,
    pub(crate) until: Moment,
    pub(crate) failures: u32,
}

impl fmt::Debug for Debt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debt").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A command in the line of a lane.
#[derive(Debug)]
pub(crate) struct Request {
    call: Call,
    to: To,
    doubtful: bool,
    loads: u8,
}

/// Who gets the outcome.
#[derive(Debug)]
enum To {
    Waiter(Promise),
    Debt(Debt),
    Script(&'static Script),
    Ghost(Identity),
}

impl Request {
    /// A request whose sender will wait, and where.
    pub(crate) fn awaited(call: Call) -> (Request, Arc<Slot>) {
        let slot = Arc::default();
        let to = To::Waiter(Promise(Some(Arc::clone(&slot))));
        (Request::new(call, to), slot)
    }

    pub(crate) fn owed(call: Call, debt: Debt) -> Request {
        Request::new(call, To::Debt(debt))
    }

    fn new(call: Call, to: To) -> Request {
        Request { call, to, doubtful: false, loads: 0 }
    }

    fn slot(&self) -> Option<&Arc<Slot>> {
        match &self.to {
            To::Waiter(promise) => promise.0.as_ref(),
            To::Debt(_) | To::Script(_) | To::Ghost(_) => None,
        }
    }

    /// What is owed with it, if nobody waits for it.
    pub(crate) fn debt_mut(&mut self) -> Option<&mut Debt> {
        match &mut self.to {
            To::Debt(debt) => Some(debt),
            To::Waiter(_) | To::Script(_) | To::Ghost(_) => None,
        }
    }
}

/// The end of a slot that completes it. Dropped without an outcome, it says so: no
/// sender sleeps for ever.
#[derive(Debug)]
struct Promise(Option<Arc<Slot>>);

impl Promise {
    fn keep(&mut self, outcome: Result<Answer>) {
        if let Some(slot) = self.0.take() {
            slot.set(Stage::Done(Box::new(outcome)));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let message = "the thread that spoke with the server panicked";
        self.keep(Err(Error::new(ErrorKind::Connection, message)));
    }
}

/// Where the sender of a request sleeps until it is complete, or its turn to lead.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Queued,
    Taken,
    Lead,
    Done(Box<Result<Answer>>),
}

/// What the sleep of a sender ended with.
enum Woken {
    Done(Result<Answer>),
    Lead,
    TooLate,
}

impl Slot {
    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }

    fn is_done(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Done(_))
    }

    /// Sleeps; until `end` if nobody has taken the request.
    fn sleep(&self, end: Moment) -> Woken {
        let mut stage = self.stage.lock();
        loop {
            match &mut *stage {
                Stage::Done(_) => break,
                Stage::Lead => {
                    *stage = Stage::Queued;
                    return Woken::Lead;
                }
                Stage::Queued if end <= time::now() => return Woken::TooLate,
                Stage::Queued => self.changed.wait_until(&mut stage, end),
                Stage::Taken => self.changed.wait_until(&mut stage, Moment::END),
            }
        }
        match std::mem::take(&mut *stage) {
            Stage::Done(outcome) => Woken::Done(*outcome),
            Stage::Queued | Stage::Taken | Stage::Lead => Woken::TooLate,
        }
    }
}

/// What all lanes of one client share.
pub(crate) struct Link {
    pub(crate) address: Address,
    /// The client's name, which its connections carry with a number each.
    pub(crate) name: String,
    pub(crate) watch: Arc<dyn Watch>,
}

/// Is told of what happens to connections. Must not block.
pub(crate) trait Watch: Send + Sync {
    /// A connection was made again after one that broke.
    fn reconnected(&self, address: &Arc<str>);
    /// A request that nobody waits for was answered.
    fn answered(&self, debt: &Debt, answer: Answer);
    /// A request that nobody waits for got no answer, or was refused.
    fn failed(&self, lane: LaneId, request: Request, error: Error);
    /// There are requests in the line that nobody waits for, and nobody leads.
    fn deserted(&self, lane: LaneId);
}

/// One connection and its line.
pub(crate) struct Lane {
    id: LaneId,
    link: Arc<Link>,
    timeouts: Timeouts,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Request>,
    /// What the leader needs; absent while somebody leads.
    wire: Option<Wire>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lane").field(&self.id).finish()
    }
}

impl Lane {
    pub(crate) fn new(id: LaneId, link: Arc<Link>, timeouts: Timeouts) -> Lane {
        let wire = Some(Wire::default());
        Lane { id, link, timeouts, state: Mutex::new(State { queue: VecDeque::new(), wire }) }
    }

    /// Connects, if it is not connected.
    pub(crate) fn connect(&self) -> Result<()> {
        let Some(mut lead) = Lead::take(self) else { return Ok(()) };
        lead.wire.connect(self)
    }

    /// Queues a request. Does no I/O: call [`Lane::serve`] or have it done.
    pub(crate) fn queue(&self, request: Request) {
        self.state.lock().queue.push_back(request);
    }

    /// Queues a request if nobody leads here.
    pub(crate) fn queue_if_free(&self, request: Request) -> std::result::Result<(), Request> {
        let mut state = self.state.lock();
        if state.wire.is_none() || !state.queue.is_empty() {
            return Err(request);
        }
        state.queue.push_back(request);
        Ok(())
    }

    pub(crate) fn id(&self) -> LaneId {
        self.id
    }

    /// How many requests nobody has taken yet.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Waits for a queued request, and leads if nobody else does. `give_up` after
    /// which it is taken back from the line, if it still stands there.
    pub(crate) fn wait(&self, slot: &Arc<Slot>, give_up: Moment) -> Result<Answer> {
        loop {
            if let Some(lead) = Lead::take(self) {
                lead.serve(Some(slot));
            }
            match slot.sleep(give_up) {
                Woken::Done(outcome) => return outcome,
                Woken::Lead => {}
                Woken::TooLate if self.take_back(slot) => {
                    self.pass_lead_on();
                    return Err(all_busy());
                }
                Woken::TooLate => slot.set_taken_unless_done(),
            }
        }
    }

    /// Leads until the line is empty or somebody else does.
    pub(crate) fn serve(&self) {
        if let Some(lead) = Lead::take(self) {
            lead.serve(None);
        }
    }

    /// The lead may have been offered to a sender in the very moment in which it gave
    /// up. If nobody leads, the next in line is told.
    fn pass_lead_on(&self) {
        drop(Lead::take(self));
    }

    fn take_back(&self, slot: &Arc<Slot>) -> bool {
        let mut state = self.state.lock();
        let mine = |r: &Request| r.slot().is_some_and(|s| Arc::ptr_eq(s, slot));
        let at = state.queue.iter().position(mine);
        at.and_then(|at| state.queue.remove(at)).is_some()
    }
}

impl Slot {
    /// The leader has the request in its hands and will complete it.
    fn set_taken_unless_done(&self) {
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Queued) {
            *stage = Stage::Taken;
        }
    }
}

fn all_busy() -> Error {
    Error::new(ErrorKind::Timeout, "all connections were busy for the pool time-out")
}

/// The lead of a lane, given back when dropped.
struct Lead<'a> {
    lane: &'a Lane,
    wire: Wire,
}

impl<'a> Lead<'a> {
    fn take(lane: &'a Lane) -> Option<Lead<'a>> {
        let wire = lane.state.lock().wire.take()?;
        Some(Lead { lane, wire })
    }

    /// Serves the line: until it is empty, or until somebody else can go on after
    /// the leader's own request is done.
    fn serve(mut self, own: Option<&Slot>) {
        let mut rounds_for_others = 0;
        loop {
            let batch = self.lane.next_batch();
            if batch.is_empty() {
                return;
            }
            self.wire.exchange(self.lane, batch);
            if own.is_none_or(Slot::is_done) {
                rounds_for_others += 1;
            }
            if rounds_for_others > ROUNDS_FOR_OTHERS && self.lane.somebody_waits() {
                return;
            }
        }
    }
}

impl Drop for Lead<'_> {
    /// Gives the lead back and looks at the line in one step: a request that is
    /// queued now finds the lead free, or is found here. Also when a thread that
    /// leads unwinds: the line must not stand still.
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        state.wire = Some(std::mem::take(&mut self.wire));
        match state.first_waiter() {
            Some(next) => next.set(Stage::Lead),
            None if state.queue.is_empty() => {}
            None => self.lane.link.watch.deserted(self.lane.id),
        }
    }
}

impl State {
    fn first_waiter(&self) -> Option<&Arc<Slot>> {
        self.queue.iter().find_map(Request::slot)
    }
}

impl Lane {
    fn next_batch(&self) -> VecDeque<Request> {
        let mut state = self.state.lock();
        let size = state.queue.len().min(BATCH);
        state.queue.drain(..size).collect()
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().first_waiter().is_some()
    }

    fn complete(&self, mut request: Request, outcome: Result<Answer>) {
        match (&mut request.to, outcome) {
            (To::Waiter(promise), outcome) => promise.keep(outcome),
            (To::Debt(_), Err(error)) => self.link.watch.failed(self.id, request, error),
            (To::Debt(debt), Ok(answer)) => self.link.watch.answered(debt, answer),
            (To::Script(_) | To::Ghost(_), _) => {}
        }
    }

    fn fail(&self, requests: VecDeque<Request>, error: &Error) {
        requests.into_iter().for_each(|request| self.complete(request, Err(error.clone())));
    }
}

/// The connection of a lane, and what is known of those before it.
#[derive(Debug, Default)]
struct Wire {
    conn: Option<Conn>,
    ghosts: Vec<Ghost>,
    /// How many connections there have been.
    serial: u64,
    buffer: Vec<u8>,
    /// The server said that it is a replica.
    misled: bool,
    /// A script that could not be loaded in this round, and why.
    not_loaded: Option<(&'static str, Refusal)>,
}

/// A connection that was given up with questions under way.
#[derive(Debug)]
struct Ghost {
    identity: Identity,
    /// How long that lasts which it may do late.
    lasting: Duration,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    /// The server has it, and it is to be killed.
    Alive,
    /// The server does not let us find out, or kill it. Forgotten at that moment.
    Untouchable(Moment),
}

impl Ghost {
    fn give_up(&mut self, now: Moment) {
        if !matches!(self.fate, Fate::Untouchable(_)) {
            self.fate = Fate::Untouchable(now + self.lasting);
        }
    }

    fn haunts(&self, now: Moment) -> bool {
        !matches!(self.fate, Fate::Untouchable(until) if until <= now)
    }
}

impl Wire {
    /// Has every request of `batch` completed.
    fn exchange(&mut self, lane: &Lane, batch: VecDeque<Request>) {
        let mut left = batch;
        let mut second_try = false;
        while !left.is_empty() {
            if let Err(error) = self.connect(lane) {
                return lane.fail(left, &error);
            }
            let fault = match self.round(lane, &mut left) {
                Ok(()) => continue,
                Err(fault) => fault,
            };
            self.condemn(&left);
            if fault.timed_out || second_try {
                return lane.fail(left, &fault.error);
            }
            second_try = true;
        }
    }

    /// Connects if there is no connection.
    fn connect(&mut self, lane: &Lane) -> Result<()> {
        if self.conn.is_some() {
            return Ok(());
        }
        let link = &lane.link;
        let now = time::now();
        self.ghosts.retain(|ghost| ghost.haunts(now));
        let unknown: Vec<_> = self.ghosts.iter().map(|ghost| ghost.identity.clone()).collect();
        let name = format!("{}:{}.{}", link.name, lane.id.0, self.serial);
        let opened = Conn::open(&link.address, lane.timeouts, name, &unknown)?;
        self.judge(&opened.ghosts, now);
        self.conn = Some(opened.conn);
        self.serial += 1;
        if self.serial > 1 {
            link.watch.reconnected(link.address.shown());
        }
        Ok(())
    }

    /// Takes in what the server said of the ghosts.
    fn judge(&mut self, said: &Ghosts, now: Moment) {
        match said {
            Ghosts::Alive(alive) => {
                self.ghosts.retain(|ghost| alive.contains(&ghost.identity));
                self.ghosts.iter_mut().for_each(|ghost| ghost.fate = Fate::Alive);
            }
            Ghosts::Unknown => self.ghosts.iter_mut().for_each(|ghost| ghost.give_up(now)),
        }
    }

    /// Gives the connection up.
    fn condemn(&mut self, unanswered: &VecDeque<Request>) {
        let Some(conn) = self.conn.take() else { return };
        let lasting = unanswered.iter().map(|request| request.call.lasting).max();
        let lasting = lasting.unwrap_or_default();
        if !lasting.is_zero() {
            let identity = conn.identity().clone();
            self.ghosts.push(Ghost { identity, lasting, fate: Fate::Unknown });
        }
    }

    /// One write and its replies. What is answered leaves `left`; what needs its
    /// script loaded stays there for the next round.
    fn round(&mut self, lane: &Lane, left: &mut VecDeque<Request>) -> Outcome {
        self.put_own_requests_first(left);
        self.not_loaded = None;
        let Some(mut conn) = self.conn.take() else { return Ok(()) };
        self.buffer.clear();
        left.iter().for_each(|request| self.buffer.extend_from_slice(&request.call.bytes));
        let sent = time::now();
        let ended = conn.send(&self.buffer).and_then(|deadline| {
            let mut again = VecDeque::new();
            let ended = self.read(lane, &mut conn, left, &mut again, sent, deadline);
            left.append(&mut again);
            ended
        });
        if ended.is_err() {
            left.iter_mut().for_each(|request| request.doubtful = true);
        }
        // A replica that was a master, or took its address: look again where it is.
        if !std::mem::take(&mut self.misled) || ended.is_err() {
            self.conn = Some(conn);
        }
        ended
    }

    /// Reads the replies to `left` and completes what they answer.
    fn read(
        &mut self,
        lane: &Lane,
        conn: &mut Conn,
        left: &mut VecDeque<Request>,
        again: &mut VecDeque<Request>,
        sent: Moment,
        deadline: Moment,
    ) -> Outcome {
        while !left.is_empty() {
            let reply = conn.answer(deadline)?;
            let Some(mut request) = left.pop_front() else { break };
            let reply = self.why_unknown(&request, reply);
            if reply.is_refused("NOSCRIPT") && request.loads < LOADS {
                request.loads += 1;
                again.push_back(request);
            } else if !again.is_empty() {
                // It was answered too early: it stands behind one that did not run.
                request.doubtful = true;
                again.push_back(request);
            } else {
                self.answer(lane, request, reply, sent);
            }
        }
        Ok(())
    }

    /// A script that is unknown because it could not be loaded: the reason for that is
    /// the better answer.
    fn why_unknown(&self, request: &Request, reply: Reply) -> Reply {
        match (&self.not_loaded, request.call.script) {
            (Some((digest, refusal)), Some(script))
                if script.digest == *digest && reply.is_refused("NOSCRIPT") =>
            {
                Reply::Refused(refusal.clone())
            }
            _ => reply,
        }
    }

    fn answer(&mut self, lane: &Lane, request: Request, reply: Reply, sent: Moment) {
        match &request.to {
            To::Ghost(identity) => self.killed(identity, &reply),
            To::Script(script) => {
                if let Reply::Refused(refusal) = reply {
                    self.not_loaded = Some((script.digest, refusal));
                }
            }
            To::Waiter(_) | To::Debt(_) => {
                let haunted = self.ghosts.iter().any(|ghost| ghost.haunts(sent));
                let doubtful = request.doubtful;
                self.misled |= reply.is_refused("READONLY");
                let outcome = match reply {
                    Reply::Refused(refusal) => Err(Error::server(&refusal)),
                    reply => Ok(Answer { reply, sent, doubtful, haunted, lane: lane.id }),
                };
                lane.complete(request, outcome);
            }
        }
    }

    /// The server has answered the command that kills a ghost.
    fn killed(&mut self, identity: &Identity, reply: &Reply) {
        match reply {
            Reply::Refused(_) => {
                let ghosts = self.ghosts.iter_mut().filter(|ghost| ghost.identity == *identity);
                ghosts.for_each(|ghost| ghost.give_up(time::now()));
            }
            _ => self.ghosts.retain(|ghost| ghost.identity != *identity),
        }
    }

    /// Ghosts are killed and missing scripts loaded before anything else is sent.
    fn put_own_requests_first(&self, left: &mut VecDeque<Request>) {
        left.retain(|request| matches!(request.to, To::Waiter(_) | To::Debt(_)));
        let missing = left.iter().filter(|request| request.loads > 0);
        let mut scripts: Vec<_> = missing.filter_map(|request| request.call.script).collect();
        scripts.sort_unstable_by_key(|script| script.digest);
        scripts.dedup_by_key(|script| script.digest);
        for script in scripts {
            log::debug!("the server does not know the script {}: loading it", script.name);
            left.push_front(Request::new(Call::load(script), To::Script(script)));
        }
        for ghost in self.ghosts.iter().filter(|ghost| ghost.fate == Fate::Alive) {
            let to = To::Ghost(ghost.identity.clone());
            left.push_front(Request::new(ghost.identity.kill(), to));
        }
    }
}

type Outcome = std::result::Result<(), Fault>;
