//! Values of the program that a lock or a hold keeps: event listeners and closures.
//!
//! Both types may be dropped under any mutex: their drop sends the value of the program to the
//! events thread, which drops the value.

use std::fmt;
use std::sync::Arc;

use crate::events::Events;
use crate::events::queue::{Closure, EventQueue, EventsJob};

/// The listener of a lock handle and of its holds. Clones share one listener.
#[derive(Clone)]
pub(crate) struct HandleListener(Arc<KeptListener>);

struct KeptListener {
    /// `None` only during the drop.
    listener: Option<Arc<dyn Events>>,
    queue: EventQueue,
}

/// A closure of `on_lost`. A drop without a call drops the closure on the events thread.
pub(crate) struct LossCall {
    /// `None` once the call is queued.
    closure: Option<Closure>,
    name: Arc<str>,
    queue: EventQueue,
}

impl HandleListener {
    pub(super) fn new(listener: Arc<dyn Events>, queue: EventQueue) -> HandleListener {
        HandleListener(Arc::new(KeptListener { listener: Some(listener), queue }))
    }

    /// Returns the listener of the program, for the events thread.
    pub(super) fn value(&self) -> Option<Arc<dyn Events>> {
        self.0.listener.clone()
    }

    /// Returns whether both have the same listener of the program.
    pub(crate) fn is_same(&self, other: &HandleListener) -> bool {
        match (&self.0.listener, &other.0.listener) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Drop for KeptListener {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.queue.queue(EventsJob::DropListener(listener));
        }
    }
}

impl fmt::Debug for HandleListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleListener").finish_non_exhaustive()
    }
}

impl LossCall {
    pub(super) fn new(name: Arc<str>, closure: Closure, queue: EventQueue) -> LossCall {
        LossCall { closure: Some(closure), name, queue }
    }

    /// Queues a call of the closure by the events thread. Does not block and runs no code of the
    /// program.
    pub(crate) fn queue(mut self) {
        if let Some(closure) = self.closure.take() {
            self.queue.queue(EventsJob::LossCall(Arc::clone(&self.name), closure));
        }
    }
}

impl Drop for LossCall {
    fn drop(&mut self) {
        if let Some(closure) = self.closure.take() {
            self.queue.queue(EventsJob::DropCall(closure));
        }
    }
}

impl fmt::Debug for LossCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossCall").field("name", &self.name).finish_non_exhaustive()
    }
}
