//! Allocations per acquisition and release: those of the library and those of the redis crate.
//!
//! The tests count them after a first run, because later runs reuse buffers.

use crate::harness::Server;
use crate::harness::process::alone;
use allocation_counter::measure;
use leasehold::{Client, Lock, Result};
use std::sync::{Arc, Barrier};
use std::thread;

const PAIRS: u64 = 500;

/// Takes and releases the lock `PAIRS` times and returns the allocations of this thread.
fn allocations(lock: &Lock, release: impl Fn(leasehold::Guard) -> Result<()>) -> u64 {
    let pairs = || {
        for _ in 0..PAIRS {
            let guard = lock.lock().expect("the server answers");
            release(guard).expect("the lock is held");
        }
    };
    pairs();
    measure(pairs).count_total
}

/// Allocations per pair beyond one per reply, as counted: command buffers, reply slots, the hold,
/// the receiver of the outcome of a drop.
const PER_DROP: u64 = 4;
const PER_UNLOCK: u64 = 5;

/// Returns the allocations that `pairs` pairs need: those of the library, and those that the redis
/// crate makes to read the replies.
fn needed(server: &Server, pairs: u64, per_pair: u64) -> u64 {
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut connection = client.get_connection().expect("the server answers");
    let ask = redis::cmd("PTTL").arg("nothing").get_packed_command();
    let replies = measure(|| {
        for _ in 0..2 * pairs {
            connection.send_packed_command(&ask).expect("the server answers");
            connection.recv_response().expect("the server answers");
        }
    });
    replies.count_total + per_pair * pairs
}

/// Returns the highest count that passes. A tree or a queue may grow meanwhile.
fn bound(needed: u64) -> u64 {
    needed + needed / 20
}

fn dropped(guard: leasehold::Guard) -> Result<()> {
    drop(guard);
    Ok(())
}

#[test]
fn a_pair_allocates_its_commands_and_replies() -> Result<()> {
    if !alone("allocations::a_pair_allocates_its_commands_and_replies") {
        return Ok(());
    }
    let server = Server::start();
    let client = Client::open(server.url())?;
    let for_drop = needed(&server, PAIRS, PER_DROP);
    assert!(for_drop > PER_DROP * PAIRS, "the allocations of the parser are not counted");
    let lock = client.lock("dropped");
    let dropped = allocations(&lock, dropped);
    assert!(dropped <= bound(for_drop), "{dropped} allocations, {for_drop} are needed");
    let unlocked = allocations(&client.lock("unlocked"), leasehold::Guard::unlock);
    let for_unlock = needed(&server, PAIRS, PER_UNLOCK);
    assert!(unlocked <= bound(for_unlock), "{unlocked} allocations, {for_unlock} are needed");
    Ok(())
}

#[test]
fn a_nested_pair_allocates_nothing() -> Result<()> {
    if !alone("allocations::a_nested_pair_allocates_nothing") {
        return Ok(());
    }
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let _outer = lock.lock()?;
    assert_eq!(allocations(&lock, dropped), 0);
    assert_eq!(allocations(&lock, leasehold::Guard::unlock), 0);
    Ok(())
}

#[test]
fn threads_that_share_connections_allocate_no_more() -> Result<()> {
    if !alone("allocations::threads_that_share_connections_allocate_no_more") {
        return Ok(());
    }
    const THREADS: u64 = 8;
    let server = Server::start();
    let client = Client::builder().single(server.url()).pool_size(2).build()?;
    let begin = Arc::new(Barrier::new(usize::try_from(THREADS).expect("small")));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (lock, begin) = (client.lock(format!("lock:{number}")), Arc::clone(&begin));
            thread::spawn(move || {
                begin.wait();
                allocations(&lock, dropped)
            })
        })
        .collect();
    let counts = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
    let (all, needed) = (counts.sum::<u64>(), needed(&server, THREADS * PAIRS, PER_DROP));
    assert!(all <= bound(needed), "{all} allocations, {needed} are needed");
    Ok(())
}
