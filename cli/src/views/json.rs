//! The JSON of locks: all facts of the library, and ages.

use leasehold::{HolderInfo, LockInfo, WaitingInfo};
use serde::Serialize;

use super::text::age;

/// One lock, or a semaphore with permits in use: an element of `ls --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LockView<'a> {
    name: &'a str,
    kind: &'a str,
    holders: Vec<CallerView<'a>>,
    former_holder: Option<CallerView<'a>>,
    /// The age of the oldest hold, in seconds.
    age: Option<f64>,
    /// The remaining lease, in seconds.
    remaining: Option<f64>,
    waiting: WaitingView<'a>,
    token: Option<u64>,
    leader_value: Option<&'a str>,
    in_use: Option<u64>,
    permits: Option<i64>,
}

/// A holder, or a caller in a queue.
#[derive(Debug, Serialize)]
struct CallerView<'a> {
    #[serde(flatten)]
    facts: &'a HolderInfo,
    /// The age of the hold or the wait, in seconds.
    age: Option<f64>,
}

#[derive(Debug, Serialize)]
struct WaitingView<'a> {
    processes: u64,
    queue: Vec<CallerView<'a>>,
}

impl<'a> LockView<'a> {
    pub(crate) fn of(lock: &'a LockInfo) -> LockView<'a> {
        LockView {
            name: lock.name(),
            kind: lock.kind(),
            holders: callers(lock.holders()),
            former_holder: lock.former_holder().map(CallerView::of),
            age: oldest(lock.holders()),
            remaining: lock.remaining().map(|left| left.as_secs_f64()),
            waiting: WaitingView::of(lock.waiting()),
            token: lock.token(),
            leader_value: lock.leader_value(),
            in_use: lock.in_use(),
            permits: lock.permits(),
        }
    }
}

impl<'a> CallerView<'a> {
    fn of(facts: &'a HolderInfo) -> CallerView<'a> {
        CallerView { facts, age: age(facts) }
    }
}

impl<'a> WaitingView<'a> {
    fn of(waiting: &'a WaitingInfo) -> WaitingView<'a> {
        WaitingView { processes: waiting.processes(), queue: callers(waiting.queue()) }
    }
}

fn oldest(holders: &[HolderInfo]) -> Option<f64> {
    holders.iter().filter_map(age).reduce(f64::max)
}

fn callers(callers: &[HolderInfo]) -> Vec<CallerView<'_>> {
    callers.iter().map(CallerView::of).collect()
}
