//! The JSON of locks: all facts of the library, and ages.

use leasehold::{HolderInfo, LockInfo};
use serde::Serialize;

use super::text::age;

/// One lock: an element of `ls --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LockView<'a> {
    name: &'a str,
    kind: &'a str,
    holders: Vec<CallerView<'a>>,
    /// The age of the oldest hold, in seconds.
    age: Option<f64>,
    /// The remaining lease, in seconds.
    remaining: Option<f64>,
    waiting: WaitingView<'a>,
    token: Option<u64>,
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
            age: lock.holders().iter().filter_map(age).reduce(f64::max),
            remaining: lock.remaining().map(|left| left.as_secs_f64()),
            waiting: WaitingView {
                processes: lock.waiting().processes(),
                queue: callers(lock.waiting().queue()),
            },
            token: lock.token(),
        }
    }
}

fn callers(callers: &[HolderInfo]) -> Vec<CallerView<'_>> {
    callers.iter().map(|facts| CallerView { facts, age: age(facts) }).collect()
}
