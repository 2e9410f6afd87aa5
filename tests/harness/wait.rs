//! Waits for conditions, each with a generous bound, and counts of what this
//! process has open.

use std::collections::BTreeMap;
use std::fs;
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How long any wait of the harness lasts before it fails the test. Far longer
/// than anything takes, so that a slow machine fails nothing.
pub const BOUND: Duration = Duration::from_secs(30);

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(1);

/// The kernel keeps this many bytes of a thread's name.
const KEPT_OF_A_NAME: usize = 15;

/// Blocks until `condition` is true, and panics with `what` if it never is.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(BOUND, condition), "never happened: {what}");
}

/// Blocks until `look` finds something and returns it; panics with `what` if
/// it never does.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(what, || {
        found = look();
        found.is_some()
    });
    found.expect("the wait ends when something was found")
}

/// Blocks until `condition` is true or `bound` has passed, and says whether it
/// was true.
pub fn holds_within(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= bound {
            return false;
        }
        thread::sleep(INTERVAL);
    }
}

/// What a thread gives that ends soon, if all is well.
#[track_caller]
pub fn join<T>(thread: JoinHandle<T>) -> T {
    eventually("the thread ends", || thread.is_finished());
    thread.join().expect("no panic")
}

/// The same for a thread of a scope. Says what did not happen if it does not end.
#[track_caller]
pub fn in_time<T>(what: &str, thread: ScopedJoinHandle<'_, T>) -> T {
    eventually(what, || thread.is_finished());
    thread.join().expect("no panic")
}

/// How long a thread that sleeps has been seen to sleep, in looks a millisecond apart.
const LOOKS: u32 = 15;

/// Runs `wait` on a thread of that name (unique in this process, 15 bytes at most),
/// and returns when it sleeps: in line, for all that can be seen from outside.
pub fn sleeping<T: Send + 'static>(
    name: &str,
    wait: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(wait).expect("a thread");
    let (mut last, mut looks) = (None, 0);
    eventually("the thread sleeps", || {
        let now = naps(name);
        looks = if now.is_some() && now == last { looks + 1 } else { 0 };
        last = now;
        looks == LOOKS
    });
    thread
}

/// How often a thread has gone to sleep, if it sleeps now.
fn naps(name: &str) -> Option<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads can be listed");
    let statuses = tasks.flatten().filter_map(|t| fs::read_to_string(t.path().join("status")).ok());
    let named = |status: &String| status.lines().next() == Some(&format!("Name:\t{name}"));
    let status = statuses.into_iter().find(named)?;
    let line = |start: &str| status.lines().find(|line| line.starts_with(start));
    line("State:")?.contains("sleeping").then(|| line("voluntary_ctxt").map(str::to_owned))?
}

/// Counts the threads of this process by name. The kernel keeps 15 bytes of a
/// name. Other tests of the same binary run beside the caller, so a test that
/// counts threads or descriptors has a binary, or a child process, of its own.
pub fn threads() -> BTreeMap<String, usize> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads can be listed");
    let mut counts = BTreeMap::new();
    for task in tasks.flatten() {
        // A thread may end between the listing and this look.
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

/// Lists what this process's open descriptors lead to, sorted, for instance
/// `socket:[4711]`.
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
