//! Waits for conditions, each with a generous bound, and counts of this process's threads and
//! descriptors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The bound of every wait of the harness, after which the test fails.
///
/// Long enough that a slow machine fails no test.
pub const BOUND: Duration = Duration::from_secs(30);

/// The shortest and the longest pause between two checks of a condition.
///
/// A pause is a tenth of the wait so far. So a wait ends soon after its condition holds, and long
/// waits for servers leave the processor to them.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(25)];

/// The time without a request after which a waiter counts as asleep.
pub const QUIET: Duration = Duration::from_millis(50);

/// The number of bytes that the kernel keeps of a thread's name.
const KEPT_OF_A_NAME: usize = 15;

/// Blocks until `condition` is true; panics with `what` after `BOUND`.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(BOUND, condition), "never happened: {what}");
}

/// Blocks until `look` returns a value, and returns it; panics with `what` after `BOUND`.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(what, || {
        found = look();
        found.is_some()
    });
    found.expect("the wait ends with a value")
}

/// Blocks until `look` has returned the same value for `span`; `None` is no value.
#[track_caller]
pub fn await_unchanged<T: PartialEq>(
    what: &str,
    span: Duration,
    mut look: impl FnMut() -> Option<T>,
) {
    let (mut last, mut since) = (None, Instant::now());
    eventually(what, || {
        let now = look();
        if now != last || now.is_none() {
            (last, since) = (now, Instant::now());
        }
        last.is_some() && since.elapsed() >= span
    });
}

/// Blocks until `condition` is true or `bound` has passed; returns whether it became true.
pub fn holds_within(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        let waited = start.elapsed();
        if waited >= bound {
            return false;
        }
        thread::sleep((waited / 10).clamp(PAUSES[0], PAUSES[1]));
    }
}

/// Returns the result of a thread; panics if the thread does not end within `BOUND`.
#[track_caller]
pub fn join<T>(thread: JoinHandle<T>) -> T {
    eventually("the thread ends", || thread.is_finished());
    thread.join().expect("no panic")
}

/// Returns the result of a scoped thread; panics with `what` after `BOUND`.
#[track_caller]
pub fn in_time<T>(what: &str, thread: ScopedJoinHandle<'_, T>) -> T {
    eventually(what, || thread.is_finished());
    thread.join().expect("no panic")
}

/// Returns `None` in the place of a time-out: a call with little time may end before its answer.
pub fn or_too_late<T>(outcome: leasehold::Result<Option<T>>) -> leasehold::Result<Option<T>> {
    outcome.or_else(|error| if error.is_timeout() { Ok(None) } else { Err(error) })
}

/// The number of further checks, a millisecond apart, that must find the same sleep.
const CHECKS: u32 = 15;

/// Runs `wait` on a new thread; blocks until that thread sleeps.
///
/// From outside, such a thread cannot be distinguished from a caller in a queue.
pub fn sleeping<T: Send + 'static>(
    name: &str,
    wait: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let _ = sender.send(fs::read_link("/proc/thread-self").expect("the path of this thread"));
        wait()
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread");
    let status = Path::new("/proc").join(receiver.recv().expect("the path")).join("status");
    eventually("the thread sleeps", || {
        let first = sleep_count(&status);
        let goes_on = |_| {
            thread::sleep(PAUSES[0]);
            sleep_count(&status) == first
        };
        first.is_some() && (0..CHECKS).all(goes_on)
    });
    thread
}

/// Returns how often a sleeping thread has gone to sleep, or `None`.
fn sleep_count(status: &Path) -> Option<String> {
    let status = fs::read_to_string(status).ok()?;
    let line = |start: &str| status.lines().find(|line| line.starts_with(start));
    line("State:")?.contains("sleeping").then(|| line("voluntary_ctxt").map(str::to_owned))?
}

/// Counts the threads of this process by name, of which the kernel keeps 15 bytes.
///
/// Other tests of the same binary run at the same time. So a test that counts threads or
/// descriptors needs its own binary or child process.
pub fn threads() -> BTreeMap<String, usize> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads can be listed");
    let mut counts = BTreeMap::new();
    for task in tasks.flatten() {
        // A thread may end between the listing and this read.
        if let Ok(name) = fs::read_to_string(task.path().join("comm")) {
            *counts.entry(name.trim_end().to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Counts the threads of this process with this name.
pub fn threads_named(name: &str) -> usize {
    let kept = &name[..name.len().min(KEPT_OF_A_NAME)];
    threads().get(kept).copied().unwrap_or(0)
}

/// Returns whether all threads of this process but the caller's sleep.
pub fn other_threads_sleep() -> bool {
    let own = fs::read_link("/proc/thread-self").expect("the path of this thread");
    let tasks = fs::read_dir("/proc/self/task").expect("the threads can be listed");
    let others = tasks.flatten().filter(|task| Some(&*task.file_name()) != own.file_name());
    let mut statuses = others.flat_map(|task| fs::read_to_string(task.path().join("status")));
    statuses.all(|status| status.contains("\nState:\tS"))
}

/// Blocks until the logger has all lines of the library: its thread then ends.
#[track_caller]
pub fn log_is_written() {
    eventually("the log is written", || threads_named("leasehold-log") == 0);
}

/// Returns the targets of this process's open descriptors, such as `socket:[4711]`, sorted.
pub fn descriptors() -> Vec<String> {
    let own_listing = format!("/proc/{}/fd", std::process::id());
    let entries = fs::read_dir("/proc/self/fd").expect("the descriptors can be listed");
    let mut targets: Vec<String> = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| *target != own_listing)
        .collect();
    targets.sort();
    targets
}

/// Counts this process's open descriptors.
pub fn open_descriptors() -> usize {
    descriptors().len()
}
