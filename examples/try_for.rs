//! How do I limit the wait for a lock?
//!
//! `cargo run --example try_for` runs with a server of its own, or uses `REDIS_URL`.
//!
//! A lock that is not free in time is `Ok(None)` and not an error. A wait that another thread
//! cancels is an error, so that `?` leaves the function.

mod support;

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{CancelToken, Client};

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let client = Client::open(server.url())?;
    let elsewhere = Client::open(server.url())?; // as on another machine

    let lock = client.lock("example:try_for");
    let other = elsewhere.lock("example:try_for").lock()?;
    println!("another client holds the lock");

    // Ask once, and do something else if the lock is held.
    assert!(lock.try_lock()?.is_none());
    println!("try_lock:        not free, did not wait");

    // Wait for a limited time.
    let started = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(200))?.is_none());
    assert!(started.elapsed() >= Duration::from_millis(200));
    println!("try_lock_for:    not free within 200 ms, gave up after {:.0?}", started.elapsed());

    // Several steps that share one deadline.
    let deadline = Instant::now() + Duration::from_millis(300);
    for name in ["example:try_for", "example:try_for:too"] {
        let got = lock_by(&client, name, deadline)?;
        println!("try_lock_until:  {name}: {}", if got { "got it" } else { "not free in time" });
        assert_eq!(got, name.ends_with("too"));
    }

    // Wait without a limit, until another thread cancels.
    let stop = CancelToken::new();
    let waiter = thread::spawn({
        let lock = lock.clone().with_cancel(&stop);
        move || lock.lock().map(drop)
    });
    thread::sleep(Duration::from_millis(100)); // then the user clicks "cancel"
    stop.cancel();
    let error = waiter.join().expect("the waiter does not panic").expect_err("the lock is held");
    assert!(error.is_cancelled());
    println!("CancelToken:     {error}");

    // A caller that waits gets the lock as soon as it is released.
    let started = Instant::now();
    let waiter = thread::spawn(move || match lock.try_lock_for(Duration::from_secs(30))? {
        Some(guard) => guard.unlock().map(|()| true),
        None => Ok(false),
    });
    thread::sleep(Duration::from_millis(100)); // the other client works
    other.unlock()?;
    assert!(waiter.join().expect("the waiter does not panic")?);
    println!("try_lock_for:    released after 100 ms, got it after {:.0?}", started.elapsed());

    assert!(!client.lock("example:try_for").is_locked()?);
    Ok(())
}

/// Returns whether the lock is acquired by the deadline. A free lock is acquired even later.
fn lock_by(client: &Client, name: &str, deadline: Instant) -> leasehold::Result<bool> {
    let guard = client.lock(name).try_lock_until(deadline)?;
    Ok(guard.is_some())
}
