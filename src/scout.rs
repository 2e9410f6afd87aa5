//! The thread that hears that the server is another one now, where that can be.
//!
//! Whoever connects finds that out, too; this thread is for those whose connections still
//! stand, to a master that was cut off, and for those that have none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::pool::OnReconnect;
use crate::sync::Mailbox;
use crate::thread;
use crate::time;
use crate::topology::Route;

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
        if self.route.is_fixed() {
            return Ok(None);
        }
        let scout = Arc::clone(self);
        let run = move || scout.run(&whom);
        thread::start("leasehold-scout", run).map(Some).map_err(|error| {
            Error::configuration(format!("the scout thread cannot be started: {error}"))
        })
    }

    /// Has the thread end, which may take it a second, or a connect and a response time-out.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        self.route.wake();
    }

    fn run(&self, whom: &Weak<dyn OnReconnect>) {
        for turn in 0.. {
            let moved = thread::survive("listening for fail-overs", || self.route.listen(turn));
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            match moved {
                Some(Ok(true)) => {
                    whom.upgrade().inspect(|whom| whom.reconnected());
                }
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    thread::say(|| log::debug!("not listening for fail-overs: {error}"));
                    self.bell.sleep(time::now() + thread::PAUSE);
                }
                None => self.bell.sleep(time::now() + thread::PAUSE),
            }
        }
    }
}
