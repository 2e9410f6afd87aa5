//! Named threads that survive a panic of foreign code.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The pause of a thread after a step that panicked, so that it does not spin.
pub(crate) const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// Starts a thread with that name.
pub(crate) fn start(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(run)
}

/// Starts a thread that nobody joins; in a model, a thread that the model schedules.
#[cfg(not(all(test, leasehold_model)))]
fn detach(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    start(name, run).map(drop)
}

#[cfg(all(test, leasehold_model))]
fn detach(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    shuttle::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Runs a job on a thread that nobody joins, or on the calling thread if none can be started.
pub(crate) fn detach_or_run(name: &str, job: impl FnOnce() + Send + 'static) {
    let job = Arc::new(Mutex::new(Some(job)));
    let take = |job: &Mutex<Option<_>>| job.lock().unwrap_or_else(PoisonError::into_inner).take();
    let shared = Arc::clone(&job);
    let run = move || {
        if let Some(job) = take(&shared) {
            job();
        }
    };
    if let Err(error) = detach(name, run) {
        log::error!(
            logger: LINES, target: log_target::CLIENT, error:%;
            "cannot start the thread {name}, so a caller waits instead: {error}"
        );
        if let Some(job) = take(&job) {
            job();
        }
    }
}

/// Runs one step of a thread that must not end. Returns `None` if the step panicked.
///
/// The panic is logged. In a model a panic is a finding and propagates.
pub(crate) fn catch_panic<T>(activity: impl fmt::Display, step: impl FnOnce() -> T) -> Option<T> {
    let done = catch_quietly(step);
    if done.is_none() {
        log::error!(
            logger: LINES, target: log_target::CLIENT,
            "a thread panicked while {activity}, and continues"
        );
    }
    done
}

/// Runs one call of a callback of the program. Returns `None` if the callback panicked.
pub(crate) fn catch_panic_of_callback<T>(
    activity: impl fmt::Display,
    callback: impl FnOnce() -> T,
) -> Option<T> {
    let done = catch_quietly(callback);
    if done.is_none() {
        log::error!(
            logger: LINES, target: log_target::EVENTS,
            "a thread panicked while {activity}, and continues"
        );
    }
    done
}

/// Runs a step. Returns `None` if the step panicked.
pub(crate) fn catch_quietly<T>(step: impl FnOnce() -> T) -> Option<T> {
    if cfg!(all(test, leasehold_model)) {
        return Some(step());
    }
    // The drop of the payload may panic.
    catch_unwind(AssertUnwindSafe(step)).map_err(std::mem::forget).ok()
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_only_the_step() {
        assert_eq!(catch_panic("counting", || 1), Some(1));
        assert_eq!(catch_panic("testing", || -> u8 { panic!("on purpose") }), None);
    }

    #[test]
    fn threads_have_names() {
        let name = || assert_eq!(std::thread::current().name(), Some("leasehold-test"));
        let thread = start("leasehold-test", name).expect("the system starts a thread");
        thread.join().expect("the assertion holds");
    }
}
