//! Named threads that survive a panic of foreign code.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::system::per_process;
use crate::util::system::thread::{Builder, JoinHandle};

/// The pause of a thread after a step that panicked, so that it does not spin.
pub(crate) const PANIC_PAUSE: Duration = Duration::from_millis(100);

per_process! {
    /// Whether the last attempt to start a thread failed.
    static HAS_NO_ROOM: AtomicBool = AtomicBool::new(false);
}

/// Starts a thread with that name. Logs the first failure until a thread starts again.
pub(crate) fn start(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let started = Builder::new().name(name.to_owned()).spawn(run);
    let had_no_room = HAS_NO_ROOM.swap(started.is_err(), Ordering::Relaxed);
    if let Err(error) = started.as_ref()
        && !had_no_room
    {
        log::error!(
            logger: LINES, target: log_target::CLIENT, error:%;
            "the system has no room for the thread {name}: {error}"
        );
    }
    started
}

/// Starts a thread that nobody joins; in a model, a thread that the model schedules.
#[cfg(not(all(test, leasehold_model)))]
fn start_detached(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    start(name, run).map(drop)
}

#[cfg(all(test, leasehold_model))]
fn start_detached(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    shuttle::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Passes a value to a thread that nobody joins. Returns the value if no thread can be started.
pub(crate) fn detach<T: Send + 'static>(
    name: &str,
    value: T,
    run: impl FnOnce(T) + Send + 'static,
) -> Result<(), T> {
    let value = Arc::new(Mutex::new(Some(value)));
    let take =
        |value: &Mutex<Option<T>>| value.lock().unwrap_or_else(PoisonError::into_inner).take();
    let shared = Arc::clone(&value);
    let started = start_detached(name, move || {
        if let Some(value) = take(&shared) {
            run(value);
        }
    });
    if started.is_ok() {
        return Ok(());
    }
    take(&value).map_or(Ok(()), Err)
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
