//! The kinds of locks.

use std::fmt;

/// The first capacity of each semaphore. A request asks for one permit up to so many.
pub const CAPACITY: u32 = 3;

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Fenced,
    Fair,
    Rw,
    Spin,
    Queued,
    /// An election: calls win it, work as its leader, read and observe the leader.
    Election,
    Red,
    /// Permits with a lease.
    Semaphore,
    /// Permits of a plain semaphore, which are taken and later given back.
    Count,
    /// A latch: calls set its count, count it down, delete it and wait for it.
    Latch,
    /// Work that is done once: calls run it, commit its result, read it and delete it.
    Once,
}

impl Kind {
    const ALL: [(Kind, &'static str); 12] = [
        (Kind::Plain, "plain"),
        (Kind::Fenced, "fenced"),
        (Kind::Fair, "fair"),
        (Kind::Rw, "rw"),
        (Kind::Spin, "spin"),
        (Kind::Queued, "queued"),
        (Kind::Election, "election"),
        (Kind::Red, "red"),
        (Kind::Semaphore, "semaphore"),
        (Kind::Count, "count"),
        (Kind::Latch, "latch"),
        (Kind::Once, "once"),
    ];

    /// Returns the kind with this name.
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.iter().find(|(_, other)| *other == name).map(|(kind, _)| *kind)
    }

    /// Returns the name of a lock of this kind.
    pub fn lock(self, number: u64) -> String {
        format!("{self}-{number}")
    }

    /// Whether a hold of this kind is one key, apart from what belongs to waiters.
    pub fn is_one_key(self) -> bool {
        use Kind::{Fair, Fenced, Once, Plain, Queued, Rw, Spin};
        matches!(self, Plain | Fenced | Fair | Rw | Spin | Queued | Once)
    }

    /// Whether a call can ask if a lock of this kind is held.
    pub fn is_lock(self) -> bool {
        (self.is_one_key() && self != Kind::Once) || self == Kind::Red
    }

    /// Whether this is a semaphore, whose capacity may change.
    pub fn is_semaphore(self) -> bool {
        matches!(self, Kind::Semaphore | Kind::Count)
    }

    /// Whether this lock may be a member of a multi-lock, whose members show no tokens here.
    pub fn may_join(self) -> bool {
        matches!(self, Kind::Plain | Kind::Rw | Kind::Spin)
    }

    /// Whether holds of this kind may have a fixed lease and a minimum.
    pub fn has_leases(self) -> bool {
        self.has_limits() && self != Kind::Once
    }

    /// Whether holds of this kind may have a longest hold, and a client of their own.
    pub fn has_limits(self) -> bool {
        !matches!(self, Kind::Count | Kind::Latch | Kind::Election)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Kind::ALL.iter().find(|(kind, _)| kind == self).expect("one of all");
        f.write_str(name)
    }
}
