//! How does a job keep its lock when it goes on in another process?
//!
//! `cargo run --example job_holder` starts a Redis of its own (or uses `REDIS_URL`).

mod support;

use std::error::Error;
use std::time::Duration;

use leasehold::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let lease = Duration::from_secs(60); // between the steps nobody renews it

    // One process begins the job, and leaves the lock to whoever goes on with it.
    let first = Client::open(server.url())?;
    first.lock("example:job").with_holder("job-17").with_lease(lease).lock_owned()?.detach();
    first.close();
    println!("the first step is done");

    // Another knows the job's id, and so holds the lock too. Nobody else does.
    let second = Client::open(server.url())?;
    assert!(second.lock("example:job").try_lock()?.is_none());
    let lock = second.lock("example:job").with_holder("job-17");
    let guard = lock.try_lock()?.ok_or("job-17 holds it")?;
    println!("the second step runs under {guard:?}");
    guard.unlock()?; // its own count
    lock.unlock()?; // that of the first step
    assert!(!lock.is_locked()?);
    println!("the job is done, and the lock is free");
    Ok(())
}
