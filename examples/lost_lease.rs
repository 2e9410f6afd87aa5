//! How do I notice that a lock is lost?
//!
//! `cargo run --example lost_lease` runs with a server of its own, or uses `REDIS_URL`.
//!
//! A lease can end before its guard: a fixed lease expires, an operator frees the lock, or the
//! process was stopped for too long. Another caller may then hold the lock, so the holder has to
//! check before each step that must not run twice.

mod support;

use std::error::Error;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use leasehold::{Client, Events, Lost};

/// Longer than anything in this example takes.
const LONG: Duration = Duration::from_secs(30);

/// Reports every lost lock, for logs and alarms.
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

    // check() makes no round trip: call it before every step that counts.
    let guard = lock.clone().with_lease(Duration::from_millis(200)).lock()?;
    guard.check()?;
    println!("a fixed lease:     held, {:.0?} left", guard.remaining());
    assert!(guard.wait_lost(LONG)); // stands for work that takes too long
    let error = guard.check().expect_err("the lease has run out");
    assert!(error.is_lost() && !guard.is_held());
    println!("  check():         {error}");
    println!("  the lost event:  {:?}", alarms.recv_timeout(LONG)?.reason);
    drop(guard); // releases nothing: a later holder keeps the lock

    // wait_lost() blocks. The watchdog renews this lease until an operator frees the lock.
    let guard = lock.lock()?;
    println!("a renewed lease:   held, {:.0?} left", guard.remaining());
    assert!(!guard.wait_lost(Duration::from_millis(1500))); // longer than the lease
    println!("  1.5 s later:     held, {:.0?} left", guard.remaining());
    let operator = Client::open(server.url())?;
    assert!(operator.lock("example:lost_lease").force_unlock()?);
    assert!(guard.wait_lost(LONG)); // noticed at the next renewal
    println!("  force_unlock():  lost: {}", !guard.is_held());
    println!("  the lost event:  {:?}", alarms.recv_timeout(LONG)?.reason);
    drop(guard);

    // unlock() also reports the loss, if no renewal came before.
    let guard = lock.lock()?;
    redis::cmd("DEL").arg(lock.name()).exec(&mut connection(server.url())?)?;
    println!(
        "the key deleted:   is_held() is still {}, until the server is asked",
        guard.is_held()
    );
    let error = guard.unlock().expect_err("there is nothing to release");
    assert!(error.is_lost());
    println!("  unlock():        {error}");

    assert!(!lock.is_locked()?);
    Ok(())
}

fn connection(url: &str) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(url)?.get_connection()
}
