//! One connection that many threads share, and the line of requests before it.
//!
//! Who brings a request and finds the lane free *leads*: writes all that is queued
//! in one write, reads the replies in order and completes each request. Everyone else
//! queues and sleeps. With its own reply the leader hands the lead to one who waits: it
//! has what it came for, and the next answer may be slow. Requests that nobody waits
//! for (*owed* ones) are led by the reaper (`pool.rs`) if nobody else comes.
//!
//! What happens to a request, step by step:
//! 1. It is queued. Requests of one lane reach the server in this order.
//! 2. A leader takes it, with up to [`BATCH`] others, and writes them. One deadline
//!    for the batch.
//! 3. Its reply completes it. A reply of `NOSCRIPT` loads the script and sends it
//!    again, and with it what stood behind it in the batch: order holds.
//! 4. If the connection breaks before, a new one is made at once, and what has no
//!    answer is sent again, once; its answer is then marked *doubtful*, since the
//!    first copy may have run. If no answer comes in time nothing is sent again, and
//!    never what must not run twice ([`Call::once`]).
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
use crate::thread;
use crate::time::{self, Moment};

#[cfg(all(test, leasehold_model))]
mod model;

/// How many requests one write takes along.
const BATCH: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 128 };

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

/// Why there is no answer that says anything.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The command may have run, or run yet: it was written.
    pub(crate) written: bool,
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        self.error
    }
}

/// What the sender of a command gets.
pub(crate) type Outcome = std::result::Result<Answer, Failure>;

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
    /// Whether a client that is closed waits for it.
    pub(crate) counts: bool,
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
    pub(crate) fn debt(&self) -> Option<&Debt> {
        match &self.to {
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
    fn keep(&mut self, outcome: Outcome) {
        if let Some(slot) = self.0.take() {
            slot.set(Stage::Done(Box::new(outcome)));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(Err(Failure { error: panicked(), written: true }));
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
    Done(Box<Outcome>),
}

/// What the sleep of a sender ended with.
enum Woken {
    Done(Outcome),
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
    /// The process that may use them.
    pub(crate) process: u32,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Link {
    /// An error in a forked child: what is written there, or read, is taken from its
    /// parent; its threads are gone, and its hold numbers are those of its parent.
    pub(crate) fn check_process(&self) -> Result<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(Error::configuration(
                "the client was made before a fork and cannot be used in the child",
            )),
        }
    }
}

/// Is told of what happens to connections. Must not block, nor panic.
pub(crate) trait Observer: Send + Sync {
    /// A connection was made again after one that broke.
    fn reconnected(&self, address: &Arc<str>);
    /// A request that nobody waits for was answered.
    fn answered(&self, lane: LaneId, debt: &Debt, answer: Answer);
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
    /// How many requests the leader has taken and not finished with.
    taken: usize,
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
        let state = State { queue: VecDeque::new(), taken: 0, wire: Some(Wire::default()) };
        Lane { id, link, timeouts, state: Mutex::new(state) }
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

    /// How many requests would come before another.
    pub(crate) fn load(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.taken
    }

    /// Waits for a queued request, and leads if nobody else does. `give_up` after
    /// which it is taken back from the line, if it still stands there.
    pub(crate) fn wait(&self, slot: &Arc<Slot>, give_up: Moment) -> Outcome {
        loop {
            if let Some(lead) = Lead::take(self) {
                lead.serve(Some(slot));
            }
            match slot.sleep(give_up) {
                Woken::Done(outcome) => return outcome,
                Woken::Lead => {}
                Woken::TooLate if self.take_back(slot) => {
                    self.pass_lead_on();
                    return Err(Failure { error: all_busy(), written: false });
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
    Error::new(ErrorKind::Timeout, "all connections were busy for as long as it could wait")
}

fn panicked() -> Error {
    Error::new(ErrorKind::Connection, "the thread that spoke with the server panicked")
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

    /// Serves the line: a caller until its own request is done, the reaper until nothing
    /// is left, or somebody else can go on, or the connection is gone.
    fn serve(mut self, own: Option<&Slot>) {
        loop {
            let batch = self.lane.next_batch();
            if batch.is_empty() {
                return;
            }
            self.wire.exchange(self.lane, batch);
            let relieved = match own {
                Some(slot) => slot.is_done(),
                None => self.wire.conn.is_none() || self.lane.somebody_waits(),
            };
            if relieved {
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
        state.taken = 0;
        match state.first_waiter() {
            Some(next) => next.set(Stage::Lead),
            None if state.queue.is_empty() => {}
            None => self.lane.link.observer.deserted(self.lane.id),
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
        state.taken = size;
        state.queue.drain(..size).collect()
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().first_waiter().is_some()
    }

    fn answer(&self, mut request: Request, answer: Result<Answer>) {
        match (&mut request.to, answer) {
            (To::Waiter(promise), answer) => {
                promise.keep(answer.map_err(|error| Failure { error, written: true }));
            }
            (To::Debt(_), Err(error)) => self.link.observer.failed(self.id, request, error),
            (To::Debt(debt), Ok(answer)) => self.link.observer.answered(self.id, debt, answer),
            (To::Script(_) | To::Ghost(_), _) => {}
        }
    }

    fn fail(&self, requests: impl IntoIterator<Item = Request>, error: &Error) {
        for mut request in requests {
            let (error, written) = (error.clone(), request.doubtful);
            match &mut request.to {
                To::Waiter(promise) => promise.keep(Err(Failure { error, written })),
                To::Debt(_) => self.link.observer.failed(self.id, request, error),
                To::Script(_) | To::Ghost(_) => {}
            }
        }
    }
}

/// The connection of a lane, and what is known of those before it.
#[derive(Debug, Default)]
struct Wire {
    conn: Option<Conn>,
    /// How many connections there have been.
    serial: u64,
    buffer: Vec<u8>,
    notes: Notes,
}

/// What is left of a batch.
#[derive(Debug)]
struct Batch {
    /// What has no answer yet, in order.
    left: VecDeque<Request>,
    /// What has to be sent once more in the same order, before it.
    again: VecDeque<Request>,
}

/// What the replies said that is of use for what follows.
#[derive(Debug, Default)]
struct Notes {
    ghosts: Vec<Ghost>,
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
        if let Err(error) = lane.link.check_process() {
            return lane.fail(batch, &error);
        }
        let mut batch = Batch { left: batch, again: VecDeque::new() };
        let mut faults = 0;
        while !batch.left.is_empty() {
            if let Err(error) = self.connect(lane) {
                return lane.fail(batch.left, &error);
            }
            // Loggers are foreign code. What they break must not stay unanswered.
            let round = || self.round(lane, &mut batch);
            let (error, hopeless) = match thread::survive("speaking with the server", round) {
                Some(Ok(())) => continue,
                Some(Err(fault)) => (fault.error, fault.timed_out || faults > 0),
                None => (panicked(), true),
            };
            faults += 1;
            batch.requeue();
            self.condemn(&batch.left);
            batch.left.iter_mut().for_each(|request| request.doubtful = true);
            let given_up = batch.take(|request| hopeless || request.call.once);
            lane.fail(given_up, &error);
        }
    }

    /// Connects if there is no connection.
    fn connect(&mut self, lane: &Lane) -> Result<()> {
        if self.conn.is_some() {
            return Ok(());
        }
        let link = &lane.link;
        let now = time::now();
        let unknown = self.notes.ghosts_that_haunt(now);
        let name = format!("{}:{}.{}", link.name, lane.id.0, self.serial);
        let opened = Conn::open(&link.address, lane.timeouts, name, &unknown)?;
        self.notes.judge(&opened.ghosts, now);
        self.conn = Some(opened.conn);
        self.serial += 1;
        if self.serial > 1 {
            link.observer.reconnected(link.address.shown());
        }
        Ok(())
    }

    /// Gives the connection up.
    fn condemn(&mut self, unanswered: &VecDeque<Request>) {
        let Some(conn) = self.conn.take() else { return };
        let lasting = unanswered.iter().map(|request| request.call.lasting).max();
        let lasting = lasting.unwrap_or_default();
        if !lasting.is_zero() {
            let identity = conn.identity().clone();
            self.notes.ghosts.push(Ghost { identity, lasting, fate: Fate::Unknown });
        }
    }

    /// One write and its replies. What is answered leaves the batch; what needs its
    /// script loaded stays there for the next round.
    fn round(&mut self, lane: &Lane, batch: &mut Batch) -> Round {
        let Wire { conn: Some(conn), notes, buffer, .. } = self else { return Ok(()) };
        notes.put_own_requests_first(&mut batch.left);
        notes.not_loaded = None;
        buffer.clear();
        batch.left.iter().for_each(|request| buffer.extend_from_slice(&request.call.bytes));
        let sent = time::now();
        let deadline = conn.send(buffer)?;
        notes.read(lane, conn, batch, sent, deadline)?;
        batch.requeue();
        // A replica that was a master, or took its address: look again where it is.
        if std::mem::take(&mut notes.misled) {
            self.conn = None;
        }
        Ok(())
    }
}

impl Batch {
    /// What has to be sent once more comes before what has no answer.
    fn requeue(&mut self) {
        self.again.append(&mut self.left);
        std::mem::swap(&mut self.left, &mut self.again);
    }

    fn take(&mut self, which: impl Fn(&Request) -> bool) -> VecDeque<Request> {
        let (taken, left) = self.left.drain(..).partition(which);
        self.left = left;
        taken
    }
}

impl Notes {
    fn ghosts_that_haunt(&mut self, now: Moment) -> Vec<Identity> {
        self.ghosts.retain(|ghost| ghost.haunts(now));
        self.ghosts.iter().map(|ghost| ghost.identity.clone()).collect()
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

    /// Reads the replies to a batch and completes what they answer.
    fn read(
        &mut self,
        lane: &Lane,
        conn: &mut Conn,
        batch: &mut Batch,
        sent: Moment,
        deadline: Moment,
    ) -> Round {
        while !batch.left.is_empty() {
            let reply = conn.answer(deadline)?;
            let Some(mut request) = batch.left.pop_front() else { break };
            let reply = self.why_unknown(&request, reply);
            if reply.is_refused("NOSCRIPT") && request.loads < LOADS {
                request.loads += 1;
                batch.again.push_back(request);
            } else if batch.again.is_empty() || request.call.once {
                self.answer(lane, request, reply, sent);
            } else {
                // It was answered too early: it stands behind one that did not run.
                request.doubtful = true;
                batch.again.push_back(request);
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
                let answer = match reply {
                    Reply::Refused(refusal) => Err(Error::server(&refusal)),
                    reply => Ok(Answer { reply, sent, doubtful, haunted, lane: lane.id }),
                };
                lane.answer(request, answer);
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
            thread::say(|| {
                log::debug!("the server does not know the script {}: loading it", script.name);
            });
            left.push_front(Request::new(Call::load(script), To::Script(script)));
        }
        for ghost in self.ghosts.iter().filter(|ghost| ghost.fate == Fate::Alive) {
            let to = To::Ghost(ghost.identity.clone());
            left.push_front(Request::new(ghost.identity.kill(), to));
        }
    }
}

type Round = std::result::Result<(), Fault>;
