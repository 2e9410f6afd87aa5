//! [`Sight`]: one lock as a look found it.

use std::time::{Duration, SystemTime};

use leasehold::{HolderInfo, LockInfo};

/// A lock as one look found it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sight {
    pub(crate) name: String,
    /// The kind, such as `fair lock`.
    pub(crate) kind: String,
    pub(crate) holders: Vec<Caller>,
    /// The remaining lease of the lock.
    pub(crate) remaining: Option<Duration>,
    /// The number of clients with waiting callers.
    pub(crate) processes: u64,
    /// The queue of a fair lock or a queue lock.
    pub(crate) queue: Vec<Caller>,
    /// The counter of fenced locks and queue locks.
    pub(crate) token: Option<u64>,
}

/// A holder, or a caller in a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Caller {
    pub(crate) owner: String,
    pub(crate) client: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) thread: Option<String>,
    pub(crate) since: Option<SystemTime>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) count: u64,
    pub(crate) local_waiters: Option<u64>,
    /// The number of holds that the client has had on this lock.
    pub(crate) acquired: Option<u64>,
}

impl Sight {
    /// Returns a lock without holders and waiting callers.
    pub(crate) fn free(name: &str, kind: &str) -> Sight {
        Sight { name: name.to_owned(), kind: kind.to_owned(), ..Sight::default() }
    }

    /// Returns whether nobody holds the lock, and nothing keeps it.
    pub(crate) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.remaining.is_none()
    }

    /// Returns the start of the oldest hold.
    pub(crate) fn since(&self) -> Option<SystemTime> {
        self.holders.iter().filter_map(|holder| holder.since).min()
    }

    /// Returns the number of waiting callers, as far as it is known.
    ///
    /// Without a queue, the waiting processes, and the waiting callers of the holders' processes.
    pub(crate) fn waiters(&self) -> u64 {
        match self.queue.len() as u64 {
            0 => self.processes + self.local_waiters(),
            count => count,
        }
    }

    fn local_waiters(&self) -> u64 {
        self.holders.iter().filter_map(|holder| holder.local_waiters).max().unwrap_or(0)
    }

    /// Returns whether a fact about the lock contains the text, in lower case.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let has = |fact: &str| fact.to_lowercase().contains(text);
        has(&self.name) || has(&self.kind) || self.holders.iter().any(|holder| holder.matches(text))
    }
}

impl Caller {
    fn matches(&self, text: &str) -> bool {
        let facts = [&self.host, &self.program, &self.label, &self.thread];
        let pid = self.pid.map(|pid| pid.to_string());
        let has = |fact: &String| fact.to_lowercase().contains(text);
        facts.into_iter().flatten().chain(&pid).any(has)
    }
}

impl From<&LockInfo> for Sight {
    fn from(info: &LockInfo) -> Sight {
        let waiting = info.waiting();
        Sight {
            name: info.name().to_owned(),
            kind: info.kind().to_owned(),
            holders: info.holders().iter().map(Caller::from).collect(),
            remaining: info.remaining(),
            processes: waiting.processes(),
            queue: waiting.queue().iter().map(Caller::from).collect(),
            token: None,
        }
    }
}

impl From<&HolderInfo> for Caller {
    fn from(info: &HolderInfo) -> Caller {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Caller {
            owner: info.owner().to_owned(),
            client: info.client_id().map(|id| id.to_string()),
            host: owned(info.host()),
            pid: info.pid(),
            program: owned(info.program()),
            label: owned(info.label()),
            thread: owned(info.thread()),
            since: info.since(),
            remaining: info.remaining(),
            count: info.count(),
            local_waiters: info.local_waiters(),
            acquired: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_or_the_processes_and_local_callers_wait() {
        let holder = |local_waiters| Caller { local_waiters, ..Caller::default() };
        let mut sight = Sight { processes: 2, ..Sight::free("a", "lock") };
        assert_eq!(sight.waiters(), 2);
        sight.holders = vec![holder(None), holder(Some(3)), holder(Some(1))];
        assert_eq!(sight.waiters(), 5, "readers of one process have the same local waiters");
        sight.queue = vec![Caller::default()];
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
        let sight = Sight { holders: vec![holder], ..Sight::free("Orders:42", "fair lock") };
        for found in ["orders", "fair", "web-1", "4711", "billing", "blue", "worker", ""] {
            assert!(sight.matches(found), "{found}");
        }
        assert!(!sight.matches("green"));
    }
}
