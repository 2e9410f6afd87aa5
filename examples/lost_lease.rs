//! How do I notice that my lock is gone?
//!
//! `cargo run --example lost_lease` starts a Redis of its own (or uses `REDIS_URL`).
//!
//! A lease can end before its guard: a fixed one runs out, somebody frees the lock by
//! hand, the process was stopped for too long. Then another may hold the lock, and the
//! holder must know before it does what must not be done twice.

mod support;

use std::error::Error;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use leasehold::{Client, Events, Lost};

/// Long enough for whatever this example waits for.
const LONG: Duration = Duration::from_secs(30);

/// Tells of every lost lock: for logs and alarms, wherever the guard may be.
struct Alarm(Sender<Lost>);

impl Events for Alarm {
    fn lost(&self, event: &Lost) {
        let _ = self.0.send(event.clone());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let (alarm, alarms) = mpsc::channel();
    let client = Client::builder()
        .single(server.url())
        .watchdog_timeout(Duration::from_secs(1))
        .events(Alarm(alarm))
        .build()?;
    let lock = client.lock("example:lost_lease");

    // check(): costs no round trip, so ask before every step that counts.
    let guard = lock.clone().with_lease(Duration::from_millis(200)).lock()?;
    guard.check()?;
    println!("a fixed lease:     held, {:.0?} left", guard.remaining());
    assert!(guard.wait_lost(LONG)); // stands for work that takes too long
    let error = guard.check().expect_err("the lease has run out");
    assert!(error.is_lost() && !guard.is_held());
    println!("  check():         {error}");
    println!("  the lost event:  {:?}", alarms.recv_timeout(LONG)?.reason);
    drop(guard); // does nothing: whoever holds the lock now keeps it

    // wait_lost(): the watchdog renews this one, until somebody frees it by hand.
    let guard = lock.lock()?;
    println!("a renewed lease:   held, {:.0?} left", guard.remaining());
    assert!(!guard.wait_lost(Duration::from_millis(1500))); // longer than the lease
    println!("  1.5 s later:     held, {:.0?} left", guard.remaining());
    let operator = Client::open(server.url())?;
    assert!(operator.lock("example:lost_lease").force_unlock()?);
    assert!(guard.wait_lost(LONG)); // noticed when it would be renewed
    println!("  force_unlock():  lost: {}", !guard.is_held());
    println!("  the lost event:  {:?}", alarms.recv_timeout(LONG)?.reason);
    drop(guard);

    // unlock(): says so too, if nobody looked before.
    let guard = lock.lock()?;
    redis::cmd("DEL").arg(lock.name()).exec(&mut connection(server.url())?)?;
    println!("the key deleted:   is_held() is still {}, nobody has asked yet", guard.is_held());
    let error = guard.unlock().expect_err("there was nothing to release");
    assert!(error.is_lost());
    println!("  unlock():        {error}");

    assert!(!lock.is_locked()?);
    Ok(())
}

fn connection(url: &str) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(url)?.get_connection()
}
