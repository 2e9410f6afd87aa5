//! How do I hold several locks at once, without a deadlock?
//!
//! `cargo run --example transfer` runs with a server of its own, or uses `REDIS_URL`.

mod support;

use std::error::Error;
use std::sync::Mutex;
use std::thread;

use leasehold::{Client, MultiLock};

const TRANSFERS: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let clients = [Client::open(server.url())?, Client::open(server.url())?];
    let accounts = [Mutex::new(1000_i64), Mutex::new(1000)];

    // One thread per direction. Each thread names the accounts in its own order.
    thread::scope(|scope| {
        for (client, [from, to]) in clients.iter().zip([[0, 1], [1, 0]]) {
            let accounts = &accounts;
            let both = MultiLock::new([from, to].map(|it| client.lock(format!("account:{it}"))));
            scope.spawn(move || {
                for _ in 0..TRANSFERS {
                    let guard = both.lock().expect("both locks are free soon");
                    // The lock excludes all others, so the mutexes are always free.
                    let mut balance =
                        accounts[from].try_lock().expect("the other thread is excluded");
                    let mut other = accounts[to].try_lock().expect("the other thread is excluded");
                    *balance -= 1 + from as i64;
                    *other += 1 + from as i64;
                    drop((balance, other));
                    guard.unlock().expect("the leases are valid");
                }
            });
        }
    });
    let [first, second] = accounts.map(|account| account.into_inner().unwrap_or_default());
    println!("after {} transfers: {first} and {second}", 2 * TRANSFERS);
    assert_eq!(first + second, 2000);
    Ok(())
}
