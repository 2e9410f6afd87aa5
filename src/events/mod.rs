//! Events: reports of what happens to the locks of a client, and the thread that delivers them.
//!
//! Code of the program runs, and its values are dropped, only on the thread `leasehold-events`.
//! Every other place only queues a job for that thread, which runs no code of the program. So a
//! listener or a closure may be queued and dropped under any mutex.
//!
//! `event.rs` has the trait [`Events`] and its arguments, `kind.rs` the kinds of locks, `sink.rs`
//! the places that report, `queue.rs` the queue and the thread, `listener.rs` the values of the
//! program that a lock or a hold keeps. Imports `stats`, `error` and `util`.

mod event;
mod kind;
mod listener;
mod queue;
mod sink;

pub(crate) use event::Event;
pub use event::{
    Acquired, Audit, Events, Lost, Overdue, Reconnected, Released, RenewalFailed, Renewed, Waited,
};
pub use kind::Kind;
pub(crate) use listener::{HandleListener, LossCall};
pub(crate) use queue::Closure;
#[cfg(all(test, leasehold_model))]
pub(crate) use queue::EventsJob;
pub(crate) use sink::EventSink;
