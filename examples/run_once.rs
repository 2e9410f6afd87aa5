//! How does work run once, although every process is told to do it?
//!
//! `cargo run --example run_once` runs with a server of its own, or uses `REDIS_URL`.
//!
//! Four workers get the same three orders. One of them charges each order; the others wait for it,
//! and get its receipt. The first attempt at the second order fails, so another worker tries again.

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, OnceRun};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ORDERS: [&str; 3] = ["order-1", "order-2", "order-3"];
const WORKERS: u32 = 4;

static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

fn main() -> Result<()> {
    let server = support::Server::start().map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        let start = |worker| {
            let client = Client::open(server.url());
            scope.spawn(move || serve(worker, &client?))
        };
        let workers: Vec<_> = (1..=WORKERS).map(start).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    let attempts = ATTEMPTS.load(Ordering::Relaxed);
    println!("main      {attempts} attempts for {} orders and {WORKERS} workers", ORDERS.len());
    assert_eq!(attempts, 4);
    Ok(())
}

/// Gets the receipt of each order.
fn serve(worker: u32, client: &Client) -> Result<()> {
    for order in ORDERS {
        let once = client.once(format!("example:charge:{order}"));
        let once = once.with_keep(Duration::from_secs(60));
        let receipt = loop {
            match once.run(|run| charge(worker, order, run)) {
                Ok(done) => break done,
                Err(error) => println!("worker {worker}  {order}: {error}"),
            }
        };
        println!("worker {worker}  {order}: {}", String::from_utf8_lossy(receipt.value()));
    }
    Ok(())
}

/// Charges an order. What it charges refuses a token that is smaller than one that it has seen.
fn charge(worker: u32, order: &str, run: &OnceRun) -> Result<Vec<u8>> {
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(50)); // the work
    if attempt == 1 {
        return Err("the card was refused".into());
    }
    run.check()?; // before the step that must not happen twice
    println!("worker {worker}  charges {order} with token {}", run.token());
    Ok(format!("receipt of worker {worker}").into_bytes())
}
