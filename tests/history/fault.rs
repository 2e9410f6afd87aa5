//! The faults, and the layouts in which each can be injected.

use crate::kind::Kind;
use crate::plan::Layout;

/// The size of the step of a clock, in milliseconds.
pub const STEP: u64 = 3000;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault. A history also covers undisturbed times.
    Quiet,
    /// A worker is killed, and another process replaces it.
    KillWorker,
    /// A worker is stopped (`SIGSTOP`).
    StopWorker,
    /// All bytes between a worker and the servers are held back until the fault ends.
    CutOffWorker,
    /// The requests of a worker are held back. Some arrive after their hold has ended.
    LateRequests,
    /// All bytes to and from subscribers are held back until the fault ends.
    CutOffSubscribers,
    /// The replies to a worker are held back until the fault ends.
    LateReplies,
    /// Connections stay open, and all bytes are dropped.
    HalfOpen,
    DelayReplies,
    /// Connections close in the middle of a reply.
    CutReplies,
    /// Connections close in the middle of a request.
    CutRequests,
    /// `CLIENT KILL`.
    KillConnections,
    KillSubscribers,
    /// `SCRIPT FLUSH`.
    FlushScripts,
    /// Somebody deletes the key of a lock in use.
    DeleteLock,
    /// Another client releases a lock in use by force.
    ForceUnlock,
    /// Servers refuse all commands that need memory.
    FullServer,
    /// Servers refuse all writes, because they have too few replicas. Only seeds with work of their
    /// own have it.
    LackReplicas,
    /// One server, or several of five, is stopped for a while.
    StopServers,
    /// Servers are killed and restart with all acknowledged data.
    KillServers,
    /// Servers are killed and restart without data.
    EmptyServer,
    /// The clocks of servers step, and later step back.
    MoveClock,
    /// A replica replaces a master by a planned fail-over.
    FailOver,
    /// A replica replaces a killed master.
    KillMaster,
    /// A replica replaces a stopped master.
    StopMaster,
    /// A replica replaces a master that is cut off with a worker and a minority.
    CutOffMaster,
    StopReplica,
    KillReplica,
    StopSentinel,
    KillSentinel,
    /// A slot moves to another node.
    MoveSlot,
}

impl Fault {
    /// Faults of a single worker.
    pub const CLIENTS: [Fault; 5] = [
        Fault::KillWorker,
        Fault::StopWorker,
        Fault::CutOffWorker,
        Fault::LateRequests,
        Fault::LateReplies,
    ];

    /// Faults of the connections between workers and servers.
    const CONNECTIONS: [Fault; 4] =
        [Fault::HalfOpen, Fault::DelayReplies, Fault::CutReplies, Fault::CutRequests];

    /// Faults of single locks.
    pub const LOCKS: [Fault; 2] = [Fault::DeleteLock, Fault::ForceUnlock];

    /// Faults that excuse no delay of other workers.
    pub const NO_DELAY: [Fault; 7] = [
        Fault::Quiet,
        Fault::CutOffSubscribers,
        Fault::KillConnections,
        Fault::KillSubscribers,
        Fault::FlushScripts,
        Fault::KillWorker,
        Fault::StopWorker,
    ];

    /// Returns the faults of a layout with locks of these kinds. Faults of workers come alone and
    /// beside other faults.
    pub fn of(layout: Layout, kinds: &[Kind]) -> Vec<Fault> {
        use Fault::*;
        let of_servers: &[Fault] = match layout {
            Layout::One | Layout::Five => {
                &[FullServer, StopServers, KillServers, EmptyServer, MoveClock]
            }
            Layout::Sentinel => &[
                FailOver,
                KillMaster,
                StopMaster,
                CutOffMaster,
                StopReplica,
                KillReplica,
                StopSentinel,
                KillSentinel,
            ],
            Layout::Cluster => {
                &[FailOver, KillMaster, StopMaster, CutOffMaster, KillReplica, MoveSlot]
            }
        };
        let late = [Fault::CutOffWorker, Fault::LateRequests, Fault::LateReplies];
        let of_locks =
            if kinds.iter().any(|kind| kind.is_one_key()) { &Fault::LOCKS[..] } else { &[] };
        [of_servers, of_locks, &Fault::CONNECTIONS, &Fault::NO_DELAY, &late].concat()
    }

    /// Whether a replica replaces a master.
    pub fn is_of_masters(self) -> bool {
        use Fault::*;
        matches!(self, FailOver | KillMaster | StopMaster | CutOffMaster)
    }

    /// Whether the fault meets a whole process: a server, or a worker.
    #[allow(dead_code, reason = "only real histories leave other faults to the simulation")]
    pub fn is_of_processes(self) -> bool {
        let of_workers = [Fault::KillWorker, Fault::StopWorker, Fault::CutOffWorker];
        self.is_of_servers() || of_workers.contains(&self)
    }

    pub fn is_of_clients(self) -> bool {
        Fault::CLIENTS.contains(&self)
    }

    /// Whether the fault is one of servers, and not of workers, connections or locks.
    fn is_of_servers(self) -> bool {
        let others = [&Fault::CLIENTS[..], &Fault::CONNECTIONS, &Fault::LOCKS, &Fault::NO_DELAY];
        !others.concat().contains(&self)
    }

    /// Whether the fault can begin during another one.
    ///
    /// A release by force needs the servers, and each class has one fault at a time: a second
    /// fail-over would need another replica, and a worker that is killed is not stopped.
    #[allow(dead_code, reason = "only in the simulation do faults overlap")]
    pub fn may_begin_during(self, other: Fault) -> bool {
        let is_of_one_class = (self.is_of_clients() && other.is_of_clients())
            || (self.is_of_servers() && other.is_of_servers());
        let begins_alone = matches!(self, Fault::Quiet | Fault::ForceUnlock);
        self != other && !is_of_one_class && !begins_alone
    }
}
