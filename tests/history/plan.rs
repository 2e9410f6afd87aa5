//! What one run is.

use super::nemesis::Fault;
use super::worker::Kind;
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
    pub layout: Layout,
    /// From which the faults, and what the workers do, follow.
    pub seed: u64,
    /// For how long faults are injected.
    pub span: Duration,
    pub faults: &'static [Fault],
    pub work: Work,
}

/// What workers do, and with which settings.
#[derive(Clone, Debug)]
pub struct Work {
    pub workers: usize,
    /// Threads of each.
    pub threads: usize,
    pub kinds: Vec<Kind>,
    /// How many locks there are of each kind.
    pub locks: u64,
    /// How long a hold lasts at most, but for some that are long.
    pub longest: Duration,
    /// How many of a hundred holds have a fixed lease and are kept until it is over.
    pub kept_to_the_end: u8,
    /// How long a lease is that is renewed, of the workers one after the other.
    pub leases: [Duration; 2],
    pub poll_bound: Duration,
    pub response_timeout: Duration,
    /// Whether the store looks at fencing tokens.
    pub fenced: bool,
    /// The fault that the workers' own code is to have (`script/seeded`).
    pub seeded: Option<&'static str>,
}

impl Layout {
    /// The kinds of lock that make sense there, and the way to write each down.
    fn kinds(self) -> Vec<Kind> {
        match self {
            Layout::Five => vec![Kind::Red],
            // Fenced ones twice: only they can be checked to the end.
            Layout::One | Layout::Sentinel | Layout::Cluster => {
                vec![Kind::Fenced, Kind::Fenced, Kind::Plain, Kind::Fair, Kind::Rw]
            }
        }
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
            longest: Duration::from_millis(30),
            kept_to_the_end: 5,
            // The second outlasts a fail-over.
            leases: [Duration::from_millis(1500), Duration::from_secs(6)],
            poll_bound: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            fenced: true,
            seeded: None,
        };
        Plan { layout, seed, span, faults: Fault::of(layout), work }
    }
}
