//! Driver of leasehold, its floor and the lock libraries from crates.io.
//!
//! Reads one command per line and prints one answer per line (`benches/peers/README.md`).

#![cfg_attr(
    not(feature = "peers"),
    allow(irrefutable_let_patterns, reason = "only a peer has the workers of an event loop")
)]

mod commands;
mod contender;
mod floor;
mod floor_semaphore;
mod heap;
mod leasehold;
mod local;
#[cfg(feature = "peers")]
mod redisson;
#[cfg(feature = "peers")]
mod redlock;
#[cfg(feature = "peers")]
mod rslock;
mod semaphores;
mod stamp;

use std::io::{self, BufRead, Write};

use commands::Commands;
use contender::{Contender, Failure};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(url)) = (arguments.next(), arguments.next()) else {
        return Err("usage: rust-peers CONTENDER URL".into());
    };
    let contender = match open(&name, &url) {
        Ok(contender) => contender,
        Err(error) => return say(&format!("unsupported {error}")),
    };
    say(&format!("ready {name} {}", contender.version()))?;
    let mut commands = Commands::new(contender);
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line == "quit" {
            break;
        }
        say(&commands.execute(&line).unwrap_or_else(|error| format!("failed {error}")))?;
    }
    Ok(())
}

fn open(name: &str, url: &str) -> Result<Contender, Failure> {
    // `leasehold-drop@4` has four connections in its pool.
    let (name, pool) = name.split_once('@').unwrap_or((name, ""));
    let pool = pool.parse().ok();
    match name {
        "leasehold-drop"
        | "leasehold-unlock"
        | "leasehold-fair"
        | "leasehold-fair-unlock"
        | "leasehold-linger"
        | "leasehold-queue"
        | "leasehold-queue-unlock" => leasehold::open(url, name, pool),
        "leasehold-semaphore" | "leasehold-semaphore-unlock" | "leasehold-plain-semaphore" => {
            semaphores::open(url, name, pool)
        }
        "floor" => floor::open(url, false),
        "floor-posted" => floor::open(url, true),
        "floor-semaphore" => floor_semaphore::open(url),
        "park" => Ok(local::park()),
        "parking_lot" => Ok(local::parking_lot()),
        #[cfg(feature = "peers")]
        "rslock" => rslock::open(url),
        #[cfg(feature = "peers")]
        "redlock-rs" => redlock::open(url),
        #[cfg(feature = "peers")]
        "redisson-rs" => redisson::open(url),
        _ => Err(format!("there is no contender {name}").into()),
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
