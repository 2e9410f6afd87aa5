//! Locks that leasehold shares with Redisson, which runs in a Java process.

use leasehold_harness as harness;

mod facts_of_synchronizers;
mod java;
mod redisson;
mod redisson_topologies;
mod semaphores;
mod shared;
