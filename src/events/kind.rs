//! The kinds of locks and synchronizers, as events name them.

use std::fmt;

/// The kind of a lock or synchronizer in an event. `Display` shows the name, such as `fair lock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The plain lock of [`Client::lock`](crate::Client::lock).
    #[default]
    Plain,
    /// A plain lock with a holder set by [`Lock::with_holder`](crate::Lock::with_holder).
    Named,
    /// The fair lock of [`Client::fair_lock`](crate::Client::fair_lock).
    Fair,
    /// The fenced lock of [`Client::fenced_lock`](crate::Client::fenced_lock).
    Fenced,
    /// The queue lock of [`Client::queue_lock`](crate::Client::queue_lock).
    Queued,
    /// The read side of [`Client::rw_lock`](crate::Client::rw_lock).
    Read,
    /// The write side of [`Client::rw_lock`](crate::Client::rw_lock).
    Write,
    /// The spin lock of [`Client::spin_lock`](crate::Client::spin_lock).
    Spin,
    /// The work of [`Client::once`](crate::Client::once).
    Once,
    /// A [`RedLock`](crate::RedLock).
    Red,
    /// The semaphore of [`Client::semaphore`](crate::Client::semaphore).
    Semaphore,
    /// The semaphore of [`Client::plain_semaphore`](crate::Client::plain_semaphore).
    PlainSemaphore,
    /// The latch of [`Client::latch`](crate::Client::latch).
    Latch,
}

impl Kind {
    /// Returns the name that `Display` shows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Plain => "lock",
            Kind::Named => "lock of a named holder",
            Kind::Fair => "fair lock",
            Kind::Fenced => "fenced lock",
            Kind::Queued => "queue lock",
            Kind::Read => "read lock",
            Kind::Write => "write lock",
            Kind::Spin => "spin lock",
            Kind::Once => "work done once",
            Kind::Red => "red lock",
            Kind::Semaphore => "semaphore",
            Kind::PlainSemaphore => "plain semaphore",
            Kind::Latch => "latch",
        }
    }

    /// Returns the subject of a sentence about a hold, before the name.
    pub(crate) fn subject(self) -> &'static str {
        match self {
            Kind::Semaphore => "a permit of",
            Kind::Once => "the run of",
            _ => "the lock",
        }
    }

    /// Returns the subject of a sentence about a hold, without the name.
    pub(crate) fn bare_subject(self) -> &'static str {
        match self {
            Kind::Semaphore => "the permit",
            Kind::Once => "the run",
            _ => "the lock",
        }
    }

    /// Returns the kind in one word, for labels of metrics.
    pub(crate) fn short_name(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Named => "named",
            Kind::Fair => "fair",
            Kind::Fenced => "fenced",
            Kind::Queued => "queue",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Spin => "spin",
            Kind::Once => "once",
            Kind::Red => "red",
            Kind::Semaphore => "semaphore",
            Kind::PlainSemaphore => "plain_semaphore",
            Kind::Latch => "latch",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
