//! How do I take very many locks for a very short time, without subscriptions?
//!
//! `cargo run --example many_short` runs with a server of its own, or uses `REDIS_URL`.

mod support;

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{BackOff, Client};

const LOCKS: usize = 50;
const EACH: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let server = support::Server::start()?;
    let pauses = BackOff::Exponential {
        first: Duration::from_micros(200),
        longest: Duration::from_millis(5),
    };
    let client = || Client::builder().single(server.url()).spin_back_off(pauses).build();
    let clients = [client()?, client()?];

    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..4 {
            let client = &clients[number % 2];
            scope.spawn(move || {
                for turn in 0..EACH {
                    let name = format!("example:short:{}", (turn * 7 + number) % LOCKS);
                    let _guard = client.spin_lock(name).lock().expect("the lock is free soon");
                }
            });
        }
    });
    println!("{} locks were taken in {:.0?}", 4 * EACH, began.elapsed());

    let mut redis = redis::Client::open(server.url())?.get_connection()?;
    let channels: Vec<String> =
        redis::cmd("PUBSUB").arg(&["CHANNELS", "redisson_lock__channel:*"]).query(&mut redis)?;
    println!("subscribed channels: {}", channels.len());
    assert!(channels.is_empty());
    Ok(())
}
