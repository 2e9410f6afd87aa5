//! Stale connections, which may run a command after they were given up.
//!
//! Bytes that were written cannot be recalled: a server may read a command from an old
//! connection after it has answered on the new one. So the old connection is killed:
//! 1. [`StaleList::record`] keeps the identity of a connection that is given up while a
//!    command is in flight that could leave an effect.
//! 2. The handshake of the next connection asks the server whether it still has the old one
//!    (`CLIENT LIST`). [`StaleList::update`] forgets old connections that are gone.
//! 3. For the others, `CLIENT KILL` is the first command on the new connection. Everything
//!    that follows there runs after the kill: repeated commands, clean-ups, releases.
//! 4. If the server permits neither command, answers are marked `may_run_late` for as long as
//!    a late copy could leave an effect, and clean-ups are repeated for that time.

use std::time::Duration;

use crate::command::reply::Reply;
use crate::connection::{ConnectionIdentity, StaleConnections};
use crate::pool::request::Request;
use crate::util::clock::{self, Moment};

/// The stale connections of one pipeline.
#[derive(Debug, Default)]
pub(super) struct StaleList(Vec<StaleConnection>);

/// A connection that was given up with commands in flight.
#[derive(Debug)]
struct StaleConnection {
    identity: ConnectionIdentity,
    /// How long the effect of a late command could last.
    late_effect: Duration,
    state: StaleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaleState {
    /// The server has not been asked.
    Unchecked,
    /// The server has the connection, which has to be killed.
    Alive,
    /// The server permits no check or no kill. Forgotten at that moment.
    Unkillable(Moment),
}

impl StaleConnection {
    fn set_unkillable(&mut self, now: Moment) {
        if !matches!(self.state, StaleState::Unkillable(_)) {
            self.state = StaleState::Unkillable(now + self.late_effect);
        }
    }

    fn is_relevant(&self, now: Moment) -> bool {
        !matches!(self.state, StaleState::Unkillable(until) if until <= now)
    }
}

impl StaleList {
    /// Records a connection that is given up, if a late request could leave an effect.
    pub(super) fn record<'a>(
        &mut self,
        identity: &ConnectionIdentity,
        unanswered: impl IntoIterator<Item = &'a Request>,
    ) {
        let written = unanswered.into_iter().filter(|request| request.written.is_some());
        let late_effect = written.map(|request| request.call.lasting).max().unwrap_or_default();
        if !late_effect.is_zero() {
            let (identity, state) = (identity.clone(), StaleState::Unchecked);
            self.0.push(StaleConnection { identity, late_effect, state });
        }
    }

    /// Returns the connections to ask for in the next handshake.
    pub(super) fn connections_to_check(&mut self, now: Moment) -> Vec<ConnectionIdentity> {
        self.0.retain(|stale| stale.is_relevant(now));
        self.0.iter().map(|stale| stale.identity.clone()).collect()
    }

    /// Applies the answer of the server in the handshake.
    pub(super) fn update(&mut self, answer: &StaleConnections, now: Moment) {
        match answer {
            StaleConnections::Alive(alive) => {
                self.0.retain(|stale| alive.contains(&stale.identity));
                self.0.iter_mut().for_each(|stale| stale.state = StaleState::Alive);
            }
            StaleConnections::Unknown => {
                self.0.iter_mut().for_each(|stale| stale.set_unkillable(now));
            }
        }
    }

    /// The connections to kill before anything else is written.
    pub(super) fn to_kill(&self) -> impl Iterator<Item = &ConnectionIdentity> {
        let alive = self.0.iter().filter(|stale| stale.state == StaleState::Alive);
        alive.map(|stale| &stale.identity)
    }

    /// Applies the reply to `CLIENT KILL`.
    pub(super) fn kill_was_answered(&mut self, identity: &ConnectionIdentity, reply: &Reply) {
        match reply {
            Reply::Refused(_) => {
                let stale = self.0.iter_mut().filter(|stale| stale.identity == *identity);
                stale.for_each(|stale| stale.set_unkillable(clock::now()));
            }
            _ => self.0.retain(|stale| stale.identity != *identity),
        }
    }

    /// Whether a late command may run after a command that was written at `sent`.
    pub(super) fn may_run_late(&self, sent: Moment) -> bool {
        self.0.iter().any(|stale| stale.is_relevant(sent))
    }
}
