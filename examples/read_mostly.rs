//! How do many read what one writes now and then?
//!
//! `cargo run --example read_mostly` starts a Redis of its own (or uses `REDIS_URL`).

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use leasehold::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let (here, elsewhere) = (Client::open(server.url())?, Client::open(server.url())?);
    let reading = AtomicUsize::new(0);

    // Readers share, whatever process they are in.
    thread::scope(|scope| {
        for client in [&here, &elsewhere, &here, &elsewhere] {
            let (prices, reading) = (client.rw_lock("example:prices"), &reading);
            scope.spawn(move || {
                let _guard = prices.read().expect("nobody writes");
                reading.fetch_add(1, Ordering::SeqCst);
                while reading.load(Ordering::SeqCst) < 4 {
                    thread::yield_now(); // all four are in here together
                }
            });
        }
    });
    println!("four have read at the same time");

    // A writer is alone. It may look at what it has written, and go on looking when it
    // lets others in.
    let prices = here.rw_lock("example:prices");
    let writing = prices.write()?;
    assert!(elsewhere.rw_lock("example:prices").try_read()?.is_none());
    println!("one writes: nobody else reads");
    let reading = prices.read()?;
    writing.unlock()?;
    assert!(elsewhere.rw_lock("example:prices").try_read()?.is_some());
    println!("it only reads now: others may too");

    // The other way round would be a deadlock as soon as two try it.
    let error = prices.write().map(drop).expect_err("it reads");
    assert!(error.is_deadlock());
    println!("to write while it reads: {error}");
    reading.unlock()?;
    Ok(())
}
