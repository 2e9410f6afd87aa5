//! How do I grant a lock in the order of arrival?
//!
//! `cargo run --example fair_queue` runs with a server of its own, or uses `REDIS_URL`.

mod support;

use std::error::Error;
use std::sync::Mutex;
use std::thread;

use leasehold::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    // Three clients, as on three machines.
    let clients = [(); 3].map(|()| Client::open(server.url()));
    let clients: Vec<Client> = clients.into_iter().collect::<Result<_, _>>()?;
    let mut redis = redis::Client::open(server.url())?.get_connection()?;
    let mut queued = || -> redis::RedisResult<usize> {
        redis::cmd("LLEN").arg("redisson_lock_queue:{example:fair_queue}").query(&mut redis)
    };

    let order = Mutex::new(Vec::new());
    let guard = clients[0].fair_lock("example:fair_queue").lock()?;
    println!("the counter is closed, customers arrive");
    thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        for customer in 0..6 {
            let (lock, order) = (clients[customer % 3].fair_lock("example:fair_queue"), &order);
            scope.spawn(move || {
                let _turn = lock.lock().expect("every customer is served");
                order.lock().expect("no thread panics").push(customer);
            });
            while queued()? <= customer {
                thread::yield_now(); // the next customer arrives after this one is queued
            }
        }
        println!("the counter opens");
        guard.unlock()?;
        Ok(())
    })?;
    let order = order.into_inner()?;
    println!("served: {order:?}");
    assert!(order.is_sorted());
    Ok(())
}
