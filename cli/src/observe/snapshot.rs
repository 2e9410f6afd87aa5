//! [`Look`]: the state of locks at one moment, in types that a test can make.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{HolderInfo, LockInfo};

/// The held locks at one moment. A lock without a snapshot is free, unless its state is unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The time before the first question to the server, in seconds since 1970.
    pub(crate) begun: f64,
    /// The time after the last answer.
    pub(crate) ended: f64,
    pub(crate) locks: Vec<LockSnapshot>,
    /// The names of the locks whose server has not answered.
    pub(crate) unknown: BTreeSet<String>,
}

/// One held lock.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LockSnapshot {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) holders: Vec<Caller>,
    /// The former holder whose minimum keeps the lock taken.
    pub(crate) former_holder: Option<Caller>,
    /// The waiting callers, for kinds with a queue on the server.
    pub(crate) queue: Vec<Caller>,
    /// The number of waiting processes, for the other kinds.
    pub(crate) processes: u64,
    /// The last fencing token, for kinds with tokens.
    pub(crate) token: Option<u64>,
}

/// A holder, or a caller in a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Caller {
    pub(crate) owner: String,
    pub(crate) client_id: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) thread: Option<String>,
    pub(crate) thread_number: Option<u64>,
    /// The beginning of the hold or wait, in seconds since 1970.
    pub(crate) since: Option<f64>,
    /// Whether the hold lingers: nobody has it.
    pub(crate) is_idle: bool,
    /// The remaining lease, in seconds.
    pub(crate) remaining: Option<f64>,
    /// The number of holds that the client has had so far.
    pub(crate) acquired: Option<u64>,
}

/// The state of each lock, in the order of the names; an error if it is unknown.
pub(crate) type States = Vec<leasehold::Result<Option<LockInfo>>>;

impl Look {
    /// Takes a look at locks with these names: runs `ask` between two readings of the clock.
    ///
    /// An error that is not retryable is an error of the look.
    pub(crate) fn take(
        names: &[String],
        ask: impl FnOnce() -> leasehold::Result<States>,
    ) -> leasehold::Result<(Look, States)> {
        let begun = now();
        let states = ask()?;
        let mut look = Look { begun, ended: now().max(begun), ..Look::default() };
        for (name, state) in names.iter().zip(&states) {
            match state {
                Ok(lock) => look.locks.extend(lock.as_ref().map(LockSnapshot::of)),
                Err(error) if error.is_retryable() => drop(look.unknown.insert(name.clone())),
                Err(error) => return Err(error.clone()),
            }
        }
        Ok((look, states))
    }
}

impl LockSnapshot {
    /// Returns whether a client has one hold of the lock at most.
    pub(super) fn is_exclusive(&self) -> bool {
        let shared = ["read lock", "write lock", "lock of a named holder", "semaphore"];
        !shared.contains(&&*self.kind)
    }

    pub(crate) fn of(lock: &LockInfo) -> LockSnapshot {
        let queue = lock.waiting().queue();
        // A lease that ended belongs to a reader of a lock that other readers keep.
        let holders = lock.holders().iter().filter(|it| it.remaining() != Some(Duration::ZERO));
        LockSnapshot {
            name: lock.name().to_owned(),
            kind: lock.kind().to_owned(),
            holders: holders.map(Caller::of).collect(),
            former_holder: lock.former_holder().map(Caller::of),
            queue: queue.iter().map(Caller::of).collect(),
            processes: if queue.is_empty() { lock.waiting().processes() } else { 0 },
            token: lock.token(),
        }
    }
}

impl Caller {
    fn of(holder: &HolderInfo) -> Caller {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Caller {
            owner: holder.owner().to_owned(),
            client_id: holder.client_id().map(|id| id.to_string()),
            host: text(holder.host()),
            pid: holder.pid(),
            program: text(holder.program()),
            label: text(holder.label()),
            thread: text(holder.thread()),
            thread_number: holder.thread_number(),
            since: holder.since().map(since_1970),
            is_idle: holder.is_idle(),
            remaining: holder.remaining().map(|left| left.as_secs_f64()),
            acquired: holder.acquired(),
        }
    }

    /// Returns whether this is the hold, or the wait, `other`.
    ///
    /// The holds of a named holder have one owner, and their clients differ.
    pub(super) fn is(&self, other: &Caller) -> bool {
        self.owner == other.owner && self.client_id == other.client_id
    }

    /// Returns whether the hold has passed to another thread of the process since `before`.
    ///
    /// Counts of holds tell this only if the client can have one hold of the lock at a time, and if
    /// its process knew of the hold before: right after a grant the process may not count it yet.
    pub(super) fn is_handed_off(&self, before: &Caller, is_exclusive: bool) -> bool {
        let changed = |new: Option<u64>, old: Option<u64>| Some(new? != old?);
        let counts = is_exclusive && before.thread_number.is_some();
        let by_count = changed(self.acquired, before.acquired).filter(|_| counts);
        let by_thread = changed(self.thread_number, before.thread_number);
        by_count == Some(true) || by_thread == Some(true)
    }

    /// Returns the beginning of the hold, if the process has told it itself.
    pub(super) fn told_since(&self) -> Option<f64> {
        self.since.filter(|_| self.thread_number.is_some())
    }

    /// Takes the facts of a later look. Keeps those that this look does not have.
    pub(super) fn update(&mut self, later: &Caller) {
        let before = std::mem::replace(self, later.clone());
        self.host = self.host.take().or(before.host);
        self.pid = self.pid.or(before.pid);
        self.program = self.program.take().or(before.program);
        self.label = self.label.take().or(before.label);
        if self.thread_number.is_none() {
            self.thread = before.thread;
            self.thread_number = before.thread_number;
            self.is_idle = before.is_idle;
            self.since = before.since.or(self.since);
        }
        self.acquired = self.acquired.or(before.acquired);
    }
}

/// Returns the present time, in seconds since 1970. All times of looks come from here.
pub(crate) fn now() -> f64 {
    since_1970(SystemTime::now())
}

/// Returns a time in seconds since 1970.
pub(crate) fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
