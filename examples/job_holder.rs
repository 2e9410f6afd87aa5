//! How does a job keep its lock when it continues in another process?
//!
//! `cargo run --example job_holder` runs with a server of its own, or uses `REDIS_URL`.

mod support;

use std::error::Error;
use std::time::Duration;

use leasehold::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let lease = Duration::from_secs(60); // no process renews it between the steps

    // The first process begins the job and leaves the lock to the process that continues it.
    let first = Client::open(server.url())?;
    first.lock("example:job").with_holder("job-17").with_lease(lease).lock_owned()?.detach();
    first.close();
    println!("the first step is done");

    // The second process knows the id of the job, and so can enter the lock. Others cannot.
    let second = Client::open(server.url())?;
    assert!(second.lock("example:job").try_lock()?.is_none());
    let lock = second.lock("example:job").with_holder("job-17");
    let guard = lock.try_lock()?.ok_or("job-17 holds it")?;
    println!("the second step runs under {guard:?}");
    guard.unlock()?; // the count of this step
    lock.unlock()?; // the count of the first step
    assert!(!lock.is_locked()?);
    println!("the job is done and the lock is free");
    Ok(())
}
