//! Reads replies, and decides for each request whether the reply completes it.
//!
//! | reply | effect |
//! | --- | --- |
//! | `NOSCRIPT` | loads the script, and writes the request again |
//! | `READONLY` | connects anew, and writes the request again, once |
//! | a redirection by a cluster node | the caller, or the pool, sends the command elsewhere |
//! | any other | completes the request |
//!
//! `READONLY` comes from a replica: the server was a master, or its address has been given to
//! another server. A new connection may lead to the master. On a replica that reports its role in
//! the reply to `HELLO`, the requests that change locks are held back in the same way, whether or
//! not the replica accepts writes.
//!
//! Requests run in order. Once a request has to be written again, the requests behind it are
//! written again too, although they have replies: they ran too early.
//!
//! If replicas have to acknowledge a command, `WAIT` is the last command of the write. Replies
//! to such commands are held until the reply to `WAIT` arrives. Nothing is written ahead behind
//! `WAIT`, because the server does not read on before that reply. If the server refuses `WAIT`, the
//! commands before it have run: their replies count, as with too few acknowledgements.

use crate::error::{Error, ErrorKind, Result};
use crate::transport::call::{Call, Digits};
use crate::transport::connection::{ReadLimit, STEP};
use crate::transport::pool::pipeline::in_flight::InFlight;
use crate::transport::pool::pipeline::{Connection, ExchangeResult, PipelineContext};
use crate::transport::pool::request::{CallReply, Failure, PipelineCommand, ReplyTo, Request};
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};

/// How often a script is loaded for one request before `NOSCRIPT` is an error.
const MAX_LOADS: u8 = 3;

impl InFlight {
    /// Reads the replies to all written requests. Returns `false` if the leader had to leave first.
    ///
    /// `limit_for` returns the limit of a read from the moment at which its reply is late.
    pub(super) fn read<'a>(
        &mut self,
        connection: &mut Connection,
        limit_for: impl Fn(Moment) -> ReadLimit<'a>,
    ) -> ExchangeResult<bool> {
        let mut leave = Moment::END;
        while let Some(first) = self.unanswered.front()
            && let Some(written) = first.written
        {
            let count = first.joining.count;
            let limit = limit_for(written + connection.reply_limit());
            // Without this end, the leader would stay while replies to others keep arriving.
            if limit.has_to_leave() {
                leave = leave.min(clock::now() + STEP);
            }
            if leave <= clock::now() || !connection.flush(&limit)? {
                return Ok(false);
            }
            let Some(reply) = connection.read_reply_until(&limit)? else { return Ok(false) };
            self.distribute(count, reply);
        }
        Ok(true)
    }

    /// Handles the reply to the next `count` requests, which were written as one command.
    fn distribute(&mut self, count: usize, reply: Reply) {
        // A transient refusal does not show that the server serves requests.
        self.has_answer |= !matches!(&reply, Reply::Refused(refusal) if refusal.is_transient());
        if count == 1 {
            return self.accept(reply);
        }
        if let Some(replies) = self.joiner.split(count, reply) {
            for reply in replies {
                self.accept(reply);
            }
            return;
        }
        // None of the requests ran. Each is written again, and not joined.
        for _ in 0..count {
            let Some(mut request) = self.unanswered.pop_front() else { return };
            request.joining.alone = true;
            request.written = None;
            self.resend.push_back(request);
        }
    }

    /// Handles the reply to the next request.
    fn accept(&mut self, reply: Reply) {
        let Some(mut request) = self.unanswered.pop_front() else { return };
        if let ReplyTo::Pipeline(command) = &request.reply_to {
            return self.accept_own(command, reply);
        }
        let reply = self.with_load_refusal(&request, reply);
        if reply.is_refused("NOSCRIPT") && request.replay.loads < MAX_LOADS {
            request.replay.loads += 1;
            request.written = None;
            self.resend.push_back(request);
        } else if reply.is_refused("READONLY") && !request.replay.sent_to_replica {
            self.led_to_replica = true;
            request.replay.sent_to_replica = true;
            request.written = None;
            self.resend.push_back(request);
        } else if self.resend.is_empty() || request.call.once {
            self.finish(request, reply);
        } else {
            request.run_again(reply);
            self.resend.push_back(request);
        }
    }

    /// Handles the reply to a command that the pipeline sent for itself.
    fn accept_own(&mut self, command: &PipelineCommand, reply: Reply) {
        match command {
            PipelineCommand::LoadScript(script) => {
                if let Reply::Refused(refusal) = reply {
                    self.joiner.load_was_refused(script);
                    self.not_loaded = Some((script.digest(), refusal));
                }
            }
            PipelineCommand::CountReplicas => self.complete_after_wait(reply),
            PipelineCommand::Asking => {}
        }
    }

    /// Completes the requests whose replies were held until the reply to `WAIT`.
    fn complete_after_wait(&mut self, reply: Reply) {
        let not_replicated = self.context.check_replicas(reply).err();
        while let Some((request, reply)) = self.unacknowledged.pop_front() {
            self.complete(request, reply, not_replicated.clone());
        }
    }

    /// Replaces `NOSCRIPT` by the reason why the script could not be loaded, if known.
    fn with_load_refusal(&self, request: &Request, reply: Reply) -> Reply {
        match (&self.not_loaded, request.call.script) {
            (Some((digest, refusal)), Some(script))
                if script.digest() == *digest && reply.is_refused("NOSCRIPT") =>
            {
                Reply::Refused(refusal.clone())
            }
            _ => reply,
        }
    }

    /// Completes the request, redirects it, or holds its reply until replicas acknowledge it.
    fn finish(&mut self, mut request: Request, reply: Reply) {
        let PipelineContext { id, pool, .. } = &*self.context;
        if let Reply::Refused(refusal) = &reply
            && pool.is_cluster_node
            && let Some(redirect) = refusal.redirect()
        {
            if refusal.is_slot_migrating() {
                request.replay.copies.add_open();
            }
            request.written = None;
            request.redirection.asking = false;
            // The error counts if the redirection is not followed.
            let error = pool.with_server(Error::refused(refusal));
            if let Some((request, redirect, error)) = request.redirect(redirect, error) {
                pool.observer.redirected(*id, request, redirect, error);
            }
            return;
        }
        if self.context.wants_replicas(&request) && !matches!(reply, Reply::Refused(_)) {
            self.unacknowledged.push_back((request, reply))
        } else {
            self.complete(request, reply, None)
        }
    }

    fn complete(&self, request: Request, reply: Reply, not_replicated: Option<Error>) {
        let sent = request.written.unwrap_or(Moment::START);
        let reply = match reply {
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            reply => Ok(CallReply {
                value: reply,
                sent,
                copies: request.replay.copies.clone(),
                broken_at: self.broken_at,
                not_replicated,
                connection: self.context.id,
            }),
        };
        self.context.complete(request, reply);
    }
}

impl PipelineContext {
    /// Reports the outcome of a request to its caller, or of a background request to the observer.
    fn complete(&self, mut request: Request, reply: Result<CallReply>) {
        // The observer may have the request written again.
        request.written = None;
        request.replay.sent_to_replica = false;
        let reply = reply.map_err(|error| self.pool.with_server(error));
        match (&mut request.reply_to, reply) {
            (ReplyTo::Caller(promise), reply) => {
                let copies = &request.replay.copies;
                promise.complete(reply.map_err(|error| Failure::answered(error, copies)));
            }
            (ReplyTo::Background(_), Err(error)) => {
                self.pool.observer.failed(self.id, request, error);
            }
            (ReplyTo::Background(_), Ok(reply)) => {
                self.pool.observer.answered(self.id, request, reply);
            }
            (ReplyTo::Pipeline(_), _) => {}
        }
    }

    /// Reports an error to the callers of requests, and for background requests to the observer.
    pub(super) fn fail(&self, requests: impl IntoIterator<Item = Request>, error: &Error) {
        let error = &self.pool.with_server(error.clone());
        for request in requests {
            if let Some(request) = request.fail(error)
                && let ReplyTo::Background(_) = request.reply_to
            {
                self.pool.observer.failed(self.id, request, error.clone());
            }
        }
    }

    /// Whether replicas have to acknowledge the command.
    pub(super) fn wants_replicas(&self, request: &Request) -> bool {
        self.pool.replicas > 0 && request.call.replicated
    }

    /// Returns the command that waits for replicas of everything written before it.
    pub(super) fn wait_for_replicas(&self) -> Call {
        let wanted = Digits::new(self.pool.replicas.into());
        let timeout = Digits::of_millis(self.timeouts().replicas);
        Call::command(&[b"WAIT", wanted.as_bytes(), timeout.as_bytes()])
    }

    /// Reads the reply to `WAIT`. An error if too few replicas are known to have the write.
    fn check_replicas(&self, reply: Reply) -> Result<()> {
        let wanted = self.pool.replicas;
        let error = match reply.into_int() {
            Ok(acknowledged) if acknowledged >= wanted.into() => return Ok(()),
            Ok(acknowledged) => {
                let message = "replicas acknowledged the write in time";
                let message = format!("{acknowledged} of {wanted} {message}");
                Error::new(ErrorKind::NotReplicated, message)
            }
            Err(error) => error.unacknowledged(),
        };
        Err(self.pool.with_server(error))
    }
}
