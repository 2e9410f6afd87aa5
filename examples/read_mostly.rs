//! How do many readers share data that a writer rarely changes?
//!
//! `cargo run --example read_mostly` runs with a server of its own, or uses `REDIS_URL`.

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use leasehold::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let (here, elsewhere) = (Client::open(server.url())?, Client::open(server.url())?);
    let reading = AtomicUsize::new(0);

    // Readers share the lock, in any process.
    thread::scope(|scope| {
        for client in [&here, &elsewhere, &here, &elsewhere] {
            let (prices, reading) = (client.rw_lock("example:prices"), &reading);
            scope.spawn(move || {
                let _guard = prices.read().expect("there is no writer");
                reading.fetch_add(1, Ordering::SeqCst);
                while reading.load(Ordering::SeqCst) < 4 {
                    thread::yield_now(); // until all four readers are here
                }
            });
        }
    });
    println!("four threads have read at the same time");

    // A writer excludes all others. It can also read, and continue to read after it has stopped
    // writing.
    let prices = here.rw_lock("example:prices");
    let writing = prices.write()?;
    assert!(elsewhere.rw_lock("example:prices").try_read()?.is_none());
    println!("one thread writes: no other reads");
    let reading = prices.read()?;
    writing.unlock()?;
    assert!(elsewhere.rw_lock("example:prices").try_read()?.is_some());
    println!("it only reads now: others can read too");

    // A reader cannot become a writer: two that tried would wait for each other.
    let error = prices.write().map(drop).expect_err("this thread reads");
    assert!(error.is_deadlock());
    println!("write() while reading: {error}");
    reading.unlock()?;
    Ok(())
}
