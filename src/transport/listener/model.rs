//! The listener's thread in a model, with its real subscriber and connections to a modelled server.
//!
//! Used by the model in `acquire/model/messages.rs`.

use super::subscriber::Subscriber;
use super::{Listener, ListenerOrders, ListenerSettings};
use crate::transport::listener::channels::Channels;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Listens until it has to stop, and reconnects whenever a connection ends.
pub(crate) fn listen(settings: &ListenerSettings, channels: &Channels, orders: &ListenerOrders) {
    while !orders.has_to_stop() {
        if let Ok(mut subscriber) = Subscriber::open(settings, channels) {
            // The model breaks connections on purpose.
            let _ = subscriber.listen(orders);
        }
    }
}

impl Listener {
    /// Returns a listener without a thread; a thread of the model runs [`Self::run_in_model`].
    pub(crate) fn in_model(settings: &ListenerSettings, channels: &Arc<Channels>) -> Arc<Listener> {
        let listener = Listener::new(settings.clone(), Arc::clone(channels));
        listener.started.store(true, Ordering::Release);
        Arc::new(listener)
    }

    /// Runs the listener's thread function on the calling thread.
    pub(crate) fn run_in_model(&self) {
        self.run();
    }
}
