//! The thread that looks for fail-overs.
//!
//! Every new connection finds them, too. This thread finds them for connections that still
//! stand, to a master that was cut off, and for clients without connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::pool::OnReconnect;
use crate::sync::Mailbox;
use crate::thread;
use crate::time;
use crate::topology::{Route, Watch};

/// The scout of one client.
#[derive(Debug)]
pub(crate) struct Scout {
    route: Route,
    bell: Mailbox,
    stop: AtomicBool,
}

impl Scout {
    pub(crate) fn new(route: Route) -> Scout {
        Scout { route, bell: Mailbox::default(), stop: AtomicBool::new(false) }
    }

    /// Starts the thread, if there is anything that it could hear; `whom` it is to tell.
    pub(crate) fn start(
        self: &Arc<Scout>,
        whom: Weak<dyn OnReconnect>,
    ) -> Result<Option<JoinHandle<()>>> {
        let Some(watch) = self.route.watch() else { return Ok(None) };
        let scout = Arc::clone(self);
        let run = move || scout.run(watch, &whom);
        thread::start("leasehold-scout", run).map(Some).map_err(|error| {
            Error::configuration(format!("the scout thread cannot be started: {error}"))
        })
    }

    /// Has the thread end, which may take it a connect and a response time-out.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        self.route.wake();
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, mut watch: Watch, whom: &Weak<dyn OnReconnect>) {
        while !self.is_stopped() {
            watch.wait(&self.bell);
            if self.is_stopped() {
                return;
            }
            match thread::survive("looking for fail-overs", || watch.look()) {
                Some(Ok(true)) => {
                    whom.upgrade().inspect(|whom| whom.reconnected());
                }
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    thread::say(|| log::debug!("no news of fail-overs: {error}"));
                }
                None => self.bell.sleep(time::now() + thread::PAUSE),
            }
        }
    }
}
