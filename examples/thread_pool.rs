//! How do I hand a lock to a pool worker?
//!
//! `cargo run --example thread_pool` starts a Redis of its own (or uses `REDIS_URL`).
//!
//! A `Guard` belongs to its thread. An `OwnedGuard` belongs to whoever has it: take
//! the lock where the work comes in, send it along with the work, and drop it where
//! the work ends.

mod support;

use std::error::Error;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use leasehold::{Client, OwnedGuard};

/// Work on one account, and the lock that makes it the only work on that account.
struct Task {
    account: &'static str,
    guard: OwnedGuard,
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let client = Client::open(server.url())?;
    let (sender, queue) = crossbeam_channel::unbounded();
    let pool = [1, 2].map(|number| {
        let queue = queue.clone();
        thread::spawn(move || worker(number, &queue))
    });

    // Blocks while work on the same account is under way, in this process or elsewhere.
    for account in ["alice", "bob", "alice", "bob", "alice"] {
        let guard = client.lock(format!("example:account:{account}")).lock_owned()?;
        println!("main      locked {account}, sends it to the pool");
        sender.send(Task { account, guard })?;
    }
    drop(sender); // no more work: the workers end

    let done = pool.into_iter().map(|worker| worker.join().expect("no worker panics"));
    assert_eq!(done.sum::<Result<u32, _>>()?, 5);
    for account in ["alice", "bob"] {
        assert!(!client.lock(format!("example:account:{account}")).is_locked()?);
    }
    println!("main      all done, all locks are free");
    Ok(())
}

/// Works until there is no more work. How many tasks that were.
fn worker(number: usize, queue: &Receiver<Task>) -> leasehold::Result<u32> {
    let mut done = 0;
    for Task { account, guard } in queue {
        println!("worker {number}  has the lock of {account}");
        thread::sleep(Duration::from_millis(50)); // the work
        guard.check()?; // still ours? then write down the result
        println!("worker {number}  is done with {account}");
        guard.unlock()?; // or drop it; this waits, and says if it went wrong
        done += 1;
    }
    Ok(done)
}
