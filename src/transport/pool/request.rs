//! Requests to a server: the command, the receiver of the outcome, and the outcome.
//!
//! A request comes from one of three sources:
//! * a *caller*, which waits for the outcome in a [`ReplySlot`];
//! * the *background*: no caller waits, and the [`ConnectionObserver`] handles the outcome;
//! * the *pipeline* itself, which loads scripts or waits for replicas, for example.
//!
//! [`ConnectionObserver`]: crate::transport::pool::context::ConnectionObserver

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Redirect, Result};
use crate::transport::call::{Call, ConnectionId, LateCopy};
use crate::transport::pool::joined::Joining;
use crate::transport::pool::reply_slot::{Promise, ReplySlot};
use crate::transport::reply::Reply;
use crate::transport::script::Script;
use crate::util::clock::Moment;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The copies of a request that were written before the copy with the reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlierCopies {
    /// Whether a copy may have run without a reply, or may run late.
    is_open: bool,
    /// The replies to copies that ran before requests which had to precede them.
    replies: Vec<Reply>,
}

impl EarlierCopies {
    /// Returns whether an earlier copy may have run, or may run late.
    pub(crate) fn may_exist(&self) -> bool {
        self.is_open || !self.replies.is_empty()
    }

    /// Returns whether an earlier copy may run after the reply.
    pub(crate) fn may_run_late(&self) -> bool {
        self.is_open
    }

    /// Returns whether an earlier copy may have had such a reply.
    pub(crate) fn may_have_reply(&self, is_such: impl Fn(&Reply) -> bool) -> bool {
        self.is_open || self.replies.iter().any(is_such)
    }

    /// Returns the replies that earlier copies have had.
    pub(crate) fn replies(&self) -> &[Reply] {
        &self.replies
    }

    pub(super) fn add_open(&mut self) {
        self.is_open = true;
    }
}

/// The reply to a command, and what is known about its execution.
#[derive(Clone, Debug)]
pub(crate) struct CallReply {
    pub(crate) value: Reply,
    /// The moment just before the last write of the command.
    pub(crate) sent: Moment,
    /// The earlier copies of the command, which may have run as well.
    pub(crate) copies: EarlierCopies,
    /// The last moment before `sent` at which the connection broke with commands in flight;
    /// [`Moment::START`] if it has never broken.
    pub(crate) broken_at: Moment,
    /// Set if the command has run and needs acknowledgements of replicas, and too few are known.
    pub(crate) not_replicated: Option<Error>,
    pub(crate) connection: ConnectionId,
}

impl CallReply {
    /// Returns whether a late copy of another command may run after this command, and leave an
    /// effect of the length `effect`.
    ///
    /// The connection broke after the copy was written, and less than `effect` ago.
    pub(crate) fn may_precede(&self, copy: &LateCopy, effect: Duration) -> bool {
        copy.since <= self.broken_at && self.sent < self.broken_at + effect
    }
}

/// Why a command has no usable reply.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The command, if it was never written. Otherwise it may have run, or may still run.
    pub(crate) unsent: Option<Box<Call>>,
    /// The command, if a cluster node redirected it.
    pub(crate) redirected: Option<Box<Redirected>>,
    /// Whether a server has refused the only copy of the command.
    pub(crate) is_only_copy_refused: bool,
}

/// A command that a cluster node redirected instead of running it.
#[derive(Debug)]
pub(crate) struct Redirected {
    pub(crate) call: Call,
    pub(crate) copies: EarlierCopies,
    pub(crate) redirect: Redirect,
}

impl Failure {
    /// The failure of a command that was, or may have been, written.
    pub(crate) fn written(error: Error) -> Failure {
        Failure { error, unsent: None, redirected: None, is_only_copy_refused: false }
    }

    /// The failure of a command that a server answered with an error.
    pub(crate) fn answered(error: Error, copies: &EarlierCopies) -> Failure {
        let is_only_copy_refused = error.is_server() && !copies.may_exist();
        Failure { is_only_copy_refused, ..Failure::written(error) }
    }

    /// The failure of a redirected command that is not sent to the other node.
    pub(crate) fn not_followed(redirected: Redirected, error: Error) -> Failure {
        let unsent = (!redirected.copies.may_exist()).then(|| Box::new(redirected.call));
        Failure { unsent, ..Failure::written(error) }
    }

    pub(crate) fn is_written(&self) -> bool {
        self.unsent.is_none()
    }

    pub(crate) fn into_error(self) -> Error {
        self.error
    }
}

/// The result of a command for its caller.
pub(crate) type Outcome = std::result::Result<CallReply, Failure>;

/// Returns the reply of an outcome, without the facts about its way.
pub(crate) fn into_reply(outcome: Outcome) -> Result<Reply> {
    outcome.map(|reply| reply.value).map_err(Failure::into_error)
}

/// Receives the outcome of a background request. Called with no mutex locked, by any thread that
/// reads replies. Must not block.
pub(crate) type OnOutcome = Box<dyn FnOnce(Result<CallReply>) + Send>;

/// The terms of a background request, which has no waiting caller.
pub(crate) struct BackgroundTask {
    /// Receives the outcome; `None` if nobody needs it, or has had it.
    pub(crate) on_outcome: Option<OnOutcome>,
    /// The command is not worth sending after this moment.
    pub(crate) deadline: Moment,
    /// How long the command is sent after the close of the client, at most until `deadline`.
    pub(crate) after_close: Duration,
    /// How long the effect lasts that this command undoes; zero if it undoes nothing.
    pub(crate) effect: Duration,
    /// A copy of another command, which this command undoes. While the copy may run afterwards,
    /// this command is repeated.
    pub(crate) late_copy: Option<LateCopy>,
    /// The command is repeated until this moment, whatever its replies are.
    pub(crate) repeat_until: Moment,
    /// The number of repeated copies so far.
    pub(crate) copies: u32,
    /// The close of the client waits for the outcome.
    pub(crate) delays_close: bool,
    /// What the command ends may last beyond `deadline`. The command is then sent until a reply
    /// arrives. The outcome is reported at the deadline, and the close of the client does not wait
    /// for later attempts.
    pub(crate) outlasts_deadline: bool,
}

impl BackgroundTask {
    /// A task that ends with its first reply.
    pub(crate) fn new(deadline: Moment) -> BackgroundTask {
        BackgroundTask {
            on_outcome: None,
            deadline,
            after_close: Duration::MAX,
            effect: Duration::ZERO,
            late_copy: None,
            repeat_until: Moment::START,
            copies: 0,
            delays_close: true,
            outlasts_deadline: false,
        }
    }

    /// Sets the receiver of the outcome.
    pub(crate) fn then(
        self,
        on_outcome: impl FnOnce(Result<CallReply>) + Send + 'static,
    ) -> BackgroundTask {
        BackgroundTask { on_outcome: Some(Box::new(on_outcome)), ..self }
    }

    /// Sets whether what the command ends may last beyond the deadline.
    pub(crate) fn outlasts_deadline(self, outlasts_deadline: bool) -> BackgroundTask {
        BackgroundTask { outlasts_deadline, ..self }
    }

    /// The task after its deadline. Its outcome has been reported.
    pub(crate) fn after_deadline(self) -> BackgroundTask {
        BackgroundTask { deadline: Moment::END, delays_close: false, ..self }
    }

    /// Sets what the command undoes: an effect of that length, perhaps of a late copy.
    pub(crate) fn undoes(self, effect: Duration, late_copy: Option<LateCopy>) -> BackgroundTask {
        BackgroundTask { effect, late_copy, ..self }
    }

    /// Reports the outcome to its receiver, or logs an error that has none.
    pub(crate) fn settle(&mut self, outcome: Result<CallReply>) {
        match (self.on_outcome.take(), outcome) {
            (Some(on_outcome), outcome) => on_outcome(outcome),
            (None, Ok(_)) => {}
            (None, Err(error)) => log::debug!(
                logger: LINES, target: log_target::CONNECTION,
                error:% = error.with_causes(), server = error.server();
                "a background request failed: {}", error.with_causes()
            ),
        }
    }
}

impl fmt::Debug for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("BackgroundTask");
        shown.field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A command in the queue of a shared connection or in its pipeline.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) reply_to: ReplyTo,
    /// The moment of the write to the present connection; `None` if not written there.
    pub(crate) written: Option<Moment>,
    pub(super) replay: Replay,
    pub(super) redirection: Redirection,
    pub(super) joining: Joining,
}

/// The receiver of the outcome of a request.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    Caller(Promise),
    Background(BackgroundTask),
    /// The pipeline, which sent the command for itself.
    Pipeline(PipelineCommand),
}

/// A command that the pipeline sends for itself.
#[derive(Debug)]
pub(crate) enum PipelineCommand {
    LoadScript(&'static Script),
    /// `WAIT`: counts the replicas that have everything written before.
    CountReplicas,
    /// `ASKING`: announces the redirected command that follows.
    Asking,
}

/// Earlier attempts of the same request.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) copies: EarlierCopies,
    /// The number of connections that broke between the write and the reply.
    pub(super) breaks: u8,
    /// No reply had arrived in time when the last connection was given up.
    pub(super) is_late: bool,
    /// How often the script of the request was loaded.
    pub(super) loads: u8,
    /// A replica has refused the request, or the request was held back from it.
    pub(super) sent_to_replica: bool,
}

/// Redirections of a request by cluster nodes.
#[derive(Debug, Default)]
pub(super) struct Redirection {
    /// How often a node redirected the request.
    pub(super) count: u8,
    /// `ASKING` has to precede the command: its slot is being moved to this node.
    pub(super) asking: bool,
}

impl Request {
    /// Returns a request of a caller, and the slot in which the caller waits.
    pub(crate) fn awaited(call: Call) -> (Request, Arc<ReplySlot>) {
        let (promise, slot) = Promise::new();
        (Request::new(call, ReplyTo::Caller(promise)), slot)
    }

    /// Returns a background request.
    pub(crate) fn background(call: Call, task: BackgroundTask) -> Request {
        Request::new(call, ReplyTo::Background(task))
    }

    /// Returns a background request that is not retried and whose outcome has no receiver.
    pub(crate) fn background_once(call: Call) -> Request {
        Request::background(call, BackgroundTask::new(Moment::START))
    }

    /// Returns a request that the pipeline sends for itself.
    pub(super) fn pipeline(call: Call, command: PipelineCommand) -> Request {
        Request::new(call, ReplyTo::Pipeline(command))
    }

    fn new(call: Call, reply_to: ReplyTo) -> Request {
        Request {
            call,
            reply_to,
            written: None,
            replay: Replay::default(),
            redirection: Redirection::default(),
            joining: Joining::default(),
        }
    }

    /// Sets whether an earlier copy may have run without a reply, or may run late.
    pub(crate) fn maybe_duplicate(mut self, maybe_duplicate: bool) -> Request {
        self.replay.copies.is_open = maybe_duplicate;
        self
    }

    /// Sets whether `ASKING` has to precede the command, which is then not joined.
    pub(crate) fn with_asking(mut self, asking: bool) -> Request {
        self.redirection.asking = asking;
        self.joining.alone |= asking;
        self
    }

    /// Whether the pipeline sent the request for itself.
    pub(crate) fn is_of_pipeline(&self) -> bool {
        matches!(self.reply_to, ReplyTo::Pipeline(_))
    }

    /// Whether the request must not be sent again, because a copy may have run.
    pub(super) fn must_not_repeat(&self) -> bool {
        self.call.once && self.replay.copies.may_exist()
    }

    /// Prepares the request for another write, after a reply that came too early.
    pub(super) fn run_again(&mut self, early: Reply) {
        self.written = None;
        self.replay.copies.replies.push(early);
    }

    /// Prepares the request for another write, after the connection was given up. A copy that was
    /// written may have run.
    pub(crate) fn outlive_connection(&mut self) {
        if self.written.take().is_some() {
            self.replay.breaks = self.replay.breaks.saturating_add(1);
            self.replay.copies.is_open = true;
        }
    }

    /// The slot of the caller, unless the slot is complete.
    pub(crate) fn slot(&self) -> Option<&Arc<ReplySlot>> {
        match &self.reply_to {
            ReplyTo::Caller(promise) => promise.slot(),
            _ => None,
        }
    }

    /// The slot of the caller, while the caller waits.
    pub(crate) fn waiter(&self) -> Option<&Arc<ReplySlot>> {
        self.slot().filter(|slot| !slot.is_abandoned())
    }

    /// Whether the caller has returned without the outcome.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.slot().is_some_and(|slot| slot.is_abandoned())
    }

    /// Whether the close of the client waits for the outcome.
    pub(crate) fn delays_close(&self) -> bool {
        matches!(&self.reply_to, ReplyTo::Background(task) if task.delays_close)
    }

    /// Reports a redirection to the caller; returns a request that has no caller.
    pub(crate) fn redirect(
        mut self,
        redirect: Redirect,
        error: Error,
    ) -> Option<(Request, Redirect, Error)> {
        let ReplyTo::Caller(promise) = &mut self.reply_to else {
            return Some((self, redirect, error));
        };
        let redirected = Redirected { call: self.call, copies: self.replay.copies, redirect };
        let redirected = Some(Box::new(redirected));
        promise.complete(Err(Failure { redirected, ..Failure::written(error) }));
        None
    }

    /// Reports an error to the caller; returns a request that has no caller.
    pub(crate) fn fail(mut self, error: &Error) -> Option<Request> {
        let ReplyTo::Caller(promise) = &mut self.reply_to else { return Some(self) };
        let unsent = (!self.replay.copies.may_exist()).then(|| Box::new(self.call));
        promise.complete(Err(Failure { unsent, ..Failure::written(error.clone()) }));
        None
    }

    /// The deadline of a background request, if its client was closed at that moment; the start of
    /// time for other requests.
    pub(crate) fn deadline(&self, closed: Moment) -> Moment {
        match &self.reply_to {
            ReplyTo::Background(task) => task.deadline.min(closed + task.after_close),
            _ => Moment::START,
        }
    }

    /// The command and the terms of a background request; `None` for others.
    pub(crate) fn into_task(self) -> Option<(Call, BackgroundTask)> {
        match self.reply_to {
            ReplyTo::Background(task) => Some((self.call, task)),
            _ => None,
        }
    }
}

/// The error of requests that were in flight when the thread of the leader panicked.
pub(crate) fn panicked() -> Error {
    Error::new(ErrorKind::Connection, "the thread that used the connection panicked")
}
