//! Sends a call of a waiting caller again if the node of a cluster did not run it.
//!
//! | outcome                                       | next step                                    |
//! |-----------------------------------------------|----------------------------------------------|
//! | `MOVED`, `ASK`                                | queue at the named node at once; after every |
//! |                                               | [`REDIRECTS_PER_PAUSE`] redirections, pause  |
//! | `TRYAGAIN`, `CLUSTERDOWN`, ...                | pause, then queue at the owner of the slot   |
//! | not written, and another node owns the slot   | queue there, [`MAX_OWNERS`] times at most    |
//! | anything else, or no time left for a pause    | fail                                         |
//!
//! Pauses grow from 5 to 200 ms, and each asks for a new map of the slots. No pause begins later
//! than one response time-out after the wait began. A call that must not pause fails instead.

use std::time::Duration;

use crate::cancel::Limit;
use crate::error::{Error, Redirect};
use crate::transport::call::ConnectionId;
use crate::transport::pool::Target;
use crate::transport::pool::background::{Rerouter, no_agreement};
use crate::transport::pool::cluster_nodes::ClusterNodes;
use crate::transport::pool::nodes::Nodes;
use crate::transport::pool::request::{Failure, Redirected};
use crate::transport::pool::router::RoutedCall;
use crate::util::clock::{self, Moment, doubled, jittered};

/// The number of redirections between two pauses. Nodes may disagree for a while.
const REDIRECTS_PER_PAUSE: u32 = 4;

/// The number of times that a call which was not written is queued at another owner of its slot.
const MAX_OWNERS: u32 = 16;

/// The first and the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The redirections of one call.
pub(super) struct Resend<'a> {
    nodes: &'a ClusterNodes,
    limit: &'a Limit<'a>,
    /// No pause begins after this moment.
    end: Moment,
    /// How often the call was queued at another node.
    redirects: u32,
    pauses: u32,
    /// The last redirection was `ASK`: the owner of the slot would redirect the call again.
    asking: bool,
}

impl<'a> Resend<'a> {
    /// Pauses begin until `end` at the latest.
    pub(super) fn new(nodes: &'a ClusterNodes, limit: &'a Limit<'a>, end: Moment) -> Resend<'a> {
        Resend { nodes, limit, end, redirects: 0, pauses: 0, asking: false }
    }

    /// Queues a failed call again, or returns its final failure. May pause.
    pub(super) fn next(
        &mut self,
        connection: ConnectionId,
        failure: Failure,
    ) -> Result<RoutedCall, Failure> {
        if failure.error.is_unanswered() {
            self.nodes.request_refresh();
        }
        match failure {
            Failure { redirected: Some(redirected), error, .. } => {
                self.queue_redirected(connection, *redirected, error)
            }
            Failure { unsent: Some(call), error, .. }
                if error.is_unanswered()
                    && !self.asking
                    && self.redirects < MAX_OWNERS
                    && self.nodes.is_elsewhere(&call, connection) =>
            {
                self.redirects += 1;
                let (pool, target) = self.nodes.place(call.key(), Target::Only(connection));
                let queued = pool.queue(*call, target);
                Ok(RoutedCall::new(pool, queued))
            }
            failure => Err(failure),
        }
    }

    /// Queues a call at the named node, on the connection with the same number.
    ///
    /// Pauses before if the call came too early, or was redirected too often without a pause.
    fn queue_redirected(
        &mut self,
        connection: ConnectionId,
        redirected: Redirected,
        error: Error,
    ) -> Result<RoutedCall, Failure> {
        let retry_later = redirected.redirect == Redirect::RetryLater;
        // Nodes that redirect a call to each other get time to agree.
        let pause_due = self.redirects > 0 && self.redirects.is_multiple_of(REDIRECTS_PER_PAUSE);
        if retry_later || pause_due {
            let now = clock::now();
            if self.end <= now || self.limit.is_over(now) {
                let error = if retry_later { error } else { no_agreement() };
                return Err(Failure::not_followed(redirected, error));
            }
            self.nodes.request_refresh();
            let pause = doubled(FIRST_PAUSE, self.pauses, LONGEST_PAUSE);
            self.limit.pause(jittered(pause, clock::now().nanos()));
            self.pauses += 1;
        }
        self.asking = matches!(redirected.redirect, Redirect::Ask(_));
        let node = match &redirected.redirect {
            Redirect::RetryLater => {
                let owner = redirected.call.key().and_then(|key| self.nodes.owner_of(key));
                owner.or(Some(connection.node))
            }
            redirect => {
                self.redirects += 1;
                self.nodes.follow(redirect, connection.node)
            }
        };
        let Some(node) = node else { return Err(Failure::not_followed(redirected, error)) };
        let pool = self.nodes.pool(node);
        // A private connection is made by a thread of its own, and may not exist yet.
        if pool.private_connection().connection == connection.connection
            && let Err(error) = pool.connect_private()
        {
            let error = error.unwrap_or_else(Error::not_connected);
            return Err(Failure::not_followed(redirected, error));
        }
        let queued = pool.queue_redirected(redirected, connection.connection);
        Ok(RoutedCall::new(pool, queued))
    }
}
