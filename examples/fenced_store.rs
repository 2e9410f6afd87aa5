//! What if a holder is paused, loses its lease, and goes on as if nothing had happened?
//!
//! `cargo run --example fenced_store` starts a Redis of its own (or uses `REDIS_URL`).
//!
//! No lock with a lease can prevent that. The thing that the lock protects can: it
//! remembers the largest fencing token that it has seen, and refuses who comes with a
//! smaller one.

mod support;

use std::error::Error;
use std::time::Duration;

use leasehold::Client;

/// What the lock protects: a database row, a file, a device.
#[derive(Debug, Default)]
struct Store {
    text: String,
    newest: u64,
}

impl Store {
    /// Writes, unless somebody with a newer token has been here.
    fn write(&mut self, token: u64, text: &str) -> Result<(), String> {
        if token < self.newest {
            return Err(format!("token {token} is stale: {} was here", self.newest));
        }
        self.newest = token;
        self.text = text.to_owned();
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let (slow, quick) = (Client::open(server.url())?, Client::open(server.url())?);
    let mut store = Store::default();

    // A holder that is paused right after it has looked at its lease.
    let lock = slow.fenced_lock("example:fenced_store").with_lease(Duration::from_millis(100));
    let paused = lock.lock()?;
    paused.check()?;
    println!("the first holder has token {}, and is paused", paused.token());
    while paused.is_held() {
        std::thread::yield_now(); // stands for the pause: its lease runs out meanwhile
    }

    // Another gets the lock, with a larger token, and writes.
    let guard = quick.fenced_lock("example:fenced_store").lock()?;
    assert!(guard.token() > paused.token());
    store.write(guard.token(), "by the second holder")?;
    println!("the second holder has token {}, and has written", guard.token());
    guard.unlock()?;

    // The first one wakes up and writes, since it has just checked: the store refuses it.
    let refused = store.write(paused.token(), "by a ghost").expect_err("it is stale");
    println!("the first holder writes: {refused}");
    assert_eq!(store.text, "by the second holder");
    Ok(())
}
