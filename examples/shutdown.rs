//! How do I stop cleanly?
//!
//! `cargo run --example shutdown` starts a Redis of its own (or uses `REDIS_URL`).
//!
//! `close()` ends the waits of all threads, so that they can end themselves. Who
//! holds a lock at that moment finishes and releases it as ever: only renewals have
//! ended, so it has until the end of its lease.

mod support;

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::Client;

const NAME: &str = "example:shutdown";

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let client = Client::open(server.url())?;

    // One thread holds the lock and is in the middle of its work.
    let (holds, held) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let holder = thread::spawn({
        let lock = client.lock(NAME);
        move || {
            let guard = lock.lock()?;
            println!("holder    has the lock, and works");
            let _ = holds.send(());
            let _ = finished.recv();
            guard.check()?;
            println!("holder    finishes its work, its lock is still valid");
            guard.unlock()
        }
    });
    held.recv()?;

    // Others wait for it.
    let waiters: Vec<_> = (1..=3)
        .map(|number| {
            let lock = client.lock(NAME);
            thread::spawn(move || {
                println!("waiter {number}  waits");
                lock.lock().map(drop).inspect_err(|error| println!("waiter {number}  {error}"))
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(200)); // the service runs, then SIGTERM comes

    client.close();
    println!("main      closed the client");
    for waiter in waiters {
        let error = waiter.join().expect("no waiter panics").expect_err("it was closed");
        assert!(error.is_closed());
    }
    let error = client.lock(NAME).lock().expect_err("it is closed for newcomers, too");
    assert!(error.is_closed());

    // The guard that is left does its last work and releases.
    finish.send(())?;
    holder.join().expect("the holder does not panic")?;

    let left: bool = redis::cmd("EXISTS").arg(NAME).query(&mut connection(server.url())?)?;
    assert!(!left);
    println!("main      nothing is left in Redis");
    Ok(())
}

fn connection(url: &str) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(url)?.get_connection()
}
