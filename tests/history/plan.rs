//! The plan of a run: servers, faults and work.

use crate::fault::Fault;
use crate::kind::Kind;
use std::ops::Range;
use std::time::Duration;

/// The servers that have the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One server, which keeps acknowledged data across restarts.
    One,
    /// A master with two replicas and three sentinels.
    Sentinel,
    /// A cluster of three masters with a replica each.
    Cluster,
    /// Five independent servers.
    Five,
}

/// Everything that defines a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: &'static str,
    pub layout: Layout,
    /// The seed of the faults and of the choices of the workers.
    pub seed: u64,
    /// How long faults are injected.
    pub span: Duration,
    pub faults: Vec<Fault>,
    /// The length of the pause before a fault, in milliseconds.
    pub quiet: Range<u64>,
    /// The length of a fault, in milliseconds.
    pub lasting: Range<u64>,
    /// Percentage of faults during which another one begins. Only the simulation does so.
    pub overlapping: u8,
    /// The longest wait for a message about a free lock, if shorter than the poll interval.
    pub woken_within: Option<Duration>,
    pub work: Work,
}

/// The work and the settings of the workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub workers: usize,
    /// The number of threads of each worker.
    pub threads: usize,
    pub kinds: Vec<Kind>,
    /// The number of locks of each kind.
    pub locks: u64,
    /// The longest pause of a thread between two attempts.
    pub pause: Duration,
    /// How long a lock is used before another replaces it. The first lock of a kind stays.
    ///
    /// A waiter that missed a message is not woken by chance if no other caller uses its lock.
    pub used_for: Duration,
    /// The longest hold, and the longest of the long holds, which are one in twenty.
    pub longest: [Duration; 2],
    /// How often a holder checks its hold.
    pub checked: Duration,
    /// Percentage of holds with a fixed lease that are kept until the lease ends.
    pub kept_to_the_end: u8,
    /// Percentage of requests with a longest hold, and of requests with a minimum hold.
    pub limited: u8,
    /// Percentage of requests to semaphores that ask for more than one permit.
    pub large: u8,
    /// Percentage of turns at a lock that only ask whether it is held, of readers of an election
    /// that observe it briefly before, and of holds with a fixed lease that are extended.
    pub asked: u8,
    pub extended: u8,
    /// Percentage of turns at a semaphore that change its capacity.
    pub resized: u8,
    /// The length of fixed leases, in milliseconds.
    pub fixed: Range<u64>,
    /// The length of renewed leases, alternating between the workers.
    pub leases: [Duration; 2],
    /// The length of the renewed leases of all handles, as a percentage of that of their client.
    pub renewed: u8,
    /// The linger time of half of the requests, as a percentage of their renewed lease: at most 50.
    pub lingering: u8,
    /// Whether the holds of a worker end with its process.
    pub mortal: bool,
    pub poll_interval: Duration,
    pub response_timeout: Duration,
    /// The number of replicas that acknowledge each hold.
    pub min_replicas: u32,
    /// Whether the store checks fencing tokens.
    pub fenced: bool,
    /// Whether locks are watched too, and the events and the statistics of clients are checked.
    pub told: bool,
}

/// How much earlier a waiter for a queue lock counts as arrived, per unit of weight.
pub const WEIGHT_STEP: Duration = Duration::from_millis(200);

/// The longest waits of calls that wait, in milliseconds.
pub const MAX_WAIT: Range<u64> = 500..6000;

/// Longer than any run.
pub const LONG: Duration = Duration::from_secs(60);

impl Layout {
    /// Returns the kinds of locks that these servers support.
    fn kinds(self) -> Vec<Kind> {
        match self {
            Layout::Five => vec![Kind::Red],
            // Twice the locks with tokens, because only their updates are checked in the store.
            Layout::One | Layout::Sentinel | Layout::Cluster => [
                &[Kind::Fenced, Kind::Fenced, Kind::Queued, Kind::Queued][..],
                &[Kind::Election, Kind::Election],
                &[Kind::Plain, Kind::Fair, Kind::Rw, Kind::Spin],
                &[Kind::Semaphore, Kind::Semaphore, Kind::Count, Kind::Count],
                &[Kind::Latch, Kind::Latch],
            ]
            .concat(),
        }
    }
}

impl Work {
    /// Returns the longest grant lease of the workers.
    pub fn grant_lease(&self) -> Duration {
        (self.poll_interval * 3).max(Duration::from_secs(2))
    }

    /// Returns how long a call waits for replicas.
    pub fn replica_timeout(&self) -> Duration {
        self.response_timeout / 2
    }

    /// Returns the time within which a call has its reply.
    pub fn reply_time(&self) -> Duration {
        let replicas = if self.min_replicas > 0 { self.replica_timeout() } else { Duration::ZERO };
        self.response_timeout + replicas
    }

    /// Returns the shortest permitted time-out.
    pub fn fair_waiter_timeout(&self) -> Duration {
        self.poll_interval * 2
    }
}

impl Plan {
    /// Returns the plan with all faults and all kinds of locks of this layout.
    pub fn everything(layout: Layout, seed: u64, span: Duration) -> Plan {
        let work = Work {
            workers: 4,
            threads: 2,
            kinds: layout.kinds(),
            locks: 2,
            pause: Duration::from_millis(5),
            used_for: Duration::from_secs(2),
            // The long holds need renewals.
            longest: [Duration::from_millis(30), Duration::from_secs(4)],
            checked: Duration::from_millis(2),
            kept_to_the_end: 5,
            limited: 10,
            large: 60,
            // Only seeds with work of their own have these, so that former seeds stay the same.
            asked: 0,
            extended: 0,
            resized: 0,
            fixed: 300..1200,
            // The second lease outlasts a fail-over.
            leases: [Duration::from_secs(3), Duration::from_secs(8)],
            renewed: 100,
            lingering: 0,
            mortal: false,
            poll_interval: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            min_replicas: 0,
            fenced: true,
            told: false,
        };
        Plan {
            name: "everything",
            layout,
            seed,
            span,
            faults: Fault::of(layout, &work.kinds),
            quiet: 300..1500,
            lasting: 300..1500,
            overlapping: 0,
            woken_within: None,
            work,
        }
    }

    /// Returns a plan that finds waiters which missed a message.
    ///
    /// The locks change quickly, and no fault excuses a longer wait.
    pub fn waits(layout: Layout, seed: u64, span: Duration) -> Plan {
        let all = Plan::everything(layout, seed, span);
        let work = Work {
            used_for: Duration::from_millis(20),
            longest: [Duration::from_millis(4), Duration::from_millis(200)],
            kept_to_the_end: 0,
            ..all.work
        };
        Plan { name: "waits", faults: Fault::NO_DELAY.to_vec(), work, ..all }
    }

    /// Returns a plan without polls, in which every message and every subscription counts.
    pub fn messages(seed: u64, span: Duration) -> Plan {
        let all = Plan::waits(Layout::One, seed, span);
        let work = Work {
            kinds: vec![Kind::Plain, Kind::Fenced, Kind::Rw, Kind::Queued],
            locks: 3,
            leases: [LONG; 2],
            poll_interval: LONG,
            ..all.work
        };
        let faults = vec![Fault::Quiet, Fault::KillSubscribers];
        let woken_within = Some(Duration::from_secs(1));
        Plan { name: "messages", faults, woken_within, work, ..all }
    }

    /// Returns a plan for latches, most of which are soon left by the threads that count down.
    ///
    /// Then no round follows, so a waiter that missed the end of its round goes on waiting.
    pub fn latches(layout: Layout, seed: u64, span: Duration) -> Plan {
        let all = Plan::everything(layout, seed, span);
        let work = Work {
            threads: 4,
            kinds: vec![Kind::Latch],
            used_for: Duration::from_millis(300),
            longest: [Duration::from_millis(60), Duration::from_secs(1)],
            poll_interval: Duration::from_millis(300),
            response_timeout: Duration::from_millis(500),
            ..all.work
        };
        Plan { name: "latches", faults: Fault::of(layout, &work.kinds), work, ..all }
    }

    /// Returns a plan of a calm service: the leases that the library has by default, long holds,
    /// long pauses and long faults.
    #[allow(dead_code, reason = "only the simulation has hours")]
    pub fn calm(layout: Layout, seed: u64, span: Duration) -> Plan {
        let all = Plan::everything(layout, seed, span);
        let work = Work {
            pause: Duration::from_secs(20),
            used_for: Duration::from_secs(600),
            longest: [Duration::from_secs(2), Duration::from_secs(90)],
            checked: Duration::from_millis(100),
            fixed: 1000..40_000,
            leases: [Duration::from_secs(10), Duration::from_secs(30)],
            ..all.work
        };
        Plan { name: "calm", quiet: 5000..120_000, lasting: 300..45_000, work, ..all }
    }

    /// Returns a plan for elections. The longest terms outlast the bound of waits.
    pub fn elections(layout: Layout, seed: u64, span: Duration) -> Plan {
        let all = Plan::everything(layout, seed, span);
        let work = Work {
            threads: 3,
            kinds: vec![Kind::Election],
            poll_interval: Duration::from_millis(500),
            ..all.work
        };
        Plan { name: "elections", faults: Fault::of(layout, &work.kinds), work, ..all }
    }

    /// Returns a plan without faults in which many callers queue for one lock.
    pub fn order(layout: Layout, seed: u64, span: Duration) -> Plan {
        let all = Plan::everything(layout, seed, span);
        let work = Work {
            threads: 6,
            kinds: vec![Kind::Queued],
            locks: 1,
            longest: [Duration::from_millis(200); 2],
            kept_to_the_end: 0,
            limited: 0,
            ..all.work
        };
        Plan { name: "order", faults: vec![Fault::Quiet], work, ..all }
    }
}
