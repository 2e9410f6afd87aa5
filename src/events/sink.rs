//! [`EventSink`]: the interface for the threads of a client that report its events.
//!
//! The same threads also count, so the sink has the counters too.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::events::queue::{Closure, EventQueue, Report};
use crate::events::{Event, Events, HandleListener, LossCall};
use crate::stats::StatsRecorder;
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::system::OnceLock;

/// The counters of a client, and its queue to the events thread.
///
/// Builds no event without an event listener. Clones share counters and queue.
#[derive(Clone, Default)]
pub(crate) struct EventSink {
    stats: Arc<StatsRecorder>,
    events: Arc<ClientEvents>,
}

#[derive(Default)]
struct ClientEvents {
    /// Whether the client has a listener of its own.
    has_listener: bool,
    /// Set at the start of the thread: with the client if it has a listener of its own, otherwise
    /// with the first event listener of a lock handle or the first closure of `on_lost`.
    queue: OnceLock<EventQueue>,
}

impl EventSink {
    /// Returns the sink of a client. Starts the events thread if the client has a listener.
    ///
    /// # Errors
    /// `is_configuration` if the system cannot start the thread.
    pub(crate) fn start(listener: Option<Arc<dyn Events>>) -> Result<EventSink> {
        let Some(listener) = listener else { return Ok(EventSink::default()) };
        let queue = EventQueue::start(Some(listener))?;
        let events = ClientEvents { has_listener: true, queue: OnceLock::from(queue) };
        Ok(EventSink { stats: Arc::default(), events: Arc::new(events) })
    }

    /// Returns the counters of the client.
    pub(crate) fn stats(&self) -> &StatsRecorder {
        &self.stats
    }

    /// Queues the event that `event` builds, for the client's listener.
    ///
    /// Does not block. Drops the event if the queue is full.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        self.send(true, None, event);
    }

    /// Queues an event for the client's listener and for the listener of a lock handle.
    pub(crate) fn emit_with(
        &self,
        listener: Option<&HandleListener>,
        event: impl FnOnce() -> Event,
    ) {
        self.send(true, listener, event);
    }

    /// Queues an event for the listener of a lock handle only.
    pub(crate) fn emit_only_to(&self, listener: &HandleListener, event: impl FnOnce() -> Event) {
        self.send(false, Some(listener), event);
    }

    fn send(
        &self,
        to_client: bool,
        listener: Option<&HandleListener>,
        event: impl FnOnce() -> Event,
    ) {
        let to_client = to_client && self.events.has_listener;
        let Some(queue) = self.events.queue.get() else { return };
        if to_client || listener.is_some() {
            let listener = || listener.and_then(HandleListener::value);
            queue.report(|| Report { event: event(), to_client, listener: listener() });
        }
    }

    /// Returns the listener of a lock handle. Starts the events thread if it does not run.
    ///
    /// # Errors
    /// `is_configuration` if the system cannot start the thread.
    pub(crate) fn listener(&self, listener: Arc<dyn Events>) -> Result<HandleListener> {
        Ok(HandleListener::new(listener, self.queue()?.clone()))
    }

    /// Returns a call of `on_lost` for the lock of this name.
    ///
    /// Starts the events thread if it does not run. If the system cannot start the thread, logs the
    /// error, drops the closure and returns `None`.
    pub(crate) fn loss_call(&self, name: &Arc<str>, closure: Closure) -> Option<LossCall> {
        match self.queue() {
            Ok(queue) => Some(LossCall::new(Arc::clone(name), closure, queue.clone())),
            Err(error) => {
                log::error!(
                    logger: LINES, target: log_target::CLIENT,
                    lock = &**name, error:% = error.with_causes();
                    "a closure of `on_lost` will not be called: {}", error.with_causes()
                );
                None
            }
        }
    }

    fn queue(&self) -> Result<&EventQueue> {
        if let Some(queue) = self.events.queue.get() {
            return Ok(queue);
        }
        let started = EventQueue::start(None)?;
        // If two callers start a thread at the same time, one of the two threads ends at once.
        Ok(self.events.queue.get_or_init(|| started))
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventSink").field(&self.events.has_listener).finish()
    }
}

#[cfg(test)]
impl EventSink {
    /// Returns a sink with a client's listener, and the jobs that the events thread would run.
    pub(crate) fn recorded()
    -> (EventSink, crate::util::system::channel::Receiver<super::queue::EventsJob>) {
        let (queue, jobs) = EventQueue::new();
        let events = ClientEvents { has_listener: true, queue: OnceLock::from(queue) };
        (EventSink { stats: Arc::default(), events: Arc::new(events) }, jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Renewed;
    use crate::events::queue::CAPACITY;

    fn renewed(hold: u64) -> Event {
        Event::Renewed(Renewed::new([hold]))
    }

    #[test]
    fn a_sink_without_a_listener_builds_no_event() {
        EventSink::default().emit(|| unreachable!("there is no listener"));
    }

    #[test]
    fn a_full_queue_drops_events_instead_of_blocking_and_keeps_calls() {
        let (sink, jobs) = EventSink::recorded();
        (0..CAPACITY as u64 + 3).for_each(|n| sink.emit(|| renewed(n)));
        let call = sink.loss_call(&"a".into(), Box::new(|| ())).expect("the queue exists");
        call.queue();
        assert_eq!(jobs.try_iter().count(), CAPACITY + 1);
        assert_eq!(sink.queue().expect("it exists").dropped(), 3);
    }
}
