//! The thread that looks for fail-overs.
//!
//! Every new connection finds them, too. This thread finds them for connections that still
//! stand, to a master that was cut off, and for clients without connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::topology::route::{FailoverWatch, Route};
use crate::util::clock;
use crate::util::sync::Parker;
use crate::util::threads;

/// Is told when a connection was made again after one that broke. Must not block.
pub(crate) trait OnReconnect: Send + Sync {
    fn reconnected(&self);
}

/// The scout of one client.
#[derive(Debug)]
pub(crate) struct FailoverMonitor {
    route: Route,
    parker: Parker,
    stop: AtomicBool,
}

impl FailoverMonitor {
    pub(crate) fn new(route: Route) -> FailoverMonitor {
        FailoverMonitor { route, parker: Parker::default(), stop: AtomicBool::new(false) }
    }

    /// Starts the thread, if there is anything that it could hear; `whom` it is to tell.
    pub(crate) fn start(
        self: &Arc<FailoverMonitor>,
        whom: Weak<dyn OnReconnect>,
    ) -> Result<Option<JoinHandle<()>>> {
        let Some(watch) = self.route.watch() else { return Ok(None) };
        let failover = Arc::clone(self);
        let run = move || failover.run(watch, &whom);
        threads::start("leasehold-scout", run).map(Some).map_err(|error| {
            Error::configuration(format!("the scout thread cannot be started: {error}"))
        })
    }

    /// Has the thread end, which may take it a connect and a response time-out.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.parker.unpark();
        self.route.wake();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, mut watch: FailoverWatch, whom: &Weak<dyn OnReconnect>) {
        while !self.is_stopped() {
            watch.wait(&self.parker);
            if self.is_stopped() {
                return;
            }
            match threads::survive("looking for fail-overs", || watch.look()) {
                Some(Ok(true)) => {
                    whom.upgrade().inspect(|whom| whom.reconnected());
                }
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    threads::say(|| log::debug!("no news of fail-overs: {error}"));
                }
                None => self.parker.park_until(clock::now() + threads::PAUSE),
            }
        }
    }
}
