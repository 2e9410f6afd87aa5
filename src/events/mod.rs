//! Events of the locks of a client, and the thread that reports them to the program.
//!
//! Only the thread `leasehold-events` runs and drops the listeners and closures of the program.
//! All other threads only queue jobs for that thread, and to queue a job runs no code of the
//! program. So an event listener or a closure may be queued and dropped under any mutex. (The
//! functions of `login_provider` and `address_map` run on the thread that needs their results.)
//!
//! `event.rs` has the trait [`Events`] and the arguments of its methods, `kind.rs` the kinds of
//! locks, `sink.rs` the interface for the threads that report events, `queue.rs` the queue and the
//! events thread, `listener.rs` the values of the program that a lock or a hold keeps. Imports
//! `stats`, `error` and `util`.

mod event;
mod kind;
mod listener;
mod queue;
mod sink;

pub(crate) use event::Event;
pub use event::{
    Acquired, Audit, Events, Idle, Lost, Overdue, Reconnected, Released, RenewalFailed, Renewed,
    Waited,
};
pub use kind::Kind;
pub(crate) use listener::{HandleListener, LossCall};
pub(crate) use queue::Closure;
#[cfg(all(test, leasehold_model))]
pub(crate) use queue::EventsJob;
pub(crate) use sink::EventSink;
