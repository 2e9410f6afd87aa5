//! The listener's thread in a model: its subscribers, over connections to a server
//! inside the model. `acquire/model/messages.rs` is where it is looked at.

use super::{Listener, ListenerSettings, Subscriber};
use crate::listener::channels::Waiters;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Listens, over as many connections as it takes, until it is stopped.
pub(crate) fn listen(settings: &ListenerSettings, waiters: &Waiters, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if let Ok(mut subscriber) = Subscriber::open(settings, waiters) {
            // What ended it is the model's doing.
            let _ = subscriber.listen(stop);
        }
    }
}

impl Listener {
    /// A listener whose thread is the model's, which is to run it.
    pub(crate) fn in_model(settings: &ListenerSettings, waiters: &Arc<Waiters>) -> Arc<Listener> {
        let listener = Listener::new(settings.clone(), Arc::clone(waiters));
        listener.started.store(true, Ordering::Release);
        Arc::new(listener)
    }

    /// What its thread does.
    pub(crate) fn run_in_model(&self) {
        self.run();
    }
}
