//! Log lines about outages: one when a server becomes silent or refuses commands, one at the end.

use std::cell::OnceCell;
use std::time::Duration;

use super::Watchdog;
use crate::error::Error;
use crate::transport::topology::health::{HealthNews, STABLE, ServerHealths};
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// What an outage of one server affects.
#[derive(Debug)]
struct Affected {
    leases: usize,
    /// Locks, semaphores and latches that callers wait for.
    awaited: usize,
    /// Background requests, such as releases.
    requests: usize,
}

impl Watchdog {
    /// Logs the outages that have begun or ended since the last round.
    ///
    /// Outages that affect nothing are not logged: a call that fails has its error.
    pub(super) fn report_health(&self) {
        for (node, health) in self.router.healths() {
            if !health.may_have_news() {
                continue;
            }
            // Counts all holds, so only an outage that the log does not have asks for it.
            let affected = OnceCell::new();
            let affected = || affected.get_or_init(|| self.affected(node));
            for news in health.news(clock::now(), || affected().is_any()) {
                match news {
                    HealthNews::Trouble(error) => log_trouble(affected(), &error),
                    HealthNews::Over { error, lasted } => log_end(&error, lasted),
                }
            }
        }
    }

    fn affected(&self, node: u32) -> Affected {
        let (holds, mut polled) = self.timers.lock().all();
        let is_there = |key: &str| {
            let owner = self.router.node_of(key);
            owner == node || node == ServerHealths::ANY_NODE
        };
        let leases = holds.iter().filter(|it| is_there(it.local.name().key())).count();
        polled.retain(|local| is_there(local.name().key()));
        let requests = self.router.open_requests(node);
        Affected { leases, awaited: polled.len(), requests }
    }
}

impl Affected {
    fn is_any(&self) -> bool {
        self.leases + self.awaited + self.requests > 0
    }
}

fn log_trouble(affected: &Affected, error: &Error) {
    let Affected { leases, awaited, requests } = affected;
    let state = if error.is_server() { "refuses commands" } else { "does not answer" };
    log::warn!(
        logger: LINES, target: log_target::CONNECTION,
        error:% = error.with_causes(), server = error.server();
        "{} {state}: {leases} leases, {awaited} awaited locks and {requests} background requests \
         are affected: {}", server_of(error), error.with_causes()
    );
}

fn log_end(error: &Error, lasted: Duration) {
    let server = server_of(error);
    if error.is_server() {
        // Nothing may have asked since, so this is no proof that the server takes commands.
        log::info!(
            logger: LINES, target: log_target::CONNECTION, server = error.server();
            "{server} has refused no repeated command for {STABLE:?}, after {lasted:.1?} of refusals"
        );
    } else {
        log::info!(
            logger: LINES, target: log_target::CONNECTION, server = error.server();
            "{server} answers again after {lasted:.1?}"
        );
    }
}

fn server_of(error: &Error) -> &str {
    error.server().unwrap_or("the server")
}
