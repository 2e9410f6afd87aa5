//! How do I hold a lock that survives the loss of a server?
//!
//! `cargo run --example three_servers` runs with three servers of its own.

mod support;

use std::error::Error;

use leasehold::{Client, RedLock};

fn main() -> Result<(), Box<dyn Error>> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(support::Server::start_own()?);
    }
    let clients = || servers.iter().map(|server| Client::open(server.url()));
    let lock = RedLock::new(clients().collect::<Result<Vec<_>, _>>()?, "example:three");
    let elsewhere = RedLock::new(clients().collect::<Result<Vec<_>, _>>()?, "example:three");

    let guard = lock.lock()?;
    println!("held, {:.0?} left", guard.remaining());
    assert!(elsewhere.try_lock()?.is_none());

    drop(servers.pop());
    println!("one server is gone, held: {}", guard.is_held());
    assert!(elsewhere.try_lock()?.is_none());
    drop(guard);

    let guard = elsewhere.lock()?;
    println!("two of three servers are enough for the next holder: {:.0?} left", guard.remaining());
    drop(servers.pop());
    drop(guard);
    let error = lock.lock().map(drop).expect_err("one server of three is no majority");
    assert!(error.is_connection());
    println!("two servers are gone: {error}");
    Ok(())
}
