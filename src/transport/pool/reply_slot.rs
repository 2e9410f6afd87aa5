//! The slot in which a caller finds the outcome of its request.
//!
//! The caller has the [`ReplySlot`], the request has its [`Promise`]. A slot is completed exactly
//! once: the drop of a promise that was not used reports an error. A caller that returns before the
//! outcome arrives *abandons* its slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::transport::pool::request::{Failure, Outcome, panicked};
use crate::util::sync::Mutex;

/// The slot in which a caller finds the outcome of its request.
#[derive(Debug, Default)]
pub(crate) struct ReplySlot {
    outcome: Mutex<Option<Outcome>>,
    /// The number of the caller's wait group.
    group: AtomicUsize,
    abandoned: AtomicBool,
}

/// Completes a slot. The caller has to be woken separately.
#[derive(Debug)]
pub(crate) struct Promise(Option<Arc<ReplySlot>>);

impl Promise {
    /// Returns a promise and its empty slot.
    pub(super) fn new() -> (Promise, Arc<ReplySlot>) {
        let slot = Arc::<ReplySlot>::default();
        (Promise(Some(Arc::clone(&slot))), slot)
    }

    /// Completes the slot, if it is not complete.
    pub(crate) fn complete(&mut self, outcome: Outcome) {
        if let Some(slot) = self.0.take() {
            *slot.outcome.lock() = Some(outcome);
        }
    }

    /// The slot, while it is not complete.
    pub(super) fn slot(&self) -> Option<&Arc<ReplySlot>> {
        self.0.as_ref()
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.complete(Err(Failure::written(panicked())));
        }
    }
}

impl ReplySlot {
    pub(crate) fn is_done(&self) -> bool {
        self.outcome.lock().is_some()
    }

    /// Takes the outcome out of the slot, if it has arrived.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.outcome.lock().take()
    }

    /// Takes the outcome, or marks the slot as abandoned if it has not arrived.
    pub(crate) fn take_or_abandon(&self) -> Option<Outcome> {
        let mut outcome = self.outcome.lock();
        self.abandoned.store(outcome.is_none(), Ordering::Release);
        outcome.take()
    }

    /// Whether the caller has returned without the outcome.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    pub(crate) fn set_group(&self, group: usize) {
        self.group.store(group, Ordering::Relaxed);
    }

    pub(crate) fn group(&self) -> usize {
        self.group.load(Ordering::Relaxed)
    }
}
