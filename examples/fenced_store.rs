//! What protects a resource from a holder that is paused and loses its lease?
//!
//! `cargo run --example fenced_store` runs with a server of its own, or uses `REDIS_URL`.
//!
//! A lock with a lease cannot protect it, because the pause may come after the last check. The
//! resource can protect itself: it stores the largest fencing token so far and refuses smaller
//! ones.

mod support;

use std::error::Error;
use std::time::Duration;

use leasehold::Client;

/// The resource that the lock protects: a database row, a file, a device.
#[derive(Debug, Default)]
struct Store {
    text: String,
    largest_token: u64,
}

impl Store {
    /// Writes `text`, unless a larger token has written before.
    fn write(&mut self, token: u64, text: &str) -> Result<(), String> {
        if token < self.largest_token {
            return Err(format!(
                "token {token} is stale: token {} has written",
                self.largest_token
            ));
        }
        self.largest_token = token;
        self.text = text.to_owned();
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let (first, second) = (Client::open(server.url())?, Client::open(server.url())?);
    let mut store = Store::default();

    // The first holder is paused right after it has checked its lease.
    let lock = first.fenced_lock("example:fenced_store").with_lease(Duration::from_millis(100));
    let paused = lock.lock()?;
    paused.check()?;
    println!("the first holder has token {} and is paused", paused.token());
    while paused.is_held() {
        std::thread::yield_now(); // stands for the pause, in which the lease expires
    }

    // The second holder gets a larger token, and writes.
    let guard = second.fenced_lock("example:fenced_store").lock()?;
    assert!(guard.token() > paused.token());
    store.write(guard.token(), "by the second holder")?;
    println!("the second holder has token {} and has written", guard.token());
    guard.unlock()?;

    // The first holder continues after its check. The store refuses the write.
    let refused =
        store.write(paused.token(), "by the first holder").expect_err("the token is stale");
    println!("the first holder writes: {refused}");
    assert_eq!(store.text, "by the second holder");
    Ok(())
}
