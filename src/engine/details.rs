//! Answers to other processes that ask for details about holds of this client.

use crate::command::call::Call;
use crate::command::details::{AskedHold, DetailsAnswer, DetailsRequest, LiveDetails};
use crate::connection;
use crate::engine::Engine;
use crate::listener::channels::RequestHandler;
use crate::util::{clock, log_target};

/// The greatest length of a request in bytes. Longer ones are ignored.
const MAX_LENGTH: usize = 1024 * 1024;

impl RequestHandler for Engine {
    /// Publishes the answer as a background request that is not retried.
    fn handle(&self, request: &[u8]) {
        let parsed = (request.len() <= MAX_LENGTH).then(|| connection::parse(request)).flatten();
        let Some(request) = parsed.as_ref().and_then(DetailsRequest::read) else {
            return log::debug!(
                target: log_target::CLIENT, "an invalid request of another process is ignored"
            );
        };
        let holds = request.holds.iter().filter_map(|asked| self.details_of(asked)).collect();
        let answer = DetailsAnswer { client: self.id, holds }.pack();
        self.send([Call::command(&[b"PUBLISH", request.reply_to.as_bytes(), &answer])]);
    }
}

impl Engine {
    fn details_of(&self, asked: &AskedHold) -> Option<LiveDetails> {
        self.locals.by_key.find(&asked.key)?.details(asked.hold, clock::now())
    }
}
