//! The kinds of faults, and where each makes sense.

use super::plan::Layout;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: how all is when it is well belongs to a history too.
    Quiet,
    /// A worker is killed; another comes in its place.
    KillWorker,
    /// A worker stands still.
    StopWorker,
    /// Nothing passes between a worker and the servers; it passes later.
    CutOffWorker,
    /// What a worker sends arrives later: some of it when its hold is over, or another's.
    LateRequests,
    /// Nothing passes to those that listen.
    CutOffSubscribers,
    /// What a worker asks is done, and it hears of it later.
    LateReplies,
    /// Connections stay open, and nothing passes any more.
    HalfOpen,
    DelayReplies,
    /// Connections close in the middle of a reply, or of a request.
    CutReplies,
    CutRequests,
    /// `CLIENT KILL`.
    KillConnections,
    KillSubscribers,
    /// `SCRIPT FLUSH`.
    FlushScripts,
    /// No command that takes memory is executed.
    FullServer,
    /// One server, or several of five, stands still for a while.
    StopServers,
    /// It is killed and comes back with all that it has acknowledged.
    KillServers,
    /// It comes back empty.
    EmptyServer,
    /// Its clock steps, and later steps back.
    MoveClock,
    /// Another takes a master's place: as planned; because the master was killed, stands
    /// still, or is cut off with a worker and a minority.
    FailOver,
    KillMaster,
    StopMaster,
    CutOffMaster,
    StopReplica,
    KillReplica,
    StopSentinel,
    KillSentinel,
    /// A slot moves to another node.
    MoveSlot,
}

impl Fault {
    pub const CLIENTS: [Fault; 5] = [
        Fault::KillWorker,
        Fault::StopWorker,
        Fault::CutOffWorker,
        Fault::LateRequests,
        Fault::LateReplies,
    ];

    /// Those of the ways between workers and servers.
    const WAYS: [Fault; 4] =
        [Fault::HalfOpen, Fault::DelayReplies, Fault::CutReplies, Fault::CutRequests];

    /// Those from which nobody else's wait is to suffer.
    pub const UNFELT: [Fault; 7] = [
        Fault::Quiet,
        Fault::CutOffSubscribers,
        Fault::KillConnections,
        Fault::KillSubscribers,
        Fault::FlushScripts,
        Fault::KillWorker,
        Fault::StopWorker,
    ];

    /// Those that make sense in a layout. (Those of workers come by themselves and beside
    /// others.)
    pub fn of(layout: Layout) -> Vec<Fault> {
        use Fault::*;
        let there: &[Fault] = match layout {
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
        [there, &Fault::WAYS, &Fault::UNFELT, &late].concat()
    }

    /// Whether it has another serve in a master's place.
    pub fn is_of_masters(self) -> bool {
        use Fault::*;
        matches!(self, FailOver | KillMaster | StopMaster | CutOffMaster)
    }

    pub fn is_of_clients(self) -> bool {
        Fault::CLIENTS.contains(&self)
    }
}
