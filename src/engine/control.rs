//! The messages on the control channel of this client: questions about holds, grants, requests for
//! holds that linger, and locks that were freed by force.

use crate::command::asked;
use crate::command::details::{DetailsAnswer, DetailsRequest, HoldCount};
use crate::command::freed;
use crate::command::grant::{self, GrantMessage};
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::engine::Engine;
use crate::kind::queued::Queued;
use crate::transport::call::Call;
use crate::transport::connection;
use crate::transport::listener::channels::ControlHandler;
use crate::transport::pool::request::{BackgroundTask, Request};
use crate::transport::topology::route::Generation;
use crate::util::log_lines::LINES;
use crate::util::{clock, log_target};

/// The greatest length of a request in bytes. Longer ones are ignored.
const MAX_LENGTH: usize = 1024 * 1024;

impl ControlHandler for Engine {
    fn handle(&self, message: &[u8], generation: Generation) -> bool {
        if message.starts_with(grant::PREFIX) {
            self.handle_grant(message, generation);
        } else if message.starts_with(freed::PREFIX) {
            // A release by force has freed the lock: the watchdog verifies its holds.
            if let Some(local) = freed::key(message).and_then(|key| self.known_local(key)) {
                self.watchdog.verify(&local);
            }
        } else if message.starts_with(asked::PREFIX) {
            self.handle_asked(message);
        } else if message.starts_with(b"*") {
            // The first byte of an array; the names of channels begin otherwise.
            self.handle_request(message);
        } else {
            return false;
        }
        true
    }

    fn listening(&self) {
        self.watchdog.plan_queue_heartbeats_now();
    }
}

impl Engine {
    /// Answers a request of another process, or ignores it.
    ///
    /// Publishes the answer as a background request, at most once: a second answer would be taken
    /// for that to the next question.
    fn handle_request(&self, request: &[u8]) {
        if !self.settings.announces {
            return;
        }
        let parsed = (request.len() <= MAX_LENGTH).then(|| connection::parse(request)).flatten();
        let Some(request) = parsed.as_ref().and_then(DetailsRequest::read) else {
            return log::debug!(
                logger: LINES, target: log_target::CLIENT,
                "an invalid request of another process is ignored"
            );
        };
        let answer = self.answer(&request).pack();
        let answer = Call::command(&[b"PUBLISH", request.reply_to.as_bytes(), &answer]);
        self.send([answer.once()]);
    }

    /// Releases a hold that lingers, at once if nobody has it, because another client wants the lock.
    fn handle_asked(&self, message: &[u8]) {
        let asked = asked::read(message);
        let local = asked.and_then(|(number, key)| Some((number, self.known_local(key)?)));
        if let Some((number, local)) = local
            && let Some(hold) = local.was_asked(number, clock::now())
        {
            self.watchdog.give_up(&local, Some(hold));
        }
    }

    /// Passes a grant of a queue lock on to its waiting caller. Releases it if the call has ended.
    fn handle_grant(&self, message: &[u8], generation: Generation) {
        let Some(grant) = GrantMessage::read(message) else {
            return log::debug!(
                logger: LINES, target: log_target::CLIENT,
                "an invalid grant is ignored"
            );
        };
        let local = self.known_local(grant.key);
        if !local.as_ref().is_some_and(|local| local.granted_by_message(&grant, generation)) {
            let rules = local.and_then(|local| local.rules_of_grants());
            // An invalid name is no lock of this library.
            let Ok(name) = Name::new("", grant.key.into()) else { return };
            let owner = Owner::numbered(self.id, grant.hold, "");
            let release = rules.unwrap_or(&Queued).release(&name, &owner);
            let task = BackgroundTask::new(clock::now() + grant.lease);
            self.router.send_background(Request::background(release, task), None);
        }
    }

    /// Returns the details of the present holds, and the counts of all locks that are in use.
    fn answer(&self, request: &DetailsRequest) -> DetailsAnswer {
        let (mut holds, mut counts) = (Vec::new(), Vec::new());
        for asked in &request.holds {
            if let Some(local) = self.known_local(&asked.key) {
                holds.extend(local.details(asked.hold, clock::now()));
                counts.push(HoldCount { hold: asked.hold, acquired: local.acquired() });
            }
        }
        DetailsAnswer { client: self.id, holds, counts }
    }
}
