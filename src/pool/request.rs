//! A command on its way to the server, and who gets its outcome.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::command::call::{Call, ConnectionId};
use crate::command::reply::Reply;
use crate::command::script::Script;
use crate::connection::ConnectionIdentity;
use crate::error::{Error, ErrorKind, Redirect, Result};
use crate::topology::route::Route;
use crate::util::clock::Moment;
use crate::util::sync::{Mutex, thread_local};

/// An answer, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// The moment just before the command was (last) written.
    pub(crate) sent: Moment,
    /// An earlier copy of the command may have run as well.
    pub(crate) maybe_duplicate: bool,
    /// A copy of this or of an earlier command may still run, later.
    pub(crate) may_run_late: bool,
    /// Too few replicas have acknowledged what it wrote, of a command that they should.
    pub(crate) too_few: Option<TooFew>,
    pub(crate) connection: ConnectionId,
}

/// How many replicas have acknowledged a write, and how many should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFew {
    pub(crate) acknowledged: u64,
    pub(crate) wanted: u32,
}

impl TooFew {
    pub(crate) fn into_error(self) -> Error {
        let TooFew { acknowledged, wanted } = self;
        let message = format!("replicas that acknowledged it in time: {acknowledged} of {wanted}");
        Error::new(ErrorKind::NotReplicated, message)
    }
}

/// Why there is no answer that says anything.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The command, if it was never written: else it may have run, or run yet.
    pub(crate) unsent: Option<Box<Call>>,
    /// The command, if a node of a cluster has sent it elsewhere.
    pub(crate) redirected: Option<Box<Redirected>>,
}

/// A command that a node of a cluster has not run.
#[derive(Debug)]
pub(crate) struct Redirected {
    pub(crate) call: Call,
    /// A copy may have run before.
    pub(crate) maybe_duplicate: bool,
    pub(crate) direction: Redirect,
}

impl Failure {
    /// Why there is none to what was, or may have been, written.
    pub(crate) fn sent(error: Error) -> Failure {
        Failure { error, unsent: None, redirected: None }
    }

    /// It was sent elsewhere, and goes nowhere any more.
    pub(crate) fn lost_on_its_way(redirected: Redirected, error: Error) -> Failure {
        let unsent = (!redirected.maybe_duplicate).then(|| Box::new(redirected.call));
        Failure { error, unsent, redirected: None }
    }

    pub(crate) fn is_written(&self) -> bool {
        self.unsent.is_none()
    }

    pub(crate) fn into_error(self) -> Error {
        self.error
    }
}

/// What the sender of a command gets.
pub(crate) type Outcome = std::result::Result<Answer, Failure>;

/// What is done with the outcome of the release of a hold that nobody waits for. Called
/// with no lock held, by whichever thread spoke with the server; must not block.
pub(crate) trait OnOutcome: Send + Sync {
    fn settle(&self, outcome: Result<Answer>);
}

/// A request that nobody waits for.
pub(crate) struct BackgroundTask {
    /// What it releases; `None` for what only cleans up.
    pub(crate) release: Option<Arc<dyn OnOutcome>>,
    /// How long it is worth sending.
    pub(crate) until: Moment,
    /// How long a late copy of another command would last that may run after this one:
    /// if the answer says that this can be, it is sent again for as long.
    pub(crate) lasting: Duration,
    /// Until when it is sent again whatever the answer says.
    pub(crate) again_until: Moment,
    /// Whether a client that is closed waits for it.
    pub(crate) counts: bool,
    /// What it ends may live on after `until`, kept by others: it is then sent until it is
    /// answered, but nobody is told, and a client that is closed does not wait.
    pub(crate) lives_on: bool,
}

impl BackgroundTask {
    /// One that is settled by its answer.
    pub(crate) fn new(release: Option<Arc<dyn OnOutcome>>, until: Moment) -> BackgroundTask {
        let lasting = Duration::ZERO;
        let again_until = Moment::START;
        BackgroundTask { release, until, lasting, again_until, counts: true, lives_on: false }
    }

    /// Says whether what it ends may live on after `until`.
    pub(crate) fn lives_on(self, lives_on: bool) -> BackgroundTask {
        BackgroundTask { lives_on, ..self }
    }

    /// What is left of it after `until`: its outcome has been told.
    pub(crate) fn beyond(self) -> BackgroundTask {
        BackgroundTask { release: None, until: Moment::END, counts: false, ..self }
    }

    /// Says that a late copy of another command may undo it for so long.
    pub(crate) fn may_run_late(self, lasting: Duration) -> BackgroundTask {
        BackgroundTask { lasting, ..self }
    }

    /// Says what came of it.
    pub(crate) fn settle(&self, outcome: Result<Answer>) {
        match (&self.release, outcome) {
            (Some(release), outcome) => release.settle(outcome),
            (None, Ok(_)) => {}
            (None, Err(error)) if self.lasting.is_zero() => {
                log::debug!("what nobody waits for failed: {error}");
            }
            (None, Err(error)) => {
                log::warn!("a clean-up failed; the end of the lease will do: {error}");
            }
        }
    }
}

impl fmt::Debug for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debt").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A command in the line of a lane.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) to: To,
    /// When it was written to the present connection, if it was.
    pub(crate) written: Option<Moment>,
    /// A copy was written to an earlier one.
    pub(crate) maybe_duplicate: bool,
    /// How many connections broke while it had no answer.
    pub(crate) breaks: u8,
    /// How often its script was loaded for it.
    pub(crate) loads: u8,
    /// It has been refused by a server that is a replica.
    pub(crate) sent_to_replica: bool,
    /// How many, with this one as the first, were written as one command.
    pub(crate) joined: usize,
    /// It is to be written by itself.
    pub(crate) alone: bool,
    /// How often a node of a cluster has sent it elsewhere.
    pub(crate) hops: u8,
    /// It has to be announced: its slot is only about to be served there.
    pub(crate) asking: bool,
}

/// Who gets the outcome.
#[derive(Debug)]
pub(crate) enum To {
    Waiter(Promise),
    Debt(BackgroundTask),
    Script(&'static Script),
    Ghost(ConnectionIdentity),
    /// Those whose answers are good only if enough replicas have what they wrote.
    Replicated,
    /// The one behind it, which it announces.
    Asking,
}

impl Request {
    /// A request whose sender will wait, and where.
    pub(crate) fn awaited(call: Call) -> (Request, Arc<ReplySlot>) {
        let slot = ReplySlot::spare();
        let to = To::Waiter(Promise(Some(Arc::clone(&slot))));
        (Request::new(call, to), slot)
    }

    pub(crate) fn background(call: Call, task: BackgroundTask) -> Request {
        Request::new(call, To::Debt(task))
    }

    /// Says that a copy was sent before.
    pub(crate) fn maybe_duplicate(self, maybe_duplicate: bool) -> Request {
        Request { maybe_duplicate, ..self }
    }

    pub(crate) fn new(call: Call, to: To) -> Request {
        let (written, maybe_duplicate, sent_to_replica, alone) = (None, false, false, false);
        let (hops, asking) = (0, false);
        let (breaks, loads, joined) = (0, 0, 1);
        Request {
            call,
            to,
            written,
            maybe_duplicate,
            breaks,
            loads,
            sent_to_replica,
            joined,
            alone,
            hops,
            asking,
        }
    }

    /// Whether it is there for others and not for a caller or a debt.
    pub(crate) fn is_help(&self) -> bool {
        !matches!(self.to, To::Waiter(_) | To::Debt(_))
    }

    /// It is to be sent again: what was written may have run.
    pub(crate) fn take_back(&mut self) {
        self.maybe_duplicate |= self.written.take().is_some();
    }

    /// The same, since its connection was given up.
    pub(crate) fn outlive_connection(&mut self) {
        self.breaks = self.breaks.saturating_add(u8::from(self.written.is_some()));
        self.take_back();
    }

    pub(crate) fn slot(&self) -> Option<&Arc<ReplySlot>> {
        match &self.to {
            To::Waiter(promise) => promise.0.as_ref(),
            _ => None,
        }
    }

    /// The slot of its sender, while that waits.
    pub(crate) fn waiter(&self) -> Option<&Arc<ReplySlot>> {
        self.slot().filter(|slot| !slot.is_left())
    }

    /// Whether its sender has left without the outcome.
    pub(crate) fn is_left(&self) -> bool {
        self.slot().is_some_and(|slot| slot.is_left())
    }

    /// Whether a client that is closed waits for it.
    pub(crate) fn counts(&self) -> bool {
        matches!(&self.to, To::Debt(task) if task.counts)
    }

    /// Tells its sender, if one waits, where it was sent, and gives the rest back.
    pub(crate) fn redirect(
        mut self,
        direction: Redirect,
        error: Error,
    ) -> Option<(Request, Redirect, Error)> {
        let To::Waiter(promise) = &mut self.to else { return Some((self, direction, error)) };
        let redirected =
            Redirected { call: self.call, maybe_duplicate: self.maybe_duplicate, direction };
        promise.keep(Err(Failure { error, unsent: None, redirected: Some(Box::new(redirected)) }));
        None
    }

    /// Tells its sender, if one waits, why there is no answer, and gives the rest back.
    pub(crate) fn fail(mut self, error: &Error) -> Option<Request> {
        let To::Waiter(promise) = &mut self.to else { return Some(self) };
        let unsent = (!self.maybe_duplicate).then(|| Box::new(self.call));
        promise.keep(Err(Failure { error: error.clone(), unsent, redirected: None }));
        None
    }

    /// How long it is worth sending, if nobody waits for it.
    pub(crate) fn until(&self) -> Moment {
        match &self.to {
            To::Debt(task) => task.until,
            _ => Moment::START,
        }
    }

    /// The call and what is owed with it, if nobody waits for it.
    pub(crate) fn into_task(self) -> Option<(Call, BackgroundTask)> {
        match self.to {
            To::Debt(task) => Some((self.call, task)),
            _ => None,
        }
    }
}

/// The end of a slot that completes it. Dropped without an outcome, it says so. Whoever
/// completes slots has to wake their senders then.
#[derive(Debug)]
pub(crate) struct Promise(Option<Arc<ReplySlot>>);

impl Promise {
    pub(crate) fn keep(&mut self, outcome: Outcome) {
        if let Some(slot) = self.0.take() {
            *slot.outcome.lock() = Some(outcome);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.keep(Err(Failure::sent(panicked())));
        }
    }
}

/// Where the sender of a request finds its outcome.
#[derive(Debug, Default)]
pub(crate) struct ReplySlot {
    outcome: Mutex<Option<Outcome>>,
    /// With whom the sender sleeps; see `lane.rs`.
    group: AtomicUsize,
    /// The sender has left without the outcome.
    left: AtomicBool,
}

thread_local! {
    /// The slot of this thread's last request.
    static SPARE: Cell<Option<Arc<ReplySlot>>> = const { Cell::new(None) };
}

impl ReplySlot {
    /// An empty one: that of the thread's last request, if it has been given back.
    fn spare() -> Arc<ReplySlot> {
        SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// Keeps a slot for the thread's next request, unless its own may still be completed.
    pub(crate) fn give_back(self: Arc<ReplySlot>) {
        if self.is_left() {
            return;
        }
        drop(self.take());
        // While the thread ends there is no next request.
        let _ = SPARE.try_with(|spare| spare.set(Some(self)));
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.lock().is_some()
    }

    pub(crate) fn take(&self) -> Option<Outcome> {
        self.outcome.lock().take()
    }

    /// The sender leaves, unless the outcome is there.
    pub(crate) fn leave(&self) -> Option<Outcome> {
        let mut outcome = self.outcome.lock();
        self.left.store(outcome.is_none(), Ordering::Release);
        outcome.take()
    }

    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    pub(crate) fn set_group(&self, group: usize) {
        self.group.store(group, Ordering::Relaxed);
    }

    pub(crate) fn group(&self) -> usize {
        self.group.load(Ordering::Relaxed)
    }
}

/// What all lanes of one client share.
pub(crate) struct Link {
    pub(crate) route: Route,
    /// It is one of the nodes of a cluster.
    pub(crate) is_node: bool,
    /// How many replicas have to acknowledge what takes or prolongs a lock.
    pub(crate) replicas: u32,
    /// The client's name, which its connections carry with a number each.
    pub(crate) name: String,
    /// The process that may use them.
    pub(crate) process: u32,
    pub(crate) observer: Arc<dyn Observer>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("route", &self.route).finish_non_exhaustive()
    }
}

impl Link {
    /// Names the server in an error that it gave, or that a connection to it met.
    pub(crate) fn named(&self, error: Error) -> Error {
        let concerned = error.is_unanswered() || error.is_server() || error.is_pool_timeout();
        match self.route.server().filter(|_| concerned) {
            Some(server) => error.with_server(server),
            None => error,
        }
    }

    /// An error in a forked child: what is written there, or read, is taken from its
    /// parent; its threads are gone, and its hold numbers are those of its parent.
    pub(crate) fn check_process(&self) -> Result<()> {
        check_process(self.process)
    }
}

/// An error in another process than that one, which made the client.
pub(crate) fn check_process(process: u32) -> Result<()> {
    match std::process::id() == process {
        true => Ok(()),
        false => Err(Error::configuration(
            "the client was made before a fork and cannot be used in the child",
        )),
    }
}

/// Is told of what happens to connections. Must not block, nor panic.
pub(crate) trait Observer: Send + Sync {
    /// A connection was made again after one that broke.
    fn reconnected(&self, connection: ConnectionId, address: &Arc<str>);
    /// A request that nobody waits for was answered.
    fn answered(&self, connection: ConnectionId, request: Request, answer: Answer);
    /// A request that nobody waits for got no answer, or was refused.
    fn failed(&self, connection: ConnectionId, request: Request, error: Error);
    /// A request that nobody waits for was sent elsewhere by a node of a cluster.
    fn redirected(
        &self,
        connection: ConnectionId,
        request: Request,
        direction: Redirect,
        error: Error,
    );
    /// There are requests in the line that nobody waits for, and nobody leads.
    fn deserted(&self, connection: ConnectionId);
    /// There are answers to come that nobody waits for, and nobody leads.
    fn unread(&self, connection: ConnectionId);
}

pub(crate) fn panicked() -> Error {
    Error::new(ErrorKind::Connection, "the thread that spoke with the server panicked")
}
