//! Panics and log lines of a run.

use simulated::world;
use std::cell::RefCell;

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes the log lines of the library in the trace.
struct Tracer;

impl log::Log for Tracer {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let process = world::current_process();
        world::note(|| format!("{process} logs {}: {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Collects panics and log lines from now on.
pub fn install() {
    log::set_logger(&Tracer).expect("the first logger");
    log::set_max_level(log::LevelFilter::Debug);
    std::panic::set_hook(Box::new(|panic| {
        PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
    }));
}

/// Returns the panics since the last call, in any task.
pub fn take_panics() -> Vec<String> {
    PANICS.take()
}
