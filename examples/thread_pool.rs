//! How do I pass a lock to a worker of a thread pool?
//!
//! `cargo run --example thread_pool` runs with a server of its own, or uses `REDIS_URL`.
//!
//! A `Guard` belongs to its thread. An `OwnedGuard` can be sent: take the lock where the work comes
//! in, send the guard with the work, and drop it where the work ends.

mod support;

use std::error::Error;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use leasehold::{Client, OwnedGuard};

/// Work on one account, with the lock that excludes other work on it.
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

    // Blocks while other work on the same account runs, in this process or elsewhere.
    for account in ["alice", "bob", "alice", "bob", "alice"] {
        let guard = client.lock(format!("example:account:{account}")).lock_owned()?;
        println!("main      locked {account}, sends the guard to the pool");
        sender.send(Task { account, guard })?;
    }
    drop(sender); // the workers end when the queue is empty

    let done = pool.into_iter().map(|worker| worker.join().expect("no worker panics"));
    assert_eq!(done.sum::<Result<u32, _>>()?, 5);
    for account in ["alice", "bob"] {
        assert!(!client.lock(format!("example:account:{account}")).is_locked()?);
    }
    println!("main      all work is done, all locks are free");
    Ok(())
}

/// Works until the queue ends. Returns the number of tasks done.
fn worker(number: usize, queue: &Receiver<Task>) -> leasehold::Result<u32> {
    let mut done = 0;
    for Task { account, guard } in queue {
        println!("worker {number}  has the lock of {account}");
        thread::sleep(Duration::from_millis(50)); // the work
        guard.check()?; // still held: now save the result
        println!("worker {number}  is done with {account}");
        guard.unlock()?; // waits for the server; a drop would not
        done += 1;
    }
    Ok(done)
}
