//! The threads of a client: named, and not easily ended.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a thread pauses when it had to give a step up, lest it spins.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Starts a thread under that name.
pub(crate) fn start(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(run)
}

/// Starts a thread that nobody joins; in a model one that the model schedules.
#[cfg(not(all(test, leasehold_model)))]
fn detach(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    start(name, run).map(drop)
}

#[cfg(all(test, leasehold_model))]
fn detach(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    shuttle::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Runs a job on a thread of its own, which nobody joins; by the caller if none can be started.
pub(crate) fn detach_or_run(name: &str, job: impl FnOnce() + Send + 'static) {
    let job = Arc::new(Mutex::new(Some(job)));
    let take = |job: &Mutex<Option<_>>| job.lock().unwrap_or_else(PoisonError::into_inner).take();
    let handed = Arc::clone(&job);
    let run = move || {
        if let Some(job) = take(&handed) {
            job();
        }
    };
    if let Err(error) = detach(name, run) {
        say(|| log::error!("no thread {name}, so the caller has to wait: {error}"));
        if let Some(job) = take(&job) {
            job();
        }
    }
}

/// Takes one step of a thread that must go on: foreign code in it, a logger or a
/// callback, may panic. `None` if it did; then the log says so, if it can. In a model
/// a panic is a finding, and goes on.
pub(crate) fn survive<T>(what: impl fmt::Display, step: impl FnOnce() -> T) -> Option<T> {
    if cfg!(all(test, leasehold_model)) {
        return Some(step());
    }
    let done = catch_unwind(AssertUnwindSafe(step));
    if done.is_err() {
        let say = || log::error!("panicked while {what}, and goes on");
        // The logger may be what panics.
        let _ = catch_unwind(AssertUnwindSafe(say));
    }
    done.ok()
}

/// Writes to the log where a panic of the logger would do harm: on the threads of a
/// client, and where a guard is dropped, perhaps while its thread unwinds.
pub(crate) fn say(log: impl FnOnce()) {
    survive("logging", log);
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_step_and_nothing_else() {
        assert_eq!(survive("counting", || 1), Some(1));
        assert_eq!(survive("testing", || -> u8 { panic!("on purpose") }), None);
    }

    #[test]
    fn threads_have_names() {
        let name = || assert_eq!(std::thread::current().name(), Some("leasehold-test"));
        let thread = start("leasehold-test", name).expect("a thread");
        thread.join().expect("the name is right");
    }
}
