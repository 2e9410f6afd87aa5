//! Simulated machines: everything that happens in them follows from one seed.
//!
//! One OS thread runs all *tasks*: coroutines that take the place of threads. Tasks belong to
//! *processes*, each with its own clock, statics and connections. A process can be paused and
//! killed. Time is virtual: when no task can run, the clock moves to the next event. *Servers* are
//! passive: the network carries bytes to them and takes their answers, and may delay, hold, lose
//! or cut what it carries.
//!
//! | module | takes the place of |
//! | --- | --- |
//! | [`thread`] | `std::thread` |
//! | [`sync`] | `parking_lot`, `std::sync::OnceLock` |
//! | [`channel`] | `crossbeam_channel` |
//! | [`clock`] | the clocks of the system |
//! | [`net`] | sockets, the network, and the servers at its other end |
//! | [`local`] | thread-locals, and the statics of a process |
//! | [`map`] | hash maps: theirs have the same order in each run |
//! | [`process`] | what a process sees of others on its machine |
//! | [`memory`] | the allocator, which counts the memory of each process |
//! | [`world`] | what a test does to all this: a run, processes, faults, the trace |
//!
//! Where a module takes the place of another, its names and signatures are those of the other, as
//! far as leasehold uses them. A switch of tasks happens where a thread would sleep, and at random
//! where it locks a mutex, sends or receives. There a task may also lose the processor for a while,
//! so that packets, timers and faults come between any two steps.

pub mod channel;
pub mod clock;
pub mod local;
pub mod map;
pub mod memory;
pub mod net;
pub mod sync;
pub mod thread;
pub mod world;

/// The id of the first process of a run.
const FIRST: u32 = 1000;

/// Returns the id of the current process, another one for each process of a run.
pub fn process_id() -> u32 {
    FIRST + u32::try_from(world::current_process().index()).unwrap_or(u32::MAX - FIRST)
}

/// The processes of a machine: there are two machines, and each process is on one.
pub mod process {
    use super::{FIRST, world};

    pub fn place() -> Option<String> {
        Some(format!("machine {}", world::current_process().machine()))
    }

    /// Each machine has ids of its own: a process of the other one is unknown here.
    pub fn is_gone(pid: u32, _start: u64) -> bool {
        let process = pid.checked_sub(FIRST).and_then(world::process_with_index);
        process.is_some_and(|it| {
            it.machine() != world::current_process().machine() || world::is_dead(it)
        })
    }

    pub fn is_group_gone(group: u32) -> bool {
        is_gone(group, 0)
    }

    pub fn start(_pid: u32) -> Option<u64> {
        Some(0)
    }
}

/// Returns random bytes that follow from the seed of the run.
pub fn random_bytes() -> [u8; 16] {
    let [first, second] = [world::random(), world::random()].map(u64::to_le_bytes);
    std::array::from_fn(|at| if at < 8 { first[at] } else { second[at - 8] })
}
