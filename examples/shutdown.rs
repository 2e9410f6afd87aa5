//! How do I shut a service down cleanly?
//!
//! `cargo run --example shutdown` runs with a server of its own, or uses `REDIS_URL`.
//!
//! 1. A `CancelToken` ends the waits, so that the waiting threads can end.
//! 2. A thread that holds a lock finishes its work and releases the lock. The client renews the
//!    lease until then.
//! 3. `close()` comes last: it sends what is still to be sent, and ends the threads of the client.

mod support;

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::{CancelToken, Client};

const NAME: &str = "example:shutdown";

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let client = Client::open(server.url())?;
    let stop = CancelToken::new(); // all calls of the service use it

    // One thread holds the lock and works.
    let (holds, held) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let holder = thread::spawn({
        let lock = client.lock(NAME).with_cancel(&stop);
        move || {
            let guard = lock.lock()?;
            println!("holder    has the lock and works");
            let _ = holds.send(());
            let _ = finished.recv();
            guard.check()?;
            println!("holder    finishes its work, the lease is still valid");
            guard.unlock()
        }
    });
    held.recv()?;

    // Three threads wait for the lock.
    let waiters: Vec<_> = (1..=3)
        .map(|number| {
            let lock = client.lock(NAME).with_cancel(&stop);
            thread::spawn(move || {
                println!("waiter {number}  waits");
                lock.lock().map(drop).inspect_err(|error| println!("waiter {number}  {error}"))
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(200)); // the service runs until it gets SIGTERM

    stop.cancel();
    println!("main      stops: no thread waits or begins any more");
    for waiter in waiters {
        let error = waiter.join().expect("no waiter panics").expect_err("the wait was cancelled");
        assert!(error.is_cancelled());
    }

    // The holder finishes its work and releases the lock.
    finish.send(())?;
    holder.join().expect("the holder does not panic")?;
    client.close();
    println!("main      closed the client");

    let left: bool = redis::cmd("EXISTS").arg(NAME).query(&mut connection(server.url())?)?;
    assert!(!left);
    println!("main      nothing is left in Redis");
    Ok(())
}

fn connection(url: &str) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(url)?.get_connection()
}
