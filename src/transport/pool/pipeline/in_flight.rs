//! The requests in flight: taken from the queue, without a reply.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, Refusal};
use crate::transport::call::Call;
use crate::transport::pool::joined::CallJoiner;
use crate::transport::pool::pipeline::{KEPT_REQUESTS, PipelineContext};
use crate::transport::pool::request::{PipelineCommand, ReplyTo, Request};
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The requests in flight, and what replies said about the connection.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) context: Arc<PipelineContext>,
    /// Requests without a reply, in order. The written ones come first.
    pub(super) unanswered: VecDeque<Request>,
    /// Requests to be written again, in order, before the unanswered ones.
    pub(super) resend: VecDeque<Request>,
    /// Requests whose replies are held until replicas have acknowledged them.
    pub(super) unacknowledged: VecDeque<(Request, Reply)>,
    /// The last moment at which the connection broke with commands in flight.
    pub(super) broken_at: Moment,
    pub(super) joiner: CallJoiner,
    /// A command was answered since the pipeline last looked.
    pub(super) has_answer: bool,
    /// A request was refused, or held back, because the server is a replica.
    pub(super) led_to_replica: bool,
    /// Whether the connection leads to a replica, on which the scripts of locks are refused.
    pub(super) refuses_writes: bool,
    /// The digest of a script that could not be loaded in this round, and the reason.
    pub(super) not_loaded: Option<(&'static str, Refusal)>,
}

impl InFlight {
    pub(super) fn new(context: Arc<PipelineContext>) -> InFlight {
        InFlight {
            context,
            unanswered: VecDeque::new(),
            resend: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            broken_at: Moment::START,
            joiner: CallJoiner::default(),
            has_answer: false,
            led_to_replica: false,
            refuses_writes: false,
            not_loaded: None,
        }
    }

    /// All requests, in the order in which they were taken over.
    pub(super) fn all(&self) -> impl Iterator<Item = &Request> {
        let unacknowledged = self.unacknowledged.iter().map(|(request, _)| request);
        unacknowledged.chain(&self.resend).chain(&self.unanswered)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unanswered.is_empty() && self.resend.is_empty()
    }

    /// Gives back the memory of a burst of requests.
    pub(super) fn shrink(&mut self) {
        self.unanswered.shrink_to(KEPT_REQUESTS);
        self.resend.shrink_to(KEPT_REQUESTS);
        self.unacknowledged.shrink_to(KEPT_REQUESTS);
    }

    /// Whether `WAIT` was written last.
    pub(super) fn waits_for_replicas(&self) -> bool {
        let last = self.unanswered.back().map(|request| &request.reply_to);
        matches!(last, Some(ReplyTo::Pipeline(PipelineCommand::CountReplicas)))
    }

    /// Puts the pipeline's own commands in front of the unwritten requests.
    ///
    /// Missing scripts are loaded before anything else is written.
    pub(super) fn begin_round(&mut self) {
        self.not_loaded = None;
        // The reply to a command that was written ahead still arrives.
        self.unanswered.retain(|it| !it.is_of_pipeline() || it.written.is_some());
        let first = self.first_unwritten();
        // The scripts whose calls were refused with `NOSCRIPT`, once each.
        let refused = self.unanswered.range(first..).filter(|request| request.replay.loads > 0);
        let mut scripts: Vec<_> = refused.filter_map(|request| request.call.script).collect();
        scripts.sort_unstable_by_key(|script| script.digest());
        scripts.dedup_by_key(|script| script.digest());
        scripts.extend(self.joiner.take_missing_script());
        for script in scripts {
            log::debug!(
                logger: LINES, target: log_target::CONNECTION,
                "loading the script {} into the server", script.name
            );
            let load = PipelineCommand::LoadScript(script);
            self.unanswered.insert(first, Request::pipeline(Call::load(script), load));
        }
    }

    fn first_unwritten(&self) -> usize {
        self.unanswered.partition_point(|request| request.written.is_some())
    }

    /// Returns whether this connection, or the last new one of the pool, refuses writes.
    ///
    /// A server that becomes a replica keeps its connections.
    pub(super) fn is_at_replica(&self) -> bool {
        self.refuses_writes || self.context.pool.is_at_replica()
    }

    /// Takes out the unwritten requests from the first one that this server must not run.
    ///
    /// A new connection may lead to a master, so they are written there. The requests for which a
    /// new connection has led to a replica again fail here.
    pub(super) fn hold_back(&mut self) -> VecDeque<Request> {
        if !self.is_at_replica() {
            return VecDeque::new();
        }
        let refused = |it: &Request| {
            it.written.is_none() && it.call.runs_writing_script() && !it.is_of_pipeline()
        };
        if !self.led_to_replica {
            let fails = |it: &Request| refused(it) && it.replay.sent_to_replica;
            let (mut failed, rest) = self.unanswered.drain(..).partition::<VecDeque<_>, _>(fails);
            self.unanswered = rest;
            // The next attempt of a background request looks for a master again.
            for request in &mut failed {
                request.replay.sent_to_replica = false;
            }
            self.context.fail(failed, &Error::replica());
        }
        let Some(first) = self.unanswered.iter().position(refused) else { return VecDeque::new() };
        self.led_to_replica = true;
        let mut held_back = self.unanswered.split_off(first);
        for request in &mut held_back {
            request.replay.sent_to_replica = true;
        }
        held_back
    }

    /// Packs all unwritten requests and marks them as written. Drops abandoned ones.
    pub(super) fn pack(&mut self, bytes: &mut Vec<u8>) {
        self.unanswered.retain(|request| request.written.is_some() || !request.is_abandoned());
        let first = self.first_unwritten();
        let mut next = first;
        while next < self.unanswered.len() {
            if self.unanswered[next].redirection.asking {
                let asking = Call::command(&[b"ASKING"]);
                bytes.extend_from_slice(&asking.bytes);
                let asking = Request::pipeline(asking, PipelineCommand::Asking);
                self.unanswered.insert(next, asking);
                next += 1;
            }
            next += self.joiner.pack(&mut self.unanswered, next, bytes);
        }
        if self.unanswered.range(first..).any(|request| self.context.wants_replicas(request)) {
            let wait = self.context.wait_for_replicas();
            bytes.extend_from_slice(&wait.bytes);
            let wait = Request::pipeline(wait, PipelineCommand::CountReplicas);
            self.unanswered.push_back(wait);
        }
        let now = clock::now();
        for request in self.unanswered.range_mut(first..) {
            request.written = Some(now);
        }
    }

    /// Puts the requests that are written again in front of the unanswered ones.
    pub(super) fn requeue(&mut self) {
        self.resend.append(&mut self.unanswered);
        std::mem::swap(&mut self.unanswered, &mut self.resend);
    }

    /// Notes whose replies are late, by the moments of the writes.
    pub(super) fn note_late(&mut self, is_late: impl Fn(Moment) -> bool) {
        let unacknowledged = self.unacknowledged.iter_mut().map(|(request, _)| request);
        for request in unacknowledged.chain(&mut self.unanswered) {
            request.replay.is_late = request.written.is_some_and(&is_late);
        }
    }

    /// Prepares all requests for the next connection. An unacknowledged request counts as
    /// unanswered.
    pub(super) fn outlive_connection(&mut self) {
        self.requeue();
        for (request, _) in self.unacknowledged.drain(..).rev() {
            self.unanswered.push_front(request);
        }
        if self.unanswered.iter().any(|request| request.written.is_some()) {
            self.broken_at = clock::now();
        }
        for request in &mut self.unanswered {
            request.outlive_connection();
        }
    }

    /// Returns the requests without a reply, without the commands of the pipeline itself.
    pub(super) fn give_back(&mut self) -> VecDeque<Request> {
        let mut back = std::mem::take(&mut self.unanswered);
        back.retain(|request| !request.is_of_pipeline());
        back
    }

    /// Fails the unanswered requests for which `fails` returns `true`: they are not written, or have
    /// outlived the connection to which they were.
    pub(super) fn fail_if(&mut self, fails: impl Fn(&Request) -> bool, error: &Error) {
        let (failed, rest) = self.unanswered.drain(..).partition::<VecDeque<_>, _>(fails);
        debug_assert!(failed.iter().all(|it| it.written.is_none()), "its reply may still come");
        self.unanswered = rest;
        self.context.fail(failed, error);
    }
}
