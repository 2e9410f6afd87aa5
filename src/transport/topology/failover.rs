//! The fail-over monitor: a thread that watches for topology changes.
//!
//! A new connection notices a fail-over by itself. The monitor notices it for clients whose
//! connections still lead to a master that was cut off, and for clients without connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::transport::topology::route::{FailoverWatch, Route};
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Parker;
use crate::util::system::thread::JoinHandle;
use crate::util::threads;

/// Observes reconnections and topology changes.
pub(crate) trait ServerObserver: Send + Sync {
    /// Notes a new connection that is not the first one. The server may be another one, or the same
    /// one without its data. Must not block.
    fn reconnected(&self, address: &Arc<str>);

    /// Notes that a server may be another one. Must not block.
    fn server_may_have_changed(&self);
}

/// The fail-over monitor of one client.
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

    /// Starts the thread, if the topology can change. Topology changes are reported to `observer`.
    pub(crate) fn start(
        self: &Arc<FailoverMonitor>,
        observer: Weak<dyn ServerObserver>,
    ) -> Result<Option<JoinHandle<()>>> {
        let Some(watch) = self.route.watch() else { return Ok(None) };
        let monitor = Arc::clone(self);
        let run = move || monitor.run(watch, &observer);
        threads::start("leasehold-failover", run).map(Some).map_err(|error| {
            Error::configuration("the fail-over monitor cannot be started").with_source(error)
        })
    }

    /// Tells the thread to end, which may take a connect and a response time-out. Does not block.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.parker.unpark();
        self.route.wake();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, mut watch: FailoverWatch, observer: &Weak<dyn ServerObserver>) {
        while !self.is_stopped() {
            watch.wait(&self.parker);
            if self.is_stopped() {
                return;
            }
            match threads::catch_panic("watching for fail-overs", || watch.check()) {
                Some(Ok(true)) => {
                    if let Some(observer) = observer.upgrade() {
                        observer.server_may_have_changed();
                    }
                }
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    log::debug!(
                        logger: LINES, target: log_target::TOPOLOGY,
                        error:% = error.with_causes(), server = error.server();
                        "cannot watch for fail-overs: {}", error.with_causes()
                    );
                }
                None => self.parker.park_until(clock::now() + threads::PANIC_PAUSE),
            }
        }
    }
}
