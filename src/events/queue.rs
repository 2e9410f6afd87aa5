//! The queue to the events thread (`leasehold-events`), and that thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::system::{
    channel::{self, Receiver, Sender},
    process_id,
};
use crate::util::threads;

/// The number of queued jobs at which further events are dropped. Other jobs are always queued.
pub(super) const CAPACITY: usize = 4096;

/// A closure of the program.
pub(crate) type Closure = Box<dyn FnOnce() + Send>;

/// One job of the events thread.
pub(crate) enum EventsJob {
    /// Reports an event.
    Report(Report),
    /// Calls a closure of `on_lost`, for the lock of this name.
    LossCall(Arc<str>, Closure),
    /// Drops a closure of `on_lost` without a call.
    DropCall(Closure),
    /// Drops the event listener of a lock handle.
    DropListener(Arc<dyn Events>),
}

/// An event and its receivers.
pub(crate) struct Report {
    pub(crate) event: Event,
    /// Whether the client's listener receives the event.
    pub(crate) to_client: bool,
    /// The event listener of a lock handle, if it receives the event.
    pub(crate) listener: Option<Arc<dyn Events>>,
}

/// The queue to the events thread, which ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct EventQueue {
    jobs: Sender<EventsJob>,
    dropped: Arc<AtomicU64>,
    /// The id of the process in which the thread runs.
    process: u32,
}

impl EventQueue {
    /// Starts the thread, with the client's listener if there is one.
    pub(super) fn start(listener: Option<Arc<dyn Events>>) -> Result<EventQueue> {
        let (queue, jobs) = EventQueue::new();
        let run = move || jobs.into_iter().for_each(|job| job.run(listener.as_deref()));
        threads::start("leasehold-events", run).map(|_| queue).map_err(|error| {
            Error::configuration("the events thread cannot be started").with_source(error)
        })
    }

    /// Returns a queue, and its receiving end for a thread or a test.
    pub(crate) fn new() -> (EventQueue, Receiver<EventsJob>) {
        let (jobs, receiver) = channel::unbounded();
        let process = process_id();
        (EventQueue { jobs, dropped: Arc::default(), process }, receiver)
    }

    /// Queues the event that `report` builds, or counts it as dropped if the queue is full.
    ///
    /// Logs the count at each power of two.
    pub(super) fn report(&self, report: impl FnOnce() -> Report) {
        if self.jobs.len() < CAPACITY {
            return self.queue(EventsJob::Report(report()));
        }
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if dropped.is_power_of_two() {
            log::warn!(
                logger: LINES, target: log_target::EVENTS,
                "the events listener is too slow: {dropped} events were dropped so far"
            );
        }
    }

    /// Queues a job. Does not block and runs no code of the program.
    pub(super) fn queue(&self, job: EventsJob) {
        // A forked child has no events thread, and the fork may have interrupted a step on the
        // queue by a thread of the parent. A job of a child is leaked: its drop would run code of
        // the program.
        let unsent = if self.process == process_id() {
            self.jobs.send(job).err().map(|unsent| unsent.0)
        } else {
            Some(job)
        };
        std::mem::forget(unsent);
    }

    /// Returns the number of events that were dropped.
    #[cfg(test)]
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl EventsJob {
    /// Runs the job. A panic of the program ends only its own call.
    fn run(self, client: Option<&dyn Events>) {
        match self {
            EventsJob::Report(report) => report.deliver(client),
            EventsJob::LossCall(name, call) => {
                let activity = format_args!("calling a closure of `on_lost` for the lock {name:?}");
                threads::catch_panic_of_callback(activity, call);
            }
            EventsJob::DropCall(call) => {
                threads::catch_panic_of_callback("dropping a closure of `on_lost`", || drop(call));
            }
            EventsJob::DropListener(listener) => {
                threads::catch_panic_of_callback("dropping a listener", || drop(listener));
            }
        }
    }
}

impl Report {
    /// Calls the client's listener first, then the listener of the lock handle.
    fn deliver(self, client: Option<&dyn Events>) {
        let Report { event, to_client, listener } = self;
        let activity = format_args!("reporting {event:?}");
        if let Some(client) = client.filter(|_| to_client) {
            threads::catch_panic_of_callback(activity, || event.deliver(client));
        }
        if let Some(listener) = listener {
            threads::catch_panic_of_callback(activity, || event.deliver(&*listener));
            EventsJob::DropListener(listener).run(None);
        }
    }
}
