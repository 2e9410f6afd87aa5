//! What one run is.

use super::fault::Fault;
use super::worker::Kind;
use std::ops::Range;
use std::time::Duration;

/// Where the locks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One server, which keeps what it acknowledges.
    One,
    /// A master with two replicas and three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
    /// Five servers that know nothing of each other.
    Five,
}

/// One run: everything that decides on it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: &'static str,
    pub layout: Layout,
    /// From which the faults, and what the workers do, follow.
    pub seed: u64,
    /// For how long faults are injected.
    pub span: Duration,
    pub faults: Vec<Fault>,
    /// How long it is quiet before a fault, and how long the fault lasts, in milliseconds.
    pub quiet: Range<u64>,
    pub lasting: Range<u64>,
    /// How soon a free lock is had, where that is sooner than the poll interval.
    pub told_within: Option<Duration>,
    pub work: Work,
}

/// What workers do, and with which settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub workers: usize,
    /// Threads of each.
    pub threads: usize,
    pub kinds: Vec<Kind>,
    /// How many locks there are of each kind.
    pub locks: u64,
    /// For how long these are the locks, but for the first; then there are others. Who is
    /// forgotten beside a lock that nobody uses any more is not woken by chance.
    pub used_for: Duration,
    /// How long a hold lasts at most; and those that are long, which are one in twenty.
    pub longest: [Duration; 2],
    /// How many of a hundred holds have a fixed lease and are kept until it is over.
    pub kept_to_the_end: u8,
    /// How long fixed leases are, in milliseconds.
    pub fixed: Range<u64>,
    /// How long a lease is that is renewed, of the workers one after the other.
    pub leases: [Duration; 2],
    pub poll_interval: Duration,
    pub response_timeout: Duration,
    /// Whether the store looks at fencing tokens.
    pub fenced: bool,
    /// The fault that the workers' own code is to have (`script/seeded`).
    pub seeded: Option<&'static str>,
}

/// Nothing of that length ends in a run.
pub const LONG: Duration = Duration::from_secs(60);

impl Layout {
    /// The kinds of lock that make sense there, and the way to write each down.
    fn kinds(self) -> Vec<Kind> {
        match self {
            Layout::Five => vec![Kind::Red],
            // Fenced ones twice: only they can be checked to the end.
            Layout::One | Layout::Sentinel | Layout::Cluster => {
                vec![Kind::Fenced, Kind::Fenced, Kind::Plain, Kind::Fair, Kind::Rw, Kind::Spin]
            }
        }
    }
}

impl Work {
    /// The shortest that there is.
    pub fn fair_waiter_timeout(&self) -> Duration {
        self.poll_interval * 2
    }
}

impl Plan {
    /// All that this layout can suffer, and all kinds of locks.
    pub fn everything(layout: Layout, seed: u64, span: Duration) -> Plan {
        let work = Work {
            workers: 4,
            threads: 2,
            kinds: layout.kinds(),
            locks: 2,
            used_for: Duration::from_secs(2),
            // The long ones have to be renewed.
            longest: [Duration::from_millis(30), Duration::from_secs(4)],
            kept_to_the_end: 5,
            fixed: 300..1200,
            // The second outlasts a fail-over.
            leases: [Duration::from_secs(3), Duration::from_secs(8)],
            poll_interval: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            fenced: true,
            seeded: None,
        };
        Plan {
            name: "everything",
            layout,
            seed,
            span,
            faults: Fault::of(layout),
            quiet: 300..1500,
            lasting: 300..1500,
            told_within: None,
            work,
        }
    }

    /// Locks that are soon used by nobody else, and faults from which no wait is to suffer: who
    /// is forgotten is found.
    pub fn waits(layout: Layout, seed: u64, span: Duration) -> Plan {
        let all = Plan::everything(layout, seed, span);
        let work = Work {
            used_for: Duration::from_millis(20),
            longest: [Duration::from_millis(4), Duration::from_millis(200)],
            kept_to_the_end: 0,
            ..all.work
        };
        Plan { name: "waits", faults: Fault::UNFELT.to_vec(), work, ..all }
    }

    /// Nobody polls, so every message counts, and every subscription.
    pub fn messages(seed: u64, span: Duration) -> Plan {
        let all = Plan::waits(Layout::One, seed, span);
        let work = Work {
            kinds: vec![Kind::Plain, Kind::Fenced, Kind::Rw],
            locks: 3,
            leases: [LONG; 2],
            poll_interval: LONG,
            ..all.work
        };
        let faults = vec![Fault::Quiet, Fault::KillSubscribers];
        let told_within = Some(Duration::from_secs(1));
        Plan { name: "messages", faults, told_within, work, ..all }
    }
}
