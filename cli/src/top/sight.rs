//! [`Sight`]: one lock as a look found it.

use std::time::Duration;

use leasehold::LockInfo;

use crate::observe::snapshot::{Caller, LockSnapshot};

/// A lock as one look found it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sight {
    pub(crate) lock: LockSnapshot,
    /// The remaining lease of the lock; `None` for a free lock too.
    pub(crate) remaining: Option<Duration>,
    /// The number of callers that wait in the processes of the holders.
    pub(crate) local_waiters: u64,
    /// The last fencing token.
    pub(crate) token: Option<u64>,
}

impl Sight {
    /// Returns a lock without holders and waiting callers, and without a known kind.
    pub(crate) fn free(name: &str) -> Sight {
        let lock = LockSnapshot { name: name.to_owned(), ..LockSnapshot::default() };
        Sight { lock, ..Sight::default() }
    }

    /// Returns whether nobody holds the lock, and nothing keeps it.
    pub(crate) fn is_free(&self) -> bool {
        self.lock.holders.is_empty() && self.remaining.is_none()
    }

    /// Returns the start of the oldest hold, in seconds since 1970.
    pub(crate) fn since(&self) -> Option<f64> {
        self.lock.holders.iter().filter_map(|holder| holder.since).min_by(f64::total_cmp)
    }

    /// Returns the number of waiting callers, as far as it is known.
    ///
    /// Without a queue, the waiting processes, and the waiting callers of the holders' processes.
    pub(crate) fn waiters(&self) -> u64 {
        match self.lock.queue.len() as u64 {
            0 => self.lock.processes + self.local_waiters,
            count => count,
        }
    }

    /// Returns whether a fact about the lock contains the text, which is in lower case.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let lock = &self.lock;
        let has = |fact: &str| fact.to_lowercase().contains(text);
        let mut facts = lock.holders.iter().flat_map(facts);
        has(&lock.name) || has(&lock.kind) || facts.any(|fact| has(&fact))
    }
}

/// Returns the texts that a filter finds a holder by.
fn facts(holder: &Caller) -> impl Iterator<Item = String> {
    let texts = [&holder.host, &holder.program, &holder.label, &holder.thread];
    let pid = holder.pid.map(|pid| pid.to_string());
    texts.into_iter().flatten().cloned().chain(pid)
}

impl From<&LockInfo> for Sight {
    fn from(info: &LockInfo) -> Sight {
        // Several holders in one process count the same waiting callers.
        let local_waiters = info.holders().iter().filter_map(|holder| holder.local_waiters()).max();
        Sight {
            lock: LockSnapshot::of(info),
            remaining: info.remaining(),
            local_waiters: local_waiters.unwrap_or(0),
            token: info.token(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_or_the_processes_and_local_callers_wait() {
        let mut sight = Sight::free("a");
        (sight.lock.processes, sight.local_waiters) = (2, 3);
        assert_eq!(sight.waiters(), 5);
        sight.lock.queue = vec![Caller::default()];
        assert_eq!(sight.waiters(), 1);
    }

    #[test]
    fn a_filter_finds_every_fact() {
        let text = |text: &str| Some(text.to_owned());
        let holder = Caller {
            host: text("web-1"),
            pid: Some(4711),
            program: text("billing"),
            label: text("Blue"),
            thread: text("worker"),
            ..Caller::default()
        };
        let mut sight = Sight::free("Orders:42");
        sight.lock.kind = "fair lock".to_owned();
        sight.lock.holders = vec![holder];
        for found in ["orders", "fair", "web-1", "4711", "billing", "blue", "worker", ""] {
            assert!(sight.matches(found), "{found}");
        }
        assert!(!sight.matches("green"));
    }
}
