//! How do urgent callers come before others, without keeping them waiting for ever?
//!
//! `cargo run --example priorities` runs with a server of its own, or uses `REDIS_URL`.

mod support;

use std::error::Error;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold::Client;

const NAME: &str = "example:priorities";

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    // Each unit of weight above 1 counts as an arrival one minute earlier.
    let step = Duration::from_secs(60);
    let client = Client::builder().single(server.url()).weight_step(step).build()?;
    let lock = client.queue_lock(NAME);

    let order = Mutex::new(Vec::new());
    let guard = lock.lock()?;
    println!("the printer is busy, jobs arrive");
    thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        for (number, weight) in [1, 1, 5, 1, 10].into_iter().enumerate() {
            let (job, order) = (lock.clone().with_weight(weight), &order);
            scope.spawn(move || {
                let turn = job.lock().expect("every job is printed");
                order.lock().expect("no thread panics").push((number, weight, turn.token()));
            });
            while lock.waiting()?.queue().len() <= number {
                thread::yield_now(); // the next job arrives after this one is queued
            }
        }
        println!("the printer is free");
        guard.unlock()?;
        Ok(())
    })?;
    let order = order.into_inner()?;
    for (number, weight, token) in &order {
        println!("job {number} of weight {weight} was printed with token {token}");
    }
    let printed: Vec<_> = order.iter().map(|(number, ..)| *number).collect();
    assert_eq!(printed, [4, 2, 0, 1, 3]);
    Ok(())
}
