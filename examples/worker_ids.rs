//! How does each of many processes get a number of its own?
//!
//! `cargo run --example worker_ids` runs with a server of its own, or uses `REDIS_URL`.
//!
//! Three processes take worker ids from 0 to 2, and name their ports by them. One is killed. It has
//! said that its holds end with it, so the process that replaces it has the same id soon after.

mod support;

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::Client;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WORKERS: u32 = 3;

/// The first port; that of a worker follows by its id.
const FIRST_PORT: u32 = 8100;

fn main() -> Result<()> {
    match env::args().nth(1) {
        Some(url) => work(&url),
        None => start_workers(),
    }
}

/// The work of a process: takes an id, and works under it until its input ends.
fn work(url: &str) -> Result<()> {
    let builder = Client::builder().single(url).release_on_death(true);
    let client = builder.poll_interval(Duration::from_millis(200)).build()?;
    let ids = client.semaphore("example:worker_ids").with_permits(WORKERS).with_slots();
    let permit = ids.acquire()?;
    let id = permit.slot().expect("a semaphore with slots");
    println!("worker {id} listens on port {}", FIRST_PORT + id);
    for line in io::stdin().lines() {
        permit.check()?; // before each step that needs the id
        println!("worker {id} does {}", line?);
    }
    permit.release()?;
    Ok(())
}

fn start_workers() -> Result<()> {
    let server = support::Server::start()?;
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(start_worker(server.url())?);
    }
    let (second, said) = &mut workers[1];
    println!("main     kills the process that said {said:?}");
    let killed = Instant::now();
    second.kill()?;
    second.wait()?;
    let (next, said_by_next) = start_worker(server.url())?;
    println!("main     has another one in its place after {:.1?}", killed.elapsed());
    assert_eq!(said, &said_by_next);
    workers.push((next, said_by_next));
    for (mut worker, _) in workers {
        drop(worker.stdin.take());
        worker.wait()?;
    }
    Ok(())
}

/// Starts a process, and returns the first line that it prints.
fn start_worker(url: &str) -> Result<(Child, String)> {
    let mut command = Command::new(env::current_exe()?);
    let mut worker = command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let output = worker.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line)?;
    print!("{line}");
    Ok((worker, line))
}
