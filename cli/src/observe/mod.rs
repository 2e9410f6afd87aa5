//! Events of locks, told by the differences between successive looks.
//!
//! Reading order: [`event`] (the events), [`snapshot`] (a look at locks), [`history`] (what earlier
//! looks have shown about one lock), [`Observer`] (all locks), [`looks`] (the
//! thread that looks).
//! The comparison is pure: it asks no server and reads no clock.

pub(crate) mod event;
mod history;
pub(crate) mod looks;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use event::LockEvent;
use history::{History, Moment};
use snapshot::Look;

/// The number of looks for which a free lock is remembered.
const MEMORY: u64 = 64;

/// The rest of a server after a look, in durations of the work of the look.
const REST: u32 = 19;

/// The longest rest: clocks of computers end.
const LONGEST_REST: Duration = Duration::from_secs(24 * 3600);

/// Returns the rest that a server has after this work of a look. So the looks take 5 % of its time.
pub(crate) fn rest_after(work: Duration) -> Duration {
    work.saturating_mul(REST).min(LONGEST_REST)
}

/// Compares successive looks at locks, and tells the events between them.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    locks: BTreeMap<String, History>,
    looks: u64,
    /// The beginning of the look before.
    before: Option<f64>,
    /// The locks of unknown state, each with the beginning of the last look before.
    unknown: BTreeMap<String, Option<f64>>,
}

impl Observer {
    /// Notes that the next looks have a lock with this name too.
    ///
    /// The first of them tells the events of this lock since `before`, in seconds since 1970.
    pub(crate) fn add(&mut self, name: &str, before: f64) {
        if self.before.is_some() && !self.locks.contains_key(name) {
            self.unknown.insert(name.to_owned(), Some(before));
        }
    }

    /// Returns the events since the look before, in the order of their times.
    ///
    /// The first look gives the present holders and queues, as `acquired` and `waiting`. A lock
    /// that the look does not have is free. A lock of unknown state has no events; the next look
    /// that knows the state is compared with the last one that did.
    pub(crate) fn compare(&mut self, look: &Look) -> Vec<LockEvent> {
        self.looks += 1;
        for name in &look.unknown {
            self.unknown.entry(name.clone()).or_insert(self.before);
        }
        let (unknown, before) = (std::mem::take(&mut self.unknown), self.before);
        let moment = |name: &String| {
            let before = unknown.get(name).copied().unwrap_or(before);
            Moment {
                is_first: before.is_none(),
                earliest: before.unwrap_or(look.begun).min(look.begun),
                begun: look.begun,
                ended: look.ended,
            }
        };
        let mut events = Vec::new();
        for lock in &look.locks {
            if !self.locks.contains_key(&lock.name) {
                self.locks.insert(lock.name.clone(), History::new(&lock.name));
            }
            let Some(history) = self.locks.get_mut(&lock.name) else { continue };
            history.last_seen = self.looks;
            events.append(&mut history.compare(Some(lock), &moment(&lock.name)));
        }
        for (name, history) in &mut self.locks {
            if history.last_seen != self.looks && !look.unknown.contains(name) {
                events.append(&mut history.compare(None, &moment(name)));
            }
        }
        self.unknown = unknown;
        self.unknown.retain(|name, _| look.unknown.contains(name));
        let looks = self.looks;
        let is_recent = |history: &History| looks - history.last_seen < MEMORY;
        self.locks.retain(|_, history| history.is_active() || is_recent(history));
        self.before = Some(look.begun);
        events.sort_by(|a, b| a.at.total_cmp(&b.at));
        events
    }
}
