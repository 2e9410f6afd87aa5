//! Tests of the kinds of locks: the promises that all share, and those of each kind.

use leasehold_harness as harness;

mod conformance;
mod election;
mod fair;
mod fenced;
mod holder_ids;
mod keys;
mod latch;
mod linger;
mod multi_lock;
mod once;
mod once_under_faults;
mod plain_semaphore;
mod queued;
mod read_write;
mod red_lock;
mod semaphore;
mod spin;
mod turns;
